//! A model as jobs use it: network, axes, pre- and postprocessing, receptive field.

mod tile_limits;

use crate::JobError;
use crate::installed_models::find_model;
use crate::model_inputs::{self, ModelInput};
use crate::model_outputs::{self, ModelOutput};
use crate::provenance::InputRecord;
use cytoscope_engine::{
    CompileOptions, DeviceId, Engine, EngineError, NotRolling, Precision, RollingPlan, Session, select,
};
use cytoscope_graph::{ElementType, Graph, Op};
use cytoscope_graph_passes::quantize::{has_quantized_layers, is_quantized};
use cytoscope_graph_passes::{analysis, over_slices, to_single_precision};
use cytoscope_model_package::config_key::{
    OBJECT_DIAMETER_UM, OBJECT_INTENSITY, SEED_CHANNEL, SEGMENT, SEGMENT_CHANNEL, TASK,
};
use cytoscope_model_package::{AxisKind, Package, Processing, TensorSpec};
use cytoscope_objects::SegmentOptions;
use cytoscope_storage::{io_problem, sha256_of_file};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use tile_limits::TileLimits;

/// Nominal object diameters in µm that a model may have.
pub(crate) const OBJECT_DIAMETERS_UM: RangeInclusive<f64> = 1e-3..=1e6;

/// The kind of output that a model predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelTask {
    /// A foreground probability map that is turned into labels.
    Segmentation,
    /// The intensities of a stain.
    #[serde(alias = "labelfree")]
    LabelFree,
}

impl ModelTask {
    /// All tasks.
    pub const ALL: [Self; 2] = [Self::Segmentation, Self::LabelFree];

    /// Returns the name of the task in packages and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Segmentation => "segmentation",
            Self::LabelFree => "labelfree",
        }
    }
}

cytoscope_storage::parsed_by_name!(ModelTask, "unknown task");

/// A model that is ready to be compiled.
#[derive(Debug, Clone)]
pub struct Model {
    /// Name of the model, from its package.
    pub name: String,
    /// Keywords of the package, such as `nuclei`.
    pub tags: Vec<String>,
    /// Path of the package, a folder or a zip.
    pub path: PathBuf,
    /// The network; for a quantized model, the one with QuantizeLinear and DequantizeLinear nodes. Several inputs are
    /// joined into one, whose channels are those of [`Model::inputs`] in their order.
    pub graph: Graph,
    /// The float network of a quantized model, if the package contains it.
    pub float_graph: Option<Graph>,
    /// Whether [`Model::graph`] is an int8 network.
    pub has_int8: bool,
    /// Fingerprint of the network and the package description.
    pub fingerprint: String,
    /// Sizes and modification times of the package's files, and of those with its external data, when it was loaded.
    pub(crate) on_disk: Vec<InputRecord>,
    /// Files from which ONNX files of the package read external data.
    external_files: Vec<PathBuf>,
    /// The input tensors; at least one.
    pub inputs: Vec<ModelInput>,
    /// Number of channels of all input tensors.
    pub input_channels: usize,
    /// Names of the input channels, if the package declares them; of several input tensors, their ids.
    pub input_channel_names: Vec<String>,
    /// The output tensors; at least one.
    pub outputs: Vec<ModelOutput>,
    /// Whether the outputs of the network are joined into one, with the channels of all.
    pub(crate) has_joined_outputs: bool,
    /// Number of maps that are predicted: the channels of the chosen output.
    pub output_channels: usize,
    /// Names of these channels; empty if the package declares none.
    pub output_channel_names: Vec<String>,
    /// Index of the output of the network that is predicted; see [`Model::with_output`].
    pub output_index: usize,
    /// Number of spatial axes: 3, or 2 for a network that processes single slices.
    pub spatial_axes: usize,
    /// Minimum tile size Z, Y, X.
    pub min_size: [usize; 3],
    /// Tile sizes along Z, Y, X are multiples of this.
    pub step: [usize; 3],
    /// Whether the network accepts the minimum tile size only, along Z, Y, X.
    pub fixed: [bool; 3],
    /// Input voxels on each side that an output voxel depends on, along Z, Y, X; `None` if it depends on the whole
    /// tile, or if the tile size is fixed, so that tiles cannot be extended by these voxels.
    pub reach: Option<[usize; 3]>,
    /// Voxel size Z, Y, X in µm that the model was made for.
    pub voxel_um: Option<[f64; 3]>,
    /// Nominal object diameter in µm at the model's voxel size: stacks are rescaled so that their median object has
    /// this diameter. `None` for models that do not rescale objects.
    pub object_diameter_um: Option<f64>,
    /// Median intensity, after preprocessing, of the objects that the network was trained on. Intensities of stacks whose objects
    /// are much brighter or dimmer are multiplied by a factor. `None` for models that do not state it, and those with several inputs.
    pub object_intensity: Option<f64>,
    /// Steps that are applied to the predicted output after inference, in order.
    pub postprocessing: Vec<Processing>,
    /// Task of the model: objects or a stain.
    pub task: ModelTask,
    /// Settings with which maps are segmented unless the user gives others.
    pub segment: SegmentOptions,
    /// Output channel with the foreground probability.
    pub segment_channel: usize,
    /// Output channel that separates touching objects; the segmentation channel if there is no other.
    pub seed_channel: usize,
}

