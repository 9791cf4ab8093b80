//! Prints GFLOP/s of the convolution kernels over typical U-Net layers: `cargo run --release --example conv_rate`.

use cytoscope_kernels::conv::{Activation, ConvShape, PackedConv, conv};
use cytoscope_kernels::{Blocked, Isa, IsaName};
use std::time::Instant;

fn main() -> Result<(), cytoscope_kernels::KernelError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let layers = [
        (1, 16, 64, 3),
        (16, 16, 64, 3),
        (32, 16, 64, 3),
        (32, 32, 32, 3),
        (64, 32, 32, 3),
        (64, 64, 16, 3),
        (16, 16, 64, 1),
    ];
    for isa in IsaName::ALL.into_iter().filter_map(Isa::available) {
        for (ci, co, n, k) in layers {
            let pad = k / 2;
            let shape = ConvShape { kernel: [k; 3], stride: [1; 3], dilation: [1; 3], pad_before: [pad; 3] };
            let block = if ci == 1 { 1 } else { 16 };
            let input = Blocked::new(ci, [n; 3], [pad; 3], block);
            let output = Blocked::new(co, [n; 3], [1; 3], 16);
            let weights = PackedConv::new(isa, &vec![0.01; co * ci * k * k * k], None, co, ci, k * k * k, block)?;
            let (x, mut y) = (vec![0.5; input.len()], vec![0.0; output.len()]);
            let mut step = || {
                let start = Instant::now();
                conv(isa, &x, &input, &weights, &shape, Activation::None, None, &mut y, &output)?;
                Ok(start.elapsed().as_secs_f64())
            };
            let best = match &pool {
                Ok(pool) => pool.install(|| (0..6).map(|_| step()).collect::<Result<Vec<_>, _>>()),
                Err(_) => step().map(|s| vec![s]),
            }?;
            let best = best.into_iter().fold(f64::INFINITY, f64::min);
            let flop = 2.0 * (ci * co * k * k * k) as f64 * (n * n * n) as f64;
            println!(
                "{isa:>8} {ci:3} -> {co:3} at {n}³, kernel {k}³: {:7.2} ms {:6.1} GFLOP/s",
                best * 1e3,
                flop / best / 1e9
            );
        }
    }
    Ok(())
}
