//! Whether an engine computes a network as the reference executor does.
//!
//! An engine that computes a network wrongly gives results that look right. Therefore each network is run on each engine once before
//! its results are used: on a small made-up input, against the reference executor. The outcome is kept per structure of the network
//! (its weights do not matter), precision, device, driver and build of the program, so that it costs a second once.

use crate::model::compile;
use crate::{Context, JobError, Model, user_folder};
use cytoscope_engine::{CompileOptions, DeviceId, Engine, EngineError, Precision, select};
use cytoscope_graph::{Graph, Interrupt, Tensor, analysis, reference};
use cytoscope_profile::Recorder;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::atomic_write;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Voxels along each axis of the made-up input, at least.
const EDGE: usize = 16;
/// Multiply-accumulates from which a check takes seconds and is announced.
const NOTED_MACS: u64 = 4_000_000_000;
/// Most bytes of the file that outcomes are kept in.
const MAX_CACHE_BYTES: u64 = 4 << 20;
/// A channel's error is relative to its own size, but at least to this share of the size that all channels have in the mean: in a
/// channel of almost nothing rounding is all there is.
const LEAST_SHARE: f64 = 0.05;
/// The size that a channel of nothing is taken to have: below it differences are rounding.
const LEAST_SCALE: f64 = 1e-3;
/// Share of a channel's values that may differ whatever they do.
const FEW_SHARE: f64 = 1e-3;
/// Multiply-accumulates beyond which a network is not checked: it would take minutes, which nothing interrupts.
const MAX_MACS: u64 = 100_000_000_000;

/// With this variable in the environment no network is checked: for drivers that compute nothing, which stand in for a device in
/// tests.
const TRUST: &str = "CYTOSCOPE_TRUST_DEVICES";

/// Names the folder of what may be measured or found again at any time; without it that is the user's folder.
const CACHE: &str = "CYTOSCOPE_CACHE";

/// How an engine did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// It computes what the reference executor computes.
    Agrees,
    /// It computes something else.
    Differs {
        /// Where and how far, as a sentence.
        how: String,
    },
}

/// Greatest relative L2 error of a channel in a precision on a device. Rounding in another order stays far below it, a kernel that
/// leaves values out or mixes them up far above.
fn tolerance(device: DeviceId, precision: Precision) -> f64 {
    match precision {
        // Kernels for CUDA are chosen by time, and some of them round the factors of products to TF32.
        Precision::F32 if !matches!(device, DeviceId::Cuda(_)) => 1e-3,
        Precision::F32 | Precision::Tf32 => 1e-2,
        Precision::F16 => 2e-2,
        // A rounding of an activation can fall to the next step, and the next layers carry it on.
        Precision::Bf16 | Precision::Int8 => 0.1,
    }
}

/// Compares what an engine made with what the reference executor made, output by output and channel by channel (axis 1).
fn compare(names: &[String], expected: &[Tensor], got: &[Tensor], tolerance: f64) -> Verdict {
    if expected.len() != got.len() {
        return Verdict::Differs { how: format!("it gives {} outputs, expected {}", got.len(), expected.len()) };
    }
    for (i, (expected, got)) in expected.iter().zip(got).enumerate() {
        let name = names.get(i).map_or("output", String::as_str);
        if expected.shape() != got.shape() {
            let how = format!("output \"{name}\" has shape {:?}, expected {:?}", got.shape(), expected.shape());
            return Verdict::Differs { how };
        }
        if let Some((channel, error)) = worst_channel(expected, got, tolerance)
            && (error.is_nan() || error > tolerance)
        {
            let how = format!("output \"{name}\", channel {channel}: relative error {error:.2e}");
            return Verdict::Differs { how };
        }
    }
    Verdict::Agrees
}

