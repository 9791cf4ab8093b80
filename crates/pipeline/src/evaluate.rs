//! Evaluation of predictions against ground truth, per file and overall.

use crate::job_record::{absolute, recorded};
use crate::predict::resolve::check_voxel_size;
use crate::predict::zarr::labels_of;
use crate::predict::{is_raster, list_inputs};
use crate::results::check_file;
use crate::scored_channels::{ChannelPair, Side, channel_pairs};
use crate::stack::{Extents, Stack};
use crate::{Context, JobError, deserialize, stack_stem};
use cytoscope_formats::{ChannelRef, Image, ImageMeta, OpenOptions, SeriesChoice, is_zarr_folder};
use cytoscope_objects::matching::{Matching, Overlaps, THRESHOLDS};
use cytoscope_objects::regression::{Regression, regression};
use cytoscope_objects::segmentation_errors::{ErrorSummary, Errors, Grid};
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::json::write_json;
use cytoscope_storage::target::check_ending;
use cytoscope_volume::{Element, Samples, VoxelSize, with_samples};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Scores predictions against ground truth: label images by matching objects, other images by intensity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluateJob {
    /// Predictions: a file or a folder.
    pub prediction: PathBuf,
    /// Ground truth: a file, or a folder of files with matching names.
    pub truth: PathBuf,
    /// True objects with fewer voxels than this, and predicted objects that mostly overlap them, are ignored; see
    /// [`Overlaps::ignoring_below`].
    #[serde(default)]
    pub ignore_below_voxels: u64,
    /// Series of predictions and ground truth, by number or name; files of a single series are read as they are.
    #[serde(default, skip_serializing_if = "SeriesChoice::is_first")]
    pub series: SeriesChoice,
    /// Channel of the predictions to score, by name or number. Without a choice for predictions or ground truth, all channels
    /// of stains are scored if they can be paired, and otherwise the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction_channel: Option<ChannelRef>,
    /// Channel of the ground truth to score against, by name or number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truth_channel: Option<ChannelRef>,
    /// Voxel size Z, Y, X in µm, to use instead of the files' own for the diameters of objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voxel_um: Option<[f64; 3]>,
    /// File (`.json`) that the report is also written to, with its provenance record beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<PathBuf>,
    /// Whether to overwrite an existing file at `out`.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// The role of an image in its pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairRole {
    /// A prediction.
    Prediction,
    /// The ground truth of a prediction.
    Truth,
}

/// Intensity scores of one channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelScores {
    /// Name of the channel in the prediction, or else in the ground truth.
    pub name: String,
    /// Its scores.
    #[serde(deserialize_with = "deserialize::scores")]
    pub regression: Regression,
}

/// Scores of one pair of files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// Path of the predicted labels or stain.
    pub prediction: PathBuf,
    /// Path of the ground truth.
    pub truth: PathBuf,
    /// Object scores at each IoU threshold; empty for intensity images.
    #[serde(deserialize_with = "deserialize::matchings")]
    pub instances: Vec<Matching>,
    /// Intensity scores, the mean over [`PairReport::channels`] if there are several; absent for label images.
    #[serde(deserialize_with = "deserialize::regression")]
    pub regression: Option<Regression>,
    /// Intensity scores of each channel, if several were scored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelScores>,
    /// Counts of the kinds of errors, by object size; absent for intensity images.
    #[serde(default)]
    pub errors: Option<ErrorSummary>,
    /// Objects ignored because of their size; absent for intensity images.
    #[serde(default)]
    pub ignored: Option<Ignored>,
}

/// Counts of objects that are ignored because the true objects are too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ignored {
    /// True objects with fewer voxels than this are ignored.
    pub below_voxels: u64,
    /// Number of ignored true objects.
    pub true_objects: u64,
    /// Number of ignored predicted objects: more than half of each overlaps ignored true objects.
    pub predictions: u64,
}

