//! `predict`: results, reports, resuming and rerunning.

use crate::common::{Fixture, missing, uniform};
use cytoscope_formats::{OpenOptions, open};
use cytoscope_graph::{ConvAttrs, Dim, ElementType, Graph, Op, Tensor};
use cytoscope_testkit::skip;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A voxel size at which the simulated nuclei have the size that the model was trained on.
const VOXEL: &str = "1.75,0.8,0.8";

#[test]
fn bundled_networks_run_without_fallbacks() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("14,80,96", 1);
    for model in ["nuclei-dog", "nuclei", "cells", "labelfree-nuclei"] {
        for precision in ["f32", "int8"] {
            if (model, precision) == ("nuclei-dog", "int8") {
                continue;
            }
            let arguments =
                ["predict", &raw, "--model", model, "--precision", precision, "--outputs", "maps", "--out", "o"];
            let report = fixture.run(&[&arguments[..], &["--voxel-size", VOXEL, "--json"]].concat()).json();
            let one = &report["inputs"][0];
            assert_eq!(one["fallbacks"], serde_json::json!([]), "{model} in {precision}: {one:#}");
        }
    }
}

#[test]
fn a_prediction_writes_what_it_reports() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("14,80,96", 1);
    let report =
        fixture.run(&["predict", &raw, "--model", "nuclei", "--out", "o", "--voxel-size", VOXEL, "--json"]).json();
    assert_eq!(report["failed"], serde_json::json!([]));
    let one = &report["inputs"][0];
    let promised = [
        "input",
        "outputs",
        "device",
        "precision",
        "plan",
        "seam_energy",
        "stages",
        "seconds",
        "actual_peak_bytes",
        "objects",
        "notes",
        "resumed",
        "shape_zyx",
    ];
    assert_eq!(missing(one, &promised), Vec::<&str>::new());
    assert_eq!(missing(&one["plan"], &["tile", "halo", "blend", "stated_peak_bytes"]), Vec::<&str>::new());
    assert_eq!(one["shape_zyx"], serde_json::json!([14, 80, 96]));
    assert_eq!(one["device"]["id"], "cpu");
    assert!(one["device"]["why"].as_str().unwrap().len() > 5);
    let stages: BTreeMap<&str, &Value> =
        one["stages"].as_array().unwrap().iter().map(|s| (s["stage"].as_str().unwrap(), s)).collect();
    for stage in ["read", "normalize", "upload", "compute", "blend", "objects", "write"] {
        let s = stages.get(stage).unwrap_or_else(|| panic!("no {stage} among {:?}", stages.keys()));
        assert!(s["seconds"].as_f64().unwrap() > 0.0, "{stage}");
    }
    // Every voxel is read at least once, and the map and labels are written.
    assert!(stages["read"]["bytes"].as_u64().unwrap() >= 14 * 80 * 96 * 2);
    assert!(stages["write"]["bytes"].as_u64().unwrap() >= 14 * 80 * 96 * (4 + 2));
    assert!(stages["compute"]["macs"].as_u64().unwrap() > 0);
    let (stated, actual) = (one["plan"]["stated_peak_bytes"].as_u64(), one["actual_peak_bytes"].as_u64());
    assert!(actual.unwrap() <= stated.unwrap(), "{actual:?} held, {stated:?} stated");

    let outputs: Vec<&str> = one["outputs"].as_array().unwrap().iter().map(|o| o.as_str().unwrap()).collect();
    assert_eq!(fixture.names("o").len(), outputs.len(), "no other file: {:?}", fixture.names("o"));
    assert!(outputs.iter().all(|o| fixture.path(o).is_file()), "{outputs:?}");
    // The map holds probabilities on the stack's grid.
    let map = fixture.image("o/nuclei_1_raw_probability.tif");
    assert_eq!((map.axes().to_string().as_str(), map.shape()), ("ZCYX", &[14, 2, 80, 96][..]));
    assert!(map.samples().to_f32().iter().all(|v| (0.0..=1.0).contains(v)));
    // Labels run from 1 to the number of objects, and the table has a row with the voxel count of each.
    let found = fixture.labels("o/nuclei_1_raw_labels.tif");
    let mut voxels: BTreeMap<u32, u64> = BTreeMap::new();
    found.iter().filter(|l| **l > 0).for_each(|l| *voxels.entry(*l).or_default() += 1);
    let objects = one["objects"][0].as_u64().unwrap();
    assert!(objects > 3, "only {objects} objects");
    assert_eq!(voxels.keys().copied().collect::<Vec<_>>(), (1..=objects as u32).collect::<Vec<_>>());
    let table = fixture.table("o/nuclei_1_raw_objects.csv");
    assert_eq!(table.len() as u64, objects + 1);
    let column =
        |name: &str| table[0].iter().position(|c| c == name).unwrap_or_else(|| panic!("{name}: {:?}", table[0]));
    for row in &table[1..] {
        let label: u32 = row[column("label")].parse().unwrap();
        let n: u64 = row[column("voxels")].parse().unwrap();
        assert_eq!(voxels[&label], n, "label {label}");
        let volume: f64 = row[column("volume_um3")].parse().unwrap();
        assert!((volume / (n as f64 * 1.75 * 0.8 * 0.8) - 1.0).abs() < 1e-4, "label {label}: {volume} µm³");
    }
    let meta = open(&fixture.path("o/nuclei_1_raw_labels.tif"), &OpenOptions::default()).unwrap();
    let v = meta.meta().voxel_size_um;
    assert!((v.z.unwrap() - 1.75).abs() < 1e-6 && (v.x.unwrap() - 0.8).abs() < 1e-6, "{v:?}");
    assert!(fixture.leftovers().is_empty());
}

