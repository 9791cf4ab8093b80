//! The report of a quantization.

use crate::search::{Search, SearchResult};
use crate::{Candidate, FloatLayer, Method, OutputError, QatReport, QuantizeJob, QuantizeMode, TensorMethod, TileTime};
use cytoscope_graph_passes::quantize;
use cytoscope_model_package::Package;
use cytoscope_pipeline::{LeftOut, ModelTask, Note};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Error of one output of the network, quantized against float.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputReport {
    /// Name of the network output.
    pub name: String,
    /// Difference from the float network on held-out tiles.
    #[serde(flatten)]
    pub error: OutputError,
}

/// Metric of the agreement of an output with that of the float network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgreementMetric {
    /// Dice coefficient of the thresholded maps.
    Dice,
    /// Pearson correlation.
    Pearson,
}

impl AgreementMetric {
    /// Returns the name for display.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dice => "Dice",
            Self::Pearson => "Pearson",
        }
    }
}

/// Chosen settings, errors and written package, the result of a [`QuantizeJob`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuantizeReport {
    /// The package or ONNX file written.
    pub out: PathBuf,
    /// Name of the written package.
    pub name: String,
    /// How ranges of activations are determined.
    pub mode: QuantizeMode,
    /// Size of the float network's file in bytes.
    pub float_bytes: u64,
    /// Size of the quantized network's file in bytes.
    pub int8_bytes: u64,
    /// Times for one tile on this machine.
    pub tile_times: Vec<TileTime>,
    /// Shape of the timed tile, in the network's axis order.
    pub tile_shape: Vec<usize>,
    /// Error of each output on the held-out tiles.
    pub outputs: Vec<OutputReport>,
    /// Metric of the outputs' `agreement` with the float network.
    pub agreement_metric: AgreementMetric,
    /// Number of tiles used for calibration.
    pub calibration_tiles: usize,
    /// Number of tiles on which errors were measured.
    pub held_out_tiles: usize,
    /// The chosen calibration method; absent for dynamic ranges.
    pub method: Option<Method>,
    /// Tensors whose ranges are computed by another method, which is sought if the accuracy budget is not met with one for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_methods: Vec<TensorMethod>,
    /// Strength of the chosen channel equalization, 0 (by the weights alone) to 1 (by the activations alone); absent if channels
    /// were not equalized.
    pub equalized: Option<f64>,
    /// All settings that were tried.
    pub candidates: Vec<Candidate>,
    /// Layers whose bias was corrected.
    pub bias_corrected: Vec<String>,
    /// Result of quantization-aware training; absent if it was not requested or not needed.
    #[serde(default, alias = "taught")]
    pub qat: Option<QatReport>,
    /// Number of layers in int8.
    pub quantized_layers: usize,
    /// Layers kept in float, with the reason.
    pub left_float: Vec<FloatLayer>,
    /// Share of the multiply-accumulates in float.
    pub float_share_of_work: f64,
    /// Maximum allowed relative L2 error.
    pub accuracy_budget: f64,
    /// Whether the accuracy budget was met.
    pub budget_met: bool,
    /// Files and sections of the package that the written one lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Where the previous contents of the output were moved, if it could not be replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<PathBuf>,
    /// Notes for the user, in JSON a list of texts.
    #[serde(flatten, with = "cytoscope_pipeline::note::texts")]
    pub notes: Vec<Note>,
    /// Wall time in seconds.
    pub seconds: f64,
}

impl QuantizeJob {
    /// Returns the report of a search; sizes and times are filled in later.
    pub(crate) fn report(
        &self,
        package: &Package,
        search: &Search<'_>,
        found: &SearchResult,
        notes: Vec<Note>,
    ) -> QuantizeReport {
        let names = search.graph.outputs.iter().map(|id| search.graph.value(*id).name.clone());
        let worst = found.errors.iter().map(|e| e.relative_l2).fold(0.0, f64::max);
        let left: BTreeSet<&str> = found.left_float.iter().map(|l| l.name.as_str()).collect();
        let all = quantize::quantizable_layers(&search.graph).layers;
        QuantizeReport {
            out: self.out.clone(),
            name: package.name.clone(),
            mode: self.mode,
            float_bytes: 0,
            int8_bytes: 0,
            tile_times: Vec::new(),
            tile_shape: Vec::new(),
            outputs: names.zip(&found.errors).map(|(name, error)| OutputReport { name, error: *error }).collect(),
            agreement_metric: match search.task {
                ModelTask::Segmentation => AgreementMetric::Dice,
                ModelTask::LabelFree => AgreementMetric::Pearson,
            },
            calibration_tiles: if self.mode == QuantizeMode::Dynamic { 0 } else { search.calibration.len() },
            held_out_tiles: search.held_out.len(),
            method: found.method,
            other_methods: found.other_methods.clone(),
            equalized: found.equalized,
            candidates: found.candidates.clone(),
            bias_corrected: found.bias_corrected.clone(),
            qat: found.qat.clone(),
            quantized_layers: all.iter().filter(|l| !left.contains(l.name.as_str())).count(),
            float_share_of_work: found.left_float.iter().fold(0.0, |sum, l| sum + l.share_of_work),
            left_float: found.left_float.clone(),
            accuracy_budget: self.accuracy_budget,
            budget_met: worst <= self.accuracy_budget,
            left_out: Vec::new(),
            moved_to: None,
            notes,
            seconds: 0.0,
        }
    }
}
