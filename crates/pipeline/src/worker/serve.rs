//! The worker process: reads requests, writes replies, runs one job at a time.

use super::folder::{self, PrivateFolder};
use super::live::LiveFile;
use super::queue::{Added, Queue};
use super::reporter::{ProgressReporter, ReplyWriter, TICK};
use super::{JobId, JobResult, MAX_QUEUED_JOBS, MAX_REQUEST_BYTES, PROTOCOL_VERSION, Reply, Request};
use crate::devices::Devices;
use crate::predict::{LiveSink, panic_text};
use crate::{CancelToken, Context, Event, JobError, JobErrorKind, cards};
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_profile::Recorder;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time that a cancelled job may take to stop when the worker ends; after that, its partly written results are removed.
const GRACE: Duration = Duration::from_secs(5);
/// Number of characters of an invalid line that are quoted in the reply.
const QUOTED_CHARS: usize = 80;

/// Configuration of a worker.
pub struct Setup {
    /// Discovers the devices of this machine; called once, when first needed.
    pub discover: Box<dyn Fn() -> Devices + Send + Sync>,
    /// Folder in which the private folder is created; usually [`std::env::temp_dir`].
    pub temporary: PathBuf,
    /// Runs the jobs of higher crates ([`Request::Run`]).
    pub external_jobs: Box<ExternalJobs>,
}

/// Runs a job of a kind that this crate does not know: takes the kind, the job and its context, and returns the report.
/// [`refuse_external_job`] refuses every kind.
pub type ExternalJobs = dyn Fn(&str, Value, &Context) -> Result<Value, JobError> + Send + Sync;

/// Refuses every kind of job.
///
/// # Errors
/// [`JobError::WrongUse`], always.
pub fn refuse_external_job(kind: &str, _job: Value, _context: &Context) -> Result<Value, JobError> {
    Err(JobError::WrongUse(format!(
        "unknown kind of job \"{kind}\"; use the window and the worker of the same version of the program"
    )))
}

/// State that the threads of a worker share.
struct ServeShared {
    line: Arc<ReplyWriter>,
    queue: Mutex<Queue>,
    changed: Condvar,
    folder: PrivateFolder,
    setup: Setup,
    devices: Mutex<Option<Devices>>,
    retained: Mutex<RetainedFiles>,
}

/// Files in the private folder that outlive their jobs.
#[derive(Default)]
struct RetainedFiles {
    live: BTreeMap<JobId, LiveFile>,
    labels: BTreeMap<JobId, PathBuf>,
    /// The segmentation that each segmentation replaces.
    replaces: BTreeMap<JobId, JobId>,
}

