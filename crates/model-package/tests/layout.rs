//! Layout of packages: the declared network, defaults of omitted fields, and written descriptions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use cytoscope_builders::{DynUNet, Weights, dynunet};
use cytoscope_graph::{BinaryOp, Dim, ElementType, Graph, Op, Tensor, ValueId};
use cytoscope_graph_passes::infer_shapes;
use cytoscope_graph_passes::quantize::{Activations, is_quantized, prepare, quantize};
use cytoscope_model_package::{
    AxisKind, AxisSize, AxisSpec, Citation, Package, PackageBuilder, PackageError, Processing, StatisticsAxes,
    TensorSpec, TensorType, Tolerance, is_package, package_folder,
};
use cytoscope_storage::Overwrite;
use serde_json::{Value, json};
use std::path::Path;

fn network() -> Graph {
    let config = DynUNet { filters: vec![1, 2], strides: vec![1, 2], ..DynUNet::default() };
    prepare(&dynunet(&config, &Weights::Random { seed: 0 }).unwrap()).unwrap()
}

fn quantized(graph: &Graph) -> Graph {
    let made = quantize(graph, &Activations::Dynamic, &Default::default()).unwrap();
    assert!(is_quantized(&made) && !is_quantized(graph));
    made
}

fn spec(id: &str, size: &dyn Fn(&str) -> AxisSize, processing: Vec<Processing>) -> TensorSpec {
    let axis = |kind, size| AxisSpec { kind, size, voxel_um: None, halo: 0, channel_names: Vec::new() };
    TensorSpec {
        id: id.to_owned(),
        description: String::new(),
        dtype: TensorType::Float32,
        axes: vec![
            axis(AxisKind::Batch, AxisSize::Step { min: 1, step: 1 }),
            axis(AxisKind::Channel, AxisSize::Fixed(1)),
            axis(AxisKind::Z, size("z")),
            axis(AxisKind::Y, size("y")),
            axis(AxisKind::X, size("x")),
        ],
        processing,
        test_tensor: None,
    }
}

fn builder(graph: Graph, float_graph: Option<Graph>) -> PackageBuilder {
    let reference = |axis: &str| AxisSize::Reference {
        tensor: "Input.1".to_owned(),
        axis: axis.to_owned(),
        scale: 1.0,
        offset: 0.0,
    };
    let tensor = |v: f32| Tensor::new(vec![1, 1, 4, 4, 4], vec![v; 64]).unwrap();
    PackageBuilder {
        name: "a package".to_owned(),
        description: String::new(),
        documentation: "# A package\n".to_owned(),
        authors: vec!["A test".to_owned()],
        cite: [("linked", Some("10.1/x"), None), ("page", None, Some("https://example.org")), ("no link", None, None)]
            .map(|(text, doi, url)| Citation {
                text: text.to_owned(),
                doi: doi.map(str::to_owned),
                url: url.map(str::to_owned),
            })
            .to_vec(),
        license: Some("MIT".to_owned()),
        tags: Vec::new(),
        inputs: vec![spec("Input.1", &|_| AxisSize::Step { min: 4, step: 2 }, Vec::new())],
        outputs: vec![spec("95", &reference, Vec::new())],
        graph,
        test_inputs: vec![tensor(0.5)],
        test_outputs: vec![tensor(0.25)],
        config: json!({"task": "segmentation"}),
        covers: Vec::new(),
        float_graph,
        tolerance: None,
    }
}

fn rdf(package: &Path) -> Value {
    let text = std::fs::read_to_string(package.join("rdf.yaml")).unwrap();
    serde_yaml_ng::from_str(&text).unwrap()
}

fn rewrite(package: &Path, rdf: &Value) {
    std::fs::write(package.join("rdf.yaml"), serde_json::to_string(rdf).unwrap()).unwrap();
}

