//! Values that are used several times: as several operands, as several outputs, or by several nodes. The engine is
//! compared with the reference executor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use cytoscope_engine::{CompileOptions, Engine, Precision};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{
    Activation, AspectPolicy, BinaryOp, ConvAttrs, CoordinateMode, Dim, ElementType, Graph, NearestMode, Node, Op,
    PadMode, Padding, PoolAttrs, ReduceOp, ResizeAttrs, ResizeMode, Tensor, UnaryOp, ValueId,
};
use cytoscope_testkit::{largest_difference, noise};

fn tensor(seed: u64, shape: &[usize]) -> Tensor {
    Tensor::new(shape, noise(seed, shape.iter().product())).unwrap()
}

fn new_graph(shape: &[usize]) -> (Graph, ValueId) {
    let mut graph = Graph::new("operands");
    let x = graph.add_input("x", ElementType::F32, shape.iter().map(|n| Dim::Fixed(*n)).collect());
    (graph, x)
}

fn conv(graph: &mut Graph, x: ValueId, ci: usize, co: usize) -> ValueId {
    let w = graph.add_initializer("w", tensor((ci * 7 + co) as u64, &[co, ci, 3, 3]));
    graph.push("conv", Op::Conv(ConvAttrs::same(&[3, 3])), &[Some(x), Some(w)])
}

fn concat(graph: &mut Graph, parts: &[ValueId]) -> ValueId {
    let parts: Vec<_> = parts.iter().copied().map(Some).collect();
    graph.push("concat", Op::Concat { axis: 1 }, &parts)
}

fn act(graph: &mut Graph, x: ValueId, activation: Activation) -> ValueId {
    graph.push("act", Op::Activation(activation), &[Some(x)])
}

fn binary(graph: &mut Graph, op: BinaryOp, a: ValueId, b: ValueId) -> ValueId {
    graph.push("binary", Op::Binary(op), &[Some(a), Some(b)])
}

/// Adds a quantize and a dequantize node, to unsigned bytes.
fn bytes(graph: &mut Graph, x: ValueId, scale: f32, zero: u8) -> ValueId {
    bytes_read_as(graph, x, (scale, zero), (scale, zero))
}

/// Adds a quantize node to unsigned bytes and a dequantize node, each with its scale and zero point.
fn bytes_read_as(graph: &mut Graph, x: ValueId, to: (f32, u8), from: (f32, u8)) -> ValueId {
    let mut parameters = |(scale, zero): (f32, u8)| {
        let (s, z) = (Tensor::scalar(scale), Tensor::scalar(zero));
        [Some(graph.add_initializer("s", s)), Some(graph.add_initializer("z", z))]
    };
    let ([s, z], [read_s, read_z]) = (parameters(to), parameters(from));
    let op = Op::QuantizeLinear { axis: 1, block_size: 0, to: ElementType::U8 };
    let q = graph.push("q", op, &[Some(x), s, z]);
    graph.push("dq", Op::DequantizeLinear { axis: 1, block_size: 0 }, &[Some(q), read_s, read_z])
}

/// Adds a convolution whose weights are stored as signed bytes.
fn add_int8_conv(graph: &mut Graph, x: ValueId, ci: usize, co: usize) -> ValueId {
    let values: Vec<i8> = noise((ci + co) as u64, co * ci * 9).iter().map(|v| (v * 80.0) as i8).collect();
    let w = Some(graph.add_initializer("w8", Tensor::new([co, ci, 3, 3], values).unwrap()));
    let s = Some(graph.add_initializer("ws", Tensor::vector(vec![0.01f32; co])));
    let w = graph.push("wd", Op::DequantizeLinear { axis: 0, block_size: 0 }, &[w, s]);
    graph.push("conv", Op::Conv(ConvAttrs::same(&[3, 3])), &[Some(x), Some(w)])
}

