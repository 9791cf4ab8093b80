//! Single operators, compared with the reference executor.

use crate::{one, same, same_on, several, tensor};
use cytoscope_engine::{CompileOptions, Engine};
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, CoordinateMode, DepthOrder, Dim, ElementType, Graph,
    NearestMode, Op, PadMode, Padding, PoolAttrs, ReduceOp, ResizeAttrs, ResizeMode, Tensor, UnaryOp,
};

const SHAPE: [usize; 5] = [1, 4, 4, 6, 8];

fn ints(values: &[i64]) -> Option<Tensor> {
    Some(Tensor::vector(values.to_vec()))
}

fn floats(shape: &[usize], seed: u64) -> Option<Tensor> {
    Some(tensor(shape, seed))
}

#[test]
fn convolutions_match_the_reference() {
    let w = || floats(&[4, 4, 3, 3, 3], 1);
    let bias = || floats(&[4], 2);
    same("conv", &one(Op::Conv(ConvAttrs::same(&[3; 3])), &SHAPE, vec![w(), bias()]));
    let strided = ConvAttrs::same(&[3; 3]).with_strides(&[1, 2, 2]);
    same("conv, strides", &one(Op::Conv(strided.clone()), &SHAPE, vec![w()]));
    let uneven = strided.with_padding(Padding::SameUpper);
    same("conv, padding that differs", &one(Op::Conv(uneven), &SHAPE, vec![w()]));
    let wide = Padding::Explicit { before: vec![2, 0, 1], after: vec![1, 3, 1] };
    same("conv, uneven", &one(Op::Conv(ConvAttrs::same(&[3; 3]).with_padding(wide)), &SHAPE, vec![w()]));
    let grouped = ConvAttrs { group: 2, dilations: vec![1, 2, 2], ..ConvAttrs::same(&[3; 3]) };
    same("conv, groups, dilation", &one(Op::Conv(grouped), &SHAPE, vec![floats(&[6, 2, 3, 3, 3], 3), floats(&[6], 4)]));
    let flat = one(Op::Conv(ConvAttrs::same(&[3, 3])), &[1, 4, 6, 8], vec![floats(&[4, 4, 3, 3], 5)]);
    same("conv of images", &flat);
    let line = one(Op::Conv(ConvAttrs::same(&[3])), &[1, 4, 8], vec![floats(&[4, 4, 3], 5)]);
    same("conv of lines", &line);
}

/// Burn's matrix product kernels are wrong for some of these shapes.
#[test]
fn pointwise_convolutions_match_the_reference() {
    for (inputs, outputs) in [(8, 16), (24, 8), (16, 1), (8, 4)] {
        let w = vec![floats(&[outputs, inputs, 1, 1, 1], 1), floats(&[outputs], 2)];
        let graph = one(Op::Conv(ConvAttrs::same(&[1; 3])), &[1, inputs, 8, 8, 8], w);
        same(&format!("conv of voxels, {inputs} to {outputs}"), &graph);
    }
    let w = || vec![floats(&[4, 8, 1, 1], 1), floats(&[4], 2)];
    let padded = ConvAttrs::same(&[1, 1]).with_strides(&[2, 2]).with_padding(Padding::symmetric(vec![1, 1]));
    same("conv of pixels, padding, strides", &one(Op::Conv(padded), &[1, 8, 3, 3], w()));
    let strided = ConvAttrs::same(&[1, 1]).with_strides(&[2, 1]);
    same("conv of a single pixel", &one(Op::Conv(strided), &[3, 8, 1, 1], w()));
}

#[test]
fn fused_convolutions_match_the_reference() {
    for activation in [Activation::LeakyRelu { alpha: 0.1 }, Activation::Silu] {
        let mut graph = one(Op::Conv(ConvAttrs::same(&[3; 3])), &SHAPE, vec![floats(&[4, 4, 3, 3, 3], 1)]);
        let (x, y) = (graph.inputs[0], graph.outputs[0]);
        let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &[Some(y), Some(x)]);
        let out = graph.push("out", Op::Activation(activation), &[Some(sum)]);
        graph.outputs = vec![out];
        same("conv, residual, activation", &graph);
    }
}

