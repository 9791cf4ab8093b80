//! `train --search`: trials, rungs, the table, resuming; and Optuna as another optimizer.

use crate::common::{Fixture, python};
use crate::train::{SMALL, simulate_pairs, write_settings};
use cytoscope_storage::folder::create_working;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const SPACE: &str = "schedule.rate = { log_uniform = [1e-4, 1e-2] }\nema = { values = [0.5, 0.9] }\n";

/// A fixture with two pairs, ranges, and settings of a network that is trained in a second.
fn prepared() -> Fixture {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    std::fs::write(
        fixture.path("t.toml"),
        "patch_zyx = [8, 32, 32]\nbatch = 1\n[network]\nfilters = [4]\n[validation]\ntimes = 1\n",
    )
    .unwrap();
    std::fs::write(fixture.path("space.toml"), SPACE).unwrap();
    fixture
}

#[test]
fn a_search_trains_the_best_trial_with_all_steps_and_can_be_resumed() {
    let fixture = prepared();
    let search = ["--search", "space.toml", "--trials", "2", "--steps", "4", "--without-int8", "--out", "m"];
    let arguments = [&SMALL[..], &search].concat();
    let report = fixture.run(&arguments).json();
    let rows = fixture.table("m.search.csv");
    assert_eq!(rows[0], ["trial", "rung", "steps", "score", "seconds", "error", "ema", "schedule.rate", "search"]);
    let runs: Vec<[&str; 3]> = rows[1..].iter().map(|r| [r[0].as_str(), r[1].as_str(), r[2].as_str()]).collect();
    assert_eq!((runs[0], runs[1], runs.len()), (["0", "1", "2"], ["1", "1", "2"], 3), "{rows:?}");
    let score = |row: usize| rows[row][3].parse::<f64>().unwrap();
    let best = if score(2) > score(1) { 2 } else { 1 };
    assert_eq!((&rows[3][0], rows[3][1].as_str(), rows[3][2].as_str()), (&rows[best][0], "2", "4"), "{rows:?}");
    assert_eq!(rows[3][6..], rows[best][6..], "the settings of a trial stay the same");
    // The package was trained with them.
    assert_eq!((&report["report"]["steps"], &report["best"]["rung"]), (&4.into(), &2.into()));
    std::fs::write(fixture.path("report.json"), report.to_string()).unwrap();
    let profile = fixture.run(&["profile", "report.json", "--json"]).json();
    assert_eq!(profile["run"]["command"], "train");
    let rdf = String::from_utf8(fixture.bytes("m/rdf.yaml")).unwrap();
    let rate: f64 = rows[3][7].parse().unwrap();
    let mut rates = rdf.lines().filter_map(|line| line.trim().strip_prefix("rate: ")?.parse::<f64>().ok());
    assert!(rates.any(|found| (found / rate - 1.0).abs() < 1e-9), "{rate} in {rdf}");
    assert!(!fixture.path("m.search").exists());
    let plots = String::from_utf8(fixture.bytes("m.search.svg")).unwrap();
    assert!(report["plots"].as_str().unwrap().ends_with("m.search.svg"), "{report:#}");
    // One plot over the steps with all runs, and one for each setting with the last run of each trial.
    assert_eq!(plots.matches("<circle").count(), 3 + 2 + 2, "{plots}");
    assert!(plots.contains(">ema</text>") && plots.contains(">trial 0, 2 steps"), "{plots}");

    // Resumed after the first trial has ended and the second one has failed: only the first is not run again.
    let text = String::from_utf8(fixture.bytes("m.search.csv")).unwrap();
    let mut lines: Vec<String> = text.lines().take(2).map(str::to_owned).collect();
    lines.push(format!("1,1,2,,0.0,the disk was full,{}", rows[2][6..].join(",")));
    std::fs::write(fixture.path("m.search.csv"), lines.join("\n") + "\n").unwrap();
    fixture.fails(2, &arguments, &["m.search.csv", "--resume", "--restart"]);
    fixture.run(&[&arguments[..], &["--resume"]].concat()).ok();
    let again = fixture.table("m.search.csv");
    assert_eq!(again[1], rows[1], "its seconds, too: it was not run again");
    let without_seconds =
        |rows: &[Vec<String>]| -> Vec<Vec<String>> { rows.iter().map(|row| [&row[..4], &row[5..]].concat()).collect() };
    assert_eq!(without_seconds(&again), without_seconds(&rows));
    for other in [["--seed", "5"], ["--set", "batch=2"]] {
        fixture.fails(3, &[&arguments[..], &["--resume"], &other].concat(), &["other settings", "--restart"]);
    }
}

