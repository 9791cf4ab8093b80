//! Saving, exporting and using what was taught.

use super::news::News;
use super::{file_name, plan, sentence};
use crate::app::Workbench;
use crate::opener::Ask;
use crate::panels::Task as PanelTask;
use cytoscope_graph::package::{PACKAGE_KIND, Package, check_destination};
use cytoscope_pipeline::{JobError, packages};
use cytoscope_storage::Overwrite;
use cytoscope_storage::folder::remove_finished;
use cytoscope_storage::target::check_file;
use cytoscope_train::Verdict;
use std::path::{Path, PathBuf};

/// What is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Saving {
    /// Nothing.
    #[default]
    No,
    /// The model, among the user's own.
    Model,
    /// A file to give away.
    Export,
}

/// How a model is given away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A bioimage.io package.
    Zip,
    /// The network alone.
    Onnx,
}

fn opened(path: &Path) -> Result<Package, String> {
    Package::open(path).map_err(|e| sentence(&JobError::model(path.display().to_string(), e)))
}

/// Writes a package under another name.
fn save_as(from: &Path, name: &str, to: &Path, overwrite: Overwrite) -> Result<PathBuf, String> {
    check_destination(to, &[from], overwrite).map_err(|e| e.to_string())?;
    let mut package = opened(from)?;
    package.name = name.to_owned();
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).map_err(|e| format!("{}: {e}", parent.display()))?;
    }
    packages::save(&package, to, overwrite).map_err(|e| sentence(&e))?;
    Ok(to.to_owned())
}

/// Removes a package that there is another copy of.
fn remove(package: &Path) {
    // One that stays, because it was changed or cannot be removed, only takes room.
    let _ = remove_finished(package, PACKAGE_KIND);
}

/// A name that no other model has, with a number where it is taken; `None` if very many are.
fn free_name(name: &str, is_taken: impl Fn(&str) -> bool) -> Option<String> {
    let numbered = |n: usize| if n == 1 { name.to_owned() } else { format!("{name} {n}") };
    (1..1000).map(numbered).find(|free| !is_taken(free))
}

/// Saves a model among others under a name that none of them has, and removes it where it was taught.
fn save_left(from: &Path, name: &str, models: &Path, known: &[String]) -> Result<PathBuf, String> {
    let is_there = |name: &str| {
        let endings = ["", ".zip", ".onnx", ".alias"];
        endings.iter().any(|ending| models.join(format!("{name}{ending}")).exists())
    };
    let free = free_name(name, |name| known.iter().any(|k| k == name) || is_there(name));
    let free = free.ok_or_else(|| format!("Very many models are called {name}"))?;
    let saved = save_as(from, &free, &models.join(&free), Overwrite::Refuse)?;
    remove(from);
    Ok(saved)
}

/// Writes a package, or its network, to give it away. The dialog that asked for the path has asked about replacing a file, too.
fn export(from: &Path, name: &str, to: &Path, format: Format) -> Result<PathBuf, String> {
    match format {
        Format::Zip => save_as(from, name, to, Overwrite::Replace),
        Format::Onnx => {
            check_file(to, &[from], Overwrite::Replace).map_err(|e| e.to_string())?;
            let package = opened(from)?;
            package.graph.save(to).map_err(|e| sentence(&JobError::model(to.display().to_string(), e)))?;
            Ok(to.to_owned())
        }
    }
}

impl Workbench {
    /// The folder that the model would be saved to, and whether another one is there already.
    pub(crate) fn place_of_model(&self) -> (PathBuf, bool) {
        let name = plan::clean_name(&self.wizard.plan.name);
        let path = self.wizard.models_folder().join(&name);
        let taken = self.work.models.iter().any(|m| m.name == name || m.path == path);
        (path, taken)
    }

    /// Saves the model among the user's own.
    pub(crate) fn save_model(&mut self) {
        let Some(from) = self.wizard.report.as_ref().map(|r| r.out.clone()) else { return };
        let name = plan::clean_name(&self.wizard.plan.name);
        let (to, _) = self.place_of_model();
        if name.is_empty() || self.wizard.saving != Saving::No {
            return;
        }
        let saving = self.wizard.spawn(move || {
            if to.exists() {
                let sentence = format!("{} is there already: choose another name", to.display());
                return News::Saved(Err(sentence));
            }
            News::Saved(save_as(&from, &name, &to, Overwrite::Refuse))
        });
        if saving.is_some() {
            self.wizard.saving = Saving::Model;
        }
    }

    /// Makes room for another model than the one that came out. Where that was not saved it is saved first, under the
    /// name it was taught by if it is not called anything.
    pub(super) fn leave_model(&mut self, called: Option<String>) {
        let Some(report) = self.wizard.report.take() else { return };
        let from = report.out.clone();
        if self.wizard.plan.saved.take().is_some() {
            // It lies among the models now.
            let _ = std::thread::Builder::new().name("training".to_owned()).spawn(move || remove(&from));
            return;
        }
        if report.verdict != Verdict::Taught && !report.only_objects_are_better() {
            return;
        }
        let name = called.unwrap_or_else(|| file_name(&from));
        let models = self.wizard.models_folder();
        let known: Vec<String> =
            self.work.models.iter().flat_map(|m| std::iter::once(&m.name).chain(&m.aliases)).cloned().collect();
        let saving = self.wizard.spawn(move || News::SavedLeft(save_left(&from, &name, &models, &known), from));
        match saving {
            Some(thread) => self.wizard.leaving.push(thread),
            None => self.take_news(News::SavedLeft(Err("Saving could not begin".to_owned()), report.out)),
        }
    }

    /// Asks where an export goes.
    pub(crate) fn ask_export(&mut self, format: Format) {
        let name = plan::clean_name(&self.wizard.plan.name);
        let ending = if format == Format::Zip { "zip" } else { "onnx" };
        self.ask_training(Ask::Model(format), format!("{name}.{ending}"));
    }

    /// Writes an export.
    pub fn export_model(&mut self, format: Format, to: PathBuf) {
        let Some(from) = self.wizard.report.as_ref().map(|r| r.out.clone()) else { return };
        let from = self.wizard.plan.saved.clone().unwrap_or(from);
        let name = plan::clean_name(&self.wizard.plan.name);
        if self.wizard.spawn(move || News::Exported(export(&from, &name, &to, format))).is_some() {
            self.wizard.saving = Saving::Export;
        }
    }

    /// Chooses the model that was saved, and goes where one predicts.
    pub(crate) fn use_model(&mut self) {
        let Some(name) = self.wizard.plan.saved.as_deref().map(file_name) else { return };
        self.settings.model = name;
        self.panels.predict.refined = None;
        self.panels.task = PanelTask::Predict;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;

    #[test]
    fn names_that_are_taken_get_a_number() {
        let free = |taken: &[&str]| free_name("embryos", |name| taken.contains(&name));
        assert_eq!(free(&[]).as_deref(), Some("embryos"));
        assert_eq!(free(&["embryos", "embryos 3"]).as_deref(), Some("embryos 2"));
        assert_eq!(free(&["embryos", "embryos 2"]).as_deref(), Some("embryos 3"));
        assert_eq!(free_name("embryos", |_| true), None);
    }

    #[test]
    fn a_model_that_cannot_be_saved_stays_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let taught = folder.path().join("taught");
        std::fs::create_dir(&taught).unwrap();
        assert!(save_left(&taught, "embryos", &folder.path().join("models"), &[]).is_err(), "it is no package");
        assert!(taught.is_dir());
    }
}
