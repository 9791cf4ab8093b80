//! Cross-layer equalization: channels are brought to similar ranges before they share one scale. A channel is
//! multiplied where it is produced and divided where it is read, which leaves the float network unchanged (Nagel et al.
//! 2019, "Data-free quantization through weight equalization and bias correction").
//!
//! This is valid if all functions in between satisfy f(s·x) = s·f(x) for s > 0: ReLU, LeakyReLU, sums, pools, resizing,
//! concatenation. Channels are produced by a convolution (plain or transposed) or an instance norm with constant
//! parameters.

use std::collections::{BTreeMap, BTreeSet};

use super::layers::quantizable_layers;
use cytoscope_graph::{Activation, BinaryOp, Dim, Graph, GraphError, Node, Op, Result, Tensor, ValueId};

/// Values whose channel c can be multiplied by a common factor without changing what the graph computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// Tensors that must be scaled together.
    pub values: Vec<ValueId>,
    /// Number of channels (axis 1), the same for all values.
    pub channels: usize,
    /// Nodes that produce them from constants that can be scaled.
    producers: Vec<usize>,
    /// Convolutions that read them, with the input channel at which their channels begin.
    readers: Vec<(usize, usize)>,
}

/// State of the search for domains.
struct Search<'g> {
    graph: &'g Graph,
    parent: Vec<usize>,
    /// Values that must not be scaled.
    excluded: BTreeSet<ValueId>,
    /// Inputs of concatenations and the output channel at which each begins.
    parts: BTreeMap<ValueId, Vec<(ValueId, usize)>>,
}

impl Search<'_> {
    fn root(&self, id: ValueId) -> usize {
        let mut at = id.index();
        while let Some(&up) = self.parent.get(at).filter(|up| **up != at) {
            at = up;
        }
        at
    }

    fn join(&mut self, a: ValueId, b: ValueId) {
        let (a, b) = (self.root(a), self.root(b));
        if let Some(slot) = self.parent.get_mut(a) {
            *slot = b;
        }
    }

    fn channels(&self, id: ValueId) -> Option<usize> {
        self.graph.value(id).shape.as_ref()?.get(1)?.fixed()
    }

    fn exclude(&mut self, ids: impl IntoIterator<Item = ValueId>) {
        self.excluded.extend(ids);
    }

    /// Collects the values concatenated in `id`, each with its first channel.
    fn collect_parts(&self, id: ValueId, offset: usize, depth: usize, to: &mut Vec<(ValueId, usize)>) {
        match self.parts.get(&id) {
            Some(parts) if depth < 64 => {
                parts.iter().for_each(|(part, at)| self.collect_parts(*part, offset + at, depth + 1, to));
            }
            _ => to.push((id, offset)),
        }
    }
}

/// Returns the inputs that a node passes on with their scale; `None` for any other node.
fn scale_preserving_inputs(search: &Search<'_>, node: &Node) -> Option<Vec<ValueId>> {
    let same_shape = |a: ValueId, b: ValueId| {
        let shape = |id: ValueId| search.graph.value(id).shape.clone().filter(|s: &Vec<Dim>| s.len() > 1);
        shape(a).is_some_and(|s| Some(s) == shape(b))
    };
    let x = node.input(0)?;
    match &node.op {
        Op::Activation(Activation::Relu | Activation::LeakyRelu { .. })
        | Op::GlobalAveragePool
        | Op::GlobalMaxPool
        | Op::AveragePool(_) => Some(vec![x]),
        Op::MaxPool(_) if node.output(1).is_none() => Some(vec![x]),
        op if op.resamples_linearly() => (search.channels(x) == search.channels(node.output(0)?)).then(|| vec![x]),
        Op::Binary(BinaryOp::Add | BinaryOp::Sub) => {
            let other = node.input(1)?;
            same_shape(x, other).then(|| vec![x, other])
        }
        _ => None,
    }
}

