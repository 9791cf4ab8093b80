//! Rewrites of graphs preserve their results.

use cytoscope_builders::{DynUNet, UNet3d, Upsampling, Weights, dynunet, unet3d};
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, Dim, ElementType, Graph, GraphErrorKind, GraphLimits, Op,
    Tensor,
};
use cytoscope_graph_passes::infer_shapes;

use crate::common;

fn run(graph: &Graph, x: &Tensor) -> Tensor {
    cytoscope_reference::run(graph, &[("x".into(), x.clone())]).unwrap().remove(0)
}

/// Checks that a pass preserves the result, up to 1e-5 of its range.
fn same(before: &Graph, after: &Graph, shape: &[usize]) {
    after.validate().unwrap();
    let x = common::noise_tensor(9, shape);
    let (a, b) = (run(before, &x), run(after, &x));
    let range = a.to_f64_vec().into_iter().fold(1.0, |m: f64, v| m.max(v.abs()));
    let distance = common::distance(&a, &b);
    assert!(distance <= 1e-5 * range, "{distance} of {range}");
}

/// Returns a static network whose norms have individual statistics.
fn trained(upsampling: Upsampling) -> Graph {
    let config = UNet3d { filters: vec![4, 6], strides: vec![[2; 3]], upsampling, ..UNet3d::default() };
    let mut parameters = unet3d(&config, &Weights::Random { seed: 4 }).unwrap().named_initializers();
    for (index, (name, tensor)) in parameters.iter_mut().enumerate() {
        if name.contains("norm") {
            let positive = name.ends_with("var");
            let values = common::noise(index as u64, tensor.len());
            let values: Vec<f32> = values.into_iter().map(|v| if positive { v.abs() + 0.3 } else { v + 0.2 }).collect();
            *tensor = Tensor::new(tensor.shape(), values).unwrap().into();
        }
    }
    unet3d(&config, &Weights::Named(&parameters)).unwrap()
}

#[test]
fn networks_of_other_types_take_and_return_f32() {
    let mut graph = Graph::new("g");
    let x = graph.add_input("x", ElementType::U8, vec![Dim::Fixed(3)]);
    let half = graph.push("half", Op::Cast { to: ElementType::F16 }, &[Some(x)]);
    let w = graph.add_initializer("w", Tensor::vector(vec![0.5f32, 0.25, 2.0]).cast(ElementType::F16));
    let y = graph.push("y", Op::Binary(BinaryOp::Mul), &[Some(half), Some(w)]);
    let z = graph.push("z", Op::Cast { to: ElementType::I64 }, &[Some(y)]);
    graph.outputs = vec![y, z];
    infer_shapes(&mut graph, &[("x", vec![3])]).unwrap();
    let mut single = graph.clone();
    cytoscope_graph_passes::to_single_precision(&mut single).unwrap();
    let run = |graph: &Graph, x: Tensor| cytoscope_reference::run(graph, &[("x".into(), x)]).unwrap();
    // Values outside of the range of the type are clamped.
    let got = run(&single, Tensor::vector(vec![7.0f32, 300.0, -4.0]));
    let wanted = run(&graph, Tensor::vector(vec![7u8, 255, 0]));
    assert_eq!(got.len(), wanted.len());
    for (index, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
        assert_eq!(got.dtype(), ElementType::F32);
        assert_eq!(got.to_f64_vec(), wanted.to_f64_vec(), "output {index}");
        let name = |graph: &Graph| graph.value(graph.outputs[index]).name.clone();
        assert_eq!(name(&single), name(&graph));
    }
    assert_eq!(wanted[0].to_f64_vec(), [3.5, 63.75, 0.0]);
}

