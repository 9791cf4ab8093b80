//! Tensors of a package: axes, sizes, processing.

use crate::Value;
use serde::{Deserialize, Serialize};

/// A file of the package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRef {
    /// Its name inside the package.
    pub source: String,
    /// Its SHA-256 in hexadecimal, where the description has one.
    pub sha256: Option<String>,
}

/// What an axis is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisKind {
    /// Samples run together.
    Batch,
    /// Channels.
    Channel,
    /// Time.
    Time,
    /// Index of an instance.
    Index,
    /// Depth.
    Z,
    /// Rows.
    Y,
    /// Columns.
    X,
}

impl AxisKind {
    /// The id that an axis of this kind has where a description gives none, and in descriptions written here.
    pub fn id(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Channel => "channel",
            Self::Time => "time",
            Self::Index => "index",
            Self::Z => "z",
            Self::Y => "y",
            Self::X => "x",
        }
    }

    /// Whether it is an axis of space.
    pub fn is_space(self) -> bool {
        matches!(self, Self::Z | Self::Y | Self::X)
    }
}

/// How long an axis may be.
#[derive(Debug, Clone, PartialEq)]
pub enum AxisSize {
    /// So long.
    Fixed(usize),
    /// `min + n · step`.
    Step {
        /// Least length.
        min: usize,
        /// Step; 0 for the least length only.
        step: usize,
    },
    /// As long as another tensor's axis, scaled, plus an offset.
    Reference {
        /// The tensor.
        tensor: String,
        /// Its axis, by [`AxisKind::id`].
        axis: String,
        /// Factor.
        scale: f64,
        /// Summand.
        offset: f64,
    },
    /// Known only after running.
    Free,
}

/// One axis of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisSpec {
    /// What it is.
    pub kind: AxisKind,
    /// Its length.
    pub size: AxisSize,
    /// Size of a voxel along it in µm, where it is a space axis with a metric unit.
    pub voxel_um: Option<f64>,
    /// Voxels at each end that are cut from an output.
    pub halo: usize,
    /// Names of its channels, where it is one.
    pub channel_names: Vec<String>,
}

/// Axes over which a step takes its statistics jointly, besides those of space and time, which always belong to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatisticsAxes {
    /// Over all samples of a batch; else each sample has statistics of its own.
    pub batch: bool,
    /// Over all channels; else each channel has statistics of its own.
    pub channel: bool,
}

impl Default for StatisticsAxes {
    /// Each sample by itself, its channels jointly.
    fn default() -> Self {
        Self { batch: false, channel: true }
    }
}

/// A step before or after the network. Per-channel parameters have one entry a channel or a single one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "id", content = "kwargs", rename_all = "snake_case")]
pub enum Processing {
    /// 1 above the threshold, else 0.
    Binarize {
        /// Threshold, a channel or one.
        threshold: Vec<f64>,
    },
    /// Limits.
    Clip {
        /// Least value.
        min: Option<f64>,
        /// Greatest value.
        max: Option<f64>,
    },
    /// Limits at percentiles (0 to 100).
    ClipPercentiles {
        /// Percentile of the least value.
        min_percentile: Option<f64>,
        /// Percentile of the greatest value.
        max_percentile: Option<f64>,
        /// Axes of the statistics.
        axes: StatisticsAxes,
    },
    /// Another type. Engines keep 32-bit floats: for an integer type fractions are cut off and values kept inside its range.
    EnsureDtype {
        /// NumPy's name of the type.
        dtype: String,
    },
    /// `x · gain + offset`.
    ScaleLinear {
        /// Factor.
        gain: Vec<f64>,
        /// Summand.
        offset: Vec<f64>,
    },
    /// `(x − low) / (high − low + eps)` of two percentiles (0 to 100).
    ScaleRange {
        /// Percentile that becomes 0.
        min_percentile: f64,
        /// Percentile that becomes 1.
        max_percentile: f64,
        /// Against division by zero.
        eps: f64,
        /// Axes of the statistics.
        axes: StatisticsAxes,
        /// Input tensor whose percentiles are taken, before its preprocessing; the tensor itself if `None`.
        reference_tensor: Option<String>,
    },
    /// `(x − mean) / (std + eps)` of the tensor's own.
    ZeroMeanUnitVariance {
        /// Against division by zero.
        eps: f64,
        /// Axes of the statistics.
        axes: StatisticsAxes,
    },
    /// `(x − mean) / std` of given ones.
    FixedZeroMeanUnitVariance {
        /// Mean, a channel or one.
        mean: Vec<f64>,
        /// Standard deviation, a channel or one.
        std: Vec<f64>,
    },
    /// To the mean and variance of an input tensor before its preprocessing:
    /// `(x − mean) / (std + eps) · (reference std + eps) + reference mean`.
    ScaleMeanVariance {
        /// Against division by zero.
        eps: f64,
        /// Axes of the statistics.
        axes: StatisticsAxes,
        /// The input tensor.
        reference_tensor: String,
    },
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// Over the channels.
    Softmax,
}

