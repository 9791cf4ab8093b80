//! The arithmetic of the CPU engine: every SIMD instruction and every `unsafe` of the project's own code.
//!
//! Activations live in [`Blocked`] buffers: channels in blocks of 16 (or single planes where there are few), each block a
//! dense volume of voxels with a border of zeros as wide as the next convolution's padding, so that no kernel has a
//! special case at an edge. All functions are safe: they check every length against the layouts before a pointer is
//! made, and fail with [`KernelError`].
//!
//! [`train`] holds what training adds: gradients of layers, and optimizers.
//!
//! The instruction set is an [`Isa`] token that only [`Isa::detect`] (or [`Isa::available`]) hands out, so holding one
//! proves that the machine has it. `CYTOSCOPE_ISA=portable|avx2|avx2-vnni|avx512|avx512-vnni|amx`
//! forces one.
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

pub mod apply;
mod arena;
pub mod conv;
mod int8;
mod isa;
mod lanes;
mod layout;
pub mod norm;
mod parallel;
pub mod peak;
pub mod pointwise;
pub mod pool;
pub mod reorder;
pub mod resize;
pub mod train;

pub use arena::Arena;
pub use isa::{Isa, IsaName};
pub use layout::{Blocked, CHANNEL_BLOCK};

/// A kernel called with buffers or parameters that do not fit one another.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// A buffer shorter than its layout.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// The buffer.
        what: &'static str,
        /// Values its layout takes.
        expected: usize,
        /// Values it holds.
        got: usize,
    },
    /// Layouts or parameters that do not go together.
    #[error("{what}: expected {expected}, got {got}")]
    Mismatch {
        /// What is being compared.
        what: &'static str,
        /// What would fit.
        expected: String,
        /// What was met.
        got: String,
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

/// Checks that two layouts hold the same image, whatever their borders.
pub(crate) fn same_image(a: &Blocked, b: &Blocked) -> Result<(), KernelError> {
    check_that(
        (a.channels, a.dims, a.block) == (b.channels, b.dims, b.block),
        "layouts of one image",
        format!("{b:?}"),
        format!("{a:?}"),
    )
}

/// Checks that a kernel moves an image's channels to an output of the same channels, and both buffers.
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
