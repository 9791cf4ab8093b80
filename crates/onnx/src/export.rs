//! Export of a [`Graph`] to an ONNX file, in the oldest opset that has all of its operators.
//!
//! Internal operators are written as the operators they consist of: a fused convolution as `Conv`, `Add` and an
//! activation, SiLU as `Sigmoid` and `Mul`. Weights are stored in the file.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use crate::opset::{self, axes_attribute, has_axes_attribute, ir_version};
use crate::proto::{Writer, write_tensor};
use cytoscope_graph::{
    Activation, BinaryOp, Budget, ConvAttrs, ConvTransposeAttrs, DepthOrder, Dim, ElementType, Graph, GraphError,
    GraphLimits, Interrupt, Node, Op, PadMode, Padding, PoolAttrs, Result, Tensor, Value, ValueId, activation_name,
    op_name,
};
use cytoscope_graph_passes::all_infos;
use cytoscope_storage::StorageError;
use cytoscope_storage::write::atomic_write;

/// Protobuf's limit on the size of a message.
const MAX_FILE_BYTES: usize = i32::MAX as usize;

/// An encoded ONNX file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnnxFile {
    /// Content of the file.
    pub bytes: Vec<u8>,
    /// Default-domain opset that the file states.
    pub opset: i64,
}

/// Returns the graph as the bytes of an ONNX file.
///
/// # Errors
/// Same as [`encode`].
pub fn to_bytes(graph: &Graph) -> Result<Vec<u8>> {
    encode(graph).map(|file| file.bytes)
}

/// Returns the graph as an ONNX file, in the oldest opset from 17 on that has all of its operators.
///
/// # Errors
/// If the graph is invalid, ONNX lacks an operator for the type of its input, an input or output has no known type, or the file is larger than protobuf's limit of 2 GiB.
pub fn encode(graph: &Graph) -> Result<OnnxFile> {
    if let Some(node) = graph.nodes.iter().find(|n| n.op.is_training_only()) {
        return Err(GraphError::unsupported(format!("writing the training operator {} to a file", op_name(&node.op))));
    }
    graph.validate()?;
    let infos = all_infos(graph, &GraphLimits::default(), &Budget::new(graph, Interrupt::default()))?;
    if let Some((node, dtype)) = graph.nodes.iter().find_map(|n| Some((n, opset::missing_type(n, &infos)?))) {
        let what = format!("writing {} of {dtype} elements to a file, which ONNX does not have", op_name(&node.op));
        return Err(GraphError::unsupported(what));
    }
    let opset = opset::graph_opset(graph, &infos);
    let mut writer = Writer::default();
    writer.int(1, ir_version(opset));
    writer.text(2, "cytoscope");
    writer.text(3, env!("CARGO_PKG_VERSION"));
    let names = UniqueNames::of(graph.values.iter().map(|value| value.name.clone()));
    let mut export = Export { graph, opset, names, inlined: HashSet::new() };
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let dtype = node.input(0).and_then(|id| infos.get(&id)).and_then(|i| i.dtype);
        nodes.extend(export.node(node, dtype.unwrap_or(ElementType::F32)));
    }
    make_node_names_unique(&mut nodes);
    let unused = export.unused_constants(&nodes);
    let dtype_of = |id: ValueId| {
        let value = graph.value(id);
        let dtype = value.dtype.or(infos.get(&id).and_then(|i| i.dtype));
        dtype.ok_or_else(|| GraphError::misused(format!("type of \"{}\"", value.name), "unknown", "an element type"))
    };
    let typed =
        |ids: &[ValueId]| ids.iter().map(|id| dtype_of(*id).map(|dtype| (*id, dtype))).collect::<Result<Vec<_>>>();
    let ends = [(11, typed(&graph.inputs)?), (12, typed(&graph.outputs)?)];
    writer.message(7, |body| {
        for node in &nodes {
            body.message(1, |w| node.write(w));
        }
        body.text(2, if graph.name.is_empty() { "graph" } else { &graph.name });
        for (&id, tensor) in graph.initializers.iter().filter(|(id, _)| !unused.contains(*id)) {
            body.message(5, |w| write_tensor(w, &graph.value(id).name, tensor));
        }
        for (field, ids) in &ends {
            for &(id, dtype) in ids {
                let value = graph.value(id);
                let shape = value.shape.as_ref().or(infos.get(&id).and_then(|i| i.shape.as_ref()));
                body.message(*field, |w| value_info(w, value, dtype, shape.map(Vec::as_slice)));
            }
        }
    });
    writer.message(8, |w| {
        w.text(1, "");
        w.int(2, opset);
    });
    for (key, value) in &graph.metadata {
        writer.message(14, |w| {
            w.text(1, key);
            w.text(2, value);
        });
    }
    let bytes = writer.finish();
    if bytes.len() > MAX_FILE_BYTES {
        return Err(GraphError::unsupported(format!(
            "a model of {} bytes in one file; the format's limit is 2 GiB",
            bytes.len()
        )));
    }
    Ok(OnnxFile { bytes, opset })
}

