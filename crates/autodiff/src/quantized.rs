//! Quantized networks in the form used for quantization-aware training (QAT).
//!
//! Every pair of `QuantizeLinear` and `DequantizeLinear` becomes one [`Op::FakeQuantize`], and stored int8 weights
//! become floats that are rounded in the forward pass. Gradients pass through the rounding (straight-through
//! estimator), and trained weights are written back to the network as int8, with unchanged scales. The floats are in
//! units of quantization steps, not of weights: equalized channels have weights of very different magnitude, and an
//! optimizer such as Adam would change all of them by the same amount. Biases of int8 convolutions are trained, too, in
//! multiples of the products that they are added to.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::step::set_constant;
use cytoscope_graph::{
    Activation, BinaryOp, ElementType, Graph, GraphError, Node, Op, Result, Tensor, ValueId, op_name,
};
use cytoscope_graph_passes::infer_shapes;

/// A weight stored as int8.
#[derive(Debug, Clone)]
struct StoredWeight {
    /// Name of the int8 constant.
    bytes: String,
    /// Name of the trainable floats, in quantization steps.
    steps: String,
    zero: f64,
    low: f64,
    high: f64,
}

/// The bias of an int8 convolution, which stays a float.
#[derive(Debug, Clone)]
struct ScaledBias {
    /// Name of the bias.
    bias: String,
    /// Name of the trainable floats, in units.
    steps: String,
    /// Unit of each channel: a power of two, so that a bias that is not trained keeps its value exactly.
    units: Vec<f32>,
}

/// Unit of a trainable bias, in products of one step of a weight and one step of an input. As weights, biases then change
/// the output by a small share of its rounding errors in one training step.
const BIAS_UNIT: f32 = 64.0;

/// A quantized network in trainable form.
#[derive(Debug, Clone)]
pub struct FakeQuantized {
    /// The network; it computes the same as the quantized one.
    pub graph: Graph,
    stored: Vec<StoredWeight>,
    biases: Vec<ScaledBias>,
}

/// Constants of a quantize or dequantize node.
struct Parameters {
    /// Size of a quantization step: one for all values, or one for each position along `axis`.
    scales: Vec<f32>,
    axis: usize,
    zero: f64,
    /// Smallest level relative to the zero point.
    low: f64,
    /// Largest level relative to the zero point.
    high: f64,
}

/// Returns the constants of a quantize or dequantize node, whose tensor has `rank` axes and whose integers have the type
/// `bytes`.
///
/// # Errors
/// [`GraphError::Unsupported`] if they are computed at run time, differ between blocks, or do not describe 8 bits.
fn parameters(graph: &Graph, node: &Node, rank: usize, bytes: ElementType) -> Result<Parameters> {
    let unsupported = |what: &str| GraphError::unsupported(format!("training of \"{}\", {what}", node.name));
    let (axis, block) = match node.op {
        Op::QuantizeLinear { axis, block_size, .. } | Op::DequantizeLinear { axis, block_size } => (axis, block_size),
        _ => return Err(unsupported("which is not a quantize or dequantize node")),
    };
    let scales = node.input(1).and_then(|id| graph.constant(id)).and_then(|t| t.as_f32());
    let scales = scales.filter(|s| !s.is_empty() && s.iter().all(|v| v.is_normal() && *v > 0.0));
    let scales = scales.ok_or_else(|| unsupported("whose scale is not a positive constant"))?.to_vec();
    if block > 0 {
        return Err(unsupported("which has one scale per block"));
    }
    let zeros = match node.input(2) {
        None => vec![0.0],
        Some(id) => graph.constant(id).ok_or_else(|| unsupported("whose zero point is not constant"))?.to_f64_vec(),
    };
    let zero = zeros.first().copied().unwrap_or(0.0);
    if zeros.iter().any(|z| *z != zero) {
        return Err(unsupported("whose channels have different zero points"));
    }
    let (min, max) = match bytes {
        ElementType::U8 => (0.0, 255.0),
        ElementType::I8 => (-128.0, 127.0),
        _ => return Err(unsupported("which does not quantize to 8 bits")),
    };
    // Only several scales have an axis, which shape inference has checked.
    let axis = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).unwrap_or(0);
    Ok(Parameters { scales, axis, zero, low: min - zero, high: max - zero })
}

