//! The profiler: stages, timeline, operators, memory and advice of each run, and two runs side by side.

mod advice;
mod comparison;
mod memory;
mod operators;
mod roofline;
mod timeline;
mod training;

use super::bars::make_room;
use super::{button_text, end_text, frame, icon_button, icon_row, seconds, weak};
use crate::action::Actions;
use crate::command::Command;
use crate::documents::DocumentsAction;
use crate::jobs::{Jobs, JobsAction};
use crate::number_text::counted;
use crate::opener::{FileRequest, ProfileFormat, ProfileTable};
use crate::runs::{DurationHistogram, RunId, ShownRun};
use crate::screenshots::{ScreenshotSubject, choose_screenshot_file};
use crate::state::State;
use crate::theme;
use crate::work::{JobState, JobView};
use comparison::RunComparison;
use cytoscope_profile::{
    Advice, MachinePeak, Slowdown, SpanRecord, SpanTotal, Stage, StageTotal, advise, bytes_text, growing_spans,
    operator_totals, span_totals, step_durations_secs, time_text, total_bytes,
};
use cytoscope_storage::by_count;
use eframe::egui::{self, Align2, FontId, Rect, RichText, Sense, Ui, pos2, vec2};
use egui_phosphor::regular as icon;
use roofline::Roofline;
use std::cell::OnceCell;
use std::time::{Duration, Instant};
use timeline::Lanes;

/// Time after which tables and advice of a running job are computed again.
const DERIVE_EVERY: Duration = Duration::from_secs(1);

/// Minimum height of the panel in points.
const MIN_HEIGHT: f32 = 150.0;

/// Height that the views and their toolbar keep in low windows, in points.
const VIEWS_HEIGHT: f32 = 310.0;

/// Least height of the contents in points: the title, the views, the stages and a few rows. Lower panels are scrolled.
const CONTENT_HEIGHT: f32 = 220.0;

/// The same in narrow panels, in which the names of the views take several rows.
const NARROW_CONTENT_HEIGHT: f32 = 340.0;

/// Width of the panel in points below which it is narrow.
const NARROW_WIDTH: f32 = 900.0;

/// Width of the list of the runs to compare with, in points.
const COMPARE_WIDTH: f32 = 190.0;

/// Number of spans that are listed with the growth of the memory during them.
const GROWING_SPANS: usize = 10;

/// Views of a run's profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ProfileView {
    /// Timeline of spans.
    #[default]
    Timeline,
    /// Changes that would make the run faster or its result better.
    Advice,
    /// Totals by operator.
    Operators,
    /// Operators beside the machine's peak.
    Roofline,
    /// Figures and step times of a training run.
    Training,
    /// Memory over time.
    Memory,
    /// Times of this run beside the times of another one.
    Comparison,
}

/// State that the panel keeps between frames.
#[derive(Debug)]
pub(crate) struct ProfilerPanel {
    /// The selected run; `None` is the newest job.
    shown: Option<RunId>,
    /// The run that it is compared with.
    other: Option<RunId>,
    view: ProfileView,
    search: String,
    /// Visible range of the timeline in µs; `None` shows all.
    window: Option<[f64; 2]>,
    /// The run whose range it is.
    window_of: Option<RunId>,
    /// Number of the newest run from a file that was shown.
    seen_file: u64,
    /// Tables computed from the runs on display.
    derived: Option<Derived>,
    rect: Rect,
}

impl Default for ProfilerPanel {
    fn default() -> Self {
        Self {
            shown: None,
            other: None,
            view: ProfileView::default(),
            search: String::new(),
            window: None,
            window_of: None,
            seen_file: 0,
            derived: None,
            rect: Rect::NOTHING,
        }
    }
}

/// A run and its state at the time when something was computed from it.
type Revision = (RunId, (usize, u64, bool));

/// Tables and advice computed from the runs on display; too slow to compute in every frame.
#[derive(Debug)]
struct Derived {
    revisions: (Revision, Option<Revision>),
    at: Instant,
    advice: Vec<Advice>,
    rows: Vec<SpanTotal>,
    /// The spans during which the memory of the process grew most.
    growing: Vec<SpanRecord>,
    /// Whether a device other than the CPU ran networks.
    used_gpu: bool,
    /// Computed when the timeline is shown.
    lanes: OnceCell<Lanes>,
    roofline: Option<Roofline>,
    steps: Option<DurationHistogram>,
    comparison: Option<RunComparison>,
}

