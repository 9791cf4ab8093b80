//! Scores of pairs of images, one after the other, and their means.

use crate::evaluate::{ChannelScores, EvaluateReport, Ignored, PairReport};
use crate::job_record::absolute;
use crate::label_check::{LabelCheck, not_labels_note};
use crate::label_notes::FoundLabels;
use crate::scored_channels::{ChannelPair, Side, channel_pairs};
use crate::stack::{Extents, Stack};
use crate::{Context, JobError, Note};
use cytoscope_formats::{ChannelRef, Image, ImageMeta};
use cytoscope_objects::dominant::dominant_label;
use cytoscope_objects::matching::{Matching, Overlaps, THRESHOLDS};
use cytoscope_objects::regression::{Regression, regression};
use cytoscope_objects::rims::{Annotation, Rims};
use cytoscope_objects::segmentation_errors::{ErrorSummary, Errors, Grid};
use cytoscope_profile::{DeviceTraffic, Stage};
use cytoscope_storage::by_count;
use cytoscope_storage::message;
use cytoscope_storage::setting::{IGNORE_LABEL, Setting};
use cytoscope_volume::{DType, Element, Samples, with_samples};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// An image of a pair.
#[derive(Debug, Clone, Copy)]
pub struct ScoredImage<'a> {
    /// Path that the report and errors name.
    pub path: &'a Path,
    /// The opened image, whose samples are read slab by slab.
    pub image: &'a Image,
    /// The channel to score, if one was chosen.
    pub channel: Option<&'a ChannelRef>,
    /// The option that chooses a channel, for notes.
    pub option: Setting,
    /// Whether it is a label image even if its samples are floats.
    pub are_labels: bool,
}

/// Scores pairs of predictions and ground truth: label images by matching objects, other images by intensity.
pub struct Evaluation<'a> {
    context: &'a Context,
    ignore_below_voxels: u64,
    /// The true label of voxels that are not annotated, and whether a voxel with it was found.
    unknown: Option<(i64, bool)>,
    reports: Vec<PairReport>,
    /// Errors of label images for pooling.
    errors: Vec<(Errors, Grid)>,
    notes: Vec<Note>,
    traffic: Option<DeviceTraffic>,
}

impl<'a> Evaluation<'a> {
    /// Returns an evaluation without pairs. True objects with fewer voxels than `ignore_below_voxels` are ignored.
    pub fn new(context: &'a Context, ignore_below_voxels: u64) -> Self {
        let (reports, errors, notes) = (Vec::new(), Vec::new(), Vec::new());
        Self { context, ignore_below_voxels, unknown: None, reports, errors, notes, traffic: None }
    }

    /// Leaves out voxels whose true label is this one: they count neither as background nor as part of an object. Predicted
    /// objects of which only the rim is annotated ([`Rims`]) do not count either.
    #[must_use]
    pub fn ignoring_label(self, label: Option<i64>) -> Self {
        Self { unknown: label.map(|label| (label, false)), ..self }
    }

    /// Adds a note for the user to the report. Paths in it are absolute, as those of a report in a file.
    pub fn add_note(&mut self, note: impl Into<Note>) {
        self.notes.push(note.into());
    }

    /// Whether objects were scored in one of the pairs so far.
    pub(crate) fn has_labels(&self) -> bool {
        self.reports.iter().any(|report| report.ignored.is_some())
    }

    /// Adds the traffic between the host and the device of a prediction that is scored.
    pub fn add_traffic(&mut self, traffic: Option<DeviceTraffic>) {
        self.traffic = [self.traffic, traffic].into_iter().flatten().reduce(DeviceTraffic::plus);
    }

    /// Scores a pair.
    ///
    /// # Errors
    /// [`JobError::Mismatch`] if the shapes differ, or a chosen channel does not exist; [`JobError::Format`] if an image
    /// cannot be read; [`JobError::Canceled`].
    pub fn score(&mut self, prediction: ScoredImage<'_>, truth: ScoredImage<'_>) -> Result<(), JobError> {
        let (a, b) = (prediction.image, truth.image);
        check_shapes((prediction.path, a), (truth.path, b))?;
        let are_labels = self.are_labels(&prediction, &truth)?;
        let pairs = channel_pairs(side_of(&prediction), side_of(&truth), are_labels, &mut self.notes)?;
        let report = PairReport {
            prediction: prediction.path.to_owned(),
            truth: truth.path.to_owned(),
            instances: Vec::new(),
            regression: None,
            channels: Vec::new(),
            errors: None,
            ignored: None,
        };
        let report = match pairs.as_slice() {
            [pair, ..] if are_labels => {
                let (report, found) = self.score_labels(report, [a, b], pair)?;
                self.errors.extend(found);
                report
            }
            pairs => {
                let note = not_labels_note(self.context, (prediction.path, a), (truth.path, b));
                self.notes.extend(note.map(Note::from));
                score_intensities(self.context, report, [a, b], pairs, &mut self.notes)?
            }
        };
        self.reports.push(report);
        Ok(())
    }

