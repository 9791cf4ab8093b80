//! Whole networks, losses and optimizers compared with finite differences and values computed by hand.

use cytoscope_autodiff::{StepOptions, gradient_graph, prepare, update_graph};
use cytoscope_builders::{DynUNet, UNet3d, Upsampling, Weights, dynunet, unet3d};
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, CoordinateMode, Dim, ElementType, Graph, Hyper, Loss,
    LossKind, LossTerm, NearestMode, Op, Optimizer, Padding, PoolAttrs, ReduceOp, ResizeAttrs, ResizeMode, Tensor,
};
use cytoscope_graph_passes::analysis;

use crate::common::{distance, noise};
use crate::gradients::{check_graph, doubles, fixed, run};

fn kinds() -> Vec<LossKind> {
    vec![
        LossKind::BinaryCrossEntropy,
        LossKind::Dice { smooth: 1.0 },
        LossKind::DiceCrossEntropy { smooth: 1e-3 },
        LossKind::Tversky { alpha: 0.3, beta: 0.7, smooth: 0.1 },
        LossKind::Focal { gamma: 2.0 },
        LossKind::MeanSquared,
        LossKind::MeanAbsolute,
        LossKind::Huber { delta: 0.4 },
    ]
}

fn loss_graph(loss: &Loss, target: &Tensor, weight: &Tensor) -> Graph {
    let mut graph = Graph::new("loss");
    let x = graph.add_input("x", ElementType::F64, fixed(target.shape()));
    let t = graph.add_initializer("t", target.clone());
    let w = graph.add_initializer("w", weight.clone());
    let y = graph.push("y", Op::Loss(loss.clone()), &[Some(x), Some(t), Some(w)]);
    graph.outputs.push(y);
    graph
}

/// Targets of 0 and 1, and weights of which some are 0.
fn truth(shape: &[usize]) -> (Tensor, Tensor) {
    let whole: Vec<f64> = noise(5, shape.iter().product()).iter().map(|v| f64::from(u8::from(*v > 0.0))).collect();
    let mut one = shape.to_vec();
    one[1] = 1;
    let weight: Vec<f64> = noise(6, one.iter().product()).iter().map(|v| f64::from(v.max(0.0))).collect();
    (Tensor::new(shape, whole).unwrap(), Tensor::new(one, weight).unwrap())
}

#[test]
fn losses_have_the_gradients_of_finite_differences() {
    let shape = [2, 3, 2, 3, 4];
    let (target, weight) = truth(&shape);
    for kind in kinds() {
        for sigmoid in [true, false] {
            let low = if sigmoid || !kind.uses_probabilities() { 0.0 } else { 0.5 };
            let squeeze = if low > 0.0 { 0.25 } else { 1.0 };
            let x = doubles(4, &shape, 0.0).to_f64_vec().iter().map(|v| v * squeeze + low).collect::<Vec<_>>();
            let x = Tensor::new(shape, x).unwrap();
            let term = LossTerm { kind, channels: 0..3, factor: 0.7, sigmoid, within: None };
            let masked = LossTerm { channels: 1..2, within: Some(0), ..term.clone() };
            let loss = Loss { terms: vec![term, masked] };
            check_graph(&format!("{kind:?} {sigmoid}"), loss_graph(&loss, &target, &weight), &[("x".into(), x)]);
        }
    }
}

#[test]
fn losses_have_the_values_of_their_formulas() {
    // Two voxels: p = σ(0) = ½ and σ(ln 3) = ¾, truths 1 and 0, weights 2 and 1.
    let target = Tensor::new([1, 1, 2], vec![1.0f64, 0.0]).unwrap();
    let weight = Tensor::new([1, 1, 2], vec![2.0f64, 1.0]).unwrap();
    let x = Tensor::new([1, 1, 2], vec![0.0, 3.0f64.ln()]).unwrap();
    let value = |kind: LossKind, sigmoid: bool| {
        let loss = Loss { terms: vec![LossTerm { kind, channels: 0..1, factor: 1.0, sigmoid, within: None }] };
        run(&loss_graph(&loss, &target, &weight), &[("x".into(), x.clone())])[0].to_f64_vec()[0]
    };
    let entropy = (2.0 * 2.0f64.ln() + 4.0f64.ln()) / 3.0;
    // Σwpt = 1, Σwp = 1.75, Σwt = 2.
    let dice = 1.0 - (2.0 + 1.0) / (1.75 + 2.0 + 1.0);
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} against {b}");
    near(value(LossKind::BinaryCrossEntropy, true), entropy);
    near(value(LossKind::Dice { smooth: 1.0 }, true), dice);
    near(value(LossKind::DiceCrossEntropy { smooth: 1.0 }, true), entropy + dice);
    near(value(LossKind::Tversky { alpha: 0.3, beta: 0.7, smooth: 0.0 }, true), 1.0 - 1.0 / (1.0 + 0.3 * 0.75 + 0.7));
    near(value(LossKind::Focal { gamma: 2.0 }, true), (2.0 * 0.25 * 2.0f64.ln() + 0.5625 * 4.0f64.ln()) / 3.0);
    near(value(LossKind::MeanSquared, true), (2.0 * 0.25 + 0.5625) / 3.0);
    near(value(LossKind::MeanAbsolute, true), (2.0 * 0.5 + 0.75) / 3.0);
    near(value(LossKind::Huber { delta: 0.6 }, true), (2.0 * 0.125 + 0.6 * (0.75 - 0.3)) / 3.0);
}