#[test]
fn the_float_network_is_declared_and_the_quantized_one_attached() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("both");
    let float = network();
    let _ = builder(quantized(&float), Some(float.clone())).save(&path, Overwrite::Refuse).unwrap();
    let description = rdf(&path);
    let named = &description["config"]["cytoscope"]["quantized_weights"];
    assert_eq!(named["source"], "model_int8.onnx");
    assert_eq!(description["attachments"], json!([named]));
    let declared = cytoscope_onnx::encode(&float).unwrap();
    assert_eq!(std::fs::read(path.join("model.onnx")).unwrap(), declared.bytes);
    assert_eq!(description["weights"]["onnx"]["opset_version"], declared.opset);
    let package = Package::open(&path).unwrap();
    assert!(is_quantized(&package.graph) && package.is_int8() && !package.declares_quantized());
    assert!(!is_quantized(package.float_graph.as_ref().unwrap()) && !is_quantized(package.declared_graph()));
    assert_eq!(package.model_bytes, std::fs::read(path.join("model_int8.onnx")).unwrap());
    assert_eq!(package.output_tolerance("maps"), Tolerance::default());
    assert!(package.has_processed_tests());

    // Without a float network, the quantized one is declared and nothing is attached.
    let small = folder.path().join("small");
    let _ = builder(quantized(&float), None).save(&small, Overwrite::Refuse).unwrap();
    assert!(rdf(&small).get("attachments").is_none() && !small.join("model_int8.onnx").exists());
    let package = Package::open(&small).unwrap();
    assert!(is_quantized(package.declared_graph()) && package.float_graph.is_none());
}

#[test]
fn a_section_that_is_not_a_map_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("package");
    let wrong = PackageBuilder { config: json!("segmentation"), ..builder(network(), None) };
    let error = wrong.save(&path, Overwrite::Refuse).unwrap_err().to_string();
    assert!(error.contains("config.cytoscope") && error.contains("expected a map"), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_description_stands_for_its_package() {
    for (path, package) in [
        ("/models/net/rdf.yaml", "/models/net"),
        ("/models/net/bioimageio.yaml", "/models/net"),
        ("/models/net/net.bioimageio.yaml", "/models/net"),
        ("/models/net/other.yaml", "/models/net/other.yaml"),
        ("/models/net", "/models/net"),
        ("rdf.yaml", "rdf.yaml"),
    ] {
        assert_eq!(package_folder(Path::new(path)), Path::new(package));
    }
}

#[test]
fn a_folder_with_a_description_of_any_of_its_names_is_a_package() {
    for (name, expected) in
        [("rdf.yaml", true), ("model.yaml", true), ("net.bioimageio.yaml", true), ("other.yaml", false)]
    {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), "type: model").unwrap();
        assert_eq!(is_package(folder.path()), expected, "{name}");
    }
}

#[test]
fn packages_that_declare_the_quantized_network_keep_their_meaning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old");
    let float = network();
    let _ = builder(quantized(&float), None).save(&path, Overwrite::Refuse).unwrap();
    std::fs::write(path.join("model_f32.onnx"), cytoscope_onnx::to_bytes(&float).unwrap()).unwrap();
    let mut description = rdf(&path);
    description["config"]["cytoscope"] = json!({"float_weights": {"source": "model_f32.onnx"}});
    rewrite(&path, &description);
    let package = Package::open(&path).unwrap();
    assert!(is_quantized(&package.graph) && is_quantized(package.declared_graph()));
    assert!(!is_quantized(package.float_graph.as_ref().unwrap()));
    assert!(package.declares_quantized() && !package.has_processed_tests());
    // Written again, the package declares the float network and drops the old entry.
    let again = folder.path().join("again");
    let config = package.config().clone();
    let made = PackageBuilder { config, ..builder(package.graph.clone(), package.float_graph.clone()) };
    let _ = made.save(&again, Overwrite::Refuse).unwrap();
    let section = &rdf(&again)["config"]["cytoscope"];
    assert!(section.get("float_weights").is_none() && section.get("quantized_weights").is_some(), "{section}");
    assert!(!Package::open(&again).unwrap().declares_quantized());
}

#[test]
fn errors_of_the_attached_network_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("both");
    let float = network();
    let _ = builder(quantized(&float), Some(float.clone())).save(&path, Overwrite::Refuse).unwrap();
    let whole = rdf(&path);
    let refused = |description: &Value, says: &[&str]| {
        rewrite(&path, description);
        let text = Package::open(&path).unwrap_err().to_string();
        assert!(says.iter().all(|part| text.contains(part)), "{text}");
    };
    let with = |entry: Value| {
        let mut description = whole.clone();
        description["config"]["cytoscope"]["quantized_weights"] = entry;
        description
    };
    refused(&with(json!({"sha256": "00"})), &["quantized_weights", "names no source"]);
    refused(&with(json!({"source": "nothing.onnx"})), &["nothing.onnx", "lacks"]);
    refused(&with(json!({"source": "../both/model_int8.onnx"})), &["outside"]);
    refused(&with(json!({"source": "model_int8.onnx", "sha256": "00"})), &["model_int8.onnx", "checksum"]);
    refused(&with(json!({"source": "model.onnx"})), &["quantized_weights", "not quantized"]);
    let mut both = whole.clone();
    both["config"]["cytoscope"]["float_weights"] = json!({"source": "model.onnx"});
    refused(&both, &["quantized_weights", "float_weights"]);
    rewrite(&path, &whole);
    Package::open(&path).unwrap();
}

