//! Quantized networks in the form in which they are taught.
//!
//! Every pair of `QuantizeLinear` and `DequantizeLinear` becomes one [`Op::FakeQuantize`], and stored bytes of weights become floats
//! that are rounded on the way to their layer. So gradients go through (straight-through estimator), and what is learnt goes back
//! into the network as bytes, with the scales it had. Those floats count in steps, not in weights: channels that were made alike
//! have weights of very different size, and a rule such as Adam moves all of them by as much.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::step::set_constant;
use crate::error::{GraphError, Result};
use crate::graph::{Graph, Node, ValueId};
use crate::infer::infer_shapes;
use crate::op::{BinaryOp, Op};
use crate::passes;
use crate::tensor::{ElementType, Tensor};

/// A weight that is kept as bytes.
#[derive(Debug, Clone)]
struct Stored {
    /// Name of the bytes.
    bytes: String,
    /// Name of the floats they are made of, in steps.
    steps: String,
    zero: f64,
    low: f64,
    high: f64,
}

/// A quantized network to be taught.
#[derive(Debug, Clone)]
pub struct FakeQuantized {
    /// The network; it computes what the quantized one does.
    pub graph: Graph,
    stored: Vec<Stored>,
}

/// Scales, axis, zero point and the least and greatest step counted from it, of a node that quantizes or dequantizes.
struct Parameters {
    scales: Vec<f32>,
    axis: usize,
    zero: f64,
    low: f64,
    high: f64,
}

fn parameters(graph: &Graph, node: &Node, rank: usize, bytes: ElementType) -> Result<Parameters> {
    let unfit = |what: &str| GraphError::unsupported(format!("teaching \"{}\", {what}", node.name));
    let (axis, block) = match node.op {
        Op::QuantizeLinear { axis, block_size, .. } | Op::DequantizeLinear { axis, block_size } => (axis, block_size),
        _ => return Err(unfit("which quantizes nothing")),
    };
    let scales = node.input(1).and_then(|id| graph.constant(id)).and_then(|t| t.as_f32());
    let scales = scales.filter(|s| !s.is_empty() && s.iter().all(|v| v.is_normal() && *v > 0.0));
    let scales = scales.ok_or_else(|| unfit("whose scale is not a constant above 0"))?.to_vec();
    if block > 0 {
        return Err(unfit("whose scales go by blocks"));
    }
    let zeros = match node.input(2) {
        None => vec![0.0],
        Some(id) => graph.constant(id).ok_or_else(|| unfit("whose zero point is no constant"))?.to_f64_vec(),
    };
    let zero = zeros.first().copied().unwrap_or(0.0);
    if zeros.iter().any(|z| *z != zero) {
        return Err(unfit("whose channels have several zero points"));
    }
    let (least, greatest) = match bytes {
        ElementType::U8 => (0.0, 255.0),
        // Symmetric weights keep to -127, as the quantizer writes them.
        ElementType::I8 if zero == 0.0 => (-127.0, 127.0),
        ElementType::I8 => (-128.0, 127.0),
        _ => return Err(unfit("which holds other than bytes")),
    };
    let axis = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).unwrap_or(0);
    Ok(Parameters { scales, axis, zero, low: least - zero, high: greatest - zero })
}

/// Where a weight begins: at the float it was rounded from, where that is known, else at its byte.
fn beginning(bytes: &Tensor, name: &str, p: &Parameters, floats: &Graph) -> Vec<f32> {
    let own = name.strip_suffix("_quantized").and_then(|n| floats.find(n)).and_then(|id| floats.constant(id));
    let own = own.filter(|t| t.shape() == bytes.shape()).map(|t| t.to_f64_vec()).unwrap_or_default();
    let inner = bytes.shape().iter().skip(p.axis + 1).product::<usize>().max(1);
    let step = |(at, byte): (usize, f64)| {
        let stored = byte - p.zero;
        let scale = p.scales.get(at / inner % p.scales.len().max(1)).copied().unwrap_or(1.0);
        // Bytes whose floats are others (shifted, or of another network of the same names) stay as they are.
        let before = own.get(at).map(|v| v / f64::from(scale)).filter(|v| (v - stored).abs() <= 0.5001);
        before.unwrap_or(stored) as f32
    };
    bytes.to_f64_vec().into_iter().enumerate().map(step).collect()
}

