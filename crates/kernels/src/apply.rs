//! Fused element-wise pass: `activation(Σ source · scale[c] + shift[c])`, in any combination of number formats,
//! optionally followed by a 1×1×1 convolution to few channels.

use crate::conv::{Activation, Quantizer, Target};
use crate::lanes::{Lanes, with_lanes};
use crate::parallel::{Shared, for_each};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_len, check_that};

/// An image read by [`apply`].
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// 32-bit floats in blocks.
    F32(&'a [f32], &'a Blocked),
    /// 16-bit floats in blocks, as their bits.
    F16(&'a [u16], &'a Blocked),
    /// Bytes in blocks.
    U8(&'a [u8], &'a Blocked),
    /// One plane of 32-bit floats, broadcast to all channels.
    Plane(&'a [f32], &'a Blocked),
    /// The 32-bit floats in the output buffer.
    InPlace,
}

/// A source with a scale and a shift for each output channel.
#[derive(Clone, Copy)]
pub struct Term<'a> {
    /// The image that is read.
    pub source: Source<'a>,
    /// Scale of each channel.
    pub scale: &'a [f32],
    /// Shift of each channel.
    pub shift: &'a [f32],
}

/// Pointer to a row of a source.
#[derive(Clone, Copy)]
enum RowSource {
    F32(*const f32),
    F16(*const u16),
    U8(*const u8),
    Plane(*const f32),
    None,
}

/// Pointer to the output of a row.
#[derive(Clone, Copy)]
enum RowOut {
    F32(*mut f32),
    F16(*mut u16),
    U8(*mut u8, Quantizer),
    /// The dot product with 16 weights is added to one sum per voxel, after rounding by the quantizer, if any.
    Dot(*mut f32, *const f32, Option<Quantizer>),
}

/// Operands of one row of one block.
struct Row {
    len: usize,
    first: RowSource,
    second: RowSource,
    scale: [*const f32; 2],
    shift: [*const f32; 2],
    slope: f32,
}

/// Scale and shift of a term, padded to whole blocks.
struct PaddedTerm {
    scale: Vec<f32>,
    shift: Vec<f32>,
}

impl PaddedTerm {
    fn new(term: &Term<'_>, channels: usize) -> Result<Self, KernelError> {
        check_len("scale", term.scale.len(), channels)?;
        check_len("shift", term.shift.len(), channels)?;
        let padded = |v: &[f32]| {
            let mut v = v.to_vec();
            v.resize(channels.next_multiple_of(CHANNEL_BLOCK), 0.0);
            v
        };
        Ok(Self { scale: padded(term.scale), shift: padded(term.shift) })
    }
}

fn check_source(source: &Source<'_>, channels: usize, dims: [usize; 3], in_place: bool) -> Result<(), KernelError> {
    let (len, layout) = match source {
        Source::F32(v, l) | Source::Plane(v, l) => (v.len(), l),
        Source::F16(v, l) => (v.len(), l),
        Source::U8(v, l) => (v.len(), l),
        Source::InPlace => {
            return check_that(in_place, "source in place", "an output of 32-bit floats", "another format");
        }
    };
    check_len("source", len, layout.len())?;
    let (want, block) = if matches!(source, Source::Plane(..)) { (1, 1) } else { (channels, CHANNEL_BLOCK) };
    check_that(
        (layout.channels, layout.dims, layout.block) == (want, dims, block),
        "source",
        format!("{want} channels of {dims:?} in blocks of {block}"),
        format!("{layout:?}"),
    )
}

/// Returns the row of voxels `(d, h, ..)` of block `b`.
fn row_source(source: &Source<'_>, out: RowOut, b: usize, d: usize, h: usize) -> RowSource {
    match source {
        Source::F32(v, l) => RowSource::F32(v[l.row_start(b, d, h)..].as_ptr()),
        Source::F16(v, l) => RowSource::F16(v[l.row_start(b, d, h)..].as_ptr()),
        Source::U8(v, l) => RowSource::U8(v[l.row_start(b, d, h)..].as_ptr()),
        Source::Plane(v, l) => RowSource::Plane(v[l.row_start(0, d, h)..].as_ptr()),
        Source::InPlace => match out {
            RowOut::F32(p) => RowSource::F32(p.cast_const()),
            _ => RowSource::None,
        },
    }
}

