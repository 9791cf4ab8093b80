//! The choices of the training wizard, saved in a file of each window so that they outlive it.

use super::further::FurtherSettings;
use super::options::RunOptions;
use super::search::SettingsSearch;
use crate::stored::{copy_changes, from_readable, read_json};
use cytoscope_engine::{DeviceRequest, Precision};
use cytoscope_pipeline::PerformanceRequest;
use cytoscope_storage::target::extension;
use cytoscope_train::{DataConfig, TrainJob, TrainReport, TrainStart};
use cytoscope_training_data::TrainingTask;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// File of the plan, beside the settings.
const FILE: &str = "training.json";
/// Lock file, held by the window that owns the plan.
const LOCK: &str = "training.lock";
/// Maximum number of windows whose plans are saved at the same time.
const MAX_WINDOWS: usize = 8;
/// Maximum size of a plan file that is read.
const MAX_BYTES: u64 = 16 << 20;

/// Time budgets offered, in minutes, with their names.
pub const MINUTES: [(&str, f64); 3] = [("Quick", 5.0), ("Standard", 20.0), ("Thorough", 60.0)];

/// A page of the wizard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WizardStep {
    /// Choosing the task.
    #[default]
    Task,
    /// Choosing the data.
    Data,
    /// Choosing start model and time budget.
    Start,
    /// The training run, with its curves.
    #[serde(rename = "learn")]
    Train,
    /// Scores of the trained model.
    Results,
    /// Saving and using the model.
    Use,
}

impl WizardStep {
    /// All steps, in the order of the wizard.
    pub const ALL: [WizardStep; 6] = [
        WizardStep::Task,
        WizardStep::Data,
        WizardStep::Start,
        WizardStep::Train,
        WizardStep::Results,
        WizardStep::Use,
    ];

    /// Returns the title of the step, as the window shows it.
    pub fn title(self) -> &'static str {
        match self {
            WizardStep::Task => "Task",
            WizardStep::Data => "Data",
            WizardStep::Start => "Settings",
            WizardStep::Train => "Training",
            WizardStep::Results => "Results",
            WizardStep::Use => "Save and use",
        }
    }

    fn shifted(self, by: isize) -> Option<WizardStep> {
        let at = Self::ALL.iter().position(|s| *s == self)?.checked_add_signed(by)?;
        Self::ALL.get(at).copied()
    }

    /// The page after this one; `None` after the last.
    pub fn next(self) -> Option<WizardStep> {
        self.shifted(1)
    }

    /// Returns the previous step; `None` on the first one.
    pub fn back(self) -> Option<WizardStep> {
        self.shifted(-1)
    }
}

/// The user's choices in the steps of the wizard, kept between sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WizardPlan {
    /// The step whose page is shown.
    pub step: WizardStep,
    /// Task of the model: objects or a stain.
    pub task: TrainingTask,
    /// Folder or table of the training data.
    pub data: Option<PathBuf>,
    /// Which part of the files to use, and metadata that they lack.
    pub files: DataConfig,
    /// Whether only the foreground is trained, without separating objects.
    pub foreground_only: bool,
    /// Starting point of the training run; a start model is named by its path.
    pub from: TrainStart,
    /// Whether the user chose the starting point; otherwise it is suggested by the data.
    pub start_chosen: bool,
    /// Time budget in minutes.
    pub minutes: f64,
    /// Number of threads that prepare patches; `None` for as many as the cores allow.
    pub workers: Option<usize>,
    /// Number of patches per batch; `None` leaves it to the training settings or the machine profile.
    pub batch: Option<usize>,
    /// Number of batches per optimizer step; `None` leaves it to the training settings.
    pub accumulate: Option<usize>,
    /// Memory limit for the activations of a training step in MiB; `None` leaves it to the training settings.
    pub memory_mib: Option<u64>,
    /// Number of threads that compute the training steps; `None` uses all cores.
    pub threads: Option<usize>,
    /// The device that computes the training steps.
    pub device: DeviceRequest,
    /// Precision of the training steps; `None` leaves it to the training settings.
    pub precision: Option<Precision>,
    /// Which preset of the machine profile completes the settings; `None` leaves it to the training settings.
    pub performance: Option<PerformanceRequest>,
    /// Whether the trained network is left in float.
    pub without_int8: bool,
    /// Whether a run in 16-bit floats is followed by one in 32-bit floats, to compare the scores.
    pub compare_precision: bool,
    /// Settings that are rarely changed.
    pub options: RunOptions,
    /// Settings without their own controls.
    pub further: FurtherSettings,
    /// Search for training settings.
    pub search: SettingsSearch,
    /// Name of the model.
    pub name: String,
    /// Job of an unfinished training run.
    pub job: Option<TrainJob>,
    /// Where the trained model was saved.
    pub saved: Option<PathBuf>,
}

