//! Conversion to an OME-Zarr folder, slab by slab, with lower resolution levels and label images.

use crate::convert::{ConvertJob, display_range};
use crate::evaluate::looks_like_labels;
use crate::job::Meter;
use crate::job_record::PendingRecord;
use crate::label_check::LabelCheck;
use crate::measure::numbers;
use crate::predict::file_notes::{FilePart, regions_note};
use crate::predict::zarr::{containing_maps, labels_path, pack};
use crate::predicted_part::PredictedPart;
use crate::results::{Publication, check_file, moved_aside_note, refuse_inside_zarr};
use crate::stack::axis_index::{C, S, T, X, Z};
use crate::{Context, Extents, JobError, ProgressStage, ProgressUnit, preprocess, provenance};
use cytoscope_formats::{
    Channel, Image, OpenOptions, SeriesChoice, ZarrImageSpec, ZarrWriter, is_zarr_zip_name, stack_stem,
};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_profile::Stage;
use cytoscope_storage::message;
use cytoscope_storage::partial_folder::check_new_folder;
use cytoscope_storage::setting::{LIKE, PREPROCESS, SERIES, TIME};
use cytoscope_volume::{DType, Region, Samples, with_samples};
use std::path::{Path, PathBuf};

/// Colors of the channels of an RGB image.
const RGB: [[u8; 3]; 3] = [[255, 0, 0], [0, 255, 0], [0, 0, 255]];

/// Runs a conversion whose output is an OME-Zarr folder, or such a folder in a zip file; see [`ConvertJob::convert`].
///
/// # Errors
/// Same as [`ConvertJob::run`].
pub(crate) fn run(
    job: &ConvertJob,
    context: &Context,
    record: &mut PendingRecord<ConvertJob>,
    is_one_of_all: bool,
) -> Result<(), JobError> {
    let (image, mut files) = job.open(context, is_one_of_all)?;
    record.add_image_files(&image);
    let drawn_on = Extents::of(image.meta());
    let image = preprocess::preprocessed(context, &image, &job.preprocess)?;
    let whole_region = job.region(image.meta())?;
    if let Some(path) = &job.labels {
        check_predicted_part(context, job, path, &whole_region, drawn_on.times)?;
    }
    let labels = job.labels.as_deref().map(|path| open_labels(job, path, &whole_region, drawn_on)).transpose()?;
    labels.iter().for_each(|(labels, _)| record.add_image_files(labels));
    let region_note = labels.as_ref().and_then(|(labels, _)| regions_note(labels.meta()));
    region_note.into_iter().for_each(|note| context.note(note));
    if let Some(path) = job.labels.as_ref().filter(|_| moves_voxels(job)) {
        context.note(message!(
            "{}: the labels are stored as they are, because {PREPROCESS} moves the voxels of the image only",
            path.display()
        ));
    }
    files.extend(labels.iter().flat_map(|(labels, _)| labels.files()));
    let inputs: Vec<&Path> = files.iter().chain(&job.labels).map(PathBuf::as_path).collect();
    let is_zip = is_zarr_zip_name(&job.output);
    if is_zip {
        check_file(&job.output, &inputs, job.overwrite)?;
    } else {
        check_new_folder(&job.output, &inputs, job.overwrite)?;
    }
    refuse_inside_zarr(&job.output, &inputs)?;
    let mut spec = image_spec(job, &image, &whole_region);
    if let Some((labels, _)) = &labels {
        take_sizes(context, &mut spec, labels);
    }
    let (voxel_size_um, origin_um, interval_secs) = (spec.voxel_size_um, spec.origin_um, spec.time_interval_secs);
    // Only the name says that these are labels.
    let is_named_labels = spec.labels && !image.is_label_image();
    let mut writer = ZarrWriter::create(&job.output, spec)?;
    let mut parts = vec![(0, image, whole_region, is_named_labels.then(|| LabelCheck::new(&job.input)))];
    if let (Some((labels, whole_region)), Some(path)) = (labels, &job.labels) {
        let stored = labels.meta().dtype;
        let dtype = if stored.is_float() { DType::U32 } else { stored };
        let mut spec = ZarrImageSpec::new(&folder_name(path), shape_tczyx(&whole_region), dtype);
        // Labels lie on the voxels of their image, and many files of labels state no voxel size.
        spec.voxel_size_um = voxel_size_um;
        spec.origin_um = origin_um;
        spec.time_interval_secs = interval_secs;
        parts.push((writer.add_labels(spec)?, labels, whole_region, Some(LabelCheck::new(path))));
    }
    let slices = |whole_region: &Region| [T, Z, C, S].iter().map(|i| whole_region.size[*i] as u64).product::<u64>();
    let total: u64 = parts.iter().map(|(_, _, whole_region, _)| slices(whole_region)).sum();
    let mut meter = context.meter(ProgressStage::Convert, total, ProgressUnit::Planes);
    for (index, image, whole_region, check) in &mut parts {
        copy(context, &mut meter, &mut writer, *index, (&*image, &*whole_region), check.as_mut())?;
        if let Some(check) = check {
            if *index > 0 {
                check.refuse_negative()?;
            }
            check.note().into_iter().for_each(|note| context.note(note));
        }
    }
    let _span = context.recorder.span(Stage::Write, "finish");
    let finished = writer.finish()?;
    if is_zip {
        let mut publication = Publication::default();
        publication.add(pack(context, finished)?);
        record.refuse_changed()?;
        publication.publish(job.overwrite)?.iter().for_each(|aside| context.note(moved_aside_note(aside)));
        return Ok(());
    }
    record.refuse_changed()?;
    if let Some(aside) = finished.publish(job.overwrite)? {
        context.note(format!("{} existed; it was moved to {}", job.output.display(), aside.display()));
    }
    Ok(())
}

