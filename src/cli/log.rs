//! The log: a file for each day in the user's folder, and standard error with `--verbose`.

use cytoscope_pipeline::log_folder;
use cytoscope_volume::printable;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// Number of daily log files that are kept.
const MAX_LOG_FILES: usize = 7;

/// Starts the log. Without a writable folder there is no log file, which the log on standard error says. Dropping the
/// guard flushes the log.
pub(super) fn start(verbose: bool) -> Option<WorkerGuard> {
    let level = if verbose { LevelFilter::DEBUG } else { LevelFilter::INFO };
    // Dependencies log only warnings and errors.
    let filter = Targets::new().with_default(LevelFilter::WARN).with_target("cytoscope", level);
    let (opened, problem) = match open_file() {
        Ok(opened) => (Some(opened), None),
        Err(problem) => (None, Some(problem)),
    };
    let (file, guard) = opened.unzip();
    let file = file.map(|writer| {
        let writer = move || LineWriter(writer.clone());
        fmt::layer().with_ansi(false).log_internal_errors(false).with_writer(writer).with_filter(filter.clone())
    });
    let stderr = verbose.then(|| {
        let writer = || LineWriter(std::io::stderr());
        fmt::layer().with_ansi(false).log_internal_errors(false).with_writer(writer).with_filter(filter)
    });
    // This fails only if a log was started before.
    let _ = tracing_subscriber::registry().with(file).with(stderr).try_init();
    if let Some(problem) = problem {
        tracing::warn!("no log file is written: {problem}");
    }
    guard
}

/// Writes each event as one line: control characters, which file names may contain, are escaped, also line breaks. An event is
/// written in a single call.
struct LineWriter<W>(W);

impl<W: Write> Write for LineWriter<W> {
    fn write(&mut self, event: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        self.0.write_all(format!("{}\n", printable(line)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Opens today's log file and starts the thread that writes to it, so that a slow disk never delays the program.
fn open_file() -> Result<(NonBlocking, WorkerGuard), String> {
    let folder = log_folder().ok_or("this user has no home folder")?;
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(|error| failed(&error))?;
    let builder = RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix("cytoscope")
        .filename_suffix("log")
        .max_log_files(MAX_LOG_FILES);
    // The library panics if it cannot start its thread or print a message.
    match catch_unwind(AssertUnwindSafe(|| builder.build(&folder).map(tracing_appender::non_blocking))) {
        Ok(Ok(writer)) => Ok(writer),
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => Err(failed(&"the thread that writes the log cannot be started")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn an_event_is_one_line_of_the_log() {
        let mut written = Vec::new();
        let mut writer = LineWriter(&mut written);
        writer.write_all("INFO opened a\nERROR b\u{7}.tif\n".as_bytes()).unwrap();
        writer.write_all("INFO ended\n".as_bytes()).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), "INFO opened a\\u{a}ERROR b\\u{7}.tif\nINFO ended\n");
    }
}
