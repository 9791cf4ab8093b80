//! Chooses the fastest device and precision for a model by timing short runs, and caches the times.

use crate::{Device, DeviceId, Engine, EngineError, Precision, Session};
use cytoscope_graph::Tensor;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::sha256_of_bytes;
use serde::{Deserialize, Serialize};
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
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The chosen device.
    pub device: DeviceId,
    /// The chosen precision.
    pub precision: Precision,
    /// The reason for the choice, shown to the user.
    pub why: Message,
    /// Measurements of all devices, including unusable ones.
    pub measurements: Vec<Measurement>,
}

/// Returns the first 128 bits of the SHA-256 of bytes, such as those of a model, as hex.
pub fn fingerprint(bytes: &[u8]) -> String {
    let mut digits = sha256_of_bytes(bytes);
    digits.truncate(32);
    digits
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
        return Ok(Choice { device, precision, why: message!("{device} is the only usable device"), measurements });
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
    let output_error = |(exact, output): (&Tensor, &Tensor)| {
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
    exact.iter().zip(outputs).map(output_error).fold(0.0, f64::max)
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
fn failures(errors: &[(DeviceId, EngineError)], measurements: &[Measurement]) -> Vec<Message> {
    let mut failed: BTreeMap<DeviceId, Message> = BTreeMap::new();
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
fn choice_text(measurements: &[Measurement], chosen: &Measurement, unit: &str, failures: &[Message]) -> Message {
    let Some(chosen_ms) = chosen.usable_ms() else { return chosen.label().into() };
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
        Some((ms, name)) => message!("{}: {}", chosen.label(), speed_text(ms / chosen_ms, name)),
        None => message!("{}: {chosen_ms:.1} ms per {unit}", chosen.label()),
    }];
    // Without another baseline, the chosen device is the CPU, or the model was measured in one precision only.
    let own_name = || if chosen.device == DeviceId::Cpu { "the CPU".to_owned() } else { chosen.label() };
    let (baseline_ms, name) = baseline.clone().unwrap_or_else(|| (chosen_ms, own_name()));
    let others = others.values();
    parts.extend(others.map(|(ms, other)| message!("{}: {}", other.label(), speed_text(baseline_ms / ms, &name))));
    parts.extend(failures.iter().cloned());
    let is_compared = measurements.iter().any(|m| m.device != chosen.device);
    if parts.len() == 1 && baseline.is_none() && is_compared {
        parts.push("no other device can run this model".into());
    }
    let rejected = measurements.iter().filter(|m| m.device == chosen.device && !m.reason.is_empty());
    let faster = rejected.filter(|m| m.best_ms.is_some_and(|ms| ms < chosen_ms));
    parts.extend(faster.map(|m| message!("{} is faster, but {}", m.label(), m.reason)));
    Message::joined(&parts, "; ")
}

#[cfg(test)]
mod tests;
