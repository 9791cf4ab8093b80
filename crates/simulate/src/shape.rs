//! Star-shaped bodies: rotated ellipsoids with a few low-order bumps, and the voxels they cover.

use crate::{SimulateError, grid::Grid, progress::ProgressRange, progress::for_each_slab_pair, random};
use rand::Rng;
use std::ops::Range;

/// Largest amplitude of a bump, relative to the radius.
const MAX_BUMP: f64 = 0.1;

/// A zonal spherical harmonic: `amplitude · P_order(direction · axis)`, with P the Legendre polynomial.
#[derive(Debug, Clone, Copy)]
struct Bump {
    axis: [f64; 3],
    amplitude: f64,
}

/// A deformed ellipsoid. In its own coordinates `q` (rotated, and scaled by the semi-axes) its surface is
/// `|q| = 1 + Σ a_l P_l(q/|q| · n_l)` for l = 2, 3, 4. It is star-shaped about its center and therefore connected.
#[derive(Debug, Clone)]
pub(crate) struct Blob {
    /// Center in µm, Z, Y, X.
    pub(crate) center_um: [f64; 3],
    /// Mean radius in µm.
    pub(crate) radius_um: f64,
    /// Matrix from µm relative to the center to own coordinates.
    to_unit: [[f64; 3]; 3],
    /// Matrix from own coordinates to µm relative to the center.
    from_unit: [[f64; 3]; 3],
    bumps: [Bump; 3],
    /// Half extents of the bounding box along Z, Y, X in µm.
    half_um: [f64; 3],
}

/// Upper bound of the surface radius with bumps: as |P_l| is at most 1, a bump adds at most its amplitude.
fn max_surface(bumps: &[Bump; 3]) -> f64 {
    1.0 + bumps.iter().map(|b| b.amplitude.abs()).sum::<f64>()
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn apply(matrix: &[[f64; 3]; 3], v: [f64; 3]) -> [f64; 3] {
    matrix.map(|row| dot(row, v))
}

/// A uniformly distributed rotation, from a random unit quaternion (Shoemake 1992).
fn rotation(rng: &mut impl Rng) -> [[f64; 3]; 3] {
    let (u, a, b): (f64, f64, f64) = (rng.random(), rng.random(), rng.random());
    let (sa, ca) = (std::f64::consts::TAU * a).sin_cos();
    let (sb, cb) = (std::f64::consts::TAU * b).sin_cos();
    let (r, s) = ((1.0 - u).sqrt(), u.sqrt());
    let (x, y, z, w) = (r * sa, r * ca, s * sb, s * cb);
    [
        [1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - z * w), 2.0 * (x * z + y * w)],
        [2.0 * (x * y + z * w), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - x * w)],
        [2.0 * (x * z - y * w), 2.0 * (y * z + x * w), 1.0 - 2.0 * (x * x + y * y)],
    ]
}

impl Blob {
    /// Draws a body with a mean diameter, centered at the origin: semi-axes that differ by about 15 % (the volume is
    /// that of the sphere), a random rotation, and bumps of about 5 %.
    pub(crate) fn random(rng: &mut impl Rng, diameter_um: f64) -> Self {
        let radius_um = 0.5 * diameter_um;
        let stretch = [0; 3].map(|_| (0.16 * random::normal(rng)).clamp(-0.35, 0.35));
        let mean = stretch.iter().sum::<f64>() / 3.0;
        let half = stretch.map(|s| radius_um * (s - mean).exp());
        let turn = rotation(rng);
        let bumps = [0.05, 0.04, 0.03].map(|size| Bump {
            axis: random::unit_vector(rng),
            amplitude: (size * random::normal(rng)).clamp(-MAX_BUMP, MAX_BUMP),
        });
        // World = turn · diag(half) · own, and back: own = diag(1/half) · turnᵀ · world.
        let from_unit = turn.map(|row| [row[0] * half[0], row[1] * half[1], row[2] * half[2]]);
        let to_unit = [0, 1, 2].map(|i| [turn[0][i] / half[i], turn[1][i] / half[i], turn[2][i] / half[i]]);
        let half_um = from_unit.map(|row| dot(row, row).sqrt() * max_surface(&bumps));
        Self { center_um: [0.0; 3], radius_um, to_unit, from_unit, bumps, half_um }
    }

