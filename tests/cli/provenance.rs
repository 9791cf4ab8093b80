//! `provenance`: the records that jobs write beside their results, and running the jobs again.

use crate::common::{Fixture, missing};
use crate::train::{SMALL, simulate_pairs};
use serde_json::{Value, json};

const RAW: &str = "sim/nuclei_1_raw.tif";
const LABELS: &str = "sim/nuclei_1_labels.tif";

/// A fixture with a stack, its labels, and the folder `again` for reruns.
fn prepared() -> Fixture {
    let fixture = Fixture::new();
    fixture.nuclei("8,48,48", 1);
    std::fs::create_dir(fixture.path("again")).unwrap();
    fixture
}

/// Returns the name of the record of an output; names of folders get an extension.
fn record_name(output: &str) -> String {
    let is_package = output.rsplit('/').next().is_some_and(|name| !name.contains('.') && !name.contains("_raw"));
    if is_package { format!("{output}.package_provenance.json") } else { format!("{output}_provenance.json") }
}

fn record(fixture: &Fixture, output: &str) -> Value {
    serde_json::from_slice(&fixture.bytes(&record_name(output))).unwrap()
}

/// Runs a job, and again from the record of its output into the folder `again`. Asserts that the record is complete and
/// that nothing differs, and returns the report of the rerun.
fn run_twice(fixture: &Fixture, kind: &str, arguments: &[&str], output: &str) -> Value {
    fixture.run(arguments).ok();
    let record = record(fixture, output);
    assert_eq!(missing(&record, &["program", "kind", "job", "inputs", "outputs"]), Vec::<&str>::new());
    assert_eq!(record["kind"], kind);
    let shown = fixture.run(&["provenance", output, "--json"]).json();
    assert_eq!((&shown["record"], &shown["differences"]), (&record, &json!([])));
    let again = format!("again/{output}");
    fixture.run(&["provenance", &record_name(output), "--rerun", "--out", &again, "--json"]).json()
}

/// Asserts that a job that writes files gives the same bytes again, and that a rerun does not replace them.
fn assert_repeats(fixture: &Fixture, kind: &str, arguments: &[&str], outputs: &[&str]) {
    let report = run_twice(fixture, kind, arguments, outputs[0]);
    assert_eq!(report["differences"], json!([]), "{kind}");
    assert_eq!(report["outputs"].as_array().unwrap().len(), outputs.len(), "{report:#}");
    assert!(report["outputs"].as_array().unwrap().iter().all(|output| output["identical"] == true), "{report:#}");
    for output in outputs {
        assert!(fixture.bytes(output) == fixture.bytes(&format!("again/{output}")), "{kind}: {output} differs");
    }
    let before = fixture.bytes(outputs[0]);
    fixture.fails(2, &["provenance", outputs[0], "--rerun"], &[outputs[0], "--force"]);
    assert_eq!(fixture.bytes(outputs[0]), before);
    fixture.run(&["provenance", outputs[0], "--rerun", "--force"]).ok();
    assert_eq!(fixture.bytes(outputs[0]), before, "{kind}");
}

#[test]
fn jobs_that_write_files_give_the_same_bytes_again() {
    let fixture = prepared();
    assert_repeats(&fixture, "segment", &["segment", RAW, "--out", "l.tif", "--table", "t.csv"], &["l.tif", "t.csv"]);
    assert_repeats(&fixture, "measure", &["measure", LABELS, "--intensities", RAW, "--out", "m.csv"], &["m.csv"]);
    assert_repeats(&fixture, "mesh", &["mesh", LABELS, "--out", "m.stl"], &["m.stl"]);
    let steps = ["convert", RAW, "c.npy", "--preprocess", "gaussian:sigma=1"];
    assert_repeats(&fixture, "convert", &steps, &["c.npy"]);
    assert_repeats(
        &fixture,
        "evaluate",
        &["evaluate", "--pred", "l.tif", "--truth", LABELS, "--out", "s.json"],
        &["s.json"],
    );
    assert_repeats(&fixture, "export", &["export", "nuclei-dog", "--format", "onnx", "--out", "e.onnx"], &["e.onnx"]);
    // The options are recorded with their types and absolute paths; the model by its fingerprint.
    let convert = record(&fixture, "c.npy");
    assert_eq!(convert["job"]["input"], fixture.path(RAW).to_str().unwrap());
    assert_eq!(convert["inputs"][0]["bytes"], fixture.bytes(RAW).len());
    assert!(record(&fixture, "e.onnx")["model"]["fingerprint"].as_str().unwrap().len() > 8);
    // Without --json, a sentence for each output says so, too.
    let text = fixture.run(&["provenance", "c.npy", "--rerun", "--out", "again/d.npy"]).ok().stdout;
    assert!(text.contains("d.npy: identical to the recorded result"), "{text}");
    let shown = fixture.run(&["provenance", "c.npy"]).ok().stdout;
    assert!(shown.contains("convert, cytoscope ") && shown.contains("gaussian"), "{shown}");
}

