//! Quitting: asks about unsaved corrections and objects, unfinished jobs and work that goes on without the window, and pauses a
//! training run before the window closes.

use crate::app::Workbench;
use crate::correct::CorrectionsAction;
use crate::panels::{filled_button, weak};
use crate::state::State;
use crate::theme;
use eframe::egui::{self, RichText, Ui, ViewportCommand};
use egui_phosphor::regular as icon;
use std::time::{Duration, Instant};

/// Number of stacks, and of jobs, listed in the dialog.
const LISTED: usize = 6;

/// Title of the part about objects that are a preview.
const UNSAVED_OBJECTS: &str = "Unsaved objects";

/// What happens to objects that are a preview.
const PREVIEWS_ARE_LOST: &str = "These objects are a preview, which is lost with its settings when the window closes. To keep \
                                 them, go back and save them in Predict.";

/// How long the window waits for a training run to save its checkpoint before it closes.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(20);

/// State of quitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum QuitState {
    /// The user has not asked to quit.
    #[default]
    No,
    /// The dialog opens in the next frame.
    Asked,
    /// The dialog asks what happens to unsaved work.
    Asking,
    /// Labels are being saved; then the window closes.
    Saving,
    /// A training run saves a checkpoint; then the window closes.
    Pausing(Instant),
    /// The user has decided, and the window closes.
    Decided,
}

/// The user's choice in the dialog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuitChoice {
    /// Save the labels, then quit.
    Save,
    /// Quit without saving.
    Quit,
    /// Do not quit.
    Stay,
}

impl Workbench {
    /// Asks before the window closes and closes it once everything is saved. `busy` says whether corrections had unfinished
    /// requests before their latest events were handled; if so, it is not known yet whether all labels are saved.
    pub(crate) fn poll_quit(&mut self, ctx: &egui::Context, busy: bool) {
        let closing = ctx.input(|i| i.viewport().close_requested());
        let (is_saved, is_training) = (self.state().unsaved().is_empty(), self.is_training());
        let mut quit = self.quit_state();
        let is_decided = matches!(quit, QuitState::Decided | QuitState::Pausing(_));
        let goes_on = self.state().jobs.continued_without_window().is_some();
        let has_previews = !self.state().unsaved_objects().is_empty();
        let asks = !is_saved || has_previews || goes_on || !self.state().lost_with_window().is_empty();
        if closing && !is_decided && asks {
            ctx.send_viewport_cmd(ViewportCommand::CancelClose);
            // The dialog must be visible.
            ctx.send_viewport_cmd(ViewportCommand::Minimized(false));
            ctx.send_viewport_cmd(ViewportCommand::Focus);
            if quit == QuitState::No {
                quit = QuitState::Asked;
            }
        }
        if closing && !is_decided && !asks && is_training {
            ctx.send_viewport_cmd(ViewportCommand::CancelClose);
            quit = self.begin_pausing();
        }
        if let QuitState::Pausing(since) = quit {
            if closing && self.is_training() {
                ctx.send_viewport_cmd(ViewportCommand::CancelClose);
            }
            // If saving takes too long, training will continue from the checkpoint before.
            if !self.is_training() || since.elapsed() > CHECKPOINT_TIMEOUT {
                quit = QuitState::Decided;
            }
            ctx.request_repaint_after(Duration::from_millis(50));
        }
        if quit == QuitState::Saving && !busy {
            // Failed saves show a notification.
            quit = match (is_saved, is_training) {
                (true, false) => QuitState::Decided,
                (true, true) => self.begin_pausing(),
                (false, _) => QuitState::No,
            };
        }
        if quit == QuitState::Decided {
            ctx.send_viewport_cmd(ViewportCommand::Close);
        }
        self.set_quit_state(quit);
    }

    /// Pauses a training run before the window closes.
    fn begin_pausing(&mut self) -> QuitState {
        self.pause_training();
        QuitState::Pausing(Instant::now())
    }

    /// Carries out the choice of the dialog; `None` if there is none yet.
    pub(crate) fn answer_quit(&mut self, ctx: &egui::Context, choice: Option<QuitChoice>) {
        if self.quit_state() == QuitState::Asked {
            self.set_quit_state(QuitState::Asking);
            // The user sees now whether a stroke in progress is refused.
            self.apply(CorrectionsAction::EndStrokes);
        }
        match choice {
            None => {}
            Some(QuitChoice::Stay) => self.set_quit_state(QuitState::No),
            Some(QuitChoice::Quit) => {
                let quit = if self.is_training() { self.begin_pausing() } else { QuitState::Decided };
                self.set_quit_state(quit);
                ctx.request_repaint();
            }
            Some(QuitChoice::Save) => {
                self.set_quit_state(QuitState::Saving);
                self.apply(CorrectionsAction::SaveAll);
                ctx.request_repaint();
            }
        }
    }
}

