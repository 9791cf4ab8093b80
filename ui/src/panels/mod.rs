//! Panels and dialogs around the views.
//!
//! A panel reads the states and sends actions. The only data it changes are those that it keeps between frames.

pub(crate) mod axis_marks;
pub mod bars;
mod batch;
mod channels;
mod compare;
mod contrast;
pub mod correct;
mod device_lists;
pub mod dialogs;
pub mod empty;
mod fields;
mod legends;
pub mod library;
mod menu_keys;
mod models;
pub mod objects;
pub mod palette;
mod performance;
pub mod predict;
pub mod profiler;
mod queue;
mod scrolled;
mod series;
mod shortened;
mod sliders;
mod status;
pub mod train;

use crate::action::Actions;
use crate::data::plane::Orientation;
use crate::display::{DisplayAction, PanelTask};
use crate::effect::Wake;
use crate::state::State;
use crate::theme;
use crate::views::layout::Layout;
use crate::work::{JobState, JobView};
use axis_marks::mark_text;
use cytoscope_pipeline::StageProgress;
use cytoscope_pipeline::cards::ModelCard;
use eframe::egui::{self, FontId, Frame, Margin, RichText, Ui};
use egui_plot::AxisHints;
use scrolled::{fixed, scrolled, scrolled_frame, scrolled_in};

pub(crate) use fields::{OptionalNumber, SettingRow, labeled_choice, number_field};
pub(crate) use legends::legend;
pub(crate) use shortened::{button_text, item_text, row_text};

/// State that the panels keep between frames.
pub(crate) struct Panels {
    /// Textures and cameras of the slice views and the 3-D view.
    pub(crate) views: Layout,
    /// Query and selected row of the command palette.
    pub(crate) palette: palette::Palette,
    /// What was typed after the shortcut that has opened a dialog in the last frame.
    pub(crate) typed_ahead: Vec<egui::Event>,
    /// Parsed Markdown of the model's card.
    pub(crate) predict: predict::PredictPanel,
    /// View of the objects and measurements on the axes of its plots.
    pub(crate) objects: objects::ObjectsPanel,
    /// Parsed Markdown of the shown model's card.
    pub(crate) models: models::ModelsPanel,
    /// Profiler panel.
    pub(crate) profiler: profiler::ProfilerPanel,
    /// Thumbnails of training pairs, and the scale of the loss plot.
    pub(crate) train: train::TrainPanel,
}

impl Panels {
    /// Panels that call `wake` whenever something that they load is ready.
    pub(crate) fn new(wake: &Wake) -> Self {
        Self {
            views: Layout::default(),
            palette: palette::Palette::default(),
            typed_ahead: Vec::new(),
            predict: predict::PredictPanel::default(),
            objects: objects::ObjectsPanel::default(),
            models: models::ModelsPanel::default(),
            profiler: profiler::ProfilerPanel::default(),
            train: train::TrainPanel::new(wake),
        }
    }
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

/// A horizontal axis whose marks are labeled as soon as there is space for four characters; by default, plots as narrow as
/// ours label few of them. Labels have the color of text, and do not fade as they get closer.
pub(crate) fn x_axis<'a>(label: impl Into<egui::WidgetText>) -> Vec<AxisHints<'a>> {
    vec![AxisHints::new_x().label(label).label_spacing(34.0..=35.0).formatter(mark_text)]
}

/// A horizontal axis of long numbers, such as those of steps, which do not fade, either.
pub(crate) fn wide_x_axis<'a>(label: impl Into<egui::WidgetText>) -> Vec<AxisHints<'a>> {
    vec![AxisHints::new_x().label(label).label_spacing(60.0..=61.0).formatter(mark_text)]
}

/// A vertical axis whose labels do not fade, either.
pub(crate) fn y_axis<'a>(label: impl Into<egui::WidgetText>) -> Vec<AxisHints<'a>> {
    vec![AxisHints::new_y().label(label).label_spacing(20.0..=21.0).formatter(mark_text)]
}

/// Height in points of the list of a dialog, at most `most`, that leaves `others` points of the window to the rest of the dialog.
pub(crate) fn list_height(ctx: &egui::Context, most: f32, others: f32) -> f32 {
    (ctx.content_rect().height() - others).min(most).max(100.0)
}

/// Draws small text in a weak color.
pub(crate) fn weak(ui: &mut Ui, text: impl Into<String>) -> egui::Response {
    ui.add(egui::Label::new(RichText::new(text).weak().size(12.0)).wrap())
}

/// Draws a text in a row that is filled from its end. By default, it would be aligned to the end of the row, and its rounded
/// position could be one point beyond it.
pub(crate) fn end_text(ui: &mut Ui, text: impl Into<egui::WidgetText>) -> egui::Response {
    ui.add(egui::Label::new(text).halign(egui::Align::LEFT))
}

/// Draws a link that stays in one piece: one that is wrapped would lie beside other links on both of its lines. In a row that
/// wraps, it moves to the next line if it does not fit.
pub(crate) fn whole_link(ui: &mut Ui, text: &str) -> egui::Response {
    // The link is drawn in the row itself: in a scope, it would not move to the next line, but widen the panel.
    let before = ui.style_mut().wrap_mode.replace(egui::TextWrapMode::Extend);
    let response = ui.link(text);
    ui.style_mut().wrap_mode = before;
    response
}

/// Returns the text with a capital at its start.
pub(crate) fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

/// Returns the text with a full stop at its end, unless it ends a sentence already.
pub(crate) fn with_stop(text: &str) -> String {
    let stop = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{text}{stop}")
}

/// A button in the color of main buttons; a plain one if it is disabled.
pub(crate) fn filled_button(text: RichText, enabled: bool) -> egui::Button<'static> {
    match enabled {
        true => egui::Button::new(text.color(theme::ON_ACCENT)).fill(theme::ACCENT),
        false => egui::Button::new(text),
    }
}

