//! Outputs never replace inputs, or files that the program did not write.

use crate::common::Fixture;
use crate::train::{SMALL, simulate_pairs, write_settings};

/// Writes a folder of the user's, whose content must not change.
fn write_user_folder(fixture: &Fixture, name: &str) {
    std::fs::create_dir_all(fixture.path(name).join("raw")).unwrap();
    std::fs::write(fixture.path(name).join("thesis.tif"), "years of work").unwrap();
    std::fs::write(fixture.path(name).join("raw/1.tif"), "a night at the microscope").unwrap();
}

fn assert_untouched(fixture: &Fixture, name: &str) {
    assert_eq!(fixture.names(name), ["raw", "thesis.tif"]);
    assert_eq!(fixture.bytes(&format!("{name}/thesis.tif")), b"years of work");
    assert_eq!(fixture.bytes(&format!("{name}/raw/1.tif")), b"a night at the microscope");
}

#[test]
fn foreign_folder_is_never_replaced_by_a_package() {
    let fixture = Fixture::new();
    write_user_folder(&fixture, "data");
    fixture.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    fixture.fails(2, &["import", "m.onnx", "--out", "data"], &["data", "did not make", "it holds", "--force"]);
    fixture.fails(2, &["export", "nuclei-dog", "--format", "bioimageio", "--out", "data"], &["data", "did not make"]);
    fixture.fails(2, &["quantize", "nuclei-dog", "--mode", "dynamic", "--out", "data"], &["data", "did not make"]);
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    fixture.fails(2, &[&SMALL[..], &["--steps", "1", "--out", "data"]].concat(), &["data", "did not make"]);
    assert_untouched(&fixture, "data");
    // A folder that looks like a package but has no marker is foreign, too.
    std::fs::write(fixture.path("data/rdf.yaml"), "name: mine\n").unwrap();
    fixture.fails(2, &["import", "m.onnx", "--out", "data"], &["did not make"]);
    std::fs::remove_file(fixture.path("data/rdf.yaml")).unwrap();
    // With --force it is moved aside: nothing is lost.
    let ran = fixture.run(&["import", "m.onnx", "--out", "data", "--force"]).ok();
    assert!(ran.stdout.contains("data.before-1"), "{}", ran.stdout);
    assert_untouched(&fixture, "data.before-1");
    // Our own packages are replaced without --force, unless a file was added or changed.
    fixture.run(&["import", "m.onnx", "--out", "data"]).ok();
    std::fs::write(fixture.path("data/notes.md"), "mine").unwrap();
    fixture.fails(2, &["import", "m.onnx", "--out", "data"], &["notes.md"]);
    std::fs::remove_file(fixture.path("data/notes.md")).unwrap();
    let card = [&fixture.bytes("data/README.md")[..], b"\nmy own words\n"].concat();
    std::fs::write(fixture.path("data/README.md"), &card).unwrap();
    fixture.fails(2, &["import", "m.onnx", "--out", "data"], &["changed", "README.md"]);
    assert_eq!(fixture.bytes("data/README.md"), card);
}

#[test]
fn the_package_of_another_model_is_moved_aside() {
    let fixture = Fixture::new();
    let export = |model: &str| {
        let command = ["export", model, "--format", "bioimageio", "--out", "pkg"];
        fixture.run(&command).ok().stdout
    };
    export("nuclei-dog");
    let first = fixture.bytes("pkg/model.onnx");
    assert!(!export("nuclei-dog").contains("before"), "the same model is replaced");
    let text = export("labelfree-nuclei");
    assert!(text.contains("pkg.before-1"), "{text}");
    assert!(fixture.bytes("pkg.before-1/model.onnx") == first && fixture.bytes("pkg/model.onnx") != first);
}

#[cfg(unix)]
#[test]
fn the_home_folder_is_never_moved_aside() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    fixture.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    let refused = |home: &str, command: &[&str]| {
        std::fs::create_dir_all(fixture.path(home)).unwrap();
        std::fs::write(fixture.path(home).join("mine"), "data").unwrap();
        for force in [&[][..], &["--force"]] {
            let mut ran = fixture.command(&[command, force].concat());
            let ran = ran.env("HOME", fixture.path(home)).output().unwrap();
            let text = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(2), "{command:?}: {text}");
            assert!(text.contains("home folder") && text.contains("choose another path"), "{command:?}: {text}");
        }
        assert_eq!(fixture.bytes(&format!("{home}/mine")), b"data");
    };
    refused("home", &["import", "m.onnx", "--out", "home"]);
    refused("home", &["export", "nuclei-dog", "--format", "bioimageio", "--out", "home"]);
    refused("home", &["quantize", "nuclei-dog", "--mode", "dynamic", "--out", "home"]);
    refused("users/me", &["import", "m.onnx", "--out", "users"]);
    refused("home.zarr", &["convert", &raw, "home.zarr"]);
}