fn tensors(graph: &Graph, seed: u64) -> Vec<(String, Tensor)> {
    let inputs = graph.inputs.iter().enumerate();
    inputs
        .map(|(i, id)| {
            let shape = graph.value(*id).fixed_shape().unwrap();
            (graph.value(*id).name.clone(), doubles(seed + i as u64, &shape, 0.2))
        })
        .collect()
}

/// Returns the graph converted to f64.
fn widened(mut graph: Graph) -> Graph {
    for value in &mut graph.values {
        if value.dtype == Some(ElementType::F32) {
            value.dtype = Some(ElementType::F64);
        }
    }
    for tensor in graph.initializers.values_mut() {
        if tensor.dtype() == ElementType::F32 && tensor.rank() != 1 {
            *tensor = std::sync::Arc::new(tensor.cast(ElementType::F64));
        }
    }
    graph
}

/// A network with PReLUs whose slopes are trainable: one per channel, a one-axis tensor, a scalar. The first result is
/// read twice, and the gradient of the second comes from a transposed convolution.
fn sloped() -> Graph {
    let mut graph = Graph::new("sloped");
    let x = graph.add_input("x", ElementType::F32, ["n", "c", "d", "h", "w"].map(|n| Dim::Free(n.into())).to_vec());
    let constant = |graph: &mut Graph, name: &str, shape: &[usize], values: Option<Vec<f32>>| {
        let values = values.unwrap_or_else(|| noise(shape.len() as u64, shape.iter().product()));
        Some(graph.add_initializer(name, Tensor::new(shape, values).unwrap()))
    };
    let conv = || Op::Conv(ConvAttrs::same(&[3, 3, 3]));
    let w = constant(&mut graph, "w1", &[3, 1, 3, 3, 3], None);
    let a = graph.push("a", conv(), &[Some(x), w]);
    let slope = constant(&mut graph, "slopes", &[3, 1, 1, 1], Some(vec![0.1, 0.3, -0.2]));
    let a = graph.push("a.act", Op::PRelu, &[Some(a), slope]);
    let w = constant(&mut graph, "w2", &[3, 3, 3, 3, 3], None);
    let b = graph.push("b", conv(), &[Some(a), w]);
    let b = graph.push("b.sum", Op::Binary(BinaryOp::Add), &[Some(b), Some(a)]);
    let slope = constant(&mut graph, "slope", &[1], Some(vec![-0.25]));
    let b = graph.push("b.act", Op::PRelu, &[Some(b), slope]);
    let w = constant(&mut graph, "w3", &[3, 2, 1, 2, 2], None);
    let c = graph.push("c", Op::ConvTranspose(ConvTransposeAttrs::upsample(&[1, 2, 2])), &[Some(b), w]);
    let slope = constant(&mut graph, "number", &[], Some(vec![0.4]));
    let c = graph.push("c.act", Op::PRelu, &[Some(c), slope]);
    graph.outputs.push(c);
    graph
}

