//! The status bar: what is under the pointer, the running job, and the engine.

use super::train::{is_ending, job_share};
use super::{icon_button, icon_row, remaining_text};
use crate::action::Actions;
use crate::command::Command;
use crate::document::{Document, Role};
use crate::jobs::JobsAction;
use crate::measure::TableState;
use crate::number_text::short_number;
use crate::runs::{ShownRun, TrainingFigures};
use crate::state::State;
use crate::theme;
use crate::views::slice::Hover;
use cytoscope_objects::ObjectColumn;
use cytoscope_pipeline::ProgressStage;
use cytoscope_profile::{bytes_text, count_text};
use cytoscope_train::{BatchAdvice, TrainStatus};
use cytoscope_worker::WorkerState;
use eframe::egui::{self, Frame, Margin, RichText, Ui};
use egui_phosphor::regular as icon;
use std::time::Duration;

/// Width of the bar with the progress of a job, in points.
const JOB_BAR_WIDTH: f32 = 110.0;

/// Least width of the title of a job in points.
const JOB_TITLE_WIDTH: f32 = 30.0;

/// Draws the status bar; `hover` has the values under the pointer.
pub(super) fn status_bar(ui: &mut Ui, state: State<'_>, hover: Option<&Hover>, actions: &mut Actions) {
    let frame = Frame::new().fill(ui.visuals().panel_fill).inner_margin(Margin::symmetric(10, 4));
    egui::Panel::bottom("status").frame(frame).show(ui, |ui| {
        icon_row(ui, |ui| {
            let text = state.document().zip(hover).map(|(document, hover)| {
                // A table of other labels has other objects.
                under_pointer(document, hover, state.table_state(document) == TableState::Current)
            });
            ui.label(RichText::new(text.unwrap_or_default()).monospace().size(12.0));
            ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                let on = state.settings().show_profiler;
                if icon_button(ui, icon::CHART_BAR, Command::ToggleProfiler.title(), true, on).clicked() {
                    actions.command(Command::ToggleProfiler);
                }
                engine_state(ui, state, actions);
                job_state(ui, state, actions);
            });
        });
    });
}

/// The position and the values under the pointer; with the volume of the object if it `is_measured`.
fn under_pointer(document: &Document, hover: &Hover, is_measured: bool) -> String {
    // Numbers of voxels, as sliders and captions have them; the position in µm is that of the center of the voxel.
    let [z, y, x] = hover.zyx.map(|at| at + 1);
    let mut text = format!("x {x}  y {y}  z {z}");
    if document.voxel_known {
        let um: Vec<String> =
            (0..3).rev().map(|a| format!("{:.2}", hover.zyx[a] as f64 * document.voxel_um[a])).collect();
        text.push_str(&format!("   {} µm", um.join(" ")));
    }
    match hover.values.as_slice() {
        [] => {}
        [value] => text.push_str(&format!("   value {}", short_number(*value))),
        several => {
            let several: Vec<String> = several.iter().map(|value| short_number(*value)).collect();
            text.push_str(&format!("   values {}", several.join(" · ")));
        }
    }
    if let Some(map) = hover.map {
        let name = document.overlay_with_role(Role::Map).map_or("map", |o| o.title()).to_lowercase();
        text.push_str(&format!("   {name} {map:.3}"));
    }
    if let Some(label) = hover.label.filter(|l| *l > 0) {
        text.push_str(&format!("   label {label}"));
        let (column, unit) = match document.voxel_known {
            true => (ObjectColumn::VolumeUm3, "µm³"),
            false => (ObjectColumn::Voxels, "voxels"),
        };
        let volume = document.results.as_ref().filter(|_| is_measured).and_then(|r| {
            let column = r.column_index(column)?;
            Some(r.value(r.row_index(label, document.time)?, column))
        });
        if let Some(volume) = volume.filter(|volume| volume.is_finite()) {
            text.push_str(&format!(" ({} {unit})", count_text(volume.round() as u64)));
        }
    }
    if let Some(truth) = hover.truth.filter(|l| *l > 0) {
        text.push_str(&format!("   truth {truth}"));
    }
    text
}

fn engine_state(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let engine = state.jobs.engine();
    let (text, color) = match &engine {
        None => ("no engine".to_owned(), theme::bad(ui.visuals())),
        Some(WorkerState::Starting) => ("engine starting…".to_owned(), ui.visuals().weak_text_color()),
        Some(WorkerState::Dead) => ("engine stopped".to_owned(), theme::bad(ui.visuals())),
        Some(WorkerState::Ready { .. }) => {
            let device = state.jobs.running().and_then(|j| j.device.as_ref()).map(|d| d.id.to_string());
            let memory = state.jobs.memory().map(|(now, _)| bytes_text(now));
            let parts: Vec<String> = device.into_iter().chain(memory).collect();
            let text = if parts.is_empty() { "engine ready".to_owned() } else { parts.join(" · ") };
            (text, theme::good(ui.visuals()))
        }
    };
    let hint = "The engine is the process that runs jobs: its device during a job, and the memory that it uses";
    ui.label(RichText::new(text).size(12.0)).on_hover_text(hint);
    ui.label(RichText::new(icon::CIRCLE).size(10.0).color(color));
    if engine == Some(WorkerState::Dead) && ui.small_button("Restart engine").clicked() {
        actions.send(JobsAction::RestartEngine);
    }
}

