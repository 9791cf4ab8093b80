//! Parsing of package descriptions, specifications 0.4 and 0.5.

use super::parse_steps::StepsOf;
use super::{AxisKind, AxisSize, AxisSpec, FileRef, FormatVersion, PackageError, Processing, TensorSpec, TensorType};
use cytoscope_volume::{MAX_PLAUSIBLE_UM, MIN_PLAUSIBLE_UM};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

/// Content of a package description, parsed and checked.
pub(crate) struct Parsed {
    /// Display name of the model.
    pub name: String,
    /// Description of the model, in a sentence or more.
    pub description: String,
    /// Version of the specification as the description states it, such as `0.5.4`.
    pub format_version: String,
    /// Input tensors in the order of the description.
    pub inputs: Vec<TensorSpec>,
    /// Ids of the inputs that need not be given.
    pub optional_inputs: Vec<String>,
    /// Output tensors in the order of the description.
    pub outputs: Vec<TensorSpec>,
    /// The file of the weights, as the description states it.
    pub weights: Weights,
}

/// The weights that are used.
pub(crate) enum Weights {
    /// An ONNX file.
    Onnx {
        /// The file of the network.
        file: FileRef,
        /// The file of its external data, if the description states one.
        external: Option<FileRef>,
    },
    /// A PyTorch state dict, in packages without ONNX weights.
    StateDict {
        /// File that holds the tensors.
        file: FileRef,
        /// Name of the network's class or function.
        architecture: String,
        /// Arguments of its constructor, or null.
        kwargs: Value,
    },
}

/// Maximum number of axes of a tensor, tensors of a model and steps of a processing chain.
pub(super) const MAX_ITEMS: usize = 64;
/// Accepted axis lengths in voxels: patches are far smaller, and sums and products of two lengths cannot overflow.
const LENGTHS: RangeInclusive<usize> = 1..=1 << 20;
/// Accepted steps between lengths, and voxels cropped from each end of an output.
const STEPS: RangeInclusive<usize> = 0..=1 << 16;
/// Maximum number of elements of a tensor at its smallest size, 1 GiB of floats: test inputs are created at that size.
const MAX_ELEMENTS: usize = 1 << 28;
/// Accepted factors between axes of two tensors; 0 marks an axis whose length does not depend on the other tensor, as
/// in `scale: [1, 0]`.
const SCALES: RangeInclusive<f64> = 0.0..=1024.0;
/// Accepted offsets added to a scaled axis, in voxels.
const OFFSETS: RangeInclusive<f64> = -65_536.0..=65_536.0;
/// Accepted divisors: values that 32-bit floats do not round to zero.
pub(super) const DIVISORS: RangeInclusive<f64> = f32::MIN_POSITIVE as f64..=f32::MAX as f64;

