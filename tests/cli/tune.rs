//! `tune`: candidates, presets, and the machine profile that later runs use.

use crate::common::{Fixture, missing};
use crate::train::{SMALL, simulate_pairs, write_settings};
use serde_json::{Value, json};

/// The candidates of a kind of run.
fn candidates<'a>(report: &'a Value, kind: &str) -> &'a Vec<Value> {
    report[kind]["candidates"].as_array().unwrap_or_else(|| panic!("no {kind}: {report:#}"))
}

/// Returns whether a profile sets this value.
fn sets(profile: &Value, setting: &str, value: &str) -> bool {
    profile["settings"].as_array().is_some_and(|all| all.contains(&json!([setting, value])))
}

#[test]
fn tuned_settings_are_used_by_later_predictions_that_leave_them_open() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let size = ["--voxel-size", "1.75,0.8,0.8", "--diameter", "19"];
    let tune = ["tune", "--model", "nuclei-dog", "--data", &raw, "--device", "cpu"];
    let saving = ["--save", "--preset", "most-accurate", "--json"];
    let report = fixture.run(&[&tune[..], &size[..2], &saving].concat()).json();
    // The object diameter is estimated once, with the float network, so that all candidates predict on the same grid.
    let estimate = ["diameter", &raw, "--model", "nuclei-dog", "--device", "cpu", "--json"];
    let estimate = fixture.run(&[&estimate[..], &size[..2]].concat()).json();
    assert!(report["diameter"].is_number(), "{report:#}");
    assert_eq!(report["diameter"], estimate["inputs"][0]["object_diameter"]["diameter"]);
    let all = candidates(&report, "inference");
    let ran: Vec<&Value> = all.iter().filter(|c| !c["secs"].as_array().unwrap().is_empty()).collect();
    assert!(!ran.is_empty(), "{report:#}");
    assert_eq!(all.iter().filter(|c| c["end"] == "fastest").count(), 1, "{report:#}");
    // Tiles are chosen on the model's grid, on which the stack is larger.
    assert!(all.iter().all(|c| c["end"] != "failed"), "{report:#}");
    // All candidates are 32-bit floats, so their maps are equal; in bf16, CPUs do not round convolutions of a single channel.
    assert!(ran.iter().all(|c| c["relative_l2"].as_f64().unwrap() < 1e-5), "{report:#}");
    let presets = &report["inference"]["presets"];
    assert_eq!(missing(presets, &["fastest", "most-accurate"]), Vec::<&str>::new());
    assert_eq!(presets["fastest"]["device"], "cpu");
    let accurate = presets["most-accurate"]["precision"].as_str().unwrap();
    assert!(["f32", "bf16"].contains(&accurate), "{report:#}");
    assert_eq!(report["preset"], "most-accurate");
    assert!(["um", "voxels"].contains(&report["diameter_unit"].as_str().unwrap()), "{report:#}");
    let stored = report["saved"].as_str().unwrap();
    let file: Value = serde_json::from_slice(&std::fs::read(stored).unwrap()).unwrap();
    assert_eq!((&file["format"], &file["profiles"][0]["inference"]), (&json!(1), presets));
    // The tuned runs leave nothing behind.
    assert!(fixture.names(".").iter().all(|name| name == "sim"), "{:?}", fixture.names("."));

    let predict = ["predict", &raw, "--model", "nuclei-dog", "--out", "o", "--json"];
    let run = |more: &[&str]| fixture.run(&[&predict[..], &size, more].concat()).ok();
    let profile_of = |stdout: &str| serde_json::from_str::<Value>(stdout).unwrap()["inputs"][0]["profile"].clone();
    let tuned = run(&[]);
    let profile = profile_of(&tuned.stdout);
    assert_eq!(profile["preset"], "most-accurate");
    assert!(sets(&profile, "device", "cpu") && sets(&profile, "precision", accurate), "{profile:#}");
    assert!(tuned.stderr.contains("from the machine profile (most-accurate)"), "{}", tuned.stderr);
    let record: Value = serde_json::from_slice(&fixture.bytes("o/nuclei_1_raw_provenance.json")).unwrap();
    assert_eq!(record["profile"], profile);
    let fastest = profile_of(&run(&["--performance", "fastest"]).stdout);
    assert_eq!(fastest["preset"], "fastest");
    // Options of the user take precedence, and the profile can be switched off.
    let given = ["--device", "cpu", "--precision", "f32", "--threads", "1", "--blend", "crop"];
    for more in [&given[..], &["--performance", "off"]] {
        assert_eq!(profile_of(&run(more).stdout), Value::Null, "{more:?}");
    }
    // A GPU that was there when the settings were measured is gone: this is reported, and the prediction goes on.
    let mut missing_gpu = file.clone();
    missing_gpu["profiles"][0]["inference"]["fastest"]["device"] = "cuda:63".into();
    std::fs::write(stored, missing_gpu.to_string()).unwrap();
    let ran = run(&["--performance", "fastest"]);
    assert!(ran.stderr.contains("its device cuda:63 cannot be used now"), "{}", ran.stderr);
    assert_eq!(profile_of(&ran.stdout), Value::Null);
    // A damaged file is reported, and the prediction goes on.
    std::fs::write(stored, "{}").unwrap();
    let ran = run(&["--performance", "fastest"]);
    assert!(ran.stderr.contains("machine profiles are not used"), "{}", ran.stderr);
    assert!(ran.stderr.contains("performance fastest has no effect"), "{}", ran.stderr);
    assert_eq!(profile_of(&ran.stdout), Value::Null);
}

