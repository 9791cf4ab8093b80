//! The training record of a package (`config.cytoscope.training`): a summary of the run, of limited size for any number
//! of steps and pairs.

use crate::config::TrainConfig;
use crate::history::{History, StepPoint, ValidationPoint};
use crate::score_name::ScoreName;
use crate::setup::pair_files;
use crate::trained_images::KEY;
use cytoscope_storage::{rounded, sha256_of_bytes};
use cytoscope_training_data::Pair;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum number of points of the loss curve.
const MAX_LOSS_POINTS: usize = 100;
/// Maximum number of validations: evenly spaced ones, the last one, and that of the best checkpoint.
const MAX_VALIDATIONS: usize = 16;
/// Maximum number of notes; the last ones are kept.
const MAX_NOTES: usize = 12;
/// Maximum number of folders that are listed.
const MAX_FOLDERS: usize = 12;

/// Content of the record of a training run.
pub(crate) struct TrainingRecordFacts<'a> {
    /// Name of the start model.
    pub start: &'a str,
    /// Seed of the random number generators.
    pub seed: u64,
    /// Number of completed optimizer steps.
    pub steps: u64,
    /// Number of optimizer steps per epoch.
    pub epoch_steps: u64,
    /// Patches per optimizer step.
    pub batch: usize,
    /// Shape of a patch along Z, Y, X in voxels.
    pub patch_zyx: [usize; 3],
    /// Number of trainable parameters.
    pub parameters: usize,
    /// Folder or table of the pairs.
    pub data: &'a Path,
    /// Pairs that the network was trained on.
    pub train: &'a [Pair],
    /// Images that the network and its start models were trained on, as text.
    pub images: &'a str,
    /// Pairs that the network was scored on.
    pub validation: &'a [Pair],
    /// Number of validation pairs that were predicted in each validation.
    pub scored: usize,
    /// Scores of the start model, by name.
    pub before: Option<&'a BTreeMap<ScoreName, f64>>,
    /// Score and step of the best checkpoint; step 0 is the start model.
    pub best: Option<(f64, u64)>,
    /// Number of times that training went back to an earlier state.
    pub rollbacks: u32,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
    /// Duration of all validations in seconds.
    pub validation_secs: f64,
    /// All settings of the run.
    pub config: &'a TrainConfig,
    /// Training loss and validation scores of the run.
    pub history: &'a History,
}

/// Part of the data: number of pairs, their folders, and a hash that identifies the list.
#[derive(Debug, PartialEq, Serialize)]
struct PairListSummary {
    count: usize,
    /// Folders of images and targets, relative to the data, in alphabetical order; at most [`MAX_FOLDERS`].
    folders: Vec<String>,
    /// Number of all folders.
    folder_count: usize,
    /// SHA-256 of the pairs' names in order, each followed by a line feed.
    sha256: String,
}

/// A point of the loss curve: the mean over consecutive steps.
#[derive(Debug, PartialEq, Serialize)]
struct LossPoint {
    /// Number of the last of these steps.
    step: u64,
    loss: f64,
    /// Learning rate of the last step.
    rate: f64,
}

/// Returns the record of a training run.
pub(crate) fn training_record(run: &TrainingRecordFacts<'_>) -> Value {
    let (training_secs, stalled_secs) = total_step_secs(&run.history.steps);
    let earlier_notes = run.history.notes.len().saturating_sub(MAX_NOTES);
    let notes: Vec<String> = run.history.notes.iter().skip(earlier_notes).map(ToString::to_string).collect();
    json!({
        "program": format!("cytoscope {}", env!("CARGO_PKG_VERSION")),
        "from": run.start,
        "seed": run.seed,
        KEY: run.images,
        "steps": run.steps,
        "epoch_steps": run.epoch_steps,
        "batch": run.batch,
        "patch_zyx": run.patch_zyx,
        "parameters": run.parameters,
        "pairs": {
            "data": run.data.file_name().map(|n| n.to_string_lossy().into_owned()),
            "train": summarize_pairs(run.train, run.data),
            "validation": summarize_pairs(run.validation, run.data),
            "scored": run.scored,
        },
        "before": run.before.map(rounded_scores),
        "best": run.best.map(|(score, step)| json!({"score": rounded(score), "step": step})),
        "rescues": run.rollbacks,
        "seconds": rounded(run.seconds),
        "training_secs": rounded(training_secs),
        "stalled_secs": rounded(stalled_secs),
        "validation_secs": rounded(run.validation_secs),
        "settings": run.config,
        "history": {
            "steps": loss_points(&run.history.steps),
            "validations": listed_validations(&run.history.validations),
            "notes": notes,
        },
    })
}