/// The form of a quantized network in which it is taught. `floats` is the network it was made of: weights begin at what they were
/// before they were rounded.
///
/// # Errors
/// [`GraphError::UnsupportedOp`] if ranges are found while the network runs, go by blocks, or bytes are computed with otherwise than
/// by dequantizing them.
pub fn fake_quantized(model: &Graph, floats: &Graph) -> Result<FakeQuantized> {
    let mut graph = model.clone();
    infer_shapes::<ValueId>(&mut graph, &[])?;
    let producers = graph.producers();
    let mut stored: BTreeMap<ValueId, Stored> = BTreeMap::new();
    let nodes = std::mem::take(&mut graph.nodes);
    let mut made = Vec::with_capacity(nodes.len());
    for node in &nodes {
        let Op::DequantizeLinear { .. } = node.op else {
            made.push(node.clone());
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
            let p = parameters(&graph, node, rank, bytes.dtype())?;
            let name = graph.value(q).name.clone();
            let from = match stored.get(&q).and_then(|known| graph.find(&known.steps)) {
                Some(from) => from,
                None => {
                    let steps = format!("{name}.steps");
                    let values = beginning(&bytes, &name, &p, floats);
                    let id = graph.add_initializer(steps.clone(), Tensor::new(bytes.shape(), values)?);
                    let (zero, low, high) = (p.zero, p.low, p.high);
                    stored.insert(q, Stored { bytes: name.clone(), steps, zero, low, high });
                    id
                }
            };
            let rounded = graph.add_value(format!("{name}.rounded"), Some(ElementType::F32), None);
            let whole = Parameters { scales: vec![1.0], axis: 0, zero: p.zero, low: p.low, high: p.high };
            made.push(Node { outputs: vec![Some(rounded)], ..fake(&whole, from) });
            let mut shape = vec![1; rank];
            if let Some(n) = shape.get_mut(p.axis).filter(|_| p.scales.len() > 1) {
                *n = p.scales.len();
            }
            let scale = graph.add_initializer(format!("{name}.step"), Tensor::new(shape, p.scales)?);
            made.push(Node {
                name: format!("{name}.scaled"),
                op: Op::Binary(BinaryOp::Mul),
                inputs: vec![Some(rounded), Some(scale)],
                outputs: vec![Some(y)],
            });
            continue;
        }
        let maker = producers.get(&q).and_then(|i| nodes.get(*i));
        let Some(Node { op: Op::QuantizeLinear { to, .. }, .. }) = maker else {
            let what = format!("\"{}\", which dequantizes what is not quantized with a fixed scale", node.name);
            return Err(GraphError::unsupported(format!("teaching {what}")));
        };
        let (Some(maker), to) = (maker, *to) else { continue };
        let (before, after) = (parameters(&graph, maker, rank, to)?, parameters(&graph, node, rank, to)?);
        if before.scales != after.scales || before.zero != after.zero {
            return Err(GraphError::unsupported(format!(
                "teaching \"{}\", which dequantizes with another scale than it was quantized with",
                node.name
            )));
        }
        let Some(x) = maker.input(0) else { continue };
        made.push(fake(&before, x));
    }
    graph.nodes = made;
    passes::eliminate_dead(&mut graph);
    if let Some(left) = graph.nodes.iter().find(|n| n.op.is_of_bytes()) {
        let what = format!("\"{}\" ({}), which computes with bytes", left.name, crate::op_name(&left.op));
        return Err(GraphError::unsupported(format!("teaching {what}")));
    }
    infer_shapes::<ValueId>(&mut graph, &[])?;
    graph.validate()?;
    Ok(FakeQuantized { graph, stored: stored.into_values().collect() })
}

impl FakeQuantized {
    /// Names of the weights that are rounded, as they are taught: in steps.
    pub fn steps(&self) -> Vec<String> {
        self.stored.iter().map(|s| s.steps.clone()).collect()
    }

    /// Puts what was learnt into the quantized network this was made of: bytes of weights, and floats under their names.
    ///
    /// # Errors
    /// [`GraphError::Misused`] if `taught` or `model` is another network.
    pub fn put(&self, taught: &Graph, model: &mut Graph) -> Result<()> {
        for weight in &self.stored {
            let values = taught.find(&weight.steps).and_then(|id| taught.constant(id));
            let missing = || GraphError::misused("weights", "none", format!("\"{}\"", weight.steps));
            let values = values.ok_or_else(missing)?;
            let steps = values.to_f64_vec().into_iter();
            let steps = steps.map(|v| v.round_ties_even().clamp(weight.low, weight.high) + weight.zero);
            let steps: Vec<f64> = steps.collect();
            let dtype = model.find(&weight.bytes).and_then(|id| model.constant(id)).map(|t| t.dtype());
            let made = Tensor::new(values.shape(), steps)?.cast(dtype.ok_or_else(missing)?);
            set_constant(model, &weight.bytes, made)?;
        }
        let floats: Vec<(String, Tensor)> = taught
            .initializers
            .iter()
            .filter(|(_, t)| t.dtype() == ElementType::F32)
            .map(|(id, t)| (taught.value(*id).name.clone(), t.as_ref().clone()))
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
