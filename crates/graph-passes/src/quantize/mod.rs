//! Quantization: converts a float graph to standard ONNX `QuantizeLinear` / `DequantizeLinear` nodes.
//!
//! Weights of convolutions become int8, symmetric, with one scale per output channel; their inputs become uint8 with
//! one scale and zero point per tensor. Everything else (normalizations, activations, residual sums, biases) stays in
//! floats. A tensor is quantized once for all its readers. Operators that only move values (concatenation of channels,
//! max pooling, nearest resizing) before a quantized convolution share the scale of their inputs ([`Group`]), so that an
//! engine moves bytes there. The caller provides the calibrated ranges; [`equalize`] can balance the channels
//! in advance.

mod equalize;
mod groups;
mod layers;
mod write;

use std::collections::BTreeSet;

use crate::infer_shapes;
use cytoscope_graph::{Graph, GraphError, Op, Result, ValueId, op_name};

pub use equalize::{Domain, domains};
pub use groups::{Group, groups};
pub use layers::{Layer, QuantizableLayers, quantizable_layers};
pub use write::{QuantizedWeight, copy_int8_layers, quantize_weight, shift_bias};

/// Range of an asymmetric 8-bit tensor: 255 steps from minimum to maximum, with 0 represented exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantRange {
    /// Difference in value between neighboring integers.
    pub scale: f32,
    /// Quantized value that represents 0.
    pub zero_point: u8,
}

impl QuantRange {
    /// Returns the 8-bit range of `min` to `max`, widened to include 0 and shifted so that 0 is represented exactly:
    /// scale = (max − min) / 255, zero point = round(−min / scale).
    ///
    /// # Errors
    /// [`GraphError::Misused`] if an end is not finite or `min` exceeds `max`.
    pub fn of(min: f32, max: f32) -> Result<Self> {
        if !(min.is_finite() && max.is_finite() && min <= max && (max - min).is_finite()) {
            return Err(GraphError::misused(
                "range of a tensor",
                format!("{min} to {max}"),
                "finite values with minimum ≤ maximum",
            ));
        }
        let (min, max) = (f64::from(min.min(0.0)), f64::from(max.max(0.0)));
        let scale = ((max - min) / 255.0) as f32;
        if !scale.is_normal() {
            // All values are 0 or too close to 0 for a normal step size.
            return Ok(Self { scale: 1.0, zero_point: 0 });
        }
        let zero_point = (-min / f64::from(scale)).round_ties_even().clamp(0.0, 255.0) as u8;
        Ok(Self { scale, zero_point })
    }

    /// Returns the smallest and largest representable value.
    pub fn ends(self) -> (f32, f32) {
        let zero = f32::from(self.zero_point);
        (-zero * self.scale, (255.0 - zero) * self.scale)
    }
}

/// How the inputs of convolutions are quantized.
pub enum Activations<'a> {
    /// With calibrated ranges, one per group.
    Static(&'a dyn Fn(&Group) -> Result<QuantRange>),
    /// With the range of each tensor at run time (`DynamicQuantizeLinear`).
    Dynamic,
}

/// Returns a copy of `graph` prepared for quantization: identities removed, constants and batch norms folded, node
/// names unique. Nothing is fused, because the result is written to a file.
///
/// # Errors
/// [`GraphError::NothingToQuantize`] if the graph is already quantized or has no convolution with constant weights;
/// errors of constant folding and shape inference.
pub fn prepare(graph: &Graph) -> Result<Graph> {
    if is_quantized(graph) {
        return Err(GraphError::NothingToQuantize {
            why: "the network is already quantized: pass the float network".to_owned(),
        });
    }
    let mut graph = graph.clone();
    infer_shapes::<ValueId>(&mut graph, &[])?;
    crate::eliminate_identity(&mut graph);
    crate::fold_constants(&mut graph)?;
    crate::fold_batch_norm(&mut graph)?;
    crate::eliminate_dead(&mut graph);
    infer_shapes::<ValueId>(&mut graph, &[])?;
    let mut used_names = BTreeSet::new();
    for (index, node) in graph.nodes.iter_mut().enumerate() {
        if node.name.is_empty() || used_names.contains(&node.name) {
            node.name = format!("{}_{}_{index}", node.name, op_name(&node.op)).trim_start_matches('_').to_owned();
        }
        used_names.insert(node.name.clone());
    }
    let found = quantizable_layers(&graph);
    if found.layers.is_empty() {
        let reasons: Vec<String> = found.excluded.iter().take(3).map(|(name, why)| format!("{name}: {why}")).collect();
        let why = match reasons.as_slice() {
            [] => "the network has no convolution".to_owned(),
            some => format!("none of its convolutions can be quantized ({})", some.join("; ")),
        };
        return Err(GraphError::NothingToQuantize { why });
    }
    Ok(graph)
}

/// Whether a graph already contains quantized values.
pub fn is_quantized(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| n.op.is_quantized_op())
}

/// Whether a convolution reads quantized values and weights, so that engines can run it on bytes.
pub fn has_quantized_layers(graph: &Graph) -> bool {
    let producers = graph.producers();
    let is_dequantized = |id: Option<ValueId>| {
        let producer = id.and_then(|id| producers.get(&id)).and_then(|index| graph.nodes.get(*index));
        producer.is_some_and(|node| matches!(node.op, Op::DequantizeLinear { .. }))
    };
    graph.nodes.iter().any(|node| {
        matches!(node.op, Op::Conv(_) | Op::ConvTranspose(_))
            && is_dequantized(node.input(0))
            && is_dequantized(node.input(1))
    })
}

/// Returns the quantized form of a prepared graph. Layers named in `keep_float` are not quantized.
///
/// # Errors
/// [`GraphError::Misused`] if a name does not belong to a layer; [`GraphError::NothingToQuantize`] if every layer is
/// kept in float; errors of the range callback.
pub fn quantize(graph: &Graph, activations: &Activations<'_>, keep_float: &BTreeSet<String>) -> Result<Graph> {
    let found = quantizable_layers(graph);
    if let Some(unknown) = keep_float.iter().find(|k| found.layers.iter().all(|l| l.name != **k)) {
        let names: Vec<&str> = found.layers.iter().map(|l| l.name.as_str()).collect();
        return Err(GraphError::misused(
            "layer to keep in float",
            format!("\"{unknown}\""),
            format!("one of {}", names.join(", ")),
        ));
    }
    let layers: Vec<Layer> = found.layers.into_iter().filter(|l| !keep_float.contains(&l.name)).collect();
    if layers.is_empty() {
        return Err(GraphError::NothingToQuantize { why: "every layer is kept in float".to_owned() });
    }
    let mut quantized = match activations {
        Activations::Static(range) => {
            let groups = groups(graph, &layers);
            let ranges = groups.iter().map(range).collect::<Result<Vec<_>>>()?;
            write::quantize_static(graph, &layers, &groups, &ranges)?
        }
        Activations::Dynamic => write::quantize_dynamic(graph, &layers)?,
    };
    crate::eliminate_dead(&mut quantized);
    quantized.validate()?;
    Ok(quantized)
}
