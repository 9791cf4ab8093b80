//! Rewrites convolutions of upsampled tensors, so that they run on the tensors before they are upsampled.
//!
//! - A convolution of a nearest-neighbor enlargement by integer factors is a transposed convolution, whose taps are sums of
//!   those of the convolution: with a factor of 2 and a kernel of length 3, 2 products per axis instead of 3.
//! - A convolution with a kernel of length 1 and an interpolation along the spatial axes can be swapped, as the weights of an
//!   interpolation add up to 1.
//! - Paddings that are cropped again are removed; exporters of networks that accept all sizes write them.

use crate::concat::channel_parts;
use crate::resize::tables;
use cytoscope_graph::infer::rules::pad_plan;
use cytoscope_graph::{
    BinaryOp, ConvAttrs, ConvTransposeAttrs, Dim, ElementType, Graph, GraphError, Node, Op, PadMode, Padding, Tensor,
    ValueId,
};
use std::collections::BTreeMap;

/// Fewest channels of an upsampled tensor whose convolution is transposed: for fewer, the additional pass over the output
/// costs more than the products that are saved.
const LEAST_CHANNELS: usize = 8;

/// Rewrites all such convolutions of a graph with fixed shapes. Results differ by rounding only.
///
/// # Errors
/// None in a valid graph.
pub(crate) fn rewrite(graph: &mut Graph) -> Result<(), GraphError> {
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Resize(_))) {
        return Ok(());
    }
    merge_pads(graph);
    cytoscope_graph_passes::eliminate_identity(graph);
    // Nodes without readers would count as readers of their inputs.
    cytoscope_graph_passes::eliminate_dead(graph);
    swap_with_pointwise(graph);
    let mut at = 0;
    // Nodes are added; the convolution of the other parts of a concatenation is looked at again.
    while at < graph.nodes.len() {
        transpose(graph, at)?;
        at += 1;
    }
    Ok(())
}

/// Who produces and who reads each value.
struct Links {
    producers: BTreeMap<ValueId, usize>,
    readers: BTreeMap<ValueId, Vec<usize>>,
}

impl Links {
    fn of(graph: &Graph) -> Self {
        let mut readers = graph.consumers();
        // A graph output has a reader that no rewrite may replace.
        graph.outputs.iter().for_each(|id| readers.entry(*id).or_default().push(usize::MAX));
        Self { producers: graph.producers(), readers }
    }

    /// Returns the only node that reads a value.
    fn sole_reader(&self, id: ValueId) -> Option<usize> {
        match self.readers.get(&id).map(Vec::as_slice) {
            Some([one]) if *one != usize::MAX => Some(*one),
            _ => None,
        }
    }

    /// Returns the node that produces a value which only node `reader` reads.
    fn sole_source(&self, id: ValueId, reader: usize) -> Option<usize> {
        (self.sole_reader(id) == Some(reader)).then(|| self.producers.get(&id).copied()).flatten()
    }
}

/// Merges a padding with a cropping that follows it. A node that neither pads nor crops becomes an identity.
fn merge_pads(graph: &mut Graph) {
    let links = Links::of(graph);
    for at in 0..graph.nodes.len() {
        let Some((input, second)) = constant_pads(graph, at) else { continue };
        let before = links.sole_source(input, at).filter(|_| second.iter().all(|(b, a)| *b <= 0 && *a <= 0));
        let before = before.and_then(|before| Some((before, constant_pads(graph, before)?)));
        let (source, amounts, from) = match before {
            Some((node, (source, first))) => {
                let net: Vec<_> = first.iter().zip(&second).map(|(f, s)| (f.0 + s.0, f.1 + s.1)).collect();
                let covers = first.iter().chain(&net).all(|(b, a)| *b >= 0 && *a >= 0);
                if covers { (source, net, node) } else { (input, second, at) }
            }
            None => (input, second, at),
        };
        let node = if amounts.iter().all(|amount| *amount == (0, 0)) {
            Some((Op::Identity, vec![Some(source)]))
        } else if from != at {
            let flat: Vec<i64> = amounts.iter().map(|(b, _)| *b).chain(amounts.iter().map(|(_, a)| *a)).collect();
            let value = graph.nodes[from].input(2);
            let amounts = graph.add_initializer("pads", Tensor::vector(flat));
            Some((Op::Pad { mode: PadMode::Constant }, vec![Some(source), Some(amounts), value]))
        } else {
            None
        };
        if let Some((op, inputs)) = node {
            graph.nodes[at].op = op;
            graph.nodes[at].inputs = inputs;
        }
    }
}

