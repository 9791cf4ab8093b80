//! A training job: its checks, its folder, and what a run needs. The training loop is in `run_loop`, its steps and rollbacks
//! are in `steps`, and the schedule of validations is in `planning`.

mod change_device;
mod earlier_run;
mod run_loop;
mod steps;

pub(crate) use run_loop::LoopOutcome;

use crate::checkpoint::{CheckpointSummary, RunFolder, TrainState};
use crate::config::TrainConfig;
use crate::data::{self, Data, DataRequest};
use crate::error::data_error;
use crate::event::TrainSink;
use crate::job::{TrainJob, TrainReport};
use crate::network::StartModel;
use crate::origin::license;
use crate::package::Description;
use crate::previews::Previews;
use crate::setup::{check_precision, check_same_run, fingerprint, keeps_layers, pair_files, prepare};
use crate::stained_channel::with_stained_channel;
use crate::step::{Stepper, StepperOptions};
use crate::trained_images::TrainedImages;
use crate::validator::Validator;
use crate::workers::DataWorkers;
use cytoscope_engine::Engine;
use cytoscope_graph::{Graph, Tensor};
use cytoscope_model_package::check_destination;
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::job_record::PendingRecord;
use cytoscope_pipeline::{Context, JobError, JobErrorKind, Note, check_threads, find_model};
use cytoscope_profile::{Stage, StageTotal};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::RESUME;
use cytoscope_training_data::{Loader, LoaderOptions, Pair, Sampler};
use earlier_run::{has_settings, load_locked, resumed, unfinished};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

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
    pub(crate) device_notes: Vec<Message>,
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
    job.config.loss.map_or(Ok(()), |loss| loss.check_task(job.task))?;
    check_threads(job.threads)?;
    let folder = RunFolder::for_package(&job.out);
    // A missing start model is reported later, when it is opened.
    let from = job.from.model().and_then(|model| find_model(model).ok());
    let inputs: Vec<&Path> = from.iter().chain([&job.data]).map(PathBuf::as_path).collect();
    check_destination(&job.out, &inputs, job.overwrite)?;
    folder.check(&inputs)?;
    folder.refuse_in_use()?;
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
        None => start_config(job, context),
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
    check_precision(config.precision, job.device, devices)?;
    record.job_mut().config = config.clone();
    let validation_names = earlier.as_ref().map(|state| state.validation.as_slice()).filter(|names| !names.is_empty());
    let new = earlier.is_none().then_some(started);
    let known = TrainedImages::from_start(&job.from)?;
    let wanted = DataRequest {
        path: &job.data,
        task: job.task,
        config: &config,
        seed: job.seed,
        keep: validation_names,
        trained: earlier.as_ref().map_or("", |state| state.images.as_str()),
    };
    let data = data::load(context, wanted, known, new)?;
    let pairs = &data.dataset.pairs;
    let files: Vec<&Path> = pairs.iter().flat_map(pair_files).collect();
    check_destination(&job.out, &files, job.overwrite)?;
    folder.check(&files)?;
    if job.data.is_file() {
        record.add_inputs(files);
    }
    let _parents = folder.create_parents()?;
    let lock = folder.lock()?;
    let request = TrainRequest { job, context, devices, on_event, started };
    let config = if earlier.is_none() { data::with_thickness(&data.report, config) } else { config };
    let outcome = load_locked(job, &folder, earlier.as_ref(), &config)
        .and_then(|checkpoint| run_locked(request, record, &folder, config, &data, checkpoint));
    let is_kept =
        outcome.as_ref().is_err_and(|error| folder.has_checkpoint() || has_kept_best(context, &folder, error));
    let is_over = !is_kept;
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

/// Returns the settings of a new run: those of the job, with the channel that the start model reads because of its name.
fn start_config(job: &TrainJob, context: &Context) -> TrainConfig {
    let (config, note) = with_stained_channel(Some(&job.from), &job.data, job.task, &job.config);
    note.into_iter().for_each(|note| context.note(note));
    config
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
    let mut outcome = training.run_on_devices(checkpoint, record).inspect_err(|error| {
        // The error of a device, or a note, says how to continue.
        if !training.has_device_failed(error) {
            note_kept(context, folder, error);
        }
    })?;
    context.recorder.mark_memory("trained");
    note_changed_data(context, data, &training.fingerprint, &mut outcome.state);
    let report = training.finalize(outcome).inspect_err(|error| note_without_package(context, folder, error));
    context.recorder.mark_memory("end");
    report
}

/// Warns that files of the training data differ from those that the run began with; `before` is the fingerprint of these.
fn note_changed_data(context: &Context, data: &Data, before: &str, state: &mut TrainState) {
    if fingerprint(data).is_ok_and(|now| now == before) {
        return;
    }
    let note = Note::warning(
        "the training data changed during the run, so the network and its scores may be of both versions: train again, and \
         leave the data unchanged",
    );
    context.note(note.clone());
    state.history.notes.push(note);
}

/// Notes how a run that has failed with `error` can be continued, if it has a checkpoint. The training loop notes a
/// canceled one itself.
fn note_kept(context: &Context, folder: &RunFolder, error: &JobError) {
    let summary = if error.kind() == JobErrorKind::Canceled { None } else { CheckpointSummary::read(folder) };
    if let Some(CheckpointSummary { step, steps, .. }) = summary {
        context.note(message!(
            "the training run is kept in {} up to step {step} of {steps}: remove the cause of the error, then continue with \
             {RESUME}",
            folder.path.display()
        ));
    }
}

/// Returns whether a run that has failed with `error` leaves its best network, because no checkpoint could be saved, such as on
/// a full disk. A note names the package.
fn has_kept_best(context: &Context, folder: &RunFolder, error: &JobError) -> bool {
    let is_canceled = error.kind() == JobErrorKind::Canceled;
    let Some(best) = folder.best_without_checkpoint().filter(|_| !is_canceled) else { return false };
    let note = "there is no checkpoint to resume, but the best network so far is the package";
    context.note(format!("{note} {}: copy it before you train again", best.display()));
    true
}

/// Notes how a run can be continued whose steps are done, but whose package was not made because of `error`.
fn note_without_package(context: &Context, folder: &RunFolder, error: &JobError) {
    if error.kind() != JobErrorKind::Canceled {
        return note_kept(context, folder, error);
    }
    if let Some(CheckpointSummary { step, steps, .. }) = CheckpointSummary::read(folder) {
        context.note(message!(
            "canceled after step {step} of {steps}, before the package was complete; continue with {RESUME} from the checkpoint \
             in {}",
            folder.path.display()
        ));
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
            object_intensity: None,
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
}
