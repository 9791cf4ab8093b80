//! Settings of the optimization: loss, optimizer and learning rate.

use crate::error::wrong_use;
use cytoscope_autodiff::{Decay, Schedule};
use cytoscope_graph::{Loss, LossKind, LossTerm, Optimizer};
use cytoscope_pipeline::JobError;
use cytoscope_training_data::{TargetKind, TrainingTask};
use serde::{Deserialize, Serialize};

/// Default maximum learning rate of a network that is trained from scratch.
const SCRATCH_RATE: f64 = 2e-3;
/// Default maximum learning rate of fine-tuning: training that starts from a model.
const FINE_TUNING_RATE: f64 = 1e-3;

/// Training loss: its kind and parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum LossConfig {
    /// Binary cross entropy.
    Bce,
    /// Dice loss.
    Dice,
    /// Sum of Dice loss and binary cross entropy.
    DiceCe,
    /// Tversky loss.
    Tversky {
        /// Weight of false positives.
        alpha: f32,
        /// Weight of false negatives.
        beta: f32,
    },
    /// Focal loss.
    Focal {
        /// Focusing parameter γ.
        gamma: f32,
    },
    /// Mean squared error.
    Mse,
    /// Mean absolute error.
    L1,
    /// Huber loss.
    Huber {
        /// The loss is quadratic for smaller errors and linear for larger ones.
        delta: f32,
    },
}

impl LossConfig {
    fn kind(self) -> LossKind {
        match self {
            Self::Bce => LossKind::BinaryCrossEntropy,
            Self::Dice => LossKind::Dice { smooth: 1.0 },
            Self::DiceCe => LossKind::DiceCrossEntropy { smooth: 1.0 },
            Self::Tversky { alpha, beta } => LossKind::Tversky { alpha, beta, smooth: 1.0 },
            Self::Focal { gamma } => LossKind::Focal { gamma },
            Self::Mse => LossKind::MeanSquared,
            Self::L1 => LossKind::MeanAbsolute,
            Self::Huber { delta } => LossKind::Huber { delta },
        }
    }

    /// Returns the name of the kind in settings.
    fn name(self) -> &'static str {
        match self {
            Self::Bce => "bce",
            Self::Dice => "dice",
            Self::DiceCe => "dice_ce",
            Self::Tversky { .. } => "tversky",
            Self::Focal { .. } => "focal",
            Self::Mse => "mse",
            Self::L1 => "l1",
            Self::Huber { .. } => "huber",
        }
    }

    /// Checks whether the loss suits a task: the intensities of stains are no probabilities.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for a loss that compares probabilities, if the targets are stains.
    pub(crate) fn check_task(self, task: TrainingTask) -> Result<(), JobError> {
        if task == TrainingTask::Segmentation || !self.kind().uses_probabilities() {
            return Ok(());
        }
        let problem = format!("loss.kind is {}, which compares probabilities, but stains are intensities", self.name());
        Err(wrong_use(format!("{problem}: expected mse, l1 or huber")))
    }

    /// Checks the parameters of the loss.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for the first one that is out of range.
    pub(super) fn check(self) -> Result<(), JobError> {
        match self {
            Self::Tversky { alpha, beta } => {
                not_negative("loss.alpha", alpha)?;
                not_negative("loss.beta", beta)
            }
            Self::Focal { gamma } => not_negative("loss.gamma", gamma),
            Self::Huber { delta } if !(delta.is_finite() && delta > 0.0) => {
                Err(wrong_use(format!("loss.delta is {delta:?}: expected a number above 0")))
            }
            Self::Bce | Self::Dice | Self::DiceCe | Self::Mse | Self::L1 | Self::Huber { .. } => Ok(()),
        }
    }
}

/// Refuses a setting that is negative or not finite.
fn not_negative(what: &str, value: f32) -> Result<(), JobError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(wrong_use(format!("{what} is {value:?}: expected 0 or more")))
}

/// Returns the loss of a target. The foreground channel uses `requested` (by default Dice plus cross entropy), the
/// channels that separate objects use cross entropy with soft targets (0 to 1). The default for regression is the mean
/// squared error. The loss of several `stains` is averaged over them.
pub(crate) fn loss(target: TargetKind, stains: usize, requested: Option<LossConfig>) -> Loss {
    let default = if target.is_from_labels() { LossConfig::DiceCe } else { LossConfig::Mse };
    let kind = requested.unwrap_or(default).kind();
    let sigmoid = target.is_from_labels();
    let first = if target.is_from_labels() { 1 } else { stains };
    let mut terms = vec![LossTerm { kind, channels: 0..first, factor: 1.0, sigmoid, within: None }];
    if target.channels() > 1 {
        // Most voxels of a patch are background, so the loss of these channels is counted a second time inside objects.
        let kind = LossKind::BinaryCrossEntropy;
        for within in [None, Some(0)] {
            terms.push(LossTerm { kind, channels: 1..target.channels(), factor: 1.0, sigmoid, within });
        }
    }
    Loss { terms }
}

/// An optimizer with its hyperparameters, named as in PyTorch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Adam with decoupled weight decay.
    Adamw {
        /// Weights shrink by this times the learning rate at every step.
        #[serde(default = "decay")]
        weight_decay: f32,
    },
    /// Adam; weight decay is part of the gradient.
    Adam {
        /// Factor of the weights that are added to their gradient.
        #[serde(default)]
        weight_decay: f32,
    },
    /// Stochastic gradient descent.
    Sgd {
        /// Share of the previous update that is added to the next one, 0 to 1.
        #[serde(default = "momentum")]
        momentum: f32,
        /// Whether to use Nesterov momentum.
        #[serde(default)]
        nesterov: bool,
        /// Factor of the weights that are added to their gradient.
        #[serde(default)]
        weight_decay: f32,
    },
}

