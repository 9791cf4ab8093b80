//! Float kernels of all available instruction sets, compared with naive loops.

mod common;

use common::{blocked, close, dense, isas, naive_conv, noise, out_dims, scattered};
use cytoscope_kernels::apply::{self, Source, Term};
use cytoscope_kernels::conv::{
    self, Activation, ConvShape, Finish, PackedConv, Quantizer, Target, Transposed, TransposedShape, WeightShape,
};
use cytoscope_kernels::{Blocked, Isa, norm, pool, reorder};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn convolution_matches_naive_loops(
        ci in prop_oneof![1usize..5, 14usize..36], co in 1usize..50, d in 1usize..5, h in 1usize..6, w in 1usize..40,
        k in 0usize..4, stride in 1usize..4, dilation in 1usize..3, pad in 0usize..3, extra in 0usize..2, leaky in any::<bool>(),
        residual in any::<bool>(), planar_out in any::<bool>(), groups in 1usize..5, seed in any::<u64>(),
    ) {
        let kernel = [[1, 1, 1], [3, 3, 3], [1, 3, 3], [1, 2, 5]][k];
        let pad_before = kernel.map(|k| pad.min(k - 1));
        let shape = ConvShape { kernel, stride: [stride.min(2), stride, stride], dilation: [1, dilation, dilation], pad_before };
        let dims = [d, h, w];
        let Some(out) = out_dims(dims, &shape) else { return Ok(()) };
        // Groups if the channels allow them; 4 stands for depthwise.
        let (co, groups) = match groups {
            4 => (ci, ci),
            g if ci % g == 0 && co % g == 0 => (co, g),
            _ => (co, 1),
        };
        let x = noise(ci * d * h * w, seed);
        let of = WeightShape { out_channels: co, in_channels: ci, taps: kernel.iter().product(), groups };
        let weights = noise(of.count(), seed ^ 1);
        let bias = noise(co, seed ^ 2);
        let block = if ci < 5 { 1 } else { 16 };
        let in_layout = Blocked::new(ci, dims, pad_before.map(|p| p + extra), block);
        let out_block = if planar_out && !residual { 1 } else { 16 };
        let out_layout = Blocked::new(co, out, [extra, 0, 1], out_block);
        let res_layout = Blocked::new(co, out, [0, 1, extra], 16);
        let res = noise(co * out.iter().product::<usize>(), seed ^ 3);
        let sums = naive_conv(&x, dims, &weights, of, &shape, out);
        let voxels: usize = out.iter().product();
        let mut want: Vec<f32> = sums.iter().enumerate().map(|(i, s)| (s + f64::from(bias[i / voxels])) as f32).collect();
        if residual { want.iter_mut().zip(&res).for_each(|(y, r)| *y += r); }
        if leaky { want.iter_mut().for_each(|y| if *y < 0.0 { *y *= 0.25 }); }
        let activation = if leaky { Activation::Leaky { slope: 0.25 } } else { Activation::None };
        let packed_input = blocked(&x, &in_layout);
        let packed_res = blocked(&res, &res_layout);
        for isa in isas() {
            let packed = PackedConv::new(isa, &weights, Some(&bias), of, block).unwrap();
            let mut y = vec![7.5; out_layout.len()];
            let residual = residual.then_some((&packed_res[..], &res_layout));
            let end = Finish { residual, activation, ..Finish::default() };
            let to = Target::F32(&mut y);
            conv::conv(isa, &packed_input, &in_layout, &packed, &shape, &end, to, &out_layout).unwrap();
            close(&dense(&y, &out_layout), &want, 2e-5);
        }
    }

    #[test]
    fn convolution_in_a_ring_matches_that_of_the_slices_in_order(
        ci in prop_oneof![1usize..5, 14usize..36], co in 5usize..40, d in 1usize..5, ring in 1usize..9, first in 0usize..20,
        k in 0usize..3, stride in 1usize..3, dilation in 1usize..3, leaky in any::<bool>(), depthwise in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let kernel = [[1, 1, 1], [3, 3, 3], [2, 1, 3]][k];
        let shape = ConvShape { kernel, stride: [stride, 1, stride], dilation: [dilation, 1, 1], pad_before: [0, 1.min(kernel[1] - 1), 1] };
        let ring = ring.max((kernel[0] - 1) * dilation + 1);
        let read = (d - 1) * stride + (kernel[0] - 1) * dilation + 1;
        let (height, width) = (5, 21);
        let Some(out) = out_dims([read, height, width], &shape) else { return Ok(()) };
        let (co, groups) = if depthwise && ci > 4 { (ci, ci) } else { (co, 1) };
        let block = if ci < 5 { 1 } else { 16 };
        let halo = [0, shape.pad_before[1], 1];
        let ring_layout = Blocked::new(ci, [ring, height, width], halo, block);
        let layout = Blocked::new(ci, [read, height, width], halo, block);
        let out_layout = Blocked::new(co, out, [0, 1, 1], 16);
        let plane = height * width;
        let values = noise(ci * ring * plane, seed);
        let in_order: Vec<f32> = (0..ci)
            .flat_map(|c| (0..read).map(move |z| (c * ring + (first + z) % ring) * plane))
            .flat_map(|at| values[at..at + plane].to_vec())
            .collect();
        let of = WeightShape { out_channels: co, in_channels: ci, taps: kernel.iter().product(), groups };
        let (weights, bias) = (noise(of.count(), seed ^ 1), noise(co, seed ^ 2));
        let activation = if leaky { Activation::Leaky { slope: 0.25 } } else { Activation::None };
        let end = Finish { activation, ..Finish::default() };
        for isa in isas() {
            let packed = PackedConv::new(isa, &weights, Some(&bias), of, block).unwrap();
            let (mut y, mut want) = (vec![7.5; out_layout.len()], vec![7.5; out_layout.len()]);
            let input = blocked(&in_order, &layout);
            conv::conv(isa, &input, &layout, &packed, &shape, &end, Target::F32(&mut want), &out_layout).unwrap();
            let input = blocked(&values, &ring_layout);
            let to = Target::F32(&mut y);
            conv::conv_in_ring(isa, &input, &ring_layout, first, &packed, &shape, &end, to, &out_layout).unwrap();
            prop_assert!(y == want, "{isa}: ring of {ring}, {read} slices from {first}");
            let short = ConvShape { dilation: [ring, 1, 1], ..shape };
            let to = Target::F32(&mut y);
            let refused = conv::conv_in_ring(isa, &input, &ring_layout, first, &packed, &short, &end, to, &out_layout);
            prop_assert_eq!(refused.is_err(), kernel[0] > 1, "a window of more slices than the ring has");
        }
    }

    #[test]
    fn transposed_convolution_matches_naive_loops(
        ci in 1usize..40, co in 1usize..40, d in 1usize..4, h in 1usize..5, w in 1usize..20, kd in 1usize..3, khw in 1usize..4, seed in any::<u64>(),
    ) {
        let kernel = [kd, khw, khw];
        let taps = kd * khw * khw;
        let x = noise(ci * d * h * w, seed);
        let weights = noise(ci * co * taps, seed ^ 1);
        let out = [d * kd, h * khw, w * khw];
        let bias = noise(co, seed ^ 2);
        let voxels: usize = out.iter().product();
        let mut want: Vec<f32> = (0..co * voxels).map(|i| bias[i / voxels]).collect();
        for o in 0..co { for i in 0..ci { for z in 0..out[0] { for y in 0..out[1] { for xx in 0..out[2] {
            let t = ((z % kd) * khw + y % khw) * khw + xx % khw;
            want[((o * out[0] + z) * out[1] + y) * out[2] + xx] +=
                x[((i * d + z / kd) * h + y / khw) * w + xx / khw] * weights[(i * co + o) * taps + t];
        }}}}}
        let block = if ci < 5 { 1 } else { 16 };
        let in_layout = Blocked::new(ci, [d, h, w], [1, 0, 1], block);
        let out_layout = Blocked::new(co, out, [1, 1, 1], if seed % 3 == 0 { 1 } else { 16 });
        let input = blocked(&x, &in_layout);
        for isa in isas() {
            let packed = Transposed::new(isa, &weights, Some(&bias), [ci, co], &TransposedShape::exact(kernel), block).unwrap();
            let mut y = vec![0.0; out_layout.len()];
            conv::conv_transpose(isa, &input, &in_layout, &packed, [0; 3], &Finish::default(), Target::F32(&mut y), &out_layout).unwrap();
            close(&dense(&y, &out_layout), &want, 2e-5);
        }
    }

    #[test]
    fn convolution_of_blocks_to_few_planes_matches_naive_loops(
        ci in 5usize..70, co in 1usize..5, d in 1usize..4, h in 1usize..5, w in 1usize..40, slope in 0f32..1.0,
        kernel in prop::array::uniform3(1usize..4), dilation in prop::array::uniform3(1usize..3), seed in any::<u64>(),
    ) {
        let of = WeightShape::dense(co, ci, kernel.iter().product());
        let pad_before = [0, 1, 2].map(|a| (kernel[a] - 1) * dilation[a] / 2);
        let shape = ConvShape { kernel, stride: [1; 3], dilation, pad_before };
        let (x, weights, bias) = (noise(ci * d * h * w, seed), noise(of.count(), seed ^ 1), noise(co, seed ^ 2));
        let sums = naive_conv(&x, [d, h, w], &weights, of, &shape, [d, h, w]);
        let voxels = d * h * w;
        let want: Vec<f32> = sums.iter().enumerate().map(|(i, s)| *s as f32 + bias[i / voxels])
            .map(|v| if v < 0.0 { v * slope } else { v }).collect();
        let in_layout = Blocked::new(ci, [d, h, w], [2, 2, 3], 16);
        let out_layout = Blocked::new(co, [d, h, w], [0, 1, 1], 1);
        let input = blocked(&x, &in_layout);
        let finish = Finish { activation: Activation::Leaky { slope }, ..Finish::default() };
        for isa in isas() {
            let packed = PackedConv::new(isa, &weights, Some(&bias), of, 16).unwrap();
            let mut y = vec![0.0; out_layout.len()];
            conv::conv(isa, &input, &in_layout, &packed, &shape, &finish, Target::F32(&mut y), &out_layout).unwrap();
            close(&dense(&y, &out_layout), &want, 2e-5);
        }
    }

    #[test]
    fn transposed_convolution_with_overlaps_and_cropping_matches_naive_loops(
        channels in prop::array::uniform2(1usize..40), dims in prop::array::uniform3(1usize..6), width in 1usize..20,
        stride in prop::array::uniform3(1usize..4), more in prop::array::uniform3(0usize..4),
        crop in prop::array::uniform6(0usize..4), seed in any::<u64>(),
    ) {
        let ([ci, co], dims) = (channels, [dims[0], dims[1], width]);
        let kernel = [0, 1, 2].map(|a| stride[a] + more[a]);
        let pad_before = [0, 1, 2].map(|a| crop[a].min(kernel[a] - 1));
        // A kernel of the stride's length fills its output, or is cropped before its first voxel, too.
        let fills = kernel == stride && pad_before == [0; 3];
        let out = [0, 1, 2].map(|a| {
            let full = (dims[a] - 1) * stride[a] + kernel[a];
            if fills {
                return full;
            }
            // Cropped, or longer than the input reaches (output padding).
            (full + usize::from(crop[3 + a] == 3)).saturating_sub(pad_before[a] + crop[3 + a] % 3).max(1)
        });
        let taps: usize = kernel.iter().product();
        let (x, weights, bias) =
            (noise(ci * dims.iter().product::<usize>(), seed), noise(ci * co * taps, seed ^ 1), noise(co, seed ^ 2));
        let want = scattered(&x, &weights, [ci, co], dims, kernel, stride, pad_before, out, Some(&bias));
        let block = if ci < 5 { 1 } else { 16 };
        let shape = TransposedShape { kernel, stride, pad_before };
        let in_layout = Blocked::new(ci, dims, shape.border(dims, out), block);
        let out_layout = Blocked::new(co, out, [1, 1, 1], if seed % 3 == 0 { 1 } else { 16 });
        let input = blocked(&x, &in_layout);
        for isa in isas() {
            let packed = Transposed::new(isa, &weights, Some(&bias), [ci, co], &shape, block).unwrap();
            let mut y = vec![0.0; out_layout.len()];
            conv::conv_transpose(
                isa, &input, &in_layout, &packed, pad_before, &Finish::default(), Target::F32(&mut y), &out_layout,
            ).unwrap();
            close(&dense(&y, &out_layout), &want, 2e-5);
        }
    }

    #[test]
    fn moments_and_affine_match_double_precision(c in 1usize..40, d in 1usize..4, h in 1usize..5, w in 1usize..40, offset in -50f32..50.0, seed in any::<u64>()) {
        let dims = [d, h, w];
        let n = d * h * w;
        let x: Vec<f32> = noise(c * n, seed).iter().map(|v| v + offset).collect();
        let layout = Blocked::new(c, dims, [1, 1, 1], if c < 5 { 1 } else { 16 });
        let packed = blocked(&x, &layout);
        for isa in isas() {
            let moments = norm::channel_moments(isa, &packed, &layout).unwrap();
            for (channel, (mean, variance)) in moments.iter().enumerate() {
                let values = &x[channel * n..(channel + 1) * n];
                let m = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n as f64;
                let v = values.iter().map(|v| (f64::from(*v) - m).powi(2)).sum::<f64>() / n as f64;
                prop_assert!((m - mean).abs() < 1e-4 && (v - variance).abs() < 1e-4, "{m} {mean} {v} {variance}");
            }
            let (scale, shift) = (noise(c, seed ^ 4), noise(c, seed ^ 5));
            let mut y = packed.clone();
            norm::affine_in_place(isa, &mut y, &layout, &scale, &shift, Some((&packed, &layout)), Activation::Leaky { slope: 0.5 }).unwrap();
            let want: Vec<f32> = x.iter().enumerate().map(|(i, v)| {
                let y = v * scale[i / n] + shift[i / n] + v;
                if y < 0.0 { y * 0.5 } else { y }
            }).collect();
            close(&dense(&y, &layout), &want, 1e-5);
        }
    }

    #[test]
    fn max_pooling_ignores_padding(c in 1usize..20, h in 2usize..7, w in 2usize..9, seed in any::<u64>()) {
        let dims = [2, h, w];
        let x: Vec<f32> = noise(c * 2 * h * w, seed).iter().map(|v| v - 3.0).collect();
        let shape = ConvShape { kernel: [1, 3, 3], stride: [1, 2, 2], dilation: [1; 3], pad_before: [0, 1, 1] };
        let out = [2, (h - 1) / 2 + 1, (w - 1) / 2 + 1];
        let (in_layout, out_layout) = (Blocked::new(c, dims, [0, 1, 1], 16), Blocked::new(c, out, [0; 3], 16));
        for isa in isas() {
            let mut y = vec![0.0; out_layout.len()];
            pool::pool(isa, pool::Pool::Max, &shape, &blocked(&x, &in_layout), &in_layout, &mut y, &out_layout).unwrap();
            let got = dense(&y, &out_layout);
            for ch in 0..c { for z in 0..2 { for oy in 0..out[1] { for ox in 0..out[2] {
                let mut best = f32::NEG_INFINITY;
                for iy in (2 * oy).saturating_sub(1)..(2 * oy + 2).min(h) {
                    for ix in (2 * ox).saturating_sub(1)..(2 * ox + 2).min(w) {
                        best = best.max(x[((ch * 2 + z) * h + iy) * w + ix]);
                    }
                }
                prop_assert_eq!(got[((ch * 2 + z) * out[1] + oy) * out[2] + ox], best);
            }}}}
        }
    }
}

