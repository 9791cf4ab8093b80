//! bioimage.io model packages: a folder, a zip, or a bare `.onnx` file.
//!
//! Specifications 0.4 and 0.5 (`rdf.yaml` or `bioimageio.yaml`) are supported. Only ONNX weights run; packages without
//! them are refused with the names of the weights they have, unless the caller can convert a PyTorch state dict
//! ([`Package::open_with`]). Files are looked up by name inside the package; nothing is downloaded. Sizes are checked before
//! anything is read.
//!
//! The crate owns reading ([`Package::open`]) and writing ([`PackageBuilder`]) of packages, their description of axes
//! and processing steps ([`TensorSpec`], [`Processing`]), their test tensors, and what bioimage.io would refuse in their
//! metadata ([`Package::upload_findings`]). It fails with a [`PackageError`] that names the package and the part that is wrong.
#![forbid(unsafe_code)]

mod citation;
pub mod config_key;
mod error;
mod files;
mod format_version;
mod parse;
mod parse_steps;
mod spec;
mod tensor_type;
mod test_run;
mod upload;
mod write;
mod write_tensor;
mod yaml;

pub use citation::Citation;
pub use error::PackageError;
pub use files::Files;
pub use format_version::FormatVersion;
pub use spec::{AxisKind, AxisSize, AxisSpec, FileRef, Processing, StatisticsAxes, TensorSpec};
pub use tensor_type::TensorType;
pub use test_run::{Tolerance, compare};
pub use upload::{LicenseProblem, UploadFinding, UploadSeverity, is_license, license_problem};
pub use write::{
    InheritedContent, NamedBytes, PACKAGE_KIND, PackageBuilder, check_destination, is_reserved, refuse_inside_package,
};

use files::local_name;
use parse::Weights;
use spec::has_channels_last;

use cytoscope_graph::{Graph, GraphLimits, Tensor, ValueId, npy};
use cytoscope_graph_passes::analysis::receptive_field;
use cytoscope_graph_passes::quantize::is_quantized;
use cytoscope_storage::setting::IMPORT;
use cytoscope_storage::write::parent_folder;
use cytoscope_storage::{message, sha256_of_bytes};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum size of a package's description in bytes.
pub const MAX_RDF_BYTES: u64 = 4 << 20;
/// Maximum size of one file in a package in bytes.
pub const MAX_FILE_BYTES: u64 = 4 << 30;
/// Maximum size of all test tensors of a package in bytes. Several inputs may name the same file.
pub const MAX_TEST_BYTES: u64 = MAX_FILE_BYTES;
/// Maximum number of files in a zip.
pub const MAX_FILES: usize = 4096;

/// File name of a package's int8 network, beside the float network.
pub const QUANTIZED_WEIGHTS: &str = "model_int8.onnx";
/// Entry of `config.cytoscope` that names the file of the int8 network.
const QUANTIZED_KEY: &str = "quantized_weights";
/// Entry of `config.cytoscope` that named the file of the float network, in older packages that declare int8 weights.
const OLD_FLOAT_KEY: &str = "float_weights";
/// Entry of `config.cytoscope` with the layout version.
const LAYOUT_KEY: &str = "layout";
/// Current layout version: the declared weights are floats, and test outputs were made with pre- and postprocessing.
const LAYOUT: u64 = 2;

/// [`Package::format_version`] of a network without a description.
const UNDESCRIBED: &str = "onnx";

/// A network of a package: the declared one, or a second one that an entry of `config.cytoscope` names.
struct Network {
    graph: Graph,
    bytes: Vec<u8>,
    /// Files of external data.
    external_files: Vec<PathBuf>,
    /// SHA-256 of external data that are in a zip.
    external_sha256: Vec<String>,
}