impl Derived {
    fn new(
        run: ShownRun<'_>,
        other: Option<ShownRun<'_>>,
        peak: Option<&MachinePeak>,
        revisions: (Revision, Option<Revision>),
    ) -> Self {
        let operators = operator_totals(run.spans());
        let mut facts = run.facts();
        facts.slowdown = facts.slowdown.or_else(|| Slowdown::of(run.spans()));
        if matches!(run, ShownRun::Job(_)) {
            facts.memory_bytes = total_bytes();
        }
        let roofline = peak.map(|peak| Roofline {
            peak: peak.clone(),
            points: cytoscope_profile::roofline(&operators, peak),
            operators_secs: operators.iter().map(|operator| operator.seconds).sum(),
        });
        Self {
            revisions,
            at: Instant::now(),
            advice: advise(&facts, &operators),
            rows: span_totals(run.spans()),
            growing: growing_spans(run.spans()).into_iter().take(GROWING_SPANS).cloned().collect(),
            used_gpu: facts.used_gpu(),
            lanes: OnceCell::new(),
            roofline,
            steps: DurationHistogram::new(step_durations_secs(run.spans(), run.marks())),
            comparison: other.map(|other| RunComparison::new(run, other)),
        }
    }
}

impl ProfilerPanel {
    /// The displayed run: the selected one, or the newest job, or the newest run from a file.
    fn run<'a>(&self, jobs: &'a Jobs) -> Option<ShownRun<'a>> {
        let selected = self.shown.and_then(|id| jobs.shown_run(id));
        let is_started = |run: &ShownRun<'_>| matches!(run, ShownRun::Job(job) if job.state != JobState::Queued);
        selected
            .or_else(|| jobs.runs().find(is_started))
            .or_else(|| jobs.runs().find(|r| matches!(r, ShownRun::File(_))))
    }

    fn select(&mut self, run: RunId) {
        self.shown = Some(run);
        self.other = None;
        self.window = None;
        if self.view == ProfileView::Comparison {
            self.view = ProfileView::default();
        }
    }

    /// Shows the whole timeline if the visible range is that of another run: the newest job may have changed.
    fn keep_window_of(&mut self, run: RunId) {
        if self.window_of.replace(run) != Some(run) {
            self.window = None;
        }
    }

    fn compare(&mut self, other: Option<RunId>) {
        self.other = other;
        self.view = if other.is_some() { ProfileView::Comparison } else { ProfileView::default() };
    }

    /// Selects a run that was opened since the last frame.
    fn select_opened(&mut self, jobs: &Jobs) {
        if let Some(newest) = jobs.file_runs().last().filter(|f| f.number > self.seen_file) {
            self.seen_file = newest.number;
            self.select(RunId::File(newest.number));
        }
    }

    /// Computes what the views show, if the runs have changed.
    fn derive(&mut self, run: ShownRun<'_>, other: Option<ShownRun<'_>>, peak: Option<&MachinePeak>) {
        let revision = |run: ShownRun<'_>| (run.id(), run.revision());
        let revisions = (revision(run), other.map(revision));
        let ids = |revisions: &(Revision, Option<Revision>)| (revisions.0.0, revisions.1.map(|other| other.0));
        let is_current = |derived: &Derived| {
            let is_recent = run.is_running() && derived.at.elapsed() < DERIVE_EVERY;
            let has_peak = derived.roofline.as_ref().map(|r| &r.peak) == peak;
            has_peak && (derived.revisions == revisions || (is_recent && ids(&derived.revisions) == ids(&revisions)))
        };
        if !self.derived.as_ref().is_some_and(is_current) {
            self.derived = Some(Derived::new(run, other, peak, revisions));
        }
    }

    /// Area of the panel on screen.
    pub(crate) fn rect(&self) -> Rect {
        self.rect
    }
}

/// Whether spans of this stage and name match a search in lower case.
fn is_found(stage: Stage, name: &str, query: &str) -> bool {
    query.is_empty() || name.to_lowercase().contains(query) || stage.name().contains(query)
}

