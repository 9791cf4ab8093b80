//! The worker process: reads requests, writes replies, runs one job at a time.

use super::error::parse_request;
use super::folder::{self, PrivateFolder};
use super::lines::{Incoming, read_line};
use super::live::LiveFile;
use super::queue::{Added, Queue};
use super::reporter::{MEMORY_EVERY, ProgressReporter, ReplyWriter, TICK};
use super::{
    Job, JobId, JobResult, MAX_QUEUED_JOBS, MAX_REQUEST_BYTES, PROTOCOL_VERSION, ProtocolError, Reply, Request,
};
use cytoscope_engine::{Device, DeviceId, DeviceRequest};
use cytoscope_pipeline::devices::{Devices, FailedDevice, forget_hung_probes};
use cytoscope_pipeline::predict::LiveSink;
use cytoscope_pipeline::{
    AppliedProfile, CancelToken, Context, Event, JobError, JobErrorKind, MachineProfiles, PerformanceRequest, cards,
    engine_memory,
};
use cytoscope_profile::Recorder;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::panic_text;
use cytoscope_train::TrainEvent;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Time that a canceled job may take to stop when the worker ends; after that, its partly written results are removed.
const GRACE: Duration = Duration::from_secs(5);

/// Options of a worker process.
pub struct WorkerOptions {
    /// Discovers the devices of this machine; called when they are first needed, and when the client asks to look again.
    pub discover: Box<dyn Fn() -> Devices + Send + Sync>,
    /// Folder in which the private folder is created; usually [`std::env::temp_dir`].
    pub temporary: PathBuf,
}

/// State that the threads of a worker share.
struct ServeShared {
    /// Writes replies to the client.
    replies: Arc<ReplyWriter>,
    queue: Mutex<Queue>,
    changed: Condvar,
    folder: PrivateFolder,
    options: WorkerOptions,
    devices: Mutex<Option<Devices>>,
    /// GPUs that were in use when earlier processes ended.
    failed: Mutex<Vec<FailedDevice>>,
    /// Why this process starts no further job, so that the client replaces it.
    retires: OnceLock<String>,
    retained: Mutex<RetainedFiles>,
}

/// A query that is answered while a job runs.
#[derive(Debug, Clone, Copy)]
enum Query {
    Devices {
        /// Whether to look for the devices again.
        again: bool,
    },
    Models,
}

/// Files in the private folder that outlive their jobs.
#[derive(Default)]
struct RetainedFiles {
    live: BTreeMap<JobId, LiveFile>,
    labels: BTreeMap<JobId, PathBuf>,
    /// Maps a segmentation job to the one it supersedes.
    replaces: BTreeMap<JobId, JobId>,
}

