//! The epilogue of a convolution: scale, bias, residual, activation, statistics, number format.

use crate::lanes::{Lanes, with_lanes};

/// Output pointer of a run of voxels, with its number format.
#[derive(Clone, Copy)]
pub(crate) enum Out {
    F32(*mut f32),
    F16(*mut u16),
    U8 { to: *mut u8, inverse_scale: f32, zero_point: u8 },
}

/// Sums relative to a pivot, by lane.
#[derive(Clone, Copy)]
pub(crate) struct LaneStats {
    /// A value near those that are summed: that of the first voxel.
    pub pivot: [f32; 16],
    /// Sum of the differences from the pivot.
    pub sum: [f32; 16],
    /// Sum of the squared differences from the pivot.
    pub square: [f32; 16],
    /// Number of voxels.
    pub count: usize,
}

impl LaneStats {
    pub(crate) const NEW: Self = Self { pivot: [0.0; 16], sum: [0.0; 16], square: [0.0; 16], count: 0 };
}

/// A run of voxels of one output block.
pub(crate) struct OutputRun<'a> {
    /// Sums, 16 per voxel: `i32` if `integer`, else `f32`.
    pub sums: *const i32,
    /// Whether the sums are integers.
    pub integer: bool,
    /// Number of voxels.
    pub len: usize,
    /// Factors of the sums, one for each of the 16 channels.
    pub scale: *const f32,
    /// Added after scaling, one for each of the 16 channels.
    pub bias: *const f32,
    /// Slope of the activation's negative side; 1 for no activation.
    pub slope: f32,
    /// 16 values per voxel to add before the activation, or null; `residual_step` is the distance between voxels.
    pub residual: *const f32,
    /// Number of elements from one voxel of the residual to the next.
    pub residual_step: usize,
    /// The first output voxel.
    pub out: Out,
    /// Number of elements from one output voxel to the next.
    pub out_step: usize,
    /// Statistics to which the results are added, if they are wanted.
    pub stats: Option<&'a mut LaneStats>,
}

with_lanes! {
    /// Applies the epilogue to one run.
    pub(crate) unsafe fn finish<L>(run: &mut OutputRun<'_>) {
        // SAFETY: the caller guarantees that every pointer of `run` reaches `len` voxels; `with_lanes` checked the CPU.
        unsafe {
            match (run.integer, run.stats.is_some()) {
                (true, true) => dispatch_format::<L, true, true>(run),
                (true, false) => dispatch_format::<L, true, false>(run),
                (false, true) => dispatch_format::<L, false, true>(run),
                (false, false) => dispatch_format::<L, false, false>(run),
            }
        }
    }
}

#[inline(always)]
unsafe fn dispatch_format<L: Lanes, const INTEGER: bool, const STATS: bool>(run: &mut OutputRun<'_>) {
    // SAFETY: the caller guarantees that the CPU supports `L` and that the output holds `len` voxels `out_step` apart.
    unsafe {
        match run.out {
            Out::F32(to) => {
                let step = run.out_step;
                voxels::<L, INTEGER, STATS>(run, |p, v: L| v.store(to.add(p * step)));
            }
            Out::F16(to) => {
                let step = run.out_step;
                voxels::<L, INTEGER, STATS>(run, |p, v: L| v.store_f16(to.add(p * step)));
            }
            Out::U8 { to, inverse_scale, zero_point } => {
                let step = run.out_step;
                let inverse = L::splat(inverse_scale);
                let zero = i32::from(zero_point);
                let (low, high) = (-zero as f32, (255 - zero) as f32);
                voxels::<L, INTEGER, STATS>(run, |p, v: L| {
                    v.mul(inverse).store_u8(low, high, zero, to.add(p * step));
                });
            }
        }
    }
}

#[inline(always)]
unsafe fn voxels<L: Lanes, const INTEGER: bool, const STATS: bool>(
    run: &mut OutputRun<'_>,
    mut store: impl FnMut(usize, L),
) {
    // SAFETY: the caller guarantees that the CPU supports `L`, that `sums` and `residual` hold `len` voxels, and that
    // scale and bias hold 16 values.
    unsafe {
        let (scale, bias, slope) = (L::load(run.scale), L::load(run.bias), L::splat(run.slope));
        let lanes = (scale, bias, slope);
        if !STATS {
            for p in 0..run.len {
                store(p, value::<L, INTEGER>(run, lanes, p));
            }
            return;
        }
        let mut none = LaneStats::NEW;
        if let Some(stats) = run.stats.as_deref()
            && stats.count == 0
            && run.len > 0
        {
            none.pivot = value::<L, INTEGER>(run, lanes, 0).to_array();
        } else if let Some(stats) = run.stats.as_deref() {
            none = *stats;
        }
        let pivot = L::load(none.pivot.as_ptr());
        let (mut sum, mut square) = (L::load(none.sum.as_ptr()), L::load(none.square.as_ptr()));
        for p in 0..run.len {
            let v = value::<L, INTEGER>(run, lanes, p);
            let away = v.sub(pivot);
            sum = sum.add(away);
            square = away.fma(away, square);
            store(p, v);
        }
        let count = none.count + run.len;
        if let Some(stats) = run.stats.as_deref_mut() {
            *stats = LaneStats { pivot: none.pivot, sum: sum.to_array(), square: square.to_array(), count };
        }
    }
}

// A function, because closures that are used twice are not inlined into code for a target feature.
#[inline(always)]
unsafe fn value<L: Lanes, const INTEGER: bool>(run: &OutputRun<'_>, (scale, bias, slope): (L, L, L), p: usize) -> L {
    // SAFETY: the caller guarantees that the CPU supports `L` and that `sums` and, unless null, `residual` hold voxel
    // `p`; the loads are unaligned.
    unsafe {
        let sums =
            if INTEGER { L::load_i32(run.sums.add(p * 16)) } else { L::load(run.sums.cast::<f32>().add(p * 16)) };
        let mut v = sums.fma(scale, bias);
        if !run.residual.is_null() {
            v = v.add(L::load(run.residual.add(p * run.residual_step)));
        }
        v.activate(run.slope, slope)
    }
}
