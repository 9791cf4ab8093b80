//! How many tiles a GPU computes together.

/// Batch sizes to choose from, largest first. There are few, because kernels are timed for each size.
const BATCH_SIZES: [usize; 3] = [8, 4, 2];
/// Maximum ratio of computed tiles to tiles of a slab, as numerator and denominator: the last batch is filled up by repeating
/// a tile.
const MAX_COMPUTED: [usize; 2] = [7, 6];

/// Returns the number of tiles to compute together, of `tiles` in a slab: the largest batch for which `fits` is true and that
/// repeats few tiles; 1 if there is none.
pub(super) fn batch_size(tiles: usize, fits: impl Fn(usize) -> bool) -> usize {
    let [numerator, denominator] = MAX_COMPUTED;
    let repeats_few =
        |batch: usize| tiles.next_multiple_of(batch).saturating_mul(denominator) <= tiles.saturating_mul(numerator);
    BATCH_SIZES.into_iter().find(|n| *n <= tiles && repeats_few(*n) && fits(*n)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_large_fit_the_memory_and_compute_few_tiles_twice() {
        let sizes = [1, 2, 3, 4, 7, 8, 9, 15, 16, 64, 100].map(|tiles| batch_size(tiles, |_| true));
        assert_eq!(sizes, [1, 2, 1, 4, 4, 8, 2, 8, 8, 8, 8]);
        assert_eq!(batch_size(64, |n| n <= 5), 4);
        assert_eq!(batch_size(64, |_| false), 1);
        for tiles in 1..200usize {
            let batch = batch_size(tiles, |_| true);
            assert!(tiles.next_multiple_of(batch) as f64 <= 1.17 * tiles as f64, "{tiles} tiles in batches of {batch}");
        }
    }
}
