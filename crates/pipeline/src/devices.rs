//! The compute devices of this machine, and the choice among them for a model.

use crate::predict::PredictOptions;
use crate::verify::{Verification, verify, wrong_result};
use crate::{AppliedProfile, Context, DeviceInUse, Event, JobError, JobErrorKind, Model, user_folder};
use cytoscope_engine::select::{self, Cache, Measurement, Probe};
use cytoscope_engine::{CompileOptions, Device, DeviceId, DeviceRequest, Engine, EngineError};
pub use cytoscope_engine_burn::probe::ProbeRequest;
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::Tensor;
use cytoscope_profile::Recorder;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The devices of this machine.
#[derive(Debug, Clone)]
pub struct Devices {
    all: Vec<Device>,
}

/// The device that a job runs on, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceChoice {
    /// Kind and index of the chosen device.
    pub id: DeviceId,
    /// The device's name.
    pub name: String,
    /// Why it was chosen, as text for the user.
    pub why: String,
    /// Measurements that the choice is based on.
    pub measurements: Vec<Measurement>,
}

/// A device with its engine, selected for a job.
#[derive(Clone)]
pub struct SelectedEngine {
    /// The device, and why it was chosen.
    pub choice: DeviceChoice,
    /// The settings of the job that a machine profile chose.
    pub(crate) profile: Option<AppliedProfile>,
    engine: Arc<dyn Engine>,
    memory: Arc<SessionMemory>,
    /// Whether it took over from a device that failed.
    is_replacement: bool,
}

/// Memory for sessions on a device in bytes, as far as it is known.
#[derive(Debug)]
struct SessionMemory {
    /// Maximum size of a session.
    limit: AtomicU64,
    /// Size of the session that was compiled last; 0 if there was none.
    last: AtomicU64,
    /// Tiles of a run of that session.
    last_batch: AtomicUsize,
    /// Size of the smallest session that ran out of memory.
    failed: AtomicU64,
}

impl SessionMemory {
    /// Starts with what the device has available. A part is left for what Burn allocates besides tensors.
    fn of(device: &Device) -> Self {
        let available = device.available_bytes().filter(|_| device.id != DeviceId::Cpu);
        Self {
            limit: AtomicU64::new(available.map_or(u64::MAX, |bytes| bytes / 8 * 7)),
            last: AtomicU64::new(0),
            last_batch: AtomicUsize::new(1),
            failed: AtomicU64::new(u64::MAX),
        }
    }

    /// Halves the limit after the last session ran out of memory. Returns false if it was not smaller than an earlier one
    /// that did, so that there is nothing left to try.
    fn shrink(&self) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        if last == 0 || last >= self.failed.load(Ordering::Relaxed) {
            return false;
        }
        self.failed.store(last, Ordering::Relaxed);
        self.limit.store(last / 2, Ordering::Relaxed);
        true
    }
}

impl std::fmt::Debug for SelectedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SelectedEngine").field("choice", &self.choice).finish_non_exhaustive()
    }
}

impl SelectedEngine {
    fn new(engine: Box<dyn Engine>, why: String, measurements: Vec<Measurement>) -> Self {
        let device = engine.device();
        let choice = DeviceChoice { id: device.id, name: device.name.clone(), why, measurements };
        let memory = Arc::new(SessionMemory::of(device));
        Self { choice, profile: None, engine: Arc::from(engine), memory, is_replacement: false }
    }

    /// Returns the bytes that a session on the device may hold.
    pub(crate) fn session_limit(&self) -> u64 {
        self.memory.limit.load(Ordering::Relaxed)
    }

    /// Records the size in bytes of a session that was compiled for `batch` tiles, or would have been if the device had
    /// more memory.
    pub(crate) fn record_session(&self, bytes: u64, batch: usize) {
        self.memory.last.store(bytes, Ordering::Relaxed);
        self.memory.last_batch.store(batch, Ordering::Relaxed);
    }

    /// Returns the number of tiles of a run of the session that was compiled last.
    pub(crate) fn last_batch(&self) -> usize {
        self.memory.last_batch.load(Ordering::Relaxed)
    }

    /// Returns whether sessions are in a memory of the device's own whose size is known.
    pub(crate) fn has_own_memory(&self) -> bool {
        self.choice.id != DeviceId::Cpu && self.engine.device().available_bytes().is_some()
    }

    /// Lowers the limit of sessions after the last one ran out of memory. Returns false if there is no smaller size left
    /// to try.
    pub(crate) fn shrink_sessions(&self) -> bool {
        self.memory.shrink()
    }

