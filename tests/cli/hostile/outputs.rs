//! Outputs never take the place of inputs, or of files that the program did not write.

use crate::common::Desk;
use crate::train::{SMALL, pairs, settings};

/// A folder of someone's own, and what must still be in it afterwards.
fn thesis(desk: &Desk, name: &str) {
    std::fs::create_dir_all(desk.path(name).join("raw")).unwrap();
    std::fs::write(desk.path(name).join("thesis.tif"), "years of work").unwrap();
    std::fs::write(desk.path(name).join("raw/1.tif"), "a night at the microscope").unwrap();
}

fn assert_untouched(desk: &Desk, name: &str) {
    assert_eq!(desk.names(name), ["raw", "thesis.tif"]);
    assert_eq!(desk.bytes(&format!("{name}/thesis.tif")), b"years of work");
    assert_eq!(desk.bytes(&format!("{name}/raw/1.tif")), b"a night at the microscope");
}

#[test]
fn a_folder_that_is_no_package_is_never_replaced_by_one() {
    let desk = Desk::new();
    thesis(&desk, "data");
    desk.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    desk.fails(2, &["import", "m.onnx", "--out", "data"], &["data", "did not make", "it holds", "--force"]);
    desk.fails(2, &["export", "nuclei-dog", "--format", "bioimageio", "--out", "data"], &["data", "did not make"]);
    desk.fails(2, &["quantize", "nuclei-dog", "--mode", "dynamic", "--out", "data"], &["data", "did not make"]);
    pairs(&desk, 2);
    settings(&desk, "");
    desk.fails(2, &[&SMALL[..], &["--steps", "1", "--out", "data"]].concat(), &["data", "did not make"]);
    assert_untouched(&desk, "data");
    // A folder that looks like a package is not one of ours either.
    std::fs::write(desk.path("data/rdf.yaml"), "name: mine\n").unwrap();
    desk.fails(2, &["import", "m.onnx", "--out", "data"], &["did not make"]);
    std::fs::remove_file(desk.path("data/rdf.yaml")).unwrap();
    // Asked to, it is moved aside: nothing is lost.
    let ran = desk.run(&["import", "m.onnx", "--out", "data", "--force"]).ok();
    assert!(ran.stdout.contains("data.before-1"), "{}", ran.stdout);
    assert_untouched(&desk, "data.before-1");
    // What is ours is replaced without a question, until somebody adds something to it or changes it.
    desk.run(&["import", "m.onnx", "--out", "data"]).ok();
    std::fs::write(desk.path("data/notes.md"), "mine").unwrap();
    desk.fails(2, &["import", "m.onnx", "--out", "data"], &["notes.md"]);
    std::fs::remove_file(desk.path("data/notes.md")).unwrap();
    let card = [&desk.bytes("data/README.md")[..], b"\nmy own words\n"].concat();
    std::fs::write(desk.path("data/README.md"), &card).unwrap();
    desk.fails(2, &["import", "m.onnx", "--out", "data"], &["changed", "README.md"]);
    assert_eq!(desk.bytes("data/README.md"), card);
}

#[test]
fn a_package_is_not_written_over_itself() {
    let desk = Desk::new();
    desk.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    desk.run(&["import", "m.onnx", "--out", "pkg"]).ok();
    for force in [&[][..], &["--force"]] {
        desk.fails(2, &[&["import", "pkg", "--out", "pkg"], force].concat(), &["pkg", "input"]);
        desk.fails(2, &[&["import", "pkg/model.onnx", "--out", "pkg"], force].concat(), &["pkg", "input"]);
        desk.fails(2, &[&["quantize", "pkg", "--mode", "dynamic", "--out", "pkg"], force].concat(), &["pkg", "input"]);
        desk.fails(
            2,
            &[&["export", "m.onnx", "--format", "onnx", "--out", "m.onnx"], force].concat(),
            &["m.onnx", "input"],
        );
    }
}

