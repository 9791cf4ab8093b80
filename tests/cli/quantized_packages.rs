//! Packages with an int8 network: predicting, importing, exporting and quantizing them again, and packages in the layout of
//! earlier versions.

use crate::common::{Fixture, npy_f32, uniform};
use crate::quantize::{rdf, relative_l2, stacks};
use std::path::Path;

#[test]
fn quantized_packages_predict_import_and_export_with_both_networks() {
    let fixture = Fixture::new();
    stacks(&fixture);
    fixture.unet(8);
    fixture.run(&["import", "net.onnx", "--out", "float"]).ok();
    fixture
        .run(&[
            "quantize",
            "float",
            "--mode",
            "static",
            "--calibrate",
            "sim",
            "--accuracy-budget",
            "0.1",
            "--out",
            "q.zip",
        ])
        .ok();
    fixture.run(&["import", "q.zip", "--out", "q"]).ok();
    let report = fixture.run(&["import", "q", "--out", "again.zip", "--json"]).json();
    assert_eq!(report["test"], "the test outputs are reproduced");
    assert_eq!(
        fixture.names("q"),
        [
            ".cytoscope.json",
            "README.md",
            "model.onnx",
            "model_int8.onnx",
            "rdf.yaml",
            "test_input_0.npy",
            "test_output_0.npy"
        ]
    );
    assert!(rdf(&fixture, "q").contains("quantization") && rdf(&fixture, "q").contains("quantized_weights"));
    let predict = |model: &str, precision: &str, out: &str| {
        let stack = "sim/nuclei_1_raw.tif";
        let arguments = ["predict", stack, "--model", model, "--device", "cpu", "--outputs", "maps", "--json"];
        let report = fixture.run(&[&arguments[..], &["--precision", precision, "--out", out]].concat()).json();
        let image = fixture.image(&format!("{out}/nuclei_1_raw_probability.tif"));
        (report["inputs"][0]["precision"].as_str().unwrap().to_owned(), image.samples().to_f32())
    };
    let (_, float) = predict("float", "auto", "a");
    let (precision, int8) = predict("q", "auto", "b");
    assert_eq!(precision, "int8");
    let error = relative_l2(&int8, &float);
    assert!(error > 0.0 && error < 0.15, "{error}");
    assert_eq!(predict("q", "f32", "c"), ("f32".to_owned(), float), "the float network is the one that was quantized");
    fixture.fails(3, &["predict", "sim", "--model", "float", "--precision", "int8", "--out", "d"], &["quantize"]);
    // int8 cannot represent NaN: the run is refused and nothing is written.
    let mut values = vec![0.5; 8 * 16 * 16];
    values[77] = f32::NAN;
    std::fs::write(fixture.path("nan.npy"), npy_f32(&[1, 1, 8, 16, 16], &values)).unwrap();
    let arguments = ["run", "q/model_int8.onnx", "--input", "nan.npy", "--output", "y.npy", "--precision", "int8"];
    fixture.fails(3, &arguments, &["finite", "NaN", "77"]);
    let arguments = ["run", "q/model.onnx", "--input", "nan.npy", "--output", "y.npy", "--precision", "int8"];
    fixture.fails(3, &arguments, &["not quantized", "cytoscope quantize"]);
    // The ONNX export is quantized, the safetensors export is in float.
    fixture.run(&["export", "q", "--format", "onnx", "--out", "q.onnx"]).ok();
    let names = |file: &str, name: &str| fixture.bytes(file).windows(name.len()).any(|w| w == name.as_bytes());
    assert!(names("q.onnx", "QuantizeLinear") && names("q.onnx", "DequantizeLinear"));
    assert_eq!(predict("q.onnx", "auto", "e"), ("int8".to_owned(), int8));
    fixture.run(&["export", "q", "--format", "safetensors", "--out", "q.safetensors"]).ok();
    assert!(names("q.safetensors", "F32") && !names("q.safetensors", "\"I8\""));
    // Without its float network, a package still runs.
    fixture
        .run(&["quantize", "float", "--mode", "static", "--accuracy-budget", "1", "--without-float", "--out", "small"])
        .ok();
    assert!(!fixture.path("small/model_int8.onnx").exists() && !rdf(&fixture, "small").contains("quantized_weights"));
    assert!(rdf(&fixture, "small").contains("reproducibility_tolerance"), "sums in another order move bytes");
    assert_eq!(predict("small", "auto", "f").0, "int8");
    fixture.run(&["export", "small", "--format", "safetensors", "--out", "small.safetensors"]).ok();
    assert!(names("small.safetensors", "\"I8\""));
    // Quantizing again starts from the float network.
    fixture.run(&["quantize", "q", "--mode", "dynamic", "--accuracy-budget", "1", "--out", "again"]).ok();
    assert_eq!(fixture.bytes("again/model.onnx"), fixture.bytes("q/model.onnx"));
    // What the package that was quantized lacks is reported.
    std::fs::remove_file(fixture.path("q/README.md")).unwrap();
    let undocumented =
        ["quantize", "q", "--mode", "dynamic", "--accuracy-budget", "1", "--out", "undocumented", "--json"];
    let report = fixture.run(&undocumented).json();
    assert_eq!(report["left_out"][0]["part"], "README.md", "{report}");
    // A damaged quantized network is detected.
    std::fs::write(fixture.path("q/model_int8.onnx"), b"other").unwrap();
    fixture.fails(3, &["predict", "sim", "--model", "q", "--out", "g"], &["model_int8.onnx", "checksum"]);
}

