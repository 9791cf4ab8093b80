//! Quantization of a model: calibration, search for the best settings, and writing the package.

mod bias;
mod histogram;
mod measure;
mod observe;
mod qat;
mod search;
mod speed;
mod tiles;

pub use histogram::Method;
pub use measure::OutputError;
pub use qat::{QatOutcome, QatReport, QatTask, QuantizationAwareTraining};
pub use search::{Candidate, FloatLayer};
pub use speed::TileTime;

use crate::package_test::{test_inputs, test_outputs};
use crate::packages::{self, Quantized};
use crate::tensors::preprocess;
use crate::{Context, JobError, Model, ModelTask, find_model};
use cytoscope_engine::{Engine, Precision};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{Graph, Tensor};
use cytoscope_model_package::{Package, Processing, Tolerance, check_destination};
use cytoscope_passes::quantize;
use cytoscope_storage::Overwrite;
use observe::{Runner, Tile};
use search::{Search, SearchResult};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How ranges of activations are determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuantizeMode {
    /// At run time, for each tile: needs no calibration data, but costs time in every run.
    Dynamic,
    /// Once, from calibration data.
    Static,
    /// Once, from calibration data; if that exceeds the accuracy budget, quantization-aware training adapts the
    /// weights.
    Qat,
}

/// Maximum number of tiles for calibration and measurement.
pub const MAX_TILES: usize = 16;
/// Maximum number of tiles for quantization-aware training.
pub const MAX_QAT_TILES: usize = 48;
/// Default of the maximum relative L2 error of an output.
pub const ACCURACY_BUDGET: f64 = 0.02;

/// Quantizes a model to 8-bit integers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuantizeJob {
    /// Package by path or name.
    pub model: String,
    /// The package to write.
    pub out: PathBuf,
    /// How ranges of activations are determined.
    pub mode: QuantizeMode,
    /// Stacks, or folders of stacks, for calibration; if empty, the package's test tensors are used.
    #[serde(default)]
    pub calibrate: Vec<PathBuf>,
    /// Maximum relative L2 error of an output against the float network.
    pub accuracy_budget: f64,
    /// Names of layers to keep in floats.
    #[serde(default)]
    pub keep_float: BTreeSet<String>,
    /// Leave the float network out of the package.
    #[serde(default)]
    pub without_float: bool,
    /// Whether to replace something other than a package of this program at the output path.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// Error of one output of the network, quantized against float.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputReport {
    /// Name of the output.
    pub name: String,
    /// The error.
    #[serde(flatten)]
    pub error: OutputError,
}

/// Result of a [`QuantizeJob`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuantizeReport {
    /// The package written.
    pub out: PathBuf,
    /// Name of the package.
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
    /// Metric of the outputs' `agreement` with the float network: `dice` (of the thresholded maps) or `pearson`.
    pub agreement_metric: String,
    /// Number of tiles used for calibration.
    pub calibration_tiles: usize,
    /// Number of tiles on which errors were measured.
    pub held_out_tiles: usize,
    /// The chosen calibration method; absent for dynamic ranges.
    pub method: Option<Method>,
    /// Strength of the chosen channel equalization; absent if channels were not equalized.
    pub equalized: Option<f64>,
    /// All settings that were tried.
    pub candidates: Vec<Candidate>,
    /// Layers whose bias was corrected.
    pub bias_corrected: Vec<String>,
    /// Result of quantization-aware training; absent if it was not requested or not needed.
    #[serde(default, rename = "taught")]
    pub qat: Option<QatReport>,
    /// Number of layers in int8.
    pub quantized_layers: usize,
    /// Layers kept in floats, with the reason.
    pub left_float: Vec<FloatLayer>,
    /// Share of the multiply-accumulates in floats.
    pub float_share_of_work: f64,
    /// Maximum allowed relative L2 error.
    pub accuracy_budget: f64,
    /// Whether the accuracy budget was met.
    pub budget_met: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Wall time in seconds.
    pub seconds: f64,
}

impl QuantizeJob {
    /// Runs the job without quantization-aware training.
    ///
    /// # Errors
    /// As [`QuantizeJob::run_with`].
    pub fn run(&self, context: &Context) -> Result<QuantizeReport, JobError> {
        self.run_with(context, None)
    }

