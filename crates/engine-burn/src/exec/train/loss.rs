//! Runs losses and their gradients with respect to the prediction.

use super::super::Image;
use super::super::elementwise::{Fold, folded, sigmoid, softplus};
use super::super::moves;
use super::norm::channel_sums;
use burn_tensor::Tensor;
use burn_tensor::backend::Backend;
use cytoscope_graph::{Loss, LossKind, LossTerm};

/// Lower bound of probabilities; keeps logarithms and quotients finite.
const MIN_PROBABILITY: f32 = 1e-12;
/// Lower bound of the sum of weights; makes means over no voxels 0.
const MIN_WEIGHT_SUM: f32 = 1e-30;

/// Prediction `x` and target `t` of a loss term's channels, and the weight of each voxel, if any.
struct LossInputs<B: Backend> {
    x: Image<B>,
    t: Image<B>,
    weight: Option<Image<B>>,
}

impl<B: Backend> LossInputs<B> {
    fn new(term: &LossTerm, x: &Image<B>, target: &Image<B>, weight: Option<&Image<B>>) -> Self {
        let channels = |of: &Image<B>| {
            let all = term.channels == (0..of.dims()[1]);
            if all { of.clone() } else { of.clone().slice_dim(1, term.channels.clone()) }
        };
        let within = term.within.map(|c| target.clone().slice_dim(1, c..c + 1).greater_elem(0.5).float());
        let weight = match (weight.cloned(), within) {
            (Some(weight), Some(within)) => Some(weight * within),
            (weight, within) => weight.or(within),
        };
        Self { x: channels(x), t: channels(target), weight }
    }

    fn weighted(&self, values: Image<B>) -> Image<B> {
        match &self.weight {
            Some(weight) => values * weight.clone(),
            None => values,
        }
    }

    /// Returns the prediction, after a sigmoid if the term has one.
    fn p(&self, term: &LossTerm) -> Image<B> {
        if term.sigmoid { sigmoid(self.x.clone()) } else { self.x.clone() }
    }

    /// Returns the sum of the weights over voxels and the term's channels.
    fn total(&self) -> Image<B> {
        let [n, channels, d, h, w] = self.x.dims();
        match &self.weight {
            Some(weight) => sum(weight.clone()).mul_scalar(channels as f32).clamp_min(MIN_WEIGHT_SUM),
            None => Tensor::full([1; 5], (n * channels * d * h * w) as f32, &self.x.device()),
        }
    }
}

/// Returns the sum of all elements.
fn sum<B: Backend>(x: Image<B>) -> Image<B> {
    let count: usize = x.dims().iter().product();
    folded(x.reshape([1, count, 1]), Fold::Sum).reshape([1; 5])
}

/// Returns the sum of each channel, as `[1, C, 1, 1, 1]`.
fn sums<B: Backend>(x: Image<B>) -> Image<B> {
    let channels = x.dims()[1];
    moves::reshape(channel_sums(x), [1, channels, 1, 1, 1])
}

/// Returns 1 − x.
fn one_minus<B: Backend>(x: Image<B>) -> Image<B> {
    x.neg().add_scalar(1.0)
}

/// Returns `yes` where the target is above ½, else `no`.
fn by_target<B: Backend>(t: &Image<B>, yes: Image<B>, no: Image<B>) -> Image<B> {
    no.mask_where(t.clone().greater_elem(0.5), yes)
}

/// Returns the probability of the true class, its complement to 1, and its logarithm.
fn true_class<B: Backend>(term: &LossTerm, c: &LossInputs<B>) -> [Image<B>; 3] {
    let x = c.x.clone();
    if term.sigmoid {
        let s = by_target(&c.t, x.clone(), x.neg());
        let log = softplus(s.clone().neg()).neg().clamp_min(MIN_PROBABILITY.ln());
        return [sigmoid(s.clone()).clamp_min(MIN_PROBABILITY), sigmoid(s.neg()).clamp_min(MIN_PROBABILITY), log];
    }
    let q = by_target(&c.t, x.clone(), one_minus(x.clone())).clamp_min(MIN_PROBABILITY);
    let missing = by_target(&c.t, one_minus(x.clone()), x).clamp_min(MIN_PROBABILITY);
    [q.clone(), missing, q.log()]
}