/// Writes the graph as an ONNX file atomically: to a temporary file beside it, flushed to disk, then renamed.
///
/// # Errors
/// Same as [`encode`], or if the file cannot be written.
pub fn save(graph: &Graph, path: &Path) -> Result<()> {
    atomic_write(path, &to_bytes(graph)?).map_err(|error| match error {
        StorageError::Io { path, source, .. } => GraphError::Io { path, source },
        other => GraphError::Io { path: path.to_owned(), source: std::io::Error::other(other) },
    })
}

fn value_info(writer: &mut Writer, value: &Value, dtype: ElementType, shape: Option<&[Dim]>) {
    writer.text(1, &value.name);
    writer.message(2, |kind| {
        kind.message(1, |tensor| {
            tensor.int(1, dtype.onnx_code().into());
            if let Some(shape) = shape {
                tensor.message(2, |w| {
                    for dim in shape {
                        w.message(1, |w| match dim {
                            Dim::Fixed(n) => w.int(1, *n as i64),
                            Dim::Free(name) => w.text(2, name),
                        });
                    }
                });
            }
        });
    });
}

/// Value of an attribute.
pub(crate) enum Setting {
    Int(i64),
    Float(f32),
    Text(String),
    Ints(Vec<i64>),
    Tensor(Tensor),
}

/// A node in the file.
struct NodeRecord {
    op_type: String,
    name: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    attributes: Vec<(&'static str, Setting)>,
}

impl NodeRecord {
    fn write(&self, w: &mut Writer) {
        for input in &self.inputs {
            w.text(1, input);
        }
        for output in &self.outputs {
            w.text(2, output);
        }
        w.text(3, &self.name);
        w.text(4, &self.op_type);
        for (name, setting) in &self.attributes {
            w.message(5, |w| {
                w.text(1, name);
                let kind = match setting {
                    Setting::Float(v) => {
                        w.float(2, *v);
                        1
                    }
                    Setting::Int(v) => {
                        w.int(3, *v);
                        2
                    }
                    Setting::Text(v) => {
                        w.text(4, v);
                        3
                    }
                    Setting::Tensor(t) => {
                        w.message(5, |w| write_tensor(w, "", t));
                        4
                    }
                    Setting::Ints(v) => {
                        for &v in v {
                            w.int(8, v);
                        }
                        7
                    }
                };
                w.int(20, kind);
            });
        }
    }
}

/// Makes the names of nodes unique, as other executors require. The first node of a name keeps it.
fn make_node_names_unique(nodes: &mut [NodeRecord]) {
    let mut names = UniqueNames::of(nodes.iter().map(|node| node.name.clone()));
    let mut seen = HashSet::new();
    for (index, node) in nodes.iter_mut().enumerate() {
        if !seen.insert(node.name.clone()) {
            node.name = names.unique(&format!("{}_{}_{index}", node.name, node.op_type));
        }
    }
}

/// Names, each of which is used once.
struct UniqueNames {
    used: HashSet<String>,
    /// Last number that was appended to a name: up to it, all are used.
    last_numbers: HashMap<String, usize>,
}

impl UniqueNames {
    fn of(used: impl Iterator<Item = String>) -> Self {
        Self { used: used.collect(), last_numbers: HashMap::new() }
    }

