//! Exported networks: read back by this crate, and run by ONNX Runtime.

use cytoscope_builders::{
    DifferenceOfGaussians, DynUNet, UNet3d, Upsampling, Weights, difference_of_gaussians, dynunet, unet3d,
};
use cytoscope_graph::{
    Activation, ConvAttrs, CoordinateMode, Dim, ElementType, Graph, GraphLimits, Node, Op, PadMode, Padding, PoolAttrs,
    ReduceOp, ResizeAttrs, ResizeMode, Tensor,
};
use cytoscope_graph_passes::quantize::{Activations, Group, QuantRange, prepare, quantize};
use cytoscope_onnx::OnnxFile;
use std::collections::BTreeSet;

use crate::common;
use crate::onnxruntime::{onnxruntime, python};

fn nets() -> Vec<(&'static str, Graph)> {
    let random = Weights::Random { seed: 5 };
    let net = |upsampling| {
        let config = UNet3d { filters: vec![4, 8], strides: vec![[1, 2, 2]], upsampling, ..UNet3d::default() };
        unet3d(&config, &random).unwrap()
    };
    let mut fused = net(Upsampling::Nearest);
    cytoscope_graph_passes::optimize(&mut fused).unwrap();
    let mut all = vec![
        ("transposed", net(Upsampling::Transposed)),
        ("nearest", net(Upsampling::Nearest)),
        ("fused", fused),
        (
            "dynunet",
            dynunet(&DynUNet { filters: vec![4, 8], strides: vec![1, 2], ..DynUNet::default() }, &random).unwrap(),
        ),
        ("gaussians", difference_of_gaussians(&DifferenceOfGaussians::default()).unwrap()),
    ];
    if let Some(models) = common::bench_models() {
        for name in ["M1t.onnx", "M1t_qdq.onnx"] {
            all.push((name, cytoscope_onnx::load(&models.join(name), &GraphLimits::default()).unwrap()));
        }
    }
    all
}

#[test]
fn exported_graphs_are_read_back_unchanged() {
    for (name, graph) in nets() {
        let bytes = cytoscope_onnx::to_bytes(&graph).unwrap();
        let again = cytoscope_onnx::from_bytes(&bytes, None, &GraphLimits::default()).unwrap();
        let x = common::noise_tensor(1, &[1, 1, 8, 8, 8]);
        let run = |g: &Graph| cytoscope_reference::run(g, &[("x".into(), x.clone())]).unwrap().remove(0);
        assert_eq!(common::distance(&run(&graph), &run(&again)), 0.0, "{name}");
        assert_eq!(
            cytoscope_onnx::to_bytes(&again).unwrap(),
            cytoscope_onnx::to_bytes(&again).unwrap(),
            "{name}: the same bytes every time"
        );
    }
}

#[test]
fn onnx_runtime_agrees_with_exported_files() {
    let Some(python) = python() else { return };
    for (name, graph) in nets() {
        let x = common::noise_tensor(6, &[1, 1, 8, 16, 24]);
        let ours = cytoscope_reference::run(&graph, &[("x".into(), x.clone())]).unwrap().remove(0);
        let theirs = onnxruntime(&python, &graph, &x, &ours);
        let range = ours.to_f64_vec().into_iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let distance = common::distance(&ours, &theirs) / range;
        let square = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
        let (a, b) = (ours.to_f64_vec(), theirs.to_f64_vec());
        let errors: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        let relative = square(&errors) / square(&b);
        eprintln!("{name}: largest difference {distance:.1e} of the range, relative L2 {relative:.1e}");
        assert!(relative < 0.02, "{name}: relative L2 {relative}");
        // Integers that round differently by one level differ by one quantization step.
        let allowed = if name.contains("qdq") { 0.1 } else { 1e-4 };
        assert!(distance < allowed, "{name}: {distance}");
    }
}

