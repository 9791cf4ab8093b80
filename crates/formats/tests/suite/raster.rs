//! PNG and JPEG images: single slices, colors; numbered series of them and of TIFF files as stacks.

use cytoscope_formats::{
    Container, FormatErrorKind, Limits, OpenOptions, WriteSpec, count_files_outside_series, first_file_per_series,
    open, open_bytes, write_array,
};
use cytoscope_volume::{Array, Region, Samples};
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
    // A folder is not a single file of the series.
    assert_eq!(open(folder.path(), &alone).unwrap().meta().shape_full, [1, 4, 1, 2, 3, 1]);
}

/// Listing the folder again for each of them would take minutes.
#[test]
fn many_files_with_gaps_between_their_numbers_are_found_in_linear_time() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = (0..3000).map(|i| folder.path().join(format!("a{:05}.png", 2 * i))).collect();
    let bytes = png_bytes(3, 2, ColorType::Grayscale, BitDepth::Eight, &[0; 6]);
    for file in &files {
        std::fs::write(file, &bytes).unwrap();
    }
    assert_eq!(first_file_per_series(&files), files);
}

#[test]
fn a_series_ends_at_gaps_and_at_files_of_another_kind() {
    let folder = tempfile::tempdir().unwrap();
    series(folder.path(), "a", &[1, 2, 4, 5], 1);
    series(folder.path(), "b", &[3], 1);
    std::fs::write(folder.path().join("a6.png"), png_bytes(3, 2, ColorType::Grayscale, BitDepth::Eight, &[0; 6]))
        .unwrap();
    for (name, color) in [("c1", ColorType::Grayscale), ("c2", ColorType::Grayscale), ("c3", ColorType::Indexed)] {
        let bytes = png_bytes(3, 2, color, BitDepth::Eight, &[0, 1, 2, 3, 2, 1]);
        std::fs::write(folder.path().join(format!("{name}.png")), bytes).unwrap();
    }
    let members = |name: &str| open(&folder.path().join(name), &OpenOptions::default()).unwrap().files();
    let files = |name: &str| members(name).len();
    // Indices of a palette are not gray values.
    assert_eq!((files("c1.png"), files("c3.png")), (2, 1));
    assert_eq!((files("a1.png"), files("a5.png"), files("a6.png"), files("b3.png")), (2, 2, 1, 1));
    let left_out = |name: &str| count_files_outside_series(&members(name));
    assert_eq!((left_out("a1.png"), left_out("a5.png"), left_out("b3.png")), (3, 3, 0));
    let all: Vec<PathBuf> =
        ["a1.png", "a2.png", "a4.png", "a5.png", "a6.png", "b3.png"].map(|n| folder.path().join(n)).into();
    let kept = first_file_per_series(&all);
    assert_eq!(kept, ["a1.png", "a4.png", "a6.png", "b3.png"].map(|n| folder.path().join(n)));
    // It is not clear which series of the folder is meant.
    let error = open(folder.path(), &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Misused);
    assert!(error.to_string().contains("a1.png"), "{error}");
}

/// A classic TIFF of 16-bit pages of `width` × 2 pixels, with the resolution in pixels per centimeter.
fn tiff_bytes(width: u32, pages: &[Vec<u16>], per_cm: u32) -> Vec<u8> {
    let mut bytes = b"II*\0\0\0\0\0".to_vec();
    let mut link = 4;
    for values in pages {
        let data = bytes.len() as u32;
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        let resolution = bytes.len() as u32;
        bytes.extend([per_cm, 1].iter().flat_map(|v| v.to_le_bytes()));
        let tags: [(u16, u16, u32); 12] = [
            (256, 4, width),
            (257, 4, 2),
            (258, 3, 16),
            (259, 3, 1),
            (262, 3, 1),
            (273, 4, data),
            (277, 3, 1),
            (278, 4, 2),
            (279, 4, width * 4),
            (282, 5, resolution),
            (283, 5, resolution),
            (296, 3, 3),
        ];
        let directory = bytes.len() as u32;
        bytes[link..link + 4].copy_from_slice(&directory.to_le_bytes());
        bytes.extend((tags.len() as u16).to_le_bytes());
        for (tag, kind, value) in tags {
            bytes.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
            bytes.extend([1u32.to_le_bytes(), value.to_le_bytes()].concat());
        }
        link = bytes.len();
        bytes.extend([0; 4]);
    }
    bytes
}

