//! Client of the engine process: jobs and their results.

mod converted;
mod lost;
mod refused;
mod rerun;
mod reserved;
mod subject;
mod view;

pub use refused::RefusedJob;
pub(crate) use reserved::NewJob;
pub use subject::JobSubject;
#[cfg(test)]
pub(crate) use view::sample_status;
pub use view::{JobState, JobUsage, JobView, ModelWork, Purpose, TrainingTimes};

use crate::engine_notes::{data_message_in_window, failure_in_window, rerun_failure_in_window};
use cytoscope_engine::Device;
use cytoscope_formats::SeriesChoice;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::{
    ChildProgram, ExistingOutput, MeasureJob, MeasureReport, ObjectDiameter, PerformanceRequest, PredictJob,
    PredictOutcome, SegmentJob, SegmentReport,
};
use cytoscope_profile::SpanRecord;
use cytoscope_storage::message::Message;
use cytoscope_train::{CheckReport, Estimate, TrainEvent, TrainReport};
use cytoscope_worker::{ContinuedJob, Job, JobId, JobResult, Reply, Request, Worker, WorkerEvent, WorkerState};
use lost::failure_of_lost_jobs;
use reserved::JobIds;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of ended jobs in the list.
const MAX_ENDED_JOBS: usize = 50;

/// Maximum number of spans kept over all jobs.
const MAX_SPANS: usize = 400_000;

/// Environment variable that names a folder of models for the engine process.
const MODELS_ENV: &str = "CYTOSCOPE_MODELS";

/// A job that can be repeated with permission to overwrite.
#[derive(Debug, Clone)]
pub enum RepeatableJob {
    /// A prediction.
    Predict {
        /// Id of the document that the job works on.
        document: u64,
        /// The job as it was sent to the engine.
        job: Box<PredictJob>,
        /// Whether devices are measured again for it.
        remeasure: bool,
    },
    /// A measurement.
    Measure {
        /// Id of the document that the job works on.
        document: u64,
        /// The job as it was sent to the engine.
        job: MeasureJob,
    },
    /// A saved segmentation.
    Segment {
        /// Id of the document that the job works on.
        document: u64,
        /// The job as it was sent to the engine.
        job: Box<SegmentJob>,
    },
}

/// What a prediction does besides its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredictionMode {
    /// Whether the devices are measured again for its model.
    pub remeasure: bool,
    /// Whether tiles are reported while it runs, because its document shows what is predicted.
    pub live: bool,
}

/// A result that the window must handle.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// A running prediction has new tiles.
    Live {
        /// Id of the document that the job works on.
        document: u64,
        /// File of the live output.
        path: PathBuf,
        /// Number of channels.
        channels: usize,
        /// Number of voxels along Z, Y, X.
        shape_zyx: [usize; 3],
        /// Time point that is being predicted.
        time: usize,
    },
    /// A prediction is done.
    Predicted {
        /// Id of the document that the job works on.
        document: u64,
        /// Reports of the inputs that succeeded, and errors of the others.
        outcome: PredictOutcome,
        /// Series that were refused because they would overwrite files that Cytoscope did not write; they are not among
        /// the errors.
        refused: Vec<RefusedJob>,
    },
    /// A segmentation is done.
    Segmented {
        /// Id of the document that the job works on.
        document: u64,
        /// Whether the result was saved.
        kept: bool,
        /// Where the labels are, and how many objects were found.
        report: SegmentReport,
    },
    /// A measurement is done.
    Measured {
        /// Id of the document that the job works on.
        document: u64,
        /// Where the table is, and its size and hash.
        report: MeasureReport,
    },
    /// A training run reported its progress.
    TrainingEvent {
        /// Id of the job.
        id: JobId,
        /// A plan, steps, the status, a validation or a picture.
        event: TrainEvent,
    },
    /// A training run is done.
    Trained {
        /// Id of the job.
        id: JobId,
        /// Scores and curves, and where the package is.
        report: Box<TrainReport>,
    },
    /// A training set is checked.
    TrainChecked {
        /// Id of the job.
        id: JobId,
        /// Problems of each pair, and the split into training and validation set.
        report: Box<CheckReport>,
    },
    /// The cost of a training step is measured.
    TrainEstimated {
        /// Id of the job.
        id: JobId,
        /// Time and memory of a step.
        estimate: Estimate,
    },
    /// The diameter of a document's objects is estimated.
    DiameterEstimated {
        /// Id of the document that the job works on.
        document: u64,
        /// In µm, or in voxels if the voxel size is unknown.
        found: ObjectDiameter,
    },
    /// A job of the Models page, a conversion, a scoring or a recorded job that was run again is done.
    Finished {
        /// Id of the job.
        id: JobId,
        /// Result of the job.
        result: Box<JobResult>,
    },
    /// A job failed.
    Failed {
        /// What failed, such as "Converting a.tif".
        what: String,
        /// Message of the error.
        reason: String,
        /// Subject of the job; `None` if the engine process reports its own failure.
        about: Option<JobSubject>,
    },
    /// A job was refused because it would overwrite files that Cytoscope did not write.
    WouldOverwrite(Box<RefusedJob>),
    /// A job was canceled.
    Canceled,
    /// The engine process ended unexpectedly.
    EngineDied {
        /// How it ended.
        reason: String,
        /// Titles of the lost jobs.
        lost: Vec<String>,
        /// Titles of the jobs that continue in the next process.
        continued: Vec<String>,
        /// Whether it is restarted.
        again: bool,
    },
}