    /// Returns whether both images of a pair hold labels: either their samples are integers, or the ground truth is a label
    /// image by its name or format and all values of the prediction can be labels.
    fn are_labels(&mut self, prediction: &ScoredImage<'_>, truth: &ScoredImage<'_>) -> Result<bool, JobError> {
        let is_float = |of: &ScoredImage<'_>| of.image.meta().dtype.is_float();
        if !is_float(prediction) {
            return Ok(!is_float(truth) || truth.are_labels);
        }
        if !truth.are_labels && !truth.image.is_label_image() {
            return Ok(false);
        }
        let pairs = channel_pairs(side_of(prediction), side_of(truth), true, &mut Vec::new())?;
        let Some(pair) = pairs.first() else { return Ok(false) };
        let unknown = self.unknown.map(|(label, _)| label as f64);
        let are_labels = hold_labels(self.context, prediction.image, pair.prediction, None)?
            && (!is_float(truth) || hold_labels(self.context, truth.image, pair.truth, unknown)?);
        if are_labels {
            self.add_note(format!(
                "{}: its samples are floats, but all are whole numbers, and the ground truth is a label image, so objects are \
                 compared",
                absolute(prediction.path).display()
            ));
        }
        Ok(are_labels)
    }

    /// Adds the scores of one channel of label images, prediction and truth, to a report; also returns the errors for
    /// pooling.
    fn score_labels(
        &mut self,
        report: PairReport,
        [a, b]: [&Image; 2],
        channels: &ChannelPair,
    ) -> Result<(PairReport, Option<(Errors, Grid)>), JobError> {
        let (context, extents) = (self.context, Extents::of(a.meta()));
        let mut overlaps = Overlaps::new();
        let unknown = self.unknown.map(|(label, _)| label as f64);
        let width = extents.zyx[2];
        let (mut truth_check, mut prediction_check) =
            (LabelCheck::new(&report.truth), LabelCheck::new(&report.prediction));
        let (mut true_numbers, mut predicted_numbers) =
            (ObjectNumbers { background: unknown, ..ObjectNumbers::default() }, ObjectNumbers::default());
        let mut rims = Rims::default();
        let plane = (extents.zyx[1] * extents.zyx[2]).max(1);
        for time in 0..extents.times {
            each_slab(context, [a, b], channels, time, &mut |p, t| {
                let _span = context.recorder.span(Stage::Validate, "overlaps").voxels(p.len());
                let true_objects = true_numbers.numbers(&report.truth, &t, time)?;
                let mut predicted = predicted_numbers.numbers(&report.prediction, &p, time)?;
                truth_check.add(&true_objects, width);
                prediction_check.add(&predicted, width);
                if let Some((label, is_found)) = &mut self.unknown {
                    let is_unknown = voxels_with(&t, *label as f64);
                    *is_found |= is_unknown.contains(&true);
                    // Rims depend on all slices of an object, even on completely annotated ones.
                    add_rims(&mut rims, plane, [&predicted, &true_objects], &is_unknown);
                    let unknown = predicted.iter_mut().zip(&is_unknown).filter(|(_, is_unknown)| **is_unknown);
                    unknown.for_each(|(number, _)| *number = 0);
                }
                Ok(overlaps.add(&true_objects, &predicted)?)
            })?;
        }
        overlaps.remove_predictions(&rims.labels());
        self.notes.extend([prediction_check.note(), truth_check.note()].into_iter().flatten());
        for (path, image, channel, numbers) in [
            (&report.prediction, a, channels.prediction, &predicted_numbers),
            (&report.truth, b, channels.truth, &true_numbers),
        ] {
            self.notes.extend(numbers.found().notes(context, path, image, channel)?);
        }
        let voxels = extents.zyx.iter().product::<usize>() as u64;
        for (path, sizes, numbers) in [
            (&report.prediction, overlaps.prediction(), &predicted_numbers),
            (&report.truth, overlaps.truth(), &true_numbers),
        ] {
            self.notes.extend(dominant_note(path, sizes, numbers, voxels));
        }
        let _span = context.recorder.span(Stage::Validate, "match objects");
        let counted = overlaps.ignoring_below(self.ignore_below_voxels);
        let ignored = Ignored {
            below_voxels: self.ignore_below_voxels,
            true_objects: (overlaps.truth().len() - counted.truth().len()) as u64,
            predictions: (overlaps.prediction().len() - counted.prediction().len()) as u64,
        };
        let voxel_um = voxel_um(b.meta()).or_else(|| voxel_um(a.meta()));
        let grid = Grid { voxel_um, flat: extents.zyx[0] == 1 };
        let found = Errors::of(&counted);
        let (instances, errors) = (counted.matching(&THRESHOLDS), Some(found.summary(grid)));
        Ok((PairReport { instances, errors, ignored: Some(ignored), ..report }, Some((found, grid))))
    }

