//! Size of bright blobs in an image, without a model, from scale-space responses of a Laplacian of Gaussian.
//!
//! A ball of diameter d has its strongest response to a Laplacian of Gaussian at σ = d / (2 √3), and a disk in a single slice
//! at σ = d / (2 √2) (Lindeberg, "Feature detection with automatic scale selection", 1998). The Laplacian is approximated by
//! differences of Gaussians (Lowe 2004). Blur, noise and touching objects shift the result, so it is an estimate: within a
//! factor of two for most stacks.

use crate::ObjectsError;
use crate::diameter::FLAT_SLICES;
use crate::error::check_len;
use crate::smooth::gaussian;

/// Ratio of a ball's diameter to the σ of its strongest response: 2 √3.
const BALL_PER_SIGMA: f64 = 3.464_101_615_137_754_6;
/// Ratio of a disk's diameter to the σ of its strongest response: 2 √2.
const DISK_PER_SIGMA: f64 = 2.828_427_124_746_190_3;
/// Ratio of neighboring scales.
const STEP: f64 = 1.2;
/// Percentiles that are scaled to 0 and 1; values outside are clipped.
const LOW_HIGH: [f64; 2] = [0.01, 0.998];
/// Minimum response of a counted blob, relative to the strongest one.
const MIN_SHARE: f64 = 0.4;
/// Minimum response of a counted blob, in noise levels (median absolute deviations) of its scale.
const MIN_OVER_NOISE: f32 = 4.0;
/// Noise level in a plane relative to that of the finest scale, times the ratio of the scales: 1 for uncorrelated noise.
const NOISE_DECAY: f32 = 1.5;
/// Minimum response of a counted blob, relative to the range of intensities.
const MIN_RESPONSE: f32 = 0.03;
/// Maximum number of counted blobs.
const MAX_BLOBS: usize = 400;
/// Maximum number of blobs that can be outliers among many weaker ones: see [`blob_size_without_outliers`].
pub const MAX_OUTLIERS: usize = 3;
/// Radius around an outlier within which no blobs are looked for, relative to its diameter: where a Gaussian has fallen to 0.5 %
/// of its peak.
const OUTLIER_REACH: f64 = 0.94;
/// Maximum number of candidates, the strongest first.
const MAX_CANDIDATES: usize = 20_000;
/// Smallest scale in voxels along a row, and in slices.
const MIN_VOXELS: [f64; 2] = [5.0, 2.5];
/// Largest scale relative to the shorter side of a slice.
const MAX_FIELD_SHARE: f64 = 0.6;
/// Ratio of the true diameter to the diameter of the strongest response: the median over various simulated stacks whose
/// nuclei touch, vary in size and are blurred.
const CALIBRATION: f64 = 1.25;
/// Number of values sampled for percentiles.
const SAMPLED_VALUES: usize = 200_000;

/// Size of the blobs of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlobSize {
    /// Median diameter, weighted by the squared response (in a few slices, times the area), in µm.
    pub diameter_um: f64,
    /// Standard deviation of the logarithm of the blobs' diameters.
    pub log_spread: f64,
    /// Number of blobs that the estimate is based on.
    pub count: usize,
    /// Mean response of the counted blobs, relative to the range of intensities.
    pub response: f64,
    /// Center Z, Y, X in µm of the blob with the most other blobs within three diameters.
    pub center_um: [f64; 3],
    /// Whether the diameter is the smallest one that was looked for: that of texture, such as membranes and their junctions,
    /// rather than of objects.
    pub is_smallest: bool,
}

/// A local maximum of the response at one scale.
#[derive(Clone, Copy)]
struct Blob {
    response: f32,
    diameter_um: f64,
    center_um: [f64; 3],
}

/// Returns the median size of the bright blobs of a volume, or `None` if it has none.
///
/// # Errors
/// [`ObjectsError::Length`] if the volume does not match its shape; [`ObjectsError::Parameter`] if a voxel size is not
/// above 0.
pub fn blob_size(volume: &[f32], shape_zyx: [usize; 3], voxel_um: [f64; 3]) -> Result<Option<BlobSize>, ObjectsError> {
    Ok(blobs(volume, shape_zyx, voxel_um)?.and_then(BlobSet::summary))
}