impl RetainedFiles {
    fn release(&mut self, id: JobId) {
        self.live.remove(&id);
        if let Some(path) = self.labels.remove(&id) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Releases the segmentation that a segmentation replaces, the one that it replaced, and so on.
    fn release_replaced(&mut self, id: JobId) {
        let mut newer = id;
        while let Some(older) = self.replaces.remove(&newer) {
            self.release(older);
            newer = older;
        }
    }
}

/// Serves requests until `input` ends or [`Request::Shutdown`] is received. Then it cancels the running job, waits for
/// it briefly, and removes all temporary files. Threads of a job that does not stop keep running, so the process must
/// exit afterwards.
///
/// # Errors
/// The system's error if the private folder cannot be created.
pub fn serve(mut input: impl BufRead, output: impl Write + Send + 'static, setup: Setup) -> io::Result<()> {
    let folder = PrivateFolder::create(&setup.temporary)?;
    folder::sweep(&setup.temporary, folder.path());
    let shared = Arc::new(ServeShared {
        line: Arc::new(ReplyWriter::new(output)),
        queue: Mutex::default(),
        changed: Condvar::new(),
        folder,
        setup,
        devices: Mutex::default(),
        retained: Mutex::default(),
    });
    let (query_sender, queries) = channel();
    let (for_jobs, for_queries) = (Arc::clone(&shared), Arc::clone(&shared));
    let jobs = std::thread::spawn(move || for_jobs.run_jobs());
    std::thread::spawn(move || for_queries.answer(&queries));
    let mut greeted = false;
    loop {
        match read_line(&mut input, MAX_REQUEST_BYTES) {
            Incoming::End => break,
            Incoming::Line(text) if text.trim().is_empty() => {}
            Incoming::Line(text) => match serde_json::from_str::<Request>(&text) {
                Ok(Request::Shutdown) => break,
                Ok(request) => shared.handle(request, &mut greeted, &query_sender),
                Err(error) => shared.line.fault(format!(
                    "invalid request for protocol version {PROTOCOL_VERSION} ({error}): {}",
                    text.chars().take(QUOTED_CHARS).collect::<String>()
                )),
            },
            Incoming::TooLong => shared
                .line
                .fault(format!("a line longer than {MAX_REQUEST_BYTES} bytes was skipped: send several smaller jobs")),
            Incoming::NotText => shared.line.fault("a line that is not UTF-8 text was skipped: send JSON"),
        }
    }
    shared.end();
    if jobs.is_finished() {
        let _ = jobs.join();
    }
    // The folder is removed even if threads still refer to it.
    shared.folder.remove_now();
    Ok(())
}

/// One read of a line.
pub(super) enum Incoming {
    Line(String),
    TooLong,
    NotText,
    End,
}

/// Reads a line of at most `limit` bytes. A longer line is skipped without holding it in memory.
pub(super) fn read_line(input: &mut impl BufRead, limit: usize) -> Incoming {
    let mut line = Vec::new();
    let mut too_long = false;
    loop {
        let part = match input.fill_buf() {
            Ok(part) => part,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Incoming::End,
        };
        if part.is_empty() {
            // An incomplete last line is ignored.
            return Incoming::End;
        }
        let end = part.iter().position(|b| *b == b'\n');
        let taken = end.unwrap_or(part.len());
        too_long |= line.len() + taken > limit;
        if too_long {
            line = Vec::new();
        } else {
            line.extend_from_slice(&part[..taken]);
        }
        input.consume(end.map_or(taken, |at| at + 1));
        if end.is_some() {
            return match (too_long, String::from_utf8(line)) {
                (true, _) => Incoming::TooLong,
                (false, Ok(text)) => Incoming::Line(text),
                (false, Err(_)) => Incoming::NotText,
            };
        }
    }
}

impl ServeShared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retained(&self) -> MutexGuard<'_, RetainedFiles> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a request: answers it at once, queues it, or passes it to the thread that answers queries.
    fn handle(&self, request: Request, greeted: &mut bool, queries: &Sender<Request>) {
        if let Request::Hello { version } = request {
            if version != PROTOCOL_VERSION {
                return self.line.fault(format!(
                    "protocol version {version} was requested, but this worker uses {PROTOCOL_VERSION}: use the window and the \
                     worker of the same version of the program"
                ));
            }
            *greeted = true;
            return self.line.send(&Reply::Ready {
                version: PROTOCOL_VERSION,
                program: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                folder: self.folder.path().to_owned(),
            });
        }
        if !*greeted {
            return self.line.fault("the first request must be hello, with the protocol version");
        }
        match request {
            Request::Cancel { id } => {
                if self.queue().cancel(id) {
                    self.line.send(&Reply::Cancelled { id });
                }
            }
            Request::Finish { id } => self.queue().finish(id),
            Request::Release { id } => self.retained().release(id),
            query if query.is_query() => _ = queries.send(query),
            job => self.enqueue(job),
        }
    }

    fn enqueue(&self, job: Request) {
        let Some(id) = job.id() else { return };
        if let Request::Segment { replaces: Some(old), .. } = &job {
            self.retained().replaces.insert(id, *old);
        }
        let mut queue = self.queue();
        // Sent under the lock, so that it precedes the job's start.
        match queue.add(id, job) {
            Added::Queued { ahead, replaced } => {
                if let Some(id) = replaced {
                    self.line.send(&Reply::Cancelled { id });
                }
                if ahead > 0 {
                    self.line.send(&Reply::Queued { id, ahead });
                }
            }
            Added::DuplicateId => self.line.fault(format!("job {id} already exists: give each job its own number")),
            Added::Full => self.line.send(&Reply::Failed {
                id,
                kind: JobErrorKind::OutOfResources,
                sentence: format!("{MAX_QUEUED_JOBS} jobs are already waiting: wait until some of them have finished"),
            }),
        }
        drop(queue);
        self.changed.notify_all();
    }

