//! `profile`: traces and reports, their comparison and tables, advice, and the memory of repeated jobs.

use crate::common::{Fixture, missing, npy_f32};
use crate::train::{SMALL, simulate_pairs, write_settings};
use cytoscope_profile::{DeviceMemory, EngineMemory, Recorder, RunFacts, RunRecord, Stage};
use cytoscope_testkit::chrome_trace;
use serde_json::{Value, json};
use std::time::Duration;

/// A voxel size at which the simulated nuclei have the size that the model was trained on.
const VOXEL: &str = "1.75,0.8,0.8";

/// Predicts a small stack, and returns the report; the trace is `trace.json`.
fn predict(fixture: &Fixture, more: &[&str]) -> Value {
    let raw = fixture.nuclei("8,48,48", 1);
    let base = ["predict", &raw, "--model", "nuclei-dog", "--out", "o", "--voxel-size", VOXEL, "--diameter", "15"];
    fixture.run(&[&base[..], &["--device", "cpu", "--json", "--trace", "trace.json"], more].concat()).json()
}

/// The seconds of the stages of a run record, by name.
fn stage_secs(run: &Value, stage: &str) -> Option<f64> {
    run["stages"].as_array().unwrap().iter().find(|s| s["stage"] == stage)?["seconds"].as_f64()
}

/// The bytes of a counter of a trace.
fn counted(event: &Value) -> f64 {
    event["args"]["bytes"].as_f64().unwrap()
}

#[test]
fn a_trace_and_a_report_hold_the_same_run() {
    let fixture = Fixture::new();
    let report = predict(&fixture, &[]);
    let facts = &report["run"]["facts"];
    let known = ["wall_secs", "cpu_secs", "threads", "cores", "peak_bytes", "inputs"];
    assert_eq!(missing(facts, &known), Vec::<&str>::new());
    assert!(report["advice"].is_array());
    let profile = fixture.run(&["profile", "trace.json", "--json"]).json();
    assert_eq!(profile["run"], report["run"]);
    assert!(!profile["operators"].as_array().unwrap().is_empty() && !profile["memory"].as_array().unwrap().is_empty());
    for stage in ["load", "read", "compute", "blend", "release", "write"] {
        assert!(stage_secs(&profile["run"], stage).is_some_and(|secs| secs > 0.0), "no {stage}: {profile:#}");
    }
    std::fs::write(fixture.path("report.json"), report.to_string()).unwrap();
    let shown_report = fixture.run(&["profile", "report.json", "--json"]).json();
    assert_eq!((&shown_report["run"], &shown_report["operators"]), (&report["run"], &json!([])));
    let text = fixture.run(&["profile", "trace.json"]).ok().stdout;
    // The memory was sampled: its peak is in the record, and all samples are in the trace.
    let peak = facts["memory_peak"]["resident_bytes"].as_f64().unwrap();
    let trace: Value = serde_json::from_slice(&fixture.bytes("trace.json")).unwrap();
    assert_eq!(chrome_trace::problems(&trace), Vec::<String>::new());
    let is_sample = |e: &&Value| e["ph"] == "C" && e["name"] == "resident memory";
    let samples: Vec<f64> = trace["traceEvents"].as_array().unwrap().iter().filter(is_sample).map(counted).collect();
    assert!(samples.len() > 2 && samples.contains(&peak), "{peak} {samples:?}");
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|e| e["name"] == "engine arena"));
    for name in ["open", "inputs of the record", "earlier results", "network", "finish", "publish"] {
        assert!(events.iter().any(|e| e["ph"] == "X" && e["name"] == name), "no span {name}: {events:#?}");
    }
    // Every operator that multiplies has a share of the machine's peak.
    let points = profile["roofline"].as_array().unwrap();
    let has_point = |name: &Value| points.iter().any(|p| p["name"] == *name && p["share"].as_f64().unwrap() > 0.0);
    let multiplies = profile["operators"].as_array().unwrap().iter().filter(|o| o["macs"].as_u64() > Some(0));
    let names: Vec<&Value> = multiplies.map(|o| &o["name"]).collect();
    assert!(!names.is_empty() && names.iter().copied().all(has_point), "{profile:#}");
    assert!(points.iter().all(|p| p["bytes"].as_u64() > Some(0)), "{points:#?}");
    assert_eq!(facts["machine_peak"]["threads"], facts["threads"]);
    for part in ["predict (cytoscope", "stages", "operators", "measured peak", "memory", "sampled peak", "advice"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    // A trace without operators still has its stages.
    std::fs::remove_file(fixture.path("trace.json")).unwrap();
    predict(&fixture, &["--stages-only"]);
    let stages = fixture.run(&["profile", "trace.json", "--json"]).json();
    assert_eq!(stages["operators"], json!([]));
    let both = fixture.run(&["profile", "trace.json", "--compare", "report.json", "--json"]).json();
    let compute = both["stages"].as_array().unwrap().iter().find(|s| s["name"] == "compute").unwrap();
    let ratio = stage_secs(&report["run"], "compute").unwrap() / stage_secs(&stages["run"], "compute").unwrap();
    assert!((compute["ratio"].as_f64().unwrap() / ratio - 1.0).abs() < 1e-9, "{compute}");
}