/// Returns the median size of the blobs that remain without up to [`MAX_OUTLIERS`] blobs that are so bright that no others count
/// beside them, such as debris among nuclei. `None` if there are more or no bright blobs, or none remain.
///
/// # Errors
/// Same as [`blob_size`].
pub fn blob_size_without_outliers(
    volume: &[f32],
    shape_zyx: [usize; 3],
    voxel_um: [f64; 3],
) -> Result<Option<BlobSize>, ObjectsError> {
    let Some(bright) = blobs(volume, shape_zyx, voxel_um)?.filter(|set| (1..=MAX_OUTLIERS).contains(&set.blobs.len()))
    else {
        return Ok(None);
    };
    let [_, ny, nx] = shape_zyx;
    let mut rest = volume.to_vec();
    for (row, line) in rest.chunks_exact_mut(nx.max(1)).enumerate() {
        let (z, y) = (row / ny.max(1), row % ny.max(1));
        for blob in &bright.blobs {
            let offset = |a: usize, at: usize| (at as f64 + 0.5) * voxel_um[a] - blob.center_um[a];
            let left =
                (OUTLIER_REACH * CALIBRATION * blob.diameter_um).powi(2) - offset(0, z).powi(2) - offset(1, y).powi(2);
            // Values that are not finite count as background.
            line.iter_mut().enumerate().filter(|(x, _)| offset(2, *x).powi(2) < left).for_each(|(_, v)| *v = f32::NAN);
        }
    }
    blob_size(&rest, shape_zyx, voxel_um)
}

/// The strongest blobs of a volume that do not lie inside one another.
struct BlobSet {
    blobs: Vec<Blob>,
    /// Whether they were found in a few slices.
    is_flat: bool,
    /// The smallest diameter that was looked for.
    smallest_um: f64,
}

/// Returns the blobs of a volume; `None` if it is uniform.
fn blobs(volume: &[f32], shape_zyx: [usize; 3], voxel_um: [f64; 3]) -> Result<Option<BlobSet>, ObjectsError> {
    check_len("volume", volume.len(), shape_zyx)?;
    if voxel_um.iter().any(|v| !v.is_finite() || *v <= 0.0) {
        return Err(ObjectsError::Parameter { what: "voxel_um", expected: "above 0", got: format!("{voxel_um:?}") });
    }
    let Some(scaled) = scaled(volume) else { return Ok(None) };
    let [_, height_um, width_um] = [0, 1, 2].map(|a| shape_zyx[a] as f64 * voxel_um[a]);
    let depth_limit = if shape_zyx[0] > 1 { MIN_VOXELS[1] * voxel_um[0] } else { 0.0 };
    let is_flat = shape_zyx[0] <= FLAT_SLICES;
    let per_sigma = if is_flat { DISK_PER_SIGMA } else { BALL_PER_SIGMA };
    let mut diameter_um = (MIN_VOXELS[0] * voxel_um[1].max(voxel_um[2])).max(depth_limit);
    let smallest_um = diameter_um;
    let max_um = MAX_FIELD_SHARE * height_um.min(width_um);
    let mut blobs: Vec<Blob> = Vec::new();
    let mut finest = None;
    let mut downsampled = Downsampled { factors: [1; 3], values: scaled, shape: shape_zyx };
    while diameter_um <= max_um {
        let sigma_um = diameter_um / per_sigma;
        // Voxels of half a σ are fine enough.
        let factors = [0, 1, 2].map(|a| ((0.5 * sigma_um / voxel_um[a]) as usize).clamp(1, shape_zyx[a]));
        downsampled.downsample_to(factors);
        let grid_um = [0, 1, 2].map(|a| voxel_um[a] * downsampled.factors[a] as f64);
        let response = response(&downsampled, grid_um, sigma_um)?;
        let mut noise = noise(&response);
        if is_flat {
            // Dense objects in a plane cover so much of it that they would count as noise. That of pixels falls with the scale.
            let (at_finest, finest_um) = *finest.get_or_insert((noise, diameter_um));
            noise = noise.min(NOISE_DECAY * at_finest * (finest_um / diameter_um) as f32);
        }
        maxima(&response, downsampled.shape, (grid_um, diameter_um, noise), &mut blobs);
        diameter_um *= STEP;
    }
    Ok(Some(BlobSet { blobs: without_nested(blobs), is_flat, smallest_um }))
}

