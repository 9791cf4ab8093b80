//! Chooses the fastest device and precision for a model by timing short runs, and caches the times.

use crate::{Device, DeviceId, Engine, EngineError, Precision, Session};
use cytoscope_graph::Tensor;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::time::Instant;

mod cache;

pub use cache::{Cache, KernelVersions};
use cache::{Entry, LoweredLimit, Timing, TooSmall};

/// Maximum relative L2 error of a network's outputs, against f32 on the same device, with which a precision is chosen
/// automatically.
pub const ERROR_BUDGET: f64 = 5e-3;

/// Measured time and error of one model on one device in one precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Device that the network was timed on.
    pub device: DeviceId,
    /// The measured precision; `None` for devices that cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Shortest time of one run on the probe's inputs in ms; `None` if the model was not measured or cannot run.
    pub best_ms: Option<f64>,
    /// Relative L2 error of the outputs against f32 on the same device; `None` if they were not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// Memory limit in bytes with which it was measured, because the device ran out of memory with a higher one; `None` if
    /// no limit was lowered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowered_limit_bytes: Option<u64>,
    /// Why it cannot be chosen; empty otherwise.
    pub reason: String,
    /// Whether the time, or the lack of memory, comes from the cache.
    pub cached: bool,
}

impl Measurement {
    /// Returns the time in ms if this device and precision can be chosen.
    pub fn usable_ms(&self) -> Option<f64> {
        self.best_ms.filter(|_| self.reason.is_empty())
    }

    fn unmeasured(device: DeviceId, precision: Option<Precision>, reason: String) -> Self {
        Self { device, precision, best_ms: None, error: None, lowered_limit_bytes: None, reason, cached: false }
    }

    /// Returns the name of the device with the precision.
    fn label(&self) -> String {
        self.precision.map_or_else(|| self.device.to_string(), |precision| format!("{} {precision}", self.device))
    }
}

/// The chosen device and precision, and the measurements behind the choice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// The chosen device.
    pub device: DeviceId,
    /// The chosen precision.
    pub precision: Precision,
    /// The reason for the choice, shown to the user.
    pub why: String,
    /// Measurements of all devices, including unusable ones.
    pub measurements: Vec<Measurement>,
}

/// Returns the first 128 bits of the SHA-256 of a model's bytes as hex.
pub fn fingerprint(model: &[u8]) -> String {
    Sha256::digest(model).iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// Compiles a model for an engine in a precision.
pub type CompileFor<'a> = dyn Fn(&dyn Engine, Precision) -> Result<Box<dyn Session>, EngineError> + 'a;

/// The model and inputs that [`fastest`] measures.
pub struct Probe<'a> {
    /// The model's [`fingerprint`], part of the cache key.
    pub fingerprint: &'a str,
    /// Input tensors of one run, in the order of the graph's inputs.
    pub inputs: &'a [Tensor],
    /// Work of one run, such as `tile`, for the sentence about the choice.
    pub unit: &'a str,
    /// Number of threads to compile for; 0 uses all cores.
    pub threads: usize,
    /// Returns the precisions to choose from on a device; at least one. If [`Precision::F32`] is among them, the
    /// outputs in the other float precisions are compared with those in f32, and have to be within [`ERROR_BUDGET`].
    pub precisions: &'a dyn Fn(&Device) -> Vec<Precision>,
    /// Compiles the model.
    pub compile: &'a CompileFor<'a>,
    /// Receives each error of a measurement, such as that of a GPU that has failed.
    pub on_error: &'a dyn Fn(&EngineError),
}

