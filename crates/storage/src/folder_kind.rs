//! Kinds of folders, as their marker files state them. They are listed here, although crates above this one write most of them: a
//! folder is replaced or removed only as one of its kind, so no two kinds may have the same name.

crate::listed_names! {
    /// A model package.
    PACKAGE = "package";
    /// The OME-Zarr of a prediction or segmentation.
    PREDICTION = "prediction";
    /// A training run: its checkpoints and best networks.
    TRAINING = "training";
    /// Working folder of a search for training settings.
    SEARCH = "search";
    /// Working folder of a comparison of training in mixed precision with training in 32-bit floats.
    COMPARE_PRECISION = "compare-precision";
    /// Working folder of `tune`.
    TUNE = "tune";
    /// Working folder of `bench`.
    BENCH = "bench";
    /// A folder that is still written, under a hidden name.
    UNFINISHED = "unfinished";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_kinds_have_the_same_name() {
        assert_eq!(ALL.iter().collect::<BTreeSet<_>>().len(), ALL.len());
        assert!(ALL.contains(&PACKAGE) && ALL.contains(&UNFINISHED));
    }
}
