//! Differentiation rules compared with finite differences.

use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, CoordinateMode, Dim, ElementType, Graph, NearestMode, Node,
    Op, PadMode, Padding, PoolAttrs, ReduceOp, ResizeAttrs, ResizeMode, Tensor, UnaryOp, ValueId,
};
use cytoscope_graph_passes::infer_shapes;

use crate::common::noise;

/// Returns a tensor of f64 noise; `low` is added, so that roots and logarithms are defined.
pub fn doubles(seed: u64, shape: &[usize], low: f64) -> Tensor {
    let values = noise(seed, shape.iter().product()).into_iter().map(|v| f64::from(v) + low).collect::<Vec<f64>>();
    Tensor::new(shape, values).unwrap()
}

pub fn fixed(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|n| Dim::Fixed(*n)).collect()
}

pub fn run(graph: &Graph, inputs: &[(String, Tensor)]) -> Vec<Tensor> {
    cytoscope_reference::run(graph, inputs).unwrap()
}

/// Checks the gradient of a graph's first output with respect to all of `inputs` against central differences, for every
/// element.
pub fn check_graph(what: &str, graph: Graph, inputs: &[(String, Tensor)]) {
    check_steps(what, graph, inputs, 1e-5);
}

/// Like [`check`], with a different step of the differences.
fn check_steps(what: &str, mut graph: Graph, inputs: &[(String, Tensor)], step: f64) {
    infer_shapes::<ValueId>(&mut graph, &[]).unwrap();
    let forward = graph.clone();
    let (by, total) = (graph.inputs.clone(), graph.outputs[0]);
    let gradients =
        cytoscope_autodiff::differentiate(&mut graph, total, &by, None).unwrap_or_else(|e| panic!("{what}: {e}"));
    graph.outputs = gradients.iter().map(|g| g.unwrap_or_else(|| panic!("{what}: no gradient"))).collect();
    infer_shapes::<ValueId>(&mut graph, &[]).unwrap_or_else(|e| panic!("{what}: {e}"));
    graph.validate().unwrap();
    let found = run(&graph, inputs);
    for (which, (_, tensor)) in inputs.iter().enumerate() {
        let analytic = found[which].to_f64_vec();
        assert_eq!(found[which].shape(), tensor.shape(), "{what}: input {which}");
        assert_eq!(found[which].dtype(), tensor.dtype(), "{what}: input {which}");
        let scale = analytic.iter().fold(1e-2f64, |m, v| m.max(v.abs()));
        for at in 0..tensor.len() {
            let loss = |by: f64| {
                let mut changed = inputs.to_vec();
                let mut values = tensor.to_f64_vec();
                values[at] += by;
                changed[which].1 = Tensor::new(tensor.shape(), values).unwrap().cast(tensor.dtype());
                run(&forward, &changed)[0].to_f64_vec()[0]
            };
            let numeric = (loss(step) - loss(-step)) / (2.0 * step);
            assert!(
                (analytic[at] - numeric).abs() < 1e-5 * scale,
                "{what}: input {which}, element {at}: {} against {numeric}",
                analytic[at]
            );
        }
    }
}

/// Checks one operator: its output is multiplied by noise and summed.
fn check(what: &str, op: Op, inputs: &[Tensor], constants: &[(usize, Tensor)]) {
    let mut graph = Graph::new(what);
    let mut named = Vec::new();
    let mut ids = Vec::new();
    for (i, t) in inputs.iter().enumerate() {
        ids.push(Some(graph.add_input(format!("in{i}"), ElementType::F64, fixed(t.shape()))));
        named.push((format!("in{i}"), t.clone()));
    }
    for (place, t) in constants {
        while ids.len() < *place {
            ids.push(None);
        }
        let id = graph.add_initializer(format!("constant{place}"), t.clone());
        if *place < ids.len() { ids[*place] = Some(id) } else { ids.push(Some(id)) }
    }
    let y = graph.push("y", op, &ids);
    add_total(&mut graph, &[y]);
    check_graph(what, graph, &named);
}

