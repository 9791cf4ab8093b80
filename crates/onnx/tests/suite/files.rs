//! Broken, hostile and unsupported files are refused with the right kind of error and never crash.

use cytoscope_builders::{DynUNet, Weights, dynunet};
use cytoscope_graph::{GraphErrorKind, GraphLimits, Tensor};

/// Encodes a length-delimited protobuf field by hand.
pub fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = if number < 16 { vec![number << 3 | 2] } else { vec![number << 3 | 0x82, number >> 4] };
    let mut n = bytes.len();
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out.extend(bytes);
    out
}

pub fn int(number: u8, mut value: u64) -> Vec<u8> {
    let mut out = if number < 16 { vec![number << 3] } else { vec![number << 3 | 0x80, number >> 4] };
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

pub fn node(op: &str, inputs: &[&str], outputs: &[&str], extra: &[u8]) -> Vec<u8> {
    let mut n: Vec<u8> = inputs.iter().flat_map(|i| field(1, i.as_bytes())).collect();
    n.extend(outputs.iter().flat_map(|o| field(2, o.as_bytes())));
    n.extend(field(3, format!("the_{op}").as_bytes()));
    n.extend(field(4, op.as_bytes()));
    n.extend(extra);
    field(1, &n)
}

pub fn value(number: u8, name: &str) -> Vec<u8> {
    let kind = field(2, &field(1, &int(1, 1)));
    field(number, &[field(1, name.as_bytes()), kind].concat())
}

pub fn model(graph: &[Vec<u8>]) -> Vec<u8> {
    [field(7, &graph.concat()), field(8, &int(2, 17))].concat()
}

pub fn refused(bytes: &[u8], kind: GraphErrorKind, says: &str) {
    let error = cytoscope_onnx::from_bytes(bytes, None, &GraphLimits::default()).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "\"{error}\" does not say \"{says}\"");
}

#[test]
fn broken_graphs_are_malformed() {
    use GraphErrorKind::Malformed;
    let (x, y) = (value(11, "x"), value(12, "y"));
    refused(b"", Malformed, "no graph");
    refused(b"\x89PNG\r\n\x1a\n", Malformed, "protobuf");
    refused(&[0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f], Malformed, "exceeds its message");
    let cycle = [x.clone(), y.clone(), node("Add", &["x", "b"], &["a"], &[]), node("Relu", &["a"], &["b"], &[])];
    refused(&model(&cycle), Malformed, "cycle");
    refused(&model(&[x.clone(), y.clone(), node("Relu", &["gone"], &["y"], &[])]), Malformed, "\"gone\"");
    let twice = [x.clone(), y.clone(), node("Relu", &["x"], &["y"], &[]), node("Relu", &["x"], &["y"], &[])];
    refused(&model(&twice), Malformed, "twice");
    refused(&model(&[x.clone(), x.clone(), y.clone(), node("Relu", &["x"], &["y"], &[])]), Malformed, "\"x\"");
    refused(&model(&[x, y]), Malformed, "\"y\" is never produced");
}

#[test]
fn unsupported_features_are_named() {
    use GraphErrorKind::Unsupported;
    let (x, y) = (value(11, "x"), value(12, "y"));
    for op in ["If", "Loop", "Scan", "NonMaxSuppression"] {
        let bytes = model(&[x.clone(), y.clone(), node(op, &["x"], &["y"], &[])]);
        refused(&bytes, Unsupported, op);
        refused(&bytes, Unsupported, &format!("the_{op}"));
        refused(&bytes, Unsupported, "opset 17");
    }
    let unknown = model(&[x.clone(), y.clone(), node("NonMaxSuppression", &["x"], &["y"], &[])]);
    refused(&unknown, Unsupported, "export the model without it");
    let foreign = node("Gelu", &["x"], &["y"], &field(7, b"com.example"));
    refused(&model(&[x.clone(), y.clone(), foreign]), Unsupported, "com.example.Gelu");
    let blocked = node("Conv", &["x"], &["y"], &field(7, b"com.microsoft.nchwc"));
    refused(
        &model(&[x.clone(), y.clone(), blocked]),
        Unsupported,
        "use the model from which ONNX Runtime made this file",
    );
    let attribute = field(5, &[field(1, b"surprise"), int(3, 1), int(20, 2)].concat());
    refused(&model(&[x, y, node("Relu", &["x"], &["y"], &attribute)]), Unsupported, "surprise");
}

