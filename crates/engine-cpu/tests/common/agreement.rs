//! Compares the engine with the reference executor on a random network. The fuzz targets use this file, too.
#![allow(dead_code, reason = "each test uses only a part")]

use cytoscope_builders::{RandomNetwork, describe, quantized};
use cytoscope_engine::{CompileOptions, Engine, EngineError, Precision};
use cytoscope_engine_cpu::{CpuEngine, Optimizations};
use cytoscope_graph::{Graph, Tensor};
use cytoscope_kernels::Isa;

/// How a network is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// In floats, as generated.
    Float,
    /// Quantized, with constant ranges.
    Static,
    /// Quantized, with ranges computed at run time.
    Dynamic,
}

/// Tolerance for rounding: largest difference of a value relative to the output's range, and relative L2 distance of an
/// output.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    value: f64,
    distance: f64,
}

/// Tolerance of float networks.
pub const FLOAT: Tolerance = Tolerance { value: 1e-4, distance: 1e-4 };
/// Tolerance of float networks in bf16, whose factors are rounded to 8 bits.
pub const BF16: Tolerance = Tolerance { value: 5e-2, distance: 2e-2 };
/// Tolerance of quantized networks, where a value rounded to a neighboring step affects all later layers. The L2
/// distance is the one that `integers.rs` allows for networks with norms; a norm of a nearly constant channel amplifies
/// single values more.
pub const INT8: Tolerance = Tolerance { value: 0.2, distance: 2e-2 };
/// Lower bound of the range that differences are relative to: sums that are zero except for rounding have summands of
/// the order of 1.
const MIN_RANGE: f64 = 1e-2;
/// Factor by which a difference may exceed the effect, in the reference, of changing the input by one part in a
/// million.
const MAX_AMPLIFICATION: f64 = 20.0;

/// Returns the graph of a form, or `None` if the network cannot be quantized so.
pub fn graph(network: &RandomNetwork, form: Form) -> Option<Graph> {
    match form {
        Form::Float => Some(network.graph.clone()),
        _ => quantized(network, form == Form::Dynamic).unwrap_or_else(|e| panic!("{e}\n{}", describe(&network.graph))),
    }
}

/// Checks that two tensors are equal up to rounding; `nearby` is the expected tensor for an input that was changed by
/// about a rounding error.
pub fn agrees(got: &Tensor, want: &Tensor, nearby: &Tensor, tolerance: Tolerance) -> Result<(), String> {
    if got.shape() != want.shape() || got.dtype() != want.dtype() {
        return Err(format!("is {:?} {}, not {:?} {}", got.shape(), got.dtype(), want.shape(), want.dtype()));
    }
    let (g, w, n) = (got.to_f64_vec(), want.to_f64_vec(), nearby.to_f64_vec());
    let range = w.iter().filter(|v| v.is_finite()).fold(MIN_RANGE, |m, v| m.max(v.abs()));
    let moved = n.iter().zip(&w).map(|(a, b)| (a - b).abs()).filter(|d| d.is_finite()).fold(0.0, f64::max);
    let allowed = (tolerance.value * range).max(MAX_AMPLIFICATION * moved);
    for (index, (g, w)) in g.iter().zip(&w).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan());
        if !same && (g - w).abs().partial_cmp(&allowed) != Some(std::cmp::Ordering::Less) {
            return Err(format!("is {g} instead of {w} at {index} of {:?} (tolerance {allowed:.2e})", want.shape()));
        }
    }
    let finite = g.iter().zip(&w).filter(|(g, w)| g.is_finite() && w.is_finite());
    let (off, norm) = finite.fold((0.0, 0.0), |(off, norm), (g, w)| (off + (g - w) * (g - w), norm + w * w));
    let least = MIN_RANGE * (w.len() as f64).sqrt();
    let (off, norm, shift) = (off.sqrt(), norm.sqrt().max(least), MAX_AMPLIFICATION * moved * (w.len() as f64).sqrt());
    if off > (tolerance.distance * norm).max(shift) {
        return Err(format!("of shape {:?} has relative L2 distance {:.2e}", want.shape(), off / norm));
    }
    Ok(())
}

/// Runs a graph twice on the engine and describes the first difference from the reference executor; `None` if they
/// agree.
pub fn disagreement(graph: &Graph, input: &Tensor, form: Form, isa: Isa) -> Option<String> {
    disagreement_with(graph, input, form, isa, Optimizations::default())
}

/// Like [`disagreement`], with some optimizations only.
pub fn disagreement_with(
    graph: &Graph,
    input: &Tensor,
    form: Form,
    isa: Isa,
    optimizations: Optimizations,
) -> Option<String> {
    let describe_failure = |what: String| Some(format!("{form:?}, {isa}: {what}\n{}", describe(graph)));
    let named = |x: &Tensor| [("x".to_owned(), x.clone())];
    let nearby = input.as_f32().unwrap_or_default().iter().enumerate().map(|(i, v)| v * (1.0 + [1e-6, -1e-6][i % 2]));
    let nearby = Tensor::new(input.shape(), nearby.collect::<Vec<f32>>()).unwrap_or_else(|e| panic!("{e}"));
    let (want, nearby) =
        match (cytoscope_reference::run(graph, &named(input)), cytoscope_reference::run(graph, &named(&nearby))) {
            (Ok(want), Ok(nearby)) => (want, nearby),
            (Err(e), _) | (_, Err(e)) => return describe_failure(format!("the reference executor failed: {e}")),
        };
    let precisions: &[Precision] = match form {
        Form::Float if isa.multiplies_bf16() => &[Precision::F32, Precision::Bf16],
        Form::Float => &[Precision::F32],
        Form::Static | Form::Dynamic => &[Precision::Int8, Precision::F32],
    };
    for precision in precisions {
        let tolerance = match (form, precision) {
            (Form::Float, Precision::Bf16) => BF16,
            (Form::Float, _) => FLOAT,
            (Form::Static | Form::Dynamic, _) => INT8,
        };
        let options = CompileOptions { precision: *precision, threads: 1, ..CompileOptions::default() };
        let mut session = match CpuEngine::with_isa(isa).with_optimizations(optimizations).compile(
            graph,
            &[input.shape().to_vec()],
            &options,
        ) {
            Ok(session) => session,
            // Overlapping transposed convolutions have no int8 kernel.
            Err(EngineError::NotQuantized { .. }) => continue,
            Err(e) => return describe_failure(format!("{precision}: compiling failed: {e}")),
        };
        for run in 0..2 {
            let got = match session.run(std::slice::from_ref(input)) {
                Ok(got) => got,
                Err(e) => return describe_failure(format!("{precision}: running failed: {e}")),
            };
            if got.len() != want.len() {
                return describe_failure(format!("{precision}: {} outputs instead of {}", got.len(), want.len()));
            }
            for (index, ((got, want), nearby)) in got.iter().zip(&want).zip(&nearby).enumerate() {
                if let Err(how) = agrees(got, want, nearby, tolerance) {
                    return describe_failure(format!("{precision}, run {run}: output {index} {how}"));
                }
            }
        }
    }
    None
}
