//! Verification that an engine computes a network like the reference executor.
//!
//! An engine that computes a network wrongly may give plausible results. Therefore, each network is run once on each
//! engine before its results are used, on a small synthetic input, and compared with the reference executor. The
//! outcome is cached by network structure (without the weights), precision, device, driver and program build, so the
//! check takes about a second and happens once.

use crate::model::compile;
use crate::program::own_program;
use crate::{Context, JobError, Model, ProgressStage, user_folder};
use cytoscope_engine::{CompileOptions, DeviceId, Engine, EngineError, Precision, select};
use cytoscope_graph::{Graph, Tensor};
use cytoscope_graph_passes::analysis;
use cytoscope_profile::Recorder;
use cytoscope_storage::json::{JsonError, read_json, write_json};
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::message;
use cytoscope_storage::setting::DEVICE;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Minimum voxels along each axis of the synthetic input.
const EDGE: usize = 16;
/// Multiply-accumulates above which a check takes several seconds, so that a note announces it.
const NOTED_MACS: u64 = 4_000_000_000;
/// Maximum size in bytes of the cache file.
const MAX_CACHE_BYTES: u64 = 4 << 20;
/// Errors are relative to the magnitude of their channel, or to this fraction of the mean magnitude of all channels if
/// that is larger: nearly empty channels contain little but rounding errors.
const MIN_SHARE: f64 = 0.05;
/// Minimum magnitude that errors are relative to, for outputs that are empty in all channels.
const MIN_SCALE: f64 = 1e-3;
/// Fraction of a channel's values that may differ by any amount: a few fall on the other side of a rounding boundary.
const FEW_SHARE: f64 = 1e-3;
/// Multiply-accumulates above which a network is not checked: it would take minutes and cannot be interrupted.
const MAX_MACS: u64 = 100_000_000_000;

/// Environment variable that disables all checks, for tests with stand-in devices that compute nothing.
const TRUST: &str = "CYTOSCOPE_TRUST_DEVICES";

/// Environment variable that names the cache folder; the default is the user's folder.
const CACHE: &str = "CYTOSCOPE_CACHE";

/// Result of checking an engine against the reference executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verification {
    /// The results agree with the reference executor within the tolerance.
    Agrees,
    /// The results differ from the reference executor by more than the tolerance.
    Differs {
        /// Which output differs, and by how much.
        how: String,
    },
}

/// Maximum relative L2 error of a channel for a precision. Rounding in another order causes far smaller errors; a
/// kernel that skips or mixes up values causes far larger ones.
fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 1e-3,
        Precision::Tf32 => 1e-2,
        Precision::F16 => 2e-2,
        // An activation may be rounded to a neighboring step, which the following layers propagate.
        Precision::Bf16 | Precision::Int8 => 0.1,
    }
}

/// Compares an engine's outputs with those of the reference executor, channel by channel (axis 1).
fn compare(names: &[String], expected: &[Tensor], got: &[Tensor], tolerance: f64) -> Verification {
    if expected.len() != got.len() {
        return Verification::Differs {
            how: format!("the engine returned {} outputs, expected {}", got.len(), expected.len()),
        };
    }
    for (i, (expected, got)) in expected.iter().zip(got).enumerate() {
        let name = names.get(i).map_or("output", String::as_str);
        if expected.shape() != got.shape() {
            let how = format!("output \"{name}\" has shape {:?}, expected {:?}", got.shape(), expected.shape());
            return Verification::Differs { how };
        }
        if let Some((channel, error)) = worst_channel(expected, got, tolerance)
            && (error.is_nan() || error > tolerance)
        {
            let how = format!("output \"{name}\", channel {channel}: relative error {error:.2e}");
            return Verification::Differs { how };
        }
    }
    Verification::Agrees
}