#[test]
fn packages_are_made_again_with_the_same_network() {
    let fixture = prepared();
    fixture.unet(8);
    run_twice(&fixture, "import", &["import", "net.onnx", "--out", "p"], "p");
    simulate_pairs(&fixture, 2);
    let calibrated = ["--mode", "static", "--calibrate", "sim", "--accuracy-budget", "0.3"];
    run_twice(&fixture, "quantize", &[&["quantize", "net.onnx", "--out", "q"][..], &calibrated].concat(), "q");
    for file in ["p/model.onnx", "p/test_output_0.npy", "q/model_int8.onnx"] {
        assert!(fixture.bytes(file) == fixture.bytes(&format!("again/{file}")), "{file} differs");
    }
    let record = record(&fixture, "q");
    assert_eq!((&record["device"]["id"], &record["precision"]), (&json!("cpu"), &json!("int8")));
    assert!(!record["tile_shape"].as_array().unwrap().is_empty(), "{record:#}");
    // The record is beside the package, whose marker lists exactly its files.
    assert!(!fixture.names("p").iter().any(|name| name.contains("provenance")), "{:?}", fixture.names("p"));
    let before = fixture.bytes("p/model.onnx");
    fixture.fails(2, &["provenance", "p", "--rerun"], &["--force"]);
    assert!(fixture.bytes("p/model.onnx") == before);
    fixture.run(&["provenance", "p", "--rerun", "--force"]).ok();
}

#[test]
fn a_training_run_gives_the_same_network_again() {
    let fixture = prepared();
    simulate_pairs(&fixture, 2);
    let settings = "patch_zyx = [8, 32, 32]\nbatch = 1\n[network]\nfilters = [4]\n[validation]\ntimes = 1\n";
    std::fs::write(fixture.path("t.toml"), settings).unwrap();
    let options = ["--steps", "3", "--without-int8", "--device", "cpu", "--threads", "1", "--out", "m"];
    run_twice(&fixture, "train", &[&SMALL[..], &options].concat(), "m");
    assert!(fixture.bytes("m/model.onnx") == fixture.bytes("again/m/model.onnx"), "the networks differ");
    let mut record = record(&fixture, "m");
    assert_eq!((&record["device"]["id"], &record["tile_shape"]), (&json!("cpu"), &json!([8, 32, 32])));
    assert_eq!(record["job"]["config"]["budget"]["steps"], 3, "{record:#}");
    // On a machine without the recorded device, another one is used.
    record["device"]["id"] = json!("cuda:77");
    std::fs::write(fixture.path("other_provenance.json"), record.to_string()).unwrap();
    let report = fixture.run(&["provenance", "other_provenance.json", "--rerun", "--out", "again/n", "--json"]).json();
    let differences = report["differences"].to_string();
    assert!(differences.contains("cuda:77") && differences.contains("is not available"), "{differences}");
    assert!(fixture.path("again/n/model.onnx").is_file());
}