#[test]
fn unsupported_nodes_on_which_no_output_depends_are_left_out() {
    let (x, y) = (value(11, "x"), value(12, "y"));
    let places = node("NonZero", &["x"], &["places"], &[]);
    let rows = node("Transpose", &["places"], &["rows"], &[]);
    let relu = node("Relu", &["x"], &["y"], &[]);
    let mut graph = vec![x, y, places, rows, relu];
    assert_eq!(run(&model(&graph), Tensor::vector(vec![-1.0f32, 2.0])), Tensor::vector(vec![0.0f32, 2.0]));
    graph.push(value(12, "rows"));
    refused(&model(&graph), GraphErrorKind::Unsupported, "NonZero");
}

#[test]
fn an_operator_without_a_required_attribute_is_malformed() {
    let required = [
        ("Concat", "axis"),
        ("DepthToSpace", "blocksize"),
        ("SpaceToDepth", "blocksize"),
        ("GroupNormalization", "num_groups"),
        ("LRN", "size"),
        ("Einsum", "equation"),
    ];
    for (op, attribute) in required {
        let bytes = model(&[value(11, "x"), value(12, "y"), node(op, &["x"], &["y"], &[])]);
        refused(&bytes, GraphErrorKind::Malformed, &format!("node \"the_{op}\": {op} without {attribute}"));
    }
}

#[test]
fn the_nodes_that_a_node_becomes_are_limited_and_do_not_repeat_its_long_name() {
    let name = "\u{e9}".repeat(50_000);
    let inputs = field(1, b"x").repeat(100);
    let sum = field(1, &[inputs, field(2, b"y"), field(3, name.as_bytes()), field(4, b"Sum")].concat());
    let bytes = model(&[value(11, "x"), value(12, "y"), sum]);
    let graph = cytoscope_onnx::from_bytes(&bytes, None, &GraphLimits::default()).unwrap();
    assert_eq!((graph.nodes.len(), graph.nodes.last().map(|node| node.name == name)), (99, Some(true)));
    assert!(graph.nodes.iter().map(|node| node.name.len()).sum::<usize>() < 2 * name.len());
    let limits = GraphLimits { nodes: 90, ..GraphLimits::default() };
    let error = cytoscope_onnx::from_bytes(&bytes, None, &limits).unwrap_err();
    assert_eq!(error.kind(), GraphErrorKind::OverLimit, "{error}");
}

#[test]
fn an_attribute_that_is_neither_0_nor_1_where_a_choice_was_expected_is_malformed() {
    let read = |choice: u64| {
        let attribute = field(5, &[field(1, b"keepdims"), int(3, choice), int(20, 2)].concat());
        let bytes = model(&[value(11, "x"), value(12, "y"), node("ReduceMax", &["x"], &["y"], &attribute)]);
        cytoscope_onnx::from_bytes(&bytes, None, &GraphLimits::default())
    };
    assert!([0, 1].into_iter().all(|choice| read(choice).is_ok()));
    for choice in [2, (-1i64).cast_unsigned()] {
        let error = read(choice).unwrap_err();
        assert_eq!(error.kind(), GraphErrorKind::Malformed);
        assert!(error.to_string().contains("attribute \"keepdims\" is not 0 or 1"), "{error}");
    }
}

pub fn float(number: u8, value: f32) -> Vec<u8> {
    [&[number << 3 | 5][..], &value.to_le_bytes()].concat()
}

/// Attributes `then_branch`, the negative of value `x`, and `else_branch`, its absolute value.
fn branches(x: &str) -> Vec<u8> {
    let branch = |name: &str, op: &str| {
        let graph = [node(op, &[x], &["t"], &[]), value(12, "t")].concat();
        field(5, &[field(1, name.as_bytes()), field(6, &graph), int(20, 5)].concat())
    };
    [branch("then_branch", "Neg"), branch("else_branch", "Abs")].concat()
}

fn run(file: &[u8], x: Tensor) -> Tensor {
    let graph = cytoscope_onnx::from_bytes(file, None, &GraphLimits::default()).unwrap();
    cytoscope_reference::run(&graph, &[("x".to_owned(), x)]).unwrap().remove(0)
}

