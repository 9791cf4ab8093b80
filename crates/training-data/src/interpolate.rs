//! Interpolation of voxels at fractional positions.

/// Interpolates linearly at the positions `at` (Z, Y, X in voxels) of one row; positions outside the box give 0.
pub(crate) fn linear(volume: &[f32], size: [usize; 3], at: [&[f32]; 3], out: &mut [f32]) {
    let [_, ny, nx] = size;
    let plane = ny * nx;
    for (((o, z), y), x) in out.iter_mut().zip(at[0]).zip(at[1]).zip(at[2]) {
        // Positions are not negative, so truncation rounds down.
        let (iz, iy, ix) = (*z as i32, *y as i32, *x as i32);
        let (fz, fy, fx) = (z - iz as f32, y - iy as f32, x - ix as f32);
        let base =
            (iz as usize).wrapping_mul(plane).wrapping_add((iy as usize).wrapping_mul(nx)).wrapping_add(ix as usize);
        let Some(near) = volume.get(base..base.wrapping_add(nx + 2)) else {
            *o = 0.0;
            continue;
        };
        let Some(far) = volume.get(base + plane..base + plane + nx + 2) else {
            *o = 0.0;
            continue;
        };
        let lerp = |a: f32, b: f32, w: f32| a + (b - a) * w;
        let top = lerp(lerp(near[0], near[1], fx), lerp(near[nx], near[nx + 1], fx), fy);
        let bottom = lerp(lerp(far[0], far[1], fx), lerp(far[nx], far[nx + 1], fx), fy);
        *o = lerp(top, bottom, fz);
    }
}

/// Interpolates as [`linear`] does, but with a triangle filter of these half widths along Z, Y, X in voxels, at least 1, with which
/// predictions resample stacks of small voxels: it averages noise and detail that the coarser grid cannot show. Only voxels of the
/// box count.
pub(crate) fn filtered(volume: &[f32], size: [usize; 3], half_widths: [f64; 3], at: [&[f32]; 3], out: &mut [f32]) {
    if half_widths.iter().all(|half| *half <= 1.0) {
        return linear(volume, size, at, out);
    }
    let [_, ny, nx] = size;
    let half = half_widths.map(|half| half as f32);
    let mut weights: [Vec<f32>; 3] = Default::default();
    for (i, o) in out.iter_mut().enumerate() {
        let mut first = [0; 3];
        for a in 0..3 {
            let position = at[a].get(i).copied().unwrap_or(f32::NAN);
            first[a] = triangle_weights(position, half[a], size[a], &mut weights[a]);
        }
        *o = 0.0;
        for (z, weight_z) in (first[0]..).zip(&weights[0]) {
            for (y, weight_y) in (first[1]..).zip(&weights[1]) {
                let start = (z * ny + y) * nx + first[2];
                let row = volume.get(start..start + weights[2].len()).unwrap_or_default();
                *o += weight_z * weight_y * row.iter().zip(&weights[2]).map(|(v, w)| v * w).sum::<f32>();
            }
        }
    }
}