    /// Returns the body with bumps that are `factor` times as high, but at most a fifth of the radius.
    pub(crate) fn with_bumps(&self, factor: f64) -> Self {
        let bumps = self.bumps.map(|b| Bump { amplitude: (b.amplitude * factor).clamp(-0.2, 0.2), ..b });
        let half_um = self.from_unit.map(|row| dot(row, row).sqrt() * max_surface(&bumps));
        Self { bumps, half_um, ..self.clone() }
    }

    /// Returns the body scaled along Z, Y, X about its center, with its volume preserved.
    pub(crate) fn stretched(&self, factors: [f64; 3]) -> Self {
        let mean = (factors[0] * factors[1] * factors[2]).cbrt();
        let factors = factors.map(|f| f / mean);
        let from_unit = [0, 1, 2].map(|a| self.from_unit[a].map(|v| v * factors[a]));
        let to_unit = self.to_unit.map(|row| [row[0] / factors[0], row[1] / factors[1], row[2] / factors[2]]);
        self.with_axes(from_unit, to_unit)
    }

    /// Returns the body compressed along a unit direction, so that a ball becomes `flatness` times as wide as thick,
    /// with its volume preserved.
    pub(crate) fn flattened(&self, direction: [f64; 3], flatness: f64) -> Self {
        let (wide, thick) = (flatness.cbrt(), flatness.cbrt() / flatness);
        // World = (wide · 1 + (thick - wide) · n nᵀ) · turn · …, and the inverse on the other side.
        let press = |wide: f64, thick: f64, v: [f64; 3]| {
            let along = (thick - wide) * dot(direction, v);
            [0, 1, 2].map(|a| wide * v[a] + along * direction[a])
        };
        let columns = [0, 1, 2].map(|c| press(wide, thick, self.from_unit.map(|row| row[c])));
        let from_unit = [0, 1, 2].map(|r| columns.map(|column| column[r]));
        let to_unit = self.to_unit.map(|row| press(1.0 / wide, 1.0 / thick, row));
        self.with_axes(from_unit, to_unit)
    }

    /// Returns the body scaled by `factor` in all directions.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        let from_unit = self.from_unit.map(|row| row.map(|v| v * factor));
        let to_unit = self.to_unit.map(|row| row.map(|v| v / factor));
        Self { radius_um: factor * self.radius_um, ..self.with_axes(from_unit, to_unit) }
    }

    fn with_axes(&self, from_unit: [[f64; 3]; 3], to_unit: [[f64; 3]; 3]) -> Self {
        let half_um = from_unit.map(|row| dot(row, row).sqrt() * max_surface(&self.bumps));
        Self { from_unit, to_unit, half_um, ..self.clone() }
    }

    /// Distance of the surface from the center along a unit direction, in own coordinates.
    fn surface(&self, direction: [f64; 3]) -> f64 {
        let cosine = self.bumps.map(|b| dot(direction, b.axis));
        let square = cosine.map(|c| c * c);
        let legendre = [
            0.5 * (3.0 * square[0] - 1.0),
            0.5 * cosine[1] * (5.0 * square[1] - 3.0),
            0.125 * (square[2] * (35.0 * square[2] - 30.0) + 3.0),
        ];
        1.0 + (0..3).map(|l| self.bumps[l].amplitude * legendre[l]).sum::<f64>()
    }

    /// Distance from the center relative to that of the surface in the same direction: 0 at the center, 1 on the
    /// surface.
    pub(crate) fn relative_radius(&self, position_um: [f64; 3]) -> f64 {
        let own = apply(&self.to_unit, [0, 1, 2].map(|a| position_um[a] - self.center_um[a]));
        let length = dot(own, own).sqrt();
        if length < 1e-9 { 0.0 } else { length / self.surface(own.map(|c| c / length)) }
    }

    /// Distance from the center to the surface along a unit direction in µm.
    pub(crate) fn radius_toward_um(&self, direction: [f64; 3]) -> f64 {
        let own = apply(&self.to_unit, direction);
        let length = dot(own, own).sqrt();
        self.surface(own.map(|c| c / length)) / length
    }

    /// Upper bound of the distance of the surface from the center in µm.
    pub(crate) fn reach_um(&self) -> f64 {
        self.half_um.iter().map(|h| h * h).sum::<f64>().sqrt()
    }

    /// Voxel indices of the bounding box along each axis.
    pub(crate) fn voxels(&self, grid: &Grid) -> [Range<usize>; 3] {
        [0, 1, 2].map(|a| grid.range(a, self.center_um[a] - self.half_um[a], self.center_um[a] + self.half_um[a]))
    }

    /// Position in µm of a point given by a direction in own coordinates and a relative radius.
    pub(crate) fn point_um(&self, direction: [f64; 3], relative_radius: f64) -> [f64; 3] {
        let offset = apply(&self.from_unit, direction.map(|c| c * relative_radius));
        [0, 1, 2].map(|a| self.center_um[a] + offset[a])
    }
}

