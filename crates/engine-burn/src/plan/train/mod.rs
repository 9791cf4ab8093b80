//! Plans the steps of training: gradients, losses, optimizers.

mod adjoint;
mod conv;
mod merge;

pub(crate) use merge::merge;

use super::{Kind, PlanResult, Planner, PoolAxis, Source, Unsupported, unsupported};
use crate::form::{Form, count};
use crate::kernels::Curve;
use cytoscope_graph::{Activation, Loss, LossScale, Node, Op, Optimizer, ValueId, op_name};

/// Which elements are normalized together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormScope {
    /// This many groups of channels, for each sample.
    Groups(usize),
    /// Each channel, over all samples.
    Batch,
}

/// Geometry of a convolution's taps on its input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taps {
    /// Lengths of the kernel along Z, Y, X.
    pub kernel: [usize; 3],
    /// Distance between neighboring windows along Z, Y, X, in voxels of the input.
    pub stride: [usize; 3],
    /// Distance between neighboring taps along Z, Y, X, in voxels of the input.
    pub dilation: [usize; 3],
    /// Number of groups of channels, as in ONNX `Conv`.
    pub groups: usize,
    /// Number of zeros before the first voxel along Z, Y, X; of transposed convolutions, also negative.
    pub before: [isize; 3],
}

/// The convolution of the output gradient that computes the input gradient of a convolution: its output channels are the
/// voxels of a block, as large as the stride, for each input channel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Adjoint {
    /// Lengths of the kernel along Z, Y, X.
    pub kernel: [usize; 3],
    /// Number of zeros before the first voxel along Z, Y, X; negative if the first voxels are not read.
    pub padding: [isize; 3],
    /// Distance between neighboring taps along Z, Y, X, in voxels of the output gradient.
    pub dilation: [usize; 3],
    /// Number of blocks along Z, Y, X.
    pub lengths: [usize; 3],
}

impl Taps {
    /// Returns the adjoint for an input of this form.
    ///
    /// Voxel `p` of block `i` receives `dy[i + d]` through each kernel position `k` with `p + before = stride * d + dilation *
    /// k`. Tap `t` of the adjoint has `d = t - padding`, or `d = dilation * t - padding` if the stride is 1.
    pub(crate) fn adjoint(&self, input: Form) -> Adjoint {
        let mut adjoint = Adjoint { kernel: self.kernel, padding: [0; 3], dilation: [1; 3], lengths: [1; 3] };
        for a in 0..3 {
            let (stride, before) = (self.stride[a].max(1) as isize, self.before[a]);
            let reach = (self.kernel[a].max(1) - 1) * self.dilation[a];
            // The first and the last d.
            let first = -(reach as isize - before).div_euclid(stride);
            let last = (stride - 1 + before).div_euclid(stride);
            adjoint.padding[a] = -first;
            if stride == 1 {
                adjoint.dilation[a] = self.dilation[a];
            } else {
                adjoint.kernel[a] = (last - first + 1).max(1) as usize;
            }
            adjoint.lengths[a] = input[a + 2].div_ceil(stride as usize);
        }
        adjoint
    }

    /// Returns the number of elements that the kernel of the adjoint holds besides its inputs and its output, for weights of
    /// this form: the weights in its order, and the output before it is cropped.
    pub(crate) fn adjoint_scratch(&self, input: Form, weights: Form) -> usize {
        let adjoint = self.adjoint(input);
        let blocks: usize = self.stride.iter().product();
        let taps: usize = adjoint.kernel.iter().product();
        let voxels = adjoint.lengths.iter().product::<usize>() * blocks;
        let is_whole = voxels == input[2] * input[3] * input[4];
        taps * blocks * weights[0] * weights[1] + if is_whole { 0 } else { voxels * input[0] * input[1] }
    }
}

