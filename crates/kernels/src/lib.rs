//! The SIMD kernels of the CPU engine; the only crate of this workspace with `unsafe` code.
//!
//! Activations are stored in [`Blocked`] buffers: channels in blocks of 16 (or single planes if there are few), each
//! block a dense volume of voxels with a border of zeros as wide as the next convolution's padding, so that kernels
//! need no special cases at edges. All public functions are safe: they check every length against the layouts before
//! creating pointers, and fail with [`KernelError`].
//!
//! [`train`] contains the kernels of training: gradients of layers, and optimizer updates.
//!
//! The instruction set is an [`Isa`] token. Only [`Isa::detect`] and [`Isa::available`] create one, so holding it
//! proves that the CPU supports the instruction set. `CYTOSCOPE_ISA=portable|avx2|avx2-vnni|avx512|avx512-vnni|amx`
//! selects one, if the CPU has it.
//!
//! ```
//! use cytoscope_kernels::{Blocked, Isa, reorder};
//! let layout = Blocked::new(3, [2, 4, 5], [1, 1, 1], 16);
//! let dense = vec![1.0f32; 3 * 2 * 4 * 5];
//! let mut blocked = vec![0.0f32; layout.len()];
//! reorder::pack(&dense, &layout, 0.0, &mut blocked)?;
//! assert_eq!(blocked.iter().sum::<f32>(), 120.0);
//! # let _ = Isa::detect();
//! # Ok::<(), cytoscope_kernels::KernelError>(())
//! ```

#[cfg(target_arch = "x86_64")]
mod amx;
pub mod apply;
mod arena;
#[cfg(target_arch = "x86_64")]
mod bf16;
pub mod conv;
mod heap;
mod int8;
mod isa;
pub mod join;
mod lanes;
mod layout;
pub mod norm;
pub mod pad;
mod parallel;
pub mod peak;
pub mod pointwise;
pub mod pool;
pub mod reorder;
pub mod resize;
pub mod train;

pub use arena::{Arena, live_arena_bytes, request_huge_pages};
pub use heap::return_free_memory;
pub use isa::{Isa, IsaName};
pub use layout::{Blocked, CHANNEL_BLOCK};

/// A kernel was called with buffers or parameters that do not match.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// The length of a buffer differs from that of its layout.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// Name of the buffer.
        what: &'static str,
        /// Number of values that the layout requires.
        expected: usize,
        /// Number of values in the buffer.
        got: usize,
    },
    /// Layouts or parameters do not match.
    #[error("{what}: expected {expected}, got {got}")]
    Mismatch {
        /// Name of the parameter.
        what: &'static str,
        /// The expected value.
        expected: String,
        /// The actual value.
        got: String,
    },
    /// The sums of a convolution of bytes with these weights could exceed 32 bits. It can be computed in floats.
    #[error("sums of a convolution of bytes: expected at most {}, got up to {greatest}", i32::MAX)]
    SumOverflow {
        /// Largest magnitude that a sum could have.
        greatest: i64,
    },
    /// Weights were packed for another instruction set than the one that was to run them. Each set reads them in an order of
    /// its own.
    #[error("weights packed for {packed} cannot be run by {running}: pack them for {running}")]
    PackedForOtherIsa {
        /// Instruction set that the weights were packed for.
        packed: Isa,
        /// Instruction set that should have run them.
        running: Isa,
    },
}

pub(crate) fn check_len(what: &'static str, got: usize, expected: usize) -> Result<(), KernelError> {
    if got == expected { Ok(()) } else { Err(KernelError::Length { what, expected, got }) }
}

pub(crate) fn check_that(
    ok: bool,
    what: &'static str,
    expected: impl ToString,
    got: impl ToString,
) -> Result<(), KernelError> {
    if ok { Ok(()) } else { Err(KernelError::Mismatch { what, expected: expected.to_string(), got: got.to_string() }) }
}

/// Checks that weights are run by the instruction set that they were packed for.
pub(crate) fn check_isa(packed: Isa, running: Isa) -> Result<(), KernelError> {
    if packed == running { Ok(()) } else { Err(KernelError::PackedForOtherIsa { packed, running }) }
}

/// Checks that two layouts are for images of the same shape; borders may differ.
pub(crate) fn same_image(a: &Blocked, b: &Blocked) -> Result<(), KernelError> {
    check_that(
        (a.channels, a.dims, a.block) == (b.channels, b.dims, b.block),
        "layouts of one image",
        format!("{b:?}"),
        format!("{a:?}"),
    )
}

/// Checks both buffers, and that input and output have the same channels and block size.
pub(crate) fn check_moved<T>(input: &[T], from: &Blocked, output: &[T], to: &Blocked) -> Result<(), KernelError> {
    check_len("input", input.len(), from.len())?;
    check_len("output", output.len(), to.len())?;
    check_that(
        (from.channels, from.block) == (to.channels, to.block),
        "channels",
        format!("{to:?}"),
        format!("{from:?}"),
    )
}