/// Returns the parameters of the node that dequantizes these weights. Symmetric weights use −127 to 127, as the quantizer
/// writes them, unless another program has written −128.
fn weight_parameters(graph: &Graph, node: &Node, rank: usize, bytes: &Tensor) -> Result<Parameters> {
    let found = parameters(graph, node, rank, bytes.dtype())?;
    let is_symmetric =
        bytes.dtype() == ElementType::I8 && found.zero == 0.0 && bytes.to_f64_vec().iter().all(|level| *level > -128.0);
    Ok(if is_symmetric { Parameters { low: -127.0, ..found } } else { found })
}

/// Computes quantized activations in floats: a pair of `QuantizeLinear` and `DequantizeLinear` becomes a clip to the values
/// that its bytes stand for, without their rounding. The limits are part of the network: quantizers leave out a ReLU before
/// bytes that start at 0. A range that is determined at run time limits nothing.
pub(crate) fn dequantize_activations(graph: &mut Graph) {
    let producers = graph.producers();
    let float_node = |node: &Node| -> Option<Node> {
        let Op::DequantizeLinear { .. } = node.op else { return None };
        let quantize = producers.get(&node.input(0)?).and_then(|index| graph.nodes.get(*index))?;
        let op = match quantize.op {
            Op::DynamicQuantizeLinear => Op::Identity,
            Op::QuantizeLinear { to, .. } => {
                let before = parameters(graph, quantize, 0, to).ok()?;
                let after = parameters(graph, node, 0, to).ok()?;
                let [scale] = before.scales[..] else { return None };
                if after.scales != before.scales || after.zero != before.zero {
                    return None;
                }
                let end = |level: f64| (level * f64::from(scale)) as f32;
                Op::Activation(Activation::Clip { min: end(before.low), max: end(before.high) })
            }
            _ => return None,
        };
        Some(Node { name: node.name.clone(), op, inputs: vec![quantize.input(0)], outputs: vec![node.output(0)] })
    };
    let nodes: Vec<Node> = graph.nodes.iter().map(|node| float_node(node).unwrap_or_else(|| node.clone())).collect();
    graph.nodes = nodes;
}

/// Returns the initial value of a weight, in steps: the float from which it was quantized if that is known, otherwise
/// the int8 value.
fn initial_steps(bytes: &Tensor, name: &str, p: &Parameters, floats: &Graph) -> Vec<f32> {
    let float = name.strip_suffix("_quantized").and_then(|n| floats.find(n)).and_then(|id| floats.constant(id));
    let float = float.filter(|t| t.shape() == bytes.shape()).map(|t| t.to_f64_vec()).unwrap_or_default();
    let inner = bytes.shape().iter().skip(p.axis + 1).product::<usize>().max(1);
    let step = |(at, byte): (usize, f64)| {
        let stored = byte - p.zero;
        let scale = p.scales.get(at / inner % p.scales.len().max(1)).copied().unwrap_or(1.0);
        // If the float does not match the int8 value (shifted, or from another network with the same names), the int8
        // value is used.
        let before = float.get(at).map(|v| v / f64::from(scale)).filter(|v| (v - stored).abs() <= 0.5001);
        before.unwrap_or(stored) as f32
    };
    bytes.to_f64_vec().into_iter().enumerate().map(step).collect()
}

/// Returns the trainable floats of an int8 weight that a node reads, in quantization steps: those of an earlier node that reads
/// the same weight, or else new ones, which are added to `stored`.
///
/// # Errors
/// [`GraphError::Unsupported`] if the earlier node reads it with a different zero point.
fn trainable_steps(
    graph: &mut Graph,
    (weight, bytes): (ValueId, &Tensor),
    node: &Node,
    p: &Parameters,
    floats: &Graph,
    stored: &mut BTreeMap<ValueId, StoredWeight>,
) -> Result<ValueId> {
    let known = stored.get(&weight);
    if known.is_some_and(|known| known.zero != p.zero) {
        let what = format!("\"{}\", whose weights another node reads with a different zero point", node.name);
        return Err(GraphError::unsupported(format!("training of {what}")));
    }
    if let Some(steps) = known.and_then(|known| graph.find(&known.steps)) {
        return Ok(steps);
    }
    let name = graph.value(weight).name.clone();
    let values = initial_steps(bytes, &name, p, floats);
    let id = graph.add_initializer(format!("{name}.steps"), Tensor::new(bytes.shape(), values)?);
    let (steps, zero, low, high) = (graph.value(id).name.clone(), p.zero, p.low, p.high);
    stored.insert(weight, StoredWeight { bytes: name, steps, zero, low, high });
    Ok(id)
}

