//! The timeline: every span in a lane of its thread.

use crate::panels::seconds;
use crate::theme;
use cytoscope_profile::{SpanRecord, bytes_text};
use eframe::egui::{self, Align2, FontId, Pos2, Rect, Sense, Ui, pos2, vec2};
use std::collections::BTreeMap;

/// Height of a timeline lane in points.
const LANE: f32 = 17.0;

/// Spans that extend a lane by less than this many points are not drawn.
const MIN_POINTS: f32 = 0.7;

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

/// Draws the timeline. `window` is its visible range in µs, `None` for all; spans that match `search` are bright.
pub(super) fn timeline(ui: &mut Ui, spans: &[SpanRecord], window: &mut Option<[f64; 2]>, search: &str) {
    let end = spans.iter().map(|s| s.start_us + s.duration_us).fold(1.0, f64::max);
    let (placed, count) = lanes(spans);
    let [mut from, mut to] = window.unwrap_or([0.0, end]);
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
        *window = (from > 0.0 || to < end).then_some([from, to]);
        let per_point = span / width;
        let painter = ui.painter_at(rect);
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
            let found = super::is_found(s.stage, &s.name, &query);
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
        let (placed, count) = lanes(&spans);
        let lane = |name: &str| placed.iter().find(|(_, s)| s.name == name).map(|(l, _)| *l);
        assert_eq!((lane("outer"), lane("inner"), lane("next"), lane("o")), (Some(0), Some(1), Some(1), Some(2)));
        assert_eq!(count, 3);
    }
}
