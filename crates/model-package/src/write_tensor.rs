//! Writing of input and output descriptions, specification 0.5.

use super::{AxisKind, AxisSize, AxisSpec, Processing, StatisticsAxes, TensorSpec, TensorType};
use cytoscope_graph::{Dim, Graph, Tensor, ValueId};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Maximum length of a tensor id in characters, by the specification.
const MAX_ID: usize = 32;
/// Maximum length of a tensor description in characters, by the specification.
const MAX_DESCRIPTION: usize = 128;
/// Words that the specification does not allow as ids: Python's keywords in lower case.
const KEYWORDS: [&str; 32] = [
    "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif", "else", "except",
    "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise",
    "return", "try", "while", "with", "yield",
];

/// Whether a tensor is an input or an output of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorRole {
    Input,
    Output,
}

impl TensorRole {
    /// Returns the word in the names of test tensors' files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

/// A tensor to be described.
pub(super) struct Entry<'a> {
    /// Description of the tensor: axes, element type and processing steps.
    pub spec: &'a TensorSpec,
    /// Id of the tensor in the description.
    pub id: String,
    /// Input or output of the network that the tensor is for.
    pub value: Option<ValueId>,
    /// Test tensor, whose shape gives lengths that nothing else states.
    pub test: Option<&'a Tensor>,
}

impl Entry<'_> {
    /// Returns the length of axis `at` in the test tensor.
    fn test_length(&self, at: usize) -> Option<usize> {
        self.test?.shape().get(at).copied()
    }

    /// Returns the position of the axis of the given kind.
    fn position(&self, kind: AxisKind) -> Option<usize> {
        self.spec.axes.iter().position(|a| a.kind == kind)
    }

    /// Returns the voxel size along axis `at` in µm, as the description states it.
    ///
    /// bioimageio.spec computes a length that refers to this axis as length · scale / scale, and refuses test tensors of other
    /// lengths. With a scale of 0.1, it expects 24.000000000000004 instead of 24. Such a scale is rounded to 32 bits, for
    /// which the result is exact.
    fn stated_um(&self, at: usize) -> Option<f64> {
        let um = self.spec.axes.get(at)?.voxel_um?;
        let is_exact = |length: usize| length as f64 * um / um == length as f64;
        Some(if self.test_length(at).is_none_or(is_exact) { um } else { f64::from(um as f32) })
    }
}

/// All tensors of a package; their descriptions depend on each other.
pub(super) struct Tensors<'a> {
    /// The network, in which some lengths may be fixed.
    pub graph: &'a Graph,
    /// In the order of the network's inputs.
    pub inputs: Vec<Entry<'a>>,
    /// In the order of the network's outputs.
    pub outputs: Vec<Entry<'a>>,
}

