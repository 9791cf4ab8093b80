//! The state of training: the wizard and its run, and what the user can do with them.

use super::further::FurtherAction;
use super::models::{Saving, TrainedModelFormat};
use super::options::RunOptions;
use super::plan::{self, WizardPlan, WizardStep};
use super::run::{RunState, TrainingRun};
use super::search::{SearchAction, SettingsSearch};
use super::thread_results::ThreadResult;
use super::validation_picture::ValidationPicture;
use super::{
    Check, DETAILS, LISTED, MAX_NOTES, NEW_NETWORK, TRAININGS, TUNED_SETTINGS, Wizard, file_name, summary_text,
};
use crate::disk::DiskEffect;
use crate::display::{Display, DisplayAction, PanelTask};
use crate::documents::DocumentsAction;
use crate::effect::{Effects, Wake};
use crate::jobs::{JobFailure, Jobs, JobsAction, TunedTraining};
use crate::opener::FileRequest;
use crate::work::Purpose;
use cytoscope_engine::{DeviceRequest, Precision};
use cytoscope_pipeline::PerformanceRequest;
use cytoscope_train::{
    CheckJob, CheckReport, DataConfig, Estimate, TrainConfig, TrainEvent, TrainJob, TrainReport, TrainStart,
};
use cytoscope_training_data::TrainingTask;
use cytoscope_worker::{Job, JobId};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between the last change of the settings of the files and their check.
const FILES_DELAY: Duration = Duration::from_millis(600);

/// An action on the training wizard.
pub(crate) enum TrainingAction {
    /// Goes to a step.
    Step(WizardStep),
    /// Sets the task and resets choices that do not fit it.
    Task(TrainingTask),
    /// The data path as typed so far.
    Type(String),
    /// Sets a folder or table as training data and checks it.
    TrainOn(PathBuf),
    /// Checks the chosen data again.
    Check,
    /// Sets which part of the files to use, and metadata that they lack; they are checked again soon.
    Files(Box<DataConfig>),
    /// Sets whether only the foreground is trained; masks are then sufficient.
    ForegroundOnly(bool),
    /// Lists more problems (0) or pairs (1).
    ListMore(usize),
    /// Sets what training starts from.
    StartFrom(TrainStart),
    /// Reads a model file chosen as the start model.
    StartFromFile(PathBuf),
    /// Sets the time budget in minutes.
    Minutes(f64),
    /// Sets the number of threads that prepare patches in the next run.
    Workers(usize),
    /// Sets the number of patches per batch of the next run; `None` leaves it to the program.
    Batch(Option<usize>),
    /// Sets the number of batches per optimizer step of the next run; `None` leaves it to the training settings.
    Accumulate(Option<usize>),
    /// Sets the memory limit for activations of the next run in MiB; `None` leaves it to the program.
    MemoryLimit(Option<u64>),
    /// Sets the number of threads of the next run; `None` uses all cores.
    Threads(Option<usize>),
    /// Sets the device of the next run, or of the one that is continued.
    Device(DeviceRequest),
    /// Sets the precision of the next run, or of the one that is continued; `None` leaves it to the program.
    Precision(Option<Precision>),
    /// Selects a preset of the machine profile for the next run.
    Performance(PerformanceRequest),
    /// Sets whether the next trained network is left in float.
    WithoutInt8(bool),
    /// Sets whether the next run in 16-bit floats is followed by one in 32-bit floats, to compare the scores.
    ComparePrecision(bool),
    /// Sets the settings that are rarely changed.
    Options(Box<RunOptions>),
    /// An action on the settings without their own controls.
    Further(FurtherAction),
    /// Tunes the settings of training runs with the chosen data and start model.
    Tune,
    /// An action on the search for training settings.
    Search(SearchAction),
    /// Sets the name of the model.
    Name(String),
    /// Starts training.
    Start,
    /// Continues a training run that was paused or interrupted.
    Continue,
    /// Hides the offer to continue a training run.
    Later,
    /// Pauses training: it saves a checkpoint and stops.
    Pause,
    /// Ends training now with the best network; a paused run is resumed to finish.
    Finish,
    /// Sets whether the user is asked to confirm discarding the run.
    ConfirmDiscard(bool),
    /// Stops training and discards the run.
    Stop,
    /// Saves the model to the user's own models.
    Save,
    /// Asks for the file of an export.
    AskExport(TrainedModelFormat),
    /// Exports the model.
    Export(TrainedModelFormat, PathBuf),
    /// Selects the saved model and opens the Predict panel.
    UseModel,
    /// Resets the wizard for another model; task and time budget are kept.
    Another,
    /// Shows a file dialog.
    Ask(FileRequest),
    /// The training run reported its plan, completed steps, scores or a preview.
    Event(JobId, Box<TrainEvent>),
    /// The training run has ended with this report.
    Trained(JobId, Box<TrainReport>),
    /// The report of a data check.
    Checked(JobId, Box<CheckReport>),
    /// The measured cost of a training step.
    Estimated(JobId, Estimate),
}

