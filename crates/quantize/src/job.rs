//! The quantization job: calibration, search for the best settings, and writing the package.

use crate::data::CalibrationData;
use crate::inputs::InputChannels;
use crate::observe::Runner;
use crate::search::{Search, SearchResult, no_data};
use crate::{QuantizationAwareTraining, QuantizeReport, speed};
use cytoscope_engine::{Engine, Precision};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{Dim, Graph, Tensor, ValueId};
use cytoscope_graph_passes::{InputLengths, convolve_before_upsampling, infer_shapes, quantize, to_single_precision};
use cytoscope_model_package::{Package, Processing, check_destination, refuse_inside_package};
use cytoscope_pipeline::{
    CalibrationTile, Context, JobError, Model, Note, PredictJob, ProgressStage, ProgressUnit, find_model, move_channels,
};
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::target::{self, check_parent};
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

cytoscope_storage::named! {
    /// Returns the name in files and on the command line.
    pub fn name(QuantizeMode) {
        Dynamic => "dynamic",
        Static => "static",
        Qat => "qat",
    }
}

impl QuantizeMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Dynamic, Self::Static, Self::Qat];
}

/// Default of the maximum relative L2 error of an output.
pub const ACCURACY_BUDGET: f64 = 0.02;

/// Quantizes a model to 8-bit integers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuantizeJob {
    /// Package by path or name.
    pub model: String,
    /// The package to write: a folder or a zip; or, if it ends in `.onnx`, a file with the int8 network alone.
    pub out: PathBuf,
    /// How ranges of activations are determined.
    pub mode: QuantizeMode,
    /// Stacks, or folders of stacks, for calibration. Without these and `predictions`, the package's test tensors are used.
    #[serde(default)]
    pub calibrate: Vec<PathBuf>,
    /// Predictions, which are not run, whose stacks are used for calibration, too. Each is read as it would be predicted: with
    /// the series, axes, voxel size, channels, time point, object diameter and preprocessing steps of its prediction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub predictions: Vec<PredictJob>,
    /// Maximum relative L2 error of an output against the float network.
    pub accuracy_budget: f64,
    /// Names of layers to keep in float.
    #[serde(default)]
    pub keep_float: BTreeSet<String>,
    /// Leave the float network out of the package.
    #[serde(default)]
    pub without_float: bool,
    /// Whether to replace something other than a package of this program at the output path.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// The model that is quantized.
struct Source {
    package: Package,
    /// The model with the float network alone; several inputs are joined.
    float: Model,
    /// The float network as the package holds it.
    graph: Graph,
    /// The same, prepared for quantization.
    prepared: Graph,
    /// Channels of its inputs.
    channels: InputChannels,
}

impl QuantizeJob {
    /// Returns the stacks, folders of stacks and images of further inputs that the job reads.
    pub fn stacks(&self) -> impl Iterator<Item = &Path> {
        let tensors = self.predictions.iter().flat_map(|job| &job.input_tensors);
        let inputs = self.predictions.iter().flat_map(|job| &job.inputs);
        let images = tensors.filter_map(|tensor| tensor.file.as_ref());
        self.calibrate.iter().chain(inputs).chain(images).map(PathBuf::as_path)
    }

    /// Runs the job without quantization-aware training.
    ///
    /// # Errors
    /// Same as [`QuantizeJob::run_with`].
    pub fn run(&self, context: &Context) -> Result<QuantizeReport, JobError> {
        self.run_with(context, None)
    }

    /// Runs the job; [`QuantizeMode::Qat`] requires a trainer.
    ///
    /// # Errors
    /// [`JobError`] if the model cannot be quantized, calibration data is missing or invalid, the package cannot be
    /// written, or the job is canceled. No partly written files are left.
    pub fn run_with(
        &self,
        context: &Context,
        trainer: Option<&dyn QuantizationAwareTraining>,
    ) -> Result<QuantizeReport, JobError> {
        self.run_on_tiles(context, trainer, &[])
    }

