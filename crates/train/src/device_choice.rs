//! The device that computes training steps: the requested one, or the one with the fastest measured step.

use crate::config::{TrainConfig, TrainPrecision};
use crate::error::{engine_error, model_error};
use crate::less_memory::with_less_memory;
use crate::network::StartModel;
use crate::setup::{batch_shape, stepper_options};
use crate::step::{Stepper, StepperOptions, activation_budget};
use cytoscope_engine::select::{self, Cache, Probe};
use cytoscope_engine::{
    CompileReport, Device, DeviceId, DeviceRequest, Engine, EngineError, Precision, Session, TuningListener,
};
use cytoscope_graph::{ElementType, Tensor};
use cytoscope_pipeline::devices::{Devices, measurements};
use cytoscope_pipeline::{Context, DeviceInUse, Event, JobError, JobErrorKind, ProgressStage, model_error_message};
use cytoscope_profile::{Recorder, Stage};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use std::cell::RefCell;

/// Returns an image, its targets and its weights for a training step on inputs of this shape, all synthetic.
pub(crate) fn synthetic_batch(shape: &[usize], target_channels: usize) -> Result<[Tensor; 3], JobError> {
    let made = |channels: usize, value: fn(usize) -> f32| {
        let mut shape = shape.to_vec();
        if let Some(c) = shape.get_mut(1) {
            *c = channels;
        }
        let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        Tensor::new(shape, values).map_err(model_error("a batch"))
    };
    Ok([
        made(shape.get(1).copied().unwrap_or(1), |i| ((i * 7919) % 101) as f32 / 101.0)?,
        made(target_channels, |i| ((i / 37) % 2) as f32)?,
        made(1, |_| 1.0)?,
    ])
}

/// Training steps as runs of a session, to be timed. They hardly change the parameters.
struct StepSession {
    stepper: Stepper,
    device: DeviceId,
    context: Context,
    clip_norm: f32,
    accumulate: usize,
    report: CompileReport,
    /// Memory limit of activations in bytes, if it was lowered to fit the device.
    lowered_limit_bytes: Option<u64>,
}

impl StepSession {
    fn step(&mut self, inputs: &[Tensor]) -> Result<(), JobError> {
        self.context.check()?;
        for _ in 0..self.accumulate {
            // A long run reads its losses every few steps only. On a GPU, too, a step has ended when the calls return.
            self.stepper.forward_backward_later(inputs.to_vec())?;
        }
        self.stepper.optimizer_step(1e-9, self.clip_norm, self.accumulate)
    }
}

impl Session for StepSession {
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
        let (device, context) = (self.device, self.context.clone());
        let mut step = || self.step(inputs);
        // Only a GPU may hang.
        let made = match device {
            DeviceId::Cpu => context.report_alive(ProgressStage::Measure, step),
            DeviceId::Cuda(_) | DeviceId::Wgpu(_) => step(),
        };
        made.map_err(|error| not_possible(device, error))?;
        Ok(Vec::new())
    }

    fn report(&self) -> &CompileReport {
        &self.report
    }

    fn lowered_limit_bytes(&self) -> Option<u64> {
        self.lowered_limit_bytes
    }
}

/// Returns why a device cannot be chosen.
fn not_possible(device: DeviceId, error: JobError) -> EngineError {
    match error {
        JobError::Engine(error) => error,
        other => EngineError::Unavailable { device, reason: other.message() },
    }
}

/// Returns the precision in which a device trains.
pub(crate) fn step_precision(requested: TrainPrecision, device: &Device) -> Precision {
    match (requested, requested.half()) {
        (_, Some(ElementType::BF16)) => Precision::Bf16,
        (_, Some(_)) => Precision::F16,
        (TrainPrecision::F32, None) => Precision::F32,
        (_, None) => device.fast_precision(),
    }
}

/// Returns a fingerprint of what determines the time of a step, besides the shape of the batch and the device. The version
/// in it makes sure that times of earlier versions are not used, which were stored without the memory limit that may have
/// been lowered to measure them, or contain the reading of each loss.
fn fingerprint(start: &StartModel, config: &TrainConfig) -> String {
    let graph = &start.graph;
    let shapes: Vec<_> = graph.initializers.iter().map(|(id, t)| (*id, t.shape().to_vec())).collect();
    let text = format!(
        "training step 3 {:?} {:?} {:?} {shapes:?} {:?} {:?} {} {} {:?}",
        graph.nodes,
        graph.inputs,
        graph.outputs,
        config.optimizer.rule(),
        config.only,
        config.ema > 0.0,
        config.accumulate,
        config.memory_mib
    );
    select::fingerprint(text.as_bytes())
}

