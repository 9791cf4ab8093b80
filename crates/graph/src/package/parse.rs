//! The description of a package, specification 0.4 and 0.5.

use super::{AxisKind, AxisSize, AxisSpec, FileRef, PackageError, Processing, TensorSpec};
use serde_json::Value;
use std::path::Path;

/// What a description says.
pub(crate) struct Parsed {
    pub name: String,
    pub description: String,
    pub format_version: String,
    pub inputs: Vec<TensorSpec>,
    pub outputs: Vec<TensorSpec>,
    pub weights: FileRef,
}

/// Most axes of a tensor, tensors of a model and steps of a processing chain.
const MAX_ITEMS: usize = 64;

pub(crate) fn parse(path: &Path, rdf: &Value) -> Result<Parsed, PackageError> {
    let reader = Reader { path };
    let format_version = reader.text(rdf, "format_version")?;
    let old = format_version.starts_with("0.4") || format_version.starts_with("0.3");
    if !old && !format_version.starts_with("0.5") {
        return Err(PackageError::bad(path, "format_version", format!("is {format_version}: 0.4 and 0.5 are read")));
    }
    if rdf.get("type").and_then(Value::as_str).is_some_and(|t| t != "model") {
        return Err(PackageError::bad(path, "type", "is not model"));
    }
    let weights = reader.weights(rdf)?;
    let tensors = |key: &str, tests: &str| -> Result<Vec<TensorSpec>, PackageError> {
        let list = reader.list(rdf, key)?;
        let tests = rdf.get(tests).and_then(Value::as_array);
        list.iter()
            .enumerate()
            .map(|(i, t)| {
                let mut spec = if old { reader.tensor_04(t)? } else { reader.tensor_05(t)? };
                if old {
                    let source = tests.and_then(|t| t.get(i)).and_then(Value::as_str);
                    spec.test_tensor = source.map(|s| FileRef { source: s.to_owned(), sha256: None });
                }
                Ok(spec)
            })
            .collect()
    };
    Ok(Parsed {
        name: reader.text(rdf, "name")?,
        description: rdf.get("description").and_then(Value::as_str).unwrap_or_default().to_owned(),
        format_version,
        inputs: tensors("inputs", "test_inputs")?,
        outputs: tensors("outputs", "test_outputs")?,
        weights,
    })
}

struct Reader<'a> {
    path: &'a Path,
}

