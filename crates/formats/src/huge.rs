//! Large pages for large arrays: without them, a third of the time of a raw read goes into page faults.

use cytoscope_volume::{DType, Samples};

/// Arrays from this size on ask for large pages; NumPy does the same from the same size.
#[cfg(target_os = "linux")]
const FROM_BYTES: usize = 4 << 20;

/// Zeros, in memory that the system is asked to back with large pages where it has them.
pub(crate) fn zeros(dtype: DType, len: usize) -> Samples {
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "only Linux is asked"))]
    let mut samples = Samples::zeros(dtype, len);
    #[cfg(target_os = "linux")]
    ask_for_large_pages(samples.as_bytes_mut());
    samples
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "there is no safe call for the advice, and raw reads are a third slower without it")]
fn ask_for_large_pages(bytes: &mut [u8]) {
    const PAGE: usize = 4096;
    if bytes.len() < FROM_BYTES {
        return;
    }
    let start = bytes.as_ptr().addr().next_multiple_of(PAGE);
    let skip = start - bytes.as_ptr().addr();
    let Some(inside) = bytes.get_mut(skip..) else { return };
    // SAFETY: the range lies inside a live, exclusively borrowed allocation and begins at a page. MADV_HUGEPAGE changes
    // how the pages are backed, never what they hold or whether they are mapped; a refusal has no effect.
    unsafe {
        libc::madvise(inside.as_mut_ptr().cast(), inside.len(), libc::MADV_HUGEPAGE);
    }
}
