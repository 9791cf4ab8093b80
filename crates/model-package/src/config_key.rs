//! Keys of the section `config.cytoscope` of a package's description ([`crate::Package::config`]), for the crates that write and
//! read it. docs/packages.md describes the entries.

cytoscope_storage::listed_names! {
    /// What the model predicts: `segmentation` or `labelfree`.
    TASK = "task";
    /// What the channels of the first output mean: the target of the training run.
    TARGET = "target";
    /// Settings of the segmentation.
    SEGMENT = "segment";
    /// Channel of the first output that is segmented.
    SEGMENT_CHANNEL = "segment_channel";
    /// Channel of the first output that separates touching objects.
    SEED_CHANNEL = "seed_channel";
    /// Nominal object diameter in µm.
    OBJECT_DIAMETER_UM = "object_diameter_um";
    /// Median intensity of objects after preprocessing.
    OBJECT_INTENSITY = "object_intensity";
    /// Record of the training run.
    TRAINING = "training";
    /// Record of the quantization.
    QUANTIZATION = "quantization";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_described() {
        let page = include_str!("../../../docs/packages.md");
        let rows: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next()).collect();
        for key in ALL {
            assert!(rows.iter().any(|row| row.contains(&format!("`{key}`"))), "docs/packages.md has no row of {key}");
        }
    }
}