/// Measures the probe on each engine in each precision (one warm-up run, then the best of three) and returns the fastest
/// device and precision whose error is within [`ERROR_BUDGET`].
///
/// An engine that cannot run the model is listed with the reason. A single engine with a single precision is chosen
/// without measuring.
///
/// # Errors
/// The last engine's error if no engine can run the model.
pub fn fastest(
    engines: &[Box<dyn Engine>],
    unusable: &[Device],
    probe: &Probe<'_>,
    cache: &mut Cache,
) -> Result<Choice, EngineError> {
    let mut measurements: Vec<Measurement> =
        unusable.iter().map(|d| Measurement::unmeasured(d.id, None, d.reason.clone())).collect();
    let mut errors = Vec::new();
    if let [only] = engines
        && let [precision] = (probe.precisions)(only.device()).as_slice()
    {
        let (device, precision) = (only.device().id, *precision);
        measurements.push(Measurement::unmeasured(device, Some(precision), "not measured".to_owned()));
        return Ok(Choice { device, precision, why: format!("{device} is the only usable device"), measurements });
    }
    for engine in engines {
        measure_engine(engine.as_ref(), probe, cache, &mut measurements, &mut errors);
    }
    let usable = measurements.iter().filter_map(|m| Some((m.usable_ms()?, m.precision?, m)));
    let Some((_, precision, chosen)) = usable.min_by(|a, b| a.0.total_cmp(&b.0)) else {
        let last = errors.pop().map(|(_, error)| error);
        return Err(last.unwrap_or_else(|| EngineError::BadDevice { text: "no usable device".to_owned() }));
    };
    let why = choice_text(&measurements, chosen, probe.unit, &failures(&errors, &measurements));
    Ok(Choice { device: chosen.device, precision, why, measurements })
}

/// Measures an engine in all its precisions, and adds errors with their device.
fn measure_engine(
    engine: &dyn Engine,
    probe: &Probe<'_>,
    cache: &mut Cache,
    measurements: &mut Vec<Measurement>,
    errors: &mut Vec<(DeviceId, EngineError)>,
) {
    let device = engine.device();
    let mut precisions = (probe.precisions)(device);
    // The outputs in f32 are those that the others are compared with.
    precisions.sort_by_key(|precision| *precision != Precision::F32);
    let has_f32 = precisions.first() == Some(&Precision::F32);
    let mut exact = None;
    for precision in precisions {
        let compares = has_f32 && !matches!(precision, Precision::F32 | Precision::Int8);
        let key = cache.key(probe, device, precision);
        let known = cache.get(&key, device, compares);
        let cached = known.is_some();
        let timing = known.unwrap_or_else(|| measure(engine, probe, precision, compares, &mut exact));
        let entry = match &timing {
            Ok(timing) => Some(Entry::Time(*timing)),
            Err(error) => TooSmall::of(error, device).map(Entry::TooSmall),
        };
        if let Some(entry) = entry.filter(|_| !cached) {
            cache.put(key, entry);
        }
        measurements.push(match timing {
            Ok(Timing { best_ms, error, lowered }) => {
                let error = error.filter(|_| compares);
                let reason = error_problem(error);
                let (best_ms, precision) = (Some(best_ms), Some(precision));
                let lowered_limit_bytes = lowered.map(|lowered| lowered.limit_bytes);
                Measurement { device: device.id, precision, best_ms, error, lowered_limit_bytes, reason, cached }
            }
            Err(error) => {
                (probe.on_error)(&error);
                let reason = error.to_string();
                errors.push((device.id, error));
                Measurement { cached, ..Measurement::unmeasured(device.id, Some(precision), reason) }
            }
        });
    }
}

/// Returns why a precision with this error cannot be chosen; empty if it can.
fn error_problem(error: Option<f64>) -> String {
    match error {
        Some(f64::MAX) => "its results are not finite, or f32 gives only zeros".to_owned(),
        Some(error) if error > ERROR_BUDGET => {
            format!("its results differ by {error:.1e} from f32, which is more than {ERROR_BUDGET:.0e}")
        }
        _ => String::new(),
    }
}

/// Measures a precision. `exact` are the outputs in f32, which are computed when they are first needed.
fn measure(
    engine: &dyn Engine,
    probe: &Probe<'_>,
    precision: Precision,
    compares: bool,
    exact: &mut Option<Vec<Tensor>>,
) -> Result<Timing, EngineError> {
    let mut error = None;
    if compares && exact.is_none() {
        *exact = Some((probe.compile)(engine, Precision::F32)?.run(probe.inputs)?);
    }
    let mut session = (probe.compile)(engine, precision)?;
    let outputs = session.run(probe.inputs)?;
    if compares {
        error = exact.as_deref().map(|exact| relative_error(exact, &outputs));
    }
    let mut best_ms = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        session.run(probe.inputs)?;
        best_ms = best_ms.min(start.elapsed().as_secs_f64() * 1e3);
    }
    if precision == Precision::F32 {
        *exact = Some(outputs);
    }
    let lowered = session.lowered_limit_bytes().map(|bytes| LoweredLimit::new(bytes, engine.device()));
    Ok(Timing { best_ms, error, lowered })
}

