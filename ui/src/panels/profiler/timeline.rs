//! The timeline: every span in a lane of its thread.

use crate::panels::seconds;
use crate::theme;
use cytoscope_profile::{SpanRecord, bytes_text, time_text};
use eframe::egui::{self, Align2, FontId, Key, Pos2, Rect, Sense, Stroke, StrokeKind, Ui, pos2, vec2};
use std::collections::BTreeMap;

/// Height of a timeline lane in points.
const LANE: f32 = 17.0;

/// Spans that extend a lane by less than this many points are not drawn.
const MIN_POINTS: f32 = 0.7;

/// Factor by which a key zooms the timeline.
const KEY_ZOOM: f64 = 1.25;

/// Share of the visible range by which a key moves the timeline.
const KEY_PAN: f64 = 0.1;

/// The lanes of a run's spans, one per thread and nesting depth; too slow to compute in every frame.
#[derive(Debug)]
pub(super) struct Lanes {
    /// Lane and index of each span, lane by lane in the order of the starts.
    placed: Vec<(usize, usize)>,
    /// Number of lanes.
    count: usize,
    /// End of the last span in µs, at least 1.
    end_us: f64,
}

impl Lanes {
    /// Assigns each span to a lane.
    pub(super) fn new(spans: &[SpanRecord]) -> Self {
        let mut by_thread: BTreeMap<usize, Vec<(usize, &SpanRecord)>> = BTreeMap::new();
        for (index, span) in spans.iter().enumerate() {
            by_thread.entry(span.thread).or_default().push((index, span));
        }
        let mut placed = Vec::with_capacity(spans.len());
        let mut first = 0;
        for spans in by_thread.values_mut() {
            // An enclosing span starts no later and ends no earlier.
            spans.sort_by(|(_, a), (_, b)| {
                a.start_us.total_cmp(&b.start_us).then(b.duration_us.total_cmp(&a.duration_us))
            });
            let mut open: Vec<f64> = Vec::new();
            let mut deepest = 0;
            for (index, span) in spans.iter() {
                while open.last().is_some_and(|end| *end <= span.start_us + 0.01) {
                    open.pop();
                }
                placed.push((first + open.len(), *index));
                open.push(span.start_us + span.duration_us);
                deepest = deepest.max(open.len());
            }
            first += deepest;
        }
        let end_us = spans.iter().map(|s| s.start_us + s.duration_us).fold(1.0, f64::max);
        Self { placed, count: first, end_us }
    }
}

/// Text of a span under the pointer: stage, name, time, bytes and rate.
fn span_text(span: &SpanRecord) -> String {
    let mut text = format!("{} · {}\n{}", span.stage.name(), span.shown_name(), time_text(span.duration_us / 1e6));
    if span.bytes > 0 {
        text.push_str(&format!("\n{}", bytes_text(span.bytes)));
    }
    if span.macs > 0 {
        text.push_str(&format!("\n{:.1} GMAC/s", span.macs as f64 / span.duration_us.max(1e-3) / 1e3));
    }
    text
}

/// Labeled times between `from` and `to` in µs, at most six, and their distance: 1, 2 or 5 times a power of ten.
fn ticks(from: f64, to: f64) -> (Vec<f64>, f64) {
    let least = ((to - from) / 6.0).max(1e-3);
    let power = 10f64.powi(least.log10().floor() as i32);
    let step = [1.0, 2.0, 5.0].map(|n| n * power).into_iter().find(|step| *step >= least).unwrap_or(10.0 * power);
    let first = (from / step).floor() + 1.0;
    ((0..6).map(|i| (first + f64::from(i)) * step).take_while(|us| *us < to).collect(), step)
}

/// The label of a time, with the digits that ticks at this distance need.
fn tick_text(us: f64, step_us: f64) -> String {
    let digits = |unit_us: f64| (unit_us / step_us).log10().ceil().max(0.0) as usize;
    if step_us >= 1e6 {
        seconds(us / 1e6)
    } else if us >= 1e6 {
        format!("{:.*} s", digits(1e6), us / 1e6)
    } else {
        format!("{:.*} ms", digits(1e3), us / 1e3)
    }
}