impl<'a> Tensors<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        inputs: (&'a [TensorSpec], &'a [Tensor]),
        outputs: (&'a [TensorSpec], &'a [Tensor]),
    ) -> Self {
        let mut used_ids = BTreeSet::new();
        let mut entries = |(specs, tests): (&'a [TensorSpec], &'a [Tensor]), values: &[ValueId]| -> Vec<Entry<'a>> {
            let of = |(i, spec): (usize, &'a TensorSpec)| Entry {
                spec,
                id: tensor_id(&spec.id, &mut used_ids),
                value: values.get(i).copied(),
                test: tests.get(i),
            };
            specs.iter().enumerate().map(of).collect()
        };
        let inputs = entries(inputs, &graph.inputs);
        let outputs = entries(outputs, &graph.outputs);
        Self { graph, inputs, outputs }
    }

    /// Finds a tensor by the id in its [`TensorSpec`].
    fn named(&self, id: &str) -> Option<&Entry<'a>> {
        self.inputs.iter().chain(&self.outputs).find(|e| e.spec.id == id)
    }

    /// Returns the length of an axis if the network fixes it.
    fn fixed_by_network(&self, entry: &Entry<'_>, at: usize) -> Option<usize> {
        self.graph.value(entry.value?).shape.as_ref()?.get(at).and_then(Dim::fixed)
    }

    /// Returns the description of a tensor; `test` describes the file of its test tensor.
    pub(super) fn describe(&self, entry: &Entry<'_>, role: TensorRole, test: Option<Value>) -> Value {
        let spec = entry.spec;
        let mut out = Map::new();
        out.insert("id".to_owned(), json!(entry.id));
        let description: String = spec.description.chars().take(MAX_DESCRIPTION).collect();
        out.insert("description".to_owned(), json!(description));
        let axes: Vec<Value> =
            spec.axes.iter().enumerate().map(|(at, axis)| self.axis(entry, at, axis, role)).collect();
        out.insert("axes".to_owned(), json!(axes));
        let data = if spec.dtype == TensorType::Bool {
            json!({"type": spec.dtype, "values": [false, true]})
        } else {
            json!({"type": spec.dtype})
        };
        out.insert("data".to_owned(), data);
        let steps: Vec<Value> = spec.processing.iter().filter_map(|step| self.step(spec, step)).collect();
        if !steps.is_empty() {
            let key = match role {
                TensorRole::Input => "preprocessing",
                TensorRole::Output => "postprocessing",
            };
            out.insert(key.to_owned(), json!(steps));
        }
        if let Some(test) = test {
            out.insert("test_tensor".to_owned(), test);
        }
        Value::Object(out)
    }

    fn axis(&self, entry: &Entry<'_>, at: usize, axis: &AxisSpec, role: TensorRole) -> Value {
        let mut out = Map::new();
        let kind = if axis.kind.is_space() { "space" } else { axis.kind.id() };
        out.insert("type".to_owned(), json!(kind));
        match axis.kind {
            AxisKind::Batch => {
                // Without a size, any batch size is allowed.
                if self.fixed_by_network(entry, at) == Some(1) || axis.size == AxisSize::Fixed(1) {
                    out.insert("size".to_owned(), json!(1));
                }
                return Value::Object(out);
            }
            AxisKind::Channel => {
                let names = if axis.channel_names.is_empty() {
                    (0..self.channels(entry, at, axis)).map(|i| format!("channel{i}")).collect()
                } else {
                    axis.channel_names.clone()
                };
                out.insert("channel_names".to_owned(), json!(names));
                return Value::Object(out);
            }
            AxisKind::Z | AxisKind::Y | AxisKind::X => _ = out.insert("id".to_owned(), json!(axis.kind.id())),
            AxisKind::Time | AxisKind::Index => {}
        }
        let (size, ratio) = match role {
            TensorRole::Input => self.input_size(entry, at, axis),
            TensorRole::Output => self.output_size(entry, at, axis),
        };
        let is_reference = size.get("tensor_id").is_some();
        // A length follows from the one it refers to and the scales of both axes, which therefore have the ratio of the lengths.
        let voxel_um = if is_reference { self.referenced_um(&size).map(|um| um / ratio) } else { entry.stated_um(at) };
        out.insert("size".to_owned(), size);
        if let Some(um) = voxel_um {
            out.insert("unit".to_owned(), json!("micrometer"));
            out.insert("scale".to_owned(), json!(um));
        } else if ratio != 1.0 && axis.kind != AxisKind::Index {
            out.insert("scale".to_owned(), json!(1.0 / ratio));
        }
        // The specification allows a halo only on axes whose size refers to another axis.
        if axis.halo > 0 && is_reference && role == TensorRole::Output {
            out.insert("halo".to_owned(), json!(axis.halo));
        }
        Value::Object(out)
    }

    /// Returns the voxel size in µm of the axis that a size refers to; `None` if the size refers to none, or the axis has none.
    fn referenced_um(&self, size: &Value) -> Option<f64> {
        let (tensor, axis) = (size.get("tensor_id")?.as_str()?, size.get("axis_id")?.as_str()?);
        let entry = self.inputs.iter().chain(&self.outputs).find(|entry| entry.id == tensor)?;
        entry.stated_um(entry.spec.axes.iter().position(|other| other.kind.id() == axis)?)
    }

    fn channels(&self, entry: &Entry<'_>, at: usize, axis: &AxisSpec) -> usize {
        let described = if let AxisSize::Fixed(n) = axis.size { Some(n) } else { None };
        entry.test_length(at).or_else(|| self.fixed_by_network(entry, at)).or(described).unwrap_or(1)
    }

    /// Returns the size of an input axis, and the ratio of its length to the axis it refers to.
    fn input_size(&self, entry: &Entry<'_>, at: usize, axis: &AxisSpec) -> (Value, f64) {
        match &axis.size {
            AxisSize::Fixed(n) | AxisSize::Step { min: n, step: 0 } => (json!(n), 1.0),
            AxisSize::Step { min, step } => match self.fixed_by_network(entry, at) {
                Some(n) => (json!(n), 1.0),
                None => (json!({"min": min, "step": step}), 1.0),
            },
            AxisSize::Reference { tensor, axis, scale, offset } => self.reference(tensor, axis, *scale, *offset),
            AxisSize::Free => (json!({"min": entry.test_length(at).unwrap_or(1), "step": 1}), 1.0),
        }
    }

    /// Returns the size of an output axis, and the ratio of its length to the axis it refers to.
    fn output_size(&self, entry: &Entry<'_>, at: usize, axis: &AxisSpec) -> (Value, f64) {
        let like_input = || {
            let input = self.inputs.first()?;
            let same = input.position(axis.kind)?;
            Some((input, same))
        };
        match &axis.size {
            AxisSize::Reference { tensor, axis, scale, offset } if *scale > 0.0 => {
                self.reference(tensor, axis, *scale, *offset)
            }
            // A new axis, as 0.4 describes it.
            AxisSize::Reference { offset, .. } => (json!((*offset).max(1.0) as usize), 1.0),
            AxisSize::Fixed(n) => {
                let input = like_input().filter(|_| axis.halo > 0);
                let fixed = input.and_then(|(input, same)| {
                    let AxisSize::Fixed(of) = input.spec.axes.get(same)?.size else { return None };
                    Some(json!({"tensor_id": input.id, "axis_id": axis.kind.id(), "offset": *n as i64 - of as i64}))
                });
                (fixed.unwrap_or_else(|| json!(n)), 1.0)
            }
            AxisSize::Step { .. } | AxisSize::Free if axis.kind == AxisKind::Index => {
                (json!({"min": 1, "max": null}), 1.0)
            }
            AxisSize::Step { .. } | AxisSize::Free => {
                let Some((input, same)) = like_input() else { return (json!(entry.test_length(at).unwrap_or(1)), 1.0) };
                if let Some(n) = self.fixed_by_network(entry, at) {
                    return (json!(n), 1.0);
                }
                let (ratio, offset) = length_relation(input.test_length(same), entry.test_length(at));
                (json!({"tensor_id": input.id, "axis_id": axis.kind.id(), "offset": offset}), ratio)
            }
        }
    }

    fn reference(&self, tensor: &str, axis: &str, scale: f64, offset: f64) -> (Value, f64) {
        let id = self.named(tensor).map_or(tensor, |e| e.id.as_str());
        (json!({"tensor_id": id, "axis_id": axis, "offset": offset as i64}), scale)
    }

    /// Returns the description of a step; `None` for a step without effect, which the specification does not allow.
    fn step(&self, spec: &TensorSpec, step: &Processing) -> Option<Value> {
        let mut kwargs = Map::new();
        let mut set = |key: &str, value: Value| _ = kwargs.insert(key.to_owned(), value);
        let id = match step {
            Processing::Binarize { threshold } => {
                set("threshold", one_or_all(threshold));
                if threshold.len() > 1 {
                    set("axis", json!(AxisKind::Channel.id()));
                }
                "binarize"
            }
            Processing::Clip { min, max } => {
                min.iter().for_each(|v| set("min", json!(v)));
                max.iter().for_each(|v| set("max", json!(v)));
                "clip"
            }
            Processing::ClipPercentiles { min_percentile, max_percentile, axes } => {
                min_percentile.iter().for_each(|v| set("min_percentile", json!(v)));
                max_percentile.iter().for_each(|v| set("max_percentile", json!(v)));
                set("axes", statistics_axes(spec, *axes));
                "clip"
            }
            Processing::EnsureDtype { dtype } => {
                set("dtype", json!(dtype));
                "ensure_dtype"
            }
            Processing::ScaleLinear { gain, offset } => {
                if gain.iter().all(|v| *v == 1.0) && offset.iter().all(|v| *v == 0.0) {
                    return None;
                }
                set("gain", one_or_all(gain));
                set("offset", one_or_all(offset));
                if gain.len() > 1 || offset.len() > 1 {
                    set("axis", json!(AxisKind::Channel.id()));
                }
                "scale_linear"
            }
            Processing::ScaleRange { min_percentile, max_percentile, eps, axes, reference_tensor } => {
                set("axes", statistics_axes(spec, *axes));
                set("min_percentile", json!(min_percentile));
                set("max_percentile", json!(max_percentile));
                set("eps", json!(eps));
                reference_tensor.iter().for_each(|name| set("reference_tensor", json!(self.id_for(name))));
                "scale_range"
            }
            Processing::ZeroMeanUnitVariance { eps, axes } => {
                set("axes", statistics_axes(spec, *axes));
                set("eps", json!(eps));
                "zero_mean_unit_variance"
            }
            Processing::FixedZeroMeanUnitVariance { mean, std } => {
                let channels = mean.len().max(std.len());
                if channels > 1 {
                    // The specification requires as many means as standard deviations.
                    let each = |values: &[f64]| -> Vec<f64> {
                        (0..channels).filter_map(|c| values.get(c).or(values.first()).copied()).collect()
                    };
                    set("mean", json!(each(mean)));
                    set("std", json!(each(std)));
                    set("axis", json!(AxisKind::Channel.id()));
                } else {
                    set("mean", one_or_all(mean));
                    set("std", one_or_all(std));
                }
                "fixed_zero_mean_unit_variance"
            }
            Processing::ScaleMeanVariance { eps, axes, reference_tensor } => {
                set("reference_tensor", json!(self.id_for(reference_tensor)));
                set("axes", statistics_axes(spec, *axes));
                set("eps", json!(eps));
                "scale_mean_variance"
            }
            Processing::Sigmoid => "sigmoid",
            Processing::Softmax => "softmax",
        };
        Some(if kwargs.is_empty() { json!({"id": id}) } else { json!({"id": id, "kwargs": kwargs}) })
    }

    fn id_for(&self, name: &str) -> String {
        self.named(name).map_or_else(|| name.to_owned(), |e| e.id.clone())
    }
}