    /// Runs the job; [`QuantizeMode::Qat`] requires a trainer.
    ///
    /// # Errors
    /// [`JobError`] if the model cannot be quantized, calibration data is missing or invalid, the package cannot be
    /// written, or the job is cancelled. No partly written files are left.
    pub fn run_with(
        &self,
        context: &Context,
        trainer: Option<&dyn QuantizationAwareTraining>,
    ) -> Result<QuantizeReport, JobError> {
        let start = Instant::now();
        if self.mode == QuantizeMode::Qat && trainer.is_none() {
            return Err(JobError::WrongUse(
                "quantization-aware training is not available here: use mode static or dynamic".to_owned(),
            ));
        }
        if !(self.accuracy_budget.is_finite() && self.accuracy_budget > 0.0) {
            return Err(JobError::WrongUse(format!(
                "invalid accuracy budget {}: give a relative error above 0, such as {ACCURACY_BUDGET}",
                self.accuracy_budget
            )));
        }
        let path = find_model(&self.model)?;
        let inputs: Vec<&Path> = self.calibrate.iter().chain([&path]).map(PathBuf::as_path).collect();
        check_destination(&self.out, &inputs, self.overwrite)?;
        let path_text = path.display().to_string();
        let open = || Package::open(&path).map_err(|e| JobError::model(&*path_text, e));
        let package = open()?;
        let mut notes = Vec::new();
        let source = match (package.is_int8(), &package.float_graph) {
            (true, Some(float)) => {
                notes.push("the package is already quantized: its float network was quantized again".to_owned());
                float.clone()
            }
            _ => package.graph.clone(),
        };
        let graph = quantize::prepare(&source).map_err(|e| JobError::model(&*path_text, e))?;
        self.check_names(&graph)?;
        let float =
            Model { graph: source.clone(), float_graph: None, has_int8: false, ..Model::from_package(open()?)? };
        let tiles = self.tiles(context, &package, &float, &mut notes)?;
        let (mut calibration, held_out) = split(tiles, &mut notes);
        let is_qat = self.mode == QuantizeMode::Qat;
        let training_tiles: Vec<Tensor> = calibration.iter().filter(|_| is_qat).map(|t| t.values.clone()).collect();
        // Calibration and bias correction use as many tiles as without training.
        let count = if calibration.len() > MAX_TILES { MAX_TILES * 3 / 4 } else { calibration.len() };
        calibration = subsample(calibration, count);
        let engine = CpuEngine::new();
        let runner = Runner { context, engine: &engine, threads: 0 };
        let expected = runner.outputs(&graph, &held_out)?;
        if expected.iter().flatten().any(|t| t.as_f32().is_none_or(|v| v.iter().any(|x| !x.is_finite()))) {
            let from = held_out.first().map(|t| t.from.clone()).unwrap_or_default();
            return Err(JobError::Mismatch {
                path: from.into(),
                problem: "the float network's output for it is not finite (NaN or infinite)".to_owned(),
                next_step: "check the stack, or leave it out of the calibration".to_owned(),
            });
        }
        let search = Search {
            threshold: threshold(&float, &expected),
            runner,
            calibration,
            held_out,
            expected,
            task: float.task,
            budget: self.accuracy_budget,
            keep_float: self.keep_float.clone(),
            graph,
        };
        let found = {
            let mut meter = context.meter("calibrate", search.steps(self.mode), "runs");
            match self.mode {
                QuantizeMode::Static => search.static_ranges(&mut meter)?,
                QuantizeMode::Dynamic => search.dynamic_ranges(&mut meter)?,
                QuantizeMode::Qat => search.quantization_aware(&mut meter, trainer, &training_tiles)?,
            }
        };
        if self.mode == QuantizeMode::Qat && found.qat.is_none() {
            notes.push(
                "quantization-aware training was not needed: calibration alone meets the accuracy budget".to_owned(),
            );
        }
        let int8 = Model { graph: found.graph.clone(), has_int8: true, ..float.clone() };
        let Some(timed) = search.held_out.first().map(|t| t.values.clone()) else {
            return Err(JobError::WrongUse("there is no calibration data: give stacks with --calibrate".to_owned()));
        };
        let tile_times = speed::time(context, &float, &int8, &engine, &timed)?;
        if !engine.device().precisions.contains(&Precision::Int8) {
            notes.push(
                "the engine of this CPU has no int8 kernels yet: the int8 time was measured with the same values in \
                 floats"
                    .to_owned(),
            );
        }
        let bytes = |graph: &Graph| {
            cytoscope_onnx::to_bytes(graph).map(|b| b.len() as u64).map_err(|e| JobError::model(&*path_text, e))
        };
        let mut report = self.report(&package, &search, &found, notes);
        report.float_bytes = bytes(&source)?;
        report.int8_bytes = bytes(&found.graph)?;
        if report.int8_bytes >= report.float_bytes {
            report
                .notes
                .push("the int8 network is not smaller than the float network, because it has few weights".to_owned());
        }
        report.tile_times = tile_times;
        report.tile_shape = timed.shape().to_vec();
        context.check()?;
        self.write(context, &package, source, found.graph, &mut report)?;
        report.seconds = start.elapsed().as_secs_f64();
        Ok(report)
    }

