//! Quantized graphs on integers: every instruction set of this machine is compared with the reference executor, which
//! computes the same graph in floats.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "common/isas.rs"]
mod isas;

use cytoscope_engine::{CompileOptions, Engine, EngineError, Precision};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, Dim, ElementType, Graph, Op, Padding, PoolAttrs, ResizeAttrs,
    Tensor, ValueId,
};
use cytoscope_kernels::Isa;
use cytoscope_profile::{OperatorPrecision, Recorder, Stage};
use cytoscope_testkit::{noise, skip};
use isas::isas;

/// Builds quantized graphs.
struct GraphBuilder {
    graph: Graph,
    seed: u64,
}

impl GraphBuilder {
    fn new(channels: usize, axes: usize) -> (Self, ValueId) {
        let mut graph = Graph::new("quantized");
        let free = ["d", "h", "w"][3 - axes..].iter().map(|n| Dim::Free((*n).to_owned()));
        let shape = [Dim::Free("n".into()), Dim::Fixed(channels)].into_iter().chain(free).collect();
        let x = graph.add_input("x", ElementType::F32, shape);
        (Self { graph, seed: 1 }, x)
    }

    fn scalar(&mut self, name: &str, value: f32) -> Option<ValueId> {
        Some(self.graph.add_initializer(name, Tensor::new(Vec::<usize>::new(), vec![value]).unwrap()))
    }

    /// Adds a quantize and a dequantize node, to unsigned or signed bytes.
    fn grid(&mut self, x: ValueId, scale: f32, zero: i16, to: ElementType) -> ValueId {
        let s = self.scalar("s", scale);
        let zero = Tensor::new(Vec::<usize>::new(), vec![zero]).unwrap().cast(to);
        let z = Some(self.graph.add_initializer("z", zero));
        let q = self.graph.push("q", Op::QuantizeLinear { axis: 1, block_size: 0, to }, &[Some(x), s, z]);
        self.graph.push("dq", Op::DequantizeLinear { axis: 1, block_size: 0 }, &[Some(q), s, z])
    }

    fn u8(&mut self, x: ValueId, scale: f32, zero: i16) -> ValueId {
        self.grid(x, scale, zero, ElementType::U8)
    }

    /// Adds a weight of signed bytes with one scale per output channel along `axis`.
    fn weight(&mut self, shape: &[usize], axis: usize) -> ValueId {
        self.seed += 1;
        let values: Vec<i8> = noise(self.seed, shape.iter().product()).iter().map(|v| (v * 120.0) as i8).collect();
        let scales: Vec<f32> = noise(self.seed + 100, shape[axis]).iter().map(|v| 0.002 + 0.001 * v.abs()).collect();
        let w = Some(self.graph.add_initializer("w", Tensor::new(shape, values).unwrap()));
        let s = Some(self.graph.add_initializer("ws", Tensor::vector(scales)));
        self.graph.push("wd", Op::DequantizeLinear { axis: axis as i64, block_size: 0 }, &[w, s])
    }

    fn conv(&mut self, x: ValueId, ci: usize, co: usize, attrs: ConvAttrs) -> ValueId {
        let shape: Vec<usize> = [co, ci / attrs.group].into_iter().chain(attrs.kernel.iter().copied()).collect();
        let w = self.weight(&shape, 0);
        let bias = noise(self.seed + 200, co);
        let b = self.graph.add_initializer("b", Tensor::vector(bias));
        self.graph.push("conv", Op::Conv(attrs), &[Some(x), Some(w), Some(b)])
    }

    fn up(&mut self, x: ValueId, ci: usize, co: usize, kernel: &[usize]) -> ValueId {
        let shape: Vec<usize> = [ci, co].into_iter().chain(kernel.iter().copied()).collect();
        let w = self.weight(&shape, 1);
        let attrs = ConvTransposeAttrs {
            kernel: kernel.to_vec(),
            strides: kernel.to_vec(),
            dilations: vec![1; kernel.len()],
            padding: Padding::none(kernel.len()),
            output_padding: vec![0; kernel.len()],
            output_shape: None,
            group: 1,
        };
        self.graph.push("up", Op::ConvTranspose(attrs), &[Some(x), Some(w)])
    }

