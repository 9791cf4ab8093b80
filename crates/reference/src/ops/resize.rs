//! Resizing by interpolation, one axis at a time (ONNX `Resize`).

use rayon::prelude::*;

use crate::Call;
use cytoscope_graph::infer::resolve_axis;
use cytoscope_graph::{CoordinateMode, ElementType, GraphError, Op, ResizeAttrs, ResizeMode, Result, Tensor};

/// Input positions and weights of one output position along one axis; `None` outside the region of interest.
type Taps = Option<Vec<(usize, f64)>>;

/// Runs a resize; `None` for other operators.
pub(super) fn eval(op: &Op, call: &Call<'_>) -> Option<Result<Tensor>> {
    if let Op::Resize(a) = op { Some(resize(a, call)) } else { None }
}

/// Returns the gradient of x of a resize, given that of its output; `None` for other operators.
pub(super) fn gradient(op: &Op, x: &Tensor, arguments: &[Option<&Tensor>], dy: &[f64]) -> Option<Result<Vec<f64>>> {
    matches!(op, Op::Resize(_)).then(|| transposed(op, x, arguments, dy))
}

fn resize(a: &ResizeAttrs, call: &Call<'_>) -> Result<Tensor> {
    let x = call.need(0)?;
    let shape = call.shape(0)?;
    let present = |i: usize| call.get(i).filter(|t| !t.is_empty());
    let scales = present(2).map(Tensor::to_f64_vec);
    let sizes = present(3).and_then(Tensor::to_i64_vec);
    let (_, factors) = a.geometry(x.shape(), scales.as_deref(), sizes.as_deref())?;
    let axes: Vec<usize> = match &a.axes {
        Some(axes) => axes.iter().map(|&i| resolve_axis(i, x.rank())).collect::<Result<_>>()?,
        None => (0..x.rank()).collect(),
    };
    let roi = call.get(1).map(Tensor::to_f64_vec).unwrap_or_default();
    let mut values = x.to_f64_vec();
    let mut now = x.shape().to_vec();
    let mut outside: Vec<(usize, Vec<bool>)> = Vec::new();
    for axis in 0..x.rank() {
        let (n, m) = (now[axis], shape[axis]);
        let region = axes
            .iter()
            .position(|&i| i == axis)
            .map(|i| (roi.get(i).copied().unwrap_or(0.0), roi.get(i + axes.len()).copied().unwrap_or(1.0)));
        let cropping = a.coordinates == CoordinateMode::TfCropAndResize && region.is_some();
        if n == m && factors[axis] == 1.0 && !cropping {
            continue;
        }
        let table: Vec<Taps> = (0..m).map(|o| taps(a, o, n, m, factors[axis], region.unwrap_or((0.0, 1.0)))).collect();
        outside.push((axis, table.iter().map(Option::is_none).collect()));
        let inner: usize = now[axis + 1..].iter().product();
        let outer: usize = now[..axis].iter().product();
        now[axis] = m;
        let mut out = vec![0.0; outer * m * inner];
        if inner > 0 {
            out.par_chunks_mut(inner).enumerate().for_each(|(index, row)| {
                let (block, o) = (index / m, index % m);
                for &(i, w) in table[o].iter().flatten() {
                    let source = &values[(block * n + i) * inner..][..inner];
                    for (r, s) in row.iter_mut().zip(source) {
                        *r += w * s;
                    }
                }
            });
        }
        values = out;
    }
    if a.coordinates == CoordinateMode::TfCropAndResize {
        let steps = crate::shape_ops::strides(shape);
        for (index, v) in values.iter_mut().enumerate() {
            if outside.iter().any(|(axis, gone)| gone[index / steps[*axis] % shape[*axis]]) {
                *v = f64::from(a.extrapolation_value);
            }
        }
    }
    if !x.dtype().is_float() && x.dtype() != ElementType::Bool {
        // A cubic kernel overshoots: results are limited to the values of the type.
        let (low, high) = crate::value_range(x.dtype());
        values.iter_mut().for_each(|v| *v = v.round_ties_even().clamp(low, high));
    }
    Ok(Tensor::new(shape, values)?.cast(x.dtype()))
}

