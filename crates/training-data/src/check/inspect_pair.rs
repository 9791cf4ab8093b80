//! Check of a single pair.

use super::compare_pairs::label_is_mask;
use super::{CheckOptions, Intensities, PairSummary, problem_from_error};
use crate::cut;
use crate::dataset::{ImageRef, Pair, Problem, TrainingTask};
use crate::error::TrainingDataError;
use crate::objects::{Indexer, LabelCode, MAX_LABEL, Object, ObjectIndex};
use crate::setting::{AXES, IGNORE_LABEL, IN_SETTINGS, TIME, VOXEL_UM};
use crate::stack::{Role, Stack, channel_count, channel_names, open_image, pair_voxel_um};
use cytoscope_formats::{Image, nifti_directions};
use cytoscope_objects::components::{Components, Connectivity};
use cytoscope_objects::dominant::dominant_label;
use cytoscope_objects::neighbors::NeighborPairs;
use cytoscope_storage::by_count;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::SEGMENT;
use cytoscope_volume::statistics::{Moments, is_camera_max};
use cytoscope_volume::{Element, Samples, VoxelSize, with_samples};
use sha2::{Digest, Sha256};
use std::path::Path;

/// Result of the check of a pair.
#[derive(Debug, Clone)]
pub(crate) struct PairInspection {
    /// Facts about the pair for the report: shape, data types, objects, intensities.
    pub summary: PairSummary,
    /// Problems of this pair, in the order in which they were found.
    pub problems: Vec<Problem>,
    /// Voxel sizes of image and target.
    pub voxels_um: [VoxelSize; 2],
    /// Hash of the image's shape, data type and voxels (of all channels), by which copies are found.
    pub image_hash: Option<[u8; 32]>,
    /// As `image_hash`, of the target.
    pub target_hash: Option<[u8; 32]>,
    /// The label of a target with only one label.
    pub only_label: Option<u32>,
    /// Whether the voxels of that label are connected: one object, as its label may be that of a mask.
    pub is_one_piece: bool,
    /// Whether the check was completed.
    pub finished: bool,
}

/// Maximum number of channels of a label file that are listed in its summary.
const MAX_LABEL_CHANNELS: usize = 64;
/// Maximum number of voxels that percentiles are computed from.
const PERCENTILE_VOXELS: u64 = 4 << 20;

impl PairInspection {
    /// Returns the result for a pair that has not been checked.
    pub fn none(pair: &Pair) -> Self {
        Self {
            summary: PairSummary {
                name: pair.name.clone(),
                image: pair.image.path.clone(),
                target: pair.target.path.clone(),
                part: pair.part,
                shape_zyx: [0; 3],
                image_dtype: None,
                target_dtype: None,
                voxel_um: [None; 3],
                intensities: None,
                target_intensities: None,
                objects: None,
                median_diameter_um: None,
                assumed_spacing: None,
                median_extent_um: None,
                foreground_share: None,
                cut: None,
                same_image_as: None,
                image_digest: None,
                label_channels: Vec::new(),
                usable: false,
            },
            problems: Vec::new(),
            voxels_um: [VoxelSize::default(); 2],
            image_hash: None,
            target_hash: None,
            only_label: None,
            is_one_piece: false,
            finished: false,
        }
    }

    /// Adds a problem, marked with the name of the pair.
    pub fn add(&mut self, problem: Problem) {
        self.problems.push(problem.with_pair(&self.summary.name));
    }
}

