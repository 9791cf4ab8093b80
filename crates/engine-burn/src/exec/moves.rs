//! Runs operators that move elements: reshape, slice, pad, resample.

use super::{Image, Uploaded, is_half};
use crate::form::Form;
use crate::kernels::{DeviceBackend, Training};
use crate::plan::{Cut, Tap};
use burn_tensor::backend::Backend;
use burn_tensor::ops::PadMode;
use burn_tensor::{Slice, Tensor};
use std::ops::Range;

/// Returns the tensor with this form; the order of the elements stays.
pub(super) fn reshape<B: Backend>(x: Image<B>, form: Form) -> Image<B> {
    if x.dims() == form { x } else { x.reshape(form) }
}

/// Cuts a tensor along all axes; the result may share its memory.
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

/// Concatenates tensors; `None` if there are none.
pub(super) fn concatenate<B: DeviceBackend>(inputs: Vec<Image<B>>, axis: usize) -> Option<Image<B>> {
    let computed = if axis == 1 && inputs.len() == 2 { B::train(&Training::Concat, inputs.clone()) } else { None };
    if let Some(mut computed) = computed {
        return computed.pop();
    }
    (!inputs.is_empty()).then(|| Tensor::cat(inputs, axis))
}

/// Places long tensors (axes L, 1, 1, 1, 1) at `starts` in a tensor of `elements` elements, which is 0 elsewhere. Returns
/// `None` if they overlap or exceed it.
pub(super) fn join<B: DeviceBackend>(parts: Vec<Image<B>>, starts: &[usize], elements: usize) -> Option<Image<B>> {
    let kernel = Training::Join { starts: starts.to_vec(), elements };
    if let Some(mut computed) = B::train(&kernel, parts.clone()) {
        return computed.pop();
    }
    let mut all = Vec::with_capacity(2 * parts.len());
    let mut end = 0;
    for (part, start) in parts.into_iter().zip(starts) {
        let missing = start.checked_sub(end)?;
        if missing > 0 {
            all.push(Tensor::zeros([missing, 1, 1, 1, 1], &part.device()));
        }
        end = start + part.dims()[0];
        all.push(part);
    }
    let (missing, device) = (elements.checked_sub(end)?, all.first()?.device());
    if missing > 0 {
        all.push(Tensor::zeros([missing, 1, 1, 1, 1], &device));
    }
    Some(Tensor::cat(all, 0))
}

/// Returns a part of a long tensor (axes L, 1, 1, 1, 1) in the same memory, if there is such a kernel.
fn part<B: DeviceBackend>(x: &Image<B>, cuts: &[Cut; 5]) -> Option<Image<B>> {
    let [Cut { start, len, step: 1 }, ..] = *cuts else { return None };
    if x.dims()[1..] != [1; 4] {
        return None;
    }
    B::train(&Training::Part { start, elements: len }, vec![x.clone()])?.pop()
}

/// Copies neighboring elements, if there is such a kernel.
fn copied<B: DeviceBackend>(x: &Image<B>, cuts: &[Cut; 5]) -> Option<Image<B>> {
    if cuts.iter().any(|cut| cut.step != 1) {
        return None;
    }
    let (start, form) = (cuts.map(|cut| cut.start), cuts.map(|cut| cut.len));
    if form == x.dims() {
        return None;
    }
    B::train(&Training::Cut { start, form }, vec![x.clone()])?.pop()
}

/// Cuts a tensor; parts of long ones share its memory if possible.
pub(super) fn cut<B: DeviceBackend>(x: Image<B>, cuts: &[Cut; 5]) -> Image<B> {
    part(&x, cuts).or_else(|| copied(&x, cuts)).unwrap_or_else(|| slice(x, cuts))
}

