//! Splits objects that are larger than usual at lower seeds: they are often several objects that touch.

use crate::components::boxes;
use crate::options::SegmentOptions;
use crate::{ObjectsError, watershed};
use std::collections::VecDeque;

/// Splits basins that are larger than [`SegmentOptions::oversized`] states into parts with seeds of a lower height. Voxels between
/// the parts stay in the foreground. Returns the number of basins; new ones have the numbers above `count`.
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
    let min_voxels = oversized.min_volume_um3 / voxel_um.iter().product::<f64>();
    let min_part_voxels = oversized.part_share * min_voxels;
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
        // The first part that is large enough keeps the number of the basin; those that are too small have none.
        let mut numbers = vec![0u32; part_count as usize + 1];
        let (mut last, mut has_first) = (total, false);
        for (number, voxels) in numbers.iter_mut().zip(voxel_counts(&parts, part_count)).skip(1) {
            if (voxels as f64) < min_part_voxels {
                continue;
            }
            if has_first {
                last = last.checked_add(1).ok_or(ObjectsError::TooManyObjects { limit: u32::MAX })?;
            }
            *number = if has_first { last } else { basin };
            has_first = true;
        }
        if last == total {
            continue;
        }
        total = last;
        parts.iter_mut().for_each(|part| *part = numbers[*part as usize]);
        grow(&mut parts, &mask, part_size);
        for (row, parts) in rows().zip(parts.chunks_exact(part_size[2])) {
            for (target, part) in basins[row].iter_mut().zip(parts).filter(|(_, part)| **part > 0) {
                *target = *part;
            }
        }
    }
    Ok(total)
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
        let rule = OversizedOptions { min_volume_um3: 200.0, part_share: 0.4, seed_share: 0.6 };
        let with = |rule: OversizedOptions| SegmentOptions { oversized: Some(rule), ..alike.clone() };
        let segmented = |voxel_um: f64, options: &SegmentOptions| {
            let (labels, count) = segment(&map, shape, [voxel_um; 3], options).unwrap_or_default();
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
