//! Placement of bodies at random positions without overlap, some of them in contact with a neighbor.

use crate::{
    Settings, SimulateError,
    deformation::Deformation,
    grid::Grid,
    placement_space::PlacementSpace,
    progress::ProgressRange,
    random::{self, Purpose},
    settings::check_count,
    shape::Blob,
};
use rand::Rng;

/// Number of positions tried for a body before it is omitted.
const ATTEMPTS: usize = 60;

/// Largest distance of a center outside the field, relative to the diameter: borders cut bodies, as in real stacks.
const MARGIN: f64 = 0.25;

/// Free space around a body that touches no other, relative to its diameter.
const GAP: f64 = 0.06;

/// Largest overlap of a touching body with its neighbors, relative to the smaller radius.
const OVERLAP: f64 = 0.16;

/// Spatial index: bodies by cubes of space, for finding neighbors.
struct Neighbors {
    cube_um: f64,
    origin_um: [f64; 3],
    counts: [usize; 3],
    cubes: Vec<Vec<u32>>,
    /// Largest distance of a surface from its body's center, over all bodies, in µm.
    reach_um: f64,
}

impl Neighbors {
    fn new(origin_um: [f64; 3], extent_um: [f64; 3], cube_um: f64) -> Self {
        let counts = extent_um.map(|e| (e / cube_um).ceil().max(1.0) as usize);
        Self { cube_um, origin_um, counts, cubes: vec![Vec::new(); counts.iter().product()], reach_um: 0.0 }
    }

    fn cube(&self, axis: usize, position_um: f64) -> usize {
        // A cast from float saturates at 0.
        (((position_um - self.origin_um[axis]) / self.cube_um) as usize).min(self.counts[axis] - 1)
    }

    fn insert(&mut self, index: u32, blob: &Blob) {
        let [z, y, x] = [0, 1, 2].map(|a| self.cube(a, blob.center_um[a]));
        self.cubes[(z * self.counts[1] + y) * self.counts[2] + x].push(index);
        self.reach_um = self.reach_um.max(blob.reach_um());
    }

    /// Whether `test` is true for every body whose center may be within `distance_um`.
    fn all_near(&self, center_um: [f64; 3], distance_um: f64, mut test: impl FnMut(u32) -> bool) -> bool {
        let [zs, ys, xs] =
            [0, 1, 2].map(|a| self.cube(a, center_um[a] - distance_um)..=self.cube(a, center_um[a] + distance_um));
        for z in zs {
            for y in ys.clone() {
                for x in xs.clone() {
                    let cube = &self.cubes[(z * self.counts[1] + y) * self.counts[2] + x];
                    if !cube.iter().all(|i| test(*i)) {
                        return false;
                    }
                }
            }
        }
        true
    }
}

/// Distance between the surfaces of two bodies along the line between their centers in µm; negative if they overlap.
fn gap_um(a: &Blob, b: &Blob) -> f64 {
    let offset = [0, 1, 2].map(|i| b.center_um[i] - a.center_um[i]);
    let distance = offset.iter().map(|o| o * o).sum::<f64>().sqrt();
    if distance < 1e-9 {
        return -a.radius_um - b.radius_um;
    }
    let direction = offset.map(|o| o / distance);
    distance - a.radius_toward_um(direction) - b.radius_toward_um(direction.map(|d| -d))
}

