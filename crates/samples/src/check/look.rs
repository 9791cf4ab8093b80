//! Looking into one pair.

use super::{CheckOptions, Intensities, PairSummary, from_error};
use crate::dataset::{ImageRef, Pair, Problem, Task};
use crate::error::SamplesError;
use crate::objects::{Indexer, LabelCode, MAX_LABEL, ObjectIndex};
use crate::stack::{Role, Stack, open_image};
use cytoscope_formats::Image;
use cytoscope_volume::statistics::Moments;
use cytoscope_volume::{Element, Samples, VoxelSize, with_samples};
use sha2::{Digest, Sha256};

/// What was seen of a pair.
#[derive(Debug, Clone)]
pub(crate) struct Look {
    pub summary: PairSummary,
    pub problems: Vec<Problem>,
    /// Voxel sizes of both files.
    pub voxels_um: [VoxelSize; 2],
    /// Hashes of the voxels, which a copy under another name shares.
    pub image_hash: Option<[u8; 32]>,
    pub target_hash: Option<[u8; 32]>,
    /// The only label, where there is one.
    pub only_label: Option<u32>,
    /// Whether all of it was looked at.
    pub finished: bool,
}

/// Most voxels that percentiles are taken of.
const PERCENTILE_VOXELS: u64 = 4 << 20;

impl Look {
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
                median_extent_um: None,
                foreground_share: None,
                same_image_as: None,
                usable: false,
            },
            problems: Vec::new(),
            voxels_um: [VoxelSize::default(); 2],
            image_hash: None,
            target_hash: None,
            only_label: None,
            finished: false,
        }
    }

    pub fn add(&mut self, problem: Problem) {
        self.problems.push(problem.of_pair(&self.summary.name));
    }
}

/// Opens both files, compares them, and reads every voxel once.
pub(crate) fn look(pair: &Pair, task: Task, options: &CheckOptions) -> Look {
    let mut look = Look::none(pair);
    let open = |reference: &ImageRef, role: Role| -> Result<(Stack, Image), SamplesError> {
        let image = open_image(reference)?;
        Ok((Stack::of(reference, role, &image)?, image))
    };
    let image = open(&pair.image, Role::Image).map_err(|e| look.add(from_error(&e, &pair.image.path)));
    let target = open(&pair.target, Role::Target).map_err(|e| look.add(from_error(&e, &pair.target.path)));
    let (Ok((image, image_file)), Ok((target, target_file))) = (image, target) else { return look };
    look.voxels_um = [image.voxel_um, target.voxel_um];
    let summary = &mut look.summary;
    summary.shape_zyx = image.zyx;
    (summary.image_dtype, summary.target_dtype) = (Some(image.dtype), Some(target.dtype));
    let (i, t) = (image.voxel_um, target.voxel_um);
    let files = [i.z.or(t.z), i.y.or(t.y), i.x.or(t.x)];
    summary.voxel_um =
        std::array::from_fn(|a| pair.voxel_um.map(|v| v[a]).or(files[a]).filter(|v| v.is_finite() && *v > 0.0));
    let [z, y, x] = summary.voxel_um;
    if let Err(implausible) = (VoxelSize { z, y, x }).check() {
        let next = "set it in Fiji (Image > Properties) and save, or give data.voxel_um in the settings";
        look.add(Problem::error(&pair.image.path, implausible.to_string(), next));
    }
    if !shapes(&mut look, &image, &target) {
        return look;
    }
    missing_planes(&mut look, &image_file);
    missing_planes(&mut look, &target_file);
    match intensities(&image, &image_file) {
        Ok((about, hash, odd)) => {
            look.image_hash = Some(hash);
            look.summary.intensities = Some(about);
            intensity_problems(&mut look, &image, &about, odd, "image");
        }
        Err(e) => return fail(look, e, &image),
    }
    match task {
        Task::LabelFree => match intensities(&target, &target_file) {
            Ok((about, hash, odd)) => {
                look.target_hash = Some(hash);
                look.summary.target_intensities = Some(about);
                intensity_problems(&mut look, &target, &about, odd, "target");
            }
            Err(e) => return fail(look, e, &target),
        },
        Task::Segmentation => match labels(&target, &target_file, options) {
            Ok(seen) => {
                look.target_hash = Some(seen.hash);
                label_problems(&mut look, &target, &seen, options);
            }
            Err(e) => return fail(look, e, &target),
        },
    }
    if look.image_hash == look.target_hash {
        let next = "choose the labels or the stain, not a copy of the image (of one file, give another \
                    data.target_channel in the settings)";
        look.add(Problem::error(&target.image.path, "it holds the same voxels as its image", next));
    }
    look.finished = true;
    look
}

