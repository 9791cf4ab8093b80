//! Whole-slide images: `../data/slide/make.py` writes one, and reads it with tifffile.

use cytoscope_formats::{Image, OpenOptions, open};
use cytoscope_volume::{Region, Samples, VoxelSize};
use std::path::Path;

fn opened(series: usize) -> Image {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/slide/small.svs");
    open(&path, &OpenOptions { series, ..OpenOptions::default() }).unwrap()
}

/// Asserts that a region of a level shows the scene, up to what JPEG changes.
fn assert_shows_scene(image: &Image, level: usize, step: f64, region: &Region) {
    let Samples::U8(values) = image.read(level, region).unwrap().into_samples() else { panic!("not 8 bits") };
    let [y0, x0] = [region.start[3], region.start[4]];
    for (i, value) in values.iter().enumerate() {
        let (pixel, sample) = (i / 3, i % 3);
        let at =
            [x0 + pixel % region.size[4], y0 + pixel / region.size[4]].map(|at| at as f64 * step + (step - 1.0) / 2.0);
        let wanted = [at[0] / 2.0, at[1] / 2.0, 90.0][sample];
        assert!((f64::from(*value) - wanted).abs() <= 6.0, "level {level}, pixel {pixel}: {value}, not {wanted}");
    }
}

#[test]
fn tiled_pages_of_a_slide_are_its_levels_and_others_are_series() {
    let image = opened(0);
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.compression.as_str(), meta.series_count), ("svs", "jpeg", 3));
    assert_eq!(meta.voxel_size_um, VoxelSize { z: None, y: Some(0.504), x: Some(0.504) });
    let shapes: Vec<&[usize]> = meta.levels.iter().map(|level| level.shape_full.as_slice()).collect();
    assert_eq!(shapes, [[1, 1, 1, 200, 300, 3], [1, 1, 1, 100, 150, 3], [1, 1, 1, 25, 37, 3]]);
    for (level, (shape, step)) in shapes.iter().zip([1.0, 2.0, 8.0]).enumerate() {
        assert_shows_scene(&image, level, step, &Region::whole(shape));
    }
    // A part that begins and ends inside tiles.
    let part = Region::whole(shapes[1]).with_range(3, 60, 20).with_range(4, 70, 65);
    assert_shows_scene(&image, 1, 2.0, &part);
    let [thumbnail, label] = [opened(1), opened(2)];
    assert_eq!(thumbnail.meta().shape_full, [1, 1, 1, 66, 100, 3]);
    assert_eq!(thumbnail.meta().voxel_size_um, VoxelSize::default());
    assert_shows_scene(&thumbnail, 0, 3.0, &Region::whole(&thumbnail.meta().shape_full));
    assert_eq!((label.meta().shape_full.as_slice(), label.meta().levels.len()), (&[1, 1, 1, 40, 40, 3][..], 1));
}

#[test]
fn only_the_tiles_of_a_region_are_read() {
    let image = opened(0);
    let before = image.bytes_read();
    let corner = Region::whole(&image.meta().shape_full).with_range(3, 0, 8).with_range(4, 0, 8);
    image.read(0, &corner).unwrap();
    // The file has 20 tiles of the full image.
    assert!(image.bytes_read() - before < 1500, "{}", image.bytes_read() - before);
}
