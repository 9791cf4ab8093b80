//! One pass over a stack is compared with a session for the whole stack.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "common/isas.rs"]
mod isas;

use cytoscope_builders::{
    DynUNet, RandomNetwork, UNet3d, Upsampling, Weights, describe, dynunet, quantized, random_bytes, random_network,
    unet3d,
};
use cytoscope_engine::{CompileOptions, Engine, EngineError, NotRolling, Precision, RollingPlan};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, CoordinateMode, Dim, ElementType, Graph, GraphLimits, Op,
    PadMode, Padding, PoolAttrs, ResizeAttrs, ResizeMode, Tensor, ValueId,
};
use cytoscope_kernels::Isa;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

/// Deterministic numbers (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        (u64::from_le_bytes(random_bytes(self.next(), 8).try_into().unwrap()) % n as u64) as usize
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        self.0
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn values(&mut self, n: usize, deviation: f32) -> Vec<f32> {
        let bytes = random_bytes(self.next(), n);
        bytes.into_iter().map(|b| (f32::from(b) / 127.5 - 1.0) * deviation).collect()
    }
}

/// Returns pooling windows with padding before the first voxel.
fn pool(kernel: &[usize], strides: &[usize], before: [usize; 3]) -> PoolAttrs {
    PoolAttrs {
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: vec![1; 3],
        padding: Padding::Explicit { before: before.to_vec(), after: vec![0; 3] },
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    }
}

/// A U-Net with random geometry.
struct Builder {
    numbers: Numbers,
    graph: Graph,
}

impl Builder {
    fn constant(&mut self, shape: &[usize], deviation: f32) -> ValueId {
        let values = self.numbers.values(shape.iter().product(), deviation);
        let name = format!("constant.{}", self.numbers.next());
        self.graph.add_initializer(name, Tensor::new(shape, values).unwrap())
    }

    fn push(&mut self, op: Op, inputs: &[Option<ValueId>]) -> ValueId {
        let name = format!("value.{}", self.numbers.next());
        self.graph.push(name, op, inputs)
    }

    fn conv(&mut self, x: ValueId, channels: [usize; 2], attrs: ConvAttrs) -> ValueId {
        let mut shape = vec![channels[1], channels[0]];
        shape.extend(&attrs.kernel);
        let fan_in: usize = shape[1..].iter().product();
        let (w, b) = (self.constant(&shape, 1.7 / (fan_in as f32).sqrt()), self.constant(&[channels[1]], 0.1));
        self.push(Op::Conv(attrs), &[Some(x), Some(w), Some(b)])
    }

    /// A convolution that keeps the size, mostly with an activation, sometimes with a residual.
    fn same(&mut self, x: ValueId, channels: [usize; 2]) -> ValueId {
        let kernel: Vec<usize> = (0..3).map(|_| [1, 3, 3, 5][self.numbers.below(4)]).collect();
        let dilation: Vec<usize> = (0..3).map(|_| 1 + usize::from(self.numbers.one_in(4))).collect();
        let reach: Vec<usize> = (0..3).map(|a| (kernel[a] - 1) * dilation[a]).collect();
        // Sometimes more padding on one side than on the other.
        let before: Vec<usize> = (0..3)
            .map(|a| if self.numbers.one_in(3) { self.numbers.below(reach[a] + 1) } else { reach[a] / 2 })
            .collect();
        let after = (0..3).map(|a| reach[a] - before[a]).collect();
        let attrs = ConvAttrs {
            kernel,
            strides: vec![1; 3],
            dilations: dilation,
            padding: Padding::Explicit { before, after },
            group: 1,
        };
        let mut y = self.conv(x, channels, attrs);
        if channels[0] == channels[1] && self.numbers.one_in(2) {
            y = self.push(Op::Binary(BinaryOp::Add), &[Some(y), Some(x)]);
        }
        let act = [Activation::Relu, Activation::LeakyRelu { alpha: 0.1 }, Activation::Sigmoid][self.numbers.below(3)];
        if self.numbers.one_in(5) { y } else { self.push(Op::Activation(act), &[Some(y)]) }
    }