#[test]
fn a_complete_search_that_is_resumed_trains_nothing_and_prints_its_result() {
    let fixture = prepared();
    let search = ["--search", "space.toml", "--trials", "2", "--steps", "4", "--without-int8", "--out", "m"];
    let report = fixture.run(&[&SMALL[..], &search].concat()).json();
    // An earlier package would be moved aside.
    let written = || std::fs::metadata(fixture.path("m/rdf.yaml")).unwrap().modified().unwrap();
    let state = || (fixture.bytes("m.search.csv"), fixture.bytes("m/rdf.yaml"), written(), fixture.names("."));
    let before = state();
    let resumed = [&SMALL[..], &search, &["--resume"]].concat();
    let complete = fixture.run(&resumed).json();
    assert_eq!(complete["report"], Value::Null);
    // The table holds rounded seconds.
    let trials = |report: &Value| -> Vec<[Value; 4]> {
        let trials = report["trials"].as_array().unwrap().iter();
        trials.map(|trial| ["trial", "rung", "score", "values"].map(|key| trial[key].clone())).collect()
    };
    assert_eq!(trials(&complete), trials(&report));
    let text: Vec<&str> = resumed.iter().copied().filter(|word| *word != "--json").collect();
    let printed = fixture.run(&text).ok().stdout;
    let best = format!("best: trial {}, score", report["best"]["trial"]);
    assert!(printed.contains("not trained again; --restart") && printed.contains(&best), "{printed}");
    assert_eq!(state(), before);
    // A package of another run with these settings is not the result.
    let mut record: Value = serde_json::from_slice(&fixture.bytes("m.package_provenance.json")).unwrap();
    record["job"]["seed"] = 99.into();
    std::fs::write(fixture.path("m.package_provenance.json"), record.to_string()).unwrap();
    assert_eq!(fixture.run(&resumed).json()["report"]["steps"], 4);
    // Without the int8 network that is requested now, the package is not the result.
    let with_int8: Vec<&str> = resumed.iter().copied().filter(|word| *word != "--without-int8").collect();
    let again = fixture.run(&with_int8).json();
    assert_eq!((&again["report"]["steps"], &again["best"]["score"]), (&4.into(), &report["best"]["score"]));
    // A package that was changed is not replaced.
    std::fs::write(fixture.path("m/rdf.yaml"), "name: mine\n").unwrap();
    fixture.fails(2, &resumed, &["rdf.yaml", "--force"]);
}

#[test]
fn a_search_is_not_continued_on_data_whose_content_has_changed() {
    let fixture = prepared();
    let search = ["--search", "space.toml", "--trials", "2", "--steps", "4", "--without-int8", "--out", "m"];
    fixture.run(&[&SMALL[..], &search].concat()).json();
    let resumed = [&SMALL[..], &search, &["--resume"]].concat();
    let raw = "sim/nuclei_1_raw.tif";
    let mut content = fixture.bytes(raw);
    // The same data, written again at another time.
    std::fs::write(fixture.path(raw), &content).unwrap();
    assert_eq!(fixture.run(&resumed).json()["report"], Value::Null);
    let middle = content.len() / 2;
    // More than the distance of two samples.
    content[middle..middle + 16_384].iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(fixture.path(raw), &content).unwrap();
    let table = fixture.bytes("m.search.csv");
    fixture.fails(3, &resumed, &["m.search.csv", "data have changed", "--restart instead of --resume"]);
    assert_eq!(fixture.bytes("m.search.csv"), table);
}

