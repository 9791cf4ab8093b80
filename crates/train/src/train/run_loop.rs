//! The training loop: steps, validations, checkpoints, and the fold of batch norms.

use super::steps::{LossWindow, has_next_validation};
use super::{Checkpoint, Training};
use crate::checkpoint::{TrainState, restore};
use crate::scoring::{ScoredNetwork, ValidationOutcome};
use crate::step::{ModelState, Stepper};
use crate::trained_images::join_lists;
use cytoscope_graph::{Graph, Tensor};
use cytoscope_pipeline::{JobError, Note, ProgressStage, ProgressUnit};
use cytoscope_profile::{FIRST_STEP_MARK, Stage};
use cytoscope_storage::counted;
use cytoscope_storage::message;
use cytoscope_storage::setting::RESUME;
use cytoscope_training_data::Loader;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum time between checkpoints in seconds.
const CHECKPOINT_SECS: u64 = 30;

/// Final state of the training loop.
pub(crate) struct LoopOutcome {
    pub(crate) state: TrainState,
    pub(crate) before: Option<ScoredNetwork>,
    pub(crate) parameters: usize,
    /// Traffic between the host and the device; `None` on the CPU.
    pub(crate) traffic: Option<cytoscope_profile::DeviceTraffic>,
}

/// The state to return to if a loss is not finite.
pub(super) struct RollbackPoint {
    pub(super) model: ModelState,
    pub(super) step: u64,
}

/// Next action of the training loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Makes a step.
    Step,
    /// Validates the network of the last step.
    Validate,
    /// Ends: all steps are made and validated, or the run ended early.
    Finish,
}

impl Phase {
    fn of(state: &TrainState) -> Self {
        if state.ended {
            Self::Finish
        } else if state.validation_due {
            Self::Validate
        } else if state.step < state.steps {
            Self::Step
        } else {
            Self::Finish
        }
    }
}

/// State that the training loop changes.
pub(super) struct LoopState {
    pub(super) state: TrainState,
    pub(super) stepper: Stepper,
    /// Traffic of the network with batch norms, before they were folded.
    pub(super) traffic_before: Option<cytoscope_profile::DeviceTraffic>,
    /// The scored start model, if it can be compared.
    pub(super) before: Option<ScoredNetwork>,
    pub(super) loader: Loader,
    pub(super) window: LossWindow,
    pub(super) last_good: RollbackPoint,
    pub(super) last_save: Instant,
    pub(super) last_plan: Instant,
    pub(super) last_status: Option<Instant>,
}

impl LoopState {
    /// Returns the current state as one to return to.
    fn rollback_point(&self) -> Result<RollbackPoint, JobError> {
        Ok(RollbackPoint { model: self.stepper.state()?, step: self.state.step })
    }

    /// Returns the traffic between the host and the device so far; `None` on the CPU.
    fn traffic(&self) -> Option<cytoscope_profile::DeviceTraffic> {
        let now = self.stepper.traffic()?;
        Some(self.traffic_before.map_or(now, |before| now.plus(before)))
    }
}

