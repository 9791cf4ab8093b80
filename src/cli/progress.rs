//! A job's events on a terminal, or as JSON lines on stderr.

use super::say;
use cytoscope_pipeline::{CancelToken, Context, Event, naming};
use cytoscope_profile::Recorder;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The folder of results, once a command has named it.
static OUT: OnceLock<PathBuf> = OnceLock::new();

/// Names the folder whose half-written files go when Ctrl-C is pressed twice.
pub(crate) fn results_in(folder: &Path) {
    // A bare file name has an empty parent.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let _ = OUT.set(folder.to_owned());
}

/// Removes this process' half-written files.
fn remove_partial(folder: &Path) {
    let ours = format!(".partial-{}-", std::process::id());
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().contains(&ours) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// A context whose events are shown, and which Ctrl-C cancels.
pub(crate) fn context(json_lines: bool, quiet: bool, recorder: Recorder) -> Context {
    let cancel = CancelToken::default();
    let token = cancel.clone();
    let handler = ctrlc::set_handler(move || {
        if token.is_cancelled() {
            // Asked twice: the job is not waited for, so its half-written files are removed here.
            if let Some(folder) = OUT.get() {
                remove_partial(folder);
            }
            std::process::exit(5);
        }
        token.cancel();
        say("cancelling: what is under way is finished first (Ctrl-C again stops at once)");
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
