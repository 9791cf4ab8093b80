//! Which nodes this engine takes, as steps on tensors in [`crate::form`], with everything known beforehand worked out.

mod conv;
mod elementwise;
mod moves;
mod train;
mod window;

use crate::form::{Form, count, form, place};
use cytoscope_engine::{CompileReport, EngineError};
use cytoscope_graph::{
    Activation, BinaryOp, ElementType, Graph, GraphError, Node, Op, ReduceOp, Tensor, UnaryOp, ValueId, analysis,
    op_name,
};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use train::{Over, TAPS_AT_ONCE, Taps, Teach};

/// Where a step reads a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// An input or an earlier step's result.
    Value(ValueId),
    /// Uploaded when compiled: index into [`Program::constants`].
    Constant(usize),
}

/// A constant on its way to the device.
#[derive(Debug)]
pub(crate) struct Constant {
    pub form: Form,
    pub values: Vec<f32>,
}

/// Geometry of a convolution; padding that differs before and after is a step of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub stride: [usize; 3],
    pub padding: [usize; 3],
    pub dilation: [usize; 3],
    pub groups: usize,
}

/// Part of an axis: `len` elements from `start`, `step` apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub start: usize,
    pub len: usize,
    pub step: usize,
}

/// One tap of a resampled axis: for each output position an input position, and a weight where it is not one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tap {
    /// Index into [`Program::tables`].
    pub table: usize,
    /// Index into [`Program::constants`].
    pub weights: Option<usize>,
}

/// A pool over one axis of the form.
#[derive(Debug, Clone)]
pub(crate) struct PoolAxis {
    pub axis: usize,
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    /// Output length.
    pub len: usize,
    /// Averages: one over the number of elements, by output position (index into [`Program::constants`]).
    pub weights: Option<usize>,
}

/// What a step does. Inputs are those of [`Step::inputs`], in this order.
#[derive(Debug)]
pub(crate) enum Kind {
    /// `[x, w, bias?, residual?]`
    Conv {
        window: Window,
        bias: bool,
        residual: bool,
        activation: Option<Activation>,
    },
    /// `[x, w of a 1×1×1 convolution whose channels are output channel × tap]`: stride = kernel.
    Upsample {
        factors: [usize; 3],
        channels: usize,
        bias: bool,
    },
    /// `[x, w, bias?]`: the full result, cut to `from..from + len` with zeros around where it is short.
    ConvTranspose {
        window: Window,
        cut: [Cut; 5],
        before: [usize; 5],
        after: [usize; 5],
        bias: bool,
    },
    /// `[x, scale, bias]`, over groups of channels (as many as channels: each by itself).
    Normalise {
        groups: usize,
        epsilon: f32,
    },
    /// `[x, scale, shift]`
    Affine,
    Activation(Activation),
    /// `[x, slope]`, slope in the form it is broadcast in.
    PRelu {
        slope: Form,
    },
    Softmax {
        axis: usize,
        log: bool,
    },
    /// Padding first, then axis by axis.
    Pool {
        max: bool,
        before: [usize; 5],
        after: [usize; 5],
        axes: Vec<PoolAxis>,
    },
    /// Axis by axis a weighted sum of other positions.
    Resample(Vec<(usize, Vec<Tap>)>),
    /// Cut, then filled up.
    Pad {
        cut: [Cut; 5],
        before: [usize; 5],
        after: [usize; 5],
        value: f32,
    },
    Slice([Cut; 5]),
    Concat {
        axis: usize,
    },
    Unary(UnaryOp),
    /// `[a, b]`, each in the form it is broadcast in.
    Binary {
        op: BinaryOp,
        forms: [Form; 2],
    },
    /// A tensor and a number; `reversed`: the number comes first.
    Scalar {
        op: BinaryOp,
        value: f32,
        reversed: bool,
    },
    /// Over runs of neighbouring axes, as (outer, length, inner).
    Reduce {
        kind: ReduceOp,
        runs: Vec<[usize; 3]>,
    },
    Permute([usize; 5]),
    /// Only the form changes.
    Reshape,
    /// The elements' type changes.
    Cast(ElementType),
    /// From one form of six axes, by a permutation of these, to the output's.
    Shuffle {
        six: [usize; 6],
        order: [usize; 6],
    },
    Expand {
        from: Form,
    },
    /// `[condition, a, b]`, each in the form it is broadcast in; conditions are 0 and 1.
    Choose([Form; 3]),
    /// What only training asks for.
    Train(Teach),
}