#[test]
fn table_means_match_the_stack() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,64,64", 4);
    fixture.run(&["predict", &raw, "--out", "o", "--voxel-size", VOXEL, "--outputs", "labels,table"]).ok();
    let light = fixture.image(&raw).samples().to_f32();
    let found = fixture.labels("o/nuclei_4_raw_labels.tif");
    let table = fixture.table("o/nuclei_4_raw_objects.csv");
    let mean = table[0].iter().position(|c| c.starts_with("mean_")).unwrap();
    assert!(table.len() > 2);
    for row in &table[1..] {
        let label: u32 = row[0].parse().unwrap();
        let inside: Vec<f64> =
            found.iter().zip(&light).filter(|(l, _)| **l == label).map(|(_, v)| f64::from(*v)).collect();
        let expected = inside.iter().sum::<f64>() / inside.len() as f64;
        let written: f64 = row[mean].parse().unwrap();
        assert!((written / expected - 1.0).abs() < 1e-4, "label {label}: {written} for {expected}");
    }
}

#[test]
fn rerun_of_a_provenance_record_gives_the_same_bytes() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("10,64,64", 2);
    let first = fixture
        .run(&[
            "predict",
            &raw,
            "--model",
            "nuclei-dog",
            "--out",
            "o",
            "--voxel-size",
            VOXEL,
            "--diameter",
            "19",
            "--tile",
            "10,60,60",
            "--json",
        ])
        .json();
    let record: Value = serde_json::from_slice(&fixture.bytes("o/nuclei_2_raw_provenance.json")).unwrap();
    assert_eq!(
        missing(&record, &["program", "job", "model", "input", "outputs", "device", "plan"]),
        Vec::<&str>::new()
    );
    assert_eq!(record["objects"], first["inputs"][0]["objects"]);
    // From another folder: the record does not depend on the working directory.
    std::fs::create_dir(fixture.path("elsewhere")).unwrap();
    let out = fixture
        .command(&["predict", "--rerun", "../o/nuclei_2_raw_provenance.json", "--out", "again"])
        .current_dir(fixture.path("elsewhere"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    for part in ["probability.tif", "labels.tif", "objects.csv"] {
        let name = format!("nuclei_2_raw_{part}");
        let same = fixture.bytes(&format!("o/{name}")) == fixture.bytes(&format!("elsewhere/again/{name}"));
        assert!(same, "{name} differs after the rerun");
    }
    // The rerun requests the device, precision and tiles of the recorded run.
    let again: Value = serde_json::from_slice(&fixture.bytes("elsewhere/again/nuclei_2_raw_provenance.json")).unwrap();
    assert_eq!(again["job"]["device"], record["device"]["id"]);
    assert_eq!(again["job"]["precision"], record["precision"]);
    assert_eq!(again["plan"]["tile"], record["plan"]["tile"]);
    assert_eq!(again["job"]["tiles"]["blend"], record["plan"]["blend"]);
    fixture.fails(3, &["predict", "--rerun", &raw, "--out", "x"], &[&raw, "_provenance.json"]);
    fixture.fails(3, &["predict", "--rerun", "nothere.json", "--out", "x"], &["nothere.json"]);
}

#[test]
fn resume_keeps_only_results_of_the_same_job() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let second = fixture.nuclei("8,48,48", 2);
    let common = ["--out", "o", "--voxel-size", VOXEL, "--json", "--resume"];
    let run = |inputs: &[&str], more: &[&str]| -> Vec<bool> {
        let arguments = [&["predict"], inputs, &common, more].concat();
        let report = fixture.run(&arguments).json();
        let input_summary = |input: &Value| {
            let resumed = input["resumed"].as_bool().unwrap();
            assert_eq!(input["plan"].is_object(), !resumed, "what was not computed has no plan: {input}");
            resumed
        };
        report["inputs"].as_array().unwrap().iter().map(input_summary).collect()
    };
    assert_eq!(run(&[&raw], &[]), [false]);
    let record: Value = serde_json::from_slice(&fixture.bytes("o/nuclei_1_raw_provenance.json")).unwrap();
    let skipped = fixture.run(&[&["predict", &raw][..], &common].concat()).json();
    assert_eq!(skipped["inputs"][0]["resumed"], true);
    let never = fixture.run(&[&["predict", &raw][..], &common, &["--keep-slices", "never"]].concat()).ok();
    assert!(never.stderr.contains("--keep-slices never has no effect"), "{}", never.stderr);
    assert_eq!(skipped["inputs"][0]["objects"], record["objects"], "the counts are those of the earlier run");
    assert!(record["objects"][0].is_u64(), "{record:#}");
    let before = fixture.bytes("o/nuclei_1_raw_labels.tif");
    let map = || std::fs::File::options().write(true).open(fixture.path("o/nuclei_1_raw_probability.tif")).unwrap();
    map().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(run(&[&raw, &second], &[]), [true, false]);
    assert_eq!(map().metadata().unwrap().modified().unwrap(), std::time::UNIX_EPOCH, "kept means not written");
    assert_eq!(run(&[&raw], &["--blend", "auto"]), [true], "the name of the default");
    // Another job, a changed stack, or a missing result is computed again.
    assert_eq!(run(&[&raw], &["--blend", "gaussian"]), [false]);
    assert_eq!(run(&[&raw], &[]), [false]);
    assert_eq!(fixture.bytes("o/nuclei_1_raw_labels.tif"), before);
    std::fs::remove_file(fixture.path("o/nuclei_1_raw_labels.tif")).unwrap();
    assert_eq!(run(&[&raw], &[]), [false]);
    let shape = fixture.image(&raw);
    let dim = shape.samples().to_f32().iter().map(|v| (*v / 2.0) as u16).collect::<Vec<_>>();
    fixture.write(&raw, "ZYX", &[8, 48, 48], dim);
    std::fs::File::open(fixture.path(&raw)).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(run(&[&raw], &[]), [false], "the stack has changed");
    assert_eq!(run(&[&raw], &[]), [true]);
    // Another stack with the same size and time, as archives and some cameras write them.
    let dimmer = shape.samples().to_f32().iter().map(|v| (*v / 3.0) as u16).collect::<Vec<_>>();
    fixture.write(&raw, "ZYX", &[8, 48, 48], dimmer);
    std::fs::File::open(fixture.path(&raw)).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(run(&[&raw], &[]), [false], "the stack was replaced");
}