/// The training wizard and its run.
pub(crate) struct Training {
    pub(super) wizard: Wizard,
    /// Number of data checks so far.
    checks: u64,
    /// When the settings of the files changed, until they are checked.
    pub(super) files_changed: Option<Instant>,
    /// Whether the folder of the next run is being created.
    pub(super) starting: bool,
    /// Whether the run that is being started is to end at once with its best network.
    finishing: bool,
}

impl Training {
    /// Restores the wizard as the last window left it.
    pub(crate) fn new(settings: Option<&Path>, config: TrainConfig, wake: &Wake) -> Self {
        Self {
            wizard: Wizard::new(settings, config, wake),
            checks: 0,
            files_changed: None,
            starting: false,
            finishing: false,
        }
    }

    /// Returns the content of the wizard: the user's choices, the run and its results.
    pub(crate) fn wizard(&self) -> &Wizard {
        &self.wizard
    }

    /// Whether changed settings of the files wait to be checked.
    pub(crate) fn awaits_check(&self) -> bool {
        self.files_changed.is_some()
    }

    /// Number of data checks so far: thumbnails from before the latest one are outdated.
    pub(crate) fn checks(&self) -> u64 {
        self.checks
    }

    /// Whether a training run is active. Closing the window pauses it first.
    pub(crate) fn is_active(&self) -> bool {
        self.wizard.run.job().is_some()
    }

    /// Title of a new training run whose folder is being created: the next window does not offer to continue it.
    pub(crate) fn prepared(&self) -> Option<String> {
        let plan = &self.wizard.plan;
        (self.starting && plan.job.is_none()).then(|| format!("{} · train", plan.name))
    }

