//! Training models from the window: the choices, the job in the engine process, and the results.
//!
//! The wizard's choices are a [`plan::WizardPlan`], saved in a file. Training runs as a job of the engine process. A run
//! that is cancelled, or whose process or window has ended, is resumed from its checkpoint. The pages are drawn in
//! [`crate::panels::train`].

pub(crate) mod estimate;
pub mod models;
pub mod plan;
pub mod run;
pub mod shown;
pub mod start;
mod thread_results;
pub mod thumbs;

use crate::app::Workbench;
use crate::opener::FileRequest;
use crate::panels::PanelTask;
use crate::work::{JobState, JobView, Purpose};
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::{JobError, user_folder};
use cytoscope_samples::{TargetKind, TrainingTask};
use cytoscope_train::{CheckJob, CheckReport, TrainConfig, TrainEvent, TrainJob, TrainReport};
use cytoscope_worker::{Job, JobId};
use eframe::egui;
use models::Saving;
use plan::{PlanStore, SCRATCH, WizardPlan, WizardStep};
use run::{RunState, TrainingRun};
use shown::ValidationPicture;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thread_results::ThreadResult;
use thumbs::Thumbs;

/// Folder of model packages that are being trained or are not saved yet.
const TRAININGS: &str = "trainings";
/// File that lists all problems of the last data check if there are many, beside that folder.
const DETAILS: &str = "data-check.txt";
/// Maximum number of log lines of a training run.
const MAX_NOTES: usize = 500;
/// Minimum time between two saves of the plan.
const SAVE_INTERVAL: Duration = Duration::from_millis(500);

/// State of the data check.
#[derive(Debug, Default)]
pub enum Check {
    /// No data is chosen.
    #[default]
    None,
    /// The check is running.
    Running(JobId),
    /// The report of the check.
    Done(Box<CheckReport>),
    /// The check failed; the reason.
    Failed(String),
}

/// State of the training wizard.
pub struct Wizard {
    /// The user's choices.
    pub plan: WizardPlan,
    /// Report of the last training run.
    pub report: Option<Box<TrainReport>>,
    /// State of the data check.
    pub check: Check,
    /// Data path as typed so far.
    pub typed: String,
    /// Number of listed problems and pairs.
    pub listed: [usize; 2],
    /// The current training run.
    pub run: TrainingRun,
    /// Example outputs of the trained model on validation images.
    pub examples: Vec<ValidationPicture>,
    /// Whether the loss axis is logarithmic.
    pub log_loss: bool,
    /// Thumbnails of the training pairs.
    pub thumbs: Thumbs,
    /// Start model from a file that is not an installed model.
    pub start_file: Option<Box<ModelCard>>,
    /// State of saving and exporting.
    pub saving: Saving,
    /// Whether the bar offers to continue a training run of an earlier window.
    pub offer: bool,
    config: TrainConfig,
    folder: PathBuf,
    store: Option<PlanStore>,
    saved_plan: WizardPlan,
    saved_at: Instant,
    result_sender: Sender<ThreadResult>,
    results: Receiver<ThreadResult>,
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Threads that save replaced models.
    saving_threads: Vec<JoinHandle<()>>,
    costing: estimate::Costing,
}

