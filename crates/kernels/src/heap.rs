//! Memory that the allocator keeps although nothing uses it.

/// Returns freed memory to the operating system. The allocator of glibc keeps what threads have freed for their later
/// allocations, also after they have ended. With other allocators, this does nothing.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    {
        // SAFETY: the function may be called at any time; it changes only pages that no allocation uses.
        unsafe { libc::malloc_trim(0) };
    }
}
