//! Resampling of a volume to another grid, slab by slab.

use rayon::prelude::*;

/// Number of voxels of size `to_um` that cover `extent` voxels of size `from_um`; at least 1.
pub fn resampled_extent(extent: usize, from_um: f64, to_um: f64) -> usize {
    ((extent as f64 * from_um / to_um).round() as usize).max(1)
}

/// Up to this many input voxels per output voxel two neighbors are interpolated; above it the filter is widened.
const SHARP_SCALE: f64 = 1.5;

/// Half width in input voxels of the triangle filter for this many input voxels per output voxel; 1 is linear interpolation.
pub fn filter_half_width(scale: f64) -> f64 {
    (scale / SHARP_SCALE).max(1.0)
}

/// Weights that compute the output voxels of one axis from the input voxels. Both grids cover the same physical length
/// ("half-pixel" centers, edge values extended).
///
/// Up to 1.5 input voxels per output voxel this is linear interpolation. Above that, a triangle filter with a half
/// width of `scale / 1.5` input voxels averages them, so that fine detail and noise are not aliased.
#[derive(Debug, Clone)]
pub struct AxisMap {
    /// Number of input voxels.
    from: usize,
    /// Number of weights per output voxel.
    taps: usize,
    /// First input voxel of each output voxel.
    first: Vec<usize>,
    /// `taps` weights per output voxel, with a sum of 1.
    weights: Vec<f32>,
    nearest: Vec<usize>,
}

impl AxisMap {
    /// Creates the map from `from` input voxels to `to` output voxels.
    pub fn new(from: usize, to: usize) -> Self {
        let scale = from as f64 / to.max(1) as f64;
        let half = filter_half_width(scale);
        let (from, last) = (from.max(1), from.saturating_sub(1));
        let taps = ((2.0 * half).ceil() as usize).clamp(1, from);
        let mut map = Self { from, taps, first: Vec::new(), weights: Vec::new(), nearest: Vec::new() };
        for o in 0..to {
            let at = ((o as f64 + 0.5) * scale - 0.5).clamp(0.0, last as f64);
            let first = ((at - half).floor() + 1.0).max(0.0) as usize;
            let first = first.min(from - taps);
            let weight = |t: usize| (1.0 - (at - (first + t) as f64).abs() / half).max(0.0);
            let sum: f64 = (0..taps).map(weight).sum();
            map.first.push(first);
            map.weights.extend((0..taps).map(|t| (weight(t) / sum) as f32));
            map.nearest.push((((o as f64 + 0.5) * scale).floor()).clamp(0.0, last as f64) as usize);
        }
        map
    }

    /// Input voxels of an output voxel, with their weights.
    fn weighted_inputs(&self, output: usize) -> impl Iterator<Item = (usize, f32)> + '_ {
        let first = self.first.get(output).copied().unwrap_or(0);
        let weights = self.weights.get(output * self.taps..(output + 1) * self.taps).unwrap_or_default();
        weights.iter().enumerate().map(move |(t, w)| (first + t, *w))
    }

    /// Returns the number of output voxels along the axis.
    pub fn len(&self) -> usize {
        self.first.len()
    }

    /// Whether there are no output voxels.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The input voxels that the output voxels of `range` depend on.
    pub fn sources(&self, range: std::ops::Range<usize>) -> std::ops::Range<usize> {
        match (self.first.get(range.start), range.end.checked_sub(1).and_then(|e| self.first.get(e))) {
            (Some(first), Some(last)) if range.start < range.end => *first..(*last + self.taps).min(self.from),
            _ => 0..0,
        }
    }

    /// Returns the map of the output voxels of `range` alone, whose input begins at the first of their
    /// [`AxisMap::sources`]. The weights are the same.
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        let sources = self.sources(range.clone());
        let moved = |of: &[usize]| -> Vec<usize> {
            let inside = of.get(range.clone()).unwrap_or_default();
            inside.iter().map(|i| i.saturating_sub(sources.start)).collect()
        };
        let weights = self.weights.get(range.start * self.taps..range.end * self.taps).unwrap_or_default();
        Self {
            from: sources.len().max(1),
            taps: self.taps,
            first: moved(&self.first),
            weights: weights.to_vec(),
            nearest: moved(&self.nearest),
        }
    }

    /// Whether every output voxel is the input voxel of the same index.
    pub(crate) fn is_identity(&self) -> bool {
        (0..self.len()).all(|o| self.weighted_inputs(o).all(|(i, w)| (i == o) == (w == 1.0) && (i == o || w == 0.0)))
    }
}

