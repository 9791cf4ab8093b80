//! The window's end: starts the worker, restarts it when it dies, and never makes its caller wait.

use super::{JobId, Reply, Request};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

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
    /// It gave up.
    Dead,
}

/// A worker process and the line to it. Dropping it ends the process: it is asked to, waited for shortly, then killed.
pub struct Worker {}

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
    pub fn start_with(_command: impl Fn() -> Command + Send + 'static, _wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self {}
    }

    /// Sends a request, now or when a process takes it; never waits, and a dead process is no fault. Jobs and questions that no
    /// process will take end in [`Reply::Failed`].
    pub fn send(&self, _request: Request) {}

    /// What happened since the last call, in order; never waits. Progress, stages, spans and memory that nobody polled for are
    /// merged, so that a window that is not drawn holds no growing heap of them.
    pub fn poll(&self) -> Vec<WorkerEvent> {
        Vec::new()
    }

    /// How it is.
    pub fn state(&self) -> WorkerState {
        WorkerState::Dead
    }

    /// Tries again after [`WorkerEvent::GaveUp`].
    pub fn restart(&self) {}
}
