//! The worker itself: requests in, replies out, one job at a time.

use super::folder::{self, PrivateFolder};
use super::live::LiveFile;
use super::queue::{Added, Queue};
use super::teller::{Line, TICK, Teller};
use super::{JobId, JobResult, MAX_QUEUED_JOBS, MAX_REQUEST_BYTES, PROTOCOL_VERSION, Reply, Request};
use crate::devices::Devices;
use crate::predict::{LiveSink, panic_text};
use crate::{CancelToken, Context, Event, JobError, JobErrorKind, cards};
use cytoscope_engine::DeviceId;
use cytoscope_profile::Recorder;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a cancelled job may take to answer once the worker is to end; then its half-written results are removed for it.
const GRACE: Duration = Duration::from_secs(5);
/// Characters of a line that is not understood that are told back.
const SHOWN_CHARS: usize = 80;

/// What a worker is started with.
pub struct Setup {
    /// Looks for the devices of this machine; called once, when first needed.
    pub discover: Box<dyn Fn() -> Devices + Send + Sync>,
    /// Where the private folder is made; usually [`std::env::temp_dir`].
    pub temporary: PathBuf,
    /// Runs the jobs of higher rooms ([`Request::Run`]): the kind, the job, and what it runs with; gives the report.
    pub further: Box<Further>,
}

/// Runs a job of a kind that this room does not know; [`no_further`] knows none.
pub type Further = dyn Fn(&str, Value, &Context) -> Result<Value, JobError> + Send + Sync;

/// Knows no further kinds of jobs.
///
/// # Errors
/// [`JobError::WrongUse`], always.
pub fn no_further(kind: &str, _job: Value, _context: &Context) -> Result<Value, JobError> {
    Err(JobError::WrongUse(format!("\"{kind}\" is no kind of job that this worker knows")))
}

/// What the threads of a worker share.
struct Shared {
    line: Arc<Line>,
    queue: Mutex<Queue>,
    changed: Condvar,
    folder: PrivateFolder,
    setup: Setup,
    devices: Mutex<Option<Devices>>,
    kept: Mutex<Kept>,
}

/// Files in the private folder that outlive their jobs.
#[derive(Default)]
struct Kept {
    live: BTreeMap<JobId, LiveFile>,
    labels: BTreeMap<JobId, PathBuf>,
    /// Segmentations and what each of them replaces.
    replaces: BTreeMap<JobId, JobId>,
}

impl Kept {
    fn release(&mut self, id: JobId) {
        self.live.remove(&id);
        if let Some(path) = self.labels.remove(&id) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Releases what a segmentation replaces, and what that replaced.
    fn release_replaced(&mut self, id: JobId) {
        let mut newer = id;
        while let Some(older) = self.replaces.remove(&newer) {
            self.release(older);
            newer = older;
        }
    }
}

/// Serves requests until `input` ends or [`Request::Shutdown`] comes; then cancels the running job, waits for it shortly, and
/// leaves nothing behind. Threads of a job that does not answer live on: the process is to end now.
///
/// # Errors
/// The system's, if no private folder can be made.
pub fn serve(mut input: impl BufRead, output: impl Write + Send + 'static, setup: Setup) -> io::Result<()> {
    let folder = PrivateFolder::create(&setup.temporary)?;
    folder::sweep(&setup.temporary, folder.path());
    let shared = Arc::new(Shared {
        line: Arc::new(Line::new(output)),
        queue: Mutex::default(),
        changed: Condvar::new(),
        folder,
        setup,
        devices: Mutex::default(),
        kept: Mutex::default(),
    });
    let (ask, questions) = channel();
    let (of_jobs, of_questions) = (Arc::clone(&shared), Arc::clone(&shared));
    let jobs = std::thread::spawn(move || of_jobs.run_jobs());
    std::thread::spawn(move || of_questions.answer(&questions));
    let mut greeted = false;
    loop {
        match read_line(&mut input, MAX_REQUEST_BYTES) {
            Incoming::End => break,
            Incoming::Line(text) if text.trim().is_empty() => {}
            Incoming::Line(text) => match serde_json::from_str::<Request>(&text) {
                Ok(Request::Shutdown) => break,
                Ok(request) => shared.take(request, &mut greeted, &ask),
                Err(error) => shared.line.fault(format!(
                    "this line is no request of version {PROTOCOL_VERSION} ({error}): {}",
                    text.chars().take(SHOWN_CHARS).collect::<String>()
                )),
            },
            Incoming::TooLong => shared
                .line
                .fault(format!("a line of more than {MAX_REQUEST_BYTES} bytes was skipped: send several smaller jobs")),
            Incoming::NotText => shared.line.fault("a line that is no UTF-8 text was skipped: send JSON"),
        }
    }
    shared.end();
    if jobs.is_finished() {
        let _ = jobs.join();
    }
    // The threads that are left must not keep the folder.
    shared.folder.remove_now();
    Ok(())
}

/// What came in.
pub(super) enum Incoming {
    Line(String),
    TooLong,
    NotText,
    End,
}

/// Reads a line of at most `limit` bytes; the rest of a longer one is skipped, without being held.
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
            // A line without its end is one that was cut off.
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

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request: answers it at once, or has it answered.
    fn take(&self, request: Request, greeted: &mut bool, ask: &Sender<Request>) {
        if let Request::Hello { version } = request {
            if version != PROTOCOL_VERSION {
                return self.line.fault(format!(
                    "protocol version {version} was asked for, this worker speaks {PROTOCOL_VERSION}: use the window and the \
                     worker of one version of the program"
                ));
            }
            *greeted = true;
            return self.line.tell(&Reply::Ready {
                version: PROTOCOL_VERSION,
                program: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                folder: self.folder.path().to_owned(),
            });
        }
        if !*greeted {
            return self.line.fault("the first line must be a hello that says the protocol version");
        }
        match request {
            Request::Cancel { id } => {
                if self.queue().cancel(id) {
                    self.line.tell(&Reply::Cancelled { id });
                }
            }
            Request::Finish { id } => self.queue().finish(id),
            Request::Release { id } => self.kept().release(id),
            question if question.is_question() => _ = ask.send(question),
            job => self.enqueue(job),
        }
    }

