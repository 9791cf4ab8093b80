//! Panels and dialogs around the views.
//!
//! A panel reads the states and sends actions. The only data it changes are those that it keeps between frames.

pub(crate) mod axis_marks;
pub mod bars;
mod batch;
mod channels;
mod compare;
pub mod correct;
mod device_lists;
pub mod dialogs;
pub mod empty;
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
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::{MAX_THREADS, StageProgress};
use eframe::egui::{self, Frame, Margin, RichText, Ui};
use egui_plot::AxisHints;
use scrolled::{fixed, scrolled, scrolled_frame, scrolled_in};
use std::cell::Cell;

pub(crate) use legends::legend;

/// State that the panels keep between frames.
pub(crate) struct Panels {
    /// Textures and cameras of the slice views and the 3-D view.
    pub(crate) views: Layout,
    /// Query and selected row of the command palette.
    pub(crate) palette: palette::Palette,
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

/// An icon button whose name is its tooltip, also while it is disabled, and its accessible name.
pub(crate) fn icon_button(ui: &mut Ui, icon: &str, name: &str, enabled: bool, on: bool) -> egui::Response {
    let button = egui::Button::new(RichText::new(icon).size(16.0)).selected(on).min_size(egui::vec2(28.0, 26.0));
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

/// Longest text of an item in a menu or list, in characters of Latin script: the longest item is as wide as the list.
const LONGEST_ITEM: f32 = 64.0;

/// Returns the text of an item in a menu or list, without its middle if it is long: names of files often differ at their
/// ends.
pub(crate) fn item_text(text: &str) -> String {
    // Characters of East Asian scripts are twice as wide.
    without_middle(text, LONGEST_ITEM + 1.0, |c| if c < '\u{1100}' || c == '…' { 1.0 } else { 2.0 })
}

/// Returns the text of a button that is as wide as its panel: the icon `sign`, and `text`, without its middle if it does not fit.
pub(crate) fn row_text(ui: &Ui, sign: &str, text: &str) -> String {
    let font = egui::TextStyle::Button.resolve(ui.style());
    let start = format!("{sign}  ");
    let used: f32 = ui.ctx().fonts_mut(|fonts| start.chars().map(|c| fonts.glyph_width(&font, c)).sum());
    let text = button_text(ui, text, &font, used);
    start + &text
}

/// Returns the text of a button that fills the available width, without its middle if it does not fit beside `used` points.
pub(crate) fn button_text(ui: &Ui, text: &str, font: &egui::FontId, used: f32) -> String {
    let width = ui.available_width() - 2.0 * ui.spacing().button_padding.x - used - 1.0;
    ui.ctx().fonts_mut(|fonts| {
        let mut estimate = width;
        loop {
            let drawn_width = |fonts: &mut egui::epaint::text::FontsView<'_>, text: String| {
                fonts.layout_no_wrap(text, font.clone(), egui::Color32::PLACEHOLDER).size().x
            };
            // Characters that no font has are drawn as boxes, whose width is not stated.
            let shown = without_middle(text, estimate, |c| match fonts.glyph_width(font, c) {
                width if width > 0.0 => width,
                _ => drawn_width(fonts, c.to_string()),
            });
            // A text may be wider than its characters.
            let drawn = drawn_width(fonts, shown.clone());
            if drawn <= width || estimate <= 0.0 {
                return shown;
            }
            estimate -= (drawn - width).max(1.0);
        }
    })
}

/// Returns the text without its middle if it is wider than `width`; `width_of` returns the width of a character.
fn without_middle(text: &str, width: f32, mut width_of: impl FnMut(char) -> f32) -> String {
    let widths: Vec<f32> = text.chars().map(&mut width_of).collect();
    if widths.iter().sum::<f32>() <= width {
        return text.to_owned();
    }
    let half = (width - width_of('…')) / 2.0;
    let fitting = |widths: &mut dyn Iterator<Item = f32>| {
        let mut used = 0.0;
        let fits = |width: &f32| {
            used += *width;
            used <= half
        };
        widths.take_while(fits).count()
    };
    let (start, end) = (fitting(&mut widths.iter().copied()), fitting(&mut widths.iter().rev().copied()));
    text.chars().take(start).chain(['…']).chain(text.chars().skip(widths.len() - end)).collect()
}

/// Title of a model, with its name if another one of `all` has the same title.
fn distinct_title(model: &ModelCard, all: &[ModelCard]) -> String {
    let is_ambiguous = all.iter().any(|other| other.title == model.title && other.name != model.name);
    match &model.title {
        title if is_ambiguous && *title != model.name => format!("{title} ({})", model.name),
        title => title.clone(),
    }
}

/// Where the label of a setting is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettingRow {
    /// In one line with its field.
    Line,
    /// In the first column of a grid, whose second column has the fields.
    Grid,
}

