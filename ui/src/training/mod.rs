//! Teaching a model from the window: the choices, the job in the engine process, and what comes out.
//!
//! The wizard's state is a [`plan::Plan`], kept in a file. Trainings run in the engine process as any job; one that is cancelled, or whose
//! process or window is gone, has its state in a folder and is gone on with. What is drawn is in [`crate::panels::train`].

pub(crate) mod estimate;
pub mod models;
mod news;
pub mod plan;
pub mod run;
pub mod shown;
pub mod start;
pub mod thumbs;

use crate::app::Workbench;
use crate::opener::Ask;
use crate::panels::Task as PanelTask;
use crate::work::{JobState, JobView, Purpose};
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::user_folder;
use cytoscope_pipeline::worker::JobId;
use cytoscope_pipeline::{Event, JobError};
use cytoscope_samples::{TargetKind, Task};
use cytoscope_train::{CheckJob, CheckReport, TrainConfig, TrainJob, TrainReport};
use eframe::egui;
use models::Saving;
use news::News;
use plan::{Keeper, Plan, SCRATCH, Step};
use run::{Run, RunState};
use shown::Shown;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thumbs::Thumbs;

/// Folder of packages that are being taught, or were and are not saved yet.
const TRAININGS: &str = "trainings";
/// The file in that folder that lists every problem of the data looked through last, where they are many.
const DETAILS: &str = "data-check.txt";
/// Most notes of a training that are kept.
const MAX_NOTES: usize = 500;
/// Time between two writings of the plan.
const KEEP_EVERY: Duration = Duration::from_millis(500);

/// How far looking through the data is.
#[derive(Debug, Default)]
pub enum Check {
    /// Nothing was chosen.
    #[default]
    None,
    /// It is under way.
    Running(JobId),
    /// What is there.
    Done(Box<CheckReport>),
    /// It could not be done.
    Failed(String),
}

/// The wizard.
pub struct Wizard {
    /// What was chosen.
    pub plan: Plan,
    /// What came of the last training.
    pub report: Option<Box<TrainReport>>,
    /// The data.
    pub check: Check,
    /// The path as it is being typed.
    pub typed: String,
    /// Pairs and problems listed.
    pub listed: [usize; 2],
    /// The training.
    pub run: Run,
    /// What the model that came out makes of images kept back.
    pub examples: Vec<Shown>,
    /// Whether the loss is drawn over decades.
    pub log_loss: bool,
    /// Small pictures.
    pub thumbs: Thumbs,
    /// A file to begin from that is no installed model.
    pub own_start: Option<Box<ModelCard>>,
    /// How far saving is.
    pub saving: Saving,
    /// Whether a training of an earlier window is offered.
    pub offer: bool,
    config: TrainConfig,
    folder: PathBuf,
    keeper: Option<Keeper>,
    kept: Plan,
    kept_at: Instant,
    tell: Sender<News>,
    news: Receiver<News>,
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Threads that save models which others take the place of.
    leaving: Vec<JoinHandle<()>>,
    costing: estimate::Costing,
}

impl Wizard {
    /// The wizard as the last window left it.
    pub fn new(settings: Option<&Path>, config: TrainConfig, wake: &Arc<dyn Fn() + Send + Sync>) -> Self {
        let beside = settings.and_then(Path::parent).map(Path::to_owned);
        let opened = beside.as_deref().and_then(Keeper::open);
        let folder = beside.or_else(user_folder).unwrap_or_else(std::env::temp_dir);
        let (keeper, mut plan, mut report) = match opened {
            Some((keeper, plan, report)) => (Some(keeper), plan, report),
            None => (None, Plan::default(), None),
        };
        if report.as_ref().is_some_and(|r| !r.out.exists()) {
            // The model has gone.
            report = None;
        }
        let under_way = plan.job.is_some();
        if !under_way && plan.from != SCRATCH && !Path::new(&plan.from).exists() {
            // So has the one to begin from.
            plan.from = SCRATCH.to_owned();
        }
        plan.step = match (under_way, report.is_some(), plan.step) {
            (true, ..) => Step::Learn,
            (false, true, step) => step,
            (false, false, step) => step.min(Step::Start),
        };
        let (tell, news) = channel();
        let mut wizard = Self {
            typed: plan.data.as_ref().map(|p| p.display().to_string()).unwrap_or_default(),
            kept: plan.clone(),
            plan,
            report,
            check: Check::None,
            listed: [0; 2],
            run: Run { state: if under_way { RunState::Paused } else { RunState::Idle }, ..Run::default() },
            examples: Vec::new(),
            log_loss: false,
            thumbs: Thumbs::new(Arc::clone(wake)),
            own_start: None,
            saving: Saving::No,
            offer: under_way,
            config,
            folder,
            keeper,
            kept_at: Instant::now(),
            tell,
            news,
            wake: Arc::clone(wake),
            leaving: Vec::new(),
            costing: estimate::Costing::default(),
        };
        wizard.read_kept();
        wizard.read_examples();
        wizard
    }

