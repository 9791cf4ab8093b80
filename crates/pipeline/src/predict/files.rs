//! The result files of one input: their names, whether they may be overwritten, and how each is written.

use super::input_tensors::TensorSources;
use super::prediction::Prediction;
use super::zarr::{self, ZarrLabels};
use super::{Output, PredictJob, TileRequest};
use crate::artifact::{table_name, wide_labels_name};
use crate::folder_digest::{change_since, chunks_record};
use crate::model::ModelTask;
use crate::provenance::{ImageFiles, InputRecord, MAX_SAMPLED_FILES, Provenance};
use crate::{ArtifactKind, Context, JobError, Model, ProgressStage, ProgressUnit, TableFormat, provenance, results};
use cytoscope_engine::DeviceRequest;
use cytoscope_formats::{
    Channel, Compression, Container, Image, ImageMeta, StackWriter, WriteSpec, ZarrWriter, container_for_path,
    is_zarr_zip_name,
};
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::partial_folder::FinishedFolder;
use cytoscope_storage::write::FinishedFile;
use cytoscope_volume::{Array, Axes, DType, Samples};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Paths of one input's results.
pub(super) struct Paths {
    /// Maps of objects (`NAME_probability.tif`) or stains (`NAME_prediction.tif`).
    pub maps: PathBuf,
    /// Labels that fit 16 bits: `NAME_labels.tif`.
    pub labels: PathBuf,
    /// Labels that need 32 bits: `NAME_labels.ome.tif`. A prediction writes one of the two label files.
    pub labels_wide: PathBuf,
    /// Measurements of the objects: `NAME_objects` with the extension of the table's format.
    pub table: PathBuf,
    /// The middle slice as PNG: `NAME_preview.png`.
    pub preview: PathBuf,
    /// The stack after the user's preprocessing steps: `NAME_preprocessed.ome.tif`.
    pub preprocessed: PathBuf,
    /// The provenance record, which lists the other files with their hashes.
    pub provenance: PathBuf,
    /// The OME-Zarr folder or zip file of maps and labels, which takes the place of their files.
    pub zarr: Option<PathBuf>,
}

impl Paths {
    /// Returns the paths of all files; the OME-Zarr folder or zip file is not included.
    pub(super) fn all(self) -> [PathBuf; 7] {
        [self.maps, self.labels, self.labels_wide, self.table, self.preview, self.preprocessed, self.provenance]
    }

    pub(super) fn new(out: &Path, stem: &str, task: ModelTask, table_format: TableFormat) -> Self {
        let path = |kind: ArtifactKind| out.join(kind.file_name(stem));
        Self {
            maps: path(ArtifactKind::for_maps(task)),
            labels: path(ArtifactKind::Labels),
            labels_wide: out.join(wide_labels_name(stem)),
            table: out.join(table_name(stem, table_format)),
            preview: path(ArtifactKind::Preview),
            preprocessed: path(ArtifactKind::Preprocessed),
            provenance: path(ArtifactKind::Provenance),
            zarr: None,
        }
    }

    /// Refuses to overwrite files that differ from what an earlier prediction of this input wrote, unless `overwrite`
    /// allows it.
    fn refuse_foreign(
        &self,
        context: &Context,
        wanted: &BTreeSet<Output>,
        inputs: &[&Path],
        overwrite: Overwrite,
    ) -> Result<(), JobError> {
        let input = inputs.first().copied().unwrap_or(Path::new(""));
        provenance::refuse_foreign_record(&self.provenance, input, overwrite)?;
        let (mut maps, mut labels) = (vec![&self.maps], vec![&self.labels, &self.labels_wide]);
        if let Some(zarr) = &self.zarr {
            if is_zarr_zip_name(zarr) {
                results::check(context, zarr, inputs, overwrite)?;
            } else {
                results::check_folder(context, zarr, inputs, overwrite)?;
            }
            maps.clear();
            labels.clear();
        }
        for (output, paths) in [
            (Output::Maps, maps),
            (Output::Labels, labels),
            (Output::Table, vec![&self.table]),
            (Output::Preview, vec![&self.preview]),
            (Output::Preprocessed, vec![&self.preprocessed]),
        ] {
            for path in paths.into_iter().filter(|_| wanted.contains(&output)) {
                results::check(context, path, inputs, overwrite)?;
            }
        }
        Ok(())
    }
}

