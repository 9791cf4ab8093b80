//! The client of a worker: starts the process, restarts it if it dies, and never blocks its caller.

mod state;

use super::child::{self, Process, ProcessEnd};
use super::inbox::Inbox;
use super::lines::{Incoming, read_line};
use super::pending::ids;
use super::watch::Timeouts;
use super::{JobId, MAX_REPLY_BYTES, PROTOCOL_VERSION, Reply, Request, folder};
use state::ClientState;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of deaths within [`DEATHS_WITHIN`] after which no new process is started. Deaths after which a GPU is excluded are
/// not counted.
const MAX_DEATHS: usize = 3;
/// See [`MAX_DEATHS`].
const DEATHS_WITHIN: Duration = Duration::from_secs(60);
/// Delay before a new process is started after the first death; it doubles with each further death.
const BACK_OFF: Duration = Duration::from_millis(200);
/// Time that a process may take to end when the client is dropped; then it is killed.
const DROP_WAIT: Duration = Duration::from_secs(1);
/// Time after which the client looks whether a process without replies was killed long ago.
const SILENCE: Duration = Duration::from_millis(500);
/// Number of replies that are read in advance.
const READ_AHEAD: usize = 64;

/// Event of the client: a reply of the process, or its end or restart.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerEvent {
    /// A reply of the process.
    Reply(Reply),
    /// The process ended unexpectedly. Its private folder and partly written results were removed; waiting jobs are
    /// passed to the next process.
    Died {
        /// How it ended (exit status or signal), and the last line of its log; or why the client ended it. A clause that
        /// names its subject, without a capital and a full stop.
        reason: String,
        /// The jobs that were running (at most one) and are lost.
        lost: Vec<JobId>,
        /// The jobs that were running (at most one) and continue in the next process.
        again: Vec<ContinuedJob>,
    },
    /// A new process is ready, after one that has died or retired.
    Restarted,
    /// The process died three times within a minute, or cannot be started. No new process is started until
    /// [`Worker::restart`].
    GaveUp {
        /// Why the last process ended or could not be started; a clause as in [`WorkerEvent::Died`].
        reason: String,
        /// The jobs and queries that were waiting.
        lost: Vec<JobId>,
    },
}

/// A job whose process has ended, and which continues in the next one: a prediction after its finished slices, a training
/// run from its checkpoint; others that write nothing before their end start again. That happens once for each job, and once
/// more for each GPU that was in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContinuedJob {
    /// Number of the job, which stays the same.
    pub id: JobId,
    /// The reason and its consequences, as a note for the user.
    pub note: String,
}

/// State of the worker process, as the client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerState {
    /// The process has been started and has not answered yet.
    Starting,
    /// The process has answered and accepts requests.
    Ready {
        /// Process id.
        pid: u32,
        /// Its private folder.
        folder: PathBuf,
    },
    /// No process is running, after [`WorkerEvent::GaveUp`] or [`Request::Shutdown`].
    Dead,
}

/// Client of a worker process. Dropping it asks the process to end, waits briefly, then kills it.
pub struct Worker {
    shared: Arc<ClientShared>,
    supervisor: Option<JoinHandle<()>>,
}

