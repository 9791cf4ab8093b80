//! Asks before a job overwrites a file that Cytoscope did not write or that was edited since.

use crate::action::Actions;
use crate::documents::DocumentsAction;
use crate::jobs::JobsAction;
use crate::opener::FileRequest;
use crate::theme;
use crate::work::{RefusedJob, RepeatableJob};
use cytoscope_pipeline::ExistingOutput;
use eframe::egui;
use std::path::PathBuf;

/// A job that would overwrite files and waits for the user's decision.
#[derive(Debug)]
pub(crate) struct OverwriteQuestion {
    /// Number of the question, unique within this window.
    pub(crate) number: u64,
    /// The refused job, which is sent again if the user allows it.
    pub(crate) refused: RefusedJob,
}

impl OverwriteQuestion {
    /// Whether the refused job is a prediction.
    pub(crate) fn is_prediction(&self) -> bool {
        matches!(self.refused.again, RepeatableJob::Predict { .. })
    }
}

/// Decision of the user about a refused job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OverwriteAnswer {
    /// The existing files are kept, and the job is skipped.
    Keep,
    /// The existing files are replaced.
    Replace,
    /// The results of a prediction are written to this folder.
    Folder(PathBuf),
}

/// Draws the question; `similar` is the number of questions about other series of the same prediction.
pub(crate) fn overwrite_dialog(
    ctx: &egui::Context,
    question: &OverwriteQuestion,
    similar: usize,
    actions: &mut Actions,
) {
    let number = question.number;
    let folder = match &question.refused.again {
        RepeatableJob::Predict { job, .. } => Some(&job.out),
        RepeatableJob::Measure { .. } | RepeatableJob::Segment { .. } => None,
    };
    let response = theme::dialog(ctx, "overwrite").show(ctx, |ui| {
        ui.set_width(440.0);
        ui.heading("Replace existing files?");
        ui.add_space(theme::GAP);
        let ExistingOutput { path, problem } = &question.refused.existing;
        ui.add(egui::Label::new(format!("{} {problem}.", path.display())).wrap());
        ui.add_space(theme::GAP);
        let why = "Cytoscope did not write the file, or wrote it for another stack, or it was edited since. Replacing \
                   overwrites all existing result files of this job and cannot be undone.";
        ui.add(egui::Label::new(why).wrap());
        ui.add_space(theme::GROUP_GAP);
        let for_rest = similar > 0 && rest_choice(ui, number, similar);
        ui.horizontal(|ui| {
            let keep = ui.button("Keep files").clicked().then_some(OverwriteAnswer::Keep);
            let answer = keep.or_else(|| ui.button("Replace").clicked().then_some(OverwriteAnswer::Replace));
            if let Some(folder) = folder
                && ui.button("Other folder…").on_hover_text("Write the results to another folder").clicked()
            {
                let request = FileRequest::RefusedPrediction { question: number, for_rest };
                actions.send(DocumentsAction::Ask { request, folder: Some(folder.clone()), name: String::new() });
            }
            answer.map(|answer| (answer, for_rest))
        })
        .inner
    });
    let closed = || response.should_close().then_some((OverwriteAnswer::Keep, false));
    if let Some((answer, for_rest)) = response.inner.clone().or_else(closed) {
        actions.send(JobsAction::AnswerOverwrite { question: number, answer, for_rest });
    }
}

/// A checkbox that applies the answer to the questions about the other series of the same prediction; returns whether it is
/// checked.
fn rest_choice(ui: &mut egui::Ui, question: u64, similar: usize) -> bool {
    let id = egui::Id::new("overwrite the rest").with(question);
    let mut for_rest = ui.data(|data| data.get_temp(id)).unwrap_or(false);
    if theme::checkbox(ui, &mut for_rest, format!("Same answer for {similar} other series")).changed() {
        ui.data_mut(|data| data.insert_temp(id, for_rest));
    }
    ui.add_space(theme::GAP);
    for_rest
}
