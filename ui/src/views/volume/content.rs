//! Volume data for rendering and picking: intensities as 8-bit or half floats, labels as indices.

use super::camera::{Ray, Xyz, add, length, scale};
use super::grid::TexelGrid;
use crate::data::plane::{Plane, Values};
use std::collections::HashMap;

/// Edge length of the blocks with known maximum, which let rays skip blocks that cannot contribute.
pub const BLOCK: usize = 8;

/// Step length of picking rays in texels.
const PICK_STEP: f64 = 0.25;

/// Texture values, normalized to 0 to 1 between minimum and maximum of the volume.
#[derive(Debug, Clone, PartialEq)]
pub enum Texels {
    /// 8-bit values; 255 stands for 1.
    U8(Vec<u8>),
    /// Half floats as bits. They are non-negative, so they compare like integers.
    F16(Vec<u16>),
}

impl Texels {
    /// The normalized value at an index.
    pub fn get(&self, i: usize) -> Option<f32> {
        match self {
            Texels::U8(v) => v.get(i).map(|v| f32::from(*v) / 255.0),
            Texels::F16(v) => v.get(i).map(|v| from_half(*v)),
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Texels::U8(v) => v.len(),
            Texels::F16(v) => v.len() * 2,
        }
    }
}

/// Intensities of one channel and time point.
#[derive(Debug, Clone, PartialEq)]
pub struct Intensities {
    /// Grid on which the stack was sampled.
    pub grid: TexelGrid,
    /// Values with axes Z, Y, X.
    pub texels: Texels,
    /// Maximum of each block including adjacent voxels; axes Z, Y, X.
    pub blocks: Texels,
    /// Value stored as 0.
    pub offset: f32,
    /// Difference between the values stored as 1 and 0.
    pub range: f32,
}

/// Labels of one time point.
#[derive(Debug, Clone, PartialEq)]
pub struct Labels {
    /// Grid on which the stack was sampled.
    pub grid: TexelGrid,
    /// Indices into `ids`, axes Z, Y, X.
    pub indices: Vec<u32>,
    /// Distinct labels; the first is 0, background.
    pub ids: Vec<u32>,
    /// 255 for blocks that contain a label, otherwise 0; axes Z, Y, X.
    pub blocks: Vec<u8>,
}

/// A volume that was read.
#[derive(Debug, Clone, PartialEq)]
pub enum Volume {
    /// Intensities of a channel or map.
    Intensities(Intensities),
    /// Labels of a label image.
    Labels(Labels),
}

impl Volume {
    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Volume::Intensities(v) => v.texels.bytes() + v.blocks.bytes(),
            Volume::Labels(v) => (v.indices.len() + v.ids.len()) * 4 + v.blocks.len(),
        }
    }
}

/// Number of blocks along Z, Y, X.
pub fn blocks_zyx(size_zyx: [usize; 3]) -> [usize; 3] {
    size_zyx.map(|n| n.div_ceil(BLOCK))
}

/// Half-precision bits of a value from 0 to 1, rounded to nearest; NaN becomes 0.
fn to_half(share: f32) -> u16 {
    let share = if share > 0.0 { share.min(1.0) } else { 0.0 };
    if share < 6.103_515_6e-5 {
        // Subnormal numbers are multiples of 2^-24.
        return (share * 16_777_216.0).round() as u16;
    }
    ((share.to_bits() + 0x1000) >> 13).wrapping_sub(112 << 10) as u16
}

fn from_half(bits: u16) -> f32 {
    if bits < 1 << 10 {
        return f32::from(bits) / 16_777_216.0;
    }
    f32::from_bits((u32::from(bits) + (112 << 10)) << 13)
}

/// Builds a volume from its planes.
pub struct Builder {
    grid: TexelGrid,
    values: Option<Values>,
}

impl Builder {
    /// Creates a builder for a volume on this grid, without planes.
    pub fn new(grid: TexelGrid) -> Self {
        Self { grid, values: None }
    }

