//! Training steps on the CPU kernels, compared with the reference executor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "common/isas.rs"]
mod isas;

use cytoscope_autodiff::{GradientGraph, StepOptions, gradient_graph, prepare, update_graph};
use cytoscope_builders::{DynUNet, UNet3d, Upsampling, Weights, dynunet, unet3d};
use cytoscope_engine::{CompileOptions, Engine};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{Activation, Graph, Hyper, Loss, LossKind, Optimizer, Tensor};
use cytoscope_kernels::Isa;
use cytoscope_profile::{Recorder, Stage};
use isas::isas;

/// Reproducible numbers in -1..1.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    cytoscope_testkit::uniform(seed, n).into_iter().map(|v| v * 2.0 - 1.0).collect()
}

/// Returns an image, a target of 0 and 1, a weight map, and the network's initial parameters.
fn inputs(net: &Graph, gradient_step: &GradientGraph) -> Vec<Tensor> {
    let count = gradient_step.graph.inputs.len() - gradient_step.parameters.len();
    let mut all = Vec::new();
    for (i, id) in gradient_step.graph.inputs.iter().take(count).enumerate() {
        let shape = gradient_step.graph.value(*id).fixed_shape().unwrap();
        let mut values = noise(i as u64 + 1, shape.iter().product());
        match i {
            1 => values.iter_mut().for_each(|v| *v = f32::from(u8::from(*v > 0.2))),
            2 => values.iter_mut().for_each(|v| *v = v.max(0.0)),
            _ => {}
        }
        all.push(Tensor::new(shape, values).unwrap());
    }
    all.extend(gradient_step.values(net).unwrap());
    all
}

fn networks() -> Vec<(&'static str, Graph, Vec<usize>)> {
    let random = Weights::Random { seed: 7 };
    let unet = UNet3d {
        filters: vec![16, 32, 48],
        strides: vec![[1, 2, 2], [2, 2, 2]],
        out_channels: 2,
        head: Some(Activation::Sigmoid),
        ..UNet3d::default()
    };
    let nearest =
        UNet3d { upsampling: Upsampling::Nearest, filters: vec![16, 20], strides: vec![[2; 3]], ..unet.clone() };
    vec![
        ("U-Net", unet3d(&unet, &random).unwrap(), vec![2, 1, 6, 12, 20]),
        ("odd channels", unet3d(&nearest, &random).unwrap(), vec![1, 1, 4, 6, 8]),
        (
            "residual",
            dynunet(&DynUNet { filters: vec![16, 32, 48], ..DynUNet::default() }, &random).unwrap(),
            vec![2, 1, 8, 12, 16],
        ),
        ("pooled", pooled(), vec![2, 1, 4, 8, 12]),
    ]
}

/// A network that uses a value as several parts of a concatenation, as part of two concatenations, as both operands of
/// a sum, and in two equal slices.
fn repeated() -> Graph {
    use cytoscope_graph::{BinaryOp, ConvAttrs, Dim, ElementType, Op};
    let mut graph = Graph::new("repeated");
    let x = graph.add_input("x", ElementType::F32, ["n", "c", "d", "h", "w"].map(|n| Dim::Free(n.into())).to_vec());
    let conv = |graph: &mut Graph, x, o: usize, i: usize| {
        let values = noise(o as u64 * 31 + i as u64, o * i * 27).iter().map(|v| v * 0.1).collect::<Vec<f32>>();
        let w = graph.add_initializer("w", Tensor::new([o, i, 3, 3, 3], values).unwrap());
        graph.push("conv", Op::Conv(ConvAttrs::same(&[3, 3, 3])), &[Some(x), Some(w)])
    };
    let act =
        |graph: &mut Graph, x| graph.push("act", Op::Activation(Activation::LeakyRelu { alpha: 0.1 }), &[Some(x)]);
    let a = conv(&mut graph, x, 16, 1);
    let a = act(&mut graph, a);
    let twice = graph.push("twice", Op::Concat { axis: 1 }, &[Some(a), Some(a)]);
    let b = conv(&mut graph, twice, 32, 32);
    let ints = |graph: &mut Graph, v: i64| Some(graph.add_initializer("i", Tensor::vector(vec![v])));
    let (start, end, axis) = (ints(&mut graph, 0), ints(&mut graph, 16), ints(&mut graph, 1));
    let halves = [(); 2].map(|()| {
        let half = graph.push("half", Op::Slice, &[Some(b), start, end, axis]);
        act(&mut graph, half)
    });
    let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &[Some(a), Some(a)]);
    let inner = graph.push("inner", Op::Concat { axis: 1 }, &[Some(halves[0]), Some(a)]);
    let all = graph.push("all", Op::Concat { axis: 1 }, &[Some(inner), Some(halves[1]), Some(sum), Some(a)]);
    let y = conv(&mut graph, all, 1, 80);
    graph.outputs.push(y);
    graph
}