/// Checks that every output of the engine agrees with the reference executor, in two consecutive runs.
fn check(name: &str, mut graph: Graph, outputs: &[ValueId], precision: Precision, tolerance: f64) {
    graph.outputs = outputs.to_vec();
    graph.validate().unwrap();
    let shape = graph.value(graph.inputs[0]).fixed_shape().unwrap();
    let x = tensor(9, &shape);
    let want = cytoscope_reference::run(&graph, &[("x".to_owned(), x.clone())]).unwrap();
    let options = CompileOptions { precision, threads: 1, ..CompileOptions::default() };
    let mut session = CpuEngine::new().compile(&graph, &[shape], &options).unwrap();
    for _ in 0..2 {
        let got = session.run(std::slice::from_ref(&x)).unwrap();
        assert_eq!(got.len(), want.len(), "{name}");
        for (index, (g, w)) in got.iter().zip(&want).enumerate() {
            assert_eq!((g.shape(), g.dtype()), (w.shape(), w.dtype()), "{name}: output {index}");
            let (g, w) = (g.to_f64_vec(), w.to_f64_vec());
            let range = w.iter().fold(1e-6f64, |m, v| m.max(v.abs()));
            let far = largest_difference(&g, &w) / range;
            assert!(far <= tolerance, "{name}, {precision}: output {index} differs by {far:.1e} of its range");
        }
    }
}

fn check_float(name: &str, graph: Graph, outputs: &[ValueId]) {
    check(name, graph, outputs, Precision::F32, 1e-5);
}

#[test]
fn a_value_can_be_every_part_of_a_concatenation() {
    for channels in [1, 2, 3, 16, 32] {
        for spatial in [&[5, 6][..], &[3, 5, 6]] {
            let shape = [&[2, channels][..], spatial].concat();
            let (mut graph, x) = new_graph(&shape);
            let y = concat(&mut graph, &[x, x, x]);
            check_float("gray to RGB", graph, &[y]);
        }
        let (mut graph, x) = new_graph(&[2, 1, 5, 6]);
        let a = conv(&mut graph, x, 1, channels);
        let y = concat(&mut graph, &[a, a, a]);
        check_float("a convolution three times", graph.clone(), &[y]);
        check_float("a convolution three times, and itself", graph.clone(), &[y, a]);
        let z = act(&mut graph, y, Activation::Sigmoid);
        check_float("a convolution three times, then in place", graph.clone(), &[z, a]);
        let z = conv(&mut graph, z, 3 * channels, 4);
        check_float("a convolution three times, then in place, then convolved", graph, &[z]);
    }
}

#[test]
fn a_value_can_be_several_parts_of_a_concatenation() {
    for channels in [1, 3, 16] {
        let (mut graph, x) = new_graph(&[1, 1, 5, 6]);
        let a = conv(&mut graph, x, 1, channels);
        let b = act(&mut graph, a, Activation::Sigmoid);
        let y = concat(&mut graph, &[a, b, a, b, b]);
        check_float("a, b, a, b, b", graph.clone(), &[y]);
        check_float("a, b, a, b, b, and b", graph, &[b, y, b]);
    }
}

#[test]
fn a_value_can_be_part_of_nested_concatenations() {
    for channels in [1, 16] {
        let (mut graph, x) = new_graph(&[1, 1, 5, 6]);
        let a = conv(&mut graph, x, 1, channels);
        let b = act(&mut graph, a, Activation::Sigmoid);
        let inner = concat(&mut graph, &[a, b]);
        let y = concat(&mut graph, &[inner, a]);
        check_float("concatenation of a concatenation and its part", graph.clone(), &[y]);
        let other = concat(&mut graph, &[b, inner, inner]);
        let z = act(&mut graph, other, Activation::Sigmoid);
        check_float("and once more in place", graph, &[z, y]);
    }
}

