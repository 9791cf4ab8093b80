//! Convolutions whose weights are packed at compile time.

use crate::context::{Context, StepError, StepResult, bytes, for_each_image, target};
use crate::step::{Slot, StepOp};
use cytoscope_kernels::conv::{
    self, Activation, ConvShape, Finish, PackedConv, PackedConvBf16, PackedConvInt8, Quantizer, Target, Transposed,
};
use cytoscope_kernels::norm::Moments;
use cytoscope_kernels::{Blocked, Isa, KernelError};

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

impl Epilogue {
    /// Returns the epilogue with the run-time scale and zero point of the convolution's input, or `None` if those are
    /// constant.
    fn resolve(&self, context: &Context<'_>) -> StepResult<Option<Epilogue>> {
        let Some(dynamic) = &self.dynamic else { return Ok(None) };
        let (input_scale, zero) = context.range(dynamic.ranges)?;
        let scale: Vec<f32> = self.scale.iter().flatten().map(|s| s * input_scale).collect();
        // The sums use raw bytes: the zero point's share of them is subtracted with the bias.
        let extra = scale.iter().zip(&dynamic.weight_sums).map(|(s, sum)| -f32::from(zero) * sum * s);
        let bias = match &self.bias {
            Some(bias) => extra.zip(bias).map(|(e, b)| e + b).collect(),
            None => extra.collect(),
        };
        Ok(Some(Epilogue { scale: Some(scale), bias: Some(bias), dynamic: None, ..self.clone() }))
    }

    /// Returns the epilogue as the kernels take it.
    fn finish<'a>(&'a self, residual: Option<(&'a [f32], &'a Blocked)>) -> Finish<'a> {
        Finish {
            scale: self.scale.as_deref(),
            bias: self.bias.as_deref(),
            residual,
            activation: self.activation,
            moments: self.moments.is_some(),
        }
    }
}

/// Runs a convolution kernel, given its input, the epilogue and the target, for each image, and stores the moments.
pub(super) fn convolve(
    context: &mut Context<'_>,
    from: &Slot,
    to: &Slot,
    epilogue: &Epilogue,
    mut kernel: impl FnMut(&[f32], &Finish<'_>, Target<'_>) -> Result<Option<Moments>, KernelError>,
) -> StepResult<()> {
    let extra = epilogue.residual.map(|r| context.slot(r)).transpose()?;
    let resolved = epilogue.resolve(context)?;
    let epilogue = resolved.as_ref().unwrap_or(epilogue);
    let mut image_moments = Vec::new();
    for_each_image(context.arena, to, |image, words, split| {
        let x = split.image(from, image)?;
        let residual = extra.as_ref().map(|r| split.image(r, image).map(|words| (words, &r.layout))).transpose()?;
        let moments = kernel(x, &epilogue.finish(residual), target(words, to, epilogue.quantizer)?)?;
        image_moments.extend(moments);
        Ok(())
    })?;
    epilogue.moments.map_or(Ok(()), |at| context.store_moments(at, image_moments))
}

/// Weights of a convolution of floats, in the order of the instruction set that runs them.
#[derive(Debug)]
pub(crate) enum FloatWeights {
    /// Factors have 32 bits.
    F32(PackedConv),
    /// Factors are rounded to bf16.
    Bf16(PackedConvBf16),
}

impl FloatWeights {
    /// Returns the number of output channels.
    pub(crate) fn out_channels(&self) -> usize {
        match self {
            Self::F32(weights) => weights.out_channels(),
            Self::Bf16(weights) => weights.out_channels(),
        }
    }

    /// Returns the size of the packed weights in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        match self {
            Self::F32(weights) => weights.size_bytes(),
            Self::Bf16(weights) => weights.size_bytes(),
        }
    }

    /// Convolves one image of the slot `from`.
    fn convolve(
        &self,
        isa: Isa,
        (x, from): (&[f32], &Slot),
        shape: &ConvShape,
        finish: &Finish<'_>,
        target: Target<'_>,
        to: &Blocked,
    ) -> Result<Option<Moments>, KernelError> {
        let layout = &from.layout;
        match (self, from.ring_first) {
            (Self::F32(weights), None) => conv::conv(isa, x, layout, weights, shape, finish, target, to),
            (Self::F32(weights), Some(first)) => {
                conv::conv_in_ring(isa, x, layout, first, weights, shape, finish, target, to)
            }
            (Self::Bf16(weights), None) => conv::conv_bf16(isa, x, layout, weights, shape, finish, target, to),
            (Self::Bf16(weights), Some(first)) => {
                conv::conv_bf16_in_ring(isa, x, layout, first, weights, shape, finish, target, to)
            }
        }
    }
}

