//! Plans of nodes, with the values they read and compute.

use crate::step::StepOp;
use crate::steps::{
    Affine, Apply, BinaryStep, ChannelSums, ConvOfTensors, Epilogue, InputGradientStep, MergeMoments, MomentsOf, Norm,
    NormGradient, PoolGradient, PoolStep, ResizeGradient, ResizeStep, TransposedOfTensors, UnaryGradient, UnaryStep,
    WeightGradient,
};
use cytoscope_engine::EngineError;
use cytoscope_graph::ValueId;
use cytoscope_kernels::conv::{Activation, ConvShape};
use cytoscope_kernels::pointwise::{Binary, Unary};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use cytoscope_kernels::train::Derivative;

/// An operand of a pass over voxels: a tensor, or a tensor that is normalized with its moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Term {
    pub x: ValueId,
    pub norm: Option<Norm>,
}

/// A plan for one node and the nodes fused into it.
#[derive(Debug, Clone)]
pub(crate) enum Plan {
    /// Fused into another node's plan, or a no-op.
    Absorbed,
    /// Run by the reference executor.
    Reference,
    Conv {
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
        shape: ConvShape,
        activation: Activation,
        moments: Option<usize>,
        output: ValueId,
    },
    /// A transposed convolution whose kernel size equals its stride.
    Transposed {
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
        kernel: [usize; 3],
        output: ValueId,
    },
    /// The requested gradients of a convolution.
    ConvGradient {
        x: ValueId,
        weight: ValueId,
        dy: ValueId,
        shape: ConvShape,
        dx: Option<ValueId>,
        dw: Option<ValueId>,
        db: Option<ValueId>,
        /// A gradient to which dx is added in place.
        accumulate_into: Option<ValueId>,
    },
    /// Sums over batch and space, one per channel, as a dense vector.
    ChannelSums {
        x: ValueId,
        output: ValueId,
    },
    /// activation(Σ terms), and the mean and variance outputs of training-mode batch norms.
    Apply {
        terms: Vec<Term>,
        new_moments: Vec<(ValueId, usize)>,
        activation: Activation,
        statistics: Vec<(usize, Option<ValueId>, Option<ValueId>)>,
        output: ValueId,
    },
    NormGradient {
        x: ValueId,
        dy: ValueId,
        norm: Norm,
        /// Activation after the norm whose gradient is applied first.
        activation: Activation,
        dx: Option<ValueId>,
        d_scale: Option<ValueId>,
        d_bias: Option<ValueId>,
    },
    /// The gradient of an element-wise function. `y` determines the derivative: input or output of a (leaky) ReLU.
    UnaryGradient {
        y: ValueId,
        dy: ValueId,
        of: Derivative,
        output: ValueId,
    },
    Unary {
        f: Unary,
        x: ValueId,
        output: ValueId,
    },
    Binary {
        f: Binary,
        a: ValueId,
        b: ValueId,
        output: ValueId,
    },
    Pool {
        pool: Pool,
        shape: ConvShape,
        x: ValueId,
        output: ValueId,
    },
    PoolGradient {
        pool: Pool,
        shape: ConvShape,
        x: ValueId,
        dy: ValueId,
        output: ValueId,
    },
    /// Weighted sums of neighboring voxels, by a table for each axis (Z, Y, X).
    Resample {
        tables: Box<[Vec<Tap>; 3]>,
        x: ValueId,
        output: ValueId,
    },
    ResampleGradient {
        tables: Box<[Vec<Tap>; 3]>,
        dy: ValueId,
        output: ValueId,
    },
    /// Inputs side by side along the channels, with the first channel block of each.
    Joined {
        inputs: Vec<ValueId>,
        blocks: Vec<usize>,
        output: ValueId,
    },
    /// Consecutive channel blocks of `x`, starting at `block`.
    Slice {
        x: ValueId,
        block: usize,
        output: ValueId,
    },
}

