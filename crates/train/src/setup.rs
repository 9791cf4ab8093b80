//! Preparation of a training run: start model, sampler, validator and options, from the job and its data.

use crate::budget;
use crate::checkpoint::{RunFolder, TrainState};
use crate::config::{self, NetworkConfig, TrainConfig, TrainPrecision};
use crate::data::Data;
use crate::device_choice::{self, StepDevice};
use crate::error::{data_error, io_error, wrong_use, wrong_use_with};
use crate::job::TrainJob;
use crate::lengths::check_output_size;
use crate::network::{self, StartModel};
use crate::previews::Previews;
use crate::step::StepperOptions;
use crate::train::{TrainRequest, Training};
use crate::trained_images::digests;
use crate::tuning;
use crate::validator::{Diameters, Validator, ValidatorOptions};
use cytoscope_engine::{DeviceId, DeviceRequest, Engine, EngineError, Precision, TuningListener};
use cytoscope_formats::open;
use cytoscope_graph::{ElementType, Graph};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, DiameterRequest, JobError, Note, ProgressStage, input_record};
use cytoscope_profile::{Recorder, Stage};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{DEVICE, DIAMETER, PRECISION, RESTART, RESUME};
use cytoscope_training_data::{
    IgnoreLabel, ObjectScale, Pair, Sampler, SamplerOptions, SourceOptions, Sources, TargetKind,
};
use cytoscope_volume::number_text;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::UNIX_EPOCH;

/// Default patch shape along Z, Y, X in voxels.
pub(crate) const PATCH: [usize; 3] = [24, 64, 64];

/// Returns a hash of the names, sizes and modification times of all files, by which a resumed run detects changed data.
///
/// # Errors
/// [`JobError::Io`] if a file is no longer there.
pub(crate) fn fingerprint(data: &Data) -> Result<String, JobError> {
    let state = |path: &Path| -> Result<String, JobError> {
        let meta = std::fs::metadata(path).map_err(io_error(path))?;
        if meta.is_dir() {
            // An OME-Zarr folder changes with the files in it.
            let files = input_record(path, &[]).map_err(io_error(path))?;
            let listing = files.sampled_sha256.unwrap_or_default();
            return Ok(format!("{} {}.{:09} {listing}", files.bytes, files.modified_unix_secs, files.modified_nanos));
        }
        // On file systems without times, only a change of the size is detected.
        let changed = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        Ok(format!("{} {}", meta.len(), changed.as_nanos()))
    };
    let mut text = String::new();
    for pair in &data.dataset.pairs {
        text.push_str(&pair.name);
        for file in image_files(pair) {
            text.push_str(&format!(" {}", state(&file)?));
        }
        text.push(';');
    }
    Ok(cytoscope_engine::select::fingerprint(text.as_bytes()))
}

/// Returns the files of a pair: those of its image and its target, then those of further channels.
pub(crate) fn pair_files(pair: &Pair) -> Vec<&Path> {
    let mut files = vec![pair.image.path.as_path(), pair.target.path.as_path()];
    for more in pair.more_images.iter().chain(&pair.more_targets).map(|image| image.path.as_path()) {
        if !files.contains(&more) {
            files.push(more);
        }
    }
    files
}

/// Returns the [`pair_files`], and the other files that their images consist of, such as the other members of an OME-TIFF set.
/// Those of folders, and of images that cannot be opened, are left out.
pub(crate) fn image_files(pair: &Pair) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = pair_files(pair).into_iter().map(Path::to_owned).collect();
    let mut known: BTreeSet<PathBuf> = files.iter().cloned().collect();
    let images = [&pair.image, &pair.target].into_iter().chain(&pair.more_images).chain(&pair.more_targets);
    for image in images.filter(|image| !image.path.is_dir()) {
        let members = open(&image.path, &image.open_options()).map(|opened| opened.files()).unwrap_or_default();
        files.extend(members.into_iter().filter(|file| file.exists() && known.insert(file.clone())));
    }
    files
}

/// Checks that the checkpoint in `folder` has the task, start model and seed of this job.
pub(crate) fn check_same_run(state: &TrainState, job: &TrainJob, folder: &RunFolder) -> Result<(), JobError> {
    let saved = &state.job;
    let settings = [
        ("task", saved.task.name().to_owned(), job.task.name().to_owned()),
        ("start model", saved.from.to_string(), job.from.to_string()),
        ("seed", saved.seed.to_string(), job.seed.to_string()),
    ];
    let changed = settings.iter().filter(|(_, before, now)| before != now);
    let changed: Vec<String> =
        changed.map(|(name, before, now)| format!("the {name} {before} instead of {now}")).collect();
    if changed.is_empty() {
        return Ok(());
    }
    Err(JobError::Mismatch {
        path: folder.path.clone(),
        problem: format!("the checkpoint in it was made with {}", changed.join(", ")).into(),
        next_step: message!(
            "use the original task, start model and seed, or use {RESTART} instead of {RESUME} to start over"
        ),
    })
}

