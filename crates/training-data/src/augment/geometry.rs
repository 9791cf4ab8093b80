//! Geometric augmentation: one transform from voxels of a patch to voxels of a stack, which composes mirroring,
//! rotation, scaling and elastic deformation before any voxel is read.

use super::{AugmentOptions, FLIP_Z};
use crate::reader::UnclippedBox;
use cytoscope_volume::resample::filter_half_width;
use rand::Rng;
use std::ops::Range;

/// Random parameters of the geometric augmentation of a patch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GeometricParams {
    /// −1 along mirrored axes, otherwise 1.
    pub mirror: [f64; 3],
    /// Sine and cosine of the rotation about Z; exact for quarter turns.
    pub turn: (f64, f64),
    /// Magnification along Z, Y, X.
    pub scale: [f64; 3],
    /// Distance of control points and standard deviation of the displacement in µm.
    pub elastic: Option<(f64, f64)>,
}

impl GeometricParams {
    /// The identity: patches are neither mirrored, rotated, scaled nor deformed.
    pub fn none() -> Self {
        Self { mirror: [1.0; 3], turn: (0.0, 1.0), scale: [1.0; 3], elastic: None }
    }

    /// Draws the parameters; the number of random numbers does not depend on the options.
    pub fn draw(options: &AugmentOptions, longest_um: f64, rng: &mut impl Rng) -> Self {
        let mut moves = Self::none();
        let flips = [options.flip.z.unwrap_or(FLIP_Z), options.flip.y, options.flip.x];
        for (mirror, p) in moves.mirror.iter_mut().zip(flips) {
            if rng.random::<f64>() < p {
                *mirror = -1.0;
            }
        }
        let (turns, quarter) = (rng.random::<f64>() < options.rotate.quarter_turns, rng.random_range(0..4u8));
        let (any, angle) = (rng.random::<f64>() < options.rotate.any_angle, rng.random::<f64>());
        if any {
            moves.turn = (angle * std::f64::consts::TAU).sin_cos();
        } else if turns {
            moves.turn = [(0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0)][usize::from(quarter & 3)];
        }
        let (scales, at, jitter) =
            (rng.random::<f64>() < options.scale.probability, rng.random::<f64>(), rng.random_range(-1.0..=1.0));
        if scales {
            let (min, max) = (options.scale.min.ln(), options.scale.max.ln());
            let by = (min + (max - min) * at).exp();
            moves.scale = [by * (1.0 + options.scale.z_jitter).powf(jitter), by, by];
        }
        if rng.random::<f64>() < options.elastic.probability {
            let spacing = options.elastic.spacing_um.unwrap_or(longest_um / 4.0);
            moves.elastic = Some((spacing, options.elastic.amplitude_um.unwrap_or(spacing * 0.06)));
        }
        moves
    }
}

/// Weights of the four cubic B-splines at each position along one axis.
#[derive(Debug, Clone, Default)]
struct Splines {
    /// First control point of each position.
    node: Vec<usize>,
    weights: [Vec<f32>; 4],
    nodes: usize,
}

impl Splines {
    fn new(len: usize, spacing: f64) -> Self {
        let mut splines = Self::default();
        for i in 0..len {
            let at = i as f64 / spacing;
            let (cell, t) = (at.floor(), at - at.floor());
            splines.node.push(cell as usize);
            let w = [
                (1.0 - t).powi(3) / 6.0,
                (3.0 * t.powi(3) - 6.0 * t * t + 4.0) / 6.0,
                (-3.0 * t.powi(3) + 3.0 * t * t + 3.0 * t + 1.0) / 6.0,
                t.powi(3) / 6.0,
            ];
            splines.weights.iter_mut().zip(w).for_each(|(all, w)| all.push(w as f32));
        }
        splines.nodes = splines.node.last().map_or(0, |n| n + 4);
        splines
    }
}

/// A smooth field of displacements in voxels of the stack.
#[derive(Debug, Clone)]
struct DisplacementField {
    splines: [Splines; 3],
    /// Coefficients along Z, Y, X of the stack, each `[z][y][x]` of the control points.
    nodes: [Vec<f32>; 3],
    /// Maximum displacement along Z, Y, X.
    max: [f64; 3],
}

/// Maximum displacement of a control point in standard deviations.
const NODE_REACH: f64 = 2.0;
/// Maximum number of control points along one axis.
const MAX_NODES: f64 = 64.0;