/// The engine process and its jobs.
pub struct Work {
    worker: Option<Worker>,
    ids: JobIds,
    /// Requests another frame of the window.
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Jobs of this window, oldest first.
    pub jobs: Vec<JobView>,
    /// Compute devices of this machine; empty until the worker has listed them.
    pub devices: Vec<Device>,
    /// Installed models, including those that cannot be used.
    pub models: Vec<ModelCard>,
    /// Resident memory of the engine process in bytes, current and peak.
    pub memory: Option<(u64, u64)>,
    /// Which preset of the machine profile further predictions use.
    pub performance: PerformanceRequest,
    /// Jobs that may have to be repeated with permission to overwrite.
    repeatable: BTreeMap<JobId, RepeatableJob>,
    /// The query that looks for the devices again, while it is not answered.
    looking: Option<JobId>,
}

impl Work {
    /// Starts the engine process, if there is a program. It also looks for models in the folder `models`.
    pub fn new(program: Option<&Path>, models: Option<PathBuf>, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let wake_for_worker = Arc::clone(&wake);
        let start = |program: &Path| {
            let program = ChildProgram::new(program);
            let command = move || {
                let mut command = Command::new(program.path());
                command.arg("worker");
                if let Some(models) = models.as_ref().filter(|_| std::env::var_os(MODELS_ENV).is_none()) {
                    command.env(MODELS_ENV, models);
                }
                command
            };
            Worker::start_with(command, wake_for_worker)
        };
        let mut work = Self {
            worker: program.map(start),
            ids: JobIds::default(),
            wake,
            jobs: Vec::new(),
            repeatable: BTreeMap::new(),
            devices: Vec::new(),
            models: Vec::new(),
            memory: None,
            performance: PerformanceRequest::Auto,
            looking: None,
        };
        work.request_lists();
        work
    }

    /// Requests the lists of devices and models.
    pub fn request_lists(&mut self) {
        let (devices, models) = (self.ids.next(), self.ids.next());
        self.send(Request::Devices { id: devices, again: false });
        self.send(Request::Models { id: models });
    }

    /// Asks the engine process to look for the devices again. If others are found than before, the process is replaced after
    /// the running job.
    pub fn look_for_devices(&mut self) {
        if self.worker.is_some() {
            let id = self.ids.next();
            self.looking = Some(id);
            self.send(Request::Devices { id, again: true });
        }
    }

    /// Whether the engine process looks for the devices again.
    pub fn is_looking_for_devices(&self) -> bool {
        self.looking.is_some()
    }

    fn send(&self, request: Request) {
        if let Some(worker) = &self.worker {
            worker.send(request);
        }
    }

    /// State of the engine process; `None` without a program.
    pub fn state(&self) -> Option<WorkerState> {
        self.worker.as_ref().map(Worker::state)
    }

    /// Restarts the engine process after automatic restarts were given up.
    pub fn restart(&self) {
        if let Some(worker) = &self.worker {
            worker.restart();
        }
    }

    fn add_job(&mut self, id: JobId, title: String, purpose: Purpose, job: &Job) {
        let files = subject::job_files(job);
        self.jobs.push(JobView { files, ..JobView::new(id, title, purpose) });
        let ended = self.jobs.iter().filter(|j| j.state.is_over()).count();
        if ended > MAX_ENDED_JOBS
            && let Some(oldest) = self.jobs.iter().position(|j| j.state.is_over())
        {
            self.jobs.remove(oldest);
        }
    }

