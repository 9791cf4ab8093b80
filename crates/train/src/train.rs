//! The training loop: steps, validations, checkpoints, rollbacks and the end. The schedule of these is in `planning`, the
//! steps and rollbacks are in `steps`.

mod change_device;
mod earlier_run;
mod steps;

use crate::checkpoint::{RunFolder, TrainState, restore};
use crate::config::TrainConfig;
use crate::data::{self, Data, DataRequest};
use crate::error::data_error;
use crate::event::TrainSink;
use crate::job::{TrainJob, TrainReport};
use crate::network::StartModel;
use crate::origin::license;
use crate::package::Description;
use crate::previews::Previews;
use crate::scoring::{ScoredNetwork, ValidationOutcome};
use crate::setup::{check_same_run, files_of, fingerprint, keeps_layers, prepare};
use crate::step::{ModelState, Stepper, StepperOptions};
use crate::trained_images::{TrainedImages, join_lists};
use crate::validator::Validator;
use crate::workers::DataWorkers;
use cytoscope_engine::Engine;
use cytoscope_graph::{Graph, Tensor};
use cytoscope_model_package::check_destination;
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::job_record::PendingRecord;
use cytoscope_pipeline::{Context, JobError, ProgressStage, ProgressUnit, check_threads, find_model};
use cytoscope_profile::{FIRST_STEP_MARK, Stage, StageTotal};
use cytoscope_training_data::{Loader, LoaderOptions, Pair, Sampler};
use earlier_run::{has_settings, load_locked, resumed, unfinished};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use steps::{LossWindow, has_next_validation};

/// Maximum time between checkpoints in seconds.
const CHECKPOINT_SECS: u64 = 30;
/// State of a run and its tensors by name, as read from a checkpoint.
type Checkpoint = (TrainState, BTreeMap<String, Tensor>);

/// A training job, and what it runs with.
#[derive(Clone, Copy)]
pub(crate) struct TrainRequest<'a> {
    pub(crate) job: &'a TrainJob,
    pub(crate) context: &'a Context,
    pub(crate) devices: &'a Devices,
    /// Receives the events of the run.
    pub(crate) on_event: &'a TrainSink<'a>,
    /// When this process started the run.
    pub(crate) started: Instant,
}

/// All inputs and resources of a training run.
pub(crate) struct Training<'a> {
    pub(crate) job: &'a TrainJob,
    pub(crate) context: &'a Context,
    pub(crate) on_event: &'a TrainSink<'a>,
    pub(crate) devices: &'a Devices,
    pub(crate) engine: Box<dyn Engine>,
    /// Names of the devices that have failed in this run, in order.
    pub(crate) failed_devices: Vec<String>,
    /// When the device took over the run, and the totals by stage before: those of devices that have failed.
    pub(crate) on_device_since: (Instant, Vec<StageTotal>),
    /// Bytes of the activations of the step that was compiled last on the device; 0 if none was.
    pub(crate) activation_bytes: AtomicU64,
    /// Notes about devices that have failed, which are added to the history when training goes on.
    pub(crate) device_notes: Vec<String>,
    pub(crate) folder: RunFolder,
    pub(crate) start: StartModel,
    pub(crate) options: StepperOptions,
    pub(crate) config: TrainConfig,
    pub(crate) patch: [usize; 3],
    pub(crate) batch: usize,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) validator: Validator,
    pub(crate) previews: Previews,
    pub(crate) segment: SegmentOptions,
    pub(crate) voxel_um: Option<[f64; 3]>,
    /// Mean and standard deviation of each stain; empty for labels.
    pub(crate) intensities: Vec<(f64, f64)>,
    pub(crate) epoch_steps: u64,
    pub(crate) train_pairs: Vec<Pair>,
    /// Images that the start model was trained on, as recorded in packages.
    pub(crate) images_before: String,
    /// Images that a network trained in this run will record.
    pub(crate) images_after: String,
    /// Names of the validation pairs, with those that are left out because the start model was trained on them.
    pub(crate) validation: Vec<String>,
    pub(crate) fingerprint: String,
    pub(crate) started: Instant,
}

