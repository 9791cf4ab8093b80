//! Downsampling of a stack to a volume of limited size for the GPU.

use crate::data::levels::ReducedLevel;
use crate::data::plane::{Orientation, PlaneAt};

/// Largest number of voxels that are read for a volume, if fewer would be read from a level with fewer slices.
const MAX_READ_VOXELS: usize = 1 << 28;

/// Maximum number of texels of a volume along an axis; all graphics drivers support textures of this size.
const MAX_SIDE: usize = 256;

/// Sampling of a stack by its volume, whose voxels are called texels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TexelGrid {
    /// Number of voxels of the stack along Z, Y, X.
    pub full_zyx: [usize; 3],
    /// Voxels of the stack per texel along Z, Y, X.
    pub stride_zyx: [usize; 3],
    /// Number of texels of the volume along Z, Y, X.
    pub size_zyx: [usize; 3],
}

impl TexelGrid {
    /// The grid for a stack of `full_zyx` voxels with these levels. If there are several, the stride along Y and X is a power
    /// of two, so that a smaller level can be read, and the stride along Z may be that of a level.
    pub fn of(full_zyx: [usize; 3], levels: &[ReducedLevel]) -> Self {
        let full = full_zyx.map(|n| n.max(1));
        let stride = full[1].max(full[2]).div_ceil(MAX_SIDE);
        let stride = if levels.len() > 1 { stride.next_power_of_two() } else { stride };
        let stride_zyx = [stride_z(full, stride, levels), stride, stride];
        Self { full_zyx: full, stride_zyx, size_zyx: std::array::from_fn(|a| full[a].div_ceil(stride_zyx[a])) }
    }

    /// Total number of texels of the volume.
    pub fn voxels(&self) -> usize {
        self.size_zyx.iter().product()
    }

    /// The plane of the stack that gives slice `z` of the volume: the middle one of those it represents.
    pub fn plane(&self, z: usize, channel: usize, time: usize) -> PlaneAt {
        let index = (z * self.stride_zyx[0] + self.stride_zyx[0] / 2).min(self.full_zyx[0] - 1);
        let whole = PlaneAt::whole(Orientation::Xy, index, self.full_zyx);
        PlaneAt { channel, time, steps: self.stride_zyx, ..whole }
    }

    /// Size of the stack in µm, X, Y, Z.
    pub fn size_um(&self, voxel_um: [f64; 3]) -> [f64; 3] {
        [2, 1, 0].map(|a| self.full_zyx[a] as f64 * voxel_um[a])
    }

    /// Size of a texel in µm, X, Y, Z.
    pub fn texel_um(&self, voxel_um: [f64; 3]) -> [f64; 3] {
        [2, 1, 0].map(|a| self.stride_zyx[a] as f64 * voxel_um[a])
    }

    /// Size of the stack in texels, X, Y, Z; the last texel may be partial.
    pub fn size_texels(&self) -> [f64; 3] {
        [2, 1, 0].map(|a| self.full_zyx[a] as f64 / self.stride_zyx[a] as f64)
    }

    /// The voxel (Z, Y, X) of the stack at the center of a texel.
    pub fn full_voxel(&self, texel_zyx: [usize; 3]) -> [usize; 3] {
        std::array::from_fn(|a| (texel_zyx[a] * self.stride_zyx[a] + self.stride_zyx[a] / 2).min(self.full_zyx[a] - 1))
    }
}

