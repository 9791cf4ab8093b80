//! What this machine can compute on, and the choice for a model.

use crate::predict::PredictJob;
use crate::verify::{Verdict, verify, wrong_result};
use crate::{Context, Event, JobError, JobErrorKind, Model, user_folder};
use cytoscope_engine::select::{self, Cache, Measurement, Probe};
use cytoscope_engine::{CompileOptions, Device, DeviceId, DeviceRequest, Engine, EngineError};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::Tensor;
use cytoscope_profile::Recorder;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The devices of this machine.
#[derive(Debug, Clone)]
pub struct Devices {
    all: Vec<Device>,
}

/// The device a job runs on, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    /// The device.
    pub id: DeviceId,
    /// What its maker calls it.
    pub name: String,
    /// Why it was taken, for people.
    pub why: String,
    /// What was measured.
    pub measurements: Vec<Measurement>,
}

/// A chosen device with its engine.
#[derive(Clone)]
pub struct ChosenEngine {
    /// The choice.
    pub chosen: Chosen,
    engine: Arc<dyn Engine>,
}

impl std::fmt::Debug for ChosenEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChosenEngine").field("chosen", &self.chosen).finish_non_exhaustive()
    }
}

impl ChosenEngine {
    fn new(engine: Box<dyn Engine>, why: String, measurements: Vec<Measurement>) -> Self {
        let device = engine.device();
        let chosen = Chosen { id: device.id, name: device.name.clone(), why, measurements };
        Self { chosen, engine: Arc::from(engine) }
    }

    /// Its engine.
    pub fn engine(&self) -> &dyn Engine {
        self.engine.as_ref()
    }

    /// Whether another device can take over when this one fails.
    pub(crate) fn can_step_down(&self) -> bool {
        self.chosen.id != DeviceId::Cpu
    }

    /// Tells the device and why.
    pub(crate) fn tell(&self, context: &Context) {
        let Chosen { id, name, why, .. } = &self.chosen;
        context.tell(&Event::Device { id: *id, name: name.clone(), why: why.clone() });
    }
}

/// Voxels along each axis of the tile that devices are compared on.
const PROBE_EDGE: usize = 48;

impl Devices {
    /// The processor alone.
    pub fn cpu_only() -> Self {
        Self { all: vec![CpuEngine::new().device().clone()] }
    }

    /// The processor and the GPUs that probes found.
    pub fn with_gpus(gpus: Vec<Device>) -> Self {
        let mut all = gpus;
        all.extend(Self::cpu_only().all);
        Self { all }
    }

    /// The processor and the GPUs, looked for by `program probe-device KIND` in child processes.
    pub fn discover(program: &std::path::Path) -> Self {
        Self::with_gpus(cytoscope_engine_burn::probe::discover(program, &["probe-device"]))
    }

    /// Every device, usable or not.
    pub fn list(&self) -> &[Device] {
        &self.all
    }

    fn open(device: &Device) -> Result<Box<dyn Engine>, EngineError> {
        match device.id {
            DeviceId::Cpu => Ok(Box::new(CpuEngine::new())),
            DeviceId::Cuda(_) | DeviceId::Wgpu(_) => Ok(Box::new(cytoscope_engine_burn::BurnEngine::open(device)?)),
        }
    }

    /// The engine for a request without a model at hand.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] with the device's reason if it is not there or cannot be used.
    pub fn engine(&self, id: DeviceId) -> Result<Box<dyn Engine>, EngineError> {
        match self.all.iter().find(|d| d.id == id) {
            Some(device) if device.usable => Self::open(device),
            Some(device) => Err(EngineError::Unavailable { device: id, reason: device.reason.clone() }),
            None => {
                let reasons: Vec<String> = self
                    .all
                    .iter()
                    .map(|d| format!("{} ({})", d.id, if d.usable { "usable" } else { &d.reason }))
                    .collect();
                Err(EngineError::Unavailable {
                    device: id,
                    reason: format!("there is no such device; there are {}", reasons.join(", ")),
                })
            }
        }
    }

