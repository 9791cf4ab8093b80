//! The space in which bodies are placed: the field, or balls and shells inside it.

use crate::{
    Placement, Settings,
    grid::Grid,
    random::{self, Purpose},
};
use rand::Rng;

/// Number of points along each axis of the lattice for measuring a volume.
const LATTICE: usize = 40;

/// The space for centers of bodies.
pub(crate) struct PlacementSpace {
    origin_um: [f64; 3],
    extent_um: [f64; 3],
    /// Centers of the balls; empty for the whole field.
    centers_um: Vec<[f64; 3]>,
    outer_um: f64,
    inner_um: f64,
}

impl PlacementSpace {
    /// The space of a stack, extended by `margin_um` around the field.
    pub(crate) fn new(settings: &Settings, grid: &Grid, margin_um: f64) -> Self {
        let field = grid.extent_um();
        let (origin_um, extent_um) = ([-margin_um; 3], field.map(|e| e + 2.0 * margin_um));
        let Placement::Clusters { count, radius_um, hollow } = settings.objects.placement else {
            return Self { origin_um, extent_um, centers_um: Vec::new(), outer_um: 0.0, inner_um: 0.0 };
        };
        let mut rng = random::stream(settings.seed, Purpose::Clusters, 0);
        let place = |e: f64, share: f64| {
            // The ball lies completely inside the field if it fits, otherwise near the middle.
            let (low, high) = if e > 2.0 * radius_um { (radius_um, e - radius_um) } else { (0.4 * e, 0.6 * e) };
            low + (high - low) * share
        };
        let centers_um = (0..count).map(|_| field.map(|e| place(e, rng.random::<f64>()))).collect();
        Self { origin_um, extent_um, centers_um, outer_um: radius_um, inner_um: hollow * radius_um }
    }

    /// Volume in µm³: exact for the field, accurate to about one percent for balls.
    pub(crate) fn volume_um3(&self) -> f64 {
        let whole = self.extent_um.iter().product::<f64>();
        if self.centers_um.is_empty() {
            return whole;
        }
        let at = |a: usize, i: usize| self.origin_um[a] + self.extent_um[a] * (i as f64 + 0.5) / LATTICE as f64;
        let lattice =
            (0..LATTICE.pow(3)).map(|i| [at(0, i / LATTICE.pow(2)), at(1, i / LATTICE % LATTICE), at(2, i % LATTICE)]);
        whole * lattice.filter(|p| self.contains(*p)).count() as f64 / LATTICE.pow(3) as f64
    }

    /// Whether the space contains a position.
    pub(crate) fn contains(&self, position_um: [f64; 3]) -> bool {
        let inside = (0..3).all(|a| (0.0..=self.extent_um[a]).contains(&(position_um[a] - self.origin_um[a])));
        let in_ball = |center: &[f64; 3]| (self.inner_um..=self.outer_um).contains(&distance(position_um, *center));
        inside && (self.centers_um.is_empty() || self.centers_um.iter().any(in_ball))
    }

    /// Whether a position is inside a ball or shell with inner and outer radius widened by `margin_um`; true if there
    /// are no balls.
    pub(crate) fn near(&self, position_um: [f64; 3], margin_um: f64) -> bool {
        let wider = self.inner_um - margin_um..=self.outer_um + margin_um;
        self.centers_um.is_empty() || self.centers_um.iter().any(|c| wider.contains(&distance(position_um, *c)))
    }

    /// Draws a uniformly distributed position (in a ball, which may extend beyond the field).
    pub(crate) fn draw(&self, rng: &mut impl Rng) -> [f64; 3] {
        if self.centers_um.is_empty() {
            return [0, 1, 2].map(|a| self.origin_um[a] + self.extent_um[a] * rng.random::<f64>());
        }
        let center = self.centers_um[rng.random_range(0..self.centers_um.len())];
        let empty_fraction = (self.inner_um / self.outer_um).powi(3);
        let radius = self.outer_um * (empty_fraction + (1.0 - empty_fraction) * rng.random::<f64>()).cbrt();
        let direction = random::unit_vector(rng);
        [0, 1, 2].map(|a| center[a] + radius * direction[a])
    }

    /// Direction away from the center of the nearest ball; `None` if there are no balls.
    pub(crate) fn outward(&self, position_um: [f64; 3]) -> Option<[f64; 3]> {
        let center =
            self.centers_um.iter().min_by(|a, b| distance(position_um, **a).total_cmp(&distance(position_um, **b)))?;
        let away = distance(position_um, *center);
        (away > 1e-6).then(|| [0, 1, 2].map(|a| (position_um[a] - center[a]) / away))
    }

    /// Draws a position for debris: half of the pieces anywhere in the field, half near the surface of a ball.
    pub(crate) fn debris_position(&self, rng: &mut impl Rng) -> [f64; 3] {
        if self.centers_um.is_empty() || rng.random::<f64>() < 0.5 {
            return [0, 1, 2].map(|a| self.origin_um[a] + self.extent_um[a] * rng.random::<f64>());
        }
        let center = self.centers_um[rng.random_range(0..self.centers_um.len())];
        let radius = self.outer_um * rng.random_range(0.85..1.25);
        let direction = random::unit_vector(rng);
        [0, 1, 2].map(|a| center[a] + radius * direction[a])
    }
}

fn distance(a: [f64; 3], b: [f64; 3]) -> f64 {
    (0..3).map(|i| (a[i] - b[i]).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn drawn_positions_lie_in_the_shell_and_its_volume_is_correct() {
        let mut settings = Settings::new(Kind::Nuclei, [60, 150, 150], 3);
        settings.objects.placement = Placement::Clusters { count: 1, radius_um: 25.0, hollow: 0.6 };
        let grid = settings.check().unwrap();
        let space = PlacementSpace::new(&settings, &grid, 2.0);
        let expected = 4.0 / 3.0 * std::f64::consts::PI * 25.0f64.powi(3) * (1.0 - 0.6f64.powi(3));
        assert!((space.volume_um3() / expected - 1.0).abs() < 0.03, "{} for {expected}", space.volume_um3());
        let mut rng = random::stream(1, Purpose::Placement, 0);
        for _ in 0..500 {
            let place = space.draw(&mut rng);
            assert!(space.contains(place));
            let outward = space.outward(place).unwrap();
            let further = [0, 1, 2].map(|a| place[a] + 10.1 * outward[a]);
            assert!(!space.contains(further));
        }
    }
}