/// What is shown if a search leaves nothing.
fn nothing_matches(search: &str) -> String {
    format!("Nothing matches \"{search}\".")
}

/// Time and bytes of the stages that are not nested in others, so that their shares add up: operators are part of
/// `compute`, decoding is part of `read`.
fn own_stages(totals: &[StageTotal]) -> Vec<(Stage, f64, u64)> {
    let kept = totals.iter().filter(|t| !t.stage.is_nested() && t.seconds > 0.0);
    kept.map(|t| (t.stage, t.seconds, t.bytes)).collect()
}

/// Draws the panel.
pub(super) fn profiler_panel(ui: &mut Ui, state: State<'_>, profiler: &mut ProfilerPanel, actions: &mut Actions) {
    let frame = frame(ui);
    profiler.select_opened(state.jobs);
    // The views keep most of the height at first, and 40 % or, in low windows, `VIEWS_HEIGHT` if the user makes the panel
    // higher.
    let available = ui.available_height();
    let most_height = (available * 0.6).min(available - VIEWS_HEIGHT).clamp(MIN_HEIGHT, 620.0);
    let default_height = (available * 0.4).clamp(MIN_HEIGHT, 300.0).min(most_height);
    let panel = egui::Panel::bottom("profiler")
        .frame(frame)
        .resizable(true)
        .default_size(default_height)
        .size_range(MIN_HEIGHT..=most_height)
        .show(ui, |ui| {
            // A panel that is lower than its contents would be drawn partly behind the views.
            let is_narrow = ui.available_width() < NARROW_WIDTH;
            let least_height = if is_narrow { NARROW_CONTENT_HEIGHT } else { CONTENT_HEIGHT };
            let height = ui.available_height().max(least_height);
            egui::ScrollArea::vertical().id_salt("profiler contents").auto_shrink([false; 2]).show(ui, |ui| {
                ui.set_height(height);
                contents(ui, state, profiler, actions);
            });
        });
    profiler.rect = panel.response.rect;
}

/// Draws the list of runs and, beside it, the selected one.
fn contents(ui: &mut Ui, state: State<'_>, profiler: &mut ProfilerPanel, actions: &mut Actions) {
    let run = profiler.run(state.jobs);
    // Panels set a clip rectangle of their own, which is higher than the part on screen if the contents are scrolled.
    let clip = ui.clip_rect();
    let frame = egui::Frame::NONE.inner_margin(egui::Margin { right: 6, ..egui::Margin::ZERO });
    egui::Panel::left("jobs").resizable(true).default_size(230.0).frame(frame).show(ui, |ui| {
        ui.shrink_clip_rect(clip);
        run_list(ui, state, profiler, run.map(ShownRun::id), actions);
    });
    let frame = egui::Frame::NONE.inner_margin(egui::Margin::same(6));
    egui::CentralPanel::default().frame(frame).show(ui, |ui| {
        ui.shrink_clip_rect(clip);
        match run {
            Some(run) => profile(ui, state, profiler, run, actions),
            None => {
                ui.label(RichText::new("Profiler").strong());
                weak(ui, "Time and memory of each job are shown here, while it runs and afterwards.");
                ui.allocate_space(ui.available_size());
            }
        }
    });
}

/// Draws the list of runs, newest first.
fn run_list(ui: &mut Ui, state: State<'_>, profiler: &mut ProfilerPanel, shown: Option<RunId>, actions: &mut Actions) {
    icon_row(ui, |ui| {
        ui.label(RichText::new("Runs").strong());
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            let command = Command::OpenRun;
            let open = icon_button(ui, command.icon(), command.title(), true, false);
            if open.on_hover_text("A trace that was saved here, or a trace or report of the command line").clicked() {
                actions.command(command);
            }
        });
    });
    egui::ScrollArea::vertical().auto_shrink([false; 2]).show(ui, |ui| {
        for run in state.jobs.runs() {
            run_row(ui, profiler, run, shown, actions);
        }
    });
}