    /// Applies an action. Returns what other states and the disk have to do for it.
    pub(crate) fn apply(&mut self, action: TrainingAction, jobs: &Jobs, display: &Display) -> Effects {
        let mut effects = Effects::default();
        let wizard = &mut self.wizard;
        match action {
            TrainingAction::Step(step) if wizard.can_open(step) => wizard.plan.step = step,
            TrainingAction::Step(_) => {}
            TrainingAction::Task(task) => self.choose_task(task, jobs, &mut effects),
            TrainingAction::Type(text) => wizard.typed = text,
            TrainingAction::TrainOn(data) => self.train_on(data, jobs, &mut effects),
            TrainingAction::Check => self.check_data(jobs, &mut effects),
            TrainingAction::Files(files) => self.set_files(*files, &mut effects),
            TrainingAction::ForegroundOnly(only) => {
                if wizard.plan.foreground_only != only {
                    wizard.plan.foreground_only = only;
                    self.check_data(jobs, &mut effects);
                }
            }
            TrainingAction::ListMore(list) => {
                if let Some(listed) = wizard.listed.get_mut(list) {
                    *listed += LISTED * 4;
                }
            }
            TrainingAction::StartFrom(from) => (wizard.plan.from, wizard.plan.start_chosen) = (from, true),
            TrainingAction::StartFromFile(path) => self.read_start_model(path),
            TrainingAction::Minutes(minutes) => wizard.plan.minutes = minutes,
            TrainingAction::Workers(workers) => wizard.plan.workers = Some(workers),
            TrainingAction::Batch(batch) => wizard.plan.batch = batch,
            TrainingAction::Accumulate(batches) => wizard.plan.accumulate = batches,
            TrainingAction::MemoryLimit(mib) => wizard.plan.memory_mib = mib,
            TrainingAction::Threads(threads) => wizard.plan.threads = threads,
            TrainingAction::Device(device) => wizard.plan.device = device,
            TrainingAction::Precision(precision) => wizard.plan.precision = precision,
            TrainingAction::Performance(request) => wizard.plan.performance = Some(request),
            TrainingAction::WithoutInt8(without_int8) => wizard.plan.without_int8 = without_int8,
            TrainingAction::ComparePrecision(compare) => wizard.plan.compare_precision = compare,
            TrainingAction::Options(options) => self.set_options(*options, &mut effects),
            TrainingAction::Further(action) => self.apply_to_further(action, display, &mut effects),
            TrainingAction::Tune => self.tune(&mut effects),
            TrainingAction::Search(action) => self.apply_to_search(action, jobs, &mut effects),
            TrainingAction::Name(name) => wizard.plan.name = name,
            TrainingAction::Start => self.start(jobs, &mut effects),
            TrainingAction::Continue => self.resume(jobs, &mut effects),
            TrainingAction::Later => wizard.offer = false,
            TrainingAction::Pause => self.pause(&mut effects),
            TrainingAction::Finish => self.finish(&mut effects),
            TrainingAction::ConfirmDiscard(confirm) => wizard.run.confirm_discard = confirm,
            TrainingAction::Stop => self.stop(&mut effects),
            TrainingAction::Save => self.save_model(jobs),
            TrainingAction::AskExport(format) => self.ask_export(format, display, &mut effects),
            TrainingAction::Export(format, to) => self.export_model(format, to),
            TrainingAction::UseModel => self.use_model(&mut effects),
            TrainingAction::Another => self.train_another(jobs, &mut effects),
            TrainingAction::Ask(request) => self.ask(request, String::new(), display, &mut effects),
            TrainingAction::Event(id, event) => self.handle_event(id, *event),
            TrainingAction::Trained(id, report) => self.handle_report(id, report, jobs, display, &mut effects),
            TrainingAction::Checked(id, report) => self.handle_check(id, report),
            TrainingAction::Estimated(id, estimate) => self.handle_cost(id, estimate),
        }
        effects
    }

    fn train_on(&mut self, data: PathBuf, jobs: &Jobs, effects: &mut Effects) {
        let wizard = &mut self.wizard;
        if wizard.plan.job.is_some() || wizard.run.state != RunState::Idle {
            let details = "Finish or stop the training run first, or open the file from the File menu.";
            return effects.info(format!("{} was not used", file_name(&data)), details);
        }
        wizard.typed = data.display().to_string();
        if wizard.plan.data.as_ref() != Some(&data) {
            wizard.plan.search.used.clear();
            if wizard.plan.data.is_some() {
                forget_layout(&mut wizard.plan.files, effects);
            }
        }
        wizard.plan.data = Some(data);
        wizard.plan.step = WizardStep::Data;
        wizard.plan.name = wizard.plan.suggested_name();
        self.check_data(jobs, effects);
    }

    fn choose_task(&mut self, task: TrainingTask, jobs: &Jobs, effects: &mut Effects) {
        if self.wizard.plan.task != task {
            self.wizard.plan.task = task;
            self.wizard.plan.foreground_only = false;
            self.wizard.plan.search.used.clear();
            (self.wizard.plan.from, self.wizard.plan.start_chosen) = (TrainStart::Scratch, false);
            self.check_data(jobs, effects);
        }
    }

    fn check_data(&mut self, jobs: &Jobs, effects: &mut Effects) {
        if let Check::Running(id) = self.wizard.check {
            effects.act(JobsAction::Cancel(id));
        }
        self.wizard.check = Check::None;
        self.files_changed = None;
        self.wizard.listed = [0; 2];
        self.checks += 1;
        let Some(data) = self.wizard.plan.data.clone() else { return };
        let title = format!("Checking {}", file_name(&data));
        let config = self.wizard.chosen_config();
        let details = Some(self.wizard.folder.join(DETAILS));
        let (from, seed) = (Some(self.wizard.plan.from.clone()), self.wizard.plan.options.seed);
        let job = CheckJob { task: self.wizard.plan.task, data, config, seed, details, from };
        self.wizard.check = Check::Running(jobs.request(title, Purpose::Check, Job::TrainCheck(job), effects));
    }

