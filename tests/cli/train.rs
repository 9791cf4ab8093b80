//! `train`: what comes out, what survives a kill, what is refused.

use crate::common::{Desk, missing, python};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Simulated pairs `sim/nuclei_N_raw.tif` and `_labels.tif`.
fn pairs(desk: &Desk, count: u64) {
    for seed in 1..=count {
        desk.nuclei("16,64,64", seed);
    }
}

/// Settings of a small training, written as `t.toml`.
fn settings(desk: &Desk, more: &str) {
    let text = format!(
        "{more}\npatch_zyx = [8, 32, 32]\nbatch = 2\nema = 0.9\n[network]\nfilters = [8, 16]\n[validation]\ntimes = 4\n"
    );
    std::fs::write(desk.path("t.toml"), text).unwrap();
}

const SMALL: [&str; 8] = ["train", "--task", "segmentation", "--data", "sim", "--config", "t.toml", "--json"];

fn f1(report: &Value, when: &str) -> f64 {
    report[when]["f1@0.5"].as_f64().unwrap_or_else(|| panic!("no F1 {when}: {report:#}"))
}

#[test]
fn a_network_learns_nuclei_and_its_package_stands_on_its_own() {
    let desk = Desk::new();
    pairs(&desk, 5);
    settings(&desk, "");
    let report = desk.run(&[&SMALL[..], &["--steps", "90", "--out", "m"]].concat()).json();
    let promised = [
        "out",
        "verdict",
        "metric",
        "before",
        "after",
        "after_int8",
        "pairs_after",
        "steps",
        "parameters",
        "seconds",
        "step_secs",
        "stalled_secs",
        "history",
    ];
    assert_eq!(missing(&report, &promised), Vec::<&str>::new());
    assert_eq!((report["verdict"].as_str(), report["steps"].as_u64()), (Some("taught"), Some(90)));
    assert!(f1(&report, "after") > 0.6, "{report:#}");
    let losses: Vec<f64> =
        report["history"]["steps"].as_array().unwrap().iter().map(|p| p["loss"].as_f64().unwrap()).collect();
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    assert!(mean(&losses[losses.len() - 10..]) < 0.6 * mean(&losses[..5]), "{losses:?}");
    assert!(!desk.path("m.training").exists(), "the training's folder is taken away when its work is done");
    // The package says where it comes from, and its own test passes when it is imported.
    let rdf = String::from_utf8(desk.bytes("m/rdf.yaml")).unwrap();
    for part in ["training:", "seed_channel", "min_peak", "scale_range"] {
        assert!(rdf.contains(part), "no {part} in {rdf}");
    }
    let card = String::from_utf8(desk.bytes("m/README.md")).unwrap();
    assert!(card.contains("## Validation") && card.contains("## Loss"), "{card}");
    let imported = desk.run(&["import", "m", "--out", "again", "--json"]).json();
    assert_eq!(imported["test"].as_str(), Some("its test outputs are reproduced"), "{imported:#}");
    // A stack that it has never seen, against its truth, by the other commands.
    desk.nuclei("16,64,64", 77);
    desk.run(&["predict", "sim/nuclei_77_raw.tif", "--model", "m", "--device", "cpu", "--out", "p"]).ok();
    let arguments =
        ["evaluate", "--pred", "p/nuclei_77_raw_labels.tif", "--truth", "sim/nuclei_77_labels.tif", "--json"];
    let scores = desk.run(&arguments).json();
    let found = scores["instances"][0]["f1"].as_f64().unwrap();
    assert!(found > 0.5, "{scores:#}");
    // Another program computes the same from the network's file.
    let script = "import sys, numpy, onnxruntime\n\
                  s = onnxruntime.InferenceSession(sys.argv[1])\n\
                  x, y = numpy.load(sys.argv[2]), numpy.load(sys.argv[3])\n\
                  z = s.run(None, {s.get_inputs()[0].name: x})[0]\n\
                  assert z.shape == y.shape and numpy.abs(z - y).max() < 0.02, numpy.abs(z - y).max()";
    let files = ["m/model.onnx", "m/test_input_0.npy", "m/test_output_0.npy"].map(|f| desk.path(f));
    python("numpy, onnxruntime", script, &files.each_ref().map(|p| p.as_path()));

    // Taught on with a rate that ruins it, the network that training started from is what is kept.
    settings(&desk, "ema = 0.0");
    let text = String::from_utf8(desk.bytes("t.toml")).unwrap().replacen("ema = 0.9\n", "", 1);
    std::fs::write(desk.path("t.toml"), format!("{text}[schedule]\nrate = 5.0\n")).unwrap();
    let arguments = ["--from", "m", "--steps", "4", "--without-int8", "--out", "worse"];
    let report = desk.run(&[&SMALL[..], &arguments].concat()).json();
    assert_eq!(report["verdict"].as_str(), Some("start"), "{report:#}");
    assert!(f1(&report, "after") >= f1(&report, "before"), "{report:#}");
}

