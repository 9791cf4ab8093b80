//! Asks before a job overwrites a file that Cytoscope did not write or that was edited since.

use crate::action::Actions;
use crate::jobs::JobsAction;
use crate::theme;
use crate::work::RepeatableJob;
use eframe::egui;

/// A job that would overwrite files and waits for the user's decision.
#[derive(Debug)]
pub(crate) struct OverwriteQuestion {
    /// Title of the job.
    pub(crate) title: String,
    /// Which files exist.
    pub(crate) reason: String,
    /// The refused job, which is sent again if the user allows it.
    pub(crate) job_to_repeat: RepeatableJob,
}

/// Draws the question.
pub(crate) fn overwrite_dialog(ctx: &egui::Context, question: &OverwriteQuestion, actions: &mut Actions) {
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
            let keep = ui.button("Keep files").clicked().then_some(false);
            keep.or_else(|| ui.button("Replace").clicked().then_some(true))
        })
        .inner
    });
    if let Some(replace) = response.inner.or_else(|| response.should_close().then_some(false)) {
        actions.send(JobsAction::AnswerOverwrite(replace));
    }
}
