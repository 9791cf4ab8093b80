//! Quantized networks in the form used for quantization-aware training.

use std::collections::BTreeSet;

use cytoscope_autodiff::{StepOptions, fake_quantized, gradient_graph, set_constant};
use cytoscope_graph::{BinaryOp, Dim, ElementType, Graph, GraphErrorKind, Loss, LossKind, Op, Tensor};
use cytoscope_graph_passes::quantize::{Activations, is_quantized, prepare, quantizable_layers, quantize};

use crate::common;
use crate::quantized_nets::{SHAPE, nets, quantize_static, relative_l2, run};

#[test]
fn a_fake_quantized_network_computes_the_same_and_writes_trained_weights_back() {
    for (name, net) in nets() {
        let float = prepare(&net).unwrap();
        let x = common::noise_tensor(1, &SHAPE);
        let quantized = quantize_static(&float, &x, &BTreeSet::new());
        let fake = fake_quantized(&quantized, &float).unwrap();
        assert!(!is_quantized(&fake.graph), "{name}");
        assert!(relative_l2(&run(&fake.graph, &x), &run(&quantized, &x)) < 1e-6, "{name}");
        let mut same = quantized.clone();
        fake.write_back(&fake.graph, &mut same).unwrap();
        assert_eq!(cytoscope_onnx::to_bytes(&same).unwrap(), cytoscope_onnx::to_bytes(&quantized).unwrap(), "{name}");
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
fn biases_of_int8_convolutions_are_trained_and_written_back() {
    let (_, net) = nets().swap_remove(0);
    let float = prepare(&net).unwrap();
    let x = common::noise_tensor(1, &SHAPE);
    let quantized = quantize_static(&float, &x, &BTreeSet::new());
    let fake = fake_quantized(&quantized, &float).unwrap();
    let options = StepOptions { only: fake.steps(), ..StepOptions::new(Loss::single(LossKind::MeanSquared, 1)) };
    let gradients = gradient_graph(&fake.graph, &[SHAPE.to_vec()], &options).unwrap();
    let trainable: BTreeSet<&str> = gradients.parameters.iter().map(|p| p.name.as_str()).collect();
    let mut count = 0;
    for steps in fake.steps().iter().filter(|steps| steps.ends_with(".bias_steps")) {
        assert!(trainable.contains(steps.as_str()), "{steps} of {trainable:?}");
        let bias = steps.strip_suffix(".bias_steps").unwrap();
        let held = |graph: &Graph| graph.constant(graph.find(bias).unwrap()).unwrap().to_f64_vec();
        let mut trained = fake.graph.clone();
        let mut values = trained.constant(trained.find(steps).unwrap()).unwrap().as_f32().unwrap().to_vec();
        values[0] += 3.0;
        set_constant(&mut trained, steps, Tensor::vector(values)).unwrap();
        let mut written = quantized.clone();
        fake.write_back(&trained, &mut written).unwrap();
        let (before, after) = (held(&quantized), held(&written));
        assert!(after[0] > before[0], "{bias}");
        assert_eq!(after[1..], before[1..], "{bias}");
        assert!(relative_l2(&run(&trained, &x), &run(&written, &x)) < 1e-6, "{bias}");
        assert!(relative_l2(&run(&trained, &x), &run(&quantized, &x)) > 1e-6, "{bias}");
        count += 1;
    }
    assert!(count > 1, "{count} biases");
}

#[test]
fn a_quantized_network_is_converted_to_floats() {
    for (name, net) in nets() {
        let float = prepare(&net).unwrap();
        let x = common::noise_tensor(1, &SHAPE);
        let dynamic = quantize(&float, &Activations::Dynamic, &BTreeSet::new()).unwrap();
        for quantized in [quantize_static(&float, &x, &BTreeSet::new()), dynamic] {
            let trained = cytoscope_autodiff::prepare(&quantized).unwrap();
            assert!(!is_quantized(&trained), "{name}");
            assert!(relative_l2(&run(&trained, &x), &run(&float, &x)) < 0.05, "{name}");
        }
    }
    // Networks of other programs may have no ReLU before bytes that start at 0: the range of the bytes takes its place.
    let mut graph = Graph::new("bytes");
    let x = graph.add_input("x", ElementType::F32, vec![Dim::Fixed(3)]);
    let scale = Some(graph.add_initializer("scale", Tensor::scalar(0.25f32)));
    let zero = Some(graph.add_initializer("zero", Tensor::scalar(0u8)));
    let quantize = Op::QuantizeLinear { axis: 1, block_size: 0, to: ElementType::U8 };
    let bytes = graph.push("bytes", quantize, &[Some(x), scale, zero]);
    let y = graph.push("y", Op::DequantizeLinear { axis: 1, block_size: 0 }, &[Some(bytes), scale, zero]);
    graph.outputs.push(y);
    let float = cytoscope_autodiff::prepare(&graph).unwrap();
    let found = run(&float, &Tensor::vector(vec![-1.0f32, 0.6, 100.0]));
    assert_eq!(found.as_f32().unwrap(), [0.0f32, 0.6, 63.75]);
}

/// Signed bytes of other programs, without a zero point, have the level −128, which the quantizer does not write.
#[test]
fn the_lowest_level_of_signed_bytes_is_kept() {
    let mut graph = Graph::new("signed");
    let x = graph.add_input("x", ElementType::F32, vec![Dim::Fixed(3)]);
    let scale = Some(graph.add_initializer("scale", Tensor::scalar(0.25f32)));
    let zero = Some(graph.add_initializer("zero", Tensor::scalar(0i8)));
    let quantize = Op::QuantizeLinear { axis: 0, block_size: 0, to: ElementType::I8 };
    let dequantize = Op::DequantizeLinear { axis: 0, block_size: 0 };
    let levels = graph.push("levels", quantize, &[Some(x), scale, zero]);
    let activations = graph.push("activations", dequantize.clone(), &[Some(levels), scale, zero]);
    let weights = Some(graph.add_initializer("weights", Tensor::vector(vec![-128i8, 5, 127])));
    let weights = graph.push("floats", dequantize, &[weights, scale, zero]);
    let y = graph.push("y", Op::Binary(BinaryOp::Mul), &[Some(activations), Some(weights)]);
    graph.outputs.push(y);
    let x = Tensor::vector(vec![-100.0f32, 0.5, 100.0]);
    let expected = [1024.0f32, 0.625, 1008.0625];
    assert_eq!(run(&graph, &x).as_f32().unwrap(), expected);
    let fake = fake_quantized(&graph, &graph).unwrap();
    assert_eq!(run(&fake.graph, &x).as_f32().unwrap(), expected);
    let float = cytoscope_autodiff::prepare(&graph).unwrap();
    assert_eq!(run(&float, &x).as_f32().unwrap(), expected);
}

#[test]
fn networks_that_cannot_be_fake_quantized_are_refused_with_the_reason() {
    let float = prepare(&nets()[0].1).unwrap();
    let dynamic = quantize(&float, &Activations::Dynamic, &BTreeSet::new()).unwrap();
    let error = fake_quantized(&dynamic, &float).unwrap_err();
    assert_eq!(error.kind(), GraphErrorKind::Unsupported);
    assert!(error.to_string().contains("not quantized with a fixed scale"), "{error}");
    // Two nodes that read the same weights.
    let reading_with = |second_zero: i8| {
        let mut graph = Graph::new("shared");
        let scale = Some(graph.add_initializer("scale", Tensor::scalar(0.25f32)));
        let weights = Some(graph.add_initializer("weights", Tensor::vector(vec![3i8, 5, 127])));
        let mut product = graph.add_input("x", ElementType::F32, vec![Dim::Fixed(3)]);
        for zero in [0, second_zero] {
            let zero = Some(graph.add_initializer("zero", Tensor::scalar(zero)));
            let dequantize = Op::DequantizeLinear { axis: 0, block_size: 0 };
            // The name that the trainable weights would get.
            let read = graph.push("weights.steps", dequantize, &[weights, scale, zero]);
            product = graph.push("product", Op::Binary(BinaryOp::Mul), &[Some(product), Some(read)]);
        }
        graph.outputs.push(product);
        graph
    };
    let graph = reading_with(0);
    let x = Tensor::vector(vec![1.0f32, 2.0, 3.0]);
    assert_eq!(run(&fake_quantized(&graph, &graph).unwrap().graph, &x), run(&graph, &x));
    let graph = reading_with(1);
    let error = fake_quantized(&graph, &graph).unwrap_err();
    assert!(error.to_string().contains("a different zero point"), "{error}");
}
