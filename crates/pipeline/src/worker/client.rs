//! The window's end: starts the worker, restarts it when it dies, and never makes its caller wait.

use super::child::{self, Process};
use super::inbox::Inbox;
use super::serve::{Incoming, read_line};
use super::{JobId, MAX_REPLY_BYTES, PROTOCOL_VERSION, Reply, Request, folder};
use crate::JobErrorKind;
use std::collections::VecDeque;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Deaths within [`DEATHS_WITHIN`] after which no new process is started.
const MAX_DEATHS: usize = 3;
/// See [`MAX_DEATHS`].
const DEATHS_WITHIN: Duration = Duration::from_secs(60);
/// Time before a new process is started, for the first death; twice as long for each further one.
const BACK_OFF: Duration = Duration::from_millis(200);
/// How long a process may take to greet; three such fall within [`DEATHS_WITHIN`].
const READY_WITHIN: Duration = Duration::from_secs(20);

/// How long a process that was asked to end is waited for before it is killed.
const DROP_WAIT: Duration = Duration::from_secs(1);

/// Something that happened to the worker.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerEvent {
    /// It told something.
    Reply(Reply),
    /// Its process ended though nobody asked it to. Its private folder and half-written results were removed; jobs that waited
    /// are given to the next process.
    Died {
        /// How it ended (exit status or signal), and the last line it wrote to standard error, in words.
        reason: String,
        /// The jobs that were running, which is at most one: they are not begun again.
        lost: Vec<JobId>,
    },
    /// A new process takes requests.
    Restarted,
    /// It died three times within a minute, or cannot be started: no new process is started until [`Worker::restart`].
    GaveUp {
        /// Why, in words.
        reason: String,
        /// The jobs and questions that waited.
        lost: Vec<JobId>,
    },
}

/// How the worker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerState {
    /// Its process is being started.
    Starting,
    /// It takes requests.
    Ready {
        /// Process id.
        pid: u32,
        /// Its private folder.
        folder: PathBuf,
    },
    /// It gave up, or was asked to end by [`Request::Shutdown`].
    Dead,
}

/// A worker process and the line to it. Dropping it ends the process: it is asked to, waited for shortly, then killed.
pub struct Worker {
    shared: Arc<Shared>,
    supervisor: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    wake: Arc<dyn Fn() + Send + Sync>,
    /// How long a process may take to greet.
    patience: Duration,
}

struct State {
    phase: WorkerState,
    inbox: Inbox,
    /// Jobs and questions that were not answered yet, in order.
    open: VecDeque<Open>,
    /// The line to the process; there once it is ready.
    line: Option<Sender<String>>,
    process: Option<Process>,
    /// The process was asked to end.
    ending: bool,
    /// The worker was dropped.
    dropped: bool,
    /// The thread that follows processes has ended.
    gone: bool,
}

/// A job or question that was not answered yet.
struct Open {
    id: JobId,
    request: Request,
    is_running: bool,
    is_cancelled: bool,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Worker {
    /// Starts `program worker`. `wake` is called from another thread whenever [`Worker::poll`] has something new.
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

    /// As [`Worker::start`], with the command made by a closure (each time a process is started): another environment, another
    /// folder.
    pub fn start_with(command: impl Fn() -> Command + Send + 'static, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self::start_patiently(command, wake, READY_WITHIN)
    }

    /// As [`Worker::start_with`]; a process that has not greeted within `patience` is killed and counts as dead.
    pub fn start_patiently(
        command: impl Fn() -> Command + Send + 'static,
        wake: Arc<dyn Fn() + Send + Sync>,
        patience: Duration,
    ) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                phase: WorkerState::Starting,
                inbox: Inbox::default(),
                open: VecDeque::new(),
                line: None,
                process: None,
                ending: false,
                dropped: false,
                gone: false,
            }),
            changed: Condvar::new(),
            wake,
            patience,
        });
        let of_thread = Arc::clone(&shared);
        let supervisor = std::thread::spawn(move || of_thread.supervise(&command));
        Self { shared, supervisor: Some(supervisor) }
    }

    /// Sends a request, now or when a process takes it; never waits, and a dead process is no fault. Jobs and questions that no
    /// process will take end in [`Reply::Failed`].
    pub fn send(&self, request: Request) {
        let mut state = self.shared.state();
        let told = state.send(request);
        drop(state);
        if told {
            (self.shared.wake)();
        }
    }

    /// What happened since the last call, in order; never waits. Progress, stages, spans and memory that nobody polled for are
    /// merged, so that a window that is not drawn holds no growing heap of them.
    pub fn poll(&self) -> Vec<WorkerEvent> {
        self.shared.state().inbox.take()
    }

    /// How it is.
    pub fn state(&self) -> WorkerState {
        self.shared.state().phase.clone()
    }

    /// Tries again after [`WorkerEvent::GaveUp`] or [`Request::Shutdown`].
    pub fn restart(&self) {
        let mut state = self.shared.state();
        if state.phase == WorkerState::Dead {
            state.phase = WorkerState::Starting;
            state.ending = false;
        }
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.dropped = true;
        // The process ends with its standard input.
        state.line = None;
        if let Some(process) = &mut state.process {
            process.close();
        }
        self.shared.changed.notify_all();
        let waited = self.shared.changed.wait_timeout_while(state, DROP_WAIT, |state| !state.gone);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = &mut state.process {
            process.kill();
        }
        drop(state);
        if let Some(supervisor) = self.supervisor.take() {
            let _ = supervisor.join();
        }
    }
}

