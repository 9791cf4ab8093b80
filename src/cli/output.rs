//! What commands print: results on stdout, everything else on stderr.

use super::failure::{Failure, Outcome};
use cytoscope_pipeline::JobErrorKind;
use cytoscope_storage::{io_message, is_exhausted};
use cytoscope_volume::printable;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Prints a line on stderr, ignoring a closed stderr. Control characters, which file names may contain, are escaped, also line
/// breaks: a name must not look like a line of its own.
pub(super) fn eprint_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(line));
}

/// Prints a value on stderr as one line of JSON.
pub(super) fn eprint_json(value: &impl serde::Serialize) {
    if let Ok(line) = serde_json::to_string(value) {
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "{}", ascii_controls(&line));
    }
}

/// First error of writing to stdout, if any.
static STDOUT: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// Prints a line on stdout, with control characters escaped.
pub(super) fn print(line: &str) {
    write_stdout(&printable(line));
}

/// Whether stdout holds JSON, beside which nothing else may be printed.
static HAS_JSON: AtomicBool = AtomicBool::new(false);

/// Returns whether a value was printed on stdout as JSON.
pub(super) fn has_printed_json() -> bool {
    HAS_JSON.load(Ordering::Relaxed)
}

/// Prints a value on stdout as indented JSON.
pub(super) fn print_json(value: &impl serde::Serialize) -> Outcome {
    HAS_JSON.store(true, Ordering::Relaxed);
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::other(e.to_string()))?;
    write_stdout(&ascii_controls(&text));
    Ok(())
}

fn write_stdout(text: &str) {
    let mut out = std::io::stdout().lock();
    keep_stdout_error(writeln!(out, "{text}").and_then(|()| out.flush()));
}

/// Keeps an error of writing to stdout for [`check_stdout`].
pub(super) fn keep_stdout_error(written: std::io::Result<()>) {
    if let Err(error) = written {
        STDOUT.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Fails if something could not be written to stdout. A closed pipe (`| head`) is not a failure.
pub(super) fn check_stdout() -> Outcome {
    match STDOUT.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            let kind = if is_exhausted(&error) { JobErrorKind::OutOfResources } else { JobErrorKind::Other };
            Err(Failure::new(kind, io_message(Path::new("standard output"), &error)))
        }
        _ => Ok(()),
    }
}

/// Escapes the control characters that JSON allows unescaped (DEL and C1): terminals interpret some as commands.
fn ascii_controls(json: &str) -> String {
    let escaped = |c: char| c == '\u{7f}' || ('\u{80}'..='\u{9f}').contains(&c);
    if !json.contains(escaped) {
        return json.to_owned();
    }
    json.chars().map(|c| if escaped(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() }).collect()
}
