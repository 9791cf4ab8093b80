//! The curves of a training run, loss and validation scores over steps, and the output on a validation image.

use super::TrainPanel;
use crate::number_text::short_number;
use crate::panels::axis_marks::{round_distance, y_marks};
use crate::panels::legends::outline_entry;
use crate::panels::{weak, wide_x_axis, y_axis};
use crate::theme;
use crate::training::Wizard;
use crate::training::run::TrainingRun;
use crate::training::validation_picture::ValidationPicture;
use cytoscope_train::{ScoreName, ValidationPoint};
use cytoscope_training_data::TrainingTask;
use eframe::egui::{self, RichText, Ui, vec2};
use egui_plot::{GridInput, GridMark, Legend, Line, Plot, PlotPoints, Points, log_grid_spacer};

/// Height of a plot in points.
const PLOT: f32 = 210.0;
/// Width of the picture beside the plots in points.
const PICTURE: f32 = 210.0;
/// Minimum page width for the picture beside the plots.
const BESIDE_FROM: f32 = 780.0;

/// Draws loss and validation scores over steps and, if `with_picture`, the output on a validation image.
pub(super) fn curves(ui: &mut Ui, wizard: &Wizard, panel: &mut TrainPanel, with_picture: bool) {
    let task = wizard.plan.task;
    let run = &wizard.run;
    let shown = run.picture.as_ref().filter(|_| with_picture);
    let picture = shown.map(|shown| (shown, shown.texture(ui.ctx())));
    if run.history.steps.is_empty() && run.history.validations.is_empty() {
        return;
    }
    ui.add_space(theme::GAP);
    let wide = ui.available_width() > 620.0;
    // On narrow pages the picture goes below the plots.
    let beside = picture.is_some() && ui.available_width() > BESIDE_FROM;
    let plots_width = ui.available_width() - if beside { PICTURE + 16.0 } else { 0.0 };
    let width = if wide { (plots_width - 16.0) / 2.0 } else { plots_width };
    let layout = if wide { egui::Layout::left_to_right(egui::Align::Min) } else { *ui.layout() };
    let height = PLOT + if beside { 84.0 } else { 30.0 };
    ui.allocate_ui_with_layout(vec2(ui.available_width(), height), layout, |ui| {
        ui.spacing_mut().item_spacing = vec2(16.0, 4.0);
        for loss in [true, false] {
            ui.allocate_ui(vec2(width, PLOT + 30.0), |ui| {
                ui.vertical(|ui| {
                    ui.set_width(width);
                    ui.horizontal(|ui| {
                        ui.set_min_height(26.0);
                        let name = if loss { "Loss" } else { "Validation score" };
                        ui.label(RichText::new(name).strong());
                        if loss {
                            theme::checkbox(ui, &mut panel.log_loss, "Logarithmic")
                                .on_hover_text("Logarithmic axis of the loss");
                        }
                    });
                    if loss { loss_plot(ui, run, panel.log_loss) } else { score_plot(ui, run) }
                });
            });
        }
        if let (Some((shown, texture)), true) = (&picture, beside) {
            ui.allocate_ui(vec2(PICTURE, height), |ui| {
                ui.vertical(|ui| {
                    ui.set_width(PICTURE);
                    validation_picture(ui, shown, texture, task);
                });
            });
        }
    });
    if let (Some((shown, texture)), false) = (&picture, beside) {
        ui.add_space(theme::GAP);
        validation_picture(ui, shown, texture, task);
    }
}