/// Resamples a volume along all axes and returns the output slices `z`, computed from an input slab that begins at
/// input slice `slab_start`.
///
/// `slab` is `[slices][from_y][from_x]`; the result is `[z.len()][to_y][to_x]`. For input slices outside the slab, the
/// nearest slice of the slab is used.
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
    let same_columns = map_x.is_identity();
    out.par_chunks_mut(to_y * to_x).enumerate().for_each(|(i, target)| {
        let planes: Vec<(usize, f32)> = map_z.weighted_inputs(z.start + i).map(|(p, w)| (slice_of(p), w)).collect();
        let mut blended = vec![0.0f32; from_yx[1]];
        for (oy, row) in target.chunks_exact_mut(to_x).enumerate() {
            // Y and Z come first, because whole rows are added there; X follows once per output row.
            blended.fill(0.0);
            for (p, weight_z) in &planes {
                for (y, weight_y) in map_y.weighted_inputs(oy) {
                    let weight = weight_z * weight_y;
                    if weight != 0.0 {
                        let source = &slab[p * plane + y * from_yx[1]..p * plane + (y + 1) * from_yx[1]];
                        blended.iter_mut().zip(source).for_each(|(b, s)| *b += weight * s);
                    }
                }
            }
            if same_columns {
                // The sources of a part of the columns may end after them.
                row.copy_from_slice(&blended[..to_x]);
                continue;
            }
            for (t, (first, weights)) in row.iter_mut().zip(map_x.first.iter().zip(map_x.weights.chunks(map_x.taps))) {
                *t = weights.iter().zip(&blended[*first..]).map(|(w, b)| w * b).sum();
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramp_stays_a_ramp_and_slabs_match_the_whole_volume() {
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
    fn rows_that_are_resampled_alone_have_the_same_values() {
        let (ny, nx) = (37, 3);
        let plane: Vec<f32> = (0..ny * nx).map(|i| ((i * 31) % 17) as f32 / 7.0).collect();
        for to in [12, 30, 37, 90] {
            let maps = [AxisMap::new(1, 1), AxisMap::new(ny, to), AxisMap::new(nx, 4)];
            let whole = linear(&plane, 0, [ny, nx], &maps, 0..1);
            for rows in [0..5, 4..9, to - 3..to] {
                let sources = maps[1].sources(rows.clone());
                let part = [maps[0].clone(), maps[1].part(rows.clone()), maps[2].clone()];
                let own = &plane[sources.start * nx..sources.end * nx];
                let made = linear(own, 0, [sources.len(), nx], &part, 0..1);
                assert_eq!(made, whole[rows.start * 4..rows.end * 4], "{rows:?} of {to}");
            }
        }
    }

    #[test]
    fn columns_that_are_resampled_alone_have_the_same_values() {
        let (nz, ny, nx) = (5, 4, 23);
        let volume: Vec<f32> = (0..nz * ny * nx).map(|i| ((i * 31) % 17) as f32 / 7.0).collect();
        // Even if columns, or rows and columns, are not resampled.
        for [to_y, to_x] in [[4, 23], [6, 23], [4, 12], [3, 40]] {
            let maps = [AxisMap::new(nz, 7), AxisMap::new(ny, to_y), AxisMap::new(nx, to_x)];
            let whole = linear(&volume, 0, [ny, nx], &maps, 0..7);
            for columns in [0..5, 4..9, to_x - 3..to_x, to_x - 1..to_x] {
                let sources = maps[2].sources(columns.clone());
                let part = [maps[0].clone(), maps[1].clone(), maps[2].part(columns.clone())];
                let own: Vec<f32> = volume.chunks(nx).flat_map(|row| row[sources.clone()].to_vec()).collect();
                let made = linear(&own, 0, [ny, sources.len()], &part, 0..7);
                let expected: Vec<f32> = whole.chunks(to_x).flat_map(|row| row[columns.clone()].to_vec()).collect();
                assert_eq!(made, expected, "{columns:?} of {to_x}");
            }
        }
    }

    /// The expected values are computed here from the definition: a triangle of half width scale / 1.5 about each
    /// output center. scikit-image and PIL widen their filters in the same way when they shrink an image.
    #[test]
    fn strong_downsampling_averages_input_voxels() {
        let (from, to) = (60usize, 6usize);
        let line: Vec<f32> = (0..from).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        let maps = [AxisMap::new(1, 1), AxisMap::new(1, 1), AxisMap::new(from, to)];
        let small = linear(&line, 0, [1, from], &maps, 0..1);
        assert!(small.iter().all(|v| v.abs() < 0.05), "an alternating line has no mean: {small:?}");
        let ramp: Vec<f32> = (0..from).map(|i| i as f32).collect();
        let small = linear(&ramp, 0, [1, from], &maps, 0..1);
        for (o, v) in small.iter().enumerate().skip(1).take(to - 2) {
            assert!((v - (10.0 * o as f32 + 4.5)).abs() < 1e-3, "{o}: {v}");
        }
        let at = 24.5f64;
        let weight = |i: usize| (1.0 - (at - i as f64).abs() / (10.0 / 1.5)).max(0.0);
        let sum: f64 = (0..from).map(weight).sum();
        let impulse: Vec<f32> = (0..from).map(|i| f32::from(u8::from(i == 22))).collect();
        let small = linear(&impulse, 0, [1, from], &maps, 0..1);
        assert!((f64::from(small[2]) - weight(22) / sum).abs() < 1e-6);
    }

    #[test]
    fn extents_cover_the_same_length() {
        assert_eq!(resampled_extent(51, 1.75, 0.8), 112);
        assert_eq!(resampled_extent(1, 1.0, 10.0), 1);
        assert!(AxisMap::new(5, 5).is_identity());
    }
}
