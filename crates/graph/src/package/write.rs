//! Writing a bioimage.io 0.5 package.

use super::files::sha256;
use super::{AxisKind, AxisSize, FLOAT_WEIGHTS, MAX_RDF_BYTES, PackageError, Processing, TensorSpec, Tolerance};
use crate::{EXPORT_OPSET, Graph, Tensor, npy};
use cytoscope_storage::folder::{self, Replaced};
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::atomic_write;
use cytoscope_storage::{MARKER, Manifest, ManifestFile, Overwrite, StorageError, sha256_of_bytes, target};
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
use std::path::Path;

/// The kind of a package's folder, as its marker says it.
pub const PACKAGE_KIND: &str = "package";

/// Everything a package is made of.
#[derive(Debug, Clone)]
pub struct PackageBuilder {
    /// 5 to 128 characters of letters, digits, `_+- ()`.
    pub name: String,
    /// A sentence.
    pub description: String,
    /// The card (Markdown).
    pub documentation: String,
    /// Names of the authors.
    pub authors: Vec<String>,
    /// Texts with an optional DOI to cite.
    pub cite: Vec<(String, Option<String>)>,
    /// SPDX id.
    pub license: String,
    /// Tags.
    pub tags: Vec<String>,
    /// Inputs in the graph's order.
    pub inputs: Vec<TensorSpec>,
    /// Outputs in the graph's order.
    pub outputs: Vec<TensorSpec>,
    /// The network.
    pub graph: Graph,
    /// Test tensors of the inputs.
    pub test_inputs: Vec<Tensor>,
    /// Test tensors of the outputs.
    pub test_outputs: Vec<Tensor>,
    /// The `config.cytoscope` section.
    pub config: Value,
    /// Pictures of what it does, names and bytes; the first one stands for the model. The card may show them by their names.
    pub covers: Vec<(String, Vec<u8>)>,
    /// The network in floats, where [`PackageBuilder::graph`] is its quantized form and both are kept.
    pub float_graph: Option<Graph>,
    /// How far reproduced outputs may be off, where that is not bioimage.io's default.
    pub tolerance: Option<Tolerance>,
}

impl PackageBuilder {
    /// Writes a folder, or a zip where the path ends in `.zip`: whole or not at all. The marker in it lists its files, so that it is
    /// known later whether it may be replaced. What lies there already is replaced if it is a package that this program wrote and
    /// nobody changed; else as `overwrite` says.
    ///
    /// # Errors
    /// [`PackageError`] if the graph has no ONNX form, a name breaks the specification, a file cannot be written, or the path holds
    /// something else ([`PackageError::Storage`]).
    pub fn save(&self, path: &Path, overwrite: Overwrite) -> Result<Replaced, PackageError> {
        check_destination(path, &[], overwrite)?;
        let files = self.files(path)?;
        if !is_zip(path) {
            return Ok(folder::write_finished(path, PACKAGE_KIND, &files, overwrite)?);
        }
        let bytes = zip_bytes(&files).map_err(|e| PackageError::io(path, e))?;
        let existed = std::fs::symlink_metadata(path).is_ok();
        atomic_write(path, &bytes)?;
        Ok(if existed { Replaced::Ours } else { Replaced::Nothing })
    }

