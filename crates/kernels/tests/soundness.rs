//! Small layers on all available instruction sets, in buffers without a spare value at their end, and weights packed
//! for another instruction set. Small enough for Miri and AddressSanitizer, which find accesses outside of a buffer.

mod common;

use common::{blocked, close, dense, isas, naive_conv, noise, out_dims};
use cytoscope_kernels::conv::{
    self, ConvShape, Finish, PackedConv, PackedConvInt8, Target, Transposed, TransposedShape, WeightShape,
};
use cytoscope_kernels::train::{self, InputGradient};
use cytoscope_kernels::{Blocked, Isa, KernelError, reorder};

const DIMS: [usize; 3] = [2, 3, 4];

/// Runs every kernel that reads packed weights, with weights packed for `packed`, on `running`.
fn run_packed(packed: Isa, running: Isa) -> [Result<(), KernelError>; 6] {
    let (channels, kernel, end) = (33, [1, 3, 3], Finish::default());
    let shape = ConvShape { kernel, stride: [1; 3], dilation: [1; 3], pad_before: [0, 1, 1] };
    let (wide, few) = (WeightShape::dense(channels, channels, 9), WeightShape::dense(2, 3, 9));
    let layout = Blocked::new(channels, [1, 2, 3], [0, 1, 1], 16);
    let (from_planes, to_planes) = (Blocked::new(3, [1, 2, 3], [0, 1, 1], 1), Blocked::new(2, [1, 2, 3], [0; 3], 1));
    let (x, bytes, mut y) = (vec![0.0f32; layout.len()], vec![3u8; layout.len()], vec![0.0f32; layout.len()]);
    let (weights, signed) = (vec![0.5f32; wide.count()], vec![1i8; wide.count()]);

    let own = PackedConv::new(packed, &weights, None, wide, 16).unwrap();
    let blocks = conv::conv(running, &x, &layout, &own, &shape, &end, Target::F32(&mut y), &layout).map(drop);

    let own = PackedConv::new(packed, &weights[..few.count()], None, few, 1).unwrap();
    let (input, output) = (&x[..from_planes.len()], Target::F32(&mut y[..to_planes.len()]));
    let planes = conv::conv(running, input, &from_planes, &own, &shape, &end, output, &to_planes).map(drop);

    let own = PackedConvInt8::new(packed, &signed, 3, wide, 16).unwrap();
    let int8 = conv::conv_int8(running, &bytes, &layout, &own, &shape, &end, Target::F32(&mut y), &layout).map(drop);

    let (twice, taps) = (TransposedShape::exact([1, 2, 2]), channels * channels * 4);
    let large = Blocked::new(channels, [1, 4, 6], [0; 3], 16);
    let mut up = vec![0.0f32; large.len()];
    let own = Transposed::new(packed, &weights[..taps], None, [channels, channels], &twice, 16).unwrap();
    let transposed = conv::conv_transpose(running, &x, &layout, &own, [0; 3], &end, Target::F32(&mut up), &large);

    let own = Transposed::new_int8(packed, &signed[..taps], 3, [channels, channels], &twice, 16).unwrap();
    let transposed_int8 =
        conv::conv_transpose_int8(running, &bytes, &layout, &own, [0; 3], &end, Target::F32(&mut up), &large);

    let own = InputGradient::new(packed, &weights, [channels, channels], &shape, 16).unwrap();
    let gradient = train::conv_input_gradient(running, &x, &layout, &own, false, &mut y, &layout);
    [blocks, planes, int8, transposed, transposed_int8, gradient]
}

#[test]
fn weights_packed_for_another_instruction_set_are_refused() {
    let all = isas();
    for packed in &all {
        for running in &all {
            let (packed, running) = (*packed, *running);
            let refused = KernelError::PackedForOtherIsa { packed, running };
            let want = if packed == running { Ok(()) } else { Err(refused) };
            for (kernel, got) in run_packed(packed, running).into_iter().enumerate() {
                assert_eq!(got, want, "kernel {kernel} on {running} with weights packed for {packed}");
            }
        }
    }
}

