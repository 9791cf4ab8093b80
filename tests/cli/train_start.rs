//! `train --from MODEL`: whether the package contains the trained network or the start model, and with which segmentation
//! settings.

use crate::common::Fixture;
use crate::resume::kill_after_scores;
use crate::train::{SMALL, simulate_pairs, write_settings};
use serde_json::Value;

/// Settings of a run that spoils the network: its learning rate is far too high.
const SPOILING: &str =
    "patch_zyx = [8, 32, 32]\nbatch = 2\nema = 0.0\n[validation]\ntimes = 4\n[schedule]\nrate = 5.0\n";

/// Trains the start model `m` on simulated pairs.
fn train_start_model(fixture: &Fixture) {
    simulate_pairs(fixture, 5);
    write_settings(fixture, "");
    let arguments = ["--steps", "60", "--set", "validation.times=1", "--without-int8", "--out", "m"];
    fixture.run(&[&SMALL[..], &arguments].concat()).ok();
}

/// Trains from the start model `from` with the settings of `t.toml`, and returns the report and the notes.
fn train_from(fixture: &Fixture, from: &str, steps: &str, out: &str) -> (Value, String) {
    let arguments = ["--from", from, "--steps", steps, "--without-int8", "--out", out];
    let ran = fixture.run(&[&SMALL[..], &arguments].concat());
    let notes = ran.stderr.clone();
    (ran.json(), notes)
}

/// Copies the files of a folder to a new one.
fn copy_folder(fixture: &Fixture, from: &str, to: &str) {
    std::fs::create_dir(fixture.path(to)).unwrap();
    for name in fixture.names(from) {
        std::fs::copy(fixture.path(&format!("{from}/{name}")), fixture.path(&format!("{to}/{name}"))).unwrap();
    }
}

/// The lines of a package's `rdf.yaml` with its segmentation settings.
fn segmentation_settings(fixture: &Fixture, package: &str) -> Vec<String> {
    let text = String::from_utf8(fixture.bytes(&format!("{package}/rdf.yaml"))).unwrap();
    let lines = text.lines().skip_while(|line| *line != "    segment:").skip(1);
    let found: Vec<String> = lines.take_while(|line| line.starts_with("      ")).map(str::to_owned).collect();
    assert!(found.iter().any(|line| line.contains("seed_height")), "{text}");
    found
}

/// Adds the usual intensity of objects to the description of a package.
fn state_intensity(fixture: &Fixture, package: &str) {
    let rdf = format!("{package}/rdf.yaml");
    let text = String::from_utf8(fixture.bytes(&rdf)).unwrap();
    let stated = text.replacen("\n    segment:\n", "\n    object_intensity: 0.5\n    segment:\n", 1);
    assert_ne!(stated, text);
    std::fs::write(fixture.path(&rdf), stated).unwrap();
}

/// Whether the description of a package states the intensity that [`state_intensity`] adds.
fn states_intensity(fixture: &Fixture, package: &str) -> bool {
    let text = String::from_utf8(fixture.bytes(&format!("{package}/rdf.yaml"))).unwrap();
    text.lines().any(|line| line == "    object_intensity: 0.5")
}

/// Copies the package `m` to `to`, with the threshold that `change` returns for its own one.
fn with_threshold(fixture: &Fixture, to: &str, change: impl Fn(f64) -> f64) {
    copy_folder(fixture, "m", to);
    let text = String::from_utf8(fixture.bytes("m/rdf.yaml")).unwrap();
    let (before, after) = text.split_once("        fixed: ").unwrap();
    let (own, rest) = after.split_once('\n').unwrap();
    let changed = change(own.parse().unwrap());
    std::fs::write(fixture.path(&format!("{to}/rdf.yaml")), format!("{before}        fixed: {changed:.2}\n{rest}"))
        .unwrap();
}

#[test]
fn a_kept_start_model_keeps_its_segmentation_settings_unless_others_score_clearly_better() {
    let fixture = Fixture::new();
    train_start_model(&fixture);
    // The settings of `m` were tuned on the validation image: nearly the same ones score nearly the same.
    with_threshold(&fixture, "near", |own| own + 0.01);
    with_threshold(&fixture, "far", |_| 0.95);
    state_intensity(&fixture, "near");
    std::fs::write(fixture.path("t.toml"), SPOILING).unwrap();
    let score = |report: &Value, when: &str| report[when]["pq@0.5"].as_f64().unwrap();

    let (report, notes) = train_from(&fixture, "near", "2", "near-kept");
    assert_eq!(report["verdict"], "start", "{report:#}");
    assert_eq!(segmentation_settings(&fixture, "near-kept"), segmentation_settings(&fixture, "near"), "{notes}");
    assert_eq!(score(&report, "before"), score(&report, "after"));

    let (report, notes) = train_from(&fixture, "far", "2", "far-kept");
    assert_eq!(report["verdict"], "start", "{report:#}");
    assert_ne!(segmentation_settings(&fixture, "far-kept"), segmentation_settings(&fixture, "far"), "{notes}");
    assert!(score(&report, "after") > score(&report, "before") + 0.1, "{report:#}");
    for (kept, start) in [("near-kept", "near"), ("far-kept", "far")] {
        let network = |package: &str| fixture.bytes(&format!("{package}/model.onnx"));
        assert!(network(kept) == network(start), "{kept}: not the network of {start}");
    }
    assert!(states_intensity(&fixture, "near-kept") && !states_intensity(&fixture, "far-kept"));
}

