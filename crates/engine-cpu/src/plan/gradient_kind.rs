//! Kinds of plans that compute gradients; like other kinds, with indices into [`super::KernelPlan::inputs`] or fixed
//! positions of their inputs.

use super::kind::{Steps, slot_at, step};
use crate::lower::LowerError;
use crate::steps::{
    ChannelSums, InputGradientStep, Norm, NormGradient, PoolGradient, ResizeGradient, UnaryGradient, WeightGradient,
};
use cytoscope_graph::ValueId;
use cytoscope_kernels::conv::{Activation, ConvShape};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use cytoscope_kernels::train::Derivative;

/// Parameters of a gradient. Its blocked output, if any, is the gradient of the operator's input; gradients of parameters
/// are dense tensors. Here x is the operator's input, and dy the gradient of its output.
pub(crate) enum GradientKind {
    /// The requested gradients of a convolution. Reads x and dy; before them, if `accumulates`, a gradient to which that of
    /// the input is added.
    Conv { weight: ValueId, shape: ConvShape, d_weight: Option<ValueId>, d_bias: Option<ValueId>, accumulates: bool },
    /// Sums of the input over batch and space, one per channel, as a dense vector.
    ChannelSums(ValueId),
    /// The requested gradients of a normalization, and of the activation after it. Reads dy and x.
    Norm { norm: Norm, activation: Activation, d_scale: Option<ValueId>, d_bias: Option<ValueId> },
    /// The gradient of an element-wise function. Reads dy and what determines the derivative: input or output of a (leaky)
    /// ReLU.
    Unary(Derivative),
    /// The gradient of pooling. Reads x and dy.
    Pool(Pool, ConvShape),
    /// The gradient of resampling, by the tables of the forward pass. Reads dy.
    Resample(Box<[Vec<Tap>; 3]>),
}

impl GradientKind {
    /// Returns whether the result is added to the first input.
    pub(super) fn accumulates(&self) -> bool {
        matches!(self, Self::Conv { accumulates: true, .. })
    }

    /// Returns the steps, given the slots of the inputs and of the input's gradient.
    pub(super) fn into_steps(self, inputs: &[usize], dx: Option<usize>) -> Result<Steps, LowerError> {
        let first = slot_at(inputs, 0)?;
        let second = || slot_at(inputs, 1);
        let output = || dx.ok_or(LowerError::MissingOutput);
        Ok(match self {
            Self::Conv { weight, shape, d_weight, d_bias, accumulates } => {
                let at = usize::from(accumulates);
                let (x, dy) = (slot_at(inputs, at)?, slot_at(inputs, at + 1)?);
                let weight_step = d_weight.map(|output| step(WeightGradient { x, dy, shape, output }));
                let bias_step = d_bias.map(|output| step(ChannelSums { x: dy, output }));
                let accumulate_into = accumulates.then_some(first);
                let input_step =
                    dx.map(|output| step(InputGradientStep { weight, dy, shape, accumulate_into, output }));
                weight_step.into_iter().chain(bias_step).chain(input_step).collect()
            }
            Self::ChannelSums(output) => vec![step(ChannelSums { x: first, output })],
            Self::Norm { norm, activation, d_scale, d_bias } => {
                vec![step(NormGradient { x: second()?, dy: first, norm, activation, dx, d_scale, d_bias })]
            }
            Self::Unary(of) => vec![step(UnaryGradient { y: second()?, dy: first, of, output: output()? })],
            Self::Pool(pool, shape) => {
                vec![step(PoolGradient { pool, shape, x: first, dy: second()?, output: output()? })]
            }
            Self::Resample(tables) => vec![step(ResizeGradient { tables, dy: first, output: output()? })],
        })
    }
}