/// Scores of all pairs and their means, the result of an [`EvaluateJob`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluateReport {
    /// Scores of each pair, in the order of the job.
    pub pairs: Vec<PairReport>,
    /// Object scores pooled over all pairs.
    #[serde(deserialize_with = "deserialize::matchings")]
    pub instances: Vec<Matching>,
    /// Mean intensity scores over pairs.
    #[serde(deserialize_with = "deserialize::regression")]
    pub regression: Option<Regression>,
    /// Mean intensity scores of each channel over the pairs for which several channels were scored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelScores>,
    /// Files without a matching file.
    pub unpaired: Vec<PathBuf>,
    /// Error counts of all pairs together; absent for intensity images.
    #[serde(default)]
    pub errors: Option<ErrorSummary>,
    /// Ignored objects of all pairs together; absent for intensity images.
    #[serde(default)]
    pub ignored: Option<Ignored>,
    /// Notes for the user, such as which of several channels were scored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl EvaluateReport {
    /// Returns the report with absolute paths: its file may be read from any folder.
    fn with_absolute_paths(&self) -> Self {
        let pairs = self.pairs.iter().map(|pair| PairReport {
            prediction: absolute(&pair.prediction),
            truth: absolute(&pair.truth),
            ..pair.clone()
        });
        let unpaired = self.unpaired.iter().map(|path| absolute(path));
        Self { pairs: pairs.collect(), unpaired: unpaired.collect(), ..self.clone() }
    }
}

/// Name endings that denote the role of a file in its pair; they are removed to find matching files.
const ROLES: [&str; 17] = [
    "raw",
    "probability",
    "labels",
    "label",
    "clean",
    "masks",
    "mask",
    "img",
    "image",
    "gt",
    "truth",
    "seg",
    "pred",
    "prediction",
    "target",
    "signal",
    "objects",
];

/// Returns the part of a file name that both files of a pair have in common.
pub(crate) fn pair_key(path: &Path) -> String {
    let stem = stack_stem(path).to_lowercase();
    // As in `.ome.btf` and `.ome.tf8`.
    let mut key = stem.strip_suffix(".ome").filter(|front| !front.is_empty()).unwrap_or(&stem).to_owned();
    while let Some((front, role)) = key.rsplit_once(['_', '-']) {
        if front.is_empty() || !ROLES.contains(&role) {
            break;
        }
        key = front.to_owned();
    }
    key
}

/// Returns whether a file name suggests a label image.
pub(crate) fn looks_like_labels(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
    ["label", "mask", "seg", "gt"].iter().any(|r| name.contains(r))
}

/// Returns the files by pair key; of several with the same key, the label image is kept.
fn by_key(path: &Path) -> Result<BTreeMap<String, PathBuf>, JobError> {
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    for file in list_inputs(&[path.to_owned()])? {
        let key = pair_key(&file);
        match found.get(&key) {
            Some(kept) if looks_like_labels(kept) || !looks_like_labels(&file) => {}
            _ => _ = found.insert(key, file),
        }
    }
    Ok(found)
}

/// Returns the names of the channels that an [`EvaluateJob`] can choose from in an image, or in the first one of a folder;
/// none if it cannot be read. Those without a name in the file have one made of their number.
pub fn channels_to_score(path: &Path, role: PairRole) -> Vec<String> {
    let file = match by_key(path).ok().and_then(|files| files.into_values().next()) {
        _ if is_image(path) => path.to_owned(),
        Some(first) => first,
        None => return Vec::new(),
    };
    let file = if role == PairRole::Prediction { labels_of(&file) } else { file };
    let options = options_for(&file, path);
    let Ok(image) = SeriesChoice::default().open_or_only(&file, &options) else { return Vec::new() };
    let meta = image.meta();
    (0..Extents::of(meta).channels).map(|channel| meta.channel_name(channel)).collect()
}

/// Returns the options to open a file with that was found in a folder, or is the given file itself. In a folder, each TIFF
/// file is an image of its own, as in training data: numbers in names are those of images more often than of slices.
fn options_for(file: &Path, given: &Path) -> OpenOptions {
    OpenOptions { single_file: !is_image(given) && !is_raster(file), ..OpenOptions::default() }
}

/// Returns whether a path is an image, and not a folder of images.
fn is_image(path: &Path) -> bool {
    path.is_file() || is_zarr_folder(path)
}

