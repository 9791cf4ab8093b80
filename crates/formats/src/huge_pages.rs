//! Huge pages for large arrays: without them, page faults take a third of the time of a raw read.

use cytoscope_kernels::request_huge_pages;
use cytoscope_volume::{DType, Samples};

/// Smallest array for which huge pages are requested, in bytes. NumPy uses the same threshold.
const MIN_BYTES: usize = 4 << 20;

/// Allocates zeros and asks the system to back the memory with huge pages.
pub(crate) fn zeros(dtype: DType, len: usize) -> Samples {
    let mut samples = Samples::zeros(dtype, len);
    let bytes = samples.as_bytes_mut();
    if bytes.len() >= MIN_BYTES {
        request_huge_pages(bytes);
    }
    samples
}
