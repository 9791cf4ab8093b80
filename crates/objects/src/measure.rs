//! The measurement table of objects, accumulated slice by slice.

use crate::components::label_runs;
use crate::crofton::{DIRECTIONS, perimeter_weights, surface_weights};
use crate::diameter::{circle_diameter, sphere_diameter};
use crate::sections::Sections;
use serde::Serialize;
use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::ops::Range;

/// Measurements of one object. Lengths are in µm, positions relative to the center of the stack's first voxel, axes Z,
/// Y, X.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectRow {
    /// Number of the object in the label image.
    pub label: u32,
    /// Number of voxels of the object.
    pub voxels: u64,
    /// Volume in µm³: the number of voxels times the volume of one.
    pub volume_um3: f64,
    /// Mean position of the voxel centers along Z, Y, X in µm.
    pub centroid_um: [f64; 3],
    /// First voxel of the bounding box.
    pub bbox_start: [usize; 3],
    /// Voxel after the last one of the bounding box.
    pub bbox_end: [usize; 3],
    /// Mean intensity of the object in each channel.
    pub mean: Vec<f64>,
    /// Highest intensity of the object in each channel.
    pub max: Vec<f64>,
    /// Sum of the intensities of the object in each channel.
    pub sum: Vec<f64>,
    /// Diameter in µm of a sphere of the same volume; in a single slice, of a circle of the same area.
    pub equivalent_diameter_um: f64,
    /// Full axis lengths in µm of the ellipsoid with the same second moments, longest first: `2·√5·√eigenvalue`. In a single
    /// slice, those of the ellipse, `4·√eigenvalue`, and 0.
    pub principal_axes_um: [f64; 3],
    /// Surface of a sphere of the same volume divided by the object's surface, at most 1. In a single slice, perimeter of a
    /// circle of the same area divided by the object's. Surface and perimeter are estimated from the directions to all
    /// neighbors of a voxel, with Crofton's formula. Estimates for objects of a few voxels are too small; then it is 1. The
    /// surface is at least the smallest one with the same sections in the slices, which is that of a plate if the object is one.
    /// An object in one slice of a stack is a plate as thick as the slice: its surface is twice its area, and its perimeter
    /// times the thickness.
    pub sphericity: f64,
}

#[derive(Debug, Clone)]
struct Sums {
    voxels: u64,
    first: [f64; 3],
    second: [f64; 6],
    low: [usize; 3],
    high: [usize; 3],
    /// Index in [`Measurer::crossings`].
    slot: u32,
    sum: Vec<f64>,
    max: Vec<f64>,
}

/// Accumulates measurements from consecutive slices.
#[derive(Debug, Clone)]
pub struct Measurer {
    voxel_um: [f64; 3],
    shape_yx: [usize; 2],
    channels: Vec<String>,
    sums: BTreeMap<u32, Sums>,
    /// Number of neighbors along each of [`DIRECTIONS`] and its opposite that are not in the object; the background comes first.
    crossings: Vec<[u64; DIRECTIONS.len()]>,
    /// The sections of the objects, by slot.
    sections: Sections,
    /// The slot of each voxel of the last slice that was added, with a border of one voxel of background.
    latest: Vec<u32>,
    /// Those of the slice before.
    previous: Vec<u32>,
    next_z: usize,
}

impl Measurer {
    /// Creates a measurer for slices of `shape_yx`, voxels of `voxel_um` (Z, Y, X) and intensity channels with these
    /// names.
    pub fn new(voxel_um: [f64; 3], shape_yx: [usize; 2], channels: Vec<String>) -> Self {
        let background = vec![0; (shape_yx[0] + 2) * (shape_yx[1] + 2)];
        Self {
            voxel_um,
            shape_yx,
            channels,
            sums: BTreeMap::new(),
            crossings: vec![[0; DIRECTIONS.len()]],
            sections: Sections::new(),
            latest: background.clone(),
            previous: background,
            next_z: 0,
        }
    }