#[cfg(unix)]
#[test]
fn the_current_folder_and_that_of_temporary_files_are_never_moved_aside() {
    let fixture = Fixture::new();
    std::fs::create_dir_all(fixture.path("mine/sub")).unwrap();
    std::fs::create_dir(fixture.path("scratch")).unwrap();
    for (out, words) in
        [("..", "does not end in the name"), ("../../mine", "current folder"), ("../../scratch", "temporary files")]
    {
        let mut command = fixture.command(&["export", "nuclei-dog", "--out", out, "--force"]);
        let ran =
            command.current_dir(fixture.path("mine/sub")).env("TMPDIR", fixture.path("scratch")).output().unwrap();
        let text = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(2) && text.contains(words), "{out}: {text}");
    }
    assert_eq!(fixture.names("."), ["mine", "scratch"]);
    assert_eq!(fixture.names("mine"), ["sub"]);
}

#[test]
fn package_is_never_written_over_its_source() {
    let fixture = Fixture::new();
    fixture.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    fixture.run(&["import", "m.onnx", "--out", "pkg"]).ok();
    for force in [&[][..], &["--force"]] {
        fixture.fails(2, &[&["import", "pkg", "--out", "pkg"], force].concat(), &["pkg", "input"]);
        fixture.fails(2, &[&["import", "pkg/model.onnx", "--out", "pkg"], force].concat(), &["pkg", "input"]);
        fixture.fails(
            2,
            &[&["quantize", "pkg", "--mode", "dynamic", "--out", "pkg"], force].concat(),
            &["pkg", "input"],
        );
        fixture.fails(
            2,
            &[&["export", "m.onnx", "--format", "onnx", "--out", "m.onnx"], force].concat(),
            &["m.onnx", "input"],
        );
    }
}

#[test]
fn nothing_is_written_into_a_package_that_is_read() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.run(&["export", "nuclei-dog", "--format", "bioimageio", "--out", "pkg"]).ok();
    let before = fixture.names("pkg");
    for force in [&[][..], &["--force"]] {
        let refused = |command: &[&str]| fixture.fails(2, &[command, force].concat(), &["inside the package"]);
        refused(&["import", "pkg", "--out", "pkg/copy"]);
        refused(&["quantize", "pkg", "--mode", "dynamic", "--out", "pkg/int8"]);
        refused(&["quantize", "pkg", "--mode", "dynamic", "--out", "pkg/int8.onnx"]);
        refused(&["export", "pkg", "--format", "onnx", "--out", "pkg/copy.onnx"]);
        refused(&["predict", &raw, "--model", "pkg", "--out", "pkg"]);
        refused(&["predict", &raw, "--model", "pkg", "--out", "pkg/results"]);
    }
    assert_eq!(fixture.names("pkg"), before);
}

#[test]
fn nothing_is_written_into_an_ome_zarr_folder_that_is_read() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.run(&["convert", &raw, "a.zarr"]).ok();
    let before = fixture.names("a.zarr");
    for force in [&[][..], &["--force"]] {
        let refused = |command: &[&str]| fixture.fails(2, &[command, force].concat(), &["inside the OME-Zarr folder"]);
        refused(&["convert", "a.zarr", "a.zarr/copy.tif"]);
        refused(&["convert", "a.zarr", "a.zarr/copy.zarr"]);
        refused(&["segment", "a.zarr", "--out", "a.zarr/labels.tif"]);
        refused(&["predict", "a.zarr", "--model", "nuclei-dog", "--out", "a.zarr/results"]);
        let tensor = ["--input", "raw=a.zarr", "--out", "a.zarr/scores.json"];
        refused(&[&["evaluate", "--model", "nuclei-dog", "--data", "sim"][..], &tensor].concat());
    }
    assert_eq!(fixture.names("a.zarr"), before);
}

