//! What only training asks for: gradients, losses, optimizers.

mod adjoint;
mod conv;

pub(crate) use conv::TAPS_AT_ONCE;

use super::{Kind, Planned, Planner, PoolAxis, Refusal, Source, because};
use crate::form::{Form, count};
use cytoscope_graph::training::{Loss, Optimizer};
use cytoscope_graph::{Activation, Node, Op, ReduceOp, ValueId, op_name};

/// What is normalised together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// This many groups of channels of a sample.
    Groups(usize),
    /// A channel of all samples.
    Batch,
}

/// How the taps of a convolution's weights lie on its (padded) input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taps {
    pub kernel: [usize; 3],
    pub stride: [usize; 3],
    pub dilation: [usize; 3],
    pub groups: usize,
}

/// Steps of training. Gradients are those of one result of a step by its inputs; those that are not wanted are not made.
#[derive(Debug)]
pub(crate) enum Teach {
    /// `[x, dy]` -> dx
    Slope(Activation),
    /// `[w]` -> weights of the convolution that takes gradients back to where its stride is 1.
    Turn { groups: usize },
    /// `[x with its padding, dy]` -> dw
    Weights(Taps),
    /// `[x, scale, bias, mean, variance]`
    Frozen { epsilon: f32 },
    /// `[x, scale, bias]` -> `[y, mean?, variance?]` of the batch
    Batch { epsilon: f32, statistics: [bool; 2] },
    /// `[x, scale, dy]` -> `[dx?, gradient of scale?, gradient of bias?]`
    Norm { over: Over, epsilon: f32, wanted: [bool; 3] },
    /// `[x, dy]` -> dx
    Pool { max: bool, before: [usize; 5], after: [usize; 5], axes: Vec<PoolAxis> },
    /// `[x, scales]`
    Round { low: f32, high: f32 },
    /// `[x, scales, dy]` -> dx
    Inside { low: f32, high: f32 },
    /// `[prediction, target, weight?]` -> the loss
    Loss { loss: Loss, weighted: bool },
    /// `[prediction, target, weight?, gradient of the loss]` -> gradient of the prediction
    LossSlope { loss: Loss, weighted: bool },
    /// `[g…]` -> root of the sum of squares
    GlobalNorm,
    /// `[hyper, norm]` -> [`RATES`] numbers: factor of gradients, rate, and what the two states are divided by.
    Rates { beta1: f32, beta2: f32 },
    /// `[rates, p, g, first, second?]` -> `[p, first, second?]`
    Update(Optimizer),
}

/// How many numbers [`Teach::Rates`] makes.
pub(crate) const RATES: usize = 4;

/// What optimizers with the same inputs and memories share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shared {
    hyper: Source,
    norm: Source,
    betas: (f32, f32),
}

