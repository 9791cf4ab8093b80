//! Looks for files of chunks that are not stored.

use super::read::OmeZarr;
use rayon::prelude::*;

/// Maximum number of files that are looked for; of a larger image, as many that are spread over it.
const MAX_LOOKED_FOR: u64 = 256;
/// The golden ratio as a fraction of 2⁶⁴: its multiples are spread evenly, and have no period in common with a grid of chunks.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Files of an image's level 0, each with a chunk or a shard, and how many of some of them are not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkFiles {
    /// Number of files that hold the whole level.
    pub all: u64,
    /// Number of those that were looked for: all, or some that are spread over the level.
    pub looked_for: u64,
    /// Number of those that were looked for and are not stored, so that they are read as the fill value.
    pub absent: u64,
}

impl OmeZarr {
    /// Looks for the files of level 0, without reading them. A file that cannot be opened counts as stored: reading it reports
    /// why. `None` if there are no levels.
    pub fn look_for_chunk_files(&self) -> Option<ChunkFiles> {
        let array = self.levels.first()?;
        let along = array.shape.iter().zip(&array.file_shape);
        let grid: Vec<u64> = along.map(|(n, file)| n.div_ceil((*file).max(1)) as u64).collect();
        let all = grid.iter().copied().fold(1, u64::saturating_mul);
        let looked_for = all.min(MAX_LOOKED_FOR);
        let is_absent = |number: &u64| {
            let at = position(&grid, chosen(*number, looked_for, all));
            matches!(self.folder.holds(&array.file_key(&at)), Ok(false))
        };
        let absent = (0..looked_for).into_par_iter().filter(is_absent).count() as u64;
        Some(ChunkFiles { all, looked_for, absent })
    }
}

/// Returns the file that is looked for as the one with this `number`, of `looked_for` of `all` files.
fn chosen(number: u64, looked_for: u64, all: u64) -> u64 {
    if looked_for == all {
        return number;
    }
    let fraction = u128::from(number.wrapping_mul(GOLDEN));
    ((fraction * u128::from(all)) >> 64) as u64
}

/// Returns the position in a grid of the file with this number in C order.
fn position(grid: &[u64], number: u64) -> Vec<usize> {
    let mut rest = number;
    let mut at: Vec<usize> = grid
        .iter()
        .rev()
        .map(|n| {
            let index = rest % (*n).max(1);
            rest /= (*n).max(1);
            index as usize
        })
        .collect();
    at.reverse();
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_looked_for_are_spread_over_the_image() {
        assert_eq!(position(&[2, 3, 4], 23), [1, 2, 3]);
        assert_eq!(position(&[2, 3, 4], 5), [0, 1, 1]);
        assert_eq!((0..7).map(|number| chosen(number, 7, 7)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
        // Of each part of the image, and of each column of its grid, about as many as belong to it.
        for (grid, axis) in [([16, 64, 64], 0), ([16, 64, 64], 2), ([256, 256, 1], 1)] {
            let all: u64 = grid.iter().product();
            let chosen = (0..256).map(|number| position(&grid, chosen(number, 256, all)));
            let in_first_quarter = chosen.filter(|at| (at[axis] as u64) < grid[axis] / 4).count();
            assert!((48..=80).contains(&in_first_quarter), "{in_first_quarter} of 256 in {grid:?}, axis {axis}");
        }
    }
}