    /// The device for a model: the one asked for, or the fastest by a short measured run.
    ///
    /// # Errors
    /// [`JobError::Engine`] if the device asked for cannot be used, or no device runs the model.
    pub fn for_model(
        &self,
        context: &Context,
        model: &Model,
        request: DeviceRequest,
        job: &PredictJob,
    ) -> Result<ChosenEngine, JobError> {
        if let DeviceRequest::Device(id) = request {
            let engine = self.engine(id)?;
            let precision = model.precision_on(id, job.precision);
            return match verify(context, model, engine.as_ref(), precision, job.threads) {
                Ok(Verdict::Differs { how }) => Err(wrong_result(model, engine.as_ref(), &how)),
                Err(error) if error.kind() == JobErrorKind::Cancelled => Err(JobError::Cancelled),
                // Where the network does not run at all, running the stack says so, and another device may take over.
                Err(error) => {
                    context.note(unchecked(id, &error));
                    Ok(ChosenEngine::new(engine, "asked for".to_owned(), Vec::new()))
                }
                Ok(Verdict::Agrees) => Ok(ChosenEngine::new(engine, "asked for".to_owned(), Vec::new())),
            };
        }
        let mut engines = Vec::new();
        let mut unusable = Vec::new();
        for device in &self.all {
            match device.usable.then(|| Self::open(device)) {
                Some(Ok(engine)) => engines.push(engine),
                Some(Err(error)) => {
                    unusable.push(Device { usable: false, reason: error.to_string(), ..device.clone() })
                }
                None => unusable.push(device.clone()),
            }
        }
        let precision = |device| model.precision_on(device, job.precision);
        let edge: [usize; 3] = std::array::from_fn(|a| {
            if a == 0 && model.spatial_axes == 2 {
                1
            } else {
                PROBE_EDGE.max(model.min_size[a]).next_multiple_of(model.step[a])
            }
        });
        let shape = model.tensor_shape(model.input_channels, edge);
        let inputs = [Tensor::new(shape.clone(), vec![0.5f32; shape.iter().product()])?];
        if engines.len() > 1 {
            context.note(format!("comparing {} devices on a tile of {edge:?} voxels", engines.len()));
        }
        let compile = |engine: &dyn Engine| {
            let options = CompileOptions {
                precision: precision(engine.device().id),
                threads: job.threads,
                memory_budget_bytes: None,
                recorder: Recorder::totals_only(),
                interrupt: context.interrupt(),
            };
            model.compile(engine, &shape, &options)
        };
        let probe = Probe {
            fingerprint: &model.fingerprint,
            inputs: &inputs,
            threads: job.threads,
            precision: &precision,
            compile: &compile,
        };
        let mut cache = user_folder().map_or_else(Cache::in_memory, |f| Cache::open(&f.join("device-times.json")));
        loop {
            let choice = select::fastest(&engines, &unusable, &probe, &mut cache)?;
            let place = engines.iter().position(|e| e.device().id == choice.device);
            let place = place.ok_or_else(|| EngineError::BadDevice { text: choice.device.to_string() })?;
            let engine = engines.swap_remove(place);
            let reason = match verify(context, model, engine.as_ref(), precision(choice.device), job.threads) {
                Err(error) if error.kind() == JobErrorKind::Cancelled => return Err(JobError::Cancelled),
                Ok(Verdict::Differs { how }) if engines.is_empty() => {
                    return Err(wrong_result(model, engine.as_ref(), &how));
                }
                Ok(Verdict::Differs { how }) => format!("it does not compute this network correctly: {how}"),
                Err(error) if !engines.is_empty() => error.to_string(),
                Err(error) => {
                    context.note(unchecked(choice.device, &error));
                    return Ok(ChosenEngine::new(engine, choice.why, choice.measurements));
                }
                Ok(Verdict::Agrees) => return Ok(ChosenEngine::new(engine, choice.why, choice.measurements)),
            };
            context.note(format!("{} is not used: {reason}", choice.device));
            unusable.push(Device { usable: false, reason, ..engine.device().clone() });
        }
    }

    /// The processor, after another device failed.
    pub(crate) fn step_down(
        &self,
        context: &Context,
        model: &Model,
        job: &PredictJob,
        failed: &ChosenEngine,
        error: &EngineError,
    ) -> Result<ChosenEngine, JobError> {
        let engine = self.engine(DeviceId::Cpu)?;
        let precision = model.precision_on(DeviceId::Cpu, job.precision);
        if let Ok(Verdict::Differs { how }) = verify(context, model, engine.as_ref(), precision, job.threads) {
            return Err(wrong_result(model, engine.as_ref(), &how));
        }
        Ok(ChosenEngine::new(
            engine,
            format!("{} failed: {error}", failed.chosen.id),
            failed.chosen.measurements.clone(),
        ))
    }
}

/// A note of a network that could not be run on the small input of the check.
fn unchecked(device: DeviceId, error: &JobError) -> String {
    format!("this network could not be checked on {device} ({error})")
}

/// What the child process of a probe prints: one JSON array of devices.
pub fn probe_child(kind: &str) -> String {
    cytoscope_engine_burn::probe::child_main(kind)
}