#[test]
fn omitted_fields_have_the_defaults_of_the_specification() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short");
    let _ = builder(network(), None).save(&path, Overwrite::Refuse).unwrap();
    let mut description = rdf(&path);
    for (key, size) in
        [("inputs", json!({"min": 4, "step": 2})), ("outputs", json!({"tensor_id": "input", "axis_id": "x"}))]
    {
        let tensor = &mut description[key][0];
        tensor.as_object_mut().unwrap().remove("id");
        tensor.as_object_mut().unwrap().remove("data");
        let axes = tensor["axes"].as_array_mut().unwrap();
        for (axis, id) in axes.iter_mut().skip(2).zip(["z", "y"]) {
            *axis = json!({"type": "space", "id": id, "size": size.clone()});
            if key == "outputs" {
                axis["size"]["axis_id"] = json!(id);
            }
        }
        axes[4] = json!({"type": "space", "size": size});
    }
    description["inputs"][0]["preprocessing"] = json!([{"id": "zero_mean_unit_variance"}]);
    description["outputs"][0]["data"] = json!({"values": ["background", "nucleus"]});
    rewrite(&path, &description);
    let package = Package::open(&path).unwrap();
    let (input, output) = (&package.inputs[0], &package.outputs[0]);
    assert_eq!((input.id.as_str(), output.id.as_str()), ("input", "output"));
    assert_eq!(input.axes.iter().map(|a| a.kind).collect::<Vec<_>>()[2..], [AxisKind::Z, AxisKind::Y, AxisKind::X]);
    assert_eq!((input.dtype, output.dtype), (TensorType::Float32, TensorType::Uint8));
    let all = StatisticsAxes { batch: true, channel: true, by_slice: false };
    assert_eq!(input.processing, [Processing::ZeroMeanUnitVariance { eps: 1e-6, axes: all }]);
    // Tensors described as integers end in a cast to integers.
    assert_eq!(output.postprocessing(), [Processing::EnsureDtype { dtype: TensorType::Uint8 }]);
    description["outputs"][0]["data"] = json!({"type": "complex64"});
    rewrite(&path, &description);
    let error = Package::open(&path).unwrap_err().to_string();
    assert!(error.contains("type \"complex64\"") && error.contains("float32, float64, uint8"), "{error}");
}

#[test]
fn optional_inputs_with_a_default_in_the_network_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("optional");
    let mut graph = Graph::new("shifted");
    let free = ["n", "d", "h", "w"].map(|name| Dim::Free(name.to_owned()));
    let [n, d, h, w] = free;
    let x = graph.add_input("x", ElementType::F32, vec![n, Dim::Fixed(1), d, h, w]);
    let shift = graph.add_initializer("shift", Tensor::new(vec![1, 1, 1, 1, 1], vec![0.5f32]).unwrap());
    let y = graph.push("y", Op::Binary(BinaryOp::Add), &[Some(x), Some(shift)]);
    graph.outputs.push(y);
    infer_shapes::<ValueId>(&mut graph, &[]).unwrap();
    let _ = builder(graph, None).save(&path, Overwrite::Refuse).unwrap();
    let mut description = rdf(&path);
    let mut second = description["inputs"][0].clone();
    second["id"] = json!("shift");
    let inputs = description["inputs"].as_array_mut().unwrap();
    inputs.insert(0, second);
    let mut open = |optional: Value| {
        description["inputs"][0]["optional"] = optional;
        rewrite(&path, &description);
        Package::open(&path).map_err(Box::new)
    };
    let package = open(json!(true)).unwrap();
    assert_eq!(package.inputs.iter().map(|input| input.id.as_str()).collect::<Vec<_>>(), ["input_1"]);
    assert!(package.test_tensors().unwrap().is_some_and(|(inputs, _)| inputs.len() == 1));
    let needed = open(json!(false)).unwrap_err().to_string();
    assert!(needed.contains("are 2 and 1 in the description, 1 and 1 in the network"), "{needed}");
    let wrong = open(json!("yes")).unwrap_err().to_string();
    assert!(wrong.contains("optional \"yes\"") && wrong.contains("true or false"), "{wrong}");
}

