//! Reading of an image in all ways that users have, with small limits.
#![allow(dead_code, reason = "each target uses a part")]

use cytoscope_formats::{Limits, OpenOptions, open_bytes};
use cytoscope_volume::Region;

/// Limits that keep a target within little memory and time.
pub fn small_limits() -> Limits {
    Limits {
        max_pages: 1 << 12,
        max_chunk_bytes: 16 << 20,
        max_unstored_bytes: 16 << 20,
        max_read_bytes: 64 << 20,
        max_metadata_bytes: 1 << 20,
        max_expanded_bytes: 64 << 20,
        ..Limits::default()
    }
}

/// Opens bytes as an image and reads it as [`read_with`] does; of several series, the first, second and last one.
pub fn read_all_and_a_part(data: &[u8]) {
    let options = |series: usize| OpenOptions { series, limits: small_limits(), ..OpenOptions::default() };
    let count = read_with(data, &options(0));
    for series in [1, count.saturating_sub(1)] {
        if series > 0 && series < count {
            read_with(data, &options(series));
        }
    }
}

/// Opens bytes as an image, reads all of it and a region in the middle, compares them, and reads the corner of each level.
/// Returns the number of series; 0 if there is no image.
pub fn read_with(data: &[u8], options: &OpenOptions) -> usize {
    let Ok(image) = open_bytes(data.to_vec(), options) else { return 0 };
    let meta = image.meta();
    for (level, shape) in meta.levels.iter().map(|level| &level.shape_full).enumerate() {
        let corner = Region { start: vec![0; 6], size: shape.iter().map(|n| (*n).min(16)).collect() };
        if let Ok(read) = image.read(level, &corner) {
            assert_eq!(read.shape(), corner.size);
        }
    }
    let Ok(whole) = image.read_all() else { return meta.series_count };
    assert_eq!((whole.axes(), whole.shape()), (&meta.axes, meta.shape.as_slice()));
    let half: Vec<usize> = meta.shape_full.iter().map(|n| n / 2).collect();
    let size = meta.shape_full.iter().zip(&half).map(|(n, h)| (n - h).min(64)).collect();
    let part = image.read(0, &Region { start: half.clone(), size }).expect("a part of what was read");
    let kept: Vec<usize> = (0..6).filter(|i| meta.shape_full[*i] != 1).collect();
    let start = kept.iter().map(|i| half[*i]).collect();
    let size = kept.iter().map(|i| part.shape()[*i]).collect();
    let crop = whole.crop(&Region { start, size }).expect("the region is inside");
    assert_eq!(crop.samples().as_bytes(), part.samples().as_bytes());
    meta.series_count
}
