//! Figures of a training run, and the times of its steps.

use crate::number_text::counted;
use crate::panels::{weak, x_axis, y_axis};
use crate::runs::{DurationHistogram, ShownRun, rate_text};
use crate::theme;
use cytoscope_profile::{bytes_text, time_text};
use eframe::egui::{self, RichText, Ui};
use egui_plot::{Bar, BarChart, Plot};

/// Draws the figures of a training run and the histogram of its step times.
pub(super) fn training(ui: &mut Ui, run: ShownRun<'_>, steps: Option<&DurationHistogram>) {
    match run.training() {
        None => _ = weak(ui, "No step has ended yet."),
        Some(figures) => {
            ui.horizontal_wrapped(|ui| {
                ui.spacing_mut().item_spacing.x = 26.0;
                let mut figure = |name: &str, value: String| {
                    ui.vertical(|ui| {
                        ui.label(RichText::new(name).weak().size(11.5));
                        ui.label(RichText::new(value).size(15.0));
                    });
                };
                if let Some(rate) = figures.samples_per_sec {
                    figure("Samples/s", rate_text(rate));
                }
                figure("Time per step", time_text(figures.step_secs));
                figure("Waiting for data", format!("{:.0} %", 100.0 * figures.data_wait_share));
                if let Some(share) = figures.device_share {
                    figure("Device busy", format!("{:.0} %", 100.0 * share));
                }
                if let Some(memory) = figures.device_memory {
                    figure("Device memory", bytes_text(memory.allocated_bytes));
                }
                figure("Data workers", figures.workers.to_string());
            });
        }
    }
    let Some(histogram) = steps else {
        weak(ui, "The run has no spans of steps, so there is no histogram of their times.");
        return;
    };
    step_times(ui, histogram);
}

fn step_times(ui: &mut Ui, histogram: &DurationHistogram) {
    let count: u64 = histogram.counts.iter().sum();
    let (median, longest) = (time_text(histogram.median_secs), time_text(histogram.longest_secs));
    let text = format!("{}: median {median}, longest {longest}", counted(count, "step"));
    weak(ui, text.clone());
    let (scale, unit) = if histogram.median_secs < 1.0 { (1e3, "ms") } else { (1.0, "s") };
    let bars = histogram.counts.iter().enumerate().map(|(i, n)| {
        let middle = histogram.from_secs + (i as f64 + 0.5) * histogram.width_secs;
        Bar::new(middle * scale, *n as f64).width(histogram.width_secs * scale * 0.92).fill(theme::ACCENT)
    });
    let chart = BarChart::new("steps", bars.collect()).color(theme::ACCENT);
    let shown = Plot::new("step times")
        .allow_scroll(false)
        .allow_drag(false)
        .allow_zoom(false)
        .custom_x_axes(x_axis(format!("Time per step in {unit}")))
        .custom_y_axes(y_axis("Steps"))
        .show(ui, |plot| plot.bar_chart(chart));
    let name = format!("Histogram of {text}");
    shown.response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, &name));
}
