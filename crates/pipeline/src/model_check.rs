//! Jobs that inspect a model without writing anything: its card and self-test, and its speed on this machine.

use crate::cards::{ModelCard, package_card};
use crate::checkpoints::{self, Opened};
use crate::devices::Devices;
use crate::package_test::{self, TestResult};
use crate::packages::{EngineCheck, check_engines};
use crate::probe_input::{mirrored, probe_edge};
use crate::{Context, ImportSettings, JobError, Model, ProgressStage, ProgressUnit, find_model};
use cytoscope_checkpoint_import::Architecture;
use cytoscope_engine::{CompileOptions, Device, DeviceId, EngineError, Precision};
use cytoscope_graph::{ElementType, Graph, Tensor};
use cytoscope_graph_passes::to_single_precision;
use cytoscope_model_package::{AxisKind, AxisSpec, Package, TensorSpec, UploadFinding, UploadSeverity};
use cytoscope_profile::{Recorder, Stage};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Instant;

/// Number of timed runs of a network on one device, after one warm-up run.
const SPEED_RUNS: usize = 5;

/// Reads a model, runs its self-test and checks the engines of this machine with it. Nothing is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelTestJob {
    /// Model: an installed package, or a file that [`crate::packages::ImportJob`] could import.
    pub file: PathBuf,
    /// Why only the CPU is checked: a GPU has ended an earlier run of the same job. Only the CPU is then among its devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_because: Option<String>,
    /// Settings that the user gives for the model.
    #[serde(flatten)]
    pub settings: ImportSettings,
}

/// Result of a [`ModelTestJob`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelTestReport {
    /// Purpose, input and authors of the model.
    pub card: ModelCard,
    /// Result of the package's self-test, as text.
    pub test: String,
    /// Whether the test outputs are reproduced; `None` if the model has no test tensors.
    pub reproduced: Option<bool>,
    /// Checks of the engines of this machine.
    pub engines: Vec<EngineCheck>,
    /// Number of nodes of the network.
    pub nodes: usize,
    /// Size of the weights in bytes.
    pub weight_bytes: usize,
    /// Architecture that was recognized, for PyTorch weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Assumptions about the network where PyTorch weights do not determine it, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
    /// Parts of the metadata that bioimage.io would refuse, or ask to complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub upload: Vec<UploadFinding>,
}

/// Result of [`check_upload`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UploadReport {
    /// Name of the model.
    pub name: String,
    /// Whether bioimage.io would accept the metadata.
    pub accepted: bool,
    /// Parts that it would refuse, or ask to complete.
    pub findings: Vec<UploadFinding>,
}

/// Checks the metadata of a package, given by path or name, as bioimage.io does when a model is uploaded.
///
/// # Errors
/// [`JobError::Model`] if the package cannot be opened; [`JobError::WrongUse`] if there is no such model.
pub fn check_upload(model: &str) -> Result<UploadReport, JobError> {
    let path = find_model(model)?;
    let package = Package::open(&path).map_err(|e| JobError::model(path.display().to_string(), e))?;
    let findings = package.upload_findings();
    let accepted = findings.iter().all(|finding| finding.severity != UploadSeverity::Refused);
    Ok(UploadReport { name: package.name, accepted, findings })
}

