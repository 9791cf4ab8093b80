use std::collections::{BTreeMap, BTreeSet};

use cytoscope_graph::builders::{DynUNet, UNet3d, Upsampling, Weights, dynunet, unet3d};
use cytoscope_graph::passes::quantize::{
    Activations, Group, QuantRange, domains, groups, is_quantized, prepare, quantizable_layers, quantize,
    quantize_weight, shift_bias,
};
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, Dim, ElementType, Graph, GraphErrorKind, GraphLimits, Op, Padding, PoolAttrs,
    Tensor, ValueId, infer_shapes, passes, reference,
};

use crate::{common, export};

const SHAPE: [usize; 5] = [1, 1, 8, 16, 16];

fn free_input(graph: &mut Graph, channels: usize) -> ValueId {
    let free = |n: &str| Dim::Free(n.into());
    graph.add_input("x", ElementType::F32, vec![Dim::Fixed(1), Dim::Fixed(channels), free("d"), free("h"), free("w")])
}

/// A network with a max pool, grouped convolutions and a skip connection, so that some operators before convolutions
/// only move values.
fn pooled() -> Graph {
    let mut graph = Graph::new("pooled");
    let x = free_input(&mut graph, 1);
    let conv = |graph: &mut Graph, name: &str, x, shape: &[usize], group| {
        let w = graph.add_initializer(format!("{name}.w"), common::noise_tensor(shape[0] as u64, shape));
        let b = graph.add_initializer(format!("{name}.b"), common::noise_tensor(3, &shape[..1]));
        let attrs = ConvAttrs { group, ..ConvAttrs::same(&shape[2..]) };
        let y = graph.push(name, Op::Conv(attrs), &[Some(x), Some(w), Some(b)]);
        graph.push(format!("{name}.relu"), Op::Activation(Activation::Relu), &[Some(y)])
    };
    let a = conv(&mut graph, "a", x, &[6, 1, 3, 3, 3], 1);
    let pool = PoolAttrs {
        kernel: vec![2; 3],
        strides: vec![1; 3],
        dilations: vec![1; 3],
        padding: Padding::Explicit { before: vec![0; 3], after: vec![1; 3] },
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    let p = graph.push("pool", Op::MaxPool(pool), &[Some(a)]);
    let b = conv(&mut graph, "b", p, &[6, 1, 3, 3, 3], 6);
    let both = graph.push("both", Op::Concat { axis: 1 }, &[Some(b), Some(p)]);
    let y = conv(&mut graph, "c", both, &[2, 12, 1, 1, 1], 1);
    graph.outputs.push(y);
    infer_shapes::<ValueId>(&mut graph, &[]).unwrap();
    graph
}

/// The pooled network, with a last convolution that reads a sum of the concatenation, a convolution and a constant.
fn summed() -> Graph {
    let mut graph = pooled();
    let both = graph.find("both").unwrap();
    let pool = graph.find("pool").unwrap();
    let w = graph.add_initializer("d.w", common::noise_tensor(7, &[12, 6, 1, 1, 1]));
    let d = graph.push("d", Op::Conv(ConvAttrs::same(&[1, 1, 1])), &[Some(pool), Some(w)]);
    let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &[Some(both), Some(d)]);
    let last = graph.nodes.iter().position(|n| n.name == "c").unwrap();
    graph.nodes[last].inputs[0] = Some(sum);
    // The new nodes go before the last convolution and its activation.
    let new = graph.nodes.split_off(graph.nodes.len() - 2);
    let at = last;
    graph.nodes.splice(at..at, new);
    infer_shapes::<ValueId>(&mut graph, &[]).unwrap();
    graph.validate().unwrap();
    graph
}

fn nets() -> Vec<(&'static str, Graph)> {
    let random = Weights::Random { seed: 5 };
    let net = |upsampling| {
        let config = UNet3d { filters: vec![4, 8], strides: vec![[1, 2, 2]], upsampling, ..UNet3d::default() };
        unet3d(&config, &random).unwrap()
    };
    let dyn_net = DynUNet { filters: vec![4, 8, 8], strides: vec![1, 2, 2], ..DynUNet::default() };
    vec![
        ("transposed", net(Upsampling::Transposed)),
        ("nearest", net(Upsampling::Nearest)),
        ("dynunet", dynunet(&dyn_net, &random).unwrap()),
        ("pooled", pooled()),
        ("summed", summed()),
    ]
}

fn run(graph: &Graph, x: &Tensor) -> Tensor {
    reference::run(graph, &[("x".into(), x.clone())]).unwrap().remove(0)
}

