//! Blending of overlapping tiles: their weights, and weighted sums of them.

use crate::VolumeError;
use crate::tile::window_starts;

/// Gaussian window of `n` samples along one axis: center `(n − 1) / 2`, sigma `sigma_share · n`, peak 1.
pub fn gaussian_window(n: usize, sigma_share: f64) -> Vec<f32> {
    let sigma = (sigma_share * n as f64).max(f64::MIN_POSITIVE);
    let center = (n as f64 - 1.0) / 2.0;
    (0..n).map(|i| (-0.5 * ((i as f64 - center) / sigma).powi(2)).exp() as f32).collect()
}

/// Sigma of the Gaussian as a fraction of the tile size, as in MONAI.
pub const SIGMA_FRACTION: f64 = 0.125;

/// Blending weights of a tile, axes Z, Y, X: the product of one Gaussian per axis, clamped from below to its smallest
/// positive value or 1e-3, whichever is larger. This is MONAI's importance map in `gaussian` mode.
pub fn gaussian_map(tile_zyx: [usize; 3]) -> Vec<f32> {
    let windows = tile_zyx.map(|n| gaussian_window(n, SIGMA_FRACTION));
    let mut map = Vec::with_capacity(tile_zyx.iter().product());
    for z in &windows[0] {
        for y in &windows[1] {
            map.extend(windows[2].iter().map(|x| z * y * x));
        }
    }
    let smallest = map.iter().copied().filter(|v| *v > 0.0).fold(f32::INFINITY, f32::min);
    let floor = if smallest.is_finite() { smallest.max(1e-3) } else { 1e-3 };
    map.iter_mut().for_each(|v| *v = v.max(floor));
    map
}

/// Windows that cover a volume and overlap, so that their values are averaged with weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Windows {
    /// Shape Z, Y, X of the volume in voxels.
    pub shape: [usize; 3],
    /// Start positions along Z, Y, X in voxels; a window that is longer than the volume extends beyond it.
    pub starts: [Vec<usize>; 3],
    /// Size Z, Y, X of a window in voxels.
    pub size: [usize; 3],
    /// Weights of a window's voxels: [`gaussian_map`].
    pub map: Vec<f32>,
}

impl Windows {
    /// Returns the windows of a volume, which overlap by a fraction of their size, as [`window_starts`] places them.
    ///
    /// # Errors
    /// [`VolumeError::BadParameter`] for an overlap outside `0 ≤ overlap < 1` or an empty window.
    pub fn new(shape: [usize; 3], size: [usize; 3], overlap: f64) -> Result<Self, VolumeError> {
        let starts = |axis: usize| window_starts(shape[axis], size[axis], overlap);
        Ok(Self { shape, starts: [starts(0)?, starts(1)?, starts(2)?], size, map: gaussian_map(size) })
    }

    /// Returns the weights of the volume's voxels.
    pub fn weights(&self) -> Weights<'_> {
        Weights { starts: &self.starts, size: self.size, map: &self.map, width: self.shape[2] }
    }

    /// Returns the number of voxels of a window that no window before it along any axis covers. A window is given by its
    /// indices along Z, Y, X.
    pub fn own_voxels(&self, window: [usize; 3]) -> usize {
        let own = |a: usize| {
            let end = |at: usize| (self.starts[a][at] + self.size[a]).min(self.shape[a]);
            end(window[a]) - window[a].checked_sub(1).map_or(0, end)
        };
        own(0) * own(1) * own(2)
    }

    /// Adds the weighted values of a window at row `y` and column `x`, axes C, Z, Y, X, to the sums of the slices that it
    /// covers, axes C, Z, Y, X with the rows and columns of the volume.
    pub fn add(&self, result: &[f32], y: usize, x: usize, sums: &mut [f32]) {
        let (shape, size, map) = (self.shape, self.size, &self.map);
        let held = size[0] * shape[1] * shape[2];
        let (ny, nx) = (size[1].min(shape[1] - y), size[2].min(shape[2] - x));
        for tz in 0..size[0] {
            for ty in 0..ny {
                let at = (tz * size[1] + ty) * size[2];
                let to = (tz * shape[1] + y + ty) * shape[2] + x;
                let share = &map[at..at + nx];
                for (values, sums) in result.chunks_exact(map.len()).zip(sums.chunks_exact_mut(held)) {
                    let sum = &mut sums[to..to + nx];
                    sum.iter_mut().zip(values[at..at + nx].iter().zip(share)).for_each(|(t, (v, s))| *t += v * s);
                }
            }
        }
    }
}

