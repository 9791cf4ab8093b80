//! Making channels alike before they share one scale: a channel is multiplied where it is made and divided where it is read, which
//! changes nothing in floats (cross-layer equalization; Nagel et al. 2019, "Data-free quantization through weight equalization
//! and bias correction").
//!
//! It holds wherever only functions with f(s·x) = s·f(x) for s > 0 lie between: ReLU, LeakyReLU, sums, pools, resizing,
//! concatenation. What makes a channel is a convolution (plain or transposed) or an instance norm with constant parameters.

use std::collections::{BTreeMap, BTreeSet};

use super::layers::survey;
use crate::error::{GraphError, Result};
use crate::graph::{Dim, Graph, Node, ValueId};
use crate::op::{Activation, BinaryOp, CoordinateMode, Op};
use crate::tensor::Tensor;

/// Values whose channel c is multiplied by one factor without changing what the graph computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// The values.
    pub values: Vec<ValueId>,
    /// Their channels (axis 1).
    pub channels: usize,
    /// Nodes that make them out of constants that can be multiplied.
    makers: Vec<usize>,
    /// Convolutions that read them, and the input channel at which theirs begin.
    readers: Vec<(usize, usize)>,
}

/// What is known while domains are looked for.
struct Search<'g> {
    graph: &'g Graph,
    parent: Vec<usize>,
    /// Values that cannot be multiplied.
    barred: BTreeSet<ValueId>,
    /// Parts of concatenations and where their channels begin.
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

    fn bar(&mut self, ids: impl IntoIterator<Item = ValueId>) {
        self.barred.extend(ids);
    }

    /// The values that lie side by side in `id`, each with its first channel.
    fn spread(&self, id: ValueId, offset: usize, depth: usize, to: &mut Vec<(ValueId, usize)>) {
        match self.parts.get(&id) {
            Some(parts) if depth < 64 => {
                parts.iter().for_each(|(part, at)| self.spread(*part, offset + at, depth + 1, to));
            }
            _ => to.push((id, offset)),
        }
    }
}

/// The values that a node passes on, scaled as it finds them; `None` if it does something else.
fn passes_on(search: &Search<'_>, node: &Node) -> Option<Vec<ValueId>> {
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
        Op::Resize(a) if a.coordinates != CoordinateMode::TfCropAndResize => {
            (search.channels(x) == search.channels(node.output(0)?)).then(|| vec![x])
        }
        Op::Binary(BinaryOp::Add | BinaryOp::Sub) => {
            let other = node.input(1)?;
            same_shape(x, other).then(|| vec![x, other])
        }
        _ => None,
    }
}

/// Every domain of a prepared graph that convolutions with constant weights read.
pub fn domains(graph: &Graph) -> Vec<Domain> {
    let convolutions: BTreeSet<usize> = survey(graph).layers.iter().map(|l| l.node).collect();
    let mut search = Search {
        graph,
        parent: (0..graph.values.len()).collect(),
        barred: graph.inputs.iter().chain(&graph.outputs).chain(graph.initializers.keys()).copied().collect(),
        parts: BTreeMap::new(),
    };
    let mut makers: Vec<(ValueId, usize)> = Vec::new();
    let mut readers: Vec<(ValueId, usize)> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let inputs: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        let outputs: Vec<ValueId> = node.outputs.iter().flatten().copied().collect();
        let constant =
            |at: usize| node.input(at).is_none_or(|id| graph.constant(id).is_some_and(|t| t.as_f32().is_some()));
        if convolutions.contains(&index) && constant(2) {
            readers.extend(node.input(0).map(|id| (id, index)));
            makers.extend(outputs.first().map(|id| (*id, index)));
        } else if matches!(node.op, Op::InstanceNormalization { .. }) && constant(1) && constant(2) {
            // It takes the scale of what it reads away: nothing is gained by changing that.
            search.bar(node.input(0));
            makers.extend(outputs.first().map(|id| (*id, index)));
        } else if let Some(passed) = passes_on(&search, node) {
            for id in passed {
                outputs.iter().for_each(|o| search.join(id, *o));
            }
        } else if let Some(offsets) = side_by_side(&search, node) {
            search.parts.extend(outputs.first().map(|id| (*id, offsets)));
        } else {
            search.bar(inputs.into_iter().chain(outputs));
        }
    }
    // A concatenation that anything but a convolution or another concatenation looks into is left alone.
    let mut members: BTreeMap<usize, usize> = BTreeMap::new();
    for index in 0..graph.values.len() {
        *members.entry(search.root(ValueId(index as u32))).or_default() += 1;
    }
    let together: BTreeSet<ValueId> = search.parts.keys().copied().collect();
    for id in together {
        let alone = members.get(&search.root(id)) == Some(&1);
        if !alone || search.barred.contains(&id) {
            let mut parts = Vec::new();
            search.spread(id, 0, 0, &mut parts);
            search.bar(parts.into_iter().map(|(part, _)| part));
            // Nor can what its values go into: nothing makes them there.
            search.bar([id]);
        }
    }
    collect(&search, &makers, &readers)
}

/// The parts of a concatenation of channels, each with its first channel.
fn side_by_side(search: &Search<'_>, node: &Node) -> Option<Vec<(ValueId, usize)>> {
    super::groups::moves(search.graph, node).filter(|_| matches!(node.op, Op::Concat { .. }))?;
    let mut at = 0;
    let mut parts = Vec::new();
    for id in node.inputs.iter().flatten() {
        parts.push((*id, at));
        at += search.channels(*id)?;
    }
    Some(parts)
}

