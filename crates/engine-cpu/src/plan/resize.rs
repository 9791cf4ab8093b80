//! Interpolation tables of resizing, for inference and training.

use cytoscope_graph::{Graph, Op, ResizeAttrs, ResizeMode, Tensor, ValueId};
use cytoscope_kernels::resize::Tap;

/// Returns the interpolation tables (Z, Y, X) of `op` with these inputs, from shape `from` to shape `to` (N, C, space).
/// `None` if it is not a resize, if its scales are computed at run time, or if the kernel does not support it.
pub(super) fn tables(
    graph: &Graph,
    op: &Op,
    inputs: &[Option<ValueId>],
    from: &[usize],
    to: &[usize],
) -> Option<Box<[Vec<Tap>; 3]>> {
    let Op::Resize(attrs) = op else { return None };
    let input = |i: usize| inputs.get(i).copied().flatten();
    let constant = |i: usize| input(i).and_then(|id| graph.constant(id)).map(|t| t.as_ref());
    // The reference executor handles scales that are computed at run time.
    let known = |i: usize| input(i).is_none() || constant(i).is_some();
    if !known(2) || !known(3) {
        return None;
    }
    tables_between(attrs, from, to, constant(2), constant(3))
}

/// Returns the interpolation tables (Z, Y, X) of a resize from shape `from` to shape `to` (N, C, space), or `None` if
/// the kernel does not support it. Positions are those of the reference executor, because other arithmetic could round a
/// position half-way between two voxels to the other side.
fn tables_between(
    attrs: &ResizeAttrs,
    from: &[usize],
    to: &[usize],
    scales: Option<&Tensor>,
    sizes: Option<&Tensor>,
) -> Option<Box<[Vec<Tap>; 3]>> {
    if from.len() != to.len() || from.get(..2) != to.get(..2) || attrs.axes.is_some() {
        return None;
    }
    let factors = attrs.factors(from, scales, sizes).ok()?;
    if factors.iter().take(2).any(|f| *f != 1.0) {
        return None;
    }
    let mut tables: [Vec<Tap>; 3] = std::array::from_fn(|_| vec![Tap { low: 0, high: 0, weight: 0.0 }]);
    for axis in 2..from.len() {
        tables[3 + axis - from.len()] = axis_table(attrs, from[axis], to[axis], *factors.get(axis)?)?;
    }
    Some(Box::new(tables))
}

/// Returns the interpolation table of one axis, from `input` to `output` voxels.
fn axis_table(attrs: &ResizeAttrs, input: usize, output: usize, factor: f64) -> Option<Vec<Tap>> {
    if input == 0
        || attrs.antialias
        || attrs.mode == ResizeMode::Cubic
        || (attrs.mode == ResizeMode::Linear && attrs.exclude_outside)
    {
        return None;
    }
    if input == output && factor == 1.0 {
        return Some((0..output).map(|i| Tap { low: i, high: i, weight: 0.0 }).collect());
    }
    let last = (input - 1) as f64;
    (0..output)
        .map(|o| {
            let at = attrs.coordinate(o, input, output, factor)?;
            Some(match attrs.mode {
                ResizeMode::Nearest => {
                    let i = attrs.nearest_source(o, input, output, factor)?;
                    Tap { low: i, high: i, weight: 0.0 }
                }
                _ => {
                    let at = at.clamp(0.0, last);
                    let low = at.floor();
                    let high = (low + 1.0).min(last);
                    Tap { low: low as usize, high: high as usize, weight: (at - low) as f32 }
                }
            })
        })
        .collect()
}
