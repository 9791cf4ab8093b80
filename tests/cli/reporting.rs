//! What commands say about what they have written and about inputs that they could not use, and what stays if they fail.

use crate::common::{Fixture, npy_f32};
use cytoscope_storage::folder::create_working;
use cytoscope_storage::lock::ResultsLock;
use serde_json::{Value, json};

#[test]
fn commands_name_the_files_they_write() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let labels = "sim/nuclei_1_labels.tif";
    let printed = |words: &[&str]| fixture.run(words).ok().stdout;
    let segmented = printed(&["segment", &raw, "--out", "l.tif", "--table", "t.csv"]);
    assert!(segmented.contains(" in l.tif\n") && segmented.contains("wrote t.csv\n"), "{segmented}");
    assert!(segmented.ends_with("  wrote l.tif_provenance.json\n"), "{segmented}");
    let without_table = printed(&["segment", &raw, "--out", "m.tif"]);
    assert_eq!(without_table.matches("wrote").count(), 1, "{without_table}");
    let scored = ["evaluate", "--pred", "l.tif", "--truth", labels];
    let written = printed(&[&scored[..], &["--out", "s.json"]].concat());
    assert!(written.ends_with("wrote s.json\n  wrote s.json_provenance.json\n"), "{written}");
    assert!(!printed(&scored).contains("wrote"));
    let traced = printed(&["measure", labels, "--out", "m.csv", "--trace", "m.json"]);
    assert!(traced.ends_with("  wrote m.csv_provenance.json\nwrote m.json\n"), "{traced}");
    // With --json, nothing but the report is printed.
    let report = fixture.run(&[&scored[..], &["--out", "j.json", "--trace", "k.json", "--json"]].concat()).json();
    assert_eq!(report["provenance"], json!(["j.json_provenance.json"]));
    assert_eq!(fixture.run(&[&scored[..], &["--json"]].concat()).json()["provenance"], Value::Null);
    fixture.unet(4);
    std::fs::write(fixture.path("x.npy"), npy_f32(&[1, 1, 8, 16, 16], &[0.5; 8 * 16 * 16])).unwrap();
    let run = printed(&["run", "net.onnx", "--input", "x.npy", "--output", "y.npy"]);
    assert!(run.ends_with("wrote y.npy\n"), "{run}");
}

#[test]
fn every_command_that_writes_a_provenance_record_names_it() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    fixture.unet(4);
    let small = ["--kind", "nuclei", "--shape", "4,16,16", "--count", "2", "--out"];
    let simulate = [&["simulate"][..], &small, &["s"]].concat();
    let commands: [(&[&str], &[&str]); 4] = [
        (&["convert", &raw, "c.ome.tif"], &["c.ome.tif_provenance.json"]),
        (&["export", "nuclei-dog", "--format", "bioimageio", "--out", "e.zip"], &["e.zip_provenance.json"]),
        (&["import", "net.onnx", "--out", "i"], &["i.package_provenance.json"]),
        (&simulate, &["s/nuclei_0_raw.tif_provenance.json", "s/nuclei_1_raw.tif_provenance.json"]),
    ];
    for (words, records) in commands {
        let printed = fixture.run(words).ok().stdout;
        for record in records {
            assert!(printed.contains(&format!("  wrote {record}\n")), "{printed}");
            assert!(fixture.path(record).is_file(), "{record}");
        }
    }
    let report = fixture.run(&[&["simulate"][..], &small, &["t", "--json"]].concat()).json();
    assert_eq!(report["provenance"][1], "t/nuclei_1_raw.tif_provenance.json");
}

#[test]
fn a_failed_run_does_not_replace_an_earlier_trace() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    std::fs::write(fixture.path("text.tif"), "z,y,x\n1,2,3\n".repeat(40)).unwrap();
    let predict = |input: &str, trace: &str| -> Vec<String> {
        let options = ["--model", "nuclei-dog", "--device", "cpu", "--out", "o", "--trace", trace, "--force"];
        [&["predict", input][..], &options].concat().into_iter().map(str::to_owned).collect()
    };
    let words = predict("text.tif", "t.json");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    std::fs::write(fixture.path("t.json"), "{\"earlier\": true}").unwrap();
    fixture.fails(3, &words, &["text.tif"]);
    assert_eq!(fixture.bytes("t.json"), b"{\"earlier\": true}");
    // Where there is none, it shows how far the run got.
    let other = predict("text.tif", "u.json");
    fixture.fails(3, &other.iter().map(String::as_str).collect::<Vec<_>>(), &["text.tif"]);
    let trace: Value = serde_json::from_slice(&fixture.bytes("u.json")).unwrap();
    assert!(trace["traceEvents"].is_array(), "{trace}");
    let good = predict(&raw, "t.json");
    fixture.run(&good.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    let trace: Value = serde_json::from_slice(&fixture.bytes("t.json")).unwrap();
    assert!(trace["traceEvents"].is_array(), "a run with results replaces it: {trace}");
}

