//! A model as jobs use it: network, axes, pre- and postprocessing, receptive field.

use crate::JobError;
use crate::provenance::InputRecord;
use cytoscope_engine::{CompileOptions, DeviceId, Engine, EngineError, Precision, Session, select};
use cytoscope_graph::Graph;
use cytoscope_model_package::{AxisKind, AxisSize, Package, Processing};
use cytoscope_objects::SegmentOptions;
use cytoscope_passes::analysis;
use cytoscope_passes::quantize::is_quantized;
use cytoscope_storage::read::open_regular;
use directories::BaseDirs;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The kind of output that a model predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelTask {
    /// A foreground probability map that is turned into labels.
    Segmentation,
    /// The intensities of a stain.
    LabelFree,
}

/// A model that is ready to be compiled.
#[derive(Debug, Clone)]
pub struct Model {
    /// Name of the model.
    pub name: String,
    /// Description from the package.
    pub description: String,
    /// Path of the package.
    pub path: PathBuf,
    /// The network; for a quantized model, the one with QuantizeLinear and DequantizeLinear nodes.
    pub graph: Graph,
    /// The float network of a quantized model, if the package contains it.
    pub float_graph: Option<Graph>,
    /// Whether [`Model::graph`] is an int8 network.
    pub has_int8: bool,
    /// Fingerprint of the network and the package description.
    pub fingerprint: String,
    /// Sizes and modification times of the package's files when it was loaded.
    pub(crate) on_disk: Vec<InputRecord>,
    /// Number of input channels.
    pub input_channels: usize,
    /// Number of output channels.
    pub output_channels: usize,
    /// Index of the output that is used.
    pub output_index: usize,
    /// Number of spatial axes: 3, or 2 for a network that processes single slices.
    pub spatial_axes: usize,
    /// Minimum tile size Z, Y, X.
    pub min_size: [usize; 3],
    /// Tile sizes along Z, Y, X are multiples of this.
    pub step: [usize; 3],
    /// Input voxels on each side that an output voxel depends on, along Z, Y, X; `None` if it depends on the whole
    /// tile.
    pub reach: Option<[usize; 3]>,
    /// Voxel size Z, Y, X in µm that the model was made for.
    pub voxel_um: Option<[f64; 3]>,
    /// Id of the input tensor, by which processing steps can refer to it.
    pub input_id: String,
    /// Nominal object diameter in µm at the model's voxel size: stacks are rescaled so that their median object has
    /// this diameter. `None` for models that do not rescale objects.
    pub object_diameter_um: Option<f64>,
    /// Preprocessing steps.
    pub preprocessing: Vec<Processing>,
    /// Postprocessing steps.
    pub postprocessing: Vec<Processing>,
    /// Kind of output.
    pub task: ModelTask,
    /// Segmentation settings.
    pub segment: SegmentOptions,
    /// Output channel with the foreground probability.
    pub segment_channel: usize,
    /// Output channel that separates touching objects; the segmentation channel if there is no other.
    pub seed_channel: usize,
}

/// Returns the folders in which models are looked up by name: the one that `CYTOSCOPE_MODELS` names, `models/` beside
/// the program (or above it, in a source tree), then the user's folder.
pub fn model_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if let Some(folder) = std::env::var_os("CYTOSCOPE_MODELS") {
        folders.push(PathBuf::from(folder));
    }
    if let Ok(program) = std::env::current_exe().and_then(|p| p.canonicalize()) {
        folders.extend(
            program
                .ancestors()
                .skip(1)
                .take(5)
                .flat_map(|a| [a.join("models"), a.join("share/cytoscope/models"), a.join("Resources/models")]),
        );
    }
    folders.extend(user_folder().map(|f| f.join("models")));
    folders.retain(|f| f.is_dir());
    folders.dedup();
    folders
}

/// Returns the user's folder for models, settings and logs: `cytoscope` in `$XDG_DATA_HOME` or `~/.local/share` on
/// Linux, `Cytoscope` in `~/Library/Application Support` on macOS and in the roaming application data on Windows.
/// `None` if the user has no home folder.
pub fn user_folder() -> Option<PathBuf> {
    let name = if cfg!(any(windows, target_os = "macos")) { "Cytoscope" } else { "cytoscope" };
    Some(BaseDirs::new()?.data_dir().join(name))
}

/// Returns the folder of the log files, one for each of the last seven days: `logs` in the user's folder.
pub fn log_folder() -> Option<PathBuf> {
    user_folder().map(|folder| folder.join("logs"))
}

/// Maximum size in bytes of a file `NAME.alias` or `NAME.teach`, which contains the name of a model.
const MAX_ALIAS_BYTES: u64 = 4096;