    /// Returns the scores of all pairs and reports the notes, each once; `unpaired` are files without a matching file.
    pub fn finish(self, unpaired: Vec<PathBuf>) -> EvaluateReport {
        let has_labels = self.has_labels();
        let Self { context, ignore_below_voxels, unknown, reports, errors, mut notes, traffic } = self;
        if let Some((label, false)) = unknown {
            notes.push(Note::info(match has_labels {
                true => format!("no voxel of the ground truth has the label {label}, so none is left out"),
                false => format!("no file contains labels: no voxels are left out for having the label {label}"),
            }));
        }
        let columns: Vec<Vec<Matching>> = (0..THRESHOLDS.len())
            .map(|i| reports.iter().filter_map(|r: &PairReport| r.instances.get(i).cloned()).collect())
            .collect();
        let instances: Vec<Matching> = columns.iter().filter_map(|c| Matching::pooled(c)).collect();
        let scores: Vec<Regression> = reports.iter().filter_map(|r| r.regression).collect();
        let (regression, channels) = (mean_regression(&scores), means_by_name(&reports));
        let ignored = reports.iter().filter_map(|r| r.ignored).reduce(|a, b| Ignored {
            true_objects: a.true_objects + b.true_objects,
            predictions: a.predictions + b.predictions,
            ..a
        });
        match ignored {
            None if ignore_below_voxels > 0 => {
                notes.push(Note::info("no file contains labels: there are no small objects to ignore"));
            }
            Some(Ignored { below_voxels, true_objects, .. })
                if true_objects > 0 && instances.iter().all(|m| m.n_true == 0) =>
            {
                notes.push(Note::warning(format!(
                    "every true object ({true_objects} in all) has fewer than {below_voxels} voxels and is ignored, so \
                     that the scores say nothing about the predictions; ignore only smaller objects"
                )));
            }
            _ if !instances.is_empty() && instances.iter().all(|m| m.n_true == 0) => {
                notes.push(Note::warning(
                    "the ground truth contains no objects, so F1, AP and PQ are 0 whatever is predicted; compare the numbers of \
                     false objects",
                ));
            }
            _ => {}
        }
        let mut known = HashSet::new();
        // Several pairs may be parts or channels of the same files.
        notes.retain(|note| known.insert(note.to_string()));
        notes.iter().for_each(|note| context.note(note.clone()));
        let errors = (!errors.is_empty()).then(|| ErrorSummary::pooled(&errors));
        EvaluateReport {
            pairs: reports,
            instances,
            regression,
            channels,
            unpaired,
            errors,
            ignored,
            notes,
            traffic,
            device: None,
            precision: None,
        }
    }
}

/// Returns what the choice of channels needs to know about an image of a pair.
fn side_of<'a>(scored: &ScoredImage<'a>) -> Side<'a> {
    Side { path: scored.path, meta: scored.image.meta(), chosen: scored.channel, option: scored.option }
}

/// Returns the means of scores; those that a pair lacks are left out. `None` without scores.
fn mean_regression(scores: &[Regression]) -> Option<Regression> {
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
    let mean_of = |name: &str| {
        let scores: Vec<Regression> = all().filter(|c| c.name == name).map(|c| c.regression).collect();
        mean_regression(&scores).map(|regression| ChannelScores { name: name.to_owned(), regression })
    };
    names.into_iter().filter_map(mean_of).collect()
}

