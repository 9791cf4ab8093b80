//! The files or the model to score, the scoring jobs, and the table of the scores.

use super::{Batch, start_folder};
use crate::channels::{PairChannels, by_name};
use crate::disk::DiskEffect;
use crate::document::file_name;
use crate::effect::Effects;
use crate::jobs::Jobs;
use crate::work::{JobView, Purpose};
use cytoscope_engine::{DeviceRequest, Precision};
use cytoscope_formats::{ChannelRef, SeriesChoice};
use cytoscope_pipeline::{DiameterRequest, EvaluateJob, EvaluateReport, PairRole};
use cytoscope_storage::Overwrite;
use cytoscope_train::EvaluateModelJob;
use cytoscope_volume::VoxelSize;
use cytoscope_worker::Job;
use std::path::{Path, PathBuf};

/// Subject of the page: files or a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ScoreSubject {
    /// Files of predictions.
    #[default]
    Predictions,
    /// A model, whose predictions are not written.
    Model,
}

/// The selected model and the settings of its predictions.
pub(crate) struct ScoredModel {
    /// Name of the model for jobs.
    pub(crate) name: String,
    /// Name of the model for display.
    pub(crate) title: String,
    /// Whether it rescales objects to a nominal diameter.
    pub(crate) rescales: bool,
    /// Device that it runs on.
    pub(crate) device: DeviceRequest,
    /// Precision; `None` is the best one of the device.
    pub(crate) precision: Option<Precision>,
    /// Channels of the images that its inputs are read from; empty if the pairs leave no choice.
    pub(crate) channels: Vec<ChannelRef>,
    /// Voxel size Z, Y, X in µm in place of that of the pairs.
    pub(crate) voxel_um: Option<[f64; 3]>,
}

/// Predictions or ground truth to score.
#[derive(Default)]
pub(crate) struct ScoredFiles {
    /// A file or a folder.
    pub(crate) path: Option<PathBuf>,
    /// Names of the channels of the file, or of the first one of the folder; empty until they are read.
    pub(crate) channels: Vec<String>,
    /// Index of the channel that is scored; `None` leaves it to the job.
    pub(crate) channel: Option<usize>,
}

impl ScoredFiles {
    /// The chosen channel for a job: by name, as files of a folder may order their channels differently, unless several have
    /// this name.
    fn chosen(&self) -> Option<ChannelRef> {
        let names: Vec<&str> = self.channels.iter().map(String::as_str).collect();
        by_name(&names, self.channel?)
    }
}