/// Transform from voxels of a patch to voxels of a stack.
#[derive(Debug, Clone)]
pub(crate) struct Transform {
    /// Position in the stack of voxel 0, 0, 0 of the patch.
    base: [f64; 3],
    /// Voxels of the stack per voxel of the patch: `matrix[stack axis][patch axis]`.
    matrix: [[f64; 3]; 3],
    field: Option<DisplacementField>,
    /// The patch with its margin, in voxels of the patch (negative in the margin).
    grid: UnclippedBox,
}

/// The grids of a patch and a stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grids {
    /// Shape of the patch along Z, Y, X.
    pub patch_zyx: [usize; 3],
    /// Margin around the patch along Z, Y, X in voxels.
    pub margin: [usize; 3],
    /// Voxel size of the patch along Z, Y, X in µm.
    pub patch_um: [f64; 3],
    /// Voxel size of the stack along Z, Y, X in µm.
    pub stack_um: [f64; 3],
}

impl Grids {
    /// Returns the box of the patch with its margin.
    pub fn with_margin(&self) -> UnclippedBox {
        UnclippedBox {
            start: self.margin.map(|m| -(m as i64)),
            size: std::array::from_fn(|a| self.patch_zyx[a] + 2 * self.margin[a]),
        }
    }
}

impl Transform {
    /// Creates the transform that maps the central voxel of the patch (`n / 2` along each axis) to `center` in the
    /// stack.
    pub fn new(grids: &Grids, center: [f64; 3], moves: &GeometricParams, rng: &mut impl Rng) -> Self {
        let (sin, cos) = moves.turn;
        // In µm about the center: mirroring, scaling, then rotation.
        let rotation = [[1.0, 0.0, 0.0], [0.0, cos, -sin], [0.0, sin, cos]];
        let mut matrix = [[0.0; 3]; 3];
        for (row, stack_um) in matrix.iter_mut().zip(grids.stack_um).enumerate().map(|(i, (r, u))| ((i, r), u)) {
            for a in 0..3 {
                row.1[a] = rotation[row.0][a] * moves.mirror[a] / moves.scale[a] * (grids.patch_um[a] / stack_um);
            }
        }
        let middle = grids.patch_zyx.map(|n| (n / 2) as f64);
        let base = std::array::from_fn(|i| center[i] - (0..3).map(|a| matrix[i][a] * middle[a]).sum::<f64>());
        let grid = grids.with_margin();
        let field =
            moves.elastic.map(|(spacing, amplitude)| DisplacementField::draw(grids, &grid, spacing, amplitude, rng));
        Self { base, matrix, field, grid }
    }

    /// Creates a transform without augmentation: voxel `i` of the patch is at `(i + start + ½) · step − ½ + first` in
    /// the stack.
    pub fn cut(grids: &Grids, start: [usize; 3], step: [f64; 3], first: [usize; 3]) -> Self {
        let mut matrix = [[0.0; 3]; 3];
        (0..3).for_each(|a| matrix[a][a] = step[a]);
        let base = std::array::from_fn(|a| (start[a] as f64 + 0.5) * step[a] - 0.5 + first[a] as f64);
        Self { base, matrix, field: None, grid: grids.with_margin() }
    }

    /// Returns the half widths along Z, Y, X, in voxels of the stack, of the filter that intensities are interpolated with, as in
    /// predictions: above 1 if voxels of the patch are clearly larger than those of the stack.
    pub fn half_widths(&self) -> [f64; 3] {
        self.matrix.map(|row| filter_half_width(row.iter().map(|v| v * v).sum::<f64>().sqrt()))
    }

    /// Returns the box of the stack that is needed for `part` of the grid (in voxels of the patch), if it is interpolated with
    /// a filter of these half widths, at least 1.
    pub fn reads(&self, part: &UnclippedBox, half_widths: [f64; 3]) -> UnclippedBox {
        let mut low = self.base;
        let mut high = self.base;
        for i in 0..3 {
            for a in 0..3 {
                let first = part.start[a] as f64 * self.matrix[i][a];
                let last = (part.start[a] + part.size[a] as i64 - 1) as f64 * self.matrix[i][a];
                low[i] += first.min(last);
                high[i] += first.max(last);
            }
            let reach = self.field.as_ref().map_or(0.0, |f| f.max[i]) + half_widths[i] - 1.0;
            // One additional voxel for interpolation, and one for rounding.
            low[i] = (low[i] - reach).floor() - 1.0;
            high[i] = (high[i] + reach).floor() + 3.0;
        }
        UnclippedBox {
            start: low.map(|v| v as i64),
            size: std::array::from_fn(|i| (high[i] - low[i]).clamp(0.0, 1e15) as usize),
        }
    }

