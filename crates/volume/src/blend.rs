//! Weights for blending overlapping tiles.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_peaks_in_the_middle_and_is_positive_everywhere() {
        let map = gaussian_map([9, 9, 9]);
        let middle = map[4 * 81 + 4 * 9 + 4];
        assert!((middle - 1.0).abs() < 1e-6);
        assert!(map.iter().all(|v| *v >= 1e-3 && *v <= middle));
        assert_eq!(map[0], 1e-3);
    }
}