#[test]
fn commands_without_a_network_are_traced_and_profiled() {
    let fixture = Fixture::new();
    fixture.write("a.tif", "ZYX", &[4, 16, 16], vec![7u16; 1024]);
    let convert = ["convert", "a.tif", "b.npy", "--trace", "t.json"];
    let report = fixture.run(&[&convert[..], &["--json"]].concat()).json();
    assert_eq!((&report["output"], &report["advice"]), (&json!("b.npy"), &json!([])));
    let profile = fixture.run(&["profile", "t.json", "--json"]).json();
    assert_eq!((&profile["run"], &profile["run"]["command"]), (&report["run"], &json!("convert")));
    for stage in ["read", "write"] {
        assert!(stage_secs(&profile["run"], stage).is_some_and(|secs| secs > 0.0), "no {stage}: {profile:#}");
    }
    let text = fixture.run(&["profile", "t.json"]).ok().stdout;
    assert!(text.contains("convert (cytoscope") && text.contains("write"), "{text}");
    // A trace replaces neither an earlier one without --force, nor what the command writes.
    fixture.fails(2, &convert, &["t.json", "--force"]);
    fixture.fails(2, &["convert", "a.tif", "c.npy", "--trace", "c.npy"], &["c.npy", ".json"]);
    let simulate = ["simulate", "--kind", "nuclei", "--shape", "8,48,48", "--seed", "1", "--out", "s"];
    let simulated = fixture.run(&[&simulate[..], &["--json", "--trace", "s.json"]].concat()).json();
    assert!(stage_secs(&simulated["run"], "simulate") > Some(0.0), "{simulated:#}");
    let over_settings = ["--force", "--trace", "s/nuclei_1.json"];
    fixture.fails(2, &[&simulate[..], &over_settings].concat(), &["s/nuclei_1.json", "output"]);
    let labels = "s/nuclei_1_labels.tif";
    let evaluate = ["evaluate", "--pred", labels, "--truth", labels];
    let scores = fixture.run(&[&evaluate[..], &["--json"]].concat()).json();
    assert_eq!((&scores["run"]["command"], &scores["instances"][0]["f1"]), (&json!("evaluate"), &json!(1.0)));
    fixture.fails(2, &[&evaluate[..], &["--force"]].concat(), &["--out", "--trace"]);
    let raw = "s/nuclei_1_raw.tif";
    let estimated = fixture.run(&["diameter", raw, "--model", "nuclei-dog", "--device", "cpu", "--json"]).json();
    for stage in ["load", "verify", "read", "estimate"] {
        assert!(stage_secs(&estimated["run"], stage) > Some(0.0), "no {stage}: {estimated:#}");
    }
    let export = ["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx", "--json"];
    let exported = fixture.run(&export).json();
    assert_eq!((&exported["output"], &exported["run"]["command"]), (&json!("m.onnx"), &json!("export")));
}

