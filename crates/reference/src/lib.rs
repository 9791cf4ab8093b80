//! The reference executor: every operator in plain loops, to test the engines against.
//!
//! Arithmetic: convolutions and products accumulate in the tensor's type; element-wise functions, normalizations and
//! reductions compute in f64 and round once; f16 and bf16 compute as f32; integers wrap; quantization rounds half to
//! even and saturates.
//!
//! The crate owns the meaning of every operator, training operators included. Shape inference and constant folding
//! compute constants with it, and engines fall back to it for operators that they lack. Inputs are checked against the
//! operator's shape rule before anything is allocated; an operator or graph that does not accept them, or would need
//! more than [`MEMORY_BYTES`], is refused with a [`GraphError`].
#![forbid(unsafe_code)]

mod conv;
mod elementwise;
mod indexing;
mod loss;
mod matmul;
mod norm;
mod ops;
mod optimizer;
mod pool;
mod quant;
mod reduce;
mod shape_ops;
mod training;
mod vjp;

use std::collections::BTreeMap;
use std::sync::Arc;

use cytoscope_graph::infer::{Info, fixed, node_infos};
use cytoscope_graph::{
    ElementType, Graph, GraphError, GraphLimits, Interrupt, Op, Result, Scalar, Tensor, ValueId, check_limit, op_name,
    operator_cost,
};

pub use elementwise::activate;
pub use shape_ops::shape_values;

/// The inputs of one operator, and the shapes of its outputs.
pub(crate) struct Call<'a> {
    inputs: &'a [Option<&'a Tensor>],
    shapes: Vec<Vec<usize>>,
    types: Vec<Option<ElementType>>,
}

impl<'a> Call<'a> {
    /// Returns input `index`, which must be present.
    pub(crate) fn need(&self, index: usize) -> Result<&'a Tensor> {
        self.get(index).ok_or_else(|| GraphError::misused("inputs", format!("no input {index}"), "a tensor"))
    }

    pub(crate) fn get(&self, index: usize) -> Option<&'a Tensor> {
        self.inputs.get(index).copied().flatten()
    }

    /// Returns the shape of output `index`.
    pub(crate) fn shape(&self, index: usize) -> Result<&[usize]> {
        self.shapes
            .get(index)
            .map(Vec::as_slice)
            .ok_or_else(|| GraphError::misused("outputs", format!("no output {index}"), "its shape"))
    }

    /// Returns input `index` as integers, if present.
    pub(crate) fn ints(&self, index: usize) -> Result<Option<Vec<i64>>> {
        self.get(index).map(|t| t.to_i64_vec().ok_or_else(|| wrong_type(t.dtype()))).transpose()
    }

    /// Returns input `index` as integers; it must be present.
    pub(crate) fn need_ints(&self, index: usize) -> Result<Vec<i64>> {
        let tensor = self.need(index)?;
        tensor.to_i64_vec().ok_or_else(|| wrong_type(tensor.dtype()))
    }

    /// Returns the elements of input `index` as `T`, if present.
    pub(crate) fn slice<T: Scalar>(&self, index: usize) -> Result<Option<&'a [T]>> {
        self.get(index).map(typed).transpose()
    }
}

/// Returns the elements of `tensor` as `T`.
pub(crate) fn typed<T: Scalar>(tensor: &Tensor) -> Result<&[T]> {
    tensor.as_slice().ok_or_else(|| wrong_type(tensor.dtype()))
}

/// Returns the smallest and largest value of an element type; infinite for floats, and where `Scalar::from_f64` saturates.
pub(crate) fn value_range(of: ElementType) -> (f64, f64) {
    match of {
        ElementType::I8 => (i8::MIN.into(), i8::MAX.into()),
        ElementType::U8 => (u8::MIN.into(), u8::MAX.into()),
        ElementType::I16 => (i16::MIN.into(), i16::MAX.into()),
        ElementType::U16 => (u16::MIN.into(), u16::MAX.into()),
        ElementType::I32 => (i32::MIN.into(), i32::MAX.into()),
        ElementType::U32 => (u32::MIN.into(), u32::MAX.into()),
        ElementType::U64 => (0.0, f64::INFINITY),
        ElementType::Bool => (0.0, 1.0),
        ElementType::F32 | ElementType::F64 | ElementType::F16 | ElementType::BF16 | ElementType::I64 => {
            (f64::NEG_INFINITY, f64::INFINITY)
        }
    }
}

pub(crate) fn wrong_type(got: ElementType) -> GraphError {
    GraphError::unsupported(format!("this operator for {got} elements"))
}

/// Maximum number of elements of an input whose values the shape rules see: arguments such as axes and sizes are small.
const MAX_ARGUMENT_ELEMENTS: usize = 4096;