/// Returns input sizes, weights, windows and output sizes that cover partial blocks, planes, odd numbers of blocks,
/// channel groups, depthwise kernels, single voxels, strides larger than the kernel, and padding larger than the image.
fn layers() -> Vec<([usize; 3], WeightShape, ConvShape, [usize; 3])> {
    let window = |kernel, stride, dilation, pad_before| ConvShape { kernel, stride, dilation, pad_before };
    let windows = [
        window([1, 1, 1], [1; 3], [1; 3], [0; 3]),
        window([2, 1, 3], [1; 3], [1; 3], [1, 0, 1]),
        window([1, 3, 2], [1, 2, 2], [1; 3], [0, 1, 1]),
        window([2, 2, 2], [2, 3, 2], [1, 2, 2], [3, 4, 2]),
        window([1, 1, 3], [3, 4, 5], [1, 1, 2], [0, 0, 4]),
    ];
    let mut all = Vec::new();
    for (in_channels, out_channels, groups) in [(3, 2, 1), (3, 18, 1), (17, 33, 1), (32, 32, 2), (18, 18, 18)] {
        for (dims, shape) in [DIMS, [1; 3]].into_iter().flat_map(|dims| windows.map(|shape| (dims, shape))) {
            let of = WeightShape { out_channels, in_channels, taps: shape.kernel.iter().product(), groups };
            let out = out_dims(dims, &shape).expect("an output");
            all.push((dims, of, shape, out));
        }
    }
    all
}

