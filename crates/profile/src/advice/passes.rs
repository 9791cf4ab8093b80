//! Advice on what keeps a stack from passing through the network once.

use super::tiles::MAX_DISCARDED;
use super::{Advice, AdviceRule, at_most_faster, percent};
use crate::facts::{InputFacts, TileReason};

/// Tiles of a network that normalizes over them overlap and are averaged.
pub(super) fn tile_normalization(input: &InputFacts) -> Option<(f64, Advice)> {
    let is_caused = |reason: Option<TileReason>| reason == Some(TileReason::NormalizesOverTile);
    let tiles = input.tiles.as_ref().filter(|tiles| tiles.count > 1 && is_caused(tiles.reason))?;
    let share = tiles.discarded_share();
    if share <= MAX_DISCARDED {
        return None;
    }
    let evidence = format!(
        "the network normalizes over each tile, so {} overlapping tiles are averaged, and {} of the computed voxels are \
         overlap",
        tiles.count,
        percent(share)
    );
    let gain = format!("{} faster inference, and no tiles", at_most_faster(share));
    let change = "a model that is trained with batch norms, which are folded into its convolutions: its stacks pass through \
                  the network once";
    Some((share, Advice::new(AdviceRule::TileNormalization, evidence, gain, change)))
}
