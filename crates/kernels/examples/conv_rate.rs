//! Prints the rates of the convolution kernels for typical U-Net layers, in floats, bf16 and bytes:
//! `cargo run --release -p cytoscope-kernels --example conv_rate [ISA]`.

use cytoscope_kernels::conv::{
    self, ConvShape, Finish, PackedConv, PackedConvBf16, PackedConvInt8, Quantizer, Target, WeightShape,
};
use cytoscope_kernels::{Blocked, Isa, IsaName, KernelError};
use std::time::Instant;

/// Returns the shortest of several runs, in seconds.
fn best(mut step: impl FnMut() -> Result<(), KernelError>) -> Result<f64, KernelError> {
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let start = Instant::now();
        step()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Returns weights with a bell-shaped distribution and a standard deviation of 32, instead of equal ones: the rate of
/// instruction sets without byte dot products depends on them.
fn bell_shaped(count: usize) -> Vec<i8> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 57) as i32 - 64
    };
    (0..count).map(|_| ((0..3).map(|_| uniform()).sum::<i32>() / 2).clamp(-127, 127) as i8).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let only = std::env::args().nth(1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let layers = [
        (1, 16, 64, 3),
        (16, 16, 64, 3),
        (32, 16, 64, 3),
        (32, 32, 32, 3),
        (64, 32, 32, 3),
        (64, 64, 16, 3),
        (256, 256, 8, 3),
        (16, 16, 64, 1),
    ];
    let isas = IsaName::ALL.into_iter().filter(|n| only.as_deref().is_none_or(|o| o == n.as_str()));
    for isa in isas.filter_map(Isa::available) {
        for (ci, co, n, k) in layers {
            let (pad, taps) = (k / 2, k * k * k);
            let shape = ConvShape { kernel: [k; 3], stride: [1; 3], dilation: [1; 3], pad_before: [pad; 3] };
            let output = Blocked::new(co, [n; 3], [1; 3], 16);
            let of = WeightShape::dense(co, ci, taps);
            let flop = 2.0 * of.count() as f64 * (n * n * n) as f64;
            let input = Blocked::new(ci, [n; 3], [pad; 3], if ci == 1 { 1 } else { 16 });
            let weights = PackedConv::new(isa, &vec![0.01; of.count()], None, of, input.block)?;
            let (x, mut y) = (vec![0.5; input.len()], vec![0.0; output.len()]);
            let float = pool.install(|| {
                best(|| {
                    let end = Finish::default();
                    conv::conv(isa, &x, &input, &weights, &shape, &end, Target::F32(&mut y), &output).map(drop)
                })
            })?;
            let mut half = f64::INFINITY;
            if PackedConvBf16::supports(isa, &of, &shape, input.block) {
                let weights = PackedConvBf16::new(isa, &vec![0.01; of.count()], None, of, &shape, input.block)?;
                half = pool.install(|| {
                    best(|| {
                        let (end, to) = (Finish::default(), Target::F32(&mut y));
                        conv::conv_bf16(isa, &x, &input, &weights, &shape, &end, to, &output).map(drop)
                    })
                })?;
            }
            let input = Blocked::new(ci, [n; 3], [pad; 3], if ci == 1 { 4 } else { 16 });
            let weights = PackedConvInt8::new(isa, &bell_shaped(of.count()), 3, of, input.block)?;
            let (x, mut y, mut z) = (vec![5; input.len()], vec![0; output.len()], vec![0u16; output.len()]);
            let scale = vec![0.01; co];
            let bytes = pool.install(|| {
                best(|| {
                    let end = Finish { scale: Some(&scale), ..Finish::default() };
                    let to = Target::U8(&mut y, Quantizer::new(0.1, 3));
                    conv::conv_int8(isa, &x, &input, &weights, &shape, &end, to, &output).map(drop)
                })
            })?;
            let halves = pool.install(|| {
                best(|| {
                    let end = Finish { scale: Some(&scale), moments: true, ..Finish::default() };
                    conv::conv_int8(isa, &x, &input, &weights, &shape, &end, Target::F16(&mut z), &output).map(drop)
                })
            })?;
            let rate = |s: f64| format!("{:6.2} ms {:7.1}/s", s * 1e3, flop / s / 1e9);
            println!(
                "{isa:>11} {ci:3} -> {co:3} at {n}³, kernel {k}³: f32 {} GFLOP, bf16 {} GFLOP, int8 to u8 {} GOP, to f16 with moments {} GOP",
                rate(float),
                rate(half),
                rate(bytes),
                rate(halves)
            );
        }
    }
    Ok(())
}
