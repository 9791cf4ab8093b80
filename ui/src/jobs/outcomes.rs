//! Handles what the engine reports: finished, failed, lost and continued jobs.

use super::stack_notes::stack_of;
use super::{Jobs, JobsAction};
use crate::batch::BatchAction;
use crate::correct::CorrectionsAction;
use crate::disk::{DocumentEffect, ResultsPlace};
use crate::document::file_name;
use crate::documents::{Documents, DocumentsAction, JobOutput, LiveOutput, Predicted};
use crate::effect::Effects;
use crate::engine_notes::all_in_window;
use crate::models::ModelsAction;
use crate::notifications::first_lines;
use crate::number_text::counted;
use crate::panels::{capitalized, seconds};
use crate::training::TrainingAction;
use crate::work::{JobState, JobView, Outcome, Purpose};
use cytoscope_pipeline::predict::containing_maps;
use cytoscope_pipeline::{InputReport, Note, PredictOutcome, SegmentReport};
use cytoscope_worker::{JobId, JobResult};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum number of series that a notification lists.
const LISTED_SERIES: usize = 8;
/// Maximum number of predicted stacks that a notification lists.
const LISTED_STACKS: usize = 20;

impl Jobs {
    /// Handles the events of the engine since the last call.
    pub(crate) fn poll(&mut self, documents: &Documents) -> Effects {
        let mut effects = Effects::default();
        let is_queued = |job: &&JobView| job.state == JobState::Queued;
        let queued: Vec<JobId> = self.work.jobs.iter().filter(is_queued).map(|job| job.id).collect();
        let outcomes = self.work.poll();
        // Failures of jobs that have started are notified after this.
        let has_started =
            |job: &&JobView| queued.contains(&job.id) && !matches!(job.state, JobState::Queued | JobState::Canceled);
        self.work.jobs.iter().filter(has_started).for_each(|job| effects.runs_again(job.subject()));
        for outcome in outcomes {
            self.handle_outcome(outcome, documents, &mut effects);
        }
        self.poll_reruns(&mut effects);
        self.poll_tuning(&mut effects);
        self.notify_batch(&mut effects);
        effects
    }

