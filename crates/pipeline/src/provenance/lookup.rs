//! The record of a prediction to which a file belongs, and whether it lists the file.

use super::{InputRecord, Provenance, beside, read};
use crate::diameter::{DiameterUnit, ObjectDiameter};
use crate::job_record::{AnyRecord, JobKind, absolute, read_any, record_path};
use crate::predict::containing_maps;
use crate::predicted_part::PredictedPart;
use crate::results::FileRecord;
use crate::{ArtifactKind, JobError, Model};
use cytoscope_formats::{SeriesChoice, is_zarr_name, is_zarr_zip_name, stack_stem};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_storage::message;
use cytoscope_storage::setting::OUTPUT_PREPROCESSED;
use cytoscope_storage::write::parent_folder;
use cytoscope_volume::{Axes, VoxelSize};
use std::path::{Path, PathBuf};

/// Returns the path of the record that belongs to a result of a prediction; `None` if the file's name is not that of a
/// prediction's result.
pub(crate) fn find_record(file: &Path) -> Option<PathBuf> {
    let name = file.file_name()?.to_str()?;
    let stem = match ArtifactKind::from_name(name)? {
        (ArtifactKind::Provenance, _) => return None,
        // The table of corrected labels is listed in the record of the prediction that was corrected.
        (ArtifactKind::Table, stem) => stem.strip_suffix("_corrected").unwrap_or(stem),
        (_, stem) => stem,
    };
    Some(file.with_file_name(ArtifactKind::Provenance.file_name(stem)))
}

/// Returns whether the record beside a file lists its name, whether or not the file was changed. If the record cannot
/// be read, the file counts as listed: a result must not be taken for an image.
pub(crate) fn is_prediction_result(file: &Path) -> bool {
    let Some(path) = find_record(file).filter(|path| path.is_file()) else { return false };
    let names = |r: Provenance| [r.outputs, r.replaced, r.derived].concat();
    read(&path).map_or(true, |record| names(record).iter().any(|known| known.is_named(file)))
}

/// Returns whether the record of a prediction beside a file or OME-Zarr folder lists its name, whether or not it was changed. A
/// record with the expected name that cannot be read counts, too, so that opening it shows the error.
pub(crate) fn has_prediction_record(file: &Path) -> bool {
    match find_record(file).filter(|path| path.is_file()) {
        Some(_) => is_prediction_result(file),
        None => record_listing(file).is_some(),
    }
}

/// Whether a file is the OME-Zarr in one zip file that the record of a prediction beside it lists, whether or not the file was
/// changed.
pub(crate) fn is_prediction_zip(file: &Path) -> bool {
    find_zip_record(file).is_some()
}

/// Returns the path of the record that lists an OME-Zarr in one zip file: it is named after the file. `None` for other files, and
/// if there is no record that lists this name.
fn find_zip_record(file: &Path) -> Option<PathBuf> {
    if !is_zarr_zip_name(file) {
        return None;
    }
    let path = file.with_file_name(ArtifactKind::Provenance.file_name(&stack_stem(file)));
    // Without a record, or with one of another job or a damaged one, the file is none of a prediction.
    let record = path.is_file().then(|| read(&path).ok()).flatten()?;
    record.outputs.iter().any(|output| output.is_named(file)).then_some(path)
}

/// Returns the path of the record that lists a result. An OME-Zarr folder may have a name that says nothing about its record: it
/// is then the newest one in the same folder that lists this name.
pub(crate) fn record_listing(file: &Path) -> Option<PathBuf> {
    if is_zarr_zip_name(file) {
        return find_zip_record(file);
    }
    let own_record = find_record(file).filter(|path| path.is_file());
    if own_record.is_some() || !is_zarr_name(file) {
        return own_record;
    }
    // A folder or an entry that cannot be read has no record that could be used.
    let records = std::fs::read_dir(parent_folder(file)).ok()?.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        // The folder of the file is kept as it is given.
        let path = file.with_file_name(&name);
        let (kind, _) = ArtifactKind::from_name(name.to_str()?)?;
        // Records of other jobs and damaged ones cannot be read.
        let record = (kind == ArtifactKind::Provenance).then(|| read(&path).ok()).flatten()?;
        let is_listed = record.outputs.iter().any(|output| output.is_named(file));
        is_listed.then_some((record.finished_unix_secs, path))
    });
    records.max().map(|(_, path)| path)
}

