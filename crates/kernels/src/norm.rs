//! Instance normalization on blocked buffers: a statistics pass, and an affine pass with residual and activation.

use crate::apply::Source;
use crate::conv::{Activation, LaneStats, Residual, leaky};
use crate::lanes::{Lanes, with_lanes};
use crate::parallel::{Shared, for_each, for_each_row, multiversion};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_len, check_that, same_image};

/// Mean and biased variance of each channel over the voxels.
pub type Moments = Vec<(f64, f64)>;

/// Returns the variance of values with this mean and mean square. Rounding can make it slightly negative, which becomes 0. NaN
/// stays NaN, so that a channel with an infinite value has no finite result.
fn variance(mean_square: f64, mean: f64) -> f64 {
    let difference = mean_square - mean * mean;
    if difference < 0.0 { 0.0 } else { difference }
}

/// Combines the statistics of tasks and output blocks into the moments of a whole image.
pub(crate) fn combine(partial: &[LaneStats], layout: &Blocked) -> Moments {
    let blocks = layout.channels.div_ceil(CHANNEL_BLOCK).max(1);
    (0..layout.channels)
        .map(|c| {
            let (block, lane) = (c / CHANNEL_BLOCK, c % CHANNEL_BLOCK);
            let parts = || partial.iter().skip(block).step_by(blocks).filter(|s| s.count > 0);
            let pivot = parts().next().map_or(0.0, |s| f64::from(s.pivot[lane]));
            let (mut count, mut sum, mut square) = (0.0f64, 0.0f64, 0.0f64);
            for part in parts() {
                let (n, s, q) = (part.count as f64, f64::from(part.sum[lane]), f64::from(part.square[lane]));
                let shift = f64::from(part.pivot[lane]) - pivot;
                count += n;
                sum += s + n * shift;
                square += q + 2.0 * shift * s + n * shift * shift;
            }
            if count == 0.0 {
                return (0.0, 0.0);
            }
            let mean = sum / count;
            (pivot + mean, variance(square / count, mean))
        })
        .collect()
}

/// Computes the [`Moments`] of an image.
///
/// Sums are relative to each channel's first voxel, so that an offset costs no precision. Rows are summed in `f32`
/// lanes, the sums of rows in `f64`.
///
/// # Errors
/// [`KernelError::Length`] if the buffer does not fit the layout.
pub fn channel_moments(isa: Isa, input: &[f32], layout: &Blocked) -> Result<Moments, KernelError> {
    check_len("input", input.len(), layout.len())?;
    let [depth, height, _] = layout.dims;
    let (blocks, width) = (layout.blocks(), layout.block);
    if layout.voxels() == 0 {
        return Ok(vec![(0.0, 0.0); layout.channels]);
    }
    // For each slice, 16 sums and 16 sums of squares.
    let mut partial = vec![0.0f32; blocks * depth * 32];
    let shared = Shared::new(&mut partial);
    for_each(blocks * depth, |task| {
        let (b, d) = (task / depth, task % depth);
        let first = layout.row_start(b, 0, 0);
        let mut pivot = [0.0f32; 16];
        pivot[..width].copy_from_slice(&input[first..first + width]);
        // SAFETY: each task has its own 32 values; `Shared::slice` checks the bounds.
        let out = unsafe { shared.slice(task * 32, 32) };
        let (mut sums, mut squares) = ([0.0f64; 16], [0.0f64; 16]);
        for h in 0..height {
            let at = layout.row_start(b, d, h);
            let row = &input[at..at + layout.row_len()];
            let (s, q) = if width == 16 { row_moments(isa, row, &pivot) } else { row_moments_planar(row, pivot[0]) };
            for i in 0..16 {
                sums[i] += f64::from(s[i]);
                squares[i] += f64::from(q[i]);
            }
        }
        for i in 0..16 {
            out[i] = sums[i] as f32;
            out[16 + i] = squares[i] as f32;
        }
    });
    let count = layout.voxels() as f64;
    Ok((0..layout.channels)
        .map(|c| {
            let (b, lane) = (c / width, c % width);
            let pivot = f64::from(input[layout.row_start(b, 0, 0) + lane]);
            let total = |offset: usize| -> f64 {
                (0..depth).map(|d| f64::from(partial[(b * depth + d) * 32 + offset + lane])).sum()
            };
            let (mean, square) = (total(0) / count, total(16) / count);
            (pivot + mean, variance(square, mean))
        })
        .collect())
}