    /// Appends the next plane.
    pub fn push(&mut self, plane: Plane) {
        let [_, rows, columns] = self.grid.size_zyx;
        let mut new = plane.values;
        // Planes of an unexpected size are truncated or zero-padded.
        new.resize(rows * columns);
        match (&mut self.values, new) {
            (Some(Values::U8(all)), Values::U8(new)) => all.extend(new),
            (Some(Values::U16(all)), Values::U16(new)) => all.extend(new),
            (Some(Values::F32(all)), Values::F32(new)) => all.extend(new),
            (Some(Values::Labels(all)), Values::Labels(new)) => all.extend(new),
            (Some(all), new) => {
                // Planes of different types become float.
                let joined = (0..all.len()).map(|i| all.get(i)).chain((0..new.len()).map(|i| new.get(i)));
                *all = Values::F32(joined.map(|v| v.unwrap_or(0.0) as f32).collect());
            }
            (none, new) => *none = Some(new),
        }
    }

    /// Finishes the volume; missing planes are zero.
    pub fn finish(self) -> Volume {
        let grid = self.grid;
        let mut values = self.values.unwrap_or(Values::U8(Vec::new()));
        values.resize(grid.voxels());
        match values {
            Values::Labels(labels) => Volume::Labels(Labels::new(grid, &labels)),
            Values::U8(v) => Volume::Intensities(Intensities::new(grid, Texels::U8(v), 0.0, 255.0)),
            Values::U16(v) => {
                let (low, high) = v.iter().fold((u16::MAX, 0), |(a, b), v| (a.min(*v), b.max(*v)));
                Volume::Intensities(Intensities::scaled(grid, &v, |v| f32::from(*v), f32::from(low), f32::from(high)))
            }
            Values::F32(v) => {
                let finite = v.iter().filter(|v| v.is_finite());
                let (low, high) = finite.fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
                let (low, high) = if low <= high { (low, high) } else { (0.0, 0.0) };
                Volume::Intensities(Intensities::scaled(grid, &v, |v| *v, low, high))
            }
        }
    }
}

impl Intensities {
    fn scaled<T>(grid: TexelGrid, values: &[T], value: impl Fn(&T) -> f32, low: f32, high: f32) -> Self {
        let range = if high - low > 0.0 && (high - low).is_finite() { high - low } else { 1.0 };
        let texels = values.iter().map(|v| to_half((value(v) - low) / range)).collect();
        Self::new(grid, Texels::F16(texels), low, range)
    }

    fn new(grid: TexelGrid, texels: Texels, offset: f32, range: f32) -> Self {
        let blocks = match &texels {
            Texels::U8(v) => Texels::U8(block_maxima(v, grid.size_zyx, 1)),
            Texels::F16(v) => Texels::F16(block_maxima(v, grid.size_zyx, 1)),
        };
        Self { grid, texels, blocks, offset, range }
    }

    /// The brightest texel (Z, Y, X) along a ray.
    pub fn brightest(&self, ray: &TexelRay) -> Option<[usize; 3]> {
        let mut best: Option<(f32, [usize; 3])> = None;
        for zyx in ray.voxels(&self.grid) {
            let Some(value) = self.texels.get(flat_index(zyx, self.grid.size_zyx)) else { continue };
            if value > 0.0 && best.is_none_or(|(b, _)| value > b) {
                best = Some((value, zyx));
            }
        }
        best.map(|(_, zyx)| zyx)
    }
}

impl Labels {
    fn new(grid: TexelGrid, labels: &[u32]) -> Self {
        let mut ids = vec![0u32];
        let mut places = HashMap::from([(0u32, 0u32)]);
        let mut last = (0u32, 0u32);
        let indices: Vec<u32> = labels
            .iter()
            .map(|label| {
                if *label != last.0 {
                    let next = ids.len() as u32;
                    let index = *places.entry(*label).or_insert(next);
                    if index == next {
                        ids.push(*label);
                    }
                    last = (*label, index);
                }
                last.1
            })
            .collect();
        let blocks = block_maxima(&indices, grid.size_zyx, 0).iter().map(|n| if *n > 0 { 255 } else { 0 }).collect();
        Self { grid, indices, ids, blocks }
    }

    /// The label at a texel.
    pub fn label_at(&self, texel_zyx: [usize; 3]) -> Option<u32> {
        let index = *self.indices.get(flat_index(texel_zyx, self.grid.size_zyx))?;
        self.ids.get(index as usize).copied()
    }

    /// Index of a label in `ids`; 0 if it does not occur.
    pub fn label_index(&self, label: Option<u32>) -> u32 {
        label.and_then(|l| self.ids.iter().position(|id| *id == l)).unwrap_or(0) as u32
    }

