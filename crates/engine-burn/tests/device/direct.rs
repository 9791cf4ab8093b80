//! The kernels of this crate, compared with the reference executor.

use crate::{difference, engine, numbers, one, same, same_on, tensor};
use cytoscope_builders::{DynUNet, Weights, dynunet};
use cytoscope_engine::{CompileOptions, Engine};
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, CoordinateMode, Dim, ElementType, Graph, NearestMode, Op,
    Padding, PoolAttrs, ResizeAttrs, Tensor, ValueId,
};

/// Builds graphs node by node; all constants are pseudo-random numbers.
struct Network {
    graph: Graph,
    x: ValueId,
    seed: u64,
}

impl Network {
    fn new(shape: &[usize]) -> Self {
        let mut graph = Graph::new("network");
        let x = graph.add_input("x", ElementType::F32, shape.iter().map(|n| Dim::Fixed(*n)).collect());
        Self { graph, x, seed: 1 }
    }

    fn constant(&mut self, shape: &[usize]) -> Option<ValueId> {
        self.seed += 1;
        Some(self.graph.add_initializer(format!("c{}", self.seed), tensor(shape, self.seed)))
    }

    fn push(&mut self, op: Op, inputs: &[Option<ValueId>]) -> ValueId {
        let name = format!("node {}", self.graph.nodes.len());
        self.graph.push(&name, op, inputs)
    }

    fn conv(&mut self, x: ValueId, inputs: usize, outputs: usize, kernel: usize) -> ValueId {
        let weights = self.constant(&[outputs, inputs, kernel, kernel, kernel]);
        self.push(Op::Conv(ConvAttrs::same(&[kernel; 3])), &[Some(x), weights])
    }

    fn norm(&mut self, x: ValueId, channels: usize) -> ValueId {
        let (scale, bias) = (self.constant(&[channels]), self.constant(&[channels]));
        self.push(Op::InstanceNormalization { epsilon: 1e-5 }, &[Some(x), scale, bias])
    }

    fn activate(&mut self, x: ValueId) -> ValueId {
        self.push(Op::Activation(Activation::LeakyRelu { alpha: 0.1 }), &[Some(x)])
    }

    fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.push(Op::Binary(BinaryOp::Add), &[Some(a), Some(b)])
    }

    fn with_outputs(mut self, outputs: &[ValueId]) -> Graph {
        self.graph.outputs = outputs.to_vec();
        self.graph
    }
}

/// Returns whether the device runs a graph with the kernels of this crate; `None` without a device.
fn is_direct(graph: &Graph) -> Option<bool> {
    let shapes: Vec<_> = graph.inputs.iter().map(|i| graph.value(*i).fixed_shape().unwrap()).collect();
    let session = engine()?.compile(graph, &shapes, &CompileOptions::default()).unwrap();
    Some(!session.report().backend.contains("fusion"))
}

/// Checks that the kernels of this crate are used and agree with the reference.
fn direct(what: &str, graph: &Graph) {
    let Some(is_direct) = is_direct(graph) else { return };
    assert!(is_direct, "{what} has no kernels");
    same(what, graph);
}

#[test]
fn convolutions_of_all_numbers_of_channels_and_sizes_match_the_reference() {
    for (inputs, outputs, shape) in [
        (1, 16, [4, 6, 8]),
        (4, 8, [3, 5, 7]),
        (5, 7, [2, 3, 9]),
        (8, 6, [4, 4, 3]),
        (16, 1, [2, 5, 4]),
        (3, 12, [1, 1, 1]),
    ] {
        for samples in [1, 3] {
            let shape = [samples, inputs, shape[0], shape[1], shape[2]];
            let w = vec![Some(tensor(&[outputs, inputs, 3, 3, 3], 1)), Some(tensor(&[outputs], 2))];
            let graph = one(Op::Conv(ConvAttrs::same(&[3; 3])), &shape, w);
            direct(&format!("{shape:?} to {outputs} channels"), &graph);
        }
    }
    let w = || vec![Some(tensor(&[8, 4, 3, 1, 3], 1)), None];
    let attrs = ConvAttrs { dilations: vec![2, 1, 1], ..ConvAttrs::same(&[3, 1, 3]) };
    direct("dilation", &one(Op::Conv(attrs.clone()), &[2, 4, 6, 5, 9], w()));
    let attrs = attrs.with_strides(&[1, 2, 3]).with_padding(Padding::symmetric(vec![2, 0, 1]));
    direct("strides", &one(Op::Conv(attrs), &[2, 4, 6, 5, 11], w()));
}

