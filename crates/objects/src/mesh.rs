//! Surfaces of objects as closed triangle meshes: naive surface nets (Gibson, MICCAI 1998), smoothed with
//! Taubin's method (SIGGRAPH 1995) while every vertex stays in its cell.
//!
//! A cell is the cube between eight neighboring voxel centers. Each cell that the surface crosses has one vertex, at first
//! the corner that the eight voxels share, and each pair of neighboring voxels of which one is inside gives two triangles.
//! So the surface starts as that of the voxels, and every edge belongs to two triangles; where parts of an object touch
//! only along an edge, the surface touches itself, and that edge belongs to four. An object at the border of the stack is
//! closed there.

use crate::ObjectsError;
use crate::error::check_len;
use rayon::prelude::*;

/// Rounds of smoothing by default: enough to remove the steps of the voxels.
pub const SMOOTHING_ROUNDS: u32 = 20;

/// Factors of the two steps of a smoothing round: the first shrinks, the second expands by as much.
const FACTORS: [f64; 2] = [0.5, -0.53];
/// Largest relative change of the volume by smoothing; it is smoothed less if the change is larger.
const MAX_VOLUME_CHANGE: f64 = 0.1;
/// No vertex.
const NONE: u32 = u32::MAX;

/// A closed surface of triangles.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mesh {
    /// Vertices X, Y, Z in µm, relative to the center of the stack's first voxel.
    pub vertices_um: Vec<[f32; 3]>,
    /// Vertices of each triangle, counter-clockwise seen from outside in a right-handed coordinate system.
    pub triangles: Vec<[u32; 3]>,
}

impl Mesh {
    /// Corners X, Y, Z of a triangle in µm.
    fn corners(&self, triangle: &[u32; 3]) -> [[f64; 3]; 3] {
        triangle.map(|i| self.vertices_um.get(i as usize).map_or([0.0; 3], |v| v.map(f64::from)))
    }

    /// Returns the enclosed volume in µm³.
    pub fn volume_um3(&self) -> f64 {
        let tetrahedron_volume = |t| {
            let [a, b, c] = self.corners(t);
            dot(a, cross(b, c)) / 6.0
        };
        self.triangles.iter().map(tetrahedron_volume).sum()
    }

    /// Returns the area of the surface in µm².
    pub fn area_um2(&self) -> f64 {
        self.triangles.iter().map(|t| 0.5 * length(self.normal(t))).sum()
    }

    /// Returns the normal of a triangle, which points outwards; its length is twice the area in µm².
    fn normal(&self, triangle: &[u32; 3]) -> [f64; 3] {
        let [a, b, c] = self.corners(triangle);
        cross(minus(b, a), minus(c, a))
    }

    /// Returns the unit normal of a triangle, which points outwards; zeros for a triangle without area.
    pub fn unit_normal(&self, triangle: &[u32; 3]) -> [f32; 3] {
        let normal = self.normal(triangle);
        let length = length(normal);
        if length > 0.0 { normal.map(|v| (v / length) as f32) } else { [0.0; 3] }
    }
}

fn minus(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[0] - b[0], a[1] - b[1], a[2] - b[2]]
}

