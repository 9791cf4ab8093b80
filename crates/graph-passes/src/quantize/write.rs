//! Insertion of quantize and dequantize nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::QuantRange;
use super::groups::{Group, moved_inputs};
use super::layers::Layer;
use cytoscope_graph::{ElementType, GRAPH_OPSET, Graph, GraphError, Node, Op, Result, Tensor, ValueId};

/// Largest quantized weight: the range is symmetric, so −128 is not used.
const MAX_LEVEL: f32 = 127.0;

/// A weight quantized to int8.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedWeight {
    /// Quantized values, in the shape of the weight.
    pub values: Tensor,
    /// One scale per entry of the quantized axis.
    pub scales: Vec<f32>,
}

/// Quantizes a weight symmetrically, with scale max |w| / 127 for each entry of `axis`.
///
/// # Errors
/// [`GraphError::Misused`] if the weight is not f32 or has no such axis.
pub fn quantize_weight(weight: &Tensor, axis: usize) -> Result<QuantizedWeight> {
    let wrong =
        || GraphError::misused("weight", format!("{:?} {}", weight.shape(), weight.dtype()), "float32 with channels");
    let values = weight.as_f32().ok_or_else(wrong)?;
    let length = weight.shape().get(axis).copied().filter(|n| *n > 0).ok_or_else(wrong)?;
    let inner: usize = weight.shape().iter().skip(axis + 1).product();
    let channel = |i: usize| i / inner.max(1) % length;
    let mut largest = vec![0.0f32; length];
    for (i, v) in values.iter().enumerate() {
        if let Some(m) = largest.get_mut(channel(i)) {
            *m = m.max(v.abs());
        }
    }
    let scales: Vec<f32> =
        largest.into_iter().map(|m| m / MAX_LEVEL).map(|s| if s.is_normal() { s } else { 1.0 }).collect();
    let steps = values.iter().enumerate().map(|(i, v)| {
        let scale = scales.get(channel(i)).copied().unwrap_or(1.0);
        (v / scale).round_ties_even().clamp(-MAX_LEVEL, MAX_LEVEL) as i8
    });
    Ok(QuantizedWeight { values: Tensor::new(weight.shape(), steps.collect::<Vec<i8>>())?, scales })
}

/// A graph being rewritten.
struct Writer {
    graph: Graph,
    nodes: Vec<Node>,
    /// Dequantized counterpart of each quantized tensor.
    dequantized: BTreeMap<ValueId, ValueId>,
    /// Dequantized counterpart of each weight, by weight and axis.
    weights: BTreeMap<(ValueId, usize), ValueId>,
}

impl Writer {
    fn new(graph: &Graph) -> Self {
        let mut graph = graph.clone();
        let nodes = std::mem::take(&mut graph.nodes);
        let capacity = nodes.len() * 3;
        Self { graph, nodes: Vec::with_capacity(capacity), dequantized: BTreeMap::new(), weights: BTreeMap::new() }
    }

    fn like(&mut self, value: ValueId, suffix: &str, dtype: ElementType) -> ValueId {
        let (name, shape) =
            (format!("{}_{suffix}", self.graph.value(value).name), self.graph.value(value).shape.clone());
        self.graph.add_value(name, Some(dtype), shape)
    }

    fn name(&self, id: ValueId) -> String {
        self.graph.value(id).name.clone()
    }

    fn push_node(&mut self, name: String, op: Op, inputs: &[ValueId], outputs: &[ValueId]) {
        let some = |ids: &[ValueId]| ids.iter().copied().map(Some).collect();
        self.nodes.push(Node { name, op, inputs: some(inputs), outputs: some(outputs) });
    }

    /// Quantizes and dequantizes a tensor with fixed parameters.
    fn quantize_static(&mut self, id: ValueId, scale: ValueId, zero: ValueId) {
        let q = self.like(id, "quantized", ElementType::U8);
        let dq = self.like(id, "dequantized", ElementType::F32);
        let name = self.name(id);
        let quantize = Op::QuantizeLinear { axis: 1, block_size: 0, to: ElementType::U8 };
        self.push_node(format!("{name}_quantize"), quantize, &[id, scale, zero], &[q]);
        let dequantize = Op::DequantizeLinear { axis: 1, block_size: 0 };
        self.push_node(format!("{name}_dequantize"), dequantize, &[q, scale, zero], &[dq]);
        self.dequantized.insert(id, dq);
    }