impl Batch {
    /// The job that scores predictions or a model, until it has ended.
    pub(crate) fn evaluation<'a>(&self, jobs: &'a Jobs) -> Option<&'a JobView> {
        self.evaluating.and_then(|id| jobs.get(id)).filter(|j| !j.state.is_over())
    }

    /// Whether predictions or a model are being scored.
    pub(crate) fn is_evaluating(&self, jobs: &Jobs) -> bool {
        self.evaluating.is_some_and(|id| jobs.is_active(id))
    }

    /// Predictions or ground truth.
    pub(crate) fn scored(&self, role: PairRole) -> &ScoredFiles {
        match role {
            PairRole::Prediction => &self.prediction,
            PairRole::Truth => &self.truth,
        }
    }

    /// Predictions or ground truth, to be changed.
    pub(super) fn scored_mut(&mut self, role: PairRole) -> &mut ScoredFiles {
        match role {
            PairRole::Prediction => &mut self.prediction,
            PairRole::Truth => &mut self.truth,
        }
    }

    /// Stores the names of the channels of a file or folder, unless another one was chosen meanwhile.
    pub(crate) fn channels_read(&mut self, path: &Path, role: PairRole, names: Vec<String>) {
        let files = self.scored_mut(role);
        if files.path.as_deref() == Some(path) {
            if !files.channels.is_empty() && files.channels != names {
                // They are those of another file of the folder.
                files.channel = None;
            }
            files.channels = names;
        }
    }

    /// Stores the channels of the images of pairs, unless other pairs were chosen meanwhile.
    pub(crate) fn pair_channels_read(&mut self, data: &Path, channels: PairChannels) {
        if self.pairs.as_deref() == Some(data) {
            self.pair_channels = channels;
        }
    }

    /// Sets the series that is scored, whose channels may be others.
    pub(super) fn score_series(&mut self, series: SeriesChoice, effects: &mut Effects) {
        self.scored_series = series;
        self.forget_scores();
        for role in [PairRole::Prediction, PairRole::Truth] {
            let files = self.scored_mut(role);
            (files.channels, files.channel) = (Vec::new(), None);
            self.read_channels(role, effects);
        }
    }

    /// Sets predictions or ground truth to score. Which files of the ground truth are scored depends on the predictions.
    pub(super) fn compare(&mut self, role: PairRole, path: PathBuf, effects: &mut Effects) {
        *self.scored_mut(role) = ScoredFiles { path: Some(path), ..ScoredFiles::default() };
        self.forget_scores();
        self.read_channels(role, effects);
        if role == PairRole::Prediction {
            self.read_channels(PairRole::Truth, effects);
        }
    }

    /// Asks for the names of the channels of predictions or ground truth.
    pub(super) fn read_channels(&self, role: PairRole, effects: &mut Effects) {
        let Some(path) = self.scored(role).path.clone() else { return };
        let predictions = self.prediction.path.clone();
        effects.disk(DiskEffect::ReadChannels { path, role, predictions, series: self.scored_series.clone() });
    }

    /// Forgets the scores of other settings, and those that a running job would report.
    pub(super) fn forget_scores(&mut self) {
        (self.report, self.scored_model) = (None, None);
        self.evaluating = None;
    }

    /// Scores the chosen predictions against the ground truth.
    pub(super) fn evaluate(&mut self, voxel_axes_um: VoxelSize, jobs: &Jobs, effects: &mut Effects) {
        let (Some(prediction), Some(truth)) = (self.prediction.path.clone(), self.truth.path.clone()) else { return };
        if self.is_evaluating(jobs) {
            return;
        }
        let title = format!("{} · evaluate", file_name(&prediction));
        let job = EvaluateJob {
            prediction,
            truth,
            ignore_below_voxels: self.ignore_below,
            ignore_label: self.ignore_label,
            series: self.scored_series.clone(),
            prediction_channel: self.prediction.chosen(),
            truth_channel: self.truth.chosen(),
            voxel_um: None,
            voxel_axes_um,
            out: None,
            overwrite: Overwrite::Refuse,
        };
        (self.report, self.scored_model) = (None, None);
        self.evaluating = Some(jobs.request(title, Purpose::Evaluate, Job::Evaluate(job), effects));
    }

    /// Scores a model on the chosen pairs.
    pub(super) fn evaluate_model(&mut self, model: &ScoredModel, jobs: &Jobs, effects: &mut Effects) {
        let Some(job) = self.model_job(model).filter(|_| !self.is_evaluating(jobs)) else { return };
        let title = format!("{} · evaluate", model.title);
        (self.report, self.scored_model) = (None, Some(model.title.clone()));
        self.evaluating = Some(jobs.request(title, Purpose::Evaluate, Job::EvaluateModel(job), effects));
    }

    /// The job that scores a model on the chosen pairs; `None` if there are none.
    fn model_job(&self, model: &ScoredModel) -> Option<EvaluateModelJob> {
        Some(EvaluateModelJob {
            model: model.name.clone(),
            data: self.pairs.clone()?,
            device: model.device,
            cpu_because: None,
            precision: model.precision,
            diameter: if model.rescales { self.diameter } else { DiameterRequest::Auto },
            channel: None,
            channels: model.channels.clone(),
            channel_by_name: None,
            input_tensors: Vec::new(),
            ignore_below_voxels: self.ignore_below,
            ignore_label: self.ignore_label,
            voxel_um: model.voxel_um,
            out: None,
            overwrite: Overwrite::Refuse,
        })
    }

    /// The folder in which the dialog for the table of scores starts: that of the predictions, or the one that has the pairs,
    /// as tables among the pairs are read as training data.
    pub(super) fn scores_folder(&self) -> Option<PathBuf> {
        let folder = match self.subject {
            ScoreSubject::Predictions => self.prediction.path.as_deref().and_then(start_folder),
            ScoreSubject::Model => self.pairs.as_deref().and_then(Path::parent),
        };
        folder.map(Path::to_owned)
    }
}

