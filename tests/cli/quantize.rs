//! `quantize`: results, calibration, budgets, and refused inputs.

use crate::common::{Fixture, floats, missing, npy_f32, parse_npy, python, uniform};
use cytoscope_builders::{UNet3d, Weights, unet3d};
use cytoscope_graph::{Activation, BinaryOp, ConvAttrs, Dim, ElementType, Graph, Op, Tensor};
use cytoscope_model_package::Package;
use cytoscope_pipeline::{Context, Event, JobError, ProgressStage};
use cytoscope_quantize::{QuantizeJob, QuantizeMode};
use cytoscope_storage::{Overwrite, StorageError};
use cytoscope_testkit::noise;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Simulates two stacks in `sim/`.
pub(crate) fn stacks(fixture: &Fixture) {
    fixture.nuclei("16,64,64", 1);
    fixture.nuclei("16,64,64", 2);
}

/// The text of a package's description.
pub(crate) fn rdf(fixture: &Fixture, package: &str) -> String {
    String::from_utf8(fixture.bytes(&format!("{package}/rdf.yaml"))).unwrap()
}

/// The relative L2 error of `a` against `b`.
pub(crate) fn relative_l2(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(x, y)| f64::from(x - y))) / norm(&mut b.iter().map(|v| f64::from(*v)))
}