/// Computes the weights of the voxels around a position on an axis of `count` voxels, whose sum is 1, for a triangle filter of this
/// half width in voxels. Returns the first voxel; there are no weights if the position is outside.
fn triangle_weights(position: f32, half: f32, count: usize, weights: &mut Vec<f32>) -> usize {
    weights.clear();
    // Casts saturate: positions below 0 and NaN give 0.
    let first = ((position - half).floor() + 1.0) as usize;
    let end = ((position + half).ceil() as usize).min(count);
    weights.extend((first..end).map(|i| (1.0 - (position - i as f32).abs() / half).max(0.0)));
    let sum: f32 = weights.iter().sum();
    if sum > 0.0 {
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    first
}

/// Returns the nearest voxel of each position in `out`; positions outside the box give `outside`.
pub(crate) fn nearest<T: Copy>(volume: &[T], size: [usize; 3], at: [&[f32]; 3], outside: T, out: &mut [T]) {
    let [_, ny, nx] = size;
    for (((o, z), y), x) in out.iter_mut().zip(at[0]).zip(at[1]).zip(at[2]) {
        let (iz, iy, ix) = ((z + 0.5) as i32, (y + 0.5) as i32, (x + 0.5) as i32);
        let index = (iz as usize).wrapping_mul(ny).wrapping_add(iy as usize).wrapping_mul(nx).wrapping_add(ix as usize);
        *o = volume.get(index).copied().unwrap_or(outside);
    }
}

/// Sets weights to 0 at positions outside `low..=high`.
pub(crate) fn zero_outside(at: [&[f32]; 3], low: [f32; 3], high: [f32; 3], out: &mut [f32]) {
    for a in 0..3 {
        let (low, high) = (low[a], high[a]);
        out.iter_mut().zip(at[a]).for_each(|(o, v)| *o *= f32::from(u8::from(*v >= low && *v <= high)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_has_the_weights_of_predictions() {
        use cytoscope_volume::resample::{AxisMap, filter_half_width, linear as resampled};
        let size = [6usize, 24, 35];
        let volume: Vec<f32> = (0..size.iter().product()).map(|i: usize| ((i * 7919) % 101) as f32).collect();
        let to = [6usize, 10, 5];
        let scale: [f64; 3] = std::array::from_fn(|a| size[a] as f64 / to[a] as f64);
        let maps: [AxisMap; 3] = std::array::from_fn(|a| AxisMap::new(size[a], to[a]));
        let expected = resampled(&volume, 0, [size[1], size[2]], &maps, 0..to[0]);
        let place = |a: usize, i: usize| ((i as f64 + 0.5) * scale[a] - 0.5) as f32;
        let places = (0..to[0]).flat_map(|z| (0..to[1]).flat_map(move |y| (0..to[2]).map(move |x| [z, y, x])));
        let places: Vec<[usize; 3]> = places.collect();
        let along = |a: usize| -> Vec<f32> { places.iter().map(|at| place(a, at[a])).collect() };
        let at = [0, 1, 2].map(along);
        let mut out = vec![0.0; expected.len()];
        filtered(&volume, size, scale.map(filter_half_width), [&at[0], &at[1], &at[2]], &mut out);
        for (i, (found, expected)) in out.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() < 1e-3, "{i}: {found}, expected {expected}");
        }
        // Without a wider filter, it is linear interpolation.
        let mut plain = out.clone();
        linear(&volume, size, [&at[0], &at[1], &at[2]], &mut plain);
        filtered(&volume, size, [1.0; 3], [&at[0], &at[1], &at[2]], &mut out);
        assert_eq!(out, plain);
    }

    #[test]
    fn interpolation_of_a_linear_volume_is_exact() {
        let size = [4usize, 5, 6];
        let value = |z: f32, y: f32, x: f32| 2.0 * z - 3.0 * y + 0.5 * x + 1.0;
        let mut volume = Vec::new();
        (0..4).for_each(|z| (0..5).for_each(|y| (0..6).for_each(|x| volume.push(value(z as f32, y as f32, x as f32)))));
        let at: [Vec<f32>; 3] = [vec![0.0, 1.25, 2.9], vec![0.5, 3.0, 1.75], vec![4.5, 0.0, 2.25]];
        let mut out = vec![0.0; 3];
        linear(&volume, size, [&at[0], &at[1], &at[2]], &mut out);
        for i in 0..3 {
            assert!((out[i] - value(at[0][i], at[1][i], at[2][i])).abs() < 1e-4);
        }
        nearest(&volume, size, [&at[0], &at[1], &at[2]], 0.0, &mut out);
        assert_eq!(out[1], value(1.0, 3.0, 0.0));
        assert_eq!(out[2], value(3.0, 2.0, 2.0));
        let mut weight = vec![1.0; 3];
        zero_outside([&at[0], &at[1], &at[2]], [0.0; 3], [2.0, 9.0, 9.0], &mut weight);
        assert_eq!(weight, [1.0, 1.0, 0.0]);
    }
}