#[test]
fn a_trace_shows_where_the_time_went() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.run(&["predict", &raw, "--out", "o", "--voxel-size", VOXEL, "--trace", "trace.json"]).ok();
    let trace: Value = serde_json::from_slice(&fixture.bytes("trace.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans: Vec<&Value> = events.iter().filter(|e| e["ph"] == "X").collect();
    let kinds: BTreeSet<&str> = spans.iter().map(|e| e["cat"].as_str().unwrap()).collect();
    for kind in ["read", "normalize", "compute", "blend", "objects", "write"] {
        assert!(kinds.contains(kind), "no {kind} span among {kinds:?}");
    }
    for span in &spans {
        assert!(span["ts"].as_f64().unwrap() >= 0.0 && span["dur"].as_f64().unwrap() >= 0.0, "{span}");
        assert!(span["name"].is_string() && span["pid"].is_number() && span["tid"].is_number(), "{span}");
    }
    // Operator spans lie inside the spans of their tiles; those of the diameter's estimate are a separate stage.
    let inside = |op: &Value| {
        let (start, end) = (op["ts"].as_f64().unwrap(), op["ts"].as_f64().unwrap() + op["dur"].as_f64().unwrap());
        spans.iter().filter(|s| s["cat"] == "compute" || s["cat"] == "estimate").any(|s| {
            let from = s["ts"].as_f64().unwrap();
            start >= from - 1.0 && end <= from + s["dur"].as_f64().unwrap() + 1.0
        })
    };
    let ops: Vec<&&Value> = spans.iter().filter(|e| e["cat"] == "op").collect();
    assert!(!ops.is_empty() && ops.iter().all(|op| inside(op)));
}

#[test]
fn chosen_outputs_channels_and_times_are_written() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let stack = fixture.image(&raw).samples().to_f32();
    fixture
        .run(&["predict", &raw, "--out", "o", "--voxel-size", VOXEL, "--diameter", "15", "--outputs", "labels"])
        .ok();
    assert_eq!(fixture.names("o"), ["nuclei_1_raw_labels.tif", "nuclei_1_raw_provenance.json"]);
    fixture.run(&["predict", &raw, "--out", "t", "--voxel-size", VOXEL, "--outputs", "table,raw"]).ok();
    assert_eq!(
        fixture.names("t"),
        ["nuclei_1_raw_objects.csv", "nuclei_1_raw_probability.tif", "nuclei_1_raw_provenance.json"]
    );
    // Channel 1 and time point 1 hold the nuclei; everything else is constant.
    let plane = 48 * 48;
    let bits: Vec<u16> = stack.iter().map(|v| *v as u16).collect();
    let two: Vec<u16> = bits.chunks(plane).flat_map(|z| [vec![7u16; plane], z.to_vec()].concat()).collect();
    fixture.write("channels.tif", "ZCYX", &[8, 2, 48, 48], two);
    fixture.write("times.tif", "TZYX", &[2, 8, 48, 48], [vec![7u16; bits.len()], bits].concat());
    let expected = fixture.labels("o/nuclei_1_raw_labels.tif");
    assert!(expected.iter().any(|l| *l > 0));
    let base = ["--out", "c", "--voxel-size", VOXEL, "--diameter", "15", "--json"];
    let report = fixture.run(&[&["predict", "channels.tif", "--channel", "1"], &base[..]].concat()).json();
    assert_eq!(fixture.labels("c/channels_labels.tif"), expected);
    assert!(!report["inputs"][0]["notes"].to_string().contains("--channel"), "a given channel needs no note");
    fixture.run(&[&["predict", "channels.tif", "--channels", "1"], &base[..], &["--force"][..]].concat()).ok();
    assert_eq!(fixture.labels("c/channels_labels.tif"), expected);
    fixture.run(&[&["predict", "channels.tif", "--channel", "channel1"], &base[..], &["--force"][..]].concat()).ok();
    assert_eq!(fixture.labels("c/channels_labels.tif"), expected, "a channel by its name");
    fixture.fails(
        3,
        &["predict", "channels.tif", "--out", "w", "--channel", "DAPI"],
        &["no channel \"DAPI\"", "no names"],
    );
    let wrong = ["predict", "channels.tif", "--out", "w", "--channels"];
    fixture.fails(
        3,
        &[&wrong[..], &["membrane"][..]].concat(),
        &["channels.tif", "no channel \"membrane\"", "no names"],
    );
    fixture.fails(
        3,
        &[&wrong[..], &["0,1"][..]].concat(),
        &["channels.tif", "requires 1 channel, not 2", "--channels"],
    );
    fixture.fails(2, &[&wrong[..], &["0", "--channel", "1"][..]].concat(), &["--channel"]);
    let report = fixture.run(&[&["predict", "channels.tif"], &base[..]].concat()).json();
    assert!(report["inputs"][0]["notes"].to_string().contains("--channel"), "the choice of a channel must be noted");
    assert!(fixture.labels("c/channels_labels.tif").iter().all(|l| *l == 0));
    fixture.run(&[&["predict", "times.tif", "--time", "1"], &base[..]].concat()).ok();
    assert_eq!(fixture.labels("c/times_labels.tif"), expected);
    let report = fixture.run(&[&["predict", "times.tif"], &base[..]].concat()).json();
    assert_eq!(report["inputs"][0]["times"], 2);
    let both = fixture.labels("c/times_labels.tif");
    assert_eq!(fixture.image("c/times_labels.tif").shape(), [2, 8, 48, 48]);
    assert!(both[..expected.len()].iter().all(|l| *l == 0) && both[expected.len()..] == expected[..]);
    let table = fixture.table("c/times_objects.csv");
    assert_eq!(table[0][0], "time");
    assert!(table.len() > 1 && table[1..].iter().all(|row| row[0] == "1"), "{table:?}");
}

