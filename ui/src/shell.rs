//! The line to the installed shell that started this window: files to open come in, the files that are open go out.
//!
//! Both ways are JSON lines, as docs/shell-protocol.md describes. When the shell is gone the window closes, so that it is never
//! left behind; what was corrected is in its journal.

use crate::app::Workbench;
use crate::document::file_name;
use crate::quitting::Quitting;
use eframe::egui::{self, ViewportCommand};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Version of the protocol.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest line taken from the shell.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// What the shell asks for; a line holds any of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Request {
    /// Files to open; with none, and nothing else, the window comes to the front.
    pub open: Vec<PathBuf>,
    /// Names of files that cannot be written down as text, as they would be shown.
    pub not_text: Vec<String>,
    /// Why the last window ended, where this one takes its place.
    pub recovered: Option<String>,
    /// Files that the last window had open and that are left closed, because it ended so twice with them.
    pub left_closed: Vec<PathBuf>,
}

/// What came over the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromShell {
    /// Something to do.
    Request(Request),
    /// A line that cannot be read, and why.
    Unreadable(String),
    /// The shell has gone.
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

/// The line.
pub struct ShellLink {
    receiver: Receiver<FromShell>,
    lines: Sender<Vec<u8>>,
    told: Option<Vec<PathBuf>>,
}

impl ShellLink {
    /// A line over a reader and a writer, each served by a thread of its own; `wake` is called when something has come.
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
                let gone = line == FromShell::Gone;
                let heard = sender.send(line).is_ok();
                wake();
                if gone || !heard {
                    return;
                }
            }
        })?;
        let (lines, to_write) = channel::<Vec<u8>>();
        std::thread::Builder::new().name("to-shell".to_owned()).spawn(move || {
            for line in to_write {
                // A shell that is gone is told by the other thread.
                if output.write_all(&line).and_then(|()| output.flush()).is_err() {
                    return;
                }
            }
        })?;
        let link = Self { receiver, lines, told: None };
        link.tell(&Ready { ready: PROTOCOL_VERSION });
        Ok(link)
    }

    fn tell(&self, message: &impl Serialize) {
        let Ok(mut line) = serde_json::to_vec(message) else { return };
        line.push(b'\n');
        // A writer that is gone means that the shell is.
        let _ = self.lines.send(line);
    }

    /// What has come since.
    pub fn poll(&self) -> Vec<FromShell> {
        self.receiver.try_iter().collect()
    }

    /// Tells which files are open, if they are others than before. Files whose names are no text are not told.
    pub fn files(&mut self, open: &[&Path]) {
        let same = self.told.as_ref().is_some_and(|told| told.iter().map(PathBuf::as_path).eq(open.iter().copied()));
        if !same {
            let files: Vec<&Path> = open.iter().copied().filter(|p| p.to_str().is_some()).collect();
            self.tell(&Files { files: &files });
            self.told = Some(open.iter().map(|p| p.to_path_buf()).collect());
        }
    }
}

impl Workbench {
    /// Connects the window to the shell that started it.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn connect_shell(&mut self, input: Box<dyn Read + Send>, output: Box<dyn Write + Send>) -> std::io::Result<()> {
        self.shell = Some(ShellLink::new(input, output, Arc::clone(&self.wake))?);
        Ok(())
    }

    /// Does what the shell asks, and tells it which files are open.
    pub(crate) fn poll_shell(&mut self, ctx: &egui::Context) {
        let Some(shell) = &mut self.shell else { return };
        let open: Vec<&Path> = self.documents.iter().map(|d| d.path.as_path()).collect();
        shell.files(&open);
        let came = shell.poll();
        for message in came {
            match message {
                FromShell::Request(request) => self.take_request(ctx, &request),
                FromShell::Unreadable(why) => {
                    let details = format!("What it sent cannot be read: {why}. Drop the files on the window instead.");
                    self.notices.error("The desktop could not hand over files", details);
                }
                // Without asking: nobody may be there to answer, and every correction is in its journal.
                FromShell::Gone => self.quitting = Quitting::Decided,
            }
        }
    }

    fn take_request(&mut self, ctx: &egui::Context, request: &Request) {
        self.open_paths(&request.open);
        if !request.not_text.is_empty() {
            let details = format!(
                "{}: its name is not UTF-8. Drop it on the window, or open it by Open…, and consider another name.",
                request.not_text.join(", ")
            );
            self.notices.error("A file could not be handed over", details);
        }
        match &request.recovered {
            Some(why) => {
                let details = format!(
                    "The window before this one ended unexpectedly ({why}). What was open is open again, corrections are kept, \
                     and only a job that ran has to be started again."
                );
                self.notices.info("Cytoscope has recovered", details);
            }
            None => {
                ctx.send_viewport_cmd(ViewportCommand::Minimized(false));
                ctx.send_viewport_cmd(ViewportCommand::Focus);
            }
        }
        if !request.left_closed.is_empty() {
            request.left_closed.iter().for_each(|path| self.settings.opened(path));
            let names: Vec<String> = request.left_closed.iter().map(|p| file_name(p)).collect();
            let details = format!(
                "The window ended twice in a row with {}. Open them one at a time, from the recent files, to find the one.",
                names.join(", ")
            );
            self.notices.error("Files were left closed", details);
        }
    }
}

fn next_line(input: &mut impl BufRead) -> FromShell {
    let mut line = Vec::new();
    match input.take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
        Ok(0) | Err(_) => FromShell::Gone,
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
    use std::io::Cursor;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_come_in_order_and_the_end_is_told() {
        let text = "{\"open\": [\"/a b/ü.tif\"]}\nnonsense\n{\"recovered\": \"signal 9\", \"left_closed\": [\"/x\"]}\n{\"open\":";
        let link = ShellLink::new(Box::new(Cursor::new(text)), Box::new(Kept::default()), Arc::new(|| {})).unwrap();
        let mut came: Vec<FromShell> = link.receiver.iter().collect();
        let recovered =
            Request { recovered: Some("signal 9".to_owned()), left_closed: vec!["/x".into()], ..Request::default() };
        assert_eq!(came.pop(), Some(FromShell::Gone), "a line cut short is the shell's end");
        assert_eq!(came.pop(), Some(FromShell::Request(recovered)));
        assert!(matches!(came.pop(), Some(FromShell::Unreadable(_))));
        let open = Request { open: vec!["/a b/ü.tif".into()], ..Request::default() };
        assert_eq!(came, [FromShell::Request(open)]);
    }

    #[test]
    fn open_files_are_told_once_for_every_change() {
        let kept = Kept::default();
        let mut link = ShellLink::new(Box::new(Cursor::new("")), Box::new(kept.clone()), Arc::new(|| {})).unwrap();
        let (a, b) = (Path::new("/a b/ü.tif"), Path::new("/c.tif"));
        for open in [vec![], vec![a], vec![a], vec![a, b], vec![]] {
            link.files(&open);
        }
        let whole = "{\"ready\":1}\n{\"files\":[]}\n{\"files\":[\"/a b/ü.tif\"]}\n{\"files\":[\"/a b/ü.tif\",\"/c.tif\"]}\n{\"files\":[]}\n";
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while kept.0.lock().unwrap().len() < whole.len() && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_eq!(String::from_utf8(kept.0.lock().unwrap().clone()).unwrap(), whole);
    }
}
