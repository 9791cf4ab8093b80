//! Scores of a network through the prediction pipeline: stacks are predicted in tiles, segmented and compared with the
//! ground truth.

use crate::budget::ValidationSize;
use crate::candidate::Candidate;
use crate::crop::{crop, crop_window};
use cytoscope_formats::{Container, Image, OpenOptions, WriteSpec, image_in_memory, open, write_array};
use cytoscope_objects::diameter;
use cytoscope_objects::matching::{Matching, Overlaps, THRESHOLDS};
use cytoscope_objects::regression::regression;
use cytoscope_pipeline::{
    CancelToken, DiameterRequest, JobError, JobErrorKind, PredictOptions, PredictedVolume, VolumeOutputs, with_name,
};
use cytoscope_training_data::{ImageRef, Pair, StackWindow, TargetKind};
use cytoscope_volume::{Array, Axes, Axis, Region, Samples, VoxelSize};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Scores of one validation pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairScore {
    /// Name of the pair.
    pub name: String,
    /// The score that networks are compared by; higher is better.
    pub score: f64,
    /// All scores by name, such as `f1@0.5`.
    pub scores: BTreeMap<String, f64>,
}

/// Minimum number of pairs from which the standard error of their mean is estimated.
const MIN_PAIRED: usize = 3;

/// Scores of a network on the validation pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// The score that networks are compared by, over all pairs; higher is better: the mean of F1 at IoU 0.5 and 0.7 for
    /// objects, Dice for foreground, Pearson's correlation for a stain.
    pub score: f64,
    /// All scores over all pairs, by name.
    pub scores: BTreeMap<String, f64>,
    /// Scores of each validation pair.
    pub pairs: Vec<PairScore>,
}

impl Scores {
    /// Returns whether a network with these scores is better than one with `other`, by more than chance may cause: by
    /// the score over all pairs, and by more than one standard error of the mean difference of the scores of each pair
    /// (the one-standard-error rule of Breiman et al., 1984). With fewer than [`MIN_PAIRED`] pairs in common, the score
    /// over all pairs decides.
    pub(crate) fn is_clearly_above(&self, other: &Scores) -> bool {
        let gain = self.score - other.score;
        let same = self.pairs.iter().zip(&other.pairs).filter(|(a, b)| a.name == b.name);
        let gains: Vec<f64> = same.map(|(a, b)| a.score - b.score).filter(|d| d.is_finite()).collect();
        let n = gains.len() as f64;
        if gains.len() < MIN_PAIRED {
            return gain > 0.0;
        }
        let mean = gains.iter().sum::<f64>() / n;
        let variance = gains.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
        gain > (variance / n).sqrt()
    }
}

/// A validation pair, or a crop of one.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub name: String,
    image: ImageRef,
    /// The part of the image that is predicted; `None` for all of it.
    window: Option<StackWindow>,
    truth: Truth,
    voxel_um: Option<[f64; 3]>,
    /// Median object diameter in µm (in voxels if the voxel size is unknown), for models with a nominal diameter.
    diameter: Option<f64>,
}

impl Case {
    /// Reads a part of the case's image.
    pub(crate) fn read(&self, part: StackWindow) -> Result<Stack, JobError> {
        let origin = self.window.map_or([0; 3], |w| w.start_zyx);
        let start_zyx = std::array::from_fn(|a| origin[a] + part.start_zyx[a]);
        read_zyx(&self.image, Some(StackWindow { start_zyx, ..part }))
    }

    /// Returns an image that contains only the case's image: its file, or the part of it in memory.
    fn open(&self) -> Result<Image, JobError> {
        let path = &self.image.path;
        if self.window.is_none() && is_whole_file(&self.image) {
            return Ok(open(path, &OpenOptions::default())?);
        }
        let (values, shape) = read_zyx(&self.image, self.window)?;
        let array = Array::new(Axes::zyx(), shape.to_vec(), Samples::F32(values))?;
        Ok(image_in_memory(path, array, VoxelSize::default())?)
    }

    /// Returns the options that its prediction needs.
    fn options(&self) -> PredictOptions {
        PredictOptions {
            voxel_um: self.voxel_um,
            diameter: self.diameter.map_or(DiameterRequest::Auto, DiameterRequest::Given),
            ..PredictOptions::default()
        }
    }
}

