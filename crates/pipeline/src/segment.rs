//! Segmentation of an existing probability map: labels, and a table of measurements.

mod measured;

use crate::job_record::{PendingRecord, recorded};
use crate::label_check::label_map_note;
use crate::label_notes::{ValueRange, other_orientation_note};
use crate::measure::not_finite_note;
use crate::predict::file_notes::{
    FilePart, OtherSeries, SliceAlone, absent_chunks_note, first_series_note, one_of_several_note, orientation_note,
    reading_notes,
};
use crate::predict::files::label_writer;
use crate::predict::label::{self, LabelSettings, Labels, MapSource, MeasuredStack};
use crate::predict::resolve::{check_voxel_size, used_voxel_um, voxel_size_notes};
use crate::predict::zarr::{self, ZarrLabels};
use crate::results::{Publication, moved_aside_note};
use crate::spool::Scratch;
use crate::stack::{Extents, Stack, limit_readers};
use crate::table::{PARQUET_EXTENSION, TableFormat};
use crate::{Artifact, ArtifactKind, Context, JobError, Note, provenance, results};
use cytoscope_formats::{
    Container, Image, ImageMeta, OpenOptions, SeriesChoice, StackWriter, check_output_name, container_for_path,
    is_zarr_name, is_zarr_zip_name, open,
};
use cytoscope_objects::{ObjectTable, SegmentOptions};
use cytoscope_profile::Stage;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::partial_folder::check_new_folder;
use cytoscope_storage::setting::{CHANNEL, Setting, TABLE, TIME};
use cytoscope_storage::write::{parent_folder, write_unpublished};
use cytoscope_storage::{Overwrite, StorageError, target};
use cytoscope_volume::{Array, DType, VoxelSize};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Turns a probability map into labels and measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentJob {
    /// The map, with any number of channels, such as the `NAME_probability.tif` of a prediction.
    pub map: PathBuf,
    /// Label image to write, whose name states the format: `.tif` (ImageJ), `.ome.tif` (OME-TIFF), `.zarr` (an OME-Zarr
    /// folder), `.ozx` or `.zarr.zip` (the same in one zip file), `.npy`, `_seg.npy` (Cellpose), `.zip` (ImageJ ROI set) or
    /// `.roi` (a single ImageJ ROI). `None` writes raw numbers to the worker's private folder.
    #[serde(default)]
    pub labels: Option<PathBuf>,
    /// Whether the labels also replace the label image in the map's folder, if the map is the OME-Zarr folder of a
    /// prediction of one time point.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace_labels_of_map: bool,
    /// Table of measurements to write.
    #[serde(default)]
    pub table: Option<PathBuf>,
    /// Format of the table; with [`TableFormat::Csv`], a name that ends in `.parquet` gives Parquet.
    #[serde(default)]
    pub table_format: TableFormat,
    /// Series of the map and of the measured image, by number or name; ignored for files with a single series. By default, that
    /// of the measured image is the one in the record of the map's prediction, or else the first one; that of the map is the
    /// first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<SeriesChoice>,
    /// Channel of the map with the foreground probability, from 0.
    #[serde(default)]
    pub channel: usize,
    /// Channel that separates touching objects ([`cytoscope_objects::Height::DistancePlusSeeds`]); by default the same.
    #[serde(default)]
    pub seed_channel: Option<usize>,
    /// Time point of the map, from 0.
    #[serde(default)]
    pub time: usize,
    /// Voxel size Z, Y, X in µm, to use instead of the map's own.
    #[serde(default)]
    pub voxel_um: Option<[f64; 3]>,
    /// Voxel size Z, Y, X in µm to use if neither the map nor `voxel_um` states a complete one: the one that the
    /// prediction assumed. The labels do not state it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assumed_voxel_um: Option<[f64; 3]>,
    /// Image of the map's shape whose channels are measured for the table; by default the map's channel itself. It is read with
    /// the axes in the record of the map's prediction, if any replaced its own.
    #[serde(default)]
    pub intensities: Option<PathBuf>,
    /// Time point of that image, from 0, if the map has a single one of its time points; by default the one in the record of
    /// the map's prediction, or else that of the map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intensities_time: Option<usize>,
    /// Settings with which the map is segmented.
    #[serde(default)]
    pub options: SegmentOptions,
    /// Whether to replace output files that Cytoscope did not write for this map, or that were edited since.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// File format of a label image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelFormat {
    /// 16-bit ImageJ TIFF, or OME-TIFF if the name says so or there are more objects than 16 bits can number.
    Tiff,
    /// An OME-Zarr folder, or one in a zip file.
    OmeZarr,
    /// NumPy's `.npy`.
    Npy,
    /// Cellpose's `_seg.npy`.
    Cellpose,
    /// An ImageJ ROI set, or a single ROI.
    RoiSet,
    /// Raw 32-bit little-endian numbers, axes Z, Y, X, without a header.
    RawU32,
}