/// Adds as a graph output the sum of all elements, each multiplied by its own noise.
fn add_total(graph: &mut Graph, values: &[ValueId]) {
    infer_shapes::<ValueId>(graph, &[]).unwrap_or_else(|e| panic!("{}: {e}", graph.name));
    let mut total = None;
    for (i, value) in values.iter().enumerate() {
        let shape = graph.value(*value).fixed_shape().unwrap();
        let r = graph.add_initializer("noise", doubles(99 + i as u64, &shape, 0.0));
        let product = graph.push("product", Op::Binary(BinaryOp::Mul), &[Some(*value), Some(r)]);
        let sum = Op::Reduce { kind: ReduceOp::Sum, keep_dims: false, noop_with_empty_axes: false };
        let sum = graph.push("sum", sum, &[Some(product)]);
        total = Some(match total {
            None => sum,
            Some(before) => graph.push("total", Op::Binary(BinaryOp::Add), &[Some(before), Some(sum)]),
        });
    }
    graph.outputs.extend(total);
}

/// Returns a graph with one input, the input's id, and a tensor for it.
fn with_input(what: &str, x: &Tensor) -> (Graph, ValueId, [(String, Tensor); 1]) {
    let mut graph = Graph::new(what);
    let id = graph.add_input("x", x.dtype(), fixed(x.shape()));
    (graph, id, [("x".to_owned(), x.clone())])
}

#[test]
fn convolutions_have_the_gradients_of_finite_differences() {
    for (stride, dilation, pad, group) in [
        ([1, 1, 1], [1, 1, 1], 1, 1),
        ([1, 2, 2], [1, 1, 1], 1, 1),
        ([2, 2, 2], [1, 1, 1], 0, 2),
        ([1, 1, 2], [1, 2, 1], 2, 1),
    ] {
        let attrs = ConvAttrs {
            dilations: dilation.to_vec(),
            padding: Padding::symmetric(vec![pad; 3]),
            group,
            ..ConvAttrs::same(&[3, 3, 3]).with_strides(&stride)
        };
        let inputs =
            [doubles(1, &[2, 2, 4, 5, 6], 0.0), doubles(2, &[4, 2 / group, 3, 3, 3], 0.0), doubles(3, &[4], 0.0)];
        check("conv", Op::Conv(attrs), &inputs, &[]);
    }
    let up = ConvTransposeAttrs::upsample(&[1, 2, 2]);
    check(
        "upsampling",
        Op::ConvTranspose(up),
        &[doubles(1, &[1, 3, 2, 2, 3], 0.0), doubles(2, &[3, 2, 1, 2, 2], 0.0), doubles(3, &[2], 0.0)],
        &[],
    );
    let wide = ConvTransposeAttrs {
        kernel: vec![3; 3],
        padding: Padding::symmetric(vec![1; 3]),
        output_padding: vec![1; 3],
        strides: vec![2; 3],
        ..ConvTransposeAttrs::upsample(&[3, 3, 3])
    };
    check(
        "transposed conv",
        Op::ConvTranspose(wide),
        &[doubles(4, &[1, 2, 2, 3, 2], 0.0), doubles(5, &[2, 2, 3, 3, 3], 0.0)],
        &[],
    );
}

#[test]
fn norms_have_the_gradients_of_finite_differences() {
    let inputs = || [doubles(1, &[2, 4, 2, 3, 3], 0.3), doubles(2, &[4], 1.0), doubles(3, &[4], 0.0)];
    check("instance norm", Op::InstanceNormalization { epsilon: 1e-3 }, &inputs(), &[]);
    check("group norm", Op::GroupNormalization { groups: 2, epsilon: 1e-3 }, &inputs(), &[]);
    check("batch norm", Op::BatchNormalizationTraining { epsilon: 1e-3 }, &inputs(), &[]);
    let fixed = [(3, doubles(4, &[4], 0.0)), (4, doubles(5, &[4], 3.0))];
    check("frozen batch norm", Op::BatchNormalization { epsilon: 1e-3 }, &inputs(), &fixed);
    let layer = [doubles(1, &[2, 3, 4], 0.0), doubles(2, &[3, 4], 1.0), doubles(3, &[3, 4], 0.0)];
    check("layer norm", Op::LayerNormalization { axis: 1, epsilon: 1e-3 }, &layer, &[]);
}

