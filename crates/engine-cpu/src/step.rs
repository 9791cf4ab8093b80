//! The steps a graph is lowered to.

use cytoscope_graph::ValueId;
use cytoscope_kernels::Blocked;
use cytoscope_kernels::conv::{Activation, ConvShape, PackedConv, PackedConvInt8, Quantizer, Transposed};
use cytoscope_kernels::pointwise::{Binary, Unary};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use std::ops::Range;

/// What a buffer's elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Elem {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Bytes, and the one that stands for 0.
    U8 {
        /// The byte of 0.
        zero_point: u8,
    },
}

impl Elem {
    pub(crate) fn size_bytes(self) -> usize {
        match self {
            Elem::F32 => 4,
            Elem::F16 => 2,
            Elem::U8 { .. } => 1,
        }
    }

    /// 32-bit words that `len` elements take.
    pub(crate) fn words(self, len: usize) -> usize {
        len.saturating_mul(self.size_bytes()).div_ceil(size_of::<f32>())
    }
}

/// A blocked value in the arena, which counts in 32-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Layout of one image.
    pub layout: Blocked,
    /// What its elements are.
    pub elem: Elem,
    /// Images in the batch.
    pub images: usize,
    /// First word of the first image in the arena.
    pub start: usize,
    /// Words from one image to the next.
    pub image_stride: usize,
}

impl Slot {
    /// The words of one image.
    pub fn range(&self, image: usize) -> Range<usize> {
        let start = self.start + image * self.image_stride;
        start..start + self.elem.words(self.layout.len())
    }
}

/// What is done to a convolution's sums.
#[derive(Debug, Clone, Default)]
pub(crate) struct End {
    /// Factors by output channel.
    pub scale: Option<Vec<f32>>,
    /// Summands by output channel, after the factors.
    pub bias: Option<Vec<f32>>,
    /// A slot to add.
    pub residual: Option<usize>,
    /// Done last.
    pub activation: Activation,
    /// Where mean and variance of the results are kept.
    pub moments: Option<usize>,
    /// How results become bytes, where they do.
    pub quantizer: Option<Quantizer>,
    /// The input's scale and zero point are found at run time: factors are of the weights alone.
    pub dynamic: Option<DynamicEnd>,
}

/// What a convolution of bytes with run-time scale needs to know of its weights.
#[derive(Debug, Clone)]
pub(crate) struct DynamicEnd {
    /// Which quantization.
    pub ranges: usize,
    /// Sum of the weights of each output channel.
    pub weight_sums: Vec<f32>,
}

/// Factor and summand of each channel of a term.
#[derive(Debug, Clone)]
pub(crate) enum Affine {
    /// Known.
    Fixed {
        /// Factors.
        scale: Vec<f32>,
        /// Summands.
        shift: Vec<f32>,
    },
    /// From the moments of what was stored.
    Norm {
        /// Which moments.
        moments: usize,
        /// Of the normalisation.
        gamma: Vec<f32>,
        /// Of the normalisation.
        beta: Vec<f32>,
        /// Of the normalisation.
        epsilon: f32,
        /// Stored values are `factor[c] · true value`, plus a number all channels share.
        factor: Vec<f32>,
        /// Groups of channels normalised together: as many as channels in an instance norm.
        groups: usize,
    },
    /// What a run-time quantization made of bytes.
    Dynamic {
        /// Which quantization.
        ranges: usize,
        /// Channels.
        channels: usize,
    },
    /// A normalised 1×1×1 convolution of one plane, whose moments follow from the plane's.
    PlaneNorm {
        /// The plane's moments.
        moments: usize,
        /// Weights by output channel.
        weights: Vec<f32>,
        /// Of the normalisation.
        gamma: Vec<f32>,
        /// Of the normalisation.
        beta: Vec<f32>,
        /// Of the normalisation.
        epsilon: f32,
    },
}

/// Scale of bytes that become planes of floats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PlaneScale {
    /// Value of one step.
    Known(f32),
    /// Number of the run-time quantization that finds it.
    AtRunTime(usize),
}

/// One summand of a pass.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    /// The slot read.
    pub slot: usize,
    /// Whether the slot is one plane that every channel sees.
    pub plane: bool,
    /// Factors and summands.
    pub affine: Affine,
}

/// One step; slots are indices into the program's slot table.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Dense tensor into a slot.
    Pack { from: ValueId, to: usize },
    /// Slot into a dense tensor of this shape.
    Unpack { from: usize, to: ValueId, shape: Vec<usize>, signed: bool },
    /// Zeros around a slot that starts its life here.
    ClearBorder { slot: usize },
    /// Convolution.
    Conv { input: usize, weights: PackedConv, shape: ConvShape, end: End, output: usize },
    /// Convolution of bytes.
    ConvInt8 { input: usize, weights: PackedConvInt8, shape: ConvShape, end: End, output: usize },
    /// Transposed convolution whose kernel is its stride.
    ConvTranspose { input: usize, weights: Transposed<PackedConv>, end: End, output: usize },
    /// Transposed convolution of bytes whose kernel is its stride.
    ConvTransposeInt8 { input: usize, weights: Transposed<PackedConvInt8>, end: End, output: usize },
    /// Mean and variance of a slot's channels.
    Moments { input: usize, moments: usize },
    /// Sum of terms, activation, number format.
    Apply { terms: Vec<Term>, activation: Activation, quantizer: Option<Quantizer>, output: usize },
    /// The same, and a 1×1×1 convolution to few channels.
    Head {
        terms: Vec<Term>,
        channels: usize,
        activation: Activation,
        weights: Vec<f32>,
        bias: Vec<f32>,
        quantizer: Option<Quantizer>,
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
    /// Instance normalisation of planes, in place or not.
    PlanarNorm { input: usize, scale: Vec<f32>, bias: Vec<f32>, epsilon: f32, activation: Activation, output: usize },
    /// Function of one value.
    Unary { f: Unary, input: usize, output: usize },
    /// Function of two values.
    Binary { f: Binary, a: usize, b: usize, output: usize },
    /// Pool.
    Pool { kind: Pool, shape: ConvShape, input: usize, output: usize },
    /// Resampling, or padding by existing voxels.
    Resize { tables: Box<[Vec<Tap>; 3]>, input: usize, output: usize },
    /// Floats to bytes by the range they have (all images together), as `DynamicQuantizeLinear` says.
    DynamicQuantize { input: usize, ranges: usize, output: usize },
    /// Planes of floats to narrow blocks of bytes.
    QuantizePlanes { input: usize, quantizer: Quantizer, output: usize },
    /// Narrow blocks of bytes to planes of floats, with a known scale or that of a run-time quantization.
    DequantizePlanes { input: usize, scale: PlaneScale, output: usize },
    /// Bytes by a table.
    Translate { input: usize, table: Box<[u8; 256]>, output: usize },
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