#[test]
fn functions_of_the_model_are_inserted_with_the_attributes_of_their_calls() {
    let alpha = |value: f32| field(5, &[field(1, b"alpha"), float(2, value), int(20, 1)].concat());
    let referring = field(5, &[field(1, b"alpha"), field(21, b"alpha"), int(20, 1)].concat());
    // The name of a value inside the function is that of one outside of it.
    let inner = [field(1, b"a"), field(2, b"h"), field(4, b"LeakyRelu"), referring.clone()].concat();
    let default = field(11, &[field(1, b"alpha"), float(2, 0.25), int(20, 1)].concat());
    let names = [field(1, b"Leaky"), field(10, b"my"), field(4, b"a"), field(5, b"h")].concat();
    let function = [names, field(9, &int(2, 17)), field(7, &inner), default].concat();
    let call = |x: &str, y: &str, alpha: &[u8]| node("Leaky", &[x], &[y], &[&field(7, b"my")[..], alpha].concat());
    let nodes = [call("x", "h", &alpha(0.5)), call("h", "y", &[])].concat();
    let graph = field(7, &[value(11, "x"), value(12, "y"), nodes].concat());
    let file = [graph, field(8, &int(2, 17)), field(25, &function)].concat();
    assert_eq!(run(&file, Tensor::vector(vec![-8.0f32, 2.0])), Tensor::vector(vec![-1.0f32, 2.0]));
    let outside = node("LeakyRelu", &["x"], &["y"], &referring);
    refused(&model(&[value(11, "x"), value(12, "y"), outside]), GraphErrorKind::Malformed, "a function");
    // A function in an opset of the future.
    let inner = [field(1, b"a"), field(2, b"h"), field(4, b"Relu")].concat();
    let names = [field(1, b"Leaky"), field(10, b"my"), field(4, b"a"), field(5, b"h")].concat();
    let function = [names, field(9, &int(2, 99)), field(7, &inner)].concat();
    let graph = field(7, &[value(11, "x"), value(12, "y"), call("x", "y", &[])].concat());
    refused(&[graph, field(8, &int(2, 17)), field(25, &function)].concat(), GraphErrorKind::Unsupported, "opset 99");
    // A function that calls itself.
    let inner = [field(1, b"a"), field(2, b"h"), field(4, b"Leaky"), field(7, b"my")].concat();
    let names = [field(1, b"Leaky"), field(10, b"my"), field(4, b"a"), field(5, b"h")].concat();
    let function = [names, field(7, &inner)].concat();
    let graph = field(7, &[value(11, "x"), value(12, "y"), call("x", "y", &[])].concat());
    refused(&[graph, field(8, &int(2, 17)), field(25, &function)].concat(), GraphErrorKind::Unsupported, "deep");
}

/// The size is such that work for each pair of a call and a declared name would take minutes.
#[test]
fn values_of_functions_get_unused_names_although_very_many_names_are_declared() {
    const CALLS: usize = 10_000;
    const NAMES: usize = 200_000;
    let inner = [field(1, b"a"), field(2, b"h"), field(4, b"Relu")].concat();
    let names = [field(1, b"F"), field(10, b"my"), field(4, b"a"), field(5, b"h")].concat();
    let function = [names, field(9, &int(2, 17)), field(7, &inner)].concat();
    let call = |i: usize| {
        let (x, y) = (format!("v{i}"), format!("v{}", i + 1));
        node("F", &[x.as_str()], &[y.as_str()], &field(7, b"my"))
    };
    let nodes: Vec<u8> = (0..CALLS).flat_map(call).collect();
    let declared: Vec<u8> = (0..NAMES).flat_map(|i| value(13, &format!("h_{i}"))).collect();
    let graph = field(7, &[value(11, "v0"), value(12, &format!("v{CALLS}")), declared, nodes].concat());
    let file = [graph, field(8, &int(2, 17)), field(25, &function)].concat();
    let graph = cytoscope_onnx::from_bytes(&file, None, &GraphLimits::default()).unwrap();
    assert!(graph.nodes.len() >= CALLS);
}

#[test]
fn the_branch_of_a_known_condition_is_inserted() {
    let x = Tensor::new([1, 2], vec![-8.0f32, 2.0]).unwrap();
    for (condition, expected) in [(1, [8.0f32, -2.0]), (0, [8.0, 2.0])] {
        let constant = field(5, &[int(2, 9), field(8, b"c"), field(9, &[condition])].concat());
        let nodes = [node("Identity", &["x"], &["h"], &[]), node("If", &["c"], &["y"], &branches("h"))];
        let graph = [value(11, "x"), value(12, "y"), constant, nodes.concat()];
        assert_eq!(run(&model(&graph), x.clone()), Tensor::new([1, 2], expected.to_vec()).unwrap());
    }
    // The length of one axis is known, the other one is not.
    let shape = field(2, &[field(1, &field(2, b"n")), field(1, &int(1, 2))].concat());
    let declared = [field(1, b"x"), field(2, &field(1, &[int(1, 1), shape].concat()))].concat();
    let whole = |name: &str, n: u8| {
        field(5, &[int(2, 7), field(8, name.as_bytes()), field(9, &[n, 0, 0, 0, 0, 0, 0, 0])].concat())
    };
    let file = |axis: u8| {
        let nodes = [
            node("Shape", &["x"], &["s"], &[]),
            node("Gather", &["s", "axis"], &["n"], &[]),
            node("Equal", &["n", "two"], &["c"], &[]),
            node("If", &["c"], &["y"], &branches("x")),
        ];
        let constants = [whole("axis", axis), whole("two", 2)].concat();
        model(&[field(11, &declared), value(12, "y"), constants, nodes.concat()])
    };
    assert_eq!(run(&file(1), x).to_f64_vec(), [8.0, -2.0]);
    refused(&file(0), GraphErrorKind::Unsupported, "length of an axis");
}