    fn enqueue(&self, job: Request) {
        let Some(id) = job.id() else { return };
        if let Request::Segment { replaces: Some(old), .. } = &job {
            self.kept().replaces.insert(id, *old);
        }
        let mut queue = self.queue();
        // Told under the lock, so that it cannot be told after the job's start.
        match queue.add(id, job) {
            Added::At { ahead, replaced } => {
                if let Some(id) = replaced {
                    self.line.tell(&Reply::Cancelled { id });
                }
                if ahead > 0 {
                    self.line.tell(&Reply::Queued { id, ahead });
                }
            }
            Added::Twice => self.line.fault(format!("job {id} is there already: give each job its own number")),
            Added::Full => self.line.tell(&Reply::Failed {
                id,
                kind: JobErrorKind::OutOfResources,
                sentence: format!("{MAX_QUEUED_JOBS} jobs wait already: wait for some of them"),
            }),
        }
        drop(queue);
        self.changed.notify_all();
    }

    /// Cancels, and waits shortly for the running job.
    fn end(&self) {
        self.queue().end();
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(self.queue(), GRACE, |queue| queue.is_running());
        let stuck = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        if stuck {
            eprintln!("note: the running job did not answer within {} s and is left", GRACE.as_secs());
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
                    if let Some(next) = queue.begin() {
                        self.line.tell(&Reply::Started { id: next.0 });
                        break next;
                    }
                    queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let end = self.run_job(id, job, cancel);
            // Under the lock, so that the queue is free once the end is told, and not before.
            let mut queue = self.queue();
            self.line.tell(&end);
            queue.finished();
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Runs one job and gives the line that ends it.
    fn run_job(&self, id: JobId, job: Request, cancel: CancelToken) -> Reply {
        let outcome = guarded(|| {
            let devices = match &job {
                Request::Predict { job, .. } if job.device == "cpu" => Some(Devices::cpu_only()),
                Request::Predict { .. } => Some(self.devices()),
                _ => None,
            };
            let gpu = devices.iter().flat_map(Devices::list).any(|d| d.usable && d.id != DeviceId::Cpu);
            // Hours of operators are more than anyone looks at.
            let long = matches!(job, Request::Run { .. });
            let operators = !long && (!gpu || matches!(job, Request::Predict { operators: true, .. }));
            let recorder = if operators { Recorder::new() } else { Recorder::without_operators() };
            let folder = self.folder.path().to_owned();
            let teller = Arc::new(Teller::new(Arc::clone(&self.line), id, recorder.clone(), folder));
            let heard = Arc::clone(&teller);
            let sink: Arc<dyn Fn(&Event) + Send + Sync> = Arc::new(move |event| heard.event(event));
            let context = Context { cancel, sink, recorder };
            let result = ticking(&teller, || guarded(|| self.result(id, &job, &context, devices, &teller)));
            let live = teller.finish();
            if let Some(live) = live.filter(|_| result.is_ok()) {
                self.kept().live.insert(id, live);
            }
            result
        });
        match outcome {
            Ok(result) => Reply::Done { id, result },
            Err(JobError::Cancelled) => Reply::Cancelled { id },
            Err(error) => Reply::Failed { id, kind: error.kind(), sentence: error.to_string() },
        }
    }

    fn result(
        &self,
        id: JobId,
        job: &Request,
        context: &Context,
        devices: Option<Devices>,
        teller: &Arc<Teller>,
    ) -> Result<JobResult, JobError> {
        let writes = |path: &Path| {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            self.folder.writes_to(folder);
        };
        match job {
            Request::Predict { job, live, .. } => {
                self.folder.writes_to(&job.out);
                if *live {
                    self.kept().live.clear();
                }
                let sink = live.then_some(teller.as_ref() as &dyn LiveSink);
                let devices = devices.unwrap_or_else(Devices::cpu_only);
                Ok(JobResult::Predict(job.run_live(context, &devices, sink)?))
            }
            Request::Segment { job, .. } => {
                job.labels.iter().chain(&job.table).for_each(|p| writes(p));
                let report = if job.labels.is_some() {
                    job.run(context)?
                } else {
                    let path = self.folder.path().join(format!("labels-{id}.u32"));
                    let report = job.run_raw(context, &path)?;
                    self.kept().labels.insert(id, path);
                    report
                };
                self.kept().release_replaced(id);
                Ok(JobResult::Segment(report))
            }
            Request::Measure { job, .. } => {
                writes(&job.table);
                Ok(JobResult::Measure(job.run(context)?))
            }
            Request::Convert { job, .. } => {
                writes(&job.output);
                job.run(context)?;
                Ok(JobResult::Convert { output: job.output.clone() })
            }
            Request::Evaluate { job, .. } => Ok(JobResult::Evaluate(job.run(context)?)),
            Request::Run { kind, job, writes, .. } => {
                writes.iter().for_each(|folder| self.folder.writes_to(folder));
                let report = (self.setup.further)(kind, job.clone(), context)?;
                Ok(JobResult::Run { kind: kind.clone(), report })
            }
            other => Err(JobError::WrongUse(format!("{other:?} is no job"))),
        }
    }

    /// The devices, looked for once.
    fn devices(&self) -> Devices {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.get_or_insert_with(|| (self.setup.discover)()).clone()
    }

    /// Answers questions, beside the jobs.
    fn answer(&self, questions: &Receiver<Request>) {
        for question in questions {
            let Some(id) = question.id() else { continue };
            let answer = guarded(|| match question {
                Request::Devices { id } => Ok(Reply::Devices { id, devices: self.devices().list().to_vec() }),
                Request::Models { id } => Ok(Reply::Models { id, models: cards::installed() }),
                other => Err(JobError::WrongUse(format!("{other:?} is no question"))),
            });
            self.line.tell(&answer.unwrap_or_else(|error| Reply::Failed {
                id,
                kind: error.kind(),
                sentence: error.to_string(),
            }));
        }
    }
}

/// Turns a panic into an error.
fn guarded<T>(work: impl FnOnce() -> Result<T, JobError>) -> Result<T, JobError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(JobError::Panicked(panic_text(&*panic))))
}

