//! Training models from the window: the choices, the job in the engine process, and the results.
//!
//! The wizard's choices are a [`plan::WizardPlan`], saved in a file. Training runs as a job of the engine process. A run
//! that is canceled, or whose process or window has ended, is resumed from its checkpoint. The pages are drawn in
//! [`crate::panels::train`].

pub(crate) mod estimate;
pub mod full_precision;
pub mod further;
pub mod models;
pub mod options;
pub mod plan;
pub mod run;
pub mod search;
pub mod start;
mod state;
mod thread_results;
pub mod thumbs;
pub mod validation_picture;

pub(crate) use state::{Training, TrainingAction};

use crate::effect::Wake;
use crate::engine_notes::message_in_window;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::{JobError, PerformanceRequest, user_folder};
use cytoscope_train::{
    CheckReport, ChosenNetwork, DataConfig, TrainConfig, TrainJob, TrainPrecision, TrainReport, TrainStart,
};
use cytoscope_training_data::{TargetKind, TrainingTask};
use cytoscope_worker::JobId;
use full_precision::FullPrecision;
use models::Saving;
use plan::{PlanStore, WizardPlan, WizardStep};
use run::{RunState, TrainingRun};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thread_results::ThreadResult;
use validation_picture::ValidationPicture;

/// Folder of models that are being trained, and of trained ones that are not saved yet.
const TRAININGS: &str = "trainings";
/// File beside that folder with all problems of the last data check, if they are too many for the window.
const DETAILS: &str = "data-check.txt";
/// Settings file of the training run that is being tuned, beside that folder.
const TUNED_SETTINGS: &str = "tune.toml";
/// Text that is shown in place of the start model when training starts from scratch.
pub(crate) const NEW_NETWORK: &str = "New network";
/// Maximum number of log lines of a training run.
const MAX_NOTES: usize = 500;
/// Number of pairs, and of problems, that are listed at first.
pub(crate) const LISTED: usize = 40;
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
    /// Usable pairs and problems of the data.
    Done(Box<CheckReport>),
    /// Why the check failed.
    Failed(String),
}

