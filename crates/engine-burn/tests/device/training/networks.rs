//! Whole training steps.

use super::{expected, lengths};
use crate::{engine, numbers};
use cytoscope_autodiff::{GradientGraph, Parameter, StepOptions, gradient_graph, prepare, update_graph};
use cytoscope_builders::{DynUNet, UNet3d, Upsampling, Weights, dynunet, unet3d};
use cytoscope_engine::{BoundSession, Buffers, CompileOptions, Engine, Precision};
use cytoscope_engine_burn::BurnEngine;
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{
    Activation, ConvAttrs, CoordinateMode, Dim, ElementType, Graph, Hyper, Loss, LossKind, Op, Optimizer, Padding,
    PoolAttrs, ResizeAttrs, ResizeMode, Tensor, ValueId,
};

/// Loss scale in mixed precision.
const LOSS_SCALE: f32 = 1024.0;

/// Returns an image, a target of 0 and 1, a weight map, the loss scale (in mixed precision), and the initial
/// parameters.
fn inputs(net: &Graph, made: &GradientGraph) -> Vec<Tensor> {
    let count = made.graph.inputs.len() - made.parameters.len();
    let mut all = Vec::new();
    for (i, id) in made.graph.inputs.iter().take(count).enumerate() {
        let shape = made.graph.value(*id).fixed_shape().unwrap();
        let mut values = numbers(shape.iter().product(), i as u64 + 1);
        match i {
            1 => values.iter_mut().for_each(|v| *v = f32::from(u8::from(*v > 0.2))),
            2 => values.iter_mut().for_each(|v| *v = v.max(0.0)),
            3 => values.fill(LOSS_SCALE),
            _ => {}
        }
        all.push(Tensor::new(shape, values).unwrap());
    }
    all.extend(made.values(net).unwrap());
    all
}

fn step(net: &Graph, shape: &[usize], kind: LossKind) -> (Graph, GradientGraph) {
    let net = prepare(net).unwrap();
    let channels = if net.name == "unet3d" { 2 } else { 1 };
    let made = gradient_graph(&net, &[shape.to_vec()], &StepOptions::new(Loss::single(kind, channels))).unwrap();
    (net, made)
}

fn shapes(of: &[Tensor]) -> Vec<Vec<usize>> {
    of.iter().map(|t| t.shape().to_vec()).collect()
}

/// Checks that every output of a step agrees with the reference executor, in two consecutive runs.
fn compare(name: &str, net: &Graph, made: &GradientGraph, tolerance: f64) {
    let Some(engine) = engine() else { return };
    let inputs = inputs(net, made);
    let want = expected(&made.graph, &inputs);
    let mut session = engine.compile(&made.graph, &shapes(&inputs), &CompileOptions::default()).unwrap();
    assert!(session.report().fallbacks.is_empty(), "{:?}", session.report());
    let mut worst = 0.0f64;
    for _ in 0..2 {
        let got = session.run(&inputs).unwrap();
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let what = i.checked_sub(1).and_then(|i| made.parameters.get(i)).map_or("other", |p| p.name.as_str());
            let (off, norm) = lengths(got, want);
            assert!(off <= tolerance * norm.max(1e-4), "{name}, output {i} ({what}): differs by {off} of {norm}");
            worst = worst.max(off / norm.max(1e-4));
        }
    }
    eprintln!("{name}: {} outputs, largest difference {worst:.1e}", want.len());
}

fn u_net(filters: &[usize], upsampling: Upsampling, strides: &[[usize; 3]]) -> Graph {
    let config = UNet3d {
        filters: filters.to_vec(),
        strides: strides.to_vec(),
        out_channels: 2,
        head: Some(Activation::Sigmoid),
        upsampling,
        ..UNet3d::default()
    };
    unet3d(&config, &Weights::Random { seed: 7 }).unwrap()
}

const DICE: LossKind = LossKind::DiceCrossEntropy { smooth: 1.0 };

#[test]
fn a_u_net_with_transposed_convolutions_matches_the_reference() {
    let net = u_net(&[8, 12, 16], UNet3d::default().upsampling, &[[1, 2, 2], [2, 2, 2]]);
    let (net, made) = step(&net, &[2, 1, 6, 12, 20], DICE);
    compare("U-Net", &net, &made, 2e-3);
}

#[test]
fn a_u_net_with_nearest_upsampling_and_odd_channels_matches_the_reference() {
    let net = u_net(&[5, 7], Upsampling::Nearest, &[[2; 3]]);
    let (net, made) = step(&net, &[1, 1, 4, 6, 8], DICE);
    compare("odd channels", &net, &made, 2e-3);
}