impl ModelTestJob {
    /// Runs the job.
    ///
    /// # Errors
    /// [`JobError::Model`] if the model is malformed, has no weights that can be run or converted, or does not run;
    /// [`JobError::WrongUse`] for settings that do not apply to the model; [`JobError::Canceled`].
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<ModelTestReport, JobError> {
        let loading = context.recorder.span(Stage::Load, "package");
        let open = || checkpoints::open(&self.file, &self.settings);
        let Opened { package, architecture, assumptions } = context.report_alive(ProgressStage::Check, open)?;
        loading.finish();
        context.check()?;
        let testing = context.recorder.span(Stage::Verify, "self-test");
        let run = context.report_alive(ProgressStage::Check, || package_test::run(&package, &context.interrupt()))?;
        testing.finish();
        let checking = context.recorder.span(Stage::Verify, "engines");
        let engines = check_engines(context, devices, &package, &run)?;
        checking.finish();
        let (nodes, weight_bytes) = (package.graph.nodes.len(), package.graph.initializer_bytes());
        let name = self.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let upload = package.upload_findings();
        Ok(ModelTestReport {
            card: package_card(name, &self.file, package),
            test: run.result.to_string(),
            reproduced: match run.result {
                TestResult::Reproduced => Some(true),
                TestResult::NetworkAlone | TestResult::Differs(_) => Some(false),
                TestResult::None => None,
            },
            engines,
            nodes,
            weight_bytes,
            architecture,
            assumptions,
            upload,
        })
    }
}

/// Measures how fast the network of a model runs on each usable device, in each precision, on the package's test
/// inputs, mirrored to the size of a tile if they are smaller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpeedJob {
    /// Package by path or name.
    pub model: String,
    /// Why only the CPU is measured: a GPU has ended an earlier run of the same job. Only the CPU is then among its devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_because: Option<String>,
}

/// Speed of a network on one device in one precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetworkSpeed {
    /// Device that the network was run on.
    pub device: DeviceId,
    /// Product name of the device.
    pub name: String,
    /// Number format of the computation.
    pub precision: Precision,
    /// Median wall time of a run in milliseconds; `None` if the network cannot run on this device in this precision.
    pub run_ms: Option<f64>,
    /// Input voxels per second, all channels together; `None` if the network cannot run on this device in this
    /// precision.
    pub voxels_per_sec: Option<f64>,
    /// Bytes of all activations, if the engine knows them; 0 otherwise.
    pub arena_bytes: u64,
    /// Why the network cannot run on this device in this precision; empty if it can.
    pub problem: String,
}

/// Result of a [`ModelSpeedJob`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpeedReport {
    /// Shape of each input, in the network's axis order.
    pub input_shapes: Vec<Vec<usize>>,
    /// Number of timed runs of each row.
    pub runs: usize,
    /// One row for each device and precision.
    pub rows: Vec<NetworkSpeed>,
}

impl ModelSpeedJob {
    /// Runs the job.
    ///
    /// # Errors
    /// [`JobError::Model`] if the model cannot be read or its test inputs are malformed; [`JobError::Canceled`]. A
    /// device that cannot run the network is not an error: its row says why.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<ModelSpeedReport, JobError> {
        let loading = context.recorder.span(Stage::Load, "package");
        let path = find_model(&self.model)?;
        let package = Package::open(&path).map_err(|e| JobError::model(path.display().to_string(), e))?;
        let inputs = package_test::network_inputs(&package, &package_test::test_inputs(&package)?)?;
        // Predictions run the network in 32-bit floats.
        let inputs: Vec<Tensor> = inputs.iter().map(|input| input.cast(ElementType::F32)).collect();
        let inputs = self.tile_inputs(&package, inputs);
        loading.finish();
        let usable: Vec<&Device> = devices.list().iter().filter(|d| d.usable).collect();
        let pairs: Vec<(&Device, Precision)> = usable
            .iter()
            .flat_map(|device| device.precisions.iter().map(move |precision| (*device, *precision)))
            .filter(|(_, precision)| *precision != Precision::Int8 || package.is_int8())
            .collect();
        let mut meter = context.meter(ProgressStage::Measure, pairs.len() as u64, ProgressUnit::Runs);
        let mut rows = Vec::new();
        for (device, precision) in pairs {
            let float = package.float_graph.as_ref().filter(|_| precision != Precision::Int8);
            let mut graph = float.unwrap_or(&package.graph).clone();
            to_single_precision(&mut graph).map_err(|e| JobError::model(path.display().to_string(), e))?;
            rows.push(speed(context, devices, device, precision, &graph, &inputs)?);
            meter.add(1)?;
        }
        Ok(ModelSpeedReport {
            input_shapes: inputs.iter().map(|t| t.shape().to_vec()).collect(),
            runs: SPEED_RUNS,
            rows,
        })
    }

    /// Returns test inputs of at least the size of the tile on which devices are compared for predictions: test inputs of
    /// packages may be much smaller than tiles of stacks. Those of a network that cannot be run on stacks stay as they are.
    fn tile_inputs(&self, package: &Package, inputs: Vec<Tensor>) -> Vec<Tensor> {
        let Ok(model) = Model::load(&self.model) else { return inputs };
        let [z, y, x] = probe_edge(&model);
        let enlarged = |(tensor, spec): (&Tensor, &TensorSpec)| {
            let length = |(own, axis): (&usize, &AxisSpec)| match axis.kind {
                AxisKind::Z => z.max(*own),
                AxisKind::Y => y.max(*own),
                AxisKind::X => x.max(*own),
                _ => *own,
            };
            let shape: Vec<usize> = tensor.shape().iter().zip(&spec.axes).map(length).collect();
            mirrored(tensor, &shape)
        };
        let all: Option<Vec<Tensor>> = inputs.iter().zip(&package.inputs).map(enlarged).collect();
        all.unwrap_or(inputs)
    }
}