#[test]
fn transposed_convolutions_match_the_reference() {
    let exact = ConvTransposeAttrs::upsample(&[1, 2, 2]);
    same("upsampling", &one(Op::ConvTranspose(exact), &SHAPE, vec![floats(&[4, 3, 1, 2, 2], 1), floats(&[3], 2)]));
    let flat = ConvTransposeAttrs::upsample(&[2, 2]);
    same("upsampling of images", &one(Op::ConvTranspose(flat), &[2, 4, 3, 4], vec![floats(&[4, 3, 2, 2], 1)]));
    let general = ConvTransposeAttrs {
        kernel: vec![3; 3],
        padding: Padding::symmetric(vec![1; 3]),
        output_padding: vec![0, 1, 1],
        ..ConvTransposeAttrs::upsample(&[1, 2, 2])
    };
    let weights = || floats(&[4, 2, 3, 3, 3], 3);
    same("transposed, kernel 3", &one(Op::ConvTranspose(general.clone()), &SHAPE, vec![weights(), floats(&[2], 4)]));
    let grouped = ConvTransposeAttrs { group: 2, dilations: vec![1, 2, 1], ..general };
    same("transposed, groups", &one(Op::ConvTranspose(grouped), &SHAPE, vec![weights(), floats(&[4], 4)]));
}

#[test]
fn normalizations_match_the_reference() {
    let (scale, bias) = (|| floats(&[4], 1), || floats(&[4], 2));
    let instance = Op::InstanceNormalization { epsilon: 1e-5 };
    same("instance norm", &one(instance, &[2, 4, 4, 6, 8], vec![scale(), bias()]));
    let group = Op::GroupNormalization { groups: 2, epsilon: 1e-5 };
    same("group norm", &one(group, &SHAPE, vec![scale(), bias()]));
    let variance = Tensor::vector(vec![0.5f32, 1.0, 2.0, 3.0]);
    let batch = Op::BatchNormalization { epsilon: 1e-5 };
    same("batch norm", &one(batch, &SHAPE, vec![scale(), bias(), floats(&[4], 3), Some(variance)]));
    for axis in [1, -1] {
        same("softmax", &one(Op::Softmax { axis }, &SHAPE, vec![]));
        same("log softmax", &one(Op::LogSoftmax { axis }, &SHAPE, vec![]));
    }
}

#[test]
fn activations_match_the_reference() {
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
    let mut x = tensor(&[1, 2, 32], 3).into_f32().unwrap();
    for (value, extreme) in x.iter_mut().zip([0.0, -0.0, 40.0, -40.0, 200.0, -200.0, 1.0, -1.0]) {
        *value = extreme;
    }
    for (index, activation) in all.into_iter().enumerate() {
        // One graph each, because differences are relative to the largest value.
        let graph = one(Op::Activation(activation), &[1, 2, 32], vec![]);
        same_on(&format!("{index} {activation:?}"), &graph, &[Tensor::new([1, 2, 32], x.clone()).unwrap()]);
        same(&format!("{index} {activation:?}"), &graph);
    }
    same("prelu", &one(Op::PRelu, &SHAPE, vec![floats(&[4, 1, 1, 1], 9)]));
}

#[test]
fn unary_and_binary_operators_match_the_reference() {
    use BinaryOp::*;
    for op in [UnaryOp::Abs, UnaryOp::Neg, UnaryOp::Exp, UnaryOp::Erf, UnaryOp::Floor, UnaryOp::Sign, UnaryOp::Sin] {
        same(&format!("{op:?}"), &one(Op::Unary(op), &[1, 2, 32], vec![]));
    }
    let mut positive = one(Op::Unary(UnaryOp::Exp), &[1, 2, 32], vec![]);
    for (index, op) in [UnaryOp::Sqrt, UnaryOp::Log, UnaryOp::Reciprocal, UnaryOp::Round].into_iter().enumerate() {
        let from = positive.nodes[0].outputs[0];
        let y = positive.push(format!("f{index}"), Op::Unary(op), &[from]);
        positive.outputs.push(y);
    }
    same("of positive numbers", &positive);
    for op in [Add, Sub, Mul, Div, Min, Max] {
        same(&format!("{op:?} a number"), &one(Op::Binary(op), &SHAPE, vec![Some(Tensor::scalar(1.5f32))]));
        same(&format!("{op:?} by channel"), &one(Op::Binary(op), &SHAPE, vec![floats(&[4, 1, 1, 1], 4)]));
        let mut two = Graph::new("two");
        let dims = |s: &[usize]| s.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
        let a = two.add_input("a", ElementType::F32, dims(&[1, 4, 1, 6, 8]));
        let b = two.add_input("b", ElementType::F32, dims(&[4, 4, 1, 8]));
        let c = two.add_initializer("c", Tensor::scalar(1.25f32));
        let y = two.push("y", Op::Binary(op), &[Some(a), Some(b)]);
        let z = two.push("z", Op::Binary(op), &[Some(c), Some(y)]);
        two.outputs.extend([y, z]);
        let inputs = [tensor(&[1, 4, 1, 6, 8], 1), Tensor::new([4, 4, 1, 8], vec![1.5f32; 128]).unwrap()];
        same_on(&format!("{op:?} of two"), &two, &inputs);
        let large = floats(&[1, 4, 16, 32, 32], 5);
        same(&format!("{op:?} of few and many"), &one(Op::Binary(op), &[1, 4, 1, 1, 1], vec![large]));
    }
    for power in [2.0f32, 3.0] {
        same(&format!("to the {power}"), &one(Op::Binary(Pow), &SHAPE, vec![Some(Tensor::scalar(power))]));
    }
}

