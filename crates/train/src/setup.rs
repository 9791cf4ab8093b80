//! From what was asked for to everything that training works with.

use crate::budget;
use crate::checkpoint::{Folder, Standing};
use crate::config::{self, TrainConfig, TrainPrecision};
use crate::data::Data;
use crate::decode;
use crate::error::{data as data_error, engine as engine_error, wrong};
use crate::job::TrainJob;
use crate::network::{self, Start};
use crate::pictures::Views;
use crate::step::StepperOptions;
use crate::train::Training;
use crate::validate::{Diameters, Validator, ValidatorOptions};
use cytoscope_engine::{DeviceId, DeviceRequest, Engine};
use cytoscope_graph::ElementType;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, DiameterRequest, Event, JobError};
use cytoscope_profile::Recorder;
use cytoscope_samples::{IgnoreLabel, ObjectScale, Pair, Sampler, SamplerOptions, SourceOptions, Sources, TargetKind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

/// Patches where nothing is said: voxels along Z, Y, X.
const PATCH: [usize; 3] = [24, 64, 64];
/// Patches of a step where nothing is said.
const BATCH: usize = 2;

/// What the data are, so that a resumed training notices others.
pub(crate) fn fingerprint(data: &Data) -> String {
    let mut text = String::new();
    for pair in &data.dataset.pairs {
        let state = |path: &Path| {
            let meta = std::fs::metadata(path).ok();
            let changed = meta.as_ref().and_then(|m| m.modified().ok()).and_then(|t| t.duration_since(UNIX_EPOCH).ok());
            format!("{} {}", meta.map_or(0, |m| m.len()), changed.unwrap_or_default().as_nanos())
        };
        text.push_str(&format!("{} {} {};", pair.name, state(&pair.image.path), state(&pair.target.path)));
    }
    cytoscope_engine::select::fingerprint(text.as_bytes())
}

/// Whether what was kept is of this job.
pub(crate) fn agree(standing: &Standing, job: &TrainJob, folder: &Folder) -> Result<(), JobError> {
    let was = &standing.job;
    if was.task == job.task && was.from == job.from && was.seed == job.seed {
        return Ok(());
    }
    Err(JobError::Mismatch {
        path: folder.path.clone(),
        problem: "the training in it was begun with another task, start or seed".to_owned(),
        next_step: "give what it was begun with, or begin anew with --anew in place of --resume".to_owned(),
    })
}

/// Voxels of a patch, and patches of a step.
fn patches(config: &TrainConfig, start: &Start) -> ([usize; 3], usize) {
    let mut patch = config.patch_zyx.unwrap_or(PATCH);
    if start.spatial_axes == 2 {
        patch[0] = 1;
    }
    patch = std::array::from_fn(|a| patch[a].max(start.step[a]).next_multiple_of(start.step[a]));
    (patch, config.batch.unwrap_or(BATCH))
}

/// How steps are made on a device.
pub(crate) fn stepper_options(
    config: &TrainConfig,
    start: &Start,
    device: DeviceId,
    threads: usize,
    recorder: &Recorder,
) -> Result<StepperOptions, JobError> {
    let (patch, batch) = patches(config, start);
    let mut shape = vec![batch, 1];
    shape.extend(patch.iter().skip(3 - start.spatial_axes));
    Ok(StepperOptions {
        loss: config::loss(start.target, config.loss),
        optimizer: config.optimizer.rule(),
        shape,
        batch_statistics: true,
        only: config.only.clone(),
        ema: config.ema,
        threads,
        memory_budget_bytes: config.memory_mib.map(|m| m.saturating_mul(1 << 20)),
        half: half(config.precision, device)?,
        recorder: recorder.clone(),
    })
}

/// The engine that steps are computed on: the device asked for, of itself the processor.
pub(crate) fn engine(device: &str, devices: &Devices) -> Result<Box<dyn Engine>, JobError> {
    let id = match device.parse().map_err(engine_error)? {
        DeviceRequest::Device(id) => id,
        DeviceRequest::Auto => DeviceId::Cpu,
    };
    devices.engine(id).map_err(engine_error)
}

/// The 16-bit floats that products are computed in on a device.
fn half(precision: TrainPrecision, device: DeviceId) -> Result<Option<ElementType>, JobError> {
    match (precision, device) {
        (TrainPrecision::F32, _) => Ok(None),
        (_, DeviceId::Cpu) => Err(wrong(
            "precision: the processor computes in f32 and is no faster in 16 bits: leave precision out, or give a device",
        )),
        (TrainPrecision::Bf16, DeviceId::Wgpu(_)) => {
            Err(wrong("precision: bf16 is not known to wgpu: give precision = \"f16\""))
        }
        _ => Ok(precision.half()),
    }
}

#[allow(clippy::too_many_arguments)]
/// Everything that training works with. `intensity` is that of the stain where a training goes on.
pub(crate) fn prepare<'a>(
    job: &'a TrainJob,
    context: &'a Context,
    devices: &'a Devices,
    folder: Folder,
    config: TrainConfig,
    data: &Data,
    fingerprint: String,
    intensity: Option<(f64, f64)>,
    began: Instant,
) -> Result<Training<'a>, JobError> {
    let mut start = network::start(&job.from, job.task, &config, data.voxel_um(), job.seed)?;
    let given = match config.diameter {
        DiameterRequest::Auto => None,
        DiameterRequest::Given(diameter) => Some(diameter),
    };
    if start.from_scratch && start.target.of_labels() && start.target != TargetKind::Semantic {
        // Files without a voxel size count in voxels: the network's grid is theirs.
        let voxel_um = start.voxel_um.get_or_insert([1.0; 3]);
        start.object_diameter_um = config.object_diameter_um.or(given).or_else(|| data.median_diameter(*voxel_um));
    }
    if given.is_some() && start.object_diameter_um.is_none() {
        return Err(wrong(format!(
            "{} states no object diameter to bring objects to: leave the diameter out",
            start.name
        )));
    }
    let engine = engine(&job.device, devices)?;
    if engine.device().id != DeviceId::Cpu {
        let device = engine.device();
        context.tell(&Event::Device { id: device.id, name: device.name.clone(), why: "asked for".to_owned() });
    }
    let voxel_um = start.voxel_um;
    let (patch, batch) = patches(&config, &start);
    let sources = SourceOptions { cache_bytes: config.cache_bytes };
    let sources = Arc::new(Sources::open(&data.split.train, &sources).map_err(data_error)?);
    let options = SamplerOptions {
        patch_zyx: patch,
        voxel_um,
        objects: start.object_diameter_um.map(|nominal_um| ObjectScale { nominal_um, given }),
        object_bias: config.object_bias,
        seed: job.seed,
        augment: config.augment,
        target: start.target,
        normalise: start.normalise,
        ignore_label: data.dataset.ignore_label.map(IgnoreLabel::Value),
        ..SamplerOptions::default()
    };
    context.note("Looking through the stacks for their statistics and objects.");
    let sampler = Arc::new(Sampler::new(sources, options).map_err(data_error)?);
    let labels = start.target.of_labels();
    let moments = sampler.target_moments();
    let intensity = (!labels).then(|| intensity.unwrap_or((moments.mean, moments.variance().sqrt().max(1e-12))));
    let stepping = stepper_options(&config, &start, engine.device().id, job.threads, &context.recorder)?;
    let validation: &[Pair] = &data.split.validation;
    let cases = folder.path.join("validation");
    let options = ValidatorOptions {
        max_cases: config.validation.max_files,
        target: start.target,
        folder: cases,
        model_um: voxel_um,
        threads: job.threads,
        ignored: data.dataset.ignore_label,
        diameters: Diameters { nominal_um: start.object_diameter_um, given_um: given },
    };
    let validator = Validator::new(validation, options)?;
    if validator.is_empty() {
        context.note("There is nothing to validate on: the last state is kept, whatever it is worth.");
    }
    let views = Views::of(&validator, start.target);
    // A tenth of the volume of a usual object.
    let small = match start.object_diameter_um {
        Some(diameter) => Some(0.1 * std::f64::consts::PI / 6.0 * diameter.powi(3)),
        None => data.small_object_um3(voxel_um),
    };
    let segment = match (&config.segment, &start.segment) {
        (Some(asked), _) => asked.clone(),
        (None, Some(own)) => {
            let fitting = decode::fitting(own, small);
            if fitting != *own {
                context.note(format!(
                    "Objects of {:.0} µm³ and more count: those of the data are smaller than the {:.0} that the model keeps.",
                    fitting.min_volume_um3, own.min_volume_um3
                ));
            }
            fitting
        }
        (None, None) => decode::defaults(start.target, small),
    };
    let epoch_steps = budget::epoch_steps(sampler.tile_count(), batch * config.accumulate);
    Ok(Training {
        job,
        context,
        devices,
        engine,
        folder,
        options: stepping,
        patch,
        batch,
        sampler,
        validator,
        views,
        segment,
        voxel_um,
        intensity,
        epoch_steps,
        train_pairs: data.split.train.clone(),
        validation: data.split.validation_names(),
        fingerprint,
        began,
        start,
        config,
    })
}