/// The main button of a panel; its accessible name is `name` followed by "this stack".
pub(crate) fn main_button(ui: &mut Ui, enabled: bool, icon: &str, name: &str) -> egui::Response {
    let size = egui::vec2(ui.available_width(), theme::MAIN_BUTTON_HEIGHT);
    let label = RichText::new(format!("{icon}  {name}")).size(15.0).strong();
    let button = filled_button(label, enabled);
    // A centered layout of the button's size also centers its text.
    let layout = egui::Layout::centered_and_justified(egui::Direction::LeftToRight);
    let response = ui.allocate_ui_with_layout(size, layout, |ui| ui.add_enabled(enabled, button)).inner;
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, format!("{name} this stack")));
    response
}

/// Size of the icons of icon buttons, in points.
pub(crate) const ICON: f32 = 16.0;

/// Height of icon buttons in points: their icons are larger than the text of others.
pub(crate) fn icon_button_height(ui: &Ui) -> f32 {
    let icon_height = ui.ctx().fonts_mut(|fonts| fonts.row_height(&FontId::proportional(ICON)));
    (icon_height + 2.0 * ui.spacing().button_padding.y).max(ui.spacing().interact_size.y)
}

/// Draws a row with icon buttons. Labels are placed in the middle of a row of this height.
pub(crate) fn icon_row<R>(ui: &mut Ui, add: impl FnOnce(&mut Ui) -> R) -> R {
    let usual = ui.spacing().interact_size.y;
    ui.spacing_mut().interact_size.y = icon_button_height(ui);
    let added = ui.horizontal(add).inner;
    ui.spacing_mut().interact_size.y = usual;
    added
}

/// An icon button whose name is its tooltip, also while it is disabled, and its accessible name.
pub(crate) fn icon_button(ui: &mut Ui, icon: &str, name: &str, enabled: bool, on: bool) -> egui::Response {
    let button =
        egui::Button::new(RichText::new(icon).size(ICON)).selected(on).min_size(egui::vec2(28.0, theme::BUTTON_HEIGHT));
    let response = ui.add_enabled(enabled, button);
    response.widget_info(|| egui::WidgetInfo::selected(egui::WidgetType::Button, enabled, on, name));
    response.on_hover_text(name).on_disabled_hover_text(name)
}

/// A button with the icon `sign` before its text, which is also its accessible name.
pub(crate) fn named_button(ui: &mut Ui, enabled: bool, sign: &str, name: &str) -> egui::Response {
    let response = ui.add_enabled(enabled, egui::Button::new(format!("{sign}  {name}")));
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, name));
    response
}

/// Like [`named_button`], filled: the button that does what a dialog is for.
pub(crate) fn named_primary_button(ui: &mut Ui, enabled: bool, sign: &str, name: &str) -> egui::Response {
    let response = ui.add_enabled(enabled, filled_button(RichText::new(format!("{sign}  {name}")), enabled));
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, name));
    response
}

