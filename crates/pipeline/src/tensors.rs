//! Pre- and postprocessing of whole tensors, for a package's self-test; [`crate::ops`] implements the steps.

use crate::JobError;
use crate::ops::{self, Reference, Statistics, Volume};
use crate::predict::postprocess::softmax_channels;
use cytoscope_graph::{ElementType, Graph, GraphError, Interrupt, Tensor};
use cytoscope_model_package::{AxisKind, Processing, TensorSpec};
use cytoscope_volume::Samples;
use std::convert::Infallible;
use std::ops::Range;

/// A tensor's values with the layout of its batch, channel and Z axes.
struct Values {
    values: Vec<f32>,
    /// Length and stride of the batch axis.
    batch: [usize; 2],
    /// Length and stride of the channel axis.
    channel: [usize; 2],
    /// Length and stride of the Z axis.
    slice: [usize; 2],
}

/// Some samples of a batch, and some slices of each.
#[derive(Debug, Clone)]
struct Extent {
    samples: Range<usize>,
    slices: Range<usize>,
}

/// All slices of a tensor of any depth.
const ALL_SLICES: Range<usize> = 0..usize::MAX;

impl Values {
    fn new(spec: &TensorSpec, tensor: &Tensor) -> Result<Self, String> {
        let shape = tensor.shape();
        if spec.axes.len() != shape.len() {
            let axes: Vec<&str> = spec.axes.iter().map(|a| a.kind.id()).collect();
            return Err(format!("tensor \"{}\" has shape {shape:?}, expected axes {}", spec.id, axes.join(", ")));
        }
        // A missing axis has length 1.
        let axis = |kind: AxisKind| {
            let at = spec.axes.iter().position(|a| a.kind == kind);
            at.and_then(|at| shape.get(at..)?.split_first()).map_or([1, 1], |(n, inner)| [*n, inner.iter().product()])
        };
        let values = match tensor.as_f32() {
            Some(values) => values.to_vec(),
            None => tensor.to_f64_vec().into_iter().map(|v| v as f32).collect(),
        };
        let (batch, channel, slice) = (axis(AxisKind::Batch), axis(AxisKind::Channel), axis(AxisKind::Z));
        Ok(Self { values, batch, channel, slice })
    }

    /// Returns the positions of the values of one channel of some batch samples and slices.
    fn positions(&self, of: &Extent, channel: usize) -> impl Iterator<Item = usize> + use<> {
        let Extent { samples, slices } = of.clone();
        let (batch, channels, depth) = (self.batch, self.channel, self.slice);
        let index = |i: usize, [length, stride]: [usize; 2]| i / stride.max(1) % length.max(1);
        (0..self.values.len()).filter(move |i| {
            samples.contains(&index(*i, batch)) && slices.contains(&index(*i, depth)) && index(*i, channels) == channel
        })
    }

    fn read(&self, of: &Extent, channel: usize) -> Vec<f32> {
        self.positions(of, channel).filter_map(|i| self.values.get(i).copied()).collect()
    }

    fn write(&mut self, of: &Extent, channel: usize, new: &[f32]) {
        for (i, v) in self.positions(of, channel).zip(new) {
            self.values.get_mut(i).into_iter().for_each(|old| *old = *v);
        }
    }

    fn softmax(&mut self) {
        let channels = self.channel[0];
        for sample in 0..self.batch[0] {
            let sample = Extent { samples: sample..sample + 1, slices: ALL_SLICES };
            let mut all: Vec<f32> = (0..channels).flat_map(|c| self.read(&sample, c)).collect();
            softmax_channels(&mut all, channels);
            let voxels = (all.len() / channels.max(1)).max(1);
            for (c, values) in all.chunks_exact(voxels).enumerate() {
                self.write(&sample, c, values);
            }
        }
    }
}

/// Some samples and slices of a tensor.
struct Part<'a> {
    of: &'a Values,
    extent: Extent,
}

impl Volume for Part<'_> {
    type Error = Infallible;

    fn channels(&self) -> usize {
        self.of.channel[0]
    }

    fn each(&mut self, channel: usize, f: &mut dyn FnMut(Samples)) -> Result<(), Infallible> {
        f(Samples::F32(self.of.read(&self.extent, channel)));
        Ok(())
    }
}