    /// Queues a prediction for a document.
    pub fn predict(&mut self, document: u64, title: String, job: PredictJob, how: PredictionMode) -> JobId {
        let PredictionMode { remeasure, live } = how;
        let id = self.ids.next();
        self.repeatable.insert(id, RepeatableJob::Predict { document, job: Box::new(job.clone()), remeasure });
        let performance = self.performance;
        let job = Job::Predict { prediction: job, live, operators: false, performance, remeasure };
        self.add_job(id, title, Purpose::Predict { document }, &job);
        self.send(Request::run(id, job));
        id
    }

    /// Segments a document's map; a preview replaces the previous one.
    pub fn segment(&mut self, document: u64, title: String, job: SegmentJob, keep: bool) -> JobId {
        let id = self.ids.next();
        let before = self.jobs.iter().rev().find(|j| j.purpose == Purpose::Preview { document }).map(|j| j.id);
        let purpose = if keep { Purpose::Keep { document } } else { Purpose::Preview { document } };
        if !keep {
            self.jobs.retain(|j| j.purpose != Purpose::Preview { document });
        }
        if keep {
            self.repeatable.insert(id, RepeatableJob::Segment { document, job: Box::new(job.clone()) });
        }
        let job = Job::Segment { segmentation: job, replaces: before.filter(|_| !keep) };
        self.add_job(id, title, purpose, &job);
        self.send(Request::run(id, job));
        id
    }

    /// Measures a document's labels; an active measurement that writes the same table is canceled.
    pub fn measure(&mut self, document: u64, title: String, job: MeasureJob) -> JobId {
        let is_same = |known: &RepeatableJob| match known {
            RepeatableJob::Measure { job: known, .. } => known.table == job.table,
            RepeatableJob::Predict { .. } | RepeatableJob::Segment { .. } => false,
        };
        self.active_jobs().filter(|(_, known)| is_same(known)).for_each(|(id, _)| self.cancel(id));
        let id = self.ids.next();
        self.repeatable.insert(id, RepeatableJob::Measure { document, job: job.clone() });
        let job = Job::Measure(job);
        self.add_job(id, title, Purpose::Measure { document }, &job);
        self.send(Request::run(id, job));
        id
    }

    /// The job that measures a document's labels.
    pub fn measuring(&self, document: u64) -> Option<&JobView> {
        self.jobs.iter().rev().find(|j| !j.state.is_over() && j.purpose == Purpose::Measure { document })
    }

    /// Asks the worker to cancel a job; it ends later, as [`JobState::Canceled`].
    pub fn cancel(&self, id: JobId) {
        self.send(Request::Cancel { id });
    }

    /// Asks a running job to end now with the best result so far.
    pub fn finish(&self, id: JobId) {
        self.send(Request::Finish { id });
    }

    /// The job that runs now; `None` if the engine is idle.
    pub fn running(&self) -> Option<&JobView> {
        self.jobs.iter().find(|j| j.state == JobState::Running)
    }

    /// The newest active prediction of a document.
    pub fn newest_for_document(&self, document: u64) -> Option<&JobView> {
        self.jobs
            .iter()
            .rev()
            .find(|j| !j.state.is_over() && matches!(j.purpose, Purpose::Predict { document: d } if d == document))
    }

    /// Queued and running predictions, measurements and saved segmentations, with the jobs as they were sent.
    pub(crate) fn active_jobs(&self) -> impl Iterator<Item = (JobId, &RepeatableJob)> {
        let active = self.jobs.iter().filter(|j| !j.state.is_over());
        active.filter_map(|j| Some((j.id, self.repeatable.get(&j.id)?)))
    }

    /// Whether a queued or running prediction computes these series of a file.
    pub fn is_predicting(&self, path: &Path, series: &SeriesChoice) -> bool {
        self.active_jobs().any(|(_, known)| match known {
            RepeatableJob::Predict { job, .. } => {
                let computes = job.series == *series || job.series == SeriesChoice::All;
                computes && job.inputs.iter().any(|input| input == path)
            }
            RepeatableJob::Measure { .. } | RepeatableJob::Segment { .. } => false,
        })
    }