/// A step with its name and work.
#[derive(Debug)]
pub(crate) struct Step {
    pub kind: Kind,
    pub inputs: Vec<Source>,
    /// What it makes.
    pub outputs: Vec<(ValueId, Form)>,
    /// Operator and node, for profiles.
    pub name: String,
    pub macs: u64,
    /// Elements it needs on the way, beside its outputs and one copy of the largest result of all.
    pub spare: usize,
    /// Values nothing reads after this step.
    pub dead: Vec<ValueId>,
}

/// A graph input.
#[derive(Debug)]
pub(crate) struct Input {
    pub value: ValueId,
    pub name: String,
    pub shape: Vec<usize>,
    pub form: Form,
}

/// A graph output.
#[derive(Debug)]
pub(crate) enum Output {
    /// Known when compiled.
    Constant(Arc<Tensor>),
    /// Made by a step (or an input).
    Value { value: ValueId, shape: Vec<usize> },
}

/// Everything a session does.
#[derive(Debug)]
pub(crate) struct Program {
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    pub steps: Vec<Step>,
    pub constants: Vec<Constant>,
    /// Input positions of resampled axes.
    pub tables: Vec<Vec<i32>>,
    pub report: CompileReport,
}

/// What about an operator is not supported.
#[derive(Debug)]
enum Refusal {
    /// The operator as such.
    Operator,
    /// This about it.
    Because(String),
    /// The graph is at fault.
    Graph(GraphError),
}

impl From<GraphError> for Refusal {
    fn from(error: GraphError) -> Self {
        Self::Graph(error)
    }
}

fn because<T>(what: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Because(what.into()))
}

type Planned<T = ()> = Result<T, Refusal>;

/// The program of a prepared graph for the engine of this name.
pub(crate) fn plan(graph: &Graph, engine: &'static str) -> Result<Program, EngineError> {
    let mut planner = Planner {
        graph,
        constants: Vec::new(),
        tables: Vec::new(),
        uploaded: BTreeMap::new(),
        steps: Vec::new(),
        name: String::new(),
        scratches: 0,
        rates: Vec::new(),
    };
    let refused = |refusal: Refusal, op: &str, node: &str| match refusal {
        Refusal::Operator => EngineError::UnsupportedOp { engine, op: op.to_owned(), node: node.to_owned() },
        Refusal::Because(what) => {
            EngineError::UnsupportedOp { engine, op: format!("{op} {what}"), node: node.to_owned() }
        }
        Refusal::Graph(error) => EngineError::Graph(error),
    };
    let mut inputs = Vec::with_capacity(graph.inputs.len());
    for &value in &graph.inputs {
        let name = graph.value(value).name.clone();
        let form = planner.form(value).map_err(|r| refused(r, "an input", &name))?;
        planner.floats(value).map_err(|r| refused(r, "an input", &name))?;
        let shape = graph.value(value).fixed_shape().unwrap_or_default();
        inputs.push(Input { value, name, shape, form });
    }
    for node in &graph.nodes {
        let op = op_name(&node.op);
        planner.name = if node.name.is_empty() { op.to_owned() } else { format!("{op} {}", node.name) };
        let first = planner.steps.len();
        planner.node(node).map_err(|r| refused(r, op, &node.name))?;
        if let Some(step) = planner.steps.get_mut(first..).and_then(<[Step]>::last_mut) {
            step.macs = analysis::node_macs(graph, node).unwrap_or(0);
        }
    }
    for &value in graph.outputs.iter().filter(|v| graph.constant(**v).is_none()) {
        planner.floats(value).map_err(|r| refused(r, "an output", &graph.value(value).name))?;
    }
    let Planner { constants, tables, mut steps, .. } = planner;
    let outputs = graph.outputs.iter().map(|&value| match graph.constant(value) {
        Some(tensor) => Output::Constant(Arc::clone(tensor)),
        None => Output::Value { value, shape: graph.value(value).fixed_shape().unwrap_or_default() },
    });
    let outputs = outputs.collect();
    let arena = bury(graph, &inputs, &mut steps);
    let bytes = |elements: usize| (elements * size_of::<f32>()) as u64;
    let report = CompileReport {
        fallbacks: Vec::new(),
        arena_bytes: bytes(arena),
        weight_bytes: constants.iter().map(|c| bytes(c.values.len())).sum::<u64>()
            + tables.iter().map(|t| bytes(t.len())).sum::<u64>(),
        macs: steps.iter().map(|s| s.macs).sum(),
        backend: String::new(),
    };
    Ok(Program { inputs, outputs, steps, constants, tables, report })
}