/// Returns every domain of a prepared graph that is read by convolutions with constant weights.
pub fn domains(graph: &Graph) -> Vec<Domain> {
    let convolutions: BTreeSet<usize> = quantizable_layers(graph).layers.iter().map(|l| l.node).collect();
    let mut search = Search {
        graph,
        parent: (0..graph.values.len()).collect(),
        excluded: graph.inputs.iter().chain(&graph.outputs).chain(graph.initializers.keys()).copied().collect(),
        parts: BTreeMap::new(),
    };
    let mut producers: Vec<(ValueId, usize)> = Vec::new();
    let mut readers: Vec<(ValueId, usize)> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let inputs: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        let outputs: Vec<ValueId> = node.outputs.iter().flatten().copied().collect();
        let constant =
            |at: usize| node.input(at).is_none_or(|id| graph.constant(id).is_some_and(|t| t.as_f32().is_some()));
        if convolutions.contains(&index) && constant(2) {
            readers.extend(node.input(0).map(|id| (id, index)));
            producers.extend(outputs.first().map(|id| (*id, index)));
        } else if matches!(node.op, Op::InstanceNormalization { .. }) && constant(1) && constant(2) {
            // An instance norm removes the scale of its input, so scaling that input has no effect.
            search.exclude(node.input(0));
            producers.extend(outputs.first().map(|id| (*id, index)));
        } else if let Some(passed) = scale_preserving_inputs(&search, node) {
            for id in passed {
                outputs.iter().for_each(|o| search.join(id, *o));
            }
        } else if let Some(offsets) = concatenated_channels(&search, node) {
            search.parts.extend(outputs.first().map(|id| (*id, offsets)));
        } else {
            search.exclude(inputs.into_iter().chain(outputs));
        }
    }
    // A concatenation is not scaled if anything but a convolution or another concatenation reads it.
    let mut members: BTreeMap<usize, usize> = BTreeMap::new();
    for index in 0..graph.values.len() {
        *members.entry(search.root(ValueId(index as u32))).or_default() += 1;
    }
    let together: BTreeSet<ValueId> = search.parts.keys().copied().collect();
    for id in together {
        let alone = members.get(&search.root(id)) == Some(&1);
        if !alone || search.excluded.contains(&id) {
            let mut parts = Vec::new();
            search.collect_parts(id, 0, 0, &mut parts);
            search.exclude(parts.into_iter().map(|(part, _)| part));
            // Concatenations that contain it cannot be scaled either, because no producer node can apply the factor.
            search.exclude([id]);
        }
    }
    collect(&search, &producers, &readers)
}

/// Returns the inputs of a concatenation along the channels, each with its first channel.
fn concatenated_channels(search: &Search<'_>, node: &Node) -> Option<Vec<(ValueId, usize)>> {
    super::groups::moved_inputs(search.graph, node).filter(|_| node.op.joined_axis().is_some())?;
    let mut at = 0;
    let mut parts = Vec::new();
    for id in node.inputs.iter().flatten() {
        parts.push((*id, at));
        at += search.channels(*id)?;
    }
    Some(parts)
}

fn collect(search: &Search<'_>, producers: &[(ValueId, usize)], readers: &[(ValueId, usize)]) -> Vec<Domain> {
    let excluded: BTreeSet<usize> = search.excluded.iter().map(|id| search.root(*id)).collect();
    let mut found: BTreeMap<usize, Domain> = BTreeMap::new();
    for &(id, node) in producers {
        let Some(channels) = search.channels(id) else { continue };
        let empty = || Domain { values: Vec::new(), channels, producers: Vec::new(), readers: Vec::new() };
        found.entry(search.root(id)).or_insert_with(empty).producers.push(node);
    }
    for &(id, node) in readers {
        let mut parts = Vec::new();
        search.collect_parts(id, 0, 0, &mut parts);
        for (part, offset) in parts {
            if let Some(domain) = found.get_mut(&search.root(part)) {
                domain.readers.push((node, offset));
            }
        }
    }
    for index in 0..search.graph.values.len() {
        let id = ValueId(index as u32);
        if let Some(domain) = found.get_mut(&search.root(id)) {
            domain.values.push(id);
        }
    }
    let whole = |d: &Domain| d.values.iter().all(|id| search.channels(*id) == Some(d.channels));
    found
        .into_iter()
        .filter(|(root, d)| !excluded.contains(root) && !d.readers.is_empty() && whole(d))
        .map(|(_, d)| d)
        .collect()
}

/// Maps each element of a convolution's weight to its output and input channel.
#[derive(Clone, Copy)]
struct WeightIndex {
    transposed: bool,
    rows: usize,
    columns: usize,
    taps: usize,
    group: usize,
}

impl WeightIndex {
    fn of(node: &Node, shape: &[usize]) -> Option<Self> {
        let (transposed, group) = match &node.op {
            Op::Conv(a) => (false, a.group),
            Op::ConvTranspose(a) => (true, a.group),
            _ => return None,
        };
        let (rows, columns) = (*shape.first()?, *shape.get(1)?);
        let taps = shape.iter().skip(2).product::<usize>();
        Some(Self { transposed, rows, columns: columns.max(1), taps: taps.max(1), group: group.max(1) })
    }