impl State {
    /// Whether the caller has something to poll.
    fn send(&mut self, request: Request) -> bool {
        match &request {
            Request::Hello { .. } => return false,
            Request::Shutdown => {
                self.ending = true;
                self.line = None;
                self.process.iter_mut().for_each(Process::close);
                return false;
            }
            Request::Cancel { id } => {
                let id = *id;
                if let Some(open) = self.open.iter_mut().find(|o| o.id == id) {
                    open.is_cancelled = true;
                }
                return if self.line.is_some() { self.say(&request) } else { self.drop_cancelled() };
            }
            Request::Finish { .. } | Request::Release { .. } => return self.line.is_some() && self.say(&request),
            _ => {}
        }
        let Some(id) = request.id() else { return false };
        if self.phase == WorkerState::Dead || self.ending {
            let sentence = "the engine process has ended: start it again, then try once more".to_owned();
            self.told(Reply::Failed { id, kind: JobErrorKind::Other, sentence });
            return true;
        }
        if self.line.is_some() && self.say(&request) {
            return true;
        }
        self.open.push_back(Open { id, request, is_running: false, is_cancelled: false });
        false
    }

    /// Writes a request to the process; `true` if it cannot be written down, which is told.
    fn say(&mut self, request: &Request) -> bool {
        match serde_json::to_string(request) {
            Ok(line) => {
                // A process that is gone is noticed by who reads from it.
                let _ = self.line.as_ref().map(|l| l.send(line));
                false
            }
            Err(error) => {
                let sentence =
                    format!("the request cannot be written down ({error}): use file names that are UTF-8 text");
                self.told(match request.id() {
                    Some(id) => Reply::Failed { id, kind: JobErrorKind::BadInput, sentence },
                    None => Reply::Fault { sentence },
                });
                true
            }
        }
    }

    fn told(&mut self, reply: Reply) {
        self.inbox.push(WorkerEvent::Reply(reply));
    }

    /// Takes a reply in.
    fn hear(&mut self, reply: Reply) {
        match &reply {
            Reply::Started { id } => {
                self.open.iter_mut().filter(|o| o.id == *id).for_each(|o| o.is_running = true);
            }
            Reply::Devices { id, .. } | Reply::Models { id, .. } => self.open.retain(|o| o.id != *id),
            _ => {}
        }
        if let Some(id) = reply.ends() {
            self.open.retain(|o| o.id != id);
        }
        self.told(reply);
    }

    /// Tells the end of jobs that were cancelled while no process was there; `true` if there were some.
    fn drop_cancelled(&mut self) -> bool {
        let cancelled: Vec<JobId> = self.open.iter().filter(|o| o.is_cancelled).map(|o| o.id).collect();
        self.open.retain(|o| !o.is_cancelled);
        cancelled.iter().for_each(|id| self.told(Reply::Cancelled { id: *id }));
        !cancelled.is_empty()
    }

    /// Starts no further process; `running` and what waits is lost.
    fn give_up(&mut self, reason: String, running: Vec<JobId>) {
        let lost = running.into_iter().chain(self.open.drain(..).map(|o| o.id)).collect();
        self.inbox.push(WorkerEvent::GaveUp { reason, lost });
        self.phase = WorkerState::Dead;
    }

    /// Jobs that go with the process that ran them.
    fn take_running(&mut self) -> Vec<JobId> {
        self.drop_cancelled();
        let lost = self.open.iter().filter(|o| o.is_running).map(|o| o.id).collect();
        self.open.retain(|o| !o.is_running);
        lost
    }
}