/// Operations of training steps, with their inputs and outputs. Gradients that are not requested are not computed.
#[derive(Debug)]
pub(crate) enum TrainKind {
    /// `[x, dy]` -> dx of an activation.
    ActivationGradient(Activation),
    /// `[x]` -> the activation of x times this factor.
    ScaledActivation { factor: f32, curve: Curve },
    /// `[y, dy, more]` -> dx of an activation that is linear above 0 with slope 1 and below with this slope, whose result is `y`
    /// and whose gradient is the sum of `dy` and `more`.
    SumActivationGradient { slope: f32 },
    /// `[a, s, b, t]` -> a·s + b·t, with single numbers s and t, such as a moving average.
    Blend,
    /// `[x]` -> the sum of each channel over samples and space.
    ChannelSums,
    /// `[dy, w]` -> dx of a convolution.
    InputGradient(Taps),
    /// `[x, dy]` -> dw of a convolution.
    WeightGradient(Taps),
    /// `[x, scale, bias, mean, variance]` -> y, batch norm with fixed statistics.
    FrozenBatchNorm { epsilon: f32 },
    /// `[x, scale, bias]` -> `[y, mean?, variance?]`, batch norm with the statistics of the batch.
    BatchNorm { epsilon: f32, statistics: [bool; 2] },
    /// `[x, scale, dy]` -> `[dx?, gradient of scale?, gradient of bias?]` of a norm.
    NormGradient { over: NormScope, epsilon: f32, wanted: [bool; 3] },
    /// `[x, scale, bias]` -> `[y, mean?, variance?, activated y]`, a norm and an activation. Only norms over the batch have
    /// statistics.
    NormActivation { over: NormScope, epsilon: f32, statistics: [bool; 2], activation: Activation },
    /// `[x, scale, dy, y]` -> like [`TrainKind::NormGradient`], of a norm whose result `y` passes an activation that is linear
    /// above 0 with slope 1 and below with this slope; `dy` is the gradient of the activation.
    NormActivationGradient { over: NormScope, epsilon: f32, wanted: [bool; 3], slope: f32 },
    /// `[x, dy]` -> dx of pooling.
    PoolGradient { max: bool, before: [usize; 5], after: [usize; 5], axes: Vec<PoolAxis> },
    /// `[x, scales]` -> x rounded to multiples of the scales within `low..=high` steps.
    FakeQuantize { low: f32, high: f32 },
    /// `[x, scales, dy]` -> dx of fake quantization: dy where x is within the range.
    FakeQuantizeGradient { low: f32, high: f32 },
    /// `[prediction, target, weight?]` -> loss.
    Loss(Loss),
    /// `[prediction, target, gradient of the loss, weight?]` -> gradient of the prediction.
    LossGradient(Loss),
    /// `[g…]` -> global L2 norm of the gradients.
    GlobalNorm,
    /// `[loss, norm, state, given]` -> `[hyper, state, scale, loss]`, the decision about a step with a loss scale.
    LossScale(LossScale),
    /// `[part…]` -> a long tensor that has the parts at these positions, the first of which is 0, and is 0 elsewhere.
    Join { starts: Vec<usize> },
    /// `[hyper, norm, p, g, first, second?]` -> `[p, first, second?]`, one optimizer update.
    Update(Optimizer),
}