/// Returns the volume scaled to its percentiles and clipped to 0..1; `None` if it is uniform.
fn scaled(volume: &[f32]) -> Option<Vec<f32>> {
    let stride = volume.len().div_ceil(SAMPLED_VALUES).max(1);
    // An odd stride visits all columns.
    let mut sample: Vec<f32> = volume.iter().copied().step_by(stride | 1).filter(|v| v.is_finite()).collect();
    sample.sort_by(f32::total_cmp);
    let at = |share: f64| sample.get((share * sample.len().saturating_sub(1) as f64).round() as usize).copied();
    let (low, high) = (at(LOW_HIGH[0])?, at(LOW_HIGH[1])?);
    let range = high - low;
    if !range.is_finite() || range <= 0.0 {
        return None;
    }
    Some(volume.iter().map(|v| if v.is_finite() { ((v - low) / range).clamp(0.0, 1.0) } else { 0.0 }).collect())
}

/// A volume downsampled by averaging blocks of voxels.
struct Downsampled {
    /// Voxels of the original volume per voxel of this one along Z, Y, X.
    factors: [usize; 3],
    values: Vec<f32>,
    shape: [usize; 3],
}

impl Downsampled {
    /// Continues averaging toward `factors`, by integer factors from the current ones.
    fn downsample_to(&mut self, factors: [usize; 3]) {
        let steps = [0, 1, 2].map(|a| (factors[a] / self.factors[a]).max(1));
        if steps == [1; 3] {
            return;
        }
        let shape = [0, 1, 2].map(|a| (self.shape[a] / steps[a]).max(1));
        let [_, ny, nx] = self.shape;
        let share = 1.0 / steps.iter().product::<usize>() as f32;
        let mut values = vec![0.0f32; shape.iter().product()];
        for (i, row) in values.chunks_exact_mut(shape[2]).enumerate() {
            let (z, y) = (i / shape[1] * steps[0], i % shape[1] * steps[1]);
            for dz in 0..steps[0].min(self.shape[0] - z) {
                for dy in 0..steps[1].min(ny - y) {
                    let start = ((z + dz) * ny + y + dy) * nx;
                    let line = &self.values[start..start + nx];
                    for (out, part) in row.iter_mut().zip(line.chunks(steps[2])) {
                        *out += part.iter().sum::<f32>() * share;
                    }
                }
            }
        }
        self.factors = [0, 1, 2].map(|a| self.factors[a] * steps[a]);
        self.values = values;
        self.shape = shape;
    }
}

/// Returns the response to blobs whose strongest response is that at a sigma in µm.
fn response(volume: &Downsampled, voxel_um: [f64; 3], sigma_um: f64) -> Result<Vec<f32>, ObjectsError> {
    let sigma = voxel_um.map(|v| sigma_um / v);
    let mut response = volume.values.clone();
    gaussian(&mut response, volume.shape, sigma)?;
    // From σ to 1.2 σ by a Gaussian with the difference of the variances.
    let mut wider = response.clone();
    gaussian(&mut wider, volume.shape, sigma.map(|s| s * (STEP * STEP - 1.0).sqrt()))?;
    let gain = (1.0 / (STEP - 1.0)) as f32;
    response.iter_mut().zip(wider).for_each(|(r, w)| *r = gain * (*r - w));
    Ok(response)
}

/// Returns the noise level of a response: its median absolute deviation, as a standard deviation.
fn noise(response: &[f32]) -> f32 {
    let mut sizes: Vec<f32> =
        response.iter().step_by((response.len() / SAMPLED_VALUES).max(1) | 1).map(|r| r.abs()).collect();
    let middle = sizes.len() / 2;
    1.48 * *sizes.select_nth_unstable_by(middle, f32::total_cmp).1
}

/// Adds the maxima of the response to blobs of one diameter; `noise` is its noise level.
fn maxima(
    response: &[f32],
    [nz, ny, nx]: [usize; 3],
    (voxel_um, diameter_um, noise): ([f64; 3], f64, f32),
    blobs: &mut Vec<Blob>,
) {
    let min_response = MIN_RESPONSE.max(MIN_OVER_NOISE * noise);
    let at = |z: usize, y: usize, x: usize| response[(z * ny + y) * nx + x];
    for z in 0..nz {
        for y in 0..ny {
            for x in 0..nx {
                let here = at(z, y, x);
                if here < min_response {
                    continue;
                }
                let around = |i: usize, n: usize| i.saturating_sub(1)..(i + 2).min(n);
                let is_top = around(z, nz).all(|z| around(y, ny).all(|y| around(x, nx).all(|x| at(z, y, x) <= here)));
                if is_top {
                    let place = [z, y, x];
                    let center_um = [0, 1, 2].map(|a| (place[a] as f64 + 0.5) * voxel_um[a]);
                    blobs.push(Blob { response: here, diameter_um, center_um });
                }
            }
        }
    }
}