/// Runs `work` while another thread tells how it goes.
fn ticking<T>(teller: &Teller, work: impl FnOnce() -> T) -> T {
    let (done, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                teller.tick();
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
    fn a_panic_is_the_end_of_its_job_alone() {
        let error = guarded(|| -> Result<(), JobError> { panic!("slice 7 is missing") }).unwrap_err();
        assert!(error.to_string().contains("slice 7 is missing"), "{error}");
        assert_eq!(error.kind(), JobErrorKind::Other);
    }

    #[test]
    fn a_segmentation_releases_all_that_it_and_its_forerunners_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let mut kept = Kept::default();
        let files = [1, 2, 3, 4].map(|i| (JobId(i), folder.path().join(i.to_string())));
        for (id, path) in &files {
            std::fs::write(path, "labels").unwrap();
            kept.labels.insert(*id, path.clone());
        }
        // 1 was done, 2 was cancelled before it was, 3 is done; 4 is of another layer.
        kept.replaces.extend([(JobId(2), JobId(1)), (JobId(3), JobId(2))]);
        kept.release_replaced(JobId(3));
        assert_eq!(files.each_ref().map(|(_, path)| path.exists()), [false, false, true, true]);
        assert!(kept.replaces.is_empty());
    }

    #[test]
    fn lines_are_read_one_by_one_and_long_ones_skipped() {
        let text: &[u8] = b"one\n\n12345678\n123456789\n\xff\n3\ncut off";
        // A small buffer, so that lines lie across its ends.
        let mut input = io::BufReader::with_capacity(3, Cursor::new(text));
        let mut told = Vec::new();
        loop {
            told.push(match read_line(&mut input, 8) {
                Incoming::Line(text) => text,
                Incoming::TooLong => "too long".to_owned(),
                Incoming::NotText => "no text".to_owned(),
                Incoming::End => break,
            });
        }
        assert_eq!(told, ["one", "", "12345678", "too long", "no text", "3"]);
    }

    /// Lines, then silence until a job has begun, then the end.
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
    fn a_job_that_does_not_answer_does_not_keep_the_worker() {
        let temporary = tempfile::tempdir().unwrap();
        let (begun, wait) = channel();
        let discover = move || {
            let _ = begun.send(());
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
            further: Box::new(no_further),
        };
        let start = Instant::now();
        serve(io::BufReader::new(Lines(Cursor::new(lines.into_bytes()), wait)), io::sink(), setup).unwrap();
        assert!(start.elapsed() < GRACE * 10);
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
    }

    /// What a worker says, kept.
    #[derive(Clone, Default)]
    struct Said(Arc<Mutex<Vec<u8>>>);

    impl Write for Said {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_job_of_a_higher_room_runs_as_any_other_and_all_it_tells_is_heard() {
        let temporary = tempfile::tempdir().unwrap();
        let (ended, wait) = channel();
        let further = move |kind: &str, job: Value, context: &Context| {
            if kind != "learn" {
                let _ = ended.send(());
                return no_further(kind, job, context);
            }
            let steps = job.get("steps").and_then(Value::as_u64).unwrap_or(0);
            let mut meter = context.meter("learn", steps, "steps");
            for step in 1..=steps {
                let (loss, rate, step_secs, stalled_secs) = (1.0 / step as f64, 1e-3, 0.5, 0.25);
                context.tell(&Event::Learned { step, steps, loss, rate, step_secs, stalled_secs });
                meter.add(1)?;
            }
            let scores = BTreeMap::from([("f1".to_owned(), 0.5)]);
            context.tell(&Event::Validated { step: steps, score: 0.5, scores, best: true });
            Ok(serde_json::json!({"learnt": steps}))
        };
        let run = |id: u64, kind: &str| Request::Run {
            id: JobId(id),
            kind: kind.to_owned(),
            job: serde_json::json!({"steps": 300}),
            writes: Vec::new(),
        };
        let requests = [Request::Hello { version: PROTOCOL_VERSION }, run(1, "learn"), run(2, "paint")];
        let lines = requests.map(|r| format!("{}\n", serde_json::to_string(&r).unwrap())).concat();
        let setup = Setup {
            discover: Box::new(Devices::cpu_only),
            temporary: temporary.path().to_owned(),
            further: Box::new(further),
        };
        let said = Said::default();
        serve(io::BufReader::new(Lines(Cursor::new(lines.into_bytes()), wait)), said.clone(), setup).unwrap();
        let text = String::from_utf8(said.0.lock().unwrap().clone()).unwrap();
        let replies: Vec<Reply> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let told = |is: fn(&Event) -> bool| {
            replies.iter().filter(|r| matches!(r, Reply::Progress { event, .. } if is(event))).count()
        };
        assert_eq!(told(|e| matches!(e, Event::Learned { .. })), 300, "none is left out, however fast they come");
        assert_eq!(told(|e| matches!(e, Event::Validated { .. })), 1);
        let result = JobResult::Run { kind: "learn".to_owned(), report: serde_json::json!({"learnt": 300}) };
        assert!(replies.contains(&Reply::Done { id: JobId(1), result }), "{text}");
        let refused = |r: &Reply| matches!(r, Reply::Failed { id: JobId(2), kind: JobErrorKind::WrongUse, .. });
        assert!(replies.iter().any(refused), "{text}");
    }
}
