//! What the client knows about the state of the running job, and when its process counts as hung.
//!
//! The driver of a GPU may hang: the job then neither ends nor checks whether it was canceled, and blocks the queue. Jobs on
//! the CPU are not watched.

use super::{Job, JobId, Reply};
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_pipeline::{DeviceInUse, Event, ProgressStage};
use std::fmt;
use std::time::{Duration, Instant};

/// Time that a process may take until [`Reply::Ready`]; three such timeouts fit into the time in which a client gives up.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Time that a canceled job may show no progress.
const CANCELED_WITHIN: Duration = Duration::from_secs(20);
/// Time that another job on a GPU may show no progress.
const PROGRESS_WITHIN: Duration = Duration::from_secs(600);
/// How many times as long a job may show no progress while the GPU is tuned or compiles kernels: an hour, or two minutes
/// after it was canceled.
const PREPARATION_FACTOR: u32 = 6;

/// Times after which the client ends a process that does not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until [`Reply::Ready`].
    pub ready: Duration,
    /// Without progress of a job on a GPU after it was canceled, except while it finds objects or writes results; six times
    /// as long while the GPU is tuned or compiles kernels.
    pub canceled: Duration,
    /// Without progress of a job on a GPU; six times as long while the GPU is tuned or compiles kernels.
    pub progress: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { ready: READY_WITHIN, canceled: CANCELED_WITHIN, progress: PROGRESS_WITHIN }
    }
}

/// The GPU that a job uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsedGpu {
    /// The GPU that the job has reported or requested.
    Known(DeviceId),
    /// Some GPU: the job has not reported its device yet.
    Unknown,
}

impl fmt::Display for UsedGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(gpu) => gpu.fmt(f),
            Self::Unknown => f.write_str("a GPU"),
        }
    }
}

/// Device and progress of a job according to its replies.
pub(super) struct Activity {
    /// The device that it computes on, or that it tries before one is chosen.
    device: Option<DeviceId>,
    /// The seconds for which the GPU has been tuned or has compiled kernels, as reported last; `None` if it does neither.
    prepared_secs: Option<u64>,
    /// Whether the stage leaves the GPU alone and may take long between two checks for cancellation.
    is_on_cpu: bool,
    /// Whether there were training events, which precede the first checkpoint of a training run.
    has_trained: bool,
    /// When the last progress was seen.
    seen: Instant,
    canceled: Option<Instant>,
}

/// Returns the job whose progress a reply shows; `None` for other replies. A worker sends stages only if they have changed.
pub(super) fn reported_job(reply: &Reply) -> Option<JobId> {
    match reply {
        Reply::Started { id }
        | Reply::Progress { id, .. }
        | Reply::Training { id, .. }
        | Reply::Live { id, .. }
        | Reply::Stages { id, .. } => Some(*id),
        _ => None,
    }
}

impl Activity {
    pub(super) fn new() -> Self {
        let seen = Instant::now();
        Self { device: None, prepared_secs: None, is_on_cpu: false, has_trained: false, seen, canceled: None }
    }

    /// Returns whether the job has reported training events, so that a checkpoint is its own.
    pub(super) fn has_trained(&self) -> bool {
        self.has_trained
    }

    /// Records that the job was asked to stop.
    pub(super) fn cancel(&mut self) {
        self.canceled.get_or_insert_with(Instant::now);
    }

    /// Gives the job the full time again to show progress.
    pub(super) fn start_over(&mut self) {
        self.seen = Instant::now();
    }

    /// Handles a reply about the job.
    pub(super) fn receive(&mut self, reply: &Reply) {
        match reply {
            Reply::Progress { event: Event::Device(DeviceInUse { id, .. }) | Event::DeviceTried { id }, .. } => {
                (self.device, self.is_on_cpu) = (Some(*id), false);
            }
            Reply::Progress { event: Event::Progress(progress), .. } => {
                self.is_on_cpu = matches!(progress.stage, ProgressStage::Objects | ProgressStage::Write);
                let is_preparing = matches!(progress.stage, ProgressStage::Tuning | ProgressStage::Compiling);
                let secs = is_preparing.then_some(progress.done);
                // The seconds also count up if the GPU hangs, so only their start is progress.
                let before = std::mem::replace(&mut self.prepared_secs, secs);
                if let (Some(before), Some(secs)) = (before, secs)
                    && before <= secs
                {
                    return;
                }
            }
            // The next input uses the GPU again.
            Reply::Progress { event: Event::Started { .. }, .. } => self.is_on_cpu = false,
            Reply::Training { .. } => self.has_trained = true,
            _ => {}
        }
        self.start_over();
    }

