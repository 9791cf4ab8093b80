//! Splits objects that are larger than usual at lower seeds: they are often several objects that touch.

use crate::components::boxes;
use crate::diameter::min_sphere_voxels;
use crate::necks::join_without_neck;
use crate::options::SegmentOptions;
use crate::{ObjectsError, watershed};
use std::collections::VecDeque;

/// Splits basins that are larger than [`SegmentOptions::oversized`] allows into parts with seeds of a lower height. `basins`
/// (`1..=count`, 0 is background) and `heights` have `size` voxels along Z, Y, X. Voxels between the parts stay in the foreground;
/// parts without a neck between them stay together if the options state a largest neck. Returns the number of basins; new ones
/// have the numbers above `count`.
///
/// # Errors
/// [`ObjectsError`] if the volumes do not match the shape, or there are too many objects.
pub(crate) fn split_oversized(
    basins: &mut [u32],
    heights: &[f32],
    size: [usize; 3],
    voxel_um: [f64; 3],
    count: u32,
    options: &SegmentOptions,
) -> Result<u32, ObjectsError> {
    let Some(oversized) = options.oversized else { return Ok(count) };
    // A stack of one slice shows a section of each body, whose area is compared with that of a sphere.
    let voxels_of = |volume_um3: f64| match size[0] {
        1 => min_sphere_voxels(volume_um3, 1, voxel_um),
        _ => volume_um3 / voxel_um.iter().product::<f64>(),
    };
    let min_voxels = voxels_of(oversized.min_volume_um3);
    let min_part_voxels = voxels_of(oversized.part_share * oversized.min_volume_um3);
    let seed_height = (oversized.seed_share * options.seed_height) as f32;
    let voxels = voxel_counts(basins, count);
    if voxels.iter().skip(1).all(|voxels| *voxels as f64 <= min_voxels) {
        return Ok(count);
    }
    let mut total = count;
    let found = boxes(basins, size, count);
    for ((basin, voxels), bounds) in (1..=count).zip(voxels.into_iter().skip(1)).zip(found) {
        let Some((low, high)) = bounds.filter(|_| voxels as f64 > min_voxels) else { continue };
        let part_size: [usize; 3] = std::array::from_fn(|a| high[a] + 1 - low[a]);
        let rows = || {
            (0..part_size[0] * part_size[1]).map(move |row| {
                let (z, y) = (low[0] + row / part_size[1], low[1] + row % part_size[1]);
                let start = (z * size[1] + y) * size[2] + low[2];
                start..start + part_size[2]
            })
        };
        let mut mask = Vec::with_capacity(part_size.iter().product());
        rows().for_each(|row| mask.extend(basins[row].iter().map(|b| *b == basin)));
        let part_heights: Vec<f32> = rows().flat_map(|row| heights[row].iter().copied()).collect();
        let (mut parts, part_count) =
            watershed::flood(&part_heights, &mask, part_size, seed_height, options.connectivity)?;
        let mut part_count = drop_small(&mut parts, part_count, min_part_voxels);
        if part_count > 1 {
            grow(&mut parts, &mask, part_size);
            if let Some(max_neck) = oversized.max_neck {
                part_count = join_without_neck(&mut parts, part_count, part_size, voxel_um, max_neck);
            }
        }
        if part_count < 2 {
            continue;
        }
        // The first part keeps the number of the basin.
        let last = total.checked_add(part_count - 1).ok_or(ObjectsError::TooManyObjects { limit: u32::MAX })?;
        parts
            .iter_mut()
            .filter(|part| **part > 0)
            .for_each(|part| *part = if *part == 1 { basin } else { total + *part - 1 });
        total = last;
        for (row, parts) in rows().zip(parts.chunks_exact(part_size[2])) {
            for (target, part) in basins[row].iter_mut().zip(parts).filter(|(_, part)| **part > 0) {
                *target = *part;
            }
        }
    }
    Ok(total)
}

/// Removes parts of fewer voxels and numbers the others from 1 on, in the same order; returns their number.
fn drop_small(parts: &mut [u32], count: u32, min_voxels: f64) -> u32 {
    let mut numbers = vec![0u32; count as usize + 1];
    let mut last = 0;
    for (number, voxels) in numbers.iter_mut().zip(voxel_counts(parts, count)).skip(1) {
        if voxels as f64 >= min_voxels {
            last += 1;
            *number = last;
        }
    }
    parts.iter_mut().for_each(|part| *part = numbers[*part as usize]);
    last
}

