//! Plans the nodes of a graph as steps on tensors in [`crate::form`], with all constants precomputed.

mod conv;
mod direct;
mod elementwise;
mod lifetimes;
mod moves;
mod products;
mod train;
mod values;
mod window;

use crate::form::Form;
use crate::kernels::Direct;
use cytoscope_engine::{CompileReport, EngineError};
use cytoscope_graph::{
    Activation, BinaryOp, ElementType, Graph, GraphError, Node, Op, ReduceOp, Tensor, UnaryOp, ValueId, op_name,
};
use cytoscope_graph_passes::analysis;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use direct::{Kernels, Part};
pub(crate) use train::{NormScope, Taps, TrainKind};

/// A tensor that a step reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A graph input or an earlier step's output.
    Value(ValueId),
    /// A constant uploaded at compile time: index into [`Program::constants`].
    Constant(usize),
}

/// A constant to be uploaded to the device.
#[derive(Debug)]
pub(crate) struct Constant {
    /// Lengths of the axes N, C, Z, Y, X.
    pub form: Form,
    /// Elements in f32, the last axis fastest; they are converted when they are uploaded.
    pub values: Vec<f32>,
    /// The 16-bit type that the elements have on the device; `None` for f32.
    pub half: Option<ElementType>,
}

/// Geometry of a convolution. Asymmetric padding is a separate step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConvGeometry {
    /// Distance between the windows of neighboring outputs along Z, Y, X, in voxels of the input.
    pub stride: [usize; 3],
    /// Zeros before the first voxel along Z, Y, X; those after the last one follow from the length of the output.
    pub padding: [usize; 3],
    /// Distance between neighboring taps along Z, Y, X, in voxels of the input.
    pub dilation: [usize; 3],
    /// Number of groups of channels, as in ONNX `Conv`.
    pub groups: usize,
}

/// Part of an axis: `len` elements from `start`, `step` apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// First element.
    pub start: usize,
    /// Number of elements that are taken.
    pub len: usize,
    /// Distance between neighboring elements that are taken; at least 1.
    pub step: usize,
}

/// One tap of a resampled axis: for each output position an input position, and a weight unless all weights are 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tap {
    /// Index into [`Program::tables`].
    pub table: usize,
    /// Index into [`Program::constants`].
    pub weights: Option<usize>,
}

/// Pooling over one axis of the form.
#[derive(Debug, Clone)]
pub(crate) struct PoolAxis {
    /// Position in the form: 2, 3, 4 for Z, Y, X.
    pub axis: usize,
    /// Number of elements of a window.
    pub kernel: usize,
    /// Distance between neighboring windows, in input elements.
    pub stride: usize,
    /// Distance between neighboring elements of a window, in input elements.
    pub dilation: usize,
    /// Number of output positions along the axis.
    pub len: usize,
    /// For average pooling: the reciprocal of the number of elements, by output position (index into
    /// [`Program::constants`]).
    pub weights: Option<usize>,
}

