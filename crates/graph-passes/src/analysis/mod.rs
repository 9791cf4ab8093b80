//! Static analysis of a graph: receptive field, independence of samples, and amount of computation.

mod batch;
mod receptive_field;

use crate::infer_shapes;
use cytoscope_graph::infer::Info;
use cytoscope_graph::{Dim, Graph, GraphError, Node, Op, Result, Value, ValueId, operator_cost};

pub use batch::samples_are_independent;
pub use receptive_field::{AxisReach, OutputGeometry, ReceptiveField, analyze};

/// Returns the receptive field along each spatial axis of the first input; see [`analyze`].
///
/// # Errors
/// Same as [`analyze`].
pub fn receptive_field(graph: &Graph) -> Result<ReceptiveField> {
    analyze(graph).map(|a| a.field)
}

/// Whether an output depends on a value computed over the whole tile (a mean, a maximum, a softmax), so that the result
/// depends on the tile positions and tiles must be blended. Returns true for graphs that cannot be analyzed.
pub fn depends_on_tile_statistics(graph: &Graph) -> bool {
    analyze(graph).map_or(true, |a| a.normalizes)
}

/// Properties of a network that decide how it is tiled, as [`analyze`] returns them.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// Receptive field of an output voxel.
    pub field: ReceptiveField,
    /// Whether an output depends on statistics over the tile.
    pub normalizes: bool,
    /// Channels and scale of each output, in the graph's order.
    pub outputs: Vec<OutputGeometry>,
}

/// Returns the multiply-accumulates of convolutions and matrix products for these input shapes.
///
/// # Errors
/// If the shapes do not fit the graph or leave another shape unknown.
pub fn multiply_accumulates(graph: &Graph, input_shapes: &[(&str, Vec<usize>)]) -> Result<u64> {
    let mut shaped = graph.clone();
    infer_shapes(&mut shaped, input_shapes)?;
    shaped.nodes.iter().try_fold(0u64, |total, node| Ok(total.saturating_add(node_macs(&shaped, node)?)))
}

/// Returns the multiply-accumulates of one node of a graph with known shapes: those of convolutions, matrix products
/// and their gradients (for each requested gradient, as many as the operator itself); 0 for others.
///
/// # Errors
/// If a required shape is unknown.
pub fn node_macs(shaped: &Graph, node: &Node) -> Result<u64> {
    let shape = |id: Option<ValueId>| -> Result<Vec<u128>> {
        let value = id.map(|id| shaped.value(id));
        let fixed = value.and_then(Value::fixed_shape);
        fixed.map(|s| s.into_iter().map(|n| n as u128).collect()).ok_or_else(|| {
            GraphError::misused("input shapes", format!("\"{}\" remains unknown", node.name), "concrete lengths")
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
            let forward = Node { name: node.name.clone(), op: of.as_ref().clone(), inputs, outputs };
            let factors = node.outputs.iter().take(2).flatten().count();
            u128::from(node_macs(shaped, &forward)?) * factors as u128
        }
        _ => 0,
    };
    Ok(u64::try_from(total).unwrap_or(u64::MAX))
}

/// Returns the approximate number of elementary operations (multiply-accumulates, elements read and moved) of one run
/// of a graph with known shapes on the reference executor, and the bytes of all values it computes; `None` if a shape
/// is unknown.
pub fn run_cost(shaped: &Graph) -> Option<(u64, u64)> {
    let info = |id: &ValueId| {
        let value = shaped.value(*id);
        let constant = shaped.constant(*id).filter(|t| t.len() <= 4096);
        Info { dtype: value.dtype, shape: value.shape.clone(), value: constant.cloned() }
    };
    let (mut work, mut bytes) = (0u128, 0u128);
    for node in &shaped.nodes {
        let read: Vec<Option<Info>> = node.inputs.iter().map(|id| id.as_ref().map(info)).collect();
        let read: Vec<Option<&Info>> = read.iter().map(Option::as_ref).collect();
        let outputs: Vec<Info> = node.outputs.iter().flatten().map(info).collect();
        let (held, operations) = operator_cost(&node.op, &read, &outputs)?;
        work = work.saturating_add(operations);
        bytes = bytes.saturating_add(held);
    }
    Some((u64::try_from(work).unwrap_or(u64::MAX), u64::try_from(bytes).unwrap_or(u64::MAX)))
}

/// Returns trial lengths for a graph input: fixed ones stay, a free batch or channel becomes 1, free spatial axes
/// become `length`.
pub(crate) fn probe(shape: &[Dim], length: usize) -> Vec<Dim> {
    let pick = |(axis, d): (usize, &Dim)| Dim::Fixed(d.fixed().unwrap_or(if axis < 2 { 1 } else { length }));
    shape.iter().enumerate().map(pick).collect()
}
