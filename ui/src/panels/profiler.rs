//! The profiler: stages, timeline, operators and memory of each job.

use super::{frame, icon_button, seconds, weak};
use crate::action::Actions;
use crate::documents::DocumentsAction;
use crate::jobs::Jobs;
use crate::opener::{FileRequest, ProfileFormat};
use crate::screenshots::{ScreenshotSubject, choose_screenshot_file};
use crate::state::State;
use crate::theme;
use crate::work::{JobState, JobView};
use cytoscope_profile::{SpanRecord, Stage, StageTotal, bytes_text};
use cytoscope_worker::JobId;
use eframe::egui::{self, Align2, FontId, Pos2, Rect, RichText, Sense, Ui, pos2, vec2};
use egui_extras::{Column, TableBuilder};
use egui_phosphor::regular as icon;
use egui_plot::{Line, Plot, PlotPoints};
use std::collections::BTreeMap;

/// Height of a timeline lane in points.
const LANE: f32 = 17.0;

/// Spans that extend a lane by less than this many points are not drawn.
const MIN_POINTS: f32 = 0.7;

/// Views of a job's profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ProfileView {
    /// Timeline of spans.
    #[default]
    Flame,
    /// Totals by operator.
    Operators,
    /// Memory over time.
    Memory,
}

/// What the panel keeps between frames.
#[derive(Debug)]
pub(crate) struct ProfilerPanel {
    job: Option<JobId>,
    other: Option<JobId>,
    view: ProfileView,
    search: String,
    /// Visible range of the timeline in µs; `None` shows all.
    window: Option<[f64; 2]>,
    rect: Rect,
}

impl Default for ProfilerPanel {
    fn default() -> Self {
        let (view, search) = (ProfileView::default(), String::new());
        Self { job: None, other: None, view, search, window: None, rect: Rect::NOTHING }
    }
}

impl ProfilerPanel {
    /// The displayed job: the selected one or the newest.
    fn job<'a>(&self, jobs: &'a Jobs) -> Option<&'a JobView> {
        let chosen = self.job.and_then(|id| jobs.get(id));
        chosen.or_else(|| jobs.all().iter().rev().find(|j| j.state != JobState::Queued))
    }

    /// Area of the panel on screen.
    pub(crate) fn rect(&self) -> Rect {
        self.rect
    }
}

/// Totals of one operator.
struct Row {
    stage: Stage,
    name: String,
    count: u64,
    seconds: f64,
    bytes: u64,
    macs: u64,
}

/// Totals by stage and name, longest first.
fn rows(spans: &[SpanRecord]) -> Vec<Row> {
    let mut sums: BTreeMap<(Stage, &str), Row> = BTreeMap::new();
    for span in spans {
        let row = sums.entry((span.stage, span.name.as_ref())).or_insert_with(|| Row {
            stage: span.stage,
            name: span.name.to_string(),
            count: 0,
            seconds: 0.0,
            bytes: 0,
            macs: 0,
        });
        row.count += 1;
        row.seconds += span.duration_us / 1e6;
        row.bytes += span.bytes;
        row.macs += span.macs;
    }
    let mut rows: Vec<Row> = sums.into_values().collect();
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    rows
}

/// The operator table as CSV.
pub(crate) fn csv(job: &JobView) -> String {
    let mut text = "stage,name,count,seconds,bytes,macs\n".to_owned();
    for row in rows(&job.spans) {
        let name = row.name.replace('"', "\"\"");
        let line =
            format!("{},\"{name}\",{},{},{},{}\n", row.stage.name(), row.count, row.seconds, row.bytes, row.macs);
        text.push_str(&line);
    }
    text
}

/// Time and bytes of the stages that are not nested in others, so that their shares add up: operators are part of
/// `compute`, decoding is part of `read`.
fn own_stages(totals: &[StageTotal]) -> Vec<(Stage, f64, u64)> {
    let kept = totals.iter().filter(|t| !t.stage.is_nested() && t.seconds > 0.0);
    kept.map(|t| (t.stage, t.seconds, t.bytes)).collect()
}

