//! Convolutions whose weights are tensors of the run, packed at every run.

use super::conv::{Epilogue, convolve};
use crate::context::{Context, StepError, for_each_image};
use crate::step::StepOp;
use cytoscope_graph::{Graph, ValueId};
use cytoscope_kernels::conv::{self, ConvShape, Finish, PackedConv, Target, Transposed, TransposedShape, WeightShape};

/// Convolution.
#[derive(Debug)]
pub(crate) struct ConvOfTensors {
    /// Slot that is read.
    pub input: usize,
    /// Dense value of the weights `[O][I][kz][ky][kx]`.
    pub weight: ValueId,
    /// Dense value of the bias `[O]`; without one, 0.
    pub bias: Option<ValueId>,
    /// How the kernel moves over the input along Z, Y, X.
    pub shape: ConvShape,
    /// Applied to the sums before they are stored.
    pub epilogue: Epilogue,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for ConvOfTensors {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        let bias = self.bias.map(|b| context.floats(b)).transpose()?;
        let channels = context.tensor(self.weight)?.shape().first().copied().unwrap_or(0);
        let of = WeightShape::dense(channels, from.layout.channels, self.shape.kernel.iter().product());
        let packed = PackedConv::new(isa, context.floats(self.weight)?, bias, of, from.layout.block)?;
        convolve(context, &from, &to, &self.epilogue, |x, finish, target| {
            conv::conv(isa, x, &from.layout, &packed, &self.shape, finish, target, &to.layout)
        })
    }

    fn dense_inputs(&self, _graph: &Graph) -> Vec<ValueId> {
        [Some(self.weight), self.bias].into_iter().flatten().collect()
    }
}

/// Transposed convolution whose kernel size equals its stride.
#[derive(Debug)]
pub(crate) struct TransposedOfTensors {
    /// Slot that is read.
    pub input: usize,
    /// Dense value of the weights `[I][O][kz][ky][kx]`.
    pub weight: ValueId,
    /// Dense value of the bias `[O]`; without one, 0.
    pub bias: Option<ValueId>,
    /// Size of the kernel along Z, Y, X, which is also the stride.
    pub kernel: [usize; 3],
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for TransposedOfTensors {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        let (values, bias) = (context.floats(self.weight)?, self.bias.map(|b| context.floats(b)).transpose()?);
        let channels = [from.layout.channels, to.layout.channels];
        let shape = TransposedShape::exact(self.kernel);
        let packed = Transposed::<PackedConv>::new(isa, values, bias, channels, &shape, from.layout.block)?;
        for_each_image(context.arena, &to, |image, target, split| {
            let (x, end) = (split.image(&from, image)?, Finish::default());
            conv::conv_transpose(isa, x, &from.layout, &packed, [0; 3], &end, Target::F32(target), &to.layout)?;
            Ok(())
        })
    }

    fn dense_inputs(&self, _graph: &Graph) -> Vec<ValueId> {
        [Some(self.weight), self.bias].into_iter().flatten().collect()
    }
}