#[test]
fn convolutions_with_activations_match_the_reference() {
    use Activation::*;
    for activation in [
        Relu,
        LeakyRelu { alpha: 0.2 },
        Elu { alpha: 0.7 },
        Sigmoid,
        Silu,
        Tanh,
        Softsign,
        Clip { min: -0.5, max: f32::INFINITY },
    ] {
        let mut network = Network::new(&[2, 4, 3, 4, 5]);
        let y = network.conv(network.x, 4, 8, 3);
        let y = network.push(Op::Activation(activation), &[Some(y)]);
        direct(&format!("conv, {activation:?}"), &network.with_outputs(&[y]));
    }
}

#[test]
fn residual_blocks_match_the_reference() {
    let mut network = Network::new(&[2, 6, 4, 5, 6]);
    let x = network.x;
    let y = network.conv(x, 6, 8, 3);
    let y = network.norm(y, 8);
    let y = network.activate(y);
    let y = network.conv(y, 8, 8, 3);
    let y = network.norm(y, 8);
    let short = network.conv(x, 6, 8, 1);
    let short = network.norm(short, 8);
    let sum = network.add(y, short);
    let a = network.activate(sum);
    // A sum that several nodes read, the same value twice, and a norm as an output.
    let b = network.conv(a, 8, 8, 3);
    let b = network.add(b, a);
    let doubled = network.add(b, b);
    let normed = network.norm(doubled, 8);
    direct("residual blocks", &network.with_outputs(&[b, normed]));
}

#[test]
fn norms_match_the_reference_where_sums_of_squares_would_not() {
    for (groups, shape) in [(8, [2, 8, 4, 6, 8]), (2, [3, 8, 5, 6, 7]), (1, [1, 6, 2, 3, 4]), (7, [1, 7, 16, 16, 16])] {
        let channels: usize = shape[1];
        let parts = || vec![Some(tensor(&[channels], 1)), Some(tensor(&[channels], 2))];
        let graph = one(Op::GroupNormalization { groups, epsilon: 1e-5 }, &shape, parts());
        direct(&format!("{groups} groups of {shape:?}"), &graph);
        // The mean is a thousand times the deviation.
        let far: Vec<f32> = numbers(shape.iter().product(), 3).into_iter().map(|v| v + 1000.0).collect();
        if let Some(worst) = difference(&graph, &[Tensor::new(shape, far).unwrap()]) {
            assert!(worst < 2e-3, "{groups} groups of {shape:?}, far from zero: {worst:.1e}");
        }
    }
}