/// The nearest body of every voxel, and the relative radius in it.
pub(crate) struct Cover {
    /// 0 for none, otherwise 1 + index of the body.
    pub(crate) owner: Vec<u32>,
    /// Relative radius in the owner, or infinity if there is none.
    pub(crate) relative_radius: Vec<f32>,
}

/// For every slice, the indices of the items whose extent along Z (in µm) includes it.
pub(crate) fn items_by_slice(grid: &Grid, extents_um: impl Iterator<Item = (f64, f64)>) -> Vec<Vec<u32>> {
    let mut slices = vec![Vec::new(); grid.shape[0]];
    for (i, (from, to)) in extents_um.enumerate() {
        slices[grid.range(0, from, to)].iter_mut().for_each(|s| s.push(i as u32));
    }
    slices
}

/// Assigns every voxel to the body with the smallest relative radius (the first of equals), up to a relative radius of
/// `limit`. Overlapping bodies are divided where their relative radii are equal; voxels whose two smallest relative radii
/// differ by less than `gap` belong to none.
pub(crate) fn cover(
    grid: &Grid,
    blobs: &[Blob],
    limit: f64,
    gap: f64,
    progress: &ProgressRange<'_>,
) -> Result<Cover, SimulateError> {
    let mut owner = vec![0u32; grid.len()];
    let mut relative_radius = vec![f32::INFINITY; grid.len()];
    let extent = |b: &Blob, a: usize| (b.center_um[a] - limit * b.half_um[a], b.center_um[a] + limit * b.half_um[a]);
    let slices = items_by_slice(grid, blobs.iter().map(|b| extent(b, 0)));
    let row = grid.shape[2];
    for_each_slab_pair((&mut owner[..], &mut relative_radius[..]), grid.plane(), progress, |z, owner, nearest| {
        let z_um = grid.position_um(0, z);
        let mut second = if gap > 0.0 { vec![f32::INFINITY; nearest.len()] } else { Vec::new() };
        for index in &slices[z] {
            let blob = &blobs[*index as usize];
            let ((y0, y1), (x0, x1)) = (extent(blob, 1), extent(blob, 2));
            for y in grid.range(1, y0, y1) {
                let y_um = grid.position_um(1, y);
                for x in grid.range(2, x0, x1) {
                    let at = y * row + x;
                    let radius = blob.relative_radius([z_um, y_um, grid.position_um(2, x)]);
                    if radius > limit {
                        continue;
                    }
                    let mut farther = radius as f32;
                    if farther < nearest[at] {
                        std::mem::swap(&mut farther, &mut nearest[at]);
                        owner[at] = index + 1;
                    }
                    if let Some(second) = second.get_mut(at) {
                        *second = second.min(farther);
                    }
                }
            }
        }
        for (at, second) in second.iter().enumerate().filter(|(_, s)| s.is_finite()) {
            if f64::from(second - nearest[at]) < gap {
                owner[at] = 0;
                nearest[at] = f32::INFINITY;
            }
        }
    })?;
    Ok(Cover { owner, relative_radius })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, stream};

    #[test]
    fn the_surface_has_relative_radius_one_in_every_direction() {
        let mut rng = stream(2, Purpose::Placement, 0);
        for _ in 0..20 {
            let mut blob = Blob::random(&mut rng, 8.0);
            blob.center_um = [3.0, -2.0, 5.0];
            for _ in 0..50 {
                let direction = random::unit_vector(&mut rng);
                let radius = blob.radius_toward_um(direction);
                assert!((2.0..7.0).contains(&radius) && radius <= blob.reach_um());
                let surface = [0, 1, 2].map(|a| blob.center_um[a] + radius * direction[a]);
                assert!((blob.relative_radius(surface) - 1.0).abs() < 1e-9);
                assert!((0..3).all(|a| (radius * direction[a]).abs() <= blob.half_um[a] + 1e-9));
            }
        }
    }

    #[test]
    fn stretched_bodies_keep_their_volume_and_have_the_requested_proportions() {
        let grid = Grid { shape: [60, 60, 60], voxel_um: [0.4; 3] };
        let mut blob = Blob::random(&mut stream(4, Purpose::Placement, 0), 8.0);
        blob.center_um = [12.0; 3];
        let measure = |blob: Blob| {
            let cover = cover(&grid, &[blob], 1.0, 0.0, &ProgressRange::new(&|_| true)).unwrap();
            let (mut count, mut square) = (0.0, [0.0; 3]);
            for (i, _) in cover.owner.iter().enumerate().filter(|(_, o)| **o == 1) {
                let at = [i / 3600, i / 60 % 60, i % 60];
                count += 1.0;
                (0..3).for_each(|a| square[a] += (grid.position_um(a, at[a]) - 12.0).powi(2));
            }
            (count, square.map(|s| (s / count).sqrt()))
        };
        let (volume, extent) = measure(blob.clone());
        for (changed, axis, factors) in [
            (blob.stretched([2.0, 1.0, 1.0]), 0, [2.0, 1.0, 1.0]),
            (blob.flattened([0.0, 1.0, 0.0], 2.0), 1, [1.0, 0.5, 1.0]),
        ] {
            let (after, now) = measure(changed.clone());
            assert!((after / volume - 1.0).abs() < 0.02, "{after} for {volume}");
            let mean = factors.iter().product::<f64>().cbrt();
            for a in 0..3 {
                let expected = factors[a] / mean;
                assert!((now[a] / extent[a] / expected - 1.0).abs() < 0.02, "{axis}: {now:?} from {extent:?}");
            }
            let direction = random::unit_vector(&mut stream(1, Purpose::Appearance, 0));
            let radius = changed.radius_toward_um(direction);
            let surface = [0, 1, 2].map(|a| 12.0 + radius * direction[a]);
            assert!((changed.relative_radius(surface) - 1.0).abs() < 1e-9);
            assert!((0..3).all(|a| (radius * direction[a]).abs() <= changed.half_um[a]));
        }
    }

    #[test]
    fn a_body_has_about_the_volume_of_its_sphere() {
        let grid = Grid { shape: [40, 40, 40], voxel_um: [0.3; 3] };
        let mut rng = stream(4, Purpose::Placement, 0);
        let mut blob = Blob::random(&mut rng, 8.0);
        blob.center_um = [6.0; 3];
        let cover = cover(&grid, &[blob], 1.0, 0.0, &ProgressRange::new(&|_| true)).unwrap();
        let volume = cover.owner.iter().filter(|o| **o == 1).count() as f64 * 0.027;
        let sphere = std::f64::consts::PI / 6.0 * 512.0;
        assert!((volume / sphere - 1.0).abs() < 0.15, "{volume} for {sphere}");
    }

    #[test]
    fn overlapping_bodies_are_divided_by_a_gap_of_the_given_width() {
        let grid = Grid { shape: [41, 41, 81], voxel_um: [0.25; 3] };
        let mut rng = stream(4, Purpose::Placement, 0);
        let ball = Blob::random(&mut rng, 8.0);
        let bodies = [6.0, 14.0].map(|x| Blob { center_um: [5.0, 5.0, x], ..ball.scaled(1.3) });
        let covered = |gap: f64| cover(&grid, &bodies, 1.0, gap, &ProgressRange::new(&|_| true)).unwrap().owner;
        let (whole, divided) = (covered(0.0), covered(0.2));
        // The line between the centers passes both bodies and nothing else.
        let line = |owner: &[u32]| owner[(20 * 41 + 20) * 81..][24..56].to_vec();
        assert!(line(&whole).iter().all(|o| *o > 0));
        let dark = line(&divided).iter().filter(|o| **o == 0).count() as f64 * 0.25;
        // Half a gap of 0.2 radii on either side of the face.
        let expected = 0.2 * bodies[0].radius_toward_um([0.0, 0.0, 1.0]);
        assert!((dark - expected).abs() < 0.6, "{dark} for {expected}");
        assert!(whole.iter().zip(&divided).all(|(w, d)| d == w || *d == 0));
    }
}