#[derive(Debug, Clone)]
struct Truth(Arc<Stack>);

/// Replaces values that are not finite by the smallest finite value, as in training.
fn replace_non_finite(values: &mut [f32]) {
    let darkest = values.iter().copied().filter(|v| v.is_finite()).fold(f32::INFINITY, f32::min);
    let darkest = if darkest.is_finite() { darkest } else { 0.0 };
    values.iter_mut().filter(|v| !v.is_finite()).for_each(|v| *v = darkest);
}

/// Predicts and scores the validation pairs.
pub(crate) struct Validator {
    pub cases: Vec<Case>,
    /// All validation pairs; `cases` are some of them.
    pub pairs: Vec<Pair>,
    target: TargetKind,
    /// Voxel size along Z, Y, X in µm of files that state none.
    assumed_um: [f64; 3],
    /// Ignore label, whose voxels are not compared.
    ignored: Option<f32>,
    diameters: Diameters,
}

/// Options of a [`Validator`].
#[derive(Debug)]
pub(crate) struct ValidatorOptions {
    /// Maximum number of pairs that are predicted; they are spread evenly over all pairs.
    pub max_cases: usize,
    pub target: TargetKind,
    /// Voxel size of the model along Z, Y, X in µm.
    pub model_um: Option<[f64; 3]>,
    /// Ignore label, whose voxels are not compared.
    pub ignored: Option<i64>,
    pub diameters: Diameters,
}

/// Object diameters for scaling images to the diameter that the model was trained at.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Diameters {
    /// Nominal object diameter of the model in µm; `None` for no scaling.
    pub nominal_um: Option<f64>,
    /// Object diameter of all cases in µm (in voxels if the voxel size is unknown); by default measured on the true
    /// labels of each case.
    pub given_um: Option<f64>,
}

/// Maximum number of voxels of a case; of larger stacks, the middle is validated.
const MAX_CASE_VOXELS: usize = 16 << 20;
/// Maximum number of slices of a cropped case.
const MAX_CASE_SLICES: usize = 64;

/// Values in order Z, Y, X, and the shape.
pub(crate) type Stack = (Vec<f32>, [usize; 3]);

/// Reads one image of a file, cropped to a window.
fn read_zyx(image: &ImageRef, window: Option<StackWindow>) -> Result<Stack, JobError> {
    let options =
        OpenOptions { series: image.series, axes: image.axes.clone(), single_file: true, ..OpenOptions::default() };
    let file = open(&image.path, &options)?;
    let meta = file.meta();
    let mut region = Region::whole(&meta.shape_full);
    let pick = |axis: Axis| meta.axes_full.position(axis);
    let samples = pick(Axis::S).and_then(|i| meta.shape_full.get(i)).copied().unwrap_or(1);
    let channel = image.channel.unwrap_or(0);
    for (axis, at) in [(Axis::T, image.time.unwrap_or(0)), (Axis::C, channel / samples), (Axis::S, channel % samples)] {
        if let Some(i) = pick(axis) {
            region = region.with_range(i, at, 1);
        }
    }
    if let Some(window) = window {
        for (a, axis) in [Axis::Z, Axis::Y, Axis::X].into_iter().enumerate() {
            if let Some(i) = pick(axis) {
                region = region.with_range(i, window.start_zyx[a], window.size_zyx[a]);
            }
        }
    }
    let size = |axis: Axis| pick(axis).and_then(|i| region.size.get(i)).copied().unwrap_or(1);
    let shape = [size(Axis::Z), size(Axis::Y), size(Axis::X)];
    let array = file.read(0, &region)?;
    Ok((array.into_samples().to_f32(), shape))
}