#[test]
fn every_part_of_a_job_has_a_span() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let labels = "sim/nuclei_1_labels.tif";
    let has = |arguments: &[&str], expected: &[&str]| {
        let ran = fixture.run(&[arguments, &["--trace", "t.json", "--force"]].concat()).ok();
        let trace: Value = serde_json::from_slice(&fixture.bytes("t.json")).unwrap();
        let wall_us = 1e6 * trace["otherData"]["run"]["facts"]["wall_secs"].as_f64().unwrap();
        let spans = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
        let mut found = Vec::new();
        for span in spans {
            let (start, duration) = (span["ts"].as_f64().unwrap(), span["dur"].as_f64().unwrap());
            let is_inside = start >= 0.0 && duration >= 0.0 && start + duration <= wall_us;
            assert!(is_inside, "{}: {span} in {wall_us} µs", ran.command_line);
            found.push(format!("{}: {}", span["cat"].as_str().unwrap(), span["name"].as_str().unwrap()));
        }
        let recorded = ["read: inputs of the record", "write: provenance record"];
        for name in expected.iter().chain(&recorded) {
            assert!(found.iter().any(|span| span == name), "{}: no {name}: {found:?}", ran.command_line);
        }
    };
    for output in ["c.npy", "c.ome.zarr"] {
        has(&["convert", &raw, output], &["read: open", "read: slab", "write: slab", "write: finish"]);
    }
    let measured = ["read: open", "objects: check labels", "objects: measure", "write: table"];
    has(&["measure", labels, "--out", "m.csv"], &measured);
    has(&["measure", labels, "--intensities", &raw, "--out", "m.csv"], &measured);
    has(&["mesh", labels, "--out", "m.stl"], &["read: open", "objects: find objects", "objects: mesh", "write: mesh"]);
    has(&["segment", &raw, "--out", "s.tif"], &["read: open", "objects: segment", "write: finish"]);
    let scored = ["read: open", "validate: overlaps", "validate: match objects"];
    has(&["evaluate", "--pred", labels, "--truth", labels, "--out", "e.json"], &scored);
}

#[test]
fn commands_that_compare_runs_or_read_a_package_write_traces() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,24,24", 1);
    let spans = |arguments: &[&str]| -> Vec<String> {
        let trace = ["--trace", "t.json", "--force"];
        fixture.run(&[arguments, &trace].concat()).ok();
        let trace: Value = serde_json::from_slice(&fixture.bytes("t.json")).unwrap();
        assert_eq!(chrome_trace::problems(&trace), Vec::<String>::new());
        let spans = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
        spans.map(|e| format!("{}: {}", e["cat"].as_str().unwrap(), e["name"].as_str().unwrap())).collect()
    };
    let checked = spans(&["check", "nuclei"]);
    assert_eq!(checked, ["load: check metadata"]);
    let tuned = spans(&["tune", "--model", "nuclei-dog", "--data", &raw, "--diameter", "8", "--device", "cpu"]);
    assert!(tuned.iter().any(|span| span.starts_with("run: predict on cpu f32, tile ")), "{tuned:?}");
    std::fs::write(
        fixture.path("tasks.csv"),
        format!("name,kind,model,data,device\na,inference,nuclei-dog,{raw},cpu\n"),
    )
    .unwrap();
    let measured = spans(&["bench", "--config", "tasks.csv", "--repeat", "2", "--output", "b.json"]);
    assert_eq!(measured.iter().filter(|span| *span == "run: a").count(), 2, "{measured:?}");
    // A trace replaces neither an earlier one nor an output unless that is requested.
    fixture.fails(2, &["check", "nuclei", "--trace", "t.json"], &["t.json", "--force"]);
    let onto_results = ["bench", "--config", "tasks.csv", "--output", "c.json", "--trace", "c.json"];
    fixture.fails(2, &onto_results, &["--trace", "c.json"]);
}

#[test]
fn the_guide_explains_every_stage() {
    let guide = include_str!("../../docs/guide/measuring.md");
    for stage in Stage::ALL {
        assert!(guide.contains(&format!("\n| `{}` | ", stage.name())), "{stage:?} is not in docs/guide/measuring.md");
    }
}

