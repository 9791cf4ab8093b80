//! PNG and JPEG images: single slices, colors, and numbered series as stacks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use cytoscope_formats::{FormatErrorKind, Limits, OpenOptions, one_of_each_series, open, open_bytes};
use cytoscope_volume::{Region, Samples};
use png::{BitDepth, ColorType};
use std::path::{Path, PathBuf};

fn png_bytes(width: u32, height: u32, color: ColorType, depth: BitDepth, rows: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == ColorType::Indexed {
        encoder.set_palette(vec![9u8; 12]);
    }
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(rows).unwrap();
    writer.finish().unwrap();
    bytes
}

fn gray16(values: &[u16]) -> Vec<u8> {
    let rows: Vec<u8> = values.iter().flat_map(|v| v.to_be_bytes()).collect();
    png_bytes(3, 2, ColorType::Grayscale, BitDepth::Sixteen, &rows)
}

/// Writes 16-bit slices of 2 × 3 pixels; the pixels of number `n` are 100 n, 100 n + 1 and so on.
fn series(folder: &Path, prefix: &str, numbers: &[u16], digits: usize) {
    for n in numbers {
        let values: Vec<u16> = (0..6).map(|i| n * 100 + i).collect();
        std::fs::write(folder.join(format!("{prefix}{n:0digits$}.png")), gray16(&values)).unwrap();
    }
}

#[test]
fn gray_values_and_palette_indices_are_read_unscaled() {
    let values = [0u16, 1, 255, 256, 40_000, 65_535];
    let image = open_bytes(gray16(&values), &OpenOptions::default()).unwrap();
    assert_eq!((image.meta().format.as_str(), image.meta().shape.as_slice()), ("png", [2, 3].as_slice()));
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16(values.to_vec()));
    for (color, depth, rows, expected) in [
        (ColorType::Grayscale, BitDepth::One, vec![0b1010_0000, 0b0110_0000], vec![1, 0, 1, 0, 1, 1]),
        (ColorType::Indexed, BitDepth::Two, vec![0b0001_1000, 0b1101_0000], vec![0, 1, 2, 3, 1, 0]),
        (ColorType::Grayscale, BitDepth::Eight, vec![1, 2, 3, 4, 5, 255], vec![1, 2, 3, 4, 5, 255]),
    ] {
        let image = open_bytes(png_bytes(3, 2, color, depth, &rows), &OpenOptions::default()).unwrap();
        assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8(expected), "{color:?}");
    }
}

#[test]
fn colors_are_channels() {
    let rows: Vec<u8> = (0..18).collect();
    let file = png_bytes(3, 2, ColorType::Rgb, BitDepth::Eight, &rows);
    let image = open_bytes(file, &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().axes.to_string(), "CYX");
    let names: Vec<&str> = image.meta().channels.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["red", "green", "blue"]);
    let green = Region { start: vec![0, 0, 1, 0, 1, 0], size: vec![1, 1, 1, 2, 2, 1] };
    assert_eq!(image.read(0, &green).unwrap().into_samples(), Samples::U8(vec![4, 7, 13, 16]));
}

#[test]
fn a_numbered_series_is_a_stack_from_any_member_or_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    series(folder.path(), "cells_", &[8, 9, 10, 11], 4);
    for opened in [folder.path().to_owned(), folder.path().join("cells_0010.png")] {
        let image = open(&opened, &OpenOptions::default()).unwrap();
        assert_eq!((image.meta().format.as_str(), image.files().len()), ("png series", 4));
        assert_eq!(image.meta().shape_full, [1, 4, 1, 2, 3, 1]);
        let part = Region { start: vec![0, 1, 0, 1, 0, 0], size: vec![1, 3, 1, 1, 2, 1] };
        let expected = Samples::U16(vec![903, 904, 1003, 1004, 1103, 1104]);
        assert_eq!(image.read(0, &part).unwrap().into_samples(), expected);
    }
    let alone = OpenOptions { single_file: true, ..OpenOptions::default() };
    let image = open(&folder.path().join("cells_0010.png"), &alone).unwrap();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16((1000..1006).collect()));
    let times = OpenOptions { axes: Some("TYX".parse().unwrap()), ..OpenOptions::default() };
    assert_eq!(open(folder.path(), &times).unwrap().meta().shape_full, [4, 1, 1, 2, 3, 1]);
}

#[test]
fn a_series_ends_at_gaps_and_at_files_of_another_kind() {
    let folder = tempfile::tempdir().unwrap();
    series(folder.path(), "a", &[1, 2, 4, 5], 1);
    series(folder.path(), "b", &[3], 1);
    std::fs::write(folder.path().join("a6.png"), png_bytes(3, 2, ColorType::Grayscale, BitDepth::Eight, &[0; 6]))
        .unwrap();
    let files = |name: &str| open(&folder.path().join(name), &OpenOptions::default()).unwrap().files().len();
    assert_eq!((files("a1.png"), files("a5.png"), files("a6.png"), files("b3.png")), (2, 2, 1, 1));
    let all: Vec<PathBuf> =
        ["a1.png", "a2.png", "a4.png", "a5.png", "a6.png", "b3.png"].map(|n| folder.path().join(n)).into();
    let kept = one_of_each_series(&all);
    assert_eq!(kept, ["a1.png", "a4.png", "a6.png", "b3.png"].map(|n| folder.path().join(n)));
    // It is not clear which series of the folder is meant.
    let error = open(folder.path(), &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Misused);
    assert!(error.to_string().contains("a1.png"), "{error}");
}

#[test]
fn a_jpeg_is_read_as_written() {
    // A ramp of 8 × 8 pixels, made with Pillow.
    let seed = include_bytes!("../../../fuzz/seeds/read_raster/gray_jpeg");
    let image = open_bytes(seed.to_vec(), &OpenOptions::default()).unwrap();
    assert_eq!((image.meta().format.as_str(), image.meta().shape.as_slice()), ("jpeg", [8, 8].as_slice()));
    let Samples::U8(values) = image.read_all().unwrap().into_samples() else { panic!("not 8 bits") };
    // It was a ramp of 3 per pixel in reading order; JPEG is lossy.
    for (i, value) in values.iter().enumerate() {
        assert!((f64::from(*value) - 3.0 * i as f64).abs() < 12.0, "{i} {value}");
    }
}

#[test]
fn damaged_and_oversized_images_are_refused() {
    let good = gray16(&[1, 2, 3, 4, 5, 6]);
    let read = |bytes: Vec<u8>, limits: Limits| {
        let options = OpenOptions { limits, ..OpenOptions::default() };
        open_bytes(bytes, &options).and_then(|i| i.read_all()).map(|_| ()).map_err(|e| e.kind())
    };
    assert_eq!(read(good.clone(), Limits::default()), Ok(()));
    assert_eq!(read(good[..good.len() - 20].to_vec(), Limits::default()), Err(FormatErrorKind::Malformed));
    let small = Limits { max_chunk_bytes: 11, ..Limits::default() };
    assert_eq!(read(good.clone(), small), Err(FormatErrorKind::OverLimit));
    let mut wide = good;
    wide[16..24].copy_from_slice(&[0, 0, 0x20, 0, 0, 0, 0x20, 0]);
    assert_eq!(read(wide, Limits::default()), Err(FormatErrorKind::Malformed));
}
