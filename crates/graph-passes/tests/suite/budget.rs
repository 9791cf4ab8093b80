//! Small models that need much memory or work during preparation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cytoscope_graph::{
    BinaryOp, Budget, Dim, ElementType, Graph, GraphError, GraphErrorKind, GraphLimits, Interrupt, Op, Tensor, ValueId,
};
use cytoscope_graph_passes::{infer_shapes, infer_shapes_within};

/// Tiles of constants, each at the maximum size of one constant, joined by one concatenation.
fn tiles(count: usize) -> Graph {
    let mut graph = Graph::new("tiles");
    let parts: Vec<Option<ValueId>> = (0..count)
        .map(|i| {
            let one = graph.add_initializer(format!("a{i}"), Tensor::vector(vec![i as f32]));
            let times = graph.add_initializer(format!("n{i}"), Tensor::vector(vec![1i64 << 24]));
            Some(graph.push(format!("t{i}"), Op::Tile, &[Some(one), Some(times)]))
        })
        .collect();
    let y = graph.push("y", Op::Concat { axis: 0 }, &parts);
    graph.outputs.push(y);
    graph
}

/// A chain of square matrix products.
fn products(count: usize, edge: usize) -> Graph {
    let mut graph = Graph::new("products");
    let values = (0..edge * edge).map(|i| if i % (edge + 1) == 0 { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
    let one = graph.add_initializer("one", Tensor::new([edge, edge], values).unwrap());
    let mut last = one;
    for i in 0..count {
        last = graph.push(format!("p{i}"), Op::MatMul, &[Some(last), Some(one)]);
    }
    graph.outputs.push(last);
    graph
}

#[test]
fn folding_stays_within_its_memory_budget() {
    let mut graph = tiles(60);
    let bytes = cytoscope_onnx::to_bytes(&graph).unwrap();
    assert!(bytes.len() < 10_000, "{} bytes", bytes.len());
    let mut read = cytoscope_onnx::from_bytes(&bytes, None, &GraphLimits::default()).unwrap();
    for graph in [&mut graph, &mut read] {
        infer_shapes::<ValueId>(graph, &[]).unwrap();
        cytoscope_graph_passes::fold_constants(graph).unwrap();
        // The graph would need sixty times 64 MiB.
        assert!(graph.initializer_bytes() < 300 << 20, "{} bytes", graph.initializer_bytes());
        assert!(graph.nodes.len() > 50, "{} nodes are left", graph.nodes.len());
        graph.validate().unwrap();
    }
}

#[test]
fn folding_stays_within_its_work_budget() {
    // One product of 4096 × 4096 is 6.9e10 multiply-accumulates.
    let mut graph = products(1, 4096);
    let budget = Budget::new(&graph, Interrupt::default());
    let before = budget.work_left();
    assert_eq!(cytoscope_graph_passes::fold_constants_within(&mut graph, &budget).unwrap(), 0);
    assert_eq!(budget.work_left(), before);
    // Many small products are folded until the budget is used up; the result does not change.
    let mut graph = products(200, 256);
    let budget = Budget::new(&graph, Interrupt::default());
    infer_shapes_within::<ValueId>(&mut graph, &[], &budget).unwrap();
    let folded = cytoscope_graph_passes::fold_constants_within(&mut graph, &budget).unwrap();
    assert!(folded > 20 && folded < 100, "{folded}");
    assert!(budget.work_left() < 1 << 25, "{}", budget.work_left());
    cytoscope_graph_passes::eliminate_dead(&mut graph);
    graph.validate().unwrap();
    // Values that shapes may depend on count as well: 5e9 multiply-accumulates.
    let mut graph = products(20_000, 64);
    let budget = Budget::new(&graph, Interrupt::default());
    infer_shapes_within::<ValueId>(&mut graph, &[], &budget).unwrap();
    assert!(budget.work_left().min(budget.bytes_left()) < 1 << 20, "{budget:?}");
    assert_eq!(graph.value(graph.outputs[0]).fixed_shape(), Some(vec![64, 64]));
}

#[test]
fn the_cost_of_a_node_is_known_before_it_is_computed() {
    let vector = |n: usize| Tensor::vector(vec![1.0f32; n]);
    let huge_window = cytoscope_graph::PoolAttrs {
        kernel: vec![1 << 12, 1 << 12],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        padding: cytoscope_graph::Padding::symmetric(vec![1 << 11, 1 << 11]),
        ceil_mode: false,
        count_include_pad: true,
        column_major_indices: false,
    };
    let image = Tensor::new([1, 1, 64, 64], vec![1.0f32; 4096]).unwrap();
    for (name, op, inputs) in [
        ("sum of 6.9e10 products", Op::Einsum { equation: "a,b,c->".into() }, vec![vector(4096); 3]),
        ("windows of 1.7e7 taps", Op::AveragePool(huge_window), vec![image]),
    ] {
        let mut graph = Graph::new(name);
        let inputs: Vec<_> = inputs.into_iter().map(|t| Some(graph.add_initializer("a", t))).collect();
        let y = graph.push("y", op, &inputs);
        graph.outputs.push(y);
        match infer_shapes::<ValueId>(&mut graph, &[]) {
            Ok(()) => assert_eq!(cytoscope_graph_passes::fold_constants(&mut graph).unwrap(), 0, "{name}"),
            Err(e) => assert_eq!(e.kind(), GraphErrorKind::OverLimit, "{name}: {e}"),
        }
    }
}

#[test]
fn preparation_can_be_interrupted_between_nodes() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let interrupt = Interrupt::new(move || count.fetch_add(1, Ordering::Relaxed) >= 10);
    let mut graph = products(1_000, 4);
    let whole = graph.clone();
    let budget = Budget::new(&graph, interrupt.clone());
    let error = infer_shapes_within::<ValueId>(&mut graph, &[], &budget).unwrap_err();
    assert!(matches!(error, GraphError::Interrupted), "{error}");
    assert_eq!(asked.load(Ordering::Relaxed), 11);
    asked.store(0, Ordering::Relaxed);
    let error = cytoscope_graph_passes::fold_constants_within(&mut graph, &budget).unwrap_err();
    assert_eq!(error.kind(), GraphErrorKind::Interrupted);
    // Folded nodes stay folded, and the rest of the graph is complete.
    assert_eq!(graph.nodes.len(), 1_000 - 10);
    assert_eq!(graph.nodes.last(), whole.nodes.last());
    graph.validate().unwrap();
}

#[test]
fn names_of_lengths_do_not_grow_with_the_graph() {
    let mut graph = Graph::new("doubled");
    let mut x = graph.add_input("x", ElementType::F32, vec![Dim::Fixed(1), Dim::Free("n".into())]);
    for i in 0..200 {
        // A length named by its sum would double its name each time.
        let sum = graph.push(format!("c{i}"), Op::Concat { axis: 1 }, &[Some(x), Some(x)]);
        x = graph.push(format!("r{i}"), Op::Activation(cytoscope_graph::Activation::Relu), &[Some(sum)]);
    }
    graph.outputs.push(x);
    infer_shapes::<ValueId>(&mut graph, &[]).unwrap();
    let longest = graph.values.iter().flat_map(|v| v.shape.iter().flatten()).map(|d| d.to_string().len()).max();
    assert!(longest.unwrap() < 200, "{longest:?}");
    let again =
        cytoscope_onnx::from_bytes(&cytoscope_onnx::to_bytes(&graph).unwrap(), None, &GraphLimits::default()).unwrap();
    assert_eq!(again.nodes.len(), 400);
    // Impossible lengths are refused instead of wrapping.
    let error = infer_shapes(&mut graph, &[("x", vec![1, 3])]).unwrap_err();
    assert_eq!(error.kind(), GraphErrorKind::OverLimit, "{error}");
}

#[test]
fn the_reference_executor_stays_within_its_memory_limit() {
    let x = Tensor::vector(vec![1.0f32; 1024]);
    let shape = Tensor::vector(vec![1024i64, 1024]);
    let expand = |most: u64| cytoscope_reference::eval_within(&Op::Expand, &[Some(&x), Some(&shape)], 1, most);
    // 1024 × 1024 values of 4 bytes.
    assert_eq!(expand(4 << 20).unwrap()[0].len(), 1 << 20);
    let error = expand((4 << 20) - 1).unwrap_err();
    assert!(matches!(error, GraphError::OverLimit { limit: cytoscope_reference::MEMORY, .. }), "{error}");
    // A sum of two tensors that broadcast to a size over the limit.
    let (a, b) = (Tensor::new([1 << 16, 1], vec![1.0f32; 1 << 16]).unwrap(), Tensor::vector(vec![1.0f32; 1 << 14]));
    let error = cytoscope_reference::eval(&Op::Binary(BinaryOp::Add), &[Some(&a), Some(&b)], 1).unwrap_err();
    assert!(matches!(error, GraphError::OverLimit { limit: cytoscope_reference::MEMORY, .. }), "{error}");
}
