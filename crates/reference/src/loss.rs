//! Value and gradient of losses, in f64.

use rayon::prelude::*;

use super::elementwise::{sigmoid, softplus};
use cytoscope_graph::{Loss, LossKind, LossTerm};

/// Prediction, target and weight, with matching lengths.
pub(crate) struct LossData<'a> {
    /// Values `[batch][channel][voxel]`.
    pub prediction: &'a [f64],
    /// Values `[batch][channel][voxel]`; also the mask of terms that count only inside of a channel.
    pub target: &'a [f64],
    /// Weights `[batch][voxel]`; `None` weights all voxels with 1.
    pub weight: Option<&'a [f64]>,
    /// Number of images.
    pub batch: usize,
    /// Number of channels.
    pub channels: usize,
    /// Number of voxels of one channel of one image.
    pub voxels: usize,
}

/// Voxels per task. Sums of tasks are added in order, so that the result does not depend on the number of threads.
const CHUNK: usize = 1 << 14;

impl LossData<'_> {
    fn weight(&self, term: &LossTerm, image: usize, voxel: usize) -> f64 {
        let inside = term.within.is_none_or(|c| self.target[(image * self.channels + c) * self.voxels + voxel] > 0.5);
        if !inside {
            return 0.0;
        }
        self.weight.map_or(1.0, |w| w[image * self.voxels + voxel])
    }

    /// Sums four numbers per voxel over one channel of all images.
    fn sums(&self, term: &LossTerm, channel: usize, f: impl Fn(f64, f64, f64) -> [f64; 4] + Sync) -> [f64; 4] {
        let per_image = self.voxels.div_ceil(CHUNK);
        let parts: Vec<[f64; 4]> = (0..self.batch * per_image)
            .into_par_iter()
            .map(|task| {
                let (image, from) = (task / per_image, task % per_image * CHUNK);
                let mut sums = [0.0; 4];
                for voxel in from..(from + CHUNK).min(self.voxels) {
                    let w = self.weight(term, image, voxel);
                    if w != 0.0 {
                        let at = (image * self.channels + channel) * self.voxels + voxel;
                        let found = f(self.prediction[at], self.target[at], w);
                        sums.iter_mut().zip(found).for_each(|(s, v)| *s += v);
                    }
                }
                sums
            })
            .collect();
        parts.iter().fold([0.0; 4], |t, p| std::array::from_fn(|i| t[i] + p[i]))
    }
}

/// Keeps logarithms of probabilities finite.
const MIN_PROBABILITY: f64 = 1e-12;

/// Returns the cross entropy of one voxel and its derivative with respect to the prediction.
fn cross_entropy(x: f64, t: f64, from_logits: bool) -> (f64, f64) {
    if from_logits {
        return (softplus(x) - x * t, sigmoid(x) - t);
    }
    let p = x.clamp(MIN_PROBABILITY, 1.0 - MIN_PROBABILITY);
    (-(t * p.ln() + (1.0 - t) * (1.0 - p).ln()), (p - t) / (p * (1.0 - p)))
}

/// Returns (1 − q)^γ · (−ln q) of one voxel and its derivative with respect to the prediction.
fn focal(x: f64, t: f64, gamma: f64, from_logits: bool) -> (f64, f64) {
    let p = if from_logits { sigmoid(x) } else { x };
    let (q, sign) = if t > 0.5 { (p, 1.0) } else { (1.0 - p, -1.0) };
    let q = q.clamp(MIN_PROBABILITY, 1.0 - MIN_PROBABILITY);
    let value = -(1.0 - q).powf(gamma) * q.ln();
    let by_q = gamma * (1.0 - q).powf(gamma - 1.0) * q.ln() - (1.0 - q).powf(gamma) / q;
    let by_x = if from_logits { q * (1.0 - q) } else { 1.0 };
    (value, by_q * sign * by_x)
}

/// Returns value and derivative with respect to the prediction for losses that are weighted means over voxels; `None`
/// for others.
fn pointwise(term: &LossTerm, x: f64, t: f64) -> Option<(f64, f64)> {
    let with_sigmoid = |f: fn(f64, f64) -> (f64, f64)| {
        if !term.sigmoid {
            return f(x, t);
        }
        let p = sigmoid(x);
        let (value, slope) = f(p, t);
        (value, slope * p * (1.0 - p))
    };
    Some(match term.kind {
        LossKind::BinaryCrossEntropy | LossKind::DiceCrossEntropy { .. } => cross_entropy(x, t, term.sigmoid),
        LossKind::Focal { gamma } => focal(x, t, gamma.into(), term.sigmoid),
        LossKind::MeanSquared => with_sigmoid(|p, t| ((p - t).powi(2), 2.0 * (p - t))),
        LossKind::MeanAbsolute => with_sigmoid(|p, t| ((p - t).abs(), if p == t { 0.0 } else { (p - t).signum() })),
        LossKind::Huber { delta } => {
            let delta = f64::from(delta);
            let p = if term.sigmoid { sigmoid(x) } else { x };
            let d = p - t;
            let (value, slope) =
                if d.abs() <= delta { (d * d / 2.0, d) } else { (delta * (d.abs() - delta / 2.0), delta * d.signum()) };
            (value, if term.sigmoid { slope * p * (1.0 - p) } else { slope })
        }
        LossKind::Dice { .. } | LossKind::Tversky { .. } => return None,
    })
}

