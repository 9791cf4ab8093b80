//! Why jobs failed whose engine process has ended.

use crate::panels::{capitalized, with_stop};

/// Returns why jobs failed whose process ended for this reason, as a sentence.
pub(super) fn failure_of_lost_jobs(reason: &str) -> String {
    with_stop(&capitalized(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_a_sentence() {
        let killed = failure_of_lost_jobs("the engine process ended by signal 9 (kill)");
        assert_eq!(killed, "The engine process ended by signal 9 (kill).");
        let hung = failure_of_lost_jobs("the job on cuda:0 showed no progress for 600 s");
        assert_eq!(hung, "The job on cuda:0 showed no progress for 600 s.");
    }
}
