//! Losses and their gradients by the prediction.

use super::super::Image;
use super::super::elementwise::{Fold, folded, sigmoid, softplus};
use super::super::moves;
use super::norm::channel_sums;
use burn_tensor::Tensor;
use burn_tensor::backend::Backend;
use cytoscope_graph::training::{Loss, LossKind, LossTerm};

/// Keeps logarithms and quotients of probabilities finite.
const LEAST: f32 = 1e-12;
/// Keeps means over nothing at 0.
const NOTHING: f32 = 1e-30;

/// What a term compares: its channels, and the weight of each voxel where there is one.
struct Compared<B: Backend> {
    x: Image<B>,
    t: Image<B>,
    weight: Option<Image<B>>,
}

impl<B: Backend> Compared<B> {
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

    /// The prediction, through σ where the term asks for it.
    fn p(&self, term: &LossTerm) -> Image<B> {
        if term.sigmoid { sigmoid(self.x.clone()) } else { self.x.clone() }
    }

    /// The sum of all weights over the term's channels.
    fn total(&self) -> Image<B> {
        let [n, channels, d, h, w] = self.x.dims();
        match &self.weight {
            Some(weight) => sum(weight.clone()).mul_scalar(channels as f32).clamp_min(NOTHING),
            None => Tensor::full([1; 5], (n * channels * d * h * w) as f32, &self.x.device()),
        }
    }
}

/// The sum of everything.
fn sum<B: Backend>(x: Image<B>) -> Image<B> {
    let count: usize = x.dims().iter().product();
    folded(x.reshape([1, count, 1]), Fold::Sum).reshape([1; 5])
}

/// Sums by channel, in the form that is broadcast over images.
fn sums<B: Backend>(x: Image<B>) -> Image<B> {
    let channels = x.dims()[1];
    moves::reshape(channel_sums(x), [1, channels, 1, 1, 1])
}

/// 1 − x.
fn rest<B: Backend>(x: Image<B>) -> Image<B> {
    x.neg().add_scalar(1.0)
}

/// Of two, the first where the target is above ½.
fn by_target<B: Backend>(t: &Image<B>, yes: Image<B>, no: Image<B>) -> Image<B> {
    no.mask_where(t.clone().greater_elem(0.5), yes)
}

/// The probability given to the truth, what is missing from it to 1, and its logarithm.
fn truth<B: Backend>(term: &LossTerm, c: &Compared<B>) -> [Image<B>; 3] {
    let x = c.x.clone();
    if term.sigmoid {
        let s = by_target(&c.t, x.clone(), x.neg());
        let log = softplus(s.clone().neg()).neg().clamp_min(LEAST.ln());
        return [sigmoid(s.clone()).clamp_min(LEAST), sigmoid(s.neg()).clamp_min(LEAST), log];
    }
    let q = by_target(&c.t, x.clone(), rest(x.clone())).clamp_min(LEAST);
    let missing = by_target(&c.t, rest(x.clone()), x).clamp_min(LEAST);
    [q.clone(), missing, q.log()]
}

/// The value of each voxel, of kinds that are weighted means over voxels.
fn values<B: Backend>(term: &LossTerm, c: &Compared<B>) -> Option<Image<B>> {
    let (x, t) = (c.x.clone(), c.t.clone());
    Some(match term.kind {
        LossKind::BinaryCrossEntropy | LossKind::DiceCrossEntropy { .. } if term.sigmoid => softplus(x.clone()) - x * t,
        LossKind::BinaryCrossEntropy | LossKind::DiceCrossEntropy { .. } => {
            let (yes, no) = (x.clone().clamp_min(LEAST).log(), rest(x).clamp_min(LEAST).log());
            (t.clone() * yes + rest(t) * no).neg()
        }
        LossKind::Focal { gamma } => {
            let [_, missing, log] = truth(term, c);
            (missing.powf_scalar(gamma) * log).neg()
        }
        LossKind::MeanSquared => {
            let away = c.p(term) - t;
            away.clone() * away
        }
        LossKind::MeanAbsolute => (c.p(term) - t).abs(),
        LossKind::Huber { delta } => {
            let away = (c.p(term) - t).abs();
            let near = away.clone().clamp_max(delta);
            near.clone() * (away - near.mul_scalar(0.5))
        }
        LossKind::Dice { .. } | LossKind::Tversky { .. } => return None,
    })
}

