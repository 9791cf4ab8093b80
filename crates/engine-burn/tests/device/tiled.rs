//! The convolution for matrix units, compared with the reference executor: its tiles on any device, without such units.
//! Results of the units are compared on CUDA devices (`cuda.rs`).

use crate::{difference_on, engine, one, tensor};
use cytoscope_engine::{CompileOptions, Engine, Precision};
use cytoscope_engine_burn::{BurnEngine, tiled_convolutions};
use cytoscope_graph::{
    Activation, ConvAttrs, ConvTransposeAttrs, Dim, ElementType, Graph, Node, Op, Padding, Tensor, ValueId,
};

/// Checks that the tiled kernel computes the first output of a graph like the reference.
fn tiled(what: &str, graph: &Graph) {
    let Some(engine) = engine() else { return };
    let engine = BurnEngine::open(engine.device()).unwrap().with_tiled_convolutions();
    let shape = |input: &ValueId| graph.value(*input).fixed_shape().unwrap();
    let shapes: Vec<Vec<usize>> = graph.inputs.iter().map(shape).collect();
    let inputs: Vec<Tensor> = shapes.iter().zip(7..).map(|(shape, seed)| tensor(shape, seed)).collect();
    let names = graph.inputs.iter().map(|input| graph.value(*input).name.clone());
    let named: Vec<(String, Tensor)> = names.zip(inputs.iter().cloned()).collect();
    let expected = cytoscope_reference::run(graph, &named).unwrap();
    let before = tiled_convolutions();
    let mut session = engine.compile(graph, &shapes, &CompileOptions::default()).unwrap();
    let got = session.run(&inputs).unwrap();
    assert!(tiled_convolutions() > before, "{what} does not use the tiled kernel");
    assert_eq!(got[0].shape(), expected[0].shape(), "{what}");
    let (got, expected) = (got[0].as_f32().unwrap(), expected[0].as_f32().unwrap());
    let largest = expected.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    let worst = cytoscope_testkit::largest_difference(got, expected) / f64::from(largest);
    assert!(worst < 1e-5, "{what} differs by {worst}");
}

fn conv(attrs: ConvAttrs, inputs: usize, outputs: usize, sizes: [usize; 4]) -> Graph {
    let [samples, depth, height, width] = sizes;
    let kernel = attrs.kernel.clone();
    let weights: Vec<usize> = [outputs, inputs].into_iter().chain(kernel).collect();
    let constants: Vec<Option<Tensor>> = vec![Some(tensor(&weights, 1)), Some(tensor(&[outputs], 2))];
    one(Op::Conv(attrs), &[samples, inputs, depth, height, width], constants)
}

#[test]
fn tiled_convolutions_of_all_kernels_and_sizes_match_the_reference() {
    // These kernels fit into 32 KiB of shared memory, the least that WebGPU devices have.
    for kernel in [[1, 3, 3], [3, 1, 3], [3, 1, 1], [1, 1, 5], [1, 1, 1]] {
        for (inputs, outputs, sizes) in [(16, 16, [1, 4, 8, 16]), (32, 48, [2, 5, 9, 21]), (16, 64, [1, 1, 3, 33])] {
            let what = format!("kernel {kernel:?}, {inputs} to {outputs} channels, {sizes:?}");
            tiled(&what, &conv(ConvAttrs::same(&kernel), inputs, outputs, sizes));
        }
    }
}

#[test]
fn tiled_convolutions_with_strides_padding_and_dilation_match_the_reference() {
    let attrs = ConvAttrs::same(&[1, 3, 3]);
    tiled("stride along Z", &conv(attrs.clone().with_strides(&[2, 1, 1]), 16, 16, [2, 7, 6, 18]));
    tiled("stride along X", &conv(ConvAttrs::same(&[1, 1, 3]).with_strides(&[1, 1, 2]), 16, 32, [1, 3, 5, 37]));
    let padded = attrs.clone().with_padding(Padding::symmetric(vec![1, 0, 2]));
    tiled("padding", &conv(padded, 16, 16, [1, 3, 6, 17]));
    let attrs = ConvAttrs { dilations: vec![2, 1, 1], ..ConvAttrs::same(&[3, 1, 1]) };
    tiled("dilation", &conv(attrs, 16, 16, [1, 6, 4, 9]));
}

#[test]
fn tiled_transposed_convolutions_and_activations_match_the_reference() {
    let attrs = ConvTransposeAttrs::upsample(&[2, 2, 2]);
    let constants = vec![Some(tensor(&[32, 16, 2, 2, 2], 3)), Some(tensor(&[16], 4))];
    tiled("upsampling", &one(Op::ConvTranspose(attrs), &[2, 32, 3, 4, 9], constants));
    let mut graph = conv(ConvAttrs::same(&[1, 3, 3]), 16, 32, [1, 3, 7, 17]);
    let y = graph.outputs[0];
    let activated = graph.push("activation", Op::Activation(Activation::LeakyRelu { alpha: 0.1 }), &[Some(y)]);
    graph.outputs = vec![activated];
    tiled("activation", &graph);
}

