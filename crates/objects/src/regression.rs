//! Scores of a predicted image against the true one: Pearson's r, PSNR, SSIM.

use crate::ObjectsError;
use crate::error::check_len;
use crate::smooth;
use cytoscope_volume::Element;
use serde::Serialize;

/// Scores of a label-free prediction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Regression {
    /// Pearson's correlation; 0 if only the prediction is constant or not finite, because means over several images would be
    /// too high without it. `None` if the truth is constant.
    pub pearson: Option<f64>,
    /// Peak signal-to-noise ratio in dB relative to the truth's range; `None` for equal images or a constant truth.
    pub psnr_db: Option<f64>,
    /// Mean structural similarity relative to the truth's range: 3-D Gaussian windows with sigma 1.5 voxels in each time
    /// point, K1 = 0.01, K2 = 0.03 (Wang et al., IEEE TIP 13(4), 2004).
    pub ssim: Option<f64>,
    /// Mean squared difference of prediction and target.
    pub mse: f64,
}

impl Regression {
    /// Returns Pearson's correlation, PSNR in dB, SSIM and the mean squared difference as texts; a score that is missing, NaN
    /// or infinite is undefined, except for the PSNR of equal images, which is infinite.
    pub fn texts(&self) -> [String; 4] {
        let finite = |score: Option<f64>| score.filter(|score| score.is_finite());
        let text = |score: Option<f64>| match finite(score) {
            None => "undefined".to_owned(),
            // Rounding would leave the sign of a tiny negative score.
            Some(score) if score.abs() < 0.000_05 => "0.0000".to_owned(),
            Some(score) => format!("{score:.4}"),
        };
        let mse = match finite(Some(self.mse)) {
            None => "undefined".to_owned(),
            // Most images need no exponent.
            Some(mse) if mse == 0.0 || (1e-3..1e6).contains(&mse) => format!("{mse:.4}"),
            Some(mse) => format!("{mse:.4e}"),
        };
        let psnr = match finite(self.psnr_db) {
            None if self.mse == 0.0 => "infinite".to_owned(),
            None => "undefined".to_owned(),
            score => format!("{} dB", text(score)),
        };
        [text(self.pearson), psnr, text(self.ssim), mse]
    }
}

/// Scores `prediction` against `truth`, both `times` volumes `[Z][Y][X]`, one after the other. Values that are not exact as
/// 32-bit floats, such as small differences of large ones, need `f64`.
///
/// # Errors
/// [`ObjectsError::Length`] if the volumes do not match the shape.
pub fn regression<T: Element, P: Element>(
    truth: &[T],
    prediction: &[P],
    times: usize,
    shape_zyx: [usize; 3],
) -> Result<Regression, ObjectsError> {
    let [depth, height, width] = shape_zyx;
    let together = [depth.saturating_mul(times), height, width];
    check_len("truth", truth.len(), together)?;
    check_len("prediction", prediction.len(), together)?;
    let n = truth.len().max(1) as f64;
    let (mt, mp) = (mean(truth), mean(prediction));
    let (mut tt, mut pp, mut tp, mut squares) = (0.0, 0.0, 0.0, 0.0);
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for (t, p) in truth.iter().zip(prediction) {
        let (t, p) = (t.to_f64(), p.to_f64());
        tt += (t - mt) * (t - mt);
        pp += (p - mp) * (p - mp);
        tp += (t - mt) * (p - mp);
        squares += (t - p) * (t - p);
        (low, high) = (low.min(t), high.max(t));
    }
    let mse = squares / n;
    let range = (high - low).max(0.0);
    Ok(Regression {
        pearson: (tt > 0.0).then(|| if pp > 0.0 && pp.is_finite() { tp / (tt * pp).sqrt() } else { 0.0 }),
        psnr_db: (mse > 0.0 && range > 0.0).then(|| 10.0 * (range * range / mse).log10()),
        ssim: if range > 0.0 { Some(ssim(truth, prediction, shape_zyx, range)?) } else { None },
        mse,
    })
}

