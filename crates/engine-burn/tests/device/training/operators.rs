//! Gradients of single operators, compared with the reference executor.

use super::expected;
use crate::{difference, engine, numbers, one, refusal, same_on, tensor};
use cytoscope_engine::{CompileOptions, Engine, EngineError};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, CoordinateMode, DepthOrder, Dim, ElementType, Graph, Loss,
    LossKind, LossTerm, Node, Op, PadMode, Padding, PoolAttrs, ReduceOp, ResizeAttrs, ResizeMode, Tensor, ValueId,
};

const SHAPE: [usize; 5] = [2, 4, 4, 6, 8];

fn ints(values: &[i64]) -> Option<Tensor> {
    Some(Tensor::vector(values.to_vec()))
}

fn input(graph: &mut Graph, name: &str, like: &Tensor) -> ValueId {
    graph.add_input(name, ElementType::F32, like.shape().iter().map(|n| Dim::Fixed(*n)).collect())
}

/// Returns the graph of a gradient, and its inputs. The operator's first inputs are graph inputs (`variables`), the others
/// constants; `wanted` is the number of gradients, counted from the first input.
fn gradient(op: Op, variables: &[Tensor], constants: &[Option<Tensor>], wanted: usize) -> (Graph, Vec<Tensor>) {
    let build = || {
        let mut graph = Graph::new("gradient");
        let mut ids: Vec<Option<ValueId>> =
            variables.iter().enumerate().map(|(i, t)| Some(input(&mut graph, &format!("x{i}"), t))).collect();
        for (i, constant) in constants.iter().enumerate() {
            ids.push(constant.as_ref().map(|c| graph.add_initializer(format!("c{i}"), c.clone())));
        }
        (graph, ids)
    };
    let (mut forward, ids) = build();
    let y = forward.push("y", op.clone(), &ids);
    forward.outputs.push(y);
    let dy = tensor(expected(&forward, variables)[0].shape(), 99);
    let (mut graph, mut ids) = build();
    ids.push(Some(input(&mut graph, "dy", &dy)));
    let outputs: Vec<Option<ValueId>> =
        (0..wanted).map(|i| Some(graph.add_value(format!("d{i}"), None, None))).collect();
    graph.outputs = outputs.iter().flatten().copied().collect();
    graph.nodes.push(Node { name: "node".into(), op: Op::Vjp(Box::new(op)), inputs: ids, outputs });
    (graph, variables.iter().cloned().chain([dy]).collect())
}

fn same(what: &str, op: Op, variables: &[Tensor], constants: &[Option<Tensor>], wanted: usize) {
    let (graph, inputs) = gradient(op, variables, constants, wanted);
    same_on(what, &graph, &inputs);
}