/// Returns a file with the version of its format; asserts that it states the opset that [`cytoscope_onnx::encode`] reports.
fn encoded(graph: &Graph) -> (OnnxFile, u8) {
    let file = cytoscope_onnx::encode(graph).unwrap();
    let again = cytoscope_onnx::from_bytes(&file.bytes, None, &GraphLimits::default()).unwrap();
    assert_eq!(again.opset, file.opset);
    // The version is the first field.
    assert_eq!(file.bytes[0], 8);
    let version = file.bytes[1];
    (file, version)
}

fn has_word(file: &OnnxFile, word: &str) -> bool {
    file.bytes.windows(word.len()).any(|found| found == word.as_bytes())
}

/// ONNX Runtime 1.13, as in deepImageJ of Fiji, reads opset 17 and version 8 of the file format.
#[test]
fn usual_networks_are_written_for_older_programs() {
    // Networks from outside of the repository may have any operators.
    for (name, graph) in nets().into_iter().filter(|(name, _)| !name.starts_with("M1t")) {
        let (file, version) = encoded(&graph);
        assert_eq!((file.opset, version), (17, 8), "{name}");
        for newer in ["antialias", "keep_aspect_ratio_policy", "num_outputs"] {
            assert!(!has_word(&file, newer), "{name}: {newer}");
        }
    }
    let config = UNet3d { filters: vec![4, 8], strides: vec![[1, 2, 2]], ..UNet3d::default() };
    let float = prepare(&unet3d(&config, &Weights::Random { seed: 5 }).unwrap()).unwrap();
    let range = |_: &Group| QuantRange::of(-1.0, 1.0);
    for activations in [Activations::Static(&range), Activations::Dynamic] {
        let (file, version) = encoded(&quantize(&float, &activations, &BTreeSet::new()).unwrap());
        assert_eq!((file.opset, version), (17, 8));
        assert!(has_word(&file, "DequantizeLinear") && !has_word(&file, "block_size"));
        assert!(!has_word(&file, "output_dtype"));
    }
}

/// A network of one operator on an input `x` of shape 1 × 4 × 6 × 6, with constants as the other inputs.
fn single(op: Op, dtype: ElementType, constants: Vec<Option<Tensor>>) -> Graph {
    let mut graph = Graph::new("single");
    let x = graph.add_input("x", dtype, [1, 4, 6, 6].map(Dim::Fixed).to_vec());
    let constants = constants.into_iter().map(|tensor| tensor.map(|t| graph.add_initializer("c", t)));
    let inputs: Vec<_> = std::iter::once(Some(x)).chain(constants).collect();
    let y = graph.push("y", op, &inputs);
    graph.outputs.push(y);
    graph
}

fn pool(dilation: usize) -> Op {
    Op::AveragePool(PoolAttrs {
        kernel: vec![2; 2],
        strides: vec![1; 2],
        dilations: vec![dilation; 2],
        padding: Padding::none(2),
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    })
}

fn mean(noop_with_empty_axes: bool) -> Op {
    Op::Reduce { kind: ReduceOp::Mean, keep_dims: true, noop_with_empty_axes }
}

/// A split of channels into two parts without lengths.
fn split(channels: usize) -> Graph {
    let mut graph = Graph::new("split");
    let x = graph.add_input("x", ElementType::F32, [1, channels, 6, 6].map(Dim::Fixed).to_vec());
    let outputs: Vec<_> = (0..2).map(|i| graph.add_value(format!("y{i}"), None, None)).collect();
    graph.nodes.push(Node {
        name: "split".to_owned(),
        op: Op::Split { axis: 1 },
        inputs: vec![Some(x)],
        outputs: outputs.iter().copied().map(Some).collect(),
    });
    graph.outputs = outputs;
    graph
}

