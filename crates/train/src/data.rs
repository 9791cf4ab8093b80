//! The training data: finding, checking and splitting the pairs.

use crate::config::TrainConfig;
use crate::error::{data_error, wrong_use_with};
use crate::planning::budget_too_small;
use crate::predicted_targets;
use crate::problems;
use crate::setup::PATCH;
use crate::trained_images::{TrainedImages, digests};
use cytoscope_objects::diameter::FLAT_SLICES;
use cytoscope_pipeline::{Context, JobError, ProgressStage, ProgressUnit};
use cytoscope_profile::Stage;
use cytoscope_storage::counted;
use cytoscope_storage::message;
use cytoscope_training_data::setting::{LABELS_CHANNEL, TARGETS};
use cytoscope_training_data::{
    CheckOptions, Dataset, Pair, PairSummary, Report, Split, SplitOptions, TargetKind, TrainingDataError, TrainingTask,
    check_with, find_pairs_with, split,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Number of checked pairs after which the duration of the whole check can be estimated.
const MIN_CHECKED_PAIRS: usize = 3;
/// Seconds of checking after which the duration of the whole check can be estimated.
const MIN_CHECKED_SECS: f64 = 3.0;
/// Passes over the data before training: the check, and the computation of statistics and objects.
const CHECK_PASSES: f64 = 2.0;

/// A training set that was checked and split.
pub(crate) struct Data {
    /// All pairs that were found, usable or not, with the ignore label.
    pub dataset: Dataset,
    /// Result of the check: measurements and problems of each pair.
    pub report: Report,
    /// The usable pairs, divided; validation pairs that the start model was trained on are left out if others remain.
    pub split: Split,
    /// Names of the validation pairs for [`DataRequest::keep`], with those that are left out: a resumed run leaves them
    /// out, too.
    pub validation_names: Vec<String>,
    /// Images that the start model was trained on.
    pub known: TrainedImages,
    /// Whether the start model can be scored on the validation set: it was not trained on all of it.
    pub start_is_scored: bool,
}

/// Where the pairs of a training run are, and how they are split.
#[derive(Clone, Copy)]
pub(crate) struct DataRequest<'a> {
    /// Folder or table of the pairs.
    pub path: &'a Path,
    /// Whether the targets are labels or stains.
    pub task: TrainingTask,
    /// Settings of the run; only data, target, validation and budget are used.
    pub config: &'a TrainConfig,
    /// Seed of the split.
    pub seed: u64,
    /// The validation set of an earlier run, as returned by [`Split::validation_names`]: these pairs stay in the validation
    /// set, and all others are used for training.
    pub keep: Option<&'a [String]>,
    /// List of the images that an earlier part of the run was trained on, as in its checkpoint; empty for a new run. They are
    /// not moved to the validation set.
    pub trained: &'a str,
}

/// Finds, checks and splits the pairs, and reports problems. `known` are the images that the start model was trained on:
/// they are left out of the validation set, if other pairs remain in it. `started` is the start of a new run.
///
/// # Errors
/// [`JobError`] if no pair is usable, the settings are invalid, or the time budget is too small even for checking the
/// data.
pub(crate) fn load(
    context: &Context,
    request: DataRequest<'_>,
    known: TrainedImages,
    started: Option<Instant>,
) -> Result<Data, JobError> {
    let DataRequest { path, task, config, seed, keep, trained } = request;
    let dataset = find(path, task, config)?.map_err(|error| problems::search_failed(context, path, error))?;
    let report = check_pairs(context, &dataset, config, config.budget.minutes.zip(started))?;
    let usable: Vec<Pair> = report.usable(&dataset);
    // The error below reports a single problem by itself.
    if !usable.is_empty() || report.problems.len() > 1 {
        problems::report(context, path, &report.problems, None);
    }
    if usable.is_empty() {
        let first = report.problems.first();
        return Err(JobError::Mismatch {
            path: first.map_or_else(|| path.to_owned(), |p| p.file.clone()),
            problem: first.map_or_else(|| "no pair is usable".into(), |p| p.message.clone()),
            next_step: first.map_or_else(|| "check the data".into(), |p| p.next_step.clone()),
        });
    }
    let trained = TrainedImages::from_list(trained);
    let mut split = split_pairs(&usable, &report, config, seed, keep, [&known, &trained]).map_err(data_error)?;
    if split.train.is_empty() {
        return Err(wrong_use_with("no training pairs are left after the split", "lower validation.fraction"));
    }
    context.note(format!(
        "{}, {}. {}",
        counted(split.train.len(), "training pair"),
        counted(split.validation.len(), "validation pair"),
        split.how.trim_end_matches('.')
    ));
    let validation_names = split.validation_names();
    let start_is_scored = leave_out_known(context, &mut split, &known, &digests(&report));
    Ok(Data { dataset, report, split, validation_names, known, start_is_scored })
}

