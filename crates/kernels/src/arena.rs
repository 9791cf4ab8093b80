//! The memory for a network's activations.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::TryReserveError;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of all arenas of this process.
static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);

/// Returns the bytes of all arenas that exist in this process.
pub fn live_arena_bytes() -> u64 {
    LIVE_BYTES.load(Ordering::Relaxed)
}

/// Size of a cache line, to which the arena is aligned.
const LINE_BYTES: usize = 64;

/// Zeroed 32-bit words that start on a cache line, in huge pages if the system provides them. A network accesses
/// hundreds of megabytes; with small pages, address translation costs up to a tenth of its time.
#[derive(Debug)]
pub struct Arena {
    words: Vec<f32>,
    first: usize,
}

impl Arena {
    /// Allocates an arena of `len` words.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn new(len: usize) -> Result<Self, TryReserveError> {
        let alignment_words = LINE_BYTES / size_of::<f32>();
        let mut words = zeroed(len.saturating_add(alignment_words))?;
        request_huge_pages(&mut words);
        let first = words.as_ptr().align_offset(LINE_BYTES).min(alignment_words);
        LIVE_BYTES.fetch_add(size_of_val(words.as_slice()) as u64, Ordering::Relaxed);
        Ok(Self { words, first })
    }

    /// Returns the memory as 32-bit words, aligned to a cache line.
    pub fn words(&mut self) -> &mut [f32] {
        let len = self.words.len() - LINE_BYTES / size_of::<f32>();
        &mut self.words[self.first..self.first + len]
    }
}

/// Allocates zeroed words. The system zeroes a page when it is first touched, so that the threads that compute share this
/// work, and memory that is never used costs nothing.
fn zeroed(len: usize) -> Result<Vec<f32>, TryReserveError> {
    if let Ok(layout) = Layout::array::<f32>(len)
        && layout.size() > 0
    {
        // SAFETY: the layout has a size above 0.
        let start = unsafe { alloc_zeroed(layout) }.cast::<f32>();
        if !start.is_null() {
            // SAFETY: the global allocator, which `Vec` uses, has allocated `start` for `len` words of this layout, and the
            // zeroed bytes are floats of value 0.
            return Ok(unsafe { Vec::from_raw_parts(start, len, len) });
        }
    }
    // Returns the error of an allocation that is too large or fails.
    let mut words = Vec::new();
    words.try_reserve_exact(len)?;
    words.resize(len, 0.0);
    Ok(words)
}

impl Drop for Arena {
    fn drop(&mut self) {
        LIVE_BYTES.fetch_sub(size_of_val(self.words.as_slice()) as u64, Ordering::Relaxed);
    }
}

/// Requests huge pages for memory that has not been touched yet, on Linux. This is only a hint, so errors are ignored.
pub fn request_huge_pages<T>(memory: &mut [T]) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        const PAGE_BYTES: usize = 1 << 12;
        const HUGE_PAGE_BYTES: usize = 1 << 21;
        let start = memory.as_mut_ptr().cast::<u8>();
        let (skipped, bytes) = (start.align_offset(PAGE_BYTES), size_of_val(memory));
        if bytes < HUGE_PAGE_BYTES || skipped >= bytes {
            return;
        }
        // SAFETY: the range consists of whole pages inside this slice. MADV_HUGEPAGE changes neither their contents nor
        // their validity.
        unsafe {
            let page_bytes = (bytes - skipped) / PAGE_BYTES * PAGE_BYTES;
            libc::madvise(start.add(skipped).cast(), page_bytes, libc::MADV_HUGEPAGE);
        }
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_arena_is_zeroed_and_aligned_to_a_cache_line() {
        // The last is large enough for huge pages, except under Miri, which would take minutes to visit it.
        for len in [0, 1, 1000, if cfg!(miri) { 1 << 12 } else { 3 << 20 }] {
            let mut arena = super::Arena::new(len).unwrap();
            assert_eq!(arena.words().len(), len);
            assert_eq!(arena.words().as_ptr() as usize % 64, 0);
            assert!(arena.words().iter().all(|w| *w == 0.0));
        }
        assert!(super::Arena::new(usize::MAX / 8).is_err());
    }
}