/// Returns the loss of each voxel, for kinds that are weighted means over voxels.
fn values<B: Backend>(term: &LossTerm, c: &LossInputs<B>) -> Option<Image<B>> {
    let (x, t) = (c.x.clone(), c.t.clone());
    Some(match term.kind {
        LossKind::BinaryCrossEntropy | LossKind::DiceCrossEntropy { .. } if term.sigmoid => softplus(x.clone()) - x * t,
        LossKind::BinaryCrossEntropy | LossKind::DiceCrossEntropy { .. } => {
            let (yes, no) = (x.clone().clamp_min(MIN_PROBABILITY).log(), one_minus(x).clamp_min(MIN_PROBABILITY).log());
            (t.clone() * yes + one_minus(t) * no).neg()
        }
        LossKind::Focal { gamma } => {
            let [_, missing, log] = true_class(term, c);
            (missing.powf_scalar(gamma) * log).neg()
        }
        LossKind::MeanSquared => {
            let difference = c.p(term) - t;
            difference.clone() * difference
        }
        LossKind::MeanAbsolute => (c.p(term) - t).abs(),
        LossKind::Huber { delta } => {
            let difference = (c.p(term) - t).abs();
            let near = difference.clone().clamp_max(delta);
            near.clone() * (difference - near.mul_scalar(0.5))
        }
        LossKind::Dice { .. } | LossKind::Tversky { .. } => return None,
    })
}

/// Returns the derivative of [`values`] with respect to the prediction.
fn voxel_gradients<B: Backend>(term: &LossTerm, c: &LossInputs<B>) -> Option<Image<B>> {
    let (x, t) = (c.x.clone(), c.t.clone());
    let through_sigmoid =
        |by_p: Image<B>, p: Image<B>| if term.sigmoid { by_p * p.clone() * one_minus(p) } else { by_p };
    Some(match term.kind {
        LossKind::BinaryCrossEntropy | LossKind::DiceCrossEntropy { .. } if term.sigmoid => sigmoid(x) - t,
        LossKind::BinaryCrossEntropy | LossKind::DiceCrossEntropy { .. } => {
            let (yes, no) = (x.clone().clamp_min(MIN_PROBABILITY), one_minus(x).clamp_min(MIN_PROBABILITY));
            one_minus(t.clone()) / no - t / yes
        }
        LossKind::Focal { gamma } => {
            let [q, missing, log] = true_class(term, c);
            let by_q = if term.sigmoid {
                // The factor q(1 − q) of the sigmoid cancels the divisions.
                let powered = missing.clone().powf_scalar(gamma);
                powered.clone() * q * log.mul_scalar(gamma) - powered * missing
            } else {
                let steep = missing.clone().powf_scalar(gamma - 1.0).mul_scalar(gamma);
                steep * log - missing.powf_scalar(gamma) / q
            };
            by_target(&t, by_q.clone(), by_q.neg())
        }
        LossKind::MeanSquared => {
            let p = c.p(term);
            through_sigmoid((p.clone() - t).mul_scalar(2.0), p)
        }
        LossKind::MeanAbsolute => {
            let p = c.p(term);
            through_sigmoid((p.clone() - t).sign(), p)
        }
        LossKind::Huber { delta } => {
            let p = c.p(term);
            through_sigmoid((p.clone() - t).clamp(-delta, delta), p)
        }
        LossKind::Dice { .. } | LossKind::Tversky { .. } => return None,
    })
}

