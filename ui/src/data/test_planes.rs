//! A plane source for tests of the readers.

use super::plane::{Plane, PlaneAt, Values};
use super::source::{Cancel, PlaneSource, SourceError};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// 8-bit planes filled with their index; reading blocks until `open` is set.
#[derive(Default)]
pub(crate) struct NumberedPlanes {
    /// Number of planes whose reading has begun.
    pub reads: AtomicUsize,
    /// Number of planes whose reading was canceled.
    pub canceled: AtomicUsize,
    /// Whether reading continues.
    pub open: AtomicBool,
    /// Whether reading ends with an error.
    pub fails: bool,
}

impl PlaneSource for NumberedPlanes {
    fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        while !self.open.load(Ordering::SeqCst) {
            if let Err(e) = cancel.check() {
                self.canceled.fetch_add(1, Ordering::SeqCst);
                return Err(e);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.fails {
            return Err(SourceError::Io(std::io::Error::other("the disk is gone")));
        }
        let size = at.size();
        Ok(Plane { at: at.clone(), size, values: Values::U8(vec![at.index as u8; size[0] * size[1]]) })
    }
}

/// Waits until a condition holds; after 60 s, panics with a message that names `what`.
pub(crate) fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
