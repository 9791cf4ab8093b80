//! Search for training settings: `cytoscope train --search` in a separate process.
//!
//! Each search has its own package, beside which its settings, its ranges and its table of trials are stored, so that it
//! can be continued.

use super::further::{unusable, with_settings};
use super::models::Saving;
use super::{NEW_NETWORK, Training, error_text, file_name};
use crate::disk::DiskEffect;
use crate::effect::Effects;
use crate::jobs::{Jobs, JobsAction, path_option};
use cytoscope_engine::DeviceRequest;
use cytoscope_model_package::PACKAGE_KIND;
use cytoscope_pipeline::job_record::remove_record;
use cytoscope_pipeline::{SEARCH_FOLDER_KIND, SearchTableError, SearchTrial, read_search_table};
use cytoscope_storage::folder::{remove_finished, remove_working};
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::write::atomic_write;
use cytoscope_storage::{StorageError, io_message};
use cytoscope_train::{SearchSpace, TrainConfig, TrainJob, TrainStart, search_rungs};
use cytoscope_training_data::TrainingTask;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Folder of the searches, beside that of the training runs.
const SEARCHES: &str = "searches";
/// Ranges of a search for which the user has chosen no file.
pub(crate) const DEFAULT_RANGES: &str =
    "schedule.rate = { log_uniform = [1e-4, 1e-2] }\nema = { uniform = [0.9, 0.999] }\n";
/// Maximum number of trials of a search that is started from the window.
pub(crate) const MAX_SEARCH_TRIALS: usize = 256;

/// Files of a search beside its package, by their extensions.
const OWN_FILES: [&str; 4] = ["search.csv", "search.svg", "space.toml", "settings.toml"];

/// The choices of a search, and the trials of the latest one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SettingsSearch {
    /// TOML file of the ranges; `None` for default ones.
    pub ranges: Option<PathBuf>,
    /// Number of trials.
    pub trials: usize,
    /// Number of optimizer steps of the best trial.
    pub steps: usize,
    /// The latest search; `None` before the first one.
    pub job: Option<SearchJob>,
    /// Trials of the latest search, in the order in which they ended.
    pub results: Vec<SearchTrial>,
    /// Searches before the latest one whose files are stored, the oldest first.
    pub earlier: Vec<EarlierSearch>,
    /// Settings of a trial that the next training run uses, each as `KEY=VALUE`.
    pub used: Vec<String>,
    /// Whether the user is asked to confirm that the latest search is removed.
    #[serde(skip)]
    pub confirm_removal: bool,
}

impl Default for SettingsSearch {
    fn default() -> Self {
        let (results, earlier, used) = (Vec::new(), Vec::new(), Vec::new());
        Self { ranges: None, trials: 8, steps: 800, job: None, results, earlier, used, confirm_removal: false }
    }
}

impl SettingsSearch {
    /// Returns the trial with the highest score on the last rung that was reached.
    pub fn best(&self) -> Option<&SearchTrial> {
        let scored = self.results.iter().filter_map(|trial| Some((trial, trial.score?)));
        scored.max_by(|(a, x), (b, y)| a.rung.cmp(&b.rung).then(x.total_cmp(y))).map(|(trial, _)| trial)
    }

    /// Whether the latest search has not trained its best trial with all steps.
    pub fn is_unfinished(&self) -> bool {
        let Some(job) = &self.job else { return false };
        let rungs = search_rungs(job.trials, job.steps).len();
        !self.results.iter().any(|trial| trial.rung == rungs && trial.score.is_some())
    }

    /// Number of optimizer steps of all trials together.
    pub fn all_steps(&self) -> usize {
        let rung_steps = |rung: &cytoscope_train::SearchRung| rung.trials.saturating_mul(rung.steps);
        search_rungs(self.trials, self.steps).iter().map(rung_steps).fold(0, usize::saturating_add)
    }

    /// Makes a search the latest one, before any of its trials has ended.
    fn begin(&mut self, job: SearchJob) {
        let results = std::mem::take(&mut self.results);
        let earlier = self.job.replace(job).map(|job| EarlierSearch { job, results });
        self.earlier.extend(earlier);
    }