/// Returns the values of tensors inside a graph.
fn inside(graph: &Graph, ids: &[ValueId], x: &Tensor) -> Vec<Tensor> {
    let mut seen = graph.clone();
    seen.outputs = ids.to_vec();
    reference::run(&seen, &[("x".into(), x.clone())]).unwrap()
}

/// Quantizes with the ranges of the tensors on `x`.
fn on(graph: &Graph, x: &Tensor, keep: &BTreeSet<String>) -> Graph {
    let range = |group: &Group| {
        let held: Vec<f64> = inside(graph, &group.sources, x).iter().flat_map(Tensor::to_f64_vec).collect();
        let ends = held.iter().fold((0.0f64, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
        QuantRange::of(ends.0 as f32, ends.1 as f32)
    };
    quantize(graph, &Activations::Static(&range), keep).unwrap()
}

fn relative_l2(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(&b).map(|(x, y)| x - y)) / norm(&mut b.iter().copied())
}

#[test]
fn every_range_represents_zero_exactly() {
    for (min, max) in [(-1.0, 3.0), (0.5, 7.0), (-9.0, -2.0), (0.0, 0.0), (-1e-3, 250.0), (-1e20, 1.0), (0.0, 1e-42)] {
        let range = QuantRange::of(min, max).unwrap();
        let (low, high) = range.ends();
        assert!(low <= 0.0 && high >= 0.0, "{min} to {max}");
        // By the definition of the operators, independent of how the range was determined.
        let (scale, zero) = (Tensor::scalar(range.scale), Tensor::scalar(range.zero_point));
        let x = Tensor::vector(vec![0.0f32, min.clamp(f32::MIN, 0.0), max]);
        let q = Op::QuantizeLinear { axis: 1, block_size: 0, to: ElementType::U8 };
        let q = reference::eval(&q, &[Some(&x), Some(&scale), Some(&zero)], 1).unwrap().remove(0);
        let dq = Op::DequantizeLinear { axis: 1, block_size: 0 };
        let back = reference::eval(&dq, &[Some(&q), Some(&scale), Some(&zero)], 1).unwrap().remove(0);
        let back = back.as_f32().unwrap();
        assert_eq!(back[0], 0.0, "{min} to {max}");
        let step = range.scale * 1.01;
        if max > 1e-40 {
            assert!((back[1] - min.min(0.0)).abs() <= step && (back[2] - max.max(0.0)).abs() <= step, "{min} to {max}");
        }
    }
    for (min, max) in [(f32::NAN, 1.0), (0.0, f32::INFINITY), (2.0, 1.0), (f32::MIN, f32::MAX)] {
        assert_eq!(QuantRange::of(min, max).unwrap_err().kind(), GraphErrorKind::Misused, "{min} to {max}");
    }
}

#[test]
fn dequantized_weights_are_within_half_a_step_of_their_channel() {
    let weight = common::noise_tensor(4, &[5, 3, 3, 1, 2]);
    for axis in [0, 1] {
        let made = quantize_weight(&weight, axis).unwrap();
        assert_eq!(made.scales.len(), weight.shape()[axis]);
        let (q, w) = (made.values.as_i8().unwrap(), weight.as_f32().unwrap());
        let channel = |i: usize| if axis == 0 { i / 18 } else { i / 6 % 3 };
        for (i, (q, w)) in q.iter().zip(w).enumerate() {
            let scale = made.scales[channel(i)];
            assert!((f32::from(*q) * scale - w).abs() <= scale * 0.5001, "element {i}");
            assert!((-127..=127).contains(q));
        }
        for (c, scale) in made.scales.iter().enumerate() {
            let largest =
                w.iter().enumerate().filter(|(i, _)| channel(*i) == c).fold(0.0f32, |m, (_, w)| m.max(w.abs()));
            assert!((scale * 127.0 - largest).abs() <= largest * 1e-6);
        }
    }
    // A channel of zeros has a nonzero scale.
    let empty = quantize_weight(&Tensor::new([2, 1], vec![0.0f32, 1.0]).unwrap(), 0).unwrap();
    assert!(empty.scales.iter().all(|s| *s > 0.0));
}

#[test]
fn every_layer_reads_bytes_and_every_tensor_is_quantized_once() {
    for (name, net) in nets() {
        let float = prepare(&net).unwrap();
        let quantized = on(&float, &common::noise_tensor(1, &SHAPE), &BTreeSet::new());
        quantized.validate().unwrap();
        assert!(is_quantized(&quantized) && !is_quantized(&float), "{name}");
        let producers = quantized.producers();
        let maker = |id: ValueId| &quantized.nodes[producers[&id]];
        let mut convolutions = 0;
        let mut quantized_once: BTreeMap<ValueId, usize> = BTreeMap::new();
        for node in &quantized.nodes {
            let dequantized = |at: usize, dtype: ElementType| {
                let from = maker(node.input(at).unwrap());
                assert!(matches!(from.op, Op::DequantizeLinear { .. }), "{name}: {}", node.name);
                let bytes = from.input(0).unwrap();
                let held = quantized.constant(bytes).map_or(quantized.value(bytes).dtype, |t| Some(t.dtype()));
                assert_eq!(held, Some(dtype), "{name}: {}", node.name);
                from
            };
            match &node.op {
                Op::Conv(_) | Op::ConvTranspose(_) => {
                    convolutions += 1;
                    dequantized(0, ElementType::U8);
                    let Op::DequantizeLinear { axis, .. } = dequantized(1, ElementType::I8).op else { unreachable!() };
                    assert_eq!(axis, i64::from(matches!(node.op, Op::ConvTranspose(_))), "{name}: {}", node.name);
                }
                Op::QuantizeLinear { .. } => *quantized_once.entry(node.input(0).unwrap()).or_default() += 1,
                Op::Concat { .. } | Op::MaxPool(_) | Op::Resize(_) => {
                    // Inputs of operators that move values have the scale of the output.
                    let out = node.output(0).unwrap();
                    let after = quantized
                        .nodes
                        .iter()
                        .find(|n| matches!(n.op, Op::QuantizeLinear { .. }) && n.input(0) == Some(out));
                    let Some(after) = after else {
                        assert_eq!((name, node.name.as_str()), ("summed", "both"), "no convolution reads it");
                        continue;
                    };
                    let parts = if matches!(node.op, Op::Concat { .. }) { node.inputs.len() } else { 1 };
                    for part in 0..parts {
                        let before = dequantized(part, ElementType::U8);
                        assert_eq!((before.input(1), before.input(2)), (after.input(1), after.input(2)), "{name}");
                    }
                }
                Op::InstanceNormalization { .. } | Op::Activation(_) | Op::Binary(_) => {
                    for id in node.inputs.iter().flatten().filter(|id| producers.contains_key(id)) {
                        assert!(!matches!(maker(*id).op, Op::DequantizeLinear { .. }), "{name}: {}", node.name);
                    }
                }
                _ => {}
            }
        }
        assert_eq!(convolutions, quantizable_layers(&float).layers.len(), "{name}");
        assert!(quantized_once.values().all(|n| *n == 1), "{name}: {quantized_once:?}");
    }
}

#[test]
fn quantized_networks_stay_near_the_float_ones() {
    for (name, net) in nets() {
        let float = prepare(&net).unwrap();
        let x = common::noise_tensor(2, &SHAPE);
        let expected = run(&net, &x);
        assert!(relative_l2(&run(&float, &x), &expected) < 1e-5, "{name}: preparing changes nothing");
        let fixed = on(&float, &x, &BTreeSet::new());
        let while_running = quantize(&float, &Activations::Dynamic, &BTreeSet::new()).unwrap();
        while_running.validate().unwrap();
        for (how, graph) in [("static", &fixed), ("dynamic", &while_running)] {
            let error = relative_l2(&run(graph, &x), &expected);
            // Random instance-norm networks amplify rounding about tenfold.
            let bound = if name == "dynunet" { 0.2 } else { 0.08 };
            assert!(error > 0.0 && error < bound, "{name}, {how}: {error}");
        }
        // Layers that are not quantized compute the same as before.
        let layers = quantizable_layers(&float).layers;
        let most: BTreeSet<String> = layers.iter().skip(1).map(|l| l.name.clone()).collect();
        let one = on(&float, &x, &most);
        assert!(relative_l2(&run(&one, &x), &expected) < relative_l2(&run(&fixed, &x), &expected), "{name}");
        let bytes = |graph: &Graph| graph.nodes.iter().filter(|n| matches!(n.op, Op::DequantizeLinear { .. })).count();
        assert_eq!(bytes(&one), 2, "{name}: one layer's weights and input");
    }
}

#[test]
fn quantized_graphs_are_read_back_unchanged() {
    for (name, net) in nets() {
        let float = prepare(&net).unwrap();
        let x = common::noise_tensor(3, &SHAPE);
        let dynamic = quantize(&float, &Activations::Dynamic, &BTreeSet::new()).unwrap();
        for graph in [on(&float, &x, &BTreeSet::new()), dynamic] {
            let bytes = graph.to_bytes().unwrap();
            let again = Graph::from_bytes(&bytes, None, &GraphLimits::default()).unwrap();
            assert_eq!(common::distance(&run(&graph, &x), &run(&again, &x)), 0.0, "{name}");
            assert_eq!(again.initializer_bytes(), graph.initializer_bytes(), "{name}");
            // Dequantized float weights give the same values.
            let mut floats = again.clone();
            passes::fold_dequantized(&mut floats).unwrap();
            assert_eq!(common::distance(&run(&graph, &x), &run(&floats, &x)), 0.0, "{name}");
        }
    }
}

#[test]
fn onnx_runtime_agrees_with_quantized_files() {
    let Some(python) = export::python() else { return };
    for (name, net) in nets() {
        let float = prepare(&net).unwrap();
        let x = common::noise_tensor(8, &SHAPE);
        let dynamic = quantize(&float, &Activations::Dynamic, &BTreeSet::new()).unwrap();
        for (how, graph) in [("static", on(&float, &x, &BTreeSet::new())), ("dynamic", dynamic)] {
            let ours = run(&graph, &x);
            let theirs = export::onnxruntime(&python, &graph, &x, &ours);
            let error = relative_l2(&theirs, &ours);
            // A value between two levels may round either way; random instance-norm networks amplify that.
            let bound = if name == "dynunet" { 0.06 } else { 0.02 };
            assert!(error < bound, "{name}, {how}: {error}");
        }
    }
}

#[test]
fn equalization_does_not_change_the_float_network() {
    for (name, net) in nets() {
        let float = prepare(&net).unwrap();
        let x = common::noise_tensor(4, &SHAPE);
        let expected = run(&float, &x);
        let found = domains(&float);
        // In the last network, all values join the concatenation through a sum, so nothing can be scaled separately.
        assert_eq!(found.is_empty(), name == "summed", "{name}");
        let mut graph = float.clone();
        for (i, domain) in found.iter().enumerate() {
            let factors: Vec<f32> = (0..domain.channels).map(|c| 0.25 + ((c * 7 + i) % 5) as f32).collect();
            let before = inside(&graph, &domain.values[..1], &x).remove(0);
            domain.multiply(&mut graph, &factors).unwrap();
            let after = inside(&graph, &domain.values[..1], &x).remove(0);
            let plane = before.len() / domain.channels;
            let pairs = before.as_f32().unwrap().iter().zip(after.as_f32().unwrap()).enumerate();
            for (at, (b, a)) in pairs {
                let wanted = b * factors[at / plane];
                assert!((a - wanted).abs() <= 1e-3 * wanted.abs().max(1.0), "{name}: {a} {wanted}");
            }
            let shares = domain.weight_shares(&graph);
            assert!(shares.len() == domain.channels && shares.iter().all(|s| (0.0..=1.0).contains(s)), "{name}");
            assert!(domain.multiply(&mut graph, &factors[1..]).is_err());
            assert!(domain.multiply(&mut graph, &vec![-1.0; domain.channels]).is_err());
        }
        graph.validate().unwrap();
        assert!(relative_l2(&run(&graph, &x), &expected) < 1e-4, "{name}");
        // The skip connection and the values added to it can be scaled separately.
        let layers = quantizable_layers(&graph).layers;
        assert!(groups(&graph, &layers).iter().all(|g| !g.sources.is_empty()), "{name}");
    }
}

#[test]
fn shifting_a_bias_adds_it_where_there_was_none() {
    let float = prepare(&nets().remove(0).1).unwrap();
    let x = common::noise_tensor(5, &SHAPE);
    let last = quantizable_layers(&float).layers.pop().unwrap();
    let mut shifted = on(&float, &x, &BTreeSet::new());
    let before = inside(&shifted, &[last.output], &x).remove(0);
    shift_bias(&mut shifted, &last.name, &[0.75]).unwrap();
    shift_bias(&mut shifted, &last.name, &[0.25]).unwrap();
    let after = inside(&shifted, &[last.output], &x).remove(0);
    for (b, a) in before.as_f32().unwrap().iter().zip(after.as_f32().unwrap()) {
        assert!((a - b - 1.0).abs() < 1e-5);
    }
    assert!(shift_bias(&mut shifted, &last.name, &[0.0; 2]).is_err());
    assert!(shift_bias(&mut shifted, "nosuch", &[0.0]).is_err());
}

#[test]
fn graphs_that_cannot_be_quantized_are_refused_with_the_reason() {
    // No convolution.
    let mut plain = Graph::new("plain");
    let x = free_input(&mut plain, 1);
    let y = plain.push("y", Op::Activation(Activation::Relu), &[Some(x)]);
    plain.outputs.push(y);
    let error = prepare(&plain).unwrap_err();
    assert_eq!(error.kind(), GraphErrorKind::Unsupported);
    assert!(error.to_string().contains("no convolution"), "{error}");
    // Weights that are an input.
    let mut moving = Graph::new("moving");
    let x = free_input(&mut moving, 1);
    let w = moving.add_input("w", ElementType::F32, [1, 1, 1, 1, 1].map(Dim::Fixed).to_vec());
    let y = moving.push("y", Op::Conv(ConvAttrs::same(&[1, 1, 1])), &[Some(x), Some(w)]);
    moving.outputs.push(y);
    let error = prepare(&moving).unwrap_err().to_string();
    assert!(error.contains("not constant"), "{error}");
    // Quantized already.
    let float = prepare(&pooled()).unwrap();
    let names: BTreeSet<String> = quantizable_layers(&float).layers.iter().map(|l| l.name.clone()).collect();
    let once = quantize(&float, &Activations::Dynamic, &BTreeSet::new()).unwrap();
    assert!(prepare(&once).unwrap_err().to_string().contains("already"));
    // All layers kept in float, and an unknown layer.
    assert_eq!(quantize(&float, &Activations::Dynamic, &names).unwrap_err().kind(), GraphErrorKind::Unsupported);
    let error = quantize(&float, &Activations::Dynamic, &["nosuch".to_owned()].into()).unwrap_err();
    assert!(error.to_string().contains("nosuch") && error.to_string().contains('a'), "{error}");
}

#[test]
fn a_fake_quantized_network_computes_the_same_and_writes_trained_weights_back() {
    use cytoscope_graph::training::{fake_quantized, set_constant};
    for (name, net) in nets() {
        let float = prepare(&net).unwrap();
        let x = common::noise_tensor(1, &SHAPE);
        let quantized = on(&float, &x, &BTreeSet::new());
        let fake = fake_quantized(&quantized, &float).unwrap();
        assert!(!is_quantized(&fake.graph), "{name}");
        assert!(relative_l2(&run(&fake.graph, &x), &run(&quantized, &x)) < 1e-6, "{name}");
        let mut same = quantized.clone();
        fake.write_back(&fake.graph, &mut same).unwrap();
        assert_eq!(same.to_bytes().unwrap(), quantized.to_bytes().unwrap(), "{name}");
        // A weight that moves by more than half a step changes its int8 value, others do not.
        let layer = quantizable_layers(&float).layers.into_iter().next().unwrap();
        let weight = float.value(layer.weight).name.clone();
        let held = |graph: &Graph, ending: &str| {
            let id = graph.find(&format!("{weight}_{ending}")).unwrap();
            graph.constant(id).unwrap().to_f64_vec()
        };
        let bytes = held(&quantized, "quantized");
        let at = bytes.iter().position(|b| b.abs() < 100.0).unwrap();
        let mut trained = fake.graph.clone();
        // Trainable weights start at their values before rounding.
        let scale = held(&quantized, "scale")[0];
        let before = float.constant(layer.weight).unwrap().to_f64_vec()[at] / scale;
        let floats = format!("{weight}_quantized.steps");
        let tensor = trained.constant(trained.find(&floats).unwrap()).unwrap().as_ref().clone();
        let mut values = tensor.as_f32().unwrap().to_vec();
        assert!((f64::from(values[at]) - before).abs() < 1e-4, "{name}");
        values[at] = bytes[at] as f32 + 0.7;
        values[at + 1] = bytes[at + 1] as f32 + 0.3;
        set_constant(&mut trained, &floats, Tensor::new(tensor.shape(), values).unwrap()).unwrap();
        fake.write_back(&trained, &mut same).unwrap();
        let mut want = bytes.clone();
        want[at] += 1.0;
        assert_eq!(held(&same, "quantized"), want, "{name}");
        assert!(relative_l2(&run(&trained, &x), &run(&same, &x)) < 1e-6, "{name}");
    }
}

#[test]
fn networks_that_cannot_be_fake_quantized_are_refused_with_the_reason() {
    use cytoscope_graph::training::fake_quantized;
    let float = prepare(&nets()[0].1).unwrap();
    let dynamic = quantize(&float, &Activations::Dynamic, &BTreeSet::new()).unwrap();
    let error = fake_quantized(&dynamic, &float).unwrap_err();
    assert_eq!(error.kind(), GraphErrorKind::Unsupported);
    assert!(error.to_string().contains("not quantized with a fixed scale"), "{error}");
}