    /// Names and bytes of all files, in a fixed order.
    fn files(&self, path: &Path) -> Result<Vec<(String, Vec<u8>)>, PackageError> {
        let fits = (5..=128).contains(&self.name.chars().count())
            && self.name.chars().all(|c| c.is_ascii_alphanumeric() || "_+- ()".contains(c));
        if !fits {
            return Err(PackageError::bad(path, &self.name, "is no package name: 5 to 128 letters, digits or _+- ()"));
        }
        let bytes =
            |graph: &Graph| graph.to_bytes().map_err(|error| PackageError::Graph { path: path.to_owned(), error });
        let mut files = vec![("model.onnx".to_owned(), bytes(&self.graph)?)];
        let mut config = self.config.clone();
        let float = self.float_graph.as_ref().map(bytes).transpose()?;
        // An entry of an earlier package would point at a file that is not written.
        if let Some(section) = config.as_object_mut() {
            section.remove("float_weights");
        }
        let attachment = float.as_ref().map(|f| json!({"source": FLOAT_WEIGHTS, "sha256": sha256(f)}));
        if let Some(entry) = &attachment {
            match config.as_object_mut() {
                Some(section) => {
                    section.insert("float_weights".to_owned(), entry.clone());
                }
                None => config = json!({"float_weights": entry}),
            }
        }
        let mut sections = Vec::new();
        for (kind, specs, tensors) in
            [("input", &self.inputs, &self.test_inputs), ("output", &self.outputs, &self.test_outputs)]
        {
            let mut section = Vec::new();
            for (i, spec) in specs.iter().enumerate() {
                let name = format!("test_{kind}_{i}.npy");
                let test = match tensors.get(i) {
                    Some(tensor) => {
                        let bytes = npy::write(tensor);
                        let entry = json!({"source": name, "sha256": sha256(&bytes)});
                        files.push((name, bytes));
                        entry
                    }
                    None => Value::Null,
                };
                section.push(tensor_entry(spec, kind, test));
            }
            sections.push(section);
        }
        files.push(("README.md".to_owned(), self.documentation.clone().into_bytes()));
        let outputs = sections.pop().unwrap_or_default();
        let inputs = sections.pop().unwrap_or_default();
        let mut rdf = json!({
            "format_version": "0.5.3",
            "type": "model",
            "name": self.name,
            "description": self.description,
            "authors": self.authors.iter().map(|n| json!({"name": n})).collect::<Vec<_>>(),
            "cite": self.cite.iter().map(|(text, doi)| match doi {
                Some(doi) => json!({"text": text, "doi": doi}),
                None => json!({"text": text}),
            }).collect::<Vec<_>>(),
            "license": self.license,
            "tags": self.tags,
            "documentation": "README.md",
            "version": "0.1.0",
            "inputs": inputs,
            "outputs": outputs,
            "weights": {"onnx": {"source": "model.onnx", "sha256": sha256(&files[0].1), "opset_version": EXPORT_OPSET}},
            "config": {"cytoscope": config},
        });
        if let Some(section) =
            self.tolerance.as_ref().and_then(|_| rdf.get_mut("config")).and_then(Value::as_object_mut)
        {
            let declaration = self.tolerance.unwrap_or_default().declaration();
            section.insert("bioimageio".to_owned(), json!({"reproducibility_tolerance": declaration}));
        }
        if let (Some(entry), Some(bytes), Some(map)) = (attachment, float, rdf.as_object_mut()) {
            map.insert("attachments".to_owned(), json!([entry]));
            files.push((FLOAT_WEIGHTS.to_owned(), bytes));
        }
        if let (false, Some(map)) = (self.covers.is_empty(), rdf.as_object_mut()) {
            let mut names: Vec<&str> = Vec::new();
            for (name, bytes) in &self.covers {
                if name.contains(['/', '\\']) || name == "rdf.yaml" || files.iter().any(|(taken, _)| taken == name) {
                    return Err(PackageError::bad(
                        path,
                        name,
                        "is no name for a cover: a plain name that no other file has",
                    ));
                }
                names.push(name);
                files.push((name.clone(), bytes.clone()));
            }
            map.insert("covers".to_owned(), json!(names));
        }
        let text = serde_yaml_ng::to_string(&rdf).map_err(|e| PackageError::bad(path, "rdf.yaml", e.to_string()))?;
        files.push(("rdf.yaml".to_owned(), text.into_bytes()));
        Ok(files)
    }
}

fn tensor_entry(spec: &TensorSpec, kind: &str, test: Value) -> Value {
    let mut entry = Map::new();
    entry.insert("id".to_owned(), json!(spec.id));
    entry.insert("description".to_owned(), json!(spec.description));
    entry.insert(
        "axes".to_owned(),
        spec.axes
            .iter()
            .map(|a| {
                let mut axis = Map::new();
                let (type_name, id) = match a.kind {
                    AxisKind::Batch => ("batch", None),
                    AxisKind::Channel => ("channel", None),
                    AxisKind::Time => ("time", None),
                    AxisKind::Index => ("index", None),
                    AxisKind::Z => ("space", Some("z")),
                    AxisKind::Y => ("space", Some("y")),
                    AxisKind::X => ("space", Some("x")),
                };
                axis.insert("type".to_owned(), json!(type_name));
                if let Some(id) = id {
                    axis.insert("id".to_owned(), json!(id));
                }
                if a.kind == AxisKind::Channel {
                    let names = if a.channel_names.is_empty() {
                        let n = if let AxisSize::Fixed(n) = a.size { n } else { 1 };
                        (0..n).map(|i| format!("channel{i}")).collect()
                    } else {
                        a.channel_names.clone()
                    };
                    axis.insert("channel_names".to_owned(), json!(names));
                    return Value::Object(axis);
                }
                let size = match &a.size {
                    AxisSize::Fixed(n) => json!(n),
                    AxisSize::Step { min, step } => json!({"min": min, "step": step}),
                    AxisSize::Reference { tensor, axis, offset, .. } => {
                        json!({"tensor_id": tensor, "axis_id": axis, "offset": *offset as i64})
                    }
                    AxisSize::Free => json!({"min": 1, "max": null}),
                };
                if a.kind != AxisKind::Batch {
                    axis.insert("size".to_owned(), size);
                }
                if let Some(um) = a.voxel_um {
                    axis.insert("unit".to_owned(), json!("micrometer"));
                    axis.insert("scale".to_owned(), json!(um));
                }
                if a.halo > 0 && kind == "output" {
                    axis.insert("halo".to_owned(), json!(a.halo));
                }
                Value::Object(axis)
            })
            .collect(),
    );
    entry.insert("data".to_owned(), json!({"type": spec.dtype}));
    if !spec.processing.is_empty() {
        let steps: Vec<Value> = spec.processing.iter().map(step_entry).collect();
        let key = if kind == "input" { "preprocessing" } else { "postprocessing" };
        entry.insert(key.to_owned(), json!(steps));
    }
    if !test.is_null() {
        entry.insert("test_tensor".to_owned(), test);
    }
    Value::Object(entry)
}