#[test]
fn the_operators_of_a_network_alone_lie_in_its_runs() {
    let fixture = Fixture::new();
    fixture.unet(2);
    std::fs::write(fixture.path("x.npy"), npy_f32(&[1, 1, 8, 16, 16], &[0.5; 2048])).unwrap();
    let arguments = ["run", "net.onnx", "--input", "x.npy", "--repeat", "2", "--trace", "run.json"];
    fixture.run(&arguments).ok();
    let trace: Value = serde_json::from_slice(&fixture.bytes("run.json")).unwrap();
    assert_eq!(chrome_trace::problems(&trace), Vec::<String>::new());
    let spans = |stage: &str| -> Vec<(String, f64, f64)> {
        let all = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X" && e["cat"] == stage);
        let bounds = |e: &Value| (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
        all.map(|e| (e["name"].as_str().unwrap().to_owned(), bounds(e).0, bounds(e).0 + bounds(e).1)).collect()
    };
    let (runs, operators) = (spans("compute"), spans("op"));
    let names: Vec<&str> = runs.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!((names, spans("compile").len()), (vec!["first run", "run", "run"], 1));
    let is_inside = |start: f64, end: f64| runs.iter().any(|(_, from, to)| start >= from - 1.0 && end <= to + 1.0);
    assert!(!operators.is_empty() && operators.iter().all(|(_, start, end)| is_inside(*start, *end)), "{operators:?}");
}

#[test]
fn cropping_is_advised_where_it_is_possible() {
    let fixture = Fixture::new();
    let seams = |report: &Value| report["advice"].as_array().unwrap().iter().find(|a| a["rule"] == "seams").cloned();
    let cropped = predict(&fixture, &[]);
    assert_eq!(seams(&cropped), None, "{cropped:#}");
    std::fs::remove_file(fixture.path("trace.json")).unwrap();
    let blended = predict(&fixture, &["--blend", "gaussian", "--tile", "8,16,16"]);
    let advice = seams(&blended).unwrap_or_else(|| panic!("{blended:#}"));
    assert_eq!(advice["change"], "leave out --blend");
    assert_eq!(missing(&advice, &["evidence", "expected_gain", "further_inputs"]), Vec::<&str>::new());
}

#[test]
fn runs_get_the_advice_that_fits_them() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let values = fixture.integers(&raw);
    let unknown = fixture.write("unknown.tif", "ZYX", &[8, 48, 48], values);
    let rules = |stack: &str, more: &[&str]| -> Vec<String> {
        let base = ["predict", stack, "--model", "nuclei-dog", "--out", "o", "--device", "cpu", "--json"];
        let report = fixture.run(&[&base[..], &["--diameter", "19"], more].concat()).json();
        let advice = report["advice"].as_array().unwrap().iter();
        advice.map(|a| a["rule"].as_str().unwrap().to_owned()).collect()
    };
    let has = |rules: &[String], rule: &str| rules.iter().any(|r| r == rule);
    let known = ["--voxel-size", VOXEL, "--threads", "1"];
    let with_size = rules(&unknown, &known);
    assert!(has(&rules(&unknown, &["--threads", "1"]), "missing_voxel_size"));
    assert!(!has(&with_size, "missing_voxel_size") && !has(&with_size, "threads_above_cores"), "{with_size:?}");
    assert!(!has(&with_size, "memory_pressure") && !has(&with_size, "transfers"), "{with_size:?}");
    assert!(!has(&with_size, "wrong_voxel_size"), "{with_size:?}");
    let cores = std::thread::available_parallelism().unwrap().get();
    let threads = (2 * cores).to_string();
    assert!(has(&rules(&unknown, &["--voxel-size", VOXEL, "--threads", &threads]), "threads_above_cores"));
}

#[test]
fn the_memory_of_a_device_is_in_the_profile_of_its_run() {
    let fixture = Fixture::new();
    let recorder = Recorder::new();
    let device = Some(DeviceMemory { allocated_bytes: 300 << 20, reserved_bytes: 512 << 20 });
    let engines = EngineMemory { arena_bytes: Some(0), device };
    drop(recorder.sample_memory(Duration::from_millis(1), move || engines));
    let facts = RunFacts { device_memory_peak: recorder.device_memory_peak(), ..RunFacts::default() };
    let record = RunRecord::new("cytoscope 0", "predict", &recorder, facts);
    let mut text = Vec::new();
    recorder.write_trace(&record, &mut text).unwrap();
    let trace: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(chrome_trace::problems(&trace), Vec::<String>::new());
    for (counter, bytes) in [("device memory allocated", 300u64 << 20), ("device memory reserved", 512 << 20)] {
        let events = trace["traceEvents"].as_array().unwrap();
        let event = events.iter().find(|e| e["ph"] == "C" && e["name"] == counter).expect(counter);
        assert_eq!(event["args"]["bytes"], bytes);
    }
    std::fs::write(fixture.path("gpu.json"), text).unwrap();
    let shown = fixture.run(&["profile", "gpu.json"]).ok().stdout;
    assert!(shown.contains("device peak") && shown.contains("300 MiB allocated"), "{shown}");
    assert!(shown.contains("512 MiB reserved"), "{shown}");
}