#[test]
fn a_simulated_stack_is_made_again_from_the_record_beside_it() {
    let fixture = Fixture::new();
    let simulate = ["simulate", "--kind", "cells", "--shape", "8,40,40", "--seed", "7", "--count", "2"];
    fixture.run(&[&simulate[..], &["--out", "s"]].concat()).ok();
    for seed in [7, 8] {
        let raw = format!("s/cells_{seed}_raw.tif");
        let made = record(&fixture, &raw);
        assert_eq!((&made["kind"], &made["job"]["settings"]["seed"]), (&json!("simulate"), &json!(seed)));
        assert_eq!(made["program"], format!("cytoscope {}", env!("CARGO_PKG_VERSION")));
        let shown = fixture.run(&["provenance", &raw, "--json"]).json();
        assert_eq!((&shown["record"], &shown["differences"]), (&made, &json!([])));
        let report = fixture.run(&["provenance", &raw, "--rerun", "--out", "again", "--json"]).json();
        let outputs = report["outputs"].as_array().unwrap();
        assert_eq!((&report["differences"], outputs.len()), (&json!([]), 3), "{report:#}");
        assert!(outputs.iter().all(|output| output["identical"] == true), "{report:#}");
        for name in [format!("cells_{seed}_raw.tif"), format!("cells_{seed}_labels.tif"), format!("cells_{seed}.json")]
        {
            let [first, again] = ["s", "again"].map(|folder| fixture.bytes(&format!("{folder}/{name}")));
            assert!(first == again, "{name} differs");
        }
    }
    // An edited stack is replaced only if that is requested.
    let raw = "s/cells_7_raw.tif";
    let original = fixture.bytes(raw);
    std::fs::write(fixture.path(raw), "edited").unwrap();
    fixture.fails(2, &["provenance", raw, "--rerun"], &["cells_7_raw.tif", "--force"]);
    assert_eq!(fixture.bytes(raw), b"edited");
    fixture.run(&["provenance", raw, "--rerun", "--force"]).ok();
    assert!(fixture.bytes(raw) == original);
    // Of several stacks none is written if the record of one of them may not be.
    std::fs::create_dir(fixture.path("t")).unwrap();
    std::fs::write(fixture.path("t/cells_8_raw.tif_provenance.json"), "written by someone else").unwrap();
    let over_record = [&simulate[..], &["--out", "t"]].concat();
    fixture.fails(2, &over_record, &["cells_8_raw.tif_provenance.json", "--force"]);
    assert_eq!(fixture.names("t"), ["cells_8_raw.tif_provenance.json"]);
}

#[test]
fn the_scores_of_a_model_are_made_again_on_another_device_if_necessary() {
    let fixture = prepared();
    simulate_pairs(&fixture, 1);
    let command = ["evaluate", "--model", "nuclei-dog", "--data", "sim", "--device", "cpu", "--out", "s.json"];
    fixture.run(&command).ok();
    let mut record = record(&fixture, "s.json");
    assert_eq!(record["job"]["device"], "cpu", "{record:#}");
    for at in ["/device/id", "/job/device"] {
        *record.pointer_mut(at).unwrap() = json!("cuda:77");
    }
    std::fs::write(fixture.path("other_provenance.json"), record.to_string()).unwrap();
    let report = fixture.run(&["provenance", "other_provenance.json", "--rerun", "--out", "t.json", "--json"]).json();
    assert!(report["differences"].to_string().contains("cuda:77"), "{report:#}");
    assert_eq!(report["outputs"][0]["identical"], true, "{report:#}");
}

#[test]
fn a_prediction_is_shown_and_made_again() {
    let fixture = prepared();
    fixture.run(&["predict", RAW, "--model", "nuclei-dog", "--device", "cpu", "--out", "o"]).ok();
    let labels = "nuclei_1_raw_labels.tif";
    let shown = fixture.run(&["provenance", &format!("o/{labels}"), "--json"]).json();
    assert_eq!(shown["differences"], json!([]), "{shown:#}");
    assert_eq!(shown["record"]["model"]["name"], record(&fixture, "o/nuclei_1_raw")["model"]["name"]);
    let text = fixture.run(&["provenance", "o/nuclei_1_raw_provenance.json"]).ok().stdout;
    assert!(text.contains("predict, cytoscope ") && text.contains("device: cpu"), "{text}");
    let read = text.lines().find(|line| line.starts_with("  read ")).unwrap();
    assert!(read.contains(", fingerprint ") && read.ends_with(", unchanged"), "{read}");
    // A record of another version, which describes the device in another way, is shown, too.
    let mut other = record(&fixture, "o/nuclei_1_raw");
    other["device"] = json!({"kind": "abacus"});
    std::fs::write(fixture.path("other_provenance.json"), other.to_string()).unwrap();
    let text = fixture.run(&["provenance", "other_provenance.json"]).ok().stdout;
    assert!(text.contains("device: as another version recorded it") && text.contains("tile: "), "{text}");
    let report = fixture.run(&["provenance", &format!("o/{labels}"), "--rerun", "--out", "again", "--json"]).json();
    let outputs = report["outputs"].as_array().unwrap();
    let recorded = shown["record"]["outputs"].as_array().unwrap();
    assert_eq!((&report["differences"], outputs.len()), (&json!([]), recorded.len()), "{report:#}");
    assert!(outputs.iter().all(|output| output["identical"] == true), "{report:#}");
    assert!(fixture.bytes(&format!("o/{labels}")) == fixture.bytes(&format!("again/{labels}")));
    // Labels that another program has changed are not those of the record.
    let edited = [&fixture.bytes(&format!("o/{labels}"))[..], b"\0"].concat();
    std::fs::write(fixture.path(&format!("o/{labels}")), edited).unwrap();
    let differences = fixture.run(&["provenance", &format!("o/{labels}"), "--json"]).json()["differences"].clone();
    assert!(differences[0].as_str().unwrap().contains(labels), "{differences}");
    assert_eq!(differences.as_array().unwrap().len(), 1, "{differences}");
    let rerun = ["provenance", "o/nuclei_1_raw_provenance.json", "--rerun"];
    fixture.fails(2, &rerun, &[labels, "has changed since it was recorded", "--out", "--force"]);
    let text = fixture.run(&["provenance", &format!("o/{labels}")]).ok().stdout;
    assert!(text.contains("note: the result ") && text.contains("has changed since it was recorded"), "{text}");
}