pub(crate) fn parse(path: &Path, rdf: &Value) -> Result<Parsed, PackageError> {
    let reader = Reader { path };
    let format_version = reader.text(rdf, "format_version")?;
    let expected = || PackageError::bad(path, "format_version", format!("is {format_version}: expected 0.4 or 0.5"));
    let is_04 = FormatVersion::of(&format_version).ok_or_else(expected)? == FormatVersion::V04;
    if reader.optional_text("type", rdf, "type")?.is_some_and(|t| t != "model") {
        return Err(PackageError::bad(path, "type", "is not \"model\""));
    }
    let weights = reader.weights(rdf)?;
    let tensors = |key: &str, tests: &str| -> Result<Vec<ParsedTensor>, PackageError> {
        let list = reader.list(rdf, key)?;
        let tests = (tests, reader.optional_list(tests, rdf, tests)?);
        // Tensors without a name get the specification's default.
        let default_id = key.trim_end_matches('s');
        list.iter()
            .enumerate()
            .map(|(i, t)| {
                if !is_04 {
                    return reader.tensor_05(t, default_id);
                }
                let mut tensor = reader.tensor_04(t, default_id)?;
                let (key_of_tests, files) = tests;
                let file = files.get(i).filter(|file| !file.is_null());
                tensor.spec.test_tensor = file.map(|file| reader.file(file, key_of_tests)).transpose()?;
                if key == "inputs" && tensor.spec.dtype != TensorType::Float32 {
                    // In 0.4, networks take 32-bit floats, even if the description states another input type.
                    tensor.spec.processing.push(Processing::EnsureDtype { dtype: TensorType::Float32 });
                }
                Ok(tensor)
            })
            .collect()
    };
    let mut inputs = tensors("inputs", "test_inputs")?;
    let mut outputs = tensors("outputs", "test_outputs")?;
    if !is_04 {
        resolve_references(&mut inputs, &mut outputs);
    }
    outputs.iter().try_for_each(|output| reader.check_statistics_of_slices(&output.spec))?;
    let optional_inputs = if is_04 { Vec::new() } else { reader.optional_inputs(rdf, &inputs)? };
    let input_ids: Vec<String> = inputs.iter().map(|t| t.spec.id.clone()).collect();
    for tensor in inputs.iter_mut().chain(&mut outputs) {
        reader.check_reference_tensors(&mut tensor.spec, &input_ids)?;
    }
    Ok(Parsed {
        name: reader.text(rdf, "name")?,
        description: reader.optional_text("description", rdf, "description")?.unwrap_or_default(),
        format_version,
        inputs: inputs.into_iter().map(|t| t.spec).collect(),
        optional_inputs,
        outputs: outputs.into_iter().map(|t| t.spec).collect(),
        weights,
    })
}

/// Returns the decimal number that was rounded to a scale of 32 bits; other scales stay.
fn unrounded(scale: f64) -> f64 {
    let narrow = scale as f32;
    if f64::from(narrow) == scale { narrow.to_string().parse().unwrap_or(scale) } else { scale }
}

/// Completes references to lengths of other tensors: their scale becomes the ratio of the two axis scales, and their
/// axis id the default one of the axis kind.
fn resolve_references(inputs: &mut [ParsedTensor], outputs: &mut [ParsedTensor]) {
    let mut known: BTreeMap<(String, String), (AxisKind, f64)> = BTreeMap::new();
    for tensor in inputs.iter().chain(outputs.iter()) {
        for ((id, scale), axis) in tensor.axis_ids.iter().zip(&tensor.axis_scales).zip(&tensor.spec.axes) {
            known.insert((tensor.spec.id.clone(), id.clone()), (axis.kind, *scale));
        }
    }
    for tensor in inputs.iter_mut().chain(outputs) {
        for (own, axis) in tensor.axis_scales.iter().zip(&mut tensor.spec.axes) {
            if let AxisSize::Reference { tensor, axis, scale, .. } = &mut axis.size
                && let Some((kind, reference_scale)) = known.get(&(tensor.clone(), axis.clone()))
            {
                *scale = reference_scale / own;
                *axis = kind.id().to_owned();
            }
        }
    }
}

pub(super) struct Reader<'a> {
    path: &'a Path,
}

/// A tensor description with the ids and scales of its axes, which are needed only while parsing.
struct ParsedTensor {
    spec: TensorSpec,
    axis_ids: Vec<String>,
    axis_scales: Vec<f64>,
}

