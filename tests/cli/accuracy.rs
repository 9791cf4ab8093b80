//! How accurate the bundled models are on real stacks that took no part in their training.

use crate::common::{Fixture, pearson, shared_data};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// True objects under this many voxels are left out: most of those in BBBC050 are center marks outside any nucleus.
const IGNORE_BELOW: &str = "150";

/// F1 at IoU 0.5 and 0.7 that `nuclei` keeps on [`embryos`].
const MIN_F1: [f64; 2] = [0.90, 0.81];

/// F1 at IoU 0.5 that `nuclei` keeps on the stack that StarDist ships, whose nuclei touch on most sides.
const MIN_TISSUE_F1: f64 = 0.85;

/// F1 at IoU 0.5 and 0.7 that `cells` keeps on four stacks of a gland.
const MIN_CELLS_F1: [f64; 2] = [0.92, 0.79];

/// A stack and its true labels.
#[derive(Clone)]
struct Pair {
    name: String,
    raw: PathBuf,
    labels: PathBuf,
}

/// Embryos 10 and 11 of BBBC050 at all of their 11 time points. The other nine embryos are in the training set of `nuclei`.
fn embryos(data: &Path) -> Vec<Pair> {
    let folder = data.join("nuclei_and_cells/bbbc050_all");
    let stems = (10..=11).flat_map(|e| (0..11).map(move |t| format!("Emb{e}_t{:03}", 50 * t + 1)));
    stems
        .map(|name| Pair {
            raw: folder.join(format!("{name}_raw.tif")),
            labels: folder.join(format!("{name}_labels.tif")),
            name,
        })
        .collect()
}

/// The stack of nuclei that StarDist ships, without a voxel size.
fn stardist(data: &Path) -> Vec<Pair> {
    let folder = data.join("nuclei_and_cells/stardist");
    vec![Pair { name: "img3d".to_owned(), raw: folder.join("img3d.tif"), labels: folder.join("mask3d.tif") }]
}

/// Four stacks of membrane-stained cells of a gland; no real image is in the training set of `cells`.
fn gland(data: &Path) -> Vec<Pair> {
    let folder = data.join("nuclei_and_cells/orzzet_gland");
    let stems = ["2017-12-04_1a", "2017-12-04_3a", "2017-12-04_4a", "2019-01-15_2a"];
    let pair = |stem: &str| Pair {
        name: stem.to_owned(),
        raw: folder.join(format!("{stem}_raw.tif")),
        labels: folder.join(format!("{stem}_labels_clean.tif")),
    };
    stems.into_iter().map(pair).collect()
}

/// Predicts the labels of all pairs with no option but the model, into the folder `found`.
fn predicted(pairs: &[Pair], model: &str, precision: Option<&str>) -> Fixture {
    let fixture = Fixture::new();
    let mut arguments: Vec<&str> = vec!["predict", "--model", model, "--outputs", "labels", "--out", "found"];
    arguments.extend(pairs.iter().map(|pair| pair.raw.to_str().unwrap()));
    arguments.extend(["--device", "cpu"]);
    arguments.extend(precision.iter().flat_map(|p| ["--precision", p]));
    fixture.run(&arguments).ok();
    fixture
}

/// F1 at IoU 0.5 and 0.7 over the objects of these pairs, some of those whose labels [`predicted`] has predicted.
fn f1_of(predicted: &Fixture, pairs: &[Pair]) -> [f64; 2] {
    let fixture = Fixture::new();
    for folder in ["found", "truth"] {
        std::fs::create_dir(fixture.path(folder)).unwrap();
    }
    for pair in pairs {
        let labels = format!("found/{}_labels.tif", pair.raw.file_stem().unwrap().to_str().unwrap());
        std::fs::copy(predicted.path(&labels), fixture.path(&labels)).unwrap();
        std::fs::copy(&pair.labels, fixture.path("truth").join(format!("{}_labels.tif", pair.name))).unwrap();
    }
    let evaluate = ["evaluate", "--pred", "found", "--truth", "truth", "--ignore-below", IGNORE_BELOW, "--json"];
    let report = fixture.run(&evaluate).json();
    assert_eq!(report["pairs"].as_array().unwrap().len(), pairs.len());
    let at = |threshold: f64| -> &Value {
        let scores = report["instances"].as_array().unwrap();
        scores.iter().find(|s| s["threshold"].as_f64() == Some(threshold)).unwrap()
    };
    [0.5, 0.7].map(|threshold| at(threshold)["f1"].as_f64().unwrap())
}

