//! Properties that only a real NVIDIA GPU can show: how much the precisions of CUDA sessions round.

use crate::tiled::gradient;
use crate::{difference_on, one, tensor};
use cytoscope_engine::{Device, Engine, Precision};
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

/// Checks that f32 does not round factors, and that the other precisions of the device round as much as their type.
fn rounds_as_stated(engine: &BurnEngine, what: &str, graph: &Graph, inputs: &[Tensor]) {
    // Mantissas of 23, 10, 10 and 7 bits; sums are of 32 bits.
    let limits = [(Precision::F32, 5e-6), (Precision::Tf32, 1e-2), (Precision::F16, 5e-3), (Precision::Bf16, 4e-2)];
    for (precision, limit) in limits {
        if precision == Precision::F32 || engine.device().precisions.contains(&precision) {
            let rounded = difference_on(engine, graph, inputs, precision);
            eprintln!("{what}: {precision} {rounded:.1e}");
            assert!(rounded < limit, "{what}, {precision}: {rounded:.1e}");
        }
    }
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
        let what = format!("{outputs} channels, kernel {kernel}, stride {stride}");
        rounds_as_stated(&engine, &what, &graph, std::slice::from_ref(&x));
    }
}

#[test]
fn gradients_of_convolutions_on_cuda_round_as_much_as_their_type() {
    let Some(engine) = engine() else { return };
    for (inputs, outputs, kernel, stride) in
        [(16, 16, 3, 1), (64, 32, 3, 1), (32, 64, 3, 2), (48, 16, 1, 1), (1, 16, 3, 1), (6, 10, 3, 1)]
    {
        let attrs = ConvAttrs::same(&[kernel; 3]).with_strides(&[stride; 3]);
        let x = [2, inputs, 8, 16, 18];
        let dy = [2, outputs, 8 / stride, 16 / stride, 18 / stride];
        let given = [tensor(&x, 3), tensor(&[outputs, inputs, kernel, kernel, kernel], 4), tensor(&dy, 5)];
        for (of, for_weights) in [("input", false), ("weights", true)] {
            let what = format!("{of} gradient, {inputs} to {outputs} channels, kernel {kernel}, stride {stride}");
            rounds_as_stated(&engine, &what, &gradient(attrs.clone(), for_weights, x, dy), &given);
        }
    }
}
