//! Runs of this program in separate processes, so that each has its own peak memory.

use super::eprint_line;
use super::failure::Failure;
use super::profile::read_run;
use super::signals;
use cytoscope_pipeline::{JobError, JobErrorKind, ProcessEvent, own_program};
use cytoscope_profile::StoredRun;
use cytoscope_storage::folder::{clear_working, create_private, create_working, is_working, remove_working};
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::message::Message;
use cytoscope_storage::{StorageError, io_problem};
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The folder that runs write to; removed when dropped. Other processes that would use it are refused meanwhile.
pub(crate) struct Scratch {
    path: PathBuf,
    /// Kind of the folder, as stored in its marker file.
    kind: &'static str,
    /// Released after the folder is removed.
    _lock: ResultsLock,
}

impl Scratch {
    /// Creates the folder.
    ///
    /// # Errors
    /// The failure to create it, that another folder exists there, or that another process uses it.
    pub(crate) fn create(path: PathBuf, kind: &'static str) -> Result<Self, Failure> {
        let lock = ResultsLock::beside_folder(&path)?;
        create_working(&path, kind)?;
        Ok(Self { path, kind, _lock: lock })
    }

    /// Creates a folder with a random name in `parent`, the system's temporary folder, that only this user can access. Folders
    /// of the same kind that killed processes of this user have left there are removed.
    ///
    /// # Errors
    /// The failure to create it.
    pub(crate) fn create_temporary(parent: &Path, kind: &'static str) -> Result<Self, Failure> {
        let prefix = format!("cytoscope-{kind}-");
        let scratch = Self::create(create_private(parent, &prefix)?, kind)?;
        scratch.remove_abandoned(parent, &prefix);
        Ok(scratch)
    }