#[test]
fn a_residual_network_with_instance_norms_matches_the_reference() {
    let config = DynUNet { filters: vec![8, 12, 16], ..DynUNet::default() };
    let net = dynunet(&config, &Weights::Random { seed: 7 }).unwrap();
    let (net, made) = step(&net, &[2, 1, 8, 12, 16], DICE);
    compare("residual", &net, &made, 2e-3);
}

#[test]
fn mixed_precision_gradients_are_as_accurate_as_the_reference() {
    let Some(engine) = engine() else { return };
    let nets = [
        (u_net(&[8, 12, 16], UNet3d::default().upsampling, &[[1, 2, 2], [2, 2, 2]]), 2),
        (
            dynunet(&DynUNet { filters: vec![8, 12, 16], ..DynUNet::default() }, &Weights::Random { seed: 7 }).unwrap(),
            1,
        ),
    ];
    for (net, channels) in nets {
        let net = prepare(&net).unwrap();
        // The limits are errors of the reference.
        half_gradients(engine, &net, channels, ElementType::F16, 0.1);
        if engine.device().precisions.contains(&Precision::Bf16) {
            half_gradients(engine, &net, channels, ElementType::BF16, 0.5);
        }
    }
}

/// Checks the gradients of a training step in `half` against those in 32 bits, and that the reference's are within `limit`.
fn half_gradients(engine: &BurnEngine, net: &Graph, channels: usize, half: ElementType, limit: f64) {
    let options = StepOptions { half: Some(half), ..StepOptions::new(Loss::single(DICE, channels)) };
    let shape = vec![2, 1, 8, 16, 16];
    let made = gradient_graph(net, std::slice::from_ref(&shape), &options).unwrap();
    let full = gradient_graph(net, &[shape], &StepOptions { half: None, ..options }).unwrap();
    assert!(made.halved.unwrap().nodes > 10);
    let given = inputs(net, &made);
    let want = expected(&made.graph, &given);
    let precise = expected(&full.graph, &inputs(net, &full));
    let mut session = engine.compile(&made.graph, &shapes(&given), &CompileOptions::default()).unwrap();
    assert!(session.report().fallbacks.is_empty(), "{:?}", session.report());
    let got = session.run(&given).unwrap();
    // The device rounds to 16 bits in a different order than the reference. Its gradients must not be further from those in 32
    // bits than the reference's.
    let distance = |a: &[Tensor], b: &[Tensor], scale: f64| {
        let (mut off, mut norm) = (0.0, 0.0);
        for (a, b) in a.iter().zip(b).skip(1).take(made.parameters.len()) {
            for (a, b) in a.to_f64_vec().iter().zip(b.to_f64_vec()) {
                off += (a - b * scale).powi(2);
                norm += (b * scale).powi(2);
            }
        }
        (off / norm).sqrt()
    };
    let scale = f64::from(LOSS_SCALE);
    let errors = [distance(&got, &want, 1.0), distance(&got, &precise, scale), distance(&want, &precise, scale)];
    let what = format!("{} in {half:?}", net.name);
    eprintln!("{what}: device to 16-bit reference, device to 32 bits, reference to 32 bits: {errors:?}");
    assert!(errors[2] < limit && errors[1] < 1.3 * errors[2] && errors[1] > 1e-5, "{what}: {errors:?}");
    let loss = |made: &[Tensor]| made[0].to_f64_vec()[0];
    assert!((loss(&got) / loss(&precise) - 1.0).abs() < 0.01, "{what}");
}

fn weight(graph: &mut Graph, name: &str, o: usize, i: usize) -> Option<ValueId> {
    let values = numbers(o * i * 27, o as u64 * 31 + i as u64).iter().map(|v| v * 0.2).collect::<Vec<f32>>();
    Some(graph.add_initializer(name, Tensor::new([o, i, 3, 3, 3], values).unwrap()))
}

fn stack(graph: &mut Graph) -> ValueId {
    graph.add_input("x", ElementType::F32, ["n", "c", "d", "h", "w"].map(|n| Dim::Free(n.into())).to_vec())
}

