//! Parallel loops whose tasks write to disjoint parts of one buffer.

use rayon::prelude::*;
use std::marker::PhantomData;

/// A mutable buffer shared by tasks that write disjoint parts.
pub(crate) struct Shared<'a, T = f32> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer is dereferenced only through `slice` and the pointers of `pointer`, whose users write disjoint
// ranges from different tasks; `T` is `Send`.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: the buffer is borrowed mutably for `'a`, so this is the only access to it, and `T` is `Send`.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(buffer: &'a mut [T]) -> Self {
        Self { start: buffer.as_mut_ptr(), len: buffer.len(), life: PhantomData }
    }

    /// Returns a pointer to value `at`, from which `len` values are in bounds. Panics otherwise.
    pub(crate) fn pointer(&self, at: usize, len: usize) -> *mut T {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "kernel reaches outside its buffer");
        // SAFETY: the assertion shows that `at + len <= self.len`, so the pointer stays inside the buffer.
        unsafe { self.start.add(at) }
    }

    /// Returns the values `at..at + len`. Panics if they are out of bounds.
    ///
    /// # Safety
    /// No two live slices may overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, at: usize, len: usize) -> &mut [T] {
        let start = self.pointer(at, len);
        // SAFETY: `pointer` checked the bounds, the values are initialized, and the caller guarantees that no two live
        // slices overlap.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

/// Returns the number of threads that tasks run on. Under Miri, which rejects the integer-to-pointer casts and detached
/// threads of rayon's pool, it is 1 and the pool is never started.
pub(crate) fn thread_count() -> usize {
    if cfg!(miri) { 1 } else { rayon::current_num_threads() }
}

/// Runs `task(i)` for `i` in `0..count`, on the current rayon pool if it has more than one thread.
pub(crate) fn for_each(count: usize, task: impl Fn(usize) + Sync + Send) {
    if thread_count() <= 1 || count <= 1 {
        (0..count).for_each(task);
    } else {
        (0..count).into_par_iter().for_each(task);
    }
}

/// Number of rows per task of [`for_each_row`].
const ROWS: usize = 32;

/// Calls `f(block, d, h, row)` for every row of an image, in parallel over parts of slices: an image may have one slice only.
pub(crate) fn for_each_row<T: Send>(
    values: &mut [T],
    layout: &crate::Blocked,
    f: impl Fn(usize, usize, usize, &mut [T]) + Sync + Send,
) {
    let [depth, height, _] = layout.dims;
    let parts = height.div_ceil(ROWS);
    let shared = Shared::new(values);
    for_each(layout.blocks() * depth * parts, |task| {
        let (slice, first) = (task / parts, task % parts * ROWS);
        let (b, d) = (slice / depth, slice % depth);
        for h in first..(first + ROWS).min(height) {
            // SAFETY: each task has its own rows of a slice and block and so writes its own part; `Shared::slice` checks the
            // bounds.
            f(b, d, h, unsafe { shared.slice(layout.row_start(b, d, h), layout.row_len()) });
        }
    });
}

/// Compiles a function body for each instruction set and dispatches on an [`crate::Isa`] token as first argument.
macro_rules! multiversion {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        fn $name(isa: crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn imp($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? { imp($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? { imp($($arg),*) }
            match isa.simd() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: holding `isa` proves that the CPU has AVX-512 F, VL, BW and DQ, AVX2 and FMA.
                crate::isa::Simd::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: holding `isa` proves that the CPU has AVX2 and FMA.
                crate::isa::Simd::Avx2 => unsafe { avx2($($arg),*) },
                crate::isa::Simd::Portable => imp($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blocked;

    #[test]
    fn every_row_is_visited_once() {
        let height = 2 * ROWS + 3;
        let layout = Blocked::new(5, [2, height, 2], [0, 1, 1], 4);
        let number = |b: usize, d: usize, h: usize| (1 + b + 2 * (d + 2 * h)) as u32;
        let mut values = vec![0u32; layout.len()];
        for_each_row(&mut values, &layout, |b, d, h, row| row.iter_mut().for_each(|v| *v += number(b, d, h)));
        let mut expected = vec![0u32; layout.len()];
        for (b, d) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            for h in 0..height {
                expected[layout.row_start(b, d, h)..][..layout.row_len()].fill(number(b, d, h));
            }
        }
        assert_eq!(values, expected);
    }
}
