//! Evaluation of predictions against ground truth, per file and overall.

mod pairing;

pub(crate) use pairing::{looks_like_labels, pair_key};

use crate::evaluation::{Evaluation, ScoredImage};
use crate::folder_digest::{further_records, records_before, refuse_changed};
use crate::job_record::{DeviceRecord, PendingRecord, absolute, recorded};
use crate::label_notes::other_orientation_note;
use crate::predict::file_notes::{OtherSeries, first_series_note, label_series_note, missing_notes, regions_note};
use crate::predict::is_raster;
use crate::predict::resolve::{check_given_axes, check_voxel_size};
use crate::predict::zarr::labels_path;
use crate::results::{check_json_file, moved_aside_note};
use crate::stack::{Extents, limit_readers};
use crate::{Context, JobError, Note, ProgressStage, ProgressUnit, deserialize};
use cytoscope_engine::Precision;
use cytoscope_formats::{ChannelRef, Image, OpenOptions, SeriesChoice, is_zarr_folder, label_series, open};
use cytoscope_objects::matching::Matching;
use cytoscope_objects::regression::Regression;
use cytoscope_objects::segmentation_errors::ErrorSummary;
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::json::write_checked_json;
use cytoscope_storage::message;
use cytoscope_storage::setting::{PRED_CHANNEL, TRUTH_CHANNEL, VOXEL_SIZE};
use cytoscope_storage::target::{check_extension, check_writable, resolved};
use cytoscope_volume::VoxelSize;
use pairing::{files_by_key, truths_by_key};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Scores predictions against ground truth: label images by matching objects, other images by intensity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluateJob {
    /// Predictions: a file or a folder.
    pub prediction: PathBuf,
    /// Ground truth: a file, or a folder of files with matching names.
    pub truth: PathBuf,
    /// True objects with fewer voxels than this, and predicted objects that mostly overlap them, are ignored; see
    /// [`cytoscope_objects::matching::Overlaps::ignoring_below`].
    #[serde(default)]
    pub ignore_below_voxels: u64,
    /// Label of voxels of the ground truth that are not annotated and do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_label: Option<i64>,
    /// Series of predictions and ground truth, by number or name; ignored for files with a single series. An OME-Zarr with one
    /// label image is scored by it against labels, unless its image is chosen by name.
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
    /// Voxel size in µm along single axes, to use instead of that of the files, which keep their own along the others.
    /// [`EvaluateJob::voxel_um`] takes its place.
    #[serde(default, skip_serializing_if = "VoxelSize::is_unknown")]
    pub voxel_axes_um: VoxelSize,
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
    /// A label image or a stain that is scored.
    Prediction,
    /// The ground truth that it is compared with.
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
    /// Path of the predicted labels or stain; if a model is evaluated, path of the image that it predicted.
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
    #[serde(flatten, with = "crate::note::texts_if_any")]
    pub notes: Vec<Note>,
    /// Traffic between the host and the device while a model was run on all pairs; absent on the CPU, and if the predictions
    /// were read from files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<cytoscope_profile::DeviceTraffic>,
    /// The device that predicted the images of a model, or the last one of them if a device has failed; absent if the
    /// predictions were read from files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceRecord>,
    /// Precision in which the network ran on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
}

impl EvaluateReport {
    /// Returns the report with absolute paths: its file may be read from any folder.
    pub fn with_absolute_paths(&self) -> Self {
        let pairs = self.pairs.iter().map(|pair| PairReport {
            prediction: absolute(&pair.prediction),
            truth: absolute(&pair.truth),
            ..pair.clone()
        });
        let unpaired = self.unpaired.iter().map(|path| absolute(path));
        Self { pairs: pairs.collect(), unpaired: unpaired.collect(), ..self.clone() }
    }
}