    fn handle_outcome(&mut self, outcome: Outcome, documents: &Documents, effects: &mut Effects) {
        let show = |document, output| DocumentsAction::Show { document, output: Box::new(output) };
        match outcome {
            Outcome::Live { document, path, channels, shape_zyx, time } => {
                effects.act(show(document, JobOutput::Live(LiveOutput { path, channels, shape_zyx, time })));
            }
            Outcome::Predicted { document, outcome, refused } => {
                self.handle_prediction(document, outcome, documents, effects);
                refused.into_iter().for_each(|refused| self.ask_about(refused));
            }
            Outcome::Segmented { document, kept, report } => {
                self.handle_segmentation(document, kept, report, documents, effects);
            }
            Outcome::Measured { document, report } => {
                if let Some(record) = report.record {
                    self.tables.insert(report.table.clone(), record);
                }
                let notes = self.notes_on_stack(stack_of(documents, document), &report.notes);
                let notes: Vec<String> = notes.iter().map(|note| capitalized(note)).collect();
                if !notes.is_empty() {
                    effects.info(format!("{} measured", counted(report.objects, "object")), notes.join(". "));
                }
                effects.act(show(document, JobOutput::Measured { labels: report.labels, table: report.table }));
            }
            Outcome::TrainingEvent { id, event } => effects.act(TrainingAction::Event(id, Box::new(event))),
            Outcome::Trained { id, report } => effects.act(TrainingAction::Trained(id, report)),
            Outcome::TrainChecked { id, report } => effects.act(TrainingAction::Checked(id, report)),
            Outcome::TrainEstimated { id, estimate } => effects.act(TrainingAction::Estimated(id, estimate)),
            Outcome::DiameterEstimated { document, found } => {
                let before = self.estimated_from.remove(&document).unwrap_or_default();
                effects.act(show(document, JobOutput::Diameter(found, before)));
            }
            Outcome::Finished { id, ref result } if self.compare_rerun(id, result, effects) => {}
            Outcome::Finished { id, result } => match *result {
                JobResult::Convert { ref output, .. } if self.copies.contains_key(&id) => {
                    let job = self.work.jobs.iter().find(|job| job.id == id);
                    let notes: Vec<Note> = job.iter().flat_map(|job| &job.notes).cloned().collect();
                    let stack = self.copies.remove(&id);
                    let notes = self.notes_on_stack(stack, &notes);
                    effects.success(format!("Saved {}", file_name(output)), saved_details(output, &notes));
                    effects.act(DocumentsAction::Open(vec![output.clone()]));
                }
                JobResult::Convert { .. } | JobResult::Evaluate(_) => {
                    self.report_failed_series(id, &result, effects);
                    effects.act(BatchAction::Finished(id, result));
                }
                JobResult::Mesh(ref report) => {
                    let objects = counted(report.objects.len() as u64, "object");
                    let details = saved_details(&report.out, &all_in_window(&report.notes));
                    effects.success(format!("Saved the meshes of {objects}"), details);
                }
                _ => effects.act(ModelsAction::Finished(id, result)),
            },
            Outcome::Failed { what, reason, about } => {
                effects.act(DocumentsAction::KeepLive(self.predicted()));
                effects.failure(about, format!("{what} failed"), reason);
            }
            Outcome::WouldOverwrite(refused) => {
                effects.act(DocumentsAction::KeepLive(self.predicted()));
                self.ask_about(*refused);
            }
            // A canceled measurement leaves the prediction of its document alone.
            Outcome::Canceled => effects.act(DocumentsAction::KeepLive(self.predicted())),
            Outcome::EngineDied { reason, lost, continued, again } => {
                effects.act(DocumentsAction::KeepLive(BTreeSet::new()));
                let lost = match (lost.as_slice(), continued.as_slice()) {
                    ([], []) => "No job was lost.".to_owned(),
                    ([], continued) => format!("Continued: {}. No job was lost.", continued.join(", ")),
                    (lost, _) => format!("Failed jobs: {}. Nothing else is affected.", lost.join(", ")),
                };
                let title = if again { "The engine was restarted" } else { "The engine cannot be started" };
                effects.error(title, format!("Reason: {reason}. {lost}"));
            }
        }
    }

    /// Reports the series of a file that could not be converted. Those that were are reported with the other files.
    fn report_failed_series(&self, id: JobId, result: &JobResult, effects: &mut Effects) {
        let JobResult::Convert { failed, .. } = result else { return };
        let job = self.work.jobs.iter().find(|job| job.id == id);
        let Some(job) = job.filter(|_| !failed.is_empty()) else { return };
        let mut lines: Vec<String> =
            failed.iter().take(LISTED_SERIES).map(|failure| capitalized(&failure.message)).collect();
        if failed.len() > LISTED_SERIES {
            lines.push(format!("{} further series failed.", failed.len() - LISTED_SERIES));
        }
        let title = format!("{} failed for {} series", job.action(), failed.len());
        effects.failure(Some(job.subject()), title, lines.join("\n"));
    }

    /// Documents with a running or queued prediction.
    fn predicted(&self) -> BTreeSet<u64> {
        let active = self.work.jobs.iter().filter(|j| !j.state.is_over());
        active
            .filter_map(|j| if let Purpose::Predict { document } = j.purpose { Some(document) } else { None })
            .collect()
    }

    /// Shows one notification for a batch when its last prediction has ended.
    fn notify_batch(&mut self, effects: &mut Effects) {
        if self.batch_done.is_empty() || self.awaits_predictions() {
            return;
        }
        let done = std::mem::take(&mut self.batch_done);
        let details = first_lines(&done, LISTED_STACKS, "further stack").join("\n");
        effects.success(format!("{} predicted", counted(done.len() as u64, "stack")), details);
    }

