//! The steps a graph is lowered to.

use cytoscope_graph::ValueId;
use cytoscope_kernels::Blocked;
use cytoscope_kernels::conv::{Activation, ConvShape, PackedConv, PackedConvInt8, Quantizer, Transposed};
use cytoscope_kernels::pointwise::{Binary, Unary};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use std::ops::Range;

/// Element type of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Elem {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Unsigned bytes with a zero point.
    U8 {
        /// The byte that represents 0.
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

    /// Returns how many 32-bit words `len` elements occupy.
    pub(crate) fn words(self, len: usize) -> usize {
        len.saturating_mul(self.size_bytes()).div_ceil(size_of::<f32>())
    }
}

/// A blocked value in the arena; positions are in 32-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Layout of one image of the batch.
    pub layout: Blocked,
    /// Element type.
    pub elem: Elem,
    /// Number of images in the batch.
    pub images: usize,
    /// First word of the first image.
    pub start: usize,
    /// Words from one image to the next.
    pub image_stride: usize,
}

impl Slot {
    /// Returns the words of one image.
    pub fn range(&self, image: usize) -> Range<usize> {
        let start = self.start + image * self.image_stride;
        start..start + self.elem.words(self.layout.len())
    }
}

/// Operations on a convolution's sums before they are stored: scale, bias, residual and activation, in this order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Epilogue {
    /// Factor of each output channel.
    pub scale: Option<Vec<f32>>,
    /// Bias of each output channel, added after scaling.
    pub bias: Option<Vec<f32>>,
    /// A slot that is added.
    pub residual: Option<usize>,
    /// Applied last.
    pub activation: Activation,
    /// Index under which mean and variance of the results are stored, if wanted.
    pub moments: Option<usize>,
    /// How results are quantized, if they are stored as bytes.
    pub quantizer: Option<Quantizer>,
    /// Set if the input's scale and zero point are computed at run time; `scale` then holds the weights' scales only.
    pub dynamic: Option<DynamicScale>,
}

/// Parameters of a convolution whose input is quantized at run time.
#[derive(Debug, Clone)]
pub(crate) struct DynamicScale {
    /// Index of the run-time quantization.
    pub ranges: usize,
    /// Sum of the weights of each output channel.
    pub weight_sums: Vec<f32>,
}

/// Scale and shift of each channel of a term.
#[derive(Debug, Clone)]
pub(crate) enum Affine {
    /// Constants known at compile time.
    Fixed {
        /// Scale of each channel.
        scale: Vec<f32>,
        /// Shift of each channel.
        shift: Vec<f32>,
    },
    /// A normalisation, computed from the moments of the stored values.
    Norm {
        /// Index of the moments.
        moments: usize,
        /// Scale of the normalisation, by channel.
        gamma: Vec<f32>,
        /// Bias of the normalisation, by channel.
        beta: Vec<f32>,
        /// Added to the variance.
        epsilon: f32,
        /// Stored values are `factor[c] · true value` plus a constant that all channels share.
        factor: Vec<f32>,
        /// Number of groups; equals the number of channels in an instance norm.
        groups: usize,
    },
    /// Dequantization with the scale and zero point of a run-time quantization.
    Dynamic {
        /// Index of the run-time quantization.
        ranges: usize,
        /// Number of channels.
        channels: usize,
    },
    /// A normalised 1×1×1 convolution of one plane; its moments follow from those of the plane.
    PlaneNorm {
        /// Index of the plane's moments.
        moments: usize,
        /// Weight of each output channel.
        weights: Vec<f32>,
        /// Scale of the normalisation, by channel.
        gamma: Vec<f32>,
        /// Bias of the normalisation, by channel.
        beta: Vec<f32>,
        /// Added to the variance.
        epsilon: f32,
    },
}

/// Scale with which bytes are dequantized to planes of floats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PlaneScale {
    /// Scale known at compile time.
    Known(f32),
    /// Index of the run-time quantization that computes it.
    AtRunTime(usize),
}

/// One operand of a pass that sums scaled and shifted slots.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    /// Index of the slot that is read.
    pub slot: usize,
    /// Whether the slot is a single plane that is broadcast to all channels.
    pub plane: bool,
    /// Scale and shift of each channel.
    pub affine: Affine,
}

/// One step; slots are indices into the program's slot table.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Copies a dense tensor into a slot.
    Pack { from: ValueId, to: usize },
    /// Copies a slot into a dense tensor of this shape.
    Unpack { from: usize, to: ValueId, shape: Vec<usize>, signed: bool },
    /// Fills the border of a slot with zeros before its first use.
    ClearBorder { slot: usize },
    /// Convolution.
    Conv { input: usize, weights: PackedConv, shape: ConvShape, epilogue: Epilogue, output: usize },
    /// Convolution of bytes with 32-bit integer accumulation.
    ConvInt8 { input: usize, weights: PackedConvInt8, shape: ConvShape, epilogue: Epilogue, output: usize },
    /// Transposed convolution whose kernel size equals its stride.
    ConvTranspose { input: usize, weights: Transposed<PackedConv>, epilogue: Epilogue, output: usize },
    /// Transposed convolution of bytes whose kernel size equals its stride.
    ConvTransposeInt8 { input: usize, weights: Transposed<PackedConvInt8>, epilogue: Epilogue, output: usize },
    /// Mean and variance of a slot's channels.
    Moments { input: usize, moments: usize },
    /// Sums terms, applies an activation, and quantizes if asked.
    Apply { terms: Vec<Term>, activation: Activation, quantizer: Option<Quantizer>, output: usize },
    /// As `Apply`, followed by a 1×1×1 convolution to few channels.
    Head {
        terms: Vec<Term>,
        channels: usize,
        activation: Activation,
        weights: Vec<f32>,
        bias: Vec<f32>,
        quantizer: Option<Quantizer>,
        output: usize,
    },
    /// Scales and shifts each channel.
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
    /// Element-wise function of one operand.
    Unary { f: Unary, input: usize, output: usize },
    /// Element-wise function of two operands.
    Binary { f: Binary, a: usize, b: usize, output: usize },
    /// Max or average pooling.
    Pool { kind: Pool, shape: ConvShape, input: usize, output: usize },
    /// Resampling, or padding with existing voxels.
    Resize { tables: Box<[Vec<Tap>; 3]>, input: usize, output: usize },
    /// Quantizes floats by their range over the whole batch, as ONNX `DynamicQuantizeLinear` defines.
    DynamicQuantize { input: usize, ranges: usize, output: usize },
    /// Quantizes planes of floats to narrow blocks of bytes.
    QuantizePlanes { input: usize, quantizer: Quantizer, output: usize },
    /// Dequantizes narrow blocks of bytes to planes of floats.
    DequantizePlanes { input: usize, scale: PlaneScale, output: usize },
    /// Maps each byte through a table.
    Translate { input: usize, table: Box<[u8; 256]>, output: usize },
    /// Copies a slot into another one with the same channels.
    Copy { input: usize, output: usize },
    /// Runs a node with the reference executor, on dense tensors.
    Reference { node: usize },
}

/// A step with its name and amount of work.
#[derive(Debug)]
pub(crate) struct Step {
    /// The operation.
    pub kind: Kind,
    /// Operator and node name, shown in profiles.
    pub name: String,
    /// Multiply-accumulate operations of one run.
    pub macs: u64,
}
