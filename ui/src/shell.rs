//! Connection to the installed shell that started this window: it receives files to open and reports the open files.
//!
//! Messages are JSON lines, see docs/shell-protocol.md. The window closes when the shell ends, so that no window is
//! left behind; corrections are safe in their journals.

use crate::display::DisplayAction;
use crate::document::file_name;
use crate::documents::DocumentsAction;
use crate::effect::Effects;
use eframe::egui::{self, ViewportCommand};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Version of the messages between shell and window; both ends must agree.
pub const PROTOCOL_VERSION: u32 = 1;

/// Maximum length of a line from the shell.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// A request of the shell; every field is optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ShellRequest {
    /// Files to open. A request without any content brings the window to the front.
    pub open: Vec<PathBuf>,
    /// Names of files whose paths are not UTF-8, in lossy form for display.
    pub not_text: Vec<String>,
    /// Why the previous window ended, if this one replaces it.
    pub recovered: Option<String>,
    /// Open files of the previous window that are not reopened because it crashed twice with them.
    pub left_closed: Vec<PathBuf>,
}

/// A message from the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromShell {
    /// Files to open, or news of the previous window.
    Request(ShellRequest),
    /// A line that cannot be parsed, and why.
    Unreadable(String),
    /// The shell has ended, so the window closes.
    Gone,
}

#[derive(Serialize)]
struct Ready {
    ready: u32,
}

#[derive(Serialize)]
struct Files<'a> {
    files: &'a [&'a Path],
}

/// Connection to the shell that started this window.
pub struct ShellLink {
    receiver: Receiver<FromShell>,
    lines: Sender<Vec<u8>>,
    last_reported: Option<Vec<PathBuf>>,
}

impl ShellLink {
    /// Starts reader and writer threads for the connection; `wake` is called when a message has arrived.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(
        input: Box<dyn Read + Send>,
        mut output: Box<dyn Write + Send>,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        std::thread::Builder::new().name("from-shell".to_owned()).spawn(move || {
            let mut input = BufReader::new(input);
            loop {
                let line = next_line(&mut input);
                let ended = line == FromShell::Gone;
                let is_received = sender.send(line).is_ok();
                wake();
                if ended || !is_received {
                    return;
                }
            }
        })?;
        let (lines, outgoing) = channel::<Vec<u8>>();
        std::thread::Builder::new().name("to-shell".to_owned()).spawn(move || {
            for line in outgoing {
                // The reader thread reports the end of the shell.
                if output.write_all(&line).and_then(|()| output.flush()).is_err() {
                    return;
                }
            }
        })?;
        let link = Self { receiver, lines, last_reported: None };
        link.send(&Ready { ready: PROTOCOL_VERSION });
        Ok(link)
    }

    fn send(&self, message: &impl Serialize) {
        let mut line = match serde_json::to_vec(message) {
            Ok(line) => line,
            // Paths that are not Unicode cannot be written as JSON.
            Err(error) => {
                tracing::warn!("a message to the supervisor is left out: {error}");
                return;
            }
        };
        line.push(b'\n');
        // Sending fails only if the shell has ended.
        let _ = self.lines.send(line);
    }

    /// Messages since the last call.
    pub fn poll(&self) -> Vec<FromShell> {
        self.receiver.try_iter().collect()
    }

    /// Reports the open files if they have changed. Files whose paths are not UTF-8 are left out.
    pub fn report_files(&mut self, open: &[&Path]) {
        let is_unchanged = self
            .last_reported
            .as_ref()
            .is_some_and(|last_reported| last_reported.iter().map(PathBuf::as_path).eq(open.iter().copied()));
        if !is_unchanged {
            let files: Vec<&Path> = open.iter().copied().filter(|p| p.to_str().is_some()).collect();
            self.send(&Files { files: &files });
            self.last_reported = Some(open.iter().map(|p| p.to_path_buf()).collect());
        }
    }
}