    fn handle_prediction(
        &mut self,
        document: u64,
        outcome: PredictOutcome,
        documents: &Documents,
        effects: &mut Effects,
    ) {
        effects.act(DocumentsAction::Show { document, output: Box::new(JobOutput::NotLive) });
        let has_one = outcome.done.len() == 1;
        for report in outcome.done {
            let objects =
                (!report.objects.is_empty()).then(|| report.objects.iter().map(|n| u64::from(*n)).sum::<u64>());
            if let Some(folder) = report.outputs.first().and_then(|output| containing_maps(&output.path).parent()) {
                self.remember_folder((report.input.clone(), report.series), folder);
            }
            let stack = (report.input.clone(), report.series);
            self.remove_replaced_layers(&stack, &report.outputs, documents, effects);
            let mut title = outcome_title(objects, report.seconds);
            if has_one && self.batch_done.is_empty() && !self.awaits_predictions() {
                effects.success(title, self.prediction_details(&report));
            } else {
                // A batch gets a single notification at its end.
                let series = if has_one { String::new() } else { format!(" · series {}", report.series) };
                title.push_str(&format!(": {}{series}", file_name(&report.input)));
                self.batch_done.push(title);
            }
            if documents.get(document).is_none_or(|d| d.series != report.series) {
                // The file was opened again since the prediction was requested, for example to show another series in
                // between: its document has another id now. Or all series of the file were predicted.
                let reopened = documents.all().iter().find(|d| d.path == report.input && d.series == report.series);
                if let Some(reopened) = reopened {
                    self.discard_unsaved(reopened.id, "the stack was predicted again", effects);
                    effects.disk_for(reopened.id, DocumentEffect::FindResults(self.place(reopened)));
                }
                continue;
            }
            // The map that the previews and the saved objects were made from was replaced.
            self.discard_unsaved(document, "the stack was predicted again", effects);
            self.objects.set_saved(document, BTreeMap::new());
            let (diameter, segment, channels) = (report.diameter, report.segment, report.segment_channels);
            let output = Box::new(JobOutput::Predicted(Predicted { diameter, segment, channels }));
            effects.act(DocumentsAction::Show { document, output });
            if let Some(shown) = documents.get(document).filter(|d| d.extents.times > report.times) {
                // They belong to one of several time points, which their record states.
                let maps = report.outputs.first().map(|output| containing_maps(&output.path));
                let chosen = maps.and_then(Path::parent).map(Path::to_owned);
                effects.disk_for(document, DocumentEffect::FindResults(ResultsPlace { chosen, ..self.place(shown) }));
                continue;
            }
            let output = Box::new(JobOutput::Files(report.outputs));
            effects.act(DocumentsAction::Show { document, output });
        }
        let is_this = |job: &&JobView| job.state == JobState::Done && job.purpose == Purpose::Predict { document };
        let about = self.work.jobs.iter().rfind(is_this).map(JobView::subject);
        for failed in outcome.failed {
            effects.failure(about.clone(), "Prediction failed".to_owned(), failed.message);
        }
    }

    /// The text of the notification about a finished prediction: its device, its notes, and the folder of its results.
    fn prediction_details(&mut self, report: &InputReport) -> String {
        let mut details = format!("{}: {}", report.device.name, report.device.why);
        for note in self.notes_on_stack(Some((report.input.clone(), report.series)), &report.notes) {
            details.push_str(". ");
            details.push_str(&capitalized(&note));
        }
        if let Some(folder) = report.outputs.first().and_then(|output| output.path.parent()) {
            details.push_str(&format!(". The results are in {}", folder.display()));
        }
        details
    }

