//! The roofline plot: how close each operator comes to the machine's measured peak.

use super::{is_found, nothing_matches};
use crate::action::Actions;
use crate::jobs::JobsAction;
use crate::number_text::counted;
use crate::panels::{legend, weak, wide_x_axis, y_axis};
use crate::theme;
use cytoscope_profile::{MachinePeak, OperatorPrecision, RooflinePoint, Stage, share_of_peak};
use eframe::egui::{self, Ui};
use egui_phosphor::regular as icon;
use egui_plot::{GridMark, HoverPosition, Line, Plot, PlotPoints, Points};

/// Number of series: one for each number format.
const SERIES: usize = OperatorPrecision::ALL.len();

/// The points of a run, with the peak that they belong to.
#[derive(Debug)]
pub(super) struct Roofline {
    pub(super) peak: MachinePeak,
    pub(super) points: Vec<RooflinePoint>,
    /// Measured time of all operators in seconds, also of those without a point.
    pub(super) operators_secs: f64,
}

/// Draws the roofline of a run. Without a peak, it offers to measure one; `can_measure` is whether that is possible now, and
/// `None` if it never is.
pub(super) fn roofline(
    ui: &mut Ui,
    roofline: Option<&Roofline>,
    search: &str,
    can_measure: Option<bool>,
    actions: &mut Actions,
) {
    let Some(Roofline { peak, points, operators_secs }) = roofline else {
        match can_measure {
            None => {
                _ = weak(
                    ui,
                    "The run lacks the peak of its machine: only traces of predictions and training runs on the CPU have it.",
                )
            }
            Some(enabled) => {
                weak(ui, "The peak of this machine has not been measured.");
                let button = egui::Button::new(format!("{}  Measure peak", icon::GAUGE));
                let response = ui.add_enabled(enabled, button);
                response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, "Measure peak"));
                if response.on_disabled_hover_text("Wait until the job or the measurement has ended").clicked() {
                    actions.send(JobsAction::MeasurePeak);
                }
            }
        }
        ui.allocate_space(ui.available_size());
        return;
    };
    let query = search.to_lowercase();
    let found: Vec<&RooflinePoint> = points.iter().filter(|p| is_found(Stage::Op, &p.shown_name(), &query)).collect();
    let share = share_of_peak(points, *operators_secs);
    let share = share.map_or_else(String::new, |s| format!("All operators: {:.0} % of the peak. ", 100.0 * s));
    weak(ui, format!("{share}{}", peak_text(peak)));
    let series = OperatorPrecision::ALL.map(|precision| Series::new(precision, &found));
    if series.iter().all(|s| s.points.is_empty()) {
        let text = match found.is_empty() && !points.is_empty() {
            true => nothing_matches(search),
            false => "No operator with known multiply-accumulates and bytes.".to_owned(),
        };
        weak(ui, text);
        ui.allocate_space(ui.available_size());
        return;
    }
    plot(ui, peak, &series);
}

/// Operators of one number format.
struct Series<'a> {
    precision: OperatorPrecision,
    operators: Vec<&'a RooflinePoint>,
    /// Logarithms of intensity and rate, in the order of the operators.
    points: Vec<[f64; 2]>,
}

impl<'a> Series<'a> {
    fn new(precision: OperatorPrecision, found: &[&'a RooflinePoint]) -> Self {
        let is_own = |point: &&&'a RooflinePoint| point.precision == precision && point.macs_per_byte().is_some();
        let operators: Vec<&RooflinePoint> = found.iter().filter(is_own).copied().collect();
        let at = |point: &&RooflinePoint| {
            [point.macs_per_byte().unwrap_or(1.0).log10(), (point.macs_per_sec() / 1e9).log10()]
        };
        let points = operators.iter().map(at).collect();
        Self { precision, operators, points }
    }

    /// Name in the legend of roof and points. Points exist for runs on a CPU only, where floats have 32 bits.
    fn name(&self) -> &'static str {
        match self.precision {
            OperatorPrecision::Float => "f32",
            precision => precision.name(),
        }
    }

    /// Logarithms of intensity and rate of the roof, from the lowest to the highest of these intensities.
    fn roof(&self, peak: &MachinePeak, from: f64, to: f64) -> Vec<[f64; 2]> {
        let ridge = (peak.macs_per_sec(self.precision) / peak.memory_bytes_per_sec).log10();
        let roof = |x: f64| [x, (peak.roof_macs_per_sec(10f64.powf(x), self.precision) / 1e9).log10()];
        [from, ridge.clamp(from, to), to].map(roof).to_vec()
    }
}