#[test]
fn batch_continues_after_a_bad_file() {
    let fixture = Fixture::new();
    let first = fixture.nuclei("6,40,40", 1);
    let second = fixture.nuclei("6,40,40", 2);
    std::fs::write(fixture.path("bad.tif"), "this is a letter, not a picture").unwrap();
    let arguments = ["predict", &first, "bad.tif", &second, "--out", "o", "--json"];
    let ran = fixture.fails(3, &arguments, &["not an image of a known format", "1 of 3 inputs failed (bad.tif)"]);
    assert!(ran.stderr.contains("predict again with --resume, which skips"), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["inputs"].as_array().unwrap().len(), 2);
    assert_eq!(report["failed"][0]["input"], "bad.tif");
    assert_eq!(report["failed"][0]["exit_code"], 3);
    for seed in [1, 2] {
        assert!(fixture.path(&format!("o/nuclei_{seed}_raw_labels.tif")).is_file());
    }
    assert!(fixture.names("o").iter().all(|n| !n.contains("bad")), "{:?}", fixture.names("o"));
    // Errors without a file are reported with the input that they occurred for.
    let small = ["predict", &first, &second, "--out", "o2", "--memory-budget", "1M"];
    let ran =
        fixture.fails(4, &small, &[&format!("failed: {first}: "), &format!("failed: {second}: "), "--memory-budget"]);
    assert_eq!(ran.stderr.matches("failed: ").count(), 2, "each is printed once: {}", ran.stderr);
}