    /// Cancels the running job and waits for it briefly.
    fn end(&self) {
        self.queue().end();
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(self.queue(), GRACE, |queue| queue.is_running());
        let stuck = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        if stuck {
            tracing::warn!("the running job did not stop within {} s and was abandoned", GRACE.as_secs());
            eprintln!("note: the running job did not stop within {} s and was abandoned", GRACE.as_secs());
            self.folder.remove_unfinished();
        }
    }

    /// Runs jobs until the worker ends.
    fn run_jobs(&self) {
        loop {
            let (id, job, cancel) = {
                let mut queue = self.queue();
                loop {
                    if queue.is_ending() {
                        return;
                    }
                    if let Some(next) = queue.start_next() {
                        self.line.send(&Reply::Started { id: next.0 });
                        break next;
                    }
                    queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let end = self.run_job(id, job, cancel);
            // Sent under the lock, so that the queue is free exactly when the end is reported.
            let mut queue = self.queue();
            self.line.send(&end);
            queue.finished();
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Runs one job and returns the reply that ends it.
    fn run_job(&self, id: JobId, job: Request, cancel: CancelToken) -> Reply {
        tracing::info!(%id, "job started");
        tracing::debug!(%id, "request: {job:?}");
        let outcome = catch_panics(|| {
            let devices = match &job {
                Request::Predict { job, .. } if job.device == DeviceRequest::Device(DeviceId::Cpu) => {
                    Some(Devices::cpu_only())
                }
                Request::Predict { .. } => Some(self.devices()),
                _ => None,
            };
            let gpu = devices.iter().flat_map(Devices::list).any(|d| d.usable && d.id != DeviceId::Cpu);
            // Spans of operators are not useful for jobs that run for hours.
            let long = matches!(job, Request::Run { .. });
            let operators = !long && (!gpu || matches!(job, Request::Predict { operators: true, .. }));
            let recorder = if operators { Recorder::new() } else { Recorder::without_operators() };
            let folder = self.folder.path().to_owned();
            let reporter = Arc::new(ProgressReporter::new(Arc::clone(&self.line), id, recorder.clone(), folder));
            let event_reporter = Arc::clone(&reporter);
            let sink: Arc<dyn Fn(&Event) + Send + Sync> = Arc::new(move |event| event_reporter.event(event));
            let context = Context { cancel, sink, recorder };
            let result = with_ticks(&reporter, || catch_panics(|| self.result(id, &job, &context, devices, &reporter)));
            let live = reporter.finish();
            if let Some(live) = live.filter(|_| result.is_ok()) {
                self.retained().live.insert(id, live);
            }
            result
        });
        match outcome {
            Ok(result) => {
                tracing::info!(%id, "job finished");
                Reply::Done { id, result }
            }
            Err(JobError::Cancelled) => {
                tracing::info!(%id, "job cancelled");
                Reply::Cancelled { id }
            }
            Err(error) => {
                tracing::error!(%id, "job failed: {error}");
                Reply::Failed { id, kind: error.kind(), sentence: error.to_string() }
            }
        }
    }

    fn result(
        &self,
        id: JobId,
        job: &Request,
        context: &Context,
        devices: Option<Devices>,
        reporter: &Arc<ProgressReporter>,
    ) -> Result<JobResult, JobError> {
        let record_folder_of = |path: &Path| {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            self.folder.record_output_folder(folder);
        };
        match job {
            Request::Predict { job, live, .. } => {
                self.folder.record_output_folder(&job.out);
                if *live {
                    self.retained().live.clear();
                }
                let sink = live.then_some(reporter.as_ref() as &dyn LiveSink);
                let devices = devices.unwrap_or_else(Devices::cpu_only);
                Ok(JobResult::Predict(job.run_live(context, &devices, sink)?))
            }
            Request::Segment { job, .. } => {
                job.labels.iter().chain(&job.table).for_each(|p| record_folder_of(p));
                let report = if job.labels.is_some() {
                    job.run(context)?
                } else {
                    let path = self.folder.path().join(format!("labels-{id}.u32"));
                    let report = job.run_raw(context, &path)?;
                    self.retained().labels.insert(id, path);
                    report
                };
                self.retained().release_replaced(id);
                Ok(JobResult::Segment(report))
            }
            Request::Measure { job, .. } => {
                record_folder_of(&job.table);
                Ok(JobResult::Measure(job.run(context)?))
            }
            Request::Convert { job, .. } => {
                record_folder_of(&job.output);
                job.run(context)?;
                Ok(JobResult::Convert { output: job.output.clone() })
            }
            Request::Evaluate { job, .. } => Ok(JobResult::Evaluate(job.run(context)?)),
            Request::Run { kind, job, writes, .. } => {
                writes.iter().for_each(|folder| self.folder.record_output_folder(folder));
                let report = (self.setup.external_jobs)(kind, job.clone(), context)?;
                Ok(JobResult::Run { kind: kind.clone(), report })
            }
            other => Err(JobError::WrongUse(format!("{other:?} is not a job"))),
        }
    }

    /// Returns the devices, which are discovered once.
    fn devices(&self) -> Devices {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.get_or_insert_with(|| (self.setup.discover)()).clone()
    }

    /// Answers queries while jobs run.
    fn answer(&self, queries: &Receiver<Request>) {
        for query in queries {
            let Some(id) = query.id() else { continue };
            let answer = catch_panics(|| match query {
                Request::Devices { id } => Ok(Reply::Devices { id, devices: self.devices().list().to_vec() }),
                Request::Models { id } => Ok(Reply::Models { id, models: cards::installed() }),
                other => Err(JobError::WrongUse(format!("{other:?} is not a query"))),
            });
            self.line.send(&answer.unwrap_or_else(|error| Reply::Failed {
                id,
                kind: error.kind(),
                sentence: error.to_string(),
            }));
        }
    }
}

/// Turns a panic into an error.
fn catch_panics<T>(work: impl FnOnce() -> Result<T, JobError>) -> Result<T, JobError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(JobError::Panicked(panic_text(&*panic))))
}

/// Runs `work` while another thread reports progress every [`TICK`].
fn with_ticks<T>(reporter: &ProgressReporter, work: impl FnOnce() -> T) -> T {
    let (done, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                reporter.tick();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use std::io::{Cursor, Read};
    use std::time::Instant;

    #[test]
    fn a_panic_fails_only_its_job() {
        let error = catch_panics(|| -> Result<(), JobError> { panic!("slice 7 is missing") }).unwrap_err();
        assert!(error.to_string().contains("slice 7 is missing"), "{error}");
        assert_eq!(error.kind(), JobErrorKind::Other);
    }

    #[test]
    fn a_segmentation_releases_all_segmentations_that_it_replaces() {
        let folder = tempfile::tempdir().unwrap();
        let mut retained = RetainedFiles::default();
        let files = [1, 2, 3, 4].map(|i| (JobId(i), folder.path().join(i.to_string())));
        for (id, path) in &files {
            std::fs::write(path, "labels").unwrap();
            retained.labels.insert(*id, path.clone());
        }
        // 1 is done, 2 was cancelled before it was done, 3 is done; 4 is unrelated.
        retained.replaces.extend([(JobId(2), JobId(1)), (JobId(3), JobId(2))]);
        retained.release_replaced(JobId(3));
        assert_eq!(files.each_ref().map(|(_, path)| path.exists()), [false, false, true, true]);
        assert!(retained.replaces.is_empty());
    }

    #[test]
    fn lines_are_read_one_by_one_and_long_ones_are_skipped() {
        let text: &[u8] = b"one\n\n12345678\n123456789\n\xff\n3\ncut off";
        // A small buffer, so that lines cross its end.
        let mut input = io::BufReader::with_capacity(3, Cursor::new(text));
        let mut lines = Vec::new();
        loop {
            lines.push(match read_line(&mut input, 8) {
                Incoming::Line(text) => text,
                Incoming::TooLong => "too long".to_owned(),
                Incoming::NotText => "no text".to_owned(),
                Incoming::End => break,
            });
        }
        assert_eq!(lines, ["one", "", "12345678", "too long", "no text", "3"]);
    }

    /// Returns lines, then blocks until a job has started, then ends.
    struct Lines(Cursor<Vec<u8>>, Receiver<()>);

    impl Read for Lines {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let n = self.0.read(to)?;
            if n == 0 {
                let _ = self.1.recv();
            }
            Ok(n)
        }
    }

    #[test]
    fn a_job_that_does_not_stop_does_not_keep_the_worker_alive() {
        let temporary = tempfile::tempdir().unwrap();
        let (started, wait) = channel();
        let discover = move || {
            let _ = started.send(());
            // A driver that hangs.
            std::thread::sleep(GRACE * 20);
            Devices::cpu_only()
        };
        let hello = Request::Hello { version: PROTOCOL_VERSION };
        let job = serde_json::from_str("{\"inputs\": [\"a.tif\"], \"model\": \"nuclei\", \"out\": \"o\"}").unwrap();
        let predict = Request::Predict { id: JobId(1), job, live: false, operators: false };
        let lines = [hello, predict].map(|r| format!("{}\n", serde_json::to_string(&r).unwrap())).concat();
        let setup = Setup {
            discover: Box::new(discover),
            temporary: temporary.path().to_owned(),
            external_jobs: Box::new(refuse_external_job),
        };
        let start = Instant::now();
        serve(io::BufReader::new(Lines(Cursor::new(lines.into_bytes()), wait)), io::sink(), setup).unwrap();
        assert!(start.elapsed() < GRACE * 10);
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
    }

    /// Collects the output of a worker.
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn jobs_of_higher_crates_run_and_all_their_events_are_sent() {
        let temporary = tempfile::tempdir().unwrap();
        let (ended, wait) = channel();
        let external_jobs = move |kind: &str, job: Value, context: &Context| {
            if kind != "train" {
                let _ = ended.send(());
                return refuse_external_job(kind, job, context);
            }
            let steps = job.get("steps").and_then(Value::as_u64).unwrap_or(0);
            let mut meter = context.meter("train", steps, "steps");
            for step in 1..=steps {
                let (loss, rate, step_secs, stalled_secs) = (1.0 / step as f64, 1e-3, 0.5, 0.25);
                context.emit(&Event::TrainingSteps { step, steps, loss, rate, step_secs, stalled_secs });
                meter.add(1)?;
            }
            let scores = BTreeMap::from([("f1".to_owned(), 0.5)]);
            context.emit(&Event::Validated { step: steps, score: 0.5, scores, best: true });
            Ok(serde_json::json!({"steps_done": steps}))
        };
        let run = |id: u64, kind: &str| Request::Run {
            id: JobId(id),
            kind: kind.to_owned(),
            job: serde_json::json!({"steps": 300}),
            writes: Vec::new(),
        };
        let requests = [Request::Hello { version: PROTOCOL_VERSION }, run(1, "train"), run(2, "paint")];
        let lines = requests.map(|r| format!("{}\n", serde_json::to_string(&r).unwrap())).concat();
        let setup = Setup {
            discover: Box::new(Devices::cpu_only),
            temporary: temporary.path().to_owned(),
            external_jobs: Box::new(external_jobs),
        };
        let output = Output::default();
        serve(io::BufReader::new(Lines(Cursor::new(lines.into_bytes()), wait)), output.clone(), setup).unwrap();
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let replies: Vec<Reply> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let count_events = |is: fn(&Event) -> bool| {
            replies.iter().filter(|r| matches!(r, Reply::Progress { event, .. } if is(event))).count()
        };
        assert_eq!(count_events(|e| matches!(e, Event::TrainingSteps { .. })), 300, "no event is left out");
        assert_eq!(count_events(|e| matches!(e, Event::Validated { .. })), 1);
        let result = JobResult::Run { kind: "train".to_owned(), report: serde_json::json!({"steps_done": 300}) };
        assert!(replies.contains(&Reply::Done { id: JobId(1), result }), "{text}");
        let refused = |r: &Reply| matches!(r, Reply::Failed { id: JobId(2), kind: JobErrorKind::WrongUse, .. });
        assert!(replies.iter().any(refused), "{text}");
    }
}