/// Checks a pair: opens both files, compares their metadata and reads every voxel once.
pub(crate) fn inspect(pair: &Pair, task: TrainingTask, options: &CheckOptions) -> PairInspection {
    let mut inspection = PairInspection::none(pair);
    let stack = |reference: &ImageRef, role: Role, file: Image| -> Result<(Stack, Image), TrainingDataError> {
        Ok((Stack::of(reference, role, &file)?, file))
    };
    let role = match task {
        TrainingTask::Segmentation => Role::Labels,
        TrainingTask::LabelFree => Role::Target,
    };
    let target_file = open_image(&pair.target);
    if let (Role::Labels, Ok(file)) = (role, &target_file) {
        inspection.summary.label_channels = label_channels(file);
    }
    let image = open_image(&pair.image).and_then(|file| stack(&pair.image, Role::Image, file));
    let image = image.map_err(|e| inspection.add(problem_from_error(&e, &pair.image.path)));
    let target = target_file.and_then(|file| stack(&pair.target, role, file));
    let target = target.map_err(|e| inspection.add(problem_from_error(&e, &pair.target.path)));
    let (Ok((image, image_file)), Ok((target, target_file))) = (image, target) else { return inspection };
    inspection.voxels_um = [image.voxel_um, target.voxel_um];
    let summary = &mut inspection.summary;
    summary.shape_zyx = image.zyx;
    (summary.image_dtype, summary.target_dtype) = (Some(image.dtype), Some(target.dtype));
    let [z, y, x] = pair_voxel_um(pair, &image, &target);
    let size = VoxelSize { z, y, x }.in_slices(image.zyx[0]);
    summary.voxel_um = [size.z, size.y, size.x];
    if let Err(implausible) = size.check() {
        let next_step = message!("set it in Fiji (Image > Properties) and save, or set {VOXEL_UM} {IN_SETTINGS}");
        inspection.add(Problem::error(&pair.image.path, implausible.to_string(), next_step));
    }
    let is_of_image = pair.voxel_um.is_some() || image.voxel_um.in_slices(image.zyx[0]).zyx_um().is_some();
    if !is_of_image && size.zyx_um().is_some() {
        let problem = "it does not state the voxel size along all axes, so that of its target is used";
        let next_step = "set it in Fiji (Image > Properties) and save: predictions read only the image";
        inspection.add(Problem::warning(&pair.image.path, problem, next_step));
    }
    if !check_shapes(&mut inspection, &image, &target) {
        return inspection;
    }
    check_orientation(&mut inspection, pair);
    check_reading(&mut inspection, &image_file);
    // Channels of one image are read in the same way.
    if (&pair.target.path, pair.target.series) != (&pair.image.path, pair.image.series) {
        check_reading(&mut inspection, &target_file);
    }
    match measure_intensities(&image, &image_file) {
        Ok((about, hash, non_finite)) => {
            inspection.image_hash = Some(hash);
            inspection.summary.intensities = Some(about);
            add_intensity_problems(&mut inspection, &image, &about, non_finite);
        }
        Err(e) => return with_error(inspection, e, &image),
    }
    if let Err(e) = measure_target(&mut inspection, task, &target, &target_file, options) {
        return with_error(inspection, e, &target);
    }
    if inspection.image_hash == inspection.target_hash {
        let next_step = message!(
            "choose the labels or the stain, not a copy of the image (for channels of one file, change {} {IN_SETTINGS})",
            role.channel_setting()
        );
        inspection.add(Problem::error(&target.image.path, "it has the same voxels as its image", next_step));
    }
    let images = pair.more_images.iter().map(|reference| (reference, Role::Image));
    for (reference, role) in images.chain(pair.more_targets.iter().map(|reference| (reference, Role::Target))) {
        if let Err(error) = inspect_channel(&mut inspection, reference, role) {
            inspection.add(problem_from_error(&error, &reference.path));
            return inspection;
        }
    }
    inspection.finished = true;
    inspection
}

/// Reads the labels or the stain of a pair, and adds their problems.
fn measure_target(
    inspection: &mut PairInspection,
    task: TrainingTask,
    target: &Stack,
    file: &Image,
    options: &CheckOptions,
) -> Result<(), TrainingDataError> {
    match task {
        TrainingTask::LabelFree => {
            let (about, hash, non_finite) = measure_intensities(target, file)?;
            inspection.target_hash = Some(hash);
            inspection.summary.target_intensities = Some(about);
            add_intensity_problems(inspection, target, &about, non_finite);
        }
        TrainingTask::Segmentation => {
            let seen = measure_labels(target, file, options)?;
            inspection.target_hash = Some(seen.hash);
            add_label_problems(inspection, target, &seen, options);
        }
    }
    Ok(())
}

