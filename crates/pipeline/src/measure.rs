//! Measurement of existing labels, such as manually corrected ones.

use crate::evaluation::is_exact_as_f32;
use crate::job_record::{PendingRecord, recorded};
use crate::label_check::LabelCheck;
use crate::label_notes::{FoundLabels, other_orientation_note, other_voxel_size_note};
use crate::predict::file_notes::{
    FilePart, OtherSeries, SliceAlone, absent_chunks_note, first_series_note, label_series_note, missing_notes,
    one_of_several_note, reading_notes, regions_note,
};
use crate::predict::resolve::{channel_name, check_voxel_size, used_voxel_um, voxel_size_notes};
use crate::predict::zarr::{containing_maps, labels_path};
use crate::predicted_part::PredictedPart;
use crate::results::{FileRecord, Publication};
use crate::stack::{Extents, Stack, channels_text, limit_readers, slab_slices};
use crate::table::TableFormat;
use crate::{Context, JobError, Meter, Note, ProgressStage, ProgressUnit, provenance, results};
use cytoscope_formats::{FormatError, Image, OpenOptions, SeriesChoice};
use cytoscope_objects::ObjectTable;
use cytoscope_objects::measure::{Measurer, ObjectRow};
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::message;
use cytoscope_storage::message::{Message, TimePoint};
use cytoscope_storage::write::write_unpublished;
use cytoscope_volume::{Axes, DType, Element, Samples, VoxelSize};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// Writes the table of measurements of a label image, in the same form as a prediction does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasureJob {
    /// Path of the label image, or of the OME-Zarr folder of a prediction with labels.
    pub labels: PathBuf,
    /// The labeled stack, whose channels are measured; `None` to measure only shapes, without columns of intensities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intensities: Option<PathBuf>,
    /// Table of measurements to write.
    pub table: PathBuf,
    /// Format of the table; with [`TableFormat::Csv`], a name that ends in `.parquet` gives Parquet.
    #[serde(default, skip_serializing_if = "TableFormat::is_csv")]
    pub table_format: TableFormat,
    /// Series of the stack, by number or name; also of the label image if it has several. By default, the one in the record of
    /// the prediction that the labels are from, or else the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<SeriesChoice>,
    /// Axis order of the stack, to use instead of its own. By default, the one in the record of the prediction that the labels
    /// are from, if it states one.
    #[serde(default)]
    pub axes: Option<Axes>,
    /// Time point of the stack, from 0; also of the label image if it has several.
    #[serde(default)]
    pub time: usize,
    /// Whether all time points are measured instead of `time`, if the label image has those of the stack. If it has one time
    /// point, the one in the record of its prediction is measured, or else `time`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_times: bool,
    /// Voxel size Z, Y, X in µm, to use instead of the stack's own. Where the stack's is missing, the label image's is
    /// used, and if that is incomplete, the one in the record of the prediction that the labels are from.
    #[serde(default)]
    pub voxel_um: Option<[f64; 3]>,
    /// Whether to overwrite a file at the table's path that was not written by the program or was changed since.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// Written table and number of objects, the result of a [`MeasureJob`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasureReport {
    /// Number of measured objects.
    pub objects: u64,
    /// Path of the label image.
    pub labels: PathBuf,
    /// Path of the table.
    pub table: PathBuf,
    /// The table's size and hash, by which a later measurement recognizes it as its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<FileRecord>,
    /// Voxel size Z, Y, X in µm that was used; where it is unknown, the assumed one, or 1.
    pub voxel_um: [f64; 3],
    /// Notes to the user, such as that the voxel size is unknown.
    #[serde(flatten, with = "crate::note::texts_if_any")]
    pub notes: Vec<Note>,
    /// Wall time in seconds.
    pub seconds: f64,
}

