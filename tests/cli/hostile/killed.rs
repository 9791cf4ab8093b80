//! Runs that are killed at a bad moment, and what the next run finds.

use crate::common::Fixture;
use std::path::PathBuf;
#[cfg(unix)]
use std::process::Command;

const PREDICT: [&str; 6] = ["predict", "sim/nuclei_1_raw.tif", "--model", "nuclei-dog", "--out", "o"];

fn resumed(fixture: &Fixture) -> bool {
    let report = fixture.run(&[&PREDICT[..], &["--resume", "--json"]].concat()).json();
    report["inputs"][0]["resumed"].as_bool().unwrap()
}

#[test]
fn truncated_or_changed_results_do_not_count_as_done() {
    let fixture = Fixture::new();
    fixture.nuclei("8,48,48", 1);
    fixture.run(&PREDICT).ok();
    assert!(resumed(&fixture));
    let map = fixture.bytes("o/nuclei_1_raw_probability.tif");
    // A missing result is computed again.
    std::fs::remove_file(fixture.path("o/nuclei_1_raw_probability.tif")).unwrap();
    assert!(!resumed(&fixture));
    assert!(fixture.bytes("o/nuclei_1_raw_probability.tif") == map, "the same result");
    assert!(resumed(&fixture));
    // A truncated result, or one with changed bytes, is not done, and is not replaced without --force.
    let mut changed = map.clone();
    let last = changed.len() - 100;
    changed[last] ^= 1;
    for bytes in [&map[..map.len() / 2], &changed] {
        std::fs::write(fixture.path("o/nuclei_1_raw_probability.tif"), bytes).unwrap();
        fixture.fails(2, &[&PREDICT[..], &["--resume"]].concat(), &["nuclei_1_raw_probability.tif", "--force"]);
        fixture.run(&[&PREDICT[..], &["--resume", "--force"]].concat()).ok();
        assert!(fixture.bytes("o/nuclei_1_raw_probability.tif") == map, "the same result");
    }
}

#[test]
fn results_renamed_before_a_kill_are_still_recognized() {
    let fixture = Fixture::new();
    fixture.nuclei("8,48,48", 1);
    fixture.run(&PREDICT).ok();
    let (map, labels) = (fixture.bytes("o/nuclei_1_raw_probability.tif"), fixture.bytes("o/nuclei_1_raw_labels.tif"));
    // Another job with the same output names.
    let other = [&PREDICT[..], &["--voxel-size", "0.5,0.4,0.4"]].concat();
    fixture.run(&other).ok();
    assert!(fixture.bytes("o/nuclei_1_raw_labels.tif") != labels);
    // The state after a kill when the new record was written but the files were not yet renamed.
    std::fs::write(fixture.path("o/nuclei_1_raw_labels.tif"), &labels).unwrap();
    std::fs::write(fixture.path("o/nuclei_1_raw_probability.tif"), &map).unwrap();
    let report = fixture.run(&[&other[..], &["--resume", "--json"]].concat()).json();
    assert_eq!(report["inputs"][0]["resumed"], false);
    let report = fixture.run(&[&other[..], &["--resume", "--json"]].concat()).json();
    assert_eq!(report["inputs"][0]["resumed"], true);
}

#[test]
fn package_survives_a_kill_during_its_replacement() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    fixture.run(&["import", "m.onnx", "--out", "pkg"]).ok();
    // The state after such a kill: the hidden name has a machine-specific prefix, which the name of an unfinished file
    // reveals.
    let partial = cytoscope_storage::write::PartialFile::create(&fixture.path("pkg")).unwrap();
    let name = fixture.leftovers()[0].file_name().unwrap().to_string_lossy().into_owned();
    drop(partial);
    let hidden = fixture.path(&format!("{name}.cytoscope-old"));
    for command in [vec!["predict", &raw, "--model", "pkg", "--out", "o"], vec!["import", "m.onnx", "--out", "pkg"]] {
        std::fs::rename(fixture.path("pkg"), &hidden).unwrap();
        fixture.run(&command).ok();
        assert!(fixture.path("pkg/rdf.yaml").is_file() && !hidden.exists(), "{command:?}");
    }
    assert_eq!(fixture.leftovers(), Vec::<PathBuf>::new());
}

#[cfg(unix)]
#[test]
fn termination_signals_cancel_and_remains_of_a_kill_are_removed() {
    for signal in ["-TERM", "-HUP", "-XCPU"] {
        let fixture = Fixture::new();
        let (mut child, mut lines) = crate::failures::start_prediction(&fixture);
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(5), "{signal}: {rest}");
        assert!(fixture.names("o").is_empty() && fixture.leftovers().is_empty(), "{signal}: {:?}", fixture.leftovers());
    }
    let fixture = Fixture::new();
    let (mut child, _lines) = crate::failures::start_prediction(&fixture);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!fixture.leftovers().is_empty(), "a kill leaves something");
    fixture.run(&["convert", "sim/nuclei_1_raw.tif", "o/a.npy"]).ok();
    let left = fixture.leftovers();
    assert!(left.iter().all(|p| !p.to_string_lossy().ends_with(".cytoscope-partial")), "{left:?}");
}

#[cfg(unix)]
#[test]
fn program_started_with_nohup_survives_its_terminal() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("16,96,96", 1);
    let program = env!("CARGO_BIN_EXE_cytoscope");
    let script = format!(
        "trap '' HUP; '{program}' predict {raw} --model nuclei-dog --out o & child=$!; \
         for i in 1 2 3 4 5 6 7 8; do kill -HUP $child; sleep 0.05; done; wait $child"
    );
    let mut command = fixture.command(&[]);
    let environment: Vec<_> = command.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
    command = Command::new("sh");
    command.args(["-c", &script]).current_dir(fixture.path("."));
    for (key, value) in environment {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(fixture.path("o/nuclei_1_raw_labels.tif").is_file());
}
