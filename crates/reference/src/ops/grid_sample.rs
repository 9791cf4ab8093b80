//! Values at positions that another tensor gives (ONNX `GridSample`).

use rayon::prelude::*;

use crate::Call;
use cytoscope_graph::{GridSampleAttrs, Op, Result, Tensor};

/// An element of an axis, or `None` for a zero outside of it, and its weight; two neighbors.
type Taps = [(Option<usize>, f64); 2];

/// Runs a `GridSample`; `None` for other operators.
pub(super) fn eval(op: &Op, call: &Call<'_>) -> Option<Result<Tensor>> {
    if let Op::GridSample(a) = op { Some(grid_sample(a, call)) } else { None }
}

fn grid_sample(a: &GridSampleAttrs, call: &Call<'_>) -> Result<Tensor> {
    let (x, grid) = (call.need(0)?, call.need(1)?);
    let shape = call.shape(0)?;
    let lengths = x.shape().get(2..).unwrap_or_default();
    let (channels, places) = (shape[1].max(1), shape[2..].iter().product::<usize>());
    let voxels: usize = lengths.iter().product();
    let (values, positions) = (x.to_f64_vec(), grid.to_f64_vec());
    let mut out = vec![0.0; shape.iter().product()];
    out.par_chunks_mut(places.max(1)).enumerate().for_each(|(index, row)| {
        let source = &values[index * voxels..][..voxels];
        for (place, target) in row.iter_mut().enumerate() {
            let first = (index / channels * places + place) * lengths.len();
            let position = &positions[first..][..lengths.len()];
            // Positions are listed in reverse order of the axes.
            let taps: Vec<Taps> = lengths.iter().zip(position.iter().rev()).map(|(&n, &g)| a.taps(g, n)).collect();
            *target = (0..1usize << taps.len()).map(|corner| at_corner(source, lengths, &taps, corner)).sum();
        }
    });
    Ok(Tensor::new(shape, out)?.cast(x.dtype()))
}

/// Returns the weighted value of one combination of neighbors; bit `i` of `corner` chooses that along axis `i`.
fn at_corner(source: &[f64], lengths: &[usize], taps: &[Taps], corner: usize) -> f64 {
    let (mut at, mut weight) = (0usize, 1.0f64);
    for (axis, (taps, n)) in taps.iter().zip(lengths).enumerate() {
        let (Some(element), own) = taps[corner >> axis & 1] else { return 0.0 };
        at = at * n + element;
        weight *= own;
    }
    source.get(at).map_or(0.0, |value| value * weight)
}