    /// Returns whether a session has run out of memory on the device.
    pub(crate) fn has_run_out(&self) -> bool {
        self.memory.failed.load(Ordering::Relaxed) != u64::MAX
    }

    /// Returns the engine that compiles and runs graphs on the device.
    pub fn engine(&self) -> &dyn Engine {
        self.engine.as_ref()
    }

    /// Returns whether the device took over from one that failed.
    pub(crate) fn is_replacement(&self) -> bool {
        self.is_replacement
    }

    /// Returns whether the CPU can take over if this device fails.
    pub(crate) fn has_fallback(&self) -> bool {
        self.choice.id != DeviceId::Cpu
    }

    /// Emits [`Event::Device`].
    pub(crate) fn report(&self, context: &Context) {
        let DeviceChoice { id, name, why, .. } = &self.choice;
        context.emit(&Event::Device(DeviceInUse { id: *id, name: name.clone(), why: why.clone() }));
    }
}

/// Voxels along each axis of the tile that is used to compare the speed of devices.
const PROBE_EDGE: usize = 48;

impl Devices {
    /// Returns the CPU alone.
    pub fn cpu_only() -> Self {
        Self { all: vec![CpuEngine::new().device().clone()] }
    }

    /// Returns the CPU and the given GPUs.
    pub fn with_gpus(gpus: Vec<Device>) -> Self {
        cytoscope_engine_burn::set_known_devices(&gpus);
        let mut all = gpus;
        all.extend(Self::cpu_only().all);
        Self { all }
    }

    /// Returns the CPU and the GPUs of this machine, which are probed in child processes by `program probe-device
    /// KIND`.
    pub fn discover(program: &std::path::Path) -> Self {
        Self::with_gpus(cytoscope_engine_burn::probe::discover(program, &["probe-device"]))
    }

    /// Returns every device, usable or not.
    pub fn list(&self) -> &[Device] {
        &self.all
    }

    fn open(device: &Device) -> Result<Box<dyn Engine>, EngineError> {
        match device.id {
            DeviceId::Cpu => Ok(Box::new(CpuEngine::new())),
            DeviceId::Cuda(_) | DeviceId::Wgpu(_) => Ok(Box::new(cytoscope_engine_burn::BurnEngine::open(device)?)),
        }
    }