    /// Halves the axes whose stride is 2.
    fn down(&mut self, x: ValueId, channels: [usize; 2], stride: [usize; 3]) -> ValueId {
        match self.numbers.below(4) {
            0 => {
                let attrs = pool(&stride, &stride, [0; 3]);
                let op = if self.numbers.one_in(3) { Op::AveragePool(attrs) } else { Op::MaxPool(attrs) };
                let y = self.push(op, &[Some(x)]);
                self.conv(y, channels, ConvAttrs::same(&[1; 3]))
            }
            1 => {
                let kernel: Vec<usize> = stride.iter().map(|s| if *s == 2 { 3 } else { 1 }).collect();
                let pad = stride.map(|s| s - 1);
                let y = self.push(Op::MaxPool(pool(&kernel, &stride, pad)), &[Some(x)]);
                self.conv(y, channels, ConvAttrs::same(&[1; 3]))
            }
            _ => self.conv(x, channels, ConvAttrs::same(&[3; 3]).with_strides(&stride)),
        }
    }

    /// Doubles the axes whose stride is 2.
    fn up(&mut self, x: ValueId, channels: [usize; 2], stride: [usize; 3]) -> ValueId {
        let mode = self.numbers.below(4);
        if mode == 0 || mode == 3 {
            let mut attrs = ConvTransposeAttrs::upsample(&stride);
            if mode == 3 {
                // Kernels that overlap: one or two taps longer than the stride, cropped to the same length.
                let more: Vec<usize> = (0..3).map(|_| 1 + self.numbers.below(2)).collect();
                attrs.kernel.iter_mut().zip(&more).for_each(|(kernel, more)| *kernel += more);
                let before: Vec<usize> = more.iter().map(|more| self.numbers.below(more + 1)).collect();
                let after = more.iter().zip(&before).map(|(more, before)| more - before).collect();
                attrs.padding = Padding::Explicit { before, after };
            }
            let shape = [&channels[..], &attrs.kernel].concat();
            let w = self.constant(&shape, 1.0 / (channels[0] as f32).sqrt());
            return self.push(Op::ConvTranspose(attrs), &[Some(x), Some(w)]);
        }
        let first = self.numbers.one_in(2);
        let y = if first { self.conv(x, channels, ConvAttrs::same(&[1; 3])) } else { x };
        let scales = [1, 1].into_iter().chain(stride).map(|s| s as f32).collect::<Vec<f32>>();
        let name = format!("scales.{}", self.numbers.next());
        let scales = self.graph.add_initializer(name, Tensor::vector(scales));
        let attrs = if mode == 1 {
            ResizeAttrs::nearest()
        } else {
            ResizeAttrs { mode: ResizeMode::Linear, coordinates: CoordinateMode::HalfPixel, ..ResizeAttrs::nearest() }
        };
        let y = self.push(Op::resize(attrs), &[Some(y), None, Some(scales)]);
        if first { y } else { self.conv(y, channels, ConvAttrs::same(&[1; 3])) }
    }
}

/// Channels of the levels of a random U-Net, mostly whole blocks.
const FILTERS: [usize; 6] = [2, 16, 16, 16, 32, 32];
/// Channels that are not whole blocks, so that no part of a concatenation but the first starts at a block boundary.
const UNALIGNED: [usize; 6] = [1, 3, 6, 12, 18, 40];

