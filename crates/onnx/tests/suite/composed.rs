//! Operators that are composed of others at import: results of ONNX Runtime.

use crate::files::{field, float, int, model, node, refused};
use cytoscope_graph::{Graph, GraphErrorKind, GraphLimits, GridMode, GridPadding, GridSampleAttrs, Op, Tensor};
use cytoscope_testkit::largest_difference;

const X: [f32; 6] = [-1.5, 0.25, 2.0, -0.5, 0.75, -3.0];

/// Declares x of shape (1, 3, 1, 2).
fn declared() -> Vec<u8> {
    let lengths: Vec<u8> = [1, 3, 1, 2].into_iter().flat_map(|n| field(1, &int(1, n))).collect();
    field(11, &[field(1, b"x"), field(2, &field(1, &[int(1, 1), field(2, &lengths)].concat()))].concat())
}

/// Runs one node, whose inputs are x and the constant s of two elements.
fn run(op: &str, inputs: &[&str], opset: u64, attributes: &[Vec<u8>]) -> Vec<f64> {
    let attributes: Vec<u8> = attributes.iter().flat_map(|a| field(5, a)).collect();
    let s: Vec<u8> = [1.0f32, 2.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let s = field(5, &[int(1, 2), int(2, 1), field(8, b"s"), field(9, &s)].concat());
    let output = field(12, &field(1, b"y"));
    let graph = [declared(), output, s, node(op, inputs, &["y"], &attributes)].concat();
    let file = [field(7, &graph), field(8, &int(2, opset))].concat();
    let graph = cytoscope_onnx::from_bytes(&file, None, &GraphLimits::default()).unwrap();
    let x = Tensor::new([1, 3, 1, 2], X.to_vec()).unwrap();
    cytoscope_reference::run(&graph, &[("x".to_owned(), x)]).unwrap().remove(0).to_f64_vec()
}

fn number(name: &str, value: f32) -> Vec<u8> {
    [field(1, name.as_bytes()), float(2, value), int(20, 1)].concat()
}

fn whole(name: &str, value: u64) -> Vec<u8> {
    [field(1, name.as_bytes()), int(3, value), int(20, 2)].concat()
}

#[test]
fn composed_operators_compute_what_onnx_runtime_does() {
    let equation = [field(1, b"equation"), field(4, b"...cd,...ed->...ce"), int(20, 3)].concat();
    let axes = [field(1, b"axes"), int(8, 1), int(20, 7)].concat();
    let response = [whole("size", 3), number("alpha", 0.5), number("beta", 0.75), number("bias", 1.0)];
    let nothing = [whole("detect_negative", 0), whole("detect_positive", 0)];
    let cases: [(&str, Vec<f64>, Vec<f64>); 9] = [
        (
            "LRN",
            run("LRN", &["x"], 17, &response),
            vec![-0.878_218_5, 0.240_659_2, 1.132_187, -0.247_627_5, 0.490_737_9, -1.490_33],
        ),
        (
            "MeanVarianceNormalization",
            run("MeanVarianceNormalization", &["x"], 17, &[axes]),
            vec![-1.323_501, 0.959_616_2, 1.093_327, 0.419_832_1, 0.230_174_2, -1.379_448],
        ),
        (
            "Shrink",
            run("Shrink", &["x"], 17, &[number("lambd", 0.4), number("bias", 0.1)]),
            vec![-1.4, 0.0, 1.9, -0.4, 0.65, -2.9],
        ),
        ("IsInf", run("IsInf", &["x"], 20, &nothing), vec![0.0; 6]),
        ("GlobalLpPool", run("GlobalLpPool", &["x"], 17, &[whole("p", 1)]), vec![1.75, 2.5, 3.75]),
        ("Hardmax", run("Hardmax", &["x"], 17, &[whole("axis", 1)]), vec![0.0, 1.0, 1.0, 0.0, 0.0, 0.0]),
        (
            "Asinh",
            run("Asinh", &["x"], 17, &[]),
            vec![-1.194_763, 0.247_466_5, 1.443_635, -0.481_211_8, std::f64::consts::LN_2, -1.818_447],
        ),
        ("Einsum", run("Einsum", &["x", "x"], 17, &[equation]), vec![2.3125, 4.25, 9.5625]),
        (
            "RMSNormalization",
            run("RMSNormalization", &["x", "s"], 23, &[number("epsilon", 0.5)]),
            vec![-1.165_543, 0.388_514_3, 1.234_427, -0.617_213_4, 0.326_357, -2.610_856],
        ),
    ];
    for (name, got, wanted) in cases {
        let worst = largest_difference(&got, &wanted);
        assert!(worst < 2e-6, "{name}: {got:?}, expected {wanted:?}");
    }
}

#[test]
fn einstein_sums_repeat_axes_of_length_1_as_by_onnx_runtime() {
    let sum = |equation: &str, a: (&[usize], &[f32]), b: (&[usize], &[f32])| {
        let [a, b] = [a, b].map(|(shape, values)| Tensor::new(shape, values.to_vec()).unwrap());
        let op = Op::Einsum { equation: equation.to_owned() };
        cytoscope_reference::eval(&op, &[Some(&a), Some(&b)], 1).unwrap().remove(0)
    };
    let products = sum("bij,bjk->bik", (&[1, 1, 2], &[1.0, 2.0]), (&[2, 2, 1], &[1.0, 2.0, 3.0, 4.0]));
    assert_eq!(products, Tensor::new([2, 1, 1], vec![5.0f32, 11.0]).unwrap());
    let products = sum("ij,j->i", (&[2, 1], &[1.0, 2.0]), (&[3], &[1.0, 2.0, 3.0]));
    assert_eq!(products, Tensor::new([2], vec![6.0f32, 12.0]).unwrap());
}

#[test]
fn axes_that_do_not_exist_and_axes_of_extreme_length_are_refused() {
    let output = || field(12, &field(1, b"y"));
    let axis = field(5, &whole("axis", (1u64 << 40).wrapping_neg()));
    for op in ["RMSNormalization", "Hardmax"] {
        let file = model(&[declared(), output(), node(op, &["x", "x"], &["y"], &axis)]);
        refused(&file, GraphErrorKind::Malformed, "4 axes");
    }
    // The lengths are not limited together, because the first one is free.
    let lengths = [field(1, &field(2, b"n")), field(1, &int(1, 1 << 40))].concat();
    let x = [field(1, b"x"), field(2, &field(1, &[int(1, 1), field(2, &lengths)].concat()))].concat();
    let file = model(&[field(11, &x), output(), node("Hardmax", &["x"], &["y"], &[])]);
    refused(&file, GraphErrorKind::OverLimit, "Hardmax");
}

/// Samples the squares of 1, 2, … at places, after writing and reading the graph.
fn sampled(attrs: GridSampleAttrs, lengths: &[usize], places: &[f32]) -> Vec<f64> {
    let axes = lengths.len();
    let shape = [&[1, 1][..], lengths].concat();
    let mut graph = Graph::new("g");
    let count: usize = lengths.iter().product();
    let squares: Vec<f32> = (1..=count).map(|i| (i * i) as f32).collect();
    let x = graph.add_initializer("x", Tensor::new(shape, squares).unwrap());
    let mut grid = vec![1; axes + 2];
    (grid[axes], grid[axes + 1]) = (places.len() / axes, axes);
    let grid = graph.add_initializer("grid", Tensor::new(grid, places.to_vec()).unwrap());
    let y = graph.push("y", Op::GridSample(attrs), &[Some(x), Some(grid)]);
    graph.outputs.push(y);
    let bytes = cytoscope_onnx::to_bytes(&graph).unwrap();
    let graph = cytoscope_onnx::from_bytes(&bytes, None, &GraphLimits::default()).unwrap();
    cytoscope_reference::run(&graph, &[]).unwrap().remove(0).to_f64_vec()
}

#[test]
fn grids_are_sampled_as_by_onnx_runtime() {
    use GridMode::{Linear, Nearest};
    use GridPadding::{Border, Reflection, Zeros};
    let plane: ([usize; 2], [f32; 10]) = ([2, 3], [-1.0, -1.0, 0.3, -0.2, 1.4, 0.9, -2.6, 0.1, 0.5, 1.7]);
    let volume: ([usize; 3], [f32; 9]) = ([2, 2, 3], [-0.3, 0.2, 0.6, 1.2, -0.4, -1.5, 0.0, 0.0, 0.0]);
    let cases = [
        (Linear, Zeros, false, [0.25, 13.36, 0.0, 0.0, 0.0], [85.734, 0.0, 53.5]),
        (Linear, Zeros, true, [1.0, 14.62, 20.79, 0.0, 19.825], [77.02, 10.26, 53.5]),
        (Linear, Border, false, [1.0, 13.36, 36.0, 10.0, 33.25], [95.26, 11.7, 53.5]),
        (Linear, Border, true, [1.0, 14.62, 34.65, 9.25, 30.5], [77.02, 17.1, 53.5]),
        (Linear, Reflection, false, [1.0, 13.36, 34.9, 24.34, 28.15], [95.26, 11.7, 53.5]),
        (Linear, Reflection, true, [1.0, 14.62, 30.37, 20.53, 22.1], [77.02, 35.84, 53.5]),
        (Nearest, Zeros, false, [1.0, 4.0, 0.0, 0.0, 0.0], [121.0, 0.0, 4.0]),
        (Nearest, Zeros, true, [1.0, 4.0, 36.0, 0.0, 36.0], [121.0, 9.0, 4.0]),
        (Nearest, Border, false, [1.0, 4.0, 36.0, 16.0, 36.0], [121.0, 9.0, 4.0]),
        (Nearest, Reflection, true, [1.0, 4.0, 36.0, 36.0, 36.0], [121.0, 9.0, 4.0]),
    ];
    for (mode, padding, align_corners, plane_values, volume_values) in cases {
        let attrs = GridSampleAttrs { mode, padding, align_corners };
        let got = [sampled(attrs, &plane.0, &plane.1), sampled(attrs, &volume.0, &volume.1)].concat();
        let wanted = [&plane_values[..], &volume_values].concat();
        let worst = largest_difference(&got, &wanted);
        assert!(worst < 1e-4, "{attrs:?}: {got:?}, expected {wanted:?}");
    }
}

/// An initializer with these lengths, of the ONNX type `code`.
fn stored(name: &str, code: u64, lengths: &[u64], raw: &[u8]) -> Vec<u8> {
    let lengths: Vec<u8> = lengths.iter().flat_map(|n| int(1, *n)).collect();
    field(5, &[lengths, int(2, code), field(8, name.as_bytes()), field(9, raw)].concat())
}

#[test]
fn a_one_hot_index_counts_from_the_end_where_it_is_negative() {
    let whole_numbers = |values: &[i64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let values: Vec<u8> = [0.5f32, 2.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let run = |attributes: &[u8]| {
        let file = model(&[
            stored("indices", 7, &[3], &whole_numbers(&[1, -1, 5])),
            stored("depth", 7, &[], &whole_numbers(&[3])),
            stored("values", 1, &[2], &values),
            field(12, &field(1, b"y")),
            node("OneHot", &["indices", "depth", "values"], &["y"], attributes),
        ]);
        let graph = cytoscope_onnx::from_bytes(&file, None, &GraphLimits::default()).unwrap();
        cytoscope_reference::run(&graph, &[]).unwrap().remove(0)
    };
    let rows = [0.5f32, 2.0, 0.5, 0.5, 0.5, 2.0, 0.5, 0.5, 0.5];
    assert_eq!(run(&[]), Tensor::new([3, 3], rows.to_vec()).unwrap());
    let columns: Vec<f32> = (0..9).map(|i| rows[i % 3 * 3 + i / 3]).collect();
    assert_eq!(run(&field(5, &whole("axis", 0))), Tensor::new([3, 3], columns).unwrap());
}

#[test]
fn a_kernel_other_than_that_of_the_weight_is_refused() {
    let read = |edge: u64| {
        let kernel = field(5, &[field(1, b"kernel_shape"), int(8, edge), int(8, edge), int(20, 7)].concat());
        let file = model(&[
            stored("x", 1, &[1, 1, 3, 3], &[0; 36]),
            stored("w", 1, &[1, 1, 2, 2], &[0; 16]),
            field(12, &field(1, b"y")),
            node("Conv", &["x", "w"], &["y"], &kernel),
        ]);
        cytoscope_onnx::from_bytes(&file, None, &GraphLimits::default())
    };
    assert!(read(2).is_ok());
    let error = read(3).unwrap_err();
    assert_eq!(error.kind(), GraphErrorKind::Malformed);
    assert!(error.to_string().contains("the kernel of the weight is [2, 2]"), "{error}");
}

/// Runs one node of ONNX Runtime's domain on constants.
fn run_contributed(op: &str, inputs: &[&str], attributes: &[Vec<u8>]) -> Vec<f64> {
    let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let constants = [
        stored("a", 2, &[1, 2], &[10, 200]),
        stored("b", 2, &[1, 2], &[4, 6]),
        stored("w", 3, &[2, 2], &[3, 254, 1, 4]),
        stored("d", 3, &[1, 2], &[252, 6]),
        stored("c", 6, &[2], &[8, 0, 0, 0, 252, 255, 255, 255]),
        stored("sa", 1, &[], &floats(&[0.5])),
        stored("sb", 1, &[], &floats(&[0.25])),
        stored("sw", 1, &[2], &floats(&[0.5, 0.25])),
        stored("sy", 1, &[], &floats(&[0.5])),
        stored("za", 2, &[], &[10]),
        stored("zb", 2, &[], &[4]),
        stored("zw", 3, &[2], &[0, 0]),
        stored("zy", 2, &[], &[3]),
        stored("z16", 4, &[], &[100, 0]),
        stored("share", 1, &[], &floats(&[1.0 / 256.0])),
        stored("z0", 2, &[], &[0]),
        stored("chosen", 9, &[1, 2], &[1, 0]),
        stored("row", 1, &[1, 2], &floats(&[1.0, -2.0])),
        stored("square", 1, &[2, 2], &floats(&[1.0, 2.0, 3.0, 4.0])),
        stored("bias", 1, &[2], &floats(&[0.5, 1.0])),
        stored("image", 1, &[1, 1, 1, 2], &floats(&[1.0, -2.0])),
        stored("kernel", 1, &[1, 1, 1, 1], &floats(&[2.0])),
        stored("added", 1, &[1, 1, 1, 2], &floats(&[0.5, 0.5])),
    ]
    .concat();
    let extra: Vec<u8> = attributes.iter().flat_map(|a| field(5, a)).chain(field(7, b"com.microsoft")).collect();
    let graph = [constants, field(12, &field(1, b"y")), node(op, inputs, &["y"], &extra)].concat();
    let domain = field(8, &[field(1, b"com.microsoft"), int(2, 1)].concat());
    let file = [field(7, &graph), field(8, &int(2, 17)), domain].concat();
    let graph = cytoscope_onnx::from_bytes(&file, None, &GraphLimits::default()).unwrap();
    cytoscope_reference::run(&graph, &[]).unwrap().remove(0).to_f64_vec()
}

#[test]
fn quantized_operators_of_onnx_runtime_compute_what_it_does() {
    let two = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"];
    assert_eq!(run_contributed("QLinearAdd", &two, &[]), [3.0, 194.0]);
    assert_eq!(run_contributed("QLinearMul", &two, &[]), [3.0, 98.0]);
    let parts = ["sy", "zy", "a", "sa", "za", "b", "sb", "zb"];
    assert_eq!(run_contributed("QLinearConcat", &parts, &[whole("axis", 1)]), [3.0, 193.0, 3.0, 4.0]);
    let leaky = run_contributed("QLinearLeakyRelu", &["b", "sa", "za", "sy", "zy"], &[number("alpha", 0.5)]);
    assert_eq!(leaky, [0.0, 1.0]);
    assert_eq!(run_contributed("QLinearSigmoid", &["a", "sb", "za", "sb", "zy"], &[]), [5.0, 7.0]);
    let layer = ["a", "sa", "za", "w", "sw", "zw", "c", "sy", "zy"];
    assert_eq!(run_contributed("QGemm", &layer, &[whole("transB", 1)]), [0.0, 192.0]);
    assert_eq!(run_contributed("QGemm", &layer[..7], &[]), [49.5, 94.5]);
    // The bias is multiplied, too.
    assert_eq!(run_contributed("QGemm", &layer[..7], &[number("alpha", 2.0)]), [99.0, 189.0]);
    let soft = |axis: u64, opset: u64| {
        let inputs = ["b", "sb", "zb", "share", "z0"];
        run_contributed("QLinearSoftmax", &inputs, &[whole("axis", axis), whole("opset", opset)])
    };
    assert_eq!(soft(1, 17), [97.0, 159.0]);
    assert_eq!(soft(0, 17), [255.0, 255.0]);
    assert_eq!(soft(0, 12), [97.0, 159.0], "before opset 13, all axes from the axis on");
    let either = ["chosen", "a", "sa", "za", "b", "sb", "zb", "sy", "zy"];
    assert_eq!(run_contributed("QLinearWhere", &either, &[]), [3.0, 4.0]);
    assert_eq!(run_contributed("QuantizeLinear", &["row", "sa", "z16"], &[]), [102.0, 96.0]);
    assert_eq!(run_contributed("DequantizeLinear", &["a", "sa", "za"], &[]), [0.0, 95.0]);
}

#[test]
fn quantized_results_without_a_zero_point_have_the_type_of_the_input() {
    // Signed bytes: -4 and 6.
    assert_eq!(run_contributed("QLinearAdd", &["d", "sa", "", "d", "sa", "", "sy"], &[]), [-8.0, 12.0]);
    let joined = run_contributed("QLinearConcat", &["sy", "", "d", "sa", "", "d", "sa", ""], &[whole("axis", 1)]);
    assert_eq!(joined, [-4.0, 6.0, -4.0, 6.0]);
    assert_eq!(run_contributed("QLinearWhere", &["chosen", "d", "sa", "", "d", "sa", "", "sy"], &[]), [-4.0, 6.0]);
    // Unsigned bytes.
    assert_eq!(run_contributed("QLinearAdd", &["b", "sa", "", "b", "sa", "", "sy"], &[]), [8.0, 12.0]);
}

#[test]
fn fused_operators_of_onnx_runtime_compute_what_it_does() {
    let text = |name: &str, value: &str| [field(1, name.as_bytes()), field(4, value.as_bytes()), int(20, 3)].concat();
    let activation = |name: &str, parameters: &[f32]| {
        let parameters: Vec<u8> = parameters.iter().flat_map(|p| float(7, *p)).collect();
        [text("activation", name), [field(1, b"activation_params"), parameters, int(20, 6)].concat()]
    };
    let conv = ["image", "kernel", "", "added"];
    assert_eq!(run_contributed("FusedConv", &conv, &activation("LeakyRelu", &[0.5])), [2.5, -1.75]);
    assert_eq!(run_contributed("FusedConv", &conv[..2], &activation("Clip", &[-1.0, 1.5])), [1.5, -1.0]);
    let leaky = [whole("transB", 1), text("activation", "LeakyRelu"), number("activation_alpha", 0.1)];
    let cases = [
        ("FusedConv", run_contributed("FusedConv", &conv[..2], &activation("HardSigmoid", &[0.1, 0.5])), [0.7, 0.1]),
        ("FusedGemm", run_contributed("FusedGemm", &["row", "square", "bias"], &leaky), [-0.25, -0.4]),
        (
            "FusedMatMul",
            run_contributed("FusedMatMul", &["row", "square"], &[whole("transB", 1), number("alpha", 0.5)]),
            [-1.5, -2.5],
        ),
        ("Gelu", run_contributed("Gelu", &["row"], &[]), [0.841_344_7, -0.045_500_28]),
        ("BiasGelu", run_contributed("BiasGelu", &["row", "bias"], &[]), [1.399_789_2, -0.158_655_26]),
    ];
    for (name, got, wanted) in cases {
        assert!(largest_difference(&got, &wanted) < 1e-6, "{name}: {got:?}, expected {wanted:?}");
    }
}