/// A network with a batch norm before a convolution, a group norm as PyTorch exports it, and a resize to the lengths of
/// another value.
fn normed() -> Graph {
    let mut graph = Graph::new("normed");
    let x = graph.add_input("x", ElementType::F32, ["n", "c", "d", "h", "w"].map(|n| Dim::Free(n.into())).to_vec());
    let constant = |graph: &mut Graph, name: &str, shape: &[usize], low: f32| {
        let values: Vec<f32> = noise(name.len() as u64, shape.iter().product()).into_iter().map(|v| v + low).collect();
        Some(graph.add_initializer(name, Tensor::new(shape, values).unwrap()))
    };
    let conv = || Op::Conv(ConvAttrs::same(&[3, 3, 3]));
    let w = constant(&mut graph, "w1", &[4, 1, 3, 3, 3], 0.0);
    let a = graph.push("a", conv(), &[Some(x), w]);
    let parts = [("bn.scale", 1.5), ("bn.bias", 0.0), ("bn.mean", 0.0), ("bn.variance", 2.0)];
    let parts = parts.map(|(name, low)| constant(&mut graph, name, &[4], low));
    let inputs: Vec<_> = std::iter::once(Some(a)).chain(parts).collect();
    let a = graph.push("a.bn", Op::BatchNormalization { epsilon: 1e-3 }, &inputs);
    let a = graph.push("a.act", Op::Activation(Activation::Sigmoid), &[Some(a)]);
    let w = constant(&mut graph, "w2", &[4, 4, 3, 3, 3], 0.0);
    let b = graph.push("b", conv(), &[Some(a), w]);
    let lengths = graph.push("b.shape", Op::Shape { start: 0, end: None }, &[Some(b)]);
    let folded = graph.add_initializer("folded", Tensor::vector(vec![0i64, 2, -1]));
    let ones = graph.add_initializer("ones", Tensor::vector(vec![1.0f32; 2]));
    let zeros = graph.add_initializer("zeros", Tensor::vector(vec![0.0f32; 2]));
    let reshape = Op::Reshape { allow_zero: false };
    let y = graph.push("b.groups", reshape.clone(), &[Some(b), Some(folded)]);
    let y = graph.push("b.norm", Op::InstanceNormalization { epsilon: 1e-3 }, &[Some(y), Some(ones), Some(zeros)]);
    let y = graph.push("b.whole", reshape, &[Some(y), Some(lengths)]);
    let gain = constant(&mut graph, "gain", &[4, 1, 1, 1], 1.5);
    let y = graph.push("b.scaled", Op::Binary(BinaryOp::Mul), &[Some(y), gain]);
    let shift = constant(&mut graph, "shift", &[4, 1, 1, 1], 0.0);
    let y = graph.push("b.shifted", Op::Binary(BinaryOp::Add), &[Some(y), shift]);
    let pool = PoolAttrs {
        kernel: vec![2; 3],
        strides: vec![2; 3],
        dilations: vec![1; 3],
        padding: Padding::none(3),
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    let small = graph.push("small", Op::AveragePool(pool), &[Some(y)]);
    let linear = ResizeAttrs {
        mode: ResizeMode::Linear,
        coordinates: CoordinateMode::HalfPixel,
        nearest: NearestMode::RoundPreferFloor,
        ..ResizeAttrs::nearest()
    };
    let large = graph.push("large", Op::Resize(linear), &[Some(small), None, None, Some(lengths)]);
    let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &[Some(large), Some(y)]);
    let w = constant(&mut graph, "w3", &[2, 4, 1, 1, 1], 0.0);
    let out = graph.push("out", Op::Conv(ConvAttrs::same(&[1, 1, 1])), &[Some(sum), w]);
    graph.outputs.push(out);
    graph
}

#[test]
fn scales_and_shifts_of_norms_are_trained_under_the_names_of_the_model() {
    let net = prepare(&normed()).unwrap();
    let options = StepOptions::new(Loss::single(LossKind::MeanSquared, 2));
    let made = gradient_graph(&net, &[vec![2, 1, 4, 8, 8]], &options).unwrap();
    let trained: Vec<(&str, bool)> = made.parameters.iter().map(|p| (p.name.as_str(), p.decays)).collect();
    let weights = ["w1", "w2", "w3"];
    let expected = ["w1", "bn.scale", "bn.bias", "w2", "gain", "shift", "w3"];
    assert_eq!(trained, expected.map(|name| (name, weights.contains(&name))));
    let shapes: Vec<Vec<usize>> = made.values(&net).unwrap().iter().map(|t| t.shape().to_vec()).collect();
    assert_eq!(shapes, made.parameters.iter().map(|p| p.shape.clone()).collect::<Vec<_>>());
    assert_eq!(made.norms.iter().map(|n| n.mean.as_str()).collect::<Vec<_>>(), ["bn.mean"]);
    // One node per norm, for which engines have kernels.
    assert!(made.graph.nodes.iter().any(|n| matches!(n.op, Op::GroupNormalization { .. })));
}

