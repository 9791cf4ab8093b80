//! Stacks of pairs: images read for validation and for calibration.

use crate::crop::fullest_window_of_slices;
use cytoscope_formats::{DerivedPixels, DerivedSpec, FormatError, Image, OpenOptions, open};
use cytoscope_pipeline::{CalibrationImage, DiameterRequest, Extents, JobError};
use cytoscope_training_data::{ImageRef, Pair, StackWindow};
use cytoscope_volume::{Array, Axes, Axis, DType, Element, Region, Samples, VoxelSize, with_samples};
use std::collections::HashMap;
use std::path::PathBuf;

/// Maximum number of voxels of a case; of larger stacks, the middle is validated.
const MAX_CASE_VOXELS: usize = 16 << 20;
/// Maximum number of slices of a cropped case.
const MAX_CASE_SLICES: usize = 64;

/// Number up to which 32-bit floats hold every integer.
const MAX_EXACT: f64 = 16_777_216.0;

/// Values in order Z, Y, X, and the shape.
pub(crate) type Stack = (Vec<f32>, [usize; 3]);

/// Reads one image of a file, cropped to a window.
pub(crate) fn read_zyx(image: &ImageRef, window: Option<StackWindow>) -> Result<Stack, JobError> {
    let (samples, shape) = read_samples(image, window)?;
    Ok((samples.to_f32(), shape))
}

/// Reads labels as [`read_zyx`] does, but renumbers them if 32-bit floats do not tell them apart; background and the `ignored`
/// label stay the same.
pub(crate) fn read_labels(
    image: &ImageRef,
    window: Option<StackWindow>,
    ignored: Option<f32>,
) -> Result<Stack, JobError> {
    let (samples, shape) = read_samples(image, window)?;
    Ok((distinct_labels(&samples, ignored), shape))
}

/// Returns labels as floats, which are numbers from 1 on if one of them is above [`MAX_EXACT`].
fn distinct_labels(samples: &Samples, ignored: Option<f32>) -> Vec<f32> {
    if with_samples!(samples, labels => labels.iter().all(|label| label.to_f64() <= MAX_EXACT)) {
        return samples.to_f32();
    }
    let (mut numbers, mut last) = (HashMap::<u64, f32>::new(), 0.0f32);
    let mut number = |label: f64| {
        let own = label as f32;
        if !label.is_finite() || label < 1.0 || Some(own) == ignored {
            return own;
        }
        *numbers.entry(label.to_bits()).or_insert_with(|| {
            last += if Some(last + 1.0) == ignored { 2.0 } else { 1.0 };
            last
        })
    };
    with_samples!(samples, labels => labels.iter().map(|label| number(label.to_f64())).collect())
}

/// Reads one image of a file, cropped to a window, in the sample type of the file: values in order Z, Y, X, and the shape.
pub(crate) fn read_samples(image: &ImageRef, window: Option<StackWindow>) -> Result<(Samples, [usize; 3]), JobError> {
    Ok(read_from(&open_file(image)?, image, window)?)
}

/// Opens the file of an image.
fn open_file(image: &ImageRef) -> Result<Image, JobError> {
    Ok(open(&image.path, &image.open_options())?)
}

/// Returns the shape of the images in a file along Z, Y, X.
fn shape_zyx(file: &Image) -> [usize; 3] {
    let meta = file.meta();
    [Axis::Z, Axis::Y, Axis::X]
        .map(|axis| meta.axes_full.position(axis).and_then(|i| meta.shape_full.get(i)).copied().unwrap_or(1))
}

