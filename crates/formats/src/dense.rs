//! Samples at regular steps in a file: uncompressed, of one type, in any order of the axes.

use crate::{codec, error::Fault, huge_pages, meta::ByteOrder, source::Source};
use cytoscope_volume::{DType, Region, Samples};

/// Type and positions of the samples.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    /// Byte order of the samples.
    pub order: ByteOrder,
    /// Type of the samples, in the file and when read.
    pub dtype: DType,
    /// Position of the first sample in bytes.
    pub data_at: u64,
    /// Number of samples along T, Z, C, Y, X, S.
    pub shape_full: [usize; 6],
    /// Strides in samples along T, Z, C, Y, X, S.
    pub strides: [usize; 6],
}

impl Dense {
    /// Size of all samples in bytes; `None` if it does not fit `u64`.
    pub fn data_bytes(&self) -> Option<u64> {
        let count = self.shape_full.iter().try_fold(1u64, |n, extent| n.checked_mul(*extent as u64))?;
        count.checked_mul(self.dtype.size_bytes() as u64)
    }

    /// Reads a region, axes T, Z, C, Y, X, S, which has been checked against the shape.
    pub fn read(&self, source: &Source, region: &Region) -> Result<Samples, Fault> {
        let len = region.len().map_err(|e| Fault::malformed(e.to_string()))?;
        let mut samples = huge_pages::zeros(self.dtype, len);
        let (Ok(start), Ok(size)) =
            (<[usize; 6]>::try_from(region.start.as_slice()), <[usize; 6]>::try_from(region.size.as_slice()))
        else {
            return Ok(samples);
        };
        let bytes = self.dtype.size_bytes();
        // The axes from `run` on are contiguous in the file and are read at once.
        let mut run = 6;
        let mut piece = 1;
        while run > 0 {
            let axis = run - 1;
            if size[axis] > 1 && self.strides[axis] != piece {
                break;
            }
            run = axis;
            piece *= size[axis];
            if size[axis] != self.shape_full[axis] {
                break;
            }
        }
        let mut index = [0usize; 6];
        for out in samples.as_bytes_mut().chunks_exact_mut(piece.max(1) * bytes) {
            let at: usize = (0..6).map(|i| (start[i] + index[i]) * self.strides[i]).sum();
            source.read_at(self.data_at + (at * bytes) as u64, out)?;
            for i in (0..run).rev() {
                index[i] += 1;
                if index[i] < size[i] {
                    break;
                }
                index[i] = 0;
            }
        }
        codec::to_native(self.order, bytes, samples.as_bytes_mut());
        Ok(samples)
    }
}
