//! Functions that all long jobs share: progress events, cancellation, and time measurement.

use crate::JobError;
use crate::note::{Note, NoteLevel};
use crate::predict::TilePlan;
use crate::progress::{ProgressStage, ProgressUnit, StageProgress};
use cytoscope_engine::{CompileOptions, DeviceId, EngineError, Precision, Preparation, TuningListener};
use cytoscope_graph::Interrupt;
use cytoscope_profile::Recorder;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of threads of a job.
pub const MAX_THREADS: usize = 1024;

/// Time between two reports of [`Context::report_alive`].
const ALIVE_EVERY: Duration = Duration::from_secs(5);

/// Checks that a number of threads is within [`MAX_THREADS`].
///
/// # Errors
/// [`JobError::WrongUse`] if it is larger.
pub fn check_threads(threads: usize) -> Result<(), JobError> {
    if threads <= MAX_THREADS {
        return Ok(());
    }
    Err(JobError::wrong_use(format!("invalid number of threads {threads}: expected 0 (all cores) to {MAX_THREADS}")))
}

/// Requests a job to stop, which it does within one tile. Clones share the request.
#[derive(Debug, Clone, Default)]
pub struct CancelToken {
    flags: Arc<AtomicU8>,
    deadline: Option<Instant>,
}

/// Bit of [`CancelToken::flags`]: cancel.
const CANCELED: u8 = 1;
/// Bit of [`CancelToken::flags`]: finish early and write the best result.
const FINISHING: u8 = 2;
/// Bit of [`CancelToken::flags`]: keep nothing for a later run.
const DISCARDING: u8 = 4;

impl CancelToken {
    /// Asks the job to stop at its next check. Cannot be undone.
    pub fn cancel(&self) {
        self.flags.fetch_or(CANCELED, Ordering::Relaxed);
    }

    /// Same as [`CancelToken::cancel`]; a prediction that does not resume an earlier one also removes the slices that
    /// it has kept for a later run.
    pub fn discard(&self) {
        self.flags.fetch_or(CANCELED | DISCARDING, Ordering::Relaxed);
    }

    /// Returns whether nothing is to be kept for a later run.
    pub fn is_discarding(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & DISCARDING != 0
    }

    /// Returns a token that shares this one's request and is also canceled after `deadline`, or after this token's own
    /// deadline if that is earlier.
    pub fn until(&self, deadline: Instant) -> Self {
        let deadline = self.deadline.map_or(deadline, |own| own.min(deadline));
        Self { flags: Arc::clone(&self.flags), deadline: Some(deadline) }
    }

    /// Returns whether cancellation was requested or the deadline has passed.
    pub fn is_canceled(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & CANCELED != 0 || self.deadline.is_some_and(|at| Instant::now() >= at)
    }

    /// Requests a training run to end now with its best network. Other jobs ignore it.
    pub fn finish(&self) {
        self.flags.fetch_or(FINISHING, Ordering::Relaxed);
    }

    /// Returns whether an early finish was requested.
    pub fn is_finishing(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & FINISHING != 0
    }
}

/// Event that any job may report while it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Work on an input has started.
    Started {
        /// Path of the input file.
        input: PathBuf,
        /// Index of the input, from 0.
        index: usize,
        /// Number of inputs.
        count: usize,
    },
    /// How much of a stage is done.
    Progress(StageProgress),
    /// The device that the job runs on; reported again if the job moves to another device.
    Device(DeviceInUse),
    /// A device is opened, checked or measured next, before or without a choice among the devices.
    DeviceTried {
        /// Kind and index of the device.
        id: DeviceId,
    },
    /// A GPU has failed for a reason other than lack of memory, and may not work again in this process. A note says how the
    /// job continues.
    DeviceLost {
        /// Kind and index of the GPU.
        id: DeviceId,
        /// How it has failed.
        reason: String,
    },
    /// How an input is predicted, and the memory that this takes at most; reported before inference starts, and again if
    /// the plan changes.
    Planned {
        /// Path of the input file.
        input: PathBuf,
        /// Slabs or tiles, and the planned peak memory.
        plan: Box<TilePlan>,
    },
    /// A note to the user.
    Note(Note),
    /// Work on an input is finished.
    Finished {
        /// Path of the input file.
        input: PathBuf,
        /// Files written.
        outputs: Vec<PathBuf>,
    },
    /// An input failed; the remaining inputs are still processed.
    Failed {
        /// Path of the input file.
        input: PathBuf,
        /// The error message.
        reason: String,
        /// Whether the message names the input.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        names_input: bool,
    },
}