/// The pixels of a TIFF file of 3 × 2 pixels: `first`, `first + 1` and so on.
fn plane(first: u16) -> Vec<u16> {
    (first..first + 6).collect()
}

fn default_open(path: &Path) -> Result<cytoscope_formats::Image, cytoscope_formats::FormatError> {
    open(path, &OpenOptions::default())
}

#[test]
fn numbered_tiff_slices_are_a_stack_from_any_member_or_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for z in 0..140u16 {
        std::fs::write(at(&format!("img_{z:04}.tif")), tiff_bytes(3, &[plane(z * 100)], 20_000)).unwrap();
    }
    // Stacks, other names, and text are not slices.
    std::fs::write(at("img_0140.tif"), tiff_bytes(3, &[plane(0), plane(0)], 20_000)).unwrap();
    std::fs::write(at("img_0001_labels.tif"), tiff_bytes(3, &[plane(7)], 20_000)).unwrap();
    std::fs::write(at("img_0141.tif"), "text").unwrap();
    for opened in [folder.path().to_owned(), at("img_0000.tif"), at("img_0077.tif")] {
        let image = default_open(&opened).unwrap();
        let meta = image.meta();
        assert_eq!((meta.format.as_str(), image.files().len()), ("tiff series", 140));
        assert_eq!((meta.shape_full.as_slice(), meta.is_numbered_series()), (&[1, 140, 1, 2, 3, 1][..], true));
        // 20,000 pixels in a centimeter.
        assert_eq!((meta.voxel_size_um.z, meta.voxel_size_um.y, meta.voxel_size_um.x), (None, Some(0.5), Some(0.5)));
        let part = Region { start: vec![0, 9, 0, 1, 0, 0], size: vec![1, 3, 1, 1, 2, 1] };
        let expected = Samples::U16(vec![903, 904, 1003, 1004, 1103, 1104]);
        assert_eq!(image.read(0, &part).unwrap().into_samples(), expected);
    }
    let with = |options: OpenOptions| open(&at("img_0003.tif"), &options);
    for alone in [
        OpenOptions { single_file: true, ..OpenOptions::default() },
        OpenOptions { axes: Some("YX".parse().unwrap()), ..OpenOptions::default() },
    ] {
        assert_eq!(with(alone).unwrap().read_all().unwrap().into_samples(), Samples::U16(plane(300)));
    }
    let times = OpenOptions { axes: Some("TYX".parse().unwrap()), ..OpenOptions::default() };
    assert_eq!(with(times).unwrap().meta().shape_full, [140, 1, 1, 2, 3, 1]);
    let few = Limits { max_set_files: 5, ..Limits::default() };
    let error = with(OpenOptions { limits: few, ..OpenOptions::default() }).unwrap_err();
    assert!(error.kind() == FormatErrorKind::OverLimit && error.to_string().contains("max_set_files"), "{error}");
    let names = ["img_0000.tif", "img_0001.tif", "img_0001_labels.tif", "img_0139.tif", "img_0140.tif"];
    let kept = first_file_per_series(&names.map(at));
    assert_eq!(kept, ["img_0000.tif", "img_0001_labels.tif", "img_0140.tif"].map(at));
}

#[test]
fn tiff_files_whose_samples_mean_something_else_are_no_slices_of_a_series() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // 0: white is zero, 1: black is zero, 3: a palette.
    let write = |name: &str, photometric: u8| {
        let mut bytes = tiff_bytes(3, &[plane(0)], 1);
        let tag = bytes.windows(8).position(|window| window == [6, 1, 3, 0, 1, 0, 0, 0]).unwrap();
        bytes[tag + 8] = photometric;
        std::fs::write(at(name), bytes).unwrap();
    };
    for (other, same) in [(3, 1), (0, 1), (1, 3)] {
        for z in 0..5 {
            write(&format!("s_{z:03}.tif"), if z == 2 { other } else { same });
        }
        let count = |name: &str| default_open(&at(name)).unwrap().files().len();
        assert_eq!(["s_000.tif", "s_002.tif", "s_004.tif"].map(count), [2, 1, 2], "{other} among {same}");
    }
    (0..5).for_each(|z| write(&format!("s_{z:03}.tif"), 3));
    assert_eq!(default_open(&at("s_002.tif")).unwrap().files().len(), 5);
}