fn cross(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn length(a: [f64; 3]) -> f64 {
    dot(a, a).sqrt()
}

/// Returns the surface of the object `label` in a part of a stack whose first voxel is `origin_zyx`; voxels of `voxel_um`,
/// axes Z, Y, X. Without rounds of smoothing, it is the surface of the voxels, steps included; smoothing changes the volume
/// by a tenth at most. An object without voxels has an empty surface.
///
/// # Errors
/// [`ObjectsError::Length`] if `labels` does not have the shape; [`ObjectsError::Parameter`] if the part is too large for
/// one mesh.
pub fn surface(
    labels: &[u32],
    shape_zyx: [usize; 3],
    label: u32,
    origin_zyx: [usize; 3],
    voxel_um: [f64; 3],
    smoothing_rounds: u32,
) -> Result<Mesh, ObjectsError> {
    check_len("the part of the label image", labels.len(), shape_zyx)?;
    let grid = Grid::of(labels, shape_zyx, label)?;
    let net = grid.net();
    let blocky = net.to_mesh(origin_zyx, voxel_um);
    let volume_um3 = blocky.volume_um3();
    let mut rounds = smoothing_rounds;
    while rounds > 0 {
        let mut smooth = net.clone();
        for _ in 0..rounds {
            FACTORS.iter().for_each(|factor| smooth.relax(*factor));
        }
        let mesh = smooth.to_mesh(origin_zyx, voxel_um);
        // Objects of a few voxels would shrink to points.
        if (mesh.volume_um3() - volume_um3).abs() <= MAX_VOLUME_CHANGE * volume_um3 {
            return Ok(mesh);
        }
        rounds /= 2;
    }
    Ok(blocky)
}

/// Which voxels are inside, with a border of one voxel outside. Positions and axes are X, Y, Z.
struct Grid {
    inside: Vec<bool>,
    shape: [usize; 3],
}

impl Grid {
    fn of(labels: &[u32], [nz, ny, nx]: [usize; 3], label: u32) -> Result<Self, ObjectsError> {
        let shape = [nx.saturating_add(2), ny.saturating_add(2), nz.saturating_add(2)];
        let voxels = shape.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).filter(|n| *n < NONE as usize);
        let voxels = voxels.ok_or_else(|| ObjectsError::Parameter {
            what: "the bounding box of an object",
            expected: "fewer than 4294967295 voxels",
            got: format!("{nz} × {ny} × {nx} voxels"),
        })?;
        let mut grid = Self { inside: vec![false; voxels], shape };
        for (row, values) in labels.chunks_exact(nx.max(1)).enumerate() {
            let (z, y) = (row / ny.max(1), row % ny.max(1));
            let start = grid.index([1, y + 1, z + 1]);
            for (inside, value) in grid.inside[start..].iter_mut().zip(values) {
                *inside = *value == label && label != 0;
            }
        }
        Ok(grid)
    }

    fn index(&self, [x, y, z]: [usize; 3]) -> usize {
        (z * self.shape[1] + y) * self.shape[0] + x
    }

    fn is_inside(&self, at: [usize; 3]) -> bool {
        self.inside[self.index(at)]
    }

    /// Visits every position from which a step along each axis stays in the grid.
    fn each(&self, mut visit: impl FnMut([usize; 3])) {
        for z in 0..self.shape[2] - 1 {
            for y in 0..self.shape[1] - 1 {
                for x in 0..self.shape[0] - 1 {
                    visit([x, y, z]);
                }
            }
        }
    }

    /// The vertices and quadrilaterals of the surface.
    fn net(&self) -> Net {
        let mut net = Net::default();
        let mut vertex_of = vec![NONE; self.inside.len()];
        self.each(|cell| {
            if self.is_crossed(cell) {
                vertex_of[self.index(cell)] = net.positions.len() as u32;
                // The corner that eight voxels share.
                net.positions.push(cell.map(|v| v as f64 + 0.5));
                net.cells.push(cell.map(|v| v as f64));
            }
        });
        for axis in 0..3 {
            let (b, c) = ((axis + 1) % 3, (axis + 2) % 3);
            self.each(|at| {
                let mut next = at;
                next[axis] += 1;
                let inside = self.is_inside(at);
                // Voxels of the border are outside, so there are cells on all sides of an edge that is crossed.
                if inside == self.is_inside(next) || at[b] == 0 || at[c] == 0 {
                    return;
                }
                let vertex = |back_b: usize, back_c: usize| {
                    let mut cell = at;
                    cell[b] -= back_b;
                    cell[c] -= back_c;
                    vertex_of[self.index(cell)]
                };
                // Counter-clockwise seen from larger positions along the axis.
                let mut quad = [vertex(1, 1), vertex(0, 1), vertex(0, 0), vertex(1, 0)];
                if !inside {
                    quad.reverse();
                }
                net.quads.push(quad);
            });
        }
        net.connect();
        net
    }

    /// Whether the surface crosses a cell: some of its corners are inside and some outside.
    fn is_crossed(&self, [x, y, z]: [usize; 3]) -> bool {
        let corner = |i: usize| self.is_inside([x + (i & 1), y + ((i >> 1) & 1), z + ((i >> 2) & 1)]);
        let first = corner(0);
        (1..8).any(|i| corner(i) != first)
    }
}

