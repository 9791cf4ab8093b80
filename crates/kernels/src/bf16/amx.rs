//! Kernels for bf16 on the matrix unit (AMX-BF16): 16 voxels × 16 output channels per tile, with up to four result tiles.
//!
//! A tile of inputs has 16 rows, one per output voxel, with the 32 channels of two adjacent taps, which overlap the next
//! row's. A tile of weights has the pairs of channels of those taps, 64 bytes (16 output channels) per row. An odd number
//! of taps is completed with a tap whose weights are 0. [`crate::amx`] explains why the inline assembly is sound.
#![cfg(target_arch = "x86_64")]

use super::{Floats, PAIRS, Stage, voxels_read};
use crate::CHANNEL_BLOCK;
use crate::amx::{load, store};
use std::arch::asm;

macro_rules! dot {
    ($sum:tt, $input:tt, $weights:tt) => {
        asm!(concat!("tdpbf16ps ", $sum, ", ", $input, ", ", $weights), out($sum) _, options(nostack, nomem))
    };
}

/// Computes a run of `len` voxels: up to 64 for one block, up to 32 for two. Whole tiles are computed; sums past `len`
/// are meaningless.
///
/// # Safety
/// The CPU must support AMX-BF16 and AVX-512 BF16, [`crate::amx::configure`] must have been called on this thread for
/// whole rows, the sums must have space for whole tiles, the buffer for rounded inputs must hold what the run reads, and
/// every other pointer of `m` must reach what its fields say.
pub(super) unsafe fn micro(blocks: usize, len: usize, m: &Floats<'_>) {
    // SAFETY: the caller guarantees AMX, configured tiles, and pointers that reach the whole tiles that cover `len`: as
    // many as the match gives to `one_block` and `two_blocks`.
    unsafe {
        match (blocks, len.div_ceil(16)) {
            (2, 1) => two_blocks::<1>(len, m),
            (2, _) => two_blocks::<2>(len, m),
            (_, 1) => one_block::<1>(len, m),
            (_, 2) => one_block::<2>(len, m),
            (_, 3) => one_block::<3>(len, m),
            (_, _) => one_block::<4>(len, m),
        }
    }
}

/// Computes `T` tiles of voxels × one output block.
unsafe fn one_block<const T: usize>(len: usize, m: &Floats<'_>) {
    let (voxels, pairs_of_taps) = (voxels_read(len, m), m.adjacent.div_ceil(2));
    let (row_bytes, tile_step) = (m.in_step * size_of::<u16>(), 16 * m.in_step);
    let mut stage = Stage::new();
    // SAFETY: the caller guarantees AMX, configured tiles, and pointers of `m` that reach the run. The buffer holds the
    // inputs of whole tiles; those past the run are 0.
    unsafe {
        // A row distance of 0 initializes all rows of a result with the same 16 values.
        load!("tmm0", m.start, 0usize);
        if T > 1 {
            load!("tmm1", m.start, 0usize);
        }
        if T > 2 {
            load!("tmm2", m.start, 0usize);
        }
        if T > 3 {
            load!("tmm3", m.start, 0usize);
        }
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let plane = m.input.add(block * m.in_block_stride);
            for tap in m.taps.iter().step_by(m.adjacent) {
                stage.fill(plane.add(*tap), voxels, m.channels(block));
                for pair in 0..pairs_of_taps {
                    let from = stage.0.as_ptr().add(pair * 2 * CHANNEL_BLOCK);
                    load!("tmm6", weights, 64usize);
                    load!("tmm4", from, row_bytes);
                    dot!("tmm0", "tmm4", "tmm6");
                    if T > 1 {
                        load!("tmm5", from.add(tile_step), row_bytes);
                        dot!("tmm1", "tmm5", "tmm6");
                    }
                    if T > 2 {
                        load!("tmm4", from.add(2 * tile_step), row_bytes);
                        dot!("tmm2", "tmm4", "tmm6");
                    }
                    if T > 3 {
                        load!("tmm5", from.add(3 * tile_step), row_bytes);
                        dot!("tmm3", "tmm5", "tmm6");
                    }
                    weights = weights.add(2 * PAIRS * 32);
                }
            }
        }
        store!("tmm0", m.sums);
        if T > 1 {
            store!("tmm1", m.sums.add(256));
        }
        if T > 2 {
            store!("tmm2", m.sums.add(512));
        }
        if T > 3 {
            store!("tmm3", m.sums.add(768));
        }
    }
}

/// Computes `T` tiles of voxels × two output blocks.
unsafe fn two_blocks<const T: usize>(len: usize, m: &Floats<'_>) {
    let (voxels, pairs_of_taps) = (voxels_read(len, m), m.adjacent.div_ceil(2));
    let (row_bytes, tile_step) = (m.in_step * size_of::<u16>(), 16 * m.in_step);
    let mut stage = Stage::new();
    // SAFETY: the caller guarantees AMX, configured tiles, and pointers of `m` that reach the run in both output blocks. The
    // buffer holds the inputs of whole tiles; those past the run are 0.
    unsafe {
        load!("tmm0", m.start, 0usize);
        load!("tmm1", m.start.add(16), 0usize);
        if T > 1 {
            load!("tmm2", m.start, 0usize);
            load!("tmm3", m.start.add(16), 0usize);
        }
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let plane = m.input.add(block * m.in_block_stride);
            for tap in m.taps.iter().step_by(m.adjacent) {
                stage.fill(plane.add(*tap), voxels, m.channels(block));
                for pair in 0..pairs_of_taps {
                    let from = stage.0.as_ptr().add(pair * 2 * CHANNEL_BLOCK);
                    load!("tmm6", weights, 128usize);
                    load!("tmm4", from, row_bytes);
                    dot!("tmm0", "tmm4", "tmm6");
                    load!("tmm7", weights.add(32), 128usize);
                    dot!("tmm1", "tmm4", "tmm7");
                    if T > 1 {
                        load!("tmm5", from.add(tile_step), row_bytes);
                        dot!("tmm2", "tmm5", "tmm6");
                        dot!("tmm3", "tmm5", "tmm7");
                    }
                    weights = weights.add(2 * PAIRS * 64);
                }
            }
        }
        store!("tmm0", m.sums);
        store!("tmm1", m.sums.add(m.sum_block_stride));
        if T > 1 {
            store!("tmm2", m.sums.add(256));
            store!("tmm3", m.sums.add(m.sum_block_stride + 256));
        }
    }
}

/// Computes `rounds` times four products of whole tiles, to measure the peak rate.
///
/// # Safety
/// The CPU must support AMX-BF16 and [`crate::amx::is_available`] must have returned true.
pub(crate) unsafe fn run_products(rounds: usize) {
    // SAFETY: the caller guarantees AMX, and `configure` is called first, which sets all tiles to 0. The instructions use
    // registers only; those that they write are declared.
    unsafe {
        crate::amx::configure(crate::amx::ROW_BYTES);
        for _ in 0..rounds {
            dot!("tmm0", "tmm4", "tmm6");
            dot!("tmm1", "tmm4", "tmm6");
            dot!("tmm2", "tmm4", "tmm6");
            dot!("tmm3", "tmm4", "tmm6");
        }
        crate::amx::release();
    }
}