/// Returns the means of scores; those that a pair lacks are left out. `None` without scores.
fn mean_of(scores: &[Regression]) -> Option<Regression> {
    let mean = |f: fn(&Regression) -> Option<f64>| {
        let known: Vec<f64> = scores.iter().filter_map(f).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    (!scores.is_empty()).then(|| Regression {
        pearson: mean(|r| r.pearson),
        psnr_db: mean(|r| r.psnr_db),
        ssim: mean(|r| r.ssim),
        mse: mean(|r| Some(r.mse)).unwrap_or(f64::NAN),
    })
}

/// Returns the mean scores of the channels of each name, in the order in which the names occur.
fn means_by_name(reports: &[PairReport]) -> Vec<ChannelScores> {
    let all = || reports.iter().flat_map(|report| &report.channels);
    let mut names: Vec<&str> = Vec::new();
    for channel in all() {
        if !names.contains(&channel.name.as_str()) {
            names.push(&channel.name);
        }
    }
    let of_name = |name: &str| {
        let scores: Vec<Regression> = all().filter(|c| c.name == name).map(|c| c.regression).collect();
        mean_of(&scores).map(|regression| ChannelScores { name: name.to_owned(), regression })
    };
    names.into_iter().filter_map(of_name).collect()
}

impl EvaluateJob {
    /// Runs the job.
    ///
    /// # Errors
    /// [`JobError`] if no files match, a file cannot be read, the shapes of a pair differ, or the report cannot be
    /// written.
    pub fn run(&self, context: &Context) -> Result<EvaluateReport, JobError> {
        let Some(out) = &self.out else { return self.evaluate(context) };
        check_ending(out, &["json"])?;
        check_file(out, &[&self.prediction, &self.truth], self.overwrite)?;
        recorded(self, context, |_| {
            let report = self.evaluate(context)?;
            write_json(out, &report.with_absolute_paths())?;
            Ok(report)
        })
    }

    fn evaluate(&self, context: &Context) -> Result<EvaluateReport, JobError> {
        if let Some([z, y, x]) = self.voxel_um {
            check_voxel_size(&self.truth, VoxelSize::new_um(z, y, x), self.voxel_um)?;
        }
        let mut unpaired = Vec::new();
        let pairs: Vec<(PathBuf, PathBuf)> = if is_image(&self.prediction) && is_image(&self.truth) {
            vec![(self.prediction.clone(), self.truth.clone())]
        } else {
            let (predictions, mut truths) = (by_key(&self.prediction)?, by_key(&self.truth)?);
            let mut pairs = Vec::new();
            for (key, prediction) in predictions {
                match truths.remove(&key) {
                    Some(truth) => pairs.push((prediction, truth)),
                    None => unpaired.push(prediction),
                }
            }
            unpaired.extend(truths.into_values());
            pairs
        };
        if pairs.is_empty() {
            return Err(JobError::Mismatch {
                path: self.prediction.clone(),
                problem: format!("no file name matches one in {}", self.truth.display()),
                next_step: "give matching files the same name, such as cell1_labels.tif in both folders".to_owned(),
            });
        }
        let mut meter = context.meter("evaluate", pairs.len() as u64, "files");
        let (mut reports, mut errors, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for (prediction, truth) in pairs {
            let prediction = labels_of(&prediction);
            let (report, found) = self.score(context, &prediction, &truth, &mut notes)?;
            reports.push(report);
            errors.extend(found);
            meter.add(1)?;
        }
        let columns: Vec<Vec<Matching>> = (0..THRESHOLDS.len())
            .map(|i| reports.iter().filter_map(|r: &PairReport| r.instances.get(i).cloned()).collect())
            .collect();
        let instances = columns.iter().filter_map(|c| Matching::pooled(c)).collect();
        let scores: Vec<Regression> = reports.iter().filter_map(|r| r.regression).collect();
        let (regression, channels) = (mean_of(&scores), means_by_name(&reports));
        let ignored = reports.iter().filter_map(|r| r.ignored).reduce(|a, b| Ignored {
            true_objects: a.true_objects + b.true_objects,
            predictions: a.predictions + b.predictions,
            ..a
        });
        if ignored.is_none() && self.ignore_below_voxels > 0 {
            notes.push("no file contains labels: there are no small objects to ignore".to_owned());
        }
        notes.iter().for_each(|note| context.note(note.as_str()));
        let errors = (!errors.is_empty()).then(|| ErrorSummary::pooled(&errors));
        Ok(EvaluateReport { pairs: reports, instances, regression, channels, unpaired, errors, ignored, notes })
    }

    /// Opens and scores a pair; also returns the errors of label images for pooling.
    fn score(
        &self,
        context: &Context,
        prediction: &Path,
        truth: &Path,
        notes: &mut Vec<String>,
    ) -> Result<(PairReport, Option<(Errors, Grid)>), JobError> {
        let open = |p: &Path, given: &Path, shape_zyx| {
            let image = self.series.open_or_only(p, &OpenOptions { shape_zyx, ..options_for(p, given) })?;
            Ok::<_, JobError>(match self.voxel_um {
                Some([z, y, x]) => image.with_voxel_size(VoxelSize::new_um(z, y, x)),
                None => image,
            })
        };
        // Regions of interest have no extents of their own: they get those of the other image.
        let mut a = open(prediction, &self.prediction, None)?;
        let b = open(truth, &self.truth, Some(Extents::of(a.meta()).zyx).filter(|_| !a.is_without_extents()))?;
        if a.is_without_extents() {
            a = open(prediction, &self.prediction, Some(Extents::of(b.meta()).zyx))?;
        }
        let of_labels = !a.meta().dtype.is_float() && (!b.meta().dtype.is_float() || looks_like_labels(truth));
        check_shapes((prediction, &a), (truth, &b))?;
        let side = |path, meta, chosen, option| Side { path, meta, chosen, option };
        let of_prediction = side(prediction, a.meta(), self.prediction_channel.as_ref(), "--pred-channel");
        let of_truth = side(truth, b.meta(), self.truth_channel.as_ref(), "--truth-channel");
        let pairs = channel_pairs(of_prediction, of_truth, of_labels, notes)?;
        let report = PairReport {
            prediction: prediction.to_owned(),
            truth: truth.to_owned(),
            instances: Vec::new(),
            regression: None,
            channels: Vec::new(),
            errors: None,
            ignored: None,
        };
        match pairs.as_slice() {
            [pair, ..] if of_labels => score_labels(context, report, [&a, &b], pair, self.ignore_below_voxels),
            pairs => score_intensities(context, report, [&a, &b], pairs).map(|report| (report, None)),
        }
    }
}

/// Refuses a pair of images, given with their paths, whose shapes differ.
fn check_shapes((prediction, a): (&Path, &Image), (truth, b): (&Path, &Image)) -> Result<(), JobError> {
    let (ea, eb) = (Extents::of(a.meta()), Extents::of(b.meta()));
    if (ea.zyx, ea.times) != (eb.zyx, eb.times) {
        return Err(JobError::Mismatch {
            path: prediction.to_owned(),
            problem: format!(
                "its shape {:?} with {} time points differs from {} ({:?} with {})",
                ea.zyx,
                ea.times,
                truth.display(),
                eb.zyx,
                eb.times
            ),
            next_step: "compare images of the same shape".to_owned(),
        });
    }
    Ok(())
}

/// Adds the scores of one channel of label images, prediction and truth, to a report; also returns the errors for pooling.
fn score_labels(
    context: &Context,
    report: PairReport,
    [a, b]: [&Image; 2],
    channels: &ChannelPair,
    ignore_below_voxels: u64,
) -> Result<(PairReport, Option<(Errors, Grid)>), JobError> {
    let extents = Extents::of(a.meta());
    let mut overlaps = Overlaps::new();
    let (mut true_numbers, mut predicted_numbers) = (ObjectNumbers::default(), ObjectNumbers::default());
    for time in 0..extents.times {
        each_slab(context, [a, b], channels, time, &mut |p, t| {
            let _span = context.recorder.span(Stage::Validate, "overlaps").voxels(p.len());
            let t = true_numbers.numbers(&report.truth, &t, time)?;
            let p = predicted_numbers.numbers(&report.prediction, &p, time)?;
            Ok(overlaps.add(&t, &p)?)
        })?;
    }
    let _span = context.recorder.span(Stage::Validate, "match objects");
    let counted = overlaps.ignoring_below(ignore_below_voxels);
    let ignored = Ignored {
        below_voxels: ignore_below_voxels,
        true_objects: (overlaps.truth().len() - counted.truth().len()) as u64,
        predictions: (overlaps.prediction().len() - counted.prediction().len()) as u64,
    };
    let voxel_um = voxel_um(b.meta()).or_else(|| voxel_um(a.meta()));
    let grid = Grid { voxel_um, flat: extents.zyx[0] == 1 };
    let found = Errors::of(&counted);
    let (instances, errors) = (counted.matching(&THRESHOLDS), Some(found.summary(grid)));
    Ok((PairReport { instances, errors, ignored: Some(ignored), ..report }, Some((found, grid))))
}

/// Adds the scores of channels of intensity images, prediction and truth, to a report.
fn score_intensities(
    context: &Context,
    report: PairReport,
    images: [&Image; 2],
    pairs: &[ChannelPair],
) -> Result<PairReport, JobError> {
    let Extents { zyx, times, .. } = Extents::of(images[0].meta());
    let shape = [zyx[0] * times, zyx[1], zyx[2]];
    let mut channels = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let (mut p_all, mut t_all) = (Vec::new(), Vec::new());
        for time in 0..times {
            each_slab(context, images, pair, time, &mut |p, t| {
                p_all.extend(p.to_f32());
                t_all.extend(t.to_f32());
                Ok(())
            })?;
        }
        let _span = context.recorder.span(Stage::Validate, "compare intensities").voxels(p_all.len());
        channels.push(ChannelScores { name: pair.name.clone(), regression: regression(&t_all, &p_all, shape)? });
    }
    let scores: Vec<Regression> = channels.iter().map(|channel| channel.regression).collect();
    if channels.len() < 2 {
        channels.clear();
    }
    Ok(PairReport { regression: mean_of(&scores), channels, ..report })
}

/// Returns the voxel size Z, Y, X in µm of a file; `None` if a relevant one is missing or invalid.
fn voxel_um(meta: &ImageMeta) -> Option<[f64; 3]> {
    let stated = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
    let size = meta.voxel_size_um;
    let z = if Extents::of(meta).zyx[0] == 1 { Some(1.0) } else { stated(size.z) };
    Some([z?, stated(size.y)?, stated(size.x)?])
}

/// Largest label that differs from all smaller ones when labels are compared as 64-bit floats, which represent it exactly.
const MAX_LABEL: f64 = ((1u64 << 53) - 1) as f64;

/// Numbers of the objects of all time points, from 1. The same label at another time point is another object.
#[derive(Debug, Default)]
struct ObjectNumbers {
    of_label: HashMap<(usize, u64), u32>,
}

impl ObjectNumbers {
    /// Returns the number of each voxel's object, 0 for the background.
    ///
    /// # Errors
    /// [`JobError::Mismatch`] for a value that is not a label.
    fn numbers(&mut self, path: &Path, samples: &Samples, time: usize) -> Result<Vec<u32>, JobError> {
        with_samples!(samples, v => self.numbers_of(path, v, time))
    }

    fn numbers_of<E: Element>(&mut self, path: &Path, values: &[E], time: usize) -> Result<Vec<u32>, JobError> {
        let mut numbers = Vec::with_capacity(values.len());
        for run in values.chunk_by(|a, b| a == b) {
            let Some(first) = run.first() else { continue };
            let number = self.number(path, first.to_f64(), time)?;
            numbers.resize(numbers.len() + run.len(), number);
        }
        Ok(numbers)
    }

    fn number(&mut self, path: &Path, label: f64, time: usize) -> Result<u32, JobError> {
        if label == 0.0 {
            return Ok(0);
        }
        let mismatch = |problem: String| {
            let next_step = "give a label image: 0 for the background and a whole number above 0 for each object";
            JobError::Mismatch { path: path.to_owned(), problem, next_step: next_step.to_owned() }
        };
        if !(1.0..=MAX_LABEL).contains(&label) || label.fract() != 0.0 {
            return Err(mismatch(format!("the value {label} is not a label")));
        }
        let next = u32::try_from(self.of_label.len() + 1);
        let next = next.map_err(|_| mismatch("it has more objects than can be numbered".to_owned()))?;
        Ok(*self.of_label.entry((time, label as u64)).or_insert(next))
    }
}

/// Passes the slabs of a channel of prediction and truth to `f`.
fn each_slab(
    context: &Context,
    [a, b]: [&Image; 2],
    channels: &ChannelPair,
    time: usize,
    f: &mut dyn FnMut(Samples, Samples) -> Result<(), JobError>,
) -> Result<(), JobError> {
    let (a, b) = (Stack::new(a, time), Stack::new(b, time));
    let depth = a.extents.zyx[0];
    let step = a.slab_slices();
    for z in (0..depth).step_by(step) {
        let range = z..(z + step).min(depth);
        f(a.read(context, channels.prediction, range.clone())?, b.read(context, channels.truth, range)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_pair_have_the_same_key() {
        for name in [
            "emb1_t2_raw.tif",
            "emb1_t2_labels.tif",
            "emb1_t2_raw_labels.tif",
            "emb1_t2_raw_probability.tif",
            "emb1_t2_prediction.tif",
            "EMB1_T2_labels_clean.tif",
            "emb1_t2.ome.tif",
            "emb1_t2.ome.tf8",
            "emb1_t2.zarr.zip",
            "emb1_t2_seg.npy",
        ] {
            assert_eq!(pair_key(Path::new(name)), "emb1_t2", "{name}");
        }
        assert_eq!(pair_key(Path::new("raw.tif")), "raw");
    }
}