/// The device that computes training steps.
pub(crate) struct StepDevice {
    pub(crate) engine: Box<dyn Engine>,
    /// Precision of the steps: that of the settings, or f32 if the devices that have it have failed.
    pub(crate) precision: TrainPrecision,
    /// Memory limit in bytes with which the activations of a step fit the device, if it was lowered for the measurement.
    pub(crate) memory_budget_bytes: Option<u64>,
    /// Errors of devices that have failed before, for the report.
    pub(crate) failures: Vec<Message>,
}

/// Opens the requested device, or the usable one with the fastest step, and reports it unless it is the CPU and there is
/// no other. Times are stored in the user's folder, so that each network, batch shape and device is measured once. If the
/// requested device cannot be opened, and `may_change` says that the user did not choose it, another one is chosen.
///
/// # Errors
/// [`JobError::Engine`] if the requested device cannot be used, or no device can train the network;
/// [`JobError::Canceled`].
pub(crate) fn choose(
    context: &Context,
    devices: &Devices,
    (request, may_change): (DeviceRequest, bool),
    start: &StartModel,
    config: &TrainConfig,
    threads: usize,
) -> Result<StepDevice, JobError> {
    let (mut failed, mut failures) = (Vec::new(), Vec::new());
    if let DeviceRequest::Device(id) = request {
        let opening = context.recorder.span(Stage::Verify, "device");
        let opened = devices.engine(id);
        opening.finish();
        match opened {
            Ok(engine) => {
                if id != DeviceId::Cpu {
                    report(context, engine.as_ref(), "requested".to_owned());
                }
                return Ok(StepDevice { engine, precision: config.precision, memory_budget_bytes: None, failures });
            }
            Err(error) if may_change => {
                context.report_lost_device(&error);
                context.note(message!("{}; another device is chosen", model_error_message(&error)));
                failures.push(Message::of(&error));
                failed.push(id);
            }
            Err(error) => return Err(engine_error(error)),
        }
    }
    let mut chosen = choose_except(context, devices, &failed, start, config, threads)?;
    chosen.failures.splice(..0, failures).for_each(drop);
    if chosen.precision != config.precision {
        let why = Message::joined(&chosen.failures, "; ");
        context.note(message!("{why}; training on {} in f32", chosen.engine.device().id));
    }
    Ok(chosen)
}

/// Returns whether an error says that the GPU that computes training steps has failed.
pub(crate) fn has_failed(used: DeviceId, error: &JobError) -> bool {
    let failed = match error {
        JobError::Engine(EngineError::Device { device, .. } | EngineError::OutOfMemory { device, .. }) => *device,
        JobError::Engine(EngineError::Internal { .. }) => used,
        _ => return false,
    };
    failed == used && used != DeviceId::Cpu
}

/// Returns the message of an error without its advice to the user, for notes about what is done instead.
pub(crate) fn finding(error: &JobError) -> Message {
    match error {
        JobError::Engine(error) => error.finding(),
        other => other.message(),
    }
}

/// Returns the fastest of the devices that have not `failed` and that trains in the precision of the settings. If devices
/// have failed, in this run or now, and no other one has that precision, returns the fastest one in f32.
///
/// # Errors
/// [`JobError::Engine`] if no device can train the network; [`JobError::Canceled`].
pub(crate) fn choose_except(
    context: &Context,
    devices: &Devices,
    failed: &[DeviceId],
    start: &StartModel,
    config: &TrainConfig,
    threads: usize,
) -> Result<StepDevice, JobError> {
    let _span = context.recorder.span(Stage::Verify, "device");
    let found: RefCell<Vec<(DeviceId, Message)>> = RefCell::default();
    let on_error = |error: &EngineError| {
        context.report_lost_device(error);
        let (EngineError::Device { device, .. } | EngineError::OutOfMemory { device, .. }) = error else { return };
        let mut found = found.borrow_mut();
        if *device != DeviceId::Cpu && !found.iter().any(|(known, _)| known == device) {
            found.push((*device, error.finding()));
        }
    };
    let open = |failed: &[DeviceId], config: &TrainConfig| -> Result<(Box<dyn Engine>, Option<u64>), JobError> {
        let (engine, lowered_bytes) = open_fastest(context, (devices, failed), start, config, threads, &on_error)?;
        stepper_options(config, start, engine.as_ref(), threads, &context.recorder)?;
        Ok((engine, lowered_bytes))
    };
    let precision = config.precision;
    let opened = open(failed, config);
    let mut all_failed = failed.to_vec();
    all_failed.extend(found.borrow().iter().map(|(device, _)| *device));
    let is_everywhere = matches!(precision, TrainPrecision::Auto | TrainPrecision::F32);
    let ((engine, memory_budget_bytes), precision) = match opened {
        Err(error) if error.kind() != JobErrorKind::Canceled && !is_everywhere && !all_failed.is_empty() => {
            let config = TrainConfig { precision: TrainPrecision::F32, ..config.clone() };
            (open(&all_failed, &config)?, TrainPrecision::F32)
        }
        other => (other?, precision),
    };
    let failures = found.borrow().iter().map(|(_, note)| note.clone()).collect();
    Ok(StepDevice { engine, precision, memory_budget_bytes, failures })
}

