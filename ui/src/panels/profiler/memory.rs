//! Memory over time, at named moments, and its growth during single spans.

use crate::panels::axis_marks::low_y_marks;
use crate::panels::{item_text, legend, weak, x_axis, y_axis};
use crate::runs::ShownRun;
use crate::theme;
use cytoscope_profile::{DeviceMemory, MemoryMark, SpanRecord, bytes_text, time_text};
use eframe::egui::{self, Color32, RichText, Ui};
use egui_plot::{Line, Plot, PlotPoints, Points};

/// Maximum number of points of a line: more than the plot has pixels would only slow down drawing.
const MAX_POINTS: usize = 4000;
/// Maximum number of marks that are listed; the saved table has all of them.
const LISTED_MARKS: usize = 100;
/// Share of the width that the lists beside the plot have, within these limits in points.
const LIST_SHARE: f32 = 0.35;
const MIN_LIST_WIDTH: f32 = 160.0;
const MAX_LIST_WIDTH: f32 = 360.0;

/// At most [`MAX_POINTS`] of the samples, among them the highest: of neighboring samples, the one with the most bytes.
fn thinned(samples: Vec<(f64, u64)>) -> Vec<(f64, u64)> {
    let per_point = samples.len().div_ceil(MAX_POINTS).max(1);
    if per_point == 1 {
        return samples;
    }
    samples.chunks(per_point).filter_map(|near| near.iter().copied().max_by_key(|(_, bytes)| *bytes)).collect()
}

/// Draws the memory samples of a run, its marks, and the spans during which the memory of the process grew most.
pub(super) fn memory(ui: &mut Ui, run: ShownRun<'_>, growing: &[SpanRecord]) {
    if let Some(peak) = run.facts().peak_bytes {
        weak(ui, format!("Peak {}", bytes_text(peak)));
    }
    let on_device = run.device_samples();
    let highest = |bytes: fn(&DeviceMemory) -> u64| on_device.iter().map(|(_, device)| bytes(device)).max();
    if let Some((allocated, reserved)) = highest(|d| d.allocated_bytes).zip(highest(|d| d.reserved_bytes)) {
        let (allocated, reserved) = (bytes_text(allocated), bytes_text(reserved));
        weak(ui, format!("Device memory: peak {allocated} allocated, {reserved} reserved"));
    }
    if run.marks().is_empty() && growing.is_empty() {
        return timeline(ui, run, &on_device);
    }
    let (size, gap) = (ui.available_size(), ui.spacing().item_spacing.x);
    let list_width = (size.x * LIST_SHARE).clamp(MIN_LIST_WIDTH, MAX_LIST_WIDTH);
    let column = egui::Layout::top_down(egui::Align::Min);
    ui.horizontal_top(|ui| {
        let plot_size = egui::vec2((size.x - list_width - gap).max(0.0), size.y);
        ui.allocate_ui_with_layout(plot_size, column, |ui| timeline(ui, run, &on_device));
        let list_size = egui::vec2(list_width, size.y);
        ui.allocate_ui_with_layout(list_size, column, |ui| {
            let scroll = egui::ScrollArea::vertical().id_salt("memory marks").auto_shrink([false; 2]);
            scroll.show(ui, |ui| {
                marks(ui, run.marks());
                growth(ui, growing);
            });
        });
    });
}