/// Returns a random U-Net with levels of these numbers of channels, and a stack for it.
fn random_unet(seed: u64, filters: &[usize; 6]) -> RandomNetwork {
    let mut b = Builder { numbers: Numbers(seed << 32), graph: Graph::new("unet") };
    let levels = b.numbers.below(4);
    let strides: Vec<[usize; 3]> =
        (0..levels).map(|_| std::array::from_fn(|_| 1 + usize::from(!b.numbers.one_in(3)))).collect();
    let total: [usize; 3] = std::array::from_fn(|a| strides.iter().map(|s| s[a]).product());
    let mut shape = vec![1 + usize::from(b.numbers.one_in(6)), [1, 1, 2, 5, 16][b.numbers.below(5)]];
    shape.extend((0..3).map(|a| total[a] * (1 + b.numbers.below([32, 24, 8][a] / total[a].min(4)))));
    let free = ["z", "y", "x"].map(|axis| Dim::Free(axis.into()));
    let dims = [Dim::Fixed(shape[0]), Dim::Fixed(shape[1])].into_iter().chain(free).collect();
    let x = b.graph.add_input("x", ElementType::F32, dims);
    let filters: Vec<usize> = (0..=levels).map(|_| filters[b.numbers.below(6)]).collect();
    let (mut now, mut channels) = (x, shape[1]);
    let mut skips = Vec::new();
    for level in 0..=levels {
        if level > 0 {
            skips.push((now, channels));
            now = b.down(now, [channels, filters[level]], strides[level - 1]);
            channels = filters[level];
        }
        for _ in 0..1 + b.numbers.below(2) {
            now = b.same(now, [channels, filters[level]]);
            channels = filters[level];
        }
    }
    for (level, (skip, width)) in skips.into_iter().enumerate().rev() {
        if b.numbers.one_in(3) {
            // An output of a coarser level.
            let output = b.conv(now, [channels, 2], ConvAttrs::same(&[1; 3]));
            b.graph.outputs.push(output);
        }
        let up = b.up(now, [channels, filters[level]], strides[level]);
        let both = if b.numbers.one_in(2) { [up, skip] } else { [skip, up] };
        now = b.push(Op::concat(1), &both.map(Some));
        channels = width + filters[level];
        for _ in 0..1 + b.numbers.below(2) {
            now = b.same(now, [channels, filters[level]]);
            channels = filters[level];
        }
    }
    let classes = 1 + b.numbers.below(3);
    let y = b.conv(now, [channels, classes], ConvAttrs::same(&[1; 3]));
    let y = b.push(Op::Activation(Activation::Sigmoid), &[Some(y)]);
    b.graph.outputs.insert(0, y);
    let values = b.numbers.values(shape.iter().product(), 1.0);
    RandomNetwork { graph: b.graph, input: Tensor::new(shape, values).unwrap() }
}

/// Returns a box of a tensor N, C, Z, Y, X.
fn part(x: &Tensor, z: std::ops::Range<usize>, y: std::ops::Range<usize>) -> Tensor {
    let [n, c, depth, height, width] = x.shape()[..] else { panic!("{:?}", x.shape()) };
    let values = x.as_f32().unwrap();
    let mut all = Vec::new();
    for image in 0..n * c {
        for z in z.clone() {
            let at = (image * depth + z) * height;
            all.extend_from_slice(&values[(at + y.start) * width..(at + y.end) * width]);
        }
    }
    Tensor::new([n, c, z.len(), y.len(), width], all).unwrap()
}

/// Passes a stack through a network and joins the outputs; `like` has their shapes.
fn roll(plan: Box<dyn RollingPlan>, x: &Tensor, like: &[Tensor]) -> Vec<Tensor> {
    let (slab, bands, depth) = (plan.slab_planes(), plan.bands().to_vec(), x.shape()[2]);
    let mut session = plan.start().unwrap();
    let mut joined: Vec<Vec<f32>> = like.iter().map(|t| vec![f32::NAN; t.len()]).collect();
    for (index, band) in bands.iter().enumerate() {
        session.begin(index).unwrap();
        let mut made = Vec::new();
        for z in (0..depth).step_by(slab) {
            made.extend(session.push(part(x, z..(z + slab).min(depth), band.fed.clone())).unwrap());
        }
        while let Some(last) = session.finish().unwrap() {
            made.extend(last);
        }
        for planes in made {
            let [_, _, depth, height, width] = like[planes.output].shape()[..] else { panic!() };
            let [n, c, d, h, w] = planes.planes.shape()[..] else { panic!() };
            assert_eq!(w, width);
            let values = planes.planes.as_f32().unwrap();
            for image in 0..n * c {
                for z in 0..d {
                    let to = ((image * depth + planes.first_z + z) * height + planes.first_y) * width;
                    let from = (image * d + z) * h * w;
                    let target = &mut joined[planes.output][to..to + h * w];
                    assert!(target.iter().all(|v| v.is_nan()), "a plane was returned twice");
                    target.copy_from_slice(&values[from..from + h * w]);
                }
            }
        }
    }
    joined.into_iter().zip(like).map(|(v, t)| Tensor::new(t.shape(), v).unwrap()).collect()
}

