//! The buffers of a training step, and graphs for everything that it computes besides gradients and the optimizer update: sums
//! over batches, moving averages, and running statistics. A device computes them without copying parameters and gradients; on
//! the CPU, the same arithmetic runs on the buffers themselves.

use cytoscope_autodiff::{Parameter, RunningNorm};
use cytoscope_graph::{BinaryOp, Dim, ElementType, Graph, LossScale, Op, ScaleState, StepNumbers, Tensor, ValueId};
use std::collections::BTreeMap;
use std::ops::Range;

/// Momentum of the running statistics: the weight of the current batch.
pub(crate) const NORM_MOMENTUM: f32 = 0.1;

/// A buffer of a trainable parameter, with the shape of the parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterBuffer {
    /// The value that the optimizer changes.
    Value,
    /// The first moment of the optimizer.
    FirstMoment,
    /// The second moment of the optimizer.
    SecondMoment,
    /// The exponential moving average.
    Average,
    /// The gradient of the last batch.
    Gradient,
    /// The gradients accumulated since the last optimizer step.
    Sum,
}

impl ParameterBuffer {
    /// Returns the name of a parameter's buffer.
    pub(crate) fn name(self, parameter: &str) -> String {
        match self {
            ParameterBuffer::Value => format!("value/{parameter}"),
            ParameterBuffer::FirstMoment => format!("first/{parameter}"),
            ParameterBuffer::SecondMoment => format!("second/{parameter}"),
            ParameterBuffer::Average => format!("average/{parameter}"),
            ParameterBuffer::Gradient => format!("gradient/{parameter}"),
            ParameterBuffer::Sum => format!("sum/{parameter}"),
        }
    }

    /// Returns the names of the buffers of all parameters.
    pub(crate) fn names(self, parameters: &[Parameter]) -> impl Iterator<Item = Option<String>> {
        parameters.iter().map(move |p| Some(self.name(&p.name)))
    }
}

/// Buffers of the totals of loss and gradient norm over the batches since they were last set to 0.
pub(crate) const TOTALS: [&str; 2] = ["total/loss", "total/norm"];

/// The buffer of the numbers that change from step to step: the elements of [`cytoscope_graph::Hyper`], then the
/// weights of the old average and of the parameter in a new average. They are one tensor, because each upload takes
/// time.
pub(crate) const HYPER: &str = "hyper";
/// Number of elements at the beginning of [`HYPER`] that belong to [`cytoscope_graph::Hyper`].
const HYPER_LENGTH: usize = 4;
/// Number of elements of [`HYPER`].
const ALL_LENGTH: usize = LossScale::HYPER_LENGTH;

/// Element of [`HYPER`] by which gradients are multiplied; 0 in a step that is skipped.
const FACTOR: usize = 2;

/// The buffer of the loss scale of mixed precision.
pub(crate) const LOSS_SCALE: &str = "loss_scale";
/// The buffer of the [`ScaleState`], if a device decides about the loss scale.
pub(crate) const SCALE_STATE: &str = "loss_scale/state";
/// The buffer of the sum of the losses of a step's batches, if a device decides about the loss scale.
pub(crate) const STEP_LOSS: &str = "loss_scale/loss";

/// Pushes the node that cuts these elements out of a tensor with one axis.
fn cut(graph: &mut Graph, name: &str, from: ValueId, elements: Range<usize>) -> ValueId {
    let mut number = |what: &str, number: usize| {
        Some(graph.add_initializer(format!("{name}.{what}"), Tensor::vector(vec![number as i64])))
    };
    let (start, end, axis) = (number("start", elements.start), number("end", elements.end), number("axis", 0));
    graph.push(name, Op::Slice, &[Some(from), start, end, axis])
}

/// Changes the first input of an update graph, the hyper-parameters, to one with all elements of [`HYPER`].
pub(crate) fn extend_hyper(graph: &mut Graph) {
    let Some(hyper) = graph.inputs.first().copied() else { return };
    let all = graph.add_input("hyper.all", ElementType::F32, vec![Dim::Fixed(ALL_LENGTH)]);
    graph.inputs.pop();
    if let Some(first) = graph.inputs.first_mut() {
        *first = all;
    }
    cut_hyper(graph, hyper, all);
    // Nodes are in the order in which they are computed.
    graph.nodes.rotate_right(1);
}