/// Plots the memory over time.
fn timeline(ui: &mut Ui, run: ShownRun<'_>, on_device: &[(f64, DeviceMemory)]) {
    let in_mib = |samples: Vec<(f64, u64)>| -> Vec<[f64; 2]> {
        thinned(samples).into_iter().map(|(secs, bytes)| [secs, bytes as f64 / 1_048_576.0]).collect()
    };
    let (points, arena) = (in_mib(run.memory_samples()), in_mib(run.arena_samples()));
    let device_bytes = |bytes: fn(&DeviceMemory) -> u64| -> Vec<[f64; 2]> {
        in_mib(on_device.iter().map(|(secs, device)| (*secs, bytes(device))).collect())
    };
    let (allocated, reserved) = (device_bytes(|d| d.allocated_bytes), device_bytes(|d| d.reserved_bytes));
    if points.is_empty() {
        weak(ui, if run.is_running() { "No memory samples yet." } else { "This run has no memory samples." });
        return;
    }
    let curves = [
        ("resident memory", theme::ACCENT, points),
        ("engine arena", theme::series_color(1), arena),
        ("device memory allocated", theme::series_color(2), allocated),
        ("device memory reserved", theme::series_color(3), reserved),
    ];
    let shown: Vec<_> = curves.into_iter().filter(|(_, _, points)| !points.is_empty()).collect();
    let marked = in_mib(run.marks().iter().map(|mark| (mark.at_us / 1e6, mark.resident_bytes)).collect());
    let mut names: Vec<(Color32, &str)> = shown.iter().map(|(name, color, _)| (*color, *name)).collect();
    names.extend((!marked.is_empty()).then_some((theme::series_color(4), "marks")));
    if names.len() > 1 {
        legend(ui, names);
    }
    let plot = Plot::new("memory")
        .allow_scroll(false)
        .include_y(0.0)
        .custom_x_axes(x_axis("Seconds"))
        .custom_y_axes(y_axis("MiB"))
        .y_grid_spacer(low_y_marks);
    let response = plot.show(ui, |plot| {
        for (number, (name, color, points)) in shown.into_iter().enumerate() {
            let line = Line::new(name, PlotPoints::from(points)).color(color);
            // The first one is the resident memory.
            plot.line(if number == 0 { line.fill(0.0) } else { line });
        }
        if !marked.is_empty() {
            plot.points(Points::new("marks", PlotPoints::from(marked)).radius(3.0).color(theme::series_color(4)));
        }
    });
    response.response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, "Memory over time"));
}

/// Lists the marks: the memory at named moments.
fn marks(ui: &mut Ui, marks: &[MemoryMark]) {
    if marks.is_empty() {
        return;
    }
    ui.label(RichText::new("Marks").strong());
    for mark in marks.iter().take(LISTED_MARKS) {
        let (bytes, at) = (bytes_text(mark.resident_bytes), time_text(mark.at_us / 1e6));
        weak(ui, format!("{}: {bytes} at {at}", item_text(&mark.label)));
    }
    if marks.len() > LISTED_MARKS {
        weak(ui, format!("{} more in the saved table", marks.len() - LISTED_MARKS));
    }
}

/// Lists the spans with the growth of the memory during them.
fn growth(ui: &mut Ui, growing: &[SpanRecord]) {
    if growing.is_empty() {
        return;
    }
    ui.label(RichText::new("Growth during").strong()).on_hover_text(
        "How much the memory of the process grew during single spans; other threads may have allocated, too",
    );
    for span in growing {
        let bytes = u64::try_from(span.resident_change_bytes.unwrap_or(0)).unwrap_or(0);
        let (stage, name) = (span.stage.name(), item_text(&span.name));
        weak(ui, format!("{stage} ({name}): +{} at {}", bytes_text(bytes), time_text(span.start_us / 1e6)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_timeline_is_thinned_without_losing_its_peak() {
        let short: Vec<(f64, u64)> = (0..MAX_POINTS as u64).map(|i| (i as f64, i % 7)).collect();
        assert_eq!(thinned(short.clone()), short);
        let mut long: Vec<(f64, u64)> = (0..3 * MAX_POINTS as u64 + 1).map(|i| (i as f64, i % 7)).collect();
        long[5001].1 = 900;
        let points = thinned(long);
        assert!(points.len() <= MAX_POINTS && points.len() > MAX_POINTS / 2, "{}", points.len());
        assert!(points.contains(&(5001.0, 900)) && points.is_sorted_by(|a, b| a.0 < b.0));
        assert!(thinned(Vec::new()).is_empty());
    }
}
