//! Byte kernels of all available instruction sets: sums are exact, and epilogues match their formulas.

mod common;

use common::{close, dense, isas, naive_conv, noise, out_dims, scattered};
use cytoscope_kernels::apply::{self, Head, Source, Term};
use cytoscope_kernels::conv::{
    self, Activation, ConvShape, Finish, PackedConvInt8, Quantizer, Target, Transposed, TransposedShape, WeightShape,
};
use cytoscope_kernels::{Blocked, norm, pointwise, pool, reorder, resize};
use half::f16;
use proptest::prelude::*;

/// Returns reproducible bytes, including the extremes.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    noise(len, seed).iter().map(|v| (v * 140.0 + 127.0).clamp(0.0, 255.0) as u8).collect()
}

fn signed(len: usize, seed: u64) -> Vec<i8> {
    noise(len, seed).iter().map(|v| (v * 150.0).clamp(-128.0, 127.0) as i8).collect()
}

fn packed(dense: &[u8], layout: &Blocked, zero: u8) -> Vec<u8> {
    let mut out = vec![99; layout.len()];
    reorder::pack(dense, layout, zero, &mut out).unwrap();
    out
}

fn unpacked(values: &[u8], layout: &Blocked) -> Vec<u8> {
    let mut out = vec![0; layout.channels * layout.voxels()];
    reorder::unpack(values, layout, &mut out).unwrap();
    out
}

/// `clamp(round_half_even(v · inverse_scale) + zero_point)`.
fn quantized(v: f32, q: Quantizer) -> u8 {
    ((v * q.inverse_scale).round_ties_even() + f32::from(q.zero_point)).clamp(0.0, 255.0) as u8
}