/// Leaves those validation pairs out that the start model was trained on, if others remain. Returns whether the start
/// model was not trained on all of them.
fn leave_out_known(
    context: &Context,
    split: &mut Split,
    known: &TrainedImages,
    digests: &BTreeMap<&str, &str>,
) -> bool {
    known.warning().into_iter().for_each(|warning| context.note(warning));
    let (seen, all) = (known.among(&split.validation, digests), split.validation.len());
    let count = seen.len();
    if count == 0 {
        return true;
    }
    if count == all {
        context.note(
            "the start model was trained on every validation image, so its score would be too high: it is not compared \
             with the trained network, which is kept; add validation images that are new to it to compare them",
        );
        return false;
    }
    let names: BTreeSet<String> = seen.into_iter().map(|pair| pair.name.clone()).collect();
    split.validation.retain(|pair| !names.contains(&pair.name));
    context.note(format!(
        "{count} of {all} validation images are left out: the start model was trained on them, so its score on them \
         would be too high"
    ));
    true
}

/// Finds the pairs according to the data settings. The outer error is for invalid settings.
pub(crate) fn find(
    path: &Path,
    task: TrainingTask,
    config: &TrainConfig,
) -> Result<Result<Dataset, TrainingDataError>, JobError> {
    config.data.check()?;
    if task == TrainingTask::Segmentation && config.data.targets.len() > 1 {
        let channels = config.data.targets.len();
        return Err(wrong_use_with(
            message!("{TARGETS} lists {channels} channels, but segmentation is trained on one label image"),
            message!("list one, or choose it with {LABELS_CHANNEL}"),
        ));
    }
    if task == TrainingTask::LabelFree && config.data.labels_channel.is_some() {
        return Err(wrong_use_with(
            message!("{LABELS_CHANNEL} is for segmentation"),
            message!("list the stains in {TARGETS} instead"),
        ));
    }
    let found = find_pairs_with(path, task, &config.data.find_options());
    Ok(found.map(|mut dataset| {
        dataset.ignore_label = config.data.ignore_label.or(dataset.ignore_label);
        dataset
    }))
}

/// Splits usable pairs; pairs of the same image stay together. `keep` is as in [`DataRequest`]. The `known` images, those that
/// the start model and an earlier part of the run were trained on, are not drawn for the validation set if there are others.
pub(crate) fn split_pairs(
    usable: &[Pair],
    report: &Report,
    config: &TrainConfig,
    seed: u64,
    keep: Option<&[String]>,
    known: [&TrainedImages; 2],
) -> Result<Split, TrainingDataError> {
    let digests = digests(report);
    let avoid = known.iter().flat_map(|images| images.among(usable, &digests)).map(|pair| pair.name.clone()).collect();
    let options = SplitOptions {
        fraction: config.validation.fraction,
        seed,
        together: report.copies(),
        objects: report.objects(),
        cuts: report.cuts(),
        avoid,
        keep: keep.map(<[String]>::to_vec).unwrap_or_default(),
        ..SplitOptions::default()
    };
    split(usable, &options)
}

