//! The memory a network's activations live in.

use std::collections::TryReserveError;
use std::mem::MaybeUninit;

/// A cache line, to which the arena is aligned.
const LINE_BYTES: usize = 64;

/// Zeroed 32-bit words that start on a cache line, in large pages where the system gives them: a network walks over hundreds of
/// megabytes, and with small pages looking up addresses costs it up to a tenth of its time.
#[derive(Debug)]
pub struct Arena {
    words: Vec<f32>,
    first: usize,
}

impl Arena {
    /// An arena of so many words.
    ///
    /// # Errors
    /// If the memory is not to be had.
    pub fn new(len: usize) -> Result<Self, TryReserveError> {
        let spare = LINE_BYTES / size_of::<f32>();
        let mut words = Vec::new();
        words.try_reserve_exact(len.saturating_add(spare))?;
        in_large_pages(words.spare_capacity_mut());
        words.resize(len + spare, 0.0);
        let first = words.as_ptr().align_offset(LINE_BYTES).min(spare);
        Ok(Self { words, first })
    }

    /// The words.
    pub fn words(&mut self) -> &mut [f32] {
        let len = self.words.len() - LINE_BYTES / size_of::<f32>();
        &mut self.words[self.first..self.first + len]
    }
}

/// Asks for large pages before memory is first touched; a wish, so that a refusal does not matter.
fn in_large_pages(memory: &mut [MaybeUninit<f32>]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE_BYTES: usize = 1 << 12;
        const LARGE_BYTES: usize = 1 << 21;
        let start = memory.as_mut_ptr().cast::<u8>();
        let (skipped, bytes) = (start.align_offset(PAGE_BYTES), size_of_val(memory));
        if bytes < LARGE_BYTES || skipped >= bytes {
            return;
        }
        // SAFETY: whole pages of this slice; MADV_HUGEPAGE changes neither their contents nor their validity.
        unsafe {
            let whole = (bytes - skipped) / PAGE_BYTES * PAGE_BYTES;
            libc::madvise(start.add(skipped).cast(), whole, libc::MADV_HUGEPAGE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_arena_is_zeroed_and_starts_on_a_line() {
        for len in [0, 1, 1000, 3 << 20] {
            let mut arena = super::Arena::new(len).unwrap();
            assert_eq!(arena.words().len(), len);
            assert_eq!(arena.words().as_ptr() as usize % 64, 0);
            assert!(arena.words().iter().all(|w| *w == 0.0));
        }
        assert!(super::Arena::new(usize::MAX / 8).is_err());
    }
}
