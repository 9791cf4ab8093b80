//! Reads bytes as an ONNX file, compiles and runs the network for small inputs, and compares it with the reference
//! executor if it is smooth, so that rounding errors stay small.
//!
//! `cargo fuzz run onnx_run -- -rss_limit_mb=2048 -timeout=20`
#![no_main]

#[path = "../../crates/engine-cpu/tests/common/agreement.rs"]
mod agreement;

use cytoscope_engine::{CompileOptions, Engine, EngineError};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{Activation, BinaryOp, ElementType, Graph, GraphLimits, Op, Tensor, UnaryOp};
use cytoscope_graph_passes::{analysis, infer_shapes};
use libfuzzer_sys::fuzz_target;

/// Maximum work and bytes of one run, so that fuzzing stays fast.
const WORK: u64 = 4_000_000;
const BYTES: u64 = 64 << 20;

/// Whether a small change of the inputs changes the output only a little.
fn is_smooth(op: &Op) -> bool {
    match op {
        Op::Conv(_)
        | Op::ConvTranspose(_)
        | Op::MaxPool(_)
        | Op::AveragePool(_)
        | Op::GlobalAveragePool
        | Op::GlobalMaxPool
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
        op => op.joined_axis().is_some() || op.resamples_linearly(),
    }
}

/// Whether rounding errors stay small: smooth operators and constants of moderate size. With NaN or infinite constants,
/// results differ depending on whether zero padding is multiplied or skipped.
fn is_well_conditioned(graph: &Graph) -> bool {
    let moderate = |t: &Tensor| t.to_f64_vec().iter().all(|v| v.abs() <= 1e6);
    graph.nodes.iter().all(|n| is_smooth(&n.op))
        && graph.initializers.values().all(|t| !t.dtype().is_float() || moderate(t))
}

/// Returns values for the inputs: floats around 0 and small integers for other types.
fn inputs(graph: &Graph, amplitude: f32) -> Option<Vec<Tensor>> {
    let one = |id: &_| {
        let value = graph.value(*id);
        let shape = value.fixed_shape()?;
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.7).sin() * amplitude).collect();
        let values = Tensor::new(shape, values).ok()?;
        Some(if value.dtype? == ElementType::F32 { values } else { values.cast(value.dtype?) })
    };
    graph.inputs.iter().map(one).collect()
}

fuzz_target!(|data: &[u8]| {
    let limits =
        GraphLimits { tensor_elements: 1 << 20, folded_elements: 1 << 16, nodes: 400, ..GraphLimits::default() };
    let Ok(graph) = cytoscope_onnx::from_bytes(data, None, &limits) else { return };
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
    let want = cytoscope_reference::run(&graph, &named(&given));
    let nearby = cytoscope_reference::run(&graph, &named(&near));
    let options = CompileOptions { threads: 1, memory_budget_bytes: Some(512 << 20), ..CompileOptions::default() };
    let run = CpuEngine::new().compile(&graph, &shapes, &options).and_then(|mut session| session.run(&given));
    match (run, want, nearby) {
        (Err(EngineError::Internal { place, reason }), ..) => panic!("{place}: {reason}"),
        (Err(e), Ok(_), _) if !matches!(e, EngineError::OutOfMemory { .. } | EngineError::Graph(_)) => {
            panic!("the engine returned an error: {e}")
        }
        (Ok(got), Ok(want), Ok(nearby)) if is_well_conditioned(&graph) => {
            assert_eq!(got.len(), want.len());
            for ((got, want), nearby) in got.iter().zip(&want).zip(&nearby) {
                // Engines may propagate NaN and infinity differently.
                if want.to_f64_vec().iter().any(|v| !v.is_finite() || v.abs() > 1e30) {
                    continue;
                }
                if let Err(how) = agreement::agrees(got, want, nearby, agreement::FLOAT) {
                    panic!("{how}\n{}", cytoscope_builders::describe(&shaped));
                }
            }
        }
        _ => {}
    }
});