/// Title of a model, with its name if another one of `all` has the same title.
fn distinct_title(model: &ModelCard, all: &[ModelCard]) -> String {
    let is_ambiguous = all.iter().any(|other| other.title == model.title && other.name != model.name);
    match &model.title {
        title if is_ambiguous && *title != model.name => format!("{title} ({})", model.name),
        title => title.clone(),
    }
}

/// Draws the headline of a page, and the button that leaves it.
fn page_top(ui: &mut Ui, title: &str, actions: &mut Actions) {
    let frame = frame(ui);
    egui::Panel::top("page top").frame(frame).show(ui, |ui| {
        ui.horizontal(|ui| {
            if named_button(ui, true, egui_phosphor::regular::ARROW_LEFT, "Back to the stacks").clicked() {
                actions.send(DisplayAction::Task(PanelTask::Predict));
            }
            ui.label(RichText::new(title).strong().size(18.0));
        });
    });
}

/// Formats a duration for display.
pub(crate) fn seconds(s: f64) -> String {
    if s < 0.9995 {
        return format!("{:.0} ms", s * 1e3);
    }
    if s < 89.95 {
        return format!("{s:.1} s");
    }
    // Rounded before it is split, so that no part is 60.
    match s.round() as u64 {
        whole @ ..5400 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => {
            let minutes = (s / 60.0).round() as u64;
            format!("{} h {:02} min", minutes / 60, minutes % 60)
        }
    }
}

/// Number of the input, stage, share and remaining time of a job in one line; empty until they are known.
fn progress_text(job: &JobView) -> String {
    let Some(progress) = &job.progress else { return String::new() };
    let input_number = job.input_of.filter(|[_, count]| *count > 1);
    let mut parts: Vec<String> =
        input_number.map(|[number, count]| format!("{number} of {count}")).into_iter().collect();
    parts.push(progress.stage.to_string());
    match job.preparing_secs() {
        // How long it takes is unknown.
        Some((_, secs)) => parts.push(format!("{secs} s")),
        None if progress.share() > 0.0 => parts.push(format!("{:.0} %", progress.share() * 100.0)),
        None => {}
    }
    parts.extend(remaining_text(progress));
    parts.join(" · ")
}

/// Remaining time of a stage, once it is known.
pub(crate) fn remaining_text(progress: &StageProgress) -> Option<String> {
    let is_known = progress.eta_secs.is_finite() && progress.eta_secs > 0.5;
    is_known.then(|| format!("{} remaining", seconds(progress.eta_secs)))
}

/// Draws the progress of a waiting or running job.
pub(crate) fn job_progress(ui: &mut Ui, job: &JobView) {
    if job.state == JobState::Queued {
        weak(ui, "Waiting for another job…");
        return;
    }
    ui.add(egui::ProgressBar::new(job.share()).desired_height(8.0).desired_width(320.0));
    weak(ui, capitalized(&progress_text(job)));
    // Keeps the remaining time up to date between events.
    ui.ctx().request_repaint_after(std::time::Duration::from_millis(500));
}

/// Width of the window in points below which stacks and tasks share a panel, so that the views keep about half of the width.
const NARROW_WINDOW: f32 = 900.0;

/// Draws all panels and, in the center, the views; returns the area of the center.
pub(crate) fn show(ui: &mut Ui, state: State<'_>, panels: &mut Panels, actions: &mut Actions) -> egui::Rect {
    let settings = state.settings();
    let is_narrow = ui.available_width() < NARROW_WINDOW;
    bars::top_bar(ui, state, actions);
    queue::queue_bar(ui, state, actions);
    train::training_bar(ui, state, actions);
    let has_documents = !state.documents.all().is_empty();
    let task = state.display.task();
    let training = task == PanelTask::Train;
    let shows_views = has_documents && !task.is_page();
    // The views keep the values of the last frame in which they were shown.
    status::status_bar(ui, state, panels.views.hover().filter(|_| shows_views), actions);
    if settings.show_profiler {
        profiler::profiler_panel(ui, state, &mut panels.profiler, actions);
    }
    let (with_library, with_tasks) = (shows_views && settings.show_library, shows_views && settings.show_tasks);
    let share_panel = is_narrow && with_library && with_tasks;
    if with_library && !share_panel {
        library::library_panel(ui, state, actions);
    }
    if training || with_tasks {
        tasks_panel(ui, state, panels, share_panel, actions);
    }
    let frame = Frame::new().fill(ui.visuals().panel_fill);
    let center = egui::CentralPanel::default().frame(frame).show(ui, |ui| match task {
        PanelTask::Train => train::training_page(ui, state, &mut panels.train, actions),
        PanelTask::Models => models::models_page(ui, state, &mut panels.models, actions),
        PanelTask::Batch => batch::batch_page(ui, state, actions),
        _ if has_documents => bars::center(ui, state, &mut panels.views, actions),
        _ => empty::empty(ui, state, actions),
    });
    center.response.rect
}