    /// Removes the folders in `parent` of this kind whose names begin with `prefix` and whose processes have ended.
    fn remove_abandoned(&self, parent: &Path, prefix: &str) {
        let own_name = self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // Without support for locks, nothing shows whether the process of a folder has ended.
        if !matches!(ResultsLock::acquire(parent, &own_name), Err(StorageError::Busy { .. })) {
            return;
        }
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let is_candidate = name.starts_with(prefix) && name != own_name && has_same_owner(&path, &self.path);
            if is_candidate
                && is_working(&path, self.kind)
                && let Ok(_lock) = ResultsLock::acquire(parent, &name)
            {
                // A failure is ignored: the leftover only takes disk space.
                let _ = remove_working(&path, self.kind);
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what earlier runs left, except the entries named in `keep`.
    pub(crate) fn clear(&self, keep: &[&str]) -> Result<(), Failure> {
        Ok(clear_working(&self.path, self.kind, &[], keep)?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove_working(&self.path, self.kind) {
            eprint_line(&format!("note: {error}"));
        }
    }
}

/// Whether two folders belong to the same user: in a folder that all users share, others could replace their own by a link.
#[cfg(unix)]
fn has_same_owner(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = |path: &Path| std::fs::symlink_metadata(path).map(|meta| meta.uid()).ok();
    owner(a).is_some() && owner(a) == owner(b)
}

/// Only Unix has owners to compare.
#[cfg(not(unix))]
fn has_same_owner(_a: &Path, _b: &Path) -> bool {
    true
}

/// Time between two looks at a process.
const POLL: Duration = Duration::from_millis(20);
/// Time that a killed process may take to end. One that hangs in a driver may not even end then, and is left alone.
const KILL_WAIT: Duration = Duration::from_secs(10);
/// Time that the pipes of an ended process may stay open: a process that it started may hold them.
const PIPE_WAIT: Duration = Duration::from_secs(10);
/// Largest number of bytes of a report that a process prints.
const MAX_REPORT_BYTES: u64 = 256 << 20;
/// Largest number of bytes of the messages of a process; its error is among the last ones.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Measurements of a run of `predict` or `train` in a separate process; `R` is the type of its report.
pub(crate) struct ChildRun<R> {
    /// The report that the process printed.
    pub report: R,
    /// The trace that it wrote.
    pub run: StoredRun,
    /// Duration of the process in seconds.
    pub total_secs: f64,
}

/// Standard output of a process, and its duration in seconds.
struct FinishedProcess {
    stdout: Vec<u8>,
    total_secs: f64,
}

impl FinishedProcess {
    fn report<R: DeserializeOwned>(&self) -> Result<R, Failure> {
        serde_json::from_slice(&self.stdout)
            .map_err(|error| Failure::other(format!("the report of the run cannot be read: {error}")))
    }

    /// Returns the measurements of a run that wrote its trace to this path.
    fn run<R: DeserializeOwned>(&self, trace: &Path) -> Result<ChildRun<R>, Failure> {
        Ok(ChildRun { report: self.report()?, run: read_run(trace)?, total_secs: self.total_secs })
    }
}

/// Runs this program with these arguments, among them `--json` and `--trace` with the path `trace`. A process that takes
/// longer than `limit` is ended; then there is no run.
///
/// # Errors
/// The failure of the process, with its exit code and its last error message.
pub(crate) fn run<R: DeserializeOwned>(
    arguments: &[String],
    trace: &Path,
    limit: Option<Duration>,
) -> Result<Option<ChildRun<R>>, Failure> {
    let Some(finished) = finish(&this_program()?, &with_json_error(arguments), limit)? else { return Ok(None) };
    finished.run(trace).map(Some)
}

/// Like [`run`], with another build of this program, which may be too old to report its error as an event.
///
/// # Errors
/// Same as [`run`].
pub(crate) fn run_program<R: DeserializeOwned>(
    program: &Path,
    arguments: &[String],
    trace: &Path,
    limit: Option<Duration>,
) -> Result<Option<ChildRun<R>>, Failure> {
    let Some(finished) = finish(program, arguments, limit)? else { return Ok(None) };
    finished.run(trace).map(Some)
}

/// Runs this program with these arguments, among them `--json`, and returns its report.
///
/// # Errors
/// Same as [`run`].
pub(crate) fn report<R: DeserializeOwned>(arguments: &[String]) -> Result<R, Failure> {
    finish(&this_program()?, &with_json_error(arguments), None)?
        .ok_or_else(|| Failure::other("the run was ended"))?
        .report()
}

/// Returns the arguments with the request to report an error as a [`ProcessEvent`]. It follows the command: what comes after
/// `--` is a file.
fn with_json_error(arguments: &[String]) -> Vec<String> {
    let (command, options) = arguments.split_at(arguments.len().min(1));
    command.iter().cloned().chain(["--json-error".to_owned()]).chain(options.iter().cloned()).collect()
}

/// Returns the path of this program.
fn this_program() -> Result<PathBuf, Failure> {
    own_program().map_err(|error| Failure::other(format!("the path of this program is unknown: {error}")))
}

/// Runs a program with these arguments until it ends, or until the limit: then `None`.
fn finish(program: &Path, arguments: &[String], limit: Option<Duration>) -> Result<Option<FinishedProcess>, Failure> {
    let start = Instant::now();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let unstarted = |error: io::Error| Failure::other(format!("the run cannot be started: {}", io_problem(&error)));
    let mut child = command.spawn().map_err(unstarted)?;
    // Both pipes are read while the process runs: it would wait for a full one.
    let printed = in_background(child.stdout.take(), |pipe| (read_start(pipe), Instant::now()));
    let messages = in_background(child.stderr.take(), read_end);
    let status = wait(&mut child, start, limit)
        .map_err(|error| Failure::other(format!("the run cannot be observed: {error}")))?;
    let Some(status) = status else { return Ok(None) };
    // The pipe is closed when the process ends, which is noticed up to one POLL later.
    let noticed = Instant::now();
    let (stdout, ended) = printed.recv_timeout(PIPE_WAIT).unwrap_or((Vec::new(), noticed));
    let total_secs = ended.min(noticed).duration_since(start).as_secs_f64();
    if status.success() {
        return Ok(Some(FinishedProcess { stdout, total_secs }));
    }
    // A signal that arrives before the process handles signals ends it directly.
    if status.code().is_none() && signals::is_requested() {
        return Err(JobError::Canceled.into());
    }
    // Without messages in time, the failure states the exit code alone.
    let messages = messages.recv_timeout(PIPE_WAIT).unwrap_or_default();
    Err(process_failure(status.code(), &String::from_utf8_lossy(&messages)))
}

/// Returns what a function reads from the pipe of a process, as soon as it has finished. The pipe of a process that does not
/// end may never be closed.
fn in_background<R: Read + Send + 'static, T: Send + 'static>(
    pipe: Option<R>,
    read: impl FnOnce(&mut R) -> T + Send + 'static,
) -> Receiver<T> {
    let (sender, receiver) = channel();
    if let Some(mut pipe) = pipe {
        std::thread::spawn(move || {
            // The receiver may have given up.
            let _ = sender.send(read(&mut pipe));
        });
    }
    receiver
}

/// Reads a pipe until it is closed; returns its first [`MAX_REPORT_BYTES`].
fn read_start<R: Read>(pipe: &mut R) -> Vec<u8> {
    let mut bytes = Vec::new();
    // If reading fails, what was read so far is enough for a message. The rest is read so that the process does not wait.
    let _ = pipe.by_ref().take(MAX_REPORT_BYTES).read_to_end(&mut bytes);
    // Nothing is left to read from a pipe that fails.
    let _ = io::copy(pipe, &mut io::sink());
    bytes
}

/// Reads a pipe until it is closed; returns its last [`MAX_MESSAGE_BYTES`].
fn read_end<R: Read>(pipe: &mut R) -> Vec<u8> {
    let (mut bytes, mut part) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match pipe.read(&mut part) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(part.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What was read so far is enough for a message.
            Err(_) => break,
        }
        if bytes.len() > 2 * MAX_MESSAGE_BYTES {
            bytes.drain(..bytes.len() - MAX_MESSAGE_BYTES);
        }
    }
    bytes.drain(..bytes.len().saturating_sub(MAX_MESSAGE_BYTES));
    bytes
}

/// Waits for a process; kills it at the limit and returns `None`, even if it does not end then. A termination request to this
/// program is passed on to the process.
fn wait(child: &mut Child, start: Instant, limit: Option<Duration>) -> io::Result<Option<ExitStatus>> {
    let mut has_signaled = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if limit.is_some_and(|limit| start.elapsed() > limit) {
            child.kill()?;
            if !has_ended_within(child, KILL_WAIT)? {
                eprint_line(&format!(
                    "note: process {} exceeded its time limit and has not ended since it was killed, probably because it \
                     hangs in the driver of a device: if that device stays busy, restart the computer",
                    child.id()
                ));
            }
            return Ok(None);
        }
        if signals::is_requested() && !has_signaled {
            has_signaled = true;
            terminate(child);
        }
        std::thread::sleep(POLL);
    }
}

/// Waits for a process to end, for at most this time; returns whether it has ended.
fn has_ended_within(child: &mut Child, limit: Duration) -> io::Result<bool> {
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() > limit {
            return Ok(false);
        }
        std::thread::sleep(POLL);
    }
    Ok(true)
}