#[test]
fn foreign_folder_named_like_a_training_is_kept() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    let train = |data: &str, more: &[&str], words: &[&str]| {
        let common =
            ["train", "--task", "segmentation", "--data", data, "--config", "t.toml", "--steps", "1", "--out", "m"];
        fixture.fails(2, &[&common[..], more].concat(), words);
    };
    // A folder of the user's, with files or with the training data themselves.
    write_user_folder(&fixture, "m.training");
    for more in [&[][..], &["--restart"], &["--resume"], &["--force"]] {
        train("sim", more, &["m.training", "did not make"]);
        assert_untouched(&fixture, "m.training");
    }
    std::fs::remove_dir_all(fixture.path("m.training")).unwrap();
    std::fs::rename(fixture.path("sim"), fixture.path("m.training")).unwrap();
    let before = fixture.names("m.training");
    for more in [&[][..], &["--restart"], &["--force"]] {
        train("m.training", more, &["m.training", "input"]);
        assert_eq!(fixture.names("m.training"), before);
    }
}

#[test]
fn a_training_run_without_its_marker_is_named_and_kept() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    std::fs::create_dir(fixture.path("m.training")).unwrap();
    std::fs::write(fixture.path("m.training/training.json"), "{}").unwrap();
    let train = [&SMALL[..], &["--steps", "1", "--without-int8", "--out", "m"]].concat();
    let marker = r#"{"made_by":"cytoscope","kind":"training"}"#;
    for damaged in [None, Some("{\"made_by")] {
        if let Some(text) = damaged {
            std::fs::write(fixture.path("m.training/.cytoscope.json"), text).unwrap();
        }
        for more in [&[][..], &["--resume"], &["--restart"]] {
            let words = ["m.training", ".cytoscope.json", "missing or damaged", marker];
            fixture.fails(3, &[&train[..], more].concat(), &words);
        }
        assert_eq!(fixture.bytes("m.training/training.json"), b"{}");
    }
    // With the content that the message states, the folder is recognized again.
    std::fs::write(fixture.path("m.training/.cytoscope.json"), marker).unwrap();
    fixture.fails(3, &[&train[..], &["--resume"]].concat(), &["training.json"]);
    fixture.run(&[&train[..], &["--restart"]].concat()).ok();
}

#[test]
fn input_is_never_an_output() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let before = fixture.bytes(&raw);
    std::fs::create_dir(fixture.path("x")).unwrap();
    std::fs::write(fixture.path("membrane.json"), "[]").unwrap();
    for force in [&[][..], &["--force"]] {
        fixture.fails(2, &[&["segment", &raw, "--out", &raw], force].concat(), &[&raw, "input"]);
        fixture.fails(2, &[&["segment", &raw, "--out", "x/../sim/nuclei_1_raw.tif"], force].concat(), &["input"]);
        fixture.fails(2, &[&["segment", &raw, "--out", "l.tif", "--table", &raw], force].concat(), &[&raw, "input"]);
        fixture.fails(2, &[&["convert", &raw, &raw], force].concat(), &[&raw, "input"]);
        fixture.fails(2, &[&["predict", &raw, "--trace", &raw, "--out", "o"], force].concat(), &[&raw, "input"]);
        let tensor = ["--input", "raw=membrane.json", "--out", "membrane.json"];
        let evaluate = [&["evaluate", "--model", "nuclei-dog", "--data", "sim"][..], &tensor, force].concat();
        fixture.fails(2, &evaluate, &["membrane.json", "input"]);
    }
    assert!(fixture.bytes(&raw) == before && !fixture.path("l.tif").exists() && !fixture.path("o").exists());
    assert_eq!(fixture.bytes("membrane.json"), b"[]");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("sim/nuclei_1_raw.tif", fixture.path("link.tif")).unwrap();
        fixture.fails(2, &["convert", &raw, "link.tif", "--force"], &["link.tif", "input"]);
        assert!(fixture.bytes(&raw) == before);
    }
}

#[test]
fn scores_do_not_replace_a_provenance_record() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let labels = "sim/nuclei_1_labels.tif";
    let record = "sim/nuclei_1_raw.tif_provenance.json";
    let before = fixture.bytes(record);
    for force in [&[][..], &["--force"]] {
        let words = [record, "has the name of a provenance record"];
        let scored = ["evaluate", "--pred", labels, "--truth", labels, "--out", record];
        fixture.fails(2, &[&scored[..], force].concat(), &words);
        let model = ["evaluate", "--model", "nuclei-dog", "--data", "sim", "--out", record];
        fixture.fails(2, &[&model[..], force].concat(), &words);
        let bench = ["bench", "--compare-opts", "nuclei-dog", "--data", &raw, "--output", record];
        fixture.fails(2, &[&bench[..], force].concat(), &words);
    }
    assert_eq!(fixture.bytes(record), before);
}

