//! Graphs of 20,000 nodes compile quickly (a pass of quadratic time would take minutes), compiling and running can be
//! interrupted, and the memory limit holds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use cytoscope_engine::{CompileOptions, Engine, EngineError};
use cytoscope_engine_cpu::{CpuEngine, ReferenceEngine};
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, Dim, ElementType, Graph, GraphError, GraphLimits, Interrupt, Node, Op, Tensor,
    Value, ValueId,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const NODES: usize = 20_000;
const SHAPE: [usize; 4] = [1, 1, 2, 3];

/// Builds graphs without checking that names are unused, which would take quadratic time.
struct Large {
    graph: Graph,
    x: ValueId,
    parameters: [Option<ValueId>; 2],
}

impl Large {
    fn new() -> Self {
        let mut graph = Graph::new("large");
        let x = graph.add_input("x", ElementType::F32, SHAPE.map(Dim::Fixed).to_vec());
        let weight = graph.add_initializer("w", Tensor::new([1, 1, 1, 1], vec![0.9f32]).unwrap());
        let vector = graph.add_initializer("v", Tensor::vector(vec![1.0f32]));
        Self { graph, x, parameters: [Some(weight), Some(vector)] }
    }

    fn push(&mut self, op: Op, inputs: &[Option<ValueId>]) -> ValueId {
        let id = ValueId(u32::try_from(self.graph.values.len()).unwrap());
        let name = format!("v{}", id.0);
        self.graph.values.push(Value { name: name.clone(), dtype: None, shape: None });
        self.graph.nodes.push(Node { name, op, inputs: inputs.to_vec(), outputs: vec![Some(id)] });
        id
    }

    fn act(&mut self, x: ValueId, activation: Activation) -> ValueId {
        self.push(Op::Activation(activation), &[Some(x)])
    }
}

fn check(name: &str, graph: &Graph) {
    let read =
        cytoscope_onnx::from_bytes(&cytoscope_onnx::to_bytes(graph).unwrap(), None, &GraphLimits::default()).unwrap();
    let x = Tensor::new(SHAPE, vec![0.5f32, -0.5, 0.25, 1.0, -1.0, 0.0]).unwrap();
    let want = cytoscope_reference::run(&read, &[("x".to_owned(), x.clone())]).unwrap();
    let options = CompileOptions { threads: 1, ..CompileOptions::default() };
    let mut session = CpuEngine::new().compile(&read, &[SHAPE.to_vec()], &options).unwrap();
    let got = session.run(&[x]).unwrap();
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(&want) {
        for (g, w) in got.to_f64_vec().iter().zip(want.to_f64_vec()) {
            assert!((g - w).abs() <= 1e-4 * w.abs().max(1.0), "{name}: {g}, expected {w}");
        }
    }
}

#[test]
fn long_chains_compile_and_run() {
    let mut large = Large::new();
    let mut y = large.x;
    for _ in 0..NODES {
        y = large.act(y, Activation::Sigmoid);
    }
    large.graph.outputs.push(y);
    check("sigmoids", &large.graph);

    let mut large = Large::new();
    let mut y = large.x;
    for i in 0..NODES {
        y = if i % 2 == 0 { large.push(Op::Identity, &[Some(y)]) } else { large.act(y, Activation::Relu) };
    }
    large.graph.outputs.push(y);
    check("copies", &large.graph);
}

#[test]
fn deep_residual_networks_compile_and_run() {
    let mut large = Large::new();
    let [weight, vector] = large.parameters;
    let mut y = large.x;
    for _ in 0..NODES / 5 {
        let a = large.push(Op::Conv(ConvAttrs::same(&[1, 1])), &[Some(y), weight]);
        let a = large.push(Op::BatchNormalization { epsilon: 1e-3 }, &[Some(a), vector, vector, vector, vector]);
        let gate = large.act(a, Activation::Sigmoid);
        let a = large.push(Op::Binary(BinaryOp::Mul), &[Some(a), Some(gate)]);
        let norm = large.push(Op::InstanceNormalization { epsilon: 1e-1 }, &[Some(a), vector, vector]);
        y = large.push(Op::Binary(BinaryOp::Sub), &[Some(norm), Some(a)]);
        y = large.act(y, Activation::Tanh);
    }
    large.graph.outputs.push(y);
    check("residual", &large.graph);
}