/// Draws a validation image with ground truth and prediction.
fn validation_picture(ui: &mut Ui, shown: &ValidationPicture, texture: &egui::TextureHandle, task: TrainingTask) {
    ui.horizontal(|ui| {
        ui.set_min_height(26.0);
        ui.label(RichText::new("Validation image").strong());
    });
    let [width, height] = shown.size().map(|n| n as f32);
    let scale = (PICTURE / width).min(PLOT / height);
    let response = ui
        .add(egui::Image::new((texture.id(), vec2(width, height) * scale)).corner_radius(egui::CornerRadius::same(4)));
    name_plot(&response, format!("Network output on a validation image: {}", shown.caption));
    ui.horizontal_wrapped(|ui| match task {
        TrainingTask::Segmentation => {
            outline_entry(ui, theme::TRUE_OUTLINE, "True");
            outline_entry(ui, theme::FOUND_OUTLINE, "Predicted");
        }
        TrainingTask::LabelFree => _ = ui.label(RichText::new("Left: true stain, right: predicted stain").size(12.0)),
    });
    let step = shown.step.map(|step| format!("after step {step}"));
    let parts: Vec<String> = Some(shown.caption.clone()).filter(|c| !c.is_empty()).into_iter().chain(step).collect();
    weak(ui, parts.join(", "));
}

/// A plot over the steps of a training run, of which the last is `end`.
fn plot<'a>(name: &str, end: u64) -> Plot<'a> {
    let distance = mark_distance(end as f64);
    let marks = move |input: GridInput| {
        // Marks outside the plot would be drawn over its neighbor.
        let first = (input.bounds.0 / distance).ceil().max(0.0) as u64;
        let last = (input.bounds.1 / distance).floor().max(0.0) as u64;
        (first..=last.min(first.saturating_add(100)))
            .map(|i| GridMark { value: i as f64 * distance, step_size: distance })
            .collect()
    };
    fixed_plot(name, "Step").x_grid_spacer(marks)
}

/// A plot over steps that cannot be moved or zoomed; `x_label` is that of its horizontal axis, which begins at 0.
pub(super) fn fixed_plot<'a>(name: &str, x_label: &str) -> Plot<'a> {
    Plot::new(name.to_owned())
        .height(PLOT)
        .allow_scroll(false)
        .allow_drag(false)
        .allow_zoom(false)
        .allow_boxed_zoom(false)
        .include_x(0.0)
        .custom_y_axes(y_axis(""))
        .y_axis_min_width(36.0)
        .y_grid_spacer(y_marks)
        .custom_x_axes(wide_x_axis(x_label))
}

/// Draws the loss over steps and its moving average.
fn loss_plot(ui: &mut Ui, run: &TrainingRun, log: bool) {
    let value = |v: f64| if log { v.max(1e-12).log10() } else { v };
    let points: Vec<[f64; 2]> = run.history.steps.iter().map(|p| [p.step as f64, value(p.loss)]).collect();
    let shown = move |v: f64| if log { power(v) } else { short_number(v) };
    let mut plot = plot("loss", run.step()).y_axis_formatter(move |mark, _| shown(mark.value));
    plot = if log { plot.y_grid_spacer(log_grid_spacer(10)) } else { plot.include_y(0.0) };
    let smooth = smoothed(&points);
    let response = plot.show(ui, |plot| {
        plot.line(Line::new("loss", PlotPoints::from(points)).color(theme::ACCENT.gamma_multiply(0.45)).width(1.0));
        plot.line(Line::new("smoothed", PlotPoints::from(smooth)).color(theme::ACCENT).width(2.0));
    });
    let last = run.history.steps.last().map_or_else(String::new, |p| format!(", {:.3} at step {}", p.loss, p.step));
    name_plot(&response.response, format!("Loss curve{last}"));
}

/// The legend of a plot, which hides the lines behind it.
fn legend() -> Legend {
    Legend::default().position(egui_plot::Corner::RightBottom).background_alpha(1.0)
}