/// Maximum number of files of an image that are checked for changes.
const MAX_WATCHED_FILES: usize = 4096;

/// The files that a prediction of one input reads and writes.
pub(super) struct ResultFiles {
    /// Where results are written; paths of results that are not wanted are included.
    pub paths: Paths,
    /// Format of the table.
    pub table_format: TableFormat,
    /// The input as it was before it was read.
    pub input: InputRecord,
    /// The other files of its image, as they were before they were read.
    pub input_files: Option<ImageFiles>,
    /// The input and the other files of its image, as they were before they were read.
    read_from: Vec<InputRecord>,
    /// The folders of chunks that are read, as they were before: programs write chunks without changing any other file.
    pub chunks: Vec<InputRecord>,
    /// Fingerprint of everything that determines the result.
    pub fingerprint: String,
    /// The same, as earlier versions computed it: without the content of the files.
    pub fingerprint_without_content: String,
    /// The same as `fingerprint`, whatever the device, the precision and the size of the tiles.
    pub fingerprint_of_slices: String,
}

fn record(file: &Path) -> Result<InputRecord, JobError> {
    InputRecord::sampled(file).map_err(|error| JobError::unreadable(file, error))
}

/// Returns the records of files as they are now; blocks are read from the first ones only.
fn records(files: impl Iterator<Item = PathBuf>) -> Result<Vec<InputRecord>, JobError> {
    let one = |(n, file): (usize, PathBuf)| {
        let found = if n < MAX_SAMPLED_FILES { InputRecord::sampled(&file) } else { InputRecord::of(&file) };
        found.map_err(|error| JobError::unreadable(&file, error))
    };
    files.enumerate().map(one).collect()
}

impl ResultFiles {
    /// Names the results of an input, and records its files as they are now. `image` is the stack with the channels of
    /// `tensors`.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] if a path is not Unicode; [`JobError`] if one of the image's files cannot be read.
    pub(super) fn new(
        job: &PredictJob,
        model: &Model,
        input: &Path,
        stem: &str,
        (image, tensors): (&Image, &TensorSources),
        wanted: &BTreeSet<Output>,
    ) -> Result<Self, JobError> {
        let mut paths = Paths::new(job.folder(), stem, model.task, job.table_format);
        paths.zarr = zarr::path_for(job, image.meta(), stem, model.task, wanted);
        // The files of a stack in many parts do not displace those of the input tensors.
        let tensor_files = tensors.files();
        let (files, others) = (image.files(), &tensor_files);
        let stack_files = || files.iter().filter(move |file| others.binary_search(file).is_err());
        let input_files = ImageFiles::of(input, stack_files().map(PathBuf::as_path));
        let input_files = input_files.map_err(|(file, error)| JobError::unreadable(&file, error))?;
        let watched_of_tensors = tensor_files.iter().take(MAX_WATCHED_FILES / 2).cloned();
        let first = std::iter::once(input.to_owned()).chain(watched_of_tensors);
        let read_from = records(first.chain(stack_files().cloned()).take(MAX_WATCHED_FILES))?;
        let record_chunks =
            |folder: PathBuf| chunks_record(&folder).map_err(|error| JobError::unreadable(&folder, error));
        let chunks = image.chunk_folders().into_iter().map(record_chunks).collect::<Result<Vec<_>, _>>()?;
        let all = [&read_from[..], &chunks[..]].concat();
        let fingerprint = job.fingerprint(model, input, &all)?;
        let without_content: Vec<InputRecord> = all.iter().map(InputRecord::without_sample).collect();
        let fingerprint_without_content = job.fingerprint(model, input, &without_content)?;
        let tiles = TileRequest { tile: None, recorded: None, ..job.tiles.clone() };
        let on_any_device = PredictJob { device: DeviceRequest::Auto, precision: None, tiles, ..job.clone() };
        let fingerprint_of_slices = on_any_device.fingerprint(model, input, &all)?;
        let (table_format, input) = (job.table_format, record(input)?);
        Ok(Self {
            paths,
            table_format,
            input,
            input_files,
            read_from,
            chunks,
            fingerprint,
            fingerprint_without_content,
            fingerprint_of_slices,
        })
    }