impl Event {
    /// Writes the event to the log; progress is too frequent for it.
    fn log(&self) {
        match self {
            Event::Started { input, index, count } => tracing::info!(?input, index, count, "input started"),
            Event::Device(DeviceInUse { id, name, why }) => tracing::info!(device = %id, ?name, ?why, "device chosen"),
            Event::DeviceTried { id } => tracing::debug!(device = %id, "trying a device"),
            Event::DeviceLost { id, reason } => tracing::error!(device = %id, "device failed: {reason}"),
            Event::Planned { input, plan } => tracing::info!(?input, "planned: {}", plan.text()),
            Event::Note(Note { level: NoteLevel::Info, message }) => tracing::info!("note: {message}"),
            Event::Note(Note { level: NoteLevel::Warning, message }) => tracing::warn!("{message}"),
            Event::Finished { input, outputs } => tracing::info!(?input, ?outputs, "input finished"),
            Event::Failed { input, reason, .. } => tracing::error!(?input, "input failed: {reason}"),
            Event::Progress(_) => {}
        }
    }
}

/// The device that a job computes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceInUse {
    /// Id of the device.
    pub id: DeviceId,
    /// Name of the device, such as that of the GPU.
    pub name: String,
    /// Reason for the choice, as a clause.
    pub why: String,
}

/// The environment that a job runs in: cancellation, events and time measurement.
#[derive(Clone)]
pub struct Context {
    /// Token by which the job is canceled.
    pub cancel: CancelToken,
    /// Receives the job's events; called from the job's threads, and from another one while a device is tuned.
    pub sink: Arc<dyn Fn(&Event) + Send + Sync>,
    /// Recorder of the spans and memory of the job.
    pub recorder: Recorder,
}

impl Default for Context {
    fn default() -> Self {
        Self { cancel: CancelToken::default(), sink: Arc::new(|_| {}), recorder: Recorder::totals_only() }
    }
}

impl Context {
    /// Logs an event and sends it to the sink.
    pub fn emit(&self, event: &Event) {
        event.log();
        (self.sink)(event);
    }

    /// Sends an [`Event::Note`].
    pub fn note(&self, note: impl Into<Note>) {
        self.emit(&Event::Note(note.into()));
    }

    /// Sends an [`Event::DeviceTried`], so that it is known which device hangs if one does.
    pub fn report_tried_device(&self, id: DeviceId) {
        self.emit(&Event::DeviceTried { id });
    }

    /// Sends an [`Event::DeviceLost`] if an error says that a GPU has failed.
    pub fn report_lost(&self, error: &JobError) {
        if let JobError::Engine(error) = error {
            self.report_lost_device(error);
        }
    }

    /// Like [`Context::report_lost`], for the error of an engine.
    pub fn report_lost_device(&self, error: &EngineError) {
        if let EngineError::Device { device, reason } = error
            && *device != DeviceId::Cpu
        {
            self.emit(&Event::DeviceLost { id: *device, reason: reason.to_string() });
        }
    }

    /// Checks whether the job was canceled.
    ///
    /// # Errors
    /// [`JobError::Canceled`] if it was.
    pub fn check(&self) -> Result<(), JobError> {
        if self.cancel.is_canceled() { Err(JobError::Canceled) } else { Ok(()) }
    }

    /// Returns [`JobError::Canceled`] if the job was canceled, because images that are computed as they are read fail
    /// then; otherwise the error itself.
    pub(crate) fn canceled_or(&self, error: impl Into<JobError>) -> JobError {
        if self.cancel.is_canceled() { JobError::Canceled } else { error.into() }
    }

    /// Returns options to compile a network with, on a number of threads (0 uses all cores): its spans go to the job's
    /// recorder, compiling stops once the job is canceled, tuning is reported, and the memory is not limited.
    pub fn compile_options(&self, precision: Precision, threads: usize) -> CompileOptions {
        CompileOptions {
            precision,
            threads,
            memory_budget_bytes: None,
            recorder: self.recorder.clone(),
            interrupt: self.interrupt(),
            tuning: self.tuning(),
        }
    }

    /// Returns an interrupt that stops compiling a model once the job is canceled.
    pub fn interrupt(&self) -> Interrupt {
        let cancel = self.cancel.clone();
        Interrupt::new(move || cancel.is_canceled())
    }

