//! Jobs that are sent again: predictions that an earlier window did not finish, and jobs that were refused because they would
//! overwrite files.

use super::Jobs;
use crate::display::DisplayAction;
use crate::document::file_name;
use crate::documents::{Documents, DocumentsAction};
use crate::effect::Effects;
use crate::overwrite::{OverwriteAnswer, OverwriteQuestion};
use crate::work::{PredictionMode, RefusedJob, RepeatableJob};
use cytoscope_formats::SeriesChoice;
use cytoscope_pipeline::{MeasureJob, PredictJob, SegmentJob};
use cytoscope_storage::Overwrite;
use std::collections::VecDeque;
use std::path::Path;

impl Jobs {
    /// Continues the predictions of a window that ended: stacks that are not open are opened for them.
    pub(super) fn continue_queue(&mut self, documents: &Documents, effects: &mut Effects) {
        let mut stacks = self.queue.take_over();
        let mut seen = Vec::new();
        stacks.retain(|(path, series, _)| {
            let is_new = !seen.contains(&(path.clone(), *series));
            seen.push((path.clone(), *series));
            is_new
        });
        for (path, series, given) in stacks {
            match documents.all().iter().find(|d| d.path == path && d.series == series) {
                Some(open) => effects.act(DocumentsAction::Activate(open.id)),
                None => effects.act(DocumentsAction::Reopen { path, given, series, replaces: None }),
            }
        }
        effects.act(DisplayAction::ShowStacks);
        documents.all().iter().for_each(|d| self.continue_predictions(d.id, &d.path, d.series));
    }

    /// Starts the predictions that waited for a stack to open. Finished parts are kept.
    pub(super) fn continue_predictions(&mut self, document: u64, path: &Path, series: usize) {
        while let Some((number, job)) = self.queue.take_waiting(path, series) {
            if self.work.is_predicting(path, &job.series) {
                // It was requested again in the meantime.
                self.queue.not_needed(number);
                continue;
            }
            let all_series = job.series == SeriesChoice::All;
            let of = if all_series { " · all series" } else { "" };
            let title = format!("{}{of} · {}", file_name(path), job.model);
            let job = PredictJob { resume: true, ..job };
            let how = PredictionMode { remeasure: false, live: !all_series };
            let id = self.work.predict(document, title, job, how);
            self.queue.started(id, number);
        }
    }

    /// Starts a prediction and records it until it has ended.
    pub(super) fn predict_queued(&mut self, document: u64, title: String, job: PredictJob, how: PredictionMode) {
        let kept = job.clone();
        let id = self.work.predict(document, title, job, how);
        self.queue.add(id, &kept);
    }

    /// Records the predictions that have ended.
    pub(crate) fn update_queue(&mut self, is_opening: bool) {
        self.queue.update(&self.work.jobs);
        if !is_opening {
            self.queue.give_up_waiting();
        }
    }

    /// Asks the user what to do with a refused job.
    pub(super) fn ask_about(&mut self, refused: RefusedJob) {
        self.questions_asked += 1;
        self.overwrite.push_back(OverwriteQuestion { number: self.questions_asked, refused });
    }

    /// Does what the user has decided about a refused job, and, if the answer is `for_rest`, about the other series of the
    /// same prediction.
    pub(super) fn answer_overwrite(
        &mut self,
        question: u64,
        answer: &OverwriteAnswer,
        for_rest: bool,
        documents: &Documents,
    ) {
        let Some(asked) = self.overwrite.iter().find(|q| q.number == question) else { return };
        let part_of = asked.refused.part_of.filter(|_| for_rest);
        let is_answered =
            |q: &OverwriteQuestion| q.number == question || (part_of.is_some() && q.refused.part_of == part_of);
        let (answered, left): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.overwrite).into_iter().partition(is_answered);
        self.overwrite = left;
        answered.into_iter().for_each(|question| self.repeat(question.refused, answer, documents));
    }

    /// Sends a refused job again as the user has decided.
    fn repeat(&mut self, refused: RefusedJob, answer: &OverwriteAnswer, documents: &Documents) {
        let RefusedJob { title, again, .. } = refused;
        let overwrite = Overwrite::Replace;
        match (again, answer) {
            (_, OverwriteAnswer::Keep) => {}
            (RepeatableJob::Predict { document, job, remeasure }, answer) => {
                let job = match answer {
                    OverwriteAnswer::Folder(folder) => PredictJob { out: folder.clone(), ..*job },
                    OverwriteAnswer::Keep | OverwriteAnswer::Replace => PredictJob { overwrite, ..*job },
                };
                let shown = document_for_job(&job, document, documents);
                let how = PredictionMode { remeasure, live: shown.is_some() };
                self.predict_queued(shown.unwrap_or(document), title, job, how);
            }
            // Their results belong beside those that they are made from.
            (RepeatableJob::Measure { .. } | RepeatableJob::Segment { .. }, OverwriteAnswer::Folder(_)) => {}
            (RepeatableJob::Measure { document, job }, OverwriteAnswer::Replace) => {
                self.work.measure(document, title, MeasureJob { overwrite, ..job });
            }
            (RepeatableJob::Segment { document, job }, OverwriteAnswer::Replace) => {
                self.work.segment(document, title, SegmentJob { overwrite, ..*job }, true);
            }
        }
    }
}

