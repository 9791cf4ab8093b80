//! Why a volume is predicted in tiles instead of one pass.

use super::{BASE_BYTES, Budget, Planner, TileRequest, TiledVolume, is_one_tile, labeling_bytes};
use crate::{JobError, Model};
use cytoscope_engine::{DeviceId, NotRolling};
use cytoscope_graph_passes::analysis;
use cytoscope_profile::bytes_text;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::MEMORY_BUDGET;
use serde::{Deserialize, Serialize};

/// Memory is stated in whole MiB.
const MIB: u64 = 1 << 20;
/// Steps in which the least memory of a pass is looked for: this fraction of the smallest pass.
const LEAST_PARTS: u64 = 16;

/// Why a volume does not pass through the network once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum NoPass {
    /// The user gave a tile size.
    TileGiven,
    /// The user chose how tiles are joined.
    BlendGiven,
    /// The run that is repeated, or the machine profile, uses tiles.
    Recorded,
    /// The network normalizes over the tile.
    NormalizesOverTile,
    /// Each output voxel depends on the whole tile in another way.
    WholeTile,
    /// The network takes single slices.
    SingleSlices,
    /// The network accepts inputs of one size only.
    FixedSize,
    /// The device computes in tiles only.
    Device {
        /// Device that was chosen for the job.
        device: DeviceId,
    },
    /// An operator cannot be computed slice by slice.
    Operator {
        /// ONNX name of the operator.
        op: String,
        /// Name of the node in the model.
        node: String,
    },
    /// The network has values that are not volumes.
    Interface {
        /// What was found.
        found: String,
    },
    /// A pass does not fit the memory budget, or the part of it that a network may use.
    Memory {
        /// Bytes of the smallest pass that was found.
        needed_bytes: u64,
        /// Bytes that it may use.
        budget_bytes: u64,
    },
    /// A pass computes no fewer voxels than tiles, such as for a stack that one tile covers.
    NotCheaper,
    /// The network cannot be planned.
    Network {
        /// The error message.
        problem: String,
    },
}

impl NoPass {
    /// Returns the reason as a clause.
    pub fn clause(&self) -> String {
        match self {
            Self::TileGiven => "a tile size was given".to_owned(),
            Self::BlendGiven => "a way of joining tiles was given".to_owned(),
            Self::Recorded => "the recorded run or the machine profile uses tiles".to_owned(),
            Self::NormalizesOverTile => "the network normalizes over the tile".to_owned(),
            Self::WholeTile => "each output voxel of the network depends on the whole tile".to_owned(),
            Self::SingleSlices => "the network takes single slices".to_owned(),
            Self::FixedSize => "the network accepts inputs of one size only".to_owned(),
            Self::Device { device } => format!("{device} computes in tiles"),
            Self::Operator { op, node } => format!("{op} (node \"{node}\") cannot be computed slice by slice"),
            Self::Interface { found } => format!("the network has {found}, which cannot be computed slice by slice"),
            Self::Memory { needed_bytes, budget_bytes } => {
                format!(
                    "one pass needs at least {}, but only {} may be used",
                    bytes_text(*needed_bytes),
                    bytes_text(*budget_bytes)
                )
            }
            Self::NotCheaper => "a pass would compute no fewer voxels".to_owned(),
            Self::Network { problem } => format!("no pass can be planned ({problem})"),
        }
    }

    /// Returns a memory budget in bytes with which a pass is expected to fit, if the memory is the reason.
    pub fn sufficient_budget_bytes(&self) -> Option<u64> {
        match self {
            // Slabs of several slices are faster than those of one, and need more.
            Self::Memory { needed_bytes, .. } => Some(needed_bytes.saturating_add(needed_bytes / 4)),
            _ => None,
        }
    }

    /// Returns the error of tiles that exceed the memory budget, with the memory of a pass if that exceeds it by less.
    pub(super) fn or_memory_of_pass(&self, error: JobError) -> JobError {
        match (error, self.sufficient_budget_bytes()) {
            (JobError::Budget { needed_bytes, budget_bytes, next_step }, Some(pass_bytes))
                if (budget_bytes..needed_bytes).contains(&pass_bytes) =>
            {
                JobError::Budget { needed_bytes: pass_bytes, budget_bytes, next_step }
            }
            (error, _) => error,
        }
    }

