//! The compute devices of this machine, and the choice among them for a model.

mod failed;
mod fall_back;
mod free_memory;
mod session_memory;

use crate::predict::PredictOptions;
use crate::probe_input::{probe_edge, probe_input};
use crate::verify::{Verification, verify, wrong_result};
use crate::{AppliedProfile, Context, DeviceInUse, Event, JobError, JobErrorKind, Model, user_folder};
use cytoscope_engine::select::{self, Cache, Choice, KernelVersions, Measurement, Probe};
use cytoscope_engine::{CompileOptions, Device, DeviceId, DeviceRequest, Engine, EngineError, Precision};
pub use cytoscope_engine_burn::probe::ProbeRequest;
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::Tensor;
use cytoscope_profile::Recorder;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
pub use failed::{FailedDevice, forget_hung_probes};
use serde::{Deserialize, Serialize};
use session_memory::SessionMemory;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The file of the times and errors of networks on the devices, in the user's folder.
const DEVICE_TIMES: &str = "device-times.json";

/// Opens the engine of a device.
pub type OpenEngine = fn(&Device) -> Result<Box<dyn Engine>, EngineError>;

/// The devices of this machine.
#[derive(Debug, Clone)]
pub struct Devices {
    all: Vec<Device>,
    open: OpenEngine,
    /// Whether the next choice repeats measurements that are stored.
    measures_again: bool,
    /// GPUs that are not used, because an earlier process has ended while it used them.
    failed: Vec<FailedDevice>,
}

/// The device that a job runs on, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceChoice {
    /// Kind and index of the chosen device.
    pub id: DeviceId,
    /// Product name of the device, as the driver reports it.
    pub name: String,
    /// Why it was chosen, as text for the user.
    pub why: String,
    /// Measurements that the choice is based on. For a requested device, stored measurements of other devices are
    /// included.
    pub measurements: Vec<Measurement>,
}

/// A device with its engine, selected for a job.
#[derive(Clone)]
pub struct SelectedEngine {
    /// The device, and why it was chosen.
    pub choice: DeviceChoice,
    /// The settings of the job that a machine profile chose.
    pub(crate) profile: Option<AppliedProfile>,
    /// The precision that was chosen for the model with the options of the choice.
    precision: Precision,
    /// The precision that replaces the requested or chosen one, because that one failed.
    forced: Option<Precision>,
    /// Whether an input of the job exceeded the range of 16-bit floats, so that the next ones are computed in 32 bits.
    pub(crate) is_wide: bool,
    engine: Arc<dyn Engine>,
    memory: Arc<SessionMemory>,
    /// Whether the last input moved to another device, because it did not fit the memory of this one.
    is_left: bool,
    /// Devices that have failed in this job and are not used again.
    pub(crate) lost: Vec<DeviceId>,
}

impl std::fmt::Debug for SelectedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SelectedEngine").field("choice", &self.choice).finish_non_exhaustive()
    }
}

impl SelectedEngine {
    pub(crate) fn new(engine: Box<dyn Engine>, chosen: Choice) -> Self {
        let Choice { precision, why, measurements, .. } = chosen;
        let device = engine.device();
        let why = device.shortcoming().map_or_else(|| why.to_string(), |lacks| format!("{why}; {lacks}"));
        let choice = DeviceChoice { id: device.id, name: device.name.clone(), why, measurements };
        let memory = Arc::new(SessionMemory::of(device));
        let (engine, lost) = (Arc::from(engine), Vec::new());
        Self { choice, profile: None, precision, forced: None, is_wide: false, engine, memory, is_left: false, lost }
    }

    /// Returns the precision for the model that the device was chosen for: the requested one, or else the chosen one, unless
    /// another one replaces both.
    pub(crate) fn precision(&self, model: &Model, requested: Option<Precision>) -> Precision {
        match (self.forced, requested) {
            (Some(forced), _) => forced,
            (None, Some(_)) => precision_on(model, self.engine.device(), requested),
            (None, None) => self.precision,
        }
    }

    /// Returns the same device, which computes in this precision whatever is requested.
    pub(crate) fn in_precision(&self, precision: Precision) -> Self {
        Self { forced: Some(precision), ..self.clone() }
    }

