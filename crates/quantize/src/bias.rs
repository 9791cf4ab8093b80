//! Bias correction: quantizing weights and inputs shifts the mean of a layer's output, and an adjusted bias compensates
//! for it (Nagel et al. 2019).

use crate::observe::{Runner, floats};
use cytoscope_graph::{Graph, Op, Tensor, ValueId};
use cytoscope_graph_passes::quantize::{Layer, shift_bias};
use cytoscope_pipeline::{CalibrationTile, JobError};
use std::collections::BTreeSet;

/// Number of tiles that means are computed from.
const TILES: usize = 4;

/// Returns whether a layer's bias affects the result: an instance normalization right after it removes any constant.
fn bias_matters(float: &Graph, layer: &Layer) -> bool {
    let mut readers = float.nodes.iter().filter(|n| n.inputs.contains(&Some(layer.output))).peekable();
    float.outputs.contains(&layer.output)
        || readers.peek().is_none()
        || readers.any(|n| !matches!(n.op, Op::InstanceNormalization { .. }))
}

/// Returns a copy of the quantized graph with the biases of these layers corrected one after the other, and the names
/// of the corrected layers; `None` if no bias needs correction.
pub(super) fn corrected(
    runner: &Runner<'_>,
    float: &Graph,
    quantized: &Graph,
    layers: &[Layer],
    tiles: &[CalibrationTile],
) -> Result<Option<(Graph, Vec<String>)>, JobError> {
    let tiles = tiles.get(..TILES.min(tiles.len())).unwrap_or_default();
    let mut graph = quantized.clone();
    let mut names = Vec::new();
    for layer in layers.iter().filter(|l| bias_matters(float, l)) {
        let (expected, got) = (means(runner, float, layer.output, tiles)?, means(runner, &graph, layer.output, tiles)?);
        let shift: Vec<f32> = expected.iter().zip(&got).map(|(e, g)| (e - g) as f32).collect();
        if shift.iter().any(|s| !s.is_finite()) || shift.iter().all(|s| *s == 0.0) {
            continue;
        }
        shift_bias(&mut graph, &layer.name, &shift)?;
        names.push(layer.name.clone());
    }
    Ok((!names.is_empty()).then_some((graph, names)))
}

/// Returns the mean of each channel of a tensor over the tiles.
fn means(runner: &Runner<'_>, graph: &Graph, id: ValueId, tiles: &[CalibrationTile]) -> Result<Vec<f64>, JobError> {
    let mut sums: Vec<f64> = Vec::new();
    let mut count = 0usize;
    runner.visit(graph, &BTreeSet::from([id]), tiles, |_, _, tensor: &Tensor| {
        let channels = tensor.shape().get(1).copied().unwrap_or(1).max(1);
        let plane = tensor.shape().iter().skip(2).product::<usize>().max(1);
        sums.resize(channels, 0.0);
        for (i, voxels) in floats(graph, id, tensor)?.chunks(plane).enumerate() {
            if let Some(sum) = sums.get_mut(i % channels) {
                *sum += voxels.iter().map(|v| f64::from(*v)).sum::<f64>();
            }
        }
        count += tensor.len() / channels;
        Ok(())
    })?;
    sums.iter_mut().for_each(|s| *s /= count.max(1) as f64);
    Ok(sums)
}
