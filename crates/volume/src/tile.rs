//! Tiling of a volume: which voxels each tile reads and which of its outputs are kept.

use crate::VolumeError;
use std::ops::Range;

/// Extents of one tile along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First voxel read (inside the volume).
    pub start: usize,
    /// Number of voxels read; may extend into the padding at the end of the volume.
    pub len: usize,
    /// First voxel kept, in coordinates of the volume.
    pub keep_start: usize,
    /// Number of voxels of the tile that are kept along the axis.
    pub keep_len: usize,
}

impl Span {
    /// The kept voxels, in coordinates of the tile.
    pub fn kept_in_tile(&self) -> Range<usize> {
        let at = self.keep_start - self.start;
        at..at + self.keep_len
    }

    /// The kept voxels, in coordinates of the volume.
    pub fn kept_in_volume(&self) -> Range<usize> {
        self.keep_start..self.keep_start + self.keep_len
    }
}

/// Splits an axis into tiles whose kept parts cover it exactly once. Each kept part has a halo of `halo` voxels on both
/// sides, except at the ends of the volume.
///
/// The axis is treated as padded at its end to a multiple of `step` (the stride of the network). All tiles have the
/// same length, a multiple of `step` that is at most `tile` (or one `step`, if `tile` is smaller), and start at
/// multiples of `step`, so that the network's strides fall on the same voxels as without tiling. The last tile is
/// shifted inward.
///
/// # Errors
/// [`VolumeError::BadParameter`] if the halos leave no voxel to keep.
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
            expected: "at least two halos of the network plus one step",
            got: format!("{len} voxels with a halo of {halo} and a step of {step}"),
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

/// Start positions of overlapping windows along one axis: every `interval = ⌊window · (1 − overlap)⌋` voxels, the last
/// window shifted inward to end with the axis. These are the positions of MONAI's sliding-window inference.
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
        fn crop_spans_keep_every_voxel_once_with_a_halo(extent in 1usize..300, tile in 1usize..120, halo in 0usize..20, step in 1usize..9) {
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
    fn window_starts_match_monai() {
        // monai.data.utils.dense_patch_slices((200,), (64,), (48,)) starts at 0, 48, 96, 136.
        assert_eq!(window_starts(200, 64, 0.25).unwrap(), [0, 48, 96, 136]);
        assert_eq!(window_starts(64, 64, 0.25).unwrap(), [0]);
        assert_eq!(window_starts(65, 64, 0.25).unwrap(), [0, 1]);
        assert!(window_starts(65, 64, 1.0).is_err());
    }
}