impl Reader<'_> {
    pub(super) fn bad(&self, part: &str, problem: impl Into<String>) -> PackageError {
        PackageError::bad(self.path, part, problem)
    }

    pub(super) fn text(&self, value: &Value, key: &str) -> Result<String, PackageError> {
        match value.get(key) {
            Some(Value::String(s)) => Ok(s.clone()),
            Some(Value::Number(n)) => Ok(n.to_string()),
            None | Some(Value::Null) => Err(self.bad(key, "is missing")),
            Some(other) => Err(self.bad(key, format!("is {}: expected a text", shown(other)))),
        }
    }

    /// Returns an optional text, or a number as text (YAML reads an unquoted name such as 488 as a number); any other
    /// type is an error.
    pub(super) fn optional_text(&self, part: &str, from: &Value, key: &str) -> Result<Option<String>, PackageError> {
        match from.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => self.word(part, key, value).map(Some),
        }
    }

    /// Returns the type of a tensor's elements, if it is stated; a name that the specification does not have is an error.
    fn tensor_type(&self, tensor: &str, from: &Value, key: &str) -> Result<Option<TensorType>, PackageError> {
        let Some(name) = self.optional_text(tensor, from, key)? else { return Ok(None) };
        TensorType::from_name(&name).map(Some).ok_or_else(|| self.bad(tensor, unknown_type(key, name)))
    }

    /// Returns a text, or a number as text.
    pub(super) fn word(&self, part: &str, key: &str, value: &Value) -> Result<String, PackageError> {
        match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            other => Err(self.bad(part, format!("has {key} {}: expected a text", shown(other)))),
        }
    }

    /// Returns an optional list, empty if it is absent; any other type is an error.
    fn optional_list<'v>(&self, part: &str, from: &'v Value, key: &str) -> Result<&'v [Value], PackageError> {
        match from.get(key) {
            None | Some(Value::Null) => Ok(&[]),
            Some(Value::Array(list)) => Ok(list),
            Some(other) => Err(self.bad(part, format!("has {key} {}: expected a list", shown(other)))),
        }
    }

    fn list<'v>(&self, value: &'v Value, key: &str) -> Result<&'v [Value], PackageError> {
        match value.get(key).and_then(Value::as_array) {
            Some(list) if list.is_empty() => Err(self.bad(key, "is empty")),
            Some(list) if list.len() > MAX_ITEMS => {
                Err(self.bad(key, format!("has {} entries, more than {MAX_ITEMS}", list.len())))
            }
            Some(list) => Ok(list),
            None => Err(self.bad(key, "is missing or not a list")),
        }
    }

    /// Returns an optional number; any other type or a number outside the range is an error.
    pub(super) fn number(
        &self,
        part: &str,
        from: &Value,
        key: &str,
        range: &RangeInclusive<f64>,
    ) -> Result<Option<f64>, PackageError> {
        from.get(key).filter(|v| !v.is_null()).map(|v| self.in_range(part, key, v, range)).transpose()
    }

    pub(super) fn in_range(
        &self,
        part: &str,
        key: &str,
        value: &Value,
        range: &RangeInclusive<f64>,
    ) -> Result<f64, PackageError> {
        value.as_f64().filter(|v| range.contains(v)).ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            self.bad(part, format!("has {key} {}: expected a number from {low:e} to {high:e}", shown(value)))
        })
    }

    /// Returns an optional integer; any other type or an integer outside the range is an error.
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

    /// Refuses steps that refer to a tensor other than an input. If no tensor is named, the first input is used.
    fn check_reference_tensors(&self, spec: &mut TensorSpec, inputs: &[String]) -> Result<(), PackageError> {
        for step in &mut spec.processing {
            if let (Processing::ScaleMeanVariance { reference_tensor, .. }, Some(first)) = (&mut *step, inputs.first())
                && reference_tensor.is_empty()
            {
                reference_tensor.clone_from(first);
            }
            if let Some(unknown) = step.reference_tensor().filter(|name| !inputs.iter().any(|i| i == name)) {
                let known = inputs.join(", ");
                return Err(self.bad(
                    &spec.id,
                    format!("refers to reference_tensor {}: expected an input ({known})", shown(&unknown.into())),
                ));
            }
        }
        Ok(())
    }

    /// Refuses tensors that need too much memory even at their smallest size.
    fn check_elements(&self, id: &str, axes: &[AxisSpec]) -> Result<(), PackageError> {
        let min_lengths = axes.iter().map(|axis| match axis.size {
            AxisSize::Fixed(n) | AxisSize::Step { min: n, .. } => n,
            AxisSize::Reference { .. } | AxisSize::Free => 1,
        });
        match min_lengths.into_iter().try_fold(1usize, usize::checked_mul) {
            Some(n) if n <= MAX_ELEMENTS => Ok(()),
            _ => Err(self.bad(id, format!("has more than the limit of {MAX_ELEMENTS} elements at its smallest size"))),
        }
    }

    /// Returns the ids of the inputs that the description calls optional.
    fn optional_inputs(&self, rdf: &Value, inputs: &[ParsedTensor]) -> Result<Vec<String>, PackageError> {
        let mut optional = Vec::new();
        for (entry, tensor) in self.list(rdf, "inputs")?.iter().zip(inputs) {
            let id = &tensor.spec.id;
            match entry.get("optional") {
                None | Some(Value::Null | Value::Bool(false)) => {}
                Some(Value::Bool(true)) => optional.push(id.clone()),
                Some(other) => {
                    return Err(self.bad(id, format!("has optional {}: expected true or false", shown(other))));
                }
            }
        }
        Ok(optional)
    }

    fn file(&self, value: &Value, part: &str) -> Result<FileRef, PackageError> {
        let source = match value {
            Value::String(s) => s.clone(),
            other => self.text(other, "source").map_err(|_| self.bad(part, "names no source file"))?,
        };
        let sha256 = self.optional_text(part, value, "sha256")?;
        Ok(FileRef { source, sha256 })
    }

    fn weights(&self, rdf: &Value) -> Result<Weights, PackageError> {
        let weights = rdf.get("weights").and_then(Value::as_object).ok_or_else(|| self.bad("weights", "is missing"))?;
        let of = |format: &str| weights.get(format).filter(|entry| !entry.is_null());
        if let Some(onnx) = of("onnx") {
            let file = self.file(onnx, "weights.onnx")?;
            let external = onnx.get("external_data").filter(|entry| !entry.is_null());
            let external = external.map(|entry| self.file(entry, "weights.onnx.external_data")).transpose()?;
            return Ok(Weights::Onnx { file, external });
        }
        if let Some(entry) = of("pytorch_state_dict") {
            return self.state_dict(entry);
        }
        let has: Vec<&str> = weights.iter().filter(|(_, v)| !v.is_null()).map(|(k, _)| k.as_str()).collect();
        let Some(&first) = has.first() else { return Err(self.bad("weights", "is empty")) };
        let advice = export_advice(if has.contains(&"torchscript") { "torchscript" } else { first });
        Err(PackageError::NoOnnxWeights { path: self.path.to_owned(), has: has.join(", "), advice: advice.into() })
    }

    /// Reads an entry of a PyTorch state dict: in 0.4, the architecture is a text `FILE:CLASS` or a path of modules; in
    /// 0.5, it is a mapping.
    fn state_dict(&self, entry: &Value) -> Result<Weights, PackageError> {
        let part = "weights.pytorch_state_dict";
        let file = self.file(entry, part)?;
        let architecture = entry.get("architecture").unwrap_or(&Value::Null);
        let (name, kwargs) = match architecture {
            Value::Object(_) => (self.optional_text(part, architecture, "callable")?, architecture.get("kwargs")),
            _ => (self.optional_text(part, entry, "architecture")?, entry.get("kwargs")),
        };
        let name = name.unwrap_or_default();
        let name = name.rsplit([':', '.']).next().unwrap_or_default().to_owned();
        Ok(Weights::StateDict { file, architecture: name, kwargs: kwargs.cloned().unwrap_or(Value::Null) })
    }

    fn tensor_05(&self, tensor: &Value, default_id: &str) -> Result<ParsedTensor, PackageError> {
        let id = self.optional_text(default_id, tensor, "id")?.unwrap_or_else(|| default_id.to_owned());
        let (mut axes, mut axis_ids, mut axis_scales) = (Vec::new(), Vec::new(), Vec::new());
        for entry in self.list(tensor, "axes")? {
            let (axis, axis_id, scale) = self.axis_05(&id, entry)?;
            axes.push(axis);
            axis_ids.push(axis_id);
            axis_scales.push(scale);
        }
        self.check_elements(&id, &axes)?;
        let data = tensor.get("data");
        let data = data.and_then(Value::as_array).and_then(|d| d.first()).or(data);
        // Nominal data, described by a list of its values, is uint8 unless a type is given.
        let is_nominal = data.is_some_and(|d| d.get("values").is_some());
        let default = if is_nominal { TensorType::Uint8 } else { TensorType::Float32 };
        let dtype = data.map(|data| self.tensor_type(&id, data, "type")).transpose()?.flatten();
        let steps = tensor.get("preprocessing").or_else(|| tensor.get("postprocessing"));
        let test_tensor = match tensor.get("test_tensor") {
            Some(v) if !v.is_null() => Some(self.file(v, "test_tensor")?),
            _ => None,
        };
        let spec = TensorSpec {
            description: self.optional_text(&id, tensor, "description")?.unwrap_or_default(),
            processing: self.processing(&StepsOf { tensor: &id, axes: &axes, ids: &axis_ids, key: "id" }, steps)?,
            test_tensor,
            dtype: dtype.unwrap_or(default),
            axes,
            id,
        };
        Ok(ParsedTensor { spec, axis_ids, axis_scales })
    }

    /// Returns the axis, its id and its scale.
    fn axis_05(&self, tensor: &str, axis: &Value) -> Result<(AxisSpec, String, f64), PackageError> {
        let kind_name = self.text(axis, "type")?;
        let default = if kind_name == "space" { AxisKind::X.id() } else { &kind_name };
        let stated_id = self.optional_text(tensor, axis, "id")?;
        let id = canonical_axis_id(stated_id.as_deref().unwrap_or(default));
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
        let names = self.optional_list(&part, axis, "channel_names")?;
        let channel_names: Vec<String> =
            names.iter().map(|name| self.word(&part, "channel_names", name)).collect::<Result<_, _>>()?;
        let size = match (kind, axis.get("size")) {
            (AxisKind::Channel, None) => AxisSize::Fixed(channel_names.len().max(1)),
            (AxisKind::Batch, None | Some(Value::Null)) => AxisSize::Step { min: 1, step: 1 },
            (_, Some(size)) => self.size(&part, size)?,
            (_, None) => AxisSize::Free,
        };
        let scale = self.number(&part, axis, "scale", &DIVISORS)?.unwrap_or(1.0);
        let unit = self.optional_text(&part, axis, "unit")?;
        let voxel_um = unit.as_deref().and_then(micrometers).map(|unit| unit * unrounded(scale));
        if let Some(um) = voxel_um.filter(|um| !(MIN_PLAUSIBLE_UM..=MAX_PLAUSIBLE_UM).contains(um)) {
            let range = format!("expected {MIN_PLAUSIBLE_UM} to {MAX_PLAUSIBLE_UM} µm");
            return Err(self.bad(&part, format!("has scale {scale}, which makes voxels of {um} µm: {range}")));
        }
        let halo = self.count(&part, axis, "halo", &STEPS)?.unwrap_or(0);
        Ok((AxisSpec { kind, size, voxel_um, halo, channel_names }, id.to_owned(), scale))
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
        let unknown = || {
            let expected = "expected a number, min and step, or tensor_id and axis_id";
            self.bad(part, format!("has a size of {}: {expected}", shown(size)))
        };
        if let Some(tensor) = self.optional_text(part, size, "tensor_id")? {
            let offset = self.number(part, size, "offset", &OFFSETS)?.unwrap_or(0.0);
            let axis = self.optional_text(part, size, "axis_id")?.ok_or_else(unknown)?;
            return Ok(AxisSize::Reference { tensor, axis: canonical_axis_id(&axis).to_owned(), scale: 1.0, offset });
        }
        if size.get("max").is_some() {
            return Ok(AxisSize::Free);
        }
        Err(unknown())
    }

    fn tensor_04(&self, tensor: &Value, default_id: &str) -> Result<ParsedTensor, PackageError> {
        let id = self.optional_text(default_id, tensor, "name")?.unwrap_or_else(|| default_id.to_owned());
        let letters = self.text(tensor, "axes")?;
        if letters.len() > 8 {
            return Err(self.bad(&id, format!("has axes {letters}: expected at most 8 letters")));
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
        self.check_lists_04(&id, tensor, shape)?;
        let reference = self.optional_text(&id, shape, "reference_tensor")?;
        // Returns entry `i` of the list at a key; `None` if it is null or past the end.
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
            } else if let Some(reference) = reference.as_deref() {
                // Either `tensor.axis`, or a tensor alone (`input.1`), which means its axis with the same letter.
                let parts = reference.rsplit_once('.').filter(|(_, axis)| AxisKind::of_id(axis).is_some());
                let (of, axis) = parts.unwrap_or((reference, kind.id()));
                // A null marks a new axis, which has only an offset.
                let is_new = shape.pointer(&format!("/scale/{i}")).is_some_and(Value::is_null);
                let usual = if is_new { 0.0 } else { 1.0 };
                AxisSize::Reference {
                    tensor: of.to_owned(),
                    axis: canonical_axis_id(axis).to_owned(),
                    scale: number(shape, "scale", i, &SCALES)?.unwrap_or(usual),
                    // 0.4 states half the offset.
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
        let axis_ids: Vec<String> = axes.iter().map(|a| a.kind.id().to_owned()).collect();
        let spec = TensorSpec {
            description: self.optional_text(&id, tensor, "description")?.unwrap_or_default(),
            dtype: self.tensor_type(&id, tensor, "data_type")?.unwrap_or(TensorType::Float32),
            processing: self.processing(&StepsOf { tensor: &id, axes: &axes, ids: &axis_ids, key: "name" }, steps)?,
            test_tensor: None,
            axes,
            id,
        };
        let axis_scales = vec![1.0; axis_ids.len()];
        Ok(ParsedTensor { spec, axis_ids, axis_scales })
    }

    /// Refuses a 0.4 tensor whose lengths or halo are not lists with one entry per axis; entries may be missing at the
    /// end.
    fn check_lists_04(&self, id: &str, tensor: &Value, shape: &Value) -> Result<(), PackageError> {
        for (from, key) in [(tensor, "halo"), (shape, "min"), (shape, "step"), (shape, "scale"), (shape, "offset")] {
            self.optional_list(id, from, key)?;
        }
        match shape {
            Value::Null | Value::Array(_) => Ok(()),
            shape if shape.get("min").is_some() || shape.get("reference_tensor").is_some() => Ok(()),
            other => {
                let expected = "expected a list, min and step, or reference_tensor";
                Err(self.bad(id, format!("has a shape of {}: {expected}", shown(other))))
            }
        }
    }
}

/// Returns how to export ONNX weights from weights of this format.
fn export_advice(format: &str) -> &'static str {
    if format.contains("keras") {
        "load the model in Python with tf.keras.models.load_model(FILE), and export it with \
         tf2onnx.convert.from_keras(model, output_path=\"model.onnx\")"
    } else if format == "tensorflow_js" {
        "convert the model with the Python package tf2onnx, which also reads models of TensorFlow.js"
    } else if format.contains("tensorflow") {
        "export the model in Python with tf2onnx (python -m tf2onnx.convert --saved-model FOLDER --output \
         model.onnx)"
    } else {
        "export the model in Python with torch.onnx.export(torch.jit.load(FILE), example_input, \"model.onnx\")"
    }
}

