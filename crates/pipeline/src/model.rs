//! A model as jobs use it: network, axes, processing, reach.

use crate::JobError;
use crate::provenance::InputRecord;
use cytoscope_engine::{CompileOptions, DeviceId, Engine, EngineError, Precision, Session, select};
use cytoscope_graph::package::{AxisKind, AxisSize, Package, Processing};
use cytoscope_graph::passes::quantize::is_quantized;
use cytoscope_graph::{Graph, analysis, passes};
use cytoscope_objects::SegmentOptions;
use cytoscope_storage::read::open_regular;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};

/// What a model predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// A map of foreground probability: objects are made of it.
    Segmentation,
    /// Intensities of a stain.
    LabelFree,
}

/// A model ready to be compiled.
#[derive(Debug, Clone)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Where it was found.
    pub path: PathBuf,
    /// Its network; of a quantized model the one with quantize and dequantize nodes.
    pub graph: Graph,
    /// The same network in floats, where a quantized model has it too.
    pub float_graph: Option<Graph>,
    /// Whether [`Model::graph`] computes on 8-bit integers.
    pub has_int8: bool,
    /// Fingerprint of the network and the description.
    pub fingerprint: String,
    /// Sizes and times of the package's files when it was loaded.
    pub(crate) on_disk: Vec<InputRecord>,
    /// Channels it takes.
    pub input_channels: usize,
    /// Channels it gives.
    pub output_channels: usize,
    /// Which of its outputs is used.
    pub output_index: usize,
    /// 3, or 2 for a network that sees single slices.
    pub spatial_axes: usize,
    /// Least tile along Z, Y, X.
    pub min_size: [usize; 3],
    /// Tiles are multiples of this.
    pub step: [usize; 3],
    /// Voxels on each side that an output voxel depends on; `None` if it looks at the whole tile.
    pub reach: Option<[usize; 3]>,
    /// Voxel size Z, Y, X in µm it was made for.
    pub voxel_um: Option<[f64; 3]>,
    /// Id of its input, by which steps can refer to it.
    pub input_id: String,
    /// Diameter of the sphere with the volume of a usual object, in µm on the model's voxel size: stacks are brought to it.
    /// `None` for models that take objects of the size they have.
    pub object_diameter_um: Option<f64>,
    /// What is done to the stack before.
    pub preprocessing: Vec<Processing>,
    /// What is done to its output.
    pub postprocessing: Vec<Processing>,
    /// What its output is.
    pub task: Task,
    /// How objects are made of its output.
    pub segment: SegmentOptions,
    /// The output channel objects are made of.
    pub segment_channel: usize,
    /// The output channel that tells objects apart, where they touch; the same one where there is none of its own.
    pub seed_channel: usize,
}

/// Where models are looked up by name: `models/` beside the program (or above it, in a source tree), then the user's folder.
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

/// The user's own folder for models and settings.
pub fn user_folder() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE")).map(PathBuf::from);
    if cfg!(target_os = "macos") {
        return home().map(|h| h.join("Library/Application Support/Cytoscope"));
    }
    if cfg!(windows) {
        return std::env::var_os("APPDATA").map(PathBuf::from).map(|f| f.join("Cytoscope"));
    }
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    data.or_else(|| home().map(|h| h.join(".local/share"))).map(|f| f.join("cytoscope"))
}

/// Most bytes of a file `NAME.alias` or `NAME.teach`, which holds the name of a model.
const MAX_ALIAS_BYTES: u64 = 4096;

