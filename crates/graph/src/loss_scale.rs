//! The loss scale of mixed precision, which follows from the overflows of earlier steps.

/// Rule of the loss scale: it doubles after a number of steps without overflow, and is halved by an overflow, which also skips
/// the optimizer step. As an operator: `[loss, norm, state, given]` -> `[hyper, state′, scale′, loss′]`, where
/// - `loss` is the sum of the losses of the step's batches, and `norm` the global norm of the sum of their gradients, which are
///   multiplied by the loss scale; both are scalars. The next step starts with `loss′`, which is 0;
/// - `state` and `state′` are [`ScaleState`]s, and the scalar `scale′` is the loss scale of the latter;
/// - `given` are [`StepNumbers`];
/// - `hyper` are the elements of [`crate::Hyper`], with the scale 0 if the step is skipped, then the weights of the old average
///   and of the parameter in a moving average of parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScale {
    /// Number of steps without overflow after which the scale doubles.
    pub growth_steps: u32,
    /// Maximum scale.
    pub max: f32,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { growth_steps: 200, max: 16_777_216.0 }
    }
}

/// What changes from step to step, in the order of the operator's third input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleState {
    /// The loss scale.
    pub scale: f32,
    /// Steps since the scale changed.
    pub steady_steps: u32,
    /// Optimizer steps.
    pub steps: u32,
    /// Steps that an overflow skipped.
    pub skipped_steps: u32,
    /// Sum of the losses of the optimizer steps.
    pub loss: f32,
    /// Steps that were skipped because their loss was not finite, or because of an overflow at a scale of 1.
    pub failed_steps: u32,
}

impl ScaleState {
    /// Number of elements as a tensor.
    pub const LENGTH: usize = 6;

    /// Returns the state before a step with this loss scale.
    pub fn new(scale: f32, steady_steps: u32, steps: u32) -> Self {
        Self { scale, steady_steps, steps, skipped_steps: 0, loss: 0.0, failed_steps: 0 }
    }

    /// Returns the values as the operator's input.
    pub fn to_vec(self) -> Vec<f32> {
        let [steady, steps] = [self.steady_steps as f32, self.steps as f32];
        vec![self.scale, steady, steps, self.skipped_steps as f32, self.loss, self.failed_steps as f32]
    }

    /// Reads the state from the values of the operator's input; `None` if their number is wrong.
    pub fn from_slice(values: &[f64]) -> Option<Self> {
        let [scale, steady, steps, skipped, loss, failed] = values else { return None };
        Some(Self {
            scale: *scale as f32,
            steady_steps: *steady as u32,
            steps: *steps as u32,
            skipped_steps: *skipped as u32,
            loss: *loss as f32,
            failed_steps: *failed as u32,
        })
    }
}

/// Numbers of a step that do not depend on its gradients, in the order of the operator's fourth input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepNumbers {
    /// Learning rate.
    pub rate: f32,
    /// 1 / number of batches whose gradients were summed.
    pub share: f32,
    /// Maximum global norm of the mean gradient; 0 for none.
    pub limit: f32,
    /// Decay of the moving average of parameters. The first steps have a smaller one, so that the initial parameters are
    /// forgotten faster.
    pub decay: f32,
}

impl StepNumbers {
    /// Number of elements as a tensor.
    pub const LENGTH: usize = 4;

    /// Returns the values as the operator's input.
    pub fn to_vec(self) -> Vec<f32> {
        vec![self.rate, self.share, self.limit, self.decay]
    }

    /// Reads the numbers from the values of the operator's input; `None` if their number is wrong.
    pub fn from_slice(values: &[f64]) -> Option<Self> {
        let [rate, share, limit, decay] = values else { return None };
        Some(Self { rate: *rate as f32, share: *share as f32, limit: *limit as f32, decay: *decay as f32 })
    }
}

impl LossScale {
    /// Number of elements of the operator's first output.
    pub const HYPER_LENGTH: usize = 6;

    /// Returns the operator's first output, and the state after a step.
    pub fn decide(
        self,
        loss: f32,
        norm: f32,
        before: ScaleState,
        given: StepNumbers,
    ) -> ([f32; LossScale::HYPER_LENGTH], ScaleState) {
        let (mut after, mut scale, mut keep) = (before, 0.0, 1.0);
        if loss.is_finite() && norm.is_finite() {
            after.steps += 1;
            after.steady_steps += 1;
            after.loss += loss;
            scale = given.share / before.scale;
            keep = given.decay.min((1.0 + after.steps as f32) / (10.0 + after.steps as f32));
            if after.steady_steps >= self.growth_steps {
                (after.scale, after.steady_steps) = ((before.scale * 2.0).min(self.max), 0);
            }
        } else if loss.is_finite() && before.scale > 1.0 {
            (after.scale, after.steady_steps) = ((before.scale / 2.0).max(1.0), 0);
            after.skipped_steps += 1;
        } else {
            after.failed_steps += 1;
        }
        ([given.rate, after.steps as f32, scale, given.limit, keep, 1.0 - keep], after)
    }
}
