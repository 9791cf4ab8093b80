//! Regression benchmarks of tiling, blending weights and resampling.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark; the macros make public functions")]

use criterion::{Criterion, criterion_group, criterion_main};
use cytoscope_volume::blend::gaussian_map;
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

/// Adds an overlapping tile to a volume, as blended predictions do: values times weights, and the weights.
fn blending(criterion: &mut Criterion) {
    let tile = [16, 64, 64];
    let weights = gaussian_map(tile);
    let values = vec![0.5f32; weights.len()];
    let (mut sums, mut norms) = (vec![0.0f32; weights.len()], vec![0.0f32; weights.len()]);
    criterion.bench_function("blending/weighted sum 16x64x64", |bench| {
        bench.iter(|| {
            for (((sum, norm), value), weight) in sums.iter_mut().zip(&mut norms).zip(&values).zip(&weights) {
                *sum += value * weight;
                *norm += weight;
            }
            black_box((&mut sums, &mut norms));
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