    /// Returns the positions of the rows of `part`, in voxels of the stack relative to `origin`.
    pub fn rows(&self, part: &UnclippedBox, origin: [i64; 3]) -> RowPositions<'_> {
        let first_x = (part.start[2] - self.grid.start[2]) as usize;
        let across = (0..3).map(|i| self.matrix[i][2] as f32).collect::<Vec<_>>();
        RowPositions {
            transform: self,
            origin,
            first_x: part.start[2] as f32,
            across: [across[0], across[1], across[2]],
            grid_x: first_x..first_x + part.size[2],
            plane: Default::default(),
            line: Default::default(),
            at: std::array::from_fn(|_| vec![0.0; part.size[2]]),
            z: 0,
        }
    }
}

impl DisplacementField {
    fn draw(grids: &Grids, grid: &UnclippedBox, spacing_um: f64, amplitude_um: f64, rng: &mut impl Rng) -> Self {
        let splines: [Splines; 3] = std::array::from_fn(|a| {
            let min_spacing = grid.size[a] as f64 / MAX_NODES;
            Splines::new(grid.size[a], (spacing_um / grids.patch_um[a]).max(min_spacing).max(1e-6))
        });
        let count: usize = splines.iter().map(|s| s.nodes).product();
        // Splines average the control points, which reduces the standard deviation to about two thirds along each axis.
        let spread = amplitude_um * 1.46f64.powi(3);
        // A patch of one slice is deformed within its slice: along Z, it would leave a stack of one slice, or mix slices that
        // a network on slices predicts one by one.
        let spreads: [f64; 3] = std::array::from_fn(|a| if a == 0 && grids.patch_zyx[a] == 1 { 0.0 } else { spread });
        let nodes = std::array::from_fn(|a| {
            (0..count)
                .map(|_| {
                    let (u, v) = (rng.random::<f64>(), rng.random::<f64>());
                    let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
                    (normal.clamp(-NODE_REACH, NODE_REACH) * spreads[a] / grids.stack_um[a]) as f32
                })
                .collect()
        });
        let max = std::array::from_fn(|a| NODE_REACH * spreads[a] / grids.stack_um[a]);
        Self { splines, nodes, max }
    }
}

/// Positions of the voxels of a patch in the stack, row by row.
pub(crate) struct RowPositions<'a> {
    transform: &'a Transform,
    origin: [i64; 3],
    first_x: f32,
    across: [f32; 3],
    /// Columns of the part, in voxels of the grid.
    grid_x: Range<usize>,
    /// The field evaluated along Z for the current slice.
    plane: [Vec<f32>; 3],
    /// The field evaluated along Z and Y for the current row.
    line: [Vec<f32>; 3],
    at: [Vec<f32>; 3],
    z: i64,
}

/// Computes `out[i] += weight · from[i]`.
fn add(out: &mut [f32], from: &[f32], weight: f32) {
    out.iter_mut().zip(from).for_each(|(o, f)| *o += weight * f);
}