#[test]
fn functions_of_one_element_have_the_gradients_of_finite_differences() {
    let f = |a: Activation| Op::Activation(a);
    let activations = [
        Activation::Relu,
        Activation::LeakyRelu { alpha: 0.1 },
        Activation::LeakyRelu { alpha: -0.3 },
        Activation::Elu { alpha: 0.7 },
        Activation::Celu { alpha: 0.7 },
        Activation::Selu { alpha: 1.6, gamma: 1.05 },
        Activation::Gelu { tanh: false },
        Activation::Gelu { tanh: true },
        Activation::Silu,
        Activation::Sigmoid,
        Activation::HardSigmoid { alpha: 0.25, beta: 0.5 },
        Activation::HardSwish,
        Activation::Mish,
        Activation::Tanh,
        Activation::Softplus,
        Activation::Softsign,
        Activation::ThresholdedRelu { alpha: 0.3 },
        Activation::Clip { min: -0.4, max: 0.5 },
    ];
    for a in activations {
        check(&format!("{a:?}"), f(a), &[doubles(7, &[2, 3, 5], 0.0)], &[]);
    }
    use UnaryOp::{Abs, Cos, Erf, Exp, Log, Neg, Reciprocal, Sin, Sqrt};
    for kind in [Abs, Neg, Reciprocal, Sqrt, Exp, Log, Erf, Sin, Cos] {
        check(&format!("{kind:?}"), Op::Unary(kind), &[doubles(8, &[3, 4], 2.5)], &[]);
    }
}

#[test]
fn functions_of_two_tensors_have_the_gradients_of_finite_differences() {
    use BinaryOp::{Add, Div, Max, Min, Mul, Pow, Sub};
    for kind in [Add, Sub, Mul, Div, Max, Min, Pow] {
        check(&format!("{kind:?}"), Op::Binary(kind), &[doubles(1, &[2, 3, 4], 2.5), doubles(2, &[3, 1], 2.2)], &[]);
    }
    // A base of 0 has no logarithm, and exponents may be integers.
    let bases = Tensor::vector(vec![0.0, 0.5, -1.5]);
    check("Pow of 0", Op::Binary(Pow), &[Tensor::vector(vec![0.0, 0.5]), Tensor::vector(vec![2.0, 3.0])], &[]);
    check("Pow by an integer", Op::Binary(Pow), &[bases], &[(1, Tensor::vector(vec![2i64, 3, 2]))]);
    let constant = Tensor::vector(vec![0i64, 0, 2]);
    check("Pow by 0", Op::Binary(Pow), &[Tensor::vector(vec![0.0, 0.5, -1.5])], &[(1, constant)]);
    check("MatMul", Op::MatMul, &[doubles(1, &[2, 3, 4], 0.0), doubles(2, &[4, 2], 0.0)], &[]);
    for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
        let a = if trans_a { [4, 3] } else { [3, 4] };
        let b = if trans_b { [2, 4] } else { [4, 2] };
        let op = Op::Gemm { alpha: 0.5, beta: 1.5, trans_a, trans_b };
        check("Gemm", op, &[doubles(1, &a, 0.0), doubles(2, &b, 0.0), doubles(3, &[2], 0.0)], &[]);
    }
}

#[test]
fn pools_and_resizes_have_the_gradients_of_finite_differences() {
    let pool = |ceil_mode, count_include_pad| PoolAttrs {
        kernel: vec![2, 3, 3],
        strides: vec![1, 2, 2],
        dilations: vec![1; 3],
        padding: Padding::symmetric(vec![0, 1, 1]),
        ceil_mode,
        count_include_pad,
        column_major_indices: false,
    };
    let x = || [doubles(1, &[1, 2, 3, 5, 6], 0.0)];
    check("max pool", Op::MaxPool(pool(true, false)), &x(), &[]);
    check("average pool", Op::AveragePool(pool(false, true)), &x(), &[]);
    check("average pool without padding", Op::AveragePool(pool(true, false)), &x(), &[]);
    check("global average pool", Op::GlobalAveragePool, &x(), &[]);
    let scales = Tensor::vector(vec![1.0f32, 1.0, 1.0, 2.0, 2.0]);
    check("nearest", Op::Resize(ResizeAttrs::nearest()), &x(), &[(2, scales.clone())]);
    let linear = ResizeAttrs {
        mode: ResizeMode::Linear,
        coordinates: CoordinateMode::HalfPixel,
        nearest: NearestMode::RoundPreferFloor,
        ..ResizeAttrs::nearest()
    };
    check("linear", Op::Resize(linear), &x(), &[(2, scales)]);
}