#[test]
fn a_repeated_prediction_does_not_hold_more_memory_each_time() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let prediction = json!({"inputs": [raw], "model": "nuclei-dog", "out": "o", "device": "cpu",
                            "voxel_um": [1.75, 0.8, 0.8], "threads": 1});
    let job = json!({"predict": {"prediction": prediction}});
    std::fs::write(fixture.path("job.json"), job.to_string()).unwrap();
    let report = fixture.run(&["profile", "job.json", "--leaks", "8", "--json"]).json();
    let owners = report["owners"].as_array().unwrap();
    let names: Vec<&str> = owners.iter().map(|o| o["owner"].as_str().unwrap()).collect();
    let expected = ["process", "engine arena", "device memory", "chunk cache", "patch cache"];
    assert_eq!(names, expected, "{report:#}");
    assert!(owners.iter().all(|o| o["bytes"].as_array().unwrap().len() == 8), "{report:#}");
    assert!(fixture.path("o/nuclei_1_raw_labels.tif").is_file(), "the job was run");
    // A job that skips its inputs repeats nothing.
    let resumed = json!({"predict": {"prediction": {"inputs": [raw], "model": "nuclei-dog", "out": "o", "device": "cpu",
                                                    "voxel_um": [1.75, 0.8, 0.8], "threads": 1, "resume": true}}});
    std::fs::write(fixture.path("resumed.json"), resumed.to_string()).unwrap();
    fixture.fails(3, &["profile", "resumed.json", "--leaks", "4"], &["nuclei_1_raw.tif", "skipped", "resume"]);
    // Results of the first repetition are not replaced unless the job says so.
    let convert = |overwrite: &str| json!({"convert": {"input": raw, "output": "c.npy", "overwrite": overwrite}});
    std::fs::write(fixture.path("convert.json"), convert("refuse").to_string()).unwrap();
    let repeated = ["profile", "convert.json", "--leaks", "4"];
    fixture.fails(2, &repeated, &["repetition 2", "c.npy", "\"overwrite\": \"replace\""]);
    std::fs::write(fixture.path("convert.json"), convert("replace").to_string()).unwrap();
    fixture.run(&repeated).ok();
    // Jobs that fail and files that hold no job are reported.
    std::fs::remove_file(fixture.path(&raw)).unwrap();
    fixture.fails(3, &["profile", "job.json", "--leaks", "4"], &[raw.as_str()]);
    std::fs::write(fixture.path("job.json"), "{\"paint\": {}}").unwrap();
    fixture.fails(3, &["profile", "job.json", "--leaks", "4"], &["job.json", "paint", "predict"]);
    fixture.fails(2, &["profile", "job.json", "--leaks", "1"], &["--leaks", "4 to"]);
}

#[test]
fn files_without_a_run_are_refused() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("empty.json"), "{}").unwrap();
    std::fs::write(fixture.path("text.json"), "seconds: 5").unwrap();
    fixture.fails(3, &["profile", "nosuch.json"], &["nosuch.json"]);
    fixture.fails(3, &["profile", "empty.json"], &["empty.json", "no run", "--trace"]);
    fixture.fails(3, &["profile", "text.json"], &["text.json", "not a stored run"]);
    // Half of a trace, a job, and a run of a later version.
    let whole = json!({"run": RunRecord::new("cytoscope 9", "predict", &Recorder::off(), RunFacts::default())});
    let whole = whole.to_string();
    std::fs::write(fixture.path("half.json"), &whole[..whole.len() / 2]).unwrap();
    fixture.fails(3, &["profile", "half.json"], &["half.json", "EOF"]);
    std::fs::write(fixture.path("later.json"), whole.replace("\"stages\":[]", "\"stages\":[5]")).unwrap();
    fixture.fails(3, &["profile", "later.json"], &["later.json", "cytoscope 9", "with that version"]);
    let job = json!({"convert": {"input": "a.tif", "output": "b.npy"}}).to_string();
    std::fs::write(fixture.path("job.json"), job).unwrap();
    fixture.fails(3, &["profile", "job.json"], &["job.json", "holds a job", "--leaks"]);
}

