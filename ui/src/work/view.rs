//! A job as the window shows it: its state, its progress and what it measured.

use super::JobSubject;
use crate::engine_notes::{converting_note_in_window, note_in_window, rerun_note_in_window};
use cytoscope_engine::DeviceId;
use cytoscope_pipeline::predict::TilePlan;
use cytoscope_pipeline::{DeviceInUse, Event, Note, PROGRAM, ProgressStage, StageProgress};
use cytoscope_profile::{
    DeviceMemoryPeak, InputFacts, MemoryMark, MemoryPeak, MemorySample, RUN_FORMAT, RunFacts, RunRecord, Slowdown,
    SpanRecord, Stage, StageTotal, TrainingFacts, total_bytes,
};
use cytoscope_train::{TrainConfig, TrainEvent, TrainStatus};
use cytoscope_worker::JobId;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

/// Number of reports of training steps that the current step time is averaged over.
const RECENT: usize = 20;

/// Purpose of a job, which decides how its result is used.
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
    /// A training run in 32-bit floats, whose scores are compared with those of one in 16-bit floats.
    PrecisionComparison,
    /// Work of the Models page.
    Model(ModelWork),
    /// Convert a file.
    Convert,
    /// Write a preprocessed copy of a stack.
    Preprocess,
    /// Score predictions against ground truth.
    Evaluate,
    /// Write the surfaces of objects.
    Mesh,
    /// Run a recorded job again.
    Rerun,
}

/// Work of the Models page on a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelWork {
    /// Run its self-test.
    Test,
    /// Measure its speed on this machine.
    Measure,
    /// Write an int8 version of it.
    Quantize,
    /// Add it to the user's models.
    Add,
    /// Write it in a format of other programs.
    Export,
}

impl ModelWork {
    /// Returns the text that follows the name of the model in the title of the job.
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
            // A failed or canceled estimate does not change the document.
            Purpose::Diameter { .. }
            | Purpose::Check
            | Purpose::Training
            | Purpose::PrecisionComparison
            | Purpose::Model(_)
            | Purpose::Convert
            | Purpose::Preprocess
            | Purpose::Evaluate
            | Purpose::Mesh
            | Purpose::Rerun => None,
        }
    }

    /// Whether a result that the user asked for is lost if the window closes before the end of the job. Unfinished
    /// predictions and training runs are offered by the next window.
    pub fn is_lost_with_window(&self) -> bool {
        match self {
            Purpose::Keep { .. }
            | Purpose::Model(ModelWork::Quantize | ModelWork::Add | ModelWork::Export)
            | Purpose::PrecisionComparison
            | Purpose::Convert
            | Purpose::Preprocess
            | Purpose::Evaluate
            | Purpose::Mesh
            | Purpose::Rerun => true,
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
            Purpose::Training | Purpose::PrecisionComparison => "train",
            Purpose::Model(ModelWork::Test | ModelWork::Add) => "import",
            Purpose::Model(ModelWork::Measure) => "run",
            Purpose::Model(ModelWork::Quantize) => "quantize",
            Purpose::Model(ModelWork::Export) => "export",
            Purpose::Convert | Purpose::Preprocess => "convert",
            Purpose::Evaluate => "evaluate",
            Purpose::Mesh => "mesh",
            Purpose::Rerun => "provenance",
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
    /// The user canceled the job.
    Canceled,
}

impl JobState {
    /// Returns whether the job has ended, successfully or not.
    pub fn is_over(&self) -> bool {
        !matches!(self, JobState::Queued | JobState::Running)
    }
}

/// Times of a job and its number of threads, measured in the engine process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JobUsage {
    /// Wall time since the start of the job in seconds.
    pub wall_secs: f64,
    /// CPU time of the engine process since then in seconds, summed over threads; `None` if it is unknown.
    pub cpu_secs: Option<f64>,
    /// Number of threads that the job computes with.
    pub threads: usize,
}

/// Times of the latest steps of a training job, and its status.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingTimes {
    /// Number of threads that prepare patches, by the settings of the job; the status states those of the run.
    pub workers: usize,
    /// Number of patches per step by the settings of the job, which a machine profile may complete.
    planned_patches: usize,
    /// Number of batches per step.
    accumulate: usize,
    /// Number of reports of steps and of the status so far.
    pub reports: u64,
    /// The latest status; `None` before the first steps.
    pub status: Option<TrainStatus>,
    /// Mean seconds per step, and the part of it spent waiting for patches, of the latest reports.
    recent: VecDeque<[f64; 2]>,
}