    /// Adds the next slice: its labels, and one intensity slice per channel (missing ones count as zero).
    pub fn add_slice<V: Copy + Into<f64>>(&mut self, labels: &[u32], intensities: &[&[V]]) {
        let [ny, nx] = self.shape_yx;
        if nx == 0 || labels.len() != ny * nx {
            return;
        }
        let z = self.next_z;
        self.next_z += 1;
        let channels = self.channels.len();
        std::mem::swap(&mut self.latest, &mut self.previous);
        self.latest.fill(0);
        self.sections.begin_slice();
        for y in 0..ny {
            let slots = (y + 1) * (nx + 2) + 1;
            for (label, run) in label_runs(&labels[y * nx..(y + 1) * nx]) {
                let sums = self.sums.entry(label).or_insert_with(|| {
                    self.crossings.push([0; DIRECTIONS.len()]);
                    self.sections.add_object();
                    Sums::new(channels, [z, y, run.start], self.crossings.len() as u32 - 1)
                });
                self.latest[slots + run.start..slots + run.end].fill(sums.slot);
                self.sections.add_voxels(sums.slot, run.len());
                sums.add_run(z, y, run.start, run.end);
                for (c, plane) in intensities.iter().take(channels).enumerate() {
                    sums.add_values(c, plane.get(y * nx + run.start..y * nx + run.end).unwrap_or_default());
                }
            }
        }
        self.count_crossings();
        self.sections.end_slice(&self.crossings);
    }

    /// Adds the intensities of further channels, from number `first` on, in a slice with these labels that was added.
    pub fn add_channels<V: Copy + Into<f64>>(&mut self, labels: &[u32], first: usize, intensities: &[&[V]]) {
        let channels = self.channels.len();
        for (label, run) in label_runs(labels) {
            let Some(sums) = self.sums.get_mut(&label) else { continue };
            for (c, plane) in (first..channels).zip(intensities) {
                sums.add_values(c, plane.get(run.clone()).unwrap_or_default());
            }
        }
    }

    /// Counts where neighboring voxels belong to different objects or the background: in the latest slice, and between it and the
    /// one before.
    fn count_crossings(&mut self) {
        let [height, width] = self.shape_yx.map(|n| n + 2);
        let Self { crossings, latest, previous, .. } = self;
        for (k, [dz, dy, dx]) in DIRECTIONS.into_iter().enumerate() {
            let from = if dz == 0 { &*latest } else { &*previous };
            let (ys, neighbor_ys) = steps(height, dy);
            let (xs, neighbor_xs) = steps(width, dx);
            for (y, neighbor_y) in ys.zip(neighbor_ys) {
                let row = &from[y * width + xs.start..y * width + xs.end];
                let neighbors = &latest[neighbor_y * width + neighbor_xs.start..neighbor_y * width + neighbor_xs.end];
                count_in_row(crossings, k, row, neighbors);
            }
        }
    }

    /// Returns the table, sorted by label.
    pub fn finish(mut self) -> Vec<ObjectRow> {
        // What is below the last slice is background.
        std::mem::swap(&mut self.latest, &mut self.previous);
        self.latest.fill(0);
        self.sections.begin_slice();
        self.count_crossings();
        self.sections.end_slice(&self.crossings);
        let is_flat = self.next_z <= 1;
        let (surface, perimeter) = (surface_weights(self.voxel_um), perimeter_weights(self.voxel_um));
        let border = |s: &Sums| -> f64 {
            let crossings = &self.crossings[s.slot as usize];
            let weighted = |weights: &[f64; DIRECTIONS.len()]| -> f64 {
                crossings.iter().zip(weights).map(|(n, weight)| *n as f64 * weight).sum()
            };
            if is_flat {
                return weighted(&perimeter);
            }
            let of_sections = self.sections.surface(s.slot, crossings, self.voxel_um, &perimeter);
            // Directions out of a single slice leave it through its large faces only.
            if s.low[0] == s.high[0] { of_sections } else { of_sections.max(weighted(&surface)) }
        };
        self.sums.iter().map(|(label, s)| s.row(*label, self.voxel_um, is_flat, border(s))).collect()
    }