/// F1 at IoU 0.5 and 0.7 over the objects of all pairs, of predictions with no option but the model.
fn f1(pairs: &[Pair], model: &str, precision: Option<&str>) -> [f64; 2] {
    f1_of(&predicted(pairs, model, precision), pairs)
}

/// Two stacks of one of the [`embryos`]: the float network takes several times as long.
fn stacks_of_one(embryos: &[Pair]) -> Vec<Pair> {
    embryos[..embryos.len() / 2].iter().step_by(6).cloned().collect()
}

/// F1 of `nuclei` in int8 on the [`embryos`], and on [`stacks_of_one`] of them, predicted once for all tests.
fn nuclei_on_embryos(pairs: &[Pair]) -> [[f64; 2]; 2] {
    static SCORES: OnceLock<[[f64; 2]; 2]> = OnceLock::new();
    *SCORES.get_or_init(|| {
        let predicted = predicted(pairs, "nuclei", None);
        [f1_of(&predicted, pairs), f1_of(&predicted, &stacks_of_one(pairs))]
    })
}

#[test]
fn nuclei_keeps_its_scores_on_embryos_it_was_not_trained_on() {
    let Some(data) = shared_data() else { return };
    let pairs = embryos(&data);
    let [all, one] = nuclei_on_embryos(&pairs);
    assert!(all[0] >= MIN_F1[0] && all[1] >= MIN_F1[1], "{all:?}");
    for (float, int8) in f1(&stacks_of_one(&pairs), "nuclei", Some("f32")).into_iter().zip(one) {
        assert!(int8 >= float - 0.005, "int8 {int8}, float {float}");
    }
}

#[test]
fn nuclei_is_more_accurate_than_the_filter_on_every_real_set() {
    let Some(data) = shared_data() else { return };
    let (embryos, stardist) = (embryos(&data), stardist(&data));
    let network_scores = [nuclei_on_embryos(&embryos)[0], f1(&stardist, "nuclei", None)];
    assert!(network_scores[1][0] >= MIN_TISSUE_F1, "{network_scores:?}");
    for (network, pairs) in network_scores.into_iter().zip([embryos, stardist]) {
        let filter = f1(&pairs, "nuclei-dog", None);
        assert!(network[0] > filter[0] && network[1] > filter[1], "{network:?}, the filter has {filter:?}");
    }
}

#[test]
fn cells_keeps_its_scores_on_real_tissue() {
    let Some(data) = shared_data() else { return };
    let pairs = gland(&data);
    let predicted = predicted(&pairs, "cells", None);
    let all = f1_of(&predicted, &pairs);
    assert!(all[0] >= MIN_CELLS_F1[0] && all[1] >= MIN_CELLS_F1[1], "{all:?}");
    // One of the 71 cells of a stack is 0.014 of F1, and rounding turns some either way.
    let one = &pairs[..1];
    for (float, int8) in f1(one, "cells", Some("f32")).into_iter().zip(f1_of(&predicted, one)) {
        assert!(int8 >= float - 0.04, "int8 {int8}, float {float}");
    }
}

/// Pearson correlation of predicted and simulated stains, over all voxels of a stack; mean of the stacks in a folder.
fn mean_pearson(fixture: &Fixture, folder: &str, precision: &str) -> f64 {
    let suffix = "_raw.tif";
    let stems: Vec<String> =
        fixture.names(folder).iter().filter_map(|name| name.strip_suffix(suffix).map(str::to_owned)).collect();
    let out = format!("{folder}-{precision}");
    let files: Vec<String> = stems.iter().map(|stem| format!("{folder}/{stem}{suffix}")).collect();
    let mut arguments = vec!["predict", "--model", "labelfree-nuclei", "--device", "cpu", "--outputs", "maps"];
    arguments.extend(["--precision", precision, "--out", &out]);
    arguments.extend(files.iter().map(String::as_str));
    fixture.run(&arguments).ok();
    let correlations = stems.iter().map(|stem| {
        let names = [format!("{out}/{stem}_raw_prediction.tif"), format!("{folder}/{stem}_target.tif")];
        let [a, b] = names.map(|name| fixture.image(&name).samples().to_f32());
        pearson(&a, &b)
    });
    correlations.sum::<f64>() / stems.len() as f64
}