#[test]
fn a_package_without_weights_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty");
    let _ = builder(network(), None).save(&path, Overwrite::Refuse).unwrap();
    let mut description = rdf(&path);
    for weights in [json!({}), json!({"onnx": null})] {
        description["weights"] = weights;
        rewrite(&path, &description);
        let error = Package::open(&path).unwrap_err().to_string();
        assert!(error.contains("\"weights\" is empty"), "{error}");
    }
}

#[test]
fn statistics_use_the_axes_of_the_step_or_the_step_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps");
    let _ = builder(network(), None).save(&path, Overwrite::Refuse).unwrap();
    let whole = rdf(&path);
    let open = |step: Value| -> Result<Package, Box<PackageError>> {
        let mut description = whole.clone();
        description["outputs"][0]["postprocessing"] = json!([step]);
        rewrite(&path, &description);
        Package::open(&path).map_err(Box::new)
    };
    let z = |axes: Value| json!({"id": "zero_mean_unit_variance", "kwargs": {"axes": axes}});
    for (axes, batch, channel, by_slice) in [
        (json!(["channel", "z", "y", "x"]), false, true, false),
        (json!(["z", "y", "x"]), false, false, false),
        (json!(["batch", "z", "x", "y"]), true, false, false),
        (Value::Null, true, true, false),
        (json!(["y", "x"]), false, false, true),
        (json!(["x", "channel", "y"]), false, true, true),
    ] {
        let axes_of_step = StatisticsAxes { batch, channel, by_slice };
        let expected = Processing::ZeroMeanUnitVariance { eps: 1e-6, axes: axes_of_step };
        assert_eq!(open(z(axes)).unwrap().outputs[0].processing, [expected]);
    }
    let clip = json!({"id": "clip", "kwargs": {"min": 0.0, "max_percentile": 99.0, "axes": ["z", "y", "x"]}});
    let axes = StatisticsAxes { batch: false, channel: false, by_slice: false };
    assert_eq!(
        open(clip).unwrap().outputs[0].processing,
        [
            Processing::Clip { min: Some(0.0), max: None },
            Processing::ClipPercentiles { min_percentile: None, max_percentile: Some(99.0), axes },
        ]
    );
    for (step, says) in [
        (z(json!(["z", "x"])), &["zero_mean_unit_variance", "each position along axis y"][..]),
        (z(json!(["x"])), &["zero_mean_unit_variance", "each position along axis y", "whole slices"]),
        (
            json!({"id": "scale_mean_variance", "kwargs": {"axes": ["y", "x"], "reference_tensor": "input_1"}}),
            &["slices of \"input_1\"", "after the network"],
        ),
        (z(json!(["w"])), &["axis \"w\"", "batch, channel, z, y, x"]),
        (json!({"id": "softmax", "kwargs": {"axis": "z"}}), &["softmax", "along axis z"]),
        (json!({"id": "binarize", "kwargs": {"threshold": [0.1, 0.2]}}), &["2 values in threshold", "1 channels"]),
        (json!({"id": "scale_linear", "kwargs": {"gain": [2.0], "axis": "y"}}), &["scale_linear", "along axis y"]),
        (json!({"id": "ensure_dtype", "kwargs": {"dtype": "complex64"}}), &["ensure_dtype", "complex64", "uint8"]),
        (json!({"id": "clip", "kwargs": {"min": 0.0, "min_percentile": 1.0}}), &["clip", "value and as a percentile"]),
        (
            json!({"id": "scale_range", "kwargs": {"reference_tensor": "other"}}),
            &["reference_tensor \"other\"", "input"],
        ),
        (json!({"id": "stardist_postprocessing"}), &["stardist_postprocessing", "remove the step from rdf.yaml"]),
        (json!({"id": "cellpose_flow_dynamics"}), &["cellpose_flow_dynamics", "remove the step from rdf.yaml"]),
        (json!({"id": "custom", "source": "x.py"}), &["custom", "remove the step from rdf.yaml"]),
        (json!({"id": "softmin"}), &["softmin", "unknown processing step", "sigmoid, softmax"]),
    ] {
        let text = open(step).unwrap_err().to_string();
        assert!(says.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn statistics_of_slices_are_those_of_all_steps_after_the_network() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slices");
    let step = |by_slice| Processing::ZeroMeanUnitVariance {
        eps: 1e-6,
        axes: StatisticsAxes { by_slice, ..StatisticsAxes::default() },
    };
    let saved = |steps: Vec<Processing>| {
        let mut made = builder(network(), None);
        made.inputs[0].processing = vec![step(true), step(false)];
        made.outputs[0].processing = steps;
        let _ = made.save(&path, Overwrite::Replace).unwrap();
        Package::open(&path).map_err(Box::new)
    };
    let package = saved(vec![step(true), Processing::Sigmoid, step(true)]).unwrap();
    assert_eq!(package.inputs[0].processing, [step(true), step(false)]);
    assert_eq!(package.outputs[0].processing, [step(true), Processing::Sigmoid, step(true)]);
    let written = rdf(&path);
    let axes = |at: usize| written["inputs"][0]["preprocessing"][at]["kwargs"]["axes"].clone();
    assert_eq!((axes(0), axes(1)), (json!(["channel", "y", "x"]), json!(["channel", "z", "y", "x"])));
    let refused = saved(vec![step(true), step(false)]).unwrap_err().to_string();
    assert!(refused.contains("statistics of slices") && refused.contains("statistics of stacks"), "{refused}");
}

#[test]
fn the_first_matching_tolerance_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tolerant");
    let _ = builder(network(), None).save(&path, Overwrite::Refuse).unwrap();
    let mut description = rdf(&path);
    description["config"]["bioimageio"] = json!({"reproducibility_tolerance": [
        {"absolute_tolerance": 0.5, "weights_formats": ["torchscript"]},
        {"absolute_tolerance": 0.1, "output_ids": ["other"]},
        {"absolute_tolerance": 0.2, "weights_formats": ["onnx"], "output_ids": ["t95"]},
        {"absolute_tolerance": 0.3},
    ]});
    rewrite(&path, &description);
    let package = Package::open(&path).unwrap();
    let of = |id: &str| package.output_tolerance(id).absolute;
    assert_eq!((of("t95"), of("other"), of("third")), (0.2, 0.1, 0.3));
}