fn plot(ui: &mut Ui, peak: &MachinePeak, series: &[Series<'_>; SERIES]) {
    let intensities = || series.iter().flat_map(|s| &s.points).map(|p| p[0]);
    let drawn = || series.iter().filter(|s| !s.points.is_empty());
    let ridges = || drawn().map(|s| (peak.macs_per_sec(s.precision) / peak.memory_bytes_per_sec).log10());
    let from = intensities().chain(ridges()).fold(f64::INFINITY, f64::min) - 0.5;
    let to = intensities().chain(ridges()).fold(f64::NEG_INFINITY, f64::max) + 0.5;
    let power = |mark: GridMark, _: &std::ops::RangeInclusive<f64>| power_text(mark.value);
    let names = series.iter().enumerate().filter(|(_, s)| !s.points.is_empty());
    legend(ui, names.map(|(number, s)| (theme::series_color(number), s.name())));
    let shown = Plot::new("roofline")
        .allow_scroll(false)
        .custom_x_axes(wide_x_axis("MAC per byte"))
        .custom_y_axes(y_axis("GMAC/s"))
        .x_axis_formatter(power)
        .y_axis_formatter(power)
        .label_formatter(|at| match at {
            HoverPosition::NearDataPoint { plot_name, index, .. } => hovered(series, plot_name, *index),
            HoverPosition::Elsewhere { .. } => None,
        })
        .show(ui, |plot| {
            for (number, of) in series.iter().enumerate().filter(|(_, s)| !s.points.is_empty()) {
                let color = theme::series_color(number);
                let roof = PlotPoints::from(of.roof(peak, from, to));
                plot.line(Line::new(format!("{} roof", of.name()), roof).color(color).width(1.5));
                let points = PlotPoints::from(of.points.clone());
                plot.points(Points::new(of.name(), points).color(color).radius(4.0));
            }
        });
    let count: usize = series.iter().map(|s| s.points.len()).sum();
    let name = format!("Roofline, number of operators: {count}");
    shown.response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, &name));
}

/// Name, rate and share of the operator under the pointer.
fn hovered(series: &[Series<'_>; SERIES], name: &str, index: usize) -> Option<String> {
    let point = series.iter().find(|s| s.name() == name)?.operators.get(index)?;
    let intensity = point.macs_per_byte()?;
    Some(format!(
        "{}\n{:.1} GMAC/s at {intensity:.1} MAC/byte\n{:.1} % of the {} bound",
        point.shown_name(),
        point.macs_per_sec() / 1e9,
        100.0 * point.share,
        point.bound.name()
    ))
}

/// A power of ten as a number; empty between whole powers.
fn power_text(exponent: f64) -> String {
    let is_whole = (exponent - exponent.round()).abs() < 1e-6;
    match is_whole {
        true if (-3.0..=5.0).contains(&exponent) => format!("{}", 10f64.powi(exponent.round() as i32)),
        true => format!("1e{exponent:.0}"),
        false => String::new(),
    }
}

/// The peak rates in one line.
fn peak_text(peak: &MachinePeak) -> String {
    let rate_of = |rate: Option<f64>, name: &str| {
        rate.map_or_else(String::new, |rate| format!(", {:.0} GMAC/s {name}", rate / 1e9))
    };
    let (bf16, int8) = (rate_of(peak.bf16_macs_per_sec, "bf16"), rate_of(peak.int8_macs_per_sec, "int8"));
    let (float, memory) = (peak.float_macs_per_sec / 1e9, peak.memory_bytes_per_sec / 1e9);
    format!(
        "Peak with {}, {}: {float:.0} GMAC/s f32{bf16}{int8}, {memory:.1} GB/s memory.",
        counted(peak.threads as u64, "thread"),
        peak.kernels
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_profile::OperatorTotal;

    #[test]
    fn points_are_named_on_hover_and_lie_below_the_roof() {
        let peak = MachinePeak {
            kernels: "avx2".to_owned(),
            threads: 2,
            float_macs_per_sec: 100e9,
            bf16_macs_per_sec: Some(200e9),
            int8_macs_per_sec: Some(400e9),
            memory_bytes_per_sec: 10e9,
        };
        let operator = |name: &str, macs| OperatorTotal {
            name: name.to_owned(),
            count: 1,
            seconds: 1.0,
            macs,
            bytes: 1_000_000_000,
            precision: None,
        };
        let int8 = OperatorTotal { precision: Some(OperatorPrecision::Int8), ..operator("Conv b", 100_000_000_000) };
        let bf16 = OperatorTotal { precision: Some(OperatorPrecision::Bf16), ..operator("Conv c", 100_000_000_000) };
        let all = [operator("Conv a", 1_000_000_000), int8, operator("Resize", 0), bf16];
        let points = cytoscope_profile::roofline(&all, &peak);
        let found: Vec<&RooflinePoint> = points.iter().collect();
        let series = OperatorPrecision::ALL.map(|precision| Series::new(precision, &found));
        assert_eq!(series[0].points, [[0.0, 0.0]]);
        assert_eq!((&series[1].points[..], &series[2].points[..]), (&[[2.0, 2.0]][..], &[[2.0, 2.0]][..]));
        // The roof of floats: 10 GB/s at 1 MAC per byte, flat from 10 MAC per byte on.
        assert_eq!(series[0].roof(&peak, 0.0, 3.0), [[0.0, 1.0], [1.0, 2.0], [3.0, 2.0]]);
        let text = hovered(&series, "int8", 0).unwrap();
        assert!(
            text.starts_with("Conv b (int8)\n100.0 GMAC/s") && text.contains("25.0 % of the compute bound"),
            "{text}"
        );
        let text = hovered(&series, "bf16", 0).unwrap();
        assert!(text.starts_with("Conv c (bf16)\n") && text.contains("50.0 % of the compute bound"), "{text}");
        assert_eq!((hovered(&series, "f32 roof", 0), hovered(&series, "f32", 7)), (None, None));
        assert_eq!(
            (power_text(2.0), power_text(-1.0), power_text(0.5)),
            ("100".to_owned(), "0.1".to_owned(), String::new())
        );
    }
}
