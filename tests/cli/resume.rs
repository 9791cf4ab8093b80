//! `train`: resuming after a kill, a pause, changed data, and concurrent runs.

use crate::common::Fixture;
use crate::failures::SmallDisk;
use crate::train::{SMALL, simulate_pairs, write_settings};
use crate::train_pictures::panels;
use cytoscope_model_package::Package;
use image::RgbImage;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Starts a training run and returns once it has printed `scores` validation scores.
fn start_until_scored(fixture: &Fixture, arguments: &[&str], scores: usize) -> Child {
    let mut child = fixture.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut lines_read = Vec::new();
    while lines_read.iter().filter(|l: &&String| l.contains("score")).count() < scores {
        lines_read.push(lines.next().unwrap_or_else(|| panic!("it ended too early: {lines_read:?}")).unwrap());
    }
    // The pipe must stay open and drained.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

/// Starts a training run and kills it right after it has printed `scores` validation scores. On a busy machine, a run may end
/// before it is killed; it is then repeated.
pub(crate) fn kill_after_scores(fixture: &Fixture, arguments: &[&str], scores: usize) {
    let out = arguments.iter().skip_while(|argument| **argument != "--out").nth(1).expect("the name of the package");
    for _ in 0..20 {
        let mut child = start_until_scored(fixture, arguments, scores);
        child.kill().unwrap();
        child.wait().unwrap();
        if !fixture.path(out).exists() {
            return;
        }
        std::fs::remove_dir_all(fixture.path(out)).unwrap();
        // It may have been killed before it removed the folder of the run.
        let _ = std::fs::remove_dir_all(fixture.path(&format!("{out}.training")));
    }
    panic!("each training run ended before it was killed");
}

fn losses(report: &Value) -> Vec<(u64, f64)> {
    let points = report["history"]["steps"].as_array().unwrap();
    points.iter().map(|p| (p["step"].as_u64().unwrap(), p["loss"].as_f64().unwrap())).collect()
}

#[test]
fn killed_training_resumes_to_a_bit_identical_network() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    write_settings(&fixture, "");
    let arguments = [&SMALL[..], &["--steps", "24", "--threads", "2", "--without-int8", "--out"]].concat();
    let whole = fixture.run(&[&arguments[..], &["whole"]].concat()).json();
    // Killed right after its second validation, then resumed.
    kill_after_scores(&fixture, &[&arguments[..], &["cut"]].concat(), 2);
    assert!(!fixture.path("cut").exists() && fixture.path("cut.training/training.json").is_file());
    // The picture of a validation image shows the ground truth in yellow.
    let shown = panels(&fixture, "cut.training/shown.png");
    let yellow = |p: &RgbImage| p.pixels().filter(|p| p.0 == [255, 190, 60]).count();
    assert!(shown.len() == 1 && yellow(&shown[0]) > 100);
    let ran = fixture.run(&[&arguments[..], &["cut", "--resume"]].concat()).ok();
    assert!(ran.stderr.contains("resuming after step"), "{}", ran.stderr);
    let cut: Value = serde_json::from_str(&ran.stdout).unwrap();
    let (cut, whole) = (losses(&cut), losses(&whole));
    let same = |(a, b): (&(u64, f64), &(u64, f64))| a.0 == b.0 && (a.1 - b.1).abs() < 1e-12;
    assert!(cut.len() == whole.len() && cut.iter().zip(&whole).all(same), "{cut:?} and {whole:?}");
    assert!(fixture.bytes("whole/model.onnx") == fixture.bytes("cut/model.onnx"), "the networks differ");
    // A run cannot be resumed with another seed.
    kill_after_scores(&fixture, &[&arguments[..], &["other"]].concat(), 2);
    fixture.fails(
        3,
        &[&arguments[..], &["other", "--resume", "--seed", "5"]].concat(),
        &["the seed 0 instead of 5", "--restart"],
    );
    // The number of steps may be changed.
    let longer = ["--steps", "30", "--threads", "2", "--without-int8", "--out", "other", "--resume"];
    let report = fixture.run(&[&SMALL[..], &longer].concat()).json();
    assert_eq!(report["steps"], 30);
}

