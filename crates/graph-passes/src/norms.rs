//! Recognition of norms that exporters decompose into several nodes.

use cytoscope_graph::{BinaryOp, Dim, ElementType, Graph, Node, Op, Tensor, ValueId, ValueNames};

use super::Readers;

/// Recognizes a group norm as PyTorch exports it: the channels of a group are reshaped into one, instance-normalized,
/// reshaped back, and scaled and shifted per channel. Shapes must have been inferred. Returns the number found.
pub fn recognize_group_norms(graph: &mut Graph) -> usize {
    recognize_all(graph, Affine::Folded)
}

/// Like [`recognize_group_norms`], but scale and shift per channel remain separate constants, from which the norm reads
/// them: training changes them, and they have the names that the model has them by. A norm that also scales or shifts
/// per group stays as it is.
pub fn recognize_trainable_group_norms(graph: &mut Graph) -> usize {
    recognize_all(graph, Affine::Kept)
}

/// Whether the constants that scale and shift a norm are folded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Affine {
    /// They are multiplied into new constants.
    Folded,
    /// They remain.
    Kept,
}

fn recognize_all(graph: &mut Graph, affine: Affine) -> usize {
    let readers = Readers::of(graph);
    let mut names = ValueNames::of(graph);
    let mut gone = vec![false; graph.nodes.len()];
    let mut found = 0;
    for index in 0..graph.nodes.len() {
        let Some(parts) = recognize(graph, &readers, &mut names, index, affine) else { continue };
        parts.into_iter().for_each(|part| gone[part] = true);
        found += 1;
    }
    super::remove_marked(graph, &gone);
    found
}

/// Replaces the group norm whose instance norm is node `index`. Returns the nodes for the caller to remove.
fn recognize(
    graph: &mut Graph,
    readers: &Readers,
    names: &mut ValueNames,
    index: usize,
    affine: Affine,
) -> Option<Vec<usize>> {
    let node = graph.nodes.get(index)?;
    let Op::InstanceNormalization { epsilon } = node.op else { return None };
    let (folded, scale, bias) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let before = readers.producer(folded)?;
    let first = graph.nodes.get(before)?;
    let after = readers.sole_reader(node.output(0)?)?;
    let last = graph.nodes.get(after)?;
    let reshapes = matches!(first.op, Op::Reshape { .. }) && matches!(last.op, Op::Reshape { .. });
    let x = first.input(0)?;
    let (shape, inner) = (graph.value(x).fixed_shape()?, graph.value(folded).fixed_shape()?);
    let [batch, channels, ..] = shape[..] else { return None };
    let groups = *inner.get(1)?;
    let back = last.output(0)?;
    let fits = reshapes
        && readers.sole_reader(folded) == Some(index)
        && inner.first() == Some(&batch)
        && groups > 0
        && channels.is_multiple_of(groups)
        && graph.value(back).fixed_shape().as_ref() == Some(&shape);
    if !fits {
        return None;
    }
    let mut gain = group_values(graph, scale, groups, channels)?;
    let mut shift = group_values(graph, bias, groups, channels)?;
    if affine == Affine::Kept && (gain.iter().any(|g| *g != 1.0) || shift.iter().any(|s| *s != 0.0)) {
        return None;
    }
    let mut kept = [None; 2];
    let (mut output, mut gone) = (back, vec![before, index]);
    let mut place = after;
    for op in [BinaryOp::Mul, BinaryOp::Add] {
        let Some(next) = readers.sole_reader(output) else { break };
        let Some(step) = graph.nodes.get(next).filter(|n| n.op == Op::Binary(op)) else { continue };
        let other = step.inputs.iter().flatten().find(|v| **v != output).copied();
        // A number that all channels share cannot be kept as one per channel.
        let is_own = |id: &ValueId| graph.constant(*id).is_some_and(|t| t.len() == channels);
        let other = other.filter(|id| affine == Affine::Folded || is_own(id));
        let Some(values) = other.and_then(|v| channel_values(graph, v, shape.len(), channels)) else { break };
        kept[usize::from(op == BinaryOp::Add)] = other;
        match op {
            BinaryOp::Mul => gain.iter_mut().zip(&mut shift).zip(&values).for_each(|((g, s), v)| {
                *g *= v;
                *s *= v;
            }),
            _ => shift.iter_mut().zip(&values).for_each(|(s, v)| *s += v),
        }
        gone.push(place);
        place = next;
        output = step.output(0)?;
    }
    let name = graph.nodes.get(index).map(|n| n.name.clone()).unwrap_or_default();
    let mut made = [scale, bias];
    let parts = [(gain, "group_scale", before), (shift, "group_bias", index)];
    for (((values, what, slot), kept), made) in parts.into_iter().zip(kept).zip(&mut made) {
        let wanted = format!("{name}_{what}");
        *made = match (affine, kept) {
            (Affine::Folded, _) => names.add_initializer(graph, &wanted, Tensor::vector(values)),
            (Affine::Kept, None) => graph.add_initializer(wanted, Tensor::vector(values)),
            (Affine::Kept, Some(constant)) => {
                // The node there is no longer needed.
                gone.retain(|at| *at != slot);
                reshape_to_channels(graph, constant, wanted, channels, slot)?
            }
        };
    }
    *graph.nodes.get_mut(place)? = Node {
        name,
        op: Op::GroupNormalization { groups, epsilon },
        inputs: vec![Some(x), Some(made[0]), Some(made[1])],
        outputs: vec![Some(output)],
    };
    Some(gone)
}

/// Returns a constant of one number per group as one number per channel.
fn group_values(graph: &Graph, id: ValueId, groups: usize, channels: usize) -> Option<Vec<f32>> {
    let values = graph.constant(id)?.as_f32().filter(|values| values.len() == groups)?;
    Some((0..channels).map(|c| values[c / (channels / groups)]).collect())
}