#[test]
fn wide_graphs_compile_and_run() {
    let mut large = Large::new();
    let x = large.x;
    let [weight, _] = large.parameters;
    let first = large.push(Op::Conv(ConvAttrs::same(&[1, 1])), &[Some(x), weight]);
    let all: Vec<Option<ValueId>> =
        (0..NODES).map(|i| Some(large.act(first, Activation::LeakyRelu { alpha: i as f32 / NODES as f32 }))).collect();
    let y = large.push(Op::Concat { axis: 1 }, &all);
    large.graph.outputs.push(y);
    check("fan-out and one concatenation", &large.graph);

    let mut large = Large::new();
    let first = large.push(Op::Conv(ConvAttrs::same(&[1, 1])), &[Some(large.x), weight]);
    for i in 0..NODES {
        let y = large.act(first, Activation::LeakyRelu { alpha: i as f32 / NODES as f32 });
        large.graph.outputs.push(y);
    }
    check("every value an output", &large.graph);
}

#[test]
fn compiling_can_be_interrupted() {
    let mut large = Large::new();
    let y = large.act(large.x, Activation::Sigmoid);
    large.graph.outputs.push(y);
    let interrupt = Interrupt::new(|| true);
    let options = CompileOptions { interrupt, ..CompileOptions::default() };
    let stopped = CpuEngine::new().compile(&large.graph, &[SHAPE.to_vec()], &options).err();
    assert!(matches!(stopped, Some(EngineError::Graph(GraphError::Interrupted))), "{stopped:?}");
}

#[test]
fn running_can_be_interrupted() {
    let mut large = Large::new();
    let y = large.act(large.x, Activation::Sigmoid);
    large.graph.outputs.push(y);
    let engines: [Box<dyn Engine>; 2] = [Box::new(CpuEngine::new()), Box::new(ReferenceEngine::new())];
    for engine in engines {
        let name = engine.name();
        let stops = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stops);
        let interrupt = Interrupt::new(move || asked.load(Ordering::Relaxed));
        let options = CompileOptions { interrupt, ..CompileOptions::default() };
        let mut session = engine.compile(&large.graph, &[SHAPE.to_vec()], &options).unwrap();
        let x = Tensor::new(SHAPE, vec![1.0f32; 6]).unwrap();
        let mut run = || session.run(std::slice::from_ref(&x));
        let made = run().unwrap();
        stops.store(true, Ordering::Relaxed);
        let stopped = run().err();
        assert!(matches!(stopped, Some(EngineError::Graph(GraphError::Interrupted))), "{name}: {stopped:?}");
        stops.store(false, Ordering::Relaxed);
        assert_eq!(run().unwrap(), made, "{name}: the next run starts from the beginning");
    }
}

#[test]
fn the_memory_limit_holds_for_the_reference_executor() {
    let mut large = Large::new();
    let repeats = large.graph.add_initializer("repeats", Tensor::vector(vec![1i64, 4096, 1, 1024]));
    let y = large.push(Op::Tile, &[Some(large.x), Some(repeats)]);
    let y = large.push(
        Op::Reduce { kind: cytoscope_graph::ReduceOp::Sum, keep_dims: false, noop_with_empty_axes: false },
        &[Some(y)],
    );
    large.graph.outputs.push(y);
    let x = Tensor::new(SHAPE, vec![1.0f32; 6]).unwrap();
    // 25 million values of 4 bytes.
    let options = |bytes: u64| CompileOptions { memory_budget_bytes: Some(bytes), ..CompileOptions::default() };
    let mut session = CpuEngine::new().compile(&large.graph, &[SHAPE.to_vec()], &options(64 << 20)).unwrap();
    let refused = session.run(std::slice::from_ref(&x)).unwrap_err();
    assert!(matches!(refused, EngineError::OutOfMemory { .. }), "{refused}");
    let mut session = CpuEngine::new().compile(&large.graph, &[SHAPE.to_vec()], &options(1 << 30)).unwrap();
    assert_eq!(session.run(&[x]).unwrap()[0].to_f64_vec(), [4096.0 * 1024.0 * 6.0]);
}