/// Returns the largest relative L2 error of an output; [`f64::MAX`], which unlike an infinity can be stored as JSON, if
/// one is not finite or has another shape.
fn relative_error(exact: &[Tensor], outputs: &[Tensor]) -> f64 {
    let of_output = |(exact, output): (&Tensor, &Tensor)| {
        if exact.shape() != output.shape() {
            return f64::MAX;
        }
        let (exact, output) = (exact.to_f64_vec(), output.to_f64_vec());
        let squares: f64 = exact.iter().map(|v| v * v).sum();
        let difference: f64 = exact.iter().zip(&output).map(|(a, b)| (a - b) * (a - b)).sum();
        let error = if difference == 0.0 { 0.0 } else { (difference / squares).sqrt() };
        if error.is_finite() { error } else { f64::MAX }
    };
    if exact.len() != outputs.len() {
        return f64::MAX;
    }
    exact.iter().zip(outputs).map(of_output).fold(0.0, f64::max)
}

/// Returns a speed relative to that of `baseline`, as text.
fn speed_text(ratio: f64, baseline: &str) -> String {
    let times = match ratio {
        r if r >= 9.95 => format!("{r:.0}"),
        r if r >= 0.95 => format!("{r:.1}"),
        r if r >= 0.005 => format!("{r:.2}"),
        _ => "less than 0.01".to_owned(),
    };
    format!("{times} times the speed of {baseline}")
}

/// Returns the first error of each device that has failed in every precision. Devices that lack a precision or an operator
/// have not failed.
fn failures(errors: &[(DeviceId, EngineError)], measurements: &[Measurement]) -> Vec<String> {
    let mut failed: BTreeMap<DeviceId, String> = BTreeMap::new();
    for (device, error) in errors {
        let has_failed = matches!(error, EngineError::Device { .. } | EngineError::OutOfMemory { .. });
        if has_failed && !measurements.iter().any(|m| m.device == *device && m.best_ms.is_some()) {
            failed.entry(*device).or_insert_with(|| error.finding());
        }
    }
    failed.into_values().collect()
}

