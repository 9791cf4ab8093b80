//! `evaluate`, compared with independent implementations of the formulas.

use crate::common::{Fixture, pearson, python, uniform};
use cytoscope_formats::{Channel, Container, WriteSpec, write_array};
use cytoscope_volume::{Array, VoxelSize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const SHAPE: [usize; 3] = [12, 40, 48];

/// Labels of boxes on a grid. `wobble` from 0 to 1 shifts, crops and drops them at random, for IoUs of all sizes.
fn boxes(seed: u64, wobble: f32) -> Vec<u16> {
    let mut image = vec![0u16; SHAPE.iter().product()];
    let r = uniform(seed, 1000);
    let mut label = 0;
    for gy in 0..4 {
        for gx in 0..5 {
            let pick = |k: usize| r[(gy * 5 + gx) * 8 + k];
            if pick(0) < 0.12 * wobble {
                continue;
            }
            label += 1;
            let (dy, dx) = ((pick(1) * 4.0 * wobble) as usize, (pick(2) * 4.0 * wobble) as usize);
            let (h, w) = (8 - (pick(3) * 3.0 * wobble) as usize, 8 - (pick(4) * 3.0 * wobble) as usize);
            for z in 1 + (pick(5) * 3.0 * wobble) as usize..11 {
                for y in gy * 10 + dy..(gy * 10 + dy + h).min(SHAPE[1]) {
                    for x in gx * 9 + dx..(gx * 9 + dx + w).min(SHAPE[2]) {
                        image[(z * SHAPE[1] + y) * SHAPE[2] + x] = label;
                    }
                }
            }
        }
    }
    image
}

/// IoU of every overlapping pair, and the numbers of true and predicted objects.
fn ious(truth: &[u16], prediction: &[u16]) -> (BTreeMap<(u16, u16), f64>, usize, usize) {
    let count = |image: &[u16]| {
        let mut sizes: BTreeMap<u16, f64> = BTreeMap::new();
        image.iter().filter(|l| **l > 0).for_each(|l| *sizes.entry(*l).or_default() += 1.0);
        sizes
    };
    let (t, p) = (count(truth), count(prediction));
    let mut both: BTreeMap<(u16, u16), f64> = BTreeMap::new();
    for pair in truth.iter().zip(prediction).filter(|(a, b)| **a > 0 && **b > 0) {
        *both.entry((*pair.0, *pair.1)).or_default() += 1.0;
    }
    (both.into_iter().map(|((a, b), n)| ((a, b), n / (t[&a] + p[&b] - n))).collect(), t.len(), p.len())
}

fn close(actual: &Value, expected: f64, what: &str) {
    let actual = actual.as_f64().unwrap_or(f64::NAN);
    assert!((actual - expected).abs() < 1e-9, "{what}: {actual}, expected {expected}");
}

#[test]
fn numbered_tiff_files_in_folders_are_images_of_their_own() {
    let fixture = Fixture::new();
    for folder in ["p", "t"] {
        std::fs::create_dir(fixture.path(folder)).unwrap();
        for n in 1..4u16 {
            let missed = folder == "p" && n == 3;
            let values: Vec<u16> = (0..30u16).map(|i| u16::from(i % 6 < 3 && !missed)).collect();
            fixture.write(&format!("{folder}/img_{n:03}.tif"), "YX", &[5, 6], values);
        }
    }
    let report = fixture.run(&["evaluate", "--pred", "p", "--truth", "t", "--json"]).json();
    assert_eq!(report["pairs"].as_array().map(Vec::len), Some(3), "{report}");
    let [found, missed] = ["tp", "fn"].map(|key| report["instances"][0][key].as_u64());
    assert_eq!((found, missed), (Some(2), Some(1)), "{report}");
    // A prediction of one image is scored against the image that is given, not against a stack of all.
    fixture.run(&["convert", "p/img_002.tif", "one_labels.tif", "--axes", "YX"]).ok();
    let report = fixture.run(&["evaluate", "--pred", "one_labels.tif", "--truth", "t/img_003.tif", "--json"]).json();
    assert_eq!(report["instances"][0]["tp"].as_u64(), Some(1), "{report}");
}

#[test]
fn a_model_has_the_scores_of_its_predictions() {
    let fixture = Fixture::new();
    for seed in ["3", "4"] {
        let shape = ["--shape", "12,64,64", "--seed", seed];
        fixture.run(&[&["simulate", "--kind", "nuclei", "--out", "data"][..], &shape].concat()).ok();
    }
    let on_cpu = ["--model", "nuclei-dog", "--device", "cpu"];
    fixture.run(&[&["predict", "data", "--out", "o", "--outputs", "labels"][..], &on_cpu].concat()).ok();
    let files = fixture.run(&["evaluate", "--pred", "o", "--truth", "data", "--json"]).json();
    let evaluate_model = [&["evaluate", "--data", "data", "--json", "--out", "s.json"][..], &on_cpu].concat();
    let model = fixture.run(&evaluate_model).json();
    assert!(files["instances"][0]["n_true"].as_u64() > Some(0), "{files}");
    for key in ["instances", "errors", "regression"] {
        assert_eq!(model[key], files[key], "{key}");
    }
    assert!(model["pairs"][0]["prediction"].as_str().is_some_and(|path| path.ends_with("_raw.tif")), "{model}");
    assert_eq!((&model["device"]["id"], &model["precision"]), (&"cpu".into(), &"f32".into()), "{model}");
    assert!(files.get("device").is_none() && files.get("precision").is_none(), "{files}");
    // The report has notes on the images, whose paths are those of the rerun, too.
    assert!(model["notes"].to_string().contains("_raw.tif: "), "{model}");
    let again = fixture.run(&["provenance", "s.json", "--rerun", "--out", "t.json", "--json"]).json();
    assert_eq!(again["outputs"][0]["identical"], true, "{again}");
    assert!(fixture.bytes("s.json") == fixture.bytes("t.json"));
    fixture.fails(2, &["evaluate", "--model", "nuclei-dog", "--data", "data", "--pred", "o"], &["--pred"]);
    fixture.fails(2, &["evaluate", "--model", "nuclei-dog"], &["--data"]);
    // A report in the package would change it.
    fixture.run(&["export", "nuclei-dog", "--format", "bioimageio", "--out", "pkg"]).ok();
    let inside = ["evaluate", "--model", "./pkg", "--data", "data", "--out", "pkg/s.json"];
    fixture.fails(2, &inside, &["pkg/s.json is inside the package", "choose another path"]);
    let single = ["evaluate", "--model", "nuclei-dog", "--data", "data/nuclei_3_raw.tif"];
    let refused = fixture.fails(3, &single, &["nuclei_3_raw.tif", "ground truth", "--pred and --truth"]);
    assert!(!refused.stderr.contains("training"), "{}", refused.stderr);
    fixture.fails(2, &["evaluate", "--pred", "o"], &["--truth"]);
}

#[test]
fn a_model_is_scored_on_the_chosen_channel() {
    let fixture = Fixture::new();
    fixture.run(&["simulate", "--kind", "nuclei", "--out", "sim", "--shape", "12,64,64", "--seed", "3"]).ok();
    let image = fixture.image("sim/nuclei_3_raw.tif").samples().to_f32();
    let both = [uniform(1, image.len()), image.to_vec()].concat();
    for folder in ["one", "two"] {
        std::fs::create_dir(fixture.path(folder)).unwrap();
        let labels = format!("{folder}/nuclei_3_labels.tif");
        std::fs::copy(fixture.path("sim/nuclei_3_labels.tif"), fixture.path(&labels)).unwrap();
    }
    fixture.write("one/nuclei_3_raw.tif", "ZYX", &[12, 64, 64], image.to_vec());
    fixture.write("two/nuclei_3_raw.ome.tif", "CZYX", &[2, 12, 64, 64], both);
    let score = |data: &str, options: &[&str]| {
        let command = ["evaluate", "--model", "nuclei-dog", "--device", "cpu", "--json", "--data", data];
        fixture.run(&[&command[..], options].concat()).json()
    };
    let alone = score("one", &[]);
    assert!(alone["instances"][0]["tp"].as_u64() > Some(0), "{alone}");
    let chosen = score("two", &["--channel", "1"]);
    assert_eq!(chosen["instances"], alone["instances"]);
    for options in [["--channels", "1"], ["--input", "stack=1"], ["--input", "stack=one/nuclei_3_raw.tif"]] {
        assert_eq!(score("two", &options)["instances"], alone["instances"], "{options:?}");
    }
    let refused = |options: &[&str], expected: &[&str]| {
        fixture.fails(2, &[&["evaluate", "--model", "nuclei-dog", "--data", "two"][..], options].concat(), expected);
    };
    refused(&["--input", "actin=1"], &["no input \"actin\"", "stack"]);
    refused(&["--channel", "1", "--channels", "0"], &["--channels"]);
    for option in [["--channels", "1"], ["--input", "stack=1"]] {
        let command = ["evaluate", "--pred", "one", "--truth", "one"];
        fixture.fails(2, &[&command[..], &option].concat(), &[option[0], "cannot be used with"]);
    }
    let first = score("two", &[]);
    assert_ne!(first["instances"], alone["instances"]);
    assert!(first["notes"].to_string().contains("choose another with --channel"), "{first}");
}

#[test]
fn object_scores_match_their_formulas() {
    let fixture = Fixture::new();
    let (truth, prediction) = (boxes(1, 0.0), boxes(9, 1.0));
    fixture.write("truth.tif", "ZYX", &SHAPE, truth.clone());
    fixture.write("pred.tif", "ZYX", &SHAPE, prediction.clone());
    let report = fixture.run(&["evaluate", "--pred", "pred.tif", "--truth", "truth.tif", "--json"]).json();
    let scores = report["instances"].as_array().unwrap();
    let (pairs, n_true, n_pred) = ious(&truth, &prediction);
    assert_eq!(scores.iter().map(|s| s["threshold"].as_f64().unwrap()).collect::<Vec<_>>(), [0.5, 0.7, 0.75, 0.9]);
    let mut counts = Vec::new();
    for s in scores {
        // Above 0.5 an object can match only one other, so counting pairs is enough.
        let t = s["threshold"].as_f64().unwrap();
        assert!(pairs.values().all(|iou| (iou - 0.5).abs() > 1e-9), "the test must not sit on the edge");
        let matched: Vec<f64> = pairs.values().copied().filter(|iou| *iou >= t).collect();
        let (tp, fp, fnn) = (matched.len() as f64, (n_pred - matched.len()) as f64, (n_true - matched.len()) as f64);
        let sum: f64 = matched.iter().sum();
        close(&s["tp"], tp, "tp");
        close(&s["fp"], fp, "fp");
        close(&s["fn"], fnn, "fn");
        close(&s["precision"], tp / n_pred as f64, "precision");
        close(&s["recall"], tp / n_true as f64, "recall");
        close(&s["f1"], 2.0 * tp / (2.0 * tp + fp + fnn), "f1");
        close(&s["accuracy"], tp / (tp + fp + fnn), "average precision");
        close(&s["panoptic_quality"], sum / (tp + 0.5 * fp + 0.5 * fnn), "panoptic quality");
        close(&s["mean_matched_score"], if tp > 0.0 { sum / tp } else { 0.0 }, "mean matched IoU");
        counts.push(matched.len());
    }
    assert!(counts[0] > counts[3] && counts[0] < n_true, "thresholds give the same counts: {counts:?}");
    let script = "
import sys, json, numpy as np, tifffile
from scipy.optimize import linear_sum_assignment
t, p = tifffile.imread(sys.argv[1]).ravel(), tifffile.imread(sys.argv[2]).ravel()
overlap = np.zeros((t.max() + 1, p.max() + 1), np.uint64)
np.add.at(overlap, (t, p), 1)
n_t, n_p = overlap.sum(1, keepdims=True), overlap.sum(0, keepdims=True)
iou = (overlap / np.maximum(n_t + n_p - overlap, 1))[1:, 1:]
out = []
for thr in (0.5, 0.7, 0.75, 0.9):
    n = min(iou.shape)
    a, b = linear_sum_assignment(-(iou >= thr).astype(float) - iou / (2 * n))
    ok = iou[a, b] >= thr
    tp = int(ok.sum()); fp = iou.shape[1] - tp; fn = iou.shape[0] - tp
    s = float(iou[a, b][ok].sum())
    out.append([tp, fp, fn, s / (tp + fp / 2 + fn / 2), tp / (tp + fp + fn)])
print(json.dumps(out))
";
    let Some(printed) =
        python("numpy, tifffile, scipy", script, &[&fixture.path("truth.tif"), &fixture.path("pred.tif")])
    else {
        return;
    };
    let theirs: Vec<Vec<f64>> = serde_json::from_str(&printed).unwrap();
    for (s, expected) in scores.iter().zip(theirs) {
        for (key, w) in ["tp", "fp", "fn", "panoptic_quality", "accuracy"].iter().zip(expected) {
            close(&s[*key], w, key);
        }
    }
}

#[test]
fn extremes_score_as_expected() {
    let fixture = Fixture::new();
    fixture.write("t.tif", "ZYX", &SHAPE, boxes(1, 0.0));
    fixture.write("none.tif", "ZYX", &SHAPE, vec![0u16; SHAPE.iter().product()]);
    let f1 = |pred: &str, truth: &str| -> Vec<f64> {
        let report = fixture.run(&["evaluate", "--pred", pred, "--truth", truth, "--json"]).json();
        report["instances"].as_array().unwrap().iter().map(|s| s["f1"].as_f64().unwrap()).collect()
    };
    assert_eq!(f1("t.tif", "t.tif"), [1.0; 4]);
    assert_eq!(f1("none.tif", "t.tif"), [0.0; 4]);
    assert_eq!(f1("t.tif", "none.tif"), [0.0; 4]);
    // Without true objects, all scores are 0, and a note says so.
    for (pred, truth, is_noted) in
        [("none.tif", "none.tif", true), ("t.tif", "none.tif", true), ("none.tif", "t.tif", false)]
    {
        let stderr = fixture.run(&["evaluate", "--pred", pred, "--truth", truth]).ok().stderr;
        assert_eq!(stderr.contains("the ground truth contains no objects"), is_noted, "{pred}: {stderr}");
    }
    // Label numbers do not matter.
    let renamed: Vec<u16> = boxes(1, 0.0).iter().map(|l| if *l == 0 { 0 } else { 60_000 - 7 * l }).collect();
    fixture.write("renamed.tif", "ZYX", &SHAPE, renamed);
    assert_eq!(f1("renamed.tif", "t.tif"), [1.0; 4]);
}

#[test]
fn objects_are_told_apart_whatever_their_labels_and_other_values_are_refused() {
    let fixture = Fixture::new();
    let true_objects = |name: &str| {
        let report = fixture.run(&["evaluate", "--pred", name, "--truth", name, "--json"]).json();
        (report["instances"][0]["n_true"].as_u64().unwrap(), report["instances"][0]["tp"].as_u64().unwrap())
    };
    // Labels of trackers are large and may differ between time points in any bit.
    let tracked: Vec<u32> = [[5u32; 16], [5 ^ (1 << 22); 16], [2 << 22; 16]].concat();
    fixture.write("tracked.tif", "TZYX", &[3, 1, 4, 4], tracked);
    assert_eq!(true_objects("tracked.tif"), (3, 3));
    fixture.write("long.tif", "TZYX", &[1025, 1, 2, 2], vec![1u16; 4100]);
    assert_eq!(true_objects("long.tif"), (1025, 1025));
    let wide: Vec<u64> = [[(1u64 << 33) + 1; 16], [(1 << 33) + 2; 16]].concat();
    fixture.write("wide.npy", "ZYX", &[2, 4, 4], wide);
    assert_eq!(true_objects("wide.npy"), (2, 2));
    fixture.write("negative.npy", "ZYX", &[2, 4, 4], vec![-3i32; 32]);
    fixture.fails(3, &["evaluate", "--pred", "wide.npy", "--truth", "negative.npy"], &["negative.npy", "-3"]);
    fixture.write("halves_labels.npy", "ZYX", &[2, 4, 4], vec![1.5f32; 32]);
    fixture.fails(3, &["evaluate", "--pred", "wide.npy", "--truth", "halves_labels.npy"], &["halves_labels", "1.5"]);
    // A second channel is not compared, and a note says so.
    fixture.write("channels.ome.tif", "CZYX", &[2, 2, 4, 4], vec![1u16; 64]);
    let ran = fixture.run(&["evaluate", "--pred", "channels.ome.tif", "--truth", "channels.ome.tif"]).ok();
    assert!(ran.stderr.contains("only channel 0") && ran.stderr.contains("of its 2 channels"), "{}", ran.stderr);
}

#[test]
fn a_file_that_is_compared_with_itself_is_warned_about() {
    let fixture = Fixture::new();
    fixture.write("channels.ome.tif", "CZYX", &[2, 2, 4, 4], vec![1u16; 64]);
    fixture.write("same.ome.tif", "CZYX", &[2, 2, 4, 4], vec![1u16; 64]);
    let is_warned = |truth: &str, options: &[&str]| {
        let command = [&["evaluate", "--pred", "channels.ome.tif", "--truth", truth][..], options].concat();
        fixture.run(&command).ok().stderr.contains("channels.ome.tif is compared with itself")
    };
    assert!(is_warned("channels.ome.tif", &[]));
    assert!(is_warned("./channels.ome.tif", &["--pred-channel", "1", "--truth-channel", "1"]));
    assert!(!is_warned("channels.ome.tif", &["--pred-channel", "0", "--truth-channel", "1"]));
    assert!(!is_warned("same.ome.tif", &[]));
}

#[test]
fn a_label_that_fills_most_of_the_ground_truth_is_doubted_unless_it_is_ignored() {
    let fixture = Fixture::new();
    let labels = boxes(1, 0.0);
    // All slices but four are not annotated.
    let plane = SHAPE[1] * SHAPE[2];
    let truth: Vec<u16> =
        labels.iter().enumerate().map(|(i, label)| if i / plane < 8 { 9_000 } else { *label }).collect();
    fixture.write("pred.tif", "ZYX", &SHAPE, labels);
    fixture.write("part.tif", "ZYX", &SHAPE, truth);
    let warned = |truth: &str, more: &[&str]| {
        let stderr =
            fixture.run(&[&["evaluate", "--pred", "pred.tif", "--truth", truth][..], more].concat()).ok().stderr;
        stderr.contains("part.tif: the object with the label 9000 fills 67 % of it")
            && stderr.contains("--ignore-label 9000")
    };
    assert!(warned("part.tif", &[]));
    assert!(!warned("part.tif", &["--ignore-label", "9000"]));
    assert!(!warned("pred.tif", &[]));
}

#[test]
fn labels_that_are_stored_as_floats_are_scored_as_objects() {
    let fixture = Fixture::new();
    let floats = |values: Vec<u16>| values.into_iter().map(f32::from).collect::<Vec<f32>>();
    fixture.write("t_labels.tif", "ZYX", &SHAPE, boxes(1, 0.0));
    fixture.write("float_labels.tif", "ZYX", &SHAPE, floats(boxes(1, 0.0)));
    fixture.write("t.tif", "ZYX", &SHAPE, boxes(1, 0.0));
    fixture.write("p.tif", "ZYX", &SHAPE, boxes(5, 1.0));
    fixture.write("p32.tif", "ZYX", &SHAPE, floats(boxes(5, 1.0)));
    let halves: Vec<f32> = boxes(5, 1.0).into_iter().map(|label| f32::from(label) / 2.0).collect();
    fixture.write("halves.tif", "ZYX", &SHAPE, halves);
    let report =
        |pred: &str, truth: &str| fixture.run(&["evaluate", "--pred", pred, "--truth", truth, "--json"]).json();
    let expected = report("p.tif", "t_labels.tif");
    assert!(expected["instances"][0]["n_true"].as_u64() > Some(0), "{expected:#}");
    for truth in ["t_labels.tif", "float_labels.tif"] {
        let found = report("p32.tif", truth);
        assert_eq!(found["instances"], expected["instances"], "{truth}");
        let notes = found["notes"].to_string();
        assert!(notes.contains("p32.tif: its samples are floats") && !notes.contains("by intensity"), "{notes}");
    }
    // Probabilities, or a ground truth that may be a stain, are compared by intensity.
    for (pred, truth) in [("halves.tif", "t_labels.tif"), ("halves.tif", "float_labels.tif"), ("p32.tif", "t.tif")] {
        let found = report(pred, truth);
        assert!(found["regression"].is_object() && found["instances"] == Value::Array(Vec::new()), "{pred}: {found:#}");
    }
}

/// Writes named channels of 4 × 10 × 12 voxels as OME-TIFF.
fn write_channels(fixture: &Fixture, name: &str, channels: &[(&str, &[f32])]) {
    let values: Vec<f32> = channels.iter().flat_map(|(_, values)| values.iter().copied()).collect();
    let array = Array::new("CZYX".parse().unwrap(), vec![channels.len(), 4, 10, 12], values).unwrap();
    let mut spec = WriteSpec::of(&array, Container::OmeTiff);
    spec.channels = channels.iter().map(|(name, _)| Channel { name: (*name).to_owned(), color_rgb: None }).collect();
    write_array(&fixture.path(name), &array, &spec).unwrap();
}

#[test]
fn stains_are_scored_by_name_or_as_chosen() {
    let fixture = Fixture::new();
    let n = 4 * 10 * 12;
    let (dna, actin, light) = (uniform(1, n), uniform(2, n), uniform(3, n));
    let noisy: Vec<f32> = actin.iter().zip(&light).map(|(a, l)| a + 0.5 * l).collect();
    write_channels(&fixture, "p.ome.tif", &[("dna", &dna), ("actin", &noisy)]);
    write_channels(&fixture, "t.ome.tif", &[("Actin", &actin), ("light", &light), ("DNA", &dna)]);
    let command = ["evaluate", "--pred", "p.ome.tif", "--truth", "t.ome.tif"];
    let report = fixture.run(&[&command[..], &["--json"]].concat()).json();
    let names: Vec<&str> = report["channels"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["dna", "actin"]);
    let expected = [1.0, pearson(&noisy, &actin)];
    for (channel, expected) in expected.into_iter().enumerate() {
        close(&report["channels"][channel]["regression"]["pearson"], expected, names[channel]);
        close(&report["pairs"][0]["channels"][channel]["regression"]["pearson"], expected, names[channel]);
    }
    close(&report["regression"]["pearson"], (expected[0] + expected[1]) / 2.0, "the mean");
    let notes = report["notes"].to_string();
    assert!(notes.contains("t.ome.tif: only channels 0 (Actin), 2 (DNA) of its 3 channels"), "{notes}");
    let printed = fixture.run(&command).ok();
    assert!(printed.stdout.contains("dna: Pearson 1.0000"), "{}", printed.stdout);
    assert!(printed.stderr.contains("only channels 0 (Actin), 2 (DNA)"), "{}", printed.stderr);
    let chosen = ["--pred-channel", "actin", "--truth-channel", "1", "--out", "s.json", "--json"];
    let one = fixture.run(&[&command[..], &chosen].concat()).json();
    close(&one["regression"]["pearson"], pearson(&noisy, &light), "the chosen channels");
    assert!(one.get("channels").is_none() && one.get("notes").is_none(), "{one}");
    // The record replays the choice.
    fixture.run(&["provenance", "s.json", "--rerun", "--out", "again.json"]).ok();
    let again: Value = serde_json::from_slice(&fixture.bytes("again.json")).unwrap();
    assert_eq!(again["regression"], one["regression"]);
    fixture.fails(3, &[&command[..], &["--pred-channel", "tubulin"]].concat(), &["p.ome.tif", "tubulin", "1 (actin)"]);
}

#[test]
fn a_map_in_place_of_labels_is_noted() {
    let fixture = Fixture::new();
    let labels: Vec<u16> = (0..1024).map(|i| u16::from(i % 16 < 8)).collect();
    let map: Vec<f32> = labels.iter().map(|label| 0.8 * f32::from(*label) + 0.1).collect();
    fixture.write("p_probability.tif", "ZYX", &[4, 16, 16], map);
    for name in ["p_labels.tif", "t_labels.tif"] {
        fixture.write(name, "ZYX", &[4, 16, 16], labels.clone());
    }
    let notes = |prediction: &str| {
        let command = ["evaluate", "--pred", prediction, "--truth", "t_labels.tif"];
        fixture.run(&command).ok().stderr
    };
    let map_notes = notes("p_probability.tif");
    assert!(map_notes.contains("p_probability.tif") && map_notes.contains("give predicted labels"), "{map_notes}");
    assert!(!notes("p_labels.tif").contains("give predicted labels"));
    // Labels are known by their values if their name does not say so; a stain of integers is none.
    let numbered = |i: u16| if i % 96 < 48 { 1 + i / 96 } else { 0 };
    fixture.write("objects.tif", "ZYX", &[1, 64, 96], (0..6144).map(numbered).collect::<Vec<u16>>());
    fixture.write("stain.tif", "ZYX", &[1, 64, 96], (0..6144).map(|i: u16| i % 251).collect::<Vec<u16>>());
    fixture.write("map.tif", "ZYX", &[1, 64, 96], (0..6144u16).map(|i| f32::from(i % 7) / 7.0).collect::<Vec<f32>>());
    let is_noted = |truth: &str| {
        let ran = fixture.run(&["evaluate", "--pred", "map.tif", "--truth", truth]).ok();
        ran.stderr.contains("give predicted labels")
    };
    assert!(is_noted("objects.tif") && !is_noted("stain.tif"));
}

#[test]
fn a_voxel_size_without_effect_is_noted() {
    let fixture = Fixture::new();
    fixture.write("stain.npy", "ZYX", &[2, 8, 8], (0..128).map(|i| i as f32 + 0.5).collect::<Vec<f32>>());
    fixture.write("labels.tif", "ZYX", &[2, 8, 8], (0..128).map(|i| u16::from(i % 8 < 4)).collect::<Vec<u16>>());
    for (file, is_noted) in [("stain.npy", true), ("labels.tif", false)] {
        let command = ["evaluate", "--pred", file, "--truth", file, "--voxel-size", "2,1,1"];
        let notes = fixture.run(&command).ok().stderr;
        assert_eq!(notes.contains("--voxel-size changes only the diameters"), is_noted, "{file}: {notes}");
    }
}

#[test]
fn a_channel_of_label_images_can_be_chosen() {
    let fixture = Fixture::new();
    fixture.write("two.ome.tif", "CZYX", &[2, 2, 4, 4], [[0u16; 32], [1; 32]].concat());
    fixture.write("truth.tif", "ZYX", &[2, 4, 4], vec![1u16; 32]);
    let found = |more: &[&str]| {
        let command = ["evaluate", "--pred", "two.ome.tif", "--truth", "truth.tif", "--json"];
        fixture.run(&[&command[..], more].concat()).json()["instances"][0]["tp"].as_u64()
    };
    assert_eq!((found(&[]), found(&["--pred-channel", "1"])), (Some(0), Some(1)));
}

#[test]
fn folders_are_paired_by_name_and_pooled() {
    let fixture = Fixture::new();
    for folder in ["p", "t"] {
        std::fs::create_dir(fixture.path(folder)).unwrap();
    }
    let sizes = SHAPE;
    let images = [(boxes(1, 0.0), boxes(5, 1.0)), (boxes(2, 0.5), boxes(6, 1.0))];
    for (i, (t, p)) in images.iter().enumerate() {
        fixture.write(&format!("t/cell{i}_labels.tif"), "ZYX", &sizes, t.clone());
        fixture.write(&format!("p/cell{i}_raw_labels.tif"), "ZYX", &sizes, p.clone());
        fixture.write(&format!("p/cell{i}_raw_probability.tif"), "ZYX", &sizes, vec![0.5f32; p.len()]);
    }
    fixture.write("p/lonely_labels.tif", "ZYX", &sizes, images[0].0.clone());
    let report = fixture.run(&["evaluate", "--pred", "p", "--truth", "t", "--json"]).json();
    assert_eq!(report["pairs"].as_array().unwrap().len(), 2);
    assert_eq!(report["unpaired"], serde_json::json!(["p/lonely_labels.tif"]));
    let matched: usize = images.iter().map(|(t, p)| ious(t, p).0.values().filter(|v| **v >= 0.7).count()).sum();
    let (n_true, n_pred) = images.iter().map(|(t, p)| ious(t, p)).fold((0, 0), |(a, b), (_, t, p)| (a + t, b + p));
    let at = &report["instances"][1];
    close(&at["tp"], matched as f64, "tp");
    close(&at["f1"], 2.0 * matched as f64 / (n_true + n_pred) as f64, "f1");
    fixture.fails(3, &["evaluate", "--pred", "p/lonely_labels.tif", "--truth", "t"], &["lonely"]);
    fixture.write("small.tif", "ZYX", &[2, 2, 2], vec![1u16; 8]);
    fixture.fails(3, &["evaluate", "--pred", "small.tif", "--truth", "t/cell0_labels.tif"], &["small.tif", "shape"]);
}

#[test]
fn intensity_scores_match_their_formulas() {
    let fixture = Fixture::new();
    // Camera-like values: a large offset and a small signal.
    let n: usize = SHAPE.iter().product();
    let (a, b) = (uniform(3, n), uniform(4, n));
    let truth: Vec<f32> = (0..n).map(|i| 30_000.0 + 20.0 * a[i] + ((i % 48) as f32 / 5.0).sin() * 15.0).collect();
    let prediction: Vec<f32> = (0..n).map(|i| truth[i] + 8.0 * (b[i] - 0.5) + 2.0).collect();
    fixture.write("t.tif", "ZYX", &SHAPE, truth.clone());
    fixture.write("p.tif", "ZYX", &SHAPE, prediction.clone());
    let report = fixture.run(&["evaluate", "--pred", "p.tif", "--truth", "t.tif", "--json"]).json();
    let scores = &report["regression"];
    let wide = |v: &[f32]| v.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let (t, p) = (wide(&truth), wide(&prediction));
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (mt, mp) = (mean(&t), mean(&p));
    let sum = |f: &dyn Fn(f64, f64) -> f64| t.iter().zip(&p).map(|(x, y)| f(*x, *y)).sum::<f64>();
    let pearson =
        sum(&|x, y| (x - mt) * (y - mp)) / (sum(&|x, _| (x - mt) * (x - mt)) * sum(&|_, y| (y - mp) * (y - mp))).sqrt();
    let mse = sum(&|x, y| (x - y) * (x - y)) / n as f64;
    let range = t.iter().copied().fold(f64::MIN, f64::max) - t.iter().copied().fold(f64::MAX, f64::min);
    close(&scores["pearson"], pearson, "Pearson");
    close(&scores["mse"], mse, "MSE");
    close(&scores["psnr_db"], 20.0 * (range / mse.sqrt()).log10(), "PSNR");
    assert!(pearson > 0.5 && pearson < 0.999);
    let script = "
import sys, numpy as np, tifffile
from scipy.ndimage import gaussian_filter as g
t, p = (tifffile.imread(f).astype(float) for f in sys.argv[1:3])
r = t.max() - t.min()
f = lambda v: g(v, 1.5, truncate=4)
a, b = f(t), f(p)
va, vb, c = f(t * t) - a * a, f(p * p) - b * b, f(t * p) - a * b
s = (2 * a * b + (.01 * r) ** 2) * (2 * c + (.03 * r) ** 2) / ((a * a + b * b + (.01 * r) ** 2) * (va + vb + (.03 * r) ** 2))
print(s.mean())
";
    if let Some(printed) = python("numpy, tifffile, scipy", script, &[&fixture.path("t.tif"), &fixture.path("p.tif")]) {
        let expected: f64 = printed.trim().parse().unwrap();
        let actual = scores["ssim"].as_f64().unwrap();
        assert!((actual - expected).abs() < 2e-3, "SSIM {actual}, scipy says {expected}");
        assert!(expected < 0.98, "an SSIM near one proves little");
    }
}

/// Rows of runs (length, true label, predicted label), 20 voxels per row, in two identical slices.
const SCENE: [&[(usize, u16, u16)]; 8] = [
    // An object of 20 voxels, found: IoU 18 / 22.
    &[(9, 1, 11), (1, 1, 0), (1, 0, 11), (9, 0, 0)],
    // Objects of 16 and 14 voxels, merged in one prediction of 40.
    &[(8, 2, 12), (7, 3, 12), (5, 0, 12)],
    // An object of 24 voxels, split in three, the largest part of 10.
    &[(5, 4, 13), (4, 4, 14), (3, 4, 15), (8, 0, 0)],
    // An object of 12 voxels in a prediction of 40: inexact.
    &[(6, 5, 16), (14, 0, 16)],
    // A missed object of 8 voxels, and a false object of 6 voxels.
    &[(4, 8, 0), (16, 0, 0)],
    &[(3, 0, 19), (17, 0, 0)],
    // Objects of 2 and 4 voxels, found: IoU 1 and 4 / 6.
    &[(1, 9, 20), (19, 0, 0)],
    &[(2, 10, 21), (1, 0, 21), (17, 0, 0)],
];

fn scene(label: fn(&(usize, u16, u16)) -> u16) -> Vec<u16> {
    let slice: Vec<u16> =
        SCENE.iter().flat_map(|row| row.iter()).flat_map(|run| std::iter::repeat_n(label(run), run.0)).collect();
    [slice.clone(), slice].concat()
}

#[test]
fn errors_are_counted_by_kind_and_size_and_small_objects_can_be_ignored() {
    let fixture = Fixture::new();
    let shape = [2, SCENE.len(), 20];
    let truth = Array::new("ZYX".parse().unwrap(), shape.to_vec(), scene(|r| r.1)).unwrap();
    let mut spec = WriteSpec::of(&truth, Container::ImageJ);
    spec.voxel_size_um = VoxelSize::new_um(2.0, 0.5, 0.5);
    write_array(&fixture.path("truth.tif"), &truth, &spec).unwrap();
    fixture.write("plain.npy", "ZYX", &shape, scene(|r| r.1));
    fixture.write("pred.npy", "ZYX", &shape, scene(|r| r.2));
    let all = fixture.run(&["evaluate", "--pred", "pred.npy", "--truth", "truth.tif", "--json"]).json();
    let counts = |report: &Value| ["tp", "fp", "fn"].map(|key| report["instances"][0][key].as_u64().unwrap());
    assert_eq!(counts(&all), [3, 6, 5]);
    assert_eq!(all["ignored"], json!({"below_voxels": 0, "true_objects": 0, "predictions": 0}));
    let bin = |from: f64, to: f64, [found, merged, split, inexact, missed, false_objects]: [u64; 6]| {
        json!({"from": from, "to": to, "found": found, "merged": merged, "split": split, "inexact": inexact,
            "missed": missed, "false_objects": false_objects})
    };
    let errors = |small: &[Value], unit: &str, large: [Value; 3]| {
        let sizes = [small, &large].concat();
        json!({"merges": 1, "splits": 1, "inexact": 1, "misses": 1, "false_objects": 1, "size_unit": unit,
            "sizes": sizes})
    };
    // A voxel has 0.5 µm³. Diameters in the scene's order: 2.67, 2.48 and 2.37, 2.84, 2.25, 1.97, 1.79, 1.24 and 1.56
    // µm.
    let large =
        [bin(1.6, 2.0, [0, 0, 0, 0, 1, 1]), bin(2.0, 2.5, [0, 2, 0, 1, 0, 0]), bin(2.5, 3.15, [1, 0, 1, 0, 0, 0])];
    let small = [bin(1.0, 1.25, [1, 0, 0, 0, 0, 0]), bin(1.25, 1.6, [1, 0, 0, 0, 0, 0])];
    assert_eq!(all["errors"], errors(&small, "µm", large.clone()));
    assert_eq!(all["pairs"][0]["errors"], all["errors"]);

    let command = ["evaluate", "--pred", "pred.npy", "--truth", "truth.tif", "--ignore-below", "5"];
    let without = fixture.run(&[&command[..], &["--json"]].concat()).json();
    assert_eq!(counts(&without), [1, 6, 5]);
    close(&without["instances"][0]["f1"], 2.0 / 13.0, "f1");
    assert_eq!(without["ignored"], json!({"below_voxels": 5, "true_objects": 2, "predictions": 2}));
    assert_eq!(without["errors"], errors(&[], "µm", large));
    let text = fixture.run(&command).ok().stdout;
    for line in [
        "2 true objects below 5 voxels, 2 predicted objects mostly on them",
        "1 merge, 1 split, 1 miss, 1 inexact outline, 1 false object",
        "2.5 to 3.15",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }

    // One of the two small objects alone, and a limit that leaves nothing to score, which a note says.
    let ignoring = |voxels: &str| {
        let command = ["evaluate", "--pred", "pred.npy", "--truth", "truth.tif", "--ignore-below", voxels];
        fixture.run(&command).ok()
    };
    let one = ignoring("3").stdout;
    assert!(one.contains("1 true object below 3 voxels, 1 predicted object mostly on them"), "{one}");
    let note = "has fewer than 1000 voxels and is ignored";
    assert!(ignoring("1000").stderr.contains(note));
    assert!(!ignoring("5").stderr.contains(note));

    // Without a voxel size, 20, 16, 14, 24, 12, 8 and 6 voxels have diameters of 3.37, 3.13, 2.99, 3.58, 2.84, 2.48 and
    // 2.25.
    let plain = ["evaluate", "--pred", "pred.npy", "--truth", "plain.npy", "--ignore-below", "5", "--json"];
    let sizes =
        [bin(2.0, 2.5, [0, 0, 0, 0, 1, 1]), bin(2.5, 3.15, [0, 2, 0, 1, 0, 0]), bin(3.15, 4.0, [1, 0, 1, 0, 0, 0])];
    assert_eq!(fixture.run(&plain).json()["errors"], errors(&[], "voxel", sizes));

    // A given voxel size takes the place of a missing one, and of that of the file.
    let sized = |truth: &str, voxel: &str| {
        let command = ["evaluate", "--pred", "pred.npy", "--truth", truth, "--voxel-size", voxel, "--json"];
        fixture.run(&command).json()["errors"].clone()
    };
    assert_eq!(sized("plain.npy", "2,0.5,0.5"), all["errors"]);
    assert_ne!(sized("truth.tif", "2,1,1")["sizes"], all["errors"]["sizes"]);
    let unusual = ["evaluate", "--pred", "pred.npy", "--truth", "truth.tif", "--voxel-size", "2,5e9,5e9"];
    fixture.fails(2, &unusual, &["--voxel-size", "along Y"]);
}