#[test]
fn mismatched_buffers_are_errors() {
    let layout = Blocked::new(16, [2, 2, 2], [0; 3], 16);
    let isa = Isa::detect();
    let weights = PackedConv::new(isa, &vec![0.0; 16 * 16 * 27], None, WeightShape::dense(16, 16, 27), 16).unwrap();
    let end = Finish::default();
    let shape = ConvShape { kernel: [3; 3], stride: [1; 3], dilation: [1; 3], pad_before: [1; 3] };
    let (x, mut y) = (vec![0.0; layout.len()], vec![0.0; layout.len()]);
    let narrow = conv::conv(isa, &x, &layout, &weights, &shape, &end, Target::F32(&mut y), &layout);
    assert!(narrow.unwrap_err().to_string().contains("border"));
    let short = conv::conv(isa, &x[1..], &layout, &weights, &shape, &end, Target::F32(&mut y), &layout);
    assert!(short.is_err());
    let doubles =
        Transposed::new(isa, &vec![0.0; 16 * 16 * 8], None, [16; 2], &TransposedShape::exact([2; 3]), 16).unwrap();
    let cropped = Blocked::new(16, [4, 4, 3], [0; 3], 16);
    let mut y = vec![0.0; cropped.len()];
    let cut = conv::conv_transpose(isa, &x, &layout, &doubles, [0; 3], &end, Target::F32(&mut y), &cropped);
    assert!(cut.unwrap_err().to_string().contains("output extent"));
    let of = WeightShape::dense(16, 16, 8);
    let unknown = PackedConv::new(isa, &vec![0.0; of.count()], None, of, 4);
    assert!(unknown.unwrap_err().to_string().contains("expected 1 or 16, got 4"));
    let unknown = Transposed::new(isa, &vec![0.0; of.count()], None, [16; 2], &TransposedShape::exact([2; 3]), 4);
    assert!(unknown.unwrap_err().to_string().contains("expected 1 or 16, got 4"));
}

