//! Checks of every pair before training.

mod compare_pairs;
mod inspect_pair;
mod label_fit;

use crate::cut::StackCut;
use crate::dataset::{Dataset, Pair, Part, Problem, Severity, TrainingTask};
use crate::error::TrainingDataError;
use crate::objects::IgnoreLabel;
use cytoscope_formats::FormatError;
use cytoscope_storage::{io_advice, io_problem};
use cytoscope_volume::DType;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How labels are interpreted by [`check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckOptions {
    /// Whether labels are foreground or classes rather than objects, so that a single label is valid.
    pub semantic: bool,
    /// Ignore label; by default the one that the dataset declares.
    pub ignore_label: Option<IgnoreLabel>,
}

/// Intensity statistics of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Intensities {
    /// Lowest intensity of all voxels.
    pub min: f64,
    /// Highest intensity of all voxels.
    pub max: f64,
    /// Mean intensity of all voxels.
    pub mean: f64,
    /// Standard deviation of all voxels.
    pub std: f64,
    /// Percentiles 1, 50 and 99, computed on at most four million evenly spaced voxels.
    pub percentiles: [f64; 3],
    /// Fraction of voxels with the maximum intensity, if that is the largest value of a camera (255, 1023, 4095, 65 535,
    /// …); 0 otherwise.
    pub saturated_share: f64,
}

/// Findings about one pair: shapes, types, intensities and objects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairSummary {
    /// Name of the pair.
    pub name: String,
    /// Path of the image file.
    pub image: PathBuf,
    /// Path of the target file.
    pub target: PathBuf,
    /// Training, validation or test set; `None` if the dataset does not state it.
    pub part: Option<Part>,
    /// Shape along Z, Y, X.
    pub shape_zyx: [usize; 3],
    /// Data type of the image.
    pub image_dtype: Option<DType>,
    /// Data type of the target.
    pub target_dtype: Option<DType>,
    /// Voxel size along Z, Y, X in µm, if known.
    pub voxel_um: [Option<f64>; 3],
    /// Intensity statistics of the image.
    pub intensities: Option<Intensities>,
    /// Intensity statistics of the target, for label-free prediction.
    pub target_intensities: Option<Intensities>,
    /// Number of objects in the labels; `None` if the target is a stain.
    pub objects: Option<usize>,
    /// Median object diameter in µm, or in voxels along X if the voxel size is unknown along an axis. An object's diameter is
    /// that of a sphere of its volume; in stacks of up to four slices, that of a circle with the area of its largest section.
    pub median_diameter_um: Option<f64>,
    /// Slice spacing in voxels along X that the diameter assumes; `None` if the voxel size is known along all axes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assumed_spacing: Option<f64>,
    /// Median size of the bounding boxes of objects along Z, Y, X in µm (in voxels if the voxel size is unknown along an
    /// axis).
    pub median_extent_um: Option<[f64; 3]>,
    /// Fraction of voxels that belong to objects.
    pub foreground_share: Option<f64>,
    /// Where the stack can be cut into a training and a validation part that both contain objects, for a dataset of one
    /// stack; `None` if there is no such place, or if the target is a stain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<StackCut>,
    /// Name of the first pair with the same image; `None` if this pair is the first, or the only one.
    #[serde(default)]
    pub same_image_as: Option<String>,
    /// Hash of the image's shape, data type and voxels in hexadecimal digits, by which its copies in other datasets are
    /// recognized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<String>,
    /// Names of the channels of the label file, if it has several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub label_channels: Vec<String>,
    /// Whether the pair is usable for training.
    pub usable: bool,
}

/// Result of a check: summaries of all pairs, and all problems.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Task that the data were checked for.
    pub task: TrainingTask,
    /// Summary of every pair.
    pub pairs: Vec<PairSummary>,
    /// All problems, errors first, including those found while searching for pairs.
    pub problems: Vec<Problem>,
    /// Whether the check was stopped early.
    pub stopped: bool,
}

impl Report {
    /// Returns the pairs of the dataset that have no error.
    pub fn usable(&self, dataset: &Dataset) -> Vec<Pair> {
        let usable: BTreeSet<&str> = self.pairs.iter().filter(|p| p.usable).map(|p| p.name.as_str()).collect();
        dataset.pairs.iter().filter(|p| usable.contains(p.name.as_str())).cloned().collect()
    }

    /// Returns the names of pairs with identical images, grouped by image, for [`crate::SplitOptions::together`].
    pub fn copies(&self) -> Vec<Vec<String>> {
        let mut copies = BTreeMap::<&str, Vec<String>>::new();
        for pair in &self.pairs {
            if let Some(first) = &pair.same_image_as {
                copies.entry(first).or_insert_with(|| vec![first.clone()]).push(pair.name.clone());
            }
        }
        copies.into_values().collect()
    }

    /// Returns the number of objects of each pair by name, for [`crate::SplitOptions::objects`]; pairs whose
    /// target is a stain are left out.
    pub fn objects(&self) -> BTreeMap<String, usize> {
        self.pairs.iter().filter_map(|pair| Some((pair.name.clone(), pair.objects?))).collect()
    }

    /// Returns where the stacks of pairs can be cut, by name of the pair, for [`crate::SplitOptions::cuts`].
    pub fn cuts(&self) -> BTreeMap<String, StackCut> {
        self.pairs.iter().filter_map(|pair| Some((pair.name.clone(), pair.cut?))).collect()
    }

    /// Returns the names of the channels of the label files that have several, in the order of the files, each once.
    pub fn label_channels(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.pairs.iter().flat_map(|pair| &pair.label_channels) {
            if !names.iter().any(|known| known.trim().eq_ignore_ascii_case(name.trim())) {
                names.push(name);
            }
        }
        names
    }

    /// Returns the problems of one severity.
    pub fn of(&self, severity: Severity) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(move |p| p.severity == severity)
    }
}

/// Checks every pair of a dataset. All voxels are read once, in slabs, and several files in parallel.
///
/// An unusable file becomes a problem of [`Severity::Error`], and its pair is excluded; the check itself never fails.
pub fn check(dataset: &Dataset, options: &CheckOptions) -> Report {
    check_with(dataset, options, &|_, _| ControlFlow::Continue(()))
}

/// Like [`check`], calling `progress` with the number of checked pairs and of all pairs. A `Break` stops the check; pairs
/// that were not checked are not usable.
pub fn check_with(
    dataset: &Dataset,
    options: &CheckOptions,
    progress: &(dyn Fn(usize, usize) -> ControlFlow<()> + Sync),
) -> Report {
    let options = CheckOptions {
        semantic: options.semantic || dataset.labels_are_classes,
        ignore_label: options.ignore_label.or(dataset.ignore_label.map(IgnoreLabel::Value)),
    };
    let (done, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let total = dataset.pairs.len();
    let mut inspections: Vec<inspect_pair::PairInspection> = dataset
        .pairs
        .par_iter()
        .map(|pair| {
            if stop.load(Ordering::Relaxed) {
                return inspect_pair::PairInspection::none(pair);
            }
            let inspection = inspect_pair::inspect(pair, dataset.task, &options);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if progress(done, total).is_break() {
                stop.store(true, Ordering::Relaxed);
            }
            inspection
        })
        .collect();
    let mut problems = dataset.problems.clone();
    let stopped = stop.into_inner();
    if !stopped {
        compare_pairs::compare(dataset, &options, &mut inspections, &mut problems);
    }
    let pairs = inspections
        .into_iter()
        .map(|inspection| {
            let has_error = inspection.problems.iter().any(|p| p.severity == Severity::Error);
            problems.extend(inspection.problems);
            PairSummary { usable: inspection.finished && !has_error, ..inspection.summary }
        })
        .collect();
    problems.sort_by(|a, b| (b.severity, &a.pair, &a.file).cmp(&(a.severity, &b.pair, &b.file)));
    Report { task: dataset.task, pairs, problems, stopped }
}

/// Converts an error into a problem of its pair.
pub(crate) fn problem_from_error(error: &TrainingDataError, file: &Path) -> Problem {
    match error {
        TrainingDataError::Data { file, problem, next_step } => {
            Problem { message: problem.clone(), ..Problem::error(file, "", next_step.clone()) }
        }
        TrainingDataError::Format(
            FormatError::Malformed { file, problem, next_step }
            | FormatError::Unsupported { file, problem, next_step }
            | FormatError::OverLimit { file, problem, next_step }
            | FormatError::Misused { file, problem, next_step },
        ) => Problem::error(file, problem, next_step.clone()),
        TrainingDataError::OverLimit { file, what, got, limit_name, limit, next_step } => {
            Problem::error(file, format!("{what} is {got}, more than the limit {limit_name} = {limit}"), *next_step)
        }
        TrainingDataError::Format(FormatError::Io { file, source, .. })
        | TrainingDataError::Io { file, source, .. } => {
            Problem::error(file, format!("it cannot be read: {}", io_problem(source)), io_advice(source))
        }
        other => Problem::error(file, other.to_string(), "correct the file, or remove the pair"),
    }
}