impl TrainingTimes {
    /// No steps yet.
    pub(super) fn new(config: &TrainConfig) -> Self {
        Self {
            workers: config.data_workers(),
            planned_patches: config.patches_per_step(),
            accumulate: config.accumulate,
            reports: 0,
            status: None,
            recent: VecDeque::new(),
        }
    }

    /// Number of patches per step.
    pub fn patches_per_step(&self) -> usize {
        self.status.as_ref().map_or(self.planned_patches, |status| status.batch.saturating_mul(self.accumulate))
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
    /// The files and the model of the job, for display.
    pub title: String,
    /// Purpose of the job for the window.
    pub purpose: Purpose,
    /// Files that distinguish it from other jobs with the same title.
    pub(super) files: Vec<PathBuf>,
    /// Whether it waits, runs or has ended.
    pub state: JobState,
    /// Progress of the current stage; `None` before the first one.
    pub progress: Option<StageProgress>,
    /// When that progress was reported.
    pub(super) progress_at: Option<Instant>,
    /// Number of the current input, from 1, and of all inputs; `None` if the job has not reported any.
    pub input_of: Option<[usize; 2]>,
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
    pub notes: Vec<Note>,
    /// End of the process that ran the job before, if the job continues in another one.
    pub continued: Option<String>,
    /// Facts about the inputs of a finished prediction.
    pub inputs: Vec<InputFacts>,
    /// Step times, if it trains a model.
    pub training: Option<TrainingTimes>,
    /// Largest resident memory of the engine process in bytes, sampled twice per second while the job ran.
    pub sampled_peak_bytes: Option<u64>,
    /// Times and threads, measured twice per second while the job ran.
    pub usage: Option<JobUsage>,
}

impl JobView {
    /// A job in the queue.
    pub(crate) fn new(id: JobId, title: String, purpose: Purpose) -> Self {
        Self {
            id,
            title,
            purpose,
            files: Vec::new(),
            state: JobState::Queued,
            progress: None,
            progress_at: None,
            input_of: None,
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
            continued: None,
            inputs: Vec::new(),
            training: None,
            sampled_peak_bytes: None,
            usage: None,
        }
    }

    /// Returns the subject of the job, without its settings.
    pub(crate) fn subject(&self) -> JobSubject {
        JobSubject { title: self.title.clone(), purpose: self.purpose.clone(), files: self.files.clone() }
    }

    /// What the job does, such as "Converting a.tif", in words that "failed" can follow.
    pub(crate) fn action(&self) -> String {
        let Some((subject, _)) = self.title.rsplit_once(" · ") else { return self.title.clone() };
        let verb = match self.purpose {
            Purpose::Predict { .. } => "Predicting",
            Purpose::Preview { .. } | Purpose::Keep { .. } => "Finding the objects of",
            Purpose::Measure { .. } => "Measuring",
            Purpose::Diameter { .. } => "Estimating the object diameter of",
            Purpose::Check | Purpose::Training | Purpose::PrecisionComparison => return self.title.clone(),
            Purpose::Model(ModelWork::Test) => "Testing",
            Purpose::Model(ModelWork::Measure) => "Timing",
            Purpose::Model(ModelWork::Quantize) => "Quantizing",
            Purpose::Model(ModelWork::Add) => "Adding",
            Purpose::Model(ModelWork::Export) => "Exporting",
            Purpose::Convert => "Converting",
            Purpose::Preprocess => "Preprocessing",
            Purpose::Evaluate => "Evaluating",
            Purpose::Mesh => "Saving the meshes of",
            Purpose::Rerun => return format!("Making {subject} again"),
        };
        format!("{verb} {subject}")
    }

    /// Waits for the next process, in which the job continues, after its own has ended as the note says.
    pub(super) fn continue_after(&mut self, note: String) {
        self.state = JobState::Queued;
        (self.progress, self.started, self.device, self.plan, self.usage) = (None, None, None, None, None);
        self.notes.push(note.clone().into());
        self.continued = Some(note);
    }

    /// Records the times of training steps, or the status, that an event reports.
    pub(super) fn record_training(&mut self, event: &TrainEvent) {
        let Some(times) = &mut self.training else { return };
        match event {
            TrainEvent::TrainingSteps { step_secs, stalled_secs, .. } => times.add(*step_secs, *stalled_secs),
            TrainEvent::Status(status) => {
                times.reports += 1;
                times.status = Some((**status).clone());
            }
            TrainEvent::Planned(_) | TrainEvent::Validated(_) | TrainEvent::ValidationPreview { .. } => {}
        }
    }