/// A network with pooling layers instead of strided convolutions.
fn pooled() -> Graph {
    use cytoscope_graph::{ConvAttrs, Dim, ElementType, Op, Padding, PoolAttrs, ResizeAttrs, ResizeMode};
    let mut graph = Graph::new("pooled");
    let x = graph.add_input("x", ElementType::F32, ["n", "c", "d", "h", "w"].map(|n| Dim::Free(n.into())).to_vec());
    let weight = |graph: &mut Graph, name: &str, o: usize, i: usize| {
        let values = noise(o as u64 * 31 + i as u64, o * i * 27).iter().map(|v| v * 0.2).collect::<Vec<f32>>();
        Some(graph.add_initializer(name, Tensor::new([o, i, 3, 3, 3], values).unwrap()))
    };
    let pool = PoolAttrs {
        kernel: vec![2; 3],
        strides: vec![2; 3],
        dilations: vec![1; 3],
        padding: Padding::none(3),
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    let conv = || Op::Conv(ConvAttrs::same(&[3, 3, 3]));
    let w = weight(&mut graph, "w1", 16, 1);
    let a = graph.push("a", conv(), &[Some(x), w]);
    let a = graph.push("a.act", Op::Activation(Activation::Relu), &[Some(a)]);
    let b = graph.push("b", Op::MaxPool(pool.clone()), &[Some(a)]);
    let w = weight(&mut graph, "w2", 16, 16);
    let b = graph.push("b.conv", conv(), &[Some(b), w]);
    let c = graph.push("c", Op::AveragePool(pool), &[Some(b)]);
    let scales = graph.add_initializer("scales", Tensor::vector(vec![1.0f32, 1.0, 4.0, 4.0, 4.0]));
    let linear = ResizeAttrs {
        mode: ResizeMode::Linear,
        coordinates: cytoscope_graph::CoordinateMode::HalfPixel,
        ..ResizeAttrs::nearest()
    };
    let d = graph.push("d", Op::Resize(linear), &[Some(c), None, Some(scales)]);
    let both = graph.push("both", Op::Concat { axis: 1 }, &[Some(d), Some(a)]);
    let w = weight(&mut graph, "w3", 1, 32);
    let y = graph.push("y", conv(), &[Some(both), w]);
    graph.outputs.push(y);
    graph
}

fn gradient_step(net: &Graph, shape: &[usize]) -> (Graph, GradientGraph) {
    let net = prepare(net).unwrap();
    let channels = if net.name == "unet3d" { 2 } else { 1 };
    let options = StepOptions::new(Loss::single(LossKind::DiceCrossEntropy { smooth: 1.0 }, channels));
    let gradient_step = gradient_graph(&net, &[shape.to_vec()], &options).unwrap();
    (net, gradient_step)
}

fn run(isa: Isa, threads: usize, gradient_step: &GradientGraph, inputs: &[Tensor]) -> Vec<Tensor> {
    let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
    let options = CompileOptions { threads, ..CompileOptions::default() };
    let mut session = CpuEngine::with_isa(isa).compile(&gradient_step.graph, &shapes, &options).unwrap();
    let first = session.run(inputs).unwrap();
    // The second run must not depend on what the first one left in memory.
    let second = session.run(inputs).unwrap();
    assert_eq!(first, second);
    first
}

#[test]
fn gradients_match_the_reference_on_every_instruction_set() {
    for (name, net, shape) in networks().into_iter().chain([("repeated", repeated(), vec![2, 1, 3, 6, 8])]) {
        let (net, gradient_step) = gradient_step(&net, &shape);
        let inputs = inputs(&net, &gradient_step);
        let named: Vec<(String, Tensor)> = gradient_step
            .graph
            .inputs
            .iter()
            .map(|id| gradient_step.graph.value(*id).name.clone())
            .zip(inputs.iter().cloned())
            .collect();
        let want = cytoscope_reference::run(&gradient_step.graph, &named).unwrap();
        for isa in isas() {
            let got = run(isa, 2, &gradient_step, &inputs);
            assert_eq!(got.len(), want.len());
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_eq!(got.shape(), want.shape());
                let (got, want) = (got.to_f64_vec(), want.to_f64_vec());
                let norm = want.iter().map(|v| v * v).sum::<f64>().sqrt();
                let error = got.iter().zip(&want).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
                let what =
                    i.checked_sub(1).and_then(|i| gradient_step.parameters.get(i)).map_or("other", |p| p.name.as_str());
                assert!(
                    error <= 2e-3 * norm.max(1e-4),
                    "{name}, {isa}, output {i} ({what}): differs by {error} of {norm}"
                );
            }
        }
    }
}

