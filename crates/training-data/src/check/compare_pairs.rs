//! Checks that compare the pairs with each other.

use super::CheckOptions;
use super::inspect_pair::PairInspection;
use super::label_fit::find_misfits;
use crate::dataset::{Dataset, ImageRef, Part, Problem, Severity, TrainingTask};
use crate::error::TrainingDataError;
use crate::setting::{FOREGROUND, IN_SETTINGS, VOXEL_UM};
use crate::stack::{Role, Stack, open_image};
use cytoscope_storage::{hexadecimal, message};
use cytoscope_volume::number_text;
use std::collections::BTreeMap;

/// Relative difference up to which the voxel sizes of image and target are equal, since files round them.
const SAME_VOXEL_TOLERANCE: f64 = 0.01;
/// Relative difference of voxel sizes between files above which there is a warning.
const VOXEL_SPREAD_TOLERANCE: f64 = 0.1;

/// Compares the pairs. Problems of a pair are added to its inspection, others to `problems`.
pub(crate) fn compare(
    dataset: &Dataset,
    options: &CheckOptions,
    inspections: &mut [PairInspection],
    problems: &mut Vec<Problem>,
) {
    check_voxel_sizes(dataset, inspections, problems);
    for inspection in inspections.iter_mut() {
        inspection.summary.image_digest = inspection.image_hash.as_ref().map(|hash| hexadecimal(hash));
    }
    join_converted_copies(dataset, inspections);
    find_copies(inspections);
    if dataset.task == TrainingTask::Segmentation {
        if dataset.labels_are_classes {
            let problem = "dataset.json declares the labels as classes, so objects of the same class are not separated";
            let next_step = message!("choose a foreground target ({FOREGROUND}), or give each object its own label");
            problems.push(Problem::warning(&dataset.root, problem, next_step));
        }
        if !options.semantic {
            find_masks(inspections);
        }
        find_few_objects(inspections);
        find_empty_labels(inspections);
        find_misfits(dataset, options, inspections);
    }
}

fn differs(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() > tolerance * a.abs().max(b.abs())
}

/// Formats a length with three significant digits.
fn three_digits(um: f64) -> String {
    number_text(format!("{um:.2e}").parse().unwrap_or(um))
}

fn check_voxel_sizes(dataset: &Dataset, inspections: &mut [PairInspection], problems: &mut Vec<Problem>) {
    let unknown =
        |inspection: &PairInspection| inspection.finished && inspection.summary.voxel_um.iter().any(Option::is_none);
    let (missing, seen) =
        (inspections.iter().filter(|l| unknown(l)).count(), inspections.iter().filter(|l| l.finished).count());
    let next_step = message!("set {VOXEL_UM} {IN_SETTINGS}, or set it in Fiji (Image > Properties) and save");
    if missing > 0 && missing == seen {
        let problem =
            format!("no file states a voxel size along all axes (pairs checked: {seen}), so lengths are in voxels");
        problems.push(Problem::warning(&dataset.root, problem, next_step));
    } else {
        for inspection in inspections.iter_mut().filter(|l| unknown(l)) {
            let file = inspection.summary.image.clone();
            let problem = "it does not state the voxel size along all axes, but other files do";
            inspection.add(Problem::warning(&file, problem, next_step.clone()));
        }
    }
    for inspection in inspections.iter_mut().filter(|l| l.finished) {
        let [image, target] = inspection.voxels_um;
        let axes = [(image.z, target.z), (image.y, target.y), (image.x, target.x)];
        let both = axes.into_iter().filter_map(|(i, t)| Some((i?, t?)));
        if let Some((i, t)) = both.into_iter().find(|(i, t)| differs(*i, *t, SAME_VOXEL_TOLERANCE)) {
            let problem = format!("its voxel size is {t} µm and that of its image {i} µm; the latter is used");
            let file = inspection.summary.target.clone();
            inspection.add(Problem::warning(&file, problem, "correct the voxel size of the wrong file"));
        }
    }
    let known: Vec<(usize, [f64; 3])> = inspections
        .iter()
        .filter_map(|l| match l.summary.voxel_um {
            [Some(z), Some(y), Some(x)] => Some((l.summary.shape_zyx[0], [z, y, x])),
            _ => None,
        })
        .collect();
    for (a, axis) in ["Z", "Y", "X"].into_iter().enumerate() {
        // Single planes have no distance between slices.
        let sizes = || known.iter().filter(move |(slices, _)| a > 0 || *slices > 1).map(move |(_, size)| size[a]);
        let min = sizes().fold(f64::INFINITY, f64::min);
        let max = sizes().fold(0.0, f64::max);
        if max > 0.0 && differs(min, max, VOXEL_SPREAD_TOLERANCE) {
            let problem =
                format!("voxel sizes range from {} to {} µm along {axis}", three_digits(min), three_digits(max));
            let next_step = message!(
                "check that the files state the right ones: the images are resampled to the grid of the network ({VOXEL_UM} \
                 {IN_SETTINGS})"
            );
            problems.push(Problem::warning(&dataset.root, problem, next_step));
            break;
        }
    }
}

