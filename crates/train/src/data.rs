//! What a training set turns into: pairs that can be used, split, and the samplers over them.

use crate::config::TrainConfig;
use crate::error::{data, wrong};
use cytoscope_pipeline::{Context, JobError};
use cytoscope_samples::{
    CheckOptions, Dataset, Pair, Report, Severity, Split, SplitOptions, TargetKind, Task, check_with, find_pairs, split,
};
use std::ops::ControlFlow;
use std::path::Path;

/// A training set, looked through and split.
pub(crate) struct Data {
    pub dataset: Dataset,
    pub report: Report,
    pub split: Split,
}

/// Finds, checks and splits the pairs; problems are told.
pub(crate) fn load(
    context: &Context,
    path: &Path,
    task: Task,
    config: &TrainConfig,
    seed: u64,
) -> Result<Data, JobError> {
    let dataset = find_pairs(path, task).map_err(data)?;
    if dataset.pairs.is_empty() {
        let hint = match task {
            Task::Segmentation => {
                "images and label images named NAME.tif and NAME_masks.tif (or NAME_raw, NAME_labels)"
            }
            Task::LabelFree => "images named NAME_brightfield.tif and NAME_signal.tif",
        };
        let others = dataset.problems.first().map_or_else(String::new, |p| format!(" ({})", p.sentence));
        return Err(JobError::Mismatch {
            path: path.to_owned(),
            problem: format!("it holds no pair of an image and its target{others}"),
            next_step: format!("give a folder with {hint}, or a table with the columns raw and seg"),
        });
    }
    let report = look(context, &dataset, config)?;
    for problem in &report.problems {
        let kind = if problem.severity == Severity::Error { "left out" } else { "warning" };
        let next = &problem.next_step;
        context.note(format!("{kind}: {}: {}; {next}", problem.file.display(), problem.sentence));
    }
    let usable: Vec<Pair> = report.usable(&dataset);
    if usable.is_empty() {
        let first = report.problems.first();
        return Err(JobError::Mismatch {
            path: first.map_or_else(|| path.to_owned(), |p| p.file.clone()),
            problem: first.map_or_else(|| "no pair can be used".to_owned(), |p| p.sentence.clone()),
            next_step: first.map_or_else(|| "check the data".to_owned(), |p| p.next_step.clone()),
        });
    }
    let options = SplitOptions { fraction: config.validation.fraction, seed, ..SplitOptions::default() };
    let split = split(&usable, &options).map_err(data)?;
    if split.train.is_empty() {
        return Err(wrong("nothing is left to learn from after the split: lower validation.fraction"));
    }
    context.note(format!(
        "{} pairs to learn from, {} to validate on. {}",
        split.train.len(),
        split.validation.len(),
        split.how
    ));
    Ok(Data { dataset, report, split })
}

/// Looks into every pair, and tells how far it is.
pub(crate) fn look(context: &Context, dataset: &Dataset, config: &TrainConfig) -> Result<Report, JobError> {
    let options = CheckOptions { semantic: config.target == Some(TargetKind::Semantic), ..CheckOptions::default() };
    let total = dataset.pairs.len() as u64;
    let meter = std::sync::Mutex::new(context.meter("check", total, "pairs"));
    let seen = std::sync::atomic::AtomicUsize::new(0);
    let report = check_with(dataset, &options, &|done, _| {
        let before = seen.swap(done, std::sync::atomic::Ordering::Relaxed);
        let go_on = match meter.lock() {
            Ok(mut meter) => meter.add(done.saturating_sub(before) as u64).is_ok(),
            Err(_) => true,
        };
        if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    context.check()?;
    Ok(report)
}

impl Data {
    /// The voxel size that most files have.
    pub(crate) fn voxel_um(&self) -> Option<[f64; 3]> {
        let mut all: Vec<[f64; 3]> = self
            .report
            .pairs
            .iter()
            .filter_map(|p| {
                let [z, y, x] = p.voxel_um;
                Some([z?, y?, x?])
            })
            .collect();
        all.sort_by(|a, b| a.iter().product::<f64>().total_cmp(&b.iter().product::<f64>()));
        all.get(all.len() / 2).copied()
    }

    /// The least volume in µm³ that an object should have: a tenth of that of a median one of the data. Where files do not say
    /// how large their voxels are, `assumed_um` says it.
    pub(crate) fn small_object_um3(&self, assumed_um: Option<[f64; 3]>) -> Option<f64> {
        let assumed: f64 = assumed_um.map_or(1.0, |v| v.iter().product());
        let mut all: Vec<f64> = self
            .report
            .pairs
            .iter()
            .filter_map(|p| {
                let unit = if p.voxel_um.contains(&None) { assumed } else { 1.0 };
                Some(std::f64::consts::PI / 6.0 * p.median_diameter_um?.powi(3) * unit)
            })
            .collect();
        all.sort_by(f64::total_cmp);
        Some(all.get(all.len() / 2)? * 0.1)
    }
}