#[test]
fn notes_of_tuning_are_json_lines_with_json_progress() {
    let fixture = Fixture::new();
    let empty = fixture.write("empty.tif", "ZYX", &[8, 48, 48], vec![0u16; 8 * 48 * 48]);
    let tune = ["tune", "--model", "nuclei-dog", "--data", &empty, "--device", "cpu", "--json"];
    let ran = fixture.run(&[&tune[..], &["--json-progress"]].concat()).ok();
    let events: Vec<Value> = ran.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_assumed = |event: &Value| event["event"] == "note" && event["message"].to_string().contains("is assumed");
    assert_eq!(events.iter().filter(|event| is_assumed(event)).count(), 1, "{events:#?}");
    assert!(fixture.run(&tune).ok().stderr.contains("note: no objects were found"));
}

#[test]
fn tuned_training_settings_are_used_by_later_training_runs() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "workers = 1\nprefetch = 9");
    let tune = ["tune", "--model", "scratch", "--training", "sim", "--config", "t.toml", "--steps", "3"];
    let options = ["--device", "cpu", "--save", "--json", "--json-progress"];
    let ran = fixture.run(&[&tune[..], &options].concat()).ok();
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["inference"], Value::Null);
    let events: Vec<Value> = ran.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let named = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    assert_eq!(named("preparing").first().unwrap()["what"], "checking the training data");
    assert_eq!(
        named("round")[0],
        &json!({"event": "round", "round": 1, "candidates": candidates(&report, "training").len()})
    );
    let tried = named("candidate");
    assert!(tried.iter().all(|event| event["outcome"] == "measured" && event["secs"].is_number()), "{events:#?}");
    assert!(tried.len() == 1 || tried[0]["eta_secs"].as_f64().unwrap() > 0.0, "{events:#?}");
    assert_eq!(tried.last().unwrap()["eta_secs"], 0.0, "nothing is left");
    let all = candidates(&report, "training");
    assert!(all.iter().all(|c| c["workers"] == 1 && c["prefetch"] == 9 && c["batch"] == Value::Null), "{report:#}");
    let chosen = &report["training"]["presets"]["fastest"];
    assert!(chosen["secs_per_patch"].as_f64().unwrap() > 0.0, "{report:#}");
    // Settings that are open come from the profile.
    write_settings(&fixture, "");
    let train = [&SMALL[..], &["--steps", "2", "--without-int8", "--out"]].concat();
    let trained = fixture.run(&[&train[..], &["m"]].concat()).json();
    assert!(sets(&trained["profile"], "device", "cpu") && sets(&trained["profile"], "prefetch", "9"), "{trained:#}");
    assert_eq!((&trained["workers"], &trained["prefetch"]), (&json!(1), &json!(9)));
    write_settings(&fixture, "performance = \"off\"");
    let without = fixture.run(&[&train[..], &["n"]].concat()).json();
    assert_eq!(without["profile"], Value::Null);
}

