//! Memory over time.

use crate::panels::{weak, x_axis, y_axis};
use crate::runs::ShownRun;
use crate::theme;
use cytoscope_profile::{DeviceMemory, bytes_text};
use eframe::egui::{self, Ui};
use egui_plot::{Legend, Line, Plot, PlotPoints};

/// Maximum number of points of a line: more than the plot has pixels would only slow down drawing.
const MAX_POINTS: usize = 4000;

/// At most [`MAX_POINTS`] of the samples, among them the highest: of neighboring samples, the one with the most bytes.
fn thinned(samples: Vec<(f64, u64)>) -> Vec<(f64, u64)> {
    let per_point = samples.len().div_ceil(MAX_POINTS).max(1);
    if per_point == 1 {
        return samples;
    }
    samples.chunks(per_point).filter_map(|near| near.iter().copied().max_by_key(|(_, bytes)| *bytes)).collect()
}

/// Draws the memory samples of a run.
pub(super) fn memory(ui: &mut Ui, run: ShownRun<'_>) {
    if let Some(peak) = run.facts().peak_bytes {
        weak(ui, format!("Peak {}", bytes_text(peak)));
    }
    let in_mib = |samples: Vec<(f64, u64)>| -> Vec<[f64; 2]> {
        thinned(samples).into_iter().map(|(secs, bytes)| [secs, bytes as f64 / 1_048_576.0]).collect()
    };
    let (points, arena) = (in_mib(run.memory_samples()), in_mib(run.arena_samples()));
    let on_device = run.device_samples();
    let device_bytes = |bytes: fn(&DeviceMemory) -> u64| -> Vec<(f64, u64)> {
        on_device.iter().map(|(secs, device)| (*secs, bytes(device))).collect()
    };
    let (allocated, reserved) = (device_bytes(|d| d.allocated_bytes), device_bytes(|d| d.reserved_bytes));
    let highest = |samples: &[(f64, u64)]| samples.iter().map(|(_, bytes)| *bytes).max();
    if let Some((allocated, reserved)) = highest(&allocated).zip(highest(&reserved)) {
        let (allocated, reserved) = (bytes_text(allocated), bytes_text(reserved));
        weak(ui, format!("Device memory: peak {allocated} allocated, {reserved} reserved"));
    }
    let (allocated, reserved) = (in_mib(allocated), in_mib(reserved));
    if points.is_empty() {
        weak(ui, if run.is_running() { "No memory samples yet." } else { "This run has no memory samples." });
        return;
    }
    let mut plot = Plot::new("memory")
        .allow_scroll(false)
        .include_y(0.0)
        .custom_x_axes(x_axis("Seconds"))
        .custom_y_axes(y_axis("MiB"));
    if !arena.is_empty() || !allocated.is_empty() {
        plot = plot.legend(Legend::default());
    }
    let shown = plot.show(ui, |plot| {
        plot.line(Line::new("resident memory", PlotPoints::from(points)).color(theme::ACCENT).fill(0.0));
        if !arena.is_empty() {
            plot.line(Line::new("engine arena", PlotPoints::from(arena)).color(theme::series_color(1)));
        }
        if !allocated.is_empty() {
            plot.line(Line::new("device memory allocated", PlotPoints::from(allocated)).color(theme::series_color(2)));
            plot.line(Line::new("device memory reserved", PlotPoints::from(reserved)).color(theme::series_color(3)));
        }
    });
    shown.response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, "Memory over time"));
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