/// A range of this length in µs, moved so that it lies between 0 and `end`, if it fits.
fn clamped([from, to]: [f64; 2], end: f64) -> [f64; 2] {
    let span = (to - from).clamp(1.0, end.max(1.0));
    let from = from.clamp(0.0, (end - span).max(0.0));
    [from, from + span]
}

/// A range in µs after zooming; the time `fixed` stays in its place.
fn zoomed([from, to]: [f64; 2], fixed: f64, factor: f64) -> [f64; 2] {
    [fixed - (fixed - from) / factor, fixed + (to - fixed) / factor]
}

/// The visible range in µs after the gestures and keys of this frame.
fn moved(ui: &Ui, response: &egui::Response, [mut from, mut to]: [f64; 2], end: f64) -> [f64; 2] {
    let rect = response.rect;
    let per_point = (to - from) / f64::from(rect.width().max(1.0));
    if response.dragged() {
        let by = f64::from(response.drag_delta().x) * per_point;
        (from, to) = (from - by, to - by);
    }
    if response.hovered() {
        let zoom = ui.input(|i| f64::from(i.zoom_delta()) * (f64::from(i.smooth_scroll_delta().x) / 200.0).exp());
        if (zoom - 1.0).abs() > 1e-4
            && let Some(at) = response.hover_pos()
        {
            [from, to] = zoomed([from, to], from + f64::from(at.x - rect.left()) * per_point, zoom);
        }
    }
    if response.clicked() {
        response.request_focus();
    }
    if response.double_clicked() {
        (from, to) = (0.0, end);
    }
    if response.has_focus() {
        // Otherwise the arrow keys would move the focus.
        let filter = egui::EventFilter { horizontal_arrows: true, ..Default::default() };
        ui.memory_mut(|memory| memory.set_focus_lock_filter(response.id, filter));
        ui.input(|i| {
            for (key, factor) in [(Key::Plus, KEY_ZOOM), (Key::Equals, KEY_ZOOM), (Key::Minus, 1.0 / KEY_ZOOM)] {
                if i.key_pressed(key) && !i.modifiers.command {
                    [from, to] = zoomed([from, to], (from + to) / 2.0, factor);
                }
            }
            for (key, share) in [(Key::ArrowLeft, -KEY_PAN), (Key::ArrowRight, KEY_PAN)] {
                if i.key_pressed(key) {
                    let by = (to - from) * share;
                    (from, to) = (from + by, to + by);
                }
            }
            if i.key_pressed(Key::Home) {
                (from, to) = (0.0, end);
            }
        });
    }
    clamped([from, to], end)
}