/// Returns the patch shape along Z, Y, X and the number of patches per batch.
fn patch_and_batch(config: &TrainConfig, start: &StartModel) -> ([usize; 3], usize) {
    let mut patch = config.patch_zyx.unwrap_or(PATCH);
    if start.spatial_axes == 2 {
        patch[0] = 1;
    }
    patch = std::array::from_fn(|a| match start.lengths[a] {
        Some(length) => length,
        None => patch[a].max(start.step[a]).next_multiple_of(start.step[a]),
    });
    (patch, start.batch.unwrap_or(config.batch_size()))
}

/// Returns the shape of the network's input for a batch of patches.
pub(crate) fn batch_shape(config: &TrainConfig, start: &StartModel) -> Vec<usize> {
    let (patch, batch) = patch_and_batch(config, start);
    let mut shape = vec![batch, start.inputs.len()];
    shape.extend(patch.iter().skip(3 - start.spatial_axes));
    shape
}

/// Returns the options for training steps on an engine.
///
/// # Errors
/// [`JobError::WrongUse`] or [`JobError::Engine`] if the engine does not train in the precision of the settings.
pub(crate) fn stepper_options(
    config: &TrainConfig,
    start: &StartModel,
    engine: &dyn Engine,
    threads: usize,
    recorder: &Recorder,
) -> Result<StepperOptions, JobError> {
    Ok(StepperOptions {
        loss: config::loss(start.target, start.outputs.len(), config.loss),
        optimizer: config.optimizer.rule(),
        shape: batch_shape(config, start),
        batch_statistics: !keeps_layers(config, start),
        further_weights: false,
        only: config.only.clone(),
        ema: config.ema,
        threads,
        memory_budget_bytes: config.memory_mib.map(|m| m.saturating_mul(1 << 20)),
        half: half(config.precision, engine)?,
        exact: config.precision == TrainPrecision::F32,
        recorder: recorder.clone(),
        tuning: TuningListener::default(),
    })
}

/// Returns whether layers of a start model are to stay as they are: batch norms that cannot be folded then keep their
/// statistics, too.
pub(crate) fn keeps_layers(config: &TrainConfig, start: &StartModel) -> bool {
    !config.only.is_empty() && !start.from_scratch
}

/// Checks that each text of the setting `only` is in the name of a parameter.
fn check_only(only: &[String], graph: &Graph) -> Result<(), JobError> {
    const LISTED: usize = 40;
    let names: Vec<&str> = graph.initializers.keys().map(|id| graph.value(*id).name.as_str()).collect();
    let Some(unknown) = only.iter().find(|part| !names.iter().any(|name| name.contains(part.as_str()))) else {
        return Ok(());
    };
    let more = if names.len() > LISTED { ", …" } else { "" };
    let listed = names.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    Err(wrong_use(format!("only: no parameter has \"{unknown}\" in its name; the parameters are {listed}{more}")))
}

/// Returns the 16-bit element type for mixed precision on an engine; `None` for 32-bit training.
fn half(precision: TrainPrecision, engine: &dyn Engine) -> Result<Option<ElementType>, JobError> {
    let wanted = match precision {
        TrainPrecision::Auto | TrainPrecision::F32 => return Ok(None),
        TrainPrecision::Tf32 => Precision::Tf32,
        TrainPrecision::F16 => Precision::F16,
        TrainPrecision::Bf16 => Precision::Bf16,
    };
    let offered = engine.training_precisions();
    if offered.contains(&wanted) {
        return Ok(precision.half());
    }
    match (wanted, engine.device().id) {
        (Precision::Tf32, DeviceId::Cpu | DeviceId::Wgpu(_)) => Err(wrong_use_with(
            "precision: only CUDA trains in tf32",
            message!("set {PRECISION} to f32, or choose cuda with {DEVICE}"),
        )),
        (_, DeviceId::Cpu) => Err(wrong_use_with(
            "precision: the CPU trains in f32 only",
            message!("set {PRECISION} to f32, or choose a GPU with {DEVICE}"),
        )),
        _ => Err(EngineError::unsupported_precision(engine, wanted, &offered).into()),
    }
}

/// Factor between a given object diameter and that of the labels from which on the given one is doubted.
const DOUBTED_FACTOR: f64 = 2.0;