fn fail(mut look: Look, error: SamplesError, stack: &Stack) -> Look {
    look.add(from_error(&error, &stack.image.path));
    look
}

fn shapes(look: &mut Look, image: &Stack, target: &Stack) -> bool {
    if image.zyx != target.zyx {
        let met = format!("its shape Z, Y, X is {:?}, and that of its image {:?}", target.zyx, image.zyx);
        let (mut a, mut b) = (image.zyx, target.zyx);
        a.sort_unstable();
        b.sort_unstable();
        let next = if a == b {
            "the axes seem to be in another order: save both with the same axes, or give data.axes in the settings"
        } else {
            "choose the target that was made on this image, or resample one of them"
        };
        look.add(Problem::error(&target.image.path, met, next));
        return false;
    }
    if image.zyx[0] == 1 {
        let met = "it is a single plane, and counts as a stack of one slice";
        let next = "train on stacks where cells are to be found in depth; patches will be one slice thick";
        look.add(Problem::warning(&image.image.path, met, next));
    }
    true
}

fn missing_planes(look: &mut Look, file: &Image) {
    let meta = file.meta();
    if meta.missing_planes > 0 {
        let met = format!("{} of its planes are in no file and read as zeros", meta.missing_planes);
        look.add(Problem::warning(&meta.path, met, "put the missing files of the set beside it, or export it again"));
    }
}

/// Reads a stack once: intensities, a hash of its voxels, and the number of voxels that are no numbers.
fn intensities(stack: &Stack, file: &Image) -> Result<(Intensities, [u8; 32], u64), SamplesError> {
    let mut moments = Moments::default();
    let mut hash = hasher(stack);
    let (mut odd, mut seen, mut kept) = (0u64, 0u64, Vec::new());
    // An odd step that is no multiple of the row's length, so that the voxels kept are not of a few columns.
    let mut step = stack.voxels().div_ceil(PERCENTILE_VOXELS) | 1;
    while step > 1 && (stack.zyx[2] as u64).is_multiple_of(step) {
        step += 2;
    }
    let mut brightest = (f64::NEG_INFINITY, 0u64);
    for (start, size) in stack.slabs() {
        let samples = stack.read(file, start, size)?;
        moments.add(&samples);
        hash.update(samples.as_bytes());
        with_samples!(&samples, v => thin(v, &mut seen, step, &mut kept, &mut odd, &mut brightest));
    }
    kept.sort_unstable_by(f32::total_cmp);
    let at = |p: f64| {
        let i = (p / 100.0 * kept.len().saturating_sub(1) as f64).round() as usize;
        kept.get(i).map_or(0.0, |v| f64::from(*v))
    };
    let share = brightest.1 as f64 / stack.voxels().max(1) as f64;
    // A camera's end: 255, 1023, 4095, 65535 and the like.
    let end = !stack.dtype.is_float() && moments.max >= 255.0 && ((moments.max + 1.0) as u64).is_power_of_two();
    let about = Intensities {
        min: moments.min,
        max: moments.max,
        mean: moments.mean,
        std: moments.variance().sqrt(),
        percentiles: [at(1.0), at(50.0), at(99.0)],
        saturated_share: if end { share } else { 0.0 },
    };
    Ok((about, hash.finalize().into(), odd))
}