#[test]
fn tuning_training_only_leaves_the_settings_and_the_preset_of_predictions_alone() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.nuclei("8,48,48", 2);
    let text = "patch_zyx = [8, 32, 32]\nbatch = 1\nworkers = 1\nprefetch = 9\n[network]\nfilters = [4]\n\
                [validation]\ntimes = 1\n";
    std::fs::write(fixture.path("t.toml"), text).unwrap();
    let train = ["--steps", "1", "--device", "cpu", "--performance", "off", "--without-int8", "--out", "m"];
    fixture.run(&[&SMALL[..], &train].concat()).ok();
    let tune = |more: &[&str]| {
        let options = ["tune", "--model", "m", "--device", "cpu", "--save", "--json"];
        fixture.run(&[&options[..], more].concat()).json()
    };
    let profiles = |report: &Value| -> Value {
        let file = std::fs::read(report["saved"].as_str().unwrap()).unwrap();
        serde_json::from_slice::<Value>(&file).unwrap()["profiles"].clone()
    };
    let tuned_inference = tune(&["--data", &raw, "--preset", "most-accurate"]);
    let before = profiles(&tuned_inference);
    assert_eq!(before[0]["inference"], tuned_inference["inference"]["presets"]);
    assert_eq!(before[0]["training"], json!({}));
    let tuned_training = tune(&["--training", "sim", "--only-training", "--config", "t.toml", "--steps", "2"]);
    assert_eq!(tuned_training["inference"], Value::Null);
    let after = profiles(&tuned_training);
    assert_eq!(after.as_array().map(Vec::len), Some(1), "{after:#}");
    assert_eq!(after[0]["training"], tuned_training["training"]["presets"]);
    for kept in ["inference", "preset"] {
        assert_eq!(after[0][kept], before[0][kept]);
    }
    assert_eq!(after[0]["preset"], "most-accurate");
}

/// Runs `tune`, sends this signal once its first candidate has been measured, and returns its exit code, standard output
/// and standard error.
#[cfg(unix)]
fn interrupted(fixture: &Fixture, arguments: &[&str], signal: &str) -> (Option<i32>, String, String) {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};
    let mut child = fixture.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut messages = BufReader::new(child.stderr.take().unwrap());
    let mut stderr = String::new();
    while !stderr.contains("[1 of ") {
        assert!(messages.read_line(&mut stderr).unwrap() > 0, "it ended before it measured anything: {stderr}");
    }
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    messages.read_to_string(&mut stderr).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap(), stderr)
}