/// Copies a region of an image slab by slab, and passes labels to their check. The samples of a pixel (RGB) become channels.
fn copy(
    context: &Context,
    meter: &mut Meter<'_>,
    writer: &mut ZarrWriter,
    index: usize,
    (image, whole_region): (&Image, &Region),
    mut labels: Option<&mut LabelCheck>,
) -> Result<(), JobError> {
    let depth = writer.slab_depth(index);
    let samples = whole_region.size[S];
    for t in 0..whole_region.size[T] {
        for channel in 0..whole_region.size[C] * samples {
            for z in (0..whole_region.size[Z]).step_by(depth) {
                let slices = depth.min(whole_region.size[Z] - z);
                let region = whole_region
                    .clone()
                    .with_range(T, whole_region.start[T] + t, 1)
                    .with_range(Z, whole_region.start[Z] + z, slices)
                    .with_range(C, whole_region.start[C] + channel / samples, 1)
                    .with_range(S, whole_region.start[S] + channel % samples, 1);
                let slab = {
                    let mut span = context.recorder.span(Stage::Read, "slab");
                    let slab = image.read(0, &region).map_err(|error| context.canceled_or(error))?;
                    span.add_bytes(slab.samples().as_bytes().len());
                    slab
                };
                let mut voxels = slab.into_samples();
                if let Some(check) = &mut labels {
                    if voxels.dtype().is_float() {
                        voxels = Samples::U32(numbers(check.path(), voxels)?);
                    }
                    with_samples!(&voxels, values => check.add(values, whole_region.size[X]));
                }
                let _span = context.recorder.span(Stage::Write, "slab").bytes(voxels.as_bytes().len());
                writer.write(index, [t, channel, z], &voxels)?;
                meter.add(slices as u64)?;
            }
        }
    }
    Ok(())
}

/// Refuses labels that were predicted from another series or time point of the stack than the converted one, or after
/// preprocessing that has moved its voxels, by the record beside them.
fn check_predicted_part(
    context: &Context,
    job: &ConvertJob,
    path: &Path,
    stack: &Region,
    times: usize,
) -> Result<(), JobError> {
    if !moves_voxels(job) {
        provenance::refuse_moved(containing_maps(path), &job.input)?;
    }
    let Some(part) = PredictedPart::of(context, path, &job.input, Some(&job.series)) else { return Ok(()) };
    let other = |problem, next_step| Err(JobError::Mismatch { path: path.to_owned(), problem, next_step });
    let options = OpenOptions { axes: job.axes.clone(), ..OpenOptions::default() };
    if let Some(own) = &part.series
        && part.is_other_series(&job.input, &job.series, &options)
    {
        let problem =
            message!("it was predicted from series {own} of the stack, but series {} is converted", job.series);
        return other(problem, message!("convert that series, with {SERIES} {own}, or give other labels"));
    }
    let converted = (stack.size[T] == 1).then_some(stack.start[T]);
    match part.time.filter(|own| *own < times && times > 1 && converted != Some(*own)) {
        None => Ok(()),
        Some(own) => {
            let (named, number) = (FilePart::TimePoint.named(own), FilePart::TimePoint.number(own));
            let others = match converted {
                Some(given) => message!("{} is converted", FilePart::TimePoint.named(given)),
                None => message!("all {times} time points are converted"),
            };
            let problem = message!("it was predicted from {named} of the stack, but {others}");
            other(problem, message!("convert that time point, with {TIME} {number}, or give other labels"))
        }
    }
}

