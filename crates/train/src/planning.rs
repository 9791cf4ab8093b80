//! The plan of a training run: number of steps and time of the next validation, from measured times of steps and
//! validations.

use crate::budget::{Budget, Costs, OVERTIME_SHARE, Progress, ValidationSize};
use crate::checkpoint::TrainState;
use crate::error::wrong_use_with;
use crate::event::{TrainEvent, TrainingPlan};
use crate::history::History;
use crate::scoring::ScoredNetwork;
use crate::step::Stepper;
use crate::train::Training;
use crate::validator::SCORE_VERSION;
use cytoscope_graph::{ElementType, Graph};
use cytoscope_pipeline::{CancelToken, JobError, Note};
use cytoscope_profile::{bytes_text, count_text, rough_time_text};
use cytoscope_storage::{by_count, counted};
use std::time::{Duration, Instant};

/// Number of steps that are timed before the first plan.
pub(crate) const TRIAL_STEPS: usize = 3;
/// Points of the loss curve that the current step time is averaged over.
const RECENT_POINTS: usize = 20;
/// Fraction of the time budget between updates of the plan.
const PLAN_SHARE: f64 = 0.05;
/// Minimum relative change of the number of steps that is applied, and that is noted.
const CHANGES: [f64; 2] = [0.03, 0.1];
/// Validation time per voxel relative to step time per voxel; validation includes prediction and segmentation with a
/// few settings. Measured on nuclei with the default network.
const VALIDATION_TO_STEP: f64 = 1.5;

