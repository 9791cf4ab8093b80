//! The voxels that patches are centered on.

use super::PreparedPair;

impl PreparedPair {
    /// Returns a voxel of an object, chosen by two random numbers from 0 to 1.
    pub(super) fn pick(&self, which: f64, seed: f64) -> Option<[u32; 3]> {
        /// Number of labels up to which they are probably classes or a mask; then a voxel is chosen instead of an
        /// object.
        const MAX_CLASSES: usize = 4;
        if self.index.objects.len() <= MAX_CLASSES {
            return drawn(&self.index.spread, which).copied();
        }
        let object = drawn(&self.index.objects, which)?;
        let seeds: Vec<[u32; 3]> = object.seeds().collect();
        drawn(&seeds, seed).copied()
    }

    /// Returns a voxel without the ignore label, chosen by a random number from 0 to 1; `None` if no voxel has that label.
    pub(super) fn pick_known(&self, which: f64) -> Option<[u32; 3]> {
        if self.index.ignored == 0 { None } else { drawn(&self.index.known_voxels, which).copied() }
    }
}

/// Returns the element that a random number from 0 to 1 chooses; `None` if there are none.
fn drawn<T>(all: &[T], draw: f64) -> Option<&T> {
    all.get(((draw * all.len() as f64) as usize).min(all.len().saturating_sub(1)))
}