enum SharedTarget<'a> {
    F32(Shared<'a, f32>),
    F16(Shared<'a, u16>),
    U8(Shared<'a, u8>, Quantizer),
}

/// Computes `target = activation(Σ terms)` for one or two terms on blocks of 16 channels. Borders are not changed.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn apply(
    isa: Isa,
    terms: &[Term<'_>],
    activation: Activation,
    target: Target<'_>,
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    let (len, in_place) = match &target {
        Target::F32(v) => (v.len(), true),
        Target::F16(v) => (v.len(), false),
        Target::U8(v, _) => (v.len(), false),
    };
    check_len("output", len, out_layout.len())?;
    check_that(out_layout.block == CHANNEL_BLOCK, "output block", CHANNEL_BLOCK, out_layout.block)?;
    let lanes = check_terms(terms, out_layout.channels, out_layout.dims, in_place)?;
    let shared = match target {
        Target::F32(v) => SharedTarget::F32(Shared::new(v)),
        Target::F16(v) => SharedTarget::F16(Shared::new(v)),
        Target::U8(v, q) => SharedTarget::U8(Shared::new(v), q),
    };
    let [depth, height, width] = out_layout.dims;
    let row_len = out_layout.row_len();
    for_each(depth * height.div_ceil(ROWS), |task| {
        let (d, chunk) = (task / height.div_ceil(ROWS), task % height.div_ceil(ROWS));
        for b in 0..out_layout.blocks() {
            for h in chunk * ROWS..((chunk + 1) * ROWS).min(height) {
                let at = out_layout.row_start(b, d, h);
                let out = match &shared {
                    SharedTarget::F32(v) => RowOut::F32(v.pointer(at, row_len)),
                    SharedTarget::F16(v) => RowOut::F16(v.pointer(at, row_len)),
                    SharedTarget::U8(v, q) => RowOut::U8(v.pointer(at, row_len), *q),
                };
                let row = make_row(terms, &lanes, activation, out, [b, d, h], width);
                // SAFETY: `check_terms` and `check_len` ensure that sources and output hold all rows of the layout.
                // Each task writes its own rows.
                unsafe { write_row(isa, &row, out) };
            }
        }
    });
    Ok(())
}

/// Number of rows per task.
const ROWS: usize = 8;

fn check_terms(
    terms: &[Term<'_>],
    channels: usize,
    dims: [usize; 3],
    in_place: bool,
) -> Result<Vec<PaddedTerm>, KernelError> {
    check_that(matches!(terms.len(), 1 | 2), "terms", "1 or 2", terms.len())?;
    terms
        .iter()
        .map(|t| {
            check_source(&t.source, channels, dims, in_place)?;
            PaddedTerm::new(t, channels)
        })
        .collect()
}

fn make_row(
    terms: &[Term<'_>],
    lanes: &[PaddedTerm],
    activation: Activation,
    out: RowOut,
    [b, d, h]: [usize; 3],
    len: usize,
) -> Row {
    let at = b * CHANNEL_BLOCK;
    let (first, second) = (0, terms.len() - 1);
    Row {
        len,
        first: row_source(&terms[first].source, out, b, d, h),
        second: if second == first { RowSource::None } else { row_source(&terms[second].source, out, b, d, h) },
        scale: [first, second].map(|i| lanes[i].scale[at..].as_ptr()),
        shift: [first, second].map(|i| lanes[i].shift[at..].as_ptr()),
        slope: activation.slope(),
    }
}

/// A 1×1×1 convolution to few channels at the end of a pass.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// Weights `[O][C]`.
    pub weights: &'a [f32],
    /// Bias `[O]`.
    pub bias: &'a [f32],
    /// If set, the pass's result is first quantized; the weights then apply to the integers.
    pub quantizer: Option<Quantizer>,
}

/// Computes `output[o] = bias[o] + Σ_c weights[o][c] · y[c]`, where `y` is the result of [`apply`] (in units of the
/// quantizer's scale, rounded and clamped, if there is one). The output is planar.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn apply_head(
    isa: Isa,
    terms: &[Term<'_>],
    channels: usize,
    activation: Activation,
    head: &Head<'_>,
    output: &mut [f32],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("output", output.len(), out_layout.len())?;
    check_that(out_layout.block == 1, "output block", 1, out_layout.block)?;
    check_len("weights", head.weights.len(), channels * out_layout.channels)?;
    check_len("bias", head.bias.len(), out_layout.channels)?;
    let lanes = check_terms(terms, channels, out_layout.dims, false)?;
    let blocks = channels.div_ceil(CHANNEL_BLOCK);
    let weights: Vec<f32> = head
        .weights
        .chunks_exact(channels.max(1))
        .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(0.0, blocks * CHANNEL_BLOCK - channels)))
        .collect();
    let [depth, height, width] = out_layout.dims;
    let shared = Shared::new(output);
    for_each(depth, |d| {
        for h in 0..height {
            for o in 0..out_layout.channels {
                // SAFETY: each task has its own slice `d` and so its own rows; `Shared::slice` checks the bounds.
                let out = unsafe { shared.slice(out_layout.row_start(o, d, h), width) };
                out.fill(head.bias[o]);
                for b in 0..blocks {
                    let lane = weights[(o * blocks + b) * CHANNEL_BLOCK..].as_ptr();
                    let to = RowOut::Dot(out.as_mut_ptr(), lane, head.quantizer);
                    let row = make_row(terms, &lanes, activation, to, [b, d, h], width);
                    // SAFETY: `check_terms` ensures that the sources hold all rows, `weights` is padded to whole
                    // blocks, and `out` is a row of `width` values.
                    unsafe { write_row(isa, &row, to) };
                }
            }
        }
    });
    Ok(())
}

const FROM_F32: u8 = 0;
const FROM_F16: u8 = 1;
const FROM_U8: u8 = 2;
const FROM_PLANE: u8 = 3;
const FROM_NONE: u8 = 4;

impl RowSource {
    fn kind(self) -> (u8, *const u8) {
        match self {
            RowSource::F32(p) => (FROM_F32, p.cast()),
            RowSource::F16(p) => (FROM_F16, p.cast()),
            RowSource::U8(p) => (FROM_U8, p),
            RowSource::Plane(p) => (FROM_PLANE, p.cast()),
            RowSource::None => (FROM_NONE, std::ptr::null()),
        }
    }
}

with_lanes! {
    /// Computes one row.
    unsafe fn write_row<L>(row: &Row, out: RowOut) {
        // SAFETY: the caller guarantees that the pointers of `row` and `out` reach `row.len` voxels; `with_lanes` runs
        // this on a CPU that supports `L`.
        unsafe {
            match row.first.kind().0 {
                FROM_F32 => dispatch_second::<L, FROM_F32>(row, out),
                FROM_F16 => dispatch_second::<L, FROM_F16>(row, out),
                FROM_U8 => dispatch_second::<L, FROM_U8>(row, out),
                FROM_PLANE => dispatch_second::<L, FROM_PLANE>(row, out),
                _ => {}
            }
        }
    }
}

#[inline(always)]
unsafe fn dispatch_second<L: Lanes, const A: u8>(row: &Row, out: RowOut) {
    // SAFETY: the caller guarantees that the pointers of `row` and `out` reach `row.len` voxels and that the CPU
    // supports `L`.
    unsafe {
        match row.second.kind().0 {
            FROM_F32 => dispatch_output::<L, A, FROM_F32>(row, out),
            FROM_F16 => dispatch_output::<L, A, FROM_F16>(row, out),
            FROM_U8 => dispatch_output::<L, A, FROM_U8>(row, out),
            FROM_PLANE => dispatch_output::<L, A, FROM_PLANE>(row, out),
            _ => dispatch_output::<L, A, FROM_NONE>(row, out),
        }
    }
}

#[inline(always)]
unsafe fn load<L: Lanes, const KIND: u8>(from: *const u8, i: usize) -> L {
    // SAFETY: the caller guarantees that `from` holds voxel `i` in the format of `KIND` and that the CPU supports `L`;
    // the loads are unaligned.
    unsafe {
        match KIND {
            FROM_F32 => L::load(from.cast::<f32>().add(i * 16)),
            FROM_F16 => L::load_f16(from.cast::<u16>().add(i * 16)),
            FROM_U8 => L::load_u8(from.add(i * 16)),
            _ => L::splat(*from.cast::<f32>().add(i)),
        }
    }
}

/// Scales, combined shift and slope in registers.
#[derive(Clone, Copy)]
struct Affine<L> {
    scale: [L; 2],
    shift: L,
    slope: f32,
    slopes: L,
}

// A function, because closures that are used twice are not inlined into code for a target feature.
#[inline(always)]
unsafe fn value<L: Lanes, const A: u8, const B: u8>(from: [*const u8; 2], affine: Affine<L>, i: usize) -> L {
    // SAFETY: the caller guarantees that both sources hold voxel `i` in the formats of `A` and `B` and that the CPU
    // supports `L`.
    unsafe {
        let mut v = load::<L, A>(from[0], i).fma(affine.scale[0], affine.shift);
        if B != FROM_NONE {
            v = load::<L, B>(from[1], i).fma(affine.scale[1], v);
        }
        v.activate(affine.slope, affine.slopes)
    }
}

#[inline(always)]
unsafe fn dispatch_output<L: Lanes, const A: u8, const B: u8>(row: &Row, out: RowOut) {
    // SAFETY: the caller guarantees that all sources and `out` hold `row.len` voxels, that scale, shift and weights
    // hold 16 values, and that the CPU supports `L`.
    unsafe {
        let from = [row.first.kind().1, row.second.kind().1];
        let len = row.len;
        let shift = L::load(row.shift[0]);
        let affine = Affine {
            scale: [L::load(row.scale[0]), L::load(row.scale[1])],
            shift: if B == FROM_NONE { shift } else { shift.add(L::load(row.shift[1])) },
            slope: row.slope,
            slopes: L::splat(row.slope),
        };
        match out {
            RowOut::F32(to) => {
                for i in 0..len {
                    value::<L, A, B>(from, affine, i).store(to.add(i * 16));
                }
            }
            RowOut::F16(to) => {
                for i in 0..len {
                    value::<L, A, B>(from, affine, i).store_f16(to.add(i * 16));
                }
            }
            RowOut::U8(to, q) => {
                let (inverse, zero) = (L::splat(q.inverse_scale), i32::from(q.zero_point));
                let (low, high) = (-zero as f32, (255 - zero) as f32);
                for i in 0..len {
                    value::<L, A, B>(from, affine, i).mul(inverse).store_u8(low, high, zero, to.add(i * 16));
                }
            }
            RowOut::Dot(to, weights, quantizer) => {
                let weights = L::load(weights);
                let (inverse, low, high) = match quantizer {
                    Some(q) => (q.inverse_scale, -f32::from(q.zero_point), 255.0 - f32::from(q.zero_point)),
                    None => (1.0, 0.0, 0.0),
                };
                let rounds = quantizer.is_some();
                let inverse = L::splat(inverse);
                let aligned_len = len - len % 16;
                for i in (0..aligned_len).step_by(16) {
                    let mut products = [weights; 16];
                    for p in 0..16 {
                        let v = value::<L, A, B>(from, affine, i + p);
                        let v = if rounds { v.mul(inverse).round_clamp(low, high) } else { v };
                        products[p] = v.mul(weights);
                    }
                    L::load(to.add(i)).add(L::sums(products)).store(to.add(i));
                }
                for i in aligned_len..len {
                    let v = value::<L, A, B>(from, affine, i);
                    let v = if rounds { v.mul(inverse).round_clamp(low, high) } else { v };
                    *to.add(i) += v.mul(weights).sum();
                }
            }
        }
    }
}
