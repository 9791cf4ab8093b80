//! Rewrites convolutions of upsampled tensors, so that they run on the tensors before they are upsampled.
//!
//! - A convolution after nearest-neighbor upsampling by integer factors is a transposed convolution, whose taps are sums of
//!   those of the convolution: with a factor of 2 and a kernel of length 3, 2 products per axis instead of 3.
//! - A convolution with a kernel of length 1 and an interpolation along the spatial axes can be swapped, as the weights of an
//!   interpolation add up to 1.
//! - Paddings that are cropped again are removed; exporters of networks that accept all sizes write them.

use super::{Readers, channel_parts, eliminate_dead, eliminate_identity};
use cytoscope_graph::infer::rules::pad_plan;
use cytoscope_graph::{
    BinaryOp, ConvAttrs, ConvTransposeAttrs, CoordinateMode, Dim, ElementType, Graph, Node, Op, PadMode, Padding,
    ResizeAttrs, ResizeMode, Result, Tensor, ValueId,
};
use std::collections::BTreeSet;

/// Fewest channels of an upsampled tensor whose convolution is transposed: for fewer, the additional pass over the output
/// costs more than the products that are saved.
const LEAST_CHANNELS: usize = 8;

/// For which lengths of its input a rewritten network is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputLengths {
    /// The lengths for which shapes were inferred.
    Inferred,
    /// Any lengths: upsampling whose factors depend on them stays.
    Any,
}

/// Rewrites the convolutions of upsampled tensors of a graph with fixed shapes, except those named in `keep`. Results differ
/// by rounding only. Returns the number of rewritten convolutions.
///
/// # Errors
/// None in a valid graph.
pub fn convolve_before_upsampling(graph: &mut Graph, lengths: InputLengths, keep: &BTreeSet<String>) -> Result<usize> {
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Resize(_))) {
        return Ok(0);
    }
    merge_pads(graph);
    eliminate_identity(graph);
    // Nodes without readers would count as readers of their inputs.
    eliminate_dead(graph);
    let mut rewritten = swap_with_pointwise(graph, keep);
    let mut readers = Readers::of(graph);
    let mut at = 0;
    // Nodes are added; the convolution of the other parts of a concatenation is looked at again.
    while let Some(node) = graph.nodes.get(at) {
        if !keep.contains(&node.name) && transpose(graph, &readers, at, lengths)? {
            readers = Readers::of(graph);
            rewritten += 1;
        }
        at += 1;
    }
    Ok(rewritten)
}

/// Returns the node that produces a value which only node `reader` reads.
fn sole_source(readers: &Readers, value: ValueId, reader: usize) -> Option<usize> {
    (readers.sole_reader(value) == Some(reader)).then(|| readers.producer(value)).flatten()
}

