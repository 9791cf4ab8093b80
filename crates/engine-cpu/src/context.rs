//! The parts of a run that a step has access to: memory, and the program's tables.

use crate::split::Split;
use crate::step::{Elem, Slot};
use cytoscope_engine::{DeviceId, EngineError};
use cytoscope_graph::{Graph, GraphError, Tensor, ValueId};
use cytoscope_kernels::conv::{Quantizer, Target};
use cytoscope_kernels::norm::Moments;
use cytoscope_kernels::{Isa, KernelError};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Why a step failed. All but a lack of memory and an operator's own error are bugs in the lowering.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// A slot index is outside the slot table.
    #[error("missing slot {0}")]
    MissingSlot(usize),
    /// A step that reads planes side by side has a slot whose planes lie in a ring.
    #[error("planes of slot {0} in a ring")]
    Ring(usize),
    /// A dense tensor has not been computed, or was freed too early.
    #[error("missing tensor of value {}", .0.0)]
    MissingTensor(ValueId),
    /// A dense tensor does not have the element type that the step reads.
    #[error("tensor of value {} has another element type", .0.0)]
    ElementType(ValueId),
    /// A dense tensor has fewer images than its slot.
    #[error("tensor of value {} is too short", .0.0)]
    Length(ValueId),
    /// A value has no fixed shape.
    #[error("unknown shape of value {}", .0.0)]
    UnknownShape(ValueId),
    /// A node index is outside the graph.
    #[error("missing node {0}")]
    MissingNode(usize),
    /// Mean and variance have not been computed.
    #[error("missing moments {0}")]
    MissingMoments(usize),
    /// A run-time quantization has not been computed.
    #[error("missing run-time quantization {0}")]
    MissingRange(usize),
    /// A buffer of bytes is written without a quantizer.
    #[error("missing quantizer")]
    MissingQuantizer,
    /// An optimizer lacks a tensor of its state.
    #[error("missing optimizer state")]
    MissingState,
    /// A range is outside the arena, or is read while it is written.
    #[error("buffers overlap")]
    Overlap,
    /// A kernel refused its arguments.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The reference executor failed.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The reference executor needs more memory than is left.
    #[error("out of memory")]
    OutOfMemory {
        /// Bytes that the operator needs.
        needed_bytes: u64,
        /// Bytes that are left.
        available_bytes: u64,
    },
}

impl StepError {
    /// Returns the error that the caller of the engine gets if the step named `name` fails.
    pub(crate) fn at(self, name: &str) -> EngineError {
        match self {
            Self::Graph(error) => error.into(),
            Self::OutOfMemory { needed_bytes, available_bytes } => {
                EngineError::OutOfMemory { device: DeviceId::Cpu, needed_bytes, available_bytes }
            }
            other => EngineError::Internal { place: name.to_owned(), reason: other.to_string().into() },
        }
    }
}

/// Result of a step, or of a part of one.
pub(crate) type StepResult<T> = Result<T, StepError>;

/// Slots that a step reads and writes.
pub(crate) struct Context<'a> {
    /// Instruction set whose kernels the steps run.
    pub isa: Isa,
    /// The lowered graph, with its constants.
    pub graph: &'a Graph,
    /// Slot table of the program; steps name a slot by its index.
    pub slots: Cow<'a, [Slot]>,
    /// Blocked values, in 32-bit words.
    pub arena: &'a mut [f32],
    /// Dense values; those of the graph's inputs belong to the caller.
    pub dense: BTreeMap<ValueId, Cow<'a, Tensor>>,
    /// Moments by index, for each image or once for the whole batch.
    pub moments: Vec<Vec<Moments>>,
    /// Scale and zero point of each run-time quantization, once computed.
    pub ranges: Vec<Option<(f32, u8)>>,
    /// Memory limit of dense values and the reference executor in bytes; `None` for the reference executor's own limit.
    pub dense_bytes: Option<u64>,
}