impl Plan {
    /// Returns the blocked values that the plan computes.
    pub(crate) fn outputs(&self) -> Vec<ValueId> {
        match self {
            Plan::Absorbed | Plan::Reference | Plan::ChannelSums { .. } => Vec::new(),
            Plan::ConvGradient { dx, .. } | Plan::NormGradient { dx, .. } => dx.iter().copied().collect(),
            Plan::Conv { output, .. }
            | Plan::Transposed { output, .. }
            | Plan::Apply { output, .. }
            | Plan::UnaryGradient { output, .. }
            | Plan::Unary { output, .. }
            | Plan::Binary { output, .. }
            | Plan::Pool { output, .. }
            | Plan::PoolGradient { output, .. }
            | Plan::Resample { output, .. }
            | Plan::ResampleGradient { output, .. }
            | Plan::Joined { output, .. }
            | Plan::Slice { output, .. } => vec![*output],
        }
    }

    /// Returns the dense tensors that the plan reads.
    pub(crate) fn parameters(&self) -> Vec<ValueId> {
        match self {
            Plan::Conv { weight, bias, .. } | Plan::Transposed { weight, bias, .. } => {
                [Some(*weight), *bias].into_iter().flatten().collect()
            }
            Plan::ConvGradient { weight, dx: Some(_), .. } => vec![*weight],
            Plan::Apply { terms, .. } => terms.iter().filter_map(|t| t.norm).flat_map(|n| [n.scale, n.bias]).collect(),
            Plan::NormGradient { norm, .. } => vec![norm.scale, norm.bias],
            _ => Vec::new(),
        }
    }

    /// Returns the blocked values that the plan reads; the one that the output may overwrite comes first.
    pub(crate) fn inputs(&self) -> Vec<ValueId> {
        match self {
            Plan::Absorbed | Plan::Reference => Vec::new(),
            Plan::Conv { x, .. } | Plan::Transposed { x, .. } | Plan::ChannelSums { x, .. } => vec![*x],
            Plan::ConvGradient { x, dy, accumulate_into, .. } => {
                accumulate_into.iter().copied().chain([*x, *dy]).collect()
            }
            Plan::Apply { terms, .. } => terms.iter().map(|t| t.x).collect(),
            Plan::NormGradient { x, dy, .. } => vec![*dy, *x],
            Plan::UnaryGradient { y, dy, .. } => vec![*dy, *y],
            Plan::Unary { x, .. } | Plan::Pool { x, .. } | Plan::Resample { x, .. } | Plan::Slice { x, .. } => vec![*x],
            Plan::Binary { a, b, .. } => vec![*a, *b],
            Plan::PoolGradient { x, dy, .. } => vec![*x, *dy],
            Plan::ResampleGradient { dy, .. } => vec![*dy],
            Plan::Joined { inputs, .. } => inputs.clone(),
        }
    }
}

/// The steps of one plan, in order.
type Steps = Vec<Box<dyn StepOp>>;