#[cfg(unix)]
#[test]
fn interrupted_tuning_reports_what_was_measured_and_replaces_no_saved_settings() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    // There are several candidates on any machine, because the prefetch is varied.
    let tune = ["tune", "--model", "scratch", "--training", "sim", "--config", "t.toml", "--steps", "40"];
    let options = ["--device", "cpu", "--save", "--profiles", "profiles.json"];
    let arguments = [&tune[..], &options].concat();
    // As a shutdown, or Cancel in the window: nothing is saved.
    let (code, stdout, stderr) = interrupted(&fixture, &arguments, "-TERM");
    assert_eq!(code, Some(5), "{stderr}");
    for words in ["incomplete", "not run", "fastest", "not saved, because tuning was interrupted"] {
        assert!(stdout.contains(words), "no \"{words}\" in {stdout}");
    }
    assert!(stderr.contains("tuning was interrupted") && !fixture.path("profiles.json").exists(), "{stderr}");
    // Ctrl-C keeps what was measured, but does not replace settings that were saved before.
    let in_json = [&arguments[..], &["--json"]].concat();
    let (code, stdout, stderr) = interrupted(&fixture, &in_json, "-INT");
    let report: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}{stderr}"));
    assert_eq!((code, &report["complete"], &report["training"]["complete"]), (Some(5), &json!(false), &json!(false)));
    let all = candidates(&report, "training");
    let ran = all.iter().filter(|c| !c["secs"].as_array().unwrap().is_empty()).count();
    assert!(ran >= 1 && all.iter().any(|c| c["end"] == "interrupted"), "{report:#}");
    let stored = fixture.bytes("profiles.json");
    let file: Value = serde_json::from_slice(&stored).unwrap();
    assert_eq!(file["profiles"][0]["training"], report["training"]["presets"]);
    assert!(report["training"]["presets"]["fastest"].is_object() && report["saved"].is_string(), "{report:#}");
    let (_, stdout, _) = interrupted(&fixture, &in_json, "-INT");
    let again: Value = serde_json::from_str(&stdout).unwrap();
    assert!(again["saved"].is_null() && fixture.bytes("profiles.json") == stored, "{again:#}");
    assert_eq!(fixture.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn training_data_that_cannot_be_used_are_refused_before_predictions_are_tuned() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,24,24", 1);
    std::fs::create_dir(fixture.path("empty")).unwrap();
    let tune = ["tune", "--model", "nuclei-dog", "--data", &raw, "--diameter", "8", "--device", "cpu", "--json"];
    let options = ["--training", "empty", "--steps", "1", "--save", "--profiles", "p.json"];
    let refused = fixture.fails(3, &[&tune[..], &options].concat(), &["empty"]);
    assert!(refused.stdout.is_empty() && !refused.stderr.contains("round 1"), "{}{}", refused.stdout, refused.stderr);
    assert!(!fixture.path("p.json").exists());
    // So are settings that cannot be read.
    std::fs::write(fixture.path("bad.toml"), "no_such_setting = 1\n").unwrap();
    let config = ["--training", "empty", "--config", "bad.toml"];
    let refused = fixture.run(&[&tune[..], &config].concat());
    assert!(refused.code != Some(0) && refused.stdout.is_empty(), "{}", refused.stdout);
    assert!(refused.stderr.contains("no_such_setting"), "{}", refused.stderr);
    // So are settings with which no candidate can train: a number out of range, and a loss that does not suit stains.
    for (setting, task, problem) in [
        ("workers = 0", "segmentation", "workers is 0"),
        ("loss = { kind = \"dice\" }", "labelfree", "expected mse, l1 or huber"),
    ] {
        std::fs::write(fixture.path("bad.toml"), setting).unwrap();
        let refused = fixture.fails(2, &[&tune[..], &config, &["--task", task]].concat(), &[problem]);
        assert!(refused.stdout.is_empty() && !refused.stderr.contains("round 1"), "{}", refused.stderr);
    }
}

#[test]
fn tuning_is_refused_before_the_runs_if_nothing_can_be_tried_or_saved() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("half.toml"), "precision = \"f16\"\n").unwrap();
    let training = ["tune", "--model", "scratch", "--training", "sim", "--config", "half.toml", "--device", "cpu"];
    fixture.fails(2, &training, &["precision", "--config"]);
    // Data that cannot be used are reported once, and not by each candidate.
    std::fs::create_dir(fixture.path("empty")).unwrap();
    let empty = ["tune", "--model", "scratch", "--training", "empty", "--steps", "1", "--device", "cpu"];
    let refused = fixture.fails(3, &empty, &["empty"]);
    assert!(!refused.stderr.contains("round 1"), "{}", refused.stderr);
    std::fs::write(fixture.path("profiles.json"), "{}").unwrap();
    let saving = ["tune", "--model", "nuclei-dog", "--device", "cpu", "--save", "--profiles", "profiles.json"];
    let refused = fixture.fails(3, &saving, &["profiles.json", "tune --save"]);
    assert!(!refused.stderr.contains("round 1"), "{}", refused.stderr);
    // In this folder, nobody can create files.
    if cfg!(target_os = "linux") {
        let saving =
            ["tune", "--model", "nuclei-dog", "--device", "cpu", "--save", "--profiles", "/proc/profiles.json"];
        let refused = fixture.run(&saving);
        assert!(refused.code != Some(0) && refused.stderr.contains("/proc"), "{}", refused.stderr);
        assert!(!refused.stderr.contains("round 1"), "{}", refused.stderr);
    }
}