/// Returns α, β and the smoothing term of the Tversky part of a loss. Dice is Tversky with α = β = ½.
fn tversky_parameters(kind: LossKind) -> Option<[f32; 3]> {
    match kind {
        LossKind::Dice { smooth } | LossKind::DiceCrossEntropy { smooth } => Some([0.5, 0.5, smooth / 2.0]),
        LossKind::Tversky { alpha, beta, smooth } => Some([alpha, beta, smooth]),
        _ => None,
    }
}

/// Returns the Tversky index of each channel, and its denominator.
fn tversky_index<B: Backend>(c: &LossInputs<B>, p: &Image<B>, [alpha, beta, smooth]: [f32; 3]) -> (Image<B>, Image<B>) {
    let both = sums(c.weighted(p.clone() * c.t.clone()));
    let predicted = sums(c.weighted(p.clone()));
    let true_ = sums(c.weighted(c.t.clone()));
    let wrong = (predicted - both.clone()).mul_scalar(alpha) + (true_ - both.clone()).mul_scalar(beta);
    let above = both.add_scalar(smooth);
    let below = (above.clone() + wrong).clamp_min(MIN_PROBABILITY);
    (above / below.clone(), below)
}

/// Returns the loss as `[1; 5]`.
pub(super) fn value<B: Backend>(
    loss: &Loss,
    x: Image<B>,
    target: &Image<B>,
    weight: Option<&Image<B>>,
) -> Option<Image<B>> {
    let mut total: Option<Image<B>> = None;
    let mut add = |part: Image<B>| {
        total = Some(match total.take() {
            Some(sum) => sum + part,
            None => part,
        });
    };
    for term in &loss.terms {
        let c = LossInputs::new(term, &x, target, weight);
        if let Some(values) = values(term, &c) {
            add((sum(c.weighted(values)) / c.total()).mul_scalar(term.factor));
        }
        if let Some(shape) = tversky_parameters(term.kind) {
            let (index, _) = tversky_index(&c, &c.p(term), shape);
            add(sum(one_minus(index)).mul_scalar(term.factor / term.channels.len() as f32));
        }
    }
    total.or_else(|| Some(Tensor::zeros([1; 5], &x.device())))
}

/// Returns the gradient of the loss with respect to the prediction, times `dy`.
pub(super) fn gradient<B: Backend>(
    loss: &Loss,
    x: Image<B>,
    target: &Image<B>,
    weight: Option<&Image<B>>,
    dy: Image<B>,
) -> Option<Image<B>> {
    let all = x.dims()[1];
    let mut total: Option<Image<B>> = None;
    for term in &loss.terms {
        let c = LossInputs::new(term, &x, target, weight);
        let pointwise = voxel_gradients(term, &c)
            .map(|gradients| c.weighted(gradients) * (dy.clone() / c.total()).mul_scalar(term.factor));
        let shared = tversky_parameters(term.kind).map(|shape| {
            let p = c.p(term);
            let (index, below) = tversky_index(&c, &p, shape);
            let [alpha, beta, _] = shape;
            // Derivative by p: −(wt·below − above·(wt + α(w − wt) − βwt))/below² = w·(t·by_truth + by_all).
            let by_truth = index.clone().mul_scalar(1.0 - alpha - beta).sub_scalar(1.0) / below.clone();
            let by_all = index.mul_scalar(alpha) / below;
            let by_p = c.weighted(c.t.clone() * by_truth + by_all);
            let by_x = if term.sigmoid { by_p * p.clone() * one_minus(p) } else { by_p };
            by_x * dy.clone().mul_scalar(term.factor / term.channels.len() as f32)
        });
        let part = match (pointwise, shared) {
            (Some(a), Some(b)) => a + b,
            (a, b) => a.or(b)?,
        };
        let (before, after) = ([0, term.channels.start, 0, 0, 0], [0, all.checked_sub(term.channels.end)?, 0, 0, 0]);
        let part = moves::fill(part, &before, &after, 0.0);
        total = Some(match total {
            Some(sum) => sum + part,
            None => part,
        });
    }
    total.or_else(|| Some(x.zeros_like()))
}