impl Default for WizardPlan {
    fn default() -> Self {
        Self {
            step: WizardStep::Task,
            task: TrainingTask::Segmentation,
            data: None,
            files: DataConfig::default(),
            foreground_only: false,
            from: TrainStart::Scratch,
            start_chosen: false,
            minutes: MINUTES[1].1,
            workers: None,
            batch: None,
            accumulate: None,
            memory_mib: None,
            threads: None,
            device: DeviceRequest::Auto,
            precision: None,
            performance: None,
            without_int8: false,
            compare_precision: false,
            options: RunOptions::default(),
            further: FurtherSettings::default(),
            search: SettingsSearch::default(),
            name: String::new(),
            job: None,
            saved: None,
        }
    }
}

impl WizardPlan {
    /// Returns the number of input channels of the network.
    pub fn input_channels(&self) -> usize {
        self.files.channels.len().max(1)
    }

    /// A name for the model, derived from its data folder.
    pub fn suggested_name(&self) -> String {
        let data = self.data.as_deref();
        // A table is named after its folder. The end of a date or a version is no extension.
        let folder = data.and_then(|path| if extension(path).is_some() { path.parent() } else { Some(path) });
        let name = folder.and_then(|path| if extension(path).is_some() { path.file_stem() } else { path.file_name() });
        let name = clean_name(&name.unwrap_or_default().to_string_lossy());
        if name.is_empty() { "my-model".to_owned() } else { name }
    }
}

/// Replaces characters that are not allowed in file and package names.
pub fn clean_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_ +().".contains(c) { c } else { '-' };
    let name: String = text.trim().chars().map(plain).take(80).collect();
    name.trim_matches(['.', ' ', '-']).to_owned()
}

/// How deep changes of a plan are copied into what is stored: to the choices in its sections.
const DEPTH: usize = 2;
/// Sections that are replaced as a whole: what a later version knows of another run is not true of this one.
const WHOLE: [&str; 2] = ["job", "report"];

/// Content of the plan file.
#[derive(Serialize)]
struct PlanFileRef<'a> {
    plan: &'a WizardPlan,
    report: Option<&'a TrainReport>,
}

/// What a plan file held, as JSON.
#[derive(Default)]
struct StoredPlan {
    /// Everything that was stored.
    all: Value,
    /// The fields that this version knows.
    known: Value,
}

impl StoredPlan {
    /// Returns plan and report, and what is stored of them. What cannot be read has its default, which is logged.
    fn from_fields(fields: Map<String, Value>) -> (Self, WizardPlan, Option<Box<TrainReport>>) {
        let section = |name: &str| fields.get(name).and_then(Value::as_object);
        let plan: WizardPlan = section("plan").map(from_readable).unwrap_or_default();
        let report: Option<Box<TrainReport>> = section("report").and_then(|report| {
            let report = serde_json::from_value(Value::Object(report.clone()));
            report.inspect_err(|error| tracing::warn!("the stored report of a training run is not used: {error}")).ok()
        });
        let known = serde_json::to_value(PlanFileRef { plan: &plan, report: report.as_deref() }).unwrap_or_default();
        (Self { all: Value::Object(fields), known }, plan, report)
    }

    /// The content of the file with a changed plan and report. What only another version knows stays.
    fn with_changes(&self, plan: &WizardPlan, report: Option<&TrainReport>) -> serde_json::Result<Vec<u8>> {
        let now = serde_json::to_value(PlanFileRef { plan, report })?;
        let mut merged = self.all.clone();
        if !(merged.is_object() && self.known.is_object()) {
            return serde_json::to_vec(&now);
        }
        copy_changes(&mut merged, &self.known, &now, DEPTH, &WHOLE);
        serde_json::to_vec(&merged)
    }
}

/// A plan file that this window has locked, and what it holds.
struct OwnedPlan {
    lock: File,
    path: PathBuf,
    stored: StoredPlan,
    plan: WizardPlan,
    report: Option<Box<TrainReport>>,
}

