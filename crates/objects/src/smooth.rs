//! Separable Gaussian smoothing.

use crate::ObjectsError;
use crate::error::check_len;
use rayon::prelude::*;

/// A normalised Gaussian kernel reaching 3 sigma to each side (its half: centre first).
fn half_kernel(sigma: f64) -> Vec<f32> {
    let radius = (3.0 * sigma).ceil() as usize;
    let raw: Vec<f64> = (0..=radius).map(|i| (-0.5 * (i as f64 / sigma).powi(2)).exp()).collect();
    let sum = raw[0] + 2.0 * raw[1..].iter().sum::<f64>();
    raw.into_iter().map(|v| (v / sum) as f32).collect()
}

/// Smooths a volume in place; `sigma` in voxels along Z, Y, X (0: not along that axis); borders are held.
///
/// # Errors
/// [`ObjectsError::Length`] if the volume does not fill its shape.
pub fn gaussian(volume: &mut [f32], shape_zyx: [usize; 3], sigma: [f64; 3]) -> Result<(), ObjectsError> {
    check_len("volume", volume.len(), shape_zyx)?;
    let [nz, ny, nx] = shape_zyx;
    if volume.is_empty() {
        return Ok(());
    }
    if sigma[2] > 0.0 && nx > 1 {
        let kernel = half_kernel(sigma[2]);
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
        let kernel = half_kernel(sigma[1]);
        volume.par_chunks_mut(nx * ny).for_each(|plane| lines(plane, ny, nx, &kernel));
    }
    if sigma[0] > 0.0 && nz > 1 {
        let kernel = half_kernel(sigma[0]);
        let plane = ny * nx;
        // Column blocks of a few hundred voxels stay in cache over all slices.
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

/// Smooths along the slower axis of `[count][width]`, keeping a ring of the original lines still needed.
fn lines(block: &mut [f32], count: usize, width: usize, kernel: &[f32]) {
    let r = kernel.len() - 1;
    let first = block[..width].to_vec();
    let mut ring: Vec<Vec<f32>> = vec![first; r + 1];
    let mut sum = vec![0.0f32; width];
    for y in 0..count {
        // ring[y % (r + 1)] receives the original line y; the others hold lines y-r..y-1 (the first line before the start).
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
                // Before the start the first line is held: slot 0 keeps it until line r + 1 comes, when no line needs it.
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
    fn equals_a_direct_sum_with_held_borders() {
        let shape = [7, 6, 9];
        let n: usize = shape.iter().product();
        let volume: Vec<f32> = (0..n).map(|i| ((i * 7919) % 101) as f32).collect();
        let sigma = [1.5, 0.8, 2.0];
        let mut got = volume.clone();
        gaussian(&mut got, shape, sigma).unwrap();
        let mut want: Vec<f64> = volume.iter().map(|v| f64::from(*v)).collect();
        let strides = [54, 9, 1];
        for axis in 0..3 {
            let half = half_kernel(sigma[axis]);
            let source = want.clone();
            for (i, w) in want.iter_mut().enumerate() {
                let at = (i / strides[axis]) % shape[axis];
                *w = (-(half.len() as isize - 1)..half.len() as isize)
                    .map(|k| {
                        let j = (at as isize + k).clamp(0, shape[axis] as isize - 1) as usize;
                        f64::from(half[k.unsigned_abs()]) * source[i - at * strides[axis] + j * strides[axis]]
                    })
                    .sum();
            }
        }
        for (g, w) in got.iter().zip(&want) {
            assert!((f64::from(*g) - w).abs() < 1e-3, "{g} {w}");
        }
    }
}