    /// Quantizes and dequantizes a tensor with its range at run time.
    fn quantize_dynamic(&mut self, id: ValueId) {
        let q = self.like(id, "quantized", ElementType::U8);
        let dq = self.like(id, "dequantized", ElementType::F32);
        let name = self.name(id);
        let scale = self.graph.add_value(format!("{name}_scale"), Some(ElementType::F32), Some(Vec::new()));
        let zero = self.graph.add_value(format!("{name}_zero_point"), Some(ElementType::U8), Some(Vec::new()));
        self.push_node(format!("{name}_quantize"), Op::DynamicQuantizeLinear, &[id], &[q, scale, zero]);
        let dequantize = Op::DequantizeLinear { axis: 1, block_size: 0 };
        self.push_node(format!("{name}_dequantize"), dequantize, &[q, scale, zero], &[dq]);
        self.dequantized.insert(id, dq);
    }

    /// Returns the dequantized weight of a layer; the quantized weight is stored as an initializer.
    fn weight(&mut self, layer: &Layer) -> Result<ValueId> {
        let axis = layer.weight_axis();
        if let Some(dequantized) = self.weights.get(&(layer.weight, axis)) {
            return Ok(*dequantized);
        }
        let tensor = self.graph.constant(layer.weight).map(Arc::clone);
        let tensor =
            tensor.ok_or_else(|| GraphError::malformed(format!("the weights of \"{}\" are missing", layer.name)))?;
        let QuantizedWeight { values, scales } = quantize_weight(&tensor, axis)?;
        let name = self.name(layer.weight);
        let zeros = vec![0i8; scales.len()];
        let q = self.graph.add_initializer(format!("{name}_quantized"), values);
        let scale = self.graph.add_initializer(format!("{name}_scale"), Tensor::vector(scales));
        let zero = self.graph.add_initializer(format!("{name}_zero_point"), Tensor::vector(zeros));
        let dq = self.like(layer.weight, "dequantized", ElementType::F32);
        let op = Op::DequantizeLinear { axis: axis as i64, block_size: 0 };
        self.push_node(format!("{name}_dequantize"), op, &[q, scale, zero], &[dq]);
        self.weights.insert((layer.weight, axis), dq);
        Ok(dq)
    }

    /// Makes a node read the dequantized counterparts of its inputs.
    fn read_dequantized(&self, node: &mut Node) {
        for id in node.inputs.iter_mut().flatten() {
            if let Some(dq) = self.dequantized.get(id) {
                *id = *dq;
            }
        }
    }

    fn layer(&mut self, layer: &Layer, node: &mut Node) -> Result<()> {
        let weight = self.weight(layer)?;
        if let Some(first) = node.inputs.first_mut() {
            *first = self.dequantized.get(&layer.input).copied().or(*first);
        }
        if let Some(second) = node.inputs.get_mut(1) {
            *second = Some(weight);
        }
        Ok(())
    }

    fn finish(mut self) -> Graph {
        self.graph.nodes = self.nodes;
        self.graph.opset = GRAPH_OPSET;
        self.graph
    }
}

/// Quantizes with calibrated ranges: `ranges` has one entry per group.
pub(super) fn quantize_static(
    graph: &Graph,
    layers: &[Layer],
    groups: &[Group],
    ranges: &[QuantRange],
) -> Result<Graph> {
    let mut writer = Writer::new(graph);
    let mut parameters: BTreeMap<ValueId, (ValueId, ValueId)> = BTreeMap::new();
    let mut moved: BTreeSet<ValueId> = BTreeSet::new();
    for (group, range) in groups.iter().zip(ranges) {
        let Some(first) = group.tensors().next() else { continue };
        let name = writer.name(first);
        let scale = writer.graph.add_initializer(format!("{name}_scale"), Tensor::scalar(range.scale));
        let zero = writer.graph.add_initializer(format!("{name}_zero_point"), Tensor::scalar(range.zero_point));
        parameters.extend(group.tensors().map(|id| (id, (scale, zero))));
        moved.extend(&group.moved);
    }
    let by_node: BTreeMap<usize, &Layer> = layers.iter().map(|l| (l.node, l)).collect();
    for &input in &graph.inputs {
        if let Some(&(scale, zero)) = parameters.get(&input) {
            writer.quantize_static(input, scale, zero);
        }
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut node = node.clone();
        if let Some(layer) = by_node.get(&index) {
            writer.layer(layer, &mut node)?;
        } else if node.output(0).is_some_and(|id| moved.contains(&id)) && moved_inputs(graph, &node).is_some() {
            writer.read_dequantized(&mut node);
        }
        let outputs: Vec<ValueId> = node.outputs.iter().flatten().copied().collect();
        writer.nodes.push(node);
        for id in outputs {
            if let Some(&(scale, zero)) = parameters.get(&id) {
                writer.quantize_static(id, scale, zero);
            }
        }
    }
    Ok(writer.finish())
}