/// Returns the names of the channels that an [`EvaluateJob`] of a series can choose from in an image, or in the first one of a
/// folder; none if it cannot be read. Channels without a name are named by their number. `predictions`, if they are chosen, decide
/// whether a folder of ground truth with labels and targets is scored by its targets.
pub fn channels_to_score(
    path: &Path,
    role: PairRole,
    predictions: Option<&Path>,
    series: &SeriesChoice,
) -> Vec<String> {
    let predicted = predictions.filter(|_| role == PairRole::Truth).and_then(|path| files_by_key(path).ok());
    let files = match predicted {
        Some((predictions, _)) => truths_by_key(path, &predictions),
        None => files_by_key(path),
    };
    let file = match files.ok().and_then(|(files, _)| files.into_values().next()) {
        _ if is_image(path) => path.to_owned(),
        Some(first) => first,
        None => return Vec::new(),
    };
    let file = if role == PairRole::Prediction { labels_path(&file) } else { file };
    let (options, series) = (options_for(&file, path), series_in(series, &file));
    let opened = match role {
        PairRole::Prediction => series.open_labels(&file, &options),
        PairRole::Truth => series.open_or_only(&file, &options),
    };
    let Ok(image) = opened else { return Vec::new() };
    let meta = image.meta();
    (0..Extents::of(meta).channels).map(|channel| meta.channel_name(channel)).collect()
}

/// Returns the choice of a series in a file. A number counts the images of the stack's file, so that an OME-Zarr with maps
/// and labels counts as the only series of its file, as it does for measurements.
fn series_in(series: &SeriesChoice, path: &Path) -> SeriesChoice {
    match series {
        // The first series is the default; the file is opened only for others.
        SeriesChoice::Index(1..) if label_series(path).is_some() => SeriesChoice::default(),
        _ => series.clone(),
    }
}

/// Returns the options for opening `file`, which was found in the folder `given`, or is `given` itself. In a folder,
/// each TIFF file is a separate image, as in training data: numbers in names count images more often than slices.
fn options_for(file: &Path, given: &Path) -> OpenOptions {
    OpenOptions { single_file: !is_image(given) && !is_raster(file), ..OpenOptions::default() }
}

/// Returns whether two images differ in depth only because one or both were opened as numbered series: each is a single slice,
/// or would be if its file was opened alone.
fn differ_as_numbered_series(a: &Image, b: &Image) -> bool {
    let depth = |image: &Image| Extents::of(image.meta()).zyx[0];
    let can_be_slice = |image: &Image| depth(image) == 1 || image.meta().is_numbered_series();
    depth(a) != depth(b) && can_be_slice(a) && can_be_slice(b)
}

/// Returns whether a path is an image, and not a folder of images.
fn is_image(path: &Path) -> bool {
    path.is_file() || is_zarr_folder(path)
}

impl EvaluateJob {
    /// Runs the job.
    ///
    /// # Errors
    /// [`JobError`] if no files match, a file cannot be read or changes while it is read, the shapes of a pair differ,
    /// or the report cannot be written.
    pub fn run(&self, context: &Context) -> Result<EvaluateReport, JobError> {
        let Some(out) = &self.out else { return self.evaluate(context, None) };
        check_extension(out, &["json"])?;
        check_json_file(out, &[&self.prediction, &self.truth], self.overwrite)?;
        check_writable(out)?;
        recorded(self, context, |record| {
            let report = self.evaluate(context, Some(record))?;
            let aside = write_checked_json(out, &report.with_absolute_paths(), self.overwrite)?;
            aside.iter().for_each(|aside| context.note(moved_aside_note(aside)));
            Ok(report)
        })
    }