#[test]
fn a_trained_network_replaces_the_start_model_only_if_it_scores_clearly_better() {
    let fixture = Fixture::new();
    train_start_model(&fixture);
    // A network that finds nothing yet is replaced by one that does.
    fixture.run(&[&SMALL[..], &["--steps", "1", "--without-int8", "--out", "weak"]].concat()).ok();
    state_intensity(&fixture, "weak");
    let (report, notes) = train_from(&fixture, "weak", "60", "better");
    assert_eq!((&report["verdict"], report.get("kept")), (&"trained".into(), None), "{report:#}\n{notes}");
    assert!(report["after"]["pq@0.5"].as_f64() > report["before"]["pq@0.5"].as_f64(), "{report:#}");
    assert!(states_intensity(&fixture, "better"), "the objects of the pairs are about as bright");
    let unused = "the settings in [network] are not used, because the network is that of the start model";
    assert!(notes.contains(unused), "{notes}");
    // A network that training hardly changes scores the same, which is not a gain.
    let text = SPOILING.replace("rate = 5.0", "rate = 1e-12");
    std::fs::write(fixture.path("t.toml"), text).unwrap();
    let (report, notes) = train_from(&fixture, "m", "8", "same");
    assert_eq!(report["verdict"], "start", "{report:#}");
    assert!(!notes.contains(unused), "the settings have no such section: {notes}");
    let kept = |which: &str| report["kept"][which].as_f64().unwrap();
    assert!((kept("after") - kept("before")).abs() < 0.05, "{report:#}");
    assert!(notes.contains("no trained network scored clearly better than the start model, which is kept"), "{notes}");
    assert!(fixture.bytes("same/model.onnx") == fixture.bytes("m/model.onnx"), "the start model is unchanged");
}

#[test]
fn a_run_whose_best_network_scores_lower_at_its_end_saves_the_start_model() {
    let fixture = Fixture::new();
    train_start_model(&fixture);
    fixture.run(&[&SMALL[..], &["--steps", "1", "--without-int8", "--out", "weak"]].concat()).ok();
    std::fs::write(fixture.path("t.toml"), SPOILING).unwrap();
    let arguments = [&SMALL[..], &["--from", "m", "--steps", "40", "--without-int8", "--out", "out"]].concat();
    kill_after_scores(&fixture, &arguments, 3);
    // As if a network that finds nothing had scored high during training.
    let mut checkpoint: Value = serde_json::from_slice(&fixture.bytes("out.training/training.json")).unwrap();
    let step = checkpoint["step"].as_u64().unwrap();
    assert_eq!(checkpoint["best"][1].as_u64(), Some(0), "the start model is the best so far: {checkpoint:#}");
    checkpoint["best"] = serde_json::json!([1.0, step]);
    checkpoint["peak"] = 1.0.into();
    copy_folder(&fixture, "weak", &format!("out.training/best-{step}"));
    std::fs::write(fixture.path("out.training/training.json"), checkpoint.to_string()).unwrap();

    let ran = fixture.run(&[&arguments[..], &["--resume"]].concat()).ok();
    let note = "with the final segmentation settings, the trained network scores lower than the start model, which is kept: \
                the score of the best trained network is";
    assert!(ran.stderr.contains(note), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["verdict"], "start", "{report:#}");
    assert!(report["kept"]["after"].as_f64() < report["kept"]["before"].as_f64(), "{report:#}");
    assert_eq!(report["after"], report["before"], "the scores of the start model");
    let network = |package: &str| fixture.bytes(&format!("{package}/model.onnx"));
    assert!(network("out") == network("m"), "the network of the start model");
    assert_eq!(segmentation_settings(&fixture, "out"), segmentation_settings(&fixture, "m"));
    let card = String::from_utf8(fixture.bytes("out/README.md")).unwrap();
    assert!(card.contains("of the start model, which is kept"), "{card}");
}
