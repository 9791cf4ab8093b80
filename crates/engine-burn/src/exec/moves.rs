//! Runs operators that move elements: reshape, slice, pad, resample.

use super::{Image, Uploaded, is_half};
use crate::form::Form;
use crate::plan::{Cut, Tap};
use burn_tensor::backend::Backend;
use burn_tensor::ops::PadMode;
use burn_tensor::{Slice, Tensor};

pub(super) fn reshape<B: Backend>(x: Image<B>, form: Form) -> Image<B> {
    if x.dims() == form { x } else { x.reshape(form) }
}

pub(super) fn slice<B: Backend>(x: Image<B>, cuts: &[Cut; 5]) -> Image<B> {
    let whole = x.dims().map(|len| Cut { start: 0, len, step: 1 });
    if *cuts == whole {
        return x;
    }
    x.slice(cuts.map(|cut| {
        let end = cut.start + (cut.len.max(1) - 1) * cut.step + 1;
        Slice::new(cut.start as isize, Some(end as isize), cut.step as isize)
    }))
}

/// Pads with a constant value.
pub(super) fn fill<B: Backend>(x: Image<B>, before: &[usize; 5], after: &[usize; 5], value: f32) -> Image<B> {
    if before.iter().chain(after).all(|n| *n == 0) {
        return x;
    }
    let pairs: [(usize, usize); 5] = std::array::from_fn(|a| (before[a], after[a]));
    if !is_half(&x) {
        return x.pad(pairs, PadMode::Constant(value));
    }
    // Burn 0.21 pads with its default float type instead of the tensor's type.
    let (old, options) = (x.dims(), (&x.device(), x.dtype()));
    let around: Image<B> =
        Tensor::full(std::array::from_fn::<_, 5, _>(|a| before[a] + old[a] + after[a]), value, options);
    let middle: [_; 5] = std::array::from_fn(|a| before[a]..before[a] + old[a]);
    around.slice_assign(middle, x)
}

/// Resamples axis by axis: each output is a weighted sum of input positions.
pub(super) fn resample<B: Backend>(
    mut x: Image<B>,
    axes: &[(usize, Vec<Tap>)],
    uploaded: &Uploaded<B>,
) -> Option<Image<B>> {
    for (axis, taps) in axes {
        let mut sum: Option<Tensor<B, 5>> = None;
        for tap in taps {
            let y = x.clone().select(*axis, uploaded.tables.get(tap.table)?.clone());
            let y = match tap.weights {
                Some(weights) => y * uploaded.constants.get(weights)?.clone(),
                None => y,
            };
            sum = Some(match sum {
                Some(sum) => sum + y,
                None => y,
            });
        }
        x = sum?;
    }
    Some(x)
}
