//! Definition of a loss between a prediction and its target, with voxel weights.

use std::ops::Range;

use crate::error::{GraphError, Result};

/// Loss function of one term. p is the prediction (after σ, if the term applies it), t the target, w the weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossKind {
    /// −Σw(t·ln p + (1 − t)·ln(1 − p)) / Σw; targets are in 0..=1.
    BinaryCrossEntropy,
    /// 1 − (2Σwpt + s)/(Σwp + Σwt + s), averaged over channels; sums run over batch and space.
    Dice {
        /// Smoothing term s.
        smooth: f32,
    },
    /// The sum of binary cross entropy and Dice.
    DiceCrossEntropy {
        /// Smoothing term s.
        smooth: f32,
    },
    /// 1 − (Σwpt + s)/(Σwpt + αΣwp(1 − t) + βΣw(1 − p)t + s), averaged over channels (Salehi et al. 2017).
    Tversky {
        /// α, weight of false positives.
        alpha: f32,
        /// β, weight of false negatives.
        beta: f32,
        /// Smoothing term s.
        smooth: f32,
    },
    /// Cross entropy times (1 − q)^γ, with q the probability of the true class (Lin et al. 2017); targets are 0 or 1.
    Focal {
        /// Focusing exponent γ: the larger it is, the less voxels that are classified well count.
        gamma: f32,
    },
    /// Σw(p − t)² / Σw
    MeanSquared,
    /// Σw|p − t| / Σw
    MeanAbsolute,
    /// Σw·h(p − t) / Σw with h(d) = d²/2 for |d| ≤ δ, δ(|d| − δ/2) beyond.
    Huber {
        /// Absolute difference δ above which the loss grows linearly.
        delta: f32,
    },
}

impl LossKind {
    /// Whether p is a probability, so that logits must go through σ first.
    pub fn uses_probabilities(self) -> bool {
        !matches!(self, Self::MeanSquared | Self::MeanAbsolute | Self::Huber { .. })
    }
}

/// One term of a loss: a loss function on some channels.
#[derive(Debug, Clone, PartialEq)]
pub struct LossTerm {
    /// Function that compares prediction and target.
    pub kind: LossKind,
    /// Range of the channels that the loss compares.
    pub channels: Range<usize>,
    /// Weight of the term in the sum.
    pub factor: f32,
    /// Whether σ is applied to the prediction. Needed for probability losses on logits.
    pub sigmoid: bool,
    /// If set, only voxels where this target channel is above ½ count.
    pub within: Option<usize>,
}

/// A sum of terms. As an operator: `[prediction (n, c, …), target (n, c, …), weight (n, 1, …)?]` -> `[loss (scalar)]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// The summands, each with its own channels and factor.
    pub terms: Vec<LossTerm>,
}

impl Loss {
    /// Returns a loss with one term on `channels` channels of logits (of plain values, for regression).
    pub fn single(kind: LossKind, channels: usize) -> Self {
        let sigmoid = kind.uses_probabilities();
        Self { terms: vec![LossTerm { kind, channels: 0..channels, factor: 1.0, sigmoid, within: None }] }
    }

    /// Checks that there are terms, and that every channel that they refer to exists.
    ///
    /// # Errors
    /// [`GraphError::Misused`] naming the channel.
    pub fn check(&self, channels: usize) -> Result<()> {
        if self.terms.is_empty() {
            return Err(GraphError::misused("terms of a loss", "none", "at least one"));
        }
        for term in &self.terms {
            let last = term.channels.end.max(term.within.map_or(0, |c| c + 1));
            if last > channels || term.channels.is_empty() {
                return Err(GraphError::misused(
                    "channels of a loss",
                    format!("{} to {last}", term.channels.start),
                    format!("a range of at least one channel within 0 to {channels}"),
                ));
            }
        }
        Ok(())
    }
}
