//! Runs the window as a child process.

use crate::line::{OpenRequest, Recovery, WindowMessage};
use crate::restart::{CrashCounter, RestartDecision, WindowExit};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A file sent to the window less than this before a crash may not be open yet and is sent again.
const RESEND_WITHIN: Duration = Duration::from_secs(10);

/// Maximum length of a line read from the window.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// How the window process is started.
#[derive(Debug, Clone)]
pub struct WindowCommand {
    /// Path of the executable.
    pub program: PathBuf,
    /// Command-line arguments.
    pub arguments: Vec<OsString>,
    /// Variables added to the environment.
    pub environment: Vec<(OsString, OsString)>,
}

#[derive(Debug, Default)]
struct SupervisorState {
    /// Stdin of the running window.
    input: Option<ChildStdin>,
    /// Open files as last reported by the window.
    files: Vec<PathBuf>,
    /// Files sent to the window and the time of sending.
    recently_sent: Vec<(PathBuf, Instant)>,
}

/// Keeps one window running; clones share its state.
#[derive(Debug, Clone, Default)]
pub struct Supervisor {
    state: Arc<Mutex<SupervisorState>>,
}

impl Supervisor {
    /// Starts the window with these files on its own thread and calls `end` with an exit code when the window is closed
    /// for good.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        &self,
        window: WindowCommand,
        first: OpenRequest,
        end: impl FnOnce(i32) + Send + 'static,
    ) -> std::io::Result<()> {
        let supervisor = self.clone();
        let watch = move || end(supervisor.watch(&window, &first));
        std::thread::Builder::new().name("supervisor".to_owned()).spawn(watch).map(drop)
    }

    /// Sends files to the window. An empty list brings the window to the front.
    pub fn open(&self, opening: &OpenRequest) {
        let mut state = self.state();
        state.recently_sent.retain(|(_, at)| at.elapsed() < RESEND_WITHIN);
        state.recently_sent.extend(opening.open.iter().map(|path| (path.clone(), Instant::now())));
        send(&mut state, opening);
    }

    fn state(&self) -> MutexGuard<'_, SupervisorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, window: &WindowCommand, first: &OpenRequest) -> i32 {
        let mut crashes = CrashCounter::default();
        let mut recovery: Option<(String, bool)> = None;
        loop {
            let started_at = Instant::now();
            let (mut child, output) = match spawn(window) {
                Ok((child, input, output)) => {
                    self.begin(input, first, recovery.as_ref());
                    (child, output)
                }
                Err(error) => {
                    log_error(&format!(
                        "{} cannot be started ({error}); install Cytoscope again",
                        window.program.display()
                    ));
                    return 1;
                }
            };
            self.listen(output);
            let exit = child.wait().map_or_else(|e| WindowExit::Crashed(e.to_string()), WindowExit::from);
            self.state().input = None;
            match (crashes.decide(&exit, started_at.elapsed()), exit) {
                (RestartDecision::End(code), _) => return code,
                (RestartDecision::Restart { with_files }, WindowExit::Crashed(why)) => {
                    log_error(&format!("the window crashed ({why}) and is being restarted"));
                    recovery = Some((why, with_files));
                }
                (_, exit) => {
                    let why = match exit {
                        WindowExit::Closed(code) => format!("exit code {code}"),
                        WindowExit::Crashed(why) => why,
                    };
                    log_error(&format!(
                        "the window keeps crashing ({why}); use the command line instead, see cytoscope --help"
                    ));
                    return 1;
                }
            }
        }
    }

    /// Connects to a new window and sends the files to open.
    fn begin(&self, input: ChildStdin, first: &OpenRequest, recovery: Option<&(String, bool)>) {
        let mut state = self.state();
        state.input = Some(input);
        let Some((why, with_files)) = recovery else {
            // Files that another launch sent before the window was running.
            let early: Vec<PathBuf> = state.recently_sent.iter().map(|(path, _)| path.clone()).collect();
            state.recently_sent.extend(first.open.iter().map(|path| (path.clone(), Instant::now())));
            send(&mut state, first);
            if !early.is_empty() {
                send(&mut state, &OpenRequest::from_paths(early));
            }
            return;
        };
        let mut files = std::mem::take(&mut state.files);
        let recently_sent = std::mem::take(&mut state.recently_sent);
        for (path, at) in recently_sent {
            if at.elapsed() < RESEND_WITHIN && !files.contains(&path) {
                files.push(path);
            }
        }
        let (open, left_closed): (&[PathBuf], &[PathBuf]) = if *with_files { (&files, &[]) } else { (&[], &files) };
        send(&mut state, &Recovery { open, recovered: why, left_closed });
        if *with_files {
            // Valid until the window reports its files; it may crash before that.
            state.files = files;
        }
    }

    /// Reads the window's messages until it closes its stdout.
    fn listen(&self, output: ChildStdout) {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            match output.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            // Other output is not part of the protocol.
            if let Ok(WindowMessage { files: Some(files) }) = serde_json::from_slice(&line) {
                self.state().files = files;
            }
        }
    }
}

fn spawn(window: &WindowCommand) -> std::io::Result<(Child, ChildStdin, ChildStdout)> {
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
        _ => Err(std::io::Error::other("stdin and stdout of the window are not connected")),
    }
}

/// Sends a message. Errors are ignored: the thread that waits for the process notices when it is gone.
fn send(state: &mut SupervisorState, message: &impl Serialize) {
    let Some(input) = &mut state.input else { return };
    if let Ok(mut line) = serde_json::to_vec(message) {
        line.push(b'\n');
        let _ = input.write_all(&line).and_then(|()| input.flush());
    }
}

/// Prints a message to stderr and ignores write errors.
pub(crate) fn log_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "cytoscope-desktop: {text}");
}