/// Returns the mean of the values; 0 if there are none.
fn mean<E: Element>(values: &[E]) -> f64 {
    values.iter().map(|value| value.to_f64()).sum::<f64>() / values.len().max(1) as f64
}

fn ssim<T: Element, P: Element>(
    truth: &[T],
    prediction: &[P],
    shape: [usize; 3],
    range: f64,
) -> Result<f64, ObjectsError> {
    // The truth's mean is subtracted first: squares of a camera offset would swamp the variance in rounding errors.
    let center = mean(truth);
    let voxels = shape.iter().product::<usize>().max(1);
    let mut sum = 0.0;
    for (t, p) in truth.chunks_exact(voxels).zip(prediction.chunks_exact(voxels)) {
        sum += ssim_sum(t, p, shape, range, center)?;
    }
    Ok(sum / truth.len().max(1) as f64)
}

/// Returns the sum of the structural similarity over the voxels of a volume of truth and prediction.
fn ssim_sum<T: Element, P: Element>(
    truth: &[T],
    prediction: &[P],
    shape: [usize; 3],
    range: f64,
    center: f64,
) -> Result<f64, ObjectsError> {
    let centered = |value: f64| (value - center) as f32;
    let blur = |f: &dyn Fn(f32, f32) -> f32| -> Result<Vec<f32>, ObjectsError> {
        let pairs = truth.iter().zip(prediction);
        let mut v: Vec<f32> = pairs.map(|(t, p)| f(centered(t.to_f64()), centered(p.to_f64()))).collect();
        smooth::gaussian(&mut v, shape, [1.5; 3])?;
        Ok(v)
    };
    let (mt, mp) = (blur(&|t, _| t)?, blur(&|_, p| p)?);
    let (tt, pp, tp) = (blur(&|t, _| t * t)?, blur(&|_, p| p * p)?, blur(&|t, p| t * p)?);
    let (c1, c2) = ((0.01 * range).powi(2), (0.03 * range).powi(2));
    Ok((0..truth.len())
        .map(|i| {
            let (a, b) = (f64::from(mt[i]), f64::from(mp[i]));
            let (va, vb, cov) = (f64::from(tt[i]) - a * a, f64::from(pp[i]) - b * b, f64::from(tp[i]) - a * b);
            let (a, b) = (a + center, b + center);
            ((2.0 * a * b + c1) * (2.0 * cov + c2)) / ((a * a + b * b + c1) * (va + vb + c2))
        })
        .sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scaled_copy_correlates_fully_and_an_equal_image_is_perfect() {
        let truth: Vec<f32> = (0..5 * 6 * 7).map(|i| ((i * 37) % 50) as f32).collect();
        let scaled: Vec<f32> = truth.iter().map(|v| 2.0 * v + 3.0).collect();
        let same = regression(&truth, &truth, 1, [5, 6, 7]).unwrap();
        assert!((same.ssim.unwrap() - 1.0).abs() < 1e-6 && same.psnr_db.is_none());
        let r = regression(&truth, &scaled, 1, [5, 6, 7]).unwrap();
        assert!((r.pearson.unwrap() - 1.0).abs() < 1e-9 && r.ssim.unwrap() < 0.9);
        assert_eq!(regression(&[1.0; 4], &[2.0; 4], 1, [1, 2, 2]).unwrap().pearson, None);
        assert_eq!(regression(&[1.0; 4], &[2.0, 3.0, 4.0, 5.0], 1, [1, 2, 2]).unwrap().pearson, None);
        // A prediction without any structure counts: without it, the mean over several images would be that of the others.
        for prediction in [[2.0; 4], [2.0, f32::NAN, 3.0, 4.0]] {
            assert_eq!(regression(&[1.0, 2.0, 3.0, 4.0], &prediction, 1, [1, 2, 2]).unwrap().pearson, Some(0.0));
        }
    }

    #[test]
    fn scores_that_are_not_finite_are_undefined_and_no_text_has_a_negative_zero() {
        let nan = regression(&[1.0, 2.0, 3.0, 4.0], &[2.0, f32::NAN, 3.0, 4.0], 1, [1, 2, 2]).unwrap();
        assert_eq!(nan.texts(), ["0.0000", "undefined", "undefined", "undefined"]);
        let scores =
            Regression { pearson: Some(-0.0), psnr_db: Some(f64::INFINITY), ssim: Some(-0.000_01), mse: 0.0625 };
        assert_eq!(scores.texts(), ["0.0000", "undefined", "0.0000", "0.0625"]);
        let scores = Regression { pearson: Some(-0.5), psnr_db: None, ssim: Some(0.25), mse: 0.0 };
        assert_eq!(scores.texts(), ["-0.5000", "infinite", "0.2500", "0.0000"]);
        let scores = Regression { psnr_db: Some(31.25), mse: 0.5, ..scores };
        assert_eq!(scores.texts()[1], "31.2500 dB");
        let exponents = [83.692, 2.5e7, 1.5e-6].map(|mse| Regression { mse, ..scores }.texts()[3].clone());
        assert_eq!(exponents, ["83.6920", "2.5000e7", "1.5000e-6"]);
    }

    /// The expected numbers were computed with NumPy from the same formulas.
    #[test]
    fn small_differences_of_large_values_are_scored_as_those_of_small_ones() {
        let noise = |i: usize| ((i * 7919) % 101) as f64 / 100.0;
        let shape = [2, 8, 9];
        let truth: Vec<f64> = (0..144).map(noise).collect();
        let prediction: Vec<f64> = (0..144).map(|i| noise(i) + 0.1 * noise(i + 13)).collect();
        let shifted = |values: &[f64]| values.iter().map(|value| value + 1e9).collect::<Vec<f64>>();
        let near = regression(&truth, &prediction, 1, shape).unwrap();
        let far = regression(&shifted(&truth), &shifted(&prediction), 1, shape).unwrap();
        for (a, b) in [(near.pearson, far.pearson), (near.psnr_db, far.psnr_db), (Some(near.mse), Some(far.mse))] {
            assert!((a.unwrap() / b.unwrap() - 1.0).abs() < 1e-5, "{near:?} {far:?}");
        }
        assert!(
            (near.pearson.unwrap() - 0.995108482525844).abs() < 1e-9 && (near.mse - 0.003359638888888888).abs() < 1e-12,
            "{near:?}"
        );
        // The prediction is an integer type, as counts of photons.
        let counts: Vec<u32> = (0..144).map(|i| 4_000_000_000 + (i * 7919) % 101).collect();
        let same: Vec<f64> = counts.iter().map(|count| f64::from(*count)).collect();
        assert_eq!(regression(&same, &counts, 1, shape).unwrap().mse, 0.0);
    }

    #[test]
    fn windows_do_not_reach_into_other_time_points() {
        let shape = [2, 8, 9];
        let noise = |i: usize| ((i * 7919) % 101) as f32;
        // The true image is the same at both time points, so that the range and the mean of both are those of each.
        let point = |factor: f32| (0..144).map(move |i| (noise(i) + factor * noise(i + 13)) / (1.0 + factor));
        let truth: Vec<f32> = (0..144).map(noise).collect();
        let [near, far]: [Vec<f32>; 2] = [0.3, 3.0].map(|factor| point(factor).collect());
        let ssim = |truth: &[f32], prediction: &[f32], times| {
            regression(truth, prediction, times, shape).unwrap().ssim.unwrap()
        };
        let both = ssim(&[truth.clone(), truth.clone()].concat(), &[near.clone(), far.clone()].concat(), 2);
        let mean = 0.5 * (ssim(&truth, &near, 1) + ssim(&truth, &far, 1));
        assert!((both - mean).abs() < 1e-5, "{both} {mean}");
        assert!(regression(&truth, &near, 2, shape).is_err());
    }
}
