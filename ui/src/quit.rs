//! Quitting: asks about unsaved corrections, and pauses a training run before the window closes.

use crate::app::Workbench;
use crate::correct::session::Request;
use crate::panels::weak;
use crate::theme;
use eframe::egui::{self, Ui, ViewportCommand};
use egui_phosphor::regular as icon;
use std::time::{Duration, Instant};

/// Number of stacks listed in the dialog.
const LISTED_STACKS: usize = 6;

/// How long the window waits for a training run to save its checkpoint before it closes.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(20);

/// State of quitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QuitState {
    /// Not quitting.
    #[default]
    No,
    /// The dialog opens in the next frame.
    Asked,
    /// The dialog is open.
    Asking,
    /// Labels are being saved; then the window closes.
    Saving,
    /// A training run saves a checkpoint; then the window closes.
    Pausing(Instant),
    /// The window closes.
    Decided,
}

/// The user's choice in the dialog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Save,
    Quit,
    Stay,
}

impl Workbench {
    /// Whether quitting is in progress.
    pub(crate) fn is_quitting(&self) -> bool {
        self.quit_state != QuitState::No
    }

    /// Names of documents with unsaved corrections.
    fn unsaved(&self) -> Vec<String> {
        let modified = |id| self.corrections.of(id).is_some_and(|c| c.is_modified() || c.saving);
        self.documents.iter().filter(|d| modified(d.id)).map(|d| d.name.clone()).collect()
    }

    /// Asks before the window closes and closes it once everything is saved. `busy` says whether correction requests
    /// were unfinished before their events were handled.
    pub(crate) fn poll_quit(&mut self, ctx: &egui::Context, busy: bool) {
        let closing = ctx.input(|i| i.viewport().close_requested());
        if closing && self.quit_state != QuitState::Decided && !self.unsaved().is_empty() {
            ctx.send_viewport_cmd(ViewportCommand::CancelClose);
            // The dialog must be visible.
            ctx.send_viewport_cmd(ViewportCommand::Minimized(false));
            ctx.send_viewport_cmd(ViewportCommand::Focus);
            if self.quit_state == QuitState::No {
                self.quit_state = QuitState::Asked;
            }
        }
        if closing
            && !matches!(self.quit_state, QuitState::Decided | QuitState::Pausing(_))
            && self.unsaved().is_empty()
        {
            self.close_after_training(ctx);
        }
        if let QuitState::Pausing(since) = self.quit_state {
            if closing && self.is_training() {
                ctx.send_viewport_cmd(ViewportCommand::CancelClose);
            }
            // If the step takes too long, the last checkpoint is used.
            if !self.is_training() || since.elapsed() > CHECKPOINT_TIMEOUT {
                self.quit_state = QuitState::Decided;
            }
            ctx.request_repaint_after(Duration::from_millis(50));
        }
        if self.quit_state == QuitState::Saving && !busy {
            // Failed saves show a notification.
            self.quit_state = match (self.unsaved().is_empty(), self.is_training()) {
                (true, false) => QuitState::Decided,
                (true, true) => self.begin_pausing(),
                (false, _) => QuitState::No,
            };
        }
        if self.quit_state == QuitState::Decided {
            ctx.send_viewport_cmd(ViewportCommand::Close);
        }
    }

    /// Pauses a training run before the window closes.
    fn close_after_training(&mut self, ctx: &egui::Context) {
        if self.is_training() {
            ctx.send_viewport_cmd(ViewportCommand::CancelClose);
            self.quit_state = self.begin_pausing();
        }
    }

    fn begin_pausing(&mut self) -> QuitState {
        self.pause_training();
        QuitState::Pausing(Instant::now())
    }

    /// Shows that a checkpoint is being saved.
    fn pausing_dialog(ctx: &egui::Context) {
        egui::Modal::new(egui::Id::new("quitting")).show(ctx, |ui| {
            ui.set_width(320.0);
            ui.horizontal(|ui| {
                ui.spinner();
                ui.label("Saving a checkpoint…");
            });
            weak(ui, "Training can be continued from here when Cytoscope is opened again.");
        });
    }

    pub(crate) fn quit_dialog(&mut self, ctx: &egui::Context) {
        let saving = match self.quit_state {
            QuitState::No | QuitState::Decided => return,
            QuitState::Pausing(_) => return Self::pausing_dialog(ctx),
            QuitState::Asked | QuitState::Asking => false,
            QuitState::Saving => true,
        };
        let names = self.unsaved();
        let fresh = self.quit_state == QuitState::Asked;
        let response = egui::Modal::new(egui::Id::new("quitting")).show(ctx, |ui| {
            ui.set_width(420.0);
            ui.heading("Unsaved corrections");
            ui.add_space(theme::GAP);
            for name in names.iter().take(LISTED_STACKS) {
                ui.add(egui::Label::new(format!("{}  {name}", icon::CIRCLE)).truncate());
            }
            if names.len() > LISTED_STACKS {
                weak(ui, format!("and {} more", names.len() - LISTED_STACKS));
            }
            ui.add_space(theme::GAP);
            let kept = "Nothing is lost: corrections are restored in Correct when the stack is opened again. Save \
                        them to use the labels in other programs.";
            ui.add(egui::Label::new(kept).wrap());
            ui.add_space(theme::GROUP_GAP);
            ui.horizontal(|ui| if saving { saving_indicator(ui) } else { choices(ui, fresh) }).inner
        });
        if fresh {
            self.quit_state = QuitState::Asking;
        }
        let choice = response.inner.or_else(|| response.should_close().then_some(Choice::Stay));
        match choice {
            None => {}
            Some(Choice::Stay) => self.quit_state = QuitState::No,
            Some(Choice::Quit) => {
                self.quit_state = if self.is_training() { self.begin_pausing() } else { QuitState::Decided };
                ctx.request_repaint();
            }
            Some(Choice::Save) => {
                self.quit_state = QuitState::Saving;
                for correction in self.corrections.all_mut().filter(|c| c.is_modified() && !c.saving) {
                    correction.saving = true;
                    correction.ask(Request::Save(correction.places.labels.clone()));
                }
                ctx.request_repaint();
            }
        }
    }
}

/// Draws the buttons; the first one gets the focus when the dialog opens.
fn choices(ui: &mut Ui, fresh: bool) -> Option<Choice> {
    let save = ui.button("Save and quit");
    if fresh {
        save.request_focus();
    }
    let quit = ui.button("Quit without saving");
    let stay = ui.button("Cancel");
    [(save, Choice::Save), (quit, Choice::Quit), (stay, Choice::Stay)]
        .into_iter()
        .find_map(|(button, choice)| button.clicked().then_some(choice))
}

fn saving_indicator(ui: &mut Ui) -> Option<Choice> {
    ui.spinner();
    ui.label("Saving…");
    ui.button("Cancel").clicked().then_some(Choice::Stay)
}