#[test]
fn the_record_of_a_prediction_with_relative_paths_holds_in_every_folder() {
    let fixture = prepared();
    fixture.run(&["export", "nuclei-dog", "--out", "pkg"]).ok();
    fixture.run(&["predict", RAW, "--model", "pkg", "--device", "cpu", "--out", "o"]).ok();
    let made = record(&fixture, "o/nuclei_1_raw");
    for (part, path) in [("model", "pkg"), ("input", RAW)] {
        assert_eq!(made[part]["path"], fixture.path(path).to_str().unwrap(), "{part}");
    }
    let shown = fixture
        .command(&["provenance", "../o/nuclei_1_raw_provenance.json", "--json"])
        .current_dir(fixture.path("again"))
        .output()
        .unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["differences"], json!([]), "{shown:#}");
}

#[test]
fn every_result_of_a_job_has_its_record() {
    let fixture = Fixture::new();
    fixture.nuclei("6,24,24", 1);
    fixture.run(&["segment", "sim/nuclei_1_raw.tif", "--out", "l.tif", "--table", "t.csv"]).ok();
    let kind = |result: &str| fixture.run(&["provenance", result, "--json"]).json()["record"]["kind"].clone();
    assert_eq!(["sim/nuclei_1_raw.tif", "sim/nuclei_1_labels.tif"].map(kind), ["simulate", "simulate"]);
    assert_eq!(["l.tif", "t.csv"].map(kind), ["segment", "segment"]);
    std::fs::write(fixture.path("t.csv"), "edited").unwrap();
    fixture.fails(3, &["provenance", "t.csv"], &["t.csv", "no provenance record"]);
}

#[test]
fn all_files_of_a_numbered_series_are_recorded_and_a_changed_one_is_noticed() {
    let fixture = Fixture::new();
    let names: Vec<String> = (1..=4).map(|n| format!("s_{n:03}.tif")).collect();
    for name in &names {
        fixture.write(name, "YX", &[24, 24], (0..576u16).map(|i| i * 37 % 251).collect::<Vec<u16>>());
    }
    let predict = ["predict", "s_001.tif", "--model", "nuclei-dog", "--device", "cpu", "--diameter", "8"];
    fixture.run(&[&predict[..], &["--outputs", "maps", "--out", "o"]].concat()).ok();
    fixture.run(&["convert", "s_001.tif", "c.npy"]).ok();
    fixture.run(&["segment", "s_001.tif", "--out", "l.tif"]).ok();
    fixture.run(&["mesh", "s_001.tif", "--objects", "9", "--out", "m.stl"]).ok();
    fixture.run(&["evaluate", "--pred", "l.tif", "--truth", "s_001.tif", "--out", "e.json"]).ok();
    let results = ["o/s_001_provenance.json", "c.npy", "l.tif", "m.stl", "e.json"];
    let listed = |list: &Value| -> Vec<String> {
        let path = |file: &Value| file["path"].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(path).collect()
    };
    let shown = results.map(|result| fixture.run(&["provenance", result, "--json"]).json());
    assert!(shown.iter().all(|shown| shown["differences"] == json!([])), "{shown:#?}");
    let mut lists = vec![listed(&shown[0]["record"]["input_files"])];
    lists.extend(shown[1..].iter().map(|shown| listed(&shown["record"]["inputs"])));
    assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [3, 4, 4, 4, 5], "{lists:?}");
    assert!(lists.iter().all(|list| list.iter().any(|path| path.ends_with("s_003.tif"))), "{lists:?}");
    fixture.write("s_003.tif", "YX", &[24, 24], vec![9u16; 576]);
    let repeated = ["again", "again/c.npy", "again/l.tif", "again/m.stl", "again/e.json"];
    for (result, out) in results.into_iter().zip(repeated) {
        std::fs::create_dir_all(fixture.path("again")).unwrap();
        let ran = fixture.run(&["provenance", result, "--rerun", "--out", out, "--json"]).json();
        let differences = ran["differences"].to_string();
        assert!(differences.contains("s_003.tif"), "{differences}");
    }
}

