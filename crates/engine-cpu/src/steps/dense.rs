//! Steps between dense tensors and slots, and operators without a kernel.

use super::optimizer;
use crate::context::{Context, StepError, bytes, bytes_mut, find_tensor, for_each_image};
use crate::step::{Elem, StepOp};
use cytoscope_graph::{Graph, GraphError, Tensor, ValueId};
use cytoscope_kernels::reorder;
use std::borrow::Cow;

/// Copies a dense tensor into a slot.
#[derive(Debug)]
pub(crate) struct Pack {
    /// Dense value that is read, N, C and then the axes of space.
    pub from: ValueId,
    /// Slot that is written.
    pub to: usize,
}

impl StepOp for Pack {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let to = context.slot(self.to)?;
        let tensor = find_tensor(context.graph, &context.dense, self.from)?;
        let per_image = to.layout.channels * to.layout.voxels();
        let range = |image: usize| image * per_image..(image + 1) * per_image;
        if let Elem::U8 { zero_point } = to.elem {
            // Signed bytes are stored with an offset of 128.
            let signed: Option<Vec<u8>> = tensor.as_i8().map(|v| v.iter().map(|v| (*v as u8) ^ 0x80).collect());
            let values = signed.as_deref().or(tensor.as_u8()).ok_or(StepError::ElementType(self.from))?;
            return for_each_image(context.arena, &to, |image, target, _| {
                let source = values.get(range(image)).ok_or(StepError::Length(self.from))?;
                reorder::pack(source, &to.layout, zero_point, bytes_mut(target, to.layout.len()))?;
                Ok(())
            });
        }
        let values = tensor.as_f32().ok_or(StepError::ElementType(self.from))?;
        for_each_image(context.arena, &to, |image, target, _| {
            let source = values.get(range(image)).ok_or(StepError::Length(self.from))?;
            reorder::pack(source, &to.layout, 0.0, target)?;
            Ok(())
        })
    }

    fn dense_inputs(&self, _graph: &Graph) -> Vec<ValueId> {
        vec![self.from]
    }
}

/// Copies a slot into a dense tensor.
#[derive(Debug)]
pub(crate) struct Unpack {
    /// Slot that is read.
    pub from: usize,
    /// Dense value that is written.
    pub to: ValueId,
    /// Shape of the dense tensor, batch included.
    pub shape: Vec<usize>,
    /// Whether the tensor's elements are signed bytes.
    pub signed: bool,
}

impl StepOp for Unpack {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let from = context.slot(self.from)?;
        let per_image = from.layout.channels * from.layout.voxels();
        let tensor = if let Elem::U8 { .. } = from.elem {
            let mut values = vec![0u8; per_image * from.images];
            for (image, target) in values.chunks_exact_mut(per_image.max(1)).enumerate() {
                let source = context.image(&from, image)?;
                reorder::unpack(bytes(source, from.layout.len()), &from.layout, target)?;
            }
            let back = |values: Vec<u8>| values.into_iter().map(|v| (v ^ 0x80) as i8).collect::<Vec<i8>>();
            let shape = self.shape.clone();
            if self.signed { Tensor::new(shape, back(values))? } else { Tensor::new(shape, values)? }
        } else {
            let mut values = vec![0.0f32; per_image * from.images];
            for (image, target) in values.chunks_exact_mut(per_image.max(1)).enumerate() {
                reorder::unpack(context.image(&from, image)?, &from.layout, target)?;
            }
            Tensor::new(self.shape.clone(), values)?
        };
        context.dense.insert(self.to, Cow::Owned(tensor));
        Ok(())
    }

    fn dense_outputs(&self, _graph: &Graph) -> Vec<ValueId> {
        vec![self.to]
    }
}

/// Fills the border of a slot with zeros before its first use.
#[derive(Debug)]
pub(crate) struct ClearBorder {
    /// Slot whose border is filled, with the zero point if it holds bytes.
    pub slot: usize,
}

impl StepOp for ClearBorder {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let to = context.slot(self.slot)?;
        for_each_image(context.arena, &to, |_, target, _| {
            match to.elem {
                Elem::U8 { zero_point } => {
                    reorder::clear_border(&to.layout, zero_point, bytes_mut(target, to.layout.len()))?;
                }
                Elem::F32 => reorder::clear_border(&to.layout, 0.0, target)?,
                // No kernel reads the border of 16-bit floats.
                Elem::F16 => {}
            }
            Ok(())
        })
    }
}

/// Runs a node on dense tensors: an optimizer with its kernel, other operators with the reference executor.
#[derive(Debug)]
pub(crate) struct Reference {
    /// Index of the node.
    pub node: usize,
}

impl StepOp for Reference {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let node = context.graph.nodes.get(self.node).ok_or(StepError::MissingNode(self.node))?;
        let inputs: Vec<Option<&Tensor>> =
            node.inputs.iter().map(|id| id.map(|id| context.tensor(id)).transpose()).collect::<Result<_, _>>()?;
        let results = match (optimizer::run(context.isa, &node.op, &inputs), context.dense_bytes) {
            (Some(results), _) => results?,
            (None, None) => cytoscope_reference::eval(&node.op, &inputs, node.outputs.len())?,
            (None, Some(limit)) => {
                let held = context.dense.values().fold(0u64, |t, d| t.saturating_add(d.size_bytes()));
                let remaining = limit.saturating_sub(held);
                cytoscope_reference::eval_within(&node.op, &inputs, node.outputs.len(), remaining)
                    .map_err(out_of_memory)?
            }
        };
        for (id, tensor) in node.outputs.iter().zip(results) {
            if let Some(id) = id {
                context.dense.insert(*id, Cow::Owned(tensor));
            }
        }
        Ok(())
    }

    fn dense_inputs(&self, graph: &Graph) -> Vec<ValueId> {
        graph.nodes.get(self.node).map_or_else(Vec::new, |n| n.inputs.iter().flatten().copied().collect())
    }

    fn dense_outputs(&self, graph: &Graph) -> Vec<ValueId> {
        graph.nodes.get(self.node).map_or_else(Vec::new, |n| n.outputs.iter().flatten().copied().collect())
    }
}

/// Turns the reference executor's memory limit error into an out-of-memory error.
fn out_of_memory(error: GraphError) -> StepError {
    match error {
        GraphError::OverLimit { limit: cytoscope_reference::MEMORY, requested, allowed, .. } => {
            StepError::OutOfMemory {
                needed_bytes: u64::try_from(requested).unwrap_or(u64::MAX),
                available_bytes: u64::try_from(allowed).unwrap_or(u64::MAX),
            }
        }
        other => other.into(),
    }
}
