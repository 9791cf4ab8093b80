//! Training sets: pairs of files and their problems.

use cytoscope_formats::OpenOptions;
use cytoscope_storage::message::Message;
use cytoscope_volume::Axes;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Task that a network is trained for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainingTask {
    /// Segmentation: the target is a label image.
    Segmentation,
    /// Label-free prediction of a stain: the target is an intensity image.
    LabelFree,
}

impl TrainingTask {
    /// The name of the task on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Segmentation => "segmentation",
            Self::LabelFree => "labelfree",
        }
    }
}

/// One image of a file: its series, channel and time point.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageRef {
    /// Path of the file.
    pub path: PathBuf,
    /// Index of the series, counted from 0.
    #[serde(default)]
    pub series: usize,
    /// Index of the channel, counted from 0 (samples of an RGB pixel are channels); required if there are several.
    #[serde(default)]
    pub channel: Option<usize>,
    /// Index of the time point, counted from 0; required if there are several.
    #[serde(default)]
    pub time: Option<usize>,
    /// Axes of the file, if its own are wrong, as in [`cytoscope_formats::OpenOptions::axes`].
    #[serde(default)]
    pub axes: Option<Axes>,
    /// Time points and extents along Z, Y, X of the stack that the regions of an ImageJ ROI set were drawn on; `None` for other
    /// files, which state their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn_on_tzyx: Option<[usize; 4]>,
}

impl ImageRef {
    /// Refers to the only image of a file.
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), series: 0, channel: None, time: None, axes: None, drawn_on_tzyx: None }
    }

    /// Returns the options with which the file is opened: alone, not with the others of a numbered series.
    pub fn open_options(&self) -> OpenOptions {
        let (times, shape_zyx) = self.drawn_on_tzyx.map(|[t, z, y, x]| (t, [z, y, x])).unzip();
        OpenOptions {
            series: self.series,
            axes: self.axes.clone(),
            single_file: true,
            shape_zyx,
            times,
            ..OpenOptions::default()
        }
    }
}

/// The part of the data that a pair belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The training set: pairs that weights are fitted to.
    Train,
    /// The validation set: pairs that checkpoints are scored on.
    Validation,
    /// The test set: pairs that no decision of a training run uses.
    Test,
}

impl Part {
    /// Parses a word such as `train`, `valid` or `test`, regardless of case; `None` for other words.
    pub(crate) fn from_word(word: &str) -> Option<Part> {
        Some(match word.trim().to_lowercase().as_str() {
            "train" | "training" | "tr" => Part::Train,
            "valid" | "val" | "validation" | "validate" | "dev" => Part::Validation,
            "test" | "testing" | "ts" | "holdout" | "hold-out" | "heldout" | "held-out" => Part::Test,
            _ => return None,
        })
    }
}

/// A box in a stack: first voxel and size along Z, Y, X.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StackWindow {
    /// First voxel of the box along Z, Y, X.
    pub start_zyx: [usize; 3],
    /// Size of the box along Z, Y, X in voxels.
    pub size_zyx: [usize; 3],
}

/// An image and its target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Name, unique in its dataset.
    pub name: String,
    /// First input channel of the network: a channel and time point of a file.
    pub image: ImageRef,
    /// First target of the image: labels or a stain.
    pub target: ImageRef,
    /// Further input channels of the network, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_images: Vec<ImageRef>,
    /// Further stains, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_targets: Vec<ImageRef>,
    /// Part of the data that it belongs to, if the data define it.
    #[serde(default)]
    pub part: Option<Part>,
    /// Voxel size along Z, Y, X in µm that overrides that of the files.
    #[serde(default)]
    pub voxel_um: Option<[f64; 3]>,
    /// Box of the stack to use; the whole stack if `None`.
    #[serde(default)]
    pub window: Option<StackWindow>,
    /// How often patches of this pair are sampled, relative to other pairs.
    #[serde(default = "one")]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

impl Pair {
    /// Returns a pair of whole files.
    pub fn new(name: impl Into<String>, image: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            image: ImageRef::of(image),
            target: ImageRef::of(target),
            more_images: Vec::new(),
            more_targets: Vec::new(),
            part: None,
            voxel_um: None,
            window: None,
            weight: 1.0,
        }
    }

    /// Returns all input channels in order.
    pub fn images(&self) -> impl Iterator<Item = &ImageRef> {
        std::iter::once(&self.image).chain(&self.more_images)
    }

    /// Returns all targets in order.
    pub fn targets(&self) -> impl Iterator<Item = &ImageRef> {
        std::iter::once(&self.target).chain(&self.more_targets)
    }
}

/// Whether a pair with a problem can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The pair is used; the result may suffer.
    Warning,
    /// The pair cannot be used and is excluded.
    Error,
}

/// A problem of the data and its solution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Path of the file or folder.
    pub file: PathBuf,
    /// Name of the pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<String>,
    /// Whether the data can be used in spite of the problem.
    pub severity: Severity,
    /// What was found, as a sentence, with the time points that it names.
    #[serde(flatten, with = "sentence")]
    pub message: Message,
    /// What the user can do to solve the problem, with the options that it names.
    #[serde(flatten, with = "next_step")]
    pub next_step: Message,
}