    /// Returns an unused name that starts with `base`.
    fn unique(&mut self, base: &str) -> String {
        if self.used.insert(base.to_owned()) {
            return base.to_owned();
        }
        let mut number = self.last_numbers.get(base).copied().unwrap_or(0);
        loop {
            number += 1;
            let name = format!("{base}_{number}");
            if self.used.insert(name.clone()) {
                self.last_numbers.insert(base.to_owned(), number);
                return name;
            }
        }
    }
}

struct Export<'g> {
    graph: &'g Graph,
    /// Opset of the file.
    opset: i64,
    /// Names of values.
    names: UniqueNames,
    /// Constants that became attributes.
    inlined: HashSet<ValueId>,
}

impl Export<'_> {
    /// Returns the constants that became attributes and that no node in the file reads.
    fn unused_constants(&self, nodes: &[NodeRecord]) -> HashSet<ValueId> {
        let read: HashSet<&str> = nodes.iter().flat_map(|node| &node.inputs).map(String::as_str).collect();
        let is_used =
            |id: &ValueId| read.contains(self.graph.value(*id).name.as_str()) || self.graph.outputs.contains(id);
        self.inlined.iter().copied().filter(|id| !is_used(id)).collect()
    }

    fn node(&mut self, node: &Node, dtype: ElementType) -> Vec<NodeRecord> {
        let text = |id: &Option<ValueId>| id.map_or_else(String::new, |id| self.graph.value(id).name.clone());
        let mut inputs: Vec<String> = node.inputs.iter().map(text).collect();
        let outputs: Vec<String> = node.outputs.iter().map(text).collect();
        let simple = |op_type: &str, inputs: Vec<String>, outputs: Vec<String>, attributes| NodeRecord {
            op_type: op_type.to_owned(),
            name: node.name.clone(),
            inputs,
            outputs,
            attributes,
        };
        match &node.op {
            Op::FusedConv { conv, activation, residual } => {
                let extra = if *residual { inputs.get(3).cloned() } else { None };
                inputs.truncate(3);
                while inputs.last().is_some_and(String::is_empty) {
                    inputs.pop();
                }
                let output = outputs.first().cloned().unwrap_or_default();
                let steps = 1 + usize::from(extra.is_some()) + usize::from(activation.is_some());
                let mut records = Vec::new();
                let target = |export: &mut Self, step: usize| {
                    if step == steps { output.clone() } else { export.names.unique(&format!("{output}_step{step}")) }
                };
                let mut step = 1;
                let mut now = target(self, step);
                records.push(simple("Conv", inputs, vec![now.clone()], conv_settings(conv)));
                if let Some(extra) = extra {
                    step += 1;
                    let next = target(self, step);
                    records.push(simple("Add", vec![now, extra], vec![next.clone()], Vec::new()));
                    now = next;
                }
                if let Some(a) = activation {
                    records.extend(self.activation(a, &node.name, now, output, dtype));
                }
                records
            }
            Op::Activation(a) => {
                let (x, y) =
                    (inputs.first().cloned().unwrap_or_default(), outputs.first().cloned().unwrap_or_default());
                self.activation(a, &node.name, x, y, dtype)
            }
            op => {
                let mut attributes = settings(op, self.opset);
                match op {
                    Op::Split { .. } if node.input(1).is_none() && self.opset >= 18 => {
                        attributes.push(("num_outputs", Setting::Int(node.outputs.len() as i64)));
                    }
                    Op::Reduce { kind, noop_with_empty_axes, .. } if has_axes_attribute(*kind, self.opset) => {
                        // The opset is chosen so that axes that are not constant stay an input.
                        let axes = axes_attribute(node, *noop_with_empty_axes, self.graph).unwrap_or_default();
                        attributes.extend((!axes.is_empty()).then_some(("axes", Setting::Ints(axes))));
                        inputs.truncate(1);
                        self.inlined.extend(node.input(1));
                    }
                    _ => {}
                }
                // An absent input at the end may be one that the operator does not have in this opset.
                while inputs.last().is_some_and(String::is_empty) {
                    inputs.pop();
                }
                vec![simple(op_name(op), inputs, outputs, attributes)]
            }
        }
    }

    fn activation(&mut self, a: &Activation, name: &str, x: String, y: String, dtype: ElementType) -> Vec<NodeRecord> {
        let one = |op_type: &str, inputs, output, attributes| NodeRecord {
            op_type: op_type.to_owned(),
            name: name.to_owned(),
            inputs,
            outputs: vec![output],
            attributes,
        };
        let float = Setting::Float;
        match *a {
            Activation::Silu => {
                let gate = self.names.unique(&format!("{y}_gate"));
                vec![
                    one("Sigmoid", vec![x.clone()], gate.clone(), Vec::new()),
                    one("Mul", vec![x, gate], y, Vec::new()),
                ]
            }
            Activation::Clip { min, max } => {
                let mut nodes = Vec::new();
                let mut inputs = vec![x];
                for (part, v) in [("min", min), ("max", max)] {
                    let bound = self.names.unique(&format!("{y}_{part}"));
                    let value = Setting::Tensor(Tensor::scalar(v).cast(dtype));
                    nodes.push(one("Constant", Vec::new(), bound.clone(), vec![("value", value)]));
                    inputs.push(bound);
                }
                nodes.push(one("Clip", inputs, y, Vec::new()));
                nodes
            }
            Activation::LeakyRelu { alpha }
            | Activation::Elu { alpha }
            | Activation::Celu { alpha }
            | Activation::ThresholdedRelu { alpha } => {
                vec![one(activation_name(a), vec![x], y, vec![("alpha", float(alpha))])]
            }
            Activation::Selu { alpha, gamma } => {
                vec![one("Selu", vec![x], y, vec![("alpha", float(alpha)), ("gamma", float(gamma))])]
            }
            Activation::HardSigmoid { alpha, beta } => {
                vec![one("HardSigmoid", vec![x], y, vec![("alpha", float(alpha)), ("beta", float(beta))])]
            }
            Activation::Gelu { tanh } => {
                let form = Setting::Text(if tanh { "tanh" } else { "none" }.into());
                vec![one("Gelu", vec![x], y, vec![("approximate", form)])]
            }
            Activation::Relu
            | Activation::Sigmoid
            | Activation::HardSwish
            | Activation::Mish
            | Activation::Tanh
            | Activation::Softplus
            | Activation::Softsign => vec![one(activation_name(a), vec![x], y, Vec::new())],
        }
    }
}

