//! Small files that declare large images are refused with the limit they exceed; valid files of the same kind are read.
//!
//! The sizes are such that work growing with the square of a count would take minutes.

use cytoscope_formats::{FormatError, FormatErrorKind, Image, OpenOptions, open_bytes};
use cytoscope_volume::{Region, Samples};
use std::fmt::Write;

/// One entry of a directory: tag, type (3 SHORT, 4 LONG), count, value or offset.
type Entry = (u16, u16, u32, u32);

/// A classic little-endian TIFF: `data` after the header, then one directory per page.
fn tiff(data: &[u8], pages: impl Iterator<Item = Vec<Entry>>) -> Vec<u8> {
    let mut bytes = b"II*\0\0\0\0\0".to_vec();
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    let mut link = 4;
    for entries in pages {
        let at = bytes.len() as u32;
        bytes[link..link + 4].copy_from_slice(&at.to_le_bytes());
        bytes.extend((entries.len() as u16).to_le_bytes());
        for (tag, kind, count, value) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            bytes.extend(count.to_le_bytes());
            bytes.extend(value.to_le_bytes());
        }
        link = bytes.len();
        bytes.extend([0; 4]);
    }
    bytes
}

fn page(width: u32, height: u32, compression: u32, offset: u32, stored: u32) -> Vec<Entry> {
    vec![
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 1, 8),
        (259, 3, 1, compression),
        (262, 3, 1, 1),
        (273, 4, 1, offset),
        (277, 3, 1, 1),
        (278, 4, 1, height),
        (279, 4, 1, stored),
    ]
}

fn with_description(mut first: Vec<Entry>, length: usize) -> Vec<Entry> {
    let at = first.iter().position(|e| e.0 > 270).unwrap();
    first.insert(at, (270, 2, length as u32, 8));
    first
}

/// A file of one page whose description is `xml`, followed by `more` pages without one.
fn ome(xml: &str, pages: usize) -> Vec<u8> {
    let mut data = xml.as_bytes().to_vec();
    data.push(0);
    let at = 8 + data.len() as u32;
    data.extend(1..=16);
    let length = xml.len() + 1;
    let first = with_description(page(4, 4, 1, at, 16), length);
    tiff(&data, std::iter::once(first).chain((1..pages).map(|_| page(4, 4, 1, at, 16))))
}

fn read(bytes: Vec<u8>) -> Result<Image, FormatError> {
    open_bytes(bytes, &OpenOptions::default())
}

fn over_limit(bytes: Vec<u8>, says: &str) {
    let error = read(bytes).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::OverLimit, "{error}");
    assert!(error.to_string().contains(says), "\"{error}\" does not say \"{says}\"");
}

#[test]
fn pages_that_share_a_strip_are_refused_when_opened() {
    // 2,000 pages of 1 MiB from one strip, uncompressed and compressed.
    let raw = vec![7u8; 1 << 20];
    over_limit(tiff(&raw, (0..2000).map(|_| page(1024, 1024, 1, 8, 1 << 20))), "share");
    // Overlapping strips, none of which equals another.
    over_limit(tiff(&raw, (0..2000).map(|i| page(1024, 512, 1, 8 + i, 1 << 19))), "share");
    let packed = [0x81u8, 7].repeat((16 << 20) / 128);
    let stored = packed.len() as u32;
    over_limit(tiff(&packed, (0..2000).map(|_| page(4096, 4096, 32773, 8, stored))), "share");
}

#[test]
fn valid_files_and_small_files_open() {
    let raw: Vec<u8> = (0..40u32 << 20).map(|i| (i >> 12) as u8).collect();
    let image = read(tiff(&raw, (0..40).map(|i| page(1024, 1024, 1, 8 + (i << 20), 1 << 20)))).unwrap();
    assert_eq!(image.meta().shape, [40, 1024, 1024]);
    // Every page is compressed about 60 times; none is shared.
    let plane = [0x81u8, 7].repeat((4 << 20) / 128);
    let stored = plane.len() as u32;
    let data = plane.repeat(40);
    let image = read(tiff(&data, (0..40).map(|i| page(2048, 2048, 32773, 8 + i * stored, stored)))).unwrap();
    assert_eq!(image.meta().shape, [40, 2048, 2048]);
    // Pages that are not stored read as zeros; any number of them is allowed.
    let image = read(tiff(&[], (0..2000).map(|_| page(1024, 1024, 1, 0, 0)))).unwrap();
    assert_eq!(image.meta().shape, [2000, 1024, 1024]);
    // Blank pages of a small file may share a strip.
    let image = read(tiff(&[0; 256], (0..100).map(|_| page(16, 16, 1, 8, 256)))).unwrap();
    assert_eq!(image.meta().shape, [100, 16, 16]);
}