/// Merges a padding with a cropping that follows it. A node that neither pads nor crops becomes an identity.
fn merge_pads(graph: &mut Graph) {
    let readers = Readers::of(graph);
    for at in 0..graph.nodes.len() {
        let Some((input, second)) = constant_pads(graph, at) else { continue };
        let before = sole_source(&readers, input, at).filter(|_| second.iter().all(|(b, a)| *b <= 0 && *a <= 0));
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

/// Moves convolutions with a kernel of length 1 before the interpolation whose result they read, if its input is smaller.
/// Returns their number.
fn swap_with_pointwise(graph: &mut Graph, keep: &BTreeSet<String>) -> usize {
    let mut swapped = 0;
    let mut readers = Readers::of(graph);
    for at in 0..graph.nodes.len() {
        let found = pointwise_after_resize(graph, &readers, at).filter(|_| !keep.contains(&graph.nodes[at].name));
        let Some((resize, from)) = found else { continue };
        let (small, large) = (graph.nodes[resize].input(0), graph.nodes[at].output(0));
        let (Some(small), Some(large)) = (small, large) else { continue };
        let Some(channels) = graph.value(large).fixed_shape().and_then(|shape| shape.get(1).copied()) else { continue };
        let name = format!("{}_before_resize", graph.nodes[at].name);
        let shape =
            from.iter().enumerate().map(|(axis, n)| Dim::Fixed(if axis == 1 { channels } else { *n })).collect();
        let between = graph.add_value(name, Some(ElementType::F32), Some(shape));
        set_size_channels(graph, resize, channels);
        // The convolution takes the place of the resize, so that it comes before it.
        graph.nodes.swap(resize, at);
        let (conv, resize) = (resize, at);
        set_input(&mut graph.nodes[conv], small);
        graph.nodes[conv].outputs = vec![Some(between)];
        set_input(&mut graph.nodes[resize], between);
        graph.nodes[resize].outputs = vec![Some(large)];
        readers = Readers::of(graph);
        swapped += 1;
    }
    swapped
}

/// Sets the number of channels in the output lengths of a resize, if it has them instead of scales.
fn set_size_channels(graph: &mut Graph, resize: usize, channels: usize) {
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
fn pointwise_after_resize(graph: &Graph, readers: &Readers, at: usize) -> Option<(usize, Vec<usize>)> {
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
    let next = readers.sole_reader(output).and_then(|next| graph.nodes.get(next));
    if next.is_some_and(|next| matches!(next.op, Op::Activation(_))) {
        return None;
    }
    let resize = sole_source(readers, input, at)?;
    let before = graph.nodes.get(resize)?;
    let (from, to) = (graph.value(before.input(0)?).fixed_shape()?, graph.value(input).fixed_shape()?);
    let outputs = graph.value(output).fixed_shape()?;
    let Op::Resize(attrs) = &before.op else { return None };
    let constant = |index: usize| graph.constant(before.input(index)?).map(|tensor| &**tensor);
    // A factor slightly above 1 mixes channels although their number stays.
    let keeps =
        |axis: usize| from.get(axis) == to.get(axis) && before.op.factor_along(axis, &from, constant) == Some(1.0);
    let resizes_space = attrs.axes.is_none() && before.op.resamples_linearly() && keeps(0) && keeps(1);
    if !resizes_space || !constant_inputs(graph, before) {
        return None;
    }
    let voxels = |shape: &[usize]| shape.iter().skip(2).product::<usize>();
    let pays = voxels(&from) < voxels(&to) && outputs.get(1) <= from.get(1);
    pays.then_some((resize, from))
}

/// Whether the scales and lengths of a resize are constants.
fn constant_inputs(graph: &Graph, resize: &Node) -> bool {
    resize.inputs.iter().skip(1).flatten().all(|id| graph.constant(*id).is_some())
}

/// Returns the factors along the spatial axes of a nearest-neighbor resize by integer factors, at least one of them above 1.
fn nearest_factors(graph: &Graph, node: &Node, lengths: InputLengths) -> Option<Vec<usize>> {
    let Op::Resize(attrs) = &node.op else { return None };
    if attrs.mode != ResizeMode::Nearest || attrs.axes.is_some() || !constant_inputs(graph, node) {
        return None;
    }
    let constant = |i: usize| node.input(i).and_then(|id| graph.constant(id)).filter(|t| !t.is_empty());
    let by_lengths = constant(3).is_some() || matches!(attrs.coordinates, CoordinateMode::AlignCorners);
    if lengths == InputLengths::Any && by_lengths {
        return None;
    }
    let (from, to) = (graph.value(node.input(0)?).fixed_shape()?, graph.value(node.output(0)?).fixed_shape()?);
    let scales = attrs.factors(&from, constant(2).map(AsRef::as_ref), constant(3).map(AsRef::as_ref)).ok()?;
    let mut factors = Vec::with_capacity(from.len());
    for ((n, m), scale) in from.iter().zip(&to).zip(&scales) {
        let factor = m.checked_div(*n).filter(|factor| factor * n == *m && *scale == *factor as f64)?;
        if !repeats(attrs, *n, factor) {
            return None;
        }
        factors.push(factor);
    }
    let space = factors.split_off(2.min(factors.len()));
    (factors == [1, 1] && space.iter().any(|f| *f > 1)).then_some(space)
}

/// Whether a nearest-neighbor resize of an axis repeats each of `n` elements `factor` times.
fn repeats(attrs: &ResizeAttrs, n: usize, factor: usize) -> bool {
    let m = n * factor;
    factor == 1 || (0..m).all(|o| attrs.nearest_source(o, n, m, factor as f64) == Some(o / factor))
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

fn candidate(graph: &Graph, readers: &Readers, at: usize, lengths_of_input: InputLengths) -> Option<Candidate> {
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
    let upsampled = |value: ValueId, reader: usize| {
        let node = graph.nodes.get(sole_source(readers, value, reader)?)?;
        let channels = graph.value(value).fixed_shape()?.get(1).copied()?;
        let factors = nearest_factors(graph, node, lengths_of_input).filter(|_| channels >= LEAST_CHANNELS)?;
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
    let concat = sole_source(readers, input, at)?;
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
/// convolution of the other parts of a concatenation, if any. Returns whether it did.
fn transpose(graph: &mut Graph, readers: &Readers, at: usize, lengths: InputLengths) -> Result<bool> {
    let Some(of) = candidate(graph, readers, at, lengths) else { return Ok(false) };
    let node = graph.nodes[at].clone();
    let (Some(weight), Some(output)) = (node.input(1).and_then(|id| graph.constant(id)).cloned(), node.output(0))
    else {
        return Ok(false);
    };
    let (Some(values), &[outputs, inputs, ..]) = (weight.as_f32(), weight.shape()) else { return Ok(false) };
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
        return Ok(true);
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
    Ok(true)
}

/// Returns the tensor of the `others` among the parts of a concatenation: the only one, or the output of the concatenation,
/// which is reduced to them.
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
/// of the upsampled channels `own`: tap `t` is the sum of the taps `kernel − 1 − t` to `kernel − 1 − t + factor − 1`
/// along each axis.
fn summed_taps(
    weights: &[f32],
    [outputs, inputs]: [usize; 2],
    own: std::ops::Range<usize>,
    kernel: &[usize],
    factors: &[usize],
) -> Vec<f32> {
    // Three axes, the missing outer ones of length 1.
    let three = |values: &[usize]| {
        let missing = 3usize.saturating_sub(values.len());
        [0, 1, 2].map(|axis: usize| axis.checked_sub(missing).and_then(|own| values.get(own)).copied().unwrap_or(1))
    };
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
