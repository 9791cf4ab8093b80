//! Shows a job's events on a terminal, or as JSON lines on stderr.

use super::failed_inputs::InputEvents;
use super::{eprint_json, eprint_line, note_line, signals};
use cytoscope_pipeline::{CancelToken, Context, Event, Note, ProgressStage, ProgressUnit, StageProgress};
use cytoscope_profile::{Recorder, time_text};
use cytoscope_train::{TrainEvent, ValidationPoint};
use indicatif::{HumanDuration, HumanFloatCount, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two lines of progress, if there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Where a job's events go.
pub(crate) enum Display {
    /// JSON lines on stderr.
    Json,
    /// Nowhere.
    Quiet,
    /// A terminal, with the progress bar of the current stage.
    Terminal(Mutex<Option<StageBar>>),
    /// Lines on stderr, with the time of the last line of progress.
    Lines(Mutex<Instant>),
}

/// A stage with the unit that it counts, and its progress bar.
type StageBar = ((ProgressStage, ProgressUnit), ProgressBar);

impl Display {
    fn new(json_lines: bool, quiet: bool) -> Self {
        if json_lines {
            Self::Json
        } else if quiet {
            Self::Quiet
        } else if std::io::stderr().is_terminal() {
            Self::Terminal(Mutex::new(None))
        } else {
            Self::Lines(Mutex::new(Instant::now()))
        }
    }

    fn event(&self, event: &Event) {
        match self {
            Self::Json => eprint_json(event),
            Self::Quiet => {}
            Self::Terminal(bar) => show(event, &mut bar.lock().unwrap_or_else(PoisonError::into_inner)),
            Self::Lines(last) => {
                if let Event::Progress(progress) = event
                    // Training runs print their own lines.
                    && progress.stage != ProgressStage::Train
                    && is_due(&mut last.lock().unwrap_or_else(PoisonError::into_inner), Instant::now())
                {
                    eprint_line(&progress_line(progress));
                }
                print_event(event);
            }
        }
    }

    /// Shows an event of a training run.
    pub(crate) fn training_event(&self, event: &TrainEvent) {
        match self {
            Self::Json => eprint_json(event),
            Self::Quiet => {}
            Self::Terminal(bar) => {
                clear(&mut bar.lock().unwrap_or_else(PoisonError::into_inner));
                print_training_event(event);
            }
            Self::Lines(_) => print_training_event(event),
        }
    }
}

/// Returns a context whose events are shown, and which Ctrl-C, SIGTERM and SIGHUP cancel.
pub(crate) fn context(json_lines: bool, quiet: bool, recorder: Recorder) -> Context {
    training_context(json_lines, quiet, recorder).0
}

/// Like [`context`], and returns where to show the events of a training run.
pub(crate) fn training_context(json_lines: bool, quiet: bool, recorder: Recorder) -> (Context, Arc<Display>) {
    let cancel = CancelToken::default();
    let token = cancel.clone();
    let handler = signals::handle(move |request| {
        // The system may send SIGTERM repeatedly; only a second Ctrl-C ends the program at once.
        if token.is_canceled() && request == signals::TerminationRequest::Terminate {
            return;
        }
        if token.is_canceled() {
            // The job is not waited for, so its unfinished files and folders are removed here.
            cytoscope_storage::write::remove_unfinished();
            cytoscope_storage::partial_folder::remove_unfinished_folders();
            std::process::exit(5);
        }
        token.cancel();
        let text = "canceling: finishing the current tile or step first (press Ctrl-C again to stop at once)";
        if json_lines {
            eprint_json(&Event::Note(Note::info(text)));
        } else {
            eprint_line(text);
        }
    });
    if let Err(error) = handler {
        let note = Note::info(format!("Ctrl-C will stop the program without removing unfinished files ({error})"));
        if json_lines {
            eprint_json(&Event::Note(note));
        } else {
            eprint_line(&note_line(&note));
        }
    }
    let display = Arc::new(Display::new(json_lines, quiet));
    let sink_display = Arc::clone(&display);
    let inputs = Mutex::new(InputEvents::default());
    let sink: Arc<dyn Fn(&Event) + Send + Sync> = Arc::new(move |event: &Event| {
        if json_lines {
            return sink_display.event(event);
        }
        let (before, is_shown) = inputs.lock().unwrap_or_else(PoisonError::into_inner).shown_events(event);
        if let Some(before) = before {
            sink_display.event(&before);
        }
        if is_shown {
            sink_display.event(event);
        }
    });
    (Context { cancel, sink, recorder }, display)
}

/// Returns a context that also keeps the notes, and the list in which it keeps them.
pub(crate) fn with_notes(context: Context) -> (Context, Arc<Mutex<Vec<String>>>) {
    let notes = Arc::<Mutex<Vec<String>>>::default();
    let (kept, shown) = (Arc::clone(&notes), Arc::clone(&context.sink));
    let sink = move |event: &Event| {
        if let Event::Note(note) = event {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(note.to_string());
        }
        shown(event);
    };
    (Context { sink: Arc::new(sink), ..context }, notes)
}

/// Returns the notes that were kept since the last call.
pub(crate) fn taken(notes: &Mutex<Vec<String>>) -> Vec<String> {
    std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns whether the next line of progress is due, and then counts it as printed.
fn is_due(last: &mut Instant, now: Instant) -> bool {
    let is_due = now.saturating_duration_since(*last) >= LINE_INTERVAL;
    if is_due {
        *last = now;
    }
    is_due
}

/// Returns the progress of a stage as a line.
fn progress_line(progress: &StageProgress) -> String {
    let StageProgress { stage, done, total, unit, .. } = progress;
    let counted = match unit {
        ProgressUnit::Seconds => format!("{done} s"),
        ProgressUnit::Voxels => format!("{:.0} %", 100.0 * progress.share()),
        _ => format!("{done} of {total} {unit}"),
    };
    let left = time_left(progress).map_or_else(String::new, |left| format!(", {left}"));
    format!("{stage}: {counted}{left}")
}

/// Prints the events that are worth a line on stderr, without progress.
fn print_event(event: &Event) {
    match event {
        Event::Started { input, index, count } => eprint_line(&format!("[{}/{count}] {}", index + 1, input.display())),
        Event::Planned { plan, .. } => eprint_line(&format!("planned: {}", plan.text())),
        Event::Note(note) => eprint_line(&note_line(note)),
        Event::Failed { reason, names_input: true, .. } => eprint_line(&format!("failed: {reason}")),
        Event::Failed { input, reason, names_input: false } => {
            eprint_line(&format!("failed: {}: {reason}", input.display()))
        }
        Event::Device(_)
        | Event::DeviceTried { .. }
        | Event::DeviceLost { .. }
        | Event::Finished { .. }
        | Event::Progress(_) => {}
    }
}

/// Prints the training events that are worth a line on stderr.
fn print_training_event(event: &TrainEvent) {
    match event {
        TrainEvent::Validated(ValidationPoint { step, score, scores, best }) => {
            let all: Vec<String> = scores.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
            let mark = if *best { ", kept so far" } else { "" };
            eprint_line(&format!("step {step}: validation score {score:.4} ({}){mark}", all.join(", ")));
        }
        TrainEvent::TrainingSteps { step, steps, loss, rate, step_secs, .. } => {
            eprint_line(&format!(
                "step {step} of {steps}: loss {loss:.4}, learning rate {rate:.1e}, {}/step",
                time_text(*step_secs)
            ));
        }
        TrainEvent::Status(status) => eprint_line(&status.line()),
        // A plan is also reported as a note.
        TrainEvent::Planned(_) | TrainEvent::ValidationPreview { .. } => {}
    }
}

/// Removes the progress bar from the terminal.
fn clear(bar: &mut Option<StageBar>) {
    if let Some((_, bar)) = bar.take() {
        bar.finish_and_clear();
    }
}

fn show(event: &Event, bar: &mut Option<StageBar>) {
    let Event::Progress(progress) = event else {
        clear(bar);
        return print_event(event);
    };
    let StageProgress { stage, done, total, unit, .. } = progress;
    if bar.as_ref().is_none_or(|(current, _)| *current != (*stage, *unit)) {
        clear(bar);
        let fresh = ProgressBar::new(*total);
        let template = match unit {
            // The length of the stage is unknown.
            ProgressUnit::Seconds => "{msg:9} {pos} s",
            ProgressUnit::Voxels => "{msg:9} {bar:32} {percent:>3} %  {prefix}",
            _ => "{msg:9} {bar:32} {pos}/{len}  {prefix}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            fresh.set_style(style);
        }
        fresh.set_message(stage.name());
        *bar = Some(((*stage, *unit), fresh));
    }
    if let Some((_, bar)) = bar {
        // The length of a training run changes with its plan.
        bar.set_length(*total);
        bar.set_prefix(remaining(progress));
        bar.set_position(*done);
    }
}

/// Returns the time that a stage still takes, if it is known, and the rate of voxels. The bar's own estimates would count
/// what an earlier run has done, and what was done before the bar was drawn again, as done in no time.
fn remaining(progress: &StageProgress) -> String {
    let StageProgress { unit, rate, .. } = progress;
    let rate = (*unit == ProgressUnit::Voxels).then(|| format!("{:.0}/s", HumanFloatCount(*rate)));
    rate.into_iter().chain(time_left(progress)).collect::<Vec<_>>().join("  ")
}

/// Returns the time that a stage still takes; `None` if it is not known.
fn time_left(progress: &StageProgress) -> Option<String> {
    let left = Duration::try_from_secs_f64(progress.eta_secs).ok().filter(|left| !left.is_zero())?;
    Some(format!("{:#} left", HumanDuration(left)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seconds_of_a_stage_do_not_continue_the_bar_of_its_slices() {
        let progress = |done, total, unit| {
            let stage = ProgressStage::Write;
            Event::Progress(StageProgress { stage, done, total, unit, rate: 1.0, eta_secs: 0.0 })
        };
        let mut bar = None;
        let mut shown = |event: Event| {
            show(&event, &mut bar);
            bar.as_ref().map(|(_, bar)| (bar.position(), bar.length()))
        };
        assert_eq!(shown(progress(3, 12, ProgressUnit::Slices)), Some((3, Some(12))));
        // The plan of the stage has changed.
        assert_eq!(shown(progress(4, 20, ProgressUnit::Slices)), Some((4, Some(20))));
        assert_eq!(shown(progress(5, 0, ProgressUnit::Seconds)), Some((5, Some(0))));
    }

    #[test]
    fn without_a_terminal_progress_is_a_line_now_and_then() {
        let start = Instant::now();
        let mut last = start;
        let secs = |secs| start + Duration::from_secs(secs);
        let due: Vec<u64> = (0..100).filter(|at| is_due(&mut last, secs(*at))).collect();
        assert_eq!(due, [30, 60, 90]);
        let line = |stage, done, total, unit, eta_secs| {
            progress_line(&StageProgress { stage, done, total, unit, rate: 1.0, eta_secs })
        };
        let runs = line(ProgressStage::Calibrate, 12, 40, ProgressUnit::Runs, 180.0);
        assert_eq!(runs, "calibrate: 12 of 40 runs, 3m left");
        assert_eq!(line(ProgressStage::Predict, 1, 4, ProgressUnit::Voxels, 0.0), "predict: 25 %");
        assert_eq!(line(ProgressStage::Tuning, 40, 0, ProgressUnit::Seconds, 0.0), "tuning: 40 s");
    }

    #[test]
    fn the_time_left_is_that_of_the_event() {
        let of = |unit, rate, eta_secs| {
            remaining(&StageProgress { stage: ProgressStage::Predict, done: 900, total: 1000, unit, rate, eta_secs })
        };
        assert_eq!(of(ProgressUnit::Steps, 2.0, 120.0), "2m left");
        assert_eq!(of(ProgressUnit::Voxels, 2_500_000.4, 180.0), "2,500,000/s  3m left");
        for unknown in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(of(ProgressUnit::Slices, 0.0, unknown), "", "{unknown}");
        }
    }
}
