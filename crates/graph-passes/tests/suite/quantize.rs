//! Quantized graphs: their ranges, nodes and files, and how far their results are from those in floats.

use std::collections::{BTreeMap, BTreeSet};

use cytoscope_graph::{
    Activation, ConvAttrs, Dim, ElementType, Graph, GraphErrorKind, GraphLimits, Op, Tensor, ValueId,
};
use cytoscope_graph_passes::quantize::{
    Activations, QuantRange, copy_int8_layers, domains, groups, is_quantized, prepare, quantizable_layers, quantize,
    quantize_weight, shift_bias,
};

use crate::quantized_nets::{SHAPE, free_input, inside, nets, pooled, quantize_static, relative_l2, run};
use crate::{common, onnxruntime};

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
        let q = cytoscope_reference::eval(&q, &[Some(&x), Some(&scale), Some(&zero)], 1).unwrap().remove(0);
        let dq = Op::DequantizeLinear { axis: 1, block_size: 0 };
        let back = cytoscope_reference::eval(&dq, &[Some(&q), Some(&scale), Some(&zero)], 1).unwrap().remove(0);
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
        let quantized = quantize_static(&float, &common::noise_tensor(1, &SHAPE), &BTreeSet::new());
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
        let fixed = quantize_static(&float, &x, &BTreeSet::new());
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
        let one = quantize_static(&float, &x, &most);
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
        for graph in [quantize_static(&float, &x, &BTreeSet::new()), dynamic] {
            let bytes = cytoscope_onnx::to_bytes(&graph).unwrap();
            let again = cytoscope_onnx::from_bytes(&bytes, None, &GraphLimits::default()).unwrap();
            assert_eq!(common::distance(&run(&graph, &x), &run(&again, &x)), 0.0, "{name}");
            assert_eq!(again.initializer_bytes(), graph.initializer_bytes(), "{name}");
            // Dequantized float weights give the same values.
            let mut floats = again.clone();
            cytoscope_graph_passes::fold_dequantized(&mut floats).unwrap();
            assert_eq!(common::distance(&run(&graph, &x), &run(&floats, &x)), 0.0, "{name}");
        }
    }
}

#[test]
fn onnx_runtime_agrees_with_quantized_files() {
    let Some(python) = onnxruntime::python() else { return };
    for (name, net) in nets() {
        let float = prepare(&net).unwrap();
        let x = common::noise_tensor(8, &SHAPE);
        let dynamic = quantize(&float, &Activations::Dynamic, &BTreeSet::new()).unwrap();
        for (how, graph) in [("static", quantize_static(&float, &x, &BTreeSet::new())), ("dynamic", dynamic)] {
            let ours = run(&graph, &x);
            let theirs = onnxruntime::onnxruntime(&python, &graph, &x, &ours);
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
    let mut shifted = quantize_static(&float, &x, &BTreeSet::new());
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

/// Returns the values of an initializer, by name.
fn stored(graph: &Graph, name: &str) -> Vec<f64> {
    graph.constant(graph.find(name).unwrap()).unwrap().to_f64_vec()
}

#[test]
fn int8_layers_are_copied_to_a_network_with_other_layers_in_float() {
    for (name, net) in nets() {
        let float = prepare(&net).unwrap();
        let x = common::noise_tensor(5, &SHAPE);
        let layers = quantizable_layers(&float).layers;
        // Stands for a trained network: all int8 weights and one bias differ from the calibrated ones.
        let calibrated = quantize_static(&float, &x, &BTreeSet::new());
        let mut trained = calibrated.clone();
        let weights: BTreeSet<String> =
            layers.iter().map(|l| format!("{}_quantized", float.value(l.weight).name)).collect();
        for weight in &weights {
            let id = trained.find(weight).unwrap();
            let held = trained.constant(id).unwrap();
            let moved = held.to_f64_vec().iter().map(|v| (v - v.signum() * 3.0) as i8).collect::<Vec<i8>>();
            let moved = Tensor::new(held.shape(), moved).unwrap();
            trained.initializers.insert(id, moved.into());
        }
        let last = layers.last().unwrap();
        let channels = float.constant(last.weight).unwrap().shape()[last.weight_axis()];
        shift_bias(&mut trained, &last.name, &vec![0.5; channels]).unwrap();
        let expected = run(&trained, &x);
        assert!(relative_l2(&run(&calibrated, &x), &expected) > 1e-3, "{name}");
        let mut copy = calibrated.clone();
        copy_int8_layers(&trained, &mut copy).unwrap();
        assert_eq!(run(&copy, &x), expected, "{name}");

        let kept = &layers[0];
        let mut mixed = quantize_static(&float, &x, &BTreeSet::from([kept.name.clone()]));
        copy_int8_layers(&trained, &mut mixed).unwrap();
        mixed.validate().unwrap();
        let float_weight = &float.value(kept.weight).name;
        assert_eq!(stored(&mixed, float_weight), stored(&float, float_weight), "{name}: the layer in float");
        for weight in weights.iter().filter(|weight| **weight != format!("{float_weight}_quantized")) {
            assert_eq!(stored(&mixed, weight), stored(&trained, weight), "{name}: {weight}");
        }
        let bias = |graph: &Graph| {
            let node = graph.nodes.iter().find(|node| node.name == last.name).unwrap();
            graph.constant(node.input(2).unwrap()).unwrap().to_f64_vec()
        };
        assert_eq!(bias(&mixed), bias(&trained), "{name}: the bias");
    }
    // A network with weights of another shape.
    let [small, large] = [4, 5].map(|channels| {
        let mut graph = Graph::new("one");
        let x = free_input(&mut graph, 1);
        let w = graph.add_initializer("w", common::noise_tensor(2, &[channels, 1, 3, 3, 3]));
        let y = graph.push("conv", Op::Conv(ConvAttrs::same(&[3, 3, 3])), &[Some(x), Some(w)]);
        graph.outputs.push(y);
        quantize(&prepare(&graph).unwrap(), &Activations::Dynamic, &BTreeSet::new()).unwrap()
    });
    let error = copy_int8_layers(&small, &mut large.clone()).unwrap_err();
    assert_eq!(error.kind(), GraphErrorKind::Misused);
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
