//! Affine warps with linear interpolation; voxels outside the input are 0.

use crate::block::{Block, count, lengths};
use cytoscope_volume::BoxZyx;
use rayon::prelude::*;

/// Distance in voxels by which a position may miss the input's edge due to rounding.
const ROUNDING: f64 = 1e-9;

/// Maps the position of an output voxel to a position in the input: rows Z, Y, X of a matrix with the columns Z, Y, X
/// and 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Affine(pub [f64; 12]);

impl Affine {
    fn position(&self, [z, y, x]: [usize; 3]) -> [f64; 3] {
        let (z, y, x) = (z as f64, y as f64, x as f64);
        std::array::from_fn(|a| {
            let row = &self.0[4 * a..4 * a + 4];
            row[0] * z + row[1] * y + row[2] * x + row[3]
        })
    }

    /// The voxels of an input of this shape that the output voxels of `bounds` depend on; empty if there are none.
    pub(crate) fn sources(&self, bounds: &BoxZyx, shape: [usize; 3]) -> BoxZyx {
        if count(bounds) == 0 {
            return [0..0, 0..0, 0..0];
        }
        let ends: [[usize; 2]; 3] = std::array::from_fn(|a| [bounds[a].start, bounds[a].end - 1]);
        let corners = (0..8usize).map(|c| -> [usize; 3] { std::array::from_fn(|a| ends[a][(c >> a) & 1]) });
        let positions: Vec<[f64; 3]> = corners.map(|corner| self.position(corner)).collect();
        std::array::from_fn(|a| {
            let all = || positions.iter().map(|p| p[a]);
            let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
            // Casts of floats saturate: below 0 they give 0.
            let end = ((high + ROUNDING).floor() + 2.0).max(0.0) as usize;
            let start = (low - ROUNDING).floor().max(0.0) as usize;
            start.min(shape[a])..end.min(shape[a]).max(start.min(shape[a]))
        })
    }
}

/// The floor of a position, the next voxel, and the weight of the latter; `None` if the position is outside the axis.
fn taps(position: f64, extent: usize) -> Option<(usize, usize, f64)> {
    let last = extent.checked_sub(1)?;
    if position < -ROUNDING || position > last as f64 + ROUNDING {
        return None;
    }
    let inside = position.clamp(0.0, last as f64);
    let below = (inside.floor() as usize).min(last);
    Some((below, (below + 1).min(last), inside - below as f64))
}

/// Interpolates between the values at two positions; `weight` is that of the second. A value with weight 0 is not read: it could
/// be NaN.
fn interpolated(value: impl Fn(usize) -> f64, [below, above]: [usize; 2], weight: f64) -> f64 {
    let first = value(below);
    if weight == 0.0 { first } else { first * (1.0 - weight) + value(above) * weight }
}

/// Returns the warped voxels of `bounds`. `input` holds the voxels that [`Affine::sources`] returns for them and for an input
/// of this shape.
pub(crate) fn affine(input: &Block, bounds: &BoxZyx, shape: [usize; 3], map: &Affine) -> Vec<f32> {
    let [_, ny, nx] = lengths(bounds);
    let mut out = vec![0.0f32; count(bounds)];
    if out.is_empty() || count(&input.bounds) == 0 {
        return out;
    }
    let [first_z, first_y, first_x]: [usize; 3] = std::array::from_fn(|a| input.bounds[a].start);
    let [_, in_y, in_x] = lengths(&input.bounds);
    let index = |z: usize, y: usize, x: usize| {
        Some((z.checked_sub(first_z)? * in_y + y.checked_sub(first_y)?) * in_x + x.checked_sub(first_x)?)
    };
    let value = |z: usize, y: usize, x: usize| {
        let found = index(z, y, x).and_then(|at| input.values.get(at));
        f64::from(found.copied().unwrap_or_default())
    };
    out.par_chunks_mut(nx).enumerate().for_each(|(row, target)| {
        let (z, y) = (bounds[0].start + row / ny, bounds[1].start + row % ny);
        for (k, t) in target.iter_mut().enumerate() {
            let [at_z, at_y, at_x] = map.position([z, y, bounds[2].start + k]);
            let found = taps(at_z, shape[0]).zip(taps(at_y, shape[1])).zip(taps(at_x, shape[2]));
            let Some((((z0, z1, wz), (y0, y1, wy)), (x0, x1, wx))) = found else { continue };
            let along_x = |z: usize, y: usize| interpolated(|x| value(z, y, x), [x0, x1], wx);
            let along_y = |z: usize| interpolated(|y| along_x(z, y), [y0, y1], wy);
            *t = interpolated(along_y, [z0, z1], wz) as f32;
        }
    });
    out
}