    fn handle_segmentation(
        &mut self,
        document: u64,
        is_kept: bool,
        report: SegmentReport,
        documents: &Documents,
        effects: &mut Effects,
    ) {
        let output = if is_kept {
            let time = self.objects.were_saved(document).unwrap_or(0);
            let notes = self.notes_on_stack(stack_of(documents, document), &report.notes);
            let details = saved_details(&report.labels, &notes);
            effects.success(format!("{} saved", counted(report.objects.into(), "object")), details);
            JobOutput::Kept(time, report.artifacts())
        } else {
            // `None` if its options were discarded while it was computed.
            let Some(time) = self.objects.previewed(document, report.objects) else { return };
            if documents.get(document).is_some_and(|shown| shown.time != time) {
                // It is computed again once its time point is shown.
                return;
            }
            JobOutput::Preview(time, Box::new(report))
        };
        effects.act(CorrectionsAction::Close { document, notification_title: "Other labels are shown now" });
        effects.act(DocumentsAction::Show { document, output: Box::new(output) });
        if is_kept {
            // Options that were changed while these were saved are not saved yet.
            effects.act(JobsAction::ShowUnsaved(document));
        }
    }
}

/// The text of the notification about a saved file, with the notes of its job.
fn saved_details(path: &Path, notes: &[String]) -> String {
    let mut details = path.display().to_string();
    for note in notes {
        details.push_str(". ");
        details.push_str(&capitalized(note));
    }
    details
}

/// Title of a finished prediction: the number of objects, unless the model predicts a stain, and how long it took.
fn outcome_title(objects: Option<u64>, secs: f64) -> String {
    let what = objects.map_or_else(|| "Predicted".to_owned(), |objects| counted(objects, "object"));
    format!("{what} in {}", seconds(secs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::{Effect, Wake};
    use cytoscope_objects::SegmentOptions;
    use cytoscope_pipeline::LabelFormat;
    use std::sync::Arc;

    #[test]
    fn times_of_long_predictions_are_in_minutes_and_hours() {
        let titles = [(Some(1), 53.04), (Some(1234), 5400.0), (None, 130.0)].map(|(n, secs)| outcome_title(n, secs));
        assert_eq!(titles, ["1 object in 53.0 s", "1,234 objects in 1 h 30 min", "Predicted in 2 min 10 s"]);
    }

    #[test]
    fn the_first_stacks_of_a_batch_are_listed_and_the_others_counted() {
        let wake: Wake = Arc::new(|| {});
        let mut jobs = Jobs::new(None, None, None, &wake);
        jobs.batch_done = (0..1500).map(|i| format!("1 object in 2.0 s: {i}.tif")).collect();
        let mut effects = Effects::default();
        jobs.notify_batch(&mut effects);
        let notices: Vec<(String, String)> = effects
            .into_iter()
            .filter_map(|effect| match effect {
                Effect::Notify { title, details, .. } => Some((title, details)),
                _ => None,
            })
            .collect();
        let [(title, details)] = &notices[..] else { panic!("{notices:?}") };
        assert_eq!((title.as_str(), details.lines().count()), ("1,500 stacks predicted", LISTED_STACKS + 1));
        assert!(details.ends_with("\n1,480 further stacks"), "{details}");
    }

    #[test]
    fn a_preview_of_discarded_options_is_not_shown() {
        let wake: Wake = Arc::new(|| {});
        let mut jobs = Jobs::new(None, None, None, &wake);
        let documents = Documents::new(&wake, None);
        let number_of_effects = |jobs: &mut Jobs| {
            let report = SegmentReport {
                objects: 3,
                labels: "labels-1.u32".into(),
                format: LabelFormat::RawU32,
                shape_zyx: [2, 3, 4],
                voxel_um: [1.0; 3],
                table: None,
                notes: Vec::new(),
                seconds: 0.0,
            };
            let mut effects = Effects::default();
            jobs.handle_segmentation(7, false, report, &documents, &mut effects);
            effects.into_iter().count()
        };
        jobs.objects.change(7, 0, SegmentOptions::default());
        assert!(number_of_effects(&mut jobs) > 0);
        assert_eq!(jobs.preview_objects(7, 0), Some(3));
        let mut effects = Effects::default();
        jobs.forget_refined(&documents, &mut effects);
        assert_eq!(effects.into_iter().count(), 1, "a notification says so");
        assert_eq!((number_of_effects(&mut jobs), jobs.preview_objects(7, 0)), (0, None));
    }
}