impl OwnedPlan {
    /// Locks and reads the plan file with this number; `None` if another window owns it or it cannot be locked, which is
    /// logged.
    fn open(folder: &Path, number: usize) -> Option<Self> {
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(numbered(LOCK, number)));
        let lock = lock.inspect_err(|error| tracing::warn!("the training plan cannot be saved: {error}")).ok()?;
        // It fails if another window holds the lock.
        lock.try_lock().ok()?;
        let path = folder.join(numbered(FILE, number));
        let fields: Option<Map<String, Value>> = read_json(&path, MAX_BYTES);
        let (stored, plan, report) = fields.map(StoredPlan::from_fields).unwrap_or_default();
        Some(Self { lock, path, stored, plan, report })
    }
}

/// The name of a file of the window with this number, from 1: `training.json`, `training-2.json` and so on.
fn numbered(name: &str, number: usize) -> String {
    match name.split_once('.') {
        Some((stem, extension)) if number > 1 => format!("{stem}-{number}.{extension}"),
        _ => name.to_owned(),
    }
}

/// Saves the plan. Each of several windows has its own file.
pub struct PlanStore {
    lock: File,
    /// The file as it was when this window opened it.
    stored: StoredPlan,
    writer: Option<(Sender<Vec<u8>>, JoinHandle<()>)>,
}

impl PlanStore {
    /// Opens a plan file of a folder that no other window owns: the first one with an unfinished run, or else the first
    /// one. Returns `None` if there is none, or the folder cannot be created.
    pub fn open(folder: &Path) -> Option<(Self, WizardPlan, Option<Box<TrainReport>>)> {
        let not_kept = |error: &std::io::Error| tracing::warn!("the training plan cannot be saved: {error}");
        std::fs::create_dir_all(folder).inspect_err(not_kept).ok()?;
        let mut owned: Option<OwnedPlan> = None;
        for number in 1..=MAX_WINDOWS {
            if owned.is_some() && !folder.join(numbered(FILE, number)).exists() {
                continue;
            }
            let Some(found) = OwnedPlan::open(folder, number) else { continue };
            let is_unfinished = found.plan.job.is_some();
            let unused = if owned.is_none() || is_unfinished { owned.replace(found) } else { Some(found) };
            if let Some(unused) = unused {
                // Unlocked explicitly: a child process being started may still hold the file for a moment.
                let _ = unused.lock.unlock();
            }
            if is_unfinished {
                break;
            }
        }
        let OwnedPlan { lock, path, stored, plan, report } = owned?;
        let (sender, receiver) = channel::<Vec<u8>>();
        let spawned = std::thread::Builder::new().name("training plan".to_owned()).spawn(move || {
            while let Ok(mut bytes) = receiver.recv() {
                // Only the newest version is written.
                while let Ok(newer) = receiver.try_recv() {
                    bytes = newer;
                }
                // On a full disk the training job reports the error, too.
                if let Err(error) = cytoscope_storage::write::atomic_write(&path, &bytes) {
                    tracing::warn!("the training plan cannot be saved: {error}");
                }
            }
        });
        let spawned = spawned.inspect_err(|error| tracing::warn!("the training plan cannot be saved: {error}"));
        Some((Self { lock, stored, writer: spawned.ok().map(|thread| (sender, thread)) }, plan, report))
    }

    /// Saves the plan in the background.
    pub fn save(&self, plan: &WizardPlan, report: Option<&TrainReport>) {
        match (self.stored.with_changes(plan, report), &self.writer) {
            (Ok(bytes), Some((sender, _))) => _ = sender.send(bytes),
            (Ok(_), None) => {}
            // JSON cannot hold paths that are not Unicode.
            (Err(error), _) => tracing::warn!("the training plan cannot be saved: {error}"),
        }
    }
}

impl Drop for PlanStore {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
        // Unlocked explicitly: a child process being started may still hold the file for a moment.
        let _ = self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;
    use crate::effect::Wake;
    use crate::training::Wizard;
    use cytoscope_train::TrainConfig;
    use std::sync::Arc;