#[test]
fn a_trace_replaces_neither_inputs_nor_results() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.run(&["export", "nuclei-dog", "--format", "bioimageio", "--out", "pkg"]).ok();
    fixture.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    let (package, network) = (fixture.names("pkg"), fixture.bytes("m.onnx"));
    let description = fixture.bytes("pkg/rdf.yaml");
    std::fs::write(fixture.path("sim/notes.json"), "[]").unwrap();
    std::fs::write(fixture.path("t.toml"), "batch = 2\n").unwrap();
    std::fs::create_dir(fixture.path("o")).unwrap();
    let predict = ["predict", &raw, "--model", "pkg", "--out", "o"];
    let quantize = ["quantize", "m.onnx", "--mode", "dynamic", "--out", "q.zip"];
    let train =
        ["train", "--task", "segmentation", "--data", "sim", "--from", "m.onnx", "--steps", "1", "--out", "t.zip"];
    let refused = |command: &[&str], trace: &str, word: &str| {
        for force in [&[][..], &["--force"]] {
            fixture.fails(2, &[command, &["--trace", trace], force].concat(), &[trace, word]);
        }
    };
    // Results that the run itself writes.
    refused(&predict, "o/nuclei_1_raw_labels.tif", ".json");
    refused(&predict, "o/nuclei_1_raw_provenance.json", "provenance");
    refused(&quantize, "q.zip", ".json");
    refused(&train, "t.zip", ".json");
    // Inputs, and files of folders that are read.
    refused(&predict, "pkg/trace.json", "inside");
    fixture.fails(2, &[&predict[..], &["--trace", "pkg/rdf.yaml", "--force"]].concat(), &["pkg/rdf.yaml", ".json"]);
    refused(&quantize, "m.onnx", "input");
    refused(&train, "m.onnx", "input");
    refused(&[&train[..], &["--config", "t.toml"]].concat(), "t.toml", "input");
    fixture.fails(2, &[&train[..], &["--trace", "sim/notes.json", "--force"]].concat(), &["sim/notes.json", "folder"]);
    let folder = ["predict", "sim", "--model", "pkg", "--out", "o", "--trace", "sim/notes.json", "--force"];
    fixture.fails(2, &folder, &["sim/notes.json", "folder"]);
    fixture.fails(
        2,
        &["bench", "--compare-opts", "m.onnx", "--data", &raw, "--output", "m.onnx", "--force"],
        &["m.onnx", "input"],
    );
    assert_eq!((fixture.names("pkg"), fixture.bytes("m.onnx")), (package, network));
    assert_eq!((fixture.bytes("pkg/rdf.yaml"), fixture.bytes("sim/notes.json")), (description, b"[]".to_vec()));
    assert_eq!((fixture.names("o"), fixture.bytes("t.toml")), (Vec::<String>::new(), b"batch = 2\n".to_vec()));
    // A trace beside the results is written, and replaced on request.
    let traced = [&predict[..], &["--outputs", "labels", "--trace", "o/run.json"]].concat();
    fixture.run(&traced).ok();
    fixture.fails(2, &traced, &["o/run.json", "--force"]);
    fixture.run(&[&traced[..], &["--force"]].concat()).ok();
}

#[test]
fn simulation_replaces_neither_its_settings_nor_a_part_of_earlier_stacks() {
    let fixture = Fixture::new();
    fixture.nuclei("4,16,16", 1);
    let settings = fixture.bytes("sim/nuclei_1.json");
    let again = ["simulate", "--kind", "nuclei", "--settings", "sim/nuclei_1.json", "--out"];
    fixture.fails(2, &[&again[..], &["sim", "--force"]].concat(), &["nuclei_1.json", "input"]);
    assert_eq!(fixture.bytes("sim/nuclei_1.json"), settings);
    fixture.run(&[&again[..], &["copy"]].concat()).ok();
    assert_eq!(fixture.bytes("copy/nuclei_1_raw.tif"), fixture.bytes("sim/nuclei_1_raw.tif"));
    // Of several stacks none is written if one of them may not be.
    let several = ["simulate", "--kind", "nuclei", "--shape", "4,16,16", "--count", "3", "--out", "sim"];
    fixture.fails(2, &several, &["nuclei_1.json", "--force"]);
    assert!(!fixture.path("sim/nuclei_0.json").exists());
}