/// Reads an image as [`read_samples`] does, from its open file.
fn read_from(
    file: &Image,
    image: &ImageRef,
    window: Option<StackWindow>,
) -> Result<(Samples, [usize; 3]), FormatError> {
    let meta = file.meta();
    let mut region = Region::whole(&meta.shape_full);
    let pick = |axis: Axis| meta.axes_full.position(axis);
    let samples = pick(Axis::S).and_then(|i| meta.shape_full.get(i)).copied().unwrap_or(1);
    let channel = image.channel.unwrap_or(0);
    for (axis, at) in [(Axis::T, image.time.unwrap_or(0)), (Axis::C, channel / samples), (Axis::S, channel % samples)] {
        if let Some(i) = pick(axis) {
            region = region.with_range(i, at, 1);
        }
    }
    if let Some(window) = window {
        for (a, axis) in [Axis::Z, Axis::Y, Axis::X].into_iter().enumerate() {
            if let Some(i) = pick(axis) {
                region = region.with_range(i, window.start_zyx[a], window.size_zyx[a]);
            }
        }
    }
    let size = |axis: Axis| pick(axis).and_then(|i| region.size.get(i)).copied().unwrap_or(1);
    let shape = [size(Axis::Z), size(Axis::Y), size(Axis::X)];
    let array = file.read(0, &region)?;
    Ok((array.into_samples(), shape))
}

/// Reads images of one shape, such as the channels of a pair, one after the other: axes C, Z, Y, X.
pub(crate) fn read_channels<'a>(
    mut images: impl Iterator<Item = &'a ImageRef>,
    window: Option<StackWindow>,
) -> Result<Stack, JobError> {
    let Some(first) = images.next() else { return Ok(Stack::default()) };
    let (mut values, shape) = read_zyx(first, window)?;
    for image in images {
        let (more, its_shape) = read_zyx(image, window)?;
        if its_shape != shape {
            return Err(JobError::Mismatch {
                path: image.path.clone(),
                problem: format!("its shape Z, Y, X is {its_shape:?}, but that of {} {shape:?}", first.path.display())
                    .into(),
                next_step: "choose channels of one shape".into(),
            });
        }
        values.extend(more);
    }
    Ok((values, shape))
}

/// Returns values in order C, Z, Y, X as an array, with the axis C if there are several channels.
pub(crate) fn channels_array((values, shape): Stack, channels: usize) -> Result<Array, JobError> {
    if channels == 1 {
        return Ok(Array::new(Axes::zyx(), shape.to_vec(), Samples::F32(values))?);
    }
    let [nz, ny, nx] = shape;
    Ok(Array::new("CZYX".parse()?, vec![channels, nz, ny, nx], Samples::F32(values))?)
}

/// Returns an image with these images of one shape as its channels, without their names. Nothing is read before its pixels
/// are needed, so that the images may be larger than memory.
pub(crate) fn joined_image(images: &[ImageRef]) -> Result<Image, JobError> {
    let mut files = Vec::with_capacity(images.len());
    for image in images {
        files.push((open_file(image)?, image.clone()));
    }
    let Some((first, first_image)) = files.first() else {
        return Err(JobError::Internal("validation: a pair has no image".to_owned()));
    };
    if files.len() == 1 && is_whole_file(first_image) {
        return Ok(first.clone());
    }
    let ([depth, rows, columns], meta) = (shape_zyx(first), first.meta());
    let spec = DerivedSpec {
        shape_full: [1, depth, files.len(), rows, columns, 1],
        dtype: DType::F32,
        voxel_size_um: meta.voxel_size_um,
        origin_um: meta.origin_um,
        channels: Vec::new(),
        keeps_values: true,
    };
    let first = first.clone();
    Ok(first.derived(&spec, Box::new(Joined(files)))?)
}

/// Images of one shape, each with its open file, as the channels of an image.
#[derive(Debug)]
struct Joined(Vec<(Image, ImageRef)>);

impl DerivedPixels for Joined {
    fn read(&self, _source: &Image, region: &Region) -> Result<Samples, FormatError> {
        // Axes T, Z, C, Y, X, S.
        let range = |axis: usize| {
            [(&region.start, 0), (&region.size, 1)].map(|(all, default)| all.get(axis).copied().unwrap_or(default))
        };
        let [[z, depth], [first, count], [y, rows], [x, columns]] = [1, 2, 3, 4].map(range);
        let window = StackWindow { start_zyx: [z, y, x], size_zyx: [depth, rows, columns] };
        let plane = (rows * columns).max(1);
        let mut out = vec![0.0f32; depth * count * rows * columns];
        for (at, (file, image)) in self.0.iter().skip(first).take(count).enumerate() {
            let (samples, _) = read_from(file, image, Some(window))?;
            let planes = out.chunks_exact_mut(plane).skip(at).step_by(count.max(1));
            planes.zip(samples.to_f32().chunks_exact(plane)).for_each(|(to, from)| to.copy_from_slice(from));
        }
        Ok(Samples::F32(out))
    }

