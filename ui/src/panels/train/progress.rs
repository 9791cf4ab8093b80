//! The Training page: progress, figures, buttons and log, around the curves.

use super::curves::curves;
use super::start::device_and_precision;
use super::{TrainPanel, button_row, colored, icon_text_button, page_header, primary_button, reason_against_running};
use crate::action::Actions;
use crate::number_text::counted;
use crate::panels::{SettingRow, capitalized, seconds, weak};
use crate::runs::{ShownRun, TrainingFigures, rate_text};
use crate::state::State;
use crate::theme;
use crate::training::TrainingAction;
use crate::training::run::{RunState, TrainingRun};
use crate::work::{JobState, JobView};
use cytoscope_pipeline::{Note, NoteLevel, ProgressStage};
use cytoscope_profile::{bytes_text, count_text, time_text};
use cytoscope_train::{StepPoint, TrainingPlan};
use eframe::egui::{self, RichText, Ui, vec2};
use egui_phosphor::regular as icon;

/// Height of the progress bar in points.
const PROGRESS_BAR: f32 = 10.0;
/// Number of log lines shown, newest first.
const SHOWN_NOTES: usize = 60;
/// Number of loss points that the displayed figures average over.
const RECENT: usize = 20;

/// Means over the newest points of a run.
#[derive(Debug, PartialEq)]
struct Recent {
    /// Number of steps that the points cover.
    steps: u64,
    loss: f64,
    /// Seconds per step.
    step_secs: f64,
    /// Share of that time spent waiting for data.
    stalled: f64,
}

impl Recent {
    /// The means of a run; `None` before its first point.
    fn of(run: &TrainingRun) -> Option<Self> {
        let mut newest_first = run.history.steps.iter().rev();
        let points: Vec<_> = newest_first.by_ref().take(RECENT).collect();
        let before = newest_first.next().map_or(0, |point| point.step);
        let steps = points.first()?.step.saturating_sub(before);
        let n = points.len() as f64;
        let mean = |f: fn(&StepPoint) -> f64| points.iter().map(|p| f(p)).sum::<f64>() / n;
        let step_secs = mean(|p| p.step_secs);
        let stalled = mean(|p| p.stalled_secs) / step_secs.max(1e-9);
        Some(Self { steps, loss: mean(|p| p.loss), step_secs, stalled })
    }
}

/// What is done after the last step: the segmentation is tuned, the network is tested and quantized.
const FINISHING: &str = "Finishing: preparing and testing the best network";

/// Whether no further step is made.
fn is_finishing(run: &TrainingRun) -> bool {
    matches!(run.state, RunState::Finishing(_)) || (run.steps > 0 && run.step() >= run.steps)
}

/// Current phase as text, and progress from 0 to 1, unless it is unknown.
fn phase(run: &TrainingRun, job: Option<&JobView>) -> (String, Option<f32>) {
    let progress = Some(run.step() as f32 / run.steps.max(1) as f32);
    match (&run.state, job) {
        (RunState::Paused, _) => ("Paused".to_owned(), progress),
        (RunState::Failed(_), _) => ("Failed".to_owned(), progress),
        (RunState::Pausing(_), _) => ("Pausing: saving a checkpoint".to_owned(), progress),
        // The remaining steps are not made.
        (RunState::Finishing(_), _) => (FINISHING.to_owned(), None),
        (RunState::Stopping(_), _) => ("Stopping…".to_owned(), progress),
        (_, Some(job)) if job.state == JobState::Queued => ("Waiting for another job".to_owned(), Some(0.0)),
        (_, Some(job)) if job.progress.is_some_and(|progress| progress.stage == ProgressStage::Check) => {
            match job.share() {
                share if share < 1.0 => ("Checking the data".to_owned(), Some(share)),
                // How long it takes is unknown.
                _ => ("Preparing the data".to_owned(), None),
            }
        }
        _ if run.steps == 0 && run.plan.is_none() => ("Measuring the time per step".to_owned(), Some(0.0)),
        _ if is_finishing(run) => (FINISHING.to_owned(), Some(1.0)),
        _ => ("Training".to_owned(), progress),
    }
}