/// Maximum number of images with the same intensities that an image is compared with.
const MAX_COMPARED: usize = 16;

/// Gives images of the same values in different sample types, such as 16-bit integers and an export of them as floats, the same
/// hash.
fn join_converted_copies(dataset: &Dataset, inspections: &mut [PairInspection]) {
    // Images of different shapes or intensities need not be read again.
    let mut alike: BTreeMap<([usize; 3], [u64; 5]), Vec<usize>> = BTreeMap::new();
    for i in 0..inspections.len() {
        let (Some(inspection), Some(pair)) = (inspections.get(i), dataset.pairs.get(i)) else { continue };
        let Some(about) = inspection.summary.intensities.filter(|_| pair.more_images.is_empty()) else { continue };
        let [low, middle, high] = about.percentiles;
        // A zero of a float may be negative.
        let numbers = [about.min, about.max, low, middle, high].map(|value| (value + 0.0).to_bits());
        let earlier = alike.entry((inspection.summary.shape_zyx, numbers)).or_default();
        let is_copy = |other: &PairInspection, at: usize| {
            let other_pair = dataset.pairs.get(at);
            // A file that cannot be read any more is reported when it is trained on.
            other.summary.image_dtype != inspection.summary.image_dtype
                && other_pair.is_some_and(|other| have_same_values(&pair.image, &other.image).unwrap_or_default())
        };
        let found = earlier.iter().filter_map(|at| Some((*at, inspections.get(*at)?)));
        let hash =
            found.take(MAX_COMPARED).find(|(at, other)| is_copy(other, *at)).and_then(|(_, other)| other.image_hash);
        earlier.push(i);
        if let (Some(hash), Some(inspection)) = (hash, inspections.get_mut(i)) {
            inspection.image_hash = Some(hash);
        }
    }
}