    /// Returns the same device, which computes in 32 bits whatever is requested.
    pub(crate) fn in_32_bits(&self) -> Self {
        self.in_precision(self.engine.device().fast_precision())
    }

    /// Computes in 32 bits for the rest of the job, whatever is requested.
    pub(crate) fn stay_in_32_bits(&mut self) {
        self.forced = Some(self.engine.device().fast_precision());
        self.is_wide = true;
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

    /// Returns whether the device has its own memory and the size of that memory is known.
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

    /// Leaves the device for an input that does not fit its memory. The next one may use all of that memory again.
    pub(crate) fn leave(&mut self) {
        self.memory = Arc::new(SessionMemory::of(self.engine.device()));
        self.is_left = true;
    }

    /// Returns to the device for the next input, and reports that if the last one had left it.
    pub(crate) fn come_back(&mut self, context: &Context) {
        if std::mem::take(&mut self.is_left) {
            self.report(context);
        }
    }

    /// Returns the engine that compiles and runs graphs on the device.
    pub fn engine(&self) -> &dyn Engine {
        self.engine.as_ref()
    }

    /// Returns whether another device, at last the CPU, can take over if this one fails.
    pub(crate) fn has_fallback(&self) -> bool {
        self.choice.id != DeviceId::Cpu
    }

    /// Emits [`Event::Device`].
    pub fn report(&self, context: &Context) {
        let DeviceChoice { id, name, why, .. } = &self.choice;
        context.emit(&Event::Device(DeviceInUse { id: *id, name: name.clone(), why: why.clone() }));
    }
}

/// The engines of usable devices, and the devices that cannot be used.
type OpenedDevices = (Vec<Box<dyn Engine>>, Vec<Device>);

impl Devices {
    /// Returns the CPU as the only device, without looking for GPUs.
    pub fn cpu_only() -> Self {
        Self::with_engines(vec![CpuEngine::new().device().clone()], open_engine)
    }

    /// Returns the CPU and the given GPUs.
    pub fn with_gpus(gpus: Vec<Device>) -> Self {
        cytoscope_engine_burn::set_known_devices(&gpus);
        let mut all = gpus;
        all.extend(Self::cpu_only().all);
        Self::with_engines(all, open_engine)
    }

    /// Returns these devices, the CPU among them, with another function that opens their engines, such as that of a test.
    pub fn with_engines(all: Vec<Device>, open: OpenEngine) -> Self {
        Self { all, open, measures_again: false, failed: Vec::new() }
    }

    /// Measures devices and precisions again for the next models, instead of using what was measured before.
    #[must_use]
    pub fn measured_again(self) -> Self {
        Self { measures_again: true, ..self }
    }

    /// Returns whether measurements that are stored are repeated.
    pub fn measures_again(&self) -> bool {
        self.measures_again
    }

    /// Returns the CPU and the GPUs of this machine, which are probed in child processes by `program probe-device
    /// KIND`. Probes that hung are not repeated at each start.
    pub fn discover(program: &std::path::Path) -> Self {
        let folder = cytoscope_engine_burn::cache_folder();
        Self::with_gpus(cytoscope_engine_burn::probe::discover_remembering(program, &["probe-device"], &folder))
    }

    /// Returns every device, usable or not.
    pub fn list(&self) -> &[Device] {
        &self.all
    }

    /// Opens the engine of a device.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] with the reason if the device does not exist or cannot be used.
    pub fn engine(&self, id: DeviceId) -> Result<Box<dyn Engine>, EngineError> {
        match self.all.iter().find(|d| d.id == id) {
            Some(device) if device.usable => (self.open)(device),
            Some(device) => Err(EngineError::Unavailable { device: id, reason: device.reason_message() }),
            None => {
                let known = |d: &Device| match d.usable {
                    true => message!("{} (usable)", d.id),
                    false => message!("{} ({})", d.id, d.reason_message()),
                };
                let known = Message::joined(&self.all.iter().map(known).collect::<Vec<Message>>(), ", ");
                let reason = message!("there is no such device; the devices of this machine are {known}");
                Err(EngineError::Unavailable { device: id, reason })
            }
        }
    }