/// Times a network on one device; an error of the device is part of the result.
fn speed(
    context: &Context,
    devices: &Devices,
    device: &Device,
    precision: Precision,
    graph: &Graph,
    inputs: &[Tensor],
) -> Result<NetworkSpeed, JobError> {
    let mut row = NetworkSpeed {
        device: device.id,
        name: device.name.clone(),
        precision,
        run_ms: None,
        voxels_per_sec: None,
        arena_bytes: 0,
        problem: String::new(),
    };
    context.report_tried_device(device.id);
    let timed = || time(context, devices, device.id, precision, graph, inputs);
    // Only a GPU may hang.
    let timed = match device.id {
        DeviceId::Cpu => context.report_alive(ProgressStage::Measure, timed),
        DeviceId::Cuda(_) | DeviceId::Wgpu(_) => timed(),
    };
    match timed {
        Ok((run_ms, arena_bytes)) => {
            let voxels: usize = inputs.iter().map(|t| t.shape().iter().product::<usize>()).sum();
            row.run_ms = Some(run_ms);
            row.voxels_per_sec = (run_ms > 0.0).then(|| voxels as f64 / (run_ms * 1e-3));
            row.arena_bytes = arena_bytes;
        }
        Err(error) => {
            context.report_lost_device(&error);
            row.problem = error.to_string();
        }
    }
    // A canceled run is not a failure of the device.
    context.check()?;
    Ok(row)
}

/// Returns the median wall time of a run in milliseconds, and the bytes of the activations.
fn time(
    context: &Context,
    devices: &Devices,
    device: DeviceId,
    precision: Precision,
    graph: &Graph,
    inputs: &[Tensor],
) -> Result<(f64, u64), EngineError> {
    let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
    let options = CompileOptions { recorder: Recorder::totals_only(), ..context.compile_options(precision, 0) };
    let engine = devices.engine(device)?;
    let span = |stage| context.recorder.span(stage, format!("{device} {precision}"));
    let compiling = span(Stage::Compile);
    let mut session = engine.compile(graph, &shapes, &options)?;
    session.run(inputs)?;
    compiling.finish();
    let mut times_ms = Vec::with_capacity(SPEED_RUNS);
    for _ in 0..SPEED_RUNS {
        let running = span(Stage::Compute);
        let start = Instant::now();
        session.run(inputs)?;
        running.finish();
        times_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times_ms.sort_by(f64::total_cmp);
    let median_ms = times_ms.get(times_ms.len() / 2).copied().unwrap_or(f64::NAN);
    Ok((median_ms, session.report().arena_bytes))
}