/// Computes the [`Moments`] of the stored numbers of an image in blocks of 16 channels.
///
/// # Errors
/// [`KernelError`] if the buffer does not fit the layout, or the block size is not 16.
pub fn moments(isa: Isa, source: &Source<'_>) -> Result<Moments, KernelError> {
    let (len, layout) = match source {
        Source::F32(v, l) => (v.len(), *l),
        Source::F16(v, l) => (v.len(), *l),
        Source::U8(v, l) => (v.len(), *l),
        Source::Plane(..) | Source::InPlace => {
            return check_that(false, "moments", "an image in blocks", "another source").map(|()| Vec::new());
        }
    };
    check_len("input", len, layout.len())?;
    check_that(layout.block == CHANNEL_BLOCK, "block", CHANNEL_BLOCK, layout.block)?;
    let [depth, height, width] = layout.dims;
    let blocks = layout.blocks();
    // Each sum covers few voxels, which keeps it accurate.
    let rows = (1024 / width.max(1)).clamp(1, height.max(1));
    let chunks = height.div_ceil(rows);
    let mut stats = vec![LaneStats::NEW; depth * chunks * blocks];
    let shared = Shared::new(&mut stats);
    for_each(depth * chunks * blocks, |task| {
        let (d, chunk, b) = (task / blocks / chunks, task / blocks % chunks, task % blocks);
        // SAFETY: each task has its own entry; `Shared::slice` checks the bounds.
        let entry = unsafe { shared.slice(task, 1) };
        for h in chunk * rows..((chunk + 1) * rows).min(height) {
            let at = layout.row_start(b, d, h);
            let row = match source {
                Source::F32(v, _) => RowPointer::F32(v[at..at + layout.row_len()].as_ptr()),
                Source::F16(v, _) => RowPointer::F16(v[at..at + layout.row_len()].as_ptr()),
                Source::U8(v, _) => RowPointer::U8(v[at..at + layout.row_len()].as_ptr()),
                Source::Plane(..) | Source::InPlace => return,
            };
            // SAFETY: the slice above has the length of a row: `width` voxels of 16 channels.
            unsafe { row_stats(isa, row, width, &mut entry[0]) };
        }
    });
    Ok(combine(&stats, layout))
}

/// Returns the minimum and maximum of an image, ignoring NaN.
///
/// # Errors
/// [`KernelError::Length`] if the buffer does not fit the layout.
pub fn range(isa: Isa, input: &[f32], layout: &Blocked) -> Result<(f32, f32), KernelError> {
    check_len("input", input.len(), layout.len())?;
    let [depth, height, _] = layout.dims;
    let mut ends = vec![[f32::INFINITY, f32::NEG_INFINITY]; layout.blocks() * depth];
    let shared = Shared::new(&mut ends);
    for_each(layout.blocks() * depth, |task| {
        // SAFETY: each task has its own entry; `Shared::slice` checks the bounds.
        let entry = unsafe { shared.slice(task, 1) };
        for h in 0..height {
            let at = layout.row_start(task / depth, task % depth, h);
            let (low, high) = row_range(isa, &input[at..at + layout.row_len()]);
            entry[0] = [entry[0][0].min(low), entry[0][1].max(high)];
        }
    });
    Ok(ends.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), [a, b]| (l.min(*a), h.max(*b))))
}

multiversion! {
    fn row_range(row: &[f32]) -> (f32, f32) {
        let (mut low, mut high) = ([f32::INFINITY; 16], [f32::NEG_INFINITY; 16]);
        let mut voxels = row.chunks_exact(16);
        for voxel in &mut voxels {
            for i in 0..16 {
                low[i] = low[i].min(voxel[i]);
                high[i] = high[i].max(voxel[i]);
            }
        }
        for v in voxels.remainder() {
            low[0] = low[0].min(*v);
            high[0] = high[0].max(*v);
        }
        (low.into_iter().fold(f32::INFINITY, f32::min), high.into_iter().fold(f32::NEG_INFINITY, f32::max))
    }
}