/// Transposes a resize, which is linear in x and works per channel, from its response to each position.
fn transposed(op: &Op, x: &Tensor, arguments: &[Option<&Tensor>], dy: &[f64]) -> Result<Vec<f64>> {
    let outer: usize = x.shape().iter().take(2).product();
    let (per_in, per_out) = (x.len() / outer.max(1), dy.len() / outer.max(1));
    let mut shape = x.shape().to_vec();
    shape.iter_mut().take(2).for_each(|n| *n = 1);
    let mut dx = vec![0.0; x.len()];
    // Sizes list every axis; those of batch and channels must be one here.
    let mut changed: Vec<Option<Tensor>> = arguments.iter().map(|t| t.cloned()).collect();
    if let Some(Some(sizes)) = changed.get_mut(3)
        && sizes.len() == x.rank()
        && let Some(mut values) = sizes.to_i64_vec()
    {
        values.iter_mut().take(2).for_each(|n| *n = 1);
        *sizes = Tensor::vector(values);
    }
    for at in 0..per_in {
        let mut unit = vec![0.0; per_in];
        unit[at] = 1.0;
        let unit = Tensor::new(shape.clone(), unit)?;
        let mut inputs: Vec<Option<&Tensor>> = changed.iter().map(Option::as_ref).collect();
        if let Some(first) = inputs.first_mut() {
            *first = Some(&unit);
        }
        let response = crate::eval(op, &inputs, 1)?.pop().ok_or_else(|| GraphError::malformed("Resize"))?;
        for (out, weight) in response.to_f64_vec().iter().enumerate().filter(|(_, w)| **w != 0.0) {
            for o in 0..outer {
                dx[o * per_in + at] += weight * dy[o * per_out + out];
            }
        }
    }
    Ok(dx)
}

fn taps(a: &ResizeAttrs, o: usize, n: usize, m: usize, factor: f64, region: (f64, f64)) -> Taps {
    let x = a.coordinate_in_region(o, n, m, factor, region);
    let last = n.saturating_sub(1) as f64;
    if a.coordinates == CoordinateMode::TfCropAndResize && !(0.0..=last).contains(&x) {
        return None;
    }
    let inside = |i: f64| i.clamp(0.0, last) as usize;
    if a.mode == ResizeMode::Nearest {
        return Some(vec![(a.nearest_element(x, n), 1.0)]);
    }
    // The kernel is widened by 1/factor when shrinking with antialiasing.
    let reach = if a.mode == ResizeMode::Linear { 1.0 } else { 2.0 };
    // A kernel wider than the whole axis only repeats the border; this bounds the work for extreme factors.
    let width = if a.antialias { factor.clamp(reach / (4.0 * n as f64 + 8.0), 1.0) } else { 1.0 };
    let base = x.floor();
    let first = (-reach / width).floor() as i64 + 1;
    let count = 2 - 2 * first;
    let mut found: Vec<(f64, f64)> = (first..first + count)
        .map(|j| {
            let i = base + j as f64;
            let distance = ((i - x) * width).abs();
            (
                i,
                if a.mode == ResizeMode::Linear {
                    (1.0 - distance).max(0.0)
                } else {
                    cubic(distance, a.cubic_coeff_a.into())
                },
            )
        })
        .collect();
    if a.exclude_outside {
        found.retain(|(i, _)| (0.0..=last).contains(i));
    }
    let sum: f64 = found.iter().map(|(_, w)| w).sum();
    let norm = if (a.antialias || a.exclude_outside) && sum != 0.0 { sum } else { 1.0 };
    Some(found.into_iter().filter(|(_, w)| *w != 0.0).map(|(i, w)| (inside(i), w / norm)).collect())
}

/// Keys' cubic kernel (R. Keys, 1981).
fn cubic(d: f64, a: f64) -> f64 {
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
    } else {
        0.0
    }
}