fn options(precision: Precision, memory_budget_bytes: Option<u64>) -> CompileOptions {
    CompileOptions { precision, threads: 2, memory_budget_bytes, ..CompileOptions::default() }
}

/// Returns the engine for a seed: the instruction sets alternate.
fn engine(seed: u64) -> CpuEngine {
    static ALL: LazyLock<Vec<Isa>> = LazyLock::new(isas::isas);
    CpuEngine::with_isa(ALL[usize::try_from(seed).unwrap() % ALL.len()])
}

fn untiled(engine: &CpuEngine, graph: &Graph, x: &Tensor, precision: Precision) -> Result<Vec<Tensor>, EngineError> {
    engine.compile(graph, &[x.shape().to_vec()], &options(precision, None))?.run(std::slice::from_ref(x))
}

/// Returns what a session for the whole stack computes; `None` if the network has no convolution in int8.
fn whole(engine: &CpuEngine, graph: &Graph, x: &Tensor, precision: Precision) -> Option<Vec<Tensor>> {
    match untiled(engine, graph, x, precision) {
        Ok(want) => Some(want),
        Err(EngineError::NotQuantized { .. }) => None,
        Err(e) => panic!("{e}\n{}", describe(graph)),
    }
}

/// Like [`compare_with`] what a session for the whole stack computes.
fn compare(
    engine: &CpuEngine,
    graph: &Graph,
    x: &Tensor,
    precision: Precision,
    budget: Option<u64>,
) -> Option<(usize, u64)> {
    compare_with(&whole(engine, graph, x, precision)?, engine, graph, x, precision, budget)
}

/// Whether a pass gives the values `want`, and how the pass was planned. `None` if the network cannot be run in one pass.
fn compare_with(
    want: &[Tensor],
    engine: &CpuEngine,
    graph: &Graph,
    x: &Tensor,
    precision: Precision,
    budget: Option<u64>,
) -> Option<(usize, u64)> {
    let plan = match engine.plan_rolling(graph, x.shape(), &options(precision, budget)) {
        Ok(plan) => plan,
        Err(NotRolling::Engine(e)) => panic!("{e}\n{}", describe(graph)),
        Err(_) => return None,
    };
    let facts = (plan.bands().len(), plan.memory_bytes());
    let about = format!("{precision}, {} bands of {} planes, budget {budget:?}", facts.0, plan.slab_planes());
    let got = roll(plan, x, want);
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let same = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan());
        let pairs = got.as_f32().unwrap().iter().zip(want.as_f32().unwrap());
        let differing = pairs.enumerate().find(|(_, (a, b))| !same(**a, **b));
        assert!(differing.is_none(), "{about}: output {index} {:?}: {differing:?}\n{}", want.shape(), describe(graph));
    }
    Some(facts)
}

#[test]
fn a_pass_over_a_random_unet_equals_the_untiled_network_bit_by_bit() {
    compare_random_unets(0..30);
}

#[test]
fn a_pass_over_another_random_unet_equals_the_untiled_network_bit_by_bit() {
    compare_random_unets(30..60);
}