fn decay() -> f32 {
    1e-4
}

fn momentum() -> f32 {
    0.9
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self::Adamw { weight_decay: decay() }
    }
}

impl OptimizerConfig {
    /// Returns the update rule; β₁ 0.9, β₂ 0.999 and ε 10⁻⁸ of Adam are fixed.
    pub(crate) fn rule(self) -> Optimizer {
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        match self {
            Self::Adamw { weight_decay } => Optimizer::AdamW { beta1, beta2, epsilon, weight_decay },
            Self::Adam { weight_decay } => Optimizer::Adam { beta1, beta2, epsilon, weight_decay },
            Self::Sgd { momentum, nesterov, weight_decay } => Optimizer::Sgd { momentum, nesterov, weight_decay },
        }
    }

    /// Checks the hyperparameters.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for the first one that is out of range.
    pub(super) fn check(self) -> Result<(), JobError> {
        let (Self::Adamw { weight_decay } | Self::Adam { weight_decay } | Self::Sgd { weight_decay, .. }) = self;
        not_negative("optimizer.weight_decay", weight_decay)?;
        match self {
            Self::Sgd { momentum, .. } if !(0.0..=1.0).contains(&momentum) => {
                Err(wrong_use(format!("optimizer.momentum is {momentum:?}: expected 0 to 1")))
            }
            Self::Adamw { .. } | Self::Adam { .. } | Self::Sgd { .. } => Ok(()),
        }
    }
}

/// Decay of the learning rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayConfig {
    /// No decay.
    Constant,
    /// Multiplied by the same factor in every step.
    Exponential,
    /// Half a cosine period.
    #[default]
    Cosine,
}

/// How the learning rate changes over a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// Maximum learning rate; by default 0.002 from scratch and 0.001 for fine-tuning.
    pub rate: Option<f64>,
    /// Decay after the warm-up.
    pub decay: DecayConfig,
    /// Fraction of the training run used for the warm-up.
    pub warm_up: f64,
    /// Final learning rate as a fraction of the maximum.
    pub end: f64,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { rate: None, decay: DecayConfig::Cosine, warm_up: 0.03, end: 0.01 }
    }
}

impl ScheduleConfig {
    /// Checks that the decay can reach the final learning rate; its range was checked before.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for an exponential decay to 0, whose learning rate would be almost 0 from the start.
    pub(super) fn check(&self) -> Result<(), JobError> {
        if self.decay == DecayConfig::Exponential && self.end <= 0.0 {
            return Err(wrong_use(
                "schedule.end is 0: expected a number above 0 and at most 1, because exponential decay does not reach 0",
            ));
        }
        Ok(())
    }

    /// Returns the schedule; its default learning rate depends on whether training starts from scratch.
    pub(crate) fn schedule(&self, from_scratch: bool) -> Schedule {
        let peak = self.rate.unwrap_or(if from_scratch { SCRATCH_RATE } else { FINE_TUNING_RATE });
        let decay = match self.decay {
            DecayConfig::Constant => Decay::Constant,
            DecayConfig::Exponential => Decay::Exponential { end: self.end },
            DecayConfig::Cosine => Decay::Cosine { end: self.end },
        };
        Schedule { peak, warm_up: self.warm_up, decay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_probabilities_are_refused_for_stains() {
        let tversky = LossConfig::Tversky { alpha: 0.3, beta: 0.7 };
        let of_probabilities =
            [LossConfig::Bce, LossConfig::Dice, LossConfig::DiceCe, tversky, LossConfig::Focal { gamma: 2.0 }];
        let of_intensities = [LossConfig::Mse, LossConfig::L1, LossConfig::Huber { delta: 1.0 }];
        let all = of_probabilities.map(|loss| (loss, false)).into_iter().chain(of_intensities.map(|loss| (loss, true)));
        for (loss, is_for_stains) in all {
            assert!(loss.check_task(TrainingTask::Segmentation).is_ok(), "{loss:?}");
            assert_eq!(loss.check_task(TrainingTask::LabelFree).is_ok(), is_for_stains, "{loss:?}");
            assert_eq!(serde_json::json!(loss)["kind"], loss.name());
        }
    }

    #[test]
    fn an_exponential_decay_to_0_is_refused() {
        let check = |decay, end| ScheduleConfig { decay, end, ..ScheduleConfig::default() }.check();
        assert!(check(DecayConfig::Exponential, 0.0).is_err());
        let usable = [(DecayConfig::Exponential, 1e-3), (DecayConfig::Cosine, 0.0), (DecayConfig::Constant, 0.0)];
        assert!(usable.into_iter().all(|(decay, end)| check(decay, end).is_ok()));
        // The learning rate halfway is the geometric mean.
        let config = ScheduleConfig { rate: Some(1.0), decay: DecayConfig::Exponential, warm_up: 0.0, end: 1e-4 };
        assert!((config.schedule(true).rate(0.5) - 1e-2).abs() < 1e-9);
    }

    #[test]
    fn a_given_learning_rate_replaces_the_defaults_of_training_from_scratch_and_of_fine_tuning() {
        let peak =
            |rate, from_scratch| ScheduleConfig { rate, ..ScheduleConfig::default() }.schedule(from_scratch).peak;
        assert_eq!((peak(None, true), peak(None, false)), (SCRATCH_RATE, FINE_TUNING_RATE));
        assert_eq!((peak(Some(0.01), true), peak(Some(0.01), false)), (0.01, 0.01));
    }
}