/// The operation of a step. Each variant lists its inputs in the order of [`GpuStep::inputs`]; the default is `[x]`.
#[derive(Debug)]
pub(crate) enum Kind {
    /// `[x, w, bias?, residual?]`
    Conv {
        window: ConvGeometry,
        bias: bool,
        residual: bool,
        activation: Option<Activation>,
    },
    /// `[x, w, bias?]`: transposed convolution with kernel = stride, as a 1×1×1 convolution with output channel × tap
    /// channels.
    Upsample {
        factors: [usize; 3],
        channels: usize,
        bias: bool,
    },
    /// `[x, w, bias?]`: transposed convolution, the input gradient of the convolution with these taps.
    ConvTranspose {
        taps: Taps,
        bias: bool,
    },
    /// `[x, scale, bias]`: normalizes groups of channels; with as many groups as channels, an instance norm.
    Normalize {
        groups: usize,
        epsilon: f32,
    },
    /// `[x, scale, shift]`
    Affine,
    Activation(Activation),
    /// `[x, slope]`; `slope` is the form in which the slope is broadcast.
    PRelu {
        slope: Form,
    },
    Softmax {
        axis: usize,
        log: bool,
    },
    /// Pads, then pools axis by axis.
    Pool {
        max: bool,
        before: [usize; 5],
        after: [usize; 5],
        axes: Vec<PoolAxis>,
    },
    /// Computes weighted sums of input positions, axis by axis.
    Resample(Vec<(usize, Vec<Tap>)>),
    /// Crops, then pads with `value`.
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
    /// `[a, b]`; `forms` are the forms in which they are broadcast.
    Binary {
        op: BinaryOp,
        forms: [Form; 2],
    },
    /// A tensor and a number; `reversed` if the number is the first operand.
    Scalar {
        op: BinaryOp,
        value: f32,
        reversed: bool,
    },
    /// Reduces runs of neighboring axes, given as (outer, length, inner).
    Reduce {
        kind: ReduceOp,
        runs: Vec<[usize; 3]>,
    },
    /// `[x, positions]`: the position of the largest or smallest element of each line along an axis, of equal ones the first
    /// or the last. `positions` are those along the axis, from 0 on.
    ArgReduce {
        max: bool,
        last: bool,
        axis: usize,
    },
    Permute([usize; 5]),
    /// Changes the form of the tensor; the order of its elements stays.
    Reshape,
    /// Converts the elements to another type.
    Cast(ElementType),
    /// Reshapes to six axes, permutes them, and reshapes to the form of the output.
    Shuffle {
        six: [usize; 6],
        order: [usize; 6],
    },
    Expand {
        from: Form,
    },
    /// `[condition, a, b]` (ONNX `Where`), with the forms in which they are broadcast; conditions are 0 and 1.
    Choose([Form; 3]),
    /// An operator of a training step: a gradient, loss or optimizer update.
    Train(TrainKind),
    /// A kernel of this crate, and the type of the elements that it stores.
    Direct(Direct, ElementType),
}

/// A step with its operands, name and amount of work.
#[derive(Debug)]
pub(crate) struct GpuStep {
    /// The operation, with its parameters.
    pub kind: Kind,
    /// Operands in the order that the kind lists.
    pub inputs: Vec<Source>,
    /// The values that it computes, with their forms.
    pub outputs: Vec<(ValueId, Form)>,
    /// Operator and node name, shown in profiles.
    pub name: String,
    /// Multiply-accumulate operations of one run.
    pub macs: u64,
    /// Temporary elements, besides the outputs and one copy of the program's largest output.
    pub scratch_elements: usize,
    /// Values that are not read after this step.
    pub last_used: Vec<ValueId>,
}

/// A graph input.
#[derive(Debug)]
pub(crate) struct Input {
    /// The value in the graph.
    pub value: ValueId,
    /// Name in the graph, stated by errors.
    pub name: String,
    /// Shape that the caller's tensor must have.
    pub shape: Vec<usize>,
    /// The shape with five axes, as the tensor has on the device.
    pub form: Form,
}

/// A graph output.
#[derive(Debug)]
pub(crate) enum Output {
    /// A tensor known at compile time.
    Constant(Arc<Tensor>),
    /// Computed by a step, or a graph input.
    Value { value: ValueId, shape: Vec<usize> },
}

/// A compiled graph: inputs, steps, outputs and constants.
#[derive(Debug)]
pub(crate) struct Program {
    /// In the order of the graph's inputs.
    pub inputs: Vec<Input>,
    /// In the order of the graph's outputs.
    pub outputs: Vec<Output>,
    /// In execution order.
    pub steps: Vec<GpuStep>,
    /// Uploaded once, at compile time; steps name a constant by its index.
    pub constants: Vec<Constant>,
    /// Tables of input positions for resampled axes.
    pub tables: Vec<Vec<i32>>,
    /// Whether all steps are kernels of this crate.
    pub is_direct: bool,
    /// If all steps are: where the constants that steps read are in the only constant.
    pub parts: Vec<Part>,
    /// Memory and work of one run.
    pub report: CompileReport,
}

/// Why a node cannot be planned.
#[derive(Debug)]
enum Unsupported {
    /// The operator is not supported at all.
    Operator,
    /// A feature of the operator is not supported; the text follows the operator's name.
    Feature(String),
    /// The graph is invalid, or its shapes do not fit.
    Graph(GraphError),
}

impl From<GraphError> for Unsupported {
    fn from(error: GraphError) -> Self {
        Self::Graph(error)
    }
}

/// Returns the error for an unsupported feature of an operator; `what` follows the operator's name in messages.
fn unsupported<T>(what: impl Into<String>) -> Result<T, Unsupported> {
    Err(Unsupported::Feature(what.into()))
}

type PlanResult<T = ()> = Result<T, Unsupported>;