/// Returns the strongest blobs that do not lie inside one another, strongest first.
fn without_nested(mut blobs: Vec<Blob>) -> Vec<Blob> {
    blobs.sort_by(|a, b| b.response.total_cmp(&a.response));
    let min_response = blobs.first().map_or(0.0, |b| MIN_SHARE as f32 * b.response);
    let mut kept: Vec<Blob> = Vec::new();
    for blob in blobs.into_iter().take(MAX_CANDIDATES).take_while(|b| b.response >= min_response) {
        let apart = |other: &Blob| {
            let square: f64 = (0..3).map(|a| (other.center_um[a] - blob.center_um[a]).powi(2)).sum();
            let (small, large) = (other.diameter_um.min(blob.diameter_um), other.diameter_um.max(blob.diameter_um));
            // Edges of a large ball respond to small scales at about 0.55 of its diameter from its center.
            square.sqrt() >= 0.6 * large + 0.1 * small
        };
        if kept.iter().all(apart) {
            kept.push(blob);
        }
        if kept.len() == MAX_BLOBS {
            break;
        }
    }
    kept
}

/// Returns the center of the blob with the most other blobs within three diameters.
fn most_crowded_center(blobs: &[Blob]) -> Option<[f64; 3]> {
    let near = |blob: &Blob| {
        let square = |other: &Blob| (0..3).map(|a| (other.center_um[a] - blob.center_um[a]).powi(2)).sum::<f64>();
        blobs.iter().filter(|other| square(other).sqrt() < 3.0 * blob.diameter_um).count()
    };
    blobs.iter().max_by_key(|blob| near(blob)).map(|blob| blob.center_um)
}