    /// Runs the job as [`QuantizeJob::run_with`] does, but with these tiles in place of those that it would read; if there are
    /// none, they are read. Of more than the job uses, evenly spaced ones are used.
    ///
    /// # Errors
    /// Same as [`QuantizeJob::run_with`].
    pub fn run_on_tiles(
        &self,
        context: &Context,
        trainer: Option<&dyn QuantizationAwareTraining>,
        tiles: &[CalibrationTile],
    ) -> Result<QuantizeReport, JobError> {
        let start = Instant::now();
        check_parent(&self.out)?;
        self.check_options(trainer.is_some())?;
        let path = find_model(&self.model)?;
        let inputs: Vec<&Path> = self.stacks().chain([path.as_path()]).collect();
        self.check_out(&inputs)?;
        target::check_writable(&self.out)?;
        let mut notes = Vec::new();
        let loading = context.recorder.span(Stage::Load, "package");
        let Source { package, float, graph: source, prepared, channels } = self.open(&path, &mut notes)?;
        loading.finish();
        let mut data = self.calibration_data(context, &package, &float, tiles, &mut notes)?;
        let training = std::mem::take(&mut data.training);
        let prepared = match (self.mode, data.held_out.first()) {
            (QuantizeMode::Static, Some(tile)) => {
                let shapes = channels.shapes(&prepared, tile.values.shape());
                before_upsampling(prepared, &shapes, &self.keep_float)?
            }
            // The kernels for run-time ranges and for training have no transposed convolutions that overlap.
            _ => prepared,
        };
        let engine = CpuEngine::new();
        let searching = context.recorder.span(Stage::Quantize, "search");
        let runner = Runner { context, engine: &engine, threads: 0, channels: channels.clone() };
        let search = self.search(runner, &float, prepared, data)?;
        searching.finish();
        let found = self.find(&search, trainer, &training)?;
        if self.mode == QuantizeMode::Qat && found.qat.is_none() {
            notes.push(Note::info(
                "quantization-aware training was not needed: calibration alone meets the accuracy budget",
            ));
        }
        let timed = search.held_out.first().map(|t| t.values.clone()).ok_or_else(no_data)?;
        let mut int8 = float.clone();
        (int8.graph, int8.has_int8) = (found.graph.clone(), true);
        channels.join(&mut int8.graph)?;
        let timing = context.recorder.span(Stage::Quantize, "timing");
        let tile_times = speed::time(context, &float, &int8, &engine, &timed)?;
        timing.finish();
        if !engine.device().precisions.contains(&Precision::Int8) {
            notes.push(Note::info(
                "the CPU engine has no int8 kernels for this CPU: the int8 time was measured with the same values in \
                 floats",
            ));
        }
        let bytes = |graph: &Graph| {
            let written = cytoscope_onnx::to_bytes(graph).map_err(|e| JobError::model(path.display().to_string(), e));
            written.map(|b| b.len() as u64)
        };
        let mut report = self.report(&package, &search, &found, notes);
        report.float_bytes = bytes(&source)?;
        report.int8_bytes = bytes(&found.graph)?;
        if report.int8_bytes >= report.float_bytes {
            let message = "the int8 network is not smaller than the float network, because it has few weights";
            report.notes.push(Note::info(message));
        }
        if self.writes_network() {
            report.notes.push(Note::info(
                "only the int8 network was written, without pre- and postprocessing: for a package, give a folder or a \
                 .zip",
            ));
        }
        report.tile_times = tile_times;
        report.tile_shape = timed.shape().to_vec();
        context.check()?;
        let writing = context.recorder.span(Stage::Write, "package");
        self.write(context, &package, source, found.graph, &mut report)?;
        writing.finish();
        report.seconds = start.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Whether the output is the int8 network alone, as an ONNX file.
    pub(crate) fn writes_network(&self) -> bool {
        target::extension(&self.out).as_deref() == Some("onnx")
    }

    fn check_out(&self, inputs: &[&Path]) -> Result<(), JobError> {
        target::check_extension(&self.out, &["", "zip", "onnx"])?;
        if self.writes_network() {
            target::check_file(&self.out, inputs, self.overwrite)?;
            refuse_inside_package(&self.out, inputs)?;
        } else {
            check_destination(&self.out, inputs, self.overwrite)?;
        }
        Ok(())
    }

    fn check_options(&self, has_trainer: bool) -> Result<(), JobError> {
        if self.mode == QuantizeMode::Qat && !has_trainer {
            return Err(JobError::wrong_use_with(
                "quantization-aware training is not available here",
                "use mode static or dynamic",
            ));
        }
        if !(self.accuracy_budget.is_finite() && self.accuracy_budget > 0.0) {
            return Err(JobError::wrong_use_with(
                format!("invalid accuracy budget {}", self.accuracy_budget),
                format!("give a relative error above 0, such as {ACCURACY_BUDGET}"),
            ));
        }
        Ok(())
    }

    /// Opens the package and prepares its float network.
    fn open(&self, path: &Path, notes: &mut Vec<Note>) -> Result<Source, JobError> {
        let path_text = path.display().to_string();
        let open = || Package::open(path).map_err(|e| JobError::model(&*path_text, e));
        let mut package = open()?;
        if move_channels(&mut package).map_err(|problem| JobError::model(&*path_text, problem))? {
            notes.push(Note::info("the new model has its channels as the second axis, not as the last one"));
        }
        let mut graph = match (package.is_int8(), &package.float_graph) {
            (true, Some(float)) => {
                notes.push(Note::info("the package is already quantized: its float network was quantized again"));
                float.clone()
            }
            _ => package.graph.clone(),
        };
        to_single_precision(&mut graph).map_err(|e| JobError::model(&*path_text, e))?;
        let prepared = quantize::prepare(&graph).map_err(|e| JobError::model(&*path_text, e))?;
        self.check_names(&prepared)?;
        let mut float = Model::from_package(open()?)?;
        if let Some(network) = float.float_graph.take().filter(|_| float.has_int8) {
            float.graph = network;
        }
        float.has_int8 = false;
        let channels = InputChannels::of(&float);
        Ok(Source { package, float, graph, prepared, channels })
    }

    fn check_names(&self, graph: &Graph) -> Result<(), JobError> {
        let layers = quantize::quantizable_layers(graph).layers;
        match self.keep_float.iter().find(|k| layers.iter().all(|l| l.name != **k)) {
            None => Ok(()),
            Some(unknown) => {
                let names: Vec<&str> = layers.iter().map(|l| l.name.as_str()).collect();
                Err(JobError::wrong_use(format!(
                    "the model has no layer \"{unknown}\" to keep in float: its layers are {}",
                    names.join(", ")
                )))
            }
        }
    }

    /// Prepares the search: runs the float network on the held-out tiles, for comparison.
    fn search<'a>(
        &self,
        runner: Runner<'a>,
        float: &Model,
        prepared: Graph,
        data: CalibrationData,
    ) -> Result<Search<'a>, JobError> {
        let CalibrationData { calibration, held_out, .. } = data;
        let expected = runner.outputs(&prepared, &held_out)?;
        if expected.iter().flatten().any(|t| t.as_f32().is_none_or(|v| v.iter().any(|x| !x.is_finite()))) {
            let from = held_out.first().map(|t| t.from.clone()).unwrap_or_default();
            return Err(JobError::Mismatch {
                path: from.into(),
                problem: "the float network's output for it is not finite (NaN or infinite)".into(),
                next_step: "check the stack, or leave it out of the calibration".into(),
            });
        }
        Ok(Search {
            threshold: threshold(float, &expected),
            runner,
            calibration,
            held_out,
            expected,
            task: float.task,
            budget: self.accuracy_budget,
            keep_float: self.keep_float.clone(),
            graph: prepared,
        })
    }

    fn find(
        &self,
        search: &Search<'_>,
        trainer: Option<&dyn QuantizationAwareTraining>,
        training: &[Tensor],
    ) -> Result<SearchResult, JobError> {
        let (context, runs) = (search.runner.context, search.steps(self.mode));
        let mut meter = context.meter(ProgressStage::Calibrate, runs, ProgressUnit::Runs);
        // Quantization-aware training records its own spans.
        let is_one_span = self.mode != QuantizeMode::Qat;
        let _span = is_one_span.then(|| context.recorder.span(Stage::Quantize, "search"));
        match self.mode {
            QuantizeMode::Static => search.static_ranges(&mut meter),
            QuantizeMode::Dynamic => search.dynamic_ranges(&mut meter),
            QuantizeMode::Qat => search.quantization_aware(&mut meter, trainer, training),
        }
    }
}

