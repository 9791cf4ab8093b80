//! Prints the rates of convolutions and their gradients for typical U-Net layers, on one core:
//! `cargo run --release -p cytoscope-kernels --example train_rate [ISA]`.

use cytoscope_kernels::conv::{self, Activation, ConvShape, Finish, PackedConv, Target, WeightShape};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use cytoscope_kernels::train::optimizer::{self, Adam};
use cytoscope_kernels::train::{self, Activated, InputGradient, NormFactors};
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let only = std::env::args().nth(1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    // Input and output channels, output size, kernel size, stride.
    let layers = [
        (1, 16, 64, 3, 1),
        (16, 16, 64, 3, 1),
        (16, 16, 32, 3, 1),
        (32, 16, 64, 3, 1),
        (32, 32, 64, 3, 1),
        (32, 32, 32, 3, 1),
        (64, 32, 32, 3, 1),
        (64, 64, 16, 3, 1),
        (256, 256, 8, 3, 1),
        (16, 16, 32, 3, 2),
        (16, 32, 32, 3, 2),
        (32, 64, 16, 3, 2),
        (16, 32, 32, 1, 2),
        (32, 16, 32, 2, 2),
        (16, 16, 64, 1, 1),
        (16, 1, 64, 1, 1),
    ];
    let isas = IsaName::ALL.into_iter().filter(|n| only.as_deref().is_none_or(|o| o == n.as_str()));
    for isa in isas.filter_map(Isa::available) {
        for (ci, co, n, k, stride) in layers {
            let (pad, taps) = (if stride == k { 0 } else { k / 2 }, k * k * k);
            let shape = ConvShape { kernel: [k; 3], stride: [stride; 3], dilation: [1; 3], pad_before: [pad; 3] };
            let block = |c: usize| if c < 4 { 1 } else { 16 };
            let input = Blocked::new(ci, [n * stride; 3], [k / 2; 3], block(ci));
            let output = Blocked::new(co, [n; 3], [1; 3], block(co));
            let of = WeightShape::dense(co, ci, taps);
            let flop = 2.0 * of.count() as f64 * (n * n * n) as f64;
            let mut weights = vec![0.01; of.count()];
            let (mut x, mut y) = (vec![0.5; input.len()], vec![0.5; output.len()]);
            let packed = PackedConv::new(isa, &weights, None, of, input.block)?;
            let forward = pool.install(|| {
                best(|| {
                    let end = Finish::default();
                    conv::conv(isa, &x, &input, &packed, &shape, &end, Target::F32(&mut y), &output).map(drop)
                })
            })?;
            let by_weight = pool
                .install(|| best(|| train::conv_weight_gradient(isa, &x, &input, &y, &output, &shape, &mut weights)))?;
            let back = InputGradient::new(isa, &weights, [co, ci], &shape, output.block)?;
            let by_input =
                pool.install(|| best(|| train::conv_input_gradient(isa, &y, &output, &back, false, &mut x, &input)))?;
            let pack = pool.install(|| best(|| PackedConv::new(isa, &weights, None, of, input.block).map(drop)))?;
            let pack_back =
                pool.install(|| best(|| InputGradient::new(isa, &weights, [co, ci], &shape, output.block).map(drop)))?;
            let rate = |s: f64| format!("{:6.2} ms {:6.1}", s * 1e3, flop / s / 1e9);
            println!(
                "{isa:>11} {ci:3} -> {co:3} at {n}³, kernel {k}³, stride {stride}, GFLOP/s: forward {}, weight gradient {}, input gradient {}, packing {:.3} and {:.3} ms",
                rate(forward),
                rate(by_weight),
                rate(by_input),
                pack * 1e3,
                pack_back * 1e3,
            );
        }
        pool.install(|| norms(isa))?;
        pool.install(|| others(isa))?;
    }
    Ok(())
}

/// Prints the rates of the passes of a norm's gradient, in bytes read and written per second.
fn norms(isa: Isa) -> Result<(), KernelError> {
    let layout = Blocked::new(16, [64; 3], [1; 3], 16);
    let (x, dy, mut dx) = (vec![0.5; layout.len()], vec![0.5; layout.len()], vec![0.0; layout.len()]);
    let (ones, zeros) = (vec![1.0; 16], vec![0.0; 16]);
    let activation = Activation::Leaky { slope: 0.01 };
    let after = Activated { scale: &ones, shift: &zeros, activation };
    let gradient_sums = || train::norm_gradient_sums(isa, &x, &layout, &dy, &layout, &after, &zeros, &ones);
    let sums = best(|| gradient_sums().map(drop))?;
    let factors = NormFactors::new(&ones, &zeros, &ones, &gradient_sums()?, layout.voxels())?;
    let apply =
        best(|| train::norm_gradient(isa, &x, &layout, &dy, &layout, &after, &factors, false, &mut dx, &layout))?;
    let bias = best(|| train::channel_sums(isa, &x, &layout).map(drop))?;
    let rate = |s: f64, images: usize| format!("{:.2} ms {:.1}", s * 1e3, (images * layout.len() * 4) as f64 / s / 1e9);
    println!(
        "{isa:>11} 16 channels at 64³, GB/s: norm sums {} norm gradient {} channel sums {}",
        rate(sums, 2),
        rate(apply, 3),
        rate(bias, 1)
    );
    Ok(())
}

/// Prints the times of the gradients of pooling and resampling, and of an optimizer's step.
fn others(isa: Isa) -> Result<(), KernelError> {
    let (large, small) = (Blocked::new(16, [64; 3], [1; 3], 16), Blocked::new(16, [32; 3], [1; 3], 16));
    let (x, dy) = (vec![0.5; large.len()], vec![0.5; small.len()]);
    let mut dx = vec![0.0; large.len()];
    let shape = ConvShape { kernel: [2; 3], stride: [2; 3], dilation: [1; 3], pad_before: [0; 3] };
    let max = best(|| {
        let input = Some((&x[..], &large));
        train::pool_gradient(isa, Pool::Max, &shape, input, &dy, &small, false, &mut dx, &large)
    })?;
    let table: Vec<Tap> =
        (0..64).map(|i| Tap { low: i / 2, high: (i / 2 + 1).min(31), weight: 0.25 + 0.5 * (i % 2) as f32 }).collect();
    let tables = [table.clone(), table.clone(), table];
    let mut small_gradient = dy.clone();
    let linear = best(|| train::resize_gradient(isa, &tables, &x, &large, false, &mut small_gradient, &small))?;
    let parameters = 4 << 20;
    let gradient = vec![0.1; parameters];
    let (mut w, mut m, mut v) = (gradient.clone(), gradient.clone(), gradient.clone());
    let rule = Adam { rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0, decoupled: true };
    let adam = best(|| optimizer::adam(isa, &rule, 3, 1.0, &gradient, &mut w, &mut m, &mut v))?;
    let norm = best(|| {
        std::hint::black_box(optimizer::sum_of_squares(isa, &gradient));
        Ok(())
    })?;
    println!(
        "{isa:>11} 16 channels at 64³: max pool gradient {:.2} ms, linear resize gradient {:.2} ms; \
         4 Mi parameters: Adam {:.2} ms, squares {:.2} ms",
        max * 1e3,
        linear * 1e3,
        adam * 1e3,
        norm * 1e3
    );
    Ok(())
}