impl Wizard {
    /// Restores the wizard as the last window left it.
    pub fn new(settings: Option<&Path>, config: TrainConfig, wake: &Arc<dyn Fn() + Send + Sync>) -> Self {
        let parent = settings.and_then(Path::parent).map(Path::to_owned);
        let opened = parent.as_deref().and_then(PlanStore::open);
        let folder = parent.or_else(user_folder).unwrap_or_else(std::env::temp_dir);
        let (store, mut plan, mut report) = match opened {
            Some((store, plan, report)) => (Some(store), plan, report),
            None => (None, WizardPlan::default(), None),
        };
        if report.as_ref().is_some_and(|r| !r.out.exists()) {
            // The model no longer exists.
            report = None;
        }
        let in_progress = plan.job.is_some();
        if !in_progress && plan.from != SCRATCH && !Path::new(&plan.from).exists() {
            // Neither does the start model.
            plan.from = SCRATCH.to_owned();
        }
        plan.step = match (in_progress, report.is_some(), plan.step) {
            (true, ..) => WizardStep::Train,
            (false, true, step) => step,
            (false, false, step) => step.min(WizardStep::Start),
        };
        let (result_sender, results) = channel();
        let mut wizard = Self {
            typed: plan.data.as_ref().map(|p| p.display().to_string()).unwrap_or_default(),
            saved_plan: plan.clone(),
            plan,
            report,
            check: Check::None,
            listed: [0; 2],
            run: TrainingRun {
                state: if in_progress { RunState::Paused } else { RunState::Idle },
                ..TrainingRun::default()
            },
            examples: Vec::new(),
            log_loss: false,
            thumbs: Thumbs::new(Arc::clone(wake)),
            start_file: None,
            saving: Saving::No,
            offer: in_progress,
            config,
            folder,
            store,
            saved_at: Instant::now(),
            result_sender,
            results,
            wake: Arc::clone(wake),
            saving_threads: Vec::new(),
            costing: estimate::Costing::default(),
        };
        wizard.load_checkpoint();
        wizard.load_examples();
        wizard
    }

    /// Folder of the user's own models.
    pub fn models_folder(&self) -> PathBuf {
        self.folder.join("models")
    }

    /// Whether the user can go to a step.
    pub fn can_open(&self, step: WizardStep) -> bool {
        if self.plan.job.is_some() || self.run.state != RunState::Idle {
            return step == WizardStep::Train;
        }
        match step {
            WizardStep::Task | WizardStep::Data => true,
            WizardStep::Start => self.plan.data.is_some() && self.is_usable(),
            WizardStep::Train => false,
            WizardStep::Results | WizardStep::Use => self.report.is_some(),
        }
    }

    /// Whether the data can be used for training.
    pub fn is_usable(&self) -> bool {
        matches!(&self.check, Check::Done(report) if report.split.is_some())
    }

    /// The training configuration with the user's choices.
    fn chosen_config(&self) -> TrainConfig {
        let mut config = self.config.clone();
        if self.plan.foreground_only && self.plan.task == TrainingTask::Segmentation {
            config.target = Some(TargetKind::Semantic);
        }
        config
    }

    /// The training job for the current choices and an output path.
    fn job(&self, out: PathBuf) -> Option<TrainJob> {
        let mut config = self.chosen_config();
        config.budget.minutes = Some(self.plan.minutes);
        Some(TrainJob {
            task: self.plan.task,
            data: self.plan.data.clone()?,
            from: self.plan.from.clone(),
            out,
            config,
            resume: false,
            anew: false,
            overwrite: Default::default(),
            seed: 0,
            threads: 0,
            without_int8: false,
            device: DeviceRequest::Auto,
        })
    }

    /// A free output path for a package of this name.
    fn free_path(&self, name: &str) -> PathBuf {
        let parent = self.folder.join(TRAININGS);
        let place = |n: usize| parent.join(if n == 1 { name.to_owned() } else { format!("{name} {n}") });
        let free = |p: &PathBuf| !p.exists() && !p.with_file_name(format!("{}.training", file_name(p))).exists();
        (1..1000).map(place).find(free).unwrap_or_else(|| place(1000))
    }

    /// Saves the plan if it has changed.
    fn save_plan(&mut self, at_once: bool) {
        let due = at_once || self.saved_at.elapsed() >= SAVE_INTERVAL;
        if due && self.plan != self.saved_plan {
            self.saved_plan = self.plan.clone();
            self.saved_at = Instant::now();
            if let Some(store) = &self.store {
                store.save(&self.plan, self.report.as_deref());
            }
        }
    }
}

