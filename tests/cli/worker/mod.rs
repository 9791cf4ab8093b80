//! The `worker` command and its client, as used by the window.

mod jobs;
mod life;
mod models;
mod spans;
mod train;

use crate::common::Fixture;
use cytoscope_pipeline::{ConvertJob, Event, PerformanceRequest, PredictJob, ProgressStage, SegmentReport};
use cytoscope_worker::{Job, JobId, JobResult, Reply, Request, Timeouts, Worker, WorkerEvent, WorkerState};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for an event.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Returns a function that creates copies of a command.
fn command_factory(of: &Command) -> impl Fn() -> Command + Send + 'static {
    let program = of.get_program().to_owned();
    let arguments: Vec<_> = of.get_args().map(ToOwned::to_owned).collect();
    let variables: Vec<_> = of.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
    let folder = of.get_current_dir().map(Path::to_owned);
    move || {
        let mut command = Command::new(&program);
        command.args(&arguments);
        for (key, value) in &variables {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        folder.iter().for_each(|f| _ = command.current_dir(f));
        command
    }
}

/// The worker's command with its own temporary folder, `tmp` in the fixture.
fn command(fixture: &Fixture) -> Command {
    let temporary = fixture.path("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut command = fixture.command(&["worker"]);
    command.env("TMPDIR", temporary);
    command
}

/// A worker client and all events that it received.
struct Engine {
    worker: Worker,
    seen: Vec<WorkerEvent>,
    at: usize,
    wake_count: Arc<AtomicUsize>,
}

impl Engine {
    fn start(fixture: &Fixture) -> Self {
        Self::start_command(&command(fixture))
    }

    fn start_command(command: &Command) -> Self {
        Self::start_with(command, Timeouts::default())
    }

    fn start_with(command: &Command, timeouts: Timeouts) -> Self {
        let wake_count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&wake_count);
        let wake = Arc::new(move || _ = counter.fetch_add(1, Ordering::Relaxed));
        let worker = Worker::start_with_timeouts(command_factory(command), wake, timeouts);
        Self { worker, seen: Vec::new(), at: 0, wake_count }
    }

    /// Waits for the next event that `find` accepts; earlier ones are skipped.
    fn wait<T>(&mut self, what: &str, find: impl Fn(&WorkerEvent) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            self.seen.extend(self.worker.poll());
            while let Some(event) = self.seen.get(self.at) {
                self.at += 1;
                if let Some(found) = find(event) {
                    return found;
                }
            }
            assert!(start.elapsed() < TIMEOUT, "timed out waiting for {what}; events: {:#?}", self.seen);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn reply<T>(&mut self, what: &str, find: impl Fn(&Reply) -> Option<T>) -> T {
        self.wait(what, |event| if let WorkerEvent::Reply(reply) = event { find(reply) } else { None })
    }

    /// Waits for the reply that ends a job.
    fn end(&mut self, id: u64) -> Reply {
        self.reply(&format!("the end of job {id}"), |r| (r.ends() == Some(JobId(id))).then(|| r.clone()))
    }

    fn done(&mut self, id: u64) -> JobResult {
        match self.end(id) {
            Reply::Done { result, .. } => result,
            other => panic!("job {id}: {other:?}"),
        }
    }

    fn segment_report(&mut self, id: u64) -> SegmentReport {
        match self.done(id) {
            JobResult::Segment(report) => report,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the first tiles of a job are computed.
    fn wait_for_tiles(&mut self, id: u64) {
        self.reply("a tile", |reply| match reply {
            Reply::Progress { id: of, event: Event::Progress(progress) } => {
                (of.0 == id && progress.stage == ProgressStage::Predict && progress.done > 0).then_some(())
            }
            Reply::Failed { message, .. } => panic!("{message}"),
            _ => None,
        });
    }

    fn ready(&mut self) -> (u32, PathBuf) {
        let start = Instant::now();
        loop {
            if let WorkerState::Ready { pid, folder } = self.worker.state() {
                return (pid, folder);
            }
            assert!(start.elapsed() < TIMEOUT, "{:?}", self.worker.state());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn job(value: Value) -> PredictJob {
    serde_json::from_value(value).unwrap()
}

/// A job that takes many seconds: a large stack in small tiles.
fn long_job(fixture: &Fixture, out: &str) -> PredictJob {
    job(json!({
        "inputs": [fixture.path(&fixture.large_stack())], "model": "nuclei-dog", "out": fixture.path(out), "device": "cpu", "tiles": {"tile": [48, 64, 64]},
    }))
}

/// The request of a prediction with just these options: without a machine profile, and without spans of operators.
fn predict_request(id: u64, prediction: PredictJob, live: bool) -> Request {
    let performance = PerformanceRequest::Off;
    Request::run(JobId(id), Job::Predict { prediction, live, operators: false, performance, remeasure: false })
}

fn convert(fixture: &Fixture, input: &str, output: &str) -> ConvertJob {
    serde_json::from_value(json!({"input": fixture.path(input), "output": fixture.path(output)})).unwrap()
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}
