//! Postprocessing of ground-truth labels: each object connected, large enough, and numbered 1..=n.

use crate::{SimulateError, grid::Grid};
use cytoscope_volume::{Array, Samples};
use rayon::prelude::*;

/// Smallest object in the labels, in voxels; smaller remainders (cut by a border of the field) become background.
pub const MIN_OBJECT_VOXELS: usize = 20;

/// A box of voxels: first and last index along Z, Y, X.
#[derive(Clone, Copy)]
pub(crate) struct InclusiveBounds {
    pub(crate) low: [usize; 3],
    pub(crate) high: [usize; 3],
}

/// Keeps the largest connected component (by faces) of every label, removes labels with fewer than
/// [`MIN_OBJECT_VOXELS`], and renumbers the rest 1..=n in their order. The input labels are 1..=`count`; the old
/// numbers of the remaining labels are returned.
pub(crate) fn clean_labels(labels: &mut [u32], grid: &Grid, count: usize) -> Vec<u32> {
    let bounds = bounds(labels, grid, count);
    let found: Vec<(usize, Vec<usize>)> = bounds
        .par_iter()
        .enumerate()
        .map(|(i, b)| b.map_or((0, Vec::new()), |b| split(labels, grid, i as u32 + 1, b)))
        .collect();
    let mut renumber = vec![0u32; count + 1];
    let mut kept = Vec::new();
    for (i, (voxels, _)) in found.iter().enumerate() {
        if *voxels >= MIN_OBJECT_VOXELS {
            kept.push(i as u32 + 1);
            renumber[i + 1] = kept.len() as u32;
        }
    }
    found.iter().flat_map(|(_, stray)| stray).for_each(|at| labels[*at] = 0);
    labels.par_iter_mut().for_each(|l| *l = renumber[*l as usize]);
    kept
}

/// The bounding box of every label.
pub(crate) fn bounds(labels: &[u32], grid: &Grid, count: usize) -> Vec<Option<InclusiveBounds>> {
    let mut bounds: Vec<Option<InclusiveBounds>> = vec![None; count];
    for (line, row) in labels.chunks_exact(grid.shape[2]).enumerate() {
        let (z, y) = (line / grid.shape[1], line % grid.shape[1]);
        for (x, label) in row.iter().enumerate().filter(|(_, l)| **l > 0) {
            let here = [z, y, x];
            let b = bounds[*label as usize - 1].get_or_insert(InclusiveBounds { low: here, high: here });
            b.low = [0, 1, 2].map(|a| b.low[a].min(here[a]));
            b.high = [0, 1, 2].map(|a| b.high[a].max(here[a]));
        }
    }
    bounds
}

/// The size of a label's largest connected component, and the voxels (indices into the labels) of its other components.
fn split(labels: &[u32], grid: &Grid, label: u32, bounds: InclusiveBounds) -> (usize, Vec<usize>) {
    let size = [0, 1, 2].map(|a| bounds.high[a] - bounds.low[a] + 1);
    let global = |at: usize| {
        let [z, y, x] = [at / (size[1] * size[2]), at / size[2] % size[1], at % size[2]];
        ((bounds.low[0] + z) * grid.shape[1] + bounds.low[1] + y) * grid.shape[2] + bounds.low[2] + x
    };
    let total = size.iter().product();
    let mut waiting: Vec<bool> = (0..total).map(|at| labels[global(at)] == label).collect();
    let mut largest: Vec<usize> = Vec::new();
    let mut stray = Vec::new();
    let steps = [size[1] * size[2], size[2], 1];
    for start in 0..total {
        if !waiting[start] {
            continue;
        }
        waiting[start] = false;
        let mut piece = vec![start];
        let mut next = 0;
        while let Some(at) = piece.get(next).copied() {
            next += 1;
            for axis in 0..3 {
                let index = at / steps[axis] % size[axis];
                let before = (index > 0).then(|| at - steps[axis]);
                let after = (index + 1 < size[axis]).then(|| at + steps[axis]);
                for neighbor in [before, after].into_iter().flatten() {
                    if std::mem::take(&mut waiting[neighbor]) {
                        piece.push(neighbor);
                    }
                }
            }
        }
        if piece.len() > largest.len() {
            std::mem::swap(&mut piece, &mut largest);
        }
        stray.extend(piece.into_iter().map(global));
    }
    (largest.len(), stray)
}

/// The labels as an array: uint16, or uint32 if `count` does not fit into 16 bits.
pub(crate) fn label_array(grid: &Grid, labels: Vec<u32>, count: usize) -> Result<Array, SimulateError> {
    let samples = if count <= usize::from(u16::MAX) {
        Samples::U16(labels.into_par_iter().map(|l| l as u16).collect())
    } else {
        Samples::U32(labels)
    };
    grid.array(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_volume::DType;

    #[test]
    fn stray_and_small_pieces_are_removed_and_the_rest_is_numbered() {
        let grid = Grid { shape: [1, 6, 20], voxel_um: [1.0; 3] };
        let mut labels = vec![0; grid.len()];
        labels[0..20].fill(3); // a row of 20 ...
        labels[65] = 3; // ... and a stray voxel
        labels[40..59].fill(1); // 19 voxels: too few
        labels[80..120].fill(5);
        let kept = clean_labels(&mut labels, &grid, 6);
        assert_eq!(kept, [3, 5]);
        assert!(labels[0..20].iter().all(|l| *l == 1) && labels[80..120].iter().all(|l| *l == 2));
        assert!(labels[20..80].iter().all(|l| *l == 0));
    }

    #[test]
    fn labels_widen_beyond_sixteen_bits() {
        let grid = Grid { shape: [1, 1, 2], voxel_um: [1.0; 3] };
        assert_eq!(label_array(&grid, vec![0, 9], 65_535).unwrap().dtype(), DType::U16);
        assert_eq!(label_array(&grid, vec![0, 70_000], 70_000).unwrap().samples(), &Samples::U32(vec![0, 70_000]));
    }
}