#[test]
fn opening_a_long_series_reads_few_of_its_files_and_a_different_one_is_refused_when_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for z in 0..40u16 {
        std::fs::write(at(&format!("img_{z:03}.tif")), tiff_bytes(3, &[plane(z * 100)], 1)).unwrap();
        std::fs::write(at(&format!("t_Z{z:03}.tif")), tiff_bytes(3, &[plane(z * 100)], 1)).unwrap();
    }
    series(folder.path(), "p", &(0..40).collect::<Vec<u16>>(), 3);
    // These are not among the files that are checked when the series is opened: the first, the last and every 2.6th.
    for name in ["img_021.tif", "t_Z021.tif"] {
        std::fs::write(at(name), tiff_bytes(4, &[(0..8).collect()], 1)).unwrap();
    }
    std::fs::write(at("img_024.tif"), tiff_bytes(3, &[plane(0), plane(0)], 1)).unwrap();
    std::fs::write(at("p021.png"), png_bytes(3, 2, ColorType::Grayscale, BitDepth::Eight, &[0; 6])).unwrap();
    let differs = "differs from the other files of its series";
    for (opened, different) in [
        ("img_003.tif", "img_021.tif"),
        ("img_003.tif", "img_024.tif"),
        ("t_Z003.tif", "t_Z021.tif"),
        ("p003.png", "p021.png"),
    ] {
        let image = default_open(&at(opened)).unwrap();
        assert_eq!(image.meta().shape_full, [1, 40, 1, 2, 3, 1], "{opened}");
        let slice = |z: usize| {
            let region = Region { start: vec![0, z, 0, 0, 0, 0], size: vec![1, 1, 1, 2, 3, 1] };
            image.read(0, &region).map(cytoscope_volume::Array::into_samples)
        };
        assert_eq!(slice(20).unwrap(), Samples::U16(plane(2000)), "{opened}");
        let z = different.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
        let error = slice(z).unwrap_err();
        assert_eq!(error.file(), at(different), "{error}");
        assert!(error.kind() == FormatErrorKind::Malformed && error.to_string().contains(differs), "{error}");
    }
    // A different file at an end is noticed at once: each file is then checked, and the series ends before the first that
    // differs.
    std::fs::write(at("img_039.tif"), tiff_bytes(4, &[(0..8).collect()], 1)).unwrap();
    assert_eq!(default_open(&at("img_003.tif")).unwrap().meta().shape_full, [1, 21, 1, 2, 3, 1]);
    std::fs::write(at("t_Z039.tif"), tiff_bytes(4, &[(0..8).collect()], 1)).unwrap();
    let error = default_open(&at("t_Z003.tif")).unwrap_err();
    assert!(error.to_string().contains("t_Z021.tif is not a single page of the same size"), "{error}");
}

#[test]
fn tiff_slices_without_leading_zeros_are_a_stack_if_the_last_number_has_three_digits() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for z in 8..103u16 {
        std::fs::write(at(&format!("img{z}.tif")), tiff_bytes(3, &[plane(z * 100)], 1)).unwrap();
    }
    // Variants of an image, not slices.
    for n in [2, 3] {
        std::fs::write(at(&format!("depth-{n}.tif")), tiff_bytes(3, &[plane(n)], 1)).unwrap();
    }
    for opened in [folder.path().to_owned(), at("img8.tif"), at("img101.tif")] {
        let image = default_open(&opened).unwrap();
        assert_eq!(image.meta().shape_full, [1, 95, 1, 2, 3, 1], "{}", opened.display());
        assert_eq!(image.files().first(), Some(&at("img8.tif")));
        let last = Region { start: vec![0, 94, 0, 0, 0, 0], size: vec![1, 1, 1, 2, 3, 1] };
        assert_eq!(image.read(0, &last).unwrap().into_samples(), Samples::U16(plane(10_200)));
    }
    let kept = first_file_per_series(&["depth-2.tif", "depth-3.tif", "img100.tif", "img8.tif"].map(at));
    assert_eq!(kept, ["depth-2.tif", "depth-3.tif", "img100.tif"].map(at));
    let alone = default_open(&at("depth-2.tif")).unwrap();
    assert_eq!(alone.read_all().unwrap().into_samples(), Samples::U16(plane(2)));
    // Without this file, the numbers up to 99 have two digits.
    std::fs::remove_file(at("img100.tif")).unwrap();
    assert_eq!(default_open(&at("img50.tif")).unwrap().meta().shape_full, [1, 1, 1, 2, 3, 1]);
}

