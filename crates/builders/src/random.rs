//! Random networks generated from bytes, for comparing executors: the same bytes give the same network everywhere.
//! Tests pass seeded bytes, fuzzers their own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use cytoscope_graph::infer::Info;
use cytoscope_graph::{
    Activation, BinaryOp, Budget, ConvAttrs, ConvTransposeAttrs, CoordinateMode, Dim, ElementType, Graph, GraphError,
    GraphLimits, Interrupt, NearestMode, Node, Op, PadMode, Padding, PoolAttrs, ReduceOp, ResizeAttrs, ResizeMode,
    Result, Tensor, UnaryOp, ValueId, op_name,
};
use cytoscope_graph_passes::infer_node;
use cytoscope_graph_passes::quantize::{self, Activations, Group, QuantRange};

/// Maximum number of elements of one tensor. Small enough to run thousands of networks per minute.
const MAX_ELEMENTS: usize = 12_000;
/// Maximum number of multiply-accumulates of one node.
const MAX_MACS: u64 = 2_000_000;
/// Maximum number of generated nodes.
const MAX_NODES: usize = 12;
/// Numbers of channels around the widths of kernels' channel blocks (1, 4 and 16).
const CHANNELS: [usize; 12] = [1, 1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33];

/// A random network with an input to run it on.
#[derive(Debug, Clone)]
pub struct RandomNetwork {
    /// Convolutions, pools, resizes, concatenations etc. on batch × channels × 2 or 3 spatial axes, with fixed lengths.
    pub graph: Graph,
    /// Value of the input `x`.
    pub input: Tensor,
}

/// Returns the network that these bytes encode. Missing bytes count as 0; any bytes give a valid network.
///
/// # Errors
/// None in practice; errors of [`Graph::validate`] are passed on.
pub fn random_network(bytes: &[u8]) -> Result<RandomNetwork> {
    let mut decisions = Decisions { bytes, noise: 0 };
    decisions.noise = u64::from(decisions.byte()) << 8 | u64::from(decisions.byte());
    let axes = 2 + decisions.below(2);
    let longest = if axes == 2 { 12 } else { 7 };
    let mut shape = vec![1 + decisions.below(2), decisions.pick(&CHANNELS)];
    shape.extend((0..axes).map(|_| 1 + decisions.below(longest)));
    let mut graph = Graph::new("random");
    let x = graph.add_input("x", ElementType::F32, shape.iter().map(|n| Dim::Fixed(*n)).collect());
    let infos = BTreeMap::from([(x, Info::new(Some(ElementType::F32), Some(cytoscope_graph::infer::fixed(&shape))))]);
    let input = Tensor::new(shape.clone(), decisions.values(shape.iter().product(), 1.0))?;
    let mut builder = NetworkBuilder {
        decisions,
        graph,
        infos,
        values: vec![x],
        axes,
        budget: Budget::of_bytes(0, Interrupt::default()),
    };
    let count = 1 + builder.decisions.below(MAX_NODES);
    for _ in 0..count {
        builder.add_random_node()?;
    }
    let mut graph = builder.graph;
    graph.outputs.extend(builder.values.last());
    for _ in 0..builder.decisions.below(4) {
        let output = builder.decisions.pick(&builder.values);
        graph.outputs.push(output);
    }
    // ONNX files need distinct output names: an input or a value that is an output twice is copied.
    let mut seen = Vec::new();
    for place in 0..graph.outputs.len() {
        let Some(&output) = graph.outputs.get(place) else { continue };
        if seen.contains(&output) || graph.inputs.contains(&output) {
            let copy = graph.push("copy", Op::Identity, &[Some(output)]);
            if let Some(slot) = graph.outputs.get_mut(place) {
                *slot = copy;
            }
        }
        seen.push(output);
    }
    cytoscope_graph_passes::infer_shapes::<ValueId>(&mut graph, &[])?;
    graph.validate()?;
    Ok(RandomNetwork { graph, input })
}