#[test]
fn existing_file_is_replaced_only_with_force() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    std::fs::write(fixture.path("x.npy"), crate::common::npy_f32(&[1, 1, 8, 16, 16], &[0.5; 2048])).unwrap();
    let mine = b"written by someone else";
    let commands: [(&str, Vec<&str>); 9] = [
        ("a.npy", vec!["convert", &raw, "a.npy"]),
        ("b.ome.tif", vec!["convert", &raw, "b.ome.tif"]),
        ("l.tif", vec!["segment", &raw, "--out", "l.tif"]),
        ("t.csv", vec!["segment", &raw, "--out", "l2.tif", "--table", "t.csv"]),
        ("e.onnx", vec!["export", "nuclei-dog", "--format", "onnx", "--out", "e.onnx"]),
        ("e.st", vec!["export", "nuclei-dog", "--format", "safetensors", "--out", "e.st"]),
        ("e.zip", vec!["export", "nuclei-dog", "--format", "bioimageio", "--out", "e.zip"]),
        ("i.zip", vec!["import", "m.onnx", "--out", "i.zip"]),
        ("y.npy", vec!["run", "m.onnx", "--input", "x.npy", "--output", "y.npy"]),
    ];
    for (name, command) in &commands {
        std::fs::write(fixture.path(name), mine).unwrap();
        fixture.fails(2, command, &[name, "--force"]);
        assert_eq!(fixture.bytes(name), mine, "{command:?}");
        fixture.run(&[&command[..], &["--force"]].concat()).ok();
        assert_ne!(fixture.bytes(name), mine, "{command:?}");
    }
    // Our own zip is replaced, a changed one is not.
    fixture.run(&["import", "m.onnx", "--out", "i.zip"]).ok();
    let mut archive = zip::ZipArchive::new(std::fs::File::open(fixture.path("i.zip")).unwrap()).unwrap();
    let mut changed = zip::ZipWriter::new(std::fs::File::create(fixture.path("mine.zip")).unwrap());
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).unwrap();
        let name = entry.name().unwrap().into_owned();
        changed.start_file(name.as_str(), zip::write::SimpleFileOptions::default()).unwrap();
        match name.as_str() {
            "README.md" => std::io::Write::write_all(&mut changed, b"my own words").unwrap(),
            _ => std::io::copy(&mut entry, &mut changed).map(drop).unwrap(),
        }
    }
    changed.finish().unwrap();
    fixture.fails(2, &["import", "m.onnx", "--out", "mine.zip"], &["mine.zip", "--force"]);
    // Arrays that are read are inputs as well.
    let run = ["run", "m.onnx", "--input", "x.npy", "--output", "x.npy", "--force"];
    fixture.fails(2, &run, &["x.npy", "is also an input"]);
    assert_eq!(crate::common::parse_npy(&fixture.bytes("x.npy")).1, [1, 1, 8, 16, 16]);
    // Simulating twice needs --force, too.
    fixture.fails(
        2,
        &["simulate", "--kind", "nuclei", "--shape", "8,48,48", "--seed", "1", "--out", "sim"],
        &["--force"],
    );
}

