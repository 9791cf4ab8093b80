//! Training settings without their own controls, one by one or from a settings file of the command line, and saving all
//! settings as such a file.

use super::plan::WizardPlan;
use super::thread_results::ThreadResult;
use super::{Training, Wizard, error_text, file_name};
use crate::diameter::given_diameter;
use crate::display::Display;
use crate::documents::DocumentsAction;
use crate::effect::Effects;
use crate::number_text::counted;
use crate::opener::{Content, FileRequest};
use cytoscope_engine::{DeviceRequest, Precision};
use cytoscope_train::{DataConfig, SettingAssignment, TrainConfig, TrainJob, TrainPrecision, TrainStart};
use cytoscope_training_data::{TargetKind, TrainingTask};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Title of the notification about a settings file that cannot be used.
const NOT_LOADED: &str = "The settings were not loaded";
/// Title of the notification about a setting that cannot be used.
const NOT_SET: &str = "The setting was not changed";

/// Training settings without their own controls.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FurtherSettings {
    /// The settings, each as `KEY=VALUE`.
    pub used: Vec<String>,
    /// The setting that is being typed.
    #[serde(skip)]
    pub typed: String,
}

/// An action on the settings without their own controls.
pub(crate) enum FurtherAction {
    /// Reads all settings from a file.
    Load(PathBuf),
    /// Asks for the file that all settings are saved to.
    AskSave,
    /// Saves all settings.
    Save(PathBuf),
    /// The setting as typed so far.
    Type(String),
    /// Sets the typed setting.
    Set,
    /// Sets this setting, given as `KEY=VALUE`.
    Assign(String),
    /// Returns this setting to its default.
    Remove(String),
    /// Returns all these settings to their defaults.
    RemoveAll,
}

impl FurtherSettings {
    /// Returns why training settings cannot have these; `None` if they can.
    pub(super) fn problem(&self, config: &TrainConfig) -> Option<String> {
        let unusable = unusable(&self.used, config);
        (!unusable.is_empty()).then(|| {
            format!(
                "Settings that this version of Cytoscope does not have: {}. Remove them from the list below \"More \
                 settings\".",
                unusable.join(", ")
            )
        })
    }
}

/// Returns the settings, each as `KEY=VALUE`, that training settings cannot have.
pub(super) fn unusable<'a>(settings: &'a [String], config: &TrainConfig) -> Vec<&'a str> {
    let is_usable =
        |text: &&str| text.parse::<SettingAssignment>().is_ok_and(|setting| setting.set_in(config).is_some());
    settings.iter().map(String::as_str).filter(|text| !is_usable(text)).collect()
}

/// Returns training settings with these, each as `KEY=VALUE`; those that they cannot have are left out, see [`unusable`].
pub(super) fn with_settings(settings: &[String], config: TrainConfig) -> TrainConfig {
    let assignments = settings.iter().filter_map(|text| text.parse::<SettingAssignment>().ok());
    assignments.fold(config, |config, setting| setting.set_in(&config).unwrap_or(config))
}

/// Moves the settings that have controls from the training settings to a plan; the others stay. Those that have their defaults
/// change the plan only if `resets` is true for their keys.
fn move_to_controls(config: &mut TrainConfig, plan: &mut WizardPlan, resets: impl Fn(&str) -> bool) {
    let default = TrainConfig::default();
    let is_semantic = config.target == Some(TargetKind::Semantic) && plan.task == TrainingTask::Segmentation;
    if is_semantic {
        config.target = None;
    }
    if is_semantic || resets("target.kind") {
        plan.foreground_only = is_semantic;
    }
    move_optional(&mut config.workers, &mut plan.workers, resets("workers"));
    move_optional(&mut config.batch, &mut plan.batch, resets("batch"));
    move_optional(&mut config.memory_mib, &mut plan.memory_mib, resets("memory_mib"));
    move_optional(&mut config.budget.epochs, &mut plan.options.epochs, resets("budget.epochs"));
    move_optional(&mut config.budget.steps, &mut plan.options.steps, resets("budget.steps"));
    let mut diameter = given_diameter(config.diameter);
    if diameter.is_some() {
        config.diameter = default.diameter;
    }
    move_optional(&mut diameter, &mut plan.options.diameter, resets("diameter"));
    let mut accumulate = Some(std::mem::replace(&mut config.accumulate, default.accumulate));
    accumulate = accumulate.filter(|batches| *batches != default.accumulate);
    move_optional(&mut accumulate, &mut plan.accumulate, resets("accumulate"));
    let mut precision = float_precision(std::mem::take(&mut config.precision));
    move_optional(&mut precision, &mut plan.precision, resets("precision"));
    let mut performance = Some(std::mem::replace(&mut config.performance, default.performance));
    performance = performance.filter(|request| *request != default.performance);
    move_optional(&mut performance, &mut plan.performance, resets("performance"));
    let license = config.license.take();
    if resets("license") || license.is_some() {
        plan.options.license = license.unwrap_or_default();
    }
    // The wizard always has a time budget.
    plan.minutes = config.budget.minutes.take().unwrap_or(plan.minutes);
}