impl Planner<'_> {
    /// Plans the vector-Jacobian product of an operator.
    pub(super) fn vjp(&mut self, node: &Node, forward_op: &Op) -> PlanResult {
        let Some((Some(dy), inputs)) = node.inputs.split_last() else { return unsupported("without a gradient") };
        // The original node, without the gradient among its inputs.
        let forward_node =
            Node { name: node.name.clone(), op: forward_op.clone(), inputs: inputs.to_vec(), outputs: Vec::new() };
        self.gradient(node, &forward_node, *dy).map_err(|refusal| match refusal {
            Unsupported::Operator => Unsupported::Feature(format!("of {}", op_name(forward_op))),
            Unsupported::Feature(what) => Unsupported::Feature(format!("of {} {what}", op_name(forward_op))),
            other => other,
        })
    }

    fn gradient(&mut self, node: &Node, forward_node: &Node, dy: ValueId) -> PlanResult {
        match &forward_node.op {
            Op::Conv(attrs) => self.conv_gradient(node, forward_node, dy, attrs),
            Op::Activation(activation) => {
                let dx = self.only_input_gradient(node)?;
                let inputs = vec![self.source(self.input(forward_node, 0)?)?, self.source(dy)?];
                self.push(Kind::Train(TrainKind::ActivationGradient(*activation)), inputs, dx)
            }
            Op::InstanceNormalization { epsilon } => {
                let channels = self.form(self.input(forward_node, 0)?)?[1];
                self.norm_gradient(node, forward_node, dy, NormScope::Groups(channels), *epsilon)
            }
            Op::GroupNormalization { groups, epsilon } => {
                self.norm_gradient(node, forward_node, dy, NormScope::Groups(*groups), *epsilon)
            }
            Op::BatchNormalizationTraining { epsilon } => {
                self.norm_gradient(node, forward_node, dy, NormScope::Batch, *epsilon)
            }
            Op::FakeQuantize { scales, axis, low, high } => {
                let (x, dx) = (self.input(forward_node, 0)?, self.only_input_gradient(node)?);
                let scales = self.quantization_scales(x, scales, *axis)?;
                let inputs = vec![self.source(x)?, scales, self.source(dy)?];
                self.push(Kind::Train(TrainKind::FakeQuantizeGradient { low: *low, high: *high }), inputs, dx)
            }
            Op::Loss(loss) => {
                let mut inputs = self.loss_inputs(forward_node)?;
                let dx = self.only_input_gradient(node)?;
                let form = self.form(dx)?;
                inputs.insert(2, self.source(dy)?);
                self.push_many(Kind::Train(TrainKind::LossGradient(loss.clone())), inputs, vec![(dx, form)], 0);
                Ok(())
            }
            Op::MaxPool(attrs) => self.pool_gradient(node, forward_node, dy, attrs, true),
            Op::AveragePool(attrs) => self.pool_gradient(node, forward_node, dy, attrs, false),
            Op::Slice => self.slice_gradient(node, forward_node, dy),
            Op::Pad { mode } => self.pad_gradient(node, forward_node, dy, *mode),
            Op::DepthToSpace { block, order } => {
                let shuffle = self.depth_shuffle(self.input(forward_node, 0)?, *block, *order)?;
                self.shuffle_gradient(node, dy, shuffle)
            }
            Op::SpaceToDepth { block } => {
                let shuffle = self.space_shuffle(self.input(forward_node, 0)?, *block)?;
                self.shuffle_gradient(node, dy, shuffle)
            }
            _ => self.weighted_sum_gradient(node, forward_node, dy),
        }
    }

    /// Returns the output for the first input's gradient, if no other gradient is requested.
    fn only_input_gradient(&self, node: &Node) -> PlanResult<ValueId> {
        if let Some(other) = node.outputs.iter().skip(1).position(Option::is_some) {
            return unsupported(format!("with a gradient for input {}", other + 1));
        }
        node.output(0).map_or_else(|| unsupported("without an output"), Ok)
    }

    fn norm_gradient(
        &mut self,
        node: &Node,
        forward_node: &Node,
        dy: ValueId,
        over: NormScope,
        epsilon: f32,
    ) -> PlanResult {
        let (x, scale) = (self.input(forward_node, 0)?, self.input(forward_node, 1)?);
        let form = self.form(x)?;
        let channels = form[1];
        if let NormScope::Groups(groups) = over
            && (groups == 0 || !channels.is_multiple_of(groups))
        {
            return unsupported(format!("with {groups} groups of {channels} channels"));
        }
        for index in [1, 2] {
            if count(&self.form(self.input(forward_node, index)?)?) != channels {
                return unsupported("without scale and bias for each channel");
            }
        }
        let (mut wanted, mut outputs) = ([false; 3], Vec::new());
        for (index, slot) in wanted.iter_mut().enumerate() {
            if let Some(output) = node.output(index) {
                *slot = true;
                outputs.push((output, self.form(output)?));
            }
        }
        let inputs = vec![self.source(x)?, self.source(scale)?, self.source(dy)?];
        self.push_many(
            Kind::Train(TrainKind::NormGradient { over, epsilon, wanted }),
            inputs,
            outputs,
            3 * count(&form),
        );
        Ok(())
    }

    pub(super) fn batch_norm_training(&mut self, node: &Node, epsilon: f32) -> PlanResult {
        let (x, scale, bias) = (self.input(node, 0)?, self.input(node, 1)?, self.input(node, 2)?);
        let form = self.form(x)?;
        let y = node.output(0).map_or_else(|| unsupported("without an output"), Ok)?;
        let mut outputs = vec![(y, form)];
        let mut statistics = [false; 2];
        for (index, slot) in statistics.iter_mut().enumerate() {
            if let Some(output) = node.output(index + 1) {
                *slot = true;
                outputs.push((output, self.form(output)?));
            }
        }
        let inputs = vec![self.source(x)?, self.source(scale)?, self.source(bias)?];
        self.push_many(Kind::Train(TrainKind::BatchNorm { epsilon, statistics }), inputs, outputs, count(&form));
        Ok(())
    }

    /// Returns the scales of fake quantization in the form in which they are broadcast.
    pub(super) fn quantization_scales(&mut self, x: ValueId, scales: &[f32], axis: usize) -> PlanResult<Source> {
        let (shape, mut form) = (self.shape(x)?, [1; 5]);
        if scales.len() > 1 {
            let (_, at) = self.axis(axis as i64, shape.len())?;
            form[at] = scales.len();
        } else if scales.is_empty() {
            return unsupported("without scales");
        }
        let form: Form = form;
        Ok(Source::Constant(self.constant(form, scales.to_vec())))
    }

    /// Returns the inputs of a loss: prediction, target and, if there is one, weight.
    fn loss_inputs(&mut self, node: &Node) -> PlanResult<Vec<Source>> {
        let (x, target) = (self.input(node, 0)?, self.input(node, 1)?);
        if self.shape(x)?.len() < 2 {
            return unsupported("on a tensor without channels");
        }
        if self.is_half(x) || self.is_half(target) {
            return unsupported("of 16-bit elements");
        }
        let mut inputs = vec![self.source(x)?, self.source(target)?];
        if let Some(weight) = node.input(2) {
            inputs.push(self.source(weight)?);
        }
        Ok(inputs)
    }

    pub(super) fn loss(&mut self, node: &Node, loss: &Loss) -> PlanResult {
        let (inputs, output) = (self.loss_inputs(node)?, self.output(node)?);
        self.push_many(Kind::Train(TrainKind::Loss(loss.clone())), inputs, vec![(output, [1; 5])], 0);
        Ok(())
    }

    pub(super) fn global_norm(&mut self, node: &Node) -> PlanResult {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for value in node.inputs.iter().flatten() {
            inputs.push(self.source(*value)?);
        }
        let output = self.output(node)?;
        self.push(Kind::Train(TrainKind::GlobalNorm), inputs, output)
    }

    pub(super) fn loss_scale(&mut self, node: &Node, rule: LossScale) -> PlanResult {
        self.push_whole(node, TrainKind::LossScale(rule), 4, 4)
    }

    pub(super) fn update(&mut self, node: &Node, optimizer: Optimizer) -> PlanResult {
        let states = if optimizer.has_second_moment() { 3 } else { 2 };
        self.push_whole(node, TrainKind::Update(optimizer), states + 3, states)
    }

    /// Adds the step of a node that has this many inputs and outputs, all of which are present.
    fn push_whole(&mut self, node: &Node, kind: TrainKind, input_count: usize, output_count: usize) -> PlanResult {
        let mut inputs = Vec::with_capacity(input_count);
        for index in 0..input_count {
            inputs.push(self.source(self.input(node, index)?)?);
        }
        let mut outputs = Vec::with_capacity(output_count);
        for index in 0..output_count {
            let output = node.output(index).map_or_else(|| unsupported(format!("without output {index}")), Ok)?;
            outputs.push((output, self.form(output)?));
        }
        self.push_many(Kind::Train(kind), inputs, outputs, 0);
        Ok(())
    }

    /// Plans the sum of each channel.
    pub(super) fn channel_sums(&mut self, from: Source, output: ValueId) -> PlanResult {
        self.push(Kind::Train(TrainKind::ChannelSums), vec![from], output)
    }
}