#[test]
fn convolution_gradients_match_the_reference() {
    let conv = |what: &str, attrs: ConvAttrs, x: &[usize], w: &[usize]| {
        let variables = [tensor(x, 1), tensor(w, 2), tensor(&w[..1], 3)];
        same(what, Op::Conv(attrs), &variables, &[], 3);
    };
    let plain = ConvAttrs::same(&[3; 3]);
    conv("conv", plain.clone(), &SHAPE, &[6, 4, 3, 3, 3]);
    conv("conv of odd channels", plain.clone(), &[1, 3, 5, 6, 7], &[5, 3, 3, 3, 3]);
    conv("conv with strides", plain.clone().with_strides(&[1, 2, 2]), &SHAPE, &[6, 4, 3, 3, 3]);
    let halves = ConvAttrs::same(&[2; 3]).with_strides(&[2; 3]).with_padding(Padding::none(3));
    conv("conv of blocks", halves, &SHAPE, &[6, 4, 2, 2, 2]);
    let thinned = ConvAttrs::same(&[1; 3]).with_strides(&[2; 3]);
    conv("conv of single voxels with strides", thinned, &[2, 4, 5, 6, 8], &[6, 4, 1, 1, 1]);
    conv("conv of single voxels", ConvAttrs::same(&[1; 3]), &SHAPE, &[8, 4, 1, 1, 1]);
    let thirds = plain.clone().with_strides(&[3; 3]);
    conv("conv with strides of three", thirds.clone(), &[1, 4, 6, 9, 12], &[6, 4, 3, 3, 3]);
    conv("conv with strides of three, uneven", thirds, &[1, 4, 7, 9, 11], &[6, 4, 3, 3, 3]);
    let long = ConvAttrs::same(&[5, 5, 4]).with_strides(&[2; 3]).with_padding(Padding::symmetric(vec![2, 4, 1]));
    conv("conv with strides and a long kernel", long, &SHAPE, &[6, 4, 5, 5, 4]);
    let sparse = ConvAttrs::same(&[1, 2, 3]).with_strides(&[2, 4, 2]).with_padding(Padding::symmetric(vec![0, 0, 2]));
    conv("conv with strides beyond its kernel", sparse, &[2, 4, 4, 8, 8], &[6, 4, 1, 2, 3]);
    let wide = Padding::Explicit { before: vec![2, 0, 1], after: vec![1, 3, 1] };
    conv("conv, uneven", plain.clone().with_padding(wide), &SHAPE, &[6, 4, 3, 3, 3]);
    conv("conv without padding", plain.clone().with_padding(Padding::none(3)), &SHAPE, &[6, 4, 3, 3, 3]);
    let far = Padding::symmetric(vec![3, 3, 4]);
    conv("conv with more padding than reach", plain.clone().with_padding(far), &SHAPE, &[6, 4, 3, 3, 3]);
    let dilated = ConvAttrs { dilations: vec![1, 2, 2], ..plain.clone() };
    let apart = dilated.clone().with_strides(&[2, 1, 2]);
    conv("conv with strides and dilation", apart, &SHAPE, &[6, 4, 3, 3, 3]);
    conv("conv of many channels with dilation", dilated, &[2, 16, 4, 6, 8], &[8, 16, 3, 3, 3]);
    let grouped = ConvAttrs { group: 2, dilations: vec![1, 2, 2], ..plain };
    conv("conv, groups, dilation", grouped, &SHAPE, &[6, 2, 3, 3, 3]);
    conv("conv of images", ConvAttrs::same(&[3, 3]), &[2, 3, 6, 8], &[4, 3, 3, 3]);
}

/// Software Vulkan ends long loops early, and long sums lose accuracy.
#[test]
fn convolution_gradients_of_many_voxels_match_the_reference() {
    let variables = [tensor(&[1, 2, 24, 64, 50], 1), tensor(&[3, 2, 3, 3, 3], 2), tensor(&[3], 3)];
    same("conv of 76,800 voxels", Op::Conv(ConvAttrs::same(&[3; 3])), &variables, &[], 3);
}

#[test]
fn activation_gradients_match_the_reference() {
    use Activation::*;
    let all = [
        Relu,
        LeakyRelu { alpha: 0.2 },
        Elu { alpha: 0.7 },
        Celu { alpha: 0.6 },
        Selu { alpha: 1.673, gamma: 1.05 },
        Gelu { tanh: false },
        Gelu { tanh: true },
        Silu,
        Sigmoid,
        HardSigmoid { alpha: 0.2, beta: 0.5 },
        HardSwish,
        Mish,
        Tanh,
        Softplus,
        Softsign,
        ThresholdedRelu { alpha: 0.5 },
        Clip { min: -0.5, max: 1.0 },
        Clip { min: f32::NEG_INFINITY, max: 0.5 },
    ];
    let mut x: Vec<f32> = numbers(64, 3).iter().map(|v| v * 4.0).collect();
    for (value, extreme) in x.iter_mut().zip([0.0, -0.0, 40.0, -40.0, 200.0, -200.0, 1.0, -1.0]) {
        *value = extreme;
    }
    let x = Tensor::new([1, 2, 32], x).unwrap();
    for activation in all {
        same(&format!("{activation:?}"), Op::Activation(activation), std::slice::from_ref(&x), &[], 1);
    }
    // It is constant there.
    let with_nan = Tensor::new([1, 2, 2], vec![f32::NAN, 1.0, -1.0, 2.0]).unwrap();
    same("NaN", Op::Activation(ThresholdedRelu { alpha: 0.5 }), &[with_nan], &[], 1);
}

