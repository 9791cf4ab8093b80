//! `train --from` an ONNX file as exporters write it.

use crate::common::Fixture;
use crate::quantize::write_two_input_network;
use crate::train_channels::write_channels;
use cytoscope_graph::{Activation, BinaryOp, ConvAttrs, Dim, ElementType, Graph, Op, Tensor};
use cytoscope_model_package::{AxisKind, AxisSize, Package};
use cytoscope_testkit::noise;

/// Writes a network of 16-bit floats for one image of 64 × 64 pixels, whose last layer is a sum. It also reshapes its
/// maps to `lengths`, if there are any.
fn save_network(fixture: &Fixture, name: &str, lengths: Option<[i64; 4]>) {
    let mut graph = Graph::new("images");
    let mut x = graph.add_input("x", ElementType::F16, [1, 1, 64, 64].map(Dim::Fixed).to_vec());
    let conv = |graph: &mut Graph, name: &str, x, shape: [usize; 4]| {
        let values = noise(name.len() as u64, shape.iter().product());
        let weight = Tensor::new(shape, values).unwrap().cast(ElementType::F16);
        let weight = graph.add_initializer(format!("{name}.weight"), weight);
        graph.push(name, Op::Conv(ConvAttrs::same(&shape[2..])), &[Some(x), Some(weight)])
    };
    x = conv(&mut graph, "first", x, [4, 1, 3, 3]);
    if let Some(lengths) = lengths {
        let lengths = graph.add_initializer("lengths", Tensor::vector(lengths.to_vec()));
        x = graph.push("reshaped", Op::Reshape { allow_zero: false }, &[Some(x), Some(lengths)]);
    }
    x = graph.push("first.act", Op::Activation(Activation::Relu), &[Some(x)]);
    let (a, b) = (conv(&mut graph, "second", x, [1, 4, 3, 3]), conv(&mut graph, "shortcut", x, [1, 4, 1, 1]));
    let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &[Some(a), Some(b)]);
    graph.outputs.push(sum);
    graph.values[sum.index()].dtype = Some(ElementType::F16);
    graph.values[sum.index()].shape = Some([1, 1, 64, 64].map(Dim::Fixed).to_vec());
    cytoscope_onnx::save(&graph, &fixture.path(name)).unwrap();
}

/// Writes a network whose channels are the last axis, as TensorFlow's are, with a batch norm that no convolution can take.
fn save_with_channels_last(fixture: &Fixture, name: &str) {
    let mut graph = Graph::new("channels last");
    let dims = |channels: usize| {
        let free = |axis: &str| Dim::Free(axis.to_owned());
        vec![free("n"), free("y"), free("x"), Dim::Fixed(channels)]
    };
    let x = graph.add_input("x", ElementType::F32, dims(1));
    let first = graph.push("first", Op::Transpose { perm: vec![0, 3, 1, 2] }, &[Some(x)]);
    let weight = graph.add_initializer("conv.weight", Tensor::new([4, 1, 3, 3], noise(1, 36)).unwrap());
    let y = graph.push("conv", Op::Conv(ConvAttrs::same(&[3, 3])), &[Some(first), Some(weight)]);
    let y = graph.push("act", Op::Activation(Activation::Relu), &[Some(y)]);
    let parts = [("scale", 1.5f32), ("bias", 0.5), ("mean", 0.25), ("variance", 2.0)];
    let parts =
        parts.map(|(part, value)| Some(graph.add_initializer(format!("norm.{part}"), Tensor::vector(vec![value; 4]))));
    let inputs: Vec<_> = std::iter::once(Some(y)).chain(parts).collect();
    let y = graph.push("norm", Op::BatchNormalization { epsilon: 1e-3 }, &inputs);
    let last = graph.push("last", Op::Transpose { perm: vec![0, 2, 3, 1] }, &[Some(y)]);
    graph.outputs.push(last);
    graph.values[last.index()].dtype = Some(ElementType::F32);
    graph.values[last.index()].shape = Some(dims(4));
    cytoscope_onnx::save(&graph, &fixture.path(name)).unwrap();
}

/// Writes single planes of nuclei with labels to `flat/`.
fn planes(fixture: &Fixture) {
    std::fs::create_dir(fixture.path("flat")).unwrap();
    for seed in 1..=3 {
        fixture.nuclei("16,64,64", seed);
        for what in ["raw", "labels"] {
            let stack = fixture.integers(&format!("sim/nuclei_{seed}_{what}.tif"));
            let middle = stack[8 * 64 * 64..9 * 64 * 64].to_vec();
            fixture.write(&format!("flat/s{seed}_{what}.tif"), "YX", &[64, 64], middle);
        }
    }
}

