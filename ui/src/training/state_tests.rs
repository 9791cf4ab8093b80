//! Tests of the jobs that the wizard requests, and of the order of their effects.

use super::*;
use crate::action::Action;
use crate::correct::Corrections;
use crate::documents::Documents;
use crate::effect::Effect;
use cytoscope_training_data::SpacingOrder;
use eframe::egui::Context;
use std::sync::Arc;

/// The states that the wizard and its jobs depend on, without an engine.
struct States {
    training: Training,
    jobs: Jobs,
    display: Display,
    documents: Documents,
    corrections: Corrections,
}

impl States {
    /// The wizard is shown, with data that does not exist.
    fn new() -> Self {
        let wake: Wake = Arc::new(|| {});
        let mut display = Display::new(&Context::default(), None, None);
        let _ = display.apply(DisplayAction::ShowTraining);
        let mut training = Training::new(None, TrainConfig::default(), &wake);
        training.wizard.plan.data = Some(PathBuf::from("/nothere/pairs"));
        Self {
            training,
            jobs: Jobs::new(None, None, None, &wake),
            display,
            documents: Documents::new(&wake, None),
            corrections: Corrections::new(&wake),
        }
    }

    fn apply(&mut self, action: TrainingAction) -> Vec<Effect> {
        self.training.apply(action, &self.jobs, &self.display).into_iter().collect()
    }

    fn poll(&mut self) -> Vec<Effect> {
        self.training.poll(&self.jobs, &self.display).into_iter().collect()
    }

    /// Carries out the effects on jobs.
    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::Act(Action::Jobs(action)) = effect {
                let _ = self.jobs.apply(action, &self.documents, &self.corrections, &self.display);
            }
        }
    }
}

/// What effects ask of a job.
#[derive(Debug, PartialEq)]
enum Asked {
    Run(JobId),
    Cancel(JobId),
}

fn asked(effects: &[Effect]) -> Vec<Asked> {
    let job_action = |effect: &Effect| match effect {
        Effect::Act(Action::Jobs(JobsAction::Run(new))) => Some(Asked::Run(new.id)),
        Effect::Act(Action::Jobs(JobsAction::Cancel(id))) => Some(Asked::Cancel(*id)),
        _ => None,
    };
    effects.iter().filter_map(job_action).collect()
}

/// The job of the running data check.
fn running_check(states: &States) -> JobId {
    match states.training.wizard.check {
        Check::Running(id) => id,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_check_is_not_taken_for_lost_before_it_is_queued() {
    let mut states = States::new();
    let effects = states.poll();
    let id = running_check(&states);
    assert_eq!(asked(&effects), [Asked::Run(id)]);
    assert!(asked(&states.poll()).is_empty(), "it is requested once");
    assert_eq!(running_check(&states), id);
    states.carry_out(effects);
    assert!(asked(&states.poll()).is_empty());
    assert!(matches!(&states.training.wizard.check, Check::Failed(reason) if reason == "the engine is not running"));
}

#[test]
fn a_check_of_other_data_cancels_the_earlier_one_first() {
    let mut states = States::new();
    let first = states.apply(TrainingAction::TrainOn(PathBuf::from("/nothere/a")));
    let first_check = running_check(&states);
    let second = states.apply(TrainingAction::TrainOn(PathBuf::from("/nothere/b")));
    let second_check = running_check(&states);
    assert_eq!(asked(&first), [Asked::Run(first_check)]);
    assert_eq!(asked(&second), [Asked::Cancel(first_check), Asked::Run(second_check)]);
}

#[test]
fn settings_of_the_layout_are_kept_for_the_same_data_only() {
    let mut states = States::new();
    let layout = DataConfig {
        spacing_order: Some(SpacingOrder::Xyz),
        split_column: Some("fold".to_owned()),
        same_file: true,
        ..DataConfig::default()
    };
    states.training.wizard.plan.files = DataConfig { time: Some(1), ..layout.clone() };
    let notes = |effects: &[Effect]| effects.iter().filter(|effect| matches!(effect, Effect::Notify { .. })).count();
    let same = states.apply(TrainingAction::TrainOn(PathBuf::from("/nothere/pairs")));
    let kept = DataConfig { time: Some(1), ..layout };
    assert_eq!((&states.training.wizard.plan.files, notes(&same)), (&kept, 0));
    let other = states.apply(TrainingAction::TrainOn(PathBuf::from("/nothere/other")));
    let reset = DataConfig { time: Some(1), ..DataConfig::default() };
    assert_eq!((&states.training.wizard.plan.files, notes(&other)), (&reset, 1));
}

#[test]
fn a_run_that_is_discarded_before_it_is_queued_is_canceled_after_it_was_queued() {
    let mut states = States::new();
    assert_eq!(states.training.prepared(), None);
    states.training.starting = true;
    states.training.wizard.plan.name = "nuclei".to_owned();
    assert_eq!(states.training.prepared().as_deref(), Some("nuclei · train"), "closing the window would lose it");
    let job = states.training.wizard.job(PathBuf::from("/nothere/out")).unwrap();
    let mut effects: Vec<Effect> = states.training.ready(Ok(Box::new(job)), &states.jobs).into_iter().collect();
    let RunState::Running(id) = states.training.wizard.run.state else { panic!() };
    assert_eq!(states.training.prepared(), None, "the next window offers to continue it");
    assert!(asked(&states.poll()).is_empty());
    assert_eq!(states.training.wizard.run.state, RunState::Running(id), "it is not taken for lost");
    effects.extend(states.apply(TrainingAction::Stop));
    assert_eq!(asked(&effects), [Asked::Run(id), Asked::Cancel(id)]);
    states.carry_out(effects);
    let removes = |effect: &Effect| matches!(effect, Effect::Disk(DiskEffect::DiscardTraining { .. }));
    assert_eq!(states.poll().iter().filter(|effect| removes(effect)).count(), 1);
    assert_eq!(states.training.wizard.run.state, RunState::Idle);
}

#[test]
fn another_model_is_trained_with_the_same_settings_on_other_data() {
    let mut states = States::new();
    states.apply(TrainingAction::WithoutInt8(true));
    states.apply(TrainingAction::ComparePrecision(true));
    states.apply(TrainingAction::Batch(Some(3)));
    states.apply(TrainingAction::Another);
    let WizardPlan { without_int8, compare_precision, batch, data, .. } = &states.training.wizard.plan;
    assert_eq!((*without_int8, *compare_precision, *batch, data), (true, true, Some(3), &None));
}