impl RowPositions<'_> {
    /// Moves to slice `z` of the patch.
    pub fn slice(&mut self, z: i64) {
        self.z = z;
        let Some(field) = &self.transform.field else { return };
        let index = (z - self.transform.grid.start[0]) as usize;
        let [along_z, along_y, along_x] = &field.splines;
        let Some(first) = along_z.node.get(index) else { return };
        let plane = along_y.nodes * along_x.nodes;
        for (out, nodes) in self.plane.iter_mut().zip(&field.nodes) {
            out.clear();
            out.resize(plane, 0.0);
            for (k, weights) in along_z.weights.iter().enumerate() {
                let from = nodes.get((first + k) * plane..(first + k + 1) * plane).unwrap_or_default();
                add(out, from, weights.get(index).copied().unwrap_or(0.0));
            }
        }
    }

    /// Returns the positions of row `y` of the current slice along Z, Y, X of the stack.
    pub fn row(&mut self, y: i64) -> [&[f32]; 3] {
        let transform = self.transform;
        for (i, at) in self.at.iter_mut().enumerate() {
            let [mz, my, mx] = transform.matrix[i];
            let start = transform.base[i] - self.origin[i] as f64 + mz * self.z as f64 + my * y as f64;
            let start = (start + mx * f64::from(self.first_x)) as f32;
            let step = self.across[i];
            if step == 0.0 {
                at.fill(start);
            } else {
                at.iter_mut().enumerate().for_each(|(x, v)| *v = start + step * x as f32);
            }
        }
        if let Some(field) = &transform.field {
            self.add_displacement(field, y);
        }
        [&self.at[0], &self.at[1], &self.at[2]]
    }

    /// Adds the displacement field to the positions of row `y`.
    fn add_displacement(&mut self, field: &DisplacementField, y: i64) {
        let index = (y - self.transform.grid.start[1]) as usize;
        let [_, along_y, along_x] = &field.splines;
        let Some(first) = along_y.node.get(index) else { return };
        let nodes = along_x.nodes;
        for i in 0..3 {
            let line = &mut self.line[i];
            line.clear();
            line.resize(nodes, 0.0);
            for (k, weights) in along_y.weights.iter().enumerate() {
                let from = self.plane[i].get((first + k) * nodes..(first + k + 1) * nodes).unwrap_or_default();
                add(line, from, weights.get(index).copied().unwrap_or(0.0));
            }
        }
        // All positions within a cell have the same control points.
        let [w0, w1, w2, w3] = &along_x.weights;
        let mut x = self.grid_x.start;
        while x < self.grid_x.end {
            let Some(node) = along_x.node.get(x).copied() else { return };
            let same = along_x.node[x..self.grid_x.end].iter().take_while(|n| **n == node).count();
            let to = x - self.grid_x.start;
            for i in 0..3 {
                let Some([a, b, c, d]) = self.line[i].get(node..node + 4) else { return };
                let weights = w0[x..x + same].iter().zip(&w1[x..]).zip(w2[x..].iter().zip(&w3[x..]));
                for (v, ((w0, w1), (w2, w3))) in self.at[i][to..to + same].iter_mut().zip(weights) {
                    *v += (w0 * a + w1 * b) + (w2 * c + w3 * d);
                }
            }
            x += same;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    /// Returns all positions of a part, along each axis of the stack.
    fn positions(transform: &Transform, part: &UnclippedBox, origin: [i64; 3]) -> [Vec<f32>; 3] {
        let mut all: [Vec<f32>; 3] = Default::default();
        let mut rows = transform.rows(part, origin);
        for z in 0..part.size[0] as i64 {
            rows.slice(part.start[0] + z);
            for y in 0..part.size[1] as i64 {
                let at = rows.row(part.start[1] + y);
                all.iter_mut().zip(at).for_each(|(all, at)| all.extend_from_slice(at));
            }
        }
        all
    }

    proptest! {
        #[test]
        fn the_box_contains_all_positions_and_their_neighbors(
            seed in any::<u64>(), z in 1usize..9, y in 1usize..20, x in 1usize..20, margin in 0usize..4, um in 0.3f64..3.0,
        ) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let grids = Grids { patch_zyx: [z, y, x], margin: [margin; 3], patch_um: [2.0, um, um], stack_um: [1.0, 0.5, 0.6] };
            let moves = GeometricParams::draw(&AugmentOptions::always(), 20.0, &mut rng);
            let transform = Transform::new(&grids, [7.0, -3.0, 100.0], &moves, &mut rng);
            for part in [grids.with_margin(), UnclippedBox { start: [0; 3], size: grids.patch_zyx }] {
                for half_widths in [[1.0; 3], transform.half_widths(), [1.0, 2.5, 4.3]] {
                    let wanted = transform.reads(&part, half_widths);
                    for (a, at) in positions(&transform, &part, wanted.start).iter().enumerate() {
                        let (half, end) = (half_widths[a] as f32, wanted.size[a] as f32);
                        prop_assert!(at.iter().all(|v| *v - half > -1.0 && (*v + half).ceil() <= end), "axis {}", a);
                        prop_assert!(at.iter().all(|v| *v >= 0.0 && *v as usize + 1 < wanted.size[a]), "axis {}", a);
                    }
                }
            }
        }
    }

    #[test]
    fn positions_of_a_part_are_those_of_the_whole() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let grids = Grids { patch_zyx: [4, 9, 7], margin: [2, 3, 5], patch_um: [1.0; 3], stack_um: [1.0; 3] };
        let moves = GeometricParams::draw(&AugmentOptions::always(), 9.0, &mut rng);
        let transform = Transform::new(&grids, [50.0; 3], &moves, &mut rng);
        let whole = positions(&transform, &grids.with_margin(), [0; 3]);
        let part = positions(&transform, &UnclippedBox { start: [0; 3], size: grids.patch_zyx }, [0; 3]);
        let [_, ny, nx] = grids.with_margin().size;
        for (i, (z, y, x)) in (0..4 * 9 * 7).map(|i| (i, (i / 63, i / 7 % 9, i % 7))) {
            let j = ((z + 2) * ny + y + 3) * nx + x + 5;
            assert!((0..3).all(|a| (whole[a][j] - part[a][i]).abs() < 1e-4));
        }
    }

    #[test]
    fn the_filter_is_as_wide_as_in_predictions_for_any_rotation() {
        let grids =
            Grids { patch_zyx: [4, 9, 9], margin: [0; 3], patch_um: [1.0, 2.0, 2.0], stack_um: [1.0, 0.5, 0.25] };
        for angle in [0.0f64, 0.4, std::f64::consts::FRAC_PI_2] {
            let moves = GeometricParams { turn: angle.sin_cos(), ..GeometricParams::none() };
            let found = Transform::new(&grids, [9.0; 3], &moves, &mut ChaCha8Rng::seed_from_u64(1)).half_widths();
            // One, four and eight voxels of the stack per voxel of the patch.
            for (found, expected) in found.into_iter().zip([1.0, 4.0 / 1.5, 8.0 / 1.5]) {
                assert!((found - expected).abs() < 1e-9, "{angle}: {found}, expected {expected}");
            }
        }
    }

    #[test]
    fn elastic_deformation_of_a_patch_of_one_slice_stays_within_the_slice() {
        for depth in [1, 2] {
            let mut rng = ChaCha8Rng::seed_from_u64(5);
            let grids = Grids { patch_zyx: [depth, 40, 40], margin: [0; 3], patch_um: [1.0; 3], stack_um: [1.0; 3] };
            let moves = GeometricParams { elastic: Some((10.0, 1.2)), ..GeometricParams::none() };
            let transform = Transform::new(&grids, [3.0, 40.0, 40.0], &moves, &mut rng);
            let first = UnclippedBox { start: [0; 3], size: [1, 40, 40] };
            let [z, _, x] = positions(&transform, &first, [0; 3]);
            let is_flat = z.iter().all(|z| z.fract() == 0.0);
            assert_eq!(is_flat, depth == 1, "{depth} slices");
            assert!(x.iter().enumerate().any(|(i, x)| (x - (20 + i % 40) as f32).abs() > 0.5), "{depth} slices");
        }
    }

    /// The displacement has the requested standard deviation, and the field does not fold at the default strength.
    #[test]
    fn elastic_deformation_has_the_requested_strength() {
        let grids = Grids { patch_zyx: [40, 80, 80], margin: [0; 3], patch_um: [1.0; 3], stack_um: [1.0; 3] };
        let part = grids.with_margin();
        let mut squares = [0.0f64; 3];
        let mut steepest = f32::INFINITY;
        for seed in 0..30 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let moves = GeometricParams { elastic: Some((20.0, 1.2)), ..GeometricParams::none() };
            let transform = Transform::new(&grids, [20.0, 40.0, 40.0], &moves, &mut rng);
            let at = positions(&transform, &part, [0; 3]);
            for (i, (z, y, x)) in (0..at[0].len()).map(|i| (i, (i / 6400, i / 80 % 80, i % 80))) {
                for (a, plain) in [z, y, x].into_iter().enumerate() {
                    squares[a] += f64::from(at[a][i] - plain as f32).powi(2) / (30 * at[0].len()) as f64;
                }
                if x > 0 {
                    steepest = steepest.min(at[2][i] - at[2][i - 1]);
                }
            }
        }
        for s in squares {
            assert!((0.7..1.5).contains(&s.sqrt()), "moved by {} µm, expected 1.2", s.sqrt());
        }
        assert!(steepest > 0.1, "smallest distance of neighbors: {steepest}");
    }
}