/// The example `resize_downsample_nearest` of the specification of `Resize` in opset 10.
#[test]
fn the_first_resize_rounds_positions_up_where_the_length_shrinks() {
    let file = |scales: [f32; 4]| {
        let raw: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let scales = field(5, &[int(1, 4), int(2, 1), field(8, b"s"), field(9, &raw)].concat());
        let resize = node("Resize", &["x", "s"], &["y"], &[]);
        let graph = [value(11, "x"), value(12, "y"), scales, resize].concat();
        [field(7, &graph), field(8, &int(2, 10))].concat()
    };
    let graph = cytoscope_onnx::from_bytes(&file([1.0, 1.0, 0.6, 0.6]), None, &GraphLimits::default()).unwrap();
    let x = Tensor::new([1, 1, 2, 4], (1..=8).map(|i| i as f32).collect::<Vec<f32>>()).unwrap();
    let y = cytoscope_reference::run(&graph, &[("x".to_owned(), x)]).unwrap().remove(0);
    assert_eq!((y.shape(), y.as_f32()), (&[1, 1, 1, 2][..], Some(&[1.0, 3.0][..])));
    refused(&file([1.0, 1.0, 2.0, 0.5]), GraphErrorKind::Unsupported, "above and below 1");
}

#[test]
fn values_that_do_not_fit_their_type_are_refused() {
    let (x, y) = (value(11, "x"), value(12, "y"));
    // 300 as an int8, in a field of 32-bit integers.
    let stored = |byte: u64| {
        let t = [int(1, 1), int(2, 3), field(8, b"w"), int(5, byte)].concat();
        model(&[field(5, &t), y.clone(), node("Identity", &["w"], &["y"], &[])])
    };
    refused(&stored(300), GraphErrorKind::Malformed, "tensor \"w\" has a value out of the range of its type int8");
    let minus_five =
        cytoscope_onnx::from_bytes(&stored((-5i64).cast_unsigned()), None, &GraphLimits::default()).unwrap();
    assert_eq!(cytoscope_reference::run(&minus_five, &[]).unwrap(), [Tensor::vector(vec![-5i8])]);
    // A cast to a type whose number would be that of float in 32 bits.
    let to = field(5, &[field(1, b"to"), int(3, (1 << 32) + 1), int(20, 2)].concat());
    let cast = model(&[x, y, node("Cast", &["x"], &["y"], &to)]);
    refused(&cast, GraphErrorKind::Unsupported, "a cast to ONNX type 4294967297");
}

#[test]
fn a_file_of_a_current_version_must_state_its_opset() {
    let graph = [value(11, "x"), value(12, "y"), node("Relu", &["x"], &["y"], &[])].concat();
    let file = |version: u64| [int(1, version), field(7, &graph)].concat();
    refused(&file(10), GraphErrorKind::Malformed, "does not state the opset");
    let first = cytoscope_onnx::from_bytes(&file(2), None, &GraphLimits::default()).unwrap();
    assert_eq!(first.opset, 1);
}

#[test]
fn a_graph_with_an_input_of_unknown_type_is_not_written() {
    let mut graph = cytoscope_graph::Graph::new("g");
    let x = graph.add_value("x", None, None);
    graph.inputs.push(x);
    graph.outputs.push(x);
    let error = cytoscope_onnx::to_bytes(&graph).unwrap_err();
    assert!(error.to_string().contains("type of \"x\""), "{error}");
}