/// Refuses a pair of images, given with their paths, whose shapes differ.
fn check_shapes((prediction, a): (&Path, &Image), (truth, b): (&Path, &Image)) -> Result<(), JobError> {
    let (ea, eb) = (Extents::of(a.meta()), Extents::of(b.meta()));
    if (ea.zyx, ea.times) != (eb.zyx, eb.times) {
        let is_slice = ea.zyx[1..] == eb.zyx[1..] && ea.zyx[0].min(eb.zyx[0]) == 1;
        let next_step = match is_slice {
            true => "compare images of the same shape; numbered slices are one stack if a table names their folder",
            false => "compare images of the same shape",
        };
        let shape = |extents: &Extents| match extents.times {
            1 => format!("{:?}", extents.zyx),
            times => format!("{:?} with {times} time points", extents.zyx),
        };
        return Err(JobError::Mismatch {
            path: prediction.to_owned(),
            problem: format!("its shape {} differs from {} ({})", shape(&ea), truth.display(), shape(&eb)).into(),
            next_step: next_step.into(),
        });
    }
    Ok(())
}

/// Returns whether all values of a channel are those of a label image, or `unknown`.
fn hold_labels(context: &Context, image: &Image, channel: usize, unknown: Option<f64>) -> Result<bool, JobError> {
    fn are_labels<E: Element>(values: &[E], unknown: Option<f64>) -> bool {
        let is_label = |value: f64| value.fract() == 0.0 && (0.0..=MAX_LABEL).contains(&value);
        values.iter().map(|value| value.to_f64()).all(|value| is_label(value) || unknown == Some(value))
    }
    let Extents { zyx: [depth, ..], times, .. } = Extents::of(image.meta());
    for time in 0..times {
        let stack = Stack::new(image, time);
        let step = stack.slab_slices();
        for z in (0..depth).step_by(step) {
            let samples = stack.read(context, channel, z..(z + step).min(depth))?;
            if !with_samples!(&samples, values => are_labels(values, unknown)) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Returns a warning if one label fills so much of an image of `voxels` voxels that it is probably the background, or marks
/// voxels that are not annotated. `sizes` are the voxels of each object by its number.
fn dominant_note(path: &Path, sizes: &BTreeMap<u32, u64>, numbers: &ObjectNumbers, voxels: u64) -> Option<Note> {
    let (number, share) = dominant_label(sizes.iter().map(|(number, size)| (*number, *size)), voxels)?;
    let label = numbers.label_of(number)?;
    Some(Note::warning(message!(
        "{}: the object with the label {label} fills {:.0} % of it, much more than any other one; if it is the background, set \
         its voxels to 0; if it marks voxels of the ground truth that are not annotated, give {IGNORE_LABEL} {label}",
        path.display(),
        100.0 * share
    )))
}

/// Returns which voxels have this label.
fn voxels_with(labels: &Samples, label: f64) -> Vec<bool> {
    with_samples!(labels, values => values.iter().map(|value| value.to_f64() == label).collect())
}

/// Adds slices of `plane` voxels, as numbers of predicted and of true objects, to the search for rims.
fn add_rims(rims: &mut Rims, plane: usize, [predicted, true_objects]: [&[u32]; 2], is_unknown: &[bool]) {
    let slices = predicted.chunks(plane).zip(true_objects.chunks(plane)).zip(is_unknown.chunks(plane));
    for ((predicted, true_objects), is_unknown) in slices {
        let voxels = predicted.iter().zip(true_objects).zip(is_unknown);
        rims.add_slice(
            voxels.map(|((number, object), is_unknown)| (*number, Annotation::of(*is_unknown, *object > 0))),
        );
    }
}

/// Returns warnings about intensities whose scores are misleading: values that are not finite, and label images whose samples
/// are floats.
fn warnings_on_intensities<E: Element>(report: &PairReport, [prediction, truth]: [&[E]; 2]) -> Vec<Note> {
    let mut notes = Vec::new();
    for (path, values) in [(&report.prediction, prediction), (&report.truth, truth)] {
        let invalid = values.iter().filter(|value| !value.to_f64().is_finite()).count();
        if invalid > 0 {
            let (are, these) = (by_count(invalid, "is", "are"), by_count(invalid, "this value", "these values"));
            notes.push(Note::warning(format!(
                "{}: {invalid} of {} values {are} NaN or infinite, so its scores are 0 or undefined; replace {these}",
                path.display(),
                values.len()
            )));
        }
    }
    let is_like_label = |value: f64| value >= 0.0 && value.fract() == 0.0;
    let are_like_labels = |values: &[E]| values.iter().all(|value| is_like_label(value.to_f64()));
    let is_constant = |values: &[E]| values.iter().all(|value| Some(value) == values.first());
    if [prediction, truth].into_iter().all(|values| are_like_labels(values) && !is_constant(values)) {
        notes.push(Note::warning(format!(
            "{} and {}: all values are whole numbers, but not all are of an integer type, so intensities are compared; if they \
             are labels, convert both files to an integer type",
            report.prediction.display(),
            report.truth.display()
        )));
    }
    notes
}

/// Adds the scores of channels of intensity images, prediction and truth, to a report.
fn score_intensities(
    context: &Context,
    report: PairReport,
    images: [&Image; 2],
    pairs: &[ChannelPair],
    notes: &mut Vec<Note>,
) -> Result<PairReport, JobError> {
    // Rounding to 32 bits would change the scores of differences that are small beside the values.
    let are_exact = images.iter().all(|image| is_exact_as_f32(image.meta().dtype));
    let mut channels = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let (regression, warnings) = if are_exact {
            compare_intensities(context, &report, images, pair, Samples::to_f32)?
        } else {
            compare_intensities(context, &report, images, pair, Samples::to_f64)?
        };
        for note in warnings {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        channels.push(ChannelScores { name: pair.name.clone(), regression });
    }
    let scores: Vec<Regression> = channels.iter().map(|channel| channel.regression).collect();
    if channels.len() < 2 {
        channels.clear();
    }
    Ok(PairReport { regression: mean_regression(&scores), channels, ..report })
}

/// Whether all values of a sample type are exact as 32-bit floats.
pub(crate) fn is_exact_as_f32(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8 | DType::U16 | DType::I16 | DType::F16 | DType::F32)
}

/// Returns the scores of a channel of intensity images, prediction and truth, whose samples `convert` turns into numbers, and
/// warnings about them.
fn compare_intensities<E: Element>(
    context: &Context,
    report: &PairReport,
    images: [&Image; 2],
    pair: &ChannelPair,
    convert: fn(&Samples) -> Vec<E>,
) -> Result<(Regression, Vec<Note>), JobError> {
    let Extents { zyx, times, .. } = Extents::of(images[0].meta());
    let (mut p_all, mut t_all): (Vec<E>, Vec<E>) = (Vec::new(), Vec::new());
    for time in 0..times {
        each_slab(context, images, pair, time, &mut |p, t| {
            p_all.extend(convert(&p));
            t_all.extend(convert(&t));
            Ok(())
        })?;
    }
    let warnings = warnings_on_intensities(report, [&p_all, &t_all]);
    let _span = context.recorder.span(Stage::Validate, "compare intensities").voxels(p_all.len());
    Ok((regression(&t_all, &p_all, times, zyx)?, warnings))
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
    by_label: HashMap<(usize, u64), u32>,
    /// A further label that counts as background.
    background: Option<f64>,
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

    /// Returns the label of an object with this number.
    fn label_of(&self, number: u32) -> Option<u64> {
        self.by_label.iter().find(|(_, other)| **other == number).map(|((_, label), _)| *label)
    }

    /// Returns the labels that were numbered.
    fn found(&self) -> FoundLabels {
        let mut found = FoundLabels::default();
        self.by_label.keys().for_each(|(time, label)| found.add(*label, *time));
        found
    }

    fn number(&mut self, path: &Path, label: f64, time: usize) -> Result<u32, JobError> {
        if label == 0.0 || self.background == Some(label) {
            return Ok(0);
        }
        let mismatch = |problem: String| {
            let next_step = message!(
                "give a label image: 0 for the background and a whole number above 0 for each object; a value of \
                 the ground truth for voxels that are not annotated is left out with {IGNORE_LABEL}"
            );
            JobError::Mismatch { path: path.to_owned(), problem: problem.into(), next_step }
        };
        if !(1.0..=MAX_LABEL).contains(&label) || label.fract() != 0.0 {
            return Err(mismatch(format!("the value {label} is not a label")));
        }
        let next = u32::try_from(self.by_label.len() + 1);
        let next = next.map_err(|_| mismatch("it has more objects than can be numbered".to_owned()))?;
        Ok(*self.by_label.entry((time, label as u64)).or_insert(next))
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
