//! Max and average pooling.

use rayon::prelude::*;

use super::{Call, typed, value_range};
use cytoscope_graph::{Op, PoolAttrs, Result, Scalar, Tensor, TensorData, with_tensor_data};

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.need(0)?;
    match op {
        Op::MaxPool(a) => with_tensor_data!(x.data(), v => max_pool(a, v, x.shape(), call.shape(0)?)),
        Op::AveragePool(a) => Ok(vec![average(a, x, call.shape(0)?)?]),
        _ => {
            let max = matches!(op, Op::GlobalMaxPool);
            let channels: usize = x.shape().iter().take(2).product();
            let values = x.to_f64_vec();
            let each = values.len().checked_div(channels).unwrap_or(0).max(1);
            let results: Vec<f64> = values
                .chunks(each)
                .map(|c| {
                    if max {
                        c.iter().copied().fold(f64::NEG_INFINITY, greater)
                    } else {
                        c.iter().sum::<f64>() / each as f64
                    }
                })
                .collect();
            Ok(vec![Tensor::new(call.shape(0)?, results)?.cast(x.dtype())])
        }
    }
}

/// Returns the greater number; NaN if one of them is NaN, which `f64::max` ignores.
fn greater(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// Visits the input positions (flat, within one channel) of each window.
pub(super) struct Windows<'a> {
    a: &'a PoolAttrs,
    input: &'a [usize],
    output: &'a [usize],
    before: Vec<usize>,
    after: Vec<usize>,
}

impl<'a> Windows<'a> {
    pub(super) fn new(a: &'a PoolAttrs, input: &'a [usize], output: &'a [usize]) -> Self {
        let (before, after) = a.padding.resolve(input, &a.kernel, &a.strides, &a.dilations);
        Self { a, input, output, before, after }
    }

    /// Calls `visit` with each position inside the input, and returns the number of taps inside the padded input.
    pub(super) fn visit(&self, window: usize, mut visit: impl FnMut(&[usize])) -> usize {
        let rank = self.input.len();
        let mut origin = vec![0; rank];
        let mut rest = window;
        for axis in (0..rank).rev() {
            origin[axis] = rest % self.output[axis] * self.a.strides[axis];
            rest /= self.output[axis];
        }
        let taps: usize = self.a.kernel.iter().product();
        let mut position = vec![0; rank];
        let mut padded = 0;
        'taps: for tap in 0..taps {
            let (mut rest, mut inside) = (tap, true);
            for axis in (0..rank).rev() {
                let at = origin[axis] + rest % self.a.kernel[axis] * self.a.dilations[axis];
                rest /= self.a.kernel[axis];
                if at >= self.before[axis] + self.input[axis] + self.after[axis] {
                    continue 'taps;
                }
                inside &= at >= self.before[axis] && at - self.before[axis] < self.input[axis];
                position[axis] = at.wrapping_sub(self.before[axis]);
            }
            padded += 1;
            if inside {
                visit(&position);
            }
        }
        padded
    }
}

pub(super) fn flat(position: &[usize], lengths: &[usize]) -> usize {
    position.iter().zip(lengths).fold(0, |f, (p, n)| f * n + p)
}

fn max_pool<T: Scalar>(a: &PoolAttrs, x: &[T], input: &[usize], output: &[usize]) -> Result<Vec<Tensor>> {
    let (spatial_in, spatial_out) = (&input[2..], &output[2..]);
    let (per_in, per_out): (usize, usize) = (spatial_in.iter().product(), spatial_out.iter().product());
    let windows = Windows::new(a, spatial_in, spatial_out);
    let total: usize = output.iter().product();
    let found: Vec<(T, i64)> = (0..total)
        .into_par_iter()
        .map(|index| {
            let channel = index / per_out * per_in;
            let mut best: Option<(T, i64)> = None;
            windows.visit(index % per_out, |position| {
                let value = x[channel + flat(position, spatial_in)];
                // Like `greater`, for any type.
                if best.is_none_or(|(b, _)| value > b || value.partial_cmp(&value).is_none()) {
                    let at = if a.column_major_indices {
                        position.iter().zip(spatial_in).rev().fold(0, |f, (p, n)| f * n + p)
                    } else {
                        flat(position, spatial_in)
                    };
                    best = Some((value, (channel + at) as i64));
                }
            });
            best.unwrap_or((T::from_f64(value_range(T::TYPE).0), 0))
        })
        .collect();
    let (values, indices): (Vec<T>, Vec<i64>) = found.into_iter().unzip();
    Ok(vec![Tensor::new(output, values)?, Tensor::new(output, indices)?])
}

fn average(a: &PoolAttrs, x: &Tensor, output: &[usize]) -> Result<Tensor> {
    fn compute<T: Scalar>(a: &PoolAttrs, x: &[T], input: &[usize], output: &[usize]) -> TensorData {
        let (spatial_in, spatial_out) = (&input[2..], &output[2..]);
        let (per_in, per_out): (usize, usize) = (spatial_in.iter().product(), spatial_out.iter().product());
        let windows = Windows::new(a, spatial_in, spatial_out);
        let total: usize = output.iter().product();
        let values = (0..total).into_par_iter().map(|index| {
            let channel = index / per_out * per_in;
            let (mut sum, mut count) = (0.0, 0usize);
            let padded = windows.visit(index % per_out, |position| {
                sum += x[channel + flat(position, spatial_in)].to_f64();
                count += 1;
            });
            // A window with all taps outside the input (possible with dilation) gives 0.
            T::from_f64(sum / (if a.count_include_pad { padded } else { count }).max(1) as f64)
        });
        T::wrap(values.collect())
    }
    let data = match x.data() {
        TensorData::F64(_) => compute::<f64>(a, typed(x)?, x.shape(), output),
        _ => compute::<f32>(a, typed(x)?, x.shape(), output),
    };
    Tensor::from_data(output, data)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_graph::Padding;

    #[test]
    fn the_maximum_of_a_window_with_nan_is_nan() {
        let pool = Op::MaxPool(PoolAttrs {
            kernel: vec![1, 3],
            strides: vec![1, 3],
            dilations: vec![1, 1],
            padding: Padding::none(2),
            ceil_mode: false,
            count_include_pad: false,
            column_major_indices: false,
        });
        for at in 0..3 {
            let mut values = vec![1.0f32; 3];
            values[at] = f32::NAN;
            let x = Tensor::new([1, 1, 1, 3], values).unwrap();
            for op in [&pool, &Op::GlobalMaxPool] {
                let found = crate::eval(op, &[Some(&x)], 1).unwrap();
                assert!(found[0].to_f64_vec()[0].is_nan(), "{op:?} of NaN at {at}: {found:?}");
            }
        }
    }
}