/// Returns the channel with the largest relative L2 error, and that error. Channels with only a few differing values
/// count as equal. The error is NaN if a value is NaN in one of the two only.
fn worst_channel(expected: &Tensor, got: &Tensor, tolerance: f64) -> Option<(usize, f64)> {
    let (e, g) = (expected.to_f64_vec(), got.to_f64_vec());
    let shape = expected.shape();
    let (channels, inner): (usize, usize) = match shape {
        [_, c, rest @ ..] => (*c, rest.iter().product()),
        _ => (1, e.len()),
    };
    let (channels, inner) = (channels.max(1), inner.max(1));
    let channel = |i: usize| i / inner % channels;
    let mut sizes = vec![0.0f64; channels];
    for (i, v) in e.iter().enumerate().filter(|(_, v)| v.is_finite()) {
        sizes.get_mut(channel(i)).into_iter().for_each(|size| *size += v.powi(2));
    }
    let count = (e.len() / channels).max(1) as f64;
    let mean = sizes.iter().sum::<f64>() / channels as f64;
    // The root mean square of a channel, with a lower limit for nearly empty channels.
    let scale = |size: f64| (size.max(MIN_SHARE.powi(2) * mean) / count).sqrt().max(MIN_SCALE);
    let scales: Vec<f64> = sizes.into_iter().map(scale).collect();
    let mut errors = vec![(0.0f64, 0usize); channels];
    for (i, (e, g)) in e.iter().zip(&g).enumerate() {
        let (Some((error, differing)), Some(scale)) = (errors.get_mut(channel(i)), scales.get(channel(i))) else {
            continue;
        };
        if e == g || (e.is_nan() && g.is_nan()) {
            continue;
        }
        let deviation = (e - g) / scale;
        *error += deviation.powi(2);
        *differing += usize::from(deviation.is_nan() || deviation.abs() > tolerance);
    }
    let relative = errors.iter().map(|(error, differing)| {
        // A few values may fall on the other side of a threshold or rounding boundary.
        let few = *differing as f64 <= FEW_SHARE * count;
        if few { 0.0 } else { (error / count).sqrt() }
    });
    let rank = |v: f64| if v.is_nan() { f64::INFINITY } else { v };
    relative.enumerate().max_by(|a, b| rank(a.1).total_cmp(&rank(b.1)))
}

/// Returns synthetic values that are neither constant nor smooth, and differ between channels.
pub(crate) fn synthetic_values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i as f32) * 0.37).sin() + (i % 11) as f32 * 0.1 - 0.5).collect()
}

/// Runs a network on an engine and on the reference executor; `None` if the network is too large for the latter.
///
/// # Errors
/// The engine's error if it cannot run the network at all.
fn run(
    context: &Context,
    model: &Model,
    engine: &dyn Engine,
    precision: Precision,
    threads: usize,
) -> Result<Option<Verification>, JobError> {
    let edge: [usize; 3] = std::array::from_fn(|a| match (a, model.spatial_axes) {
        (0, 2) => 1,
        _ => model.tile_length(EDGE, a),
    });
    let graph = model.network(precision);
    let name = graph.inputs.first().map(|id| graph.value(*id).name.clone()).unwrap_or_default();
    let macs = analysis::multiply_accumulates(graph, &[(name.as_str(), model.batch_shape(1, edge))])?;
    if macs > MAX_MACS {
        context.note(format!(
            "the network is too large to be checked against the reference executor ({macs} multiply-accumulates for its \
             smallest input)"
        ));
        return Ok(None);
    }
    if macs > NOTED_MACS {
        let device = engine.device().id;
        context.note(format!(
            "checking that {device} computes this network correctly; this takes a moment and happens once"
        ));
    }
    // Predictions on CUDA run batches of tiles.
    let in_batches = matches!(engine.device().id, DeviceId::Cuda(_)) && macs <= MAX_MACS / 2;
    let batch = if in_batches && model.has_independent_samples(precision, 2, edge) { 2 } else { 1 };
    let shape = model.batch_shape(batch, edge);
    let input = Tensor::new(shape.clone(), synthetic_values(shape.iter().product()))?;
    let given = [(name, input.clone())];
    let reference = || cytoscope_reference::run_unless(&context.interrupt(), graph, &given);
    let expected = context.report_alive(ProgressStage::Check, reference)?;
    Ok(Some(compare_with_reference(context, graph, &[input], &expected, engine, precision, threads)?))
}