/// State of the training wizard.
pub struct Wizard {
    /// The user's choices in the steps of the wizard.
    pub plan: WizardPlan,
    /// Report of the last training run.
    pub report: Option<Box<TrainReport>>,
    /// State of the data check.
    pub check: Check,
    /// Data path as typed so far.
    pub typed: String,
    /// Number of listed problems and pairs.
    pub listed: [usize; 2],
    /// The current training run, or else the last one.
    pub run: TrainingRun,
    /// Example outputs of the trained model on validation images.
    pub examples: Vec<ValidationPicture>,
    /// Comparison of the last training run with one in 32-bit floats.
    pub full_precision: FullPrecision,
    /// Start model from a file that is not an installed model.
    pub start_file: Option<Box<ModelCard>>,
    /// State of saving and exporting.
    pub saving: Saving,
    /// Whether the toolbar offers to resume a run that was unfinished when the last window closed.
    pub offer: bool,
    config: TrainConfig,
    folder: PathBuf,
    store: Option<PlanStore>,
    saved_plan: WizardPlan,
    saved_at: Instant,
    result_sender: Sender<ThreadResult>,
    results: Receiver<ThreadResult>,
    wake: Wake,
    /// Threads that save models which a new training run replaces.
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
        if plan.search.job.is_none() {
            // The last window ended while the latest search was being removed.
            plan.search.return_to_earlier();
        }
        let in_progress = plan.job.is_some();
        if !in_progress && plan.from.model().is_some_and(|model| !Path::new(model).exists()) {
            // Neither does the start model.
            (plan.from, plan.start_chosen) = (TrainStart::Scratch, false);
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
            full_precision: FullPrecision::None,
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

    /// Number of threads that prepare patches in the next run; without a choice, as many as the cores allow.
    pub fn workers(&self) -> usize {
        self.plan.workers.unwrap_or_else(|| self.config.data_workers())
    }

    /// Number of patches that the next run prepares in advance; without a choice, the training settles it.
    pub fn prefetch(&self) -> Option<usize> {
        self.base_config().prefetch
    }

    /// Which preset of the machine profile completes the settings that the user left on automatic.
    pub(crate) fn performance(&self) -> PerformanceRequest {
        self.plan.performance.unwrap_or(self.config.performance)
    }

    /// Why the found settings of a search cannot be used; `None` if they can, or if none are used.
    pub(crate) fn found_settings_problem(&self) -> Option<String> {
        self.plan.search.problem(&self.base_config())
    }

    /// Whether the network learns to find single objects.
    pub(crate) fn finds_objects(&self) -> bool {
        self.plan.task == TrainingTask::Segmentation && !self.plan.foreground_only
    }

    /// The training configuration with the user's choices.
    fn chosen_config(&self) -> TrainConfig {
        let mut config = self.base_config();
        if self.finds_objects() {
            config = self.plan.options.sized(config);
        }
        if self.plan.foreground_only && self.plan.task == TrainingTask::Segmentation {
            config.target = Some(TargetKind::Semantic);
        }
        if self.plan.files != DataConfig::default() {
            config.data = self.plan.files.clone();
        }
        config.workers = self.plan.workers.or(config.workers);
        config.batch = self.plan.batch.or(config.batch);
        config.accumulate = self.plan.accumulate.unwrap_or(config.accumulate);
        config.memory_mib = self.plan.memory_mib.or(config.memory_mib);
        config.precision = self.plan.precision.and_then(TrainPrecision::of).unwrap_or(config.precision);
        config.performance = self.performance();
        self.plan.search.applied_to(config)
    }

    /// The training job for the current choices and an output path.
    fn job(&self, out: PathBuf) -> Option<TrainJob> {
        let options = &self.plan.options;
        let mut config = options.limited(options.licensed(self.chosen_config()));
        config.budget.minutes = Some(self.plan.minutes);
        Some(TrainJob {
            task: self.plan.task,
            data: self.plan.data.clone()?,
            from: self.plan.from.clone(),
            out,
            config,
            resume: false,
            restart: false,
            seed: options.seed,
            threads: self.plan.threads.unwrap_or(0),
            without_int8: self.plan.without_int8,
            device: self.plan.device,
            may_change_device: false,
            overwrite: Default::default(),
        })
    }

    /// The job that continues an unfinished run on the chosen device.
    fn continued(&self, job: TrainJob) -> TrainJob {
        let chosen = self.chosen_config().precision;
        // With `auto`, a run would resume in the precision that it started in, which the chosen device may not have.
        let is_dropped = chosen == TrainPrecision::Auto && job.config.precision != TrainPrecision::Auto;
        let precision = if is_dropped { TrainPrecision::F32 } else { chosen };
        let config = TrainConfig { precision, ..job.config };
        TrainJob { resume: true, device: self.plan.device, config, ..job }
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
        // Waits for models that are being saved. A panic of a thread was reported when it happened.
        for thread in self.saving_threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn file_name(path: &Path) -> String {
    crate::document::file_name(path)
}

/// Returns the text of an error for notifications, in the words of the window.
pub(crate) fn error_text(error: &JobError) -> String {
    message_in_window(&error.message())
}

/// Returns the result of a training run that started from `from`, in one or two sentences.
pub(crate) fn summary_text(report: &TrainReport, from: &TrainStart) -> String {
    match (report.verdict, report.before.is_empty(), report.validation_pairs) {
        (ChosenNetwork::Start, ..) if report.only_segmentation_improved() => {
            format!(
                "No trained network scored clearly better than the start model, so its network was kept: {}. \
                 Only the segmentation settings were adapted to your images.",
                report.kept_reason()
            )
        }
        (ChosenNetwork::Start, ..) => format!(
            "No trained network scored clearly better than the start model, so the start model was kept: {}.",
            report.kept_reason()
        ),
        (ChosenNetwork::Trained, _, 0) => {
            "The model was trained; there was no validation set to score it on.".to_owned()
        }
        (ChosenNetwork::Trained, true, _) if *from == TrainStart::Scratch => {
            "The model was trained from scratch.".to_owned()
        }
        (ChosenNetwork::Trained, true, _) => {
            "The model was trained; it could not be compared with the start model.".to_owned()
        }
        (ChosenNetwork::Trained, false, _) => "The trained model scores better than the start model.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_engine::{DeviceId, DeviceRequest, Precision};

    #[test]
    fn file_settings_of_the_plan_reach_the_job() {
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(|| ());
        let mut wizard = Wizard::new(None, TrainConfig::default(), &wake);
        wizard.plan.data = Some("/data/pairs".into());
        assert_eq!(wizard.job("/out".into()).unwrap().config.data, DataConfig::default());
        let one_file =
            DataConfig { image_channel: Some(1), target_channel: Some(0), same_file: true, ..Default::default() };
        wizard.plan.files = one_file.clone();
        assert_eq!(wizard.job("/out".into()).unwrap().config.data, one_file);
    }

    #[test]
    fn a_resumed_run_uses_the_chosen_device_in_a_precision_that_it_has() {
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(|| ());
        let mut wizard = Wizard::new(None, TrainConfig::default(), &wake);
        wizard.plan.data = Some("/data/pairs".into());
        wizard.plan.device = DeviceRequest::Device(DeviceId::Cuda(0));
        wizard.plan.precision = Some(Precision::F16);
        let job = wizard.job("/out".into()).unwrap();
        assert_eq!((job.device, job.config.precision), (wizard.plan.device, TrainPrecision::F16));
        // The CPU does not offer f16.
        (wizard.plan.device, wizard.plan.precision) = (DeviceRequest::Device(DeviceId::Cpu), None);
        let continued = wizard.continued(job);
        assert!(continued.resume);
        assert_eq!((continued.device, continued.config.precision), (wizard.plan.device, TrainPrecision::F32));
    }

    #[test]
    fn a_start_model_that_could_not_be_compared_is_not_a_new_network() {
        let report: TrainReport = serde_json::from_value(serde_json::json!({
            "out": "m", "verdict": "trained", "metric": "Dice", "before": {}, "after": {"dice": 0.8}, "after_int8": {},
            "pairs_before": [], "pairs_after": [], "steps": 1, "epoch_steps": 1, "batch": 1, "patch_zyx": [1, 1, 1],
            "parameters": 1, "train_pairs": 1, "validation_pairs": 1, "seconds": 1.0, "step_secs": 1.0,
            "stalled_secs": 0.0, "peak_rss_bytes": null, "device": "", "history": cytoscope_train::History::default(),
        }))
        .unwrap();
        assert_eq!(summary_text(&report, &TrainStart::Scratch), "The model was trained from scratch.");
        let text = summary_text(&report, &TrainStart::Model("nuclei".to_owned()));
        assert!(text.contains("could not be compared with the start model"), "{text}");
    }

    #[test]
    fn limits_of_the_plan_override_those_of_the_settings() {
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(|| ());
        let config = TrainConfig { batch: Some(3), accumulate: 5, memory_mib: Some(512), ..TrainConfig::default() };
        let mut wizard = Wizard::new(None, config, &wake);
        wizard.plan.data = Some("/data/pairs".into());
        let limits = |wizard: &Wizard| {
            let job = wizard.job("/out".into()).unwrap();
            (job.config.batch, job.config.accumulate, job.config.memory_mib, job.threads, job.without_int8)
        };
        assert_eq!(limits(&wizard), (Some(3), 5, Some(512), 0, false));
        (wizard.plan.batch, wizard.plan.memory_mib, wizard.plan.threads) = (Some(8), Some(2048), Some(2));
        (wizard.plan.accumulate, wizard.plan.without_int8) = (Some(2), true);
        assert_eq!(limits(&wizard), (Some(8), 2, Some(2048), 2, true));
    }
}