#[test]
fn stacks_and_ome_sets_with_numbers_in_their_names_stay_separate() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for n in 1..4u16 {
        std::fs::write(at(&format!("stack_Z{n}.tif")), tiff_bytes(3, &[plane(n), plane(n + 1)], 1)).unwrap();
        let array = Array::new("YX".parse().unwrap(), vec![2, 3], plane(n)).unwrap();
        let ome = at(&format!("ome_{n:03}.ome.tif"));
        write_array(&ome, &array, &WriteSpec::of(&array, Container::OmeTiff)).unwrap();
        std::fs::rename(ome, at(&format!("ome_{n:03}.tif"))).unwrap();
    }
    let stacks = ["stack_Z1.tif", "stack_Z2.tif", "stack_Z3.tif"].map(at);
    let planes = ["ome_001.tif", "ome_002.tif", "ome_003.tif"].map(at);
    assert_eq!(default_open(&stacks[1]).unwrap().meta().shape_full, [1, 2, 1, 2, 3, 1]);
    assert_eq!(default_open(&planes[1]).unwrap().read_all().unwrap().into_samples(), Samples::U16(plane(2)));
    assert_eq!(first_file_per_series(&stacks), stacks);
    assert_eq!(first_file_per_series(&planes), planes);
}

#[test]
fn letters_in_the_names_of_tiff_slices_are_axes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let name = |t: u16, z: u16, c: u16| format!("cells_t{t}_z{z:02}_ch{c:02}.tif");
    let value = |t: u16, z: u16, c: u16| t * 1000 + z * 100 + c * 10;
    for (t, z, c) in (0..2).flat_map(|t| (8..11).flat_map(move |z| (1..3).map(move |c| (t, z, c)))) {
        std::fs::write(at(&name(t, z, c)), tiff_bytes(3, &[plane(value(t, z, c))], 1)).unwrap();
    }
    let image = default_open(&at(&name(1, 9, 1))).unwrap();
    assert_eq!((image.meta().shape_full.as_slice(), image.files().len()), (&[2, 3, 2, 2, 3, 1][..], 12));
    for (t, z, c) in [(0, 8, 1), (0, 10, 2), (1, 9, 1)] {
        let start = vec![usize::from(t), usize::from(z - 8), usize::from(c - 1), 0, 0, 0];
        let found = image.read(0, &Region { start, size: vec![1, 1, 1, 2, 3, 1] }).unwrap();
        assert_eq!(found.into_samples(), Samples::U16(plane(value(t, z, c))), "{t} {z} {c}");
    }
    // Another size, and then a missing file: the first one is named.
    std::fs::write(at(&name(0, 10, 1)), tiff_bytes(4, &[(0..8).collect()], 1)).unwrap();
    std::fs::write(at(&name(1, 9, 2)), "text").unwrap();
    let refusal = || default_open(&at(&name(1, 8, 1))).unwrap_err();
    assert!(refusal().to_string().contains(&format!("{} is not a single page of the same size", name(0, 10, 1))));
    std::fs::remove_file(at(&name(0, 9, 2))).unwrap();
    std::fs::remove_file(at(&name(1, 10, 2))).unwrap();
    let error = refusal();
    assert_eq!(error.kind(), FormatErrorKind::Misused);
    assert!(error.to_string().contains(&format!("{} is missing", name(0, 9, 2))), "{error}");
    // A folder opens as one file, whose error is shown once.
    let all: Vec<PathBuf> = (8..11).map(|z| at(&name(1, z, 1))).collect();
    assert_eq!(first_file_per_series(&all), all[..1]);
    let alone = OpenOptions { axes: Some("YX".parse().unwrap()), ..OpenOptions::default() };
    let found = open(&at(&name(1, 8, 1)), &alone).unwrap().read_all().unwrap();
    assert_eq!(found.into_samples(), Samples::U16(plane(value(1, 8, 1))));
}

#[test]
fn a_jpeg_is_read_as_written() {
    // A ramp of 8 × 8 pixels, made with Pillow.
    let seed = include_bytes!("../../../../fuzz/seeds/read_raster/gray_jpeg");
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
    let sized = |width: u32, height: u32| {
        let mut file = good.clone();
        file[16..20].copy_from_slice(&width.to_be_bytes());
        file[20..24].copy_from_slice(&height.to_be_bytes());
        file
    };
    assert_eq!(read(sized(0x2000, 0x2000), Limits::default()), Err(FormatErrorKind::Malformed));
    // More than the memory of any machine: it is refused before it is allocated.
    assert_eq!(read(sized(0x7FFF_FFFF, 200), Limits::default()), Err(FormatErrorKind::OverLimit));
}
