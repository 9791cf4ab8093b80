//! The unfinished folders of this process, and their removal when it exits without waiting for its jobs.

use crate::folder::remove_marked;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time that [`remove_unfinished_folders`] waits for files that are being written.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Interval at which [`remove_unfinished_folders`] checks whether files are still being written.
const POLL: Duration = Duration::from_millis(5);

/// Hidden paths of the unfinished folders.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
/// Number of threads that change unfinished folders at the moment.
static CHANGES: AtomicUsize = AtomicUsize::new(0);
/// Whether the process is about to exit, so that unfinished folders are no longer changed.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Locks the set of unfinished folders.
pub(super) fn lock_paths() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A change of an unfinished folder, which ends when dropped.
pub(super) struct Change;

impl Change {
    /// Begins a change; waits for the end of the process if it is about to exit.
    pub(super) fn begin() -> Self {
        CHANGES.fetch_add(1, Ordering::SeqCst);
        if !IS_ENDING.load(Ordering::SeqCst) {
            return Self;
        }
        CHANGES.fetch_sub(1, Ordering::SeqCst);
        loop {
            std::thread::park();
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        CHANGES.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Removes all unfinished folders of this process, for a process that exits right afterwards without waiting for its jobs:
/// threads that go on to write to a folder, or to publish one, stop for good. If a file takes long to write, the folders stay;
/// they are removed when the next file is written beside them.
pub fn remove_unfinished_folders() {
    IS_ENDING.store(true, Ordering::SeqCst);
    let start = Instant::now();
    while CHANGES.load(Ordering::SeqCst) > 0 {
        if start.elapsed() >= MAX_WAIT {
            return;
        }
        std::thread::sleep(POLL);
    }
    let folders = std::mem::take(&mut *lock_paths());
    for path in folders {
        // The process is exiting; a leftover folder is hidden and marked, and a later sweep removes it.
        let _ = remove_marked(&path);
    }
}
