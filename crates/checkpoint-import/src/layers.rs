//! A network under construction from named tensors. Channels and kernels are those of the tensors.

use crate::error::ImportError;
use crate::tensors::StoredTensor;
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, CoordinateMode, Dim, ElementType, Graph, Op, Padding,
    PoolAttrs, ResizeAttrs, ResizeMode, Tensor, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// ε of norms unless the network states another: PyTorch's default.
const EPSILON: f32 = 1e-5;
/// Maximum number of weights of a network.
const MAX_WEIGHTS: usize = 1 << 30;
/// Maximum number of layers or levels that are looked for under a numbered name.
const MAX_NUMBERED: usize = 64;
/// Number of tensors that an error names.
const NAMED: usize = 5;

/// A value of the network and its number of channels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Features {
    value: ValueId,
    /// Length of the value's channel axis, which the next layer's weights must match.
    pub channels: usize,
}

/// A network under construction.
pub(crate) struct Layers<'a> {
    graph: Graph,
    tensors: &'a BTreeMap<String, &'a StoredTensor>,
    used: BTreeSet<String>,
    weights: usize,
    architecture: &'static str,
    /// Number of spatial axes, 2 or 3.
    pub axes: usize,
    /// ε of all norms.
    pub epsilon: f32,
    assumptions: BTreeSet<String>,
}

impl<'a> Layers<'a> {
    /// Starts a network whose first convolution has the weight `first`; returns its input.
    pub(crate) fn start(
        tensors: &'a BTreeMap<String, &'a StoredTensor>,
        architecture: &'static str,
        first: &str,
    ) -> Result<(Self, Features), ImportError> {
        let mut layers = Self {
            graph: Graph::new(architecture),
            tensors,
            used: BTreeSet::new(),
            weights: 0,
            architecture,
            axes: 0,
            epsilon: EPSILON,
            assumptions: BTreeSet::new(),
        };
        let shape = layers.shape(first)?.to_vec();
        let (&[_, channels, ..], 4 | 5) = (shape.as_slice(), shape.len()) else {
            let problem = format!("has shape {shape:?}: expected the weight of a 2-D or 3-D convolution");
            return Err(layers.bad(first, problem));
        };
        layers.axes = shape.len() - 2;
        let lengths = ["d", "h", "w"].into_iter().skip(3 - layers.axes).map(|name| Dim::Free(name.to_owned()));
        let dims = [Dim::Free("n".to_owned()), Dim::Fixed(channels)].into_iter().chain(lengths).collect();
        let value = layers.graph.add_input("x", ElementType::F32, dims);
        Ok((layers, Features { value, channels }))
    }

    /// Returns the error that a tensor does not fit the architecture; `problem` continues the tensor's name: "has shape
    /// …".
    pub(crate) fn bad(&self, tensor: &str, problem: impl Into<String>) -> ImportError {
        let (tensor, problem) = (tensor.to_owned(), problem.into());
        ImportError::Tensor { tensor, problem, architecture: self.architecture }
    }

    /// Records a setting that the tensors do not determine, with the value that was assumed, as one sentence.
    pub(crate) fn assume(&mut self, what: impl Into<String>) {
        self.assumptions.insert(what.into());
    }

    /// Records the assumption that norms are instance norms, unless they have running statistics: group norms, for example,
    /// have tensors of the same names and shapes.
    pub(crate) fn assume_instance_norms(&mut self) {
        if !self.tensors.keys().any(|name| name.ends_with(".running_mean")) {
            self.assume("the norms are instance norms, MONAI's default");
        }
    }

    /// Whether there is a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Whether the name of a tensor starts with `prefix`.
    pub(crate) fn has_any(&self, prefix: &str) -> bool {
        self.tensors.range(prefix.to_owned()..).next().is_some_and(|(name, _)| name.starts_with(prefix))
    }

    /// Returns the number of layers of a numbered series: the first number whose `name` is not the start of any
    /// tensor's name.
    pub(crate) fn count(&self, name: impl Fn(usize) -> String) -> usize {
        (0..MAX_NUMBERED).take_while(|i| self.has_any(&name(*i))).count()
    }