    fn norm(&mut self, x: ValueId, channels: usize) -> ValueId {
        self.seed += 1;
        let gamma: Vec<f32> = noise(self.seed, channels).iter().map(|v| 1.0 + 0.3 * v).collect();
        let g = self.graph.add_initializer("gamma", Tensor::vector(gamma));
        let b = self.graph.add_initializer("beta", Tensor::vector(noise(self.seed + 7, channels)));
        self.graph.push("norm", Op::InstanceNormalization { epsilon: 1e-5 }, &[Some(x), Some(g), Some(b)])
    }

    fn leaky(&mut self, x: ValueId) -> ValueId {
        self.graph.push("act", Op::Activation(Activation::LeakyRelu { alpha: 0.01 }), &[Some(x)])
    }

    fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.graph.push("add", Op::Binary(BinaryOp::Add), &[Some(a), Some(b)])
    }

    fn finish(mut self, y: ValueId) -> Graph {
        self.graph.outputs.push(y);
        self.graph.validate().unwrap();
        self.graph
    }
}

fn input(shape: &[usize]) -> Tensor {
    Tensor::new(shape, noise(77, shape.iter().product())).unwrap()
}

/// Returns the relative L2 distance between the first outputs of engine and reference executor.
fn distance(graph: &Graph, x: &Tensor, isa: Isa, precision: Precision) -> f64 {
    let want = cytoscope_reference::run(graph, &[("x".to_owned(), x.clone())]).unwrap();
    let options = CompileOptions { precision, threads: 2, ..CompileOptions::default() };
    let mut session = CpuEngine::with_isa(isa).compile(graph, &[x.shape().to_vec()], &options).unwrap();
    assert!(session.report().fallbacks.is_empty(), "{isa}: {:?}", session.report().fallbacks);
    let mut worst = 0.0f64;
    // Twice: the second run must not depend on what the first one left in memory.
    for _ in 0..2 {
        let got = session.run(std::slice::from_ref(x)).unwrap();
        assert_eq!(got[0].shape(), want[0].shape());
        assert_eq!(got[0].dtype(), want[0].dtype());
        let (g, w) = (got[0].to_f64_vec(), want[0].to_f64_vec());
        let square = |v: &mut dyn Iterator<Item = f64>| v.map(|d| d * d).sum::<f64>().sqrt();
        let far = square(&mut g.iter().zip(&w).map(|(a, b)| a - b));
        worst = worst.max(far / square(&mut w.iter().copied()).max(1e-9));
    }
    worst
}

/// Checks that the relative distance is at most `tolerance`, in int8 and in f32, on every instruction set.
fn check(name: &str, graph: &Graph, shape: &[usize], tolerance: f64) {
    let x = input(shape);
    for isa in isas() {
        for precision in [Precision::Int8, Precision::F32] {
            let far = distance(graph, &x, isa, precision);
            assert!(
                far <= tolerance,
                "{name}, {isa}, {precision}: relative distance {far:.2e}, expected at most {tolerance:.0e}"
            );
        }
    }
}

#[test]
fn int8_convolutions_of_every_kind_match_the_reference() {
    let same = |kernel: &[usize]| ConvAttrs::same(kernel);
    let cases: Vec<(&str, usize, usize, ConvAttrs)> = vec![
        ("3×3×3", 16, 16, same(&[3, 3, 3])),
        ("odd channels", 19, 37, same(&[3, 3, 3])),
        ("one channel in", 1, 16, same(&[3, 3, 3])),
        ("three channels in, two out", 3, 2, same(&[1, 3, 3])),
        ("few out", 32, 3, same(&[1, 1, 1])),
        ("stride 2", 16, 32, same(&[3, 3, 3]).with_strides(&[2, 2, 2])),
        ("stride in the plane", 16, 32, same(&[3, 3, 3]).with_strides(&[1, 2, 2])),
        ("wide kernel", 16, 16, same(&[1, 5, 5])),
        ("groups", 32, 32, ConvAttrs { group: 2, ..same(&[3, 3, 3]) }),
        ("depthwise", 24, 24, ConvAttrs { group: 24, ..same(&[3, 3, 3]) }),
        (
            "dilated",
            16,
            16,
            ConvAttrs {
                dilations: vec![1, 2, 2],
                padding: Padding::Explicit { before: vec![1, 2, 2], after: vec![1, 2, 2] },
                ..same(&[3, 3, 3])
            },
        ),
    ];
    for (name, ci, co, attrs) in cases {
        let (mut m, x) = GraphBuilder::new(ci, 3);
        let x = m.u8(x, 0.013, 113);
        let y = m.conv(x, ci, co, attrs);
        check(name, &m.finish(y), &[2, ci, 4, 7, 21], 2e-6);
    }
}