/// A surface of quadrilaterals, whose positions X, Y, Z are in voxels of the grid.
#[derive(Clone, Default)]
struct Net {
    positions: Vec<[f64; 3]>,
    /// First corner of the cell of each vertex.
    cells: Vec<[f64; 3]>,
    quads: Vec<[u32; 4]>,
    /// Vertices in the neighboring cells that each vertex is connected to.
    neighbors: Vec<[u32; 6]>,
}

impl Net {
    /// Finds the neighbors of each vertex.
    fn connect(&mut self) {
        self.neighbors = vec![[NONE; 6]; self.positions.len()];
        for quad in &self.quads {
            for i in 0..4 {
                let (a, b) = (quad[i], quad[(i + 1) % 4]);
                for (of, other) in [(a, b), (b, a)] {
                    let slots = &mut self.neighbors[of as usize];
                    if !slots.contains(&other)
                        && let Some(free) = slots.iter_mut().find(|slot| **slot == NONE)
                    {
                        *free = other;
                    }
                }
            }
        }
    }

    /// Moves every vertex toward the mean of its neighbors, or away from it, within its cell.
    fn relax(&mut self, factor: f64) {
        let positions = &self.positions;
        let moved = positions.par_iter().zip(&self.neighbors).zip(&self.cells).map(|((position, neighbors), cell)| {
            let (mut sum, mut n) = ([0.0; 3], 0.0);
            for other in neighbors.iter().take_while(|i| **i != NONE) {
                let other = positions[*other as usize];
                for a in 0..3 {
                    sum[a] += other[a];
                }
                n += 1.0;
            }
            if n == 0.0 {
                return *position;
            }
            std::array::from_fn(|a| {
                let moved = position[a] + factor * (sum[a] / n - position[a]);
                moved.clamp(cell[a], cell[a] + 1.0)
            })
        });
        self.positions = moved.collect();
    }