/// Refuses a network with weights that are NaN or infinite. Other constants, such as limits and padding, may be infinite.
pub(crate) fn check_weights(graph: &Graph) -> Result<(), String> {
    let has_weights = |op: &Op| {
        let is_norm = matches!(
            op,
            Op::BatchNormalization { .. }
                | Op::InstanceNormalization { .. }
                | Op::GroupNormalization { .. }
                | Op::LayerNormalization { .. }
        );
        is_norm || matches!(op, Op::Conv(_) | Op::ConvTranspose(_) | Op::Gemm { .. } | Op::MatMul)
    };
    for id in graph.nodes.iter().filter(|node| has_weights(&node.op)).flat_map(|node| node.inputs.iter().flatten()) {
        let Some(values) = graph.constant(*id).and_then(|tensor| tensor.as_f32()) else { continue };
        let not_finite = values.iter().filter(|value| !value.is_finite()).count();
        if not_finite > 0 {
            return Err(format!(
                "its weights \"{}\" contain values that are NaN or infinite ({not_finite} of {}), with which no prediction can be \
                 computed; export the network again with weights from before they appeared, usually because training diverged",
                graph.value(*id).name,
                values.len()
            ));
        }
    }
    Ok(())
}

/// Returns the number of spatial axes of input and output, or why stacks cannot be run through the network.
fn spatial_axes(input: &TensorSpec, output: &TensorSpec) -> Result<usize, String> {
    use AxisKind::{Batch, Channel, X, Y, Z};
    let order: Vec<AxisKind> = input.axes.iter().map(|a| a.kind).collect();
    let spatial_axes = match order.as_slice() {
        [Batch, Channel, Z, Y, X] => 3,
        [Batch, Channel, Y, X] => 2,
        _ => {
            return Err(format!(
                "its input has the axes {order:?}, expected batch, channel, (z,) y, x; export the network with these axes"
            ));
        }
    };
    if output.axes.iter().map(|a| a.kind).ne(order) {
        return Err(
            "the axes of its output differ from those of its input; export the network with equal ones".to_owned()
        );
    }
    Ok(spatial_axes)
}

/// Returns the segmentation settings of a package, or why they are invalid.
fn segment_options(config: &Value) -> Result<SegmentOptions, String> {
    let segment: SegmentOptions = match config.get(SEGMENT) {
        None => SegmentOptions::default(),
        Some(value) => serde_json::from_value(value.clone()).map_err(|e| format!("config.cytoscope.{SEGMENT}: {e}"))?,
    };
    segment.validate().map_err(|e| format!("config.cytoscope.{SEGMENT}: {e}"))?;
    Ok(segment)
}

/// Returns the object diameter that a package states, in µm, or why it is invalid.
fn object_diameter_um(config: &Value) -> Result<Option<f64>, String> {
    match config.get(OBJECT_DIAMETER_UM) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_f64().filter(|d| OBJECT_DIAMETERS_UM.contains(d)).map(Some).ok_or_else(|| {
            let (low, high) = (*OBJECT_DIAMETERS_UM.start(), *OBJECT_DIAMETERS_UM.end());
            format!("config.cytoscope.{OBJECT_DIAMETER_UM} is {value}, expected a diameter from {low} to {high} µm")
        }),
    }
}