/// Returns the names of the channels of a label file; empty if it has one, or more than can be chosen from a list.
fn label_channels(file: &Image) -> Vec<String> {
    let is_choice = (2..=MAX_LABEL_CHANNELS).contains(&channel_count(file.meta()));
    if is_choice { channel_names(file.meta()) } else { Vec::new() }
}

/// Checks a further image channel or stain of a pair, and adds its voxels to the hash of the image or the target.
fn inspect_channel(inspection: &mut PairInspection, reference: &ImageRef, role: Role) -> Result<(), TrainingDataError> {
    let file = open_image(reference)?;
    let stack = Stack::of(reference, role, &file)?;
    if stack.zyx != inspection.summary.shape_zyx {
        let problem = format!(
            "its shape Z, Y, X is {:?}, but that of its image is {:?}",
            stack.zyx, inspection.summary.shape_zyx
        );
        return Err(TrainingDataError::data(
            &reference.path,
            problem,
            "choose channels of one shape, or resample one of them",
        ));
    }
    let (about, hash, non_finite) = measure_intensities(&stack, &file)?;
    let all = match role {
        Role::Image => &mut inspection.image_hash,
        Role::Target | Role::Labels => &mut inspection.target_hash,
    };
    let mut joined = Sha256::new();
    joined.update(all.unwrap_or_default());
    joined.update(hash);
    *all = Some(joined.finalize().into());
    add_intensity_problems(inspection, &stack, &about, non_finite);
    Ok(())
}

fn with_error(mut inspection: PairInspection, error: TrainingDataError, stack: &Stack) -> PairInspection {
    inspection.add(problem_from_error(&error, &stack.image.path));
    inspection
}

fn check_shapes(inspection: &mut PairInspection, image: &Stack, target: &Stack) -> bool {
    if image.zyx != target.zyx {
        let problem = format!("its shape Z, Y, X is {:?}, but that of its image is {:?}", target.zyx, image.zyx);
        let (mut a, mut b) = (image.zyx, target.zyx);
        a.sort_unstable();
        b.sort_unstable();
        let is_slice = image.zyx[1..] == target.zyx[1..] && image.zyx[0].min(target.zyx[0]) == 1;
        let next_step: Message = if a == b {
            message!("the axes seem to be in another order: save both with the same axes, or set {AXES} {IN_SETTINGS}")
        } else if is_slice {
            "one of them is a single slice: to use numbered slices as a stack, name their folder in a table".into()
        } else {
            "choose the target of this image, or resample one of them".into()
        };
        inspection.add(Problem::error(&target.image.path, problem, next_step));
        return false;
    }
    if image.zyx[0] == 1 {
        let problem = "it is a single plane, which is used as a stack of one slice";
        let next_step =
            "use stacks to train for 3-D images; patches are one slice thick if all images are single planes";
        inspection.add(Problem::warning(&image.image.path, problem, next_step));
    }
    true
}

/// Adds a warning if image and target are NIfTI files that state different orientations.
fn check_orientation(inspection: &mut PairInspection, pair: &Pair) {
    let [of_image, of_target] = [&pair.image, &pair.target].map(|reference| nifti_directions(&reference.path));
    if let (Some(of_image), Some(of_target)) = (of_image, of_target)
        && of_image != of_target
    {
        let problem = format!(
            "its axes point to {of_target}, but those of its image to {of_image}, and orientations are not applied"
        );
        let next_step =
            "unless the voxels of both have the same order, save one of them in the orientation of the other";
        inspection.add(Problem::warning(&pair.target.path, problem, next_step));
    }
}

/// Adds warnings on how a file was read: which of its statements are not applied, and that planes are missing.
fn check_reading(inspection: &mut PairInspection, file: &Image) {
    let meta = file.meta();
    for sentence in &meta.not_applied {
        let next_step =
            "if this matters, apply it in the program that wrote the file, such as Fiji, and save the file again";
        inspection.add(Problem::warning(&meta.path, sentence.as_str(), next_step));
    }
    if let Some(why) = &meta.read_as_slices {
        let next_step = message!("if this is wrong, set {AXES} {IN_SETTINGS}");
        inspection.add(Problem::warning(&meta.path, why.as_str(), next_step));
    }
    if meta.missing_planes > 0 {
        let missing = meta.missing_planes;
        let are = by_count(missing, "is missing and is", "are missing and are");
        let problem = format!("{missing} of its planes {are} read as zeros");
        inspection.add(Problem::warning(&meta.path, problem, "add the missing files of the image, or export it again"));
    }
}