fn rounded_scores(scores: &BTreeMap<ScoreName, f64>) -> BTreeMap<&ScoreName, f64> {
    scores.iter().map(|(name, score)| (name, rounded(*score))).collect()
}

/// Returns the seconds of all steps, and the part of them that was spent waiting for patches.
fn total_step_secs(points: &[StepPoint]) -> (f64, f64) {
    let (mut total_secs, mut stalled_secs, mut before) = (0.0, 0.0, 0);
    for point in points {
        let count = point.step.saturating_sub(before) as f64;
        total_secs += count * point.step_secs;
        stalled_secs += count * point.stalled_secs;
        before = point.step;
    }
    (total_secs, stalled_secs)
}

/// Returns the loss curve with at most [`MAX_LOSS_POINTS`] points, each the mean of as many consecutive points.
fn loss_points(points: &[StepPoint]) -> Vec<LossPoint> {
    points
        .chunks(points.len().div_ceil(MAX_LOSS_POINTS).max(1))
        .filter_map(|chunk| {
            let last = chunk.last()?;
            let loss = chunk.iter().map(|p| p.loss).sum::<f64>() / chunk.len() as f64;
            Some(LossPoint { step: last.step, loss: rounded(loss), rate: rounded(last.rate) })
        })
        .collect()
}

/// Returns at most [`MAX_VALIDATIONS`] of the validations, evenly spaced, always with the last and the best one.
fn listed_validations(points: &[ValidationPoint]) -> Vec<Value> {
    let every = points.len().div_ceil(MAX_VALIDATIONS - 2).max(1);
    let best = points.iter().rposition(|v| v.best);
    points
        .iter()
        .enumerate()
        .filter(|(i, _)| i % every == 0 || i + 1 == points.len() || Some(*i) == best)
        .map(|(_, v)| {
            json!({
                "step": v.step,
                "score": rounded(v.score),
                "scores": rounded_scores(&v.scores),
                "best": v.best,
            })
        })
        .collect()
}

/// Summarizes pairs found in `data`, a folder or a table.
fn summarize_pairs(pairs: &[Pair], data: &Path) -> PairListSummary {
    let names: String = pairs.iter().flat_map(|p| [p.name.as_str(), "\n"]).collect();
    let folders: BTreeSet<String> = pairs.iter().flat_map(pair_files).map(|file| folder_name(file, data)).collect();
    PairListSummary {
        count: pairs.len(),
        folder_count: folders.len(),
        folders: folders.into_iter().take(MAX_FOLDERS).collect(),
        sha256: sha256_of_bytes(names.as_bytes()),
    }
}