/// Plans a prepared graph; `engine` is the engine's name in errors. With `kernels`, steps are for the kernels of this
/// crate if there are kernels for all of them.
pub(crate) fn plan(graph: &Graph, engine: &'static str, kernels: Option<Kernels>) -> Result<Program, EngineError> {
    let mut planner = Planner {
        graph,
        constants: Vec::new(),
        tables: Vec::new(),
        uploaded: BTreeMap::new(),
        steps: Vec::new(),
        name: String::new(),
        scratch_count: 0,
    };
    let to_engine_error = |refusal: Unsupported, op: &str, node: &str| match refusal {
        Unsupported::Operator => EngineError::UnsupportedOp { engine, op: op.to_owned(), node: node.to_owned() },
        Unsupported::Feature(what) => {
            EngineError::UnsupportedOp { engine, op: format!("{op} {what}"), node: node.to_owned() }
        }
        Unsupported::Graph(error) => EngineError::Graph(error),
    };
    let mut inputs = Vec::with_capacity(graph.inputs.len());
    for &value in &graph.inputs {
        let name = graph.value(value).name.clone();
        let form = planner.form(value).map_err(|r| to_engine_error(r, "an input", &name))?;
        planner.floats(value).map_err(|r| to_engine_error(r, "an input", &name))?;
        let shape = planner.shape(value).map_err(|r| to_engine_error(r, "an input", &name))?;
        inputs.push(Input { value, name, shape, form });
    }
    for node in &graph.nodes {
        let op = op_name(&node.op);
        planner.name = if node.name.is_empty() { op.to_owned() } else { format!("{op} {}", node.name) };
        let first = planner.steps.len();
        planner.node(node).map_err(|r| to_engine_error(r, op, &node.name))?;
        if let Some(step) = planner.steps.get_mut(first..).and_then(<[GpuStep]>::last_mut) {
            step.macs = analysis::node_macs(graph, node).unwrap_or(0);
        }
    }
    let mut outputs = Vec::with_capacity(graph.outputs.len());
    for &value in &graph.outputs {
        outputs.push(match graph.constant(value) {
            Some(tensor) => Output::Constant(Arc::clone(tensor)),
            None => {
                let refuse = |refusal| to_engine_error(refusal, "an output", &graph.value(value).name);
                planner.floats(value).map_err(refuse)?;
                Output::Value { value, shape: planner.shape(value).map_err(refuse)? }
            }
        });
    }
    let Planner { mut constants, mut tables, mut steps, scratch_count, .. } = planner;
    let lowered = kernels.and_then(|kernels| {
        let inputs: Vec<(ValueId, Form)> = inputs.iter().map(|i| (i.value, i.form)).collect();
        let computed = outputs.iter().filter_map(|o| match o {
            Output::Value { value, .. } => Some(*value),
            Output::Constant(_) => None,
        });
        direct::lower(&steps, (&constants, &tables), &inputs, &computed.collect(), scratch_count, kernels)
    });
    let (is_direct, mut parts) = (lowered.is_some(), Vec::new());
    if let Some(lowered) = lowered {
        (steps, constants, tables) = (lowered.steps, vec![lowered.packed], Vec::new());
        parts = lowered.parts;
    } else {
        steps = train::merge(steps, &graph.outputs);
    }
    let arena = lifetimes::assign_last_uses(graph, &inputs, &mut steps);
    let bytes = |elements: usize| (elements * size_of::<f32>()) as u64;
    let report = CompileReport {
        fallbacks: Vec::new(),
        arena_bytes: bytes(arena),
        weight_bytes: constants.iter().map(|c| bytes(c.values.len())).sum::<u64>()
            + tables.iter().map(|t| bytes(t.len())).sum::<u64>(),
        macs: steps.iter().map(|s| s.macs).sum(),
        backend: String::new(),
    };
    Ok(Program { inputs, outputs, steps, constants, tables, is_direct, parts, report })
}

struct Planner<'a> {
    graph: &'a Graph,
    constants: Vec<Constant>,
    tables: Vec<Vec<i32>>,
    /// Indices of unchanged graph constants in `constants`, by value and form.
    uploaded: BTreeMap<(ValueId, Form), usize>,
    steps: Vec<GpuStep>,
    /// Name of the node that is being planned.
    name: String,
    scratch_count: u32,
}

impl Program {
    /// Returns whether Burn times kernels for some step.
    pub(crate) fn times_kernels(&self) -> bool {
        !self.is_direct
    }
}