#[test]
fn a_declared_tolerance_names_its_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tolerant");
    let tolerance = Tolerance { relative: 0.005, absolute: 0.25, outside_ppm: 500.0 };
    let made = PackageBuilder { tolerance: Some(vec![tolerance]), ..builder(network(), None) };
    let _ = made.save(&path, Overwrite::Refuse).unwrap();
    // The id is that of the description, not that of the network.
    let declared = &rdf(&path)["config"]["bioimageio"]["reproducibility_tolerance"];
    assert_eq!(declared[0]["output_ids"], json!(["t95"]));
    let package = Package::open(&path).unwrap();
    assert_eq!(package.output_tolerance("t95"), tolerance);
    assert_eq!(package.output_tolerance("other"), Tolerance::default());
    // bioimage.io accepts up to 5000 outliers per million.
    let mut description = rdf(&path);
    for (stated, honored) in [(4000, 4000.0), (6000, 5000.0)] {
        let entry = &mut description["config"]["bioimageio"]["reproducibility_tolerance"][0];
        entry["mismatched_elements_per_million"] = json!(stated);
        rewrite(&path, &description);
        assert_eq!(Package::open(&path).unwrap().output_tolerance("t95").outside_ppm, honored);
    }
}

#[test]
fn written_descriptions_meet_the_specification() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written");
    let axes = StatisticsAxes { batch: false, channel: false, by_slice: false };
    let mut made = builder(network(), None);
    made.inputs[0].processing = vec![
        Processing::ZeroMeanUnitVariance { eps: 1e-6, axes },
        Processing::ScaleLinear { gain: vec![1.0], offset: vec![0.0] },
    ];
    made.outputs[0].processing =
        vec![Processing::ScaleMeanVariance { eps: 1e-6, axes, reference_tensor: "Input.1".to_owned() }];
    made.description = "long ".repeat(1000);
    let _ = made.save(&path, Overwrite::Refuse).unwrap();
    let description = rdf(&path);
    assert_eq!(description["description"].as_str().unwrap().chars().count(), 1024);
    // Ids are lower-case identifiers, and references to them are updated.
    assert_eq!((&description["inputs"][0]["id"], &description["outputs"][0]["id"]), (&json!("input_1"), &json!("t95")));
    assert_eq!(description["outputs"][0]["axes"][4]["size"]["tensor_id"], "input_1");
    // The specification does not allow steps without effect; the axes are those of the tensor.
    let steps = description["inputs"][0]["preprocessing"].as_array().unwrap();
    assert_eq!((steps.len(), &steps[0]["kwargs"]["axes"]), (1, &json!(["z", "y", "x"])));
    assert_eq!(description["outputs"][0]["postprocessing"][0]["kwargs"]["reference_tensor"], "input_1");
    // A citation needs a DOI or URL.
    let cited = json!([{"text": "linked", "doi": "10.1/x"}, {"text": "page", "url": "https://example.org"}]);
    assert_eq!((&description["cite"], &description["license"]), (&cited, &json!("MIT")));
    let read = Package::open(&path).unwrap();
    assert_eq!(read.inputs[0].processing, made.inputs[0].processing[..1]);
}