#[test]
fn norm_gradients_match_the_reference() {
    let variables = [tensor(&SHAPE, 1), tensor(&[4], 2), tensor(&[4], 3)];
    same("instance norm", Op::InstanceNormalization { epsilon: 1e-5 }, &variables, &[], 3);
    same("group norm", Op::GroupNormalization { groups: 2, epsilon: 1e-5 }, &variables, &[], 3);
    same("batch norm", Op::BatchNormalizationTraining { epsilon: 1e-5 }, &variables, &[], 3);
    let mut graph = Graph::new("batch");
    let ids: Vec<_> = variables.iter().enumerate().map(|(i, t)| Some(input(&mut graph, &format!("x{i}"), t))).collect();
    let y = graph.push("y", Op::BatchNormalizationTraining { epsilon: 1e-5 }, &ids);
    graph.outputs.push(y);
    for name in ["mean", "variance"] {
        let more = graph.add_value(name, None, None);
        graph.nodes[0].outputs.push(Some(more));
        graph.outputs.push(more);
    }
    same_on("batch norm with its statistics", &graph, &variables);
    let variance = Tensor::vector(vec![0.5f32, 1.0, 2.0, 3.0]);
    let mut graph = Graph::new("frozen");
    let mut ids: Vec<_> =
        variables.iter().enumerate().map(|(i, t)| Some(input(&mut graph, &format!("x{i}"), t))).collect();
    ids.push(Some(graph.add_initializer("mean", tensor(&[4], 4))));
    ids.push(Some(graph.add_initializer("variance", variance)));
    let y = graph.push("y", Op::BatchNormalization { epsilon: 1e-5 }, &ids);
    graph.outputs.push(y);
    same_on("trained batch norm with fixed statistics", &graph, &variables);
}

/// Lengths and numbers of channels that are not multiples of 4, two samples, and more voxels than one device thread adds up.
#[test]
fn norms_of_odd_lengths_and_channels_match_the_reference() {
    let group = |groups| Op::GroupNormalization { groups, epsilon: 1e-5 };
    for (shape, groups) in [([2, 6, 5, 7, 9], 3), ([2, 3, 1, 2, 5], 1), ([1, 8, 3, 21, 33], 2), ([2, 2, 9, 31, 17], 2)]
    {
        let channels = shape[1];
        let variables = [tensor(&shape, 1), tensor(&[channels], 2), tensor(&[channels], 3)];
        let norms = [
            Op::InstanceNormalization { epsilon: 1e-5 },
            group(groups),
            Op::BatchNormalizationTraining { epsilon: 1e-5 },
        ];
        for op in norms {
            let what = format!("{op:?} of {shape:?}");
            let mut graph = Graph::new("norm");
            let ids: Vec<_> =
                variables.iter().enumerate().map(|(i, t)| Some(input(&mut graph, &format!("x{i}"), t))).collect();
            let y = graph.push("y", op.clone(), &ids);
            graph.outputs.push(y);
            for (what, (graph, given)) in [
                (what.clone(), (graph, variables.to_vec())),
                (format!("{what}, all gradients"), gradient(op.clone(), &variables, &[], 3)),
                (format!("{what}, gradient of x"), gradient(op, &variables, &[], 1)),
            ] {
                let Some(worst) = difference(&graph, &given) else { return };
                eprintln!("{what}: {worst:.1e}");
                assert!(worst < 1e-5, "{what} differs by {worst}");
            }
        }
    }
    // Squares would cancel out if the mean were not taken into account.
    let far = numbers(2 * 5 * 4 * 6 * 8, 1).iter().map(|v| v + 50.0).collect::<Vec<f32>>();
    let variables = [Tensor::new([2, 5, 4, 6, 8], far).unwrap(), tensor(&[5], 2), tensor(&[5], 3)];
    same("instance norm far from 0", Op::InstanceNormalization { epsilon: 1e-5 }, &variables, &[], 3);
    same("batch norm far from 0", Op::BatchNormalizationTraining { epsilon: 1e-5 }, &variables, &[], 3);
}