/// The part of its current phase that a running job has done, unless it is unknown. That of the run of the wizard is the same as
/// on its page.
pub(crate) fn job_share(run: &TrainingRun, job: &JobView) -> Option<f32> {
    if run.job() == Some(job.id) { phase(run, Some(job)).1 } else { Some(job.share()) }
}

/// Whether a running job is that of the run of the wizard, which makes no further step.
pub(crate) fn is_ending(run: &TrainingRun, job: &JobView) -> bool {
    let is_told_to_stop = matches!(run.state, RunState::Pausing(_) | RunState::Stopping(_));
    run.job() == Some(job.id) && (is_told_to_stop || is_finishing(run))
}

/// Draws the page.
pub(super) fn progress_page(ui: &mut Ui, state: State<'_>, panel: &mut TrainPanel, actions: &mut Actions) {
    let wizard = state.wizard();
    let run = &wizard.run;
    page_header(ui, &format!("Training of {}", wizard.plan.name), "");
    let job = run.job().and_then(|id| state.jobs.get(id));
    let (what, share) = phase(run, job);
    ui.horizontal_wrapped(|ui| {
        if run.job().is_some() {
            ui.spinner();
        }
        ui.label(RichText::new(what).strong().size(15.0));
    });
    match share {
        Some(share) => _ = ui.add(egui::ProgressBar::new(share).desired_height(PROGRESS_BAR)),
        // As high as the bar, so that no button moves.
        None => ui.add_space(PROGRESS_BAR + ui.spacing().item_spacing.y),
    }
    let memory = state.jobs.memory().map(|(now, _)| now).filter(|_| run.job().is_some());
    let progress = job.and_then(|job| job.progress).filter(|progress| progress.stage == ProgressStage::Train);
    let eta_secs = progress.map(|progress| progress.eta_secs).filter(|eta| eta.is_finite() && *eta > 0.0);
    figures(ui, run, job.and_then(|job| ShownRun::Job(job).training()), memory, eta_secs);
    ui.add_space(theme::GAP);
    let reason = reason_against_running(state);
    if matches!(run.state, RunState::Paused | RunState::Failed(_)) {
        // Another device may continue the run.
        egui::Grid::new("settings of a paused run").num_columns(2).spacing([20.0, 6.0]).show(ui, |ui| {
            device_and_precision(ui, state, SettingRow::Grid, actions);
        });
        if let Some(reason) = reason {
            weak(ui, reason);
        }
    }
    run_buttons(ui, run, reason, actions);
    if let RunState::Failed(reason) = &run.state {
        let color = theme::bad(ui.visuals());
        colored(ui, color, format!("{}  {reason}", icon::WARNING_CIRCLE));
        let text = if run.steps > 0 {
            "Continue from the last checkpoint, or stop and start over. Without a checkpoint, the run starts again."
        } else {
            "No step was completed: change the settings or the data, or try again."
        };
        weak(ui, text);
    }
    if let Some(plan) = &run.plan {
        weak(ui, planned_text(plan))
            .on_hover_text("Timed before the first step; the figures above are those of the latest steps");
    }
    // Before and after the steps, the notes say what is done.
    let shows_note = run.job().is_some() && (run.plan.is_none() || is_finishing(run));
    if let Some(note) = run.notes.last().filter(|note| shows_note && !states_plan(note, run.plan.as_ref())) {
        note_label(ui, note);
    }
    curves(ui, wizard, panel, true);
    log(ui, run);
    if run.job().is_some() {
        // Keeps the times up to date between events.
        ui.ctx().request_repaint_after(std::time::Duration::from_millis(500));
    }
}

