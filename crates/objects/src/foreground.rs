//! The foreground of a map whose slices arrive one after the other: the part of a segmentation that needs no other slices.

use crate::components::{Components, Connectivity};
use crate::error::check_len;
use crate::filter::fill_holes;
use crate::{ObjectsError, SegmentOptions, Threshold};

/// Connected components of the voxels above the threshold in the slices added so far.
#[derive(Debug)]
pub struct Foreground {
    shape_zyx: [usize; 3],
    level: f32,
    fill_holes: bool,
    components: Components,
    slices: usize,
}

impl Foreground {
    /// Starts with no slices. `None` if the options need the whole map before the threshold: for Otsu's threshold, or to
    /// smooth the map.
    pub fn new(shape_zyx: [usize; 3], options: &SegmentOptions) -> Option<Self> {
        match options.threshold {
            Threshold::Fixed(level) if options.smooth_um <= 0.0 => Some(Self::above(shape_zyx, level, options)),
            _ => None,
        }
    }

    /// Starts with no slices, with a known threshold.
    pub(crate) fn above(shape_zyx: [usize; 3], level: f64, options: &SegmentOptions) -> Self {
        Self {
            shape_zyx,
            level: level as f32,
            fill_holes: options.fill_holes,
            components: Components::new(shape_zyx, Connectivity::Faces),
            slices: 0,
        }
    }

    /// Returns the number of slices so far.
    pub fn slices(&self) -> usize {
        self.slices
    }

    /// Returns the number of runs of foreground voxels, see [`Components::runs`].
    pub fn runs(&self) -> usize {
        self.components.runs()
    }

    /// Adds the next slice of the map.
    ///
    /// # Errors
    /// [`ObjectsError`] if its length does not match the shape, or there are too many components.
    pub fn add_slice(&mut self, map: &[f32]) -> Result<(), ObjectsError> {
        let [_, ny, nx] = self.shape_zyx;
        check_len("slice", map.len(), [1, ny, nx])?;
        let (level, width) = (self.level, nx.max(1));
        if self.fill_holes {
            let mut mask: Vec<bool> = map.iter().map(|v| *v > level).collect();
            fill_holes(&mut mask, [1, ny, nx]);
            mask.chunks_exact(width).try_for_each(|row| self.components.add_row(row, |inside| inside))?;
        } else {
            map.chunks_exact(width).try_for_each(|row| self.components.add_row(row, |v| v > level))?;
        }
        self.slices += 1;
        Ok(())
    }

    /// Returns whether all slices of a map of this shape were added.
    pub(crate) fn is_complete(&self, shape_zyx: [usize; 3]) -> bool {
        self.shape_zyx == shape_zyx && self.slices == shape_zyx[0]
    }

    /// Numbers the components in scan order, as [`Components::finish`].
    pub(crate) fn label(self, labels: &mut [u32]) -> Result<u32, ObjectsError> {
        self.components.finish(labels)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::{Height, segment_in_place, segment_with_foreground};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_segmentation_from_the_foreground_of_single_slices_is_that_of_the_whole_map(
            values in prop::collection::vec(0.0f32..1.0, 5 * 7 * 9),
            has_holes_filled in any::<bool>(),
            has_watershed in any::<bool>(),
        ) {
            let shape = [5, 7, 9];
            let options = SegmentOptions {
                threshold: Threshold::Fixed(0.6),
                fill_holes: has_holes_filled,
                height: has_watershed.then_some(Height::Map),
                min_volume_um3: 2.0,
                ..SegmentOptions::default()
            };
            let whole = segment_in_place(&mut values.clone(), None, shape, [1.0; 3], &options).unwrap();
            let mut foreground = Foreground::new(shape, &options).unwrap();
            for (z, slice) in values.chunks_exact(7 * 9).enumerate() {
                prop_assert_eq!(foreground.slices(), z);
                foreground.add_slice(slice).unwrap();
            }
            let found = segment_with_foreground(&mut values.clone(), None, Some(foreground), shape, [1.0; 3], &options);
            prop_assert_eq!(found.unwrap(), whole.clone());
            // An incomplete one is not used.
            let mut started = Foreground::new(shape, &options).unwrap();
            started.add_slice(&values[..7 * 9]).unwrap();
            let found = segment_with_foreground(&mut values.clone(), None, Some(started), shape, [1.0; 3], &options);
            prop_assert_eq!(found.unwrap(), whole);
        }
    }

    #[test]
    fn options_that_need_the_whole_map_have_no_foreground_of_single_slices() {
        let fixed = SegmentOptions { threshold: Threshold::Fixed(0.5), ..SegmentOptions::default() };
        assert!(Foreground::new([1, 2, 3], &fixed).is_some());
        assert!(Foreground::new([1, 2, 3], &SegmentOptions { smooth_um: 1.0, ..fixed.clone() }).is_none());
        assert!(Foreground::new([1, 2, 3], &SegmentOptions { threshold: Threshold::Otsu, ..fixed.clone() }).is_none());
        let short = Foreground::new([1, 2, 3], &fixed).unwrap().add_slice(&[0.0; 5]);
        assert!(matches!(short, Err(ObjectsError::Length { got: 5, .. })));
    }
}