    /// Cuts the quadrilaterals along their shorter diagonals, in µm.
    fn to_mesh(&self, origin_zyx: [usize; 3], voxel_um: [f64; 3]) -> Mesh {
        // The grid has a border of one voxel.
        let um = |position: &[f64; 3]| -> [f64; 3] {
            std::array::from_fn(|a| (position[a] - 1.0 + origin_zyx[2 - a] as f64) * voxel_um[2 - a])
        };
        let positions: Vec<[f64; 3]> = self.positions.iter().map(um).collect();
        let mut triangles = Vec::with_capacity(self.quads.len() * 2);
        for &[a, b, c, d] in &self.quads {
            let diagonal = |i: u32, j: u32| length(minus(positions[i as usize], positions[j as usize]));
            if diagonal(a, c) <= diagonal(b, d) {
                triangles.extend([[a, b, c], [a, c, d]]);
            } else {
                triangles.extend([[b, c, d], [b, d, a]]);
            }
        }
        Mesh { vertices_um: positions.iter().map(|p| p.map(|v| v as f32)).collect(), triangles }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use std::collections::BTreeMap;
    use std::f64::consts::PI;

    /// Number of triangles of each edge, and whether every edge is passed as often in both directions.
    fn edges(mesh: &Mesh) -> (Vec<usize>, bool) {
        let mut found: BTreeMap<(u32, u32), (usize, i64)> = BTreeMap::new();
        for [a, b, c] in &mesh.triangles {
            for (from, to) in [(*a, *b), (*b, *c), (*c, *a)] {
                let edge = found.entry((from.min(to), from.max(to))).or_default();
                edge.0 += 1;
                edge.1 += if from < to { 1 } else { -1 };
            }
        }
        (found.values().map(|(n, _)| *n).collect(), found.values().all(|(_, sum)| *sum == 0))
    }

    /// Labels of a ball of `radius_um` around `center_um`, axes Z, Y, X.
    fn ball(shape_zyx: [usize; 3], voxel_um: [f64; 3], center_um: [f64; 3], radius_um: f64) -> Vec<u32> {
        let [nz, ny, nx] = shape_zyx;
        let mut labels = Vec::new();
        for i in 0..nz * ny * nx {
            let at = [i / (ny * nx), i / nx % ny, i % nx];
            let squared: f64 = (0..3).map(|a| (at[a] as f64 * voxel_um[a] - center_um[a]).powi(2)).sum();
            labels.push(if squared <= radius_um * radius_um { 7 } else { 0 });
        }
        labels
    }

    #[test]
    fn the_mesh_of_a_ball_is_closed_and_has_its_volume_and_area() {
        let (center_um, radius_um) = ([8.1, 8.07, 8.6], 6.0);
        for (shape, voxel_um, tolerance) in
            [([33, 33, 35], [0.5, 0.5, 0.5], 0.025), ([17, 33, 35], [1.0, 0.5, 0.5], 0.04)]
        {
            let labels = ball(shape, voxel_um, center_um, radius_um);
            let mesh = surface(&labels, shape, 7, [0; 3], voxel_um, SMOOTHING_ROUNDS).unwrap();
            let (counts, is_oriented) = edges(&mesh);
            assert!(counts.iter().all(|n| *n == 2) && is_oriented, "every edge is shared by two triangles");
            // Euler's formula for a sphere.
            assert_eq!(mesh.vertices_um.len() + mesh.triangles.len(), counts.len() + 2);
            let volume = mesh.volume_um3() / (4.0 / 3.0 * PI * radius_um.powi(3));
            let area = mesh.area_um2() / (4.0 * PI * radius_um.powi(2));
            assert!((volume - 1.0).abs() < 0.02, "volume {volume}");
            assert!((area - 1.0).abs() < tolerance, "area {area}");
            // X, Y, Z in µm, around the center of the ball.
            for a in 0..3 {
                let center = center_um[2 - a];
                let low = mesh.vertices_um.iter().map(|v| f64::from(v[a])).fold(f64::INFINITY, f64::min);
                let high = mesh.vertices_um.iter().map(|v| f64::from(v[a])).fold(0.0, f64::max);
                // Vertices stay within a voxel of the true surface.
                let most = 0.75 * voxel_um[2 - a];
                assert!(
                    (low - center + radius_um).abs() < most && (high - center - radius_um).abs() < most,
                    "{low} {high}"
                );
            }
        }
    }

    #[test]
    fn unsmoothed_surfaces_are_those_of_the_voxels_also_at_the_border() {
        let mesh = surface(&[3; 2 * 3 * 4], [2, 3, 4], 3, [10, 20, 30], [2.0, 1.0, 0.5], 0).unwrap();
        let (counts, is_oriented) = edges(&mesh);
        assert!(counts.iter().all(|n| *n == 2) && is_oriented);
        let (z, y, x) = (2.0 * 2.0, 3.0 * 1.0, 4.0 * 0.5);
        assert!((mesh.volume_um3() - z * y * x).abs() < 1e-3, "{}", mesh.volume_um3());
        assert!((mesh.area_um2() - 2.0 * (z * y + y * x + x * z)).abs() < 1e-3, "{}", mesh.area_um2());
        let first = mesh.vertices_um.iter().map(|v| v[0]).fold(f32::INFINITY, f32::min);
        assert!((first - (30.0 - 0.5) * 0.5).abs() < 1e-4, "{first}");
    }

    #[test]
    fn objects_of_a_few_voxels_do_not_shrink_to_points() {
        let one = surface(&[1], [1; 3], 1, [0; 3], [1.0; 3], SMOOTHING_ROUNDS).unwrap();
        assert_eq!((one.vertices_um.len(), one.triangles.len()), (8, 12));
        assert!((one.volume_um3() - 1.0).abs() < 0.11, "{}", one.volume_um3());
        assert_eq!(surface(&[1], [1; 3], 2, [0; 3], [1.0; 3], 5).unwrap(), Mesh::default());
        assert!(surface(&[1], [1, 1, 2], 1, [0; 3], [1.0; 3], 0).is_err());
    }

    #[test]
    fn parts_that_touch_at_an_edge_stay_closed() {
        // Two voxels of a plane that share an edge.
        let mesh = surface(&[1, 0, 0, 1], [1, 2, 2], 1, [0; 3], [1.0; 3], 3).unwrap();
        let (counts, is_oriented) = edges(&mesh);
        assert!(counts.iter().all(|n| n % 2 == 0) && is_oriented, "{counts:?}");
    }
}
