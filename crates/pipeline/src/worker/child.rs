//! The process of a worker as its client holds it.

use super::{JobId, Reply};
use crate::JobErrorKind;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a process whose output ended may take to end.
const END_WAIT: Duration = Duration::from_secs(10);
/// How long the rest of a log may take to come once its process has ended.
const LOG_WAIT: Duration = Duration::from_secs(1);
/// Characters of the last line on standard error that are told.
const LAST_WORDS_CHARS: usize = 300;
/// Most bytes of a line on standard error that are passed on.
const MAX_LOG_LINE_BYTES: u64 = 64 << 10;

/// A running process.
pub(super) struct Process {
    child: Child,
    line: Option<Sender<String>>,
    last_words: Arc<Mutex<String>>,
    /// Disconnected once the log has ended.
    log: Receiver<()>,
}

impl Process {
    /// Starts it, with threads that write to it and pass its log on.
    pub(super) fn start(mut command: Command) -> Result<(Self, ChildStdout), String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .spawn()
            .map_err(|e| format!("the engine process cannot be started: {program}: {e}; install it anew"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            let _ = child.kill();
            return Err("the engine process has no pipes".to_owned());
        };
        let (line, lines) = channel();
        std::thread::spawn(move || write_lines(input, &lines));
        let last_words = Arc::<Mutex<String>>::default();
        let (reading, log) = channel::<()>();
        if let Some(from) = child.stderr.take() {
            let words = Arc::clone(&last_words);
            std::thread::spawn(move || {
                pass_on(from, &words);
                drop(reading);
            });
        }
        Ok((Self { child, line: Some(line), last_words, log }, output))
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The line to its standard input; closed once every sender is dropped.
    pub(super) fn line(&self) -> Sender<String> {
        self.line.clone().unwrap_or_else(|| channel().0)
    }

    /// Closes its standard input, after which it ends.
    pub(super) fn close(&mut self) {
        if let Some(line) = self.line.take() {
            // An empty line ends the writer, whoever else holds a sender.
            let _ = line.send(String::new());
        }
    }

    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for its end, killing it if that takes long, and says in words how it ended.
    pub(super) fn wait(mut self) -> String {
        self.close();
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if start.elapsed() < END_WAIT => std::thread::sleep(Duration::from_millis(5)),
                _ => {
                    let _ = self.child.kill();
                    break self.child.wait().ok();
                }
            }
        };
        let how = status.map_or_else(|| "ended".to_owned(), in_words);
        // Its log may still be on its way; a process it left behind may hold the pipe open.
        let _ = self.log.recv_timeout(LOG_WAIT);
        let said = self.last_words.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if said.is_empty() {
            format!("the engine process {how}")
        } else {
            format!("the engine process {how}; it said last: {said}")
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing that was not waited for lives on.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Writes lines until there are no more, an empty one comes, or nobody reads.
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

/// Passes a log on to one's own, and remembers its last line.
fn pass_on(log: impl Read, last: &Mutex<String>) {
    let mut log = BufReader::new(log);
    loop {
        let mut line = Vec::new();
        match log.by_ref().take(MAX_LOG_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let _ = std::io::stderr().write_all(&line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if !text.is_empty() {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = text.chars().take(LAST_WORDS_CHARS).collect();
        }
    }
}

/// A reply, or what can be made of a line that is none: the end of the job it names, so that nobody waits for it.
pub(super) fn understand(text: &str) -> Reply {
    let error = match serde_json::from_str(text) {
        Ok(reply) => return reply,
        Err(error) => error,
    };
    let sentence = format!("an answer of the worker was not understood ({error})");
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let ends = matches!(
        value.get("reply").and_then(Value::as_str),
        Some("done" | "failed" | "cancelled" | "devices" | "models")
    );
    match value.get("id").and_then(Value::as_u64) {
        Some(id) if ends => Reply::Failed { id: JobId(id), kind: JobErrorKind::Other, sentence },
        _ => Reply::Fault { sentence },
    }
}

/// How a process ended.
fn in_words(status: ExitStatus) -> String {
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
        return format!("was ended by signal {signal}{name}");
    }
    match status.code() {
        Some(0) => "ended without being asked to".to_owned(),
        Some(code) => format!("ended with exit code {code}"),
        None => "ended".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_not_understood_still_ends_its_job() {
        let broken = understand("{\"reply\":\"done\",\"id\":7,\"result\":{\"job\":\"new kind\"}}");
        assert!(matches!(broken, Reply::Failed { id: JobId(7), .. }), "{broken:?}");
        for text in ["{\"reply\":\"stages\",\"id\":7}", "hello", "", "[1]", "{\"reply\":\"done\"}"] {
            assert!(matches!(understand(text), Reply::Fault { .. }), "{text}");
        }
        assert_eq!(understand("{\"reply\":\"started\",\"id\":7}"), Reply::Started { id: JobId(7) });
    }
}