/// Compares 30 networks in every precision.
fn compare_random_unets(seeds: Range<u64>) {
    let (mut floats, mut halves, mut integers) = (0, 0, 0);
    let has_bf16 = CpuEngine::new().device().precisions.contains(&Precision::Bf16);
    for seed in seeds {
        let (network, engine) = (random_unet(seed, &FILTERS), CpuEngine::new());
        let quantized = quantized(&network, false).unwrap();
        let float = Some(&network.graph);
        for (graph, precision) in [
            (float, Precision::F32),
            (float.filter(|_| has_bf16), Precision::Bf16),
            (quantized.as_ref(), Precision::Int8),
        ] {
            let Some(graph) = graph else { continue };
            let x = &network.input;
            let Some(want) = whole(&engine, graph, x, precision) else { continue };
            let Some((_, bytes)) = compare_with(&want, &engine, graph, x, precision, None) else { continue };
            *match precision {
                Precision::Int8 => &mut integers,
                Precision::Bf16 => &mut halves,
                _ => &mut floats,
            } += 1;
            // A smaller budget leads to other slabs, and finally to bands.
            compare_with(&want, &engine, graph, x, precision, Some(bytes * 60 / 100));
        }
    }
    assert!(floats >= 27 && integers >= 27, "{floats} float and {integers} int8 networks");
    assert_eq!(halves, if has_bf16 { floats } else { 0 }, "networks in bf16");
}

#[test]
fn a_pass_runs_concatenations_of_any_numbers_of_channels() {
    let (mut floats, mut integers, mut concatenations) = (0, 0, 0);
    for seed in 100..130 {
        let (network, engine) = (random_unet(seed, &UNALIGNED), engine(seed));
        concatenations += network.graph.nodes.iter().filter(|n| n.op.joined_axis().is_some()).count();
        let x = &network.input;
        let want = cytoscope_reference::run(&network.graph, &[("x".to_owned(), x.clone())]).unwrap();
        let whole = untiled(&engine, &network.graph, x, Precision::F32).unwrap();
        assert_eq!(whole.len(), want.len(), "seed {seed}");
        for (got, want) in whole.iter().zip(&want) {
            let largest = want.as_f32().unwrap().iter().fold(1.0f32, |m, v| m.max(v.abs()));
            let error = cytoscope_testkit::largest_difference(got.as_f32().unwrap(), want.as_f32().unwrap());
            assert!(error <= 1e-5 * f64::from(largest), "seed {seed}: {error}\n{}", describe(&network.graph));
        }
        let quantized = quantized(&network, false).unwrap();
        floats += usize::from(compare_with(&whole, &engine, &network.graph, x, Precision::F32, None).is_some());
        integers += usize::from(quantized.is_some_and(|g| compare(&engine, &g, x, Precision::Int8, None).is_some()));
    }
    assert!(concatenations >= 20, "{concatenations} concatenations");
    assert!(floats >= 28 && integers >= 20, "{floats} float and {integers} int8 networks");
}

#[test]
fn bands_give_the_same_result_as_whole_planes() {
    let mut counts = Vec::new();
    for (seed, strides) in [vec![], vec![[1, 2, 2]], vec![[2, 2, 1], [2, 2, 2]]].into_iter().enumerate() {
        let (filters, rows) = (vec![16; strides.len() + 1], 48 + 12 * seed);
        let config = UNet3d { filters, strides, convs_per_block: 1, deep_heads: seed / 2, ..UNet3d::default() };
        let graph = unet3d(&config, &Weights::Random { seed: seed as u64 }).unwrap();
        let x = Tensor::new([1, 1, 16, rows, 8], Numbers(9).values(16 * rows * 8, 1.0)).unwrap();
        let network = RandomNetwork { graph, input: x };
        let quantized = quantized(&network, false).unwrap().unwrap();
        for (graph, precision) in [(&network.graph, Precision::F32), (&quantized, Precision::Int8)] {
            let bytes = |budget| compare(&CpuEngine::new(), graph, &network.input, precision, budget).unwrap_or((0, 0));
            let (bands, least) = smallest(graph, network.input.shape(), precision, bytes(None).1);
            counts.push(bands);
            assert_eq!(bytes(Some(least)).0, bands);
        }
    }
    assert!(counts.iter().all(|n| *n > 1), "{counts:?}");
}