#[test]
fn lengths_that_are_computed_with_scales_are_exact() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = |v: f32| Tensor::new(vec![1, 1, 24, 24, 24], vec![v; 24 * 24 * 24]).unwrap();
    for (um, is_exact) in [(0.1, false), (0.8, false), (0.5, true), (0.29, true)] {
        let path = folder.path().join(format!("{}nm", f64::round(1000.0 * um)));
        let mut made = builder(network(), None);
        (made.test_inputs, made.test_outputs) = (vec![tensor(0.5)], vec![tensor(0.25)]);
        let axes = made.inputs.iter_mut().chain(&mut made.outputs).flat_map(|tensor| &mut tensor.axes);
        axes.filter(|axis| axis.kind.is_space()).for_each(|axis| axis.voxel_um = Some(um));
        let _ = made.save(&path, Overwrite::Refuse).unwrap();
        let description = rdf(&path);
        let scale = |tensor: &str| description[tensor][0]["axes"][4]["scale"].as_f64().unwrap();
        // As bioimageio.spec computes the length of the output.
        assert_eq!(24.0 * um / um == 24.0, is_exact);
        assert_eq!(24.0 * scale("inputs") / scale("outputs"), 24.0, "{um}");
        assert_eq!(scale("inputs") == um, is_exact, "no other scale is rounded");
        let read = Package::open(&path).unwrap();
        for tensor in [&read.inputs[0], &read.outputs[0]] {
            assert_eq!(tensor.voxel_um(), Some([um; 3]), "the voxel size stays");
        }
    }
}

#[test]
fn the_scales_of_an_output_have_the_ratio_of_its_lengths() {
    let folder = tempfile::tempdir().unwrap();
    let reference = |axis: &str| AxisSize::Reference {
        tensor: "Input.1".to_owned(),
        axis: axis.to_owned(),
        scale: 0.5,
        offset: 0.0,
    };
    let free = |_: &str| AxisSize::Free;
    let cases = [
        ("a reference", true, None),
        ("a reference with a voxel size", true, Some(1.0)),
        ("test tensors", false, None),
        ("test tensors with the voxel size of the input", false, Some(0.5)),
    ];
    for (what, is_reference, output_um) in cases {
        let path = folder.path().join(what);
        let mut made = builder(network(), None);
        let size: &dyn Fn(&str) -> AxisSize = if is_reference { &reference } else { &free };
        made.outputs = vec![spec("95", size, Vec::new())];
        made.test_outputs = vec![Tensor::new(vec![1, 1, 2, 2, 2], vec![0.25f32; 8]).unwrap()];
        for (tensors, um) in [(&mut made.inputs, Some(0.5)), (&mut made.outputs, output_um)] {
            let axes = tensors.iter_mut().flat_map(|tensor| &mut tensor.axes);
            axes.filter(|axis| axis.kind.is_space()).for_each(|axis| axis.voxel_um = um);
        }
        let _ = made.save(&path, Overwrite::Refuse).unwrap();
        // Half as many voxels, which are twice as large.
        let read = Package::open(&path).unwrap();
        let axis = &read.outputs[0].axes[4];
        let (tensor, id) = ("input_1".to_owned(), "x".to_owned());
        let expected = AxisSize::Reference { tensor, axis: id, scale: 0.5, offset: 0.0 };
        assert_eq!((&axis.size, axis.voxel_um), (&expected, Some(1.0)), "{what}");
    }
}