#[test]
fn same_padding_of_dilated_kernels_is_written_as_amounts() {
    let x = common::noise_tensor(4, &[1, 4, 6, 6]);
    for (stride, padding) in [(1, Padding::SameUpper), (1, Padding::SameLower), (2, Padding::SameUpper)] {
        let attrs = ConvAttrs {
            kernel: vec![2, 3],
            strides: vec![stride; 2],
            dilations: vec![2; 2],
            padding: padding.clone(),
            group: 1,
        };
        let weight = common::noise_tensor(5, &[3, 4, 2, 3]);
        let graph = single(Op::Conv(attrs), ElementType::F32, vec![Some(weight)]);
        let file = cytoscope_onnx::encode(&graph).unwrap();
        assert_eq!(has_word(&file, "auto_pad"), stride > 1, "{padding:?}");
        let again = cytoscope_onnx::from_bytes(&file.bytes, None, &GraphLimits::default()).unwrap();
        let run = |g: &Graph| cytoscope_reference::run(g, &[("x".into(), x.clone())]).unwrap().remove(0);
        let ours = run(&graph);
        assert_eq!(common::distance(&ours, &run(&again)), 0.0, "{padding:?}");
        if let (1, Some(python)) = (stride, python()) {
            let theirs = onnxruntime(&python, &graph, &x, &ours);
            assert!(common::distance(&ours, &theirs) < 1e-5, "{padding:?}");
        }
    }
}

#[test]
fn operators_in_bfloat16_are_written_in_the_opset_that_has_them() {
    let weight = Tensor::new([4, 4, 1, 1], vec![0.5f32; 16]).unwrap().cast(ElementType::BF16);
    let relu = single(Op::Activation(Activation::Relu), ElementType::BF16, Vec::new());
    let conv = single(Op::Conv(ConvAttrs::same(&[1, 1])), ElementType::BF16, vec![Some(weight)]);
    let greatest = Op::TopK { axis: 1, largest: true };
    let [greatest_bf16, greatest_f32] = [ElementType::BF16, ElementType::F32]
        .map(|dtype| single(greatest.clone(), dtype, vec![Some(Tensor::vector(vec![2i64]))]));
    for (graph, expected) in [(relu, (17, 8)), (conv, (22, 10)), (greatest_bf16, (24, 12)), (greatest_f32, (17, 8))] {
        let (file, version) = encoded(&graph);
        assert_eq!((file.opset, version), expected);
    }
}

#[test]
fn operators_of_types_that_onnx_lacks_are_not_written() {
    let celu = Op::Activation(Activation::Celu { alpha: 1.0 });
    for dtype in [ElementType::F16, ElementType::BF16, ElementType::F64] {
        let error = cytoscope_onnx::encode(&single(celu.clone(), dtype, Vec::new())).unwrap_err().to_string();
        assert!(error.contains("Celu") && error.contains(dtype.name()), "{error}");
    }
    assert_eq!(encoded(&single(celu, ElementType::F32, Vec::new())).0.opset, 17);
}

