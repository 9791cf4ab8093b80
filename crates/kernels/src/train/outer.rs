//! Micro-kernels of weight gradients: sums over voxels of the products of one voxel's 16 channels with single values,
//! with all sums in registers.

use crate::lanes::{Lanes, with_lanes};

/// Strides of one operand in a box of voxels along D, H, W.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    /// Values from one slice to the next.
    pub slice: usize,
    /// Values from one row to the next.
    pub row: usize,
    /// Values from one voxel to the next.
    pub voxel: usize,
}

/// Sums, over a box of voxels, of products of vectors of 16 lanes with single values.
pub(super) struct Outer<'a> {
    /// Size of the box: slices, rows, and voxels per row.
    pub counts: [usize; 3],
    /// Start of each vector, and the offset of its sums.
    pub vectors: &'a [(*const f32, usize)],
    /// Strides of all vectors.
    pub vector_steps: Steps,
    /// Start of each group of adjacent single values, and the offset of its sums relative to a vector's.
    pub values: &'a [(*const f32, usize)],
    /// Strides of all single values.
    pub value_steps: Steps,
    /// Number of adjacent values in a group: 1, 2, 4, 8 or 16. Their sums are 16 apart.
    pub adjacent: usize,
    /// Start of the memory of the sums, to which the offsets of vectors and values refer.
    pub sums: *mut f32,
}

/// Largest number of groups of single values in a call.
pub(super) const MAX_VALUES: usize = 8;

with_lanes! {
    /// Adds the products to the sums in memory.
    pub(super) unsafe fn outer<L>(o: &Outer<'_>) {
        macro_rules! pick {
            ($(($v:literal, $b:literal, $j:literal))*) => {
                match (o.vectors.len(), o.values.len(), o.adjacent) {
                    // SAFETY: the caller guarantees the operands and the sums; the match shows that there are `$v`
                    // vectors and `$b` groups of `$j` values. `with_lanes` checked the CPU.
                    $(($v, $b, $j) => unsafe { outer_of::<L, $v, $b, $j>(o) },)*
                    (v, b, j) => unreachable!("{v} vectors with {b} groups of {j} values"),
                }
            };
        }
        pick!(
            (1, 1, 1) (1, 2, 1) (1, 3, 1) (1, 4, 1) (1, 5, 1) (1, 6, 1) (1, 7, 1) (1, 8, 1)
            (2, 1, 1) (2, 2, 1) (2, 3, 1) (2, 4, 1) (2, 5, 1) (2, 6, 1) (2, 7, 1) (2, 8, 1)
            (3, 1, 1) (3, 2, 1) (3, 3, 1) (3, 4, 1)
            (1, 1, 2) (1, 2, 2) (1, 3, 2)
            (2, 1, 4) (2, 2, 4) (2, 3, 4)
            (1, 1, 8) (1, 2, 8) (1, 3, 8) (2, 1, 8)
            (1, 1, 16)
        );
    }
}

#[inline(always)]
unsafe fn outer_of<L: Lanes, const V: usize, const B: usize, const J: usize>(o: &Outer<'_>) {
    // SAFETY: the caller guarantees that every operand pointer reaches its box, that `sums` holds all offsets, and that
    // the CPU supports `L`; accesses are unaligned.
    unsafe {
        let mut acc = [[[L::splat(0.0); J]; B]; V];
        let mut from = [std::ptr::null::<f32>(); V];
        let mut single = [std::ptr::null::<f32>(); B];
        let [slices, rows, width] = o.counts;
        for d in 0..slices {
            for h in 0..rows {
                for v in 0..V {
                    from[v] = o.vectors[v].0.add(d * o.vector_steps.slice + h * o.vector_steps.row);
                }
                for b in 0..B {
                    single[b] = o.values[b].0.add(d * o.value_steps.slice + h * o.value_steps.row);
                }
                for w in 0..width {
                    let mut lanes = [L::splat(0.0); V];
                    for v in 0..V {
                        lanes[v] = L::load(from[v].add(w * o.vector_steps.voxel));
                    }
                    for b in 0..B {
                        let at = single[b].add(w * o.value_steps.voxel);
                        for j in 0..J {
                            let x = L::splat(*at.add(j));
                            for v in 0..V {
                                acc[v][b][j] = lanes[v].mul_then_add(x, acc[v][b][j]);
                            }
                        }
                    }
                }
            }
        }
        for v in 0..V {
            for b in 0..B {
                for j in 0..J {
                    let to = o.sums.add(o.vectors[v].1 + o.values[b].1 + j * 16);
                    L::load(to).add(acc[v][b][j]).store(to);
                }
            }
        }
    }
}

/// Sums of products of a vector of 16 lanes with single values at three adjacent taps, at stride 1: each single value
/// is multiplied by the three voxels whose windows contain it.
pub(super) struct Slide<'a> {
    /// Size of the box: slices, rows, and voxels per row.
    pub counts: [usize; 3],
    /// The 16 lanes of the first voxel.
    pub vector: *const f32,
    /// Strides of the vector; its voxels are 16 apart.
    pub vector_steps: Steps,
    /// Start of each single value at the first tap, and the offset of its sums. The voxel stride is a block or one
    /// value.
    pub values: &'a [(*const f32, usize)],
    /// Strides of all single values.
    pub value_steps: Steps,
    /// Distance of the sums of neighboring taps.
    pub tap_stride: usize,
    /// Start of the memory of the sums, to which the offsets of the values refer.
    pub sums: *mut f32,
}

