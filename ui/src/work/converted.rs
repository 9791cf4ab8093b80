//! Results of conversions.

use super::{JobState, Outcome, Purpose, Work, refused};
use cytoscope_pipeline::InputFailure;
use cytoscope_worker::{JobId, JobResult};
use std::path::PathBuf;

impl Work {
    /// Handles the result of a conversion, whose failed series get their reasons in the words of the window. The job has
    /// failed if any of its series has.
    pub(super) fn converted(
        &mut self,
        id: JobId,
        output: PathBuf,
        outputs: Vec<PathBuf>,
        mut failed: Vec<InputFailure>,
    ) -> Outcome {
        failed.iter_mut().for_each(put_in_words_of_window);
        if let Some(first) = failed.first() {
            let count = failed.len() + outputs.len().max(1);
            let reason = format!("{} of {count} series could not be converted: {}", failed.len(), first.message);
            self.end(id, JobState::Failed(reason));
        }
        Outcome::Finished { id, result: Box::new(JobResult::Convert { output, outputs, failed }) }
    }
}

/// Replaces the message of a failed series by its reason as the window states it.
fn put_in_words_of_window(failure: &mut InputFailure) {
    let reason = refused::failure_reason(failure, &Purpose::Convert);
    failure.message = if failure.existing.is_some() { format!("series {}: {reason}", failure.series) } else { reason };
    // They have places in the message that was replaced.
    failure.settings.clear();
}

#[cfg(test)]
#[allow(clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_formats::SeriesChoice;
    use cytoscope_pipeline::{ConvertJob, ExistingOutput, JobErrorKind};
    use cytoscope_worker::{Job, Reply, WorkerEvent};
    use std::sync::Arc;

    #[test]
    fn a_conversion_of_which_some_series_failed_has_failed_and_reports_what_was_written() {
        let mut work = Work::new(None, None, Arc::new(|| {}));
        let job = ConvertJob {
            input: "plate.czi".into(),
            output: "plate.npy".into(),
            labels: None,
            series: SeriesChoice::All,
            axes: None,
            channel: None,
            time: None,
            like: None,
            voxel_um: None,
            preprocess: Vec::new(),
            compression: Default::default(),
            overwrite: Default::default(),
        };
        let id = work.run("plate.czi · convert".to_owned(), Purpose::Convert, Job::Convert(job));
        let existing = ExistingOutput { path: "plate_s1.npy".into(), problem: "already exists".to_owned() };
        let failure = |series, message: &str, next_step: Option<&str>, existing| InputFailure {
            input: "plate.czi".into(),
            series,
            kind: JobErrorKind::WouldOverwrite,
            message: message.to_owned(),
            next_step: next_step.map(str::to_owned),
            settings: Vec::new(),
            existing,
        };
        let failed = vec![
            failure(1, "series 1 of plate.czi: plate_s1.npy already exists; use --force", None, Some(existing)),
            failure(2, "series 2 of plate.czi: it is damaged; copy it again", Some("copy it again"), None),
        ];
        let written: Vec<PathBuf> = vec!["plate.npy".into(), "plate_s3.npy".into()];
        let result = JobResult::Convert { output: "plate.npy".into(), outputs: written.clone(), failed };
        let outcomes = work.handle_event(WorkerEvent::Reply(Reply::Done { id, result }));
        let [Outcome::Finished { result, .. }] = outcomes.as_slice() else { panic!("{outcomes:?}") };
        let JobResult::Convert { outputs, failed, .. } = &**result else { panic!("{result:?}") };
        assert_eq!(outputs, &written);
        let [first, second] = failed.as_slice() else { panic!("{failed:?}") };
        assert!(first.message.starts_with("series 1: plate_s1.npy already exists.\n"), "{}", first.message);
        assert!(first.message.contains("\"Replace existing files\""), "{}", first.message);
        assert!(!first.message.contains("--force"), "{}", first.message);
        assert_eq!(second.message, "series 2 of plate.czi: it is damaged.\nCopy it again.");
        let state = work.jobs.iter().find(|job| job.id == id).map(|job| &job.state);
        let Some(JobState::Failed(reason)) = state else { panic!("{state:?}") };
        assert!(reason.starts_with("2 of 4 series could not be converted: series 1: plate_s1.npy"), "{reason}");
    }
}
