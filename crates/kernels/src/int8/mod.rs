//! Micro-kernels for bytes: products of unsigned inputs and signed weights, accumulated exactly in 32 bits.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_vnni;
#[cfg(target_arch = "x86_64")]
mod avx512_vnni;
pub(crate) mod pairs;
mod portable;
#[cfg(target_arch = "x86_64")]
mod quads;

use crate::conv::{AVX2_VOXELS, Micro};
use crate::{Isa, IsaName};

/// Arguments of the byte kernels.
pub(crate) type Bytes<'a> = Micro<'a, u8, i8, i32>;

/// Returns whether the kernels add the products of two channels in 16 bits, for weights that [`pairs::split`] has split.
pub(crate) fn adds_pairs(isa: Isa) -> bool {
    matches!(isa.name(), IsaName::Avx2 | IsaName::Avx512)
}

/// Returns whether two output blocks are computed at once.
pub(crate) fn two_blocks(isa: Isa) -> bool {
    isa.name() >= IsaName::Avx512Vnni
}

/// Returns the longest run of voxels for a number of output blocks; `three` is [`Micro::three_in_a_row`].
pub(crate) fn widest(isa: Isa, blocks: usize, three: bool) -> usize {
    match (isa.name(), blocks) {
        (IsaName::Amx, 2) => 32,
        (IsaName::Amx, _) => 64,
        (IsaName::Avx512Vnni, _) => widest_vnni(blocks, three),
        (IsaName::Avx2 | IsaName::Avx2Vnni | IsaName::Avx512, _) => AVX2_VOXELS,
        (IsaName::Portable, _) => 8,
    }
}

/// Returns how many times as long as [`widest`] a run may be.
pub(crate) fn most_parts(isa: Isa) -> usize {
    match isa.name() {
        IsaName::Avx2 | IsaName::Avx2Vnni | IsaName::Avx512 => 8,
        IsaName::Amx | IsaName::Avx512Vnni | IsaName::Portable => 1,
    }
}

/// Returns the longest run of the AVX-512 VNNI kernels.
fn widest_vnni(blocks: usize, three: bool) -> usize {
    match (blocks, three) {
        (2, true) => 12,
        (2, false) => 14,
        _ => 28,
    }
}

/// Configures this thread's matrix unit for inputs of `depth` adjacent bytes per voxel, if it is used.
pub(crate) fn prepare(isa: Isa, depth: usize) {
    #[cfg(target_arch = "x86_64")]
    if isa.name() == IsaName::Amx && amx::fits_row(depth) {
        // SAFETY: an AMX token exists only if `amx::is_available` returned true.
        unsafe { crate::amx::configure(depth) };
    }
    let _ = (isa, depth);
}

/// Releases the matrix unit, if it is used.
pub(crate) fn release(isa: Isa, depth: usize) {
    #[cfg(target_arch = "x86_64")]
    if isa.name() == IsaName::Amx && amx::fits_row(depth) {
        // SAFETY: an AMX token exists only if `amx::is_available` returned true.
        unsafe { crate::amx::release() };
    }
    let _ = (isa, depth);
}

/// Computes a run of `len` voxels.
///
/// # Safety
/// Every pointer of `m` must reach what its fields say for `len` voxels, and [`prepare`] must have been called on this
/// thread for `adjacent · in_per_block` bytes.
pub(crate) unsafe fn sums(isa: Isa, blocks: usize, len: usize, m: &Bytes<'_>) {
    // SAFETY: holding `isa` proves that the CPU has the instruction set. The caller guarantees the pointers and that
    // `prepare` was called; `tiles_in_bounds` checks that AMX tiles are in bounds.
    unsafe {
        match isa.name() {
            #[cfg(target_arch = "x86_64")]
            IsaName::Amx if amx::fits_row(m.adjacent * m.in_per_block) && amx::tiles_in_bounds(len, m) => {
                amx::micro(blocks, len, m);
            }
            #[cfg(target_arch = "x86_64")]
            IsaName::Amx | IsaName::Avx512Vnni => {
                m.in_parts(len, widest_vnni(blocks, m.three_in_a_row()), |len, part| {
                    avx512_vnni::micro(blocks, len, part);
                });
            }
            #[cfg(target_arch = "x86_64")]
            IsaName::Avx2Vnni => m.in_parts(len, AVX2_VOXELS, |len, part| avx2_vnni::micro(len, part)),
            #[cfg(target_arch = "x86_64")]
            IsaName::Avx2 | IsaName::Avx512 => m.in_parts(len, AVX2_VOXELS, |len, part| avx2::micro(len, part)),
            _ => portable::micro(blocks, len, m),
        }
    }
}