    fn tune(&mut self, effects: &mut Effects) {
        let wizard = &self.wizard;
        let Some(data) = wizard.plan.data.clone().filter(|_| wizard.is_usable() && !self.starting) else { return };
        if let Some(problem) = wizard.settings_problem() {
            return effects.error("Tuning cannot start", problem);
        }
        let from = wizard.plan.from.clone();
        let title = from.model().map_or_else(|| NEW_NETWORK.to_owned(), |path| file_name(Path::new(path)));
        let (task, config, device) = (wizard.plan.task, wizard.chosen_config(), wizard.plan.device);
        let settings = wizard.folder.join(TUNED_SETTINGS);
        let training = TunedTraining { title, from, task, data, config, device, settings };
        effects.act(JobsAction::TuneTraining(Box::new(training)));
        // The steps are timed again with the tuned settings.
        self.forget_cost(effects);
    }

    fn start(&mut self, jobs: &Jobs, effects: &mut Effects) {
        let wizard = &mut self.wizard;
        let is_ready = wizard.run.state == RunState::Idle && wizard.is_usable() && wizard.saving == Saving::No;
        // A run would distort the timing.
        if self.starting || !is_ready || jobs.tuning().is_some() {
            return;
        }
        if let Some(problem) = wizard.settings_problem() {
            return effects.error("Training cannot start", problem);
        }
        let name = plan::clean_name(&wizard.plan.name);
        let name = if name.is_empty() { wizard.plan.suggested_name() } else { name };
        let Some(job) = wizard.job(wizard.folder.join(TRAININGS).join(&name)) else { return };
        wizard.plan.name.clone_from(&name);
        wizard.plan.start_chosen = true;
        wizard.run = TrainingRun::default();
        // The user may already have typed the name of the next model, so the previous model keeps the name it has.
        self.retire_model(None, jobs, effects);
        self.prepare(job, Some(name), effects);
    }

    fn resume(&mut self, jobs: &Jobs, effects: &mut Effects) {
        effects.act(DisplayAction::ShowTraining);
        self.wizard.offer = false;
        let Some(job) = self.wizard.plan.job.clone() else { return };
        // A run would distort the timing.
        if self.wizard.run.job().is_none() && !self.starting && jobs.tuning().is_none() {
            self.wizard.load_checkpoint();
            let job = self.wizard.continued(job);
            self.prepare(job, None, effects);
        }
    }

    /// Asks for the folder of a training run; a new one gets a free path of this name.
    fn prepare(&mut self, job: TrainJob, name: Option<String>, effects: &mut Effects) {
        self.forget_cost(effects);
        self.starting = true;
        effects.disk(DiskEffect::PrepareTraining { job: Box::new(job), name });
    }

    /// Starts a run once its folder exists, unless it was discarded in the meantime.
    pub(crate) fn ready(&mut self, job: Result<Box<TrainJob>, String>, jobs: &Jobs) -> Effects {
        let mut effects = Effects::default();
        let finishing = std::mem::take(&mut self.finishing);
        if !std::mem::take(&mut self.starting) {
            return effects;
        }
        let job = match job {
            Ok(job) => *job,
            Err(reason) => {
                effects.error("The training folder cannot be created", format!("{reason}. Check the disk."));
                return effects;
            }
        };
        let title = format!("Training of {}", self.wizard.plan.name);
        let id = jobs.request(title, Purpose::Training, Job::Train(job.clone()), &mut effects);
        let run = &mut self.wizard.run;
        run.state = if finishing { RunState::Finishing(id) } else { RunState::Running(id) };
        run.notes_taken = 0;
        run.confirm_discard = false;
        self.wizard.plan.job = Some(job);
        self.wizard.plan.step = WizardStep::Train;
        self.wizard.save_plan(true);
        effects
    }

    /// Pauses training: it saves a checkpoint and stops.
    fn pause(&mut self, effects: &mut Effects) {
        if let RunState::Running(id) | RunState::Finishing(id) = self.wizard.run.state {
            effects.act(JobsAction::Cancel(id));
            self.wizard.run.state = RunState::Pausing(id);
        }
    }

