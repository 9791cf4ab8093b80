//! Joins parts of an object that touch without a neck: the contact of two halves of one body is about as large as the body's
//! section, that of two bodies is smaller.

use std::collections::BTreeMap;

/// Sums over the voxels of a part; positions are in voxels.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    voxels: f64,
    positions: [f64; 3],
    products: [[f64; 3]; 3],
}

impl Part {
    fn add(&mut self, at: [usize; 3]) {
        let at = at.map(|v| v as f64);
        self.join(&Self { voxels: 1.0, positions: at, products: at.map(|a| at.map(|b| a * b)) });
    }

    fn join(&mut self, other: &Self) {
        self.voxels += other.voxels;
        self.positions.iter_mut().zip(other.positions).for_each(|(sum, value)| *sum += value);
        let products = self.products.iter_mut().flatten().zip(other.products.into_iter().flatten());
        products.for_each(|(sum, value)| *sum += value);
    }

    fn center(&self) -> [f64; 3] {
        self.positions.map(|sum| sum / self.voxels)
    }

    /// Returns the area in µm² of the middle section, perpendicular to the line from a point to the center of the part, of the
    /// ellipsoid with the volume of the part and its variance along this line.
    fn section_um2(&self, point: [f64; 3], voxel_um: [f64; 3]) -> f64 {
        let direction = direction(point, self.center(), voxel_um);
        let along: [f64; 3] = std::array::from_fn(|a| direction[a] * voxel_um[a]);
        let within: f64 = along.iter().map(|v| v * v / 12.0).sum();
        let square = dot(self.products.map(|row| dot(row, along)), along) / self.voxels;
        let variance = square - dot(self.center(), along).powi(2) + within;
        // The half axis of an ellipsoid is √5 times its standard deviation, and its volume 4/3 times section and half axis.
        0.75 * self.voxels * voxel_um.iter().product::<f64>() / (5.0 * variance).sqrt()
    }
}