/// Returns bytes for [`random_network`] from a seed (SplitMix64, Steele, Lea & Flood 2014).
pub fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    (0..count).map(|_| (split_mix(&mut state) >> 56) as u8).collect()
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the network with int8 convolutions, as [`quantize`] writes it, with ranges from its own input or (`dynamic`)
/// at run time; `None` if it has no convolution that can be quantized.
///
/// # Errors
/// Errors of the quantization and of the reference executor.
pub fn quantized(network: &RandomNetwork, dynamic: bool) -> Result<Option<Graph>> {
    let prepared = match quantize::prepare(&network.graph) {
        Err(GraphError::NothingToQuantize { .. }) => return Ok(None),
        other => other?,
    };
    let none = std::collections::BTreeSet::new();
    let range = |group: &Group| {
        let mut inside = prepared.clone();
        inside.outputs = group.sources.clone();
        let outputs = cytoscope_reference::run(&inside, &[("x".to_owned(), network.input.clone())])?;
        let values = outputs.iter().flat_map(Tensor::to_f64_vec).filter(|v| v.is_finite());
        let (low, high) = values.fold((0.0f64, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
        QuantRange::of(low as f32, high as f32)
    };
    let activations = if dynamic { Activations::Dynamic } else { Activations::Static(&range) };
    quantize::quantize(&prepared, &activations, &none).map(Some)
}

/// Describes a graph, one line per node: outputs with shapes, operator with its attributes, inputs; then the graph's
/// outputs.
pub fn describe(graph: &Graph) -> String {
    let name = |id: &ValueId| graph.value(*id).name.clone();
    let shape = |id: &ValueId| graph.value(*id).fixed_shape().map_or_else(|| "?".to_owned(), |s| format!("{s:?}"));
    let mut text = String::new();
    for id in &graph.inputs {
        let _ = writeln!(text, "input {} {}", name(id), shape(id));
    }
    for node in &graph.nodes {
        let read: Vec<String> = node
            .inputs
            .iter()
            .map(|id| match id {
                None => "-".to_owned(),
                Some(id) => match graph.constant(*id) {
                    Some(t) if t.len() <= 10 => format!("{:?}", t.to_f64_vec()),
                    Some(t) => format!("{}{:?}", t.dtype(), t.shape()),
                    None => name(id),
                },
            })
            .collect();
        let outputs: Vec<String> =
            node.outputs.iter().flatten().map(|id| format!("{} {}", name(id), shape(id))).collect();
        let _ = writeln!(text, "{} = {} {:?} ({})", outputs.join(", "), op_name(&node.op), node.op, read.join(", "));
    }
    let _ = writeln!(text, "outputs {}", graph.outputs.iter().map(name).collect::<Vec<_>>().join(", "));
    text
}

/// Draws decisions from bytes.
struct Decisions<'a> {
    bytes: &'a [u8],
    noise: u64,
}

impl Decisions<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    /// Returns a number below `n`, which must be 1 to 256.
    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 1
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let at = self.below(of.len());
        of[at]
    }

    /// Returns roughly normal numbers from a generator seeded by the bytes.
    fn values(&mut self, n: usize, deviation: f32) -> Vec<f32> {
        let mut next = || (split_mix(&mut self.noise) >> 40) as f32 / (1u32 << 24) as f32 - 0.5;
        (0..n).map(|_| 2.0 * (next() + next() + next()) * deviation).collect()
    }
}

/// A network under construction.
struct NetworkBuilder<'a> {
    decisions: Decisions<'a>,
    graph: Graph,
    infos: BTreeMap<ValueId, Info>,
    /// Values that later nodes can read.
    values: Vec<ValueId>,
    axes: usize,
    budget: Budget,
}

