//! What training may begin from.

use super::file_name;
use super::news::News;
use crate::app::Workbench;
use cytoscope_pipeline::Task as ModelTask;
use cytoscope_pipeline::cards::{ModelCard, card};
use cytoscope_samples::Task;
use std::path::PathBuf;

/// Why training for a task cannot begin from a model; `None` where it can.
pub(crate) fn misfit(model: &ModelCard, task: Task) -> Option<String> {
    // A bare network does not say what it is for, and may be for either.
    let is_bare = model.path.extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx"));
    let own_task = model.task.filter(|_| !is_bare);
    if let Some(problem) = &model.problem {
        return Some(problem.clone());
    }
    if let Some(other) = &model.taught_instead {
        return Some(format!("Its filters were made by hand: begin from {other} instead."));
    }
    if model.input_channels != 1 {
        return Some(format!("It takes {} channels: models of one channel can be taught.", model.input_channels));
    }
    match (task, own_task) {
        (Task::Segmentation, Some(ModelTask::LabelFree)) => {
            Some("It predicts a stain, and objects are to be segmented.".to_owned())
        }
        (Task::LabelFree, Some(ModelTask::Segmentation)) => {
            Some("It segments objects, and a stain is to be predicted.".to_owned())
        }
        _ => None,
    }
}

impl Workbench {
    /// A model file to begin from was chosen.
    pub fn start_from_file(&mut self, path: PathBuf) {
        self.wizard.spawn(move || News::Start(Box::new(card(file_name(&path), &path))));
    }

    /// Begins from a model that was chosen and read, if it can be begun from.
    pub(super) fn take_start(&mut self, card: Box<ModelCard>) {
        // As one of the list more is known of it.
        let listed = self.work.models.iter().find(|m| m.path == card.path);
        let is_listed = listed.is_some();
        if let Some(why) = misfit(listed.unwrap_or(&card), self.wizard.plan.task) {
            return self.notices.error(format!("{} cannot be begun from", card.name), why);
        }
        self.wizard.plan.from = card.path.display().to_string();
        if !is_listed {
            self.wizard.own_start = Some(card);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;
    use std::path::Path;

    #[test]
    fn models_fit_the_task_they_are_for() {
        // Nothing is there: the rest is filled in.
        let read = card("model", Path::new("/nothere/model.zip"));
        assert!(misfit(&read, Task::Segmentation).is_some(), "it cannot be read");
        let stain = ModelCard { problem: None, input_channels: 1, task: Some(ModelTask::LabelFree), ..read };
        assert_eq!(misfit(&stain, Task::LabelFree), None);
        assert!(misfit(&stain, Task::Segmentation).unwrap().contains("predicts a stain"));
        let objects = ModelCard { task: Some(ModelTask::Segmentation), ..stain };
        assert_eq!(misfit(&objects, Task::Segmentation), None);
        assert!(misfit(&objects, Task::LabelFree).unwrap().contains("segments objects"));
        let bare = ModelCard { path: PathBuf::from("/models/own.ONNX"), ..objects.clone() };
        assert_eq!([Task::Segmentation, Task::LabelFree].map(|t| misfit(&bare, t)), [None, None]);
        let colours = ModelCard { input_channels: 3, ..bare };
        assert!(misfit(&colours, Task::Segmentation).unwrap().contains("3 channels"));
        let by_hand = ModelCard { taught_instead: Some("other".to_owned()), ..objects };
        assert!(misfit(&by_hand, Task::Segmentation).unwrap().contains("begin from other"));
    }
}