/// Returns a note if a given object diameter is so far from the median one of the labels, in the same unit, that it is probably
/// not the one that was meant.
fn diameter_note(given: f64, labeled: f64) -> Option<Message> {
    let factor = (given / labeled).max(labeled / given);
    (factor >= DOUBTED_FACTOR).then(|| {
        message!(
            "the given object diameter of {} and the median one of the labels, {labeled:.2}, differ by a factor of {factor:.1}, \
             so that objects have another size in predictions than in training; check {DIAMETER}, which is in µm (in voxels if \
             the voxel size is unknown), or leave it out to have the labels measured",
            number_text(given)
        )
    })
}

/// Refuses a precision in which the CPU does not train if it is the requested device: computing the statistics of the data, after
/// which a device is opened, may take minutes.
///
/// # Errors
/// [`JobError::WrongUse`] with the precisions and devices to choose instead.
pub(crate) fn check_precision(
    precision: TrainPrecision,
    request: DeviceRequest,
    devices: &Devices,
) -> Result<(), JobError> {
    if request == DeviceRequest::Device(DeviceId::Cpu)
        && let Ok(cpu) = devices.engine(DeviceId::Cpu)
    {
        half(precision, cpu.as_ref())?;
    }
    Ok(())
}

/// Sets the object diameter of a new network to that of the data; `given` is the requested diameter, in µm.
fn set_object_diameter(
    context: &Context,
    start: &mut StartModel,
    config: &TrainConfig,
    given: Option<f64>,
    data: &Data,
) -> Result<(), JobError> {
    if start.from_scratch && start.target.is_from_labels() && start.target != TargetKind::Semantic {
        // Without a voxel size, lengths are in voxels, as if the voxel size were 1 µm.
        let voxel_um = start.voxel_um.get_or_insert([1.0; 3]);
        start.object_diameter_um = config.object_diameter_um.or(given).or_else(|| data.median_diameter(*voxel_um));
    }
    if given.is_some() && start.object_diameter_um.is_none() {
        return Err(wrong_use_with(
            format!("{} declares no nominal object diameter", start.name),
            "remove the diameter setting",
        ));
    }
    // Labels of the foreground only have no objects to measure.
    let labeled = data.labeled_diameter().filter(|_| start.target != TargetKind::Semantic);
    let note = given.zip(labeled).and_then(|(given, labeled)| diameter_note(given, labeled));
    note.into_iter().for_each(|note| context.note(Note::warning(note)));
    Ok(())
}

fn load_start_model(
    context: &Context,
    job: &TrainJob,
    config: &TrainConfig,
    data: &Data,
) -> Result<StartModel, JobError> {
    let _span = context.recorder.span(Stage::Load, "start model");
    let start = network::load_start_model(&job.from, job.task, config, data.voxel_um(), job.seed)?;
    check_output_size(&start.graph, &start.name, &batch_shape(config, &start))?;
    if !start.other_outputs.is_empty() {
        context.note(format!(
            "the start model has {} outputs: its first one is trained; {} will not be in the new model",
            start.other_outputs.len() + 1,
            start.other_outputs.join(", ")
        ));
    }
    // The strides of single planes are derived from the data.
    let network = NetworkConfig { strides: Vec::new(), ..config.network.clone() };
    if !start.from_scratch && network != NetworkConfig::default() {
        context.note("the settings in [network] are not used, because the network is that of the start model");
    }
    let patch = config.patch_zyx.unwrap_or(PATCH);
    if start.lengths.iter().zip(patch).any(|(only, length)| only.is_some_and(|only| only != length)) {
        let (patch, _) = patch_and_batch(config, &start);
        context
            .note(format!("the start model takes only patches of {} × {} × {} voxels", patch[0], patch[1], patch[2]));
    }
    if let Some(batch) = start.batch.filter(|batch| *batch != config.batch_size()) {
        context.note(format!(
            "the start model takes only batches of {batch}, which is the batch size; accumulate in the settings gives steps \
             more patches"
        ));
    }
    Ok(start)
}

/// Opens the training images and scans them for their statistics and objects.
fn open_sampler(
    context: &Context,
    data: &Data,
    cache_bytes: u64,
    options: SamplerOptions,
) -> Result<Arc<Sampler>, JobError> {
    let sources = Sources::open(&data.split.train, &SourceOptions { cache_bytes }).map_err(data_error)?;
    context.note("computing intensity statistics and locating objects in the training images");
    let _span = context.recorder.span(Stage::Check, "statistics and objects");
    let sampler = context.report_alive(ProgressStage::Check, || Sampler::new(Arc::new(sources), options));
    Ok(Arc::new(sampler.map_err(data_error)?))
}