/// A norm whose result is stored before and after its activation, and the gradients of both, as in a training step.
#[test]
fn activated_norms_and_their_gradients_match_the_reference() {
    let shape = [2, 6, 3, 7, 9];
    let given = [tensor(&shape, 1), tensor(&[6], 2), tensor(&[6], 3), tensor(&shape, 4)];
    for op in [
        Op::InstanceNormalization { epsilon: 1e-5 },
        Op::GroupNormalization { groups: 3, epsilon: 1e-5 },
        Op::BatchNormalizationTraining { epsilon: 1e-5 },
    ] {
        for activation in [Activation::Relu, Activation::LeakyRelu { alpha: 0.1 }, Activation::Silu] {
            let mut graph = Graph::new("activated");
            let ids: Vec<_> =
                given.iter().enumerate().map(|(i, t)| Some(input(&mut graph, &format!("x{i}"), t))).collect();
            let y = graph.push("y", op.clone(), &ids[..3]);
            if matches!(op, Op::BatchNormalizationTraining { .. }) {
                for name in ["mean", "variance"] {
                    let more = graph.add_value(name, None, None);
                    graph.nodes[0].outputs.push(Some(more));
                    graph.outputs.push(more);
                }
            }
            let activated = graph.push("activated", Op::Activation(activation), &[Some(y)]);
            let through = Op::Vjp(Box::new(Op::Activation(activation)));
            let dy = graph.push("dy", through, &[Some(y), ids[3]]);
            let found: Vec<_> = ["dx", "d scale", "d bias"].map(|name| graph.add_value(name, None, None)).into();
            graph.nodes.push(Node {
                name: "gradients".into(),
                op: Op::Vjp(Box::new(op.clone())),
                inputs: [&ids[..3], &[Some(dy)]].concat(),
                outputs: found.iter().copied().map(Some).collect(),
            });
            graph.outputs.push(activated);
            graph.outputs.extend(found);
            let Some(worst) = difference(&graph, &given) else { return };
            eprintln!("{op:?} and {activation:?}: {worst:.1e}");
            assert!(worst < 1e-5, "{op:?} and {activation:?} differ by {worst}");
        }
    }
}

/// Steps that one kernel computes together: a moving average with two weights, an activation of scaled values, and the
/// gradient of an activation whose result is read twice.
#[test]
fn operators_that_share_a_kernel_match_the_reference() {
    let long = [tensor(&[1000], 1), tensor(&[1], 2), tensor(&[1000], 3), tensor(&[1], 4)];
    let mut graph = Graph::new("average");
    let ids: Vec<_> = long.iter().enumerate().map(|(i, t)| Some(input(&mut graph, &format!("x{i}"), t))).collect();
    let products = [0, 2].map(|i| Some(graph.push(format!("share{i}"), Op::Binary(BinaryOp::Mul), &ids[i..i + 2])));
    let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &products);
    graph.outputs.push(sum);
    same_on("average", &graph, &long);

    // The sum makes it a graph for training: a graph of one input runs on other kernels.
    let given = [tensor(&SHAPE, 1), tensor(&SHAPE, 2), tensor(&SHAPE, 3)];
    for activation in [Activation::Softsign, Activation::LeakyRelu { alpha: 0.1 }, Activation::Tanh] {
        let mut graph = Graph::new("scaled");
        let ids: Vec<_> = given.iter().enumerate().map(|(i, t)| Some(input(&mut graph, &format!("x{i}"), t))).collect();
        let factor = graph.add_initializer("factor", Tensor::scalar(2.5f32));
        let scaled = graph.push("scaled", Op::Binary(BinaryOp::Mul), &[ids[0], Some(factor)]);
        let activated = graph.push("activated", Op::Activation(activation), &[Some(scaled)]);
        let dy = graph.push("sum", Op::Binary(BinaryOp::Add), &[ids[1], ids[2]]);
        let dx = graph.push("dx", Op::Vjp(Box::new(Op::Activation(activation))), &[ids[0], Some(dy)]);
        graph.outputs.extend([activated, dx]);
        same_on(&format!("{activation:?}"), &graph, &given);
    }
}