/// Name of the limit on the executor's memory.
pub const MEMORY: &str = "memory_bytes";

/// Maximum bytes that [`eval`] and [`run`] hold at once in addition to inputs and constants. The executor is meant for
/// small tensors; a larger model is refused instead of exhausting the system's memory.
pub const MEMORY_BYTES: u64 = 8 << 30;

/// Runs one operator. Engines fall back to this for operators that they do not implement.
///
/// `inputs` are in the operator's order, absent ones `None`; `outputs` is the number of requested outputs. Outputs are
/// returned in the operator's order.
///
/// # Errors
/// If the inputs do not fit the operator, their types are not supported, or a result would exceed
/// [`GraphLimits::tensor_elements`].
pub fn eval(op: &Op, inputs: &[Option<&Tensor>], outputs: usize) -> Result<Vec<Tensor>> {
    eval_within(op, inputs, outputs, MEMORY_BYTES)
}

/// Like [`eval`], allocating at most about `memory_bytes` at once.
///
/// # Errors
/// Same as [`eval`]; [`GraphError::OverLimit`] for [`MEMORY`], before anything is allocated.
pub fn eval_within(op: &Op, inputs: &[Option<&Tensor>], outputs: usize, memory_bytes: u64) -> Result<Vec<Tensor>> {
    let infos: Vec<Option<Info>> = inputs
        .iter()
        .map(|t| {
            t.map(|t| {
                let value = (t.len() <= MAX_ARGUMENT_ELEMENTS).then(|| Arc::new((*t).clone()));
                Info { dtype: Some(t.dtype()), shape: Some(fixed(t.shape())), value }
            })
        })
        .collect();
    let refs: Vec<Option<&Info>> = infos.iter().map(Option::as_ref).collect();
    let made = node_infos(op, &refs, outputs, &GraphLimits::default())?;
    // The cost is unknown if the shape of an output is; `eval_typed` refuses that.
    let (needed, _) = operator_cost(op, &refs, &made).unwrap_or_default();
    check_limit(MEMORY, op_name(op), needed, memory_bytes.into())?;
    let types: Vec<_> = made.iter().map(|i| i.dtype).collect();
    if op.moves_only() || !inputs.iter().flatten().any(|t| t.dtype().is_half()) {
        return eval_typed(op, inputs, &made, types);
    }
    let wide: Vec<Option<Tensor>> =
        inputs.iter().map(|t| t.filter(|t| t.dtype().is_half()).map(|t| t.cast(ElementType::F32))).collect();
    let widened: Vec<Option<&Tensor>> = inputs.iter().zip(&wide).map(|(t, w)| w.as_ref().or(*t)).collect();
    let wide_types = types.iter().map(|t| t.map(|t| if t.is_half() { ElementType::F32 } else { t })).collect();
    let results = eval_typed(op, &widened, &made, wide_types)?;
    Ok(results
        .into_iter()
        .zip(types)
        .map(|(r, t)| match t {
            Some(t) if t != r.dtype() => r.cast(t),
            _ => r,
        })
        .collect())
}

fn eval_typed(
    op: &Op,
    inputs: &[Option<&Tensor>],
    made: &[Info],
    types: Vec<Option<ElementType>>,
) -> Result<Vec<Tensor>> {
    let shapes: Option<Vec<Vec<usize>>> = made.iter().map(Info::fixed_shape).collect();
    let shapes = shapes.ok_or_else(|| {
        GraphError::unsupported(format!(
            "{}: a shape argument with more than {MAX_ARGUMENT_ELEMENTS} elements",
            op_name(op)
        ))
    })?;
    let call = Call { inputs, shapes, types };
    match op {
        Op::Conv(_) | Op::FusedConv { .. } | Op::ConvTranspose(_) | Op::ConvInteger(_) | Op::QLinearConv(_) => {
            conv::eval(op, &call)
        }
        Op::BatchNormalization { .. }
        | Op::InstanceNormalization { .. }
        | Op::GroupNormalization { .. }
        | Op::LayerNormalization { .. }
        | Op::LpNormalization { .. }
        | Op::Softmax { .. }
        | Op::LogSoftmax { .. } => norm::eval(op, &call),
        Op::MaxPool(_) | Op::AveragePool(_) | Op::GlobalAveragePool | Op::GlobalMaxPool => pool::eval(op, &call),
        Op::Activation(_) | Op::PRelu | Op::Clip | Op::Unary(_) | Op::Binary(_) | Op::Where => {
            Ok(vec![elementwise::eval(op, &call)?])
        }
        Op::MatMul | Op::Gemm { .. } | Op::MatMulInteger | Op::QLinearMatMul | Op::Einsum { .. } => {
            Ok(vec![matmul::eval(op, &call)?])
        }
        Op::Reduce { .. } | Op::ArgReduce { .. } | Op::TopK { .. } | Op::CumSum { .. } => reduce::eval(op, &call),
        Op::QuantizeLinear { .. } | Op::DequantizeLinear { .. } | Op::DynamicQuantizeLinear => quant::eval(op, &call),
        Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } | Op::ScatterNd => {
            Ok(vec![indexing::eval(op, &call)?])
        }
        Op::Vjp(of) => vjp::eval(of, &call),
        Op::BatchNormalizationTraining { .. }
        | Op::FakeQuantize { .. }
        | Op::Loss(_)
        | Op::GlobalNorm
        | Op::LossScale(_)
        | Op::Update(_) => training::eval(op, &call),
        _ => ops::eval(op, &call).unwrap_or_else(|| shape_ops::eval(op, &call)),
    }
}

