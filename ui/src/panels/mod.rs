//! What stands around the views.

pub mod bars;
mod compare;
pub mod correct;
pub mod empty;
pub mod library;
pub mod objects;
pub mod palette;
pub mod predict;
pub mod profiler;
pub mod sheets;
pub mod train;

use crate::app::Workbench;
use crate::theme;
use eframe::egui::{self, Frame, Margin, RichText, Ui};

/// The state of all panels.
#[derive(Default)]
pub struct Panels {
    /// Command palette.
    pub palette: palette::Palette,
    /// Sheets over the window.
    pub sheets: sheets::Sheets,
    /// Prediction.
    pub predict: predict::PredictState,
    /// Table and plots.
    pub objects: objects::ObjectsState,
    /// Profiler.
    pub profiler: profiler::ProfilerState,
    /// Which task is open.
    pub task: Task,
}

/// Tasks, in the order one does them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Task {
    /// Predict and refine.
    #[default]
    Predict,
    /// Correct labels by hand.
    Correct,
    /// Look at measured objects.
    Objects,
    /// Teach a model.
    Train,
}

/// A panel's frame.
pub(crate) fn frame(ui: &Ui) -> Frame {
    Frame::new().fill(ui.visuals().panel_fill).inner_margin(Margin::same(theme::PANEL_MARGIN))
}

/// A heading inside a panel.
pub(crate) fn heading(ui: &mut Ui, text: &str) {
    ui.add_space(theme::GROUP_GAP - theme::GAP);
    ui.label(RichText::new(text).strong());
}

/// A small text in a weaker colour.
pub(crate) fn weak(ui: &mut Ui, text: impl Into<String>) -> egui::Response {
    ui.add(egui::Label::new(RichText::new(text).weak().size(12.0)).wrap())
}

/// The button of what a panel is for.
pub(crate) fn main_button(ui: &mut Ui, enabled: bool, icon: &str, name: &str) -> egui::Response {
    let size = egui::vec2(ui.available_width(), theme::MAIN_BUTTON_HEIGHT);
    let label = RichText::new(format!("{icon}  {name}")).size(15.0).strong();
    let mut button = egui::Button::new(if enabled { label.color(theme::ON_ACCENT) } else { label });
    if enabled {
        button = button.fill(theme::ACCENT);
    }
    // A centred layout of the button's own size: its text is in the middle, too.
    let layout = egui::Layout::centered_and_justified(egui::Direction::LeftToRight);
    let response = ui.allocate_ui_with_layout(size, layout, |ui| ui.add_enabled(enabled, button)).inner;
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, format!("{name} this stack")));
    response
}

/// A button with an icon alone, named for those who cannot see it.
pub(crate) fn icon_button(ui: &mut Ui, icon: &str, name: &str, enabled: bool, on: bool) -> egui::Response {
    let button = egui::Button::new(RichText::new(icon).size(16.0)).selected(on).min_size(egui::vec2(28.0, 26.0));
    let response = ui.add_enabled(enabled, button);
    response.widget_info(|| egui::WidgetInfo::selected(egui::WidgetType::Button, enabled, on, name));
    response.on_hover_text(name)
}

/// Seconds for people.
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
    /// The panel of tasks at the right.
    pub(crate) fn tasks_panel(&mut self, ui: &mut Ui) {
        let frame = frame(ui);
        egui::Panel::right("tasks").frame(frame).default_size(310.0).size_range(270.0..=520.0).show(ui, |ui| {
            ui.horizontal(|ui| {
                let tasks = [
                    (Task::Predict, "Predict"),
                    (Task::Correct, "Correct"),
                    (Task::Objects, "Objects"),
                    (Task::Train, "Train"),
                ];
                for (task, name) in tasks {
                    if ui.selectable_label(self.panels.task == task, RichText::new(name).size(15.0)).clicked() {
                        self.panels.task = task;
                    }
                }
            });
            ui.separator();
            match self.panels.task {
                Task::Predict => {
                    egui::ScrollArea::vertical().auto_shrink([false; 2]).show(ui, |ui| self.predict_panel(ui));
                }
                Task::Correct => {
                    egui::ScrollArea::vertical().auto_shrink([false; 2]).show(ui, |ui| self.correct_panel(ui));
                }
                Task::Objects => self.objects_panel(ui),
                Task::Train => {
                    egui::ScrollArea::vertical().auto_shrink([false; 2]).show(ui, |ui| self.training_panel(ui));
                }
            }
        });
    }
}