#[test]
fn operators_that_move_elements_have_the_gradients_of_finite_differences() {
    let ints = |v: &[i64]| Tensor::vector(v.to_vec());
    let x = || doubles(1, &[2, 4, 3], 0.0);
    check("concat", Op::Concat { axis: 1 }, &[x(), doubles(2, &[2, 2, 3], 0.0)], &[]);
    check("slice", Op::Slice, &[x()], &[(1, ints(&[3])), (2, ints(&[-9])), (3, ints(&[1])), (4, ints(&[-2]))]);
    check("pad", Op::Pad { mode: PadMode::Constant }, &[x()], &[(1, ints(&[0, 1, 0, 0, 0, 2]))]);
    check("reflect", Op::Pad { mode: PadMode::Reflect }, &[x()], &[(1, ints(&[0, 1, 0, 0, 2, 2]))]);
    check("reshape", Op::Reshape { allow_zero: false }, &[x()], &[(1, ints(&[4, -1]))]);
    check("transpose", Op::Transpose { perm: vec![2, 0, 1] }, &[x()], &[]);
    check("expand", Op::Expand, &[doubles(1, &[4, 1], 0.0)], &[(1, ints(&[2, 4, 3]))]);
    check("tile", Op::Tile, &[x()], &[(1, ints(&[1, 2, 1]))]);
    check("gather", Op::Gather { axis: 1 }, &[x()], &[(1, ints(&[3, 0, 3]))]);
    let d2s = Op::DepthToSpace { block: 2, order: cytoscope_graph::DepthOrder::Crd };
    check("depth to space", d2s, &[doubles(1, &[1, 4, 2, 3], 0.0)], &[]);
    check("space to depth", Op::SpaceToDepth { block: 2 }, &[doubles(1, &[2, 3, 4, 6], 0.0)], &[]);
    let thin = || [doubles(1, &[1, 4, 1, 3, 1], 0.0)];
    check("squeeze", Op::Squeeze, &thin(), &[]);
    check("squeeze of some axes", Op::Squeeze, &thin(), &[(1, ints(&[-1, 2]))]);
    check("unsqueeze", Op::Unsqueeze, &[x()], &[(1, ints(&[-1, 0, 2]))]);
    for axis in [0, 1, -1, 3] {
        check("flatten", Op::Flatten { axis }, &[x()], &[]);
    }
    for (kind, name) in
        [(ReduceOp::Sum, "sum"), (ReduceOp::Mean, "mean"), (ReduceOp::SumSquare, "squares"), (ReduceOp::L1, "l1")]
    {
        for keep_dims in [true, false] {
            check(name, Op::Reduce { kind, keep_dims, noop_with_empty_axes: false }, &[x()], &[(1, ints(&[0, 2]))]);
        }
    }
    use ReduceOp::{L2, LogSum, LogSumExp, Max, Min};
    for kind in [L2, LogSum, LogSumExp, Max, Min] {
        for keep_dims in [true, false] {
            let op = Op::Reduce { kind, keep_dims, noop_with_empty_axes: false };
            check(&format!("{kind:?}"), op, &[doubles(1, &[2, 4, 3], 2.5)], &[(1, ints(&[0, 2]))]);
        }
    }
    for kind in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::SumSquare, L2, LogSum, Max, Min] {
        let op = Op::Reduce { kind, keep_dims: true, noop_with_empty_axes: true };
        check(&format!("{kind:?} over no axes"), op, &[doubles(1, &[2, 4, 3], 2.5)], &[]);
    }
    check("global max pool", Op::GlobalMaxPool, &[doubles(1, &[2, 3, 4, 5], 0.0)], &[]);
    let factors = [doubles(1, &[2, 3, 4], 0.0), doubles(2, &[2, 5, 4], 0.0)];
    for equation in ["bic,bjc->bij", "bic,bjc->jbi"] {
        check(equation, Op::Einsum { equation: equation.to_owned() }, &factors, &[]);
    }
    check("softmax", Op::Softmax { axis: 1 }, &[x()], &[]);
    check("log softmax", Op::LogSoftmax { axis: -1 }, &[x()], &[]);
}

#[test]
fn an_einsum_that_repeats_an_axis_of_length_1_is_not_differentiated() {
    let (mut graph, id, _) = with_input("einsum", &doubles(1, &[1, 3, 4], 0.0));
    let other = graph.add_initializer("other", doubles(2, &[2, 5, 4], 0.0));
    let y = graph.push("y", Op::Einsum { equation: "bic,bjc->bij".to_owned() }, &[Some(id), Some(other)]);
    add_total(&mut graph, &[y]);
    infer_shapes::<ValueId>(&mut graph, &[]).unwrap();
    let total = graph.outputs[0];
    let error = cytoscope_autodiff::differentiate(&mut graph, total, &[id], None).unwrap_err();
    assert!(error.to_string().contains("bic,bjc->bij"), "{error}");
}