    #[test]
    fn an_unfinished_run_of_a_second_window_is_restored_first() {
        let folder = tempfile::tempdir().unwrap();
        let open = || PlanStore::open(folder.path()).unwrap();
        let (first, plan, _) = open();
        let (second, ..) = open();
        first.save(&WizardPlan { minutes: 7.5, ..plan.clone() }, None);
        let wake: Wake = Arc::new(|| ());
        let mut wizard = Wizard::new(None, TrainConfig::default(), &wake);
        wizard.plan.data = Some("/data/pairs".into());
        let job = wizard.job("/out".into()).unwrap();
        second.save(&WizardPlan { job: Some(job.clone()), ..plan }, None);
        drop((first, second));
        let (third, plan, _) = open();
        assert_eq!(plan.job, Some(job));
        assert_eq!(open().1.minutes, 7.5, "a window beside it has the other plan");
        third.save(&WizardPlan::default(), None);
        drop(third);
        assert_eq!(open().1.minutes, 7.5);
    }

    #[test]
    fn a_plan_is_restored_and_belongs_to_one_window() {
        let folder = tempfile::tempdir().unwrap();
        let (store, plan, _) = PlanStore::open(folder.path()).unwrap();
        assert_eq!(plan, WizardPlan::default());
        let (other, ..) = PlanStore::open(folder.path()).unwrap();
        other.save(&WizardPlan { minutes: 3.0, ..WizardPlan::default() }, None);
        drop(other);
        let plan = WizardPlan { step: WizardStep::Start, minutes: 7.5, foreground_only: true, ..plan };
        let plan = WizardPlan { data: Some("/data/pairs".into()), ..plan };
        store.save(&WizardPlan::default(), None);
        store.save(&plan, None);
        drop(store);
        assert_eq!(PlanStore::open(folder.path()).unwrap().1, plan);
        std::fs::write(folder.path().join(FILE), "{ half").unwrap();
        assert_eq!(PlanStore::open(folder.path()).unwrap().1, WizardPlan::default());
        std::fs::write(folder.path().join(FILE), r#"{"plan": {"minutes": 5.0, "of later": 1}}"#).unwrap();
        assert_eq!(PlanStore::open(folder.path()).unwrap().1.minutes, 5.0);
    }

    #[test]
    fn what_only_a_later_version_knows_of_a_plan_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let wake: Wake = Arc::new(|| ());
        let mut wizard = Wizard::new(None, TrainConfig::default(), &wake);
        wizard.plan.data = Some("/data/pairs".into());
        let job = wizard.job("/out".into()).unwrap();
        let mut later = serde_json::to_value(&job).unwrap();
        later["warmup"] = serde_json::json!(3);
        let stored = serde_json::json!({
            "plan": {
                "minutes": 5.0, "batch": "many", "later": 1, "files": {"planes": [2]}, "search": {"later": {"a": 1}},
                "job": later
            },
            "report": {"later": 1}, "later": [1]
        });
        std::fs::write(&path, stored.to_string()).unwrap();
        let content = || serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).unwrap();
        let (store, plan, report) = PlanStore::open(folder.path()).unwrap();
        assert_eq!((plan.minutes, plan.batch, plan.job.as_ref(), report.is_none()), (5.0, None, Some(&job), true));
        store.save(&plan, None);
        drop(store);
        assert_eq!(content(), stored, "nothing was changed");
        let (store, mut plan, _) = PlanStore::open(folder.path()).unwrap();
        (plan.minutes, plan.batch, plan.search.trials, plan.files.same_file) = (7.5, Some(2), 3, true);
        plan.job = Some(TrainJob { seed: 1, ..job });
        store.save(&plan, None);
        drop(store);
        let (new, old) = (content(), &stored["plan"]);
        assert_eq!((&new["later"], &new["report"]), (&stored["later"], &stored["report"]));
        assert_eq!((&new["plan"]["later"], &new["plan"]["files"]["planes"]), (&old["later"], &old["files"]["planes"]));
        assert_eq!(new["plan"]["search"]["later"], old["search"]["later"]);
        assert!(new["plan"]["job"].get("warmup").is_none(), "it was true of another run");
        let (_, restored, _) = PlanStore::open(folder.path()).unwrap();
        assert_eq!(restored, plan);
    }

    #[test]
    fn models_are_named_after_their_data() {
        let name = |path: &str| WizardPlan { data: Some(path.into()), ..WizardPlan::default() }.suggested_name();
        assert_eq!(name("/data/embryo pairs"), "embryo pairs");
        assert_eq!(name("/data/corrections/train.csv"), "corrections");
        assert_eq!(name("/data/2024.05.01_embryo"), "2024.05.01_embryo");
        assert_eq!(name("/data/pairs-1.2/train.csv"), "pairs-1.2");
        assert_eq!(name("/data/細胞/"), "my-model");
        assert_eq!(clean_name(" ../a/b:c. "), "a-b-c");
    }
}
