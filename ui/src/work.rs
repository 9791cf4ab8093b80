//! Jobs in the engine process, as the window sees them.

use cytoscope_engine::Device;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::worker::{
    DeviceInUse, JobId, JobResult, LiveRegion, Reply, Request, Worker, WorkerEvent, WorkerState,
};
use cytoscope_pipeline::{
    Event, JobErrorKind, MeasureJob, MeasureReport, PredictJob, PredictOutcome, SegmentJob, SegmentReport,
};
use cytoscope_profile::{MemoryMark, SpanRecord, StageTotal};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// Ended jobs that stay in the list.
const MAX_ENDED: usize = 50;

/// Spans kept of all jobs together.
const MAX_SPANS: usize = 400_000;

/// Names a folder of models to the engine process.
const MODELS: &str = "CYTOSCOPE_MODELS";

/// What a job is for.
#[derive(Debug, Clone, PartialEq)]
pub enum Purpose {
    /// Predict a document's stack.
    Predict {
        /// The document.
        document: u64,
    },
    /// Make objects of a document's probability again, while sliders move.
    Preview {
        /// The document.
        document: u64,
    },
    /// Make objects of a document's probability and keep them.
    Keep {
        /// The document.
        document: u64,
    },
    /// Measure a document's labels again.
    Measure {
        /// The document.
        document: u64,
    },
    /// Estimate the diameter of a document's objects.
    Diameter {
        /// The document.
        document: u64,
    },
    /// Look a training set through.
    Check,
    /// Teach a model.
    Training,
}

impl Purpose {
    /// The document it belongs to, if to one.
    pub fn document(&self) -> Option<u64> {
        match self {
            Purpose::Predict { document }
            | Purpose::Preview { document }
            | Purpose::Keep { document }
            | Purpose::Measure { document } => Some(*document),
            // A failed or cancelled estimate changes nothing of the document.
            Purpose::Diameter { .. } | Purpose::Check | Purpose::Training => None,
        }
    }
}

/// How a job is.
#[derive(Debug, Clone, PartialEq)]
pub enum JobState {
    /// It waits for those before it.
    Queued,
    /// It runs.
    Running,
    /// It is done.
    Done,
    /// It failed, for this reason.
    Failed(String),
    /// It was cancelled.
    Cancelled,
}

impl JobState {
    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        !matches!(self, JobState::Queued | JobState::Running)
    }
}

/// How far a job is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// Stage.
    pub stage: String,
    /// Units done.
    pub done: u64,
    /// Units in all.
    pub total: u64,
    /// What is counted.
    pub unit: String,
    /// Units a second.
    pub rate: f64,
    /// Seconds left of the stage.
    pub eta_secs: f64,
}

impl Progress {
    /// 0 to 1.
    pub fn share(&self) -> f32 {
        if self.total == 0 { 0.0 } else { (self.done as f64 / self.total as f64) as f32 }
    }
}

/// A job and what it told.
#[derive(Debug, Clone)]
pub struct JobView {
    /// Its number.
    pub id: JobId,
    /// What it does, for people.
    pub title: String,
    /// What it is for.
    pub purpose: Purpose,
    /// How it is.
    pub state: JobState,
    /// How far it is.
    pub progress: Progress,
    /// When it began.
    pub started: Option<Instant>,
    /// How long it took.
    pub seconds: f64,
    /// Seconds, bytes, voxels by stage.
    pub totals: Vec<StageTotal>,
    /// Spans.
    pub spans: Vec<SpanRecord>,
    /// Memory as it went.
    pub marks: Vec<MemoryMark>,
    /// Spans that were not sent.
    pub dropped: u64,
    /// Where it runs and why.
    pub device: Option<DeviceInUse>,
    /// Things it told.
    pub notes: Vec<String>,
}

/// A job as it was asked for.
#[derive(Debug, Clone)]
pub enum Again {
    /// A prediction.
    Predict {
        /// The document.
        document: u64,
        /// The job.
        job: PredictJob,
    },
    /// A table of measurements.
    Measure {
        /// The document.
        document: u64,
        /// The job.
        job: MeasureJob,
    },
    /// Objects that are kept.
    Segment {
        /// The document.
        document: u64,
        /// The job.
        job: SegmentJob,
    },
}