    /// Records what the job reports while it runs.
    pub(super) fn record_event(&mut self, event: Event) {
        match event {
            Event::Progress(progress) => self.record_progress(progress),
            Event::Note(note) if self.purpose == Purpose::Convert => self.notes.push(converting_note_in_window(&note)),
            Event::Note(note) if self.purpose == Purpose::Rerun => self.notes.push(rerun_note_in_window(&note)),
            Event::Note(note) => self.notes.push(note_in_window(&note)),
            Event::Device(device) => self.device = Some(device),
            Event::Planned { plan, .. } => self.plan = Some(*plan),
            Event::Started { index, count, .. } => self.input_of = Some([index + 1, count]),
            Event::DeviceTried { .. } | Event::DeviceLost { .. } | Event::Finished { .. } | Event::Failed { .. } => {}
        }
    }

    /// Records the progress of a stage.
    fn record_progress(&mut self, progress: StageProgress) {
        (self.progress, self.progress_at) = (Some(progress), Some(Instant::now()));
    }

    /// Seconds since the tuning or compiling for a device began, also between its reports, which are rare; `None` in other
    /// stages.
    pub(crate) fn preparing_secs(&self) -> Option<(ProgressStage, u64)> {
        let progress = self.progress?;
        let is_preparing = matches!(progress.stage, ProgressStage::Tuning | ProgressStage::Compiling);
        let since = self.progress_at.map_or(0, |at| at.elapsed().as_secs());
        is_preparing.then(|| (progress.stage, progress.done.saturating_add(since)))
    }

    /// The part of the current stage that is done, from 0 to 1.
    pub fn share(&self) -> f32 {
        self.progress.map_or(0.0, |progress| progress.share())
    }

    /// Seconds since it started, or its duration once it has ended.
    pub fn elapsed_secs(&self) -> f64 {
        match self.state {
            JobState::Running => self.started.map_or(0.0, |start| start.elapsed().as_secs_f64()),
            _ => self.seconds,
        }
    }

    /// Returns the facts about the run so far.
    pub fn facts(&self) -> RunFacts {
        let wall_secs = match (&self.state, &self.usage) {
            // The CPU time of a running job is compared with the wall time at which it was measured.
            (JobState::Running, Some(usage)) => usage.wall_secs,
            _ => self.elapsed_secs(),
        };
        RunFacts {
            wall_secs,
            cpu_secs: self.usage.and_then(|usage| usage.cpu_secs),
            threads: self.usage.map(|usage| usage.threads),
            cores: std::thread::available_parallelism().ok().map(usize::from),
            peak_bytes: self.sampled_peak_bytes,
            inputs: self.inputs.clone(),
            training: self.training_facts(),
            verify_secs: self.totals.iter().find(|total| total.stage == Stage::Verify).map(|total| total.seconds),
            ..RunFacts::default()
        }
    }

