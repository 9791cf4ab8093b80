//! What only shows when all pairs are compared.

use super::CheckOptions;
use super::look::Look;
use crate::dataset::{Dataset, Part, Problem, Task};
use std::collections::BTreeMap;

/// Voxel sizes that differ by less than this share count as equal: files round them.
const SAME_VOXEL: f64 = 0.01;
/// Voxel sizes of different files that differ by more are worth a word.
const OTHER_GRID: f64 = 0.1;

/// Compares the pairs and adds what was found to theirs, or to the dataset's problems.
pub(crate) fn compare(dataset: &Dataset, options: &CheckOptions, looks: &mut [Look], problems: &mut Vec<Problem>) {
    voxel_sizes(dataset, looks, problems);
    copies(looks);
    if dataset.task == Task::Segmentation {
        if dataset.labels_are_classes {
            let met = "its labels are classes, as dataset.json says, so objects of a class are not told apart";
            let next = "choose a network for foreground, or number the objects";
            problems.push(Problem::warning(&dataset.root, met, next));
        }
        if !options.semantic {
            masks(looks);
        }
        few_objects(looks);
    }
}

fn differs(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() > share * a.abs().max(b.abs())
}

fn voxel_sizes(dataset: &Dataset, looks: &mut [Look], problems: &mut Vec<Problem>) {
    let unknown = |look: &Look| look.finished && look.summary.voxel_um.iter().any(Option::is_none);
    let (missing, seen) = (looks.iter().filter(|l| unknown(l)).count(), looks.iter().filter(|l| l.finished).count());
    let next = "give data.voxel_um in the settings, or set it in Fiji (Image > Properties) and save";
    if missing > 0 && missing == seen {
        let met = format!("no file says how large its voxels are ({seen} pairs): lengths count in voxels");
        problems.push(Problem::warning(&dataset.root, met, next));
    } else {
        for look in looks.iter_mut().filter(|l| unknown(l)) {
            let file = look.summary.image.clone();
            look.add(Problem::warning(&file, "it does not say how large its voxels are, and others do", next));
        }
    }
    for look in looks.iter_mut().filter(|l| l.finished) {
        let [image, target] = look.voxels_um;
        let axes = [(image.z, target.z), (image.y, target.y), (image.x, target.x)];
        let both = axes.into_iter().filter_map(|(i, t)| Some((i?, t?)));
        if let Some((i, t)) = both.into_iter().find(|(i, t)| differs(*i, *t, SAME_VOXEL)) {
            let met = format!("its voxels are {t} µm and those of its image {i} µm; the image's size is taken");
            let file = look.summary.target.clone();
            look.add(Problem::warning(&file, met, "check which of them is right, and correct the other file"));
        }
    }
    let known: Vec<[f64; 3]> = looks
        .iter()
        .filter_map(|l| match l.summary.voxel_um {
            [Some(z), Some(y), Some(x)] => Some([z, y, x]),
            _ => None,
        })
        .collect();
    for (a, axis) in ["Z", "Y", "X"].into_iter().enumerate() {
        let least = known.iter().map(|v| v[a]).fold(f64::INFINITY, f64::min);
        let most = known.iter().map(|v| v[a]).fold(0.0, f64::max);
        if most > 0.0 && differs(least, most, OTHER_GRID) {
            let met = format!("voxels are {least} to {most} µm along {axis}");
            let next = "train at one voxel size (voxel_um in the settings), to which objects are of one size";
            problems.push(Problem::warning(&dataset.root, met, next));
            break;
        }
    }
}

/// Images that are there twice; worst where one copy is learnt from and another one validates.
fn copies(looks: &mut [Look]) {
    let mut first: BTreeMap<[u8; 32], usize> = BTreeMap::new();
    // Those that are learnt from come first, so that the copy elsewhere is the one left out.
    let mut order: Vec<usize> = (0..looks.len()).collect();
    order.sort_by_key(|i| looks.get(*i).map(|l| l.summary.part.unwrap_or(Part::Train)));
    for i in order {
        let Some(hash) = looks.get(i).and_then(|l| l.image_hash) else { continue };
        let Some(earlier) = first.get(&hash).copied() else {
            first.insert(hash, i);
            continue;
        };
        let Some((name, file, part, target)) = looks
            .get(earlier)
            .map(|l| (l.summary.name.clone(), l.summary.image.clone(), l.summary.part, l.target_hash))
        else {
            continue;
        };
        let Some(look) = looks.get_mut(i) else { continue };
        look.summary.same_image_as = Some(name.clone());
        let (own, same_target) = (look.summary.image.clone(), look.target_hash == target);
        if look.summary.part != part {
            let met = format!(
                "it holds the same voxels as {} ({name}), which is in another part of the data",
                file.display()
            );
            let next = "keep it in one part: what was learnt from cannot say how good a network is";
            look.add(Problem::error(&own, met, next));
        } else {
            let met = format!("it holds the same voxels as {} ({name})", file.display());
            look.add(if same_target {
                Problem::error(&own, met + ", and so does its target", "remove one of them")
            } else {
                let next = "keep the better target; as long as both are there, they are on one side of the split";
                Problem::warning(&own, met + ", with another target", next)
            });
        }
    }
}

/// One label a file: a mask where all files are so, else perhaps a file of one object.
fn masks(looks: &mut [Look]) {
    let seen = looks.iter().filter(|l| l.summary.objects.is_some_and(|n| n > 0)).count();
    let single = looks.iter().filter(|l| l.only_label.is_some()).count();
    for look in looks.iter_mut() {
        let Some(label) = look.only_label else { continue };
        let file = look.summary.target.clone();
        let next = "give each object a number of its own (in Fiji: MorphoLibJ > Connected Components Labeling), or \
                    choose to learn foreground only";
        let met = format!("all of its objects have the label {label}, so they cannot be told apart");
        look.add(if single == seen && label_is_mask(label) {
            Problem::error(&file, met, next)
        } else {
            Problem::warning(&file, format!("it holds one label, {label}"), next)
        });
    }
}

/// Values that programs give to masks.
fn label_is_mask(label: u32) -> bool {
    [1, 255, 65_535].contains(&label)
}

fn few_objects(looks: &mut [Look]) {
    let mut counts: Vec<usize> = looks.iter().filter_map(|l| l.summary.objects).filter(|n| *n > 0).collect();
    counts.sort_unstable();
    let Some(median) = counts.get(counts.len() / 2).copied() else { return };
    for look in looks.iter_mut() {
        let Some(count) = look.summary.objects.filter(|n| *n > 0) else { continue };
        if counts.len() >= 3 && count * 10 < median {
            let met = format!("it holds {count} objects, and the others about {median}");
            let file = look.summary.target.clone();
            let next = "check that all objects are labelled: those that are not teach that cells are background";
            look.add(Problem::warning(&file, met, next));
        }
    }
}