fn read_network(files: &Files, source: &str, bytes: Vec<u8>) -> Result<Network, PackageError> {
    let source = local_name(source);
    let limits = GraphLimits::default();
    let (read, external_sha256) = if let Some(package) = files.folder() {
        let path = package.join(source);
        (cytoscope_onnx::from_bytes_with_files(&bytes, path.parent(), &limits), Vec::new())
    } else {
        let external =
            ExternalFiles { files, source, left_bytes: Cell::new(MAX_FILE_BYTES), known: RefCell::default() };
        let graph = cytoscope_onnx::from_bytes_with_reader(&bytes, &|location| external.read(location), &limits);
        let sums = external.known.borrow().values().map(|file| sha256_of_bytes(file)).collect();
        (graph.map(|graph| (graph, Vec::new())), sums)
    };
    let (graph, external_files) = read.map_err(|error| PackageError::Graph { path: files.path().to_owned(), error })?;
    Ok(Network { graph, bytes, external_files, external_sha256 })
}

/// Files of external data in a zip, each of which is read once for all of its tensors.
struct ExternalFiles<'a> {
    files: &'a Files,
    /// The ONNX file, to whose folder locations are relative.
    source: &'a str,
    /// How much may still be read.
    left_bytes: Cell<u64>,
    /// Contents by location.
    known: RefCell<BTreeMap<String, Arc<Vec<u8>>>>,
}

impl ExternalFiles<'_> {
    fn read(&self, location: &str) -> Result<Arc<Vec<u8>>, String> {
        if let Some(known) = self.known.borrow().get(location) {
            return Ok(Arc::clone(known));
        }
        let folder = self.source.rsplit_once('/').map_or("", |(folder, _)| folder);
        let name = if folder.is_empty() { location.to_owned() } else { format!("{folder}/{location}") };
        let left = self.left_bytes.get();
        let bytes = self.files.read_up_to(&name, left).map_err(|error| format!("cannot be read: {error}"))?;
        self.left_bytes.set(left.saturating_sub(bytes.len() as u64));
        let bytes = Arc::new(bytes);
        self.known.borrow_mut().insert(location.to_owned(), Arc::clone(&bytes));
        Ok(bytes)
    }
}

/// Returns the network as an ONNX file.
fn onnx_bytes(path: &Path, graph: &Graph) -> Result<Vec<u8>, PackageError> {
    cytoscope_onnx::to_bytes(graph).map_err(|error| PackageError::Graph { path: path.to_owned(), error })
}

/// Returns the declared network and its ONNX file.
fn declared_network(
    files: &Files,
    weights: Weights,
    convert: Option<ConvertStateDict<'_>>,
) -> Result<Network, PackageError> {
    let (file, architecture, kwargs) = match weights {
        Weights::Onnx { file, external } => {
            let bytes = files.read(&file.source)?;
            files.verify(&file, &bytes)?;
            let network = read_network(files, &file.source, bytes)?;
            // A file that the network does not read may be missing.
            let reads_external = !network.external_files.is_empty() || !network.external_sha256.is_empty();
            if let Some(external) = external.filter(|_| reads_external) {
                files.verify_stored(&external, &network.external_sha256)?;
            }
            return Ok(network);
        }
        Weights::StateDict { file, architecture, kwargs } => (file, architecture, kwargs),
    };
    let Some(convert) = convert else {
        return Err(PackageError::NoOnnxWeights {
            path: files.path().to_owned(),
            has: "pytorch_state_dict".to_owned(),
            advice: message!("convert the package with {IMPORT}, or export the model with torch.onnx.export"),
        });
    };
    let bytes = files.read(&file.source)?;
    files.verify(&file, &bytes)?;
    let graph = convert(&StateDict { bytes, architecture, kwargs })
        .map_err(|problem| PackageError::bad(files.path(), "weights.pytorch_state_dict", problem))?;
    let bytes = onnx_bytes(files.path(), &graph)?;
    Ok(Network { graph, bytes, external_files: Vec::new(), external_sha256: Vec::new() })
}

