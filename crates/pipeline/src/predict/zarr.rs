//! Results as OME-Zarr: the maps are the image of the folder, and the labels are a label image in it. Without maps, the
//! labels are the image.

use super::PredictJob;
use super::files::{FinishedResult, map_channels};
use crate::{Artifact, ArtifactKind, Context, JobError, Model, ModelTask, Output, ProgressStage, ProgressUnit};
use cytoscope_formats::{
    ImageMeta, PREDICTION_LABELS as LABELS_PATH, ZarrImageSpec, ZarrWriter, check_output_name, is_zarr_folder,
    is_zarr_name, is_zarr_zip_name, pack_zarr, stack_stem,
};
pub(crate) use cytoscope_formats::{PREDICTION_KIND as FOLDER_KIND, prediction_labels_path as labels_path};
use cytoscope_storage::folder::{finished_content_while, is_finished};
use cytoscope_storage::partial_folder::{FinishedFolder, PartialFolder};
use cytoscope_storage::write::{FinishedFile, parent_folder};
use cytoscope_volume::{DType, Samples};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Name of the label image.
const LABELS_NAME: &str = "objects";
/// Maximum number of bytes that are written at once; a larger slice is written as a whole.
const SLAB_BYTES: u64 = 64 << 20;

/// File format of maps and labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResultFormat {
    /// OME-Zarr if the input is OME-Zarr, or the output ends in `.zarr`, `.ozx` or `.zarr.zip`; otherwise TIFF.
    #[default]
    Auto,
    /// TIFF files.
    Tiff,
    /// One OME-Zarr folder, or a zip file that contains it if the output has the name of a zip file.
    OmeZarr,
}

impl ResultFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Tiff, Self::OmeZarr];

    /// Returns the name of the format on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tiff => "tiff",
            Self::OmeZarr => "ome-zarr",
        }
    }

    /// Whether input and output determine the format.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

cytoscope_storage::parsed_by_name!(ResultFormat, "invalid format");

/// Whether the name of an output is that of an OME-Zarr: of a folder, or of one zip file.
pub(crate) fn is_ome_zarr_name(path: &Path) -> bool {
    is_zarr_name(path) || is_zarr_zip_name(path)
}

impl PredictJob {
    /// Returns the folder that all results are written to: [`PredictJob::out`], or the folder that contains it if it is an
    /// OME-Zarr folder or zip file.
    pub fn folder(&self) -> &Path {
        if !is_ome_zarr_name(&self.out) {
            return &self.out;
        }
        parent_folder(&self.out)
    }

    /// Checks that an output with the name of an OME-Zarr agrees with the other options.
    ///
    /// # Errors
    /// [`JobError::WrongUse`]; [`JobError::Format`] for a name that is only an extension.
    pub(super) fn check_zarr_out(&self, inputs: usize) -> Result<(), JobError> {
        if !is_ome_zarr_name(&self.out) {
            return Ok(());
        }
        check_output_name(&self.out)?;
        let out = self.out.display();
        let has_image =
            self.outputs.is_empty() || self.outputs.iter().any(|o| matches!(o, Output::Maps | Output::Labels));
        let problem = if self.format == ResultFormat::Tiff {
            "the output has the name of an OME-Zarr, but the format is tiff".to_owned()
        } else if inputs != 1 {
            format!("an OME-Zarr holds the results of one stack, but there are {inputs}")
        } else if !has_image {
            "an OME-Zarr holds maps or labels, but neither is among the outputs".to_owned()
        } else {
            return Ok(());
        };
        let next_step = "give a folder whose name has no file extension";
        Err(JobError::wrong_use_with(format!("{out}: {problem}"), next_step))
    }
}

/// Returns the paths in `out` of a folder with maps and of a folder with labels only.
pub(super) fn paths_in(out: &Path, stem: &str, task: ModelTask) -> [PathBuf; 2] {
    [ArtifactKind::for_maps(task), ArtifactKind::Labels].map(|kind| out.join(kind.zarr_name(stem)))
}

/// Returns the folder or zip file for the maps and labels of an input; `None` if they are written as TIFF, or neither is
/// wanted.
pub(super) fn path_for(
    job: &PredictJob,
    meta: &ImageMeta,
    stem: &str,
    task: ModelTask,
    wanted: &BTreeSet<Output>,
) -> Option<PathBuf> {
    let [maps, labels] = paths_in(&job.out, stem, task);
    let is_named_so = is_ome_zarr_name(&job.out);
    let is_zarr = is_named_so
        || match job.format {
            ResultFormat::Auto => meta.is_ome_zarr(),
            ResultFormat::OmeZarr => true,
            ResultFormat::Tiff => false,
        };
    let named = if wanted.contains(&Output::Maps) { maps } else { labels };
    let has_image = wanted.contains(&Output::Maps) || wanted.contains(&Output::Labels);
    (is_zarr && has_image).then(|| if is_named_so { job.out.clone() } else { named })
}