impl Plan {
    /// Returns the steps of a plan for which `slot` returns the slot of a value. Concatenations and slices are emitted
    /// elsewhere: they have steps only if their buffers are not shared. `channels` is the output's number of channels.
    pub(crate) fn into_steps(
        self,
        channels: usize,
        slot: &mut dyn FnMut(ValueId) -> Result<usize, EngineError>,
    ) -> Result<Steps, EngineError> {
        let one: Box<dyn StepOp> = match self {
            Plan::Absorbed | Plan::Reference | Plan::Joined { .. } | Plan::Slice { .. } => return Ok(Vec::new()),
            Plan::ConvGradient { .. } => return self.into_convolution_gradients(slot),
            Plan::Apply { terms, new_moments, activation, statistics, output } => {
                let mut steps: Steps = Vec::new();
                for (x, moments) in new_moments {
                    steps.push(Box::new(MomentsOf { input: slot(x)?, moments }));
                }
                for (moments, mean, variance) in statistics {
                    steps.push(Box::new(MergeMoments { moments, mean, variance }));
                }
                let terms = terms.into_iter().map(|t| t.with_slot(channels, slot)).collect::<Result<_, _>>()?;
                steps.push(Box::new(Apply { terms, activation, quantizer: None, output: slot(output)? }));
                return Ok(steps);
            }
            Plan::Conv { x, weight, bias, shape, activation, moments, output } => {
                let epilogue = Epilogue { activation, moments, ..Epilogue::default() };
                Box::new(ConvOfTensors { input: slot(x)?, weight, bias, shape, epilogue, output: slot(output)? })
            }
            Plan::Transposed { x, weight, bias, kernel, output } => {
                Box::new(TransposedOfTensors { input: slot(x)?, weight, bias, kernel, output: slot(output)? })
            }
            Plan::ChannelSums { x, output } => Box::new(ChannelSums { x: slot(x)?, output }),
            Plan::NormGradient { x, dy, norm, activation, dx, d_scale, d_bias } => {
                let dx = dx.map(&mut *slot).transpose()?;
                Box::new(NormGradient { x: slot(x)?, dy: slot(dy)?, norm, activation, dx, d_scale, d_bias })
            }
            Plan::UnaryGradient { y, dy, of, output } => {
                Box::new(UnaryGradient { y: slot(y)?, dy: slot(dy)?, of, output: slot(output)? })
            }
            Plan::Unary { f, x, output } => Box::new(UnaryStep { f, input: slot(x)?, output: slot(output)? }),
            Plan::Binary { f, a, b, output } => {
                Box::new(BinaryStep { f, a: slot(a)?, b: slot(b)?, output: slot(output)? })
            }
            Plan::Pool { pool, shape, x, output } => {
                Box::new(PoolStep { kind: pool, shape, input: slot(x)?, output: slot(output)? })
            }
            Plan::PoolGradient { pool, shape, x, dy, output } => {
                Box::new(PoolGradient { pool, shape, x: slot(x)?, dy: slot(dy)?, output: slot(output)? })
            }
            Plan::Resample { tables, x, output } => {
                Box::new(ResizeStep { tables, input: slot(x)?, output: slot(output)? })
            }
            Plan::ResampleGradient { tables, dy, output } => {
                Box::new(ResizeGradient { tables, dy: slot(dy)?, output: slot(output)? })
            }
        };
        Ok(vec![one])
    }

    fn into_convolution_gradients(
        self,
        slot: &mut dyn FnMut(ValueId) -> Result<usize, EngineError>,
    ) -> Result<Steps, EngineError> {
        let Plan::ConvGradient { x, weight, dy, shape, dx, dw, db, accumulate_into } = self else {
            return Ok(Vec::new());
        };
        let (x, dy) = (slot(x)?, slot(dy)?);
        let mut steps: Steps = Vec::new();
        if let Some(output) = dw {
            steps.push(Box::new(WeightGradient { x, dy, shape, output }));
        }
        if let Some(output) = db {
            steps.push(Box::new(ChannelSums { x: dy, output }));
        }
        if let Some(dx) = dx {
            let accumulate_into = accumulate_into.map(&mut *slot).transpose()?;
            steps.push(Box::new(InputGradientStep { weight, dy, shape, accumulate_into, output: slot(dx)? }));
        }
        Ok(steps)
    }
}

impl Term {
    /// Returns the operand of a step with this number of channels.
    fn with_slot(
        self,
        channels: usize,
        slot: &mut dyn FnMut(ValueId) -> Result<usize, EngineError>,
    ) -> Result<crate::steps::Term, EngineError> {
        let affine = match self.norm {
            Some(norm) => Affine::OfTensors(norm),
            None => Affine::Fixed { scale: vec![1.0; channels], shift: vec![0.0; channels] },
        };
        Ok(crate::steps::Term { slot: slot(self.x)?, plane: false, affine })
    }
}
