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