    /// Returns the names of the channels that are measured, as in the header of the table.
    pub fn channels(&self) -> &[String] {
        &self.channels
    }
}

impl Sums {
    fn new(channels: usize, at: [usize; 3], slot: u32) -> Self {
        Self {
            voxels: 0,
            first: [0.0; 3],
            second: [0.0; 6],
            low: at,
            high: at,
            slot,
            sum: vec![0.0; channels],
            max: vec![f64::NEG_INFINITY; channels],
        }
    }

    fn add_run(&mut self, z: usize, y: usize, start: usize, end: usize) {
        let n = (end - start) as f64;
        self.voxels += (end - start) as u64;
        let (zf, yf) = (z as f64, y as f64);
        let (a, b) = (start as f64, end as f64);
        // Sums of x and x² over start..end.
        let sx = (a + b - 1.0) * n / 2.0;
        let square = |m: f64| (m - 1.0) * m * (2.0 * m - 1.0) / 6.0;
        let sxx = square(b) - square(a);
        self.first[0] += zf * n;
        self.first[1] += yf * n;
        self.first[2] += sx;
        for (sum, v) in self.second.iter_mut().zip([zf * zf * n, yf * yf * n, sxx, zf * yf * n, zf * sx, yf * sx]) {
            *sum += v;
        }
        self.low = [self.low[0].min(z), self.low[1].min(y), self.low[2].min(start)];
        self.high = [self.high[0].max(z), self.high[1].max(y), self.high[2].max(end - 1)];
    }

    /// Adds intensities of a channel.
    fn add_values<V: Copy + Into<f64>>(&mut self, channel: usize, values: &[V]) {
        for value in values {
            let value: f64 = (*value).into();
            self.sum[channel] += value;
            self.max[channel] = self.max[channel].max(value);
        }
    }

    /// Returns the measurements; `is_flat` states whether the stack is a single slice. `border` is the surface in µm², or the
    /// perimeter in µm.
    fn row(&self, label: u32, voxel_um: [f64; 3], is_flat: bool, border: f64) -> ObjectRow {
        let n = self.voxels.max(1) as f64;
        let mean: [f64; 3] = std::array::from_fn(|a| self.first[a] / n);
        let pairs = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)];
        let mut covariance = [[0.0; 3]; 3];
        for (k, (a, b)) in pairs.into_iter().enumerate() {
            // A voxel is a box, not a point: its extent adds 1/12 along each axis.
            let voxel_variance = if a == b { 1.0 / 12.0 } else { 0.0 };
            let c = (self.second[k] / n - mean[a] * mean[b] + voxel_variance) * voxel_um[a] * voxel_um[b];
            covariance[a][b] = c;
            covariance[b][a] = c;
        }
        let volume = self.voxels as f64 * voxel_um.iter().product::<f64>();
        let shape = if is_flat {
            self.ellipse_shape(covariance, voxel_um, border)
        } else {
            self.ellipsoid_shape(covariance, voxel_um, border)
        };
        ObjectRow {
            label,
            voxels: self.voxels,
            volume_um3: volume,
            centroid_um: std::array::from_fn(|a| mean[a] * voxel_um[a]),
            bbox_start: self.low,
            bbox_end: self.high.map(|v| v + 1),
            mean: self.sum.iter().map(|s| s / n).collect(),
            max: self.max.clone(),
            sum: self.sum.clone(),
            equivalent_diameter_um: shape.equivalent_diameter_um,
            principal_axes_um: shape.principal_axes_um,
            sphericity: shape.sphericity,
        }
    }

    /// Returns the shape in space from the covariance of the voxel positions in µm² and the surface in µm².
    fn ellipsoid_shape(&self, covariance: [[f64; 3]; 3], voxel_um: [f64; 3], surface: f64) -> Shape {
        let diameter = sphere_diameter(self.voxels as f64 * voxel_um.iter().product::<f64>());
        Shape {
            equivalent_diameter_um: diameter,
            principal_axes_um: eigenvalues(covariance).map(|e| 2.0 * (5.0 * e.max(0.0)).sqrt()),
            // No body has a smaller surface than the sphere of its volume.
            sphericity: (PI * diameter.powi(2) / surface).min(1.0),
        }
    }

    /// Returns the shape in a single slice from the covariance of the voxel positions in µm² and the perimeter in µm.
    fn ellipse_shape(&self, covariance: [[f64; 3]; 3], [_, y, x]: [f64; 3], perimeter: f64) -> Shape {
        let diameter = circle_diameter(self.voxels as f64 * y * x);
        // All voxels have the same Z, so one eigenvalue is exactly 0, and the others are those of the covariance along Y and X.
        let [_, [_, variance_y, along_both], [_, _, variance_x]] = covariance;
        let mean = (variance_y + variance_x) / 2.0;
        let spread = ((variance_y - variance_x) / 2.0).hypot(along_both);
        Shape {
            equivalent_diameter_um: diameter,
            principal_axes_um: [mean + spread, mean - spread, 0.0].map(|e| 4.0 * e.max(0.0).sqrt()),
            sphericity: (PI * diameter / perimeter).min(1.0),
        }
    }
}