/// Returns the window in the middle of a stack that is too large to be compared as a whole; `None` for smaller stacks.
fn middle_window(image: &ImageRef) -> Result<Option<StackWindow>, JobError> {
    let options =
        OpenOptions { series: image.series, axes: image.axes.clone(), single_file: true, ..OpenOptions::default() };
    let file = open(&image.path, &options)?;
    let meta = file.meta();
    let shape = [Axis::Z, Axis::Y, Axis::X]
        .map(|axis| meta.axes_full.position(axis).and_then(|i| meta.shape_full.get(i)).copied().unwrap_or(1));
    let voxels = |s: [usize; 3]| s.iter().fold(1usize, |n, v| n.saturating_mul(*v));
    if voxels(shape) <= MAX_CASE_VOXELS {
        return Ok(None);
    }
    let mut size_zyx = [shape[0].min(MAX_CASE_SLICES), shape[1], shape[2]];
    while voxels(size_zyx) > MAX_CASE_VOXELS {
        let longer = if size_zyx[1] >= size_zyx[2] { 1 } else { 2 };
        size_zyx[longer] = size_zyx[longer].div_ceil(2);
    }
    let start_zyx = std::array::from_fn(|a| (shape[a] - size_zyx[a]) / 2);
    Ok(Some(StackWindow { start_zyx, size_zyx }))
}

fn write_f32(path: &Path, (values, shape): Stack, voxel_um: Option<[f64; 3]>) -> Result<(), JobError> {
    let axes: Axes = "ZYX".parse()?;
    let array = Array::new(axes, shape.to_vec(), Samples::F32(values))?;
    let mut spec = WriteSpec::of(&array, Container::ImageJ);
    if let Some([z, y, x]) = voxel_um {
        spec.voxel_size_um = VoxelSize::new_um(z, y, x);
    }
    write_array(path, &array, &spec)?;
    Ok(())
}

/// Returns the voxel size of a pair along Z, Y, X in µm: that of the pair, or else that of its image file.
fn voxel_um(pair: &Pair) -> Result<Option<[f64; 3]>, JobError> {
    if pair.voxel_um.is_some() {
        return Ok(pair.voxel_um);
    }
    let options = OpenOptions { series: pair.image.series, single_file: true, ..OpenOptions::default() };
    Ok(open(&pair.image.path, &options)?.meta().voxel_size_um.zyx_um())
}

/// Returns whether the file contains only this image.
fn is_whole_file(image: &ImageRef) -> bool {
    image.channel.is_none() && image.time.is_none() && image.series == 0 && image.axes.is_none()
}

/// Returns a file for calibration that contains only the image of a pair: its own file, or one that is written to `to`,
/// with the middle of very large stacks.
pub(crate) fn calibration_file(pair: &Pair, to: PathBuf) -> Result<PathBuf, JobError> {
    if pair.window.is_none() && is_whole_file(&pair.image) {
        return Ok(pair.image.path.clone());
    }
    let window = pair.window.or(middle_window(&pair.image)?);
    write_f32(&to, read_zyx(&pair.image, window)?, voxel_um(pair)?)?;
    Ok(to)
}

impl Validator {
    /// Opens the pairs, and crops large ones.
    pub(crate) fn new(pairs: &[Pair], options: ValidatorOptions) -> Result<Self, JobError> {
        let ValidatorOptions { max_cases, target, model_um, ignored, diameters } = options;
        let empty = Self {
            cases: Vec::new(),
            pairs: pairs.to_vec(),
            target,
            // With a nominal diameter, the diameters of files without a voxel size are in voxels.
            assumed_um: model_um.filter(|_| diameters.nominal_um.is_none()).unwrap_or([1.0; 3]),
            ignored: ignored.filter(|_| target.of_labels()).map(|label| label as f32),
            diameters,
        };
        empty.resized(ValidationSize { cases: max_cases, voxels: usize::MAX })
    }

    /// Returns a validator with another number of pairs, or crops of them.
    pub(crate) fn resized(&self, size: ValidationSize) -> Result<Self, JobError> {
        // Spread evenly. A reduced set does not start with the first pair, which often has the fewest objects.
        let step = self.pairs.len().div_ceil(size.cases.max(1)).max(1);
        let first = if size.voxels == usize::MAX { 0 } else { (step - 1) / 2 };
        let mut cases = Vec::new();
        for pair in self.pairs.iter().skip(first).step_by(step) {
            cases.push(self.case(pair, size.voxels)?);
        }
        Ok(Self {
            cases,
            pairs: self.pairs.clone(),
            target: self.target,
            assumed_um: self.assumed_um,
            ignored: self.ignored,
            diameters: self.diameters,
        })
    }

