//! Convolutions with products of bf16 values, compared with naive loops over rounded inputs and weights.

mod common;

use common::{blocked, close, dense, isas, naive_conv, noise, out_dims};
use cytoscope_kernels::conv::{self, Activation, ConvShape, Finish, PackedConvBf16, Target, WeightShape};
use cytoscope_kernels::{Blocked, Isa, KernelError};
use half::bf16;
use proptest::prelude::*;

/// Returns the instruction sets that multiply bf16, and reports a skipped test if there are none.
fn isas_with_bf16() -> Vec<Isa> {
    let found: Vec<Isa> = isas().into_iter().filter(|isa| isa.multiplies_bf16()).collect();
    if found.is_empty() {
        cytoscope_testkit::skip("this machine has no instructions for bf16");
    }
    found
}

fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn convolution_matches_naive_loops_over_rounded_values(
        ci in 5usize..36, co in 5usize..50, d in 1usize..5, h in 1usize..6, w in prop_oneof![1usize..40, 60usize..150],
        k in 0usize..5, stride in 1usize..3, dilation in 1usize..3, pad in 0usize..3, extra in 0usize..2, leaky in any::<bool>(),
        residual in any::<bool>(), seed in any::<u64>(),
    ) {
        let kernel = [[3, 1, 1], [3, 3, 3], [1, 3, 3], [1, 2, 5], [1, 2, 8]][k];
        let pad_before = kernel.map(|k| pad.min(k - 1));
        let shape = ConvShape { kernel, stride: [stride; 3], dilation: [1, dilation, dilation], pad_before };
        let dims = [d, h, w];
        let Some(out) = out_dims(dims, &shape) else { return Ok(()) };
        let (x, bias) = (noise(ci * d * h * w, seed), noise(co, seed ^ 2));
        let of = WeightShape::dense(co, ci, kernel.iter().product());
        let weights = noise(of.count(), seed ^ 1);
        let in_layout = Blocked::new(ci, dims, pad_before.map(|p| p + extra), 16);
        let out_layout = Blocked::new(co, out, [extra, 0, 1], 16);
        let res_layout = Blocked::new(co, out, [0, 1, extra], 16);
        let res = noise(co * out.iter().product::<usize>(), seed ^ 3);
        let voxels: usize = out.iter().product();
        let mut want: Vec<f32> = naive_conv(&rounded(&x), dims, &rounded(&weights), of, &shape, out)
            .iter()
            .enumerate()
            .map(|(i, sum)| (sum + f64::from(bias[i / voxels])) as f32)
            .collect();
        if residual { want.iter_mut().zip(&res).for_each(|(y, r)| *y += r); }
        if leaky { want.iter_mut().for_each(|y| if *y < 0.0 { *y *= 0.25 }); }
        let activation = if leaky { Activation::Leaky { slope: 0.25 } } else { Activation::None };
        let packed_res = blocked(&res, &res_layout);
        let mut packed_input = blocked(&x, &in_layout);
        // What is stored in the channels that the last block lacks does not matter.
        let unused = 16 * in_layout.blocks() - ci;
        let last = (in_layout.blocks() - 1) * in_layout.block_stride();
        packed_input[last..].chunks_mut(16).for_each(|voxel| voxel[16 - unused..].fill(f32::NAN));
        for isa in isas_with_bf16() {
            let packed = PackedConvBf16::new(isa, &weights, Some(&bias), of, &shape, 16).unwrap();
            let mut y = vec![7.5; out_layout.len()];
            let residual = residual.then_some((&packed_res[..], &res_layout));
            let end = Finish { residual, activation, ..Finish::default() };
            let to = Target::F32(&mut y);
            conv::conv_bf16(isa, &packed_input, &in_layout, &packed, &shape, &end, to, &out_layout).unwrap();
            close(&dense(&y, &out_layout), &want, 2e-5);
        }
    }

    #[test]
    fn convolution_in_a_ring_matches_that_of_the_slices_in_order(
        ci in 14usize..36, co in 5usize..40, d in 1usize..5, ring in 3usize..9, first in 0usize..20, seed in any::<u64>(),
    ) {
        let (kernel, plane) = ([3, 3, 3], 5 * 41);
        let shape = ConvShape { kernel, stride: [1; 3], dilation: [1; 3], pad_before: [0, 1, 1] };
        let ring_layout = Blocked::new(ci, [ring, 5, 41], [0, 1, 1], 16);
        let layout = Blocked::new(ci, [d + 2, 5, 41], [0, 1, 1], 16);
        let out_layout = Blocked::new(co, [d, 5, 41], [0, 1, 1], 16);
        let values = noise(ci * ring * plane, seed);
        let in_order: Vec<f32> = (0..ci)
            .flat_map(|c| (0..d + 2).map(move |z| (c * ring + (first + z) % ring) * plane))
            .flat_map(|at| values[at..at + plane].to_vec())
            .collect();
        let of = WeightShape::dense(co, ci, 27);
        let weights = noise(of.count(), seed ^ 1);
        let end = Finish::default();
        for isa in isas_with_bf16() {
            let packed = PackedConvBf16::new(isa, &weights, None, of, &shape, 16).unwrap();
            let (mut y, mut want) = (vec![7.5; out_layout.len()], vec![7.5; out_layout.len()]);
            let input = blocked(&in_order, &layout);
            conv::conv_bf16(isa, &input, &layout, &packed, &shape, &end, Target::F32(&mut want), &out_layout).unwrap();
            let input = blocked(&values, &ring_layout);
            let to = Target::F32(&mut y);
            conv::conv_bf16_in_ring(isa, &input, &ring_layout, first, &packed, &shape, &end, to, &out_layout).unwrap();
            prop_assert!(y == want, "{isa}: ring of {ring}, {} slices from {first}", d + 2);
        }
    }
}