fn pool(kernel: [usize; 3], strides: [usize; 3]) -> PoolAttrs {
    PoolAttrs {
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: vec![1; 3],
        padding: Padding::none(3),
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    }
}

#[test]
fn pooling_matches_the_reference() {
    let padded = PoolAttrs { padding: Padding::symmetric(vec![1; 3]), ceil_mode: true, ..pool([3; 3], [1, 2, 2]) };
    for attrs in [pool([2; 3], [2; 3]), padded.clone(), PoolAttrs { dilations: vec![1, 2, 1], ..pool([2; 3], [1; 3]) }]
    {
        same("max pool", &one(Op::MaxPool(attrs.clone()), &SHAPE, vec![]));
        same("average pool", &one(Op::AveragePool(attrs), &SHAPE, vec![]));
    }
    same(
        "average with padding",
        &one(Op::AveragePool(PoolAttrs { count_include_pad: true, ..padded }), &SHAPE, vec![]),
    );
    same("global average", &one(Op::GlobalAveragePool, &SHAPE, vec![]));
    same("global maximum", &one(Op::GlobalMaxPool, &SHAPE, vec![]));
}

#[test]
fn resizing_matches_the_reference() {
    use CoordinateMode::*;
    let scales = |s: &[f32]| vec![None, Some(Tensor::vector(s.to_vec()))];
    let up = || scales(&[1.0, 1.0, 1.0, 2.0, 2.0]);
    same("nearest", &one(Op::Resize(ResizeAttrs::nearest()), &SHAPE, up()));
    for coordinates in [HalfPixel, PytorchHalfPixel, AlignCorners, Asymmetric] {
        let linear = ResizeAttrs { mode: ResizeMode::Linear, coordinates, ..ResizeAttrs::nearest() };
        same(&format!("linear {coordinates:?}"), &one(Op::Resize(linear), &SHAPE, up()));
    }
    let nearest =
        ResizeAttrs { coordinates: HalfPixel, nearest: NearestMode::RoundPreferFloor, ..ResizeAttrs::nearest() };
    same("nearest to half", &one(Op::Resize(nearest), &SHAPE, scales(&[1.0, 1.0, 0.5, 1.5, 0.75])));
    let cubic = ResizeAttrs { mode: ResizeMode::Cubic, coordinates: HalfPixel, ..ResizeAttrs::nearest() };
    same("cubic", &one(Op::Resize(cubic), &[1, 2, 6, 8], scales(&[1.0, 1.0, 2.0, 1.5])));
    let sizes = vec![None, None, ints(&[1, 4, 4, 9, 5])];
    let linear = ResizeAttrs { mode: ResizeMode::Linear, coordinates: HalfPixel, ..ResizeAttrs::nearest() };
    same("linear to a size", &one(Op::Resize(linear), &SHAPE, sizes));
}