    /// Opens the engine of a device.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] with the reason if the device does not exist or cannot be used.
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
                    reason: format!("there is no such device; available are {}", reasons.join(", ")),
                })
            }
        }
    }

    /// Selects the device for a model: the requested one, or the fastest in a short measurement.
    ///
    /// # Errors
    /// [`JobError::Engine`] if the requested device cannot be used, or no device can run the model.
    pub fn for_model(
        &self,
        context: &Context,
        model: &Model,
        request: DeviceRequest,
        options: &PredictOptions,
    ) -> Result<SelectedEngine, JobError> {
        if let DeviceRequest::Device(id) = request {
            return self.requested(context, model, id, options);
        }
        let (mut engines, mut unusable) = self.open_all();
        let precision = |device| model.precision_on(device, options.precision);
        let edge = probe_edge(model);
        let shape = model.tensor_shape(model.input_channels, edge);
        let inputs = [Tensor::new(shape.clone(), vec![0.5f32; shape.iter().product()])?];
        if engines.len() > 1 {
            context.note(format!("comparing {} devices on a tile of {edge:?} voxels", engines.len()));
        }
        let compile = |engine: &dyn Engine| {
            let compile = CompileOptions {
                precision: precision(engine.device().id),
                threads: options.threads,
                memory_budget_bytes: None,
                recorder: Recorder::totals_only(),
                interrupt: context.interrupt(),
                tuning: context.tuning(),
            };
            model.compile(engine, &shape, &compile)
        };
        let probe = Probe {
            fingerprint: &model.fingerprint,
            inputs: &inputs,
            threads: options.threads,
            precision: &precision,
            compile: &compile,
        };
        let mut cache = user_folder().map_or_else(Cache::in_memory, |f| Cache::open(&f.join("device-times.json")));
        loop {
            let choice = select::fastest(&engines, &unusable, &probe, &mut cache)?;
            let place = engines.iter().position(|e| e.device().id == choice.device);
            let place = place.ok_or_else(|| EngineError::BadDevice { text: choice.device.to_string() })?;
            let engine = engines.swap_remove(place);
            let reason = match verify(context, model, engine.as_ref(), precision(choice.device), options.threads) {
                Err(error) if error.kind() == JobErrorKind::Cancelled => return Err(JobError::Cancelled),
                Ok(Verification::Differs { how }) if engines.is_empty() => {
                    return Err(wrong_result(model, engine.as_ref(), &how));
                }
                Ok(Verification::Differs { how }) => format!("it does not compute this network correctly: {how}"),
                Err(error) if !engines.is_empty() => error.to_string(),
                Err(error) => {
                    context.note(unverified_note(choice.device, &error));
                    return Ok(SelectedEngine::new(engine, choice.why, choice.measurements));
                }
                Ok(Verification::Agrees) => return Ok(SelectedEngine::new(engine, choice.why, choice.measurements)),
            };
            context.note(format!("{} is not used: {reason}", choice.device));
            unusable.push(Device { usable: false, reason, ..engine.device().clone() });
        }
    }

    /// Selects the requested device, if it computes the network correctly.
    fn requested(
        &self,
        context: &Context,
        model: &Model,
        id: DeviceId,
        options: &PredictOptions,
    ) -> Result<SelectedEngine, JobError> {
        let engine = self.engine(id)?;
        let precision = model.precision_on(id, options.precision);
        match verify(context, model, engine.as_ref(), precision, options.threads) {
            Ok(Verification::Differs { how }) => Err(wrong_result(model, engine.as_ref(), &how)),
            Err(error) if error.kind() == JobErrorKind::Cancelled => Err(JobError::Cancelled),
            // If the network does not run at all, predicting the stack reports that, and another device may take
            // over.
            Err(error) => {
                context.note(unverified_note(id, &error));
                Ok(SelectedEngine::new(engine, "requested".to_owned(), Vec::new()))
            }
            Ok(Verification::Agrees) => Ok(SelectedEngine::new(engine, "requested".to_owned(), Vec::new())),
        }
    }

    /// Opens the engines of all usable devices; returns them and the devices that cannot be used.
    fn open_all(&self) -> (Vec<Box<dyn Engine>>, Vec<Device>) {
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
        (engines, unusable)
    }

    /// Selects the CPU after another device failed.
    pub(crate) fn fall_back_to_cpu(
        &self,
        context: &Context,
        model: &Model,
        options: &PredictOptions,
        failed: &SelectedEngine,
        error: &EngineError,
    ) -> Result<SelectedEngine, JobError> {
        let engine = self.engine(DeviceId::Cpu)?;
        let precision = model.precision_on(DeviceId::Cpu, options.precision);
        match verify(context, model, engine.as_ref(), precision, options.threads) {
            Ok(Verification::Agrees) => {}
            Ok(Verification::Differs { how }) => return Err(wrong_result(model, engine.as_ref(), &how)),
            Err(error) if error.kind() == JobErrorKind::Cancelled => return Err(error),
            // If the network does not run at all, predicting the stack reports that.
            Err(error) => context.note(unverified_note(DeviceId::Cpu, &error)),
        }
        let why = format!("{} failed: {error}", failed.choice.id);
        let selected = SelectedEngine::new(engine, why, failed.choice.measurements.clone());
        Ok(SelectedEngine { profile: failed.profile.clone(), is_replacement: true, ..selected })
    }
}

/// Returns the size Z, Y, X of the tile that devices are measured on.
fn probe_edge(model: &Model) -> [usize; 3] {
    std::array::from_fn(|a| {
        if a == 0 && model.spatial_axes == 2 {
            1
        } else {
            PROBE_EDGE.max(model.min_size[a]).next_multiple_of(model.step[a])
        }
    })
}

/// Returns the note about a network that could not be run on the small input of the check.
fn unverified_note(device: DeviceId, error: &JobError) -> String {
    format!("the network could not be checked on {device} ({error})")
}

/// Returns what the child process of a probe prints: a JSON array of devices.
pub fn probe_child(request: ProbeRequest) -> String {
    cytoscope_engine_burn::probe::child_main(&request.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_shrink_until_the_smallest_one_runs_out_of_memory() {
        let memory = |free_bytes| {
            SessionMemory::of(&Device { id: DeviceId::Cuda(0), free_bytes, ..CpuEngine::new().device().clone() })
        };
        assert_eq!(memory(Some(8000)).limit.into_inner(), 7000);
        let memory = memory(Some(1 << 30));
        assert!(!memory.shrink(), "there was no session");
        memory.last.store(1 << 20, Ordering::Relaxed);
        assert!(memory.shrink());
        assert_eq!(memory.limit.load(Ordering::Relaxed), 1 << 19);
        memory.last.store(1 << 18, Ordering::Relaxed);
        assert!(memory.shrink());
        assert!(!memory.shrink(), "the same size was tried already");
        let cpu = SessionMemory::of(CpuEngine::new().device());
        assert_eq!(cpu.limit.into_inner(), u64::MAX, "the CPU has the job's budget");
    }
}
