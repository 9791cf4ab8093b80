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
    pub x: usize,
    pub dy: usize,
    pub shape: ConvShape,
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
    pub weight: ValueId,
    pub dy: usize,
    pub shape: ConvShape,
    /// A gradient to which this one is added, in place or not.
    pub accumulate_into: Option<usize>,
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
    pub x: usize,
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
    pub y: usize,
    pub dy: usize,
    pub of: Derivative,
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
    pub pool: Pool,
    pub shape: ConvShape,
    pub x: usize,
    pub dy: usize,
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
    pub tables: Box<[Vec<Tap>; 3]>,
    pub dy: usize,
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
