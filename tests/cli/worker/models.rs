//! Jobs of the worker that quantize, import, test, measure and export models.

use super::{Engine, job, predict_request};
use crate::common::Fixture;
use cytoscope_model_package::Package;
use cytoscope_pipeline::{Event, ExportReport, JobErrorKind, ProgressStage};
use cytoscope_worker::{JobId, JobResult, Reply, Request, WorkerEvent};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Writes a small network as `net.onnx`, simulates two stacks in `sim/`, and returns one of them.
fn network_and_stack(fixture: &Fixture) -> String {
    fixture.unet(8);
    fixture.nuclei("16,64,64", 2);
    fixture.nuclei("16,64,64", 1)
}

fn request(id: u64, job: Value) -> Request {
    Request::run(JobId(id), serde_json::from_value(job).unwrap())
}

/// A quantization of `net.onnx`, calibrated on the stacks in `sim`.
fn quantize(fixture: &Fixture, out: &str, mode: &str) -> Value {
    let [model, out, calibrate] = ["net.onnx", out, "sim"].map(|name| fixture.path(name));
    json!({"quantize": {"quantization": {
        "model": model, "out": out, "mode": mode, "calibrate": [calibrate], "accuracy_budget": 0.1,
    }}})
}

fn import(fixture: &Fixture, file: &str, out: &str) -> Value {
    json!({"import": {"file": fixture.path(file), "out": fixture.path(out)}})
}

/// Predicts a stack with the package `model` in the worker, and returns the precision used and the probability map.
fn predict_with(
    engine: &mut Engine,
    id: u64,
    fixture: &Fixture,
    stack: &str,
    model: &str,
    precision: Option<&str>,
) -> (String, Vec<f32>) {
    let out = format!("o{id}");
    let prediction = job(json!({
        "inputs": [fixture.path(stack)], "model": fixture.path(model), "out": fixture.path(&out), "device": "cpu",
        "precision": precision, "outputs": ["maps"],
    }));
    engine.worker.send(predict_request(id, prediction, false));
    let JobResult::Predict(outcome) = engine.done(id) else { panic!() };
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
    let map = fixture.names(&out).into_iter().find(|name| name.ends_with(".tif")).unwrap();
    (outcome.done[0].precision.to_string(), fixture.image(&format!("{out}/{map}")).samples().to_f32())
}

