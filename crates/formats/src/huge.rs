//! Huge pages for large arrays: without them, page faults take a third of the time of a raw read.

use cytoscope_volume::{DType, Samples};

/// Smallest array for which huge pages are requested, in bytes. NumPy uses the same threshold.
#[cfg(target_os = "linux")]
const MIN_BYTES: usize = 4 << 20;

/// Allocates zeros and asks the system to back the memory with huge pages.
pub(crate) fn zeros(dtype: DType, len: usize) -> Samples {
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "huge pages are requested on Linux only"))]
    let mut samples = Samples::zeros(dtype, len);
    #[cfg(target_os = "linux")]
    advise_huge_pages(samples.as_bytes_mut());
    samples
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "madvise has no safe wrapper, and raw reads are a third slower without it")]
fn advise_huge_pages(bytes: &mut [u8]) {
    const PAGE: usize = 4096;
    if bytes.len() < MIN_BYTES {
        return;
    }
    let start = bytes.as_ptr().addr().next_multiple_of(PAGE);
    let skip = start - bytes.as_ptr().addr();
    let Some(inside) = bytes.get_mut(skip..) else { return };
    // SAFETY: the range lies inside a live, exclusively borrowed allocation and begins at a page. MADV_HUGEPAGE changes
    // how the pages are backed, never their content or whether they are mapped; if it is refused, nothing changes.
    unsafe {
        libc::madvise(inside.as_mut_ptr().cast(), inside.len(), libc::MADV_HUGEPAGE);
    }
}
