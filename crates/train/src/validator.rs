//! Scores of a network through the prediction pipeline: stacks are predicted in tiles, segmented and compared with the
//! ground truth.

mod comparison;
mod ignored;
mod parts;
mod scores;

pub use comparison::Comparison;
pub(crate) use scores::SCORE_VERSION;
pub use scores::{PairScore, Scores};

use crate::budget::ValidationSize;
use crate::candidate::Candidate;
use crate::crop::{crop, crop_window};
use crate::error::{data_error, problem_without_file};
use crate::stacks::{
    Stack, channels_array, is_whole_file, joined_image, read_channels, read_labels, read_zyx, replace_non_finite,
    trained_voxel_um, validated_part,
};
use cytoscope_formats::{ChannelRef, Image, OpenOptions, image_in_memory, open};
use cytoscope_pipeline::{
    CancelToken, DiameterRequest, ImagePreprocessing, JobError, JobErrorKind, PredictOptions, PredictedVolume,
    VolumeOutputs,
};
use cytoscope_training_data::{ImageRef, Pair, StackWindow, TargetKind, assumed_voxel, median_diameter_um};
use cytoscope_volume::VoxelSize;
use scores::Tally;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A validation pair, or a crop of one.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Name of the pair, by which scores and object counts are found.
    pub name: String,
    /// The input channels; at least one.
    images: Vec<ImageRef>,
    /// The part of the image that is predicted; `None` for all of it.
    window: Option<StackWindow>,
    truth: Truth,
    /// Voxel size along Z, Y, X in µm; for models with a nominal diameter, in voxels along X if it is unknown.
    voxel_um: Option<[f64; 3]>,
    /// Median object diameter in the same unit, for models with a nominal diameter.
    diameter: Option<f64>,
}

impl Case {
    /// Returns the first input channel.
    fn image(&self) -> Result<&ImageRef, JobError> {
        self.images.first().ok_or_else(|| JobError::Internal("validation: a pair has no image".to_owned()))
    }

    /// Reads a part of the first channel of the case's image.
    pub(crate) fn read(&self, part: StackWindow) -> Result<Stack, JobError> {
        let origin = self.window.map_or([0; 3], |w| w.start_zyx);
        let start_zyx = std::array::from_fn(|a| origin[a] + part.start_zyx[a]);
        read_zyx(self.image()?, Some(StackWindow { start_zyx, ..part }))
    }

    /// Returns an image that contains only the case's image: its file, or the part of it in memory.
    fn open(&self) -> Result<Image, JobError> {
        let image = self.image()?;
        if self.window.is_none() && self.images.len() == 1 && is_whole_file(image) {
            return Ok(open(&image.path, &OpenOptions { single_file: true, ..OpenOptions::default() })?);
        }
        let array = channels_array(read_channels(self.images.iter(), self.window)?, self.images.len())?;
        Ok(image_in_memory(&image.path, array, VoxelSize::default())?)
    }

    /// Returns the whole image that the case is a part of; it is read when it is needed.
    fn open_whole(&self) -> Result<Image, JobError> {
        joined_image(&self.images)
    }

    /// Returns the options that its prediction needs.
    fn options(&self) -> PredictOptions {
        PredictOptions {
            voxel_um: self.voxel_um,
            // The image in memory has these channels only, without their names.
            channels: match self.images.len() {
                0 | 1 => Vec::new(),
                count => (0..count).map(ChannelRef::Index).collect(),
            },
            diameter: self.diameter.map_or(DiameterRequest::Auto, DiameterRequest::Given),
            ..PredictOptions::default()
        }
    }
}

/// The ground truth, axes C, Z, Y, X, and its shape Z, Y, X. Only stains have several channels.
#[derive(Debug, Clone)]
struct Truth(Arc<Stack>);

impl Truth {
    /// Returns the number of voxels of a channel.
    fn voxels(&self) -> usize {
        self.0.1.iter().product()
    }
}

/// Predicts and scores the validation pairs.
pub(crate) struct Validator {
    /// Pairs that are predicted in each validation, limited to the time that a validation may take.
    pub cases: Vec<Case>,
    /// All validation pairs; `cases` are some of them.
    pub pairs: Vec<Pair>,
    /// Number of true objects of pairs by name, as far as known.
    objects: BTreeMap<String, usize>,
    target: TargetKind,
    /// Names of the network's outputs, which are the stains for label-free prediction.
    stains: Vec<String>,
    /// Voxel size along Z, Y, X in µm of files that state none.
    assumed_um: [f64; 3],
    /// Ignore label, whose voxels are not compared.
    ignored: Option<f32>,
    diameters: Diameters,
    /// Preprocessing of the whole images of the pairs of which a part was predicted, by name.
    preprocessing: Arc<Mutex<BTreeMap<String, ImagePreprocessing>>>,
}

