//! Results of recorded jobs that are run again. They are compared with the recorded results only, so they are not used as those
//! of other jobs.

use super::{JobState, Outcome, Purpose, Work, refused};
use cytoscope_worker::{JobId, JobResult};

impl Work {
    /// Handles the result of a job that was run again. A prediction reports in its result that its input failed.
    pub(super) fn rerun_done(&mut self, id: JobId, title: String, result: JobResult) -> Outcome {
        let failed = match &result {
            JobResult::Predict(outcome) => outcome.failed.first(),
            _ => None,
        };
        let Some(failed) = failed else { return Outcome::Finished { id, result: Box::new(result) } };
        let reason = refused::failure_reason(failed, &Purpose::Rerun);
        self.end(id, JobState::Failed(reason.clone()));
        self.failed(id, title, reason, None)
    }
}

#[cfg(test)]
#[allow(clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_pipeline::{ExistingOutput, InputFailure, JobErrorKind, PredictOutcome};
    use cytoscope_worker::{Job, Reply, WorkerEvent};
    use std::sync::Arc;

    #[test]
    fn a_prediction_that_is_run_again_and_fails_says_why_in_the_words_of_the_window() {
        let mut work = Work::new(None, None, Arc::new(|| {}));
        let existing = ExistingOutput { path: "o/a_labels.tif".into(), problem: "already exists".to_owned() };
        let failure = InputFailure {
            input: "a.tif".into(),
            series: 0,
            kind: JobErrorKind::WouldOverwrite,
            message: "o/a_labels.tif already exists; replace it with --force".to_owned(),
            next_step: None,
            settings: Vec::new(),
            existing: Some(existing),
        };
        let job = Job::Predict {
            prediction: Default::default(),
            live: false,
            operators: false,
            performance: cytoscope_pipeline::PerformanceRequest::Off,
            remeasure: false,
        };
        let id = work.run("a_labels.tif · run again".to_owned(), Purpose::Rerun, job);
        let result = JobResult::Predict(PredictOutcome { done: Vec::new(), failed: vec![failure] });
        let outcomes = work.handle_event(WorkerEvent::Reply(Reply::Done { id, result }));
        let [Outcome::Failed { what, reason, .. }] = outcomes.as_slice() else { panic!("{outcomes:?}") };
        assert_eq!(what, "Making a_labels.tif again");
        assert!(reason.contains("Choose another name or folder") && !reason.contains("--force"), "{reason}");
    }
}