/// Returns the median intensity of objects after preprocessing that a package states, or why it is invalid.
fn object_intensity(config: &Value) -> Result<Option<f64>, String> {
    match config.get(OBJECT_INTENSITY) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_f64().filter(|i| (1e-3..=1e3).contains(i)).map(Some).ok_or_else(|| {
            format!("config.cytoscope.{OBJECT_INTENSITY} is {value}, expected an intensity from 0.001 to 1000")
        }),
    }
}

/// Returns the channel index that a package states under `key`, or why it is invalid.
fn channel_index(config: &Value, key: &str, otherwise: usize) -> Result<usize, String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(otherwise),
        Some(value) => value
            .as_u64()
            .and_then(|v| usize::try_from(v).ok())
            .ok_or_else(|| format!("config.cytoscope.{key} is {value}, expected a channel index")),
    }
}

impl Model {
    /// Loads a package by path or name.
    ///
    /// # Errors
    /// [`JobError`] if there is no such package, it is malformed, or it cannot be run on stacks.
    pub fn load(text: &str) -> Result<Self, JobError> {
        let path = find_model(text)?;
        let package = Package::open(&path).map_err(|e| JobError::model(path.display().to_string(), e))?;
        let model = Self::from_package(package)?;
        tracing::info!(name = ?model.name, ?path, "model loaded");
        Ok(model)
    }

    /// Creates a model from an opened package.
    ///
    /// # Errors
    /// [`JobError::Model`] if it has axes that stacks do not have, or inputs on different grids.
    pub fn from_package(mut package: Package) -> Result<Self, JobError> {
        let path = package.path.clone();
        let bad = |problem: String| JobError::model(path.display().to_string(), problem);
        model_inputs::check_same_grid(&package.inputs).map_err(&bad)?;
        model_inputs::check_batch(&package).map_err(&bad)?;
        model_inputs::move_channels(&mut package).map_err(&bad)?;
        let inputs = model_inputs::list_inputs(&package);
        for graph in std::iter::once(&mut package.graph).chain(package.float_graph.as_mut()) {
            to_single_precision(graph).map_err(|e| bad(e.to_string()))?;
            check_weights(graph).map_err(&bad)?;
            model_inputs::join(graph, &inputs).map_err(&bad)?;
        }
        let input = package.inputs.first().ok_or_else(|| bad("it has no input".to_owned()))?;
        let output = package.outputs.first().ok_or_else(|| bad("it has no output".to_owned()))?;
        let spatial_axes = spatial_axes(input, output).map_err(&bad)?;
        let TileLimits { min_size, step, fixed, reach } = TileLimits::of(&package, spatial_axes).map_err(&bad)?;
        let config = package.config();
        let segment = segment_options(config).map_err(&bad)?;
        let task = parse_task(config.get(TASK)).map_err(&bad)?;
        let object_diameter_um = object_diameter_um(config).map_err(&bad)?;
        let object_intensity = object_intensity(config).map_err(&bad)?;
        let segment_channel = channel_index(config, SEGMENT_CHANNEL, 0).map_err(&bad)?;
        let seed_channel = channel_index(config, SEED_CHANNEL, segment_channel).map_err(&bad)?;
        let outputs = model_outputs::list_outputs(&package);
        let output_channels = outputs.first().map_or(1, |output| output.channels);
        for (key, channel) in [(SEGMENT_CHANNEL, segment_channel), (SEED_CHANNEL, seed_channel)] {
            if channel >= output_channels {
                return Err(bad(format!(
                    "config.cytoscope.{key} is {channel}, but the model has {output_channels} output channels"
                )));
            }
        }
        let voxel_um = package.inputs.iter().find_map(TensorSpec::voxel_um);
        let listed = package.rdf.get("tags").and_then(Value::as_array).into_iter().flatten();
        let tags = listed.filter_map(Value::as_str).map(str::to_owned).collect();
        Ok(Self {
            fingerprint: fingerprint(&package)?,
            on_disk: on_disk(&package.path, &package.external_files)
                .map_err(|error| JobError::Io { path: package.path.clone(), error })?,
            external_files: package.external_files,
            voxel_um,
            // A diameter in µm determines nothing without the voxel size of the model's grid.
            object_diameter_um: object_diameter_um.filter(|_| voxel_um.is_some()),
            object_intensity: object_intensity
                .filter(|_| inputs.iter().map(|input| input.channels).sum::<usize>() == 1),
            postprocessing: output.postprocessing(),
            output_channel_names: model_outputs::first_names(&outputs),
            outputs,
            has_joined_outputs: false,
            output_index: 0,
            name: package.name,
            tags,
            path: package.path,
            has_int8: has_quantized_layers(&package.graph),
            graph: package.graph,
            float_graph: package.float_graph,
            input_channels: inputs.iter().map(|input| input.channels).sum(),
            input_channel_names: model_inputs::channel_names(&inputs),
            inputs,
            output_channels,
            spatial_axes,
            min_size,
            step,
            fixed,
            reach,
            task,
            segment,
            segment_channel,
            seed_channel,
        })
    }

