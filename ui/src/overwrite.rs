//! Asks before a result takes the place of a file that Cytoscope did not write, or that was edited since.

use crate::app::Workbench;
use crate::theme;
use crate::work::Again;
use cytoscope_storage::Overwrite;
use cytoscope_storage::target::refuse_input;
use eframe::egui;
use std::path::{Path, PathBuf};

/// A job that would overwrite something, until the user decides.
#[derive(Debug)]
pub struct OverwriteQuestion {
    title: String,
    reason: String,
    again: Again,
}

/// What the user decided.
#[derive(Clone, Copy)]
enum Choice {
    Keep,
    Replace,
}

impl Workbench {
    /// Asks about a job, once those before it are answered.
    pub(crate) fn ask_overwrite(&mut self, title: String, reason: String, again: Again) {
        self.overwrite.push_back(OverwriteQuestion { title, reason, again });
    }

    /// Writes a file made by `content` to a path that a dialog gave; the dialog has asked about replacing what is there. A stack
    /// that is open is never replaced.
    pub(crate) fn save_file(
        &mut self,
        path: PathBuf,
        content: impl FnOnce() -> Result<Vec<u8>, String> + Send + 'static,
    ) {
        let open: Vec<&Path> = self.documents.iter().map(|d| d.path.as_path()).collect();
        if refuse_input(&path, &open).is_err() {
            let details = format!("{} is open here. Choose another name.", path.display());
            return self.notices.error("Nothing was saved", details);
        }
        self.opener.save(path, content);
    }

    pub(crate) fn overwrite_sheet(&mut self, ctx: &egui::Context) {
        let Some(question) = self.overwrite.front() else { return };
        let response = egui::Modal::new(egui::Id::new("overwrite")).show(ctx, |ui| {
            ui.set_width(440.0);
            ui.heading("Replace existing files?");
            ui.add_space(theme::GAP);
            // What follows is advice for the command line.
            let what = question.reason.split("; ").next().unwrap_or(&question.reason);
            ui.add(egui::Label::new(what).wrap());
            ui.add_space(theme::GAP);
            let why = "It was not written by Cytoscope, or was edited since. Replacing writes over every existing file of this \
                       job's results, and cannot be undone.";
            ui.add(egui::Label::new(why).wrap());
            ui.add_space(theme::GROUP_GAP);
            ui.horizontal(|ui| {
                let keep = ui.button("Keep the files").clicked().then_some(Choice::Keep);
                keep.or_else(|| ui.button("Replace").clicked().then_some(Choice::Replace))
            })
            .inner
        });
        let choice = response.inner.or_else(|| response.should_close().then_some(Choice::Keep));
        let Some(choice) = choice else { return };
        let Some(question) = self.overwrite.pop_front() else { return };
        if let Choice::Replace = choice {
            match question.again {
                Again::Predict { document, job } => {
                    self.predict_and_note(
                        document,
                        question.title,
                        cytoscope_pipeline::PredictJob { overwrite: Overwrite::Replace, ..job },
                    );
                }
                Again::Measure { document, job } => {
                    let job = cytoscope_pipeline::MeasureJob { overwrite: Overwrite::Replace, ..job };
                    self.work.measure(document, question.title, job);
                }
                Again::Segment { document, job } => {
                    let job = cytoscope_pipeline::SegmentJob { overwrite: Overwrite::Replace, ..job };
                    self.work.segment(document, question.title, job, true);
                }
            }
        }
        ctx.request_repaint();
    }
}