/// Returns α, β and s of the overlap part of a loss. Dice is Tversky with α = β = ½ and half of s.
fn overlap(kind: LossKind) -> Option<(f64, f64, f64)> {
    match kind {
        LossKind::Dice { smooth } | LossKind::DiceCrossEntropy { smooth } => Some((0.5, 0.5, f64::from(smooth) / 2.0)),
        LossKind::Tversky { alpha, beta, smooth } => Some((alpha.into(), beta.into(), smooth.into())),
        _ => None,
    }
}

/// Returns Σwpt, Σwp, Σwt of one channel.
fn overlap_sums(c: &LossData<'_>, term: &LossTerm, channel: usize) -> [f64; 4] {
    c.sums(term, channel, |x, t, w| {
        let p = if term.sigmoid { sigmoid(x) } else { x };
        [w * p * t, w * p, w * t, 0.0]
    })
}

/// Returns numerator and denominator of the overlap: (I + s) and (I + α(P − I) + β(T − I) + s).
fn overlap_parts(sums: [f64; 4], (alpha, beta, smooth): (f64, f64, f64)) -> (f64, f64) {
    let [both, predicted, true_, _] = sums;
    let below = both + alpha * (predicted - both) + beta * (true_ - both) + smooth;
    (both + smooth, below.max(MIN_PROBABILITY))
}

/// Returns the loss, computed in f64.
pub(crate) fn evaluate(loss: &Loss, c: &LossData<'_>) -> f64 {
    let mut total = 0.0;
    for term in &loss.terms {
        let factor = f64::from(term.factor);
        let channels = term.channels.len() as f64;
        if pointwise(term, 0.0, 0.0).is_some() {
            let (mut sum, mut weight) = (0.0, 0.0);
            for channel in term.channels.clone() {
                let found =
                    c.sums(term, channel, |x, t, w| [w * pointwise(term, x, t).map_or(0.0, |(v, _)| v), w, 0.0, 0.0]);
                sum += found[0];
                weight += found[1];
            }
            total += factor * if weight > 0.0 { sum / weight } else { 0.0 };
        }
        if let Some(shape) = overlap(term.kind) {
            for channel in term.channels.clone() {
                let (above, below) = overlap_parts(overlap_sums(c, term, channel), shape);
                total += factor * (1.0 - above / below) / channels;
            }
        }
    }
    total
}

/// Returns the gradient of the loss with respect to the prediction, times `scale`.
pub(crate) fn gradient(loss: &Loss, c: &LossData<'_>, scale: f64) -> Vec<f64> {
    let mut out = vec![0.0; c.prediction.len()];
    for term in &loss.terms {
        let factor = scale * f64::from(term.factor);
        let is_pointwise = pointwise(term, 0.0, 0.0).is_some();
        let weights: f64 = if is_pointwise {
            term.channels.clone().map(|channel| c.sums(term, channel, |_, _, w| [w, 0.0, 0.0, 0.0])[0]).sum()
        } else {
            0.0
        };
        for channel in term.channels.clone() {
            let shared = overlap(term.kind).map(|shape| {
                let (above, below) = overlap_parts(overlap_sums(c, term, channel), shape);
                (shape, above, below)
            });
            for image in 0..c.batch {
                let start = (image * c.channels + channel) * c.voxels;
                out[start..start + c.voxels].par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, part)| {
                    for (i, slot) in part.iter_mut().enumerate() {
                        let voxel = chunk * CHUNK + i;
                        let w = c.weight(term, image, voxel);
                        if w == 0.0 {
                            continue;
                        }
                        let (x, t) = (c.prediction[start + voxel], c.target[start + voxel]);
                        if let Some((_, slope)) = pointwise(term, x, t)
                            && weights > 0.0
                        {
                            *slot += factor * w * slope / weights;
                        }
                        if let Some(((alpha, beta, _), above, below)) = shared {
                            // Derivatives with respect to p: I' = wt, P' = w.
                            let inner = w * t;
                            let outer = inner + alpha * (w - inner) - beta * inner;
                            let by_p = -(inner * below - above * outer) / (below * below);
                            let by_x = if term.sigmoid {
                                let p = sigmoid(x);
                                by_p * p * (1.0 - p)
                            } else {
                                by_p
                            };
                            *slot += factor * by_x / term.channels.len() as f64;
                        }
                    }
                });
            }
        }
    }
    out
}