#[test]
fn convolutions_without_kernels_are_refused() {
    let (of, shape) = (
        WeightShape::dense(16, 16, 9),
        ConvShape { kernel: [1, 3, 3], stride: [1; 3], dilation: [1; 3], pad_before: [0, 1, 1] },
    );
    let weights = vec![0.5; of.count()];
    for isa in isas() {
        let new = |of: WeightShape, shape: ConvShape, block: usize| {
            PackedConvBf16::new(isa, &weights[..of.count()], None, of, &shape, block)
        };
        assert_eq!(new(of, shape, 16).is_ok(), isa.multiplies_bf16());
        for (of, shape, block) in [
            (of, shape, 1),
            (WeightShape::dense(4, 16, 9), shape, 16),
            (WeightShape { groups: 16, ..of }, shape, 16),
            (of, ConvShape { stride: [1, 1, 3], ..shape }, 16),
            (of, ConvShape { kernel: [1, 1, 9], ..shape }, 16),
        ] {
            assert!(matches!(new(of, shape, block), Err(KernelError::Mismatch { .. })), "{of:?} {shape:?} {block}");
        }
    }
    for isa in isas_with_bf16() {
        let packed = PackedConvBf16::new(isa, &weights, None, of, &shape, 16).unwrap();
        let layout = Blocked::new(16, [1, 5, 7], [0, 1, 1], 16);
        let (x, mut y) = (vec![0.5; layout.len()], vec![0.0; layout.len()]);
        let dilated = ConvShape { dilation: [1, 1, 2], ..shape };
        let far = Blocked::new(16, [1, 5, 3], [0, 1, 1], 16);
        let to = Target::F32(&mut y[..far.len()]);
        let refused = conv::conv_bf16(isa, &x, &layout, &packed, &dilated, &Finish::default(), to, &far).unwrap_err();
        assert!(matches!(refused, KernelError::Mismatch { .. }), "packed for adjacent taps: {refused}");
    }
}