#[test]
fn upsampling_concatenation_and_pooling_match_the_reference() {
    for (inputs, outputs, factors) in [(8, 4, [2, 2, 2]), (4, 3, [1, 2, 2]), (6, 8, [2, 1, 3])] {
        let mut network = Network::new(&[2, inputs, 3, 4, 5]);
        let (weights, bias) =
            (network.constant(&[inputs, outputs, factors[0], factors[1], factors[2]]), network.constant(&[outputs]));
        let up = Op::ConvTranspose(ConvTransposeAttrs::upsample(&factors));
        let y = network.push(up, &[Some(network.x), weights, bias]);
        direct(&format!("upsampling by {factors:?}"), &network.with_outputs(&[y]));
    }
    let mut network = Network::new(&[2, 4, 4, 6, 8]);
    let (x, y) = (network.x, network.conv(network.x, 4, 6, 3));
    let joined = network.push(Op::Concat { axis: 1 }, &[Some(y), Some(x), Some(y)]);
    let padded = PoolAttrs {
        kernel: vec![3; 3],
        strides: vec![1, 2, 2],
        padding: Padding::symmetric(vec![1; 3]),
        dilations: vec![1; 3],
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    let pooled = network.push(Op::MaxPool(padded), &[Some(joined)]);
    direct("concat and pooling", &network.with_outputs(&[joined, pooled]));
    let window = PoolAttrs {
        kernel: vec![2, 2, 3],
        strides: vec![2, 1, 3],
        padding: Padding::none(3),
        dilations: vec![1; 3],
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    direct("average pooling", &one(Op::AveragePool(window), &[2, 4, 4, 6, 9], vec![]));
    let nearest =
        ResizeAttrs { coordinates: CoordinateMode::Asymmetric, nearest: NearestMode::Floor, ..ResizeAttrs::nearest() };
    let scales = Some(Tensor::vector(vec![1.0f32, 1.0, 1.0, 2.0, 3.0]));
    direct("nearest", &one(Op::Resize(nearest), &[2, 3, 4, 5, 6], vec![None, scales]));
}

/// The last operators of networks that tell classes apart.
#[test]
fn softmax_and_positions_over_channels_match_the_reference() {
    for channels in [1, 3, 8] {
        for op in [Op::Softmax { axis: 1 }, Op::LogSoftmax { axis: -4 }] {
            let mut network = Network::new(&[2, 2, 3, 4, 5]);
            let y = network.conv(network.x, 2, channels, 3);
            let y = network.push(op.clone(), &[Some(y)]);
            direct(&format!("{op:?} of {channels} channels"), &network.with_outputs(&[y]));
        }
        for (max, last) in [(true, false), (false, true), (true, true)] {
            let mut network = Network::new(&[2, 2, 3, 4, 5]);
            let y = network.conv(network.x, 2, channels, 3);
            // Few whole numbers, many of which are equal.
            let y = network.push(Op::Activation(Activation::Clip { min: -1.0, max: 1.0 }), &[Some(y)]);
            let y = network.push(Op::ArgReduce { max, axis: 1, keep_dims: true, last }, &[Some(y)]);
            let y = network.push(Op::Cast { to: ElementType::F32 }, &[Some(y)]);
            direct(&format!("position of {channels} channels, {max} {last}"), &network.with_outputs(&[y]));
        }
    }
}

/// Returns how many numbers of the first output are NaN; `None` without a device.
fn nan_count(graph: &Graph, x: Tensor) -> Option<usize> {
    let shapes = [x.shape().to_vec()];
    let mut session = engine()?.compile(graph, &shapes, &CompileOptions::default()).unwrap();
    let outputs = session.run(&[x]).unwrap();
    Some(outputs[0].as_f32().unwrap().iter().filter(|v| v.is_nan()).count())
}

/// A NaN or infinity from a number that exceeds the range of its type must reach the output of the network, where it is
/// detected.
#[test]
fn nan_stays_nan_after_activations_norms_and_pooling() {
    use Activation::*;
    let shape = [1, 1, 4, 4, 4];
    let with = |at: usize, value: f32| {
        let mut values = numbers(64, 3);
        values[at] = value;
        Tensor::new(shape, values).unwrap()
    };
    // The voxel 1, 1, 1, which 27 voxels of a convolution read.
    let near = || with(16 + 4 + 1, f32::NAN);
    for activation in [
        Relu,
        LeakyRelu { alpha: 0.2 },
        Elu { alpha: 0.7 },
        Sigmoid,
        Silu,
        Tanh,
        Softsign,
        Clip { min: 0.0, max: 6.0 },
        HardSigmoid { alpha: 0.2, beta: 0.5 },
    ] {
        let mut network = Network::new(&shape);
        let y = network.conv(network.x, 1, 8, 3);
        let y = network.push(Op::Activation(activation), &[Some(y)]);
        let found = nan_count(&network.with_outputs(&[y]), near());
        assert!(found.is_none_or(|count| count == 27 * 8), "{activation:?}: {found:?}");
    }
    let mut network = Network::new(&shape);
    let y = network.conv(network.x, 1, 8, 3);
    let rounded = Op::FakeQuantize { scales: vec![0.25], axis: 1, low: -3.0, high: 4.0 };
    let y = network.push(rounded, &[Some(y)]);
    let found = nan_count(&network.with_outputs(&[y]), near());
    assert!(found.is_none_or(|count| count == 27 * 8), "fake quantization: {found:?}");
    let mut network = Network::new(&shape);
    let y = network.conv(network.x, 1, 8, 3);
    let halves = PoolAttrs {
        kernel: vec![2; 3],
        strides: vec![2; 3],
        padding: Padding::none(3),
        dilations: vec![1; 3],
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    let y = network.push(Op::MaxPool(halves), &[Some(y)]);
    let found = nan_count(&network.with_outputs(&[y]), near());
    assert!(found.is_none_or(|count| count == 8 * 8), "pooling: {found:?}");
    for op in [Op::Softmax { axis: 1 }, Op::ArgReduce { max: true, axis: 1, keep_dims: true, last: false }] {
        let mut network = Network::new(&shape);
        let y = network.conv(network.x, 1, 8, 3);
        let y = network.push(op.clone(), &[Some(y)]);
        let y = network.push(Op::Cast { to: ElementType::F32 }, &[Some(y)]);
        let found = nan_count(&network.with_outputs(&[y]), near());
        let channels = if matches!(op, Op::Softmax { .. }) { 8 } else { 1 };
        assert!(found.is_none_or(|count| count == 27 * channels), "{op:?}: {found:?}");
    }
    // An infinite number leaves its channel without a mean, even if the first voxel, 0, 0, 0, does not depend on it.
    for at in [16 + 4 + 1, 2 * (16 + 4 + 1)] {
        let mut network = Network::new(&shape);
        let y = network.conv(network.x, 1, 8, 3);
        let y = network.norm(y, 8);
        let y = network.push(Op::Activation(Relu), &[Some(y)]);
        let found = nan_count(&network.with_outputs(&[y]), with(at, f32::INFINITY));
        assert!(found.is_none_or(|count| count == 64 * 8), "norm with voxel {at} infinite: {found:?}");
    }
}

#[test]
fn numbers_before_an_activation_match_the_reference() {
    let mut graph = one(Op::Binary(BinaryOp::Mul), &[2, 3, 4, 5, 6], vec![Some(Tensor::scalar(0.3f32))]);
    let shift = graph.add_initializer("two", Tensor::scalar(2.0f32));
    let y = graph.push("shift", Op::Binary(BinaryOp::Sub), &[Some(shift), Some(graph.outputs[0])]);
    let y = graph.push("softsign", Op::Activation(Activation::Softsign), &[Some(y)]);
    graph.outputs = vec![y];
    direct("scale, shift, activation", &graph);
}

/// Two-dimensional networks, and those that cannot use the kernels.
#[test]
fn images_have_kernels_and_other_networks_match_the_reference_without() {
    let w = || vec![Some(tensor(&[6, 4, 3, 3], 1)), Some(tensor(&[6], 2))];
    direct("image", &one(Op::Conv(ConvAttrs::same(&[3; 2])), &[2, 4, 7, 9], w()));
    let grouped = ConvAttrs { group: 2, ..ConvAttrs::same(&[3; 3]) };
    let graph = one(Op::Conv(grouped), &[1, 4, 4, 6, 8], vec![Some(tensor(&[6, 2, 3, 3, 3], 3))]);
    assert_ne!(is_direct(&graph), Some(true));
    same("grouped", &graph);
}

/// Training adds up gradients like this, in sessions that run on Burn's tensors.
#[test]
fn sums_of_several_inputs_run_on_the_tensors_of_training_steps() {
    let shape = [2, 3, 4, 5, 6];
    let mut network = Network::new(&shape);
    let other = network.graph.add_input("other", ElementType::F32, shape.map(Dim::Fixed).to_vec());
    let sum = network.add(network.x, other);
    let graph = network.with_outputs(&[sum]);
    assert_ne!(is_direct(&graph), Some(true));
    same_on("sum of two inputs", &graph, &[tensor(&shape, 1), tensor(&shape, 2)]);
}

/// Weighted sums are those of the host to the last bit, with the kernels of this crate and with Burn's tensors.
#[test]
fn sums_of_overlapping_tiles_equal_those_of_the_host() {
    let Some(engine) = engine() else { return };
    let w = || Some(tensor(&[2, 1, 3, 3, 3], 1));
    let own = one(Op::Conv(ConvAttrs::same(&[3; 3])), &[2, 1, 4, 6, 8], vec![w()]);
    let mut burn = own.clone();
    let y = burn.push("power", Op::Binary(BinaryOp::Mul), &[Some(burn.outputs[0]), Some(burn.outputs[0])]);
    burn.outputs = vec![y];
    // A volume of 5 × 9 × 11 voxels, whose last rows and columns lie beyond sums of 8 × 10.
    let (volume, weights) = (tensor(&[1, 5, 9, 11], 9), tensor(&[4, 6, 8], 10));
    let factors = weights.as_f32().unwrap().to_vec();
    for (graph, expects_direct) in [(own, true), (burn, false)] {
        assert_eq!(is_direct(&graph), Some(expects_direct));
        let mut session = engine.compile(&graph, &[vec![2, 1, 4, 6, 8]], &CompileOptions::default()).unwrap();
        let slabs = session.slabs().unwrap();
        slabs.load(0, volume.clone()).unwrap();
        slabs.begin_sums(weights.clone(), [2, 4, 8, 10]).unwrap();
        let mut expected = vec![0.0f32; 2 * 4 * 8 * 10];
        // Only one tile of the last batch counts.
        for (starts, used) in [([[0, 0, 0], [0, 0, 3]], 2), ([[0, 3, 0], [0, 3, 3]], 2), ([[1, 2, 1], [1, 2, 1]], 1)] {
            let tiles = slabs.run_tiles(&starts).unwrap();
            let values = tiles[0].as_f32().unwrap();
            for (tile, [_, row, column]) in values.chunks(2 * 192).zip(starts).take(used) {
                for (at, value) in tile.iter().enumerate() {
                    let [plane, y, x] = [at / 48, row + at / 8 % 6, column + at % 8];
                    if y < 8 && x < 10 {
                        expected[(plane * 8 + y) * 10 + x] += value * factors[at % 192];
                    }
                }
            }
            slabs.run_summed(&starts, 0, used).unwrap();
        }
        let planes = |z: std::ops::Range<usize>| -> Vec<f32> {
            (0..2).flat_map(|c| expected[(c * 4 + z.start) * 80..(c * 4 + z.end) * 80].to_vec()).collect()
        };
        let first = slabs.take_sums(3).unwrap();
        assert_eq!((first.shape(), first.as_f32().unwrap()), (&[2, 3, 8, 10][..], &planes(0..3)[..]));
        let last = slabs.take_sums(4).unwrap();
        for (c, channel) in last.as_f32().unwrap().chunks(320).enumerate() {
            assert_eq!(channel[..80], planes(3..4)[c * 80..(c + 1) * 80]);
            assert!(channel[80..].iter().all(|v| *v == 0.0), "new planes are empty");
        }
        assert!(slabs.take_sums(5).is_err());
    }
}

#[test]
fn a_batch_of_tiles_of_a_slab_equals_single_tiles() {
    let Some(engine) = engine() else { return };
    let config = DynUNet { filters: vec![4, 8], strides: vec![1, 2], ..DynUNet::default() };
    let graph = dynunet(&config, &Weights::Random { seed: 5 }).unwrap();
    // A volume of 10 × 13 × 15 voxels, tiles of 8 × 8 × 8.
    let (volume, size) = (numbers(10 * 13 * 15, 9), [8, 8, 8]);
    let starts = [[1, 0, 0], [1, 0, 7], [1, 5, 0], [1, 5, 7]];
    let cut = |start: &[usize; 3]| -> Vec<f32> {
        let row = |z: usize, y: usize| ((z + start[0]) * 13 + y + start[1]) * 15 + start[2];
        let rows = (0..size[0]).flat_map(|z| (0..size[1]).map(move |y| (z, y)));
        rows.flat_map(|(z, y)| volume[row(z, y)..row(z, y) + size[2]].to_vec()).collect()
    };
    let shape = |samples: usize| vec![samples, 1, size[0], size[1], size[2]];
    let tiles = Tensor::new(shape(4), starts.iter().flat_map(cut).collect::<Vec<_>>()).unwrap();
    same_on("four tiles", &graph, std::slice::from_ref(&tiles));
    let mut session = engine.compile(&graph, &[shape(4)], &CompileOptions::default()).unwrap();
    let expected = session.run(&[tiles]).unwrap();
    let slabs = session.slabs().unwrap();
    slabs.load(0, Tensor::new([1, 10, 13, 15], volume.clone()).unwrap()).unwrap();
    assert_eq!(slabs.run_tiles(&starts).unwrap(), expected);
    // Parts of different sizes, which are joined in two rows.
    let kept = [[2..7, 0..6, 0..7], [2..7, 0..6, 1..8], [2..7, 1..8, 0..7], [2..7, 1..8, 1..8]];
    slabs.run_kept(&starts, 0, &kept).unwrap();
    let joined = slabs.take_kept(2).unwrap();
    let (values, channels) = (expected[0].as_f32().unwrap(), expected[0].shape()[1]);
    let mut plain = Vec::new();
    for c in 0..channels {
        for z in 2..7 {
            for row in kept.chunks(2).enumerate() {
                for y in row.1[0][1].clone() {
                    for (column, part) in row.1.iter().enumerate() {
                        let sample = row.0 * 2 + column;
                        let at = (((sample * channels + c) * 8 + z) * 8 + y) * 8;
                        plain.extend_from_slice(&values[at + part[2].start..at + part[2].end]);
                    }
                }
            }
        }
    }
    assert_eq!((joined.shape(), joined.as_f32().unwrap()), (&[channels, 5, 13, 14][..], &plain[..]));
}

/// Outputs are downloaded in pieces of 2,097,152 elements, with one channel in the order of the device's memory.
#[test]
fn outputs_of_several_pieces_match_the_reference() {
    for channels in [1, 2] {
        let (weights, bias) = (tensor(&[channels, 1, 1, 1, 1], 1), tensor(&[channels], 2));
        let conv = Op::Conv(ConvAttrs::same(&[1; 3]));
        let graph = one(conv, &[1, 1, 24, 256, 401], vec![Some(weights), Some(bias)]);
        same(&format!("{channels} channels"), &graph);
    }
}
