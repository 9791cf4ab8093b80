//! Joining all outputs of a network into one output with the channels of all.

use crate::analysis::analyze;
use cytoscope_graph::{ElementType, Graph, GraphError, Op, Result, ValueId};

/// Replaces the outputs of a network by one, whose channels (axis 1) are those of the outputs in their order. A network with
/// one output stays as it is.
///
/// # Errors
/// [`GraphError::Unsupported`] if outputs differ in their lengths relative to the input, or have elements other than f32; also
/// as [`analyze`].
pub fn join_outputs(graph: &mut Graph) -> Result<()> {
    if graph.outputs.len() < 2 {
        return Ok(());
    }
    let outputs = analyze(graph)?.outputs;
    if let Some((first, others)) = outputs.split_first()
        && let Some(other) = others.iter().find(|other| other.scale != first.scale)
    {
        let what = format!("the output \"{}\" with lengths that differ from those of \"{}\"", other.name, first.name);
        return Err(GraphError::unsupported(what));
    }
    for &id in &graph.outputs {
        let value = graph.value(id);
        if let Some(dtype) = value.dtype.filter(|dtype| *dtype != ElementType::F32) {
            let what =
                format!("the output \"{}\" of {} beside other outputs: expected float32", value.name, dtype.name());
            return Err(GraphError::unsupported(what));
        }
    }
    let inputs: Vec<Option<ValueId>> = graph.outputs.iter().copied().map(Some).collect();
    let joined = graph.push("outputs", Op::concat(1), &inputs);
    graph.outputs = vec![joined];
    Ok(())
}