/// Quantizes with the range of each tensor at run time.
pub(super) fn quantize_dynamic(graph: &Graph, layers: &[Layer]) -> Result<Graph> {
    let mut writer = Writer::new(graph);
    let by_node: BTreeMap<usize, &Layer> = layers.iter().map(|l| (l.node, l)).collect();
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut node = node.clone();
        if let Some(layer) = by_node.get(&index) {
            if !writer.dequantized.contains_key(&layer.input) {
                writer.quantize_dynamic(layer.input);
            }
            writer.layer(layer, &mut node)?;
        }
        writer.nodes.push(node);
    }
    Ok(writer.finish())
}

/// Adds `shift` to the bias of a layer, one number per output channel; a layer without a bias gets one.
///
/// # Errors
/// [`GraphError::Misused`] if no convolution has this name or the number of output channels differs.
pub fn shift_bias(graph: &mut Graph, layer: &str, shift: &[f32]) -> Result<()> {
    let found = graph.nodes.iter().position(|n| n.name == layer && matches!(n.op, Op::Conv(_) | Op::ConvTranspose(_)));
    let wrong = |got: String| GraphError::misused(format!("bias of \"{layer}\""), got, "one number per output channel");
    let index = found.ok_or_else(|| wrong("no such layer".to_owned()))?;
    let old = graph.nodes.get(index).and_then(|n| n.input(2));
    let bias: Vec<f32> = match old {
        None => shift.to_vec(),
        Some(id) => {
            let held = graph.constant(id).and_then(|t| t.as_f32()).filter(|b| b.len() == shift.len());
            let held = held.ok_or_else(|| wrong(format!("{} numbers", shift.len())))?;
            held.iter().zip(shift).map(|(b, s)| b + s).collect()
        }
    };
    set_bias(graph, index, Tensor::vector(bias));
    crate::eliminate_dead(graph);
    Ok(())
}

/// Copies the int8 weights and the biases of convolutions from one quantized network to another one made from the same
/// float network, by the names of their nodes. A convolution that is in float in either network is left as it is.
///
/// # Errors
/// [`GraphError::Misused`] if weights of the same name differ in shape.
pub fn copy_int8_layers(from: &Graph, to: &mut Graph) -> Result<()> {
    let (from_producers, to_producers) = (from.producers(), to.producers());
    let stored = |graph: &Graph, producers: &BTreeMap<ValueId, usize>, node: &Node| -> Option<ValueId> {
        let dequantize = producers.get(&node.input(1)?).and_then(|index| graph.nodes.get(*index))?;
        let weight = dequantize.input(0).filter(|_| matches!(dequantize.op, Op::DequantizeLinear { .. }))?;
        graph.constant(weight).map(|_| weight)
    };
    let by_name: BTreeMap<&str, &Node> = from.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    let mut weights: Vec<(ValueId, Arc<Tensor>)> = Vec::new();
    let mut biases: Vec<(usize, Arc<Tensor>)> = Vec::new();
    for (index, node) in to.nodes.iter().enumerate().filter(|(_, n)| matches!(n.op, Op::Conv(_) | Op::ConvTranspose(_)))
    {
        let Some(source) = by_name.get(node.name.as_str()) else { continue };
        let (Some(copied), Some(replaced)) = (stored(from, &from_producers, source), stored(to, &to_producers, node))
        else {
            continue;
        };
        if let (Some(new), Some(old)) = (from.constant(copied), to.constant(replaced)) {
            if new.shape() != old.shape() || new.dtype() != old.dtype() {
                let shown = |tensor: &Tensor| format!("{:?} {}", tensor.shape(), tensor.dtype());
                return Err(GraphError::misused(format!("weights of \"{}\"", node.name), shown(new), shown(old)));
            }
            weights.push((replaced, Arc::clone(new)));
        }
        let own = node.input(2).and_then(|id| to.constant(id));
        let bias = source.input(2).and_then(|id| from.constant(id));
        if let Some(bias) = bias.filter(|bias| own != Some(*bias)) {
            biases.push((index, Arc::clone(bias)));
        }
    }
    for (id, value) in weights {
        to.initializers.insert(id, value);
    }
    for (index, value) in biases {
        set_bias(to, index, value.as_ref().clone());
    }
    crate::eliminate_dead(to);
    Ok(())
}

/// Gives the convolution at this index among the nodes a bias that no other node reads.
fn set_bias(graph: &mut Graph, index: usize, bias: Tensor) {
    let name = graph.nodes.get(index).map_or_else(String::new, |node| format!("{}_corrected_bias", node.name));
    let bias = graph.add_initializer(name, bias);
    if let Some(node) = graph.nodes.get_mut(index) {
        node.inputs.resize(node.inputs.len().max(3), None);
        if let Some(slot) = node.inputs.get_mut(2) {
            *slot = Some(bias);
        }
    }
}
