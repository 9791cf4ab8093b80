//! Results of the wizard's worker threads.

use super::models::Saving;
use super::validation_picture::ValidationPicture;
use super::{Training, Wizard, file_name, validation_picture};
use crate::effect::Effects;
use crate::jobs::{Jobs, JobsAction};
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_train::{CheckpointSummary, TrainConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A result of a worker thread.
pub(crate) enum ThreadResult {
    /// Curves from the last checkpoint of a run; `None` if it has none.
    Checkpoint(Option<CheckpointSummary>),
    /// Output of the running training on a validation image.
    Picture(Option<ValidationPicture>),
    /// Example pictures of the trained model, and the path of its package.
    Examples(Vec<ValidationPicture>, PathBuf),
    /// A start model chosen as a file.
    Start(Box<ModelCard>),
    /// The settings of a file, or why they cannot be used; and its path.
    Settings(Result<Box<TrainConfig>, String>, PathBuf),
    /// Where the trained model was saved, or why it was not.
    Saved(Result<PathBuf, String>),
    /// Where a replaced model was saved, or why it was not; and its path in the training folder.
    RetiredModelSaved(Result<PathBuf, String>, PathBuf),
    /// Where a model was exported, or why it was not.
    Exported(Result<PathBuf, String>),
}

impl Wizard {
    /// Runs slow work on a thread; `None` if no thread can be started.
    pub(crate) fn spawn(&self, work: impl FnOnce() -> ThreadResult + Send + 'static) -> Option<JoinHandle<()>> {
        let (sender, wake) = (self.result_sender.clone(), Arc::clone(&self.wake));
        let spawned = std::thread::Builder::new().name("training".to_owned()).spawn(move || {
            // If the receiver is gone, the window has closed.
            let _ = sender.send(work());
            wake();
        });
        spawned.inspect_err(|error| tracing::warn!("work of the training wizard is skipped: {error}")).ok()
    }

    /// Reads curves and picture of the run to be continued.
    pub(super) fn load_checkpoint(&mut self) {
        if let Some(job) = self.plan.job.clone() {
            let run = job.clone();
            self.spawn(move || {
                let picture = run.preview_path();
                let read = |path: PathBuf| ValidationPicture::read(&path, None, String::new());
                ThreadResult::Picture(picture.and_then(read))
            });
            self.spawn(move || ThreadResult::Checkpoint(job.checkpoint_summary()));
        }
    }

    /// Reads the example pictures of the trained model.
    pub(super) fn load_examples(&mut self) {
        self.examples.clear();
        if let Some(out) = self.report.as_ref().map(|report| report.out.clone()) {
            self.spawn(move || ThreadResult::Examples(validation_picture::examples(&out), out));
        }
    }
}

impl Training {
    pub(super) fn handle_result(&mut self, result: ThreadResult, jobs: &Jobs, effects: &mut Effects) {
        match result {
            ThreadResult::Checkpoint(Some(summary)) => self.wizard.run.prepend(summary),
            ThreadResult::Checkpoint(None) => {}
            // A picture of a run that has ended is ignored.
            ThreadResult::Picture(Some(shown)) if self.wizard.plan.job.is_some() => self.wizard.run.set_picture(shown),
            ThreadResult::Picture(_) => {}
            ThreadResult::Examples(examples, out) => {
                if self.wizard.report.as_ref().is_some_and(|report| report.out == out) {
                    self.wizard.examples = examples;
                }
            }
            ThreadResult::Start(card) => self.handle_start_model(card, jobs, effects),
            ThreadResult::Settings(read, path) => self.settings_read(&path, read, effects),
            ThreadResult::Saved(Ok(path)) => {
                notify_saved(&path, effects);
                self.wizard.plan.saved = Some(path);
                self.wizard.saving = Saving::No;
            }
            ThreadResult::Saved(Err(reason)) => {
                self.wizard.saving = Saving::No;
                effects.error("The model was not saved", reason);
            }
            ThreadResult::RetiredModelSaved(Ok(path), _) => notify_saved(&path, effects),
            ThreadResult::RetiredModelSaved(Err(reason), training_path) => {
                let title = format!("{} was not saved", file_name(&training_path));
                let reason = reason.trim_end_matches('.');
                effects.error(title, format!("{reason}. The model is still in {}.", training_path.display()));
            }
            ThreadResult::Exported(Ok(path)) => {
                self.wizard.saving = Saving::No;
                effects.success(format!("Saved {}", file_name(&path)), path.display().to_string());
            }
            ThreadResult::Exported(Err(reason)) => {
                self.wizard.saving = Saving::No;
                effects.error("The model was not exported", reason);
            }
        }
    }
}

/// Shows a notification about a saved model and reloads the list of models.
fn notify_saved(path: &Path, effects: &mut Effects) {
    effects.success(format!("{} was added to your models", file_name(path)), path.display().to_string());
    effects.act(JobsAction::RequestLists);
}