#[test]
fn int8_2d_convolutions_of_signed_bytes_match_the_reference() {
    let (mut m, x) = GraphBuilder::new(16, 2);
    let x = m.grid(x, 0.013, 5, ElementType::I8);
    let y = m.conv(x, 16, 20, ConvAttrs::same(&[3, 3]));
    let y = m.leaky(y);
    let y = m.grid(y, 0.05, -3, ElementType::I8);
    let y = m.conv(y, 20, 1, ConvAttrs::same(&[1, 1]));
    check("slices", &m.finish(y), &[1, 16, 11, 30], 2e-3);
}

#[test]
fn a_convolution_whose_integer_sums_could_overflow_is_computed_in_floats() {
    const CHANNELS: usize = 33_300;
    let (mut m, x) = GraphBuilder::new(CHANNELS, 2);
    let x = m.u8(x, 0.013, 113);
    let w = Tensor::new([2, CHANNELS, 1, 1], vec![127i8; 2 * CHANNELS]).unwrap();
    let (w, s) = (Some(m.graph.add_initializer("w", w)), m.scalar("ws", 1e-5));
    let w = m.graph.push("wd", Op::DequantizeLinear { axis: 0, block_size: 0 }, &[w, s]);
    let y = m.graph.push("conv", Op::Conv(ConvAttrs::same(&[1, 1])), &[Some(x), Some(w)]);
    // This one is computed in integers.
    let y = m.u8(y, 0.02, 128);
    let y = m.conv(y, 2, 16, ConvAttrs::same(&[3, 3]));
    check("many channels", &m.finish(y), &[1, CHANNELS, 2, 3], 2e-2);
}

#[test]
fn the_zero_point_is_dequantized_to_exactly_zero() {
    for channels in [3, 5, 16] {
        let (mut m, x) = GraphBuilder::new(channels, 2);
        // The product of scale and zero point is rounded, and many values are 0.
        let x = m.u8(x, 0.6, 113);
        // 0.5 for 0 only, and else 0 or 1.
        let step = Op::Activation(Activation::HardSigmoid { alpha: 1e9, beta: 0.5 });
        let sign = m.graph.push("sign", step, &[Some(x)]);
        let a = m.conv(sign, channels, 16, ConvAttrs::same(&[3, 3]));
        let b = m.conv(x, channels, 16, ConvAttrs::same(&[3, 3]));
        let y = m.add(a, b);
        check("signs", &m.finish(y), &[1, channels, 6, 7], 2e-3);
    }
}

#[test]
fn quantized_outputs_stay_bytes() {
    let (mut m, x) = GraphBuilder::new(16, 3);
    let x = m.u8(x, 0.013, 113);
    let y = m.conv(x, 16, 16, ConvAttrs::same(&[3, 3, 3]));
    let s = m.scalar("s", 0.02);
    let z = Some(m.graph.add_initializer("z", Tensor::new(Vec::<usize>::new(), vec![120u8]).unwrap()));
    let q = m.graph.push("q", Op::QuantizeLinear { axis: 1, block_size: 0, to: ElementType::U8 }, &[Some(y), s, z]);
    check("bytes out", &m.finish(q), &[1, 16, 3, 5, 9], 1e-4);
}