/// Draws the validation scores over steps, and marks the best one.
fn score_plot(ui: &mut Ui, run: &TrainingRun) {
    let validations = &run.history.validations;
    let mut names: Vec<&ScoreName> = validations.iter().flat_map(|v| v.scores.keys()).collect();
    names.sort();
    names.dedup();
    // Scores in dB do not fit on the axis from 0 to 1, only two of the F1 thresholds are shown, and panoptic quality is
    // the score that decides, which has its own curve.
    names.retain(|name| match name {
        ScoreName::F1 { iou_percent } => matches!(iou_percent, 50 | 70),
        ScoreName::PsnrDb | ScoreName::PanopticQuality { .. } => false,
        _ => true,
    });
    let of = |f: &dyn Fn(&ValidationPoint) -> Option<f64>| -> Vec<[f64; 2]> {
        validations.iter().filter_map(|v| Some([v.step as f64, f(v)?])).collect()
    };
    let score = of(&|v| Some(v.score));
    let single = names.len() < 2;
    let mut plot = plot("scores", run.steps).include_y(0.0).include_y(1.0);
    if run.steps > 0 {
        plot = plot.include_x(run.steps as f64);
    }
    if !single {
        plot = plot.legend(legend());
    }
    let best = validations.iter().rev().find(|v| v.best).map(|v| [v.step as f64, v.score]);
    let lines: Vec<(String, Vec<[f64; 2]>)> =
        names.iter().map(|n| (super::results::score_name(n), of(&|v| v.scores.get(*n).copied()))).collect();
    let response = plot.show(ui, |plot| {
        if !single {
            for (i, (name, points)) in lines.into_iter().enumerate() {
                let color = theme::series_color(i);
                plot.line(Line::new(name.clone(), PlotPoints::from(points.clone())).color(color).width(1.0));
                // A line through one point would not be seen.
                plot.points(Points::new(name, PlotPoints::from(points)).color(color).radius(1.5));
            }
        }
        plot.line(Line::new("Selection metric", PlotPoints::from(score.clone())).color(theme::ACCENT).width(2.2));
        plot.points(Points::new("Selection metric", PlotPoints::from(score)).color(theme::ACCENT).radius(2.5));
        if let Some(best) = best {
            plot.points(Points::new("", PlotPoints::from(vec![best])).color(theme::BEST).radius(5.0));
        }
    });
    let last = validations.last().map_or_else(String::new, |v| format!(", {:.3} at step {}", v.score, v.step));
    name_plot(&response.response, format!("Validation score curve{last}"));
}

/// Names a plot or picture for screen readers.
pub(super) fn name_plot(response: &egui::Response, name: String) {
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, &name));
}

/// Moving average over a window that grows with the curve.
fn smoothed(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let reach = (points.len() / 24).max(1);
    (0..points.len())
        .map(|i| {
            let around = points.get(i.saturating_sub(reach)..(i + reach + 1).min(points.len())).unwrap_or_default();
            let mean = around.iter().map(|p| p[1]).sum::<f64>() / around.len().max(1) as f64;
            [points.get(i).map_or(0.0, |p| p[0]), mean]
        })
        .collect()
}

/// Round distance between axis marks, of which there are two to five from 0 to `end`.
fn mark_distance(end: f64) -> f64 {
    round_distance((end / 4.0).max(1.0)).max(1.0)
}

/// Formats 10 to the power of `v`.
fn power(v: f64) -> String {
    let value = 10f64.powf(v);
    if value >= 0.01 { short_number(value) } else { format!("{value:.0e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_keeps_the_length_of_curves() {
        let points: Vec<[f64; 2]> = (0..100).map(|i| [f64::from(i), if i % 2 == 0 { 1.0 } else { 3.0 }]).collect();
        let smooth = smoothed(&points);
        assert_eq!(smooth.len(), 100);
        assert!(smooth.iter().skip(4).take(90).all(|p| (p[1] - 2.0).abs() < 0.3));
        assert!(smoothed(&[]).is_empty());
    }

    #[test]
    fn no_grid_shines_through_a_legend() {
        assert!(legend().background_alpha >= 1.0);
    }

    #[test]
    fn axis_marks_are_round() {
        assert_eq!([3.0, 40.0, 900.0, 1500.0].map(mark_distance), [1.0, 10.0, 500.0, 500.0]);
        assert_eq!([-1.0, 2.0, -3.0].map(power), ["0.1", "100", "1e-3"]);
    }
}
