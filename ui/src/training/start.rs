//! Choice of the start model.

use super::run::RunState;
use super::thread_results::ThreadResult;
use super::{Check, Training, file_name};
use crate::display::Display;
use crate::effect::Effects;
use crate::jobs::Jobs;
use crate::number_text::counted;
use cytoscope_model_package::package_folder;
use cytoscope_pipeline::ModelTask;
use cytoscope_pipeline::cards::{ModelCard, card};
use cytoscope_pipeline::packages::is_checkpoint;
use cytoscope_storage::by_count;
use cytoscope_train::TrainStart;
use cytoscope_training_data::TrainingTask;
use std::path::PathBuf;

/// Number of usable pairs from which a new network is suggested.
const NEW_NETWORK_PAIRS: usize = 20;

/// Why a model cannot be the start model for a task on data with this number of input channels; `None` if it can.
pub(crate) fn incompatibility(model: &ModelCard, task: TrainingTask, channels: usize) -> Option<String> {
    // A bare ONNX network does not state its task and may be for either.
    let is_bare = model.path.extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx"));
    let own_task = model.task.filter(|_| !is_bare);
    if let Some(problem) = &model.problem {
        return Some(problem.clone());
    }
    if let Some(other) = &model.start_model {
        return Some(format!("Its filters were designed by hand: start from {other} instead."));
    }
    if model.input_channels != channels {
        let are = by_count(channels, "is", "are");
        return Some(format!(
            "It takes {}, but {channels} {are} chosen on the Data page, under Input channels.",
            counted(model.input_channels as u64, "channel")
        ));
    }
    match (task, own_task) {
        (TrainingTask::Segmentation, Some(ModelTask::LabelFree)) => {
            Some("It predicts a stain, but the task is to segment objects.".to_owned())
        }
        (TrainingTask::LabelFree, Some(ModelTask::Segmentation)) => {
            Some("It segments objects, but the task is to predict a stain.".to_owned())
        }
        _ => None,
    }
}

/// The suggested start for a number of usable pairs: the first of the models that fits if there are few pairs, or else a new
/// network.
fn suggested_start<'a>(
    pairs: usize,
    models: impl IntoIterator<Item = &'a ModelCard>,
    task: TrainingTask,
    channels: usize,
) -> TrainStart {
    let fits = |m: &&ModelCard| incompatibility(m, task, channels).is_none();
    let fitting = if pairs < NEW_NETWORK_PAIRS { models.into_iter().find(fits) } else { None };
    fitting.map_or(TrainStart::Scratch, |model| TrainStart::Model(model.path.display().to_string()))
}

impl Training {
    /// Suggests a start for the checked data until the user chooses one: with few pairs, the selected model or else another
    /// installed one, if it fits.
    pub(super) fn suggest_start(&mut self, jobs: &Jobs, display: &Display) {
        let is_open = self.wizard.plan.job.is_none() && self.wizard.run.state == RunState::Idle && !self.starting;
        let Check::Done(report) = &self.wizard.check else { return };
        if self.wizard.plan.start_chosen || !is_open || !self.wizard.is_usable() {
            return;
        }
        let pairs = report.report.pairs.iter().filter(|pair| pair.usable).count();
        let models = jobs.model(display.settings()).into_iter().chain(jobs.models());
        let plan = &mut self.wizard.plan;
        plan.from = suggested_start(pairs, models, plan.task, plan.input_channels());
    }

    /// Reads a model file chosen as the start model; the description of a package stands for its folder.
    pub(super) fn read_start_model(&mut self, path: PathBuf) {
        let path = package_folder(&path).to_owned();
        self.wizard.spawn(move || {
            let mut read = card(file_name(&path), &path);
            if is_checkpoint(&path) {
                let problem = "It is a PyTorch checkpoint: under Predict > Models…, add it to your models first.";
                read.problem = Some(problem.to_owned());
            }
            ThreadResult::Start(Box::new(read))
        });
    }

    /// Sets a model that was read as the start model, if it fits the task.
    pub(super) fn handle_start_model(&mut self, card: Box<ModelCard>, jobs: &Jobs, effects: &mut Effects) {
        // The list of installed models knows more about it.
        let listed = jobs.models().iter().find(|m| m.path == card.path);
        if let Some(why) =
            incompatibility(listed.unwrap_or(&card), self.wizard.plan.task, self.wizard.plan.input_channels())
        {
            return effects.error(format!("{} cannot be the start model", card.name), why);
        }
        self.wizard.plan.from = TrainStart::Model(card.path.display().to_string());
        self.wizard.plan.start_chosen = true;
        if listed.is_none() {
            self.wizard.start_file = Some(card);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;
    use std::path::Path;

    /// As the function of this name, for images of one channel.
    fn incompatibility(model: &ModelCard, task: TrainingTask) -> Option<String> {
        super::incompatibility(model, task, 1)
    }

    #[test]
    fn models_fit_only_their_task() {
        // There is no such file; the other fields are filled in below.
        let read = card("model", Path::new("/nothere/model.zip"));
        assert!(incompatibility(&read, TrainingTask::Segmentation).is_some(), "it cannot be read");
        let stain = ModelCard { problem: None, input_channels: 1, task: Some(ModelTask::LabelFree), ..read };
        assert_eq!(incompatibility(&stain, TrainingTask::LabelFree), None);
        assert!(incompatibility(&stain, TrainingTask::Segmentation).unwrap().contains("predicts a stain"));
        let objects = ModelCard { task: Some(ModelTask::Segmentation), ..stain };
        assert_eq!(incompatibility(&objects, TrainingTask::Segmentation), None);
        assert!(incompatibility(&objects, TrainingTask::LabelFree).unwrap().contains("segments objects"));
        let bare = ModelCard { path: PathBuf::from("/models/own.ONNX"), ..objects.clone() };
        assert_eq!(
            [TrainingTask::Segmentation, TrainingTask::LabelFree].map(|t| incompatibility(&bare, t)),
            [None, None]
        );
        let colors = ModelCard { input_channels: 3, ..bare };
        assert!(super::incompatibility(&colors, TrainingTask::Segmentation, 1).unwrap().contains("3 channels"));
        assert_eq!(super::incompatibility(&colors, TrainingTask::Segmentation, 3), None);
        let by_hand = ModelCard { start_model: Some("other".to_owned()), ..objects };
        assert!(incompatibility(&by_hand, TrainingTask::Segmentation).unwrap().contains("start from other"));
    }

    #[test]
    fn few_pairs_suggest_a_model_that_fits() {
        let read = card("model", Path::new("/nothere/model.zip"));
        let stain = ModelCard { problem: None, input_channels: 1, task: Some(ModelTask::LabelFree), ..read };
        let objects =
            ModelCard { task: Some(ModelTask::Segmentation), path: "/models/objects".into(), ..stain.clone() };
        let models = [stain, objects];
        let suggested = |pairs, channels| suggested_start(pairs, &models, TrainingTask::Segmentation, channels);
        assert_eq!(suggested(19, 1), TrainStart::Model("/models/objects".to_owned()));
        assert_eq!(suggested(20, 1), TrainStart::Scratch);
        assert_eq!(suggested(3, 2), TrainStart::Scratch, "no model has two channels");
    }
}