/// What was found in JSON: the text, and beside it the time points that it names, if there are any.
mod sentence {
    use cytoscope_storage::message::{Message, NamedSetting};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Fields {
        sentence: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        sentence_settings: Vec<NamedSetting>,
    }

    pub(super) fn serialize<S: Serializer>(message: &Message, serializer: S) -> Result<S::Ok, S::Error> {
        Fields { sentence: message.to_string(), sentence_settings: message.named_settings() }.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Message, D::Error> {
        let Fields { sentence, sentence_settings } = Fields::deserialize(deserializer)?;
        Ok(Message::new(sentence, &sentence_settings))
    }
}

/// What to do next in JSON: the text, and beside it the options that it names, if there are any.
mod next_step {
    use cytoscope_storage::message::{Message, NamedSetting};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Fields {
        next_step: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        settings: Vec<NamedSetting>,
    }

    pub(super) fn serialize<S: Serializer>(message: &Message, serializer: S) -> Result<S::Ok, S::Error> {
        Fields { next_step: message.to_string(), settings: message.named_settings() }.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Message, D::Error> {
        let Fields { next_step, settings } = Fields::deserialize(deserializer)?;
        Ok(Message::new(next_step, &settings))
    }
}

impl Problem {
    pub(crate) fn new(
        severity: Severity,
        file: &Path,
        message: impl Into<String>,
        next_step: impl Into<Message>,
    ) -> Self {
        let message: String = message.into();
        let (message, next_step) = (Message::from(message), next_step.into());
        Self { file: file.to_owned(), pair: None, severity, message, next_step }
    }

    pub(crate) fn warning(file: &Path, message: impl Into<String>, next_step: impl Into<Message>) -> Self {
        Self::new(Severity::Warning, file, message, next_step)
    }

    pub(crate) fn error(file: &Path, message: impl Into<String>, next_step: impl Into<Message>) -> Self {
        Self::new(Severity::Error, file, message, next_step)
    }

    /// Returns the problem with the name of its pair.
    pub(crate) fn with_pair(mut self, name: &str) -> Self {
        self.pair = Some(name.to_owned());
        self
    }
}

/// Layout of a dataset on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Convention {
    /// One or more tables (`raw,seg` or `brightfield,signal`) as in CytoDL, or a folder of corrections.
    Table,
    /// nnU-Net's `imagesTr`, `labelsTr` and `dataset.json`.
    NnUnet,
    /// Two folders with files of the same names, such as StarDist's `images` and `masks`.
    TwoFolders,
    /// Suffixes of file names in one folder, such as Cellpose's `_masks`, or `_raw` and `_labels`.
    #[serde(rename = "endings")]
    Suffixes,
    /// Image and target are channels of one file.
    Channels,
}

/// Pairs found on disk, and files without a counterpart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dataset {
    /// Task that the data were searched for.
    pub task: TrainingTask,
    /// The folder or table that was searched.
    pub root: PathBuf,
    /// Layouts that were found; several if folders differ.
    pub conventions: Vec<Convention>,
    /// The pairs, sorted by name.
    pub pairs: Vec<Pair>,
    /// Files without a counterpart, and other problems.
    pub problems: Vec<Problem>,
    /// Ignore label, if the data declare one.
    #[serde(default)]
    pub ignore_label: Option<i64>,
    /// Whether the data declare that labels are classes rather than objects.
    #[serde(default)]
    pub labels_are_classes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_storage::message;
    use cytoscope_storage::message::TimePoint;
    use cytoscope_storage::setting::AXES;
    use serde_json::json;

    #[test]
    fn advice_keeps_the_options_that_it_names_and_reports_of_earlier_versions_are_read() {
        let next_step = message!("give them with {AXES}");
        let problem = Problem::error(Path::new("a.tif"), "its axes are unknown", next_step);
        let mut value = json!({
            "file": "a.tif",
            "severity": "error",
            "sentence": "its axes are unknown",
            "next_step": "give them with --axes",
            "settings": [{"start": 15, "name": "--axes"}],
        });
        assert_eq!(json!(problem), value);
        assert_eq!(serde_json::from_value::<Problem>(value.clone()).unwrap(), problem);
        value.as_object_mut().unwrap().remove("settings");
        let earlier: Problem = serde_json::from_value(value).unwrap();
        assert_eq!(earlier.next_step, Message::from("give them with --axes"));
    }

    #[test]
    fn a_problem_keeps_the_time_points_that_it_names() {
        let message = message!("time point {} does not exist", TimePoint(2));
        let next_step = message!("choose one of {} to {}", TimePoint(0), TimePoint(1));
        let problem = Problem { message, ..Problem::error(Path::new("a.tif"), "", next_step) };
        let value = json!(problem);
        assert_eq!(value["sentence"], "time point 2 does not exist");
        assert_eq!(value["sentence_settings"], json!([{"start": 11, "name": "2", "is_time_point": true}]));
        let read: Problem = serde_json::from_value(value).unwrap();
        assert_eq!(read, problem);
        assert_eq!(read.next_step.time_points().map(|(_, time)| time).collect::<Vec<_>>(), [0, 1]);
    }
}