/// A network with pooling layers instead of strided convolutions, and a batch norm.
fn pooled() -> Graph {
    let mut graph = Graph::new("pooled");
    let x = stack(&mut graph);
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
    let w = weight(&mut graph, "w1", 8, 1);
    let a = graph.push("a", conv(), &[Some(x), w]);
    let parts = [("scale", 1.0f32), ("bias", 0.1), ("mean", 0.0), ("variance", 1.0)];
    let parts = parts.map(|(name, v)| Some(graph.add_initializer(name, Tensor::vector(vec![v; 8]))));
    let a = graph.push(
        "a.norm",
        Op::BatchNormalization { epsilon: 1e-5 },
        &[Some(a), parts[0], parts[1], parts[2], parts[3]],
    );
    let a = graph.push("a.act", Op::Activation(Activation::Relu), &[Some(a)]);
    let b = graph.push("b", Op::MaxPool(pool.clone()), &[Some(a)]);
    let w = weight(&mut graph, "w2", 8, 8);
    let b = graph.push("b.conv", conv(), &[Some(b), w]);
    let c = graph.push("c", Op::AveragePool(pool), &[Some(b)]);
    let scales = graph.add_initializer("scales", Tensor::vector(vec![1.0f32, 1.0, 4.0, 4.0, 4.0]));
    let linear =
        ResizeAttrs { mode: ResizeMode::Linear, coordinates: CoordinateMode::HalfPixel, ..ResizeAttrs::nearest() };
    let d = graph.push("d", Op::Resize(linear), &[Some(c), None, Some(scales)]);
    let both = graph.push("both", Op::Concat { axis: 1 }, &[Some(d), Some(a)]);
    let w = weight(&mut graph, "w3", 1, 16);
    let y = graph.push("y", conv(), &[Some(both), w]);
    graph.outputs.push(y);
    graph
}

#[test]
fn a_network_with_pooling_and_a_batch_norm_matches_the_reference() {
    let (net, made) = step(&pooled(), &[2, 1, 4, 8, 12], DICE);
    assert_eq!(made.norms.len(), 1);
    compare("pooled", &net, &made, 2e-3);
}

/// Two convolutions on fake-quantized values, as in quantization-aware training. Scales are powers of two, so that sums
/// are exact in any order and no value is rounded differently.
#[test]
fn a_fake_quantized_network_matches_the_reference() {
    let mut graph = Graph::new("rounded");
    let mut read = stack(&mut graph);
    for (name, from, to) in [("a", 1, 8), ("b", 8, 1)] {
        let w = weight(&mut graph, &format!("{name}.w"), to, from);
        let scales: Vec<f32> = (0..to).map(|i| if i % 2 == 0 { 0.0078125 } else { 0.015625 }).collect();
        let fake = Op::FakeQuantize { scales, axis: 0, low: -127.0, high: 127.0 };
        let w = graph.push(format!("{name}.rounded"), fake, &[w]);
        let fake = Op::FakeQuantize { scales: vec![0.25], axis: 1, low: -3.0, high: 4.0 };
        let seen = graph.push(format!("{name}.seen"), fake, &[Some(read)]);
        read = graph.push(name, Op::Conv(ConvAttrs::same(&[3, 3, 3])), &[Some(seen), Some(w)]);
        if name == "a" {
            read = graph.push("a.act", Op::Activation(Activation::Relu), &[Some(read)]);
        }
    }
    graph.outputs.push(read);
    let (net, made) = step(&graph, &[2, 1, 4, 6, 8], LossKind::MeanSquared);
    assert_eq!(made.parameters.len(), 2, "weights are trained through their rounding");
    compare("rounded", &net, &made, 1e-4);
}

#[test]
fn optimizers_match_the_reference() {
    let Some(engine) = engine() else { return };
    let (_, made) = step(&pooled(), &[1, 1, 4, 8, 8], DICE);
    // Also long tensors, each of which joins several parameters.
    let joined =
        |name: &str, length: usize, decays: bool| Parameter { name: name.to_owned(), shape: vec![length], decays };
    let parameters = [made.parameters, vec![joined("plain", 9_001, false), joined("decaying", 7_013, true)]].concat();
    let values: Vec<Tensor> = (parameters.iter().enumerate())
        .map(|(i, p)| Tensor::new(p.shape.clone(), numbers(p.shape.iter().product(), i as u64 + 500)).unwrap())
        .collect();
    for optimizer in [
        Optimizer::default(),
        Optimizer::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.01 },
        Optimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 },
        Optimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
    ] {
        for (step, limit) in [(1, 1.0), (3, 0.0), (4000, 1e9)] {
            let update = update_graph(&parameters, optimizer);
            let hyper = Hyper { rate: 1e-2, step, scale: 0.5, limit };
            let mut inputs = vec![Tensor::vector(hyper.to_vec())];
            for copy in 0..if update.has_second_moment { 4 } else { 3 } {
                for (i, v) in values.iter().enumerate() {
                    let mut noise = numbers(v.len(), 1000 * copy + i as u64 + 1);
                    if copy == 3 {
                        noise.iter_mut().for_each(|v| *v = v.abs());
                    }
                    inputs.push(if copy == 0 { v.clone() } else { Tensor::new(v.shape(), noise).unwrap() });
                }
            }
            let want = expected(&update.graph, &inputs);
            let mut session = engine.compile(&update.graph, &shapes(&inputs), &CompileOptions::default()).unwrap();
            let got = session.run(&inputs).unwrap();
            assert_eq!(got.len(), want.len());
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let (off, norm) = lengths(got, want);
                assert!(off <= 1e-5 * norm.max(1e-3), "{optimizer:?}, step {step}, output {i}: {off} of {norm}");
            }
        }
    }
}