/// Returns what the record of a file knows about files of its name. A record that cannot be read lists nothing, so the file
/// counts as foreign.
fn known_with_name(file: &Path) -> Vec<FileRecord> {
    let record = record_listing(file).and_then(|path| read(&path).ok());
    let known = |r: Provenance| [r.outputs, r.replaced, r.derived].concat();
    record.map_or_else(Vec::new, known).into_iter().filter(|known| known.is_named(file)).collect()
}

/// Returns the table of a prediction whose labels these have replaced, so that it lists other objects; `None` if there is none.
pub(crate) fn table_of_replaced(labels: &Path) -> Option<PathBuf> {
    let path = record_listing(labels)?;
    // Without a readable record, no table is known to belong to the labels.
    let record = read(&path).ok().filter(|record| record.replaced.iter().any(|file| file.is_named(labels)))?;
    let is_table = |file: &PathBuf| {
        let kind = file.file_name().and_then(|name| ArtifactKind::from_name(name.to_str()?)).map(|(kind, _)| kind);
        kind == Some(ArtifactKind::Table) && file.is_file()
    };
    record.outputs.iter().map(|output| beside(&path, &output.path)).find(is_table)
}

/// Returns whether the record beside a file lists it with its current size and content.
pub(crate) fn lists(file: &Path) -> bool {
    lists_while(file, &mut || true)
}

/// Like [`lists`]. `goes_on` is called before each block of a file is read. If it returns `false`, nothing more is read and the
/// result is `false`.
pub(crate) fn lists_while(file: &Path, goes_on: &mut dyn FnMut() -> bool) -> bool {
    known_with_name(file).iter().any(|known| known.matches_while(file, goes_on))
}

/// Like [`lists`], for a file or folder whose size and hash are known.
pub(crate) fn lists_content(file: &Path, (bytes, sha256): &(u64, String)) -> bool {
    known_with_name(file).iter().any(|known| known.bytes == *bytes && known.sha256 == *sha256)
}

/// Returns whether a file is the unchanged result of a prediction or of a segmentation of its maps, by the record beside it.
pub fn is_computed_result(file: &Path) -> bool {
    let is_segmented = || match read_any(&record_path(file)) {
        Ok(AnyRecord::Job(record)) => {
            let is_listed = |known: &FileRecord| known.is_named(file) && known.matches(file);
            record.kind == JobKind::Segment && record.outputs.iter().any(is_listed)
        }
        // Without a record that can be read, nothing is known about the file.
        _ => false,
    };
    lists(file) || is_segmented()
}

/// Returns the object diameter with which a model predicted a map, if the record beside the map lists it unchanged and names
/// the model.
pub fn map_diameter(map: &Path, model: &Model) -> Option<ObjectDiameter> {
    let record = unchanged_record(map)?;
    record.diameter.filter(|_| record.model.fingerprint == model.fingerprint)
}

/// Returns the voxel size Z, Y, X, in voxels along X, that the prediction of labels assumed because their stack states none;
/// `None` if no record beside the labels lists them unchanged and states a plausible one.
pub fn assumed_voxel(labels: &Path) -> Option<[f64; 3]> {
    assumed_voxel_while(labels, &mut || true)
}

