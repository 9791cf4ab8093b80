//! Where planes lie in their buffers, and that the result does not depend on it.
#![allow(clippy::unwrap_used, reason = "a test")]
use super::super::arena;
use super::super::flow::{lifetimes, pass_needs};
use super::*;
use crate::CpuEngine;
use crate::program::arena_bytes;
use cytoscope_builders::{RandomNetwork, UNet3d, Weights, quantized, random_bytes, unet3d};
use cytoscope_engine::{CompileOptions, Engine, NotRolling, RollingPlan};
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, Dim, ElementType, Graph, Op, PadMode, Padding, PoolAttrs, ResizeAttrs, ValueId,
};

#[test]
fn copies_are_those_of_the_standard_library() {
    let words: Vec<f32> = (0..4 * COPY_WORDS).map(|w| w as f32).collect();
    let long = COPY_WORDS + 3;
    for (from, to, len) in [(0, 5, 3), (5, 0, 3), (5, 0, 5), (1, 3, 9), (3, 1, 9), (2 * long, 7, long), (1, long, long)]
    {
        let (mut own, mut expected) = (words.clone(), words.clone());
        copy_within(&mut own, from, to, len);
        expected.copy_within(from..from + len, to);
        assert!(own == expected, "{len} words from {from} to {to}");
    }
}

#[test]
fn the_allocated_buffers_are_the_planned_ones() {
    let graph = unet3d(&UNet3d::default(), &Weights::Random { seed: 3 }).unwrap();
    let plan = |memory_budget_bytes| {
        let options = CompileOptions { threads: 1, memory_budget_bytes, ..CompileOptions::default() };
        crate::rolling::plan(Isa::detect(), &graph, &[1, 1, 40, 24, 16], &options).unwrap()
    };
    let budget_bytes = plan(None).memory_bytes() * 3 / 4;
    for budget_bytes in [None, Some(budget_bytes)] {
        let plan = plan(budget_bytes);
        let planned_bytes = plan.memory_bytes() - plan.program.weight_bytes;
        assert!(budget_bytes.is_none_or(|budget| plan.memory_bytes() <= budget));
        let mut session = CpuRollingSession::new(plan).unwrap();
        assert_eq!(size_of_val(session.arena.words()) as u64, planned_bytes);
        let buffers = session.program.buffers.iter().zip(&session.starts).zip(&session.storages);
        let ranges: Vec<(Range<usize>, (usize, usize))> = buffers
            .map(|((buffer, start), storage)| *start..start + buffer.words(storage.capacity))
            .zip(lifetimes(&session.program.flow))
            .collect();
        let words = session.arena.words().len();
        assert_eq!(ranges.iter().map(|(range, _)| range.end).max(), Some(words), "the last buffer ends the arena");
        let mut sharing = 0;
        for (index, (a, life)) in ranges.iter().enumerate() {
            for (b, other) in ranges.iter().skip(index + 1).filter(|(b, _)| a.start < b.end && b.start < a.end) {
                assert!(life.1 < other.0 || other.1 < life.0, "{a:?} and {b:?} are used at the same time");
                sharing += 1;
            }
        }
        assert!(sharing > 0, "buffers of which nothing is kept share memory");
    }
}

/// Returns reproducible values in -1..1.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    random_bytes(seed, count).into_iter().map(|b| f32::from(b) / 127.5 - 1.0).collect()
}

fn add(graph: &mut Graph, op: Op, inputs: &[Option<ValueId>]) -> ValueId {
    let name = format!("node.{}", graph.nodes.len());
    graph.push(name, op, inputs)
}

fn conv(graph: &mut Graph, x: ValueId, channels: [usize; 2], kernel: [usize; 3]) -> ValueId {
    let number = graph.nodes.len();
    let terms = channels[0] * kernel.iter().product::<usize>();
    let weights = noise(number as u64, channels[1] * terms).into_iter().map(|v| v / (terms as f32).sqrt());
    let shape = vec![channels[1], channels[0], kernel[0], kernel[1], kernel[2]];
    let weights = Tensor::new(shape, weights.collect::<Vec<f32>>()).unwrap();
    let weights = graph.add_initializer(format!("weights.{number}"), weights);
    let bias = graph.add_initializer(format!("bias.{number}"), Tensor::vector(noise(99, channels[1])));
    add(graph, Op::Conv(ConvAttrs::same(&kernel)), &[Some(x), Some(weights), Some(bias)])
}

