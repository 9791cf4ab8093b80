//! Dialogs: keyboard shortcuts, about, axes of a file.

use crate::app::Workbench;
use crate::command::Command;
use crate::document::file_name;
use crate::panels::weak;
use cytoscope_volume::Axes;
use eframe::egui::{self, RichText};
use std::path::PathBuf;

/// Which dialogs are open.
#[derive(Debug, Default)]
pub struct Dialogs {
    /// Whether the shortcuts dialog is open.
    pub shortcuts: bool,
    /// Whether the about dialog is open.
    pub about: bool,
    /// The file of the axes dialog and the text typed so far.
    pub axes: Option<(PathBuf, String)>,
}

/// Main third-party software and its licences.
const MADE_BY_OTHERS: &str = "egui and eframe (MIT or Apache-2.0), wgpu (MIT or Apache-2.0), Burn (MIT or \
                              Apache-2.0), rayon (MIT or Apache-2.0), Phosphor icons (MIT), and the libraries named \
                              in Cargo.lock.";

impl Workbench {
    pub(crate) fn dialogs(&mut self, ctx: &egui::Context) {
        if self.panels.dialogs.shortcuts {
            let response = egui::Modal::new(egui::Id::new("shortcuts")).show(ctx, |ui| {
                ui.heading("Keyboard shortcuts");
                ui.add_space(8.0);
                egui::Grid::new("shortcuts").num_columns(4).spacing([22.0, 5.0]).show(ui, |ui| {
                    let keyed: Vec<Command> = Command::ALL.into_iter().filter(|c| c.shortcut().is_some()).collect();
                    let rows = keyed.len().div_ceil(2);
                    for row in 0..rows {
                        for command in [keyed.get(row), keyed.get(row + rows)].into_iter().flatten() {
                            ui.label(command.title().trim_end_matches('…'));
                            let keys = command.shortcut().map(|s| ui.ctx().format_shortcut(&s)).unwrap_or_default();
                            ui.label(RichText::new(keys).monospace().weak());
                        }
                        ui.end_row();
                    }
                });
                ui.add_space(8.0);
                weak(
                    ui,
                    "In a view: arrows move the cursor (with Shift by ten), the wheel scrolls, Ctrl and the wheel \
                          zooms, dragging moves, double-click fits.",
                );
                ui.add_space(8.0);
                ui.button("Close").clicked()
            });
            if response.inner || response.should_close() {
                self.panels.dialogs.shortcuts = false;
            }
        }
        if self.panels.dialogs.about {
            let response = egui::Modal::new(egui::Id::new("about")).show(ctx, |ui| {
                ui.set_width(420.0);
                ui.heading("Cytoscope");
                ui.label(format!("Version {}", env!("CARGO_PKG_VERSION")));
                ui.add_space(8.0);
                ui.label(
                    "Segments cells and predicts stains in 3-D microscopy stacks. Everything runs on this machine.",
                );
                ui.add_space(8.0);
                ui.label("Licence: MIT or Apache-2.0, at your option.");
                weak(ui, format!("Built with {MADE_BY_OTHERS}"));
                ui.add_space(8.0);
                ui.button("Close").clicked()
            });
            if response.inner || response.should_close() {
                self.panels.dialogs.about = false;
            }
        }
        self.axes_dialog(ctx);
    }

    fn axes_dialog(&mut self, ctx: &egui::Context) {
        let Some((path, mut text)) = self.panels.dialogs.axes.clone() else { return };
        let mut apply = false;
        let response = egui::Modal::new(egui::Id::new("axes")).show(ctx, |ui| {
            ui.set_width(380.0);
            ui.heading("Axes of the file");
            weak(ui, file_name(&path));
            ui.add_space(8.0);
            ui.label("Order of the axes in the file: T for time, Z for slices, C for channels.");
            ui.horizontal(|ui| {
                for usual in ["ZYX", "TYX", "CYX", "TZYX", "ZCYX", "TZCYX"] {
                    if ui.selectable_label(text == usual, usual).clicked() {
                        text = usual.to_owned();
                    }
                }
            });
            let edit = ui.add(egui::TextEdit::singleline(&mut text).hint_text("for example ZYX"));
            edit.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Axes"));
            let parsed: Result<Axes, _> = text.trim().to_uppercase().parse();
            if let (Err(error), false) = (&parsed, text.trim().is_empty()) {
                ui.colored_label(crate::theme::bad(ui.visuals()), error.to_string());
            }
            weak(ui, "Remembered for all files in this folder.");
            ui.add_space(8.0);
            ui.horizontal(|ui| {
                apply = ui.add_enabled(parsed.is_ok(), egui::Button::new("Apply")).clicked();
                let mut close = ui.button("Use the file's axes").clicked();
                if close {
                    self.settings.remember_axes(&path, None);
                    self.opener.open(path.clone(), None);
                }
                close |= ui.button("Cancel").clicked();
                close
            })
            .inner
        });
        if apply && let Ok(axes) = text.trim().to_uppercase().parse::<Axes>() {
            self.settings.remember_axes(&path, Some(&axes.to_string()));
            self.opener.open(path.clone(), Some(axes));
        }
        let done = apply || response.inner || response.should_close();
        self.panels.dialogs.axes = (!done).then_some((path, text));
    }
}
