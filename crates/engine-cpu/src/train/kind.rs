//! What can become of a node: its plan, with the values it reads and makes.

use cytoscope_graph::ValueId;
use cytoscope_kernels::conv::{Activation, ConvShape};
use cytoscope_kernels::pointwise::{Binary, Unary};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use cytoscope_kernels::train::Derivative;

/// A tensor in a pass over voxels: as it is, or normalised with moments that were taken of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Term {
    pub x: ValueId,
    pub norm: Option<Norm>,
}

/// A normalisation: parameters and whose statistics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Norm {
    /// Number of the moments.
    pub moments: usize,
    pub scale: ValueId,
    pub bias: ValueId,
    pub epsilon: f32,
    /// Over the whole batch, else image by image.
    pub batch: bool,
}

/// A plan for one node, with those it takes in.
#[derive(Debug, Clone)]
pub(crate) enum Plan {
    /// Part of another node's plan, or nothing to do.
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
    /// A transposed convolution whose kernel is its stride.
    Transposed {
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
        kernel: [usize; 3],
        output: ValueId,
    },
    /// Gradients of a convolution, those that are wanted.
    ConvGradient {
        x: ValueId,
        weight: ValueId,
        dy: ValueId,
        shape: ConvShape,
        dx: Option<ValueId>,
        dw: Option<ValueId>,
        db: Option<ValueId>,
        /// A gradient that dx is added to, in its place.
        onto: Option<ValueId>,
    },
    /// Sums by channel into a dense vector.
    ChannelSums {
        x: ValueId,
        output: ValueId,
    },
    /// activation(Σ terms), with what else a training-mode batch norm gives.
    Apply {
        terms: Vec<Term>,
        take: Vec<(ValueId, usize)>,
        activation: Activation,
        statistics: Vec<(usize, Option<ValueId>, Option<ValueId>)>,
        output: ValueId,
    },
    NormGradient {
        x: ValueId,
        dy: ValueId,
        norm: Norm,
        /// What followed the norm, undone on the way.
        activation: Activation,
        dx: Option<ValueId>,
        d_scale: Option<ValueId>,
        d_bias: Option<ValueId>,
    },
    /// The gradient of a function of one value, by what tells its derivative: its result for a (leaky) rectifier.
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
    /// Channels side by side: first block of each.
    Concat {
        inputs: Vec<ValueId>,
        blocks: Vec<usize>,
        output: ValueId,
    },
    /// Some blocks of channels.
    Slice {
        x: ValueId,
        block: usize,
        output: ValueId,
    },
}

impl Plan {
    /// Values it makes in blocks.
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

    /// Dense tensors it reads.
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

    /// Dense tensors it makes.
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

    /// Values it reads in blocks, those that its result may take the place of first.
    pub(crate) fn inputs(&self) -> Vec<ValueId> {
        match self {
            Plan::Absorbed | Plan::Reference => Vec::new(),
            Plan::Conv { x, .. } | Plan::Transposed { x, .. } | Plan::ChannelSums { x, .. } => vec![*x],
            Plan::ConvGradient { x, dy, onto, .. } => onto.iter().copied().chain([*x, *dy]).collect(),
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