    /// Returns the output and input channel of element `index`.
    fn channels(self, index: usize) -> (usize, usize) {
        let row = index / (self.columns * self.taps);
        let column = index / self.taps % self.columns;
        let other_channel = row / (self.rows / self.group).max(1) * self.columns + column;
        if self.transposed { (other_channel, row) } else { (row, other_channel) }
    }
}

impl Domain {
    /// Returns the influence of each channel on the convolutions that read it: the largest |w| of the channel relative
    /// to the largest |w| of the same output channel, between 0 and 1.
    pub fn weight_shares(&self, graph: &Graph) -> Vec<f32> {
        let mut shares = vec![0.0f32; self.channels];
        for &(index, offset) in &self.readers {
            let Some(node) = graph.nodes.get(index) else { continue };
            let Some(weight) = node.input(1).and_then(|id| graph.constant(id)) else { continue };
            let (Some(weight_index), Some(values)) = (WeightIndex::of(node, weight.shape()), weight.as_f32()) else {
                continue;
            };
            let mut largest: BTreeMap<usize, f32> = BTreeMap::new();
            for (i, w) in values.iter().enumerate() {
                let held = largest.entry(weight_index.channels(i).0).or_default();
                *held = held.max(w.abs());
            }
            for (i, w) in values.iter().enumerate() {
                let (out, read) = weight_index.channels(i);
                let whole = largest.get(&out).copied().unwrap_or(0.0);
                if let Some(share) = read.checked_sub(offset).and_then(|c| shares.get_mut(c))
                    && whole > 0.0
                {
                    *share = share.max(w.abs() / whole);
                }
            }
        }
        shares
    }

    /// Multiplies the channels by `factors` where they are produced and divides them where they are read. The graph
    /// computes the same values, up to float rounding.
    ///
    /// # Errors
    /// [`GraphError::Misused`] unless there is one positive, finite factor per channel.
    pub fn multiply(&self, graph: &mut Graph, factors: &[f32]) -> Result<()> {
        let valid = factors.len() == self.channels && factors.iter().all(|f| f.is_normal() && *f > 0.0);
        if !valid {
            return Err(GraphError::misused(
                "factors of channels",
                format!("{factors:?}"),
                format!("{} positive numbers", self.channels),
            ));
        }
        let factor = |channel: usize| factors.get(channel).copied().unwrap_or(1.0);
        for &index in &self.producers {
            let Some(node) = graph.nodes.get(index) else { continue };
            let weight_index =
                node.input(1).and_then(|id| graph.constant(id)).and_then(|w| WeightIndex::of(node, w.shape()));
            match weight_index {
                Some(weight_index) => {
                    scale_constant(graph, index, 1, |i| factor(weight_index.channels(i).0))?;
                    scale_constant(graph, index, 2, factor)?;
                }
                None => {
                    scale_constant(graph, index, 1, factor)?;
                    scale_constant(graph, index, 2, factor)?;
                }
            }
        }
        for &(index, offset) in &self.readers {
            let Some(node) = graph.nodes.get(index) else { continue };
            let weight_index =
                node.input(1).and_then(|id| graph.constant(id)).and_then(|w| WeightIndex::of(node, w.shape()));
            let Some(weight_index) = weight_index else { continue };
            scale_constant(graph, index, 1, |i| {
                let channel = weight_index.channels(i).1.checked_sub(offset).filter(|c| *c < factors.len());
                channel.map_or(1.0, |c| 1.0 / factor(c))
            })?;
        }
        Ok(())
    }
}

/// Scales a node's constant input element by element; a constant with other readers is copied first.
fn scale_constant(graph: &mut Graph, index: usize, input: usize, by: impl Fn(usize) -> f32) -> Result<()> {
    let Some(id) = graph.nodes.get(index).and_then(|n| n.input(input)) else { return Ok(()) };
    let Some(tensor) = graph.constant(id) else { return Ok(()) };
    let Some(values) = tensor.as_f32() else { return Ok(()) };
    let values: Vec<f32> = values.iter().enumerate().map(|(i, v)| v * by(i)).collect();
    let scaled = Tensor::new(tensor.shape(), values)?;
    let readers = graph.nodes.iter().flat_map(|n| n.inputs.iter().flatten()).filter(|r| **r == id).count();
    if readers == 1 && !graph.outputs.contains(&id) {
        graph.initializers.insert(id, scaled.into());
        return Ok(());
    }
    let own = graph.add_initializer(format!("{}_equalized", graph.value(id).name), scaled);
    if let Some(slot) = graph.nodes.get_mut(index).and_then(|n| n.inputs.get_mut(input)) {
        *slot = Some(own);
    }
    Ok(())
}