fn job_seconds(job: &JobView) -> f64 {
    match job.state {
        JobState::Running => job.started.map_or(0.0, |s| s.elapsed().as_secs_f64()),
        _ => job.seconds,
    }
}

/// Draws the panel.
pub(super) fn profiler_panel(ui: &mut Ui, state: State<'_>, own: &mut ProfilerPanel, actions: &mut Actions) {
    let frame = frame(ui);
    let panel = egui::Panel::bottom("profiler")
        .frame(frame)
        .resizable(true)
        .default_size(270.0)
        .size_range(150.0..=620.0)
        .show(ui, |ui| {
            let Some(job) = own.job(state.jobs) else {
                ui.label(RichText::new("Profiler").strong());
                weak(ui, "Time and memory of each job are shown here, while it runs and afterwards.");
                ui.allocate_space(ui.available_size());
                return;
            };
            egui::Panel::left("jobs").resizable(true).default_size(230.0).frame(egui::Frame::NONE).show(ui, |ui| {
                job_list(ui, state, own, job.id);
            });
            let frame = egui::Frame::NONE.inner_margin(egui::Margin::same(6));
            egui::CentralPanel::default().frame(frame).show(ui, |ui| profile(ui, state, own, job, actions));
        });
    own.rect = panel.response.rect;
}

fn job_list(ui: &mut Ui, state: State<'_>, own: &mut ProfilerPanel, shown: JobId) {
    ui.label(RichText::new("Jobs").strong());
    egui::ScrollArea::vertical().auto_shrink([false; 2]).show(ui, |ui| {
        for job in state.jobs.all().iter().rev() {
            let (sign, color) = match &job.state {
                JobState::Queued => (icon::HOURGLASS, ui.visuals().weak_text_color()),
                JobState::Running => (icon::PLAY_CIRCLE, theme::ACCENT),
                JobState::Done => (icon::CHECK_CIRCLE, theme::good(ui.visuals())),
                JobState::Failed(_) => (icon::WARNING_CIRCLE, theme::bad(ui.visuals())),
                JobState::Cancelled => (icon::STOP_CIRCLE, ui.visuals().weak_text_color()),
            };
            ui.horizontal(|ui| {
                ui.label(RichText::new(sign).color(color));
                let text = format!("{}  {}", job.title, seconds(job_seconds(job)));
                let response =
                    ui.add(egui::Button::selectable(job.id == shown, RichText::new(text).size(12.5)).truncate());
                let response = match &job.state {
                    JobState::Failed(why) => response.on_hover_text(why),
                    _ => response.on_hover_text("Click to show, Shift-click to compare"),
                };
                if response.clicked() {
                    if ui.input(|i| i.modifiers.shift) && job.id != shown {
                        own.other = Some(job.id);
                    } else {
                        own.job = Some(job.id);
                        own.other = None;
                    }
                    own.window = None;
                }
            });
        }
    });
}