/// The scores of each pair as CSV: one line for each pair and IoU threshold, or for each scored channel of a pair of
/// intensity images.
pub(crate) fn scores_csv(report: &EvaluateReport) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let columns = [
        "prediction",
        "truth",
        "iou",
        "f1",
        "precision",
        "recall",
        "ap",
        "pq",
        "true_objects",
        "pearson",
        "psnr_db",
        "ssim",
        "mse",
        "mean_matched_iou",
        "found_objects",
        "channel",
    ];
    // Every row has a value for each column, so that writing to memory cannot fail.
    let _ = writer.write_record(columns);
    for pair in &report.pairs {
        let names = [pair.prediction.display().to_string(), pair.truth.display().to_string()];
        for m in &pair.instances {
            let scores = [m.threshold, m.f1, m.precision, m.recall, m.accuracy, m.panoptic_quality];
            let scores = scores.map(|v| v.to_string());
            let missing = [const { String::new() }; 4];
            let matched = [m.mean_matched_score.to_string(), m.tp.to_string(), String::new()];
            let row = names.iter().cloned().chain(scores).chain([m.n_true.to_string()]).chain(missing).chain(matched);
            let _ = writer.write_record(row);
        }
        let pair_scores = pair.regression.iter().filter(|_| pair.channels.is_empty()).map(|scores| ("", scores));
        let channel_scores = pair.channels.iter().map(|channel| (channel.name.as_str(), &channel.regression));
        for (channel, r) in pair_scores.chain(channel_scores) {
            let shown = |v: Option<f64>| v.filter(|v| v.is_finite()).map(|v| v.to_string()).unwrap_or_default();
            let scores = [r.pearson, r.psnr_db, r.ssim, Some(r.mse)].map(shown);
            let missing = [const { String::new() }; 7];
            let unmatched = [String::new(), String::new(), channel.to_owned()];
            let _ = writer.write_record(names.iter().cloned().chain(missing).chain(scores).chain(unmatched));
        }
    }
    String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::effect::Effect;
    use cytoscope_engine::DeviceId;
    use cytoscope_objects::regression::Regression;
    use cytoscope_pipeline::{ChannelScores, PairReport};

    #[test]
    fn a_chosen_channel_is_kept_while_the_scored_file_has_the_same_channels() {
        let names = |names: [&str; 2]| names.map(str::to_owned).to_vec();
        let mut batch = Batch::default();
        batch.truth.path = Some(PathBuf::from("t"));
        let read = |batch: &mut Batch, found: [&str; 2]| {
            batch.channels_read(Path::new("t"), PairRole::Truth, names(found));
            (batch.truth.channels.len(), batch.truth.channel)
        };
        assert_eq!(read(&mut batch, ["dna", "actin"]), (2, None));
        batch.truth.channel = Some(1);
        assert_eq!(read(&mut batch, ["dna", "actin"]), (2, Some(1)));
        assert_eq!(read(&mut batch, ["labels", "other"]), (2, None), "another file");
        // The predictions decide which file of the ground truth is scored.
        let mut effects = Effects::default();
        batch.compare(PairRole::Prediction, PathBuf::from("p"), &mut effects);
        let asks = |effect: Effect| match effect {
            Effect::Disk(DiskEffect::ReadChannels { role, predictions, .. }) => {
                role == PairRole::Truth && predictions.as_deref() == Some(Path::new("p"))
            }
            _ => false,
        };
        assert!(effects.into_iter().any(asks));
    }

    #[test]
    fn every_row_of_scores_has_every_column() {
        let regression = Regression { pearson: Some(0.5), psnr_db: None, ssim: Some(0.25), mse: 2.0 };
        let pair = PairReport {
            prediction: PathBuf::from("p,1.tif"),
            truth: PathBuf::from("t.tif"),
            instances: Vec::new(),
            regression: Some(regression),
            channels: Vec::new(),
            errors: None,
            ignored: None,
        };
        let stain = |name: &str| ChannelScores { name: name.to_owned(), regression };
        let stains = PairReport { channels: vec![stain("dna"), stain("actin")], ..pair.clone() };
        let report = EvaluateReport {
            pairs: vec![pair, stains],
            instances: Vec::new(),
            regression: None,
            channels: Vec::new(),
            unpaired: Vec::new(),
            errors: None,
            ignored: None,
            notes: Vec::new(),
            traffic: None,
            device: None,
            precision: None,
        };
        let text = scores_csv(&report);
        let lines: Vec<&str> = text.lines().collect();
        let scores = "\"p,1.tif\",t.tif,,,,,,,,0.5,,0.25,2,,";
        assert_eq!(lines[1..], ["", "dna", "actin"].map(|channel| format!("{scores},{channel}")));
        assert!(lines[0].ends_with(",channel") && lines[0].split(',').count() == 16);
    }

    #[test]
    fn a_chosen_channel_is_named_unless_several_have_its_name() {
        let channels = ["dna", "actin", "DNA"].map(str::to_owned).to_vec();
        let chosen = |channel| ScoredFiles { path: None, channels: channels.clone(), channel }.chosen();
        assert_eq!(chosen(Some(1)), Some(ChannelRef::Name("actin".to_owned())));
        assert_eq!((chosen(Some(2)), chosen(None)), (Some(ChannelRef::Index(2)), None));
        let mut batch = Batch::default();
        batch.prediction.path = Some(PathBuf::from("/a.tif"));
        batch.channels_read(Path::new("/b.tif"), PairRole::Prediction, channels.clone());
        assert!(batch.prediction.channels.is_empty(), "the names of another file");
        batch.channels_read(Path::new("/a.tif"), PairRole::Prediction, channels.clone());
        assert_eq!(batch.prediction.channels, channels);
    }

    #[test]
    fn a_model_is_scored_with_the_settings_of_the_page_and_its_table_is_saved_beside_the_pairs() {
        let mut model = ScoredModel {
            name: "nuclei".to_owned(),
            title: "Nuclei".to_owned(),
            rescales: true,
            device: DeviceRequest::Device(DeviceId::Cpu),
            precision: Some(Precision::F32),
            channels: vec![ChannelRef::Name("dapi".to_owned())],
            voxel_um: Some([2.0, 0.5, 0.5]),
        };
        let mut batch =
            Batch { subject: ScoreSubject::Model, ignore_below: 7, ignore_label: Some(-1), ..Batch::default() };
        batch.diameter = DiameterRequest::Given(9.0);
        assert_eq!(batch.model_job(&model), None, "there are no pairs");
        batch.pairs = Some(PathBuf::from("/data/pairs"));
        let job = batch.model_job(&model).unwrap();
        assert_eq!((job.model.as_str(), job.data.as_path()), ("nuclei", Path::new("/data/pairs")));
        assert_eq!((job.device, job.precision), (model.device, model.precision));
        assert_eq!((job.diameter, job.ignore_below_voxels), (DiameterRequest::Given(9.0), 7));
        assert_eq!((job.ignore_label, &job.channels), (Some(-1), &model.channels));
        assert_eq!((job.voxel_um, job.out), (model.voxel_um, None));
        assert_eq!(batch.scores_folder().as_deref(), Some(Path::new("/data")));
        // The control of the diameter is not shown for such a model.
        model.rescales = false;
        assert_eq!(batch.model_job(&model).unwrap().diameter, DiameterRequest::Auto);
    }
}