fn run_row(ui: &mut Ui, profiler: &mut ProfilerPanel, run: ShownRun<'_>, shown: Option<RunId>, actions: &mut Actions) {
    let (sign, color) = match run {
        ShownRun::File(_) => (icon::FILE_TEXT, ui.visuals().weak_text_color()),
        ShownRun::Job(JobView { state, .. }) => match state {
            JobState::Queued => (icon::HOURGLASS, ui.visuals().weak_text_color()),
            JobState::Running => (icon::PLAY_CIRCLE, theme::ACCENT),
            JobState::Done => (icon::CHECK_CIRCLE, theme::good(ui.visuals())),
            JobState::Failed(_) => (icon::WARNING_CIRCLE, theme::bad(ui.visuals())),
            JobState::Canceled => (icon::STOP_CIRCLE, ui.visuals().weak_text_color()),
        },
    };
    ui.horizontal(|ui| {
        ui.label(RichText::new(sign).color(color));
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            if let ShownRun::File(file) = run {
                let close = ui.add(egui::Button::new(RichText::new(icon::X).size(12.0)).frame(false));
                let name = format!("Close {}", run.title());
                close.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, &name));
                if close.on_hover_text("Close").clicked() {
                    actions.send(JobsAction::CloseRun(file.number));
                }
            }
            // Runs of the same stack have the same title, and a long title leaves no room for more in its button.
            let time = seconds(run.wall_secs());
            end_text(ui, RichText::new(&time).weak().size(12.0));
            ui.with_layout(egui::Layout::left_to_right(egui::Align::Center), |ui| {
                let is_shown = Some(run.id()) == shown;
                let font = egui::FontId::proportional(12.5);
                let title = RichText::new(button_text(ui, run.title(), &font, 0.0)).font(font);
                let response = ui.add(egui::Button::selectable(is_shown, title).truncate());
                let name = format!("{}  {time}", run.title());
                response.widget_info(|| egui::WidgetInfo::selected(egui::WidgetType::Button, true, is_shown, &name));
                let response = match run {
                    ShownRun::Job(
                        JobView { state: JobState::Failed(why), .. } | JobView { continued: Some(why), .. },
                    ) => response.on_hover_text(format!("{}\n{why}", run.title())),
                    _ => response.on_hover_text(format!("{}\nClick to show, Shift-click to compare", run.title())),
                };
                if response.clicked() {
                    match ui.input(|i| i.modifiers.shift) && !is_shown {
                        true => profiler.compare(Some(run.id())),
                        false => profiler.select(run.id()),
                    }
                }
            });
        });
    });
}

fn profile(ui: &mut Ui, state: State<'_>, profiler: &mut ProfilerPanel, run: ShownRun<'_>, actions: &mut Actions) {
    let other = profiler.other.filter(|id| *id != run.id()).and_then(|id| state.jobs.shown_run(id));
    let peak = state.jobs.peak_for_run(run);
    profiler.keep_window_of(run.id());
    profiler.derive(run, other, peak);
    let views = views(run, profiler.derived.as_ref());
    if !views.iter().any(|(view, _)| *view == profiler.view) {
        profiler.view = ProfileView::default();
    }
    header(ui, state, profiler, run, actions);
    ui.horizontal_wrapped(|ui| {
        for (view, name) in views {
            if ui.selectable_label(profiler.view == view, name).clicked() {
                profiler.view = view;
            }
        }
        make_room(ui, COMPARE_WIDTH);
        compare_choice(ui, state, profiler, run);
    });
    stage_bar(ui, run, None);
    if let Some(other) = other {
        stage_bar(ui, other, Some(run.wall_secs().max(other.wall_secs())));
        let ratio = other.wall_secs() / run.wall_secs().max(1e-9);
        weak(ui, format!("below: {}, {ratio:.2} times as long", other.title()));
    }
    if run.spans_not_kept() > 0 && matches!(profiler.view, ProfileView::Timeline | ProfileView::Operators) {
        let were = by_count(run.spans_not_kept(), "was", "were");
        let spans = counted(run.spans_not_kept(), "span");
        weak(ui, format!("{spans} {were} left out; the stages include all."));
    }
    if let Some(derived) = &profiler.derived {
        match (profiler.view, &derived.comparison) {
            (ProfileView::Advice, _) => advice::advice(ui, state, run, &derived.advice, actions),
            (ProfileView::Training, _) => training::training(ui, run, derived.steps.as_ref()),
            (ProfileView::Memory, _) => memory::memory(ui, run, &derived.growing),
            (ProfileView::Comparison, Some(compared)) => {
                if let Some(other) = other {
                    comparison::comparison(ui, [run, other], compared, &profiler.search);
                }
            }
            _ if run.spans().is_empty() => no_spans(ui, run),
            (ProfileView::Operators, _) => {
                let roofline = derived.roofline.as_ref();
                operators::operators(ui, &derived.rows, roofline, &profiler.search, derived.used_gpu)
            }
            (ProfileView::Roofline, _) => {
                let can_measure = state.jobs.can_measure_peak(run);
                roofline::roofline(ui, derived.roofline.as_ref(), &profiler.search, can_measure, actions);
            }
            (ProfileView::Timeline | ProfileView::Comparison, _) => {
                let lanes = derived.lanes.get_or_init(|| Lanes::new(run.spans()));
                timeline::timeline(ui, run.spans(), lanes, &mut profiler.window, &profiler.search);
            }
        }
    }
    if run.is_running() {
        ui.ctx().request_repaint_after(Duration::from_millis(250));
    }
}