impl Training<'_> {
    /// Starts or resumes a run and trains until its end. If the device fails, the last good state is saved.
    pub(super) fn run_loop(&mut self, checkpoint: Option<Checkpoint>) -> Result<LoopOutcome, JobError> {
        let mut run = self.begin(checkpoint)?;
        run.state.history.notes.extend(self.device_notes.drain(..).map(cytoscope_pipeline::Note::from));
        let parameters = run.stepper.parameter_count();
        if let Err(error) = self.train(&mut run) {
            if self.has_device_failed(&error) {
                self.save_last_good(run);
            }
            return Err(error);
        }
        let traffic = run.traffic();
        let LoopState { state, before, .. } = run;
        Ok(LoopOutcome { state, before, parameters, traffic })
    }

    /// Runs the training loop until the budget is used up or the run is finished or canceled.
    fn train(&mut self, run: &mut LoopState) -> Result<(), JobError> {
        let context = self.context;
        let schedule = self.config.schedule.schedule(self.start.from_scratch);
        let mut meter = context.meter(ProgressStage::Train, run.state.steps, ProgressUnit::Steps);
        meter.skip_completed(run.state.step);
        self.replan(&mut run.state);
        loop {
            let phase = Phase::of(&run.state);
            if phase == Phase::Finish {
                break;
            }
            if context.cancel.is_canceled() {
                self.read_losses(run)?;
                self.save_canceled(run)?;
                return Err(JobError::Canceled);
            }
            if phase == Phase::Validate {
                if self.read_losses(run)? {
                    self.run_validation(run)?;
                }
                continue;
            }
            // Without a scored start model, there is no network to finish with before the first step.
            let has_network = |state: &TrainState| state.step > 0 || state.start_score.is_some();
            if self.is_finishing() && has_network(&run.state) {
                // Steps that were skipped may leave none.
                if !self.read_losses(run)? || !has_network(&run.state) {
                    continue;
                }
                if self.finish_on_request(&mut run.state) {
                    break;
                }
                continue;
            }
            if run.last_plan.elapsed().as_secs_f64() > self.seconds_between_plans() {
                self.replan(&mut run.state);
                run.last_plan = Instant::now();
            }
            if self.is_over(&run.state) {
                // Steps that were skipped may leave none.
                if self.read_losses(run)? && self.is_over(&run.state) {
                    self.stop_here(&mut run.state);
                }
                continue;
            }
            let progress = run.state.step as f64 / run.state.steps.max(1) as f64;
            if self.is_fold_due(run, progress) {
                if !self.read_losses(run)? {
                    continue;
                }
                self.fold_norms(run)?;
            }
            let rate = schedule.rate(progress);
            if !self.take_step(run, rate)? {
                continue;
            }
            // Cancellation is handled at the start of the loop, where the checkpoint is saved.
            let _ = meter.set_progress(run.state.step, run.state.steps);
            run.state.validation_due = !self.validator.is_empty() && self.is_validation_due(&run.state);
            let is_save_due = run.last_save.elapsed() > Duration::from_secs(CHECKPOINT_SECS);
            if !run.state.validation_due && is_save_due && !run.stepper.has_unread() {
                run.last_good = run.rollback_point()?;
                run.state.since_point = (run.window.loss, run.window.steps);
                self.save_checkpoint(&mut run.state, &run.stepper)?;
                run.last_save = Instant::now();
            }
        }
        self.read_losses(run)?;
        if self.validator.is_empty() {
            self.write_candidate(&run.stepper.network()?, &self.folder.best(run.state.step))?;
        }
        Ok(())
    }

    /// Starts a new run, or resumes the run of a checkpoint.
    fn begin(&mut self, checkpoint: Option<Checkpoint>) -> Result<LoopState, JobError> {
        let graph = self.start.graph.clone();
        let resumed = checkpoint.is_some();
        let (mut state, stepper, before) = match checkpoint {
            Some((state, tensors)) => {
                let (state, stepper) = self.resume(graph, state, &tensors)?;
                (state, stepper, None)
            }
            None => self.start_run(graph)?,
        };
        let before = match (before, resumed, self.start.comparable && !self.validator.is_empty()) {
            (None, true, true) => {
                let scored = self.score_start(true)?;
                state.validating_secs += scored.total_secs;
                Some(scored)
            }
            (before, ..) => before,
        };
        self.note_slow_operators(&stepper);
        let loader = self.loader(state.next_patch)?;
        let (loss, steps) = state.since_point;
        // Steps before this mark were made to time them.
        self.context.recorder.mark_memory(FIRST_STEP_MARK);
        let last_good = RollbackPoint { model: stepper.state()?, step: state.step };
        if !resumed {
            self.folder.check_space(&last_good.model)?;
        }
        Ok(LoopState {
            state,
            stepper,
            traffic_before: None,
            before,
            loader,
            window: LossWindow { loss, steps, ..LossWindow::default() },
            last_good,
            last_save: Instant::now(),
            last_plan: Instant::now(),
            last_status: None,
        })
    }

    /// Returns state and network of a checkpoint, with the changes that were made since it was saved.
    fn resume(
        &mut self,
        graph: Graph,
        mut state: TrainState,
        tensors: &BTreeMap<String, Tensor>,
    ) -> Result<(TrainState, Stepper), JobError> {
        let mut stepper = self.stepper(graph, true)?;
        if state.folded && stepper.has_norms() {
            stepper = self.stepper(stepper.folded()?, false)?;
        }
        let names = stepper.names();
        let mut model = stepper.state()?;
        restore(&mut model, &names, &state, self.config.precision, tensors, &self.folder.path)?;
        stepper.set_state(model)?;
        state.precision = Some(self.config.precision);
        state.config.precision = self.config.precision;
        self.context.note(format!("resuming after step {} of {}", state.step, state.steps));
        state.job.out.clone_from(&self.job.out);
        self.note_changed_start(&mut state);
        // Some of them may not be in the current data.
        self.images_after = join_lists(&state.images, &self.images_after);
        state.images.clone_from(&self.images_after);
        if let Some(size) = state.validation_size {
            self.limit_validation(size)?;
        }
        self.apply_changes(&mut state, &stepper)?;
        Ok((state, stepper))
    }

    /// Warns that the start model of a resumed run is not the one that training began with, for example because a package was
    /// replaced.
    fn note_changed_start(&self, state: &mut TrainState) {
        let now = self.start.weights_fingerprint();
        let before = std::mem::replace(&mut state.start_weights, now);
        if !before.is_empty() && before != state.start_weights {
            let note = Note::warning(format!(
                "the start model {} has changed since the training run was started: the network is trained from the earlier \
                 one, but compared with the present one",
                self.job.from
            ));
            self.context.note(note.clone());
            state.history.notes.push(note);
        }
    }

    fn note_slow_operators(&self, stepper: &Stepper) {
        let slow = stepper.slow_fallbacks();
        if !slow.is_empty() {
            self.context.note(format!(
                "these operators have no optimized kernel on this device and are slow: {}",
                slow.join(", ")
            ));
        }
    }

    /// Saves a canceled run, so that it can be resumed.
    fn save_canceled(&self, run: &mut LoopState) -> Result<(), JobError> {
        run.stepper.zero_grad();
        run.state.since_point = (run.window.loss, run.window.steps);
        self.save_checkpoint(&mut run.state, &run.stepper)?;
        self.context.note(message!(
            "stopped after step {} of {}; continue with {RESUME} from the checkpoint in {}",
            run.state.step,
            run.state.steps,
            self.folder.path.display()
        ));
        Ok(())
    }

    /// Saves a run whose validation has failed with `error`, so that its steps need not be repeated: when it is resumed, the
    /// validation is still due. Nothing is read from a device that has failed.
    fn keep_unvalidated(&self, run: &mut LoopState, error: &JobError) {
        if self.has_device_failed(error) {
            return;
        }
        run.state.since_point = (run.window.loss, run.window.steps);
        if let Err(error) = self.write_checkpoint(&mut run.state, &run.stepper) {
            self.context.note(message!("the checkpoint could not be saved ({})", error.message()));
        }
    }

    /// Validates the network, plans again and saves a checkpoint. A validation that is cut short stays due.
    fn run_validation(&mut self, run: &mut LoopState) -> Result<(), JobError> {
        match self.validate(&mut run.state, &run.stepper, &mut run.before) {
            Ok(ValidationOutcome::Done) => {}
            Ok(ValidationOutcome::Canceled | ValidationOutcome::TimedOut) => return Ok(()),
            Err(error) if has_next_validation(&error, run.state.step < run.state.steps, self.is_finishing()) => {
                // A full disk does not end training: there may be space again for the next validation.
                self.context.note(message!("validation failed ({}); training continues", error.message()));
            }
            Err(error) => {
                self.keep_unvalidated(run, &error);
                return Err(error);
            }
        }
        run.state.validation_due = false;
        run.window = LossWindow::default();
        run.state.since_point = (0.0, 0);
        self.replan(&mut run.state);
        run.last_plan = Instant::now();
        run.last_good = run.rollback_point()?;
        let patience = self.config.budget.patience;
        if patience > 0 && run.state.validations_since_best >= patience {
            let validations = counted(patience, "validation");
            self.context.note(format!("early stopping: no better score in {validations}"));
            run.state.history.notes.push(format!("ended early at step {}", run.state.step).into());
            run.state.ended = true;
        }
        self.save_checkpoint(&mut run.state, &run.stepper)?;
        run.last_save = Instant::now();
        Ok(())
    }

    /// Ends the run on request. Returns false if the network has changed since the last validation, so that it is
    /// validated first.
    fn finish_on_request(&self, state: &mut TrainState) -> bool {
        let scored = state.history.validations.last().is_some_and(|v| v.step == state.step);
        if !scored && !self.validator.is_empty() {
            state.validation_due = true;
            return false;
        }
        let message = format!("finished early on request, at step {} of {}", state.step, state.steps);
        self.context.note(message.clone());
        state.history.notes.push(message.into());
        true
    }

    /// Returns whether the batch norms are to be folded into the convolutions now, after `progress` of all steps (0 to 1).
    fn is_fold_due(&self, run: &LoopState, progress: f64) -> bool {
        let share = self.config.norm_share;
        share < 1.0 && progress >= share && !run.state.folded && run.stepper.has_norms()
    }

    /// Folds the batch norms into the convolutions, and continues with that network.
    fn fold_norms(&self, run: &mut LoopState) -> Result<(), JobError> {
        let stepper = self.stepper(run.stepper.folded()?, false)?;
        // Without this, the state to return to if the device fails would still be the network with norms.
        run.last_good = RollbackPoint { model: stepper.state()?, step: run.state.step };
        run.traffic_before = run.traffic();
        run.stepper = stepper;
        run.state.folded = true;
        let note = format!("batch norms were folded into the convolutions at step {}", run.state.step);
        run.state.history.notes.push(note.into());
        Ok(())
    }

    fn save_checkpoint(&self, state: &mut TrainState, stepper: &Stepper) -> Result<(), JobError> {
        let Err(error) = self.write_checkpoint(state, stepper) else { return Ok(()) };
        let is_last = state.step >= state.steps;
        // A device that has failed after the last step cannot score the network.
        if self.context.cancel.is_canceled() || (is_last && self.has_device_failed(&error)) {
            return Err(error);
        }
        // A full disk does not end training: the last checkpoint is still there, and the package may fit.
        let next = if is_last { "the package is written without it" } else { "training continues" };
        self.context.note(message!("the checkpoint could not be saved ({}); {next}", error.message()));
        Ok(())
    }

    /// Writes a checkpoint. If that fails, the last one is still there.
    fn write_checkpoint(&self, state: &mut TrainState, stepper: &Stepper) -> Result<(), JobError> {
        let _span = self.context.recorder.span(Stage::Checkpoint, "checkpoint");
        self.context.recorder.mark_memory("checkpoint");
        let now = self.seconds(state);
        let seconds = std::mem::replace(&mut state.seconds, now);
        let done = stepper.state().and_then(|model| self.folder.save(state, &stepper.names(), &model));
        state.seconds = seconds;
        done
    }
}