/// Convolution.
#[derive(Debug)]
pub(crate) struct Conv {
    /// Slot that is read.
    pub input: usize,
    /// Weights in the order of the instruction set that runs them.
    pub weights: FloatWeights,
    /// How the kernel moves over the input along Z, Y, X.
    pub shape: ConvShape,
    /// Applied to the sums before they are stored.
    pub epilogue: Epilogue,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for Conv {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.window_slot(self.input)?, context.slot(self.output)?);
        convolve(context, &from, &to, &self.epilogue, |x, finish, target| {
            self.weights.convolve(isa, (x, &from), &self.shape, finish, target, &to.layout)
        })
    }
}

/// Convolution of bytes with 32-bit integer accumulation.
#[derive(Debug)]
pub(crate) struct ConvInt8 {
    /// Slot that is read.
    pub input: usize,
    /// Weights in the order of the instruction set that runs them.
    pub weights: PackedConvInt8,
    /// How the kernel moves over the input along Z, Y, X.
    pub shape: ConvShape,
    /// Applied to the sums before they are stored.
    pub epilogue: Epilogue,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for ConvInt8 {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.window_slot(self.input)?, context.slot(self.output)?);
        let (weights, shape, layout) = (&self.weights, &self.shape, &from.layout);
        convolve(context, &from, &to, &self.epilogue, |x, finish, target| {
            let x = bytes(x, layout.len());
            match from.ring_first {
                None => conv::conv_int8(isa, x, layout, weights, shape, finish, target, &to.layout),
                Some(first) => {
                    conv::conv_int8_in_ring(isa, x, layout, first, weights, shape, finish, target, &to.layout)
                }
            }
        })
    }
}

/// Transposed convolution.
#[derive(Debug)]
pub(crate) struct ConvTranspose {
    /// Slot that is read.
    pub input: usize,
    /// Weights in the order of the instruction set that runs them.
    pub weights: Transposed<PackedConv>,
    /// Output voxels that are cropped before the first one along Z, Y, X.
    pub pad_before: [usize; 3],
    /// Applied to the sums before they are stored; a residual and moments are ignored.
    pub epilogue: Epilogue,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for ConvTranspose {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        for_each_image(context.arena, &to, |image, words, split| {
            let x = split.image(&from, image)?;
            let destination = target(words, &to, self.epilogue.quantizer)?;
            let finish = self.epilogue.finish(None);
            let (weights, pad) = (&self.weights, self.pad_before);
            conv::conv_transpose(isa, x, &from.layout, weights, pad, &finish, destination, &to.layout)?;
            Ok(())
        })
    }
}

/// Transposed convolution of bytes.
#[derive(Debug)]
pub(crate) struct ConvTransposeInt8 {
    /// Slot that is read.
    pub input: usize,
    /// Weights in the order of the instruction set that runs them.
    pub weights: Transposed<PackedConvInt8>,
    /// Output voxels that are cropped before the first one along Z, Y, X.
    pub pad_before: [usize; 3],
    /// Applied to the sums before they are stored; a residual and moments are ignored.
    pub epilogue: Epilogue,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for ConvTransposeInt8 {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        for_each_image(context.arena, &to, |image, words, split| {
            let x = bytes(split.image(&from, image)?, from.layout.len());
            let destination = target(words, &to, self.epilogue.quantizer)?;
            let finish = self.epilogue.finish(None);
            let (weights, pad) = (&self.weights, self.pad_before);
            conv::conv_transpose_int8(isa, x, &from.layout, weights, pad, &finish, destination, &to.layout)?;
            Ok(())
        })
    }
}