    /// Returns the shape of a tensor of the checkpoint.
    ///
    /// # Errors
    /// [`ImportError::Tensor`] if there is no tensor of this name.
    pub(crate) fn shape(&self, name: &str) -> Result<&'a [usize], ImportError> {
        self.tensors.get(name).map(|tensor| tensor.shape()).ok_or_else(|| self.bad(name, "is missing"))
    }

    /// Returns the lengths of a convolution's kernel.
    pub(crate) fn kernel(&self, name: &str) -> Result<&'a [usize], ImportError> {
        let weight = format!("{name}.weight");
        let shape = self.shape(&weight)?;
        match shape.get(2..) {
            Some(kernel) if shape.len() == self.axes + 2 && !kernel.contains(&0) => Ok(kernel),
            _ => {
                let expected = format!("expected {} axes, and a kernel without a length of 0", self.axes + 2);
                Err(self.bad(&weight, format!("has shape {shape:?}: {expected}")))
            }
        }
    }

    /// Adds a tensor of this shape as a constant of 32-bit floats.
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<ValueId, ImportError> {
        let tensor = self.tensor(name, shape)?;
        Ok(self.graph.add_initializer(name, Arc::new(tensor)))
    }

    /// Takes a tensor of this shape as 32-bit floats.
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ImportError> {
        let found = self.shape(name)?;
        if found != shape {
            return Err(self.bad(name, format!("has shape {found:?}: expected {shape:?}")));
        }
        // Without elements, the other lengths could be of any size.
        if found.contains(&0) {
            return Err(self.bad(name, format!("has shape {found:?}: expected at least one element")));
        }
        self.weights = self.weights.saturating_add(shape.iter().product());
        if self.weights > MAX_WEIGHTS {
            let what = format!("{} weights", self.weights);
            return Err(ImportError::OverLimit { what, limit: MAX_WEIGHTS as u64 });
        }
        let stored = self.tensors.get(name).ok_or_else(|| self.bad(name, "is missing"))?;
        let tensor = stored.to_tensor()?;
        let tensor = if tensor.dtype() == ElementType::F32 { tensor } else { tensor.cast(ElementType::F32) };
        let Some(values) = tensor.as_f32() else {
            return Err(self.bad(name, format!("has elements of type {}: expected floats", tensor.dtype())));
        };
        let not_finite = values.iter().filter(|value| !value.is_finite()).count();
        if not_finite > 0 {
            return Err(ImportError::NotFinite { tensor: name.to_owned(), not_finite, values: values.len() });
        }
        self.used.insert(name.to_owned());
        Ok(tensor)
    }

    fn push(&mut self, name: &str, op: Op, inputs: &[Option<ValueId>], channels: usize) -> Features {
        Features { value: self.graph.push(name, op, inputs), channels }
    }

    /// Adds a convolution with zero padding that keeps lengths at stride 1, and its bias if there is one.
    pub(crate) fn conv(&mut self, name: &str, x: Features, strides: &[usize]) -> Result<Features, ImportError> {
        let kernel = self.kernel(name)?;
        if kernel.iter().any(|n| n % 2 == 0) {
            let problem = format!("has a kernel of {kernel:?}: expected odd lengths");
            return Err(self.bad(&format!("{name}.weight"), problem));
        }
        self.convolution(name, x, ConvAttrs::same(kernel).with_strides(strides))
    }

    /// Adds a convolution whose zero padding depends on the stride, as in MONAI's dynamic blocks: `(kernel - stride + 1)
    /// / 2`, rounded down.
    pub(crate) fn conv_padded_by_stride(
        &mut self,
        name: &str,
        x: Features,
        strides: &[usize],
    ) -> Result<Features, ImportError> {
        let kernel = self.kernel(name)?;
        let pad = |(k, stride): (&usize, &usize)| (k + 1).checked_sub(*stride).map(|n| n / 2);
        let Some(pads) = kernel.iter().zip(strides).map(pad).collect::<Option<Vec<_>>>() else {
            let problem =
                format!("has a kernel of {kernel:?}: expected one that is not shorter than strides {strides:?}");
            return Err(self.bad(&format!("{name}.weight"), problem));
        };
        let padding = Padding::symmetric(pads);
        self.convolution(name, x, ConvAttrs::same(kernel).with_strides(strides).with_padding(padding))
    }

    /// Adds a convolution without padding whose stride is its kernel.
    pub(crate) fn strided(&mut self, name: &str, x: Features) -> Result<Features, ImportError> {
        let kernel = self.kernel(name)?;
        let padding = Padding::none(kernel.len());
        self.convolution(name, x, ConvAttrs::same(kernel).with_strides(kernel).with_padding(padding))
    }

    fn convolution(&mut self, name: &str, x: Features, attrs: ConvAttrs) -> Result<Features, ImportError> {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let outputs = self.shape(&weight)?.first().copied().unwrap_or(0);
        let w = self.weight(&weight, &[&[outputs, x.channels][..], &attrs.kernel].concat())?;
        let mut inputs = vec![Some(x.value), Some(w)];
        if self.has(&bias) {
            inputs.push(Some(self.weight(&bias, &[outputs])?));
        }
        Ok(self.push(&format!("{name}.out"), Op::Conv(attrs), &inputs, outputs))
    }

    /// Adds a transposed convolution, and its bias if there is one. `attrs` gets the kernel.
    pub(crate) fn transposed(
        &mut self,
        name: &str,
        x: Features,
        attrs: impl FnOnce(&[usize]) -> ConvTransposeAttrs,
    ) -> Result<Features, ImportError> {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let kernel = self.kernel(name)?;
        let outputs = self.shape(&weight)?.get(1).copied().unwrap_or(0);
        let w = self.weight(&weight, &[&[x.channels, outputs][..], kernel].concat())?;
        let mut inputs = vec![Some(x.value), Some(w)];
        if self.has(&bias) {
            inputs.push(Some(self.weight(&bias, &[outputs])?));
        }
        Ok(self.push(&format!("{name}.out"), Op::ConvTranspose(attrs(kernel)), &inputs, outputs))
    }

    /// Adds a norm: a batch norm if it has running statistics, otherwise an instance norm, whose scale and bias may be
    /// absent.
    pub(crate) fn norm(&mut self, name: &str, x: Features) -> Result<Features, ImportError> {
        let mut inputs = vec![Some(x.value)];
        let has_parameters = self.has(&format!("{name}.weight")) || self.has(&format!("{name}.bias"));
        for (part, neutral) in [("weight", 1.0f32), ("bias", 0.0)] {
            let full = format!("{name}.{part}");
            inputs.push(Some(match has_parameters {
                true => self.weight(&full, &[x.channels])?,
                false => self.graph.add_initializer(full, Tensor::vector(vec![neutral; x.channels])),
            }));
        }
        let mut op = Op::InstanceNormalization { epsilon: self.epsilon };
        if self.has(&format!("{name}.running_mean")) {
            for statistic in ["running_mean", "running_var"] {
                inputs.push(Some(self.weight(&format!("{name}.{statistic}"), &[x.channels])?));
            }
            op = Op::BatchNormalization { epsilon: self.epsilon };
        }
        Ok(self.push(&format!("{name}.out"), op, &inputs, x.channels))
    }

    /// Adds a group norm.
    pub(crate) fn group_norm(&mut self, name: &str, x: Features, groups: usize) -> Result<Features, ImportError> {
        if groups == 0 || !x.channels.is_multiple_of(groups) {
            return Err(self
                .bad(&format!("{name}.weight"), format!("has {} channels: expected groups of {groups}", x.channels)));
        }
        let scale = self.weight(&format!("{name}.weight"), &[x.channels])?;
        let bias = self.weight(&format!("{name}.bias"), &[x.channels])?;
        let op = Op::GroupNormalization { groups, epsilon: self.epsilon };
        Ok(self.push(&format!("{name}.out"), op, &[Some(x.value), Some(scale), Some(bias)], x.channels))
    }

    /// Adds a PReLU with one slope, or one per channel.
    pub(crate) fn prelu(&mut self, name: &str, x: Features) -> Result<Features, ImportError> {
        let weight = format!("{name}.weight");
        let slopes = self.shape(&weight)?.first().copied().unwrap_or(0);
        if slopes != 1 && slopes != x.channels {
            return Err(self.bad(&weight, format!("has {slopes} slopes: expected 1 or {}", x.channels)));
        }
        let mut slope = self.tensor(&weight, &[slopes])?;
        if slopes > 1 {
            // One slope per channel is broadcast over the spatial axes.
            slope = slope.reshaped(std::iter::once(slopes).chain(vec![1; self.axes]).collect::<Vec<_>>())?;
        }
        let slope = self.graph.add_initializer(weight, slope);
        Ok(self.push(&format!("{name}.out"), Op::PRelu, &[Some(x.value), Some(slope)], x.channels))
    }

    /// Adds an activation.
    pub(crate) fn activation(&mut self, name: &str, x: Features, activation: Activation) -> Features {
        self.push(&format!("{name}.act"), Op::Activation(activation), &[Some(x.value)], x.channels)
    }

    /// Adds a max pool, or an average pool, whose stride is its window.
    pub(crate) fn pool(&mut self, name: &str, x: Features, window: &[usize], max: bool) -> Features {
        let attrs = PoolAttrs {
            kernel: window.to_vec(),
            strides: window.to_vec(),
            dilations: vec![1; window.len()],
            padding: Padding::none(window.len()),
            ceil_mode: false,
            count_include_pad: false,
            column_major_indices: false,
        };
        let op = if max { Op::MaxPool(attrs) } else { Op::AveragePool(attrs) };
        self.push(&format!("{name}.pool"), op, &[Some(x.value)], x.channels)
    }

    /// Adds linear interpolation to twice the length along each spatial axis.
    pub(crate) fn upsample_twofold(&mut self, name: &str, x: Features, align_corners: bool) -> Features {
        let scales: Vec<f32> = [1.0, 1.0].into_iter().chain(vec![2.0; self.axes]).collect();
        let scales = self.graph.add_initializer(format!("{name}.scales"), Tensor::vector(scales));
        let coordinates = if align_corners { CoordinateMode::AlignCorners } else { CoordinateMode::HalfPixel };
        let attrs = ResizeAttrs { mode: ResizeMode::Linear, coordinates, ..ResizeAttrs::nearest() };
        self.push(&format!("{name}.resized"), Op::resize(attrs), &[Some(x.value), None, Some(scales)], x.channels)
    }

    /// Adds a concatenation of two values along the channel axis.
    pub(crate) fn concat(&mut self, name: &str, a: Features, b: Features) -> Features {
        let channels = a.channels.saturating_add(b.channels);
        self.push(&format!("{name}.concat"), Op::concat(1), &[Some(a.value), Some(b.value)], channels)
    }

    /// Adds a sum of two values; the error names `tensor` if their channels differ.
    pub(crate) fn add(&mut self, tensor: &str, a: Features, b: Features) -> Result<Features, ImportError> {
        if a.channels != b.channels {
            return Err(self.bad(tensor, format!("gives {} channels: expected {}", a.channels, b.channels)));
        }
        let op = Op::Binary(BinaryOp::Add);
        Ok(self.push(&format!("{tensor}.sum"), op, &[Some(a.value), Some(b.value)], a.channels))
    }

    /// Names the output `y`, and returns the network with the assumptions. `is_left_out` accepts tensors that the
    /// network does not need.
    pub(crate) fn finish(
        mut self,
        y: Features,
        is_left_out: impl Fn(&str) -> bool,
    ) -> Result<(Graph, Vec<String>), ImportError> {
        let unused: Vec<&str> = self
            .tensors
            .keys()
            .map(String::as_str)
            .filter(|name| !self.used.contains(*name) && !name.ends_with("num_batches_tracked") && !is_left_out(name))
            .collect();
        if !unused.is_empty() {
            return Err(ImportError::Unused { tensors: list_first(&unused), architecture: self.architecture });
        }
        if let Some(value) = self.graph.values.get_mut(y.value.index()) {
            value.name = "y".to_owned();
        }
        self.graph.outputs.push(y.value);
        cytoscope_graph_passes::infer_shapes::<ValueId>(&mut self.graph, &[])?;
        self.graph.validate()?;
        Ok((self.graph, self.assumptions.into_iter().collect()))
    }
}

/// Returns the first names, separated by commas, and how many more there are.
pub(crate) fn list_first(names: &[&str]) -> String {
    let first: Vec<&str> = names.iter().take(NAMED).copied().collect();
    let more = names.len().saturating_sub(NAMED);
    let rest = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{rest}", first.join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_weight_without_elements_is_refused_because_its_other_lengths_are_not_limited() {
        for (shape, expected) in [
            (vec![1 << 40, 0, 3, 3], "expected at least one element"),
            (vec![4, 1, 3, 0], "expected 4 axes, and a kernel without a length of 0"),
        ] {
            let lengths = (shape, vec![0; 4]);
            let empty = StoredTensor::new("c.weight", ElementType::F32, lengths, 0, Arc::default()).unwrap();
            let tensors = BTreeMap::from([("c.weight".to_owned(), &empty)]);
            let (mut layers, x) = Layers::start(&tensors, "UNet", "c.weight").unwrap();
            let error = layers.conv("c", x, &[1, 1]).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