#[test]
fn a_search_whose_package_or_record_cannot_be_written_runs_no_trial() {
    let fixture = prepared();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nuclei-dog");
    std::fs::create_dir(fixture.path("start")).unwrap();
    for file in std::fs::read_dir(package).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), fixture.path("start").join(file.file_name())).unwrap();
    }
    let search = ["--search", "space.toml", "--trials", "2", "--steps", "4", "--without-int8", "--out"];
    let search = [&SMALL[..], &search].concat();
    fixture.fails(2, &[&search[..], &["start", "--from", "start", "--force"]].concat(), &["start is also an input"]);
    assert!(!fixture.path("start.search.csv").exists());
    std::fs::write(fixture.path("m.package_provenance.json"), "notes").unwrap();
    fixture.fails(2, &[&search[..], &["m"]].concat(), &["m.package_provenance.json already exists"]);
    assert!(!fixture.path("m.search.csv").exists());
}

#[test]
fn a_search_reports_its_trials_as_json_lines() {
    let fixture = prepared();
    let search = ["--search", "space.toml", "--trials", "2", "--steps", "4", "--without-int8", "--out", "m"];
    let ran = fixture.run(&[&SMALL[..], &search, &["--json-progress"]].concat()).ok();
    let trials: Vec<Value> = ran
        .stderr
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|event| event["event"] == "trial")
        .collect();
    let rows = fixture.table("m.search.csv");
    let first_columns: Vec<[&str; 2]> = rows[1..].iter().map(|row| [row[0].as_str(), row[1].as_str()]).collect();
    let reported: Vec<[String; 2]> =
        trials.iter().map(|event| ["number", "rung"].map(|key| event["trial"][key].to_string())).collect();
    assert_eq!(reported, first_columns, "{}", ran.stderr);
    let last = &trials[2];
    assert_eq!((&last["rungs"], &last["trial"]["steps"]), (&2.into(), &4.into()), "{last}");
    let settings = [format!("ema={}", rows[3][6]), format!("schedule.rate={}", rows[3][7])];
    assert_eq!(last["trial"]["settings"], json!(settings));
    assert!(last["trial"]["score"].is_number() && last["trial"]["error"] == "", "{last}");
}

#[test]
fn tables_and_plots_of_other_programs_are_kept_when_a_search_is_restarted() {
    let fixture = prepared();
    let search = ["--search", "space.toml", "--trials", "2", "--steps", "4", "--out", "m"];
    for name in ["m.search.csv", "m.search.svg"] {
        std::fs::write(fixture.path(name), "mine,written by hand\n").unwrap();
        for more in ["--restart", "--resume"] {
            fixture.fails(2, &[&SMALL[..], &search, &[more]].concat(), &[name, "--force"]);
        }
        assert_eq!(fixture.bytes(name), b"mine,written by hand\n");
        std::fs::remove_file(fixture.path(name)).unwrap();
    }
}

#[test]
fn a_search_in_place_of_another_leaves_none_of_its_results() {
    let fixture = prepared();
    let search = ["--search", "space.toml", "--trials", "2", "--steps", "4", "--out", "m"];
    let arguments = ["train", "--task", "segmentation", "--data", "empty", "--config", "t.toml", "--device", "cpu"];
    std::fs::create_dir(fixture.path("empty")).unwrap();
    for more in ["--restart", "--force"] {
        // As an earlier search leaves them; all trials of the new one fail, because there are no pairs.
        let header = "trial,rung,steps,score,seconds,error,ema,schedule.rate,search\n";
        std::fs::write(fixture.path("m.search.csv"), format!("{header}7,1,2,0.5,1.0,,0.5,0.1,abc\n")).unwrap();
        std::fs::write(fixture.path("m.search.svg"), "<svg/>").unwrap();
        fixture.fails(3, &[&arguments[..], &search, &[more]].concat(), &["all trials failed"]);
        assert!(fixture.table("m.search.csv")[1..].iter().all(|row| row[0] != "7"), "{more}");
        let plots = std::fs::read_to_string(fixture.path("m.search.svg")).unwrap_or_default();
        assert!(plots != "<svg/>", "{more}: the plots of the other search are left");
    }
}