impl MeasureJob {
    /// Runs the job and writes its provenance record beside the table. Memory use is about that of one slab, regardless
    /// of the size of the image.
    ///
    /// # Errors
    /// [`JobError`] if a file cannot be read, the shapes differ, the image contains no labels or was replaced
    /// meanwhile, the table cannot be written, or the job is canceled.
    pub fn run(&self, context: &Context) -> Result<MeasureReport, JobError> {
        recorded(self, context, |record| {
            let (job, note) = self.with_predicted_part(context);
            let kept = record.job_mut();
            kept.series.clone_from(&job.series);
            kept.axes.clone_from(&job.axes);
            (kept.time, kept.all_times) = (job.time, job.all_times);
            let mut report = job.measure(context, record)?;
            report.notes.extend(note.map(Note::from));
            Ok(report)
        })
    }

    /// Returns the job with the series, the axes and the time point of the stack that the labels were predicted from, if the
    /// record beside them states these and no others are given. If another series or time point is given, returns a note.
    fn with_predicted_part(&self, context: &Context) -> (Self, Option<Message>) {
        let mut job = self.clone();
        let Some(stack) = &self.intensities else { return (job, None) };
        let Some(part) = PredictedPart::of(context, &self.labels, stack, self.series.as_ref()) else {
            return (job, None);
        };
        if job.series.is_none() {
            job.series.clone_from(&part.series);
        }
        if job.axes.is_none() && part.axes.is_some() {
            let options = OpenOptions { axes: part.axes.clone(), ..OpenOptions::default() };
            // Another file of this name may not have these axes.
            if job.series_of_stack().open(stack, &options).is_ok() {
                job.axes.clone_from(&part.axes);
            }
        }
        let labels = self.labels.display();
        let options = OpenOptions { axes: job.axes.clone(), ..OpenOptions::default() };
        if let (Some(given), Some(own)) = (&self.series, &part.series)
            && part.is_other_series(stack, given, &options)
        {
            let note = message!("{labels}: it was predicted from series {own}, but series {given} is measured");
            return (job, Some(note));
        }
        let Some(own) = part.time else { return (job, None) };
        // Another file of this name may have fewer time points. Errors are reported when the stack is opened to be measured.
        let times = job.series_of_stack().open(stack, &options).map_or(0, |image| Extents::of(image.meta()).times);
        if own >= times {
            return (job, None);
        }
        if self.all_times {
            (job.time, job.all_times) = (own, false);
            return (job, None);
        }
        let note = (own != self.time).then(|| {
            let (own, given) = (FilePart::TimePoint.named(own), FilePart::TimePoint.named(self.time));
            message!("{labels}: it was predicted from {own}, but {given} is measured")
        });
        (job, note)
    }

    /// Returns the chosen series of the stack, or the first one.
    fn series_of_stack(&self) -> SeriesChoice {
        self.series.clone().unwrap_or_default()
    }