/// Places bodies according to the settings.
///
/// A fraction `touching` of them is placed in contact with a random earlier body, at the distance `(r₁ + r₂) ·
/// 0.86..0.97`. The others are placed anywhere with a gap to all bodies, as if each were `spacing` times as large (1 =
/// its own size). A body without a position after 60 attempts is omitted.
pub(crate) fn place(
    settings: &Settings,
    grid: &Grid,
    spacing: f64,
    progress: &ProgressRange<'_>,
) -> Result<Vec<Blob>, SimulateError> {
    let objects = &settings.objects;
    let margin = MARGIN * objects.diameter_um;
    let space = PlacementSpace::new(settings, grid, margin);
    let (origin, extent) = ([-margin; 3], grid.extent_um().map(|e| e + 2.0 * margin));
    // The mean volume of spheres whose diameters are log-normal: π/6 · mean³ · exp(3 σ²).
    let mean_volume =
        std::f64::consts::PI / 6.0 * objects.diameter_um.powi(3) * (3.0 * objects.diameter_spread.powi(2)).exp();
    let by_fill = (objects.fill * space.volume_um3() / mean_volume).ceil();
    let wanted = check_count(objects.count.map_or(by_fill, |n| n as f64))?;

    let mut rng = random::stream(settings.seed, Purpose::Placement, 0);
    let mut blobs: Vec<Blob> = Vec::with_capacity(wanted);
    let mut near = Neighbors::new(origin, extent, 1.5 * objects.diameter_um);
    for i in 0..wanted {
        if i % 256 == 0 {
            progress.at(i as f64 / wanted as f64)?;
        }
        let diameter = random::log_normal(&mut rng, objects.diameter_um, objects.diameter_spread)
            .clamp(0.5 * objects.diameter_um, 2.0 * objects.diameter_um);
        let deformation = Deformation::new(settings, blobs.len());
        let mut drawn = Blob::random(&mut rng, diameter);
        if objects.bumps != 1.0 {
            drawn = drawn.with_bumps(objects.bumps);
        }
        let round = deformation.shaped(drawn);
        for _ in 0..ATTEMPTS {
            let mut blob = round.clone();
            let touches = !blobs.is_empty() && rng.random::<f64>() < objects.touching;
            if touches {
                let other = &blobs[rng.random_range(0..blobs.len())];
                let direction = random::unit_vector(&mut rng);
                let closeness = rng.random_range(0.86..0.97);
                let touching_center = |blob: &Blob| {
                    let distance =
                        closeness * (other.radius_toward_um(direction) + blob.radius_toward_um(direction.map(|d| -d)));
                    [0, 1, 2].map(|a| other.center_um[a] + distance * direction[a])
                };
                blob.center_um = touching_center(&blob);
                if let Some(flat) = deformation.flattened(&blob, space.outward(blob.center_um)) {
                    blob = flat;
                    blob.center_um = touching_center(&blob);
                }
            } else {
                blob.center_um = space.draw(&mut rng);
                if let Some(flat) = deformation.flattened(&blob, space.outward(blob.center_um)) {
                    blob = flat;
                }
            }
            let is_apart = |other: &Blob| {
                let smaller = blob.radius_um.min(other.radius_um);
                let min_gap = if touches { -OVERLAP * smaller } else { GAP * diameter + (spacing - 1.0) * smaller };
                gap_um(&blob, other) >= min_gap
            };
            let horizon = blob.reach_um() + near.reach_um + GAP * diameter + (spacing - 1.0) * blob.radius_um;
            if space.contains(blob.center_um)
                && near.all_near(blob.center_um, horizon, |i| is_apart(&blobs[i as usize]))
            {
                near.insert(blobs.len() as u32, &blob);
                blobs.push(blob);
                break;
            }
        }
    }
    Ok(blobs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn bodies_touch_as_often_as_requested_and_overlap_little() {
        let gaps = |touching: f64| {
            let mut settings = Settings::new(Kind::Nuclei, [50, 200, 200], 3);
            settings.objects.touching = touching;
            let grid = settings.check().unwrap();
            let blobs = place(&settings, &grid, 1.0, &ProgressRange::new(&|_| true)).unwrap();
            assert!(blobs.len() > 30);
            let mut touching = 0;
            for (i, a) in blobs.iter().enumerate() {
                let others = blobs.iter().enumerate().filter(|(j, _)| *j != i);
                let smallest_gap = others.map(|(_, b)| gap_um(a, b)).fold(f64::INFINITY, f64::min);
                assert!(smallest_gap >= -OVERLAP * a.radius_um - 1e-9, "{smallest_gap}");
                touching += usize::from(smallest_gap < 0.0);
            }
            touching as f64 / blobs.len() as f64
        };
        assert_eq!(gaps(0.0), 0.0);
        let (few, many) = (gaps(0.2), gaps(0.7));
        assert!(few > 0.1 && many > few + 0.2, "{few} {many}");
    }

    #[test]
    fn too_many_bodies_are_refused() {
        let mut settings = Settings::new(Kind::Nuclei, [256, 1024, 1024], 3);
        settings.objects.diameter_um = 2.0;
        let grid = settings.check().unwrap();
        let refused = place(&settings, &grid, 1.0, &ProgressRange::new(&|_| true));
        assert!(matches!(refused, Err(SimulateError::TooManyObjects { .. })));
    }
}