    /// Makes the search before the latest one, which was removed, the latest one.
    pub(super) fn return_to_earlier(&mut self) {
        let earlier = self.earlier.pop();
        (self.job, self.results) = earlier.map(|search| (Some(search.job), search.results)).unwrap_or_default();
    }

    /// Adds a trial, in place of an earlier run of it on the same rung.
    fn add(&mut self, trial: SearchTrial) {
        self.results.retain(|earlier| (earlier.number, earlier.rung) != (trial.number, trial.rung));
        self.results.push(trial);
    }

    /// Returns why training settings cannot have those of the trial that is used; `None` if they can.
    pub(super) fn problem(&self, config: &TrainConfig) -> Option<String> {
        let unusable = unusable(&self.used, config);
        (!unusable.is_empty()).then(|| {
            format!(
                "Found settings that this version of Cytoscope does not have: {}. Choose \"Discard found settings\", or \
                 search again.",
                unusable.join(", ")
            )
        })
    }

    /// Returns training settings with those of the trial that is used. If they cannot have one of these, see
    /// [`Self::problem`], no run starts with them.
    pub(super) fn applied_to(&self, config: TrainConfig) -> TrainConfig {
        with_settings(&self.used, config)
    }
}

/// A search before the latest one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EarlierSearch {
    /// The search.
    pub job: SearchJob,
    /// Its trials, in the order in which they ended.
    pub results: Vec<SearchTrial>,
}

/// A search whose files are stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchJob {
    /// Task of the networks.
    pub task: TrainingTask,
    /// Folder or table of the training data.
    pub data: PathBuf,
    /// Starting point of the trials.
    pub from: TrainStart,
    /// Package of the best trial.
    pub out: PathBuf,
    /// Number of trials.
    pub trials: usize,
    /// Number of optimizer steps of the best trial.
    pub steps: usize,
    /// Device that computes the steps.
    pub device: DeviceRequest,
    /// Number of threads that compute the steps; 0 uses all cores.
    pub threads: usize,
    /// Whether the network is left in float.
    pub without_int8: bool,
    /// Random seed of the split of the data and of the patches.
    #[serde(default)]
    pub seed: u64,
}

impl SearchJob {
    /// Path of a file of this search.
    fn file(&self, extension: &str) -> PathBuf {
        self.out.with_file_name(format!("{}.{extension}", file_name(&self.out)))
    }

    /// Path of the table that the search writes.
    pub(crate) fn table(&self) -> PathBuf {
        self.file("search.csv")
    }

    /// Returns the trials in the table of the search. There is no table before the first one has ended.
    ///
    /// # Errors
    /// Why the table cannot be read.
    pub(crate) fn stored_trials(&self) -> Result<Vec<SearchTrial>, String> {
        let table = self.table();
        match read_search_table(&table) {
            Ok(table) => Ok(table.trials),
            Err(SearchTableError::Io(error)) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(format!("{}: {error}", table.display())),
        }
    }