/// Pushes the node that cuts the elements of [`cytoscope_graph::Hyper`] out of those of [`HYPER`], and replaces `hyper` by them.
fn cut_hyper(graph: &mut Graph, hyper: ValueId, all: ValueId) {
    let part = cut(graph, "hyper.part", all, 0..HYPER_LENGTH);
    let readers = graph.nodes.iter_mut().flat_map(|node| node.inputs.iter_mut());
    readers.filter(|input| **input == Some(hyper)).for_each(|input| *input = Some(part));
}

/// Lets an update graph decide about the loss scale, and whether it skips the update. The first input, the hyper-parameters,
/// becomes one of [`StepNumbers`]; the inputs [`STEP_LOSS`] and [`SCALE_STATE`] are the last ones, and the last outputs are
/// [`HYPER`], [`SCALE_STATE`], [`LOSS_SCALE`] and [`STEP_LOSS`].
pub(crate) fn add_loss_scale(graph: &mut Graph, rule: LossScale) {
    let (Some(hyper), Some(norm)) = (graph.inputs.first().copied(), graph.outputs.first().copied()) else { return };
    let given = graph.add_input("given", ElementType::F32, vec![Dim::Fixed(StepNumbers::LENGTH)]);
    graph.inputs.pop();
    if let Some(first) = graph.inputs.first_mut() {
        *first = given;
    }
    let loss = graph.add_input(STEP_LOSS, ElementType::F32, Vec::new());
    let state = graph.add_input(SCALE_STATE, ElementType::F32, vec![Dim::Fixed(ScaleState::LENGTH)]);
    let inputs = [loss, norm, state, given].map(Some);
    let all = graph.push("hyper.all", Op::LossScale(rule), &inputs);
    let others = ["state", "scale", "loss"].map(|name| graph.add_value(format!("{name}.next"), None, None));
    if let Some(node) = graph.nodes.last_mut() {
        node.outputs.extend(others.map(Some));
    }
    cut_hyper(graph, hyper, all);
    // Nodes are in the order in which they are computed: these two follow the norm.
    let after_norm = graph.nodes.iter().position(|node| node.output(0) == Some(norm)).map_or(0, |at| at + 1);
    if let Some(rest) = graph.nodes.get_mut(after_norm..) {
        rest.rotate_right(rest.len().min(2));
    }
    graph.outputs.push(all);
    graph.outputs.extend(others);
}

/// Returns the name of the buffer of a running statistic.
pub(crate) fn running_buffer(name: &str) -> String {
    format!("running/{name}")
}

/// Returns the name of the buffer of a batch statistic: 2 i for the mean and 2 i + 1 for the variance of norm i.
pub(crate) fn batch_buffer(index: usize) -> String {
    format!("batch/{index}")
}

/// Returns the name of the buffer of a batch statistic's sum over the batches since the last optimizer step.
pub(crate) fn batch_sum_buffer(index: usize) -> String {
    format!("batch_sum/{index}")
}

/// The buffer of 1 / n for the n batches whose statistics were summed.
pub(crate) const BATCH_SHARE: &str = "batch_share";

/// A graph with the names of the buffers of all its inputs and outputs, as [`cytoscope_engine::BoundSession::new`] takes them.
pub(crate) struct BufferGraph {
    /// The computation; its parameters, gradients or moments are inputs and outputs.
    pub graph: Graph,
    /// For each input in graph order, the buffer that is read; `None` if the caller passes the tensor.
    pub inputs: Vec<Option<String>>,
    /// For each output in graph order, the buffer that is replaced; `None` if the caller receives the tensor.
    pub outputs: Vec<Option<String>>,
}

impl BufferGraph {
    fn new(name: &str) -> Self {
        Self { graph: Graph::new(name), inputs: Vec::new(), outputs: Vec::new() }
    }

    /// Adds an input of this shape, which is read from a buffer.
    fn input(&mut self, name: &str, buffer: String, shape: &[usize]) -> ValueId {
        self.inputs.push(Some(buffer));
        self.graph.add_input(name, ElementType::F32, shape.iter().map(|n| Dim::Fixed(*n)).collect())
    }

    /// Adds an output, which replaces a buffer.
    fn output(&mut self, buffer: String, value: ValueId) {
        self.outputs.push(Some(buffer));
        self.graph.outputs.push(value);
    }

