//! The steps a graph is lowered to.

use cytoscope_graph::ValueId;
use cytoscope_kernels::Blocked;
use cytoscope_kernels::conv::{Activation, ConvShape, PackedConv};
use cytoscope_kernels::pointwise::{Binary, Unary};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use std::ops::Range;

/// A blocked value in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Layout of one image.
    pub layout: Blocked,
    /// Images in the batch.
    pub images: usize,
    /// First value of the first image in the arena.
    pub start: usize,
    /// Values from one image to the next.
    pub image_stride: usize,
}

impl Slot {
    /// The values of one image.
    pub fn range(&self, image: usize) -> Range<usize> {
        let start = self.start + image * self.image_stride;
        start..start + self.layout.len()
    }
}

/// One step; slots are indices into the program's slot table.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Dense tensor into a slot.
    Pack { from: ValueId, to: usize },
    /// Slot into a dense tensor of this shape.
    Unpack { from: usize, to: ValueId, shape: Vec<usize> },
    /// Zeros around a slot that starts its life here.
    ClearBorder { slot: usize },
    /// Convolution.
    Conv {
        input: usize,
        weights: PackedConv,
        shape: ConvShape,
        activation: Activation,
        residual: Option<usize>,
        output: usize,
    },
    /// Transposed convolution whose kernel is its stride.
    ConvTranspose { input: usize, taps: Vec<PackedConv>, kernel: [usize; 3], activation: Activation, output: usize },
    /// Instance normalisation; `input == output` where in place.
    InstanceNorm {
        input: usize,
        scale: Vec<f32>,
        bias: Vec<f32>,
        epsilon: f32,
        residual: Option<usize>,
        activation: Activation,
        output: usize,
    },
    /// Scale and shift a channel.
    Affine {
        input: usize,
        scale: Vec<f32>,
        shift: Vec<f32>,
        residual: Option<usize>,
        activation: Activation,
        output: usize,
    },
    /// Function of one value.
    Unary { f: Unary, input: usize, output: usize },
    /// Function of two values.
    Binary { f: Binary, a: usize, b: usize, output: usize },
    /// Pool.
    Pool { kind: Pool, shape: ConvShape, input: usize, output: usize },
    /// Resampling, or padding by existing voxels.
    Resize { tables: Box<[Vec<Tap>; 3]>, input: usize, output: usize },
    /// Into another slot of the same channels.
    Copy { input: usize, output: usize },
    /// The reference executor, on dense tensors.
    Reference { node: usize },
}

/// A step with its name and work.
#[derive(Debug)]
pub(crate) struct Step {
    /// What is done.
    pub kind: Kind,
    /// Operator and node for profiles.
    pub name: String,
    /// Multiply-accumulates of one run.
    pub macs: u64,
}