#[test]
fn declared_sizes_are_checked_before_memory_is_taken() {
    let y = value(12, "y");
    let tensor = |dims: &[u64], raw: &[u8]| {
        let mut t: Vec<u8> = dims.iter().flat_map(|&d| int(1, d)).collect();
        t.extend([int(2, 1), field(8, b"w"), field(9, raw)].concat());
        field(5, &t)
    };
    let with = |t: Vec<u8>| model(&[t, y.clone(), node("Relu", &["w"], &["y"], &[])]);
    refused(&with(tensor(&[1 << 40, 1 << 40], &[0; 4])), GraphErrorKind::OverLimit, "tensor_elements");
    refused(&with(tensor(&[u64::MAX >> 1; 9], &[0; 4])), GraphErrorKind::OverLimit, "tensor_elements");
    refused(&with(tensor(&[1 << 30], &[0; 4])), GraphErrorKind::Malformed, "has 4 bytes");
    refused(&with(tensor(&[u64::MAX], &[0; 4])), GraphErrorKind::Malformed, "negative");
    refused(&with(tensor(&[1; 40], &[0; 4])), GraphErrorKind::OverLimit, "rank");
    let good = with(tensor(&[2], &[0; 8]));
    refused(&[good.clone(), field(8, &[]).repeat(2000)].concat(), GraphErrorKind::Malformed, "operator sets");
    cytoscope_onnx::from_bytes(&good, None, &GraphLimits::default()).unwrap();
    for (limits, name) in [
        (GraphLimits { model_bytes: 8, ..GraphLimits::default() }, "model_bytes"),
        (GraphLimits { nodes: 0, ..GraphLimits::default() }, "nodes"),
        (GraphLimits { tensor_elements: 1, ..GraphLimits::default() }, "tensor_elements"),
    ] {
        let error = cytoscope_onnx::from_bytes(&good, None, &limits).unwrap_err();
        assert!(error.kind() == GraphErrorKind::OverLimit && error.to_string().contains(name), "{error}");
    }
    // Metadata are refused above the limit, not dropped.
    let limits = GraphLimits { nodes: 3, ..GraphLimits::default() };
    let load = |keys: &[&str]| {
        let entry = |key: &&str| field(14, &[field(1, key.as_bytes()), field(2, b"value")].concat());
        let metadata: Vec<u8> = keys.iter().flat_map(entry).collect();
        cytoscope_onnx::from_bytes(&[good.clone(), metadata].concat(), None, &limits)
    };
    assert_eq!(load(&["a", "b", "c"]).unwrap().metadata.len(), 3);
    let error = load(&["a", "b", "c", "d"]).unwrap_err();
    assert!(error.kind() == GraphErrorKind::OverLimit && error.to_string().contains("metadata"), "{error}");
}

#[test]
fn external_data_stays_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("model");
    std::fs::create_dir(&inside).unwrap();
    let bytes: Vec<u8> = [1.5f32, -2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(folder.path().join("secret.bin"), &bytes).unwrap();
    std::fs::write(inside.join("w.bin"), [&[0; 4], bytes.as_slice()].concat()).unwrap();
    let external = |location: &str, offset: &str| {
        let pair = |k: &str, v: &str| field(13, &[field(1, k.as_bytes()), field(2, v.as_bytes())].concat());
        let parts =
            [int(1, 2), int(2, 1), field(8, b"w"), int(14, 1), pair("location", location), pair("offset", offset)];
        model(&[field(5, &parts.concat()), value(12, "y"), node("Relu", &["w"], &["y"], &[])])
    };
    let load = |location: &str, offset: &str| {
        let path = inside.join("m.onnx");
        std::fs::write(&path, external(location, offset)).unwrap();
        cytoscope_onnx::load(&path, &GraphLimits::default())
    };
    let graph = load("w.bin", "4").unwrap();
    assert_eq!(cytoscope_reference::run(&graph, &[]).unwrap(), [Tensor::vector(vec![1.5f32, 0.0])]);
    let secret = folder.path().join("secret.bin");
    for location in ["../secret.bin", "./../secret.bin", secret.to_str().unwrap(), ""] {
        assert_eq!(load(location, "0").unwrap_err().kind(), GraphErrorKind::Malformed, "{location}");
    }
    assert_eq!(load("w.bin", "8").unwrap_err().kind(), GraphErrorKind::Malformed);
    assert_eq!(load("none.bin", "0").unwrap_err().kind(), GraphErrorKind::Io);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&secret, inside.join("link.bin")).unwrap();
        assert_eq!(load("link.bin", "0").unwrap_err().kind(), GraphErrorKind::Malformed);
    }
    let without = cytoscope_onnx::from_bytes(&external("w.bin", "4"), None, &GraphLimits::default());
    assert_eq!(without.unwrap_err().kind(), GraphErrorKind::Misused);
    // The tensor of a `Constant` may be outside of the file, too.
    let pair = |k: &str, v: &str| field(13, &[field(1, k.as_bytes()), field(2, v.as_bytes())].concat());
    let tensor = [int(1, 2), int(2, 1), int(14, 1), pair("location", "w.bin"), pair("offset", "4")].concat();
    let attribute = field(5, &[field(1, b"value"), field(5, &tensor), int(20, 4)].concat());
    let file = model(&[value(12, "y"), node("Constant", &[], &["w"], &attribute), node("Relu", &["w"], &["y"], &[])]);
    let (graph, files) = cytoscope_onnx::from_bytes_with_files(&file, Some(&inside), &GraphLimits::default()).unwrap();
    assert_eq!(cytoscope_reference::run(&graph, &[]).unwrap(), [Tensor::vector(vec![1.5f32, 0.0])]);
    assert_eq!(files, [inside.join("w.bin")]);
}

