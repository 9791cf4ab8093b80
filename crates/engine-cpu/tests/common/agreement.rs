//! Whether the engine and the reference executor agree on a random network. The fuzz targets use this file, too.
#![allow(dead_code, reason = "every program uses its own part")]

use cytoscope_engine::{CompileOptions, Engine, EngineError, Precision};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::builders::{RandomNetwork, describe, quantized};
use cytoscope_graph::{Graph, Tensor, reference};
use cytoscope_kernels::Isa;

/// How a network is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As it was drawn.
    Float,
    /// Convolutions in 8-bit integers, ranges known.
    Static,
    /// Convolutions in 8-bit integers, ranges taken while it runs.
    Dynamic,
}

/// What is rounding: largest difference of a value, and relative L2 distance of an output, both as parts of its largest value.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    value: f64,
    distance: f64,
}

/// Of floats.
pub const FLOAT: Most = Most { value: 1e-4, distance: 1e-4 };
/// The same with 8-bit integers in the network, where rounding to another step is passed on by the layers that follow: the
/// distance that `integers.rs` allows a network with normalizations. A norm of a flat channel lifts single values further.
pub const BYTES: Most = Most { value: 0.2, distance: 2e-2 };
/// Largest value of an output below which differences are measured against it: sums that are 0 but for rounding are no larger
/// than what was summed, which is of the order of 1.
const LEAST_RANGE: f64 = 1e-2;
/// What a change of the input by one part in a million may be amplified to by a network, over what it changes in the reference.
const AMPLIFIED: f64 = 20.0;

/// The graph of a form, or `None` where the network has none.
pub fn graph(network: &RandomNetwork, form: Form) -> Option<Graph> {
    match form {
        Form::Float => Some(network.graph.clone()),
        _ => quantized(network, form == Form::Dynamic).unwrap_or_else(|e| panic!("{e}\n{}", describe(&network.graph))),
    }
}

/// Whether two tensors are equal but for rounding; `nearby` is what the expected one becomes by a change of the input that is
/// itself like rounding.
pub fn agrees(got: &Tensor, want: &Tensor, nearby: &Tensor, most: Most) -> Result<(), String> {
    if got.shape() != want.shape() || got.dtype() != want.dtype() {
        return Err(format!("is {:?} {}, not {:?} {}", got.shape(), got.dtype(), want.shape(), want.dtype()));
    }
    let (g, w, n) = (got.to_f64_vec(), want.to_f64_vec(), nearby.to_f64_vec());
    let range = w.iter().filter(|v| v.is_finite()).fold(LEAST_RANGE, |m, v| m.max(v.abs()));
    let moved = n.iter().zip(&w).map(|(a, b)| (a - b).abs()).filter(|d| d.is_finite()).fold(0.0, f64::max);
    let allowed = (most.value * range).max(AMPLIFIED * moved);
    for (index, (g, w)) in g.iter().zip(&w).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan());
        if !same && (g - w).abs().partial_cmp(&allowed) != Some(std::cmp::Ordering::Less) {
            return Err(format!("has {g} for {w} at {index} of {:?} (allowed {allowed:.2e})", want.shape()));
        }
    }
    let finite = g.iter().zip(&w).filter(|(g, w)| g.is_finite() && w.is_finite());
    let (off, norm) = finite.fold((0.0, 0.0), |(off, norm), (g, w)| (off + (g - w) * (g - w), norm + w * w));
    let least = LEAST_RANGE * (w.len() as f64).sqrt();
    let (off, norm, shift) = (off.sqrt(), norm.sqrt().max(least), AMPLIFIED * moved * (w.len() as f64).sqrt());
    if off > (most.distance * norm).max(shift) {
        return Err(format!("of {:?} has relative L2 distance {:.2e}", want.shape(), off / norm));
    }
    Ok(())
}

/// Runs a graph twice on the engine and says where it differs from the reference executor; `None` where it does not.
pub fn disagreement(graph: &Graph, input: &Tensor, form: Form, isa: Isa) -> Option<String> {
    let told = |what: String| Some(format!("{form:?}, {isa}: {what}\n{}", describe(graph)));
    let named = |x: &Tensor| [("x".to_owned(), x.clone())];
    let nearby = input.as_f32().unwrap_or_default().iter().enumerate().map(|(i, v)| v * (1.0 + [1e-6, -1e-6][i % 2]));
    let nearby = Tensor::new(input.shape(), nearby.collect::<Vec<f32>>()).unwrap_or_else(|e| panic!("{e}"));
    let (want, nearby) = match (reference::run(graph, &named(input)), reference::run(graph, &named(&nearby))) {
        (Ok(want), Ok(nearby)) => (want, nearby),
        (Err(e), _) | (_, Err(e)) => return told(format!("the reference executor refuses: {e}")),
    };
    let precisions: &[Precision] =
        if form == Form::Float { &[Precision::F32] } else { &[Precision::Int8, Precision::F32] };
    let most = if form == Form::Float { FLOAT } else { BYTES };
    for precision in precisions {
        let options = CompileOptions { precision: *precision, threads: 1, ..CompileOptions::default() };
        let mut session = match CpuEngine::with_isa(isa).compile(graph, &[input.shape().to_vec()], &options) {
            Ok(session) => session,
            // Transposed convolutions that overlap have no kernel on bytes.
            Err(EngineError::NotQuantized { .. }) => continue,
            Err(e) => return told(format!("{precision}: the engine refuses: {e}")),
        };
        for run in 0..2 {
            let got = match session.run(std::slice::from_ref(input)) {
                Ok(got) => got,
                // Bytes cannot hold what is not a number; the engine says so of an input.
                Err(e) => return told(format!("{precision}: the engine fails: {e}")),
            };
            if got.len() != want.len() {
                return told(format!("{precision}: {} outputs for {}", got.len(), want.len()));
            }
            for (index, ((got, want), nearby)) in got.iter().zip(&want).zip(&nearby).enumerate() {
                if let Err(how) = agrees(got, want, nearby, most) {
                    return told(format!("{precision}, run {run}: output {index} {how}"));
                }
            }
        }
    }
    None
}
