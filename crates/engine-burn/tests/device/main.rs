//! Correctness against the reference executor on any available Vulkan or Metal device, including software Vulkan, and
//! discovery of devices through child processes that fail.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers panic on failure")]

mod cuda;
mod direct;
mod discovery;
mod networks;
mod operators;
mod products;
mod tiled;
mod training;

// The library's unit tests are built here (see its Cargo.toml).
#[allow(dead_code)]
#[path = "../../src/kernels/division.rs"]
mod division;
#[allow(dead_code)]
#[path = "../../src/explain.rs"]
mod explain;
#[allow(dead_code)]
#[path = "../../src/form.rs"]
mod form;
#[allow(dead_code)]
#[path = "../../src/guard.rs"]
mod guard;
#[allow(dead_code)]
#[path = "../../src/hardware.rs"]
mod hardware;
#[allow(dead_code)]
#[path = "../../src/probe/listing.rs"]
mod listing;
#[allow(dead_code)]
#[path = "../../src/probe/precisions.rs"]
mod precisions;
#[allow(dead_code)]
#[path = "../../src/probe/toolkit.rs"]
mod toolkit;
#[allow(dead_code)]
#[path = "../../src/tuning.rs"]
mod tuning;

use cytoscope_engine::{CompileOptions, Device, Engine, EngineError, Precision};
use cytoscope_engine_burn::{BurnEngine, probe};
use cytoscope_graph::{Dim, ElementType, Graph, Op, Tensor};
use std::sync::OnceLock;

/// Returns the engine that tests run on, or `None` with a report of the skip if there is no device: Vulkan or Metal, or
/// CUDA if `CYTOSCOPE_TEST_DEVICE` is `cuda`.
pub fn engine() -> Option<&'static BurnEngine> {
    static ENGINE: OnceLock<Option<BurnEngine>> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| {
        let cuda = std::env::var("CYTOSCOPE_TEST_DEVICE").is_ok_and(|device| device == "cuda");
        let kind = if cuda { probe::Kind::Cuda } else { probe::Kind::Wgpu };
        let devices = probe::run_with_software(kind, true);
        let found: Option<&Device> = devices.iter().find(|d| d.usable);
        eprintln!("devices: {devices:?}");
        found.map(|device| BurnEngine::open(device).unwrap())
    });
    if engine.is_none() {
        cytoscope_testkit::skip("no Vulkan or Metal device");
    }
    engine.as_ref()
}

/// Returns pseudo-random numbers in −1..1.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    cytoscope_testkit::uniform(seed, count).into_iter().map(|v| v * 2.0 - 1.0).collect()
}

/// Returns a tensor of [`numbers`].
pub fn tensor(shape: &[usize], seed: u64) -> Tensor {
    Tensor::new(shape, numbers(shape.iter().product(), seed)).unwrap()
}

/// Builds a graph of one node whose first input is `x` of this shape; the other inputs are constants.
pub fn one(op: Op, shape: &[usize], constants: Vec<Option<Tensor>>) -> Graph {
    several(op, shape, constants, 1)
}

/// Like [`one`], with several outputs.
pub fn several(op: Op, shape: &[usize], constants: Vec<Option<Tensor>>, outputs: usize) -> Graph {
    let mut graph = Graph::new("one");
    let x = graph.add_input("x", ElementType::F32, shape.iter().map(|n| Dim::Fixed(*n)).collect());
    let mut inputs = vec![Some(x)];
    for (index, constant) in constants.into_iter().enumerate() {
        inputs.push(constant.map(|c| graph.add_initializer(format!("c{index}"), c)));
    }
    let y = graph.push("node", op, &inputs);
    graph.outputs.push(y);
    for index in 1..outputs {
        let more = graph.add_value(format!("y{index}"), None, None);
        graph.nodes[0].outputs.push(Some(more));
        graph.outputs.push(more);
    }
    graph
}

/// Returns the largest difference from the reference executor, relative to the largest value; `None` without a device.
pub fn difference(graph: &Graph, inputs: &[Tensor]) -> Option<f32> {
    Some(difference_on(engine()?, graph, inputs, Precision::F32))
}

/// Like [`difference`], on an engine in a precision.
pub fn difference_on(engine: &BurnEngine, graph: &Graph, inputs: &[Tensor], precision: Precision) -> f32 {
    let names = graph.inputs.iter().map(|i| graph.value(*i).name.clone());
    let named: Vec<_> = names.zip(inputs.iter().cloned()).collect();
    let expected = cytoscope_reference::run(graph, &named).unwrap();
    let shapes: Vec<_> = inputs.iter().map(|t| t.shape().to_vec()).collect();
    let mut session =
        engine.compile(graph, &shapes, &CompileOptions { precision, ..CompileOptions::default() }).unwrap();
    let got = session.run(inputs).unwrap();
    assert_eq!(got.len(), expected.len());
    let mut worst = 0.0f32;
    for (got, expected) in got.iter().zip(&expected) {
        assert_eq!(got.shape(), expected.shape());
        let (got, expected) = (got.as_f32().unwrap(), expected.as_f32().unwrap());
        let largest = expected.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
        for (g, e) in got.iter().zip(expected) {
            assert!(g.is_finite() == e.is_finite(), "{g} instead of {e}");
            if e.is_finite() {
                worst = worst.max((g - e).abs() / largest);
            }
        }
    }
    worst
}

/// Checks that a graph with one input agrees with the reference executor on pseudo-random numbers.
pub fn same(what: &str, graph: &Graph) {
    let shape = graph.value(graph.inputs[0]).fixed_shape().unwrap();
    let mut x = tensor(&shape, 7).into_f32().unwrap();
    x.iter_mut().for_each(|v| *v *= 3.0);
    same_on(what, graph, &[Tensor::new(shape, x).unwrap()]);
}

/// Checks that a graph agrees with the reference executor on these inputs.
pub fn same_on(what: &str, graph: &Graph, inputs: &[Tensor]) {
    if let Some(worst) = difference(graph, inputs) {
        eprintln!("{what}: {worst:.1e}");
        assert!(worst < 1e-4, "{what} differs by {worst}");
    }
}

/// Returns the error for an unsupported graph; panics if it is supported.
pub fn refusal(graph: &Graph) -> Option<String> {
    let shapes: Vec<_> = graph.inputs.iter().map(|i| graph.value(*i).fixed_shape().unwrap()).collect();
    match engine()?.compile(graph, &shapes, &CompileOptions::default()) {
        Err(error @ EngineError::UnsupportedOp { .. }) => Some(error.to_string()),
        Err(other) => panic!("unexpected error: {other}"),
        Ok(_) => panic!("the graph was not refused"),
    }
}