#[test]
fn network_is_quantized_within_its_budget_and_the_report_explains_it() {
    let fixture = Fixture::new();
    fixture.unet(8);
    stacks(&fixture);
    let arguments = ["quantize", "net.onnx", "--mode", "static", "--calibrate", "sim", "--out", "q", "--json"];
    let report = fixture.run(&[&arguments[..], &["--accuracy-budget", "0.3"]].concat()).json();
    let promised = [
        "out",
        "mode",
        "float_bytes",
        "int8_bytes",
        "tile_times",
        "outputs",
        "method",
        "candidates",
        "left_float",
        "accuracy_budget",
        "budget_met",
        "agreement_metric",
        "calibration_tiles",
        "held_out_tiles",
        "seconds",
    ];
    assert_eq!(missing(&report, &promised), Vec::<&str>::new());
    assert_eq!((report["mode"].as_str(), report["budget_met"].as_bool()), (Some("static"), Some(true)), "{report:#}");
    let [before, after] = ["float_bytes", "int8_bytes"].map(|k| report[k].as_u64().unwrap());
    assert_eq!(after, fixture.bytes("q/model_int8.onnx").len() as u64);
    assert_eq!(before, fixture.bytes("q/model.onnx").len() as u64);
    assert!(after < before, "{after} of {before}");
    let output = &report["outputs"][0];
    let error = output["relative_l2"].as_f64().unwrap();
    assert!(error > 0.0 && error <= 0.3, "{output}");
    assert!((0.8..=1.0).contains(&output["agreement"].as_f64().unwrap()), "{output}");
    // The method used is in the table, and none in the table is better.
    let candidates = report["candidates"].as_array().unwrap();
    let least = candidates.iter().map(|c| c["relative_l2"].as_f64().unwrap()).fold(f64::INFINITY, f64::min);
    let taken = candidates.iter().find(|c| c["method"] == report["method"] && c["equalized"] == report["equalized"]);
    assert_eq!(taken.unwrap()["relative_l2"].as_f64(), Some(least));
    assert!(candidates.len() >= 6, "{candidates:?}");
    for time in report["tile_times"].as_array().unwrap() {
        for key in ["f32_cpu_ms", "int8_cpu_ms", "f32_wall_ms", "int8_wall_ms"] {
            assert!(time[key].as_f64().unwrap() > 0.0, "{time}");
        }
    }
    // The package contains the record. Its declared network is the float network, so it declares no tolerance.
    let text = rdf(&fixture, "q");
    for part in ["quantized_weights", "source: model_int8.onnx", "attachments", "quantization"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(!text.contains("reproducibility_tolerance"), "{text}");
    let text = fixture.run(&[&arguments[..8], &["--accuracy-budget", "0.3"]].concat()).ok().stdout;
    for word in ["int8", "relative L2", "Dice", "<- chosen", "budget 0.3: met", "thread"] {
        assert!(text.contains(word), "no \"{word}\" in {text}");
    }
}

#[test]
fn tight_budget_keeps_layers_in_float_and_names_them() {
    let fixture = Fixture::new();
    fixture.unet(8);
    stacks(&fixture);
    let run = |budget: &str, out: &str, more: &[&str]| {
        let arguments = ["quantize", "net.onnx", "--mode", "static", "--calibrate", "sim", "--json"];
        fixture.run(&[&arguments[..], &["--accuracy-budget", budget, "--out", out], more].concat()).json()
    };
    let loose = run("1", "loose", &["--keep-float", "head.out"]);
    let error = |report: &Value| report["outputs"][0]["relative_l2"].as_f64().unwrap();
    let left = loose["left_float"].as_array().unwrap();
    assert_eq!(
        (left.len(), left[0]["name"].as_str(), left[0]["why"].as_str()),
        (1, Some("head.out"), Some("requested"))
    );
    let tight = run(&format!("{}", error(&loose) / 2.0), "tight", &[]);
    let left = tight["left_float"].as_array().unwrap();
    assert!(!left.is_empty() && left.iter().all(|l| l["why"].as_str().unwrap().contains("relative L2")), "{left:?}");
    assert_eq!(tight["budget_met"].as_bool(), Some(error(&tight) <= error(&loose) / 2.0));
    assert!(error(&tight) < error(&loose));
    for other in tight["other_methods"].as_array().into_iter().flatten() {
        assert!(other["tensor"].is_string() && other["method"] != tight["method"], "{other}");
    }
    let share = tight["float_share_of_work"].as_f64().unwrap();
    assert!(share > 0.0 && share < 1.0, "{share}");
    let layers = tight["quantized_layers"].as_u64().unwrap();
    assert_eq!(layers + left.len() as u64, 5, "every layer is counted once");
}

#[test]
fn qat_brings_the_int8_network_closer_to_the_float_network() {
    let fixture = Fixture::new();
    fixture.unet(8);
    for seed in 1..=4 {
        fixture.nuclei("16,64,64", seed);
    }
    let run = |mode: &str, budget: &str, more: &[&str]| {
        let arguments = ["quantize", "net.onnx", "--mode", mode, "--calibrate", "sim", "--json"];
        fixture.run(&[&arguments[..], &["--accuracy-budget", budget], more].concat()).json()
    };
    let before = run("static", "1", &["--out", "static"]);
    assert!(before["qat"].is_null());
    let error = |report: &Value| report["outputs"][0]["relative_l2"].as_f64().unwrap();
    // A budget that calibration alone misses, and that needs no float layers.
    let budget = error(&before) * 0.98;
    let after = run("qat", &budget.to_string(), &["--steps", "60", "--out", "qat"]);
    let qat = &after["qat"];
    assert_eq!((qat["kept"].as_bool(), qat["steps"].as_u64()), (Some(true), Some(60)), "{qat}");
    assert_eq!(after["left_float"].as_array().map(Vec::len), Some(0), "every layer in int8");
    assert!(error(&after) <= budget && after["budget_met"] == true, "{after:#}");
    // If training misses the budget, layers of the trained network are left in float.
    let tight = run("qat", &format!("{}", error(&before) / 2.0), &["--steps", "60", "--out", "tight"]);
    let left = tight["left_float"].as_array().unwrap();
    assert!(tight["qat"]["kept"] == true && !left.is_empty() && left.len() < 5, "{tight:#}");
    let names: Vec<&str> = left.iter().map(|layer| layer["name"].as_str().unwrap()).collect();
    let untrained = run("static", "1", &["--keep-float", &names.join(","), "--out", "untrained"]);
    assert!(error(&tight) < error(&untrained), "{tight:#} {untrained:#}");
    // Final predictions on a stack that neither was calibrated on.
    let raw = fixture.nuclei("16,64,64", 9);
    let predict = |model: &str, precision: &str| {
        let out = format!("{model}-{precision}");
        let arguments = ["predict", &raw, "--model", model, "--precision", precision, "--device", "cpu"];
        fixture.run(&[&arguments[..], &["--outputs", "maps", "--out", &out]].concat()).ok();
        let file = fixture.names(&out).into_iter().find(|n| n.ends_with(".tif")).unwrap();
        fixture.image(&format!("{out}/{file}")).samples().to_f32()
    };
    let float = predict("static", "f32");
    assert_eq!(float, predict("qat", "f32"), "the float network is unchanged");
    let [plain, trained] = ["static", "qat"].map(|model| relative_l2(&predict(model, "int8"), &float));
    assert!(trained < plain, "{trained} after training, {plain} before");
}

#[test]
fn bundled_model_can_be_quantized_without_data() {
    let fixture = Fixture::new();
    let arguments = ["quantize", "nuclei-dog", "--mode", "dynamic", "--out", "q", "--accuracy-budget", "0.1", "--json"];
    let report = fixture.run(&[&arguments[..], &["--trace", "t.json"]].concat()).json();
    assert_eq!(report["mode"], "dynamic");
    let profile = fixture.run(&["profile", "t.json", "--json"]).json();
    let stages: Vec<&str> =
        profile["run"]["stages"].as_array().unwrap().iter().map(|s| s["stage"].as_str().unwrap()).collect();
    assert!(["load", "quantize", "write"].iter().all(|stage| stages.contains(stage)), "{stages:?}");
    assert_eq!(profile["run"], report["run"]);
    assert!(report["method"].is_null());
    assert!(report["notes"][0].as_str().unwrap().contains("test tensor"), "{}", report["notes"]);
    assert_eq!(report["budget_met"], true, "{}", report["outputs"]);
    let bytes = fixture.bytes("q/model_int8.onnx");
    assert!(bytes.windows(21).any(|w| w == b"DynamicQuantizeLinear"));
}

#[test]
fn a_folder_that_is_replaced_is_moved_aside_and_named() {
    let fixture = Fixture::new();
    fixture.unet(8);
    stacks(&fixture);
    std::fs::create_dir(fixture.path("mine")).unwrap();
    std::fs::write(fixture.path("mine/notes.txt"), b"keep").unwrap();
    let arguments =
        ["quantize", "net.onnx", "--mode", "static", "--calibrate", "sim", "--out", "mine", "--force", "--json"];
    let report = fixture.run(&[&arguments[..], &["--accuracy-budget", "0.3"]].concat()).json();
    let moved = report["moved_to"].as_str().unwrap();
    assert!(report["notes"].to_string().contains(&format!(" were moved to {moved}")), "{report:#}");
    assert_eq!(std::fs::read(fixture.path(moved).join("notes.txt")).unwrap(), b"keep");
    assert!(fixture.path("mine/rdf.yaml").is_file());
}

#[test]
fn quantized_files_run_in_onnx_runtime() {
    let fixture = Fixture::new();
    fixture.unet(8);
    stacks(&fixture);
    fixture
        .run(&[
            "quantize",
            "net.onnx",
            "--mode",
            "static",
            "--calibrate",
            "sim",
            "--accuracy-budget",
            "1",
            "--out",
            "q",
        ])
        .ok();
    let shape = [1, 1, 8, 24, 16];
    std::fs::write(fixture.path("x.npy"), npy_f32(&shape, &uniform(5, shape.iter().product()))).unwrap();
    fixture
        .run(&["run", "q/model_int8.onnx", "--engine", "reference", "--input", "x.npy", "--output", "ours.npy"])
        .ok();
    let script = "import sys, numpy as np, onnxruntime as ort\n\
        s = ort.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n\
        np.save(sys.argv[3], s.run(None, {s.get_inputs()[0].name: np.load(sys.argv[2])})[0])\n";
    let files: Vec<_> = ["q/model_int8.onnx", "x.npy", "theirs.npy"].iter().map(|f| fixture.path(f)).collect();
    let files: Vec<&Path> = files.iter().map(|f| f.as_path()).collect();
    if python("numpy, onnxruntime", script, &files).is_none() {
        return;
    }
    let values = |file: &str| floats(&parse_npy(&fixture.bytes(file)).2);
    let error = relative_l2(&values("theirs.npy"), &values("ours.npy"));
    assert!(error < 0.02, "{error}");
}

#[test]
fn networks_for_stacks_are_calibrated_with_single_planes() {
    let fixture = Fixture::new();
    fixture.unet(8);
    let plane = fixture.write("plane.tif", "YX", &[160, 160], uniform(5, 160 * 160));
    let arguments = ["quantize", "net.onnx", "--mode", "static", "--calibrate", &plane, "--out", "q", "--json"];
    let report = fixture.run(&[&arguments[..], &["--accuracy-budget", "0.9"]].concat()).json();
    assert!(report["calibration_tiles"].as_u64() > Some(0), "{report:#}");
    assert!(report["int8_bytes"].as_u64() < report["float_bytes"].as_u64(), "{report:#}");
}

#[test]
fn the_channel_of_the_calibration_data_can_be_chosen() {
    let fixture = Fixture::new();
    fixture.unet(8);
    let (a, b) = (uniform(5, 16 * 64 * 64), uniform(6, 16 * 64 * 64).iter().map(|v| v * v).collect::<Vec<f32>>());
    let both = fixture.write("both.ome.tif", "CZYX", &[2, 16, 64, 64], [&a[..], &b[..]].concat());
    let second = fixture.write("second.tif", "ZYX", &[16, 64, 64], b);
    let int8 = |out: &str, options: &[&str]| {
        let arguments = ["quantize", "net.onnx", "--mode", "static", "--accuracy-budget", "0.9", "--out", out];
        fixture.run(&[&arguments[..], &["--calibrate"], options].concat());
        std::fs::read(fixture.path(out).join("model_int8.onnx")).unwrap()
    };
    let alone = int8("alone", &[&second]);
    assert_ne!(int8("first", &[&both]), alone);
    assert_eq!(int8("number", &[&both, "--channel", "1"]), alone);
    assert_eq!(int8("list", &[&both, "--channels", "1"]), alone);
    // Without a nominal voxel size, the model reads the same voxels whatever their size is.
    assert_eq!(int8("sized", &[&second, "--voxel-size", "2,1,1"]), alone);
}

#[test]
fn bad_calibration_data_is_refused_by_name() {
    let fixture = Fixture::new();
    fixture.unet(8);
    stacks(&fixture);
    let with = |data: &str| {
        ["quantize", "net.onnx", "--mode", "static", "--out", "q", "--calibrate", data].map(str::to_owned).to_vec()
    };
    let refuse = |data: &str, words: &[&str]| {
        let arguments = with(data);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        fixture.fails(3, &arguments, words);
        assert!(!fixture.path("q").exists(), "{data}");
    };
    std::fs::create_dir(fixture.path("empty")).unwrap();
    refuse("empty", &["empty", "no stacks"]);
    refuse("nothere", &["nothere"]);
    for (name, value) in [("nan", f32::NAN), ("inf", f32::INFINITY)] {
        let mut values = uniform(1, 16 * 16 * 16);
        values[777] = value;
        let file = fixture.write(&format!("{name}.tif"), "ZYX", &[16, 16, 16], values);
        refuse(&file, &[&file, "NaN, infinite or too large", "leave it out"]);
    }
    std::fs::write(fixture.path("row.npy"), npy_f32(&[7], &[0.0; 7])).unwrap();
    refuse("row.npy", &["row.npy", "a row of voxels"]);
    let flat = fixture.write("flat.tif", "ZYX", &[16, 16, 16], vec![7u16; 16 * 16 * 16]);
    refuse(&flat, &[&flat, "different values"]);
    std::fs::write(fixture.path("text.tif"), b"no image").unwrap();
    refuse("text.tif", &["text.tif"]);
    // A network with two channels, and stacks with one.
    let config = UNet3d { in_channels: 2, filters: vec![4, 4], strides: vec![[2; 3]], ..UNet3d::default() };
    cytoscope_onnx::save(&unet3d(&config, &Weights::Random { seed: 1 }).unwrap(), &fixture.path("two.onnx")).unwrap();
    let words = ["nuclei_1_raw.tif", "requires 2 channels"];
    fixture.fails(3, &["quantize", "two.onnx", "--mode", "static", "--calibrate", "sim", "--out", "q"], &words);
    // No data at all.
    fixture.fails(3, &["quantize", "net.onnx", "--mode", "static", "--out", "q"], &["net.onnx", "--calibrate"]);
}

/// Writes a network that adds the convolutions of its inputs `nuclei` and `membrane` as `inputs.onnx`.
pub(crate) fn write_two_input_network(fixture: &Fixture) {
    let mut graph = Graph::new("two inputs");
    let conv = |graph: &mut Graph, name: &str, x, shape: [usize; 5]| {
        let values = noise(name.len() as u64, shape.iter().product());
        let weight = graph.add_initializer(format!("{name}.weight"), Tensor::new(shape, values).unwrap());
        graph.push(name, Op::Conv(ConvAttrs::same(&shape[2..])), &[Some(x), Some(weight)])
    };
    let free = |axis: &str| Dim::Free(axis.to_owned());
    let dims = || vec![Dim::Fixed(1), Dim::Fixed(1), free("z"), free("y"), free("x")];
    let convolved = ["nuclei", "membrane"].map(|name| {
        let input = graph.add_input(name, ElementType::F32, dims());
        Some(conv(&mut graph, &format!("{name} conv"), input, [8, 1, 3, 3, 3]))
    });
    let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &convolved);
    let active = graph.push("sum.act", Op::Activation(Activation::Relu), &[Some(sum)]);
    let out = conv(&mut graph, "out", active, [1, 8, 1, 1, 1]);
    graph.outputs.push(out);
    graph.values[out.index()].dtype = Some(ElementType::F32);
    graph.values[out.index()].shape = Some(dims());
    cytoscope_onnx::save(&graph, &fixture.path("inputs.onnx")).unwrap();
}