    /// Selects the device and precision for a model: the requested ones, or the fastest in a short measurement, with a
    /// precision whose error on the package's test tensor is within [`select::ERROR_BUDGET`]. In place of a requested GPU
    /// that has failed (see [`Devices::without`]), the next device is selected.
    ///
    /// # Errors
    /// [`JobError::Engine`] if the requested device cannot be used, no device computes in the requested precision, or no
    /// device can run the model.
    pub fn for_model(
        &self,
        context: &Context,
        model: &Model,
        request: DeviceRequest,
        options: &PredictOptions,
    ) -> Result<SelectedEngine, JobError> {
        if let Some(failed) = self.failed_choice(request, options.precision) {
            return self.after_failure(context, model, options, failed);
        }
        let is_requested = request != DeviceRequest::Auto;
        let (mut engines, mut unusable) = self.open_requested(context, request, options.precision)?;
        let edge = probe_edge(model);
        let may_compare = options.precision.is_none() && engines.iter().any(|e| has_several_precisions(e.device()));
        let (input, is_of_package) = if is_requested && !may_compare {
            // Nothing is measured.
            (Tensor::vector(Vec::<f32>::new()), false)
        } else {
            probe_input(model, edge, may_compare)?
        };
        let shape = input.shape().to_vec();
        // Precisions that were found to compute this model incorrectly.
        let mut wrong: Vec<(DeviceId, Precision)> = Vec::new();
        let mut cache = measurements(DEVICE_TIMES);
        if self.measures_again {
            cache.forget(&model.fingerprint);
        }
        let compile = |engine: &dyn Engine, precision: Precision| {
            context.report_tried_device(engine.device().id);
            model.compile(engine, &shape, &probe_options(context, precision, options.threads))
        };
        announce(context, &engines, edge, may_compare && is_of_package);
        loop {
            let precisions = |device: &Device| {
                let mut all = candidates(model, device, options.precision, is_of_package);
                all.retain(|precision| !wrong.contains(&(device.id, *precision)));
                all
            };
            let probe = Probe {
                fingerprint: &model.fingerprint,
                inputs: std::slice::from_ref(&input),
                unit: "tile",
                threads: options.threads,
                precisions: &precisions,
                compile: &compile,
                on_error: &|error| context.report_lost_device(error),
            };
            let mut choice = choose(&engines, &unusable, &probe, &mut cache, is_requested)?;
            if is_requested {
                choice.why = requested_text(&choice).into();
                let shape = model.tensor_shape(model.input_channels, edge);
                add_stored(&mut choice, cache.stored(&model.fingerprint, &[&shape], options.threads));
            } else {
                choice.why = message!("{}{}", choice.why, self.failed_text());
            }
            let engine = engines.iter().find(|e| e.device().id == choice.device);
            let engine = engine.ok_or_else(|| EngineError::BadDevice { text: choice.device.to_string() })?;
            let has_others = precisions(engine.device()).len() > 1;
            let is_last = engines.len() == 1 && !has_others;
            let reason = match verify(context, model, engine.as_ref(), choice.precision, options.threads) {
                Err(error) if error.kind() == JobErrorKind::Canceled => return Err(JobError::Canceled),
                Ok(Verification::Differs { how }) if is_last => return Err(wrong_result(model, engine.as_ref(), &how)),
                Ok(Verification::Differs { how }) => message!("it does not compute this network correctly: {how}"),
                Err(error) if !is_last => error.message(),
                // Predicting the stack reports a network that does not run, and another device may take over.
                Err(error) => {
                    context.note(unverified_note(choice.device, &error));
                    return take(context, options.precision, engines, choice);
                }
                Ok(Verification::Agrees) => return take(context, options.precision, engines, choice),
            };
            context.note(message!("{} in {} is not used: {reason}", choice.device, choice.precision));
            if has_others {
                wrong.push((choice.device, choice.precision));
            } else {
                unusable.push(Device { usable: false, reason: reason.into(), ..engine.device().clone() });
                engines.retain(|engine| engine.device().id != choice.device);
            }
        }
    }

