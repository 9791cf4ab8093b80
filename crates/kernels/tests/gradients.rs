//! Training kernels of all available instruction sets, compared with naive loops in double precision.

mod common;

use common::{blocked, close, dense, isas, noise, out_dims};
use cytoscope_kernels::conv::{Activation, ConvShape};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
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
    /// A convolution: channels, input size, shape, output size.
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

fn block_size(channels: usize) -> usize {
    if channels < 4 { 1 } else { 16 }
}

/// Returns planes for few channels and blocks for many; for some seeds, planes or blocks for any number.
fn any_block(channels: usize, seed: u64) -> usize {
    match seed % 4 {
        0 => 1,
        1 => 16,
        _ => block_size(channels),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn weight_gradients_match_naive_loops(conv in convolutions(), extra in 0usize..2, seed in any::<u64>()) {
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
        let in_layout = Blocked::new(ci, dims, shape.pad_before.map(|p| p + extra), any_block(ci, seed));
        let out_layout = Blocked::new(co, out, [extra, 0, 1], any_block(co, seed / 4));
        let (x, g) = (blocked(&x, &in_layout), blocked(&g, &out_layout));
        for isa in isas() {
            let mut got = start.clone();
            train::conv_weight_gradient(isa, &x, &in_layout, &g, &out_layout, &shape, &mut got).unwrap();
            close(&got, &want, 5e-5);
        }
    }

    #[test]
    fn input_gradients_match_naive_loops(conv in convolutions(), extra in 0usize..2, accumulate in any::<bool>(), seed in any::<u64>()) {
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
        let in_layout = Blocked::new(ci, dims, [0, extra, 1], any_block(ci, seed));
        for isa in isas() {
            let packed = train::InputGradient::new(isa, &weights, [co, ci], &shape, any_block(co, seed / 4)).unwrap();
            let border = packed.border(dims, out);
            let out_layout = Blocked::new(co, out, border.map(|b| b + extra), any_block(co, seed / 4));
            let g = blocked(&g, &out_layout);
            let mut got = blocked(&start, &in_layout);
            train::conv_input_gradient(isa, &g, &out_layout, &packed, accumulate, &mut got, &in_layout).unwrap();
            close(&dense(&got, &in_layout), &want, 5e-5);
            // Borders and unused channels stay zero.
            let kept = got.iter().filter(|v| **v != 0.0).count();
            prop_assert!(kept <= ci * n_in);
        }
    }

    #[test]
    fn pool_gradients_match_naive_loops(conv in convolutions(), kind in 0usize..3, accumulate in any::<bool>(), seed in any::<u64>()) {
        let Some(([c, _], dims, shape, out)) = conv else { return Ok(()) };
        let kind = [Pool::Max, Pool::Average, Pool::AverageWithPadding][kind];
        let (n_in, n_out): (usize, usize) = (dims.iter().product(), out.iter().product());
        // Few distinct values, so that windows have several maxima.
        let x: Vec<f32> = noise(c * n_in, seed).iter().map(|v| (v * 3.0).round()).collect();
        let (g, start) = (noise(c * n_out, seed ^ 1), noise(c * n_in, seed ^ 2));
        let mut windows = vec![Vec::new(); n_out];
        products([1, 1], dims, out, &shape, |_, _, _, p, q| windows[p].push(q));
        let mut want: Vec<f64> = start.iter().map(|v| if accumulate { f64::from(*v) } else { 0.0 }).collect();
        for ch in 0..c {
            for (p, window) in windows.iter().enumerate() {
                let g = f64::from(g[ch * n_out + p]);
                let count = if kind == Pool::Average { window.len() } else { shape.kernel.iter().product() };
                if kind == Pool::Max {
                    let first = window.iter().copied().reduce(|a, b| if x[ch * n_in + b] > x[ch * n_in + a] { b } else { a });
                    if let Some(q) = first { want[ch * n_in + q] += g; }
                } else {
                    window.iter().for_each(|q| want[ch * n_in + q] += g / count as f64);
                }
            }
        }
        let want: Vec<f32> = want.iter().map(|v| *v as f32).collect();
        let (lx, lg) = (Blocked::new(c, dims, [1, 0, 1], block_size(c)), Blocked::new(c, out, [0, 1, 0], block_size(c)));
        let ld = Blocked::new(c, dims, [0, 1, 2], block_size(c));
        let (x, g) = (blocked(&x, &lx), blocked(&g, &lg));
        for isa in isas() {
            let mut got = blocked(&start, &ld);
            let input = (kind == Pool::Max).then_some((&x[..], &lx));
            train::pool_gradient(isa, kind, &shape, input, &g, &lg, accumulate, &mut got, &ld).unwrap();
            close(&dense(&got, &ld), &want, 1e-5);
        }
    }

    #[test]
    fn resize_gradients_match_naive_loops(
        c in prop_oneof![1usize..4, 14usize..40], from in prop::array::uniform3(1usize..7), to in prop::array::uniform3(1usize..12),
        nearest in any::<bool>(), accumulate in any::<bool>(), seed in any::<u64>(),
    ) {
        let tables: [Vec<Tap>; 3] = [0, 1, 2].map(|a| {
            noise(to[a], seed ^ a as u64).iter().map(|v| {
                let low = ((v + 1.0) * 0.5 * from[a] as f32) as usize;
                let low = low.min(from[a] - 1);
                Tap { low, high: (low + 1).min(from[a] - 1), weight: if nearest { 0.0 } else { v.abs() } }
            }).collect()
        });
        let (n_in, n_out): (usize, usize) = (from.iter().product(), to.iter().product());
        let (g, start) = (noise(c * n_out, seed ^ 4), noise(c * n_in, seed ^ 5));
        let mut want: Vec<f64> = start.iter().map(|v| if accumulate { f64::from(*v) } else { 0.0 }).collect();
        for i in 0..c * n_out {
            let p = i % n_out;
            let taps = [tables[0][p / to[1] / to[2]], tables[1][p / to[2] % to[1]], tables[2][p % to[2]]];
            for corner in 0..8 {
                let (mut at, mut share) = (i / n_out, f64::from(g[i]));
                for (axis, tap) in taps.iter().enumerate() {
                    let high = corner >> axis & 1 == 1;
                    at = at * from[axis] + if high { tap.high } else { tap.low };
                    share *= f64::from(if high { tap.weight } else { 1.0 - tap.weight });
                }
                want[at] += share;
            }
        }
        let want: Vec<f32> = want.iter().map(|v| *v as f32).collect();
        let (lg, ld) = (Blocked::new(c, to, [0, 1, 0], block_size(c)), Blocked::new(c, from, [1, 0, 2], block_size(c)));
        let g = blocked(&g, &lg);
        for isa in isas() {
            let mut got = blocked(&start, &ld);
            train::resize_gradient(isa, &tables, &g, &lg, accumulate, &mut got, &ld).unwrap();
            close(&dense(&got, &ld), &want, 2e-5);
        }
    }

    #[test]
    fn norm_gradients_match_double_precision(
        c in prop_oneof![1usize..4, 14usize..40], d in 1usize..4, h in 1usize..5, w in 1usize..50, offset in -3f32..3.0,
        accumulate in any::<bool>(), slope in prop_oneof![Just(0.0f32), Just(0.01), Just(1.0)], seed in any::<u64>(),
    ) {
        let dims = [d, h, w];
        let n = d * h * w;
        let x: Vec<f32> = noise(c * n, seed).iter().map(|v| v + offset).collect();
        let mut dy = noise(c * n, seed ^ 1);
        let (weight, bias) = (noise(c, seed ^ 3), noise(c, seed ^ 4));
        let start = noise(c * n, seed ^ 5);
        let statistics: Vec<(f64, f64)> = x.chunks_exact(n).map(|x| {
            let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / n as f64;
            (mean, 1.0 / (x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n as f64 + 1e-3).sqrt())
        }).collect();
        let mean: Vec<f32> = statistics.iter().map(|s| s.0 as f32).collect();
        let inverse: Vec<f32> = statistics.iter().map(|s| s.1 as f32).collect();
        let scale: Vec<f32> = weight.iter().zip(&inverse).map(|(w, i)| w * i).collect();
        let shift: Vec<f32> = (0..c).map(|c| bias[c] - mean[c] * scale[c]).collect();
        let z: Vec<f32> = (0..c * n).map(|i| x[i].mul_add(scale[i / n], shift[i / n])).collect();
        // Ignore voxels where rounding decides the sign, and with it the derivative.
        for i in 0..c * n {
            if z[i].abs() < 1e-5 * (1.0 + (x[i] * scale[i / n]).abs() + shift[i / n].abs()) { dy[i] = 0.0; }
        }
        let g: Vec<f64> = (0..c * n).map(|i| f64::from(dy[i]) * if z[i] > 0.0 { 1.0 } else { f64::from(slope) }).collect();
        let normal = |i: usize| (f64::from(x[i]) - statistics[i / n].0) * statistics[i / n].1;
        let sums: Vec<(f64, f64)> = (0..c).map(|c| {
            let own = c * n..(c + 1) * n;
            (g[own.clone()].iter().sum(), own.map(|i| g[i] * normal(i)).sum())
        }).collect();
        let want: Vec<f32> = (0..c * n).map(|i| {
            let (mean_g, mean_gx) = (sums[i / n].0 / n as f64, sums[i / n].1 / n as f64);
            let dx = f64::from(weight[i / n]) * statistics[i / n].1 * (g[i] - mean_g - normal(i) * mean_gx);
            dx as f32 + if accumulate { start[i] } else { 0.0 }
        }).collect();
        let block = block_size(c);
        let (lx, ly) = (Blocked::new(c, dims, [1, 0, 1], block), Blocked::new(c, dims, [0, 1, 0], block));
        let lb = Blocked::new(c, dims, [1, 1, 1], block);
        let (px, py) = (blocked(&x, &lx), blocked(&dy, &ly));
        let after = train::Activated { scale: &scale, shift: &shift, activation: Activation::Leaky { slope } };
        for isa in isas() {
            let got = train::norm_gradient_sums(isa, &px, &lx, &py, &ly, &after, &mean, &inverse).unwrap();
            for (got, want) in got.iter().zip(&sums) {
                let near = |a: f64, b: f64| (a - b).abs() < 1e-4 * (1.0 + b.abs());
                prop_assert!(near(got.0, want.0) && near(got.1, want.1), "{got:?}, expected {want:?}");
            }
            let factors = train::NormFactors::new(&weight, &mean, &inverse, &got, n).unwrap();
            let mut dx = blocked(&start, &lb);
            train::norm_gradient(isa, &px, &lx, &py, &ly, &after, &factors, accumulate, &mut dx, &lb).unwrap();
            close(&dense(&dx, &lb), &want, 2e-4);
        }
    }

    #[test]
    fn pointwise_gradients_match_double_precision(
        c in prop_oneof![1usize..4, 14usize..40], h in 1usize..5, w in 1usize..50, accumulate in any::<bool>(), seed in any::<u64>(),
    ) {
        let dims = [2, h, w];
        let n = 2 * h * w;
        let (x, dy, start) = (noise(c * n, seed), noise(c * n, seed ^ 1), noise(c * n, seed ^ 2));
        let block = block_size(c);
        let (lx, ly) = (Blocked::new(c, dims, [1, 0, 1], block), Blocked::new(c, dims, [0, 1, 0], block));
        let before = |i: usize| if accumulate { start[i] } else { 0.0 };
        let leaky: Vec<f32> = (0..c * n).map(|i| before(i) + if x[i] > 0.0 { dy[i] } else { dy[i] * 0.1 }).collect();
        // The first value is at an end of the range, which counts as inside.
        let end = x[0].abs();
        let clipped: Vec<f32> = (0..c * n).map(|i| before(i) + if x[i].abs() <= end { dy[i] } else { 0.0 }).collect();
        let within = train::Derivative::Within { min: -end, max: end };
        let sum: Vec<f32> = (0..c * n).map(|i| start[i] + 0.5 * x[i]).collect();
        let sums: Vec<f32> = x.chunks_exact(n).map(|x| x.iter().map(|v| f64::from(*v)).sum::<f64>() as f32).collect();
        let (px, py) = (blocked(&x, &lx), blocked(&dy, &ly));
        for isa in isas() {
            for (of, want) in [(train::Derivative::Leaky { slope: 0.1 }, &leaky), (within, &clipped)] {
                let mut dx = blocked(&start, &ly);
                train::activation_gradient(isa, of, &px, &lx, &py, &ly, accumulate, &mut dx, &ly).unwrap();
                close(&dense(&dx, &ly), want, 1e-6);
            }
            let mut target = blocked(&start, &ly);
            train::add(isa, 0.5, &px, &lx, &mut target, &ly).unwrap();
            close(&dense(&target, &ly), &sum, 1e-6);
            let found: Vec<f32> = train::channel_sums(isa, &px, &lx).unwrap().into_iter().map(|s| s as f32).collect();
            close(&found, &sums, 1e-5);
        }
    }
}

#[test]
fn an_infinite_gradient_ends_where_the_activation_is_constant() {
    let layout = Blocked::new(16, [1, 1, 5], [0; 3], 16);
    let (all, none) = (f32::INFINITY, 0.0);
    let repeated = |values: [f32; 5]| blocked(&values.repeat(16), &layout);
    let (x, gradient) = (repeated([-1.0, 2.0, 0.5, -3.0, 4.0]), repeated([all, all, -all, all, -all]));
    let relu = (train::Derivative::Leaky { slope: 0.0 }, [none, all, -all, none, -all]);
    let clip = (train::Derivative::Within { min: -2.0, max: 3.0 }, [all, all, -all, none, none]);
    for isa in isas() {
        for (of, expected) in [relu, clip] {
            let mut found = vec![0.0; layout.len()];
            train::activation_gradient(isa, of, &x, &layout, &gradient, &layout, false, &mut found, &layout).unwrap();
            assert_eq!(dense(&found, &layout), expected.repeat(16), "{isa}, {of:?}");
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
        let gradient_with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut gradient = vec![0.0; 16 * 16 * 27];
            pool.install(|| train::conv_weight_gradient(isa, &x, &layout, &g, &layout, &shape, &mut gradient)).unwrap();
            gradient
        };
        let one = gradient_with(1);
        assert!(gradient_with(2) == one && gradient_with(5) == one);
    }
}

#[test]
fn mismatched_buffers_are_errors() {
    let shape = ConvShape { kernel: [3; 3], stride: [1; 3], dilation: [1; 3], pad_before: [1; 3] };
    let (narrow, wide) = (Blocked::new(16, [4; 3], [0; 3], 16), Blocked::new(16, [4; 3], [1; 3], 16));
    let (short, long) = (vec![0.0; narrow.len()], vec![0.0; wide.len()]);
    let mut gradient = vec![0.0; 16 * 16 * 27];
    for isa in isas() {
        let by_weight = |x: &[f32], lx: &Blocked, shape: &ConvShape, gradient: &mut [f32]| {
            train::conv_weight_gradient(isa, x, lx, &short, &narrow, shape, gradient)
        };
        assert!(by_weight(&long, &wide, &shape, &mut gradient).is_ok());
        assert!(by_weight(&short, &narrow, &shape, &mut gradient).unwrap_err().to_string().contains("border"));
        assert!(by_weight(&long[1..], &wide, &shape, &mut gradient).is_err());
        assert!(by_weight(&long, &wide, &shape, &mut gradient[1..]).is_err());
        let far = ConvShape { stride: [usize::MAX / 2 + 1; 3], ..shape };
        assert!(by_weight(&long, &wide, &far, &mut gradient).is_err());
        assert!(by_weight(&long, &wide, &ConvShape { kernel: [0, 3, 3], ..shape }, &mut []).is_err());
        let packed = train::InputGradient::new(isa, &gradient, [16, 16], &shape, 16).unwrap();
        let mut dx = short.clone();
        let narrow_border = train::conv_input_gradient(isa, &short, &narrow, &packed, false, &mut dx, &narrow);
        assert!(narrow_border.unwrap_err().to_string().contains("border"));
        assert!(train::conv_input_gradient(isa, &long, &wide, &packed, false, &mut dx, &narrow).is_ok());
        assert!(train::InputGradient::new(isa, &gradient[1..], [16, 16], &shape, 16).is_err());
    }
}