fn no_spans(ui: &mut Ui, run: ShownRun<'_>) {
    let text = match run {
        ShownRun::Job(job) if job.state.is_over() => "The job recorded no spans.",
        ShownRun::Job(_) => "No spans yet.",
        ShownRun::File(_) => "A report holds totals by stage only. Open a trace to see spans and operators.",
    };
    weak(ui, text);
    ui.allocate_space(ui.available_size());
}

/// The views of a run, with their names.
fn views(run: ShownRun<'_>, derived: Option<&Derived>) -> Vec<(ProfileView, String)> {
    let advice = match derived.map_or(0, |d| d.advice.len()) {
        0 => "Advice".to_owned(),
        n => format!("Advice ({n})"),
    };
    let trains = run.training().is_some() || derived.is_some_and(|d| d.steps.is_some());
    let compares = derived.is_some_and(|d| d.comparison.is_some());
    let all = [
        (ProfileView::Timeline, "Timeline".to_owned(), true),
        (ProfileView::Operators, "Operators".to_owned(), true),
        (ProfileView::Roofline, "Roofline".to_owned(), true),
        (ProfileView::Training, "Training steps".to_owned(), trains),
        (ProfileView::Memory, "Memory".to_owned(), true),
        (ProfileView::Advice, advice, true),
        (ProfileView::Comparison, "Comparison".to_owned(), compares),
    ];
    all.into_iter().filter(|(.., exists)| *exists).map(|(view, name, _)| (view, name)).collect()
}

/// Draws title, search and the buttons that save.
fn header(ui: &mut Ui, state: State<'_>, profiler: &mut ProfilerPanel, run: ShownRun<'_>, actions: &mut Actions) {
    icon_row(ui, |ui| {
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            if icon_button(ui, icon::CAMERA, "Save profile as picture", true, false).clicked() {
                choose_screenshot_file(ScreenshotSubject::Profile, state, actions);
            }
            let table = match profiler.view {
                ProfileView::Advice => ProfileTable::Advice,
                ProfileView::Timeline => ProfileTable::Spans,
                ProfileView::Operators => ProfileTable::Operators,
                ProfileView::Roofline => ProfileTable::Roofline,
                ProfileView::Training => ProfileTable::Steps,
                ProfileView::Memory => ProfileTable::Memory,
                ProfileView::Comparison => profiler.other.map_or(ProfileTable::Spans, ProfileTable::Comparison),
            };
            for (format, sign, name, file) in [
                (ProfileFormat::Csv(table), icon::TABLE, "Save view as CSV", table.file_name()),
                (ProfileFormat::Trace, icon::DOWNLOAD_SIMPLE, "Save as Chrome trace", "trace.json"),
            ] {
                let save = icon_button(ui, sign, name, !run.stages().is_empty(), false);
                if save.on_disabled_hover_text("The run has no stages yet.").clicked() {
                    let request = FileRequest::Profile(format, run.id());
                    actions.send(DocumentsAction::Ask { request, folder: None, name: file.to_owned() });
                }
            }
            let search = egui::TextEdit::singleline(&mut profiler.search).hint_text("Search").desired_width(130.0);
            let response = theme::text_field(ui, true, search);
            response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Search spans"));
            ui.with_layout(egui::Layout::left_to_right(egui::Align::Center), |ui| {
                let device = run.device();
                let on = device.as_ref().map_or_else(String::new, |(device, _)| format!(" · on {device}"));
                let title = RichText::new(format!("{}{on}", run.title())).strong();
                let label = ui.add(egui::Label::new(title).truncate());
                if let Some((_, why)) = device {
                    label.on_hover_text(why);
                }
            });
        });
    });
}

