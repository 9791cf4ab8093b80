//! A job as the window shows it: its state, its progress and what it measured.

use cytoscope_pipeline::predict::TilePlan;
use cytoscope_pipeline::{DeviceInUse, StageProgress};
use cytoscope_profile::{
    DeviceMemoryPeak, InputFacts, MemoryMark, MemoryPeak, MemorySample, RUN_FORMAT, RunFacts, RunRecord, Slowdown,
    SpanRecord, StageTotal, TrainingFacts, total_bytes,
};
use cytoscope_train::{TrainConfig, TrainEvent};
use cytoscope_worker::JobId;
use std::collections::VecDeque;
use std::time::Instant;

/// Number of reports of training steps that the current step time is averaged over.
const RECENT: usize = 20;

/// Name and version of this program, as run records state them.
const PROGRAM: &str = concat!("cytoscope ", env!("CARGO_PKG_VERSION"));

/// What a job is for, which decides what happens with its result.
#[derive(Debug, Clone, PartialEq)]
pub enum Purpose {
    /// A prediction of the stack of a document.
    Predict {
        /// Id of the document.
        document: u64,
    },
    /// Segment a document's map as a preview.
    Preview {
        /// Id of the document.
        document: u64,
    },
    /// Segment a document's map and save the result.
    Keep {
        /// Id of the document.
        document: u64,
    },
    /// A measurement of the labels of a document.
    Measure {
        /// Id of the document.
        document: u64,
    },
    /// Estimate the diameter of a document's objects.
    Diameter {
        /// Id of the document.
        document: u64,
    },
    /// Check training data or estimate the training cost.
    Check,
    /// A training run.
    Training,
    /// Work of the Models page.
    Model(ModelWork),
    /// Convert a file.
    Convert,
    /// Score predictions against ground truth.
    Evaluate,
    /// Write the surfaces of objects.
    Mesh,
}

/// Work of the Models page on a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelWork {
    /// Run its self-test.
    Test,
    /// Measure its speed on this machine.
    Measure,
    /// Quantize it.
    Quantize,
    /// Add it to the user's models.
    Add,
    /// Export it.
    Export,
}

impl ModelWork {
    /// What follows the name of the model in the title of the job.
    pub fn title(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Measure => "measure",
            Self::Quantize => "quantize",
            Self::Add => "add",
            Self::Export => "export",
        }
    }
}

impl Purpose {
    /// The document whose results the job changes, if any.
    pub fn document(&self) -> Option<u64> {
        match self {
            Purpose::Predict { document }
            | Purpose::Preview { document }
            | Purpose::Keep { document }
            | Purpose::Measure { document } => Some(*document),
            // A failed or cancelled estimate does not change the document.
            Purpose::Diameter { .. }
            | Purpose::Check
            | Purpose::Training
            | Purpose::Model(_)
            | Purpose::Convert
            | Purpose::Evaluate
            | Purpose::Mesh => None,
        }
    }

    /// Whether a result that the user asked for is lost if the window closes before the end of the job. Unfinished
    /// predictions and training runs are offered by the next window.
    pub fn is_lost_with_window(&self) -> bool {
        match self {
            Purpose::Keep { .. }
            | Purpose::Model(ModelWork::Quantize | ModelWork::Add | ModelWork::Export)
            | Purpose::Convert
            | Purpose::Evaluate
            | Purpose::Mesh => true,
            Purpose::Predict { .. }
            | Purpose::Preview { .. }
            | Purpose::Measure { .. }
            | Purpose::Diameter { .. }
            | Purpose::Check
            | Purpose::Training
            | Purpose::Model(ModelWork::Test | ModelWork::Measure) => false,
        }
    }

    /// The command of the command line that does the same.
    fn command(&self) -> &'static str {
        match self {
            Purpose::Predict { .. } => "predict",
            Purpose::Preview { .. } | Purpose::Keep { .. } => "segment",
            Purpose::Measure { .. } => "measure",
            Purpose::Diameter { .. } => "diameter",
            Purpose::Check => "check",
            Purpose::Training => "train",
            Purpose::Model(ModelWork::Test | ModelWork::Add) => "import",
            Purpose::Model(ModelWork::Measure) => "run",
            Purpose::Model(ModelWork::Quantize) => "quantize",
            Purpose::Model(ModelWork::Export) => "export",
            Purpose::Convert => "convert",
            Purpose::Evaluate => "evaluate",
            Purpose::Mesh => "mesh",
        }
    }
}

/// How far a job is, or how it has ended.
#[derive(Debug, Clone, PartialEq)]
pub enum JobState {
    /// Waiting for earlier jobs.
    Queued,
    /// The worker runs the job.
    Running,
    /// Finished successfully.
    Done,
    /// Failed; the reason.
    Failed(String),
    /// The user cancelled the job.
    Cancelled,
}

impl JobState {
    /// Returns whether the job has ended, successfully or not.
    pub fn is_over(&self) -> bool {
        !matches!(self, JobState::Queued | JobState::Running)
    }
}

/// Times of the latest steps of a training job.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingTimes {
    /// Number of threads that prepare patches.
    pub workers: usize,
    /// Number of patches per step.
    pub patches_per_step: usize,
    /// Number of reports so far.
    pub reports: u64,
    /// Mean seconds per step, and the part of it spent waiting for patches, of the latest reports.
    recent: VecDeque<[f64; 2]>,
}