/// The channel with the largest relative L2 error among those with more than a few differing values, and that error; NaN where a
/// value is a number in one of the two only.
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
    // The root mean square of a channel, or what counts as such in one of almost nothing.
    let scale = |size: f64| (size.max(LEAST_SHARE.powi(2) * mean) / count).sqrt().max(LEAST_SCALE);
    let scales: Vec<f64> = sizes.into_iter().map(scale).collect();
    let mut errors = vec![(0.0f64, 0usize); channels];
    for (i, (e, g)) in e.iter().zip(&g).enumerate() {
        let (Some((error, differing)), Some(scale)) = (errors.get_mut(channel(i)), scales.get(channel(i))) else {
            continue;
        };
        if e == g || (e.is_nan() && g.is_nan()) {
            continue;
        }
        let off = (e - g) / scale;
        *error += off.powi(2);
        *differing += usize::from(off.is_nan() || off.abs() > tolerance);
    }
    let relative = errors.iter().map(|(error, differing)| {
        // A threshold or a rounding may fall to the other side in a few values of many.
        let few = *differing as f64 <= FEW_SHARE * count;
        if few { 0.0 } else { (error / count).sqrt() }
    });
    let rank = |v: f64| if v.is_nan() { f64::INFINITY } else { v };
    relative.enumerate().max_by(|a, b| rank(a.1).total_cmp(&rank(b.1)))
}

/// Values that are neither constant nor smooth nor alike in any two channels.
pub(crate) fn made_up_values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i as f32) * 0.37).sin() + (i % 11) as f32 * 0.1 - 0.5).collect()
}

/// Runs a network on an engine and on the reference executor; `None` for a network that is too large for the latter.
///
/// # Errors
/// The engine's, where it cannot run the network at all.
fn run(
    context: &Context,
    model: &Model,
    engine: &dyn Engine,
    precision: Precision,
    threads: usize,
) -> Result<Option<Verdict>, JobError> {
    let edge: [usize; 3] = std::array::from_fn(|a| match (a, model.spatial_axes) {
        (0, 2) => 1,
        _ => EDGE.max(model.min_size[a]).next_multiple_of(model.step[a].max(1)),
    });
    let shape = model.tensor_shape(model.input_channels, edge);
    let input = Tensor::new(shape.clone(), made_up_values(shape.iter().product()))?;
    let graph = model.network(precision);
    let name = graph.inputs.first().map(|id| graph.value(*id).name.clone()).unwrap_or_default();
    let macs = analysis::multiply_accumulates(graph, &[(name.as_str(), shape)])?;
    if macs > MAX_MACS {
        context.note(format!(
            "this network is too large to be checked against the reference executor ({macs} multiply-accumulates at its least \
             input)"
        ));
        return Ok(None);
    }
    if macs > NOTED_MACS {
        let device = engine.device().id;
        context.note(format!("checking once that {device} computes this network correctly; this takes a moment"));
    }
    let expected = reference::run(graph, &[(name, input.clone())])?;
    Ok(Some(against(graph, &[input], &expected, engine, precision, threads, context.interrupt())?))
}

/// Runs a network on an engine and compares its outputs with those of the reference executor.
///
/// # Errors
/// The engine's, where it cannot run the network at all.
pub(crate) fn against(
    graph: &Graph,
    inputs: &[Tensor],
    expected: &[Tensor],
    engine: &dyn Engine,
    precision: Precision,
    threads: usize,
    interrupt: Interrupt,
) -> Result<Verdict, EngineError> {
    let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
    let options = CompileOptions {
        precision,
        threads,
        recorder: Recorder::totals_only(),
        interrupt,
        ..CompileOptions::default()
    };
    let got = compile(graph, engine, &shapes, &options)?.run(inputs)?;
    let names: Vec<String> = graph.outputs.iter().map(|id| graph.value(*id).name.clone()).collect();
    Ok(compare(&names, expected, &got, tolerance(engine.device().id, precision)))
}

/// Whether an engine computes a model's network correctly: as it was found before on this machine, or by running it. A network
/// that is too large to be checked counts as agreeing, with a note.
///
/// # Errors
/// The engine's, where it cannot run the network at all.
pub(crate) fn verify(
    context: &Context,
    model: &Model,
    engine: &dyn Engine,
    precision: Precision,
    threads: usize,
) -> Result<Verdict, JobError> {
    if std::env::var_os(TRUST).is_some() {
        return Ok(Verdict::Agrees);
    }
    let device = engine.device();
    let key = format!(
        "{}|{}|{}|{}|{precision}|{}",
        structure(model.network(precision)),
        device.id,
        device.name,
        device.driver,
        build()
    );
    if let Some(verdict) = found_here().get(&key) {
        return Ok(verdict.clone());
    }
    let mut cache = Cache::open();
    if let Some(verdict) = cache.entries.get(&key) {
        found_here().insert(key, verdict.clone());
        return Ok(verdict.clone());
    }
    // What was not checked is not kept: the note comes with every run.
    let Some(verdict) = run(context, model, engine, precision, threads)? else { return Ok(Verdict::Agrees) };
    found_here().insert(key.clone(), verdict.clone());
    cache.put(key, verdict.clone());
    Ok(verdict)
}