/// The plan of a run, labeled, because the run may be faster or slower than planned.
fn planned_text(plan: &TrainingPlan) -> String {
    format!("Planned: {}", plan.text())
}

/// Whether a note states the plan of a run, which is shown above the notes with the number of steps that it has now.
fn states_plan(note: &Note, plan: Option<&TrainingPlan>) -> bool {
    // The number of parameters comes first and does not change during a run.
    plan.is_some_and(|plan| note.message.split(';').next() == plan.text().split(';').next())
}

/// Draws the figures of a run; `memory` is the resident memory of the engine in bytes, and `eta_secs` the remaining time
/// that the job reports, which includes validations.
fn figures(
    ui: &mut Ui,
    run: &TrainingRun,
    measured: Option<TrainingFigures>,
    memory: Option<u64>,
    eta_secs: Option<f64>,
) {
    if run.steps == 0 && run.job().is_none() {
        return;
    }
    ui.horizontal_wrapped(|ui| {
        ui.spacing_mut().item_spacing.x = 26.0;
        let mut figure = |name: &str, value: String, hint: &str| {
            let galley = |text: RichText| {
                let text = egui::WidgetText::from(text);
                text.into_galley(ui, Some(egui::TextWrapMode::Extend), f32::INFINITY, egui::TextStyle::Body)
            };
            let lines = [galley(RichText::new(name).weak().size(11.5)), galley(RichText::new(value).size(16.0))];
            // The size is stated, so that the row wraps where a figure does not fit.
            let width = lines.iter().map(|line| line.size().x).fold(0.0, f32::max);
            let height = lines.iter().map(|line| line.size().y).sum::<f32>() + ui.spacing().item_spacing.y;
            ui.allocate_ui_with_layout(vec2(width, height), egui::Layout::top_down(egui::Align::Min), |ui| {
                for line in lines {
                    let label = ui.label(line);
                    if !hint.is_empty() {
                        label.on_hover_text(hint);
                    }
                }
            });
        };
        // Shown before the first step, too, so that no button moves then.
        let steps = match run.steps {
            0 => "–".to_owned(),
            steps => format!("{} of {}", count_text(run.step()), count_text(steps)),
        };
        figure("Step", steps, "");
        if let Some(recent) = Recent::of(run) {
            let left = eta_secs.unwrap_or(run.steps.saturating_sub(run.step()) as f64 * recent.step_secs);
            if matches!(run.state, RunState::Running(_)) && left > 0.0 {
                figure("Remaining", seconds(left), "");
            }
            let mean = format!("Mean of the last {}", counted(recent.steps, "step"));
            figure("Time per step", time_text(recent.step_secs), &mean);
            if let Some(rate) = measured.and_then(|m| m.samples_per_sec) {
                figure("Samples/s", rate_text(rate), "Training patches per second");
            }
            let stalled = format!("{:.0} %", recent.stalled * 100.0);
            figure("Waiting for data", stalled, "Share of the time per step in which no training patch is ready");
            if let Some(share) = measured.and_then(|m| m.device_share) {
                figure("Device busy", format!("{:.0} %", share * 100.0), "");
            }
            if let Some(bytes) = memory.filter(|bytes| *bytes > 0) {
                figure("Memory", bytes_text(bytes), "Memory of the engine process now");
            }
            if let Some(memory) = measured.and_then(|m| m.device_memory) {
                figure("Device memory", bytes_text(memory.allocated_bytes), "");
            }
            figure("Mean loss", format!("{:.3}", recent.loss), &mean);
        }
        let best = run.history.validations.iter().rev().find(|v| v.best);
        if let Some(best) = best {
            let at = format!("{:.3} at step {}", best.score, count_text(best.step));
            figure("Best validation score", at, "");
        }
    });
}