/// Sends SIGTERM to a process. Ctrl-C in the terminal reaches it anyway, but a scheduler signals only this program.
#[cfg(unix)]
fn terminate(child: &Child) {
    use rustix::process::{Pid, Signal, kill_process};
    // It has not been waited for, so its id is not that of another process; it may have ended by itself.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
}

#[cfg(not(unix))]
fn terminate(_child: &Child) {}

/// Returns the failure of a process, as it reported it in the last [`ProcessEvent::Error`].
fn process_failure(code: Option<i32>, stderr: &str) -> Failure {
    let reported = stderr.lines().rev().find_map(|line| match ProcessEvent::parse(line) {
        Some(ProcessEvent::Error { kind, message, next_step, settings }) => {
            Some(Failure::new(kind, Message::new(message, &settings)).with_next_step(next_step))
        }
        _ => None,
    });
    let failure = reported.unwrap_or_else(|| {
        let (kind, message) = failure_in_words(code, stderr);
        Failure::new(kind, message)
    });
    if failure.kind() == JobErrorKind::Canceled { JobError::Canceled.into() } else { failure }
}

/// Returns the kind and the message of the failure of a process that reported none as an event: it was killed by
/// another process, it refused its arguments, or it is another build of this program. It has printed the error as text,
/// if at all.
fn failure_in_words(code: Option<i32>, stderr: &str) -> (JobErrorKind, String) {
    let kinds = [JobErrorKind::WrongUse, JobErrorKind::BadInput, JobErrorKind::OutOfResources, JobErrorKind::Canceled];
    let kind = kinds.into_iter().find(|kind| code == Some(kind.exit_code()));
    let printed = stderr.lines().rev().find_map(|line| line.strip_prefix("error: "));
    let message = match (printed, code) {
        (Some(printed), _) => printed.to_owned(),
        (None, Some(code)) => format!("the process ended with exit code {code} and no message"),
        (None, None) => "the process was ended by a signal, possibly for lack of memory".to_owned(),
    };
    (kind.unwrap_or(JobErrorKind::Other), message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_storage::message::NamedSetting;

    #[test]
    fn a_folder_of_runs_is_used_by_one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.json.runs");
        let first = Scratch::create(path.clone(), "bench").unwrap();
        std::fs::write(path.join("trace.json"), "{}").unwrap();
        let refused = Scratch::create(path.clone(), "bench").err().unwrap();
        assert!(refused.to_string().contains("another run"), "{refused}");
        assert!(path.join("trace.json").exists());
        drop(first);
        drop(Scratch::create(path, "bench").unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "neither folder nor lock remain");
    }

    #[test]
    fn temporary_folders_of_ended_processes_are_removed_at_the_next_start() {
        let parent = tempfile::tempdir().unwrap();
        let [left, foreign, other] =
            ["left", "mine", "bench"].map(|n| parent.path().join(format!("cytoscope-tune-{n}")));
        create_working(&left, "tune").unwrap();
        std::fs::write(left.join("synthetic.tif"), "x").unwrap();
        std::fs::create_dir(&foreign).unwrap();
        std::fs::write(foreign.join("data"), "x").unwrap();
        create_working(&other, "bench").unwrap();
        let first = Scratch::create_temporary(parent.path(), "tune").unwrap();
        assert!(!left.exists(), "its process has ended");
        let second = Scratch::create_temporary(parent.path(), "tune").unwrap();
        assert!(first.path().exists() && first.path() != second.path(), "it is in use");
        #[cfg(unix)]
        {
            let permissions = std::fs::metadata(second.path()).unwrap().permissions();
            assert_eq!(std::os::unix::fs::PermissionsExt::mode(&permissions) & 0o777, 0o700);
        }
        drop((first, second));
        assert!(foreign.join("data").exists() && other.exists(), "folders of others stay");
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 2, "neither folders nor locks remain");
    }

    #[test]
    fn a_reported_failure_is_taken_over_with_its_kind_and_whole_message() {
        let error = ProcessEvent::Error {
            kind: JobErrorKind::WouldOverwrite,
            message: "a.tif exists\nerror: no line of its own; choose another, or use --force".to_owned(),
            next_step: Some("choose another, or use --force".to_owned()),
            settings: vec![NamedSetting { start: 63, name: "--force".to_owned(), ..NamedSetting::default() }],
        };
        let line = serde_json::to_string(&error).unwrap();
        let failure = process_failure(Some(2), &format!("error: of a library\n{line}\nnote: removed a folder\n"));
        assert_eq!(failure.kind(), JobErrorKind::WouldOverwrite);
        assert_eq!(failure.to_string(), "a.tif exists\nerror: no line of its own; choose another, or use --force");
        assert_eq!(failure.event(), error, "it is passed on with its next step and settings");
    }

    #[test]
    fn failures_keep_the_exit_code_and_the_last_error() {
        let failure = process_failure(Some(3), "note: a\nerror: first\nerror: a.tif: not a TIFF\n");
        assert_eq!((failure.exit_code(), failure.to_string().as_str()), (3, "a.tif: not a TIFF"));
        assert_eq!(process_failure(Some(9), "").exit_code(), 1);
        assert!(process_failure(None, "").to_string().contains("signal"));
    }

    #[cfg(unix)]
    #[test]
    fn a_process_is_ended_at_its_limit() {
        let start = Instant::now();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(wait(&mut child, start, Some(Duration::from_millis(50))).unwrap().is_none());
        assert!(child.try_wait().unwrap().is_some(), "it still runs");
        let mut quick = Command::new("true").spawn().unwrap();
        assert!(wait(&mut quick, start, Some(Duration::from_secs(60))).unwrap().is_some_and(|s| s.success()));
        let mut running = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!has_ended_within(&mut running, Duration::from_millis(50)).unwrap(), "it is waited for without end");
        running.kill().unwrap();
        assert!(has_ended_within(&mut running, KILL_WAIT).unwrap());
    }

    #[cfg(unix)]
    #[test]
    fn a_run_at_its_limit_returns_although_a_process_that_it_started_keeps_its_pipes_open() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        // `sleep` outlives the shell, and its pipes stay open.
        let script = format!("sleep 600 & echo $! > '{}'; wait", pid.display());
        let arguments = ["-c".to_owned(), script];
        let done = finish(Path::new("/bin/sh"), &arguments, Some(Duration::from_secs(3))).unwrap();
        assert!(done.is_none());
        let end = format!("kill {}", std::fs::read_to_string(&pid).unwrap().trim());
        assert!(Command::new("/bin/sh").args(["-c", &end]).status().unwrap().success(), "it had ended");
    }

    #[test]
    fn only_the_last_of_many_messages_are_kept() {
        let mut text = vec![b'a'; 3 * MAX_MESSAGE_BYTES];
        text.extend_from_slice(b"\nerror: last\n");
        let kept = read_end(&mut text.as_slice());
        assert_eq!(kept.len(), MAX_MESSAGE_BYTES);
        assert!(kept.ends_with(b"\nerror: last\n"));
    }
}
