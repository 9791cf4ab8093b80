//! Optimizers: update rules of parameters.

/// Update rule with its constant hyper-parameters. As an operator: `[hyper, norm, p, g, first, second?]` ->
/// `[p′, first′, second′?]`, see [`Hyper`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Optimizer {
    /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
    AdamW {
        /// Decay rate of the first moment.
        beta1: f32,
        /// Decay rate of the second moment.
        beta2: f32,
        /// Added to the root in the denominator.
        epsilon: f32,
        /// Weight decay: p shrinks by rate · this, independent of the gradient.
        weight_decay: f32,
    },
    /// Adam (Kingma & Ba 2015); weight decay is part of the gradient.
    Adam {
        /// Decay rate of the first moment.
        beta1: f32,
        /// Decay rate of the second moment.
        beta2: f32,
        /// Added to the root in the denominator.
        epsilon: f32,
        /// Weight decay: times p, added to the gradient.
        weight_decay: f32,
    },
    /// Stochastic gradient descent with momentum.
    Sgd {
        /// Fraction of the previous velocity that is kept.
        momentum: f32,
        /// Whether to use Nesterov momentum.
        nesterov: bool,
        /// Weight decay: times p, added to the gradient.
        weight_decay: f32,
    },
}

impl Default for Optimizer {
    fn default() -> Self {
        Self::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 1e-4 }
    }
}

impl Optimizer {
    /// Whether the rule has a second moment in addition to the first.
    pub fn has_second_moment(self) -> bool {
        !matches!(self, Self::Sgd { .. })
    }

    /// Returns the rule without weight decay, for norms and biases.
    pub fn without_decay(mut self) -> Self {
        match &mut self {
            Self::AdamW { weight_decay, .. } | Self::Adam { weight_decay, .. } | Self::Sgd { weight_decay, .. } => {
                *weight_decay = 0.0;
            }
        }
        self
    }
}

/// Values that change from step to step, in the order of the operator's first input: rate, step, scale, limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hyper {
    /// Learning rate of this step.
    pub rate: f32,
    /// Number of this step, starting at 1.
    pub step: u32,
    /// Factor applied to gradients first (1 / number of accumulated batches, 1 / loss scale). If it is 0, the update is skipped:
    /// parameters and moments stay as they are, whatever the gradients are.
    pub scale: f32,
    /// Gradient clipping: maximum global norm after `scale`; 0 for none.
    pub limit: f32,
}

impl Hyper {
    /// Returns the values as the operator's input.
    pub fn to_vec(self) -> Vec<f32> {
        vec![self.rate, self.step as f32, self.scale, self.limit]
    }

    /// Reads the hyperparameters from the values of the operator's input; `None` if their number is wrong.
    pub fn from_slice(values: &[f64]) -> Option<Self> {
        let [rate, step, scale, limit] = values else { return None };
        Some(Self { rate: *rate as f32, step: *step as u32, scale: *scale as f32, limit: *limit as f32 })
    }

    /// Returns the factor applied to gradients with global norm `norm`, clipping included.
    pub fn factor(self, norm: f32) -> f32 {
        let scaled = norm * self.scale;
        if self.limit > 0.0 && scaled > self.limit { self.scale * self.limit / scaled } else { self.scale }
    }
}