    /// Whether a record is that of this input with this job, made by this version or by one that recorded no content of files.
    pub(super) fn is_recorded_in(&self, record: &Provenance) -> bool {
        record.fingerprint == self.fingerprint || record.fingerprint == self.fingerprint_without_content
    }

    /// Same as [`Paths::refuse_foreign`].
    pub(super) fn refuse_foreign(
        &self,
        context: &Context,
        wanted: &BTreeSet<Output>,
        overwrite: Overwrite,
    ) -> Result<(), JobError> {
        let inputs: Vec<&Path> = self.read_from.iter().map(|file| file.path.as_path()).collect();
        self.paths.refuse_foreign(context, wanted, &inputs, overwrite)
    }

    /// Refuses a result whose input changed while it was read.
    pub(super) fn refuse_changed(&self) -> Result<(), JobError> {
        let files = self.read_from.iter().map(|then| (then, then.now(&then.path)));
        let folders = self.chunks.iter().map(|then| (then, chunks_record(&then.path)));
        for (then, now) in files.chain(folders) {
            let Some(change) = change_since(then, now)? else { continue };
            let what = if then.path.is_dir() { "folder" } else { "file" };
            return Err(JobError::Mismatch {
                path: then.path.clone(),
                problem: format!(
                    "the {what} {change}: it changed while it was read, so the prediction would match neither version"
                )
                .into(),
                next_step: format!("wait until the {what} is complete, then predict again").into(),
            });
        }
        Ok(())
    }
}

/// Returns the axes of maps. Like those of [`label_axes`], the texts are valid axes, so parsing them cannot fail.
pub(super) fn map_axes(times: usize) -> Axes {
    let text = if times > 1 { "TZCYX" } else { "ZCYX" };
    text.parse().unwrap_or_default()
}

fn label_axes(times: usize) -> Axes {
    let text = if times > 1 { "TZYX" } else { "ZYX" };
    text.parse().unwrap_or_default()
}

/// Returns the names of the channels of a model's maps: those that it declares, or else its own with a number.
pub(super) fn map_channels(model: &Model) -> Vec<Channel> {
    let declared = |channel: usize| model.output_channel_names.get(channel).cloned();
    let name = |channel: usize| declared(channel).unwrap_or_else(|| format!("{} {channel}", model.name));
    (0..model.output_channels).map(|channel| Channel { name: name(channel), color_rgb: None }).collect()
}

fn map_writer(
    path: &Path,
    model: &Model,
    meta: &ImageMeta,
    zyx: &[usize; 3],
    times: usize,
) -> Result<StackWriter, JobError> {
    let mut shape = vec![zyx[0], model.output_channels, zyx[1], zyx[2]];
    if times > 1 {
        shape.insert(0, times);
    }
    let mut spec = WriteSpec::new(Container::ImageJ, map_axes(times), shape, DType::F32);
    spec.voxel_size_um = meta.voxel_size_um;
    spec.time_interval_secs = meta.time_interval_secs;
    spec.channels = map_channels(model);
    if model.task == ModelTask::Segmentation {
        spec.display_range = Some((0.0, 1.0));
    }
    Ok(StackWriter::create(path, &spec)?)
}

/// A result that is complete under a hidden name.
pub(super) enum FinishedResult {
    File(FinishedFile),
    Folder(FinishedFolder),
}

/// Writes the maps of the time points, one after the other: TIFF slice by slice, OME-Zarr slab by slab.
pub(super) struct MapWriter {
    target: MapTarget,
    is_timed: bool,
    /// The next slice of the current time point.
    next_z: usize,
    /// Index of the current time point.
    time: usize,
}

enum MapTarget {
    Tiff(Box<StackWriter>),
    Zarr(Box<ZarrWriter>),
}