/// The derivative of [`values`] by the prediction.
fn slopes<B: Backend>(term: &LossTerm, c: &Compared<B>) -> Option<Image<B>> {
    let (x, t) = (c.x.clone(), c.t.clone());
    let squashed = |by_p: Image<B>, p: Image<B>| if term.sigmoid { by_p * p.clone() * rest(p) } else { by_p };
    Some(match term.kind {
        LossKind::BinaryCrossEntropy | LossKind::DiceCrossEntropy { .. } if term.sigmoid => sigmoid(x) - t,
        LossKind::BinaryCrossEntropy | LossKind::DiceCrossEntropy { .. } => {
            let (yes, no) = (x.clone().clamp_min(LEAST), rest(x).clamp_min(LEAST));
            rest(t.clone()) / no - t / yes
        }
        LossKind::Focal { gamma } => {
            let [q, missing, log] = truth(term, c);
            let by_q = if term.sigmoid {
                // Times q(1 − q), which takes away what is divided by.
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
            squashed((p.clone() - t).mul_scalar(2.0), p)
        }
        LossKind::MeanAbsolute => {
            let p = c.p(term);
            squashed((p.clone() - t).sign(), p)
        }
        LossKind::Huber { delta } => {
            let p = c.p(term);
            squashed((p.clone() - t).clamp(-delta, delta), p)
        }
        LossKind::Dice { .. } | LossKind::Tversky { .. } => return None,
    })
}

/// α, β and s of the overlap part of a kind. Dice is Tversky with α = β = ½.
fn overlap(kind: LossKind) -> Option<[f32; 3]> {
    match kind {
        LossKind::Dice { smooth } | LossKind::DiceCrossEntropy { smooth } => Some([0.5, 0.5, smooth / 2.0]),
        LossKind::Tversky { alpha, beta, smooth } => Some([alpha, beta, smooth]),
        _ => None,
    }
}

/// The overlap of each channel, and what it was divided by.
fn overlaps<B: Backend>(c: &Compared<B>, p: &Image<B>, [alpha, beta, smooth]: [f32; 3]) -> (Image<B>, Image<B>) {
    let both = sums(c.weighted(p.clone() * c.t.clone()));
    let predicted = sums(c.weighted(p.clone()));
    let true_ = sums(c.weighted(c.t.clone()));
    let wrong = (predicted - both.clone()).mul_scalar(alpha) + (true_ - both.clone()).mul_scalar(beta);
    let above = both.add_scalar(smooth);
    let below = (above.clone() + wrong).clamp_min(LEAST);
    (above / below.clone(), below)
}

/// The loss.
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
        let c = Compared::new(term, &x, target, weight);
        if let Some(values) = values(term, &c) {
            add((sum(c.weighted(values)) / c.total()).mul_scalar(term.factor));
        }
        if let Some(shape) = overlap(term.kind) {
            let (overlap, _) = overlaps(&c, &c.p(term), shape);
            add(sum(rest(overlap)).mul_scalar(term.factor / term.channels.len() as f32));
        }
    }
    total.or_else(|| Some(Tensor::zeros([1; 5], &x.device())))
}

/// The loss's gradient by the prediction, times `dy`.
pub(super) fn slope<B: Backend>(
    loss: &Loss,
    x: Image<B>,
    target: &Image<B>,
    weight: Option<&Image<B>>,
    dy: Image<B>,
) -> Option<Image<B>> {
    let all = x.dims()[1];
    let mut total: Option<Image<B>> = None;
    for term in &loss.terms {
        let c = Compared::new(term, &x, target, weight);
        let pointwise =
            slopes(term, &c).map(|slopes| c.weighted(slopes) * (dy.clone() / c.total()).mul_scalar(term.factor));
        let shared = overlap(term.kind).map(|shape| {
            let p = c.p(term);
            let (overlap, below) = overlaps(&c, &p, shape);
            let [alpha, beta, _] = shape;
            // By p: −(wt·below − above·(wt + α(w − wt) − βwt))/below², = w·(t·by_truth + by_all).
            let by_truth = overlap.clone().mul_scalar(1.0 - alpha - beta).sub_scalar(1.0) / below.clone();
            let by_all = overlap.mul_scalar(alpha) / below;
            let by_p = c.weighted(c.t.clone() * by_truth + by_all);
            let by_x = if term.sigmoid { by_p * p.clone() * rest(p) } else { by_p };
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