#[test]
fn a_part_can_be_read_after_its_concatenation_was_overwritten() {
    for channels in [1, 16] {
        let (mut graph, x) = new_graph(&[1, 1, 5, 6]);
        let a = conv(&mut graph, x, 1, channels);
        let b = act(&mut graph, a, Activation::Sigmoid);
        let both = concat(&mut graph, &[a, b]);
        let y = act(&mut graph, both, Activation::Sigmoid);
        check_float("a part as an output", graph.clone(), &[y, a]);
        let outer = concat(&mut graph, &[y, a]);
        let outer = act(&mut graph, outer, Activation::Silu);
        let late = binary(&mut graph, BinaryOp::Mul, a, b);
        check_float("a part multiplied later", graph, &[outer, late]);
    }
}

#[test]
fn a_value_can_be_both_operands() {
    for channels in [1, 16] {
        for op in [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div, BinaryOp::Max, BinaryOp::Min] {
            let (mut graph, x) = new_graph(&[1, 1, 5, 6]);
            let a = conv(&mut graph, x, 1, channels);
            let y = binary(&mut graph, op, a, a);
            check_float("x with itself", graph.clone(), &[y]);
            let y = act(&mut graph, y, Activation::Relu);
            check_float("x with itself, and x", graph, &[y, a]);
        }
        let (mut graph, x) = new_graph(&[1, 16, 5, 6]);
        let scale = graph.add_initializer("g", Tensor::vector(vec![1.5f32; 16]));
        let shift = graph.add_initializer("h", Tensor::vector(vec![0.5f32; 16]));
        let a = conv(&mut graph, x, 16, 16);
        let norm = Op::InstanceNormalization { epsilon: 1e-5 };
        let n = graph.push("norm", norm.clone(), &[Some(a), Some(scale), Some(shift)]);
        let m = graph.push("norm", norm, &[Some(a), Some(scale), Some(shift)]);
        let twice = binary(&mut graph, BinaryOp::Add, n, n);
        let own = binary(&mut graph, BinaryOp::Add, a, m);
        check_float("sums of norms", graph, &[twice, own]);
    }
}

#[test]
fn a_quotient_can_be_convolved_if_channels_of_a_block_are_unused() {
    for (channels, outputs) in [(5, 2), (5, 16), (18, 3)] {
        let (mut graph, x) = new_graph(&[1, 3, 5, 6]);
        let a = conv(&mut graph, x, 3, channels);
        let y = binary(&mut graph, BinaryOp::Div, a, a);
        let z = conv(&mut graph, y, channels, outputs);
        check_float("a quotient", graph, &[z, y]);
    }
}

#[test]
fn inputs_constants_and_repeated_values_can_be_outputs() {
    let (mut graph, x) = new_graph(&[1, 16, 5, 6]);
    let a = conv(&mut graph, x, 16, 16);
    let y = act(&mut graph, a, Activation::Relu);
    let c = graph.add_initializer("c", tensor(3, &[2, 2]));
    check_float("outputs", graph.clone(), &[x, y, y, c, a, x, a]);
    let i = graph.push("i", Op::Identity, &[Some(x)]);
    let j = graph.push("j", Op::Identity, &[Some(y)]);
    check_float("copies", graph, &[i, x, j, y, i]);
}

#[test]
fn quantized_values_can_be_used_several_times() {
    for (channels, scale, zero) in [(16, 0.02, 120), (16, 0.03, 100), (1, 0.02, 120), (3, 0.03, 100)] {
        let (mut graph, x) = new_graph(&[2, channels, 5, 6]);
        let a = bytes(&mut graph, x, 0.02, 120);
        let twice = concat(&mut graph, &[a, a]);
        let twice = bytes(&mut graph, twice, scale, zero);
        let y = add_int8_conv(&mut graph, twice, 2 * channels, 16);
        check("bytes twice", graph.clone(), &[y], Precision::Int8, 1e-5);
        check("bytes twice, and themselves", graph.clone(), &[y, a], Precision::Int8, 1e-5);
        let b = act(&mut graph, a, Activation::Sigmoid);
        let b = bytes(&mut graph, b, 0.02, 120);
        let three = concat(&mut graph, &[b, a, b]);
        let three = bytes(&mut graph, three, scale, zero);
        let z = add_int8_conv(&mut graph, three, 3 * channels, 16);
        check("three parts of bytes", graph, &[z, y, b], Precision::Int8, 1e-5);
    }
}