    /// Opens the engines to choose from for a request; returns them and the devices that cannot be used.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] if the requested device cannot be used; [`EngineError::NoPrecision`] if none of several
    /// devices has the requested precision.
    fn open_requested(
        &self,
        context: &Context,
        request: DeviceRequest,
        precision: Option<Precision>,
    ) -> Result<OpenedDevices, EngineError> {
        match request {
            DeviceRequest::Device(id) => Ok((vec![self.engine(id)?], Vec::new())),
            DeviceRequest::Auto => {
                let (engines, unusable) = self.open_all(context);
                check_precision(engines.iter().map(|engine| engine.device()), precision)?;
                Ok((engines, unusable))
            }
        }
    }

    /// Opens the engines of all usable devices; returns them and the devices that cannot be used. GPUs that have failed are
    /// reported.
    fn open_all(&self, context: &Context) -> OpenedDevices {
        let mut engines = Vec::new();
        let mut unusable = Vec::new();
        for device in &self.all {
            let open = || {
                context.report_tried_device(device.id);
                (self.open)(device)
            };
            match device.usable.then(open) {
                Some(Ok(engine)) => engines.push(engine),
                Some(Err(error)) => {
                    context.report_lost_device(&error);
                    unusable.push(Device { usable: false, reason: error.to_string(), ..device.clone() })
                }
                None => unusable.push(device.clone()),
            }
        }
        (engines, unusable)
    }
}

/// Opens the engine of a device of this machine.
fn open_engine(device: &Device) -> Result<Box<dyn Engine>, EngineError> {
    match device.id {
        DeviceId::Cpu => Ok(Box::new(CpuEngine::new())),
        DeviceId::Cuda(_) | DeviceId::Wgpu(_) => Ok(Box::new(cytoscope_engine_burn::BurnEngine::open(device)?)),
    }
}

/// Opens the measurements that this build has stored in the file of this name in the user's folder.
pub fn measurements(name: &str) -> Cache {
    let path = user_folder().map(|folder| folder.join(name));
    let kernels = KernelVersions { cpu: cytoscope_engine_cpu::KERNELS, gpu: cytoscope_engine_burn::KERNELS };
    path.map_or_else(Cache::in_memory, |path| Cache::open(&path, kernels))
}

/// Refuses a requested precision that none of the devices has.
///
/// # Errors
/// [`EngineError::NoPrecision`], with the precisions of all devices.
fn check_precision<'d>(
    devices: impl Iterator<Item = &'d Device> + Clone,
    requested: Option<Precision>,
) -> Result<(), EngineError> {
    let Some(precision) = requested else { return Ok(()) };
    if devices.clone().any(|device| device.precisions.contains(&precision)) {
        return Ok(());
    }
    let precisions_text = |device: &Device| {
        let names: Vec<&str> = device.precisions.iter().map(|p| p.name()).collect();
        let lacks = device.shortcoming().map(|lacks| message!(" ({lacks})")).unwrap_or_default();
        message!("{} on {}{lacks}", names.join(", "), device.id)
    };
    let has = Message::joined(&devices.map(precisions_text).collect::<Vec<Message>>(), "; ");
    Err(EngineError::NoPrecision { precision, has })
}

/// Returns the fastest device and precision. If no precision of a requested device can be measured, returns the first one.
fn choose(
    engines: &[Box<dyn Engine>],
    unusable: &[Device],
    probe: &Probe<'_>,
    cache: &mut Cache,
    is_requested: bool,
) -> Result<Choice, EngineError> {
    let measured = select::fastest(engines, unusable, probe, cache);
    match (measured, engines) {
        // If a requested device fails here, the job reports why, and another device may take over.
        (Err(error), [only]) if is_requested => {
            let device = only.device();
            let precision = (probe.precisions)(device).first().copied();
            let precision = precision.ok_or(error)?;
            Ok(Choice { device: device.id, precision, why: Message::default(), measurements: Vec::new() })
        }
        (measured, _) => measured,
    }
}

/// Returns why a requested device runs in the precision of the choice.
fn requested_text(choice: &Choice) -> String {
    let is_measured = choice.measurements.iter().any(|m| m.best_ms.is_some());
    if is_measured { format!("requested; {}", choice.why) } else { "requested".to_owned() }
}