with_lanes! {
    /// Adds the products to the sums in memory.
    pub(super) unsafe fn slide<L>(s: &Slide<'_>) {
        macro_rules! pick {
            ($step:literal, $($j:literal)*) => {
                match s.values.len() {
                    // SAFETY: the caller guarantees the operands, `$step` values from voxel to voxel, and the sums; the
                    // match shows that there are `$j` values. `with_lanes` checked the CPU.
                    $($j => unsafe { slide_of::<L, $j, $step>(s) },)*
                    j => unreachable!("{j} values"),
                }
            };
        }
        if s.value_steps.voxel == 1 {
            pick!(1, 1 2 3 4 5 6 7 8)
        } else {
            pick!(16, 8)
        }
    }
}

#[inline(always)]
unsafe fn slide_of<L: Lanes, const J: usize, const STEP: usize>(s: &Slide<'_>) {
    // SAFETY: the caller guarantees that every operand pointer reaches its box (the values two voxels more), that
    // `sums` holds all offsets, and that the CPU supports `L`.
    unsafe {
        let mut acc = [[L::splat(0.0); 3]; J];
        let mut from = [std::ptr::null::<f32>(); J];
        let [slices, rows, width] = s.counts;
        for d in 0..slices {
            for h in 0..rows {
                let y = s.vector.add(d * s.vector_steps.slice + h * s.vector_steps.row);
                for j in 0..J {
                    // Values of a block are adjacent: derive all pointers from the first.
                    let at = if STEP == 16 { s.values[0].0.add(j) } else { s.values[j].0 };
                    from[j] = at.add(d * s.value_steps.slice + h * s.value_steps.row);
                }
                // Multiplies the values at `$at` by the vectors of `$tap`.
                macro_rules! add_products {
                    ($at:expr, $($tap:literal $vector:expr),*) => {
                        for j in 0..J {
                            let x = L::splat(*from[j].add($at * STEP));
                            $(acc[j][$tap] = $vector.mul_then_add(x, acc[j][$tap]);)*
                        }
                    };
                }
                let mut older = L::load(y);
                add_products!(0, 0 older);
                if width == 1 {
                    add_products!(1, 1 older);
                    add_products!(2, 2 older);
                    continue;
                }
                let mut newer = L::load(y.add(16));
                add_products!(1, 0 newer, 1 older);
                for w in 2..width {
                    let newest = L::load(y.add(w * 16));
                    if STEP == 16 {
                        for j in 0..J {
                            acc[j] = L::fma_three([newest, newer, older], from[j].add(w * STEP), acc[j]);
                        }
                    } else {
                        add_products!(w, 0 newest, 1 newer, 2 older);
                    }
                    (older, newer) = (newer, newest);
                }
                add_products!(width, 1 newer, 2 older);
                add_products!(width + 1, 2 newer);
            }
        }
        for j in 0..J {
            for tap in 0..3 {
                let to = s.sums.add(s.values[j].1 + tap * s.tap_stride);
                L::load(to).add(acc[j][tap]).store(to);
            }
        }
    }
}

/// Sum of products of two boxes of single values.
pub(super) struct Dot {
    /// Size of the box: slices, rows, and voxels per row.
    pub counts: [usize; 3],
    /// First voxel of the first operand.
    pub first: *const f32,
    /// Strides of the first operand; its voxels are adjacent.
    pub first_steps: Steps,
    /// First voxel of the second operand.
    pub second: *const f32,
    /// Strides of the second operand.
    pub second_steps: Steps,
}

with_lanes! {
    /// Returns the sum of the products; the first operand's voxels must be adjacent.
    pub(super) unsafe fn dot<L>(o: &Dot) -> f32 {
        // SAFETY: the caller guarantees that both pointers reach their boxes; `with_lanes` checked the CPU.
        unsafe {
            let [slices, rows, width] = o.counts;
            let mut acc = [L::splat(0.0); 2];
            let mut rest = 0.0f32;
            for d in 0..slices {
                for h in 0..rows {
                    let a = o.first.add(d * o.first_steps.slice + h * o.first_steps.row);
                    let b = o.second.add(d * o.second_steps.slice + h * o.second_steps.row);
                    let aligned_width = if o.second_steps.voxel == 1 { width - width % 32 } else { 0 };
                    for w in (0..aligned_width).step_by(32) {
                        acc[0] = L::load(a.add(w)).mul_then_add(L::load(b.add(w)), acc[0]);
                        acc[1] = L::load(a.add(w + 16)).mul_then_add(L::load(b.add(w + 16)), acc[1]);
                    }
                    for w in aligned_width..width {
                        rest += *a.add(w) * *b.add(w * o.second_steps.voxel);
                    }
                }
            }
            acc[0].add(acc[1]).sum() + rest
        }
    }
}