/// Options of a [`Validator`].
#[derive(Debug)]
pub(crate) struct ValidatorOptions {
    /// Maximum number of pairs that are predicted. The pairs are split into that many runs of successive pairs, and the pair
    /// with the most objects of each run is predicted.
    pub max_cases: usize,
    /// Number of true objects of pairs by name, as far as known.
    pub objects: BTreeMap<String, usize>,
    /// Target that the network is trained to output, which determines how it is scored.
    pub target: TargetKind,
    /// Names of the network's outputs, which are the stains for label-free prediction.
    pub stains: Vec<String>,
    /// Voxel size of the model along Z, Y, X in µm.
    pub model_um: Option<[f64; 3]>,
    /// Ignore label, whose voxels are not compared.
    pub ignored: Option<i64>,
    /// Diameters by which images are scaled before the prediction.
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
    /// Voxel size of the model's grid along Z, Y, X in µm.
    pub grid_um: Option<[f64; 3]>,
}

impl Validator {
    /// Opens the pairs, and crops large ones.
    pub(crate) fn new(pairs: &[Pair], options: ValidatorOptions) -> Result<Self, JobError> {
        let ValidatorOptions { max_cases, objects, target, stains, model_um, ignored, diameters } = options;
        let empty = Self {
            cases: Vec::new(),
            pairs: pairs.to_vec(),
            objects,
            target,
            stains,
            // With a nominal diameter, the diameters of files without a voxel size are in voxels.
            assumed_um: model_um.filter(|_| diameters.nominal_um.is_none()).unwrap_or([1.0; 3]),
            ignored: ignored.filter(|_| target.is_from_labels()).map(|label| label as f32),
            diameters,
            preprocessing: Arc::default(),
        };
        empty.resized(ValidationSize { cases: max_cases, voxels: usize::MAX })
    }

    /// Returns a validator with another number of pairs, or crops of them.
    pub(crate) fn resized(&self, size: ValidationSize) -> Result<Self, JobError> {
        let mut cases = Vec::new();
        for pair in representatives(&self.pairs, &self.objects, size.cases) {
            cases.push(self.case(pair, size.voxels)?);
        }
        Ok(Self {
            cases,
            pairs: self.pairs.clone(),
            objects: self.objects.clone(),
            target: self.target,
            stains: self.stains.clone(),
            assumed_um: self.assumed_um,
            ignored: self.ignored,
            diameters: self.diameters,
            preprocessing: Arc::clone(&self.preprocessing),
        })
    }

    /// Prepares a pair, cropped to at most `max_voxels` voxels.
    fn case(&self, pair: &Pair, max_voxels: usize) -> Result<Case, JobError> {
        let mut window = validated_part(pair, self.target.is_from_labels(), self.ignored)?;
        // The first target decides where the pair is cropped.
        let mut truth = match self.target.is_from_labels() {
            true => read_labels(&pair.target, window, self.ignored)?,
            false => read_zyx(&pair.target, window)?,
        };
        replace_non_finite(&mut truth.0);
        let voxel_um = match trained_voxel_um(pair)? {
            // Predictions assume the same for a stack in which they find these objects.
            None if self.diameters.nominal_um.is_some() => {
                let (file, (labels, shape)) = (&pair.target.path, &truth);
                Some(assumed_voxel(file, labels, *shape, self.ignored, self.diameters.grid_um).map_err(data_error)?)
            }
            stated => stated,
        };
        let diameter = self.diameter(&pair.target.path, &truth, voxel_um)?;
        let cropped = crop_window(&truth, voxel_um.unwrap_or(self.assumed_um), self.ignored, max_voxels);
        if let Some(inside) = &cropped {
            truth = crop(&truth, inside);
        }
        for stain in &pair.more_targets {
            let mut stack = read_zyx(stain, window)?;
            replace_non_finite(&mut stack.0);
            truth.0.extend(cropped.as_ref().map_or_else(|| stack.0.clone(), |inside| crop(&stack, inside).0));
        }
        if let Some(inside) = cropped {
            let origin = window.map_or([0; 3], |w| w.start_zyx);
            let start_zyx = std::array::from_fn(|a| origin[a] + inside.start_zyx[a]);
            window = Some(StackWindow { start_zyx, ..inside });
        }
        let (name, images) = (pair.name.clone(), pair.images().cloned().collect());
        Ok(Case { name, images, window, truth: Truth(Arc::new(truth)), voxel_um, diameter })
    }