#[test]
fn folder_input_expands_to_its_stacks() {
    let fixture = Fixture::new();
    fixture.nuclei("6,40,40", 1);
    fixture.nuclei("6,40,40", 2);
    let inputs = |out: &str| -> Vec<String> {
        let report = fixture.run(&["predict", "sim", "--out", out, "--json"]).json();
        report["inputs"].as_array().unwrap().iter().map(|i| i["input"].as_str().unwrap().to_owned()).collect()
    };
    // Ground truth beside a stack is not an input, nor are results of the last run in the same folder.
    assert_eq!(inputs("o"), ["sim/nuclei_1_raw.tif", "sim/nuclei_2_raw.tif"]);
    assert_eq!(inputs("sim"), ["sim/nuclei_1_raw.tif", "sim/nuclei_2_raw.tif"]);
    assert_eq!(inputs("sim"), ["sim/nuclei_1_raw.tif", "sim/nuclei_2_raw.tif"]);
    // A label image given by name is predicted.
    fixture.run(&["predict", "sim/nuclei_1_labels.tif", "--out", "o"]).ok();
    assert!(fixture.names("o").contains(&"nuclei_1_labels_probability.tif".to_owned()));
    // Pictures beside stacks are not inputs, and a note says so; previews and hidden files never are.
    let noted = || {
        let ran = fixture.run(&["predict", "sim", "--model", "nuclei-dog", "--out", "o"]).ok();
        format!("{}{}", ran.stdout, ran.stderr)
    };
    let add = |name: &str| std::fs::write(fixture.path(&format!("sim/{name}")), "a picture").unwrap();
    add(".hidden.png");
    add("nuclei_1_raw_preview.png");
    assert!(!noted().contains("PNG or JPEG"));
    add("a.png");
    add("b.JPG");
    let text = noted();
    assert!(text.contains("2 PNG or JPEG files in the folder were not read") && text.contains("give them"), "{text}");
}

/// Converts the results of a stack into the form of earlier versions: maps are named `raw`, also in the recorded job.
fn as_earlier_versions_wrote(fixture: &Fixture, folder: &str, stem: &str) {
    let [new, old] = ["probability", "raw"].map(|part| format!("{stem}_{part}.tif"));
    std::fs::rename(fixture.path(&format!("{folder}/{new}")), fixture.path(&format!("{folder}/{old}"))).unwrap();
    let path = fixture.path(&format!("{folder}/{stem}_provenance.json"));
    let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let maps =
        record["outputs"].as_array_mut().unwrap().iter_mut().find(|o| o["path"].to_string().contains(&new)).unwrap();
    maps["path"] = maps["path"].as_str().unwrap().replace(&new, &old).into();
    record["job"]["outputs"] = serde_json::json!(["raw", "labels", "table"]);
    std::fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
}