#[test]
fn data_movement_matches_the_reference() {
    let pads = || ints(&[0, 0, 1, 2, 0, 0, 1, 0, 3, 2]);
    for mode in [PadMode::Constant, PadMode::Edge, PadMode::Reflect, PadMode::Wrap] {
        let value = (mode == PadMode::Constant).then(|| Tensor::scalar(0.25f32));
        same(&format!("pad {mode:?}"), &one(Op::Pad { mode }, &SHAPE, vec![pads(), value]));
    }
    let cut = ints(&[0, 0, -1, 2, 0, 0, 0, 0, -2, 0]);
    same("pad that cuts", &one(Op::Pad { mode: PadMode::Constant }, &SHAPE, vec![cut]));
    let slice = vec![ints(&[1, -3]), ints(&[100, -1]), ints(&[1, -1])];
    same("slice", &one(Op::Slice, &SHAPE, slice));
    let steps = vec![ints(&[0, 6, 1]), ints(&[4, -100, 8]), ints(&[1, 3, 4]), ints(&[2, -2, 3])];
    same("slice with steps", &one(Op::Slice, &SHAPE, steps));
    same("split", &several(Op::Split { axis: 1 }, &SHAPE, vec![ints(&[1, 3])], 2));
    same("transpose", &one(Op::Transpose { perm: vec![0, 2, 3, 1] }, &[1, 4, 6, 8], vec![]));
    same("reshape", &one(Op::Reshape { allow_zero: false }, &SHAPE, vec![ints(&[1, 2, -1, 8])]));
    same("expand", &one(Op::Expand, &[4, 1, 1], vec![ints(&[2, 4, 3, 5])]));
    for order in [DepthOrder::Dcr, DepthOrder::Crd] {
        same("depth to space", &one(Op::DepthToSpace { block: 2, order }, &[1, 8, 3, 4], vec![]));
    }
    same("space to depth", &one(Op::SpaceToDepth { block: 2 }, &[1, 2, 4, 6], vec![]));
    let mut graph = one(Op::Concat { axis: 1 }, &SHAPE, vec![floats(&[1, 2, 4, 6, 8], 1)]);
    let (x, y) = (graph.inputs[0], graph.outputs[0]);
    let z = graph.push("z", Op::Concat { axis: -1 }, &[Some(x), Some(x)]);
    graph.outputs = vec![y, z];
    same("concat", &graph);
}

#[test]
fn repetition_and_selection_match_the_reference() {
    same("tile", &one(Op::Tile, &[2, 3, 2, 1, 4], vec![ints(&[1, 2, 3, 2, 1])]));
    for (axis, indices) in [(1, ints(&[2, 0, -1, 2])), (-1, Some(Tensor::scalar(-2i64)))] {
        same("gather", &one(Op::Gather { axis }, &SHAPE, vec![indices]));
    }
    let table = Tensor::new([2, 3], vec![0i64, 3, 1, 1, 2, 0]).unwrap();
    same("gather by a table", &one(Op::Gather { axis: 1 }, &[2, 4, 3], vec![Some(table)]));
}

/// Returns the graph with its output converted to floats.
fn as_floats(mut graph: Graph) -> Graph {
    let y = graph.push("floats", Op::Cast { to: ElementType::F32 }, &[Some(graph.outputs[0])]);
    graph.outputs = vec![y];
    graph
}

#[test]
fn positions_of_extremes_match_the_reference() {
    // Whole numbers, many of which are equal.
    let mut x: Vec<f32> = tensor(&SHAPE, 3).into_f32().unwrap().iter().map(|v| (v * 3.0).round()).collect();
    x[5] = f32::NEG_INFINITY;
    let x = Tensor::new(SHAPE, x).unwrap();
    for (max, axis, last, keep_dims) in [(true, 1, false, true), (false, -1, true, false), (true, 2, true, false)] {
        // The smallest element of the last axis must be finite.
        let x = if max { x.clone() } else { tensor(&SHAPE, 4) };
        let graph = as_floats(one(Op::ArgReduce { max, axis, keep_dims, last }, &SHAPE, vec![]));
        same_on(&format!("largest: {max}, axis {axis}, last: {last}"), &graph, &[x]);
    }
    // A map of one of the classes.
    let mut graph = one(Op::ArgReduce { max: true, axis: 1, keep_dims: true, last: false }, &SHAPE, vec![]);
    let class = graph.add_initializer("class", Tensor::scalar(2i64));
    let is_class = graph.push("is class", Op::Binary(BinaryOp::Equal), &[Some(graph.outputs[0]), Some(class)]);
    graph.outputs = vec![is_class];
    same("mask of a class", &as_floats(graph));
}