#[test]
fn all_passes_together_preserve_the_result() {
    for upsampling in [Upsampling::Transposed, Upsampling::Nearest] {
        let graph = trained(upsampling);
        let mut folded = graph.clone();
        assert_eq!(cytoscope_graph_passes::fold_batch_norm(&mut folded).unwrap(), 6);
        same(&graph, &folded, &[1, 1, 8, 8, 8]);
        let mut fused = graph.clone();
        cytoscope_graph_passes::optimize(&mut fused).unwrap();
        assert!(!fused.nodes.iter().any(|n| matches!(n.op, Op::BatchNormalization { .. } | Op::Activation(_))));
        same(&graph, &fused, &[2, 1, 8, 8, 8]);
        let bytes = cytoscope_onnx::to_bytes(&fused).unwrap();
        same(&graph, &cytoscope_onnx::from_bytes(&bytes, None, &GraphLimits::default()).unwrap(), &[1, 1, 8, 8, 8]);
    }
    let graph = dynunet(
        &DynUNet { filters: vec![4, 8], strides: vec![1, 2], ..DynUNet::default() },
        &Weights::Random { seed: 2 },
    );
    let graph = graph.unwrap();
    let mut optimized = graph.clone();
    cytoscope_graph_passes::optimize(&mut optimized).unwrap();
    same(&graph, &optimized, &[1, 1, 8, 8, 8]);
}

#[test]
fn batch_norm_folds_into_grouped_transposed_convolutions() {
    let mut graph = Graph::new("g");
    let x = graph.add_input("x", ElementType::F32, vec![Dim::Free("n".into()), Dim::Fixed(4), Dim::Free("w".into())]);
    let w = graph.add_initializer("w", common::noise_tensor(1, &[4, 3, 2]));
    let attrs = ConvTransposeAttrs { group: 2, ..ConvTransposeAttrs::upsample(&[2]) };
    let y = graph.push("up", Op::ConvTranspose(attrs), &[Some(x), Some(w)]);
    let mut inputs = vec![Some(y)];
    for (i, name) in ["s", "b", "m", "v"].into_iter().enumerate() {
        let values: Vec<f32> = common::noise(i as u64 + 20, 6).into_iter().map(|v| v.abs() + 0.5).collect();
        inputs.push(Some(graph.add_initializer(name, Tensor::vector(values))));
    }
    let z = graph.push("norm", Op::BatchNormalization { epsilon: 1e-3 }, &inputs);
    graph.outputs.push(z);
    let mut folded = graph.clone();
    assert_eq!(cytoscope_graph_passes::fold_batch_norm(&mut folded).unwrap(), 1);
    assert_eq!(folded.nodes.len(), 1);
    same(&graph, &folded, &[2, 4, 5]);
}

/// A convolution with residual and activation; and x·σ(x).
#[test]
fn residuals_and_silu_fuse() {
    let mut graph = Graph::new("r");
    let free = |n: &str| Dim::Free(n.into());
    let x = graph.add_input("x", ElementType::F32, vec![free("n"), Dim::Fixed(2), free("h"), free("w")]);
    let w = graph.add_initializer("w", common::noise_tensor(1, &[2, 2, 3, 3]));
    let a = graph.push("conv", Op::Conv(ConvAttrs::same(&[3, 3])), &[Some(x), Some(w)]);
    let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &[Some(x), Some(a)]);
    let gate = graph.push("gate", Op::Activation(Activation::Sigmoid), &[Some(sum)]);
    let y = graph.push("y", Op::Binary(BinaryOp::Mul), &[Some(sum), Some(gate)]);
    let copy = graph.push("copy", Op::Identity, &[Some(y)]);
    graph.outputs.push(copy);
    infer_shapes::<&str>(&mut graph, &[]).unwrap();
    let mut fused = graph.clone();
    cytoscope_graph_passes::eliminate_identity(&mut fused);
    assert_eq!(cytoscope_graph_passes::simplify_activations(&mut fused), 1);
    cytoscope_graph_passes::eliminate_dead(&mut fused);
    assert_eq!(cytoscope_graph_passes::fuse_activations(&mut fused), 1);
    let [only] = fused.nodes.as_slice() else { panic!("{} nodes", fused.nodes.len()) };
    assert!(matches!(only.op, Op::FusedConv { activation: Some(Activation::Silu), residual: true, .. }), "{only:?}");
    assert_eq!(fused.value(fused.outputs[0]).name, "copy");
    same(&graph, &fused, &[1, 2, 5, 6]);
    let again =
        cytoscope_onnx::from_bytes(&cytoscope_onnx::to_bytes(&fused).unwrap(), None, &GraphLimits::default()).unwrap();
    same(&graph, &again, &[1, 2, 5, 6]);
}