impl MapWriter {
    /// Creates the file or folder of the maps.
    ///
    /// # Errors
    /// [`JobError`] if it cannot be created.
    pub(super) fn new(
        paths: &Paths,
        model: &Model,
        meta: &ImageMeta,
        zyx: &[usize; 3],
        times: usize,
    ) -> Result<Self, JobError> {
        let target = match &paths.zarr {
            Some(path) => MapTarget::Zarr(Box::new(zarr::map_writer(path, model, meta, *zyx, times)?)),
            None => MapTarget::Tiff(Box::new(map_writer(&paths.maps, model, meta, zyx, times)?)),
        };
        Ok(Self { target, is_timed: times > 1, next_z: 0, time: 0 })
    }

    /// Returns the number of slices that are written next, of a prediction of `depth` slices.
    fn next_count(&self, depth: usize) -> usize {
        let at_once = match &self.target {
            MapTarget::Tiff(_) => 1,
            MapTarget::Zarr(writer) => writer.slab_depth(0),
        };
        at_once.min(depth.saturating_sub(self.next_z))
    }

    /// Writes the slices of an unfinished prediction that can be read and are not written yet.
    pub(super) fn write_ready(&mut self, context: &Context, prediction: &mut Prediction) -> Result<(), JobError> {
        loop {
            let count = self.next_count(prediction.shape[0]);
            if count == 0 || !prediction.is_ready(self.next_z + count - 1) {
                return Ok(());
            }
            self.write_slices(context, prediction, count)?;
            context.check()?;
        }
    }

    /// Writes the remaining slices of a complete prediction; the next ones are those of the next time point.
    pub(super) fn write_rest(&mut self, context: &Context, prediction: &mut Prediction) -> Result<(), JobError> {
        let depth = prediction.shape[0];
        let mut meter = context.meter(ProgressStage::Write, depth as u64, ProgressUnit::Slices);
        meter.skip_completed(self.next_z as u64);
        while self.next_z < depth {
            let count = self.next_count(depth);
            self.write_slices(context, prediction, count)?;
            meter.add(count as u64)?;
        }
        self.next_z = 0;
        self.time += 1;
        Ok(())
    }

    fn write_slices(&mut self, context: &Context, prediction: &mut Prediction, count: usize) -> Result<(), JobError> {
        let z = self.next_z..self.next_z + count;
        let channels = prediction.channels;
        match &mut self.target {
            MapTarget::Tiff(writer) => {
                let [_, ny, nx] = prediction.shape;
                let mut values = Vec::with_capacity(channels * ny * nx);
                for c in 0..channels {
                    values.extend(prediction.read(context, c, z.clone())?);
                }
                let mut shape = vec![1, channels, ny, nx];
                if self.is_timed {
                    shape.insert(0, 1);
                }
                let _span = context.recorder.span(Stage::Write, "maps").bytes(values.len() * 4);
                writer.write(&Array::new(map_axes(if self.is_timed { 2 } else { 1 }), shape, values)?)?;
            }
            MapTarget::Zarr(writer) => {
                let [_, ny, nx] = prediction.shape;
                for c in 0..channels {
                    // On a fine grid, all slices that a slab is resampled from take much more memory than the slab.
                    let mut values = Vec::with_capacity(count * ny * nx);
                    for slice in z.clone() {
                        values.extend(prediction.read(context, c, slice..slice + 1)?);
                    }
                    let values = Samples::F32(values);
                    let _span = context.recorder.span(Stage::Write, "maps").bytes(values.len() * 4);
                    writer.write(0, [self.time, c, z.start], &values)?;
                }
            }
        }
        self.next_z = z.end;
        Ok(())
    }

    /// Returns the folder that labels can be added to; `None` if the maps are a TIFF file.
    pub(super) fn into_zarr(self) -> Option<ZarrWriter> {
        match self.target {
            MapTarget::Tiff(_) => None,
            MapTarget::Zarr(writer) => Some(*writer),
        }
    }

    /// Completes the file or folder under a hidden name.
    pub(super) fn finish(self, context: &Context) -> Result<FinishedResult, JobError> {
        match self.target {
            MapTarget::Tiff(writer) => Ok(FinishedResult::File(writer.finish_unpublished()?)),
            MapTarget::Zarr(writer) => zarr::finish(context, *writer),
        }
    }
}