    /// The first label along a ray, and its texel (Z, Y, X).
    pub fn first_label(&self, ray: &TexelRay) -> Option<(u32, [usize; 3])> {
        ray.voxels(&self.grid).find_map(|zyx| self.label_at(zyx).filter(|l| *l > 0).map(|l| (l, zyx)))
    }
}

fn flat_index([z, y, x]: [usize; 3], [_, rows, columns]: [usize; 3]) -> usize {
    (z * rows + y) * columns + x
}

/// Maximum of each block, including `apron` voxels around it.
fn block_maxima<T: Copy + Ord + Default>(v: &[T], size_zyx: [usize; 3], apron: usize) -> Vec<T> {
    let [bz, by, bx] = blocks_zyx(size_zyx);
    let mut out = vec![T::default(); bz * by * bx];
    let span = |i: usize, n: usize| {
        let first = i.saturating_sub(apron) / BLOCK;
        first..=((i + apron).min(n - 1) / BLOCK)
    };
    for (at, value) in v.iter().enumerate() {
        let x = at % size_zyx[2];
        let y = at / size_zyx[2] % size_zyx[1];
        let z = at / size_zyx[2] / size_zyx[1];
        for k in span(z, size_zyx[0]) {
            for j in span(y, size_zyx[1]) {
                for i in span(x, size_zyx[2]) {
                    if let Some(max_value) = out.get_mut((k * by + j) * bx + i) {
                        *max_value = (*max_value).max(*value);
                    }
                }
            }
        }
    }
    out
}

/// A ray in texel coordinates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TexelRay {
    origin: Xyz,
    /// Unit vector.
    direction: Xyz,
}

impl TexelRay {
    /// Converts a ray in µm; `None` if its direction is zero or not finite.
    pub fn new(ray: &Ray, texel_um: Xyz) -> Option<Self> {
        let divided = |v: Xyz| -> Xyz { std::array::from_fn(|i| v[i] / texel_um[i]) };
        let direction = divided(ray.direction);
        let n = length(direction);
        (n.is_finite() && n > 0.0).then(|| Self { origin: divided(ray.origin), direction: scale(direction, 1.0 / n) })
    }

