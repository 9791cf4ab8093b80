//! The first guesses of the object diameter, from blobs in the first channel.

use super::estimate::Estimator;
use crate::JobError;
use crate::stack::Stack;
use cytoscope_objects::ObjectsError;
use cytoscope_objects::blobs::{BlobSize, blob_size, blob_size_without_outliers};
use cytoscope_profile::Stage;
use cytoscope_volume::resample::{AxisMap, linear};

/// Maximum number of voxels for blob detection; larger stacks are downsampled.
const MAX_BLOB_VOXELS: usize = 500_000;

/// Finds the size of the blobs of a volume of this shape and voxel size.
type FindSize = fn(&[f32], [usize; 3], [f64; 3]) -> Result<Option<BlobSize>, ObjectsError>;

impl Estimator<'_> {
    /// Returns the first guess; `None` without blobs.
    pub(super) fn guess(&self, stack: &Stack, voxel_size: [f64; 3]) -> Result<Option<BlobSize>, JobError> {
        self.blobs(stack, voxel_size, blob_shape(stack.extents.zyx, voxel_size), blob_size)
    }

    /// Returns the first guess from the blobs that a few much brighter ones hide; `None` if there are none.
    pub(super) fn guess_without_outliers(
        &self,
        stack: &Stack,
        voxel_size: [f64; 3],
    ) -> Result<Option<BlobSize>, JobError> {
        self.blobs(stack, voxel_size, blob_shape(stack.extents.zyx, voxel_size), blob_size_without_outliers)
    }

    /// Returns a guess from an image with half as many rows and columns, whose finest structures are smoothed; `None` without
    /// blobs.
    pub(super) fn coarser_guess(&self, stack: &Stack, voxel_size: [f64; 3]) -> Result<Option<BlobSize>, JobError> {
        let [slices, rows, columns] = blob_shape(stack.extents.zyx, voxel_size);
        self.blobs(stack, voxel_size, [slices, rows.div_ceil(2), columns.div_ceil(2)], blob_size)
    }

    /// Returns the size of the blobs of the first channel, resampled to this shape Z, Y, X, as `size` finds it.
    fn blobs(
        &self,
        stack: &Stack,
        voxel_size: [f64; 3],
        shape: [usize; 3],
        size: FindSize,
    ) -> Result<Option<BlobSize>, JobError> {
        let Some(channel) = self.channels.first() else { return Ok(None) };
        let _span = self.context.recorder.span(Stage::Normalize, "estimate blobs");
        let zyx = stack.extents.zyx;
        let voxel = std::array::from_fn(|a| voxel_size[a] * zyx[a] as f64 / shape[a] as f64);
        let maps: [AxisMap; 3] = std::array::from_fn(|a| AxisMap::new(zyx[a], shape[a]));
        let mut volume = Vec::with_capacity(shape.iter().product());
        let step = (stack.slab_slices() * shape[0] / zyx[0].max(1)).max(1);
        for z in (0..shape[0]).step_by(step) {
            self.context.check()?;
            let range = z..(z + step).min(shape[0]);
            let sources = maps[0].sources(range.clone());
            let slab = stack.read(self.context, *channel, sources.clone())?.to_f32();
            volume.extend(linear(&slab, sources.start, [zyx[1], zyx[2]], &maps, range));
        }
        Ok(size(&volume, shape, voxel)?)
    }
}

/// Returns the shape Z, Y, X of a stack that is downsampled to the maximum number of voxels, the finest axes first.
fn blob_shape(zyx: [usize; 3], voxel_size: [f64; 3]) -> [usize; 3] {
    let mut shape = zyx;
    let mut voxel = voxel_size;
    while shape.iter().product::<usize>() > MAX_BLOB_VOXELS {
        let longest = (0..3).filter(|a| shape[*a] > 8).min_by(|a, b| voxel[*a].total_cmp(&voxel[*b]));
        let Some(axis) = longest else { break };
        shape[axis] = shape[axis].div_ceil(2);
        voxel[axis] = voxel_size[axis] * zyx[axis] as f64 / shape[axis] as f64;
    }
    shape
}