/// Draws the stacks and their channels at the top of the task panel, where they take at most half of its height.
fn library_in_tasks(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    egui::CollapsingHeader::new("Stacks and channels").show(ui, |ui| {
        let height = ui.available_height() / 2.0;
        let scroll = egui::ScrollArea::vertical().id_salt("library in tasks").auto_shrink([false, true]);
        scrolled_in(ui, scroll.max_height(height), |ui| library::library(ui, state, actions));
    });
    fixed(ui, Ui::separator);
}

/// Draws the task panel on the right; with the content of the library if `has_library`.
fn tasks_panel(ui: &mut Ui, state: State<'_>, panels: &mut Panels, has_library: bool, actions: &mut Actions) {
    let frame = scrolled_frame(ui);
    egui::Panel::right("tasks").frame(frame).default_size(310.0).size_range(270.0..=520.0).show(ui, |ui| {
        if has_library {
            library_in_tasks(ui, state, actions);
        }
        let shown = state.display.task();
        fixed(ui, |ui| task_tabs(ui, shown, actions));
        match shown {
            PanelTask::Predict => {
                let visible_yx = state.document().and_then(|shown| panels.views.view(Orientation::Xy).visible(shown));
                let panel = &mut panels.predict;
                scrolled(ui, "predict", |ui| predict::predict_panel(ui, state, panel, visible_yx, actions));
            }
            PanelTask::Correct => {
                scrolled(ui, "correct", |ui| correct::correct_panel(ui, state, actions));
            }
            PanelTask::Objects => fixed(ui, |ui| objects::objects_panel(ui, state, &mut panels.objects, actions)),
            PanelTask::Train => {
                scrolled(ui, "train", |ui| train::training_panel(ui, state, actions));
            }
            // These pages have no panel.
            PanelTask::Models | PanelTask::Batch => {}
        }
    });
}

/// Draws the tabs of the tasks, and a line below them.
fn task_tabs(ui: &mut Ui, shown: PanelTask, actions: &mut Actions) {
    ui.horizontal(|ui| {
        let tasks = [
            (PanelTask::Predict, "Predict"),
            (PanelTask::Correct, "Correct"),
            (PanelTask::Objects, "Objects"),
            (PanelTask::Train, "Train"),
        ];
        for (task, name) in tasks {
            if ui.selectable_label(shown == task, RichText::new(name).size(15.0)).clicked() {
                actions.send(DisplayAction::Task(task));
            }
        }
    });
    ui.separator();
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_pipeline::cards::card;
    use std::path::Path;

    #[test]
    fn models_of_the_same_title_are_listed_with_their_names() {
        let models = [("mine", "train"), ("train", "train"), ("other", "Nuclei")]
            .map(|(name, title)| ModelCard { title: title.to_owned(), ..card(name, Path::new("/no/such/model")) });
        let shown = models.each_ref().map(|model| distinct_title(model, &models));
        assert_eq!(shown, ["train (mine)", "train", "Nuclei"]);
    }

    #[test]
    fn a_text_at_the_end_of_a_row_begins_where_its_place_does() {
        let ctx = egui::Context::default();
        theme::install(&ctx);
        let mut left = f32::NAN;
        let output = ctx.run_ui(egui::RawInput::default(), |ui| {
            ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                left = end_text(ui, "0 %").rect.left()
            });
        });
        let is_there =
            |shape: &egui::Shape| matches!(shape, egui::Shape::Text(text) if (text.pos.x - left).abs() < 0.1);
        assert!(output.shapes.iter().any(|clipped| is_there(&clipped.shape)));
    }

    #[test]
    fn no_part_of_a_duration_is_sixty() {
        let shown = [0.25, 0.9999, 1.04, 89.97, 119.7, 5399.6, 7199.0, 7140.0].map(seconds);
        let expected =
            ["250 ms", "1.0 s", "1.0 s", "1 min 30 s", "2 min 00 s", "1 h 30 min", "2 h 00 min", "1 h 59 min"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn texts_are_capitalized_whatever_letter_they_begin_with() {
        assert_eq!(["", "éclair", "2 tiles", "voxels"].map(capitalized), ["", "Éclair", "2 tiles", "Voxels"]);
    }
}
