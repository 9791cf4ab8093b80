//! Keys of the section `config.cytoscope` of a package's description ([`crate::Package::config`]), for the crates that write and
//! read it. docs/packages.md describes the entries.

/// What the model predicts: `segmentation` or `labelfree`.
pub const TASK: &str = "task";
/// What the channels of the first output mean: the target of the training run.
pub const TARGET: &str = "target";
/// Settings of the segmentation.
pub const SEGMENT: &str = "segment";
/// Channel of the first output that is segmented.
pub const SEGMENT_CHANNEL: &str = "segment_channel";
/// Channel of the first output that separates touching objects.
pub const SEED_CHANNEL: &str = "seed_channel";
/// Nominal object diameter in µm.
pub const OBJECT_DIAMETER_UM: &str = "object_diameter_um";
/// Median intensity of objects after preprocessing.
pub const OBJECT_INTENSITY: &str = "object_intensity";
/// Record of the training run.
pub const TRAINING: &str = "training";
/// Record of the quantization.
pub const QUANTIZATION: &str = "quantization";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_described() {
        let page = include_str!("../../../docs/packages.md");
        let all = [
            TASK,
            TARGET,
            SEGMENT,
            SEGMENT_CHANNEL,
            SEED_CHANNEL,
            OBJECT_DIAMETER_UM,
            OBJECT_INTENSITY,
            TRAINING,
            QUANTIZATION,
        ];
        let rows: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next()).collect();
        for key in all {
            assert!(rows.iter().any(|row| row.contains(&format!("`{key}`"))), "docs/packages.md has no row of {key}");
        }
    }
}
