//! One pass over a stack: planes flow through the network along Z, and no voxel is computed twice.
//!
//! A stack that is larger than memory is otherwise predicted in tiles that overlap by the receptive field, so that most
//! voxels are computed several times. For networks without statistics over space, each layer needs only a few planes of
//! its input at a time. So each value has a buffer for some planes: those that later planes still read, and the new ones
//! of a slab ([`flow`]). The steps are the same as in a session for the whole stack, on slots for these planes
//! ([`program`]), so the results are bit-identical. Skip connections wait in their buffers until the planes of the
//! coarser levels are computed: in rings, so that many waiting planes are not moved ([`plane_storage`]). Buffers of which
//! nothing is kept from slab to slab share memory ([`arena`]). If the planes are too large for the memory budget, the
//! stack is split into bands along Y that overlap by the receptive field ([`bands`]).

mod arena;
mod bands;
mod flow;
mod plan;
mod plane_storage;
mod program;
mod reads;
mod session;

pub(crate) use plan::plan;

use cytoscope_engine::{Band, CompileOptions, EngineError, RollingPlan, RollingSession};
use cytoscope_kernels::Isa;
use plane_storage::PlaneStorage;
use program::RollingProgram;
use session::CpuRollingSession;

/// How a stack is passed through a network on the CPU.
pub(crate) struct CpuRollingPlan {
    program: RollingProgram,
    isa: Isa,
    options: CompileOptions,
    /// Shape N, C, Z, Y, X of the stack.
    shape: Vec<usize>,
    bands: Vec<Band>,
    slab_planes: usize,
    /// The planes of each buffer.
    storages: Vec<PlaneStorage>,
    /// First word of each buffer.
    starts: Vec<usize>,
    arena_bytes: u64,
    /// Bytes that are moved within buffers, in all bands.
    moved_bytes: u64,
    /// Multiply-accumulate operations of the whole stack as one tensor.
    untiled_macs: u64,
    /// Bytes that the whole stack as one tensor needs at least.
    untiled_bytes: u64,
}

impl RollingPlan for CpuRollingPlan {
    fn slab_planes(&self) -> usize {
        self.slab_planes
    }

    fn bands(&self) -> &[Band] {
        &self.bands
    }

    fn memory_bytes(&self) -> u64 {
        self.arena_bytes.saturating_add(self.program.weight_bytes)
    }

    fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    fn macs(&self) -> u64 {
        self.program.macs.saturating_mul(self.bands.len() as u64)
    }

    fn untiled_macs(&self) -> u64 {
        self.untiled_macs
    }

    fn untiled_bytes(&self) -> u64 {
        self.untiled_bytes
    }

    fn start(self: Box<Self>) -> Result<Box<dyn RollingSession>, EngineError> {
        Ok(Box::new(CpuRollingSession::new(*self)?))
    }
}