/// Returns the unit vector in µm from one position to another; NaN if they are the same.
fn direction(from: [f64; 3], to: [f64; 3], voxel_um: [f64; 3]) -> [f64; 3] {
    let line: [f64; 3] = std::array::from_fn(|a| (to[a] - from[a]) * voxel_um[a]);
    let length = dot(line, line).sqrt();
    line.map(|v| v / length)
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Where two parts touch.
#[derive(Debug, Clone, Copy, Default)]
struct Contact {
    /// Faces of voxels perpendicular to Z, Y, X.
    faces: [f64; 3],
    /// Sums of the positions of the faces, in voxels.
    positions: [f64; 3],
    /// Area of the contact as a share of the smaller section of the two parts.
    neck: f64,
}

impl Contact {
    /// Adds the face between the voxel at `at` and the next one along an axis.
    fn add(&mut self, at: [usize; 3], axis: usize) {
        self.faces[axis] += 1.0;
        self.positions.iter_mut().zip(at).for_each(|(sum, value)| *sum += value as f64);
        self.positions[axis] += 0.5;
    }

    fn join(&mut self, other: &Self) {
        self.faces.iter_mut().zip(other.faces).for_each(|(sum, value)| *sum += value);
        self.positions.iter_mut().zip(other.positions).for_each(|(sum, value)| *sum += value);
    }

    /// Measures the neck between the parts. The sections are those across the way from the contact to the center of each part,
    /// so that a bent body has no neck either.
    fn measure(&mut self, a: &Part, b: &Part, voxel_um: [f64; 3]) {
        let count: f64 = self.faces.iter().sum();
        let center = self.positions.map(|sum| sum / count);
        let faces_um2: f64 =
            (0..3).map(|axis| self.faces[axis] * voxel_um.iter().product::<f64>() / voxel_um[axis]).sum();
        // A plane crosses faces of all three directions, in proportion to the components of its normal.
        let normal = direction(a.center(), b.center(), voxel_um);
        let area_um2 = faces_um2 / normal.iter().map(|v| v.abs()).sum::<f64>();
        let neck = area_um2 / a.section_um2(center, voxel_um).min(b.section_um2(center, voxel_um));
        // Parts with the same center, one around the other, have no line between them.
        self.neck = if neck.is_finite() { neck } else { f64::INFINITY };
    }
}

/// Joins parts, numbered `1..=count`, whose contact is larger than `max_neck` times the smaller one of their sections, the
/// largest share first. Returns the number of parts, which are then numbered from 1 on.
pub(crate) fn join_without_neck(
    parts: &mut [u32],
    count: u32,
    size: [usize; 3],
    voxel_um: [f64; 3],
    max_neck: f64,
) -> u32 {
    let (mut sums, mut contacts) = measure(parts, count, size);
    for ((a, b), contact) in &mut contacts {
        contact.measure(&sums[*a as usize], &sums[*b as usize], voxel_um);
    }
    let mut owners: Vec<u32> = (0..=count).collect();
    loop {
        let widest = contacts.iter().max_by(|(_, a), (_, b)| a.neck.total_cmp(&b.neck));
        let Some((&(kept, joined), _)) = widest.filter(|(_, contact)| contact.neck > max_neck) else { break };
        let other = sums[joined as usize];
        sums[kept as usize].join(&other);
        owners.iter_mut().filter(|owner| **owner == joined).for_each(|owner| *owner = kept);
        let touching: Vec<(u32, u32)> = contacts
            .keys()
            .filter(|(a, b)| [kept, joined].contains(a) || [kept, joined].contains(b))
            .copied()
            .collect();
        for pair in touching {
            let Some(former) = contacts.remove(&pair) else { continue };
            let other = if [kept, joined].contains(&pair.0) { pair.1 } else { pair.0 };
            if ![kept, joined].contains(&other) {
                let contact = contacts.entry((kept.min(other), kept.max(other))).or_default();
                contact.join(&former);
                contact.measure(&sums[kept as usize], &sums[other as usize], voxel_um);
            }
        }
    }
    // An owner has the lowest number of its parts.
    let mut numbers = vec![0; owners.len()];
    let mut last = 0;
    for part in 1..owners.len() {
        if owners[part] as usize == part {
            last += 1;
            numbers[part] = last;
        } else {
            numbers[part] = numbers[owners[part] as usize];
        }
    }
    parts.iter_mut().for_each(|part| *part = numbers[*part as usize]);
    last
}

/// Returns the sums of all parts (index 0 is unused), and the faces between each two of them.
fn measure(parts: &[u32], count: u32, [nz, ny, nx]: [usize; 3]) -> (Vec<Part>, BTreeMap<(u32, u32), Contact>) {
    let mut sums = vec![Part::default(); count as usize + 1];
    let mut contacts: BTreeMap<(u32, u32), Contact> = BTreeMap::new();
    for (at, part) in parts.iter().copied().enumerate().filter(|(_, part)| *part > 0) {
        let [z, y, x] = [at / (ny * nx), at / nx % ny, at % nx];
        sums[part as usize].add([z, y, x]);
        let next = [(z + 1 < nz, at + ny * nx), (y + 1 < ny, at + nx), (x + 1 < nx, at + 1)];
        for (axis, (_, other)) in next.into_iter().enumerate().filter(|(_, (is_inside, _))| *is_inside) {
            let other = parts[other];
            if other > 0 && other != part {
                contacts.entry((part.min(other), part.max(other))).or_default().add([z, y, x], axis);
            }
        }
    }
    (sums, contacts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The neck between parts 1 and 2.
    fn neck(parts: &[u32], size: [usize; 3], voxel_um: [f64; 3]) -> f64 {
        let (sums, contacts) = measure(parts, 2, size);
        let mut contact = contacts[&(1, 2)];
        contact.measure(&sums[1], &sums[2], voxel_um);
        contact.neck
    }

    #[test]
    fn halves_of_a_rod_and_of_a_ball_have_no_neck() {
        // Rods of 4 x 5 x 12 voxels along each axis. Half a rod, of length l, has the variance l² / 12 along it.
        let rod = 4.0 / 3.0 * (5.0f64 / 12.0).sqrt();
        for (axis, size) in [[12, 4, 5], [4, 12, 5], [4, 5, 12]].into_iter().enumerate() {
            let at = |i: usize| [i / (size[1] * size[2]), i / size[2] % size[1], i % size[2]];
            let parts: Vec<u32> = (0..240).map(|i| if at(i)[axis] < 6 { 1 } else { 2 }).collect();
            for voxel_um in [[1.0; 3], [2.5, 0.5, 0.3]] {
                assert!((neck(&parts, size, voxel_um) - rod).abs() < 1e-9, "axis {axis}, {voxel_um:?}");
            }
        }
        // A ball of radius 12 that is cut obliquely. Half a ball of radius r has the variance (1 / 5 - 9 / 64) r² across the cut.
        let ball = 2.0 * (5.0f64 * (1.0 / 5.0 - 9.0 / 64.0)).sqrt();
        let parts: Vec<u32> = (0..25usize.pow(3))
            .map(|i| [i / 625, i / 25 % 25, i % 25].map(|v| v as f64 - 12.0))
            .map(|[z, y, x]| match (z * z + y * y + x * x <= 144.0, z + 2.0 * y + 2.0 * x > 0.0) {
                (false, _) => 0,
                (true, is_above) => 1 + u32::from(is_above),
            })
            .collect();
        assert!((neck(&parts, [25; 3], [1.0; 3]) - ball).abs() < 0.05);
    }

    #[test]
    fn parts_are_joined_until_each_contact_is_a_neck() {
        // Three pieces of a bar, and a fourth one behind a bridge of one voxel.
        let mut parts = [0u32; 5 * 24];
        for (i, part) in parts.iter_mut().enumerate() {
            let (y, x) = (i / 24, i % 24);
            *part = if x == 17 && y != 2 { 0 } else { 1 + x as u32 / 6 };
        }
        let expected = parts.map(|part| if part == 4 { 2 } else { part.min(1) });
        let mut joined = parts;
        assert_eq!(join_without_neck(&mut joined, 4, [1, 5, 24], [1.0; 3], 0.7), 2);
        assert_eq!(joined, expected);
        let mut unchanged = parts;
        assert_eq!(join_without_neck(&mut unchanged, 4, [1, 5, 24], [1.0; 3], 100.0), 4);
        assert_eq!(unchanged, parts);
    }

    #[test]
    fn a_part_inside_another_one_is_joined() {
        let mut parts = [1u32; 27];
        parts[13] = 2;
        assert_eq!(join_without_neck(&mut parts, 2, [3; 3], [1.0; 3], 100.0), 1);
        assert_eq!(parts, [1; 27]);
    }
}