/// Writes a single value as a number, several as a list.
fn one_or_all(values: &[f64]) -> Value {
    if let [v] = values { json!(v) } else { json!(values) }
}

/// Returns the ids of the axes that statistics are pooled over.
fn statistics_axes(spec: &TensorSpec, axes: StatisticsAxes) -> Value {
    let over = |kind: AxisKind| match kind {
        AxisKind::Batch => axes.batch,
        AxisKind::Channel => axes.channel,
        AxisKind::Z => !axes.by_slice,
        _ => true,
    };
    json!(spec.axes.iter().map(|a| a.kind).filter(|k| over(*k)).map(AxisKind::id).collect::<Vec<_>>())
}

/// Returns how an output length follows from an input length: a ratio if one is a multiple of the other, otherwise an
/// offset.
fn length_relation(input: Option<usize>, output: Option<usize>) -> (f64, i64) {
    match (input, output) {
        (Some(i), Some(o)) if i > 0 && o > 0 && (o % i == 0 || i % o == 0) => (o as f64 / i as f64, 0),
        (Some(i), Some(o)) => (1.0, o as i64 - i as i64),
        _ => (1.0, 0),
    }
}

/// Returns a lower-case id that is unique among the tensors.
fn tensor_id(name: &str, used_ids: &mut BTreeSet<String>) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let mut base: String = name.chars().map(plain).collect();
    if !base.starts_with(|c: char| c.is_ascii_lowercase()) {
        base.insert(0, 't');
    }
    if KEYWORDS.contains(&base.as_str()) {
        base.push('_');
    }
    base.truncate(MAX_ID);
    let mut id = base.clone();
    let mut n = 2;
    while !used_ids.insert(id.clone()) {
        let suffix = format!("_{n}");
        id = base.chars().take(MAX_ID - suffix.len()).chain(suffix.chars()).collect();
        n += 1;
    }
    id
}