    /// Where models of one's own are.
    pub fn models_folder(&self) -> PathBuf {
        self.folder.join("models")
    }

    /// Whether a step can be gone to.
    pub fn may(&self, step: Step) -> bool {
        if self.plan.job.is_some() || self.run.state != RunState::Idle {
            return step == Step::Learn;
        }
        match step {
            Step::Task | Step::Data => true,
            Step::Start => self.plan.data.is_some() && self.is_usable(),
            Step::Learn => false,
            Step::Results | Step::Use => self.report.is_some(),
        }
    }

    /// Whether something can be learnt from the data.
    pub fn is_usable(&self) -> bool {
        matches!(&self.check, Check::Done(report) if report.split.is_some())
    }

    /// Settings as they were chosen.
    fn chosen_config(&self) -> TrainConfig {
        let mut config = self.config.clone();
        if self.plan.foreground_only && self.plan.task == Task::Segmentation {
            config.target = Some(TargetKind::Semantic);
        }
        config
    }

    /// The job that the choices make, with its path.
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
            device: "auto".to_owned(),
        })
    }

    /// A folder that nothing is in yet, for a package of this name.
    fn free_place(&self, name: &str) -> PathBuf {
        let parent = self.folder.join(TRAININGS);
        let place = |n: usize| parent.join(if n == 1 { name.to_owned() } else { format!("{name} {n}") });
        let free = |p: &PathBuf| !p.exists() && !p.with_file_name(format!("{}.training", file_name(p))).exists();
        (1..1000).map(place).find(free).unwrap_or_else(|| place(1000))
    }

    /// Keeps the plan, if it is another.
    fn keep(&mut self, at_once: bool) {
        let due = at_once || self.kept_at.elapsed() >= KEEP_EVERY;
        if due && self.plan != self.kept {
            self.kept = self.plan.clone();
            self.kept_at = Instant::now();
            if let Some(keeper) = &self.keeper {
                keeper.keep(&self.plan, self.report.as_deref());
            }
        }
    }
}