/// The result of a norm is then NaN in all of the channel; a finite variance would give −∞, which a ReLU turns into 0.
#[test]
fn a_channel_with_an_infinite_value_has_no_variance() {
    let mut x = noise(12, 1);
    x[4] = f32::INFINITY;
    for block in [1, 16] {
        let layout = Blocked::new(2, [1, 2, 3], [1, 1, 1], block);
        for isa in isas() {
            let moments = norm::channel_moments(isa, &blocked(&x, &layout), &layout).unwrap();
            assert!(moments[0].1.is_nan() && moments[1].1.is_finite(), "{isa}, blocks of {block}: {moments:?}");
        }
    }
}

/// Added to channel `c` is value `c % 4`.
const ADDED: [f32; 4] = [f32::NEG_INFINITY, f32::NAN, f32::INFINITY, -100.0];

/// Checks a leaky ReLU of finite values to which [`ADDED`] was added.
fn assert_activated(y: &[f32], layout: &Blocked, slope: f32, what: &str) {
    let voxels = layout.voxels();
    for (i, got) in dense(y, layout).into_iter().enumerate() {
        let fits = match i / voxels % 4 {
            0 if slope == 0.0 => got == 0.0,
            0 => got == f32::NEG_INFINITY,
            1 => got.is_nan(),
            2 => got == f32::INFINITY,
            _ => got.is_finite() && got <= 0.0 && (got == 0.0) == (slope == 0.0),
        };
        assert!(fits, "{what}, slope {slope}, channel {}: {got}", i / voxels);
    }
}