/// Moves a value to the one of a control. Unless `resets`, none does not change it.
fn move_optional<T>(from: &mut Option<T>, to: &mut Option<T>, resets: bool) {
    let value = from.take();
    if resets || value.is_some() {
        *to = value;
    }
}

/// The precision of the control; `None` leaves it to the program.
fn float_precision(precision: TrainPrecision) -> Option<Precision> {
    match precision {
        TrainPrecision::Auto => None,
        TrainPrecision::F32 => Some(Precision::F32),
        TrainPrecision::Tf32 => Some(Precision::Tf32),
        TrainPrecision::F16 => Some(Precision::F16),
        TrainPrecision::Bf16 => Some(Precision::Bf16),
    }
}

/// Returns the settings that differ from the defaults, each as `KEY=VALUE`.
fn changed(config: &TrainConfig) -> Result<Vec<String>, String> {
    let changes = config.changes_from(&TrainConfig::default()).map_err(|error| error_text(&error))?;
    Ok(changes.iter().map(ToString::to_string).collect())
}

/// Returns the settings file of a training run: all settings, below the options of the command line that are not settings.
fn settings_text(job: &TrainJob) -> Result<String, String> {
    let settings = job.config.to_toml().map_err(|error| error_text(&error))?;
    let mut options = vec![
        format!("--task={}", job.task.name()),
        format!("--data={}", job.data.display()),
        format!("--from={}", job.from.as_str()),
        format!("--seed={}", job.seed),
    ];
    if job.device != DeviceRequest::Auto {
        options.push(format!("--device={}", job.device));
    }
    if job.threads > 0 {
        options.push(format!("--threads={}", job.threads));
    }
    if job.without_int8 {
        options.push("--without-int8".to_owned());
    }
    // A comment ends with its line.
    let comment = |option: &String| format!("#   {}\n", option.replace(char::is_control, " "));
    let comments: String = options.iter().map(comment).collect();
    Ok(format!(
        "# Settings for cytoscope train --config. Options of this run that are not settings:\n{comments}\n{settings}"
    ))
}

impl Wizard {
    /// The training settings with those that have no controls.
    pub(super) fn base_config(&self) -> TrainConfig {
        with_settings(&self.plan.further.used, self.config.clone())
    }

    /// Why the settings without controls cannot be used; `None` if they can.
    pub(crate) fn further_settings_problem(&self) -> Option<String> {
        self.plan.further.problem(&self.config)
    }
}

impl Training {
    /// Applies an action on the settings without their own controls.
    pub(super) fn apply_to_further(&mut self, action: FurtherAction, display: &Display, effects: &mut Effects) {
        let further = &mut self.wizard.plan.further;
        match action {
            FurtherAction::Load(path) => {
                let read = move || {
                    let config = TrainConfig::read(&path).and_then(|config| config.check().map(|()| Box::new(config)));
                    ThreadResult::Settings(config.map_err(|error| error_text(&error)), path)
                };
                self.wizard.spawn(read);
            }
            FurtherAction::AskSave => {
                let name = format!("{}.toml", self.wizard.plan.suggested_name());
                self.ask(FileRequest::SavedTrainingSettings, name, display, effects);
            }
            FurtherAction::Save(path) => self.save_settings(path, effects),
            FurtherAction::Type(text) => further.typed = text,
            FurtherAction::Set => self.set_typed(effects),
            FurtherAction::Assign(setting) => _ = self.assign(&setting, effects),
            FurtherAction::Remove(setting) => {
                further.used.retain(|used| *used != setting);
                self.check_soon(effects);
            }
            FurtherAction::RemoveAll => {
                further.used.clear();
                self.check_soon(effects);
            }
        }
    }

    /// Saves all settings as a file that the command line reads.
    fn save_settings(&mut self, path: PathBuf, effects: &mut Effects) {
        let problem = self.wizard.settings_problem();
        let Some(job) = self.wizard.job(PathBuf::new()).filter(|_| problem.is_none()) else {
            let reason = problem.unwrap_or_else(|| "Choose the training data first.".to_owned());
            return effects.error("The settings were not saved", reason);
        };
        let content: Content = Box::new(move || settings_text(&job).map(String::into_bytes));
        effects.act(DocumentsAction::Save { path, content });
    }