    /// Returns a listener that reports the tuning of a device as a note, once for each device, and as
    /// [`ProgressStage::Tuning`], and the compiling of kernels as [`ProgressStage::Compiling`]. The units of both are the
    /// seconds so far; their total is unknown, hence 0.
    pub fn tuning(&self) -> TuningListener {
        let sink = Arc::clone(&self.sink);
        let announced = Mutex::new(BTreeSet::new());
        let is_new = move |device: DeviceId| announced.lock().unwrap_or_else(PoisonError::into_inner).insert(device);
        TuningListener::new(move |device, preparation, elapsed| {
            let stage = match preparation {
                Preparation::Tuning => ProgressStage::Tuning,
                Preparation::Compiling => ProgressStage::Compiling,
            };
            if preparation == Preparation::Tuning && elapsed.is_zero() && is_new(device) {
                let message = format!("{device} times its kernels for a new tile shape; this is done once");
                let note = Event::Note(message.into());
                note.log();
                sink(&note);
            }
            sink(&seconds_so_far(stage, elapsed));
        })
    }

    /// Runs work of unknown duration that uses no GPU, such as hashing a large file or validation. Every few seconds, the
    /// seconds so far are reported as progress of the stage, because a job that reports nothing for long counts as hung.
    pub fn report_alive<T>(&self, stage: ProgressStage, work: impl FnOnce() -> T) -> T {
        self.report_alive_every(ALIVE_EVERY, stage, work)
    }

    /// Like [`Context::report_alive`], with the time between two reports.
    fn report_alive_every<T>(&self, interval: Duration, stage: ProgressStage, work: impl FnOnce() -> T) -> T {
        let (ended, wait) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let start = Instant::now();
                while wait.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    self.emit(&seconds_so_far(stage, start.elapsed()));
                }
            });
            let result = work();
            // Ends the thread, as a panic of the work does.
            drop(ended);
            result
        })
    }

    /// Returns a progress meter for a stage of `total` units.
    pub fn meter(&self, stage: ProgressStage, total: u64, unit: ProgressUnit) -> Meter<'_> {
        let meter = Meter { context: self, stage, total, unit, done: 0, earlier: 0, start: Instant::now() };
        meter.report();
        meter
    }
}

/// Returns the progress of a stage of unknown duration: its units are the seconds so far, and its total is 0.
fn seconds_so_far(stage: ProgressStage, elapsed: Duration) -> Event {
    let (done, unit) = (elapsed.as_secs(), ProgressUnit::Seconds);
    Event::Progress(StageProgress { stage, done, total: 0, unit, rate: 1.0, eta_secs: 0.0 })
}

/// Counts the units of a stage and reports progress, rate and remaining time.
pub struct Meter<'a> {
    context: &'a Context,
    stage: ProgressStage,
    total: u64,
    unit: ProgressUnit,
    done: u64,
    /// Units done by an earlier run, which do not count for the rate.
    earlier: u64,
    start: Instant,
}

impl Meter<'_> {
    /// Adds completed units, reports progress, and checks for cancellation.
    ///
    /// # Errors
    /// [`JobError::Canceled`] if the job was canceled.
    pub fn add(&mut self, units: u64) -> Result<(), JobError> {
        self.done = (self.done + units).min(self.total);
        self.report();
        self.context.check()
    }

    /// Leaves time that another stage took, with its own meter, out of the rate.
    pub fn exclude(&mut self, time: Duration) {
        self.start += time;
    }

    /// Reports all units as completed. Cancellation comes too late then: what the job wrote is in place.
    pub fn finish(mut self) {
        self.done = self.total;
        self.report();
    }

    /// Sets the number of units that an earlier run completed.
    pub fn skip_completed(&mut self, units: u64) {
        self.done = units.min(self.total);
        self.earlier = self.done;
        self.report();
    }

    /// Sets the completed and total units, for stages whose total changes or whose units are repeated.
    ///
    /// # Errors
    /// [`JobError::Canceled`] if the job was canceled.
    pub fn set_progress(&mut self, done: u64, total: u64) -> Result<(), JobError> {
        self.total = total;
        self.done = done.min(total);
        self.report();
        self.context.check()
    }

    fn report(&self) {
        let rate = self.done.saturating_sub(self.earlier) as f64 / self.start.elapsed().as_secs_f64().max(1e-9);
        let left = (self.total - self.done) as f64;
        self.context.emit(&Event::Progress(StageProgress {
            stage: self.stage,
            done: self.done,
            total: self.total,
            unit: self.unit,
            rate,
            eta_secs: if rate > 0.0 { left / rate } else { 0.0 },
        }));
    }
}