/// Handles a request of the shell.
pub(crate) fn handle_request(ctx: &egui::Context, request: ShellRequest) -> Effects {
    let mut effects = Effects::default();
    effects.act(DocumentsAction::Open(request.open));
    if !request.not_text.is_empty() {
        let details = format!(
            "{}: the name is not UTF-8. Drop the file on the window, use File > Open…, or rename it.",
            request.not_text.join(", ")
        );
        effects.error("A file could not be opened", details);
    }
    match &request.recovered {
        Some(why) => {
            let details = format!(
                "The previous window ended unexpectedly ({why}). Its stacks are open again and corrections are kept. \
                 Restart any job that was running."
            );
            effects.info("Cytoscope has recovered", details);
        }
        None => {
            ctx.send_viewport_cmd(ViewportCommand::Minimized(false));
            ctx.send_viewport_cmd(ViewportCommand::Focus);
        }
    }
    if !request.left_closed.is_empty() {
        let names: Vec<String> = request.left_closed.iter().map(|p| file_name(p)).collect();
        let details = format!(
            "The window ended twice in a row with {} open. Open the files one at a time from the recent files to find \
             the cause.",
            names.join(", ")
        );
        request.left_closed.into_iter().for_each(|path| effects.act(DisplayAction::AddRecentFile(path)));
        effects.error("Files were not reopened", details);
    }
    effects
}

/// Reports a request of the shell that cannot be parsed.
pub(crate) fn unreadable(why: &str) -> Effects {
    let mut effects = Effects::default();
    let details = format!("The request cannot be read: {why}. Drop the files on the window instead.");
    effects.error("Files from the desktop could not be opened", details);
    effects
}

/// Reads the next message of the shell. The rest of a line that is too long is skipped.
fn next_line(input: &mut impl BufRead) -> FromShell {
    let mut line = Vec::new();
    let read = input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
    match read {
        Ok(0) | Err(_) => FromShell::Gone,
        Ok(_) if !line.ends_with(b"\n") && line.len() as u64 == MAX_LINE_BYTES => match input.skip_until(b'\n') {
            Ok(_) => FromShell::Unreadable(format!("it has more than {} MiB", MAX_LINE_BYTES >> 20)),
            Err(_) => FromShell::Gone,
        },
        Ok(_) if !line.ends_with(b"\n") => FromShell::Gone,
        Ok(_) => match serde_json::from_slice(&line) {
            Ok(request) => FromShell::Request(request),
            Err(error) => FromShell::Unreadable(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;
    use cytoscope_testkit::SharedBuffer;
    use std::io::Cursor;

    #[test]
    fn messages_arrive_in_order_followed_by_the_end() {
        let text = "{\"open\": [\"/a b/ü.tif\"]}\nnonsense\n{\"recovered\": \"signal 9\", \"left_closed\": \
                    [\"/x\"]}\n{\"open\":";
        let link =
            ShellLink::new(Box::new(Cursor::new(text)), Box::new(SharedBuffer::default()), Arc::new(|| {})).unwrap();
        let mut messages: Vec<FromShell> = link.receiver.iter().collect();
        let recovered = ShellRequest {
            recovered: Some("signal 9".to_owned()),
            left_closed: vec!["/x".into()],
            ..ShellRequest::default()
        };
        assert_eq!(messages.pop(), Some(FromShell::Gone), "a line cut short is the shell's end");
        assert_eq!(messages.pop(), Some(FromShell::Request(recovered)));
        assert!(matches!(messages.pop(), Some(FromShell::Unreadable(_))));
        let open = ShellRequest { open: vec!["/a b/ü.tif".into()], ..ShellRequest::default() };
        assert_eq!(messages, [FromShell::Request(open)]);
    }

    #[test]
    fn a_line_that_is_too_long_does_not_end_the_connection() {
        let mut text = vec![b' '; MAX_LINE_BYTES as usize + 5];
        text.extend(b"\n{\"open\": [\"/a.tif\"]}\n");
        let mut input = Cursor::new(text);
        assert_eq!(next_line(&mut input), FromShell::Unreadable("it has more than 16 MiB".to_owned()));
        let open = ShellRequest { open: vec!["/a.tif".into()], ..ShellRequest::default() };
        assert_eq!(next_line(&mut input), FromShell::Request(open));
        assert_eq!(next_line(&mut input), FromShell::Gone);
    }

    #[test]
    fn open_files_are_reported_once_per_change() {
        let buffer = SharedBuffer::default();
        let mut link = ShellLink::new(Box::new(Cursor::new("")), Box::new(buffer.clone()), Arc::new(|| {})).unwrap();
        let (a, b) = (Path::new("/a b/ü.tif"), Path::new("/c.tif"));
        for open in [vec![], vec![a], vec![a], vec![a, b], vec![]] {
            link.report_files(&open);
        }
        let whole = "{\"ready\":1}\n{\"files\":[]}\n{\"files\":[\"/a b/ü.tif\"]}\n{\"files\":[\"/a \
                     b/ü.tif\",\"/c.tif\"]}\n{\"files\":[]}\n";
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while buffer.bytes().len() < whole.len() && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_eq!(String::from_utf8(buffer.bytes()).unwrap(), whole);
    }
}
