//! The blocked channels-last layout with a border of zeros.

/// Number of channels in a block.
pub const CHANNEL_BLOCK: usize = 16;

/// Layout of one image of an activation tensor: `[ceil(C / block)][D + 2·hd][H + 2·hh][W + 2·hw][block]`.
///
/// `block` is 16, or 1 (floats) or 4 (bytes) for tensors of few channels. The border (`halo`) holds zeros (the zero point, in
/// quantized tensors), and so do the unused channels of the last block of floats, unless an infinity or NaN at the same voxel made
/// them NaN. Every kernel relies on this and preserves it. The unused channels of bytes may hold any value: they are multiplied
/// by integer weights of 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    /// Number of channels.
    pub channels: usize,
    /// Depth, height, width in voxels, without the border.
    pub dims: [usize; 3],
    /// Width of the border of zeros on each side along D, H, W.
    pub halo: [usize; 3],
    /// Channels per block: 16, 4 or 1.
    pub block: usize,
    /// Slices between the end of one channel block and the start of the next that are not part of the image: above 0
    /// for an image that is a range of slices of a deeper buffer.
    pub gap: usize,
}

impl Blocked {
    /// Creates a layout; a `block` other than 1 and 4 becomes 16.
    pub fn new(channels: usize, dims: [usize; 3], halo: [usize; 3], block: usize) -> Self {
        Self { channels, dims, halo, block: if matches!(block, 1 | 4) { block } else { CHANNEL_BLOCK }, gap: 0 }
    }

    /// Returns the layout of `slices` slices of this image, in a buffer with capacity for `capacity` slices, border
    /// included. `None` if the capacity is too small.
    pub fn slices(&self, slices: usize, capacity: usize) -> Option<Self> {
        let own = Self { dims: [slices, self.dims[1], self.dims[2]], gap: 0, ..*self };
        Some(Self { gap: capacity.checked_sub(own.padded()[0])?, ..own })
    }

    /// Returns the number of channel blocks.
    pub fn blocks(&self) -> usize {
        self.channels.div_ceil(self.block)
    }

    /// Returns depth, height and width including the border.
    pub fn padded(&self) -> [usize; 3] {
        [0, 1, 2].map(|i| self.dims[i] + 2 * self.halo[i])
    }

    /// Returns the number of values from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.padded()[2] * self.block
    }

    /// Returns the number of values from one slice to the next.
    pub fn slice_stride(&self) -> usize {
        self.padded()[1] * self.row_stride()
    }

    /// Returns the number of values from one channel block to the next.
    pub fn block_stride(&self) -> usize {
        (self.padded()[0] + self.gap) * self.slice_stride()
    }

    /// Returns the number of values from the start of the first block to the end of the last (saturating, so that no
    /// allocation is too small).
    pub fn len(&self) -> usize {
        let p = self.padded();
        let slices = self.blocks().saturating_mul(p[0].saturating_add(self.gap));
        // There is no gap after the last block.
        let slices = if slices == usize::MAX { slices } else { slices.saturating_sub(self.gap) };
        [p[1], p[2], self.block].iter().fold(slices, |n, s| n.saturating_mul(*s))
    }

    /// Returns whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the index of voxel `(d, h, 0)` of channel block `b`; `d` and `h` do not count the border.
    pub fn row_start(&self, b: usize, d: usize, h: usize) -> usize {
        b * self.block_stride()
            + (d + self.halo[0]) * self.slice_stride()
            + (h + self.halo[1]) * self.row_stride()
            + self.halo[2] * self.block
    }

    /// Returns the number of values in a row without its border.
    pub fn row_len(&self) -> usize {
        self.dims[2] * self.block
    }

    /// Returns the number of voxels without the border.
    pub fn voxels(&self) -> usize {
        self.dims.iter().product()
    }
}