/// Helpers of tests.
#[cfg(test)]
impl Context {
    /// Returns a context and the list of the events that it receives.
    pub(crate) fn recording_events() -> (Self, Arc<Mutex<Vec<Event>>>) {
        let events = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&events);
        let sink = move |event: &Event| kept.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
        (Self { sink: Arc::new(sink), ..Self::default() }, events)
    }
}

/// Returns the devices that were reported as lost, in order.
#[cfg(test)]
pub(crate) fn lost_devices(events: &Mutex<Vec<Event>>) -> Vec<DeviceId> {
    let events = events.lock().unwrap_or_else(PoisonError::into_inner);
    let lost = events.iter().filter_map(|event| match event {
        Event::DeviceLost { id, .. } => Some(*id),
        _ => None,
    });
    lost.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_another_stage_does_not_slow_down_a_stage() {
        let (context, seen) = Context::recording_events();
        let mut meter = context.meter(ProgressStage::Calibrate, 4, ProgressUnit::Runs);
        // As if this stage and another one had taken 10 s each.
        meter.start -= Duration::from_secs(20);
        meter.exclude(Duration::from_secs(10));
        meter.add(1).unwrap();
        let seen = seen.lock().unwrap();
        let Some(Event::Progress(progress)) = seen.last() else { panic!("{seen:?}") };
        assert!((30.0..60.0).contains(&progress.eta_secs), "{progress:?}");
    }

    #[test]
    fn tuning_is_announced_and_the_seconds_of_tuning_and_compiling_are_reported() {
        let (context, seen) = Context::recording_events();
        let listener = context.tuning();
        listener.notify(DeviceId::Cuda(1), Preparation::Tuning, Duration::ZERO);
        listener.notify(DeviceId::Cuda(1), Preparation::Tuning, Duration::from_secs(7));
        // Another graph of the same job.
        listener.notify(DeviceId::Cuda(1), Preparation::Tuning, Duration::ZERO);
        listener.notify(DeviceId::Cuda(1), Preparation::Compiling, Duration::from_secs(2));
        let seen = seen.lock().unwrap();
        assert!(
            matches!(&seen[0], Event::Note(note) if note.message.starts_with("cuda:1 times its kernels")),
            "{seen:?}"
        );
        assert_eq!(seen.iter().filter(|event| matches!(event, Event::Note(_))).count(), 1, "{seen:?}");
        let stages: Vec<(ProgressStage, u64)> = seen
            .iter()
            .filter_map(|event| match event {
                Event::Progress(progress) => Some((progress.stage, progress.done)),
                _ => None,
            })
            .collect();
        let (tuning, compiling) = (ProgressStage::Tuning, ProgressStage::Compiling);
        assert_eq!(stages, [(tuning, 0), (tuning, 7), (tuning, 0), (compiling, 2)]);
    }

    #[test]
    fn work_of_unknown_duration_reports_that_the_job_is_alive() {
        let (seen, wait) = channel();
        let sink = move |event: &Event| _ = seen.send(event.clone());
        let context = Context { sink: Arc::new(sink), ..Context::default() };
        // The work takes until the first report.
        let work = || wait.recv_timeout(Duration::from_secs(60));
        let event = context.report_alive_every(Duration::from_millis(1), ProgressStage::Check, work);
        let Ok(Event::Progress(progress)) = event else { panic!("{event:?}") };
        assert_eq!((progress.stage, progress.unit, progress.total), (ProgressStage::Check, ProgressUnit::Seconds, 0));
    }

    #[test]
    fn a_deadline_affects_one_token_and_cancel_affects_all() {
        let token = CancelToken::default();
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(1000));
        let (over, waiting) = (token.until(now), token.until(later));
        assert!(over.is_canceled() && !waiting.is_canceled() && !token.is_canceled());
        assert!(waiting.until(now).is_canceled() && over.until(later).is_canceled(), "the earlier deadline counts");
        token.finish();
        assert!(waiting.is_finishing() && !waiting.is_canceled());
        waiting.cancel();
        assert!(token.is_canceled());
    }
}