fn profile(ui: &mut Ui, state: State<'_>, own: &mut ProfilerPanel, job: &JobView, actions: &mut Actions) {
    ui.horizontal(|ui| {
        for (view, name) in
            [(ProfileView::Flame, "Timeline"), (ProfileView::Operators, "Operators"), (ProfileView::Memory, "Memory")]
        {
            if ui.selectable_label(own.view == view, name).clicked() {
                own.view = view;
            }
        }
        if let Some(device) = &job.device {
            let text = RichText::new(format!("on {}", device.id)).size(12.0).weak();
            ui.label(text).on_hover_text(format!("{}: {}", device.name, device.why));
        }
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            if icon_button(ui, icon::CAMERA, "Save profile as picture", true, false).clicked() {
                choose_screenshot_file(ScreenshotSubject::Profile, state, actions);
            }
            for (format, sign, name) in [
                (ProfileFormat::Csv, icon::TABLE, "Save operators as CSV"),
                (ProfileFormat::Trace, icon::DOWNLOAD_SIMPLE, "Save as Chrome trace"),
            ] {
                if icon_button(ui, sign, name, !job.spans.is_empty(), false).clicked() {
                    let name = if format == ProfileFormat::Csv { "operators.csv" } else { "trace.json" }.to_owned();
                    let request = FileRequest::Profile(format, job.id);
                    actions.send(DocumentsAction::Ask { request, folder: None, name });
                }
            }
            let search = egui::TextEdit::singleline(&mut own.search).hint_text("Search").desired_width(130.0);
            let response = ui.add(search);
            response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Search spans"));
        });
    });
    stage_bar(ui, job, None);
    if let Some(other) = own.other.and_then(|id| state.jobs.get(id)) {
        let longest = job_seconds(job).max(job_seconds(other));
        stage_bar(ui, other, Some(longest));
        let ratio = job_seconds(other) / job_seconds(job).max(1e-9);
        weak(ui, format!("below: {}, {:.2} times as long", other.title, ratio));
    }
    match own.view {
        ProfileView::Flame => flame(ui, job, own),
        ProfileView::Operators => operators(ui, job, &own.search),
        ProfileView::Memory => memory(ui, job),
    }
    if job.state == JobState::Running {
        ui.ctx().request_repaint_after(std::time::Duration::from_millis(250));
    }
}

/// Draws the stages as shares of a bar; wide ones are labelled.
fn stage_bar(ui: &mut Ui, job: &JobView, whole: Option<f64>) {
    let stages = own_stages(&job.totals);
    let sum: f64 = stages.iter().map(|s| s.1).sum();
    if sum <= 0.0 {
        return;
    }
    let share = whole.map_or(1.0, |w| (job_seconds(job) / w.max(1e-9)).clamp(0.02, 1.0));
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), 22.0), Sense::hover());
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Other, true, "Time by stage"));
    let painter = ui.painter_at(rect);
    let mut left = rect.left();
    let mut under = None;
    for (stage, time, moved) in &stages {
        let width = (time / sum * share) as f32 * rect.width();
        let part = Rect::from_min_size(pos2(left, rect.top()), vec2(width, rect.height()));
        painter.rect_filled(part.shrink2(vec2(0.5, 0.0)), 3.0, theme::stage_color(*stage));
        if width > 58.0 {
            let text = format!("{} {:.0} %", stage.name(), time / sum * 100.0);
            painter.text(part.center(), Align2::CENTER_CENTER, text, FontId::proportional(11.5), egui::Color32::BLACK);
        }
        if response.hover_pos().is_some_and(|p| part.contains(p)) {
            under = Some(format!("{}: {}, {}", stage.name(), seconds(*time), bytes_text(*moved)));
        }
        left += width;
    }
    if let Some(text) = under {
        response.on_hover_text(text);
    }
}

/// Assigns each span to a lane, one per thread and nesting depth. Returns the spans with their lanes, and the number of
/// lanes.
fn lanes(spans: &[SpanRecord]) -> (Vec<(usize, &SpanRecord)>, usize) {
    let mut by_thread: BTreeMap<usize, Vec<&SpanRecord>> = BTreeMap::new();
    spans.iter().for_each(|s| by_thread.entry(s.thread).or_default().push(s));
    let mut placed = Vec::with_capacity(spans.len());
    let mut first = 0;
    for spans in by_thread.values_mut() {
        // An enclosing span starts no later and ends no earlier.
        spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(b.duration_us.total_cmp(&a.duration_us)));
        let mut open: Vec<f64> = Vec::new();
        let mut deepest = 0;
        for span in spans.iter() {
            while open.last().is_some_and(|end| *end <= span.start_us + 0.01) {
                open.pop();
            }
            placed.push((first + open.len(), *span));
            open.push(span.start_us + span.duration_us);
            deepest = deepest.max(open.len());
        }
        first += deepest;
    }
    (placed, first)
}

