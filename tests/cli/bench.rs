//! `bench`: tables of tasks, comparison with stored results, and measurements of quantization, optimizations and recording.

use crate::common::{Fixture, missing, python};
use crate::train::{simulate_pairs, write_settings};
use serde_json::{Value, json};
use std::path::Path;

/// Header of a table of tasks.
const HEADER: &str = "name,kind,model,data,device,precision,batch_size,epochs,overrides\n";

#[test]
fn a_bench_measures_every_task_in_its_own_process() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    write_settings(&fixture, "");
    let raw = "sim/nuclei_1_raw.tif";
    let rows = format!(
        "{HEADER}whole,inference,nuclei-dog,{raw},cpu,f32,1,,\"diameter=15;voxel_size=1.75,0.8,0.8\"\n\
         tiles,inference,nuclei-dog,{raw},cpu,f32,,,\"diameter=15;voxel_size=1.75,0.8,0.8;blend=gaussian\"\n\
         learn,training,scratch,sim,cpu,,2,,task=segmentation;steps=3;config=t.toml;without_int8\n\
         broken,inference,nuclei-dog,nosuch.tif\n"
    );
    std::fs::write(fixture.path("tasks.csv"), rows).unwrap();
    let base = ["bench", "--config", "tasks.csv", "--output", "r.json"];
    let ran = fixture.run(&[&base[..], &["--skip-failed", "--repeat", "2", "--compare"]].concat()).ok();
    // The tasks take turns.
    let order: Vec<&str> =
        ran.stderr.lines().filter(|l| l.starts_with("[round")).map(|l| l.rsplit(' ').next().unwrap()).collect();
    assert_eq!(order, ["whole", "tiles", "learn", "broken", "whole", "tiles", "learn"]);
    assert!(ran.stdout.contains("tiles, compared with whole"), "{}", ran.stdout);
    let results: Value = serde_json::from_slice(&fixture.bytes("r.json")).unwrap();
    let results = results.as_array().unwrap();
    assert_eq!(results.len(), 4);
    let promised = ["name", "kind", "timestamp", "success", "git_info", "machine", "metrics"];
    assert!(results.iter().all(|r| missing(r, &promised).is_empty()), "{results:#?}");
    let median =
        |task: usize, path: &str| results[task]["metrics"].pointer(&format!("{path}/median")).and_then(Value::as_f64);
    for path in
        ["/total_secs", "/model_init_secs", "/first_batch/forward_secs", "/full_prediction_secs", "/avg_batch_secs"]
    {
        assert!(median(0, path).is_some_and(|secs| secs > 0.0), "no {path}: {:#}", results[0]);
    }
    for path in
        ["/total_secs", "/data_setup_secs", "/data_loading_first_batch_secs", "/forward_first_batch_secs", "/full_secs"]
    {
        assert!(median(2, path).is_some_and(|secs| secs >= 0.0), "no {path}: {:#}", results[2]);
    }
    // Every metric that the guide lists, except that of GPUs and that of whole epochs.
    let guide = include_str!("../../docs/guide/measuring.md");
    for (kind, task) in [("inference", 1), ("training", 2)] {
        let table = guide.split(&format!("| metric of {kind} |")).nth(1).unwrap().split("\n\n").next().unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| `"));
        let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
        for name in names.filter(|name| !["device_peak_bytes", "first_epoch_secs"].contains(name)) {
            assert!(results[task]["metrics"][name].is_object(), "no {name}: {:#}", results[task]);
        }
    }
    let parts = ["load_secs", "transfer_secs", "forward_secs", "post_secs"];
    assert_eq!(missing(&results[1]["metrics"]["first_batch"], &parts), Vec::<&str>::new());
    if cfg!(target_os = "linux") {
        assert!(median(0, "/peak_bytes").is_some_and(|bytes| bytes > 1e6));
    }
    let total = &results[0]["metrics"]["total_secs"];
    assert!(total["min"].as_f64() <= total["median"].as_f64() && total["median"].as_f64() <= total["max"].as_f64());
    assert_eq!((&results[0]["runs"], &results[2]["dataset_info"]["steps"]), (&json!(2), &json!(3)));
    assert_eq!(results[3]["success"], json!(false));
    assert!(results[3]["error"].as_str().unwrap().contains("nosuch.tif"), "{:#}", results[3]);
    // The outputs of the tasks are not kept.
    assert!(!fixture.path("r.json.runs").exists());
    // Stored results are compared by name.
    std::fs::write(fixture.path("one.csv"), "name,kind,model,data\nwhole,inference,nuclei-dog,sim/nuclei_1_raw.tif\n")
        .unwrap();
    let again = ["bench", "--config", "one.csv", "--output", "s.json", "--compare", "r.json"];
    let text = fixture.run(&again).ok().stdout;
    assert!(text.contains("whole, compared with 20") && text.contains("total_secs"), "{text}");
    // They are not a stored run.
    fixture.fails(3, &["profile", "r.json"], &["r.json", "results of cytoscope bench", "--compare"]);
}

#[test]
fn a_bench_compares_a_model_with_its_quantized_versions() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("16,64,64", 1);
    fixture.unet(8);
    let arguments = ["bench", "--quantization", "net.onnx", "--data", &raw, "--output", "r.json"];
    let more = ["--accuracy-budget", "0.5", "--qat-steps", "4", "--compare"];
    let ran = fixture.run(&[&arguments[..], &more].concat()).ok();
    assert!(ran.stdout.contains("static, compared with float"), "{}", ran.stdout);
    let results: Value = serde_json::from_slice(&fixture.bytes("r.json")).unwrap();
    let names: Vec<&str> = results.as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["float", "dynamic", "static", "qat"]);
    let median = |task: usize, figure: &str| results[task]["metrics"][figure]["median"].as_f64();
    assert_eq!(median(0, "relative_l2"), Some(0.0));
    // Calibration alone meets such a budget.
    assert_eq!((median(3, "qat_steps"), median(2, "qat_steps")), (Some(0.0), None), "{results:#}");
    assert!(ran.stderr.contains("qat did not train"), "{}", ran.stderr);
    for quantized in 1..4 {
        assert!(median(quantized, "network_bytes") < median(0, "network_bytes"), "{results:#}");
        assert!(median(quantized, "relative_l2").is_some_and(|error| error > 0.0 && error < 1.0), "{results:#}");
        assert!(median(quantized, "full_prediction_secs").is_some_and(|secs| secs > 0.0), "{results:#}");
    }
    assert!(!fixture.path("r.json.runs").exists());
    // The others would be quantized first.
    let quantization = ["bench", "--quantization", "net.onnx", "--data", &raw, "--output", "s.json"];
    for (option, value) in [("--qat-minutes", "0"), ("--accuracy-budget", "0"), ("--accuracy-budget", "nan")] {
        let ran = fixture.fails(2, &[&quantization[..], &[option, value]].concat(), &[option, "above 0"]);
        assert!(!ran.stderr.contains("quantizing"), "{}", ran.stderr);
    }
    fixture.fails(2, &["bench", "--output", "s.json"], &["--config"]);
    fixture.fails(2, &["bench", "--quantization", "net.onnx", "--output", "s.json"], &["--data"]);
    std::fs::write(fixture.path("t.csv"), "name,kind,model,data\na,inference,nuclei,a.tif\n").unwrap();
    let sizes = ["bench", "--config", "t.csv", "--output", "s.json", "--batch-sizes"];
    fixture.fails(2, &[&sizes[..], &["1,2"]].concat(), &["--batch-sizes", "no training task"]);
    fixture.fails(2, &[&sizes[..], &["0,2"]].concat(), &["at least 1"]);
    fixture.fails(2, &[&sizes[..], &["2,5000"]].concat(), &["5000", "at most 4096"]);
    fixture.fails(2, &[&sizes[..], &["2,4,2"]].concat(), &["2 occurs twice", "--repeat"]);
}

#[test]
fn a_bench_compares_the_optimizations_of_the_engine_with_none() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("16,64,64", 1);
    fixture.unet(8);
    let arguments = ["bench", "--compare-opts", "net.onnx", "--data", &raw, "--output", "r.json"];
    let ran = fixture.run(&arguments).ok();
    assert!(ran.stdout.contains("output unchanged"), "{}", ran.stdout);
    assert!(ran.stderr.contains("rows in int8 are left out"), "{}", ran.stderr);
    let results: Value = serde_json::from_slice(&fixture.bytes("r.json")).unwrap();
    let results = results.as_array().unwrap();
    let names: Vec<&str> = results.iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!((names[0], names.len()), ("baseline", 6));
    for part in ["layout", "fusion", "optimizer", "all", "portable"] {
        assert!(names.iter().any(|name| name.contains(part)), "no {part}: {names:?}");
    }
    for result in results {
        let median = |figure: &str| result["metrics"][figure]["median"].as_f64();
        assert!(median("relative_l2").is_some_and(|error| error < 1e-4), "{result:#}");
        assert!(median("run_secs") > Some(0.0) && median("speed_up") > Some(0.0), "{result:#}");
        assert!(result["runs"].as_u64() >= Some(5));
    }
    fixture.fails(2, &["bench", "--compare-opts", "net.onnx", "--output", "s.json"], &["--data"]);
    let fewer = ["bench", "--compare-opts", "net.onnx", "--data", &raw, "--output", "s.json", "--repeat", "4"];
    fixture.fails(2, &fewer, &["--repeat is 4", "at least 5 times"]);
}

#[test]
fn a_bench_measures_what_recording_costs() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let arguments = ["bench", "--span-cost", "nuclei-dog", "--data", &raw, "--output", "r.json", "--repeat", "2"];
    let ran = fixture.run(&arguments).ok();
    assert!(ran.stdout.contains("totals by stage"), "{}", ran.stdout);
    let results: Value = serde_json::from_slice(&fixture.bytes("r.json")).unwrap();
    let median = |row: usize, figure: &str| results[row]["metrics"][figure]["median"].as_f64().unwrap();
    assert_eq!(median(0, "spans"), 0.0, "nothing is recorded");
    for row in results.as_array().unwrap() {
        let interval = &row["metrics"]["cost_interval"];
        let [low, middle, high] = ["min", "median", "max"].map(|part| interval[part].as_f64().unwrap());
        assert!(0.0 < low && low <= middle && middle <= high, "{row:#}");
        assert!(row["metrics"]["cpu_cost_interval"]["median"].as_f64().is_some(), "{row:#}");
    }
    assert!((1..4).all(|row| median(row, "spans") > 0.0 && median(row, "cost_ratio") > 0.0), "{results:#}");
    assert!(median(3, "spans") > median(2, "spans"), "operators are recorded, too: {results:#}");
    assert_eq!(results[3]["runs"], json!(2));
    let none = ["bench", "--span-cost", "nuclei-dog", "--data", &raw, "--output", "s.json", "--seconds", "0"];
    fixture.fails(2, &none, &["--seconds is 0", "at least 1"]);
}

#[test]
fn a_bench_says_what_is_missing_and_that_nothing_can_be_compared() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let rows = format!(
        "{HEADER}a,inference,nuclei-dog,{raw},cpu,f32,,,\"diameter=15;voxel_size=1.75,0.8,0.8\"\n\
         b,inference,nuclei-dog,nosuch.tif\n"
    );
    std::fs::write(fixture.path("t.csv"), rows).unwrap();
    let base = ["bench", "--config", "t.csv", "--output", "r.json", "--skip-failed"];
    let ran = fixture.run(&[&base[..], &["--compare"]].concat()).ok();
    assert!(ran.stdout.contains("nothing was compared"), "{}", ran.stdout);
    // Before the first task, which may take hours.
    let place = |text: &str| ran.stderr.find(text).unwrap();
    assert!(place("note: task b: nosuch.tif: no such file") < place("[round 1 of 1] a"), "{}", ran.stderr);
    // Results of another program may hold other figures.
    let stored =
        r#"[{"name": "a", "kind": "inference", "timestamp": "t", "success": true, "metrics": {"total_secs": 1.5}}]"#;
    std::fs::write(fixture.path("stored.json"), stored).unwrap();
    let ran = fixture.run(&[&base[..], &["--force", "--compare", "stored.json"]].concat()).ok();
    assert!(
        ran.stdout.contains("a, compared with t:") && ran.stdout.contains("no figures in common"),
        "{}",
        ran.stdout
    );
    std::fs::write(fixture.path("other.json"), r#"{"version": 9}"#).unwrap();
    let other = [&base[..], &["--force", "--compare", "other.json"]].concat();
    fixture.fails(3, &other, &["other.json", "expected results written by cytoscope bench"]);
}

#[test]
fn a_bench_table_error_names_line_and_column() {
    let fixture = Fixture::new();
    let table = |rows: &str| std::fs::write(fixture.path("t.csv"), format!("{HEADER}{rows}")).unwrap();
    let arguments = ["bench", "--config", "t.csv", "--output", "r.json"];
    table("a,inference,nuclei,a.tif,gpu\n");
    fixture.fails(3, &arguments, &["t.csv", "line 2", "device", "gpu"]);
    table("a,inference,nuclei,a.tif\nb,training,scratch,sim\n");
    fixture.fails(3, &arguments, &["line 3", "overrides", "--task"]);
    fixture.fails(2, &[&arguments[..], &["--repeat", "0"]].concat(), &["--repeat"]);
    // Without --skip-failed, the first failure ends the bench; its result is stored.
    table("a,inference,nuclei-dog,nosuch.tif\nb,inference,nuclei-dog,nosuch.tif\n");
    let ran = fixture.run(&arguments);
    assert!(ran.code != Some(0) && ran.stderr.contains("task a failed"), "{}", ran.stderr);
    assert!(ran.stderr.contains("the results so far are in r.json"), "{}", ran.stderr);
    let results: Value = serde_json::from_slice(&fixture.bytes("r.json")).unwrap();
    assert_eq!((results.as_array().unwrap().len(), &results[0]["success"]), (1, &json!(false)));
    fixture.fails(2, &arguments, &["r.json", "--force"]);
    // With it, all tasks run, and scripts learn that none succeeded.
    let all = ["bench", "--config", "t.csv", "--output", "all.json", "--skip-failed"];
    fixture.fails(1, &all, &["task b failed", "all 2 tasks failed"]);
    let results: Value = serde_json::from_slice(&fixture.bytes("all.json")).unwrap();
    assert!(results.as_array().unwrap().len() == 2 && results[1]["success"] == false, "{results:#}");
    fixture.fails(2, &["bench", "--config", "t.csv", "--output", "t.csv", "--force"], &["t.csv", "input"]);
    // Results do not become a part of a stack, whichever of its files they would replace.
    fixture.write("a.tif", "ZYX", &[2, 4, 5], (0..40).collect::<Vec<u16>>());
    fixture.run(&["convert", "a.tif", "a.zarr"]).ok();
    let metadata = fixture.bytes("a.zarr/zarr.json");
    for output in ["a.zarr/zarr.json", "a.zarr/0/zarr.json", "a.zarr/results.json"] {
        let arguments = ["bench", "--config", "t.csv", "--output", output, "--force"];
        fixture.fails(2, &arguments, &["--output", "is inside", "a.zarr"]);
    }
    assert!(fixture.bytes("a.zarr/zarr.json") == metadata && fixture.names("a.zarr") == ["0", "zarr.json"]);
}

/// Runs the tests of a module in a folder, and prints how many there are.
const SCRIPT_TESTS: &str = "
import importlib, sys, unittest
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
tests = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(sys.argv[2]))
result = unittest.TextTestRunner(stream=sys.stderr).run(tests)
assert result.wasSuccessful()
print(result.testsRun)
";

/// Runs the tests of a script of the folder `bench`, if Python has the modules that they import.
fn script_tests_pass(imports: &str, module: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench");
    if let Some(printed) = python(imports, SCRIPT_TESTS, &[folder.as_path(), Path::new(module)]) {
        assert!(printed.trim().parse::<usize>().unwrap() > 0, "{printed}");
    }
}

#[test]
fn baselines_of_the_criterion_suites_are_stored_and_compared() {
    script_tests_pass("unittest", "test_baseline");
}

#[test]
fn training_runs_with_and_without_a_trace_are_compared_in_pairs() {
    script_tests_pass("unittest", "test_training_spans");
}

#[test]
fn changes_that_concern_a_stage_are_compared_with_the_same_run_without_them() {
    script_tests_pass("unittest", "test_stage_changes");
}

#[test]
fn stacks_of_each_kind_of_specimen_are_simulated() {
    script_tests_pass("numpy, scipy, tifffile", "test_specimen_stacks");
}

#[test]
fn stacks_after_published_data_sets_are_simulated() {
    script_tests_pass("numpy, scipy, tifffile", "test_microscope_stacks");
}
