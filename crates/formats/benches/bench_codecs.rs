//! Regression benchmarks of writing (codecs) and reading (decoders) a small stack.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark; the macros make public functions")]

use criterion::{Criterion, criterion_group, criterion_main};
use cytoscope_formats::{Compression, Container, OpenOptions, WriteSpec, open_bytes, write_array};
use cytoscope_volume::{Array, Axes};

const SHAPE: [usize; 3] = [8, 128, 128];

/// A stack that compresses about as well as microscopy: a smooth signal with noise in the lowest bits.
fn stack() -> Array {
    let [_, height, width] = SHAPE;
    let mut state = 1u32;
    let voxel = |at: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (y, x) = (at / width % height, at % width);
        (200 + 3 * y + 2 * x) as u16 + (state >> 28) as u16
    };
    let samples: Vec<u16> = (0..SHAPE.iter().product::<usize>()).map(voxel).collect();
    Array::new(Axes::zyx(), SHAPE.to_vec(), samples).unwrap()
}

fn codecs(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let stack = stack();
    let cases = [
        ("tiff", Container::ImageJ, Compression::None),
        ("ome-tiff deflate", Container::OmeTiff, Compression::Deflate),
        ("ome-tiff zstd", Container::OmeTiff, Compression::Zstd),
        ("npy", Container::Npy, Compression::None),
    ];
    for (number, (name, container, compression)) in cases.into_iter().enumerate() {
        let ending = if container == Container::Npy { "npy" } else { "tif" };
        let mut written = 0;
        let spec = WriteSpec { compression, ..WriteSpec::of(&stack, container) };
        // Finished files are never overwritten, so each iteration writes another one.
        let mut write = || {
            written += 1;
            let path = folder.path().join(format!("{number}-{written}.{ending}"));
            write_array(&path, &stack, &spec).unwrap();
            path
        };
        let bytes = std::fs::read(write()).unwrap();
        criterion.bench_function(&format!("codecs/write {name}"), |bench| {
            bench.iter(|| std::fs::remove_file(write()).unwrap());
        });
        criterion.bench_function(&format!("decoders/read {name}"), |bench| {
            bench.iter(|| open_bytes(bytes.clone(), &OpenOptions::default()).unwrap().read_all().unwrap());
        });
    }
}

criterion_group!(benches, codecs);
criterion_main!(benches);