/// Writes a file of the OME-TIFF set `a.ome.tif` and `b.ome.tif`, which are a slice of 8 × 8 voxels each.
fn write_slice_of_set(fixture: &Fixture, name: &str, voxels: &[u8; 64]) {
    let plane = |(z, file): (usize, &str)| {
        format!("<TiffData FirstZ=\"{z}\" IFD=\"0\"><UUID FileName=\"{file}\">urn:uuid:{file}</UUID></TiffData>")
    };
    let planes: String = ["a.ome.tif", "b.ome.tif"].into_iter().enumerate().map(plane).collect();
    let pixels = "DimensionOrder=\"XYZCT\" SizeX=\"8\" SizeY=\"8\" SizeZ=\"2\" SizeC=\"1\" SizeT=\"1\"";
    let text =
        format!("<OME UUID=\"urn:uuid:{name}\"><Image><Pixels {pixels}>{planes}</Pixels></Image></OME>\0").into_bytes();
    let (text_bytes, text_at) = (text.len() as u32, 8 + 2 + 10 * 12 + 4);
    let entries: [(u16, u16, u32, u32); 10] = [
        (256, 4, 1, 8),
        (257, 4, 1, 8),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (270, 2, text_bytes, text_at),
        (273, 4, 1, text_at + text_bytes),
        (277, 3, 1, 1),
        (278, 4, 1, 8),
        (279, 4, 1, 64),
    ];
    let mut bytes = b"II*\0\x08\0\0\0".to_vec();
    bytes.extend((entries.len() as u16).to_le_bytes());
    for (tag, kind, count, value) in entries {
        bytes.extend(tag.to_le_bytes().into_iter().chain(kind.to_le_bytes()));
        bytes.extend(count.to_le_bytes().into_iter().chain(value.to_le_bytes()));
    }
    bytes.extend([0; 4]);
    bytes.extend(text);
    bytes.extend(voxels);
    std::fs::write(fixture.path(name), bytes).unwrap();
}

#[test]
fn all_files_of_an_ome_tiff_set_are_recorded_and_a_changed_one_is_noticed() {
    let fixture = Fixture::new();
    let mut voxels = [0; 64];
    [18_usize, 19, 26, 27].into_iter().for_each(|at| voxels[at] = 200);
    ["a.ome.tif", "b.ome.tif"].into_iter().for_each(|name| write_slice_of_set(&fixture, name, &voxels));
    fixture.run(&["measure", "a.ome.tif", "--out", "t.csv"]).ok();
    fixture.run(&["segment", "a.ome.tif", "--out", "s.tif"]).ok();
    fixture.run(&["mesh", "a.ome.tif", "--out", "m.stl"]).ok();
    fixture.run(&["convert", "a.ome.tif", "c.npy"]).ok();
    fixture.run(&["convert", "a.ome.tif", "truth.tif"]).ok();
    fixture.run(&["evaluate", "--pred", "a.ome.tif", "--truth", "truth.tif", "--out", "e.json"]).ok();
    let differences = || {
        ["t.csv", "s.tif", "m.stl", "c.npy", "e.json"]
            .map(|result| fixture.run(&["provenance", result, "--json"]).json()["differences"].to_string())
    };
    assert_eq!(differences(), ["[]"; 5]);
    voxels[20] = 200;
    write_slice_of_set(&fixture, "b.ome.tif", &voxels);
    let changed = differences();
    assert!(changed.iter().all(|differences| differences.contains("b.ome.tif")), "{changed:#?}");
}