/// A network whose activations leave the range of its type must not return positions as if nothing had happened.
#[test]
fn positions_of_extremes_among_nan_are_nan() {
    let Some(engine) = crate::engine() else { return };
    let graph = as_floats(one(Op::ArgReduce { max: true, axis: 1, keep_dims: true, last: false }, &[1, 4, 3], vec![]));
    let mut x = tensor(&[1, 4, 3], 3).into_f32().unwrap();
    (x[4], x[8]) = (f32::NAN, f32::INFINITY);
    let x = Tensor::new([1, 4, 3], x).unwrap();
    let mut session = engine.compile(&graph, &[vec![1, 4, 3]], &CompileOptions::default()).unwrap();
    let outputs = session.run(&[x]).unwrap();
    let found: Vec<bool> = outputs[0].as_f32().unwrap().iter().map(|v| v.is_nan()).collect();
    assert_eq!(found, [false, true, true]);
}

/// As in ONNX, whichever operand is NaN.
#[test]
fn minimum_maximum_pooling_and_reductions_of_nan_are_nan() {
    let Some(engine) = crate::engine() else { return };
    let nan_positions = |graph: &Graph, x: Vec<f32>, shape: &[usize]| -> Vec<usize> {
        let mut session = engine.compile(graph, &[shape.to_vec()], &CompileOptions::default()).unwrap();
        let outputs = session.run(&[Tensor::new(shape, x).unwrap()]).unwrap();
        let values = outputs[0].as_f32().unwrap();
        (0..values.len()).filter(|index| values[*index].is_nan()).collect()
    };
    let with_nan = |shape: &[usize], at: usize| {
        let mut values = tensor(shape, at as u64).into_f32().unwrap();
        values[at] = f32::NAN;
        values
    };
    let shape = [1, 2, 3];
    for op in [BinaryOp::Min, BinaryOp::Max] {
        let second = Tensor::new(shape, with_nan(&shape, 1)).unwrap();
        let graph = one(Op::Binary(op), &shape, vec![Some(second)]);
        assert_eq!(nan_positions(&graph, with_nan(&shape, 4), &shape), [1, 4], "{op:?}");
    }
    let halves = PoolAttrs {
        kernel: vec![2; 3],
        strides: vec![2; 3],
        padding: Padding::none(3),
        dilations: vec![1; 3],
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    let shape = [1, 1, 2, 2, 2];
    let graph = one(Op::MaxPool(halves), &shape, vec![]);
    for at in 0..8 {
        assert_eq!(nan_positions(&graph, with_nan(&shape, at), &shape), [0], "pooling with NaN at {at}");
    }
    let shape = [1, 2, 7];
    let reduce = |kind| Op::Reduce { kind, keep_dims: true, noop_with_empty_axes: false };
    for (op, axes) in [
        (Op::GlobalMaxPool, vec![]),
        (reduce(ReduceOp::Max), vec![ints(&[2])]),
        (reduce(ReduceOp::Min), vec![ints(&[2])]),
    ] {
        let graph = one(op.clone(), &shape, axes);
        for at in [0, 3, 6] {
            assert_eq!(nan_positions(&graph, with_nan(&shape, at), &shape), [0], "{op:?} with NaN at {at}");
        }
    }
}

/// A window has the maximum −∞ if there is no other number in it, with padding or without.
#[test]
fn the_maximum_of_a_window_of_negative_infinity_is_negative_infinity() {
    let Some(engine) = crate::engine() else { return };
    let pool = PoolAttrs {
        kernel: vec![3; 3],
        strides: vec![2; 3],
        padding: Padding::symmetric(vec![1; 3]),
        dilations: vec![1; 3],
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    for channels in [1, 16] {
        let shape = [1, channels, 3, 3, 3];
        let graph = one(Op::MaxPool(pool.clone()), &shape, vec![]);
        let x = Tensor::new(shape, vec![f32::NEG_INFINITY; channels * 27]).unwrap();
        let mut session = engine.compile(&graph, &[shape.to_vec()], &CompileOptions::default()).unwrap();
        let outputs = session.run(&[x]).unwrap();
        let values = outputs[0].as_f32().unwrap();
        assert!(values.iter().all(|v| *v == f32::NEG_INFINITY), "{channels} channels: {values:?}");
    }
}

#[test]
fn the_extremes_of_infinite_elements_are_infinite() {
    let Some(engine) = crate::engine() else { return };
    let shape = [1, 2, 7];
    let reduce = |kind| Op::Reduce { kind, keep_dims: true, noop_with_empty_axes: false };
    for (op, axes, infinite) in [
        (Op::GlobalMaxPool, vec![], f32::NEG_INFINITY),
        (reduce(ReduceOp::Max), vec![ints(&[2])], f32::NEG_INFINITY),
        (reduce(ReduceOp::Min), vec![ints(&[2])], f32::INFINITY),
    ] {
        let mut x = vec![infinite; 14];
        x[9] = 0.5;
        let mut session =
            engine.compile(&one(op.clone(), &shape, axes), &[shape.to_vec()], &CompileOptions::default()).unwrap();
        let outputs = session.run(&[Tensor::new(shape, x).unwrap()]).unwrap();
        assert_eq!(outputs[0].as_f32().unwrap(), [infinite, 0.5], "{op:?}");
    }
}

#[test]
fn a_thresholded_relu_of_nan_is_zero_as_in_onnx_runtime() {
    let Some(engine) = crate::engine() else { return };
    let shape = [1, 1, 3];
    let graph = one(Op::Activation(Activation::ThresholdedRelu { alpha: 0.5 }), &shape, vec![]);
    let mut session = engine.compile(&graph, &[shape.to_vec()], &CompileOptions::default()).unwrap();
    let outputs = session.run(&[Tensor::new(shape, vec![f32::NAN, 1.0, -1.0]).unwrap()]).unwrap();
    assert_eq!(outputs[0].as_f32().unwrap(), [0.0, 1.0, 0.0]);
}

#[test]
fn the_sign_and_powers_of_nan_are_nan() {
    let Some(engine) = crate::engine() else { return };
    let shape = [1, 1, 4];
    let power = |exponent: f32| one(Op::Binary(BinaryOp::Pow), &shape, vec![Some(Tensor::scalar(exponent))]);
    for (graph, expected) in [
        (one(Op::Unary(UnaryOp::Sign), &shape, vec![]), [-1.0, f32::NAN, 0.0, 1.0]),
        (power(3.0), [-8.0, f32::NAN, 0.0, 1.0]),
        (power(0.0), [1.0; 4]),
    ] {
        let x = Tensor::new(shape, vec![-2.0, f32::NAN, 0.0, 1.0]).unwrap();
        let mut session = engine.compile(&graph, &[shape.to_vec()], &CompileOptions::default()).unwrap();
        let outputs = session.run(&[x]).unwrap();
        for (found, expected) in outputs[0].as_f32().unwrap().iter().zip(expected) {
            let is_equal = (found - expected).abs() < 1e-3 || (found.is_nan() && expected.is_nan());
            assert!(is_equal, "{:?}: {found}, expected {expected}", graph.nodes[0].op);
        }
    }
}

#[test]
fn conversions_between_types_match_the_reference() {
    let mut x = tensor(&[1, 2, 32], 3).into_f32().unwrap();
    x.iter_mut().for_each(|v| *v *= 300.0);
    (x[0], x[1], x[2]) = (0.0, 0.75, -0.75);
    let x = Tensor::new([1, 2, 32], x).unwrap();
    for to in [ElementType::I64, ElementType::I32, ElementType::Bool] {
        let graph = as_floats(one(Op::Cast { to }, &[1, 2, 32], vec![]));
        same_on(&format!("to {to}"), &graph, std::slice::from_ref(&x));
    }
    // A mask as bytes, wider integers, and bytes with a sign, which do not hold all bytes.
    let mut graph = one(Op::Binary(BinaryOp::Greater), &[1, 2, 32], vec![Some(Tensor::scalar(0.5f32))]);
    for (name, to) in [("bytes", ElementType::U8), ("wide", ElementType::I32)] {
        let y = graph.push(name, Op::Cast { to }, &[Some(graph.outputs[0])]);
        graph.outputs = vec![y];
    }
    same_on("mask as integers", &as_floats(graph), std::slice::from_ref(&x));
    let mut bytes = one(Op::Activation(Activation::Clip { min: 0.0, max: 255.0 }), &[1, 2, 32], vec![]);
    let y = bytes.push("bytes", Op::Cast { to: ElementType::U8 }, &[Some(bytes.outputs[0])]);
    bytes.outputs = vec![y];
    same_on("to bytes", &as_floats(bytes.clone()), std::slice::from_ref(&x));
    let narrow = bytes.push("narrow", Op::Cast { to: ElementType::I8 }, &[Some(y)]);
    bytes.outputs = vec![narrow];
    let Some(why) = crate::refusal(&as_floats(bytes)) else { return };
    assert!(why.contains("Cast from uint8 to int8") && why.contains("\"narrow\""), "{why}");
}

#[test]
fn logic_matches_the_reference() {
    for op in [BinaryOp::And, BinaryOp::Or, BinaryOp::Xor] {
        let mut graph = one(Op::Binary(BinaryOp::Greater), &SHAPE, vec![Some(Tensor::scalar(0.5f32))]);
        let limit = graph.add_initializer("limit", Tensor::scalar(1.0f32));
        let below = graph.push("below", Op::Binary(BinaryOp::Less), &[Some(graph.inputs[0]), Some(limit)]);
        let both = graph.push("both", Op::Binary(op), &[Some(graph.outputs[0]), Some(below)]);
        let not = graph.push("not", Op::Unary(UnaryOp::Not), &[Some(both)]);
        graph.outputs = vec![not];
        same(&format!("{op:?}"), &as_floats(graph));
    }
}

#[test]
fn reductions_match_the_reference() {
    for (kind, axes, keep_dims) in [
        (ReduceOp::Mean, vec![2i64, 3, 4], true),
        (ReduceOp::Sum, vec![1, -1], false),
        (ReduceOp::Max, vec![1], true),
        (ReduceOp::Min, vec![0, 2], false),
        (ReduceOp::L2, vec![2, 3], true),
        (ReduceOp::L1, vec![4], true),
        (ReduceOp::LogSumExp, vec![1, 3], false),
    ] {
        let op = Op::Reduce { kind, keep_dims, noop_with_empty_axes: false };
        same(&format!("{kind:?} over {axes:?}"), &one(op, &SHAPE, vec![ints(&axes)]));
    }
    let op = Op::Reduce { kind: ReduceOp::Mean, keep_dims: false, noop_with_empty_axes: false };
    same("mean of everything", &one(op, &[2, 3, 4], vec![]));
    let mut graph = one(Op::Unary(UnaryOp::Exp), &[2, 3, 4], vec![]);
    let op = Op::Reduce { kind: ReduceOp::LogSum, keep_dims: false, noop_with_empty_axes: false };
    let y = graph.push("log", op, &[Some(graph.outputs[0])]);
    graph.outputs = vec![y];
    same("logarithm of a sum", &graph);
}

#[test]
fn bounds_that_are_computed_match_the_reference() {
    let op = Op::Reduce { kind: ReduceOp::Mean, keep_dims: false, noop_with_empty_axes: false };
    let mut graph = one(op, &[2, 3, 4], vec![]);
    let (x, mean) = (graph.inputs[0], graph.outputs[0]);
    let limit = graph.add_initializer("limit", Tensor::scalar(0.5f32));
    let above = graph.push("above", Op::Clip, &[Some(x), Some(mean), Some(limit)]);
    let below = graph.push("below", Op::Clip, &[Some(x), None, Some(mean)]);
    graph.outputs = vec![above, below];
    same("clip", &graph);
}

/// Software Vulkan ends long loops early.
#[test]
fn reductions_over_long_axes_match_the_reference() {
    let norm = Op::InstanceNormalization { epsilon: 1e-5 };
    let constants = vec![floats(&[2], 1), floats(&[2], 2)];
    same("instance norm of 64³", &one(norm, &[1, 2, 64, 64, 64], constants));
    // A prime length cannot be split into parts of equal length.
    for (op, what) in [(Op::GlobalAveragePool, "average"), (Op::GlobalMaxPool, "maximum")] {
        let mut graph = one(Op::Unary(UnaryOp::Exp), &[1, 2, 100_003], vec![]);
        let y = graph.push("pool", op, &[Some(graph.outputs[0])]);
        graph.outputs = vec![y];
        same(&format!("{what} of many"), &graph);
    }
    let op = Op::Reduce { kind: ReduceOp::Min, keep_dims: true, noop_with_empty_axes: false };
    same("minimum of many, not the last axis", &one(op, &[1, 2, 6000, 3], vec![ints(&[2])]));
}