#[test]
fn sums_of_channels_match_the_reference() {
    for shape in [vec![2, 3, 5, 7, 9], vec![1, 8, 9, 40, 50], vec![3, 5, 6, 7], vec![2, 4, 30]] {
        let given = [tensor(&shape, 1), tensor(&shape, 2)];
        let mut graph = Graph::new("sums");
        let ids: Vec<_> = given.iter().enumerate().map(|(i, t)| Some(input(&mut graph, &format!("x{i}"), t))).collect();
        let axes: Vec<i64> = (0..shape.len() as i64).filter(|axis| *axis != 1).collect();
        let axes = Some(graph.add_initializer("axes", Tensor::vector(axes)));
        for keep_axes in [true, false] {
            let sum = Op::Reduce { kind: ReduceOp::Sum, keep_dims: keep_axes, noop_with_empty_axes: false };
            let product = graph.push("product", Op::Binary(BinaryOp::Mul), &ids);
            let sums = graph.push("sums", sum, &[Some(product), axes]);
            graph.outputs.push(sums);
        }
        same_on(&format!("{shape:?}"), &graph, &given);
    }
}

#[test]
fn concatenated_channels_match_the_reference() {
    for channels in [(3, 5), (4, 8), (4, 1)] {
        let given = [tensor(&[2, channels.0, 3, 5, 7], 1), tensor(&[2, channels.1, 3, 5, 7], 2)];
        let mut graph = Graph::new("concat");
        let ids: Vec<_> = given.iter().enumerate().map(|(i, t)| Some(input(&mut graph, &format!("x{i}"), t))).collect();
        let y = graph.push("y", Op::concat(1), &ids);
        graph.outputs.push(y);
        if let Some(worst) = difference(&graph, &given) {
            assert!(worst == 0.0, "{channels:?} channels differ by {worst}");
        }
    }
}

/// As parameters and gradients in the few tensors that hold all of them.
#[test]
fn parts_of_long_tensors_are_cut_and_joined_as_by_the_reference() {
    let given = [tensor(&[1000], 1)];
    let mut graph = Graph::new("parts");
    let x = input(&mut graph, "x", &given[0]);
    let mut list = Vec::new();
    // Start, end, and zeros after the part.
    let parts = [
        (0, 3, 125),
        (128, 133, 0),
        (7, 300, 1),
        (256, 1000, 0),
        (512, 513, 127),
        (896, 1000, 3),
        (130, 134, 0),
        (384, 640, 9),
    ];
    for (index, (start, end, zeros)) in parts.into_iter().enumerate() {
        let numbers = [start, end, 0].map(|n: i64| Some(graph.add_initializer("number", Tensor::vector(vec![n]))));
        let ids = [Some(x), numbers[0], numbers[1], numbers[2]];
        list.push(Some(graph.push(format!("part{index}"), Op::Slice, &ids)));
        if zeros > 0 {
            list.push(Some(graph.add_initializer("zeros", Tensor::vector(vec![0.0f32; zeros]))));
        }
    }
    let y = graph.push("y", Op::concat(0), &list);
    graph.outputs.push(y);
    if let Some(worst) = difference(&graph, &given) {
        assert!(worst == 0.0, "differs by {worst}");
    }
}