/// Text of a span under the pointer: stage, name, time, bytes and rate.
fn span_text(span: &SpanRecord) -> String {
    let mut text = format!("{} · {}\n{}", span.stage.name(), span.name, seconds(span.duration_us / 1e6));
    if span.bytes > 0 {
        text.push_str(&format!("\n{}", bytes_text(span.bytes)));
    }
    if span.macs > 0 {
        text.push_str(&format!("\n{:.1} GOP/s", 2.0 * span.macs as f64 / span.duration_us.max(1e-3) / 1e3));
    }
    text
}

fn flame(ui: &mut Ui, job: &JobView, own: &mut ProfilerPanel) {
    if job.spans.is_empty() {
        weak(ui, "No spans yet.");
        return;
    }
    let end = job.spans.iter().map(|s| s.start_us + s.duration_us).fold(1.0, f64::max);
    let (placed, count) = lanes(&job.spans);
    let [mut from, mut to] = own.window.unwrap_or([0.0, end]);
    egui::ScrollArea::vertical().auto_shrink([false; 2]).show(ui, |ui| {
        let size = vec2(ui.available_width(), (count as f32 * LANE + 20.0).max(ui.available_height() - 4.0));
        let (rect, response) = ui.allocate_exact_size(size, Sense::click_and_drag());
        response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Other, true, "Timeline of spans"));
        let width = f64::from(rect.width().max(1.0));
        let per_point = (to - from) / width;
        if response.dragged() {
            let by = f64::from(response.drag_delta().x) * per_point;
            (from, to) = (from - by, to - by);
        }
        if response.hovered() {
            let zoom = ui.input(|i| f64::from(i.zoom_delta()) * (f64::from(i.smooth_scroll_delta().x) / 200.0).exp());
            if (zoom - 1.0).abs() > 1e-4
                && let Some(at) = response.hover_pos()
            {
                let here = from + f64::from(at.x - rect.left()) * per_point;
                (from, to) = (here - (here - from) / zoom, here + (to - here) / zoom);
            }
        }
        if response.double_clicked() {
            (from, to) = (0.0, end);
        }
        let span = (to - from).clamp(1.0, end.max(1.0));
        from = from.clamp(0.0, (end - span).max(0.0));
        to = from + span;
        own.window = (from > 0.0 || to < end).then_some([from, to]);
        let per_point = span / width;
        let painter = ui.painter_at(rect);
        painter.rect_filled(rect, 4.0, ui.visuals().extreme_bg_color);
        let x = |us: f64| rect.left() + ((us - from) / per_point) as f32;
        for i in 1..5 {
            let us = from + span * f64::from(i) / 5.0;
            let text = seconds(us / 1e6);
            let color = ui.visuals().weak_text_color();
            painter.text(pos2(x(us), rect.top() + 1.0), Align2::CENTER_TOP, text, FontId::proportional(10.5), color);
        }
        let query = own.search.to_lowercase();
        let mut under: Option<&SpanRecord> = None;
        // End of the last bar in each lane, so that thousands of tiny spans are not drawn over one another.
        let mut drawn_to = vec![f32::NEG_INFINITY; count];
        for (lane, s) in placed {
            let (left, right) = (x(s.start_us), x(s.start_us + s.duration_us));
            if right < rect.left() || left > rect.right() || right <= drawn_to[lane] + MIN_POINTS {
                continue;
            }
            let right = right.max(left + MIN_POINTS);
            drawn_to[lane] = right;
            let top = rect.top() + 16.0 + lane as f32 * LANE;
            let bar = Rect::from_min_max(pos2(left, top), pos2(right, top + LANE - 2.0));
            let found = query.is_empty() || s.name.to_lowercase().contains(&query) || s.stage.name().contains(&query);
            let color = theme::stage_color(s.stage).gamma_multiply(if found { 1.0 } else { 0.25 });
            painter.rect_filled(bar, 2.0, color);
            if bar.width() > 44.0 {
                let clip = bar.intersect(rect).shrink2(vec2(3.0, 0.0));
                let at = Pos2::new(clip.left(), bar.center().y);
                let font = FontId::proportional(11.0);
                painter.with_clip_rect(clip).text(at, Align2::LEFT_CENTER, &s.name, font, egui::Color32::BLACK);
            }
            if response.hover_pos().is_some_and(|p| bar.contains(p)) {
                under = Some(s);
            }
        }
        if let Some(s) = under {
            response.on_hover_text_at_pointer(span_text(s));
        }
    });
}

