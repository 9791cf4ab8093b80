//! Pairs by the suffixes and prefixes of their names: `x.tif` and `x_masks.tif`, `x_raw.tif` and `x_labels.tif`,
//! `img3d.tif` and `mask3d.tif`.

use super::names::{file_name, holds_objects, is_image, stem, strip_prefix_ignoring_case, strip_suffix_ignoring_case};
use super::{FindOptions, Listing, SearchResults, labels};
use crate::dataset::{Convention, Part, Problem, TrainingTask};
use crate::setting::{IN_SETTINGS, LABELS_CHANNEL};
use cytoscope_formats::{OpenOptions, open};
use cytoscope_storage::message;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

/// Suffixes and prefixes of file names, in order of preference.
struct NamePatterns {
    /// Suffixes of images; an image may also have none.
    image: &'static [&'static str],
    /// Suffixes of targets.
    target: &'static [&'static str],
    /// Prefixes of images and their targets.
    prefixes: &'static [(&'static str, &'static str)],
}

const SEGMENTATION: NamePatterns = NamePatterns {
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
    prefixes: &[
        ("img", "mask"),
        ("image", "mask"),
        ("img", "label"),
        ("image", "label"),
        ("raw", "label"),
        ("raw", "mask"),
        ("raw", "gt"),
    ],
};

const LABEL_FREE: NamePatterns = NamePatterns {
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
    prefixes: &[("brightfield", "signal"), ("bf", "fluo"), ("phase", "fluor"), ("phase", "fluo"), ("input", "target")],
};

/// Suffixes of files that programs write beside images, and that are not for training.
const DERIVED_FILES: [&str; 6] = ["_flows", "_cp_outlines", "_outlines", "_cp_output", "_probability", "_prediction"];

fn name_patterns(task: TrainingTask) -> &'static NamePatterns {
    match task {
        TrainingTask::Segmentation => &SEGMENTATION,
        TrainingTask::LabelFree => &LABEL_FREE,
    }
}

/// Returns the stem without the longest suffix that fits, and the rank of the suffix; `None` if none fits.
fn strip_suffix<'a>(stem: &'a str, suffixes: &[&str]) -> Option<(usize, &'a str)> {
    // For example `_labels_clean` rather than none, `_cp_masks` rather than `_masks`.
    let fits =
        suffixes.iter().enumerate().filter_map(|(rank, e)| Some((e.len(), rank, strip_suffix_ignoring_case(stem, e)?)));
    fits.max_by_key(|(len, ..)| *len).map(|(_, rank, rest)| (rank, rest))
}

/// Returns the stem of a label image without its suffix; `None` if it has none.
pub(crate) fn strip_target_suffix(stem: &str) -> Option<&str> {
    strip_suffix(stem, SEGMENTATION.target).map(|(_, rest)| rest)
}

/// Returns the stem without any image or target suffix, which an image and its target have in common.
pub(crate) fn common_stem(stem: &str, task: TrainingTask) -> &str {
    let patterns = name_patterns(task);
    let target = strip_suffix(stem, patterns.target).map(|(_, rest)| rest);
    target.or_else(|| strip_suffix(stem, patterns.image).map(|(_, rest)| rest)).unwrap_or(stem)
}

/// The files of a folder by what their names say. Names of images are without suffixes, in lower case.
#[derive(Default)]
struct SortedFiles {
    /// Label images of the chosen name, each with the name of its image.
    chosen_labels: Vec<(String, PathBuf)>,
    /// Other targets by the name of their image, each with the rank of its suffix.
    targets: BTreeMap<String, Vec<(usize, PathBuf)>>,
    /// Files that are not targets.
    images: Vec<PathBuf>,
    /// `.npy` files with Python objects that are not labels.
    pickles: Vec<PathBuf>,
}

