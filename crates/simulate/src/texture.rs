//! Smooth 3-D random fields: value noise on a lattice, as a pure function of the position.

/// A smooth random field with values in -1..=1 (standard deviation about 0.35), determined by its seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Texture {
    seed: u32,
}

impl Texture {
    /// Creates the field of a seed.
    pub(crate) fn new(seed: u32) -> Self {
        Self { seed }
    }

    /// The value at a position in µm, with a grain size of about `grain_um`.
    ///
    /// Lattice values are hashes of the lattice points. They are interpolated with the quintic 6t⁵ - 15t⁴ + 10t³
    /// (Perlin 2002), which has no visible creases.
    pub(crate) fn at(&self, position_um: [f64; 3], grain_um: f64) -> f32 {
        let scaled = position_um.map(|p| p / grain_um);
        let base = scaled.map(f64::floor);
        let weight: [f32; 3] = [0, 1, 2].map(|a| {
            let t = (scaled[a] - base[a]) as f32;
            t * t * t * (t * (t * 6.0 - 15.0) + 10.0)
        });
        let corner = base.map(|b| b as i32);
        let value = |dz: i32, dy: i32, dx: i32| {
            self.lattice(corner[0].wrapping_add(dz), corner[1].wrapping_add(dy), corner[2].wrapping_add(dx))
        };
        let blend = |a: f32, b: f32, t: f32| a + (b - a) * t;
        let line = |dz, dy| blend(value(dz, dy, 0), value(dz, dy, 1), weight[2]);
        let sheet = |dz| blend(line(dz, 0), line(dz, 1), weight[1]);
        blend(sheet(0), sheet(1), weight[0])
    }

    /// The value at a lattice point: an integer hash (the finalizer of MurmurHash3) mapped to -1..1.
    fn lattice(&self, z: i32, y: i32, x: i32) -> f32 {
        let mut h = self.seed
            ^ (z as u32).wrapping_mul(0x8da6_b343)
            ^ (y as u32).wrapping_mul(0xd816_3841)
            ^ (x as u32).wrapping_mul(0xcb1a_b31f);
        h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
        h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
        h ^= h >> 16;
        (h >> 8) as f32 * (2.0 / 16_777_216.0) - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_texture_is_smooth_bounded_and_centered() {
        let texture = Texture::new(9);
        let (mut sum, mut squares, n) = (0.0f64, 0.0f64, 20_000);
        for i in 0..n {
            let p = [f64::from(i) * 0.31 - 900.0, f64::from(i % 97) * 0.77, f64::from(i % 13) * 1.3];
            let (v, w) = (texture.at(p, 2.0), texture.at([p[0] + 0.002, p[1], p[2]], 2.0));
            assert!((-1.0..=1.0).contains(&v));
            assert!((v - w).abs() < 0.01, "a step of a thousandth of a grain changes the value by {}", v - w);
            sum += f64::from(v);
            squares += f64::from(v) * f64::from(v);
        }
        assert!((sum / f64::from(n)).abs() < 0.03);
        let deviation = (squares / f64::from(n)).sqrt();
        assert!((0.25..0.45).contains(&deviation), "{deviation}");
    }
}
