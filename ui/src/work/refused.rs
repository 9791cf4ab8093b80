//! Jobs that were refused because they would overwrite files that Cytoscope did not write.

use super::{JobState, Outcome, Purpose, RepeatableJob, Work};
use crate::document::file_name;
use crate::engine_notes::failure_in_window;
use cytoscope_formats::SeriesChoice;
use cytoscope_pipeline::predict::input_facts;
use cytoscope_pipeline::{ExistingOutput, InputFailure, PredictJob, PredictOutcome};
use cytoscope_storage::message::Message;
use cytoscope_worker::JobId;

/// Why a refused job counts as failed. The dialog shows the details.
const NOTHING_WRITTEN: &str = "Nothing was written: files with the names of its results already exist.";

/// A refused job, which the user can allow to overwrite.
#[derive(Debug, Clone)]
pub struct RefusedJob {
    /// Title of the job.
    pub title: String,
    /// The file or folder that it would replace.
    pub existing: ExistingOutput,
    /// The job, to be repeated if the user allows it.
    pub again: RepeatableJob,
    /// The prediction of all series of a file that it is a part of.
    pub part_of: Option<JobId>,
}

/// Returns why a job was refused that cannot be repeated, and what to do in the window.
pub(super) fn reason(existing: &ExistingOutput, purpose: &Purpose) -> String {
    let ExistingOutput { path, problem } = existing;
    let replacing = if *purpose == Purpose::Convert { ", or check \"Replace existing files\"" } else { "" };
    format!("{} {problem}.\nChoose another name or folder{replacing}.", path.display())
}

/// Returns why an input or a series failed, and what to do in the window.
pub(super) fn failure_reason(failed: &InputFailure, purpose: &Purpose) -> String {
    match &failed.existing {
        Some(existing) => reason(existing, purpose),
        None => {
            let message = Message::new(failed.message.clone(), &failed.settings);
            failure_in_window(&message, failed.next_step.as_deref())
        }
    }
}

impl Work {
    /// Converts a failure into an error, or into a question if the user can allow overwriting `existing`.
    pub(super) fn failed(
        &mut self,
        id: JobId,
        title: String,
        reason: String,
        existing: Option<ExistingOutput>,
    ) -> Outcome {
        match (self.repeatable.remove(&id), existing) {
            (Some(again), Some(existing)) => {
                self.end(id, JobState::Failed(NOTHING_WRITTEN.to_owned()));
                Outcome::WouldOverwrite(Box::new(RefusedJob { title, existing, again, part_of: None }))
            }
            _ => match self.job(id) {
                Some(job) => Outcome::Failed { what: job.action(), reason, about: Some(job.subject()) },
                None => Outcome::Failed { what: title, reason, about: None },
            },
        }
    }

    /// Handles the result of a prediction.
    pub(super) fn predicted(
        &mut self,
        id: JobId,
        title: String,
        document: u64,
        mut outcome: PredictOutcome,
    ) -> Outcome {
        let refused = self.take_refused(id, &mut outcome);
        if outcome.done.is_empty() {
            if let (Some(failed), true) = (outcome.failed.first(), refused.is_empty()) {
                let (reason, existing) = (failed.message.clone(), failed.existing.clone());
                self.end(id, JobState::Failed(reason.clone()));
                return self.failed(id, title, reason, existing);
            }
            self.end(id, JobState::Failed(NOTHING_WRITTEN.to_owned()));
        }
        if let (Some(RepeatableJob::Predict { job, .. }), Some(view)) = (self.repeatable.remove(&id), self.job(id)) {
            view.inputs = input_facts(&job, &outcome.done);
        }
        Outcome::Predicted { document, outcome, refused }
    }

    /// Removes the refused series from the failures of a prediction of all series. Returns a prediction for each.
    fn take_refused(&self, id: JobId, outcome: &mut PredictOutcome) -> Vec<RefusedJob> {
        let Some(RepeatableJob::Predict { document, job, .. }) = self.repeatable.get(&id) else { return Vec::new() };
        if job.series != SeriesChoice::All {
            return Vec::new();
        }
        let is_refused = |failed: &mut InputFailure| failed.existing.is_some();
        let refused = outcome.failed.extract_if(.., is_refused);
        let question = |failed: InputFailure| {
            let existing = failed.existing?;
            let title = format!("{} · series {} · {}", file_name(&failed.input), failed.series, job.model);
            let series = SeriesChoice::Index(failed.series);
            let again = PredictJob { inputs: vec![failed.input], series, ..(**job).clone() };
            // The devices were measured for the whole job.
            let again = RepeatableJob::Predict { document: *document, job: Box::new(again), remeasure: false };
            Some(RefusedJob { title, existing, again, part_of: Some(id) })
        };
        refused.filter_map(question).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_refusal_names_what_the_window_offers_and_no_option_of_the_command_line() {
        let existing = ExistingOutput { path: PathBuf::from("a.ome.tif"), problem: "already exists".to_owned() };
        let converted = reason(&existing, &Purpose::Convert);
        assert!(
            converted.starts_with("a.ome.tif already exists.\n") && converted.contains("\"Replace existing files\"")
        );
        for text in [converted, reason(&existing, &Purpose::Mesh)] {
            assert!(text.contains("Choose another name") && !text.contains("--"), "{text}");
        }
    }
}