    fn finish(&mut self, effects: &mut Effects) {
        self.wizard.run.confirm_discard = false;
        let Some(job) = self.wizard.plan.job.clone().map(Box::new) else { return };
        match self.wizard.run.state {
            RunState::Running(id) => {
                effects.act(JobsAction::Finish(id));
                effects.disk(DiskEffect::RequestFinish { job, paused: false });
                self.wizard.run.state = RunState::Finishing(id);
            }
            RunState::Paused | RunState::Failed(_) => effects.disk(DiskEffect::RequestFinish { job, paused: true }),
            RunState::Idle | RunState::Pausing(_) | RunState::Finishing(_) | RunState::Stopping(_) => {}
        }
    }

    /// Continues a paused run that was asked to end, so that it does.
    pub(crate) fn finish_requested(&mut self, paused: bool, requested: Result<(), String>, jobs: &Jobs) -> Effects {
        let mut effects = Effects::default();
        match requested {
            Ok(()) if paused => {
                self.resume(jobs, &mut effects);
                self.finishing = self.starting;
            }
            Ok(()) => {}
            Err(reason) => effects.error("The training run cannot be finished", reason),
        }
        effects
    }

    fn stop(&mut self, effects: &mut Effects) {
        self.wizard.run.confirm_discard = false;
        match self.wizard.run.job() {
            Some(id) => {
                effects.act(JobsAction::Cancel(id));
                self.wizard.run.state = RunState::Stopping(id);
            }
            None => self.discard(effects),
        }
    }

    fn discard(&mut self, effects: &mut Effects) {
        (self.starting, self.finishing) = (false, false);
        if let Some(job) = self.wizard.plan.job.take().map(Box::new) {
            effects.disk(DiskEffect::DiscardTraining { job });
        }
        self.wizard.offer = false;
        self.wizard.run = TrainingRun::default();
        self.wizard.plan.step = WizardStep::Start;
        self.wizard.save_plan(true);
    }

    /// Reports a training folder that could not be removed.
    pub(crate) fn discarded(result: Result<(), String>) -> Effects {
        let mut effects = Effects::default();
        if let Err(reason) = result {
            effects.error("The training run could not be removed", reason);
        }
        effects
    }

    fn train_another(&mut self, jobs: &Jobs, effects: &mut Effects) {
        if self.wizard.saving != Saving::No {
            return;
        }
        let name = plan::clean_name(&self.wizard.plan.name);
        self.retire_model(Some(name).filter(|name| !name.is_empty()), jobs, effects);
        let wizard = &mut self.wizard;
        let WizardPlan { task, minutes, workers, batch, memory_mib, threads, .. } = wizard.plan;
        let WizardPlan { accumulate, device, precision, performance, without_int8, compare_precision, .. } =
            wizard.plan;
        let (options, further) = (wizard.plan.options.clone(), wizard.plan.further.clone());
        let kept = WizardPlan { options, further, without_int8, ..WizardPlan::default() };
        let kept = WizardPlan { task, minutes, workers, batch, memory_mib, threads, ..kept };
        // Its trials may still be running; their settings are those of other data.
        let search = SettingsSearch { used: Vec::new(), ..wizard.plan.search.clone() };
        wizard.plan = WizardPlan { accumulate, device, precision, performance, compare_precision, search, ..kept };
        wizard.typed.clear();
        wizard.check = Check::None;
        wizard.run = TrainingRun::default();
        wizard.save_plan(true);
        self.checks += 1;
    }