    /// Removes the package of the best trial, the table, the plots and the settings of this search.
    ///
    /// # Errors
    /// Why a file cannot be removed: a process still searches, or the package was changed.
    pub(crate) fn remove(&self) -> Result<(), String> {
        let text = |error: StorageError| error.to_string();
        let scratch = self.file("search");
        // A window that was closed may have started a process that still searches.
        let _lock = ResultsLock::beside_folder(&scratch).map_err(text)?;
        TrainJob::discard_unused_at(&self.out).map_err(|error| error_text(&error))?;
        remove_finished(&self.out, PACKAGE_KIND).map_err(text)?;
        remove_record(&self.out).map_err(|error| error_text(&error))?;
        remove_working(&scratch, SEARCH_FOLDER_KIND).map_err(text)?;
        for extension in OWN_FILES {
            let path = self.file(extension);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(io_message(&path, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the search as it continues on another device, such as after one has failed.
    fn on(&self, device: DeviceRequest) -> Self {
        Self { device, ..self.clone() }
    }

    /// Title of the search: that of its start model.
    pub(crate) fn title(&self) -> String {
        self.from.model().map_or_else(|| NEW_NETWORK.to_owned(), |path| file_name(Path::new(path)))
    }

    /// Returns the words of the command line after the program's name.
    pub(crate) fn arguments(&self, resume: bool) -> Vec<OsString> {
        let mut arguments = vec![OsString::from("train")];
        arguments.push(path_option("search", &self.file("space.toml")));
        arguments.push(path_option("config", &self.file("settings.toml")));
        arguments.push(path_option("data", &self.data));
        arguments.push(path_option("from", Path::new(self.from.as_str())));
        arguments.push(path_option("out", &self.out));
        arguments.push(OsString::from(format!("--task={}", self.task.name())));
        arguments.push(OsString::from(format!("--trials={}", self.trials)));
        arguments.push(OsString::from(format!("--steps={}", self.steps)));
        arguments.push(OsString::from(format!("--device={}", self.device)));
        arguments.push(OsString::from(format!("--threads={}", self.threads)));
        arguments.push(OsString::from(format!("--seed={}", self.seed)));
        let switches = [("--without-int8", self.without_int8), ("--resume", resume)];
        arguments.extend(switches.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| OsString::from(name)));
        arguments
    }
}

/// A search whose files are to be written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SearchSetup {
    /// The search; its package gets a free path with this name.
    pub(crate) job: SearchJob,
    /// Settings of all trials.
    pub(crate) config: TrainConfig,
    /// TOML file of the ranges; `None` for default ones.
    pub(crate) ranges: Option<PathBuf>,
}

impl SearchSetup {
    /// Writes the settings and a copy of the ranges beside the package, so that the search can be continued unchanged.
    ///
    /// # Errors
    /// Why the ranges cannot be used or a file cannot be written.
    pub(crate) fn write(&self, out: PathBuf) -> Result<Box<SearchJob>, String> {
        let (ranges, trials) = match &self.ranges {
            None => (DEFAULT_RANGES.to_owned(), self.job.trials),
            Some(path) => {
                let space = SearchSpace::read(path).map_err(|error| error_text(&error))?;
                let text = std::fs::read_to_string(path).map_err(|error| io_message(path, &error))?;
                // The ranges may have fewer combinations.
                (text, space.trials(self.job.seed, self.job.trials).len())
            }
        };
        let settings = self.config.to_toml().map_err(|error| error.to_string())?;
        let job = SearchJob { out, trials, ..self.job.clone() };
        for (extension, text) in [("space.toml", &ranges), ("settings.toml", &settings)] {
            atomic_write(&job.file(extension), text.as_bytes()).map_err(|error| error.to_string())?;
        }
        Ok(Box::new(job))
    }
}

/// An action on the search of the wizard.
pub(crate) enum SearchAction {
    /// Sets the file of the ranges; `None` uses default ones.
    Ranges(Option<PathBuf>),
    /// Sets the number of trials.
    Trials(usize),
    /// Sets the number of steps of the best trial.
    Steps(usize),
    /// Starts a search.
    Start,
    /// Continues the latest search.
    Continue,
    /// Uses the settings of the best trial in the next training run.
    UseBest,
    /// Uses the settings of no trial.
    UseNone,
    /// Sets whether the user is asked to confirm that the latest search is removed.
    AskRemoval(bool),
    /// Removes the files of the latest search.
    Remove,
}

impl Training {
    /// Applies an action on the search.
    pub(super) fn apply_to_search(&mut self, action: SearchAction, jobs: &Jobs, effects: &mut Effects) {
        let search = &mut self.wizard.plan.search;
        match action {
            SearchAction::Ranges(path) => search.ranges = path,
            SearchAction::Trials(trials) => search.trials = trials.clamp(1, MAX_SEARCH_TRIALS),
            SearchAction::Steps(steps) => search.steps = steps.max(1),
            SearchAction::Start => {
                search.confirm_removal = false;
                self.start_search(jobs, effects);
            }
            SearchAction::Continue => {
                // It may have gone on after an earlier window was closed.
                if let Some(job) = search.job.clone().filter(|_| search.is_unfinished() && jobs.can_tune()) {
                    effects.disk(DiskEffect::ReadTrials(Box::new(job)));
                }
            }
            SearchAction::UseBest => {
                let settings = search.best().map(|trial| trial.settings.clone());
                search.used = settings.unwrap_or_default();
            }
            SearchAction::UseNone => search.used.clear(),
            SearchAction::AskRemoval(ask) => search.confirm_removal = ask,
            SearchAction::Remove => {
                search.confirm_removal = false;
                if !jobs.is_searching()
                    && let Some(job) = search.job.take()
                {
                    effects.disk(DiskEffect::RemoveSearch(Box::new(job)));
                }
            }
        }
    }

    fn start_search(&mut self, jobs: &Jobs, effects: &mut Effects) {
        let wizard = &self.wizard;
        let is_ready = wizard.is_usable() && wizard.saving == Saving::No && !self.starting;
        let Some(data) = wizard.plan.data.clone().filter(|_| is_ready) else { return };
        if let Some(problem) = wizard.settings_problem() {
            return effects.error("The search cannot start", problem);
        }
        let plan = &wizard.plan;
        let job = SearchJob {
            task: plan.task,
            data,
            from: plan.from.clone(),
            out: wizard.folder.join(SEARCHES).join(plan.suggested_name()),
            trials: plan.search.trials,
            steps: plan.search.steps,
            device: plan.device,
            threads: plan.threads.unwrap_or(0),
            without_int8: plan.without_int8,
            seed: plan.options.seed,
        };
        let config = plan.options.licensed(wizard.chosen_config());
        let setup = SearchSetup { job, config, ranges: plan.search.ranges.clone() };
        if jobs.can_tune() {
            effects.act(JobsAction::PrepareSearch(Box::new(setup)));
            self.forget_cost(effects);
        }
    }

    /// Starts a search whose files were written, or removes these if it was canceled meanwhile.
    pub(crate) fn search_ready(&mut self, job: Result<Box<SearchJob>, String>, jobs: &Jobs) -> Effects {
        let mut effects = Effects::default();
        match job {
            Ok(job) if jobs.is_canceling_tuning() => {
                effects.act(JobsAction::SearchNotPrepared(None));
                effects.disk(DiskEffect::RemoveSearch(job));
            }
            Ok(job) => {
                self.wizard.plan.search.begin((*job).clone());
                effects.act(JobsAction::StartSearch { job, resume: false });
                self.wizard.save_plan(true);
            }
            Err(reason) => effects.act(JobsAction::SearchNotPrepared(Some(reason))),
        }
        effects
    }

    /// Returns to the search before one whose files were removed, or reports why they were not.
    pub(crate) fn search_removed(&mut self, job: SearchJob, result: Result<(), String>) -> Effects {
        let mut effects = Effects::default();
        let search = &mut self.wizard.plan.search;
        // Otherwise it is one that was canceled before it replaced the latest search.
        let is_latest = search.job.is_none();
        match result {
            Ok(()) if is_latest => search.return_to_earlier(),
            Ok(()) => {}
            Err(reason) => {
                effects.error("The search could not be removed", reason);
                if is_latest {
                    search.job = Some(job);
                } else {
                    search.earlier.push(EarlierSearch { job, results: Vec::new() });
                }
            }
        }
        self.wizard.save_plan(true);
        effects
    }

    /// Continues the latest search after the trials in its table, unless all have ended.
    pub(crate) fn continue_search(
        &mut self,
        job: SearchJob,
        trials: Result<Vec<SearchTrial>, String>,
        jobs: &Jobs,
    ) -> Effects {
        let mut effects = Effects::default();
        let search = &mut self.wizard.plan.search;
        if search.job.as_ref() != Some(&job) {
            return effects;
        }
        match trials {
            Ok(trials) => trials.into_iter().for_each(|trial| search.add(trial)),
            Err(reason) => {
                effects.error("The search cannot continue", reason);
                return effects;
            }
        }
        if !search.is_unfinished() {
            effects.success("Search finished", format!("{}: the best settings can be used now", job.title()));
        } else if jobs.can_tune() {
            let job = job.on(self.wizard.plan.device);
            search.job = Some(job.clone());
            effects.act(JobsAction::StartSearch { job: Box::new(job), resume: true });
            self.wizard.save_plan(true);
            self.forget_cost(&mut effects);
        }
        effects
    }

    /// Takes over the trials that have ended.
    pub(super) fn poll_search(&mut self, jobs: &Jobs) {
        for trial in jobs.take_trials() {
            self.wizard.plan.search.add(trial);
        }
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests;