    /// Takes over the settings of a file: those with controls are shown there, the others are listed.
    pub(super) fn settings_read(&mut self, path: &Path, read: Result<Box<TrainConfig>, String>, effects: &mut Effects) {
        let mut config = match read {
            Ok(config) => *config,
            Err(reason) => return effects.error(NOT_LOADED, reason),
        };
        let files = std::mem::take(&mut config.data);
        let mut plan = self.wizard.plan.clone();
        move_to_controls(&mut config, &mut plan, |_| true);
        match changed(&config) {
            Ok(used) => plan.further = FurtherSettings { used, ..FurtherSettings::default() },
            Err(reason) => return effects.error(NOT_LOADED, reason),
        }
        let listed = plan.further.used.len();
        self.wizard.plan = plan;
        self.set_files(files, effects);
        let details = match listed {
            0 => "All settings that differ from the defaults have controls.".to_owned(),
            _ => format!("{} without a control: below \"More settings\".", counted(listed as u64, "setting")),
        };
        effects.success(format!("Loaded {}", file_name(path)), details);
    }

    /// Sets which part of the files to use. The data are checked again soon.
    pub(super) fn set_files(&mut self, files: DataConfig, effects: &mut Effects) {
        let plan = &mut self.wizard.plan;
        let channels = plan.input_channels();
        plan.files = files;
        if plan.input_channels() != channels {
            // The start model has another number of channels.
            (plan.from, plan.start_chosen) = (TrainStart::Scratch, false);
        }
        self.check_soon(effects);
    }

    /// Sets the typed setting, in its control if it has one.
    fn set_typed(&mut self, effects: &mut Effects) {
        let typed = self.wizard.plan.further.typed.clone();
        if self.assign(&typed, effects) {
            self.wizard.plan.further.typed.clear();
        }
    }

    /// Sets a setting, given as `KEY=VALUE`, in its control if it has one, and returns whether that changed the settings.
    fn assign(&mut self, setting: &str, effects: &mut Effects) -> bool {
        let plan = &self.wizard.plan;
        match with_setting(plan, setting) {
            Ok(changed) if changed == *plan => effects.info(NOT_SET, "It already has this value."),
            Ok(changed) => {
                self.wizard.plan = changed;
                self.check_soon(effects);
                return true;
            }
            Err(reason) => effects.error(NOT_SET, reason),
        }
        false
    }
}