impl BlobSet {
    /// Returns the size of the blobs; `None` without blobs.
    fn summary(self) -> Option<BlobSize> {
        let Self { mut blobs, is_flat, smallest_um } = self;
        let count = blobs.len();
        let mean = |f: &dyn Fn(&Blob) -> f64| blobs.iter().map(f).sum::<f64>() / count as f64;
        let center_um = most_crowded_center(&blobs)?;
        let (response, log_mean) = (mean(&|b| f64::from(b.response)), mean(&|b| b.diameter_um.ln()));
        let log_spread = mean(&|b| (b.diameter_um.ln() - log_mean).powi(2)).sqrt();
        blobs.sort_by(|a, b| a.diameter_um.total_cmp(&b.diameter_um));
        // Smoothing in a plane averages less noise than in a volume: there, the many small blobs of noise count by their area.
        let area = |b: &Blob| if is_flat { b.diameter_um.powi(2) } else { 1.0 };
        let weight = |b: &Blob| f64::from(b.response).powi(2) * area(b);
        let half = 0.5 * blobs.iter().map(weight).sum::<f64>();
        let mut sum = 0.0;
        let median = blobs.iter().find(|b| {
            sum += weight(b);
            sum >= half
        })?;
        let is_smallest = median.diameter_um <= smallest_um;
        Some(BlobSize {
            diameter_um: CALIBRATION * median.diameter_um,
            log_spread,
            count,
            response,
            center_um,
            is_smallest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Balls of one diameter on a lattice with some noise.
    fn balls(shape: [usize; 3], voxel_um: [f64; 3], diameter_um: f64) -> Vec<f32> {
        let spacing_um = 1.6 * diameter_um;
        let mut state = 1u32;
        (0..shape.iter().product::<usize>())
            .map(|i| {
                let at = [i / (shape[1] * shape[2]), i / shape[2] % shape[1], i % shape[2]];
                let square: f64 = (0..3)
                    .map(|a| {
                        let um = (at[a] as f64 + 0.5) * voxel_um[a] / spacing_um;
                        ((um.fract() - 0.5) * spacing_um).powi(2)
                    })
                    .sum();
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let noise = (state >> 8) as f32 / 16_777_216.0;
                f32::from(u8::from(square.sqrt() < diameter_um / 2.0)) * 100.0 + 20.0 * noise
            })
            .collect()
    }

    #[test]
    fn balls_of_all_sizes_are_measured_within_a_third() {
        for (voxel_um, diameter_um) in
            [([1.0, 0.5, 0.5], 6.0), ([1.0, 0.5, 0.5], 12.0), ([0.4, 0.4, 0.4], 4.0), ([3.0, 0.6, 0.6], 14.0)]
        {
            let shape = [0, 1, 2].map(|a| ((4.8 * diameter_um / voxel_um[a]) as usize).max(8));
            let found = blob_size(&balls(shape, voxel_um, diameter_um), shape, voxel_um).unwrap().unwrap();
            // Clean balls respond at their own size; the calibration is for nuclei as microscopes image them.
            let ratio = found.diameter_um / CALIBRATION / diameter_um;
            assert!((0.75..1.33).contains(&ratio), "{voxel_um:?} {diameter_um}: {found:?}");
        }
    }

    #[test]
    fn walls_have_blobs_of_the_smallest_size_and_balls_larger_ones() {
        let (shape, voxel_um) = ([16, 80, 80], [1.0, 0.5, 0.5]);
        let found = blob_size(&balls(shape, voxel_um, 8.0), shape, voxel_um).unwrap().unwrap();
        assert!(!found.is_smallest, "{found:?}");
        let mut state = 1u32;
        let walls: Vec<f32> = (0..shape.iter().product::<usize>())
            .map(|i| {
                let (y, x) = (i / shape[2] % shape[1], i % shape[2]);
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let noise = (state >> 8) as f32 / 16_777_216.0;
                f32::from(u8::from(y % 20 == 0 || x % 20 == 0)) * 100.0 + 100.0 * noise
            })
            .collect();
        let found = blob_size(&walls, shape, voxel_um).unwrap().unwrap();
        assert!(found.is_smallest, "{found:?}");
    }

    #[test]
    fn a_bright_outlier_does_not_hide_the_other_blobs() {
        let (shape, voxel_um, diameter_um) = ([24, 120, 120], [1.0, 0.5, 0.5], 8.0);
        let mut volume = balls(shape, voxel_um, diameter_um);
        for (i, value) in volume.iter_mut().enumerate() {
            let at = [i / (shape[1] * shape[2]), i / shape[2] % shape[1], i % shape[2]];
            let square: f64 = (0..3).map(|a| (at[a] as f64 * voxel_um[a] - [12.0, 20.0, 40.0][a]).powi(2)).sum();
            *value += 8000.0 * (-square / (2.0 * 36.0)).exp() as f32;
        }
        let hidden = blob_size(&volume, shape, voxel_um).unwrap().unwrap();
        assert!(hidden.count <= MAX_OUTLIERS && hidden.diameter_um > 1.5 * CALIBRATION * diameter_um, "{hidden:?}");
        let found = blob_size_without_outliers(&volume, shape, voxel_um).unwrap().unwrap();
        let ratio = found.diameter_um / CALIBRATION / diameter_um;
        assert!(found.count >= 8 && (0.75..1.33).contains(&ratio), "{found:?}");
        let even = balls(shape, voxel_um, diameter_um);
        assert_eq!(blob_size_without_outliers(&even, shape, voxel_um).unwrap(), None, "no outliers");
    }

    #[test]
    fn disks_in_a_single_slice_are_measured_at_any_slice_spacing() {
        for spacing_um in [0.3, 1.0, 6.0] {
            let (shape, voxel_um, diameter_um) = ([1, 160, 160], [spacing_um, 0.5, 0.5], 12.0);
            // The middle slice of a lattice of balls.
            let all = balls([5, 160, 160], [1.6 * diameter_um / 5.0, 0.5, 0.5], diameter_um);
            let slice = &all[2 * 160 * 160..3 * 160 * 160];
            let found = blob_size(slice, shape, voxel_um).unwrap().unwrap();
            let ratio = found.diameter_um / CALIBRATION / diameter_um;
            assert!((0.8..1.2).contains(&ratio), "{spacing_um}: {found:?}");
        }
    }

    #[test]
    fn a_uniform_volume_has_no_blobs_and_bad_sizes_are_refused() {
        assert_eq!(blob_size(&[3.0; 1000], [10; 3], [1.0; 3]).unwrap(), None);
        assert!(blob_size(&[3.0; 1000], [10; 3], [0.0, 1.0, 1.0]).is_err());
        assert!(blob_size(&[3.0; 999], [10; 3], [1.0; 3]).is_err());
        assert_eq!(blob_size(&[f32::NAN; 1000], [10; 3], [1.0; 3]).unwrap(), None);
    }
}