    fn check_names(&self, graph: &Graph) -> Result<(), JobError> {
        let layers = quantize::quantizable_layers(graph).layers;
        match self.keep_float.iter().find(|k| layers.iter().all(|l| l.name != **k)) {
            None => Ok(()),
            Some(unknown) => {
                let names: Vec<&str> = layers.iter().map(|l| l.name.as_str()).collect();
                Err(JobError::WrongUse(format!(
                    "the model has no layer \"{unknown}\" to keep in floats: its layers are {}",
                    names.join(", ")
                )))
            }
        }
    }

    /// Returns the tiles of the calibration data, or of the package's test tensors.
    fn tiles(
        &self,
        context: &Context,
        package: &Package,
        float: &Model,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Tile>, JobError> {
        if !self.calibrate.is_empty() {
            let max_tiles = if self.mode == QuantizeMode::Qat { MAX_QAT_TILES } else { MAX_TILES };
            return tiles::cut(context, float, &self.calibrate, max_tiles);
        }
        let path = &package.path;
        let own = package.test_tensors().map_err(|e| JobError::model(path.display().to_string(), e))?;
        let (raw, from) = match (own, self.mode) {
            (Some((inputs, _)), _) => {
                notes.push(
                    "calibrated on the package's test tensor alone: give stacks like those the model will be used on \
                     with --calibrate"
                        .to_owned(),
                );
                (inputs, "its test tensor")
            }
            (None, QuantizeMode::Dynamic) => {
                notes.push(
                    "errors and times were measured on a synthetic tile: give stacks with --calibrate".to_owned(),
                );
                (test_inputs(package)?, "a synthetic tile")
            }
            (None, QuantizeMode::Static | QuantizeMode::Qat) => {
                return Err(JobError::Mismatch {
                    path: path.clone(),
                    problem: "it has no test tensors to calibrate with".to_owned(),
                    next_step: "give stacks like those the model will be used on with --calibrate DIR".to_owned(),
                });
            }
        };
        let from = format!("{}: {from}", path.display());
        let tile = |values: Tensor| {
            if values.as_f32().is_none_or(|v| v.is_empty() || v.iter().any(|x| !x.is_finite())) {
                return Err(JobError::Mismatch {
                    path: path.clone(),
                    problem: "its test tensor contains values that are not finite 32-bit floats".to_owned(),
                    next_step: "give stacks with --calibrate DIR".to_owned(),
                });
            }
            Ok(Tile { values, from: from.clone() })
        };
        let package_path = path.display().to_string();
        let inputs = preprocess(&package_path, &package.inputs, package.declared_graph(), &raw)?;
        inputs.into_iter().take(1).map(tile).collect()
    }

    fn report(
        &self,
        package: &Package,
        search: &Search<'_>,
        found: &SearchResult,
        notes: Vec<String>,
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
                ModelTask::Segmentation => "dice".to_owned(),
                ModelTask::LabelFree => "pearson".to_owned(),
            },
            calibration_tiles: if self.mode == QuantizeMode::Dynamic { 0 } else { search.calibration.len() },
            held_out_tiles: search.held_out.len(),
            method: found.method,
            equalized: found.equalized,
            candidates: found.candidates.clone(),
            bias_corrected: found.bias_corrected.clone(),
            qat: found.qat.clone(),
            quantized_layers: all.iter().filter(|l| !left.contains(l.name.as_str())).count(),
            float_share_of_work: found.left_float.iter().fold(0.0, |sum, l| sum + l.share_of_work),
            left_float: found.left_float.clone(),
            accuracy_budget: self.accuracy_budget,
            budget_met: worst <= self.accuracy_budget,
            notes,
            seconds: 0.0,
        }
    }

    fn write(
        &self,
        context: &Context,
        package: &Package,
        source: Graph,
        graph: Graph,
        report: &mut QuantizeReport,
    ) -> Result<(), JobError> {
        let inputs = test_inputs(package)?;
        let mut meter = context.meter("write", 2, "steps");
        // The package's test outputs are those of the declared network.
        let package_path = package.path.display().to_string();
        let outputs = |graph: &Graph| test_outputs(&package_path, &package.inputs, &package.outputs, graph, &inputs);
        let float_outputs = outputs(&source)?;
        let (test_outputs, tolerance) = if self.without_float {
            let of_integers = outputs(&graph)?;
            let tolerance = tolerance(&float_outputs, &of_integers);
            (of_integers, Some(tolerance))
        } else {
            (float_outputs, None)
        };
        meter.add(1)?;
        let record = serde_json::json!({
            "mode": report.mode,
            "method": report.method.map(|m| m.to_string()),
            "equalized": report.equalized,
            "outputs": report.outputs,
            "agreement_metric": report.agreement_metric,
            "accuracy_budget": report.accuracy_budget,
            "budget_met": report.budget_met,
            "left_float": report.left_float,
            "bias_corrected": report.bias_corrected,
            "taught": report.qat,
            "calibration_tiles": report.calibration_tiles,
            "held_out_tiles": report.held_out_tiles,
        });
        let quantized =
            Quantized { tolerance, graph, float_graph: (!self.without_float).then_some(source), test_outputs, record };
        packages::save_quantized(package, inputs, quantized, &self.out, self.overwrite)?;
        meter.add(1)
    }
}