    /// Returns the input tensors with their channels among `channels`, which are those of all inputs in their order.
    pub(crate) fn inputs_with<'a>(
        &'a self,
        channels: &'a [usize],
    ) -> impl Iterator<Item = (&'a ModelInput, &'a [usize])> {
        let mut rest = channels;
        self.inputs.iter().map(move |input| {
            let (own, later) = rest.split_at(input.channels.min(rest.len()));
            rest = later;
            (input, own)
        })
    }

    /// Returns the bytes of the weights of its networks, which are in memory as long as the model.
    pub(crate) fn weight_bytes(&self) -> u64 {
        let networks = std::iter::once(&self.graph).chain(&self.float_graph);
        networks.map(|network| network.initializer_bytes() as u64).sum()
    }

    /// Returns the bytes that weights take while a network is compiled, besides those of the model: the packed ones, and the
    /// floats into which batch norms are folded or that 8-bit integers are converted to.
    pub(crate) fn compiled_weight_bytes(&self, precision: Precision) -> u64 {
        let network = self.network(precision);
        let is_folded = network.nodes.iter().any(|node| matches!(node.op, Op::BatchNormalization { .. }));
        let copied = network.initializers.values().filter(|tensor| match tensor.dtype() {
            ElementType::I8 | ElementType::U8 => true,
            other => is_folded && other.is_float(),
        });
        let copies: usize = copied.map(|tensor| tensor.len() * size_of::<f32>()).sum();
        (network.initializer_bytes() + copies) as u64
    }

    /// Returns the network for a precision: for float precisions, the float network of a quantized model if it has one.
    pub fn network(&self, precision: Precision) -> &Graph {
        match (&self.float_graph, precision) {
            (Some(float), Precision::F32 | Precision::Tf32 | Precision::F16 | Precision::Bf16) => float,
            _ => &self.graph,
        }
    }

    /// Returns the precision to run in on a device if none is chosen by measurement: the requested one; by default int8 on
    /// the CPU for a quantized model, tf32 on CUDA, otherwise f32. As tf32 only permits rounding, devices without it compute
    /// in f32.
    pub fn precision_on(&self, device: DeviceId, requested: Option<Precision>) -> Precision {
        match requested {
            Some(Precision::Tf32) if !matches!(device, DeviceId::Cuda(_)) => Precision::F32,
            Some(precision) => precision,
            None if self.has_int8 && device == DeviceId::Cpu => Precision::Int8,
            None if matches!(device, DeviceId::Cuda(_)) => Precision::Tf32,
            None => Precision::F32,
        }
    }

    /// Returns how the package's files have changed since it was loaded, as the predicate of a sentence; `None` if they
    /// have not.
    pub(crate) fn change_on_disk(&self) -> Option<String> {
        let now = match on_disk(&self.path, &self.external_files) {
            Ok(now) => now,
            Err(error) => return Some(format!("can no longer be read ({})", io_problem(&error))),
        };
        if now.len() != self.on_disk.len() {
            return Some("was replaced while it was in use".to_owned());
        }
        self.on_disk.iter().zip(&now).find_map(|(then, now)| {
            let name = now.path.file_name().unwrap_or_default().display();
            then.change(now).map(|change| format!("was replaced while it was in use ({name} {change})"))
        })
    }

    /// Compiles the network for one input shape.
    ///
    /// In a float precision, the DequantizeLinear nodes of a quantized network are folded into float weights.
    ///
    /// # Errors
    /// The engine's errors; [`EngineError::NotQuantized`] if int8 is requested of a float model.
    pub fn compile(
        &self,
        engine: &dyn Engine,
        shape: &[usize],
        options: &CompileOptions,
    ) -> Result<Box<dyn Session>, EngineError> {
        if options.precision == Precision::Int8 && !self.has_int8 {
            return Err(EngineError::NotQuantized { engine: engine.name() });
        }
        compile(self.network(options.precision), engine, &[shape.to_vec()], options)
    }

    /// Plans one pass of a stack of shape N, C, Z, Y, X through the network; see [`Engine::plan_rolling`]. A network on
    /// slices computes each slice separately.
    ///
    /// # Errors
    /// [`NotRolling`], with the reason, if the network, the engine or the memory budget does not allow it.
    pub fn plan_rolling(
        &self,
        engine: &dyn Engine,
        shape: &[usize],
        options: &CompileOptions,
    ) -> Result<Box<dyn RollingPlan>, NotRolling> {
        if options.precision == Precision::Int8 && !self.has_int8 {
            return Err(EngineError::NotQuantized { engine: engine.name() }.into());
        }
        let graph = as_floats(self.network(options.precision), options.precision)?;
        if self.spatial_axes == 3 {
            return engine.plan_rolling(&graph, shape, options);
        }
        let found = || "operators that may depend on the number of axes".to_owned();
        let lifted = over_slices(&graph).ok_or_else(|| NotRolling::Interface { found: found() })?;
        engine.plan_rolling(&lifted, shape, options)
    }

    /// Whether the network computes tiles Z, Y, X of a batch independently of each other.
    pub(crate) fn has_independent_samples(&self, precision: Precision, batch: usize, tile: [usize; 3]) -> bool {
        let shape = self.batch_shape(batch, tile);
        let graph = as_floats(self.network(precision), precision);
        graph.is_ok_and(|graph| analysis::samples_are_independent(&graph, &shape))
    }

    /// Returns the shape of the network's input for a batch of tiles Z, Y, X.
    pub(crate) fn batch_shape(&self, batch: usize, tile: [usize; 3]) -> Vec<usize> {
        let mut shape = self.tensor_shape(self.input_channels, tile);
        shape.iter_mut().take(1).for_each(|samples| *samples = batch);
        shape
    }

    /// Returns the length along axis `a` (Z, Y, X) that the network accepts and that is closest to `wanted`, and not below it
    /// if possible.
    pub fn tile_length(&self, wanted: usize, a: usize) -> usize {
        if self.fixed[a] {
            self.min_size[a]
        } else {
            wanted.max(self.min_size[a]).next_multiple_of(self.step[a].max(1))
        }
    }

    /// Returns the shape of the network's input for a tile Z, Y, X.
    pub(crate) fn tensor_shape(&self, channels: usize, tile: [usize; 3]) -> Vec<usize> {
        let mut shape = vec![1, channels];
        shape.extend(&tile[3 - self.spatial_axes..]);
        shape
    }
}

