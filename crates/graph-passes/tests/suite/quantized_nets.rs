//! Networks to be quantized, and helpers that quantize and compare them.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::collections::BTreeSet;

use cytoscope_builders::{DynUNet, UNet3d, Upsampling, Weights, dynunet, unet3d};
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, Dim, ElementType, Graph, Op, Padding, PoolAttrs, Tensor, ValueId,
};
use cytoscope_graph_passes::infer_shapes;
use cytoscope_graph_passes::quantize::{Activations, Group, QuantRange, quantize};

use crate::common;

pub const SHAPE: [usize; 5] = [1, 1, 8, 16, 16];

pub fn free_input(graph: &mut Graph, channels: usize) -> ValueId {
    let free = |n: &str| Dim::Free(n.into());
    graph.add_input("x", ElementType::F32, vec![Dim::Fixed(1), Dim::Fixed(channels), free("d"), free("h"), free("w")])
}

/// A network with a max pool, grouped convolutions and a skip connection, so that some operators before convolutions
/// only move values.
pub fn pooled() -> Graph {
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
pub fn summed() -> Graph {
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

pub fn nets() -> Vec<(&'static str, Graph)> {
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

pub fn run(graph: &Graph, x: &Tensor) -> Tensor {
    cytoscope_reference::run(graph, &[("x".into(), x.clone())]).unwrap().remove(0)
}

/// Returns the values of tensors inside a graph.
pub fn inside(graph: &Graph, ids: &[ValueId], x: &Tensor) -> Vec<Tensor> {
    let mut seen = graph.clone();
    seen.outputs = ids.to_vec();
    cytoscope_reference::run(&seen, &[("x".into(), x.clone())]).unwrap()
}

/// Quantizes with the ranges that the tensors have when the network runs on `x`.
pub fn quantize_static(graph: &Graph, x: &Tensor, keep: &BTreeSet<String>) -> Graph {
    let range = |group: &Group| {
        let held: Vec<f64> = inside(graph, &group.sources, x).iter().flat_map(Tensor::to_f64_vec).collect();
        let ends = held.iter().fold((0.0f64, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
        QuantRange::of(ends.0 as f32, ends.1 as f32)
    };
    quantize(graph, &Activations::Static(&range), keep).unwrap()
}

pub fn relative_l2(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.shape(), b.shape());
    let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(&b).map(|(x, y)| x - y)) / norm(&mut b.iter().copied())
}