fn job_state(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let Some(job) = state.jobs.running() else { return };
    if icon_button(ui, icon::STOP_CIRCLE, &state.current_title(Command::Cancel), true, false).clicked() {
        actions.send(JobsAction::Cancel(job.id));
    }
    match job_share(&state.wizard().run, job) {
        None => _ = ui.spinner(),
        Some(share) if ui.available_width() > JOB_BAR_WIDTH => {
            ui.add(egui::ProgressBar::new(share).desired_width(JOB_BAR_WIDTH).desired_height(8.0));
        }
        // In narrow windows, the bar and the title would cover the values under the pointer.
        Some(_) => {}
    }
    let waiting = state.jobs.active().saturating_sub(1);
    let more = if waiting > 0 { format!(" (+{waiting})") } else { String::new() };
    let tuning = match job.preparing_secs() {
        Some((stage, secs)) => {
            // Counts up between events.
            ui.ctx().request_repaint_after(Duration::from_millis(500));
            match stage {
                ProgressStage::Tuning => format!(": tuning for this device, only once ({secs} s)"),
                _ => format!(": compiling for this device ({secs} s)"),
            }
        }
        None => String::new(),
    };
    // The remaining steps of a training run that is ending are not made, and the figures are those of its last steps.
    let ends = is_ending(&state.wizard().run, job);
    let progress = job.progress.as_ref().filter(|progress| !ends || progress.stage != ProgressStage::Train);
    let left = progress.and_then(remaining_text).map(|left| format!(" · {left}")).unwrap_or_default();
    let planned = job.plan.as_ref().map(|plan| format!(" · {}", plan.memory_text())).unwrap_or_default();
    // Last, because it is the longest part, which is cut off where it does not fit.
    let status = job.training.as_ref().and_then(|times| times.status.as_ref()).filter(|_| !ends);
    let status = status.map(|status| status_text(&with_means(status, ShownRun::Job(job).training())));
    let status = status.map_or_else(String::new, |status| format!(" · {status}"));
    let text = format!("{}{tuning}{left}{planned}{more}{status}", job.title);
    if ui.available_width() < JOB_TITLE_WIDTH {
        return;
    }
    let label = ui.add(egui::Label::new(RichText::new(text).size(12.0)).truncate());
    if let Some(plan) = &job.plan {
        label.on_hover_text(format!("Planned: {}", plan.text()));
    }
}

/// The status of a training run with the `means` of the latest steps, which the Training page shows, in place of the figures of
/// the last step.
fn with_means(status: &TrainStatus, means: Option<TrainingFigures>) -> TrainStatus {
    let samples_per_sec = means.and_then(|means| means.samples_per_sec).unwrap_or(status.samples_per_sec);
    let data_wait_share = means.map_or(status.data_wait_share, |means| means.data_wait_share);
    TrainStatus { samples_per_sec, data_wait_share, ..status.clone() }
}

/// The status of a training run in one line, with the advice on its batch.
fn status_text(status: &TrainStatus) -> String {
    let advice = match status.batch_advice {
        None => return status.figures(),
        Some(BatchAdvice::Larger { batch }) => format!("\"Batch size\" {batch} fits into the memory of the device"),
        Some(BatchAdvice::Smaller { batch, accumulate }) => format!(
            "\"Batch size\" {batch} and \"Batches per step\" {accumulate} would compute fewer activations twice"
        ),
    };
    format!("{}; {advice}", status.figures())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::results::Results;
    use crate::work::sample_status;
    use cytoscope_engine::DeviceId;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::Array;
    use std::path::Path;

    #[test]
    fn the_volume_of_the_object_under_the_pointer_is_that_of_the_shown_labels() {
        let folder = tempfile::tempdir().unwrap();
        let stack = folder.path().join("a.tif");
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let mut document = Document::open(&stack, None, 0).unwrap();
        document.results = Some(Results::parse(Path::new("x.csv"), "label,voxels\n7,1234\n").unwrap());
        let hover = Hover { zyx: [0, 1, 2], values: vec![0.5], label: Some(7), truth: None, map: None };
        let shown = [true, false].map(|is_measured| under_pointer(&document, &hover, is_measured));
        let place = "x 3  y 2  z 1   value 0.5   label 7";
        assert_eq!(shown, [format!("{place} (1,234 voxels)"), place.to_owned()]);
    }

    #[test]
    fn the_speed_of_training_is_the_mean_that_its_page_shows() {
        let means = TrainingFigures {
            samples_per_sec: Some(0.52),
            step_secs: 3.831,
            data_wait_share: 0.05,
            device_share: None,
            device_memory: None,
            workers: 1,
        };
        let status = sample_status(DeviceId::Cpu, 4);
        let text = status_text(&with_means(&status, Some(means)));
        assert!(text.starts_with("0.5 samples/s, 5 % of the time waiting"), "{text}");
        assert_eq!(with_means(&status, None), status);
    }

    #[test]
    fn advice_on_the_batch_names_the_settings_of_the_window() {
        let status = sample_status(DeviceId::Cpu, 4);
        let figures = status_text(&status);
        assert!(figures.starts_with("8.0 samples/s") && !figures.contains(';'), "{figures}");
        let larger = TrainStatus { batch_advice: Some(BatchAdvice::Larger { batch: 8 }), ..status.clone() };
        assert_eq!(status_text(&larger), format!("{figures}; \"Batch size\" 8 fits into the memory of the device"));
        let smaller = Some(BatchAdvice::Smaller { batch: 2, accumulate: 4 });
        let smaller = status_text(&TrainStatus { batch_advice: smaller, ..status });
        assert!(smaller.contains("\"Batch size\" 2 and \"Batches per step\" 4 would compute"), "{smaller}");
    }
}