#[test]
fn a_rerun_reads_the_channel_that_input_chose() {
    let fixture = prepared();
    let values: Vec<u16> = (0..6 * 2 * 24 * 24u32).map(|i| (i * 7919 % 251 + i % 576) as u16).collect();
    fixture.write("two.tif", "ZCYX", &[6, 2, 24, 24], values);
    let predict =
        ["predict", "two.tif", "--model", "nuclei-dog", "--device", "cpu", "--diameter", "8", "--outputs", "maps"];
    fixture.run(&[&predict[..], &["--input", "stack=1", "--out", "o"]].concat()).ok();
    fixture.run(&[&predict[..], &["--channel", "1", "--out", "by_channel"]].concat()).ok();
    fixture.run(&[&predict[..], &["--channel", "0", "--out", "other"]].concat()).ok();
    let text = fixture.run(&["provenance", "o/two_provenance.json", "--rerun", "--out", "again"]).ok().stdout;
    assert!(text.contains("two_probability.tif: identical to the recorded result"), "{text}");
    let maps = |folder: &str| fixture.bytes(&format!("{folder}/two_probability.tif"));
    assert!(maps("again") == maps("o") && maps("o") == maps("by_channel"), "a rerun reads another channel");
    assert!(maps("other") != maps("o"), "both channels give the same maps");
}

#[test]
fn a_rerun_says_what_differs_from_the_record() {
    let fixture = prepared();
    fixture.run(&["convert", RAW, "c.npy"]).ok();
    fixture.write("other.tif", "ZYX", &[2, 8, 8], vec![1u16; 128]);
    std::fs::copy(fixture.path("other.tif"), fixture.path(RAW)).unwrap();
    let ran = fixture.run(&["provenance", "c.npy", "--rerun", "--out", "again/c.npy", "--json"]).json();
    assert!(ran["differences"][0].as_str().unwrap().contains(RAW), "{ran:#}");
    assert_eq!(ran["outputs"][0]["identical"], false);
    let text = fixture.run(&["provenance", "c.npy", "--rerun", "--out", "again/d.npy"]).ok();
    assert!(text.stderr.contains("restore it") && text.stdout.contains("different from"), "{}", text.stdout);
    // Another format has other bytes, whether or not the values differ.
    let text = fixture.run(&["provenance", "c.npy", "--rerun", "--out", "again/c.tif"]).ok().stdout;
    assert!(text.contains("c.tif: in another format than the recorded result"), "{text}");
    // An output that is not written again.
    let mut extended = record(&fixture, "c.npy");
    extended["outputs"].as_array_mut().unwrap().push(json!({"path": "c.csv", "bytes": 1, "sha256": ""}));
    std::fs::write(fixture.path("extended_provenance.json"), extended.to_string()).unwrap();
    let text = fixture.run(&["provenance", "extended_provenance.json", "--rerun", "--out", "again/f.npy"]).ok().stdout;
    assert!(text.contains("c.csv was not written again"), "{text}");
    // Another version of the program, and an input that is gone.
    let version = format!("cytoscope {}", env!("CARGO_PKG_VERSION"));
    let record = String::from_utf8(fixture.bytes("c.npy_provenance.json")).unwrap();
    std::fs::write(fixture.path("c.npy_provenance.json"), record.replace(&version, "cytoscope 0.0.1")).unwrap();
    std::fs::remove_file(fixture.path(RAW)).unwrap();
    let differences = fixture.run(&["provenance", "c.npy", "--json"]).json()["differences"].to_string();
    assert!(differences.contains("was made by cytoscope 0.0.1"), "{differences}");
    assert!(differences.contains("can no longer be read"), "{differences}");
    let raw = fixture.path(RAW);
    fixture.fails(3, &["provenance", "c.npy", "--rerun", "--out", "again/e.npy"], &[raw.to_str().unwrap()]);
    // A model that was changed.
    fixture.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    fixture.run(&["import", "m.onnx", "--out", "pkg"]).ok();
    fixture.run(&["export", "pkg", "--format", "safetensors", "--out", "w.st"]).ok();
    let text = String::from_utf8(fixture.bytes("pkg/rdf.yaml")).unwrap();
    std::fs::write(fixture.path("pkg/rdf.yaml"), text.replace("version: 0.1.0", "version: 0.2.0")).unwrap();
    let differences = fixture.run(&["provenance", "w.st", "--json"]).json()["differences"].to_string();
    assert!(differences.contains("is not the one that made the recorded result"), "{differences}");
}

