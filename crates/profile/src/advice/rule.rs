//! The rules that give advice.

use serde::{Deserialize, Serialize};

/// The rule that a piece of advice comes from.
///
/// `tests/cli/advice.rs` and `advice_gpu.rs` provoke each rule by runs of the program. Some need what a test cannot arrange: it is
/// written into the record of a run, and the rule says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdviceRule {
    /// Training steps wait for data.
    DataWait,
    /// The device has memory for larger training batches, which use it better.
    SmallBatch,
    /// Training computes activations twice to save memory.
    Recomputation,
    /// Small tiles compute many voxels that are discarded.
    SmallTiles,
    /// The memory budget is the reason for small tiles.
    MemoryBudget,
    /// The network normalizes over the tile, so that tiles overlap.
    TileNormalization,
    /// The run took nearly all memory of the machine. Tested with the record of a run on a machine with less memory: a run that
    /// provokes it would disturb everything else on the machine.
    MemoryPressure,
    /// Copies between host and device take a large part of the time of a prediction or a training run. Tested with the records of
    /// runs with longer copies: a GPU that is emulated in software computes for much longer than it copies.
    Transfers,
    /// The tiles are so small that launching the kernels takes a GPU about as long as running them. Tested with the record of a
    /// prediction with shorter steps: it takes a fast GPU, too.
    LaunchOverhead,
    /// Float operators take a large part of the time of an int8 network.
    FloatOperators,
    /// Tiles are blended although cropping would leave no seams.
    Seams,
    /// Another device was faster in the probe.
    SlowerDevice,
    /// There are more threads than cores.
    ThreadsAboveCores,
    /// Threads got too little CPU time.
    IdleThreads,
    /// The same work took longer at the end of the run than at its start. Tested with the record of a run with other times: heat
    /// and other programs are outside of a test, and a shorter run than several seconds is not judged.
    Slowdown,
    /// The estimate of the object diameter is uncertain.
    UncertainDiameter,
    /// No objects were found with the diameter that the user gave.
    WrongDiameter,
    /// The voxel size is unknown.
    MissingVoxelSize,
    /// The voxel size of the file does not fit its objects.
    WrongVoxelSize,
}

impl AdviceRule {
    /// Returns the name of the rule, as in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::DataWait => "data_wait",
            Self::SmallBatch => "small_batch",
            Self::Recomputation => "recomputation",
            Self::SmallTiles => "small_tiles",
            Self::MemoryBudget => "memory_budget",
            Self::TileNormalization => "tile_normalization",
            Self::MemoryPressure => "memory_pressure",
            Self::Transfers => "transfers",
            Self::LaunchOverhead => "launch_overhead",
            Self::FloatOperators => "float_operators",
            Self::Seams => "seams",
            Self::SlowerDevice => "slower_device",
            Self::ThreadsAboveCores => "threads_above_cores",
            Self::IdleThreads => "idle_threads",
            Self::Slowdown => "slowdown",
            Self::UncertainDiameter => "uncertain_diameter",
            Self::WrongDiameter => "wrong_diameter",
            Self::MissingVoxelSize => "missing_voxel_size",
            Self::WrongVoxelSize => "wrong_voxel_size",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ALL: [AdviceRule; 19] = [
        AdviceRule::DataWait,
        AdviceRule::SmallBatch,
        AdviceRule::Recomputation,
        AdviceRule::SmallTiles,
        AdviceRule::MemoryBudget,
        AdviceRule::TileNormalization,
        AdviceRule::MemoryPressure,
        AdviceRule::Transfers,
        AdviceRule::LaunchOverhead,
        AdviceRule::FloatOperators,
        AdviceRule::Seams,
        AdviceRule::SlowerDevice,
        AdviceRule::ThreadsAboveCores,
        AdviceRule::IdleThreads,
        AdviceRule::Slowdown,
        AdviceRule::UncertainDiameter,
        AdviceRule::WrongDiameter,
        AdviceRule::MissingVoxelSize,
        AdviceRule::WrongVoxelSize,
    ];

    #[test]
    fn rules_have_the_same_names_in_reports_and_tables() {
        for rule in ALL {
            assert_eq!(json!(rule), rule.name());
        }
        let is_name = |line: &&str| line.trim_start().starts_with("Self::");
        assert_eq!(include_str!("rule.rs").lines().filter(is_name).count(), ALL.len(), "a rule is missing in ALL");
    }

    #[test]
    fn every_rule_is_in_the_guide_and_provoked_by_a_test() {
        let guide = include_str!("../../../../docs/guide/measuring.md");
        let tests =
            [include_str!("../../../../tests/cli/advice.rs"), include_str!("../../../../tests/cli/advice_gpu.rs")];
        for name in ALL.map(AdviceRule::name) {
            assert!(guide.contains(&format!("\n| `{name}` | ")), "{name} is not in docs/guide/measuring.md");
            assert!(tests.iter().any(|text| text.contains(&format!("\"{name}\")"))), "no test provokes {name}");
        }
    }
}
