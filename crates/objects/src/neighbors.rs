//! Distinguishes images of labels from images of intensities: labels of objects repeat from voxel to voxel, intensities do not.

use cytoscope_volume::Element;

/// Fewest pairs of neighboring voxels whose share is judged.
const MIN_PAIRS: u64 = 1000;
/// Smallest share of equal pairs in an image of labels. Objects that are N voxels wide have at least (N - 1) / N, and noise
/// makes that of intensities small.
const MIN_EQUAL: f64 = 0.5;

/// Counts of pairs of neighboring voxels along X.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NeighborPairs {
    /// Pairs without background.
    pairs: u64,
    /// Pairs of the same value among them.
    equal: u64,
}

impl NeighborPairs {
    /// Adds rows of `width` voxels.
    pub fn add<T: Element>(&mut self, values: &[T], width: usize) {
        let background = T::zeroed();
        for row in values.chunks(width.max(1)) {
            for (a, b) in row.iter().zip(row.iter().skip(1)) {
                if *a != background && *b != background {
                    self.pairs += 1;
                    self.equal += u64::from(a == b);
                }
            }
        }
    }

    /// Returns the share of equal pairs; `None` if there are too few pairs.
    pub fn share(self) -> Option<f64> {
        (self.pairs >= MIN_PAIRS).then(|| self.equal as f64 / self.pairs as f64)
    }

    /// Returns the share of equal pairs if it is too small for labels.
    pub fn doubted_share(self) -> Option<f64> {
        self.share().filter(|share| *share < MIN_EQUAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs in rows of 60 voxels with these values.
    fn pairs(value: impl Fn(usize) -> usize) -> NeighborPairs {
        let values: Vec<u16> = (0..4800).map(|i| value(i) as u16).collect();
        let mut pairs = NeighborPairs::default();
        pairs.add(&values, 60);
        pairs
    }

    #[test]
    fn values_that_change_from_voxel_to_voxel_are_doubted_as_labels() {
        assert_eq!(pairs(|i| 1 + i % 7).doubted_share(), Some(0.0));
        // Objects that are two voxels wide and touch each other.
        assert_eq!(pairs(|i| 1 + i / 2 % 7).doubted_share(), None);
        // Pairs with background do not count.
        assert_eq!(pairs(|i| i % 2).share(), None);
    }
}