/// Draws the timeline. `window` is its visible range in µs, `None` for all; spans that match `search` are bright.
pub(super) fn timeline(ui: &mut Ui, spans: &[SpanRecord], lanes: &Lanes, window: &mut Option<[f64; 2]>, search: &str) {
    let end = lanes.end_us;
    egui::ScrollArea::vertical().auto_shrink([false; 2]).show(ui, |ui| {
        let size = vec2(ui.available_width(), (lanes.count as f32 * LANE + 20.0).max(ui.available_height() - 4.0));
        let (rect, response) = ui.allocate_exact_size(size, Sense::click_and_drag());
        let [from, to] = moved(ui, &response, window.unwrap_or([0.0, end]), end);
        *window = (from > 0.0 || to < end).then_some([from, to]);
        let name = format!("Timeline of spans, {} to {}", seconds(from / 1e6), seconds(to / 1e6));
        response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, &name));
        let per_point = (to - from) / f64::from(rect.width().max(1.0));
        let painter = ui.painter_at(rect);
        let shown = painter.clip_rect();
        painter.rect_filled(rect, 4.0, ui.visuals().extreme_bg_color);
        let x = |us: f64| rect.left() + ((us - from) / per_point) as f32;
        let (times, step) = ticks(from, to);
        // Labels at the ends would be cut off.
        for us in times.into_iter().filter(|us| rect.shrink2(vec2(30.0, 0.0)).x_range().contains(x(*us))) {
            let (at, color) = (pos2(x(us), rect.top() + 1.0), ui.visuals().weak_text_color());
            painter.text(at, Align2::CENTER_TOP, tick_text(us, step), FontId::proportional(10.5), color);
        }
        let query = search.to_lowercase();
        let mut under: Option<&SpanRecord> = None;
        // End of the last bar in each lane, so that thousands of tiny spans are not drawn over one another.
        let mut drawn_to = vec![f32::NEG_INFINITY; lanes.count];
        for &(lane, index) in &lanes.placed {
            let Some(s) = spans.get(index) else { continue };
            let top = rect.top() + 16.0 + lane as f32 * LANE;
            // Of a run with many threads, most lanes are scrolled out of view.
            if top > shown.bottom() || top + LANE < shown.top() {
                continue;
            }
            let (left, right) = (x(s.start_us), x(s.start_us + s.duration_us));
            if right < rect.left() || left > rect.right() || right <= drawn_to[lane] + MIN_POINTS {
                continue;
            }
            let right = right.max(left + MIN_POINTS);
            drawn_to[lane] = right;
            let bar = Rect::from_min_max(pos2(left, top), pos2(right, top + LANE - 2.0));
            let found = super::is_found(s.stage, &s.shown_name(), &query);
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
        if response.has_focus() {
            painter.rect_stroke(rect, 4.0, Stroke::new(1.5, theme::ACCENT), StrokeKind::Inside);
        }
        if let Some(s) = under {
            response.on_hover_text_at_pointer(span_text(s));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_profile::Stage;

    fn span(name: &'static str, thread: usize, start_us: f64, duration_us: f64) -> SpanRecord {
        SpanRecord { thread, bytes: 1, ..SpanRecord::new(Stage::Op, name, start_us, duration_us) }
    }

    #[test]
    fn times_are_labeled_at_round_numbers_that_differ() {
        let labels = |from: f64, to: f64| {
            let (times, step) = ticks(from, to);
            times.into_iter().map(|us| tick_text(us, step)).collect::<Vec<_>>()
        };
        assert_eq!(labels(0.0, 836e3), ["200 ms", "400 ms", "600 ms", "800 ms"]);
        assert_eq!(labels(0.0, 1.3e3), ["0.5 ms", "1.0 ms"]);
        assert_eq!(labels(1.2e6, 1.21e6), ["1.202 s", "1.204 s", "1.206 s", "1.208 s"]);
        assert_eq!(labels(0.0, 300e6), ["50.0 s", "1 min 40 s", "2 min 30 s", "3 min 20 s", "4 min 10 s"]);
    }

    #[test]
    fn nested_spans_and_threads_have_their_own_lanes() {
        let spans = [
            span("outer", 0, 0.0, 100.0),
            span("inner", 0, 10.0, 20.0),
            span("next", 0, 30.0, 20.0),
            span("o", 1, 5.0, 9.0),
        ];
        let lanes = Lanes::new(&spans);
        let lane =
            |name: &str| lanes.placed.iter().find(|(_, index)| spans[*index].name == name).map(|(lane, _)| *lane);
        assert_eq!((lane("outer"), lane("inner"), lane("next"), lane("o")), (Some(0), Some(1), Some(1), Some(2)));
        assert_eq!((lanes.count, lanes.end_us), (3, 100.0));
        let none = Lanes::new(&[]);
        assert_eq!((none.count, none.end_us), (0, 1.0));
    }

    #[test]
    fn the_visible_range_stays_within_the_run() {
        assert_eq!(zoomed([0.0, 400.0], 200.0, 2.0), [100.0, 300.0]);
        assert_eq!(zoomed([100.0, 300.0], 100.0, 0.5), [100.0, 500.0], "the time at the pointer stays");
        assert_eq!(clamped([-50.0, 50.0], 400.0), [0.0, 100.0]);
        assert_eq!(clamped([350.0, 450.0], 400.0), [300.0, 400.0]);
        assert_eq!(clamped([-400.0, 800.0], 400.0), [0.0, 400.0]);
        assert_eq!(clamped([200.0, 200.1], 400.0), [200.0, 201.0], "no less than a microsecond");
    }
}