#[test]
fn predicted_stains_of_unseen_simulated_stacks_correlate_with_the_simulated_ones() {
    let fixture = Fixture::new();
    let default = ["simulate", "--kind", "labelfree", "--shape", "48,128,128"];
    for seed in ["901", "902"] {
        fixture.run(&[&default[..], &["--seed", seed, "--out", "default"]].concat()).ok();
    }
    let varied = ["simulate", "--kind", "labelfree", "--varied", "--count", "3", "--shape", "48,128,128"];
    fixture.run(&[&varied[..], &["--seed", "7700", "--out", "varied"]].concat()).ok();
    for (folder, minimum) in [("default", 0.95), ("varied", 0.92)] {
        let [int8, float] = ["int8", "f32"].map(|precision| mean_pearson(&fixture, folder, precision));
        assert!(int8 >= minimum && int8 >= float - 0.005, "{folder}: int8 {int8}, float {float}");
    }
}

/// The decimal numbers in a text, in their order.
fn decimals(text: &str) -> Vec<f64> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    words
        .map(|word| word.trim_matches('.'))
        .filter(|word| word.contains('.'))
        .filter_map(|word| word.parse().ok())
        .collect()
}

#[test]
fn pages_state_the_same_scores_of_the_bundled_models() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The page, how the line starts, and which of its decimal numbers are F1 at IoU 0.5 and 0.7.
    let stated = |(page, start, [first, second]): &(&str, &str, [usize; 2])| {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{page}: no {start}"));
        let numbers = decimals(line.strip_prefix(start).unwrap());
        [numbers[*first], numbers[*second]]
    };
    let accuracy = "docs/accuracy.md";
    let by_set = [
        // Embryos 10 and 11 of BBBC050.
        vec![
            (accuracy, "| `nuclei`, object diameter estimated |", [0, 1]),
            (accuracy, "- **Nuclei of real stacks**:", [0, 1]),
            ("README.md", "| `nuclei` (int8; trained on", [0, 2]),
            ("models/nuclei/README.md", "| embryos 10 and 11 of BBBC050 (22 stacks), not used", [0, 1]),
            ("bench/README.md", "| `python bench/accuracy.py ALL --match 'Emb1[01]' --model nuclei", [0, 1]),
        ],
        // Stacks of `bench/nuclei_stacks.py`.
        vec![
            (accuracy, "| `nuclei`, object diameter estimated |", [2, 3]),
            (accuracy, "- **Nuclei of simulated stacks**", [0, 1]),
            ("models/nuclei/README.md", "| 40 simulated stacks of another generator", [0, 1]),
            ("bench/README.md", "| `python bench/nuclei_stacks.py OWN`", [1, 2]),
        ],
        // The same in tissue.
        vec![
            (accuracy, "| `nuclei`, object diameter estimated |", [4, 5]),
            (accuracy, "- **Nuclei of simulated stacks**", [2, 3]),
            ("models/nuclei/README.md", "| 24 simulated stacks of tissue", [0, 1]),
            ("bench/README.md", "| `python bench/nuclei_stacks.py TISSUE", [0, 1]),
        ],
        // Four stacks of a gland.
        vec![
            (accuracy, "- **Cells**:", [0, 1]),
            ("README.md", "| `cells` (int8; trained on", [0, 2]),
            ("models/cells/README.md", "| four stacks of a gland", [0, 1]),
            ("bench/README.md", "| `python bench/accuracy.py GLANDS --model cells`", [0, 1]),
        ],
    ];
    for places in by_set {
        let expected = stated(&places[0]);
        for place in &places {
            let found = stated(place);
            // Some pages round to two digits.
            let is_close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.005 + 1e-9);
            assert!(is_close, "{place:?} states {found:?}, but {:?} states {expected:?}", places[0]);
        }
    }
    let text = std::fs::read_to_string(root.join("README.md")).unwrap();
    let [embryos, _] = stated(&(accuracy, "- **Nuclei of real stacks**:", [0, 1]));
    assert!(text.contains(&format!("reaches an F1 score of {embryos:.2} at IoU 0.5 on 22 stacks")));
}
