//! Separable Gaussian smoothing.

use crate::ObjectsError;
use crate::error::check_len;
use rayon::prelude::*;

/// Radius up to which the weights of a kernel that is longer than its line are summed one by one; above it, their sum
/// is taken from the integral.
const SUMMED_RADIUS: usize = 4096;
/// The integral of `exp(-x²/2)` from 0 to 3.
const HALF_GAUSSIAN_TO_3: f64 = 1.249_930_444_741_547_4;

/// Returns half of a normalized Gaussian kernel (center first) that extends 3 sigma to each side, for lines of `count`
/// voxels, at least two.
///
/// At most `count` elements: weights beyond the line's length fall on the repeated borders, so they are added to the
/// last element. The result is the same, and the work is bounded by the length of the line for any sigma.
fn half_kernel(sigma: f64, count: usize) -> Vec<f32> {
    let radius = (3.0 * sigma).ceil();
    let weight = |i: usize| (-0.5 * (i as f64 / sigma).powi(2)).exp();
    let direct = count.max(SUMMED_RADIUS);
    let kept = (radius as usize).min(count - 1);
    let mut raw: Vec<f64> = (0..=kept).map(weight).collect();
    let near: f64 = raw[1..].iter().sum();
    let far: f64 = if radius as usize <= direct {
        (kept + 1..=radius as usize).map(weight).sum()
    } else {
        // Euler–Maclaurin: the sum from 1 to radius is the integral plus half the difference of the ends.
        (sigma * HALF_GAUSSIAN_TO_3 + 0.5 * (weight(radius as usize) - 1.0) - near).max(0.0)
    };
    let sum = raw[0] + 2.0 * (near + far);
    if let Some(last) = raw.last_mut().filter(|_| far > 0.0) {
        *last += far;
    }
    raw.into_iter().map(|v| (v / sum) as f32).collect()
}

/// Smooths a volume in place with `sigma` in voxels along Z, Y, X (0: no smoothing along that axis). Borders are
/// repeated.
///
/// # Errors
/// [`ObjectsError::Length`] if the volume does not match its shape; [`ObjectsError::Parameter`] if a sigma is negative
/// or not finite.
pub fn gaussian(volume: &mut [f32], shape_zyx: [usize; 3], sigma: [f64; 3]) -> Result<(), ObjectsError> {
    check_len("volume", volume.len(), shape_zyx)?;
    if sigma.iter().any(|s| !s.is_finite() || *s < 0.0) {
        return Err(ObjectsError::Parameter { what: "sigma", expected: "0 or more voxels", got: format!("{sigma:?}") });
    }
    let [nz, ny, nx] = shape_zyx;
    if volume.is_empty() {
        return Ok(());
    }
    if sigma[2] > 0.0 && nx > 1 {
        let kernel = half_kernel(sigma[2], nx);
        volume.par_chunks_mut(nx * ny).for_each(|plane| {
            let mut padded = vec![0.0; nx + 2 * (kernel.len() - 1)];
            for row in plane.chunks_exact_mut(nx) {
                let r = kernel.len() - 1;
                padded[..r].fill(row[0]);
                padded[r..r + nx].copy_from_slice(row);
                padded[r + nx..].fill(row[nx - 1]);
                for (x, out) in row.iter_mut().enumerate() {
                    *out = kernel[0] * padded[r + x];
                }
                for (k, w) in kernel.iter().enumerate().skip(1) {
                    for (x, out) in row.iter_mut().enumerate() {
                        *out += w * (padded[r + x - k] + padded[r + x + k]);
                    }
                }
            }
        });
    }
    if sigma[1] > 0.0 && ny > 1 {
        let kernel = half_kernel(sigma[1], ny);
        volume.par_chunks_mut(nx * ny).for_each(|plane| lines(plane, ny, nx, &kernel));
    }
    if sigma[0] > 0.0 && nz > 1 {
        let kernel = half_kernel(sigma[0], nz);
        let plane = ny * nx;
        // Blocks of a few hundred columns stay in cache across all slices.
        const WIDTH: usize = 512;
        let blocks: Vec<(usize, Vec<f32>)> = (0..plane.div_ceil(WIDTH))
            .into_par_iter()
            .map(|b| {
                let (start, width) = (b * WIDTH, WIDTH.min(plane - b * WIDTH));
                let mut block: Vec<f32> = Vec::with_capacity(width * nz);
                (0..nz).for_each(|z| block.extend_from_slice(&volume[z * plane + start..z * plane + start + width]));
                lines(&mut block, nz, width, &kernel);
                (start, block)
            })
            .collect();
        for (start, block) in blocks {
            let width = block.len() / nz;
            for z in 0..nz {
                volume[z * plane + start..z * plane + start + width]
                    .copy_from_slice(&block[z * width..(z + 1) * width]);
            }
        }
    }
    Ok(())
}

