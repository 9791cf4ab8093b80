//! Convolution, transposed convolution and integer convolution.

use rayon::prelude::*;

use super::{Call, typed, wrong_type};
use cytoscope_graph::{
    BinaryOp, ConvAttrs, ConvTransposeAttrs, ElementType, GraphError, Op, Result, Scalar, Tensor, op_name,
};

/// Element types in which convolutions and matrix products accumulate.
pub(super) trait Accumulate: Scalar {
    fn add_product(self, a: Self, b: Self) -> Self;
}

impl Accumulate for f32 {
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        self + a * b
    }
}
impl Accumulate for f64 {
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        self + a * b
    }
}
impl Accumulate for i32 {
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        self.wrapping_add(a.wrapping_mul(b))
    }
}
impl Accumulate for i64 {
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        self.wrapping_add(a.wrapping_mul(b))
    }
}

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Vec<Tensor>> {
    Ok(vec![match op {
        Op::Conv(a) => float_conv(a, call)?,
        Op::FusedConv { conv, activation, residual } => {
            let mut y = float_conv(conv, call)?;
            if *residual {
                let op = Op::Binary(BinaryOp::Add);
                y = super::eval(&op, &[Some(&y), Some(call.need(3)?)], 1)?.pop().unwrap_or(y);
            }
            if let Some(activation) = activation {
                y = super::eval(&Op::Activation(*activation), &[Some(&y)], 1)?.pop().unwrap_or(y);
            }
            y
        }
        Op::ConvTranspose(a) => match call.need(0)?.dtype() {
            ElementType::F32 => transposed::<f32>(a, call)?,
            ElementType::F64 => transposed::<f64>(a, call)?,
            other => return Err(wrong_type(other)),
        },
        Op::ConvInteger(a) => {
            let x = super::quant::without_zero(call.need(0)?, call.get(2), 1)?;
            let w = super::quant::without_zero(call.need(1)?, call.get(3), 0)?;
            let geometry = Geometry::new(a, call.need(0)?.shape(), call.shape(0)?);
            Tensor::new(call.shape(0)?, convolve(&geometry, &x, &w, None))?
        }
        Op::QLinearConv(a) => {
            let x = super::quant::without_zero(call.need(0)?, call.get(2), 1)?;
            let w = super::quant::without_zero(call.need(3)?, call.get(5), 0)?;
            let geometry = Geometry::new(a, call.need(0)?.shape(), call.shape(0)?);
            let sums = convolve(&geometry, &x, &w, call.slice::<i32>(8)?);
            let sums = Tensor::new(call.shape(0)?, sums)?;
            super::quant::requantize(&sums, call.need(1)?, call.need(4)?, call.need(6)?, call.need(7)?, 1)?
        }
        other => return Err(GraphError::unsupported(op_name(other))),
    }])
}

fn float_conv(a: &ConvAttrs, call: &Call<'_>) -> Result<Tensor> {
    fn compute<T: Accumulate>(a: &ConvAttrs, call: &Call<'_>) -> Result<Tensor> {
        let geometry = Geometry::new(a, call.need(0)?.shape(), call.shape(0)?);
        let values = convolve(&geometry, typed::<T>(call.need(0)?)?, typed::<T>(call.need(1)?)?, call.slice::<T>(2)?);
        Tensor::new(call.shape(0)?, values)
    }
    match call.need(0)?.dtype() {
        ElementType::F32 => compute::<f32>(a, call),
        ElementType::F64 => compute::<f64>(a, call),
        other => Err(wrong_type(other)),
    }
}

/// Geometry of a convolution with three spatial axes; missing leading axes have length 1.
pub(super) struct Geometry {
    batch: usize,
    in_channels: usize,
    out_channels: usize,
    group: usize,
    input: [usize; 3],
    output: [usize; 3],
    kernel: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
    before: [isize; 3],
}

/// Returns the last three entries, with `fill` in front of shorter lists.
fn three<T: Copy>(values: &[T], fill: T) -> [T; 3] {
    let mut result = [fill; 3];
    for (slot, &value) in result.iter_mut().rev().zip(values.iter().rev()) {
        *slot = value;
    }
    result
}

