//! What threads of the wizard find out.

use super::models::Saving;
use super::shown::Shown;
use super::{Wizard, file_name, shown};
use crate::app::Workbench;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_train::Kept;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// What threads of the wizard have found out.
pub(crate) enum News {
    /// What a training had kept.
    Kept(Option<Kept>),
    /// What a training makes of an image kept back.
    Shown(Option<Shown>),
    /// Pictures of the model that came out, and where it is.
    Examples(Vec<Shown>, PathBuf),
    /// A model file that was chosen to begin from.
    Start(Box<ModelCard>),
    /// The model that came out was saved, or why not.
    Saved(Result<PathBuf, String>),
    /// A model that another one takes the place of was saved, or why not, and where it was taught.
    SavedLeft(Result<PathBuf, String>, PathBuf),
    /// A model was exported, or why not.
    Exported(Result<PathBuf, String>),
}

impl Wizard {
    /// Does something slow elsewhere; `None` if there is no thread for it.
    pub(crate) fn spawn(&self, work: impl FnOnce() -> News + Send + 'static) -> Option<JoinHandle<()>> {
        let (tell, wake) = (self.tell.clone(), Arc::clone(&self.wake));
        let spawned = std::thread::Builder::new().name("training".to_owned()).spawn(move || {
            let _ = tell.send(work());
            wake();
        });
        spawned.ok()
    }

    /// Reads the curves of a training that is to go on.
    pub(super) fn read_kept(&mut self) {
        if let Some(job) = self.plan.job.clone() {
            if let Some(picture) = job.shown() {
                self.spawn(move || News::Shown(Shown::read(&picture, None, String::new())));
            }
            self.spawn(move || News::Kept(job.kept()));
        }
    }

    /// Reads the pictures of the model that came out.
    pub(super) fn read_examples(&mut self) {
        self.examples.clear();
        if let Some(out) = self.report.as_ref().map(|report| report.out.clone()) {
            self.spawn(move || News::Examples(shown::examples(&out), out));
        }
    }
}

impl Workbench {
    pub(super) fn take_news(&mut self, news: News) {
        match news {
            News::Kept(Some(kept)) => self.wizard.run.join(kept),
            News::Kept(None) => {}
            // One of a training that has ended comes too late.
            News::Shown(Some(shown)) if self.wizard.plan.job.is_some() => self.wizard.run.show(shown),
            News::Shown(_) => {}
            News::Examples(examples, out) => {
                if self.wizard.report.as_ref().is_some_and(|report| report.out == out) {
                    self.wizard.examples = examples;
                }
            }
            News::Start(card) => self.take_start(card),
            News::Saved(Ok(path)) => {
                self.tell_saved(&path);
                self.wizard.plan.saved = Some(path);
                self.wizard.saving = Saving::No;
            }
            News::Saved(Err(reason)) => {
                self.wizard.saving = Saving::No;
                self.notices.error("The model was not saved", reason);
            }
            News::SavedLeft(Ok(path), _) => self.tell_saved(&path),
            News::SavedLeft(Err(reason), taught) => {
                let title = format!("{} was not saved", file_name(&taught));
                let reason = reason.trim_end_matches('.');
                self.notices.error(title, format!("{reason}. The model still lies in {}.", taught.display()));
            }
            News::Exported(Ok(path)) => {
                self.wizard.saving = Saving::No;
                self.notices.good(format!("Saved {}", file_name(&path)), path.display().to_string());
            }
            News::Exported(Err(reason)) => {
                self.wizard.saving = Saving::No;
                self.notices.error("The model was not exported", reason);
            }
        }
    }

    /// Tells of a model that was saved, and asks for the list that it is in now.
    fn tell_saved(&mut self, path: &Path) {
        self.notices.good(format!("{} is among your models", file_name(path)), path.display().to_string());
        self.work.ask();
    }
}