#[test]
fn external_data_have_the_stated_checksum() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("w.bin"), [0u8; 8]).unwrap();
    let load = |checksums: [&str; 2]| {
        let pair = |k: &str, v: &str| field(13, &[field(1, k.as_bytes()), field(2, v.as_bytes())].concat());
        let tensor = |name: &str, checksum: &str| {
            let parts = [int(1, 2), int(2, 1), field(8, name.as_bytes()), int(14, 1), pair("location", "w.bin")];
            field(5, &[parts.concat(), pair("checksum", checksum)].concat())
        };
        let tensors = [tensor("v", checksums[0]), tensor("w", checksums[1])];
        let rest = [value(12, "y"), node("Relu", &["w"], &["y"], &[])];
        let bytes = model(&[tensors, rest].concat());
        cytoscope_onnx::from_bytes(&bytes, Some(folder.path()), &GraphLimits::default())
    };
    let digest = "05fe405753166f125559e7c9ac558654f107c7e9";
    load([digest, &digest.to_uppercase()]).unwrap();
    let error = load([digest, "0000000000000000000000000000000000000000"]).unwrap_err();
    assert_eq!(error.kind(), GraphErrorKind::Malformed);
    assert!(error.to_string().contains("tensor \"w\"") && error.to_string().contains(digest), "{error}");
}

#[test]
fn tensors_that_share_external_data_are_limited_together() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("w.bin"), [0u8; 400]).unwrap();
    let tensor = |name: String| {
        let location = field(13, &[field(1, b"location"), field(2, b"w.bin")].concat());
        let parts = [int(1, 100), int(2, 1), field(8, name.as_bytes()), int(14, 1), location];
        field(5, &parts.concat())
    };
    let load = |tensors: usize| {
        let mut graph: Vec<Vec<u8>> = (0..tensors).map(|i| tensor(format!("w{i}"))).collect();
        graph.extend([value(12, "y"), node("Relu", &["w0"], &["y"], &[])]);
        let limits = GraphLimits { model_bytes: 2000, ..GraphLimits::default() };
        cytoscope_onnx::from_bytes(&model(&graph), Some(folder.path()), &limits)
    };
    load(5).unwrap();
    let error = load(6).unwrap_err();
    assert!(error.kind() == GraphErrorKind::OverLimit && error.to_string().contains("external data"), "{error}");
}

/// Every truncation and many single-byte changes of a real file give a graph or an error, never a panic.
#[test]
fn damaged_files_do_not_crash() {
    let config = DynUNet { filters: vec![1, 2], strides: vec![1, 2], ..DynUNet::default() };
    let bytes = cytoscope_onnx::to_bytes(&dynunet(&config, &Weights::Random { seed: 0 }).unwrap()).unwrap();
    let limits = GraphLimits::default();
    for length in (0..bytes.len()).step_by(7) {
        assert!(cytoscope_onnx::from_bytes(&bytes[..length], None, &limits).is_err());
    }
    for index in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[index] ^= 1 << (index % 8);
        let Ok(mut graph) = cytoscope_onnx::from_bytes(&damaged, None, &limits) else { continue };
        let _ = cytoscope_graph_passes::analysis::analyze(&graph);
        let _ = cytoscope_graph_passes::optimize(&mut graph);
        let x = graph.inputs.first().map(|&id| graph.value(id).name.clone()).unwrap_or_default();
        let _ = cytoscope_reference::run(&graph, &[(x, Tensor::new([1, 1, 4, 4, 4], vec![0.5f32; 64]).unwrap())]);
    }
}