/// Returns bands and bytes of a plan that needs little memory.
fn smallest(graph: &Graph, shape: &[usize], precision: Precision, bytes: u64) -> (usize, u64) {
    let plan = |budget| CpuEngine::new().plan_rolling(graph, shape, &options(precision, Some(budget)));
    let budgets = (1..20).map(|n| bytes * n / 20);
    budgets.filter_map(|b| plan(b).ok()).map(|p| (p.bands().len(), p.memory_bytes())).next().unwrap_or((1, bytes))
}

#[test]
fn a_pass_over_any_network_equals_the_untiled_one() {
    let (mut floats, mut integers) = (0, 0);
    for seed in 0..2000 {
        let network = random_network(&random_bytes(seed, 512)).unwrap();
        if network.input.shape().len() != 5 {
            continue;
        }
        let quantized = quantized(&network, false).unwrap();
        let engine = engine(seed / 3);
        floats += usize::from(compare_any(&engine, &network.graph, &network.input, Precision::F32));
        integers += usize::from(quantized.is_some_and(|g| compare_any(&engine, &g, &network.input, Precision::Int8)));
    }
    assert!(floats >= 50 && integers >= 40, "{floats} float and {integers} int8 networks");
}

/// Like [`compare`], for networks whose outputs are floats.
fn compare_any(engine: &CpuEngine, graph: &Graph, x: &Tensor, precision: Precision) -> bool {
    let floats = graph.outputs.iter().all(|o| graph.value(*o).dtype == Some(ElementType::F32));
    floats && compare(engine, graph, x, precision, None).is_some()
}

#[test]
fn the_builders_unet_runs_in_one_pass_with_the_work_of_the_untiled_one() {
    for upsampling in [Upsampling::Transposed, Upsampling::Nearest] {
        let config = UNet3d { upsampling, out_channels: 2, head: Some(Activation::Sigmoid), ..UNet3d::default() };
        let graph = unet3d(&config, &Weights::Random { seed: 5 }).unwrap();
        let x = Tensor::new([1, 1, 40, 24, 20], Numbers(1).values(40 * 24 * 20, 1.0)).unwrap();
        assert!(compare(&CpuEngine::new(), &graph, &x, Precision::F32, None).is_some());
        let shape = [1, 1, 64, 512, 512];
        let plan = CpuEngine::new().plan_rolling(&graph, &shape, &options(Precision::F32, None)).unwrap();
        assert_eq!((plan.bands().len(), plan.macs()), (1, plan.untiled_macs()));
        assert_eq!(plan.slab_planes() % 4, 0, "whole slabs at every level");
        // The first tensor of the network would have 16 · 2^30 elements.
        let long =
            CpuEngine::new().plan_rolling(&graph, &[1, 1, 4096, 512, 512], &options(Precision::F32, None)).unwrap();
        assert_eq!((long.bands().len(), long.macs()), (1, long.untiled_macs()));
        let [short_bytes, long_bytes] = [plan.memory_bytes(), long.memory_bytes()];
        assert!(long_bytes <= short_bytes * 11 / 10, "{long_bytes} bytes for 4096 planes, {short_bytes} for 64");
    }
}

#[test]
fn the_bundled_networks_run_in_one_pass() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    for name in ["nuclei", "cells", "labelfree-nuclei"] {
        for (file, precision) in [("model.onnx", Precision::F32), ("model_int8.onnx", Precision::Int8)] {
            let graph = cytoscope_onnx::load(&models.join(name).join(file), &GraphLimits::default()).unwrap();
            let plan = CpuEngine::new().plan_rolling(&graph, &[1, 1, 64, 512, 512], &options(precision, Some(1 << 30)));
            let plan = plan.unwrap_or_else(|e| panic!("{name} in {precision}: {e}"));
            assert_eq!((plan.bands().len(), plan.macs()), (1, plan.untiled_macs()), "{name} in {precision}");
            let x = Tensor::new([1, 1, 24, 16, 24], Numbers(3).values(24 * 16 * 24, 1.0)).unwrap();
            let (_, bytes) = compare(&CpuEngine::new(), &graph, &x, precision, None).unwrap();
            compare(&CpuEngine::new(), &graph, &x, precision, Some(bytes * 3 / 4));
        }
    }
}

