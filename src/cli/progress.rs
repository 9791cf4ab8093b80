//! A job's events on a terminal, or as JSON lines on stderr.

use super::{say, say_json, signals};
use cytoscope_pipeline::{CancelToken, Context, Event, naming};
use cytoscope_profile::Recorder;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};

/// A context whose events are shown, and which Ctrl-C, SIGTERM and SIGHUP cancel.
pub(crate) fn context(json_lines: bool, quiet: bool, recorder: Recorder) -> Context {
    let cancel = CancelToken::default();
    let token = cancel.clone();
    let handler = signals::handle(move |request| {
        // The system may ask more than once; only a person who asks twice will not wait.
        if token.is_cancelled() && request == signals::Request::Terminate {
            return;
        }
        if token.is_cancelled() {
            // Asked twice: the job is not waited for, so its unfinished files are removed here.
            cytoscope_storage::write::remove_unfinished();
            std::process::exit(5);
        }
        token.cancel();
        say("cancelling: what is under way is finished first (Ctrl-C again stops at once)");
    });
    if let Err(error) = handler {
        say(&format!("note: Ctrl-C will stop without cleaning up ({error})"));
    }
    let sink: Arc<dyn Fn(&Event) + Send + Sync> = if json_lines {
        Arc::new(say_json)
    } else if quiet {
        Arc::new(|_| {})
    } else if std::io::stderr().is_terminal() {
        let bar: Mutex<Option<(String, ProgressBar)>> = Mutex::new(None);
        Arc::new(move |event| show(event, &mut bar.lock().unwrap_or_else(PoisonError::into_inner)))
    } else {
        Arc::new(tell)
    };
    Context { cancel, sink, recorder }
}

/// Events that are worth a line without a terminal.
fn tell(event: &Event) {
    match event {
        Event::Started { input, index, count } => say(&format!("[{}/{count}] {}", index + 1, input.display())),
        Event::Note { message } => say(&format!("note: {message}")),
        Event::Failed { input, reason } => say(&format!("failed: {}", naming(&input.display().to_string(), reason))),
        Event::Validated { step, score, scores, best } => {
            let all: Vec<String> = scores.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
            let mark = if *best { ", the best so far" } else { "" };
            say(&format!("step {step}: score {score:.4} ({}){mark}", all.join(", ")));
        }
        Event::Learned { step, steps, loss, rate, step_secs, .. } => {
            say(&format!("step {step} of {steps}: loss {loss:.4}, rate {rate:.1e}, {step_secs:.2} s a step"));
        }
        Event::Device { .. } | Event::Finished { .. } | Event::Pictured { .. } | Event::Progress { .. } => {}
    }
}

fn show(event: &Event, bar: &mut Option<(String, ProgressBar)>) {
    let Event::Progress { stage, done, total, unit, .. } = event else {
        if let Some((_, bar)) = bar.take() {
            bar.finish_and_clear();
        }
        return tell(event);
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
