//! `--preprocess` of `predict`, `convert` and `diameter`.

use crate::common::Fixture;
use cytoscope_formats::{OpenOptions, open};
use serde_json::{Value, json};

/// Steps that reach along all axes, need statistics of the whole stack, and change its shape.
const STEPS: &str = "gaussian:sigma=0.8um,tophat:radius=12um,stretch:low=1:high=99.9,crop:z=1-11:y=4-76";

/// The default results of a segmentation, and the preprocessed stack.
const ALL: &str = "maps,labels,table,preprocessed";

#[test]
fn predicting_with_steps_equals_predicting_the_converted_stack() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,80,72", 1);
    fixture.run(&["convert", &raw, "pre.ome.tif", "--preprocess", STEPS]).ok();
    let common = ["--model", "nuclei", "--diameter", "12", "--json"];
    let direct =
        [&["predict", raw.as_str(), "--out", "direct", "--preprocess", STEPS, "--outputs", ALL][..], &common[..]]
            .concat();
    let report = fixture.run(&direct).json();
    fixture.run(&[&["predict", "pre.ome.tif", "--out", "converted"][..], &common[..]].concat()).ok();
    for part in ["probability", "labels"] {
        let found = fixture.image(&format!("direct/nuclei_1_raw_{part}.tif"));
        assert!(found == fixture.image(&format!("converted/pre_{part}.tif")), "{part} differs");
    }
    let saved = fixture.image("direct/nuclei_1_raw_preprocessed.ome.tif");
    assert!(saved == fixture.image("pre.ome.tif"), "the saved stack is another one");
    assert_eq!(fixture.image("direct/nuclei_1_raw_labels.tif").shape(), [10, 72, 72]);
    // The table has the intensities of the preprocessed stack, so both are equal.
    assert_eq!(fixture.table("direct/nuclei_1_raw_objects.csv"), fixture.table("converted/pre_objects.csv"));
    assert_eq!(report["inputs"][0]["shape_zyx"], json!([10, 72, 72]));
    let notes = report["inputs"][0]["notes"].to_string();
    assert!(notes.contains("preprocessed: gaussian:sigma=0.8um"), "{notes}");
}

#[test]
fn the_estimated_diameter_is_that_of_the_converted_stack() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("16,80,72", 1);
    let steps = "gaussian:sigma=0.8um,crop:z=1-15:y=4-76";
    fixture.run(&["convert", &raw, "pre.ome.tif", "--preprocess", steps]).ok();
    let estimate = |stack: &str, more: &[&str]| {
        let command = ["diameter", stack, "--model", "nuclei-dog", "--device", "cpu", "--json"];
        fixture.run(&[&command[..], more].concat()).json()["inputs"][0]["object_diameter"].clone()
    };
    let direct = estimate(&raw, &["--preprocess", steps]);
    assert!(direct["diameter"].as_f64().is_some_and(|diameter| diameter > 0.0), "{direct:#}");
    assert_eq!(direct, estimate("pre.ome.tif", &[]));
    fixture.fails(2, &["diameter", &raw, "--preprocess", "smooth"], &["unknown preprocessing step", "gaussian"]);
}

#[test]
fn provenance_records_the_steps_and_a_rerun_and_resume_use_them() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 2);
    // Given one by one, tiles in place of a pass.
    let arguments = [
        "predict",
        &raw,
        "--model",
        "nuclei-dog",
        "--blend",
        "crop",
        "--diameter",
        "19",
        "--preprocess",
        "median:radius=1",
        "--preprocess",
        "crop:x=0-40",
        "--out",
        "o",
        "--resume",
        "--json",
    ];
    let first = fixture.run(&arguments).json();
    assert_eq!(first["inputs"][0]["resumed"], json!(false));
    let record: Value = serde_json::from_slice(&fixture.bytes("o/nuclei_2_raw_provenance.json")).unwrap();
    assert_eq!(record["preprocessed"]["steps"], json!(["median:radius=1", "crop:x=0-40"]));
    assert_eq!(record["preprocessed"]["input_shape_zyx"], json!([8, 48, 48]));
    assert_eq!(record["preprocessed"]["shape_zyx"], json!([8, 48, 40]));
    assert_eq!(record["job"]["preprocess"][1], json!({"step": "crop", "x": [0, 40]}));
    fixture.run(&["predict", "--rerun", "o/nuclei_2_raw_provenance.json", "--out", "again"]).ok();
    for part in ["probability.tif", "labels.tif", "objects.csv"] {
        let name = format!("nuclei_2_raw_{part}");
        assert!(fixture.bytes(&format!("o/{name}")) == fixture.bytes(&format!("again/{name}")), "{name}");
    }
    let skipped = fixture.run(&arguments).json();
    assert_eq!(skipped["inputs"][0]["resumed"], json!(true));
    assert_eq!((&skipped["inputs"][0]["shape_zyx"], &skipped["inputs"][0]["times"]), (&json!([8, 48, 40]), &json!(1)));
    let other: Vec<&str> =
        arguments.iter().map(|a| if *a == "median:radius=1" { "median:radius=2" } else { *a }).collect();
    assert_eq!(fixture.run(&other).json()["inputs"][0]["resumed"], json!(false), "other steps, another result");
}