/// Runs a training job: checks it, locks its folder, and starts, resumes or refuses the run as the job says.
pub(crate) fn run(
    job: &TrainJob,
    context: &Context,
    devices: &Devices,
    on_event: &TrainSink<'_>,
    record: &mut PendingRecord<TrainJob>,
) -> Result<TrainReport, JobError> {
    let started = Instant::now();
    job.config.check()?;
    check_threads(job.threads)?;
    let folder = RunFolder::for_package(&job.out);
    // A missing start model is reported later, when it is opened.
    let from = job.from.model().and_then(|model| find_model(model).ok());
    let inputs: Vec<&Path> = from.iter().chain([&job.data]).map(PathBuf::as_path).collect();
    check_destination(&job.out, &inputs, job.overwrite)?;
    folder.check(&inputs)?;
    let earlier = match (job.resume, folder.has_checkpoint()) {
        (true, true) => Some(folder.load_state()?),
        (true, false) => {
            context.note("there is no checkpoint to resume: training starts from the beginning");
            None
        }
        (false, true) if !job.restart => return Err(unfinished(&folder)),
        (false, _) => None,
    };
    let config = match &earlier {
        None => job.config.clone(),
        Some(state) => resumed(&state.config, &job.config),
    };
    if let Some(state) = &earlier {
        check_same_run(state, job, &folder)?;
        if !has_settings(&config, &job.config) {
            context.note(
                "the settings of the checkpoint are used; changed settings are ignored, except for the budget, the precision \
                 and the license",
            );
        }
    }
    record.job_mut().config = config.clone();
    let validation_names = earlier.as_ref().map(|state| state.validation.as_slice()).filter(|names| !names.is_empty());
    let new = earlier.is_none().then_some(started);
    let known = TrainedImages::of_start(&job.from)?;
    let wanted =
        DataRequest { path: &job.data, task: job.task, config: &config, seed: job.seed, keep: validation_names };
    let data = data::load(context, wanted, known, new)?;
    let pairs = &data.dataset.pairs;
    let files: Vec<&Path> = pairs.iter().flat_map(files_of).collect();
    check_destination(&job.out, &files, job.overwrite)?;
    folder.check(&files)?;
    if job.data.is_file() {
        record.add_inputs(files);
    }
    let lock = folder.lock()?;
    let request = TrainRequest { job, context, devices, on_event, started };
    let config = if earlier.is_none() { data::with_thickness(&data.report, config) } else { config };
    let outcome = load_locked(job, &folder, earlier.as_ref(), &config)
        .and_then(|checkpoint| run_locked(request, record, &folder, config, &data, checkpoint));
    let is_over = outcome.is_ok() || !folder.has_checkpoint();
    // On Unix, the lock is held during this, so no other run begins in the folder. Other systems remove no locked files.
    if is_over && cfg!(unix) {
        folder.clean_up(context);
    }
    drop(lock);
    if is_over && cfg!(not(unix)) {
        folder.clean_up(context);
    }
    outcome
}

/// Runs a job whose folder is locked; `config` holds its settings, or the settings of the checkpoint that it resumes.
fn run_locked(
    request: TrainRequest<'_>,
    record: &mut PendingRecord<TrainJob>,
    folder: &RunFolder,
    config: TrainConfig,
    data: &Data,
    checkpoint: Option<Checkpoint>,
) -> Result<TrainReport, JobError> {
    let context = request.context;
    let fingerprint = fingerprint(data)?;
    let intensities = checkpoint.as_ref().map(|(state, _)| state.intensities.clone()).unwrap_or_default();
    context.recorder.mark_memory("data checked");
    let mut training = prepare(request, folder.clone(), config, data, fingerprint, intensities)?;
    record.set_tile_shape(&training.patch);
    context.recorder.mark_memory("prepared");
    let outcome = training.run_on_devices(checkpoint, record)?;
    context.recorder.mark_memory("trained");
    let report = training.finalize(outcome);
    context.recorder.mark_memory("end");
    report
}

/// Final state of the training loop.
pub(crate) struct LoopOutcome {
    pub(crate) state: TrainState,
    pub(crate) before: Option<ScoredNetwork>,
    pub(crate) parameters: usize,
    /// Traffic between the host and the device; `None` on the CPU.
    pub(crate) traffic: Option<cytoscope_profile::DeviceTraffic>,
}

