//! Quantization: a float graph becomes one of standard ONNX `QuantizeLinear` / `DequantizeLinear` nodes.
//!
//! Weights of convolutions become signed bytes, symmetric, one scale an output channel; what they read becomes unsigned bytes
//! with one scale and zero point a tensor. Everything else (normalizations, activations, residual sums, biases) stays in
//! floats. One tensor is quantized once, whoever reads it; what only moves values (`Concat` of channels, `MaxPool`, nearest
//! `Resize`) on the way to a quantized convolution shares its scale with what it moves ([`Group`]), so that an engine moves
//! bytes there. Ranges come from whoever calibrates; [`equalize`] makes channels alike before.

mod equalize;
mod groups;
mod layers;
mod write;

use std::collections::BTreeSet;

use crate::error::{GraphError, Result};
use crate::graph::{Graph, ValueId};
use crate::infer::infer_shapes;
use crate::passes;

pub use equalize::{Domain, domains};
pub use groups::{Group, groups};
pub use layers::{Layer, Survey, survey};
pub use write::{QuantizedWeight, quantize_weight, shift_bias};

/// The values that a quantized tensor holds: 255 steps between the two ends, one of which is exactly 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantRange {
    /// Value of one step.
    pub scale: f32,
    /// The step that stands for 0.
    pub zero_point: u8,
}

impl QuantRange {
    /// The 8-bit range that holds `min` to `max`, widened to hold 0 and moved so that 0 is a step of its own:
    /// scale = (max − min) / 255, zero point = round(−min / scale).
    ///
    /// # Errors
    /// [`GraphError::Misused`] if an end is not finite or they are the wrong way round.
    pub fn of(min: f32, max: f32) -> Result<Self> {
        if !(min.is_finite() && max.is_finite() && min <= max && (max - min).is_finite()) {
            return Err(GraphError::misused(
                "range of a tensor",
                format!("{min} to {max}"),
                "two finite ends, in order",
            ));
        }
        let (min, max) = (f64::from(min.min(0.0)), f64::from(max.max(0.0)));
        let scale = ((max - min) / 255.0) as f32;
        if !scale.is_normal() {
            // All values are 0, or so near to it that no step can be written down.
            return Ok(Self { scale: 1.0, zero_point: 0 });
        }
        let zero_point = (-min / f64::from(scale)).round_ties_even().clamp(0.0, 255.0) as u8;
        Ok(Self { scale, zero_point })
    }

    /// Least and greatest value it holds.
    pub fn ends(self) -> (f32, f32) {
        let zero = f32::from(self.zero_point);
        (-zero * self.scale, (255.0 - zero) * self.scale)
    }
}

/// How what convolutions read is quantized.
pub enum Activations<'a> {
    /// With ranges known beforehand, one a group.
    Static(&'a dyn Fn(&Group) -> Result<QuantRange>),
    /// With the range each tensor has while the model runs (`DynamicQuantizeLinear`).
    Dynamic,
}

/// A copy of `graph` as it can be quantized: copies taken out, constants and batch norms folded, nodes under unique names.
/// Nothing is fused, as the result is written to a file.
///
/// # Errors
/// [`GraphError::NothingToQuantize`] if it is quantized already or has no convolution with constant weights; whatever folding
/// and shape inference refuse.
pub fn prepare(graph: &Graph) -> Result<Graph> {
    if is_quantized(graph) {
        return Err(GraphError::NothingToQuantize {
            why: "it is quantized already: give the network in floats".to_owned(),
        });
    }
    let mut graph = graph.clone();
    infer_shapes::<ValueId>(&mut graph, &[])?;
    passes::eliminate_identity(&mut graph);
    passes::fold_constants(&mut graph)?;
    passes::fold_batch_norm(&mut graph)?;
    passes::eliminate_dead(&mut graph);
    infer_shapes::<ValueId>(&mut graph, &[])?;
    let mut taken = BTreeSet::new();
    for (index, node) in graph.nodes.iter_mut().enumerate() {
        if node.name.is_empty() || taken.contains(&node.name) {
            node.name =
                format!("{}_{}_{index}", node.name, crate::op_name(&node.op)).trim_start_matches('_').to_owned();
        }
        taken.insert(node.name.clone());
    }
    let survey = survey(&graph);
    if survey.layers.is_empty() {
        let reasons: Vec<String> = survey.left.iter().take(3).map(|(name, why)| format!("{name}: {why}")).collect();
        let why = match reasons.as_slice() {
            [] => "it has no convolution".to_owned(),
            some => format!("none of its convolutions can be quantized ({})", some.join("; ")),
        };
        return Err(GraphError::NothingToQuantize { why });
    }
    Ok(graph)
}

/// Whether a graph holds quantized values already.
pub fn is_quantized(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| n.op.is_of_bytes())
}

/// The quantized form of a prepared graph. Layers named in `keep_float` stay as they are.
///
/// # Errors
/// [`GraphError::Misused`] if a name is none of a layer, or a range is asked for that cannot be given;
/// [`GraphError::NothingToQuantize`] if every layer is kept.
pub fn quantize(graph: &Graph, activations: &Activations<'_>, keep_float: &BTreeSet<String>) -> Result<Graph> {
    let found = survey(graph);
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
        return Err(GraphError::NothingToQuantize { why: "every layer is to be kept in float".to_owned() });
    }
    let mut quantized = match activations {
        Activations::Static(range) => {
            let groups = groups(graph, &layers);
            let ranges = groups.iter().map(range).collect::<Result<Vec<_>>>()?;
            write::statically(graph, &layers, &groups, &ranges)?
        }
        Activations::Dynamic => write::dynamically(graph, &layers)?,
    };
    passes::eliminate_dead(&mut quantized);
    quantized.validate()?;
    Ok(quantized)
}