/// Opens the label image of a stack and checks that it fits the converted region. Returns the region of the label image
/// with the converted time points; the file may have only these or all time points of the stack. Regions of interest are drawn
/// on the extents `drawn_on` of the stack before its preprocessing.
fn open_labels(job: &ConvertJob, path: &Path, stack: &Region, drawn_on: Extents) -> Result<(Image, Region), JobError> {
    let (shape_zyx, times) = (Some(drawn_on.zyx), Some(drawn_on.times));
    // The image of a prediction is its maps.
    let options = OpenOptions { shape_zyx, times, ..OpenOptions::default() };
    let labels = SeriesChoice::default().open_labels(&labels_path(path), &options)?;
    if labels.is_without_extents() && moves_voxels(job) {
        return Err(JobError::Mismatch {
            path: path.to_owned(),
            problem: "its regions were drawn on the stack before its preprocessing, which crops or warps it".into(),
            next_step: message!(
                "convert the set to a label image with {LIKE} STACK and the same crop, and give that image"
            ),
        });
    }
    let meta = labels.meta();
    let mut whole_region = Region::whole(&meta.shape_full);
    if let Some(time) = job.time.filter(|time| whole_region.size[T] > 1 && *time < whole_region.size[T]) {
        whole_region = whole_region.with_range(T, time, 1);
    }
    let extents = |region: &Region| [T, Z, 3, 4].map(|i| region.size[i]);
    let samples = whole_region.size[C] * whole_region.size[S];
    let problem = if samples != 1 {
        format!("a label image has one channel, but the file has {samples}")
    } else if extents(&whole_region) != extents(stack) {
        format!("its shape (T, Z, Y, X) is {:?}, but the stack's is {:?}", extents(&whole_region), extents(stack))
    } else {
        return Ok((labels, whole_region));
    };
    let next_step = match moves_voxels(job) {
        true => message!("give the label image of the stack after {PREPROCESS}"),
        false => "give the label image of this stack".into(),
    };
    Err(JobError::Mismatch { path: path.to_owned(), problem: problem.into(), next_step })
}

/// Whether a preprocessing step of the job moves voxels, so that labels of its input lie elsewhere in its output.
fn moves_voxels(job: &ConvertJob) -> bool {
    job.preprocess.iter().any(PreprocessStep::moves_voxels)
}

fn shape_tczyx(whole_region: &Region) -> [usize; 5] {
    let size = &whole_region.size;
    [size[T], size[C] * size[S], size[Z], size[3], size[4]]
}

fn image_spec(job: &ConvertJob, image: &Image, whole_region: &Region) -> ZarrImageSpec {
    let meta = image.meta();
    let mut spec = ZarrImageSpec::new(&folder_name(&job.input), shape_tczyx(whole_region), meta.dtype);
    let one_channel = whole_region.size[C] * whole_region.size[S] == 1;
    let are_labels = image.is_label_image() || looks_like_labels(&job.input);
    spec.labels = one_channel && !meta.dtype.is_float() && are_labels;
    spec.voxel_size_um = meta.voxel_size_um;
    spec.origin_um = meta.origin_um;
    spec.time_interval_secs = meta.time_interval_secs;
    let channels = meta.channels.iter().skip(whole_region.start[C]).take(whole_region.size[C]);
    // The channel names of the file do not name red, green and blue.
    spec.channels = if Extents::of(meta).is_rgb() { Vec::new() } else { channels.cloned().collect() };
    spec.display_range = display_range(meta);
    if whole_region.size[C] == 1 && matches!(whole_region.size[S], 3 | 4) {
        spec.channels = RGB.map(|color| Channel { name: String::new(), color_rgb: Some(color) }).into();
        // Viewers would change the colors if each channel had a range of its own.
        let whole_range = (meta.dtype == DType::U8).then_some((0.0, 255.0));
        spec.display_range = spec.display_range.or(whole_range);
    }
    spec
}

/// Gives an image the voxel size and the time interval of its label image where it states none: both have the same voxels, and
/// viewers would not show them at the same place.
fn take_sizes(context: &Context, spec: &mut ZarrImageSpec, labels: &Image) {
    let meta = labels.meta();
    let voxel_size_um = spec.voxel_size_um.or(meta.voxel_size_um);
    if voxel_size_um != spec.voxel_size_um {
        let labels = meta.path.display();
        context
            .note(format!("the stack does not state its whole voxel size: that of its label image {labels} is used"));
    }
    spec.voxel_size_um = voxel_size_um;
    spec.time_interval_secs = spec.time_interval_secs.or(meta.time_interval_secs);
}

/// Returns the name of an image: the file name without extension, with characters that names in OME-Zarr may have.
fn folder_name(path: &Path) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' };
    let name: String = stack_stem(path).trim_start_matches('.').chars().map(plain).collect();
    if name.is_empty() { "image".to_owned() } else { name }
}