impl Planner<'_> {
    /// The vector-Jacobian product of an operator.
    pub(super) fn vjp(&mut self, node: &Node, of: &Op) -> Planned {
        let Some((Some(dy), inputs)) = node.inputs.split_last() else { return because("without a gradient") };
        // As the operator itself has them: no rule takes the gradient for an input.
        let own = Node { name: node.name.clone(), op: of.clone(), inputs: inputs.to_vec(), outputs: Vec::new() };
        self.gradient(node, &own, *dy).map_err(|refusal| match refusal {
            Refusal::Operator => Refusal::Because(format!("of {}", op_name(of))),
            Refusal::Because(what) => Refusal::Because(format!("of {} {what}", op_name(of))),
            other => other,
        })
    }

    fn gradient(&mut self, node: &Node, own: &Node, dy: ValueId) -> Planned {
        match &own.op {
            Op::Conv(attrs) => self.conv_gradient(node, own, dy, attrs),
            Op::Activation(activation) => {
                let dx = self.only(node)?;
                let inputs = vec![self.source(self.input(own, 0)?)?, self.source(dy)?];
                self.push(Kind::Train(Teach::Slope(*activation)), inputs, dx)
            }
            Op::InstanceNormalization { epsilon } => {
                let channels = self.form(self.input(own, 0)?)?[1];
                self.norm_gradient(node, own, dy, Over::Groups(channels), *epsilon)
            }
            Op::GroupNormalization { groups, epsilon } => {
                self.norm_gradient(node, own, dy, Over::Groups(*groups), *epsilon)
            }
            Op::BatchNormalizationTraining { epsilon } => self.norm_gradient(node, own, dy, Over::Batch, *epsilon),
            Op::FakeQuantize { scales, axis, low, high } => {
                let (x, dx) = (self.input(own, 0)?, self.only(node)?);
                let scales = self.steps_of(x, scales, *axis)?;
                let inputs = vec![self.source(x)?, scales, self.source(dy)?];
                self.push(Kind::Train(Teach::Inside { low: *low, high: *high }), inputs, dx)
            }
            Op::Loss(loss) => {
                let (mut inputs, weighted) = self.compared(own)?;
                let dx = self.only(node)?;
                let form = self.form(dx)?;
                inputs.push(self.source(dy)?);
                let kind = Kind::Train(Teach::LossSlope { loss: loss.clone(), weighted });
                self.push_many(kind, inputs, vec![(dx, form)], 5 * count(&form));
                Ok(())
            }
            Op::MaxPool(attrs) => self.pool_gradient(node, own, dy, attrs, true),
            Op::AveragePool(attrs) => self.pool_gradient(node, own, dy, attrs, false),
            Op::Resize(attrs) => self.resize_gradient(node, own, dy, attrs),
            Op::Slice => self.slice_gradient(node, own, dy),
            Op::Pad { mode } => self.pad_gradient(node, own, dy, *mode),
            Op::DepthToSpace { block, order } => {
                let shuffle = self.depth_shuffle(self.input(own, 0)?, *block, *order)?;
                self.shuffle_gradient(node, dy, shuffle)
            }
            Op::SpaceToDepth { block } => {
                let shuffle = self.space_shuffle(self.input(own, 0)?, *block)?;
                self.shuffle_gradient(node, dy, shuffle)
            }
            _ => Err(Refusal::Operator),
        }
    }

    /// The gradient of the first input, where no other is wanted.
    fn only(&self, node: &Node) -> Planned<ValueId> {
        if let Some(other) = node.outputs.iter().skip(1).position(Option::is_some) {
            return because(format!("by its input {}", other + 1));
        }
        node.output(0).map_or_else(|| because("without an output"), Ok)
    }

    fn norm_gradient(&mut self, node: &Node, own: &Node, dy: ValueId, over: Over, epsilon: f32) -> Planned {
        let (x, scale) = (self.input(own, 0)?, self.input(own, 1)?);
        let form = self.form(x)?;
        let channels = form[1];
        if let Over::Groups(groups) = over
            && (groups == 0 || !channels.is_multiple_of(groups))
        {
            return because(format!("with {groups} groups of {channels} channels"));
        }
        for index in [1, 2] {
            if count(&self.form(self.input(own, index)?)?) != channels {
                return because("without scale and bias for each channel");
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
        self.push_many(Kind::Train(Teach::Norm { over, epsilon, wanted }), inputs, outputs, 3 * count(&form));
        Ok(())
    }

    pub(super) fn batch_norm_training(&mut self, node: &Node, epsilon: f32) -> Planned {
        let (x, scale, bias) = (self.input(node, 0)?, self.input(node, 1)?, self.input(node, 2)?);
        let form = self.form(x)?;
        let y = node.output(0).map_or_else(|| because("without an output"), Ok)?;
        let mut outputs = vec![(y, form)];
        let mut statistics = [false; 2];
        for (index, slot) in statistics.iter_mut().enumerate() {
            if let Some(output) = node.output(index + 1) {
                *slot = true;
                outputs.push((output, self.form(output)?));
            }
        }
        let inputs = vec![self.source(x)?, self.source(scale)?, self.source(bias)?];
        self.push_many(Kind::Train(Teach::Batch { epsilon, statistics }), inputs, outputs, count(&form));
        Ok(())
    }

    /// The scales of a tensor that is rounded, in the form they are broadcast in.
    pub(super) fn steps_of(&mut self, x: ValueId, scales: &[f32], axis: usize) -> Planned<Source> {
        let (shape, mut form) = (self.shape(x)?, [1; 5]);
        if scales.len() > 1 {
            let (_, at) = self.axis(axis as i64, shape.len())?;
            form[at] = scales.len();
        } else if scales.is_empty() {
            return because("without scales");
        }
        let form: Form = form;
        Ok(Source::Constant(self.constant(form, scales.to_vec())))
    }

    /// Sources of what a loss compares, and whether a weight is among them.
    fn compared(&mut self, node: &Node) -> Planned<(Vec<Source>, bool)> {
        let (x, target) = (self.input(node, 0)?, self.input(node, 1)?);
        if self.shape(x)?.len() < 2 {
            return because("on a tensor without channels");
        }
        let mut inputs = vec![self.source(x)?, self.source(target)?];
        if let Some(weight) = node.input(2) {
            inputs.push(self.source(weight)?);
        }
        let weighted = inputs.len() == 3;
        Ok((inputs, weighted))
    }

    pub(super) fn loss(&mut self, node: &Node, loss: &Loss) -> Planned {
        let (inputs, weighted) = self.compared(node)?;
        let size = count(&self.form(self.input(node, 0)?)?);
        let output = self.output(node)?;
        let kind = Kind::Train(Teach::Loss { loss: loss.clone(), weighted });
        self.push_many(kind, inputs, vec![(output, [1; 5])], 4 * size);
        Ok(())
    }

    pub(super) fn global_norm(&mut self, node: &Node) -> Planned {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for value in node.inputs.iter().flatten() {
            inputs.push(self.source(*value)?);
        }
        let output = self.output(node)?;
        self.push(Kind::Train(Teach::GlobalNorm), inputs, output)
    }

    pub(super) fn update(&mut self, node: &Node, optimizer: Optimizer) -> Planned {
        let betas = match optimizer {
            Optimizer::AdamW { beta1, beta2, .. } | Optimizer::Adam { beta1, beta2, .. } => (beta1, beta2),
            Optimizer::Sgd { .. } => (0.0, 0.0),
        };
        let (hyper, norm) = (self.source(self.input(node, 0)?)?, self.source(self.input(node, 1)?)?);
        let shared = Shared { hyper, norm, betas };
        let rates = match self.rates.iter().find(|(known, _)| *known == shared) {
            Some((_, rates)) => *rates,
            None => {
                let rates = self.scratch();
                let kind = Kind::Train(Teach::Rates { beta1: betas.0, beta2: betas.1 });
                self.push_scratch(kind, vec![hyper, norm], rates, [RATES, 1, 1, 1, 1]);
                self.rates.push((shared, rates));
                rates
            }
        };
        let states = if optimizer.has_second() { 3 } else { 2 };
        let mut inputs = vec![Source::Value(rates)];
        for index in 2..states + 3 {
            inputs.push(self.source(self.input(node, index)?)?);
        }
        let mut outputs = Vec::with_capacity(states);
        for index in 0..states {
            let output = node.output(index).map_or_else(|| because(format!("without output {index}")), Ok)?;
            outputs.push((output, self.form(output)?));
        }
        let size = outputs.first().map_or(0, |(_, form)| count(form));
        self.push_many(Kind::Train(Teach::Update(optimizer)), inputs, outputs, 2 * size);
        Ok(())
    }

    /// Sums by channel of `from`, whose form is `form`.
    fn channel_sums(&mut self, from: Source, mut form: Form, output: ValueId) -> Planned {
        let runs = super::elementwise::runs(&mut form, [true, false, true, true, true]);
        self.push(Kind::Reduce { kind: ReduceOp::Sum, runs }, vec![from], output)
    }
}