    /// Returns the GPU that a job uses, or may use before its device is known. `has_gpu` is whether there is one at all, if
    /// that is known.
    pub(super) fn gpu(&self, job: &Job, has_gpu: Option<bool>) -> Option<UsedGpu> {
        match (self.device, job.device()) {
            (Some(DeviceId::Cpu), _) | (None, DeviceRequest::Device(DeviceId::Cpu)) => None,
            (Some(gpu), _) | (None, DeviceRequest::Device(gpu)) => Some(UsedGpu::Known(gpu)),
            (None, DeviceRequest::Auto) => (has_gpu != Some(false)).then_some(UsedGpu::Unknown),
        }
    }

    /// Like [`Activity::gpu`], for a job whose process has ended: `None` while it found objects or wrote results, too, because
    /// the GPU has not ended the process then.
    pub(super) fn gpu_at_work(&self, job: &Job, has_gpu: Option<bool>) -> Option<UsedGpu> {
        self.gpu(job, has_gpu).filter(|_| !self.is_on_cpu)
    }

    /// Returns why the process of a job counts as hung; `None` if it does not.
    pub(super) fn hang(&self, job: &Job, has_gpu: Option<bool>, timeouts: &Timeouts) -> Option<String> {
        let gpu = self.gpu(job, has_gpu)?;
        let silent = self.seen.elapsed();
        let factor = if self.prepared_secs.is_some() { PREPARATION_FACTOR } else { 1 };
        if let Some(canceled) = self.canceled.filter(|_| !self.is_on_cpu) {
            let within = timeouts.canceled.saturating_mul(factor);
            let is_hung = silent.min(canceled.elapsed()) >= within;
            let seconds = within.as_secs_f64().ceil();
            return is_hung.then(|| format!("the canceled job on {gpu} did not stop within {seconds} s"));
        }
        let within = timeouts.progress.saturating_mul(factor);
        let seconds = within.as_secs_f64().ceil();
        (silent >= within).then(|| format!("the job on {gpu} showed no progress for {seconds} s"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_pipeline::{ProgressUnit, StageProgress};
    use cytoscope_train::TrainEvent;

    /// Limits that are over at once.
    const OVER: Timeouts = Timeouts { ready: Duration::ZERO, canceled: Duration::ZERO, progress: Duration::ZERO };

    fn job(text: &str) -> Job {
        serde_json::from_str(text).unwrap()
    }

    fn predict() -> Job {
        job(r#"{"predict":{"prediction":{"inputs":["a.tif"],"model":"nuclei","out":"o"}}}"#)
    }

    fn event(event: Event) -> Reply {
        Reply::Progress { id: JobId(1), event }
    }

    fn on(device: &str) -> Activity {
        let mut activity = Activity::new();
        let (id, name, why) = (device.parse().unwrap(), String::new(), String::new());
        activity.receive(&event(Event::Device(DeviceInUse { id, name, why })));
        activity
    }

    #[test]
    fn only_jobs_that_may_use_a_gpu_are_watched() {
        let hangs = |activity: &Activity, job: &Job, has_gpu| activity.hang(job, has_gpu, &OVER).is_some();
        assert!(hangs(&on("cuda:0"), &predict(), None) && !hangs(&on("cpu"), &predict(), Some(true)));
        let unknown = Activity::new();
        assert!(hangs(&unknown, &predict(), None) && !hangs(&unknown, &predict(), Some(false)));
        let convert = job(r#"{"convert":{"input":"a.tif","output":"a.npy"}}"#);
        assert!(!hangs(&unknown, &convert, Some(true)));
        let import = job(r#"{"import":{"file":"m.onnx","out":"m"}}"#);
        let mut unknown = Activity::new();
        assert!(hangs(&unknown, &import, Some(true)) && !hangs(&unknown, &import, Some(false)));
        let score = job(r#"{"evaluate_model":{"model":"nuclei","data":"d"}}"#);
        assert!(hangs(&unknown, &score, Some(true)) && !hangs(&on("cpu"), &score, Some(true)));
        unknown.cancel();
        assert!(hangs(&unknown, &import, Some(true)));
        assert_eq!(on("wgpu:1").gpu(&predict(), Some(true)), Some(UsedGpu::Known(DeviceId::Wgpu(1))));
        // Devices are compared before one is chosen.
        let mut comparing = Activity::new();
        for (id, expected) in [(DeviceId::Cuda(0), Some(UsedGpu::Known(DeviceId::Cuda(0)))), (DeviceId::Cpu, None)] {
            comparing.receive(&event(Event::DeviceTried { id }));
            assert_eq!(comparing.gpu(&predict(), Some(true)), expected);
        }
        assert_eq!(Activity::new().gpu(&predict(), None), Some(UsedGpu::Unknown));
        let requested =
            job(r#"{"predict":{"prediction":{"inputs":["a.tif"],"model":"m","out":"o","device":"cuda:1"}}}"#);
        assert_eq!(Activity::new().gpu(&requested, None), Some(UsedGpu::Known(DeviceId::Cuda(1))));
    }

    #[test]
    fn after_training_events_a_checkpoint_belongs_to_the_job() {
        let mut activity = on("cuda:0");
        assert!(!activity.has_trained());
        let (step, steps, loss, rate, step_secs, stalled_secs) = (1, 9, 0.5, 1e-3, 0.1, 0.0);
        let event = TrainEvent::TrainingSteps { step, steps, loss, rate, step_secs, stalled_secs };
        activity.receive(&Reply::Training { id: JobId(1), event });
        assert!(activity.has_trained());
    }

    #[test]
    fn progress_is_no_hang() {
        let limits = Timeouts { progress: Duration::from_secs(1000), ..OVER };
        let mut activity = on("cuda:0");
        assert_eq!(activity.hang(&predict(), None, &limits), None);
        let stage = |stage: ProgressStage| {
            let unit = ProgressUnit::Seconds;
            event(Event::Progress(StageProgress { stage, done: 0, total: 0, unit, rate: 0.0, eta_secs: 0.0 }))
        };
        activity.receive(&stage(ProgressStage::Predict));
        assert!(activity.hang(&predict(), None, &OVER).unwrap().contains("no progress"));
        activity.seen -= Duration::from_secs(10);
        activity.receive(&Reply::Stages { id: JobId(1), totals: Vec::new() });
        assert!(activity.seen.elapsed() < Duration::from_secs(10));
        activity.seen -= Duration::from_secs(10);
        let limits = Timeouts { progress: Duration::from_secs(10), ..OVER };
        assert!(activity.hang(&predict(), None, &limits).is_some());
        activity.start_over();
        assert_eq!(activity.hang(&predict(), None, &limits), None, "the machine has slept");
        activity.cancel();
        assert!(activity.hang(&predict(), None, &OVER).unwrap().contains("did not stop"));
        // A canceled job may take its time as long as it makes progress.
        let limits = Timeouts { canceled: Duration::from_secs(1000), ..OVER };
        assert_eq!(activity.hang(&predict(), None, &limits), None);
    }

    #[test]
    fn a_gpu_that_hangs_while_it_is_prepared_counts_as_hung_later() {
        let limits = Timeouts { canceled: Duration::from_secs(1), progress: Duration::from_secs(2), ..OVER };
        let tuned = |secs: u64| {
            let (stage, unit) = (ProgressStage::Tuning, ProgressUnit::Seconds);
            event(Event::Progress(StageProgress { stage, done: secs, total: 0, unit, rate: 0.0, eta_secs: 0.0 }))
        };
        let mut activity = on("cuda:0");
        activity.receive(&tuned(0));
        activity.seen -= Duration::from_secs(5);
        activity.receive(&tuned(5));
        assert_eq!(activity.hang(&predict(), None, &limits), None, "tuning may take long");
        activity.seen -= Duration::from_secs(8);
        activity.receive(&tuned(13));
        assert!(activity.hang(&predict(), None, &limits).unwrap().contains("no progress for 12 s"));
        activity.receive(&tuned(0));
        assert_eq!(activity.hang(&predict(), None, &limits), None, "the next network is tuned");
        activity.cancel();
        activity.seen -= Duration::from_secs(7);
        activity.canceled = activity.canceled.map(|at| at - Duration::from_secs(4));
        assert_eq!(activity.hang(&predict(), None, &limits), None, "tuning cannot be interrupted");
        activity.canceled = activity.canceled.map(|at| at - Duration::from_secs(3));
        assert!(activity.hang(&predict(), None, &limits).unwrap().contains("did not stop within 6 s"));
    }

    #[test]
    fn a_canceled_job_may_complete_its_work_on_the_cpu() {
        let limits = Timeouts { progress: Duration::from_secs(1000), ..OVER };
        let stage = |stage: ProgressStage| {
            let unit = ProgressUnit::Slices;
            event(Event::Progress(StageProgress { stage, done: 0, total: 9, unit, rate: 0.0, eta_secs: 0.0 }))
        };
        let mut activity = on("cuda:0");
        activity.cancel();
        for on_cpu in [ProgressStage::Objects, ProgressStage::Write] {
            activity.receive(&stage(on_cpu));
            assert_eq!(activity.gpu_at_work(&predict(), Some(true)), None, "{on_cpu}");
            assert_eq!(activity.hang(&predict(), None, &limits), None, "{on_cpu}");
            assert!(activity.hang(&predict(), None, &OVER).unwrap().contains("no progress"), "{on_cpu}");
            activity.receive(&stage(ProgressStage::Predict));
            let gpu = UsedGpu::Known(DeviceId::Cuda(0));
            assert_eq!(activity.gpu_at_work(&predict(), Some(true)), Some(gpu), "{on_cpu}");
            assert!(activity.hang(&predict(), None, &limits).unwrap().contains("did not stop"), "{on_cpu}");
        }
        activity.receive(&stage(ProgressStage::Write));
        activity.receive(&event(Event::Started { input: "b.tif".into(), index: 1, count: 2 }));
        assert!(activity.hang(&predict(), None, &limits).unwrap().contains("did not stop"), "the next input");
    }
}
