//! Resizing by interpolation, one axis at a time (ONNX `Resize`).

use rayon::prelude::*;

use super::Call;
use cytoscope_graph::infer::resolve_axis;
use cytoscope_graph::infer::rules::resize_geometry;
use cytoscope_graph::{
    CoordinateMode, ElementType, GraphError, NearestMode, Op, ResizeAttrs, ResizeMode, Result, Tensor,
};

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
    let (_, factors) = resize_geometry(a, x.shape(), scales.as_deref(), sizes.as_deref())?;
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
        let steps = super::shape_ops::strides(shape);
        for (index, v) in values.iter_mut().enumerate() {
            if outside.iter().any(|(axis, gone)| gone[index / steps[*axis] % shape[*axis]]) {
                *v = f64::from(a.extrapolation_value);
            }
        }
    }
    if !x.dtype().is_float() && x.dtype() != ElementType::Bool {
        values.iter_mut().for_each(|v| *v = v.round_ties_even());
    }
    Ok(Tensor::new(shape, values)?.cast(x.dtype()))
}

/// Transposes a resize, which is linear in x and works per channel, from its response to each position.
fn transposed(of: &Op, x: &Tensor, arguments: &[Option<&Tensor>], dy: &[f64]) -> Result<Vec<f64>> {
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
        let response = super::eval(of, &inputs, 1)?.pop().ok_or_else(|| GraphError::malformed("Resize"))?;
        for (out, weight) in response.to_f64_vec().iter().enumerate().filter(|(_, w)| **w != 0.0) {
            for o in 0..outer {
                dx[o * per_in + at] += weight * dy[o * per_out + out];
            }
        }
    }
    Ok(dx)
}

/// Returns the factor of every axis of an [`Op::Resize`] of a tensor of shape `input`, from its scales or its sizes (an
/// empty tensor counts as absent).
///
/// # Errors
/// If both are absent or they do not fit the shape.
pub fn resize_factors(
    a: &ResizeAttrs,
    input: &[usize],
    scales: Option<&Tensor>,
    sizes: Option<&Tensor>,
) -> Result<Vec<f64>> {
    let scales = scales.filter(|t| !t.is_empty()).map(Tensor::to_f64_vec);
    let sizes = sizes.filter(|t| !t.is_empty()).and_then(Tensor::to_i64_vec);
    Ok(resize_geometry(a, input, scales.as_deref(), sizes.as_deref())?.1)
}

/// Returns the input coordinate of output position `o` along an axis whose length changes from `n` to `m` by `factor`;
/// `None` for [`CoordinateMode::TfCropAndResize`], which depends on a region.
pub fn resize_coordinate(a: &ResizeAttrs, o: usize, n: usize, m: usize, factor: f64) -> Option<f64> {
    (a.coordinates != CoordinateMode::TfCropAndResize).then(|| coordinate(a, o, n, m, factor, (0.0, 1.0)))
}

/// Returns the input element that output element `o` of a nearest-neighbor resize takes, along an axis whose length changes
/// from `n` to `m` by `factor`; `None` in the cases of [`resize_coordinate`].
pub fn nearest_source(a: &ResizeAttrs, o: usize, n: usize, m: usize, factor: f64) -> Option<usize> {
    resize_coordinate(a, o, n, m, factor).map(|x| nearest(a, x, n))
}

/// Returns the element nearest to a coordinate of an axis with `n` elements.
fn nearest(a: &ResizeAttrs, x: f64, n: usize) -> usize {
    let rounded = match a.nearest {
        NearestMode::RoundPreferFloor => (x - 0.5).ceil(),
        NearestMode::RoundPreferCeil => (x + 0.5).floor(),
        NearestMode::Floor => x.floor(),
        NearestMode::Ceil => x.ceil(),
    };
    rounded.clamp(0.0, n.saturating_sub(1) as f64) as usize
}

/// Returns the input coordinate of output position `o`, computed in f32 like in other executors.
fn coordinate(a: &ResizeAttrs, o: usize, n: usize, m: usize, factor: f64, (start, end): (f64, f64)) -> f64 {
    let (x, scale, length) = (o as f32, factor as f32, n as f32);
    let half = || (x + 0.5) / scale - 0.5;
    f64::from(match a.coordinates {
        CoordinateMode::HalfPixel => half(),
        CoordinateMode::HalfPixelSymmetric => {
            let adjustment = m as f32 / (scale * length);
            let center = length / 2.0;
            center * (1.0 - adjustment) + half()
        }
        CoordinateMode::PytorchHalfPixel if m > 1 => half(),
        CoordinateMode::PytorchHalfPixel => 0.0,
        CoordinateMode::AlignCorners if m > 1 => x * (length - 1.0) / (m as f32 - 1.0),
        CoordinateMode::AlignCorners => 0.0,
        CoordinateMode::Asymmetric => x / scale,
        CoordinateMode::TfHalfPixelForNn => (x + 0.5) / scale,
        CoordinateMode::TfCropAndResize => {
            let (start, end) = (start as f32, end as f32);
            if m > 1 {
                start * (length - 1.0) + x * (end - start) * (length - 1.0) / (m as f32 - 1.0)
            } else {
                0.5 * (start + end) * (length - 1.0)
            }
        }
    })
}

fn taps(a: &ResizeAttrs, o: usize, n: usize, m: usize, factor: f64, region: (f64, f64)) -> Taps {
    let x = coordinate(a, o, n, m, factor, region);
    let last = n.saturating_sub(1) as f64;
    if a.coordinates == CoordinateMode::TfCropAndResize && !(0.0..=last).contains(&x) {
        return None;
    }
    let inside = |i: f64| i.clamp(0.0, last) as usize;
    if a.mode == ResizeMode::Nearest {
        return Some(vec![(nearest(a, x, n), 1.0)]);
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
