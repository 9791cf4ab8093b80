//! bioimage.io model packages: a folder, a zip, or a bare `.onnx` file.
//!
//! Specification 0.4 and 0.5 (`rdf.yaml` or `bioimageio.yaml`). Only ONNX weights run; a package with others is refused by
//! name. Files are found by their names inside the package: nothing is fetched. Sizes are checked before anything is read.

mod error;
mod files;
mod parse;
mod spec;
mod test_run;
mod write;
mod yaml;

pub use error::PackageError;
pub use files::Files;
pub use spec::{AxisKind, AxisSize, AxisSpec, FileRef, Processing, TensorSpec};
pub use test_run::{Tolerance, compare};
pub use write::{PACKAGE_KIND, PackageBuilder, check_destination};

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

/// The file of a quantized package's network in floats.
pub const FLOAT_WEIGHTS: &str = "model_f32.onnx";

/// The network in floats that a quantized package keeps, as `config.cytoscope.float_weights` names it.
fn float_graph(files: &Files, rdf: &Value) -> Result<Option<Graph>, PackageError> {
    let path = files.path();
    let Some(entry) = rdf.pointer("/config/cytoscope/float_weights").filter(|v| !v.is_null()) else { return Ok(None) };
    let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    let source = text("source")
        .ok_or_else(|| PackageError::bad(path, "config.cytoscope.float_weights", "names no source file"))?;
    let file = FileRef { source, sha256: text("sha256") };
    let bytes = files.read(&file.source)?;
    files.verify(&file, &bytes)?;
    let folder = files.folder().map(|f| f.join(&file.source)).and_then(|p| p.parent().map(Path::to_owned));
    let graph = Graph::from_bytes(&bytes, folder.as_deref(), &GraphLimits::default())
        .map_err(|error| PackageError::Graph { path: path.to_owned(), error })?;
    Ok(Some(graph))
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
    /// Bytes of the network's file.
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
        let folder =
            files.folder().map(|f| f.join(&parsed.weights.source)).and_then(|p| p.parent().map(Path::to_owned));
        let graph = Graph::from_bytes(&model_bytes, folder.as_deref(), &GraphLimits::default())
            .map_err(|error| PackageError::Graph { path: path.to_owned(), error })?;
        let float_graph = float_graph(&files, &rdf)?;
        let package = Self {
            path: path.to_owned(),
            name: parsed.name,
            description: parsed.description,
            format_version: parsed.format_version,
            inputs: parsed.inputs,
            outputs: parsed.outputs,
            graph,
            float_graph,
            model_bytes,
            rdf,
            files,
        };
        package.check_arity()?;
        Ok(package)
    }

    /// A bare ONNX file: axes by rank (batch, channel, then space), z-score over the stack as CytoDL trains with.
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
        let inputs = spec(&graph.inputs, &[Processing::ZeroMeanUnitVariance { eps: 1e-6 }])?;
        let outputs = spec(&graph.outputs, &[])?;
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

    /// How far a reproduced output may be off, as the description declares it.
    pub fn tolerance(&self) -> Tolerance {
        Tolerance::declared(&self.rdf)
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