/// Convolution, instance norm, leaky ReLU, convolution.
fn small() -> Graph {
    let mut graph = Graph::new("small");
    let x = stack(&mut graph);
    let conv = || Op::Conv(ConvAttrs::same(&[3, 3, 3]));
    let w = weight(&mut graph, "w1", 8, 1);
    let a = graph.push("a", conv(), &[Some(x), w]);
    let scale = graph.add_initializer("scale", Tensor::vector(vec![1.0f32; 8]));
    let bias = graph.add_initializer("bias", Tensor::vector(vec![0.0f32; 8]));
    let a = graph.push("a.norm", Op::InstanceNormalization { epsilon: 1e-5 }, &[Some(a), Some(scale), Some(bias)]);
    let a = graph.push("a.act", Op::Activation(Activation::LeakyRelu { alpha: 0.01 }), &[Some(a)]);
    let w = weight(&mut graph, "w2", 1, 8);
    let y = graph.push("y", conv(), &[Some(a), w]);
    graph.outputs.push(y);
    graph
}

/// Returns the losses of some steps on one batch; the target is the bright voxels.
fn curve(engine: &dyn Engine) -> Vec<f64> {
    let (net, made) = step(&small(), &[2, 1, 4, 12, 12], DICE);
    let update = update_graph(&made.parameters, Optimizer::default());
    let mut values = made.values(&net).unwrap();
    let first = inputs(&net, &made);
    let mut batch: Vec<Tensor> = first[..3].to_vec();
    let bright = batch[0].as_f32().unwrap().iter().map(|v| f32::from(u8::from(*v > 0.3))).collect::<Vec<f32>>();
    batch[1] = Tensor::new(batch[1].shape(), bright).unwrap();
    let zeros = |of: &[Tensor]| -> Vec<Tensor> {
        of.iter().map(|t| Tensor::new(t.shape(), vec![0.0f32; t.len()]).unwrap()).collect()
    };
    let (mut means, mut squares) = (zeros(&values), zeros(&values));
    let mut sessions: Option<(Box<dyn cytoscope_engine::Session>, Box<dyn cytoscope_engine::Session>)> = None;
    let mut losses = Vec::new();
    for number in 1..=12 {
        let given: Vec<Tensor> = batch.iter().chain(&values).cloned().collect();
        let hyper = Hyper { rate: 2e-2, step: number, scale: 1.0, limit: 1.0 };
        let (gradients, updates) = sessions.get_or_insert_with(|| {
            let mut all = vec![Tensor::vector(hyper.to_vec())];
            (0..4).for_each(|_| all.extend(values.iter().cloned()));
            let options = CompileOptions { threads: 1, ..CompileOptions::default() };
            let gradients = engine.compile(&made.graph, &shapes(&given), &options).unwrap();
            (gradients, engine.compile(&update.graph, &shapes(&all), &options).unwrap())
        });
        let mut found = gradients.run(&given).unwrap().into_iter();
        losses.push(found.next().unwrap().to_f64_vec()[0]);
        let mut all = vec![Tensor::vector(hyper.to_vec())];
        all.extend(values.iter().cloned());
        all.extend(found);
        all.extend(means.iter().chain(&squares).cloned());
        let mut next = updates.run(&all).unwrap().into_iter().skip(1);
        values = next.by_ref().take(values.len()).collect();
        means = next.by_ref().take(values.len()).collect();
        squares = next.collect();
    }
    losses
}

#[test]
fn the_loss_falls_as_on_the_cpu() {
    let Some(engine) = engine() else { return };
    let (got, want) = (curve(engine), curve(&CpuEngine::new()));
    eprintln!("losses {got:.4?}, on the CPU {want:.4?}");
    assert!(got[got.len() - 1] < 0.8 * got[0], "{got:?}");
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() <= 2e-3 * want, "{got} instead of {want}");
    }
}

