//! What only a real NVIDIA GPU can show: how much the precisions of CUDA sessions round.

use crate::{one, tensor};
use cytoscope_engine::{CompileOptions, Device, Engine, Precision};
use cytoscope_engine_burn::{BurnEngine, probe};
use cytoscope_graph::{ConvAttrs, Graph, Op, Tensor};

/// Returns the engine of a GPU, or `None` with a report of the skip.
fn engine() -> Option<BurnEngine> {
    let devices = probe::run_in_this_process(probe::Kind::Cuda);
    // A stand-in for the driver computes nothing.
    let found: Option<&Device> = devices.iter().find(|d| d.usable && !d.name.contains("Null"));
    if found.is_none() {
        cytoscope_testkit::skip("no NVIDIA GPU that CUDA can use");
    }
    found.map(|device| BurnEngine::open(device).unwrap())
}

/// Returns the largest difference from the reference executor, relative to the largest value.
fn difference(engine: &BurnEngine, graph: &Graph, x: &Tensor, precision: Precision) -> f32 {
    let name = graph.value(graph.inputs[0]).name.clone();
    let expected = cytoscope_reference::run(graph, &[(name, x.clone())]).unwrap();
    let options = CompileOptions { precision, ..CompileOptions::default() };
    let mut session = engine.compile(graph, &[x.shape().to_vec()], &options).unwrap();
    let got = session.run(std::slice::from_ref(x)).unwrap();
    let (got, expected) = (got[0].as_f32().unwrap(), expected[0].as_f32().unwrap());
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    got.iter().zip(expected).map(|(g, e)| (g - e).abs()).fold(0.0, f32::max) / largest
}

#[test]
fn f32_sessions_on_cuda_do_not_round_factors_and_others_round_as_much_as_their_type() {
    let Some(engine) = engine() else { return };
    let x = tensor(&[1, 32, 8, 16, 16], 3);
    for (outputs, kernel, stride) in [(32, 3, 1), (5, 3, 1), (32, 1, 1), (7, 1, 1), (16, 3, 2), (48, 5, 1)] {
        let w = tensor(&[outputs, 32, kernel, kernel, kernel], 4);
        let bias = tensor(&[outputs], 5);
        let conv = Op::Conv(ConvAttrs::same(&[kernel; 3]).with_strides(&[stride; 3]));
        let graph = one(conv, x.shape(), vec![Some(w), Some(bias)]);
        let [exact, rounded] = [Precision::F32, Precision::Tf32].map(|p| difference(&engine, &graph, &x, p));
        eprintln!("{outputs} channels, kernel {kernel}, stride {stride}: f32 {exact:.1e}, tf32 {rounded:.1e}");
        assert!(exact < 5e-6, "{outputs} channels, kernel {kernel}, stride {stride}: {exact:.1e}");
        assert!(rounded < 1e-2, "{outputs} channels, kernel {kernel}, stride {stride}: {rounded:.1e}");
        // Mantissas of 10 and 7 bits; sums are of 32 bits.
        for (precision, limit) in [(Precision::F16, 5e-3), (Precision::Bf16, 4e-2)] {
            if engine.device().precisions.contains(&precision) {
                let rounded = difference(&engine, &graph, &x, precision);
                eprintln!("{outputs} channels, kernel {kernel}, stride {stride}: {precision} {rounded:.1e}");
                assert!(
                    rounded < limit,
                    "{outputs} channels, kernel {kernel}, stride {stride}, {precision}: {rounded:.1e}"
                );
            }
        }
    }
}