/// Writes a copy of a bundled package in the earlier layout: the quantized network declared, the float network
/// attached, and test tensors of the bare network.
fn write_earlier_layout(fixture: &Fixture, name: &str) {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name);
    std::fs::create_dir(fixture.path("old")).unwrap();
    for (from, to) in [
        ("model.onnx", "model_f32.onnx"),
        ("model_int8.onnx", "model.onnx"),
        ("README.md", "README.md"),
        ("test_input_0.npy", "test_input_0.npy"),
    ] {
        std::fs::copy(bundled.join(from), fixture.path("old").join(to)).unwrap();
    }
    let text = std::fs::read_to_string(bundled.join("rdf.yaml")).unwrap();
    let text = text.replace("source: model.onnx", "source: the float one").replace("model_int8.onnx", "model.onnx");
    let text = text.replace("source: the float one", "source: model_f32.onnx");
    let entries: Vec<&str> = text.lines().filter(|l| !l.trim_start().starts_with("sha256:")).collect();
    let text = entries.join("\n").replace("quantized_weights", "float_weights").replace("    layout: 2\n", "");
    // Swap the declared weights and the entry of the other network.
    let (head, tail) = text.split_once("float_weights").unwrap();
    let head = head.replace("source: model_f32.onnx", "source: model.onnx");
    let tail = tail.replace("source: model.onnx", "source: model_f32.onnx");
    std::fs::write(fixture.path("old/rdf.yaml"), format!("{head}float_weights{tail}")).unwrap();
    let run = ["run", "old/model.onnx", "--engine", "reference", "--input", "old/test_input_0.npy"];
    fixture.run(&[&run[..], &["--output", "old/test_output_0.npy"]].concat()).ok();
}

#[test]
fn packages_of_the_earlier_layout_still_predict_and_are_converted() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    write_earlier_layout(&fixture, "nuclei");
    assert_ne!(fixture.bytes("old/model.onnx"), fixture.bytes("old/model_f32.onnx"));
    let predict = |model: &str, precision: &str| {
        let out = format!("{model}-{precision}");
        let arguments = ["predict", &raw, "--model", model, "--device", "cpu", "--outputs", "maps", "--json"];
        let report = fixture.run(&[&arguments[..], &["--precision", precision, "--out", &out]].concat()).json();
        let precision = report["inputs"][0]["precision"].as_str().unwrap().to_owned();
        (precision, fixture.bytes(&format!("{out}/nuclei_1_raw_probability.tif")))
    };
    let ours = [predict("nuclei", "auto"), predict("nuclei", "f32")];
    assert_eq!((ours[0].0.as_str(), ours[1].0.as_str()), ("int8", "f32"));
    assert_ne!(ours[0].1, ours[1].1);
    assert!([predict("old", "auto"), predict("old", "f32")] == ours, "the earlier layout predicts differently");
    let report = fixture.run(&["import", "old", "--out", "new", "--json"]).json();
    assert!(report["test"].as_str().unwrap().contains("network alone"), "{report}");
    assert!(rdf(&fixture, "new").contains("quantized_weights") && !rdf(&fixture, "new").contains("float_weights"));
    assert!([predict("new", "auto"), predict("new", "f32")] == ours);
    assert_eq!(
        fixture.run(&["import", "new", "--out", "b", "--json"]).json()["test"],
        "the test outputs are reproduced"
    );
    // Exporting converts it, too.
    fixture.run(&["export", "old", "--format", "bioimageio", "--out", "out.zip"]).ok();
    assert_eq!(
        fixture.run(&["import", "out.zip", "--out", "c", "--json"]).json()["test"],
        "the test outputs are reproduced"
    );
}