/// Returns the bytes that writing OME-Zarr takes for a stack of Z, Y, X voxels: those of a slab, and of its compressed chunks
/// or the next level.
pub(super) fn peak_bytes([depth, height, width]: [usize; 3]) -> u64 {
    let slice = (height as u64).saturating_mul(width as u64).saturating_mul(size_of::<f32>() as u64);
    let stack = slice.saturating_mul(depth as u64);
    stack.min(slice.max(SLAB_BYTES)).saturating_mul(2)
}

/// Whether a folder is the OME-Zarr of an earlier prediction.
pub(crate) fn is_result(path: &Path) -> bool {
    is_zarr_folder(path) && is_finished(path, FOLDER_KIND)
}

/// Returns the size in bytes and the hash of the OME-Zarr folder of an earlier prediction, as its record lists them; `None` for
/// another folder, or if anything in it was changed or added since. All of its files are read.
///
/// # Errors
/// [`JobError::Canceled`].
pub(crate) fn unchanged_content(context: &Context, path: &Path) -> Result<Option<(u64, String)>, JobError> {
    if !is_result(path) {
        return Ok(None);
    }
    let mut meter = context.meter(ProgressStage::Check, 0, ProgressUnit::Files);
    let mut reported = None;
    let content = finished_content_while(path, FOLDER_KIND, &mut |read, all| {
        let is_new = reported.replace(read) != Some(read);
        if is_new { meter.set_progress(read as u64, all as u64).is_ok() } else { context.check().is_ok() }
    });
    context.check()?;
    Ok(content)
}

/// Returns the OME-Zarr folder of maps that a label image of a prediction is in; other paths are returned unchanged.
pub fn containing_maps(labels: &Path) -> &Path {
    let folder = labels.ends_with(LABELS_PATH).then(|| labels.ancestors().nth(2)).flatten();
    folder.filter(|folder| is_zarr_name(folder)).unwrap_or(labels)
}

/// Returns the results in a folder. `maps` is the kind of its image; without it, the image is a label image.
pub(crate) fn artifacts(path: &Path, maps: Option<ArtifactKind>, has_labels: bool) -> Vec<Artifact> {
    let Some(kind) = maps else { return vec![Artifact::new(ArtifactKind::Labels, path)] };
    let labels = has_labels.then(|| Artifact::new(ArtifactKind::Labels, path.join(LABELS_PATH)));
    std::iter::once(Artifact::new(kind, path)).chain(labels).collect()
}

/// Returns the result in a zip file: the maps, of the kind `maps`, and without them the labels.
pub(crate) fn zipped_artifact(path: &Path, maps: Option<ArtifactKind>) -> Artifact {
    Artifact::new(maps.unwrap_or(ArtifactKind::Labels), path)
}

/// Creates the folder of the maps under a hidden name.
///
/// # Errors
/// [`JobError`] if it cannot be created.
pub(super) fn map_writer(
    path: &Path,
    model: &Model,
    meta: &ImageMeta,
    [depth, height, width]: [usize; 3],
    times: usize,
) -> Result<ZarrWriter, JobError> {
    let name = stack_stem(path);
    let shape = [times, model.output_channels, depth, height, width];
    let mut spec = ZarrImageSpec::new(&name, shape, DType::F32);
    spec.voxel_size_um = meta.voxel_size_um;
    spec.origin_um = meta.origin_um;
    spec.time_interval_secs = meta.time_interval_secs;
    spec.channels = map_channels(model);
    if model.task == ModelTask::Segmentation {
        spec.display_range = Some((0.0, 1.0));
    }
    create(path, spec)
}

/// Creates the folder of a result under a hidden name. One that is stored in a zip file needs no marker that lists its files.
///
/// # Errors
/// [`JobError`] if it cannot be created.
fn create(path: &Path, spec: ZarrImageSpec) -> Result<ZarrWriter, JobError> {
    Ok(if is_zarr_zip_name(path) { ZarrWriter::create(path, spec)? } else { ZarrWriter::create_listed(path, spec)? })
}

/// Writes the labels of the time points, one after the other, slab by slab.
pub(crate) struct ZarrLabels {
    writer: ZarrWriter,
    /// Index of the label image.
    image: usize,
    dtype: DType,
    /// Extents Z, Y, X.
    shape: [usize; 3],
    /// Slices that are not written yet.
    slab: Vec<u32>,
    time: usize,
    /// The first slice of the slab.
    first_z: usize,
}

impl ZarrLabels {
    /// Adds the label image to the folder of the maps, or creates a folder at `path` if there is none.
    ///
    /// # Errors
    /// [`JobError`] if it cannot be created.
    pub(crate) fn new(
        path: &Path,
        maps: Option<ZarrWriter>,
        meta: &ImageMeta,
        shape: [usize; 3],
        times: usize,
        dtype: DType,
    ) -> Result<Self, JobError> {
        let spec = label_spec(meta, shape, times, dtype);
        let (writer, image) = match maps {
            None => (create(path, spec)?, 0),
            Some(mut writer) => {
                let image = writer.add_labels(spec)?;
                (writer, image)
            }
        };
        Ok(Self { writer, image, dtype, shape, slab: Vec::new(), time: 0, first_z: 0 })
    }