    fn files(&self) -> Vec<PathBuf> {
        self.0.iter().skip(1).flat_map(|(file, _)| file.files()).collect()
    }

    fn images(&self) -> Vec<&Image> {
        self.0.iter().skip(1).map(|(file, _)| file).collect()
    }
}

/// Returns the window of a whole stack.
fn whole_window(image: &ImageRef) -> Result<StackWindow, JobError> {
    Ok(StackWindow { start_zyx: [0; 3], size_zyx: shape_zyx(&open_file(image)?) })
}

/// Returns the middle of a part of a stack that is too large to be compared as a whole; `None` for smaller parts.
fn middle_of(whole: StackWindow) -> Option<StackWindow> {
    let voxels = |s: [usize; 3]| s.iter().fold(1usize, |n, v| n.saturating_mul(*v));
    let shape = whole.size_zyx;
    if voxels(shape) <= MAX_CASE_VOXELS {
        return None;
    }
    let mut size_zyx = [shape[0].min(MAX_CASE_SLICES), shape[1], shape[2]];
    while voxels(size_zyx) > MAX_CASE_VOXELS {
        let longer = if size_zyx[1] >= size_zyx[2] { 1 } else { 2 };
        size_zyx[longer] = size_zyx[longer].div_ceil(2);
    }
    let start_zyx = std::array::from_fn(|a| whole.start_zyx[a] + (shape[a] - size_zyx[a]) / 2);
    Some(StackWindow { start_zyx, size_zyx })
}

/// Returns the window in the middle of a stack that is too large to be compared as a whole; `None` for smaller stacks.
fn middle_window(image: &ImageRef) -> Result<Option<StackWindow>, JobError> {
    Ok(middle_of(whole_window(image)?))
}

/// Returns the window of this size, inside the part `within` of a label image, that holds the most voxels of objects; `ignored`
/// is the ignore label, if there is one. The labels are read once, slice by slice.
fn labeled_window(
    labels: &ImageRef,
    within: StackWindow,
    size_zyx: [usize; 3],
    ignored: Option<f32>,
) -> Result<StackWindow, JobError> {
    let file = open_file(labels)?;
    // No label equals NaN.
    let ignored = ignored.unwrap_or(f32::NAN);
    let read_slice = |z: usize| -> Result<Vec<f32>, JobError> {
        let mut slice = within;
        (slice.start_zyx[0], slice.size_zyx[0]) = (within.start_zyx[0] + z, 1);
        let (samples, _) = read_from(&file, labels, Some(slice))?;
        Ok(samples.to_f32())
    };
    let found = fullest_window_of_slices(within.size_zyx, size_zyx, ignored, read_slice)?;
    let start_zyx = std::array::from_fn(|a| within.start_zyx[a] + found.start_zyx[a]);
    Ok(StackWindow { start_zyx, ..found })
}

/// Returns the part of a pair's stack that is validated: that of the pair, or else the whole stack (`None`). If it is too large,
/// it is its middle. If only a part of the labels may be known, because there is an ignore label, it is where most of them are,
/// and so it is if the pair is a part of a single stack, which may hold few objects.
pub(crate) fn validated_part(
    pair: &Pair,
    are_labels: bool,
    ignored: Option<f32>,
) -> Result<Option<StackWindow>, JobError> {
    let whole = match pair.window {
        Some(window) => window,
        None => whole_window(&pair.image)?,
    };
    let Some(middle) = middle_of(whole) else { return Ok(pair.window) };
    if are_labels && (ignored.is_some() || pair.window.is_some()) {
        return labeled_window(&pair.target, whole, middle.size_zyx, ignored).map(Some);
    }
    Ok(Some(middle))
}