    /// Returns `a · keep + b · share`.
    fn blend(&mut self, name: &str, a: [ValueId; 2], b: [ValueId; 2]) -> ValueId {
        let mul = Op::Binary(BinaryOp::Mul);
        let kept = self.graph.push(format!("{name}.kept"), mul.clone(), &a.map(Some));
        let added = self.graph.push(format!("{name}.share"), mul, &b.map(Some));
        self.graph.push(format!("{name}.next"), Op::Binary(BinaryOp::Add), &[Some(kept), Some(added)])
    }
}

/// Adds the loss and the global norm of all gradients to totals in buffers, which the host reads when it needs them: the
/// inputs [`TOTALS`] are the last ones of the gradient graph, and their next values the last outputs. `gradients` is the
/// number of outputs after the loss that are gradients. Totals are finite if and only if all losses and gradients were (and
/// the squares of the gradients did not overflow).
pub(crate) fn add_totals(graph: &mut Graph, gradients: usize) {
    let gradients = graph.outputs.iter().skip(1).take(gradients);
    let gradients: Vec<Option<ValueId>> = gradients.copied().map(Some).collect();
    let loss = graph.outputs.first().copied();
    let norm = graph.push("gradient.norm", Op::GlobalNorm, &gradients);
    for (name, value) in TOTALS.into_iter().zip([loss, Some(norm)]) {
        add_to_buffer(graph, name, value);
    }
}

/// Adds the loss to the sum over the earlier batches of the same step: the input [`STEP_LOSS`] is the last one of the
/// gradient graph, and its next value the last output.
pub(crate) fn add_step_loss(graph: &mut Graph) {
    let loss = graph.outputs.first().copied();
    add_to_buffer(graph, STEP_LOSS, loss);
}

/// Adds an input for the scalar in a buffer, and an output for its sum with `value`.
fn add_to_buffer(graph: &mut Graph, name: &str, value: Option<ValueId>) {
    let before = graph.add_input(name, ElementType::F32, Vec::new());
    let next = graph.push(format!("{name}.next"), Op::Binary(BinaryOp::Add), &[Some(before), value]);
    graph.outputs.push(next);
}

/// Returns the statistics of batch norms that are in a model: the index of each among the batch statistics, its name, and the
/// factor from a batch's statistic to the running one.
fn batch_statistics<'a>(
    norms: &'a [RunningNorm],
    running: &'a BTreeMap<String, Tensor>,
) -> impl Iterator<Item = (usize, &'a str, &'a Tensor, f32)> {
    let both = norms.iter().flat_map(|norm| [(norm.mean.as_str(), 1.0), (norm.variance.as_str(), norm.unbiased())]);
    both.enumerate().filter_map(move |(index, (name, factor))| Some((index, name, running.get(name)?, factor)))
}

/// Returns the graph that adds the gradients and the batch statistics of a batch to those of the batches before it.
pub(crate) fn sum_graph(
    parameters: &[Parameter],
    norms: &[RunningNorm],
    running: &BTreeMap<String, Tensor>,
) -> BufferGraph {
    let mut made = BufferGraph::new("sum");
    for p in parameters {
        let sum = made.input(&p.name, ParameterBuffer::Sum.name(&p.name), &p.shape);
        let gradient = made.input(&format!("{}.gradient", p.name), ParameterBuffer::Gradient.name(&p.name), &p.shape);
        let name = format!("{}.sum", p.name);
        let sum = made.graph.push(name, Op::Binary(BinaryOp::Add), &[Some(sum), Some(gradient)]);
        made.output(ParameterBuffer::Sum.name(&p.name), sum);
    }
    for (index, _, tensor, _) in batch_statistics(norms, running) {
        let sum = made.input(&format!("batch_sum{index}"), batch_sum_buffer(index), tensor.shape());
        let found = made.input(&format!("batch{index}"), batch_buffer(index), tensor.shape());
        let sum =
            made.graph.push(format!("batch_sum{index}.next"), Op::Binary(BinaryOp::Add), &[Some(sum), Some(found)]);
        made.output(batch_sum_buffer(index), sum);
    }
    made
}