/// Returns the input of a padding with a constant, and the elements that it adds before and after each axis.
fn constant_pads(graph: &Graph, at: usize) -> Option<(ValueId, Vec<(i64, i64)>)> {
    let node = graph.nodes.get(at)?;
    if node.op != (Op::Pad { mode: PadMode::Constant }) {
        return None;
    }
    let input = node.input(0)?;
    let rank = graph.value(input).shape.as_ref()?.len();
    let amounts = graph.constant(node.input(1)?)?;
    let axes = match node.input(3) {
        Some(axes) => Some(graph.constant(axes)?.to_i64_vec()?),
        None => None,
    };
    Some((input, pad_plan(rank, amounts.as_i64()?, axes.as_deref()).ok()?))
}

/// Moves convolutions with a kernel of length 1 before the interpolation whose result they read, if that is smaller.
fn swap_with_pointwise(graph: &mut Graph) {
    for at in 0..graph.nodes.len() {
        let links = Links::of(graph);
        let Some((resize, from)) = pointwise_after_resize(graph, &links, at) else { continue };
        let (small, large) = (graph.nodes[resize].input(0), graph.nodes[at].output(0));
        let (Some(small), Some(large)) = (small, large) else { continue };
        let Some(channels) = graph.value(large).fixed_shape().and_then(|shape| shape.get(1).copied()) else { continue };
        let name = format!("{}_before_resize", graph.nodes[at].name);
        let shape =
            from.iter().enumerate().map(|(axis, n)| Dim::Fixed(if axis == 1 { channels } else { *n })).collect();
        let between = graph.add_value(name, Some(ElementType::F32), Some(shape));
        set_channels_of_sizes(graph, resize, channels);
        // The convolution takes the place of the resize, so that it comes before it.
        graph.nodes.swap(resize, at);
        let (conv, resize) = (resize, at);
        set_input(&mut graph.nodes[conv], small);
        graph.nodes[conv].outputs = vec![Some(between)];
        set_input(&mut graph.nodes[resize], between);
        graph.nodes[resize].outputs = vec![Some(large)];
    }
}

/// Sets the number of channels in the output lengths of a resize, if it has them instead of scales.
fn set_channels_of_sizes(graph: &mut Graph, resize: usize, channels: usize) {
    let sizes = graph.nodes[resize].input(3).and_then(|id| graph.constant(id)?.to_i64_vec());
    let Some(mut sizes) = sizes else { return };
    sizes.iter_mut().skip(1).take(1).for_each(|n| *n = channels as i64);
    let sizes = graph.add_initializer("sizes", Tensor::vector(sizes));
    graph.nodes[resize].inputs[3] = Some(sizes);
}

fn set_input(node: &mut Node, value: ValueId) {
    if let Some(first) = node.inputs.first_mut() {
        *first = Some(value);
    }
}