/// Returns a U-Net as others write it: levels are halved by pooling, enlarged by nearest-neighbor resizing, and padded
/// or, with `ceil_mode`, cropped to the size of the skip connection before they are joined.
fn padded_unet(ceil_mode: bool) -> RandomNetwork {
    let mut b = Builder { numbers: Numbers(91), graph: Graph::new("foreign") };
    // The amounts of padding are constants for this size.
    let dims = [1, 1, 21, 18, 13].map(Dim::Fixed).to_vec();
    let x = b.graph.add_input("x", ElementType::F32, dims);
    let (mut now, mut channels, mut size) = (x, 1, [21usize, 18, 13]);
    let input = Tensor::new([1, 1, 21, 18, 13], b.numbers.values(21 * 18 * 13, 1.0)).unwrap();
    let mut skips = Vec::new();
    for (level, filters) in [10usize, 24, 40].into_iter().enumerate() {
        if level > 0 {
            skips.push((now, channels, size));
            let attrs = PoolAttrs { ceil_mode, ..pool(&[2; 3], &[2; 3], [0; 3]) };
            now = b.push(Op::MaxPool(attrs), &[Some(now)]);
            size = size.map(|n| if ceil_mode { n.div_ceil(2) } else { n / 2 });
        }
        now = b.conv(now, [channels, filters], ConvAttrs::same(&[3; 3]));
        now = b.push(Op::Activation(Activation::Relu), &[Some(now)]);
        channels = filters;
    }
    for (skip, width, wanted) in skips.into_iter().rev() {
        let name = format!("scales.{}", b.numbers.next());
        let scales = b.graph.add_initializer(name, Tensor::vector(vec![1.0f32, 1.0, 2.0, 2.0, 2.0]));
        now = b.push(Op::resize(ResizeAttrs::nearest()), &[Some(now), None, Some(scales)]);
        let after = [0, 1, 2].map(|a| wanted[a] as i64 - 2 * size[a] as i64);
        let pads = [&[0i64; 7][..], &after].concat();
        let name = format!("pads.{}", b.numbers.next());
        let pads = b.graph.add_initializer(name, Tensor::vector(pads));
        now = b.push(Op::Pad { mode: PadMode::Constant }, &[Some(now), Some(pads)]);
        now = b.push(Op::concat(1), &[Some(skip), Some(now)]);
        now = b.conv(now, [channels + width, width], ConvAttrs::same(&[3; 3]));
        now = b.push(Op::Activation(Activation::Relu), &[Some(now)]);
        (channels, size) = (width, wanted);
    }
    let y = b.conv(now, [channels, 2], ConvAttrs::same(&[1; 3]));
    b.graph.outputs.push(y);
    RandomNetwork { graph: b.graph, input }
}

#[test]
fn levels_that_are_resized_padded_and_joined_run_on_kernels_and_in_one_pass() {
    for ceil_mode in [false, true] {
        let network = padded_unet(ceil_mode);
        let (graph, x) = (&network.graph, &network.input);
        let session = CpuEngine::new().compile(graph, &[x.shape().to_vec()], &options(Precision::F32, None)).unwrap();
        assert!(session.report().fallbacks.is_empty(), "ceil {ceil_mode}: {:?}", session.report().fallbacks);
        assert!(compare(&CpuEngine::new(), graph, x, Precision::F32, None).is_some(), "ceil {ceil_mode}");
        let want = cytoscope_reference::run(graph, &[("x".to_owned(), x.clone())]).unwrap();
        let got = untiled(&CpuEngine::new(), graph, x, Precision::F32).unwrap();
        let error = cytoscope_testkit::largest_difference(got[0].as_f32().unwrap(), want[0].as_f32().unwrap());
        assert!(error < 1e-4, "ceil {ceil_mode}: {error}");
        let quantized = quantized(&network, false).unwrap().unwrap();
        compare(&CpuEngine::new(), &quantized, x, Precision::Int8, None);
    }
}