#[test]
fn a_network_of_several_inputs_is_calibrated_with_an_image_of_each() {
    let fixture = Fixture::new();
    write_two_input_network(&fixture);
    for folder in ["raw", "spots"] {
        std::fs::create_dir(fixture.path(folder)).unwrap();
    }
    for (seed, name) in [(1, "a.tif"), (2, "b.tif")] {
        let raw = noise(seed, 16 * 32 * 32);
        // A few bright voxels: a range of the other image would cut them off.
        let spots: Vec<f32> = (0..raw.len()).map(|i| if i % 501 == 0 { 50.0 } else { 0.0 }).collect();
        fixture.write(&format!("raw/{name}"), "ZYX", &[16, 32, 32], raw);
        fixture.write(&format!("spots/{name}"), "ZYX", &[16, 32, 32], spots);
    }
    let common = ["quantize", "inputs.onnx", "--accuracy-budget", "0.3", "--json"];
    let calibrated = [&common[..], &["--mode", "static", "--calibrate", "raw"]].concat();
    let arguments = [&calibrated[..], &["--input", "membrane=spots", "--out", "q"]].concat();
    let report = fixture.run(&arguments).json();
    assert_eq!((report["budget_met"].as_bool(), report["quantized_layers"].as_u64()), (Some(true), Some(3)));
    let package = Package::open(&fixture.path("q")).unwrap();
    for graph in [&package.graph, package.float_graph.as_ref().unwrap()] {
        let names: Vec<&str> = graph.inputs.iter().map(|id| graph.value(*id).name.as_str()).collect();
        assert_eq!(names, ["nuclei", "membrane"]);
    }
    let maps = ["f32", "int8"].map(|precision| {
        let inputs = ["predict", "raw/a.tif", "--input", "membrane=spots/a.tif", "--model", "q", "--outputs", "maps"];
        let more = ["--device", "cpu", "--precision", precision, "--out", precision];
        fixture.run(&[&inputs[..], &more].concat()).ok();
        fixture.image(&format!("{precision}/a_probability.tif")).samples().to_f32()
    });
    let error = relative_l2(&maps[1], &maps[0]);
    assert!(error > 0.0 && error < 0.1, "{error}");
    fixture.run(&[&common[..], &["--mode", "dynamic", "--out", "d"]].concat()).ok();
    let unknown = [&calibrated[..], &["--input", "actin=spots", "--out", "n"]].concat();
    fixture.fails(2, &unknown, &["no input \"actin\"", "nuclei, membrane"]);
    let trained = ["quantize", "inputs.onnx", "--mode", "qat", "--steps", "4", "--accuracy-budget", "1e-9", "--json"];
    let spot_options = ["--calibrate", "raw", "--input", "membrane=spots", "--out", "t", "--trace", "t.json"];
    let report = fixture.run(&[&trained[..], &spot_options].concat()).json();
    assert_eq!(report["qat"]["steps"].as_u64(), Some(4));
    let trace: serde_json::Value = serde_json::from_slice(&fixture.bytes("t.json")).unwrap();
    let spans = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["cat"] == "quantize");
    let mut names: Vec<&str> = spans.filter_map(|event| event["name"].as_str()).collect();
    names.dedup();
    assert_eq!(names, ["search", "quantization-aware training", "search", "timing"]);
}

