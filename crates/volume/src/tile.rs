//! Cutting a volume into tiles and knowing which voxels of each are kept.

use crate::VolumeError;
use std::ops::Range;

/// One axis of one tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First voxel read (inside the volume).
    pub start: usize,
    /// Voxels read (the volume counts as padded at its end).
    pub len: usize,
    /// First voxel kept, counted in the volume.
    pub keep_start: usize,
    /// Voxels kept.
    pub keep_len: usize,
}

impl Span {
    /// The kept voxels, counted in the tile.
    pub fn kept_in_tile(&self) -> Range<usize> {
        let at = self.keep_start - self.start;
        at..at + self.keep_len
    }

    /// The kept voxels, counted in the volume.
    pub fn kept_in_volume(&self) -> Range<usize> {
        self.keep_start..self.keep_start + self.keep_len
    }
}

/// Tiles of one axis whose kept parts cover it exactly once, each with `halo` voxels of real neighbours around what is kept
/// (except at the ends of the volume, where there are none).
///
/// The axis counts as padded at its end to a multiple of `step` (the network's own stride). All tiles are of one length, a
/// multiple of `step` and at most `tile` (or one `step`, where `tile` is less), and start on multiples of `step`, so that
/// strides fall on the same voxels as without tiles; the last ones are shifted inward.
///
/// # Errors
/// [`VolumeError::BadParameter`] if no kept voxel fits between the halos.
pub fn crop_spans(extent: usize, tile: usize, halo: usize, step: usize) -> Result<Vec<Span>, VolumeError> {
    let step = step.max(1);
    let padded = extent.next_multiple_of(step);
    if extent == 0 {
        return Ok(Vec::new());
    }
    if tile >= padded {
        return Ok(vec![Span { start: 0, len: padded, keep_start: 0, keep_len: extent }]);
    }
    let len = (tile / step).max(1) * step;
    if len < 2 * halo + step {
        return Err(VolumeError::BadParameter {
            what: "tile length",
            expected: "at least two halos of the network and a step",
            got: format!("{len} voxels with halos of {halo} and steps of {step}"),
        });
    }
    let mut spans = Vec::new();
    let mut keep_start = 0;
    while keep_start < extent {
        let mut start = keep_start.saturating_sub(halo) / step * step;
        let mut keep_end = start + len - halo;
        if start + len >= padded {
            start = padded - len;
            keep_end = extent;
        }
        keep_end = keep_end.min(extent);
        spans.push(Span { start, len, keep_start, keep_len: keep_end - keep_start });
        keep_start = keep_end;
    }
    Ok(spans)
}

/// Starts of overlapping windows along one axis: every `interval = ⌊window · (1 − overlap)⌋` voxels, the last one shifted
/// inward to end with the axis. These are MONAI's sliding-window positions.
///
/// # Errors
/// [`VolumeError::BadParameter`] for an overlap outside `0 ≤ overlap < 1` or an empty window.
pub fn window_starts(extent: usize, window: usize, overlap: f64) -> Result<Vec<usize>, VolumeError> {
    if !(0.0..1.0).contains(&overlap) {
        return Err(VolumeError::BadParameter { what: "overlap", expected: "0 to below 1", got: overlap.to_string() });
    }
    if window == 0 {
        return Err(VolumeError::BadParameter { what: "window", expected: "at least one voxel", got: "0".to_owned() });
    }
    if window >= extent {
        return Ok(vec![0]);
    }
    let interval = ((window as f64 * (1.0 - overlap)) as usize).max(1);
    let count = (extent - window).div_ceil(interval) + 1;
    Ok((0..count).map(|i| (i * interval).min(extent - window)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn crop_spans_keep_every_voxel_once_with_its_halo(extent in 1usize..300, tile in 1usize..120, halo in 0usize..20, step in 1usize..9) {
            let Ok(spans) = crop_spans(extent, tile, halo, step) else { return Ok(()) };
            let mut next = 0;
            for s in &spans {
                prop_assert_eq!(s.keep_start, next);
                prop_assert!(s.keep_len > 0 && s.start <= s.keep_start);
                prop_assert!(s.start + s.len <= extent.next_multiple_of(step));
                prop_assert!(s.keep_start + s.keep_len <= s.start + s.len);
                prop_assert!(s.len == spans[0].len && s.len % step == 0 && s.start % step == 0);
                prop_assert!(s.len <= tile.max(step));
                prop_assert!(s.start == 0 || s.keep_start - s.start >= halo);
                let end = s.start + s.len;
                prop_assert!(end >= extent || end - (s.keep_start + s.keep_len) >= halo);
                next += s.keep_len;
            }
            prop_assert_eq!(next, extent);
        }
    }

    #[test]
    fn windows_are_monais() {
        // monai.data.utils.dense_patch_slices((200,), (64,), (48,)) starts at 0, 48, 96, 136.
        assert_eq!(window_starts(200, 64, 0.25).unwrap(), [0, 48, 96, 136]);
        assert_eq!(window_starts(64, 64, 0.25).unwrap(), [0]);
        assert_eq!(window_starts(65, 64, 0.25).unwrap(), [0, 1]);
        assert!(window_starts(65, 64, 1.0).is_err());
    }
}