#[test]
fn steps_are_bit_identical_for_any_number_of_threads() {
    let (_, net, shape) = networks().swap_remove(0);
    let (net, gradient_step) = gradient_step(&net, &shape);
    let inputs = inputs(&net, &gradient_step);
    let one = run(Isa::detect(), 1, &gradient_step, &inputs);
    for threads in [2, 3] {
        assert!(one == run(Isa::detect(), threads, &gradient_step, &inputs), "{threads} threads");
    }
}

#[test]
fn training_networks_need_no_fallbacks() {
    for (name, net, shape) in networks() {
        if name == "odd channels" {
            continue;
        }
        let (net, gradient_step) = gradient_step(&net, &shape);
        let shapes: Vec<Vec<usize>> = inputs(&net, &gradient_step).iter().map(|t| t.shape().to_vec()).collect();
        let session = CpuEngine::new().compile(&gradient_step.graph, &shapes, &CompileOptions::default()).unwrap();
        assert!(session.report().fallbacks.is_empty(), "{name}: {:?}", session.report().fallbacks);
    }
}

#[test]
fn profiles_of_steps_name_fused_operators_with_their_work() {
    let (net, gradient_step) = gradient_step(&pooled(), &[2, 1, 4, 8, 12]);
    let inputs = inputs(&net, &gradient_step);
    let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
    let recorder = Recorder::new();
    let options = CompileOptions { recorder: recorder.clone(), ..CompileOptions::default() };
    let mut session = CpuEngine::new().compile(&gradient_step.graph, &shapes, &options).unwrap();
    session.run(&inputs).unwrap();
    let spans = recorder.spans();
    let steps = || spans.iter().filter(|span| span.stage == Stage::Op);
    let fused = steps().find(|step| step.name.starts_with("Conv + Relu ")).expect("a convolution with its activation");
    // Each of 2 × 16 × 4 × 8 × 12 outputs is a sum of 27 products.
    assert_eq!(fused.macs, 2 * 16 * 4 * 8 * 12 * 27, "{}", fused.name);
    assert_eq!(steps().map(|step| step.macs).sum::<u64>(), session.report().macs);
}

#[test]
fn optimizers_match_the_reference() {
    let (net, gradient_step) = gradient_step(&networks()[0].1, &[1, 1, 4, 8, 8]);
    let values = gradient_step.values(&net).unwrap();
    for optimizer in [
        Optimizer::default(),
        Optimizer::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.01 },
        Optimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 },
    ] {
        let update = update_graph(&gradient_step.parameters, optimizer);
        let hyper = Hyper { rate: 1e-2, step: 3, scale: 0.5, limit: 1.0 };
        let mut inputs = vec![Tensor::vector(hyper.to_vec())];
        let copies = if update.has_second_moment { 4 } else { 3 };
        for copy in 0..copies {
            for (i, v) in values.iter().enumerate() {
                let mut noise = noise(1000 * copy + i as u64, v.len());
                if copy == 3 {
                    noise.iter_mut().for_each(|v| *v = v.abs());
                }
                inputs.push(if copy == 0 { v.clone() } else { Tensor::new(v.shape(), noise).unwrap() });
            }
        }
        let names = update.graph.inputs.iter().map(|id| update.graph.value(*id).name.clone());
        let named: Vec<(String, Tensor)> = names.zip(inputs.iter().cloned()).collect();
        let want = cytoscope_reference::run(&update.graph, &named).unwrap();
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
        let mut session = CpuEngine::new().compile(&update.graph, &shapes, &CompileOptions::default()).unwrap();
        assert!(session.report().fallbacks.is_empty(), "{:?}", session.report().fallbacks);
        let got = session.run(&inputs).unwrap();
        assert_eq!(got.len(), want.len(), "{optimizer:?}");
        for (got, want) in got.iter().zip(&want) {
            let error = cytoscope_testkit::largest_difference(&got.to_f64_vec(), &want.to_f64_vec());
            assert!(error < 1e-4, "{optimizer:?}: {error}");
        }
    }
}