/// Returns the plan with a setting, given as `KEY=VALUE`.
///
/// # Errors
/// Why it cannot be set.
fn with_setting(plan: &WizardPlan, setting: &str) -> Result<WizardPlan, String> {
    let setting: SettingAssignment = setting.trim().parse()?;
    let key = setting.key();
    if key == "data" || key.starts_with("data.") {
        return Err(format!("{key} has a control on the page \"Data\"."));
    }
    let known = plan.further.used.iter().filter_map(|text| text.parse::<SettingAssignment>().ok());
    let settings: Vec<SettingAssignment> = known.chain([setting]).collect();
    let mut config = TrainConfig::read_with(None, &settings).map_err(|error| error_text(&error))?;
    config.check().map_err(|error| error_text(&error))?;
    let mut plan = plan.clone();
    // A default that was given replaces what its control has.
    move_to_controls(&mut config, &mut plan, |control| control == key);
    plan.further.used = changed(&config)?;
    Ok(plan)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::effect::Wake;
    use cytoscope_pipeline::DiameterRequest;
    use std::sync::Arc;

    fn training() -> Training {
        let wake: Wake = Arc::new(|| ());
        let mut training = Training::new(None, TrainConfig::default(), &wake);
        training.wizard.plan.data = Some("/data/pairs".into());
        training
    }

    /// The settings of the next run, without its time budget.
    fn reached(training: &Training) -> TrainConfig {
        let mut config = training.wizard.job("/out".into()).unwrap().config;
        config.budget.minutes = None;
        config
    }

    fn set(training: &mut Training, text: &str) -> usize {
        training.wizard.plan.further.typed = text.to_owned();
        let mut effects = Effects::default();
        training.set_typed(&mut effects);
        effects.into_iter().count()
    }

    #[test]
    fn all_settings_of_a_file_reach_the_job_and_those_with_controls_are_shown_there() {
        let text = "batch = 3\nworkers = 2\npatch_zyx = [8, 32, 32]\nlicense = \"MIT\"\nprecision = \"f16\"\n\
                    accumulate = 4\n[budget]\nsteps = 9\npatience = 5\n[target]\nkind = \"semantic\"\n[data]\ntime = 1\n\
                    [network]\nfilters = [4, 8]\n[loss]\nkind = \"focal\"\ngamma = 3.0\n";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.toml");
        std::fs::write(&file, text).unwrap();
        let config = TrainConfig::read(&file).unwrap();
        let mut training = training();
        // Replaced, although the file does not state it.
        training.wizard.plan.memory_mib = Some(512);
        training.settings_read(&file, Ok(Box::new(config.clone())), &mut Effects::default());
        let plan = &training.wizard.plan;
        assert_eq!((plan.batch, plan.workers, plan.accumulate, plan.memory_mib), (Some(3), Some(2), Some(4), None));
        assert_eq!((plan.precision, plan.foreground_only, plan.files.time), (Some(Precision::F16), true, Some(1)));
        assert_eq!((plan.options.steps, plan.options.license.as_str()), (Some(9), "MIT"));
        let used = &plan.further.used;
        let expected = ["budget.patience=5", "loss={ ", "network.filters=[4, 8]", "patch_zyx=[8, 32, 32]"];
        assert_eq!(used.len(), expected.len(), "{used:?}");
        assert!(used.iter().zip(expected).all(|(text, start)| text.starts_with(start)), "{used:?}");
        assert_eq!(reached(&training), config);
        // The saved file is the same for the command line.
        let saved = folder.path().join("saved.toml");
        std::fs::write(&saved, settings_text(&training.wizard.job("/out".into()).unwrap()).unwrap()).unwrap();
        let mut again = TrainConfig::read(&saved).unwrap();
        assert_eq!(again.budget.minutes.take(), Some(plan.minutes));
        assert_eq!(again, config);
    }

    #[test]
    fn single_settings_are_listed_or_shown_in_their_controls() {
        let mut training = training();
        set(&mut training, "schedule.rate=0.001");
        set(&mut training, "batch = 3");
        set(&mut training, "diameter=12.5");
        let plan = &training.wizard.plan;
        assert_eq!((plan.batch, plan.further.typed.as_str()), (Some(3), ""));
        assert_eq!(
            (plan.options.diameter, &plan.further.used[..]),
            (Some(12.5), &["schedule.rate=0.001".to_owned()][..])
        );
        let config = reached(&training);
        assert_eq!((config.batch, config.schedule.rate), (Some(3), Some(0.001)));
        assert_eq!(config.diameter, DiameterRequest::Given(12.5));
        let used = training.wizard.plan.further.used.clone();
        for wrong in ["", "batch", "batch=many", "batch=0", "color=red", "data.time=1", "schedule.rate=0.001"] {
            assert_eq!(set(&mut training, wrong), 1, "{wrong}");
            assert_eq!(training.wizard.plan.further.used, used, "{wrong}");
        }
        // A button that sets one leaves what is being typed as it is.
        training.wizard.plan.further.typed = "schedule.ra".to_owned();
        assert!(training.assign("prefetch=8", &mut Effects::default()));
        assert!(!training.assign("prefetch=8", &mut Effects::default()), "it has this value");
        let wizard = &training.wizard;
        assert_eq!((wizard.prefetch(), wizard.plan.further.typed.as_str()), (Some(8), "schedule.ra"));
        // Defaults that are typed return controls to them.
        let plan = &mut training.wizard.plan;
        (plan.accumulate, plan.precision, plan.foreground_only) = (Some(4), Some(Precision::F16), true);
        for default in ["accumulate=1", "precision=auto", "diameter=auto", "target.kind=instances"] {
            set(&mut training, default);
        }
        let plan = &training.wizard.plan;
        assert_eq!((plan.accumulate, plan.precision, plan.options.diameter), (None, None, None));
        assert!(!plan.foreground_only);
        training.wizard.plan.further.used.push("later=1".to_owned());
        let problem = training.wizard.settings_problem().unwrap();
        assert!(problem.contains("later=1") && !problem.contains("rate"), "{problem}");
    }

    #[test]
    fn the_text_of_a_settings_file_stays_readable_whatever_the_paths_are() {
        let training = training();
        let job = TrainJob { data: "/a\nbatch = 7".into(), ..training.wizard.job("/out".into()).unwrap() };
        let text = settings_text(&job).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.toml");
        std::fs::write(&file, &text).unwrap();
        assert_eq!(TrainConfig::read(&file).unwrap().batch, None);
        assert!(text.contains("--task=segmentation") && text.contains("--from=scratch"), "{text}");
    }
}