/// Something the window must act upon.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// A prediction grows.
    Live {
        /// Of this document.
        document: u64,
        /// Its file.
        path: PathBuf,
        /// Channels.
        channels: usize,
        /// Extents.
        shape_zyx: [usize; 3],
        /// What is new.
        regions: Vec<LiveRegion>,
    },
    /// A prediction is done.
    Predicted {
        /// Of this document.
        document: u64,
        /// Its report.
        outcome: PredictOutcome,
    },
    /// Objects were made again.
    Segmented {
        /// Of this document.
        document: u64,
        /// Whether they were written to be kept.
        kept: bool,
        /// The report.
        report: SegmentReport,
    },
    /// Labels were measured again.
    Measured {
        /// Of this document.
        document: u64,
        /// The report.
        report: MeasureReport,
    },
    /// A training took steps, or tried what it learnt.
    Told {
        /// Its number.
        id: JobId,
        /// What it told.
        event: Event,
    },
    /// A job of the training wizard is done.
    Ran {
        /// Its number.
        id: JobId,
        /// What it came to.
        report: Value,
    },
    /// A job failed.
    Failed {
        /// Its title.
        title: String,
        /// Why.
        reason: String,
    },
    /// A job was not begun because something that is not ours lies where its results go.
    WouldOverwrite {
        /// Its title.
        title: String,
        /// What lies there.
        reason: String,
        /// The job, to be run again if the user says so.
        again: Box<Again>,
    },
    /// A job was cancelled.
    Cancelled {
        /// Of this document.
        document: u64,
    },
    /// The engine process ended by itself.
    Died {
        /// How.
        reason: String,
        /// Jobs that are lost.
        lost: Vec<String>,
        /// Whether it starts again.
        again: bool,
    },
    /// The list of models came.
    Models,
}

/// The engine process and its jobs.
pub struct Work {
    worker: Option<Worker>,
    next: u64,
    /// Jobs, oldest first.
    pub jobs: Vec<JobView>,
    /// Devices of this machine.
    pub devices: Vec<Device>,
    /// Installed models.
    pub models: Vec<ModelCard>,
    /// Memory of the engine process, now and at most.
    pub memory: Option<(u64, u64)>,
    /// Jobs whose results may turn out to lie where something else is.
    repeatable: BTreeMap<JobId, Again>,
}

impl Work {
    /// Starts the engine process; none where there is no program. It finds models in the folder `models`, too.
    pub fn new(program: Option<&Path>, models: Option<PathBuf>, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let start = |program: &Path| {
            let program = program.to_owned();
            let command = move || {
                let mut command = Command::new(&program);
                command.arg("worker");
                if let Some(models) = models.as_ref().filter(|_| std::env::var_os(MODELS).is_none()) {
                    command.env(MODELS, models);
                }
                command
            };
            Worker::start_with(command, wake)
        };
        let mut work = Self {
            worker: program.map(start),
            next: 1,
            jobs: Vec::new(),
            repeatable: BTreeMap::new(),
            devices: Vec::new(),
            models: Vec::new(),
            memory: None,
        };
        work.ask();
        work
    }

    /// Asks for devices and models.
    pub fn ask(&mut self) {
        let (devices, models) = (self.fresh(), self.fresh());
        self.send(Request::Devices { id: devices });
        self.send(Request::Models { id: models });
    }

    fn fresh(&mut self) -> JobId {
        self.next += 1;
        JobId(self.next)
    }

    fn send(&self, request: Request) {
        if let Some(worker) = &self.worker {
            worker.send(request);
        }
    }

    /// How the engine process is.
    pub fn state(&self) -> Option<WorkerState> {
        self.worker.as_ref().map(Worker::state)
    }

    /// Starts the engine process again after it was given up.
    pub fn restart(&self) {
        if let Some(worker) = &self.worker {
            worker.restart();
        }
    }

    fn begin(&mut self, id: JobId, title: String, purpose: Purpose) {
        self.jobs.push(JobView {
            id,
            title,
            purpose,
            state: JobState::Queued,
            progress: Progress::default(),
            started: None,
            seconds: 0.0,
            totals: Vec::new(),
            spans: Vec::new(),
            marks: Vec::new(),
            dropped: 0,
            device: None,
            notes: Vec::new(),
        });
        let ended = self.jobs.iter().filter(|j| j.state.is_over()).count();
        if ended > MAX_ENDED
            && let Some(oldest) = self.jobs.iter().position(|j| j.state.is_over())
        {
            self.jobs.remove(oldest);
        }
    }

    /// Predicts a document's stack.
    pub fn predict(&mut self, document: u64, title: String, job: PredictJob) -> JobId {
        let id = self.fresh();
        self.begin(id, title, Purpose::Predict { document });
        self.repeatable.insert(id, Again::Predict { document, job: job.clone() });
        self.send(Request::Predict { id, job, live: true, operators: false });
        id
    }