/// Opens the fastest of the devices that have not `failed`, and reports it. `on_error` receives the errors of devices. If the
/// memory limit of activations was lowered to measure it, this limit in bytes is returned, too.
fn open_fastest(
    context: &Context,
    (devices, failed): (&Devices, &[DeviceId]),
    start: &StartModel,
    config: &TrainConfig,
    threads: usize,
    on_error: &dyn Fn(&EngineError),
) -> Result<(Box<dyn Engine>, Option<u64>), JobError> {
    let (mut engines, mut unusable) = (Vec::new(), Vec::new());
    for device in devices.list() {
        let engine = if failed.contains(&device.id) {
            Err("it has failed in this run".to_owned())
        } else {
            context.report_tried_device(device.id);
            devices.engine(device.id).inspect_err(on_error).map_err(|error| error.to_string())
        };
        match engine {
            Ok(engine) => engines.push(engine),
            Err(error) => {
                let reason = if device.usable { error } else { device.reason.clone() };
                unusable.push(Device { usable: false, reason, ..device.clone() });
            }
        }
    }
    if engines.len() == 1
        && let Some(only) = engines.pop()
    {
        // Without a GPU, there is no choice to report.
        if only.device().id != DeviceId::Cpu || !failed.is_empty() {
            report(context, only.as_ref(), format!("{} is the only usable device", only.device().id));
        }
        return Ok((only, None));
    }
    context.note(format!("comparing {} devices by a training step; this is done once", engines.len()));
    let mut cache = measurements("training-times.json");
    if devices.measures_again() {
        cache.forget(&fingerprint(start, config));
    }
    let (why, chosen, lowered_bytes) =
        fastest(context, (&engines, &unusable), start, config, threads, &mut cache, on_error)?;
    let engine = engines.into_iter().find(|engine| engine.device().id == chosen);
    let engine = engine.ok_or_else(|| EngineError::BadDevice { text: chosen.to_string() }).map_err(engine_error)?;
    context.note(message!("training on {chosen}: {why}"));
    report(context, engine.as_ref(), why.into());
    Ok((engine, lowered_bytes))
}

/// Measures a step on each engine, or uses the measurements in `cache`. On a GPU with too little memory, more activations
/// are recomputed. Returns the reason for the choice, the fastest device, and the memory limit of activations in bytes with
/// which it was measured if that was lowered.
pub(crate) fn fastest(
    context: &Context,
    (engines, unusable): (&[Box<dyn Engine>], &[Device]),
    start: &StartModel,
    config: &TrainConfig,
    threads: usize,
    cache: &mut Cache,
    on_error: &dyn Fn(&EngineError),
) -> Result<(Message, DeviceId, Option<u64>), JobError> {
    let recorder = Recorder::totals_only();
    let options = |engine: &dyn Engine, tuning: TuningListener| -> Result<StepperOptions, JobError> {
        let options = stepper_options(config, start, engine, threads, &recorder)?;
        Ok(StepperOptions { tuning, ..options })
    };
    let inputs = synthetic_batch(&batch_shape(config, start), start.outputs.len())?;
    let compile = |engine: &dyn Engine, _: Precision| -> Result<Box<dyn Session>, EngineError> {
        let device = engine.device();
        context.report_tried_device(device.id);
        let attempt = |options: &StepperOptions, held_bytes: &mut u64| -> Result<StepSession, JobError> {
            let stepper = Stepper::new(start.graph.clone(), engine, options)?;
            *held_bytes = stepper.arena_bytes();
            let (cancel, sink) = (context.cancel.clone(), std::sync::Arc::clone(&context.sink));
            let mut session = StepSession {
                stepper,
                device: device.id,
                context: Context { cancel, sink, ..Context::default() },
                clip_norm: config.clip_norm,
                accumulate: config.accumulate,
                report: CompileReport::default(),
                lowered_limit_bytes: None,
            };
            // Only a step shows whether a GPU has enough memory.
            if device.id != DeviceId::Cpu {
                session.step(&inputs)?;
            }
            Ok(session)
        };
        let (session, lowered_limit_bytes) = options(engine, context.tuning())
            .and_then(|options| with_less_memory(context, device, options, attempt))
            .map_err(|error| not_possible(device.id, error))?;
        Ok(Box::new(StepSession { lowered_limit_bytes, ..session }))
    };
    let precisions = |device: &Device| vec![step_precision(config.precision, device)];
    let fingerprint = fingerprint(start, config);
    let probe = Probe {
        fingerprint: &fingerprint,
        inputs: &inputs,
        unit: "step",
        threads,
        precisions: &precisions,
        compile: &compile,
        on_error,
    };
    let choice = select::fastest(engines, unusable, &probe, cache);
    // A canceled measurement looks like a device that cannot be used.
    context.check()?;
    let choice = choice.map_err(engine_error)?;
    let chosen = choice.measurements.iter().find(|m| m.device == choice.device);
    let engine = engines.iter().find(|engine| engine.device().id == choice.device);
    // A stored limit may be higher than what is free now.
    let free_bytes = engine.map_or(u64::MAX, |engine| activation_budget(None, engine.device()));
    let lowered_bytes = chosen.and_then(|m| m.lowered_limit_bytes).map(|bytes| bytes.min(free_bytes));
    Ok((choice.why, choice.device, lowered_bytes))
}