struct ClientShared {
    state: Mutex<ClientState>,
    changed: Condvar,
    wake: Arc<dyn Fn() + Send + Sync>,
    timeouts: Timeouts,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Worker {
    /// Starts `program worker`. `wake` is called from another thread whenever [`Worker::poll`] has new events.
    pub fn start(program: &Path, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let program = program.to_owned();
        Self::start_with(
            move || {
                let mut command = Command::new(&program);
                command.arg("worker");
                command
            },
            wake,
        )
    }

    /// Like [`Worker::start`], with a closure that creates the command each time a process is started, for example with
    /// another environment or working folder.
    pub fn start_with(command: impl Fn() -> Command + Send + 'static, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self::start_with_timeouts(command, wake, Timeouts::default())
    }

    /// Like [`Worker::start_with`]; a process that does not respond within these times is killed and counts as dead.
    pub fn start_with_timeouts(
        command: impl Fn() -> Command + Send + 'static,
        wake: Arc<dyn Fn() + Send + Sync>,
        timeouts: Timeouts,
    ) -> Self {
        let shared = Arc::new(ClientShared {
            state: Mutex::new(ClientState {
                phase: WorkerState::Starting,
                inbox: Inbox::default(),
                open: VecDeque::new(),
                has_gpu: None,
                failed: Vec::new(),
                line: None,
                process: None,
                retiring: None,
                is_ending: false,
                is_dropped: false,
                has_ended: false,
            }),
            changed: Condvar::new(),
            wake,
            timeouts,
        });
        let thread_shared = Arc::clone(&shared);
        let supervisor = std::thread::spawn(move || thread_shared.supervise(&command));
        Self { shared, supervisor: Some(supervisor) }
    }

    /// Sends a request, now or when a process is ready, without blocking. Jobs and queries that no process will accept
    /// end with [`Reply::Failed`].
    pub fn send(&self, request: Request) {
        let mut state = self.shared.state();
        let has_events = state.send(request);
        drop(state);
        if has_events {
            (self.shared.wake)();
        }
    }

    /// Returns the events since the last call, in order, without blocking. Unread progress, stages, spans, memory and
    /// usage are merged, so that they do not accumulate between calls.
    pub fn poll(&self) -> Vec<WorkerEvent> {
        self.shared.state().inbox.take()
    }

    /// Returns the state of the worker.
    pub fn state(&self) -> WorkerState {
        self.shared.state().phase.clone()
    }

    /// Starts a process again after [`WorkerEvent::GaveUp`] or [`Request::Shutdown`].
    pub fn restart(&self) {
        let mut state = self.shared.state();
        if state.phase == WorkerState::Dead {
            state.phase = WorkerState::Starting;
            state.is_ending = false;
        }
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_dropped = true;
        // The process ends when its standard input closes.
        state.line = None;
        if let Some(process) = &mut state.process {
            process.close();
        }
        self.shared.changed.notify_all();
        let waited = self.shared.changed.wait_timeout_while(state, DROP_WAIT, |state| !state.has_ended);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = &mut state.process {
            process.kill();
        }
        drop(state);
        if let Some(supervisor) = self.supervisor.take() {
            // A panic of the thread was reported when it happened.
            let _ = supervisor.join();
        }
    }
}

/// How a process ended.
struct Ending {
    reason: String,
    /// Whether a new process would fail in the same way.
    is_final: bool,
    /// Whether the system or the user killed it, so that no GPU is at fault.
    is_killed: bool,
}

impl ClientShared {
    fn state(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts and supervises processes until the client is dropped.
    fn supervise(&self, command: &dyn Fn() -> Command) {
        let mut deaths: VecDeque<Instant> = VecDeque::new();
        let mut started_before = false;
        loop {
            let ending = self.follow(command, started_before);
            started_before = true;
            let mut state = self.state();
            if state.is_dropped {
                tracing::info!("worker stopped");
                break;
            }
            let has_retired = state.follow_retired();
            if has_retired && !state.is_ending && !ending.is_final {
                drop(state);
                (self.wake)();
                continue;
            }
            let may_be_of_gpu = !state.is_ending && !ending.is_final && !ending.is_killed;
            let is_of_gpu = may_be_of_gpu && state.leave_out_used_gpu(&ending.reason);
            let running = state.take_running();
            // A GPU that is left out from now on ends no further process.
            if !is_of_gpu {
                deaths.push_back(Instant::now());
            }
            while deaths.front().is_some_and(|d| d.elapsed() > DEATHS_WITHIN) {
                deaths.pop_front();
            }
            if state.is_ending {
                tracing::info!("worker stopped");
                // The end was requested, so the remaining jobs are canceled.
                let waiting = std::mem::take(&mut state.open);
                let left = ids(running.into_iter().chain(waiting));
                left.into_iter().for_each(|id| state.push(Reply::Canceled { id }));
                state.phase = WorkerState::Dead;
                deaths.clear();
            } else if ending.is_final {
                let lost = ids(running);
                tracing::error!(?lost, "worker cannot run: {}", ending.reason);
                state.give_up(ending.reason, lost);
            } else {
                let (again, lost) = state.continue_jobs(running, &ending.reason, ending.is_killed);
                tracing::error!(?lost, ?again, "worker crashed: {}", ending.reason);
                state.inbox.push(WorkerEvent::Died { reason: ending.reason.clone(), lost, again });
                state.phase = WorkerState::Starting;
                if deaths.len() >= MAX_DEATHS {
                    tracing::error!("worker crashed {MAX_DEATHS} times within a minute and is not restarted");
                    state.give_up(ending.reason, Vec::new());
                }
            }
            drop(state);
            (self.wake)();
            let pause = BACK_OFF * 2u32.saturating_pow(deaths.len().saturating_sub(1) as u32);
            let waited =
                self.changed.wait_timeout_while(self.state(), pause, |s| !s.is_dropped && s.phase != WorkerState::Dead);
            let state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let waited = self.changed.wait_while(state, |s| !s.is_dropped && s.phase == WorkerState::Dead);
            let state = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_dropped {
                break;
            }
            if deaths.len() >= MAX_DEATHS {
                // A restart was requested.
                deaths.clear();
            }
        }
        self.state().has_ended = true;
        self.changed.notify_all();
    }

    /// Waits until the process is ready or has ended, and kills it after the timeout. Returns whether it was killed.
    fn await_ready(&self, over: &AtomicBool) -> bool {
        let is_starting = |s: &mut ClientState| s.phase == WorkerState::Starting && !over.load(Ordering::Relaxed);
        let waited = self.changed.wait_timeout_while(self.state(), self.timeouts.ready, is_starting);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let late = waited.timed_out() && is_starting(&mut state);
        if late {
            state.process.iter_mut().for_each(Process::kill);
        }
        late
    }

    /// Kills the process if the job that it runs hangs, and returns the reason; `None` if the process is over before.
    fn watch_job(&self, over: &AtomicBool) -> Option<String> {
        let mut state = self.state();
        while !over.load(Ordering::Relaxed) {
            if let Some(reason) = state.hang(&self.timeouts) {
                tracing::error!("{reason}: the worker is ended");
                state.process.iter_mut().for_each(Process::kill);
                return Some(reason);
            }
            let shortest = self.timeouts.canceled.min(self.timeouts.progress);
            let pause = if state.open.iter().any(|open| open.is_running) { shortest / 20 } else { shortest };
            let started = Instant::now();
            let waited = self.changed.wait_timeout(state, pause.max(Duration::from_millis(5)));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if started.elapsed() > pause + shortest {
                // The machine has slept or was overloaded, and so the job could not show progress, either.
                state.open.iter_mut().for_each(|open| open.activity.start_over());
            }
        }
        None
    }

    /// Supervises one process from its start to its end; kills it if it is not ready in time, or if its job hangs.
    fn follow(&self, command: &dyn Fn() -> Command, again: bool) -> Ending {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| self.await_ready(&over));
            let hang = scope.spawn(|| self.watch_job(&over));
            let mut ending = self.run_process(command, again);
            {
                // Set under the lock, so that the waiting thread does not miss the notification.
                let _state = self.state();
                over.store(true, Ordering::Relaxed);
            }
            self.changed.notify_all();
            if watch.join().unwrap_or(false) && !ending.is_final {
                let seconds = self.timeouts.ready.as_secs_f64().ceil();
                ending.reason = format!("the engine process did not respond within {seconds} s");
            }
            if let Some(reason) = hang.join().ok().flatten().filter(|_| !ending.is_final) {
                ending.reason = reason;
            }
            ending
        })
    }

    /// Passes the waiting requests to a process that is ready.
    fn set_ready(&self, state: &mut ClientState, pid: u32, folder: &Path, line: &Sender<String>, again: bool) {
        state.phase = WorkerState::Ready { pid, folder: folder.to_owned() };
        self.changed.notify_all();
        if !state.is_ending && !state.is_dropped {
            state.line = Some(line.clone());
        }
        if again {
            state.inbox.push(WorkerEvent::Restarted);
        }
        let waiting: Vec<Request> = state.open.iter().map(|o| o.request.clone()).collect();
        let unsent: Vec<JobId> = waiting.iter().filter(|r| state.write_request(r)).filter_map(Request::id).collect();
        state.open.retain(|o| !unsent.contains(&o.id));
    }

    /// Waits for the next reply of the process; `None` at the end of its output, or if that does not end although the process
    /// was killed.
    fn next_reply(&self, replies: &Receiver<Reply>) -> Option<Reply> {
        loop {
            match replies.recv_timeout(SILENCE) {
                Ok(reply) => return Some(reply),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    if self.state().process.as_ref().is_some_and(Process::is_given_up) {
                        return None;
                    }
                }
            }
        }
    }

    /// Starts one process, handles its replies until it ends, then removes the files it left.
    fn run_process(&self, command: &dyn Fn() -> Command, again: bool) -> Ending {
        let (process, output) = match Process::start(command()) {
            Ok(started) => started,
            Err(reason) => return Ending { reason, is_final: true, is_killed: false },
        };
        let pid = process.pid();
        tracing::info!(pid, "worker started");
        let line = process.line();
        let failed = {
            let mut state = self.state();
            state.process = Some(process);
            if state.is_dropped || state.is_ending {
                state.process.iter_mut().for_each(Process::close);
            }
            state.failed.clone()
        };
        let hello = Request::Hello { version: PROTOCOL_VERSION, failed };
        // Numbers and names of devices can always be written as JSON.
        let hello = serde_json::to_string(&hello).unwrap_or_default();
        // If the process is gone, its output ends, which is handled below.
        let _ = line.send(hello);
        let replies = read_replies(output);
        let mut refused = None;
        let mut parent = std::env::temp_dir();
        while let Some(reply) = self.next_reply(&replies) {
            let mut state = self.state();
            match &reply {
                Reply::Ready { pid, folder, .. } => {
                    parent = folder.parent().map_or(parent, Path::to_owned);
                    self.set_ready(&mut state, *pid, folder, &line, again);
                }
                Reply::Fault { message } if state.phase == WorkerState::Starting => {
                    // A program that does not speak this protocol version will not do so after a restart.
                    refused = Some(message.clone());
                }
                _ => {}
            }
            state.receive(reply);
            let kill = refused.is_some();
            if kill {
                state.process.iter_mut().for_each(Process::kill);
            }
            drop(state);
            (self.wake)();
            if kill {
                break;
            }
        }
        drop(line);
        let process = {
            let mut state = self.state();
            state.line = None;
            if state.phase != WorkerState::Dead {
                state.phase = WorkerState::Starting;
            }
            state.process.take()
        };
        let ProcessEnd { text, is_killed } = process.map(Process::wait).unwrap_or_default();
        folder::remove_leftovers(&parent, pid);
        match refused {
            Some(message) => Ending { reason: message, is_final: true, is_killed: false },
            None => Ending { reason: text, is_final: false, is_killed },
        }
    }
}

/// Reads the replies of a process in a separate thread, which lasts as long as the process keeps its output open.
fn read_replies(output: ChildStdout) -> Receiver<Reply> {
    let (sender, replies) = sync_channel(READ_AHEAD);
    std::thread::spawn(move || {
        let mut output = BufReader::with_capacity(1 << 16, output);
        while let Some(reply) = next_reply(&mut output) {
            if sender.send(reply).is_err() {
                return;
            }
        }
    });
    replies
}

/// Reads the next reply of the process; `None` at the end of its output.
fn next_reply(output: &mut impl BufRead) -> Option<Reply> {
    Some(match read_line(output, MAX_REPLY_BYTES) {
        Incoming::End => return None,
        Incoming::Line(text) => child::parse_reply(&text),
        Incoming::TooLong => Reply::Fault {
            message: format!("a reply of the engine process was longer than {MAX_REPLY_BYTES} bytes and was skipped"),
        },
        Incoming::NotText => {
            Reply::Fault { message: "a reply of the engine process was not UTF-8 text and was skipped".to_owned() }
        }
    })
}