#[test]
fn a_search_tries_no_combination_of_settings_twice() {
    let fixture = prepared();
    std::fs::write(fixture.path("space.toml"), "ema = { values = [0.5, 0.9] }\n").unwrap();
    // All trials fail, because there are no pairs.
    std::fs::create_dir(fixture.path("empty")).unwrap();
    let arguments = ["train", "--task", "segmentation", "--data", "empty", "--config", "t.toml", "--device", "cpu"];
    let search = ["--search", "space.toml", "--trials", "6", "--steps", "4", "--out", "m"];
    let note = "6 trials were requested, but the ranges have only 2 different combinations of settings";
    fixture.fails(3, &[&arguments[..], &search].concat(), &[note, "all trials failed"]);
    let rows = fixture.table("m.search.csv");
    // The setting is the last column but one; the error before it contains commas.
    let mut values: Vec<&str> = rows[1..].iter().map(|row| row[row.len() - 2].as_str()).collect();
    values.sort_unstable();
    assert_eq!(values, ["0.5", "0.9"], "{rows:?}");
}

#[test]
fn a_search_that_cannot_continue_another_says_what_to_do_next() {
    let fixture = prepared();
    let header = "trial,rung,steps,score,seconds,error,ema,schedule.rate,search\n";
    std::fs::write(fixture.path("m.search.csv"), format!("{header}0,1,2,0.5,1.0,,0.5,0.1,abc\n")).unwrap();
    let search = ["--search", "space.toml", "--trials", "2", "--steps", "4", "--out", "m", "--resume", "--json-error"];
    let refused = fixture.run(&[&SMALL[..], &search].concat());
    let event: Value = serde_json::from_str(refused.stderr.lines().last().unwrap()).unwrap();
    let next_step = "give the options of that search, or use --restart instead of --resume";
    assert_eq!(event["next_step"], next_step, "{event}");
}

#[test]
fn a_search_neither_continues_nor_keeps_the_training_run_of_something_else() {
    let fixture = prepared();
    let search = ["--search", "space.toml", "--trials", "2", "--steps", "4", "--out", "m"];
    // As an interrupted training run with other settings leaves it.
    let job = json!({"task": "segmentation", "data": "sim", "from": "scratch", "out": "m", "config": {"ema": 0.7}});
    create_working(&fixture.path("m.training"), "training").unwrap();
    std::fs::write(fixture.path("m.training/training.json"), json!({ "job": job }).to_string()).unwrap();
    fixture.fails(3, &[&SMALL[..], &search].concat(), &["m.training", "--resume", "--restart"]);
    fixture.fails(3, &[&SMALL[..], &search, &["--resume"]].concat(), &["m.training", "no trial", "--restart"]);
    // The window, which has no --out, shows what to do on its own line, and leaves out the parentheses.
    let refused = fixture.run(&[&SMALL[..], &search, &["--resume", "--json-error"]].concat());
    let event: Value = serde_json::from_str(refused.stderr.lines().last().unwrap()).unwrap();
    let next_step = "use --restart instead of --resume to discard it (another --out keeps it)";
    assert_eq!(event["next_step"], next_step, "{event}");
    assert!(fixture.path("m.training/training.json").exists());
    // A search that starts over discards it at once, even if its trials fail: here because there are no pairs.
    std::fs::create_dir(fixture.path("empty")).unwrap();
    let arguments = ["train", "--task", "segmentation", "--data", "empty", "--config", "t.toml", "--device", "cpu"];
    fixture.fails(3, &[&arguments[..], &search, &["--restart"]].concat(), &["all trials failed", "empty"]);
    assert!(!fixture.path("m.training").exists() && fixture.path("m.search.csv").exists());
}

#[cfg(unix)]
#[test]
fn a_terminated_search_ends_its_trial() {
    use std::process::{Command, Stdio};
    let fixture = prepared();
    // Its first trial alone would take hours.
    let search = ["--search", "space.toml", "--trials", "2", "--steps", "10000000", "--out", "m"];
    let mut command = fixture.command(&[&SMALL[..], &search].concat());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !fixture.path("m.search/out.training").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before its first trial began");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // As a scheduler does, which knows only the process that it started.
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert!(!fixture.path("m.search").exists() && fixture.leftovers().is_empty(), "{:?}", fixture.leftovers());
}