#[test]
fn a_crop_keeps_samples_and_other_steps_write_floats_of_every_channel() {
    let fixture = Fixture::new();
    let values: Vec<u16> = (0..3 * 2 * 10 * 12).map(|i: u32| (i * 37 % 1009) as u16).collect();
    fixture.write("a.tif", "ZCYX", &[3, 2, 10, 12], values.clone());
    let at = |z: usize, c: usize, y: usize, x: usize| f32::from(values[((z * 2 + c) * 10 + y) * 12 + x]);
    fixture.run(&["convert", "a.tif", "crop.tif", "--preprocess", "crop:z=1-3:y=2-6,crop:x=3-9"]).ok();
    let crop = fixture.image("crop.tif");
    assert_eq!((crop.shape(), crop.dtype().name()), (&[2, 2, 4, 6][..], "uint16"));
    assert_eq!(crop.samples().to_f32()[((2 + 1) * 4 + 2) * 6 + 5], at(2, 1, 4, 8));
    // Each channel is stretched to its own range.
    let stretch = ["convert", "a.tif", "s.tif", "--preprocess", "stretch:low=0:high=100"];
    fixture.run(&stretch).ok();
    let stretched = fixture.image("s.tif");
    assert_eq!((stretched.shape(), stretched.dtype().name()), (&[3, 2, 10, 12][..], "float32"));
    let found = stretched.samples().to_f32();
    for channel in 0..2 {
        let positions = || (0..3).flat_map(|z| (0..10).flat_map(move |y| (0..12).map(move |x| (z, y, x))));
        let all: Vec<f32> = positions().map(|(z, y, x)| at(z, channel, y, x)).collect();
        let low = all.iter().copied().fold(f32::INFINITY, f32::min);
        let high = all.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for ((z, y, x), value) in positions().zip(&all) {
            let expected = (value - low) / (high - low);
            let got = found[((z * 2 + channel) * 10 + y) * 12 + x];
            assert!((got - expected).abs() < 1e-6, "{z} {channel} {y} {x}: {got} instead of {expected}");
        }
    }
}

#[test]
fn a_stack_of_floats_gets_the_display_range_of_its_new_values() {
    let fixture = Fixture::new();
    let values: Vec<f32> = (0..2 * 4 * 5u16).map(|i| f32::from(i) * 100.0).collect();
    fixture.write("a.tif", "ZYX", &[2, 4, 5], values);
    let shown = |name: &str| open(&fixture.path(name), &OpenOptions::default()).unwrap().meta().display_range;
    assert_eq!(shown("a.tif"), Some((0.0, 3900.0)));
    // A crop changes no value, so that the range of the file still fits.
    for (step, range) in [("stretch:low=0:high=100", (0.0, 1.0)), ("crop:z=0-1", (0.0, 3900.0))] {
        for output in ["out.tif", "out.zarr"] {
            fixture.run(&["convert", "a.tif", output, "--preprocess", step, "--force"]).ok();
            assert_eq!(shown(output), Some(range), "{step} {output}");
        }
    }
}

