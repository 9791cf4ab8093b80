//! Kinds of folders, as their marker files state them. They are listed here, although crates above this one write most of them: a
//! folder is replaced or removed only as one of its kind, so no two kinds may have the same name.

/// A model package.
pub const PACKAGE: &str = "package";
/// The OME-Zarr of a prediction or segmentation.
pub const PREDICTION: &str = "prediction";
/// A training run: its checkpoints and best networks.
pub const TRAINING: &str = "training";
/// Working folder of a search for training settings.
pub const SEARCH: &str = "search";
/// Working folder of a comparison of training in mixed precision with training in 32-bit floats.
pub const COMPARE_PRECISION: &str = "compare-precision";
/// Working folder of `tune`.
pub const TUNE: &str = "tune";
/// Working folder of `bench`.
pub const BENCH: &str = "bench";
/// A folder that is still written, under a hidden name.
pub const UNFINISHED: &str = "unfinished";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_kinds_have_the_same_name() {
        let all = [PACKAGE, PREDICTION, TRAINING, SEARCH, COMPARE_PRECISION, TUNE, BENCH, UNFINISHED];
        assert_eq!(BTreeSet::from(all).len(), all.len());
        let listed = include_str!("folder_kind.rs").lines().filter(|line| line.starts_with("pub const ")).count();
        assert_eq!(listed, all.len(), "a kind is missing in this test");
    }
}
