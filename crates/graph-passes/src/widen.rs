//! Networks of other element types as networks of 32-bit floats.

use cytoscope_graph::{Activation, ElementType, Graph, Node, Op, ValueId};
use std::sync::Arc;

/// Turns a network into one that takes and returns 32-bit floats, and computes in them where it would in 16-bit floats
/// or, if an input has them, in 64-bit floats. Inputs of integers are limited to the range of their type and lose
/// fractions; outputs of other types are converted. Returns false for a network of 32-bit floats, which stays as it is.
pub fn widen(graph: &mut Graph) -> bool {
    let has_doubles = graph.inputs.iter().any(|id| graph.value(*id).dtype == Some(ElementType::F64));
    let is_other = |dtype: ElementType| dtype.is_half() || (has_doubles && dtype == ElementType::F64);
    let mut has_changed = false;
    for tensor in graph.initializers.values_mut().filter(|tensor| is_other(tensor.dtype())) {
        *tensor = Arc::new(tensor.cast(ElementType::F32));
        has_changed = true;
    }
    for value in graph.values.iter_mut().filter(|value| value.dtype.is_some_and(is_other)) {
        value.dtype = Some(ElementType::F32);
        has_changed = true;
    }
    for node in &mut graph.nodes {
        match &mut node.op {
            Op::Cast { to } if is_other(*to) => *to = ElementType::F32,
            Op::ConstantOfShape { value } if is_other(value.dtype()) => *value = value.cast(ElementType::F32),
            _ => {}
        }
    }
    let mut nodes = Vec::new();
    for index in 0..graph.inputs.len() {
        let Some((id, dtype)) = other_type(graph, graph.inputs.get(index)) else { continue };
        let float = like(graph, id, "float32", ElementType::F32);
        let mut from = float;
        if let Some((min, max)) = range(dtype) {
            from = step(graph, &mut nodes, id, "bounded", (Op::Activation(Activation::Clip { min, max }), from));
        }
        let name = format!("{}.typed", graph.value(id).name);
        nodes.push(Node { name, op: Op::Cast { to: dtype }, inputs: vec![Some(from)], outputs: vec![Some(id)] });
        if let Some(input) = graph.inputs.get_mut(index) {
            *input = float;
        }
        has_changed = true;
    }
    nodes.append(&mut graph.nodes);
    for index in 0..graph.outputs.len() {
        let Some((id, _)) = other_type(graph, graph.outputs.get(index)) else { continue };
        let float = step(graph, &mut nodes, id, "float32", (Op::Cast { to: ElementType::F32 }, id));
        if let Some(output) = graph.outputs.get_mut(index) {
            *output = float;
        }
        has_changed = true;
    }
    graph.nodes = nodes;
    has_changed
}

/// Returns a value with its type, if that is known and not that of 32-bit floats.
fn other_type(graph: &Graph, id: Option<&ValueId>) -> Option<(ValueId, ElementType)> {
    let id = *id?;
    let dtype = graph.value(id).dtype.filter(|dtype| *dtype != ElementType::F32)?;
    Some((id, dtype))
}

/// Adds a value with the shape of another, and its name with an ending.
fn like(graph: &mut Graph, of: ValueId, ending: &str, dtype: ElementType) -> ValueId {
    let (name, shape) = (format!("{}.{ending}", graph.value(of).name), graph.value(of).shape.clone());
    graph.add_value(name, Some(dtype), shape)
}

/// Adds a node that computes 32-bit floats with the shape of `of` from `from`, and returns them.
fn step(graph: &mut Graph, nodes: &mut Vec<Node>, of: ValueId, ending: &str, (op, from): (Op, ValueId)) -> ValueId {
    let output = like(graph, of, ending, ElementType::F32);
    let name = graph.value(output).name.clone();
    nodes.push(Node { name, op, inputs: vec![Some(from)], outputs: vec![Some(output)] });
    output
}

/// Returns the smallest and the largest integer of a type, rounded to floats; `None` for other types.
fn range(of: ElementType) -> Option<(f32, f32)> {
    Some(match of {
        ElementType::I8 => (f32::from(i8::MIN), f32::from(i8::MAX)),
        ElementType::U8 => (0.0, f32::from(u8::MAX)),
        ElementType::I16 => (f32::from(i16::MIN), f32::from(i16::MAX)),
        ElementType::U16 => (0.0, f32::from(u16::MAX)),
        ElementType::I32 => (i32::MIN as f32, i32::MAX as f32),
        ElementType::U32 => (0.0, u32::MAX as f32),
        ElementType::I64 => (i64::MIN as f32, i64::MAX as f32),
        ElementType::U64 => (0.0, u64::MAX as f32),
        ElementType::F32 | ElementType::F64 | ElementType::F16 | ElementType::BF16 | ElementType::Bool => return None,
    })
}