#[test]
fn networks_that_need_the_whole_stack_are_refused_with_the_reason() {
    let graph = dynunet(&DynUNet::default(), &Weights::Random { seed: 1 }).unwrap();
    let refused = CpuEngine::new().plan_rolling(&graph, &[1, 1, 32, 32, 32], &options(Precision::F32, None)).err();
    let Some(NotRolling::Operator { op, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(op, "InstanceNormalization");
    let graph = unet3d(&UNet3d::default(), &Weights::Random { seed: 1 }).unwrap();
    let refused =
        CpuEngine::new().plan_rolling(&graph, &[1, 1, 32, 64, 64], &options(Precision::F32, Some(1 << 10))).err();
    let Some(NotRolling::Budget { needed_bytes, budget_bytes }) = refused else { panic!("{refused:?}") };
    assert!(needed_bytes > budget_bytes);
}

#[test]
fn wrong_planes_are_refused_and_the_pass_continues() {
    let graph = unet3d(&UNet3d::default(), &Weights::Random { seed: 1 }).unwrap();
    let plan =
        |budget| CpuEngine::new().plan_rolling(&graph, &[1, 1, 40, 8, 8], &options(Precision::F32, budget)).unwrap();
    let plan = plan(Some(plan(None).memory_bytes() * 3 / 4));
    let slab = plan.slab_planes();
    assert!(slab < 40 && plan.bands().len() == 1);
    let mut session = plan.start().unwrap();
    let planes = |n: usize, width: usize| Tensor::new([1, 1, n, 8, width], vec![0.5f32; n * 8 * width]).unwrap();
    assert!(session.push(planes(slab + 1, 8)).is_err());
    assert!(session.push(planes(slab, 7)).is_err());
    assert!(session.finish().is_err(), "planes are missing");
    let mut made = 0;
    for z in (0..40).step_by(slab) {
        made += session.push(planes(slab.min(40 - z), 8)).unwrap().iter().map(|o| o.planes.shape()[2]).sum::<usize>();
    }
    assert!(session.push(planes(1, 8)).is_err(), "the stack is complete");
    while let Some(last) = session.finish().unwrap() {
        let planes = last.iter().map(|o| o.planes.shape()[2]).sum::<usize>();
        assert!(planes <= slab, "the last planes come in slabs, too");
        made += planes;
    }
    assert_eq!(made, 40);
}

#[test]
fn cropped_and_zero_padded_planes_flow_through_a_pass() {
    for (amounts, value) in [
        ([-1, 0, -2, -1, -3, 0], 0.0f32),
        ([2, 1, 0, 1, 0, 2], 0.0),
        ([-2, 1, 1, 3, -1, 0], 0.0),
        ([0, 1, 0, 0, 0, 1], 0.5),
    ] {
        let mut b = Builder { numbers: Numbers(77), graph: Graph::new("pad") };
        let free = ["z", "y", "x"].map(|axis| Dim::Free(axis.into()));
        let dims = [Dim::Fixed(1), Dim::Fixed(2)].into_iter().chain(free).collect();
        let x = b.graph.add_input("x", ElementType::F32, dims);
        let y = b.conv(x, [2, 16], ConvAttrs::same(&[3; 3]));
        let [z0, y0, x0, z1, y1, x1] = amounts;
        let pads = b.graph.add_initializer("pads", Tensor::vector(vec![0i64, 0, z0, y0, x0, 0, 0, z1, y1, x1]));
        let value = b.graph.add_initializer("value", Tensor::scalar(value));
        let y = b.push(Op::Pad { mode: PadMode::Constant }, &[Some(y), Some(pads), Some(value)]);
        let y = b.conv(y, [16, 3], ConvAttrs::same(&[3; 3]));
        b.graph.outputs.push(y);
        let input = Tensor::new([1, 2, 21, 9, 10], Numbers(5).values(2 * 21 * 90, 1.0)).unwrap();
        let passed = compare(&CpuEngine::new(), &b.graph, &input, Precision::F32, None);
        assert!(passed.is_some(), "{amounts:?}: not run in one pass");
    }
}
