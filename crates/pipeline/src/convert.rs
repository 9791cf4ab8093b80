//! Conversion of an image to another file format, slab by slab, with unchanged samples unless there are preprocessing
//! steps.

use crate::Extents;
use crate::job_record::{PendingRecord, recorded};
use crate::label_check::LabelCheck;
use crate::predict::file_notes::{
    FilePart, OtherSeries, SliceAlone, absent_chunks_note, first_series_note, orientation_note, reading_notes,
};
use crate::predict::resolve::check_voxel_size;
use crate::results::{Publication, check_file, moved_aside_note};
use crate::sample_type::{depends_on_sign, stored_type, stored_type_note, with_stored_type};
use crate::stack::limit_readers;
use crate::{Context, JobError, ProgressStage, ProgressUnit, convert_zarr, preprocess};
use cytoscope_formats::{
    ChannelRef, Compression, Container, Image, ImageMeta, OpenOptions, SeriesChoice, StackWriter, WriteSpec,
    check_output_name, container_for_path, find_channels, is_zarr_name, is_zarr_zip_name, open,
};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{AXES, CHANNEL, COMPRESSION, LABELS, LIKE, Setting, TIME};
use cytoscope_volume::{Array, Axes, Axis, DType, Region, Samples, VoxelSize, with_samples};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Converts an image to another file format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConvertJob {
    /// Path of the image to convert, a file or an OME-Zarr folder.
    pub input: PathBuf,
    /// Output file, or folder whose name ends in `.zarr`; its extension selects the format. The folder may be zipped into
    /// one file whose name ends in `.ozx` or `.zarr.zip`.
    pub output: PathBuf,
    /// Label image of the input, to store in an OME-Zarr output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<PathBuf>,
    /// Series to read from a multi-series file, by number or name.
    #[serde(default)]
    pub series: SeriesChoice,
    /// Axis order, to use instead of the file's own.
    #[serde(default)]
    pub axes: Option<Axes>,
    /// Convert one channel only, by its number from 0 or its name.
    #[serde(default)]
    pub channel: Option<ChannelRef>,
    /// Convert one time point only, from 0.
    #[serde(default)]
    pub time: Option<usize>,
    /// Stack that the regions of an ImageJ ROI set are drawn on: labels made from a set get its extents, and the regions of a
    /// set that is written get positions in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<PathBuf>,
    /// Voxel size Z, Y, X in µm, to use instead of the file's own; it is written to the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voxel_um: Option<[f64; 3]>,
    /// Steps that are applied to the image first, in this order; unless all are crops, 32-bit floats are written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preprocess: Vec<PreprocessStep>,
    /// Compression of an OME-TIFF output.
    #[serde(default)]
    pub compression: Compression,
    /// Whether to overwrite an existing file.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// Size in bytes of a slab that is read and written at once.
const SLAB_BYTES: usize = 32 << 20;

impl ConvertJob {
    /// Runs the job and writes its provenance record beside the output. Memory use is about that of one slab, and of
    /// what the reader keeps between slabs ([`Image::cache_bytes`]), regardless of the size of the image.
    ///
    /// # Errors
    /// [`JobError`] for an unknown file extension, a file that cannot be read or written, a channel or time point that
    /// does not exist, a file that changes while it is read, or if the job is canceled. No partly written file is left.
    pub fn run(&self, context: &Context) -> Result<(), JobError> {
        recorded(self, context, |record| self.convert(context, record, false))
    }

    /// Runs the job. `is_one_of_all` says that all series of the file are converted, each by its own job.
    pub(crate) fn convert(
        &self,
        context: &Context,
        record: &mut PendingRecord<Self>,
        is_one_of_all: bool,
    ) -> Result<(), JobError> {
        check_output_name(&self.output)?;
        if is_zarr_name(&self.output) || is_zarr_zip_name(&self.output) {
            if self.compression != Compression::None {
                return Err(JobError::wrong_use(message!(
                    "{COMPRESSION} requires a .ome.tif output: OME-Zarr is always compressed with Zstd"
                )));
            }
            return convert_zarr::run(self, context, record, is_one_of_all);
        }
        let container = self.container()?;
        let (image, files) = self.open(context, is_one_of_all)?;
        record.add_image_files(&image);
        if self.voxel_um.is_some() && !matches!(container, Container::ImageJ | Container::OmeTiff) {
            context.note(format!("{}: files of this format state no voxel size", self.output.display()));
        }
        let inputs: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        check_file(&self.output, &inputs, self.overwrite)?;
        let image = preprocess::preprocessed(context, &image, &self.preprocess)?;
        let meta = image.meta().clone();
        let whole_region = self.region(&meta)?;
        // Rows and columns are kept even if there is only one: in a NumPy array, Z would take their place.
        let is_of_plane = |i: &usize| matches!(meta.axes_full.as_slice()[*i], Axis::Y | Axis::X);
        let retained: Vec<usize> =
            (0..meta.axes_full.len()).filter(|i| whole_region.size[*i] != 1 || is_of_plane(i)).collect();
        let axes = Axes::new(retained.iter().map(|i| meta.axes_full.as_slice()[*i]).collect())?;
        let shape: Vec<usize> = retained.iter().map(|i| whole_region.size[*i]).collect();
        if let Some(guess) = wrong_guess(&axes).filter(|_| container == Container::Npy) {
            context.note(message!(
                "{}: an .npy file does not state its axes, {axes}; it is read with {guess} unless {AXES} {axes} is given",
                self.output.display()
            ));
        }
        let mut spec = self.spec(container, axes.clone(), shape, &meta)?;
        let slabs = || Slabs::new(&whole_region, &retained, &meta);
        let is_negative = depends_on_sign(container, meta.dtype) && has_negative(context, &image, slabs())?;
        spec.dtype = stored_type(container, meta.dtype, is_negative);
        spec.stack_channels = self.stack_channels(&spec)?;
        let stored = spec.dtype;
        // These formats hold labels only.
        let holds_labels = matches!(container, Container::Cellpose | Container::RoiSet);
        let mut labels = (holds_labels && !image.is_label_image()).then(|| LabelCheck::new(&self.input));
        let mut writer = StackWriter::create(&self.output, &spec)?;
        let width = meta.axes_full.position(Axis::X).and_then(|i| whole_region.size.get(i).copied()).unwrap_or(1);
        let slabs = slabs();
        let mut meter = context.meter(ProgressStage::Convert, slabs.planes(), ProgressUnit::Planes);
        for (region, planes) in slabs {
            let slab = {
                let mut span = context.recorder.span(Stage::Read, "slab");
                let slab = image.read(0, &region).map_err(|error| context.canceled_or(error))?;
                span.add_bytes(slab.samples().as_bytes().len());
                slab
            };
            let samples = with_stored_type(&self.input, slab.into_samples(), stored)?;
            if let Some(check) = &mut labels {
                with_samples!(&samples, values => check.add(values, width));
            }
            let shape = retained.iter().map(|i| region.size[*i]).collect();
            let _span = context.recorder.span(Stage::Write, "slab").bytes(samples.as_bytes().len());
            writer.write(&Array::new(axes.clone(), shape, samples)?)?;
            meter.add(planes)?;
        }
        // Only now is it known that the values fit the type.
        let type_note = stored_type_note(&self.output, container, meta.dtype, stored);
        type_note.into_iter().for_each(|note| context.note(note));
        let label_note = labels.and_then(|check| check.note());
        label_note.into_iter().for_each(|note| context.note(note));
        let _span = context.recorder.span(Stage::Write, "finish");
        let mut publication = Publication::default();
        publication.add(writer.finish_unpublished()?);
        record.refuse_changed()?;
        publication.publish(self.overwrite)?.iter().for_each(|aside| context.note(moved_aside_note(aside)));
        Ok(())
    }

    /// Returns the format of the output file.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for options that the format does not have; [`JobError`] for an unknown file extension.
    fn container(&self) -> Result<Container, JobError> {
        if self.labels.is_some() {
            return Err(JobError::wrong_use(message!(
                "{LABELS} requires an output whose name ends in .zarr, .ozx or .zarr.zip"
            )));
        }
        let container = container_for_path(&self.output)?;
        if self.compression != Compression::None && container != Container::OmeTiff {
            return Err(JobError::wrong_use(message!(
                "{COMPRESSION} requires a .ome.tif output: ImageJ TIFF and .npy are written uncompressed"
            )));
        }
        Ok(container)
    }

    /// Opens the image with the given voxel size, or a ROI set with that of the stack that gives its extents, and returns it
    /// with all files that are read: its own, and those of the stack whose extents it gets. Notes say if it has several
    /// numbered files, or is the first of several series, unless it is one of all.
    ///
    /// # Errors
    /// [`JobError`] if a file cannot be read; [`JobError::WrongUse`] for `like` with an image that has its own extents and
    /// is not written to a ROI set, or an implausible voxel size.
    pub(crate) fn open(&self, context: &Context, is_one_of_all: bool) -> Result<(Image, Vec<PathBuf>), JobError> {
        let _span = context.recorder.span(Stage::Read, "open");
        let stack = self.like.as_ref().map(|path| open(path, &OpenOptions::default())).transpose()?;
        let drawn_on = stack.as_ref().map(|stack| Extents::of(stack.meta()));
        let options = OpenOptions {
            axes: self.axes.clone(),
            shape_zyx: drawn_on.map(|extents| extents.zyx),
            times: drawn_on.map(|extents| extents.times),
            ..OpenOptions::default()
        };
        let mut image = self.series.open(&self.input, &options)?;
        limit_readers(&[&image], None);
        if let Some([z, y, x]) = self.voxel_um {
            let given = VoxelSize::new_um(z, y, x);
            check_voxel_size(&self.input, given, self.voxel_um)?;
            image = image.with_voxel_size(given);
        } else if let Some(stack) = stack.as_ref().filter(|_| image.is_without_extents()) {
            image = image.with_voxel_size(stack.meta().voxel_size_um);
        }
        let series_note = first_series_note(&self.series, image.meta(), "is converted", OtherSeries::OneOrAll);
        let series_note = series_note.filter(|_| !is_one_of_all);
        let reading = reading_notes(&image, SliceAlone::ByAxes).into_iter().chain(absent_chunks_note(&image));
        reading.chain(series_note).for_each(|note| context.note(note));
        self.orientation_note().into_iter().for_each(|note| context.note(note));
        // The regions of a ROI set that is written are compared with the stack.
        if stack.is_some() && !image.is_without_extents() && !writes_regions(&self.output) {
            let path = self.input.display();
            return Err(JobError::wrong_use_with(
                message!("{path}: {LIKE} gives the extents of an ImageJ ROI set, but this file has its own"),
                message!("leave out {LIKE}"),
            ));
        }
        let mut files = image.files();
        files.extend(stack.iter().flat_map(Image::files));
        files.extend([&self.input].into_iter().chain(&self.like).cloned());
        Ok((image, files))
    }

    /// Returns the note that the output does not state the orientation of a NIfTI file; `None` for files without one.
    fn orientation_note(&self) -> Option<Message> {
        let note = orientation_note(&self.input, &self.output.display().to_string())?;
        Some(message!("{}: {note}", self.input.display()))
    }

    /// Returns the number of channels of the stack that the regions of a ROI set are drawn on; 1 if it is not given.
    ///
    /// # Errors
    /// [`JobError::Mismatch`] if the extents of the written labels differ from those of the stack, so that the regions
    /// would lie elsewhere in it.
    fn stack_channels(&self, spec: &WriteSpec) -> Result<usize, JobError> {
        let Some(path) = self.like.as_ref().filter(|_| spec.container == Container::RoiSet) else { return Ok(1) };
        let Extents { times, zyx: [z, y, x], channels, samples } =
            Extents::of(open(path, &OpenOptions::default())?.meta());
        let own = [Axis::T, Axis::Z, Axis::Y, Axis::X]
            .map(|axis| spec.axes.position(axis).and_then(|i| spec.shape.get(i)).copied().unwrap_or(1));
        let other = [times, z, y, x];
        if own != other {
            return Err(JobError::Mismatch {
                path: self.input.clone(),
                problem: format!(
                    "the labels to write have the shape {own:?} (T, Z, Y, X), but the stack has {other:?}"
                )
                .into(),
                next_step: message!("give the stack of these labels with {LIKE}, and write all of their planes"),
            });
        }
        // In ImageJ, a color image has one channel.
        Ok(channels / samples.max(1))
    }

    /// Returns the number of the channel to convert, `None` if all are. The samples of an RGB pixel count as channels.
    fn chosen_channel(&self, meta: &ImageMeta) -> Result<Option<usize>, JobError> {
        let Some(chosen) = &self.channel else { return Ok(None) };
        let names: Vec<String> = (0..Extents::of(meta).channels).map(|channel| meta.channel_name(channel)).collect();
        match (find_channels(std::slice::from_ref(chosen), &names), chosen) {
            (Ok(found), _) => Ok(found.first().copied()),
            (Err(_), ChannelRef::Index(number)) => {
                Err(self.no_such_part(FilePart::Channel, CHANNEL, *number, names.len()))
            }
            (Err((problem, next_step)), ChannelRef::Name(_)) => Err(JobError::Mismatch {
                path: self.input.clone(),
                problem: problem.into(),
                next_step: next_step.into(),
            }),
        }
    }

    /// The error for a channel or time point beyond those of the file.
    fn no_such_part(&self, part: FilePart, option: Setting, picked: usize, extent: usize) -> JobError {
        JobError::Mismatch {
            path: self.input.clone(),
            problem: message!("{} does not exist: the file has {extent}", part.named(picked)),
            next_step: match extent {
                0 | 1 => message!("leave out {option}"),
                _ => message!("give {option} {} to {}", part.number(0), part.number(extent - 1)),
            },
        }
    }

    /// Returns the region of the image to convert. The samples of an RGB pixel count as channels.
    pub(crate) fn region(&self, meta: &ImageMeta) -> Result<Region, JobError> {
        let extents = Extents::of(meta);
        let chosen = self.chosen_channel(meta)?;
        if let Some(time) = self.time.filter(|time| *time >= extents.times) {
            return Err(self.no_such_part(FilePart::TimePoint, TIME, time, extents.times));
        }
        let samples = extents.samples.max(1);
        let (channel, sample) = (chosen.map(|channel| channel / samples), chosen.map(|channel| channel % samples));
        let mut region = Region::whole(&meta.shape_full);
        for (axis, picked) in [(Axis::T, self.time), (Axis::C, channel), (Axis::S, sample)] {
            if let (Some(picked), Some(i)) = (picked, meta.axes_full.position(axis)) {
                region = region.with_range(i, picked, 1);
            }
        }
        Ok(region)
    }

    fn spec(
        &self,
        container: Container,
        axes: Axes,
        shape: Vec<usize>,
        meta: &ImageMeta,
    ) -> Result<WriteSpec, JobError> {
        let mut spec = WriteSpec::new(container, axes, shape, meta.dtype);
        spec.compression = self.compression;
        // Samples of other types may be stored with another number of bits than they are read with, and steps change values.
        let has_fewer_bits = meta.dtype == DType::U16 && (9..16).contains(&meta.bits_per_sample);
        spec.significant_bits = (has_fewer_bits && self.preprocess.is_empty()).then_some(meta.bits_per_sample);
        spec.name = meta.series_names.get(meta.series).cloned().unwrap_or_default();
        spec.voxel_size_um = meta.voxel_size_um;
        spec.origin_um = meta.origin_um;
        spec.time_interval_secs = meta.time_interval_secs;
        spec.channels = match self.chosen_channel(meta)? {
            // The channel names of the file do not name red, green and blue.
            Some(_) if Extents::of(meta).is_rgb() => Vec::new(),
            Some(c) => meta.channels.get(c).cloned().into_iter().collect(),
            None => meta.channels.clone(),
        };
        spec.display_range = display_range(meta);
        Ok(spec)
    }
}

/// Returns whether one of the 64-bit integers in these regions of an image is negative. They are read until one is found.
fn has_negative(context: &Context, image: &Image, slabs: Slabs) -> Result<bool, JobError> {
    for (region, _) in slabs {
        context.check()?;
        let _span = context.recorder.span(Stage::Read, "signs");
        let slab = image.read(0, &region).map_err(|error| context.canceled_or(error))?;
        if matches!(slab.samples(), Samples::I64(values) if values.iter().any(|value| *value < 0)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether an output is an ImageJ ROI set, or a single region.
fn writes_regions(output: &Path) -> bool {
    matches!(container_for_path(output), Ok(Container::RoiSet))
}

/// Returns the axes that an array of NumPy with these axes is read with; `None` if they are the same.
fn wrong_guess(axes: &Axes) -> Option<&'static str> {
    let guess = ["YX", "ZYX", "CZYX", "TCZYX"].into_iter().find(|guess| guess.len() == axes.len())?;
    (axes.to_string() != guess).then_some(guess)
}

/// Returns the display range of an image of one channel. One of several channels, such as the first one's in ImageJ TIFF,
/// does not fit the others: they get the ranges of their values.
pub(crate) fn display_range(meta: &ImageMeta) -> Option<(f64, f64)> {
    meta.display_range.filter(|_| meta.channels.len() <= 1)
}

/// Iterates over the regions of an image in the order in which they are written: several planes along the innermost
/// non-plane axis at a time, the outer axes one by one.
struct Slabs {
    whole_region: Region,
    /// Axes outside a plane, outermost first.
    leading: Vec<usize>,
    /// Maximum number of planes in one region.
    planes_per_slab: usize,
    at: Vec<usize>,
    done: bool,
}

impl Slabs {
    fn new(whole_region: &Region, retained: &[usize], meta: &ImageMeta) -> Self {
        let is_in_plane = |i: &usize| matches!(meta.axes_full.as_slice()[*i], Axis::Y | Axis::X | Axis::S);
        let leading: Vec<usize> = retained.iter().copied().filter(|i| !is_in_plane(i)).collect();
        let plane_len: usize = (0..meta.axes_full.len()).filter(is_in_plane).map(|i| whole_region.size[i]).product();
        let planes_per_slab = (SLAB_BYTES / plane_len.saturating_mul(meta.dtype.size_bytes()).max(1)).max(1);
        Self { whole_region: whole_region.clone(), at: vec![0; leading.len()], leading, planes_per_slab, done: false }
    }

    fn planes(&self) -> u64 {
        self.leading.iter().map(|i| self.whole_region.size[*i] as u64).product()
    }
}

impl Iterator for Slabs {
    type Item = (Region, u64);

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let mut region = self.whole_region.clone();
        let mut planes = 1;
        for (n, (i, at)) in self.leading.iter().zip(&self.at).enumerate() {
            let innermost = n + 1 == self.leading.len();
            planes = if innermost { self.planes_per_slab.min(self.whole_region.size[*i] - at) } else { 1 };
            region = region.with_range(*i, self.whole_region.start[*i] + at, planes);
        }
        // Advance to the next position, the innermost axis first.
        self.done = true;
        let mut step = planes;
        for (i, at) in self.leading.iter().zip(&mut self.at).rev() {
            *at += step;
            if *at < self.whole_region.size[*i] {
                self.done = false;
                break;
            }
            *at = 0;
            step = 1;
        }
        Some((region, planes as u64))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::job_record::record_path;
    use crate::{Event, MeshJob, SegmentJob};
    use cytoscope_formats::write_array;
    use cytoscope_storage::StorageError;
    use std::io::Write;
    use std::sync::Arc;

    /// Returns a context in which a byte is appended to a file at every report of progress.
    fn growing(path: &Path) -> Context {
        let path = path.to_owned();
        let grow = move |event: &Event| {
            if matches!(event, Event::Progress(_)) {
                std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"x").unwrap();
            }
        };
        Context { sink: Arc::new(grow), ..Context::default() }
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_gives_no_result() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("a.tif");
        let values = (0..6 * 8 * 8).map(|i| if i % 64 < 24 { 1 } else { 0 }).collect();
        let array = Array::new(Axes::zyx(), vec![6, 8, 8], Samples::U8(values)).unwrap();
        write_array(&input, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let context = growing(&input);
        let [stack, zarr, mesh, labels] =
            ["b.ome.tif", "b.zarr", "b.stl", "b.tif"].map(|name| folder.path().join(name));
        let convert = |output: &PathBuf| -> ConvertJob {
            serde_json::from_value(serde_json::json!({"input": input, "output": output})).unwrap()
        };
        let mesh_job: MeshJob = serde_json::from_value(serde_json::json!({"labels": input, "out": mesh})).unwrap();
        let segment_job: SegmentJob =
            serde_json::from_value(serde_json::json!({"map": input, "labels": labels})).unwrap();
        let refusals = [
            convert(&stack).run(&context).unwrap_err(),
            convert(&zarr).run(&context).unwrap_err(),
            mesh_job.run(&context).unwrap_err(),
            segment_job.run(&context).unwrap_err(),
        ];
        for refusal in refusals.iter().map(JobError::to_string) {
            assert!(refusal.contains("a.tif") && refusal.contains("changed while it was read"), "{refusal}");
        }
        for output in [&stack, &zarr, &mesh, &labels] {
            assert!(!output.exists() && !record_path(output).exists(), "{}", output.display());
        }
        convert(&stack).run(&Context::default()).unwrap();
        assert!(stack.is_file() && record_path(&stack).is_file());
    }

    #[test]
    fn regions_for_a_stack_of_several_channels_state_slice_and_all_channels() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str, axes: &str, shape: &[usize], samples: Vec<u8>| {
            let array = Array::new(axes.parse().unwrap(), shape.to_vec(), Samples::U8(samples)).unwrap();
            write_array(&at(name), &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        };
        let mut labels = vec![0; 3 * 4 * 5];
        labels[47] = 1;
        write("labels.tif", "ZYX", &[3, 4, 5], labels);
        write("two.tif", "ZCYX", &[3, 2, 4, 5], vec![7; 120]);
        write("one.tif", "ZYX", &[3, 4, 5], vec![7; 60]);
        write("short.tif", "ZCYX", &[2, 2, 4, 5], vec![7; 80]);
        let convert = |output: &str, like: Option<&str>| {
            let job = serde_json::json!({"input": at("labels.tif"), "output": at(output), "like": like.map(at)});
            serde_json::from_value::<ConvertJob>(job).unwrap().run(&Context::default())
        };
        // Number of the plane, channel, slice and time point.
        for (output, like, expected) in [
            ("alone.roi", None, [3, 0, 0, 0]),
            ("one.roi", Some("one.tif"), [3, 0, 0, 0]),
            ("two.roi", Some("two.tif"), [0, 0, 3, 0]),
        ] {
            convert(output, like).unwrap();
            let bytes = std::fs::read(at(output)).unwrap();
            let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            let second = number(60) as usize;
            assert_eq!([56, second + 4, second + 8, second + 12].map(number), expected, "{output}");
        }
        let error = convert("short.roi", Some("short.tif")).unwrap_err().to_string();
        assert!(error.contains("[1, 3, 4, 5]") && error.contains("[1, 2, 4, 5]"), "{error}");
        assert!(!at("short.roi").exists());
        // One time point of the labels is not at its place in the whole stack.
        write("times.tif", "TZYX", &[2, 3, 4, 5], vec![1; 120]);
        write("stack.tif", "TZCYX", &[2, 3, 2, 4, 5], vec![7; 240]);
        let of_time = |output: &str, time: Option<usize>| {
            let (input, output, like) = (at("times.tif"), at(output), at("stack.tif"));
            let job = serde_json::json!({"input": input, "output": output, "like": like, "time": time});
            serde_json::from_value::<ConvertJob>(job).unwrap().run(&Context::default())
        };
        of_time("all.zip", None).unwrap();
        let error = of_time("one.zip", Some(1)).unwrap_err().to_string();
        assert!(error.contains("[1, 3, 4, 5]") && error.contains("[2, 3, 4, 5]"), "{error}");
        assert!(!at("one.zip").exists());
        // Files of other formats have their own extents.
        let error = convert("copy.tif", Some("two.tif")).unwrap_err();
        assert!(matches!(error, JobError::WrongUse(_)), "{error}");
    }

    #[test]
    fn labels_of_a_roi_set_have_the_voxel_size_of_their_stack() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut samples = vec![0; 60];
        samples[27] = 1;
        let array = Array::new(Axes::zyx(), vec![3, 4, 5], Samples::U8(samples)).unwrap();
        let mut spec = WriteSpec::of(&array, Container::ImageJ);
        spec.voxel_size_um = VoxelSize::new_um(2.0, 0.5, 0.25);
        write_array(&at("stack.tif"), &array, &spec).unwrap();
        let convert = |job: serde_json::Value| {
            serde_json::from_value::<ConvertJob>(job).unwrap().run(&Context::default()).unwrap();
        };
        convert(serde_json::json!({"input": at("stack.tif"), "output": at("rois.zip")}));
        convert(serde_json::json!({"input": at("rois.zip"), "output": at("labels.tif"), "like": at("stack.tif")}));
        let labels = open(&at("labels.tif"), &OpenOptions::default()).unwrap();
        assert_eq!(labels.meta().voxel_size_um, VoxelSize::new_um(2.0, 0.5, 0.25));
        // A given voxel size takes precedence.
        let (input, output, like) = (at("rois.zip"), at("given.tif"), at("stack.tif"));
        convert(serde_json::json!({"input": input, "output": output, "like": like, "voxel_um": [3.0, 0.5, 0.5]}));
        let given = open(&at("given.tif"), &OpenOptions::default()).unwrap();
        assert_eq!(given.meta().voxel_size_um, VoxelSize::new_um(3.0, 0.5, 0.5));
    }

    #[test]
    fn two_jobs_do_not_write_one_output_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let [input, output] = ["a.npy", "b.npy"].map(|name| folder.path().join(name));
        let array = Array::new(Axes::zyx(), vec![1, 2, 3], Samples::U8(vec![7; 6])).unwrap();
        write_array(&input, &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
        let job: ConvertJob = serde_json::from_value(serde_json::json!({"input": input, "output": output})).unwrap();
        let running = PendingRecord::begin(&job).unwrap();
        let refused = job.run(&Context::default()).unwrap_err();
        assert!(matches!(refused, JobError::Storage(StorageError::Busy { .. })), "{refused}");
        assert!(refused.to_string().contains("b.npy") && !output.exists(), "{refused}");
        drop(running);
        job.run(&Context::default()).unwrap();
        assert_eq!(cytoscope_testkit::file_names(folder.path()), ["a.npy", "b.npy", "b.npy_provenance.json"]);
    }
}