    /// Number of running and queued jobs.
    pub fn active(&self) -> usize {
        self.jobs.iter().filter(|j| !j.state.is_over()).count()
    }

    /// Handles the events of the engine process since the last call.
    pub fn poll(&mut self) -> Vec<Outcome> {
        let events = self.worker.as_ref().map(Worker::poll).unwrap_or_default();
        events.into_iter().flat_map(|event| self.handle_event(event)).collect()
    }

    fn job(&mut self, id: JobId) -> Option<&mut JobView> {
        self.jobs.iter_mut().find(|j| j.id == id)
    }

    fn end(&mut self, id: JobId, state: JobState) -> Option<(String, Purpose)> {
        let job = self.job(id)?;
        job.state = state;
        let shown_secs = job.started.map_or(0.0, |s| s.elapsed().as_secs_f64());
        // Start and end of a short job may be handled in the same frame: the engine has measured its time, too.
        job.seconds = job.usage.as_ref().map_or(shown_secs, |usage| usage.wall_secs.max(shown_secs));
        let ended = Some((job.title.clone(), job.purpose.clone()));
        // A failed job may be repeated; canceled ones are not.
        if matches!(job.state, JobState::Canceled) {
            self.repeatable.remove(&id);
        }
        ended
    }

    /// Handles one event; public so that tests can run without an engine process.
    pub fn handle_event(&mut self, event: WorkerEvent) -> Vec<Outcome> {
        match event {
            WorkerEvent::Reply(reply) => self.handle_reply(reply).into_iter().collect(),
            WorkerEvent::Restarted => {
                self.request_lists();
                Vec::new()
            }
            WorkerEvent::Died { reason, lost, again } => {
                let continued = again.into_iter().filter_map(|job| self.queue_again(job)).collect();
                vec![self.mark_lost(&reason, &lost, continued, true)]
            }
            WorkerEvent::GaveUp { reason, lost } => {
                self.looking = None;
                vec![self.mark_lost(&reason, &lost, Vec::new(), false)]
            }
        }
    }

    /// Shows a job that continues in the next process as queued; returns its title.
    fn queue_again(&mut self, again: ContinuedJob) -> Option<String> {
        let job = self.job(again.id)?;
        job.continue_after(again.note);
        Some(job.title.clone())
    }

    fn mark_lost(&mut self, reason: &str, lost: &[JobId], continued: Vec<String>, again: bool) -> Outcome {
        self.memory = None;
        let lost = lost
            .iter()
            .filter_map(|id| self.end(*id, JobState::Failed(failure_of_lost_jobs(reason))))
            .map(|(title, _)| title)
            .collect();
        Outcome::EngineDied { reason: reason.to_owned(), lost, continued, again }
    }

    fn handle_reply(&mut self, reply: Reply) -> Option<Outcome> {
        match reply {
            // Another process follows one that retires.
            Reply::Ready { .. } | Reply::Queued { .. } | Reply::Retiring { .. } => None,
            Reply::Fault { message } => {
                Some(Outcome::Failed { what: "The engine process".to_owned(), reason: message, about: None })
            }
            Reply::Devices { id, devices } => {
                self.looking = self.looking.filter(|query| *query != id);
                self.devices = devices;
                None
            }
            Reply::Models { models, .. } => {
                self.models = models;
                None
            }
            Reply::Started { id } => {
                let job = self.job(id)?;
                job.state = JobState::Running;
                job.started = Some(Instant::now());
                None
            }
            Reply::Progress { id, event } => {
                self.job(id)?.record_event(event);
                None
            }
            Reply::Training { id, event } => {
                let job = self.job(id)?;
                job.record_training(&event);
                Some(Outcome::TrainingEvent { id, event })
            }
            Reply::Live { id, path, channels, shape_zyx, time, .. } => {
                let document = self.job(id)?.purpose.document()?;
                Some(Outcome::Live { document, path, channels, shape_zyx, time })
            }
            Reply::Stages { id, totals } => {
                self.job(id)?.totals = totals;
                None
            }
            Reply::Spans { id, spans, marks, samples, dropped } => {
                let job = self.job(id)?;
                job.marks.extend(marks);
                job.timeline.extend(samples);
                self.record_spans(id, spans, dropped)
            }
            Reply::Memory { resident_bytes, peak_resident_bytes, device } => {
                self.memory = Some((resident_bytes, peak_resident_bytes));
                if let Some(job) = self.jobs.iter_mut().find(|j| j.state == JobState::Running) {
                    job.sampled_peak_bytes = job.sampled_peak_bytes.max(Some(resident_bytes).filter(|n| *n > 0));
                    job.device = device.or(job.device.take());
                }
                None
            }
            Reply::Usage { id, wall_secs, cpu_secs, threads } => {
                self.job(id)?.usage = Some(JobUsage { wall_secs, cpu_secs, threads });
                None
            }
            Reply::Done { id, result } => self.handle_result(id, result),
            Reply::Failed { id, message, next_step, settings, existing, .. } => {
                self.handle_failure(id, &Message::new(message, &settings), next_step.as_deref(), existing)
            }
            Reply::Canceled { id } => {
                self.end(id, JobState::Canceled)?;
                Some(Outcome::Canceled)
            }
        }
    }