/// The state to return to if a loss is not finite.
struct RollbackPoint {
    model: ModelState,
    step: u64,
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
struct LoopState {
    state: TrainState,
    stepper: Stepper,
    /// Traffic of the network with batch norms, before they were folded.
    traffic_before: Option<cytoscope_profile::DeviceTraffic>,
    /// The scored start model, if it can be compared.
    before: Option<ScoredNetwork>,
    loader: Loader,
    window: LossWindow,
    last_good: RollbackPoint,
    last_save: Instant,
    last_plan: Instant,
    last_status: Option<Instant>,
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
    /// Compiles the training step of a network; `batch_statistics` as in [`StepperOptions`].
    pub(crate) fn stepper(&self, graph: Graph, batch_statistics: bool) -> Result<Stepper, JobError> {
        let batch_statistics = batch_statistics && !keeps_layers(&self.config, &self.start);
        let options = StepperOptions { batch_statistics, ..self.options.clone() };
        let stepper = Stepper::new(graph, self.engine.as_ref(), &options)?;
        self.activation_bytes.store(stepper.arena_bytes(), Ordering::Relaxed);
        Ok(stepper)
    }

    /// Returns the data workers of this run.
    pub(crate) fn data_workers(&self) -> DataWorkers {
        DataWorkers::of(&self.config, self.engine.device().id, self.job.threads, self.batch)
    }

    /// Starts the data workers, which prepare the patches from number `start` of the run on.
    pub(crate) fn loader(&self, start: u64) -> Result<Loader, JobError> {
        let DataWorkers { workers, prefetch } = self.data_workers();
        let options = LoaderOptions { workers, prefetch, start };
        let (sampler, recorder) = (Arc::clone(&self.sampler), self.context.recorder.clone());
        let make = move |index| {
            let _span = recorder.span(Stage::Augment, "patch");
            sampler.sample(index)
        };
        Loader::with(make, options).map_err(data_error)
    }

    /// Returns the next batch: image, target, weight and, if the sampler has them, the weights of the channels after the
    /// first; each N, C, Z, Y, X (N, C, Y, X for 2-D networks).
    pub(crate) fn batch(&self, loader: &mut Loader) -> Result<Vec<Tensor>, JobError> {
        let waiting = self.context.recorder.span(Stage::DataWait, "batch");
        let batch = loader.next_batch(self.batch).map_err(data_error)?;
        waiting.finish();
        let spatial = &self.options.shape[2..];
        let shape = |channels: usize| {
            let mut shape = vec![batch.count, channels];
            shape.extend(spatial);
            shape
        };
        let mut target = batch.target;
        let voxels = (batch.weight.len() / batch.count.max(1)).max(1);
        for (stain, (mean, std)) in target.chunks_exact_mut(voxels).zip(self.intensities.iter().cycle()) {
            stain.iter_mut().for_each(|v| *v = ((f64::from(*v) - mean) / std) as f32);
        }
        let bad = |e: cytoscope_graph::GraphError| JobError::model("a batch", e);
        let mut tensors = vec![
            Tensor::new(shape(batch.image_channels), batch.image).map_err(bad)?,
            Tensor::new(shape(batch.channels), target).map_err(bad)?,
            Tensor::new(shape(1), batch.weight).map_err(bad)?,
        ];
        if !batch.further_weight.is_empty() {
            tensors.push(Tensor::new(shape(1), batch.further_weight).map_err(bad)?);
        }
        Ok(tensors)
    }

    /// Returns the metadata of a package of this run, without cover images and with a synthetic test input.
    pub(crate) fn describe(&self, record: serde_json::Value, card: String, name: String) -> Description<'_> {
        Description {
            start: &self.start,
            name,
            license: license(self.config.license.as_deref(), self.start.origin.as_ref()),
            voxel_um: self.voxel_um,
            segment: self.segment.clone(),
            intensities: self.intensities.clone(),
            record,
            card,
            covers: Vec::new(),
            test: None,
        }
    }

    /// Returns whether the run was asked to finish. The request is stored in the folder, so that a resumed run
    /// finishes, too.
    fn is_finishing(&self) -> bool {
        let requested = self.folder.is_finish_requested();
        if !requested && self.context.cancel.is_finishing() {
            if let Err(error) = self.folder.request_finish() {
                tracing::warn!(
                    "the request to finish could not be stored; if this run is interrupted, repeat it after resuming: {error}"
                );
            }
            return true;
        }
        requested
    }