fn read_second_network(files: &Files, rdf: &Value, key: &str) -> Result<Option<Network>, PackageError> {
    let entry = rdf.pointer("/config/cytoscope").and_then(|c| c.get(key)).filter(|v| !v.is_null());
    let Some(entry) = entry else { return Ok(None) };
    let part = format!("config.cytoscope.{key}");
    let text = |key: &str| match entry.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(PackageError::bad(files.path(), &part, format!("has a {key} that is not text"))),
    };
    let source = text("source")?.ok_or_else(|| PackageError::bad(files.path(), &part, "names no source file"))?;
    let file = FileRef { source, sha256: text("sha256")? };
    let bytes = files.read(&file.source)?;
    files.verify(&file, &bytes)?;
    read_network(files, &file.source, bytes).map(Some)
}

/// Returns the inputs that a network takes: without the optional ones for which it has a default, an initializer of the same
/// name.
fn without_defaults(inputs: Vec<TensorSpec>, optional: &[String], graph: &Graph) -> Vec<TensorSpec> {
    let has_default = |spec: &TensorSpec| {
        optional.contains(&spec.id) && graph.initializers.keys().any(|id| graph.value(*id).name == spec.id)
    };
    if inputs.iter().all(has_default) {
        return inputs;
    }
    inputs.into_iter().filter(|spec| !has_default(spec)).collect()
}

/// Whether a path looks like a package: a folder or a zip with a description. The description is not read.
pub fn is_package(path: &Path) -> bool {
    if path.is_dir() {
        let is_description = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(files::is_description_name) && path.is_file()
        };
        // A folder that cannot be listed is not a package.
        let mut entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        return entries.any(|entry| is_description(&entry.path()));
    }
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("zip")) && Files::open(path).is_ok()
}

/// Returns the package folder whose description a file is, by its name, and every other path as it is. People who choose a
/// package in a dialog for files choose its description.
pub fn package_folder(path: &Path) -> &Path {
    let name = path.file_name().and_then(|name| name.to_str());
    let is_description = name.is_some_and(files::is_description_name);
    path.parent().filter(|folder| is_description && !folder.as_os_str().is_empty()).unwrap_or(path)
}

/// The weights of a package as a PyTorch state dict.
#[derive(Debug)]
pub struct StateDict {
    /// Content of the file, unchanged.
    pub bytes: Vec<u8>,
    /// Name of the network's class or function, without its module.
    pub architecture: String,
    /// Arguments of its constructor, or null.
    pub kwargs: Value,
}

/// Builds the network of a state dict, or returns why it cannot, as a predicate.
pub type ConvertStateDict<'a> = &'a dyn Fn(&StateDict) -> Result<Graph, String>;

/// Tolerance for the test outputs of a package whose network was built from a state dict: only the order of summation
/// may differ.
const REBUILT_TOLERANCE: Tolerance = Tolerance { relative: 1e-4, absolute: 1e-4, outside_ppm: 0.0 };

/// A model: a network with the metadata needed to run it on images.
#[derive(Debug)]
pub struct Package {
    /// Path of the folder, zip or `.onnx` file.
    pub path: PathBuf,
    /// Name of the model, as lists show it.
    pub name: String,
    /// One-sentence description.
    pub description: String,
    /// Version of the specification, or `onnx` for a network without a description.
    pub format_version: String,
    /// Input tensors of the network, in the description's order; optional ones are left out if the network has a default for
    /// them.
    pub inputs: Vec<TensorSpec>,
    /// Output tensors of the network, in the description's order.
    pub outputs: Vec<TensorSpec>,
    /// The network; in an int8 package, the one with quantize and dequantize nodes.
    pub graph: Graph,
    /// The float version of an int8 network, if the package has one.
    pub float_graph: Option<Graph>,
    /// Whether the declared weights, which other programs run, are the float network of a package with both networks.
    declares_float: bool,
    /// Whether the network was built from a state dict.
    is_rebuilt: bool,
    /// Bytes of the file of [`Package::graph`].
    pub model_bytes: Vec<u8>,
    /// Files from which ONNX files of the package read external data, unless the package is a zip.
    pub external_files: Vec<PathBuf>,
    /// SHA-256 of the files in a zip from which ONNX files of the package read external data.
    pub external_sha256: Vec<String>,
    /// The whole description (`rdf.yaml`) as read.
    pub rdf: Value,
    files: Files,
}