    /// Prepares a pair, cropped to at most `max_voxels` voxels.
    fn case(&self, pair: &Pair, max_voxels: usize) -> Result<Case, JobError> {
        let mut window = pair.window.or(middle_window(&pair.image)?);
        let voxel_um = voxel_um(pair)?;
        let mut truth = read_zyx(&pair.target, window)?;
        replace_non_finite(&mut truth.0);
        let diameter = self.diameter(&truth, voxel_um);
        if let Some(inside) = crop_window(&truth, voxel_um.unwrap_or(self.assumed_um), self.ignored, max_voxels) {
            truth = crop(&truth, &inside);
            let origin = window.map_or([0; 3], |w| w.start_zyx);
            let start_zyx = std::array::from_fn(|a| origin[a] + inside.start_zyx[a]);
            window = Some(StackWindow { start_zyx, ..inside });
        }
        let (name, image) = (pair.name.clone(), pair.image.clone());
        Ok(Case { name, image, window, truth: Truth(Arc::new(truth)), voxel_um, diameter })
    }

    /// Returns the object diameter of a case: the given one, or else the median of its true labels; `None` without a
    /// nominal diameter.
    fn diameter(&self, truth: &Stack, voxel_um: Option<[f64; 3]>) -> Option<f64> {
        self.diameters.nominal_um?;
        let measured = || median_diameter(truth, self.ignored, voxel_um.unwrap_or(self.assumed_um));
        self.diameters.given_um.or_else(measured)
    }

    /// Returns the number of cases and of voxels.
    pub(crate) fn size(&self) -> ValidationSize {
        let voxels = self.cases.iter().map(|c| c.truth.0.0.len()).max().unwrap_or(0);
        ValidationSize { cases: self.cases.len(), voxels }
    }

    /// Returns the number of voxels of each case.
    pub(crate) fn voxels(&self) -> Vec<usize> {
        self.cases.iter().map(|c| c.truth.0.0.len()).collect()
    }

