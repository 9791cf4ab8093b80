//! Rewrites `QLinearConv` nodes, which some exporters write for quantized convolutions, as convolutions of floats.

use cytoscope_graph::{ConvAttrs, ElementType, Graph, Node, Op, Tensor, ValueId};

/// Replaces each `QLinearConv` with constant weights by a convolution of floats between `DequantizeLinear` and
/// `QuantizeLinear`, for which engines have kernels, and which can be trained. Returns whether there are any.
pub(super) fn separate_quantized_convolutions(graph: &mut Graph) -> bool {
    let nodes = std::mem::take(&mut graph.nodes);
    let mut separated = Vec::with_capacity(nodes.len());
    let mut has_changed = false;
    for node in nodes {
        let parts = match &node.op {
            Op::QLinearConv(attrs) => separate(graph, &node, attrs),
            _ => None,
        };
        has_changed |= parts.is_some();
        separated.extend(parts.unwrap_or_else(|| vec![node]));
    }
    graph.nodes = separated;
    has_changed
}

/// Returns the nodes that a `QLinearConv` is made of; `None` if its weights or its bias are not constant.
fn separate(graph: &mut Graph, node: &Node, attrs: &ConvAttrs) -> Option<Vec<Node>> {
    let (input, output) = (node.input(0)?, node.output(0)?);
    let (stored_weights, to) = (node.input(3)?, graph.value(node.input(7)?).dtype?);
    graph.constant(stored_weights)?;
    let bias = match node.input(8) {
        None => None,
        Some(id) => Some(Tensor::vector(float_bias(graph, node, id)?)),
    };
    let mut float = |part: &str, like: ValueId| {
        let shape = graph.value(like).shape.clone();
        graph.add_value(format!("{}.{part}", node.name), Some(ElementType::F32), shape)
    };
    let (x, weight, y) = (float("input", input), float("weight", stored_weights), float("result", output));
    let bias = bias.map(|bias| graph.add_initializer(format!("{}.bias", node.name), bias));
    let part = |op: Op, inputs: Vec<Option<ValueId>>, output: ValueId| Node {
        name: graph.value(output).name.clone(),
        op,
        inputs,
        outputs: vec![Some(output)],
    };
    let dequantize = |axis: i64, first: usize, output: ValueId| {
        let inputs = (first..first + 3).map(|index| node.input(index)).collect();
        part(Op::DequantizeLinear { axis, block_size: 0 }, inputs, output)
    };
    let quantize = Op::QuantizeLinear { axis: 1, block_size: 0, to };
    Some(vec![
        dequantize(1, 0, x),
        dequantize(0, 3, weight),
        Node { name: node.name.clone(), ..part(Op::Conv(attrs.clone()), vec![Some(x), Some(weight), bias], y) },
        part(quantize, vec![Some(y), node.input(6), node.input(7)], output),
    ])
}

/// Returns the bias, whose scale is the product of those of input and weights, in floats.
fn float_bias(graph: &Graph, node: &Node, bias: ValueId) -> Option<Vec<f32>> {
    let values = |id: Option<ValueId>| graph.constant(id?).map(|tensor| tensor.to_f64_vec());
    let (input_scale, weight_scales) = (values(node.input(1))?, values(node.input(4))?);
    let input_scale = input_scale.first()?;
    let scale = |channel: usize| weight_scales.get(if weight_scales.len() == 1 { 0 } else { channel });
    let bias = values(Some(bias))?;
    bias.into_iter().enumerate().map(|(channel, value)| Some((value * input_scale * scale(channel)?) as f32)).collect()
}