#[test]
fn constants_fold_and_huge_ones_are_refused() {
    let mut graph = Graph::new("c");
    let x = graph.add_input("x", ElementType::F32, vec![Dim::Fixed(2), Dim::Fixed(6)]);
    let shape = graph.push("shape", Op::Shape { start: 0, end: None }, &[Some(x)]);
    let one = graph.add_initializer("one", Tensor::scalar(1i64));
    let last = graph.push("last", Op::Gather { axis: 0 }, &[Some(shape), Some(one)]);
    let axes = graph.add_initializer("axes", Tensor::vector(vec![0i64]));
    let last = graph.push("list", Op::Unsqueeze, &[Some(last), Some(axes)]);
    let rest = graph.add_initializer("rest", Tensor::vector(vec![-1i64]));
    let target = graph.push("target", Op::Concat { axis: 0 }, &[Some(last), Some(rest)]);
    let y = graph.push("y", Op::Reshape { allow_zero: false }, &[Some(x), Some(target)]);
    graph.outputs.push(y);
    infer_shapes::<&str>(&mut graph, &[]).unwrap();
    assert_eq!(graph.value(y).fixed_shape(), Some(vec![6, 2]));
    let mut folded = graph.clone();
    cytoscope_graph_passes::fold_constants(&mut folded).unwrap();
    assert_eq!(folded.nodes.len(), 1);
    same(&graph, &folded, &[2, 6]);

    for (op, arguments) in [
        (Op::ConstantOfShape { value: Tensor::vector(vec![0.0f32]) }, vec![Tensor::vector(vec![1i64 << 20, 1 << 8])]),
        (Op::Expand, vec![Tensor::scalar(1.0f32), Tensor::vector(vec![1i64 << 28])]),
        (Op::Tile, vec![Tensor::vector(vec![1.0f32]), Tensor::vector(vec![1i64 << 28])]),
        (Op::Range, vec![Tensor::scalar(0i64), Tensor::scalar(1i64 << 28), Tensor::scalar(1i64)]),
    ] {
        let mut graph = Graph::new("huge");
        let inputs: Vec<_> = arguments.into_iter().map(|t| Some(graph.add_initializer("a", t))).collect();
        let y = graph.push("y", op.clone(), &inputs);
        graph.outputs.push(y);
        let error = cytoscope_graph_passes::fold_constants(&mut graph).unwrap_err();
        assert_eq!(error.kind(), GraphErrorKind::OverLimit, "{op:?}: {error}");
        assert!(error.to_string().contains("folded_elements"), "{error}");
    }
    let huge = Tensor::vector(vec![i64::MAX, i64::MAX]);
    let op = Op::ConstantOfShape { value: Tensor::vector(vec![0.0f32]) };
    assert_eq!(cytoscope_reference::eval(&op, &[Some(&huge)], 1).unwrap_err().kind(), GraphErrorKind::OverLimit);
}

#[test]
fn quantized_weights_are_folded_only_on_request() {
    let Some(models) = common::bench_models() else { return };
    let graph = cytoscope_onnx::load(&models.join("M1t_qdq.onnx"), &GraphLimits::default()).unwrap();
    let count = |g: &Graph| g.nodes.iter().filter(|n| matches!(n.op, Op::DequantizeLinear { .. })).count();
    let mut kept = graph.clone();
    cytoscope_graph_passes::optimize(&mut kept).unwrap();
    assert_eq!(count(&kept), count(&graph));
    let mut floats = graph.clone();
    cytoscope_graph_passes::fold_dequantized(&mut floats).unwrap();
    assert!(count(&floats) < count(&graph));
    same(&graph, &floats, &[1, 1, 8, 8, 8]);
}

