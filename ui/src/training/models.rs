//! Saving, exporting and using trained models.

use super::thread_results::ThreadResult;
use super::{Training, error_text, file_name, plan};
use crate::display::{Display, DisplayAction, PanelTask};
use crate::effect::Effects;
use crate::jobs::{Jobs, JobsAction};
use crate::opener::FileRequest;
use cytoscope_model_package::{PACKAGE_KIND, Package, check_destination};
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::job_record::remove_record;
use cytoscope_pipeline::{JobError, packages};
use cytoscope_storage::folder::{Replaced, remove_finished};
use cytoscope_storage::target::check_file;
use cytoscope_storage::{Overwrite, io_message};
use cytoscope_train::ChosenNetwork;
use std::path::{Path, PathBuf};

/// Whether the trained model is being saved, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Saving {
    /// Nothing is being saved.
    #[default]
    No,
    /// The model, to the user's own models.
    Model,
    /// The model, to a file that the user has chosen.
    Export,
}

/// A format that the trained model can be exported in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainedModelFormat {
    /// A bioimage.io package.
    Zip,
    /// The network alone, as an ONNX file.
    Onnx,
}

/// Why a model was not saved if the system cannot start a thread.
const NO_THREAD: &str = "No thread could be started: close other programs and try again";

fn open_package(path: &Path) -> Result<Package, String> {
    Package::open(path).map_err(|e| error_text(&JobError::model(path.display().to_string(), e)))
}

/// Copies a package to `to` under another name.
fn save_as(from: &Path, name: &str, to: &Path, overwrite: Overwrite) -> Result<PathBuf, String> {
    check_destination(to, &[from], overwrite).map_err(|e| e.to_string())?;
    let mut package = open_package(from)?;
    package.name = name.to_owned();
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).map_err(|e| io_message(parent, &e))?;
    }
    // The window never replaces a folder. A zip that a training run of the command line wrote is moved aside.
    let packages::Saved { replaced, left_out } = packages::save(&package, to, overwrite).map_err(|e| error_text(&e))?;
    left_out.iter().for_each(|part| tracing::warn!("left out of the package {}: {part}", to.display()));
    if let Replaced::MovedTo(aside) = replaced {
        tracing::warn!("the previous contents of {} were moved to {}", to.display(), aside.display());
    }
    Ok(to.to_owned())
}

/// Removes a package that has been copied, and its provenance record: the copy states how it was trained.
pub(super) fn remove(package: &Path) {
    // A package that was changed or cannot be removed only takes disk space.
    if let Err(error) = remove_finished(package, PACKAGE_KIND) {
        tracing::warn!("the copied package of a training run was not removed: {error}");
    } else if let Err(error) = remove_record(package) {
        tracing::warn!("the record of a training run was not removed: {error}");
    }
}

/// The name, with a number appended if it is taken; `None` after 999 attempts.
fn free_name(name: &str, is_taken: impl Fn(&str) -> bool) -> Option<String> {
    let numbered = |n: usize| if n == 1 { name.to_owned() } else { format!("{name} {n}") };
    (1..1000).map(numbered).find(|free| !is_taken(free))
}

/// Whether one of these models has the name or is at the path. A model that was saved under another one's alias could not be
/// chosen by its name.
fn is_taken(models: &[ModelCard], name: &str, path: &Path) -> bool {
    models
        .iter()
        .any(|model| model.name == name || model.aliases.iter().any(|alias| alias == name) || model.path == path)
}

/// Saves a replaced model under a free name in `models` and removes it from its training folder.
fn save_retired_model(from: &Path, name: &str, models: &Path, known: &[String]) -> Result<PathBuf, String> {
    let is_there = |name: &str| {
        let extensions = ["", ".zip", ".onnx", ".alias"];
        extensions.iter().any(|extension| models.join(format!("{name}{extension}")).exists())
    };
    let free = free_name(name, |name| known.iter().any(|k| k == name) || is_there(name));
    let free = free.ok_or_else(|| format!("Too many models are named {name}: choose another name"))?;
    let saved = save_as(from, &free, &models.join(&free), Overwrite::Refuse)?;
    remove(from);
    Ok(saved)
}

/// Exports a package or its network. The file dialog has already asked about replacing a file.
fn export(from: &Path, name: &str, to: &Path, format: TrainedModelFormat) -> Result<PathBuf, String> {
    match format {
        TrainedModelFormat::Zip => save_as(from, name, to, Overwrite::Replace),
        TrainedModelFormat::Onnx => {
            check_file(to, &[from], Overwrite::Replace).map_err(|e| e.to_string())?;
            let package = open_package(from)?;
            cytoscope_onnx::save(&package.graph, to)
                .map_err(|e| error_text(&JobError::model(to.display().to_string(), e)))?;
            Ok(to.to_owned())
        }
    }
}

impl Training {
    /// The folder that the model will be saved to, and whether the name is taken.
    pub(crate) fn model_destination(&self, jobs: &Jobs) -> (PathBuf, bool) {
        let name = plan::clean_name(&self.wizard.plan.name);
        let path = self.wizard.models_folder().join(&name);
        let exists = is_taken(jobs.models(), &name, &path);
        (path, exists)
    }