/// Checks every pair and reports progress. `minutes` is the time budget and the start of the run; the check stops with
/// an error as soon as it is expected to exceed the budget.
pub(crate) fn check_pairs(
    context: &Context,
    dataset: &Dataset,
    config: &TrainConfig,
    minutes: Option<(f64, Instant)>,
) -> Result<Report, JobError> {
    let _span = context.recorder.span(Stage::Check, "pairs");
    let options = CheckOptions { semantic: config.target == Some(TargetKind::Semantic), ..CheckOptions::default() };
    let total = dataset.pairs.len() as u64;
    let meter = Mutex::new(context.meter(ProgressStage::Check, total, ProgressUnit::Pairs));
    let (seen, too_long) = (AtomicUsize::new(0), Mutex::new(None));
    let check_started = Instant::now();
    let mut report = check_with(dataset, &options, &|done, _| {
        let before = seen.swap(done, Ordering::Relaxed);
        let keep_going = match meter.lock() {
            Ok(mut meter) => meter.add(done.saturating_sub(before) as u64).is_ok(),
            Err(_) => true,
        };
        let late = minutes
            .and_then(|(minutes, started)| projected_check(minutes, started, check_started, done, dataset.pairs.len()));
        if let (Some(late), Ok(mut too_long)) = (&late, too_long.lock()) {
            *too_long = Some(*late);
        }
        if keep_going && late.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    context.check()?;
    if let (Ok(Some((check_secs, least))), Some((minutes, _))) = (too_long.into_inner(), minutes) {
        return Err(budget_too_small(
            minutes,
            least,
            &format!("checking the data alone takes about {check_secs:.0} s"),
        ));
    }
    predicted_targets::warn(context, &mut report)?;
    Ok(report)
}

/// Returns the expected seconds of the whole check and the least sensible time budget in minutes, if the given budget
/// is too small.
fn projected_check(
    minutes: f64,
    started: Instant,
    check_started: Instant,
    done: usize,
    all: usize,
) -> Option<(f64, f64)> {
    let secs = check_started.elapsed().as_secs_f64();
    if done < MIN_CHECKED_PAIRS || secs < MIN_CHECKED_SECS {
        return None;
    }
    let total_secs = secs / done as f64 * all as f64;
    let earlier = check_started.saturating_duration_since(started).as_secs_f64();
    // Statistics and objects are computed in a second pass.
    let least = (earlier + CHECK_PASSES * total_secs) / 60.0;
    (least > minutes).then(|| (total_secs, (least * 2.0).ceil()))
}

/// Returns the typical voxel size along Z, Y, X in µm of the usable pairs: the one with the median volume. Single planes count
/// if there are no stacks.
pub(crate) fn typical_voxel_um(report: &Report) -> Option<[f64; 3]> {
    let known = |[z, y, x]: [Option<f64>; 3]| Some([z?, y?, x?]);
    let of = |are_planes: bool| -> Vec<[f64; 3]> {
        let pairs = report.pairs.iter().filter(|pair| pair.usable && (pair.shape_zyx[0] == 1) == are_planes);
        pairs.filter_map(|pair| known(pair.voxel_um)).collect()
    };
    let stacks = of(false);
    let mut all = if stacks.is_empty() { of(true) } else { stacks };
    all.sort_by(|a, b| a.iter().product::<f64>().total_cmp(&b.iter().product::<f64>()));
    all.get(all.len() / 2).copied()
}

/// Largest extent along Y and X of the default patches of single planes, in voxels: such a patch has a third of the voxels of
/// [`PATCH`].
const PLANE_EDGE: usize = 192;

/// Returns the settings of a new run with those that are left open set for single planes: patches of one slice, and a new
/// network that does not downsample along Z. In thicker patches, all further slices would repeat the plane; if they are
/// requested, the network downsamples along Z as for stacks.
/// If there are stacks, the settings are returned unchanged.
pub(crate) fn with_thickness(report: &Report, mut config: TrainConfig) -> TrainConfig {
    let usable = || report.pairs.iter().filter(|pair| pair.usable).map(|pair| pair.shape_zyx);
    if usable().map(|shape| shape[0]).max() == Some(1) {
        // Half of the smallest image, as training may make images smaller.
        let edge = |axis: usize| {
            let smallest = usable().map(|shape| shape[axis]).min().unwrap_or(0);
            (smallest / 2 / 16 * 16).clamp(PATCH[axis], PLANE_EDGE)
        };
        let patch_zyx = *config.patch_zyx.get_or_insert_with(|| [1, edge(1), edge(2)]);
        if patch_zyx[0] == 1 && config.network.strides.is_empty() {
            config.network.strides = vec![[1, 2, 2]; config.network.filters.len().saturating_sub(1)];
        }
    }
    config
}

/// Returns the median object diameter of a pair in µm. If the pair states no complete voxel size, its voxels have the size
/// `assumed_um`. With a `likely` spacing, its slices are as far apart as predictions assume for its objects instead.
fn diameter_um(pair: &PairSummary, assumed_um: Option<[f64; 3]>, likely: bool) -> Option<f64> {
    let diameter = pair.median_diameter_um?;
    let Some(spacing) = pair.assumed_spacing else { return Some(diameter) };
    let [z, y, x] = assumed_um.unwrap_or([1.0; 3]);
    let in_plane = (y * x).sqrt();
    // The diameter is that of a section in a flat stack, and of a volume otherwise.
    let is_volume = pair.shape_zyx[0] > FLAT_SLICES;
    let along_z = if is_volume && !likely { z / (spacing * in_plane) } else { 1.0 };
    Some(diameter * in_plane * along_z.cbrt())
}

impl Data {
    /// Returns the typical voxel size along Z, Y, X in µm.
    pub(crate) fn voxel_um(&self) -> Option<[f64; 3]> {
        typical_voxel_um(&self.report)
    }

    /// Returns the summaries of the usable pairs.
    fn usable(&self) -> impl Iterator<Item = &PairSummary> {
        self.report.pairs.iter().filter(|pair| pair.usable)
    }

    /// Returns the median of the pairs' median object diameters in µm; `assumed` is the voxel size of pairs that state
    /// none, whose slices have a likely spacing.
    pub(crate) fn median_diameter(&self, assumed: [f64; 3]) -> Option<f64> {
        let mut all: Vec<f64> = self.usable().filter_map(|pair| diameter_um(pair, Some(assumed), true)).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().filter(|d| *d > 0.0)
    }

    /// Returns the median of the pairs' median object diameters, each in the unit in which diameters are given: in µm, or in voxels
    /// along X if the pair states no voxel size.
    pub(crate) fn labeled_diameter(&self) -> Option<f64> {
        let mut all: Vec<f64> = self.usable().filter_map(|pair| pair.median_diameter_um).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().filter(|d| *d > 0.0)
    }

    /// Returns a minimum object volume in µm³: a tenth of the median object volume of the data. `assumed_um` is the
    /// voxel size of files that state none.
    pub(crate) fn small_object_um3(&self, assumed_um: Option<[f64; 3]>) -> Option<f64> {
        let volume = |diameter: f64| std::f64::consts::PI / 6.0 * diameter.powi(3);
        let mut all: Vec<f64> =
            self.usable().filter_map(|pair| diameter_um(pair, assumed_um, false).map(volume)).collect();
        all.sort_by(f64::total_cmp);
        Some(all.get(all.len() / 2)? * 0.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::CheckJob;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_pipeline::Event;
    use cytoscope_volume::{Array, Axes, VoxelSize};
    use std::sync::Arc;

    /// Writes files of two channels, an image and its labels, with two time points, the first of which is empty.
    fn write_time_series(folder: &Path, numbers: std::ops::Range<usize>) {
        for number in numbers {
            let labels: Vec<u16> = (0..320).map(|i| if i % 10 > 4 { 1 + i / 80 } else { 0 }).collect();
            let image: Vec<u16> =
                labels.iter().enumerate().map(|(i, l)| 100 + 50 * l + ((i * 31 + number * 7) % 17) as u16).collect();
            let voxels = [vec![0; 640], image, labels].concat();
            let array = Array::new("TCZYX".parse().unwrap(), vec![2, 2, 4, 8, 10], voxels).unwrap();
            let spec = WriteSpec::of(&array, Container::OmeTiff);
            write_array(&folder.join(format!("film{number}.ome.tif")), &array, &spec).unwrap();
        }
    }

    #[test]
    fn diameters_of_stacks_without_a_voxel_size_follow_the_assumed_one() {
        // A median object with a diameter of 12 voxels along X, with slices that many voxels apart.
        let pair = |slices: usize, spacing: Option<f64>| -> PairSummary {
            serde_json::from_value(serde_json::json!({
                "name": "a", "image": "a.tif", "target": "b.tif", "shape_zyx": [slices, 50, 50], "voxel_um": [null, 0.5, 0.5],
                "median_diameter_um": 12.0, "assumed_spacing": spacing, "usable": true,
            }))
            .unwrap()
        };
        let of = |slices, spacing, likely| diameter_um(&pair(slices, spacing), Some([4.0, 0.5, 0.5]), likely).unwrap();
        for (found, expected) in [
            (of(20, Some(8.0), true), 6.0),
            (of(20, Some(8.0), false), 6.0),
            (of(20, Some(1.0), true), 6.0),
            (of(20, Some(1.0), false), 12.0),
            (of(2, Some(1.0), false), 6.0),
            (of(20, None, false), 12.0),
            (diameter_um(&pair(20, Some(8.0)), None, false).unwrap(), 6.0),
        ] {
            assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
        }
    }

    #[test]
    fn the_sizes_of_pairs_that_are_left_out_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        // Two stacks with sizes in µm, and three with sizes in another unit.
        for (number, um) in [0.5, 0.5, 5000.0, 5000.0, 5000.0].into_iter().enumerate() {
            let labels: Vec<u16> = (0..320).map(|i| if i % 10 > 4 { 1 + i / 80 } else { 0 }).collect();
            let image: Vec<u16> =
                labels.iter().enumerate().map(|(i, l)| 100 + 50 * l + ((i * 31 + number * 7) % 17) as u16).collect();
            for (suffix, values) in [("raw", image), ("labels", labels)] {
                let array = Array::new(Axes::zyx(), vec![4, 8, 10], values).unwrap();
                let mut spec = WriteSpec::of(&array, Container::OmeTiff);
                spec.voxel_size_um = VoxelSize::new_um(um, um, um);
                write_array(&folder.path().join(format!("s{number}_{suffix}.ome.tif")), &array, &spec).unwrap();
            }
        }
        let (config, task) = (TrainConfig::default(), TrainingTask::Segmentation);
        let request = DataRequest { path: folder.path(), task, config: &config, seed: 1, keep: None, trained: "" };
        let data = load(&Context::default(), request, TrainedImages::default(), None).unwrap();
        assert_eq!((data.split.train.len(), data.split.validation.len()), (1, 1));
        assert_eq!(data.voxel_um(), Some([0.5; 3]));
        let (diameter, small) = (data.median_diameter([0.5; 3]).unwrap(), data.small_object_um3(None).unwrap());
        assert!(diameter < 10.0 && small < 10.0, "{diameter} µm, {small} µm³");
        assert_eq!(data.labeled_diameter(), Some(diameter));
    }

    #[test]
    fn a_single_problem_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, depth: usize| {
            let values: Vec<u16> = (0..depth * 64).map(|i| (i % 7) as u16).collect();
            let array = Array::new(Axes::zyx(), vec![depth, 8, 8], values).unwrap();
            let spec = WriteSpec::of(&array, Container::ImageJ);
            write_array(&folder.path().join(name), &array, &spec).unwrap();
        };
        let notes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&notes);
        let sink = move |event: &Event| {
            if let Event::Note(note) = event {
                seen.lock().unwrap().push(note.message.to_string());
            }
        };
        let context = Context { sink: Arc::new(sink), ..Context::default() };
        let (config, task) = (TrainConfig::default(), TrainingTask::Segmentation);
        let request = DataRequest { path: folder.path(), task, config: &config, seed: 1, keep: None, trained: "" };
        let failure = || load(&context, request, TrainedImages::default(), None).err().unwrap().to_string();
        write("a_raw.tif", 2);
        write("a_labels.tif", 3);
        let error = failure();
        assert!(error.contains("a_labels.tif: its shape Z, Y, X is [3, 8, 8]"), "{error}");
        assert_eq!(*notes.lock().unwrap(), Vec::<String>::new());
        // Of several, the error names one, so that all are listed.
        write("b_raw.tif", 2);
        write("b_labels.tif", 4);
        failure();
        assert_eq!(notes.lock().unwrap().len(), 2);
    }

    #[test]
    fn label_channels_are_a_setting_of_segmentation() {
        let folder = tempfile::tempdir().unwrap();
        write_time_series(folder.path(), 0..2);
        let text = "[data]\nsame_file = true\nimage_channel = 0\nlabels_channel = 1\ntime = 1\n";
        let config: TrainConfig = toml::from_str(text).unwrap();
        let found = find(folder.path(), TrainingTask::Segmentation, &config).unwrap().unwrap();
        assert!(found.pairs.iter().all(|pair| pair.target.channel == Some(1)), "{:?}", found.pairs);
        let error = find(folder.path(), TrainingTask::LabelFree, &config).unwrap_err().to_string();
        assert!(error.contains("data.targets"), "{error}");
    }

    #[test]
    fn a_check_that_exceeds_the_time_budget_is_detected_early() {
        let ago = |secs| Instant::now().checked_sub(std::time::Duration::from_secs(secs)).unwrap();
        // 10 of 1000 pairs in 10 s: 1000 s, twice, and 20 s before that are 34 minutes.
        let (total_secs, least) = projected_check(20.0, ago(30), ago(10), 10, 1000).unwrap();
        assert!((total_secs - 1000.0).abs() < 20.0 && least >= 67.0, "{total_secs} {least}");
        assert_eq!(projected_check(40.0, ago(30), ago(10), 10, 1000), None);
        assert_eq!(projected_check(20.0, ago(30), ago(1), 10, 1_000_000), None, "too early to estimate");
    }

    #[test]
    fn single_planes_are_trained_on_in_patches_of_one_slice() {
        let folder = tempfile::tempdir().unwrap();
        let write_size = |name: &str, depth: usize, shift: u16, [ny, nx]: [usize; 2]| {
            let labels: Vec<u16> =
                (0..depth * ny * nx).map(|i| if i % 16 > 7 { 1 + (i / 64 % 4) as u16 } else { 0 }).collect();
            let image: Vec<u16> =
                labels.iter().enumerate().map(|(i, l)| shift + 50 * l + (i * 31 % 17) as u16).collect();
            for (suffix, values) in [("raw", image), ("labels", labels)] {
                let array = Array::new(Axes::zyx(), vec![depth, ny, nx], values).unwrap();
                let spec = WriteSpec::of(&array, Container::ImageJ);
                write_array(&folder.path().join(format!("{name}_{suffix}.tif")), &array, &spec).unwrap();
            }
        };
        let write = |name: &str, depth: usize, shift: u16| write_size(name, depth, shift, [16, 16]);
        let (config, task) = (TrainConfig::default(), TrainingTask::Segmentation);
        let fitted = |config: &TrainConfig| {
            let request = DataRequest { path: folder.path(), task, config, seed: 1, keep: None, trained: "" };
            let data = load(&Context::default(), request, TrainedImages::default(), None).unwrap();
            with_thickness(&data.report, config.clone())
        };
        write_size("a", 1, 100, [250, 500]);
        write_size("b", 1, 300, [320, 480]);
        assert_eq!(fitted(&config).patch_zyx, Some([1, 112, 192]));
        write("a", 1, 100);
        write("b", 1, 300);
        let flat = fitted(&config);
        assert_eq!((flat.patch_zyx, flat.network.strides), (Some([1, 64, 64]), vec![[1, 2, 2]; 2]));
        let chosen = TrainConfig { patch_zyx: Some([4, 32, 32]), ..config.clone() };
        assert_eq!(fitted(&chosen), chosen, "thicker patches need the strides of stacks");
        let thin = TrainConfig { patch_zyx: Some([1, 32, 32]), ..config.clone() };
        assert_eq!(fitted(&thin).network.strides, vec![[1, 2, 2]; 2]);
        write("c", 3, 500);
        assert_eq!(fitted(&config), config, "one of the images is a stack");
    }

    #[test]
    fn settings_choose_channels_and_time_point_and_the_validation_set_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        write_time_series(folder.path(), 0..5);
        let context = Context::default();
        let (plain, task) = (TrainConfig::default(), TrainingTask::Segmentation);
        let request = DataRequest { path: folder.path(), task, config: &plain, seed: 1, keep: None, trained: "" };
        assert!(load(&context, request, TrainedImages::default(), None).is_err());
        let text = "[data]\nsame_file = true\nimage_channel = 0\ntarget_channel = 1\ntime = 1\n";
        let config: TrainConfig = toml::from_str(text).unwrap();
        let load_known = |keep: Option<&[String]>, known: TrainedImages| {
            let request = DataRequest { path: folder.path(), task, config: &config, seed: 1, keep, trained: "" };
            load(&context, request, known, None).unwrap()
        };
        let load = |keep: Option<&[String]>| load_known(keep, TrainedImages::default());
        let first = load(None);
        assert!(first.report.pairs.iter().all(|p| p.usable && p.objects == Some(4)), "{:#?}", first.report.problems);
        assert!(first.report.pairs.iter().all(|p| p.intensities.is_some_and(|i| i.min >= 100.0)));
        assert_eq!((first.split.train.len(), first.split.validation.len()), (4, 1));
        let job = CheckJob {
            task,
            data: folder.path().to_owned(),
            config: config.clone(),
            seed: 1,
            details: None,
            from: None,
        };
        assert_eq!(job.run(&context).unwrap().split, Some(first.split.clone()));
        job.require_usable(&context).unwrap();
        assert!(CheckJob { config: plain.clone(), ..job }.require_usable(&context).is_err());
        // Files that are added later go to the training set.
        let keep = first.split.validation_names();
        write_time_series(folder.path(), 5..12);
        let later = load(Some(&keep));
        assert_eq!((later.split.train.len(), later.split.validation_names()), (11, keep));
        let other = ["other".to_owned()];
        let none = load(Some(&other));
        assert_eq!((none.split.train.len(), none.split.validation.len()), (10, 2));
        // A resumed run whose validation set is gone is not validated on images that it was trained on.
        let trained = TrainedImages::default().record_with(&none.split.validation, &digests(&none.report));
        let request =
            DataRequest { path: folder.path(), task, config: &config, seed: 1, keep: Some(&other), trained: &trained };
        let resumed = super::load(&context, request, TrainedImages::default(), None).unwrap();
        assert!(resumed.split.validation.iter().all(|pair| !none.split.validation.contains(pair)));
        // A start model that was trained on the first training set is validated on images that are new to it.
        let known = |data: &Data| {
            let images = TrainedImages::default().record_with(&data.split.train, &digests(&data.report));
            TrainedImages::from_record(&serde_json::json!({ "images": images }))
        };
        let grown = load_known(None, known(&first));
        let names = |pairs: &[Pair]| pairs.iter().map(|p| p.name.clone()).collect::<BTreeSet<_>>();
        assert!(names(&grown.split.validation).is_disjoint(&names(&first.split.train)), "{:?}", grown.split);
        assert_eq!((grown.split.validation.len(), grown.start_is_scored), (2, true));
        // A validation set that is fixed loses the images that the start model was trained on, but not all.
        let both = [later.split.validation_names(), vec![grown.split.validation[0].name.clone()]].concat();
        let fixed = load_known(Some(&both), known(&later));
        assert_eq!((fixed.split.validation_names(), fixed.start_is_scored), (later.split.validation_names(), true));
        // A resumed run does not train on those that were left out.
        let resumed = load_known(Some(&fixed.validation_names), known(&later));
        assert_eq!((fixed.validation_names.len(), resumed.split.train), (both.len(), fixed.split.train));
        let all = load_known(Some(&both[1..]), known(&later));
        assert_eq!((all.split.validation.len(), all.start_is_scored), (1, false));
    }
}