/// Compiles a network; in a float precision, DequantizeLinear nodes are folded into float weights.
pub(crate) fn compile(
    graph: &Graph,
    engine: &dyn Engine,
    shapes: &[Vec<usize>],
    options: &CompileOptions,
) -> Result<Box<dyn Session>, EngineError> {
    let graph = as_floats(graph, options.precision)?;
    engine.compile(&graph, shapes, options)
}

/// Returns the network as an engine computes it: in a float precision, DequantizeLinear nodes are folded into float
/// weights.
fn as_floats(graph: &Graph, precision: Precision) -> Result<Cow<'_, Graph>, EngineError> {
    if precision == Precision::Int8 || !is_quantized(graph) {
        return Ok(Cow::Borrowed(graph));
    }
    let mut floats = graph.clone();
    cytoscope_graph_passes::fold_dequantized(&mut floats)?;
    cytoscope_graph_passes::eliminate_dead(&mut floats);
    Ok(Cow::Owned(floats))
}

/// Returns the task that `config.cytoscope.task` names; packages without it are for segmentation.
pub(crate) fn parse_task(stated: Option<&Value>) -> Result<ModelTask, String> {
    let Some(stated) = stated.filter(|stated| !stated.is_null()) else { return Ok(ModelTask::Segmentation) };
    let task = stated.as_str().and_then(|name| name.parse().ok());
    task.ok_or_else(|| format!("config.cytoscope.task is {stated}, expected segmentation or labelfree"))
}