/// Draws the dialog, if one is open; returns the user's choice.
pub(crate) fn quit_dialog(ctx: &egui::Context, state: State<'_>) -> Option<QuitChoice> {
    let quit = state.display.quit();
    let saving = match quit {
        QuitState::No | QuitState::Decided => return None,
        QuitState::Pausing(_) => {
            pausing_dialog(ctx);
            return None;
        }
        QuitState::Asked | QuitState::Asking => false,
        QuitState::Saving => true,
    };
    let (names, objects, jobs) = (state.unsaved(), state.unsaved_objects(), state.lost_with_window());
    let continued = state.jobs.continued_without_window();
    let fresh = quit == QuitState::Asked;
    let response = theme::dialog(ctx, "quitting").show(ctx, |ui| {
        ui.set_width(420.0);
        ui.heading(match (names.is_empty(), objects.is_empty(), jobs.is_empty()) {
            (false, _, _) => "Unsaved corrections",
            (true, false, _) => UNSAVED_OBJECTS,
            (true, true, false) => "Unfinished jobs",
            (true, true, true) => "Quit?",
        });
        ui.add_space(theme::GAP);
        if !names.is_empty() {
            list(ui, names.iter().map(String::as_str));
            unsaved_text(ui, state.journal_failure());
        }
        if !objects.is_empty() {
            if !names.is_empty() {
                ui.label(RichText::new(UNSAVED_OBJECTS).strong());
            }
            list(ui, objects.iter().map(String::as_str));
            ui.add(egui::Label::new(PREVIEWS_ARE_LOST).wrap());
        }
        if !jobs.is_empty() {
            if !names.is_empty() || !objects.is_empty() {
                ui.label(RichText::new("Unfinished jobs").strong());
            }
            list(ui, jobs.iter().map(String::as_str));
            ui.add(egui::Label::new("Closing the window cancels these jobs; their results are not written.").wrap());
        }
        if let Some((title, text)) = &continued {
            list(ui, std::iter::once(title.as_str()));
            ui.add(egui::Label::new(*text).wrap());
        }
        ui.add_space(theme::GROUP_GAP);
        let is_unsaved = !names.is_empty();
        ui.horizontal(|ui| if saving { saving_indicator(ui) } else { choices(ui, fresh, is_unsaved) }).inner
    });
    response.inner.or_else(|| response.should_close().then_some(QuitChoice::Stay))
}

/// Lists the first names.
fn list<'a>(ui: &mut Ui, names: impl ExactSizeIterator<Item = &'a str>) {
    let further = names.len().saturating_sub(LISTED);
    for name in names.take(LISTED) {
        ui.add(egui::Label::new(format!("{}  {name}", icon::CIRCLE)).truncate());
    }
    if further > 0 {
        weak(ui, format!("and {further} more"));
    }
    ui.add_space(theme::GAP);
}

/// Explains what happens to unsaved corrections; `failure` is why their journal could not be written, if so.
fn unsaved_text(ui: &mut Ui, failure: Option<&str>) {
    let text = match failure {
        None => RichText::new(
            "Nothing is lost: corrections are restored in Correct when the stack is opened again. Save them to use the \
             labels in other programs.",
        ),
        Some(why) => {
            let text = format!(
                "Their journal could not be written to the disk: {why}. Save the corrections, or they may be lost."
            );
            RichText::new(text).color(theme::bad(ui.visuals()))
        }
    };
    ui.add(egui::Label::new(text).wrap());
    ui.add_space(theme::GAP);
}

/// Shows that a checkpoint is being saved.
fn pausing_dialog(ctx: &egui::Context) {
    theme::dialog(ctx, "quitting").show(ctx, |ui| {
        ui.set_width(320.0);
        ui.horizontal(|ui| {
            ui.spinner();
            ui.label("Saving a checkpoint…");
        });
        weak(ui, "Training can be continued from here when Cytoscope is opened again.");
    });
}

/// Draws the buttons; the one that loses nothing gets the focus when the dialog opens.
fn choices(ui: &mut Ui, fresh: bool, is_unsaved: bool) -> Option<QuitChoice> {
    let save = is_unsaved.then(|| ui.add(filled_button(RichText::new("Save and quit"), true)));
    let quit = ui.button(if is_unsaved { "Quit without saving" } else { "Quit now" });
    let stay = ui.button("Cancel");
    if fresh {
        save.as_ref().unwrap_or(&stay).request_focus();
    }
    let buttons = [(Some(quit), QuitChoice::Quit), (Some(stay), QuitChoice::Stay), (save, QuitChoice::Save)];
    buttons.into_iter().find_map(|(button, choice)| button?.clicked().then_some(choice))
}

fn saving_indicator(ui: &mut Ui) -> Option<QuitChoice> {
    ui.spinner();
    ui.label("Saving…");
    ui.button("Cancel").clicked().then_some(QuitChoice::Stay)
}