    fn measure(&self, context: &Context, record: &mut PendingRecord<Self>) -> Result<MeasureReport, JobError> {
        let start = Instant::now();
        self.table_format.check_path(&self.table)?;
        let measured = self.intensities.as_ref().unwrap_or(&self.labels);
        results::check(context, &self.table, &[&self.labels, measured], self.overwrite)?;
        let version = version(&self.labels);
        let stack_options = OpenOptions { axes: self.axes.clone(), ..OpenOptions::default() };
        let opening = context.recorder.span(Stage::Read, "open");
        let image = match &self.intensities {
            Some(stack) => self.series_of_stack().open(stack, &stack_options)?,
            None => self.open_labels_alone(&stack_options)?,
        };
        let extents = Extents::of(image.meta());
        let (labels, label_time) = self.open_labels(extents, &stack_options)?;
        opening.finish();
        limit_readers(&[&image, &labels], None);
        let stack_files = self.intensities.as_ref().map(|_| &image);
        stack_files.into_iter().chain([&labels]).for_each(|image| record.add_image_files(image));
        let stated = image.meta().voxel_size_um.or(labels.meta().voxel_size_um);
        let size = self.voxel_um.map_or(stated, |[z, y, x]| VoxelSize::new_um(z, y, x));
        check_voxel_size(measured, size, self.voxel_um)?;
        let assumed_um = self.assumed_voxel_um(context, size, extents.zyx[0]);
        let voxel_um = used_voxel_um(size, extents.zyx[0], assumed_um);
        let names: Vec<String> = (0..self.channels(extents)).map(|c| channel_name(image.meta(), c)).collect();
        let [depth, ny, nx] = extents.zyx;
        // Each time point of the stack, with that of the label image.
        let is_whole_series = self.all_times && Extents::of(labels.meta()).times == extents.times;
        let times: Vec<(usize, usize)> = match is_whole_series {
            true => (0..extents.times).map(|time| (time, time)).collect(),
            false => vec![(self.time, label_time)],
        };
        let slices = depth.saturating_mul(times.len());
        let mut meter = context.meter(ProgressStage::Measure, slices as u64, ProgressUnit::Slices);
        let mut rows = Vec::with_capacity(times.len());
        let (mut check, mut has_background) = (LabelCheck::new(&self.labels), false);
        let mut found = FoundLabels::default();
        for (time, label_time) in times {
            let stacks = [Stack::new(&image, time), Stack::new(&labels, label_time)];
            let measurer = Measurer::new(voxel_um, [ny, nx], names.clone());
            let objects = self.rows(context, &stacks, measurer, &mut check, &mut meter, &mut has_background)?;
            objects.iter().for_each(|row| found.add(row.label.into(), label_time));
            rows.push((time, objects));
        }
        let object_notes = found.notes(context, &self.labels, &labels, 0)?;
        if version != self::version(&self.labels) {
            return Err(self.mismatch("it was changed while it was measured".to_owned(), "measure it again"));
        }
        let _span = context.recorder.span(Stage::Write, "table");
        let objects: u64 = rows.iter().map(|(_, rows)| rows.len() as u64).sum();
        let values_note = not_finite_note(&rows, &names);
        let table = ObjectTable::from_objects(&rows, &names, extents.times > 1);
        let table_record = self.write_table(context, &table, record)?;
        Ok(MeasureReport {
            objects,
            labels: self.labels.clone(),
            table: self.table.clone(),
            record: table_record,
            voxel_um,
            notes: self
                .notes_on_files([&image, &labels], depth)
                .into_iter()
                .map(Note::from)
                .chain(check.note())
                .chain(object_notes)
                .chain(values_note)
                .chain(voxel_size_notes(size, depth, assumed_um).into_iter().map(Note::from))
                .chain(
                    one_of_several_note(FilePart::TimePoint, self.time, extents.times, "is measured")
                        .filter(|_| !is_whole_series)
                        .map(Note::from),
                )
                .chain(more_times_note(Extents::of(labels.meta()).times, extents.times).map(Note::from))
                .chain((!has_background).then(|| Note::from(no_background_note(&self.labels))))
                .collect(),
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Returns the voxel size Z, Y, X that the prediction of the labels assumed, if the size of an image of these slices is
    /// incomplete.
    fn assumed_voxel_um(&self, context: &Context, size: VoxelSize, slices: usize) -> Option<[f64; 3]> {
        if size.in_slices(slices).zyx_um().is_some() {
            return None;
        }
        provenance::assumed_voxel_while(&self.labels, &mut || context.check().is_ok())
    }

    /// Writes the table and gives it its name, unless an input has changed. Returns its record.
    fn write_table(
        &self,
        context: &Context,
        table: &ObjectTable,
        record: &PendingRecord<Self>,
    ) -> Result<Option<FileRecord>, JobError> {
        let bytes = self.table_format.file(&self.table, table)?;
        let mut publication = Publication::default();
        publication.add(write_unpublished(&self.table, &bytes)?);
        record.refuse_changed()?;
        let records = publication.records(context)?;
        provenance::update(&records)?;
        let aside = publication.publish(self.overwrite)?;
        aside.iter().for_each(|aside| context.note(results::moved_aside_note(aside)));
        Ok(records.into_iter().next())
    }

    /// Returns notes on how the stack and its label image were read.
    fn notes_on_files(&self, [stack, labels]: [&Image; 2], slices: usize) -> Vec<Message> {
        let series = self.series_of_stack();
        let absent_chunks = self.intensities.is_some().then(|| absent_chunks_note(stack)).flatten();
        let first_series = first_series_note(&series, stack.meta(), "is measured", OtherSeries::One);
        reading_notes(stack, SliceAlone::ByAxes)
            .into_iter()
            .chain(absent_chunks)
            .chain(first_series.filter(|_| self.series.is_none()))
            .chain(label_series_note(&series, labels.meta(), "is measured"))
            .chain(regions_note(labels.meta()))
            .chain(self.notes_on_labels([stack, labels], slices))
            .collect()
    }

    /// Returns notes on the label image of a stack: that planes of it are missing, that its axes are unknown, or that its
    /// voxel size differs from that of the stack.
    fn notes_on_labels(&self, [stack, labels]: [&Image; 2], slices: usize) -> Vec<Message> {
        let Some(measured) = &self.intensities else { return Vec::new() };
        let file_notes =
            missing_notes(labels.meta()).into_iter().map(|note| message!("{}: {note}", self.labels.display()));
        let [size, label_size] = [stack, labels].map(|image| image.meta().voxel_size_um);
        let size_note = other_voxel_size_note(size, label_size, slices).filter(|_| self.voxel_um.is_none());
        file_notes.chain(size_note).chain(other_orientation_note(measured, &self.labels)).collect()
    }

    /// Measures the objects of a time point; `stacks` are the intensities and the labels. Sets `has_background` if a voxel
    /// belongs to no object.
    fn rows(
        &self,
        context: &Context,
        [intensities, labels]: &[Stack; 2],
        mut measurer: Measurer,
        check: &mut LabelCheck,
        meter: &mut Meter<'_>,
        has_background: &mut bool,
    ) -> Result<Vec<ObjectRow>, JobError> {
        let depth = intensities.extents.zyx[0];
        let channels: Vec<usize> = (0..self.channels(intensities.extents)).collect();
        let step = intensities.slab_slices();
        for z in (0..depth).step_by(step) {
            let slab = z..(z + step).min(depth);
            let samples = labels.read(context, 0, slab.clone())?;
            let checking = context.recorder.span(Stage::Objects, "check labels");
            let numbers = numbers(&self.labels, samples)?;
            check.add(&numbers, labels.extents.zyx[2]);
            *has_background = *has_background || numbers.contains(&0);
            checking.finish();
            measure_slices(context, &mut measurer, &numbers, (intensities, &channels), slab.clone())?;
            meter.add(slab.len() as u64)?;
        }
        Ok(measurer.finish())
    }

    /// Returns the number of channels of a stack whose intensities are measured.
    fn channels(&self, stack_options: Extents) -> usize {
        if self.intensities.is_some() { stack_options.channels } else { 0 }
    }

    /// Opens the label image if no stack is measured: the chosen series is then one of its file.
    fn open_labels_alone(&self, options: &OpenOptions) -> Result<Image, FormatError> {
        let series = self.series_of_stack();
        match series.is_first() {
            // The image of a prediction is its maps.
            true => series.open_labels(&labels_path(&self.labels), options),
            false => series.open(&self.labels, options),
        }
    }

    /// Opens the label image, checks that it has labels of the stack, and returns it with the time point to read.
    fn open_labels(&self, extents: Extents, stack_options: &OpenOptions) -> Result<(Image, usize), JobError> {
        if let Some(stack) = &self.intensities {
            provenance::refuse_moved(containing_maps(&self.labels), stack)?;
        }
        // Regions of interest have no extents of their own.
        let labels_options =
            OpenOptions { shape_zyx: Some(extents.zyx), times: Some(extents.times), ..OpenOptions::default() };
        // The image of a prediction is its maps.
        let (path, series) = (labels_path(&self.labels), self.series_of_stack());
        let open = |options: &OpenOptions| match self.intensities {
            Some(_) => series.open_stack_labels(&path, options),
            None => self.open_labels_alone(options),
        };
        let mut labels = open(&labels_options)?;
        // The label image may have the same wrong axes as its stack.
        if Extents::of(labels.meta()).zyx != extents.zyx
            && let Ok(again) = open(stack_options)
        {
            labels = again;
        }
        let labels_extents = Extents::of(labels.meta());
        if labels_extents.zyx != extents.zyx {
            let problem = format!("its shape is {:?}, but the stack's is {:?}", labels_extents.zyx, extents.zyx);
            return Err(self.mismatch(problem, "give the stack that these labels were drawn on"));
        }
        if labels_extents.channels > 1 {
            let (dtype, channels) = (labels.meta().dtype, channels_text(labels_extents.channels));
            let problem = format!("values of type {dtype} in {channels} are not labels");
            return Err(self.mismatch(problem, "give an image with one channel of integers"));
        }
        let time = if labels_extents.times > 1 { self.time } else { 0 };
        if self.time >= extents.times || time >= labels_extents.times {
            let have = if time > 0 { extents.times.min(labels_extents.times) } else { extents.times };
            let problem = message!("time point {} does not exist: there are {have}", TimePoint(self.time));
            return Err(self.mismatch(problem, "give another time point"));
        }
        Ok((labels, time))
    }

    /// Returns the error of a label image that does not fit.
    fn mismatch(&self, problem: impl Into<Message>, next_step: &str) -> JobError {
        JobError::Mismatch { path: self.labels.clone(), problem: problem.into(), next_step: next_step.into() }
    }
}

/// Bytes of a voxel whose intensities are held at once, in several channels: a stack may have many, such as one for each of 60
/// stains.
const HELD_BYTES: usize = 16;

/// Returns the memory in bytes for measuring the objects of a stack of shape Z, Y, X with this many channels of this
/// type. It consists of a slab of labels, one of the samples of a channel as they are read, and one of the intensities
/// that are held.
pub(crate) fn slab_bytes(zyx: [usize; 3], channels: usize, dtype: DType) -> u64 {
    let voxels = slab_slices(zyx).saturating_mul(zyx[1] * zyx[2]) as u64;
    let value_bytes = if is_exact_as_f32(dtype) { size_of::<f32>() } else { size_of::<f64>() };
    let held = channels.min(HELD_BYTES / value_bytes);
    // A sample as it is read takes no more than its intensity.
    voxels.saturating_mul((size_of::<u32>() + (held + 1) * value_bytes) as u64)
}

/// Measures the objects in slices `z` of labels, with the intensities of these channels of a stack of the same shape.
///
/// # Errors
/// [`JobError`] if the stack cannot be read, or the job is canceled.
pub(crate) fn measure_slices(
    context: &Context,
    measurer: &mut Measurer,
    labels: &[u32],
    (stack, channels): (&Stack, &[usize]),
    z: Range<usize>,
) -> Result<(), JobError> {
    if channels.is_empty() {
        context.check()?;
        let _span = context.recorder.span(Stage::Objects, "measure").voxels(labels.len());
        labels.chunks(stack.slice_len().max(1)).for_each(|slice| measurer.add_slice::<f32>(slice, &[]));
        return Ok(());
    }
    if is_exact_as_f32(stack.dtype()) {
        measure_intensities(context, measurer, labels, (stack, channels), z, Samples::to_f32)
    } else {
        measure_intensities(context, measurer, labels, (stack, channels), z, Samples::to_f64)
    }
}

/// Like [`measure_slices`], with the intensities to which `convert` turns the samples.
fn measure_intensities<V: Copy + Into<f64>>(
    context: &Context,
    measurer: &mut Measurer,
    labels: &[u32],
    (stack, channels): (&Stack, &[usize]),
    z: Range<usize>,
    convert: fn(&Samples) -> Vec<V>,
) -> Result<(), JobError> {
    let held_channels = HELD_BYTES / size_of::<V>();
    let plane = stack.slice_len().max(1);
    for (group, held) in channels.chunks(held_channels).enumerate() {
        context.check()?;
        let read =
            |channel: &usize| -> Result<Vec<V>, JobError> { Ok(convert(&stack.read(context, *channel, z.clone())?)) };
        let intensities = held.iter().map(read).collect::<Result<Vec<Vec<V>>, JobError>>()?;
        for (n, slice) in labels.chunks(plane).enumerate() {
            let _span = context.recorder.span(Stage::Objects, "measure").voxels(slice.len());
            let at = n * plane..(n + 1) * plane;
            let planes = intensities.iter().map(|values| values.get(at.clone())).collect::<Option<Vec<&[V]>>>();
            let planes = planes.ok_or_else(|| JobError::Internal(format!("measure: slice {n} is incomplete")))?;
            match group {
                0 => measurer.add_slice(slice, &planes),
                _ => measurer.add_channels(slice, group * held_channels, &planes),
            }
        }
    }
    Ok(())
}

/// Returns the size and modification time of a file, to detect changes; `None` if the file system does not state them.
fn version(path: &Path) -> Option<(u64, SystemTime)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.len(), meta.modified().ok()?))
}