/// Adds the times that were measured for the model before to the measurements of a requested device, so that the profiler
/// can name a faster one.
fn add_stored(choice: &mut Choice, stored: Vec<Measurement>) {
    let own: Vec<_> = choice.measurements.iter().filter(|m| m.best_ms.is_some()).map(|m| m.device).collect();
    choice.measurements.extend(stored.into_iter().filter(|m| !own.contains(&m.device)));
}

/// Takes the engine of a choice. A note says if its precision replaces the requested one.
fn take(
    context: &Context,
    requested: Option<Precision>,
    engines: Vec<Box<dyn Engine>>,
    choice: Choice,
) -> Result<SelectedEngine, JobError> {
    let device = choice.device;
    let engine = engines.into_iter().find(|engine| engine.device().id == device);
    let engine = engine.ok_or_else(|| EngineError::BadDevice { text: device.to_string() })?;
    if let Some(note) = replaced_note(engine.device(), requested, choice.precision) {
        context.note(note);
    }
    Ok(SelectedEngine::new(engine, choice))
}

/// Returns the note that a device lacks the requested tf32, in place of which it computes in `precision`; `None` if it has it, or
/// if another precision was requested, which is refused if it is missing.
fn replaced_note(device: &Device, requested: Option<Precision>, precision: Precision) -> Option<Message> {
    let requested = requested.filter(|requested| *requested == Precision::Tf32 && precision != Precision::Tf32)?;
    let lacks = device.shortcoming().map(|lacks| message!(" ({lacks})")).unwrap_or_default();
    Some(message!("{} does not compute in {requested}{lacks}: {precision} is used", device.id))
}

/// Returns the options with which a model is compiled to be measured.
fn probe_options(context: &Context, precision: Precision, threads: usize) -> CompileOptions {
    CompileOptions { recorder: Recorder::totals_only(), ..context.compile_options(precision, threads) }
}

/// Emits a note that devices or precisions are being compared.
fn announce(context: &Context, engines: &[Box<dyn Engine>], edge: [usize; 3], compares_precisions: bool) {
    let what = match (engines.len(), compares_precisions) {
        (0 | 1, false) => return,
        (0 | 1, true) => "precisions".to_owned(),
        (n, false) => format!("{n} devices"),
        (n, true) => format!("{n} devices and their precisions"),
    };
    context.note(format!("comparing {what} on a tile of {edge:?} voxels"));
}

/// Returns whether a device has float precisions to choose from by measurement. A CPU computes in f32 unless another
/// precision is requested, so that its results do not depend on its instruction set.
fn has_several_precisions(device: &Device) -> bool {
    device.id != DeviceId::Cpu
        && device.precisions.iter().filter(|precision| **precision != Precision::Int8).count() > 1
}

/// Returns the precision to run in on a device if none is chosen by measurement, as [`Model::precision_on`] does. As tf32
/// only permits rounding, GPUs without it compute in f32.
fn precision_on(model: &Model, device: &Device, requested: Option<Precision>) -> Precision {
    match model.precision_on(device.id, requested) {
        Precision::Tf32 => device.fast_precision(),
        precision => precision,
    }
}

/// Returns the precisions to choose from on a device: the requested one; without a request, all float precisions of the
/// device if their results can be compared, otherwise the default. Int8 networks on the CPU were measured when they were
/// quantized.
fn candidates(model: &Model, device: &Device, requested: Option<Precision>, can_compare: bool) -> Vec<Precision> {
    let default = precision_on(model, device, requested);
    if requested.is_some() || default == Precision::Int8 || !can_compare || !has_several_precisions(device) {
        return vec![default];
    }
    device.precisions.iter().copied().filter(|precision| *precision != Precision::Int8).collect()
}

/// Returns the note about a network that could not be run on the small input of the check.
fn unverified_note(device: DeviceId, error: &JobError) -> Message {
    message!("the network could not be checked on {device} ({})", error.message())
}