/// Whether a name is that of the labels of a pair that has a stain, which label-free training does not read: `x_labels` beside
/// `x_target`. `stems` are those of all files, in lower case.
fn are_labels_beside_stain(stem: &str, stems: &BTreeSet<String>) -> bool {
    if strip_suffix(stem, LABEL_FREE.target).is_some() {
        return false;
    }
    let Some(name) = strip_target_suffix(stem).map(str::to_lowercase) else { return false };
    LABEL_FREE.target.iter().any(|suffix| stems.contains(&format!("{name}{suffix}")))
}

/// Sorts the files of a folder by their names; `chosen` is the name of the label images that the user chose.
fn sort_files(listing: &Listing, task: TrainingTask, chosen: Option<&str>) -> SortedFiles {
    let patterns = name_patterns(task);
    let stems: BTreeSet<String> =
        listing.files.iter().filter(|f| is_image(f)).map(|f| stem(f).to_lowercase()).collect();
    let mut sorted = SortedFiles::default();
    // Cellpose writes a _seg.npy beside every image: it is used where masks were not exported.
    let mut segmentations: Vec<(String, usize, PathBuf)> = Vec::new();
    for file in listing.files.iter().filter(|f| is_image(f)) {
        let stem = stem(file);
        let is_derived = DERIVED_FILES.iter().any(|e| strip_suffix_ignoring_case(&stem, e).is_some());
        if is_derived || (task == TrainingTask::LabelFree && are_labels_beside_stain(&stem, &stems)) {
            continue;
        }
        // Labels of an image whose own name ends in the chosen one, such as x_nuclei_labels of x_nuclei.
        let has_own_image =
            strip_suffix(&stem, patterns.target).is_some_and(|(_, rest)| stems.contains(&rest.to_lowercase()));
        if let Some(image) = chosen.filter(|_| !has_own_image).and_then(|name| labels::image_stem(&stem, name)) {
            sorted.chosen_labels.push((image.to_lowercase(), file.clone()));
            continue;
        }
        let target = strip_suffix(&stem, patterns.target);
        if holds_objects(file) {
            let is_segmentation = task == TrainingTask::Segmentation && open(file, &OpenOptions::default()).is_ok();
            match target.filter(|_| is_segmentation) {
                Some((rank, rest)) => segmentations.push((rest.to_lowercase(), rank, file.clone())),
                None => sorted.pickles.push(file.clone()),
            }
        } else if let Some((rank, rest)) = target {
            sorted.targets.entry(rest.to_lowercase()).or_default().push((rank, file.clone()));
        } else {
            sorted.images.push(file.clone());
        }
    }
    for (key, rank, file) in segmentations {
        sorted.targets.entry(key).or_insert_with(|| vec![(rank, file)]);
    }
    sorted
}

/// Adds the pairs of one folder, and a problem for each file without a counterpart. Returns the number of pairs.
pub(crate) fn search(
    listing: &Listing,
    task: TrainingTask,
    options: &FindOptions,
    part: Option<Part>,
    found: &mut SearchResults,
) -> usize {
    let patterns = name_patterns(task);
    let chosen = labels::chosen_name(task, options);
    let SortedFiles { chosen_labels, mut targets, mut images, mut pickles } = sort_files(listing, task, chosen);
    // The label image that was chosen by its name is used even if there is one without a name.
    for (key, file) in chosen_labels {
        found.named_labels.insert(file.clone());
        targets.insert(key, vec![(0, file)]);
    }
    let named = match task {
        TrainingTask::Segmentation => take_named_labels(&mut images, &mut targets, patterns),
        TrainingTask::LabelFree => BTreeMap::new(),
    };
    let image_keys = image_keys(images, patterns);
    let mut paired = pair_by_suffixes(&image_keys, &mut targets, patterns, found);
    let mut unpaired_images: Vec<PathBuf> =
        image_keys.iter().map(|w| w.2.clone()).filter(|f| !paired.contains_key(f)).collect();
    unpaired_images.sort();
    unpaired_images.dedup();
    let mut unpaired_targets: Vec<PathBuf> = targets.into_values().flatten().map(|(_, f)| f).collect();
    pair_by_prefixes(patterns, &mut unpaired_images, &mut unpaired_targets, &mut paired);
    let noted: HashSet<PathBuf> = note_named_labels(&image_keys, &named, &paired, chosen, found).into_iter().collect();
    unpaired_images.retain(|file| !noted.contains(file));
    let count = paired.len();
    let mut names = HashSet::new();
    for (image, target) in paired {
        found.add_convention(Convention::Suffixes);
        let stem = stem(&image);
        let name = strip_suffix(&stem, patterns.image).map_or(stem.as_str(), |(_, rest)| rest).to_owned();
        found.add(&name, &image, &target, part, 1.0);
        names.insert(name);
    }
    pickles.retain(|file| !names.contains(common_stem(&stem(file), task)));
    note_pickles(task, &pickles, &mut unpaired_images, found);
    note_unpaired(task, listing, (&unpaired_images, &unpaired_targets), found);
    count
}

