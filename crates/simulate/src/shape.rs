//! Star-shaped bodies: a turned ellipsoid with a few low-order bumps, and the voxels they cover.

use crate::{SimulateError, grid::Grid, progress::Watch, progress::each_slab_of_two, random};
use rand::Rng;
use std::ops::Range;

/// The largest a bump's amplitude may be, as a share of the radius.
const MAX_BUMP: f64 = 0.1;

/// A zonal spherical harmonic: `amplitude · P_order(direction · axis)`, with P the Legendre polynomial.
#[derive(Debug, Clone, Copy)]
struct Bump {
    axis: [f64; 3],
    amplitude: f64,
}

/// A deformed ellipsoid. In its own coordinates `q` (turned, and scaled by the half axes) its surface is
/// `|q| = 1 + Σ a_l P_l(q/|q| · n_l)` for l = 2, 3, 4: star-shaped about its centre, hence in one piece.
#[derive(Debug, Clone)]
pub(crate) struct Blob {
    /// Centre in µm, Z, Y, X.
    pub(crate) centre_um: [f64; 3],
    /// Mean radius in µm.
    pub(crate) radius_um: f64,
    /// From µm about the centre to own coordinates.
    to_unit: [[f64; 3]; 3],
    /// From own coordinates to µm about the centre.
    from_unit: [[f64; 3]; 3],
    bumps: [Bump; 3],
    /// Half extents in µm along Z, Y, X of the box around the body.
    half_um: [f64; 3],
}

/// The most that bumps raise a surface: |P_l| is at most 1, so no bump reaches further than its amplitude.
fn swell(bumps: &[Bump; 3]) -> f64 {
    1.0 + bumps.iter().map(|b| b.amplitude.abs()).sum::<f64>()
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn apply(matrix: &[[f64; 3]; 3], v: [f64; 3]) -> [f64; 3] {
    matrix.map(|row| dot(row, v))
}

/// A rotation drawn uniformly: from a random unit quaternion (Shoemake 1992).
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
    /// A body of a mean diameter, centred at the origin: half axes that differ by about 15 % (their product is that of
    /// the sphere), turned any way, with bumps of about 5 %.
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
        let half_um = from_unit.map(|row| dot(row, row).sqrt() * swell(&bumps));
        Self { centre_um: [0.0; 3], radius_um, to_unit, from_unit, bumps, half_um }
    }

    /// This body with its bumps `factor` times as high, at most a fifth of the radius.
    pub(crate) fn with_bumps(&self, factor: f64) -> Self {
        let bumps = self.bumps.map(|b| Bump { amplitude: (b.amplitude * factor).clamp(-0.2, 0.2), ..b });
        let half_um = self.from_unit.map(|row| dot(row, row).sqrt() * swell(&bumps));
        Self { bumps, half_um, ..self.clone() }
    }

    /// This body with the space about its centre scaled along Z, Y, X, and its volume kept.
    pub(crate) fn stretched(&self, factors: [f64; 3]) -> Self {
        let mean = (factors[0] * factors[1] * factors[2]).cbrt();
        let factors = factors.map(|f| f / mean);
        let from_unit = [0, 1, 2].map(|a| self.from_unit[a].map(|v| v * factors[a]));
        let to_unit = self.to_unit.map(|row| [row[0] / factors[0], row[1] / factors[1], row[2] / factors[2]]);
        self.with_axes(from_unit, to_unit)
    }

    /// This body with the space about its centre pressed along a unit direction, so that a ball becomes `flatness` times
    /// as wide as it is thick, and its volume kept.
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

    /// This body, `factor` times as large every way.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        let from_unit = self.from_unit.map(|row| row.map(|v| v * factor));
        let to_unit = self.to_unit.map(|row| row.map(|v| v / factor));
        Self { radius_um: factor * self.radius_um, ..self.with_axes(from_unit, to_unit) }
    }

    fn with_axes(&self, from_unit: [[f64; 3]; 3], to_unit: [[f64; 3]; 3]) -> Self {
        let half_um = from_unit.map(|row| dot(row, row).sqrt() * swell(&self.bumps));
        Self { from_unit, to_unit, half_um, ..self.clone() }
    }

    /// The distance of the surface from the centre along a unit direction in own coordinates.
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

    /// The distance from the centre in units of the surface's distance that way: 0 at the centre, 1 on the surface.
    pub(crate) fn relative_radius(&self, position_um: [f64; 3]) -> f64 {
        let own = apply(&self.to_unit, [0, 1, 2].map(|a| position_um[a] - self.centre_um[a]));
        let length = dot(own, own).sqrt();
        if length < 1e-9 { 0.0 } else { length / self.surface(own.map(|c| c / length)) }
    }

    /// The distance in µm from the centre to the surface along a unit direction.
    pub(crate) fn radius_towards_um(&self, direction: [f64; 3]) -> f64 {
        let own = apply(&self.to_unit, direction);
        let length = dot(own, own).sqrt();
        self.surface(own.map(|c| c / length)) / length
    }

    /// The largest distance in µm that the surface can have from the centre.
    pub(crate) fn reach_um(&self) -> f64 {
        self.half_um.iter().map(|h| h * h).sum::<f64>().sqrt()
    }

    /// The voxels, along each axis, of the box around the body.
    pub(crate) fn voxels(&self, grid: &Grid) -> [Range<usize>; 3] {
        [0, 1, 2].map(|a| grid.range(a, self.centre_um[a] - self.half_um[a], self.centre_um[a] + self.half_um[a]))
    }

    /// The position in µm of a point given as a direction and a relative radius.
    pub(crate) fn point_um(&self, direction: [f64; 3], relative_radius: f64) -> [f64; 3] {
        let offset = apply(&self.from_unit, direction.map(|c| c * relative_radius));
        [0, 1, 2].map(|a| self.centre_um[a] + offset[a])
    }
}