impl Training<'_> {
    /// Returns the budget of this run.
    pub(crate) fn budget(&self) -> Budget<'_> {
        Budget {
            config: &self.config.budget,
            epoch_steps: self.epoch_steps,
            validations: self.config.validation.times.max(1),
            int8: !self.job.without_int8,
        }
    }

    /// Returns the current costs of a step and of a validation.
    fn costs(&self, state: &TrainState) -> Costs {
        let recent = state.history.steps.iter().rev().take(RECENT_POINTS).map(|p| p.step_secs);
        let recent: Vec<f64> = recent.filter(|secs| secs.is_finite()).collect();
        let step_secs = match recent.len() {
            0 => state.first_step_secs,
            n => recent.iter().sum::<f64>() / n as f64,
        };
        let validation_secs = if self.validator.is_empty() { 0.0 } else { state.validation_secs };
        Costs { step_secs, validation_secs }
    }

    fn progress(&self, state: &TrainState) -> Progress {
        let later = state.history.validations.iter().filter(|v| v.step > 0);
        Progress {
            spent_secs: self.seconds(state),
            validating_secs: state.validating_secs,
            step: state.step,
            validations: later.clone().count(),
            last_validation: later.map(|v| v.step).max().unwrap_or(0),
        }
    }

    /// Starts a new run: times a few steps, scores the start model and makes the plan.
    pub(crate) fn start_run(&mut self, graph: Graph) -> Result<(TrainState, Stepper, Option<ScoredNetwork>), JobError> {
        let mut stepper = self.stepper(graph, true)?;
        let initial = stepper.state()?;
        let step = self.time_steps(&mut stepper)?;
        stepper.set_state(initial)?;
        let size = self.fit_validation(step)?;
        let mut state = TrainState { validation_size: size, ..self.new_state(step) };
        let mut before = None;
        if !self.validator.is_empty() {
            let network = if self.start.from_scratch { "untrained network" } else { "start model" };
            self.context.note(format!("scoring the {network}"));
            let scored = self.score_start(self.start.comparable)?;
            state.add_validation_time(&scored);
            let smaller = self.budget().shrink(self.validator.size(), scored.secs, scored.share);
            before = Some(scored).filter(|_| self.start.comparable);
            if let Some(size) = smaller {
                self.shrink_validation(&mut state, size, &mut before)?;
            }
        }
        let plan = self.budget().plan(self.costs(&state), self.progress(&state));
        state.steps = plan.steps;
        state.next_validation = plan.next_validation;
        self.note_plan(&state, &stepper);
        if let Some(scores) = before.as_ref().map(|b| b.tuned.clone()) {
            state.start_score = Some(scores.score);
            state.peak = Some(scores.score);
            self.write_candidate(&self.start.graph, &self.folder.start())?;
            state.best = Some((scores.score, 0));
            self.record_validation(&mut state, &scores, true);
            let comparison = scores.compared_with(&scores);
            if comparison.standard_error.is_none() {
                self.context.note(format!("the start model will probably be kept: {}", comparison.reason()));
            }
            self.write_preview(state.step, before.as_ref().and_then(|b| b.live.as_ref()));
        }
        Ok((state, stepper, before))
    }

    /// Returns the median duration in seconds of a few steps, including the preparation of patches. Fewer steps are timed if the
    /// time budget is used up before: it is too small whatever they take.
    fn time_steps(&self, stepper: &mut Stepper) -> Result<f64, JobError> {
        let mut loader = self.loader(0)?;
        let mut secs = Vec::new();
        for _ in 0..TRIAL_STEPS {
            self.context.check()?;
            let started = Instant::now();
            let batch = self.batch(&mut loader)?;
            for _ in 0..self.config.accumulate {
                // A long run reads its losses every few steps only. On a GPU, too, a step has ended when the calls return.
                stepper.forward_backward_later(batch.clone())?;
            }
            stepper.optimizer_step(1e-9, self.config.clip_norm, self.config.accumulate)?;
            secs.push(started.elapsed().as_secs_f64());
            let budget_secs = self.config.budget.minutes.map_or(f64::INFINITY, |minutes| 60.0 * minutes);
            if self.started.elapsed().as_secs_f64() >= budget_secs {
                break;
            }
        }
        secs.sort_by(f64::total_cmp);
        Ok(secs.get(secs.len() / 2).copied().unwrap_or(1.0))
    }

    /// Limits the voxels that are validated to what the time budget allows, estimated from the time of a step.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] if the time budget is too small for training.
    fn fit_validation(&mut self, step_secs: f64) -> Result<Option<ValidationSize>, JobError> {
        let patches = (self.batch * self.config.accumulate).max(1) as f64;
        let trained_voxels: f64 = patches * self.patch.iter().map(|n| *n as f64).product::<f64>();
        let magnification = self.validator.magnification(self.voxel_um);
        let voxel_secs = VALIDATION_TO_STEP * step_secs / trained_voxels.max(1.0) * magnification;
        let cases = self.validator.voxels();
        let validation = cases.iter().map(|v| *v as f64).sum::<f64>() * voxel_secs;
        let spent = self.started.elapsed().as_secs_f64();
        let costs = Costs { step_secs, validation_secs: validation };
        // See `Training::score_start`.
        let start_networks = 1 + usize::from(self.start.int8.is_some());
        let least = self.budget().minutes_needed(costs, spent, start_networks);
        if let (Some(minutes), Some(least)) = (self.config.budget.minutes, least) {
            return Err(budget_too_small(minutes, least, &times_spent(spent, step_secs)));
        }
        let size = self.budget().fit_validation_size(&cases, voxel_secs);
        if let Some(size) = size {
            let change = self.limit_validation(size)?;
            self.context.note(format!("{change}, to stay within the time budget"));
        }
        Ok(size)
    }

    /// Returns the current plan with its costs.
    fn summary(&self, state: &TrainState, stepper: &Stepper) -> TrainingPlan {
        let (costs, steps) = (self.costs(state), state.steps);
        let validations = self.budget().validations_planned(costs, self.progress(state));
        TrainingPlan {
            parameters: stepper.parameter_count(),
            step_secs: costs.step_secs,
            validation_secs: costs.validation_secs,
            steps,
            epochs: steps as f64 / self.epoch_steps.max(1) as f64,
            minutes: (steps as f64 * costs.step_secs + validations as f64 * costs.validation_secs) / 60.0,
            activation_bytes: stepper.arena_bytes(),
        }
    }

    fn note_plan(&self, state: &TrainState, stepper: &Stepper) {
        let context = self.context;
        let plan = self.summary(state, stepper);
        self.emit(&TrainEvent::Planned(plan));
        context.note(plan.text());
        if let (Some(mixed_precision), Some(half)) = (stepper.mixed_precision(), self.config.precision.half()) {
            context.note(format!(
                "mixed precision: {} {} in {half}; parameters, norms and the loss use {}",
                counted(mixed_precision.nodes, "operator"),
                by_count(mixed_precision.nodes, "computes", "compute"),
                ElementType::F32
            ));
        }
        if let Some(r) = stepper.recompute() {
            context.note(format!(
                "memory: {} instead of {} of activations are kept; {} {} computed twice, {:.0} % of a step's \
                 multiplications",
                bytes_text(r.bytes_after),
                bytes_text(r.bytes_before),
                counted(r.nodes, "operator"),
                by_count(r.nodes, "is", "are"),
                100.0 * r.recomputed_macs as f64 / r.macs.max(1) as f64
            ));
        }
    }

    fn new_state(&self, first_step_secs: f64) -> TrainState {
        TrainState {
            version: 0,
            job: self.job.clone(),
            config: self.config.clone(),
            data_fingerprint: self.fingerprint.clone(),
            step: 0,
            steps: 1,
            next_patch: 0,
            folded: false,
            rate_factor: 1.0,
            rollbacks: 0,
            seconds: 0.0,
            score_version: SCORE_VERSION,
            best: None,
            peak: None,
            start_score: None,
            start_weights: self.start.weights_fingerprint(),
            best_comparison: None,
            validations_since_best: 0,
            validation_due: false,
            ended: false,
            since_point: (0.0, 0),
            validation: self.validation.clone(),
            images: self.images_after.clone(),
            intensities: self.intensities.clone(),
            history: History::default(),
            optimizer_steps: 0,
            precision: Some(self.config.precision),
            loss_scale: 1.0,
            steady_steps: 0,
            validation_secs: 0.0,
            validating_secs: 0.0,
            first_step_secs,
            next_validation: 0,
            validation_size: None,
            tensors: String::new(),
            tensors_sha256: String::new(),
        }
    }

    /// Applies what has changed since the checkpoint: the budget and the training data.
    pub(crate) fn apply_changes(&self, state: &mut TrainState, stepper: &Stepper) -> Result<(), JobError> {
        if state.config.budget != self.config.budget {
            state.config = self.config.clone();
            state.ended = false;
            state.validations_since_best = 0;
            let plan = self.budget().plan(self.costs(state), self.progress(state));
            state.steps = plan.steps;
            state.next_validation = plan.next_validation;
            state.validation_due |= state.step == state.steps && !self.validator.is_empty() && !is_scored(state);
            let steps = if state.steps == 1 { "1 step is".to_owned() } else { format!("{} steps are", state.steps) };
            let message = format!("the training budget was changed: {steps} planned now");
            self.emit(&TrainEvent::Planned(self.summary(state, stepper)));
            self.context.note(message);
        }
        if state.data_fingerprint != self.fingerprint {
            self.context.note("the training data have changed since the checkpoint; the current data are used");
            state.history.notes.push(Note::info(format!("the training data changed at step {}", state.step)));
            state.data_fingerprint.clone_from(&self.fingerprint);
            state.validation.clone_from(&self.validation);
            // Scores on other images are not comparable with later ones.
            self.rescore(state, &mut None)?;
        } else if state.score_version != SCORE_VERSION {
            let message = "this version of the program compares networks by another score, so earlier scores in the \
                            history are not comparable with later ones";
            self.context.note(message);
            state.history.notes.push(message.into());
            self.rescore(state, &mut None)?;
        }
        state.score_version = SCORE_VERSION;
        Ok(())
    }

    /// Updates the plan with the times measured so far, to stay within the time budget.
    pub(crate) fn replan(&self, state: &mut TrainState) {
        if self.config.budget.minutes.is_none() || state.step >= state.steps {
            return;
        }
        let plan = self.budget().plan(self.costs(state), self.progress(state));
        let change = (plan.steps as f64 / state.steps.max(1) as f64 - 1.0).abs();
        if change > CHANGES[0] && plan.steps > state.step {
            if change > CHANGES[1] {
                let message = format!(
                    "at step {}, the plan was changed from {} to {} steps to stay within the time budget",
                    count_text(state.step),
                    count_text(state.steps),
                    count_text(plan.steps)
                );
                state.history.notes.push(message.into());
            }
            state.steps = plan.steps;
        }
        state.next_validation = plan.next_validation.min(state.steps);
    }

    /// Returns the seconds between updates of the plan.
    pub(crate) fn seconds_between_plans(&self) -> f64 {
        self.budget().total_secs().map_or(f64::INFINITY, |total| total * PLAN_SHARE)
    }

    /// Returns whether a validation follows the step that was just made.
    pub(crate) fn is_validation_due(&self, state: &TrainState) -> bool {
        if state.step >= state.steps {
            return true;
        }
        if self.config.budget.minutes.is_some() {
            return state.step >= state.next_validation;
        }
        let validations = self.config.validation.times.max(1) as u64;
        let passed = |step: u64| step * validations / state.steps.max(1);
        // A changed number of steps moves all validations: avoid one right after another.
        let last = state.history.validations.last().map_or(0, |v| v.step);
        let soon = (state.step - last.min(state.step)) * 2 * validations < state.steps;
        !soon && passed(state.step) > passed(state.step - 1)
    }

    /// Returns whether the time budget allows no further step. The first step is always made.
    pub(crate) fn is_over(&self, state: &TrainState) -> bool {
        state.step > 0 && self.budget().is_over(self.costs(state), self.progress(state))
    }

    /// Ends training at the current step.
    pub(crate) fn stop_here(&self, state: &mut TrainState) {
        if state.step < state.steps {
            let message = format!("ended at step {} of {} to stay within the time budget", state.step, state.steps);
            state.history.notes.push(message.into());
        }
        state.steps = state.step;
        state.validation_due = !self.validator.is_empty() && !is_scored(state);
    }

    /// Returns the end of the time budget; `None` if there is none.
    pub(crate) fn deadline(&self, state: &TrainState) -> Option<Instant> {
        let left = (self.budget().total_secs()? - state.seconds).max(0.0);
        self.started.checked_add(Duration::try_from_secs_f64(left).ok()?)
    }

    /// Returns a token that is canceled with the training run, or when quantization exceeds the time budget by too
    /// much.
    pub(crate) fn overtime_cancel(&self, state: &TrainState) -> CancelToken {
        let cancel = &self.context.cancel;
        let overtime = self.budget().total_secs().and_then(|t| Duration::try_from_secs_f64(t * OVERTIME_SHARE).ok());
        match self.deadline(state).zip(overtime).and_then(|(end, more)| end.checked_add(more)) {
            Some(at) => cancel.until(at),
            None => cancel.clone(),
        }
    }
}

/// Returns whether the current network has been validated.
fn is_scored(state: &TrainState) -> bool {
    state.history.validations.last().is_some_and(|v| v.step == state.step)
}

/// Returns what has taken the time before training, and what a step takes.
fn times_spent(spent_secs: f64, step_secs: f64) -> String {
    let [spent, step] = [spent_secs, step_secs].map(rough_time_text);
    format!("checking the data and timing a few steps took {spent}, and a step takes {step}")
}

/// Returns the error for a time budget of `minutes` if at least `least` are needed.
pub(crate) fn budget_too_small(minutes: f64, least: f64, why: &str) -> JobError {
    let least = (least * 10.0).round() / 10.0;
    let problem = format!("{minutes} min is too short to train on these data: {why}");
    wrong_use_with(problem, format!("give at least {least} min"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_budget_that_is_too_short_is_explained_with_rounded_times() {
        let text = budget_too_small(0.5, 1.04, &times_spent(32.809, 0.251_3)).to_string();
        assert!(text.contains("0.5 min is too short to train on these data: checking the data and timing"), "{text}");
        assert!(text.contains("took 33 s, and a step takes 251 ms") && text.contains("at least 1 min"), "{text}");
    }
}