/// Pointer to a row of voxels of 16 channels.
#[derive(Clone, Copy)]
enum RowPointer {
    F32(*const f32),
    F16(*const u16),
    U8(*const u8),
}

with_lanes! {
    /// Adds a row to statistics.
    unsafe fn row_stats<L>(row: RowPointer, width: usize, stats: &mut LaneStats) {
        // SAFETY: the caller guarantees that the row holds `width` voxels of 16 channels; `with_lanes` checked the CPU.
        unsafe {
            match row {
                RowPointer::F32(p) => add_row::<L, 0>(p.cast(), width, stats),
                RowPointer::F16(p) => add_row::<L, 1>(p.cast(), width, stats),
                RowPointer::U8(p) => add_row::<L, 2>(p, width, stats),
            }
        }
    }
}

#[inline(always)]
unsafe fn voxel<L: Lanes, const KIND: u8>(from: *const u8, i: usize) -> L {
    // SAFETY: the caller guarantees that `from` holds voxel `i` in the format of `KIND` and that the CPU supports `L`;
    // the loads are unaligned.
    unsafe {
        match KIND {
            0 => L::load(from.cast::<f32>().add(i * 16)),
            1 => L::load_f16(from.cast::<u16>().add(i * 16)),
            _ => L::load_u8(from.add(i * 16)),
        }
    }
}

#[inline(always)]
unsafe fn add_row<L: Lanes, const KIND: u8>(from: *const u8, width: usize, stats: &mut LaneStats) {
    // SAFETY: the caller guarantees that `from` holds `width` voxels in the format of `KIND` and that the CPU supports
    // `L`.
    unsafe {
        if stats.count == 0 && width > 0 {
            stats.pivot = voxel::<L, KIND>(from, 0).to_array();
        }
        let pivot = L::load(stats.pivot.as_ptr());
        let (mut sum, mut square) = (L::load(stats.sum.as_ptr()), L::load(stats.square.as_ptr()));
        for i in 0..width {
            let away = voxel::<L, KIND>(from, i).sub(pivot);
            sum = sum.add(away);
            square = away.fma(away, square);
        }
        stats.sum = sum.to_array();
        stats.square = square.to_array();
        stats.count += width;
    }
}

multiversion! {
    fn row_moments(row: &[f32], pivot: &[f32; 16]) -> ([f32; 16], [f32; 16]) {
        let (mut sums, mut squares) = ([0.0f32; 16], [0.0f32; 16]);
        let (mut sums_odd, mut squares_odd) = ([0.0f32; 16], [0.0f32; 16]);
        let mut pairs = row.chunks_exact(32);
        for pair in &mut pairs {
            for i in 0..16 {
                let v = pair[i] - pivot[i];
                sums[i] += v;
                squares[i] += v * v;
                let w = pair[16 + i] - pivot[i];
                sums_odd[i] += w;
                squares_odd[i] += w * w;
            }
        }
        for voxel in pairs.remainder().chunks_exact(16) {
            for i in 0..16 {
                let v = voxel[i] - pivot[i];
                sums[i] += v;
                squares[i] += v * v;
            }
        }
        for i in 0..16 {
            sums[i] += sums_odd[i];
            squares[i] += squares_odd[i];
        }
        (sums, squares)
    }
}

fn row_moments_planar(row: &[f32], pivot: f32) -> ([f32; 16], [f32; 16]) {
    let (mut sums, mut squares) = ([0.0f32; 16], [0.0f32; 16]);
    for v in row {
        sums[0] += v - pivot;
        squares[0] += (v - pivot) * (v - pivot);
    }
    (sums, squares)
}

