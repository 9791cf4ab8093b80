//! Which layers can be quantized, and why the others cannot.

use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::tensor::ElementType;

/// A convolution, plain or transposed, whose weights are constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// The node's name.
    pub name: String,
    /// Its place among the nodes.
    pub node: usize,
    /// What it convolves.
    pub input: ValueId,
    /// Its weights: `[out, in / group, …]`, transposed ones `[in, out / group, …]`.
    pub weight: ValueId,
    /// What it makes.
    pub output: ValueId,
    /// Whether it is a transposed convolution.
    pub transposed: bool,
    /// Groups of channels.
    pub group: usize,
}

impl Layer {
    /// The axis of the weights along which each entry has a scale of its own: the output channels.
    pub fn weight_axis(&self) -> usize {
        usize::from(self.transposed)
    }
}

/// The convolutions of a graph.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Those that can be quantized, in the graph's order.
    pub layers: Vec<Layer>,
    /// Names of the others, each with the reason.
    pub left: Vec<(String, String)>,
}

/// Looks at every convolution.
pub fn survey(graph: &Graph) -> Survey {
    let mut survey = Survey::default();
    for (index, node) in graph.nodes.iter().enumerate() {
        match look(graph, index, node) {
            None => {}
            Some(Ok(layer)) => survey.layers.push(layer),
            Some(Err(why)) => survey.left.push((node.name.clone(), why)),
        }
    }
    survey
}

fn look(graph: &Graph, index: usize, node: &Node) -> Option<Result<Layer, String>> {
    let (transposed, group) = match &node.op {
        Op::Conv(a) => (false, a.group),
        Op::ConvTranspose(a) => (true, a.group),
        Op::FusedConv { .. } => return Some(Err("it is fused with what follows".to_owned())),
        Op::MatMul | Op::Gemm { .. } => return Some(Err("matrix products stay in floats".to_owned())),
        _ => return None,
    };
    let (Some(input), Some(weight), Some(output)) = (node.input(0), node.input(1), node.output(0)) else {
        return Some(Err("it lacks an input or an output".to_owned()));
    };
    let Some(tensor) = graph.constant(weight) else {
        return Some(Err("its weights are worked out while the model runs".to_owned()));
    };
    if tensor.dtype() != ElementType::F32 {
        return Some(Err(format!("its weights are {}", tensor.dtype())));
    }
    if tensor.as_f32().is_some_and(|v| v.is_empty() || v.iter().any(|w| !w.is_finite())) {
        return Some(Err("its weights are empty or not finite".to_owned()));
    }
    if graph.constant(input).is_some() {
        return Some(Err("what it reads is constant".to_owned()));
    }
    Some(Ok(Layer { name: node.name.clone(), node: index, input, weight, output, transposed, group }))
}
