//! Runs that are killed at a bad moment, and how the next one finds things.

use crate::common::Desk;
use std::path::PathBuf;
#[cfg(unix)]
use std::process::Command;

const PREDICT: [&str; 6] = ["predict", "sim/nuclei_1_raw.tif", "--model", "nuclei-dog", "--out", "o"];

fn resumed(desk: &Desk) -> bool {
    let report = desk.run(&[&PREDICT[..], &["--resume", "--json"]].concat()).json();
    report["inputs"][0]["resumed"].as_bool().unwrap()
}

#[test]
fn a_result_that_is_cut_short_or_changed_is_not_taken_as_done() {
    let desk = Desk::new();
    desk.nuclei("8,48,48", 1);
    desk.run(&PREDICT).ok();
    assert!(resumed(&desk));
    let map = desk.bytes("o/nuclei_1_raw_probability.tif");
    // Missing: made again.
    std::fs::remove_file(desk.path("o/nuclei_1_raw_probability.tif")).unwrap();
    assert!(!resumed(&desk));
    assert!(desk.bytes("o/nuclei_1_raw_probability.tif") == map, "the same result");
    assert!(resumed(&desk));
    // Cut short, or of the right length with other bytes: not done, and not ours to replace unasked.
    let mut changed = map.clone();
    let last = changed.len() - 100;
    changed[last] ^= 1;
    for bytes in [&map[..map.len() / 2], &changed] {
        std::fs::write(desk.path("o/nuclei_1_raw_probability.tif"), bytes).unwrap();
        desk.fails(2, &[&PREDICT[..], &["--resume"]].concat(), &["nuclei_1_raw_probability.tif", "--force"]);
        desk.run(&[&PREDICT[..], &["--resume", "--force"]].concat()).ok();
        assert!(desk.bytes("o/nuclei_1_raw_probability.tif") == map, "the same result");
    }
}

#[test]
fn a_kill_while_results_get_their_names_leaves_none_that_is_called_foreign() {
    let desk = Desk::new();
    desk.nuclei("8,48,48", 1);
    desk.run(&PREDICT).ok();
    let (map, labels) = (desk.bytes("o/nuclei_1_raw_probability.tif"), desk.bytes("o/nuclei_1_raw_labels.tif"));
    // Another result under the same names.
    let other = [&PREDICT[..], &["--voxel-size", "0.5,0.4,0.4"]].concat();
    desk.run(&other).ok();
    assert!(desk.bytes("o/nuclei_1_raw_labels.tif") != labels);
    // As if it had been killed when its record was written, and none or one of the files had its name.
    std::fs::write(desk.path("o/nuclei_1_raw_labels.tif"), &labels).unwrap();
    std::fs::write(desk.path("o/nuclei_1_raw_probability.tif"), &map).unwrap();
    let report = desk.run(&[&other[..], &["--resume", "--json"]].concat()).json();
    assert_eq!(report["inputs"][0]["resumed"], false);
    let report = desk.run(&[&other[..], &["--resume", "--json"]].concat()).json();
    assert_eq!(report["inputs"][0]["resumed"], true);
}

#[test]
fn a_package_whose_replacement_was_killed_is_found_again() {
    let desk = Desk::new();
    let raw = desk.nuclei("8,48,48", 1);
    desk.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    desk.run(&["import", "m.onnx", "--out", "pkg"]).ok();
    // As such a kill leaves it: the hidden name has the machine's letters in it, which those of an unfinished file show.
    let partial = cytoscope_storage::write::PartialFile::create(&desk.path("pkg")).unwrap();
    let name = desk.leftovers()[0].file_name().unwrap().to_string_lossy().into_owned();
    drop(partial);
    let hidden = desk.path(&format!("{name}.cytoscope-old"));
    for command in [vec!["predict", &raw, "--model", "pkg", "--out", "o"], vec!["import", "m.onnx", "--out", "pkg"]] {
        std::fs::rename(desk.path("pkg"), &hidden).unwrap();
        desk.run(&command).ok();
        assert!(desk.path("pkg/rdf.yaml").is_file() && !hidden.exists(), "{command:?}");
    }
    assert_eq!(desk.leftovers(), Vec::<PathBuf>::new());
}

#[cfg(unix)]
#[test]
fn every_request_to_end_is_a_cancel_and_what_a_kill_leaves_is_swept() {
    for signal in ["-TERM", "-HUP"] {
        let desk = Desk::new();
        let (mut child, mut lines) = crate::failures::predicting(&desk);
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(5), "{signal}: {rest}");
        assert!(desk.names("o").is_empty() && desk.leftovers().is_empty(), "{signal}: {:?}", desk.leftovers());
    }
    let desk = Desk::new();
    let (mut child, _lines) = crate::failures::predicting(&desk);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!desk.leftovers().is_empty(), "a kill leaves something");
    desk.run(&["convert", "sim/nuclei_1_raw.tif", "o/a.npy"]).ok();
    let left = desk.leftovers();
    assert!(left.iter().all(|p| !p.to_string_lossy().ends_with(".cytoscope-partial")), "{left:?}");
}

#[cfg(unix)]
#[test]
fn a_program_started_with_nohup_outlives_its_terminal() {
    let desk = Desk::new();
    let raw = desk.nuclei("16,96,96", 1);
    let program = env!("CARGO_BIN_EXE_cytoscope");
    let script = format!(
        "trap '' HUP; '{program}' predict {raw} --model nuclei-dog --out o & child=$!; \
         for i in 1 2 3 4 5 6 7 8; do kill -HUP $child; sleep 0.05; done; wait $child"
    );
    let mut command = desk.command(&[]);
    let environment: Vec<_> = command.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
    command = Command::new("sh");
    command.args(["-c", &script]).current_dir(desk.path("."));
    for (key, value) in environment {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(desk.path("o/nuclei_1_raw_labels.tif").is_file());
}