/// Runs a network on an engine and compares its outputs with those of the reference executor.
///
/// # Errors
/// The engine's error if it cannot run the network at all.
pub(crate) fn compare_with_reference(
    context: &Context,
    graph: &Graph,
    inputs: &[Tensor],
    expected: &[Tensor],
    engine: &dyn Engine,
    precision: Precision,
    threads: usize,
) -> Result<Verification, EngineError> {
    let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
    let options = CompileOptions { recorder: Recorder::totals_only(), ..context.compile_options(precision, threads) };
    let got = compile(graph, engine, &shapes, &options)?.run(inputs)?;
    let names: Vec<String> = graph.outputs.iter().map(|id| graph.value(*id).name.clone()).collect();
    Ok(compare(&names, expected, &got, tolerance(precision)))
}

/// Checks whether an engine computes a model's network correctly, using the cached outcome if there is one. A network
/// that is too large to be checked counts as agreeing, with a note.
///
/// # Errors
/// The engine's error if it cannot run the network at all.
pub(crate) fn verify(
    context: &Context,
    model: &Model,
    engine: &dyn Engine,
    precision: Precision,
    threads: usize,
) -> Result<Verification, JobError> {
    let device = engine.device();
    // The job continues with this device, even if the outcome is known. Another device may have been measured last.
    context.report_tried_device(device.id);
    if std::env::var_os(TRUST).is_some() {
        return Ok(Verification::Agrees);
    }
    let key = format!(
        "{}|{}|{}|{}|{precision}|{}",
        structure(model.network(precision)),
        device.id,
        device.name,
        device.driver,
        build()
    );
    if let Some(verdict) = process_cache().get(&key) {
        return Ok(verdict.clone());
    }
    let mut cache = Cache::open();
    if let Some(verdict) = cache.entries.get(&key) {
        process_cache().insert(key, verdict.clone());
        return Ok(verdict.clone());
    }
    let verdict = run(context, model, engine, precision, threads).inspect_err(|error| context.report_lost(error))?;
    // A skipped check is not cached, so that the note appears with every run.
    let Some(verdict) = verdict else { return Ok(Verification::Agrees) };
    process_cache().insert(key.clone(), verdict.clone());
    cache.put(key, verdict.clone());
    Ok(verdict)
}

/// Outcomes found by this process, used if the cache file cannot be written.
fn process_cache() -> MutexGuard<'static, BTreeMap<String, Verification>> {
    static FOUND: Mutex<BTreeMap<String, Verification>> = Mutex::new(BTreeMap::new());
    FOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the error for a network that the engine computes wrongly.
pub(crate) fn wrong_result(model: &Model, engine: &dyn Engine, how: &str) -> JobError {
    let device = engine.device().id;
    EngineError::Internal {
        place: model.name.clone(),
        reason: message!(
            "{device} does not compute this network like the reference executor ({how}), so its results would be wrong; \
             choose another device with {DEVICE}"
        ),
    }
    .into()
}

/// Returns a fingerprint of a network's structure: operators, connections, types and shapes, without the weights.
fn structure(graph: &Graph) -> String {
    let shapes: Vec<_> = graph.initializers.iter().map(|(id, t)| (*id, t.dtype(), t.shape().to_vec())).collect();
    let text = format!("{:?} {:?} {:?} {:?} {shapes:?}", graph.nodes, graph.values, graph.inputs, graph.outputs);
    select::fingerprint(text.as_bytes())
}

