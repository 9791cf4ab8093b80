//! Helpers of the tests: instruction sets, noise, layouts, naive loops.
#![allow(dead_code)]

use cytoscope_kernels::conv::{ConvShape, WeightShape};
use cytoscope_kernels::{Blocked, Isa, IsaName, reorder};

/// Returns all instruction sets of this machine, and reports those that are skipped.
pub fn isas() -> Vec<Isa> {
    IsaName::ALL
        .into_iter()
        .filter_map(|name| {
            let isa = Isa::available(name);
            if isa.is_none() {
                cytoscope_testkit::skip(format!("this machine does not support {}", name.as_str()));
            }
            isa
        })
        .collect()
}

/// Returns reproducible values in -1..1.
pub fn noise(len: usize, seed: u64) -> Vec<f32> {
    cytoscope_testkit::uniform(seed, len).into_iter().map(|v| v * 2.0 - 1.0).collect()
}

pub fn blocked(dense: &[f32], layout: &Blocked) -> Vec<f32> {
    let mut out = vec![f32::NAN; layout.len()];
    reorder::pack(dense, layout, 0.0, &mut out).unwrap();
    out
}

pub fn dense(values: &[f32], layout: &Blocked) -> Vec<f32> {
    let mut out = vec![0.0; layout.channels * layout.voxels()];
    reorder::unpack(values, layout, &mut out).unwrap();
    out
}

/// Returns the output size of a convolution, or `None` if it has no output.
pub fn out_dims(dims: [usize; 3], s: &ConvShape) -> Option<[usize; 3]> {
    let out: Vec<usize> = (0..3)
        .map(|a| {
            (dims[a] + 2 * s.pad_before[a])
                .checked_sub((s.kernel[a] - 1) * s.dilation[a] + 1)
                .map(|n| n / s.stride[a] + 1)
        })
        .collect::<Option<_>>()?;
    out.try_into().ok()
}

/// Naive convolution of `[C][D][H][W]` with `[O][I / groups][taps]`; voxels outside the image are 0.
pub fn naive_conv<T: Copy + Into<f64>, W: Copy + Into<f64>>(
    x: &[T],
    dims: [usize; 3],
    w: &[W],
    of: WeightShape,
    s: &ConvShape,
    out: [usize; 3],
) -> Vec<f64> {
    let (per_in, per_out) = (of.in_channels / of.groups, of.out_channels / of.groups);
    let mut y = Vec::new();
    for o in 0..of.out_channels {
        for d in 0..out[0] {
            for h in 0..out[1] {
                for ww in 0..out[2] {
                    let mut sum = 0.0;
                    for i in 0..per_in {
                        for t in 0..of.taps {
                            let k = [t / (s.kernel[1] * s.kernel[2]), t / s.kernel[2] % s.kernel[1], t % s.kernel[2]];
                            let at: Option<Vec<usize>> = [d, h, ww]
                                .iter()
                                .enumerate()
                                .map(|(a, p)| {
                                    (p * s.stride[a] + k[a] * s.dilation[a])
                                        .checked_sub(s.pad_before[a])
                                        .filter(|v| *v < dims[a])
                                })
                                .collect();
                            if let Some(at) = at {
                                let channel = o / per_out * per_in + i;
                                let x: f64 =
                                    x[((channel * dims[0] + at[0]) * dims[1] + at[1]) * dims[2] + at[2]].into();
                                let w: f64 = w[(o * per_in + i) * of.taps + t].into();
                                sum += x * w;
                            }
                        }
                    }
                    y.push(sum);
                }
            }
        }
    }
    y
}

pub fn close(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "value {i}: {g}, expected {w}");
    }
}

/// Naive transposed convolution of `[C][D][H][W]` with `[I][O][taps]`: every input adds its products to the outputs that it
/// reaches.
#[allow(clippy::too_many_arguments)]
pub fn scattered(
    x: &[f32],
    weights: &[f32],
    [ci, co]: [usize; 2],
    dims: [usize; 3],
    kernel: [usize; 3],
    stride: [usize; 3],
    pad_before: [usize; 3],
    out: [usize; 3],
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let (inputs, outputs, taps) =
        (dims.iter().product::<usize>(), out.iter().product::<usize>(), kernel.iter().product::<usize>());
    let mut y: Vec<f64> = (0..co * outputs).map(|i| bias.map_or(0.0, |b| f64::from(b[i / outputs]))).collect();
    let place = |i: usize, of: [usize; 3]| [i / (of[1] * of[2]), i / of[2] % of[1], i % of[2]];
    for at in 0..inputs {
        for tap in 0..taps {
            let (from, t) = (place(at, dims), place(tap, kernel));
            let to: Option<Vec<usize>> = (0..3)
                .map(|a| (from[a] * stride[a] + t[a]).checked_sub(pad_before[a]).filter(|u| *u < out[a]))
                .collect();
            let Some(to) = to else { continue };
            let to = (to[0] * out[1] + to[1]) * out[2] + to[2];
            for i in 0..ci {
                for o in 0..co {
                    y[o * outputs + to] +=
                        f64::from(x[i * inputs + at]) * f64::from(weights[(i * co + o) * taps + tap]);
                }
            }
        }
    }
    y.into_iter().map(|v| v as f32).collect()
}