/// The text of a file `NAME.alias` or `NAME.teach` in a folder of models.
pub(crate) fn read_alias(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.take(MAX_ALIAS_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The path of a package given by path or by name. A file `NAME.alias` beside the packages holds the name it stands for.
///
/// # Errors
/// [`JobError::WrongUse`] that lists the names there are.
pub fn find_model(text: &str) -> Result<PathBuf, JobError> {
    let path = Path::new(text);
    // A replacement that was killed may have left the package under a hidden name.
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
        if known.is_empty() { "none are installed".to_owned() } else { format!("known are {}", known.join(", ")) };
    Err(JobError::WrongUse(format!("there is no model \"{text}\": give the path of a package, or a name ({known})")))
}

impl Model {
    /// Loads a package by path or name.
    ///
    /// # Errors
    /// [`JobError`] if there is none, it is at fault, or it is of a kind that cannot be run on stacks.
    pub fn load(text: &str) -> Result<Self, JobError> {
        let path = find_model(text)?;
        let package = Package::open(&path).map_err(|e| JobError::model(path.display().to_string(), e))?;
        Self::from_package(package)
    }

    /// A model from an opened package.
    ///
    /// # Errors
    /// [`JobError::Model`] if it has several inputs or axes that stacks do not have.
    pub fn from_package(package: Package) -> Result<Self, JobError> {
        let bad = |problem: String| JobError::model(package.path.display().to_string(), problem);
        let [input] = package.inputs.as_slice() else {
            return Err(bad(format!(
                "it has {} inputs; models of one image input can be run on stacks",
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
                return Err(bad(format!("its input has axes {order:?}; batch, channel, (z,) y, x is what can be run")));
            }
        };
        if output.axes.iter().map(|a| a.kind).ne(order) {
            return Err(bad("its output has other axes than its input".to_owned()));
        }
        let channels = |spec: &cytoscope_graph::package::TensorSpec| match spec.axis(Channel).map(|a| &a.size) {
            Some(AxisSize::Fixed(n)) => Some(*n),
            _ => None,
        };
        let graph_channels =
            |id: Option<&cytoscope_graph::ValueId>| package.graph.value(*id?).shape.as_ref()?.get(1)?.fixed();
        let input_channels =
            graph_channels(package.graph.inputs.first()).or_else(|| channels(input)).unwrap_or(1).max(1);
        let field = analysis::receptive_field(&package.graph).map_err(|e| bad(e.to_string()))?;
        let static_norm = !analysis::normalises_over_tile(&package.graph);
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
            Task::LabelFree
        } else {
            Task::Segmentation
        };
        let number = |key: &str, otherwise: usize| match config.get(key) {
            None | Some(serde_json::Value::Null) => Ok(otherwise),
            Some(value) => value
                .as_u64()
                .and_then(|v| usize::try_from(v).ok())
                .ok_or_else(|| bad(format!("config.cytoscope.{key} is {value}, expected the number of a channel"))),
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
                return Err(bad(format!("config.cytoscope.{key} is {channel}, it has {output_channels} channels")));
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

    /// The network for a precision: a quantized model computes in floats on its float network, where it has one.
    pub fn network(&self, precision: Precision) -> &Graph {
        match (&self.float_graph, precision) {
            (Some(float), Precision::F32 | Precision::Tf32 | Precision::F16 | Precision::Bf16) => float,
            _ => &self.graph,
        }
    }

    /// The precision the model has on a device: the one asked for, or by itself integers on the processor where the model is
    /// quantized, else 32-bit floats.
    pub fn precision_on(&self, device: DeviceId, asked: Option<Precision>) -> Precision {
        match asked {
            Some(precision) => precision,
            None if self.has_int8 && device == DeviceId::Cpu => Precision::Int8,
            None => Precision::F32,
        }
    }

    /// How the package's files differ from when it was loaded, as the predicate of a sentence; `None` if they do not.
    pub fn change_on_disk(&self) -> Option<String> {
        let now = on_disk(&self.path);
        if now.len() != self.on_disk.len() {
            return Some("was replaced while it was used".to_owned());
        }
        self.on_disk.iter().zip(&now).find_map(|(then, now)| {
            let name = now.path.file_name().unwrap_or_default().display();
            then.change(now).map(|change| format!("was replaced while it was used ({name} {change})"))
        })
    }

    /// Compiles the network for inputs of one shape.
    ///
    /// In a float precision a quantized network is run with its own meaning: what is dequantized is a float.
    ///
    /// # Errors
    /// The engine's; [`EngineError::NotQuantized`] if integers are asked of a model in floats.
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

    /// The shape of the network's input for a tile.
    pub fn tensor_shape(&self, channels: usize, tile: [usize; 3]) -> Vec<usize> {
        let mut shape = vec![1, channels];
        shape.extend(&tile[3 - self.spatial_axes..]);
        shape
    }
}

/// Compiles a network; in a float precision what it dequantizes is a float.
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
    passes::fold_dequantized(&mut floats)?;
    passes::eliminate_dead(&mut floats);
    engine.compile(&floats, shapes, options)
}

/// The fingerprint of everything in a package that decides a result: the network and the description.
fn fingerprint(package: &Package) -> String {
    let network = select::fingerprint(&package.model_bytes);
    select::fingerprint(format!("{network} {}", package.rdf).as_bytes())
}

/// Sizes and times of a package's files.
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