#[test]
fn a_training_trace_separates_the_parts_of_a_step() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    write_settings(&fixture, "");
    let arguments = ["--steps", "4", "--without-int8", "--out", "m", "--trace", "train.json"];
    let report = fixture.run(&[&SMALL[..], &arguments].concat()).json();
    // The status is one line on stderr, or an event.
    let more = ["--steps", "2", "--without-int8", "--out", "n", "--json-progress"];
    let ran = fixture.run(&[&SMALL[..], &more].concat()).ok();
    let events = ran.stderr.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let all: Vec<Value> = events.filter(|event| event["event"] == "status").collect();
    let steps: Vec<Option<u64>> = all.iter().map(|status| status["step"].as_u64()).collect();
    // The first step also waits for the first patches.
    assert_eq!(steps, [Some(1), Some(2)], "the last status of a short run is that of its last step");
    let status = all.last().expect("a status");
    let promised = ["step", "samples_per_sec", "data_wait_share", "resident_bytes", "activation_bytes", "batch_advice"];
    let promised = [&promised[..], &["workers", "prefetch"]].concat();
    assert_eq!(missing(status, &promised), Vec::<&str>::new());
    assert!(status["samples_per_sec"].as_f64().unwrap() > 0.0 && status["batch"] == 2, "{status}");
    let ran = fixture.run(&[&SMALL[..], &["--steps", "2", "--without-int8", "--out", "p"]].concat()).ok();
    assert!(ran.stderr.contains(" samples/s, "), "{}", ran.stderr);
    let training = &report["run"]["facts"]["training"];
    assert_eq!((&training["workers"], &training["step_secs"]), (&report["workers"], &report["step_secs"]));
    assert!(report["workers"].as_u64() >= Some(1) && report["prefetch"].as_u64() >= Some(8), "{report:#}");
    let trace: Value = serde_json::from_slice(&fixture.bytes("train.json")).unwrap();
    assert_eq!(chrome_trace::problems(&trace), Vec::<String>::new());
    let spans: Vec<&Value> = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").collect();
    let count = |kind: &str| spans.iter().filter(|s| s["cat"] == kind).count();
    for kind in ["check", "augment", "data wait", "validate", "checkpoint", "write"] {
        assert!(count(kind) > 0, "no {kind} span");
    }
    assert!(spans.iter().any(|s| s["cat"] == "verify" && s["name"] == "device"), "the choice of the device");
    // Three steps are timed before the four of the run.
    assert_eq!((count("forward"), count("backward"), count("optimizer")), (7, 7, 7));
    let bounds = |s: &Value| {
        let start = s["ts"].as_f64().unwrap();
        (start, start + s["dur"].as_f64().unwrap())
    };
    let is_inside = |op: &Value, kinds: &[&str]| {
        let (start, end) = bounds(op);
        spans.iter().filter(|s| kinds.iter().any(|kind| s["cat"] == *kind)).any(|s| {
            let (from, to) = bounds(s);
            start >= from - 1.0 && end <= to + 1.0
        })
    };
    let operators: Vec<&&Value> = spans.iter().filter(|s| s["cat"] == "op").collect();
    assert!(operators.iter().all(|op| is_inside(op, &["forward", "backward", "optimizer"])));
    for kind in ["forward", "backward", "optimizer"] {
        assert!(operators.iter().any(|op| is_inside(op, &[kind])), "no operators in {kind}");
    }
    // The forward pass contains the loss, and only the backward pass derivatives.
    let names = |kind: &str| {
        let inside = operators.iter().filter(|op| is_inside(op, &[kind]));
        inside.map(|op| op["name"].as_str().unwrap()).collect::<Vec<&str>>()
    };
    assert!(names("forward").iter().any(|name| name.starts_with("Loss")), "{:?}", names("forward"));
    assert!(names("forward").iter().all(|name| !name.contains("Gradient")), "{:?}", names("forward"));
    let text = fixture.run(&["profile", "train.json"]).ok().stdout;
    assert!(text.contains("backward") && text.contains("data wait"), "{text}");
    for shown in ["mean step", " samples/s", "waiting for data", " % of the run, on ", "4, median "] {
        assert!(text.contains(shown), "no {shown:?}: {text}");
    }
    assert_eq!((&training["batch"], &training["accumulate"]), (&json!(2), &json!(1)), "two patches in each step");
}