fn collect(search: &Search<'_>, makers: &[(ValueId, usize)], readers: &[(ValueId, usize)]) -> Vec<Domain> {
    let barred: BTreeSet<usize> = search.barred.iter().map(|id| search.root(*id)).collect();
    let mut found: BTreeMap<usize, Domain> = BTreeMap::new();
    for &(id, node) in makers {
        let Some(channels) = search.channels(id) else { continue };
        let empty = || Domain { values: Vec::new(), channels, makers: Vec::new(), readers: Vec::new() };
        found.entry(search.root(id)).or_insert_with(empty).makers.push(node);
    }
    for &(id, node) in readers {
        let mut parts = Vec::new();
        search.spread(id, 0, 0, &mut parts);
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
        .filter(|(root, d)| !barred.contains(root) && !d.readers.is_empty() && whole(d))
        .map(|(_, d)| d)
        .collect()
}

/// Tells the output and input channel of each element of a convolution's weight.
#[derive(Clone, Copy)]
struct Taps {
    transposed: bool,
    rows: usize,
    columns: usize,
    taps: usize,
    group: usize,
}

impl Taps {
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

    /// Output and input channel of element `index`.
    fn channels(self, index: usize) -> (usize, usize) {
        let row = index / (self.columns * self.taps);
        let column = index / self.taps % self.columns;
        let across = row / (self.rows / self.group).max(1) * self.columns + column;
        if self.transposed { (across, row) } else { (row, across) }
    }
}

impl Domain {
    /// For each channel, how much the convolutions that read it make of it: the largest |w| on it relative to the largest |w| of
    /// the same output channel, between 0 and 1.
    pub fn weight_shares(&self, graph: &Graph) -> Vec<f32> {
        let mut shares = vec![0.0f32; self.channels];
        for &(index, offset) in &self.readers {
            let Some(node) = graph.nodes.get(index) else { continue };
            let Some(weight) = node.input(1).and_then(|id| graph.constant(id)) else { continue };
            let (Some(taps), Some(values)) = (Taps::of(node, weight.shape()), weight.as_f32()) else { continue };
            let mut largest: BTreeMap<usize, f32> = BTreeMap::new();
            for (i, w) in values.iter().enumerate() {
                let held = largest.entry(taps.channels(i).0).or_default();
                *held = held.max(w.abs());
            }
            for (i, w) in values.iter().enumerate() {
                let (out, read) = taps.channels(i);
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

    /// Multiplies the values' channels by `factors`, and divides where they are read: what the graph computes stays the same, up to
    /// rounding in floats.
    ///
    /// # Errors
    /// [`GraphError::Misused`] if there is not one positive, finite factor a channel.
    pub fn multiply(&self, graph: &mut Graph, factors: &[f32]) -> Result<()> {
        let sound = factors.len() == self.channels && factors.iter().all(|f| f.is_normal() && *f > 0.0);
        if !sound {
            return Err(GraphError::misused(
                "factors of channels",
                format!("{factors:?}"),
                format!("{} positive numbers", self.channels),
            ));
        }
        let factor = |channel: usize| factors.get(channel).copied().unwrap_or(1.0);
        for &index in &self.makers {
            let Some(node) = graph.nodes.get(index) else { continue };
            let taps = node.input(1).and_then(|id| graph.constant(id)).and_then(|w| Taps::of(node, w.shape()));
            match taps {
                Some(taps) => {
                    replace(graph, index, 1, |i| factor(taps.channels(i).0))?;
                    replace(graph, index, 2, factor)?;
                }
                None => {
                    replace(graph, index, 1, factor)?;
                    replace(graph, index, 2, factor)?;
                }
            }
        }
        for &(index, offset) in &self.readers {
            let Some(node) = graph.nodes.get(index) else { continue };
            let taps = node.input(1).and_then(|id| graph.constant(id)).and_then(|w| Taps::of(node, w.shape()));
            let Some(taps) = taps else { continue };
            replace(graph, index, 1, |i| {
                let channel = taps.channels(i).1.checked_sub(offset).filter(|c| *c < factors.len());
                channel.map_or(1.0, |c| 1.0 / factor(c))
            })?;
        }
        Ok(())
    }
}

/// Multiplies a node's constant input, element by element; one that other nodes read too is copied first.
fn replace(graph: &mut Graph, index: usize, input: usize, by: impl Fn(usize) -> f32) -> Result<()> {
    let Some(id) = graph.nodes.get(index).and_then(|n| n.input(input)) else { return Ok(()) };
    let Some(tensor) = graph.constant(id) else { return Ok(()) };
    let Some(values) = tensor.as_f32() else { return Ok(()) };
    let values: Vec<f32> = values.iter().enumerate().map(|(i, v)| v * by(i)).collect();
    let made = Tensor::new(tensor.shape(), values)?;
    let readers = graph.nodes.iter().flat_map(|n| n.inputs.iter().flatten()).filter(|r| **r == id).count();
    if readers == 1 && !graph.outputs.contains(&id) {
        graph.initializers.insert(id, made.into());
        return Ok(());
    }
    let own = graph.add_initializer(format!("{}_equalized", graph.value(id).name), made);
    if let Some(slot) = graph.nodes.get_mut(index).and_then(|n| n.inputs.get_mut(input)) {
        *slot = Some(own);
    }
    Ok(())
}