/// Id of a document that shows the series that a job predicts: `preferred`, or another one; `None` for all series.
fn document_for_job(job: &PredictJob, preferred: u64, documents: &Documents) -> Option<u64> {
    let SeriesChoice::Index(series) = job.series else { return None };
    let input = job.inputs.first()?;
    let mut showing = documents.all().iter().filter(|d| d.path == *input && d.series == series).map(|d| d.id);
    let first = showing.next()?;
    Some(if showing.any(|id| id == preferred) { preferred } else { first })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::effect::Wake;
    use cytoscope_pipeline::ExistingOutput;
    use cytoscope_worker::JobId;
    use std::path::PathBuf;
    use std::sync::Arc;

    const PLATE: &str = "/plate.zarr";

    fn job(series: SeriesChoice) -> PredictJob {
        let text = serde_json::json!({"inputs": [PLATE], "model": "nuclei", "out": "o", "device": "cpu"});
        PredictJob { series, ..serde_json::from_value(text).unwrap() }
    }

    /// Jobs without an engine, after an earlier window left these predictions.
    fn jobs_after(settings: &Path, left: &[SeriesChoice]) -> Jobs {
        let wake: Wake = Arc::new(|| {});
        let mut earlier = Jobs::new(None, None, Some(settings), &wake);
        for (id, series) in (0..).zip(left) {
            earlier.queue.add(JobId(id), &job(series.clone()));
        }
        drop(earlier);
        let mut jobs = Jobs::new(None, None, Some(settings), &wake);
        assert_eq!(jobs.queue.take_over().len(), left.len());
        jobs
    }

    fn predicted(jobs: &Jobs) -> Vec<SeriesChoice> {
        let series = |known: &RepeatableJob| match known {
            RepeatableJob::Predict { job, .. } => Some(job.series.clone()),
            RepeatableJob::Measure { .. } | RepeatableJob::Segment { .. } => None,
        };
        jobs.work.active_jobs().filter_map(|(_, known)| series(known)).collect()
    }

    #[test]
    fn a_prediction_of_all_series_is_continued_although_one_series_is_predicted() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("settings.json");
        let mut jobs = jobs_after(&settings, &[SeriesChoice::All]);
        let how = PredictionMode { remeasure: false, live: true };
        jobs.predict_queued(1, String::new(), job(SeriesChoice::Index(0)), how);
        jobs.continue_predictions(1, Path::new(PLATE), 0);
        assert_eq!(predicted(&jobs), [SeriesChoice::Index(0), SeriesChoice::All]);
        // Both are offered again if the window closes now.
        drop(jobs);
        let wake: Wake = Arc::new(|| {});
        assert_eq!(Jobs::new(None, None, Some(&settings), &wake).abandoned().count(), 2);
    }

    #[test]
    fn canceling_all_predictions_ends_those_that_are_not_queued_yet() {
        let wake: Wake = Arc::new(|| {});
        let mut jobs = Jobs::new(None, None, None, &wake);
        assert!(!jobs.can_cancel_predictions());
        jobs.preparing.insert(1);
        assert!(jobs.can_cancel_predictions());
        jobs.cancel_predictions();
        assert!(jobs.preparing.is_empty() && !jobs.can_cancel_predictions());
        let existing = ExistingOutput { path: PathBuf::from("x_labels.tif"), problem: "already exists".to_owned() };
        let refused = |again| RefusedJob { title: String::new(), existing: existing.clone(), again, part_of: None };
        let series_job = Box::new(job(SeriesChoice::Index(0)));
        jobs.ask_about(refused(RepeatableJob::Predict { document: 1, job: series_job, remeasure: false }));
        let text = serde_json::json!({"map": "x_probability.tif", "labels": "x_labels.tif"});
        let saved = serde_json::from_value(text).unwrap();
        jobs.ask_about(refused(RepeatableJob::Segment { document: 1, job: saved }));
        assert!(jobs.can_cancel_predictions());
        jobs.cancel_predictions();
        assert!(!jobs.can_cancel_predictions());
        let left = jobs.overwrite_question().map(|question| &question.refused.again);
        assert!(matches!(left, Some(RepeatableJob::Segment { .. })), "{left:?}");
    }

    #[test]
    fn a_series_is_not_predicted_again_beside_all_series() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("settings.json");
        let left = [SeriesChoice::All, SeriesChoice::Index(0), SeriesChoice::Index(1)];
        let mut jobs = jobs_after(&settings, &left);
        [0, 1].into_iter().for_each(|series| jobs.continue_predictions(1, Path::new(PLATE), series));
        assert_eq!(predicted(&jobs), [SeriesChoice::All]);
        drop(jobs);
        let wake: Wake = Arc::new(|| {});
        let next = Jobs::new(None, None, Some(&settings), &wake);
        assert_eq!(next.abandoned().collect::<Vec<_>>(), [&PathBuf::from(PLATE)]);
    }
}