fn float_block(channels: usize) -> usize {
    if channels <= 4 { 1 } else { 16 }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[test]
fn small_float_layers_and_their_gradients_match_naive_loops() {
    for (dims, of, shape, out) in layers() {
        let (ci, co) = (of.in_channels, of.out_channels);
        let (x, weights) = (noise(ci * dims.iter().product::<usize>(), 1), noise(of.count(), 2));
        let want: Vec<f32> = naive_conv(&x, dims, &weights, of, &shape, out).iter().map(|v| *v as f32).collect();
        let g = noise(want.len(), 3);
        let in_layout = Blocked::new(ci, dims, shape.pad_before, float_block(ci));
        let out_layout = Blocked::new(co, out, [0; 3], float_block(co));
        let input = blocked(&x, &in_layout);
        for isa in isas() {
            let packed = PackedConv::new(isa, &weights, None, of, in_layout.block).unwrap();
            let mut y = vec![0.0; out_layout.len()];
            let (end, to) = (Finish::default(), Target::F32(&mut y));
            conv::conv(isa, &input, &in_layout, &packed, &shape, &end, to, &out_layout).unwrap();
            close(&dense(&y, &out_layout), &want, 2e-5);
            if of.groups > 1 {
                continue;
            }
            // The scalar products of an output with its gradient, of the input with its gradient, and of the weights
            // with theirs are equal.
            let product = dot(&want, &g);
            let near = |other: f64| assert!((other - product).abs() <= 1e-3 * (1.0 + product.abs()), "{isa}: {other}");
            let packed = InputGradient::new(isa, &weights, [co, ci], &shape, out_layout.block).unwrap();
            let g_layout = Blocked::new(co, out, packed.border(dims, out), out_layout.block);
            let g = blocked(&g, &g_layout);
            let dx_layout = Blocked::new(ci, dims, [0; 3], in_layout.block);
            let mut dx = vec![0.0; dx_layout.len()];
            train::conv_input_gradient(isa, &g, &g_layout, &packed, false, &mut dx, &dx_layout).unwrap();
            near(dot(&dense(&dx, &dx_layout), &x));
            let mut dw = vec![0.0; weights.len()];
            train::conv_weight_gradient(isa, &input, &in_layout, &g, &g_layout, &shape, &mut dw).unwrap();
            near(dot(&dw, &weights));
        }
    }
}

#[test]
fn small_byte_layers_match_naive_loops() {
    let zero = 7u8;
    for (dims, of, shape, out) in layers() {
        let (ci, co) = (of.in_channels, of.out_channels);
        let x: Vec<u8> =
            noise(ci * dims.iter().product::<usize>(), 1).iter().map(|v| (v * 127.0 + 128.0) as u8).collect();
        let weights: Vec<i8> = noise(of.count(), 2).iter().map(|v| (v * 127.0) as i8).collect();
        let real: Vec<f64> = x.iter().map(|v| f64::from(*v) - f64::from(zero)).collect();
        let want: Vec<f32> = naive_conv(&real, dims, &weights, of, &shape, out).iter().map(|v| *v as f32).collect();
        let in_layout = Blocked::new(ci, dims, shape.pad_before, if ci <= 4 { 4 } else { 16 });
        let out_layout = Blocked::new(co, out, [0; 3], 16);
        let mut input = vec![0u8; in_layout.len()];
        reorder::pack(&x, &in_layout, zero, &mut input).unwrap();
        for isa in isas() {
            let packed = PackedConvInt8::new(isa, &weights, zero, of, in_layout.block).unwrap();
            let mut y = vec![0.0; out_layout.len()];
            let (end, to) = (Finish::default(), Target::F32(&mut y));
            conv::conv_int8(isa, &input, &in_layout, &packed, &shape, &end, to, &out_layout).unwrap();
            assert_eq!(dense(&y, &out_layout), want, "{isa}: {of:?} {shape:?}");
        }
    }
}

#[test]
fn small_layers_in_a_ring_match_those_of_the_slices_in_order() {
    let (zero, first) = (7u8, 1);
    let shape = ConvShape { kernel: [2, 1, 3], stride: [1; 3], dilation: [1; 3], pad_before: [0, 0, 1] };
    let plane = 2 * 4;
    for (ci, co, groups) in [(3, 2, 1), (17, 33, 1), (32, 32, 2), (18, 18, 18)] {
        let of = WeightShape { out_channels: co, in_channels: ci, taps: 6, groups };
        let (values, weights) = (noise(ci * 2 * plane, 1), noise(of.count(), 2));
        // Four slices, of a ring of two.
        let starts = (0..ci).flat_map(|c| (0..4).map(move |z| (c * 2 + (first + z) % 2) * plane));
        let in_order: Vec<f32> = starts.flat_map(|at| values[at..at + plane].to_vec()).collect();
        let to_byte = |v: &f32| (v * 127.0 + 128.0) as u8;
        let signed: Vec<i8> = weights.iter().map(|v| (v * 127.0) as i8).collect();
        let layouts = |block: usize| [2, 4].map(|slices| Blocked::new(ci, [slices, 2, 4], [0, 0, 1], block));
        let out = Blocked::new(co, [3, 2, 4], [0; 3], 16);
        let end = Finish::default();
        for isa in isas() {
            let (mut y, mut want) = (vec![0.0; out.len()], vec![0.0; out.len()]);
            let [ring, layout] = layouts(float_block(ci));
            let packed = PackedConv::new(isa, &weights, None, of, ring.block).unwrap();
            let input = blocked(&in_order, &layout);
            conv::conv(isa, &input, &layout, &packed, &shape, &end, Target::F32(&mut want), &out).unwrap();
            let input = blocked(&values, &ring);
            conv::conv_in_ring(isa, &input, &ring, first, &packed, &shape, &end, Target::F32(&mut y), &out).unwrap();
            assert_eq!(y, want, "{isa}: {of:?}");

            let [ring, layout] = layouts(if ci <= 4 { 4 } else { 16 });
            let pack = |values: &[f32], layout: &Blocked| {
                let bytes: Vec<u8> = values.iter().map(to_byte).collect();
                let mut packed = vec![0u8; layout.len()];
                reorder::pack(&bytes, layout, zero, &mut packed).unwrap();
                packed
            };
            let packed = PackedConvInt8::new(isa, &signed, zero, of, ring.block).unwrap();
            let input = pack(&in_order, &layout);
            conv::conv_int8(isa, &input, &layout, &packed, &shape, &end, Target::F32(&mut want), &out).unwrap();
            let (input, to) = (pack(&values, &ring), Target::F32(&mut y));
            conv::conv_int8_in_ring(isa, &input, &ring, first, &packed, &shape, &end, to, &out).unwrap();
            assert_eq!(y, want, "{isa}, bytes: {of:?}");
        }
    }
}

#[test]
fn small_transposed_layers_sum_their_input_channels() {
    let kernel = [2, 1, 3];
    let shape = TransposedShape::exact(kernel);
    let out = [0, 1, 2].map(|axis| DIMS[axis] * kernel[axis]);
    for (ci, co) in [(3, 2), (17, 33)] {
        let (taps, end) = (ci * co * 6, Finish::default());
        let out_layout = Blocked::new(co, out, [0; 3], 16);
        let want = vec![ci as f32; co * out_layout.voxels()];
        for isa in isas() {
            let in_layout = Blocked::new(ci, DIMS, [0; 3], float_block(ci));
            let input = blocked(&vec![1.0; ci * in_layout.voxels()], &in_layout);
            let packed = Transposed::new(isa, &vec![1.0; taps], None, [ci, co], &shape, in_layout.block).unwrap();
            let mut y = vec![0.0; out_layout.len()];
            conv::conv_transpose(isa, &input, &in_layout, &packed, [0; 3], &end, Target::F32(&mut y), &out_layout)
                .unwrap();
            assert_eq!(dense(&y, &out_layout), want, "{isa}");

            let in_layout = Blocked::new(ci, DIMS, [0; 3], if ci <= 4 { 4 } else { 16 });
            let mut input = vec![0u8; in_layout.len()];
            reorder::pack(&vec![8u8; ci * in_layout.voxels()], &in_layout, 7, &mut input).unwrap();
            let packed = Transposed::new_int8(isa, &vec![1i8; taps], 7, [ci, co], &shape, in_layout.block).unwrap();
            conv::conv_transpose_int8(isa, &input, &in_layout, &packed, [0; 3], &end, Target::F32(&mut y), &out_layout)
                .unwrap();
            assert_eq!(dense(&y, &out_layout), want, "{isa}, bytes");
        }
    }
}