    /// Returns the object diameter of a case: the given one, or else the median of its true labels; `None` without a
    /// nominal diameter.
    fn diameter(
        &self,
        file: &Path,
        (labels, shape_zyx): &Stack,
        voxel_um: Option<[f64; 3]>,
    ) -> Result<Option<f64>, JobError> {
        match self.diameters {
            Diameters { nominal_um: None, .. } => Ok(None),
            Diameters { given_um: Some(given_um), .. } => Ok(Some(given_um)),
            Diameters { given_um: None, .. } => {
                let voxel_um = voxel_um.unwrap_or(self.assumed_um);
                median_diameter_um(file, labels, *shape_zyx, self.ignored, voxel_um).map_err(data_error)
            }
        }
    }

    /// Returns the number of cases and of voxels.
    pub(crate) fn size(&self) -> ValidationSize {
        let voxels = self.cases.iter().map(|c| c.truth.voxels()).max().unwrap_or(0);
        ValidationSize { cases: self.cases.len(), voxels }
    }

    /// Returns the number of voxels of each case.
    pub(crate) fn voxels(&self) -> Vec<usize> {
        self.cases.iter().map(|c| c.truth.voxels()).collect()
    }

    /// Returns how many voxels on the network's grid a voxel of a file becomes, averaged over the cases.
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
    /// [`JobError::Mismatch`] with the image's path if it does not fit; [`JobError::Input`] with the image's path for errors
    /// of other kinds, such as too little memory; [`JobError::Canceled`].
    pub(crate) fn predict(
        &self,
        cancel: &CancelToken,
        candidate: &Candidate,
        case: usize,
        outputs: VolumeOutputs,
    ) -> Result<PredictedVolume, JobError> {
        let known = self.cases.get(case);
        let case = known.ok_or_else(|| JobError::Internal(format!("validation: there is no pair {case}")))?;
        let path = &case.image()?.path;
        let predicted = self
            .preprocessing(cancel, candidate, case)
            .and_then(|whole| candidate.predict(cancel, &case.open()?, case.options(), outputs, whole.as_ref()));
        predicted.map_err(|error| image_error(path, error))
    }