#[test]
fn slopes_per_channel_are_trained_and_scalar_slopes_are_not() {
    let net = prepare(&sloped()).unwrap();
    let options = StepOptions::new(Loss::single(LossKind::MeanSquared, 2));
    let made = gradient_graph(&net, &[vec![1, 1, 2, 4, 4]], &options).unwrap();
    let trained: Vec<(&str, bool)> = made.parameters.iter().map(|p| (p.name.as_str(), p.decays)).collect();
    assert_eq!(trained, [("w1", true), ("slopes", false), ("w2", true), ("w3", true)]);
    let mut lean = net.clone();
    cytoscope_graph_passes::optimize(&mut lean).unwrap();
    let count = |g: &Graph| g.nodes.iter().filter(|n| n.op == Op::PRelu).count();
    assert_eq!((count(&sloped()), count(&net), count(&lean)), (3, 1, 1));
    let x = [("x".to_owned(), doubles(1, &[1, 1, 2, 4, 4], 0.0).cast(ElementType::F32))];
    let off = distance(&run(&sloped(), &x)[0], &run(&lean, &x)[0]);
    assert!(off < 1e-4, "{off}");
}

#[test]
fn parameters_are_set_only_if_there_is_a_value_for_each() {
    let net = prepare(&sloped()).unwrap();
    let options = StepOptions::new(Loss::single(LossKind::MeanSquared, 2));
    let made = gradient_graph(&net, &[vec![1, 1, 2, 4, 4]], &options).unwrap();
    let values = made.values(&net).unwrap();
    let mut changed = net.clone();
    made.set_parameters(&mut changed, &values).unwrap();
    let refused = made.set_parameters(&mut changed, &values[1..]).unwrap_err();
    assert!(refused.to_string().contains("number of parameters"), "{refused}");
}

#[test]
fn a_whole_network_has_the_gradient_of_finite_differences() {
    let nets = [
        unet3d(
            &UNet3d {
                filters: vec![3, 4],
                strides: vec![[1, 2, 2]],
                out_channels: 2,
                head: Some(Activation::Sigmoid),
                ..UNet3d::default()
            },
            &Weights::Random { seed: 3 },
        ),
        unet3d(
            &UNet3d {
                filters: vec![2, 3],
                strides: vec![[2, 2, 2]],
                out_channels: 2,
                upsampling: Upsampling::Nearest,
                ..UNet3d::default()
            },
            &Weights::Random { seed: 4 },
        ),
        dynunet(
            &DynUNet { filters: vec![2, 3, 4], strides: vec![1, 2, 2], out_channels: 2, ..DynUNet::default() },
            &Weights::Random { seed: 5 },
        ),
        Ok(sloped()),
        Ok(normed()),
    ];
    for net in nets {
        let net = prepare(&net.unwrap()).unwrap();
        let options = StepOptions::new(Loss::single(LossKind::DiceCrossEntropy { smooth: 1.0 }, 2));
        let made = gradient_graph(&net, &[vec![2, 1, 4, 8, 8]], &options).unwrap();
        let graph = widened(made.graph.clone());
        let inputs = tensors(&graph, 11);
        let found = cytoscope_reference::run(&graph, &inputs).unwrap();
        let loss = |inputs: &[(String, Tensor)]| cytoscope_reference::run(&graph, inputs).unwrap()[0].to_f64_vec()[0];
        // Along a random direction in the space of all parameters.
        let (step, first) = (1e-6, inputs.len() - made.parameters.len());
        let mut slope = 0.0;
        let mut moved = [inputs.clone(), inputs.clone()];
        for (i, _) in made.parameters.iter().enumerate() {
            let direction = noise(100 + i as u64, inputs[first + i].1.len());
            slope += found[1 + i].to_f64_vec().iter().zip(&direction).map(|(g, d)| g * f64::from(*d)).sum::<f64>();
            for (side, sign) in moved.iter_mut().zip([1.0, -1.0]) {
                let t = &mut side[first + i].1;
                let values = t.to_f64_vec();
                let values: Vec<f64> =
                    values.iter().zip(&direction).map(|(v, d)| v + sign * step * f64::from(*d)).collect();
                *t = Tensor::new(t.shape(), values).unwrap();
            }
        }
        let numeric = (loss(&moved[0]) - loss(&moved[1])) / (2.0 * step);
        assert!((slope - numeric).abs() < 1e-4 * numeric.abs().max(1e-3), "{}: {slope} against {numeric}", net.name);
    }
}