/// Explains a choice in one sentence: speeds relative to the CPU's if that was measured, otherwise to f32 on the same
/// device; each other device with its fastest precision; devices that have failed; and faster precisions whose error is too
/// large.
fn choice_text(measurements: &[Measurement], chosen: &Measurement, unit: &str, failures: &[String]) -> String {
    let Some(chosen_ms) = chosen.usable_ms() else { return chosen.label() };
    let mut others: BTreeMap<DeviceId, (f64, &Measurement)> = BTreeMap::new();
    for (ms, other) in measurements.iter().filter_map(|m| Some((m.usable_ms()?, m))) {
        let is_best = others.get(&other.device).is_none_or(|(best_ms, _)| ms < *best_ms);
        if other.device != chosen.device && is_best {
            others.insert(other.device, (ms, other));
        }
    }
    let own_f32 = measurements.iter().find(|m| m.device == chosen.device && m.precision == Some(Precision::F32));
    let own_f32 = own_f32.filter(|m| m.precision != chosen.precision).and_then(|m| Some((m.usable_ms()?, m.label())));
    let baseline = match others.remove(&DeviceId::Cpu) {
        Some((ms, _)) => Some((ms, "the CPU".to_owned())),
        None if chosen.device == DeviceId::Cpu => None,
        None => own_f32,
    };
    let mut parts = vec![match &baseline {
        Some((ms, name)) => format!("{}: {}", chosen.label(), speed_text(ms / chosen_ms, name)),
        None => format!("{}: {chosen_ms:.1} ms per {unit}", chosen.label()),
    }];
    // Without another baseline, the chosen device is the CPU, or the model was measured in one precision only.
    let own_name = || if chosen.device == DeviceId::Cpu { "the CPU".to_owned() } else { chosen.label() };
    let (baseline_ms, name) = baseline.clone().unwrap_or_else(|| (chosen_ms, own_name()));
    let others = others.values();
    parts.extend(others.map(|(ms, other)| format!("{}: {}", other.label(), speed_text(baseline_ms / ms, &name))));
    parts.extend(failures.iter().cloned());
    let is_compared = measurements.iter().any(|m| m.device != chosen.device);
    if parts.len() == 1 && baseline.is_none() && is_compared {
        parts.push("no other device can run this model".to_owned());
    }
    let rejected = measurements.iter().filter(|m| m.device == chosen.device && !m.reason.is_empty());
    let faster = rejected.filter(|m| m.best_ms.is_some_and(|ms| ms < chosen_ms));
    parts.extend(faster.map(|m| format!("{} is faster, but {}", m.label(), m.reason)));
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::{CompileOptions, CompileReport};
    use cytoscope_graph::Graph;
    use std::time::Duration;

    /// Computes nothing: its sessions are made by the probe.
    struct Fake(Device);

    impl Engine for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }

        fn device(&self) -> &Device {
            &self.0
        }

        fn compile(&self, _: &Graph, _: &[Vec<usize>], _: &CompileOptions) -> Result<Box<dyn Session>, EngineError> {
            Err(EngineError::BadDevice { text: "fake".to_owned() })
        }
    }

    /// Takes some time and returns its output.
    struct Fixed {
        time: Duration,
        output: Vec<f32>,
        report: CompileReport,
    }

    impl Session for Fixed {
        fn run(&mut self, _: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
            std::thread::sleep(self.time);
            Ok(vec![Tensor::vector(self.output.clone())])
        }

        fn report(&self) -> &CompileReport {
            &self.report
        }
    }

    fn fake(id: DeviceId, precisions: &[Precision]) -> Box<dyn Engine> {
        Box::new(Fake(Device { driver: "1.0".to_owned(), ..Device::named(id, "a device", precisions) }))
    }

    /// Sleeps 40 ms in f32, 2 ms in f16 and 0 ms in bf16, whose outputs differ by 3e-4 and 3e-2.
    fn session(_: &dyn Engine, precision: Precision) -> Result<Box<dyn Session>, EngineError> {
        let (millis, error) = match precision {
            Precision::F16 => (2, 3e-4),
            Precision::Bf16 => (0, 3e-2),
            _ => (40, 0.0),
        };
        let output = vec![3.0 * (1.0 + error), 4.0 * (1.0 + error)];
        Ok(Box::new(Fixed { time: Duration::from_millis(millis), output, report: CompileReport::default() }))
    }

    /// [`Fixed`], compiled with a lowered memory limit of 500 bytes.
    struct Lowered(Fixed);

    impl Session for Lowered {
        fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
            self.0.run(inputs)
        }

        fn report(&self) -> &CompileReport {
            self.0.report()
        }

        fn lowered_limit_bytes(&self) -> Option<u64> {
            Some(500)
        }
    }

    fn lowered(_: &dyn Engine, _: Precision) -> Result<Box<dyn Session>, EngineError> {
        let (time, output, report) = (Duration::ZERO, vec![1.0], CompileReport::default());
        Ok(Box::new(Lowered(Fixed { time, output, report })))
    }

    fn never(_: &dyn Engine, _: Precision) -> Result<Box<dyn Session>, EngineError> {
        Err(EngineError::BadDevice { text: "measured again".to_owned() })
    }

    fn of_device(device: &Device) -> Vec<Precision> {
        device.precisions.clone()
    }

    const ALL: [Precision; 3] = [Precision::F16, Precision::Bf16, Precision::F32];

    fn chosen(engines: &[Box<dyn Engine>], compile: &CompileFor<'_>, cache: &mut Cache) -> Result<Choice, EngineError> {
        let (precisions, on_error) = (&of_device, &|_: &EngineError| {});
        let probe = Probe { fingerprint: "m", inputs: &[], unit: "tile", threads: 1, precisions, compile, on_error };
        fastest(engines, &[], &probe, cache)
    }

    #[test]
    fn the_fastest_precision_within_the_error_budget_is_chosen_and_remembered() {
        let engines = [fake(DeviceId::Cuda(0), &ALL)];
        let mut cache = Cache::in_memory();
        let choice = chosen(&engines, &session, &mut cache).unwrap();
        assert_eq!((choice.device, choice.precision), (DeviceId::Cuda(0), Precision::F16), "{}", choice.why);
        assert!(
            choice.why.starts_with("cuda:0 f16: ") && choice.why.contains(" times the speed of cuda:0 f32"),
            "{}",
            choice.why
        );
        let rejected = "cuda:0 bf16 is faster, but its results differ by 3.0e-2 from f32, which is more than 5e-3";
        assert!(choice.why.ends_with(rejected), "{}", choice.why);
        let error = choice.measurements.iter().find(|m| m.precision == Some(Precision::F16)).unwrap().error.unwrap();
        assert!((error - 3e-4).abs() < 1e-6, "{error}");
        let again = chosen(&engines, &never, &mut cache).unwrap();
        assert_eq!((again.precision, again.why), (choice.precision, choice.why));
        assert!(again.measurements.iter().all(|m| m.cached));
        let stored = cache.stored("m", &[], 1);
        let by_precision = |all: &[Measurement]| -> BTreeMap<&'static str, Option<f64>> {
            all.iter().filter_map(|m| Some((m.precision?.name(), m.usable_ms()))).collect()
        };
        assert_eq!(by_precision(&stored), by_precision(&again.measurements), "bf16 has too large an error");
        assert!(cache.stored("m", &[], 2).is_empty() && cache.stored("another", &[], 1).is_empty());
        cache.forget("another");
        assert!(chosen(&engines, &never, &mut cache).is_ok());
        cache.forget("m");
        assert!(chosen(&engines, &never, &mut cache).is_err());
    }

    #[test]
    fn a_gpu_with_less_memory_than_one_of_the_same_name_is_measured_on_its_own() {
        let engines = |id: DeviceId, gib: u64| -> [Box<dyn Engine>; 1] {
            let device = Device { memory_bytes: Some(gib << 30), ..fake(id, &ALL).device().clone() };
            [Box::new(Fake(device))]
        };
        let mut cache = Cache::in_memory();
        chosen(&engines(DeviceId::Cuda(0), 80), &session, &mut cache).unwrap();
        assert!(chosen(&engines(DeviceId::Cuda(0), 80), &never, &mut cache).is_ok());
        assert!(chosen(&engines(DeviceId::Cuda(0), 10), &never, &mut cache).is_err(), "everything is measured again");
        // The CPU is measured once, however much memory is available.
        chosen(&engines(DeviceId::Cpu, 80), &session, &mut cache).unwrap();
        assert!(chosen(&engines(DeviceId::Cpu, 79), &never, &mut cache).is_ok());
    }

    #[test]
    fn measurements_of_other_kernels_are_not_used() {
        let folder = std::env::temp_dir().join(format!("cytoscope-measurements-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("times.json");
        let gpu = || [fake(DeviceId::Cuda(0), &ALL)];
        let cpu = || [fake(DeviceId::Cpu, &[Precision::F32, Precision::Int8])];
        let open = |cpu, gpu| Cache::open(&file, KernelVersions { cpu, gpu });
        let mut first = open("cpu 1", "gpu 1");
        chosen(&gpu(), &session, &mut first).unwrap();
        chosen(&cpu(), &session, &mut first).unwrap();
        let mut same = open("cpu 1", "gpu 1");
        assert_eq!(same.stored("m", &[], 1).len(), 5);
        assert!(chosen(&gpu(), &never, &mut same).is_ok() && chosen(&cpu(), &never, &mut same).is_ok());
        // The times of the CPU do not depend on the kernels of GPUs, nor the other way round.
        let changed_gpu = (("cpu 1", "gpu 2"), cpu(), 2, gpu());
        let changed_cpu = (("cpu 2", "gpu 1"), gpu(), 3, cpu());
        for ((cpu, gpu), known, count, other) in [changed_gpu, changed_cpu] {
            let mut cache = open(cpu, gpu);
            assert_eq!(cache.stored("m", &[], 1).len(), count, "{cpu}, {gpu}");
            assert!(chosen(&known, &never, &mut cache).is_ok(), "{cpu}, {gpu}");
            assert!(chosen(&other, &never, &mut cache).is_err(), "measured again: {cpu}, {gpu}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn two_processes_that_measure_keep_each_others_times() {
        let folder = std::env::temp_dir().join(format!("cytoscope-two-writers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("times.json");
        let open = || Cache::open(&file, KernelVersions { cpu: "cpu 1", gpu: "gpu 1" });
        let (mut one, mut other) = (open(), open());
        chosen(&[fake(DeviceId::Cuda(0), &ALL)], &session, &mut one).unwrap();
        chosen(&[fake(DeviceId::Cpu, &[Precision::F32, Precision::Int8])], &session, &mut other).unwrap();
        assert_eq!(open().stored("m", &[], 1).len(), 5);
        // What one of them forgets does not come back with the next time of the other.
        one.forget("m");
        other.put("another|cpu|cpu 1".to_owned(), Entry::Time(Timing { best_ms: 1.0, error: None, lowered: None }));
        assert!(open().stored("m", &[], 1).is_empty());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_time_without_a_comparison_does_not_make_a_precision_eligible() {
        let mut cache = Cache::in_memory();
        // Measured because it was requested: there was nothing to compare it with.
        let asked = [fake(DeviceId::Cuda(0), &[Precision::Bf16]), fake(DeviceId::Cpu, &[Precision::F32])];
        assert_eq!(chosen(&asked, &session, &mut cache).unwrap().precision, Precision::Bf16);
        let choice = chosen(&[fake(DeviceId::Cuda(0), &ALL)], &session, &mut cache).unwrap();
        assert_eq!(choice.precision, Precision::F16, "{}", choice.why);
    }

    #[test]
    fn speeds_are_stated_relative_to_the_cpu() {
        let measured = |device, precision, best_ms: f64| Measurement {
            device,
            precision: Some(precision),
            best_ms: Some(best_ms),
            error: None,
            lowered_limit_bytes: None,
            reason: String::new(),
            cached: false,
        };
        let all = [
            measured(DeviceId::Cuda(0), Precision::F32, 6.0),
            measured(DeviceId::Cuda(0), Precision::Bf16, 2.0),
            measured(DeviceId::Wgpu(0), Precision::F32, 8.0),
            measured(DeviceId::Cpu, Precision::F32, 82.0),
        ];
        let text = |measurements: &[Measurement], chosen: usize, unit: &str| {
            choice_text(measurements, &measurements[chosen], unit, &[])
        };
        let both = "cuda:0 bf16: 41 times the speed of the CPU; wgpu:0 f32: 10 times the speed of the CPU";
        assert_eq!(text(&all, 1, "tile"), both);
        for (best_ms, speed) in [(164.0, "0.50"), (8200.0, "0.01"), (82e3, "less than 0.01")] {
            let two = [measured(DeviceId::Wgpu(0), Precision::F32, best_ms), all[3].clone()];
            let expected = format!("cpu f32: 82.0 ms per tile; wgpu:0 f32: {speed} times the speed of the CPU");
            assert_eq!(text(&two, 1, "tile"), expected);
        }
        let gpus = [measured(DeviceId::Cuda(0), Precision::F32, 2.0), measured(DeviceId::Wgpu(0), Precision::F32, 4.0)];
        let expected = "cuda:0 f32: 2.0 ms per tile; wgpu:0 f32: 0.50 times the speed of cuda:0 f32";
        assert_eq!(text(&gpus, 0, "tile"), expected);
        let missing = Measurement::unmeasured(DeviceId::Wgpu(0), None, "no driver".to_owned());
        let alone = [missing, all[3].clone()];
        let expected = "cpu f32: 82.0 ms per step; no other device can run this model";
        assert_eq!(text(&alone, 1, "step"), expected);
        assert_eq!(text(&alone[1..], 0, "tile"), "cpu f32: 82.0 ms per tile");
    }

    #[test]
    fn a_device_that_fails_when_it_is_measured_is_named_with_the_reason() {
        let gpu = [Precision::F32, Precision::F16];
        let engines = [fake(DeviceId::Cuda(0), &gpu), fake(DeviceId::Wgpu(0), &gpu), fake(DeviceId::Cpu, &gpu[..1])];
        let compile = |engine: &dyn Engine, precision: Precision| match engine.device().id {
            device @ DeviceId::Cuda(_) => Err(EngineError::Device { device, reason: "it has no power".to_owned() }),
            // In another precision, it computes.
            device @ DeviceId::Wgpu(_) if precision == Precision::F16 => {
                Err(EngineError::OutOfMemory { device, needed_bytes: 0, available_bytes: 0 })
            }
            _ => session(engine, precision),
        };
        let choice = chosen(&engines, &compile, &mut Cache::in_memory()).unwrap();
        assert!(choice.why.ends_with("; cuda:0 failed: it has no power"), "{}", choice.why);
        assert!(!choice.why.contains("not enough memory"), "{}", choice.why);
    }

    #[test]
    fn a_gpu_that_is_too_small_is_tried_again_when_more_memory_is_free_or_on_request() {
        let folder = std::env::temp_dir().join(format!("cytoscope-too-small-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("times.json");
        let tries = std::cell::Cell::new(0);
        let small = |engine: &dyn Engine, precision: Precision| match engine.device().id {
            device @ DeviceId::Cuda(_) => {
                tries.set(tries.get() + 1);
                Err(EngineError::OutOfMemory { device, needed_bytes: 3 << 30, available_bytes: 1 << 30 })
            }
            _ => session(engine, precision),
        };
        let open = || Cache::open(&file, KernelVersions { cpu: "cpu 1", gpu: "gpu 1" });
        let run = |free_bytes: Option<u64>, cache: &mut Cache| {
            let gpu = fake(DeviceId::Cuda(0), &ALL[2..]).device().clone();
            let gpu: Box<dyn Engine> = Box::new(Fake(Device { free_bytes, ..gpu }));
            chosen(&[gpu, fake(DeviceId::Cpu, &ALL[2..])], &small, cache).unwrap()
        };
        let first = run(Some(1000), &mut open());
        assert!(tries.take() == 1 && !first.measurements[0].cached, "{first:?}");
        // About as much is free, or less. The choice is explained as before.
        for free_bytes in [1000, 1050, 10] {
            let again = run(Some(free_bytes), &mut open());
            assert!(tries.get() == 0 && again.measurements[0].cached, "{again:?}");
            assert_eq!((&again.why, &again.measurements[0].reason), (&first.why, &first.measurements[0].reason));
        }
        assert!(open().stored("m", &[], 1).iter().all(|m| m.device == DeviceId::Cpu), "there is no time");
        run(Some(1200), &mut open());
        assert_eq!(tries.take(), 1, "more memory is free");
        let mut cache = open();
        cache.forget("m");
        run(Some(1200), &mut cache);
        assert_eq!(tries.take(), 1, "measuring again was requested");
        // If the free memory is unknown, it is also unknown whether there is enough of it now.
        for _ in 0..2 {
            run(None, &mut Cache::in_memory());
            run(None, &mut open());
        }
        assert_eq!(tries.take(), 4);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_lowered_memory_limit_is_stored_with_the_time_until_more_memory_is_free() {
        let folder = std::env::temp_dir().join(format!("cytoscope-lowered-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("times.json");
        type Compile = fn(&dyn Engine, Precision) -> Result<Box<dyn Session>, EngineError>;
        let limit = |free_bytes: Option<u64>, compile: Compile| {
            let gpu = fake(DeviceId::Cuda(0), &ALL[2..]).device().clone();
            let gpu: Box<dyn Engine> = Box::new(Fake(Device { free_bytes, ..gpu }));
            let mut cache = Cache::open(&file, KernelVersions { cpu: "cpu 1", gpu: "gpu 1" });
            let choice = chosen(&[gpu, fake(DeviceId::Cpu, &ALL[2..])], &compile, &mut cache).unwrap();
            choice.measurements[0].lowered_limit_bytes
        };
        assert_eq!(limit(Some(1000), lowered), Some(500));
        for free_bytes in [Some(1000), Some(1050), Some(10), None] {
            assert_eq!(limit(free_bytes, never), Some(500), "{free_bytes:?}");
        }
        assert_eq!(limit(Some(1200), never), None, "more memory is free, so that it is measured again");
        std::fs::remove_dir_all(&folder).unwrap();
        // Files of earlier versions have no limits.
        let old: Entry = serde_json::from_str(r#"{"best_ms": 2.0, "error": null}"#).unwrap();
        assert_eq!(old, Entry::Time(Timing { best_ms: 2.0, error: None, lowered: None }));
    }

    #[test]
    fn outputs_that_are_not_finite_are_outside_every_budget() {
        let tensor = |values: &[f32]| vec![Tensor::vector(values.to_vec())];
        assert_eq!(relative_error(&tensor(&[1.0, 2.0]), &tensor(&[1.0, f32::NAN])), f64::MAX);
        assert_eq!(relative_error(&tensor(&[0.0]), &tensor(&[1.0])), f64::MAX);
        assert_eq!(relative_error(&tensor(&[0.0]), &tensor(&[0.0])), 0.0);
    }
}