/// Two convolutions on fake-quantized values, as in quantization-aware training. Scales are powers of two, so that sums
/// are exact in any order and no value is rounded differently.
fn fake_quantized() -> Graph {
    use cytoscope_graph::{ConvAttrs, Dim, ElementType, Op};
    let mut graph = Graph::new("rounded");
    let x = graph.add_input("x", ElementType::F32, ["n", "c", "d", "h", "w"].map(|n| Dim::Free(n.into())).to_vec());
    let mut read = x;
    for (name, from, to) in [("a", 1, 16), ("b", 16, 1)] {
        let values: Vec<f32> = noise(to as u64, to * from * 27).iter().map(|v| v * 0.3).collect();
        let w = graph.add_initializer(format!("{name}.w"), Tensor::new([to, from, 3, 3, 3], values).unwrap());
        let scales: Vec<f32> = (0..to).map(|i| if i % 2 == 0 { 0.0078125 } else { 0.015625 }).collect();
        let fake = Op::FakeQuantize { scales, axis: 0, low: -127.0, high: 127.0 };
        let w = graph.push(format!("{name}.rounded"), fake, &[Some(w)]);
        let fake = Op::FakeQuantize { scales: vec![0.25], axis: 1, low: -3.0, high: 4.0 };
        let seen = graph.push(format!("{name}.seen"), fake, &[Some(read)]);
        read = graph.push(name, Op::Conv(ConvAttrs::same(&[3, 3, 3])), &[Some(seen), Some(w)]);
        if name == "a" {
            read = graph.push("a.act", Op::Activation(Activation::Relu), &[Some(read)]);
        }
    }
    graph.outputs.push(read);
    graph
}

#[test]
fn fake_quantized_networks_match_the_reference() {
    let (net, shape) = (fake_quantized(), vec![2, 1, 4, 6, 8]);
    let options = StepOptions::new(Loss::single(LossKind::MeanSquared, 1));
    let gradient_step = gradient_graph(&net, &[shape], &options).unwrap();
    assert_eq!(gradient_step.parameters.len(), 2, "weights are trained through their rounding");
    let inputs = inputs(&net, &gradient_step);
    let named: Vec<(String, Tensor)> = gradient_step
        .graph
        .inputs
        .iter()
        .map(|id| gradient_step.graph.value(*id).name.clone())
        .zip(inputs.iter().cloned())
        .collect();
    let want = cytoscope_reference::run(&gradient_step.graph, &named).unwrap();
    for isa in isas() {
        let got = run(isa, 2, &gradient_step, &inputs);
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.shape(), want.shape());
            let (got, want) = (got.to_f64_vec(), want.to_f64_vec());
            let norm = want.iter().map(|v| v * v).sum::<f64>().sqrt();
            let error = got.iter().zip(&want).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
            assert!(norm > 0.0 && error <= 1e-4 * norm, "{isa}, output {i}: differs by {error} of {norm}");
        }
    }
}