/// Returns the graph that updates the EMA of `averaged` parameters, whose two weights are in [`HYPER`], the first input, and
/// the running statistics of batch norms, by the mean of the batch statistics over the batches of the step. `None` if there is
/// nothing to update. If `may_skip`, running statistics stay as they are in a step that is skipped, whose batch statistics may
/// not be finite.
pub(crate) fn average_graph(
    averaged: &[Parameter],
    norms: &[RunningNorm],
    running: &BTreeMap<String, Tensor>,
    may_skip: bool,
) -> Option<BufferGraph> {
    if averaged.is_empty() && norms.is_empty() {
        return None;
    }
    let mut made = BufferGraph::new("averages");
    let all = made.input("hyper.all", HYPER.to_owned(), &[ALL_LENGTH]);
    let keep = cut(&mut made.graph, "keep", all, HYPER_LENGTH..HYPER_LENGTH + 1);
    let share = cut(&mut made.graph, "share", all, HYPER_LENGTH + 1..ALL_LENGTH);
    for p in averaged {
        let average = made.input(&format!("{}.average", p.name), ParameterBuffer::Average.name(&p.name), &p.shape);
        let value = made.input(&p.name, ParameterBuffer::Value.name(&p.name), &p.shape);
        let next = made.blend(&format!("{}.average", p.name), [average, keep], [value, share]);
        made.output(ParameterBuffer::Average.name(&p.name), next);
    }
    // Several norms may share their statistics: the value before the step, and after the norms so far.
    let mut current: BTreeMap<&str, [ValueId; 2]> = BTreeMap::new();
    let old = made.graph.add_initializer("keep.running", Tensor::vector(vec![1.0 - NORM_MOMENTUM]));
    let batch_share = (!running.is_empty()).then(|| made.input(BATCH_SHARE, BATCH_SHARE.to_owned(), &[1]));
    for (batch, name, tensor, factor) in batch_statistics(norms, running) {
        let shape = tensor.shape();
        let [first, before] = match current.get(name) {
            Some(values) => *values,
            None => [made.input(name, running_buffer(name), shape); 2],
        };
        let found = made.input(&format!("{name}.batch{batch}"), batch_sum_buffer(batch), shape);
        let new = Tensor::vector(vec![NORM_MOMENTUM * factor]);
        let new = made.graph.add_initializer(format!("momentum.running{batch}"), new);
        let mul = Op::Binary(BinaryOp::Mul);
        let new = made.graph.push(format!("share.running{batch}"), mul, &[Some(new), batch_share]);
        let next = made.blend(&format!("{name}.{batch}"), [before, old], [found, new]);
        current.insert(name, [first, next]);
    }
    let is_made = (may_skip && !current.is_empty()).then(|| {
        let factor = cut(&mut made.graph, "factor", all, FACTOR..FACTOR + 1);
        let zero = made.graph.add_initializer("zero", Tensor::vector(vec![0.0f32]));
        made.graph.push("is_made", Op::Binary(BinaryOp::Greater), &[Some(factor), Some(zero)])
    });
    for (name, [first, next]) in current {
        let value = match is_made {
            Some(_) => made.graph.push(format!("{name}.chosen"), Op::Where, &[is_made, Some(next), Some(first)]),
            None => next,
        };
        made.output(running_buffer(name), value);
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(name: &str) -> Parameter {
        Parameter { name: name.to_owned(), shape: vec![2, 2], decays: true }
    }

    /// Runs a graph on the reference executor; `value` returns the content of the buffer of input i.
    fn run(made: &BufferGraph, value: impl Fn(usize, &str) -> Vec<f32>) -> BTreeMap<String, Vec<f32>> {
        assert!(made.inputs.iter().all(Option::is_some), "each input has a buffer");
        let inputs: Vec<(String, Tensor)> = (made.graph.inputs.iter().zip(made.inputs.iter().flatten()).enumerate())
            .map(|(i, (id, buffer))| {
                let about = made.graph.value(*id);
                let tensor = Tensor::new(about.fixed_shape().unwrap(), value(i, buffer)).unwrap();
                (about.name.clone(), tensor)
            })
            .collect();
        let found = cytoscope_reference::run(&made.graph, &inputs).unwrap();
        let names = made.outputs.iter().flatten().cloned();
        names.zip(found.into_iter().map(|t| t.into_f32().unwrap())).collect()
    }

    #[test]
    fn losses_and_norms_are_added_to_totals() {
        let mut graph = Graph::new("step");
        let a = graph.add_input("a", ElementType::F32, vec![Dim::Fixed(2), Dim::Fixed(2)]);
        let loss = graph.push("loss", Op::GlobalNorm, &[Some(a)]);
        let gradient = graph.push("gradient", Op::Binary(BinaryOp::Add), &[Some(a), Some(a)]);
        graph.outputs = vec![loss, gradient];
        add_totals(&mut graph, 1);
        let a = Tensor::new(vec![2, 2], vec![3.0f32, 4.0, 0.0, 0.0]).unwrap();
        let totals = TOTALS.map(|name| (name.to_owned(), Tensor::scalar(100.0f32)));
        let inputs: Vec<(String, Tensor)> = [("a".to_owned(), a)].into_iter().chain(totals).collect();
        let found = cytoscope_reference::run(&graph, &inputs).unwrap();
        let found: Vec<Vec<f64>> = found.iter().skip(2).map(Tensor::to_f64_vec).collect();
        assert_eq!(found, [[105.0], [110.0]]);
    }

    #[test]
    fn gradients_of_batches_are_added() {
        let norm = RunningNorm { mean: "mean".to_owned(), variance: "of another graph".to_owned(), count: 5 };
        let running = [("mean".to_owned(), Tensor::vector(vec![0.0f32; 4]))].into();
        let made = sum_graph(&[parameter("a"), parameter("b")], &[norm], &running);
        let sums = run(&made, |i, _| vec![i as f32; 4]);
        assert_eq!(sums[&ParameterBuffer::Sum.name("a")], [1.0; 4]);
        assert_eq!(sums[&ParameterBuffer::Sum.name("b")], [5.0; 4]);
        assert_eq!(sums[&batch_sum_buffer(0)], [9.0; 4]);
        assert_eq!(sums.len(), 3, "a statistic that is not in the model has no sum");
    }

    #[test]
    fn averages_and_shared_running_statistics_are_blended_in_order() {
        let norm = RunningNorm { mean: "mean".to_owned(), variance: "variance".to_owned(), count: 5 };
        let running = ["mean", "variance"].map(|name| (name.to_owned(), Tensor::vector(vec![0.0f32; 2]))).into();
        let made = average_graph(&[parameter("a")], &[norm.clone(), norm], &running, false).unwrap();
        let found = run(&made, |i, buffer| match (i, buffer) {
            (0, _) => vec![9.0, 9.0, 9.0, 9.0, 0.75, 0.25],
            (_, name) if name == ParameterBuffer::Average.name("a") => vec![4.0; 4],
            (_, name) if name == ParameterBuffer::Value.name("a") => vec![8.0; 4],
            (_, name) if name.starts_with("running/") => vec![10.0; 2],
            (_, BATCH_SHARE) => vec![0.25],
            _ => vec![80.0; 2],
        });
        assert_eq!(found[&ParameterBuffer::Average.name("a")], [5.0; 4]);
        // The mean of four batches is 20: twice 0.9 · x + 0.1 · 20, and for the unbiased variance, 0.1 · 20 · 5 / 4.
        let close =
            |name: &str, expected: f32| found[&running_buffer(name)].iter().all(|v| (v - expected).abs() < 1e-5);
        assert!(close("mean", 0.9 * 11.0 + 2.0) && close("variance", 0.9 * 11.5 + 2.5), "{found:?}");
        assert!(average_graph(&[], &[], &running, false).is_none());
    }

    #[test]
    fn a_skipped_step_changes_neither_averages_nor_running_statistics() {
        let norm = RunningNorm { mean: "mean".to_owned(), variance: "variance".to_owned(), count: 5 };
        let running = ["mean", "variance"].map(|name| (name.to_owned(), Tensor::vector(vec![0.0f32; 2]))).into();
        let made = average_graph(&[parameter("a")], &[norm.clone(), norm], &running, true).unwrap();
        let after = |factor: f32, keep: f32| {
            run(&made, |i, buffer| match (i, buffer) {
                (0, _) => vec![9.0, 9.0, factor, 9.0, keep, 1.0 - keep],
                (_, name) if name == ParameterBuffer::Average.name("a") => vec![4.0; 4],
                (_, name) if name == ParameterBuffer::Value.name("a") => vec![8.0; 4],
                (_, name) if name.starts_with("running/") => vec![10.0; 2],
                (_, BATCH_SHARE) => vec![1.0],
                _ => vec![if factor > 0.0 { 20.0 } else { f32::NAN }; 2],
            })
        };
        let (skipped, made) = (after(0.0, 1.0), after(0.5, 0.75));
        for (name, before) in [("mean", 10.0), ("variance", 10.0)] {
            assert_eq!(skipped[&running_buffer(name)], [before; 2]);
            assert!(made[&running_buffer(name)].iter().all(|v| *v > before), "{made:?}");
        }
        assert_eq!(skipped[&ParameterBuffer::Average.name("a")], [4.0; 4]);
        assert_eq!(made[&ParameterBuffer::Average.name("a")], [5.0; 4]);
    }
}