#[test]
fn in_place_tables_keep_values_that_are_read_later() {
    let (mut graph, x) = new_graph(&[1, 16, 5, 6]);
    let a = bytes(&mut graph, x, 0.02, 120);
    let r = act(&mut graph, a, Activation::Sigmoid);
    let r = bytes(&mut graph, r, 0.01, 3);
    let y = add_int8_conv(&mut graph, r, 16, 16);
    let z = add_int8_conv(&mut graph, a, 16, 32);
    check("a table and a convolution", graph.clone(), &[y, z], Precision::Int8, 1e-5);
    let n = graph.push("abs", Op::Unary(UnaryOp::Abs), &[Some(a)]);
    check("a table and floats", graph, &[y, z, n], Precision::Int8, 1e-5);
}

#[test]
fn a_pool_and_a_concatenation_can_read_the_same_bytes() {
    let pool = PoolAttrs {
        kernel: vec![3, 3],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        padding: Padding::symmetric(vec![1, 1]),
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    for channels in [1, 16] {
        let (mut graph, x) = new_graph(&[1, channels, 5, 6]);
        let a = bytes(&mut graph, x, 0.02, 120);
        let p = graph.push("pool", Op::MaxPool(pool.clone()), &[Some(a)]);
        let p = bytes(&mut graph, p, 0.02, 120);
        let all = concat(&mut graph, &[p, a, p]);
        let all = bytes(&mut graph, all, 0.02, 120);
        let y = add_int8_conv(&mut graph, all, 3 * channels, 16);
        check("pool twice", graph, &[y, p], Precision::Int8, 1e-5);
    }
}

#[test]
fn resizes_select_the_same_voxels_as_the_reference_executor() {
    let coordinates = [
        CoordinateMode::HalfPixel,
        CoordinateMode::PytorchHalfPixel,
        CoordinateMode::AlignCorners,
        CoordinateMode::Asymmetric,
        CoordinateMode::HalfPixelSymmetric,
    ];
    let roundings =
        [NearestMode::RoundPreferFloor, NearestMode::RoundPreferCeil, NearestMode::Floor, NearestMode::Ceil];
    let policies = [AspectPolicy::Stretch, AspectPolicy::NotLarger, AspectPolicy::NotSmaller];
    for (from, to) in [2usize, 3, 7, 9].into_iter().flat_map(|from| (1..14i64).map(move |to| (from, to))) {
        // Many positions lie half-way between two voxels; the outputs cover all rounding modes of one geometry.
        let (mut graph, x) = new_graph(&[1, 1, from, 5]);
        let a = conv(&mut graph, x, 1, 16);
        let mut outputs = Vec::new();
        for ((coordinates, nearest), policy) in
            coordinates.iter().flat_map(|c| roundings.iter().map(move |r| (*c, *r))).zip(policies.iter().cycle())
        {
            let mode = if outputs.len() % 5 == 4 { ResizeMode::Linear } else { ResizeMode::Nearest };
            let attrs = ResizeAttrs { mode, coordinates, nearest, policy: *policy, ..ResizeAttrs::nearest() };
            let spatial = *policy != AspectPolicy::Stretch;
            let sizes = if spatial { vec![1, 16, to, 7] } else { vec![1, 16, to, 5] };
            let sizes = if spatial && (to as usize) < from { vec![1, 16, from as i64, 5] } else { sizes };
            let sizes = graph.add_initializer("sizes", Tensor::vector(sizes));
            outputs.push(graph.push("resize", Op::Resize(attrs), &[Some(a), None, None, Some(sizes)]));
        }
        check_float(&format!("{from} to {to}"), graph, &outputs);
    }
}

#[test]
fn a_float_convolution_can_read_quantized_values_of_few_channels() {
    for channels in [1, 3] {
        let (mut graph, x) = new_graph(&[2, channels, 5, 6]);
        let [q, s, z] = ["q", "s", "z"].map(|n| graph.add_value(n, None, None));
        graph.nodes.push(Node {
            name: "range".into(),
            op: Op::DynamicQuantizeLinear,
            inputs: vec![Some(x)],
            outputs: vec![Some(q), Some(s), Some(z)],
        });
        let dq = Op::DequantizeLinear { axis: 1, block_size: 0 };
        let real = graph.push("real", dq, &[Some(q), Some(s), Some(z)]);
        let a = add_int8_conv(&mut graph, real, channels, 16);
        // Its weights are floats.
        let b = conv(&mut graph, real, channels, 32);
        check("two convolutions", graph, &[a, b], Precision::Int8, 1e-4);
    }
}

#[test]
fn unused_channels_do_not_widen_the_range_of_a_run_time_quantization() {
    let (mut graph, x) = new_graph(&[1, 3, 5, 6]);
    let a = conv(&mut graph, x, 3, 5);
    let shift = graph.add_initializer("shift", Tensor::scalar(-9.0f32));
    let a = binary(&mut graph, BinaryOp::Add, a, shift);
    // Small numbers, unlike the sigmoid of 0.
    let small = act(&mut graph, a, Activation::Sigmoid);
    let [q, s, z] = ["q", "s", "z"].map(|n| graph.add_value(n, None, None));
    graph.nodes.push(Node {
        name: "range".into(),
        op: Op::DynamicQuantizeLinear,
        inputs: vec![Some(small)],
        outputs: vec![Some(q), Some(s), Some(z)],
    });
    let dq = Op::DequantizeLinear { axis: 1, block_size: 0 };
    let real = graph.push("real", dq, &[Some(q), Some(s), Some(z)]);
    let y = add_int8_conv(&mut graph, real, 5, 16);
    check("small numbers", graph, &[y], Precision::Int8, 1e-2);
}

#[test]
fn a_norm_of_few_voxels_matches_the_reference() {
    for spatial in [[1, 1], [1, 2]] {
        let (mut graph, x) = new_graph(&[1, 16, spatial[0], spatial[1]]);
        let a = bytes(&mut graph, x, 0.02, 120);
        let a = add_int8_conv(&mut graph, a, 16, 16);
        let scale = graph.add_initializer("g", Tensor::vector(vec![1.5f32; 16]));
        let shift = graph.add_initializer("h", Tensor::vector(vec![0.5f32; 16]));
        let norm = Op::InstanceNormalization { epsilon: 1e-5 };
        let y = graph.push("norm", norm, &[Some(a), Some(scale), Some(shift)]);
        check("norm", graph, &[y], Precision::Int8, 1e-3);
    }
}

#[test]
fn a_norm_can_read_and_write_bytes_with_the_same_zero_point() {
    for (channels, zero) in [(16, 0), (16, 120), (20, 120)] {
        let (mut graph, x) = new_graph(&[1, channels, 5, 6]);
        let scale = graph.add_initializer("g", Tensor::vector(vec![1.5f32; channels]));
        let shift = graph.add_initializer("h", Tensor::vector(vec![0.5f32; channels]));
        let a = bytes(&mut graph, x, 0.02, zero);
        let norm = Op::InstanceNormalization { epsilon: 1e-5 };
        let n = graph.push("norm", norm, &[Some(a), Some(scale), Some(shift)]);
        let n = bytes(&mut graph, n, 0.03, zero);
        let y = add_int8_conv(&mut graph, n, channels, 16);
        check("norm of bytes to bytes", graph, &[y], Precision::Int8, 1e-2);
    }
}

#[test]
fn a_pool_that_rounds_up_keeps_an_axis_of_one_voxel() {
    for channels in [1, 16] {
        let pool = PoolAttrs {
            kernel: vec![2, 1],
            strides: vec![2, 1],
            dilations: vec![1, 1],
            padding: Padding::none(2),
            ceil_mode: true,
            count_include_pad: false,
            column_major_indices: false,
        };
        for op in [Op::MaxPool(pool.clone()), Op::AveragePool(pool)] {
            let shape = [1, channels, 1, 5];
            let (mut graph, x) = new_graph(&shape);
            let a = conv(&mut graph, x, channels, channels);
            let y = graph.push("pool", op, &[Some(a)]);
            check_float("a pool of one voxel", graph.clone(), &[y]);
            graph.outputs = vec![a, y];
            // The only voxel along the axis is the maximum and the mean of its window.
            let found = cytoscope_reference::run(&graph, &[("x".to_owned(), tensor(9, &shape))]).unwrap();
            assert_eq!(found[1].shape(), shape);
            assert_eq!(found[0].to_f64_vec(), found[1].to_f64_vec());
        }
    }
}

#[test]
fn the_average_of_an_empty_window_is_zero() {
    // Dilated windows that skip the only voxel between their taps; ONNX Runtime returns 0 for them.
    for channels in [1, 16] {
        let (mut graph, x) = new_graph(&[1, channels, 3, 1]);
        let a = conv(&mut graph, x, channels, channels);
        let pool = PoolAttrs {
            kernel: vec![2, 2],
            strides: vec![1, 1],
            dilations: vec![1, 2],
            padding: Padding::symmetric(vec![0, 1]),
            ceil_mode: false,
            count_include_pad: false,
            column_major_indices: false,
        };
        let y = graph.push("pool", Op::AveragePool(pool), &[Some(a)]);
        graph.outputs = vec![y];
        let input = [("x".to_owned(), tensor(9, &[1, channels, 3, 1]))];
        assert!(cytoscope_reference::run(&graph, &input).unwrap()[0].to_f64_vec().iter().all(|v| *v == 0.0));
        check_float("dilated average", graph, &[y]);
    }
}

#[test]
fn convolutions_with_any_activation_run_on_kernels() {
    let activations = [
        Activation::Elu { alpha: 0.7 },
        Activation::Celu { alpha: 0.7 },
        Activation::Selu { alpha: 1.67, gamma: 1.05 },
        Activation::Gelu { tanh: false },
        Activation::Gelu { tanh: true },
        Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
        Activation::HardSwish,
        Activation::Mish,
        Activation::Tanh,
        Activation::Softplus,
        Activation::ThresholdedRelu { alpha: 0.1 },
    ];
    for activation in activations {
        let (mut graph, x) = new_graph(&[1, 3, 9, 11]);
        let y = conv(&mut graph, x, 3, 17);
        let y = act(&mut graph, y, activation);
        let erf = graph.push("erf", Op::Unary(UnaryOp::Erf), &[Some(y)]);
        let z = conv(&mut graph, erf, 17, 5);
        graph.outputs = vec![z, y];
        let session = CpuEngine::new().compile(&graph, &[vec![1, 3, 9, 11]], &CompileOptions::default()).unwrap();
        assert!(session.report().fallbacks.is_empty(), "{activation:?}: {:?}", session.report().fallbacks);
        check_float("activation", graph, &[z, y]);
    }
}

/// Adds padding by these amounts: before each axis, then after each axis.
fn pad(graph: &mut Graph, x: ValueId, amounts: [i64; 8], value: Option<f32>) -> ValueId {
    let amounts = graph.add_initializer("amounts", Tensor::vector(amounts.to_vec()));
    let value = value.map(|value| graph.add_initializer("value", Tensor::scalar(value)));
    graph.push("pad", Op::Pad { mode: PadMode::Constant }, &[Some(x), Some(amounts), value])
}

#[test]
fn cropping_and_padding_with_a_constant_run_on_kernels() {
    let cases = [
        ([0, 0, -1, -2, 0, 0, -1, 0], None),
        ([0, 0, 1, 0, 0, 0, 2, 3], Some(0.26)),
        ([0, 0, -1, 2, 0, 0, 3, -2], None),
        ([0, 0, 0, 1, 0, 0, 0, 1], Some(0.0)),
    ];
    for (amounts, value) in cases {
        let (mut graph, x) = new_graph(&[1, 3, 9, 11]);
        let y = conv(&mut graph, x, 3, 17);
        let y = pad(&mut graph, y, amounts, value);
        let z = conv(&mut graph, y, 17, 5);
        graph.outputs = vec![z, y];
        let session = CpuEngine::new().compile(&graph, &[vec![1, 3, 9, 11]], &CompileOptions::default()).unwrap();
        assert!(session.report().fallbacks.is_empty(), "{amounts:?}: {:?}", session.report().fallbacks);
        check_float("padded floats", graph, &[z, y]);
        let (mut graph, x) = new_graph(&[1, 16, 9, 11]);
        let a = bytes(&mut graph, x, 0.02, 120);
        let y = pad(&mut graph, a, amounts, value);
        let y = bytes(&mut graph, y, 0.02, 120);
        let z = add_int8_conv(&mut graph, y, 16, 16);
        check("padded bytes", graph, &[z, y], Precision::Int8, 1e-5);
    }
}

#[test]
fn bytes_can_be_read_with_another_scale_or_zero_point_than_they_were_made_with() {
    for from in [(0.03, 120), (0.02, 100)] {
        let (mut graph, x) = new_graph(&[1, 16, 5, 6]);
        let scale = graph.add_initializer("g", Tensor::vector(vec![1.5f32; 16]));
        let shift = graph.add_initializer("h", Tensor::vector(vec![0.5f32; 16]));
        let norm = Op::InstanceNormalization { epsilon: 1e-5 };
        let n = graph.push("norm", norm, &[Some(x), Some(scale), Some(shift)]);
        let n = bytes_read_as(&mut graph, n, (0.02, 120), from);
        let w = graph.add_initializer("w", tensor(3, &[2, 16, 1, 1]));
        let y = graph.push("head", Op::Conv(ConvAttrs::same(&[1, 1])), &[Some(n), Some(w)]);
        check("bytes read differently", graph, &[y], Precision::F32, 1e-2);
    }
}

#[test]
fn weights_can_have_a_zero_point_that_is_computed_at_run_time() {
    let (mut graph, x) = new_graph(&[1, 16, 5, 6]);
    let a = bytes(&mut graph, x, 0.02, 120);
    let y = add_int8_conv(&mut graph, a, 16, 16);
    let ten = graph.add_initializer("ten", Tensor::scalar(10.0f32));
    let max = Op::Reduce { kind: ReduceOp::Max, keep_dims: false, noop_with_empty_axes: false };
    let max = graph.push("max", max, &[Some(x)]);
    let max = binary(&mut graph, BinaryOp::Mul, max, ten);
    let zero = graph.push("zero", Op::Cast { to: ElementType::I8 }, &[Some(max)]);
    let values: Vec<i8> = noise(4, 16 * 16).iter().map(|v| (v * 80.0) as i8).collect();
    let w = graph.add_initializer("w8", Tensor::new([16, 16, 1, 1], values).unwrap());
    let s = graph.add_initializer("ws", Tensor::scalar(0.01f32));
    let w = graph.push("wd", Op::DequantizeLinear { axis: 0, block_size: 0 }, &[Some(w), Some(s), Some(zero)]);
    let z = graph.push("conv", Op::Conv(ConvAttrs::same(&[1, 1])), &[Some(a), Some(w)]);
    check("a zero point computed at run time", graph, &[y, z], Precision::Int8, 1e-4);
}
