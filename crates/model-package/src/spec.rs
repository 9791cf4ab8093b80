//! Tensor descriptions: axes, sizes, pre- and postprocessing.

use super::TensorType;
use super::parse::canonical_axis_id;
use cytoscope_graph::{Dim, Value};
use serde::{Deserialize, Serialize};

/// A file of the package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRef {
    /// File name inside the package.
    pub source: String,
    /// SHA-256 in hexadecimal, if the description has one.
    pub sha256: Option<String>,
}

/// Meaning of an axis of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisKind {
    /// The samples of a batch, `b` in specification 0.4.
    Batch,
    /// Channels of an image or of a network's output.
    Channel,
    /// Time points.
    Time,
    /// Index of an instance, in outputs that list detections.
    Index,
    /// Slices.
    Z,
    /// Rows.
    Y,
    /// Columns.
    X,
}

impl AxisKind {
    /// Returns the default axis id of this kind, also used in descriptions written by this crate.
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

    /// Returns the kind of an axis with a default id, or with a letter of specification 0.4.
    pub(crate) fn of_id(id: &str) -> Option<Self> {
        let all = [Self::Batch, Self::Channel, Self::Time, Self::Index, Self::Z, Self::Y, Self::X];
        all.into_iter().find(|kind| kind.id() == canonical_axis_id(id))
    }

    /// Whether it is a spatial axis.
    pub fn is_space(self) -> bool {
        matches!(self, Self::Z | Self::Y | Self::X)
    }
}

/// Permitted lengths of an axis.
#[derive(Debug, Clone, PartialEq)]
pub enum AxisSize {
    /// The only permitted length.
    Fixed(usize),
    /// Permitted are the lengths `min + n · step` for n = 0, 1, 2, …
    Step {
        /// Smallest length.
        min: usize,
        /// Step; 0 if only the smallest length is allowed.
        step: usize,
    },
    /// The length of another tensor's axis, scaled, plus an offset.
    Reference {
        /// Id of the other tensor.
        tensor: String,
        /// Id of its axis, see [`AxisKind::id`].
        axis: String,
        /// Factor that the length is multiplied by.
        scale: f64,
        /// Offset added after scaling.
        offset: f64,
    },
    /// Any length; it is known only after inference.
    Free,
}

/// One axis of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisSpec {
    /// Meaning of the axis: samples, channels, or voxels along Z, Y or X.
    pub kind: AxisKind,
    /// Lengths that the network accepts along the axis.
    pub size: AxisSize,
    /// Voxel size along the axis in µm, for spatial axes with a metric unit.
    pub voxel_um: Option<f64>,
    /// Voxels cropped from each end of an output.
    pub halo: usize,
    /// Channel names, for a channel axis.
    pub channel_names: Vec<String>,
}

/// Axes over which a processing step pools its statistics, in addition to rows, columns and time, which are always included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatisticsAxes {
    /// Pool over the batch; otherwise each sample has its own statistics.
    pub batch: bool,
    /// Pool over the channels; otherwise each channel has its own statistics.
    pub channel: bool,
    /// Each slice of a stack has its own statistics; otherwise pool over the slices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_slice: bool,
}

impl Default for StatisticsAxes {
    /// Statistics per sample, pooled over its channels and slices.
    fn default() -> Self {
        Self { batch: false, channel: true, by_slice: false }
    }
}