#[test]
fn a_network_with_its_channels_last_is_fine_tuned_and_quantized() {
    let fixture = Fixture::new();
    planes(&fixture);
    save_with_channels_last(&fixture, "last.onnx");
    let train = ["train", "--task", "segmentation", "--data", "flat", "--from", "last.onnx", "--steps", "2"];
    let only = ["--set", "only=[\"conv.weight\"]", "--set", "target.kind=\"instances\"", "--patch", "1,48,48"];
    fixture.run(&[&train[..], &only, &["--device", "cpu", "--without-int8", "--out", "m"]].concat()).ok();
    let quantize = ["quantize", "last.onnx", "--mode", "static", "--calibrate", "flat/s1_raw.tif", "--out", "q"];
    let report = fixture.run(&[&quantize[..], &["--accuracy-budget", "0.3", "--json"]].concat()).json();
    assert_eq!((report["budget_met"].as_bool(), report["quantized_layers"].as_u64()), (Some(true), Some(1)));
    let [trained, quantized] = ["m", "q"].map(|name| Package::open(&fixture.path(name)).unwrap());
    for package in [&trained, &quantized] {
        assert_eq!(package.inputs[0].axes[1].kind, AxisKind::Channel);
    }
    fixture
        .run(&["predict", "flat/s1_raw.tif", "--model", "q", "--outputs", "maps", "--device", "cpu", "--out", "p"])
        .ok();
    // Layers that are not trained keep their statistics.
    let constant = |name: &str| {
        let id = trained.graph.find(name).unwrap();
        trained.graph.constant(id).unwrap().as_f32().unwrap().to_vec()
    };
    assert_eq!((constant("norm.mean"), constant("norm.variance")), (vec![0.25; 4], vec![2.0; 4]));
    assert_ne!(constant("conv.weight"), noise(1, 36));
}

#[test]
fn a_network_exported_for_one_image_shape_in_16_bits_is_fine_tuned() {
    let fixture = Fixture::new();
    planes(&fixture);
    save_network(&fixture, "net.onnx", None);
    let common = ["train", "--task", "segmentation", "--data", "flat", "--steps", "2", "--patch", "1,48,48"];
    let more = ["--set", "target.kind=\"instances\"", "--device", "cpu", "--without-int8", "--json"];
    let from = |network, out| [&common[..], &more, &["--from", network, "--out", out]].concat();
    let report = fixture.run(&from("net.onnx", "m")).json();
    assert_eq!(report["patch_zyx"], serde_json::json!([1, 48, 48]));
    let package = Package::open(&fixture.path("m")).unwrap();
    let names = &package.outputs[0].axis(AxisKind::Channel).unwrap().channel_names;
    assert_eq!((names.len(), package.inputs[0].axis(AxisKind::Z).is_none()), (2, true));
    assert_eq!(package.graph.value(package.graph.inputs[0]).dtype, Some(ElementType::F32));
    fixture.run(&["predict", "flat/s1_raw.tif", "--model", "m", "--device", "cpu", "--out", "p"]).ok();
    assert_eq!(fixture.labels("p/s1_raw_labels.tif").len(), 64 * 64);
    // Some networks do require the shape of the export.
    save_network(&fixture, "fixed.onnx", Some([1, 4, 64, 64]));
    let report = fixture.run(&from("fixed.onnx", "n")).json();
    assert_eq!((&report["patch_zyx"], &report["batch"]), (&serde_json::json!([1, 64, 64]), &serde_json::json!(1)));
    let package = Package::open(&fixture.path("n")).unwrap();
    assert_eq!(package.inputs[0].axis(AxisKind::Y).unwrap().size, AxisSize::Fixed(64));
}

#[test]
fn a_network_of_several_inputs_is_fine_tuned_and_keeps_them() {
    let fixture = Fixture::new();
    write_two_input_network(&fixture);
    for seed in 1..=3 {
        fixture.nuclei("16,64,64", seed);
        let values = |what: &str| fixture.image(&format!("sim/nuclei_{seed}_{what}.tif")).samples().to_f32();
        let (nuclei, labels) = (values("raw"), values("labels"));
        let membrane: Vec<f32> = nuclei.iter().map(|v| 4000.0 - v).collect();
        let channels = [("Membrane", membrane), ("Nuclei", nuclei), ("Labels", labels)];
        write_channels(&fixture, &format!("cells/s{seed}.ome.tif"), &[16, 64, 64], &channels);
    }
    let common = ["train", "--task", "segmentation", "--data", "cells", "--from", "inputs.onnx", "--steps", "2"];
    let labels = ["--set", "data.same_file=true", "--set", "data.targets=[\"labels\"]", "--patch", "8,16,16"];
    let more = ["--device", "cpu", "--without-int8", "--json", "--out", "m"];
    let inputs = ["--set", "data.channels=[\"nuclei\", \"membrane\"]"];
    let report = fixture.run(&[&common[..], &labels, &inputs, &more].concat()).json();
    // The weights of the three convolutions, and none that join the inputs.
    assert_eq!(report["parameters"].as_u64(), Some(2 * 8 * 27 + 8));
    let package = Package::open(&fixture.path("m")).unwrap();
    let ids: Vec<&str> = package.inputs.iter().map(|input| input.id.as_str()).collect();
    assert_eq!((ids, package.graph.inputs.len()), (vec!["nuclei", "membrane"], 2));
    let imported = fixture.run(&["import", "m", "--out", "again", "--json"]).json();
    assert_eq!(imported["test"].as_str(), Some("the test outputs are reproduced"), "{imported:#}");
    fixture.run(&["predict", "cells/s1.ome.tif", "--model", "m", "--device", "cpu", "--out", "p"]).ok();
}
