//! Gradients of pools. A window is the product of its axes, so these go one after the other, and back.

use super::super::{Image, moves};
use crate::form::Form;
use crate::plan::{Cut, PoolAxis};
use burn_tensor::backend::Backend;
use burn_tensor::ops::PadMode;
use burn_tensor::{Slice, Tensor};

/// What tap `t` of a pool sees.
fn tap<B: Backend>(x: &Image<B>, of: &PoolAxis, t: usize) -> Image<B> {
    let start = t * of.dilation;
    let end = start + (of.len - 1) * of.stride + 1;
    x.clone().slice_dim(of.axis, Slice::new(start as isize, Some(end as isize), of.stride as isize))
}

/// What each tap gets, put back where it was seen and added up, on an axis of this length.
fn put<B: Backend>(parts: Vec<Image<B>>, of: &PoolAxis, length: usize) -> Option<Image<B>> {
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
        return Some(whole(if missing == 0 { x } else { around(x, 0, missing) }));
    }
    let mut sum: Option<Tensor<B, 3>> = None;
    for (t, part) in parts.into_iter().enumerate() {
        let spread: Tensor<B, 4> = part.reshape([outer, of.len, 1, inner]);
        let spread = spread.pad([(0, 0), (0, 0), (0, of.stride - 1), (0, 0)], PadMode::Constant(0.0));
        let reach = (of.len - 1) * of.stride + 1;
        let x: Tensor<B, 3> = spread.reshape([outer, of.len * of.stride, inner]);
        let start = t * of.dilation;
        let x = around(x.slice_dim(1, 0..reach), start, length.checked_sub(start + reach)?);
        sum = Some(match sum {
            Some(sum) => sum + x,
            None => x,
        });
    }
    sum.map(whole)
}

/// Zeros before and after the middle axis.
fn around<B: Backend>(x: Tensor<B, 3>, before: usize, after: usize) -> Tensor<B, 3> {
    if before == 0 && after == 0 {
        return x;
    }
    x.pad([(0, 0), (before, after), (0, 0)], PadMode::Constant(0.0))
}

/// The padding cut off again.
fn inside<B: Backend>(x: Image<B>, before: &[usize; 5], form: Form) -> Image<B> {
    let cuts: [Cut; 5] = std::array::from_fn(|a| Cut { start: before[a], len: form[a], step: 1 });
    moves::slice(x, &cuts)
}

/// The gradient goes to the first of the largest elements, in the order of memory: along the last axis first.
pub(super) fn of_max<B: Backend>(
    x: Image<B>,
    dy: Image<B>,
    (before, after): (&[usize; 5], &[usize; 5]),
    axes: &[PoolAxis],
) -> Option<Image<B>> {
    let form = x.dims();
    let mut value = moves::fill(x, before, after, f32::MIN);
    let mut seen = Vec::with_capacity(axes.len());
    for of in axes.iter().rev() {
        let largest = (0..of.kernel).map(|t| tap(&value, of, t)).reduce(|a, b| a.max_pair(b))?;
        seen.push(std::mem::replace(&mut value, largest));
    }
    let mut g = dy;
    for of in axes {
        let below = seen.pop()?;
        let mut open: Option<Image<B>> = None;
        let mut parts = Vec::with_capacity(of.kernel);
        for t in 0..of.kernel {
            let hit = tap(&below, of, t).equal(value.clone()).float();
            let taken = match open.clone() {
                Some(open) => hit.clone() * open,
                None => hit.clone(),
            };
            parts.push(g.clone() * taken);
            let rest = hit.neg().add_scalar(1.0);
            open = Some(match open {
                Some(open) => open * rest,
                None => rest,
            });
        }
        g = put(parts, of, below.dims()[of.axis])?;
        value = below;
    }
    Some(inside(g, before, form))
}

/// The gradient goes to every element in equal shares.
pub(super) fn of_mean<B: Backend>(
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
        g = put(vec![g; of.kernel], of, length)?;
    }
    // Axes that no window moves along keep their length.
    Some(inside(g, before, form))
}
