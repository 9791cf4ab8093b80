//! Names of files that belong together: which ground truth a prediction is compared with, and which files are labels.

use crate::JobError;
use crate::job_record::absolute;
use crate::predict::list_inputs;
use crate::predict::zarr::labels_path;
use cytoscope_formats::{composed, stack_stem};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name suffixes that denote the role of a file in its pair; they are removed to find matching files.
const ROLES: [&str; 17] = [
    "raw",
    "probability",
    "labels",
    "label",
    "clean",
    "masks",
    "mask",
    "img",
    "image",
    "gt",
    "truth",
    "seg",
    "pred",
    "prediction",
    "target",
    "signal",
    "objects",
];

/// The [`ROLES`] of images that a model reads: such a file is neither a prediction nor ground truth.
const INPUT_ROLES: [&str; 4] = ["raw", "img", "image", "signal"];

/// The [`ROLES`] of ground truth that need not be labels.
const TRUTH_ROLES: [&str; 2] = ["truth", "target"];

/// The one of [`ROLES`] that names the results of models that predict a stain.
const STAIN_ROLE: &str = "prediction";

/// Role of a file in a folder, by its name; of several files with the same key, the one with the greatest role is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FileRole {
    /// An image that a model reads, or one without a role.
    Input,
    /// A prediction or ground truth that is not labels.
    Intensities,
    Labels,
}

impl FileRole {
    fn of(path: &Path) -> Self {
        // The folder of a prediction has its labels in it.
        if looks_like_labels(path) || labels_path(path) != path {
            return Self::Labels;
        }
        let word = last_word(path);
        let has_one_of = |roles: &[&str]| roles.contains(&word.as_str());
        if has_one_of(&ROLES) && !has_one_of(&INPUT_ROLES) { Self::Intensities } else { Self::Input }
    }
}

/// Returns the last word of a file name in lower case, which may be one of the [`ROLES`].
fn last_word(path: &Path) -> String {
    let stem = stack_stem(path).to_lowercase();
    stem.rsplit(['_', '-']).next().unwrap_or_default().to_owned()
}

/// Returns the part of a file name that both files of a pair have in common.
pub(crate) fn pair_key(path: &Path) -> String {
    let mut key = composed(&stack_stem(path)).to_lowercase();
    while let Some((front, role)) = key.rsplit_once(['_', '-']) {
        if front.is_empty() || !ROLES.contains(&role) {
            break;
        }
        key = front.to_owned();
    }
    key
}

/// Returns whether a file name suggests a label image.
pub(crate) fn looks_like_labels(path: &Path) -> bool {
    let given = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    // These words name images without labels.
    let words = ["labelfree", "label-free", "label_free", "label free", "unlabel"];
    let name = words.iter().fold(given.to_lowercase(), |name, word| name.replace(word, ""));
    // As a part of other words, as in "length" and "wingtip", the letters say nothing.
    let is_truth = || given.contains("GT") || name.split(|c: char| !c.is_ascii_alphabetic()).any(|word| word == "gt");
    ["label", "mask", "seg"].iter().any(|part| name.contains(part)) || is_truth()
}

/// Returns the files to score by pair key: of several with the same key, the one with the greatest [`FileRole`]. Also returns
/// notes on files that are left out although they have that role, too, or are ground truth by their name.
pub(super) fn files_by_key(path: &Path) -> Result<(BTreeMap<String, PathBuf>, Vec<String>), JobError> {
    scored_files(path, &|_| false)
}

/// Like [`files_by_key`], for the ground truth of these predictions: a predicted stain is compared with a target of its pair, if
/// there is one, and not with labels.
pub(super) fn truths_by_key(
    path: &Path,
    predictions: &BTreeMap<String, PathBuf>,
) -> Result<(BTreeMap<String, PathBuf>, Vec<String>), JobError> {
    scored_files(path, &|key| predictions.get(key).is_some_and(|file| last_word(file) == STAIN_ROLE))
}

