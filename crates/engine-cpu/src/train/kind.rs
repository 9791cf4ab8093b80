//! Plans of nodes, with the values they read and compute.

use cytoscope_graph::ValueId;
use cytoscope_kernels::conv::{Activation, ConvShape};
use cytoscope_kernels::pointwise::{Binary, Unary};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use cytoscope_kernels::train::Derivative;

/// An operand of a pass over voxels: a tensor, or a tensor that is normalised with its moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Term {
    pub x: ValueId,
    pub norm: Option<Norm>,
}

/// Parameters and statistics of a normalisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Norm {
    /// Index of the moments.
    pub moments: usize,
    pub scale: ValueId,
    pub bias: ValueId,
    pub epsilon: f32,
    /// Whether the statistics are of the whole batch; otherwise of each image.
    pub batch: bool,
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
    Resize {
        tables: Box<[Vec<Tap>; 3]>,
        x: ValueId,
        output: ValueId,
    },
    ResizeGradient {
        tables: Box<[Vec<Tap>; 3]>,
        dy: ValueId,
        output: ValueId,
    },
    /// Concatenation along channels, with the first channel block of each input.
    Concat {
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
            | Plan::Resize { output, .. }
            | Plan::ResizeGradient { output, .. }
            | Plan::Concat { output, .. }
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

    /// Returns the dense tensors that the plan computes.
    pub(crate) fn dense_outputs(&self) -> Vec<ValueId> {
        match self {
            Plan::ConvGradient { dw, db, .. } => dw.iter().chain(db).copied().collect(),
            Plan::NormGradient { d_scale, d_bias, .. } => d_scale.iter().chain(d_bias).copied().collect(),
            Plan::ChannelSums { output, .. } => vec![*output],
            Plan::Apply { statistics, .. } => {
                statistics.iter().flat_map(|(_, mean, variance)| [*mean, *variance]).flatten().collect()
            }
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
            Plan::Unary { x, .. } | Plan::Pool { x, .. } | Plan::Resize { x, .. } | Plan::Slice { x, .. } => vec![*x],
            Plan::Binary { a, b, .. } => vec![*a, *b],
            Plan::PoolGradient { x, dy, .. } => vec![*x, *dy],
            Plan::ResizeGradient { dy, .. } => vec![*dy],
            Plan::Concat { inputs, .. } => inputs.clone(),
        }
    }
}