    fn handle_event(&mut self, id: JobId, event: TrainEvent) {
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
    fn handle_check(&mut self, id: JobId, report: Box<CheckReport>) {
        if matches!(self.wizard.check, Check::Running(of) if of == id) {
            self.wizard.check = Check::Done(report);
            self.wizard.listed = [LISTED; 2];
        }
    }

    fn handle_report(
        &mut self,
        id: JobId,
        report: Box<TrainReport>,
        jobs: &Jobs,
        display: &Display,
        effects: &mut Effects,
    ) {
        if self.is_full_precision_run(id) {
            return self.compare_precisions(&report);
        }
        if self.wizard.run.job() != Some(id) {
            return;
        }
        self.collect_notes(id, jobs);
        self.wizard.run.history = report.history.clone();
        // A run that ended early made fewer steps than were planned; the plots end at its last one.
        self.wizard.run.steps = report.steps;
        // No notification while the wizard shows the results.
        if display.task() != PanelTask::Train {
            let plan = &self.wizard.plan;
            effects.success(format!("Training of {} finished", plan.name), summary_text(&report, &plan.from));
        }
        let job = self.wizard.plan.job.take();
        self.wizard.plan.step = WizardStep::Results;
        self.wizard.report = Some(report);
        if let Some(job) = job {
            self.compare_with_full_precision(&job, jobs, effects);
        }
        self.wizard.load_examples();
        self.wizard.run.state = RunState::Idle;
        self.wizard.save_plan(true);
    }

    fn collect_notes(&mut self, id: JobId, jobs: &Jobs) {
        let Some(job) = jobs.get(id) else { return };
        let run = &mut self.wizard.run;
        let fresh = job.notes.get(run.notes_taken..).unwrap_or_default();
        let capacity = MAX_NOTES.saturating_sub(run.notes.len());
        run.notes.extend(fresh.iter().take(capacity).cloned());
        run.notes_taken = job.notes.len();
    }

    /// Updates the wizard from the state of its jobs.
    pub(crate) fn poll(&mut self, jobs: &Jobs, display: &Display) -> Effects {
        let mut effects = Effects::default();
        let is_shown = display.task() == PanelTask::Train;
        let wants = is_shown && self.wizard.plan.job.is_none() && self.wizard.plan.step <= WizardStep::Start;
        let is_waiting = self.files_changed.is_some_and(|at| at.elapsed() < FILES_DELAY);
        if wants && !is_waiting && matches!(self.wizard.check, Check::None) && self.wizard.plan.data.is_some() {
            self.check_data(jobs, &mut effects);
        }
        self.suggest_start(jobs, display);
        self.poll_cost(jobs, is_shown, &mut effects);
        if let Check::Running(id) = self.wizard.check {
            match jobs.failure(id) {
                Some(JobFailure::Failed(reason)) => self.wizard.check = Check::Failed(reason),
                Some(JobFailure::Canceled) => self.wizard.check = Check::Failed("it was canceled".to_owned()),
                None => {}
            }
        }
        self.poll_full_precision(jobs);
        self.poll_search(jobs);
        if let Some(id) = self.wizard.run.job() {
            self.collect_notes(id, jobs);
            let stopping = matches!(self.wizard.run.state, RunState::Stopping(_));
            match jobs.failure(id) {
                Some(_) if stopping => self.discard(&mut effects),
                Some(JobFailure::Failed(reason)) => self.wizard.run.state = RunState::Failed(reason),
                Some(JobFailure::Canceled) => self.wizard.run.state = RunState::Paused,
                None => {}
            }
        }
        while let Ok(result) = self.wizard.results.try_recv() {
            self.handle_result(result, jobs, &mut effects);
        }
        self.show_history();
        self.wizard.save_plan(false);
        effects
    }

    /// Shows the curves of a report that an earlier window left.
    fn show_history(&mut self) {
        let Wizard { plan, report, run, .. } = &mut self.wizard;
        if let Some(report) = report
            && plan.step == WizardStep::Results
            && run.history.steps.is_empty()
        {
            run.history = report.history.clone();
            run.steps = report.steps;
        }
    }

    /// Shows a file dialog for the wizard.
    pub(super) fn ask(&self, request: FileRequest, name: String, display: &Display, effects: &mut Effects) {
        let parent = self.wizard.plan.data.as_ref().and_then(|p| p.parent().map(Path::to_owned));
        let folder = parent.or_else(|| display.settings().dataset_folder.clone());
        effects.act(DocumentsAction::Ask { request, folder, name });
    }
}

/// Resets the settings that belong to the layout of earlier training data, which other layouts refuse.
fn forget_layout(files: &mut DataConfig, effects: &mut Effects) {
    let is_reset = [
        ("nnU-Net spacing", files.spacing_order.take().is_some()),
        ("Split column", files.split_column.take().is_some()),
        ("Image and target in one file", std::mem::take(&mut files.same_file)),
    ];
    let reset: Vec<String> = is_reset.iter().filter(|(_, was_set)| *was_set).map(|(n, _)| format!("\"{n}\"")).collect();
    if !reset.is_empty() {
        let details = match reset.len() {
            1 => "It was set for the earlier data. Set it again if these data need it, too.",
            _ => "They were set for the earlier data. Set them again if these data need them, too.",
        };
        effects.info(format!("Reset for other data: {}", reset.join(", ")), details);
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