/// Returns a network of two inputs of one and two channels, which are convolved, added and concatenated.
fn two_inputs() -> Graph {
    let mut graph = Graph::new("two");
    let free = |n: &str| Dim::Free(n.into());
    let a = graph.add_input("a", ElementType::F32, vec![free("n"), Dim::Fixed(1), free("h"), free("w")]);
    let b = graph.add_input("b", ElementType::F32, vec![free("n"), Dim::Fixed(2), free("y"), free("x")]);
    let wa = graph.add_initializer("wa", common::noise_tensor(1, &[2, 1, 3, 3]));
    let wb = graph.add_initializer("wb", common::noise_tensor(2, &[2, 2, 3, 3]));
    let ca = graph.push("ca", Op::Conv(ConvAttrs::same(&[3, 3])), &[Some(a), Some(wa)]);
    let cb = graph.push("cb", Op::Conv(ConvAttrs::same(&[3, 3])), &[Some(b), Some(wb)]);
    let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &[Some(ca), Some(cb)]);
    let both = graph.push("both", Op::Concat { axis: 1 }, &[Some(b), Some(sum)]);
    graph.outputs.push(both);
    graph
}

#[test]
fn a_network_of_joined_inputs_gives_the_result_of_separate_ones() {
    let graph = two_inputs();
    let mut joined = graph.clone();
    cytoscope_graph_passes::join_inputs(&mut joined, &[1, 2]).unwrap();
    joined.validate().unwrap();
    let [input] = joined.inputs.as_slice() else { panic!("{} inputs", joined.inputs.len()) };
    assert_eq!(joined.value(*input).shape.as_ref().unwrap()[1], Dim::Fixed(3));
    let x = common::noise_tensor(5, &[1, 3, 5, 6]);
    let values = x.as_f32().unwrap();
    let a = Tensor::new(vec![1, 1, 5, 6], values[..30].to_vec()).unwrap();
    let b = Tensor::new(vec![1, 2, 5, 6], values[30..].to_vec()).unwrap();
    let expected = cytoscope_reference::run(&graph, &[("a".into(), a), ("b".into(), b)]).unwrap().remove(0);
    let name = joined.value(*input).name.clone();
    let found = cytoscope_reference::run(&joined, &[(name, x.clone())]).unwrap().remove(0);
    assert!(common::distance(&found, &expected) <= 1e-6, "the results differ");
    let field = cytoscope_graph_passes::analysis::receptive_field(&joined).unwrap();
    assert_eq!(field.halo(), Some(vec![1, 1]));
    let mut single = joined.clone();
    cytoscope_graph_passes::join_inputs(&mut single, &[3]).unwrap();
    assert_eq!(single, joined, "a single input stays as it is");
}

#[test]
fn inputs_that_cannot_be_joined_are_refused() {
    let refused = |graph: &Graph, channels: &[usize]| {
        cytoscope_graph_passes::join_inputs(&mut graph.clone(), channels).unwrap_err().to_string()
    };
    let graph = two_inputs();
    assert!(refused(&graph, &[1, 3]).contains("\"b\" of 2 channels"), "{}", refused(&graph, &[1, 3]));
    assert!(refused(&graph, &[1]).contains("2 inputs"));
    assert!(refused(&graph, &[1, 1 << 40]).contains("more than 256"));
    let mut other = graph.clone();
    let id = other.inputs[1];
    other.values[id.index()].dtype = Some(ElementType::U8);
    assert!(refused(&other, &[1, 2]).contains("expected float32"));
    other.values[id.index()].dtype = None;
    other.values[id.index()].shape = Some(vec![Dim::Fixed(1), Dim::Fixed(2), Dim::Free("x".into())]);
    assert!(refused(&other, &[1, 2]).contains("of 3 axes beside one of 4"));
}