impl SettingRow {
    /// Draws a setting from its label and its field; returns what `field` returns.
    pub(crate) fn show<R>(self, ui: &mut Ui, label: impl FnOnce(&mut Ui), field: impl FnOnce(&mut Ui) -> R) -> R {
        match self {
            Self::Line => {
                let row = ui.horizontal(|ui| {
                    label(ui);
                    field(ui)
                });
                row.inner
            }
            Self::Grid => {
                label(ui);
                let shown = ui.horizontal(field).inner;
                ui.end_row();
                shown
            }
        }
    }

    /// Draws a drop-down list and its label, which is also its accessible name; `entries` draws the list. A long `selected`
    /// text is cut off where the panel ends. Returns the response of the closed list.
    pub(crate) fn choice(
        self,
        ui: &mut Ui,
        id: &str,
        name: &str,
        selected: &str,
        entries: impl FnOnce(&mut Ui),
    ) -> egui::Response {
        let label = |ui: &mut Ui| {
            ui.label(name);
        };
        let list = |ui: &mut Ui| {
            let combo = egui::ComboBox::from_id_salt(id).selected_text(selected).truncate();
            let response = combo.show_ui(ui, entries).response;
            response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::ComboBox, true, name));
            response
        };
        let usual = ui.spacing().interact_size.y;
        // Labels are placed in the middle of a row of this height. A list is higher, because it contains an icon.
        ui.spacing_mut().interact_size.y = usual.max(ui.spacing().icon_width + 2.0 * ui.spacing().button_padding.y);
        let response = self.show(ui, label, list);
        ui.spacing_mut().interact_size.y = usual;
        response
    }
}

/// A drop-down list in one line with its label, as [`SettingRow::choice`] draws it.
pub(crate) fn labeled_choice(
    ui: &mut Ui,
    id: &str,
    name: &str,
    selected: &str,
    entries: impl FnOnce(&mut Ui),
) -> egui::Response {
    SettingRow::Line.choice(ui, id, name, selected, entries)
}

/// A number field; returns whether the value changed.
pub(crate) fn number_field(
    ui: &mut Ui,
    value: &mut f64,
    range: std::ops::RangeInclusive<f64>,
    speed: f64,
    name: &str,
) -> bool {
    let response = ui.add(egui::DragValue::new(value).range(range).speed(speed));
    response.widget_info(|| egui::WidgetInfo {
        value: Some(*value),
        ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, name)
    });
    response.changed()
}

/// A number that is left to the program unless the user sets it.
pub(crate) struct OptionalNumber<'a> {
    /// Name of the setting.
    pub(crate) name: &'a str,
    /// Unit that is shown after the number.
    pub(crate) unit: &'a str,
    /// Tooltip: the meaning of the number.
    pub(crate) hint: &'a str,
    /// Text that is shown while no number is set.
    pub(crate) unset: &'a str,
    /// The number at first.
    pub(crate) first: u64,
    /// The numbers that can be set.
    pub(crate) range: std::ops::RangeInclusive<u64>,
}

impl<'a> OptionalNumber<'a> {
    /// A number of threads, at first the number of cores.
    pub(crate) fn threads(hint: &'a str) -> Self {
        let first = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        Self { name: "Threads", unit: "", hint, unset: "automatic", first, range: 1..=MAX_THREADS as u64 }
    }

