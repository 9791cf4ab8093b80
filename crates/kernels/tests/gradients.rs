//! Every training kernel of every instruction set this machine has, against plain loops in double precision.

mod common;

use common::{blocked, close, dense, isas, noise, out_dims};
use cytoscope_kernels::conv::ConvShape;
use cytoscope_kernels::{Blocked, train};
use proptest::prelude::*;

/// Calls `f(o, i, tap, output voxel, input voxel)` for every product of a convolution.
fn products(
    [co, ci]: [usize; 2],
    dims: [usize; 3],
    out: [usize; 3],
    s: &ConvShape,
    mut f: impl FnMut(usize, usize, usize, usize, usize),
) {
    let index = |p: [usize; 3], n: [usize; 3]| (p[0] * n[1] + p[1]) * n[2] + p[2];
    for p in (0..out.iter().product()).map(|i: usize| [i / out[1] / out[2], i / out[2] % out[1], i % out[2]]) {
        for t in 0..s.kernel.iter().product() {
            let k = [t / (s.kernel[1] * s.kernel[2]), t / s.kernel[2] % s.kernel[1], t % s.kernel[2]];
            let q = [0, 1, 2].map(|a| (p[a] * s.stride[a] + k[a] * s.dilation[a]).wrapping_sub(s.pad_before[a]));
            if (0..3).any(|a| q[a] >= dims[a]) {
                continue;
            }
            for o in 0..co {
                for i in 0..ci {
                    f(o, i, t, index(p, out), index(q, dims));
                }
            }
        }
    }
}

prop_compose! {
    /// A convolution: channels, extent, shape, extent of the output.
    fn convolutions()(
        ci in prop_oneof![1usize..4, 14usize..40], co in prop_oneof![1usize..4, 14usize..40],
        d in 1usize..5, h in 1usize..6, w in 1usize..40, k in 0usize..7, stride in 0usize..4, dilation in 1usize..3, pad in 0usize..3,
    ) -> Option<([usize; 2], [usize; 3], ConvShape, [usize; 3])> {
        let kernel = [[1, 1, 1], [3, 3, 3], [1, 3, 3], [1, 2, 5], [2, 2, 2], [1, 2, 2], [3, 1, 3]][k];
        let stride = [[1, 1, 1], [2, 2, 2], [1, 2, 2], [2, 1, 3]][stride];
        let pad_before = kernel.map(|k| pad.min(k - 1));
        let shape = ConvShape { kernel, stride, dilation: [1, dilation, dilation], pad_before };
        out_dims([d, h, w], &shape).map(|out| ([co, ci], [d, h, w], shape, out))
    }
}

fn block_of(channels: usize) -> usize {
    if channels < 4 { 1 } else { 16 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn weight_gradients_equal_plain_loops(conv in convolutions(), extra in 0usize..2, seed in any::<u64>()) {
        let Some(([co, ci], dims, shape, out)) = conv else { return Ok(()) };
        let taps: usize = shape.kernel.iter().product();
        let (n_in, n_out): (usize, usize) = (dims.iter().product(), out.iter().product());
        let (x, g) = (noise(ci * n_in, seed), noise(co * n_out, seed ^ 1));
        let start = noise(co * ci * taps, seed ^ 2);
        let mut want: Vec<f64> = start.iter().map(|v| f64::from(*v)).collect();
        products([co, ci], dims, out, &shape, |o, i, t, p, q| {
            want[(o * ci + i) * taps + t] += f64::from(g[o * n_out + p]) * f64::from(x[i * n_in + q]);
        });
        let want: Vec<f32> = want.iter().map(|v| *v as f32).collect();
        let in_layout = Blocked::new(ci, dims, shape.pad_before.map(|p| p + extra), block_of(ci));
        let out_layout = Blocked::new(co, out, [extra, 0, 1], block_of(co));
        let (x, g) = (blocked(&x, &in_layout), blocked(&g, &out_layout));
        for isa in isas() {
            let mut got = start.clone();
            train::conv_weight_gradient(isa, &x, &in_layout, &g, &out_layout, &shape, &mut got).unwrap();
            close(&got, &want, 5e-5);
        }
    }

    #[test]
    fn input_gradients_equal_plain_loops(conv in convolutions(), extra in 0usize..2, accumulate in any::<bool>(), seed in any::<u64>()) {
        let Some(([co, ci], dims, shape, out)) = conv else { return Ok(()) };
        let taps: usize = shape.kernel.iter().product();
        let (n_in, n_out): (usize, usize) = (dims.iter().product(), out.iter().product());
        let (weights, g) = (noise(co * ci * taps, seed), noise(co * n_out, seed ^ 1));
        let start = noise(ci * n_in, seed ^ 2);
        let mut want: Vec<f64> = start.iter().map(|v| if accumulate { f64::from(*v) } else { 0.0 }).collect();
        products([co, ci], dims, out, &shape, |o, i, t, p, q| {
            want[i * n_in + q] += f64::from(g[o * n_out + p]) * f64::from(weights[(o * ci + i) * taps + t]);
        });
        let want: Vec<f32> = want.iter().map(|v| *v as f32).collect();
        let in_layout = Blocked::new(ci, dims, [0, extra, 1], block_of(ci));
        for isa in isas() {
            let packed = train::InputGradient::new(isa, &weights, [co, ci], &shape, block_of(co)).unwrap();
            let border = packed.border(dims, out);
            let out_layout = Blocked::new(co, out, border.map(|b| b + extra), block_of(co));
            let g = blocked(&g, &out_layout);
            let mut got = blocked(&start, &in_layout);
            train::conv_input_gradient(isa, &g, &out_layout, &packed, accumulate, &mut got, &in_layout).unwrap();
            close(&dense(&got, &in_layout), &want, 5e-5);
            // Borders and spare channels stay zeros.
            let kept = got.iter().filter(|v| **v != 0.0).count();
            prop_assert!(kept <= ci * n_in);
        }
    }
}

#[test]
fn sums_do_not_depend_on_the_number_of_threads() {
    let shape = ConvShape { kernel: [3; 3], stride: [1; 3], dilation: [1; 3], pad_before: [1; 3] };
    let layout = Blocked::new(16, [20, 30, 41], [1; 3], 16);
    let (x, g) = (noise(16 * layout.voxels(), 1), noise(16 * layout.voxels(), 2));
    let (x, g) = (blocked(&x, &layout), blocked(&g, &layout));
    for isa in isas() {
        let of_threads = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut gradient = vec![0.0; 16 * 16 * 27];
            pool.install(|| train::conv_weight_gradient(isa, &x, &layout, &g, &layout, &shape, &mut gradient)).unwrap();
            gradient
        };
        let one = of_threads(1);
        assert!(of_threads(2) == one && of_threads(5) == one);
    }
}
