//! Blurring by the objective: separable Gaussians, wider along Z than in the plane.
//!
//! The point-spread function of a microscope is near a Gaussian with σ_xy ≈ 0.225 λ/NA and σ_z ≈ 0.78 n λ/NA² (paraxial
//! wide field; Zhang, Zerubia and Olivo-Marin, Applied Optics 46, 2007). Beyond an edge the nearest voxel is repeated.

use crate::{SimulateError, grid::Grid, progress::ProgressRange, progress::each_slab};

/// Standard deviation in voxels below which a Gaussian is not applied.
const NO_BLUR_VOXELS: f64 = 0.05;

/// The half kernel `[w0, w1, …, wr]` of a Gaussian with σ in voxels, truncated at 3σ: `w0 + 2 Σ wk = 1`.
///
/// Each weight is the mean of the Gaussian over its voxel (nine samples), which is accurate for σ below half a voxel
/// too.
pub(crate) fn gaussian(sigma_voxels: f64) -> Vec<f32> {
    if sigma_voxels < NO_BLUR_VOXELS {
        return vec![1.0];
    }
    let radius = (3.0 * sigma_voxels).ceil().max(1.0) as usize;
    let weight = |k: usize| {
        let mean_over_voxel = |i: i32| {
            let t = (k as f64 + f64::from(i) / 9.0) / sigma_voxels;
            (-0.5 * t * t).exp()
        };
        (-4..=4).map(mean_over_voxel).sum::<f64>()
    };
    let weights: Vec<f64> = (0..=radius).map(weight).collect();
    let total = weights[0] + 2.0 * weights[1..].iter().sum::<f64>();
    weights.iter().map(|w| (w / total) as f32).collect()
}

/// Blurs a volume in place; σ in µm along Z, Y, X. `scratch` is a second volume, which is overwritten.
pub(crate) fn blur(
    volume: &mut Vec<f32>,
    scratch: &mut Vec<f32>,
    grid: &Grid,
    sigma_um: [f64; 3],
    progress: &ProgressRange<'_>,
) -> Result<(), SimulateError> {
    blur_slices(volume, grid, [sigma_um[1], sigma_um[2]], &progress.part(0.0, 0.6))?;
    let kernel = gaussian(sigma_um[0] / grid.voxel_um[0]);
    if kernel.len() > 1 && grid.shape[0] > 1 {
        let (plane, row) = (grid.plane(), grid.shape[2]);
        scratch.resize(grid.len(), 0.0);
        let source: &[f32] = volume;
        each_slab(scratch, plane, &progress.part(0.6, 1.0), |z, target| {
            for (y, line) in target.chunks_exact_mut(row).enumerate() {
                weighted_line_sum(source, line, &kernel, z, grid.shape[0], |slice| slice * plane + y * row);
            }
        })?;
        std::mem::swap(volume, scratch);
    }
    Ok(())
}

/// Blurs every slice of a volume in place, in the plane only; σ in µm along Y, X.
pub(crate) fn blur_slices(
    volume: &mut [f32],
    grid: &Grid,
    sigma_um: [f64; 2],
    progress: &ProgressRange<'_>,
) -> Result<(), SimulateError> {
    let kernel_y = gaussian(sigma_um[0] / grid.voxel_um[1]);
    let kernel_x = gaussian(sigma_um[1] / grid.voxel_um[2]);
    let [_, rows, row] = grid.shape;
    each_slab(volume, grid.plane(), progress, |_, slice| {
        let mut along_x = vec![0.0; slice.len()];
        let mut padded = Vec::with_capacity(row + 2 * kernel_x.len());
        for (source, target) in slice.chunks_exact(row).zip(along_x.chunks_exact_mut(row)) {
            blur_row(source, target, &kernel_x, &mut padded);
        }
        for (y, target) in slice.chunks_exact_mut(row).enumerate() {
            weighted_line_sum(&along_x, target, &kernel_y, y, rows, |line| line * row);
        }
    })
}

/// Blurs one row along X.
fn blur_row(source: &[f32], target: &mut [f32], kernel: &[f32], padded: &mut Vec<f32>) {
    let (Some(first), Some(last)) = (source.first(), source.last()) else { return };
    let radius = kernel.len() - 1;
    padded.clear();
    padded.extend(std::iter::repeat_n(*first, radius));
    padded.extend_from_slice(source);
    padded.extend(std::iter::repeat_n(*last, radius));
    target.iter_mut().zip(source).for_each(|(t, s)| *t = kernel[0] * s);
    for (k, weight) in kernel.iter().enumerate().skip(1) {
        let (before, after) = (&padded[radius - k..], &padded[radius + k..]);
        target.iter_mut().zip(before).zip(after).for_each(|((t, a), b)| *t += weight * (a + b));
    }
}