/// Writes the labels of the time points, one after the other, slice by slice.
pub(super) enum LabelWriter {
    Tiff {
        writer: Box<StackWriter>,
        dtype: DType,
        /// Axes and extents of a slice.
        axes: Axes,
        shape: Vec<usize>,
    },
    Zarr(Box<ZarrLabels>),
}

impl LabelWriter {
    /// Creates the file of the labels, or adds them to the OME-Zarr folder of the `maps`. `max_label` is the largest label.
    ///
    /// # Errors
    /// [`JobError`] if it cannot be created.
    pub(super) fn new(
        paths: &Paths,
        maps: Option<ZarrWriter>,
        meta: &ImageMeta,
        zyx: &[usize; 3],
        times: usize,
        max_label: u32,
    ) -> Result<Self, JobError> {
        let dtype = if max_label > u32::from(u16::MAX) { DType::U32 } else { DType::U16 };
        if let Some(path) = &paths.zarr {
            return Ok(Self::Zarr(Box::new(ZarrLabels::new(path, maps, meta, *zyx, times, dtype)?)));
        }
        let path = if dtype == DType::U16 { &paths.labels } else { &paths.labels_wide };
        let writer = Box::new(label_writer(path, meta, zyx, times, dtype, max_label)?);
        let shape = if times > 1 { vec![1, 1, zyx[1], zyx[2]] } else { vec![1, zyx[1], zyx[2]] };
        Ok(Self::Tiff { writer, dtype, axes: label_axes(times), shape })
    }

    /// Writes the next slice.
    ///
    /// # Errors
    /// [`JobError`] if writing fails.
    pub(super) fn add(&mut self, slice: &[u32]) -> Result<(), JobError> {
        match self {
            Self::Zarr(labels) => labels.add(slice),
            Self::Tiff { writer, dtype, axes, shape } => {
                let samples = zarr::label_samples(slice, *dtype);
                Ok(writer.write(&Array::new(axes.clone(), shape.clone(), samples)?)?)
            }
        }
    }

    /// Completes the file or folder under a hidden name.
    pub(super) fn finish(self, context: &Context) -> Result<FinishedResult, JobError> {
        match self {
            Self::Tiff { writer, .. } => Ok(FinishedResult::File(writer.finish_unpublished()?)),
            Self::Zarr(labels) => labels.finish_result(context),
        }
    }
}

/// Creates a label image of `times` time points in the format that the name of its file states. 16-bit labels in a `.tif`
/// file are uncompressed ImageJ TIFF, others OME-TIFF, which is compressed. Viewers display labels from 0 to `max_label`.
pub(crate) fn label_writer(
    path: &Path,
    meta: &ImageMeta,
    zyx: &[usize; 3],
    times: usize,
    dtype: DType,
    max_label: u32,
) -> Result<StackWriter, JobError> {
    let container = match container_for_path(path) {
        Ok(named @ (Container::OmeTiff | Container::Npy | Container::Cellpose | Container::RoiSet)) => named,
        _ if dtype == DType::U16 => Container::ImageJ,
        _ => Container::OmeTiff,
    };
    let (mut axes, mut shape) = (label_axes(times), zyx.to_vec());
    if times > 1 {
        shape.insert(0, times);
    } else if zyx[0] == 1 && !matches!(container, Container::ImageJ | Container::OmeTiff) {
        // Programs expect the arrays of a single plane to have two axes.
        (axes, shape) = ("YX".parse()?, vec![zyx[1], zyx[2]]);
    }
    let mut spec = WriteSpec::new(container, axes, shape, dtype);
    spec.voxel_size_um = meta.voxel_size_um;
    spec.origin_um = meta.origin_um;
    spec.time_interval_secs = meta.time_interval_secs;
    spec.channels = vec![Channel { name: "labels".to_owned(), color_rgb: None }];
    spec.display_range = Some((0.0, f64::from(max_label.max(1))));
    spec.compression = if container == Container::OmeTiff { Compression::Deflate } else { Compression::None };
    Ok(StackWriter::create(path, &spec)?)
}