#[test]
fn notes_about_a_folder_belong_to_none_of_its_stacks() {
    let fixture = Fixture::new();
    fixture.nuclei("8,32,32", 1);
    let report = fixture.run(&["diameter", "sim", "--model", "nuclei-dog", "--device", "cpu", "--json"]).json();
    assert_eq!(report["notes"], json!(["1 label image or earlier result in the folder was skipped"]), "{report:#}");
    assert!(!report["inputs"][0]["notes"].to_string().contains("skipped"), "{report:#}");
}

#[test]
fn a_training_run_says_that_another_one_uses_its_folder() {
    let fixture = Fixture::new();
    fixture.nuclei("6,32,32", 1);
    let folder = fixture.path("m.training");
    create_working(&folder, "training").unwrap();
    let lock = ResultsLock::in_folder(&folder, "lock").unwrap();
    // The checkpoint of the run that is in progress.
    std::fs::write(folder.join("training.json"), "{}").unwrap();
    let train = ["train", "--task", "segmentation", "--data", "sim", "--from", "scratch", "--steps", "2", "--out", "m"];
    let choices: [&[&str]; 3] = [&[], &["--resume"], &["--restart"]];
    for choice in choices {
        fixture.fails(2, &[&train[..], choice].concat(), &["m.training", "another run", "is using this folder"]);
    }
    drop(lock);
    fixture.fails(3, &train, &["m.training", "an unfinished training run already exists here"]);
}

#[test]
fn many_inputs_that_fail_are_reported_by_kind_and_listed_in_a_file() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    std::fs::create_dir(fixture.path("mixed")).unwrap();
    std::fs::copy(fixture.path(&raw), fixture.path("mixed/good.tif")).unwrap();
    for number in 10..22 {
        std::fs::write(fixture.path(&format!("mixed/b{number}.tif")), "no image").unwrap();
    }
    let model = ["--model", "nuclei-dog", "--device", "cpu"];
    let predict = [&["predict", "mixed", "--out", "o"][..], &model].concat();
    let diameter = [&["diameter", "mixed"][..], &model].concat();
    for command in [predict, diameter] {
        let summary = "failed: 12 files, such as mixed/b10.tif: the file is not an image of a known format; save it";
        let ran = fixture.fails(3, &command, &[summary, "12 of 13 inputs failed"]);
        let count = |start: &str| ran.stderr.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(count("failed: "), 4, "the first three, and the summary: {}", ran.stderr);
        assert!(count("[") <= 1, "inputs that fail at once are not announced: {}", ran.stderr);
        let list =
            ran.stderr.lines().find_map(|line| line.strip_prefix("note: all 12 failures are listed in ")).unwrap();
        let text = std::fs::read_to_string(list).unwrap();
        assert!((10..22).all(|number| text.contains(&format!("mixed/b{number}.tif: the file is not"))), "{text}");
        assert!(ran.stdout.contains("mixed/good.tif: "), "{}", ran.stdout);
    }
}

#[test]
fn a_file_that_is_given_twice_is_used_once() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let model = ["--model", "nuclei-dog", "--device", "cpu"];
    let again = format!("./{raw}");
    let ran = fixture.run(&[&["predict", &raw, &again, "sim", "--out", "o"][..], &model].concat()).ok();
    let note = "2 repeated inputs left out: each file is used once";
    assert!(ran.stderr.contains(note), "{}", ran.stderr);
    let labels: Vec<String> = fixture.names("o").into_iter().filter(|name| name.ends_with("_labels.tif")).collect();
    assert_eq!(labels, ["nuclei_1_raw_labels.tif"]);
    let report = fixture.run(&[&["diameter", &raw, &raw, "--json"][..], &model].concat()).json();
    assert_eq!(report["inputs"].as_array().map(Vec::len), Some(1), "{report:#}");
    assert!(report["notes"].to_string().contains("1 repeated input left out"), "{report:#}");
}