/// The weighted sum of the lines around line `index` of `count` lines; line `i` begins at `start(i)`.
fn weighted_line_sum(
    source: &[f32],
    target: &mut [f32],
    kernel: &[f32],
    index: usize,
    count: usize,
    start: impl Fn(usize) -> usize,
) {
    let len = target.len();
    let line = |i: usize| &source[start(i)..start(i) + len];
    let center = line(index);
    let pairs: Vec<(&[f32], &[f32], f32)> = (1..kernel.len())
        .map(|k| (line(index.saturating_sub(k)), line((index + k).min(count - 1)), kernel[k]))
        .collect();
    target.iter_mut().zip(center).for_each(|(t, s)| *t = kernel[0] * s);
    for (before, after, weight) in pairs {
        target.iter_mut().zip(before).zip(after).for_each(|((t, a), b)| *t += weight * (a + b));
    }
}

/// The Laplacian in the plane of every slice, in 1/µm², with the five-point stencil; edges repeat the nearest voxel.
pub(crate) fn laplacian_slices(
    volume: &mut [f32],
    grid: &Grid,
    progress: &ProgressRange<'_>,
) -> Result<(), SimulateError> {
    let [_, rows, row] = grid.shape;
    let (wy, wx) = ((1.0 / grid.voxel_um[1].powi(2)) as f32, (1.0 / grid.voxel_um[2].powi(2)) as f32);
    each_slab(volume, grid.plane(), progress, |_, slice| {
        let source = slice.to_vec();
        for (y, target) in slice.chunks_exact_mut(row).enumerate() {
            let line = |i: usize| &source[i * row..(i + 1) * row];
            let (above, here, below) = (line(y.saturating_sub(1)), line(y), line((y + 1).min(rows - 1)));
            for (x, value) in target.iter_mut().enumerate() {
                let (left, right) = (here[x.saturating_sub(1)], here[(x + 1).min(row - 1)]);
                *value = wy * (above[x] + below[x] - 2.0 * here[x]) + wx * (left + right - 2.0 * here[x]);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        Grid { shape: [21, 31, 33], voxel_um: [1.0, 0.5, 0.5] }
    }

    #[test]
    fn a_kernel_sums_to_one_at_every_width() {
        for sigma in [0.0, 0.01, 0.1, 0.5, 1.0, 7.3] {
            let kernel = gaussian(sigma);
            let sum = kernel[0] + 2.0 * kernel[1..].iter().sum::<f32>();
            assert!((sum - 1.0).abs() < 1e-5, "σ = {sigma}: {sum}");
        }
    }

    #[test]
    fn a_point_is_blurred_to_the_requested_widths() {
        let (grid, sigma_um) = (grid(), [1.5, 0.8, 0.6]);
        let mut volume = vec![0.0; grid.len()];
        let center = [10, 15, 16];
        volume[(center[0] * 31 + center[1]) * 33 + center[2]] = 1.0;
        blur(&mut volume, &mut Vec::new(), &grid, sigma_um, &ProgressRange::new(&|_| true)).unwrap();
        let mut total = 0.0;
        let mut second = [0.0; 3];
        for (i, v) in volume.iter().enumerate() {
            let at = [i / (31 * 33), i / 33 % 31, i % 33];
            total += f64::from(*v);
            for a in 0..3 {
                second[a] += f64::from(*v) * ((at[a] as f64 - center[a] as f64) * grid.voxel_um[a]).powi(2);
            }
        }
        assert!((total - 1.0).abs() < 1e-4);
        for a in 0..3 {
            // The width of a voxel adds voxel²/12; truncation at 3σ reduces the variance by about 3 %.
            let expected = sigma_um[a].powi(2) + grid.voxel_um[a].powi(2) / 12.0;
            assert!((second[a] / expected - 1.0).abs() < 0.05, "axis {a}: {} for {expected}", second[a]);
        }
    }

    #[test]
    fn the_laplacian_of_a_paraboloid_is_constant() {
        let grid = grid();
        let mut volume: Vec<f32> = (0..grid.len())
            .map(|i| {
                let (y, x) = (grid.position_um(1, i / 33 % 31), grid.position_um(2, i % 33));
                (0.5 * y * y + 1.5 * x * x) as f32
            })
            .collect();
        laplacian_slices(&mut volume, &grid, &ProgressRange::new(&|_| true)).unwrap();
        let inside = volume[(3 * 31 + 15) * 33 + 16];
        assert!((inside - 4.0).abs() < 0.01, "{inside}");
    }
}