/// Returns the gradients of a U-Net whose loss is multiplied by `factor`, as one vector; `half`: in mixed precision,
/// with this loss scale.
fn gradients(factor: f32, half: Option<(ElementType, f32)>) -> Vec<f64> {
    let config = UNet3d { filters: vec![4, 6], strides: vec![[1, 2, 2]], out_channels: 2, ..UNet3d::default() };
    let net = prepare(&unet3d(&config, &Weights::Random { seed: 3 }).unwrap()).unwrap();
    let mut loss = Loss::single(LossKind::DiceCrossEntropy { smooth: 1.0 }, 2);
    loss.terms.iter_mut().for_each(|t| t.factor *= factor);
    let options = StepOptions { half: half.map(|(half, _)| half), ..StepOptions::new(loss) };
    let made = gradient_graph(&net, &[vec![2, 1, 4, 8, 8]], &options).unwrap();
    assert_eq!(made.halved.is_some_and(|h| h.nodes > 5 && h.casts > 5), half.is_some());
    let mut inputs = tensors(&made.graph, 11);
    if let (Some((_, scale)), Some(slot)) = (half, inputs.iter_mut().find(|(name, _)| name == "loss_scale")) {
        slot.1 = Tensor::new(Vec::new(), vec![scale]).unwrap();
    }
    // The result does not depend on whether the loss scale is an input.
    for (name, tensor) in &mut inputs {
        if name != "loss_scale" {
            let seed = name.bytes().fold(7, |n: u64, b| n.wrapping_mul(31) + u64::from(b));
            let values: Vec<f32> = match (name.contains("norm"), name.ends_with("weight")) {
                // Norms scale by 1 and shift by 0, as at the start of training.
                (true, is_scale) => vec![f32::from(u8::from(is_scale)); tensor.len()],
                (false, _) => noise(seed, tensor.len()).into_iter().map(|v| v * 0.3).collect(),
            };
            *tensor = Tensor::new(tensor.shape(), values).unwrap();
        }
    }
    let found = cytoscope_reference::run(&made.graph, &inputs).unwrap();
    let scale = f64::from(half.map_or(1.0, |(_, scale)| scale));
    let all = found[1..=made.parameters.len()].iter();
    all.inspect(|t| assert_eq!(t.dtype(), ElementType::F32)).flat_map(Tensor::to_f64_vec).map(|g| g / scale).collect()
}