/// Converts a quantized network to trainable form. `floats` is the float network it was made from, which provides the
/// weights before rounding.
///
/// # Errors
/// [`GraphError::Unsupported`] if ranges are determined at run time, scales are per block, weights are read with different
/// zero points, or 8-bit values are used other than by dequantizing them.
pub fn fake_quantized(model: &Graph, floats: &Graph) -> Result<FakeQuantized> {
    let mut graph = model.clone();
    infer_shapes::<ValueId>(&mut graph, &[])?;
    let producers = graph.producers();
    let mut stored: BTreeMap<ValueId, StoredWeight> = BTreeMap::new();
    let mut scales: BTreeMap<ValueId, Vec<f32>> = BTreeMap::new();
    let nodes = std::mem::take(&mut graph.nodes);
    let mut rewritten = Vec::with_capacity(nodes.len());
    for node in &nodes {
        let Op::DequantizeLinear { .. } = node.op else {
            rewritten.push(node.clone());
            continue;
        };
        let (Some(q), Some(y)) = (node.input(0), node.output(0)) else { continue };
        let rank = graph.value(q).shape.as_ref().map_or(0, Vec::len);
        let fake = |p: &Parameters, x: ValueId| Node {
            name: node.name.clone(),
            op: Op::FakeQuantize { scales: p.scales.clone(), axis: p.axis, low: p.low as f32, high: p.high as f32 },
            inputs: vec![Some(x)],
            outputs: vec![Some(y)],
        };
        if let Some(bytes) = graph.constant(q).map(Arc::clone) {
            let p = weight_parameters(&graph, node, rank, &bytes)?;
            let name = graph.value(q).name.clone();
            let from = trainable_steps(&mut graph, (q, bytes.as_ref()), node, &p, floats, &mut stored)?;
            let rounded = graph.add_value(format!("{name}.rounded"), Some(ElementType::F32), None);
            let whole = Parameters { scales: vec![1.0], axis: 0, zero: p.zero, low: p.low, high: p.high };
            rewritten.push(Node { outputs: vec![Some(rounded)], ..fake(&whole, from) });
            let mut shape = vec![1; rank];
            if let Some(n) = shape.get_mut(p.axis).filter(|_| p.scales.len() > 1) {
                *n = p.scales.len();
            }
            scales.insert(y, p.scales.clone());
            let scale = graph.add_initializer(format!("{name}.step"), Tensor::new(shape, p.scales)?);
            rewritten.push(Node {
                name: format!("{name}.scaled"),
                op: Op::Binary(BinaryOp::Mul),
                inputs: vec![Some(rounded), Some(scale)],
                outputs: vec![Some(y)],
            });
            continue;
        }
        let producer = producers.get(&q).and_then(|i| nodes.get(*i));
        let Some((producer, Op::QuantizeLinear { to, .. })) = producer.map(|producer| (producer, &producer.op)) else {
            let what = format!("\"{}\", which dequantizes a value not quantized with a fixed scale", node.name);
            return Err(GraphError::unsupported(format!("training of {what}")));
        };
        let (before, after) = (parameters(&graph, producer, rank, *to)?, parameters(&graph, node, rank, *to)?);
        if before.scales != after.scales || before.zero != after.zero {
            return Err(GraphError::unsupported(format!(
                "training of \"{}\", whose scale differs from that of its quantize node",
                node.name
            )));
        }
        let Some(x) = producer.input(0) else { continue };
        rewritten.push(fake(&before, x));
        scales.insert(y, before.scales);
    }
    graph.nodes = rewritten;
    let biases = scale_biases(&mut graph, &scales)?;
    cytoscope_graph_passes::eliminate_dead(&mut graph);
    if let Some(left) = graph.nodes.iter().find(|n| n.op.is_quantized_op()) {
        let what = format!("\"{}\" ({}), which computes with bytes", left.name, op_name(&left.op));
        return Err(GraphError::unsupported(format!("training of {what}")));
    }
    infer_shapes::<ValueId>(&mut graph, &[])?;
    graph.validate()?;
    Ok(FakeQuantized { graph, stored: stored.into_values().collect(), biases })
}