/// Returns the voxel size along Z, Y, X in µm that a pair states, or else the one that its image file states. A single plane
/// needs no distance between slices.
pub(crate) fn voxel_um(pair: &Pair) -> Result<Option<[f64; 3]>, JobError> {
    if pair.voxel_um.is_some() {
        return Ok(pair.voxel_um);
    }
    let (size, slices) = image_voxel_size(pair)?;
    Ok(size.in_slices(slices).zyx_um())
}

/// Like [`voxel_um`], with the sizes of the target file along axes for which the image file states none, as training patches
/// have them.
pub(crate) fn trained_voxel_um(pair: &Pair) -> Result<Option<[f64; 3]>, JobError> {
    if pair.voxel_um.is_some() {
        return Ok(pair.voxel_um);
    }
    let (size, slices) = image_voxel_size(pair)?;
    if let Some(complete) = size.zyx_um() {
        return Ok(Some(complete));
    }
    let target = open_file(&pair.target)?;
    Ok(size.or(target.meta().voxel_size_um).in_slices(slices).zyx_um())
}

/// Returns the voxel size that the image file of a pair states, and its number of slices.
fn image_voxel_size(pair: &Pair) -> Result<(VoxelSize, usize), JobError> {
    let options = OpenOptions { series: pair.image.series, single_file: true, ..OpenOptions::default() };
    let image = open(&pair.image.path, &options)?;
    // With other axes, the file may have other slices.
    let slices = if pair.image.axes.is_none() { Extents::of(image.meta()).zyx[0] } else { 0 };
    Ok((image.meta().voxel_size_um, slices))
}

/// Returns whether the file contains only this image.
pub(crate) fn is_whole_file(image: &ImageRef) -> bool {
    image.channel.is_none() && image.time.is_none() && image.series == 0 && image.axes.is_none()
}

/// Returns the image of a pair for calibration, limited to the part that is trained on; a very large stack that is not a file
/// of its own is limited to its middle. `diameter` is the object diameter of the training run.
pub(crate) fn calibration_image(pair: &Pair, diameter: DiameterRequest) -> Result<CalibrationImage, JobError> {
    let is_own_file = pair.more_images.is_empty() && is_whole_file(&pair.image);
    let window = match pair.window {
        None if !is_own_file => middle_window(&pair.image)?,
        window => window,
    };
    let images: Vec<ImageRef> = pair.images().cloned().collect();
    let ranges = |w: StackWindow| std::array::from_fn::<_, 3, _>(|a| w.start_zyx[a]..w.start_zyx[a] + w.size_zyx[a]);
    let (image, window) = (joined_image(&images)?, window.map(ranges));
    Ok(CalibrationImage { image, window, voxel_um: trained_voxel_um(pair)?, diameter })
}