impl Reader<'_> {
    fn bad(&self, part: &str, problem: impl Into<String>) -> PackageError {
        PackageError::bad(self.path, part, problem)
    }

    fn text(&self, value: &Value, key: &str) -> Result<String, PackageError> {
        match value.get(key) {
            Some(Value::String(s)) => Ok(s.clone()),
            Some(Value::Number(n)) => Ok(n.to_string()),
            _ => Err(self.bad(key, "is missing")),
        }
    }

    fn list<'v>(&self, value: &'v Value, key: &str) -> Result<&'v [Value], PackageError> {
        match value.get(key).and_then(Value::as_array) {
            Some(list) if list.is_empty() => Err(self.bad(key, "is empty")),
            Some(list) if list.len() > MAX_ITEMS => {
                Err(self.bad(key, format!("has {} entries, more than {MAX_ITEMS}", list.len())))
            }
            Some(list) => Ok(list),
            None => Err(self.bad(key, "is missing or no list")),
        }
    }

    fn file(&self, value: &Value, part: &str) -> Result<FileRef, PackageError> {
        let source = match value {
            Value::String(s) => s.clone(),
            other => self.text(other, "source").map_err(|_| self.bad(part, "names no source file"))?,
        };
        let sha256 = value.get("sha256").and_then(Value::as_str).map(str::to_owned);
        Ok(FileRef { source, sha256 })
    }

    fn weights(&self, rdf: &Value) -> Result<FileRef, PackageError> {
        let weights = rdf.get("weights").and_then(Value::as_object).ok_or_else(|| self.bad("weights", "is missing"))?;
        match weights.get("onnx") {
            Some(onnx) if !onnx.is_null() => self.file(onnx, "weights.onnx"),
            _ => {
                let has: Vec<&str> = weights.iter().filter(|(_, v)| !v.is_null()).map(|(k, _)| k.as_str()).collect();
                let has = if has.is_empty() { "no".to_owned() } else { has.join(", ") };
                Err(PackageError::NoOnnxWeights { path: self.path.to_owned(), has })
            }
        }
    }

    fn tensor_05(&self, tensor: &Value) -> Result<TensorSpec, PackageError> {
        let id = tensor.get("id").and_then(Value::as_str).unwrap_or("tensor").to_owned();
        let axes = self.list(tensor, "axes")?.iter().map(|a| self.axis_05(&id, a)).collect::<Result<_, _>>()?;
        let data = tensor.get("data");
        let data = data.and_then(Value::as_array).and_then(|d| d.first()).or(data);
        let dtype = data.and_then(|d| d.get("type")).and_then(Value::as_str).unwrap_or("float32").to_owned();
        let steps = tensor.get("preprocessing").or_else(|| tensor.get("postprocessing"));
        let test_tensor = match tensor.get("test_tensor") {
            Some(v) if !v.is_null() => Some(self.file(v, "test_tensor")?),
            _ => None,
        };
        Ok(TensorSpec {
            description: tensor.get("description").and_then(Value::as_str).unwrap_or_default().to_owned(),
            processing: self.processing(&id, steps, "id")?,
            test_tensor,
            dtype,
            axes,
            id,
        })
    }

    fn axis_05(&self, tensor: &str, axis: &Value) -> Result<AxisSpec, PackageError> {
        let kind_name = self.text(axis, "type")?;
        let id = axis.get("id").and_then(Value::as_str).unwrap_or(&kind_name);
        let part = format!("{tensor}.{id}");
        let kind = match (kind_name.as_str(), id) {
            ("batch", _) => AxisKind::Batch,
            ("channel", _) => AxisKind::Channel,
            ("time", _) => AxisKind::Time,
            ("index", _) => AxisKind::Index,
            ("space", "z") => AxisKind::Z,
            ("space", "y") => AxisKind::Y,
            ("space", "x") => AxisKind::X,
            _ => return Err(self.bad(
                &part,
                format!(
                    "is an axis of type {kind_name} and id {id}: expected batch, channel, time, index, or space z, y, x"
                ),
            )),
        };
        let channel_names: Vec<String> = axis
            .get("channel_names")
            .and_then(Value::as_array)
            .map(|l| l.iter().take(MAX_ITEMS).filter_map(Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default();
        let size = match (kind, axis.get("size")) {
            (AxisKind::Channel, None) => AxisSize::Fixed(channel_names.len().max(1)),
            (AxisKind::Batch, None | Some(Value::Null)) => AxisSize::Step { min: 1, step: 1 },
            (_, Some(size)) => self.size(&part, size)?,
            (_, None) => AxisSize::Free,
        };
        let scale = axis.get("scale").and_then(Value::as_f64).unwrap_or(1.0);
        let voxel_um = axis.get("unit").and_then(Value::as_str).and_then(micrometres).map(|unit| unit * scale);
        if voxel_um.is_some_and(|v| !v.is_finite() || v <= 0.0) {
            return Err(self.bad(&part, format!("has a scale of {scale}")));
        }
        Ok(AxisSpec { kind, size, voxel_um, halo: index(axis.get("halo")).unwrap_or(0), channel_names })
    }

    fn size(&self, part: &str, size: &Value) -> Result<AxisSize, PackageError> {
        if let Some(n) = index(Some(size)) {
            return Ok(AxisSize::Fixed(n));
        }
        if let Some(min) = index(size.get("min")) {
            return Ok(match index(size.get("step")) {
                Some(step) => AxisSize::Step { min, step },
                None => AxisSize::Free,
            });
        }
        if let Some(tensor) = size.get("tensor_id").and_then(Value::as_str) {
            return Ok(AxisSize::Reference {
                tensor: tensor.to_owned(),
                axis: size.get("axis_id").and_then(Value::as_str).unwrap_or_default().to_owned(),
                scale: 1.0,
                offset: size.get("offset").and_then(Value::as_f64).unwrap_or(0.0),
            });
        }
        if size.get("max").is_some() {
            return Ok(AxisSize::Free);
        }
        Err(self.bad(part, format!("has a size of {size}: expected a number, min and step, or a reference")))
    }

    fn tensor_04(&self, tensor: &Value) -> Result<TensorSpec, PackageError> {
        let id = tensor.get("name").and_then(Value::as_str).unwrap_or("tensor").to_owned();
        let letters = self.text(tensor, "axes")?;
        if letters.len() > 8 {
            return Err(self.bad(&id, format!("has axes {letters}")));
        }
        let kinds: Vec<AxisKind> = letters
            .chars()
            .map(|c| {
                Ok(match c {
                    'b' => AxisKind::Batch,
                    'c' => AxisKind::Channel,
                    't' => AxisKind::Time,
                    'i' => AxisKind::Index,
                    'z' => AxisKind::Z,
                    'y' => AxisKind::Y,
                    'x' => AxisKind::X,
                    _ => return Err(self.bad(&id, format!("has axes {letters}: expected letters of bitczyx"))),
                })
            })
            .collect::<Result<_, _>>()?;
        let shape = tensor.get("shape").unwrap_or(&Value::Null);
        let entry = |list: Option<&Value>, i: usize| list.and_then(|l| l.get(i)).and_then(Value::as_f64);
        let halo = tensor.get("halo");
        let axes = kinds
            .iter()
            .enumerate()
            .map(|(i, kind)| {
                let size = if let Some(n) = shape.get(i).and_then(|v| index(Some(v))) {
                    AxisSize::Fixed(n)
                } else if let Some(min) = entry(shape.get("min"), i) {
                    AxisSize::Step { min: min as usize, step: entry(shape.get("step"), i).unwrap_or(0.0) as usize }
                } else if let Some(tensor) = shape.get("reference_tensor").and_then(Value::as_str) {
                    AxisSize::Reference {
                        tensor: tensor.to_owned(),
                        axis: String::new(),
                        scale: entry(shape.get("scale"), i).unwrap_or(1.0),
                        // 0.4 gives half the offset.
                        offset: 2.0 * entry(shape.get("offset"), i).unwrap_or(0.0),
                    }
                } else {
                    AxisSize::Free
                };
                AxisSpec {
                    kind: *kind,
                    size,
                    voxel_um: None,
                    halo: entry(halo, i).unwrap_or(0.0).max(0.0) as usize,
                    channel_names: Vec::new(),
                }
            })
            .collect();
        let steps = tensor.get("preprocessing").or_else(|| tensor.get("postprocessing"));
        Ok(TensorSpec {
            description: tensor.get("description").and_then(Value::as_str).unwrap_or_default().to_owned(),
            dtype: tensor.get("data_type").and_then(Value::as_str).unwrap_or("float32").to_owned(),
            processing: self.processing(&id, steps, "name")?,
            test_tensor: None,
            axes,
            id,
        })
    }

    fn processing(&self, tensor: &str, steps: Option<&Value>, key: &str) -> Result<Vec<Processing>, PackageError> {
        let Some(list) = steps.and_then(Value::as_array) else { return Ok(Vec::new()) };
        if list.len() > MAX_ITEMS {
            return Err(self.bad(tensor, "has too many processing steps"));
        }
        list.iter().map(|step| self.step(tensor, step, key)).collect()
    }

    fn step(&self, tensor: &str, step: &Value, key: &str) -> Result<Processing, PackageError> {
        let id = self.text(step, key)?;
        let none = Value::Null;
        let kwargs = step.get("kwargs").unwrap_or(&none);
        let part = format!("{tensor}.{id}");
        let number = |name: &str, default: Option<f64>| -> Result<f64, PackageError> {
            kwargs
                .get(name)
                .and_then(Value::as_f64)
                .or(default)
                .filter(|v| v.is_finite())
                .ok_or_else(|| self.bad(&part, format!("needs {name}")))
        };
        let numbers = |name: &str, default: Option<f64>| -> Result<Vec<f64>, PackageError> {
            match kwargs.get(name) {
                Some(Value::Array(list)) => list
                    .iter()
                    .map(|v| v.as_f64().filter(|v| v.is_finite()))
                    .collect::<Option<Vec<_>>>()
                    .filter(|l| !l.is_empty())
                    .ok_or_else(|| self.bad(&part, format!("has no numbers in {name}"))),
                _ => number(name, default).map(|v| vec![v]),
            }
        };
        if kwargs.get("mode").and_then(Value::as_str) == Some("per_dataset") {
            return Err(self.bad(&part, "asks for statistics over a data set: only those of one stack are supported"));
        }
        Ok(match id.as_str() {
            "binarize" => Processing::Binarize { threshold: numbers("threshold", None)? },
            "clip" => Processing::Clip {
                min: kwargs.get("min").and_then(Value::as_f64),
                max: kwargs.get("max").and_then(Value::as_f64),
            },
            "ensure_dtype" => Processing::EnsureDtype { dtype: self.text(kwargs, "dtype")? },
            "scale_linear" => {
                Processing::ScaleLinear { gain: numbers("gain", Some(1.0))?, offset: numbers("offset", Some(0.0))? }
            }
            "scale_range" => {
                let (low, high) = (number("min_percentile", Some(0.0))?, number("max_percentile", Some(100.0))?);
                if !(0.0..=100.0).contains(&low) || !(0.0..=100.0).contains(&high) || low >= high {
                    return Err(self.bad(&part, format!("has percentiles {low} and {high}")));
                }
                Processing::ScaleRange { min_percentile: low, max_percentile: high, eps: number("eps", Some(1e-6))? }
            }
            "zero_mean_unit_variance" if kwargs.get("mode").and_then(Value::as_str) == Some("fixed") => {
                Processing::FixedZeroMeanUnitVariance { mean: numbers("mean", None)?, std: numbers("std", None)? }
            }
            "zero_mean_unit_variance" => Processing::ZeroMeanUnitVariance { eps: number("eps", Some(1e-6))? },
            "fixed_zero_mean_unit_variance" => {
                Processing::FixedZeroMeanUnitVariance { mean: numbers("mean", None)?, std: numbers("std", None)? }
            }
            "scale_mean_variance" => Processing::ScaleMeanVariance { eps: number("eps", Some(1e-6))? },
            "sigmoid" => Processing::Sigmoid,
            "softmax" => Processing::Softmax,
            _ => {
                return Err(self.bad(
                    &part,
                    "is an unknown processing step: known are binarize, clip, ensure_dtype, scale_linear, scale_range, \
                     zero_mean_unit_variance, fixed_zero_mean_unit_variance, scale_mean_variance, sigmoid, softmax",
                ));
            }
        })
    }
}

fn index(value: Option<&Value>) -> Option<usize> {
    value?.as_u64().and_then(|v| usize::try_from(v).ok())
}

/// A length unit in µm.
fn micrometres(unit: &str) -> Option<f64> {
    Some(match unit {
        "micrometer" | "micron" | "um" | "µm" => 1.0,
        "nanometer" | "nm" => 1e-3,
        "millimeter" | "mm" => 1e3,
        "angstrom" => 1e-4,
        _ => return None,
    })
}
