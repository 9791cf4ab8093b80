//! Asks before a job overwrites a file that Cytoscope did not write or that was edited since.

use crate::app::Workbench;
use crate::theme;
use crate::work::RepeatableJob;
use cytoscope_storage::Overwrite;
use cytoscope_storage::target::refuse_input;
use eframe::egui;
use std::path::{Path, PathBuf};

/// A job that would overwrite files and waits for the user's decision.
#[derive(Debug)]
pub struct OverwriteQuestion {
    title: String,
    reason: String,
    job_to_repeat: RepeatableJob,
}

/// The user's decision.
#[derive(Clone, Copy)]
enum Choice {
    Keep,
    Replace,
}

impl Workbench {
    /// Queues the question about a job.
    pub(crate) fn ask_overwrite(&mut self, title: String, reason: String, job_to_repeat: RepeatableJob) {
        self.overwrite.push_back(OverwriteQuestion { title, reason, job_to_repeat });
    }

    /// Writes a file with the bytes of `content` to a path chosen in a file dialog, which has already asked about
    /// replacing. The file of an open document is never replaced.
    pub(crate) fn save_file(
        &mut self,
        path: PathBuf,
        content: impl FnOnce() -> Result<Vec<u8>, String> + Send + 'static,
    ) {
        let open: Vec<&Path> = self.documents.iter().map(|d| d.path.as_path()).collect();
        if refuse_input(&path, &open).is_err() {
            let details = format!("{} is open here. Choose another name.", path.display());
            return self.notifications.error("The file was not saved", details);
        }
        self.opener.save(path, content);
    }

    pub(crate) fn overwrite_dialog(&mut self, ctx: &egui::Context) {
        let Some(question) = self.overwrite.front() else { return };
        let response = egui::Modal::new(egui::Id::new("overwrite")).show(ctx, |ui| {
            ui.set_width(440.0);
            ui.heading("Replace existing files?");
            ui.add_space(theme::GAP);
            // The rest of the message is advice for the command line.
            let what = question.reason.split("; ").next().unwrap_or(&question.reason);
            ui.add(egui::Label::new(what).wrap());
            ui.add_space(theme::GAP);
            let why = "The file was not written by Cytoscope or was edited since. Replacing overwrites all existing \
                       result files of this job and cannot be undone.";
            ui.add(egui::Label::new(why).wrap());
            ui.add_space(theme::GROUP_GAP);
            ui.horizontal(|ui| {
                let keep = ui.button("Keep files").clicked().then_some(Choice::Keep);
                keep.or_else(|| ui.button("Replace").clicked().then_some(Choice::Replace))
            })
            .inner
        });
        let choice = response.inner.or_else(|| response.should_close().then_some(Choice::Keep));
        let Some(choice) = choice else { return };
        let Some(question) = self.overwrite.pop_front() else { return };
        if let Choice::Replace = choice {
            match question.job_to_repeat {
                RepeatableJob::Predict { document, job } => {
                    self.predict_queued(
                        document,
                        question.title,
                        cytoscope_pipeline::PredictJob { overwrite: Overwrite::Replace, ..job },
                    );
                }
                RepeatableJob::Measure { document, job } => {
                    let job = cytoscope_pipeline::MeasureJob { overwrite: Overwrite::Replace, ..job };
                    self.work.measure(document, question.title, job);
                }
                RepeatableJob::Segment { document, job } => {
                    let job = cytoscope_pipeline::SegmentJob { overwrite: Overwrite::Replace, ..job };
                    self.work.segment(document, question.title, job, true);
                }
            }
        }
        ctx.request_repaint();
    }
}