#[test]
fn finish_file_ends_training_with_the_best_network() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    write_settings(&fixture, "");
    let arguments = [&SMALL[..], &["--steps", "20000", "--without-int8", "--out", "m"]].concat();
    let mut child = fixture.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut lines_read = Vec::new();
    // The first point of the curve comes after fifty steps.
    while !lines_read.iter().any(|l: &String| l.contains(" of 20000: loss")) {
        lines_read.push(lines.next().unwrap_or_else(|| panic!("it ended too early: {lines_read:?}")).unwrap());
    }
    std::fs::write(fixture.path("m.training/finish"), "").unwrap();
    lines_read.extend(lines.map(Result::unwrap));
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{lines_read:?}");
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let steps = report["steps"].as_u64().unwrap();
    assert!((50..5_000).contains(&steps), "{steps}");
    // The last network was validated before the end, and the history notes the early finish.
    let validations = report["history"]["validations"].as_array().unwrap();
    assert_eq!(validations.last().unwrap()["step"].as_u64(), Some(steps));
    let finished = |note: &Value| note.as_str().unwrap().contains(&format!("at step {steps} of 20000"));
    assert!(report["history"]["notes"].as_array().unwrap().iter().any(finished), "{report:#}");
    assert!(!fixture.path("m.training").exists());
    let imported = fixture.run(&["import", "m", "--out", "again", "--json"]).json();
    assert_eq!(imported["test"].as_str(), Some("the test outputs are reproduced"));
}

#[test]
fn a_run_that_is_finished_at_once_writes_a_trained_network_and_the_time_of_a_step() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    // The first point of the curve would come after five thousand steps.
    let arguments = [&SMALL[..], &["--steps", "2000000", "--without-int8", "--out", "m"]].concat();
    let mut child = fixture.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("scoring the untrained network")), "it ended too early");
    std::fs::write(fixture.path("m.training/finish"), "").unwrap();
    let rest: Vec<String> = lines.collect();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{rest:?}");
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&report["history"]["steps"], report["stalled_secs"].as_f64()), (&serde_json::json!([]), Some(0.0)));
    assert!(report["steps"].as_u64() > Some(0) && report["step_secs"].as_f64() > Some(0.0), "{report:#}");
    assert!(fixture.path("m/rdf.yaml").is_file() && !fixture.path("m.training").exists());
}

#[test]
fn unfinished_training_is_discarded_only_on_request() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    write_settings(&fixture, "");
    let arguments = [&SMALL[..], &["--steps", "160", "--without-int8", "--out", "m"]].concat();
    kill_after_scores(&fixture, &arguments, 2);
    let state = || {
        let names = fixture.names("m.training");
        let tensors = names.iter().find(|n| n.ends_with(".safetensors")).unwrap();
        (fixture.bytes("m.training/training.json"), fixture.bytes(&format!("m.training/{tensors}")))
    };
    let before = state();
    fixture.fails(3, &arguments, &["m.training", "step ", "of 160", "--resume", "--restart"]);
    fixture.fails(2, &[&arguments[..], &["--from", "nobody", "--resume", "--restart"]].concat(), &["--restart"]);
    assert!(state() == before, "the training state is unchanged");
    // A second run does not touch one in progress.
    let mut child = start_until_scored(&fixture, &[&arguments[..], &["--resume"]].concat(), 1);
    // It must not end meanwhile. Only Unix can stop a process.
    if cfg!(unix) {
        let stopped = Command::new("kill").args(["-STOP", &child.id().to_string()]).status();
        assert!(stopped.unwrap().success(), "the first run was not stopped");
    }
    let ran = fixture.run(&[&arguments[..], &["--restart"]].concat());
    let is_kept = fixture.path("m.training/training.json").is_file();
    // Before the assertions, so that no stopped process stays if one of them fails.
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ran.code == Some(2) && ran.stderr.contains("another run"), "{:?}: {}", ran.code, ran.stderr);
    assert!(is_kept, "the checkpoint of the first run is gone");
    let few = [&SMALL[..], &["--steps", "4", "--without-int8", "--out", "m", "--restart"]].concat();
    assert_eq!(fixture.run(&few).json()["steps"], 4);
    assert!(!fixture.path("m.training").exists());
}