/// Which body every voxel is nearest to, and how near.
pub(crate) struct Cover {
    /// 0 = none, else 1 + index of the body.
    pub(crate) owner: Vec<u32>,
    /// Relative radius in the owner, or infinity.
    pub(crate) relative_radius: Vec<f32>,
}

/// For every slice, the items whose extent along Z (in µm) covers it, in order.
pub(crate) fn by_slice(grid: &Grid, extents_um: impl Iterator<Item = (f64, f64)>) -> Vec<Vec<u32>> {
    let mut slices = vec![Vec::new(); grid.shape[0]];
    for (i, (from, to)) in extents_um.enumerate() {
        slices[grid.range(0, from, to)].iter_mut().for_each(|s| s.push(i as u32));
    }
    slices
}

/// Gives every voxel to the body in which its relative radius is smallest (the first of equals), up to a relative radius
/// of `limit`: bodies that overlap are parted where they are equally deep.
pub(crate) fn cover(grid: &Grid, blobs: &[Blob], limit: f64, watch: &Watch<'_>) -> Result<Cover, SimulateError> {
    let mut owner = vec![0u32; grid.len()];
    let mut relative_radius = vec![f32::INFINITY; grid.len()];
    let extent = |b: &Blob, a: usize| (b.centre_um[a] - limit * b.half_um[a], b.centre_um[a] + limit * b.half_um[a]);
    let slices = by_slice(grid, blobs.iter().map(|b| extent(b, 0)));
    let row = grid.shape[2];
    each_slab_of_two((&mut owner[..], &mut relative_radius[..]), grid.plane(), watch, |z, owner, nearest| {
        let z_um = grid.position_um(0, z);
        for index in &slices[z] {
            let blob = &blobs[*index as usize];
            let ((y0, y1), (x0, x1)) = (extent(blob, 1), extent(blob, 2));
            for y in grid.range(1, y0, y1) {
                let y_um = grid.position_um(1, y);
                for x in grid.range(2, x0, x1) {
                    let at = y * row + x;
                    let radius = blob.relative_radius([z_um, y_um, grid.position_um(2, x)]);
                    if radius <= limit && (radius as f32) < nearest[at] {
                        nearest[at] = radius as f32;
                        owner[at] = index + 1;
                    }
                }
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
    fn the_surface_lies_where_it_says_in_every_direction() {
        let mut rng = stream(2, Purpose::Placement, 0);
        for _ in 0..20 {
            let mut blob = Blob::random(&mut rng, 8.0);
            blob.centre_um = [3.0, -2.0, 5.0];
            for _ in 0..50 {
                let direction = random::unit_vector(&mut rng);
                let radius = blob.radius_towards_um(direction);
                assert!((2.0..7.0).contains(&radius) && radius <= blob.reach_um());
                let surface = [0, 1, 2].map(|a| blob.centre_um[a] + radius * direction[a]);
                assert!((blob.relative_radius(surface) - 1.0).abs() < 1e-9);
                assert!((0..3).all(|a| (radius * direction[a]).abs() <= blob.half_um[a] + 1e-9));
            }
        }
    }

    #[test]
    fn a_body_drawn_out_keeps_its_volume_and_has_the_proportions_asked_for() {
        let grid = Grid { shape: [60, 60, 60], voxel_um: [0.4; 3] };
        let mut blob = Blob::random(&mut stream(4, Purpose::Placement, 0), 8.0);
        blob.centre_um = [12.0; 3];
        let measure = |blob: Blob| {
            let cover = cover(&grid, &[blob], 1.0, &Watch::new(&|_| true)).unwrap();
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
            let direction = random::unit_vector(&mut stream(1, Purpose::Looks, 0));
            let radius = changed.radius_towards_um(direction);
            let surface = [0, 1, 2].map(|a| 12.0 + radius * direction[a]);
            assert!((changed.relative_radius(surface) - 1.0).abs() < 1e-9);
            assert!((0..3).all(|a| (radius * direction[a]).abs() <= changed.half_um[a]));
        }
    }

    #[test]
    fn a_body_covers_about_the_volume_of_its_sphere() {
        let grid = Grid { shape: [40, 40, 40], voxel_um: [0.3; 3] };
        let mut rng = stream(4, Purpose::Placement, 0);
        let mut blob = Blob::random(&mut rng, 8.0);
        blob.centre_um = [6.0; 3];
        let cover = cover(&grid, &[blob], 1.0, &Watch::new(&|_| true)).unwrap();
        let volume = cover.owner.iter().filter(|o| **o == 1).count() as f64 * 0.027;
        let sphere = std::f64::consts::PI / 6.0 * 512.0;
        assert!((volume / sphere - 1.0).abs() < 0.15, "{volume} for {sphere}");
    }
}