/// Keeps every `step`-th value, and counts what is no number and how often the greatest value is met.
fn thin<E: Element>(
    values: &[E],
    seen: &mut u64,
    step: u64,
    kept: &mut Vec<f32>,
    odd: &mut u64,
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
            *odd += 1;
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

fn intensity_problems(look: &mut Look, stack: &Stack, about: &Intensities, odd: u64, what: &str) {
    let file = &stack.image.path;
    if odd > 0 {
        let met = format!("{odd} of its {} voxels are not a number or infinite", stack.voxels());
        let next = "they count as the darkest value; export the file again if they should not be there";
        if odd == stack.voxels() {
            look.add(Problem::error(file, "none of its voxels is a number", "export the file again"));
            return;
        }
        look.add(Problem::warning(file, met, next));
    }
    if about.max <= about.min {
        let met = format!("all voxels of this {what} are {}", about.min);
        let channel = stack.role.channel_setting();
        let next = format!("give {channel} or data.time in the settings, if another one holds the picture");
        look.add(Problem::error(file, met, next));
    } else if about.saturated_share > 0.01 {
        let met = format!(
            "{:.1} % of its voxels are at its greatest value, {}: it is overexposed",
            about.saturated_share * 100.0,
            about.max
        );
        look.add(Problem::warning(file, met, "record it with less light, or use the file before it was clipped"));
    }
}

/// What was seen of a label image.
struct Labels {
    index: ObjectIndex,
    hash: [u8; 32],
    fractions: u64,
    negative: u64,
    above: u64,
}

fn labels(stack: &Stack, file: &Image, options: &CheckOptions) -> Result<Labels, SamplesError> {
    let mut hash = hasher(stack);
    let code = LabelCode::new(options.ignore_label, stack.dtype);
    let window = stack.zyx.map(|n| 0..n);
    let mut indexer = Indexer::default();
    let (mut fractions, mut negative, mut above) = (0u64, 0u64, 0u64);
    let ignored = code.ignored();
    for (start, size) in stack.slabs() {
        let samples = stack.read(file, start, size)?;
        hash.update(samples.as_bytes());
        with_samples!(&samples, v => odd_labels(v, ignored, &mut fractions, &mut negative, &mut above));
        // Fractions would be as many labels as voxels: enough is known.
        if fractions == 0 {
            indexer.add(&stack.image.path, start, size, &samples, &window, &code)?;
        }
    }
    Ok(Labels { index: indexer.finish(), hash: hash.finalize().into(), fractions, negative, above })
}

fn odd_labels<E: Element>(values: &[E], ignored: f64, fractions: &mut u64, negative: &mut u64, above: &mut u64) {
    if matches!(Samples::zeros(E::DTYPE, 0), Samples::U8(_) | Samples::U16(_)) {
        return;
    }
    for v in values {
        let v = v.to_f64();
        if v == ignored {
            continue;
        }
        *fractions += u64::from(v != v.trunc());
        *negative += u64::from(v < 0.0);
        *above += u64::from(v > f64::from(MAX_LABEL));
    }
}

fn label_problems(look: &mut Look, stack: &Stack, seen: &Labels, options: &CheckOptions) {
    let file = &stack.image.path;
    if seen.fractions > 0 {
        let met = format!("{} of its voxels are no whole numbers: these are no labels", seen.fractions);
        let next = "choose the label image, or turn a probability map into labels first (cytoscope segment)";
        look.add(Problem::error(file, met, next));
        return;
    }
    if seen.above > 0 {
        let met =
            format!("{} of its voxels are above {MAX_LABEL}, and labels that large are not told apart", seen.above);
        look.add(Problem::error(file, met, "number the labels from 1 on (in scikit-image: relabel_sequential)"));
    }
    if seen.negative > 0 {
        let met = format!("{} of its voxels are negative, and count as background", seen.negative);
        look.add(Problem::warning(file, met, "name that value as the label to ignore, if that is what it means"));
    }
    let index = &seen.index;
    let known = index.voxels - index.ignored;
    let um: [f64; 3] = look.summary.voxel_um.map(|v| v.unwrap_or(1.0));
    look.summary.objects = Some(index.objects.len());
    look.summary.foreground_share = Some(index.foreground as f64 / known.max(1) as f64);
    look.summary.median_diameter_um = index.median_diameter_um(um);
    look.summary.median_extent_um = median_extent_um(index, um);
    if known == 0 {
        let met = "all of its voxels have the label that means \"not known\"";
        look.add(Problem::error(file, met, "label some objects, or leave the pair out"));
    } else if index.objects.is_empty() {
        let met = "it holds no label but background";
        look.add(Problem::warning(file, met, "leave the pair out, unless the image is known to be empty"));
    }
    if let [only] = index.objects.as_slice()
        && !options.semantic
    {
        look.only_label = Some(only.label);
    }
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