/// Outcomes of this process, which count where none can be kept on the disk.
fn found_here() -> MutexGuard<'static, BTreeMap<String, Verdict>> {
    static FOUND: Mutex<BTreeMap<String, Verdict>> = Mutex::new(BTreeMap::new());
    FOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sentence for a model that no engine may run.
pub(crate) fn wrong_result(model: &Model, engine: &dyn Engine, how: &str) -> JobError {
    let device = engine.device().id;
    EngineError::Internal {
        place: model.name.clone(),
        reason: format!(
            "{device} does not compute this network as the reference executor does ({how}); its results would be wrong, so none \
             are made"
        ),
    }
    .into()
}

/// A fingerprint of a network's structure: operators, connections, types and shapes, without its weights.
fn structure(graph: &Graph) -> String {
    let shapes: Vec<_> = graph.initializers.iter().map(|(id, t)| (*id, t.dtype(), t.shape().to_vec())).collect();
    let text = format!("{:?} {:?} {:?} {:?} {shapes:?}", graph.nodes, graph.values, graph.inputs, graph.outputs);
    select::fingerprint(text.as_bytes())
}

/// This build of the program: another one may compute otherwise.
fn build() -> String {
    let of_program = std::env::current_exe().and_then(std::fs::metadata).ok();
    let changed = of_program.as_ref().and_then(|m| m.modified().ok());
    let secs = changed.and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok()).map_or(0, |d| d.as_secs());
    format!("{} {} {secs}", env!("CARGO_PKG_VERSION"), of_program.map_or(0, |m| m.len()))
}

/// Outcomes kept between runs. A file that cannot be read counts as empty, one that cannot be written is left: checking again is
/// always possible.
struct Cache {
    path: Option<PathBuf>,
    entries: BTreeMap<String, Verdict>,
}

impl Cache {
    fn open() -> Self {
        let folder = std::env::var_os(CACHE).map(PathBuf::from).or_else(user_folder);
        let path = folder.map(|folder| folder.join("verified-networks.json"));
        let mut bytes = Vec::new();
        let read = path.as_ref().and_then(|path| open_regular(path).ok());
        let read = read.and_then(|file| file.take(MAX_CACHE_BYTES).read_to_end(&mut bytes).ok());
        let entries = read.and_then(|_| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { path, entries }
    }

    fn put(&mut self, key: String, verdict: Verdict) {
        self.entries.insert(key, verdict);
        let Some(path) = &self.path else { return };
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        if let (Ok(()), Ok(text)) = (made, serde_json::to_vec_pretty(&self.entries)) {
            let _ = atomic_write(path, &text);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn one_wrong_channel_is_found_whatever_the_others_are() {
        let tensor = |values: Vec<f32>| Tensor::new(vec![1, 3, 2, 2], values).unwrap();
        let values: Vec<f32> = (0..12).map(|i| 10.0 + i as f32).collect();
        let names = ["y".to_owned()];
        let verdict = |got: Vec<f32>, precision| {
            compare(&names, &[tensor(values.clone())], &[tensor(got)], tolerance(DeviceId::Cpu, precision))
        };
        assert_eq!(verdict(values.clone(), Precision::F32), Verdict::Agrees);
        let rounded: Vec<f32> = values.iter().map(|v| v * (1.0 + 1e-6)).collect();
        assert_eq!(verdict(rounded, Precision::F32), Verdict::Agrees);
        // A part of a concatenation that nobody wrote.
        let unwritten: Vec<f32> = values.iter().enumerate().map(|(i, v)| if i / 4 == 1 { 0.0 } else { *v }).collect();
        for precision in [Precision::F32, Precision::Int8] {
            let Verdict::Differs { how } = verdict(unwritten.clone(), precision) else { unreachable!() };
            assert!(how.contains("channel 1"), "{how}");
        }
        let mut broken = values.clone();
        broken[0] = f32::NAN;
        assert!(matches!(verdict(broken, Precision::Int8), Verdict::Differs { .. }));
    }
}