impl LabelFormat {
    /// Returns the format that the name of a label image states.
    ///
    /// # Errors
    /// [`JobError::Format`] for a name with another extension; the message lists all extensions. Also for a name that is only an
    /// extension.
    fn from_path(path: &Path) -> Result<Self, JobError> {
        check_output_name(path)?;
        if is_zarr_name(path) || is_zarr_zip_name(path) {
            return Ok(Self::OmeZarr);
        }
        Ok(match container_for_path(path)? {
            Container::ImageJ | Container::OmeTiff => Self::Tiff,
            Container::Npy => Self::Npy,
            Container::Cellpose => Self::Cellpose,
            Container::RoiSet => Self::RoiSet,
        })
    }
}

/// Number of objects and written files, the result of a [`SegmentJob`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentReport {
    /// Number of objects in the labels.
    pub objects: u32,
    /// Path of the label image.
    pub labels: PathBuf,
    /// File format of the label image.
    pub format: LabelFormat,
    /// Shape Z, Y, X in voxels.
    pub shape_zyx: [usize; 3],
    /// Voxel size Z, Y, X in µm that was used; where it is unknown, the assumed one, or 1.
    pub voxel_um: [f64; 3],
    /// The table of measurements, if written.
    pub table: Option<PathBuf>,
    /// Notes to the user, such as that the voxel size is unknown.
    #[serde(flatten, with = "crate::note::texts_if_any")]
    pub notes: Vec<Note>,
    /// Wall time in seconds.
    pub seconds: f64,
}

impl SegmentReport {
    /// Returns the files written.
    pub fn artifacts(&self) -> Vec<Artifact> {
        let table = self.table.as_ref().map(|path| Artifact::new(ArtifactKind::Table, path));
        std::iter::once(Artifact::new(ArtifactKind::Labels, &self.labels)).chain(table).collect()
    }
}

/// Note on labels without background.
const NO_BACKGROUND: &str = "every voxel belongs to an object: if the threshold is below all values of the map, such as 0.5 for \
                             values from 1 to 255, choose a higher one";

struct FileMap {
    stack: Stack,
    /// The channel that is segmented.
    channel: usize,
    /// Values of this channel in the slices that were read.
    values: ValueRange,
}

impl MapSource for FileMap {
    fn shape(&self) -> [usize; 3] {
        self.stack.extents.zyx
    }

    fn read(&mut self, context: &Context, channel: usize, z: Range<usize>) -> Result<Vec<f32>, JobError> {
        let stored = self.stack.read(context, channel, z)?;
        let values = stored.to_f32();
        if channel == self.channel {
            self.values.add(&values, &stored);
        }
        Ok(values)
    }
}

/// Facts about the file or folder of a map before it is segmented. All of it is read to find them, so this is done once.
#[derive(Debug, Clone, Copy)]
struct MapState {
    /// Whether it is the OME-Zarr folder of a prediction, and nothing in it was changed or added since.
    is_unchanged: bool,
    /// Whether the provenance record of a prediction lists it, with its current content.
    is_listed: bool,
}

impl MapState {
    fn of(context: &Context, map: &Path) -> Result<Self, JobError> {
        if !zarr::is_result(map) {
            let is_listed = provenance::lists_while(map, &mut || context.check().is_ok());
            context.check()?;
            return Ok(Self { is_unchanged: false, is_listed });
        }
        let content = zarr::unchanged_content(context, map)?;
        let is_listed = content.as_ref().is_some_and(|content| provenance::lists_content(map, content));
        Ok(Self { is_unchanged: content.is_some(), is_listed })
    }
}

/// Whether a path is a link to the OME-Zarr folder of a prediction. Such a folder is not replaced.
fn is_link_to_result(path: &Path) -> bool {
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
    is_link && std::fs::canonicalize(path).is_ok_and(|folder| zarr::is_result(&folder))
}