/// Identifies this build of the program, because another build may compute differently.
fn build() -> String {
    let program_metadata = own_program().and_then(std::fs::metadata).ok();
    let changed = program_metadata.as_ref().and_then(|m| m.modified().ok());
    let secs = changed.and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok()).map_or(0, |d| d.as_secs());
    format!("{} {} {secs}", env!("CARGO_PKG_VERSION"), program_metadata.map_or(0, |m| m.len()))
}

/// Outcomes cached between runs. A file that cannot be read counts as empty, and one that cannot be written is lost, both
/// of which is logged: a check can always be repeated.
struct Cache {
    path: Option<PathBuf>,
    entries: BTreeMap<String, Verification>,
}

impl Cache {
    fn open() -> Self {
        let named = std::env::var_os(CACHE).filter(|folder| !folder.is_empty());
        let folder = named.map(PathBuf::from).or_else(user_folder);
        let path = folder.map(|folder| folder.join("verified-networks.json"));
        let read = path.as_deref().map_or(Ok(None), |path| read_json(path, MAX_CACHE_BYTES));
        let read = read.unwrap_or_else(|error| {
            tracing::warn!("the stored checks of networks are not used: {error}");
            None
        });
        Self { path, entries: read.unwrap_or_default() }
    }

    fn put(&mut self, key: String, verdict: Verification) {
        self.entries.insert(key, verdict);
        let Some(path) = &self.path else { return };
        let written = ResultsLock::for_update(path).and_then(|_lock| {
            // Other processes may have stored checks meanwhile. A file that cannot be read is replaced.
            let unread = |error: &JsonError| tracing::warn!("the stored checks of networks are replaced: {error}");
            let stored: Option<BTreeMap<String, Verification>> =
                read_json(path, MAX_CACHE_BYTES).inspect_err(unread).ok().flatten();
            let stored = stored.unwrap_or_default();
            for (key, verdict) in stored {
                self.entries.entry(key).or_insert(verdict);
            }
            write_json(path, &self.entries)
        });
        if let Err(error) = written {
            tracing::warn!("the check of a network is not stored, and will be repeated: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::Event;
    use cytoscope_engine_cpu::CpuEngine;

    #[test]
    fn one_wrong_channel_is_detected() {
        let tensor = |values: Vec<f32>| Tensor::new(vec![1, 3, 2, 2], values).unwrap();
        let values: Vec<f32> = (0..12).map(|i| 10.0 + i as f32).collect();
        let names = ["y".to_owned()];
        let verdict =
            |got: Vec<f32>, precision| compare(&names, &[tensor(values.clone())], &[tensor(got)], tolerance(precision));
        assert_eq!(verdict(values.clone(), Precision::F32), Verification::Agrees);
        let rounded: Vec<f32> = values.iter().map(|v| v * (1.0 + 1e-6)).collect();
        assert_eq!(verdict(rounded, Precision::F32), Verification::Agrees);
        // A part of a concatenation that was not written.
        let unwritten: Vec<f32> = values.iter().enumerate().map(|(i, v)| if i / 4 == 1 { 0.0 } else { *v }).collect();
        for precision in [Precision::F32, Precision::Int8] {
            let Verification::Differs { how } = verdict(unwritten.clone(), precision) else { unreachable!() };
            assert!(how.contains("channel 1"), "{how}");
        }
        let mut broken = values.clone();
        broken[0] = f32::NAN;
        assert!(matches!(verdict(broken, Precision::Int8), Verification::Differs { .. }));
    }

    #[test]
    fn a_device_is_reported_even_if_its_outcome_is_known() {
        let model = Model::load(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nuclei-dog")).unwrap();
        let (context, events) = Context::recording_events();
        for _ in 0..2 {
            verify(&context, &model, &CpuEngine::new(), Precision::F32, 1).unwrap();
        }
        let events = events.lock().unwrap();
        let tried = events.iter().filter(|event| **event == Event::DeviceTried { id: DeviceId::Cpu });
        assert_eq!(tried.count(), 2, "{events:?}");
    }
}
