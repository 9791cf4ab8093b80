//! Whole networks, unsupported operators, and session reports.

use crate::{difference, engine, numbers, one, refusal, same, same_on, tensor};
use cytoscope_builders::{DynUNet, UNet3d, Upsampling, Weights, dynunet, unet3d};
use cytoscope_engine::{CompileOptions, Engine, EngineError, Precision};
use cytoscope_graph::{Activation, BinaryOp, ElementType, Graph, Op, Tensor, UnaryOp};
use cytoscope_profile::{Recorder, Stage};

const SHAPE: [usize; 5] = [1, 1, 8, 16, 16];

#[test]
fn u_nets_match_the_reference() {
    let config = UNet3d { filters: vec![4, 8], strides: vec![[1, 2, 2]], ..UNet3d::default() };
    let graph = unet3d(&config, &Weights::Random { seed: 3 }).unwrap();
    same_on("unet3d", &graph, &[tensor(&SHAPE, 5)]);
    let config = UNet3d { upsampling: Upsampling::Nearest, head: Some(Activation::Sigmoid), ..config };
    let graph = unet3d(&config, &Weights::Random { seed: 4 }).unwrap();
    same_on("unet3d, nearest", &graph, &[tensor(&SHAPE, 6)]);
}

#[test]
fn a_dynunet_matches_the_reference() {
    let config = DynUNet { filters: vec![4, 8], strides: vec![1, 2], ..DynUNet::default() };
    let graph = dynunet(&config, &Weights::Random { seed: 5 }).unwrap();
    // Statistics of each sample are its own.
    same_on("dynunet, a batch of two", &graph, &[tensor(&[2, 1, 8, 8, 16], 5)]);
}

#[test]
fn a_session_can_move_between_threads_and_reports_its_work() {
    let Some(engine) = engine() else { return };
    let config = UNet3d { filters: vec![4, 8], strides: vec![[1, 2, 2]], ..UNet3d::default() };
    let graph = unet3d(&config, &Weights::Random { seed: 3 }).unwrap();
    let recorder = Recorder::new();
    let options = CompileOptions { recorder: recorder.clone(), ..CompileOptions::default() };
    let mut session = engine.compile(&graph, &[SHAPE.to_vec()], &options).unwrap();
    // A volume of 12 × 18 × 20 voxels, of which the input is the part that starts at 4, 1, 3.
    let volume = numbers(12 * 18 * 20, 5);
    let row = |z: usize, y: usize| ((z + 4) * 18 + y + 1) * 20 + 3;
    let part = (0..8).flat_map(|z| (0..16).flat_map(move |y| row(z, y)..row(z, y) + 16));
    let x = Tensor::new(SHAPE, part.map(|at| volume[at]).collect::<Vec<_>>()).unwrap();
    let first = session.run(&[x]).unwrap();
    let (mut session, again, kept) = std::thread::spawn(move || {
        let slabs = session.slabs().unwrap();
        let planes =
            |from: usize, to: usize| Tensor::new([1, to - from, 18, 20], volume[from * 360..to * 360].to_vec());
        slabs.load(0, planes(0, 7).unwrap()).unwrap();
        slabs.load(5, planes(7, 12).unwrap()).unwrap();
        // The slab starts at the third plane.
        let again = slabs.run_tiles(&[[2, 1, 3]]).unwrap();
        assert!(matches!(slabs.run_tiles(&[[3, 1, 3]]), Err(EngineError::Input { .. })), "outside the slab");
        slabs.run_kept(&[[2, 1, 3]], 0, &[[1..3, 0..16, 4..9]]).unwrap();
        let kept = slabs.take_kept(1).unwrap();
        (session, again, kept)
    })
    .join()
    .unwrap();
    assert_eq!(first, again);
    let values = first[0].as_f32().unwrap();
    let part = (1..3).flat_map(|z| (0..16).flat_map(move |y| (z * 16 + y) * 16 + 4..(z * 16 + y) * 16 + 9));
    let part: Vec<f32> = part.map(|at: usize| values[at]).collect();
    assert_eq!((kept.shape(), kept.as_f32()), (&[1, 2, 16, 5][..], Some(&part[..])));
    let report = session.report();
    assert!(
        report.backend.contains(engine.name()) && report.macs > 0 && report.weight_bytes > 0 && report.arena_bytes > 0
    );
    assert!(report.fallbacks.is_empty());
    let totals = recorder.totals();
    let stage = |s: Stage| totals.iter().find(|t| t.stage == s).unwrap();
    let downloaded_bytes = (2 * 8 * 16 * 16 + 2 * 16 * 5) * 4;
    assert_eq!(stage(Stage::Download).bytes, downloaded_bytes);
    // Each voxel of the volume is uploaded once.
    let uploaded_bytes = report.weight_bytes + (8 * 16 * 16 + 12 * 18 * 20) * 4;
    assert_eq!(stage(Stage::Upload).bytes, uploaded_bytes);
    let traffic = session.traffic().unwrap();
    assert_eq!((traffic.runs, traffic.downloads, traffic.downloaded_bytes), (3, 3, downloaded_bytes));
    assert_eq!(traffic.uploaded_bytes, uploaded_bytes);
    // The weights and the slab are held as long as the session; other tests may hold more.
    let held = cytoscope_engine_burn::device_memory().unwrap();
    assert!(held.allocated_bytes > 0 && held.reserved_bytes >= held.allocated_bytes, "{held:?}");
    // The session waits for the weights and for what it downloads; for the input of each run and after every step only
    // because the recorder times operators.
    assert_eq!(traffic.synchronizations, 1 + 3 + 3 + traffic.steps);
    assert!(stage(Stage::Op).count > 10);
    let wrong = session.run(&[tensor(&[1, 1, 8, 16, 8], 5)]);
    assert!(matches!(wrong, Err(EngineError::Input { .. })));
    let options = CompileOptions { memory_budget_bytes: Some(1000), ..CompileOptions::default() };
    let full = engine.compile(&graph, &[SHAPE.to_vec()], &options);
    assert!(matches!(full, Err(EngineError::OutOfMemory { available_bytes: 1000, .. })));
    let options = CompileOptions { precision: Precision::F16, ..CompileOptions::default() };
    let half = engine.compile(&graph, &[SHAPE.to_vec()], &options);
    assert!(matches!(half, Err(EngineError::UnsupportedPrecision { engine: "wgpu", .. })));
}