#[test]
fn records_of_earlier_versions_can_be_rerun_and_keep_their_results() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 1);
    fixture.run(&["predict", &raw, "--model", "nuclei-dog", "--out", "o", "--outputs", "maps,labels,table"]).ok();
    let files = ["probability.tif", "labels.tif", "objects.csv"];
    let new = files.map(|f| fixture.bytes(&format!("o/nuclei_1_raw_{f}")));
    as_earlier_versions_wrote(&fixture, "o", "nuclei_1_raw");
    let record = "o/nuclei_1_raw_provenance.json";
    fixture.run(&["predict", "--rerun", record, "--out", "again"]).ok();
    assert!(files.map(|f| fixture.bytes(&format!("again/nuclei_1_raw_{f}"))) == new, "the results differ");
    assert!(!fixture.path("again/nuclei_1_raw_raw.tif").exists());
    // In the same folder, the earlier map stays and is still known as a result.
    fixture.run(&["predict", "--rerun", record, "--out", "o"]).ok();
    assert_eq!(fixture.bytes("o/nuclei_1_raw_raw.tif"), new[0]);
    assert_eq!(fixture.bytes("o/nuclei_1_raw_probability.tif"), new[0]);
    let record: Value = serde_json::from_slice(&fixture.bytes(record)).unwrap();
    assert!(record["replaced"][0]["path"].as_str().unwrap().ends_with("nuclei_1_raw_raw.tif"), "{record:#}");
    assert_eq!(record["job"]["outputs"], serde_json::json!(["maps", "labels", "table"]));
    // Both maps can be segmented.
    for (map, out) in [("raw", "a.tif"), ("probability", "b.tif")] {
        fixture.run(&["segment", &format!("o/nuclei_1_raw_{map}.tif"), "--out", out]).ok();
    }
    assert_eq!(fixture.bytes("a.tif"), fixture.bytes("b.tif"));
}

#[test]
fn maps_under_old_and_new_names_are_distinguished_from_stacks() {
    let fixture = Fixture::new();
    let first = fixture.nuclei("6,40,40", 1);
    let second = fixture.nuclei("6,40,40", 2);
    std::fs::create_dir(fixture.path("day")).unwrap();
    // Two stacks, the name of one looking like a map of the other, and a stack named like a map.
    for (from, to) in [(&first, "a.tif"), (&second, "a_raw.tif"), (&first, "b.tif"), (&second, "c_probability.tif")] {
        std::fs::copy(fixture.path(from), fixture.path("day").join(to)).unwrap();
    }
    let predict =
        |name: &str| fixture.run(&["predict", &format!("day/{name}"), "--model", "nuclei-dog", "--out", "day"]).ok();
    let _ = ["a.tif", "b.tif"].map(predict);
    as_earlier_versions_wrote(&fixture, "day", "b");
    let report = fixture.run(&["predict", "day", "--model", "nuclei-dog", "--out", "o", "--json"]).json();
    let inputs: Vec<&str> = report["inputs"].as_array().unwrap().iter().map(|i| i["input"].as_str().unwrap()).collect();
    assert_eq!(inputs, ["day/a.tif", "day/a_raw.tif", "day/b.tif", "day/c_probability.tif"]);
}

#[test]
fn a_result_never_overwrites_an_input() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 1);
    std::fs::create_dir(fixture.path("mine")).unwrap();
    std::fs::copy(fixture.path(&raw), fixture.path("mine/a.tif")).unwrap();
    std::fs::copy(fixture.path(&raw), fixture.path("mine/a_probability.tif")).unwrap();
    let before = fixture.bytes("mine/a_probability.tif");
    fixture.fails(
        2,
        &["predict", "mine/a.tif", "mine/a_probability.tif", "--out", "mine"],
        &["a_probability.tif", "is also an input"],
    );
    assert_eq!(fixture.bytes("mine/a_probability.tif"), before);
    assert_eq!(fixture.names("mine"), ["a.tif", "a_probability.tif"]);
}