/// Returns the files to score by pair key, and the notes of [`files_by_key`]; `is_stain` says whether a key is that of a predicted
/// stain.
fn scored_files(
    path: &Path,
    is_stain: &dyn Fn(&str) -> bool,
) -> Result<(BTreeMap<String, PathBuf>, Vec<String>), JobError> {
    let is_truth = |file: &Path| TRUTH_ROLES.contains(&last_word(file).as_str());
    let is_target = |file: &Path| is_truth(file) && FileRole::of(file) == FileRole::Intensities;
    let mut all: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in list_inputs(&[path.to_owned()])? {
        all.entry(pair_key(&file)).or_default().push(file);
    }
    let (mut found, mut notes) = (BTreeMap::new(), Vec::new());
    for (key, files) in all {
        let greatest = files.iter().map(|file| FileRole::of(file)).max();
        let has_target = is_stain(&key) && files.iter().any(|file| is_target(file));
        let is_scored =
            |file: &PathBuf| if has_target { is_target(file) } else { Some(FileRole::of(file)) == greatest };
        let Some(kept) = files.iter().find(|file| is_scored(file)) else { continue };
        let is_noted = |file: &&PathBuf| *file != kept && (is_scored(file) || is_truth(file));
        notes.extend(files.iter().filter(is_noted).map(|left_out| {
            format!(
                "{} is not scored, because {} belongs to the same pair by its name: move one of them to another folder",
                absolute(left_out).display(),
                absolute(kept).display()
            )
        }));
        found.insert(key, kept.clone());
    }
    Ok((found, notes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn names_of_label_images_are_recognized() {
        for (name, is_label_image) in [
            ("a_gt.tif", true),
            ("gt.npy", true),
            ("a-GT1.tif", true),
            ("cellmask.tif", true),
            ("a_seg.npy", true),
            ("wingtip.tif", false),
            ("a_target.tif", false),
            ("cellsGT01.tif", true),
            ("a_Labels.tif", true),
            ("seg_1.tif", true),
            ("length_3.tif", false),
            ("a_raw.tif", false),
            ("labelfree_raw.tif", false),
            ("Label-free_target.tif", false),
            ("unlabeled_3.tif", false),
            ("labelfree_labels.tif", true),
        ] {
            assert_eq!(looks_like_labels(Path::new(name)), is_label_image, "{name}");
        }
    }

    #[test]
    fn ground_truth_beside_labels_of_the_same_pair_is_named() {
        let folder = tempfile::tempdir().unwrap();
        // The map of a prediction is not meant to be scored, and "b" has a single file.
        for name in ["a_masks.tif", "a_truth.tif", "a_raw.tif", "b_truth.tif", "c_labels.tif", "c_probability.tif"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let (found, notes) = files_by_key(folder.path()).unwrap();
        let names: Vec<&str> =
            found.values().filter_map(|path| path.file_name().and_then(|name| name.to_str())).collect();
        assert_eq!(names, ["a_masks.tif", "b_truth.tif", "c_labels.tif"]);
        let [note] = notes.as_slice() else { panic!("{notes:?}") };
        let (left_out, reason) = note.split_once(" is not scored, because ").unwrap();
        assert!(left_out.ends_with("a_truth.tif") && reason.contains("a_masks.tif belongs to the same pair"), "{note}");
    }

    #[test]
    fn a_predicted_stain_is_compared_with_the_target_and_not_with_labels() {
        let (predictions, truths) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let predicted = ["a_raw_prediction", "b_raw_labels", "c_raw_prediction", "d_prediction", "e_prediction"];
        for name in predicted.map(|name| format!("{name}.tif")) {
            std::fs::write(predictions.path().join(name), "").unwrap();
        }
        // Ground truth of d is labels, and the prediction of e is beside its target.
        let beside = ["d_seg_truth.tif", "e_prediction.tif", "e_target.tif"];
        let first = ["a_raw.tif", "a_target.tif", "a_labels.tif", "b_target.tif", "b_labels.tif", "c_labels.tif"];
        for name in first.into_iter().chain(beside) {
            std::fs::write(truths.path().join(name), "").unwrap();
        }
        let (predictions, _) = files_by_key(predictions.path()).unwrap();
        let (found, notes) = truths_by_key(truths.path(), &predictions).unwrap();
        let names: Vec<&str> =
            found.values().filter_map(|path| path.file_name().and_then(|name| name.to_str())).collect();
        assert_eq!(names, ["a_target.tif", "b_labels.tif", "c_labels.tif", "d_seg_truth.tif", "e_target.tif"]);
        let [note] = notes.as_slice() else { panic!("{notes:?}") };
        assert!(note.contains("b_target.tif is not scored"), "{note}");
    }

    #[test]
    fn files_of_a_pair_have_the_same_key() {
        for name in [
            "emb1_t2_raw.tif",
            "emb1_t2_labels.tif",
            "emb1_t2_raw_labels.tif",
            "emb1_t2_raw_probability.tif",
            "emb1_t2_prediction.tif",
            "EMB1_T2_labels_clean.tif",
            "emb1_t2.ome.tif",
            "emb1_t2.ome.tf8",
            "emb1_t2.zarr.zip",
            "emb1_t2_seg.npy",
        ] {
            assert_eq!(pair_key(Path::new(name)), "emb1_t2", "{name}");
        }
        assert_eq!(pair_key(Path::new("raw.tif")), "raw");
        // The same text in both forms of Unicode.
        assert_eq!(pair_key(Path::new("e\u{301}mb_raw.tif")), pair_key(Path::new("\u{c9}mb_labels.tif")));
    }
}