/// Returns a network of one input and the outputs `a` (2 channels) and `b` (1 channel, at `stride`).
fn two_outputs(stride: usize) -> Graph {
    let mut graph = Graph::new("two outputs");
    let free = |n: &str| Dim::Free(n.into());
    let x = graph.add_input("x", ElementType::F32, vec![free("n"), Dim::Fixed(1), free("h"), free("w")]);
    let wa = graph.add_initializer("wa", common::noise_tensor(1, &[2, 1, 3, 3]));
    let wb = graph.add_initializer("wb", common::noise_tensor(2, &[1, 2, 3, 3]));
    let a = graph.push("a", Op::Conv(ConvAttrs::same(&[3, 3])), &[Some(x), Some(wa)]);
    let attrs = ConvAttrs { strides: vec![stride; 2], ..ConvAttrs::same(&[3, 3]) };
    let b = graph.push("b", Op::Conv(attrs), &[Some(a), Some(wb)]);
    graph.outputs = vec![a, b];
    graph
}

#[test]
fn joined_outputs_are_the_channels_of_separate_ones() {
    let graph = two_outputs(1);
    let mut joined = graph.clone();
    cytoscope_graph_passes::join_outputs(&mut joined).unwrap();
    joined.validate().unwrap();
    assert_eq!(joined.outputs.len(), 1);
    let input = [("x".to_owned(), common::noise_tensor(5, &[1, 1, 5, 6]))];
    let separate = cytoscope_reference::run(&graph, &input).unwrap();
    let found = cytoscope_reference::run(&joined, &input).unwrap();
    assert_eq!((found.len(), found[0].shape()), (1, &[1, 3, 5, 6][..]));
    let expected: Vec<f32> = separate.iter().flat_map(|output| output.as_f32().unwrap().to_vec()).collect();
    assert_eq!(found[0].as_f32().unwrap(), expected);
    let field = cytoscope_graph_passes::analysis::receptive_field(&joined).unwrap();
    assert_eq!(field.halo(), Some(vec![2, 2]));
    let mut single = joined.clone();
    cytoscope_graph_passes::join_outputs(&mut single).unwrap();
    assert_eq!(single, joined, "a single output stays as it is");
}

#[test]
fn outputs_that_cannot_be_joined_are_refused() {
    let refused = |graph: &Graph| cytoscope_graph_passes::join_outputs(&mut graph.clone()).unwrap_err().to_string();
    let halved = refused(&two_outputs(2));
    assert!(halved.contains("\"b\" with lengths that differ from those of \"a\""), "{halved}");
    let mut integers = two_outputs(1);
    let id = integers.outputs[1];
    integers.values[id.index()].dtype = Some(ElementType::U8);
    assert!(refused(&integers).contains("\"b\" of uint8"), "{}", refused(&integers));
}

/// Runs a network on a tensor for its only input.
fn run_on(graph: &Graph, x: &Tensor) -> Tensor {
    let name = graph.value(graph.inputs[0]).name.clone();
    cytoscope_reference::run(graph, &[(name, x.clone())]).unwrap().remove(0)
}

#[test]
fn a_network_of_16_bit_or_64_bit_floats_becomes_one_of_32_bit_floats() {
    let shape = [1, 1, 4, 5, 6];
    for (dtype, tolerance) in [(ElementType::F16, 2e-2), (ElementType::F64, 1e-5)] {
        let mut graph = Graph::new("other floats");
        let x = graph.add_input("x", dtype, shape.map(Dim::Fixed).to_vec());
        let w = graph.add_initializer("w", common::noise_tensor(3, &[2, 1, 3, 3, 3]).cast(dtype));
        let y = graph.push("y", Op::Conv(ConvAttrs::same(&[3; 3])), &[Some(x), Some(w)]);
        let y = graph.push("same", Op::Cast { to: dtype }, &[Some(y)]);
        graph.outputs.push(y);
        infer_shapes(&mut graph, &[(x, shape.to_vec())]).unwrap();
        let mut wide = graph.clone();
        assert!(cytoscope_graph_passes::to_single_precision(&mut wide).unwrap());
        wide.validate().unwrap();
        let x = common::noise_tensor(4, &shape);
        let (found, expected) = (run_on(&wide, &x), run_on(&graph, &x.cast(dtype)));
        assert_eq!((found.dtype(), expected.dtype()), (ElementType::F32, dtype));
        let distance = common::distance(&found, &expected);
        assert!(distance < tolerance, "{dtype}: {distance}");
        assert!(!cytoscope_graph_passes::to_single_precision(&mut wide).unwrap(), "it stays as it is");
    }
}

