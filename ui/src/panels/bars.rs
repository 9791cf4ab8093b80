//! Menu bar, status bar, and the toolbar of the views.

use super::icon_button;
use crate::app::Workbench;
use crate::command::Command;
use crate::correct::tools::{EditAction, Tool};
use crate::document::{Role, file_name};
use crate::theme;
use crate::views::slice::ViewOptions;
use cytoscope_profile::bytes_text;
use cytoscope_worker::WorkerState;
use eframe::egui::{self, Frame, Margin, RichText, Ui};
use egui_phosphor::regular as icon;

/// Menus with their commands; `None` is a separator.
const MENUS: [(&str, &[Option<Command>]); 5] = [
    (
        "File",
        &[
            Some(Command::Open),
            Some(Command::OpenSample),
            None,
            Some(Command::OpenLabels),
            Some(Command::OpenTruth),
            None,
            Some(Command::Screenshot),
            Some(Command::SaveTable),
            None,
            Some(Command::Close),
            Some(Command::Quit),
        ],
    ),
    (
        "View",
        &[
            Some(Command::Fit),
            Some(Command::AutoContrast),
            Some(Command::Play),
            None,
            Some(Command::ToggleLabels),
            Some(Command::NextLabelStyle),
            Some(Command::ToggleMap),
            Some(Command::ToggleSwipe),
            Some(Command::ToggleRuler),
            Some(Command::ToggleCrosshair),
            Some(Command::ToggleScaleBar),
            None,
            Some(Command::ToggleLibrary),
            Some(Command::ToggleTasks),
            Some(Command::ToggleProfiler),
            Some(Command::Toggle3d),
            Some(Command::NextTheme),
            Some(Command::ResetLayout),
        ],
    ),
    (
        "Predict",
        &[Some(Command::Predict), Some(Command::PredictAll), Some(Command::Train), None, Some(Command::Cancel)],
    ),
    (
        "Edit",
        &[
            Some(Command::Correct(EditAction::Undo)),
            Some(Command::Correct(EditAction::Redo)),
            None,
            Some(Command::Tool(Tool::Navigate)),
            Some(Command::Tool(Tool::Paint)),
            Some(Command::Tool(Tool::Erase)),
            Some(Command::Tool(Tool::Fill)),
            Some(Command::Tool(Tool::Pick)),
            Some(Command::Tool(Tool::Merge)),
            Some(Command::Tool(Tool::Split)),
            None,
            Some(Command::Correct(EditAction::NewLabel)),
            Some(Command::Correct(EditAction::Delete)),
            Some(Command::Correct(EditAction::Interpolate)),
            Some(Command::Correct(EditAction::FillHoles)),
            Some(Command::Correct(EditAction::Grow)),
            Some(Command::Correct(EditAction::Shrink)),
            None,
            Some(Command::Correct(EditAction::Save)),
            Some(Command::Correct(EditAction::Export)),
        ],
    ),
    ("Help", &[Some(Command::Palette), Some(Command::Shortcuts), Some(Command::ShowLog), Some(Command::About)]),
];

/// A slider from 1 to `last` with a number field beside it.
fn slider_and_number(ui: &mut Ui, value: &mut usize, last: usize, name: &str) {
    let slider = ui.add(egui::Slider::new(value, 1..=last).show_value(false));
    slider.widget_info(|| egui::WidgetInfo::slider(true, *value as f64, name));
    let number = ui.add(egui::DragValue::new(value).range(1..=last));
    number.widget_info(|| {
        let text = format!("{name} number");
        egui::WidgetInfo {
            value: Some(*value as f64),
            ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, text)
        }
    });
}