    /// Returns the number of voxels of the network's size per voxel of a file, averaged over the cases.
    pub(crate) fn magnification(&self, model_um: Option<[f64; 3]>) -> f64 {
        let Some(model_um) = model_um else { return 1.0 };
        let volume = |um: [f64; 3]| um.iter().product::<f64>();
        let cases = self.cases.iter().enumerate().filter_map(|(i, case)| Some((self.scale(i), case.voxel_um?)));
        let known = cases.map(|(scale, um)| volume(um) / (volume(model_um) * scale.powi(3)));
        let all: Vec<f64> = known.filter(|m| m.is_finite() && *m > 0.0).collect();
        if all.is_empty() { 1.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
    }

    /// Returns the object diameter of a case relative to the nominal diameter.
    pub(crate) fn scale(&self, case: usize) -> f64 {
        let diameter = self.cases.get(case).and_then(|c| c.diameter);
        diameter.zip(self.diameters.nominal_um).map_or(1.0, |(diameter, nominal)| diameter / nominal)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    /// Predicts a case.
    ///
    /// # Errors
    /// [`JobError::Mismatch`] with the image's path if it cannot be predicted; [`JobError::Cancelled`].
    pub(crate) fn predict(
        &self,
        cancel: &CancelToken,
        candidate: &Candidate,
        case: usize,
        outputs: VolumeOutputs,
    ) -> Result<PredictedVolume, JobError> {
        let case = self.cases.get(case).ok_or_else(|| crate::error::wrong_use("no such validation pair"))?;
        let predicted = case.open().and_then(|image| candidate.predict(cancel, &image, case.options(), outputs));
        predicted.map_err(|error| match error.kind() {
            JobErrorKind::Cancelled => JobError::Cancelled,
            _ => JobError::Mismatch {
                path: case.image.path.clone(),
                problem: with_name(&case.image.path.display().to_string(), &error.to_string()),
                next_step: "correct the pair, or remove it from the data".to_owned(),
            },
        })
    }

    /// Predicts the labels or the stain of a case, axes Z, Y, X.
    fn predict_target(&self, cancel: &CancelToken, candidate: &Candidate, case: usize) -> Result<Vec<f32>, JobError> {
        let of_labels = self.target.of_labels();
        let outputs = if of_labels { VolumeOutputs::Labels } else { VolumeOutputs::Maps };
        let PredictedVolume { maps, labels, .. } = self.predict(cancel, candidate, case, outputs)?;
        let labels = labels.map(|labels| labels.into_iter().map(|label| label as f32).collect());
        let made = if of_labels { labels } else { maps };
        made.ok_or_else(|| JobError::Panicked("validation: the prediction has no result".to_owned()))
    }

    /// Scores a model on all cases.
    pub(crate) fn score(&self, cancel: &CancelToken, candidate: &Candidate) -> Result<Scores, JobError> {
        self.score_with(cancel, candidate, None, &mut |_, _| {})
    }

    /// Scores a model as [`Validator::score`] does, but starts no further case after `until`. `on_case` is called with
    /// the prediction (labels or stain) of each case.
    pub(crate) fn score_with(
        &self,
        cancel: &CancelToken,
        candidate: &Candidate,
        until: Option<Instant>,
        on_case: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Scores, JobError> {
        let in_time = |i: &usize| *i == 0 || until.is_none_or(|at| Instant::now() < at);
        self.score_labels((0..self.cases.len()).take_while(in_time).map(|i| {
            if cancel.is_cancelled() {
                return Err(JobError::Cancelled);
            }
            let made = self.predict_target(cancel, candidate, i)?;
            on_case(i, &made);
            Ok((i, made))
        }))
    }

    /// Scores predictions (labels or stain), each given with the index of its case.
    pub(crate) fn score_labels(
        &self,
        labels: impl Iterator<Item = Result<(usize, Vec<f32>), JobError>>,
    ) -> Result<Scores, JobError> {
        let mut all = Tally::default();
        let mut pairs = Vec::with_capacity(self.cases.len());
        for made in labels {
            let (at, found) = made?;
            let Some(case) = self.cases.get(at) else { continue };
            let (truth, shape) = case.truth.0.as_ref();
            let one = match self.ignored.filter(|label| truth.contains(label)) {
                None => self.compare(truth, &found, *shape)?,
                Some(label) => {
                    let seen = |values: &[f32]| -> Vec<f32> {
                        values.iter().zip(truth).map(|(v, t)| if *t == label { 0.0 } else { *v }).collect()
                    };
                    self.compare(&seen(truth), &seen(&found), *shape)?
                }
            };
            let (score, scores) = one.scores(self.target);
            pairs.push(PairScore { name: case.name.clone(), score, scores });
            all.add(one);
        }
        let (score, scores) = all.scores(self.target);
        Ok(Scores { score, scores, pairs })
    }

    fn compare(&self, truth: &[f32], found: &[f32], shape: [usize; 3]) -> Result<Tally, JobError> {
        let mut tally = Tally::default();
        match self.target {
            TargetKind::Regression => tally.regressions.push(regression(truth, found, shape)?),
            TargetKind::Semantic => {
                for (t, f) in truth.iter().zip(found) {
                    let (t, f) = (*t > 0.0, *f > 0.0);
                    tally.voxels[0] += u64::from(t && f);
                    tally.voxels[1] += u64::from(t) + u64::from(f);
                }
            }
            _ => tally.matchings.push(matchings(truth, found)?),
        }
        Ok(tally)
    }

    /// Returns the ground truth of a case and its shape Z, Y, X.
    pub(crate) fn truth(&self, case: usize) -> Option<(&[f32], [usize; 3])> {
        self.cases.get(case).map(|c| (c.truth.0.0.as_slice(), c.truth.0.1))
    }

    /// Returns the voxel size of a case along Z, Y, X in µm.
    pub(crate) fn voxel_um(&self, case: usize) -> [f64; 3] {
        self.cases.get(case).and_then(|c| c.voxel_um).unwrap_or(self.assumed_um)
    }
}

/// Returns the median object diameter in µm of labels given as floats.
fn median_diameter((labels, shape): &Stack, ignored: Option<f32>, voxel: [f64; 3]) -> Option<f64> {
    let mut objects: BTreeMap<u32, (u64, [usize; 3], [usize; 3])> = BTreeMap::new();
    let plane = (shape[1] * shape[2]).max(1);
    for (i, label) in labels.iter().enumerate().filter(|(_, l)| **l >= 1.0 && Some(**l) != ignored) {
        let at = [i / plane, i / shape[2].max(1) % shape[1].max(1), i % shape[2].max(1)];
        let (voxels, low, high) = objects.entry(*label as u32).or_insert((0, at, at));
        *voxels += 1;
        *low = std::array::from_fn(|a| low[a].min(at[a]));
        *high = std::array::from_fn(|a| high[a].max(at[a]));
    }
    let sizes = objects.into_values().map(|(voxels, low, high)| (voxels, diameter::is_cut(low, high, *shape)));
    diameter::median(sizes.collect(), voxel)
}

/// Size under which true objects are specks that do not count, as a fraction of the median volume of a pair's true
/// objects.
const SPECK: f64 = 0.05;

/// Matches labels with true labels. Both are integers stored as floats; values below 1 are background. Specks of the
/// ground truth ([`SPECK`]), and predictions mostly on them, are left out.
fn matchings(truth: &[f32], found: &[f32]) -> Result<Vec<Matching>, JobError> {
    let labels = |v: &[f32]| -> Vec<u32> { v.iter().map(|l| if *l >= 1.0 { *l as u32 } else { 0 }).collect() };
    let mut overlaps = Overlaps::new();
    overlaps.add(&labels(truth), &labels(found))?;
    let mut sizes: Vec<u64> = overlaps.truth().values().copied().collect();
    sizes.sort_unstable();
    let median = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
    Ok(overlaps.ignoring_below((median as f64 * SPECK) as u64).matching(&THRESHOLDS))
}

/// Sums from which the scores are computed.
#[derive(Default)]
struct Tally {
    matchings: Vec<Vec<Matching>>,
    regressions: Vec<cytoscope_objects::regression::Regression>,
    /// Number of voxels in the intersection, and sum of the voxels of both masks.
    voxels: [u64; 2],
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.matchings.extend(other.matchings);
        self.regressions.extend(other.regressions);
        self.voxels = [0, 1].map(|i| self.voxels[i] + other.voxels[i]);
    }

    fn scores(&self, target: TargetKind) -> (f64, BTreeMap<String, f64>) {
        match target {
            TargetKind::Regression => {
                let mean = |f: fn(&cytoscope_objects::regression::Regression) -> Option<f64>| {
                    let all: Vec<f64> = self.regressions.iter().filter_map(f).filter(|v| v.is_finite()).collect();
                    if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
                };
                let pearson = mean(|r| r.pearson);
                let scores = [("pearson", pearson), ("psnr_db", mean(|r| r.psnr_db)), ("ssim", mean(|r| r.ssim))];
                (pearson, scores.map(|(n, v)| (n.to_owned(), v)).into())
            }
            TargetKind::Semantic => {
                let dice = 2.0 * self.voxels[0] as f64 / self.voxels[1].max(1) as f64;
                (dice, BTreeMap::from([("dice".to_owned(), dice)]))
            }
            _ => {
                let (mut scores, mut deciding) = (BTreeMap::new(), Vec::new());
                for (i, threshold) in THRESHOLDS.iter().enumerate() {
                    let parts: Vec<Matching> = self.matchings.iter().filter_map(|m| m.get(i).cloned()).collect();
                    let f1 = Matching::pooled(&parts).map_or(0.0, |m| m.f1);
                    scores.insert(format!("f1@{threshold}"), f1);
                    if i < 2 {
                        deciding.push(f1);
                    }
                }
                (deciding.iter().sum::<f64>() / deciding.len().max(1) as f64, scores)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn scores(score: f64, pairs: &[f64]) -> Scores {
        let pair =
            |(i, score): (usize, &f64)| PairScore { name: i.to_string(), score: *score, scores: BTreeMap::new() };
        Scores { score, scores: BTreeMap::new(), pairs: pairs.iter().enumerate().map(pair).collect() }
    }

    #[test]
    fn specks_of_the_truth_do_not_count() {
        // Three objects of 100 voxels, two of which are found, and a speck of 4 voxels that is not.
        let truth: Vec<f32> = (0..400).map(|i| if i < 300 { (i / 100 + 1) as f32 } else { 0.0 }).collect();
        let found: Vec<f32> = truth.iter().map(|label| if *label < 3.0 { *label } else { 0.0 }).collect();
        let with_speck: Vec<f32> = truth.iter().enumerate().map(|(i, l)| if i >= 396 { 4.0 } else { *l }).collect();
        let counts = |truth: &[f32]| matchings(truth, &found).unwrap().into_iter().map(|m| (m.tp, m.n_true, m.n_pred));
        assert!(counts(&with_speck).all(|counts| counts == (2, 3, 2)));
        // An object of 10 voxels counts.
        let small: Vec<f32> = truth.iter().enumerate().map(|(i, l)| if i >= 390 { 4.0 } else { *l }).collect();
        assert!(counts(&small).all(|counts| counts == (2, 4, 2)));
    }

    #[test]
    fn a_gain_within_one_standard_error_of_the_pairs_is_no_clear_gain() {
        let start = scores(0.6648, &[1.0, 1.0, 0.8947, 0.8393, 0.4318]);
        assert!(!start.is_clearly_above(&start));
        // One pair has gained by chance: differences of 0, 0, 0.1053, 0 and -0.0132, standard error 0.022.
        assert!(!scores(0.6667, &[1.0, 1.0, 1.0, 0.8393, 0.4186]).is_clearly_above(&start));
        assert!(scores(0.6948, &[1.0, 1.0, 1.0, 0.8393, 0.4186]).is_clearly_above(&start));
        // A small gain in every pair is clear.
        assert!(scores(0.6748, &[1.01, 1.01, 0.9047, 0.8493, 0.4418]).is_clearly_above(&start));
        assert!(!scores(0.66, &[1.1; 5]).is_clearly_above(&start), "the score over all objects fell");
        // Two pairs say nothing about chance.
        assert!(scores(0.7, &[0.9, 0.5]).is_clearly_above(&scores(0.69, &[0.3, 0.9])));
    }

    #[test]
    fn voxels_with_the_ignore_label_do_not_change_the_score() {
        // A row of two objects, followed by voxels with the ignore label.
        let truth = vec![1.0, 1.0, 0.0, 2.0, 2.0, 0.0, 255.0, 255.0];
        let case = Case {
            name: "row".to_owned(),
            image: ImageRef::of(PathBuf::new()),
            window: None,
            truth: Truth(Arc::new((truth, [1, 1, 8]))),
            voxel_um: None,
            diameter: None,
        };
        let validator = |target, ignored| Validator {
            cases: vec![case.clone()],
            pairs: Vec::new(),
            target,
            assumed_um: [1.0; 3],
            ignored,
            diameters: Diameters::default(),
        };
        let found = vec![1.0, 1.0, 0.0, 3.0, 3.0, 0.0, 0.0, 4.0];
        for target in [TargetKind::Instances, TargetKind::Semantic] {
            let score = |v: &Validator| v.score_labels(std::iter::once(Ok((0, found.clone())))).unwrap().score;
            assert!(score(&validator(target, None)) < 0.95);
            assert_eq!(score(&validator(target, Some(255.0))), 1.0);
            assert!(score(&validator(target, Some(2.0))) < 0.95, "another label");
        }
        let ignoring = |target| {
            let options = ValidatorOptions {
                max_cases: 1,
                target,
                model_um: None,
                ignored: Some(255),
                diameters: Diameters::default(),
            };
            Validator::new(&[], options).unwrap().ignored
        };
        assert_eq!(ignoring(TargetKind::Semantic), Some(255.0));
        assert_eq!(ignoring(TargetKind::Regression), None, "a stain has no labels");
    }

    #[test]
    fn values_that_are_not_finite_become_the_darkest_value() {
        let mut stain = [3.0, f32::NAN, -2.0, f32::INFINITY];
        replace_non_finite(&mut stain);
        assert_eq!(stain, [3.0, -2.0, -2.0, -2.0]);
    }
}