impl Processing {
    /// Whether the step depends on statistics of a tensor.
    pub fn needs_statistics(&self) -> bool {
        self.statistics_axes().is_some()
    }

    /// Axes of the statistics the step depends on; `None` where it depends on none.
    pub fn statistics_axes(&self) -> Option<StatisticsAxes> {
        match self {
            Self::ClipPercentiles { axes, .. }
            | Self::ScaleRange { axes, .. }
            | Self::ZeroMeanUnitVariance { axes, .. }
            | Self::ScaleMeanVariance { axes, .. } => Some(*axes),
            _ => None,
        }
    }

    /// The input tensor that the step refers to by its id.
    pub fn reference_tensor(&self) -> Option<&str> {
        match self {
            Self::ScaleMeanVariance { reference_tensor, .. } => Some(reference_tensor),
            Self::ScaleRange { reference_tensor, .. } => reference_tensor.as_deref(),
            _ => None,
        }
    }
}

/// One input or output.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// Its name.
    pub id: String,
    /// What it is.
    pub description: String,
    /// NumPy's name of its type.
    pub dtype: String,
    /// Its axes.
    pub axes: Vec<AxisSpec>,
    /// Pre- or postprocessing.
    pub processing: Vec<Processing>,
    /// Its test tensor.
    pub test_tensor: Option<FileRef>,
}

impl TensorSpec {
    /// The postprocessing with the cast that ends it: a tensor described with an integer type is cast to it, unless its steps
    /// end in a cast or in a threshold.
    pub fn postprocessing(&self) -> Vec<Processing> {
        let mut steps = self.processing.clone();
        let ends = matches!(steps.last(), Some(Processing::EnsureDtype { .. } | Processing::Binarize { .. }));
        if !ends && !self.dtype.starts_with("float") {
            steps.push(Processing::EnsureDtype { dtype: self.dtype.clone() });
        }
        steps
    }

    /// The axis of a kind.
    pub fn axis(&self, kind: AxisKind) -> Option<&AxisSpec> {
        self.axes.iter().find(|a| a.kind == kind)
    }

    /// Voxel size Z, Y, X in µm where all space axes say theirs; an absent Z counts as 1.
    pub fn voxel_um(&self) -> Option<[f64; 3]> {
        let of = |kind| self.axis(kind).map(|a| a.voxel_um);
        Some([of(AxisKind::Z).unwrap_or(Some(1.0))?, of(AxisKind::Y)??, of(AxisKind::X)??])
    }

    /// Axes batch, channel and two or three of space, for a value that comes without a description.
    pub(crate) fn of_value(value: &Value, processing: &[Processing]) -> Option<Self> {
        let shape = value.shape.as_ref()?;
        let kinds: &[AxisKind] = match shape.len() {
            4 => &[AxisKind::Batch, AxisKind::Channel, AxisKind::Y, AxisKind::X],
            5 => &[AxisKind::Batch, AxisKind::Channel, AxisKind::Z, AxisKind::Y, AxisKind::X],
            _ => return None,
        };
        let axes = kinds.iter().zip(shape).map(|(kind, dim)| AxisSpec {
            kind: *kind,
            size: dim.fixed().map_or(AxisSize::Step { min: 1, step: 1 }, AxisSize::Fixed),
            voxel_um: None,
            halo: 0,
            channel_names: Vec::new(),
        });
        Some(Self {
            id: value.name.clone(),
            description: String::new(),
            dtype: "float32".to_owned(),
            axes: axes.collect(),
            processing: processing.to_vec(),
            test_tensor: None,
        })
    }
}
