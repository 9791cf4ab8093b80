//! Reads bytes as an ONNX file, compiles what comes of it for small inputs, runs it, and compares with the reference executor
//! where the network is smooth, so that rounding stays rounding.
//!
//! `cargo fuzz run onnx_run -- -rss_limit_mb=2048 -timeout=20`; small models make good seeds (`fuzz/corpus/onnx_run`).
#![no_main]

#[path = "../../crates/engine-cpu/tests/common/agreement.rs"]
mod agreement;

use cytoscope_engine::{CompileOptions, Engine, EngineError};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{
    Activation, BinaryOp, ElementType, Graph, GraphLimits, Op, Tensor, UnaryOp, analysis, infer_shapes, reference,
};
use libfuzzer_sys::fuzz_target;

/// Work and bytes of a run that a fuzzer has time for.
const WORK: u64 = 4_000_000;
const BYTES: u64 = 64 << 20;

/// Whether a small change of what it reads changes what it makes little.
fn is_smooth(op: &Op) -> bool {
    match op {
        Op::Conv(_)
        | Op::ConvTranspose(_)
        | Op::MaxPool(_)
        | Op::AveragePool(_)
        | Op::GlobalAveragePool
        | Op::GlobalMaxPool
        | Op::Resize(_)
        | Op::Concat { .. }
        | Op::Split { .. }
        | Op::Slice
        | Op::Pad { .. }
        | Op::Transpose { .. }
        | Op::Reshape { .. }
        | Op::Flatten { .. }
        | Op::Squeeze
        | Op::Unsqueeze
        | Op::Expand
        | Op::Tile
        | Op::Identity
        | Op::Gather { .. }
        | Op::Unary(UnaryOp::Abs | UnaryOp::Neg)
        | Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Min | BinaryOp::Max) => true,
        Op::Activation(a) => {
            matches!(a, Activation::Relu | Activation::LeakyRelu { .. } | Activation::Sigmoid | Activation::Tanh)
        }
        _ => false,
    }
}

/// Whether rounding stays rounding: smooth operators and constants of an ordinary size. What is no number or infinite gives
/// different results by whether zeros of a border are multiplied or left out.
fn is_tame(graph: &Graph) -> bool {
    let ordinary = |t: &Tensor| t.to_f64_vec().iter().all(|v| v.abs() <= 1e6);
    graph.nodes.iter().all(|n| is_smooth(&n.op))
        && graph.initializers.values().all(|t| !t.dtype().is_float() || ordinary(t))
}

/// Values for inputs, floats around 0 and small counts of every other type.
fn inputs(graph: &Graph, turn: f32) -> Option<Vec<Tensor>> {
    let one = |id: &_| {
        let value = graph.value(*id);
        let shape = value.fixed_shape()?;
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.7).sin() * turn).collect();
        let values = Tensor::new(shape, values).ok()?;
        Some(if value.dtype? == ElementType::F32 { values } else { values.cast(value.dtype?) })
    };
    graph.inputs.iter().map(one).collect()
}

fuzz_target!(|data: &[u8]| {
    let limits =
        GraphLimits { tensor_elements: 1 << 20, folded_elements: 1 << 16, nodes: 400, ..GraphLimits::default() };
    let Ok(graph) = Graph::from_bytes(data, None, &limits) else { return };
    let mut shaped = graph.clone();
    let shapes: Vec<Vec<usize>> = graph
        .inputs
        .iter()
        .map(|id| graph.value(*id).shape.iter().flatten().map(|d| d.fixed().unwrap_or(3)).collect())
        .collect();
    let keyed: Vec<_> = graph.inputs.iter().copied().zip(shapes.clone()).collect();
    if infer_shapes(&mut shaped, &keyed).is_err() {
        return;
    }
    let Some((work, bytes)) = analysis::run_cost(&shaped) else { return };
    if work > WORK || bytes > BYTES {
        return;
    }
    let (Some(given), Some(near)) = (inputs(&shaped, 1.0), inputs(&shaped, 1.000_001)) else { return };
    let named = |given: &[Tensor]| -> Vec<(String, Tensor)> {
        graph.inputs.iter().map(|id| graph.value(*id).name.clone()).zip(given.iter().cloned()).collect()
    };
    let want = reference::run(&graph, &named(&given));
    let nearby = reference::run(&graph, &named(&near));
    let options = CompileOptions { threads: 1, memory_budget_bytes: Some(512 << 20), ..CompileOptions::default() };
    let run = CpuEngine::new().compile(&graph, &shapes, &options).and_then(|mut session| session.run(&given));
    match (run, want, nearby) {
        (Err(EngineError::Internal { place, reason }), ..) => panic!("{place}: {reason}"),
        (Err(e), Ok(_), _) if !matches!(e, EngineError::OutOfMemory { .. } | EngineError::Graph(_)) => {
            panic!("the engine refuses: {e}")
        }
        (Ok(got), Ok(want), Ok(nearby)) if is_tame(&graph) => {
            assert_eq!(got.len(), want.len());
            for ((got, want), nearby) in got.iter().zip(&want).zip(&nearby) {
                // What is infinite or no number somewhere spreads by rules of its own.
                if want.to_f64_vec().iter().any(|v| !v.is_finite() || v.abs() > 1e30) {
                    continue;
                }
                if let Err(how) = agreement::agrees(got, want, nearby, agreement::FLOAT) {
                    panic!("{how}\n{}", cytoscope_graph::builders::describe(&shaped));
                }
            }
        }
        _ => {}
    }
});
