//! `train`: what survives a kill, a pause, other data, and a second run of it.

use crate::common::Desk;
use crate::failures::SmallDisk;
use crate::train::{SMALL, pairs, panels, settings};
use image::RgbImage;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// A training under way, once it has told some scores.
fn begun(desk: &Desk, arguments: &[&str], scores: usize) -> Child {
    let mut child = desk.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut told = Vec::new();
    while told.iter().filter(|l: &&String| l.contains("score")).count() < scores {
        told.push(lines.next().unwrap_or_else(|| panic!("it ended first: {told:?}")).unwrap());
    }
    // Nobody reads on, but its pipe must not close.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

/// A training killed right after it told some scores.
fn killed(desk: &Desk, arguments: &[&str], scores: usize) {
    let mut child = begun(desk, arguments, scores);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn losses(report: &Value) -> Vec<(u64, f64)> {
    let points = report["history"]["steps"].as_array().unwrap();
    points.iter().map(|p| (p["step"].as_u64().unwrap(), p["loss"].as_f64().unwrap())).collect()
}

#[test]
fn a_killed_training_goes_on_to_the_same_network_bit_by_bit() {
    let desk = Desk::new();
    pairs(&desk, 3);
    settings(&desk, "");
    let arguments = [&SMALL[..], &["--steps", "24", "--threads", "2", "--without-int8", "--out"]].concat();
    let whole = desk.run(&[&arguments[..], &["whole"]].concat()).json();
    // Killed right after its second validation, then resumed.
    killed(&desk, &[&arguments[..], &["cut"]].concat(), 2);
    assert!(!desk.path("cut").exists() && desk.path("cut.training/training.json").is_file());
    // What it made of an image kept back is there to be looked at: what is true in yellow.
    let shown = panels(&desk, "cut.training/shown.png");
    let yellow = |p: &RgbImage| p.pixels().filter(|p| p.0 == [255, 190, 60]).count();
    assert!(shown.len() == 1 && yellow(&shown[0]) > 100);
    let ran = desk.run(&[&arguments[..], &["cut", "--resume"]].concat()).ok();
    assert!(ran.stderr.contains("Going on after step"), "{}", ran.stderr);
    let cut: Value = serde_json::from_str(&ran.stdout).unwrap();
    let (cut, whole) = (losses(&cut), losses(&whole));
    let same = |(a, b): (&(u64, f64), &(u64, f64))| a.0 == b.0 && (a.1 - b.1).abs() < 1e-12;
    assert!(cut.len() == whole.len() && cut.iter().zip(&whole).all(same), "{cut:?} and {whole:?}");
    assert!(desk.bytes("whole/model.onnx") == desk.bytes("cut/model.onnx"), "another network");
    // What was begun with one start is not gone on with another.
    killed(&desk, &[&arguments[..], &["other"]].concat(), 2);
    desk.fails(3, &[&arguments[..], &["other", "--resume", "--seed", "5"]].concat(), &["another", "--anew"]);
    // How long it lasts may be said anew.
    let longer = ["--steps", "30", "--threads", "2", "--without-int8", "--out", "other", "--resume"];
    let report = desk.run(&[&SMALL[..], &longer].concat()).json();
    assert_eq!(report["steps"], 30);
}

#[test]
fn a_training_that_is_asked_to_finish_ends_with_its_best_network() {
    let desk = Desk::new();
    pairs(&desk, 3);
    settings(&desk, "");
    let arguments = [&SMALL[..], &["--steps", "20000", "--without-int8", "--out", "m"]].concat();
    let mut child = desk.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut told = Vec::new();
    // The first point of the curve comes after fifty steps.
    while !told.iter().any(|l: &String| l.contains(" of 20000: loss")) {
        told.push(lines.next().unwrap_or_else(|| panic!("it ended first: {told:?}")).unwrap());
    }
    std::fs::write(desk.path("m.training/finish"), "").unwrap();
    told.extend(lines.map(Result::unwrap));
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{told:?}");
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let steps = report["steps"].as_u64().unwrap();
    assert!((50..5_000).contains(&steps), "{steps}");
    // What was learnt last was tried before the end, and the package says how it came to its end.
    let validations = report["history"]["validations"].as_array().unwrap();
    assert_eq!(validations.last().unwrap()["step"].as_u64(), Some(steps));
    let finished = |note: &Value| note.as_str().unwrap().contains(&format!("at step {steps} of 20000"));
    assert!(report["history"]["notes"].as_array().unwrap().iter().any(finished), "{report:#}");
    assert!(!desk.path("m.training").exists());
    let imported = desk.run(&["import", "m", "--out", "again", "--json"]).json();
    assert_eq!(imported["test"].as_str(), Some("its test outputs are reproduced"));
}

#[test]
fn a_training_that_is_not_at_its_end_is_thrown_away_only_when_asked() {
    let desk = Desk::new();
    pairs(&desk, 3);
    settings(&desk, "");
    let arguments = [&SMALL[..], &["--steps", "400", "--without-int8", "--out", "m"]].concat();
    killed(&desk, &arguments, 2);
    let state = || {
        let names = desk.names("m.training");
        let tensors = names.iter().find(|n| n.ends_with(".safetensors")).unwrap();
        (desk.bytes("m.training/training.json"), desk.bytes(&format!("m.training/{tensors}")))
    };
    let before = state();
    desk.fails(3, &arguments, &["m.training", "step ", "of 400", "--resume", "--anew"]);
    desk.fails(2, &[&arguments[..], &["--from", "nobody", "--resume", "--anew"]].concat(), &["--anew"]);
    assert!(state() == before, "what was learnt is as it was");
    // Another run leaves one alone that is under way.
    let mut child = begun(&desk, &[&arguments[..], &["--resume"]].concat(), 1);
    let ran = desk.run(&[&arguments[..], &["--anew"]].concat());
    assert!(ran.code == Some(2) && ran.stderr.contains("another run"), "{:?}: {}", ran.code, ran.stderr);
    assert!(desk.path("m.training/training.json").is_file());
    child.kill().unwrap();
    child.wait().unwrap();
    let few = [&SMALL[..], &["--steps", "4", "--without-int8", "--out", "m", "--anew"]].concat();
    assert_eq!(desk.run(&few).json()["steps"], 4);
    assert!(!desk.path("m.training").exists());
}

#[test]
fn a_training_goes_on_with_data_that_have_changed_and_keeps_apart_what_it_validates_on() {
    let desk = Desk::new();
    pairs(&desk, 4);
    settings(&desk, "");
    let arguments = [&SMALL[..], &["--steps", "40", "--without-int8", "--out", "m"]].concat();
    killed(&desk, &arguments, 2);
    let held = |json: &Value| json["validation"].clone();
    let before = held(&serde_json::from_slice(&desk.bytes("m.training/training.json")).unwrap());
    assert_eq!(before.as_array().map(Vec::len), Some(1), "{before}");
    // One more stack with its labels, and a label image that somebody corrected.
    desk.nuclei("16,64,64", 9);
    let mut labels: Vec<u16> =
        desk.image("sim/nuclei_2_labels.tif").samples().to_f32().iter().map(|v| *v as u16).collect();
    let most = *labels.iter().max().unwrap();
    labels.iter_mut().filter(|l| **l == most).for_each(|l| *l = 0);
    desk.write("sim/nuclei_2_labels.tif", "ZYX", &[16, 64, 64], labels);
    let ran = desk.run(&[&arguments[..], &["--resume"]].concat()).ok();
    assert!(ran.stderr.contains("data have changed"), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&report["steps"], &report["train_pairs"]), (&40.into(), &4.into()), "{report:#}");
    let names: Vec<&Value> = report["pairs_after"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
    assert_eq!(names, before.as_array().unwrap().iter().collect::<Vec<_>>());
}

#[test]
fn a_training_ends_when_its_score_stays_where_it_is() {
    let desk = Desk::new();
    pairs(&desk, 2);
    settings(&desk, "");
    desk.run(&[&SMALL[..], &["--steps", "30", "--without-int8", "--out", "m"]].concat()).ok();
    // At a rate of next to nothing the score cannot rise.
    let text = "patch_zyx = [8, 32, 32]\nbatch = 1\n[schedule]\nrate = 1e-12\n[validation]\ntimes = 10\n[budget]\npatience = 2\n";
    std::fs::write(desk.path("t.toml"), text).unwrap();
    let report =
        desk.run(&[&SMALL[..], &["--from", "m", "--steps", "40", "--without-int8", "--out", "n"]].concat()).json();
    assert!(report["steps"].as_u64().unwrap() < 20, "{report:#}");
    let said = |note: &Value| note.as_str().unwrap().starts_with("Ended early");
    assert!(report["history"]["notes"].as_array().unwrap().iter().any(said), "{report:#}");
}

#[test]
fn a_loss_that_is_no_number_takes_training_back_and_on_at_a_lower_rate() {
    let desk = Desk::new();
    pairs(&desk, 3);
    // Steps so wide that values overflow after some of them.
    let text = "patch_zyx = [8, 32, 32]\nbatch = 1\nema = 0.0\nclip_norm = 1000.0\n[network]\nfilters = [8]\n\
                [schedule]\nrate = 1e5\nwarm_up = 0.0\n[validation]\ntimes = 2\n";
    std::fs::write(desk.path("t.toml"), text).unwrap();
    let report = desk.run(&[&SMALL[..], &["--steps", "40", "--without-int8", "--out", "m"]].concat()).json();
    let notes = report["history"]["notes"].as_array().unwrap();
    assert!(notes.iter().any(|n| n.as_str().unwrap().contains("no number at step")), "{notes:?}");
    // The curve has every step once, with finite losses; somewhere its rate falls to half, which the schedule does not do there.
    let curve = losses(&report);
    assert_eq!(curve.iter().map(|p| p.0).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
    assert!(curve.iter().all(|p| p.1.is_finite()), "{curve:?}");
    let rate = |i: usize| report["history"]["steps"][i]["rate"].as_f64().unwrap();
    assert!(rate(0) < 0.51e5 || (0..30).any(|i| rate(i + 1) < 0.6 * rate(i)), "{:#}", report["history"]["steps"]);
    assert!(desk.path("m/rdf.yaml").is_file());
}

#[test]
fn a_disk_that_is_full_for_a_while_ends_no_training() {
    let desk = Desk::new();
    pairs(&desk, 2);
    settings(&desk, "");
    let text = String::from_utf8(desk.bytes("t.toml")).unwrap().replace("times = 4", "times = 60");
    std::fs::write(desk.path("t.toml"), text).unwrap();
    let Some(_disk) = SmallDisk::mount(&desk.path("small"), "8m") else { return };
    let arguments = [&SMALL[..], &["--steps", "1200", "--without-int8", "--out", "small/m"]].concat();
    let mut child = desk.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut told = Vec::new();
    let mut until = |what: &str, count: usize| {
        let from = told.len();
        while told[from..].iter().filter(|l: &&String| l.contains(what)).count() < count {
            told.push(lines.next().unwrap_or_else(|| panic!("it ended before \"{what}\": {told:?}")).unwrap());
        }
    };
    until("score", 2);
    let mut rest = 8 << 20;
    while rest > 0 && std::fs::write(desk.path("small/rest"), vec![0u8; rest]).is_err() {
        rest -= 64 << 10;
    }
    until("training goes on", 2);
    std::fs::remove_file(desk.path("small/rest")).unwrap();
    until("score", 2);
    std::thread::spawn(move || lines.for_each(drop));
    assert!(child.wait().unwrap().success());
    assert!(desk.path("small/m/rdf.yaml").is_file() && !desk.path("small/m.training").exists());
}