/// Makes the biases of int8 convolutions trainable: each becomes a product of trainable floats and constant units. `scales`
/// are those of the dequantized values. A bias that several nodes read stays as it is.
fn scale_biases(graph: &mut Graph, scales: &BTreeMap<ValueId, Vec<f32>>) -> Result<Vec<ScaledBias>> {
    let mut scaled = Vec::new();
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for mut node in graph.nodes.clone() {
        if let Some((id, units)) = bias_units(graph, &node, scales) {
            let bias = graph.value(id).name.clone();
            let values = graph.constant(id).map(|t| t.to_f64_vec()).unwrap_or_default();
            let values: Vec<f32> = values.iter().zip(&units).map(|(value, unit)| *value as f32 / unit).collect();
            let from = graph.add_initializer(format!("{bias}.bias_steps"), Tensor::vector(values));
            let steps = graph.value(from).name.clone();
            let unit = graph.add_initializer(format!("{bias}.unit"), Tensor::vector(units.clone()));
            let product = graph.add_value(format!("{bias}.scaled"), Some(ElementType::F32), None);
            nodes.push(Node {
                name: format!("{bias}.scaled"),
                op: Op::Binary(BinaryOp::Mul),
                inputs: vec![Some(from), Some(unit)],
                outputs: vec![Some(product)],
            });
            if let Some(input) = node.inputs.get_mut(2) {
                *input = Some(product);
            }
            scaled.push(ScaledBias { bias, steps, units });
        }
        nodes.push(node);
    }
    graph.nodes = nodes;
    Ok(scaled)
}

/// Returns the bias of an int8 convolution and the unit of each of its values; `None` if it is not trained.
fn bias_units(graph: &Graph, node: &Node, scales: &BTreeMap<ValueId, Vec<f32>>) -> Option<(ValueId, Vec<f32>)> {
    if !matches!(node.op, Op::Conv(_)) {
        return None;
    }
    let ([input], weights) = (&scales.get(&node.input(0)?)?[..], scales.get(&node.input(1)?)?) else { return None };
    let id = node.input(2)?;
    let bias = graph.constant(id).filter(|t| t.dtype() == ElementType::F32 && t.rank() == 1)?;
    let readers = graph.nodes.iter().flat_map(|n| n.inputs.iter().flatten()).filter(|read| **read == id).count();
    if readers != 1 || graph.outputs.contains(&id) || !(weights.len() == 1 || weights.len() == bias.len()) {
        return None;
    }
    let unit = |channel: usize| {
        let weight = weights.get(channel).or_else(|| weights.first())?;
        let unit = 2f32.powi((BIAS_UNIT * weight * input).log2().round() as i32);
        unit.is_normal().then_some(unit)
    };
    Some((id, (0..bias.len()).map(unit).collect::<Option<_>>()?))
}

impl FakeQuantized {
    /// Returns the names of the trainable floats: rounded weights, in quantization steps, and biases, in their units.
    pub fn steps(&self) -> Vec<String> {
        let weights = self.stored.iter().map(|weight| weight.steps.clone());
        weights.chain(self.biases.iter().map(|bias| bias.steps.clone())).collect()
    }

    /// Writes trained weights back to the quantized network: int8 weights, biases, and other float parameters by name.
    ///
    /// # Errors
    /// [`GraphError::Misused`] if `trained` or `model` is a different network.
    pub fn write_back(&self, trained: &Graph, model: &mut Graph) -> Result<()> {
        for weight in &self.stored {
            let values = trained.find(&weight.steps).and_then(|id| trained.constant(id));
            let missing = || GraphError::misused("weights", "none", format!("\"{}\"", weight.steps));
            let values = values.ok_or_else(missing)?;
            let steps = values.to_f64_vec().into_iter();
            let steps = steps.map(|v| v.round_ties_even().clamp(weight.low, weight.high) + weight.zero);
            let steps: Vec<f64> = steps.collect();
            let dtype = model.find(&weight.bytes).and_then(|id| model.constant(id)).map(|t| t.dtype());
            let bytes = Tensor::new(values.shape(), steps)?.cast(dtype.ok_or_else(missing)?);
            set_constant(model, &weight.bytes, bytes)?;
        }
        for scaled in &self.biases {
            let values = trained.find(&scaled.steps).and_then(|id| trained.constant(id)).and_then(|t| t.as_f32());
            let missing = || GraphError::misused("biases", "none", format!("\"{}\"", scaled.steps));
            let values = values.filter(|values| values.len() == scaled.units.len()).ok_or_else(missing)?;
            let values: Vec<f32> = values.iter().zip(&scaled.units).map(|(value, unit)| value * unit).collect();
            set_constant(model, &scaled.bias, Tensor::vector(values))?;
        }
        let floats: Vec<(String, Tensor)> = trained
            .initializers
            .iter()
            .filter(|(_, t)| t.dtype() == ElementType::F32)
            .map(|(id, t)| (trained.value(*id).name.clone(), t.as_ref().clone()))
            .filter(|(name, t)| {
                let known = model.find(name).and_then(|id| model.constant(id));
                known.is_some_and(|k| k.shape() == t.shape() && k.dtype() == t.dtype())
            })
            .collect();
        for (name, value) in floats {
            set_constant(model, &name, value)?;
        }
        Ok(())
    }
}
