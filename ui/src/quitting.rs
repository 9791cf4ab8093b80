//! Quitting: corrections that are no label image yet are told of, and saved first if that is wanted.

use crate::app::Workbench;
use crate::correct::session::Request;
use crate::panels::weak;
use crate::theme;
use eframe::egui::{self, Ui, ViewportCommand};
use egui_phosphor::regular as icon;
use std::time::{Duration, Instant};

/// Stacks named on the sheet.
const LISTED_STACKS: usize = 6;

/// How long a training may take to keep its state before the window closes without.
const KEEPING_TAKES: Duration = Duration::from_secs(20);

/// How far quitting is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quitting {
    /// Nobody wants to.
    #[default]
    No,
    /// The sheet is to be opened.
    Asked,
    /// It is open.
    Asking,
    /// Labels are being saved; then the window closes.
    Saving,
    /// A training keeps its state; then the window closes.
    Pausing(Instant),
    /// The window closes.
    Decided,
}

/// What was chosen on the sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Save,
    Quit,
    Stay,
}

impl Workbench {
    /// Whether a sheet about quitting is open.
    pub(crate) fn is_quitting(&self) -> bool {
        self.quitting != Quitting::No
    }

    /// Names of stacks whose corrections are no label image yet.
    fn unsaved(&self) -> Vec<String> {
        let modified = |id| self.corrections.of(id).is_some_and(|c| c.is_modified() || c.saving);
        self.documents.iter().filter(|d| modified(d.id)).map(|d| d.name.clone()).collect()
    }

    /// Asks before the window closes, and closes it once all is saved. `busy`: some of what was asked of corrections before their
    /// news was taken is not done.
    pub(crate) fn watch_quitting(&mut self, ctx: &egui::Context, busy: bool) {
        let closing = ctx.input(|i| i.viewport().close_requested());
        if closing && self.quitting != Quitting::Decided && !self.unsaved().is_empty() {
            ctx.send_viewport_cmd(ViewportCommand::CancelClose);
            // The sheet is to be seen.
            ctx.send_viewport_cmd(ViewportCommand::Minimized(false));
            ctx.send_viewport_cmd(ViewportCommand::Focus);
            if self.quitting == Quitting::No {
                self.quitting = Quitting::Asked;
            }
        }
        if closing && !matches!(self.quitting, Quitting::Decided | Quitting::Pausing(_)) && self.unsaved().is_empty() {
            self.close_after_training(ctx);
        }
        if let Quitting::Pausing(since) = self.quitting {
            if closing && self.is_training() {
                ctx.send_viewport_cmd(ViewportCommand::CancelClose);
            }
            // A step that takes longer than anyone waits: what was kept last is there.
            if !self.is_training() || since.elapsed() > KEEPING_TAKES {
                self.quitting = Quitting::Decided;
            }
            ctx.request_repaint_after(Duration::from_millis(50));
        }
        if self.quitting == Quitting::Saving && !busy {
            // What could not be saved is told in a notice.
            self.quitting = match (self.unsaved().is_empty(), self.is_training()) {
                (true, false) => Quitting::Decided,
                (true, true) => self.begin_pausing(),
                (false, _) => Quitting::No,
            };
        }
        if self.quitting == Quitting::Decided {
            ctx.send_viewport_cmd(ViewportCommand::Close);
        }
    }

    /// Has a training keep its state before the window closes.
    fn close_after_training(&mut self, ctx: &egui::Context) {
        if self.is_training() {
            ctx.send_viewport_cmd(ViewportCommand::CancelClose);
            self.quitting = self.begin_pausing();
        }
    }

    fn begin_pausing(&mut self) -> Quitting {
        self.pause_training();
        Quitting::Pausing(Instant::now())
    }

    /// Tells that a training is being kept.
    fn pausing_sheet(ctx: &egui::Context) {
        egui::Modal::new(egui::Id::new("quitting")).show(ctx, |ui| {
            ui.set_width(320.0);
            ui.horizontal(|ui| {
                ui.spinner();
                ui.label("Keeping what was learnt…");
            });
            weak(ui, "The training goes on from here when Cytoscope is opened again.");
        });
    }

    pub(crate) fn quitting_sheet(&mut self, ctx: &egui::Context) {
        let saving = match self.quitting {
            Quitting::No | Quitting::Decided => return,
            Quitting::Pausing(_) => return Self::pausing_sheet(ctx),
            Quitting::Asked | Quitting::Asking => false,
            Quitting::Saving => true,
        };
        let names = self.unsaved();
        let fresh = self.quitting == Quitting::Asked;
        let response = egui::Modal::new(egui::Id::new("quitting")).show(ctx, |ui| {
            ui.set_width(420.0);
            ui.heading("Corrections are not saved as labels");
            ui.add_space(theme::GAP);
            for name in names.iter().take(LISTED_STACKS) {
                ui.add(egui::Label::new(format!("{}  {name}", icon::CIRCLE)).truncate());
            }
            if names.len() > LISTED_STACKS {
                weak(ui, format!("and {} more", names.len() - LISTED_STACKS));
            }
            ui.add_space(theme::GAP);
            let kept = "Nothing is lost: they are kept and come back in Correct when the stack is opened again. Other programs \
                        see them once they are saved.";
            ui.add(egui::Label::new(kept).wrap());
            ui.add_space(theme::GROUP_GAP);
            ui.horizontal(|ui| if saving { saving_row(ui) } else { choices(ui, fresh) }).inner
        });
        if fresh {
            self.quitting = Quitting::Asking;
        }
        let choice = response.inner.or_else(|| response.should_close().then_some(Choice::Stay));
        match choice {
            None => {}
            Some(Choice::Stay) => self.quitting = Quitting::No,
            Some(Choice::Quit) => {
                self.quitting = if self.is_training() { self.begin_pausing() } else { Quitting::Decided };
                ctx.request_repaint();
            }
            Some(Choice::Save) => {
                self.quitting = Quitting::Saving;
                for correction in self.corrections.all_mut().filter(|c| c.is_modified() && !c.saving) {
                    correction.saving = true;
                    correction.ask(Request::Save(correction.places.labels.clone()));
                }
                ctx.request_repaint();
            }
        }
    }
}

/// What can be done; the first one has the keys at once.
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

fn saving_row(ui: &mut Ui) -> Option<Choice> {
    ui.spinner();
    ui.label("Saving…");
    ui.button("Cancel").clicked().then_some(Choice::Stay)
}