/// Draws the buttons of a run; `reason` says why none can run now.
fn run_buttons(ui: &mut Ui, run: &TrainingRun, reason: Option<&'static str>, actions: &mut Actions) {
    let can_run = reason.is_none();
    button_row(ui, "buttons of the training run", |ui| match &run.state {
        RunState::Running(_) => {
            if icon_text_button(ui, true, icon::PAUSE, "Pause training").clicked() {
                actions.send(TrainingAction::Pause);
            }
            finish_button(ui, run, reason, actions);
            stop_button(ui, run, actions);
        }
        RunState::Finishing(_) => stop_button(ui, run, actions),
        RunState::Failed(_) if run.steps == 0 => {
            if primary_button(ui, true, icon::ARROW_LEFT, "Change settings").clicked() {
                actions.send(TrainingAction::Stop);
            }
            let again = icon_text_button(ui, can_run, icon::ARROWS_CLOCKWISE, "Try again");
            if again.on_disabled_hover_text(reason.unwrap_or_default()).clicked() {
                actions.send(TrainingAction::Continue);
            }
        }
        RunState::Paused | RunState::Failed(_) => {
            let on = primary_button(ui, can_run, icon::PLAY, "Continue training");
            if on.on_disabled_hover_text(reason.unwrap_or_default()).clicked() {
                actions.send(TrainingAction::Continue);
            }
            finish_button(ui, run, reason, actions);
            stop_button(ui, run, actions);
        }
        RunState::Pausing(_) | RunState::Stopping(_) | RunState::Idle => {}
    });
}

/// Draws the button that ends training with the best network, enabled once a step is done, unless `reason` says why no run
/// can run.
fn finish_button(ui: &mut Ui, run: &TrainingRun, reason: Option<&'static str>, actions: &mut Actions) {
    let reason = (run.step() == 0).then_some("No step has been completed yet.").or(reason);
    let response = icon_text_button(ui, reason.is_none(), icon::FLAG_CHECKERED, "Finish now")
        .on_hover_text("End training now and write the best network so far")
        .on_disabled_hover_text(reason.unwrap_or_default());
    if response.clicked() {
        actions.send(TrainingAction::Finish);
    }
}

fn stop_button(ui: &mut Ui, run: &TrainingRun, actions: &mut Actions) {
    if !run.confirm_discard {
        if icon_text_button(ui, true, icon::STOP, "Stop…").clicked() {
            actions.send(TrainingAction::ConfirmDiscard(true));
        }
        return;
    }
    ui.label("Discard this training run?");
    if icon_text_button(ui, true, icon::TRASH, "Discard training run").clicked() {
        actions.send(TrainingAction::Stop);
    }
    if icon_text_button(ui, true, icon::ARROW_U_UP_LEFT, "Cancel").clicked() {
        actions.send(TrainingAction::ConfirmDiscard(false));
    }
}

fn log(ui: &mut Ui, run: &TrainingRun) {
    if run.notes.is_empty() {
        return;
    }
    ui.add_space(theme::GAP);
    egui::CollapsingHeader::new("Log").show(ui, |ui| {
        for note in run.notes.iter().rev().take(SHOWN_NOTES) {
            note_label(ui, note);
        }
    });
}