#[test]
fn resume_accepts_changed_data_and_keeps_the_validation_set() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 4);
    write_settings(&fixture, "");
    let arguments = [&SMALL[..], &["--steps", "40", "--without-int8", "--out", "m"]].concat();
    kill_after_scores(&fixture, &arguments, 2);
    let validation_set = |json: &Value| json["validation"].clone();
    let before = validation_set(&serde_json::from_slice(&fixture.bytes("m.training/training.json")).unwrap());
    assert_eq!(before.as_array().map(Vec::len), Some(1), "{before}");
    // One more pair, and a corrected label image.
    fixture.nuclei("16,64,64", 9);
    let mut labels = fixture.integers("sim/nuclei_2_labels.tif");
    let max_label = *labels.iter().max().unwrap();
    labels.iter_mut().filter(|l| **l == max_label).for_each(|l| *l = 0);
    fixture.write("sim/nuclei_2_labels.tif", "ZYX", &[16, 64, 64], labels);
    let ran = fixture.run(&[&arguments[..], &["--resume"]].concat()).ok();
    assert!(ran.stderr.contains("data have changed"), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&report["steps"], &report["train_pairs"]), (&40.into(), &4.into()), "{report:#}");
    let names: Vec<&Value> = report["pairs_after"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
    assert_eq!(names, before.as_array().unwrap().iter().collect::<Vec<_>>());
}

#[test]
fn a_resumed_run_keeps_the_grid_and_the_object_diameter_of_its_network() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    let arguments = [&SMALL[..], &["--steps", "24", "--without-int8", "--out", "m"]].concat();
    kill_after_scores(&fixture, &arguments, 2);
    let state: Value = serde_json::from_slice(&fixture.bytes("m.training/training.json")).unwrap();
    let grid: [f64; 3] = serde_json::from_value(state["config"]["voxel_um"].clone()).unwrap();
    let diameter = state["config"]["object_diameter_um"].as_f64().unwrap();
    // The same stacks with voxels of another size.
    for name in fixture.names("sim").into_iter().filter(|name| name.ends_with(".tif")) {
        let inside = format!("sim/{name}");
        fixture.run(&["convert", &inside, &name, "--voxel-size", "9,0.5,0.5"]).ok();
        std::fs::rename(fixture.path(&name), fixture.path(&inside)).unwrap();
    }
    let ran = fixture.run(&[&arguments[..], &["--resume"]].concat()).ok();
    assert!(ran.stderr.contains("data have changed"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("changed settings are ignored"), "{}", ran.stderr);
    let package = Package::open(&fixture.path("m")).unwrap();
    let found = package.inputs[0].voxel_um().unwrap();
    assert!((0..3).all(|axis| (found[axis] / grid[axis] - 1.0).abs() < 1e-6), "{found:?} instead of {grid:?}");
    let stated = package.config()["object_diameter_um"].as_f64().unwrap();
    assert!((stated / diameter - 1.0).abs() < 1e-6, "{stated} instead of {diameter}");
}

