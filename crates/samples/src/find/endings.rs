//! Pairs by the endings of their names: `x.tif` and `x_masks.tif`, `x_raw.tif` and `x_labels.tif`, `img3d.tif` and `mask3d.tif`.

use super::names::{file_name, holds_objects, is_image, stem, strip_ending, strip_front};
use super::{Found, Listing};
use crate::dataset::{Convention, Part, Problem, Task};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Endings of names, best first.
struct Words {
    /// Of images; an image may also have none.
    image: &'static [&'static str],
    /// Of targets.
    target: &'static [&'static str],
    /// Words that names of an image and its target begin with.
    fronts: &'static [(&'static str, &'static str)],
}

const SEGMENTATION: Words = Words {
    image: &["_raw", "_img", "_image", "_im", "_0000", "-raw", "-img", ".raw"],
    target: &[
        "_labels_clean",
        "_label_clean",
        "_masks",
        "_mask",
        "_labels",
        "_label",
        "_lbl",
        "_gt",
        "_seg",
        "_segmentation",
        "_groundtruth",
        "_cp_masks",
        "-masks",
        "-mask",
        "-labels",
        "-label",
        ".labels",
    ],
    fronts: &[
        ("img", "mask"),
        ("image", "mask"),
        ("img", "label"),
        ("image", "label"),
        ("raw", "label"),
        ("raw", "mask"),
        ("raw", "gt"),
    ],
};

const LABEL_FREE: Words = Words {
    image: &[
        "_bf",
        "_brightfield",
        "_phase",
        "_dic",
        "_transmitted",
        "_trans",
        "_input",
        "_raw",
        "_bright",
        "-bf",
        "-phase",
    ],
    target: &["_fluo", "_fluor", "_fluorescence", "_signal", "_target", "_stain", "_gt", "-fluo", "-fluor", "-signal"],
    fronts: &[("brightfield", "signal"), ("bf", "fluo"), ("phase", "fluor"), ("phase", "fluo"), ("input", "target")],
};

/// What programs write beside images and nobody trains on.
const BY_PRODUCTS: [&str; 6] = ["_flows", "_cp_outlines", "_outlines", "_cp_output", "_probability", "_prediction"];

fn words(task: Task) -> &'static Words {
    match task {
        Task::Segmentation => &SEGMENTATION,
        Task::LabelFree => &LABEL_FREE,
    }
}

/// The stem without the ending that makes it an image's or a target's, and how good the ending is.
fn stripped<'a>(stem: &'a str, endings: &[&str]) -> Option<(usize, &'a str)> {
    // The longest ending that fits: `_labels_clean` rather than none, `_cp_masks` rather than `_masks`.
    let fits = endings.iter().enumerate().filter_map(|(rank, e)| Some((e.len(), rank, strip_ending(stem, e)?)));
    fits.max_by_key(|(len, ..)| *len).map(|(_, rank, rest)| (rank, rest))
}

/// The stem that an image or a target of any ending would share.
pub(crate) fn common_stem(stem: &str, task: Task) -> &str {
    let words = words(task);
    let target = stripped(stem, words.target).map(|(_, rest)| rest);
    target.or_else(|| stripped(stem, words.image).map(|(_, rest)| rest)).unwrap_or(stem)
}