/// Draws a note; a warning stands out.
pub(super) fn note_label(ui: &mut Ui, note: &Note) {
    match note.level {
        NoteLevel::Info => _ = weak(ui, capitalized(&note.message)),
        NoteLevel::Warning => {
            let color = theme::warn(ui.visuals());
            colored(ui, color, format!("{}  {}", icon::WARNING, capitalized(&note.message)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Purpose;
    use cytoscope_pipeline::{ProgressUnit, StageProgress};
    use cytoscope_worker::JobId;

    #[test]
    fn the_phase_after_all_pairs_were_checked_is_preparing_the_data_without_a_share() {
        let mut run = TrainingRun::default();
        run.state = RunState::Running(JobId(1));
        let mut job = JobView::new(JobId(1), "Training of a".to_owned(), Purpose::Training);
        assert_eq!(phase(&run, Some(&job)), ("Waiting for another job".to_owned(), Some(0.0)));
        job.state = JobState::Running;
        let progress =
            |stage, done| StageProgress { stage, done, total: 4, unit: ProgressUnit::Pairs, rate: 1.0, eta_secs: 1.0 };
        job.progress = Some(progress(ProgressStage::Check, 2));
        assert_eq!(phase(&run, Some(&job)), ("Checking the data".to_owned(), Some(0.5)));
        job.progress = Some(progress(ProgressStage::Check, 4));
        assert_eq!(phase(&run, Some(&job)), ("Preparing the data".to_owned(), None));
        // The status bar shows no full bar, unless this is the job of another run.
        assert_eq!(job_share(&run, &job), None);
        run.state = RunState::Idle;
        assert_eq!(job_share(&run, &job), Some(1.0));
        run.state = RunState::Running(JobId(1));
        job.progress = Some(progress(ProgressStage::Train, 0));
        assert_eq!(phase(&run, Some(&job)), ("Measuring the time per step".to_owned(), Some(0.0)));
        // The time per step is known as soon as the steps are planned.
        run.plan = Some(TrainingPlan {
            parameters: 1000,
            step_secs: 2.0,
            validation_secs: 1.0,
            steps: 100,
            epochs: 8.0,
            minutes: 5.0,
            activation_bytes: 1 << 20,
        });
        assert_eq!(phase(&run, Some(&job)), ("Training".to_owned(), Some(0.0)));
        // The number of steps that are planned changes during the run.
        let note = run.plan.map(|plan| Note::info(TrainingPlan { steps: 90, ..plan }.text()));
        assert!(note.is_some_and(|note| states_plan(&note, run.plan.as_ref()) && !states_plan(&note, None)));
        assert!(!states_plan(&Note::info("quantizing the network"), run.plan.as_ref()));
        let planned = run.plan.as_ref().map(planned_text).unwrap_or_default();
        assert!(planned.starts_with("Planned: 1,000 trainable parameters; a step takes 2.000 s"), "{planned}");
        run.steps = 1;
        run.history.steps.push(StepPoint { step: 1, loss: 1.0, rate: 0.1, step_secs: 1.0, stalled_secs: 0.0 });
        assert_eq!(phase(&run, Some(&job)), (FINISHING.to_owned(), Some(1.0)));
        // The remaining steps are not made.
        run.steps = 100;
        assert!(!is_finishing(&run) && !is_ending(&run, &job));
        run.state = RunState::Finishing(JobId(1));
        assert_eq!(phase(&run, Some(&job)), (FINISHING.to_owned(), None));
        assert!(is_finishing(&run) && is_ending(&run, &job));
        let other = JobView::new(JobId(2), "Training of b".to_owned(), Purpose::Training);
        assert!(!is_ending(&run, &other));
        run.state = RunState::Pausing(JobId(1));
        assert!(is_ending(&run, &job));
        run.state = RunState::Paused;
        assert!(!is_ending(&run, &job));
    }

    #[test]
    fn recent_figures_are_means_of_the_steps_that_they_name() {
        let mut run = TrainingRun::default();
        assert_eq!(Recent::of(&run), None);
        // Each point is the mean of 5 steps.
        let point = |i: u64| StepPoint {
            step: 5 * (i + 1),
            loss: if i < 30 { 8.0 } else { (i - 29) as f64 },
            rate: 0.1,
            step_secs: 2.0,
            stalled_secs: 0.5,
        };
        run.history.steps.push(point(0));
        assert_eq!(Recent::of(&run), Some(Recent { steps: 5, loss: 8.0, step_secs: 2.0, stalled: 0.25 }));
        run.history.steps.extend((1..50).map(point));
        // The mean of the numbers from 1 to 20.
        assert_eq!(Recent::of(&run), Some(Recent { steps: 100, loss: 10.5, step_secs: 2.0, stalled: 0.25 }));
    }
}