#[test]
fn mixed_precision_keeps_gradients_and_a_scaled_loss_keeps_small_ones() {
    let off = |got: &[f64], want: &[f64]| {
        let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
        norm(&mut got.iter().zip(want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied())
    };
    let plain = gradients(1.0, None);
    let usual = off(&gradients(1.0, Some((ElementType::F16, 1024.0))), &plain);
    assert!(usual > 1e-6 && usual < 0.02, "{usual}");
    // A loss so small that its gradients underflow in 16 bits.
    let small = gradients(1e-7, None);
    let lost = off(&gradients(1e-7, Some((ElementType::F16, 1.0))), &small);
    let kept = off(&gradients(1e-7, Some((ElementType::F16, 16_777_216.0))), &small);
    assert!(lost > 0.5 && kept < 0.02, "{lost} without a scale, {kept} with one");
    // bfloat16 has the range of 32 bits, so that no loss scale is needed, but fewer digits.
    let coarse = off(&gradients(1e-7, Some((ElementType::BF16, 1.0))), &small);
    assert!(coarse > usual && coarse < 0.15, "{coarse}");
}

#[test]
fn a_step_takes_three_times_the_work_of_inference_without_the_gradient_of_its_input() {
    let config = UNet3d { filters: vec![4, 6], strides: vec![[1, 2, 2]], ..UNet3d::default() };
    let net = prepare(&unet3d(&config, &Weights::Random { seed: 3 }).unwrap()).unwrap();
    let shape = vec![1, 1, 4, 8, 8];
    let made = gradient_graph(
        &net,
        std::slice::from_ref(&shape),
        &StepOptions::new(Loss::single(LossKind::BinaryCrossEntropy, 1)),
    )
    .unwrap();
    let forward = analysis::multiply_accumulates(&net, &[("x", shape)]).unwrap();
    let step: u64 = made.graph.nodes.iter().map(|n| analysis::node_macs(&made.graph, n).unwrap()).sum();
    // The gradient of the stack is not needed: the first convolution's, 27 taps to 4 channels of 256 voxels.
    assert_eq!(step, 3 * forward - 27 * 4 * 256);
}

#[test]
fn deep_supervision_uses_every_output_with_a_weight() {
    let config = UNet3d {
        filters: vec![3, 4, 5],
        strides: vec![[1, 2, 2], [2; 3]],
        head: Some(Activation::Sigmoid),
        deep_heads: 1,
        ..UNet3d::default()
    };
    let net = prepare(&unet3d(&config, &Weights::Random { seed: 6 }).unwrap()).unwrap();
    assert_eq!(net.outputs.len(), 2);
    let step = |outputs: &[f32]| {
        let options = StepOptions {
            outputs: outputs.to_vec(),
            ..StepOptions::new(Loss::single(LossKind::BinaryCrossEntropy, 1))
        };
        let made = gradient_graph(&net, &[vec![1, 1, 4, 8, 8]], &options).unwrap();
        let mut inputs = tensors(&made.graph, 5);
        inputs.iter_mut().for_each(|(_, t)| *t = t.cast(ElementType::F32));
        // A target that is constant within each block does not change when it is pooled.
        let target = inputs.iter_mut().find(|(name, _)| name == "target").unwrap();
        target.1 = Tensor::new(target.1.shape(), vec![1.0f32; target.1.len()]).unwrap();
        let weight = inputs.iter_mut().find(|(name, _)| name == "weight").unwrap();
        weight.1 = Tensor::new(weight.1.shape(), vec![1.0f32; weight.1.len()]).unwrap();
        let names: Vec<String> = made.parameters.iter().map(|p| p.name.clone()).collect();
        let first = inputs.len() - names.len();
        inputs.iter_mut().skip(first).zip(made.values(&net).unwrap()).for_each(|((_, t), own)| *t = own);
        (cytoscope_reference::run(&made.graph, &inputs).unwrap()[0].to_f64_vec()[0], names)
    };
    let ((fine, alone), (coarse, _), (both, all)) = (step(&[1.0]), step(&[0.0, 1.0]), step(&[1.0, 0.5]));
    assert!((both - (fine + 0.5 * coarse)).abs() < 1e-6, "{both} of {fine} and {coarse}");
    assert!(all.iter().any(|n| n == "head.1.weight") && !alone.iter().any(|n| n == "head.1.weight"));
    let wrong = UNet3d { deep_heads: 2, ..config };
    assert!(unet3d(&wrong, &Weights::Random { seed: 6 }).is_err());
}

#[test]
fn voxels_without_weight_do_not_count_in_the_targets_of_smaller_outputs() {
    let config = UNet3d {
        filters: vec![3, 4, 5],
        strides: vec![[1, 2, 2], [2; 3]],
        head: Some(Activation::Sigmoid),
        deep_heads: 1,
        ..UNet3d::default()
    };
    let net = prepare(&unet3d(&config, &Weights::Random { seed: 6 }).unwrap()).unwrap();
    let options =
        StepOptions { outputs: vec![0.0, 1.0], ..StepOptions::new(Loss::single(LossKind::BinaryCrossEntropy, 1)) };
    let made = gradient_graph(&net, &[vec![1, 1, 4, 8, 8]], &options).unwrap();
    // Every other row is foreground with weight 1; the others have this target and weight. The smaller output has half as many
    // rows and columns.
    let loss = |target: f32, weight: f32| {
        let rows = |other: f32| -> Tensor {
            let values: Vec<f32> = (0..256).map(|i| if i / 8 % 2 == 0 { 1.0 } else { other }).collect();
            Tensor::new([1, 1, 4, 8, 8], values).unwrap()
        };
        let mut inputs = tensors(&made.graph, 5);
        for (name, tensor) in &mut inputs {
            *tensor = match name.as_str() {
                "target" => rows(target),
                "weight" => rows(weight),
                _ => tensor.cast(ElementType::F32),
            };
        }
        let first = inputs.len() - made.parameters.len();
        inputs.iter_mut().skip(first).zip(made.values(&net).unwrap()).for_each(|((_, t), own)| *t = own);
        cytoscope_reference::run(&made.graph, &inputs).unwrap()[0].to_f64_vec()[0]
    };
    let all_known = loss(1.0, 1.0);
    assert!((loss(0.0, 1.0) - all_known).abs() > 1e-3, "background rows count");
    for unknown in [0.0, 1.0] {
        let found = loss(unknown, 0.0);
        assert!((found - all_known).abs() < 1e-6, "{unknown}: {found}, expected {all_known}");
    }
    // Three quarters of the weight are on the foreground: the target of the smaller output is 3/4.
    let [part, expected] = [loss(0.0, 1.0 / 3.0), loss(0.5, 1.0)];
    assert!((part - expected).abs() < 1e-6, "{part}, expected {expected}");
    // No voxel is known.
    let mut inputs = tensors(&made.graph, 5);
    inputs.iter_mut().for_each(|(name, t)| {
        *t = if name == "weight" {
            Tensor::new(t.shape(), vec![0.0f32; t.len()]).unwrap()
        } else {
            t.cast(ElementType::F32)
        };
    });
    let found = cytoscope_reference::run(&made.graph, &inputs).unwrap();
    // The loss and the gradients come first.
    let mut values = found.iter().take(1 + made.parameters.len()).flat_map(Tensor::to_f64_vec);
    assert!(values.all(|v| v == 0.0), "no loss and no gradients without known voxels");
}

#[test]
fn terms_of_further_channels_can_have_weights_of_their_own() {
    let config = UNet3d { filters: vec![3, 4], strides: vec![[1, 2, 2]], out_channels: 2, ..UNet3d::default() };
    let net = prepare(&unet3d(&config, &Weights::Random { seed: 6 }).unwrap()).unwrap();
    let kind = LossKind::BinaryCrossEntropy;
    let term = |channels, within| LossTerm { kind, channels, factor: 1.0, sigmoid: true, within };
    let terms = vec![term(0..1, None), term(1..2, None), term(1..2, Some(0))];
    // Returns the loss and the gradients, with these weights of the voxels in the upper half, and these further ones.
    let step = |terms: &[LossTerm], upper: f32, further: Option<f32>| {
        let options =
            StepOptions { further_weights: further.is_some(), ..StepOptions::new(Loss { terms: terms.to_vec() }) };
        let made = gradient_graph(&net, &[vec![1, 1, 4, 8, 8]], &options).unwrap();
        let mut inputs = tensors(&made.graph, 5);
        inputs.iter_mut().for_each(|(_, t)| *t = t.cast(ElementType::F32));
        let weights = |upper: f32| {
            let values: Vec<f32> = (0..256).map(|i| if i < 128 { upper } else { 1.0 }).collect();
            Tensor::new([1, 1, 4, 8, 8], values).unwrap()
        };
        for (name, tensor) in &mut inputs {
            match (name.as_str(), further) {
                ("target", _) => {
                    let bits: Vec<f32> = (0..512).map(|i| f32::from(u8::from(i % 5 < 2))).collect();
                    *tensor = Tensor::new([1, 2, 4, 8, 8], bits).unwrap();
                }
                ("weight", _) => *tensor = weights(upper),
                ("weight.further", Some(further)) => *tensor = weights(further),
                _ => {}
            }
        }
        let first = inputs.len() - made.parameters.len();
        inputs.iter_mut().skip(first).zip(made.values(&net).unwrap()).for_each(|((_, t), own)| *t = own);
        let found = cytoscope_reference::run(&made.graph, &inputs).unwrap();
        found[..=made.parameters.len()].iter().flat_map(Tensor::to_f64_vec).collect::<Vec<f64>>()
    };
    let assert_sum = |got: Vec<f64>, parts: [Vec<f64>; 2]| {
        assert_eq!(got.len(), parts[0].len());
        for ((got, a), b) in got.iter().zip(&parts[0]).zip(&parts[1]) {
            assert!((got - (a + b)).abs() < 1e-5, "{got} of {a} and {b}");
        }
    };
    let separate = |upper: f32, further: f32| [step(&terms[..1], upper, None), step(&terms[1..], further, None)];
    assert_sum(step(&terms, 1.0, Some(0.0)), separate(1.0, 0.0));
    assert_sum(step(&terms, 0.5, Some(2.0)), separate(0.5, 2.0));
    // The same weights for all terms give the same as one input of weights.
    assert_sum(step(&terms, 0.5, None), separate(0.5, 0.5));
    let zero = vec![0.0; step(&terms, 0.5, None).len()];
    assert_sum(step(&terms, 0.5, Some(0.5)), [step(&terms, 0.5, None), zero]);
}

#[test]
fn optimizers_take_the_steps_of_their_papers() {
    let parameters = [cytoscope_autodiff::Parameter { name: "w".into(), shape: vec![2], decays: true }];
    let step = |optimizer: Optimizer, hyper: Hyper, state: &[f32; 2]| {
        let update = update_graph(&parameters, optimizer);
        let mut inputs = vec![
            ("hyper".to_owned(), Tensor::vector(hyper.to_vec())),
            ("w".to_owned(), Tensor::vector(vec![1.0f32, -2.0])),
            ("w.gradient".to_owned(), Tensor::vector(vec![3.0f32, 4.0])),
            ("w.first".to_owned(), Tensor::vector(vec![state[0]; 2])),
        ];
        if update.has_second_moment {
            inputs.push(("w.second".to_owned(), Tensor::vector(vec![state[1]; 2])));
        }
        run(&update.graph, &inputs).iter().map(Tensor::to_f64_vec).collect::<Vec<_>>()
    };
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-5, "{a} against {b}");
    let plain = Hyper { rate: 0.1, step: 1, scale: 1.0, limit: 0.0 };
    let found = step(Optimizer::default(), plain, &[0.0, 0.0]);
    near(found[0][0], 5.0);
    // The first step of Adam is the rate in the gradient's direction; weight decay subtracts rate · decay · w.
    near(found[1][0], 1.0 - 0.1 * 1e-4 - 0.1);
    near(found[1][1], -2.0 + 2.0 * 0.1 * 1e-4 - 0.1);
    near(found[2][1], 0.4);
    near(found[3][1], 0.016);
    let sgd = Optimizer::Sgd { momentum: 0.5, nesterov: false, weight_decay: 0.1 };
    near(step(sgd, plain, &[1.0, 0.0])[1][0], 1.0 - 0.1 * (0.5 + 3.0 + 0.1));
    let nesterov = Optimizer::Sgd { momentum: 0.5, nesterov: true, weight_decay: 0.0 };
    near(step(nesterov, plain, &[1.0, 0.0])[1][0], 1.0 - 0.1 * (3.0 + 0.5 * 3.5));
    // A norm of 5 · 0.5 is clipped to 1.
    let clipped = Hyper { scale: 0.5, limit: 1.0, ..plain };
    let sgd = Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    near(step(sgd, clipped, &[0.0, 0.0])[1][0], 1.0 - 0.1 * 3.0 / 5.0);
}