impl Context<'_> {
    /// Returns a slot whose planes lie side by side.
    pub(crate) fn slot(&self, index: usize) -> StepResult<Slot> {
        let slot = self.window_slot(index)?;
        if slot.ring_first.is_some() { Err(StepError::Ring(index)) } else { Ok(slot) }
    }

    /// Returns the slot that a convolution's window moves over: its planes may lie in a ring.
    pub(crate) fn window_slot(&self, index: usize) -> StepResult<Slot> {
        self.slots.get(index).copied().ok_or(StepError::MissingSlot(index))
    }

    /// Returns the words of one image of a slot.
    pub(crate) fn image(&self, slot: &Slot, image: usize) -> StepResult<&[f32]> {
        self.arena.get(slot.range(image)).ok_or(StepError::Overlap)
    }

    /// Returns a dense value or a constant.
    pub(crate) fn tensor(&self, id: ValueId) -> StepResult<&Tensor> {
        find_tensor(self.graph, &self.dense, id)
    }

    /// Returns the elements of a dense value or a constant of type f32.
    pub(crate) fn floats(&self, id: ValueId) -> StepResult<&[f32]> {
        self.tensor(id)?.as_f32().ok_or(StepError::ElementType(id))
    }

    /// Stores a dense result in the shape of a value.
    pub(crate) fn store(&mut self, id: ValueId, values: Vec<f32>) -> StepResult<()> {
        let shape = self.graph.value(id).fixed_shape().ok_or(StepError::UnknownShape(id))?;
        self.dense.insert(id, Cow::Owned(Tensor::new(shape, values)?));
        Ok(())
    }

    pub(crate) fn store_moments(&mut self, at: usize, image_moments: Vec<Moments>) -> StepResult<()> {
        *self.moments.get_mut(at).ok_or(StepError::MissingMoments(at))? = image_moments;
        Ok(())
    }

    /// Returns scale and zero point of a run-time quantization.
    pub(crate) fn range(&self, at: usize) -> StepResult<(f32, u8)> {
        self.ranges.get(at).copied().flatten().ok_or(StepError::MissingRange(at))
    }
}

/// Returns a dense value or a constant. Unlike [`Context::tensor`], leaves the arena free to be written.
pub(crate) fn find_tensor<'a>(
    graph: &'a Graph,
    dense: &'a BTreeMap<ValueId, Cow<'_, Tensor>>,
    id: ValueId,
) -> StepResult<&'a Tensor> {
    let constant = || graph.constant(id).map(|t| t.as_ref());
    dense.get(&id).map(|t| &**t).or_else(constant).ok_or(StepError::MissingTensor(id))
}

/// Runs `f(image, target, split)` for each image of a slot that is written: `target` is the image's words, `split` the
/// readable rest of the arena.
pub(crate) fn for_each_image(
    arena: &mut [f32],
    to: &Slot,
    mut f: impl FnMut(usize, &mut [f32], &Split<'_>) -> StepResult<()>,
) -> StepResult<()> {
    for image in 0..to.images {
        let (split, target) = Split::new(arena, to.range(image)).ok_or(StepError::Overlap)?;
        f(image, target, &split)?;
    }
    Ok(())
}

/// Views 32-bit words as bytes and returns the first `len`.
pub(crate) fn bytes(words: &[f32], len: usize) -> &[u8] {
    let all: &[u8] = bytemuck::cast_slice(words);
    &all[..len.min(all.len())]
}

/// Like [`bytes`], for writing.
pub(crate) fn bytes_mut(words: &mut [f32], len: usize) -> &mut [u8] {
    let all: &mut [u8] = bytemuck::cast_slice_mut(words);
    let len = len.min(all.len());
    &mut all[..len]
}

/// Views 32-bit words as 16-bit floats and returns the first `len`.
pub(crate) fn halves(words: &[f32], len: usize) -> &[u16] {
    let all: &[u16] = bytemuck::cast_slice(words);
    &all[..len.min(all.len())]
}

/// Views 32-bit words as the element type of a slot.
pub(crate) fn target<'a>(words: &'a mut [f32], slot: &Slot, quantizer: Option<Quantizer>) -> StepResult<Target<'a>> {
    let len = slot.layout.len();
    Ok(match slot.elem {
        Elem::F32 => Target::F32(words),
        Elem::F16 => {
            let all: &mut [u16] = bytemuck::cast_slice_mut(words);
            let len = len.min(all.len());
            Target::F16(&mut all[..len])
        }
        Elem::U8 { .. } => Target::U8(bytes_mut(words, len), quantizer.ok_or(StepError::MissingQuantizer)?),
    })
}