impl Package {
    /// Opens a package.
    ///
    /// # Errors
    /// [`PackageError`]: not a package, a description that violates the specification, no ONNX weights, a wrong
    /// checksum, a file over a limit, or an invalid graph.
    pub fn open(path: &Path) -> Result<Self, PackageError> {
        let is_onnx = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx"));
        if is_onnx && path.is_file() {
            return Self::open_onnx(path);
        }
        Self::from_files(path, Files::open(path)?, None)
    }

    /// Opens a package like [`Package::open`]; if its only usable weights are a PyTorch state dict, `convert` builds the
    /// network.
    ///
    /// # Errors
    /// Same as [`Package::open`]; [`PackageError::Bad`] with the reason of `convert`.
    pub fn open_with(path: &Path, convert: ConvertStateDict<'_>) -> Result<Self, PackageError> {
        let is_onnx = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx"));
        if is_onnx && path.is_file() {
            return Self::open_onnx(path);
        }
        Self::from_files(path, Files::open(path)?, Some(convert))
    }

    /// Reads a package from its files; `path` is the path that it was opened by.
    fn from_files(path: &Path, files: Files, convert: Option<ConvertStateDict<'_>>) -> Result<Self, PackageError> {
        let (rdf_name, bytes) = files.description()?;
        let text = String::from_utf8(bytes).map_err(|_| PackageError::bad(path, &rdf_name, "is not UTF-8 text"))?;
        let rdf = yaml::parse(&text).map_err(|problem| PackageError::bad(path, &rdf_name, problem))?;
        let parsed = parse::parse(path, &rdf)?;
        let is_rebuilt = matches!(parsed.weights, Weights::StateDict { .. });
        let declared = declared_network(&files, parsed.weights, convert)?;
        let quantized = read_second_network(&files, &rdf, QUANTIZED_KEY)?;
        let float = read_second_network(&files, &rdf, OLD_FLOAT_KEY)?;
        let declares_float = quantized.is_some();
        let networks = [Some(&declared), quantized.as_ref(), float.as_ref()];
        let external_files =
            networks.into_iter().flatten().flat_map(|network| network.external_files.iter().cloned()).collect();
        let external_sha256 =
            networks.into_iter().flatten().flat_map(|network| network.external_sha256.iter().cloned()).collect();
        let (graph, model_bytes, float_graph) = match (quantized, float) {
            (Some(_), Some(_)) => {
                let problem = format!("has {QUANTIZED_KEY} and {OLD_FLOAT_KEY}: expected one of them");
                return Err(PackageError::bad(path, "config.cytoscope", problem));
            }
            (Some(quantized), None) if !is_quantized(&quantized.graph) => {
                let part = format!("config.cytoscope.{QUANTIZED_KEY}");
                return Err(PackageError::bad(path, &part, "names a network that is not quantized"));
            }
            (Some(quantized), None) => (quantized.graph, quantized.bytes, Some(declared.graph)),
            (None, float) => (declared.graph, declared.bytes, float.map(|f| f.graph)),
        };
        let package = Self {
            path: path.to_owned(),
            name: parsed.name,
            description: parsed.description,
            format_version: parsed.format_version,
            inputs: without_defaults(parsed.inputs, &parsed.optional_inputs, &graph),
            outputs: parsed.outputs,
            graph,
            float_graph,
            declares_float,
            is_rebuilt,
            model_bytes,
            external_files,
            external_sha256,
            rdf,
            files,
        };
        package.check_arity()?;
        Ok(package)
    }