/// A residual U-Net with instance norms, quantized as usual: a quantize-dequantize pair before each convolution.
#[test]
fn int8_residual_network_with_instance_norms_matches_the_reference() {
    let (mut m, x) = GraphBuilder::new(1, 3);
    let xq = m.u8(x, 0.013, 113);
    let a = m.conv(xq, 1, 16, ConvAttrs::same(&[3, 3, 3]));
    let a = m.norm(a, 16);
    let a = m.leaky(a);
    let a = m.u8(a, 0.02, 10);
    let a = m.conv(a, 16, 16, ConvAttrs::same(&[3, 3, 3]));
    let a = m.norm(a, 16);
    let r = m.conv(xq, 1, 16, ConvAttrs::same(&[1, 1, 1]));
    let r = m.norm(r, 16);
    let sum = m.add(a, r);
    let skip = m.leaky(sum);
    let skip = m.u8(skip, 0.03, 10);
    let b = m.conv(skip, 16, 32, ConvAttrs::same(&[3, 3, 3]).with_strides(&[2, 2, 2]));
    let b = m.norm(b, 32);
    let c = m.conv(skip, 16, 32, ConvAttrs::same(&[1, 1, 1]).with_strides(&[2, 2, 2]));
    let c = m.norm(c, 32);
    let d = m.add(b, c);
    let d = m.leaky(d);
    let d = m.u8(d, 0.03, 10);
    let up = m.up(d, 32, 16, &[2, 2, 2]);
    let up = m.u8(up, 0.03, 10);
    let both = m.graph.push("cat", Op::Concat { axis: 1 }, &[Some(up), Some(skip)]);
    let both = m.u8(both, 0.03, 10);
    let y = m.conv(both, 32, 16, ConvAttrs::same(&[3, 3, 3]));
    let y = m.norm(y, 16);
    let y = m.leaky(y);
    let y = m.u8(y, 0.03, 10);
    let y = m.conv(y, 16, 1, ConvAttrs::same(&[1, 1, 1]));
    check("residual", &m.finish(y), &[2, 1, 8, 12, 20], 2e-2);
}

#[test]
fn int8_group_norms_match_the_reference() {
    let (mut m, x) = GraphBuilder::new(16, 3);
    let x = m.u8(x, 0.013, 113);
    let y = m.conv(x, 16, 32, ConvAttrs::same(&[3, 3, 3]));
    let gamma: Vec<f32> = noise(41, 32).iter().map(|v| 1.0 + 0.3 * v).collect();
    let g = m.graph.add_initializer("gamma", Tensor::vector(gamma));
    let b = m.graph.add_initializer("beta", Tensor::vector(noise(42, 32)));
    let op = Op::GroupNormalization { groups: 4, epsilon: 1e-5 };
    let y = m.graph.push("groups", op, &[Some(y), Some(g), Some(b)]);
    let y = m.leaky(y);
    check("group norm", &m.finish(y), &[2, 16, 3, 7, 21], 2e-3);
}