impl Drop for Wizard {
    fn drop(&mut self) {
        self.keep(true);
        // A model half saved would be lost.
        for thread in self.leaving.drain(..) {
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

    /// Takes a folder or a table to learn from.
    pub fn train_on(&mut self, data: PathBuf) {
        let wizard = &mut self.wizard;
        if wizard.plan.job.is_some() || wizard.run.state != RunState::Idle {
            return;
        }
        wizard.typed = data.display().to_string();
        wizard.plan.data = Some(data);
        wizard.plan.step = Step::Data;
        wizard.plan.name = wizard.plan.suggested_name();
        self.check_data();
    }

    /// Looks through the data that were chosen.
    pub(crate) fn check_data(&mut self) {
        if let Check::Running(id) = self.wizard.check {
            self.work.cancel(id);
        }
        self.wizard.check = Check::None;
        self.wizard.listed = [0; 2];
        self.wizard.thumbs.clear();
        let Some(data) = self.wizard.plan.data.clone() else { return };
        let title = format!("Looking through {}", file_name(&data));
        let config = self.wizard.chosen_config();
        let details = Some(self.wizard.folder.join(DETAILS));
        let job = CheckJob { task: self.wizard.plan.task, data, config, seed: 0, details };
        self.wizard.check = match serde_json::to_value(&job) {
            Ok(job) => Check::Running(self.work.run(CheckJob::KIND, title, Purpose::Check, job, Vec::new())),
            Err(error) => Check::Failed(format!("its path cannot be used: {error}")),
        };
    }

    /// Goes to a step.
    pub(crate) fn go_to_step(&mut self, step: Step) {
        if self.wizard.may(step) {
            self.wizard.plan.step = step;
        }
    }

    /// Begins to teach.
    pub(crate) fn start_training(&mut self) {
        let wizard = &mut self.wizard;
        if wizard.run.state != RunState::Idle || !wizard.is_usable() || wizard.saving != Saving::No {
            return;
        }
        let name = plan::clean_name(&wizard.plan.name);
        let name = if name.is_empty() { wizard.plan.suggested_name() } else { name };
        let Some(job) = wizard.job(wizard.free_place(&name)) else { return };
        wizard.plan.name = name;
        wizard.run = Run::default();
        // Its name may be that of the next one already.
        self.leave_model(None);
        self.send_training(job);
    }

    /// Goes on with a training that was paused, or lost.
    pub(crate) fn continue_training(&mut self) {
        self.open_training();
        self.wizard.offer = false;
        let Some(job) = self.wizard.plan.job.clone() else { return };
        if self.wizard.run.job().is_none() {
            self.wizard.read_kept();
            self.send_training(TrainJob { resume: true, ..job });
        }
    }

    fn send_training(&mut self, job: TrainJob) {
        self.forget_cost();
        let folder = job.out.parent().map(Path::to_owned).unwrap_or_default();
        if let Err(error) = std::fs::create_dir_all(&folder) {
            let details = format!("{}: {error}. Check the disk.", folder.display());
            return self.notices.error("Nothing can be written", details);
        }
        let writes = vec![folder, job.folder()];
        let title = format!("Training {}", self.wizard.plan.name);
        match serde_json::to_value(&job) {
            Ok(value) => {
                let id = self.work.run(TrainJob::KIND, title, Purpose::Training, value, writes);
                let run = &mut self.wizard.run;
                run.state = RunState::Running(id);
                run.taken = 0;
                run.sure = false;
                self.wizard.plan.job = Some(job);
                self.wizard.plan.step = Step::Learn;
                self.wizard.keep(true);
            }
            Err(error) => self.notices.error("Training cannot begin", format!("A path cannot be used: {error}.")),
        }
    }

    /// Asks the training to keep its state and stop.
    pub(crate) fn pause_training(&mut self) {
        if let RunState::Running(id) | RunState::Finishing(id) = self.wizard.run.state {
            self.work.cancel(id);
            self.wizard.run.state = RunState::Pausing(id);
        }
    }

    /// Asks the training to end now with the best so far; a paused one goes on to its end.
    pub(crate) fn finish_training(&mut self) {
        self.wizard.run.sure = false;
        match self.wizard.run.state.clone() {
            RunState::Running(id) => {
                self.work.finish(id);
                // One that goes on and still waits for others is not heard: it looks into its folder when it starts.
                if let Some(job) = self.wizard.plan.job.as_ref().filter(|job| job.kept().is_some()) {
                    let _ = job.finish_early();
                }
                self.wizard.run.state = RunState::Finishing(id);
            }
            RunState::Paused | RunState::Failed(_) => {
                let Some(job) = self.wizard.plan.job.clone() else { return };
                if let Err(error) = job.finish_early() {
                    return self.notices.error("The training cannot be finished", sentence(&error));
                }
                self.continue_training();
                if let RunState::Running(id) = self.wizard.run.state {
                    self.wizard.run.state = RunState::Finishing(id);
                }
            }
            RunState::Idle | RunState::Pausing(_) | RunState::Finishing(_) | RunState::Stopping(_) => {}
        }
    }

    /// Ends the training for good: nothing of it is left.
    pub(crate) fn stop_training(&mut self) {
        self.wizard.run.sure = false;
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
                self.notices.error("The training could not be removed", error.to_string());
            }
        }
        self.wizard.offer = false;
        self.wizard.run = Run::default();
        self.wizard.plan.step = Step::Start;
        self.wizard.keep(true);
    }

    /// Begins anew, with the choices as they are.
    pub(crate) fn teach_another(&mut self) {
        if self.wizard.saving != Saving::No {
            return;
        }
        let name = plan::clean_name(&self.wizard.plan.name);
        self.leave_model(Some(name).filter(|name| !name.is_empty()));
        let wizard = &mut self.wizard;
        wizard.plan = Plan { task: wizard.plan.task, minutes: wizard.plan.minutes, ..Plan::default() };
        wizard.typed.clear();
        wizard.check = Check::None;
        wizard.run = Run::default();
        wizard.thumbs.clear();
        wizard.keep(true);
    }

    /// Whether a training runs: closing the window has it keep its state first.
    pub fn is_training(&self) -> bool {
        self.wizard.run.job().is_some()
    }

    /// Takes what a training told.
    pub(crate) fn take_told(&mut self, id: JobId, event: Event) {
        if self.wizard.run.job() != Some(id) {
            return;
        }
        match event {
            Event::Pictured { step, path, caption } => {
                self.wizard.spawn(move || News::Shown(Shown::read(&path, Some(step), caption)));
            }
            event => self.wizard.run.hear(event),
        }
    }

