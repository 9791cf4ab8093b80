//! The voxels that share a face with a voxel.

/// Calls `f` for the face neighbors of a voxel.
pub(super) fn each_neighbor(i: usize, [nz, ny, nx]: [usize; 3], mut f: impl FnMut(usize)) {
    let (z, y, x) = (i / (ny * nx), i / nx % ny, i % nx);
    let steps = [
        (z > 0, i.wrapping_sub(ny * nx)),
        (y > 0, i.wrapping_sub(nx)),
        (x > 0, i.wrapping_sub(1)),
        (x + 1 < nx, i + 1),
        (y + 1 < ny, i + nx),
        (z + 1 < nz, i + ny * nx),
    ];
    steps.into_iter().filter(|(exists, _)| *exists).for_each(|(_, j)| f(j));
}
