//! Regression benchmarks of the kernels, on one thread, with the best instruction set of the CPU.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark; the macros make public functions")]

use criterion::{Criterion, criterion_group, criterion_main};
use cytoscope_kernels::conv::{self, ConvShape, Finish, PackedConv, PackedConvInt8, Quantizer, Target, WeightShape};
use cytoscope_kernels::pool::{Pool, pool};
use cytoscope_kernels::resize::{Tap, resize};
use cytoscope_kernels::{Blocked, Isa, norm, reorder};

/// Edge of the images in voxels.
const EDGE: usize = 24;
const CHANNELS: usize = 16;

fn one_thread() -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap()
}

fn convolutions(criterion: &mut Criterion) {
    let (isa, threads) = (Isa::detect(), one_thread());
    let shape = ConvShape { kernel: [3; 3], stride: [1; 3], dilation: [1; 3], pad_before: [1; 3] };
    let input = Blocked::new(CHANNELS, [EDGE; 3], [1; 3], 16);
    let output = Blocked::new(CHANNELS, [EDGE; 3], [1; 3], 16);
    let of = WeightShape::dense(CHANNELS, CHANNELS, 27);
    let weights = PackedConv::new(isa, &vec![0.01; of.count()], None, of, input.block).unwrap();
    let (x, mut y) = (vec![0.5f32; input.len()], vec![0.0f32; output.len()]);
    criterion.bench_function("kernels/conv f32 3x3x3", |bench| {
        bench.iter(|| {
            threads.install(|| {
                let end = Finish::default();
                conv::conv(isa, &x, &input, &weights, &shape, &end, Target::F32(&mut y), &output).map(drop).unwrap();
            });
        });
    });
    let weights = PackedConvInt8::new(isa, &vec![1; of.count()], 3, of, input.block).unwrap();
    let (x, mut y, scale) = (vec![5u8; input.len()], vec![0u8; output.len()], vec![0.01f32; CHANNELS]);
    criterion.bench_function("kernels/conv int8 3x3x3", |bench| {
        bench.iter(|| {
            threads.install(|| {
                let end = Finish { scale: Some(&scale), ..Finish::default() };
                let to = Target::U8(&mut y, Quantizer::new(0.1, 3));
                conv::conv_int8(isa, &x, &input, &weights, &shape, &end, to, &output).map(drop).unwrap();
            });
        });
    });
}

fn others(criterion: &mut Criterion) {
    let (isa, threads) = (Isa::detect(), one_thread());
    let whole = Blocked::new(CHANNELS, [EDGE; 3], [0; 3], 16);
    let half = Blocked::new(CHANNELS, [EDGE / 2; 3], [0; 3], 16);
    let dense = vec![0.5f32; CHANNELS * EDGE * EDGE * EDGE];
    let (mut x, mut y) = (vec![0.5f32; whole.len()], vec![0.0f32; half.len()]);
    criterion.bench_function("kernels/pack", |bench| {
        bench.iter(|| threads.install(|| reorder::pack(&dense, &whole, 0.0, &mut x).unwrap()));
    });
    criterion.bench_function("kernels/moments", |bench| {
        bench.iter(|| threads.install(|| norm::channel_moments(isa, &x, &whole).unwrap()));
    });
    let shape = ConvShape { kernel: [2; 3], stride: [2; 3], dilation: [1; 3], pad_before: [0; 3] };
    criterion.bench_function("kernels/max pool 2x2x2", |bench| {
        bench.iter(|| threads.install(|| pool(isa, Pool::Max, &shape, &x, &whole, &mut y, &half).unwrap()));
    });
    let axis: Vec<Tap> = (0..EDGE).map(|at| Tap { low: at / 2, high: at / 2, weight: 0.0 }).collect();
    let tables = [axis.clone(), axis.clone(), axis];
    criterion.bench_function("kernels/resize nearest 2x", |bench| {
        bench.iter(|| threads.install(|| resize(isa, &tables, &y, &half, &mut x, &whole).unwrap()));
    });
}

criterion_group!(benches, convolutions, others);
criterion_main!(benches);