/// Maximum absolute tolerance that bioimage.io's specification allows, as a share of an output's maximum.
const MAX_ABSOLUTE_SHARE: f64 = 0.01;

/// Returns the tolerance for another program's results. Another order of summation moves values to neighbouring
/// quantization steps, whose total effect is smaller than the quantization error of the outputs.
fn tolerance(float: &[Tensor], quantized: &[Tensor]) -> Tolerance {
    let pairs = float.iter().zip(quantized).filter_map(|(a, b)| Some((a.as_f32()?, b.as_f32()?)));
    let largest = pairs.flat_map(|(a, b)| a.iter().zip(b)).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    let max_value = |t: &Tensor| t.to_f64_vec().into_iter().fold(0.0, f64::max);
    let max_absolute = quantized.iter().map(|t| max_value(t) * MAX_ABSOLUTE_SHARE).fold(f64::INFINITY, f64::min);
    let absolute = largest.max(Tolerance::default().absolute).min(max_absolute);
    Tolerance { absolute, relative: 1e-2, outside_ppm: 1000.0 }
}

/// Returns `wanted` of the tiles, evenly spaced.
fn subsample(tiles: Vec<Tile>, wanted: usize) -> Vec<Tile> {
    let count = tiles.len();
    let taken = |i: usize| i * wanted / count.max(1) != (i + 1) * wanted / count.max(1);
    tiles.into_iter().enumerate().filter(|(i, _)| taken(*i)).map(|(_, t)| t).collect()
}

/// Splits tiles into calibration and held-out tiles: every fourth is held out. A single tile is used for both.
fn split(tiles: Vec<Tile>, notes: &mut Vec<String>) -> (Vec<Tile>, Vec<Tile>) {
    if tiles.len() < 2 {
        notes.push("errors were measured on the calibration tile, because there is only one tile".to_owned());
        return (tiles.clone(), tiles);
    }
    let every = tiles.len().min(4);
    let (mut calibration, mut held_out) = (Vec::new(), Vec::new());
    for (i, tile) in tiles.into_iter().enumerate() {
        if i % every == every - 1 { held_out.push(tile) } else { calibration.push(tile) }
    }
    (calibration, held_out)
}

/// Returns the value of the network's output that corresponds to a probability of 0.5.
fn threshold(model: &Model, expected: &[Vec<Tensor>]) -> f32 {
    if model.postprocessing.contains(&Processing::Sigmoid) {
        return 0.0;
    }
    let in_unit = |t: &Tensor| t.as_f32().is_some_and(|v| v.iter().all(|x| (0.0..=1.0).contains(x)));
    if expected.iter().flatten().all(in_unit) { 0.5 } else { 0.0 }
}