/// Returns the segmentation settings of validation: the requested ones, or those of the start model, fitted to the
/// objects of the data.
fn segmentation(context: &Context, config: &TrainConfig, start: &StartModel, data: &Data) -> SegmentOptions {
    // A tenth of the volume of a typical object, in µm³.
    let small = match start.object_diameter_um {
        Some(diameter) => Some(0.1 * std::f64::consts::PI / 6.0 * diameter.powi(3)),
        None => data.small_object_um3(start.voxel_um),
    };
    match (&config.segment, &start.segment) {
        (Some(requested), _) => requested.clone(),
        (None, Some(own)) => {
            let fitted = tuning::fit_to_objects(own, small);
            if fitted != *own {
                context.note(format!(
                    "the minimum object volume was lowered to {:.0} µm³: that of the model ({:.0} µm³) is too large \
                     for these data",
                    fitted.min_volume_um3, own.min_volume_um3
                ));
            }
            fitted
        }
        (None, None) => tuning::defaults(start.target, small),
    }
}

/// Returns the source of training patches; `diameter` is the given object diameter.
fn create_sampler(
    job: &TrainJob,
    context: &Context,
    config: &TrainConfig,
    data: &Data,
    start: &StartModel,
    diameter: Option<f64>,
) -> Result<Arc<Sampler>, JobError> {
    let (patch_zyx, _) = patch_and_batch(config, start);
    let options = SamplerOptions {
        patch_zyx,
        voxel_um: start.voxel_um,
        objects: start.object_diameter_um.map(|nominal_um| ObjectScale { nominal_um, given: diameter }),
        object_bias: config.object_bias,
        seed: job.seed,
        augment: config.augment,
        target: start.target,
        normalize: start.normalize,
        // As in prediction: each slice is a separate image.
        normalize_slices: start.spatial_axes == 2,
        ignore_label: data.dataset.ignore_label.map(IgnoreLabel::Value),
        ..SamplerOptions::default()
    };
    open_sampler(context, data, config.cache_bytes, options)
}

/// Returns the validation set; `diameter` is the given object diameter.
fn create_validator(
    context: &Context,
    config: &TrainConfig,
    data: &Data,
    start: &StartModel,
    diameter: Option<f64>,
) -> Result<Validator, JobError> {
    let options = ValidatorOptions {
        max_cases: config.validation.max_files,
        objects: data.report.objects(),
        target: start.target,
        stains: start.outputs.clone(),
        model_um: start.voxel_um,
        ignored: data.dataset.ignore_label,
        diameters: Diameters { nominal_um: start.object_diameter_um, given_um: diameter, grid_um: start.voxel_um },
    };
    let _span = context.recorder.span(Stage::Check, "validation set");
    let validator = Validator::new(&data.split.validation, options)?;
    if validator.is_empty() {
        context.note("there is no validation set: the final network is used without a score");
    }
    Ok(validator)
}

/// Returns the settings of a run with the grid and the object diameter that a new network has from its data, so that they stay the
/// same if the data change before the run is resumed.
fn with_grid(config: TrainConfig, start: &StartModel) -> TrainConfig {
    if !start.from_scratch {
        return config;
    }
    let object_diameter_um = config.object_diameter_um.or(start.object_diameter_um);
    TrainConfig { voxel_um: start.voxel_um, object_diameter_um, ..config }
}

