//! What is to be taught: the choices of the wizard, kept in a file so that nothing is lost with the window.

use cytoscope_samples::Task;
use cytoscope_train::{TrainJob, TrainReport};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// The file, beside the settings.
const FILE: &str = "training.json";
/// Locked by the window that keeps it.
const LOCK: &str = "training.lock";
/// Largest file that is read.
const MAX_BYTES: u64 = 16 << 20;

/// What training begins from where no model is taken.
pub const SCRATCH: &str = "scratch";
/// Minutes offered, with their names.
pub const MINUTES: [(&str, f64); 3] = [("Quick", 5.0), ("Standard", 20.0), ("Thorough", 60.0)];

/// The steps of the wizard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// What is to be learnt.
    #[default]
    Task,
    /// From what.
    Data,
    /// Beginning with which model, and for how long.
    Start,
    /// Learning.
    Learn,
    /// How well it went.
    Results,
    /// Saving the model and using it.
    Use,
}

impl Step {
    /// In order.
    pub const ALL: [Step; 6] = [Step::Task, Step::Data, Step::Start, Step::Learn, Step::Results, Step::Use];

    /// Its name.
    pub fn title(self) -> &'static str {
        match self {
            Step::Task => "Task",
            Step::Data => "Data",
            Step::Start => "Start and time",
            Step::Learn => "Training",
            Step::Results => "Results",
            Step::Use => "Use it",
        }
    }

    fn shifted(self, by: isize) -> Option<Step> {
        let at = Self::ALL.iter().position(|s| *s == self)?.checked_add_signed(by)?;
        Self::ALL.get(at).copied()
    }

    /// The one after it.
    pub fn next(self) -> Option<Step> {
        self.shifted(1)
    }

    /// The one before it.
    pub fn back(self) -> Option<Step> {
        self.shifted(-1)
    }
}

/// The choices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// Where one is.
    pub step: Step,
    /// What is to be learnt.
    pub task: Task,
    /// The folder or table.
    pub data: Option<PathBuf>,
    /// Whether only foreground is learnt, and not which objects it is of.
    pub foreground_only: bool,
    /// What to begin from: `scratch`, or a package.
    pub from: String,
    /// How long.
    pub minutes: f64,
    /// What the model will be called.
    pub name: String,
    /// A training that has begun and is not at its end.
    pub job: Option<TrainJob>,
    /// Where the model that came out was saved.
    pub saved: Option<PathBuf>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            step: Step::Task,
            task: Task::Segmentation,
            data: None,
            foreground_only: false,
            from: SCRATCH.to_owned(),
            minutes: MINUTES[1].1,
            name: String::new(),
            job: None,
            saved: None,
        }
    }
}

impl Plan {
    /// A name for the model out of where its data lie.
    pub fn suggested_name(&self) -> String {
        let stem = |p: &Path| p.file_stem().map(|s| s.to_string_lossy().into_owned());
        let data = self.data.as_deref();
        // A table is called after its folder.
        let folder = data.and_then(|p| if p.extension().is_some() { p.parent() } else { Some(p) });
        let name = folder.and_then(stem).unwrap_or_default();
        let name = clean_name(&name);
        if name.is_empty() { "my-model".to_owned() } else { name }
    }
}

/// A name as files and packages may have it.
pub fn clean_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_ +().".contains(c) { c } else { '-' };
    let name: String = text.trim().chars().map(plain).take(80).collect();
    name.trim_matches(['.', ' ', '-']).to_owned()
}

/// What the file holds.
#[derive(Serialize)]
struct Written<'a> {
    plan: &'a Plan,
    report: Option<&'a TrainReport>,
}

#[derive(Deserialize)]
struct Read {
    plan: Plan,
    report: Option<Box<TrainReport>>,
}

/// Keeps the plan in its file. Of several windows the first one does.
pub struct Keeper {
    lock: File,
    writer: Option<(Sender<Vec<u8>>, JoinHandle<()>)>,
}

impl Keeper {
    /// The keeper of a folder, and what it holds; `None` if another window keeps it, or there is no such folder to be had.
    pub fn open(folder: &Path) -> Option<(Self, Plan, Option<Box<TrainReport>>)> {
        std::fs::create_dir_all(folder).ok()?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(LOCK)).ok()?;
        lock.try_lock().ok()?;
        let path = folder.join(FILE);
        let read: Option<Read> = std::fs::metadata(&path)
            .ok()
            .filter(|m| m.len() <= MAX_BYTES)
            .and_then(|_| std::fs::read(&path).ok())
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let (plan, report) = read.map_or_else(Default::default, |r| (r.plan, r.report));
        let (sender, receiver) = channel::<Vec<u8>>();
        let spawned = std::thread::Builder::new().name("training plan".to_owned()).spawn(move || {
            while let Ok(mut bytes) = receiver.recv() {
                // Only the newest matters.
                while let Ok(newer) = receiver.try_recv() {
                    bytes = newer;
                }
                // On a full disk the training itself tells.
                let _ = cytoscope_storage::write::atomic_write(&path, &bytes);
            }
        });
        Some((Self { lock, writer: spawned.ok().map(|thread| (sender, thread)) }, plan, report))
    }

    /// Writes it down, soon.
    pub fn keep(&self, plan: &Plan, report: Option<&TrainReport>) {
        // A path that is no text cannot be kept.
        let Ok(bytes) = serde_json::to_vec(&Written { plan, report }) else { return };
        if let Some((sender, _)) = &self.writer {
            let _ = sender.send(bytes);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            let _ = thread.join();
        }
        // By name: a process being started elsewhere in this one may still have the file for a moment.
        let _ = self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;

    #[test]
    fn a_plan_comes_back_and_belongs_to_one_window() {
        let folder = tempfile::tempdir().unwrap();
        let (keeper, plan, _) = Keeper::open(folder.path()).unwrap();
        assert_eq!(plan, Plan::default());
        assert!(Keeper::open(folder.path()).is_none(), "another window keeps it");
        let plan = Plan { step: Step::Start, minutes: 7.5, foreground_only: true, ..plan };
        let plan = Plan { data: Some("/data/pairs".into()), ..plan };
        keeper.keep(&Plan::default(), None);
        keeper.keep(&plan, None);
        drop(keeper);
        assert_eq!(Keeper::open(folder.path()).unwrap().1, plan);
        std::fs::write(folder.path().join(FILE), "{ half").unwrap();
        assert_eq!(Keeper::open(folder.path()).unwrap().1, Plan::default());
        std::fs::write(folder.path().join(FILE), r#"{"plan": {"minutes": 5.0, "of later": 1}}"#).unwrap();
        assert_eq!(Keeper::open(folder.path()).unwrap().1.minutes, 5.0);
    }

    #[test]
    fn models_are_called_after_their_data() {
        let name = |path: &str| Plan { data: Some(path.into()), ..Plan::default() }.suggested_name();
        assert_eq!(name("/data/embryo pairs"), "embryo pairs");
        assert_eq!(name("/data/corrections/train.csv"), "corrections");
        assert_eq!(name("/data/細胞/"), "my-model");
        assert_eq!(clean_name(" ../a/b:c. "), "a-b-c");
    }
}
