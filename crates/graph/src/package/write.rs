//! Writing a bioimage.io 0.5 package.

use super::files::sha256;
use super::{AxisKind, AxisSize, FLOAT_WEIGHTS, PackageError, Processing, TensorSpec, Tolerance};
use crate::{EXPORT_OPSET, Graph, Tensor, npy};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;

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
    /// Writes a folder, or a zip where the path ends in `.zip`: beside the target first, then renamed.
    ///
    /// # Errors
    /// [`PackageError`] if the graph has no ONNX form, a name breaks the specification, or a file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), PackageError> {
        let files = self.files(path)?;
        let beside = path.with_file_name(format!(
            ".{}.partial-{}",
            path.file_name().map_or_else(|| "package".into(), |n| n.to_string_lossy().into_owned()),
            std::process::id()
        ));
        let io = |e| PackageError::io(path, e);
        let result = if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("zip")) {
            write_zip(&beside, &files).map_err(io)
        } else {
            write_folder(&beside, &files).map_err(io)
        };
        let result = result.and_then(|()| {
            if path.is_dir() && beside.is_dir() {
                // A folder cannot be renamed over another: the old one goes aside first.
                let old = beside.with_extension("old");
                std::fs::rename(path, &old).map_err(io)?;
                std::fs::rename(&beside, path).map_err(io)?;
                std::fs::remove_dir_all(&old).map_err(io)
            } else {
                std::fs::rename(&beside, path).map_err(io)
            }
        });
        if result.is_err() {
            let _ = if beside.is_dir() { std::fs::remove_dir_all(&beside) } else { std::fs::remove_file(&beside) };
        }
        result
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

fn write_folder(path: &Path, files: &[(String, Vec<u8>)]) -> std::io::Result<()> {
    std::fs::create_dir_all(path)?;
    for (name, bytes) in files {
        let mut file = std::fs::File::create(path.join(name))?;
        file.write_all(bytes)?;
        file.sync_all()?;
    }
    Ok(())
}

/// A zip whose bytes depend on the files alone.
fn write_zip(path: &Path, files: &[(String, Vec<u8>)]) -> std::io::Result<()> {
    // Made in memory, where the files are already: a full disk then shows in one place.
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated)
        .last_modified_time(zip::DateTime::default());
    for (name, bytes) in files {
        zip.start_file(name.as_str(), options)?;
        zip.write_all(bytes)?;
    }
    let bytes = zip.finish()?.into_inner();
    let mut file = std::fs::File::create(path)?;
    file.write_all(&bytes)?;
    file.sync_all()
}
