//! Element-wise functions, pooling, resampling and copies.

use crate::context::{Context, StepError, bytes, bytes_mut, for_each_image};
use crate::step::{Elem, StepOp};
use cytoscope_kernels::conv::ConvShape;
use cytoscope_kernels::pad::{self, Filling};
use cytoscope_kernels::pointwise::{self, Binary, Unary};
use cytoscope_kernels::pool::{self, Pool};
use cytoscope_kernels::resize::{self, Tap};
use cytoscope_kernels::train;

/// Element-wise function of one operand, in place or not.
#[derive(Debug)]
pub(crate) struct UnaryStep {
    /// The function.
    pub f: Unary,
    /// Slot that is read.
    pub input: usize,
    /// Slot that is written; it may be the one that is read.
    pub output: usize,
}

impl StepOp for UnaryStep {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        for_each_image(context.arena, &to, |image, target, split| {
            if from.range(image) == to.range(image) {
                pointwise::unary_in_place(isa, self.f, target, &to.layout)?;
            } else {
                pointwise::unary(isa, self.f, split.image(&from, image)?, &from.layout, target, &to.layout)?;
            }
            Ok(())
        })
    }
}

/// Element-wise function of two operands; a sum may be written over its first operand.
#[derive(Debug)]
pub(crate) struct BinaryStep {
    /// The function.
    pub f: Binary,
    /// Slot of the first operand.
    pub a: usize,
    /// Slot of the second operand.
    pub b: usize,
    /// Slot that is written; that of `a` only for a sum.
    pub output: usize,
}

impl StepOp for BinaryStep {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, a, b, to) = (context.isa, context.slot(self.a)?, context.slot(self.b)?, context.slot(self.output)?);
        for_each_image(context.arena, &to, |image, target, split| {
            let y = split.image(&b, image)?;
            if self.f == Binary::Add && a.range(image) == to.range(image) {
                train::add(isa, 1.0, y, &b.layout, target, &to.layout)?;
            } else {
                let x = split.image(&a, image)?;
                pointwise::binary(isa, self.f, (x, &a.layout), (y, &b.layout), target, &to.layout)?;
            }
            Ok(())
        })
    }
}

/// Max or average pooling.
#[derive(Debug)]
pub(crate) struct PoolStep {
    /// Whether maxima or means are taken.
    pub kind: Pool,
    /// How the window moves over the input along Z, Y, X.
    pub shape: ConvShape,
    /// Slot that is read.
    pub input: usize,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for PoolStep {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        for_each_image(context.arena, &to, |image, target, split| {
            let x = split.image(&from, image)?;
            match (from.elem, self.kind) {
                (Elem::U8 { .. }, Pool::Max) => {
                    let (x, y) = (bytes(x, from.layout.len()), bytes_mut(target, to.layout.len()));
                    pool::max_bytes(isa, &self.shape, x, &from.layout, y, &to.layout)?;
                }
                _ => pool::pool(isa, self.kind, &self.shape, x, &from.layout, target, &to.layout)?,
            }
            Ok(())
        })
    }
}

/// Resampling, or padding with existing voxels.
#[derive(Debug)]
pub(crate) struct ResizeStep {
    /// Tables along Z, Y, X, with one entry per voxel of the output.
    pub tables: Box<[Vec<Tap>; 3]>,
    /// Slot that is read.
    pub input: usize,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for ResizeStep {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        for_each_image(context.arena, &to, |image, target, split| {
            let x = split.image(&from, image)?;
            if let Elem::U8 { .. } = from.elem {
                let (x, y) = (bytes(x, from.layout.len()), bytes_mut(target, to.layout.len()));
                resize::pick_bytes(&self.tables, x, &from.layout, y, &to.layout)?;
            } else {
                resize::resize(isa, &self.tables, x, &from.layout, target, &to.layout)?;
            }
            Ok(())
        })
    }
}

/// Padding with a constant, and cropping. Bytes are padded with their zero point.
#[derive(Debug)]
pub(crate) struct PadStep {
    /// Voxels added before the first one along Z, Y, X; negative if voxels are removed.
    pub before: [isize; 3],
    /// The constant; ignored for bytes.
    pub value: f32,
    /// Slot that is read.
    pub input: usize,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for PadStep {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (from, to) = (context.slot(self.input)?, context.slot(self.output)?);
        for_each_image(context.arena, &to, |image, target, split| {
            let x = split.image(&from, image)?;
            if let Elem::U8 { zero_point } = from.elem {
                let (x, y) = (bytes(x, from.layout.len()), bytes_mut(target, to.layout.len()));
                let filling = Filling { value: zero_point, zero: zero_point };
                pad::pad(self.before, filling, x, &from.layout, y, &to.layout)?;
            } else {
                let filling = Filling { value: self.value, zero: 0.0 };
                pad::pad(self.before, filling, x, &from.layout, target, &to.layout)?;
            }
            Ok(())
        })
    }
}

/// Copies a slot into another one with the same channels.
#[derive(Debug)]
pub(crate) struct Copy {
    /// Slot that is read.
    pub input: usize,
    /// Slot that is written, of the same element type.
    pub output: usize,
}

impl StepOp for Copy {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (from, to) = (context.slot(self.input)?, context.slot(self.output)?);
        for_each_image(context.arena, &to, |image, target, split| {
            let x = split.image(&from, image)?;
            if let Elem::U8 { .. } = from.elem {
                let (x, y) = (bytes(x, from.layout.len()), bytes_mut(target, to.layout.len()));
                pointwise::copy(x, &from.layout, y, &to.layout)?;
            } else {
                pointwise::copy(x, &from.layout, target, &to.layout)?;
            }
            Ok(())
        })
    }
}
