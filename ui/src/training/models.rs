//! Saving, exporting and using what was taught.

use super::{News, plan, sentence};
use crate::app::Workbench;
use crate::opener::Ask;
use crate::panels::Task as PanelTask;
use cytoscope_graph::package::Package;
use cytoscope_pipeline::{JobError, packages};
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
fn save_as(from: &Path, name: &str, to: &Path) -> Result<PathBuf, String> {
    let mut package = opened(from)?;
    package.name = name.to_owned();
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).map_err(|e| format!("{}: {e}", parent.display()))?;
    }
    packages::save(&package, to).map_err(|e| sentence(&e))?;
    Ok(to.to_owned())
}

/// Writes a package, or its network, to give it away.
fn export(from: &Path, name: &str, to: &Path, format: Format) -> Result<PathBuf, String> {
    match format {
        Format::Zip => save_as(from, name, to),
        Format::Onnx => {
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
        self.wizard.saving = Saving::Model;
        self.wizard.spawn(move || {
            if to.exists() {
                let sentence = format!("{} is there already: choose another name", to.display());
                return News::Saved(Err(sentence));
            }
            News::Saved(save_as(&from, &name, &to))
        });
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
        self.wizard.saving = Saving::Export;
        self.wizard.spawn(move || News::Exported(export(&from, &name, &to, format)));
    }

    /// Chooses the model that was saved, and goes where one predicts.
    pub(crate) fn use_model(&mut self) {
        let Some(name) = self.wizard.plan.saved.as_deref().map(super::file_name) else { return };
        self.settings.model = name;
        self.panels.predict.refined = None;
        self.panels.task = PanelTask::Predict;
    }
}