    fn evaluate(
        &self,
        context: &Context,
        mut record: Option<&mut PendingRecord<Self>>,
    ) -> Result<EvaluateReport, JobError> {
        if let Some([z, y, x]) = self.voxel_um {
            check_voxel_size(&self.truth, VoxelSize::new_um(z, y, x), self.voxel_um)?;
        }
        check_given_axes(self.voxel_axes_um)?;
        let (mut unpaired, mut notes) = (Vec::new(), Vec::new());
        let pairs: Vec<(PathBuf, PathBuf)> = if is_image(&self.prediction) && is_image(&self.truth) {
            vec![(self.prediction.clone(), self.truth.clone())]
        } else {
            let (predictions, prediction_notes) = files_by_key(&self.prediction)?;
            let (mut truths, truth_notes) = truths_by_key(&self.truth, &predictions)?;
            notes.extend(prediction_notes.into_iter().chain(truth_notes));
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
            let next_step = if is_image(&self.prediction) == is_image(&self.truth) {
                "give matching files the same name, such as cell1_labels.tif in both folders"
            } else {
                "give two files or two folders; numbered slices in a folder are scored as a stack if one of its files is given"
            };
            return Err(JobError::Mismatch {
                path: self.prediction.clone(),
                problem: format!("no file name matches one in {}", self.truth.display()).into(),
                next_step: next_step.into(),
            });
        }
        let mut read = records_before(pairs.iter().flat_map(|(prediction, truth)| [prediction, truth]));
        let mut meter = context.meter(ProgressStage::Evaluate, pairs.len() as u64, ProgressUnit::Files);
        let mut evaluation = Evaluation::new(context, self.ignore_below_voxels).ignoring_label(self.ignore_label);
        notes.into_iter().for_each(|note| evaluation.add_note(note));
        if let Some(note) = self.same_file_note(&pairs) {
            evaluation.add_note(note);
        }
        for (prediction, truth) in pairs {
            let mut opened = |image: &Image| {
                read.extend(further_records(image));
                // A folder of images is recorded with all of its files.
                if let Some(record) = record.as_deref_mut().filter(|_| is_image(&self.prediction)) {
                    record.add_image_files(image);
                }
            };
            let prediction = labels_path(&prediction);
            self.score(context, &mut evaluation, (prediction.as_path(), truth.as_path()), &mut opened)?;
            meter.add(1)?;
        }
        refuse_changed(&read)?;
        // Other files of a folder may change.
        if let Some(record) = record.filter(|_| is_image(&self.prediction) && is_image(&self.truth)) {
            record.refuse_changed()?;
        }
        if self.voxel_um.is_some() && !evaluation.has_labels() {
            evaluation
                .add_note(message!("no file contains labels: {VOXEL_SIZE} changes only the diameters of objects"));
        }
        Ok(evaluation.finish(unpaired))
    }

    /// Returns a warning if an image is compared with itself, for example because the same folder was given twice.
    fn same_file_note(&self, pairs: &[(PathBuf, PathBuf)]) -> Option<Note> {
        if self.prediction_channel != self.truth_channel {
            return None;
        }
        let (same, _) = pairs.iter().find(|(prediction, truth)| resolved(prediction) == resolved(truth))?;
        Some(Note::warning(format!(
            "{} is compared with itself, which says nothing about its quality: give different files as prediction and ground \
             truth",
            absolute(same).display()
        )))
    }

    /// Opens and scores a pair. `opened` is called with each image before it is read.
    fn score(
        &self,
        context: &Context,
        evaluation: &mut Evaluation<'_>,
        (prediction, truth): (&Path, &Path),
        opened: &mut dyn FnMut(&Image),
    ) -> Result<(), JobError> {
        let opening = context.recorder.span(Stage::Read, "open");
        let (mut a, mut b) = self.open_pair(prediction, truth)?;
        if is_image(&self.prediction) && is_image(&self.truth) && differ_as_numbered_series(&a, &b) {
            let alone = OpenOptions { single_file: true, ..OpenOptions::default() };
            (a, b) = (self.open(prediction, &alone)?, self.open(truth, &alone)?);
        }
        let (a, b) = self.labels_in((prediction, a), (truth, b))?;
        opening.finish();
        opened(&a);
        opened(&b);
        limit_readers(&[&a, &b], None);
        for (path, image) in [(prediction, &a), (truth, &b)] {
            let series_note = first_series_note(&self.series, image.meta(), "is scored", OtherSeries::One);
            let label_note = label_series_note(&self.series_in(path), image.meta(), "is scored");
            let file_notes = missing_notes(image.meta()).into_iter().chain(regions_note(image.meta()));
            for note in file_notes.chain(series_note).chain(label_note) {
                evaluation.add_note(message!("{}: {note}", absolute(path).display()));
            }
        }
        if let Some(note) = other_orientation_note(truth, prediction) {
            evaluation.add_note(note);
        }
        let prediction = ScoredImage {
            path: prediction,
            image: &a,
            channel: self.prediction_channel.as_ref(),
            option: PRED_CHANNEL,
            are_labels: false,
        };
        let truth = ScoredImage {
            path: truth,
            image: &b,
            channel: self.truth_channel.as_ref(),
            option: TRUTH_CHANNEL,
            are_labels: looks_like_labels(truth),
        };
        evaluation.score(prediction, truth)
    }

