//! Quantization, dequantization and functions of bytes.

use crate::context::{Context, StepError, bytes, bytes_mut, for_each_image};
use crate::step::StepOp;
use cytoscope_kernels::apply::{self, Source};
use cytoscope_kernels::conv::{Activation, Quantizer, Target};
use cytoscope_kernels::{CHANNEL_BLOCK, norm, pointwise, reorder};

/// How bytes are dequantized: (byte − zero point) · scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ByteScale {
    /// Known at compile time.
    Known { scale: f32, zero_point: u8 },
    /// Index of the run-time quantization that computes both.
    AtRunTime(usize),
}

/// Quantizes floats by their range over the whole batch, as ONNX `DynamicQuantizeLinear` defines.
#[derive(Debug)]
pub(crate) struct DynamicQuantize {
    /// Slot that is read.
    pub input: usize,
    /// Index under which scale and zero point are stored.
    pub ranges: usize,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for DynamicQuantize {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        let (mut low, mut high) = (0.0f32, 0.0f32);
        for_each_image(context.arena, &to, |image, _, split| {
            let (l, h) = norm::range(isa, split.image(&from, image)?, &from.layout)?;
            (low, high) = (low.min(l), high.max(h));
            Ok(())
        })?;
        // As in ONNX, the range includes 0. An empty range gets scale 1, so that every byte is the zero point.
        let scale = if high > low { (high - low) / 255.0 } else { 1.0 };
        let zero = (-low / scale).round_ties_even().clamp(0.0, 255.0) as u8;
        *context.ranges.get_mut(self.ranges).ok_or(StepError::MissingRange(self.ranges))? = Some((scale, zero));
        let (ones, zeros) = (vec![1.0; to.layout.channels], vec![0.0; to.layout.channels]);
        for_each_image(context.arena, &to, |image, words, split| {
            let x = split.image(&from, image)?;
            let bytes = bytes_mut(words, to.layout.len());
            let quantizer = Quantizer::new(scale, zero);
            if from.layout.block == 1 {
                reorder::quantize_planes(isa, x, &from.layout, quantizer, bytes, &to.layout)?;
                reorder::clear_border(&to.layout, zero, bytes)?;
                return Ok(());
            }
            let term = apply::Term { source: Source::F32(x, &from.layout), scale: &ones, shift: &zeros };
            apply::apply(isa, &[term], Activation::None, Target::U8(bytes, quantizer), &to.layout)?;
            reorder::clear_border(&to.layout, zero, bytes_mut(words, to.layout.len()))?;
            Ok(())
        })
    }
}

/// Quantizes planes of floats to narrow blocks of bytes.
#[derive(Debug)]
pub(crate) struct QuantizePlanes {
    /// Slot that is read.
    pub input: usize,
    /// Scale and zero point of the bytes.
    pub quantizer: Quantizer,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for QuantizePlanes {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        for_each_image(context.arena, &to, |image, target, split| {
            let (x, y) = (split.image(&from, image)?, bytes_mut(target, to.layout.len()));
            reorder::quantize_planes(isa, x, &from.layout, self.quantizer, y, &to.layout)?;
            Ok(())
        })
    }
}

/// Dequantizes bytes to floats in blocks of the same size, or narrow blocks of bytes to planes of floats.
#[derive(Debug)]
pub(crate) struct Dequantize {
    /// Slot that is read.
    pub input: usize,
    /// Scale and zero point of the bytes.
    pub scale: ByteScale,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for Dequantize {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        let (scale, zero_point) = match self.scale {
            ByteScale::Known { scale, zero_point } => (scale, zero_point),
            ByteScale::AtRunTime(at) => context.range(at)?,
        };
        for_each_image(context.arena, &to, |image, target, split| {
            let x = bytes(split.image(&from, image)?, from.layout.len());
            if to.layout.block == CHANNEL_BLOCK {
                pointwise::dequantize(isa, (x, &from.layout), scale, zero_point, target, &to.layout)?;
            } else {
                reorder::dequantize_planes(x, &from.layout, scale, zero_point, target, &to.layout)?;
            }
            Ok(())
        })
    }
}

/// Maps each byte through a table, in place or not.
#[derive(Debug)]
pub(crate) struct Translate {
    /// Slot that is read.
    pub input: usize,
    /// Output byte for each input byte.
    pub table: Box<[u8; 256]>,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for Translate {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (from, to) = (context.slot(self.input)?, context.slot(self.output)?);
        for_each_image(context.arena, &to, |image, target, split| {
            let y = bytes_mut(target, to.layout.len());
            if from.range(image) == to.range(image) {
                pointwise::translate_in_place(&self.table, y, &to.layout)?;
            } else {
                let x = bytes(split.image(&from, image)?, from.layout.len());
                pointwise::translate(x, &from.layout, &self.table, y, &to.layout)?;
            }
            Ok(())
        })
    }
}
