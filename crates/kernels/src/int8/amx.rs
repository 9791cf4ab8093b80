//! Kernels for bytes on the matrix unit (AMX-INT8): 16 voxels × 16 output channels per tile, with up to four result tiles.
//!
//! A tile of inputs has 16 rows, one per output voxel, with the bytes of adjacent taps: for 16 channels per block and a
//! kernel of width 3, 48 bytes that overlap the next row's. A tile of weights has the packed quads of those taps, 64
//! bytes (16 output channels) per row. [`crate::amx`] explains why the inline assembly is sound.
#![cfg(target_arch = "x86_64")]

use super::Bytes;
use crate::amx::{ROW_BYTES, configure, load, release, store};
use std::arch::asm;

/// Returns whether adjacent taps of `depth` bytes in total fit into one row of a tile.
pub(crate) fn fits_row(depth: usize) -> bool {
    depth > 0 && depth <= ROW_BYTES && depth.is_multiple_of(4)
}

/// Returns whether whole tiles of a run of `len` voxels are within the input.
pub(super) fn tiles_in_bounds(len: usize, m: &Bytes<'_>) -> bool {
    let farthest = (len.next_multiple_of(16) - 1) * m.in_step
        + (m.in_blocks - 1) * m.in_block_stride
        + m.taps.iter().max().copied().unwrap_or(0)
        + m.in_per_block;
    farthest <= m.input_left
}

// Tiles are `tt`, because the name of a clobbered register must be a plain literal.
macro_rules! dot {
    ($sum:tt, $input:tt, $weights:tt) => {
        asm!(concat!("tdpbusd ", $sum, ", ", $input, ", ", $weights), out($sum) _, options(nostack, nomem))
    };
}

/// Computes a run of `len` voxels: up to 64 for one block, up to 32 for two. Whole tiles are computed; sums past `len`
/// are meaningless.
///
/// # Safety
/// The CPU must support AMX-INT8, [`configure`] must have been called on this thread, [`tiles_in_bounds`] must hold,
/// the sums must have room for whole tiles, and every other pointer of `m` must reach what its fields say.
pub(super) unsafe fn micro(blocks: usize, len: usize, m: &Bytes<'_>) {
    // SAFETY: the caller guarantees AMX, configured tiles, and pointers that reach the whole tiles that cover `len`: as
    // many as the match gives to `one_block` and `two_blocks`.
    unsafe {
        match (blocks, len.div_ceil(16)) {
            (2, 1) => two_blocks::<1>(m),
            (2, _) => two_blocks::<2>(m),
            (_, 1) => one_block::<1>(m),
            (_, 2) => one_block::<2>(m),
            (_, 3) => one_block::<3>(m),
            (_, _) => one_block::<4>(m),
        }
    }
}

/// Computes `T` tiles of voxels × one output block.
unsafe fn one_block<const T: usize>(m: &Bytes<'_>) {
    let (tile_step, tap_bytes) = (16 * m.in_step, m.adjacent * m.in_per_block * 16);
    // SAFETY: the caller guarantees AMX, configured tiles, and pointers of `m` that reach `T` whole tiles.
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
                let from = plane.add(*tap);
                load!("tmm6", weights, 64usize);
                load!("tmm4", from, m.in_step);
                dot!("tmm0", "tmm4", "tmm6");
                if T > 1 {
                    load!("tmm5", from.add(tile_step), m.in_step);
                    dot!("tmm1", "tmm5", "tmm6");
                }
                if T > 2 {
                    load!("tmm4", from.add(2 * tile_step), m.in_step);
                    dot!("tmm2", "tmm4", "tmm6");
                }
                if T > 3 {
                    load!("tmm5", from.add(3 * tile_step), m.in_step);
                    dot!("tmm3", "tmm5", "tmm6");
                }
                weights = weights.add(tap_bytes);
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
unsafe fn two_blocks<const T: usize>(m: &Bytes<'_>) {
    let (tile_step, tap_bytes) = (16 * m.in_step, m.adjacent * m.in_per_block * 32);
    // SAFETY: the caller guarantees AMX, configured tiles, and pointers of `m` that reach `T` whole tiles for two
    // blocks.
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
                let from = plane.add(*tap);
                load!("tmm6", weights, 128usize);
                load!("tmm4", from, m.in_step);
                dot!("tmm0", "tmm4", "tmm6");
                load!("tmm7", weights.add(64), 128usize);
                dot!("tmm1", "tmm4", "tmm7");
                if T > 1 {
                    load!("tmm5", from.add(tile_step), m.in_step);
                    dot!("tmm2", "tmm5", "tmm6");
                    dot!("tmm3", "tmm5", "tmm7");
                }
                weights = weights.add(tap_bytes);
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
/// The CPU must support AMX-INT8 and [`is_available`] must have returned true, which an AMX token proves.
pub(crate) unsafe fn run_products(rounds: usize) {
    // SAFETY: the caller guarantees AMX, and `configure` is called first. The instructions use registers only; those
    // that they write are declared.
    unsafe {
        configure(ROW_BYTES);
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "tilezero tmm4",
            "tilezero tmm6",
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            out("tmm3") _,
            out("tmm4") _,
            out("tmm6") _,
            options(nostack, nomem)
        );
        for _ in 0..rounds {
            dot!("tmm0", "tmm4", "tmm6");
            dot!("tmm1", "tmm4", "tmm6");
            dot!("tmm2", "tmm4", "tmm6");
            dot!("tmm3", "tmm4", "tmm6");
        }
        release();
    }
}