    /// Opens an image of a pair, with the voxel size of the job.
    fn open(&self, path: &Path, options: &OpenOptions) -> Result<Image, JobError> {
        Ok(self.with_voxel_size(&self.series_in(path).open_or_only(path, options)?))
    }

    /// Returns the choice of a series in a file.
    fn series_in(&self, path: &Path) -> SeriesChoice {
        series_in(&self.series, path)
    }

    /// Returns an image with the voxel size of the job.
    fn with_voxel_size(&self, image: &Image) -> Image {
        match self.voxel_um {
            Some([z, y, x]) => image.with_voxel_size(VoxelSize::new_um(z, y, x)),
            None => image.with_voxel_size(self.voxel_axes_um.or(image.meta().voxel_size_um)),
        }
    }

    /// Returns the images to score: those of a pair or, if no series was chosen by name, the label image that an OME-Zarr holds
    /// beside its image, if it is compared with integers or with another such label image.
    fn labels_in(
        &self,
        (prediction, a): (&Path, Image),
        (truth, b): (&Path, Image),
    ) -> Result<(Image, Image), JobError> {
        let series_in = |path: &Path| label_series(path).filter(|_| self.series_in(path).is_first());
        let (prediction_series, truth_series) = (series_in(prediction), series_in(truth));
        let labels = |path: &Path, series: Option<usize>, may_be: bool| -> Result<Option<Image>, JobError> {
            let Some(series) = series.filter(|_| may_be) else { return Ok(None) };
            let image = open(path, &OpenOptions { series, ..OpenOptions::default() })?;
            Ok(Some(self.with_voxel_size(&image)))
        };
        let holds_labels = |image: &Image, series: Option<usize>| series.is_some() || !image.meta().dtype.is_float();
        let labels_of_prediction = labels(prediction, prediction_series, holds_labels(&b, truth_series))?;
        let labels_of_truth = labels(truth, truth_series, holds_labels(&a, prediction_series))?;
        Ok((labels_of_prediction.unwrap_or(a), labels_of_truth.unwrap_or(b)))
    }

    /// Opens both images of a pair. Regions of interest have no extents of their own: they are drawn on the extents of the
    /// other image or, if that has none either, on a stack that contains the regions of both. A set without regions is an
    /// image without objects; it can be opened only with extents.
    fn open_pair(&self, prediction: &Path, truth: &Path) -> Result<(Image, Image), JobError> {
        let open = |path: &Path, given: &Path, drawn_on: Option<Extents>| {
            let (shape_zyx, times) = (drawn_on.map(|extents| extents.zyx), drawn_on.map(|extents| extents.times));
            self.open(path, &OpenOptions { shape_zyx, times, ..options_for(path, given) })
        };
        let open_prediction = |drawn_on| open(prediction, &self.prediction, drawn_on);
        let open_truth = |drawn_on| open(truth, &self.truth, drawn_on);
        let a = open_prediction(None).or_else(|error| match open_truth(None) {
            Ok(truth) => open_prediction(Some(Extents::of(truth.meta()))),
            Err(_) => Err(error),
        })?;
        let extents = Extents::of(a.meta());
        if !a.is_without_extents() {
            return Ok((a, open_truth(Some(extents))?));
        }
        let b = open_truth(None).or_else(|_| open_truth(Some(extents)))?;
        let mut common = Extents::of(b.meta());
        if !b.is_without_extents() {
            return Ok((open_prediction(Some(common))?, b));
        }
        common.zyx.iter_mut().zip(extents.zyx).for_each(|(extent, other)| *extent = (*extent).max(other));
        common.times = common.times.max(extents.times);
        Ok((open_prediction(Some(common))?, open_truth(Some(common))?))
    }
}

#[cfg(test)]
mod tests;