fn operators(ui: &mut Ui, job: &JobView, search: &str) {
    let query = search.to_lowercase();
    let mut rows = rows(&job.spans);
    let whole: f64 = rows.iter().filter(|r| !r.stage.is_nested()).map(|r| r.seconds).sum();
    rows.retain(|r| query.is_empty() || r.name.to_lowercase().contains(&query) || r.stage.name().contains(&query));
    let columns = ["Stage", "Name", "Count", "Time", "Share", "GOP/s", "Bytes"];
    TableBuilder::new(ui)
        .striped(true)
        .column(Column::initial(84.0))
        .column(Column::remainder().at_least(120.0).clip(true))
        .columns(Column::initial(78.0), 5)
        .header(20.0, |mut header| {
            for name in columns {
                header.col(|ui| _ = ui.label(RichText::new(name).strong().size(12.0)));
            }
        })
        .body(|body| {
            body.rows(19.0, rows.len(), |mut line| {
                let row = &rows[line.index()];
                let rate = 2.0 * row.macs as f64 / row.seconds.max(1e-12) / 1e9;
                let cells = [
                    row.stage.name().to_owned(),
                    row.name.clone(),
                    row.count.to_string(),
                    seconds(row.seconds),
                    format!("{:.1} %", row.seconds / whole.max(1e-12) * 100.0),
                    if row.macs > 0 { format!("{rate:.1}") } else { String::new() },
                    if row.bytes > 0 { bytes_text(row.bytes) } else { String::new() },
                ];
                for cell in cells {
                    line.col(|ui| _ = ui.add(egui::Label::new(RichText::new(cell).size(12.0)).truncate()));
                }
            });
        });
}

fn memory(ui: &mut Ui, job: &JobView) {
    if job.marks.is_empty() {
        weak(ui, "No memory samples yet.");
        return;
    }
    let points: Vec<[f64; 2]> =
        job.marks.iter().map(|m| [m.at_us / 1e6, m.resident_bytes as f64 / 1_048_576.0]).collect();
    Plot::new("memory").allow_scroll(false).include_y(0.0).x_axis_label("Seconds").y_axis_label("MiB").show(
        ui,
        |plot| {
            plot.line(Line::new("resident memory", PlotPoints::from(points)).color(theme::ACCENT).fill(0.0));
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    fn span(name: &'static str, thread: usize, start_us: f64, duration_us: f64) -> SpanRecord {
        let name = Cow::Borrowed(name);
        SpanRecord { stage: Stage::Op, name, start_us, duration_us, thread, bytes: 1, voxels: 0, macs: 0 }
    }

    #[test]
    fn nested_spans_and_threads_have_their_own_lanes() {
        let spans = [
            span("outer", 0, 0.0, 100.0),
            span("inner", 0, 10.0, 20.0),
            span("next", 0, 30.0, 20.0),
            span("o", 1, 5.0, 9.0),
        ];
        let (placed, count) = lanes(&spans);
        let lane = |name: &str| placed.iter().find(|(_, s)| s.name == name).map(|(l, _)| *l);
        assert_eq!((lane("outer"), lane("inner"), lane("next"), lane("o")), (Some(0), Some(1), Some(1), Some(2)));
        assert_eq!(count, 3);
    }

    #[test]
    fn totals_are_by_name_longest_first() {
        let rows = rows(&[span("a", 0, 0.0, 5e6), span("b", 0, 0.0, 9e6), span("a", 1, 0.0, 6e6)]);
        assert_eq!((rows[0].name.as_str(), rows[0].count, rows[0].bytes), ("a", 2, 2));
        assert!((rows[0].seconds - 11.0).abs() < 1e-9);
    }
}