/// Returns the note that every voxel belongs to an object, as if the stack had been given in place of its labels.
fn no_background_note(labels: &Path) -> String {
    format!(
        "no voxel of {} has the value 0 of the background: if the values are intensities, give the label image instead",
        labels.display()
    )
}

/// Returns the note that the intensities of some objects are not finite, such as a mean of NaN, because of such values in the
/// measured stack; `rows` are the objects of each time point, `names` those of the channels.
pub(crate) fn not_finite_note(rows: &[(usize, Vec<ObjectRow>)], names: &[String]) -> Option<Note> {
    let rows = || rows.iter().flat_map(|(_, rows)| rows);
    let is_affected = |row: &&ObjectRow| row.mean.iter().any(|mean| !mean.is_finite());
    let objects = match rows().filter(is_affected).count() {
        0 => return None,
        1 => "1 object".to_owned(),
        count => format!("{count} objects"),
    };
    let is_affected = |channel: usize| rows().any(|row| row.mean.get(channel).is_some_and(|mean| !mean.is_finite()));
    let affected = names.iter().enumerate().filter(|(channel, _)| is_affected(*channel));
    let channels: Vec<&str> = affected.map(|(_, name)| name.as_str()).collect();
    Some(Note::warning(format!(
        "the measured stack contains values that are NaN or infinite ({}), so intensities of {objects} in the table are, \
         too: replace these values and measure again",
        channels.join(", ")
    )))
}

