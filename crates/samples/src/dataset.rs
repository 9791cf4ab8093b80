//! What a training set is: pairs of files, and what is wrong with them.

use cytoscope_volume::Axes;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What a network is to learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Objects from an image: the target is a label image.
    Segmentation,
    /// A stain from an image without it: the target is an intensity image.
    LabelFree,
}

/// One image of a file: which series, channel and time point.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageRef {
    /// The file.
    pub path: PathBuf,
    /// Which image of a file that holds several, from 0.
    #[serde(default)]
    pub series: usize,
    /// Which channel, from 0 (samples of an RGB pixel count as channels); needed where there are several.
    #[serde(default)]
    pub channel: Option<usize>,
    /// Which time point, from 0; needed where there are several.
    #[serde(default)]
    pub time: Option<usize>,
    /// Axes of the file where its own are wrong, as [`cytoscope_formats::OpenOptions::axes`].
    #[serde(default)]
    pub axes: Option<Axes>,
}

impl ImageRef {
    /// The one image of a file.
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), series: 0, channel: None, time: None, axes: None }
    }
}

/// The part of a training set that a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Learnt from.
    Train,
    /// Watched while learning.
    Validation,
    /// Kept for a last look.
    Test,
}

impl Part {
    /// The part that a word stands for, such as `train`, `valid` or `test`, in either case.
    pub fn from_word(word: &str) -> Option<Part> {
        Some(match word.trim().to_lowercase().as_str() {
            "train" | "training" | "tr" => Part::Train,
            "valid" | "val" | "validation" | "validate" | "dev" => Part::Validation,
            "test" | "testing" | "ts" => Part::Test,
            _ => return None,
        })
    }
}

/// A box of a stack: first voxel and extent along Z, Y, X.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    /// First voxel.
    pub start_zyx: [usize; 3],
    /// Extent in voxels.
    pub size_zyx: [usize; 3],
}

/// An image and what a network should make of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Name, unique in its dataset.
    pub name: String,
    /// The image.
    pub image: ImageRef,
    /// Its labels or its stain.
    pub target: ImageRef,
    /// The part it is for, where the data say so.
    #[serde(default)]
    pub part: Option<Part>,
    /// Voxel size Z, Y, X in µm where it is known from elsewhere than the files; it goes before theirs.
    #[serde(default)]
    pub voxel_um: Option<[f64; 3]>,
    /// The box of the stack to be used; the whole where it is `None`.
    #[serde(default)]
    pub window: Option<Window>,
    /// How often it is sampled, relative to the others.
    #[serde(default = "one")]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

impl Pair {
    /// A pair of whole files.
    pub fn new(name: impl Into<String>, image: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            image: ImageRef::of(image),
            target: ImageRef::of(target),
            part: None,
            voxel_um: None,
            window: None,
            weight: 1.0,
        }
    }
}

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The pair can be used.
    Warning,
    /// The pair is left out.
    Error,
}

/// Something wrong with the data, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The file or folder it is about.
    pub file: PathBuf,
    /// The pair it is about, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<String>,
    /// How bad it is.
    pub severity: Severity,
    /// What was met, as a sentence.
    pub sentence: String,
    /// What to do.
    pub next_step: String,
}

impl Problem {
    pub(crate) fn new(severity: Severity, file: &Path, sentence: impl Into<String>, next: impl Into<String>) -> Self {
        Self { file: file.to_owned(), pair: None, severity, sentence: sentence.into(), next_step: next.into() }
    }

    pub(crate) fn warning(file: &Path, sentence: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(Severity::Warning, file, sentence, next)
    }

    pub(crate) fn error(file: &Path, sentence: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(Severity::Error, file, sentence, next)
    }

    pub(crate) fn of_pair(mut self, name: &str) -> Self {
        self.pair = Some(name.to_owned());
        self
    }
}

/// How a dataset lies on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Convention {
    /// One or more tables (`raw,seg` or `brightfield,signal`), as CytoDL has them, or a folder of corrections.
    Table,
    /// nnU-Net's `imagesTr`, `labelsTr` and `dataset.json`.
    NnUnet,
    /// Two folders of equal names, such as StarDist's `images` and `masks`.
    TwoFolders,
    /// Endings of names in one folder, such as Cellpose's `_masks`, or `_raw` and `_labels`.
    Endings,
    /// Channels of one file.
    Channels,
}

/// Pairs found on the disk, and the files that fit nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dataset {
    /// What the pairs are for.
    pub task: Task,
    /// The folder or table that was searched.
    pub root: PathBuf,
    /// How the data lie on the disk; several where folders differ.
    pub conventions: Vec<Convention>,
    /// The pairs, sorted by name.
    pub pairs: Vec<Pair>,
    /// Files that pair with nothing, and other things to know.
    pub problems: Vec<Problem>,
    /// A label that says "not known", where the data name one.
    #[serde(default)]
    pub ignore_label: Option<i64>,
    /// Whether labels are classes rather than objects, where the data say so.
    #[serde(default)]
    pub labels_are_classes: bool,
}