#[test]
fn dark_objects_on_a_bright_background_are_noted_and_found_after_inverting() {
    let fixture = Fixture::new();
    let raw = fixture.integers(&fixture.nuclei("12,96,96", 5));
    let (lowest, highest) = (*raw.iter().min().unwrap(), *raw.iter().max().unwrap());
    // The inverted stack has the values of the bright one, as floats.
    fixture.write("bright.tif", "ZYX", &[12, 96, 96], raw.iter().map(|v| v - lowest).collect::<Vec<u16>>());
    fixture.write("dark.tif", "ZYX", &[12, 96, 96], raw.iter().map(|v| highest - v).collect::<Vec<u16>>());
    let predict = |stack: &str, out: &str, more: &[&str]| {
        let common = ["predict", stack, "--model", "nuclei-dog", "--diameter", "19", "--device", "cpu", "--out", out];
        fixture.run(&[&common[..], more].concat()).ok().stdout
    };
    let noted = "may be dark on a bright background";
    let warned = predict("dark.tif", "dark", &[]);
    assert!(warned.contains(noted) && warned.contains("invert in --preprocess"), "{warned}");
    assert!(!predict("bright.tif", "bright", &[]).contains(noted));
    assert!(!predict("dark.tif", "inverted", &["--preprocess", "invert"]).contains(noted));
    let labels = fixture.labels("bright/bright_labels.tif");
    assert!(labels.iter().any(|label| *label > 5), "too few objects to compare");
    assert!(fixture.labels("inverted/dark_labels.tif") == labels, "the labels of the inverted stack differ");
}

#[test]
fn a_frame_of_zeros_is_noted_with_the_crop_that_removes_it() {
    let fixture = Fixture::new();
    let raw = fixture.integers(&fixture.nuclei("12,96,96", 5));
    let mut framed = vec![0u16; 16 * 160 * 160];
    for (row, values) in raw.chunks(96).enumerate() {
        let at = ((row / 96 + 1) * 160 + row % 96 + 32) * 160 + 40;
        framed[at..at + 96].copy_from_slice(values);
    }
    fixture.write("whole.tif", "ZYX", &[12, 96, 96], raw);
    fixture.write("framed.tif", "ZYX", &[16, 160, 160], framed);
    let predict = |stack: &str, out: &str, more: &[&str]| {
        let common = ["predict", stack, "--model", "nuclei-dog", "--diameter", "19", "--device", "cpu", "--out", out];
        fixture.run(&[&common[..], more].concat()).ok().stdout
    };
    let crop = "crop:z=1-13:y=32-128:x=40-136";
    let noted = predict("framed.tif", "framed", &[]);
    assert!(noted.contains("zeros frame") && noted.contains(&format!("(--preprocess {crop})")), "{noted}");
    assert!(!predict("whole.tif", "whole", &[]).contains("zeros frame"));
    assert!(!predict("framed.tif", "cropped", &["--preprocess", crop]).contains("zeros frame"));
    assert_eq!(fixture.image("cropped/framed_labels.tif"), fixture.image("whole/whole_labels.tif"));
}

/// The commands that measure the objects of a map and of its labels in a stack.
fn measuring<'a>(map: &'a str, labels: &'a str, stack: &'a str) -> [Vec<&'a str>; 2] {
    let segment = ["segment", map, "--model", "nuclei-dog", "--out", "l.tif", "--table", "t.csv"];
    let measure = ["measure", labels, "--out", "m.csv"];
    let intensities = ["--intensities", stack, "--force"];
    [[&segment[..], &intensities].concat(), [&measure[..], &intensities].concat()]
}

#[test]
fn objects_of_a_moved_stack_do_not_belong_to_the_original_one() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let steps = [("crop:y=4-40", true), ("affine:matrix=1/0/0/0/0/1/0/3/0/0/1/5", true), ("gaussian:sigma=0.5", false)];
    for (step, moves) in steps {
        let predict = ["predict", &raw, "--model", "nuclei-dog", "--device", "cpu", "--out", "o", "--preprocess", step];
        let outputs = ["--outputs", "maps,labels,table,preprocessed", "--force"];
        fixture.run(&[&predict[..], &outputs].concat()).ok();
        let (map, labels) = ("o/nuclei_1_raw_probability.tif", "o/nuclei_1_raw_labels.tif");
        let expected = fixture.table("o/nuclei_1_raw_objects.csv");
        assert!(expected.len() > 1, "{step}: there are objects");
        for command in measuring(map, labels, "o/nuclei_1_raw_preprocessed.ome.tif") {
            fixture.run(&command).ok();
        }
        assert!([fixture.table("t.csv"), fixture.table("m.csv")].iter().all(|table| *table == expected), "{step}");
        for command in measuring(map, labels, &raw) {
            match moves {
                true => fixture.fails(3, &command, &[raw.as_str(), step, "--outputs preprocessed"]),
                false => fixture.run(&command).ok(),
            };
        }
    }
    // Labels inside the OME-Zarr of a prediction.
    let predict = ["predict", &raw, "--model", "nuclei-dog", "--device", "cpu", "--out", "z.zarr"];
    fixture.run(&[&predict[..], &["--preprocess", steps[1].0]].concat()).ok();
    let measure = ["measure", "z.zarr/labels/objects", "--intensities", &raw, "--out", "z.csv"];
    let words = [raw.as_str(), steps[1].0, "--outputs preprocessed"];
    fixture.fails(3, &measure, &words);
    // Nor are they stored with the original stack.
    let convert = ["convert", &raw, "c.zarr", "--labels", "z.zarr"];
    fixture.fails(3, &convert, &words);
    fixture.run(&[&convert[..], &["--preprocess", steps[1].0]].concat()).ok();
    // A stack in OME-Zarr, which is a folder.
    fixture.run(&["convert", &raw, "raw.zarr"]).ok();
    let predict = ["predict", "raw.zarr", "--model", "nuclei-dog", "--device", "cpu", "--out", "y.zarr"];
    fixture.run(&[&predict[..], &["--preprocess", steps[1].0]].concat()).ok();
    let measure = ["measure", "y.zarr", "--intensities", "raw.zarr", "--out", "y.csv"];
    fixture.fails(3, &measure, &["raw.zarr", steps[1].0, "--outputs preprocessed"]);
}

