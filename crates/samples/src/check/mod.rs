//! Looking into every pair before hours are spent on it.

mod across;
mod look;

use crate::dataset::{Dataset, Pair, Part, Problem, Severity, Task};
use crate::error::SamplesError;
use crate::objects::IgnoreLabel;
use cytoscope_formats::FormatError;
use cytoscope_volume::DType;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What the data are to be good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckOptions {
    /// Labels are foreground or classes, not objects: one label is enough.
    pub semantic: bool,
    /// The label that means "not known"; the dataset's own where it is `None`.
    pub ignore_label: Option<IgnoreLabel>,
}

/// How intensities of a stack lie.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Intensities {
    /// The least and the greatest value.
    pub min: f64,
    /// See `min`.
    pub max: f64,
    /// Mean of all voxels.
    pub mean: f64,
    /// Standard deviation of all voxels.
    pub std: f64,
    /// Percentiles 1, 50 and 99 of at most four million voxels spread evenly.
    pub percentiles: [f64; 3],
    /// Share of voxels that are at the greatest value a camera can give (255, 1023, 4095, 65 535 and the like); 0 where the
    /// greatest value is none of these.
    pub saturated_share: f64,
}

/// What a pair holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairSummary {
    /// Name of the pair.
    pub name: String,
    /// The image.
    pub image: PathBuf,
    /// Its target.
    pub target: PathBuf,
    /// The part the data say it is for.
    pub part: Option<Part>,
    /// Extents Z, Y, X.
    pub shape_zyx: [usize; 3],
    /// Type of the image.
    pub image_dtype: Option<DType>,
    /// Type of the target.
    pub target_dtype: Option<DType>,
    /// Voxel size Z, Y, X in µm, where it is known.
    pub voxel_um: [Option<f64>; 3],
    /// Intensities of the image.
    pub intensities: Option<Intensities>,
    /// Intensities of the target, for label-free training.
    pub target_intensities: Option<Intensities>,
    /// Labels besides background.
    pub objects: Option<usize>,
    /// Median diameter in µm of a ball of an object's volume (in voxels where no voxel size is known).
    pub median_diameter_um: Option<f64>,
    /// Median extents Z, Y, X in µm of the boxes around objects (in voxels where no voxel size is known).
    pub median_extent_um: Option<[f64; 3]>,
    /// Share of voxels that belong to objects.
    pub foreground_share: Option<f64>,
    /// Name of another pair whose image holds the same voxels; the same name for all copies, `None` for the one it names.
    #[serde(default)]
    pub same_image_as: Option<String>,
    /// Whether the pair can be trained on.
    pub usable: bool,
}

/// What a training set holds, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What the pairs are for.
    pub task: Task,
    /// Every pair.
    pub pairs: Vec<PairSummary>,
    /// Everything wrong, the worst first; those that finding the pairs met included.
    pub problems: Vec<Problem>,
    /// Whether the check was stopped before its end.
    pub stopped: bool,
}

impl Report {
    /// The pairs of the dataset that can be trained on.
    pub fn usable(&self, dataset: &Dataset) -> Vec<Pair> {
        let usable: BTreeSet<&str> = self.pairs.iter().filter(|p| p.usable).map(|p| p.name.as_str()).collect();
        dataset.pairs.iter().filter(|p| usable.contains(p.name.as_str())).cloned().collect()
    }

    /// Names of pairs whose images hold the same voxels, image by image, for [`crate::SplitOptions::together`].
    pub fn copies(&self) -> Vec<Vec<String>> {
        let mut copies = BTreeMap::<&str, Vec<String>>::new();
        for pair in &self.pairs {
            if let Some(first) = &pair.same_image_as {
                copies.entry(first).or_insert_with(|| vec![first.clone()]).push(pair.name.clone());
            }
        }
        copies.into_values().collect()
    }

    /// Problems of one severity.
    pub fn of(&self, severity: Severity) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(move |p| p.severity == severity)
    }
}

/// Looks into every pair of a dataset: reads all voxels once, in slabs, several files at a time.
///
/// What cannot be used becomes a problem of [`Severity::Error`] and its pair is left out; nothing makes the check fail as a whole.
pub fn check(dataset: &Dataset, options: &CheckOptions) -> Report {
    check_with(dataset, options, &|_, _| ControlFlow::Continue(()))
}

/// [`check`], telling how many pairs of how many are done; a `Break` stops it, and pairs not looked at count as not usable.
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
    let mut looks: Vec<look::Look> = dataset
        .pairs
        .par_iter()
        .map(|pair| {
            if stop.load(Ordering::Relaxed) {
                return look::Look::none(pair);
            }
            let look = look::look(pair, dataset.task, &options);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if progress(done, total).is_break() {
                stop.store(true, Ordering::Relaxed);
            }
            look
        })
        .collect();
    let mut problems = dataset.problems.clone();
    let stopped = stop.into_inner();
    if !stopped {
        across::compare(dataset, &options, &mut looks, &mut problems);
    }
    let pairs = looks
        .into_iter()
        .map(|look| {
            let broken = look.problems.iter().any(|p| p.severity == Severity::Error);
            problems.extend(look.problems);
            PairSummary { usable: look.finished && !broken, ..look.summary }
        })
        .collect();
    problems.sort_by(|a, b| (b.severity, &a.pair, &a.file).cmp(&(a.severity, &b.pair, &b.file)));
    Report { task: dataset.task, pairs, problems, stopped }
}

/// A failure as a problem of its pair.
fn from_error(error: &SamplesError, file: &Path) -> Problem {
    match error {
        SamplesError::Data { file, met, next } => Problem::error(file, met, next),
        SamplesError::Format(
            FormatError::Malformed { file, met, next }
            | FormatError::Unsupported { file, met, next }
            | FormatError::OverLimit { file, met, next }
            | FormatError::Misused { file, met, next },
        ) => Problem::error(file, met, next),
        SamplesError::OverLimit { file, what, got, limit_name, limit, next } => {
            Problem::error(file, format!("{what} is {got}, more than the limit {limit_name} = {limit}"), *next)
        }
        SamplesError::Format(FormatError::Io { file, source, .. }) | SamplesError::Io { file, source, .. } => {
            Problem::error(file, format!("it cannot be read: {source}"), cytoscope_formats::io_advice(source))
        }
        other => Problem::error(file, other.to_string(), "correct it, or leave the pair out"),
    }
}