    fn training_facts(&self) -> Option<TrainingFacts> {
        let times = self.training.as_ref()?;
        let [step_secs, stalled_secs] = times.means()?;
        let device = self.device.as_ref().map_or(DeviceId::Cpu, |device| device.id).into();
        let (workers, accumulate) = (times.workers, times.accumulate);
        let facts = TrainingFacts { step_secs, stalled_secs, workers, device, accumulate, ..TrainingFacts::default() };
        Some(match &times.status {
            Some(status) => status.complete(facts),
            None => facts,
        })
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

/// A status without advice, for tests.
#[cfg(test)]
pub(crate) fn sample_status(device: cytoscope_engine::DeviceId, batch: usize) -> TrainStatus {
    TrainStatus {
        device,
        step: 1,
        samples_per_sec: 8.0,
        data_wait_share: 0.0,
        device_share: None,
        resident_bytes: None,
        device_memory: None,
        activation_bytes: 1 << 20,
        batch,
        batch_advice: None,
        recomputed_share: None,
        workers: 1,
        prefetch: 8,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use crate::work::Work;
    use cytoscope_pipeline::ProgressUnit;
    use cytoscope_profile::{AdviceRule, advise};
    use cytoscope_train::BatchAdvice;
    use cytoscope_worker::{Job, Reply, WorkerEvent};
    use std::sync::Arc;
    use std::time::Duration;

    const NONE: [AdviceRule; 0] = [];

    #[test]
    fn a_failure_names_what_the_job_does_and_its_file() {
        let action = |title: &str, purpose: Purpose| JobView::new(JobId(1), title.to_owned(), purpose).action();
        assert_eq!(action("a.tif · convert", Purpose::Convert), "Converting a.tif");
        assert_eq!(action("a.tif · preprocess", Purpose::Preprocess), "Preprocessing a.tif");
        // The name of the stack contains that of its series.
        assert_eq!(action("a.czi · Scene 2 · nuclei", Purpose::Predict { document: 1 }), "Predicting a.czi · Scene 2");
        assert_eq!(action("net · test", Purpose::Model(ModelWork::Test)), "Testing net");
        assert_eq!(action("Training of a · b", Purpose::Training), "Training of a · b");
    }

    #[test]
    fn seconds_of_compiling_count_up_between_reports() {
        let mut job = JobView::new(JobId(0), "a stack".to_owned(), Purpose::Training);
        assert_eq!(job.preparing_secs(), None);
        let report = |stage| StageProgress {
            stage,
            done: 2,
            total: 0,
            unit: ProgressUnit::Seconds,
            rate: 0.0,
            eta_secs: f64::INFINITY,
        };
        job.record_progress(report(ProgressStage::Compiling));
        job.progress_at = Instant::now().checked_sub(Duration::from_secs(5));
        let (stage, secs) = job.preparing_secs().unwrap();
        assert!(stage == ProgressStage::Compiling && secs >= 7, "{secs}");
        job.record_progress(report(ProgressStage::Predict));
        assert_eq!(job.preparing_secs(), None);
    }

    /// A training job that has started, without an engine process.
    fn training() -> (Work, JobId) {
        let mut work = Work::new(None, None, Arc::new(|| {}));
        let job = serde_json::json!({"task": "segmentation", "data": "d", "from": "scratch", "out": "m"});
        let job = Job::Train(serde_json::from_value(job).unwrap());
        let id = work.run("a network".to_owned(), Purpose::Training, job);
        work.handle_event(WorkerEvent::Reply(Reply::Started { id }));
        let (step_secs, stalled_secs) = (0.5, 0.0);
        let steps = TrainEvent::TrainingSteps { step: 1, steps: 9, loss: 1.0, rate: 0.1, step_secs, stalled_secs };
        work.handle_event(WorkerEvent::Reply(Reply::Training { id, event: steps }));
        (work, id)
    }

    fn status(device: &str, batch: usize) -> TrainStatus {
        sample_status(device.parse().unwrap(), batch)
    }

    /// The rules that give advice for the job.
    fn rules(work: &Work, id: JobId) -> Vec<AdviceRule> {
        let job = work.jobs.iter().find(|job| job.id == id).unwrap();
        advise(&job.facts(), &[]).into_iter().map(|advice| advice.rule).collect()
    }

    #[test]
    fn the_status_of_a_training_run_leads_to_the_advice_of_the_command_line() {
        let (mut work, id) = training();
        assert_eq!(rules(&work, id), NONE);
        let mut report = |status: TrainStatus| {
            work.handle_event(WorkerEvent::Reply(Reply::Training { id, event: TrainEvent::Status(Box::new(status)) }));
            rules(&work, id)
        };
        let larger = Some(BatchAdvice::Larger { batch: 4 });
        assert_eq!(report(TrainStatus { batch_advice: larger, ..status("cuda:0", 2) }), [AdviceRule::SmallBatch]);
        let smaller =
            TrainStatus { batch_advice: Some(BatchAdvice::Smaller { batch: 1, accumulate: 2 }), ..status("cpu", 2) };
        let recomputing = TrainStatus { recomputed_share: Some(0.3), ..smaller };
        assert_eq!(report(recomputing), [AdviceRule::Recomputation]);
        assert_eq!(report(status("cuda:0", 4)), NONE, "the latest status counts");
    }

    #[test]
    fn a_job_that_starts_and_ends_within_a_frame_has_the_duration_that_the_engine_measured() {
        let (mut work, id) = training();
        let usage = Reply::Usage { id, wall_secs: 12.5, cpu_secs: None, threads: 1 };
        for reply in [usage, Reply::Canceled { id }] {
            work.handle_event(WorkerEvent::Reply(reply));
        }
        let job = work.jobs.iter().find(|job| job.id == id).unwrap();
        assert_eq!((job.elapsed_secs(), job.facts().wall_secs), (12.5, 12.5));
    }

    #[test]
    fn cpu_time_and_threads_of_a_job_are_judged() {
        let (mut work, id) = training();
        let cores = std::thread::available_parallelism().unwrap().get();
        let mut report = |cpu_secs: f64, threads: usize| {
            let usage = Reply::Usage { id, wall_secs: 10.0, cpu_secs: Some(cpu_secs), threads };
            work.handle_event(WorkerEvent::Reply(usage));
            rules(&work, id)
        };
        assert_eq!(report(9.5, 1), NONE);
        assert_eq!(report(2.0, 1), [AdviceRule::IdleThreads]);
        assert_eq!(report(2.0, cores + 1), [AdviceRule::ThreadsAboveCores]);
    }
}