/// Without instance norms: convolution, ReLU, quantization; pooling, nearest-neighbor resize and concatenation on
/// bytes, with parts of different scales.
#[test]
fn int8_network_without_norms_matches_the_reference() {
    let (mut m, x) = GraphBuilder::new(3, 3);
    let x = m.u8(x, 0.013, 113);
    let a = m.conv(x, 3, 16, ConvAttrs::same(&[3, 3, 3]));
    let a = m.leaky(a);
    let a = m.u8(a, 0.01, 3);
    let p = PoolAttrs {
        kernel: vec![1, 2, 2],
        strides: vec![1, 2, 2],
        dilations: vec![1; 3],
        padding: Padding::none(3),
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    let pooled = m.graph.push("pool", Op::MaxPool(p), &[Some(a)]);
    let pooled = m.u8(pooled, 0.01, 3);
    let b = m.conv(pooled, 16, 16, ConvAttrs::same(&[3, 3, 3]));
    let b = m.leaky(b);
    let b = m.u8(b, 0.012, 5);
    let scales = m.graph.add_initializer("scales", Tensor::vector(vec![1.0f32, 1.0, 1.0, 2.0, 2.0]));
    let up = m.graph.push("nearest", Op::Resize(ResizeAttrs::nearest()), &[Some(b), None, Some(scales)]);
    let up = m.u8(up, 0.012, 5);
    let both = m.graph.push("cat", Op::Concat { axis: 1 }, &[Some(up), Some(a)]);
    let both = m.u8(both, 0.011, 4);
    let y = m.conv(both, 32, 16, ConvAttrs::same(&[3, 3, 3]));
    let y = m.leaky(y);
    let y = m.u8(y, 0.02, 6);
    let y = m.conv(y, 16, 2, ConvAttrs::same(&[1, 1, 1]));
    let y = m.graph.push("sigmoid", Op::Activation(Activation::Sigmoid), &[Some(y)]);
    check("static", &m.finish(y), &[1, 3, 3, 8, 22], 2e-3);
}

#[test]
fn dynamic_quantization_matches_the_reference() {
    let (mut m, x) = GraphBuilder::new(16, 3);
    let mut now = x;
    for _ in 0..2 {
        let [q, s, z] = ["q", "s", "z"].map(|n| m.graph.add_value(n, None, None));
        let node = cytoscope_graph::Node {
            name: "range".into(),
            op: Op::DynamicQuantizeLinear,
            inputs: vec![Some(now)],
            outputs: vec![Some(q), Some(s), Some(z)],
        };
        m.graph.nodes.push(node);
        let dq = Op::DequantizeLinear { axis: 1, block_size: 0 };
        let floats = m.graph.push("floats", dq, &[Some(q), Some(s), Some(z)]);
        now = m.conv(floats, 16, 16, ConvAttrs::same(&[3, 3, 3]));
        now = m.leaky(now);
    }
    let graph = m.finish(now);
    let x = input(&[2, 16, 3, 6, 18]);
    for isa in isas() {
        let far = distance(&graph, &x, isa, Precision::Int8);
        assert!(far < 2e-3, "{isa}: {far:.2e}");
    }
}

#[test]
fn profiles_state_the_number_format_and_the_node_of_each_operator() {
    let (mut m, x) = GraphBuilder::new(16, 3);
    let x = m.u8(x, 0.013, 113);
    let y = m.conv(x, 16, 32, ConvAttrs::same(&[3, 3, 3]));
    let y = m.leaky(y);
    let y = m.u8(y, 0.03, 10);
    let graph = m.finish(y);
    let x = input(&[1, 16, 3, 7, 21]);
    for (precision, expected) in
        [(Precision::Int8, OperatorPrecision::Int8), (Precision::F32, OperatorPrecision::Float)]
    {
        let recorder = Recorder::new();
        let options = CompileOptions { precision, recorder: recorder.clone(), ..CompileOptions::default() };
        let mut session = CpuEngine::new().compile(&graph, &[x.shape().to_vec()], &options).unwrap();
        session.run(std::slice::from_ref(&x)).unwrap();
        let spans = recorder.spans();
        let multiplying: Vec<_> = spans.iter().filter(|span| span.stage == Stage::Op && span.macs > 0).collect();
        assert!(!multiplying.is_empty(), "{precision}");
        for span in multiplying {
            assert_eq!(span.precision, Some(expected), "{}", span.name);
            assert!(span.name.ends_with(" conv") && !span.name.contains("int8"), "{}", span.name);
        }
    }
}

#[test]
fn int8_is_refused_for_a_float_model() {
    let mut graph = Graph::new("floats");
    let x = graph.add_input(
        "x",
        ElementType::F32,
        vec![Dim::Fixed(1), Dim::Fixed(16), Dim::Fixed(2), Dim::Fixed(4), Dim::Fixed(4)],
    );
    let y = graph.push("y", Op::Activation(Activation::Relu), &[Some(x)]);
    graph.outputs.push(y);
    let options = CompileOptions { precision: Precision::Int8, ..CompileOptions::default() };
    let refused = CpuEngine::new().compile(&graph, &[vec![1, 16, 2, 4, 4]], &options).err();
    assert!(matches!(refused, Some(EngineError::NotQuantized { .. })), "{refused:?}");
    assert!(refused.unwrap().to_string().contains("cytoscope quantize"));
}

/// A file written by ONNX Runtime's quantizer.
#[test]
fn a_model_quantized_by_onnx_runtime_matches_the_reference() {
    let Some(folder) = cytoscope_testkit::bench_models() else { return };
    let path = folder.join("M1t_qdq.onnx");
    if !path.is_file() {
        return skip(format!("{} does not exist (set CYTOSCOPE_BENCH_MODELS)", path.display()));
    }
    let graph = cytoscope_onnx::load(&path, &cytoscope_graph::GraphLimits::default()).unwrap();
    let x = input(&[1, 1, 16, 16, 32]);
    for isa in isas() {
        // Rounding errors of half a step in many layers, amplified by norms over small volumes.
        let far = distance(&graph, &x, isa, Precision::Int8);
        assert!(far < 3e-2, "{isa}: {far:.2e}");
    }
}