/// Returns the parts of a tensor that have statistics of their own in a step: samples or the whole batch, and slices or whole
/// stacks.
fn extents(step: &Processing, values: &Values) -> Vec<Extent> {
    let axes = step.statistics_axes().unwrap_or_default();
    let each = |count: usize| (0..count).map(|i| i..i + 1).collect::<Vec<Range<usize>>>();
    let samples: Vec<Range<usize>> =
        if axes.batch { std::iter::once(0..values.batch[0]).collect() } else { each(values.batch[0]) };
    let slices: Vec<Range<usize>> =
        if axes.by_slice { each(values.slice[0]) } else { std::iter::once(ALL_SLICES).collect() };
    let of_sample = |samples: &Range<usize>| {
        let extent = |slices: &Range<usize>| Extent { samples: samples.clone(), slices: slices.clone() };
        slices.iter().map(extent).collect::<Vec<Extent>>()
    };
    samples.iter().flat_map(of_sample).collect()
}

/// Returns why a step is refused that refers to the slices of a tensor with another number of them.
fn uneven_slices(step: &Processing, values: &Values, references: &[(&str, Values)]) -> Option<String> {
    let id = step.reference_tensor().filter(|_| step.has_statistics_of_slices())?;
    let (_, of) = references.iter().find(|(own, _)| *own == id)?;
    (of.slice[0] != values.slice[0])
        .then(|| format!("with statistics of the slices of \"{id}\", which has other slices,"))
}

/// Applies steps to values. Statistics are computed from `unprocessed` if given, else from the result of the preceding
/// steps.
fn process(
    steps: &[Processing],
    values: &mut Values,
    unprocessed: Option<&Values>,
    references: &[(&str, Values)],
) -> Result<(), String> {
    for step in steps {
        if *step == Processing::Softmax {
            values.softmax();
            continue;
        }
        if let Some(problem) = uneven_slices(step, values, references) {
            return Err(problem);
        }
        for extent in extents(step, values) {
            let mut parts: Vec<(&str, Part<'_>)> =
                references.iter().map(|(id, of)| (*id, Part { of, extent: extent.clone() })).collect();
            let mut references: Vec<Reference<'_, Infallible>> =
                parts.iter_mut().map(|(id, volume)| Reference { id, volume }).collect();
            let mut volume = Part { of: unprocessed.unwrap_or(values), extent: extent.clone() };
            let fixed = ops::resolve(std::slice::from_ref(step), &mut volume, Statistics::Current, &mut references);
            let Ok(chains) = fixed;
            for (channel, chain) in chains?.iter().enumerate() {
                let mut part = values.read(&extent, channel);
                ops::apply(chain, &mut part);
                values.write(&extent, channel, &part);
            }
        }
    }
    Ok(())
}

/// Returns the inputs before preprocessing, by id.
fn tensors_by_id<'a>(specs: &'a [TensorSpec], raw: &[Tensor]) -> Result<Vec<(&'a str, Values)>, String> {
    specs.iter().zip(raw).map(|(spec, tensor)| Ok((spec.id.as_str(), Values::new(spec, tensor)?))).collect()
}

fn with_type(tensor: Tensor, dtype: ElementType) -> Tensor {
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}

/// Returns the inputs of a network for the inputs of a package: preprocessed and cast to the types that the network
/// takes.
///
/// # Errors
/// [`JobError::Model`] if the axes of a tensor differ from its description, or a step is not supported. `of` names the
/// package.
pub(crate) fn preprocess(
    of: &str,
    specs: &[TensorSpec],
    graph: &Graph,
    raw: &[Tensor],
) -> Result<Vec<Tensor>, JobError> {
    let one = |spec: &TensorSpec, tensor: &Tensor, takes: Option<ElementType>| -> Result<Tensor, String> {
        let result = if spec.processing.is_empty() {
            tensor.clone()
        } else {
            let unprocessed = Values::new(spec, tensor)?;
            let mut values = Values::new(spec, tensor)?;
            process(&spec.processing, &mut values, Some(&unprocessed), &tensors_by_id(specs, raw)?)
                .map_err(|step| format!("preprocessing step {step} of \"{}\" is not supported", spec.id))?;
            Tensor::new(tensor.shape(), values.values).map_err(|e| e.to_string())?
        };
        Ok(takes.map_or(result.clone(), |dtype| with_type(result, dtype)))
    };
    let types = graph.inputs.iter().map(|id| graph.value(*id).dtype);
    let result = specs.iter().zip(raw).zip(types).map(|((spec, tensor), takes)| one(spec, tensor, takes));
    result.collect::<Result<Vec<_>, _>>().map_err(|problem| JobError::model(of, problem))
}

