//! Regression benchmarks of tiling, blending weights and resampling.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark; the macros make public functions")]

use criterion::{Criterion, criterion_group, criterion_main};
use cytoscope_volume::blend::{Windows, gaussian_map};
use cytoscope_volume::resample::{AxisMap, linear};
use cytoscope_volume::tile::{crop_spans, window_starts};
use std::hint::black_box;

fn tiling(criterion: &mut Criterion) {
    criterion.bench_function("tiling/crop spans", |bench| {
        bench.iter(|| crop_spans(black_box(4096), 160, 20, 8).unwrap());
    });
    criterion.bench_function("tiling/window starts", |bench| {
        bench.iter(|| window_starts(black_box(4096), 64, 0.25).unwrap());
    });
    criterion.bench_function("tiling/gaussian weights 32x64x64", |bench| {
        bench.iter(|| gaussian_map(black_box([32, 64, 64])));
    });
}

/// Adds a tile of two channels to the sums of a slab, and sums the weights of its voxels, as blended predictions do.
fn blending(criterion: &mut Criterion) {
    let windows = Windows::new([64, 160, 160], [16, 64, 64], 0.25).unwrap();
    let [_, height, width] = windows.shape;
    let result = vec![0.5f32; 2 * windows.map.len()];
    let mut sums = vec![0.0f32; 2 * windows.size[0] * height * width];
    criterion.bench_function("blending/add tile 2x16x64x64", |bench| {
        bench.iter(|| windows.add(&result, black_box(48), black_box(96), &mut sums));
    });
    let weights = windows.weights();
    criterion.bench_function("blending/weights of a slice 160x160", |bench| {
        bench.iter(|| {
            for y in 0..height {
                black_box(weights.row(black_box(14), y, |_| true));
            }
        });
    });
}

fn resampling(criterion: &mut Criterion) {
    let from = [16, 64, 64];
    let slab = vec![1.0f32; from.iter().product()];
    let maps = from.map(|n| AxisMap::new(n, n * 3 / 2));
    criterion.bench_function("resampling/linear 1.5x", |bench| {
        bench.iter(|| linear(black_box(&slab), 0, [from[1], from[2]], &maps, 0..from[0] * 3 / 2));
    });
}

criterion_group!(benches, tiling, blending, resampling);
criterion_main!(benches);
