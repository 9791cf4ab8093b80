//! A job's events on a terminal, or as JSON lines on stderr.

use super::say;
use cytoscope_pipeline::{CancelToken, Context, Event};
use cytoscope_profile::Recorder;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};

/// A context whose events are shown, and which Ctrl-C cancels.
pub(crate) fn context(json_lines: bool, quiet: bool, recorder: Recorder) -> Context {
    let cancel = CancelToken::default();
    let token = cancel.clone();
    let handler = ctrlc::set_handler(move || {
        if token.is_cancelled() {
            // Asked twice: the temporary files have no names, so nothing half-written stays.
            std::process::exit(5);
        }
        token.cancel();
        say("cancelling: the tile under way is finished first (Ctrl-C again stops at once)");
    });
    if let Err(error) = handler {
        say(&format!("note: Ctrl-C will stop without cleaning up ({error})"));
    }
    let sink: Arc<dyn Fn(&Event) + Send + Sync> = if json_lines {
        Arc::new(|event| {
            if let Ok(line) = serde_json::to_string(event) {
                say(&line);
            }
        })
    } else if quiet {
        Arc::new(|_| {})
    } else if std::io::stderr().is_terminal() {
        let bar: Mutex<Option<(&'static str, ProgressBar)>> = Mutex::new(None);
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
        Event::Failed { input, reason } => say(&format!("failed: {}: {reason}", input.display())),
        Event::Finished { .. } | Event::Progress { .. } => {}
    }
}

fn show(event: &Event, bar: &mut Option<(&'static str, ProgressBar)>) {
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
        fresh.set_message(*stage);
        *bar = Some((stage, fresh));
    }
    if let Some((_, bar)) = bar {
        bar.set_position(*done);
    }
}