/// Weights of a volume's voxels, summed over the windows that cover them. They are computed row by row when needed,
/// because all of them would take as much memory as the sums that they divide.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    starts: &'a [Vec<usize>; 3],
    size: [usize; 3],
    map: &'a [f32],
    width: usize,
}

impl Weights<'_> {
    /// Returns the weights of row `(z, y)`, summed over the windows for which `counts` is true; windows are identified
    /// by their indices along Z, Y, X.
    pub fn row(&self, z: usize, y: usize, counts: impl Fn([usize; 3]) -> bool) -> Vec<f32> {
        let mut row = vec![0.0f32; self.width];
        let covering = |axis: usize, at: usize| {
            let starts = self.starts[axis].iter().enumerate();
            starts.filter(move |(_, s)| (**s..**s + self.size[axis]).contains(&at))
        };
        for (iz, sz) in covering(0, z) {
            for (iy, sy) in covering(1, y) {
                let at = ((z - sz) * self.size[1] + y - sy) * self.size[2];
                for (ix, sx) in self.starts[2].iter().enumerate() {
                    if counts([iz, iy, ix]) {
                        let share = &self.map[at..at + self.size[2].min(self.width - sx)];
                        row[*sx..].iter_mut().zip(share).for_each(|(w, s)| *w += s);
                    }
                }
            }
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_with_equal_values_average_to_that_value() {
        let windows = Windows::new([5, 9, 11], [4, 4, 4], 0.5).unwrap();
        let [_, height, width] = windows.shape;
        // Two channels of the slices that the first windows along Z cover.
        let result: Vec<f32> = [3.0, -1.0].into_iter().flat_map(|value| [value; 64]).collect();
        let held = 4 * height * width;
        let mut sums = vec![0.0f32; 2 * held];
        for &y in &windows.starts[1] {
            for &x in &windows.starts[2] {
                windows.add(&result, y, x, &mut sums);
            }
        }
        for z in 0..4 {
            for y in 0..height {
                let row = windows.weights().row(z, y, |[iz, _, _]| iz == 0);
                for (x, weight) in row.iter().enumerate() {
                    let at = (z * height + y) * width + x;
                    let means = [sums[at] / weight, sums[held + at] / weight];
                    assert!((means[0] - 3.0).abs() < 1e-5 && (means[1] + 1.0).abs() < 1e-5, "{z}, {y}, {x}: {means:?}");
                }
            }
        }
    }

    #[test]
    fn the_own_voxels_of_all_windows_are_those_of_the_volume() {
        // Along Z, the window is longer than the volume.
        let windows = Windows::new([3, 9, 11], [4, 4, 4], 0.25).unwrap();
        let counts = [0, 1, 2].map(|axis| windows.starts[axis].len());
        let row_windows = (0..counts[1]).flat_map(|iy| (0..counts[2]).map(move |ix| [0, iy, ix]));
        assert_eq!((counts[0], row_windows.map(|window| windows.own_voxels(window)).sum::<usize>()), (1, 3 * 9 * 11));
    }

    #[test]
    fn the_map_peaks_in_the_middle_and_is_positive_everywhere() {
        let map = gaussian_map([9, 9, 9]);
        let middle = map[4 * 81 + 4 * 9 + 4];
        assert!((middle - 1.0).abs() < 1e-6);
        assert!(map.iter().all(|v| *v >= 1e-3 && *v <= middle));
        assert_eq!(map[0], 1e-3);
    }
}