/// A U-Net whose skip connection is a sum with the input of a convolution. The input of that convolution is read by its window
/// and plane by plane. The skip connection is pooled, read by another window, and waits for the planes of the coarser level.
fn residual_unet() -> Graph {
    let mut graph = Graph::new("residual");
    let free = ["z", "y", "x"].map(|axis| Dim::Free(axis.into()));
    let dims = [Dim::Fixed(1), Dim::Fixed(1)].into_iter().chain(free).collect();
    let x = graph.add_input("x", ElementType::F32, dims);
    let first = conv(&mut graph, x, [1, 16], [5, 3, 3]);
    let second = conv(&mut graph, first, [16, 16], [5, 3, 3]);
    let sum = add(&mut graph, Op::Binary(BinaryOp::Add), &[Some(second), Some(first)]);
    let skip = add(&mut graph, Op::Activation(Activation::Relu), &[Some(sum)]);
    let pool = PoolAttrs {
        kernel: vec![2; 3],
        strides: vec![2; 3],
        dilations: vec![1; 3],
        padding: Padding::Explicit { before: vec![0; 3], after: vec![0; 3] },
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    let mut deep = add(&mut graph, Op::MaxPool(pool), &[Some(skip)]);
    for _ in 0..2 {
        deep = conv(&mut graph, deep, [16, 16], [5, 3, 3]);
        deep = add(&mut graph, Op::Activation(Activation::Relu), &[Some(deep)]);
    }
    let scales = graph.add_initializer("scales", Tensor::vector(vec![1.0f32, 1.0, 2.0, 2.0, 2.0]));
    let up = add(&mut graph, Op::resize(ResizeAttrs::nearest()), &[Some(deep), None, Some(scales)]);
    let other = conv(&mut graph, skip, [16, 16], [5, 1, 1]);
    let joined = add(&mut graph, Op::concat(1), &[Some(up), Some(skip), Some(other)]);
    let output = conv(&mut graph, joined, [48, 1], [3, 3, 3]);
    graph.outputs.push(output);
    graph
}

/// Returns a plan with other slabs, whose planes all move to the start of their buffers in every slab, or lie in rings if they
/// are kept.
fn with_storages(mut plan: CpuRollingPlan, slab_planes: usize, in_rings: bool) -> CpuRollingPlan {
    let needs = pass_needs(&plan.program.flow, slab_planes).needs;
    let steps = plan.program.ring_steps();
    let kept: Vec<bool> = needs.iter().zip(&steps).filter(|(n, _)| n.is_kept).map(|(_, s)| s.is_some()).collect();
    assert!(kept.contains(&true) && kept.contains(&false), "rings with and without repeated planes: {kept:?}");
    let storages = needs.iter().zip(steps).map(|(need, step)| match step {
        _ if !(in_rings && need.is_kept) => PlaneStorage::moving(need.held),
        Some(step) => PlaneStorage::plain_ring(need, step),
        None => PlaneStorage::ring(need),
    });
    plan.storages = storages.collect();
    let (starts, words) = arena::place(&plan.program, &needs, &plan.storages);
    (plan.slab_planes, plan.starts, plan.arena_bytes) = (slab_planes, starts, arena_bytes(words));
    plan
}

/// Passes a stack of one channel through a network with one output of one channel.
fn pass(plan: CpuRollingPlan, x: &Tensor) -> Vec<f32> {
    let [_, _, depth, height, width] = x.shape()[..] else { return Vec::new() };
    let (slab, plane) = (plan.slab_planes, height * width);
    let mut session = CpuRollingSession::new(plan).unwrap();
    let mut made = Vec::new();
    for (at, planes) in x.as_f32().unwrap().chunks(slab * plane).enumerate() {
        let count = slab.min(depth - at * slab);
        made.extend(session.push(Tensor::new([1, 1, count, height, width], planes.to_vec()).unwrap()).unwrap());
    }
    while let Some(last) = session.finish().unwrap() {
        made.extend(last);
    }
    made.iter().flat_map(|output| output.planes.as_f32().unwrap().to_vec()).collect()
}

#[test]
fn the_result_does_not_depend_on_where_planes_lie() {
    for depth in [22, 24, 26] {
        let shape = [1, 1, depth, 6, 4];
        let x = Tensor::new(shape, noise(5, shape.iter().product())).unwrap();
        let network = RandomNetwork { graph: residual_unet(), input: x.clone() };
        let int8 = quantized(&network, false).unwrap().unwrap();
        for (graph, precision) in [(&network.graph, Precision::F32), (&int8, Precision::Int8)] {
            let options = CompileOptions { threads: 2, precision, ..CompileOptions::default() };
            let mut whole = CpuEngine::new().compile(graph, &[shape.to_vec()], &options).unwrap();
            let want = whole.run(std::slice::from_ref(&x)).unwrap();
            let want = want.first().and_then(Tensor::as_f32).unwrap();
            for (slab, in_rings) in (1..=6).flat_map(|slab| [(slab, false), (slab, true)]) {
                let plan = crate::rolling::plan(Isa::detect(), graph, &shape, &options).unwrap();
                let got = pass(with_storages(plan, slab, in_rings), &x);
                let differing = got.iter().zip(want).position(|(got, want)| got != want);
                let about = format!("{precision}: {depth} planes in slabs of {slab}, in rings: {in_rings}");
                assert_eq!((got.len(), differing), (want.len(), None), "{about}");
            }
        }
    }
}

/// Returns a network that applies an operator with one constant to its input.
fn network_of(op: Op, inputs: impl Fn(ValueId, ValueId) -> Vec<Option<ValueId>>, constant: Tensor) -> Graph {
    let mut graph = Graph::new("long");
    let free = ["z", "y", "x"].map(|axis| Dim::Free(axis.into()));
    let dims = [Dim::Fixed(1), Dim::Fixed(1)].into_iter().chain(free).collect();
    let x = graph.add_input("x", ElementType::F32, dims);
    let constant = graph.add_initializer("constant", constant);
    let long = add(&mut graph, op, &inputs(x, constant));
    let output = add(&mut graph, Op::Activation(Activation::Relu), &[Some(long)]);
    graph.outputs.push(output);
    graph
}

#[test]
fn networks_of_very_many_planes_are_refused_before_each_plane_takes_memory() {
    let refusal =
        |graph: &Graph| crate::rolling::plan(Isa::detect(), graph, &[1, 1, 5, 8, 8], &CompileOptions::default()).err();
    let padded = |mode: PadMode, after: i64| {
        let amounts = Tensor::vector(vec![0, 0, 0, 0, 0, 0, 0, after, 0, 0]);
        refusal(&network_of(Op::Pad { mode }, |x, amounts| vec![Some(x), Some(amounts)], amounts))
    };
    assert!(padded(PadMode::Constant, 3).is_none() && padded(PadMode::Edge, 3).is_none());
    let refused = padded(PadMode::Constant, 10_000_000_000);
    assert!(matches!(refused, Some(NotRolling::Interface { .. })), "{refused:?}");
    let refused = padded(PadMode::Edge, 10_000_000_000);
    assert!(matches!(refused, Some(NotRolling::Operator { .. })), "{refused:?}");
    let scales = Tensor::vector(vec![1.0f32, 1.0, 1e9, 1.0, 1.0]);
    let resize = Op::resize(ResizeAttrs::nearest());
    let refused = refusal(&network_of(resize, |x, scales| vec![Some(x), None, Some(scales)], scales));
    assert!(matches!(refused, Some(NotRolling::Operator { .. })), "{refused:?}");
}