#[test]
fn edited_or_foreign_results_are_kept_without_force() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let predict = ["predict", &raw, "--model", "nuclei-dog", "--out", "o"];
    // A foreign file with the name of a result, then a foreign record.
    std::fs::create_dir(fixture.path("o")).unwrap();
    std::fs::write(fixture.path("o/nuclei_1_raw_labels.tif"), "drawn by hand").unwrap();
    fixture.fails(2, &predict, &["nuclei_1_raw_labels.tif", "--force"]);
    std::fs::write(fixture.path("o/nuclei_1_raw_provenance.json"), "{\"made by\": \"another program\"}").unwrap();
    std::fs::remove_file(fixture.path("o/nuclei_1_raw_labels.tif")).unwrap();
    fixture.fails(2, &predict, &["nuclei_1_raw_provenance.json", "--force"]);
    assert_eq!(fixture.bytes("o/nuclei_1_raw_provenance.json"), b"{\"made by\": \"another program\"}");
    fixture.run(&[&predict[..], &["--force"]].concat()).ok();
    // A prediction replaces its own results,
    fixture.run(&predict).ok();
    // but none that was edited since.
    std::fs::write(fixture.path("o/nuclei_1_raw_labels.tif"), "corrected by hand").unwrap();
    fixture.fails(2, &predict, &["nuclei_1_raw_labels.tif", "--force"]);
    assert_eq!(fixture.bytes("o/nuclei_1_raw_labels.tif"), b"corrected by hand");
    // `segment --force` may replace the labels of a prediction.
    let out = "o/nuclei_1_raw_labels.tif";
    fixture.fails(2, &["segment", "o/nuclei_1_raw_probability.tif", "--out", out], &["--force"]);
    fixture.run(&["segment", "o/nuclei_1_raw_probability.tif", "--out", out, "--force"]).ok();
    // The labels that the job wrote were replaced, so it is computed again instead of resumed.
    let report = fixture.run(&[&predict[..], &["--resume", "--json"]].concat()).json();
    assert_eq!(report["inputs"][0]["resumed"], false);
    // After a run with fewer outputs, all of them are still its own.
    fixture.run(&[&predict[..], &["--outputs", "labels"]].concat()).ok();
    fixture.run(&predict).ok();
    // A stack with the same name in another folder must not replace these results.
    std::fs::create_dir(fixture.path("day2")).unwrap();
    std::fs::copy(fixture.path(&raw), fixture.path("day2/nuclei_1_raw.tif")).unwrap();
    let before = fixture.bytes("o/nuclei_1_raw_probability.tif");
    let other = ["predict", "day2/nuclei_1_raw.tif", "--model", "nuclei-dog", "--out", "o"];
    fixture.fails(2, &other, &["nuclei_1_raw_provenance.json", "--force"]);
    assert!(fixture.bytes("o/nuclei_1_raw_probability.tif") == before);
}

#[cfg(unix)]
#[test]
fn concurrent_predictions_do_not_mix_results() {
    let fixture = Fixture::new();
    let (mut child, _lines) = crate::failures::start_prediction(&fixture);
    let again = ["predict", "large.tif", "--model", "nuclei-dog", "--out", "o"];
    let ran = fixture.run(&again);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("another run") && ran.stderr.contains("large"), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("process {}", child.id())), "{}", ran.stderr);
    child.kill().unwrap();
    child.wait().unwrap();
    // The killed run holds no lock, and its partial files are removed.
    fixture.run(&[&again[..], &["--outputs", "labels"]].concat()).ok();
    assert_eq!(fixture.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[cfg(unix)]
#[test]
fn file_that_appears_during_prediction_is_kept() {
    let fixture = Fixture::new();
    let (mut child, mut lines) = crate::failures::start_prediction(&fixture);
    std::fs::write(fixture.path("o/large_labels.tif"), "drawn meanwhile").unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
    assert_eq!(fixture.bytes("o/large_labels.tif.before-1"), b"drawn meanwhile");
    assert_eq!(fixture.image("o/large_labels.tif").shape(), [48, 384, 384]);
    // After moving the folder, results still belong to their stack.
    std::fs::create_dir(fixture.path("day")).unwrap();
    for name in ["large.tif", "o"] {
        std::fs::rename(fixture.path(name), fixture.path("day").join(name)).unwrap();
    }
    fixture.run(&["predict", "day/large.tif", "--model", "nuclei-dog", "--outputs", "labels", "--out", "day/o"]).ok();
}

#[test]
fn results_of_an_earlier_prediction_that_stay_are_named() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let notes = |more: &[&str]| {
        let options = ["predict", &raw, "--model", "nuclei-dog", "--device", "cpu", "--out", "o", "--json"];
        fixture.run(&[&options[..], more].concat()).json()["inputs"][0]["notes"].to_string()
    };
    let kept = "results of an earlier prediction were kept";
    // At first, and if all of them are replaced.
    for diameter in ["auto", "9"] {
        let notes = notes(&["--diameter", diameter]);
        assert!(!notes.contains(kept), "{notes}");
    }
    let notes = notes(&["--diameter", "7", "--outputs", "labels"]);
    for name in [kept, "nuclei_1_raw_objects.csv", "nuclei_1_raw_probability.tif"] {
        assert!(notes.contains(name), "no {name} in {notes}");
    }
    assert!(!notes.contains("nuclei_1_raw_labels.tif"), "{notes}");
}
