//! Names of files that belong together: which ground truth a prediction is compared with, and which files are labels.

use crate::job_record::absolute;
use crate::predict::list_inputs;
use crate::predict::zarr::labels_path;
use crate::{JobError, stack_stem};
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
        let stem = stack_stem(path).to_lowercase();
        let role = stem.strip_suffix(".ome").unwrap_or(&stem).rsplit(['_', '-']).next().unwrap_or_default();
        if ROLES.contains(&role) && !INPUT_ROLES.contains(&role) { Self::Intensities } else { Self::Input }
    }
}

/// Returns the part of a file name that both files of a pair have in common.
pub(crate) fn pair_key(path: &Path) -> String {
    let stem = stack_stem(path).to_lowercase();
    // As in `.ome.btf` and `.ome.tf8`.
    let mut key = stem.strip_suffix(".ome").filter(|front| !front.is_empty()).unwrap_or(&stem).to_owned();
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
/// notes on files that are left out although they have that role, too.
pub(super) fn files_by_key(path: &Path) -> Result<(BTreeMap<String, PathBuf>, Vec<String>), JobError> {
    let mut all: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in list_inputs(&[path.to_owned()])? {
        all.entry(pair_key(&file)).or_default().push(file);
    }
    let (mut found, mut notes) = (BTreeMap::new(), Vec::new());
    for (key, files) in all {
        let role = files.iter().map(|file| FileRole::of(file)).max();
        let mut with_role = files.into_iter().filter(|file| Some(FileRole::of(file)) == role);
        let Some(kept) = with_role.next() else { continue };
        notes.extend(with_role.map(|left_out| {
            format!(
                "{} is not scored, because {} belongs to the same pair by its name: move one of them to another folder",
                absolute(&left_out).display(),
                absolute(&kept).display()
            )
        }));
        found.insert(key, kept);
    }
    Ok((found, notes))
}

#[cfg(test)]
mod tests {
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
    }
}
