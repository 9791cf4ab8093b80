//! The worker process, as its client manages it.

use super::{JobId, Reply};
use cytoscope_pipeline::JobErrorKind;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time that a process may take to exit after its standard output has closed, or to close it after it was killed.
const END_WAIT: Duration = Duration::from_secs(10);
/// Time that a process may take to exit after it was killed. One that hangs in a driver may never do.
const KILL_WAIT: Duration = Duration::from_secs(1);
/// Time to wait for the rest of the log after the process has exited.
const LOG_WAIT: Duration = Duration::from_secs(1);
/// Maximum length in characters of the last log line that is reported.
const LAST_LOG_LINE_CHARS: usize = 300;
/// Maximum length in bytes of a log line that is passed on.
const MAX_LOG_LINE_BYTES: u64 = 64 << 10;

/// A running process.
pub(super) struct Process {
    child: Child,
    line: Option<Sender<String>>,
    last_log_line: Arc<Mutex<String>>,
    /// Disconnected once the log has ended.
    log: Receiver<()>,
    /// When it was killed first.
    killed: Option<Instant>,
}

/// How a process ended.
#[derive(Default)]
pub(super) struct ProcessEnd {
    /// The end as text for the user.
    pub(super) text: String,
    /// Whether the system or the user killed it, for example because memory ran out; not the client.
    pub(super) is_killed: bool,
}

impl Process {
    /// Starts the process, with threads that write to it and pass on its log.
    pub(super) fn start(mut command: Command) -> Result<(Self, ChildStdout), String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .spawn()
            .map_err(|e| {
                format!(
                    "the engine process cannot be started: {program}: {e}; quit and start Cytoscope again, and reinstall it \
                     if that does not help"
                )
            })?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            // A process without pipes ends on its own when it reads its input.
            let _ = child.kill();
            return Err("the engine process has no pipes".to_owned());
        };
        let (line, lines) = channel();
        std::thread::spawn(move || write_lines(input, &lines));
        let last_log_line = Arc::<Mutex<String>>::default();
        let (reading, log) = channel::<()>();
        if let Some(from) = child.stderr.take() {
            let last = Arc::clone(&last_log_line);
            std::thread::spawn(move || {
                forward_log(from, &last);
                drop(reading);
            });
        }
        Ok((Self { child, line: Some(line), last_log_line, log, killed: None }, output))
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns a sender of lines to its standard input, which is closed when every sender is dropped.
    pub(super) fn line(&self) -> Sender<String> {
        self.line.clone().unwrap_or_else(|| channel().0)
    }

    /// Closes its standard input, which makes it exit.
    pub(super) fn close(&mut self) {
        if let Some(line) = self.line.take() {
            // An empty line ends the writer, even if other senders exist.
            let _ = line.send(String::new());
        }
    }

    pub(super) fn kill(&mut self) {
        self.killed.get_or_insert_with(Instant::now);
        // It fails only if the process has ended already.
        let _ = self.child.kill();
    }

    /// Returns whether the process was killed so long ago that its output is not waited for any longer: the process hangs in a
    /// driver, or one that it has started keeps the output open.
    pub(super) fn is_given_up(&self) -> bool {
        self.killed.is_some_and(|since| since.elapsed() >= END_WAIT)
    }

    /// Kills the process, and waits briefly until it has exited; `None` if it has not.
    fn end(&mut self) -> Option<ExitStatus> {
        self.kill();
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if start.elapsed() < KILL_WAIT => std::thread::sleep(Duration::from_millis(5)),
                ended => return ended.ok().flatten(),
            }
        }
    }

    /// Waits for the process to exit, kills it after [`END_WAIT`], and returns how it ended.
    pub(super) fn wait(mut self) -> ProcessEnd {
        self.close();
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if start.elapsed() < END_WAIT && !self.is_given_up() => {
                    std::thread::sleep(Duration::from_millis(5))
                }
                _ => break self.end(),
            }
        };
        let is_killed = self.killed.is_none() && status.is_some_and(is_kill);
        let how = status.map_or_else(|| "ended".to_owned(), describe_exit);
        // Part of the log may still be unread; the wait is limited because a child of the process may keep the pipe
        // open.
        let _ = self.log.recv_timeout(LOG_WAIT);
        let last = self.last_log_line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = if last.is_empty() {
            format!("the engine process {how}")
        } else {
            format!("the engine process {how}; last line of its log: {last}")
        };
        ProcessEnd { text, is_killed }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Do not leave the process running. One that does not end within a moment waits for a driver, and ends later.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.end();
        }
    }
}

/// Writes lines until the channel or the pipe closes, or an empty line is received.
fn write_lines(mut input: ChildStdin, lines: &Receiver<String>) {
    for mut line in lines {
        if line.is_empty() {
            return;
        }
        line.push('\n');
        if input.write_all(line.as_bytes()).and_then(|()| input.flush()).is_err() {
            return;
        }
    }
}

/// Copies the log to this process' standard error and stores its last line.
fn forward_log(log: impl Read, last: &Mutex<String>) {
    let mut log = BufReader::new(log);
    loop {
        let mut line = Vec::new();
        match log.by_ref().take(MAX_LOG_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        // Standard error may be closed; the line goes to the log as well.
        let _ = std::io::stderr().write_all(&line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if !text.is_empty() {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = text.chars().take(LAST_LOG_LINE_CHARS).collect();
        }
    }
}

/// Parses a reply. An invalid line that ends a job becomes the failure of that job, so that it does not stay open; any
/// other becomes a [`Reply::Fault`].
pub(super) fn parse_reply(text: &str) -> Reply {
    let error = match serde_json::from_str(text) {
        Ok(reply) => return reply,
        Err(error) => error,
    };
    let message = format!("a reply of the engine process could not be parsed ({error})");
    // Text that is not JSON has no fields.
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let ends = matches!(
        value.get("reply").and_then(Value::as_str),
        Some("done" | "failed" | "cancelled" | "devices" | "models")
    );
    match value.get("id").and_then(Value::as_u64) {
        Some(id) if ends => Reply::failed(JobId(id), JobErrorKind::Other, message),
        _ => Reply::Fault { message },
    }
}

/// Returns whether a process was killed.
#[cfg(unix)]
fn is_kill(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(9)
}

/// Returns whether a process was killed, which its status does not say on this system.
#[cfg(not(unix))]
fn is_kill(_: ExitStatus) -> bool {
    false
}

/// Describes how a process ended.
fn describe_exit(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let name = match signal {
            1 => " (hang-up)",
            2 => " (interrupt)",
            4 => " (illegal instruction)",
            6 => " (abort)",
            8 => " (arithmetic fault)",
            9 => " (kill)",
            11 => " (segmentation fault)",
            15 => " (terminate)",
            _ => "",
        };
        return format!("ended by signal {signal}{name}");
    }
    match status.code() {
        Some(0) => "ended unexpectedly".to_owned(),
        Some(code) => format!("ended with exit code {code}"),
        None => "ended".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_reply_still_ends_its_job() {
        let broken = parse_reply("{\"reply\":\"done\",\"id\":7,\"result\":{\"job\":\"new kind\"}}");
        assert!(matches!(broken, Reply::Failed { id: JobId(7), .. }), "{broken:?}");
        for text in ["{\"reply\":\"stages\",\"id\":7}", "hello", "", "[1]", "{\"reply\":\"done\"}"] {
            assert!(matches!(parse_reply(text), Reply::Fault { .. }), "{text}");
        }
        assert_eq!(parse_reply("{\"reply\":\"started\",\"id\":7}"), Reply::Started { id: JobId(7) });
    }
}