#[test]
fn convolutions_of_bytes_become_those_of_floats_with_the_same_result() {
    let mut graph = Graph::new("bytes");
    let shape = [1, 2, 5, 4];
    let x = graph.add_input("x", ElementType::F32, shape.map(Dim::Fixed).to_vec());
    let [sx, sy] = [("sx", 0.25f32), ("sy", 4.0)].map(|(name, v)| Some(graph.add_initializer(name, Tensor::scalar(v))));
    let [zx, zy] = [("zx", 3u8), ("zy", 100)].map(|(name, v)| Some(graph.add_initializer(name, Tensor::scalar(v))));
    let weights: Vec<i8> = (0..54).map(|i| i8::try_from(i * 7 % 23 - 11).unwrap()).collect();
    let w = Some(graph.add_initializer("w", Tensor::new([3, 2, 3, 3], weights).unwrap()));
    let sw = Some(graph.add_initializer("sw", Tensor::vector(vec![0.125f32, 0.25, 0.5])));
    let zw = Some(graph.add_initializer("zw", Tensor::vector(vec![0i8; 3])));
    let bias = Some(graph.add_initializer("bias", Tensor::vector(vec![500i32, -700, 300])));
    let quantize = Op::QuantizeLinear { axis: 1, block_size: 0, to: ElementType::U8 };
    let bytes = Some(graph.push("bytes", quantize, &[Some(x), sx, zx]));
    let conv = Op::QLinearConv(ConvAttrs::same(&[3, 3]));
    let y = Some(graph.push("y", conv, &[bytes, sx, zx, w, sw, zw, sy, zy, bias]));
    let floats = graph.push("floats", Op::DequantizeLinear { axis: 1, block_size: 0 }, &[y, sy, zy]);
    graph.outputs.push(floats);
    infer_shapes(&mut graph, &[(x, shape.to_vec())]).unwrap();
    let mut separated = graph.clone();
    assert!(cytoscope_graph_passes::to_single_precision(&mut separated).unwrap());
    assert_eq!(separated.nodes.iter().filter(|node| matches!(node.op, Op::Conv(_))).count(), 1);
    assert!(!separated.nodes.iter().any(|node| matches!(node.op, Op::QLinearConv(_))));
    // Engines run it on bytes.
    let has_layers = cytoscope_graph_passes::quantize::has_quantized_layers;
    assert!(has_layers(&separated) && !has_layers(&graph));
    same(&graph, &separated, &shape);
}

#[test]
fn inputs_and_outputs_of_integers_become_floats() {
    let mut graph = Graph::new("integers");
    let x = graph.add_input("x", ElementType::U8, [1, 3, 2].map(Dim::Fixed).to_vec());
    let y = graph.push("y", Op::ArgReduce { max: true, axis: 1, keep_dims: true, last: false }, &[Some(x)]);
    graph.outputs.push(y);
    infer_shapes(&mut graph, &[(x, vec![1, 3, 2])]).unwrap();
    let mut wide = graph.clone();
    assert!(cytoscope_graph_passes::to_single_precision(&mut wide).unwrap());
    wide.validate().unwrap();
    // Limited and without fractions, the first line is 0, 255, 7 and the second one 1, 0, 255.
    let x = Tensor::new([1, 3, 2], vec![-3.0f32, 1.6, 255.4, -0.4, 7.2, 999.0]).unwrap();
    let found = run_on(&wide, &x);
    assert_eq!(found, Tensor::new([1, 1, 2], vec![1.0f32, 2.0]).unwrap());
    let bytes = Tensor::new([1, 3, 2], vec![0u8, 1, 255, 0, 7, 255]).unwrap();
    assert_eq!(run_on(&graph, &bytes).cast(ElementType::F32), found);
}
