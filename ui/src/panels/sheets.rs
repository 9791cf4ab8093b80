//! Sheets over the window: shortcuts, about, axes of a file.

use crate::app::Workbench;
use crate::command::Command;
use crate::document::file_name;
use crate::panels::weak;
use cytoscope_volume::Axes;
use eframe::egui::{self, RichText};
use std::path::PathBuf;

/// Which sheets are open.
#[derive(Debug, Default)]
pub struct Sheets {
    /// Keyboard shortcuts.
    pub shortcuts: bool,
    /// About.
    pub about: bool,
    /// The axes of a file, as typed so far.
    pub axes: Option<(PathBuf, String)>,
}

/// What others made that this program stands on, and their licences.
const MADE_BY_OTHERS: &str = "egui and eframe (MIT or Apache-2.0), wgpu (MIT or Apache-2.0), Burn (MIT or Apache-2.0), rayon (MIT or \
    Apache-2.0), Phosphor icons (MIT), and the libraries named in Cargo.lock.";

impl Workbench {
    pub(crate) fn sheets(&mut self, ctx: &egui::Context) {
        if self.panels.sheets.shortcuts {
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
                weak(ui, "In a view: arrows move the cursor (with Shift by ten), the wheel scrolls, Ctrl and the wheel zooms, dragging \
                          moves, double-click fits.");
                ui.add_space(8.0);
                ui.button("Close").clicked()
            });
            if response.inner || response.should_close() {
                self.panels.sheets.shortcuts = false;
            }
        }
        if self.panels.sheets.about {
            let response = egui::Modal::new(egui::Id::new("about")).show(ctx, |ui| {
                ui.set_width(420.0);
                ui.heading("Cytoscope");
                ui.label(format!("Version {}", env!("CARGO_PKG_VERSION")));
                ui.add_space(8.0);
                ui.label("Cells, and stains never applied, from 3-D microscopy stacks. Everything is computed on this machine.");
                ui.add_space(8.0);
                ui.label("Licence: MIT or Apache-2.0, as you like.");
                weak(ui, format!("It stands on {MADE_BY_OTHERS}"));
                ui.add_space(8.0);
                ui.button("Close").clicked()
            });
            if response.inner || response.should_close() {
                self.panels.sheets.about = false;
            }
        }
        self.axes_sheet(ctx);
    }

    fn axes_sheet(&mut self, ctx: &egui::Context) {
        let Some((path, mut text)) = self.panels.sheets.axes.clone() else { return };
        let mut apply = false;
        let response = egui::Modal::new(egui::Id::new("axes")).show(ctx, |ui| {
            ui.set_width(380.0);
            ui.heading("Axes of the file");
            weak(ui, file_name(&path));
            ui.add_space(8.0);
            ui.label("What the file's images run along, in order. T is time, Z slices, C channels.");
            ui.horizontal(|ui| {
                for usual in ["ZYX", "TYX", "CYX", "TZYX", "ZCYX", "TZCYX"] {
                    if ui.selectable_label(text == usual, usual).clicked() {
                        text = usual.to_owned();
                    }
                }
            });
            let edit = ui.add(egui::TextEdit::singleline(&mut text).hint_text("such as ZYX"));
            edit.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Axes"));
            let parsed: Result<Axes, _> = text.trim().to_uppercase().parse();
            if let (Err(error), false) = (&parsed, text.trim().is_empty()) {
                ui.colored_label(crate::theme::bad(ui.visuals()), error.to_string());
            }
            weak(ui, "Remembered for all files of this folder.");
            ui.add_space(8.0);
            ui.horizontal(|ui| {
                apply = ui.add_enabled(parsed.is_ok(), egui::Button::new("Apply")).clicked();
                let mut close = ui.button("As the file says").clicked();
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
        self.panels.sheets.axes = (!done).then_some((path, text));
    }
}