/// Makes node `slot` the reshape of a constant to one axis, the channels, and returns its output.
fn reshape_to_channels(
    graph: &mut Graph,
    constant: ValueId,
    name: String,
    channels: usize,
    slot: usize,
) -> Option<ValueId> {
    let lengths = graph.add_initializer(format!("{name}_lengths"), Tensor::vector(vec![channels as i64]));
    let output = graph.add_value(name.clone(), Some(ElementType::F32), Some(vec![Dim::Fixed(channels)]));
    *graph.nodes.get_mut(slot)? = Node {
        name,
        op: Op::Reshape { allow_zero: false },
        inputs: vec![Some(constant), Some(lengths)],
        outputs: vec![Some(output)],
    };
    Some(output)
}

/// Returns a constant as one number per channel, if it is a scalar or has length 1 along all axes but the channels.
fn channel_values(graph: &Graph, id: ValueId, rank: usize, channels: usize) -> Option<Vec<f32>> {
    let tensor = graph.constant(id)?;
    let values = tensor.as_f32()?;
    if let [one] = values {
        return Some(vec![*one; channels]);
    }
    let axis = (tensor.shape().len() + 1).checked_sub(rank)?;
    let fits = tensor.shape().iter().enumerate().all(|(i, n)| *n == if i == axis { channels } else { 1 });
    (fits && values.len() == channels).then(|| values.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer_shapes;

    /// The export of `torch.nn.GroupNorm(2, 6)`.
    fn exported(affine: bool) -> Graph {
        let mut graph = Graph::new("norm");
        let shape = [2, 6, 3, 4, 5].map(Dim::Fixed).to_vec();
        let x = graph.add_input("x", ElementType::F32, shape);
        let constant = |graph: &mut Graph, name: &str, t: Tensor| Some(graph.add_initializer(name, t));
        let folded = constant(&mut graph, "folded", Tensor::vector(vec![0i64, 2, -1]));
        let plain = constant(&mut graph, "plain", Tensor::vector(vec![2i64, 6, 3, 4, 5]));
        let ones = constant(&mut graph, "ones", Tensor::vector(vec![1.0f32, 2.0]));
        let zeros = constant(&mut graph, "zeros", Tensor::vector(vec![0.0f32, 0.5]));
        let reshape = Op::Reshape { allow_zero: false };
        let a = graph.push("a", reshape.clone(), &[Some(x), folded]);
        let b = graph.push("b", Op::InstanceNormalization { epsilon: 1e-5 }, &[Some(a), ones, zeros]);
        let mut y = graph.push("c", reshape, &[Some(b), plain]);
        if affine {
            let gain = (0..6).map(|i| 1.0 + 0.1 * i as f32).collect();
            let gain = constant(&mut graph, "gain", Tensor::new([6, 1, 1, 1], gain).unwrap());
            let shift = constant(&mut graph, "shift", Tensor::new([6, 1, 1, 1], vec![0.25f32; 6]).unwrap());
            y = graph.push("d", Op::Binary(BinaryOp::Mul), &[Some(y), gain]);
            y = graph.push("e", Op::Binary(BinaryOp::Add), &[Some(y), shift]);
        }
        graph.outputs.push(y);
        graph
    }

    fn input() -> [(String, Tensor); 1] {
        let values: Vec<f32> = (0..720).map(|i| ((i * 37 % 101) as f32).sin() * 3.0 + 1.0).collect();
        [("x".to_owned(), Tensor::new([2, 6, 3, 4, 5], values).unwrap())]
    }

    fn distance(a: &Tensor, b: &Tensor) -> f64 {
        cytoscope_testkit::largest_difference(&a.to_f64_vec(), &b.to_f64_vec())
    }

    #[test]
    fn a_trainable_group_norm_reads_the_constants_of_the_model() {
        let mut graph = exported(true);
        infer_shapes::<ValueId>(&mut graph, &[]).unwrap();
        assert_eq!(recognize_trainable_group_norms(&mut graph), 0, "it also scales per group");
        for (name, value) in [("ones", 1.0f32), ("zeros", 0.0)] {
            let id = graph.find(name).unwrap();
            graph.initializers.insert(id, Tensor::vector(vec![value; 2]).into());
        }
        let want = cytoscope_reference::run(&graph, &input()).unwrap();
        assert_eq!(recognize_trainable_group_norms(&mut graph), 1);
        graph.validate().unwrap();
        let norms = graph.nodes.iter().filter(|node| matches!(node.op, Op::GroupNormalization { .. }));
        assert_eq!((norms.count(), graph.nodes.len()), (1, 3), "{:?}", graph.nodes);
        let read = ["gain", "shift"].map(|name| {
            let id = graph.find(name);
            graph.nodes.iter().any(|node| node.inputs.contains(&id))
        });
        assert_eq!(read, [true; 2]);
        let got = cytoscope_reference::run(&graph, &input()).unwrap();
        assert!(distance(&got[0], &want[0]) < 1e-5);
    }

    #[test]
    fn an_exported_group_norm_becomes_one_equivalent_node() {
        let x = input();
        for affine in [false, true] {
            let mut graph = exported(affine);
            let want = cytoscope_reference::run(&graph, &x).unwrap();
            infer_shapes::<cytoscope_graph::ValueId>(&mut graph, &[]).unwrap();
            assert_eq!(recognize_group_norms(&mut graph), 1);
            graph.validate().unwrap();
            assert_eq!(graph.nodes.len(), 1, "{:?}", graph.nodes);
            let got = cytoscope_reference::run(&graph, &x).unwrap();
            let far = distance(&got[0], &want[0]);
            assert!(far < 1e-5, "{far}");
        }
    }
}