/// Reads a stack once. Returns its intensity statistics, a hash of its voxels and the number of voxels that are not
/// finite.
fn measure_intensities(stack: &Stack, file: &Image) -> Result<(Intensities, [u8; 32], u64), TrainingDataError> {
    let mut moments = Moments::default();
    let mut hash = hasher(stack);
    let (mut non_finite, mut seen, mut kept) = (0u64, 0u64, Vec::new());
    // The step must not divide the row length, otherwise the sampled voxels would be from a few columns.
    let mut step = stack.voxels().div_ceil(PERCENTILE_VOXELS) | 1;
    while step > 1 && (stack.zyx[2] as u64).is_multiple_of(step) {
        step += 2;
    }
    let mut brightest = (f64::NEG_INFINITY, 0u64);
    for (start, size) in stack.slabs() {
        let samples = stack.read(file, start, size)?;
        moments.add(&samples);
        hash.update(samples.as_bytes());
        with_samples!(&samples, v => sample_values(v, &mut seen, step, &mut kept, &mut non_finite, &mut brightest));
    }
    kept.sort_unstable_by(f32::total_cmp);
    let at = |p: f64| {
        let i = (p / 100.0 * kept.len().saturating_sub(1) as f64).round() as usize;
        kept.get(i).map_or(0.0, |v| f64::from(*v))
    };
    let share = brightest.1 as f64 / stack.voxels().max(1) as f64;
    let is_clipped = !stack.dtype.is_float() && is_camera_max(moments.max);
    let about = Intensities {
        min: moments.min,
        max: moments.max,
        mean: moments.mean,
        std: moments.variance().sqrt(),
        percentiles: [at(1.0), at(50.0), at(99.0)],
        saturated_share: if is_clipped { share } else { 0.0 },
    };
    Ok((about, hash.finalize().into(), non_finite))
}

/// Adds every `step`-th value to `kept`, counts values that are not finite, and updates the maximum and its count.
fn sample_values<E: Element>(
    values: &[E],
    seen: &mut u64,
    step: u64,
    kept: &mut Vec<f32>,
    non_finite: &mut u64,
    brightest: &mut (f64, u64),
) {
    for v in values {
        let value = v.to_f64();
        if value.is_finite() {
            if seen.is_multiple_of(step) {
                kept.push(v.to_f32());
            }
            if value > brightest.0 {
                *brightest = (value, 1);
            } else if value == brightest.0 {
                brightest.1 += 1;
            }
        } else {
            *non_finite += 1;
        }
        *seen += 1;
    }
}

fn hasher(stack: &Stack) -> Sha256 {
    let mut hash = Sha256::new();
    hash.update(stack.dtype.name());
    stack.zyx.iter().for_each(|n| hash.update((*n as u64).to_le_bytes()));
    hash
}

/// Adds the problems of the values of an image or a stain, of which `non_finite` are NaN or infinite.
fn add_intensity_problems(inspection: &mut PairInspection, stack: &Stack, about: &Intensities, non_finite: u64) {
    let file = &stack.image.path;
    if non_finite > 0 {
        let are = by_count(non_finite, "is", "are");
        let problem = format!("{non_finite} of its {} voxels {are} NaN or infinite", stack.voxels());
        let next_step = match stack.role {
            Role::Image => {
                "they are 0 after normalization, as in predictions; export the file again if they are unexpected"
            }
            Role::Target | Role::Labels => {
                "they do not count in the loss, and count as the darkest value in scores; export the file again if they are \
                 unexpected"
            }
        };
        if non_finite == stack.voxels() {
            inspection.add(Problem::error(file, "none of its voxels is finite", "export the file again"));
            return;
        }
        inspection.add(Problem::warning(file, problem, next_step));
    }
    if about.max <= about.min {
        let what = match stack.role {
            Role::Image => "image",
            Role::Target | Role::Labels => "target",
        };
        let problem = format!("all voxels of this {what} are {}", about.min);
        let channel = stack.role.channel_setting();
        let next_step =
            message!("change {channel} or {TIME} {IN_SETTINGS} if the data are in another channel or time point");
        inspection.add(Problem::error(file, problem, next_step));
    } else if about.saturated_share > 0.01 {
        let problem = format!(
            "{:.1} % of its voxels have the maximum value {}: the image is overexposed",
            about.saturated_share * 100.0,
            about.max
        );
        inspection.add(Problem::warning(file, problem, "acquire it with less light, or use the data before clipping"));
    }
}

