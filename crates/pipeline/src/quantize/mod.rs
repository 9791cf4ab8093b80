//! Quantizing a model: calibration, search, and the package that comes of it.

mod bias;
mod histogram;
mod measure;
mod observe;
mod search;
mod speed;
mod teach;
mod tiles;

pub use histogram::Method;
pub use measure::OutputError;
pub use search::{Candidate, FloatLayer};
pub use speed::TileTime;
pub use teach::{Lesson, Taught, TaughtReport, Teacher};

use crate::package_test::{test_inputs, test_outputs};
use crate::packages::{self, Quantized};
use crate::tensors::preprocess;
use crate::{Context, JobError, Model, Task, find_model};
use cytoscope_engine::{Engine, Precision};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::package::{Package, Processing, Tolerance, check_destination};
use cytoscope_graph::passes::quantize;
use cytoscope_graph::{Graph, Tensor};
use cytoscope_storage::Overwrite;
use observe::{Runner, Tile};
use search::{Found, Search};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// When ranges of activations are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuantizeMode {
    /// While the model runs, tile by tile: needs no data, costs time at each run.
    Dynamic,
    /// Once, from calibration data.
    Static,
    /// Once, and where that costs more than the accuracy budget, weights are taught with the rounding in the network.
    Qat,
}

/// Most tiles that are calibrated and measured with.
pub const MAX_TILES: usize = 16;
/// Most tiles where the network is taught.
pub const MAX_TAUGHT_TILES: usize = 48;
/// Greatest relative L2 error of an output where none is asked for.
pub const ACCURACY_BUDGET: f64 = 0.02;

/// A model to be quantized.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuantizeJob {
    /// Package by path or name.
    pub model: String,
    /// The package to write.
    pub out: PathBuf,
    /// When ranges are found.
    pub mode: QuantizeMode,
    /// Stacks, and folders of them; empty: the package's own test tensors.
    #[serde(default)]
    pub calibrate: Vec<PathBuf>,
    /// Greatest relative L2 error of an output against the float network.
    pub accuracy_budget: f64,
    /// Layers that stay in floats whatever they cost.
    #[serde(default)]
    pub keep_float: BTreeSet<String>,
    /// Leave the float network out of the package.
    #[serde(default)]
    pub without_float: bool,
    /// What happens to something else than a package of ours at the path of the new one.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// One output of the network, quantized against float.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputReport {
    /// Its name.
    pub name: String,
    /// How far it is off.
    #[serde(flatten)]
    pub error: OutputError,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuantizeReport {
    /// The package written.
    pub out: PathBuf,
    /// Of the package.
    pub name: String,
    /// When ranges are found.
    pub mode: QuantizeMode,
    /// Bytes of the network's file before.
    pub float_bytes: u64,
    /// Bytes of the quantized network's file.
    pub int8_bytes: u64,
    /// Times of a tile on this machine.
    pub tile_times: Vec<TileTime>,
    /// Lengths of the tile that was timed, in the network's order.
    pub tile_shape: Vec<usize>,
    /// Error of each output on the held-out tiles.
    pub outputs: Vec<OutputReport>,
    /// What `agreement` of the outputs is: `dice` (of the maps above the threshold) or `pearson`. The float network's own is 1.
    pub agreement_metric: String,
    /// Tiles that ranges were found with.
    pub calibration_tiles: usize,
    /// Tiles that errors were measured on.
    pub held_out_tiles: usize,
    /// How ranges were found in the end; absent for dynamic ones.
    pub method: Option<Method>,
    /// How far channels were made alike; absent where they were left.
    pub equalized: Option<f64>,
    /// Everything that was tried.
    pub candidates: Vec<Candidate>,
    /// Layers whose bias was corrected.
    pub bias_corrected: Vec<String>,
    /// What teaching brought; absent where it was not asked for or not needed.
    #[serde(default)]
    pub taught: Option<TaughtReport>,
    /// Layers that compute in integers.
    pub quantized_layers: usize,
    /// Layers that stay in floats, and why.
    pub left_float: Vec<FloatLayer>,
    /// Share of the multiply-accumulates that stays in floats.
    pub float_share_of_work: f64,
    /// Greatest relative L2 error allowed.
    pub accuracy_budget: f64,
    /// Whether it was kept.
    pub budget_met: bool,
    /// Things worth knowing.
    pub notes: Vec<String>,
    /// Wall seconds.
    pub seconds: f64,
}