    /// Texels (Z, Y, X) along the ray, nearest first, possibly repeated.
    fn voxels(&self, grid: &TexelGrid) -> impl Iterator<Item = [usize; 3]> + use<> {
        let (origin, direction) = (self.origin, self.direction);
        let extent = grid.size_texels();
        let (mut near, mut far) = (0.0f64, f64::INFINITY);
        for a in 0..3 {
            if direction[a].abs() < 1e-12 {
                if origin[a] < 0.0 || origin[a] > extent[a] {
                    far = -1.0;
                }
                continue;
            }
            let (p, q) = (-origin[a] / direction[a], (extent[a] - origin[a]) / direction[a]);
            near = near.max(p.min(q));
            far = far.min(p.max(q));
        }
        let steps = if far > near && far.is_finite() { ((far - near) / PICK_STEP) as usize } else { 0 };
        let size = grid.size_zyx;
        (0..steps).map(move |i| {
            let at = add(origin, scale(direction, near + (i as f64 + 0.5) * PICK_STEP));
            std::array::from_fn(|a| (at[2 - a].max(0.0) as usize).min(size[a] - 1))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_volume::{DType, Samples};

    fn build(size: [usize; 3], plane: impl Fn(usize) -> Values) -> Volume {
        let grid = TexelGrid::of(size, &[]);
        let mut builder = Builder::new(grid);
        for z in 0..size[0] {
            builder.push(Plane { at: grid.plane(z, 0, 0), size: [size[1], size[2]], values: plane(z) });
        }
        builder.finish()
    }

    #[test]
    fn half_floats_follow_ieee_754() {
        // Another crate's half float type is the reference.
        let Samples::F16(mut truth) = Samples::zeros(DType::F16, 1) else { panic!("no half floats") };
        let mut before = 0.0;
        for bits in 0..=0x3C00u16 {
            truth[0] = bytemuck::cast(bits);
            let value = truth[0].to_f32();
            assert_eq!((from_half(bits), to_half(value)), (value, bits));
            let near = to_half(before + (value - before) * 0.75);
            assert_eq!(near, bits, "other values are rounded to the nearest half float");
            before = value;
        }
        assert_eq!((to_half(0.0), to_half(1.0), to_half(f32::NAN), to_half(7.0)), (0, 0x3C00, 0, 0x3C00));
    }

    #[test]
    fn stored_values_convert_back() {
        let value = |z: usize, i: usize| (1000 + 137 * z + 11 * i) as u16;
        let Volume::Intensities(v) = build([3, 4, 5], |z| Values::U16((0..20).map(|i| value(z, i)).collect())) else {
            panic!("no intensities")
        };
        for z in 0..3 {
            for i in 0..20 {
                let got = v.texels.get(z * 20 + i).unwrap() * v.range + v.offset;
                assert!((got - f32::from(value(z, i))).abs() < 0.5, "{got}");
            }
        }
        let Volume::Intensities(flat) = build([2, 2, 2], |_| Values::F32(vec![f32::NAN, 3.0, f32::INFINITY, 3.0]))
        else {
            panic!("no intensities")
        };
        assert_eq!((flat.offset, flat.range), (3.0, 1.0), "NaN does not affect the range");
    }

    #[test]
    fn block_maxima_include_interpolation_neighbors() {
        let size = [9, 17, 20];
        let bright = [7usize, 8, 16];
        let Volume::Intensities(v) = build(size, |z| {
            let mut plane = vec![0u8; 17 * 20];
            if z == bright[0] {
                plane[bright[1] * 20 + bright[2]] = 200;
            }
            Values::U8(plane)
        }) else {
            panic!("no intensities")
        };
        let [_, by, bx] = blocks_zyx(size);
        for k in 0..2 {
            for j in 0..3 {
                for i in 0..3 {
                    let touches = [k, j, i].iter().zip(bright).all(|(block, at)| {
                        let from = block * BLOCK;
                        at + 1 >= from && at <= from + BLOCK
                    });
                    let max_value = v.blocks.get((k * by + j) * bx + i).unwrap();
                    assert_eq!(max_value > 0.0, touches, "block {k} {j} {i}");
                }
            }
        }
    }

    #[test]
    fn rays_pick_the_first_label_and_the_brightest_voxel() {
        // Seen from the front label 700 hides 9, from behind 9 hides 700.
        let labels = |z: usize| {
            let mut plane = vec![0u32; 100];
            if z == 3 {
                plane[4 * 10 + 6] = 700;
            }
            if z == 7 {
                plane[4 * 10 + 6] = 9;
            }
            plane
        };
        let Volume::Labels(v) = build([10, 10, 10], |z| Values::Labels(labels(z))) else { panic!("no labels") };
        assert_eq!(v.ids, vec![0, 700, 9]);
        let texel_um = [0.5, 0.5, 2.0];
        let line = |z: f64, dz: f64| {
            TexelRay::new(&Ray { origin: [3.2, 2.2, z], direction: [0.0, 0.0, dz] }, texel_um).unwrap()
        };
        assert_eq!(v.first_label(&line(-5.0, 1.0)), Some((700, [3, 4, 6])));
        assert_eq!(v.first_label(&line(50.0, -3.0)), Some((9, [7, 4, 6])));
        let beside = Ray { origin: [0.2, 2.2, -5.0], direction: [0.0, 0.0, 1.0] };
        assert_eq!(v.first_label(&TexelRay::new(&beside, texel_um).unwrap()), None);
        let outside = Ray { origin: [-0.2, 2.2, -5.0], direction: [0.0, 0.0, 1.0] };
        assert_eq!(v.first_label(&TexelRay::new(&outside, texel_um).unwrap()), None);
        assert_eq!((v.label_index(Some(9)), v.label_index(Some(8)), v.label_index(None)), (2, 0, 0));
        let bright = |z: usize| Values::U16(labels(z).iter().map(|l| *l as u16).collect());
        let Volume::Intensities(v) = build([10, 10, 10], bright) else { panic!("no intensities") };
        assert_eq!(v.brightest(&line(50.0, -1.0)), Some([3, 4, 6]));
        assert!(TexelRay::new(&Ray { origin: [0.0; 3], direction: [0.0; 3] }, texel_um).is_none());
    }
}