#[test]
fn a_rerun_reads_inputs_that_were_moved_from_the_given_folder() {
    let fixture = prepared();
    fixture.run(&["convert", RAW, "c.npy"]).ok();
    fixture.run(&["predict", RAW, "--model", "nuclei-dog", "--device", "cpu", "--out", "o"]).ok();
    std::fs::rename(fixture.path("sim"), fixture.path("archive")).unwrap();
    for (result, out) in [("c.npy", "again/c.npy"), ("o/nuclei_1_raw_provenance.json", "again/o")] {
        let rerun = ["provenance", result, "--rerun", "--out", out];
        fixture.fails(3, &rerun, &[RAW, "no longer exists", "--inputs-in"]);
        fixture.fails(3, &[&rerun[..], &["--inputs-in", "again"]].concat(), &["again: no recorded input"]);
        let report = fixture.run(&[&rerun[..], &["--inputs-in", "archive", "--json"]].concat()).json();
        let outputs = report["outputs"].as_array().unwrap();
        assert_eq!(report["differences"], json!([]), "{report:#}");
        assert!(outputs.iter().all(|output| output["identical"] == true), "{report:#}");
    }
    let record = record(&fixture, "again/c.npy");
    assert_eq!(record["job"]["input"], fixture.path("archive/nuclei_1_raw.tif").to_str().unwrap());
}

#[test]
fn records_are_not_written_over_files_of_others_and_other_files_are_no_records() {
    let fixture = prepared();
    std::fs::write(fixture.path("c.npy_provenance.json"), "{\"made by\": \"another program\"}").unwrap();
    fixture.fails(2, &["convert", RAW, "c.npy"], &["c.npy_provenance.json", "--force"]);
    assert!(!fixture.path("c.npy").exists());
    assert_eq!(fixture.bytes("c.npy_provenance.json"), b"{\"made by\": \"another program\"}");
    fixture.run(&["convert", RAW, "c.npy", "--force"]).ok();
    assert_eq!(record(&fixture, "c.npy")["kind"], "convert");
    let plain = fixture.write("plain.tif", "ZYX", &[2, 8, 8], vec![1u16; 128]);
    fixture.fails(3, &["provenance", &plain], &[&plain, "no provenance record", "_provenance.json"]);
    fixture.fails(3, &["provenance", "nothere.json"], &["nothere.json"]);
    std::fs::write(fixture.path("settings.json"), "{\"kind\": \"nuclei\"}").unwrap();
    fixture.fails(3, &["provenance", "settings.json"], &["settings.json", "not a provenance record", "no outputs"]);
    fixture.fails(2, &["provenance", "c.npy", "--out", "d.npy"], &["--rerun"]);
    // Commands that only read write no record.
    let before = fixture.names("sim");
    fixture.run(&["info", RAW]).ok();
    fixture.run(&["evaluate", "--pred", LABELS, "--truth", LABELS]).ok();
    assert_eq!(fixture.names("sim"), before);
}

#[test]
fn the_record_of_an_ome_zarr_is_found_from_its_name() {
    let fixture = prepared();
    for (out, name) in [("o.zarr", "o_provenance.json"), ("z.ozx", "z_provenance.json")] {
        fixture.run(&["predict", RAW, "--model", "nuclei-dog", "--device", "cpu", "--out", out]).ok();
        let record: Value = serde_json::from_slice(&fixture.bytes(name)).unwrap();
        let shown = fixture.run(&["provenance", out, "--json"]).json();
        assert_eq!((&shown["record"], &shown["differences"]), (&record, &json!([])), "{out}");
        let again = format!("again/{out}");
        let report = fixture.run(&["provenance", out, "--rerun", "--out", &again, "--json"]).json();
        assert!(report["outputs"].as_array().unwrap().iter().all(|output| output["identical"] == true), "{report:#}");
        assert!(fixture.path(&again).exists());
    }
}