#[test]
fn a_killed_training_goes_on_to_the_same_network_bit_by_bit() {
    let desk = Desk::new();
    pairs(&desk, 3);
    settings(&desk, "");
    let arguments = [&SMALL[..], &["--steps", "24", "--threads", "2", "--without-int8", "--out"]].concat();
    desk.run(&[&arguments[..], &["whole"]].concat()).ok();
    // Killed right after its second validation, then resumed.
    let mut child = desk
        .command(&[&arguments[..], &["cut"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut told = Vec::new();
    while told.iter().filter(|l: &&String| l.contains("score")).count() < 2 {
        told.push(lines.next().unwrap_or_else(|| panic!("it ended first: {told:?}")).unwrap());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!desk.path("cut").exists() && desk.path("cut.training/training.json").is_file());
    let ran = desk.run(&[&arguments[..], &["cut", "--resume"]].concat()).ok();
    assert!(ran.stderr.contains("Going on after step"), "{}", ran.stderr);
    assert!(desk.bytes("whole/model.onnx") == desk.bytes("cut/model.onnx"), "another network");
    // What was begun with one start is not gone on with another.
    std::fs::create_dir(desk.path("other.training")).unwrap();
    let mut child = desk
        .command(&[&arguments[..], &["other"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    (0..2).for_each(|_| while !lines.next().unwrap().unwrap().contains("score") {});
    child.kill().unwrap();
    child.wait().unwrap();
    desk.fails(3, &[&arguments[..], &["other", "--resume", "--seed", "5"]].concat(), &["another", "without --resume"]);
}

#[test]
fn a_stain_is_learnt_and_keeps_its_intensity_scale() {
    let desk = Desk::new();
    for seed in ["1", "2", "3", "4"] {
        desk.run(&["simulate", "--kind", "labelfree", "--shape", "16,64,64", "--seed", seed, "--out", "sim"]).ok();
    }
    settings(&desk, "");
    let arguments = ["train", "--task", "labelfree", "--data", "sim", "--config", "t.toml", "--json", "--steps", "150"];
    let report = desk.run(&[&arguments[..], &["--out", "m", "--without-int8"]].concat()).json();
    assert!(report["after"]["pearson"].as_f64().unwrap() > 0.2, "{report:#}");
    let image = desk.names("sim").into_iter().find(|n| n == "labelfree_1_raw.tif");
    let image = format!("sim/{}", image.unwrap());
    desk.run(&["predict", &image, "--model", "m", "--device", "cpu", "--out", "p"]).ok();
    let predicted = desk.names("p").into_iter().find(|n| n.ends_with("_raw.tif")).unwrap();
    let truth = desk.names("sim").into_iter().find(|n| n == "labelfree_1_target.tif").unwrap();
    let mean = |v: Vec<f32>| v.iter().map(|x| f64::from(*x)).sum::<f64>() / v.len() as f64;
    let [predicted, truth] =
        [format!("p/{predicted}"), format!("sim/{truth}")].map(|n| mean(desk.image(&n).samples().to_f32()));
    // The stain's own counts, not a picture of them.
    assert!((predicted / truth - 1.0).abs() < 0.5, "{predicted} against {truth}");
}

#[test]
fn what_cannot_be_taught_is_refused_with_a_reason() {
    let desk = Desk::new();
    settings(&desk, "");
    std::fs::create_dir(desk.path("sim")).unwrap();
    desk.fails(3, &[&SMALL[..], &["--out", "m"]].concat(), &["sim", "no pair"]);
    pairs(&desk, 2);
    std::fs::write(desk.path("bad.toml"), "learning_rat = 1\n").unwrap();
    let arguments = ["train", "--task", "segmentation", "--data", "sim", "--out", "m"];
    desk.fails(2, &[&arguments[..], &["--config", "bad.toml"]].concat(), &["bad.toml", "learning_rat"]);
    desk.fails(2, &[&arguments[..], &["--device", "cuda"]].concat(), &["cpu"]);
    desk.fails(2, &[&arguments[..], &["--from", "nobody"]].concat(), &["nobody"]);
    desk.fails(2, &[&arguments[..], &["--minutes", "0"]].concat(), &["minutes"]);
    std::fs::create_dir(desk.path("full")).unwrap();
    std::fs::write(desk.path("full/mine.txt"), "mine").unwrap();
    let into = ["train", "--task", "segmentation", "--data", "sim", "--out", "full"];
    desk.fails(2, &into, &["full", "other files"]);
    // A rate at which no step can succeed: given up with a reason, and nothing is written.
    std::fs::write(
        desk.path("wild.toml"),
        "patch_zyx = [8, 32, 32]\nbatch = 1\nema = 0.0\n[network]\nfilters = [8]\n[schedule]\nrate = 1e38\nwarm_up = 0.0\n",
    )
    .unwrap();
    let wild = [&arguments[..], &["--config", "wild.toml", "--steps", "40"]].concat();
    desk.fails(3, &wild, &["no number", "schedule.rate"]);
    assert!(!desk.path("m").exists());
    // A label image of another shape is named, and left out.
    desk.write("sim/odd_raw.tif", "ZYX", &[4, 8, 8], vec![7u16; 256]);
    desk.write("sim/odd_labels.tif", "ZYX", &[4, 8, 9], vec![1u16; 288]);
    let ran = desk.run(&[&SMALL[..], &["--steps", "2", "--without-int8", "--out", "m"]].concat()).ok();
    assert!(ran.stderr.contains("odd") && ran.stderr.contains("left out"), "{}", ran.stderr);
}