/// Adds the pairs of one folder, and a problem for each image that pairs with nothing. Gives the number of pairs.
pub(crate) fn search(listing: &Listing, task: Task, part: Option<Part>, found: &mut Found) -> usize {
    let words = words(task);
    let mut targets: BTreeMap<String, Vec<(usize, PathBuf)>> = BTreeMap::new();
    let mut images: Vec<PathBuf> = Vec::new();
    let mut pickles: Vec<PathBuf> = Vec::new();
    for file in listing.files.iter().filter(|f| is_image(f)) {
        let stem = stem(file);
        if BY_PRODUCTS.iter().any(|e| strip_ending(&stem, e).is_some()) {
            continue;
        }
        if holds_objects(file) {
            pickles.push(file.clone());
        } else if let Some((rank, rest)) = stripped(&stem, words.target) {
            targets.entry(rest.to_lowercase()).or_default().push((rank, file.clone()));
        } else {
            images.push(file.clone());
        }
    }
    // Images with an ending of their own come before those without: x_raw.tif before x.tif.
    let mut wishes: Vec<(usize, String, PathBuf)> = Vec::new();
    for file in images {
        let stem = stem(&file);
        match stripped(&stem, words.image) {
            Some((rank, rest)) => {
                wishes.push((rank, rest.to_lowercase(), file.clone()));
                wishes.push((words.image.len() + 1, stem.to_lowercase(), file));
            }
            None => wishes.push((words.image.len(), stem.to_lowercase(), file)),
        }
    }
    wishes.sort();
    let mut paired: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut left: Vec<PathBuf> = Vec::new();
    for (_, key, file) in &wishes {
        if paired.contains_key(file) {
            continue;
        }
        let Some(mut candidates) = targets.remove(key) else { continue };
        candidates.sort();
        let mut candidates = candidates.into_iter();
        if let Some((_, best)) = candidates.next() {
            for (_, other) in candidates {
                let met = format!("{} also has the target {}, which is taken", file_name(file), file_name(&best));
                let next = "keep one of them beside the image";
                found.problems.push(Problem::warning(&other, met, next));
            }
            paired.insert(file.clone(), best);
        }
    }
    left.extend(wishes.iter().map(|w| w.2.clone()).filter(|f| !paired.contains_key(f)));
    left.sort();
    left.dedup();
    let mut spare: Vec<PathBuf> = targets.into_values().flatten().map(|(_, f)| f).collect();
    pair_by_fronts(words, &mut left, &mut spare, &mut paired);
    let count = paired.len();
    for (image, target) in paired {
        found.convention(Convention::Endings);
        let stem = stem(&image);
        let name = stripped(&stem, words.image).map_or(stem.as_str(), |(_, rest)| rest).to_owned();
        found.add(&name, &image, &target, part, 1.0);
        pickles.retain(|p| common_stem(&self::stem(p), task) != name);
    }
    for file in pickles {
        let next = match task {
            Task::Segmentation => "export masks as TIFF (in Cellpose: File > Save masks as PNG/tif, or --save_tif)",
            Task::LabelFree => "save a plain array of numbers, or TIFF",
        };
        let met = "this .npy holds Python objects, which are not opened because they can run programs";
        left.retain(|f| common_stem(&stem(f), task) != common_stem(&stem(&file), task));
        found.problems.push(Problem::warning(&file, met, next));
    }
    let (image_word, target_word) = match task {
        Task::Segmentation => ("_raw (or nothing)", "_masks or _labels"),
        Task::LabelFree => ("_bf", "_fluo"),
    };
    for file in left {
        let next = format!("put its target beside it, named with {target_word}, or move the image away");
        found.problems.push(Problem::warning(&file, "this image has no target", next));
    }
    for file in spare {
        let next = format!("put its image beside it, named with {image_word}, or move the target away");
        found.problems.push(Problem::warning(&file, "this target has no image", next));
    }
    count
}

/// Pairs what is left by the words names begin with: `img3d` and `mask3d`.
fn pair_by_fronts(
    words: &Words,
    left: &mut Vec<PathBuf>,
    spare: &mut Vec<PathBuf>,
    paired: &mut BTreeMap<PathBuf, PathBuf>,
) {
    for (front, target_front) in words.fronts {
        let mut by_rest: BTreeMap<String, PathBuf> = BTreeMap::new();
        for file in left.iter().chain(spare.iter()) {
            if let Some(rest) = strip_front(&stem(file), target_front) {
                by_rest.insert(rest.to_lowercase(), file.clone());
            }
        }
        for file in left.clone() {
            let Some(target) = strip_front(&stem(&file), front).and_then(|r| by_rest.remove(&r.to_lowercase())) else {
                continue;
            };
            if target != file {
                left.retain(|f| *f != file && *f != target);
                spare.retain(|f| *f != target);
                paired.insert(file, target);
            }
        }
    }
}