    /// Starts a folder that replaces that of a prediction of one time point: its maps are the same, its label image is new.
    ///
    /// # Errors
    /// [`JobError`] if it cannot be created.
    pub(crate) fn replacing(path: &Path, meta: &ImageMeta, shape: [usize; 3], dtype: DType) -> Result<Self, JobError> {
        let writer = ZarrWriter::replace_labels(path, label_spec(meta, shape, 1, dtype))?;
        Ok(Self { writer, image: 0, dtype, shape, slab: Vec::new(), time: 0, first_z: 0 })
    }

    /// Adds the next slice, and writes the slab that it completes.
    ///
    /// # Errors
    /// [`JobError`] if the slab cannot be written.
    pub(crate) fn add(&mut self, slice: &[u32]) -> Result<(), JobError> {
        let [depth, height, width] = self.shape;
        self.slab.extend_from_slice(slice);
        let slices = self.slab.len() / (height * width).max(1);
        let whole = self.writer.slab_depth(self.image).min(depth.saturating_sub(self.first_z));
        if slices < whole {
            return Ok(());
        }
        let samples = label_samples(&self.slab, self.dtype);
        self.slab.clear();
        self.writer.write(self.image, [self.time, 0, self.first_z], &samples)?;
        self.first_z += slices;
        if self.first_z >= depth {
            self.first_z = 0;
            self.time += 1;
        }
        Ok(())
    }

    /// Completes the folder under its hidden name.
    ///
    /// # Errors
    /// [`JobError`] if slices are missing, or the metadata cannot be written.
    pub(crate) fn finish(self) -> Result<FinishedFolder, JobError> {
        Ok(self.writer.finish()?.finish(FOLDER_KIND)?)
    }

    /// Completes the folder under its hidden name, or the zip file if the output has the name of a zip file.
    ///
    /// # Errors
    /// Same as [`finish`].
    pub(super) fn finish_result(self, context: &Context) -> Result<FinishedResult, JobError> {
        finish(context, self.writer)
    }

    /// Stores the folder in one zip file, which is completed under its hidden name.
    ///
    /// # Errors
    /// Same as [`Self::finish`], and [`JobError::Canceled`].
    pub(crate) fn finish_zip(self, context: &Context) -> Result<FinishedFile, JobError> {
        pack(context, self.writer.finish()?)
    }
}

/// Describes the label image of `times` time points of a stack.
fn label_spec(meta: &ImageMeta, [depth, height, width]: [usize; 3], times: usize, dtype: DType) -> ZarrImageSpec {
    let mut spec = ZarrImageSpec::new(LABELS_NAME, [times, 1, depth, height, width], dtype);
    spec.labels = true;
    spec.voxel_size_um = meta.voxel_size_um;
    spec.origin_um = meta.origin_um;
    spec.time_interval_secs = meta.time_interval_secs;
    spec
}

/// Completes a folder under its hidden name, or stores it in a zip file if its target has the name of a zip file.
///
/// # Errors
/// Same as [`ZarrLabels::finish`], and [`JobError::Canceled`].
pub(super) fn finish(context: &Context, writer: ZarrWriter) -> Result<FinishedResult, JobError> {
    let folder = writer.finish()?;
    if is_zarr_zip_name(folder.target()) {
        return pack(context, folder).map(FinishedResult::File);
    }
    Ok(FinishedResult::Folder(folder.finish(FOLDER_KIND)?))
}

/// Stores a folder in one zip file, which is completed under its hidden name.
///
/// # Errors
/// [`JobError::Format`] if a file cannot be read or written; [`JobError::Canceled`].
pub(crate) fn pack(context: &Context, folder: PartialFolder) -> Result<FinishedFile, JobError> {
    let goes_on = || context.check().is_ok();
    context.report_alive(ProgressStage::Write, || pack_zarr(folder, &goes_on))?.ok_or(JobError::Canceled)
}

/// Returns labels as samples of 16 or 32 bits.
pub(crate) fn label_samples(labels: &[u32], dtype: DType) -> Samples {
    match dtype {
        DType::U16 => Samples::U16(labels.iter().map(|label| *label as u16).collect()),
        _ => Samples::U32(labels.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_in_a_folder_of_maps_are_those_of_a_prediction() {
        let of = |path: &str| containing_maps(Path::new(path)).display().to_string();
        assert_eq!(of("/o/x_probability.zarr/labels/objects"), "/o/x_probability.zarr");
        for other in ["/o/x_labels.zarr", "/o/x_labels.tif", "/o/x/labels/objects", "/o/x.zarr/labels/mine", "objects"]
        {
            assert_eq!(of(other), other);
        }
    }
}
