//! Copies between host and device inside other spans of the same thread, so that totals count their time once.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A span of a thread that has not ended.
struct OpenSpan {
    number: u64,
    /// The recorder of the span.
    recorder: usize,
    /// Seconds of the copies inside that have ended.
    copying_secs: f64,
}

thread_local! {
    /// Open spans of this thread that may hold copies, the outermost first.
    static OPEN: RefCell<Vec<OpenSpan>> = const { RefCell::new(Vec::new()) };
}

/// Number of the next span.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Registers a span of this thread that may hold copies, and returns its number. `recorder` identifies its recorder.
pub(crate) fn open(recorder: usize) -> u64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // It fails only while the thread ends; then there is no span around another one.
    let _ = OPEN.try_with(|open| open.borrow_mut().push(OpenSpan { number, recorder, copying_secs: 0.0 }));
    number
}

/// Ends the span with this number, and returns the seconds of the copies inside it. A copy also counts in the
/// span around it; for a span that ends on a thread other than the one it started on, the result is 0.
pub(crate) fn close(number: u64, is_copy: bool, duration_secs: f64) -> f64 {
    let closed = OPEN.try_with(|open| {
        let mut open = open.borrow_mut();
        let at = open.iter().rposition(|span| span.number == number)?;
        let span = open.remove(at);
        let around = open.iter_mut().rev().find(|around| around.recorder == span.recorder && around.number < number);
        if let Some(around) = around.filter(|_| is_copy) {
            around.copying_secs += duration_secs;
        }
        Some(span.copying_secs)
    });
    closed.ok().flatten().unwrap_or(0.0)
}
