//! Convolutions that can be quantized, and the reasons why others cannot.

use cytoscope_graph::{ElementType, Graph, Node, Op, ValueId};

/// A convolution, plain or transposed, with constant weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Name of the convolution's node.
    pub name: String,
    /// Index of the convolution among the nodes of the graph.
    pub node: usize,
    /// Tensor that the layer convolves.
    pub input: ValueId,
    /// Weights: `[out, in / group, …]`, transposed ones `[in, out / group, …]`.
    pub weight: ValueId,
    /// Tensor that the layer computes.
    pub output: ValueId,
    /// Whether it is a transposed convolution.
    pub transposed: bool,
    /// Number of groups of the convolution; equal to the channels if it is depthwise.
    pub group: usize,
}

impl Layer {
    /// Returns the axis of the weights that has one scale per entry: the output channels.
    pub fn weight_axis(&self) -> usize {
        usize::from(self.transposed)
    }
}

/// The convolutions of a graph.
#[derive(Debug, Clone, Default)]
pub struct QuantizableLayers {
    /// Convolutions that can be quantized, in the graph's order.
    pub layers: Vec<Layer>,
    /// Names of the other layers, each with the reason.
    pub excluded: Vec<(String, String)>,
}

/// Collects the convolutions of a graph.
pub fn quantizable_layers(graph: &Graph) -> QuantizableLayers {
    let mut found = QuantizableLayers::default();
    for (index, node) in graph.nodes.iter().enumerate() {
        match quantizable_layer(graph, index, node) {
            None => {}
            Some(Ok(layer)) => found.layers.push(layer),
            Some(Err(why)) => found.excluded.push((node.name.clone(), why)),
        }
    }
    found
}

fn quantizable_layer(graph: &Graph, index: usize, node: &Node) -> Option<Result<Layer, String>> {
    let (transposed, group) = match &node.op {
        Op::Conv(a) => (false, a.group),
        Op::ConvTranspose(a) => (true, a.group),
        Op::FusedConv { .. } => return Some(Err("it is fused with the following node".to_owned())),
        Op::MatMul | Op::Gemm { .. } => return Some(Err("matrix products stay in float".to_owned())),
        _ => return None,
    };
    let (Some(input), Some(weight), Some(output)) = (node.input(0), node.input(1), node.output(0)) else {
        return Some(Err("an input or output is missing".to_owned()));
    };
    let Some(tensor) = graph.constant(weight) else {
        return Some(Err("its weights are not constant".to_owned()));
    };
    if tensor.dtype() != ElementType::F32 {
        return Some(Err(format!("its weights are {}", tensor.dtype())));
    }
    if tensor.as_f32().is_some_and(|v| v.is_empty() || v.iter().any(|w| !w.is_finite())) {
        return Some(Err("its weights are empty or not finite".to_owned()));
    }
    if graph.constant(input).is_some() {
        return Some(Err("its input is constant".to_owned()));
    }
    Some(Ok(Layer { name: node.name.clone(), node: index, input, weight, output, transposed, group }))
}