/// Adds a problem for each .npy file with Python objects. Its image is no longer reported as one without labels.
fn note_pickles(
    task: TrainingTask,
    pickles: &[PathBuf],
    unpaired_images: &mut Vec<PathBuf>,
    found: &mut SearchResults,
) {
    let next_step = match task {
        TrainingTask::Segmentation => "export masks as TIFF (in Cellpose: File > Save masks as PNG/tif, or --save_tif)",
        TrainingTask::LabelFree => "save it as a numeric array, or as TIFF",
    };
    let problem = "this .npy file contains Python objects, which are not loaded because they can execute code";
    let names: HashSet<String> = pickles.iter().map(|file| common_stem(&stem(file), task).to_owned()).collect();
    unpaired_images.retain(|file| !names.contains(common_stem(&stem(file), task)));
    for file in pickles {
        found.problems.push(Problem::warning(file, problem, next_step));
    }
}

/// Removes the label images whose names state what they hold, such as `x_cells_labels` and `x_labels_cells`, if there is
/// an image `x`. Returns the names of the label images by the lower-case stem of their image.
fn take_named_labels(
    images: &mut Vec<PathBuf>,
    targets: &mut BTreeMap<String, Vec<(usize, PathBuf)>>,
    patterns: &NamePatterns,
) -> BTreeMap<String, Vec<String>> {
    // The label image with the name after the suffix looks like an image without a suffix.
    let after = |file: &PathBuf| -> Option<(String, String)> {
        let stem = stem(file);
        if strip_suffix(&stem, patterns.image).is_some() {
            return None;
        }
        let (rest, name) = labels::split_name(&stem)?;
        Some((strip_suffix(rest, patterns.target)?.1.to_lowercase(), name.to_lowercase()))
    };
    let image_keys: BTreeSet<String> = images
        .iter()
        .filter(|file| after(file).is_none())
        .flat_map(|file| {
            let stem = stem(file);
            let rest = strip_suffix(&stem, patterns.image).map(|(_, rest)| rest.to_lowercase());
            std::iter::once(stem.to_lowercase()).chain(rest)
        })
        .collect();
    let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let has_target = |file: &PathBuf| targets.contains_key(&stem(file).to_lowercase());
    images.retain(|file| match after(file).filter(|(key, _)| image_keys.contains(key) && !has_target(file)) {
        Some((key, name)) => {
            named.entry(key).or_default().push(name);
            false
        }
        None => true,
    });
    targets.retain(|stem, _| {
        let names_an_image = |(key, _): &(&str, &str)| image_keys.contains(*key) && !image_keys.contains(stem);
        match labels::split_name(stem).filter(names_an_image) {
            Some((key, name)) => {
                named.entry(key.to_owned()).or_default().push(name.to_owned());
                false
            }
            None => true,
        }
    });
    named
}