    /// Takes what a training or a look through data came to.
    pub(crate) fn take_ran(&mut self, id: JobId, report: serde_json::Value) {
        let Some(report) = self.take_estimate(id, report) else { return };
        let Some(report) = self.take_cost(id, report) else { return };
        if matches!(self.wizard.check, Check::Running(of) if of == id) {
            self.wizard.check = match serde_json::from_value(report) {
                Ok(report) => Check::Done(report),
                Err(error) => Check::Failed(format!("the answer cannot be read: {error}")),
            };
            self.wizard.listed = [crate::panels::train::LISTED; 2];
        } else if self.wizard.run.job() == Some(id) {
            self.take_notes(id);
            self.wizard.run.state = match serde_json::from_value::<Box<TrainReport>>(report) {
                Ok(report) => {
                    self.wizard.run.history = report.history.clone();
                    // The page of results says it where that is on screen.
                    if self.panels.task != PanelTask::Train {
                        let title = format!("{} is taught", self.wizard.plan.name);
                        self.notices.good(title, crate::panels::train::verdict(&report));
                    }
                    self.wizard.plan.job = None;
                    self.wizard.plan.step = Step::Results;
                    self.wizard.report = Some(report);
                    self.wizard.read_examples();
                    RunState::Idle
                }
                Err(error) => RunState::Failed(format!("the report cannot be read: {error}")),
            };
            self.wizard.keep(true);
        }
    }

    fn take_notes(&mut self, id: JobId) {
        let Some(job) = self.work.jobs.iter().find(|j| j.id == id) else { return };
        let run = &mut self.wizard.run;
        let fresh = job.notes.get(run.taken..).unwrap_or_default();
        let room = MAX_NOTES.saturating_sub(run.notes.len());
        run.notes.extend(fresh.iter().take(room).cloned());
        run.taken = job.notes.len();
    }

    /// Follows the jobs of the wizard.
    pub(crate) fn poll_training(&mut self, ctx: &egui::Context) {
        self.wizard.thumbs.poll(ctx);
        let shown = self.panels.task == PanelTask::Train;
        let wants = shown && self.wizard.plan.job.is_none() && self.wizard.plan.step <= Step::Start;
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
                None => self.wizard.check = Check::Failed("there is no engine".to_owned()),
            }
        }
        if let Some(id) = self.wizard.run.job() {
            self.take_notes(id);
            let state = self.work.jobs.iter().find(|j| j.id == id).map(|j| j.state.clone());
            let stopping = matches!(self.wizard.run.state, RunState::Stopping(_));
            match state {
                Some(JobState::Failed(_) | JobState::Cancelled) if stopping => self.discard_training(),
                Some(JobState::Failed(reason)) => self.wizard.run.state = RunState::Failed(reason),
                Some(JobState::Cancelled) => self.wizard.run.state = RunState::Paused,
                Some(_) => {}
                None => self.wizard.run.state = RunState::Failed("there is no engine".to_owned()),
            }
        }
        while let Ok(news) = self.wizard.news.try_recv() {
            self.take_news(news);
        }
        self.wizard.keep(false);
    }

    /// The training's job, as the list of jobs has it.
    pub(crate) fn training_job(&self) -> Option<&JobView> {
        let id = self.wizard.run.job()?;
        self.work.jobs.iter().find(|j| j.id == id)
    }

    /// Asks for a file or folder of the wizard's.
    pub(crate) fn ask_training(&mut self, ask: Ask, suggested: String) {
        let beside = self.wizard.plan.data.as_ref().and_then(|p| p.parent().map(Path::to_owned));
        let beside = beside.or_else(|| self.settings.dataset_folder.clone());
        self.opener.ask(ask, beside, suggested);
    }

    /// Leaves what does not fit the task.
    pub(crate) fn choose_task(&mut self, task: Task) {
        if self.wizard.plan.task != task {
            self.wizard.plan.task = task;
            self.wizard.plan.foreground_only = false;
            self.wizard.plan.from = SCRATCH.to_owned();
            self.check_data();
        }
    }

    /// Chooses whether only foreground is learnt: masks are enough for that.
    pub(crate) fn learn_foreground(&mut self, only: bool) {
        if self.wizard.plan.foreground_only != only {
            self.wizard.plan.foreground_only = only;
            self.check_data();
        }
    }
}

/// A failure in words.
pub(crate) fn sentence(error: &JobError) -> String {
    error.to_string()
}
