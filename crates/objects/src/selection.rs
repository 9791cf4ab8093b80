//! Which objects are kept after splitting: those that are large and bright enough.

use crate::SegmentOptions;
use crate::components::Bounds;

/// What decides whether an object is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectFacts {
    /// Number of voxels.
    pub voxels: u64,
    /// Sum of the map over the object.
    pub sum: f64,
    /// Maximum of the map in the object.
    pub peak: f32,
}

impl Default for ObjectFacts {
    fn default() -> Self {
        Self { voxels: 0, sum: 0.0, peak: f32::NEG_INFINITY }
    }
}

impl ObjectFacts {
    /// Adds values of the map in voxels of the object, which are counted separately.
    pub(crate) fn add_values(&mut self, values: &[f32]) {
        for value in values {
            self.sum += f64::from(*value);
            self.peak = self.peak.max(*value);
        }
    }
}

/// Rule by which objects of a stack are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selection {
    min_voxels: u64,
    min_peak: f32,
    /// Minimum voxels and mean of the map of isolated objects with fewer voxels.
    isolated: Option<(u64, f64)>,
}

impl Selection {
    /// Returns the rule for a stack of `slices` slices.
    pub(crate) fn new(options: &SegmentOptions, slices: usize, voxel_um: [f64; 3]) -> Self {
        let isolated = options.isolated.map(|isolated| {
            let min_volume_um3 = options.min_volume_um3 * isolated.volume_share;
            let smaller = SegmentOptions { min_volume_um3, ..options.clone() };
            (smaller.min_voxels(slices, voxel_um), isolated.min_mean)
        });
        Self { min_voxels: options.min_voxels(slices, voxel_um), min_peak: options.min_peak as f32, isolated }
    }

    /// Returns whether the rule depends on the map.
    pub(crate) fn needs_map(&self) -> bool {
        self.min_peak > 0.0 || self.isolated.is_some()
    }

    /// Returns the number of voxels below which a component has no object that is kept.
    pub(crate) fn min_component_voxels(&self) -> u64 {
        self.isolated.map_or(self.min_voxels, |(smaller, _)| smaller.min(self.min_voxels))
    }

    /// Returns whether an object is kept.
    pub(crate) fn keeps(&self, facts: &ObjectFacts, is_isolated: bool) -> bool {
        let is_certain = |(min_voxels, min_mean): (u64, f64)| {
            facts.voxels >= min_voxels && facts.sum >= min_mean * facts.voxels as f64
        };
        let is_large = facts.voxels >= self.min_voxels || (is_isolated && self.isolated.is_some_and(is_certain));
        let is_bright = self.min_peak <= 0.0 || facts.peak >= self.min_peak;
        facts.voxels > 0 && is_large && is_bright
    }

    /// Removes basins of a component that are not kept, and numbers the others from 1 on in their order; returns their number.
    /// `rows` are the values of the map in the rows of the box of the basins, of `row_voxels` each, or none if the rule does not
    /// need them; `count` is the number of basins.
    pub(crate) fn select<'a>(
        &self,
        basins: &mut [u32],
        row_voxels: usize,
        rows: impl Iterator<Item = &'a [f32]>,
        count: u32,
    ) -> u32 {
        let mut facts = vec![ObjectFacts::default(); count as usize + 1];
        for run in basins.chunk_by(|a, b| a == b) {
            facts[run[0] as usize].voxels += run.len() as u64;
        }
        for (row, values) in basins.chunks(row_voxels.max(1)).zip(rows) {
            let mut at = 0;
            for run in row.chunk_by(|a, b| a == b) {
                facts[run[0] as usize].add_values(values.get(at..at + run.len()).unwrap_or_default());
                at += run.len();
            }
        }
        let is_isolated = count == 1;
        let mut next = 0;
        let mut number = |facts: &ObjectFacts| {
            let is_kept = self.keeps(facts, is_isolated);
            next += u32::from(is_kept);
            if is_kept { next } else { 0 }
        };
        let numbers: Vec<u32> = std::iter::once(0).chain(facts.iter().skip(1).map(&mut number)).collect();
        basins.iter_mut().for_each(|basin| *basin = numbers[*basin as usize]);
        next
    }
}

/// Returns whether a box touches a face of the volume; faces along an axis of length 1 do not count.
pub(crate) fn touches_border((low, high): Bounds, shape_zyx: [usize; 3]) -> bool {
    (0..3).any(|a| shape_zyx[a] > 1 && (low[a] == 0 || high[a] + 1 >= shape_zyx[a]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IsolatedOptions;

    fn selection(isolated: Option<IsolatedOptions>, min_peak: f64) -> Selection {
        let options = SegmentOptions { min_volume_um3: 10.0, min_peak, isolated, ..SegmentOptions::default() };
        Selection::new(&options, 20, [1.0; 3])
    }

    #[test]
    fn isolated_objects_may_be_small_if_they_are_certain() {
        let rule = selection(Some(IsolatedOptions { volume_share: 0.3, min_mean: 0.8 }), 0.0);
        assert_eq!(rule.min_component_voxels(), 3);
        let select = |voxels: usize, value: f32| {
            let mut basins = [vec![0; 2], vec![1; voxels]].concat();
            let map = [vec![0.1; 2], vec![value; voxels]].concat();
            let count = rule.select(&mut basins, 4, map.chunks(4), 1);
            assert_eq!(basins.iter().filter(|basin| **basin == 1).count(), voxels * count as usize);
            count
        };
        assert_eq!([2, 3, 9].map(|voxels| select(voxels, 0.9)), [0, 1, 1]);
        assert_eq!([3, 9, 10].map(|voxels| select(voxels, 0.7)), [0, 0, 1]);
        // Two basins of one component touch.
        let mut basins = [vec![1; 5], vec![2; 12]].concat();
        assert_eq!(rule.select(&mut basins, 17, [0.9; 17].chunks(17), 2), 1);
        assert_eq!(basins, [vec![0; 5], vec![1; 12]].concat());
    }

    #[test]
    fn dim_and_small_basins_are_removed_and_the_others_renumbered() {
        let map = [[0.5; 12], [0.7; 12], [0.9; 12]].concat();
        let basins = [vec![3; 12], vec![1; 12], vec![2; 11], vec![0; 1]].concat();
        let mut kept = basins.clone();
        assert_eq!(selection(None, 0.6).select(&mut kept, 5, map.chunks(5), 3), 2);
        assert_eq!(kept, [vec![0; 12], vec![1; 12], vec![2; 11], vec![0; 1]].concat());
        let all = selection(None, 0.0);
        assert!(!all.needs_map());
        let mut kept = basins.clone();
        assert_eq!(all.select(&mut kept, 5, std::iter::empty(), 3), 3);
        assert_eq!(kept, basins);
    }
}