/// Returns the resize before a convolution with a kernel of length 1 that can be swapped with it, and the shape before the
/// resize.
fn pointwise_after_resize(graph: &Graph, links: &Links, at: usize) -> Option<(usize, Vec<usize>)> {
    let node = graph.nodes.get(at)?;
    let Op::Conv(attrs) = &node.op else { return None };
    let (input, output) = (node.input(0)?, node.output(0)?);
    let is_pointwise = attrs.kernel.iter().chain(&attrs.strides).all(|n| *n == 1)
        && attrs.padding == Padding::none(attrs.kernel.len());
    let constants = node.inputs.iter().skip(1).flatten().all(|id| graph.constant(*id).is_some());
    if !is_pointwise || !constants {
        return None;
    }
    // An activation is computed with the convolution, but not with the resize.
    let next = links.sole_reader(output).and_then(|next| graph.nodes.get(next));
    if next.is_some_and(|next| matches!(next.op, Op::Activation(_))) {
        return None;
    }
    let resize = links.sole_source(input, at)?;
    let before = graph.nodes.get(resize)?;
    let (from, to) = (graph.value(before.input(0)?).fixed_shape()?, graph.value(input).fixed_shape()?);
    let outputs = graph.value(output).fixed_shape()?;
    tables(graph, &before.op, &before.inputs, &from, &to)?;
    let voxels = |shape: &[usize]| shape.iter().skip(2).product::<usize>();
    let pays = voxels(&from) < voxels(&to) && outputs.get(1) <= from.get(1);
    pays.then_some((resize, from))
}

/// Returns the factors along the spatial axes of a nearest-neighbor resize by integer factors, at least one of them above 1.
fn nearest_factors(graph: &Graph, node: &Node) -> Option<Vec<usize>> {
    let (from, to) = (graph.value(node.input(0)?).fixed_shape()?, graph.value(node.output(0)?).fixed_shape()?);
    let tables = tables(graph, &node.op, &node.inputs, &from, &to)?;
    let lengths = from.get(2..)?.iter().zip(to.get(2..)?);
    let factors: Vec<usize> =
        lengths.map(|(n, m)| (*n > 0 && m.is_multiple_of(*n)).then(|| m / n)).collect::<Option<_>>()?;
    let own = tables.get(3usize.checked_sub(factors.len())?..)?;
    let is_nearest = own.iter().zip(&factors).all(|(table, factor)| {
        table.iter().enumerate().all(|(o, tap)| tap.weight == 0.0 && Some(tap.low) == o.checked_div(*factor))
    });
    (is_nearest && factors.iter().any(|f| *f > 1)).then_some(factors)
}

/// A convolution of an upsampled tensor.
struct Candidate {
    attrs: ConvAttrs,
    /// Padding before and after the image.
    padding: (Vec<usize>, Vec<usize>),
    factors: Vec<usize>,
    /// The tensor before it is upsampled.
    source: ValueId,
    /// First channel of the upsampled tensor in the convolution's input.
    first: usize,
    channels: usize,
    /// Node of the concatenation that the convolution reads, and its other parts.
    others: Option<(usize, Vec<ValueId>)>,
}

fn candidate(graph: &Graph, at: usize) -> Option<Candidate> {
    let node = graph.nodes.get(at)?;
    let Op::Conv(attrs) = &node.op else { return None };
    let input = node.input(0)?;
    let lengths = graph.value(input).fixed_shape()?.get(2..)?.to_vec();
    let one = |values: &[usize]| values.iter().all(|n| *n == 1);
    if attrs.group != 1 || !one(&attrs.strides) || !one(&attrs.dilations) || one(&attrs.kernel) {
        return None;
    }
    if attrs.kernel.len() != lengths.len()
        || node.inputs.iter().skip(1).flatten().any(|id| graph.constant(*id).is_none())
    {
        return None;
    }
    graph.constant(node.input(1)?)?.as_f32()?;
    let padding = attrs.padding.resolve(&lengths, &attrs.kernel, &attrs.strides, &attrs.dilations);
    let inside = |pads: &[usize]| pads.len() == lengths.len() && pads.iter().zip(&attrs.kernel).all(|(p, k)| p < k);
    if !inside(&padding.0) || !inside(&padding.1) {
        return None;
    }
    let links = Links::of(graph);
    let upsampled = |value: ValueId, reader: usize| {
        let node = graph.nodes.get(links.sole_source(value, reader)?)?;
        let channels = graph.value(value).fixed_shape()?.get(1).copied()?;
        let factors = nearest_factors(graph, node).filter(|_| channels >= LEAST_CHANNELS)?;
        Some((node.input(0)?, factors, channels))
    };
    let found = |(source, factors, channels): (ValueId, Vec<usize>, usize), first, others| Candidate {
        attrs: attrs.clone(),
        padding: padding.clone(),
        factors,
        source,
        first,
        channels,
        others,
    };
    if let Some(whole) = upsampled(input, at) {
        return Some(found(whole, 0, None));
    }
    let concat = links.sole_source(input, at)?;
    let parts = channel_parts(graph, graph.nodes.get(concat)?)?;
    let mut first = 0;
    for (place, part) in parts.iter().enumerate() {
        if let Some(one) = upsampled(*part, concat).filter(|_| parts.len() > 1) {
            let others = parts.iter().enumerate().filter(|(i, _)| *i != place).map(|(_, id)| *id).collect();
            return Some(found(one, first, Some((concat, others))));
        }
        first += graph.value(*part).fixed_shape()?.get(1).copied()?;
    }
    None
}