#[test]
fn tables_of_a_run_are_saved_as_csv() {
    let fixture = Fixture::new();
    let report = predict(&fixture, &[]);
    std::fs::write(fixture.path("report.json"), report.to_string()).unwrap();
    let rows_of = |run: &str, more: &[&str]| {
        let arguments = ["profile", run, "--csv", "t.csv", "--force"];
        let ran = fixture.run(&[&arguments[..], more].concat()).ok();
        assert_eq!(ran.stdout.trim(), "wrote t.csv");
        fixture.table("t.csv")
    };
    for (table, header) in [
        ("stages", "stage,nested,count,seconds,bytes,voxels,macs"),
        ("operators", "stage,name,count,seconds,bytes,macs,precision"),
        ("spans", "stage,name,thread,start_us,duration_us,bytes,macs,resident_change_bytes,precision"),
        ("roofline", "name,seconds,macs,bytes,macs_per_byte,macs_per_sec,bound,share_of_peak,precision"),
        ("memory", "seconds,label,resident_bytes,arena_bytes,device_allocated_bytes,device_reserved_bytes"),
        ("advice", "rule,evidence,expected_gain,change"),
    ] {
        let rows = rows_of("trace.json", &["--table", table]);
        assert_eq!(rows[0].join(","), header);
        assert!(rows.len() > 1 || table == "advice", "{table} has no rows");
    }
    // A report has the stages of its trace, with the same times.
    for run in ["trace.json", "report.json"] {
        let rows = rows_of(run, &["--table", "stages"]);
        let read = rows.iter().find(|row| row[0] == "read").unwrap();
        assert_eq!(read[3].parse::<f64>().ok(), stage_secs(&report["run"], "read"), "{run}");
    }
    assert!(rows_of("trace.json", &[]).iter().any(|row| row[0] == "op"), "by default, operators");
    let compared = rows_of("trace.json", &["--compare", "report.json"]);
    assert_eq!(compared[0].join(","), "kind,name,first_secs,second_secs,ratio,first_run,second_run");
    assert_eq!((compared[1][0].as_str(), compared[1][4].as_str()), ("total", "1"));
    assert_eq!((compared[1][5].as_str(), compared[1][6].as_str()), ("\"trace.json\"", "\"report.json\""));
    // A report does not hold the operators of its run.
    assert!(compared.iter().all(|row| row[0] != "operator"), "{compared:?}");
    let text = fixture.run(&["profile", "trace.json", "--compare", "report.json"]).ok().stdout;
    assert!(text.contains("operators: not compared") && !text.contains("operators: first"), "{text}");
    let csv = |run: &'static str, path: &'static str| ["profile", run, "--csv", path];
    fixture.fails(3, &csv("report.json", "u.csv"), &["report.json", "no spans", "--table stages"]);
    fixture.fails(3, &[&csv("trace.json", "u.csv")[..], &["--table", "steps"]].concat(), &["training"]);
    fixture.fails(2, &csv("trace.json", "t.csv"), &["t.csv", "--force"]);
    fixture.fails(2, &csv("trace.json", "u.txt"), &["u.txt", "expected .csv"]);
    fixture.fails(2, &[&csv("trace.json", "trace.json")[..], &["--force"]].concat(), &["trace.json", "input"]);
    fixture.fails(2, &["profile", "trace.json", "--table", "spans"], &["--csv"]);
    assert!(!fixture.path("u.csv").exists());
}
