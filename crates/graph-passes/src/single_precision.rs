//! Rewrites networks of other element types to compute in f32, as engines do: 16-bit floats become f32, and inputs and
//! outputs of other types are converted.

use super::quantized_convolutions::separate_quantized_convolutions;
use cytoscope_graph::{ElementType, Graph, Node, Op, Result, Tensor, Value, ValueId};
use std::sync::Arc;

/// Replaces 16-bit floats in a network by f32, and makes all inputs and outputs f32: inputs of other types are converted
/// from f32 (integers after clamping to their range), and outputs to f32. If an input has 64-bit floats, these are replaced
/// by f32, too. Convolutions that read and return bytes become those of f32 between
/// `DequantizeLinear` and `QuantizeLinear`. Returns whether anything was changed: a network of f32 stays as it is.
///
/// # Errors
/// Same as [`Graph::validate`].
pub fn to_single_precision(graph: &mut Graph) -> Result<bool> {
    let has_separated = separate_quantized_convolutions(graph);
    let has_doubles = graph.inputs.iter().any(|id| graph.value(*id).dtype == Some(ElementType::F64));
    let has_changed = floats_to_singles(graph, |dtype| dtype.is_half() || (has_doubles && dtype == ElementType::F64));
    let has_other = graph.inputs.iter().chain(&graph.outputs).any(|id| other_type(graph, *id).is_some());
    for index in 0..graph.inputs.len() {
        convert_input(graph, index);
    }
    for index in 0..graph.outputs.len() {
        convert_output(graph, index);
    }
    graph.validate()?;
    Ok(has_separated || has_changed || has_other)
}

/// Turns values of the types that `is_other` names into f32; returns whether there are any.
fn floats_to_singles(graph: &mut Graph, is_other: impl Fn(ElementType) -> bool) -> bool {
    let mut has_changed = false;
    for tensor in graph.initializers.values_mut().filter(|tensor| is_other(tensor.dtype())) {
        *tensor = Arc::new(tensor.cast(ElementType::F32));
        has_changed = true;
    }
    for node in &mut graph.nodes {
        match &mut node.op {
            Op::Cast { to } if is_other(*to) => *to = ElementType::F32,
            Op::ConstantOfShape { value } if is_other(value.dtype()) => *value = value.cast(ElementType::F32),
            _ => {}
        }
    }
    for dtype in graph.values.iter_mut().filter_map(|value| value.dtype.as_mut()).filter(|dtype| is_other(**dtype)) {
        *dtype = ElementType::F32;
        has_changed = true;
    }
    has_changed
}

/// Returns the type of a value, if it is known and not f32.
fn other_type(graph: &Graph, id: ValueId) -> Option<ElementType> {
    graph.value(id).dtype.filter(|dtype| *dtype != ElementType::F32)
}

/// Adds an f32 value of the shape of `id`, and gives it the name of `id`, which gets another one.
fn take_name(graph: &mut Graph, id: ValueId) -> ValueId {
    let Value { name, shape, .. } = graph.value(id).clone();
    let single = graph.add_value(format!("{name}.single"), Some(ElementType::F32), shape);
    let unused = graph.value(single).name.clone();
    for (id, name) in [(id, unused), (single, name)] {
        if let Some(value) = graph.values.get_mut(id.index()) {
            value.name = name;
        }
    }
    single
}

fn convert_input(graph: &mut Graph, index: usize) {
    let Some(&typed) = graph.inputs.get(index) else { return };
    let Some(dtype) = other_type(graph, typed) else { return };
    let single = take_name(graph, typed);
    let mut from = single;
    let mut nodes = Vec::new();
    if let Some((low, high)) = range(dtype) {
        let name = format!("{}.range", graph.value(typed).name);
        let bounds = [low, high].map(|bound| Some(graph.add_initializer(name.clone(), Tensor::scalar(bound))));
        let shape = graph.value(single).shape.clone();
        from = graph.add_value(format!("{name}.clamped"), Some(ElementType::F32), shape);
        let inputs = [&[Some(single)][..], &bounds].concat();
        nodes.push(Node { name, op: Op::Clip, inputs, outputs: vec![Some(from)] });
    }
    let name = graph.value(typed).name.clone();
    nodes.push(Node { name, op: Op::Cast { to: dtype }, inputs: vec![Some(from)], outputs: vec![Some(typed)] });
    drop(graph.nodes.splice(0..0, nodes));
    if let Some(input) = graph.inputs.get_mut(index) {
        *input = single;
    }
}

fn convert_output(graph: &mut Graph, index: usize) {
    let Some(&typed) = graph.outputs.get(index) else { return };
    if other_type(graph, typed).is_none() {
        return;
    }
    let single = take_name(graph, typed);
    let name = graph.value(single).name.clone();
    let op = Op::Cast { to: ElementType::F32 };
    graph.nodes.push(Node { name, op, inputs: vec![Some(typed)], outputs: vec![Some(single)] });
    for output in graph.outputs.iter_mut().filter(|output| **output == typed) {
        *output = single;
    }
}

/// Returns the smallest and the largest value of an integer type, rounded to floats.
fn range(dtype: ElementType) -> Option<(f32, f32)> {
    match dtype {
        ElementType::U8 => Some((0.0, 255.0)),
        ElementType::I8 => Some((-128.0, 127.0)),
        ElementType::U16 => Some((0.0, 65_535.0)),
        ElementType::I16 => Some((-32_768.0, 32_767.0)),
        ElementType::I32 => Some((i32::MIN as f32, i32::MAX as f32)),
        ElementType::U32 => Some((0.0, u32::MAX as f32)),
        ElementType::I64 => Some((i64::MIN as f32, i64::MAX as f32)),
        ElementType::U64 => Some((0.0, u64::MAX as f32)),
        ElementType::F32 | ElementType::F64 | ElementType::F16 | ElementType::BF16 | ElementType::Bool => None,
    }
}