/// The voxels per texel along Z of a stack whose texels have `stride` voxels along Y and X: as few as the largest volume allows,
/// or those of a level if reading would take too long otherwise.
fn stride_z(full: [usize; 3], stride: usize, levels: &[ReducedLevel]) -> usize {
    let least = full[0].div_ceil(MAX_SIDE);
    let fitting = levels.iter().map(|level| level.factors_zyx);
    let fitting = fitting.filter(|[_, y, x]| stride.is_multiple_of(*y) && stride.is_multiple_of(*x));
    let choices = fitting.map(|[z, y, x]| {
        let stride_z = least.next_multiple_of(z);
        let area = full[1].div_ceil(y).saturating_mul(full[2].div_ceil(x));
        let voxels = full[0].div_ceil(stride_z).saturating_mul(area);
        // Volumes within the limit are equally good.
        (if voxels > MAX_READ_VOXELS { voxels } else { 0 }, stride_z)
    });
    choices.min().map_or(least, |(_, stride_z)| stride_z)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::levels::level_for;

    const FULL: [ReducedLevel; 1] = [ReducedLevel::FULL];

    /// Levels that are reduced by these factors.
    fn levels<const N: usize>(factors: [[usize; 3]; N]) -> Vec<ReducedLevel> {
        let reduced = factors.into_iter().zip(1..).map(|(factors_zyx, index)| ReducedLevel { index, factors_zyx });
        std::iter::once(ReducedLevel::FULL).chain(reduced).collect()
    }

    #[test]
    fn small_stacks_are_not_downsampled_and_large_ones_fit_the_limit() {
        let small = TexelGrid::of([60, 128, 256], &FULL);
        assert_eq!((small.stride_zyx, small.size_zyx), ([1, 1, 1], [60, 128, 256]));
        for full in [[257, 300, 2304], [1, 1, 1], [5000, 9, 9], [40, 100_000, 70_001], [0, 3, 3]] {
            for levels in [FULL.to_vec(), levels([[1, 2, 2], [4, 4, 4], [8, 8, 8]])] {
                let grid = TexelGrid::of(full, &levels);
                assert!(grid.size_zyx.iter().all(|n| (1..=MAX_SIDE).contains(n)), "{grid:?}");
                for axis in 0..3 {
                    assert!(grid.size_zyx[axis] * grid.stride_zyx[axis] >= full[axis], "all of it is covered");
                }
            }
        }
    }

    #[test]
    fn every_nth_slice_is_read_and_none_beyond_the_end() {
        let grid = TexelGrid::of([1000, 2304, 2304], &FULL);
        assert_eq!((grid.stride_zyx, grid.size_zyx), ([4, 9, 9], [250, 256, 256]));
        let planes: Vec<usize> = (0..grid.size_zyx[0]).map(|z| grid.plane(z, 0, 0).index).collect();
        assert_eq!((planes.len(), planes[0], planes[1], planes[249]), (250, 2, 6, 998));
        assert_eq!(grid.plane(3, 1, 2).size(), [256, 256]);
        let odd = TexelGrid::of([513, 4, 4], &FULL);
        assert_eq!(odd.stride_zyx[0], 3);
        assert!((0..odd.size_zyx[0]).all(|z| odd.plane(z, 0, 0).index < 513));
        assert_eq!(TexelGrid::of([10, 2304, 2304], &levels([[1, 2, 2]])).stride_zyx[1], 16, "a level serves this");
    }

    #[test]
    fn large_stacks_are_read_from_levels_with_fewer_slices() {
        let all = levels([[2, 2, 2], [4, 4, 4], [8, 8, 8], [32, 32, 32]]);
        // The full resolution of 200 slices is within the limit.
        assert_eq!(TexelGrid::of([200, 1024, 1024], &all).stride_zyx, [1, 4, 4]);
        assert_eq!(TexelGrid::of([256, 2304, 2304], &all).stride_zyx, [2, 16, 16]);
        let grid = TexelGrid::of([2000, 4096, 4096], &all);
        assert_eq!((grid.stride_zyx, grid.size_zyx), ([8, 16, 16], [250, 256, 256]));
        let planes: Vec<PlaneAt> = (0..250).map(|z| grid.plane(z, 0, 0)).collect();
        let read: Vec<usize> = planes.iter().map(|at| at.index / level_for(&all, at).factors_zyx[0]).collect();
        assert_eq!(read, (0..250).collect::<Vec<_>>(), "each slice of the level is read once");
        // Without a level that is reduced along Z, slices are left out.
        let flat = levels([[1, 2, 2], [1, 4, 4]]);
        assert_eq!(TexelGrid::of([256, 9000, 9000], &flat).stride_zyx, [1, 64, 64]);
        // A single thumbnail does not count as a volume if something else can be read.
        assert_eq!(TexelGrid::of([100, 4096, 4096], &levels([[2, 8, 8], [128, 16, 16]])).stride_zyx, [2, 16, 16]);
    }

    #[test]
    fn lengths_are_those_of_the_stack() {
        let grid = TexelGrid::of([10, 300, 400], &FULL);
        let voxel_um = [2.0, 0.5, 0.25];
        assert_eq!(grid.size_um(voxel_um), [100.0, 150.0, 20.0]);
        for axis in 0..3 {
            let um = grid.size_texels()[axis] * grid.texel_um(voxel_um)[axis];
            assert!((um - grid.size_um(voxel_um)[axis]).abs() < 1e-9);
        }
        assert_eq!(grid.full_voxel([9, 149, 199]), [9, 299, 399]);
    }
}