#[test]
fn a_folder_named_like_a_training_is_left_alone() {
    let desk = Desk::new();
    pairs(&desk, 2);
    settings(&desk, "");
    let train = |data: &str, more: &[&str], words: &[&str]| {
        let common =
            ["train", "--task", "segmentation", "--data", data, "--config", "t.toml", "--steps", "1", "--out", "m"];
        desk.fails(2, &[&common[..], more].concat(), words);
    };
    // Someone's own folder, with files or, worse, with the training data themselves.
    thesis(&desk, "m.training");
    for more in [&[][..], &["--anew"], &["--resume"], &["--force"]] {
        train("sim", more, &["m.training", "did not make"]);
        assert_untouched(&desk, "m.training");
    }
    std::fs::remove_dir_all(desk.path("m.training")).unwrap();
    std::fs::rename(desk.path("sim"), desk.path("m.training")).unwrap();
    let before = desk.names("m.training");
    for more in [&[][..], &["--anew"], &["--force"]] {
        train("m.training", more, &["m.training", "input"]);
        assert_eq!(desk.names("m.training"), before);
    }
}

#[test]
fn an_input_is_never_an_output() {
    let desk = Desk::new();
    let raw = desk.nuclei("8,48,48", 1);
    let before = desk.bytes(&raw);
    std::fs::create_dir(desk.path("x")).unwrap();
    for force in [&[][..], &["--force"]] {
        desk.fails(2, &[&["segment", &raw, "--out", &raw], force].concat(), &[&raw, "input"]);
        desk.fails(2, &[&["segment", &raw, "--out", "x/../sim/nuclei_1_raw.tif"], force].concat(), &["input"]);
        desk.fails(2, &[&["segment", &raw, "--out", "l.tif", "--table", &raw], force].concat(), &[&raw, "input"]);
        desk.fails(2, &[&["convert", &raw, &raw], force].concat(), &[&raw, "input"]);
        desk.fails(2, &[&["predict", &raw, "--trace", &raw, "--out", "o"], force].concat(), &[&raw, "input"]);
    }
    assert!(desk.bytes(&raw) == before && !desk.path("l.tif").exists() && !desk.path("o").exists());
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("sim/nuclei_1_raw.tif", desk.path("link.tif")).unwrap();
        desk.fails(2, &["convert", &raw, "link.tif", "--force"], &["link.tif", "input"]);
        assert!(desk.bytes(&raw) == before);
    }
}

#[test]
fn a_file_that_is_there_is_replaced_only_when_asked() {
    let desk = Desk::new();
    let raw = desk.nuclei("8,48,48", 1);
    desk.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    std::fs::write(desk.path("x.npy"), crate::common::npy_f32(&[1, 1, 8, 16, 16], &[0.5; 2048])).unwrap();
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
        std::fs::write(desk.path(name), mine).unwrap();
        desk.fails(2, command, &[name, "--force"]);
        assert_eq!(desk.bytes(name), mine, "{command:?}");
        desk.run(&[&command[..], &["--force"]].concat()).ok();
        assert_ne!(desk.bytes(name), mine, "{command:?}");
    }
    // A zip of ours is replaced, one that somebody changed is not.
    desk.run(&["import", "m.onnx", "--out", "i.zip"]).ok();
    let mut archive = zip::ZipArchive::new(std::fs::File::open(desk.path("i.zip")).unwrap()).unwrap();
    let mut changed = zip::ZipWriter::new(std::fs::File::create(desk.path("mine.zip")).unwrap());
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
    desk.fails(2, &["import", "m.onnx", "--out", "mine.zip"], &["mine.zip", "--force"]);
    // Arrays that are read are inputs, and two outputs are two files.
    let run = ["run", "m.onnx", "--input", "x.npy", "--output", "x.npy", "--force"];
    desk.fails(2, &run, &["x.npy", "is an input"]);
    assert_eq!(crate::common::parse_npy(&desk.bytes("x.npy")).1, [1, 1, 8, 16, 16]);
    // Simulating twice asks, too.
    desk.fails(2, &["simulate", "--kind", "nuclei", "--shape", "8,48,48", "--seed", "1", "--out", "sim"], &["--force"]);
}

