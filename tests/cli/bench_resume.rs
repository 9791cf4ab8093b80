//! `bench --resume`: each finished run is stored at once, and an interrupted bench continues after the stored runs.

use crate::common::Fixture;
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::{Duration, Instant};

const HEADER: &str = "name,kind,model,data,device,precision,overrides\n";
const OVERRIDES: &str = "\"diameter=15;voxel_size=1.75,0.8,0.8\"";
const BENCH: [&str; 5] = ["bench", "--config", "t.csv", "--output", "r.json"];

/// Returns the row of a task that predicts the stack `data`.
fn row(name: &str, data: &str) -> String {
    format!("{name},inference,nuclei-dog,{data},cpu,f32,{OVERRIDES}\n")
}

fn write_table(fixture: &Fixture, rows: &[String]) {
    std::fs::write(fixture.path("t.csv"), format!("{HEADER}{}", rows.concat())).unwrap();
}

fn results(fixture: &Fixture) -> Vec<Value> {
    serde_json::from_slice(&fixture.bytes("r.json")).unwrap()
}

/// Returns the names of the tasks that ran, in their order.
fn ran(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|l| l.starts_with("[round")).map(|l| l.rsplit(' ').next().unwrap()).collect()
}

#[test]
fn an_interrupted_bench_continues_after_its_finished_runs() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let rows = [row("a", &raw), row("b", "late.tif"), row("c", &raw)];
    write_table(&fixture, &rows);
    let resume = [&BENCH[..], &["--resume"]].concat();
    // Without results, it starts at the beginning; a stack that is missing ends it.
    let first = fixture.run(&resume);
    assert!(first.code != Some(0) && first.stderr.contains("--resume continues after them"), "{}", first.stderr);
    let before = results(&fixture);
    assert_eq!((before.len(), &before[1]["success"]), (2, &json!(false)), "{before:#?}");
    std::fs::copy(fixture.path(&raw), fixture.path("late.tif")).unwrap();
    let second = fixture.run(&resume).ok();
    assert_eq!(ran(&second.stderr), ["b", "c"], "the task that failed, and the one that was not reached");
    let after = results(&fixture);
    assert_eq!(after[0], before[0], "a run that had finished");
    assert!(after.len() == 3 && after.iter().all(|r| r["success"] == true && r["runs"] == 1), "{after:#?}");
    // More runs are added to those that exist.
    let third = fixture.run(&[&resume[..], &["--repeat", "2"]].concat()).ok();
    assert_eq!(ran(&third.stderr), ["a", "b", "c"]);
    let twice = results(&fixture);
    assert!(twice.iter().all(|r| r["runs"] == 2 && r["run_metrics"].as_array().unwrap().len() == 2), "{twice:#?}");
    assert_eq!(twice[2]["run_metrics"][0], after[2]["run_metrics"][0]);
    assert_eq!(ran(&fixture.run(&resume).ok().stderr), Vec::<&str>::new(), "nothing is missing");
    // Results of other settings or tasks are not continued, and not replaced.
    let stored = fixture.bytes("r.json");
    write_table(&fixture, &[rows[0].replace("f32", "auto"), rows[1].clone(), rows[2].clone()]);
    fixture.fails(3, &resume, &["r.json", "task \"a\"", "other settings", "--force"]);
    write_table(&fixture, &rows[..2]);
    fixture.fails(3, &resume, &["r.json", "no task \"c\""]);
    fixture.fails(2, &[&resume[..], &["--force"]].concat(), &["--resume", "--force"]);
    // Nor are those of another stack.
    write_table(&fixture, &rows);
    std::fs::write(fixture.path("late.tif"), "another stack").unwrap();
    fixture.fails(3, &resume, &["r.json", "task \"b\"", "late.tif had", "--force"]);
    assert!(fixture.bytes("r.json") == stored);
    std::fs::write(fixture.path("r.json"), "{\"mine\": 1}").unwrap();
    fixture.fails(3, &resume, &["r.json", "expected results"]);
    assert_eq!(fixture.bytes("r.json"), b"{\"mine\": 1}");
}

/// Runs a bench until it has written results, and kills it.
fn killed_after_results(fixture: &Fixture, arguments: &[&str]) -> Vec<Value> {
    let mut child = fixture.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while !fixture.path("r.json").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended without results");
        assert!(start.elapsed() < Duration::from_secs(300), "no results");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    results(fixture)
}

#[test]
fn finished_runs_are_stored_while_the_bench_runs() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    write_table(&fixture, &[row("a", &raw)]);
    let results = killed_after_results(&fixture, &[&BENCH[..], &["--repeat", "1000"]].concat());
    let runs = results[0]["runs"].as_u64().unwrap();
    assert!((1..1000).contains(&runs) && results[0]["success"] == true, "{results:#?}");
    assert_eq!(results[0]["run_metrics"].as_array().unwrap().len() as u64, runs);
}

#[test]
fn finished_rounds_are_stored_while_optimizations_are_compared() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let arguments = ["bench", "--compare-opts", "nuclei-dog", "--data", &raw, "--output", "r.json"];
    let results = killed_after_results(&fixture, &[&arguments[..], &["--repeat", "1000"]].concat());
    let runs: Vec<u64> = results.iter().map(|result| result["runs"].as_u64().unwrap()).collect();
    assert!(runs.len() >= 5 && (1..1000).contains(&runs[0]), "{results:#?}");
    assert!(runs.iter().all(|count| *count == runs[0]), "whole rounds: {runs:?}");
    assert!(results.iter().all(|result| result["metrics"]["run_secs"]["median"].is_f64()), "{results:#?}");
}

#[cfg(unix)]
#[test]
fn pairs_are_stored_if_the_cost_of_recording_is_interrupted() {
    use std::io::{BufRead, BufReader, Read};
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let arguments = ["bench", "--span-cost", "nuclei-dog", "--data", &raw, "--output", "r.json", "--seconds", "3600"];
    let mut child = fixture.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut messages = BufReader::new(child.stderr.take().unwrap());
    let mut stderr = String::new();
    while !stderr.contains(" of each in ") {
        assert!(messages.read_line(&mut stderr).unwrap() > 0, "it ended before it measured anything: {stderr}");
    }
    let interrupt = ["-INT", &child.id().to_string()];
    assert!(std::process::Command::new("kill").args(interrupt).status().unwrap().success());
    messages.read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5), "{stderr}");
    assert!(stderr.contains("the results so far are in r.json"), "{stderr}");
    let results = results(&fixture);
    assert_eq!(results.len(), 4);
    let is_measured = |result: &Value| result["metrics"]["cost_interval"]["median"].is_f64();
    assert!(results.iter().all(|r| r["runs"].as_u64() > Some(0) && is_measured(r)), "{results:#?}");
    assert_eq!(fixture.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn resume_without_a_table_replaces_no_file() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    std::fs::write(fixture.path("notes.json"), "{}").unwrap();
    for option in ["--compare-opts", "--quantization", "--span-cost"] {
        let words = ["bench", option, "nuclei-dog", "--data", &raw, "--output", "notes.json", "--resume"];
        fixture.fails(2, &words, &[option, "--resume"]);
    }
    assert_eq!(fixture.bytes("notes.json"), b"{}");
}