/// Replaces values that are not finite by the smallest finite value, for scores. In training, they do not count.
pub(crate) fn replace_non_finite(values: &mut [f32]) {
    let darkest = values.iter().copied().filter(|v| v.is_finite()).fold(f32::INFINITY, f32::min);
    let darkest = if darkest.is_finite() { darkest } else { 0.0 };
    values.iter_mut().filter(|v| !v.is_finite()).for_each(|v| *v = darkest);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use cytoscope_formats::{Container, WriteSpec, write_array};

    #[test]
    fn calibration_reads_all_channels_of_a_pair_and_the_part_that_is_trained_on() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, value: f32| {
            let path = folder.path().join(name);
            let array = Array::new(Axes::zyx(), vec![2, 3, 4], vec![value; 24]).unwrap();
            let mut spec = WriteSpec::of(&array, Container::ImageJ);
            spec.voxel_size_um = VoxelSize::new_um(2.0, 1.0, 1.0);
            write_array(&path, &array, &spec).unwrap();
            path
        };
        let mut pair = Pair::new("a", file("a.tif", 1.0), file("labels.tif", 0.0));
        pair.more_images = vec![ImageRef::of(file("b.tif", 5.0))];
        let diameter = DiameterRequest::Given(8.0);
        let whole = calibration_image(&pair, diameter).unwrap();
        assert_eq!((whole.window, whole.voxel_um.is_some(), whole.diameter), (None, true, diameter));
        let window = StackWindow { start_zyx: [1, 0, 2], size_zyx: [1, 3, 2] };
        let part = calibration_image(&Pair { window: Some(window), ..pair }, DiameterRequest::Auto).unwrap();
        assert_eq!(part.window, Some([1..2, 0..3, 2..4]));
        // The image is the whole one, so that its statistics are those of a prediction.
        for image in [whole.image, part.image] {
            let values = image.read_all().unwrap().into_samples().to_f32();
            assert_eq!(values.len(), 48);
            let mut planes = values.chunks(12).enumerate();
            assert!(planes.all(|(plane, v)| v.iter().all(|v| *v == [1.0, 5.0][plane % 2])), "{values:?}");
        }
    }

    #[test]
    fn a_plane_needs_no_slice_spacing() {
        let folder = tempfile::tempdir().unwrap();
        for (slices, size) in [(1, Some([0.1, 0.2, 0.1])), (3, None)] {
            let array = Array::new("ZYX".parse().unwrap(), vec![slices, 4, 5], vec![0u16; slices * 20]).unwrap();
            let mut spec = WriteSpec::of(&array, Container::ImageJ);
            spec.voxel_size_um = VoxelSize { z: None, y: Some(0.2), x: Some(0.1) };
            let path = folder.path().join(format!("{slices}.tif"));
            write_array(&path, &array, &spec).unwrap();
            let found = voxel_um(&Pair::new("a", path.clone(), path)).unwrap();
            let is_same = |[a, b]: [[f64; 3]; 2]| (0..3).all(|axis| (a[axis] / b[axis] - 1.0).abs() < 1e-4);
            assert_eq!(found.is_some(), size.is_some(), "{slices}: {found:?}");
            assert!(found.zip(size).is_none_or(|(found, size)| is_same([found, size])), "{found:?}");
        }
    }

    #[test]
    fn sizes_that_only_the_target_states_are_those_of_training() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, size: VoxelSize| {
            let array = Array::new(Axes::zyx(), vec![3, 4, 5], vec![0u16; 60]).unwrap();
            let mut spec = WriteSpec::of(&array, Container::OmeTiff);
            spec.voxel_size_um = size;
            let path = folder.path().join(name);
            write_array(&path, &array, &spec).unwrap();
            path
        };
        let labels = write("labels.ome.tif", VoxelSize::new_um(2.0, 0.5, 0.5));
        let pair = |size| Pair::new("a", write("raw.ome.tif", size), labels.clone());
        let in_plane = pair(VoxelSize { z: None, y: Some(0.25), x: Some(0.25) });
        assert_eq!(trained_voxel_um(&in_plane).unwrap(), Some([2.0, 0.25, 0.25]));
        assert_eq!(voxel_um(&in_plane).unwrap(), None, "predictions read the image only");
        let unknown = pair(VoxelSize::default());
        assert_eq!(trained_voxel_um(&unknown).unwrap(), Some([2.0, 0.5, 0.5]));
        let known = pair(VoxelSize::new_um(1.0, 0.25, 0.25));
        assert_eq!(trained_voxel_um(&known).unwrap(), Some([1.0, 0.25, 0.25]));
        let given = Pair { voxel_um: Some([3.0; 3]), ..unknown };
        assert_eq!(trained_voxel_um(&given).unwrap(), Some([3.0; 3]));
    }

    #[test]
    fn the_part_of_a_large_stack_is_where_it_is_annotated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("labels.tif");
        let whole = StackWindow { start_zyx: [0; 3], size_zyx: [20, 12, 16] };
        let right = StackWindow { start_zyx: [0, 0, 8], size_zyx: [20, 12, 8] };
        // Slice 17 of 20 is annotated, or all: an object of 3 × 4 voxels in a corner.
        for (others, ignored) in [(u16::MAX, Some(f32::from(u16::MAX))), (0, None)] {
            let at = |z: usize, y: usize, x: usize| (z * 12 + y) * 16 + x;
            let mut labels = vec![others; 20 * 192];
            labels[17 * 192..18 * 192].fill(0);
            for (y, x) in (8..11).flat_map(|y| (11..15).map(move |x| (y, x))) {
                labels[at(17, y, x)] = 1;
            }
            let array = Array::new(Axes::zyx(), vec![20, 12, 16], labels).unwrap();
            write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
            let window = |within, size| labeled_window(&ImageRef::of(&path), within, size, ignored).unwrap();
            assert_eq!(window(whole, [4, 6, 16]), StackWindow { start_zyx: [15, 5, 0], size_zyx: [4, 6, 16] });
            assert_eq!(window(right, [4, 6, 8]), StackWindow { start_zyx: [15, 5, 8], size_zyx: [4, 6, 8] });
            let below = StackWindow { start_zyx: [16, 2, 0], size_zyx: [4, 10, 16] };
            assert_eq!(window(below, [1, 10, 16]), StackWindow { start_zyx: [17, 2, 0], size_zyx: [1, 10, 16] });
        }
    }

    #[test]
    fn the_middle_of_a_large_part_is_compared() {
        let part = |start_zyx, size_zyx| StackWindow { start_zyx, size_zyx };
        assert_eq!(middle_of(part([3, 2, 1], [64, 512, 512])), None);
        let found = middle_of(part([10, 2000, 100], [100, 1024, 1024]));
        assert_eq!(found, Some(part([28, 2256, 356], [64, 512, 512])));
    }

    #[test]
    fn of_the_end_of_a_large_stack_the_part_with_its_objects_is_validated() {
        let folder = tempfile::tempdir().unwrap();
        let (rows, columns) = (4200, 4300);
        let path = folder.path().join("labels.tif");
        let mut labels = vec![0u8; rows * columns];
        (4000..4010).for_each(|y| labels[y * columns + 500..y * columns + 520].fill(1));
        let array = Array::new(Axes::zyx(), vec![1, rows, columns], labels).unwrap();
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let part = |start_zyx, size_zyx| Some(StackWindow { start_zyx, size_zyx });
        let window = |within: Option<StackWindow>, are_labels: bool| {
            let pair = Pair { window: within, ..Pair::new("a", path.clone(), path.clone()) };
            validated_part(&pair, are_labels, None).unwrap()
        };
        let end = part([0, 0, 100], [1, rows, columns - 100]);
        // The rows of the object are in the windows from row 1910 to the last one from row 2100 on.
        assert_eq!(window(end, true), part([0, 2005, 100], [1, 2100, 4200]));
        assert_eq!(window(end, false), part([0, 1050, 100], [1, 2100, 4200]), "the middle of a stain");
        assert_eq!(window(None, true), part([0, 0, 1075], [1, 4200, 2150]), "the middle along the longer axis");
        let small = part([0, 10, 100], [1, 100, 100]);
        assert_eq!(window(small, true), small);
    }

    #[test]
    fn labels_above_24_bits_are_told_apart() {
        let large = Samples::U32(vec![0, 1 << 26, (1 << 26) + 1, 1 << 26, 3, 0]);
        assert_eq!(distinct_labels(&large, None), [0.0, 1.0, 2.0, 1.0, 3.0, 0.0]);
        assert_eq!(distinct_labels(&large, Some(3.0)), [0.0, 1.0, 2.0, 1.0, 3.0, 0.0]);
        assert_eq!(distinct_labels(&large, Some(2.0)), [0.0, 1.0, 3.0, 1.0, 4.0, 0.0]);
        let small = Samples::I32(vec![-1, 0, 70_000, 255]);
        assert_eq!(distinct_labels(&small, Some(255.0)), [-1.0, 0.0, 70_000.0, 255.0]);
    }

    #[test]
    fn values_that_are_not_finite_become_the_darkest_value() {
        let mut stain = [3.0, f32::NAN, -2.0, f32::INFINITY];
        replace_non_finite(&mut stain);
        assert_eq!(stain, [3.0, -2.0, -2.0, -2.0]);
    }
}