/// Statistics of a label image.
struct LabelStats {
    index: ObjectIndex,
    /// Whether the voxels of the only label, which is one that masks have, are connected.
    is_one_piece: bool,
    hash: [u8; 32],
    fractional: u64,
    negative: u64,
    above: u64,
    neighbors: NeighborPairs,
}

fn measure_labels(stack: &Stack, file: &Image, options: &CheckOptions) -> Result<LabelStats, TrainingDataError> {
    let mut hash = hasher(stack);
    let code = LabelCode::new(options.ignore_label, stack.dtype);
    let window = stack.zyx.map(|n| 0..n);
    let mut indexer = Indexer::default();
    let (mut fractional, mut negative, mut above) = (0u64, 0u64, 0u64);
    let mut neighbors = NeighborPairs::default();
    let ignored = code.ignored();
    for (start, size) in stack.slabs() {
        let samples = stack.read(file, start, size)?;
        hash.update(samples.as_bytes());
        with_samples!(&samples, v => count_invalid_labels(v, ignored, &mut fractional, &mut negative, &mut above));
        with_samples!(&samples, v => neighbors.add(v, size[2]));
        // Non-integer values could be as many labels as voxels, and the pair is excluded anyway.
        if fractional == 0 {
            indexer.add(&stack.image.path, start, size, &samples, &window, &code)?;
        }
    }
    let index = indexer.finish();
    let is_one_piece = match index.objects.as_slice() {
        [only] if label_is_mask(only.label) && !options.semantic => is_connected(stack, file, only)?,
        _ => false,
    };
    Ok(LabelStats { index, is_one_piece, hash: hash.finalize().into(), fractional, negative, above, neighbors })
}

/// Maximum number of runs of voxels, of 12 bytes each, by which pieces of an object are found.
const MAX_RUNS: usize = 4 << 20;

/// Returns whether the voxels of an object are connected; false if there are too many to tell.
fn is_connected(stack: &Stack, file: &Image, object: &Object) -> Result<bool, TrainingDataError> {
    let (low, label) = (object.low.map(|v| v as usize), object.label as f32);
    let size: [usize; 3] = std::array::from_fn(|a| (object.high[a] as usize + 1).saturating_sub(low[a]));
    let mut components = Components::new(size, Connectivity::Corners);
    for z in 0..size[0] {
        let slice = stack.read(file, [low[0] + z, low[1], low[2]], [1, size[1], size[2]])?.to_f32();
        for row in slice.chunks(size[2].max(1)) {
            components.add_row(row, |value| value == label)?;
        }
        if components.runs() > MAX_RUNS {
            return Ok(false);
        }
    }
    Ok(components.count() == 1)
}

fn count_invalid_labels<E: Element>(
    values: &[E],
    ignored: f64,
    fractional: &mut u64,
    negative: &mut u64,
    above: &mut u64,
) {
    if matches!(Samples::zeros(E::DTYPE, 0), Samples::U8(_) | Samples::U16(_)) {
        return;
    }
    for v in values {
        let v = v.to_f64();
        if v == ignored {
            continue;
        }
        *fractional += u64::from(v != v.trunc());
        *negative += u64::from(v < 0.0);
        *above += u64::from(v > f64::from(MAX_LABEL));
    }
}