/// Notes with each step what nothing reads after it; gives the most elements (of 32 bits) that are alive at once, with one more copy of
/// the largest result, which many steps need on the way.
fn bury(graph: &Graph, inputs: &[Input], steps: &mut [Step]) -> usize {
    let mut last: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut size: BTreeMap<ValueId, usize> = inputs.iter().map(|i| (i.value, count(&i.form))).collect();
    // Results between the steps of one node are of no graph: those are taken to have 32 bits.
    let half =
        |value: &ValueId| graph.values.get(value.index()).and_then(|v| v.dtype).is_some_and(ElementType::is_half);
    let held = |value: &ValueId, form: &Form| if half(value) { count(form).div_ceil(2) } else { count(form) };
    for (index, step) in steps.iter().enumerate() {
        for (output, form) in &step.outputs {
            last.insert(*output, index);
            size.insert(*output, held(output, form));
        }
        for source in &step.inputs {
            if let Source::Value(value) = source {
                last.insert(*value, index);
            }
        }
    }
    for (value, index) in last {
        if !graph.outputs.contains(&value)
            && let Some(step) = steps.get_mut(index)
        {
            step.dead.push(value);
        }
    }
    let mut alive: usize = inputs.iter().map(|i| count(&i.form)).sum();
    let (mut most, mut largest) = (alive, 0);
    for step in steps {
        for (output, form) in &step.outputs {
            alive += held(output, form);
            largest = largest.max(count(form));
        }
        most = most.max(alive + step.spare);
        alive -= step.dead.iter().filter_map(|v| size.get(v)).sum::<usize>();
    }
    most + largest
}

struct Planner<'a> {
    graph: &'a Graph,
    constants: Vec<Constant>,
    tables: Vec<Vec<i32>>,
    /// Constants of the graph that are among `constants` as they are, by value and form.
    uploaded: BTreeMap<(ValueId, Form), usize>,
    steps: Vec<Step>,
    /// Of the node being planned.
    name: String,
    scratches: u32,
    /// What optimizers share, by their inputs and memories.
    rates: Vec<(train::Shared, ValueId)>,
}