    /// Returns a note with the reason and with what would make a pass possible; `None` if the user asked for tiles, or if
    /// they are the rule.
    pub(super) fn note(&self) -> Option<Message> {
        let change: Message = match self {
            Self::TileGiven
            | Self::BlendGiven
            | Self::Recorded
            | Self::SingleSlices
            | Self::Device { .. }
            | Self::NotCheaper => return None,
            Self::NormalizesOverTile => {
                ": a network with batch norms, which are folded into the convolutions, passes over a stack once".into()
            }
            Self::FixedSize => {
                ": if it is exported to ONNX with dynamic axes, the results do not depend on tiles".into()
            }
            Self::Memory { .. } => self.sufficient_budget_bytes().map_or_else(Message::default, |bytes| {
                message!(": give {MEMORY_BUDGET} {}M or more for one pass over the stack", bytes.div_ceil(1 << 20))
            }),
            Self::WholeTile | Self::Operator { .. } | Self::Interface { .. } | Self::Network { .. } => {
                Message::default()
            }
        };
        Some(message!("predicted in tiles, because {}{change}", self.clause()))
    }
}

/// Returns memory budgets in ascending order, in whole MiB, with which a pass may be possible: from the estimate of its least
/// memory on, but at least `compiling_bytes`.
fn tried_budgets(least_bytes: u64, compiling_bytes: u64) -> impl Iterator<Item = u64> {
    let tried = (0..LEAST_PARTS / 4).map(move |parts| least_bytes.saturating_add(least_bytes / LEAST_PARTS * parts));
    tried.filter_map(move |bytes| bytes.max(compiling_bytes).checked_next_multiple_of(MIB))
}