#[test]
fn a_preview_is_a_picture_of_the_middle_slice() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("9,60,70", 2);
    fixture.run(&["predict", &raw, "--out", "o", "--voxel-size", VOXEL, "--outputs", "labels,preview"]).ok();
    assert_eq!(
        fixture.names("o"),
        ["nuclei_2_raw_labels.tif", "nuclei_2_raw_preview.png", "nuclei_2_raw_provenance.json"]
    );
    let picture = image::load_from_memory(&fixture.bytes("o/nuclei_2_raw_preview.png")).unwrap().to_rgb8();
    assert_eq!(picture.dimensions(), (70, 60));
    // Colored at object borders, gray elsewhere.
    let slice: Vec<u32> = fixture.labels("o/nuclei_2_raw_labels.tif")[4 * 60 * 70..5 * 60 * 70].to_vec();
    let at = |y: usize, x: usize| slice[y * 70 + x];
    let mut outlines = 0;
    for y in 1..59 {
        for x in 1..69 {
            let around = [at(y - 1, x), at(y + 1, x), at(y, x - 1), at(y, x + 1)];
            let edge = at(y, x) > 0 && around.iter().any(|l| *l != at(y, x));
            let [r, g, b] = picture.get_pixel(x as u32, y as u32).0;
            assert_eq!(r != g || g != b, edge, "row {y}, column {x}: {r},{g},{b}");
            outlines += usize::from(edge);
        }
    }
    assert!(outlines > 50, "{outlines} pixels of outlines");
}

/// Checks that a prediction by `nuclei-dog`, whose output has two channels, moves little more than its input, output and
/// weights between the host and the GPU.
fn assert_moves_each_value_once(report: &Value) {
    let count = |name: &str| report["traffic"][name].as_u64().unwrap();
    let voxels: u64 = report["grid_zyx"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nuclei-dog/model.onnx");
    let needed = (1 + 2) * 4 * voxels + std::fs::metadata(package).unwrap().len();
    let moved = count("uploaded_bytes") + count("downloaded_bytes");
    assert!(moved >= (1 + 2) * 4 * voxels, "{moved} bytes: {report:#}");
    assert!(moved as f64 <= 1.1 * needed as f64, "{moved} bytes instead of {needed}: {report:#}");
}

#[test]
fn a_gpu_finds_the_same_objects_and_auto_measures_all_devices() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("9,60,70", 3);
    let with_gpu = |arguments: &[&str]| {
        let out = fixture.command(arguments).env("CYTOSCOPE_SOFTWARE_GPU", "1").output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice::<Value>(&out.stdout).unwrap()
    };
    let devices = with_gpu(&["devices", "--json"]);
    let usable: Vec<&str> =
        devices.as_array().unwrap().iter().filter(|d| d["usable"] == true).map(|d| d["id"].as_str().unwrap()).collect();
    let Some(gpu) = usable.iter().find(|id| **id != "cpu") else {
        return skip(format!("no GPU, not even in software (install mesa-vulkan-drivers): {devices}"));
    };
    let predict = |device: &str, out: &str| {
        let model = ["--model", "nuclei-dog", "--voxel-size", VOXEL];
        with_gpu(&[&["predict", &raw, "--out", out, "--device", device, "--json"], &model[..]].concat())
    };
    let on_gpu = predict(gpu, "gpu");
    assert_eq!(on_gpu["inputs"][0]["device"]["id"], *gpu);
    assert_moves_each_value_once(&on_gpu["inputs"][0]);
    predict("cpu", "cpu");
    assert_eq!(fixture.labels("gpu/nuclei_3_raw_labels.tif"), fixture.labels("cpu/nuclei_3_raw_labels.tif"));
    let (a, b) = (fixture.image("gpu/nuclei_3_raw_probability.tif"), fixture.image("cpu/nuclei_3_raw_probability.tif"));
    let far = cytoscope_testkit::largest_difference(&a.samples().to_f32(), &b.samples().to_f32());
    assert!(far < 1e-4, "the maps differ by {far}");
    // `auto` takes the fastest device by its own measurements, and reports all of them.
    let auto = predict("auto", "auto");
    let chosen = &auto["inputs"][0]["device"];
    let timed: BTreeMap<&str, f64> = chosen["measurements"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|m| Some((m["device"].as_str()?, m["best_ms"].as_f64()?)))
        .collect();
    let fastest = timed.iter().min_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    assert!(timed.len() >= 2 && chosen["id"] == **fastest, "{chosen}");
    let why = chosen["why"].as_str().unwrap().to_lowercase();
    assert!(timed.keys().take(2).all(|id| why.contains(id)) || timed.len() > 2, "{chosen}");
    assert_eq!(fixture.labels("auto/nuclei_3_raw_labels.tif"), fixture.labels("cpu/nuclei_3_raw_labels.tif"));
    // The times are kept until they are measured again on request.
    let cached = |more: &[&str], out: &str| {
        let first = ["predict", &raw, "--model", "nuclei-dog", "--voxel-size", VOXEL, "--out", out, "--json"];
        let report = with_gpu(&[&first[..], more].concat());
        let measured = report["inputs"][0]["device"]["measurements"].as_array().unwrap().clone();
        let mut timed = measured.iter().filter(|m| m["best_ms"].is_number()).peekable();
        assert!(timed.peek().is_some(), "{report}");
        timed.map(|m| m["cached"] == true).collect::<Vec<_>>()
    };
    assert!(cached(&[], "again").iter().all(|cached| *cached));
    assert!(cached(&["--remeasure"], "measured").iter().all(|cached| !cached));
}