    /// Opens a bare ONNX file: axes are assigned by rank (batch, channel, then space; channels last if only the last axis is
    /// short) with the lengths that the network accepts, and an input of floats is normalized to zero mean and unit variance
    /// over the stack, as in CytoDL's training.
    fn open_onnx(path: &Path) -> Result<Self, PackageError> {
        let files = Files::single(path);
        let model_bytes = files.read(&path.file_name().unwrap_or_default().to_string_lossy())?;
        let (graph, external_files) =
            cytoscope_onnx::from_bytes_with_files(&model_bytes, Some(parent_folder(path)), &GraphLimits::default())
                .map_err(|error| PackageError::Graph { path: path.to_owned(), error })?;
        let steps = [Processing::ZeroMeanUnitVariance { eps: 1e-6, axes: StatisticsAxes::default() }];
        let package =
            Self::without_description(path, (graph, model_bytes), "a bare ONNX file".to_owned(), (&steps, &[]))?;
        Ok(Self { external_files, ..package })
    }

    /// Returns a model of a network without metadata, as if it were a bare ONNX file at `path`: axes are assigned by
    /// rank with the lengths that the network accepts. `steps` are the steps before and after it.
    ///
    /// # Errors
    /// [`PackageError`] if an input or output has no shape of rank 4 or 5, or the network has no ONNX form.
    pub fn from_network(
        path: &Path,
        graph: Graph,
        description: String,
        steps: (&[Processing], &[Processing]),
    ) -> Result<Self, PackageError> {
        let model_bytes = onnx_bytes(path, &graph)?;
        Self::without_description(path, (graph, model_bytes), description, steps)
    }

    /// Returns a package of a network, with its bytes as ONNX, that has no description other than this one. Axes are assigned by
    /// rank, and the name is that of the file.
    ///
    /// # Errors
    /// [`PackageError`] if an input or output has no shape of rank 4 or 5.
    fn without_description(
        path: &Path,
        (graph, model_bytes): (Graph, Vec<u8>),
        description: String,
        (preprocessing, postprocessing): (&[Processing], &[Processing]),
    ) -> Result<Self, PackageError> {
        let name = path.file_stem().map_or_else(|| "model".to_owned(), |s| s.to_string_lossy().into_owned());
        let channels_last = graph.inputs.first().is_some_and(|id| has_channels_last(graph.value(*id)));
        let spec = |ids: &[ValueId], steps: &[Processing]| -> Result<Vec<TensorSpec>, PackageError> {
            ids.iter().map(|id| TensorSpec::from_value(graph.value(*id), channels_last, steps).ok_or_else(|| {
                let v = graph.value(*id);
                PackageError::bad(path, &v.name, "has no shape of rank 4 (batch, channel, y, x) or 5 (with z): wrap it in a bioimage.io package")
            })).collect()
        };
        let mut inputs = spec(&graph.inputs, preprocessing)?;
        let outputs = spec(&graph.outputs, postprocessing)?;
        // A network without a known receptive field keeps axes of any length, as does one with its channels last.
        if !channels_last && let Ok(field) = receptive_field(&graph) {
            for spec in &mut inputs {
                let free = spec.axes.iter_mut().filter(|axis| axis.kind.is_space());
                for (axis, reach) in free.zip(&field.axes).filter(|(axis, _)| !matches!(axis.size, AxisSize::Fixed(_)))
                {
                    let step = reach.multiple_of.max(1);
                    axis.size = AxisSize::Step { min: step, step };
                }
            }
        }
        Ok(Self {
            path: path.to_owned(),
            description,
            format_version: UNDESCRIBED.to_owned(),
            files: Files::single(path),
            rdf: Value::Null,
            name,
            inputs,
            outputs,
            graph,
            float_graph: None,
            declares_float: false,
            is_rebuilt: false,
            model_bytes,
            external_files: Vec::new(),
            external_sha256: Vec::new(),
        })
    }

    fn check_arity(&self) -> Result<(), PackageError> {
        let spec = (self.inputs.len(), self.outputs.len());
        for (graph, which) in
            std::iter::once((&self.graph, "network")).chain(self.float_graph.iter().map(|g| (g, "float network")))
        {
            let has = (graph.inputs.len(), graph.outputs.len());
            if has != spec {
                return Err(PackageError::bad(
                    &self.path,
                    "inputs and outputs",
                    format!("are {} and {} in the description, {} and {} in the {which}", spec.0, spec.1, has.0, has.1),
                ));
            }
        }
        Ok(())
    }