#[test]
fn results_that_somebody_edited_or_brought_are_kept() {
    let desk = Desk::new();
    let raw = desk.nuclei("8,48,48", 1);
    let predict = ["predict", &raw, "--model", "nuclei-dog", "--out", "o"];
    // Someone's own file under the name of a result, and a record of something else beside it.
    std::fs::create_dir(desk.path("o")).unwrap();
    std::fs::write(desk.path("o/nuclei_1_raw_labels.tif"), "drawn by hand").unwrap();
    desk.fails(2, &predict, &["nuclei_1_raw_labels.tif", "--force"]);
    std::fs::write(desk.path("o/nuclei_1_raw_provenance.json"), "{\"made by\": \"another program\"}").unwrap();
    std::fs::remove_file(desk.path("o/nuclei_1_raw_labels.tif")).unwrap();
    desk.fails(2, &predict, &["nuclei_1_raw_provenance.json", "--force"]);
    assert_eq!(desk.bytes("o/nuclei_1_raw_provenance.json"), b"{\"made by\": \"another program\"}");
    desk.run(&[&predict[..], &["--force"]].concat()).ok();
    // A prediction replaces its own results ...
    desk.run(&predict).ok();
    // ... but none that was edited since, and no record brought from elsewhere makes a foreign file its own.
    std::fs::write(desk.path("o/nuclei_1_raw_labels.tif"), "corrected by hand").unwrap();
    desk.fails(2, &predict, &["nuclei_1_raw_labels.tif", "--force"]);
    assert_eq!(desk.bytes("o/nuclei_1_raw_labels.tif"), b"corrected by hand");
    // Objects made again from the map take their place among the results, and the record follows.
    let out = "o/nuclei_1_raw_labels.tif";
    desk.fails(2, &["segment", "o/nuclei_1_raw_probability.tif", "--out", out], &["--force"]);
    desk.run(&["segment", "o/nuclei_1_raw_probability.tif", "--out", out, "--force"]).ok();
    // What that job makes is not there any more, so it is made again.
    let report = desk.run(&[&predict[..], &["--resume", "--json"]].concat()).json();
    assert_eq!(report["inputs"][0]["resumed"], false);
    // Some of the outputs, then all of them: those in between are still its own.
    desk.run(&[&predict[..], &["--outputs", "labels"]].concat()).ok();
    desk.run(&predict).ok();
    // A stack of the same name from elsewhere has results of its own.
    std::fs::create_dir(desk.path("day2")).unwrap();
    std::fs::copy(desk.path(&raw), desk.path("day2/nuclei_1_raw.tif")).unwrap();
    let before = desk.bytes("o/nuclei_1_raw_probability.tif");
    let other = ["predict", "day2/nuclei_1_raw.tif", "--model", "nuclei-dog", "--out", "o"];
    desk.fails(2, &other, &["nuclei_1_raw_provenance.json", "--force"]);
    assert!(desk.bytes("o/nuclei_1_raw_probability.tif") == before);
}

#[cfg(unix)]
#[test]
fn two_predictions_do_not_mix_their_results() {
    let desk = Desk::new();
    let (mut child, _lines) = crate::failures::predicting(&desk);
    let again = ["predict", "large.tif", "--model", "nuclei-dog", "--out", "o"];
    let ran = desk.run(&again);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("another run") && ran.stderr.contains("large"), "{}", ran.stderr);
    child.kill().unwrap();
    child.wait().unwrap();
    // The killed one holds nothing, and what it left is swept.
    desk.run(&[&again[..], &["--outputs", "labels"]].concat()).ok();
    assert_eq!(desk.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[cfg(unix)]
#[test]
fn a_file_that_appears_while_its_name_is_predicted_is_kept() {
    let desk = Desk::new();
    let (mut child, mut lines) = crate::failures::predicting(&desk);
    std::fs::write(desk.path("o/large_labels.tif"), "drawn meanwhile").unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
    assert_eq!(desk.bytes("o/large_labels.tif.before-1"), b"drawn meanwhile");
    assert_eq!(desk.image("o/large_labels.tif").shape(), [48, 512, 512]);
    // A folder that is moved with its results goes on being theirs.
    std::fs::create_dir(desk.path("day")).unwrap();
    for name in ["large.tif", "o"] {
        std::fs::rename(desk.path(name), desk.path("day").join(name)).unwrap();
    }
    desk.run(&["predict", "day/large.tif", "--model", "nuclei-dog", "--outputs", "labels", "--out", "day/o"]).ok();
}
