//! Parts of images, channels and voxels, into parts of others: what concatenation, slicing, padding and cropping do, and their
//! gradients.

use crate::parallel::{Shared, for_each};
use crate::{Blocked, CHANNEL_BLOCK, KernelError, check_len, check_that};

/// Where a part starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Corner {
    /// First channel.
    pub channel: usize,
    /// First voxel along D, H, W.
    pub voxel: [usize; 3],
}

/// Moves `channels` channels of `dims` voxels from one image to another, of whatever blocks: added to what is there if `accumulate`,
/// else written there. The rest of the target is left as it is.
///
/// # Errors
/// [`KernelError`] if the buffers do not fit, or a part reaches outside its image.
#[allow(clippy::too_many_arguments)]
pub fn move_part(
    source: &[f32],
    from: &Blocked,
    from_corner: Corner,
    target: &mut [f32],
    to: &Blocked,
    to_corner: Corner,
    channels: usize,
    dims: [usize; 3],
    accumulate: bool,
) -> Result<(), KernelError> {
    check_len("source", source.len(), from.len())?;
    check_len("target", target.len(), to.len())?;
    for (layout, corner) in [(from, from_corner), (to, to_corner)] {
        check_that(matches!(layout.block, 1 | CHANNEL_BLOCK), "block of floats", "1 or 16", layout.block)?;
        let inside = corner.channel.saturating_add(channels) <= layout.channels
            && (0..3).all(|axis| corner.voxel[axis].saturating_add(dims[axis]) <= layout.dims[axis]);
        check_that(
            inside,
            "part of an image",
            format!("inside {layout:?}"),
            format!("{channels} channels of {dims:?} at {corner:?}"),
        )?;
    }
    if channels == 0 {
        return Ok(());
    }
    let [depth, height, width] = dims;
    let first_block = to_corner.channel / to.block;
    let blocks = (to_corner.channel + channels).div_ceil(to.block) - first_block;
    let shared = Shared::new(target);
    for_each(blocks * depth, |task| {
        let (block, d) = (first_block + task / depth, task % depth);
        // Channels of the part that lie in this block.
        let first = (block * to.block).max(to_corner.channel) - to_corner.channel;
        let last = ((block + 1) * to.block - to_corner.channel).min(channels);
        let source_channel = from_corner.channel + first;
        let whole = last - first == to.block && from.block == to.block && source_channel.is_multiple_of(from.block);
        let [td, th, tw] = to_corner.voxel;
        let [sd, sh, sw] = from_corner.voxel;
        for h in 0..height {
            // SAFETY: each task owns the rows of one slice of one block.
            let row = unsafe { shared.slice(to.row_start(block, td + d, th + h) + tw * to.block, width * to.block) };
            if whole {
                let at = from.row_start(source_channel / from.block, sd + d, sh + h) + sw * from.block;
                let values = &source[at..at + row.len()];
                if accumulate {
                    row.iter_mut().zip(values).for_each(|(t, v)| *t += v);
                } else {
                    row.copy_from_slice(values);
                }
                continue;
            }
            for c in first..last {
                let channel = from_corner.channel + c;
                let at = from.row_start(channel / from.block, sd + d, sh + h) + sw * from.block + channel % from.block;
                let values = source[at..].iter().step_by(from.block);
                let own = row.iter_mut().skip((to_corner.channel + c) % to.block).step_by(to.block);
                own.zip(values).for_each(|(t, v)| *t = if accumulate { *t + v } else { *v });
            }
        }
    });
    Ok(())
}
