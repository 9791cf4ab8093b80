//! Networks of other element types than f32, as engines run them: halves become f32, and inputs and outputs of other types
//! are converted.

use cytoscope_graph::{ElementType, Graph, Node, Op, Result, Tensor, Value, ValueId};
use std::sync::Arc;

/// Lets a network compute in f32 what it computes in 16-bit floats, and take and return f32: inputs of other types are
/// converted from it, integers of 8 and 16 bits after clamping to their range, and outputs are converted to it. A network of
/// f32 stays as it is.
///
/// # Errors
/// As [`Graph::validate`].
pub fn to_single_precision(graph: &mut Graph) -> Result<()> {
    halves_to_singles(graph);
    for index in 0..graph.inputs.len() {
        convert_input(graph, index);
    }
    for index in 0..graph.outputs.len() {
        convert_output(graph, index);
    }
    graph.validate()
}

fn halves_to_singles(graph: &mut Graph) {
    for tensor in graph.initializers.values_mut().filter(|tensor| tensor.dtype().is_half()) {
        *tensor = Arc::new(tensor.cast(ElementType::F32));
    }
    for node in &mut graph.nodes {
        match &mut node.op {
            Op::Cast { to } if to.is_half() => *to = ElementType::F32,
            Op::ConstantOfShape { value } if value.dtype().is_half() => *value = value.cast(ElementType::F32),
            _ => {}
        }
    }
    for dtype in graph.values.iter_mut().filter_map(|value| value.dtype.as_mut()).filter(|dtype| dtype.is_half()) {
        *dtype = ElementType::F32;
    }
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

/// Returns the smallest and the largest value of an integer type of 8 or 16 bits.
fn range(dtype: ElementType) -> Option<(f32, f32)> {
    match dtype {
        ElementType::U8 => Some((0.0, 255.0)),
        ElementType::I8 => Some((-128.0, 127.0)),
        ElementType::U16 => Some((0.0, 65_535.0)),
        ElementType::I16 => Some((-32_768.0, 32_767.0)),
        _ => None,
    }
}