/// Returns the note that only the first time point of the labels was measured, if the stack has a single time point.
fn more_times_note(label_times: usize, stack_times: usize) -> Option<String> {
    (label_times > 1 && stack_times == 1).then(|| {
        format!(
            "the label image has {label_times} time points, but the stack has one: only the labels of the first time point \
             are measured"
        )
    })
}

/// Returns label numbers as 32-bit ones. Floats count if they are integers: Fiji writes labels above 65,535 as floats.
///
/// # Errors
/// [`JobError::Mismatch`] for a number that is negative, no integer, or does not fit 32 bits.
pub(crate) fn numbers(path: &Path, samples: Samples) -> Result<Vec<u32>, JobError> {
    label_numbers(samples).map_err(|value| JobError::Mismatch {
        path: path.to_owned(),
        problem: format!("the value {value} is not a label").into(),
        next_step: format!("give a label image: 0 for the background and 1 to {} for the objects", u32::MAX).into(),
    })
}

/// Same as [`numbers`]; the error is the value that is not a label number.
pub(crate) fn label_numbers(samples: Samples) -> Result<Vec<u32>, String> {
    match samples {
        Samples::U32(v) => Ok(v),
        Samples::U16(v) => Ok(v.into_iter().map(u32::from).collect()),
        Samples::U8(v) => Ok(v.into_iter().map(u32::from).collect()),
        Samples::U64(v) => checked(v),
        Samples::I8(v) => checked(v),
        Samples::I16(v) => checked(v),
        Samples::I32(v) => checked(v),
        Samples::I64(v) => checked(v),
        Samples::F16(v) => checked_floats(&v),
        Samples::F32(v) => checked_floats(&v),
        Samples::F64(v) => checked_floats(&v),
    }
}