/// Smooths along the slower axis of `[count][width]`, with a ring buffer of the original lines that are still needed.
fn lines(block: &mut [f32], count: usize, width: usize, kernel: &[f32]) {
    let r = kernel.len() - 1;
    let first = block[..width].to_vec();
    let mut ring: Vec<Vec<f32>> = vec![first; r + 1];
    let mut sum = vec![0.0f32; width];
    for y in 0..count {
        // ring[y % (r + 1)] receives the original line y; the others hold lines y-r..y-1 (the first line before the
        // start).
        let slot = y % (r + 1);
        ring[slot].copy_from_slice(&block[y * width..(y + 1) * width]);
        sum.fill(0.0);
        for (k, w) in kernel.iter().enumerate() {
            let below = (y + k).min(count - 1);
            let after = &block[below * width..(below + 1) * width];
            if k == 0 {
                sum.iter_mut().zip(after).for_each(|(s, a)| *s += w * a);
            } else {
                let before = if k > y { &ring[0][..] } else { &ring[(y - k) % (r + 1)][..] };
                // The first line is repeated before the start: slot 0 holds it until line r + 1 replaces it.
                sum.iter_mut().zip(before.iter().zip(after)).for_each(|(s, (b, a))| *s += w * (b + a));
            }
        }
        block[y * width..(y + 1) * width].copy_from_slice(&sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_a_direct_sum_with_repeated_borders() {
        let shape = [7, 6, 9];
        let n: usize = shape.iter().product();
        let volume: Vec<f32> = (0..n).map(|i| ((i * 7919) % 101) as f32).collect();
        for sigma in [[1.5, 0.8, 2.0], [3.0, 2.5, 7.0], [40.0, 1e3, 1.0], [0.0, 1e-300, 2e3]] {
            check(&volume, shape, sigma);
        }
    }

    /// Returns the whole kernel without a length limit.
    fn long_kernel(sigma: f64) -> Vec<f64> {
        let radius = (3.0 * sigma).ceil() as usize;
        let raw: Vec<f64> = (0..=radius).map(|i| (-0.5 * (i as f64 / sigma).powi(2)).exp()).collect();
        let sum = raw[0] + 2.0 * raw[1..].iter().sum::<f64>();
        raw.into_iter().map(|v| v / sum).collect()
    }

    fn check(volume: &[f32], shape: [usize; 3], sigma: [f64; 3]) {
        let volume = volume.to_vec();
        let mut got = volume.clone();
        gaussian(&mut got, shape, sigma).unwrap();
        let mut want: Vec<f64> = volume.iter().map(|v| f64::from(*v)).collect();
        let strides = [54, 9, 1];
        for axis in 0..3 {
            if sigma[axis] == 0.0 {
                continue;
            }
            let half = long_kernel(sigma[axis]);
            let source = want.clone();
            for (i, w) in want.iter_mut().enumerate() {
                let at = (i / strides[axis]) % shape[axis];
                *w = (-(half.len() as isize - 1)..half.len() as isize)
                    .map(|k| {
                        let j = (at as isize + k).clamp(0, shape[axis] as isize - 1) as usize;
                        half[k.unsigned_abs()] * source[i - at * strides[axis] + j * strides[axis]]
                    })
                    .sum();
            }
        }
        for (g, w) in got.iter().zip(&want) {
            assert!((f64::from(*g) - w).abs() < 1e-3, "{sigma:?}: {g} {w}");
        }
    }

    #[test]
    fn kernels_are_no_longer_than_the_line() {
        for sigma in [0.1, 2.0, 1e3, 1e6, 1e15, 1e300] {
            let kernel = half_kernel(sigma, 100);
            assert!(kernel.len() <= 100, "{sigma}");
            let sum = kernel[0] + 2.0 * kernel[1..].iter().sum::<f32>();
            assert!((sum - 1.0).abs() < 1e-4, "{sigma}: {sum}");
        }
        // Sum and integral agree at the radius where the method changes.
        let (summed, integral) = (half_kernel(1365.0, 50), half_kernel(1366.0, 50));
        assert!(summed.iter().zip(&integral).all(|(a, b)| (a / b - 1.0).abs() < 1e-3), "{summed:?} {integral:?}");
    }

    #[test]
    fn invalid_sigmas_are_refused() {
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            let result = gaussian(&mut [0.0; 8], [2, 2, 2], [1.0, wrong, 1.0]);
            assert!(matches!(result, Err(ObjectsError::Parameter { what: "sigma", .. })), "{wrong}");
        }
    }
}