/// ReLU of −∞ is 0, as in ONNX Runtime and PyTorch, and that of NaN is NaN, in all kernels that apply it last.
#[test]
fn relu_of_negative_infinity_is_zero_wherever_it_is_fused() {
    let dims = [1, 2, 21];
    let added = |channels: usize| -> Vec<f32> { (0..channels).map(|c| ADDED[c % 4]).collect() };
    for (isa, slope) in isas().into_iter().flat_map(|isa| [(isa, 0.0), (isa, 0.5)]) {
        let activation = Activation::Leaky { slope };
        // The kernels for blocks, from blocks to few planes, and for planes.
        for (ci, co, in_block, out_block) in [(18, 20, 16, 16), (18, 4, 16, 1), (2, 4, 1, 1)] {
            let (in_layout, out_layout) =
                (Blocked::new(ci, dims, [0, 1, 1], in_block), Blocked::new(co, dims, [0; 3], out_block));
            let shape = ConvShape { kernel: [1, 3, 3], stride: [1; 3], dilation: [1; 3], pad_before: [0, 1, 1] };
            let of = WeightShape::dense(co, ci, 9);
            let packed = PackedConv::new(isa, &noise(of.count(), 1), Some(&added(co)), of, in_block).unwrap();
            let (x, mut y) = (blocked(&noise(ci * 42, 2), &in_layout), vec![7.5; out_layout.len()]);
            let end = Finish { activation, ..Finish::default() };
            conv::conv(isa, &x, &in_layout, &packed, &shape, &end, Target::F32(&mut y), &out_layout).unwrap();
            assert_activated(&y, &out_layout, slope, &format!("{isa}, {ci} to {co} channels"));
        }
        for block in [1, 16] {
            let layout = Blocked::new(20, dims, [0, 1, 1], block);
            let (x, ones, shift) = (blocked(&noise(20 * 42, 3), &layout), [1.0; 20], added(20));
            for residual in [None, Some((&x[..], &layout))] {
                let (mut y, mut z) = (vec![7.5; layout.len()], x.clone());
                norm::affine(isa, &x, &layout, &ones, &shift, residual, activation, &mut y, &layout).unwrap();
                norm::affine_in_place(isa, &mut z, &layout, &ones, &shift, residual, activation).unwrap();
                assert_activated(&y, &layout, slope, &format!("{isa}, affine, blocks of {block}"));
                assert_activated(&z, &layout, slope, &format!("{isa}, affine in place, blocks of {block}"));
            }
        }
        let layout = Blocked::new(20, dims, [0, 1, 1], 16);
        let (x, ones, shift) = (blocked(&noise(20 * 42, 4), &layout), [1.0; 20], added(20));
        let terms = [Term { source: Source::F32(&x, &layout), scale: &ones, shift: &shift }];
        let (mut y, mut bytes) = (vec![7.5; layout.len()], vec![7; layout.len()]);
        apply::apply(isa, &terms, activation, Target::F32(&mut y), &layout).unwrap();
        assert_activated(&y, &layout, slope, &format!("{isa}, apply"));
        let to = Target::U8(&mut bytes, Quantizer { inverse_scale: 1.0, zero_point: 90 });
        apply::apply(isa, &terms, activation, to, &layout).unwrap();
        let mut quantized = vec![0; 20 * 42];
        reorder::unpack(&bytes, &layout, &mut quantized).unwrap();
        // Of −∞ and NaN.
        assert_eq!([quantized[0], quantized[42]], [if slope == 0.0 { 90 } else { 0 }, 0], "{isa}, slope {slope}");
    }
}

