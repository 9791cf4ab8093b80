//! Depthwise convolution: each channel reads only itself, so lanes are multiplied by lanes.

use super::Micro;
use crate::lanes::with_lanes;
use crate::parallel::multiversion;

with_lanes! {
    /// Computes a run of voxels in floats.
    pub(super) unsafe fn floats<L>(len: usize, m: &Micro<'_, f32, f32, f32>) {
        // SAFETY: the caller guarantees that every pointer of `m` reaches `len` voxels of 16 channels; `with_lanes`
        // checked the CPU.
        unsafe {
            let start = L::load(m.start);
            for first in (0..len).step_by(4) {
                let n = (len - first).min(4);
                let mut sums = [start; 4];
                for (t, tap) in m.taps.iter().enumerate() {
                    let w = L::load(m.weights.add(t * 16));
                    let from = m.input.add(first * m.in_step + tap);
                    for p in 0..n {
                        sums[p] = L::load(from.add(p * m.in_step)).fma(w, sums[p]);
                    }
                }
                for p in 0..n {
                    sums[p].store(m.sums.add((first + p) * 16));
                }
            }
        }
    }
}

/// Computes a run of voxels in bytes.
///
/// # Safety
/// Every pointer of `m` must reach what its fields say for `len` voxels.
pub(super) unsafe fn bytes(isa: crate::Isa, len: usize, m: &Micro<'_, u8, i8, i32>) {
    // SAFETY: the caller guarantees 16 start values, 16 weights per tap, 16 inputs per voxel and tap, and 16 sums per
    // voxel. The array reads are unaligned; byte slices need no alignment.
    unsafe {
        let start = m.start.cast::<[i32; 16]>().read_unaligned();
        let weights = std::slice::from_raw_parts(m.weights.cast::<[i8; 16]>(), m.taps.len());
        for p in 0..len {
            let farthest = m.taps.iter().max().copied().unwrap_or(0) + 16;
            let inputs = std::slice::from_raw_parts(m.input.add(p * m.in_step), farthest);
            let sums = std::slice::from_raw_parts_mut(m.sums.add(p * 16), 16);
            voxel(isa, inputs, m.taps, weights, &start, sums);
        }
    }
}

multiversion! {
    fn voxel(inputs: &[u8], taps: &[usize], weights: &[[i8; 16]], start: &[i32; 16], sums: &mut [i32]) {
        let mut acc = *start;
        for (tap, w) in taps.iter().zip(weights) {
            let x = &inputs[*tap..*tap + 16];
            for i in 0..16 {
                acc[i] += i32::from(x[i]) * i32::from(w[i]);
            }
        }
        sums.copy_from_slice(&acc);
    }
}