/// Computes `output = activation(input · scale[c] + shift[c] + residual)` for each voxel. Borders are not changed.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
#[allow(clippy::too_many_arguments)]
pub fn affine(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    scale: &[f32],
    shift: &[f32],
    residual: Residual<'_>,
    activation: Activation,
    output: &mut [f32],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("input", input.len(), in_layout.len())?;
    check_len("output", output.len(), out_layout.len())?;
    same_image(in_layout, out_layout)?;
    if let Some((values, layout)) = residual {
        check_len("residual", values.len(), layout.len())?;
        same_image(layout, out_layout)?;
    }
    let table = LaneTable::new(scale, shift, out_layout)?;
    for_each_row(output, out_layout, |b, d, h, out| {
        let at = in_layout.row_start(b, d, h);
        out.copy_from_slice(&input[at..at + out.len()]);
        affine_row(isa, out, &table.lanes[b], residual_row(residual, b, d, h), activation.slope());
    });
    Ok(())
}

/// [`affine`] in place.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn affine_in_place(
    isa: Isa,
    values: &mut [f32],
    layout: &Blocked,
    scale: &[f32],
    shift: &[f32],
    residual: Residual<'_>,
    activation: Activation,
) -> Result<(), KernelError> {
    check_len("values", values.len(), layout.len())?;
    if let Some((extra, extra_layout)) = residual {
        check_len("residual", extra.len(), extra_layout.len())?;
        same_image(extra_layout, layout)?;
    }
    let table = LaneTable::new(scale, shift, layout)?;
    for_each_row(values, layout, |b, d, h, out| {
        affine_row(isa, out, &table.lanes[b], residual_row(residual, b, d, h), activation.slope());
    });
    Ok(())
}

/// Returns a row of the residual.
fn residual_row(residual: Residual<'_>, block: usize, d: usize, h: usize) -> Option<&[f32]> {
    residual.map(|(values, layout)| &values[layout.row_start(block, d, h)..][..layout.row_len()])
}

/// Scale and shift of the lanes of each block; planar blocks repeat their channel's.
struct LaneTable {
    lanes: Vec<([f32; 16], [f32; 16])>,
}

impl LaneTable {
    fn new(scale: &[f32], shift: &[f32], layout: &Blocked) -> Result<Self, KernelError> {
        check_len("scale", scale.len(), layout.channels)?;
        check_len("shift", shift.len(), layout.channels)?;
        let lane = |values: &[f32], b: usize, fill: f32| -> [f32; 16] {
            std::array::from_fn(|i| {
                let c = if layout.block == 1 { b } else { b * layout.block + i };
                values.get(c).copied().unwrap_or(fill)
            })
        };
        Ok(Self { lanes: (0..layout.blocks()).map(|b| (lane(scale, b, 0.0), lane(shift, b, 0.0))).collect() })
    }
}

multiversion! {
    fn affine_row(out: &mut [f32], lanes: &([f32; 16], [f32; 16]), extra: Option<&[f32]>, slope: f32) {
        let (scale, shift) = lanes;
        match extra {
            None => {
                let mut voxels = out.chunks_exact_mut(16);
                for voxel in &mut voxels {
                    for i in 0..16 {
                        let v = voxel[i].mul_add(scale[i], shift[i]);
                        voxel[i] = leaky(v, slope);
                    }
                }
                for (i, x) in voxels.into_remainder().iter_mut().enumerate() {
                    let v = x.mul_add(scale[i], shift[i]);
                    *x = leaky(v, slope);
                }
            }
            Some(extra) => {
                let mut voxels = out.chunks_exact_mut(16);
                let mut others = extra.chunks_exact(16);
                for (voxel, other) in (&mut voxels).zip(&mut others) {
                    for i in 0..16 {
                        let v = voxel[i].mul_add(scale[i], shift[i]) + other[i];
                        voxel[i] = leaky(v, slope);
                    }
                }
                for (i, (x, e)) in voxels.into_remainder().iter_mut().zip(others.remainder()).enumerate() {
                    let v = x.mul_add(scale[i], shift[i]) + e;
                    *x = leaky(v, slope);
                }
            }
        }
    }
}
