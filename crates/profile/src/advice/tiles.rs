//! Advice on tiles: their size, the memory budget that limits it, and how they are joined.

use super::{Advice, AdviceRule, AdvisedSetting, at_most_faster, percent};
use crate::bytes_text;
use crate::facts::{InputFacts, Joining, TileFacts, TileReason};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{MEMORY_BUDGET, OVERLAP, TILE, WITHOUT_BLEND};

/// Share of discarded voxels above which larger tiles are worth a change.
pub(super) const MAX_DISCARDED: f64 = 0.4;
/// Share of voxels computed more than once above which larger tiles are worth a change, if tiles are averaged: the default
/// overlap of a quarter makes 58 % of many tiles.
const MAX_OVERLAPPED: f64 = 0.6;
/// Share of the work that larger tiles must save to be worth a change: a large tile may fit the stack badly.
pub(super) const MIN_SAVED: f64 = 0.05;
/// Share of discarded voxels above which a larger memory budget is worth a change, if it limits the tiles.
const MAX_DISCARDED_IN_BUDGET: f64 = 0.3;
/// Share of a memory budget above which the budget limits the tiles: half of it is the limit of a session.
const USED_BUDGET: f64 = 0.35;

/// Returns the tiles of an input if it is cut into several. Blended tiles that could be cropped are left to [`seams`].
fn several_tiles(input: &InputFacts) -> Option<&TileFacts> {
    let is_final = |t: &&TileFacts| t.joining == Joining::Crop || !t.crop_possible;
    input.tiles.as_ref().filter(|t| t.count > 1).filter(is_final)
}

/// Returns the name of the voxels that are computed but not kept, or computed more than once.
fn surplus_text(joining: Joining) -> &'static str {
    match joining {
        Joining::Crop => "halo",
        Joining::Gaussian => "overlap of tiles",
    }
}

pub(super) fn shape_text([z, y, x]: [usize; 3]) -> String {
    format!("{z},{y},{x}")
}

pub(super) fn small_tiles(input: &InputFacts) -> Option<(f64, Advice)> {
    let tiles = several_tiles(input).filter(|t| t.budget_bytes.is_none())?;
    let share = tiles.discarded_share();
    let (limit, alternative) = match tiles.joining {
        Joining::Crop => (MAX_DISCARDED, Message::default()),
        Joining::Gaussian => (MAX_OVERLAPPED, message!(", or a smaller {OVERLAP}")),
    };
    if share <= limit {
        return None;
    }
    let larger = tiles.larger_tile()?;
    let saved = tiles.saved_share(larger);
    if saved < MIN_SAVED {
        return None;
    }
    let evidence = format!(
        "{} of the computed voxels are {}: {} tiles of {} voxels (planned memory {})",
        percent(share),
        surplus_text(tiles.joining),
        tiles.count,
        shape_text(tiles.tile_zyx),
        bytes_text(tiles.planned_bytes)
    );
    let gain = format!("{} faster inference", at_most_faster(saved));
    let change = message!("{TILE} {}, if there is memory for it{alternative}", shape_text(larger));
    let advice = Advice::new(AdviceRule::SmallTiles, evidence, gain, change);
    Some((share, advice.with(AdvisedSetting::Tile(larger))))
}

pub(super) fn limited_by_budget(input: &InputFacts) -> Option<(f64, Advice)> {
    let tiles = several_tiles(input)?;
    let budget_bytes = tiles.budget_bytes?;
    let share = tiles.discarded_share();
    let limit = match tiles.joining {
        Joining::Crop => MAX_DISCARDED_IN_BUDGET,
        Joining::Gaussian => MAX_OVERLAPPED,
    };
    if share <= limit || (tiles.planned_bytes as f64) < USED_BUDGET * budget_bytes as f64 {
        return None;
    }
    let evidence = format!(
        "the memory budget of {} allows {} tiles of {} voxels, of which {} are {}",
        bytes_text(budget_bytes),
        tiles.count,
        shape_text(tiles.tile_zyx),
        percent(share),
        surplus_text(tiles.joining)
    );
    let doubled_mib = (budget_bytes >> 20).max(1).saturating_mul(2);
    // With a larger budget for smaller halos, some of this work remains.
    let (larger_mib, effect, reached) = match tiles.reason {
        Some(TileReason::Memory { pass_budget_bytes }) => (
            doubled_mib.max(pass_budget_bytes.div_ceil(1 << 20)),
            ": the stack is then expected to pass through the network once",
            "",
        ),
        _ => (doubled_mib, "", " without a budget, less with this one"),
    };
    let gain = format!("{} faster inference{reached}", at_most_faster(share));
    let change = message!("{MEMORY_BUDGET} {larger_mib}M, or no budget{effect}");
    let advice = Advice::new(AdviceRule::MemoryBudget, evidence, gain, change);
    Some((share, advice.with(AdvisedSetting::MemoryBudget(larger_mib.saturating_mul(1 << 20)))))
}

pub(super) fn seams(input: &InputFacts) -> Option<(f64, Advice)> {
    let tiles = input.tiles.as_ref().filter(|t| t.joining == Joining::Gaussian && t.crop_possible && t.count > 1)?;
    let energy = input.seam_energy.map_or_else(String::new, |energy| format!(" (seam energy {energy:.3})"));
    let evidence = format!(
        "{} overlapping tiles are averaged{energy}, but the network's normalization does not depend on the tile",
        tiles.count
    );
    let gain = "the same result as without tiles, hence no seams".to_owned();
    let advice = Advice::new(AdviceRule::Seams, evidence, gain, message!("{WITHOUT_BLEND}"));
    Some((input.seam_energy.unwrap_or(0.0), advice.with(AdvisedSetting::DefaultBlend)))
}