/// A pre- or postprocessing step. Per-channel parameters have one entry per channel or a single entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "id", content = "kwargs", rename_all = "snake_case")]
pub enum Processing {
    /// 1 above the threshold, else 0.
    Binarize {
        /// Threshold, single or per channel.
        threshold: Vec<f64>,
    },
    /// Limits values to a fixed range.
    Clip {
        /// Lower limit.
        min: Option<f64>,
        /// Upper limit.
        max: Option<f64>,
    },
    /// Clips at percentiles (0 to 100).
    ClipPercentiles {
        /// Percentile of the lower limit.
        min_percentile: Option<f64>,
        /// Percentile of the upper limit.
        max_percentile: Option<f64>,
        /// Axes that share one value of the statistics.
        axes: StatisticsAxes,
    },
    /// Converts to another type. Values stay 32-bit floats; for integer types, they are truncated and clamped to the
    /// type's range.
    EnsureDtype {
        /// The type.
        dtype: TensorType,
    },
    /// `x · gain + offset`.
    ScaleLinear {
        /// Factor.
        gain: Vec<f64>,
        /// Offset added after scaling.
        offset: Vec<f64>,
    },
    /// `(x − low) / (high − low + eps)` of two percentiles (0 to 100).
    ScaleRange {
        /// Percentile that becomes 0.
        min_percentile: f64,
        /// Percentile that becomes 1.
        max_percentile: f64,
        /// Avoids division by zero.
        eps: f64,
        /// Axes that share one value of the statistics.
        axes: StatisticsAxes,
        /// Input tensor whose percentiles are used, before its preprocessing; the tensor itself if `None`.
        reference_tensor: Option<String>,
    },
    /// `(x − mean) / (std + eps)` with the tensor's own mean and standard deviation.
    ZeroMeanUnitVariance {
        /// Avoids division by zero.
        eps: f64,
        /// Axes that share one value of the statistics.
        axes: StatisticsAxes,
    },
    /// `(x − mean) / std` with given values.
    FixedZeroMeanUnitVariance {
        /// Mean, single or per channel.
        mean: Vec<f64>,
        /// Standard deviation, single or per channel.
        std: Vec<f64>,
    },
    /// Matches mean and variance to those of an input tensor before its preprocessing:
    /// `(x − mean) / (std + eps) · (reference std + eps) + reference mean`.
    ScaleMeanVariance {
        /// Avoids division by zero.
        eps: f64,
        /// Axes that share one value of the statistics.
        axes: StatisticsAxes,
        /// Id of the input tensor.
        reference_tensor: String,
    },
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// Softmax over the channels.
    Softmax,
}

impl Processing {
    /// Whether the step depends on statistics of a tensor.
    pub fn needs_statistics(&self) -> bool {
        self.statistics_axes().is_some()
    }

    /// Returns the axes over which the step pools its statistics; `None` if it needs none.
    pub fn statistics_axes(&self) -> Option<StatisticsAxes> {
        match self {
            Self::ClipPercentiles { axes, .. }
            | Self::ScaleRange { axes, .. }
            | Self::ZeroMeanUnitVariance { axes, .. }
            | Self::ScaleMeanVariance { axes, .. } => Some(*axes),
            _ => None,
        }
    }

    /// Whether the step depends on statistics of each slice of a stack.
    pub fn has_statistics_of_slices(&self) -> bool {
        self.statistics_axes().is_some_and(|axes| axes.by_slice)
    }

    /// Returns the id of the input tensor that the step refers to.
    pub fn reference_tensor(&self) -> Option<&str> {
        match self {
            Self::ScaleMeanVariance { reference_tensor, .. } => Some(reference_tensor),
            Self::ScaleRange { reference_tensor, .. } => reference_tensor.as_deref(),
            _ => None,
        }
    }
}

/// Description of one input or output tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// Name of the tensor in the network and the description.
    pub id: String,
    /// One-sentence description.
    pub description: String,
    /// Type of its elements.
    pub dtype: TensorType,
    /// Axes in the order of the tensor's dimensions.
    pub axes: Vec<AxisSpec>,
    /// Preprocessing of an input, postprocessing of an output.
    pub processing: Vec<Processing>,
    /// NPY file with a test input, or with the output expected for the test inputs.
    pub test_tensor: Option<FileRef>,
}

impl TensorSpec {
    /// Returns the postprocessing, extended by the final cast that an integer type of the tensor implies; nothing is
    /// added if the last step is a cast or a threshold.
    pub fn postprocessing(&self) -> Vec<Processing> {
        let mut steps = self.processing.clone();
        let ends = matches!(steps.last(), Some(Processing::EnsureDtype { .. } | Processing::Binarize { .. }));
        if !ends && !self.dtype.element_type().is_float() {
            steps.push(Processing::EnsureDtype { dtype: self.dtype });
        }
        steps
    }