impl TrainingTimes {
    /// No steps yet.
    pub(super) fn new(config: &TrainConfig) -> Self {
        let (workers, patches_per_step) = (config.data_workers(), config.patches_per_step());
        Self { workers, patches_per_step, reports: 0, recent: VecDeque::new() }
    }

    /// Adds a report of the run: mean seconds per step, and the part of it spent waiting for patches.
    fn add(&mut self, step_secs: f64, stalled_secs: f64) {
        self.reports += 1;
        self.recent.push_back([step_secs, stalled_secs]);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    /// Means over the latest reports: seconds per step, and the part of it spent waiting for patches.
    fn means(&self) -> Option<[f64; 2]> {
        let n = self.recent.len() as f64;
        let mean = |i: usize| self.recent.iter().map(|times| times[i]).sum::<f64>() / n;
        (n > 0.0).then(|| [mean(0), mean(1)])
    }
}

/// A job with its progress, profile and notes.
#[derive(Debug, Clone)]
pub struct JobView {
    /// Id of the job in the worker's protocol.
    pub id: JobId,
    /// What it works on and with which model, for display.
    pub title: String,
    /// What the window wants it for.
    pub purpose: Purpose,
    /// Whether it waits, runs or has ended.
    pub state: JobState,
    /// Progress of the current stage.
    pub progress: StageProgress,
    /// When it left the queue.
    pub started: Option<Instant>,
    /// Duration in seconds of a job that has ended.
    pub seconds: f64,
    /// Totals of seconds, bytes and voxels by stage.
    pub totals: Vec<StageTotal>,
    /// Spans in the order in which they were reported.
    pub spans: Vec<SpanRecord>,
    /// Memory marks of the job, oldest first.
    pub marks: Vec<MemoryMark>,
    /// Memory over time, oldest first, without the marks.
    pub timeline: Vec<MemorySample>,
    /// Number of spans that were not recorded.
    pub dropped: u64,
    /// Device and the reason for its choice.
    pub device: Option<DeviceInUse>,
    /// How its current input is predicted, with the planned peak memory.
    pub plan: Option<TilePlan>,
    /// Notes reported by the job.
    pub notes: Vec<String>,
    /// What a finished prediction knows about its inputs.
    pub inputs: Vec<InputFacts>,
    /// Step times, if it trains a model.
    pub training: Option<TrainingTimes>,
    /// Largest resident memory of the engine process in bytes, sampled twice per second while the job ran.
    pub sampled_peak_bytes: Option<u64>,
}

impl JobView {
    /// A job in the queue.
    pub(crate) fn new(id: JobId, title: String, purpose: Purpose) -> Self {
        Self {
            id,
            title,
            purpose,
            state: JobState::Queued,
            progress: StageProgress::default(),
            started: None,
            seconds: 0.0,
            totals: Vec::new(),
            spans: Vec::new(),
            marks: Vec::new(),
            timeline: Vec::new(),
            dropped: 0,
            device: None,
            plan: None,
            notes: Vec::new(),
            inputs: Vec::new(),
            training: None,
            sampled_peak_bytes: None,
        }
    }

    /// Adds the times of training steps that an event reports.
    pub(super) fn add_steps(&mut self, event: &TrainEvent) {
        if let (TrainEvent::TrainingSteps { step_secs, stalled_secs, .. }, Some(times)) = (event, &mut self.training) {
            times.add(*step_secs, *stalled_secs);
        }
    }

    /// Seconds since it started, or its duration once it has ended.
    pub fn elapsed_secs(&self) -> f64 {
        match self.state {
            JobState::Running => self.started.map_or(0.0, |start| start.elapsed().as_secs_f64()),
            _ => self.seconds,
        }
    }

    /// What is known about the run so far. CPU time is missing: the engine process reports none.
    pub fn facts(&self) -> RunFacts {
        RunFacts {
            wall_secs: self.elapsed_secs(),
            cores: std::thread::available_parallelism().ok().map(usize::from),
            peak_bytes: self.sampled_peak_bytes,
            inputs: self.inputs.clone(),
            training: self.training_facts(),
            ..RunFacts::default()
        }
    }

    fn training_facts(&self) -> Option<TrainingFacts> {
        let times = self.training.as_ref()?;
        let [step_secs, stalled_secs] = times.means()?;
        let device = self.device.as_ref().map_or_else(|| "cpu".to_owned(), |device| device.id.to_string());
        Some(TrainingFacts { step_secs, stalled_secs, workers: times.workers, device, ..TrainingFacts::default() })
    }

    /// Stages and facts of the run, without its spans.
    pub fn record(&self) -> RunRecord {
        RunRecord {
            format: RUN_FORMAT,
            program: PROGRAM.to_owned(),
            command: self.purpose.command().to_owned(),
            stages: self.totals.clone(),
            facts: RunFacts {
                memory_peak: MemoryPeak::of(&self.timeline, &self.spans),
                device_memory_peak: DeviceMemoryPeak::of(&self.timeline, &self.spans),
                memory_bytes: total_bytes(),
                slowdown: Slowdown::of(&self.spans),
                ..self.facts()
            },
        }
    }
}