impl QuantizeJob {
    /// Runs the job without a teacher.
    ///
    /// # Errors
    /// As [`QuantizeJob::run_with`].
    pub fn run(&self, context: &Context) -> Result<QuantizeReport, JobError> {
        self.run_with(context, None)
    }

    /// Runs the job; [`QuantizeMode::Qat`] needs somebody who teaches.
    ///
    /// # Errors
    /// [`JobError`]: the model cannot be quantized, calibration data is missing or at fault, the package cannot be written, or on
    /// cancelling; nothing half-written is left.
    pub fn run_with(&self, context: &Context, teacher: Option<&dyn Teacher>) -> Result<QuantizeReport, JobError> {
        let start = Instant::now();
        if self.mode == QuantizeMode::Qat && teacher.is_none() {
            return Err(JobError::WrongUse("there is nobody here to teach a quantized network".to_owned()));
        }
        if !(self.accuracy_budget.is_finite() && self.accuracy_budget > 0.0) {
            return Err(JobError::WrongUse(format!(
                "an accuracy budget of {} is none: give a relative error above 0, such as {ACCURACY_BUDGET}",
                self.accuracy_budget
            )));
        }
        let path = find_model(&self.model)?;
        let inputs: Vec<&Path> = self.calibrate.iter().chain([&path]).map(PathBuf::as_path).collect();
        check_destination(&self.out, &inputs, self.overwrite)?;
        let shown = path.display().to_string();
        let open = || Package::open(&path).map_err(|e| JobError::model(&*shown, e));
        let package = open()?;
        let mut notes = Vec::new();
        let source = match (package.is_int8(), &package.float_graph) {
            (true, Some(float)) => {
                notes.push("the package is quantized already: its float network is quantized anew".to_owned());
                float.clone()
            }
            _ => package.graph.clone(),
        };
        let graph = quantize::prepare(&source).map_err(|e| JobError::model(&*shown, e))?;
        self.check_names(&graph)?;
        let float =
            Model { graph: source.clone(), float_graph: None, has_int8: false, ..Model::from_package(open()?)? };
        let tiles = self.tiles(context, &package, &float, &mut notes)?;
        let (mut calibration, held_out) = split(tiles, &mut notes);
        let taught = self.mode == QuantizeMode::Qat;
        let lessons: Vec<Tensor> = calibration.iter().filter(|_| taught).map(|t| t.values.clone()).collect();
        // Ranges are found and biases corrected on as many tiles as without teaching.
        let most = if calibration.len() > MAX_TILES { MAX_TILES * 3 / 4 } else { calibration.len() };
        calibration = spread(calibration, most);
        let engine = CpuEngine::new();
        let runner = Runner { context, engine: &engine, threads: 0 };
        let expected = runner.outputs(&graph, &held_out)?;
        if expected.iter().flatten().any(|t| t.as_f32().is_none_or(|v| v.iter().any(|x| !x.is_finite()))) {
            let from = held_out.first().map(|t| t.from.clone()).unwrap_or_default();
            return Err(JobError::Mismatch {
                path: from.into(),
                problem: "what the float network makes of it is not finite (NaN or infinite)".to_owned(),
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
                QuantizeMode::Static => search.statically(&mut meter)?,
                QuantizeMode::Dynamic => search.dynamically(&mut meter)?,
                QuantizeMode::Qat => search.taught(&mut meter, teacher, &lessons)?,
            }
        };
        if self.mode == QuantizeMode::Qat && found.taught.is_none() {
            notes.push("no teaching was needed: calibration alone keeps the accuracy budget".to_owned());
        }
        let int8 = Model { graph: found.graph.clone(), has_int8: true, ..float.clone() };
        let Some(timed) = search.held_out.first().map(|t| t.values.clone()) else {
            return Err(JobError::WrongUse("there is no calibration data: give some with --calibrate".to_owned()));
        };
        let tile_times = speed::time(context, &float, &int8, &engine, &timed)?;
        if !engine.device().precisions.contains(&Precision::Int8) {
            notes.push(
                "this processor's engine has no integers yet: the int8 time is that of the same values in floats"
                    .to_owned(),
            );
        }
        let bytes = |graph: &Graph| graph.to_bytes().map(|b| b.len() as u64).map_err(|e| JobError::model(&*shown, e));
        let mut report = self.report(&package, &search, &found, notes);
        report.float_bytes = bytes(&source)?;
        report.int8_bytes = bytes(&found.graph)?;
        if report.int8_bytes >= report.float_bytes {
            report
                .notes
                .push("the int8 network is no smaller than the float one: its few weights are not worth it".to_owned());
        }
        report.tile_times = tile_times;
        report.tile_shape = timed.shape().to_vec();
        context.check()?;
        self.write(context, &package, source, found.graph, &mut report)?;
        report.seconds = start.elapsed().as_secs_f64();
        Ok(report)
    }

    fn check_names(&self, graph: &Graph) -> Result<(), JobError> {
        let layers = quantize::survey(graph).layers;
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

    /// The tiles of the calibration data, or the package's own test tensors.
    fn tiles(
        &self,
        context: &Context,
        package: &Package,
        float: &Model,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Tile>, JobError> {
        if !self.calibrate.is_empty() {
            let most = if self.mode == QuantizeMode::Qat { MAX_TAUGHT_TILES } else { MAX_TILES };
            return tiles::cut(context, float, &self.calibrate, most);
        }
        let path = &package.path;
        let own = package.test_tensors().map_err(|e| JobError::model(path.display().to_string(), e))?;
        let (raw, from) = match (own, self.mode) {
            (Some((inputs, _)), _) => {
                notes.push(
                    "measured on the package's test tensor alone: give stacks like those it will see with --calibrate"
                        .to_owned(),
                );
                (inputs, "its test tensor")
            }
            (None, QuantizeMode::Dynamic) => {
                notes.push("errors and times are those of a made-up tile: give stacks with --calibrate".to_owned());
                (test_inputs(package)?, "a made-up tile")
            }
            (None, QuantizeMode::Static | QuantizeMode::Qat) => {
                return Err(JobError::Mismatch {
                    path: path.clone(),
                    problem: "it has no test tensors to calibrate with".to_owned(),
                    next_step: "give some stacks like those it will see with --calibrate DIR".to_owned(),
                });
            }
        };
        let from = format!("{}: {from}", path.display());
        let tile = |values: Tensor| {
            if values.as_f32().is_none_or(|v| v.is_empty() || v.iter().any(|x| !x.is_finite())) {
                return Err(JobError::Mismatch {
                    path: path.clone(),
                    problem: "its test tensor holds values that are not finite 32-bit floats".to_owned(),
                    next_step: "give some stacks with --calibrate DIR".to_owned(),
                });
            }
            Ok(Tile { values, from: from.clone() })
        };
        let shown = path.display().to_string();
        let inputs = preprocess(&shown, &package.inputs, package.declared_graph(), &raw)?;
        inputs.into_iter().take(1).map(tile).collect()
    }

    fn report(&self, package: &Package, search: &Search<'_>, found: &Found, notes: Vec<String>) -> QuantizeReport {
        let names = search.graph.outputs.iter().map(|id| search.graph.value(*id).name.clone());
        let worst = found.errors.iter().map(|e| e.relative_l2).fold(0.0, f64::max);
        let left: BTreeSet<&str> = found.left_float.iter().map(|l| l.name.as_str()).collect();
        let all = quantize::survey(&search.graph).layers;
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
                Task::Segmentation => "dice".to_owned(),
                Task::LabelFree => "pearson".to_owned(),
            },
            calibration_tiles: if self.mode == QuantizeMode::Dynamic { 0 } else { search.calibration.len() },
            held_out_tiles: search.held_out.len(),
            method: found.method,
            equalized: found.equalized,
            candidates: found.candidates.clone(),
            bias_corrected: found.bias_corrected.clone(),
            taught: found.taught.clone(),
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
        // Other programs test the package with these: what the declared network makes of the test inputs.
        let shown = package.path.display().to_string();
        let outputs = |graph: &Graph| test_outputs(&shown, &package.inputs, &package.outputs, graph, &inputs);
        let of_floats = outputs(&source)?;
        let (test_outputs, tolerance) = if self.without_float {
            let of_integers = outputs(&graph)?;
            let tolerance = tolerance(&of_floats, &of_integers);
            (of_integers, Some(tolerance))
        } else {
            (of_floats, None)
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
            "taught": report.taught,
            "calibration_tiles": report.calibration_tiles,
            "held_out_tiles": report.held_out_tiles,
        });
        let quantized =
            Quantized { tolerance, graph, float_graph: (!self.without_float).then_some(source), test_outputs, record };
        packages::save_quantized(package, inputs, quantized, &self.out, self.overwrite)?;
        meter.add(1)
    }
}

/// Greatest absolute tolerance that may be declared, as a share of an output's greatest value, by the specification.
const GREATEST_ABSOLUTE: f64 = 0.01;

/// How far another program's result may be off: sums in another order move values to the next step of a quantized tensor, which
/// together stays below what quantizing itself does to the outputs.
fn tolerance(float: &[Tensor], quantized: &[Tensor]) -> Tolerance {
    let pairs = float.iter().zip(quantized).filter_map(|(a, b)| Some((a.as_f32()?, b.as_f32()?)));
    let largest = pairs.flat_map(|(a, b)| a.iter().zip(b)).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    let greatest = |t: &Tensor| t.to_f64_vec().into_iter().fold(0.0, f64::max);
    let most = quantized.iter().map(|t| greatest(t) * GREATEST_ABSOLUTE).fold(f64::INFINITY, f64::min);
    let absolute = largest.max(Tolerance::default().absolute).min(most);
    Tolerance { absolute, relative: 1e-2, outside_ppm: 1000.0 }
}

/// `most` of some tiles, evenly.
fn spread(tiles: Vec<Tile>, most: usize) -> Vec<Tile> {
    let count = tiles.len();
    let taken = |i: usize| i * most / count.max(1) != (i + 1) * most / count.max(1);
    tiles.into_iter().enumerate().filter(|(i, _)| taken(*i)).map(|(_, t)| t).collect()
}

/// Every fourth tile is held out; a single one has to serve for both.
fn split(tiles: Vec<Tile>, notes: &mut Vec<String>) -> (Vec<Tile>, Vec<Tile>) {
    if tiles.len() < 2 {
        notes.push("errors are those of the tile the model was calibrated with: there is only one".to_owned());
        return (tiles.clone(), tiles);
    }
    let every = tiles.len().min(4);
    let (mut calibration, mut held_out) = (Vec::new(), Vec::new());
    for (i, tile) in tiles.into_iter().enumerate() {
        if i % every == every - 1 { held_out.push(tile) } else { calibration.push(tile) }
    }
    (calibration, held_out)
}

/// The value of the network's output that stands for a probability of one half.
fn threshold(model: &Model, expected: &[Vec<Tensor>]) -> f32 {
    if model.postprocessing.contains(&Processing::Sigmoid) {
        return 0.0;
    }
    let in_unit = |t: &Tensor| t.as_f32().is_some_and(|v| v.iter().all(|x| (0.0..=1.0).contains(x)));
    if expected.iter().flatten().all(in_unit) { 0.5 } else { 0.0 }
}