/// A page of one tile.
fn tiled(width: u32, height: u32, tile: [u32; 2], offset: u32, stored: u32) -> Vec<Entry> {
    let mut entries = page(width, height, 1, offset, stored);
    entries.retain(|e| !matches!(e.0, 273 | 278 | 279));
    entries.extend([(322, 4, 1, tile[0]), (323, 4, 1, tile[1]), (324, 4, 1, offset), (325, 4, 1, stored)]);
    entries
}

#[test]
fn tiles_of_an_impossible_size_are_refused_when_opened() {
    let malformed = |bytes: Vec<u8>| {
        let error = read(bytes).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Malformed, "{error}");
        assert!(error.to_string().contains("MAX_TILE_EDGE"), "{error}");
    };
    malformed(include_bytes!("../../../../fuzz/seeds/read_image/huge_tile").to_vec());
    for tile in [[16, i32::MAX as u32], [16_400, 16]] {
        malformed(tiff(&[0; 16], std::iter::once(tiled(4, 4, tile, 8, 16))));
    }
    // A tile may be larger than a small page.
    let image = read(tiff(&[7; 128 * 64], std::iter::once(tiled(2, 3, [128, 64], 8, 128 * 64)))).unwrap();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8(vec![7; 6]));
    // The only tile of a large page, whose width is rounded up to a multiple of 16.
    let image = read(tiff(&[7; 16_400 * 16], std::iter::once(tiled(16_389, 1, [16_400, 16], 8, 16_400 * 16)))).unwrap();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8(vec![7; 16_389]));
}

#[test]
fn an_image_whose_size_no_computer_can_address_is_refused_when_opened() {
    let edge = i32::MAX as u32;
    let mut entries = page(edge, edge, 1, 0, 0);
    entries.iter_mut().filter(|e| e.0 == 277).for_each(|e| e.3 = 65_535);
    let error = read(tiff(&[], std::iter::once(entries))).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Malformed, "{error}");
    assert!(error.to_string().contains("too large"), "{error}");
}

#[test]
fn a_last_strip_is_not_decoded_with_the_impossible_height_of_the_others() {
    let (width, rows) = (1u32 << 16, i32::MAX as u32 - 1);
    // Two blocks of Deflate data, which hold more than the only row of the last strip.
    let mut data = vec![0x78, 0x01];
    for (is_last, length) in [(0u8, 65_535u16), (1, 5000)] {
        data.push(is_last);
        data.extend(length.to_le_bytes());
        data.extend((!length).to_le_bytes());
        data.extend(vec![0; usize::from(length)]);
    }
    data.extend([0; 4]);
    let stored = data.len() as u32;
    let tables = 8 + stored;
    for value in [0, 8, 0, stored] {
        data.extend(value.to_le_bytes());
    }
    let mut entries = page(width, rows + 1, 8, 0, 0);
    for entry in &mut entries {
        match entry.0 {
            273 => *entry = (273, 4, 2, tables),
            278 => entry.3 = rows,
            279 => *entry = (279, 4, 2, tables + 8),
            _ => {}
        }
    }
    let image = read(tiff(&data, std::iter::once(entries))).unwrap();
    let last = Region { start: vec![0, 0, 0, rows as usize, 0, 0], size: vec![1, 1, 1, 1, width as usize, 1] };
    let error = image.read(0, &last).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::OverLimit, "{error}");
    assert!(error.to_string().contains("max_chunk_bytes"), "{error}");
}

#[test]
fn values_that_many_directories_share_are_refused() {
    // A chain of directories whose values are one array: 60,000 pages of 60,000 samples each.
    let samples = 60_000u32;
    let data = 8u16.to_le_bytes().repeat(samples as usize);
    let many = |_| {
        let mut page = page(1, 1, 1, 8, samples);
        page.retain(|e| e.0 != 258 && e.0 != 277);
        page.extend([(258, 3, samples, 8), (277, 3, 1, samples)]);
        page.sort_by_key(|e| e.0);
        page
    };
    let error = read(tiff(&data, (0..60_000).map(many))).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Malformed, "{error}");
    assert!(error.to_string().contains("overlap"), "{error}");
}

