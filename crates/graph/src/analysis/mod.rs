//! What a graph tells about itself before it runs: how far an output voxel sees, and how much work it is.

mod reach;

use crate::error::{GraphError, Result};
use crate::graph::{Dim, Graph};
use crate::infer::{Info, infer_shapes};
use crate::op::Op;

pub use reach::{AxisReach, OutputGeometry, ReceptiveField, analyse};

/// How far an output voxel sees along each spatial axis of the first input; see [`analyse`].
///
/// # Errors
/// As [`analyse`].
pub fn receptive_field(graph: &Graph) -> Result<ReceptiveField> {
    analyse(graph).map(|a| a.field)
}

/// Whether a value computed over the whole tile (a mean, a maximum, a softmax) enters an output, so that the result of
/// a tile depends on where the stack was cut and tiles must be blended. Graphs that cannot be analysed count as such.
pub fn normalises_over_tile(graph: &Graph) -> bool {
    analyse(graph).map_or(true, |a| a.normalises)
}

/// Everything [`analyse`] finds.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// How far an output voxel sees.
    pub field: ReceptiveField,
    /// Whether statistics over the tile enter an output.
    pub normalises: bool,
    /// Channels and scale of each output, in the graph's order.
    pub outputs: Vec<OutputGeometry>,
}

/// Multiply-accumulates of convolutions and matrix products for these input lengths.
///
/// # Errors
/// When the lengths do not fit the graph or leave a shape open.
pub fn multiply_accumulates(graph: &Graph, input_shapes: &[(&str, Vec<usize>)]) -> Result<u64> {
    let mut shaped = graph.clone();
    infer_shapes(&mut shaped, input_shapes)?;
    shaped.nodes.iter().try_fold(0u64, |total, node| Ok(total.saturating_add(node_macs(&shaped, node)?)))
}

/// Multiply-accumulates of one node of a graph whose shapes are known: those of convolutions and matrix products, and of their
/// gradients (by each factor that is asked for as many as of the operator itself), else 0.
///
/// # Errors
/// When a shape it needs is open.
pub fn node_macs(shaped: &Graph, node: &crate::Node) -> Result<u64> {
    let shape = |id: Option<crate::ValueId>| -> Result<Vec<u128>> {
        let value = id.map(|id| shaped.value(id));
        let fixed = value.and_then(crate::Value::fixed_shape);
        fixed.map(|s| s.into_iter().map(|n| n as u128).collect()).ok_or_else(|| {
            GraphError::misused("input shapes", format!("\"{}\" stays open", node.name), "concrete lengths")
        })
    };
    let after_first = |s: &[u128]| s.iter().skip(1).product::<u128>();
    let each = |s: &[u128]| s.iter().product::<u128>();
    let total = match &node.op {
        Op::Conv(_) | Op::FusedConv { .. } | Op::ConvInteger(_) => {
            each(&shape(node.output(0))?) * after_first(&shape(node.input(1))?)
        }
        Op::QLinearConv(_) => each(&shape(node.output(0))?) * after_first(&shape(node.input(3))?),
        Op::ConvTranspose(_) => each(&shape(node.input(0))?) * after_first(&shape(node.input(1))?),
        Op::MatMul | Op::MatMulInteger | Op::QLinearMatMul => {
            each(&shape(node.output(0))?) * shape(node.input(0))?.last().copied().unwrap_or(1)
        }
        Op::Gemm { trans_a, .. } => {
            let a = shape(node.input(0))?;
            let inner = if *trans_a { a.first() } else { a.last() };
            each(&shape(node.output(0))?) * inner.copied().unwrap_or(1)
        }
        Op::Vjp(of) => {
            let Some((dy, own)) = node.inputs.split_last() else { return Ok(0) };
            let (inputs, outputs) = (own.to_vec(), vec![*dy]);
            let forward = crate::Node { name: node.name.clone(), op: of.as_ref().clone(), inputs, outputs };
            let factors = node.outputs.iter().take(2).flatten().count();
            u128::from(node_macs(shaped, &forward)?) * factors as u128
        }
        _ => 0,
    };
    Ok(u64::try_from(total).unwrap_or(u64::MAX))
}

/// About how many elementary operations (multiply-accumulates, elements read and moved) one run of a graph of known shapes takes
/// on the reference executor, and the bytes of everything it makes; `None` where a shape is open.
pub fn run_cost(shaped: &Graph) -> Option<(u64, u64)> {
    let info = |id: &crate::ValueId| {
        let value = shaped.value(*id);
        let constant = shaped.constant(*id).filter(|t| t.len() <= 4096);
        Info { dtype: value.dtype, shape: value.shape.clone(), value: constant.cloned() }
    };
    let (mut work, mut bytes) = (0u128, 0u128);
    for node in &shaped.nodes {
        let read: Vec<Option<Info>> = node.inputs.iter().map(|id| id.as_ref().map(info)).collect();
        let read: Vec<Option<&Info>> = read.iter().map(Option::as_ref).collect();
        let made: Vec<Info> = node.outputs.iter().flatten().map(info).collect();
        let (held, operations) = crate::budget::cost(&node.op, &read, &made)?;
        work = work.saturating_add(operations);
        bytes = bytes.saturating_add(held);
    }
    Some((u64::try_from(work).unwrap_or(u64::MAX), u64::try_from(bytes).unwrap_or(u64::MAX)))
}

/// Lengths to try a graph with: fixed ones stay, a free batch or channel is 1, free spatial axes are `length`.
pub(crate) fn probe(shape: &[Dim], length: usize) -> Vec<Dim> {
    let pick = |(axis, d): (usize, &Dim)| Dim::Fixed(d.fixed().unwrap_or(if axis < 2 { 1 } else { length }));
    shape.iter().enumerate().map(pick).collect()
}