/// How a process went.
struct Ending {
    reason: String,
    /// A new one would say the same.
    is_final: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts and follows processes until the worker is dropped.
    fn supervise(&self, command: &dyn Fn() -> Command) {
        let mut deaths: VecDeque<Instant> = VecDeque::new();
        let mut started_before = false;
        loop {
            let ending = self.follow(command, started_before);
            started_before = true;
            let mut state = self.state();
            if state.dropped {
                break;
            }
            let running = state.take_running();
            deaths.push_back(Instant::now());
            while deaths.front().is_some_and(|d| d.elapsed() > DEATHS_WITHIN) {
                deaths.pop_front();
            }
            if state.ending {
                // Asked for: what was left is cancelled.
                let left: Vec<JobId> = running.into_iter().chain(state.open.drain(..).map(|o| o.id)).collect();
                left.into_iter().for_each(|id| state.told(Reply::Cancelled { id }));
                state.phase = WorkerState::Dead;
                deaths.clear();
            } else if ending.is_final {
                state.give_up(ending.reason, running);
            } else {
                state.inbox.push(WorkerEvent::Died { reason: ending.reason.clone(), lost: running });
                state.phase = WorkerState::Starting;
                if deaths.len() >= MAX_DEATHS {
                    state.give_up(ending.reason, Vec::new());
                }
            }
            drop(state);
            (self.wake)();
            let pause = BACK_OFF * 2u32.saturating_pow(deaths.len().saturating_sub(1) as u32);
            let waited =
                self.changed.wait_timeout_while(self.state(), pause, |s| !s.dropped && s.phase != WorkerState::Dead);
            let state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let waited = self.changed.wait_while(state, |s| !s.dropped && s.phase == WorkerState::Dead);
            let state = waited.unwrap_or_else(PoisonError::into_inner);
            if state.dropped {
                break;
            }
            if deaths.len() >= MAX_DEATHS {
                // Somebody asked to try again.
                deaths.clear();
            }
        }
        self.state().gone = true;
        self.changed.notify_all();
    }

    /// Kills a process that does not greet in time; whether it was killed. Returns when it has greeted or is over.
    fn await_greeting(&self, over: &AtomicBool) -> bool {
        let silent = |s: &mut State| s.phase == WorkerState::Starting && !over.load(Ordering::Relaxed);
        let waited = self.changed.wait_timeout_while(self.state(), self.patience, silent);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let late = waited.timed_out() && silent(&mut state);
        if late {
            state.process.iter_mut().for_each(Process::kill);
        }
        late
    }

    /// Follows one process from its start to its end, which comes soon if it does not greet.
    fn follow(&self, command: &dyn Fn() -> Command, again: bool) -> Ending {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| self.await_greeting(&over));
            let mut ending = self.hear_out(command, again);
            {
                // Under the lock, so that the watch does not miss it.
                let _state = self.state();
                over.store(true, Ordering::Relaxed);
            }
            self.changed.notify_all();
            if watch.join().unwrap_or(false) && !ending.is_final {
                ending.reason = format!("it did not answer within {} s", self.patience.as_secs_f64().ceil());
            }
            ending
        })
    }

    /// Starts one process and hears it until it ends; then removes what it left.
    fn hear_out(&self, command: &dyn Fn() -> Command, again: bool) -> Ending {
        let (process, output) = match Process::start(command()) {
            Ok(started) => started,
            Err(reason) => return Ending { reason, is_final: true },
        };
        let pid = process.pid();
        let line = process.line();
        {
            let mut state = self.state();
            state.process = Some(process);
            if state.dropped || state.ending {
                state.process.iter_mut().for_each(Process::close);
            }
        }
        let hello = serde_json::to_string(&Request::Hello { version: PROTOCOL_VERSION }).unwrap_or_default();
        let _ = line.send(hello);
        let mut output = BufReader::with_capacity(1 << 16, output);
        let mut refused = None;
        let mut parent = std::env::temp_dir();
        loop {
            let reply = match read_line(&mut output, MAX_REPLY_BYTES) {
                Incoming::End => break,
                Incoming::Line(text) => child::understand(&text),
                Incoming::TooLong => {
                    Reply::Fault { sentence: format!("the worker said more than {MAX_REPLY_BYTES} bytes at once") }
                }
                Incoming::NotText => {
                    Reply::Fault { sentence: "the worker said something that is no UTF-8 text".to_owned() }
                }
            };
            let mut state = self.state();
            match &reply {
                Reply::Ready { pid, folder, .. } => {
                    parent = folder.parent().map_or(parent, Path::to_owned);
                    state.phase = WorkerState::Ready { pid: *pid, folder: folder.clone() };
                    self.changed.notify_all();
                    if !state.ending && !state.dropped {
                        state.line = Some(line.clone());
                    }
                    if again {
                        state.inbox.push(WorkerEvent::Restarted);
                    }
                    let waiting: Vec<Request> = state.open.iter().map(|o| o.request.clone()).collect();
                    let unsaid: Vec<JobId> = waiting.iter().filter(|r| state.say(r)).filter_map(Request::id).collect();
                    state.open.retain(|o| !unsaid.contains(&o.id));
                }
                Reply::Fault { sentence } if state.phase == WorkerState::Starting => {
                    // What is no worker of this version will not be one the next time.
                    refused = Some(sentence.clone());
                }
                _ => {}
            }
            state.hear(reply);
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
        let ended = process.map_or_else(String::new, Process::wait);
        folder::remove_of(&parent, pid);
        match refused {
            Some(sentence) => Ending { reason: sentence, is_final: true },
            None => Ending { reason: ended, is_final: false },
        }
    }
}