#[test]
fn a_start_model_that_was_replaced_before_a_run_is_resumed_is_named() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    for (seed, out) in [("1", "s"), ("2", "other")] {
        let new = ["--steps", "2", "--without-int8", "--seed", seed, "--out", out];
        fixture.run(&[&SMALL[..], &new].concat()).ok();
    }
    let arguments = [&SMALL[..], &["--from", "s", "--steps", "24", "--without-int8", "--out", "m"]].concat();
    // The first two scores are those of the start model and of step 0, without a checkpoint.
    kill_after_scores(&fixture, &arguments, 4);
    std::fs::rename(fixture.path("s"), fixture.path("earlier")).unwrap();
    std::fs::rename(fixture.path("other"), fixture.path("s")).unwrap();
    let ran = fixture.run(&[&arguments[..], &["--resume"]].concat()).ok();
    assert!(ran.stderr.contains("the start model s has changed since the training run was started"), "{}", ran.stderr);
    let history = ran.json()["history"].to_string();
    assert!(history.contains("has changed since"), "{history}");
}

#[test]
fn a_resumed_run_reports_the_data_workers_that_it_used() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "workers = 2");
    let arguments = [&SMALL[..], &["--steps", "24", "--without-int8", "--out", "m"]].concat();
    kill_after_scores(&fixture, &arguments, 2);
    // The settings of the checkpoint count, not those of the command that resumes.
    write_settings(&fixture, "workers = 3");
    let report = fixture.run(&[&arguments[..], &["--set", "prefetch=5", "--resume"]].concat()).json();
    assert_eq!((report["workers"].as_u64(), report["prefetch"].as_u64()), (Some(2), Some(10)));
    assert_eq!(report["run"]["facts"]["training"]["workers"], report["workers"]);
}

#[test]
fn a_run_in_a_precision_of_another_device_resumes_in_a_given_one() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    let arguments = [&SMALL[..], &["--steps", "24", "--without-int8", "--out", "m"]].concat();
    kill_after_scores(&fixture, &arguments, 2);
    // As if it had been started on CUDA.
    let mut checkpoint: Value = serde_json::from_slice(&fixture.bytes("m.training/training.json")).unwrap();
    checkpoint["config"]["precision"] = "tf32".into();
    std::fs::write(fixture.path("m.training/training.json"), checkpoint.to_string()).unwrap();
    let resume = [&arguments[..], &["--resume", "--device", "cpu"]].concat();
    fixture.fails(2, &resume, &["tf32", "set --precision to f32"]);
    let report = fixture.run(&[&resume[..], &["--precision", "f32"]].concat()).json();
    assert_eq!(report["steps"].as_u64(), Some(24), "{report:#}");
}

#[test]
fn early_stopping_ends_training_when_the_score_stagnates() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    fixture.run(&[&SMALL[..], &["--steps", "30", "--without-int8", "--out", "m"]].concat()).ok();
    // With a learning rate near zero the score cannot rise.
    let text = "patch_zyx = [8, 32, 32]\nbatch = 1\n[schedule]\nrate = 1e-12\n[validation]\ntimes = 10\n[budget]\npatience = 2\n";
    std::fs::write(fixture.path("t.toml"), text).unwrap();
    let report =
        fixture.run(&[&SMALL[..], &["--from", "m", "--steps", "40", "--without-int8", "--out", "n"]].concat()).json();
    assert!(report["steps"].as_u64().unwrap() < 20, "{report:#}");
    let printed = |note: &Value| note.as_str().unwrap().starts_with("ended early");
    assert!(report["history"]["notes"].as_array().unwrap().iter().any(printed), "{report:#}");
}

#[test]
fn nan_loss_rolls_training_back_and_halves_the_rate() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    // A learning rate so high that values overflow after some steps.
    let text = "patch_zyx = [8, 32, 32]\nbatch = 1\nema = 0.0\nclip_norm = 1000.0\n[network]\nfilters = [8]\n\
                [schedule]\nrate = 1e5\nwarm_up = 0.0\n[validation]\ntimes = 2\n";
    std::fs::write(fixture.path("t.toml"), text).unwrap();
    let report = fixture.run(&[&SMALL[..], &["--steps", "40", "--without-int8", "--out", "m"]].concat()).json();
    let notes = report["history"]["notes"].as_array().unwrap();
    assert!(notes.iter().any(|n| n.as_str().unwrap().contains("not finite at step")), "{notes:?}");
    // The curve has every step once, with finite losses; at some step its rate falls to half, which the schedule does
    // not do.
    let curve = losses(&report);
    assert_eq!(curve.iter().map(|p| p.0).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
    assert!(curve.iter().all(|p| p.1.is_finite()), "{curve:?}");
    let rate = |i: usize| report["history"]["steps"][i]["rate"].as_f64().unwrap();
    assert!(rate(0) < 0.51e5 || (0..30).any(|i| rate(i + 1) < 0.6 * rate(i)), "{:#}", report["history"]["steps"]);
    assert!(fixture.path("m/rdf.yaml").is_file());
}

