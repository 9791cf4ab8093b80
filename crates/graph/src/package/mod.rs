//! bioimage.io model packages: a folder, a zip, or a bare `.onnx` file.
//!
//! Specification 0.4 and 0.5 (`rdf.yaml` or `bioimageio.yaml`). Only ONNX weights run; a package with others is refused by
//! name. Files are found by their names inside the package: nothing is fetched. Sizes are checked before anything is read.

mod error;
mod files;
mod parse;
mod parse_steps;
mod spec;
mod test_run;
mod write;
mod write_tensor;
mod yaml;

pub use error::PackageError;
pub use files::Files;
pub use spec::{AxisKind, AxisSize, AxisSpec, FileRef, Processing, StatisticsAxes, TensorSpec};
pub use test_run::{Tolerance, compare};
pub use write::{Carried, NamedBytes, PACKAGE_KIND, PackageBuilder, check_destination, is_reserved};

use crate::analysis::receptive_field;
use crate::passes::quantize::is_quantized;
use crate::{Graph, GraphLimits, Tensor, npy};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Most bytes of a package's description.
pub const MAX_RDF_BYTES: u64 = 4 << 20;
/// Most bytes of one file in a package.
pub const MAX_FILE_BYTES: u64 = 4 << 30;
/// Most files in a zip.
pub const MAX_FILES: usize = 4096;

/// The file of a package's quantized network, beside the one in floats.
pub const QUANTIZED_WEIGHTS: &str = "model_int8.onnx";
/// Entry of `config.cytoscope` that names the quantized network's file.
const QUANTIZED_KEY: &str = "quantized_weights";
/// Entry of `config.cytoscope` that named the float network's file, in packages whose declared weights are the quantized ones.
const OLD_FLOAT_KEY: &str = "float_weights";
/// Entry of `config.cytoscope` that tells how a package was written.
const LAYOUT_KEY: &str = "layout";
/// How packages are written now: the declared weights are floats, and test outputs were made with pre- and postprocessing.
const LAYOUT: u64 = 2;

/// A network beside the declared weights, as an entry of `config.cytoscope` names it.
struct Beside {
    graph: Graph,
    bytes: Vec<u8>,
}

fn graph_of(files: &Files, source: &str, bytes: &[u8]) -> Result<Graph, PackageError> {
    let folder = files.folder().map(|f| f.join(source)).and_then(|p| p.parent().map(Path::to_owned));
    Graph::from_bytes(bytes, folder.as_deref(), &GraphLimits::default())
        .map_err(|error| PackageError::Graph { path: files.path().to_owned(), error })
}

fn beside(files: &Files, rdf: &Value, key: &str) -> Result<Option<Beside>, PackageError> {
    let entry = rdf.pointer("/config/cytoscope").and_then(|c| c.get(key)).filter(|v| !v.is_null());
    let Some(entry) = entry else { return Ok(None) };
    let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    let part = format!("config.cytoscope.{key}");
    let source = text("source").ok_or_else(|| PackageError::bad(files.path(), &part, "names no source file"))?;
    let file = FileRef { source, sha256: text("sha256") };
    let bytes = files.read(&file.source)?;
    files.verify(&file, &bytes)?;
    Ok(Some(Beside { graph: graph_of(files, &file.source, &bytes)?, bytes }))
}

/// A model with what is needed to run it on images.
#[derive(Debug)]
pub struct Package {
    /// Where it came from.
    pub path: PathBuf,
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Version of the specification, or `onnx` for a bare file.
    pub format_version: String,
    /// Inputs.
    pub inputs: Vec<TensorSpec>,
    /// Outputs.
    pub outputs: Vec<TensorSpec>,
    /// The network; of a quantized package the one with quantize and dequantize nodes.
    pub graph: Graph,
    /// The same network in floats, where a quantized package keeps it.
    pub float_graph: Option<Graph>,
    /// Whether the declared weights, which other programs run, are the float network of a package that has both.
    declares_float: bool,
    /// Bytes of the file of [`Package::graph`].
    pub model_bytes: Vec<u8>,
    /// The whole description as read.
    pub rdf: Value,
    files: Files,
}