/// Adds a problem for each image with `named` label images, unless one of them is used. Returns the images without a
/// target.
fn note_named_labels(
    image_keys: &[(usize, String, PathBuf)],
    named: &BTreeMap<String, Vec<String>>,
    paired: &BTreeMap<PathBuf, PathBuf>,
    chosen: Option<&str>,
    found: &mut SearchResults,
) -> Vec<PathBuf> {
    let names_by_image: BTreeMap<&PathBuf, &Vec<String>> =
        image_keys.iter().filter_map(|(_, key, image)| Some((image, named.get(key)?))).collect();
    let mut without_target = Vec::new();
    for (image, names) in names_by_image {
        match paired.get(image) {
            None => {
                labels::report_choice(image, names, chosen, found);
                without_target.push(image.clone());
            }
            Some(target) if chosen.is_none() => {
                let (target, others) = (file_name(target), labels::listed(names));
                let problem = format!("its labels are {target}; its named label images are not used ({others})");
                let next_step = message!("to use one of these, set {LABELS_CHANNEL} {IN_SETTINGS} to its name");
                found.problems.push(Problem::warning(image, problem, next_step));
            }
            Some(_) => {}
        }
    }
    without_target
}

/// Returns rank, lower-case stem and path of each image, in the order of preference. Images and targets with the same
/// stem form a pair.
fn image_keys(images: Vec<PathBuf>, patterns: &NamePatterns) -> Vec<(usize, String, PathBuf)> {
    // Images with a suffix take precedence over those without: x_raw.tif before x.tif.
    let mut keys: Vec<(usize, String, PathBuf)> = Vec::new();
    for file in images {
        let stem = stem(&file);
        match strip_suffix(&stem, patterns.image) {
            Some((rank, rest)) => {
                keys.push((rank, rest.to_lowercase(), file.clone()));
                keys.push((patterns.image.len() + 1, stem.to_lowercase(), file));
            }
            None => keys.push((patterns.image.len(), stem.to_lowercase(), file)),
        }
    }
    keys.sort();
    keys
}

/// Pairs images and targets with the same stem, first those in the same case; `targets` keeps those without an image.
fn pair_by_suffixes(
    image_keys: &[(usize, String, PathBuf)],
    targets: &mut BTreeMap<String, Vec<(usize, PathBuf)>>,
    patterns: &NamePatterns,
    found: &mut SearchResults,
) -> BTreeMap<PathBuf, PathBuf> {
    let mut paired: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for in_same_case in [true, false] {
        for (_, key, file) in image_keys {
            if paired.contains_key(file) {
                continue;
            }
            let Some(candidates) = targets.remove(key) else { continue };
            let image_stem = stem(file);
            let image_name = in_own_case(&image_stem, key, patterns);
            let fits = |target: &PathBuf| !in_same_case || stem(target).starts_with(image_name);
            let (mut fitting, others): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|(_, target)| fits(target));
            if !others.is_empty() {
                targets.insert(key.clone(), others);
            }
            fitting.sort();
            let mut fitting = fitting.into_iter();
            let Some((_, best)) = fitting.next() else { continue };
            for (_, other) in fitting {
                let problem =
                    format!("{} also has the target {}, which is used instead", file_name(file), file_name(&best));
                let next_step = "keep only one of them";
                found.problems.push(Problem::warning(&other, problem, next_step));
            }
            paired.insert(file.clone(), best);
        }
    }
    paired
}

/// Returns the stem of an image, with or without its suffix, that is `key` in lower case.
fn in_own_case<'a>(stem: &'a str, key: &str, patterns: &NamePatterns) -> &'a str {
    let rest = strip_suffix(stem, patterns.image).map(|(_, rest)| rest);
    rest.filter(|rest| rest.to_lowercase() == key).unwrap_or(stem)
}