    /// Returns the axis of the given kind.
    pub fn axis(&self, kind: AxisKind) -> Option<&AxisSpec> {
        self.axes.iter().find(|a| a.kind == kind)
    }

    /// Returns the voxel size Z, Y, X in µm if all spatial axes have one; an absent Z counts as 1.
    pub fn voxel_um(&self) -> Option<[f64; 3]> {
        let of = |kind| self.axis(kind).map(|a| a.voxel_um);
        Some([of(AxisKind::Z).unwrap_or(Some(1.0))?, of(AxisKind::Y)??, of(AxisKind::X)??])
    }

    /// Returns whether the channels are the last axis.
    pub fn has_channels_last(&self) -> bool {
        self.axes.len() > 2 && self.axes.last().is_some_and(|axis| axis.kind == AxisKind::Channel)
    }

    /// Describes a value without metadata as batch, channel and two or three spatial axes, or with the channels last; `None`
    /// for other ranks. Integers are not processed.
    pub(crate) fn from_value(value: &Value, channels_last: bool, processing: &[Processing]) -> Option<Self> {
        let shape = value.shape.as_ref()?;
        let kinds: &[AxisKind] = match (shape.len(), channels_last) {
            (4, false) => &[AxisKind::Batch, AxisKind::Channel, AxisKind::Y, AxisKind::X],
            (5, false) => &[AxisKind::Batch, AxisKind::Channel, AxisKind::Z, AxisKind::Y, AxisKind::X],
            (4, true) => &[AxisKind::Batch, AxisKind::Y, AxisKind::X, AxisKind::Channel],
            (5, true) => &[AxisKind::Batch, AxisKind::Z, AxisKind::Y, AxisKind::X, AxisKind::Channel],
            _ => return None,
        };
        let is_integer = value.dtype.is_some_and(|dtype| !dtype.is_float());
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
            dtype: TensorType::Float32,
            axes: axes.collect(),
            processing: if is_integer { Vec::new() } else { processing.to_vec() },
            test_tensor: None,
        })
    }
}

/// Maximum length of an input's last axis for which this axis is taken to be that of the channels.
const MAX_LAST_CHANNELS: usize = 4;

/// Returns whether an input of a network without metadata has the channels last: its last axis has a fixed length of a few
/// elements, and its second axis has not.
pub(crate) fn has_channels_last(input: &Value) -> bool {
    let few = |dim: Option<&Dim>| dim.and_then(Dim::fixed).is_some_and(|n| n <= MAX_LAST_CHANNELS);
    input.shape.as_ref().is_some_and(|shape| !few(shape.get(1)) && few(shape.last()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_graph::ElementType;

    #[test]
    fn a_short_last_axis_of_an_input_is_that_of_the_channels() {
        let free = || Dim::Free(String::new());
        let value = |shape: Vec<Dim>| Value { name: "x".to_owned(), dtype: Some(ElementType::U8), shape: Some(shape) };
        let images = value(vec![free(), Dim::Fixed(256), Dim::Fixed(256), Dim::Fixed(3)]);
        let stacks = value(vec![free(), free(), free(), free(), Dim::Fixed(1)]);
        assert!(has_channels_last(&images) && has_channels_last(&stacks));
        for other in [
            vec![free(), Dim::Fixed(1), free(), free(), free()],
            vec![free(), Dim::Fixed(1), Dim::Fixed(2), Dim::Fixed(2)],
            vec![free(), free(), free(), free()],
        ] {
            assert!(!has_channels_last(&value(other)));
        }
        let steps = [Processing::Sigmoid];
        let spec = TensorSpec::from_value(&images, true, &steps).unwrap();
        assert!(spec.has_channels_last() && spec.processing.is_empty(), "integers are not processed");
        let kinds: Vec<AxisKind> = spec.axes.iter().map(|axis| axis.kind).collect();
        assert_eq!(kinds, [AxisKind::Batch, AxisKind::Y, AxisKind::X, AxisKind::Channel]);
    }
}