#[test]
fn operators_without_a_derivative_are_named() {
    let mut graph = Graph::new("none");
    let x = graph.add_input("x", ElementType::F32, fixed(&[2, 3]));
    let y = graph.push("prefix", Op::CumSum { exclusive: false, reverse: false }, &[Some(x), None]);
    let sum = Op::Reduce { kind: ReduceOp::Sum, keep_dims: false, noop_with_empty_axes: false };
    let total = graph.push("total", sum, &[Some(y)]);
    graph.values[y.index()].shape = Some(fixed(&[2, 3]));
    graph.values[y.index()].dtype = Some(ElementType::F32);
    graph.values[total.index()].shape = Some(Vec::new());
    let error = cytoscope_autodiff::differentiate(&mut graph, total, &[x], None).unwrap_err().to_string();
    assert!(error.contains("CumSum"), "{error}");
}

#[test]
fn fake_quantization_equals_quantize_and_dequantize_with_straight_through_gradients() {
    let x = doubles(5, &[2, 3, 4, 5], 0.0);
    for (scales, axis, low, high) in [(vec![0.05f32], 0, -3.0f32, 9.0f32), (vec![0.01, 0.1, 0.004], 1, -127.0, 127.0)] {
        let fake = Op::FakeQuantize { scales: scales.clone(), axis, low, high };
        let single = x.cast(ElementType::F32);
        let made = cytoscope_reference::eval(&fake, &[Some(&single)], 1).unwrap().remove(0);
        // The same with the ONNX operators, with a zero point on the smallest level.
        let zero = -low as i64;
        let channel = |at: usize| if scales.len() == 1 { 0 } else { at / 20 % 3 };
        for (at, (x, y)) in single.to_f64_vec().iter().zip(made.to_f64_vec()).enumerate() {
            let scale = f64::from(scales[channel(at)]);
            let q = ((x / scale).round_ties_even() as i64 + zero).clamp(0, (high - low) as i64);
            assert!((y - (q - zero) as f64 * scale).abs() < 1e-6, "{x} became {y}");
        }
        let dy = doubles(6, &[2, 3, 4, 5], 0.0);
        let vjp = Op::Vjp(Box::new(fake));
        let dx = cytoscope_reference::eval(&vjp, &[Some(&x), Some(&dy)], 1).unwrap().remove(0);
        let (mut through, mut cut) = (0, 0);
        for (at, ((x, dy), dx)) in x.to_f64_vec().iter().zip(dy.to_f64_vec()).zip(dx.to_f64_vec()).enumerate() {
            let step = (x / f64::from(scales[channel(at)])).round_ties_even();
            let inside = (f64::from(low)..=f64::from(high)).contains(&step);
            assert_eq!(dx, if inside { dy } else { 0.0 });
            if inside { through += 1 } else { cut += 1 }
        }
        assert!(through > 5 && cut > 5, "{through} {cut}");
    }
}