    /// Makes objects of a document's probability; a preview takes the place of the one before.
    pub fn segment(&mut self, document: u64, title: String, job: SegmentJob, keep: bool) -> JobId {
        let id = self.fresh();
        let before = self.jobs.iter().rev().find(|j| j.purpose == Purpose::Preview { document }).map(|j| j.id);
        let purpose = if keep { Purpose::Keep { document } } else { Purpose::Preview { document } };
        if !keep {
            self.jobs.retain(|j| j.purpose != Purpose::Preview { document });
        }
        self.begin(id, title, purpose);
        if keep {
            self.repeatable.insert(id, Again::Segment { document, job: job.clone() });
        }
        self.send(Request::Segment { id, job, replaces: before.filter(|_| !keep) });
        id
    }

    /// Measures a document's labels; one that is not done yet makes way.
    pub fn measure(&mut self, document: u64, title: String, job: MeasureJob) -> JobId {
        if let Some(before) = self.measuring(document).map(|j| j.id) {
            self.cancel(before);
        }
        let id = self.fresh();
        self.begin(id, title, Purpose::Measure { document });
        self.repeatable.insert(id, Again::Measure { document, job: job.clone() });
        self.send(Request::Measure { id, job });
        id
    }

    /// Runs a job of the training wizard, which writes to some folders.
    pub fn run(&mut self, kind: &str, title: String, purpose: Purpose, job: Value, writes: Vec<PathBuf>) -> JobId {
        let id = self.fresh();
        self.begin(id, title, purpose);
        if self.worker.is_none() {
            self.end(id, JobState::Failed("the engine is not there".to_owned()));
        }
        self.send(Request::Run { id, kind: kind.to_owned(), job, writes });
        id
    }

    /// The job that measures a document's labels.
    pub fn measuring(&self, document: u64) -> Option<&JobView> {
        self.jobs.iter().rev().find(|j| !j.state.is_over() && j.purpose == Purpose::Measure { document })
    }

    /// Cancels a job.
    pub fn cancel(&self, id: JobId) {
        self.send(Request::Cancel { id });
    }

    /// Asks a running job to end now with the best it has.
    pub fn finish(&self, id: JobId) {
        self.send(Request::Finish { id });
    }

    /// The job that runs.
    pub fn running(&self) -> Option<&JobView> {
        self.jobs.iter().find(|j| j.state == JobState::Running)
    }

    /// The newest job of a document that is not over, previews left out.
    pub fn of_document(&self, document: u64) -> Option<&JobView> {
        self.jobs
            .iter()
            .rev()
            .find(|j| !j.state.is_over() && matches!(j.purpose, Purpose::Predict { document: d } if d == document))
    }

    /// Jobs that run or wait.
    pub fn active(&self) -> usize {
        self.jobs.iter().filter(|j| !j.state.is_over()).count()
    }

    /// Takes what the engine process told since the last call.
    pub fn poll(&mut self) -> Vec<Outcome> {
        let events = self.worker.as_ref().map(Worker::poll).unwrap_or_default();
        events.into_iter().flat_map(|event| self.hear(event)).collect()
    }

    fn job(&mut self, id: JobId) -> Option<&mut JobView> {
        self.jobs.iter_mut().find(|j| j.id == id)
    }

    /// What a failure means for the window: a notice, or a question where the user can allow what was refused.
    fn failed(&mut self, id: JobId, title: String, kind: JobErrorKind, reason: String) -> Outcome {
        match self.repeatable.remove(&id).filter(|_| kind == JobErrorKind::WouldOverwrite) {
            Some(again) => {
                // The question says the rest.
                self.end(
                    id,
                    JobState::Failed("Nothing was written: other files have the names of its results.".to_owned()),
                );
                Outcome::WouldOverwrite { title, reason, again: Box::new(again) }
            }
            None => Outcome::Failed { title, reason },
        }
    }

    fn end(&mut self, id: JobId, state: JobState) -> Option<(String, Purpose)> {
        let job = self.job(id)?;
        job.state = state;
        job.seconds = job.started.map_or(0.0, |s| s.elapsed().as_secs_f64());
        let ended = Some((job.title.clone(), job.purpose.clone()));
        // A job that failed may be asked for again; of the others nothing is kept.
        if matches!(job.state, JobState::Cancelled) {
            self.repeatable.remove(&id);
        }
        ended
    }

    /// One event; public so that the window's behaviour can be tested without a process.
    pub fn hear(&mut self, event: WorkerEvent) -> Vec<Outcome> {
        match event {
            WorkerEvent::Reply(reply) => self.hear_reply(reply).into_iter().collect(),
            WorkerEvent::Restarted => {
                self.ask();
                Vec::new()
            }
            WorkerEvent::Died { reason, lost } => vec![self.lose(&reason, &lost, true)],
            WorkerEvent::GaveUp { reason, lost } => vec![self.lose(&reason, &lost, false)],
        }
    }