impl Drop for Wizard {
    fn drop(&mut self) {
        self.save_plan(true);
        // Waits for models that are being saved.
        for thread in self.saving_threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn file_name(path: &Path) -> String {
    crate::document::file_name(path)
}

impl Workbench {
    /// Opens the wizard.
    pub(crate) fn open_training(&mut self) {
        self.settings.show_tasks = true;
        self.panels.task = PanelTask::Train;
    }

    /// The training wizard.
    pub fn wizard(&self) -> &Wizard {
        &self.wizard
    }

    /// Sets a folder or table as training data and checks it.
    pub fn train_on(&mut self, data: PathBuf) {
        let wizard = &mut self.wizard;
        if wizard.plan.job.is_some() || wizard.run.state != RunState::Idle {
            return;
        }
        wizard.typed = data.display().to_string();
        wizard.plan.data = Some(data);
        wizard.plan.step = WizardStep::Data;
        wizard.plan.name = wizard.plan.suggested_name();
        self.check_data();
    }

    /// Checks the chosen data.
    pub(crate) fn check_data(&mut self) {
        if let Check::Running(id) = self.wizard.check {
            self.work.cancel(id);
        }
        self.wizard.check = Check::None;
        self.wizard.listed = [0; 2];
        self.wizard.thumbs.clear();
        let Some(data) = self.wizard.plan.data.clone() else { return };
        let title = format!("Checking {}", file_name(&data));
        let config = self.wizard.chosen_config();
        let details = Some(self.wizard.folder.join(DETAILS));
        let job = CheckJob { task: self.wizard.plan.task, data, config, seed: 0, details };
        self.wizard.check = Check::Running(self.work.run(title, Purpose::Check, Job::TrainCheck(job)));
    }

    /// Goes to a step.
    pub(crate) fn go_to_step(&mut self, step: WizardStep) {
        if self.wizard.can_open(step) {
            self.wizard.plan.step = step;
        }
    }

    /// Starts training.
    pub(crate) fn start_training(&mut self) {
        let wizard = &mut self.wizard;
        if wizard.run.state != RunState::Idle || !wizard.is_usable() || wizard.saving != Saving::No {
            return;
        }
        let name = plan::clean_name(&wizard.plan.name);
        let name = if name.is_empty() { wizard.plan.suggested_name() } else { name };
        let Some(job) = wizard.job(wizard.free_path(&name)) else { return };
        wizard.plan.name = name;
        wizard.run = TrainingRun::default();
        // The name may already be that of the next model, so the previous model keeps its own.
        self.retire_model(None);
        self.send_training(job);
    }

    /// Continues a training run that was paused or interrupted.
    pub(crate) fn continue_training(&mut self) {
        self.open_training();
        self.wizard.offer = false;
        let Some(job) = self.wizard.plan.job.clone() else { return };
        if self.wizard.run.job().is_none() {
            self.wizard.load_checkpoint();
            self.send_training(TrainJob { resume: true, ..job });
        }
    }

    fn send_training(&mut self, job: TrainJob) {
        self.forget_cost();
        let folder = job.out.parent().map(Path::to_owned).unwrap_or_default();
        if let Err(error) = std::fs::create_dir_all(&folder) {
            let details = format!("{}: {error}. Check the disk.", folder.display());
            return self.notifications.error("The training folder cannot be created", details);
        }
        let title = format!("Training {}", self.wizard.plan.name);
        let id = self.work.run(title, Purpose::Training, Job::Train(job.clone()));
        let run = &mut self.wizard.run;
        run.state = RunState::Running(id);
        run.notes_taken = 0;
        run.confirm_discard = false;
        self.wizard.plan.job = Some(job);
        self.wizard.plan.step = WizardStep::Train;
        self.wizard.save_plan(true);
    }

    /// Pauses training: it saves a checkpoint and stops.
    pub(crate) fn pause_training(&mut self) {
        if let RunState::Running(id) | RunState::Finishing(id) = self.wizard.run.state {
            self.work.cancel(id);
            self.wizard.run.state = RunState::Pausing(id);
        }
    }

    /// Ends training now with the best network; a paused run is resumed to finish.
    pub(crate) fn finish_training(&mut self) {
        self.wizard.run.confirm_discard = false;
        match self.wizard.run.state.clone() {
            RunState::Running(id) => {
                self.work.finish(id);
                // A resumed run that is still queued gets no messages; it checks its folder when it starts.
                if let Some(job) = self.wizard.plan.job.as_ref().filter(|job| job.checkpoint_summary().is_some()) {
                    let _ = job.finish_early();
                }
                self.wizard.run.state = RunState::Finishing(id);
            }
            RunState::Paused | RunState::Failed(_) => {
                let Some(job) = self.wizard.plan.job.clone() else { return };
                if let Err(error) = job.finish_early() {
                    return self.notifications.error("The training cannot be finished", sentence(&error));
                }
                self.continue_training();
                if let RunState::Running(id) = self.wizard.run.state {
                    self.wizard.run.state = RunState::Finishing(id);
                }
            }
            RunState::Idle | RunState::Pausing(_) | RunState::Finishing(_) | RunState::Stopping(_) => {}
        }
    }

    /// Stops training and discards the run.
    pub(crate) fn stop_training(&mut self) {
        self.wizard.run.confirm_discard = false;
        match self.wizard.run.job() {
            Some(id) => {
                self.work.cancel(id);
                self.wizard.run.state = RunState::Stopping(id);
            }
            None => self.discard_training(),
        }
    }

    fn discard_training(&mut self) {
        if let Some(job) = self.wizard.plan.job.take() {
            let removed = std::thread::Builder::new().name("training".to_owned()).spawn(move || job.discard());
            if let Err(error) = removed {
                self.notifications.error("The training could not be removed", error.to_string());
            }
        }
        self.wizard.offer = false;
        self.wizard.run = TrainingRun::default();
        self.wizard.plan.step = WizardStep::Start;
        self.wizard.save_plan(true);
    }

    /// Resets the wizard for another model; task and time budget are kept.
    pub(crate) fn train_another(&mut self) {
        if self.wizard.saving != Saving::No {
            return;
        }
        let name = plan::clean_name(&self.wizard.plan.name);
        self.retire_model(Some(name).filter(|name| !name.is_empty()));
        let wizard = &mut self.wizard;
        wizard.plan = WizardPlan { task: wizard.plan.task, minutes: wizard.plan.minutes, ..WizardPlan::default() };
        wizard.typed.clear();
        wizard.check = Check::None;
        wizard.run = TrainingRun::default();
        wizard.thumbs.clear();
        wizard.save_plan(true);
    }

    /// Whether a training run is active. Closing the window pauses it first.
    pub fn is_training(&self) -> bool {
        self.wizard.run.job().is_some()
    }

    /// Handles an event of the training job.
    pub(crate) fn handle_training_event(&mut self, id: JobId, event: TrainEvent) {
        if self.wizard.run.job() != Some(id) {
            return;
        }
        match event {
            TrainEvent::ValidationPreview { step, path, caption } => {
                self.wizard.spawn(move || ThreadResult::Picture(ValidationPicture::read(&path, Some(step), caption)));
            }
            event => self.wizard.run.handle_event(event),
        }
    }

    /// Shows the report of a data check, unless it belongs to earlier data.
    pub(crate) fn handle_check(&mut self, id: JobId, report: Box<CheckReport>) {
        if matches!(self.wizard.check, Check::Running(of) if of == id) {
            self.wizard.check = Check::Done(report);
            self.wizard.listed = [crate::panels::train::LISTED; 2];
        }
    }

    /// Shows the report of the training run.
    pub(crate) fn handle_training_report(&mut self, id: JobId, report: Box<TrainReport>) {
        if self.wizard.run.job() != Some(id) {
            return;
        }
        self.collect_notes(id);
        self.wizard.run.history = report.history.clone();
        // No notification while the wizard shows the results.
        if self.panels.task != PanelTask::Train {
            let title = format!("{} is trained", self.wizard.plan.name);
            self.notifications.success(title, crate::panels::train::summary_sentence(&report));
        }
        self.wizard.plan.job = None;
        self.wizard.plan.step = WizardStep::Results;
        self.wizard.report = Some(report);
        self.wizard.load_examples();
        self.wizard.run.state = RunState::Idle;
        self.wizard.save_plan(true);
    }

    fn collect_notes(&mut self, id: JobId) {
        let Some(job) = self.work.jobs.iter().find(|j| j.id == id) else { return };
        let run = &mut self.wizard.run;
        let fresh = job.notes.get(run.notes_taken..).unwrap_or_default();
        let capacity = MAX_NOTES.saturating_sub(run.notes.len());
        run.notes.extend(fresh.iter().take(capacity).cloned());
        run.notes_taken = job.notes.len();
    }

    /// Updates the wizard from the state of its jobs.
    pub(crate) fn poll_training(&mut self, ctx: &egui::Context) {
        self.wizard.thumbs.poll(ctx);
        let shown = self.panels.task == PanelTask::Train;
        let wants = shown && self.wizard.plan.job.is_none() && self.wizard.plan.step <= WizardStep::Start;
        if wants && matches!(self.wizard.check, Check::None) && self.wizard.plan.data.is_some() {
            self.check_data();
        }
        self.poll_cost();
        if let Check::Running(id) = self.wizard.check {
            let state = self.work.jobs.iter().find(|j| j.id == id).map(|j| &j.state);
            match state {
                Some(JobState::Failed(reason)) => self.wizard.check = Check::Failed(reason.clone()),
                Some(JobState::Cancelled) => self.wizard.check = Check::Failed("it was cancelled".to_owned()),
                Some(_) => {}
                None => self.wizard.check = Check::Failed("the engine is not running".to_owned()),
            }
        }
        if let Some(id) = self.wizard.run.job() {
            self.collect_notes(id);
            let state = self.work.jobs.iter().find(|j| j.id == id).map(|j| j.state.clone());
            let stopping = matches!(self.wizard.run.state, RunState::Stopping(_));
            match state {
                Some(JobState::Failed(_) | JobState::Cancelled) if stopping => self.discard_training(),
                Some(JobState::Failed(reason)) => self.wizard.run.state = RunState::Failed(reason),
                Some(JobState::Cancelled) => self.wizard.run.state = RunState::Paused,
                Some(_) => {}
                None => self.wizard.run.state = RunState::Failed("the engine is not running".to_owned()),
            }
        }
        while let Ok(result) = self.wizard.results.try_recv() {
            self.handle_result(result);
        }
        self.wizard.save_plan(false);
    }

    /// The training job in the job list.
    pub(crate) fn training_job(&self) -> Option<&JobView> {
        let id = self.wizard.run.job()?;
        self.work.jobs.iter().find(|j| j.id == id)
    }

    /// Shows a file dialog for the wizard.
    pub(crate) fn ask_training(&mut self, ask: FileRequest, suggested: String) {
        let parent = self.wizard.plan.data.as_ref().and_then(|p| p.parent().map(Path::to_owned));
        let parent = parent.or_else(|| self.settings.dataset_folder.clone());
        self.opener.ask(ask, parent, suggested);
    }

    /// Sets the task and resets choices that do not fit it.
    pub(crate) fn choose_task(&mut self, task: TrainingTask) {
        if self.wizard.plan.task != task {
            self.wizard.plan.task = task;
            self.wizard.plan.foreground_only = false;
            self.wizard.plan.from = SCRATCH.to_owned();
            self.check_data();
        }
    }

    /// Sets whether only the foreground is trained, for which masks are enough.
    pub(crate) fn set_foreground_only(&mut self, only: bool) {
        if self.wizard.plan.foreground_only != only {
            self.wizard.plan.foreground_only = only;
            self.check_data();
        }
    }
}

/// The message of an error.
pub(crate) fn sentence(error: &JobError) -> String {
    error.to_string()
}