impl Geometry {
    pub(super) fn new(a: &ConvAttrs, input: &[usize], output: &[usize]) -> Self {
        let spatial = input.get(2..).unwrap_or_default();
        let (before, _) = a.padding.resolve(spatial, &a.kernel, &a.strides, &a.dilations);
        let before: Vec<isize> = before.iter().map(|&b| b as isize).collect();
        Self {
            batch: input.first().copied().unwrap_or(1),
            in_channels: input.get(1).copied().unwrap_or(1),
            out_channels: output.get(1).copied().unwrap_or(1),
            group: a.group,
            input: three(spatial, 1),
            output: three(output.get(2..).unwrap_or_default(), 1),
            kernel: three(&a.kernel, 1),
            stride: three(&a.strides, 1),
            dilation: three(&a.dilations, 1),
            before: three(&before, 0),
        }
    }

    /// Calls `visit` with the flat positions in input, weight and output of every product that the convolution sums.
    pub(super) fn visit(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let (in_group, out_group) = (self.in_channels / self.group, (self.out_channels / self.group).max(1));
        let axis = |a: usize| {
            (0..self.output[a])
                .flat_map(move |o| (0..self.kernel[a]).filter_map(move |k| Some((o, k, self.source(a, o, k)?))))
        };
        for n in 0..self.batch {
            for m in 0..self.out_channels {
                for c in 0..in_group {
                    let channel = m / out_group * in_group + c;
                    for (oz, kz, iz) in axis(0) {
                        for (oy, ky, iy) in axis(1) {
                            for (ox, kx, ix) in axis(2) {
                                let x = ((n * self.in_channels + channel) * self.input[0] + iz) * self.input[1] + iy;
                                let w = ((m * in_group + c) * self.kernel[0] + kz) * self.kernel[1] + ky;
                                let y = ((n * self.out_channels + m) * self.output[0] + oz) * self.output[1] + oy;
                                visit(x * self.input[2] + ix, w * self.kernel[2] + kx, y * self.output[2] + ox);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Returns the input position of output position `o` and tap `k`, if it is inside the input.
    fn source(&self, axis: usize, o: usize, k: usize) -> Option<usize> {
        let at = (o * self.stride[axis] + k * self.dilation[axis]) as isize - self.before[axis];
        usize::try_from(at).ok().filter(|&i| i < self.input[axis])
    }
}

fn convolve<T: Accumulate>(g: &Geometry, x: &[T], w: &[T], bias: Option<&[T]>) -> Vec<T> {
    let plane_out = g.output[1] * g.output[2];
    let mut y = vec![T::default(); g.batch * g.out_channels * g.output[0] * plane_out];
    if y.is_empty() {
        return y;
    }
    let in_group = g.in_channels / g.group;
    let out_group = (g.out_channels / g.group).max(1);
    let taps: usize = g.kernel.iter().product();
    let row_in = g.input[2];
    y.par_chunks_mut(plane_out).enumerate().for_each(|(index, plane)| {
        let oz = index % g.output[0];
        let m = index / g.output[0] % g.out_channels;
        let n = index / g.output[0] / g.out_channels;
        plane.fill(bias.map_or_else(T::default, |b| b[m]));
        let first = m / out_group * in_group;
        for c in 0..in_group {
            let volume = ((n * g.in_channels + first + c) * g.input[0]) * g.input[1] * row_in;
            let weights = &w[(m * in_group + c) * taps..][..taps];
            for kz in 0..g.kernel[0] {
                let Some(iz) = g.source(0, oz, kz) else { continue };
                for ky in 0..g.kernel[1] {
                    let row_weights = &weights[(kz * g.kernel[1] + ky) * g.kernel[2]..][..g.kernel[2]];
                    for oy in 0..g.output[1] {
                        let Some(iy) = g.source(1, oy, ky) else { continue };
                        let source = &x[volume + (iz * g.input[1] + iy) * row_in..][..row_in];
                        convolve_row(g, source, row_weights, &mut plane[oy * g.output[2]..][..g.output[2]]);
                    }
                }
            }
        }
    });
    y
}

/// Adds one row of taps applied to one row of input to one row of output.
fn convolve_row<T: Accumulate>(g: &Geometry, source: &[T], weights: &[T], out: &mut [T]) {
    let n = source.len();
    if let ([a, b, c], 1, 1, 1) = (weights, g.stride[2], g.dilation[2], g.before[2])
        && out.len() == n
        && n >= 2
    {
        // The common kernel of length 3 with "same" padding: one pass instead of three.
        out[0] = out[0].add_product(*b, source[0]).add_product(*c, source[1]);
        for (o, s) in out[1..n - 1].iter_mut().zip(source.windows(3)) {
            *o = o.add_product(*a, s[0]).add_product(*b, s[1]).add_product(*c, s[2]);
        }
        out[n - 1] = out[n - 1].add_product(*a, source[n - 2]).add_product(*b, source[n - 1]);
        return;
    }
    for (k, &weight) in weights.iter().enumerate() {
        let shift = (k * g.dilation[2]) as isize - g.before[2];
        let stride = g.stride[2];
        // Outputs whose source o·stride + shift lies within 0..n.
        let from = if shift < 0 { shift.unsigned_abs().div_ceil(stride) } else { 0 };
        let end = (n as isize - shift).max(0) as usize;
        let to = end.div_ceil(stride).min(out.len());
        if from >= to {
            continue;
        }
        let start = ((from * stride) as isize + shift) as usize;
        if stride == 1 {
            for (o, s) in out[from..to].iter_mut().zip(&source[start..]) {
                *o = o.add_product(weight, *s);
            }
        } else {
            for (o, s) in out[from..to].iter_mut().zip(source[start..].iter().step_by(stride)) {
                *o = o.add_product(weight, *s);
            }
        }
    }
}

fn transposed<T: Accumulate>(a: &ConvTransposeAttrs, call: &Call<'_>) -> Result<Tensor> {
    let (x, w) = (call.need(0)?, call.need(1)?);
    let (xs, shape) = (x.shape(), call.shape(0)?);
    let geometry = a.geometry(xs.get(2..).unwrap_or_default())?;
    let (values, weights, bias) = (typed::<T>(x)?, typed::<T>(w)?, call.slice::<T>(2)?);
    let input = three(xs.get(2..).unwrap_or_default(), 1);
    let output = three(shape.get(2..).unwrap_or_default(), 1);
    let (kernel, stride, dilation) = (three(&a.kernel, 1), three(&a.strides, 1), three(&a.dilations, 1));
    let before = three(&geometry.before, 0);
    let (in_channels, out_channels) = (xs.get(1).copied().unwrap_or(1), shape.get(1).copied().unwrap_or(1));
    let (in_group, out_group) = (in_channels / a.group, (out_channels / a.group).max(1));
    let taps: usize = kernel.iter().product();
    let volume_in: usize = input.iter().product();
    let volume_out: usize = output.iter().product();
    let mut y = vec![T::default(); shape.iter().product()];
    if y.is_empty() {
        return Tensor::new(shape, y);
    }
    let target = |axis: usize, i: usize, k: usize| {
        let at = (i * stride[axis] + k * dilation[axis]) as isize - before[axis];
        usize::try_from(at).ok().filter(|&o| o < output[axis])
    };
    y.par_chunks_mut(volume_out).enumerate().for_each(|(index, volume)| {
        let (n, m) = (index / out_channels, index % out_channels);
        volume.fill(bias.map_or_else(T::default, |b| b[m]));
        let group = m / out_group;
        for c in group * in_group..(group + 1) * in_group {
            let source = &values[(n * in_channels + c) * volume_in..][..volume_in];
            let kernel_weights = &weights[(c * out_group + m % out_group) * taps..][..taps];
            for kz in 0..kernel[0] {
                for iz in 0..input[0] {
                    let Some(oz) = target(0, iz, kz) else { continue };
                    for ky in 0..kernel[1] {
                        for iy in 0..input[1] {
                            let Some(oy) = target(1, iy, ky) else { continue };
                            let row = &source[(iz * input[1] + iy) * input[2]..][..input[2]];
                            let out = &mut volume[(oz * output[1] + oy) * output[2]..][..output[2]];
                            for kx in 0..kernel[2] {
                                let weight = kernel_weights[(kz * kernel[1] + ky) * kernel[2] + kx];
                                for (ix, &value) in row.iter().enumerate() {
                                    if let Some(ox) = target(2, ix, kx) {
                                        out[ox] = out[ox].add_product(weight, value);
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    });
    Tensor::new(shape, y)
}
