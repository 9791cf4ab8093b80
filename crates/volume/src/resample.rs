//! Bringing a volume to another grid, slab by slab.

use rayon::prelude::*;

/// Number of voxels that cover `extent` voxels of size `from_um` with voxels of size `to_um` (at least 1).
pub fn resampled_extent(extent: usize, from_um: f64, to_um: f64) -> usize {
    ((extent as f64 * from_um / to_um).round() as usize).max(1)
}

/// Where output voxel centres of one axis lie between input voxels, both grids covering the same physical length
/// ("half-pixel" centres, ends held).
#[derive(Debug, Clone)]
pub struct AxisMap {
    low: Vec<usize>,
    high: Vec<usize>,
    weight: Vec<f32>,
    nearest: Vec<usize>,
}

impl AxisMap {
    /// From `from` voxels to `to` voxels.
    pub fn new(from: usize, to: usize) -> Self {
        let scale = from as f64 / to.max(1) as f64;
        let last = from.saturating_sub(1) as f64;
        let mut map = Self { low: vec![], high: vec![], weight: vec![], nearest: vec![] };
        for o in 0..to {
            let at = ((o as f64 + 0.5) * scale - 0.5).clamp(0.0, last);
            let low = at.floor();
            map.low.push(low as usize);
            map.high.push((low + 1.0).min(last) as usize);
            map.weight.push((at - low) as f32);
            map.nearest.push((((o as f64 + 0.5) * scale).floor()).clamp(0.0, last) as usize);
        }
        map
    }

    /// Output voxels.
    pub fn len(&self) -> usize {
        self.low.len()
    }

    /// True for no output voxels.
    pub fn is_empty(&self) -> bool {
        self.low.is_empty()
    }

    /// The input voxels that outputs `range` read, linearly interpolated.
    pub fn sources(&self, range: std::ops::Range<usize>) -> std::ops::Range<usize> {
        match (self.low.get(range.start), range.end.checked_sub(1).and_then(|e| self.high.get(e))) {
            (Some(first), Some(last)) if range.start < range.end => *first..*last + 1,
            _ => 0..0,
        }
    }

    /// Whether every output voxel is the input voxel of the same index.
    pub fn is_identity(&self) -> bool {
        self.low.iter().enumerate().all(|(i, l)| *l == i) && self.weight.iter().all(|w| *w == 0.0)
    }
}

/// Linear interpolation of output slices `z` from an input slab that begins at input slice `slab_start`.
///
/// `slab` is `[slices][from_y][from_x]`; the result is `[z.len()][to_y][to_x]`. Slices the slab lacks are held at its ends.
pub fn linear(
    slab: &[f32],
    slab_start: usize,
    from_yx: [usize; 2],
    maps: &[AxisMap; 3],
    z: std::ops::Range<usize>,
) -> Vec<f32> {
    let plane = from_yx[0] * from_yx[1];
    let slices = slab.len().checked_div(plane).unwrap_or(0);
    let [map_z, map_y, map_x] = maps;
    let (to_y, to_x) = (map_y.len(), map_x.len());
    let mut out = vec![0.0f32; z.len() * to_y * to_x];
    if slices == 0 || out.is_empty() {
        return out;
    }
    let slice_of = |i: usize| i.saturating_sub(slab_start).min(slices - 1);
    out.par_chunks_mut(to_y * to_x).enumerate().for_each(|(i, target)| {
        let oz = z.start + i;
        let (Some(low), Some(high), Some(wz)) = (map_z.low.get(oz), map_z.high.get(oz), map_z.weight.get(oz)) else {
            return;
        };
        let planes = [(slice_of(*low), 1.0 - wz), (slice_of(*high), *wz)];
        let same_columns = map_x.is_identity();
        let mut blended = vec![0.0f32; from_yx[1]];
        for (oy, row) in target.chunks_exact_mut(to_x).enumerate() {
            // Across rows and slices first, where it goes along the rows; then once along X.
            let rows = [(map_y.low[oy], 1.0 - map_y.weight[oy]), (map_y.high[oy], map_y.weight[oy])];
            blended.fill(0.0);
            for (p, share_z) in planes {
                for (y, share_y) in rows {
                    let share = share_z * share_y;
                    if share != 0.0 {
                        let source = &slab[p * plane + y * from_yx[1]..p * plane + (y + 1) * from_yx[1]];
                        blended.iter_mut().zip(source).for_each(|(b, s)| *b += share * s);
                    }
                }
            }
            if same_columns {
                row.copy_from_slice(&blended);
                continue;
            }
            for (t, ((low, high), w)) in row.iter_mut().zip(map_x.low.iter().zip(&map_x.high).zip(&map_x.weight)) {
                *t = (1.0 - w) * blended[*low] + w * blended[*high];
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramp_stays_a_ramp_and_slabs_agree_with_the_whole() {
        let (nz, ny, nx) = (9, 7, 11);
        let volume: Vec<f32> = (0..nz * ny * nx).map(|i| (i / (ny * nx)) as f32 * 2.0 + (i % nx) as f32).collect();
        let maps = [AxisMap::new(nz, 18), AxisMap::new(ny, ny), AxisMap::new(nx, 5)];
        let whole = linear(&volume, 0, [ny, nx], &maps, 0..18);
        // Interior of the refined axis: steps of half a slice.
        let at = |z: usize| whole[z * ny * 5 + 2];
        assert!((at(9) - at(8) - 1.0).abs() < 1e-5);
        let sources = maps[0].sources(6..12);
        let slab = &volume[sources.start * ny * nx..sources.end * ny * nx];
        let part = linear(slab, sources.start, [ny, nx], &maps, 6..12);
        assert_eq!(part, whole[6 * ny * 5..12 * ny * 5]);
    }

    #[test]
    fn extents_cover_the_same_length() {
        assert_eq!(resampled_extent(51, 1.75, 0.8), 112);
        assert_eq!(resampled_extent(1, 1.0, 10.0), 1);
        assert!(AxisMap::new(5, 5).is_identity());
    }
}