impl NetworkBuilder<'_> {
    fn shape(&self, id: ValueId) -> Vec<usize> {
        self.infos.get(&id).and_then(Info::fixed_shape).unwrap_or_default()
    }

    fn constant(&mut self, tensor: Tensor) -> Option<ValueId> {
        let tensor = Arc::new(tensor);
        let id = self.graph.add_initializer("c", Arc::clone(&tensor));
        self.infos.insert(id, Info::of(&tensor));
        Some(id)
    }

    fn ints(&mut self, values: Vec<i64>) -> Option<ValueId> {
        self.constant(Tensor::vector(values))
    }

    fn noise(&mut self, shape: &[usize], deviation: f32) -> Result<Option<ValueId>> {
        let values = self.decisions.values(shape.iter().product(), deviation);
        Ok(self.constant(Tensor::new(shape, values)?))
    }

    /// Adds a constant with one value per channel, around `middle`.
    fn by_channel(&mut self, channels: usize, middle: f32, deviation: f32) -> Option<ValueId> {
        let values = self.decisions.values(channels, deviation).into_iter().map(|v| middle + v).collect();
        self.constant(Tensor::vector(values))
    }

    /// Adds a node if it fits its inputs and is small enough. Returns its outputs, or an empty Vec if the node was
    /// rejected.
    fn try_add(&mut self, op: Op, inputs: &[Option<ValueId>], outputs: usize) -> Vec<ValueId> {
        let name = format!("{}{}", op_name(&op).to_lowercase(), self.graph.nodes.len());
        let ids: Vec<ValueId> = (0..outputs).map(|_| self.graph.add_value(name.clone(), None, None)).collect();
        let node = Node { name, op, inputs: inputs.to_vec(), outputs: ids.iter().copied().map(Some).collect() };
        let found = infer_node(&node, &self.infos, &GraphLimits::default(), &self.budget).unwrap_or_default();
        let small = |info: &Info| {
            let shape = info.fixed_shape().unwrap_or_default();
            let elements = shape.iter().fold(1usize, |t, n| t.saturating_mul(*n));
            shape.len() == self.axes + 2 && (1..=MAX_ELEMENTS).contains(&elements)
        };
        if found.len() != outputs || !found.iter().all(small) {
            self.graph.values.truncate(self.graph.values.len() - outputs);
            return Vec::new();
        }
        for (id, info) in ids.iter().zip(found) {
            if let Some(value) = self.graph.values.get_mut(id.index()) {
                value.dtype = info.dtype;
                value.shape = info.shape.clone();
            }
            // Only the shapes are needed here.
            self.infos.insert(*id, Info { value: None, ..info });
        }
        if cytoscope_graph_passes::analysis::node_macs(&self.graph, &node).unwrap_or(0) > MAX_MACS {
            self.graph.values.truncate(self.graph.values.len() - outputs);
            ids.iter().for_each(|id| drop(self.infos.remove(id)));
            return Vec::new();
        }
        self.graph.nodes.push(node);
        self.values.extend(&ids);
        ids
    }

    /// Adds a node with one output. Returns `None` if the node was rejected.
    fn try_add_one(&mut self, op: Op, inputs: &[Option<ValueId>]) -> Option<ValueId> {
        self.try_add(op, inputs, 1).first().copied()
    }

    /// Picks a value to read, usually the newest.
    fn source(&mut self) -> ValueId {
        let newest = self.values.len() - 1;
        let at = if self.decisions.below(3) == 0 { self.decisions.below(self.values.len()) } else { newest };
        self.values[at]
    }

    fn add_random_node(&mut self) -> Result<()> {
        let x = self.source();
        match self.decisions.below(22) {
            0..=3 => drop(self.conv(x)?),
            4 => drop(self.conv_transpose(x)?),
            5 | 6 => self.concat(x),
            7 => self.resize(x),
            8 => self.pool(x),
            9 => self.split(x),
            10 => self.slice(x),
            11 => self.transpose(x),
            12 => self.pad(x),
            13 => self.binary(x),
            14 => self.with_constant(x)?,
            15 | 16 => drop(self.activation(x)),
            17 => drop(self.norm(x)),
            18 => self.reduce(x),
            19 | 20 => self.block(x)?,
            _ => self.misc(x),
        }
        Ok(())
    }

    /// Draws a length for each spatial axis.
    fn each(&mut self, mut one: impl FnMut(&mut Decisions<'_>) -> usize) -> Vec<usize> {
        (0..self.axes).map(|_| one(&mut self.decisions)).collect()
    }

    /// Draws kernel, strides, dilations and padding of a window.
    fn window(&mut self) -> (Vec<usize>, Vec<usize>, Vec<usize>, Padding) {
        let kernel = if self.decisions.below(3) == 0 {
            self.each(|d| d.pick(&[1, 2, 3, 4, 5]))
        } else {
            vec![self.decisions.pick(&[3, 1, 2]); self.axes]
        };
        let strides = if self.decisions.one_in(3) { self.each(|d| 1 + d.below(3)) } else { vec![1; self.axes] };
        let dilations = if self.decisions.one_in(5) { self.each(|d| 1 + d.below(2)) } else { vec![1; self.axes] };
        let padding = match self.decisions.below(8) {
            0..=2 => Padding::symmetric(kernel.iter().zip(&dilations).map(|(k, d)| (k - 1) * d / 2).collect()),
            3..=5 => {
                let decisions = &mut self.decisions;
                let mut side = || kernel.iter().map(|k| decisions.below(*k)).collect::<Vec<_>>();
                Padding::Explicit { before: side(), after: side() }
            }
            6 => Padding::none(self.axes),
            // With dilations, ONNX does not define "same" padding.
            _ if dilations.iter().any(|d| *d > 1) => Padding::none(self.axes),
            _ if self.decisions.one_in(2) => Padding::SameUpper,
            _ => Padding::SameLower,
        };
        (kernel, strides, dilations, padding)
    }

    fn conv(&mut self, x: ValueId) -> Result<Option<ValueId>> {
        let channels = self.shape(x)[1];
        let (kernel, strides, dilations, padding) = self.window();
        let (group, outputs) = match self.decisions.below(6) {
            0 => (channels, channels * (1 + self.decisions.below(2))),
            1 if channels.is_multiple_of(2) => (2, 2 * self.decisions.pick(&[1, 2, 8, 16])),
            2 if channels.is_multiple_of(4) => (4, 4 * self.decisions.pick(&[1, 4])),
            _ => (1, self.decisions.pick(&CHANNELS)),
        };
        let shape = [&[outputs, channels / group][..], &kernel].concat();
        let inputs: usize = shape.iter().skip(1).product();
        let w = self.noise(&shape, 1.0 / (inputs as f32).sqrt())?;
        let b = if self.decisions.one_in(2) { self.by_channel(outputs, 0.0, 0.3) } else { None };
        let attrs = ConvAttrs { kernel, strides, dilations, padding, group };
        Ok(self.try_add_one(Op::Conv(attrs), &[Some(x), w, b]))
    }

    fn conv_transpose(&mut self, x: ValueId) -> Result<Option<ValueId>> {
        let channels = self.shape(x)[1];
        let outputs = self.decisions.pick(&CHANNELS);
        let attrs = if self.decisions.one_in(2) {
            ConvTransposeAttrs::upsample(&self.each(|d| 1 + d.below(3)))
        } else {
            let kernel = self.each(|d| 1 + d.below(4));
            let strides = self.each(|d| 1 + d.below(3));
            let dilations = if self.decisions.one_in(4) { self.each(|d| 1 + d.below(2)) } else { vec![1; self.axes] };
            let decisions = &mut self.decisions;
            let mut side = || kernel.iter().map(|k| decisions.below(*k)).collect::<Vec<_>>();
            let padding = Padding::Explicit { before: side(), after: side() };
            let output_padding = strides.iter().map(|s| self.decisions.below(*s)).collect();
            let group = if channels.is_multiple_of(2) && self.decisions.one_in(3) { 2 } else { 1 };
            ConvTransposeAttrs { kernel, strides, dilations, padding, output_padding, output_shape: None, group }
        };
        let per_group = outputs.div_ceil(attrs.group);
        let shape = [&[channels, per_group][..], &attrs.kernel].concat();
        let w = self.noise(&shape, 1.0 / (channels as f32).sqrt())?;
        let b = if self.decisions.one_in(2) { self.by_channel(per_group * attrs.group, 0.0, 0.3) } else { None };
        Ok(self.try_add_one(Op::ConvTranspose(attrs), &[Some(x), w, b]))
    }

    fn concat(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let axis = if self.decisions.below(4) == 0 { self.decisions.below(shape.len()) } else { 1 };
        let fits = |other: &[usize]| other.iter().zip(&shape).enumerate().all(|(i, (a, b))| i == axis || a == b);
        let others: Vec<ValueId> = self.values.iter().copied().filter(|v| fits(&self.shape(*v))).collect();
        let mut parts = vec![Some(x)];
        for _ in 0..1 + self.decisions.below(3) {
            // Repeating one value is as likely as using different ones.
            let other = if self.decisions.one_in(2) { x } else { self.decisions.pick(&others) };
            parts.push(Some(other));
        }
        if self.decisions.one_in(2) {
            parts.reverse();
        }
        let axis = if self.decisions.one_in(2) { axis as i64 } else { axis as i64 - shape.len() as i64 };
        self.try_add_one(Op::concat(axis), &parts);
    }

    fn resize(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let mode =
            self.decisions.pick(&[ResizeMode::Nearest, ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Linear]);
        let mode = if self.decisions.below(12) == 5 { ResizeMode::Cubic } else { mode };
        let attrs = ResizeAttrs {
            mode,
            coordinates: self.decisions.pick(&[
                CoordinateMode::Asymmetric,
                CoordinateMode::HalfPixel,
                CoordinateMode::PytorchHalfPixel,
                CoordinateMode::AlignCorners,
                CoordinateMode::HalfPixelSymmetric,
            ]),
            nearest: self.decisions.pick(&[
                NearestMode::Floor,
                NearestMode::RoundPreferFloor,
                NearestMode::RoundPreferCeil,
                NearestMode::Ceil,
            ]),
            ..ResizeAttrs::nearest()
        };
        let by_length = self.decisions.one_in(3);
        let decisions = &mut self.decisions;
        let (scales, sizes) = if by_length {
            let sizes = shape.iter().enumerate().map(|(i, n)| if i < 2 { *n } else { 1 + decisions.below(9) } as i64);
            let sizes = sizes.collect();
            (None, self.ints(sizes))
        } else {
            // Multiples of one half, so scaled lengths are exact.
            let factors = [2.0f32, 1.0, 3.0, 0.5, 1.5, 2.5];
            let scales =
                shape.iter().enumerate().map(|(i, _)| if i < 2 { 1.0 } else { decisions.pick(&factors) }).collect();
            (self.constant(Tensor::vector::<f32>(scales)), None)
        };
        self.try_add_one(Op::resize(attrs), &[Some(x), None, scales, sizes]);
    }

    fn pool(&mut self, x: ValueId) {
        let (kernel, strides, dilations, padding) = self.window();
        let attrs = PoolAttrs {
            kernel,
            strides,
            dilations,
            padding,
            ceil_mode: self.decisions.one_in(3),
            count_include_pad: self.decisions.one_in(3),
            column_major_indices: false,
        };
        if self.decisions.one_in(2) {
            self.try_add_one(Op::MaxPool(PoolAttrs { count_include_pad: false, ..attrs }), &[Some(x)]);
        } else {
            self.try_add_one(Op::AveragePool(attrs), &[Some(x)]);
        }
    }

    fn split(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let axis = if self.decisions.one_in(2) { 1 } else { self.decisions.below(shape.len()) };
        let length = shape[axis];
        let first = if length > 16 && self.decisions.one_in(2) { 16 } else { 1 + self.decisions.below(length) };
        let mut parts = vec![first as i64];
        if first < length {
            parts.push((length - first) as i64);
        }
        let count = parts.len();
        let lengths = self.ints(parts);
        self.try_add(Op::Split { axis: axis as i64 }, &[Some(x), lengths], count);
    }

    fn slice(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let (mut starts, mut ends, mut axes, mut steps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for axis in 0..shape.len() {
            if self.decisions.below(2) == 0 {
                continue;
            }
            let n = shape[axis];
            let first = self.decisions.below(n) as i64;
            let last = first + 1 + self.decisions.below(n) as i64;
            let backwards = self.decisions.below(4) == 3;
            starts.push(if backwards { last.min(n as i64) - 1 } else { first });
            ends.push(if backwards { first - 1 - n as i64 } else { last });
            axes.push(axis as i64);
            steps.push((1 + self.decisions.below(2) as i64) * if backwards { -1 } else { 1 });
        }
        let inputs = [self.ints(starts), self.ints(ends), self.ints(axes), self.ints(steps)];
        self.try_add_one(Op::Slice, &[&[Some(x)][..], &inputs].concat());
    }

    fn transpose(&mut self, x: ValueId) {
        let first = if self.decisions.one_in(3) { 0 } else { 2 };
        let mut perm: Vec<usize> = (0..self.axes + 2).collect();
        for i in (first + 1..perm.len()).rev() {
            let j = first + self.decisions.below(i + 1 - first);
            perm.swap(i, j);
        }
        self.try_add_one(Op::Transpose { perm }, &[Some(x)]);
    }

    fn pad(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let mode = self.decisions.pick(&[PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap]);
        let spatial_only = !self.decisions.one_in(4);
        let mut pads = Vec::new();
        for _ in 0..2 {
            for (axis, n) in shape.iter().enumerate() {
                let most = if mode == PadMode::Constant || mode == PadMode::Edge { 3 } else { 3.min(*n) };
                let width = if axis < 2 && spatial_only { 0 } else { self.decisions.below(most) as i64 };
                pads.push(if self.decisions.below(16) == 7 { -width } else { width });
            }
        }
        // Negative pads (cropping) are generated only in constant mode; other modes use the absolute widths.
        let crops_unsupported = pads.iter().any(|p| *p < 0) && mode != PadMode::Constant;
        let pads = if crops_unsupported { pads.iter().map(|p| p.abs()).collect() } else { pads };
        let pads = self.ints(pads);
        let value = if mode == PadMode::Constant && self.decisions.one_in(2) {
            self.constant(Tensor::scalar(0.25f32))
        } else {
            None
        };
        self.try_add_one(Op::Pad { mode }, &[Some(x), pads, value]);
    }

    fn binary(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let alike: Vec<ValueId> = self.values.iter().copied().filter(|v| self.shape(*v) == shape).collect();
        let other = self.decisions.pick(&alike);
        let ops =
            [BinaryOp::Add, BinaryOp::Add, BinaryOp::Add, BinaryOp::Mul, BinaryOp::Sub, BinaryOp::Max, BinaryOp::Min];
        let op = self.decisions.pick(&ops);
        let inputs = if self.decisions.one_in(2) { [Some(other), Some(x)] } else { [Some(x), Some(other)] };
        self.try_add_one(Op::Binary(op), &inputs);
    }

    /// Combines a value with a scalar, a number per channel, or a constant of the same shape.
    fn with_constant(&mut self, x: ValueId) -> Result<()> {
        let shape = self.shape(x);
        let op = self.decisions.pick(&[BinaryOp::Add, BinaryOp::Mul, BinaryOp::Sub, BinaryOp::Max]);
        let other = match self.decisions.below(4) {
            0 => Vec::new(),
            1 => [&[shape[1]][..], &vec![1; self.axes]].concat(),
            2 => [&[1, shape[1]][..], &vec![1; self.axes]].concat(),
            _ => shape,
        };
        let other = self.noise(&other, 1.0)?;
        let inputs = if self.decisions.one_in(3) { [other, Some(x)] } else { [Some(x), other] };
        self.try_add_one(Op::Binary(op), &inputs);
        Ok(())
    }

    fn activation(&mut self, x: ValueId) -> Option<ValueId> {
        let activation = self.decisions.pick(&[
            Activation::Relu,
            Activation::Relu,
            Activation::LeakyRelu { alpha: 0.1 },
            Activation::LeakyRelu { alpha: 0.01 },
            Activation::Sigmoid,
            Activation::Tanh,
            Activation::Elu { alpha: 1.0 },
            Activation::Gelu { tanh: false },
            Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
            Activation::HardSwish,
            Activation::Mish,
            Activation::Softplus,
            Activation::Softsign,
            Activation::Selu { alpha: 1.673_263_2, gamma: 1.050_701 },
        ]);
        self.try_add_one(Op::Activation(activation), &[Some(x)])
    }

    fn norm(&mut self, x: ValueId) -> Option<ValueId> {
        let channels = self.shape(x)[1];
        let (scale, bias) = (self.by_channel(channels, 1.0, 0.2), self.by_channel(channels, 0.0, 0.3));
        match self.decisions.below(3) {
            0 => self.try_add_one(Op::InstanceNormalization { epsilon: 1e-3 }, &[Some(x), scale, bias]),
            1 => {
                let groups = [4, 3, 2, 1].into_iter().find(|g| channels.is_multiple_of(*g)).unwrap_or(1);
                self.try_add_one(Op::GroupNormalization { groups, epsilon: 1e-3 }, &[Some(x), scale, bias])
            }
            _ => {
                let (mean, variance) = (self.by_channel(channels, 0.0, 0.3), self.by_channel(channels, 2.0, 0.3));
                self.try_add_one(Op::BatchNormalization { epsilon: 1e-3 }, &[Some(x), scale, bias, mean, variance])
            }
        }
    }

    fn reduce(&mut self, x: ValueId) {
        match self.decisions.below(4) {
            0 => drop(self.try_add_one(Op::GlobalAveragePool, &[Some(x)])),
            1 => drop(self.try_add_one(Op::GlobalMaxPool, &[Some(x)])),
            2 => drop(self.try_add_one(Op::Softmax { axis: 1 }, &[Some(x)])),
            _ => {
                let axis = self.decisions.below(self.axes + 2) as i64;
                let axes = self.ints(vec![axis]);
                let kind = self.decisions.pick(&[ReduceOp::Mean, ReduceOp::Max, ReduceOp::Sum]);
                self.try_add_one(Op::Reduce { kind, keep_dims: true, noop_with_empty_axes: false }, &[Some(x), axes]);
            }
        }
    }

    /// Adds a convolution with its usual followers: a norm, a residual, an activation.
    fn block(&mut self, x: ValueId) -> Result<()> {
        let Some(mut y) = self.conv(x)? else { return Ok(()) };
        if self.decisions.one_in(2) {
            y = self.norm(y).unwrap_or(y);
        }
        let shape = self.shape(y);
        let alike: Vec<ValueId> = self.values.iter().copied().filter(|v| self.shape(*v) == shape).collect();
        if self.decisions.one_in(2) {
            let other = self.decisions.pick(&alike);
            y = self.try_add_one(Op::Binary(BinaryOp::Add), &[Some(y), Some(other)]).unwrap_or(y);
        }
        if self.decisions.one_in(2) {
            self.activation(y);
        }
        Ok(())
    }

    fn misc(&mut self, x: ValueId) {
        match self.decisions.below(4) {
            0 => drop(self.try_add_one(Op::Identity, &[Some(x)])),
            1 => drop(self.try_add_one(Op::Unary(UnaryOp::Abs), &[Some(x)])),
            2 => drop(self.try_add_one(Op::Unary(UnaryOp::Neg), &[Some(x)])),
            _ => {
                let gate = self.try_add_one(Op::Activation(Activation::Sigmoid), &[Some(x)]);
                self.try_add_one(Op::Binary(BinaryOp::Mul), &[Some(x), gate]);
            }
        }
    }
}