/// A step as 0.5 writes it: single per-channel parameters as plain numbers, statistics over space.
fn step_entry(step: &Processing) -> Value {
    let one = |values: &[f64]| if let [v] = values { json!(v) } else { json!(values) };
    let axes = json!(["channel", "z", "y", "x"]);
    match step {
        Processing::Binarize { threshold } => json!({"id": "binarize", "kwargs": {"threshold": one(threshold)}}),
        Processing::Clip { min, max } => json!({"id": "clip", "kwargs": {"min": min, "max": max}}),
        Processing::EnsureDtype { dtype } => json!({"id": "ensure_dtype", "kwargs": {"dtype": dtype}}),
        Processing::ScaleLinear { gain, offset } => {
            json!({"id": "scale_linear", "kwargs": {"gain": one(gain), "offset": one(offset)}})
        }
        Processing::ScaleRange { min_percentile, max_percentile, eps } => json!({"id": "scale_range", "kwargs": {
            "axes": axes, "min_percentile": min_percentile, "max_percentile": max_percentile, "eps": eps}}),
        Processing::ZeroMeanUnitVariance { eps } => {
            json!({"id": "zero_mean_unit_variance", "kwargs": {"axes": axes, "eps": eps}})
        }
        Processing::FixedZeroMeanUnitVariance { mean, std } => {
            json!({"id": "fixed_zero_mean_unit_variance", "kwargs": {"mean": one(mean), "std": one(std)}})
        }
        Processing::ScaleMeanVariance { eps } => {
            json!({"id": "scale_mean_variance", "kwargs": {"axes": axes, "eps": eps}})
        }
        Processing::Sigmoid => json!({"id": "sigmoid"}),
        Processing::Softmax => json!({"id": "softmax"}),
    }
}

fn is_zip(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("zip"))
}

/// Checks, before any work is done, that a package may be written to a path.
///
/// # Errors
/// [`StorageError`] if the path is an input, or holds something that this program did not write and `overwrite` does not allow
/// to replace.
pub fn check_destination(path: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), StorageError> {
    if !is_zip(path) {
        return folder::check_finished(path, PACKAGE_KIND, inputs, overwrite);
    }
    match target::check_file(path, inputs, overwrite) {
        Err(StorageError::Exists { .. }) if is_own_zip(path) => Ok(()),
        other => other,
    }
}

/// Whether a zip is a package that this program wrote and that holds nothing else.
fn is_own_zip(path: &Path) -> bool {
    let Some(mut archive) = open_regular(path).ok().and_then(|file| zip::ZipArchive::new(file).ok()) else {
        return false;
    };
    let mut names: Vec<String> = archive.file_names().flatten().map(|name| name.into_owned()).collect();
    let mut marker = Vec::new();
    let read = archive.by_name(MARKER).map(|entry| entry.take(MAX_RDF_BYTES).read_to_end(&mut marker));
    let manifest = Manifest::from_bytes(&marker).filter(|m| read.is_ok() && m.kind == PACKAGE_KIND);
    let Some(files) = manifest.and_then(|m| m.files) else { return false };
    let mut listed: Vec<String> = files.iter().map(|f| f.name.clone()).chain([MARKER.to_owned()]).collect();
    names.sort();
    listed.sort();
    names == listed && files.iter().all(|file| is_unchanged(&mut archive, file))
}

/// Whether an entry is of the recorded length and content; no more than the recorded length is read.
fn is_unchanged(archive: &mut zip::ZipArchive<std::fs::File>, file: &ManifestFile) -> bool {
    let mut bytes = Vec::new();
    let Ok(entry) = archive.by_name(&file.name) else { return false };
    let read = entry.take(file.bytes.saturating_add(1)).read_to_end(&mut bytes);
    read.is_ok() && bytes.len() as u64 == file.bytes && sha256_of_bytes(&bytes) == file.sha256
}

/// The bytes of a zip, which depend on the files alone. The marker goes last.
fn zip_bytes(files: &[(String, Vec<u8>)]) -> std::io::Result<Vec<u8>> {
    // Made in memory, where the files are already: a full disk then shows in one place.
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated)
        .last_modified_time(zip::DateTime::default());
    let marker = (MARKER.to_owned(), Manifest::finished(PACKAGE_KIND, files).to_bytes());
    for (name, bytes) in files.iter().chain([&marker]) {
        zip.start_file(name.as_str(), options)?;
        zip.write_all(bytes)?;
    }
    Ok(zip.finish()?.into_inner())
}