/// Returns the number of voxels of each label from 0 to `count`.
fn voxel_counts(labels: &[u32], count: u32) -> Vec<u64> {
    let mut voxels = vec![0u64; count as usize + 1];
    labels.chunk_by(|a, b| a == b).for_each(|run| voxels[run[0] as usize] += run.len() as u64);
    voxels
}

/// Gives the voxels of a mask that are in no part to the nearest part, in steps across faces.
fn grow(parts: &mut [u32], mask: &[bool], size: [usize; 3]) {
    let is_open = |parts: &[u32], at: usize| mask[at] && parts[at] == 0;
    let mut waiting: VecDeque<usize> = (0..parts.len())
        .filter(|at| parts[*at] > 0 && neighbors(*at, size).any(|other| is_open(parts, other)))
        .collect();
    while let Some(at) = waiting.pop_front() {
        for other in neighbors(at, size) {
            if is_open(parts, other) {
                parts[other] = parts[at];
                waiting.push_back(other);
            }
        }
    }
}

/// The voxels that share a face with a voxel.
fn neighbors(at: usize, [nz, ny, nx]: [usize; 3]) -> impl Iterator<Item = usize> {
    let plane = ny * nx;
    let (z, y, x) = (at / plane, at / nx % ny, at % nx);
    let all = [
        (z > 0, at.wrapping_sub(plane)),
        (z + 1 < nz, at + plane),
        (y > 0, at.wrapping_sub(nx)),
        (y + 1 < ny, at + nx),
        (x > 0, at.wrapping_sub(1)),
        (x + 1 < nx, at + 1),
    ];
    all.into_iter().filter(|(is_inside, _)| *is_inside).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Height, OversizedOptions, Threshold};
    use crate::segment;

    #[test]
    fn only_large_objects_are_split_at_lower_seeds() {
        let shape = [6, 20, 30];
        // Two bars with ridges in columns 10 and 20, which rise 0.2 above the valley between them: of 240 and 120 voxels.
        let value = |i: usize| {
            let [z, y, x] = [i / 600, i / 30 % 20, i % 30];
            let is_large = (1..5).contains(&z) && (2..6).contains(&y);
            let is_small = (1..3).contains(&z) && (10..14).contains(&y);
            let ridges = 0.8 + 0.1 * (std::f32::consts::TAU * x as f32 / 10.0).cos();
            if (8..23).contains(&x) && (is_large || is_small) { ridges } else { 0.0 }
        };
        let map: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        let alike = SegmentOptions {
            threshold: Threshold::Fixed(0.5),
            height: Some(Height::Map),
            height_smooth_um: 0.0,
            seed_height: 0.25,
            min_volume_um3: 0.0,
            ..SegmentOptions::default()
        };
        let rule = OversizedOptions { min_volume_um3: 200.0, part_share: 0.4, seed_share: 0.6, max_neck: None };
        let with = |rule: OversizedOptions| SegmentOptions { oversized: Some(rule), ..alike.clone() };
        let segmented = |voxel_um: f64, options: &SegmentOptions| {
            let (labels, count) = segment(&map, shape, [voxel_um; 3], options).unwrap();
            (count, labels.iter().filter(|label| **label > 0).count())
        };
        assert_eq!(segmented(1.0, &alike), (2, 360));
        assert_eq!(segmented(1.0, &with(rule)), (3, 360));
        // Objects twice as large, in voxels of twice the size.
        assert_eq!(segmented(2.0, &with(rule).scaled(2.0)), (3, 360));
        for unsplit in [
            OversizedOptions { min_volume_um3: 240.0, ..rule },
            OversizedOptions { part_share: 0.7, ..rule },
            OversizedOptions { seed_share: 0.9, ..rule },
        ] {
            assert_eq!(segmented(1.0, &with(unsplit)), (2, 360), "{unsplit:?}");
        }
        let wrong = with(OversizedOptions { seed_share: f64::NAN, ..rule });
        assert!(matches!(wrong.validate(), Err(ObjectsError::Option { name: "oversized.seed_share", .. })));
        let wrong = with(OversizedOptions { max_neck: Some(-0.1), ..rule });
        assert!(matches!(wrong.validate(), Err(ObjectsError::Option { name: "oversized.max_neck", .. })));
    }

    /// The number of objects in a body around the origin, from a map that is highest at two points. `is_inside` takes a position
    /// in µm.
    fn objects_in(
        is_inside: &dyn Fn([f64; 3]) -> bool,
        peaks: [[f64; 3]; 2],
        (shape, voxel_um): ([usize; 3], [f64; 3]),
        oversized: OversizedOptions,
    ) -> u32 {
        let distance = |a: [f64; 3], b: [f64; 3]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let between = distance(peaks[0], peaks[1]);
        let value = |i: usize| {
            let voxel = [i / (shape[1] * shape[2]), i / shape[2] % shape[1], i % shape[2]];
            let at: [f64; 3] = std::array::from_fn(|a| (voxel[a] as f64 - 0.5 * (shape[a] as f64 - 1.0)) * voxel_um[a]);
            let nearest = peaks.map(|peak| distance(at, peak)).into_iter().fold(f64::INFINITY, f64::min);
            // The valley between the peaks is 0.2 deep.
            if is_inside(at) { (0.95 - 0.4 * nearest / between).max(0.55) as f32 } else { 0.0 }
        };
        let map: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        let options = SegmentOptions {
            threshold: Threshold::Fixed(0.5),
            height: Some(Height::Map),
            height_smooth_um: 0.0,
            seed_height: 0.25,
            oversized: Some(oversized),
            ..SegmentOptions::default()
        };
        segment(&map, shape, voxel_um, &options).unwrap().1
    }

    #[test]
    fn bodies_without_a_neck_are_kept() {
        let ellipsoid = |at: [f64; 3], center_x: f64, half_axes: [f64; 3]| {
            let [z, y, x] = [at[0], at[1], at[2] - center_x];
            (z / half_axes[0]).powi(2) + (y / half_axes[1]).powi(2) + (x / half_axes[2]).powi(2) <= 1.0
        };
        let two = |at| ellipsoid(at, -10.0, [12.0, 14.0, 12.0]) || ellipsoid(at, 10.0, [12.0, 14.0, 12.0]);
        let long = |at| ellipsoid(at, 0.0, [10.0, 10.0, 32.0]);
        // A tube of radius 8 along an arc of radius 30, which is 54 long.
        let arc = |angle: f64| [0.0, 30.0 * angle.cos() - 25.0, 30.0 * angle.sin()];
        let bean = |at: [f64; 3]| {
            let nearest = arc(at[2].atan2(at[1] + 25.0).clamp(-0.9, 0.9));
            at.iter().zip(nearest).map(|(a, b)| (a - b).powi(2)).sum::<f64>() <= 64.0
        };
        let stack = ([20, 60, 80], [2.0, 1.0, 1.0]);
        let plane = ([1, 60, 80], [2.0, 1.0, 1.0]);
        let along = |x: f64| [[0.0, 0.0, -x], [0.0, 0.0, x]];
        let rule = OversizedOptions { min_volume_um3: 900.0, part_share: 0.3, seed_share: 0.6, max_neck: None };
        let with_necks = OversizedOptions { max_neck: Some(0.75), ..rule };
        let check = |is_inside: &dyn Fn([f64; 3]) -> bool, peaks: [[f64; 3]; 2], expected: u32| {
            for extents in [stack, plane] {
                assert_eq!(objects_in(is_inside, peaks, extents, rule), 2, "{peaks:?}, {extents:?}");
                assert_eq!(objects_in(is_inside, peaks, extents, with_necks), expected, "{peaks:?}, {extents:?}");
            }
        };
        check(&two, along(10.0), 2);
        check(&long, along(15.0), 1);
        check(&bean, [arc(-0.45), arc(0.45)], 1);
        // Both have about 1000 µm² in the plane. The middle section of a sphere of 4000 µm³ has 305 µm², that of one of
        // 30,000 µm³ has 1167 µm².
        for (min_volume_um3, expected) in [(4000.0, 2), (30_000.0, 1)] {
            let rule = OversizedOptions { min_volume_um3, ..rule };
            assert_eq!(objects_in(&two, along(10.0), plane, rule), expected, "{min_volume_um3}");
        }
    }

    #[test]
    fn small_parts_go_to_their_nearest_neighbors() {
        let mut parts = [1, 0, 0, 0, 2, 0, 0, 0];
        grow(&mut parts, &[true, true, false, true, true, true, true, false], [1, 1, 8]);
        assert_eq!(parts, [1, 1, 0, 2, 2, 2, 2, 0]);
        let mut parts = [0, 0, 3, 0];
        grow(&mut parts, &[true; 4], [2, 2, 1]);
        assert_eq!(parts, [3; 4]);
    }
}