#[test]
fn wrong_steps_are_refused_with_their_parameters() {
    let fixture = Fixture::new();
    fixture.write("a.npy", "ZYX", &[4, 32, 32], vec![1u16; 4 * 32 * 32]);
    let convert = |steps: &str, code: i32, words: &[&str]| {
        fixture.fails(code, &["convert", "a.npy", "b.npy", "--axes", "ZYX", "--preprocess", steps], words);
    };
    convert("blur:sigma=1", 2, &["blur", "gaussian, median, tophat"]);
    convert("gaussian:radius=1", 2, &["gaussian", "sigma"]);
    convert("clahe:tiles=8:clip=7", 2, &["clahe", "clip is 7"]);
    // Without a voxel size, lengths in µm have no meaning.
    convert("tophat:radius=5um", 3, &["a.npy", "tophat", "voxel size along Y is unknown", "--voxel-size"]);
    convert("crop:z=0-9", 3, &["a.npy", "crop", "0-4"]);
    let nothing = ["predict", "a.npy", "--axes", "ZYX", "--out", "o", "--outputs", "preprocessed"];
    fixture.fails(2, &nothing, &["--preprocess"]);
    let predict = ["predict", "a.npy", "--axes", "ZYX", "--out", "o", "--preprocess", "crop:z=0-9"];
    fixture.fails(3, &predict, &["a.npy", "crop", "0-4"]);
}

#[test]
fn labels_are_not_merged_by_rounding_and_rounded_intensities_are_noted() {
    let fixture = Fixture::new();
    let values: Vec<u32> = (0..400).map(|i| 4_000_000_000 + i % 7).collect();
    let shape = [4, 10, 10];
    let labels = fixture.write("cells_labels.npy", "ZYX", &shape, values.clone());
    let counts = fixture.write("counts.npy", "ZYX", &shape, values.clone());
    let convert = |input: &str, out: &str, steps: &str| {
        fixture.run(&["convert", input, out, "--axes", "ZYX", "--preprocess", steps])
    };
    let refused = convert(&labels, "merged.npy", "median:radius=1");
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("label numbers") && !fixture.path("merged.npy").exists(), "{}", refused.stderr);
    // Crops keep all values.
    convert(&labels, "crop.npy", "crop:x=0-5").ok();
    let largest = fixture.image("crop.npy").samples().to_f64().into_iter().fold(0.0, f64::max);
    assert_eq!(largest, 4_000_000_006.0);
    let noted = convert(&counts, "smooth.npy", "median:radius=1").ok().stderr;
    assert_eq!(noted.matches("are rounded").count(), 1, "once: {noted}");
    // So does a prediction.
    fixture.write("counts.tif", "ZYX", &shape, values);
    fixture.write("large.npy", "ZYX", &shape, (0..400).map(|i| 1e39 * f64::from(1 + i % 7)).collect::<Vec<f64>>());
    for (input, note) in [("counts.tif", "are rounded"), ("large.npy", "are treated as infinite")] {
        let words = ["predict", input, "--voxel-size", "1,1,1", "--diameter", "5", "--out", "o", "--json"];
        let notes = fixture.run(&words).json()["inputs"][0]["notes"].to_string();
        assert!(notes.contains(note) && !notes.contains("the stack contains values that are NaN"), "{notes}");
    }
}
