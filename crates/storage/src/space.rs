//! The free space of disks.

use std::path::Path;

/// Returns the bytes that the user can still write to the file system of a folder; `None` where the system or the file system
/// does not report them. A quota may allow less.
#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    // Some network drives report zeros.
    let is_known = found.f_blocks > 0 && found.f_frsize > 0;
    is_known.then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

/// Returns `None`: the free space is not known on this system.
#[cfg(not(unix))]
pub fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

/// Returns whether the file system of a folder may store files in less space than their size, because it compresses them
/// (btrfs, ZFS, bcachefs); `false` where this is not known.
#[cfg(target_os = "linux")]
pub fn may_compress(folder: &Path) -> bool {
    /// Numbers by which Linux names these file systems.
    const COMPRESSING: [u64; 3] = [0x9123_683E, 0x2FC1_2FC1, 0xCA45_1A4E];
    // The type of the number depends on the architecture; 32-bit ones extend its sign.
    rustix::fs::statfs(folder).is_ok_and(|found| COMPRESSING.contains(&(found.f_type as u64 & 0xFFFF_FFFF)))
}

/// Returns `false`: whether the file system compresses files is not known on this system.
#[cfg(not(target_os = "linux"))]
pub fn may_compress(_folder: &Path) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn the_free_space_is_that_of_a_folder_that_exists() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "x").unwrap();
        assert!(free_bytes(folder.path()).unwrap() < u64::MAX);
        assert_eq!(free_bytes(&folder.path().join("nowhere")), None);
    }
}