impl Package {
    /// Opens a package.
    ///
    /// # Errors
    /// [`PackageError`]: not a package, a description that breaks the specification, no ONNX weights, a wrong checksum, a
    /// file over a limit, or a graph at fault.
    pub fn open(path: &Path) -> Result<Self, PackageError> {
        let is_onnx = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx"));
        if is_onnx && path.is_file() {
            return Self::bare(path);
        }
        let files = Files::open(path)?;
        let (rdf_name, bytes) = files.description()?;
        let text = String::from_utf8(bytes).map_err(|_| PackageError::bad(path, &rdf_name, "is not UTF-8 text"))?;
        let rdf = yaml::parse(&text).map_err(|problem| PackageError::bad(path, &rdf_name, problem))?;
        let parsed = parse::parse(path, &rdf)?;
        let model_bytes = files.read(&parsed.weights.source)?;
        files.verify(&parsed.weights, &model_bytes)?;
        let declared = graph_of(&files, &parsed.weights.source, &model_bytes)?;
        let quantized = beside(&files, &rdf, QUANTIZED_KEY)?;
        let float = beside(&files, &rdf, OLD_FLOAT_KEY)?;
        let declares_float = quantized.is_some();
        let (graph, model_bytes, float_graph) = match (quantized, float) {
            (Some(_), Some(_)) => {
                let problem = format!("has {QUANTIZED_KEY} and {OLD_FLOAT_KEY}: expected one of them");
                return Err(PackageError::bad(path, "config.cytoscope", problem));
            }
            (Some(quantized), None) if !is_quantized(&quantized.graph) => {
                let part = format!("config.cytoscope.{QUANTIZED_KEY}");
                return Err(PackageError::bad(path, &part, "names a network that is not quantized"));
            }
            (Some(quantized), None) => (quantized.graph, quantized.bytes, Some(declared)),
            (None, float) => (declared, model_bytes, float.map(|f| f.graph)),
        };
        let package = Self {
            path: path.to_owned(),
            name: parsed.name,
            description: parsed.description,
            format_version: parsed.format_version,
            inputs: parsed.inputs,
            outputs: parsed.outputs,
            graph,
            float_graph,
            declares_float,
            model_bytes,
            rdf,
            files,
        };
        package.check_arity()?;
        Ok(package)
    }

    /// A bare ONNX file: axes by rank (batch, channel, then space) in lengths that the network can take, z-score over the stack as
    /// CytoDL trains with.
    fn bare(path: &Path) -> Result<Self, PackageError> {
        let files = Files::single(path);
        let model_bytes = files.read(&path.file_name().unwrap_or_default().to_string_lossy())?;
        let graph = Graph::from_bytes(&model_bytes, path.parent(), &GraphLimits::default())
            .map_err(|error| PackageError::Graph { path: path.to_owned(), error })?;
        let name = path.file_stem().map_or_else(|| "model".to_owned(), |s| s.to_string_lossy().into_owned());
        let spec = |ids: &[crate::ValueId], steps: &[Processing]| -> Result<Vec<TensorSpec>, PackageError> {
            ids.iter().map(|id| TensorSpec::of_value(graph.value(*id), steps).ok_or_else(|| {
                let v = graph.value(*id);
                PackageError::bad(path, &v.name, "has no shape of rank 4 (batch, channel, y, x) or 5 (with z): wrap it in a bioimage.io package")
            })).collect()
        };
        let mut inputs =
            spec(&graph.inputs, &[Processing::ZeroMeanUnitVariance { eps: 1e-6, axes: StatisticsAxes::default() }])?;
        let outputs = spec(&graph.outputs, &[])?;
        if let Ok(field) = receptive_field(&graph) {
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
            description: "a bare ONNX file".to_owned(),
            format_version: "onnx".to_owned(),
            files,
            rdf: Value::Null,
            name,
            inputs,
            outputs,
            graph,
            float_graph: None,
            declares_float: false,
            model_bytes,
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

    /// Whether the network computes on quantized values.
    pub fn is_int8(&self) -> bool {
        is_quantized(&self.graph)
    }

    /// The network of the declared weights, which other programs run and which the package's test is about.
    pub fn declared_graph(&self) -> &Graph {
        match &self.float_graph {
            Some(float) if self.declares_float => float,
            _ => &self.graph,
        }
    }

    /// Whether the package has both networks and declares the quantized one, as earlier versions wrote it.
    pub fn declares_quantized(&self) -> bool {
        self.float_graph.is_some() && !self.declares_float
    }

    /// Whether it was written with test outputs that were made with pre- and postprocessing.
    pub fn has_processed_tests(&self) -> bool {
        self.config().get(LAYOUT_KEY).and_then(Value::as_u64).is_some_and(|layout| layout >= LAYOUT)
    }

    /// How far a reproduced output may be off, as the description declares it.
    pub fn tolerance_of(&self, output_id: &str) -> Tolerance {
        Tolerance::declared(&self.rdf, output_id)
    }

    /// The package's own `config.cytoscope` section, or null.
    pub fn config(&self) -> &Value {
        self.rdf.pointer("/config/cytoscope").unwrap_or(&Value::Null)
    }

    /// The files beside the description.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// The test tensors of inputs and outputs; `None` where the package has none.
    ///
    /// # Errors
    /// [`PackageError`] if a file is missing, fails its checksum or is no array.
    #[allow(clippy::type_complexity)]
    pub fn test_tensors(&self) -> Result<Option<(Vec<Tensor>, Vec<Tensor>)>, PackageError> {
        let load = |specs: &[TensorSpec]| -> Result<Option<Vec<Tensor>>, PackageError> {
            let Some(files) = specs.iter().map(|s| s.test_tensor.as_ref()).collect::<Option<Vec<_>>>() else {
                return Ok(None);
            };
            let tensors = files.into_iter().map(|file| {
                let bytes = self.files.read(&file.source)?;
                self.files.verify(file, &bytes)?;
                npy::read(&bytes).map_err(|error| PackageError::Graph { path: self.path.join(&file.source), error })
            });
            tensors.collect::<Result<Vec<_>, _>>().map(Some)
        };
        Ok(load(&self.inputs)?.zip(load(&self.outputs)?))
    }
}