    /// Predicts the labels or the stain of a case, axes Z, Y, X.
    fn predict_target(&self, cancel: &CancelToken, candidate: &Candidate, case: usize) -> Result<Vec<f32>, JobError> {
        let is_from_labels = self.target.is_from_labels();
        let outputs = if is_from_labels { VolumeOutputs::Labels } else { VolumeOutputs::Maps };
        let PredictedVolume { maps, labels, .. } = self.predict(cancel, candidate, case, outputs)?;
        let labels = labels.map(|labels| labels.into_iter().map(|label| label as f32).collect());
        let made = if is_from_labels { labels } else { maps };
        made.ok_or_else(|| JobError::Internal("validation: the prediction has no result".to_owned()))
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
            if cancel.is_canceled() {
                return Err(JobError::Canceled);
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
        let (mut pairs, mut shares) = (Vec::with_capacity(self.cases.len()), Vec::new());
        for made in labels {
            let (at, found) = made?;
            let Some(case) = self.cases.get(at) else { continue };
            let (truth, shape) = case.truth.0.as_ref();
            let one = match self.ignored.filter(|label| truth.contains(label)) {
                None => Tally::of(self.target, truth, &found, *shape)?,
                Some(label) => {
                    let mut found = found;
                    if self.target != TargetKind::Semantic {
                        ignored::remove_rims(&mut found, truth, label, *shape);
                    }
                    let seen = |values: &[f32]| -> Vec<f32> {
                        let ignored = |i: usize| truth.get(i) == Some(&label);
                        values.iter().enumerate().map(|(i, v)| if ignored(i) { 0.0 } else { *v }).collect()
                    };
                    Tally::of(self.target, &seen(truth), &seen(&found), *shape)?
                }
            };
            let (score, scores) = one.scores(self.target, &self.stains);
            pairs.push(PairScore { name: case.name.clone(), score, scores });
            shares.extend(one.shares.iter().map(|share| (at, *share)));
            all.add(one);
        }
        let (score, scores) = all.scores(self.target, &self.stains);
        Ok(Scores { score, scores, pairs, shares })
    }

    /// Returns the ground truth of a case, axes C, Z, Y, X, and its shape Z, Y, X.
    pub(crate) fn truth(&self, case: usize) -> Option<(&[f32], [usize; 3])> {
        self.cases.get(case).map(|c| (c.truth.0.0.as_slice(), c.truth.0.1))
    }

    /// Returns the label of voxels that are not compared, as a value of the ground truth.
    pub(crate) fn ignored_label(&self) -> Option<f32> {
        self.ignored
    }

    /// Returns the voxel size of a case along Z, Y, X in µm.
    pub(crate) fn voxel_um(&self, case: usize) -> [f64; 3] {
        self.cases.get(case).and_then(|c| c.voxel_um).unwrap_or(self.assumed_um)
    }
}

/// Returns the error of a prediction with the image's path. What the image itself is to blame for becomes a mismatch.
fn image_error(path: &Path, error: JobError) -> JobError {
    match error.kind() {
        JobErrorKind::Canceled => JobError::Canceled,
        JobErrorKind::OutOfResources | JobErrorKind::Other => {
            JobError::Input { path: path.to_owned(), error: Box::new(error) }
        }
        JobErrorKind::BadInput | JobErrorKind::WrongUse | JobErrorKind::WouldOverwrite => JobError::Mismatch {
            path: path.to_owned(),
            problem: problem_without_file(error, path),
            next_step: "correct the pair, or remove it from the data".into(),
        },
    }
}

/// Returns at most `count` of the pairs, spread over all of them: the one with the most objects of each run of successive
/// pairs, because a score of few objects says little.
fn representatives<'a>(
    pairs: &'a [Pair],
    objects: &BTreeMap<String, usize>,
    count: usize,
) -> impl Iterator<Item = &'a Pair> {
    let run = pairs.len().div_ceil(count.max(1)).max(1);
    let objects = |pair: &&Pair| objects.get(&pair.name).copied().unwrap_or(0);
    pairs.chunks(run).filter_map(move |pairs| pairs.iter().max_by_key(objects))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::score_name::ScoreName;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::{Array, Axes};

    #[test]
    fn only_what_an_image_is_to_blame_for_is_bad_input() {
        let path = Path::new("a.tif");
        let failed = |error| {
            let error = image_error(path, error);
            assert!(matches!(error, JobError::Canceled) || error.names(path), "{error}");
            error.kind()
        };
        let io = |kind: std::io::ErrorKind| JobError::Io { path: "/tmp/x".into(), error: kind.into() };
        let memory = JobError::Budget { needed_bytes: 2, budget_bytes: 1, next_step: "".into() };
        assert_eq!(failed(memory), JobErrorKind::OutOfResources);
        assert_eq!(failed(io(std::io::ErrorKind::StorageFull)), JobErrorKind::OutOfResources);
        assert_eq!(failed(io(std::io::ErrorKind::PermissionDenied)), JobErrorKind::Other);
        assert_eq!(failed(JobError::Canceled), JobErrorKind::Canceled);
        assert_eq!(failed(JobError::wrong_use("it has several time points".to_owned())), JobErrorKind::BadInput);
    }

    #[test]
    fn pairs_with_many_objects_are_validated() {
        let counts = [2, 9, 4, 4, 30, 31, 0, 5];
        let pairs: Vec<Pair> = (0..8).map(|i| Pair::new(format!("p{i}"), format!("{i}.tif"), "labels.tif")).collect();
        let objects: BTreeMap<String, usize> = counts.iter().enumerate().map(|(i, n)| (format!("p{i}"), *n)).collect();
        let chosen = |count| representatives(&pairs, &objects, count).map(|p| p.name.as_str()).collect::<Vec<_>>();
        assert_eq!(chosen(4), ["p1", "p3", "p5", "p7"]);
        assert_eq!((chosen(3), chosen(1)), (vec!["p1", "p5", "p7"], vec!["p5"]));
        assert_eq!((chosen(8).len(), chosen(100).len()), (8, 8));
        assert_eq!(representatives(&pairs, &BTreeMap::new(), 2).count(), 2, "stains have no objects");
    }

    #[test]
    fn objects_with_large_labels_are_scored_one_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // Two objects that touch, with the background below them.
        let number = |i: usize| if i / 8 % 4 < 2 { 1 + (i % 8 / 4) as u32 } else { 0 };
        let write = |name: &str, values: Vec<u32>| {
            let array = Array::new(Axes::zyx(), vec![2, 4, 8], values).unwrap();
            write_array(&path(name), &array, &WriteSpec::of(&array, Container::OmeTiff)).unwrap();
        };
        write("a.ome.tif", (0..64).map(number).collect());
        let large = |i: usize| if number(i) > 0 { (1 << 26) + number(i) } else { 0 };
        write("labels.ome.tif", (0..64).map(large).collect());
        let options = ValidatorOptions {
            max_cases: 1,
            objects: BTreeMap::new(),
            target: TargetKind::Instances,
            stains: Vec::new(),
            model_um: None,
            ignored: None,
            diameters: Diameters::default(),
        };
        let validator = Validator::new(&[Pair::new("a", path("a.ome.tif"), path("labels.ome.tif"))], options).unwrap();
        let found: Vec<f32> = (0..64).map(|i| number(i) as f32).collect();
        assert_eq!(validator.score_labels(std::iter::once(Ok((0, found)))).unwrap().score, 1.0);
    }

    #[test]
    fn the_score_of_several_stains_is_their_mean_and_each_is_listed() {
        // The first stain is predicted up to a factor, the second one reversed.
        let truth: Vec<f32> = (0..2 * 64).map(|i| (i % 64) as f32).collect();
        let found: Vec<f32> = (0..2 * 64).map(|i| if i < 64 { 3.0 * i as f32 + 1.0 } else { -(i as f32) }).collect();
        let case = Case {
            name: "two".to_owned(),
            images: vec![ImageRef::of("")],
            window: None,
            truth: Truth(Arc::new((truth, [4, 4, 4]))),
            voxel_um: None,
            diameter: None,
        };
        let validator = Validator {
            cases: vec![case],
            pairs: Vec::new(),
            target: TargetKind::Regression,
            stains: vec!["dna".to_owned(), "actin".to_owned()],
            objects: BTreeMap::new(),
            assumed_um: [1.0; 3],
            ignored: None,
            diameters: Diameters::default(),
            preprocessing: Arc::default(),
        };
        assert_eq!(validator.voxels(), [64]);
        let scores = validator.score_labels(std::iter::once(Ok((0, found)))).unwrap();
        let near = |stain: Option<&str>, value: f64| {
            (scores.scores[&ScoreName::Pearson(stain.map(str::to_owned))] - value).abs() < 1e-6
        };
        assert!(near(Some("dna"), 1.0) && near(Some("actin"), -1.0) && near(None, 0.0), "{scores:?}");
        assert!(scores.score.abs() < 1e-6);
    }

    #[test]
    fn the_diameter_of_known_slices_is_that_of_whole_objects() {
        // A ball with a diameter of 16 voxels, of which one slice in four is known.
        let shape = [24usize, 24, 24];
        let at = |i: usize| [i / 576, i / 24 % 24, i % 24];
        let ball: Vec<f32> = (0..24 * 24 * 24)
            .map(|i| f32::from(u8::from(at(i).iter().map(|v| (*v as f64 - 12.0).powi(2)).sum::<f64>() < 64.0)))
            .collect();
        let slices: Vec<f32> =
            ball.iter().enumerate().map(|(i, l)| if at(i)[0] % 4 == 0 { *l } else { 255.0 }).collect();
        let options = ValidatorOptions {
            max_cases: 1,
            objects: BTreeMap::new(),
            target: TargetKind::Instances,
            stains: Vec::new(),
            model_um: None,
            ignored: Some(255),
            diameters: Diameters { nominal_um: Some(10.0), ..Diameters::default() },
        };
        let validator = Validator::new(&[], options).unwrap();
        let diameter = |labels: &[f32]| {
            validator.diameter(Path::new("x"), &(labels.to_vec(), shape), Some([1.0; 3])).unwrap().unwrap()
        };
        assert!((diameter(&ball) - 16.0).abs() < 0.4);
        assert!((diameter(&slices) - 16.0).abs() < 0.4);
    }

    #[test]
    fn voxels_with_the_ignore_label_do_not_change_the_score() {
        // A row of two objects, followed by voxels with the ignore label.
        let truth = vec![1.0, 1.0, 0.0, 2.0, 2.0, 0.0, 255.0, 255.0];
        let case = Case {
            name: "row".to_owned(),
            images: vec![ImageRef::of("")],
            window: None,
            truth: Truth(Arc::new((truth, [1, 1, 8]))),
            voxel_um: None,
            diameter: None,
        };
        let validator = |target, ignored| Validator {
            cases: vec![case.clone()],
            pairs: Vec::new(),
            target,
            stains: Vec::new(),
            objects: BTreeMap::new(),
            assumed_um: [1.0; 3],
            ignored,
            diameters: Diameters::default(),
            preprocessing: Arc::default(),
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
                objects: BTreeMap::new(),
                target,
                stains: Vec::new(),
                model_um: None,
                ignored: Some(255),
                diameters: Diameters::default(),
            };
            Validator::new(&[], options).unwrap().ignored
        };
        assert_eq!(ignoring(TargetKind::Semantic), Some(255.0));
        assert_eq!(ignoring(TargetKind::Regression), None, "a stain has no labels");
    }
}