/// The positions along an axis of `len` voxels that have a neighbor a step away, which is -1, 0 or 1, and these neighbors.
fn steps(len: usize, step: i8) -> (Range<usize>, Range<usize>) {
    match step {
        1 => (0..len - 1, 1..len),
        -1 => (1..len, 0..len - 1),
        _ => (0..len, 0..len),
    }
}

/// Voxels of a row that are compared at once.
const PART: usize = 16;

/// Counts where a row and the neighbors of its voxels along a direction have different slots.
fn count_in_row(crossings: &mut [[u64; DIRECTIONS.len()]], direction: usize, row: &[u32], neighbors: &[u32]) {
    for (row, neighbors) in row.chunks(PART).zip(neighbors.chunks(PART)) {
        // Most parts of a row equal their neighbors, and are compared faster than single voxels.
        if row == neighbors {
            continue;
        }
        for (a, b) in row.iter().zip(neighbors).filter(|(a, b)| a != b) {
            crossings[*a as usize][direction] += 1;
            crossings[*b as usize][direction] += 1;
        }
    }
}

/// Measurements of an object's shape, as in [`ObjectRow`].
struct Shape {
    equivalent_diameter_um: f64,
    principal_axes_um: [f64; 3],
    sphericity: f64,
}

/// Returns the eigenvalues of a symmetric 3×3 matrix, largest first (trigonometric method).
fn eigenvalues(m: [[f64; 3]; 3]) -> [f64; 3] {
    let off = m[0][1].powi(2) + m[0][2].powi(2) + m[1][2].powi(2);
    let mean = (m[0][0] + m[1][1] + m[2][2]) / 3.0;
    let spread = (0..3).map(|i| (m[i][i] - mean).powi(2)).sum::<f64>() + 2.0 * off;
    let p = (spread / 6.0).sqrt();
    if p <= 1e-300 {
        return [mean; 3];
    }
    let b: [[f64; 3]; 3] =
        std::array::from_fn(|i| std::array::from_fn(|j| (m[i][j] - if i == j { mean } else { 0.0 }) / p));
    let det = b[0][0] * (b[1][1] * b[2][2] - b[1][2] * b[2][1]) - b[0][1] * (b[1][0] * b[2][2] - b[1][2] * b[2][0])
        + b[0][2] * (b[1][0] * b[2][1] - b[1][1] * b[2][0]);
    let angle = (det / 2.0).clamp(-1.0, 1.0).acos() / 3.0;
    let first = mean + 2.0 * p * angle.cos();
    let last = mean + 2.0 * p * (angle + 2.0 * std::f64::consts::PI / 3.0).cos();
    [first, 3.0 * mean - first - last, last]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ball(radius_um: f64, voxel_um: [f64; 3]) -> Vec<ObjectRow> {
        let half: [usize; 3] = voxel_um.map(|v| (radius_um / v).ceil() as usize + 2);
        let shape = half.map(|h| 2 * h + 1);
        let mut m = Measurer::new(voxel_um, [shape[1], shape[2]], vec!["raw".into()]);
        for z in 0..shape[0] {
            let mut plane = vec![0u32; shape[1] * shape[2]];
            for y in 0..shape[1] {
                for x in 0..shape[2] {
                    let d2: f64 = [z, y, x]
                        .iter()
                        .enumerate()
                        .map(|(a, v)| ((*v as f64 - half[a] as f64) * voxel_um[a]).powi(2))
                        .sum();
                    plane[y * shape[2] + x] = if d2 <= radius_um * radius_um { 7 } else { 0 };
                }
            }
            let light: Vec<f32> = plane.iter().map(|l| if *l > 0 { z as f32 } else { 100.0 }).collect();
            m.add_slice(&plane, &[light.as_slice()]);
        }
        m.finish()
    }

    #[test]
    fn channels_that_are_added_later_are_measured_alike() {
        let slices: Vec<Vec<u32>> = (0..3u32).map(|z| (0..20).map(|i| (i / 3 + z) % 4).collect()).collect();
        let channels: Vec<Vec<f32>> =
            (0..5).map(|c| (0..20).map(|i| (i * (c + 2) % 11) as f32 * 0.1).collect()).collect();
        let planes: Vec<&[f32]> = channels.iter().map(Vec::as_slice).collect();
        let names: Vec<String> = (0..5).map(|c| format!("channel {c}")).collect();
        let measurer = || Measurer::new([1.0; 3], [4, 5], names.clone());
        let (mut at_once, mut in_groups) = (measurer(), measurer());
        for labels in &slices {
            at_once.add_slice(labels, &planes);
            in_groups.add_slice(labels, &planes[..2]);
            in_groups.add_channels(labels, 2, &planes[2..4]);
            in_groups.add_channels(labels, 4, &planes[4..]);
        }
        let rows = at_once.finish();
        assert_eq!(rows.len(), 3);
        assert_eq!(rows, in_groups.finish());
    }

    #[test]
    fn a_ball_has_the_measurements_of_a_sphere_for_any_voxel_size() {
        for voxel in [[1.0, 1.0, 1.0], [2.0, 0.5, 0.5]] {
            let row = &ball(12.0, voxel)[0];
            let want = 4.0 / 3.0 * std::f64::consts::PI * 12f64.powi(3);
            assert!((row.volume_um3 / want - 1.0).abs() < 0.02, "{}", row.volume_um3);
            assert!((row.equivalent_diameter_um - 24.0).abs() < 0.3);
            assert!(row.principal_axes_um.iter().all(|a| (a - 24.0).abs() < 0.6), "{:?}", row.principal_axes_um);
            assert!((0.99..=1.0).contains(&row.sphericity), "{}", row.sphericity);
            let middle = (row.bbox_start[0] + row.bbox_end[0] - 1) as f64 / 2.0;
            assert!((row.centroid_um[0] - middle * voxel[0]).abs() < 1e-9 && (row.mean[0] - middle).abs() < 1e-4);
        }
    }

    /// Sphericity of the part of a stack where `is_inside` is true for the positions of voxels Z, Y, X in µm.
    fn sphericity(voxel_um: [f64; 3], shape_zyx: [usize; 3], is_inside: impl Fn([f64; 3]) -> bool) -> f64 {
        let [nz, ny, nx] = shape_zyx;
        let mut measurer = Measurer::new(voxel_um, [ny, nx], vec![]);
        for z in 0..nz {
            let at = |i: usize| [z as f64 * voxel_um[0], (i / nx) as f64 * voxel_um[1], (i % nx) as f64 * voxel_um[2]];
            let plane: Vec<u32> = (0..ny * nx).map(|i| u32::from(is_inside(at(i)))).collect();
            measurer.add_slice::<f32>(&plane, &[]);
        }
        measurer.finish()[0].sphericity
    }

    #[test]
    fn the_sphericity_of_spheroids_is_that_of_their_exact_surface_along_the_axes_and_between_them() {
        // Half axes of 16 and twice 8 µm: the surface is 2πa²(1 + c/(a·e)·asin e), with e = √(1 − a²/c²).
        let (a, c) = (8.0f64, 16.0f64);
        let e = (1.0 - (a / c).powi(2)).sqrt();
        let surface = 2.0 * PI * a * a * (1.0 + c / (a * e) * e.asin());
        let exact = PI * (8.0 * a * a * c).powf(2.0 / 3.0) / surface;
        assert!((exact - 0.929).abs() < 1e-3, "{exact}");
        let diagonal = 3f64.sqrt().recip();
        for long_axis in [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [diagonal; 3]] {
            for (voxel, tolerance) in [([1.0; 3], 0.005), ([2.0, 1.0, 1.0], 0.04)] {
                let got = sphericity(voxel, [(40.0 / voxel[0]) as usize, 40, 40], |at| {
                    let at = at.map(|um| um - 19.7);
                    let along: f64 = at.iter().zip(long_axis).map(|(p, u)| p * u).sum();
                    let across = at.iter().map(|p| p * p).sum::<f64>() - along * along;
                    along * along / (c * c) + across / (a * a) <= 1.0
                });
                assert!((got - exact).abs() < tolerance, "{long_axis:?} {voxel:?}: {got} instead of {exact}");
            }
        }
    }

    #[test]
    fn an_object_in_one_slice_of_a_stack_has_the_sphericity_of_a_plate() {
        // A cylinder with a radius of 10 µm, which is as high as the slice.
        for voxel in [[1.0; 3], [4.0, 1.0, 1.0], [2.0, 0.5, 0.7]] {
            let (radius, height) = (10.0f64, voxel[0]);
            let surface = 2.0 * PI * radius * (radius + height);
            let exact = PI * (6.0 * radius * radius * height).powf(2.0 / 3.0) / surface;
            let got = sphericity(voxel, [5, 50, 50], |[z, y, x]| {
                let is_in_slice = (1.5 * height..2.5 * height).contains(&z);
                is_in_slice && (y - 12.0).powi(2) + (x - 12.0).powi(2) <= radius * radius
            });
            assert!((got - exact).abs() < 0.01, "{voxel:?}: {got} instead of {exact}");
        }
    }

    #[test]
    fn plates_of_several_slices_have_the_sphericity_of_their_exact_surface() {
        // Cylinders with a radius of 10 µm.
        for voxel in [[1.0; 3], [4.0, 1.0, 1.0], [2.0, 0.5, 0.7]] {
            for slices in [2, 3, 6] {
                let (radius, height) = (10.0f64, voxel[0] * f64::from(slices));
                let surface = 2.0 * PI * radius * (radius + height);
                let exact = PI * (6.0 * radius * radius * height).powf(2.0 / 3.0) / surface;
                let got = sphericity(voxel, [9, 50, 50], |[z, y, x]| {
                    let is_in_slices = (1.5 * voxel[0]..1.5 * voxel[0] + height).contains(&z);
                    is_in_slices && (y - 12.3).powi(2) + (x - 11.9).powi(2) <= radius * radius
                });
                assert!((got - exact).abs() < 0.01, "{voxel:?}, {slices} slices: {got} instead of {exact}");
            }
        }
        // A gap in the labels: two plates of two slices each have the surface of both.
        let two = sphericity([1.0; 3], [9, 50, 50], |[z, y, x]| {
            [2.0, 3.0, 5.0, 6.0].contains(&z) && (y - 22.3).powi(2) + (x - 21.9).powi(2) <= 225.0
        });
        let (volume, surface) = (PI * 225.0 * 4.0, 2.0 * 2.0 * PI * 15.0 * (15.0 + 2.0));
        let exact = PI * (6.0 * volume / PI).powf(2.0 / 3.0) / surface;
        assert!((two - exact).abs() < 0.01, "{two} instead of {exact}");
    }

    #[test]
    fn balls_in_two_to_five_slices_are_not_taken_as_plates() {
        for (voxel, width) in [([4.0, 1.0, 1.0], 50), ([5.0, 1.0, 1.0], 50), ([7.0, 0.5, 0.5], 90)] {
            for offset in [0.0, 0.25, 0.5] {
                let got = sphericity(voxel, [9, width, width], |[z, y, x]| {
                    let dz = z - (4.0 + offset) * voxel[0];
                    dz * dz + (y - 20.3).powi(2) + (x - 20.3).powi(2) <= 100.0
                });
                assert!(got > 0.98, "{voxel:?}, {offset}: {got}");
            }
        }
    }

    #[test]
    fn sphericity_is_at_most_1_for_objects_of_a_few_voxels_and_that_of_a_cube_is_clearly_lower() {
        for size in 1..6 {
            let cube = |at: [f64; 3]| at.iter().all(|p| (2.0..2.0 + f64::from(size)).contains(p));
            let got = sphericity([1.0; 3], [10; 3], cube);
            assert!(got <= 1.0, "{size}: {got}");
            let flat = sphericity([1.0; 3], [1, 10, 10], |[_, y, x]| cube([2.0, y, x]));
            assert!(flat <= 1.0, "{size}: {flat}");
        }
        let cube = sphericity([1.0; 3], [34; 3], |at| at.iter().all(|p| (2.0..32.0).contains(p)));
        assert!((0.8..0.9).contains(&cube), "{cube}");
        // Objects at the border of the stack are closed there.
        let whole = sphericity([1.0; 3], [30; 3], |_| true);
        assert!((whole - cube).abs() < 1e-9, "{whole}");
    }

    #[test]
    fn a_disk_in_a_single_slice_has_the_measurements_of_a_circle_at_any_slice_spacing() {
        for spacing in [0.2, 1.0, 7.0] {
            let (voxel, size) = ([spacing, 0.5, 0.25], 120);
            let mut measurer = Measurer::new(voxel, [size, size], vec![]);
            let inside = |i: usize| {
                let at = [i / size, i % size].map(|v| v as f64 - 59.5);
                ((at[0] * voxel[1]).powi(2) + (at[1] * voxel[2]).powi(2)).sqrt() <= 12.0
            };
            let plane: Vec<u32> = (0..size * size).map(|i| u32::from(inside(i))).collect();
            measurer.add_slice::<f32>(&plane, &[]);
            let row = &measurer.finish()[0];
            assert!((row.equivalent_diameter_um - 24.0).abs() < 0.1, "{}", row.equivalent_diameter_um);
            let [long, short, none] = row.principal_axes_um;
            assert!((long - 24.0).abs() < 0.3 && (short - 24.0).abs() < 0.3 && none == 0.0, "{long} {short} {none}");
            assert!((0.985..=1.0).contains(&row.sphericity), "{}", row.sphericity);
        }
    }

    #[test]
    fn the_axes_of_an_oblique_object_in_a_single_slice_are_those_of_its_moments() {
        // Voxels along the diagonal, with a size of 2 µm along Y and 1 µm along X.
        let mut measurer = Measurer::new([3.0, 2.0, 1.0], [9, 9], vec![]);
        let plane: Vec<u32> = (0..81).map(|i| u32::from(i / 9 == i % 9)).collect();
        measurer.add_slice::<f32>(&plane, &[]);
        let [long, short, none] = measurer.finish()[0].principal_axes_um;
        // The sum and the product of the eigenvalues are the trace and the determinant: each voxel adds 1/12 of its size squared.
        let [yy, xx, yx] = [4.0 * 81.0 / 12.0, 81.0 / 12.0, 2.0 * 80.0 / 12.0];
        let [first, second] = [long, short].map(|axis| (axis / 4.0).powi(2));
        assert!((first + second - (yy + xx)).abs() < 1e-9 && (first * second - (yy * xx - yx * yx)).abs() < 1e-9);
        assert!(first > second && none == 0.0, "{long} {short} {none}");
    }
}