impl RetainedFiles {
    fn release(&mut self, id: JobId) {
        self.live.remove(&id);
        if let Some(path) = self.labels.remove(&id) {
            // It is in the worker's private folder, which is removed as a whole.
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
pub fn serve(mut input: impl BufRead, output: impl Write + Send + 'static, options: WorkerOptions) -> io::Result<()> {
    let shared = Arc::new(ServeShared::new(output, options)?);
    folder::sweep(&shared.options.temporary, shared.folder.path());
    let (query_sender, queries) = channel();
    let (for_jobs, for_queries) = (Arc::clone(&shared), Arc::clone(&shared));
    let jobs = std::thread::spawn(move || for_jobs.run_jobs());
    std::thread::spawn(move || for_queries.answer(&queries));
    let mut greeted = false;
    loop {
        let request = match read_line(&mut input, MAX_REQUEST_BYTES) {
            Incoming::End => break,
            Incoming::Line(text) if text.trim().is_empty() => continue,
            Incoming::Line(text) => parse_request(&text),
            Incoming::TooLong => Err(ProtocolError::TooLong),
            Incoming::NotText => Err(ProtocolError::NotText),
        };
        if request == Ok(Request::Shutdown) {
            break;
        }
        if let Err(error) = request.and_then(|request| shared.handle(request, &mut greeted, &query_sender)) {
            shared.refuse(&error, greeted);
        }
    }
    shared.shut_down();
    if jobs.is_finished() {
        // Panics of jobs are caught and reported as failed jobs.
        let _ = jobs.join();
    }
    // The folder is removed even if threads still refer to it.
    shared.folder.remove_now();
    Ok(())
}

impl ServeShared {
    /// Creates the private folder and an empty queue.
    ///
    /// # Errors
    /// The system's error if the private folder cannot be created.
    fn new(output: impl Write + Send + 'static, options: WorkerOptions) -> io::Result<Self> {
        Ok(Self {
            replies: Arc::new(ReplyWriter::new(output)),
            queue: Mutex::default(),
            changed: Condvar::new(),
            folder: PrivateFolder::create(&options.temporary)?,
            options,
            devices: Mutex::default(),
            failed: Mutex::default(),
            retires: OnceLock::new(),
            retained: Mutex::default(),
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> MutexGuard<'_, Vec<FailedDevice>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retained(&self) -> MutexGuard<'_, RetainedFiles> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a request: answers it at once, queues it, or passes it to the thread that answers queries.
    ///
    /// # Errors
    /// [`ProtocolError`] if the request is not valid now.
    fn handle(
        &self,
        request: Request,
        greeted: &mut bool,
        queries: &Sender<(JobId, Query)>,
    ) -> Result<(), ProtocolError> {
        if let Request::Hello { version, failed } = request {
            if version != PROTOCOL_VERSION {
                return Err(ProtocolError::OtherVersion { requested: version });
            }
            *greeted = true;
            *self.failed() = failed;
            self.replies.send(&Reply::Ready {
                version: PROTOCOL_VERSION,
                program: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                folder: self.folder.path().to_owned(),
            });
            return Ok(());
        }
        if !*greeted {
            return Err(ProtocolError::NoHello);
        }
        match request {
            Request::Run { id, job } => return self.enqueue(id, *job),
            Request::Devices { id, again } => _ = queries.send((id, Query::Devices { again })),
            Request::Models { id } => _ = queries.send((id, Query::Models)),
            Request::Cancel { id } => {
                if self.queue().cancel(id) {
                    self.replies.send(&Reply::Canceled { id });
                }
            }
            Request::Finish { id } => self.queue().finish_early(id),
            Request::Release { id } => self.retained().release(id),
            // The loop in `serve` ends at Shutdown.
            Request::Hello { .. } | Request::Shutdown => {}
        }
        Ok(())
    }

    /// Replies that a request was refused.
    fn refuse(&self, error: &ProtocolError, greeted: bool) {
        // A rejected request may reuse the id of an accepted job; replying `Failed` would end that job on the client.
        let is_accepted = error.id().is_some_and(|id| self.queue().contains(id));
        if greeted && !is_accepted {
            self.replies.send(&error.reply());
        } else {
            self.replies.fault(error.to_string());
        }
    }

    /// Adds a job to the queue, or fails it if the queue is full.
    ///
    /// # Errors
    /// [`ProtocolError::DuplicateId`] if the number of the job is in use.
    fn enqueue(&self, id: JobId, job: Job) -> Result<(), ProtocolError> {
        let replaces = if let Job::Segment { replaces, .. } = &job { *replaces } else { None };
        let mut queue = self.queue();
        // Recorded and sent under the lock, so that both precede the job's start.
        match queue.add(id, job) {
            Added::Queued { ahead, replaced } => {
                if let Some(old) = replaces {
                    self.retained().replaces.insert(id, old);
                }
                if let Some(id) = replaced {
                    self.replies.send(&Reply::Canceled { id });
                }
                if ahead > 0 {
                    self.replies.send(&Reply::Queued { id, ahead });
                }
            }
            Added::DuplicateId => return Err(ProtocolError::DuplicateId(id)),
            Added::Full => {
                let message =
                    format!("{MAX_QUEUED_JOBS} jobs are already waiting: wait until some of them have finished");
                self.replies.send(&Reply::failed(id, JobErrorKind::OutOfResources, message));
            }
        }
        drop(queue);
        self.changed.notify_all();
        Ok(())
    }

    /// Cancels the running job and waits for it briefly.
    fn shut_down(&self) {
        self.queue().shut_down();
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(self.queue(), GRACE, |queue| queue.is_running());
        let stuck = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        if stuck {
            tracing::warn!("the running job did not stop within {} s and was abandoned", GRACE.as_secs());
            eprintln!("note: the running job did not stop within {} s and was abandoned", GRACE.as_secs());
            self.folder.remove_unfinished();
        }
    }

    /// Runs jobs until the worker ends or retires.
    fn run_jobs(&self) {
        loop {
            let (id, job, cancel) = {
                let mut queue = self.queue();
                loop {
                    if queue.is_shutting_down() {
                        return;
                    }
                    if let Some(reason) = self.retires.get() {
                        tracing::info!("retiring: {reason}");
                        self.replies.send(&Reply::Retiring { reason: reason.clone() });
                        return;
                    }
                    if let Some(next) = queue.start_next() {
                        self.replies.send(&Reply::Started { id: next.0 });
                        break next;
                    }
                    queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let end = self.run_job(id, &job, cancel);
            // Sent under the lock, so that the queue advances and the final reply is sent atomically.
            let mut queue = self.queue();
            self.replies.send(&end);
            queue.mark_done();
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Starts no job after the running one, and asks the client to replace this process.
    fn retire(&self, reason: String) {
        // Set under the lock, so that the thread that waits for jobs does not miss the notification.
        let queue = self.queue();
        // The first reason suffices.
        let _ = self.retires.set(reason);
        drop(queue);
        self.changed.notify_all();
    }

    /// Runs one job and returns the reply that ends it.
    fn run_job(&self, id: JobId, job: &Job, cancel: CancelToken) -> Reply {
        tracing::info!(%id, "job started");
        tracing::debug!(%id, "job: {job:?}");
        let outcome = catch_panics(|| {
            let Profiled { job, profile, devices, notes } = self.with_machine_profile(job);
            let job: &Job = &job;
            let remeasure = matches!(job, Job::Predict { remeasure: true, .. });
            let devices = if remeasure { devices.measured_again() } else { devices };
            let gpu = devices.list().iter().any(|d| d.usable && d.id != DeviceId::Cpu);
            let record_operators = match job {
                Job::Predict { operators, .. } => *operators || !gpu,
                Job::EvaluateModel(_) => !gpu,
                Job::Segment { .. }
                | Job::Measure(_)
                | Job::Convert(_)
                | Job::Evaluate(_)
                | Job::Import(_)
                | Job::Export(_)
                | Job::Mesh(_)
                | Job::ModelTest(_)
                | Job::ModelSpeed(_) => true,
                // Spans of operators are not useful for jobs that run for hours.
                Job::ObjectDiameter(_)
                | Job::Train(_)
                | Job::TrainCheck(_)
                | Job::TrainEstimate(_)
                | Job::Quantize { .. } => false,
            };
            let recorder = if record_operators { Recorder::new() } else { Recorder::without_operators() };
            // Dropped before the last report, which then holds the last sample.
            let sampler = recorder.sample_memory(MEMORY_EVERY, engine_memory);
            let folder = self.folder.path().to_owned();
            let replies = Arc::clone(&self.replies);
            let reporter = Arc::new(ProgressReporter::new(replies, id, recorder.clone(), folder, job.threads()));
            let event_reporter = Arc::clone(&reporter);
            let sink: Arc<dyn Fn(&Event) + Send + Sync> = Arc::new(move |event| event_reporter.event(event));
            let context = Context { cancel, sink, recorder };
            notes.into_iter().for_each(|note| context.note(note));
            let result = with_ticks(&reporter, || {
                catch_panics(|| self.execute(id, job, profile.as_ref(), &context, &devices, &reporter))
            });
            drop(sampler);
            if let Err(error) = &result
                && reporter.lost_device().is_none()
            {
                context.report_lost(error);
            }
            if let Some(id) = reporter.lost_device() {
                // The driver may refuse all further work of this process on that GPU, or compute nonsense.
                self.retire(format!("{id} has failed"));
            }
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
            Err(JobError::Canceled) => {
                tracing::info!(%id, "job canceled");
                Reply::Canceled { id }
            }
            Err(error) => {
                tracing::error!(%id, "job failed: {error}");
                Reply::from_error(id, &error)
            }
        }
    }

    /// Runs one job to its result. Files that outlive the job are retained.
    fn execute(
        &self,
        id: JobId,
        job: &Job,
        profile: Option<&AppliedProfile>,
        context: &Context,
        devices: &Devices,
        reporter: &ProgressReporter,
    ) -> Result<JobResult, JobError> {
        job.output_folders().iter().for_each(|folder| self.folder.record_output_folder(folder));
        let on_event = |event: &TrainEvent| reporter.training_event(event);
        match job {
            Job::Predict { live, .. } => {
                if *live {
                    self.retained().live.clear();
                }
                let sink = live.then_some(reporter as &dyn LiveSink);
                job.run_profiled(context, devices, sink, &on_event, profile)
            }
            Job::Segment { segmentation, .. } => {
                let result = if segmentation.labels.is_some() {
                    job.run(context, devices, None, &on_event)?
                } else {
                    let path = self.folder.path().join(format!("labels-{id}.u32"));
                    let report = segmentation.run_raw(context, &path)?;
                    self.retained().labels.insert(id, path);
                    JobResult::Segment(report)
                };
                self.retained().release_replaced(id);
                Ok(result)
            }
            _ => job.run(context, devices, None, &on_event),
        }
    }

    /// Returns a job with its open settings filled from the profile of this machine, and the devices to choose from. A
    /// profile whose device cannot be used now, or is not the one that was measured, is not applied.
    fn with_machine_profile<'a>(&self, job: &'a Job) -> Profiled<'a> {
        let mut notes = Vec::new();
        if job.performance() == PerformanceRequest::Off {
            return Profiled { job: Cow::Borrowed(job), profile: None, devices: self.devices_for(job.device()), notes };
        }
        let stored =
            MachineProfiles::user_path().map_or_else(|| Ok(MachineProfiles::default()), |p| MachineProfiles::read(&p));
        let profiles = stored.unwrap_or_else(|error| {
            notes.push(message!("the machine profiles are not used: {error}"));
            MachineProfiles::default()
        });
        if let Some((tuned, applied)) = job.with_machine_profile(&profiles) {
            let devices = self.devices_for(tuned.device());
            let Some(problem) = applied.problem(tuned.device(), devices.list()) else {
                notes.push(applied.text().into());
                return Profiled { job: Cow::Owned(tuned), profile: Some(applied), devices, notes };
            };
            notes.push(problem);
        } else if !matches!(job, Job::TrainEstimate(_)) {
            // For an estimate, which is repeated after each change of the settings, this would be said again and again.
            notes.extend(job.performance().unused_note());
        }
        Profiled { job: Cow::Borrowed(job), profile: None, devices: self.devices_for(job.device()), notes }
    }

    /// Returns the devices to choose from, with their free memory now; GPUs are not probed for a job that asks for the CPU.
    fn devices_for(&self, request: DeviceRequest) -> Devices {
        match request {
            DeviceRequest::Device(DeviceId::Cpu) => Devices::cpu_only(),
            DeviceRequest::Auto | DeviceRequest::Device(_) => self.devices().with_free_memory_now(request),
        }
    }

    /// Returns the devices, which are discovered once, without the GPUs that were in use when earlier processes ended.
    fn devices(&self) -> Devices {
        let failed = self.failed().clone();
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.get_or_insert_with(|| (self.options.discover)().without(&failed)).clone()
    }

    /// Discovers the devices again; returns all of them, and whether they have changed.
    fn devices_found_again(&self) -> (Devices, bool) {
        self.failed().clear();
        forget_hung_probes();
        let found = (self.options.discover)();
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let before = devices.replace(found.clone());
        drop(devices);
        let are_others = before.is_some_and(|before| !is_same_list(before.list(), found.list()));
        (found, are_others)
    }

    /// Answers queries while jobs run.
    fn answer(&self, queries: &Receiver<(JobId, Query)>) {
        for (id, query) in queries {
            let answer = catch_panics(|| {
                Ok(match query {
                    Query::Devices { again } => {
                        let (devices, are_others) =
                            if again { self.devices_found_again() } else { (self.devices(), false) };
                        (Reply::Devices { id, devices: devices.list().to_vec() }, are_others)
                    }
                    Query::Models => (Reply::Models { id, models: cards::installed() }, false),
                })
            });
            let (reply, are_others) = answer.unwrap_or_else(|error| (Reply::from_error(id, &error), false));
            self.replies.send(&reply);
            if are_others {
                // Drivers list their GPUs once for each process, so only a new one can use all of them.
                self.retire("other devices were found".to_owned());
            }
        }
    }
}

/// A job that is ready to run.
struct Profiled<'a> {
    job: Cow<'a, Job>,
    /// Settings that a machine profile has set.
    profile: Option<AppliedProfile>,
    /// The devices to choose from.
    devices: Devices,
    /// Notes for the user.
    notes: Vec<Message>,
}

/// Returns whether two lists name the same devices in the same state; their free memory may differ.
fn is_same_list(one: &[Device], other: &[Device]) -> bool {
    let described = |list: &[Device]| -> Vec<Device> {
        list.iter().map(|device| Device { free_bytes: None, ..device.clone() }).collect()
    };
    described(one) == described(other)
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
#[path = "serve_tests.rs"]
mod tests;