/// Runs a job that fails, and returns the kind of error, the message, and what the job would overwrite.
fn failure(
    engine: &mut Engine,
    id: u64,
    job: Value,
) -> (JobErrorKind, String, Option<cytoscope_pipeline::ExistingOutput>) {
    engine.worker.send(request(id, job));
    match engine.end(id) {
        Reply::Failed { kind, message, existing, .. } => (kind, message, existing),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_package_quantized_in_the_worker_predicts_with_its_int8_network() {
    let fixture = Fixture::new();
    let raw = network_and_stack(&fixture);
    let mut engine = Engine::start(&fixture);
    engine.worker.send(request(1, quantize(&fixture, "q", "static")));
    let JobResult::Quantize(report) = engine.done(1) else { panic!() };
    assert_eq!((report.out.clone(), report.budget_met), (fixture.path("q"), true), "{report:?}");
    let stages: BTreeSet<ProgressStage> = engine
        .seen
        .iter()
        .filter_map(|event| match event {
            WorkerEvent::Reply(Reply::Progress { event: Event::Progress(progress), .. }) => Some(progress.stage),
            _ => None,
        })
        .collect();
    assert!(
        stages.is_superset(&[ProgressStage::Calibrate, ProgressStage::Time, ProgressStage::Write].into()),
        "{stages:?}"
    );
    let package = Package::open(&fixture.path("q")).unwrap();
    assert!(package.is_int8() && package.float_graph.is_some());
    let (precision, int8) = predict_with(&mut engine, 2, &fixture, &raw, "q", None);
    assert_eq!(precision, "int8");
    let (precision, float) = predict_with(&mut engine, 3, &fixture, &raw, "q", Some("f32"));
    assert_eq!(precision, "f32");
    let difference: f32 = int8.iter().zip(&float).map(|(a, b)| (a - b).abs()).sum();
    let magnitude: f32 = float.iter().map(|v| v.abs()).sum();
    assert!(int8 != float && difference < 0.3 * magnitude, "{difference} of {magnitude}");
}

#[test]
fn a_canceled_quantization_stops_its_training_and_leaves_no_package() {
    let fixture = Fixture::new();
    network_and_stack(&fixture);
    let mut engine = Engine::start(&fixture);
    let mut job = quantize(&fixture, "q", "qat");
    // A budget that no int8 network meets, so that the training starts.
    job["quantize"]["quantization"]["accuracy_budget"] = json!(1e-9);
    job["quantize"]["steps"] = json!(1_000_000);
    engine.worker.send(request(1, job));
    engine.reply("a training step", |reply| match reply {
        Reply::Progress { event: Event::Progress(progress), .. } => {
            (progress.stage == ProgressStage::Qat && progress.done > 0).then_some(())
        }
        Reply::Failed { message, .. } => panic!("{message}"),
        _ => None,
    });
    engine.worker.send(Request::Cancel { id: JobId(1) });
    assert_eq!(engine.end(1), Reply::Canceled { id: JobId(1) });
    assert!(!fixture.path("q").exists());
    assert!(fixture.leftovers().is_empty(), "{:?}", fixture.leftovers());
}

#[test]
fn models_imported_in_the_worker_predict_like_their_originals() {
    let fixture = Fixture::new();
    let raw = network_and_stack(&fixture);
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nuclei-dog");
    let mut engine = Engine::start(&fixture);
    engine.worker.send(request(1, import(&fixture, "net.onnx", "mine")));
    let JobResult::Import(report) = engine.done(1) else { panic!() };
    assert!(report.nodes > 5 && report.engines.iter().any(|e| e.agrees), "{report:?}");
    let from_file = predict_with(&mut engine, 2, &fixture, &raw, "net.onnx", None);
    assert_eq!(predict_with(&mut engine, 3, &fixture, &raw, "mine", None), from_file);
    engine.worker.send(request(4, json!({"import": {"file": bundled, "out": fixture.path("copy.zip")}})));
    let JobResult::Import(report) = engine.done(4) else { panic!() };
    assert_eq!(report.test, "the test outputs are reproduced");
    let bundled = predict_with(&mut engine, 5, &fixture, &raw, bundled.to_str().unwrap(), None);
    assert_eq!(predict_with(&mut engine, 6, &fixture, &raw, "copy.zip", None), bundled);
}

#[test]
fn models_are_tested_measured_and_exported_in_the_worker() {
    let fixture = Fixture::new();
    network_and_stack(&fixture);
    let mut engine = Engine::start(&fixture);
    let net = fixture.path("net.onnx");
    engine.worker.send(request(1, json!({"model_test": {"file": net}})));
    let JobResult::ModelTest(report) = engine.done(1) else { panic!() };
    assert_eq!((report.reproduced, report.card.input_channels), (None, 1), "it has no test tensors");
    assert!(report.nodes > 5 && report.engines.iter().any(|e| e.agrees), "{report:?}");
    engine.worker.send(request(2, json!({"model_speed": {"model": net}})));
    let JobResult::ModelSpeed(speed) = engine.done(2) else { panic!() };
    let cpu = speed.rows.iter().find(|row| row.device.to_string() == "cpu" && row.precision.name() == "f32").unwrap();
    assert_eq!(speed.input_shapes, [[1, 1, 48, 48, 48]], "a tile");
    let voxels: usize = speed.input_shapes[0].iter().product();
    let rate = voxels as f64 / (cpu.run_ms.unwrap() * 1e-3);
    assert!((cpu.voxels_per_sec.unwrap() / rate - 1.0).abs() < 1e-6, "{cpu:?}");
    let weights = fixture.path("net.safetensors");
    let export = json!({"export": {"model": net, "format": "safetensors", "out": weights}});
    engine.worker.send(request(3, export.clone()));
    let expected = ExportReport { output: weights.clone(), left_out: Vec::new(), moved_to: None };
    assert_eq!(engine.done(3), JobResult::Export(expected));
    // Eight bytes state the length of the header, which is JSON.
    let bytes = std::fs::read(&weights).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    assert!(header.as_object().unwrap().len() > 5, "{header}");
    let (kind, message, existing) = failure(&mut engine, 4, export);
    assert_eq!(kind, JobErrorKind::WouldOverwrite, "{message}");
    let existing = existing.unwrap();
    assert_eq!((existing.path.file_name(), existing.problem.as_str()), (weights.file_name(), "already exists"));
}

#[test]
fn foreign_folders_are_refused_as_by_the_command_line_and_moved_aside_on_request() {
    let fixture = Fixture::new();
    network_and_stack(&fixture);
    std::fs::create_dir(fixture.path("mine")).unwrap();
    std::fs::write(fixture.path("mine/notes.txt"), "keep").unwrap();
    let [net, mine] = ["net.onnx", "mine"].map(|name| fixture.path(name).to_str().unwrap().to_owned());
    let mut engine = Engine::start(&fixture);
    let jobs = [
        (quantize(&fixture, "mine", "dynamic"), vec!["quantize", &net, "--mode", "dynamic", "--out", &mine]),
        (import(&fixture, "net.onnx", "mine"), vec!["import", &net, "--out", &mine]),
    ];
    for (id, (job, arguments)) in (1..).zip(jobs) {
        let (kind, message, existing) = failure(&mut engine, id, job);
        assert_eq!(kind, JobErrorKind::WouldOverwrite, "{message}");
        assert!(existing.as_ref().is_some_and(|existing| existing.path.ends_with("mine")), "{existing:?}");
        fixture.fails(2, &arguments, &[&message]);
        assert_eq!(fixture.names("mine"), ["notes.txt"]);
    }
    let mut job = import(&fixture, "net.onnx", "mine");
    job["import"]["overwrite"] = json!("replace");
    engine.worker.send(request(3, job));
    let JobResult::Import(report) = engine.done(3) else { panic!() };
    assert_eq!(std::fs::read_to_string(report.moved_to.unwrap().join("notes.txt")).unwrap(), "keep");
    assert!(Package::open(&fixture.path("mine")).is_ok());
}

#[test]
fn invalid_quantizations_and_imports_fail_with_a_typed_error() {
    let fixture = Fixture::new();
    network_and_stack(&fixture);
    std::fs::write(fixture.path("broken.onnx"), "no network").unwrap();
    let mut engine = Engine::start(&fixture);
    let changed = |mode: &str, set: &dyn Fn(&mut Value)| {
        let mut job = quantize(&fixture, "q", mode);
        set(&mut job["quantize"]);
        job
    };
    let (wrong_use, bad_input) = (JobErrorKind::WrongUse, JobErrorKind::BadInput);
    let jobs = [
        (changed("qat", &|job| job["minutes"] = json!(0.0)), wrong_use, "minutes"),
        (changed("static", &|job| job["steps"] = json!(9)), wrong_use, "mode qat only"),
        (changed("static", &|job| job["quantization"]["accuracy_budget"] = json!(-1.0)), wrong_use, "budget"),
        (changed("static", &|job| job["quantization"]["keep_float"] = json!(["nosuch"])), wrong_use, "nosuch"),
        (changed("static", &|job| job["quantization"]["model"] = json!("nosuch")), wrong_use, "nosuch"),
        (changed("static", &|job| job["quantization"]["calibrate"] = json!(["nothere"])), bad_input, "nothere"),
        (import(&fixture, "broken.onnx", "q"), bad_input, "broken.onnx"),
        (import(&fixture, "nothere.zip", "q"), bad_input, "nothere.zip"),
        (import(&fixture, "net.onnx", "net.onnx"), wrong_use, "is also an input"),
        (import(&fixture, "net.onnx", "nofolder/q"), wrong_use, "nofolder"),
    ];
    for (id, (job, expected, word)) in (1..).zip(jobs) {
        let (kind, message, _) = failure(&mut engine, id, job);
        assert_eq!(kind, expected, "{message}");
        assert!(message.contains(word), "no \"{word}\" in: {message}");
    }
    assert!(!fixture.path("q").exists() && fixture.leftovers().is_empty(), "{:?}", fixture.leftovers());
}
