//! Regression benchmarks of writing (codecs) and reading (decoders) a small stack.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark; the macros make public functions")]

use criterion::{Criterion, criterion_group, criterion_main};
use cytoscope_formats::{
    Compression, Container, OpenOptions, WriteSpec, ZarrImageSpec, ZarrWriter, open, open_bytes, write_array,
};
use cytoscope_storage::Overwrite;
use cytoscope_volume::{Array, Axes, DType, Samples};
use std::collections::HashMap;
use std::path::Path;

const SHAPE: [usize; 3] = [8, 128, 128];
/// Number of samples of a slice.
const PLANE: usize = SHAPE[1] * SHAPE[2];

/// Samples that compress about as well as microscopy: a smooth signal with noise in the lowest bits.
fn samples() -> Vec<u16> {
    let [_, height, width] = SHAPE;
    let mut state = 1u32;
    let voxel = |at: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (y, x) = (at / width % height, at % width);
        (200 + 3 * y + 2 * x) as u16 + (state >> 28) as u16
    };
    (0..SHAPE.iter().product::<usize>()).map(voxel).collect()
}

fn stack() -> Array {
    Array::new(Axes::zyx(), SHAPE.to_vec(), samples()).unwrap()
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
        let extension = if container == Container::Npy { "npy" } else { "tif" };
        let mut written = 0;
        let spec = WriteSpec { compression, ..WriteSpec::of(&stack, container) };
        // Finished files are never overwritten, so each iteration writes another one.
        let mut write = || {
            written += 1;
            let path = folder.path().join(format!("{number}-{written}.{extension}"));
            write_array(&path, &stack, &spec).unwrap();
            path
        };
        let bytes = std::fs::read(write()).unwrap();
        criterion.bench_function(&format!("codecs/write {name}"), |bench| {
            bench.iter(|| std::fs::remove_file(write()).unwrap());
        });
        bench_decoder(criterion, name, &bytes);
    }
    bench_decoder(criterion, "tiff lzw", &lzw_tiff(&samples()));
}

/// Measures reading a file, after checking that the samples are those of the stack.
fn bench_decoder(criterion: &mut Criterion, name: &str, bytes: &[u8]) {
    let read = || open_bytes(bytes.to_vec(), &OpenOptions::default()).unwrap().read_all().unwrap();
    assert_eq!(*read().samples(), Samples::U16(samples()), "{name}");
    criterion.bench_function(&format!("decoders/read {name}"), |bench| bench.iter(read));
}

/// Writing and reading an OME-Zarr folder, whose chunks are compressed with Zstandard.
fn zarr(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let samples = samples();
    let mut written = 0;
    // Finished folders are never overwritten, so each iteration writes another one.
    let mut write = || {
        written += 1;
        let path = folder.path().join(format!("{written}.zarr"));
        write_zarr(&path, &samples);
        path
    };
    let path = write();
    criterion.bench_function("codecs/write ome-zarr zstd", |bench| {
        bench.iter(|| std::fs::remove_dir_all(write()).unwrap());
    });
    let read = || open(&path, &OpenOptions::default()).unwrap().read_all().unwrap();
    assert_eq!(*read().samples(), Samples::U16(samples.clone()));
    criterion.bench_function("decoders/read ome-zarr zstd", |bench| bench.iter(read));
}

fn write_zarr(path: &Path, samples: &[u16]) {
    let [depth, height, width] = SHAPE;
    let spec = ZarrImageSpec::new("stack", [1, 1, depth, height, width], DType::U16);
    let mut writer = ZarrWriter::create(path, spec).unwrap();
    let slab_depth = writer.slab_depth(0);
    for (slab, values) in samples.chunks(slab_depth * PLANE).enumerate() {
        writer.write(0, [0, 0, slab * slab_depth], &Samples::U16(values.to_vec())).unwrap();
    }
    writer.finish().unwrap().publish(Overwrite::Refuse).unwrap();
}

/// Returns a TIFF with a page for each slice, compressed by LZW as one strip: the program reads LZW but does not write it.
fn lzw_tiff(samples: &[u16]) -> Vec<u8> {
    let [_, height, width] = SHAPE.map(|extent| extent as u32);
    // Byte order and version; the position of the first directory follows.
    let mut file = b"II*\0\0\0\0\0".to_vec();
    let mut link = 4;
    for plane in samples.chunks(PLANE) {
        let bytes: Vec<u8> = plane.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let (strip, strip_at) = (lzw(&bytes), file.len() as u32);
        file.extend_from_slice(&strip);
        // Directories begin at even positions.
        file.resize(file.len().next_multiple_of(2), 0);
        let directory_at = file.len() as u32;
        file[link..link + 4].copy_from_slice(&directory_at.to_le_bytes());
        let (short, long) = (3u16, 4u16);
        let entries = [
            (256u16, long, width),
            (257, long, height),
            // Bits of a sample, LZW, black is zero.
            (258, short, 16),
            (259, short, 5),
            (262, short, 1),
            (273, long, strip_at),
            // Samples of a pixel, rows of a strip, bytes of a strip.
            (277, short, 1),
            (278, long, height),
            (279, long, strip.len() as u32),
        ];
        file.extend_from_slice(&(entries.len() as u16).to_le_bytes());
        for (tag, kind, value) in entries {
            file.extend_from_slice(&tag.to_le_bytes());
            file.extend_from_slice(&kind.to_le_bytes());
            file.extend_from_slice(&1u32.to_le_bytes());
            file.extend_from_slice(&value.to_le_bytes());
        }
        link = file.len();
        file.extend_from_slice(&[0; 4]);
    }
    file
}

/// Compresses bytes by LZW as TIFF does: codes of 9 to 12 bits, the highest bit first.
fn lzw(data: &[u8]) -> Vec<u8> {
    const CLEAR: u32 = 256;
    const END: u32 = 257;
    const FIRST: u32 = 258;
    /// Entry at which the table is cleared.
    const FULL: u32 = 4094;
    let mut out = Vec::new();
    let (mut held, mut held_bits) = (0u32, 0u32);
    let mut put = |code: u32, width: u32| {
        held = (held << width) | code;
        held_bits += width;
        while held_bits >= 8 {
            held_bits -= 8;
            out.push((held >> held_bits) as u8);
        }
        held &= (1 << held_bits) - 1;
    };
    let mut table: HashMap<(u32, u8), u32> = HashMap::new();
    let (mut next, mut width) = (FIRST, 9);
    put(CLEAR, width);
    let mut string: Option<u32> = None;
    for byte in data {
        let Some(code) = string else {
            string = Some(u32::from(*byte));
            continue;
        };
        if let Some(longer) = table.get(&(code, *byte)) {
            string = Some(*longer);
            continue;
        }
        put(code, width);
        table.insert((code, *byte), next);
        next += 1;
        if next + 1 > (1 << width) {
            width += 1;
        }
        if next == FULL {
            put(CLEAR, width);
            table.clear();
            (next, width) = (FIRST, 9);
        }
        string = Some(u32::from(*byte));
    }
    if let Some(code) = string {
        put(code, width);
        // The decoder completes one more entry with this code, which may increase the width.
        if next + 2 > (1 << width) && width < 12 {
            width += 1;
        }
    }
    put(END, width);
    // Fills the last byte.
    put(0, 7);
    out
}

criterion_group!(benches, codecs, zarr);
criterion_main!(benches);