/// Two convolutions with a PReLU between them that has one slope per channel.
fn prelu_network() -> Graph {
    use cytoscope_graph::{ConvAttrs, Dim, ElementType, Op};
    let mut graph = Graph::new("sloped");
    let x = graph.add_input("x", ElementType::F32, ["n", "c", "d", "h", "w"].map(|n| Dim::Free(n.into())).to_vec());
    let constant = |graph: &mut Graph, name: &str, shape: &[usize]| {
        let values: Vec<f32> = noise(name.len() as u64, shape.iter().product()).iter().map(|v| v * 0.3).collect();
        Some(graph.add_initializer(name, Tensor::new(shape, values).unwrap()))
    };
    let w = constant(&mut graph, "first", &[16, 1, 3, 3, 3]);
    let a = graph.push("a", Op::Conv(ConvAttrs::same(&[3, 3, 3])), &[Some(x), w]);
    let slope = constant(&mut graph, "slope.of.each", &[16, 1, 1, 1]);
    let a = graph.push("a.act", Op::PRelu, &[Some(a), slope]);
    let w = constant(&mut graph, "second", &[1, 16, 3, 3, 3]);
    let y = graph.push("y", Op::Conv(ConvAttrs::same(&[3, 3, 3])), &[Some(a), w]);
    graph.outputs.push(y);
    graph
}

#[test]
fn per_channel_prelu_slopes_are_trainable() {
    let (net, gradient_step) = gradient_step(&prelu_network(), &[2, 1, 4, 6, 8]);
    assert_eq!(gradient_step.parameters.len(), 3);
    let inputs = inputs(&net, &gradient_step);
    let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
    let session = CpuEngine::new().compile(&gradient_step.graph, &shapes, &CompileOptions::default()).unwrap();
    let fallbacks = &session.report().fallbacks;
    let known = ["PRelu", "Mul", "ReduceSum", "Reshape"];
    assert!(fallbacks.iter().all(|f| known.contains(&f.op.as_str())), "{fallbacks:?}");
    let names = gradient_step.graph.inputs.iter().map(|id| gradient_step.graph.value(*id).name.clone());
    let named: Vec<(String, Tensor)> = names.zip(inputs.iter().cloned()).collect();
    let want = cytoscope_reference::run(&gradient_step.graph, &named).unwrap();
    for isa in isas() {
        let got = run(isa, 2, &gradient_step, &inputs);
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.shape(), want.shape());
            let (got, want) = (got.to_f64_vec(), want.to_f64_vec());
            let norm = want.iter().map(|v| v * v).sum::<f64>().sqrt();
            let error = got.iter().zip(&want).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
            assert!(norm > 0.0 && error <= 2e-3 * norm, "{isa}, output {i}: differs by {error} of {norm}");
        }
    }
}

#[test]
fn recomputation_saves_memory_and_is_bit_identical() {
    for (name, net, shape) in networks().into_iter().filter(|(name, ..)| *name != "odd channels") {
        let (net, whole) = gradient_step(&net, &shape);
        let channels = if net.name == "unet3d" { 2 } else { 1 };
        let inputs = inputs(&net, &whole);
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
        let compile = |graph: &GradientGraph| {
            CpuEngine::new().compile(&graph.graph, &shapes, &CompileOptions::default()).unwrap()
        };
        let mut options = StepOptions::new(Loss::single(LossKind::DiceCrossEntropy { smooth: 1.0 }, channels));
        options.memory_budget_bytes = Some(u64::MAX);
        assert!(gradient_graph(&net, std::slice::from_ref(&shape), &options).unwrap().recomputed.is_none(), "{name}");
        // The smallest possible memory.
        options.memory_budget_bytes = Some(1);
        let recomputing = gradient_graph(&net, std::slice::from_ref(&shape), &options).unwrap();
        let report = recomputing.recomputed.unwrap();
        assert!(report.bytes_after < report.bytes_before && report.nodes > 0, "{name}: {report:?}");
        let (mut much, mut little) = (compile(&whole), compile(&recomputing));
        let held = (much.report().arena_bytes, little.report().arena_bytes);
        assert!(held.1 < held.0, "{name}: {held:?}, {report:?}");
        assert_eq!(much.report().macs + report.recomputed_macs, little.report().macs, "{name}");
        assert!(little.report().fallbacks.is_empty(), "{name}: {:?}", little.report().fallbacks);
        assert!(much.run(&inputs).unwrap() == little.run(&inputs).unwrap(), "{name}");
        println!("{name}: arena {} KiB instead of {}, {report:?}", held.1 >> 10, held.0 >> 10);
    }
}
