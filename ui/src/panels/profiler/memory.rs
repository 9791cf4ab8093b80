//! Memory over time.

use crate::panels::weak;
use crate::runs::Run;
use crate::theme;
use cytoscope_profile::bytes_text;
use eframe::egui::{self, Ui};
use egui_plot::{Line, Plot, PlotPoints};

/// Draws the memory samples of a run.
pub(super) fn memory(ui: &mut Ui, run: Run<'_>) {
    if let Some(peak) = run.facts().peak_bytes {
        weak(ui, format!("Peak {}", bytes_text(peak)));
    }
    let samples = run.memory_samples().into_iter();
    let points: Vec<[f64; 2]> = samples.map(|(secs, bytes)| [secs, bytes as f64 / 1_048_576.0]).collect();
    if points.is_empty() {
        weak(ui, if run.is_running() { "No memory samples yet." } else { "This run has no memory samples." });
        return;
    }
    let plot = Plot::new("memory").allow_scroll(false).include_y(0.0).x_axis_label("Seconds").y_axis_label("MiB");
    let shown = plot.show(ui, |plot| {
        plot.line(Line::new("resident memory", PlotPoints::from(points)).color(theme::ACCENT).fill(0.0));
    });
    shown.response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, "Memory over time"));
}