#[test]
fn slopes_have_the_gradients_of_finite_differences() {
    let shape = [2, 3, 2, 3, 4];
    let slopes: [&[usize]; 9] =
        [&[], &[1], &[1; 4], &[1; 5], &[3, 1, 1, 1], &[1, 3, 1, 1, 1], &[4], &[2, 1, 4], &shape];
    for slope in slopes {
        check(&format!("PRelu {slope:?}"), Op::PRelu, &[doubles(1, &shape, 0.0), doubles(2, slope, 0.1)], &[]);
    }
    // One slope per channel, a matrix, a vector; and constant slopes.
    check("PRelu", Op::PRelu, &[doubles(3, &[2, 1, 5], 0.0), doubles(4, &[1, 1], 0.1)], &[]);
    check("PRelu", Op::PRelu, &[doubles(3, &[4, 3], 0.0), doubles(4, &[3], 0.1)], &[]);
    check("PRelu", Op::PRelu, &[doubles(3, &[5], 0.0), doubles(4, &[1], 0.1)], &[]);
    check("PRelu", Op::PRelu, &[doubles(3, &shape, 0.0)], &[(1, doubles(4, &[3, 1, 1, 1], 0.1))]);
}

#[test]
fn a_split_has_the_gradients_of_finite_differences() {
    let x = doubles(1, &[2, 4, 3], 0.0);
    // Given lengths, equal parts, and a shorter last part; then a part that is not read.
    for (axis, parts, lengths, read) in
        [(1, 2, Some(vec![1i64, 3]), 2), (-2, 2, None, 2), (2, 2, None, 2), (1, 3, Some(vec![1, 1, 2]), 2)]
    {
        let (mut graph, id, inputs) = with_input("split", &x);
        let lengths = lengths.map(|l| graph.add_initializer("lengths", Tensor::vector(l)));
        let outputs: Vec<ValueId> = (0..parts).map(|i| graph.add_value(format!("part{i}"), None, None)).collect();
        graph.nodes.push(Node {
            name: "split".to_owned(),
            op: Op::Split { axis },
            inputs: vec![Some(id), lengths],
            outputs: outputs.iter().copied().map(Some).collect(),
        });
        add_total(&mut graph, &outputs[..read]);
        check_graph("split", graph, &inputs);
    }
}

#[test]
fn where_has_the_gradients_of_finite_differences() {
    let chosen: Vec<bool> = noise(3, 8).iter().map(|v| *v > 0.0).collect();
    assert!(chosen.contains(&true) && chosen.contains(&false));
    let shapes: [[&[usize]; 2]; 4] =
        [[&[2, 3, 4], &[2, 3, 4]], [&[2, 3, 4], &[3, 1]], [&[], &[3, 4]], [&[1, 4], &[3, 1]]];
    for [a, b] in shapes {
        let mut graph = Graph::new("where");
        let mut inputs = Vec::new();
        let mut ids = vec![Some(graph.add_initializer("chosen", Tensor::new([2, 1, 4], chosen.clone()).unwrap()))];
        for (name, seed, shape) in [("a", 1, a), ("b", 2, b)] {
            ids.push(Some(graph.add_input(name, ElementType::F64, fixed(shape))));
            inputs.push((name.to_owned(), doubles(seed, shape, 0.0)));
        }
        let y = graph.push("y", Op::Where, &ids);
        add_total(&mut graph, &[y]);
        check_graph(&format!("where {a:?} {b:?}"), graph, &inputs);
    }
}

#[test]
fn casts_have_the_gradients_of_finite_differences() {
    let x = doubles(1, &[3, 5], 0.0);
    for (from, through) in [(ElementType::F64, Some(ElementType::F32)), (ElementType::F32, None)] {
        let (mut graph, mut id, inputs) = with_input("cast", &x.cast(from));
        for to in through.into_iter().chain([ElementType::F64]) {
            id = graph.push("y", Op::Cast { to }, &[Some(id)]);
        }
        add_total(&mut graph, &[id]);
        // A cast is linear except for rounding, which large steps do not resolve.
        check_steps(&format!("cast of {from}"), graph, &inputs, 0.25);
    }
}