/// Cuts tiles of a slab with one sample, and stacks them as the samples of a tensor of this form. Tiles start at `starts`,
/// Z, Y, X. Returns `None` if there are none.
pub(crate) fn gather_tiles<B: Backend>(slab: &Image<B>, starts: &[[usize; 3]], form: Form) -> Option<Image<B>> {
    let tile = |start: &[usize; 3]| {
        let whole = |len: usize| Cut { start: 0, len, step: 1 };
        let along = |a: usize| Cut { start: start[a], len: form[a + 2], step: 1 };
        slice(slab.clone(), &[whole(1), whole(form[1]), along(0), along(1), along(2)])
    };
    if slab.dims() == form {
        return (starts.len() == 1).then(|| slab.clone());
    }
    // Some slices are views of the slab, whose strides differ from those for which the kernels were timed. `cat` returns
    // a copy, even of a single tensor.
    let tiles: Vec<Image<B>> = starts.iter().map(tile).collect();
    (!tiles.is_empty()).then(|| Tensor::cat(tiles, 0))
}

/// Copies a part of one sample, all channels and these ranges along Z, Y, X. Returns `None` if it exceeds the tensor.
pub(crate) fn copy_part<B: Backend>(x: &Image<B>, sample: usize, ranges: &[Range<usize>; 3]) -> Option<Image<B>> {
    let dims = x.dims();
    let is_inside = |a: usize| ranges[a].start < ranges[a].end && ranges[a].end <= dims[a + 2];
    if sample >= dims[0] || !(0..3).all(is_inside) {
        return None;
    }
    let along = |a: usize| Cut { start: ranges[a].start, len: ranges[a].len(), step: 1 };
    let one = Cut { start: sample, len: 1, step: 1 };
    let channels = Cut { start: 0, len: dims[1], step: 1 };
    // A view would keep all of the tensor in memory; `cat` returns a copy.
    Some(Tensor::cat(vec![slice(x.clone(), &[one, channels, along(0), along(1), along(2)])], 0))
}

/// Returns how many rows and columns of sample `sample` of tiles of this form lie within sums of form `sums`, if the tile
/// starts at row and column `corner`; `None` if the forms do not fit.
pub(crate) fn covered(sums: &Form, tiles: &Form, sample: usize, [row, column]: [usize; 2]) -> Option<[usize; 2]> {
    let is_alike = sums[0] == 1 && sample < tiles[0] && sums[1..3] == tiles[1..3];
    (is_alike && row < sums[3] && column < sums[4])
        .then(|| [tiles[3].min(sums[3] - row), tiles[4].min(sums[4] - column)])
}

/// Adds a sample of `tiles`, times the weights of its voxels, to `sums`, from row and column `corner` on. Voxels beyond the
/// sums are left out. Returns `None` if the forms do not fit.
pub(crate) fn add_weighted<B: Backend>(
    sums: Image<B>,
    tiles: &Image<B>,
    sample: usize,
    weights: &Image<B>,
    corner: [usize; 2],
) -> Option<Image<B>> {
    let (form, [row, column]) = (sums.dims(), corner);
    let [rows, columns] = covered(&form, &tiles.dims(), sample, corner)?;
    let part = |start: usize, len: usize| Cut { start, len, step: 1 };
    let spatial = [part(0, form[2]), part(0, rows), part(0, columns)];
    let cut = |of: &Image<B>, sample: usize, channels: usize| {
        let [z, y, x] = spatial;
        slice(of.clone(), &[part(sample, 1), part(0, channels), z, y, x])
    };
    // Products are rounded before they are added, as on the host: Burn does not fuse over `cat`.
    let added = Tensor::cat(vec![cut(tiles, sample, form[1]) * cut(weights, 0, 1)], 0);
    let place = [0..1, 0..form[1], 0..form[2], row..row + rows, column..column + columns];
    let before = sums.clone().slice(place.clone());
    Some(sums.slice_assign(place, before + added))
}

/// Joins parts, in rows of `columns`, along Y and X. Returns `None` if there are none.
pub(crate) fn join_parts<B: Backend>(parts: Vec<Image<B>>, columns: usize) -> Option<Image<B>> {
    let (mut parts, mut rows) = (parts.into_iter(), Vec::new());
    loop {
        let row: Vec<Image<B>> = parts.by_ref().take(columns.max(1)).collect();
        if row.is_empty() {
            break;
        }
        rows.push(Tensor::cat(row, 4));
    }
    (!rows.is_empty()).then(|| Tensor::cat(rows, 3))
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

/// Resamples axis by axis: each output is a weighted sum of input positions. Returns `None` if the plan lacks a table or weights
/// that it refers to.
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