fn add_label_problems(inspection: &mut PairInspection, stack: &Stack, seen: &LabelStats, options: &CheckOptions) {
    let file = &stack.image.path;
    if seen.fractional > 0 {
        let are = by_count(seen.fractional, "is not an integer", "are not integers");
        let problem = format!("{} of its voxels {are}, so it is not a label image", seen.fractional);
        let next_step = message!("choose the label image, or convert a probability map to labels first ({SEGMENT})");
        inspection.add(Problem::error(file, problem, next_step));
        return;
    }
    if seen.above > 0 {
        let have = by_count(seen.above, "has a label", "have labels");
        let problem =
            format!("{} of its voxels {have} above {MAX_LABEL}, the largest one that is supported", seen.above);
        inspection.add(Problem::error(
            file,
            problem,
            "renumber the labels from 1 (in scikit-image: relabel_sequential)",
        ));
    }
    if seen.negative > 0 {
        let are = by_count(seen.negative, "is", "are");
        let problem = format!("{} of its voxels {are} negative, which counts as background", seen.negative);
        inspection.add(Problem::warning(
            file,
            problem,
            message!("set {IGNORE_LABEL} {IN_SETTINGS} if that is the meaning of the value"),
        ));
    }
    if let Some(share) = seen.neighbors.doubted_share() {
        let problem = format!(
            "its values may be intensities instead of labels: only {:.0} % of the neighboring voxels that are not 0 have the same \
             value",
            share * 100.0
        );
        let next_step = "choose the label image; image and target may be swapped";
        inspection.add(Problem::warning(file, problem, next_step));
    }
    let index = &seen.index;
    let known = index.voxels - index.ignored;
    let [z, y, x] = inspection.summary.voxel_um;
    let known_um = z.zip(y).zip(x).map(|((z, y), x)| [z, y, x]);
    inspection.summary.objects = Some(index.objects.len());
    inspection.summary.foreground_share = Some(index.foreground as f64 / known.max(1) as f64);
    let voxel = known_um.unwrap_or_else(|| index.assumed_voxel(None));
    inspection.summary.median_diameter_um = index.median_diameter_um(voxel);
    inspection.summary.assumed_spacing = known_um.is_none().then_some(voxel[0]);
    inspection.summary.median_extent_um = median_extent_um(index, known_um.unwrap_or([1.0; 3]));
    let boxes: Vec<cut::ObjectBox> = index.objects.iter().map(|o| [o.low, o.high]).collect();
    inspection.summary.cut = cut::choose(&boxes, stack.zyx);
    if known == 0 {
        let problem = "all of its voxels have the ignore label";
        inspection.add(Problem::error(file, problem, "label some objects, or remove the pair"));
    }
    if let [only] = index.objects.as_slice()
        && !options.semantic
    {
        inspection.only_label = Some(only.label);
        inspection.is_one_piece = seen.is_one_piece;
    }
    if !options.semantic {
        check_dominant_label(inspection, file, index);
    }
}

/// Adds a warning if one label fills so much of the image that it is probably the background, or marks voxels that are not
/// annotated.
fn check_dominant_label(inspection: &mut PairInspection, file: &Path, index: &ObjectIndex) {
    let sizes = index.objects.iter().map(|object| (object.label, object.voxels));
    let Some((label, share)) = dominant_label(sizes, index.voxels) else { return };
    let problem =
        format!("the object with the label {label} fills {:.0} % of it, much more than any other one", 100.0 * share);
    let next_step = message!(
        "if it is the background, set its voxels to 0; if it marks voxels that are not annotated, set {IGNORE_LABEL} \
         {IN_SETTINGS} to {label}"
    );
    inspection.add(Problem::warning(file, problem, next_step));
}

fn median_extent_um(index: &ObjectIndex, um: [f64; 3]) -> Option<[f64; 3]> {
    let mut out = [0.0; 3];
    for (a, out) in out.iter_mut().enumerate() {
        let mut extents: Vec<u32> = index.objects.iter().map(|o| o.high[a] - o.low[a] + 1).collect();
        extents.sort_unstable();
        *out = f64::from(*extents.get(extents.len() / 2)?) * um[a];
    }
    Some(out)
}
