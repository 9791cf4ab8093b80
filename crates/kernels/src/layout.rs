//! The blocked channels-last layout with a border of zeros.

/// Channels in one block.
pub const CHANNEL_BLOCK: usize = 16;

/// Layout of one image of an activation tensor: `[ceil(C / block)][D + 2·hd][H + 2·hh][W + 2·hw][block]`.
///
/// `block` is 16, or 1 (floats) or 4 (bytes) for tensors of few channels. The border (`halo`) and the channels past `channels` in the last block
/// hold zeros (the zero point, in quantized tensors); every kernel relies on it and keeps it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    /// Number of channels.
    pub channels: usize,
    /// Depth, height, width in voxels, without the border.
    pub dims: [usize; 3],
    /// Width of the border of zeros on each side along D, H, W.
    pub halo: [usize; 3],
    /// Channels a block: 16, 4 or 1.
    pub block: usize,
}

impl Blocked {
    /// A layout; `block` is taken as 1, 4 or, for anything else, 16.
    pub fn new(channels: usize, dims: [usize; 3], halo: [usize; 3], block: usize) -> Self {
        Self { channels, dims, halo, block: if matches!(block, 1 | 4) { block } else { CHANNEL_BLOCK } }
    }

    /// Number of channel blocks.
    pub fn blocks(&self) -> usize {
        self.channels.div_ceil(self.block)
    }

    /// Depth, height, width with the border.
    pub fn padded(&self) -> [usize; 3] {
        [0, 1, 2].map(|i| self.dims[i] + 2 * self.halo[i])
    }

    /// Values of one padded row.
    pub fn row_stride(&self) -> usize {
        self.padded()[2] * self.block
    }

    /// Values of one padded slice.
    pub fn slice_stride(&self) -> usize {
        self.padded()[1] * self.row_stride()
    }

    /// Values of one padded channel block.
    pub fn block_stride(&self) -> usize {
        self.padded()[0] * self.slice_stride()
    }

    /// Values of the whole buffer (saturating, so that no allocation can be undersized).
    pub fn len(&self) -> usize {
        let p = self.padded();
        [p[0], p[1], p[2], self.block].iter().fold(self.blocks(), |n, s| n.saturating_mul(*s))
    }

    /// True if the buffer holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where voxel `(d, h, 0)` of channel block `b` starts (border not counted in `d` and `h`).
    pub fn row_start(&self, b: usize, d: usize, h: usize) -> usize {
        b * self.block_stride()
            + (d + self.halo[0]) * self.slice_stride()
            + (h + self.halo[1]) * self.row_stride()
            + self.halo[2] * self.block
    }

    /// Values of one row without its border.
    pub fn row_len(&self) -> usize {
        self.dims[2] * self.block
    }

    /// Voxels of the volume without its border.
    pub fn voxels(&self) -> usize {
        self.dims.iter().product()
    }
}