fn narrow_block(channels: usize) -> usize {
    if channels <= 4 { 4 } else { 16 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn convolution_sums_are_exact(
        ci in prop_oneof![1usize..5, 14usize..50], co in 1usize..50, d in 1usize..4, h in 1usize..6,
        w in prop_oneof![1usize..40, 60usize..70], k in 0usize..6, stride in 1usize..4, dilation in 1usize..3, pad in 0usize..3,
        extra in 0usize..2, zero in any::<u8>(), groups in 1usize..5, seed in any::<u64>(),
    ) {
        let kernel = [[1, 1, 1], [3, 3, 3], [1, 3, 3], [1, 2, 5], [2, 2, 2], [1, 1, 4]][k];
        let pad_before = kernel.map(|k| pad.min(k - 1));
        let shape = ConvShape { kernel, stride: [stride.min(2), stride, stride], dilation: [1, dilation, dilation], pad_before };
        let dims = [d, h, w];
        let Some(out) = out_dims(dims, &shape) else { return Ok(()) };
        let (co, groups) = match groups {
            4 => (ci, ci),
            g if ci % g == 0 && co % g == 0 => (co, g),
            _ => (co, 1),
        };
        let of = WeightShape { out_channels: co, in_channels: ci, taps: kernel.iter().product(), groups };
        let x = bytes(ci * d * h * w, seed);
        let weights = signed(of.count(), seed ^ 1);
        let real: Vec<f64> = x.iter().map(|v| f64::from(*v) - f64::from(zero)).collect();
        let sums = naive_conv(&real, dims, &weights, of, &shape, out);
        let voxels: usize = out.iter().product();
        let in_layout = Blocked::new(ci, dims, pad_before.map(|p| p + extra), narrow_block(ci));
        let input = packed(&x, &in_layout, zero);
        let (scale, bias): (Vec<f32>, Vec<f32>) = (noise(co, seed ^ 2), noise(co, seed ^ 3));
        for isa in isas() {
            let weights = PackedConvInt8::new(isa, &weights, zero, of, in_layout.block).unwrap();
            // Sums as floats: exact below 2^24, and rounded once above.
            let layout = Blocked::new(co, out, [extra, 0, 1], 16);
            let mut y = vec![7.5f32; layout.len()];
            conv::conv_int8(isa, &input, &in_layout, &weights, &shape, &Finish::default(), Target::F32(&mut y), &layout).unwrap();
            let exact: Vec<f32> = sums.iter().map(|s| *s as f32).collect();
            prop_assert_eq!(dense(&y, &layout), exact, "{}", isa);
            // As bytes, scaled, with bias and leaky ReLU.
            let layout = Blocked::new(co, out, [0, extra, 1], narrow_block(co));
            let q = Quantizer { inverse_scale: 0.01, zero_point: zero };
            let mut z = vec![3u8; layout.len()];
            let end = Finish { scale: Some(&scale), bias: Some(&bias), activation: Activation::Leaky { slope: 0.25 }, ..Finish::default() };
            conv::conv_int8(isa, &input, &in_layout, &weights, &shape, &end, Target::U8(&mut z, q), &layout).unwrap();
            for (i, (got, sum)) in unpacked(&z, &layout).iter().zip(&sums).enumerate() {
                let v = (*sum as f32).mul_add(scale[i / voxels], bias[i / voxels]);
                let v = if v < 0.0 { v * 0.25 } else { v };
                // Without a fused multiply-add, a tie may round to the other side.
                let (want, near) = (quantized(v, q), (v * q.inverse_scale).fract().abs() - 0.5);
                prop_assert!(*got == want || near.abs() < 1e-3 && got.abs_diff(want) == 1, "{isa}: {got}, expected {want} for {v}");
            }
            // As 16-bit floats, with moments.
            let layout = Blocked::new(co, out, [0; 3], 16);
            let mut halves = vec![0u16; layout.len()];
            let small = vec![1e-3f32; co];
            let end = Finish { scale: Some(&small), moments: true, ..Finish::default() };
            let moments = conv::conv_int8(isa, &input, &in_layout, &weights, &shape, &end, Target::F16(&mut halves), &layout).unwrap().unwrap();
            let floats: Vec<f32> = halves.iter().map(|h| f16::from_bits(*h).to_f32()).collect();
            let got = dense(&floats, &layout);
            for (c, (mean, variance)) in moments.iter().enumerate() {
                let own: Vec<f64> = sums[c * voxels..(c + 1) * voxels].iter().map(|s| s * 1e-3).collect();
                let m = own.iter().sum::<f64>() / voxels as f64;
                let v = own.iter().map(|s| (s - m).powi(2)).sum::<f64>() / voxels as f64;
                prop_assert!((m - mean).abs() <= 1e-4 * (1.0 + m.abs()) && (v - variance).abs() <= 1e-3 * (1.0 + v), "{isa}: {mean} {m}, {variance} {v}");
                for (g, w) in got[c * voxels..(c + 1) * voxels].iter().zip(&own) {
                    prop_assert!((f64::from(*g) - w).abs() <= w.abs() * 6e-4 + 1e-6, "{isa}: {g}, expected {w}");
                }
            }
        }
    }

    #[test]
    fn convolution_in_a_ring_matches_that_of_the_slices_in_order(
        ci in prop_oneof![1usize..5, 14usize..50], co in 1usize..50, d in 1usize..5, ring in 1usize..9, first in 0usize..20,
        k in 0usize..4, stride in 1usize..3, dilation in 1usize..3, width in prop_oneof![4usize..24, 60usize..70],
        zero in any::<u8>(), groups in 1usize..5, seed in any::<u64>(),
    ) {
        let kernel = [[1, 1, 1], [3, 3, 3], [2, 1, 3], [3, 2, 4]][k];
        let pad_before = [0, kernel[1] / 2, kernel[2] / 2];
        let shape = ConvShape { kernel, stride: [stride, 1, stride], dilation: [dilation, 1, 1], pad_before };
        let window = (kernel[0] - 1) * dilation + 1;
        let (ring, read) = (ring.max(window), (d - 1) * stride + window);
        let (height, plane) = (4, 4 * width);
        let Some(out) = out_dims([read, height, width], &shape) else { return Ok(()) };
        let (co, groups) = match groups {
            4 => (ci, ci),
            g if ci % g == 0 && co % g == 0 => (co, g),
            _ => (co, 1),
        };
        let of = WeightShape { out_channels: co, in_channels: ci, taps: kernel.iter().product(), groups };
        let (weights, scale) = (signed(of.count(), seed ^ 1), noise(co, seed ^ 2));
        let values = bytes(ci * ring * plane, seed);
        let in_order: Vec<u8> = (0..ci)
            .flat_map(|c| (0..read).map(move |z| (c * ring + (first + z) % ring) * plane))
            .flat_map(|at| values[at..at + plane].to_vec())
            .collect();
        let [ring_layout, layout] = [ring, read].map(|slices| Blocked::new(ci, [slices, height, width], pad_before, narrow_block(ci)));
        let (in_ring, in_order) = (packed(&values, &ring_layout, zero), packed(&in_order, &layout, zero));
        let end = Finish { scale: Some(&scale), ..Finish::default() };
        let q = Quantizer { inverse_scale: 0.01, zero_point: zero };
        for isa in isas() {
            let weights = PackedConvInt8::new(isa, &weights, zero, of, layout.block).unwrap();
            let to = Blocked::new(co, out, [0, 1, 1], 16);
            let (mut y, mut want) = (vec![7.5f32; to.len()], vec![7.5f32; to.len()]);
            conv::conv_int8(isa, &in_order, &layout, &weights, &shape, &end, Target::F32(&mut want), &to).unwrap();
            conv::conv_int8_in_ring(isa, &in_ring, &ring_layout, first, &weights, &shape, &end, Target::F32(&mut y), &to).unwrap();
            prop_assert!(y == want, "{isa}: ring of {ring}, {read} slices from {first}");
            let to = Blocked::new(co, out, [0, 0, 1], narrow_block(co));
            let (mut y, mut want) = (vec![3u8; to.len()], vec![3u8; to.len()]);
            conv::conv_int8(isa, &in_order, &layout, &weights, &shape, &end, Target::U8(&mut want, q), &to).unwrap();
            conv::conv_int8_in_ring(isa, &in_ring, &ring_layout, first, &weights, &shape, &end, Target::U8(&mut y, q), &to).unwrap();
            prop_assert!(y == want, "{isa}: ring of {ring}, {read} slices from {first}, to bytes");
            let long = ConvShape { dilation: [ring, 1, 1], ..shape };
            let refused =
                conv::conv_int8_in_ring(isa, &in_ring, &ring_layout, first, &weights, &long, &end, Target::U8(&mut y, q), &to);
            prop_assert_eq!(refused.is_err(), kernel[0] > 1, "a window of more slices than the ring has");
        }
    }

    #[test]
    fn sums_of_one_tap_to_few_planes_are_exact(
        ci in 5usize..70, co in 1usize..5, d in 1usize..3, h in 1usize..4, w in 1usize..40, zero in any::<u8>(), seed in any::<u64>(),
    ) {
        let (of, dims) = (WeightShape::dense(co, ci, 1), [d, h, w]);
        let shape = ConvShape { kernel: [1; 3], stride: [1; 3], dilation: [1; 3], pad_before: [0; 3] };
        let (x, weights) = (bytes(ci * d * h * w, seed), signed(of.count(), seed ^ 1));
        let reals: Vec<f32> = x.iter().map(|v| f32::from(*v) - f32::from(zero)).collect();
        let real_weights: Vec<f32> = weights.iter().map(|v| f32::from(*v)).collect();
        let (scale, bias) = (0.5f32, 3.0f32);
        let want: Vec<f32> = naive_conv(&reals, dims, &real_weights, of, &shape, dims)
            .into_iter().map(|sum| (sum as f32).mul_add(scale, bias)).collect();
        let in_layout = Blocked::new(ci, dims, [1, 0, 1], 16);
        let out_layout = Blocked::new(co, dims, [0, 1, 1], 1);
        let input = packed(&x, &in_layout, zero);
        let (scales, biases) = (vec![scale; co], vec![bias; co]);
        let finish = Finish { scale: Some(&scales), bias: Some(&biases), ..Finish::default() };
        for isa in isas() {
            let packed = PackedConvInt8::new(isa, &weights, zero, of, 16).unwrap();
            let mut y = vec![0.0; out_layout.len()];
            conv::conv_int8(isa, &input, &in_layout, &packed, &shape, &finish, Target::F32(&mut y), &out_layout).unwrap();
            prop_assert_eq!(dense(&y, &out_layout), want.clone(), "{}", isa);
        }
    }

    #[test]
    fn transposed_convolution_sums_are_exact(
        channels in prop::array::uniform2(1usize..40), dims in prop::array::uniform2(1usize..4), width in 1usize..20,
        stride in prop::array::uniform3(1usize..4), more in prop::array::uniform3(0usize..3), crop in 0usize..3,
        zero in any::<u8>(), seed in any::<u64>(),
    ) {
        let ([ci, co], dims) = (channels, [dims[0], dims[1], width]);
        let kernel = [0, 1, 2].map(|a| stride[a] + more[a]);
        let pad_before = kernel.map(|k| crop.min(k - 1));
        let out = [0, 1, 2].map(|a| ((dims[a] - 1) * stride[a] + kernel[a]).saturating_sub(2 * pad_before[a]).max(1));
        let taps: usize = kernel.iter().product();
        let (x, weights) = (bytes(ci * dims.iter().product::<usize>(), seed), signed(ci * co * taps, seed ^ 1));
        let reals: Vec<f32> = x.iter().map(|v| f32::from(*v) - f32::from(zero)).collect();
        let real_weights: Vec<f32> = weights.iter().map(|v| f32::from(*v)).collect();
        let want = scattered(&reals, &real_weights, [ci, co], dims, kernel, stride, pad_before, out, None);
        let shape = TransposedShape { kernel, stride, pad_before };
        let in_layout = Blocked::new(ci, dims, shape.border(dims, out), narrow_block(ci));
        let out_layout = Blocked::new(co, out, [1, 1, 1], 16);
        let input = packed(&x, &in_layout, zero);
        for isa in isas() {
            let packed = Transposed::new_int8(isa, &weights, zero, [ci, co], &shape, in_layout.block).unwrap();
            let mut y = vec![0.0; out_layout.len()];
            conv::conv_transpose_int8(
                isa, &input, &in_layout, &packed, pad_before, &Finish::default(), Target::F32(&mut y), &out_layout,
            ).unwrap();
            prop_assert_eq!(dense(&y, &out_layout), want.clone(), "{}", isa);
        }
    }

    #[test]
    fn passes_match_their_formula(
        c in 5usize..40, d in 1usize..3, h in 1usize..12, w in 1usize..20, first in 0usize..4, second in 0usize..5, seed in any::<u64>(),
    ) {
        let (dims, n) = ([d, h, w], d * h * w);
        let layout = Blocked::new(c, dims, [0, 1, 1], 16);
        let plane_layout = Blocked::new(1, dims, [1, 0, 1], 1);
        let dense_of = |kind: usize, seed: u64| -> Vec<f32> {
            match kind {
                1 => noise(c * n, seed).iter().map(|v| f16::from_f32(*v).to_f32()).collect(),
                2 => bytes(c * n, seed).iter().map(|v| f32::from(*v)).collect(),
                3 => { let p = noise(n, seed); (0..c * n).map(|i| p[i % n]).collect() }
                _ => noise(c * n, seed),
            }
        };
        let values = [dense_of(first, seed), dense_of(second, seed ^ 9)];
        let floats: Vec<Vec<f32>> = values.iter().map(|v| common::blocked(v, &layout)).collect();
        let halves: Vec<Vec<u16>> = floats.iter().map(|v| v.iter().map(|x| f16::from_f32(*x).to_bits()).collect()).collect();
        let small: Vec<Vec<u8>> = floats.iter().map(|v| v.iter().map(|x| *x as u8).collect()).collect();
        let planes: Vec<Vec<f32>> = values.iter().map(|v| common::blocked(&v[..n], &plane_layout)).collect();
        let (scales, shifts) = ([noise(c, seed ^ 2), noise(c, seed ^ 3)], [noise(c, seed ^ 4), noise(c, seed ^ 5)]);
        let kinds = [first, second];
        let term = |i: usize| Term {
            source: match kinds[i] {
                1 => Source::F16(&halves[i], &layout),
                2 => Source::U8(&small[i], &layout),
                3 => Source::Plane(&planes[i], &plane_layout),
                _ => Source::F32(&floats[i], &layout),
            },
            scale: &scales[i],
            shift: &shifts[i],
        };
        let terms: Vec<Term> = if second == 4 { vec![term(0)] } else { vec![term(0), term(1)] };
        let want: Vec<f32> = (0..c * n).map(|i| {
            let v: f32 = (0..terms.len()).map(|t| values[t][i] * scales[t][i / n] + shifts[t][i / n]).sum();
            if v < 0.0 { v * 0.5 } else { v }
        }).collect();
        let activation = Activation::Leaky { slope: 0.5 };
        let head_weights = noise(2 * c, seed ^ 6);
        for isa in isas() {
            let mut y = vec![0.0; layout.len()];
            apply::apply(isa, &terms, activation, Target::F32(&mut y), &layout).unwrap();
            let far = |v: f32| 2e-4 * (1.0 + v.abs());
            dense(&y, &layout).iter().zip(&want).for_each(|(g, w)| assert!((g - w).abs() <= far(*w), "{isa}: {g}, expected {w}"));
            let q = Quantizer { inverse_scale: 40.0, zero_point: 90 };
            let mut z = vec![0u8; layout.len()];
            apply::apply(isa, &terms, activation, Target::U8(&mut z, q), &layout).unwrap();
            for (g, w) in unpacked(&z, &layout).iter().zip(&want) {
                let (low, high) = (quantized(w - far(*w), q), quantized(w + far(*w), q));
                prop_assert!((low..=high).contains(g), "{isa}: {g}, expected about {w}");
            }
            // The pass with a final convolution, with and without quantization.
            let out = Blocked::new(2, dims, [0; 3], 1);
            for quantizer in [None, Some(q)] {
                let head = Head { weights: &head_weights, bias: &[0.5, -1.0], quantizer };
                let mut y = vec![0.0; out.len()];
                apply::apply_head(isa, &terms, c, activation, &head, &mut y, &out).unwrap();
                for (i, got) in dense(&y, &out).iter().enumerate() {
                    let (o, voxel) = (i / n, i % n);
                    let (mut sum, mut tolerance) = (f64::from([0.5f32, -1.0][o]), 1e-3);
                    for ch in 0..c {
                        let v = want[ch * n + voxel];
                        let weight = f64::from(head_weights[o * c + ch]);
                        match quantizer {
                            None => { sum += f64::from(v) * weight; tolerance += f64::from(far(v)) * weight.abs(); }
                            Some(q) => {
                                sum += (f64::from(quantized(v, q)) - 90.0) * weight;
                                let spread = quantized(v + far(v), q) - quantized(v - far(v), q);
                                tolerance += f64::from(spread) * weight.abs();
                            }
                        }
                    }
                    prop_assert!((f64::from(*got) - sum).abs() <= tolerance + 1e-5 * sum.abs(), "{isa}: {got}, expected {sum}");
                }
            }
        }
    }

    #[test]
    fn moments_of_bytes_and_f16_match_double_precision(c in 5usize..40, h in 1usize..40, w in 1usize..40, seed in any::<u64>()) {
        let n = h * w;
        let x = bytes(c * n, seed);
        let layout = Blocked::new(c, [1, h, w], [0, 1, 1], 16);
        let small = packed(&x, &layout, 7);
        let halves: Vec<u16> = small.iter().map(|v| f16::from_f32(f32::from(*v)).to_bits()).collect();
        for isa in isas() {
            for source in [Source::U8(&small, &layout), Source::F16(&halves, &layout)] {
                for (ch, (mean, variance)) in norm::moments(isa, &source).unwrap().iter().enumerate() {
                    let own = &x[ch * n..(ch + 1) * n];
                    let m = own.iter().map(|v| f64::from(*v)).sum::<f64>() / n as f64;
                    let v = own.iter().map(|v| (f64::from(*v) - m).powi(2)).sum::<f64>() / n as f64;
                    prop_assert!((m - mean).abs() < 1e-3 && (v - variance).abs() < 1e-3 * (1.0 + v), "{isa}: {mean} {m} {variance} {v}");
                }
            }
        }
    }

    #[test]
    fn byte_resize_pooling_and_tables_match_naive_loops(c in 1usize..20, h in 2usize..7, w in 2usize..9, seed in any::<u64>()) {
        let x = bytes(c * 2 * h * w, seed);
        let layout = Blocked::new(c, [2, h, w], [0, 1, 1], narrow_block(c));
        let input = packed(&x, &layout, 200);
        let at = |ch: usize, z: usize, y: usize, x_: usize| x[((ch * 2 + z) * h + y) * w + x_];
        let shape = ConvShape { kernel: [1, 3, 3], stride: [1, 2, 2], dilation: [1; 3], pad_before: [0, 1, 1] };
        let pooled = Blocked::new(c, [2, (h - 1) / 2 + 1, (w - 1) / 2 + 1], [0; 3], layout.block);
        let twice = Blocked::new(c, [2, 2 * h, 2 * w], [1, 0, 1], layout.block);
        let table = |n: usize, k: usize| (0..n * k).map(|i| resize::Tap { low: i / k, high: i / k, weight: 0.0 }).collect::<Vec<_>>();
        let tables = [table(2, 1), table(h, 2), table(w, 2)];
        let mut up = vec![0; twice.len()];
        resize::pick_bytes(&tables, &input, &layout, &mut up, &twice).unwrap();
        for (i, got) in unpacked(&up, &twice).iter().enumerate() {
            let (xx, yy, z, ch) = (i % (2 * w), i / (2 * w) % (2 * h), i / (4 * h * w) % 2, i / (8 * h * w));
            prop_assert_eq!(*got, at(ch, z, yy / 2, xx / 2));
        }
        let inverted: [u8; 256] = std::array::from_fn(|i| 255 - i as u8);
        let mut other = vec![0; layout.len()];
        pointwise::translate(&input, &layout, &inverted, &mut other, &layout).unwrap();
        prop_assert!(unpacked(&other, &layout).iter().zip(&x).all(|(g, v)| *g == 255 - v));
        for isa in isas() {
            let mut y = vec![0; pooled.len()];
            pool::max_bytes(isa, &shape, &input, &layout, &mut y, &pooled).unwrap();
            for (i, got) in unpacked(&y, &pooled).iter().enumerate() {
                let [_, ph, pw] = pooled.dims;
                let (ox, oy, z, ch) = (i % pw, i / pw % ph, i / (pw * ph) % 2, i / (2 * pw * ph));
                let rows = (2 * oy).saturating_sub(1)..(2 * oy + 2).min(h);
                let best = rows.flat_map(|yy| ((2 * ox).saturating_sub(1)..(2 * ox + 2).min(w)).map(move |xx| (yy, xx)));
                prop_assert_eq!(*got, best.map(|(yy, xx)| at(ch, z, yy, xx)).max().unwrap());
            }
        }
    }

    #[test]
    fn planes_are_quantized_and_dequantized(c in 1usize..4, h in 1usize..7, w in 1usize..30, zero in any::<u8>(), seed in any::<u64>()) {
        let x = noise(c * h * w, seed);
        let planes = Blocked::new(c, [1, h, w], [1, 0, 2], 1);
        let blocks = Blocked::new(c, [1, h, w], [0, 1, 1], 4);
        let q = Quantizer::new(1.0 / 128.0, zero);
        for isa in isas() {
            let mut small = packed(&vec![zero; c * h * w], &blocks, zero);
            reorder::quantize_planes(isa, &common::blocked(&x, &planes), &planes, q, &mut small, &blocks).unwrap();
            prop_assert_eq!(unpacked(&small, &blocks), x.iter().map(|v| quantized(*v, q)).collect::<Vec<_>>());
        }
        let isa = cytoscope_kernels::Isa::detect();
        let mut small = packed(&vec![zero; c * h * w], &blocks, zero);
        reorder::quantize_planes(isa, &common::blocked(&x, &planes), &planes, q, &mut small, &blocks).unwrap();
        let got = unpacked(&small, &blocks);
        prop_assert_eq!(&got, &x.iter().map(|v| quantized(*v, q)).collect::<Vec<_>>());
        let mut back = vec![0.0; planes.len()];
        reorder::dequantize_planes(&small, &blocks, 1.0 / 128.0, zero, &mut back, &planes).unwrap();
        let want: Vec<f32> = got.iter().map(|b| (f32::from(*b) - f32::from(zero)) / 128.0).collect();
        close(&dense(&back, &planes), &want, 1e-6);
    }
}

#[test]
fn largest_products_are_summed_exactly() {
    // All inputs are 255, and all weights of an output channel are the same.
    let (ci, kernel) = (32, [3, 3, 3]);
    let (from, to) = (Blocked::new(ci, [3; 3], [0; 3], 16), Blocked::new(48, [1; 3], [0; 3], 16));
    let of = WeightShape::dense(48, ci, 27);
    let values: Vec<i8> = (0..48).map(|o| [-128, 127, -65, 64, -64, 1][o % 6]).collect();
    let weights: Vec<i8> = values.iter().flat_map(|v| std::iter::repeat_n(*v, ci * 27)).collect();
    let input = packed(&vec![255; ci * 27], &from, 0);
    let shape = ConvShape { kernel, stride: [1; 3], dilation: [1; 3], pad_before: [0; 3] };
    for isa in isas() {
        let weights = PackedConvInt8::new(isa, &weights, 0, of, 16).unwrap();
        let mut sums = vec![0.0; to.len()];
        conv::conv_int8(isa, &input, &from, &weights, &shape, &Finish::default(), Target::F32(&mut sums), &to).unwrap();
        let want: Vec<f32> = values.iter().map(|v| 255.0 * f32::from(*v) * (ci * 27) as f32).collect();
        assert_eq!(dense(&sums, &to), want, "{isa}");
    }
}

#[test]
fn weights_whose_sums_could_overflow_or_for_unknown_blocks_are_errors() {
    let of = WeightShape::dense(16, 65_536, 1);
    let isa = cytoscope_kernels::Isa::detect();
    let refused = PackedConvInt8::new(isa, &vec![127; of.count()], 0, of, 16);
    assert!(refused.unwrap_err().to_string().contains("expected at most 2147483647"));
    let of = WeightShape::dense(16, 16, 1);
    let refused = PackedConvInt8::new(isa, &vec![1; of.count()], 0, of, 1);
    assert!(refused.unwrap_err().to_string().contains("expected 4 or 16, got 1"));
}

#[test]
fn nan_is_quantized_to_zero() {
    let layout = Blocked::new(16, [1, 1, 2], [0; 3], 16);
    let x = vec![f32::NAN; layout.len()];
    let (ones, zeros) = (vec![1.0; 16], vec![0.0; 16]);
    for isa in isas() {
        let mut y = vec![9u8; layout.len()];
        let term = Term { source: Source::F32(&x, &layout), scale: &ones, shift: &zeros };
        let q = Quantizer { inverse_scale: 1.0, zero_point: 100 };
        apply::apply(isa, &[term], Activation::None, Target::U8(&mut y, q), &layout).unwrap();
        assert!(y.iter().all(|b| *b == 0), "{isa}: {y:?}");
    }
}
