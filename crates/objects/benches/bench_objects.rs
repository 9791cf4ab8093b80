//! Regression benchmarks of segmentation and measurement on a small map of balls.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark; the macros make public functions")]

use criterion::{Criterion, criterion_group, criterion_main};
use cytoscope_objects::components::{self, Connectivity};
use cytoscope_objects::distance::distance_um;
use cytoscope_objects::measure::Measurer;
use cytoscope_objects::{SegmentOptions, segment};

const SHAPE: [usize; 3] = [16, 96, 96];
const VOXEL_UM: [f64; 3] = [1.0, 0.5, 0.5];

/// Balls on a grid, some of which touch; 1 inside, with a soft border.
fn map() -> Vec<f32> {
    let [_, height, width] = SHAPE;
    let near = |at: usize, distance: usize| {
        let center = (at / distance * distance + distance / 2) as f32;
        at as f32 - center
    };
    let voxel = |at: usize| {
        let (z, y, x) = (at / (height * width), at / width % height, at % width);
        let (dz, dy, dx) = (2.0 * near(z, 16), near(y, 18), near(x, 16));
        (9.5 - (dz * dz + dy * dy + dx * dx).sqrt()).clamp(0.0, 1.0)
    };
    (0..SHAPE.iter().product::<usize>()).map(voxel).collect()
}

fn objects(criterion: &mut Criterion) {
    let map = map();
    let mask: Vec<bool> = map.iter().map(|v| *v > 0.5).collect();
    criterion.bench_function("objects/distance transform", |bench| {
        bench.iter(|| distance_um(&mask, SHAPE, VOXEL_UM).unwrap());
    });
    let mut labels = vec![0u32; mask.len()];
    criterion.bench_function("objects/connected components", |bench| {
        bench.iter(|| components::label(&mask, SHAPE, Connectivity::Faces, |inside| inside, &mut labels).unwrap());
    });
    let options = SegmentOptions::default();
    criterion.bench_function("objects/segment", |bench| {
        bench.iter(|| segment(&map, SHAPE, VOXEL_UM, &options).unwrap());
    });
    let (labels, _) = segment(&map, SHAPE, VOXEL_UM, &options).unwrap();
    let plane = SHAPE[1] * SHAPE[2];
    criterion.bench_function("objects/measure", |bench| {
        bench.iter(|| {
            let mut measurer = Measurer::new(VOXEL_UM, [SHAPE[1], SHAPE[2]], vec!["map".to_owned()]);
            for (labels, map) in labels.chunks(plane).zip(map.chunks(plane)) {
                measurer.add_slice(labels, &[map]);
            }
            measurer.finish()
        });
    });
}

criterion_group!(benches, objects);
criterion_main!(benches);
