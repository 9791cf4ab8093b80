//! Random networks generated from bytes, for comparing executors: the same bytes give the same network everywhere.
//! Tests pass seeded bytes, fuzzers their own.

mod operators;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use cytoscope_graph::infer::Info;
use cytoscope_graph::{
    Budget, Dim, ElementType, Graph, GraphError, GraphLimits, Interrupt, Node, Op, Result, Tensor, ValueId, op_name,
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
        budget: Budget::with_constant_bytes(0, Interrupt::default()),
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

/// Returns bytes for [`random_network`] from a seed.
pub fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    (0..count).map(|_| (split_mix(&mut state) >> 56) as u8).collect()
}

/// Advances the state of SplitMix64 (Steele, Lea & Flood 2014) and returns its next number.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
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

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let at = self.below(choices.len());
        choices[at]
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
    fn channel_constant(&mut self, channels: usize, middle: f32, deviation: f32) -> Option<ValueId> {
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
            _ => self.identity_or_unary(x),
        }
        Ok(())
    }
}