#[test]
fn decoding_is_a_stage_of_its_own() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("9,60,70", 4);
    fixture.run(&["convert", &raw, "packed.ome.tif", "--compression", "deflate"]).ok();
    let stage = |input: &str, out: &str| {
        let report =
            fixture.run(&["predict", input, "--out", out, "--voxel-size", VOXEL, "--outputs", "maps", "--json"]).json();
        let stages = report["inputs"][0]["stages"].as_array().unwrap().clone();
        stages.into_iter().find(|s| s["stage"] == "decode")
    };
    assert_eq!(stage(&raw, "plain"), None);
    let decode = stage("packed.ome.tif", "packed").unwrap();
    assert!(
        decode["bytes"].as_u64().unwrap() >= 9 * 60 * 70 * 2 && decode["seconds"].as_f64().unwrap() > 0.0,
        "{decode}"
    );
    assert_eq!(fixture.image("plain/nuclei_4_raw_probability.tif"), fixture.image("packed/packed_probability.tif"));
}

#[test]
fn a_note_says_that_a_device_without_tf32_computes_in_f32() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,40,40", 1);
    let predict = |precision: &str, out: &str| {
        let chosen = ["predict", &raw, "--model", "nuclei-dog", "--device", "cpu", "--precision", precision];
        let rest = ["--diameter", "9", "--outputs", "maps", "--out", out];
        fixture.run(&[&chosen[..], &rest].concat()).ok().stderr
    };
    let noted = predict("tf32", "a");
    assert!(noted.contains("note: cpu does not compute in tf32: f32 is used"), "{noted}");
    assert!(!predict("f32", "b").contains("does not compute"));
}

#[test]
fn an_output_of_several_is_chosen_and_replayed() {
    let fixture = Fixture::new();
    // The outputs are twice and minus three times the input.
    let mut graph = Graph::new("two outputs");
    let free = |name: &str| Dim::Free(name.to_owned());
    let shape = vec![Dim::Fixed(1), Dim::Fixed(1), free("z"), free("y"), free("x")];
    let x = graph.add_input("x", ElementType::F32, shape);
    for (name, factor) in [("mask", 2.0f32), ("boundary", -3.0)] {
        let weight = Tensor::new([1, 1, 1, 1, 1], vec![factor]).unwrap();
        let weight = graph.add_initializer(format!("{name} weight"), weight);
        let output = graph.push(name, Op::Conv(ConvAttrs::same(&[1, 1, 1])), &[Some(x), Some(weight)]);
        graph.outputs.push(output);
    }
    cytoscope_onnx::save(&graph, &fixture.path("two.onnx")).unwrap();
    fixture.write("a.tif", "ZYX", &[4, 12, 14], uniform(5, 4 * 12 * 14));
    let model = ["predict", "a.tif", "--model", "two.onnx", "--outputs", "maps"];
    let first = fixture.run(&[&model[..], &["--out", "first", "--json"]].concat()).json();
    let notes = first["inputs"][0]["notes"].to_string();
    assert!(notes.contains("mask is predicted, boundary is not written"), "{notes}");
    fixture.run(&[&model[..], &["--out", "second", "--output-tensor", "boundary"]].concat()).ok();
    let maps = ["first", "second"].map(|out| fixture.image(&format!("{out}/a_probability.tif")).samples().to_f32());
    assert!(maps[0].iter().any(|v| v.abs() > 0.5), "an empty map agrees with everything");
    assert!(maps[0].iter().zip(&maps[1]).all(|(mask, boundary)| (mask * -1.5 - boundary).abs() < 1e-4));
    fixture.run(&["predict", "--rerun", "second/a_provenance.json", "--out", "again"]).ok();
    assert!(fixture.bytes("again/a_probability.tif") == fixture.bytes("second/a_probability.tif"));
    let unknown = [&model[..], &["--out", "third", "--output-tensor", "edge"]].concat();
    fixture.fails(2, &unknown, &["no output \"edge\"", "mask, boundary"]);
}