/// Returns the fingerprint of everything in a package that determines a result: the network, its external data and the
/// description.
///
/// # Errors
/// [`JobError::Io`] if a file of external data can no longer be read.
fn fingerprint(package: &Package) -> Result<String, JobError> {
    let mut text = select::fingerprint(&package.model_bytes);
    for file in &package.external_files {
        let sha256 = sha256_of_file(file).map_err(|error| JobError::Io { path: file.clone(), error })?;
        text.push_str(&format!(" {sha256}"));
    }
    for sha256 in &package.external_sha256 {
        text.push_str(&format!(" {sha256}"));
    }
    text.push_str(&format!(" {}", package.rdf));
    Ok(select::fingerprint(text.as_bytes()))
}

/// Returns the sizes and modification times of a package's files and of those with its external data; none if the package is
/// not on disk, but in memory.
fn on_disk(path: &Path, external: &[PathBuf]) -> std::io::Result<Vec<InputRecord>> {
    let is_folder = match std::fs::metadata(path) {
        Ok(about) => about.is_dir(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    if !is_folder {
        return std::iter::once(path).chain(external.iter().map(PathBuf::as_path)).map(InputRecord::of).collect();
    }
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
    let listed = std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    let mut files: Vec<PathBuf> = listed.into_iter().filter(|p| p.is_file() && !is_hidden(p)).collect();
    files.extend_from_slice(external);
    files.sort();
    files.dedup();
    files.iter().map(|file| InputRecord::of(file)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_builders::{DynUNet, Weights, dynunet};
    use serde_json::json;

    #[test]
    fn object_diameters_out_of_range_are_refused_with_the_range() {
        let diameter = |value: Value| object_diameter_um(&json!({ OBJECT_DIAMETER_UM: value }));
        assert_eq!((diameter(json!(12.5)), diameter(Value::Null)), (Ok(Some(12.5)), Ok(None)));
        for wrong in [json!(0), json!(1e30), json!("12")] {
            let refused = diameter(wrong.clone()).unwrap_err();
            assert!(refused.contains("expected a diameter from 0.001 to 1000000 µm"), "{wrong}: {refused}");
        }
    }

    #[test]
    fn external_data_in_a_zip_are_part_of_the_fingerprint() {
        let config = DynUNet { filters: vec![1, 2], strides: vec![1, 2], ..DynUNet::default() };
        let graph = dynunet(&config, &Weights::Random { seed: 0 }).unwrap();
        let mut package = Package::from_network(Path::new("net.onnx"), graph, String::new(), (&[], &[])).unwrap();
        let without = fingerprint(&package).unwrap();
        package.external_sha256.push("05fe4057".to_owned());
        assert_ne!(fingerprint(&package).unwrap(), without);
    }

    #[test]
    fn a_package_with_an_unknown_task_is_refused() {
        assert_eq!(parse_task(None), Ok(ModelTask::Segmentation));
        assert_eq!(parse_task(Some(&json!("labelfree"))), Ok(ModelTask::LabelFree));
        let refused = parse_task(Some(&json!("denoising"))).unwrap_err();
        assert_eq!(refused, "config.cytoscope.task is \"denoising\", expected segmentation or labelfree");
        assert!(parse_task(Some(&json!(1))).is_err());
    }
}