    /// Whether the model has a description (`rdf.yaml`), unlike a bare ONNX file.
    pub fn is_described(&self) -> bool {
        self.format_version != UNDESCRIBED
    }

    /// Whether the network computes with quantized values.
    pub fn is_int8(&self) -> bool {
        is_quantized(&self.graph)
    }

    /// Returns the network of the declared weights, which other programs run and which the package's test tensors
    /// belong to.
    pub fn declared_graph(&self) -> &Graph {
        match &self.float_graph {
            Some(float) if self.declares_float => float,
            _ => &self.graph,
        }
    }

    /// Whether the package has both networks and declares the int8 one, as earlier versions wrote it.
    pub fn declares_quantized(&self) -> bool {
        self.float_graph.is_some() && !self.declares_float
    }

    /// Whether the test outputs were made with pre- and postprocessing.
    pub fn has_processed_tests(&self) -> bool {
        self.config().get(LAYOUT_KEY).and_then(Value::as_u64).is_some_and(|layout| layout >= LAYOUT)
    }

    /// Whether the network was built from a state dict.
    pub fn is_rebuilt(&self) -> bool {
        self.is_rebuilt
    }

    /// Returns the declared tolerance for reproducing an output; a strict one for a network that was built from a state
    /// dict, because a mistaken setting may change outputs little.
    pub fn output_tolerance(&self, output_id: &str) -> Tolerance {
        if self.is_rebuilt { REBUILT_TOLERANCE } else { Tolerance::declared(&self.rdf, output_id) }
    }

    /// Returns the package's `config.cytoscope` section, or null.
    pub fn config(&self) -> &Value {
        self.rdf.pointer("/config/cytoscope").unwrap_or(&Value::Null)
    }

    /// Returns the files of the package.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the test tensors of inputs and outputs; `None` if the package has none.
    ///
    /// # Errors
    /// [`PackageError`] if a file is missing, fails its checksum or is not a valid array, or if all take more than
    /// [`MAX_TEST_BYTES`].
    #[allow(clippy::type_complexity)]
    pub fn test_tensors(&self) -> Result<Option<(Vec<Tensor>, Vec<Tensor>)>, PackageError> {
        self.test_tensors_up_to(MAX_TEST_BYTES)
    }

    /// Like [`Package::test_tensors`], with a maximum size of all of `limit` bytes.
    ///
    /// # Errors
    /// Same as [`Package::test_tensors`].
    #[allow(clippy::type_complexity)]
    pub fn test_tensors_up_to(&self, limit: u64) -> Result<Option<(Vec<Tensor>, Vec<Tensor>)>, PackageError> {
        let mut left = limit;
        let mut load = |specs: &[TensorSpec]| -> Result<Option<Vec<Tensor>>, PackageError> {
            let Some(files) = specs.iter().map(|s| s.test_tensor.as_ref()).collect::<Option<Vec<_>>>() else {
                return Ok(None);
            };
            let tensors = files.into_iter().map(|file| {
                let bytes = self.files.read_up_to(&file.source, left).map_err(|error| match error {
                    PackageError::TooLarge { limit: exceeded, .. } if exceeded == left => {
                        let problem = format!("exceeds, with the other test tensors, the limit of {limit} bytes");
                        PackageError::bad(&self.path, &file.source, problem)
                    }
                    other => other,
                })?;
                left = left.saturating_sub(bytes.len() as u64);
                self.files.verify(file, &bytes)?;
                npy::read(&bytes).map_err(|error| PackageError::Graph { path: self.path.join(&file.source), error })
            });
            tensors.collect::<Result<Vec<_>, _>>().map(Some)
        };
        Ok(load(&self.inputs)?.zip(load(&self.outputs)?))
    }
}