/// Names and values of attributes.
pub(crate) type Settings = Vec<(&'static str, Setting)>;

fn ints(values: &[usize]) -> Setting {
    Setting::Ints(values.iter().map(|&v| v as i64).collect())
}

pub(crate) fn flag(value: bool) -> Setting {
    Setting::Int(value.into())
}

fn padding_setting(padding: &Padding) -> (&'static str, Setting) {
    match padding {
        Padding::Explicit { before, after } => ("pads", ints(&[before.as_slice(), after].concat())),
        Padding::SameUpper => ("auto_pad", Setting::Text("SAME_UPPER".into())),
        Padding::SameLower => ("auto_pad", Setting::Text("SAME_LOWER".into())),
    }
}

fn conv_settings(a: &ConvAttrs) -> Settings {
    vec![
        ("kernel_shape", ints(&a.kernel)),
        ("strides", ints(&a.strides)),
        ("dilations", ints(&a.dilations)),
        ("group", Setting::Int(a.group as i64)),
        conv_padding_setting(a),
    ]
}

/// With steps of 1, "same" padding does not depend on the lengths of the image. It is then written as amounts, because ONNX
/// Runtime refuses it for dilated kernels.
fn conv_padding_setting(a: &ConvAttrs) -> (&'static str, Setting) {
    if a.strides.iter().any(|stride| *stride != 1) {
        return padding_setting(&a.padding);
    }
    let (before, after) = a.padding.resolve(&vec![1; a.kernel.len()], &a.kernel, &a.strides, &a.dilations);
    padding_setting(&Padding::Explicit { before, after })
}

fn pool_settings(a: &PoolAttrs, max: bool, opset: i64) -> Settings {
    let mut settings = vec![
        ("kernel_shape", ints(&a.kernel)),
        ("strides", ints(&a.strides)),
        ("ceil_mode", flag(a.ceil_mode)),
        padding_setting(&a.padding),
        if max {
            ("storage_order", flag(a.column_major_indices))
        } else {
            ("count_include_pad", flag(a.count_include_pad))
        },
    ];
    if max || opset >= 19 {
        settings.push(("dilations", ints(&a.dilations)));
    }
    settings
}

fn conv_transpose_settings(a: &ConvTransposeAttrs) -> Settings {
    let mut settings = vec![
        ("kernel_shape", ints(&a.kernel)),
        ("strides", ints(&a.strides)),
        ("dilations", ints(&a.dilations)),
        ("group", Setting::Int(a.group as i64)),
        ("output_padding", ints(&a.output_padding)),
        padding_setting(&a.padding),
    ];
    settings.extend(a.output_shape.as_ref().map(|shape| ("output_shape", ints(shape))));
    settings
}

/// Returns the attributes of `QuantizeLinear`, which has an output type, or `DequantizeLinear`.
fn quantization_settings(axis: i64, block_size: usize, to: Option<ElementType>, opset: i64) -> Settings {
    let mut settings = vec![("axis", Setting::Int(axis))];
    if opset >= 21 {
        settings.push(("block_size", Setting::Int(block_size as i64)));
        settings.extend(to.map(|to| ("output_dtype", Setting::Int(to.onnx_code().into()))));
    }
    settings
}

/// Returns the attributes that an operator that is written as itself has in an opset.
fn settings(op: &Op, opset: i64) -> Settings {
    let int = Setting::Int;
    let float = Setting::Float;
    match op {
        Op::Conv(a) | Op::ConvInteger(a) | Op::QLinearConv(a) => conv_settings(a),
        Op::ConvTranspose(a) => conv_transpose_settings(a),
        Op::MaxPool(a) => pool_settings(a, true, opset),
        Op::AveragePool(a) => pool_settings(a, false, opset),
        Op::BatchNormalization { epsilon } | Op::InstanceNormalization { epsilon } => {
            vec![("epsilon", float(*epsilon))]
        }
        Op::GroupNormalization { groups, epsilon } => {
            vec![("num_groups", int(*groups as i64)), ("epsilon", float(*epsilon))]
        }
        Op::LayerNormalization { axis, epsilon } => vec![("axis", int(*axis)), ("epsilon", float(*epsilon))],
        Op::LpNormalization { axis, p } => vec![("axis", int(*axis)), ("p", int(*p))],
        Op::Softmax { axis }
        | Op::LogSoftmax { axis }
        | Op::Split { axis }
        | Op::Flatten { axis }
        | Op::Gather { axis }
        | Op::GatherElements { axis } => vec![("axis", int(*axis))],
        Op::Pad { mode } => {
            let mode = match mode {
                PadMode::Constant => "constant",
                PadMode::Reflect => "reflect",
                PadMode::Edge => "edge",
                PadMode::Wrap => "wrap",
            };
            vec![("mode", Setting::Text(mode.into()))]
        }
        Op::Binary(BinaryOp::Mod { fmod }) => vec![("fmod", flag(*fmod))],
        Op::Gemm { alpha, beta, trans_a, trans_b } => vec![
            ("alpha", float(*alpha)),
            ("beta", float(*beta)),
            ("transA", flag(*trans_a)),
            ("transB", flag(*trans_b)),
        ],
        Op::Reduce { kind, keep_dims, .. } if has_axes_attribute(*kind, opset) => vec![("keepdims", flag(*keep_dims))],
        Op::Reduce { keep_dims, noop_with_empty_axes, .. } => {
            vec![("keepdims", flag(*keep_dims)), ("noop_with_empty_axes", flag(*noop_with_empty_axes))]
        }
        Op::ArgReduce { axis, keep_dims, last, .. } => {
            vec![("axis", int(*axis)), ("keepdims", flag(*keep_dims)), ("select_last_index", flag(*last))]
        }
        Op::TopK { axis, largest } => vec![("axis", int(*axis)), ("largest", flag(*largest))],
        Op::Reshape { allow_zero } => vec![("allowzero", flag(*allow_zero))],
        Op::Transpose { perm } if !perm.is_empty() => vec![("perm", ints(perm))],
        Op::GatherNd { batch_dims } => vec![("batch_dims", int(*batch_dims as i64))],
        Op::Shape { start, end } => {
            let mut s = vec![("start", int(*start))];
            s.extend(end.map(|e| ("end", int(e))));
            s
        }
        Op::Cast { to } => vec![("to", int(to.onnx_code().into()))],
        Op::ConstantOfShape { value } => {
            vec![("value", Setting::Tensor(value.clone().reshaped([1]).unwrap_or_else(|_| value.clone())))]
        }
        Op::DepthToSpace { block, order } => {
            let mode = if *order == DepthOrder::Dcr { "DCR" } else { "CRD" };
            vec![("blocksize", int(*block as i64)), ("mode", Setting::Text(mode.into()))]
        }
        Op::SpaceToDepth { block } => vec![("blocksize", int(*block as i64))],
        Op::Trilu { upper } => vec![("upper", flag(*upper))],
        Op::CumSum { exclusive, reverse } => vec![("exclusive", flag(*exclusive)), ("reverse", flag(*reverse))],
        Op::Einsum { equation } => vec![("equation", Setting::Text(equation.clone()))],
        Op::QuantizeLinear { axis, block_size, to } => quantization_settings(*axis, *block_size, Some(*to), opset),
        Op::DequantizeLinear { axis, block_size } => quantization_settings(*axis, *block_size, None, opset),
        other => crate::ops::settings(other, opset).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_are_unused_and_the_first_of_a_name_keeps_it() {
        let mut names = UniqueNames::of(["y", "y_1"].map(str::to_owned).into_iter());
        let generated: Vec<String> = ["y", "y", "z", "y_1"].map(|base| names.unique(base)).into();
        assert_eq!(generated, ["y_2", "y_3", "z", "y_1_1"]);
        let node = |name: &str| NodeRecord {
            op_type: "Relu".to_owned(),
            name: name.to_owned(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            attributes: Vec::new(),
        };
        let mut nodes = ["a_Relu_3", "a", "a_Relu_2", "a", "a"].map(node);
        make_node_names_unique(&mut nodes);
        assert_eq!(nodes.map(|node| node.name), ["a_Relu_3", "a", "a_Relu_2", "a_Relu_3_1", "a_Relu_4"]);
    }

    #[test]
    fn many_generated_names_that_are_taken_are_not_looked_up_again() {
        let taken = (1..50_000).map(|number| format!("y_{number}"));
        let mut names = UniqueNames::of(std::iter::once("y".to_owned()).chain(taken));
        let generated: Vec<String> = (0..50_000).map(|_| names.unique("y")).collect();
        assert_eq!(generated.last().map(String::as_str), Some("y_99999"));
    }
}
