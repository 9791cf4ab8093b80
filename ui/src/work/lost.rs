//! Why jobs failed whose engine process has ended.

use crate::panels::{capitalized, with_stop};

/// Returns why jobs failed whose process ended for this reason, as a sentence.
pub(super) fn failure_of_lost_jobs(reason: &str) -> String {
    if reason.starts_with("the engine process") {
        return with_stop(&capitalized(reason));
    }
    with_stop(&format!("The engine process ended: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_process_is_stated_once() {
        let killed = failure_of_lost_jobs("the engine process ended by signal 9 (kill)");
        assert_eq!(killed, "The engine process ended by signal 9 (kill).");
        let hung = failure_of_lost_jobs("it did not respond within 30 s");
        assert_eq!(hung, "The engine process ended: it did not respond within 30 s.");
    }
}
