//! The fastest device for a model, by a short measured run, remembered.

use crate::{Device, DeviceId, Engine, EngineError, Precision, Session};
use cytoscope_graph::Tensor;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One device's measured time for one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The device.
    pub device: DeviceId,
    /// Best time of one run on the probe's shape in ms; `None` if the model does not run there.
    pub best_ms: Option<f64>,
    /// Why not, where it does not.
    pub reason: String,
    /// Whether the figure was remembered from an earlier measurement.
    pub cached: bool,
}

/// The choice and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// The device chosen.
    pub device: DeviceId,
    /// A sentence for people.
    pub why: String,
    /// Every device's figure.
    pub measurements: Vec<Measurement>,
}

/// Figures kept between runs: model, device, driver and shape -> ms. A file that cannot be read counts as empty, one that
/// cannot be written is left: measuring again is always possible.
#[derive(Debug, Default)]
pub struct Cache {
    path: Option<PathBuf>,
    entries: BTreeMap<String, f64>,
}

impl Cache {
    /// The cache kept in a file.
    pub fn open(path: &Path) -> Self {
        let entries = std::fs::metadata(path)
            .ok()
            .filter(|m| m.len() < 4 << 20)
            .and_then(|_| std::fs::read(path).ok())
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        Self { path: Some(path.to_owned()), entries }
    }

    /// A cache that forgets.
    pub fn in_memory() -> Self {
        Self::default()
    }

    fn put(&mut self, key: String, ms: f64) {
        self.entries.insert(key, ms);
        if let (Some(path), Ok(text)) = (&self.path, serde_json::to_vec_pretty(&self.entries)) {
            // A cache that cannot be written is measured again next time.
            let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            if made.is_ok() {
                let _ = cytoscope_storage::write::atomic_write(path, &text);
            }
        }
    }
}

/// A fingerprint of a model's bytes.
pub fn fingerprint(model: &[u8]) -> String {
    Sha256::digest(model).iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// Compiles a model for an engine.
pub type CompileFor<'a> = dyn Fn(&dyn Engine) -> Result<Box<dyn Session>, EngineError> + 'a;

/// What [`fastest`] measures.
pub struct Probe<'a> {
    /// The model's fingerprint, for the cache.
    pub fingerprint: &'a str,
    /// Inputs of one run.
    pub inputs: &'a [Tensor],
    /// Threads it is compiled for; 0 takes all.
    pub threads: usize,
    /// The precision it has on a device.
    pub precision: &'a dyn Fn(DeviceId) -> Precision,
    /// Compiles the model for an engine, in that precision.
    pub compile: &'a CompileFor<'a>,
}

/// Measures the probe on each engine (one warm-up, then the best of three) and takes the fastest.
///
/// An engine that cannot run the model is left out with its reason; with one candidate left nothing is measured.
///
/// # Errors
/// The last engine's error if none can run the model.
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
        let known = cache.entries.get(&key).copied();
        let measured = match known {
            Some(ms) => Ok(ms),
            None => measure(engine.as_ref(), probe).inspect(|ms| cache.put(key, *ms)),
        };
        measurements.push(match measured {
            Ok(ms) => {
                Measurement { device: device.id, best_ms: Some(ms), reason: String::new(), cached: known.is_some() }
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
            why: format!("{device} took {ms:.1} ms; no other device runs this model"),
            measurements,
        }),
        [(ms, device), (next_ms, next), ..] => Ok(Choice {
            device: *device,
            why: format!("{device} took {ms:.1} ms a tile, {next} {next_ms:.1} ms"),
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