impl Planner<'_> {
    /// Refuses a value that a caller would see as other than floats.
    fn floats(&self, value: ValueId) -> Planned {
        match self.graph.value(value).dtype {
            Some(ElementType::F32) | None => Ok(()),
            Some(other) => because(format!("on {other} elements")),
        }
    }

    /// The form of a value, which must be of floats of 32 or 16 bits (or of bools, which are 0 and 1 here) and not empty.
    fn form(&self, value: ValueId) -> Planned<Form> {
        let shape = self.shape(value)?;
        match self.graph.value(value).dtype {
            Some(ElementType::F32 | ElementType::Bool | ElementType::F16 | ElementType::BF16) | None => {}
            Some(other) => return because(format!("on {other} elements")),
        }
        if shape.contains(&0) {
            return because("on an empty tensor");
        }
        form(&shape).map_or_else(|| because(format!("on a tensor of shape {shape:?}")), Ok)
    }

    /// Whether a value has 16 bits an element.
    fn is_half(&self, value: ValueId) -> bool {
        self.graph.value(value).dtype.is_some_and(ElementType::is_half)
    }

    fn shape(&self, value: ValueId) -> Planned<Vec<usize>> {
        self.graph.value(value).fixed_shape().map_or_else(|| because("with a shape known only when it runs"), Ok)
    }

    fn input(&self, node: &Node, index: usize) -> Planned<ValueId> {
        node.input(index).map_or_else(|| because(format!("without input {index}")), Ok)
    }

    /// The only output.
    fn output(&self, node: &Node) -> Planned<ValueId> {
        if node.outputs.iter().skip(1).any(Option::is_some) {
            return because("with a second output");
        }
        node.output(0).map_or_else(|| because("without an output"), Ok)
    }

    /// An f32 input, uploaded if it is a constant.
    fn source(&mut self, value: ValueId) -> Planned<Source> {
        let form = self.form(value)?;
        let Some(tensor) = self.graph.constant(value) else { return Ok(Source::Value(value)) };
        if let Some(&index) = self.uploaded.get(&(value, form)) {
            return Ok(Source::Constant(index));
        }
        let Some(values) = tensor.as_f32() else { return because(format!("on {} elements", tensor.dtype())) };
        let index = self.constant(form, values.to_vec());
        self.uploaded.insert((value, form), index);
        Ok(Source::Constant(index))
    }

    fn constant(&mut self, form: Form, values: Vec<f32>) -> usize {
        self.constants.push(Constant { form, values });
        self.constants.len() - 1
    }

    /// The values of a constant input, if there is such an input; one that is computed is refused.
    fn known(&self, node: &Node, index: usize, what: &str) -> Planned<Option<&Tensor>> {
        match node.input(index) {
            None => Ok(None),
            Some(id) => match self.graph.constant(id) {
                Some(tensor) => Ok(Some(tensor.as_ref())),
                None => because(format!("with {what} computed while it runs")),
            },
        }
    }

    /// A constant input's integers, if there is such an input.
    fn integers(&self, node: &Node, index: usize, what: &str) -> Planned<Option<Vec<i64>>> {
        Ok(self.known(node, index, what)?.filter(|t| !t.is_empty()).and_then(Tensor::to_i64_vec))
    }

    /// An axis of a tensor with `rank` axes, from the front and in its form.
    fn axis(&self, axis: i64, rank: usize) -> Planned<(usize, usize)> {
        let from_front = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(from_front).ok().filter(|a| *a < rank) {
            Some(axis) => Ok((axis, place(rank, axis))),
            None => because(format!("over axis {axis} of {rank}")),
        }
    }

    fn push(&mut self, kind: Kind, inputs: Vec<Source>, output: ValueId) -> Planned {
        let form = self.form(output)?;
        self.push_scratch(kind, inputs, output, form);
        Ok(())
    }

    /// A value that is not of the graph: between two steps of one node.
    fn scratch(&mut self) -> ValueId {
        self.scratches += 1;
        ValueId(u32::MAX - self.scratches)
    }

    fn push_scratch(&mut self, kind: Kind, inputs: Vec<Source>, output: ValueId, form: Form) {
        self.push_many(kind, inputs, vec![(output, form)], 0);
    }

    /// A step with several results, and elements it needs on the way.
    fn push_many(&mut self, kind: Kind, inputs: Vec<Source>, outputs: Vec<(ValueId, Form)>, spare: usize) {
        let name = self.name.clone();
        self.steps.push(Step { kind, inputs, outputs, name, macs: 0, spare, dead: Vec::new() });
    }

    /// A step whose result only the steps that follow read.
    fn between(&mut self, kind: Kind, inputs: Vec<Source>, form: Form) -> Source {
        let output = self.scratch();
        self.push_scratch(kind, inputs, output, form);
        Source::Value(output)
    }

    /// A step with one tensor in and one out.
    fn simple(&mut self, node: &Node, kind: Kind) -> Planned {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let x = self.source(x)?;
        self.push(kind, vec![x], output)
    }

    fn node(&mut self, node: &Node) -> Planned {
        match &node.op {
            Op::Conv(attrs) => self.conv(node, attrs, None, false),
            Op::FusedConv { conv, activation, residual } => self.conv(node, conv, *activation, *residual),
            Op::ConvTranspose(attrs) => self.conv_transpose(node, attrs),
            Op::InstanceNormalization { epsilon } => self.normalise(node, None, *epsilon),
            Op::GroupNormalization { groups, epsilon } => self.normalise(node, Some(*groups), *epsilon),
            Op::BatchNormalization { epsilon } => self.batch_norm(node, *epsilon),
            Op::Activation(activation) => self.simple(node, Kind::Activation(*activation)),
            Op::PRelu => self.prelu(node),
            Op::Softmax { axis } => self.softmax(node, *axis, false),
            Op::LogSoftmax { axis } => self.softmax(node, *axis, true),
            Op::MaxPool(attrs) => self.pool(node, attrs, true),
            Op::AveragePool(attrs) => self.pool(node, attrs, false),
            Op::GlobalAveragePool => self.global(node, ReduceOp::Mean),
            Op::GlobalMaxPool => self.global(node, ReduceOp::Max),
            Op::Resize(attrs) => self.resize(node, attrs),
            Op::Pad { mode } => self.pad(node, *mode),
            Op::Slice => self.slice(node),
            Op::Split { axis } => self.split(node, *axis),
            Op::Concat { axis } => self.concat(node, *axis),
            Op::Unary(op) => self.unary(node, *op),
            Op::Binary(op) => self.binary(node, *op),
            Op::Reduce { kind, noop_with_empty_axes, .. } => self.reduce(node, *kind, *noop_with_empty_axes),
            Op::Transpose { perm } => self.transpose(node, perm),
            Op::Expand => self.expand(node),
            Op::DepthToSpace { block, order } => self.depth_to_space(node, *block, *order),
            Op::SpaceToDepth { block } => self.space_to_depth(node, *block),
            Op::Identity | Op::Reshape { .. } | Op::Squeeze | Op::Unsqueeze | Op::Flatten { .. } => {
                self.simple(node, Kind::Reshape)
            }
            Op::Cast { to: ElementType::F32 } if !self.is_half(self.input(node, 0)?) => {
                self.simple(node, Kind::Reshape)
            }
            Op::Cast { to: to @ (ElementType::F32 | ElementType::F16 | ElementType::BF16) } => {
                self.simple(node, Kind::Cast(*to))
            }
            Op::Where => self.choose(node),
            Op::BatchNormalizationTraining { epsilon } => self.batch_norm_training(node, *epsilon),
            Op::FakeQuantize { scales, axis, low, high } => {
                let x = self.input(node, 0)?;
                let scales = self.steps_of(x, scales, *axis)?;
                let inputs = vec![self.source(x)?, scales];
                let output = self.output(node)?;
                self.push(Kind::Train(Teach::Round { low: *low, high: *high }), inputs, output)
            }
            Op::Loss(loss) => self.loss(node, loss),
            Op::GlobalNorm => self.global_norm(node),
            Op::Update(optimizer) => self.update(node, *optimizer),
            Op::Vjp(of) => self.vjp(node, of),
            _ => Err(Refusal::Operator),
        }
    }
}