/// Returns a network whose convolutions run before nearest-neighbor upsampling, for inputs of any lengths; `shapes` are those
/// of one tile. Layers in `keep` stay as they are.
fn before_upsampling(
    graph: Graph,
    shapes: &[(ValueId, Vec<usize>)],
    keep: &BTreeSet<String>,
) -> Result<Graph, JobError> {
    let mut rewritten = graph.clone();
    infer_shapes(&mut rewritten, shapes)?;
    if convolve_before_upsampling(&mut rewritten, InputLengths::Any, keep)? == 0 {
        return Ok(graph);
    }
    // The inferred lengths are those of one input.
    let known = graph.values.iter().map(|value| value.shape.clone()).chain(std::iter::repeat(None));
    for (id, shape) in known.take(rewritten.values.len()).enumerate() {
        let Some(value) = rewritten.values.get_mut(id) else { continue };
        value.shape = shape;
    }
    for (id, constant) in &rewritten.initializers {
        if let Some(value) = rewritten.values.get_mut(id.index()) {
            value.shape = Some(constant.shape().iter().map(|n| Dim::Fixed(*n)).collect());
        }
    }
    Ok(rewritten)
}

/// Returns the value of the network's output that corresponds to a probability of 0.5.
fn threshold(model: &Model, expected: &[Vec<Tensor>]) -> f32 {
    if model.postprocessing.contains(&Processing::Sigmoid) {
        return 0.0;
    }
    let in_unit = |t: &Tensor| t.as_f32().is_some_and(|v| v.iter().all(|x| (0.0..=1.0).contains(x)));
    if expected.iter().flatten().all(in_unit) { 0.5 } else { 0.0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_graph::{ConvAttrs, ElementType, Op, ResizeAttrs};

    #[test]
    fn modes_have_the_same_names_in_jobs_and_on_the_command_line() {
        assert_eq!(serde_json::json!(QuantizeMode::ALL), serde_json::json!(QuantizeMode::ALL.map(QuantizeMode::name)));
        assert_eq!(QuantizeMode::Qat.name(), cytoscope_pipeline::job_record::QAT_MODE);
    }

    #[test]
    fn a_network_that_convolves_before_upsampling_takes_inputs_of_any_lengths() {
        let mut graph = Graph::new("net");
        let free = |name: &str| Dim::Free(name.into());
        let dims = vec![Dim::Fixed(1), Dim::Fixed(8), free("y"), free("x")];
        let x = graph.add_input("x", ElementType::F32, dims.clone());
        let scales = graph.add_initializer("scales", Tensor::vector(vec![1.0f32, 1.0, 2.0, 2.0]));
        let up = graph.push("up", Op::resize(ResizeAttrs::nearest()), &[Some(x), None, Some(scales)]);
        let values: Vec<f32> = (0..2 * 8 * 9).map(|i| (i * 37 % 64) as f32 / 64.0 - 0.5).collect();
        let weight = graph.add_initializer("weight", Tensor::new([2, 8, 3, 3], values).unwrap());
        let y = graph.push("conv", Op::Conv(ConvAttrs::same(&[3, 3])), &[Some(up), Some(weight)]);
        graph.outputs.push(y);
        let rewritten = before_upsampling(graph.clone(), &[(x, vec![1, 8, 4, 4])], &BTreeSet::new()).unwrap();
        assert!(rewritten.nodes.iter().any(|node| matches!(node.op, Op::ConvTranspose(_))));
        assert_eq!(rewritten.value(rewritten.inputs[0]).shape.as_ref(), Some(&dims));
        for [height, width] in [[4, 4], [3, 7]] {
            let values: Vec<f32> = (0..8 * height * width).map(|i| (i * 29 % 51) as f32 / 51.0).collect();
            let input = [("x".to_owned(), Tensor::new([1, 8, height, width], values).unwrap())];
            let want = cytoscope_reference::run(&graph, &input).unwrap();
            let got = cytoscope_reference::run(&rewritten, &input).unwrap();
            assert_eq!(got[0].shape(), want[0].shape());
            for (a, b) in got[0].as_f32().unwrap().iter().zip(want[0].as_f32().unwrap()) {
                assert!((a - b).abs() < 1e-4, "{a}, expected {b}");
            }
        }
        let kept = BTreeSet::from(["conv".to_owned()]);
        assert_eq!(
            before_upsampling(graph.clone(), &[(x, vec![1, 8, 4, 4])], &kept).unwrap().nodes.len(),
            graph.nodes.len()
        );
    }
}
