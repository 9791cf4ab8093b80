//! The first guess of the object diameter, from blobs in the first channel.

use super::estimate::Estimator;
use crate::JobError;
use crate::stack::Stack;
use cytoscope_objects::blobs::{BlobSize, blob_size};
use cytoscope_profile::Stage;
use cytoscope_volume::resample::{AxisMap, linear};

/// Maximum number of voxels for blob detection; larger stacks are downsampled.
const MAX_BLOB_VOXELS: usize = 500_000;

impl Estimator<'_> {
    /// Returns the first guess. If the blobs have the smallest size that was looked for, as those of membranes do, it is
    /// that of an image with half as many rows and columns, still marked as [`BlobSize::is_smallest`]; for a flat stack,
    /// there is no second look.
    pub(super) fn guess(
        &self,
        stack: &Stack,
        voxel_size: [f64; 3],
        is_flat: bool,
    ) -> Result<Option<BlobSize>, JobError> {
        let Some(&channel) = self.channels.first() else { return Ok(None) };
        let _span = self.context.recorder.span(Stage::Normalize, "estimate blobs");
        let shape = blob_shape(stack.extents.zyx, voxel_size);
        let guess = self.blobs(stack, channel, voxel_size, shape)?;
        if is_flat || !guess.is_some_and(|g| g.is_smallest) {
            return Ok(guess);
        }
        let [slices, rows, columns] = shape;
        let coarser = self.blobs(stack, channel, voxel_size, [slices, rows.div_ceil(2), columns.div_ceil(2)])?;
        Ok(coarser.map(|g| BlobSize { is_smallest: true, ..g }).or(guess))
    }

    /// Returns the size of the blobs of a channel that is resampled to this shape Z, Y, X.
    fn blobs(
        &self,
        stack: &Stack,
        channel: usize,
        voxel_size: [f64; 3],
        shape: [usize; 3],
    ) -> Result<Option<BlobSize>, JobError> {
        let zyx = stack.extents.zyx;
        let voxel = std::array::from_fn(|a| voxel_size[a] * zyx[a] as f64 / shape[a] as f64);
        let maps: [AxisMap; 3] = std::array::from_fn(|a| AxisMap::new(zyx[a], shape[a]));
        let mut volume = Vec::with_capacity(shape.iter().product());
        let step = (stack.slab_slices() * shape[0] / zyx[0].max(1)).max(1);
        for z in (0..shape[0]).step_by(step) {
            self.context.check()?;
            let range = z..(z + step).min(shape[0]);
            let sources = maps[0].sources(range.clone());
            let slab = stack.read(self.context, channel, sources.clone())?.to_f32();
            volume.extend(linear(&slab, sources.start, [zyx[1], zyx[2]], &maps, range));
        }
        Ok(blob_size(&volume, shape, voxel)?)
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