/// Returns what the child process of a probe prints at the end: a JSON array of devices. `print` receives such arrays before
/// each test, in which a driver may crash or hang.
pub fn probe_child(request: ProbeRequest, print: &mut dyn FnMut(&str)) -> String {
    cytoscope_engine_burn::probe::child_main(&request.to_string(), print)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_engine::Shortcoming;

    fn nuclei() -> Model {
        Model::load(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nuclei")).unwrap()
    }

    #[test]
    fn precisions_are_only_chosen_automatically_if_they_can_be_compared() {
        let model = nuclei();
        let gpu = |precisions: &[Precision]| Device {
            id: DeviceId::Cuda(0),
            precisions: precisions.to_vec(),
            ..CpuEngine::new().device().clone()
        };
        let all = [Precision::F32, Precision::Tf32, Precision::F16];
        assert_eq!(candidates(&model, &gpu(&all), None, true), all);
        assert_eq!(candidates(&model, &gpu(&all), None, false), [Precision::Tf32]);
        assert_eq!(candidates(&model, &gpu(&all), Some(Precision::F16), true), [Precision::F16]);
        assert!(!candidates(&model, &gpu(&all[..2]), None, true).contains(&Precision::F16));
        // Turing has no tensor cores for tf32.
        let turing = gpu(&[Precision::F32, Precision::F16]);
        assert_eq!(candidates(&model, &turing, None, false), [Precision::F32]);
        assert_eq!(candidates(&model, &turing, Some(Precision::Tf32), true), [Precision::F32]);
        let error = "wrong results".to_owned();
        let failed = Shortcoming::FailedPrecisions { precisions: vec![Precision::Tf32], error };
        let failed = Device { shortcomings: vec![failed], ..turing };
        let note = |requested, precision| replaced_note(&failed, requested, precision);
        let lacks = "cuda:0 does not compute in tf32 (tf32 cannot be used: wrong results): f32 is used";
        assert_eq!(note(Some(Precision::Tf32), Precision::F32).as_deref(), Some(lacks));
        assert_eq!(note(None, Precision::F32).or(note(Some(Precision::Tf32), Precision::Tf32)), None);
        let cpu = candidates(&model, CpuEngine::new().device(), None, true);
        assert_eq!(cpu, [if model.has_int8 { Precision::Int8 } else { Precision::F32 }]);
    }

    #[test]
    fn a_precision_that_no_device_has_is_refused_with_those_that_exist() {
        let cpu = Device::named(DeviceId::Cpu, "a CPU", &[Precision::F32, Precision::Int8]);
        let gpu = |precisions: &[Precision]| Device::named(DeviceId::Wgpu(0), "a GPU", precisions);
        let plain = [cpu.clone(), gpu(&[Precision::F32])];
        let refused = check_precision(plain.iter(), Some(Precision::Bf16)).unwrap_err().to_string();
        assert!(refused.contains("no device here computes in bf16"), "{refused}");
        assert!(refused.contains("f32, int8 on cpu; f32 on wgpu:0"), "{refused}");
        assert!(
            check_precision(plain.iter(), Some(Precision::F32)).is_ok() && check_precision(plain.iter(), None).is_ok()
        );
        let headers = vec!["mma.h".to_owned()];
        let lacks = Shortcoming::MissingHeaders { headers, advice: "tf32, f16 and bf16 need mma.h".to_owned() };
        let lacking = Device { shortcomings: vec![lacks], ..gpu(&[Precision::F32]) };
        let refused = check_precision(std::iter::once(&lacking), Some(Precision::F16)).unwrap_err().to_string();
        assert!(refused.ends_with("f32 on wgpu:0 (tf32, f16 and bf16 need mma.h)"), "{refused}");
        let half = [cpu.clone(), gpu(&[Precision::F32, Precision::Bf16])];
        assert!(check_precision(half.iter(), Some(Precision::Bf16)).is_ok());
    }

    #[test]
    fn devices_are_compared_on_the_test_tensor_of_the_package() {
        let model = nuclei();
        let edge = probe_edge(&model);
        let (input, is_of_package) = probe_input(&model, edge, true).unwrap();
        assert!(is_of_package);
        assert_eq!(input.shape(), model.tensor_shape(model.input_channels, edge));
        let package = cytoscope_model_package::Package::open(&model.path).unwrap();
        let (given, _) = package.test_tensors().unwrap().unwrap();
        let expected = crate::package_test::network_inputs(&package, &given).unwrap();
        assert_eq!(input.as_f32().unwrap()[..8], expected[0].as_f32().unwrap()[..8]);
        assert!(!probe_input(&model, edge, false).unwrap().1);
    }
}