#[test]
fn standard_input_and_output_are_not_taken_for_files() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    for words in [
        &["predict", &raw, "--out", "-"][..],
        &["predict", &raw, "--out=-"],
        &["simulate", "--kind", "nuclei", "--shape", "4,16,16", "--out", "-"],
        &["info", "-"],
    ] {
        fixture.fails(2, words, &["standard input and output cannot be used as files", "./-"]);
        assert!(!fixture.path("-").exists(), "{words:?}");
    }
}

#[test]
fn with_progress_as_json_lines_a_failure_is_a_json_line_too() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    std::fs::write(fixture.path("text.tif"), "z,y,x\n").unwrap();
    std::fs::write(fixture.path("mine.npy"), "mine").unwrap();
    let commands: [(i32, &str, &[&str]); 3] = [
        (3, "bad_input", &["predict", "text.tif", "--out", "o", "--json-progress"]),
        (2, "would_overwrite", &["convert", &raw, "mine.npy", "--json-progress"]),
        (3, "bad_input", &["measure", "text.tif", "--out", "a.csv", "--json-progress", "--json"]),
    ];
    for (code, kind, words) in commands {
        let ran = fixture.fails(code, words, &[]);
        let read = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_default();
        let lines: Vec<Value> = ran.stderr.lines().map(read).collect();
        assert!(lines.iter().all(|line| line["event"].is_string()), "{}", ran.stderr);
        let last = lines.last().unwrap();
        assert_eq!((last["event"].as_str(), last["kind"].as_str()), (Some("error"), Some(kind)), "{last}");
        assert!(last["message"].as_str().is_some_and(|text| text.contains(words[1]) || text.contains("mine.npy")));
    }
    // Without the option, it is text.
    let ran = fixture.fails(3, &["predict", "text.tif", "--out", "o"], &["error: "]);
    assert!(!ran.stderr.contains("\"event\""), "{}", ran.stderr);
}

#[test]
fn a_home_sign_that_the_shell_has_not_replaced_is_not_taken_for_a_folder() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    for words in [&["predict", &raw, "--out=~/o"][..], &["predict", &raw, "--out", "~"], &["info", "~/a.tif"]] {
        fixture.fails(2, words, &["~", "your home folder", "give the whole path"]);
        assert!(!fixture.path("~").exists(), "{words:?}");
    }
    // Elsewhere, it is a part of a name.
    fixture.run(&["convert", &raw, "./~copy~.npy"]).ok();
}

#[test]
fn seeds_of_simulated_stacks_do_not_start_over_at_zero() {
    let fixture = Fixture::new();
    let last = u64::MAX.to_string();
    let words = ["simulate", "--kind", "nuclei", "--shape", "4,16,16", "--out", "s", "--seed", &last, "--count", "2"];
    fixture.fails(2, &words, &["--seed", &last, "give a smaller seed"]);
    assert!(!fixture.path("s").exists());
}

#[test]
fn an_option_before_its_command_is_told_where_it_belongs() {
    let fixture = Fixture::new();
    for words in [&["--json", "info", "a.tif"][..], &["--verbose", "--json", "info", "a.tif"]] {
        let ran = fixture.fails(2, words, &["'--json'", "the options of a command follow its name"]);
        assert!(!ran.stderr.contains("--json-error"), "{}", ran.stderr);
    }
    // No command has this one.
    let ran = fixture.fails(2, &["--versoin"], &["'--versoin'"]);
    assert!(!ran.stderr.contains("the options of a command follow its name"), "{}", ran.stderr);
    // After the command, similar options are suggested.
    fixture.fails(2, &["info", "--jsn", "a.tif"], &["'--jsn'", "'--json'"]);
}

#[test]
fn negative_lengths_are_refused_with_what_is_expected() {
    let fixture = Fixture::new();
    let predict = ["predict", "a.tif", "--out", "o"];
    for (option, what) in [("--tile", "three positive lengths"), ("--voxel-size", "three positive sizes")] {
        fixture.fails(2, &[&predict[..], &[option, "-1,2,3"]].concat(), &[option, "\"-1,2,3\"", what]);
    }
}