/// Runs the graph on named inputs, in any order, and returns its outputs in the graph's order.
///
/// # Errors
/// If an input is missing, unknown, or does not have the declared type or shape; errors of [`eval`], with the node's
/// name.
pub fn run(graph: &Graph, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
    run_unless(&Interrupt::default(), graph, inputs)
}

/// Like [`run`]. `interrupt` is asked before each node.
///
/// # Errors
/// Same as [`run`], and [`GraphError::Interrupted`].
pub fn run_unless(interrupt: &Interrupt, graph: &Graph, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
    let given = given_inputs(graph, inputs)?;
    let mut last_use: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        last_use.extend(node.inputs.iter().flatten().map(|&id| (id, index)));
    }
    let outputs: std::collections::BTreeSet<ValueId> = graph.outputs.iter().copied().collect();
    let mut values: BTreeMap<ValueId, Tensor> = BTreeMap::new();
    let mut held = 0u64;
    for (index, node) in graph.nodes.iter().enumerate() {
        interrupt.check()?;
        let find = |id: &ValueId| {
            values.get(id).or_else(|| given.get(id).copied()).or_else(|| graph.constant(*id).map(AsRef::as_ref))
        };
        let mut arguments = Vec::with_capacity(node.inputs.len());
        for id in &node.inputs {
            arguments.push(match id {
                None => None,
                Some(id) => Some(find(id).ok_or_else(|| {
                    GraphError::malformed(format!("\"{}\" is read before it is produced", graph.value(*id).name))
                })?),
            });
        }
        let results = eval_within(&node.op, &arguments, node.outputs.len(), MEMORY_BYTES.saturating_sub(held))
            .map_err(|e| e.at(&node.name, op_name(&node.op)))?;
        for (id, result) in node.outputs.iter().zip(results) {
            if let Some(id) = id {
                held = held.saturating_add(result.size_bytes());
                values.insert(*id, result);
            }
        }
        for id in node.inputs.iter().flatten() {
            if last_use.get(id) == Some(&index) && !outputs.contains(id) {
                held = held.saturating_sub(values.remove(id).map_or(0, |t| t.size_bytes()));
            }
        }
    }
    graph
        .outputs
        .iter()
        .map(|id| {
            let made =
                values.get(id).or_else(|| given.get(id).copied()).or_else(|| graph.constant(*id).map(AsRef::as_ref));
            made.cloned()
                .ok_or_else(|| GraphError::malformed(format!("output \"{}\" is never produced", graph.value(*id).name)))
        })
        .collect()
}

/// Returns the inputs of a run by value, after checking that all are given, with the declared types and shapes.
fn given_inputs<'a>(graph: &Graph, inputs: &'a [(String, Tensor)]) -> Result<BTreeMap<ValueId, &'a Tensor>> {
    let mut given: BTreeMap<ValueId, &Tensor> = BTreeMap::new();
    for (name, tensor) in inputs {
        let id = graph.inputs.iter().copied().find(|&id| graph.value(id).name == *name).ok_or_else(|| {
            let names: Vec<_> = graph.inputs.iter().map(|&i| graph.value(i).name.as_str()).collect();
            GraphError::misused("input", format!("\"{name}\""), format!("one of {names:?}"))
        })?;
        cytoscope_graph::infer::fits(graph, id, tensor.shape())?;
        if let Some(dtype) = graph.value(id).dtype
            && dtype != tensor.dtype()
        {
            return Err(GraphError::misused(
                format!("element type of input \"{name}\""),
                tensor.dtype().name(),
                dtype.name(),
            ));
        }
        given.insert(id, tensor);
    }
    if let Some(&id) = graph.inputs.iter().find(|id| !given.contains_key(id)) {
        return Err(GraphError::misused("inputs", "incomplete", format!("\"{}\" as well", graph.value(id).name)));
    }
    Ok(given)
}