/// Replaces convolution `at`, if it reads an upsampled tensor, by a transposed convolution of the tensor before, and adds the
/// convolution of the other parts of a concatenation, if any.
fn transpose(graph: &mut Graph, at: usize) -> Result<(), GraphError> {
    let Some(of) = candidate(graph, at) else { return Ok(()) };
    let node = graph.nodes[at].clone();
    let (Some(weight), Some(output)) = (node.input(1).and_then(|id| graph.constant(id)).cloned(), node.output(0))
    else {
        return Ok(());
    };
    let (Some(values), &[outputs, inputs, ..]) = (weight.as_f32(), weight.shape()) else { return Ok(()) };
    let (name, result) = (node.name.clone(), graph.value(output).clone());
    let kernel: Vec<usize> = of.attrs.kernel.iter().zip(&of.factors).map(|(k, f)| k + f - 1).collect();
    let pads = |own: &[usize]| own.iter().zip(&of.attrs.kernel).map(|(p, k)| k - 1 - p).collect();
    let attrs = ConvTransposeAttrs {
        strides: of.factors.clone(),
        padding: Padding::Explicit { before: pads(&of.padding.0), after: pads(&of.padding.1) },
        kernel: kernel.clone(),
        ..ConvTransposeAttrs::upsample(&of.factors)
    };
    let own = of.first..of.first + of.channels;
    let summed = summed_taps(values, [outputs, inputs], own.clone(), &of.attrs.kernel, &of.factors);
    let shape = [&[of.channels, outputs][..], &kernel].concat();
    let transposed_weight = graph.add_initializer(format!("{name}_upsampled_weight"), Tensor::new(shape, summed)?);
    let transposed = |bias: Option<ValueId>, output: ValueId| Node {
        name: format!("{name}_upsampled"),
        op: Op::ConvTranspose(attrs),
        inputs: [Some(of.source), Some(transposed_weight)].into_iter().chain(bias.map(Some)).collect(),
        outputs: vec![Some(output)],
    };
    let Some((concat, others)) = of.others else {
        graph.nodes[at] = transposed(node.input(2), output);
        return Ok(());
    };
    let taps: usize = of.attrs.kernel.iter().product();
    let rest: Vec<f32> = values
        .chunks_exact(inputs * taps)
        .flat_map(|row| row[..own.start * taps].iter().chain(&row[own.end * taps..]).copied())
        .collect();
    let shape = [&[outputs, inputs - of.channels][..], &of.attrs.kernel].concat();
    let rest = graph.add_initializer(format!("{name}_other_weight"), Tensor::new(shape, rest)?);
    let [part, sum] = ["upsampled", "others"]
        .map(|what| graph.add_value(format!("{name}_{what}"), result.dtype, result.shape.clone()));
    let input = join_others(graph, concat, &others, inputs - of.channels);
    let inputs = [Some(input), Some(rest)].into_iter().chain(node.input(2).map(Some)).collect();
    graph.nodes[at] = Node { inputs, outputs: vec![Some(sum)], ..node };
    graph.nodes.insert(at, transposed(None, part));
    let add = Node {
        name: format!("{name}_sum"),
        op: Op::Binary(BinaryOp::Add),
        inputs: vec![Some(sum), Some(part)],
        outputs: vec![Some(output)],
    };
    graph.nodes.insert(at + 2, add);
    Ok(())
}