impl Workbench {
    /// Draws a menu item for a command.
    pub(crate) fn command_button(&mut self, ui: &mut Ui, command: Command) {
        let title = self.current_title(command);
        let mut button = egui::Button::new(format!("{}   {title}", command.icon()));
        if let Some(shortcut) = command.shortcut() {
            button = button.shortcut_text(ui.ctx().format_shortcut(&shortcut));
        }
        let enabled = self.is_enabled(command);
        let response = ui.add_enabled(enabled, button);
        response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, &title));
        if response.clicked() {
            self.commands.push(command);
            ui.close();
        }
    }

    pub(crate) fn top_bar(&mut self, ui: &mut Ui) {
        let frame = Frame::new().fill(ui.visuals().panel_fill).inner_margin(Margin::symmetric(8, 4));
        egui::Panel::top("menus").frame(frame).show(ui, |ui| {
            egui::MenuBar::new().ui(ui, |ui| {
                for (name, commands) in MENUS {
                    ui.menu_button(name, |ui| {
                        ui.set_min_width(250.0);
                        for command in commands {
                            match command {
                                Some(command) => self.command_button(ui, *command),
                                None => _ = ui.separator(),
                            }
                        }
                        if name == "File" && !self.settings.recent.is_empty() {
                            self.recent_menu(ui);
                        }
                    });
                }
            });
        });
    }

    fn recent_menu(&mut self, ui: &mut Ui) {
        ui.menu_button(format!("{}   Recent", icon::CLOCK_COUNTER_CLOCKWISE), |ui| {
            let recent = self.settings.recent.clone();
            for path in recent {
                if ui.button(file_name(&path)).on_hover_text(path.display().to_string()).clicked() {
                    self.open_paths(&[path]);
                    ui.close();
                }
            }
        });
    }

    /// Draws the status bar.
    pub(crate) fn status_bar(&mut self, ui: &mut Ui) {
        let frame = Frame::new().fill(ui.visuals().panel_fill).inner_margin(Margin::symmetric(10, 4));
        egui::Panel::bottom("status").frame(frame).show(ui, |ui| {
            ui.horizontal(|ui| {
                let text = self.under_pointer();
                ui.label(RichText::new(text).monospace().size(12.0));
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                    let on = self.settings.show_profiler;
                    if icon_button(ui, icon::CHART_BAR, Command::ToggleProfiler.title(), true, on).clicked() {
                        self.commands.push(Command::ToggleProfiler);
                    }
                    self.engine_state(ui);
                    self.job_state(ui);
                });
            });
        });
    }

    fn under_pointer(&self) -> String {
        let (Some(document), Some(hover)) = (self.document(), self.layout.hover) else { return String::new() };
        let [z, y, x] = hover.zyx;
        let mut text = format!("x {x}  y {y}  z {z}");
        if document.voxel_known {
            let um: Vec<String> =
                (0..3).rev().map(|a| format!("{:.2}", hover.zyx[a] as f64 * document.voxel_um[a])).collect();
            text.push_str(&format!("   {} µm", um.join(" ")));
        }
        if let Some(value) = hover.value {
            text.push_str(&format!("   value {value}"));
        }
        if let Some(map) = hover.map {
            text.push_str(&format!("   p {map:.3}"));
        }
        if let Some(label) = hover.label.filter(|l| *l > 0) {
            text.push_str(&format!("   label {label}"));
            let volume = document.results.as_ref().and_then(|r| {
                let column = r.column("volume_um3")?;
                Some(r.value(r.row_of(label)?, column))
            });
            if let Some(volume) = volume {
                text.push_str(&format!(" ({volume:.0} µm³)"));
            }
        }
        if let Some(truth) = hover.truth.filter(|l| *l > 0) {
            text.push_str(&format!("   truth {truth}"));
        }
        text
    }

    fn engine_state(&mut self, ui: &mut Ui) {
        let (text, color) = match self.work.state() {
            None => ("no engine".to_owned(), theme::bad(ui.visuals())),
            Some(WorkerState::Starting) => ("engine starting…".to_owned(), ui.visuals().weak_text_color()),
            Some(WorkerState::Dead) => ("engine stopped".to_owned(), theme::bad(ui.visuals())),
            Some(WorkerState::Ready { .. }) => {
                let device = self.work.running().and_then(|j| j.device.as_ref()).map(|d| d.id.to_string());
                let memory = self.work.memory.map(|(now, _)| bytes_text(now));
                let parts: Vec<String> = device.into_iter().chain(memory).collect();
                let text = if parts.is_empty() { "engine ready".to_owned() } else { parts.join(" · ") };
                (text, theme::good(ui.visuals()))
            }
        };
        ui.label(RichText::new(text).size(12.0));
        ui.label(RichText::new(icon::CIRCLE).size(10.0).color(color));
        if self.work.state() == Some(WorkerState::Dead) && ui.small_button("Restart engine").clicked() {
            self.work.restart();
        }
    }

    fn job_state(&mut self, ui: &mut Ui) {
        let Some(job) = self.work.running().cloned() else { return };
        if icon_button(ui, icon::STOP_CIRCLE, "Cancel job", true, false).clicked() {
            self.work.cancel(job.id);
        }
        ui.add(egui::ProgressBar::new(job.progress.share()).desired_width(110.0).desired_height(8.0));
        let waiting = self.work.active().saturating_sub(1);
        let more = if waiting > 0 { format!(" (+{waiting})") } else { String::new() };
        ui.label(RichText::new(format!("{}{more}", job.title)).size(12.0));
    }

    /// Draws the centre of the window: toolbar and views.
    pub(crate) fn center(&mut self, ui: &mut Ui) {
        let frame = Frame::new().fill(ui.visuals().panel_fill).inner_margin(Margin::symmetric(8, 4));
        egui::Panel::top("controls").frame(frame).show(ui, |ui| {
            ui.horizontal_wrapped(|ui| self.controls(ui));
        });
        self.ruler_panel(ui);
        let options = ViewOptions {
            crosshair: self.settings.show_crosshair,
            scale_bar: if self.screenshots.is_bare() {
                self.screenshots.with_bar()
            } else {
                self.settings.show_scale_bar
            },
            swipe: None,
            pen: self.ruler_pen().or_else(|| self.pen()),
            ring: self.ring(),
            bare: self.screenshots.is_bare(),
            only_xy: false,
        };
        let Some(at) = self.documents.iter().position(|d| Some(d.id) == self.active) else { return };
        let view_response = self.layout.show(ui, &mut self.documents[at], &self.loader, options);
        if let Some(label) = view_response.picked {
            self.documents[at].select(Some(label));
            self.panels.objects.scroll_to_selected = true;
            self.set_current_label(label);
        }
        if let Some(factor) = view_response.brush_factor {
            self.corrections.tools.scale(factor);
        }
        if self.ruler.is_on() {
            self.draw_ruler(&view_response.pointer_events);
        } else {
            self.apply_pointer_events(&view_response.pointer_events);
        }
    }

    fn controls(&mut self, ui: &mut Ui) {
        let playing = self.is_playing();
        if let Some(document) = self.document_mut() {
            let [nz, ..] = document.extents.zyx;
            if nz > 1 {
                ui.label("Z");
                let mut z = document.cursor[0] + 1;
                slider_and_number(ui, &mut z, nz, "Slice");
                document.cursor[0] = z - 1;
            }
            if document.extents.times > 1 {
                ui.label("T");
                let mut t = document.time + 1;
                slider_and_number(ui, &mut t, document.extents.times, "Time point");
                document.time = t - 1;
            }
        }
        let labels = self.document().is_some_and(|d| d.overlays.iter().any(|o| o.is_labels() && o.visible));
        let map = self.document().and_then(|d| d.of_role(Role::Map)).is_some_and(|o| o.visible);
        let swipe = self.layout.swipe_mut().is_some();
        let buttons = [
            (Command::Play, playing),
            (Command::Fit, false),
            (Command::AutoContrast, false),
            (Command::ToggleLabels, labels),
            (Command::NextLabelStyle, false),
            (Command::ToggleMap, map),
            (Command::ToggleSwipe, swipe),
            (Command::ToggleRuler, self.ruler.is_on()),
            (Command::Screenshot, false),
        ];
        for (command, on) in buttons {
            let enabled = self.is_enabled(command);
            let sign = if command == Command::Play && playing { icon::PAUSE } else { command.icon() };
            let response = icon_button(ui, sign, command.title(), enabled, on);
            let response = match command.shortcut() {
                Some(keys) => response.on_hover_text(ui.ctx().format_shortcut(&keys)),
                None => response,
            };
            if response.clicked() {
                self.commands.push(command);
            }
        }
        if let Some(share) = self.layout.swipe_mut() {
            let slider = ui.add(egui::Slider::new(share, 0.0..=1.0).show_value(false));
            slider.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Slider, true, "Swipe"));
        }
    }
}
