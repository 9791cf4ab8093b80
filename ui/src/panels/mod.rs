//! Panels and dialogs around the views.

pub mod bars;
mod compare;
pub mod correct;
pub mod dialogs;
pub mod empty;
pub mod library;
pub mod objects;
pub mod palette;
pub mod predict;
pub mod profiler;
pub mod train;

use crate::app::Workbench;
use crate::theme;
use eframe::egui::{self, Frame, Margin, RichText, Ui};

/// State of all panels.
#[derive(Default)]
pub struct Panels {
    /// Command palette.
    pub palette: palette::Palette,
    /// Dialogs.
    pub dialogs: dialogs::Dialogs,
    /// Predict panel.
    pub predict: predict::PredictState,
    /// Objects panel.
    pub objects: objects::ObjectsState,
    /// Profiler panel.
    pub profiler: profiler::ProfilerState,
    /// The task that is shown.
    pub task: PanelTask,
}

/// Tasks of the right panel, in workflow order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PanelTask {
    /// Predict and refine the segmentation.
    #[default]
    Predict,
    /// Correct labels by hand.
    Correct,
    /// View measured objects.
    Objects,
    /// Train a model.
    Train,
}

/// Frame of a panel.
pub(crate) fn frame(ui: &Ui) -> Frame {
    Frame::new().fill(ui.visuals().panel_fill).inner_margin(Margin::same(theme::PANEL_MARGIN))
}

/// Draws a heading in a panel.
pub(crate) fn heading(ui: &mut Ui, text: &str) {
    ui.add_space(theme::GROUP_GAP - theme::GAP);
    ui.label(RichText::new(text).strong());
}

/// Draws small text in a weak colour.
pub(crate) fn weak(ui: &mut Ui, text: impl Into<String>) -> egui::Response {
    ui.add(egui::Label::new(RichText::new(text).weak().size(12.0)).wrap())
}

/// The main button of a panel; its accessible name is `name` followed by "this stack".
pub(crate) fn main_button(ui: &mut Ui, enabled: bool, icon: &str, name: &str) -> egui::Response {
    let size = egui::vec2(ui.available_width(), theme::MAIN_BUTTON_HEIGHT);
    let label = RichText::new(format!("{icon}  {name}")).size(15.0).strong();
    let mut button = egui::Button::new(if enabled { label.color(theme::ON_ACCENT) } else { label });
    if enabled {
        button = button.fill(theme::ACCENT);
    }
    // A centred layout of the button's size also centres its text.
    let layout = egui::Layout::centered_and_justified(egui::Direction::LeftToRight);
    let response = ui.allocate_ui_with_layout(size, layout, |ui| ui.add_enabled(enabled, button)).inner;
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, format!("{name} this stack")));
    response
}

/// An icon button with a tooltip and accessible name.
pub(crate) fn icon_button(ui: &mut Ui, icon: &str, name: &str, enabled: bool, on: bool) -> egui::Response {
    let button = egui::Button::new(RichText::new(icon).size(16.0)).selected(on).min_size(egui::vec2(28.0, 26.0));
    let response = ui.add_enabled(enabled, button);
    response.widget_info(|| egui::WidgetInfo::selected(egui::WidgetType::Button, enabled, on, name));
    response.on_hover_text(name)
}

/// Formats a duration for display.
pub(crate) fn seconds(s: f64) -> String {
    if s < 1.0 {
        format!("{:.0} ms", s * 1e3)
    } else if s < 90.0 {
        format!("{s:.1} s")
    } else if s < 5400.0 {
        format!("{:.0} min {:02.0} s", (s / 60.0).floor(), s % 60.0)
    } else {
        format!("{:.0} h {:02.0} min", (s / 3600.0).floor(), (s / 60.0) % 60.0)
    }
}

impl Workbench {
    /// Draws the task panel on the right.
    pub(crate) fn tasks_panel(&mut self, ui: &mut Ui) {
        let frame = frame(ui);
        egui::Panel::right("tasks").frame(frame).default_size(310.0).size_range(270.0..=520.0).show(ui, |ui| {
            ui.horizontal(|ui| {
                let tasks = [
                    (PanelTask::Predict, "Predict"),
                    (PanelTask::Correct, "Correct"),
                    (PanelTask::Objects, "Objects"),
                    (PanelTask::Train, "Train"),
                ];
                for (task, name) in tasks {
                    if ui.selectable_label(self.panels.task == task, RichText::new(name).size(15.0)).clicked() {
                        self.panels.task = task;
                    }
                }
            });
            ui.separator();
            match self.panels.task {
                PanelTask::Predict => {
                    egui::ScrollArea::vertical().auto_shrink([false; 2]).show(ui, |ui| self.predict_panel(ui));
                }
                PanelTask::Correct => {
                    egui::ScrollArea::vertical().auto_shrink([false; 2]).show(ui, |ui| self.correct_panel(ui));
                }
                PanelTask::Objects => self.objects_panel(ui),
                PanelTask::Train => {
                    egui::ScrollArea::vertical().auto_shrink([false; 2]).show(ui, |ui| self.training_panel(ui));
                }
            }
        });
    }
}