/// Destination of the labels.
enum Target {
    File(Box<StackWriter>, DType),
    Zarr(Box<ZarrLabels>),
    Raw(RawLabels),
}

impl Target {
    /// Creates the destination of labels of these extents Z, Y, X.
    fn create(
        path: &Path,
        format: LabelFormat,
        meta: &ImageMeta,
        zyx: [usize; 3],
        objects: u32,
    ) -> Result<Self, JobError> {
        let dtype = label_type(objects);
        Ok(match format {
            LabelFormat::RawU32 => Self::Raw(RawLabels::create(path.to_owned())?),
            LabelFormat::OmeZarr => Self::Zarr(Box::new(ZarrLabels::new(path, None, meta, zyx, 1, dtype)?)),
            LabelFormat::Tiff | LabelFormat::Npy | LabelFormat::Cellpose | LabelFormat::RoiSet => {
                Self::File(Box::new(label_writer(path, meta, &zyx, 1, dtype, objects)?), dtype)
            }
        })
    }

    /// Writes the next slice, of this number of rows and columns.
    fn write(&mut self, slice: &[u32], [rows, columns]: [usize; 2]) -> Result<(), JobError> {
        let (writer, dtype) = match self {
            Self::Raw(raw) => return raw.write(slice),
            Self::Zarr(labels) => return labels.add(slice),
            Self::File(writer, dtype) => (writer, dtype),
        };
        let samples = zarr::label_samples(slice, *dtype);
        Ok(writer.write(&Array::new("ZYX".parse()?, vec![1, rows, columns], samples)?)?)
    }

    /// Completes the labels at `path`, which get their name with all other results; raw labels have it already.
    fn finish(self, context: &Context, path: &Path, publication: &mut Publication) -> Result<(), JobError> {
        match self {
            Self::Raw(raw) => raw.finish()?,
            Self::Zarr(labels) if is_zarr_zip_name(path) => publication.add(labels.finish_zip(context)?),
            Self::Zarr(labels) => publication.add_folder(labels.finish()?),
            Self::File(writer, _) => publication.add(writer.finish_unpublished()?),
        }
        Ok(())
    }
}

/// Type of the samples of a label image with this many objects.
fn label_type(objects: u32) -> DType {
    if objects > u32::from(u16::MAX) { DType::U32 } else { DType::U16 }
}

/// Raw labels in the private folder. The file belongs to this process alone, so it is neither synced nor renamed. It is
/// removed if dropped before it is finished.
struct RawLabels {
    path: PathBuf,
    out: Option<BufWriter<File>>,
}

impl RawLabels {
    fn create(path: PathBuf) -> Result<Self, JobError> {
        let file = File::create_new(&path).map_err(|error| JobError::Io { path: path.clone(), error })?;
        Ok(Self { path, out: Some(BufWriter::with_capacity(1 << 18, file)) })
    }

    fn write(&mut self, slice: &[u32]) -> Result<(), JobError> {
        let Some(out) = &mut self.out else { return Ok(()) };
        let written = if cfg!(target_endian = "little") {
            out.write_all(bytemuck::cast_slice(slice))
        } else {
            slice.iter().try_for_each(|v| out.write_all(&v.to_le_bytes()))
        };
        written.map_err(|error| JobError::Io { path: self.path.clone(), error })
    }

    fn finish(mut self) -> Result<(), JobError> {
        let Some(mut out) = self.out.take() else { return Ok(()) };
        out.flush().map_err(|error| {
            // The first error is reported; the file is in the worker's private folder, which is removed as a whole.
            let _ = std::fs::remove_file(&self.path);
            JobError::Io { path: self.path.clone(), error }
        })
    }
}