    /// Returns the seconds that this training run has taken in all processes; `state` holds the seconds of earlier
    /// processes.
    pub(crate) fn seconds(&self, state: &TrainState) -> f64 {
        state.seconds + self.started.elapsed().as_secs_f64()
    }

    /// Starts or resumes a run and trains until its end. If the device fails, the last good state is saved.
    fn run_loop(&mut self, checkpoint: Option<Checkpoint>) -> Result<LoopOutcome, JobError> {
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

    /// Runs the training loop until the budget is used up or the run is finished or cancelled.
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
            if context.cancel.is_cancelled() {
                self.read_losses(run)?;
                self.save_cancelled(run)?;
                return Err(JobError::Cancelled);
            }
            if phase == Phase::Validate {
                if self.read_losses(run)? {
                    self.run_validation(run)?;
                }
                continue;
            }
            // Without a scored start model, there is no network to finish with before the first step.
            let has_network = run.state.step > 0 || run.state.start_score.is_some();
            if self.is_finishing() && has_network {
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
                self.stop_here(&mut run.state);
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
        // Some of them may not be in the current data.
        self.images_after = join_lists(&state.images, &self.images_after);
        state.images.clone_from(&self.images_after);
        if let Some(size) = state.validation_size {
            self.limit_validation(size)?;
        }
        self.apply_changes(&mut state, &stepper)?;
        Ok((state, stepper))
    }

    fn note_slow_operators(&self, stepper: &Stepper) {
        // Operators that only process the input are cheap on any device.
        let slow: Vec<String> =
            stepper.fallbacks().into_iter().filter(|op| !matches!(op.as_str(), "Mul" | "Softsign")).collect();
        if !slow.is_empty() {
            self.context.note(format!(
                "these operators have no optimized kernel on this device and are slow: {}",
                slow.join(", ")
            ));
        }
    }

    /// Saves a cancelled run, so that it can be resumed.
    fn save_cancelled(&self, run: &mut LoopState) -> Result<(), JobError> {
        run.stepper.zero_grad();
        run.state.since_point = (run.window.loss, run.window.steps);
        self.save_checkpoint(&mut run.state, &run.stepper)?;
        self.context.note(format!(
            "stopped after step {} of {}; resume to continue from the checkpoint in {}",
            run.state.step,
            run.state.steps,
            self.folder.path.display()
        ));
        Ok(())
    }

    /// Validates the network, plans again and saves a checkpoint. A validation that is cut short stays due.
    fn run_validation(&mut self, run: &mut LoopState) -> Result<(), JobError> {
        match self.validate(&mut run.state, &run.stepper, &mut run.before) {
            Ok(ValidationOutcome::Done) => {}
            Ok(ValidationOutcome::Cancelled | ValidationOutcome::TimedOut) => return Ok(()),
            Err(error) if has_next_validation(&error, run.state.step < run.state.steps, self.is_finishing()) => {
                // A full disk does not end training: there may be space again for the next validation.
                self.context.note(format!("validation failed ({error}); training continues"));
            }
            Err(error) => return Err(error),
        }
        run.state.validation_due = false;
        run.window = LossWindow::default();
        run.state.since_point = (0.0, 0);
        self.replan(&mut run.state);
        run.last_plan = Instant::now();
        run.last_good = run.rollback_point()?;
        let patience = self.config.budget.patience;
        if patience > 0 && run.state.validations_since_best >= patience {
            self.context.note(format!("early stopping: no better score in {patience} validations"));
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
        let _span = self.context.recorder.span(Stage::Checkpoint, "checkpoint");
        self.context.recorder.mark_memory("checkpoint");
        let now = self.seconds(state);
        let seconds = std::mem::replace(&mut state.seconds, now);
        let done = stepper.state().and_then(|model| self.folder.save(state, &stepper.names(), &model));
        state.seconds = seconds;
        match done {
            Err(error) if state.step < state.steps && !self.context.cancel.is_cancelled() => {
                // A full disk does not end training: the last checkpoint is still there.
                self.context.note(format!("the checkpoint could not be saved ({error}); training continues"));
                Ok(())
            }
            other => other,
        }
    }
}