    /// Saves the model to the user's own models.
    pub(super) fn save_model(&mut self, jobs: &Jobs) {
        let Some(from) = self.wizard.report.as_ref().map(|r| r.out.clone()) else { return };
        let name = plan::clean_name(&self.wizard.plan.name);
        let (to, _) = self.model_destination(jobs);
        if name.is_empty() || self.wizard.saving != Saving::No {
            return;
        }
        let saving = self.wizard.spawn(move || {
            if to.exists() {
                let message = format!("{} already exists: choose another name", to.display());
                return ThreadResult::Saved(Err(message));
            }
            ThreadResult::Saved(save_as(&from, &name, &to, Overwrite::Refuse))
        });
        if saving.is_some() {
            self.wizard.saving = Saving::Model;
        }
    }

    /// Drops the trained model so that another can be trained. If it was not saved, it is saved first, as `called` or
    /// else under its training name.
    pub(super) fn retire_model(&mut self, called: Option<String>, jobs: &Jobs, effects: &mut Effects) {
        let Some(report) = self.wizard.report.take() else { return };
        self.cancel_full_precision(effects);
        let from = report.out.clone();
        let is_copied = self.wizard.plan.saved.take().is_some();
        let is_new = report.verdict == ChosenNetwork::Trained || report.only_segmentation_improved();
        if is_copied || !is_new {
            // It has been copied to the models, or it is the start model, which is there already.
            let spawned = std::thread::Builder::new().name("training".to_owned()).spawn(move || remove(&from));
            if let Err(error) = spawned {
                tracing::warn!("the copied package of a training run was not removed: {error}");
            }
            return;
        }
        let name = called.unwrap_or_else(|| file_name(&from));
        let models = self.wizard.models_folder();
        let known: Vec<String> =
            jobs.models().iter().flat_map(|m| std::iter::once(&m.name).chain(&m.aliases)).cloned().collect();
        let saving = self
            .wizard
            .spawn(move || ThreadResult::RetiredModelSaved(save_retired_model(&from, &name, &models, &known), from));
        match saving {
            Some(thread) => self.wizard.saving_threads.push(thread),
            None => {
                let failed = ThreadResult::RetiredModelSaved(Err(NO_THREAD.to_owned()), report.out);
                self.handle_result(failed, jobs, effects);
            }
        }
    }

    /// Asks for the file of an export.
    pub(super) fn ask_export(&self, format: TrainedModelFormat, display: &Display, effects: &mut Effects) {
        let name = plan::clean_name(&self.wizard.plan.name);
        let extension = if format == TrainedModelFormat::Zip { "zip" } else { "onnx" };
        self.ask(FileRequest::Model(format), format!("{name}.{extension}"), display, effects);
    }

    /// Writes the trained model to `to`, off the window's thread.
    pub(super) fn export_model(&mut self, format: TrainedModelFormat, to: PathBuf) {
        let Some(from) = self.wizard.report.as_ref().map(|r| r.out.clone()) else { return };
        let from = self.wizard.plan.saved.clone().unwrap_or(from);
        let name = plan::clean_name(&self.wizard.plan.name);
        if self.wizard.spawn(move || ThreadResult::Exported(export(&from, &name, &to, format))).is_some() {
            self.wizard.saving = Saving::Export;
        }
    }

    /// Selects the saved model and opens the Predict panel.
    pub(super) fn use_model(&self, effects: &mut Effects) {
        let Some(name) = self.wizard.plan.saved.as_deref().map(file_name) else { return };
        effects.act(DisplayAction::Model(name));
        effects.act(JobsAction::ForgetRefined);
        effects.act(DisplayAction::Task(PanelTask::Predict));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;
    use cytoscope_pipeline::cards::card;

    #[test]
    fn taken_names_get_a_number() {
        let free = |taken: &[&str]| free_name("embryos", |name| taken.contains(&name));
        assert_eq!(free(&[]).as_deref(), Some("embryos"));
        assert_eq!(free(&["embryos", "embryos 3"]).as_deref(), Some("embryos 2"));
        assert_eq!(free(&["embryos", "embryos 2"]).as_deref(), Some("embryos 3"));
        assert_eq!(free_name("embryos", |_| true), None);
    }

    #[test]
    fn the_names_aliases_and_paths_of_models_are_taken() {
        let path = Path::new("/no/such/models/nuclei");
        let known = ModelCard { aliases: vec!["best".to_owned()], ..card("nuclei", path) };
        let taken = |name: &str, path: &str| is_taken(std::slice::from_ref(&known), name, Path::new(path));
        assert!(taken("nuclei", "/models/nuclei") && taken("best", "/models/best"));
        assert!(taken("other", "/no/such/models/nuclei"));
        assert!(!taken("better", "/models/better"));
    }

    #[test]
    fn a_model_that_cannot_be_saved_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let trained = folder.path().join("trained");
        std::fs::create_dir(&trained).unwrap();
        assert!(
            save_retired_model(&trained, "embryos", &folder.path().join("models"), &[]).is_err(),
            "it is not a package"
        );
        assert!(trained.is_dir());
    }
}