    /// Handles the failure of a job or query.
    fn handle_failure(
        &mut self,
        id: JobId,
        message: &Message,
        next_step: Option<&str>,
        existing: Option<ExistingOutput>,
    ) -> Option<Outcome> {
        self.looking = self.looking.filter(|query| *query != id);
        // Problems with training data are shown on the Data page of the wizard.
        let purpose = self.job(id)?.purpose.clone();
        let is_check = purpose == Purpose::Check;
        let message = match &existing {
            _ if is_check => data_message_in_window(message),
            // The message names an option of the command line.
            Some(existing) if !self.repeatable.contains_key(&id) => refused::reason(existing, &purpose),
            _ if purpose == Purpose::Rerun => rerun_failure_in_window(message, next_step),
            _ => failure_in_window(message, next_step),
        };
        let (title, _) = self.end(id, JobState::Failed(message.clone()))?;
        (!is_check).then(|| self.failed(id, title, message, existing))
    }

    /// Handles the result of a job.
    fn handle_result(&mut self, id: JobId, result: JobResult) -> Option<Outcome> {
        let (title, purpose) = self.end(id, JobState::Done)?;
        if purpose == Purpose::Rerun {
            return Some(self.rerun_done(id, title, result));
        }
        match result {
            JobResult::Predict(mut outcome) => {
                for failed in &mut outcome.failed {
                    let message =
                        Message::new(std::mem::take(&mut failed.message), &std::mem::take(&mut failed.settings));
                    failed.message = failure_in_window(&message, failed.next_step.as_deref());
                }
                Some(self.predicted(id, title, purpose.document()?, outcome))
            }
            JobResult::Segment(report) => {
                let document = purpose.document()?;
                let kept = matches!(purpose, Purpose::Keep { .. });
                self.repeatable.remove(&id);
                Some(Outcome::Segmented { document, kept, report })
            }
            JobResult::Measure(report) => {
                let document = purpose.document()?;
                self.repeatable.remove(&id);
                Some(Outcome::Measured { document, report })
            }
            JobResult::ObjectDiameter(found) => match purpose {
                Purpose::Diameter { document } => Some(Outcome::DiameterEstimated { document, found }),
                _ => None,
            },
            JobResult::Train(report) => Some(Outcome::Trained { id, report }),
            JobResult::TrainCheck(report) => Some(Outcome::TrainChecked { id, report }),
            JobResult::TrainEstimate(estimate) => Some(Outcome::TrainEstimated { id, estimate }),
            JobResult::Convert { output, outputs, failed } => Some(self.converted(id, output, outputs, failed)),
            other @ (JobResult::Evaluate(_)
            | JobResult::Quantize(_)
            | JobResult::Import(_)
            | JobResult::Export(_)
            | JobResult::Mesh(_)
            | JobResult::ModelTest(_)
            | JobResult::ModelSpeed(_)) => Some(Outcome::Finished { id, result: Box::new(other) }),
        }
    }

    /// Adds spans to a job, up to [`MAX_SPANS`] spans of all jobs; further ones are counted as dropped.
    fn record_spans(&mut self, id: JobId, spans: Vec<SpanRecord>, dropped: u64) -> Option<Outcome> {
        let held: usize = self.jobs.iter().map(|j| j.spans.len()).sum();
        let job = self.job(id)?;
        job.dropped = dropped;
        let capacity = MAX_SPANS.saturating_sub(held);
        job.dropped += spans.len().saturating_sub(capacity) as u64;
        job.spans.extend(spans.into_iter().take(capacity));
        None
    }
}
