//! Writing to disjoint parts of one buffer from several threads.

use rayon::prelude::*;
use std::marker::PhantomData;

/// A mutable buffer shared by tasks that each write their own part.
pub(crate) struct Shared<'a, T = f32> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer is only dereferenced through `slice`, whose callers promise disjoint ranges.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above; the buffer itself outlives `'a` and `T` is `Send`.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(buffer: &'a mut [T]) -> Self {
        Self { start: buffer.as_mut_ptr(), len: buffer.len(), life: PhantomData }
    }

    /// The pointer to value `at`, with at least `room` values behind it.
    pub(crate) fn pointer(&self, at: usize, room: usize) -> *mut T {
        assert!(at.checked_add(room).is_some_and(|end| end <= self.len), "kernel reaches outside its buffer");
        // SAFETY: at + room <= len was just checked.
        unsafe { self.start.add(at) }
    }

    /// The values `at..at + len`.
    ///
    /// # Safety
    /// No two live slices may overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, at: usize, len: usize) -> &mut [T] {
        let start = self.pointer(at, len);
        // SAFETY: in bounds by `pointer`; disjointness is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

/// Runs `task(i)` for `0..count`, on the current rayon pool when it has more than one thread.
pub(crate) fn for_each(count: usize, task: impl Fn(usize) + Sync + Send) {
    if rayon::current_num_threads() <= 1 || count <= 1 {
        (0..count).for_each(task);
    } else {
        (0..count).into_par_iter().for_each(task);
    }
}

/// Compiles one function body once per instruction set and dispatches on an [`crate::Isa`] token given first.
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
                // SAFETY: holding the token proves the machine has the instruction set.
                crate::isa::Simd::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                crate::isa::Simd::Avx2 => unsafe { avx2($($arg),*) },
                crate::isa::Simd::Portable => imp($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;