    /// A limit of memory in MiB, at first 8 GiB.
    pub(crate) fn memory(name: &'a str, hint: &'a str) -> Self {
        Self { name, unit: "MiB", hint, unset: "automatic", first: 8192, range: 1..=1 << 24 }
    }

    /// Draws a checkbox, and a field named after the setting and "number" while it is checked. Returns the new value, once
    /// it has changed.
    pub(crate) fn show(&self, ui: &mut Ui, row: SettingRow, value: Option<u64>) -> Option<Option<u64>> {
        let chosen = Cell::new(value);
        let label = |ui: &mut Ui| {
            let mut is_set = value.is_some();
            if theme::checkbox(ui, &mut is_set, self.name).on_hover_text(self.hint).changed() {
                chosen.set(is_set.then_some(self.first));
            }
        };
        let field = |ui: &mut Ui| match chosen.get() {
            Some(number) => {
                let mut shown = number as f64;
                let name = format!("{} number", self.name);
                let range = *self.range.start() as f64..=*self.range.end() as f64;
                if number_field(ui, &mut shown, range, 1.0, &name) {
                    chosen.set(Some(shown as u64));
                }
                ui.label(self.unit);
            }
            None => _ = weak(ui, self.unset),
        };
        row.show(ui, label, field);
        let chosen = chosen.get();
        (chosen != value).then_some(chosen)
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
    fn long_items_keep_their_start_and_their_end() {
        let long = format!("{}_7.tif", "Zähler_".repeat(20));
        let shown = item_text(&long);
        assert!(shown.starts_with("Zähler_Zähler_") && shown.ends_with("_7.tif"), "{shown}");
        assert_eq!((shown.chars().count(), shown.matches('…').count()), (65, 1));
        let wide = item_text(&"细胞核".repeat(40));
        assert_eq!(wide.chars().count(), 33, "{wide}");
        assert_eq!(item_text("nuclei_raw.tif"), "nuclei_raw.tif");
    }

    #[test]
    fn long_names_of_rows_keep_the_start_and_the_end_that_fit() {
        let shown = [12.0, 11.0, 6.0, 0.0].map(|width| without_middle("stack_12.tif", width, |_| 1.0));
        assert_eq!(shown, ["stack_12.tif", "stack…2.tif", "st…if", "…"]);
        let ctx = egui::Context::default();
        theme::install(&ctx);
        let mut shown = Vec::new();
        let _ = ctx.run_ui(egui::RawInput::default(), |ui| {
            ui.set_max_width(200.0);
            shown = [1, 2].map(|n| row_text(ui, "+", &format!("{}_pos{n}.tif", "embryo_".repeat(20)))).to_vec();
            shown.push(row_text(ui, "+", "a.tif"));
            // No font of the test has these characters, which are drawn as boxes.
            let (boxes, font) = (row_text(ui, "+", &"細胞核".repeat(20)), egui::TextStyle::Button.resolve(ui.style()));
            let drawn = ui.ctx().fonts_mut(|f| f.layout_no_wrap(boxes, font, egui::Color32::WHITE).size().x);
            assert!(drawn > 80.0 && drawn <= 200.0 - 2.0 * ui.spacing().button_padding.x, "{drawn}");
        });
        assert!(
            matches!(&shown[..], [one, two, short] if one.ends_with("_pos1.tif") && two.ends_with("_pos2.tif")
            && one.starts_with("+  embryo_") && one.chars().count() < 40 && short == "+  a.tif"),
            "{shown:?}"
        );
    }

    #[test]
    fn models_of_the_same_title_are_listed_with_their_names() {
        let models = [("mine", "train"), ("train", "train"), ("other", "Nuclei")]
            .map(|(name, title)| ModelCard { title: title.to_owned(), ..card(name, Path::new("/no/such/model")) });
        let shown = models.each_ref().map(|model| distinct_title(model, &models));
        assert_eq!(shown, ["train (mine)", "train", "Nuclei"]);
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