impl Drop for RawLabels {
    fn drop(&mut self) {
        if self.out.take().is_some() {
            // It is in the worker's private folder, which is removed as a whole.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl SegmentJob {
    /// Runs the job and writes its provenance record beside the labels.
    ///
    /// # Errors
    /// [`JobError`] if there is no path for the labels, the map cannot be read or changes while it is read, the results
    /// cannot be written, or the job is canceled.
    pub fn run(&self, context: &Context) -> Result<SegmentReport, JobError> {
        let Some(labels) = &self.labels else {
            return Err(JobError::wrong_use_with(
                "no path was given for the labels",
                "give a name that ends in .tif, .ome.tif or .zarr",
            ));
        };
        if self.table.as_ref().is_some_and(|table| target::resolved(table) == target::resolved(labels)) {
            return Err(JobError::wrong_use_with(
                format!("{}: labels and table have the same path", labels.display()),
                message!("give {TABLE} another name"),
            ));
        }
        let format = LabelFormat::from_path(labels)?;
        recorded(self, context, |record| {
            let report = self.run_into(context, labels, format, Some(&mut *record))?;
            if self.replace_labels_of_map && zarr::is_result(&self.map) {
                record.read_again(&self.map);
            }
            Ok(report)
        })
    }

    /// Runs the job and writes its labels as raw numbers to `file`, ignoring [`SegmentJob::labels`].
    ///
    /// # Errors
    /// Same as [`SegmentJob::run`].
    pub fn run_raw(&self, context: &Context, file: &Path) -> Result<SegmentReport, JobError> {
        self.run_into(context, file, LabelFormat::RawU32, None)
    }

    fn run_into(
        &self,
        context: &Context,
        path: &Path,
        format: LabelFormat,
        mut record: Option<&mut PendingRecord<Self>>,
    ) -> Result<SegmentReport, JobError> {
        let start = Instant::now();
        self.options.validate()?;
        self.table.iter().try_for_each(|table| self.table_format.check_path(table))?;
        let (image, state) = self.open_map(context, format != LabelFormat::RawU32)?;
        if let Some(state) = state {
            self.check_outputs(context, &image, state, path)?;
        }
        let meta = self.checked_meta(&image)?;
        let extents = Extents::of(&meta);
        let stack = Stack::new(&image, self.time);
        let (measured, channels, names) = self.measured(context, &stack, &meta)?;
        if let Some(record) = record.as_deref_mut() {
            [stack.image(), measured.image()].into_iter().for_each(|image| record.add_image_files(image));
        }
        limit_readers(&[stack.image(), measured.image()], None);
        let zyx = extents.zyx;
        let voxel_um = used_voxel_um(meta.voxel_size_um, zyx[0], self.assumed_voxel_um);
        let (mut labels, values) = self.label(context, stack, voxel_um, parent_folder(path))?;
        let (objects, label_note) = (labels.count, labels.note.take());
        let mut target = Target::create(path, format, &meta, zyx, objects)?;
        let (mut in_map, map_note) = match state {
            None => (None, None),
            Some(state) => self.labels_in_map(&image, state, objects)?,
        };
        let measured = MeasuredStack {
            stack: &measured,
            channels: &channels,
            channel_names: names.clone(),
            voxel_um,
            measure: self.table.is_some(),
        };
        let mut has_background = false;
        let rows = labels.finish(context, measured, |slice| {
            has_background = has_background || slice.contains(&0);
            in_map.iter_mut().try_for_each(|labels| labels.add(slice))?;
            target.write(slice, [zyx[1], zyx[2]])
        })?;
        let rows = [(0, rows)];
        let values_note = not_finite_note(&rows, &names);
        let _span = context.recorder.span(Stage::Write, "finish");
        let mut publication = Publication::default();
        target.finish(context, path, &mut publication)?;
        if let Some(labels) = in_map {
            publication.add_folder(labels.finish()?);
        }
        if let Some(path) = &self.table {
            let bytes = self.table_format.file(path, &ObjectTable::from_objects(&rows, &names, false))?;
            publication.add(write_unpublished(path, &bytes)?);
        }
        if let Some(record) = record {
            record.refuse_changed()?;
        }
        let aside = self.publish(context, publication, path)?;
        let label_notes = label_note.into_iter().chain(map_note).map(Message::from).chain(self.table_note(path));
        let map_notes = self.notes(context, &image, meta.voxel_size_um, extents).into_iter().chain(label_notes);
        let background_note = (!has_background).then(|| Note::from(NO_BACKGROUND));
        let threshold_note = (objects == 0).then(|| values.nothing_above_note(self.options.threshold)).flatten();
        let content_note = background_note.or(threshold_note);
        let value_notes = values.not_finite_note().into_iter().chain(values.loss.notes()).chain(values_note);
        let mut notes: Vec<Note> = map_notes.map(Note::from).chain(content_note).chain(value_notes).collect();
        notes.extend(aside.iter().map(|path| Note::from(moved_aside_note(path))));
        Ok(SegmentReport {
            objects,
            labels: path.to_owned(),
            format,
            shape_zyx: zyx,
            voxel_um,
            table: self.table.clone(),
            notes,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Gives the labels at `path` and the other results their names. Returns where existing files were moved to.
    fn publish(&self, context: &Context, mut publication: Publication, path: &Path) -> Result<Vec<PathBuf>, JobError> {
        publication.prepare(context)?;
        provenance::update(&publication.records(context)?)?;
        let is_own = |file: &Path| provenance::lists(file) || results::is_derived(file, &self.map, path);
        publication.publish_over(self.overwrite, &is_own)
    }

    /// Returns the note about the table of a prediction that still lists the objects of the labels that these have replaced.
    fn table_note(&self, labels: &Path) -> Option<Message> {
        if self.table.is_some() {
            return None;
        }
        let table = provenance::table_of_replaced(labels)?;
        Some(message!("{} lists the objects of the earlier labels; write it again with {TABLE}", table.display()))
    }

    /// Returns the chosen series, or the first one.
    fn series_of_map(&self) -> SeriesChoice {
        self.series.clone().unwrap_or_default()
    }

    /// Opens the map, and returns it with its state if that `is_needed`.
    fn open_map(&self, context: &Context, is_needed: bool) -> Result<(Image, Option<MapState>), JobError> {
        let _span = context.recorder.span(Stage::Read, "open");
        // The labels of a prediction are further images in the folder of its maps.
        let image = match zarr::is_result(&self.map) {
            true => open(&self.map, &OpenOptions::default())?,
            false => self.series_of_map().open_stack_maps(&self.map, &OpenOptions::default())?,
        };
        let state = is_needed.then(|| MapState::of(context, &self.map)).transpose()?;
        Ok((image, state))
    }

    /// Starts the label image that replaces the one in the OME-Zarr folder of the map, if the job asks for it; a note says
    /// so if the folder may not be replaced.
    fn labels_in_map(
        &self,
        map: &Image,
        state: MapState,
        objects: u32,
    ) -> Result<(Option<ZarrLabels>, Option<String>), JobError> {
        let extents = Extents::of(map.meta());
        let is_link = is_link_to_result(&self.map);
        if !self.replace_labels_of_map || extents.times != 1 || !(is_link || zarr::is_result(&self.map)) {
            return Ok((None, None));
        }
        if is_link || !state.is_unchanged {
            let why = if is_link { "is a link to a folder" } else { "has changed since its prediction" };
            let kept = "so the label image in it was not replaced and does not show these objects";
            return Ok((None, Some(format!("{} {why}, {kept}", self.map.display()))));
        }
        // The label image has the grid of the maps, and therefore the voxel size in the folder.
        Ok((Some(ZarrLabels::replacing(&self.map, map.meta(), extents.zyx, label_type(objects))?), None))
    }

    /// Segments the map, with the labels stored in `folder`, and drops small objects and, if the options say so, those at the
    /// border. Returns the values of the segmented channel as well.
    fn label(
        &self,
        context: &Context,
        map: Stack,
        voxel_um: [f64; 3],
        folder: &Path,
    ) -> Result<(Labels, ValueRange), JobError> {
        let settings = LabelSettings {
            channel: self.channel,
            seed_channel: self.seed_channel.unwrap_or(self.channel),
            voxel_um,
            options: &self.options,
            overlap_um: label::OVERLAP_UM,
            streamed_bytes: label::streamed_bytes(cytoscope_profile::default_budget_bytes()),
        };
        let min_voxels = self.options.min_voxels(map.extents.zyx[0], voxel_um);
        let mut map = FileMap { stack: map, channel: self.channel, values: ValueRange::default() };
        let mut labels = label::label(context, &mut map, &settings, Scratch::Folder(folder), None)?;
        labels.filter_objects(context, min_voxels, self.options.drop_border)?;
        Ok((labels, map.values))
    }

    /// Returns the metadata of the map with the voxel size to use, if it has the channels and the time point of the job.
    fn checked_meta(&self, image: &Image) -> Result<ImageMeta, JobError> {
        let mut meta = image.meta().clone();
        if let Some([z, y, x]) = self.voxel_um {
            meta.voxel_size_um = VoxelSize::new_um(z, y, x);
        }
        check_voxel_size(&self.map, meta.voxel_size_um, self.voxel_um)?;
        if let Some([z, y, x]) = self.assumed_voxel_um {
            check_voxel_size(&self.map, VoxelSize::new_um(z, y, x), self.assumed_voxel_um)?;
        }
        let extents = Extents::of(&meta);
        check_index(&self.map, &FilePart::Channel.named(self.channel), CHANNEL, self.channel, extents.channels)?;
        let seed_channel = self.seed_channel.unwrap_or(self.channel);
        let seed = message!("seed channel {seed_channel}");
        check_index(&self.map, &seed, CHANNEL, seed_channel, extents.channels)?;
        check_index(&self.map, &FilePart::TimePoint.named(self.time), TIME, self.time, extents.times)?;
        Ok(meta)
    }

    /// Returns the notes about a map of this voxel size and these extents, whose middle slice is read.
    fn notes(&self, context: &Context, map: &Image, size: VoxelSize, extents: Extents) -> Vec<Message> {
        let series_note = first_series_note(&self.series_of_map(), map.meta(), "is segmented", OtherSeries::One);
        let series_note = series_note.filter(|_| self.series.is_none());
        let reading =
            reading_notes(map, SliceAlone::ByFolder).into_iter().chain(absent_chunks_note(map)).chain(series_note);
        let time = one_of_several_note(FilePart::TimePoint, self.time, extents.times, "is segmented");
        // Two channels of a map may be used together.
        let channels = if self.seed_channel.is_some() { 1 } else { extents.channels };
        let channel = one_of_several_note(FilePart::Channel, self.channel, channels, "is segmented");
        let sizes = voxel_size_notes(size, extents.zyx[0], self.assumed_voxel_um);
        let stack_note = self.intensities.as_deref().and_then(|stack| other_orientation_note(stack, &self.map));
        let orientation = orientation_note(&self.map, "the results").into_iter().chain(stack_note);
        let labels = label_map_note(context, &Stack::new(map, self.time), self.channel).map(Message::from);
        reading.chain(sizes).chain(orientation).chain(time).chain(channel).chain(labels).collect()
    }

    /// Refuses labels or a table that would replace an input, or a file that Cytoscope did not write.
    fn check_outputs(&self, context: &Context, image: &Image, state: MapState, labels: &Path) -> Result<(), JobError> {
        let files = image.files();
        let inputs = files.iter().chain([&self.map]).chain(&self.intensities);
        let inputs: Vec<&Path> = inputs.map(PathBuf::as_path).collect();
        for output in [labels].into_iter().chain(self.table.as_deref()) {
            if is_zarr_name(output) && output == labels {
                self.check_folder(labels, state, &inputs)?;
            } else {
                let map = (self.map.as_path(), state.is_listed);
                results::check_derived(context, output, map, labels, &inputs, self.overwrite)?;
            }
        }
        self.table.iter().try_for_each(|table| Ok(target::check_extension(table, &["csv", PARQUET_EXTENSION])?))
    }

    /// Refuses to write an OME-Zarr folder over anything but an unchanged one that an earlier job made from the same map.
    fn check_folder(&self, labels: &Path, state: MapState, inputs: &[&Path]) -> Result<(), JobError> {
        results::refuse_inside_zarr(labels, inputs)?;
        match check_new_folder(labels, inputs, self.overwrite) {
            Err(StorageError::NotReplaceable { can_force: true, .. })
                if state.is_listed && results::is_derived(labels, &self.map, labels) =>
            {
                Ok(())
            }
            other => Ok(other?),
        }
    }
}

/// Refuses the index of a channel or time point, which is called `named`, if the file has only `count` of them; `option`
/// precedes the valid ones in the advice.
fn check_index(path: &Path, named: &Message, option: Setting, index: usize, count: usize) -> Result<(), JobError> {
    if index < count {
        return Ok(());
    }
    let part = if option == TIME { FilePart::TimePoint } else { FilePart::Channel };
    let first = part.number(0);
    let next_step = match count {
        0 | 1 => message!("give {option} {first}"),
        _ => message!("give {option} {first} to {}", part.number(count - 1)),
    };
    let problem = message!("{named} does not exist: the file has {count}");
    Err(JobError::Mismatch { path: path.to_owned(), problem, next_step })
}

#[cfg(test)]
mod tests;