#[test]
fn temporarily_full_disk_does_not_end_training() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    let text = String::from_utf8(fixture.bytes("t.toml")).unwrap().replace("times = 4", "times = 60");
    std::fs::write(fixture.path("t.toml"), text).unwrap();
    let Some(_disk) = SmallDisk::mount(&fixture.path("small"), "8m") else { return };
    let arguments = [&SMALL[..], &["--steps", "1200", "--without-int8", "--out", "small/m"]].concat();
    let mut child = fixture.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut lines_read = Vec::new();
    let mut until = |what: &str, count: usize| {
        let from = lines_read.len();
        while lines_read[from..].iter().filter(|l: &&String| l.contains(what)).count() < count {
            lines_read
                .push(lines.next().unwrap_or_else(|| panic!("it ended before \"{what}\": {lines_read:?}")).unwrap());
        }
    };
    until("score", 2);
    let mut rest = 8 << 20;
    while rest > 0 && std::fs::write(fixture.path("small/rest"), vec![0u8; rest]).is_err() {
        rest -= 64 << 10;
    }
    until("training continues", 2);
    std::fs::remove_file(fixture.path("small/rest")).unwrap();
    until("score", 2);
    std::fs::write(fixture.path("small/m.training/finish"), "").unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    assert!(child.wait().unwrap().success());
    assert!(fixture.path("small/m/rdf.yaml").is_file() && !fixture.path("small/m.training").exists());
}

#[test]
fn a_trained_network_that_cannot_be_written_is_kept_for_resume() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    let arguments = [&SMALL[..], &["--steps", "400", "--without-int8", "--out", "m"]].concat();
    let mut child = fixture.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("score")), "it ended before a validation");
    // A folder of the user takes the place of the package.
    std::fs::create_dir(fixture.path("m")).unwrap();
    std::fs::write(fixture.path("m/mine"), "data").unwrap();
    std::fs::write(fixture.path("m.training/finish"), "").unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(2), "{rest:?}");
    let is_advice = |line: &String| line.contains("m.training") && line.contains("continue with --resume");
    assert!(rest.iter().any(is_advice), "{rest:?}");
    assert_eq!(fixture.bytes("m/mine"), b"data");
    std::fs::rename(fixture.path("m"), fixture.path("other")).unwrap();
    let report = fixture.run(&[&arguments[..], &["--resume"]].concat()).json();
    assert!(report["steps"].as_u64().unwrap() > 0, "{report:#}");
    assert!(fixture.path("m/rdf.yaml").is_file() && !fixture.path("m.training").exists());
}