    fn lose(&mut self, reason: &str, lost: &[JobId], again: bool) -> Outcome {
        self.memory = None;
        let lost = lost
            .iter()
            .filter_map(|id| self.end(*id, JobState::Failed(format!("the engine process ended ({reason})"))))
            .map(|(title, _)| title)
            .collect();
        Outcome::Died { reason: reason.to_owned(), lost, again }
    }

    fn hear_reply(&mut self, reply: Reply) -> Option<Outcome> {
        match reply {
            Reply::Ready { .. } | Reply::Queued { .. } => None,
            Reply::Fault { sentence } => {
                Some(Outcome::Failed { title: "The engine process".to_owned(), reason: sentence })
            }
            Reply::Devices { devices, .. } => {
                self.devices = devices;
                None
            }
            Reply::Models { models, .. } => {
                self.models = models;
                Some(Outcome::Models)
            }
            Reply::Started { id } => {
                let job = self.job(id)?;
                job.state = JobState::Running;
                job.started = Some(Instant::now());
                None
            }
            Reply::Progress { id, event } => {
                let job = self.job(id)?;
                match event {
                    Event::Learned { .. } | Event::Validated { .. } | Event::Pictured { .. } => {
                        return Some(Outcome::Told { id, event });
                    }
                    Event::Progress { stage, done, total, unit, rate, eta_secs } => {
                        let (stage, unit) = (stage.into_owned(), unit.into_owned());
                        job.progress = Progress { stage, done, total, unit, rate, eta_secs };
                    }
                    Event::Note { message } => job.notes.push(message),
                    Event::Device { id, name, why } => job.device = Some(DeviceInUse { id, name, why }),
                    _ => {}
                }
                None
            }
            Reply::Live { id, path, channels, shape_zyx, regions, .. } => {
                let document = self.job(id)?.purpose.document()?;
                Some(Outcome::Live { document, path, channels, shape_zyx, regions })
            }
            Reply::Stages { id, totals } => {
                self.job(id)?.totals = totals;
                None
            }
            Reply::Spans { id, spans, marks, dropped } => {
                let held: usize = self.jobs.iter().map(|j| j.spans.len()).sum();
                let job = self.job(id)?;
                job.dropped = dropped;
                job.marks.extend(marks);
                let room = MAX_SPANS.saturating_sub(held);
                job.dropped += spans.len().saturating_sub(room) as u64;
                job.spans.extend(spans.into_iter().take(room));
                None
            }
            Reply::Memory { resident_bytes, peak_resident_bytes, device } => {
                self.memory = Some((resident_bytes, peak_resident_bytes));
                if let (Some(device), Some(job)) = (device, self.jobs.iter_mut().find(|j| j.state == JobState::Running))
                {
                    job.device = Some(device);
                }
                None
            }
            Reply::Done { id, result } => {
                let (title, purpose) = self.end(id, JobState::Done)?;
                if let JobResult::Run { report, .. } = result {
                    return Some(Outcome::Ran { id, report });
                }
                let document = purpose.document()?;
                match result {
                    JobResult::Predict(outcome) => {
                        if let (Some(failed), true) = (outcome.failed.first(), outcome.done.is_empty()) {
                            let reason = failed.sentence.clone();
                            self.end(id, JobState::Failed(reason.clone()));
                            return Some(self.failed(id, title, failed.kind, reason));
                        }
                        self.repeatable.remove(&id);
                        Some(Outcome::Predicted { document, outcome })
                    }
                    JobResult::Segment(report) => {
                        let kept = matches!(purpose, Purpose::Keep { .. });
                        self.repeatable.remove(&id);
                        Some(Outcome::Segmented { document, kept, report })
                    }
                    JobResult::Measure(report) if self.repeatable.remove(&id).is_some() => {
                        Some(Outcome::Measured { document, report })
                    }
                    JobResult::Measure(report) => Some(Outcome::Measured { document, report }),
                    JobResult::Convert { .. } | JobResult::Evaluate(_) | JobResult::Run { .. } => None,
                }
            }
            Reply::Failed { id, kind, sentence } => {
                let (title, purpose) = self.end(id, JobState::Failed(sentence.clone()))?;
                // What is wrong with data is shown where they are chosen.
                (purpose != Purpose::Check).then(|| self.failed(id, title, kind, sentence))
            }
            Reply::Cancelled { id } => {
                let (_, purpose) = self.end(id, JobState::Cancelled)?;
                Some(Outcome::Cancelled { document: purpose.document()? })
            }
        }
    }
}