#[test]
fn matrix_products_in_tiles_match_the_reference() {
    for rows in [128, 100, 7] {
        let weights = Some(tensor(&[32, 48], 1));
        tiled(&format!("MatMul of {rows} rows"), &one(Op::MatMul, &[1, rows, 32], vec![weights]));
    }
    let op = Op::Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: true };
    let constants = vec![Some(tensor(&[16, 32], 1)), Some(tensor(&[16], 2))];
    tiled("Gemm", &one(op, &[20, 32], constants));
}

/// Returns the graph of a layer whose weights are inputs, as in a training step.
fn layer(op: Op, shapes: [&[usize]; 3]) -> Graph {
    let mut graph = Graph::new("layer");
    let named = ["x", "weights", "bias"].into_iter().zip(shapes);
    let dims = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect();
    let ids: Vec<Option<ValueId>> =
        named.map(|(name, shape)| Some(graph.add_input(name, ElementType::F32, dims(shape)))).collect();
    let y = graph.push("y", op, &ids);
    graph.outputs.push(y);
    graph
}

#[test]
fn tiled_layers_with_trained_weights_match_the_reference() {
    let upsample = Op::ConvTranspose(ConvTransposeAttrs::upsample(&[1, 2, 2]));
    tiled("upsampling", &layer(upsample, [&[2, 32, 3, 4, 9], &[32, 16, 1, 2, 2], &[16]]));
    let plane = Op::Conv(ConvAttrs::same(&[1, 3, 3]));
    tiled("a convolution", &layer(plane, [&[2, 32, 3, 4, 19], &[16, 32, 1, 3, 3], &[16]]));
}

/// The kernels for matrix units refuse groups; other kernels then compute the convolution and its gradients.
#[test]
fn grouped_convolutions_fall_back_to_kernels_without_matrix_units() {
    let Some(engine) = engine() else { return };
    let engine = BurnEngine::open(engine.device()).unwrap().with_tiled_convolutions();
    let attrs = ConvAttrs { group: 2, ..ConvAttrs::same(&[1, 3, 3]) };
    let (x, dy) = ([2, 32, 3, 6, 17], [2, 64, 3, 6, 17]);
    let forward = layer(Op::Conv(attrs.clone()), [&x, &[64, 16, 1, 3, 3], &[64]]);
    let gradients = [false, true].map(|for_weights| gradient(attrs.clone(), for_weights, x, dy));
    for graph in std::iter::once(forward).chain(gradients) {
        let shape = |input: &ValueId| graph.value(*input).fixed_shape().unwrap();
        let inputs: Vec<Tensor> = graph.inputs.iter().map(shape).zip(7..).map(|(s, seed)| tensor(&s, seed)).collect();
        let worst = difference_on(&engine, &graph, &inputs, Precision::F32);
        assert!(worst < 1e-5, "{} differs by {worst}", graph.name);
    }
}

/// Returns the graph of a gradient of a convolution, of its input or its weights.
pub fn gradient(attrs: ConvAttrs, for_weights: bool, x: [usize; 5], dy: [usize; 5]) -> Graph {
    let mut graph = Graph::new("gradient");
    let weights: Vec<usize> = [dy[1], x[1] / attrs.group].into_iter().chain(attrs.kernel.iter().copied()).collect();
    let mut inputs = Vec::new();
    for (name, shape) in [("x", &x[..]), ("w", &weights), ("dy", &dy)] {
        let dims = shape.iter().map(|n| Dim::Fixed(*n)).collect();
        inputs.push(Some(graph.add_input(name, ElementType::F32, dims)));
    }
    let made = graph.add_value("gradient", None, None);
    let outputs = if for_weights { vec![None, Some(made)] } else { vec![Some(made)] };
    let op = Op::Vjp(Box::new(Op::Conv(attrs)));
    graph.nodes.push(Node { name: "node".into(), op, inputs, outputs });
    graph.outputs = vec![made];
    graph
}

#[test]
fn tiled_gradients_match_the_reference() {
    for (of, for_weights) in [("input", false), ("weights", true)] {
        let tiled = |what: &str, attrs: &ConvAttrs, x: [usize; 5], dy: [usize; 5]| {
            tiled(&format!("gradient of {of}, {what}"), &gradient(attrs.clone(), for_weights, x, dy));
        };
        let plane = ConvAttrs::same(&[1, 3, 3]);
        tiled("a plane", &plane, [2, 16, 3, 6, 17], [2, 32, 3, 6, 17]);
        tiled("stride 2", &plane.with_strides(&[1, 2, 2]), [1, 16, 3, 6, 34], [1, 16, 3, 3, 17]);
        let deep = ConvAttrs::same(&[3, 1, 3]).with_strides(&[2, 1, 1]);
        tiled("stride along Z", &deep, [1, 32, 6, 5, 9], [1, 16, 3, 5, 9]);
        tiled("a voxel", &ConvAttrs::same(&[1; 3]), [3, 32, 5, 9, 16], [3, 16, 5, 9, 16]);
        tiled("two taps", &ConvAttrs::same(&[1, 1, 2]), [1, 16, 2, 9, 20], [1, 48, 2, 9, 21]);
    }
    // A cube fits into 32 KiB of shared memory here, but not in the forward pass.
    let cube = gradient(ConvAttrs::same(&[3; 3]), true, [2, 16, 5, 7, 18], [2, 32, 5, 7, 18]);
    tiled("gradient of weights, a cube", &cube);
}