impl Planner<'_> {
    fn push(&mut self, kind: Kind, inputs: Vec<Source>, output: ValueId) -> PlanResult {
        let form = self.form(output)?;
        self.push_scratch(kind, inputs, output, form);
        Ok(())
    }

    /// Creates a temporary value between the steps of one node.
    fn scratch(&mut self) -> ValueId {
        self.scratch_count += 1;
        ValueId(u32::MAX - self.scratch_count)
    }

    fn push_scratch(&mut self, kind: Kind, inputs: Vec<Source>, output: ValueId, form: Form) {
        self.push_many(kind, inputs, vec![(output, form)], 0);
    }

    /// Adds a step with several outputs and a number of temporary elements.
    fn push_many(&mut self, kind: Kind, inputs: Vec<Source>, outputs: Vec<(ValueId, Form)>, scratch_elements: usize) {
        let name = self.name.clone();
        self.steps.push(GpuStep { kind, inputs, outputs, name, macs: 0, scratch_elements, last_used: Vec::new() });
    }

    /// Adds a step whose output is temporary, and returns that output.
    fn between(&mut self, kind: Kind, inputs: Vec<Source>, form: Form) -> Source {
        let output = self.scratch();
        self.push_scratch(kind, inputs, output, form);
        Source::Value(output)
    }

    /// Adds a step with one input and one output.
    fn simple(&mut self, node: &Node, kind: Kind) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let x = self.source(x)?;
        self.push(kind, vec![x], output)
    }

    fn node(&mut self, node: &Node) -> PlanResult {
        self.check_values(node)?;
        match &node.op {
            Op::Conv(attrs) => self.conv(node, attrs, None, false),
            Op::FusedConv { conv, activation, residual } => self.conv(node, conv, *activation, *residual),
            Op::ConvTranspose(attrs) => self.conv_transpose(node, attrs),
            Op::InstanceNormalization { epsilon } => self.normalize(node, None, *epsilon),
            Op::GroupNormalization { groups, epsilon } => self.normalize(node, Some(*groups), *epsilon),
            Op::BatchNormalization { epsilon } => self.batch_norm(node, *epsilon),
            Op::Activation(activation) => self.simple(node, Kind::Activation(*activation)),
            Op::PRelu => self.prelu(node),
            Op::Softmax { axis } => self.softmax(node, *axis, false),
            Op::LogSoftmax { axis } => self.softmax(node, *axis, true),
            Op::GlobalAveragePool => self.global(node, ReduceOp::Mean),
            Op::GlobalMaxPool => self.global(node, ReduceOp::Max),
            Op::Unary(op) => self.unary(node, *op),
            Op::Binary(op) => self.binary(node, *op),
            Op::Reduce { kind, noop_with_empty_axes, .. } => self.reduce(node, *kind, *noop_with_empty_axes),
            Op::Expand => self.expand(node),
            Op::Identity | Op::Reshape { .. } | Op::Squeeze | Op::Unsqueeze | Op::Flatten { .. } => {
                self.simple(node, Kind::Reshape)
            }
            Op::Cast { to } => self.cast(node, *to),
            Op::ArgReduce { max, axis, last, .. } => self.arg_reduce(node, *max, *axis, *last),
            Op::LayerNormalization { axis, epsilon } => self.layer_norm(node, *axis, *epsilon),
            Op::LpNormalization { axis, p } => self.lp_norm(node, *axis, *p),
            Op::Where => self.choose(node),
            Op::Clip => self.clip(node),
            Op::BatchNormalizationTraining { epsilon } => self.batch_norm_training(node, *epsilon),
            Op::FakeQuantize { scales, axis, low, high } => {
                let x = self.input(node, 0)?;
                let scales = self.quantization_scales(x, scales, *axis)?;
                let inputs = vec![self.source(x)?, scales];
                let output = self.output(node)?;
                self.push(Kind::Train(TrainKind::FakeQuantize { low: *low, high: *high }), inputs, output)
            }
            Op::Loss(loss) => self.loss(node, loss),
            Op::GlobalNorm => self.global_norm(node),
            Op::LossScale(rule) => self.loss_scale(node, *rule),
            Op::Update(optimizer) => self.update(node, *optimizer),
            Op::Vjp(of) => self.vjp(node, of),
            _ => {
                let planned = self.windowed(node).or_else(|| self.product(node)).or_else(|| self.moved(node));
                planned.unwrap_or(Err(Unsupported::Operator))
            }
        }
    }
}