/// Reads a file `NAME.alias` or `NAME.teach` of a model folder.
pub(crate) fn read_alias(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.take(MAX_ALIAS_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the path of a package that is given by path or by name. A file `NAME.alias` beside the packages contains the
/// name of the model that NAME stands for.
///
/// # Errors
/// [`JobError::WrongUse`] if there is no such model; it lists the known names.
pub fn find_model(text: &str) -> Result<PathBuf, JobError> {
    let path = Path::new(text);
    // If a replacement was interrupted, the package may still have a hidden name.
    cytoscope_storage::folder::recover(path);
    if path.exists() {
        return Ok(path.to_owned());
    }
    let mut known = Vec::new();
    for folder in model_folders() {
        let alias = read_alias(&folder.join(format!("{text}.alias"))).ok();
        let name = alias.as_deref().map_or(text, str::trim);
        if Path::new(name).components().count() == 1 {
            cytoscope_storage::folder::recover(&folder.join(name));
        }
        for candidate in [folder.join(name), folder.join(format!("{name}.zip")), folder.join(format!("{name}.onnx"))] {
            if candidate.exists() && Path::new(name).components().count() == 1 {
                return Ok(candidate);
            }
        }
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_model = path.join("rdf.yaml").exists()
                || path.extension().is_some_and(|e| e == "alias" || e == "zip" || e == "onnx");
            if is_model {
                known.extend(path.file_stem().map(|s| s.to_string_lossy().into_owned()));
            }
        }
    }
    known.sort();
    known.dedup();
    let known =
        if known.is_empty() { "none is installed".to_owned() } else { format!("known are {}", known.join(", ")) };
    Err(JobError::WrongUse(format!(
        "no model \"{text}\" was found: give the path of a package or the name of an installed model ({known})"
    )))
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
    /// [`JobError::Model`] if it has several inputs, or axes that stacks do not have.
    pub fn from_package(package: Package) -> Result<Self, JobError> {
        let bad = |problem: String| JobError::model(package.path.display().to_string(), problem);
        let [input] = package.inputs.as_slice() else {
            return Err(bad(format!(
                "it has {} inputs; only models with one image input can be run on stacks",
                package.inputs.len()
            )));
        };
        let output = package.outputs.first().ok_or_else(|| bad("it has no output".to_owned()))?;
        let order: Vec<AxisKind> = input.axes.iter().map(|a| a.kind).collect();
        use AxisKind::{Batch, Channel, X, Y, Z};
        let spatial_axes = match order.as_slice() {
            [Batch, Channel, Z, Y, X] => 3,
            [Batch, Channel, Y, X] => 2,
            _ => {
                return Err(bad(format!("its input has axes {order:?}; supported are batch, channel, (z,) y, x")));
            }
        };
        if output.axes.iter().map(|a| a.kind).ne(order) {
            return Err(bad("the axes of its output differ from those of its input".to_owned()));
        }
        let channels = |spec: &cytoscope_model_package::TensorSpec| match spec.axis(Channel).map(|a| &a.size) {
            Some(AxisSize::Fixed(n)) => Some(*n),
            _ => None,
        };
        let graph_channels =
            |id: Option<&cytoscope_graph::ValueId>| package.graph.value(*id?).shape.as_ref()?.get(1)?.fixed();
        let input_channels =
            graph_channels(package.graph.inputs.first()).or_else(|| channels(input)).unwrap_or(1).max(1);
        let field = analysis::receptive_field(&package.graph).map_err(|e| bad(e.to_string()))?;
        let static_norm = !analysis::depends_on_tile_statistics(&package.graph);
        let pick = |values: &[usize], a: usize, missing: usize| {
            let skip = 3 - spatial_axes;
            if a < skip { missing } else { values.get(a - skip).copied().unwrap_or(missing) }
        };
        let multiples: Vec<usize> = field.axes.iter().map(|axis| axis.multiple_of).collect();
        let mut step: [usize; 3] = std::array::from_fn(|a| pick(&multiples, a, 1).max(1));
        let mut min_size = step;
        for (a, kind) in [Z, Y, X].into_iter().enumerate() {
            match input.axis(kind).map(|axis| &axis.size) {
                Some(AxisSize::Fixed(n)) => (step[a], min_size[a]) = (*n, *n),
                Some(AxisSize::Step { min, step: s }) => {
                    let s = (*s).max(1);
                    step[a] = lcm(step[a], if min % s == 0 { s } else { 1 });
                    min_size[a] = (*min).max(step[a]).next_multiple_of(step[a]);
                }
                _ => {}
            }
        }
        let halo = field.halo().filter(|_| static_norm);
        let reach: Option<[usize; 3]> = halo.map(|halo| std::array::from_fn(|a| pick(&halo, a, 0)));
        let config = package.config();
        let segment: SegmentOptions = match config.get("segment") {
            None => SegmentOptions::default(),
            Some(value) => {
                serde_json::from_value(value.clone()).map_err(|e| bad(format!("config.cytoscope.segment: {e}")))?
            }
        };
        segment.validate().map_err(|e| bad(format!("config.cytoscope.segment: {e}")))?;
        let task = if config.get("task").and_then(|t| t.as_str()) == Some("labelfree") {
            ModelTask::LabelFree
        } else {
            ModelTask::Segmentation
        };
        let number = |key: &str, otherwise: usize| match config.get(key) {
            None | Some(serde_json::Value::Null) => Ok(otherwise),
            Some(value) => value
                .as_u64()
                .and_then(|v| usize::try_from(v).ok())
                .ok_or_else(|| bad(format!("config.cytoscope.{key} is {value}, expected a channel index"))),
        };
        let object_diameter_um = match config.get("object_diameter_um") {
            None | Some(serde_json::Value::Null) => None,
            Some(value) => Some(value.as_f64().filter(|d| (1e-3..=1e6).contains(d)).ok_or_else(|| {
                bad(format!("config.cytoscope.object_diameter_um is {value}, expected a diameter in µm above 0"))
            })?),
        };
        let segment_channel = number("segment_channel", 0)?;
        let seed_channel = number("seed_channel", segment_channel)?;
        let output_channels = match channels(output) {
            Some(n) => n,
            None => graph_channels(package.graph.outputs.first()).unwrap_or(1),
        };
        for (key, channel) in [("segment_channel", segment_channel), ("seed_channel", seed_channel)] {
            if channel >= output_channels {
                return Err(bad(format!(
                    "config.cytoscope.{key} is {channel}, but the model has {output_channels} output channels"
                )));
            }
        }
        Ok(Self {
            fingerprint: fingerprint(&package),
            on_disk: on_disk(&package.path),
            voxel_um: input.voxel_um(),
            input_id: input.id.clone(),
            object_diameter_um: object_diameter_um.filter(|_| input.voxel_um().is_some()),
            preprocessing: input.processing.clone(),
            postprocessing: output.postprocessing(),
            output_index: 0,
            name: package.name,
            description: package.description,
            path: package.path,
            has_int8: is_quantized(&package.graph),
            graph: package.graph,
            float_graph: package.float_graph,
            input_channels,
            output_channels,
            spatial_axes,
            min_size,
            step,
            reach,
            task,
            segment,
            segment_channel,
            seed_channel,
        })
    }

    /// Returns the network for a precision: for float precisions, the float network of a quantized model if it has one.
    pub fn network(&self, precision: Precision) -> &Graph {
        match (&self.float_graph, precision) {
            (Some(float), Precision::F32 | Precision::Tf32 | Precision::F16 | Precision::Bf16) => float,
            _ => &self.graph,
        }
    }

    /// Returns the precision to run in on a device: the requested one; by default int8 on the CPU for a quantized
    /// model, otherwise f32.
    pub fn precision_on(&self, device: DeviceId, requested: Option<Precision>) -> Precision {
        match requested {
            Some(precision) => precision,
            None if self.has_int8 && device == DeviceId::Cpu => Precision::Int8,
            None => Precision::F32,
        }
    }

    /// Returns how the package's files have changed since it was loaded, as the predicate of a sentence; `None` if they
    /// have not.
    pub fn change_on_disk(&self) -> Option<String> {
        let now = on_disk(&self.path);
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

    /// Returns the shape of the network's input for a tile Z, Y, X.
    pub fn tensor_shape(&self, channels: usize, tile: [usize; 3]) -> Vec<usize> {
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
    if options.precision == Precision::Int8 || !is_quantized(graph) {
        return engine.compile(graph, shapes, options);
    }
    let mut floats = graph.clone();
    cytoscope_passes::fold_dequantized(&mut floats)?;
    cytoscope_passes::eliminate_dead(&mut floats);
    engine.compile(&floats, shapes, options)
}

/// Returns the fingerprint of everything in a package that determines a result: the network and the description.
fn fingerprint(package: &Package) -> String {
    let network = select::fingerprint(&package.model_bytes);
    select::fingerprint(format!("{network} {}", package.rdf).as_bytes())
}

/// Returns the sizes and modification times of a package's files.
fn on_disk(path: &Path) -> Vec<InputRecord> {
    if !path.is_dir() {
        return vec![InputRecord::of(path)];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path());
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
    let mut files: Vec<PathBuf> = entries.filter(|p| p.is_file() && !is_hidden(p)).collect();
    files.sort();
    files.iter().map(|file| InputRecord::of(file)).collect()
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).saturating_mul(b)
}