/// Applies a package's postprocessing to the outputs of its network; `raw` are the inputs before preprocessing.
///
/// # Errors
/// Same as [`preprocess`].
pub(crate) fn postprocess(
    of: &str,
    specs: &[TensorSpec],
    outputs: Vec<Tensor>,
    input_specs: &[TensorSpec],
    raw: &[Tensor],
) -> Result<Vec<Tensor>, JobError> {
    let one = |spec: &TensorSpec, tensor: Tensor| -> Result<Tensor, String> {
        let steps = spec.postprocessing();
        if steps.is_empty() {
            return Ok(tensor);
        }
        let mut values = Values::new(spec, &tensor)?;
        process(&steps, &mut values, None, &tensors_by_id(input_specs, raw)?)
            .map_err(|step| format!("postprocessing step {step} of \"{}\" is not supported", spec.id))?;
        let result = Tensor::new(tensor.shape(), values.values).map_err(|e| e.to_string())?;
        let described = spec.dtype.element_type();
        Ok(if described.is_float() { result } else { with_type(result, described) })
    };
    let result = specs.iter().zip(outputs).map(|(spec, tensor)| one(spec, tensor));
    result.collect::<Result<Vec<_>, _>>().map_err(|problem| JobError::model(of, problem))
}

/// Runs a network on the reference executor, with inputs and outputs in graph order. `interrupt` is asked before each node.
pub(crate) fn run_reference(
    interrupt: &Interrupt,
    graph: &Graph,
    inputs: Vec<Tensor>,
) -> Result<Vec<Tensor>, GraphError> {
    let named: Vec<(String, Tensor)> =
        graph.inputs.iter().zip(inputs).map(|(id, t)| (graph.value(*id).name.clone(), t)).collect();
    cytoscope_reference::run_unless(interrupt, graph, &named)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_model_package::{AxisSize, AxisSpec, StatisticsAxes, TensorType};

    fn spec(dtype: TensorType, processing: Vec<Processing>) -> TensorSpec {
        let axis = |kind, size| AxisSpec { kind, size, voxel_um: None, halo: 0, channel_names: Vec::new() };
        let free = || AxisSize::Step { min: 1, step: 1 };
        TensorSpec {
            id: "raw".to_owned(),
            description: String::new(),
            dtype,
            axes: vec![
                axis(AxisKind::Batch, free()),
                axis(AxisKind::Channel, AxisSize::Fixed(2)),
                axis(AxisKind::Y, free()),
                axis(AxisKind::X, free()),
            ],
            processing,
            test_tensor: None,
        }
    }

    const EACH: StatisticsAxes = StatisticsAxes { batch: false, channel: false, by_slice: false };
    const JOINT: StatisticsAxes = StatisticsAxes { batch: false, channel: true, by_slice: false };
    const ALL: StatisticsAxes = StatisticsAxes { batch: true, channel: true, by_slice: false };

    /// Two samples of two channels of 1 × 4 pixels.
    const VALUES: [f32; 16] = [3.0, -1.0, 4.5, 0.5, 9.0, 2.0, -6.0, 5.0, 10.0, 30.0, 20.0, 41.0, 7.0, 8.0, 3.0, -1.5];

    fn tensor() -> Tensor {
        Tensor::new(vec![2, 2, 1, 4], VALUES.to_vec()).unwrap()
    }

    /// Applies steps as postprocessing to [`VALUES`]; the reference tensor is `5 · VALUES + 1`.
    fn after(dtype: TensorType, steps: Vec<Processing>) -> Vec<f64> {
        let five = Tensor::new(vec![2, 2, 1, 4], VALUES.iter().map(|v| v * 5.0 + 1.0).collect::<Vec<f32>>()).unwrap();
        let inputs = [spec(TensorType::Float32, Vec::new())];
        let result = postprocess("a test", &[spec(dtype, steps)], vec![tensor()], &inputs, &[five]).unwrap();
        result[0].to_f64_vec()
    }

    fn close(result: &[f64], expected: [f64; 16]) {
        for (m, e) in result.iter().zip(expected) {
            assert!((m - e).abs() <= 1e-5 + 1e-5 * e.abs(), "{result:?}");
        }
    }

    // Expected values are those of NumPy 2.4 and SciPy for the same numbers.

    #[test]
    fn z_scores_follow_the_axes_of_the_step() {
        let z = |axes| after(TensorType::Float32, vec![Processing::ZeroMeanUnitVariance { eps: 1e-6, axes }]);
        close(
            &z(EACH),
            [
                0.585205, -1.287452, 1.287452, -0.585205, 1.181818, -0.090909, -1.545454, 0.454545, -1.323899,
                0.412362, -0.455768, 1.367305, 0.767093, 1.033908, -0.300167, -1.500834,
            ],
        );
        close(
            &z(JOINT),
            [
                0.208885, -0.746019, 0.566975, -0.387930, 1.641242, -0.029841, -1.939650, 0.686338, -0.344694,
                1.125999, 0.390653, 1.934881, -0.565298, -0.491763, -0.859436, -1.190342,
            ],
        );
        close(
            &z(ALL),
            [
                -0.455783, -0.793009, -0.329323, -0.666549, 0.050057, -0.540089, -1.214542, -0.287169, 0.134364,
                1.820496, 0.977430, 2.747869, -0.118556, -0.034250, -0.455783, -0.835162,
            ],
        );
    }

    #[test]
    fn scale_range_uses_the_tensor_or_the_unprocessed_reference() {
        let range = |axes, reference: Option<&str>| {
            let reference_tensor = reference.map(str::to_owned);
            let step = Processing::ScaleRange {
                min_percentile: 10.0,
                max_percentile: 90.0,
                eps: 1e-6,
                axes,
                reference_tensor,
            };
            after(TensorType::Float32, vec![step])
        };
        close(
            &range(EACH, None),
            [
                0.771739, -0.097826, 1.097826, 0.228261, 1.105263, 0.491228, -0.210526, 0.754386, -0.121457, 0.688259,
                0.283401, 1.133603, 0.910828, 1.038216, 0.401274, -0.171975,
            ],
        );
        close(
            &range(JOINT, Some("raw")),
            [
                0.333333, 0.241379, 0.367816, 0.275862, 0.471264, 0.310345, 0.126437, 0.379310, 0.004739, 0.131122,
                0.067930, 0.200632, -0.014218, -0.007899, -0.039494, -0.067930,
            ],
        );
    }

    #[test]
    fn statistics_of_slices_are_those_of_each_slice() {
        // One sample of two channels, each with two slices of 1 × 4 pixels.
        let with_z = |steps: Vec<Processing>| {
            let mut spec = spec(TensorType::Float32, steps);
            let z = AxisSpec { kind: AxisKind::Z, ..spec.axes[2].clone() };
            spec.axes.insert(2, z);
            spec
        };
        let shape = vec![1, 2, 2, 1, 4];
        let tensor = |values: Vec<f32>| Tensor::new(shape.clone(), values).unwrap();
        let five = || tensor(VALUES.iter().map(|v| v * 5.0 + 1.0).collect());
        let after = |step: Processing| {
            let specs = [with_z(vec![step])];
            let result = postprocess("a test", &specs, vec![tensor(VALUES.to_vec())], &[with_z(vec![])], &[five()]);
            result.map(|result| result[0].to_f64_vec())
        };
        let each = StatisticsAxes { by_slice: true, ..EACH };
        let joint = StatisticsAxes { by_slice: true, ..JOINT };
        let z = |axes| after(Processing::ZeroMeanUnitVariance { eps: 1e-6, axes }).unwrap();
        close(
            &z(each),
            [
                0.585205, -1.287452, 1.287452, -0.585205, 1.181818, -0.090909, -1.545454, 0.454545, -1.323899,
                0.412362, -0.455768, 1.367305, 0.767093, 1.033908, -0.300167, -1.500834,
            ],
        );
        close(
            &z(joint),
            [
                -0.730352, -1.008581, -0.626016, -0.904245, 1.190891, -0.274821, -1.949921, 0.353341, -0.243451,
                1.147696, 0.452123, 1.912826, 0.772116, 0.981504, -0.065434, -1.007677,
            ],
        );
        let range = |reference: &str| Processing::ScaleRange {
            min_percentile: 10.0,
            max_percentile: 90.0,
            eps: 1e-6,
            axes: joint,
            reference_tensor: Some(reference.to_owned()),
        };
        close(
            &after(range("raw")).unwrap(),
            [
                0.010526, -0.013534, 0.019549, -0.004511, 0.399103, 0.273543, 0.130045, 0.327354, 0.052632, 0.172932,
                0.112782, 0.239098, 0.363229, 0.381166, 0.291480, 0.210762,
            ],
        );
        // The reference has one slice.
        let flat = Tensor::new(vec![1, 2, 1, 2, 4], VALUES.to_vec()).unwrap();
        let (specs, inputs) = ([with_z(vec![range("raw")])], [with_z(vec![])]);
        let refused = postprocess("a test", &specs, vec![tensor(VALUES.to_vec())], &inputs, &[flat]).unwrap_err();
        assert!(refused.to_string().contains("other slices"), "{refused}");
    }

    #[test]
    fn scale_mean_variance_matches_the_reference() {
        let scale = |axes| {
            let reference_tensor = "raw".to_owned();
            after(TensorType::Float32, vec![Processing::ScaleMeanVariance { eps: 1e-6, axes, reference_tensor }])
        };
        // The input is five times the tensor plus one, whatever the axes.
        for axes in [EACH, JOINT, ALL] {
            close(&scale(axes), VALUES.map(|v| f64::from(v) * 5.0 + 1.0));
        }
        let other = vec![Processing::ScaleMeanVariance { eps: 1e-6, axes: ALL, reference_tensor: "other".to_owned() }];
        let refused = postprocess("a test", &[spec(TensorType::Float32, other)], vec![tensor()], &[], &[]).unwrap_err();
        assert!(refused.to_string().contains("scale_mean_variance") && refused.to_string().contains("other"));
    }

    #[test]
    fn clip_percentiles_interpolates_only_if_the_batch_is_included() {
        let clip = |axes| {
            let step = Processing::ClipPercentiles { min_percentile: Some(30.0), max_percentile: Some(80.0), axes };
            after(TensorType::Float32, vec![step])
        };
        close(&clip(EACH), [3.0, 0.5, 4.5, 0.5, 9.0, 2.0, 2.0, 5.0, 20.0, 30.0, 20.0, 41.0, 7.0, 8.0, 3.0, 3.0]);
        close(&clip(JOINT), [3.0, 0.5, 4.5, 0.5, 5.0, 2.0, 0.5, 5.0, 10.0, 30.0, 20.0, 30.0, 7.0, 8.0, 7.0, 7.0]);
        close(&clip(ALL), [3.0, 2.5, 4.5, 2.5, 9.0, 2.5, 2.5, 5.0, 10.0, 10.0, 10.0, 10.0, 7.0, 8.0, 3.0, 2.5]);
    }

    #[test]
    fn elementwise_steps_and_chains_match_numpy() {
        close(
            &after(TensorType::Float32, vec![Processing::Softmax]),
            [
                0.002473, 0.047426, 0.999972, 0.010987, 0.997527, 0.952574, 0.000028, 0.989013, 0.952574, 1.0, 1.0,
                1.0, 0.047426, 0.0, 0.0, 0.0,
            ],
        );
        // Statistics of the current values, not of those before the sigmoid.
        close(
            &after(
                TensorType::Float32,
                vec![Processing::Sigmoid, Processing::ZeroMeanUnitVariance { eps: 1e-6, axes: ALL }],
            ),
            [
                0.454944, -1.620186, 0.565553, -0.547101, 0.598529, 0.237069, -2.429037, 0.578587, 0.598765, 0.598903,
                0.598903, 0.598903, 0.596138, 0.597885, 0.454944, -1.882800,
            ],
        );
        let by_channel = Processing::FixedZeroMeanUnitVariance { mean: vec![1.0, 2.0], std: vec![2.0, 4.0] };
        close(
            &after(TensorType::Float32, vec![by_channel]),
            [1.0, -1.0, 1.75, -0.25, 1.75, 0.0, -2.0, 0.75, 4.5, 14.5, 9.5, 20.0, 1.25, 1.5, 0.25, -0.875],
        );
        let threshold = Processing::Binarize { threshold: vec![3.0, 5.0] };
        close(
            &after(TensorType::Float32, vec![threshold]),
            [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0],
        );
        let scaled = Processing::ScaleLinear { gain: vec![10.0], offset: vec![0.5] };
        // The tensor is declared as uint8, so it is cast at the end.
        close(
            &after(TensorType::Uint8, vec![scaled]),
            [30.0, 0.0, 45.0, 5.0, 90.0, 20.0, 0.0, 50.0, 100.0, 255.0, 200.0, 255.0, 70.0, 80.0, 30.0, 0.0],
        );
    }

    #[test]
    fn a_tensor_with_other_axes_than_described_is_refused() {
        let flat = Tensor::new(vec![2, 2], vec![0.0f32; 4]).unwrap();
        let refused =
            postprocess("a test", &[spec(TensorType::Float32, vec![Processing::Sigmoid])], vec![flat], &[], &[]);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("[2, 2]") && text.contains("batch, channel, y, x"), "{text}");
    }
}