#[test]
fn a_file_that_appears_during_the_quantization_is_not_overwritten() {
    let fixture = Fixture::new();
    fixture.unet(8);
    let out = fixture.path("int8.onnx");
    let job = |overwrite: Overwrite| QuantizeJob {
        model: fixture.path("net.onnx").display().to_string(),
        out: out.clone(),
        mode: QuantizeMode::Dynamic,
        calibrate: Vec::new(),
        predictions: Vec::new(),
        accuracy_budget: 1.0,
        keep_float: BTreeSet::new(),
        without_float: false,
        overwrite,
    };
    // The file appears just before the network is written.
    let appearing = out.clone();
    let sink = move |event: &Event| {
        if matches!(event, Event::Progress(progress) if progress.stage == ProgressStage::Write && progress.done == 0) {
            std::fs::write(&appearing, b"mine").unwrap();
        }
    };
    let context = Context { sink: Arc::new(sink), ..Context::default() };
    let refused = job(Overwrite::Refuse).run(&context);
    assert!(matches!(refused, Err(JobError::Storage(StorageError::Exists { .. }))), "{refused:?}");
    assert_eq!(fixture.bytes("int8.onnx"), b"mine");
    assert_eq!(fixture.leftovers(), Vec::<PathBuf>::new());
    job(Overwrite::Replace).run(&context).unwrap();
    assert_ne!(fixture.bytes("int8.onnx"), b"mine");
}

