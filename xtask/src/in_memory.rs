//! A folder in memory for the temporary files of the tests, on Linux. The tests write and sync many thousands of small files,
//! as the program does; on a disk they would wait for it for minutes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Linux keeps files in memory.
const PLACE: &str = "/dev/shm";

/// What the names of the folders begin with; the id of the process that made one follows.
const PREFIX: &str = "cytoscope-tests-";

/// Memory that must be free for files; the tests need a part of it at a time.
const FILES_KIB: u64 = 4 << 20;

/// Memory that must be free altogether.
const FREE_KIB: u64 = 8 << 20;

/// A folder in memory, which is removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder. `None` if there is too little memory, if programs cannot be started there, or if the user states a
    /// place (`TMPDIR`) or wants tests of large files (`CYTOSCOPE_LARGE_FILES`): then the usual place is to be used.
    pub fn new() -> Option<Self> {
        if ["TMPDIR", "CYTOSCOPE_LARGE_FILES"].iter().any(|name| std::env::var_os(name).is_some()) {
            return None;
        }
        let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
        let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
        let df = Command::new("df").args(["-Pk", PLACE]).output().ok()?;
        remove_remains();
        let files = free_kib(&String::from_utf8(df.stdout).ok()?)?;
        if !runs_programs(&mounts) || files < FILES_KIB || available_kib(&memory)? < FREE_KIB {
            return None;
        }
        let folder = Path::new(PLACE).join(format!("{PREFIX}{}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        Some(Self(folder))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // `remove_remains` of a later process removes what is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes the folders of processes that were killed.
fn remove_remains() {
    for entry in std::fs::read_dir(PLACE).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|id| id.parse::<u32>().ok());
        if process.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether programs can be started from files in [`PLACE`], which some tests do, from the contents of `/proc/mounts`.
fn runs_programs(mounts: &str) -> bool {
    let mut all = mounts.lines().map(|line| line.split(' ').collect::<Vec<&str>>());
    let place = all.rfind(|fields| fields.get(1).is_some_and(|at| *at == PLACE));
    place.is_some_and(|fields| {
        fields.get(2).is_some_and(|kind| *kind == "tmpfs")
            && fields.get(3).is_some_and(|options| options.split(',').all(|option| option != "noexec"))
    })
}

/// The free space in KiB, from what `df -Pk` prints about one place.
fn free_kib(df: &str) -> Option<u64> {
    df.lines().next_back()?.split_whitespace().nth(3)?.parse().ok()
}

/// The memory in KiB that programs can still take, from the contents of `/proc/meminfo`.
fn available_kib(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_only_where_programs_can_be_started() {
        let mounts = |options: &str| {
            format!("/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs {options} 0 0\nproc /proc proc rw 0 0\n")
        };
        assert!(runs_programs(&mounts("rw,relatime,size=24684096k")));
        assert!(!runs_programs(&mounts("rw,nosuid,nodev,noexec,relatime,size=65536k")));
        assert!(!runs_programs("/dev/vda / ext4 rw 0 0\n"));
        // The last one that was mounted there is in use.
        assert!(!runs_programs(&format!("{}disk /dev/shm ext4 rw 0 0\n", mounts("rw"))));
    }

    #[test]
    fn free_memory_is_read_from_what_the_system_states() {
        let df = "Filesystem     1024-blocks  Used Available Capacity Mounted on\ntmpfs             24684096     4  24684092       1% /dev/shm\n";
        assert_eq!(free_kib(df), Some(24_684_092));
        assert_eq!(free_kib(""), None);
        assert_eq!(available_kib("MemTotal:       24684096 kB\nMemAvailable:   18633728 kB\n"), Some(18_633_728));
        assert_eq!(available_kib("MemTotal:       24684096 kB\n"), None);
    }
}