#[test]
fn unsupported_operators_are_named() {
    let tan = one(Op::Unary(UnaryOp::Tan), &[1, 2, 4], vec![]);
    let Some(engine) = engine() else { return };
    let why = refusal(&tan).unwrap();
    assert!(why.contains(engine.name()) && why.contains("Tan") && why.contains("\"node\""), "{why}");
    let scale = Tensor::scalar(0.1f32);
    let zero = Tensor::scalar(3u8);
    let quantize = Op::QuantizeLinear { axis: 1, block_size: 0, to: ElementType::U8 };
    let mut graph = one(quantize, &[1, 2, 4], vec![Some(scale), Some(zero)]);
    let q = graph.outputs[0];
    let (scale, zero) = (graph.find("c0"), graph.find("c1"));
    let y = graph.push("back", Op::DequantizeLinear { axis: 1, block_size: 0 }, &[Some(q), scale, zero]);
    graph.outputs = vec![y];
    let why = refusal(&graph).unwrap();
    assert!(why.contains("QuantizeLinear") && why.contains("\"node\""), "{why}");
    let mut graph = Graph::new("bytes");
    let x = graph.add_input("bytes", ElementType::U8, vec![cytoscope_graph::Dim::Fixed(3)]);
    let y = graph.push("wide", Op::Cast { to: ElementType::F32 }, &[Some(x)]);
    graph.outputs.push(y);
    let why = refusal(&graph).unwrap();
    assert!(why.contains("uint8") && why.contains("bytes"), "{why}");
}

#[test]
fn inputs_and_constants_can_be_outputs() {
    let mut graph = one(Op::Binary(BinaryOp::Add), &[1, 2, 4], vec![Some(Tensor::scalar(2.0f32))]);
    let (x, c) = (graph.inputs[0], graph.find("c0").unwrap());
    graph.outputs.extend([x, c]);
    same("input and constant as outputs", &graph);
}

/// `CYTOSCOPE_BENCH_MODEL=model.onnx CYTOSCOPE_BENCH_SHAPE=1,1,64,64,64 cargo test … a_model_given -- --ignored --nocapture`
#[test]
#[ignore = "times the model that CYTOSCOPE_BENCH_MODEL names; run with --ignored"]
fn a_model_given_by_environment_variable_is_timed() {
    let path = std::env::var("CYTOSCOPE_BENCH_MODEL").expect("the model is named");
    let shape = std::env::var("CYTOSCOPE_BENCH_SHAPE").unwrap_or_else(|_| "1,1,16,32,32".to_owned());
    let shape: Vec<usize> = shape.split(',').map(|n| n.parse().unwrap()).collect();
    let graph = cytoscope_onnx::from_bytes(&std::fs::read(path).unwrap(), None, &Default::default()).unwrap();
    let Some(engine) = engine() else { return };
    let x = [tensor(&shape, 1)];
    let mut session = engine.compile(&graph, std::slice::from_ref(&shape), &CompileOptions::default()).unwrap();
    for run in 0..4 {
        let start = std::time::Instant::now();
        session.run(&x).unwrap();
        eprintln!("run {run} of {shape:?}: {:.3} s", start.elapsed().as_secs_f64());
    }
    eprintln!("report {:?}; difference {:?}", session.report(), difference(&graph, &x));
}