/// Prepares a training run. `intensities` are the mean and standard deviation of each stain from the checkpoint of a
/// resumed run; empty for a new one.
pub(crate) fn prepare<'a>(
    request: TrainRequest<'a>,
    folder: RunFolder,
    config: TrainConfig,
    data: &Data,
    fingerprint: String,
    intensities: Vec<(f64, f64)>,
) -> Result<Training<'a>, JobError> {
    let TrainRequest { job, context, devices, on_event, started } = request;
    let mut start = load_start_model(context, job, &config, data)?;
    check_only(&config.only, &start.graph)?;
    if !data.start_is_scored {
        start.comparable = false;
        start.int8 = None;
    }
    let given = match config.diameter {
        DiameterRequest::Auto => None,
        DiameterRequest::Given(diameter) => Some(diameter),
    };
    set_object_diameter(context, &mut start, &config, given, data)?;
    let request = (job.device, job.another_device_may_continue());
    let chosen = device_choice::choose(context, devices, request, &start, &config, job.threads)?;
    let StepDevice { engine, precision, memory_budget_bytes, failures } = chosen;
    let config = with_grid(TrainConfig { precision, ..config }, &start);
    let voxel_um = start.voxel_um;
    let (patch, batch) = patch_and_batch(&config, &start);
    let sampler = create_sampler(job, context, &config, data, &start, given)?;
    let moments = sampler.target_moments();
    let measured = moments.iter().map(|m| (m.mean, m.variance().sqrt().max(1e-12)));
    let intensities = if intensities.len() == moments.len() { intensities } else { measured.collect() };
    let stepping = stepper_options(&config, &start, engine.as_ref(), job.threads, &context.recorder)?;
    let further_weights = sampler.has_further_weights();
    let memory_budget_bytes = memory_budget_bytes.or(stepping.memory_budget_bytes);
    let stepping = StepperOptions { tuning: context.tuning(), further_weights, memory_budget_bytes, ..stepping };
    let validator = create_validator(context, &config, data, &start, given)?;
    let previews = Previews::of(&validator, start.target);
    let segment = segmentation(context, &config, &start, data);
    let epoch_steps = budget::epoch_steps(sampler.tile_count(), batch * config.accumulate);
    Ok(Training {
        job,
        context,
        on_event,
        devices,
        engine,
        failed_devices: Vec::new(),
        on_device_since: (started, Vec::new()),
        activation_bytes: AtomicU64::new(0),
        device_notes: failures,
        folder,
        options: stepping,
        patch,
        batch,
        sampler,
        validator,
        previews,
        segment,
        voxel_um,
        intensities,
        epoch_steps,
        train_pairs: data.split.train.clone(),
        images_before: data.known.record_with(&[], &BTreeMap::new()),
        images_after: data.known.record_with(&data.split.train, &digests(&data.report)),
        validation: data.validation_names.clone(),
        fingerprint,
        started,
        start,
        config,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_engine::{CompileOptions, Device, Session, Shortcoming};
    use cytoscope_graph::Graph;
    use cytoscope_pipeline::devices::Devices;

    /// An engine of a device, which compiles nothing.
    struct Offering(Device);

    impl Engine for Offering {
        fn name(&self) -> &'static str {
            "cuda"
        }

        fn device(&self) -> &Device {
            &self.0
        }

        fn compile(&self, _: &Graph, _: &[Vec<usize>], _: &CompileOptions) -> Result<Box<dyn Session>, EngineError> {
            Err(EngineError::BadDevice { text: "an engine of a test".to_owned() })
        }
    }

    #[test]
    fn a_given_diameter_far_from_that_of_the_labels_is_doubted() {
        for (given, factor) in
            [(500.0, Some("50.0")), (0.05, Some("200.0")), (20.0, Some("2.0")), (19.0, None), (6.0, None)]
        {
            let note = diameter_note(given, 10.0).map(|note| note.to_string());
            assert_eq!(note.is_some(), factor.is_some(), "{given}: {note:?}");
            let (note, factor) = (note.unwrap_or_default(), factor.unwrap_or_default());
            assert!(note.contains(factor), "{given}: {note}");
        }
        let note = diameter_note(500.0, 8.25).unwrap();
        assert!(note.as_str().contains("of 500 and the median one of the labels, 8.25,"), "{note}");
        assert_eq!(note.settings().count(), 1);
    }

    #[test]
    fn a_precision_that_the_gpu_lacks_is_refused_with_those_that_it_has() {
        let cpu = Devices::cpu_only().engine(DeviceId::Cpu).unwrap();
        let device = Device {
            id: DeviceId::Cuda(0),
            reason: "CUDA works".to_owned(),
            shortcomings: vec![Shortcoming::FailedPrecisions {
                precisions: vec![Precision::Bf16],
                error: "a kernel does not compile".to_owned(),
            }],
            precisions: vec![Precision::F32, Precision::F16],
            ..cpu.device().clone()
        };
        let turing = Offering(device);
        assert_eq!(half(TrainPrecision::F16, &turing).unwrap(), Some(ElementType::F16));
        assert_eq!(half(TrainPrecision::Auto, &turing).unwrap(), None);
        for (precision, name) in [(TrainPrecision::Bf16, "bf16"), (TrainPrecision::Tf32, "tf32")] {
            let refused = half(precision, &turing).unwrap_err();
            assert!(matches!(refused, JobError::Engine(EngineError::UnsupportedPrecision { .. })), "{refused}");
            let supported = "supported: f32, f16; bf16 cannot be used: a kernel does not compile";
            let expected = format!("does not support {name}; {supported}");
            assert!(refused.to_string().contains(&expected), "{refused}");
        }
        assert!(
            half(TrainPrecision::F16, cpu.as_ref()).unwrap_err().to_string().contains("the CPU trains in f32 only")
        );
    }
}