/// Like [`assumed_voxel`]. `goes_on` is called before each block of a file is read. If it returns `false`, nothing more is read and
/// the result is `None`.
pub(crate) fn assumed_voxel_while(labels: &Path, goes_on: &mut dyn FnMut() -> bool) -> Option<[f64; 3]> {
    let result = containing_maps(labels);
    let diameter = read(&record_listing(result)?).ok()?.diameter?;
    let [z, y, x] = diameter.voxel;
    let is_assumed = diameter.unit == DiameterUnit::Voxels && VoxelSize::new_um(z, y, x).check().is_ok();
    // A large result takes long to read.
    (is_assumed && lists_while(result, goes_on)).then_some(diameter.voxel)
}

/// Returns the time point that a map was predicted from, if the record beside the map lists it unchanged and the prediction was
/// of a single one.
pub(crate) fn map_time(map: &Path) -> Option<usize> {
    unchanged_record(map)?.job.time
}

/// Returns how the file that a map was predicted from was read, if the record beside the map lists it unchanged and names a
/// file of this name: its series, and the axes that replaced its own, if any.
pub(crate) fn map_input(map: &Path, file: &Path) -> Option<(Option<SeriesChoice>, Option<Axes>)> {
    let record = unchanged_record(map)?;
    let is_input = record.input.path.file_name() == file.file_name();
    let series = Some(record.job.series).filter(|series| *series != SeriesChoice::All);
    Some((series, record.job.axes)).filter(|_| is_input)
}

/// Refuses to measure objects of a map or of labels in the stack that these were predicted from, if preprocessing has moved its
/// voxels, so that the objects are at other places in it.
///
/// # Errors
/// [`JobError::Mismatch`], if the record beside the result lists it unchanged, and the stack is the recorded one.
pub(crate) fn refuse_moved(result: &Path, stack: &Path) -> Result<(), JobError> {
    let Some(record) = record_listing(result).and_then(|path| read(&path).ok()) else { return Ok(()) };
    let steps = &record.job.preprocess;
    if !steps.iter().any(PreprocessStep::moves_voxels) {
        return Ok(());
    }
    // The preprocessed stack may have the same name.
    let is_input = match &record.input.sampled_sha256 {
        Some(known) if !stack.is_dir() => {
            InputRecord::sampled(stack).is_ok_and(|now| now.sampled_sha256.as_ref() == Some(known))
        }
        _ => record.job.inputs.contains(&absolute(stack)),
    };
    let mut listed = record.outputs.iter().chain(&record.derived);
    if !is_input || !listed.any(|known| known.is_named(result) && known.matches(result)) {
        return Ok(());
    }
    let steps: Vec<String> = steps.iter().map(PreprocessStep::to_string).collect();
    Err(JobError::Mismatch {
        path: stack.to_owned(),
        problem: format!(
            "{} was predicted after the preprocessing {}, which moves voxels, so its objects are at other places in this stack",
            result.display(),
            steps.join(", ")
        )
        .into(),
        next_step: message!("give the preprocessed stack, which a prediction with {OUTPUT_PREPROCESSED} writes"),
    })
}

/// Returns the name of the model that predicted a map, if the record beside the map lists it unchanged and names another model
/// than this one.
pub fn other_map_model(map: &Path, model: &Model) -> Option<String> {
    let record = unchanged_record(map)?;
    (record.model.fingerprint != model.fingerprint).then_some(record.model.name)
}

/// Returns the part of a file that a result was predicted from, if the record of the result names a file of this name. Whether
/// the result is unchanged is not checked.
pub(crate) fn part_of_file(result: &Path, file: &Path) -> Option<PredictedPart> {
    let record = read(&record_listing(result)?).ok()?;
    let is_input = record.input.path.file_name() == file.file_name();
    let series = Some(record.job.series).filter(|series| *series != SeriesChoice::All);
    is_input.then_some(PredictedPart { series, time: record.job.time, axes: record.job.axes })
}

/// Returns the record beside a map, if it lists the map with its current content. A record that cannot be read lists nothing.
fn unchanged_record(map: &Path) -> Option<Provenance> {
    let record = read(&record_listing(map)?).ok()?;
    let is_listed = record.outputs.iter().any(|output| output.is_named(map) && output.matches(map));
    is_listed.then_some(record)
}
