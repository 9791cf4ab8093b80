//! Convolutions of upsampled tensors.

use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, CoordinateMode, Dim, ElementType, Graph, NearestMode, Op, PadMode, Padding,
    ResizeAttrs, ResizeMode, Tensor, ValueId,
};
use cytoscope_graph_passes::{InputLengths, convolve_before_upsampling, eliminate_dead, infer_shapes};
use std::collections::BTreeSet;

use super::common::noise_tensor;

struct Network {
    graph: Graph,
    inputs: Vec<(String, Tensor)>,
    lengths: InputLengths,
    keep: BTreeSet<String>,
}

impl Network {
    fn new() -> Self {
        let (lengths, keep) = (InputLengths::Inferred, BTreeSet::new());
        Self { graph: Graph::new("net"), inputs: Vec::new(), lengths, keep }
    }

    fn input(&mut self, shape: &[usize]) -> ValueId {
        let name = format!("x{}", self.inputs.len());
        self.inputs.push((name.clone(), noise_tensor(77 + self.inputs.len() as u64, shape)));
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
        let weight = self.graph.add_initializer("weight", noise_tensor(5, &shape));
        let bias = self.graph.add_initializer("bias", noise_tensor(6, &[outputs]));
        self.graph.push("conv", Op::Conv(attrs), &[Some(x), Some(weight), Some(bias)])
    }

    /// Rewrites the network, checks that its output is the same, and returns the operators.
    fn rewritten(mut self, output: ValueId) -> Vec<&'static str> {
        self.graph.outputs.push(output);
        infer_shapes::<ValueId>(&mut self.graph, &[]).unwrap();
        let want = cytoscope_reference::run(&self.graph, &self.inputs).unwrap();
        convolve_before_upsampling(&mut self.graph, self.lengths, &self.keep).unwrap();
        eliminate_dead(&mut self.graph);
        self.graph.validate().unwrap();
        infer_shapes::<ValueId>(&mut self.graph, &[]).unwrap();
        let got = cytoscope_reference::run(&self.graph, &self.inputs).unwrap();
        assert_eq!(got[0].shape(), want[0].shape());
        let largest = want[0].as_f32().unwrap().iter().fold(1.0f32, |m, v| m.max(v.abs()));
        for (a, b) in got[0].as_f32().unwrap().iter().zip(want[0].as_f32().unwrap()) {
            assert!((a - b).abs() <= 1e-5 * largest, "{a}, expected {b}");
        }
        self.graph.nodes.iter().map(|node| cytoscope_graph::op_name(&node.op)).collect()
    }
}

/// Returns numbers below the given ones, in the order in which they are requested.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    }
}

#[test]
fn convolutions_after_nearest_upsampling_become_transposed_convolutions() {
    let mut transposed = 0;
    for seed in 1..200 {
        let mut below = numbers(seed);
        let lengths = [0; 3].map(|_| 1 + below(4));
        let factors = [0; 3].map(|_| 1 + below(3));
        let kernel = [0; 3].map(|_| 1 + below(5));
        let padding = Padding::Explicit {
            before: kernel.iter().map(|k| below(*k)).collect(),
            after: kernel.iter().map(|k| below(*k)).collect(),
        };
        let long = [0, 1, 2].map(|a| lengths[a] * factors[a]);
        let mut net = Network::new();
        let x = net.input(&[&[1, 9][..], &lengths].concat());
        let up = net.resize(x, ResizeAttrs::nearest(), &factors);
        let skip = net.input(&[&[1, 3][..], &long].concat());
        let other = net.input(&[&[1, 2][..], &long].concat());
        let (x, channels) = match below(4) {
            0 => (up, 9),
            1 => (net.graph.push("concat", Op::concat(1), &[skip, up].map(Some)), 12),
            2 => (net.graph.push("concat", Op::concat(1), &[up, skip].map(Some)), 12),
            _ => (net.graph.push("concat", Op::concat(1), &[skip, up, other].map(Some)), 14),
        };
        let attrs = ConvAttrs::same(&kernel).with_padding(padding);
        if attrs.output_lengths(&long).is_err() {
            continue;
        }
        let y = net.conv(x, [channels, 4], attrs);
        let operators = net.rewritten(y);
        let expected = factors.iter().any(|f| *f > 1) && kernel.iter().any(|k| *k > 1);
        assert_eq!(operators.contains(&"ConvTranspose"), expected, "seed {seed}: {operators:?}");
        assert!(!expected || !operators.contains(&"Resize"), "seed {seed}: {operators:?}");
        transposed += usize::from(expected);
    }
    assert!(transposed > 100, "{transposed}");
}

#[test]
fn a_pointwise_convolution_stays_behind_a_resize_that_mixes_channels() {
    let mut net = Network::new();
    let x = net.input(&[1, 8, 3, 4]);
    // Eight channels times 1.12 are eight channels, but not the same ones.
    let scales = net.graph.add_initializer("scales", Tensor::vector(vec![1.0f32, 1.12, 2.0, 2.0]));
    let up = net.graph.push("resize", Op::resize(ResizeAttrs::nearest()), &[Some(x), None, Some(scales)]);
    let y = net.conv(up, [8, 4], ConvAttrs::same(&[1, 1]));
    assert_eq!(net.rewritten(y), ["Resize", "Conv"]);
}

#[test]
fn pads_that_are_cropped_again_do_not_hide_upsampling() {
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
fn an_upsampled_tensor_that_is_read_twice_stays() {
    let mut net = Network::new();
    let x = net.input(&[1, 8, 3, 4]);
    let up = net.resize(x, ResizeAttrs::nearest(), &[2, 2]);
    let y = net.conv(up, [8, 8], ConvAttrs::same(&[3, 3]));
    let y = net.graph.push("sum", Op::Binary(BinaryOp::Add), &[y, up].map(Some));
    assert_eq!(net.rewritten(y), ["Resize", "Conv", "Add"]);
}

#[test]
fn kept_convolutions_and_factors_that_depend_on_the_lengths_stay() {
    let net = |attrs: ResizeAttrs| {
        let mut net = Network::new();
        let x = net.input(&[1, 8, 1, 4]);
        let up = net.resize(x, attrs, &[2, 2]);
        let y = net.conv(up, [8, 4], ConvAttrs::same(&[3, 3]));
        (net, y)
    };
    // An axis of one element is repeated in every mode.
    let aligned = ResizeAttrs { coordinates: CoordinateMode::AlignCorners, ..ResizeAttrs::nearest() };
    let (mut any, y) = net(aligned);
    any.lengths = InputLengths::Any;
    assert_eq!(any.rewritten(y), ["Resize", "Conv"]);
    let (mut any, y) = net(ResizeAttrs::nearest());
    any.lengths = InputLengths::Any;
    assert_eq!(any.rewritten(y), ["ConvTranspose"]);
    let (mut kept, y) = net(ResizeAttrs::nearest());
    kept.keep.insert("conv".to_owned());
    assert_eq!(kept.rewritten(y), ["Resize", "Conv"]);
}