/// The sessions of a training step, bound to buffers.
struct Steps {
    gradients: BoundSession,
    update: BoundSession,
    buffers: Buffers,
}

impl Steps {
    fn new(on: &dyn Engine, made: &GradientGraph, optimizer: Optimizer, inputs: &[Tensor]) -> Self {
        let count = made.graph.inputs.len() - made.parameters.len();
        let named = |kind: &str| made.parameters.iter().map(|p| Some(format!("{kind}/{}", p.name))).collect::<Vec<_>>();
        let none = |n: usize| vec![None; n];
        let compile = |graph: &Graph| {
            let shapes: Vec<_> = graph.inputs.iter().map(|id| graph.value(*id).fixed_shape().unwrap()).collect();
            on.compile(graph, &shapes, &CompileOptions::default()).unwrap()
        };
        let mut outputs = [none(1), named("gradient")].concat();
        outputs.resize(made.graph.outputs.len(), None);
        let gradients = BoundSession::new(compile(&made.graph), [none(count), named("value")].concat(), outputs);
        let update = update_graph(&made.parameters, optimizer);
        assert!(!update.has_second_moment);
        let read = [none(1), named("value"), named("gradient"), named("first")].concat();
        let left = [vec![Some("norm".to_owned())], named("value"), named("first")].concat();
        let update = BoundSession::new(compile(&update.graph), read, left);
        let mut buffers = Buffers::default();
        for (p, value) in made.parameters.iter().zip(&inputs[count..]) {
            buffers.bind(format!("value/{}", p.name), value.clone());
            buffers.bind(format!("first/{}", p.name), Tensor::new(p.shape.clone(), vec![0.0f32; value.len()]).unwrap());
        }
        Self { gradients, update, buffers }
    }

    /// Makes a step and returns the loss.
    fn step(&mut self, number: u32, given: &[Tensor]) -> f64 {
        let loss = self.buffers.step(&mut self.gradients, given.to_vec()).unwrap();
        let hyper = Hyper { rate: 0.05, step: number, scale: 1.0, limit: 0.0 };
        let returned = self.buffers.step(&mut self.update, vec![Tensor::vector(hyper.to_vec())]).unwrap();
        assert!(returned.is_empty());
        loss[0].to_f64_vec()[0]
    }
}

#[test]
fn parameters_stay_on_the_device_and_are_updated_as_on_the_cpu() {
    let Some(gpu) = engine() else { return };
    let net = dynunet(
        &DynUNet { filters: vec![8, 12], strides: vec![1, 2], ..DynUNet::default() },
        &Weights::Random { seed: 7 },
    )
    .unwrap();
    let (net, made) = step(&net, &[1, 1, 4, 8, 12], DICE);
    let all = inputs(&net, &made);
    let given = &all[..all.len() - made.parameters.len()];
    let optimizer = Optimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-3 };
    let cpu = CpuEngine::new();
    let mut on_gpu = Steps::new(gpu, &made, optimizer, &all);
    let mut on_cpu = Steps::new(&cpu, &made, optimizer, &all);
    let counted = |steps: &Steps| [&steps.gradients, &steps.update].map(|session| session.traffic().unwrap());
    let mut before = counted(&on_gpu);
    for number in 1..=3 {
        let (got, want) = (on_gpu.step(number, given), on_cpu.step(number, given));
        assert!((got - want).abs() < 1e-3 * want.abs().max(1.0), "step {number}: loss {got} instead of {want}");
        let now = counted(&on_gpu);
        if number > 1 {
            // Batch, hyper-parameters and loss only.
            let batch_bytes: u64 = given.iter().map(Tensor::size_bytes).sum();
            let bytes = [0, 1].map(|i| now[i].uploaded_bytes - before[i].uploaded_bytes);
            assert_eq!(bytes, [batch_bytes, 16], "step {number}");
            let downloads = [0, 1].map(|i| now[i].downloaded_bytes - before[i].downloaded_bytes);
            assert_eq!(downloads, [4, 0], "step {number}");
        }
        before = now;
    }
    assert!(on_cpu.gradients.traffic().is_none());
    for p in &made.parameters {
        let name = format!("value/{}", p.name);
        let (got, want) = (on_gpu.buffers.read(&name).unwrap(), on_cpu.buffers.read(&name).unwrap());
        let (off, norm) = lengths(&got, &want);
        assert!(off <= 2e-3 * norm.max(1e-2), "{name} differs by {off} of {norm}");
    }
}