#[test]
fn wrong_usage_is_reported_before_any_computation() {
    let fixture = Fixture::new();
    fixture.unet(8);
    fixture.fails(2, &["quantize", "net.onnx", "--mode", "dynamic", "--minutes", "1", "--out", "q"], &["--mode qat"]);
    fixture.fails(2, &["quantize", "net.onnx", "--mode", "qat", "--minutes", "0", "--out", "q"], &["--minutes"]);
    fixture.fails(2, &["quantize", "net.onnx", "--out", "q"], &["--mode"]);
    fixture.fails(2, &["quantize", "nosuch", "--mode", "dynamic", "--out", "q"], &["nosuch"]);
    let static_mode = ["quantize", "net.onnx", "--mode", "static", "--out", "q"];
    fixture.fails(2, &[&static_mode[..], &["--diameter", "9"]].concat(), &["--calibrate"]);
    let stack = fixture.write("stack.tif", "ZYX", &[16, 16, 16], uniform(1, 16 * 16 * 16));
    let given = ["--calibrate", &stack, "--diameter", "9"];
    fixture.fails(2, &[&static_mode[..], &given].concat(), &["declares no object diameter", "leave the option out"]);
    let dynamic = ["quantize", "net.onnx", "--mode", "dynamic", "--out", "q"];
    fixture.fails(2, &[&dynamic[..], &["--keep-float", "nosuch"]].concat(), &["nosuch", "head.out"]);
    fixture.fails(2, &[&dynamic[..], &["--accuracy-budget", "0"]].concat(), &["budget"]);
    fixture.fails(
        2,
        &["quantize", "net.onnx", "--mode", "dynamic", "--out", "net.onnx"],
        &["net.onnx", "is also an input"],
    );
    let unknown = ["quantize", "net.onnx", "--mode", "dynamic", "--out", "net.pth"];
    fixture.fails(2, &unknown, &["net.pth", "ends in .pth", "a folder", ".zip", ".onnx"]);
    std::fs::create_dir(fixture.path("mine")).unwrap();
    std::fs::write(fixture.path("mine/notes.txt"), b"keep").unwrap();
    fixture.fails(2, &["quantize", "net.onnx", "--mode", "dynamic", "--out", "mine"], &["mine", "did not make"]);
    assert_eq!(fixture.bytes("mine/notes.txt"), b"keep");
    std::fs::write(fixture.path("photos.zip"), b"mine").unwrap();
    fixture.fails(
        2,
        &["quantize", "net.onnx", "--mode", "dynamic", "--out", "photos.zip"],
        &["photos.zip", "already exists"],
    );
    // A quantized network cannot be quantized again.
    fixture
        .run(&["quantize", "net.onnx", "--mode", "dynamic", "--accuracy-budget", "1", "--without-float", "--out", "q"])
        .ok();
    fixture.fails(3, &["quantize", "q", "--mode", "dynamic", "--out", "r"], &["already"]);
}