impl Planner<'_> {
    /// Returns why the network never passes over a volume; `None` if the device and the memory decide that.
    pub(super) fn never_passes(&self) -> Option<NoPass> {
        match self.model {
            Model { reach: Some(_), .. } => None,
            model if is_one_tile(model, self.volume.shape) => Some(NoPass::NotCheaper),
            Model { fixed, .. } if fixed.contains(&true) => Some(NoPass::FixedSize),
            Model { spatial_axes: 3, graph, .. } if analysis::depends_on_tile_statistics(graph) => {
                Some(NoPass::NormalizesOverTile)
            }
            Model { spatial_axes: 3, .. } => Some(NoPass::WholeTile),
            _ => Some(NoPass::SingleSlices),
        }
    }

    /// Returns why tiles that were requested are used instead of a pass.
    pub(super) fn why_requested(&self) -> NoPass {
        let TileRequest { tile, recorded, .. } = &self.resolved.tiles;
        self.never_passes().unwrap_or(match (tile, recorded) {
            (Some(_), _) => NoPass::TileGiven,
            (None, Some(_)) => NoPass::Recorded,
            (None, None) => NoPass::BlendGiven,
        })
    }

    /// Returns the error of tiles that exceed the memory budget, with the memory of a pass if that exceeds it by less: the least
    /// with which one can be planned, or else that with which it is expected to fit.
    pub(super) fn with_least_memory(&self, error: JobError, reason: &NoPass) -> JobError {
        let stated = reason.or_memory_of_pass(error);
        // With more memory, a reader may keep more.
        let NoPass::Memory { needed_bytes: least_bytes, .. } = *reason else { return stated };
        let (needed_bytes, budget_bytes, next_step) = match stated {
            JobError::Budget { needed_bytes, budget_bytes, next_step } if self.resolved.reader_bytes == 0 => {
                (needed_bytes, budget_bytes, next_step)
            }
            other => return other,
        };
        let compiled_bytes = self.model.compiled_weight_bytes(self.resolved.precision());
        let compiling_bytes = BASE_BYTES.saturating_add(self.volume.held_bytes).saturating_add(compiled_bytes);
        let tried = tried_budgets(least_bytes, compiling_bytes);
        let least = tried.filter(|bytes| (budget_bytes..needed_bytes).contains(bytes)).find(|bytes| {
            let budget = Budget { bytes: *bytes, ..self.budget };
            let volume = TiledVolume { later_bytes: labeling_bytes(self.resolved, budget), ..self.volume };
            Planner { budget, volume, ..*self }.pass().is_ok()
        });
        JobError::Budget { needed_bytes: least.unwrap_or(needed_bytes), budget_bytes, next_step }
    }

    /// Returns why the engine passes no volume that is extended to `tile`.
    pub(super) fn refused(&self, refusal: NotRolling, tile: [usize; 3]) -> NoPass {
        match refusal {
            NotRolling::Device { .. } => NoPass::Device { device: self.resolved.engine.choice.id },
            NotRolling::Operator { op, node } => NoPass::Operator { op, node },
            // Networks on slices are known to be predicted slice by slice.
            NotRolling::Interface { .. } if self.model.spatial_axes == 2 => NoPass::SingleSlices,
            NotRolling::Interface { found } => NoPass::Interface { found },
            NotRolling::Budget { needed_bytes, budget_bytes } => {
                let around_bytes = self.bytes_around_session(tile, 1, self.smallest_band(tile));
                NoPass::Memory {
                    needed_bytes: needed_bytes.saturating_add(around_bytes).max(self.bytes_after_pass(0)),
                    budget_bytes: budget_bytes.saturating_add(around_bytes).min(self.budget.bytes),
                }
            }
            other => NoPass::Network { problem: other.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
    use super::*;

    #[test]
    fn a_note_says_what_would_make_a_pass_possible() {
        let memory = NoPass::Memory { needed_bytes: 400 << 20, budget_bytes: 300 << 20 };
        let note = memory.note().unwrap();
        assert!(note.contains("at least 400 MiB, but only 300 MiB may be used"), "{note}");
        assert!(note.contains("--memory-budget 500M"), "{note}");
        assert!(NoPass::NormalizesOverTile.note().unwrap().contains("batch norms"));
        let operator = NoPass::Operator { op: "Softmax".to_owned(), node: "attention".to_owned() };
        assert!(operator.note().unwrap().contains("Softmax (node \"attention\")"));
        // The user knows why, or expects tiles.
        for known in [NoPass::TileGiven, NoPass::BlendGiven, NoPass::SingleSlices, NoPass::NotCheaper] {
            assert_eq!(known.note(), None);
        }
    }

    #[test]
    fn the_memory_of_a_pass_is_stated_if_tiles_need_more() {
        let (needed_bytes, budget_bytes, next_step) = (44 << 30, 4 << 30, Message::default());
        let error = || JobError::Budget { needed_bytes, budget_bytes, next_step: next_step.clone() };
        let stated = |reason: NoPass| match reason.or_memory_of_pass(error()) {
            JobError::Budget { needed_bytes, .. } => needed_bytes,
            other => panic!("{other}"),
        };
        let memory = |needed_bytes: u64| NoPass::Memory { needed_bytes, budget_bytes };
        assert_eq!(stated(memory(8 << 30)), 10 << 30);
        assert_eq!(stated(memory(80 << 30)), needed_bytes);
        assert_eq!(stated(NoPass::NotCheaper), needed_bytes);
    }

    #[test]
    fn the_budgets_that_are_tried_are_whole_mebibytes_from_the_estimate_on() {
        let tried = |least_bytes, compiling_bytes| tried_budgets(least_bytes, compiling_bytes).collect::<Vec<u64>>();
        assert_eq!(tried((160 << 20) - 5, 0), [160 << 20, 170 << 20, 180 << 20, 190 << 20]);
        assert_eq!(tried(16 << 20, 18 << 20), [18 << 20, 18 << 20, 18 << 20, 19 << 20]);
        assert!(tried(u64::MAX, 0).is_empty(), "no memory suffices");
    }

    #[test]
    fn a_reason_is_stored_with_its_name() {
        let memory = NoPass::Memory { needed_bytes: 5, budget_bytes: 4 };
        let json = serde_json::to_value(&memory).unwrap();
        assert_eq!(json, serde_json::json!({"reason": "memory", "needed_bytes": 5, "budget_bytes": 4}));
        assert_eq!(serde_json::from_value::<NoPass>(json).unwrap(), memory);
    }
}