/// Reports the device of a training run.
fn report(context: &Context, engine: &dyn Engine, why: String) {
    let device = engine.device();
    context.emit(&Event::Device(DeviceInUse { id: device.id, name: device.name.clone(), why }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network;
    use crate::start::TrainStart;
    use cytoscope_training_data::TrainingTask;
    use std::sync::{Arc, Mutex};

    fn small() -> (StartModel, TrainConfig) {
        let config: TrainConfig = serde_json::from_str(r#"{"patch_zyx": [4, 16, 16], "batch": 1}"#).unwrap();
        let start =
            network::load_start_model(&TrainStart::Scratch, TrainingTask::Segmentation, &config, None, 0).unwrap();
        (start, config)
    }

    #[test]
    fn the_only_device_is_used_without_a_measurement() {
        let (start, config) = small();
        let context = Context::default();
        let choose = |request| choose(&context, &Devices::cpu_only(), request, &start, &config, 1);
        let chosen = choose((DeviceRequest::Auto, true)).unwrap();
        assert_eq!((chosen.engine.device().id, chosen.failures), (DeviceId::Cpu, Vec::new()));
        // The device of a machine profile is gone.
        let gone = DeviceRequest::Device(DeviceId::Cuda(0));
        let chosen = choose((gone, true)).unwrap();
        assert_eq!((chosen.engine.device().id, chosen.failures.len()), (DeviceId::Cpu, 1));
        assert!(chosen.failures[0].starts_with("cuda:0 cannot be used: there is no such device"));
        let refused = choose((gone, false)).err().unwrap().to_string();
        assert!(refused.starts_with("cuda:0 cannot be used: there is no such device"), "{refused}");
    }

    #[test]
    fn a_device_that_is_gone_is_named_if_the_next_one_trains_in_32_bits() {
        let (start, config) = small();
        let config = TrainConfig { precision: TrainPrecision::Bf16, ..config };
        let notes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&notes);
        let sink = move |event: &Event| {
            if let Event::Note(note) = event {
                kept.lock().unwrap().push(note.message.to_string());
            }
        };
        let context = Context { sink: Arc::new(sink), ..Context::default() };
        let request = (DeviceRequest::Device(DeviceId::Cuda(0)), true);
        let chosen = choose(&context, &Devices::cpu_only(), request, &start, &config, 1).unwrap();
        assert_eq!((chosen.engine.device().id, chosen.precision), (DeviceId::Cpu, TrainPrecision::F32));
        let notes = notes.lock().unwrap();
        let last = notes.last().unwrap();
        assert!(last.starts_with("cuda:0 cannot be used: ") && last.ends_with("; training on cpu in f32"), "{last}");
    }

    #[test]
    fn devices_that_cannot_train_are_not_chosen() {
        let (start, config) = small();
        let config = TrainConfig { precision: TrainPrecision::F16, ..config };
        let cpu = || Devices::cpu_only().engine(DeviceId::Cpu).unwrap();
        let (context, mut cache) = (Context::default(), Cache::in_memory());
        let refused = fastest(&context, (&[cpu(), cpu()], &[]), &start, &config, 1, &mut cache, &|_| ());
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("the CPU trains in f32 only"), "{refused}");
        let half = Device { precisions: vec![Precision::F32, Precision::Tf32], ..cpu().device().clone() };
        assert_eq!(step_precision(TrainPrecision::Auto, &half), Precision::Tf32);
        assert_eq!(step_precision(TrainPrecision::F32, &half), Precision::F32);
        assert_eq!(step_precision(TrainPrecision::Bf16, &half), Precision::Bf16);
    }
}