/// Returns the folder of a file relative to `data`, or to the folder of `data` if that is a file; `.` for this folder
/// itself. For a folder elsewhere, only the name is returned: a package does not disclose paths of the computer.
fn folder_name(file: &Path, data: &Path) -> String {
    let folder = file.parent().unwrap_or(Path::new(""));
    let inside =
        folder.strip_prefix(data).ok().or_else(|| folder.strip_prefix(data.parent()?).ok().filter(|p| p.is_relative()));
    let text = match inside {
        Some(inside) => inside.to_string_lossy().replace('\\', "/"),
        None => folder.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
    };
    if text.is_empty() { ".".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(steps: u64, points: u64, validations: u64) -> History {
        let noise = |i: u64| ((i * 7919) % 1009) as f64 / 1009.0;
        let names = [0.5, 0.7, 0.75, 0.9].map(ScoreName::f1);
        History {
            steps: (1..=points)
                .map(|i| StepPoint {
                    step: i * steps / points,
                    loss: 1.0 / i as f64 + 0.1 * noise(i),
                    rate: 0.002 * noise(i + 1),
                    step_secs: 0.4,
                    stalled_secs: 0.1,
                })
                .collect(),
            validations: (0..validations)
                .map(|i| ValidationPoint {
                    step: i * steps / validations,
                    score: noise(i),
                    scores: names.clone().map(|name| (name, noise(i + 2))).into(),
                    best: i == validations / 3,
                })
                .collect(),
            notes: (0..50)
                .map(|i| format!("At step {i} the plan was changed to stay within the time budget.").into())
                .collect(),
        }
    }

    fn facts<'a>(train: &'a [Pair], config: &'a TrainConfig, history: &'a History) -> TrainingRecordFacts<'a> {
        TrainingRecordFacts {
            start: "scratch",
            seed: 1,
            steps: 20_000,
            epoch_steps: 400,
            batch: 2,
            patch_zyx: [24, 64, 64],
            parameters: 1_397_714,
            data: Path::new("/home/me/data"),
            train,
            images: "0123456789ab",
            validation: &train[..train.len() / 5],
            scored: 6,
            before: None,
            best: Some((0.8644067796, 19_000)),
            rollbacks: 0,
            seconds: 8000.123456789,
            validation_secs: 100.0,
            config,
            history,
        }
    }

    #[test]
    fn the_record_of_a_long_run_with_many_pairs_is_small() {
        let train: Vec<Pair> = (0..1000)
            .map(|i| {
                let file = |kind: &str| format!("/home/me/data/embryo_{i:04}/{kind}/stack_{i:04}.tif");
                Pair::new(format!("embryo_{i:04}"), file("images"), file("masks"))
            })
            .collect();
        let (config, history) = (TrainConfig::default(), history(20_000, 2000, 200));
        let record = training_record(&facts(&train, &config, &history));
        // Indented JSON is about as long as YAML.
        let text = serde_json::to_string_pretty(&record).unwrap();
        assert!(text.len() < 20_000, "{} bytes: {text}", text.len());
        let list = |key: &str| record["history"][key].as_array().unwrap().clone();
        let (points, validations) = (list("steps"), list("validations"));
        assert_eq!((points.len(), list("notes").len()), (MAX_LOSS_POINTS, MAX_NOTES));
        assert_eq!((&points[0]["step"], &points[99]["step"]), (&json!(200), &json!(20_000)));
        assert!(validations.len() <= MAX_VALIDATIONS, "{}", validations.len());
        assert_eq!(validations.iter().filter(|v| v["best"] == json!(true)).count(), 1);
        assert_eq!((&validations[0]["step"], &validations.last().unwrap()["step"]), (&json!(0), &json!(19_900)));
        assert_eq!((&record["training_secs"], &record["stalled_secs"]), (&json!(8000.0), &json!(2000.0)));
        let pairs = &record["pairs"]["train"];
        assert_eq!((&pairs["count"], &pairs["folder_count"]), (&json!(1000), &json!(2000)));
        assert_eq!(pairs["folders"][0], json!("embryo_0000/images"));
        assert!(!text.contains("/home/me"), "{text}");
    }

    #[test]
    fn the_record_of_a_short_run_keeps_every_point() {
        let train = [Pair::new("a", "/home/me/data/a_raw.tif", "/home/me/data/a_labels.tif")];
        let (config, history) = (TrainConfig::default(), history(60, 60, 5));
        let record = training_record(&facts(&train, &config, &history));
        assert_eq!(record["history"]["steps"].as_array().map(Vec::len), Some(60));
        assert_eq!(record["history"]["validations"].as_array().map(Vec::len), Some(5));
        assert_eq!((&record["pairs"]["data"], &record["pairs"]["scored"]), (&json!("data"), &json!(6)));
        let expected = PairListSummary {
            count: 1,
            folders: vec![".".to_owned()],
            folder_count: 1,
            sha256: sha256_of_bytes(b"a\n"),
        };
        assert_eq!(record["pairs"]["train"], json!(expected));
        let empty =
            training_record(&TrainingRecordFacts { history: &History::default(), ..facts(&[], &config, &history) });
        assert_eq!(empty["history"]["steps"], json!([]));
    }

    #[test]
    fn folders_are_relative_to_the_data() {
        let name = |file: &str, data: &str| folder_name(Path::new(file), Path::new(data));
        assert_eq!(name("data/images/a.tif", "data"), "images");
        assert_eq!(name("data/images/a.tif", "data/pairs.csv"), "images");
        assert_eq!(name("images/a.tif", "pairs.csv"), "images");
        assert_eq!(name("/mnt/disk/masks/a.tif", "/home/me/pairs.csv"), "masks");
        assert_eq!(name("/mnt/disk/masks/a.tif", "data"), "masks");
        assert_eq!(name("a.tif", "a.tif"), ".");
    }
}