/// Converts integers to label numbers, or returns the first one that is not a label number.
fn checked<T: Copy + Display>(values: Vec<T>) -> Result<Vec<u32>, String>
where
    u32: TryFrom<T>,
{
    values.into_iter().map(|value| u32::try_from(value).map_err(|_| value.to_string())).collect()
}

/// Converts floats to label numbers, or returns the first one that is not a label number.
fn checked_floats<T: Element>(values: &[T]) -> Result<Vec<u32>, String> {
    let number = |value: &T| {
        let value = value.to_f64();
        let is_label = value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value);
        if is_label { Ok(value as u32) } else { Err(value.to_string()) }
    };
    values.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{Container, WriteSpec, open, write_array};
    use cytoscope_volume::Array;

    #[test]
    fn intensities_that_are_not_exact_in_32_bits_are_measured_exactly() {
        let folder = tempfile::tempdir().unwrap();
        let measured = |name: &str, samples: Samples| {
            let path = folder.path().join(name);
            let array = Array::new("ZYX".parse().unwrap(), vec![1, 2, 2], samples).unwrap();
            write_array(&path, &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
            let image = open(&path, &OpenOptions::default()).unwrap();
            let mut measurer = Measurer::new([1.0; 3], [2, 2], vec!["a".to_owned()]);
            let stack = Stack::new(&image, 0);
            measure_slices(&Context::default(), &mut measurer, &[1; 4], (&stack, &[0]), 0..1).unwrap();
            let rows = measurer.finish();
            (rows[0].mean[0], rows[0].max[0])
        };
        let exact = 16_777_217.0;
        assert_eq!(measured("u.npy", Samples::U32(vec![16_777_217; 4])), (exact, exact));
        assert_eq!(measured("d.npy", Samples::F64(vec![exact; 4])), (exact, exact));
        assert_eq!(measured("f.npy", Samples::F32(vec![0.5; 4])), (0.5, 0.5));
    }

    #[test]
    fn the_planned_memory_holds_intensities_of_64_bits() {
        let bytes_per_voxel = |channels, dtype| slab_bytes([1, 10, 10], channels, dtype) / 100;
        // Labels, samples as they are read, and intensities.
        assert_eq!(bytes_per_voxel(1, DType::U16), 4 + 4 + 4);
        assert_eq!(bytes_per_voxel(1, DType::F64), 4 + 8 + 8);
        assert_eq!([DType::U16, DType::F64].map(|dtype| bytes_per_voxel(60, dtype)), [4 + 4 + 16, 4 + 8 + 16]);
    }

    #[test]
    fn integers_of_any_type_are_label_numbers_and_other_values_are_named() {
        let read = |samples: Samples| numbers(Path::new("a.tif"), samples).map_err(|error| error.to_string());
        for samples in [Samples::I64(vec![0, 70_000]), Samples::F32(vec![0.0, 70_000.0])] {
            assert_eq!(read(samples).unwrap(), [0, 70_000]);
        }
        let wrong = [
            (Samples::I16(vec![1, -2]), "-2"),
            (Samples::F32(vec![1.0, 0.5]), "0.5"),
            (Samples::F64(vec![1.0, f64::NAN]), "NaN"),
            (Samples::F64(vec![5e9]), "5000000000"),
            (Samples::U64(vec![1 << 40]), "1099511627776"),
        ];
        for (samples, named) in wrong {
            let refused = read(samples).unwrap_err();
            assert!(refused.contains(&format!("the value {named} is not a label")), "{refused}");
        }
    }
}