#[test]
fn hostile_arguments_are_refused_or_harmless() {
    use cytoscope_graph::{Op, PadMode, Padding, PoolAttrs};
    let x = Tensor::new([1, 1, 4], vec![1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let ints = |v: &[i64]| Tensor::vector(v.to_vec());
    let eval = |op: &Op, rest: &[Tensor]| {
        let inputs: Vec<_> = [&x].into_iter().chain(rest).map(Some).collect();
        cytoscope_reference::eval(op, &inputs, 1)
    };
    let (min, max) = (i64::MIN, i64::MAX);
    for step in [min, max, 1, -1] {
        let arguments = [ints(&[min]), ints(&[max]), ints(&[2]), ints(&[step])];
        let _ = eval(&Op::Slice, &arguments).unwrap();
    }
    assert!(eval(&Op::Slice, &[ints(&[0]), ints(&[4]), ints(&[2]), ints(&[0])]).is_err());
    for mode in [PadMode::Constant, PadMode::Edge, PadMode::Reflect, PadMode::Wrap] {
        assert!(eval(&Op::Pad { mode }, &[ints(&[0, 0, max, 0, 0, 0])]).is_err());
        // No element remains to be repeated.
        let cropped = eval(&Op::Pad { mode }, &[ints(&[0, 0, min, 0, 0, max])]);
        match mode {
            PadMode::Constant => assert_eq!(cropped.unwrap()[0].shape(), [1, 1, 3]),
            _ => assert!(cropped.is_err(), "{mode:?}"),
        }
    }
    let pool = PoolAttrs {
        kernel: vec![1 << 31],
        strides: vec![1 << 31],
        dilations: vec![1],
        padding: Padding::symmetric(vec![1 << 31]),
        ceil_mode: false,
        count_include_pad: true,
        column_major_indices: false,
    };
    assert_eq!(eval(&Op::AveragePool(pool), &[]).unwrap_err().kind(), GraphErrorKind::OverLimit);
    let einsum = Op::Einsum { equation: "abc,def->".into() };
    assert_eq!(eval(&einsum, std::slice::from_ref(&x)).unwrap()[0].to_f64_vec(), [100.0]);
    assert!(eval(&Op::Einsum { equation: "abc,abd->x".into() }, std::slice::from_ref(&x)).is_err());
    for target in [vec![-1, -1], vec![0, 0, 0, 0], vec![-2], vec![max, max], vec![3]] {
        assert!(eval(&Op::Reshape { allow_zero: false }, &[ints(&target)]).is_err(), "{target:?}");
    }
}

#[test]
fn counts_are_checked_while_a_file_is_read() {
    // Two bytes of a file take more than a hundred in memory.
    let empty_nodes = field(7, &[10u8, 0].repeat(200_000));
    refused(&empty_nodes, GraphErrorKind::OverLimit, "nodes");
    let empty_values = field(7, &[106u8, 0].repeat(1_700_000));
    refused(&empty_values, GraphErrorKind::OverLimit, "nodes");
    let (x, y) = (value(11, "x"), value(12, "y"));
    let attributes = [42u8, 0].repeat(70);
    let bytes = model(&[x.clone(), y.clone(), node("Relu", &["x"], &["y"], &attributes)]);
    refused(&bytes, GraphErrorKind::Malformed, "attributes");
    // An input of 2^62 × 2^62 elements, and one whose product wraps to 0.
    for dims in [[1u64 << 62; 2].as_slice(), &[1 << 32, 1 << 32, 1 << 3]] {
        let lengths: Vec<u8> = dims.iter().flat_map(|n| field(1, &int(1, *n))).collect();
        let kind = field(2, &field(1, &[int(1, 1), field(2, &lengths)].concat()));
        let huge = field(11, &[field(1, b"x"), kind].concat());
        refused(
            &model(&[huge, y.clone(), node("Flatten", &["x"], &["y"], &[])]),
            GraphErrorKind::OverLimit,
            "tensor_elements",
        );
    }
}

/// A constant that holds a whole number of 64 bits so many times.
fn whole_numbers(name: &str, count: usize, number: i64) -> Vec<u8> {
    let raw: Vec<u8> = (0..count).flat_map(|_| number.to_le_bytes()).collect();
    field(5, &[int(1, count as u64), int(2, 7), field(8, name.as_bytes()), field(9, &raw)].concat())
}

#[test]
fn constants_that_very_many_nodes_could_read_as_lists_are_short() {
    let (x, y) = (value(11, "x"), value(12, "y"));
    let file = |op: &str, count: usize| {
        let inputs: &[&str] = if op == "Slice" { &["x", "k", "k", "k"] } else { &["x", "k"] };
        model(&[x.clone(), y.clone(), whole_numbers("k", count, 0), node(op, inputs, &["y"], &[])])
    };
    for op in ["Slice", "ReduceSum", "TopK", "Expand", "Tile", "Reshape", "Squeeze", "Unsqueeze", "Pad", "Split"] {
        refused(&file(op, 5000), GraphErrorKind::OverLimit, "listed_elements = 5000, more than the limit of 4096");
    }
    let few = GraphLimits { listed_elements: 2, ..GraphLimits::default() };
    let error = cytoscope_onnx::from_bytes(&file("Slice", 3), None, &few).unwrap_err();
    assert!(error.kind() == GraphErrorKind::OverLimit && error.to_string().contains("limit of 2"), "{error}");
    cytoscope_onnx::from_bytes(&file("Slice", 1), None, &GraphLimits::default()).unwrap();
    // A condition is one value.
    let conditions = field(5, &[int(1, 2), int(2, 9), field(8, b"c"), field(9, &[1, 1])].concat());
    let branching = model(&[x, y, conditions, node("If", &["c"], &["z"], &branches("x"))]);
    refused(&branching, GraphErrorKind::Malformed, "its condition has 2 elements");
}

#[test]
fn lengths_are_only_gathered_from_a_shape_that_can_have_them() {
    // The length of the last axis is known.
    let shape = field(2, &[field(1, &field(2, b"n")), field(1, &int(1, 2))].concat());
    let declared = [field(1, b"x"), field(2, &field(1, &[int(1, 1), shape].concat()))].concat();
    let is_known = |count: usize| {
        let nodes = [
            node("Shape", &["x"], &["s"], &[]),
            node("Gather", &["s", "k"], &["g"], &[]),
            node("Expand", &["x", "g"], &["y"], &[]),
        ];
        let file = model(&[field(11, &declared), value(12, "y"), whole_numbers("k", count, 1), nodes.concat()]);
        let graph = cytoscope_onnx::from_bytes(&file, None, &GraphLimits::default()).unwrap();
        graph.outputs.first().is_some_and(|id| graph.value(*id).shape.is_some())
    };
    assert_eq!((is_known(2), is_known(17)), (true, false));
}

#[cfg(unix)]
#[test]
fn models_consist_of_regular_files_in_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let pipe = |name: &str| {
        let made = std::process::Command::new("mkfifo").arg(at(name)).status().unwrap();
        assert!(made.success());
    };
    // The model itself: opening a pipe without a writer must not block.
    pipe("pipe.onnx");
    for path in [at("pipe.onnx"), folder.path().to_owned(), "/dev/zero".into()] {
        let error = cytoscope_onnx::load(&path, &GraphLimits::default()).unwrap_err();
        assert_eq!(error.kind(), GraphErrorKind::Io, "{}: {error}", path.display());
        assert!(error.to_string().contains("regular file"), "{error}");
    }
    let external = |location: &str| {
        let entry = [field(1, b"location"), field(2, location.as_bytes())].concat();
        let t = [int(1, 2), int(2, 1), field(8, b"w"), field(13, &entry), int(14, 1)].concat();
        model(&[field(5, &t), value(12, "y"), node("Relu", &["w"], &["y"], &[])])
    };
    let load =
        |location: &str| cytoscope_onnx::from_bytes(&external(location), Some(folder.path()), &GraphLimits::default());
    std::fs::write(at("good.bin"), [0u8; 8]).unwrap();
    load("good.bin").unwrap();
    pipe("pipe.bin");
    std::fs::create_dir(at("folder.bin")).unwrap();
    for name in ["pipe.bin", "folder.bin"] {
        let error = load(name).unwrap_err();
        assert!(error.to_string().contains("regular file"), "{name}: {error}");
    }
    std::fs::write(outside.path().join("secret.bin"), [0u8; 8]).unwrap();
    std::os::unix::fs::symlink(outside.path().join("secret.bin"), at("link.bin")).unwrap();
    std::os::unix::fs::symlink(outside.path(), at("folder")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("zero.bin")).unwrap();
    for name in ["link.bin", "folder/secret.bin", "zero.bin", "../secret.bin", "/etc/passwd"] {
        let error = load(name).unwrap_err();
        assert_eq!(error.kind(), GraphErrorKind::Malformed, "{name}: {error}");
        assert!(error.to_string().contains("outside the model's folder"), "{name}: {error}");
    }
}