/// Channels of several groups share a block, which is multiplied as a whole, with weights of 0 between groups.
#[test]
fn infinite_values_of_a_group_do_not_reach_other_groups() {
    let shape = ConvShape { kernel: [1, 3, 3], stride: [1; 3], dilation: [1; 3], pad_before: [0, 1, 1] };
    let dims = [2, 4, 19];
    let voxels: usize = dims.iter().product();
    for (ci, co, groups, in_block) in
        [(6, 6, 3, 16), (40, 36, 4, 16), (8, 48, 4, 16), (36, 12, 6, 16), (4, 4, 4, 1), (4, 20, 2, 1), (20, 20, 20, 16)]
    {
        let of = WeightShape { out_channels: co, in_channels: ci, taps: 9, groups };
        let (mut x, weights, bias) = (noise(ci * voxels, 1), noise(of.count(), 2), noise(co, 3));
        x[7] = f32::INFINITY;
        x[(ci - 1) * voxels + 30] = f32::NAN;
        let sums = naive_conv(&x, dims, &weights, of, &shape, dims);
        let (in_layout, out_layout) = (Blocked::new(ci, dims, [0, 1, 1], in_block), Blocked::new(co, dims, [0; 3], 16));
        let input = blocked(&x, &in_layout);
        for isa in isas() {
            let packed = PackedConv::new(isa, &weights, Some(&bias), of, in_block).unwrap();
            let mut y = vec![7.5; out_layout.len()];
            let to = Target::F32(&mut y);
            conv::conv(isa, &input, &in_layout, &packed, &shape, &Finish::default(), to, &out_layout).unwrap();
            for (i, (got, sum)) in dense(&y, &out_layout).into_iter().zip(&sums).enumerate() {
                let want = *sum as f32 + bias[i / voxels];
                let is_same = got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() < 1e-4;
                assert!(is_same, "{isa}, {ci} to {co} channels, {groups} groups, value {i}: {got}, expected {want}");
            }
        }
    }
}
