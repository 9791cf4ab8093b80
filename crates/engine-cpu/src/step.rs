//! The steps a graph is lowered to, and the slots that they read and write.

use crate::context::{Context, StepError};
use cytoscope_graph::{Graph, ValueId};
use cytoscope_kernels::Blocked;
use cytoscope_profile::OperatorPrecision;
use std::fmt::Debug;
use std::ops::Range;

/// Element type of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Elem {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Unsigned bytes with a zero point.
    U8 {
        /// The byte that represents 0.
        zero_point: u8,
    },
}

impl Elem {
    pub(crate) fn size_bytes(self) -> usize {
        match self {
            Elem::F32 => 4,
            Elem::F16 => 2,
            Elem::U8 { .. } => 1,
        }
    }

    /// Returns how many 32-bit words `len` elements occupy.
    pub(crate) fn words(self, len: usize) -> usize {
        len.saturating_mul(self.size_bytes()).div_ceil(size_of::<f32>())
    }
}

/// A blocked value in the arena; positions are in 32-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Layout of one image of the batch.
    pub layout: Blocked,
    /// Type of the stored elements.
    pub elem: Elem,
    /// Number of images in the batch.
    pub images: usize,
    /// First word of the first image.
    pub start: usize,
    /// Words from one image to the next.
    pub image_stride: usize,
    /// For planes of a ring, the position of the first: the layout is that of the whole ring, and after its last plane, the
    /// first one follows. Only convolutions read such planes.
    pub ring_first: Option<usize>,
}

impl Slot {
    /// Returns the words of one image.
    pub fn range(&self, image: usize) -> Range<usize> {
        let start = self.start + image * self.image_stride;
        start..start + self.elem.words(self.layout.len())
    }
}

/// An operation of a program; slots are indices into the program's slot table.
pub(crate) trait StepOp: Debug + Send + Sync {
    /// Runs the step.
    ///
    /// # Errors
    /// [`StepError`] if the program contradicts itself, or memory runs out.
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError>;

    /// Returns the dense tensors that the step reads.
    fn dense_inputs(&self, _graph: &Graph) -> Vec<ValueId> {
        Vec::new()
    }

    /// Returns the dense tensors that the step computes.
    fn dense_outputs(&self, _graph: &Graph) -> Vec<ValueId> {
        Vec::new()
    }
}

/// A step with its name and amount of work.
#[derive(Debug)]
pub(crate) struct ProgramStep {
    /// Kernel or reference operator that the step runs.
    pub op: Box<dyn StepOp>,
    /// Operator and node name, shown in profiles.
    pub name: String,
    /// Number format that the step computes in.
    pub precision: OperatorPrecision,
    /// Multiply-accumulate operations of one run.
    pub macs: u64,
    /// Bytes of the inputs, weights and outputs of one run, each counted once.
    pub bytes: u64,
}