#[test]
fn a_network_is_not_lost_because_no_checkpoint_could_be_saved() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    let arguments = [&SMALL[..], &["--steps", "60", "--without-int8", "--out", "m"]].concat();
    // Returns the exit code and the messages of a run that cannot save a checkpoint: a folder has the name of its state.
    let run = |is_out_taken: bool| {
        for _ in 0..20 {
            let mut child = fixture.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
            assert!(lines.any(|line| line.contains("scoring the untrained network")), "it ended before its first step");
            if std::fs::create_dir_all(fixture.path("m.training/training.json/full")).is_err() {
                // On a busy machine, its first checkpoint may be saved before.
                child.kill().unwrap();
                child.wait().unwrap();
                for folder in ["m", "m.training"].map(|name| fixture.path(name)).iter().filter(|path| path.exists()) {
                    std::fs::remove_dir_all(folder).unwrap();
                }
                continue;
            }
            if is_out_taken {
                // A folder of the user takes the place of the package.
                std::fs::create_dir(fixture.path("m")).unwrap();
                std::fs::write(fixture.path("m/mine"), "data").unwrap();
            }
            let rest: Vec<String> = lines.collect();
            return (child.wait().unwrap().code(), rest.join("\n"));
        }
        panic!("each training run saved a checkpoint before the folder was made");
    };
    let (code, messages) = run(false);
    assert_eq!(code, Some(0), "{messages}");
    assert!(messages.contains("the package is written without it"), "{messages}");
    assert!(fixture.path("m/rdf.yaml").is_file());
    if fixture.path("m.training").exists() {
        std::fs::remove_dir_all(fixture.path("m.training")).unwrap();
    }
    std::fs::rename(fixture.path("m"), fixture.path("complete")).unwrap();
    let (code, messages) = run(true);
    assert_eq!(code, Some(2), "{messages}");
    assert!(messages.contains("copy it before you train again"), "{messages}");
    let best: Vec<String> = fixture.names("m.training").into_iter().filter(|name| name.starts_with("best-")).collect();
    assert_eq!(best.len(), 1, "networks that are no longer used are removed: {best:?}");
    assert!(fixture.path(&format!("m.training/{}/rdf.yaml", best[0])).is_file());
}

#[test]
fn training_that_does_not_fit_the_disk_is_refused_before_its_first_step() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    let Some(_disk) = SmallDisk::mount(&fixture.path("small"), "100k") else { return };
    let arguments = [&SMALL[..], &["--steps", "4", "--without-int8", "--out", "small/m"]].concat();
    fixture.fails(4, &arguments, &["of disk space", "free some space"]);
    assert!(fixture.names("small").is_empty(), "{:?}", fixture.names("small"));
}

#[cfg(unix)]
#[test]
fn a_training_run_that_provenance_repeats_says_how_it_is_continued() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    write_settings(&fixture, "");
    fixture.run(&[&SMALL[..], &["--steps", "4", "--threads", "2", "--without-int8", "--out", "m"]].concat()).ok();
    // The run that is repeated is long enough to be canceled.
    let mut record: Value = serde_json::from_slice(&fixture.bytes("m.package_provenance.json")).unwrap();
    record["job"]["config"]["budget"]["steps"] = 120.into();
    std::fs::write(fixture.path("long_provenance.json"), record.to_string()).unwrap();
    let rerun = ["provenance", "long_provenance.json", "--rerun", "--out", "n"];
    let mut child = fixture.command(&rerun).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("validation score")), "it ended too early");
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(5), "{rest:?}");
    let command = |text: &str| text.split_once("continue it with: ").map(|(_, command)| command.to_owned());
    let noted = rest.iter().find_map(|line| command(line.as_str())).unwrap_or_else(|| panic!("{rest:?}"));
    let hints: Vec<&String> = rest.iter().filter(|line| line.contains("--resume")).collect();
    assert!(hints.len() == 1 && hints[0].contains(" of 120; continue it with: "), "{rest:?}");
    // So does the next attempt, as after a kill.
    let refused = fixture.fails(3, &rerun, &["n.training", "unfinished", "--out"]);
    let refused = refused.stderr.lines().find_map(command).unwrap_or_else(|| panic!("{}", refused.stderr));
    assert_eq!(noted, refused);
    // Its words are in quotes at most.
    let words: Vec<&str> = noted.split_whitespace().map(|word| word.trim_matches('\'')).collect();
    assert_eq!(words[..2], ["cytoscope", "train"], "{noted}");
    fixture.run(&words[1..]).ok();
    assert!(fixture.path("n/model.onnx").is_file() && !fixture.path("n.training").exists());
}