/// Returns whether two images of the same shape have the same values. They are read slice by slice until values differ.
fn have_same_values(a: &ImageRef, b: &ImageRef) -> Result<bool, TrainingDataError> {
    let (first, second) = (open_image(a)?, open_image(b)?);
    let stacks = (Stack::of(a, Role::Image, &first)?, Stack::of(b, Role::Image, &second)?);
    let [depth, rows, columns] = stacks.0.zyx;
    for z in 0..depth {
        let (start, size) = ([z, 0, 0], [1, rows, columns]);
        let values = (stacks.0.read(&first, start, size)?.to_f64(), stacks.1.read(&second, start, size)?.to_f64());
        let is_same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan());
        if values.0.len() != values.1.len() || !values.0.iter().zip(&values.1).all(is_same) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Finds identical images. They are errors if they belong to different parts of the data, or have identical targets.
fn find_copies(inspections: &mut [PairInspection]) {
    let mut first: BTreeMap<[u8; 32], usize> = BTreeMap::new();
    // Training pairs come first, so that copies in other parts are excluded instead.
    let mut order: Vec<usize> = (0..inspections.len()).collect();
    order.sort_by_key(|i| inspections.get(*i).map(|l| l.summary.part.unwrap_or(Part::Train)));
    for i in order {
        let Some(hash) = inspections.get(i).and_then(|l| l.image_hash) else { continue };
        let Some(earlier) = first.get(&hash).copied() else {
            first.insert(hash, i);
            continue;
        };
        let Some((name, file, part, target)) = inspections
            .get(earlier)
            .map(|l| (l.summary.name.clone(), l.summary.image.clone(), l.summary.part, l.target_hash))
        else {
            continue;
        };
        let Some(inspection) = inspections.get_mut(i) else { continue };
        inspection.summary.same_image_as = Some(name.clone());
        let (own, same_target) = (inspection.summary.image.clone(), inspection.target_hash == target);
        // Pairs without a part are trained on together with those of the training set.
        if inspection.summary.part.unwrap_or(Part::Train) != part.unwrap_or(Part::Train) {
            let problem =
                format!("it has the same voxels as {} ({name}), which is in another part of the data", file.display());
            let next_step = "keep it in one part only: training images must not be used for validation or testing";
            inspection.add(Problem::error(&own, problem, next_step));
        } else {
            let problem = format!("it has the same voxels as {} ({name})", file.display());
            inspection.add(if same_target {
                Problem::error(&own, problem + ", and so does its target", "remove one of them")
            } else {
                let next_step = "keep the better target; until then, both pairs stay in the same set";
                Problem::warning(&own, problem + ", with another target", next_step)
            });
        }
    }
}

/// Finds files with a single label: masks if all files are like that and some have several objects, otherwise perhaps files
/// with one object.
fn find_masks(inspections: &mut [PairInspection]) {
    let seen = inspections.iter().filter(|l| l.summary.objects.is_some_and(|n| n > 0)).count();
    let single = inspections.iter().filter(|l| l.only_label.is_some()).count();
    let has_pieces = inspections.iter().any(|l| l.only_label.is_some() && !l.is_one_piece);
    for inspection in inspections.iter_mut() {
        let Some(label) = inspection.only_label.filter(|_| has_pieces) else { continue };
        let file = inspection.summary.target.clone();
        let next_step = message!(
            "give each object its own label (in Fiji: MorphoLibJ > Connected Components Labeling), or choose a foreground \
             target ({FOREGROUND})"
        );
        let problem = format!("all of its objects have the label {label}, so they cannot be separated");
        inspection.add(if single == seen && label_is_mask(label) {
            Problem::error(&file, problem, next_step)
        } else {
            Problem::warning(&file, format!("it has only one label, {label}"), next_step)
        });
    }
}

/// Returns whether a label is a usual foreground value of masks.
pub(super) fn label_is_mask(label: u32) -> bool {
    [1, 255, 65_535].contains(&label)
}

fn find_few_objects(inspections: &mut [PairInspection]) {
    let mut counts: Vec<usize> = inspections.iter().filter_map(|l| l.summary.objects).filter(|n| *n > 0).collect();
    counts.sort_unstable();
    let Some(median) = counts.get(counts.len() / 2).copied() else { return };
    for inspection in inspections.iter_mut() {
        let Some(count) = inspection.summary.objects.filter(|n| *n > 0) else { continue };
        if counts.len() >= 3 && count * 10 < median {
            let objects = if count == 1 { "object" } else { "objects" };
            let problem = format!("it has {count} {objects}, but the other pairs have about {median}");
            let file = inspection.summary.target.clone();
            let next_step = "check that all objects are labeled: unlabeled objects are trained as background";
            inspection.add(Problem::warning(&file, problem, next_step));
        }
    }
}

/// Finds labels without objects. They are errors if no pair has an object, because a network cannot be trained on background
/// alone.
fn find_empty_labels(inspections: &mut [PairInspection]) {
    let has_objects = inspections.iter().any(|l| l.summary.objects.is_some_and(|n| n > 0));
    for inspection in inspections.iter_mut().filter(|l| l.summary.objects == Some(0)) {
        if inspection.problems.iter().any(|p| p.severity == Severity::Error) {
            continue;
        }
        let file = inspection.summary.target.clone();
        let problem = "it has no label other than background";
        inspection.add(if has_objects {
            Problem::warning(&file, problem, "remove the pair, unless the image contains no objects")
        } else {
            let problem = format!("{problem}, nor has any other target");
            Problem::error(&file, problem, "label some objects, or choose the files with the labels")
        });
    }
}
