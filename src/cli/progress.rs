//! Shows a job's events on a terminal, or as JSON lines on stderr.

use super::{eprint_json, eprint_line, signals};
use cytoscope_pipeline::{CancelToken, Context, Event, with_name};
use cytoscope_profile::Recorder;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns a context whose events are shown, and which Ctrl-C, SIGTERM and SIGHUP cancel.
pub(crate) fn context(json_lines: bool, quiet: bool, recorder: Recorder) -> Context {
    let cancel = CancelToken::default();
    let token = cancel.clone();
    let handler = signals::handle(move |request| {
        // The system may send SIGTERM repeatedly; only a second Ctrl-C ends the program at once.
        if token.is_cancelled() && request == signals::Request::Terminate {
            return;
        }
        if token.is_cancelled() {
            // The job is not waited for, so its unfinished files are removed here.
            cytoscope_storage::write::remove_unfinished();
            std::process::exit(5);
        }
        token.cancel();
        eprint_line("cancelling: finishing the current tile or step first (press Ctrl-C again to stop at once)");
    });
    if let Err(error) = handler {
        eprint_line(&format!("note: Ctrl-C will stop the program without removing unfinished files ({error})"));
    }
    let sink: Arc<dyn Fn(&Event) + Send + Sync> = if json_lines {
        Arc::new(eprint_json)
    } else if quiet {
        Arc::new(|_| {})
    } else if std::io::stderr().is_terminal() {
        let bar: Mutex<Option<(String, ProgressBar)>> = Mutex::new(None);
        Arc::new(move |event| show(event, &mut bar.lock().unwrap_or_else(PoisonError::into_inner)))
    } else {
        Arc::new(print_event)
    };
    Context { cancel, sink, recorder }
}

/// Prints the events that are worth a line on stderr; progress needs a terminal.
fn print_event(event: &Event) {
    match event {
        Event::Started { input, index, count } => eprint_line(&format!("[{}/{count}] {}", index + 1, input.display())),
        Event::Note { message } => eprint_line(&format!("note: {message}")),
        Event::Failed { input, reason } => {
            eprint_line(&format!("failed: {}", with_name(&input.display().to_string(), reason)))
        }
        Event::Validated { step, score, scores, best } => {
            let all: Vec<String> = scores.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
            let mark = if *best { ", best so far" } else { "" };
            eprint_line(&format!("step {step}: validation score {score:.4} ({}){mark}", all.join(", ")));
        }
        Event::TrainingSteps { step, steps, loss, rate, step_secs, .. } => {
            eprint_line(&format!(
                "step {step} of {steps}: loss {loss:.4}, learning rate {rate:.1e}, {step_secs:.2} s/step"
            ));
        }
        // A plan is also reported as a note.
        Event::Planned(_)
        | Event::Device { .. }
        | Event::Finished { .. }
        | Event::ValidationPreview { .. }
        | Event::Progress { .. } => {}
    }
}

fn show(event: &Event, bar: &mut Option<(String, ProgressBar)>) {
    let Event::Progress { stage, done, total, unit, .. } = event else {
        if let Some((_, bar)) = bar.take() {
            bar.finish_and_clear();
        }
        return print_event(event);
    };
    if bar.as_ref().is_none_or(|(current, _)| current != stage) {
        if let Some((_, old)) = bar.take() {
            old.finish_and_clear();
        }
        let fresh = ProgressBar::new(*total);
        let template = if *unit == "voxels" {
            "{msg:9} {bar:32} {percent:>3} %  {per_sec}  {eta} left"
        } else {
            "{msg:9} {bar:32} {pos}/{len}  {eta} left"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            fresh.set_style(style);
        }
        fresh.set_message(stage.clone());
        *bar = Some((stage.to_string(), fresh));
    }
    if let Some((_, bar)) = bar {
        bar.set_position(*done);
    }
}
