//! Chooses the fastest device for a model by timing short runs, and caches the times.

use crate::{Device, DeviceId, Engine, EngineError, Precision, Session};
use cytoscope_graph::Tensor;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Measured time of one model on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The measured device.
    pub device: DeviceId,
    /// Shortest time of one run on the probe's inputs in ms; `None` if the model was not measured or cannot run.
    pub best_ms: Option<f64>,
    /// Why there is no time; empty otherwise.
    pub reason: String,
    /// Whether the time comes from the cache.
    pub cached: bool,
}

/// The chosen device and the measurements behind the choice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// The chosen device.
    pub device: DeviceId,
    /// The reason for the choice, shown to the user.
    pub why: String,
    /// Measurements of all devices, including unusable ones.
    pub measurements: Vec<Measurement>,
}

/// Measured times by model, device, driver and input shape, in ms. An unreadable cache file counts as empty, and
/// failing to write it is ignored: the times can always be measured again.
#[derive(Debug, Default)]
pub struct Cache {
    path: Option<PathBuf>,
    entries: BTreeMap<String, f64>,
}

impl Cache {
    /// Opens the cache in a file, which is created on the first write.
    pub fn open(path: &Path) -> Self {
        let entries = std::fs::metadata(path)
            .ok()
            .filter(|m| m.len() < 4 << 20)
            .and_then(|_| std::fs::read(path).ok())
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        Self { path: Some(path.to_owned()), entries }
    }

    /// Returns a cache that is not saved to a file.
    pub fn in_memory() -> Self {
        Self::default()
    }

    fn put(&mut self, key: String, ms: f64) {
        self.entries.insert(key, ms);
        if let (Some(path), Ok(text)) = (&self.path, serde_json::to_vec_pretty(&self.entries)) {
            // If the cache cannot be written, the next start measures again.
            let created = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            if created.is_ok() {
                let _ = cytoscope_storage::write::atomic_write(path, &text);
            }
        }
    }
}

/// Returns the first 128 bits of the SHA-256 of a model's bytes as hex.
pub fn fingerprint(model: &[u8]) -> String {
    Sha256::digest(model).iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// Compiles a model for an engine.
pub type CompileFor<'a> = dyn Fn(&dyn Engine) -> Result<Box<dyn Session>, EngineError> + 'a;

/// The model and inputs that [`fastest`] measures.
pub struct Probe<'a> {
    /// The model's [`fingerprint`], part of the cache key.
    pub fingerprint: &'a str,
    /// Inputs of one run.
    pub inputs: &'a [Tensor],
    /// Number of threads to compile for; 0 uses all cores.
    pub threads: usize,
    /// Returns the precision to use on a device.
    pub precision: &'a dyn Fn(DeviceId) -> Precision,
    /// Compiles the model for an engine in that precision.
    pub compile: &'a CompileFor<'a>,
}

/// Measures the probe on each engine (one warm-up run, then the best of three) and returns the fastest device.
///
/// An engine that cannot run the model is listed with the reason. A single engine is chosen without measuring.
///
/// # Errors
/// The last engine's error if no engine can run the model.
pub fn fastest(
    engines: &[Box<dyn Engine>],
    unusable: &[Device],
    probe: &Probe<'_>,
    cache: &mut Cache,
) -> Result<Choice, EngineError> {
    let mut measurements: Vec<Measurement> = unusable
        .iter()
        .map(|d| Measurement { device: d.id, best_ms: None, reason: d.reason.clone(), cached: false })
        .collect();
    let mut last_error = None;
    if let [only] = engines {
        let why = format!("{} is the only usable device", only.device().id);
        measurements.push(Measurement {
            device: only.device().id,
            best_ms: None,
            reason: "not measured".to_owned(),
            cached: false,
        });
        return Ok(Choice { device: only.device().id, why, measurements });
    }
    for engine in engines {
        let device = engine.device();
        let shapes: Vec<_> = probe.inputs.iter().map(Tensor::shape).collect();
        let key = format!(
            "{}|{}|{}|{}|{}|{shapes:?}|{}",
            probe.fingerprint,
            device.id,
            device.name,
            device.driver,
            (probe.precision)(device.id),
            probe.threads
        );
        let cached = cache.entries.get(&key).copied();
        let measured = match cached {
            Some(ms) => Ok(ms),
            None => measure(engine.as_ref(), probe).inspect(|ms| cache.put(key, *ms)),
        };
        measurements.push(match measured {
            Ok(ms) => {
                Measurement { device: device.id, best_ms: Some(ms), reason: String::new(), cached: cached.is_some() }
            }
            Err(error) => {
                let reason = error.to_string();
                last_error = Some(error);
                Measurement { device: device.id, best_ms: None, reason, cached: false }
            }
        });
    }
    let mut timed: Vec<(f64, DeviceId)> = measurements.iter().filter_map(|m| Some((m.best_ms?, m.device))).collect();
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    match timed.as_slice() {
        [] => Err(last_error.unwrap_or_else(|| EngineError::BadDevice { text: "no usable device".to_owned() })),
        [(ms, device)] => Ok(Choice {
            device: *device,
            why: format!("{device} takes {ms:.1} ms per tile; no other device can run this model"),
            measurements,
        }),
        [(ms, device), (next_ms, next), ..] => Ok(Choice {
            device: *device,
            why: format!("{device} takes {ms:.1} ms per tile, {next} {next_ms:.1} ms"),
            measurements,
        }),
    }
}

fn measure(engine: &dyn Engine, probe: &Probe<'_>) -> Result<f64, EngineError> {
    let mut session = (probe.compile)(engine)?;
    session.run(probe.inputs)?;
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        session.run(probe.inputs)?;
        best = best.min(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(best)
}