#[test]
fn subdirectories_that_share_their_tags_are_refused() {
    const COUNT: u32 = 1000;
    const TAGS: u16 = 4000;
    let (offsets_at, tags_at) = (24, 24 + 4 * COUNT);
    let mut data = vec![7; 16];
    // The last two bytes of each tag are the number of tags of the directory that begins there.
    (0..COUNT).for_each(|i| data.extend((tags_at + 12 * i + 10).to_le_bytes()));
    let tags = page(4, 4, 1, 8, 16).into_iter().cycle().take(COUNT as usize + usize::from(TAGS) + 1);
    for (tag, _, count, value) in tags {
        data.extend([tag.to_le_bytes(), 3u16.to_le_bytes()].concat());
        data.extend(count.to_le_bytes());
        data.extend([(value as u16).to_le_bytes(), TAGS.to_le_bytes()].concat());
    }
    let mut first = page(4, 4, 1, 8, 16);
    first.push((330, 4, COUNT, offsets_at));
    let error = read(tiff(&data, std::iter::once(first))).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Malformed, "{error}");
    assert!(error.to_string().contains("directories overlap"), "{error}");
}

#[test]
fn pages_of_many_shapes_are_grouped_or_refused() {
    let shapes = |n: u32| tiff(&[0; 4], (0..200_000u32).map(move |i| page(1 + i % n, 1, 1, 0, 0)));
    assert_eq!(read(shapes(4000)).unwrap().meta().series_count, 4000);
    over_limit(shapes(5000), "MAX_SHAPES");
}

fn pixels(sizes: &str, tiff_data: &str) -> String {
    format!(
        "<OME><Image><Pixels DimensionOrder=\"XYZCT\" Type=\"uint8\" SizeX=\"4\" SizeY=\"4\" {sizes}>{tiff_data}</Pixels>\
         </Image></OME>"
    )
}

#[test]
fn many_tiff_data_are_read_in_linear_time() {
    let count = 60_000;
    let mut data = String::new();
    for i in 0..count {
        let page = i % 1000;
        write!(data, "<TiffData IFD=\"{page}\" FirstT=\"{i}\"><UUID FileName=\"x.ome.tif\">u</UUID></TiffData>")
            .unwrap();
    }
    let sizes = format!("SizeZ=\"1\" SizeC=\"1\" SizeT=\"{count}\"");
    let image = read(ome(&pixels(&sizes, &data), 1000)).unwrap();
    assert_eq!(image.meta().shape, [count, 4, 4]);
    assert_eq!(image.meta().missing_planes, 0);
}

#[test]
fn pages_are_assigned_to_planes_a_few_times_at_most() {
    // Each TiffData element covers all planes: a thousand million assignments.
    let sizes = "SizeZ=\"1\" SizeC=\"1\" SizeT=\"20000\"";
    for one in ["<TiffData/>", "<TiffData PlaneCount=\"18446744073709551615\"/>"] {
        let error = read(ome(&pixels(sizes, &one.repeat(50_000)), 20_000)).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Malformed, "{error}");
        assert!(error.to_string().contains("assign pages"), "{error}");
    }
    let mut data = String::new();
    (0..1000).for_each(|i| write!(data, "<TiffData IFD=\"0\" FirstT=\"{i}\"/>").unwrap());
    over_limit(ome(&pixels("SizeZ=\"1\" SizeC=\"1\" SizeT=\"1000\"", &data), 1), "MAX_PLANES_OF_PAGE");
}

#[test]
fn attributes_are_checked_in_linear_time() {
    let mut many = String::from(
        "<OME><Image><Pixels DimensionOrder=\"XYZCT\" SizeX=\"4\" SizeY=\"4\" SizeZ=\"1\" SizeC=\"1\" SizeT=\"1\"",
    );
    (0..300_000).for_each(|i| write!(many, " a{i}=\"\"").unwrap());
    let image = read(ome(&format!("{many}/></Image></OME>"), 1)).unwrap();
    assert_eq!(image.meta().shape, [4, 4]);
    let twice = "<OME><Image><Pixels SizeX=\"4\" SizeX=\"5\"/></Image></OME>";
    assert_eq!(read(ome(twice, 1)).unwrap_err().kind(), FormatErrorKind::Malformed);
}