#[test]
fn an_output_that_ends_in_onnx_is_the_int8_network_alone() {
    let fixture = Fixture::new();
    fixture.unet(8);
    for out in ["int8.onnx", "q"] {
        fixture.run(&["quantize", "net.onnx", "--mode", "dynamic", "--accuracy-budget", "1", "--out", out]).ok();
    }
    assert!(fixture.path("int8.onnx").is_file());
    assert_eq!(fixture.bytes("int8.onnx"), fixture.bytes("q/model_int8.onnx"));
    // `run` takes packages, too: the float network, or the int8 one if its precision is requested.
    let shape = [1, 1, 8, 16, 16];
    std::fs::write(fixture.path("x.npy"), npy_f32(&shape, &uniform(5, shape.iter().product()))).unwrap();
    for (model, precision, out) in [
        ("q", "f32", "a.npy"),
        ("q/model.onnx", "f32", "b.npy"),
        ("q", "int8", "c.npy"),
        ("int8.onnx", "int8", "d.npy"),
    ] {
        let ran = fixture.run(&["run", model, "--precision", precision, "--input", "x.npy", "--output", out]).ok();
        // The rate of integers is in GOP/s.
        assert_eq!(ran.stdout.contains("GFLOP/s"), precision == "f32", "{}", ran.stdout);
        assert!(ran.stdout.contains("\n  ") && !ran.stdout.contains("\n   "), "{}", ran.stdout);
    }
    assert_eq!(fixture.bytes("a.npy"), fixture.bytes("b.npy"));
    assert_eq!(fixture.bytes("c.npy"), fixture.bytes("d.npy"));
    assert_ne!(fixture.bytes("a.npy"), fixture.bytes("c.npy"));
    fixture.fails(2, &["run", "q", "--input", "x.npy", "--output", "q/y.npy"], &["inside the package"]);
    fixture.fails(2, &["run", "q", "--input", "x.npy", "--output", "y.tif"], &[".tif", ".npy"]);
    fixture.fails(2, &["run", "nosuch", "--input", "x.npy"], &["nosuch", "known are"]);
}

#[test]
fn a_package_without_its_float_network_opens_and_predicts() {
    let fixture = Fixture::new();
    fixture.unet(8);
    stacks(&fixture);
    let arguments = ["quantize", "net.onnx", "--mode", "static", "--calibrate", "sim", "--accuracy-budget", "1"];
    let report = fixture.run(&[&arguments[..], &["--without-float", "--out", "small", "--json"]].concat()).json();
    // The declared network, which other programs run, is the int8 network.
    assert_eq!(report["int8_bytes"].as_u64().unwrap(), fixture.bytes("small/model.onnx").len() as u64);
    assert!(!fixture.path("small/model_int8.onnx").exists());
    let text = rdf(&fixture, "small");
    assert!(text.contains("reproducibility_tolerance") && text.contains("output_ids"), "{text}");
    let imported = fixture.run(&["import", "small", "--out", "again.zip", "--json"]).json();
    assert_eq!(imported["test"], "the test outputs are reproduced");
    let predict = |model: &str| {
        let out = format!("{model}-out");
        let arguments = ["predict", "sim/nuclei_1_raw.tif", "--model", model, "--device", "cpu", "--outputs", "maps"];
        let report = fixture.run(&[&arguments[..], &["--out", &out, "--json"]].concat()).json();
        let map = fixture.image(&format!("{out}/nuclei_1_raw_probability.tif"));
        (report["inputs"][0]["precision"].as_str().unwrap().to_owned(), map.samples().to_f32())
    };
    let (precision, float) = predict("net.onnx");
    assert_eq!(precision, "f32");
    for model in ["small", "again.zip"] {
        let (precision, int8) = predict(model);
        assert_eq!(precision, "int8", "{model}");
        let error = relative_l2(&int8, &float);
        assert!(error > 0.0 && error < 0.5, "{model}: {error}");
    }
}
