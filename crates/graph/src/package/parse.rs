//! The description of a package, specification 0.4 and 0.5.

use super::{AxisKind, AxisSize, AxisSpec, FileRef, PackageError, Processing, TensorSpec};
use cytoscope_volume::{MAX_PLAUSIBLE_UM, MIN_PLAUSIBLE_UM};
use serde_json::Value;
use std::ops::RangeInclusive;
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
/// Lengths an axis may state, in voxels. Far beyond a network's patch; sums and multiples of two stay small numbers.
const LENGTHS: RangeInclusive<usize> = 1..=1 << 20;
/// Steps between lengths, and voxels cut from each end of an output: less than a patch.
const STEPS: RangeInclusive<usize> = 0..=1 << 16;
/// Most elements of a tensor at the least lengths of its axes, 1 GiB of floats: test inputs are made of that size.
const MAX_ELEMENTS: usize = 1 << 28;
/// Factors between axes of two tensors; 0 stands for an axis of a length of its own, as in `scale: [1, 0]`.
const SCALES: RangeInclusive<f64> = 0.0..=1024.0;
/// Voxels added to a scaled axis.
const OFFSETS: RangeInclusive<f64> = -65_536.0..=65_536.0;
/// Values images and thresholds can have: engines compute in 32-bit floats.
const VALUES: RangeInclusive<f64> = -(f32::MAX as f64)..=f32::MAX as f64;
/// Divisors: what 32-bit floats do not round to zero.
const DIVISORS: RangeInclusive<f64> = f32::MIN_POSITIVE as f64..=f32::MAX as f64;
/// What is added to a divisor against zero; the specification recommends 1e-6, and an image's units may be large.
const EPSILONS: RangeInclusive<f64> = f32::MIN_POSITIVE as f64..=1e6;

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

    /// A number that may be left out, but not be outside its range or anything else than a number.
    fn number(
        &self,
        part: &str,
        from: &Value,
        key: &str,
        range: &RangeInclusive<f64>,
    ) -> Result<Option<f64>, PackageError> {
        from.get(key).filter(|v| !v.is_null()).map(|v| self.in_range(part, key, v, range)).transpose()
    }

    fn in_range(&self, part: &str, key: &str, value: &Value, range: &RangeInclusive<f64>) -> Result<f64, PackageError> {
        value.as_f64().filter(|v| range.contains(v)).ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            self.bad(part, format!("has {key} {}: expected a number from {low:e} to {high:e}", shown(value)))
        })
    }

    /// A count that may be left out, but not be outside its range or anything else than a whole number.
    fn count(
        &self,
        part: &str,
        from: &Value,
        key: &str,
        range: &RangeInclusive<usize>,
    ) -> Result<Option<usize>, PackageError> {
        from.get(key).filter(|v| !v.is_null()).map(|v| self.whole(part, key, v, range)).transpose()
    }

    fn whole(
        &self,
        part: &str,
        key: &str,
        value: &Value,
        range: &RangeInclusive<usize>,
    ) -> Result<usize, PackageError> {
        // 0.4 descriptions write some counts as floats.
        let whole =
            value.as_f64().filter(|v| v.fract() == 0.0 && (*range.start() as f64..=*range.end() as f64).contains(v));
        whole.map(|v| v as usize).ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            self.bad(part, format!("has {key} {}: expected a whole number from {low} to {high}", shown(value)))
        })
    }

    /// Refuses tensors that take too much memory even at their least size.
    fn check_elements(&self, id: &str, axes: &[AxisSpec]) -> Result<(), PackageError> {
        let least = axes.iter().map(|axis| match axis.size {
            AxisSize::Fixed(n) | AxisSize::Step { min: n, .. } => n,
            AxisSize::Reference { .. } | AxisSize::Free => 1,
        });
        match least.into_iter().try_fold(1usize, usize::checked_mul) {
            Some(n) if n <= MAX_ELEMENTS => Ok(()),
            _ => Err(self.bad(id, format!("has more than the limit of {MAX_ELEMENTS} elements at its least size"))),
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
        let axes: Vec<AxisSpec> =
            self.list(tensor, "axes")?.iter().map(|a| self.axis_05(&id, a)).collect::<Result<_, _>>()?;
        self.check_elements(&id, &axes)?;
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
        let scale = self.number(&part, axis, "scale", &DIVISORS)?.unwrap_or(1.0);
        let voxel_um = axis.get("unit").and_then(Value::as_str).and_then(micrometres).map(|unit| unit * scale);
        if let Some(um) = voxel_um.filter(|um| !(MIN_PLAUSIBLE_UM..=MAX_PLAUSIBLE_UM).contains(um)) {
            let range = format!("expected {MIN_PLAUSIBLE_UM} to {MAX_PLAUSIBLE_UM} µm");
            return Err(self.bad(&part, format!("has scale {scale}, which makes voxels of {um} µm: {range}")));
        }
        let halo = self.count(&part, axis, "halo", &STEPS)?.unwrap_or(0);
        Ok(AxisSpec { kind, size, voxel_um, halo, channel_names })
    }

    fn size(&self, part: &str, size: &Value) -> Result<AxisSize, PackageError> {
        if size.is_number() {
            return self.whole(part, "size", size, &LENGTHS).map(AxisSize::Fixed);
        }
        if let Some(min) = self.count(part, size, "min", &LENGTHS)? {
            return Ok(match self.count(part, size, "step", &STEPS)? {
                Some(step) => AxisSize::Step { min, step },
                None => AxisSize::Free,
            });
        }
        if let Some(tensor) = size.get("tensor_id").and_then(Value::as_str) {
            return Ok(AxisSize::Reference {
                tensor: tensor.to_owned(),
                axis: size.get("axis_id").and_then(Value::as_str).unwrap_or_default().to_owned(),
                scale: 1.0,
                offset: self.number(part, size, "offset", &OFFSETS)?.unwrap_or(0.0),
            });
        }
        if size.get("max").is_some() {
            return Ok(AxisSize::Free);
        }
        let expected = "expected a number, min and step, or a reference";
        Err(self.bad(part, format!("has a size of {}: {expected}", shown(size))))
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
        // Entry `i` of the list under a key; null and what lies past its end are left out.
        let entry =
            |from: &Value, key: &str, i: usize| from.get(key).and_then(|l| l.get(i)).filter(|v| !v.is_null()).cloned();
        let count = |from: &Value, key: &str, i: usize, range: &RangeInclusive<usize>| {
            entry(from, key, i).map(|v| self.whole(&id, key, &v, range)).transpose()
        };
        let number = |from: &Value, key: &str, i: usize, range: &RangeInclusive<f64>| {
            entry(from, key, i).map(|v| self.in_range(&id, key, &v, range)).transpose()
        };
        let axis = |(i, kind): (usize, &AxisKind)| -> Result<AxisSpec, PackageError> {
            let size = if let Some(n) = count(tensor, "shape", i, &LENGTHS)? {
                AxisSize::Fixed(n)
            } else if let Some(min) = count(shape, "min", i, &LENGTHS)? {
                AxisSize::Step { min, step: count(shape, "step", i, &STEPS)?.unwrap_or(0) }
            } else if let Some(reference) = shape.get("reference_tensor").and_then(Value::as_str) {
                AxisSize::Reference {
                    tensor: reference.to_owned(),
                    axis: String::new(),
                    scale: number(shape, "scale", i, &SCALES)?.unwrap_or(1.0),
                    // 0.4 gives half the offset.
                    offset: 2.0 * number(shape, "offset", i, &OFFSETS)?.unwrap_or(0.0),
                }
            } else {
                AxisSize::Free
            };
            let halo = count(tensor, "halo", i, &STEPS)?.unwrap_or(0);
            Ok(AxisSpec { kind: *kind, size, voxel_um: None, halo, channel_names: Vec::new() })
        };
        let axes: Vec<AxisSpec> = kinds.iter().enumerate().map(axis).collect::<Result<_, _>>()?;
        self.check_elements(&id, &axes)?;
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
        let number = |name: &str, default: Option<f64>, range: &RangeInclusive<f64>| -> Result<f64, PackageError> {
            self.number(&part, kwargs, name, range)?.or(default).ok_or_else(|| self.bad(&part, format!("needs {name}")))
        };
        let numbers =
            |name: &str, default: Option<f64>, range: &RangeInclusive<f64>| -> Result<Vec<f64>, PackageError> {
                match kwargs.get(name) {
                    Some(Value::Array(list)) if list.is_empty() => {
                        Err(self.bad(&part, format!("has no numbers in {name}")))
                    }
                    Some(Value::Array(list)) => list.iter().map(|v| self.in_range(&part, name, v, range)).collect(),
                    _ => number(name, default, range).map(|v| vec![v]),
                }
            };
        if kwargs.get("mode").and_then(Value::as_str) == Some("per_dataset") {
            return Err(self.bad(&part, "asks for statistics over a data set: only those of one stack are supported"));
        }
        Ok(match id.as_str() {
            "binarize" => Processing::Binarize { threshold: numbers("threshold", None, &VALUES)? },
            "clip" => {
                let bound = |name: &str| self.number(&part, kwargs, name, &VALUES);
                let (min, max) = (bound("min")?, bound("max")?);
                if let (Some(low), Some(high)) = (min, max)
                    && low > high
                {
                    return Err(self.bad(&part, format!("has min {low} above max {high}")));
                }
                Processing::Clip { min, max }
            }
            "ensure_dtype" => Processing::EnsureDtype { dtype: self.text(kwargs, "dtype")? },
            "scale_linear" => Processing::ScaleLinear {
                gain: numbers("gain", Some(1.0), &VALUES)?,
                offset: numbers("offset", Some(0.0), &VALUES)?,
            },
            "scale_range" => {
                let (low, high) = (
                    number("min_percentile", Some(0.0), &(0.0..=100.0))?,
                    number("max_percentile", Some(100.0), &(0.0..=100.0))?,
                );
                if low >= high {
                    return Err(self.bad(&part, format!("has percentiles {low} and {high}")));
                }
                Processing::ScaleRange {
                    min_percentile: low,
                    max_percentile: high,
                    eps: number("eps", Some(1e-6), &EPSILONS)?,
                }
            }
            "zero_mean_unit_variance" if kwargs.get("mode").and_then(Value::as_str) == Some("fixed") => {
                Processing::FixedZeroMeanUnitVariance {
                    mean: numbers("mean", None, &VALUES)?,
                    std: numbers("std", None, &DIVISORS)?,
                }
            }
            "zero_mean_unit_variance" => {
                Processing::ZeroMeanUnitVariance { eps: number("eps", Some(1e-6), &EPSILONS)? }
            }
            "fixed_zero_mean_unit_variance" => Processing::FixedZeroMeanUnitVariance {
                mean: numbers("mean", None, &VALUES)?,
                std: numbers("std", None, &DIVISORS)?,
            },
            "scale_mean_variance" => Processing::ScaleMeanVariance { eps: number("eps", Some(1e-6), &EPSILONS)? },
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

/// A value as a message quotes it: its first characters.
fn shown(value: &Value) -> String {
    const MOST: usize = 60;
    let text = match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(map) => format!("a mapping of {}", map.len()),
        Value::String(text) => format!("{:?}", text.chars().take(MOST + 1).collect::<String>()),
        other => other.to_string(),
    };
    if text.chars().count() > MOST + 2 { text.chars().take(MOST).chain(['…']).collect() } else { text }
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
