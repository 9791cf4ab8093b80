//! Splitting a label by seeds: a watershed on the distance to its outside.
//!
//! Each seed first climbs to the nearest peak of the distance, so that a click near a cell's rim means that cell. Peaks are
//! flooded from the highest voxels down. Seeds that climb to one peak sit in one convex part that has no neck to cut at; that
//! part is divided by which seed is nearest.

use crate::AnnotateError;
use crate::geometry::Scope;
use crate::volume::Pen;
use cytoscope_objects::distance::distance_um;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(super) fn by_seeds(
    pen: &mut Pen,
    label: u32,
    seeds: &[[usize; 3]],
    scope: Scope,
) -> Result<Vec<u32>, AnnotateError> {
    let volume = pen.volume();
    let mut places: Vec<[usize; 3]> = Vec::new();
    for seed in seeds {
        if volume.get(*seed) != Some(label) || !scope.bounds(volume.shape_zyx())?.contains(*seed) {
            return Err(AnnotateError::NotPossible {
                label,
                met: format!("the seed at Z, Y, X = {seed:?} is not in it"),
                next: "put every seed inside the label",
            });
        }
        if !places.contains(seed) {
            places.push(*seed);
        }
    }
    if places.len() < 2 {
        return Err(AnnotateError::NotPossible {
            label,
            met: format!("{} seeds were given", places.len()),
            next: "put two or more seeds at different voxels",
        });
    }
    let bounds = volume.box_of(label, scope)?.padded([1; 3], &scope.bounds(volume.shape_zyx())?);
    let voxel_um = volume.voxel_size_um().zyx_or_unit();
    let mask = volume.mask_of(label, &bounds);
    let distance = distance_um(&mask, bounds.size(), voxel_um)?;
    let flat = |p: &[usize; 3]| {
        let [_, ny, nx] = bounds.size();
        ((p[0] - bounds.start[0]) * ny + p[1] - bounds.start[1]) * nx + p[2] - bounds.start[2]
    };
    let indices: Vec<usize> = places.iter().map(flat).collect();
    let parts = divide(&mask, &distance, bounds.size(), voxel_um, &indices);
    let made = volume.free_labels(places.len() - 1)?;
    let name = |part: u32| match part {
        0 | 1 => None,
        part => made.get(part as usize - 2).copied(),
    };
    pen.fill_box(&bounds, |i| name(parts[i]), |old| old == label);
    Ok(made)
}

/// Calls `f` for the neighbours of a voxel that share a face with it.
pub(super) fn each_neighbour(i: usize, [nz, ny, nx]: [usize; 3], mut f: impl FnMut(usize)) {
    let (z, y, x) = (i / (ny * nx), i / nx % ny, i % nx);
    let steps = [
        (z > 0, i.wrapping_sub(ny * nx)),
        (y > 0, i.wrapping_sub(nx)),
        (x > 0, i.wrapping_sub(1)),
        (x + 1 < nx, i + 1),
        (y + 1 < ny, i + nx),
        (z + 1 < nz, i + ny * nx),
    ];
    steps.into_iter().filter(|(there, _)| *there).for_each(|(_, j)| f(j));
}

/// The part of each voxel of the mask, numbered from 1 as the seeds are; 0 outside and where no seed reaches.
fn divide(mask: &[bool], distance: &[f32], size: [usize; 3], voxel_um: [f64; 3], seeds: &[usize]) -> Vec<u32> {
    // Which group each seed is in: seeds that climb to one peak are one group, led by its first.
    let peaks: Vec<usize> = seeds.iter().map(|s| climb(distance, size, *s)).collect();
    let leader = |s: usize| peaks.iter().position(|p| *p == peaks[s]).unwrap_or(s);
    let mut parts = vec![0u32; mask.len()];
    // Highest first, and the first come first among equals, so that plateaus are shared.
    let mut heap: BinaryHeap<(u32, Reverse<u64>, usize, u32)> = BinaryHeap::new();
    let mut count = 0u64;
    // Distances are not negative: their bits are in their order.
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
        each_neighbour(at, size, |next| {
            if mask[next] && parts[next] == 0 {
                parts[next] = part;
                push(&mut heap, next, part);
            }
        });
    }
    share_groups(&mut parts, size, voxel_um, seeds, leader);
    parts
}

/// From a voxel to ever higher neighbours, the highest first.
fn climb(distance: &[f32], size: [usize; 3], mut at: usize) -> usize {
    loop {
        let mut best = at;
        each_neighbour(at, size, |next| {
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

/// Gives each voxel of a group with several seeds to the nearest of them in µm.
fn share_groups(
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
        let far2 = |s: usize| -> f64 {
            let seed = place(seeds[s]);
            (0..3).map(|a| ((at[a] as f64 - seed[a] as f64) * voxel_um[a]).powi(2)).sum()
        };
        let nearest = group.iter().copied().min_by(|a, b| far2(*a).total_cmp(&far2(*b)));
        *part = nearest.map_or(*part, |s| s as u32 + 1);
    }
}

/// The parts that connected pieces of a mask would be given: used by cuts, which make pieces and not seeds.
pub(super) fn spread(parts: &mut [u32], size: [usize; 3], start: Vec<usize>, may_take: impl Fn(usize) -> bool) {
    let mut queue = std::collections::VecDeque::from(start);
    while let Some(at) = queue.pop_front() {
        let part = parts[at];
        each_neighbour(at, size, |next| {
            if parts[next] == 0 && may_take(next) {
                parts[next] = part;
                queue.push_back(next);
            }
        });
    }
}