#[test]
fn pooling_gradients_match_the_reference() {
    let pool = |kernel: usize, stride: usize, pad: usize| PoolAttrs {
        kernel: vec![1, kernel, kernel],
        strides: vec![1, stride, stride],
        dilations: vec![1; 3],
        padding: Padding::symmetric(vec![0, pad, pad]),
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    let x = tensor(&[2, 3, 4, 7, 8], 1);
    // With several equal maxima, the gradient goes to the first.
    let whole = x.as_f32().unwrap().iter().map(|v| (v * 1.5).round()).collect::<Vec<f32>>();
    let equal = Tensor::new(x.shape(), whole).unwrap();
    let padded = PoolAttrs { count_include_pad: true, ..pool(3, 2, 1) };
    for (what, attrs) in
        [("blocks", pool(2, 2, 0)), ("overlapping", pool(3, 2, 1)), ("every voxel", pool(3, 1, 1)), ("padded", padded)]
    {
        for x in [&x, &equal] {
            same(&format!("maximum, {what}"), Op::MaxPool(attrs.clone()), std::slice::from_ref(x), &[], 1);
        }
        same(&format!("mean, {what}"), Op::AveragePool(attrs), std::slice::from_ref(&x), &[], 1);
    }
    let cube = PoolAttrs { kernel: vec![2; 3], strides: vec![2; 3], ..pool(2, 2, 0) };
    let cube = PoolAttrs { padding: Padding::none(3), ..cube };
    for x in [&x, &equal] {
        same("maximum of cubes", Op::MaxPool(cube.clone()), std::slice::from_ref(x), &[], 1);
    }
    // The padding is less than the lowest number.
    let lowest = Tensor::new(x.shape(), vec![f32::MIN; x.len()]).unwrap();
    same("maximum of the lowest number", Op::MaxPool(pool(3, 2, 1)), &[lowest], &[], 1);
}

#[test]
fn resize_and_data_movement_gradients_match_the_reference() {
    let x = [tensor(&SHAPE, 1)];
    let scales = |s: &[f32]| vec![None, Some(Tensor::vector(s.to_vec()))];
    let up = scales(&[1.0, 1.0, 1.0, 2.0, 2.0]);
    same("nearest", Op::Resize(ResizeAttrs::nearest()), &x, &up, 1);
    for coordinates in [CoordinateMode::HalfPixel, CoordinateMode::AlignCorners] {
        let linear = ResizeAttrs { mode: ResizeMode::Linear, coordinates, ..ResizeAttrs::nearest() };
        same(&format!("linear {coordinates:?}"), Op::Resize(linear.clone()), &x, &up, 1);
        same("linear, smaller", Op::Resize(linear), &x, &scales(&[1.0, 1.0, 0.5, 1.5, 0.75]), 1);
    }
    let pads = ints(&[0, 0, 1, 2, 0, 0, 1, 0, 3, 2]);
    for mode in [PadMode::Constant, PadMode::Edge, PadMode::Reflect, PadMode::Wrap] {
        same(&format!("pad {mode:?}"), Op::Pad { mode }, &x, std::slice::from_ref(&pads), 1);
    }
    let cut = ints(&[0, 0, -1, 2, 0, 0, 0, 0, -2, 0]);
    same("pad that cuts", Op::Pad { mode: PadMode::Constant }, &x, &[cut], 1);
    same("slice", Op::Slice, &x, &[ints(&[1, -3]), ints(&[100, -1]), ints(&[1, -1])], 1);
    let steps = [ints(&[0, 5, 1]), ints(&[4, -100, 8]), ints(&[1, 3, 4]), ints(&[2, -2, 3])];
    same("slice with steps", Op::Slice, &x, &steps, 1);
    for order in [DepthOrder::Dcr, DepthOrder::Crd] {
        same("depth to space", Op::DepthToSpace { block: 2, order }, &[tensor(&[1, 8, 3, 4], 1)], &[], 1);
    }
    same("space to depth", Op::SpaceToDepth { block: 2 }, &[tensor(&[1, 2, 4, 6], 1)], &[], 1);
}

#[test]
fn losses_and_their_gradients_match_the_reference() {
    let shape = [2, 3, 4, 5, 6];
    let mut weight: Vec<f32> = numbers(240, 5).iter().map(|v| v.max(0.0)).collect();
    weight[..20].fill(0.0);
    let weight = Tensor::new([2, 1, 4, 5, 6], weight).unwrap();
    let targets = numbers(720, 6).iter().map(|v| f32::from(u8::from(*v > 0.1))).collect::<Vec<f32>>();
    let target = Tensor::new(shape, targets).unwrap();
    let logits = Tensor::new(shape, numbers(720, 7).iter().map(|v| v * 12.0).collect::<Vec<f32>>()).unwrap();
    let certain = numbers(720, 8).iter().map(|v| ((v + 1.0) / 2.0).clamp(0.01, 0.99)).collect::<Vec<f32>>();
    let probabilities = Tensor::new(shape, certain).unwrap();
    for kind in [
        LossKind::BinaryCrossEntropy,
        LossKind::Dice { smooth: 1.0 },
        LossKind::DiceCrossEntropy { smooth: 1e-5 },
        LossKind::Tversky { alpha: 0.3, beta: 0.7, smooth: 1.0 },
        LossKind::Focal { gamma: 2.0 },
        LossKind::Focal { gamma: 0.5 },
        LossKind::MeanSquared,
        LossKind::MeanAbsolute,
        LossKind::Huber { delta: 0.5 },
    ] {
        for (sigmoid, x) in [(true, &logits), (false, &probabilities)] {
            let term = |channels, factor, within| LossTerm { kind, channels, factor, sigmoid, within };
            let two = Loss { terms: vec![term(0..2, 0.7, None), term(1..3, 1.3, Some(0))] };
            for (loss, weighted) in [(two, true), (Loss { terms: vec![term(0..3, 1.0, None)] }, false)] {
                let mut variables = vec![x.clone(), target.clone()];
                variables.extend(weighted.then(|| weight.clone()));
                let what = format!("{kind:?}, sigmoid {sigmoid}, weighted {weighted}");
                let mut graph = Graph::new("loss");
                let ids: Vec<_> =
                    variables.iter().enumerate().map(|(i, t)| Some(input(&mut graph, &format!("x{i}"), t))).collect();
                let y = graph.push("y", Op::Loss(loss.clone()), &ids);
                graph.outputs.push(y);
                same_on(&what, &graph, &variables);
                same(&format!("{what}, gradient"), Op::Loss(loss), &variables, &[], 1);
            }
        }
    }
}

#[test]
fn conditions_match_the_reference() {
    let given = [tensor(&SHAPE, 1), tensor(&[4, 1, 1, 1], 2)];
    for op in [BinaryOp::Greater, BinaryOp::GreaterOrEqual, BinaryOp::Less, BinaryOp::LessOrEqual, BinaryOp::Equal] {
        let mut graph = Graph::new("conditions");
        let ids: Vec<_> = given.iter().enumerate().map(|(i, t)| input(&mut graph, &format!("x{i}"), t)).collect();
        let condition = graph.push("condition", Op::Binary(op), &[Some(ids[0]), Some(ids[1])]);
        let zero = graph.add_initializer("zero", Tensor::scalar(0.25f32));
        let y = graph.push("y", Op::Where, &[Some(condition), Some(ids[1]), Some(zero)]);
        graph.outputs.push(y);
        same_on(&format!("{op:?}"), &graph, &given);
    }
}

#[test]
fn unsupported_gradients_are_named() {
    let (graph, _) = gradient(Op::Tile, &[tensor(&[1, 2, 4], 1)], &[ints(&[1, 1, 2])], 1);
    let Some(why) = refusal(&graph) else { return };
    assert!(why.contains("wgpu") && why.contains("Tile") && why.contains("\"node\""), "{why}");
    let norm = Op::LayerNormalization { axis: -1, epsilon: 1e-5 };
    let variables = [tensor(&[1, 2, 4], 1), tensor(&[4], 2), tensor(&[4], 3)];
    let (graph, _) = gradient(norm, &variables, &[], 3);
    let why = refusal(&graph).unwrap();
    assert!(why.contains("LayerNormalization") && why.contains("\"node\""), "{why}");
}

/// A stride of 0 would make lengths infinite: shape inference refuses it for every engine.
#[test]
fn strides_of_zero_are_refused_with_a_sentence() {
    let cpu = CpuEngine::new();
    let engines = [Some(&cpu as &dyn Engine), engine().map(|engine| engine as &dyn Engine)];
    let attrs = ConvAttrs::same(&[3; 3]).with_strides(&[1, 0, 1]);
    let up = ConvTransposeAttrs { strides: vec![1, 0, 1], ..ConvTransposeAttrs::upsample(&[2; 3]) };
    let pool = PoolAttrs {
        kernel: vec![2; 3],
        strides: vec![1, 0, 1],
        dilations: vec![1; 3],
        padding: Padding::none(3),
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    let weights = |kernel: usize| vec![Some(tensor(&[4, 4, kernel, kernel, kernel], 1))];
    let graphs = [
        one(Op::Conv(attrs), &SHAPE, weights(3)),
        one(Op::ConvTranspose(up), &SHAPE, weights(2)),
        one(Op::MaxPool(pool), &SHAPE, Vec::new()),
    ];
    for engine in engines.into_iter().flatten() {
        for graph in &graphs {
            match engine.compile(graph, &[SHAPE.to_vec()], &CompileOptions::default()) {
                Err(EngineError::Graph(error)) => {
                    let said = error.to_string();
                    assert!(said.contains("strides [1, 0, 1]") && said.contains("no zeros"), "{said}");
                }
                Err(other) => panic!("unexpected error: {other}"),
                Ok(_) => panic!("a stride of 0 was not refused"),
            }
        }
    }
}