/// Choice of the run to compare with.
fn compare_choice(ui: &mut Ui, state: State<'_>, profiler: &mut ProfilerPanel, run: ShownRun<'_>) {
    let before = profiler.other.filter(|id| *id != run.id() && state.jobs.shown_run(*id).is_some());
    let shown = before.and_then(|id| state.jobs.shown_run(id)).map_or("Compare with…", ShownRun::title);
    let mut other = before;
    let response = egui::ComboBox::from_id_salt("compare with")
        .selected_text(shown)
        .width(COMPARE_WIDTH)
        .truncate()
        .show_ui(ui, |ui| {
            ui.selectable_value(&mut other, None, "No comparison");
            for offered in state.jobs.runs().filter(|r| r.id() != run.id()) {
                // Runs of the same stack have the same title.
                let time = seconds(offered.wall_secs());
                let id = Some(offered.id());
                let row = ui.selectable_value(&mut other, id, format!("{}  {time}", offered.title()));
                let name = format!("Compare with {}, {time}", offered.title());
                let is_chosen = other == id;
                row.widget_info(|| {
                    egui::WidgetInfo::selected(egui::WidgetType::SelectableLabel, true, is_chosen, &name)
                });
            }
        })
        .response;
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::ComboBox, true, "Compare with"));
    response.on_hover_text(if before.is_some() { shown } else { "Show the times of another run beside these" });
    if other != before {
        profiler.compare(other);
    }
}

/// Draws the stages as shares of a bar; wide ones are labeled. The bar is as long as the run's share of `whole_secs`.
fn stage_bar(ui: &mut Ui, run: ShownRun<'_>, whole_secs: Option<f64>) {
    let stages = own_stages(run.stages());
    let sum: f64 = stages.iter().map(|s| s.1).sum();
    // A file may hold any numbers.
    if sum <= 0.0 || !sum.is_finite() {
        return;
    }
    let share = whole_secs.map_or(1.0, |whole| (run.wall_secs() / whole.max(1e-9)).clamp(0.02, 1.0));
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), 22.0), Sense::hover());
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Other, true, "Time by stage"));
    let painter = ui.painter_at(rect);
    let mut left = rect.left();
    let mut under = None;
    for (stage, time, moved) in &stages {
        let width = (time / sum * share) as f32 * rect.width();
        let part = Rect::from_min_size(pos2(left, rect.top()), vec2(width, rect.height()));
        painter.rect_filled(part.shrink2(vec2(0.5, 0.0)), 3.0, theme::stage_color(*stage));
        let percent = format!("{:.0} %", time / sum * 100.0);
        // The longest text that fits.
        let texts = [format!("{} {percent}", stage.name()), percent];
        let mut galleys = texts
            .into_iter()
            .map(|text| painter.layout_no_wrap(text, FontId::proportional(11.5), egui::Color32::BLACK));
        if let Some(galley) = galleys.find(|galley| galley.size().x + 8.0 <= width) {
            let at = Align2::CENTER_CENTER.anchor_size(part.center(), galley.size()).min;
            painter.galley(at, galley, egui::Color32::BLACK);
        }
        if response.hover_pos().is_some_and(|p| part.contains(p)) {
            under = Some(format!("{}: {}, {}", stage.name(), time_text(*time), bytes_text(*moved)));
        }
        left += width;
    }
    if let Some(text) = under {
        response.on_hover_text(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_visible_range_of_a_timeline_is_not_that_of_another_run() {
        let mut panel = ProfilerPanel::default();
        let mut shown = |run: u64| {
            panel.keep_window_of(RunId::File(run));
            panel.window.replace([1.0, 2.0])
        };
        assert_eq!([shown(1), shown(1), shown(2), shown(1)], [None, Some([1.0, 2.0]), None, None]);
    }
}
