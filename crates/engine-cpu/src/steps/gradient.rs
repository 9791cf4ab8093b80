//! Gradients of operators other than norms.

use crate::context::{Context, StepError, for_each_image};
use crate::step::StepOp;
use cytoscope_graph::{Graph, ValueId};
use cytoscope_kernels::conv::ConvShape;
use cytoscope_kernels::pointwise;
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use cytoscope_kernels::train::{self, Derivative, InputGradient};

/// The gradient of a convolution's weights, as a dense tensor.
#[derive(Debug)]
pub(crate) struct WeightGradient {
    /// Slot of the convolution's input.
    pub x: usize,
    /// Slot of the gradient of the convolution's output.
    pub dy: usize,
    /// How the kernel of the forward pass moves over its input.
    pub shape: ConvShape,
    /// Dense value of the gradient, in the shape of the weights.
    pub output: ValueId,
}

impl StepOp for WeightGradient {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.x)?, context.slot(self.dy)?);
        let taps: usize = self.shape.kernel.iter().product();
        let mut values = vec![0.0; from.layout.channels * to.layout.channels * taps];
        for image in 0..from.images {
            let (x, dy) = (context.image(&from, image)?, context.image(&to, image)?);
            train::conv_weight_gradient(isa, x, &from.layout, dy, &to.layout, &self.shape, &mut values)?;
        }
        context.store(self.output, values)
    }

    fn dense_outputs(&self, _graph: &Graph) -> Vec<ValueId> {
        vec![self.output]
    }
}

/// The gradient of a convolution's input.
#[derive(Debug)]
pub(crate) struct InputGradientStep {
    /// Dense value of the weights.
    pub weight: ValueId,
    /// Slot of the gradient of the convolution's output.
    pub dy: usize,
    /// How the kernel of the forward pass moves over its input.
    pub shape: ConvShape,
    /// A gradient to which this one is added, in place or not.
    pub accumulate_into: Option<usize>,
    /// Slot of the gradient of the convolution's input.
    pub output: usize,
}

impl StepOp for InputGradientStep {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.dy)?, context.slot(self.output)?);
        let sum = self.accumulate_into.map(|o| context.slot(o)).transpose()?;
        let channels = [from.layout.channels, to.layout.channels];
        let values = context.floats(self.weight)?;
        let packed = InputGradient::new(isa, values, channels, &self.shape, from.layout.block)?;
        for_each_image(context.arena, &to, |image, target, split| {
            if let Some(sum) = sum.filter(|o| o.range(image) != to.range(image)) {
                pointwise::copy(split.image(&sum, image)?, &sum.layout, target, &to.layout)?;
            }
            let dy = split.image(&from, image)?;
            train::conv_input_gradient(isa, dy, &from.layout, &packed, sum.is_some(), target, &to.layout)?;
            Ok(())
        })
    }

    fn dense_inputs(&self, _graph: &Graph) -> Vec<ValueId> {
        vec![self.weight]
    }
}

/// Sums over batch and space, one per channel, as a dense vector: the gradient of a bias.
#[derive(Debug)]
pub(crate) struct ChannelSums {
    /// Slot whose voxels are summed.
    pub x: usize,
    /// Dense value of the sums `[C]`.
    pub output: ValueId,
}

impl StepOp for ChannelSums {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from) = (context.isa, context.slot(self.x)?);
        let mut sums = vec![0.0f64; from.layout.channels];
        for image in 0..from.images {
            let image_sums = train::channel_sums(isa, context.image(&from, image)?, &from.layout)?;
            sums.iter_mut().zip(image_sums).for_each(|(s, v)| *s += v);
        }
        context.store(self.output, sums.into_iter().map(|s| s as f32).collect())
    }

    fn dense_outputs(&self, _graph: &Graph) -> Vec<ValueId> {
        vec![self.output]
    }
}

/// The gradient of an element-wise function. `y` determines the derivative: input or output of a (leaky) ReLU.
#[derive(Debug)]
pub(crate) struct UnaryGradient {
    /// Slot from which the derivative is computed.
    pub y: usize,
    /// Slot of the gradient of the function's output.
    pub dy: usize,
    /// The derivative of the function.
    pub of: Derivative,
    /// Slot of the gradient of the function's input.
    pub output: usize,
}

impl StepOp for UnaryGradient {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, y, dy) = (context.isa, context.slot(self.y)?, context.slot(self.dy)?);
        let to = context.slot(self.output)?;
        for_each_image(context.arena, &to, |image, target, split| {
            let (values, g) = (split.image(&y, image)?, split.image(&dy, image)?);
            train::activation_gradient(isa, self.of, values, &y.layout, g, &dy.layout, false, target, &to.layout)?;
            Ok(())
        })
    }
}

/// The gradient of max or average pooling.
#[derive(Debug)]
pub(crate) struct PoolGradient {
    /// Whether the forward pass takes maxima or means.
    pub pool: Pool,
    /// How the window of the forward pass moves over its input.
    pub shape: ConvShape,
    /// Slot of the pooling's input; max pooling finds the maxima in it again.
    pub x: usize,
    /// Slot of the gradient of the pooling's output.
    pub dy: usize,
    /// Slot of the gradient of the pooling's input.
    pub output: usize,
}

impl StepOp for PoolGradient {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, x, dy) = (context.isa, context.slot(self.x)?, context.slot(self.dy)?);
        let to = context.slot(self.output)?;
        for_each_image(context.arena, &to, |image, target, split| {
            let (seen, g) = ((split.image(&x, image)?, &x.layout), split.image(&dy, image)?);
            train::pool_gradient(isa, self.pool, &self.shape, Some(seen), g, &dy.layout, false, target, &to.layout)?;
            Ok(())
        })
    }
}

/// The gradient of resampling.
#[derive(Debug)]
pub(crate) struct ResizeGradient {
    /// Tables of the forward pass along Z, Y, X, with one entry per voxel of its output.
    pub tables: Box<[Vec<Tap>; 3]>,
    /// Slot of the gradient of the resampled image.
    pub dy: usize,
    /// Slot of the gradient of the image that was resampled.
    pub output: usize,
}

impl StepOp for ResizeGradient {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, dy, to) = (context.isa, context.slot(self.dy)?, context.slot(self.output)?);
        for_each_image(context.arena, &to, |image, target, split| {
            let g = split.image(&dy, image)?;
            train::resize_gradient(isa, &self.tables, g, &dy.layout, false, target, &to.layout)?;
            Ok(())
        })
    }
}