#[test]
fn a_search_that_cannot_start_is_refused() {
    let fixture = prepared();
    let run = |more: &[&str], code: i32, words: &[&str]| {
        fixture.fails(code, &[&SMALL[..], &["--out", "m", "--search", "space.toml"], more].concat(), words);
    };
    run(&["--steps", "4"], 2, &["--trials"]);
    run(&["--trials", "4"], 2, &["--steps"]);
    run(&["--trials", "0", "--steps", "4"], 2, &["--trials"]);
    run(&["--trials", "2", "--steps", "4", "--minutes", "1"], 2, &["--minutes"]);
    // A range would have no effect beside an option that sets the same, or the option beside the range.
    run(&["--trials", "2", "--steps", "4", "--set", "ema=0.5"], 2, &["ema", "--set"]);
    std::fs::write(fixture.path("space.toml"), "batch = { values = [1, 2] }\n").unwrap();
    run(&["--trials", "2", "--steps", "4", "--batch", "1"], 2, &["batch has a range, but --batch"]);
    std::fs::write(fixture.path("space.toml"), "budget.steps = { values = [1, 2] }\n").unwrap();
    run(&["--trials", "2", "--steps", "4"], 2, &["budget.steps has a range, but --steps"]);
    std::fs::write(fixture.path("space.toml"), "color = { values = [1] }\n").unwrap();
    run(&["--trials", "2", "--steps", "4"], 2, &["space.toml: trial 0", "color"]);
    std::fs::write(fixture.path("space.toml"), "schedule.rate = { log_uniform = [0, 1e-2] }\n").unwrap();
    let range = "space.toml: schedule.rate: log_uniform is [0, 0.01], expected two numbers above 0";
    run(&["--trials", "2", "--steps", "4"], 2, &[range]);
    std::fs::write(fixture.path("space.toml"), "ema = { uniform = [2.0, 3.0] }\n").unwrap();
    run(&["--trials", "2", "--steps", "4"], 2, &["ema", "0 to 1"]);
    assert!(!fixture.path("m.search.csv").exists() && !fixture.path("m.search").exists());
    #[cfg(unix)]
    {
        let settings = fixture.path("t.toml");
        std::fs::rename(&settings, fixture.path("settings.toml")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&settings).status().unwrap().success());
        run(&["--trials", "2", "--steps", "4"], 3, &["t.toml", "regular file"]);
        std::fs::rename(fixture.path("settings.toml"), settings).unwrap();
    }
    // If all trials fail, the exit code is that of the last one.
    std::fs::write(fixture.path("space.toml"), SPACE).unwrap();
    run(&["--trials", "2", "--steps", "4", "--device", "cuda:63"], 2, &["all trials failed", "cuda:63"]);
}

/// Returns a program that fails in the first trial of a search, as if its loss diverged, and runs this one in the others.
#[cfg(unix)]
fn failing_first(fixture: &Fixture) -> PathBuf {
    let fails = "case \"$*\" in *trial_0*) echo 'the loss is not finite' >&2; exit 1;; esac";
    let text = format!("#!/bin/sh\n{fails}\nexec '{}' \"$@\"\n", env!("CARGO_BIN_EXE_cytoscope"));
    // Written by another process: files that are open for writing, here or in a child process of another test, cannot be
    // executed.
    let write = ["-c", "printf '%s' \"$1\" > program && chmod 755 program", "sh", &text];
    assert!(std::process::Command::new("sh").args(write).current_dir(fixture.path("")).status().unwrap().success());
    fixture.path("program")
}

/// Only Unix runs scripts as programs.
#[cfg(not(unix))]
fn failing_first(_fixture: &Fixture) -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_cytoscope"))
}

#[test]
fn optuna_drives_training_and_goes_on_after_a_trial_that_fails() {
    let fixture = prepared();
    write_settings(&fixture, "");
    let script = include_str!("../../examples/optuna_search.py");
    let (data, out, config) = (fixture.path("sim"), fixture.path("trials"), fixture.path("t.toml"));
    let program = failing_first(&fixture);
    let options = ["--program", "--data", "--out", "--config", "--steps", "--trials"].map(Path::new);
    let values = [program.as_path(), &data, &out, &config, Path::new("3"), Path::new("3")];
    let arguments: Vec<&Path> = options.iter().zip(values).flat_map(|(option, value)| [*option, value]).collect();
    let Some(printed) = python("optuna", script, &arguments) else { return };
    let result: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!((&result["trials"], out.join("trial_0").exists()), (&json!(3), cfg!(not(unix))));
    assert!(result["best"]["score"].is_f64() && result["best"]["settings"]["schedule.rate"].is_f64(), "{result}");
    assert!(cfg!(not(unix)) || result["best"]["trial"] != 0, "{result}");
}