/// Returns the tensor of the other parts of a concatenation, which has one part less from now on.
fn join_others(graph: &mut Graph, concat: usize, others: &[ValueId], channels: usize) -> ValueId {
    if let [one] = others {
        return *one;
    }
    let node = &graph.nodes[concat];
    let shape = node.output(0).and_then(|id| graph.value(id).shape.clone()).map(|mut shape| {
        shape.iter_mut().skip(1).take(1).for_each(|axis| *axis = Dim::Fixed(channels));
        shape
    });
    let value = graph.add_value(format!("{}_others", node.name), Some(ElementType::F32), shape);
    let node = &mut graph.nodes[concat];
    node.inputs = others.iter().copied().map(Some).collect();
    node.outputs = vec![Some(value)];
    value
}

/// Returns the weights `[I][O][kernel + factor − 1]` of the transposed convolution that equals a convolution `[O][I][kernel]`
/// of the channels `own` of an enlargement: tap `t` is the sum of the taps `kernel − 1 − t` to `kernel − 1 − t + factor − 1`
/// along each axis.
fn summed_taps(
    weights: &[f32],
    [outputs, inputs]: [usize; 2],
    own: std::ops::Range<usize>,
    kernel: &[usize],
    factors: &[usize],
) -> Vec<f32> {
    // Three axes, the missing outer ones of length 1.
    let three = |values: &[usize]| crate::window::to_3d(values, 1);
    let (k, f) = (three(kernel), three(factors));
    let to = [0, 1, 2].map(|axis| k[axis] + f[axis] - 1);
    let range = |axis: usize, tap: usize| {
        let first = (k[axis] - 1) as isize - tap as isize;
        let end = (first + f[axis] as isize).min(k[axis] as isize);
        first.max(0) as usize..end.max(0) as usize
    };
    let taps: usize = k.iter().product();
    let mut summed = Vec::with_capacity(own.len() * outputs * to.iter().product::<usize>());
    for i in own {
        for o in 0..outputs {
            let from = weights.get((o * inputs + i) * taps..).unwrap_or_default();
            for place in 0..to.iter().product::<usize>() {
                let at = [place / (to[1] * to[2]), place / to[2] % to[1], place % to[2]];
                let mut sum = 0.0f64;
                for d in range(0, at[0]) {
                    for h in range(1, at[1]) {
                        let row = (d * k[1] + h) * k[2];
                        let along = range(2, at[2]);
                        let own = from.get(row + along.start..row + along.end).unwrap_or_default();
                        sum += own.iter().map(|w| f64::from(*w)).sum::<f64>();
                    }
                }
                summed.push(sum as f32);
            }
        }
    }
    summed
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_graph::{Activation, CoordinateMode, NearestMode, ResizeAttrs, ResizeMode};
    use cytoscope_graph_passes::{eliminate_dead, infer_shapes};
    use proptest::prelude::*;

    /// Reproducible values in -1..1.
    fn noise(shape: &[usize], seed: u64) -> Tensor {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        Tensor::new(shape.to_vec(), (0..shape.iter().product::<usize>()).map(|_| next()).collect::<Vec<f32>>()).unwrap()
    }

    struct Network {
        graph: Graph,
        inputs: Vec<(String, Tensor)>,
    }

    impl Network {
        fn new() -> Self {
            Self { graph: Graph::new("net"), inputs: Vec::new() }
        }

        fn input(&mut self, shape: &[usize]) -> ValueId {
            let name = format!("x{}", self.inputs.len());
            self.inputs.push((name.clone(), noise(shape, 77 + self.inputs.len() as u64)));
            self.graph.add_input(name, ElementType::F32, shape.iter().map(|n| Dim::Fixed(*n)).collect())
        }

        fn resize(&mut self, x: ValueId, attrs: ResizeAttrs, factors: &[usize]) -> ValueId {
            let scales = [1, 1].iter().chain(factors).map(|f| *f as f32).collect::<Vec<f32>>();
            let scales = self.graph.add_initializer("scales", Tensor::vector(scales));
            self.graph.push("resize", Op::resize(attrs), &[Some(x), None, Some(scales)])
        }

        fn pad(&mut self, x: ValueId, amounts: Vec<i64>) -> ValueId {
            let amounts = self.graph.add_initializer("amounts", Tensor::vector(amounts));
            self.graph.push("pad", Op::Pad { mode: PadMode::Constant }, &[Some(x), Some(amounts)])
        }

        fn conv(&mut self, x: ValueId, [inputs, outputs]: [usize; 2], attrs: ConvAttrs) -> ValueId {
            let shape = [&[outputs, inputs][..], &attrs.kernel].concat();
            let weight = self.graph.add_initializer("weight", noise(&shape, 5));
            let bias = self.graph.add_initializer("bias", noise(&[outputs], 6));
            self.graph.push("conv", Op::Conv(attrs), &[Some(x), Some(weight), Some(bias)])
        }

        /// Rewrites the network, checks that its output is the same, and returns the operators.
        fn rewritten(mut self, output: ValueId) -> Vec<&'static str> {
            self.graph.outputs.push(output);
            infer_shapes(&mut self.graph, &[] as &[(ValueId, Vec<usize>)]).unwrap();
            let want = cytoscope_reference::run(&self.graph, &self.inputs).unwrap();
            rewrite(&mut self.graph).unwrap();
            eliminate_dead(&mut self.graph);
            self.graph.validate().unwrap();
            infer_shapes(&mut self.graph, &[] as &[(ValueId, Vec<usize>)]).unwrap();
            let got = cytoscope_reference::run(&self.graph, &self.inputs).unwrap();
            assert_eq!(got[0].shape(), want[0].shape());
            let largest = want[0].as_f32().unwrap().iter().fold(1.0f32, |m, v| m.max(v.abs()));
            for (a, b) in got[0].as_f32().unwrap().iter().zip(want[0].as_f32().unwrap()) {
                assert!((a - b).abs() <= 1e-5 * largest, "{a}, expected {b}");
            }
            self.graph.nodes.iter().map(|node| cytoscope_graph::op_name(&node.op)).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(80))]

        #[test]
        fn convolutions_of_enlargements_become_transposed_convolutions(
            lengths in prop::array::uniform3(1usize..5), factors in prop::array::uniform3(1usize..4),
            kernel in prop::array::uniform3(1usize..6), before in prop::array::uniform3(0usize..5),
            after in prop::array::uniform3(0usize..5), place in 0usize..4,
        ) {
            let mut net = Network::new();
            let long = [0, 1, 2].map(|a| lengths[a] * factors[a]);
            let x = net.input(&[[1, 9][..].to_vec(), lengths.to_vec()].concat());
            let up = net.resize(x, ResizeAttrs::nearest(), &factors);
            let skip = net.input(&[[1, 3][..].to_vec(), long.to_vec()].concat());
            let other = net.input(&[[1, 2][..].to_vec(), long.to_vec()].concat());
            let (x, channels) = match place {
                0 => (up, 9),
                1 => (net.graph.push("concat", Op::concat(1), &[skip, up].map(Some)), 12),
                2 => (net.graph.push("concat", Op::concat(1), &[up, skip].map(Some)), 12),
                _ => (net.graph.push("concat", Op::concat(1), &[skip, up, other].map(Some)), 14),
            };
            let pads = |own: [usize; 3]| [0, 1, 2].map(|a| own[a].min(kernel[a] - 1)).to_vec();
            let padding = Padding::Explicit { before: pads(before), after: pads(after) };
            let fits = (0..3).all(|a| long[a] + pads(before)[a] + pads(after)[a] >= kernel[a]);
            prop_assume!(fits);
            let y = net.conv(x, [channels, 4], ConvAttrs::same(&kernel).with_padding(padding));
            let operators = net.rewritten(y);
            let transposes = factors.iter().any(|f| *f > 1) && kernel.iter().any(|k| *k > 1);
            prop_assert_eq!(operators.contains(&"ConvTranspose"), transposes, "{:?}", operators);
            prop_assert!(!transposes || !operators.contains(&"Resize"), "{:?}", operators);
        }
    }

    #[test]
    fn pads_that_are_cropped_again_do_not_hide_an_enlargement() {
        let mut net = Network::new();
        let (x, skip) = (net.input(&[1, 8, 3, 4]), net.input(&[1, 4, 6, 8]));
        let up = net.resize(x, ResizeAttrs::nearest(), &[2, 2]);
        let larger = net.pad(up, vec![0, 0, 0, 0, 0, 0, 1, 1]);
        let same = net.pad(larger, vec![0, 0, 0, 0, 0, 0, -1, -1]);
        let both = net.graph.push("concat", Op::concat(1), &[skip, same].map(Some));
        let y = net.conv(both, [12, 4], ConvAttrs::same(&[3, 3]));
        assert_eq!(net.rewritten(y), ["ConvTranspose", "Conv", "Add"]);
    }

    #[test]
    fn a_crop_and_a_padding_are_merged_only_in_this_order() {
        let mut net = Network::new();
        let x = net.input(&[1, 2, 6, 6]);
        let up = net.resize(x, ResizeAttrs::nearest(), &[2, 2]);
        // Cropping first loses a row, which the padding replaces by zeros.
        let smaller = net.pad(up, vec![0, 0, -1, 0, 0, 0, 0, 0]);
        let y = net.pad(smaller, vec![0, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(net.rewritten(y), ["Resize", "Pad", "Pad"]);
        let mut net = Network::new();
        let x = net.input(&[1, 2, 6, 6]);
        let up = net.resize(x, ResizeAttrs::nearest(), &[2, 2]);
        let larger = net.pad(up, vec![0, 0, 2, 0, 0, 0, 0, 3]);
        let y = net.pad(larger, vec![0, 0, -1, 0, 0, 0, 0, -1]);
        assert_eq!(net.rewritten(y), ["Resize", "Pad"]);
    }

    #[test]
    fn short_kernels_run_before_an_interpolation() {
        let linear = |coordinates| ResizeAttrs { mode: ResizeMode::Linear, coordinates, ..ResizeAttrs::nearest() };
        let ceil = ResizeAttrs { nearest: NearestMode::Ceil, ..ResizeAttrs::nearest() };
        for attrs in [linear(CoordinateMode::HalfPixel), linear(CoordinateMode::AlignCorners), ceil] {
            let mut net = Network::new();
            let x = net.input(&[1, 6, 3, 4]);
            let up = net.resize(x, attrs, &[2, 3]);
            let y = net.conv(up, [6, 4], ConvAttrs::same(&[1, 1]));
            assert_eq!(net.rewritten(y), ["Conv", "Resize"]);
        }
        // More channels after the convolution than before it, and an activation that is computed with it.
        let mut net = Network::new();
        let x = net.input(&[1, 2, 3, 4]);
        let up = net.resize(x, linear(CoordinateMode::HalfPixel), &[2, 3]);
        let y = net.conv(up, [2, 4], ConvAttrs::same(&[1, 1]));
        assert_eq!(net.rewritten(y), ["Resize", "Conv"]);
        let mut net = Network::new();
        let x = net.input(&[1, 6, 3, 4]);
        let up = net.resize(x, linear(CoordinateMode::HalfPixel), &[2, 3]);
        let y = net.conv(up, [6, 4], ConvAttrs::same(&[1, 1]));
        let y = net.graph.push("act", Op::Activation(Activation::Relu), &[Some(y)]);
        assert_eq!(net.rewritten(y), ["Resize", "Conv", "Relu"]);
    }

    #[test]
    fn an_enlargement_that_is_read_twice_stays() {
        let mut net = Network::new();
        let x = net.input(&[1, 8, 3, 4]);
        let up = net.resize(x, ResizeAttrs::nearest(), &[2, 2]);
        let y = net.conv(up, [8, 8], ConvAttrs::same(&[3, 3]));
        let y = net.graph.push("sum", Op::Binary(BinaryOp::Add), &[y, up].map(Some));
        assert_eq!(net.rewritten(y), ["Resize", "Conv", "Add"]);
    }
}
