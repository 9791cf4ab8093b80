//! Provenance records: how a result was made, written beside it so that it can be reproduced.

mod changed;
mod inputs;
mod lookup;

pub use crate::image_files::{FileSum, ImageFiles};
pub(crate) use inputs::{CheckedInput, changes_of};
pub use inputs::{InputRecord, InputTensorRecord};
pub use lookup::{assumed_voxel, is_computed_result, map_diameter, other_map_model};
pub(crate) use lookup::{
    assumed_voxel_while, find_record, has_prediction_record, is_prediction_result, is_prediction_zip, lists,
    lists_content, lists_while, map_input, map_time, part_of_file, record_listing, refuse_moved, table_of_replaced,
};

use crate::devices::DeviceChoice;
use crate::diameter::ObjectDiameter;
use crate::installed_models::recorded_model;
use crate::job_record::absolute;
use crate::predict::{InputReport, InputTensor, KeepSlices, PredictJob, PredictedSlices, TilePlan, zarr};
use crate::preprocess::PreprocessRecord;
use crate::recorded::Recorded;
use crate::results::FileRecord;
use crate::{AppliedProfile, Artifact, ArtifactKind, Context, JobError, Model, PROGRAM, StatisticsScope};
use cytoscope_engine::Precision;
use cytoscope_formats::is_zarr_zip_name;
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::setting::PROVENANCE;
use cytoscope_storage::target::resolved;
use cytoscope_storage::{Overwrite, StorageError, message};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The file `NAME_provenance.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Provenance {
    /// Program name and version, `cytoscope X.Y.Z`.
    pub program: String,
    /// Fingerprint of everything that determines the result: job, model and input files.
    pub fingerprint: String,
    /// The job for this input alone; `cytoscope predict --rerun FILE` runs it again.
    pub job: PredictJob,
    /// The model's name, path and fingerprint.
    pub model: ModelRecord,
    /// The input file.
    pub input: InputRecord,
    /// The other files of its image, such as numbered slices; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_files: Option<ImageFiles>,
    /// The folders of chunks that were read: size of all their files, and the latest time of modification. Only OME-Zarr
    /// images have them; earlier versions do not record them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<InputRecord>,
    /// Files and channels of the model's input tensors; none if there is one and it is read from the input file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_tensors: Vec<InputTensorRecord>,
    /// Files that the job wrote, with their hashes.
    #[serde(deserialize_with = "file_records")]
    pub outputs: Vec<FileRecord>,
    /// Files of earlier results that the outputs replace. They still exist if the run was stopped while files were
    /// renamed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<FileRecord>,
    /// Files derived from these results later, such as the table of corrected labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub derived: Vec<FileRecord>,
    /// The device it ran on and why it was chosen.
    pub device: Recorded<DeviceChoice>,
    /// Precision of the network; earlier versions do not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// The devices and precisions that computed the slices, in order, unless `device` computed all of them in `precision`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PredictedSlices>,
    /// Which settings of the job came from a machine profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<AppliedProfile>,
    /// The object diameter used, for models that declare one.
    #[serde(default)]
    pub diameter: Option<ObjectDiameter>,
    /// The tile plan: tile size, halo, blending.
    pub plan: Recorded<TilePlan>,
    /// Extent over which the statistics of the model's processing steps were computed; absent if none needs statistics.
    /// Earlier versions always used the whole stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<StatisticsScope>,
    /// Effect of preprocessing steps on the stack, whose results have the shape and voxel size after them; absent if the
    /// job has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preprocessed: Option<PreprocessRecord>,
    /// Number of objects at each time point.
    pub objects: Vec<u32>,
    /// Time of completion in seconds since 1970.
    pub finished_unix_secs: u64,
}

/// Deserializes records of files. Earlier versions listed only paths; these become records that match no file.
fn file_records<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<FileRecord>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Entry {
        Record(FileRecord),
        Path(PathBuf),
    }
    let entries = Vec::<Entry>::deserialize(deserializer)?;
    let record = |entry| match entry {
        Entry::Record(record) => record,
        Entry::Path(path) => FileRecord { path, bytes: 0, sha256: String::new() },
    };
    Ok(entries.into_iter().map(record).collect())
}

/// The model that made a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Name of the model that was run.
    pub name: String,
    /// Path of the file or package.
    pub path: PathBuf,
    /// Fingerprint of the network's file.
    pub fingerprint: String,
}

/// What to do about a path that a record cannot name.
pub(crate) const RENAME: &str = "rename the file or folder";

/// Returns the fingerprint of everything that determines an input's result: the job, the model, and the sizes, times and
/// sampled contents of the input's files.
///
/// # Errors
/// [`JobError::WrongUse`] if a path is not Unicode.
pub(crate) fn fingerprint(job: &PredictJob, model: &str, files: &[InputRecord]) -> Result<String, JobError> {
    let text = serde_json::to_string(&(job, model, files))
        .map_err(|e| JobError::wrong_use_with(format!("the job cannot be recorded ({e})"), RENAME))?;
    Ok(cytoscope_engine::select::fingerprint(text.as_bytes()))
}

/// Returns the name and version of this program, as in a record.
pub(crate) fn program() -> String {
    PROGRAM.to_owned()
}

/// The contents of a new record.
pub(crate) struct NewRecord<'a> {
    /// The job. All paths but those of the results, which are beside the record, are made absolute in it.
    pub job: &'a PredictJob,
    /// The model that ran; the record states its name, path and fingerprint.
    pub model: &'a Model,
    /// The input as it was before it was read.
    pub input: InputRecord,
    /// The other files of its image.
    pub input_files: Option<ImageFiles>,
    /// The folders of chunks as they were before they were read.
    pub chunks: Vec<InputRecord>,
    /// Hash of everything that determines the result; see [`fingerprint`].
    pub fingerprint: &'a str,
    /// Precision that the network ran in, which may differ from the requested one.
    pub precision: Precision,
    /// Details of the computation for the input: device, tiles, diameter, objects.
    pub report: &'a InputReport,
    /// The user's preprocessing steps; `None` without any.
    pub preprocessed: Option<PreprocessRecord>,
    /// Files and channels of the model's input tensors; empty for a single tensor of the stack.
    pub input_tensors: Vec<InputTensorRecord>,
    /// The written files, with their final paths and hashes.
    pub outputs: Vec<FileRecord>,
}

/// Writes the record of files that are about to be renamed to their final names. Returns the results of earlier
/// predictions that these do not replace, because they have other names, and objects that were saved from these results.
///
/// # Errors
/// [`JobError::Storage`] if it cannot be written, or another process takes long to change it.
pub(crate) fn write(path: &Path, record: NewRecord<'_>) -> Result<Vec<PathBuf>, JobError> {
    let NewRecord {
        job,
        model,
        input,
        input_files,
        chunks,
        fingerprint,
        precision,
        report,
        preprocessed,
        input_tensors,
        outputs,
    } = record;
    let unwritable = |e: serde_json::Error| JobError::Internal(format!("provenance: {e}"));
    let plan = report.plan.as_ref();
    let plan = plan.ok_or_else(|| JobError::Internal("provenance: the prediction has no plan".to_owned()))?;
    let _lock = ResultsLock::for_update(path)?;
    let earlier = earlier(path);
    let record = Provenance {
        program: program(),
        fingerprint: fingerprint.to_owned(),
        job: recorded_job(job, &input.path, &input_tensors),
        model: ModelRecord {
            name: model.name.clone(),
            path: absolute(&model.path),
            fingerprint: model.fingerprint.clone(),
        },
        input: InputRecord { path: absolute(&input.path), ..input },
        input_files,
        chunks: chunks.into_iter().map(|record| InputRecord { path: absolute(&record.path), ..record }).collect(),
        input_tensors,
        replaced: earlier.as_ref().map_or_else(Vec::new, |earlier| replaced(path, earlier, &outputs)),
        derived: earlier.map_or_else(Vec::new, |earlier| earlier.derived),
        outputs,
        device: Recorded::new(report.device.clone()).map_err(unwritable)?,
        precision: Some(precision),
        parts: report.parts.clone(),
        profile: report.profile.clone(),
        diameter: report.diameter,
        plan: Recorded::new(plan.clone()).map_err(unwritable)?,
        statistics: StatisticsScope::of(model),
        preprocessed,
        objects: report.objects.clone(),
        finished_unix_secs: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
    };
    store(path, &record)?;
    Ok(kept_results(path, &record))
}

/// Returns the job as it is recorded: for this input alone, with absolute paths, and without what does not determine the
/// result.
fn recorded_job(job: &PredictJob, input: &Path, input_tensors: &[InputTensorRecord]) -> PredictJob {
    // The channels of input tensors are recorded as they were found, so that a rerun does not choose others; those that the
    // job gives for a single input tensor of the stack are recorded as given.
    let is_found = !input_tensors.is_empty();
    let given_tensors = || -> Vec<InputTensor> {
        let with_file = |tensor: &InputTensor| tensor.file.as_deref().map(absolute);
        job.input_tensors.iter().map(|tensor| InputTensor { file: with_file(tensor), ..tensor.clone() }).collect()
    };
    PredictJob {
        inputs: vec![absolute(input)],
        model: recorded_model(&job.model),
        out: absolute(&job.out),
        channel: job.channel.filter(|_| !is_found),
        channels: if is_found { Vec::new() } else { job.channels.clone() },
        input_tensors: if is_found {
            input_tensors.iter().map(InputTensorRecord::as_given).collect()
        } else {
            given_tensors()
        },
        cpu_because: None,
        resume: false,
        keep_slices: KeepSlices::default(),
        overwrite: Overwrite::Refuse,
        ..job.clone()
    }
}

/// Returns the results of earlier predictions that the outputs of a record do not replace, and objects that were saved from
/// these results.
fn kept_results(path: &Path, record: &Provenance) -> Vec<PathBuf> {
    let is_kept = |file: &&FileRecord| !record.outputs.iter().any(|output| output.is_named(&file.path));
    let derived = record.derived.iter().filter(|file| are_labels_of(path, &beside(path, &file.path)));
    let mut kept: Vec<PathBuf> = Vec::new();
    for file in record.replaced.iter().chain(derived).filter(is_kept).map(|file| beside(path, &file.path)) {
        // Objects that were saved again without a change are in both lists.
        if !kept.contains(&file) {
            kept.push(file);
        }
    }
    kept
}

/// Whether a file or OME-Zarr folder exists that has the name of the labels of the prediction with this record.
fn are_labels_of(record: &Path, file: &Path) -> bool {
    let kind = file.file_name().and_then(|name| ArtifactKind::from_name(name.to_str()?)).map(|(kind, _)| kind);
    let exists = || file.is_file() || zarr::is_result(file);
    kind == Some(ArtifactKind::Labels) && find_record(file).as_deref() == Some(record) && exists()
}

fn store(path: &Path, record: &Provenance) -> Result<(), JobError> {
    let text =
        serde_json::to_string_pretty(record).map_err(|e| JobError::Io { path: path.to_owned(), error: e.into() })?;
    Ok(cytoscope_storage::write::atomic_write(path, text.as_bytes())?)
}

/// Returns the record that an earlier run left at a path. A damaged record is logged and treated as absent: the files
/// that it lists are then not recognized as results.
fn earlier(path: &Path) -> Option<Provenance> {
    std::fs::symlink_metadata(path).ok()?;
    match read(path) {
        Ok(record) => Some(record),
        Err(error) => {
            tracing::warn!("an earlier record cannot be used, so the files that it lists are not known: {error}");
            None
        }
    }
}

/// Returns the files of the earlier record at `path` that still exist unchanged and are not among the new outputs.
fn replaced(path: &Path, earlier: &Provenance, outputs: &[FileRecord]) -> Vec<FileRecord> {
    let known = earlier.outputs.iter().chain(&earlier.replaced);
    known.filter(|k| !outputs.contains(k) && k.matches(&beside(path, &k.path))).cloned().collect()
}

/// Returns a recorded file's path in the folder of its record, because folders of results may be moved.
fn beside(record: &Path, file: &Path) -> PathBuf {
    file.file_name().map_or_else(|| file.to_owned(), |name| record.with_file_name(name))
}

/// Maximum size of the record of a prediction in bytes.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// Maximum number of the files of an input whose content is recognized by blocks that are read from them.
pub(crate) const MAX_SAMPLED_FILES: usize = 256;

/// Reads the provenance record of a prediction.
///
/// # Errors
/// [`JobError`] if the file is missing or not such a record.
pub fn read(path: &Path) -> Result<Provenance, JobError> {
    let bytes = read_bytes(path, MAX_RECORD_BYTES)?;
    serde_json::from_slice(&bytes).map_err(|error| JobError::Mismatch {
        path: path.to_owned(),
        problem: format!("not a provenance record of a prediction ({error})").into(),
        next_step: message!(
            "give a _provenance.json that a prediction wrote; for those of other jobs, use {PROVENANCE}"
        ),
    })
}

/// Returns the error of a file that is not a provenance record.
pub(crate) fn not_a_record(path: &Path, problem: String) -> JobError {
    let next_step = "give a _provenance.json that this program wrote".into();
    JobError::Mismatch { path: path.to_owned(), problem: problem.into(), next_step }
}

/// Reads the bytes of a record of any kind, of which there are at most `max_bytes`.
///
/// # Errors
/// [`JobError`] if the file is missing or too large.
pub(crate) fn read_bytes(path: &Path, max_bytes: u64) -> Result<Vec<u8>, JobError> {
    let file = open_regular(path).map_err(|e| JobError::unreadable(path, e))?;
    let io = |error| JobError::Io { path: path.to_owned(), error };
    let size = file.metadata().map_err(io)?.len();
    if size > max_bytes {
        return Err(not_a_record(path, format!("the file is too large for a provenance record ({size} bytes)")));
    }
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

/// Refuses a record's path if another file exists there, or a record of another input: two stacks of the same name may
/// be predicted into the same folder.
///
/// # Errors
/// [`StorageError::Exists`], unless `overwrite` allows replacing it.
pub(crate) fn refuse_foreign_record(path: &Path, input: &Path, overwrite: Overwrite) -> Result<(), JobError> {
    if overwrite == Overwrite::Replace || std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    let is_of_this_input = |record: &Provenance| match record.job.inputs.as_slice() {
        // In a folder that was moved together with its results, the same file has another path.
        [recorded] => {
            let is_same = recorded.file_name() == input.file_name() && record.input.change_on_disk(input).is_none();
            is_same || resolved(recorded) == resolved(input)
        }
        _ => false,
    };
    match read(path) {
        Ok(record) if is_of_this_input(&record) => Ok(()),
        _ => Err(StorageError::Exists { path: path.to_owned() }.into()),
    }
}

/// Refuses the path of the record of a series after the first if a prediction of another file wrote a record there. The name
/// is derived from that of the first series, so permission to replace existing files does not mean these results.
///
/// # Errors
/// [`StorageError::NotReplaceable`] with the other file.
pub(crate) fn refuse_record_of_another_file(path: &Path, input: &Path) -> Result<(), JobError> {
    let Ok(record) = read(path) else { return Ok(()) };
    let other = &record.input.path;
    // Folders may have been moved, so only names are compared.
    if other.file_name() == absolute(input).file_name() {
        return Ok(());
    }
    let problem = format!("is of a prediction of {}, not of a series of {}", other.display(), input.display());
    Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false }.into())
}

/// Adds new files to the prediction records beside them, in place of the files they replace. Files without a record are
/// skipped; so are those with a damaged one, which is logged. Call this before the files are renamed to their final
/// names.
///
/// # Errors
/// [`JobError::Storage`] if the record cannot be written, or another process takes long to change it.
pub(crate) fn update(files: &[FileRecord]) -> Result<(), JobError> {
    for file in files {
        let Some(path) = record_listing(&file.path) else { continue };
        // Another process may be adding the table of these labels, or labels of another name.
        let _lock = ResultsLock::for_update(&path)?;
        let Some(mut record) = earlier(&path) else { continue };
        // Unchanged files of earlier results. The outputs stay listed as such.
        let is_left = |known: &&FileRecord| *known != file && known.matches(&beside(&path, &known.path));
        let mut replaced: Vec<FileRecord> = record.replaced.iter().filter(is_left).cloned().collect();
        let is_output = record.outputs.iter().any(|o| o.is_named(&file.path));
        let list = if is_output { &mut record.outputs } else { &mut record.derived };
        // The old file stays listed until the new one has its final name.
        replaced.extend(list.extract_if(.., |o| o.is_named(&file.path)));
        list.push(file.clone());
        if is_output {
            // The results are no longer those of the recorded job, so `--resume` must not keep them.
            record.fingerprint.clear();
        }
        replaced.retain(|r| !record.outputs.contains(r));
        record.replaced = replaced;
        store(&path, &record)?;
    }
    Ok(())
}

/// Returns the outputs of an earlier run of the same job and its record, if all of them exist unchanged. `is_of_job` returns
/// whether a record is that of the job, `maps` is the kind of its maps, if it wrote any, and `has_labels` states whether it
/// wrote labels.
///
/// # Errors
/// [`JobError::Canceled`].
pub(crate) fn finished(
    context: &Context,
    path: &Path,
    is_of_job: impl FnOnce(&Provenance) -> bool,
    maps: Option<ArtifactKind>,
    has_labels: bool,
) -> Result<Option<Vec<Artifact>>, JobError> {
    // Without a readable record, the input is predicted again.
    let Some(record) = read(path).ok().filter(is_of_job) else { return Ok(None) };
    let mut found = Vec::new();
    for output in &record.outputs {
        let file = beside(path, &output.path);
        let is_unchanged = output.matches_while(&file, &mut || context.check().is_ok());
        context.check()?;
        if !is_unchanged {
            return Ok(None);
        }
        if file.is_dir() {
            found.extend(zarr::artifacts(&file, maps, has_labels));
        } else if is_zarr_zip_name(&file) {
            found.push(zarr::zipped_artifact(&file, maps));
        } else if let Some(artifact) = Artifact::from_file(file) {
            found.push(artifact);
        } else {
            return Ok(None);
        }
    }
    found.push(Artifact::new(ArtifactKind::Provenance, path));
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{ZarrImageSpec, ZarrWriter};
    use cytoscope_volume::{DType, Samples};

    /// Writes an OME-Zarr folder as predictions and segmentations do, and returns its record.
    fn zarr_folder(path: &Path) -> FileRecord {
        let mut writer = ZarrWriter::create_listed(path, ZarrImageSpec::new("x", [1; 5], DType::U16)).unwrap();
        writer.write(0, [0; 3], &Samples::U16(vec![1])).unwrap();
        let finished = writer.finish().unwrap().finish(zarr::FOLDER_KIND).unwrap();
        let record =
            FileRecord { path: path.to_owned(), bytes: finished.bytes(), sha256: finished.sha256().to_owned() };
        let _ = finished.publish().unwrap();
        record
    }

    /// Writes the record of a prediction with these outputs.
    fn write_record(path: &Path, outputs: &[FileRecord], finished_unix_secs: u64) {
        let job = PredictJob::new(vec!["/i/x.tif".into()], "m".to_owned(), "/o".into());
        let record = serde_json::json!({
            "program": "cytoscope", "fingerprint": "f", "job": job, "outputs": outputs, "device": null, "plan": null,
            "model": {"name": "m", "path": "/m", "fingerprint": "1"},
            "input": {"path": "/i/x.tif", "bytes": 1, "modified_unix_secs": 1},
            "objects": [], "finished_unix_secs": finished_unix_secs,
        });
        std::fs::write(path, record.to_string()).unwrap();
    }

    #[test]
    fn an_ome_zarr_folder_with_a_name_of_its_own_is_found_in_the_newest_record_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let old = zarr_folder(&path("result.zarr"));
        let stale = FileRecord { sha256: "of an earlier result".to_owned(), ..old.clone() };
        write_record(&path("x_provenance.json"), std::slice::from_ref(&old), 7);
        write_record(&path("y_provenance.json"), &[stale], 6);
        write_record(&path("z_provenance.json"), &[], 8);
        std::fs::write(path("damaged_provenance.json"), "{").unwrap();
        assert!(lists(&old.path) && lists_content(&old.path, &(old.bytes, old.sha256.clone())));
        assert!(!lists_content(&old.path, &(old.bytes, "other".to_owned())) && !lists(&path("other.zarr")));
        // Labels were saved in it.
        let new = FileRecord { sha256: "of the new labels".to_owned(), ..old.clone() };
        update(std::slice::from_ref(&new)).unwrap();
        let record = read(&path("x_provenance.json")).unwrap();
        assert_eq!((record.outputs, record.replaced), (vec![new], vec![old]));
        assert_eq!(record.fingerprint, "", "it is no longer the result of the recorded job");
        assert_eq!(read(&path("y_provenance.json")).unwrap().fingerprint, "f");
    }

    #[test]
    fn files_that_are_added_to_a_record_at_the_same_time_are_all_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        write_record(&path("x_provenance.json"), &[], 7);
        std::thread::scope(|scope| {
            for name in ["x_labels.tif", "x_objects.csv"] {
                let path = &path;
                scope.spawn(move || {
                    for bytes in 0..30 {
                        let file = FileRecord { path: path(name), bytes, sha256: String::new() };
                        update(std::slice::from_ref(&file)).unwrap();
                        // The other thread writes the record, too.
                        let record = read(&path("x_provenance.json")).unwrap();
                        assert!(record.derived.contains(&file), "{name}: {bytes} bytes: {:?}", record.derived);
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no lock remains");
    }

    #[test]
    fn looking_for_finished_results_can_be_canceled() {
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("x_provenance.json");
        write_record(&record, &[zarr_folder(&folder.path().join("x_probability.zarr"))], 7);
        let context = Context::default();
        let find = || finished(&context, &record, |r| r.fingerprint == "f", Some(ArtifactKind::Probability), false);
        assert_eq!(find().unwrap().map(|found| found.len()), Some(2), "the maps and the record");
        // A file is hashed block by block.
        let maps = folder.path().join("y_probability.tif");
        std::fs::write(&maps, vec![7_u8; 5 << 19]).unwrap();
        let maps_record = crate::folder_digest::file_record(&maps).unwrap();
        let matches_for = |most: usize| {
            let mut blocks = 0;
            let is_same = maps_record.matches_while(&maps, &mut || {
                blocks += 1;
                blocks <= most
            });
            (is_same, blocks)
        };
        let (is_same, all) = matches_for(usize::MAX);
        assert!(is_same && all > 3, "{all}");
        assert_eq!(matches_for(2), (false, 3), "nothing is read after the third call");
        write_record(&folder.path().join("y_provenance.json"), std::slice::from_ref(&maps_record), 7);
        let check = |overwrite| crate::results::check(&context, &maps, &[], overwrite);
        check(Overwrite::Refuse).unwrap();
        context.cancel.cancel();
        assert!(matches!(find(), Err(JobError::Canceled)));
        assert!(matches!(check(Overwrite::Refuse), Err(JobError::Canceled)));
    }

    #[test]
    fn saved_labels_are_a_file_or_an_ome_zarr_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let record = path("x_provenance.json");
        let are_labels = |name: &str| are_labels_of(&record, &path(name));
        assert!(!are_labels("x_labels.tif") && !are_labels("x_labels.zarr"), "they do not exist");
        std::fs::write(path("x_labels.tif"), "labels").unwrap();
        let _ = zarr_folder(&path("x_labels.zarr"));
        let _ = zarr_folder(&path("y_labels.zarr"));
        assert!(are_labels("x_labels.tif") && are_labels("x_labels.zarr"));
        assert!(!are_labels("y_labels.zarr"), "of another prediction");
    }
}
