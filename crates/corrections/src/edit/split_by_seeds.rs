//! Splitting a label by seeds: a watershed on the distance transform.
//!
//! Each seed first moves uphill to a maximum of the distance, so that a click near the edge of a cell selects that
//! cell. The watershed then floods from the maxima. Seeds that reach the same maximum lie in one convex part without a
//! neck; such a part is divided by the nearest seed.

use super::face_neighbors::each_neighbor;
use crate::CorrectionError;
use crate::geometry::Scope;
use crate::volume::LabelWriter;
use cytoscope_objects::distance::distance_um;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Divides the voxels of `label` inside `scope` into one part for each distinct seed. The part of the first seed keeps the label,
/// the others get new ones, which are returned in the order of the seeds.
///
/// # Errors
/// [`CorrectionError::NotPossible`] if a seed is not in the label or outside `scope`, or there are fewer than two distinct seeds;
/// other errors if there are too few free labels or voxels exceed the limits.
pub(super) fn split_by_seeds(
    writer: &mut LabelWriter,
    label: u32,
    seeds: &[[usize; 3]],
    scope: Scope,
) -> Result<Vec<u32>, CorrectionError> {
    let volume = writer.volume();
    let mut distinct_seeds: Vec<[usize; 3]> = Vec::new();
    for seed in seeds {
        if volume.get(*seed) != Some(label) || !scope.bounds(volume.shape_zyx())?.contains(*seed) {
            return Err(CorrectionError::NotPossible {
                label,
                problem: format!("the seed at Z, Y, X = {seed:?} is not in it"),
                next_step: "place every seed inside the label",
            });
        }
        if !distinct_seeds.contains(seed) {
            distinct_seeds.push(*seed);
        }
    }
    if distinct_seeds.len() < 2 {
        let problem = if seeds.is_empty() { "no seed was given" } else { "all seeds are at the same voxel" };
        return Err(CorrectionError::NotPossible {
            label,
            problem: problem.to_owned(),
            next_step: "place two or more seeds at different voxels",
        });
    }
    let bounds = volume.checked_bounds(label, scope)?.padded([1; 3], &scope.bounds(volume.shape_zyx())?);
    let voxel_um = volume.voxel_size_um().zyx_um_or_one();
    let mask = volume.label_mask(label, &bounds);
    let distance = distance_um(&mask, bounds.size(), voxel_um)?;
    let flat = |p: &[usize; 3]| {
        let [_, ny, nx] = bounds.size();
        ((p[0] - bounds.start[0]) * ny + p[1] - bounds.start[1]) * nx + p[2] - bounds.start[2]
    };
    let indices: Vec<usize> = distinct_seeds.iter().map(flat).collect();
    let parts = divide(&mask, &distance, bounds.size(), voxel_um, &indices);
    let new_labels = volume.free_labels(distinct_seeds.len() - 1)?;
    let label_for = |part: u32| match part {
        0 | 1 => None,
        part => new_labels.get(part as usize - 2).copied(),
    };
    writer.fill_box(&bounds, |i| label_for(parts[i]), |old| old == label);
    Ok(new_labels)
}

/// The part of each voxel of the mask, numbered from 1 in the order of the seeds; 0 outside and where no seed reaches.
fn divide(mask: &[bool], distance: &[f32], size: [usize; 3], voxel_um: [f64; 3], seeds: &[usize]) -> Vec<u32> {
    // Seeds with the same maximum form a group, which is identified by its first seed.
    let peaks: Vec<usize> = seeds.iter().map(|s| climb(distance, size, *s)).collect();
    let leader = |s: usize| peaks.iter().position(|p| *p == peaks[s]).unwrap_or(s);
    let mut parts = vec![0u32; mask.len()];
    // Highest distance first; in order of insertion among equals, so that plateaus are shared.
    let mut heap: BinaryHeap<(u32, Reverse<u64>, usize, u32)> = BinaryHeap::new();
    let mut count = 0u64;
    // Distances are not negative, so their bits have the same order.
    let mut push = |heap: &mut BinaryHeap<_>, at: usize, part: u32| {
        heap.push((distance[at].to_bits(), Reverse(count), at, part));
        count += 1;
    };
    for (s, seed) in seeds.iter().enumerate() {
        let part = leader(s) as u32 + 1;
        parts[*seed] = part;
        push(&mut heap, *seed, part);
    }
    for (s, peak) in peaks.iter().enumerate() {
        if parts[*peak] == 0 {
            parts[*peak] = leader(s) as u32 + 1;
            push(&mut heap, *peak, leader(s) as u32 + 1);
        }
    }
    while let Some((_, _, at, part)) = heap.pop() {
        each_neighbor(at, size, |next| {
            if mask[next] && parts[next] == 0 {
                parts[next] = part;
                push(&mut heap, next, part);
            }
        });
    }
    divide_groups(&mut parts, size, voxel_um, seeds, leader);
    parts
}

/// Moves from a voxel to the highest neighbor until a local maximum is reached.
fn climb(distance: &[f32], size: [usize; 3], mut at: usize) -> usize {
    loop {
        let mut best = at;
        each_neighbor(at, size, |next| {
            if distance[next] > distance[best] {
                best = next;
            }
        });
        if best == at {
            return at;
        }
        at = best;
    }
}

/// Assigns each voxel of a group with several seeds to the nearest of them, in µm.
fn divide_groups(
    parts: &mut [u32],
    size: [usize; 3],
    voxel_um: [f64; 3],
    seeds: &[usize],
    leader: impl Fn(usize) -> usize,
) {
    let place = |i: usize| [i / (size[1] * size[2]), i / size[2] % size[1], i % size[2]];
    let mut groups: Vec<Vec<usize>> = vec![Vec::new(); seeds.len()];
    for s in 0..seeds.len() {
        groups[leader(s)].push(s);
    }
    if groups.iter().all(|g| g.len() < 2) {
        return;
    }
    for (i, part) in parts.iter_mut().enumerate().filter(|(_, p)| **p != 0) {
        let group = &groups[*part as usize - 1];
        if group.len() < 2 {
            continue;
        }
        let at = place(i);
        let squared_distance = |s: usize| -> f64 {
            let seed = place(seeds[s]);
            (0..3).map(|a| ((at[a] as f64 - seed[a] as f64) * voxel_um[a]).powi(2)).sum()
        };
        let nearest = group.iter().copied().min_by(|a, b| squared_distance(*a).total_cmp(&squared_distance(*b)));
        *part = nearest.map_or(*part, |s| s as u32 + 1);
    }
}