/// Adds a problem for each of these images and targets of a folder, which have no counterpart.
fn note_unpaired(
    task: TrainingTask,
    listing: &Listing,
    (images, targets): (&[PathBuf], &[PathBuf]),
    found: &mut SearchResults,
) {
    let roi_sets: Vec<&PathBuf> = match task {
        TrainingTask::Segmentation => listing.files.iter().filter(|file| is_roi_set(file)).collect(),
        TrainingTask::LabelFree => Vec::new(),
    };
    let (image_word, target_word) = match task {
        TrainingTask::Segmentation => ("_raw (or nothing)", "_masks or _labels"),
        TrainingTask::LabelFree => ("_bf", "_fluo"),
    };
    for file in images {
        let image_stem = stem(file);
        let name = common_stem(&image_stem, task);
        let next_step = if roi_sets.iter().any(|set| is_named_after(set, name)) {
            "to use the ImageJ ROI set beside it as labels, name both in a table with the columns raw,seg".to_owned()
        } else {
            format!("add its target, named with {target_word}, or remove the image")
        };
        found.problems.push(Problem::warning(file, "this image has no target", next_step));
    }
    for file in targets {
        let next_step = format!("add its image, named with {image_word}, or remove the target");
        found.problems.push(Problem::warning(file, "this target has no image", next_step));
    }
}

/// Whether the name of a file is that of an ImageJ ROI set.
fn is_roi_set(file: &Path) -> bool {
    let name = file_name(file);
    let ends_in = |suffix: &str| strip_suffix_ignoring_case(&name, suffix).is_some();
    ends_in(".roi") || (ends_in(".zip") && !ends_in(".zarr.zip"))
}

/// Whether the name of a file begins with `name`, as a word.
fn is_named_after(file: &Path, name: &str) -> bool {
    let rest_follows = |rest: &str| !rest.starts_with(char::is_alphanumeric);
    strip_prefix_ignoring_case(&file_name(file), name).is_some_and(rest_follows)
}

/// Pairs the remaining files by prefix: `img3d` and `mask3d`.
fn pair_by_prefixes(
    patterns: &NamePatterns,
    unpaired_images: &mut Vec<PathBuf>,
    unpaired_targets: &mut Vec<PathBuf>,
    paired: &mut BTreeMap<PathBuf, PathBuf>,
) {
    for (prefix, target_prefix) in patterns.prefixes {
        let mut by_rest: BTreeMap<String, PathBuf> = BTreeMap::new();
        for file in unpaired_images.iter().chain(unpaired_targets.iter()) {
            if let Some(rest) = strip_prefix_ignoring_case(&stem(file), target_prefix) {
                by_rest.insert(rest.to_lowercase(), file.clone());
            }
        }
        let mut used = HashSet::new();
        for file in &*unpaired_images {
            let Some(target) =
                strip_prefix_ignoring_case(&stem(file), prefix).and_then(|r| by_rest.remove(&r.to_lowercase()))
            else {
                continue;
            };
            if target != *file {
                used.extend([file.clone(), target.clone()]);
                paired.insert(file.clone(), target);
            }
        }
        unpaired_images.retain(|file| !used.contains(file));
        unpaired_targets.retain(|file| !used.contains(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_beside_roi_sets_are_reported_with_the_way_to_use_the_sets() {
        let names = ["a_raw.tif", "a.zip", "ab.tif", "c.tif", "c_RoiSet.zip", "d.tif", "d.zarr.zip"];
        let listing = Listing { files: names.map(PathBuf::from).to_vec(), folders: Vec::new() };
        let images = ["a_raw.tif", "ab.tif", "c.tif", "d.tif"].map(PathBuf::from);
        let next_steps = |task| {
            let mut found = SearchResults::default();
            note_unpaired(task, &listing, (&images, &[]), &mut found);
            found.problems.iter().map(|problem| problem.next_step.to_string()).collect::<Vec<_>>()
        };
        let steps = next_steps(TrainingTask::Segmentation);
        let names_sets: Vec<bool> = steps.iter().map(|step| step.contains("in a table")).collect();
        assert_eq!(names_sets, [true, false, true, false], "{steps:?}");
        let steps = next_steps(TrainingTask::LabelFree);
        assert!(steps.iter().all(|step| step.contains("_fluo")), "{steps:?}");
    }
}
