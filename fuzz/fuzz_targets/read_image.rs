//! Opens bytes as an image and reads all of it, the corner of each level, and a region in the middle.
//!
//! `cargo +nightly fuzz run read_image -- -rss_limit_mb=1024 -timeout=5`; real files make good seeds
//! (`fuzz/corpus/read_image`).
#![no_main]

mod common;

use cytoscope_formats::{OpenOptions, open_bytes};
use cytoscope_volume::Region;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let limits = common::small_limits();
    // The first byte of a TIFF is the same for all files of its byte order; the last one is not.
    let (axes, series) = match data.last() {
        Some(b) if b % 16 == 7 => ("TYX".parse().ok(), 0),
        Some(b) if b % 16 == 9 => (None, 1),
        _ => (None, 0),
    };
    let Ok(image) = open_bytes(data.to_vec(), &OpenOptions { series, axes, limits, ..OpenOptions::default() }) else {
        return;
    };
    let meta = image.meta();
    let whole = image.read_all();
    if let Ok(array) = &whole {
        assert_eq!(array.shape(), meta.shape);
        assert_eq!(array.axes(), &meta.axes);
    }
    for (level, shape) in meta.levels.iter().map(|l| &l.shape_full).enumerate() {
        let half: Vec<usize> = shape.iter().map(|n| n / 2).collect();
        let part =
            Region { start: half.clone(), size: shape.iter().zip(&half).map(|(n, h)| (n - h).min(64)).collect() };
        let read = image.read(level, &part);
        if let (0, Ok(part), Ok(whole)) = (level, read, &whole) {
            // A region read separately equals the region of the whole image.
            let kept: Vec<usize> = (0..6).filter(|i| shape[*i] != 1).collect();
            let start = kept.iter().map(|i| half[*i]).collect();
            let size = kept.iter().map(|i| part.shape()[*i]).collect();
            let crop = whole.crop(&Region { start, size }).expect("the region is inside");
            assert_eq!(crop.samples().as_bytes(), part.samples().as_bytes());
        }
    }
});
