//! The window as a child process.

use crate::line::{FromWindow, Opening, Recovery};
use crate::restart::{Crashes, Ended, Next};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A file handed over this short a time before a crash may not be open yet, and is handed over again.
const MAY_BE_LOST: Duration = Duration::from_secs(10);

/// Longest line taken from the window.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// The program that is the window.
#[derive(Debug, Clone)]
pub struct Window {
    /// Its path.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// What is added to its environment.
    pub environment: Vec<(OsString, OsString)>,
}

#[derive(Debug, Default)]
struct State {
    /// To the window that runs.
    input: Option<ChildStdin>,
    /// The files it has open, as it told.
    files: Vec<PathBuf>,
    /// Files handed over, and when.
    asked: Vec<(PathBuf, Instant)>,
}

/// Keeps one window open.
#[derive(Debug, Clone, Default)]
pub struct Supervisor {
    state: Arc<Mutex<State>>,
}

impl Supervisor {
    /// Starts the window with these files on a thread of its own, and calls `end` with an exit code when it is closed for good.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(&self, window: Window, first: Opening, end: impl FnOnce(i32) + Send + 'static) -> std::io::Result<()> {
        let supervisor = self.clone();
        let watch = move || end(supervisor.watch(&window, &first));
        std::thread::Builder::new().name("supervisor".to_owned()).spawn(watch).map(drop)
    }

    /// Hands files to the window; none brings it to the front.
    pub fn open(&self, opening: &Opening) {
        let mut state = self.state();
        state.asked.retain(|(_, at)| at.elapsed() < MAY_BE_LOST);
        state.asked.extend(opening.open.iter().map(|path| (path.clone(), Instant::now())));
        tell(&mut state, opening);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, window: &Window, first: &Opening) -> i32 {
        let mut crashes = Crashes::default();
        let mut recovery: Option<(String, bool)> = None;
        loop {
            let began = Instant::now();
            let (mut child, output) = match spawn(window) {
                Ok((child, input, output)) => {
                    self.begin(input, first, recovery.as_ref());
                    (child, output)
                }
                Err(error) => {
                    complain(&format!(
                        "{} cannot be started ({error}); install Cytoscope again",
                        window.program.display()
                    ));
                    return 1;
                }
            };
            self.listen(output);
            let ended = child.wait().map_or_else(|e| Ended::Crashed(e.to_string()), Ended::from);
            self.state().input = None;
            match (crashes.next(&ended, began.elapsed()), ended) {
                (Next::End(code), _) => return code,
                (Next::Restart { with_files }, Ended::Crashed(why)) => {
                    complain(&format!("the window ended ({why}) and is started again"));
                    recovery = Some((why, with_files));
                }
                (_, ended) => {
                    complain(&format!(
                        "the window crashes again and again ({ended:?}); cytoscope --help works without one"
                    ));
                    return 1;
                }
            }
        }
    }

    /// Tells a new window what to open.
    fn begin(&self, input: ChildStdin, first: &Opening, recovery: Option<&(String, bool)>) {
        let mut state = self.state();
        state.input = Some(input);
        let Some((why, with_files)) = recovery else {
            // What another launch handed over in the meantime.
            let early: Vec<PathBuf> = state.asked.iter().map(|(path, _)| path.clone()).collect();
            state.asked.extend(first.open.iter().map(|path| (path.clone(), Instant::now())));
            tell(&mut state, first);
            if !early.is_empty() {
                tell(&mut state, &Opening::of_paths(early));
            }
            return;
        };
        let mut files = std::mem::take(&mut state.files);
        let asked = std::mem::take(&mut state.asked);
        for (path, at) in asked {
            if at.elapsed() < MAY_BE_LOST && !files.contains(&path) {
                files.push(path);
            }
        }
        let (open, left_closed): (&[PathBuf], &[PathBuf]) = if *with_files { (&files, &[]) } else { (&[], &files) };
        tell(&mut state, &Recovery { open, recovered: why, left_closed });
        if *with_files {
            // Until the window tells; it may crash before.
            state.files = files;
        }
    }

    /// Takes the window's lines until it has ended.
    fn listen(&self, output: ChildStdout) {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            match output.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            // Anything else that is printed is not for the shell.
            if let Ok(FromWindow { files: Some(files) }) = serde_json::from_slice(&line) {
                self.state().files = files;
            }
        }
    }
}

fn spawn(window: &Window) -> std::io::Result<(Child, ChildStdin, ChildStdout)> {
    let mut command = Command::new(&window.program);
    command.args(&window.arguments).envs(window.environment.iter().map(|(k, v)| (k, v)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    #[cfg(windows)]
    {
        use std::os::windows::process::CommandExt;
        const CREATE_NO_WINDOW: u32 = 0x0800_0000;
        command.creation_flags(CREATE_NO_WINDOW);
    }
    let mut child = command.spawn()?;
    match (child.stdin.take(), child.stdout.take()) {
        (Some(input), Some(output)) => Ok((child, input, output)),
        _ => Err(std::io::Error::other("its input and output were not connected")),
    }
}

/// Writes a line; a window that is gone is noticed by who waits for it.
fn tell(state: &mut State, message: &impl Serialize) {
    let Some(input) = &mut state.input else { return };
    if let Ok(mut line) = serde_json::to_vec(message) {
        line.push(b'\n');
        let _ = input.write_all(&line).and_then(|()| input.flush());
    }
}

/// Says something on standard error, if anyone listens.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "cytoscope-desktop: {text}");
}
