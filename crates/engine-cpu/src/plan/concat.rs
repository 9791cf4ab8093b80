//! Concatenations along the channels. Parts that start at block boundaries lie side by side in one buffer.

pub(super) use cytoscope_graph_passes::channel_parts;
use cytoscope_kernels::Blocked;

/// Returns the first channel block of each part in a buffer of layout `whole` for `images` images. `None` if a part has
/// no layout, does not fit, or does not start at a block boundary.
pub(super) fn first_blocks(
    (whole, images): (Blocked, usize),
    parts: impl Iterator<Item = Option<(Blocked, usize)>>,
) -> Option<Vec<usize>> {
    let (mut channels, mut blocks) = (0usize, Vec::new());
    for part in parts {
        let (part, n) = part?;
        let fits = channels.is_multiple_of(whole.block) && part.block == whole.block && part.dims == whole.dims;
        if !fits || n != images {
            return None;
        }
        blocks.push(channels / whole.block);
        channels += part.channels;
    }
    Some(blocks)
}