/// The opsets are those of ONNX's changelog in which the operator got its attribute, input or type.
#[test]
fn files_have_the_oldest_opset_that_has_their_operators() {
    use ElementType::{F32, I8, I16, U8};
    let ints = |values: &[i64]| Some(Tensor::vector(values.to_vec()));
    let floats = |values: &[f32]| Some(Tensor::vector(values.to_vec()));
    let resize = |attrs: ResizeAttrs, scales: &[f32]| single(Op::resize(attrs), F32, vec![None, floats(scales)]);
    let nearest = ResizeAttrs::nearest;
    let linear = ResizeAttrs { mode: ResizeMode::Linear, coordinates: CoordinateMode::HalfPixel, ..nearest() };
    let smooth = ResizeAttrs { antialias: true, ..linear.clone() };
    let symmetric = ResizeAttrs { coordinates: CoordinateMode::HalfPixelSymmetric, ..linear };
    let two_axes = ResizeAttrs { axes: Some(vec![2, 3]), ..nearest() };
    let of = |activation: Activation| single(Op::Activation(activation), F32, Vec::new());
    let pad = |mode: PadMode, pads: &[i64]| single(Op::Pad { mode }, F32, vec![ints(pads)]);
    let to = |to: ElementType, block_size: usize, zero: Option<Tensor>| {
        let scale =
            if block_size > 0 { Tensor::new([1, 2, 6, 6], vec![0.5f32; 72]).unwrap() } else { Tensor::scalar(0.5f32) };
        single(Op::QuantizeLinear { axis: 1, block_size, to }, F32, vec![Some(scale), zero])
    };
    let from = |dtype: ElementType| {
        single(Op::DequantizeLinear { axis: 1, block_size: 0 }, dtype, vec![Some(Tensor::scalar(0.5f32))])
    };
    let norm = Op::GroupNormalization { groups: 2, epsilon: 1e-5 };
    let mut computed = single(mean(false), F32, Vec::new());
    let axes = computed.add_input("axes", ElementType::I64, vec![Dim::Fixed(1)]);
    computed.nodes[0].inputs.push(Some(axes));
    let mut sum = computed.clone();
    sum.nodes[0].op = Op::Reduce { kind: ReduceOp::Sum, keep_dims: true, noop_with_empty_axes: false };
    let cases = [
        ("Relu", of(Activation::Relu), 17),
        ("Silu", of(Activation::Silu), 17),
        ("Mish", of(Activation::Mish), 18),
        ("Gelu", of(Activation::Gelu { tanh: true }), 20),
        ("group norm", single(norm, F32, vec![floats(&[1.0; 4]), floats(&[0.0; 4])]), 21),
        ("pool", single(pool(1), F32, Vec::new()), 17),
        ("dilated pool", single(pool(2), F32, Vec::new()), 19),
        ("nearest", resize(nearest(), &[1.0, 1.0, 2.0, 2.0]), 17),
        ("antialias", resize(smooth, &[1.0, 1.0, 0.5, 0.5]), 18),
        ("axes", resize(two_axes, &[2.0, 2.0]), 18),
        ("symmetric", resize(symmetric, &[1.0, 1.0, 2.0, 2.0]), 19),
        ("equal parts", split(4), 17),
        ("unequal parts", split(5), 18),
        ("edge", pad(PadMode::Edge, &[0, 0, 1, 1, 0, 0, 1, 1]), 17),
        ("wrap", pad(PadMode::Wrap, &[0, 0, 1, 1, 0, 0, 1, 1]), 19),
        ("pad of axes", single(Op::Pad { mode: PadMode::Constant }, F32, vec![ints(&[1; 4]), None, ints(&[2, 3])]), 18),
        ("mean", single(mean(false), F32, vec![ints(&[2, -1])]), 17),
        ("mean of all", single(mean(false), F32, Vec::new()), 17),
        ("mean of none", single(mean(true), F32, Vec::new()), 18),
        ("mean of computed axes", computed, 18),
        ("sum of computed axes", sum, 17),
        ("uint8", to(U8, 0, None), 17),
        ("int8", to(I8, 0, Some(Tensor::scalar(0i8))), 17),
        ("int8 without zero point", to(I8, 0, None), 21),
        ("int16", to(I16, 0, Some(Tensor::scalar(0i16))), 21),
        ("blocks", to(U8, 2, None), 21),
        ("from int8", from(I8), 17),
        ("from int16", from(I16), 21),
    ];
    for (name, graph, opset) in cases {
        let (file, version) = encoded(&graph);
        let expected = match opset {
            17 | 18 => 8,
            19 | 20 => 9,
            _ => 10,
        };
        assert_eq!((file.opset, version), (opset, expected), "{name}");
        let input = graph.value(graph.inputs[0]);
        if graph.inputs.len() > 1 || input.dtype != Some(F32) {
            continue;
        }
        let again = cytoscope_onnx::from_bytes(&file.bytes, None, &GraphLimits::default()).unwrap();
        let x = common::noise_tensor(3, &input.fixed_shape().unwrap());
        let run = |graph: &Graph| cytoscope_reference::run(graph, &[("x".into(), x.clone())]).unwrap();
        assert_eq!(graph.outputs.len(), again.outputs.len(), "{name}");
        for (ours, read) in run(&graph).iter().zip(run(&again)) {
            assert_eq!(ours.dtype(), read.dtype(), "{name}");
            // Some operators are read as others that compute the same function with other rounding.
            assert!(common::distance(ours, &read) < 1e-6, "{name}");
        }
    }
}