/// Returns the axis id of specification 0.5: 0.4 used single letters.
pub(super) fn canonical_axis_id(id: &str) -> &str {
    match id {
        "b" => "batch",
        "c" => "channel",
        "t" => "time",
        "i" => "index",
        other => other,
    }
}

/// Formats a value for a message, truncated.
pub(super) fn shown(value: &Value) -> String {
    const MAX_CHARS: usize = 60;
    let text = match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(map) => format!("a mapping of {}", map.len()),
        Value::String(text) => format!("{:?}", text.chars().take(MAX_CHARS + 1).collect::<String>()),
        other => other.to_string(),
    };
    if text.chars().count() > MAX_CHARS + 2 { text.chars().take(MAX_CHARS).chain(['…']).collect() } else { text }
}

/// Returns the problem with a type name that the specification does not define, as a predicate.
pub(super) fn unknown_type(key: &str, name: String) -> String {
    format!("has {key} {}: expected one of {}", shown(&name.into()), TensorType::names())
}

/// Returns a length unit in µm. Axes with other units, such as seconds and pixels, have no voxel size.
fn micrometers(unit: &str) -> Option<f64> {
    Some(match unit {
        "micrometer" | "micron" | "um" | "µm" => 1.0,
        "nanometer" | "nm" => 1e-3,
        "millimeter" | "mm" => 1e3,
        "angstrom" => 1e-4,
        _ => return None,
    })
}
