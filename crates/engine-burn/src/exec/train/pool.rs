//! Runs gradients of pooling. The windows are separable, so the axes are processed one after the other.

use super::super::{Image, moves};
use crate::form::Form;
use crate::plan::{Cut, PoolAxis};
use burn_tensor::backend::Backend;
use burn_tensor::ops::PadMode;
use burn_tensor::{Slice, Tensor};

/// Returns the elements that tap `t` of a pooling window reads.
fn tap<B: Backend>(x: &Image<B>, of: &PoolAxis, t: usize) -> Image<B> {
    let start = t * of.dilation;
    let end = start + (of.len - 1) * of.stride + 1;
    x.clone().slice_dim(of.axis, Slice::new(start as isize, Some(end as isize), of.stride as isize))
}

/// Returns the sum of the taps' gradients, each at the positions that the tap reads. `length` is the length of the axis.
fn scatter_taps<B: Backend>(parts: Vec<Image<B>>, of: &PoolAxis, length: usize) -> Option<Image<B>> {
    let form = parts.first()?.dims();
    let (outer, inner): (usize, usize) = (form[..of.axis].iter().product(), form[of.axis + 1..].iter().product());
    let whole = |x: Tensor<B, 3>| {
        let mut form = form;
        form[of.axis] = length;
        x.reshape(form)
    };
    if of.kernel == of.stride && of.dilation == 1 {
        let parts = parts.into_iter().map(|x| x.reshape([outer, of.len, 1, inner])).collect();
        let together: Tensor<B, 4> = Tensor::cat(parts, 2);
        let x: Tensor<B, 3> = together.reshape([outer, of.len * of.kernel, inner]);
        let missing = length.checked_sub(of.len * of.kernel)?;
        return Some(whole(if missing == 0 { x } else { pad_zeros(x, 0, missing) }));
    }
    let mut sum: Option<Tensor<B, 3>> = None;
    for (t, part) in parts.into_iter().enumerate() {
        let spread: Tensor<B, 4> = part.reshape([outer, of.len, 1, inner]);
        let spread = spread.pad([(0, 0), (0, 0), (0, of.stride - 1), (0, 0)], PadMode::Constant(0.0));
        let reach = (of.len - 1) * of.stride + 1;
        let x: Tensor<B, 3> = spread.reshape([outer, of.len * of.stride, inner]);
        let start = t * of.dilation;
        let x = pad_zeros(x.slice_dim(1, 0..reach), start, length.checked_sub(start + reach)?);
        sum = Some(match sum {
            Some(sum) => sum + x,
            None => x,
        });
    }
    sum.map(whole)
}

/// Pads the middle axis with zeros.
fn pad_zeros<B: Backend>(x: Tensor<B, 3>, before: usize, after: usize) -> Tensor<B, 3> {
    if before == 0 && after == 0 {
        return x;
    }
    x.pad([(0, 0), (before, after), (0, 0)], PadMode::Constant(0.0))
}

/// Crops the padding.
fn crop_padding<B: Backend>(x: Image<B>, before: &[usize; 5], form: Form) -> Image<B> {
    let cuts: [Cut; 5] = std::array::from_fn(|a| Cut { start: before[a], len: form[a], step: 1 });
    moves::slice(x, &cuts)
}

/// Returns the gradient of max pooling: the gradient of a window is that of its first largest element in memory order.
pub(super) fn max_gradient<B: Backend>(
    x: Image<B>,
    dy: Image<B>,
    (before, after): (&[usize; 5], &[usize; 5]),
    axes: &[PoolAxis],
) -> Option<Image<B>> {
    let form = x.dims();
    let mut value = moves::fill(x, before, after, f32::NEG_INFINITY);
    let mut inputs_by_axis = Vec::with_capacity(axes.len());
    for of in axes.iter().rev() {
        let largest = (0..of.kernel).map(|t| tap(&value, of, t)).reduce(|a, b| a.max_pair(b))?;
        inputs_by_axis.push(std::mem::replace(&mut value, largest));
    }
    let mut g = dy;
    for of in axes {
        let input = inputs_by_axis.pop()?;
        let mut unassigned: Option<Image<B>> = None;
        let mut parts = Vec::with_capacity(of.kernel);
        for t in 0..of.kernel {
            let hit = tap(&input, of, t).equal(value.clone()).float();
            let share = match unassigned.clone() {
                Some(unassigned) => hit.clone() * unassigned,
                None => hit.clone(),
            };
            parts.push(g.clone() * share);
            let rest = hit.neg().add_scalar(1.0);
            unassigned = Some(match unassigned {
                Some(unassigned) => unassigned * rest,
                None => rest,
            });
        }
        g = scatter_taps(parts, of, input.dims()[of.axis])?;
        value = input;
    }
    Some(crop_padding(g, before, form))
}

/// Returns the gradient of average pooling: all elements of a window have equal shares of its gradient.
pub(super) fn mean_gradient<B: Backend>(
    form: Form,
    dy: Image<B>,
    (before, after): (&[usize; 5], &[usize; 5]),
    axes: &[PoolAxis],
    constants: &[Image<B>],
) -> Option<Image<B>> {
    let mut g = dy;
    for of in axes.iter().rev() {
        if let Some(weights) = of.weights {
            g = g * constants.get(weights)?.clone();
        }
        let length = form[of.axis] + before[of.axis] + after[of.axis];
        g = scatter_taps(vec![g; of.kernel], of, length)?;
    }
    Some(crop_padding(g, before, form))
}
