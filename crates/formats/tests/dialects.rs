//! TIFF dialects of microscopes: Zeiss LSM and MetaMorph STK, made byte by byte.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use cytoscope_formats::{FormatErrorKind, Image, OpenOptions, open_bytes};
use cytoscope_volume::{Region, Samples};

/// A classic little-endian TIFF.
struct Tiff {
    bytes: Vec<u8>,
    /// Position of the offset of the next page.
    link: usize,
}

/// One tag: its number, type, count and bytes.
type Tag = (u16, u16, u32, Vec<u8>);

fn short(tag: u16, values: &[u16]) -> Tag {
    (tag, 3, values.len() as u32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

fn long(tag: u16, values: &[u32]) -> Tag {
    (tag, 4, values.len() as u32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

impl Tiff {
    fn new() -> Self {
        Self { bytes: b"II*\0\0\0\0\0".to_vec(), link: 4 }
    }

    fn data(&mut self, data: &[u8]) -> u32 {
        self.bytes.resize(self.bytes.len().next_multiple_of(2), 0);
        let at = self.bytes.len() as u32;
        self.bytes.extend(data);
        at
    }

    fn page(&mut self, tags: &[Tag]) {
        let mut body = (tags.len() as u16).to_le_bytes().to_vec();
        for (tag, kind, count, raw) in tags {
            let field = match raw.len() {
                0..=4 => [raw.clone(), vec![0; 4 - raw.len()]].concat(),
                _ => self.data(raw).to_le_bytes().to_vec(),
            };
            body.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
            body.extend(count.to_le_bytes());
            body.extend(field);
        }
        body.extend([0; 4]);
        let at = self.data(&body);
        self.bytes[self.link..self.link + 4].copy_from_slice(&at.to_le_bytes());
        self.link = at as usize + body.len() - 4;
    }
}

/// Two slices of 2 × 3 pixels in two channels at two times, each page followed by its thumbnail.
fn lsm(scan: u16, declared_slices: i32) -> Vec<u8> {
    let mut tiff = Tiff::new();
    let names = [&6u32.to_le_bytes()[..], b"nuclei", &9u32.to_le_bytes()[..], b"membrane\0"].concat();
    let colors = [0u8, 0, 255, 0, 255, 0, 0, 0];
    let size = 24 + colors.len() + names.len();
    let head: Vec<u8> = [size as u32, 2, 2, 24, 32, 0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let block = tiff.data(&[head, colors.to_vec(), names].concat());
    let mut info = vec![0u8; 128];
    let mut put = |at: usize, bytes: &[u8]| info[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &0x0040_494Cu32.to_le_bytes());
    for (at, n) in [(8, 3), (12, 2), (16, declared_slices), (20, 2), (24, 2)] {
        put(at, &n.to_le_bytes());
    }
    for (at, v) in [(40, 1e-7f64), (48, 2e-7), (56, 5e-7), (112, 1.5)] {
        put(at, &v.to_le_bytes());
    }
    put(88, &scan.to_le_bytes());
    put(108, &block.to_le_bytes());
    for page in 0..4u8 {
        // Each channel in its own strip.
        let strips = [0, 6].map(|c| tiff.data(&(0..6).map(|i| page * 12 + c + i).collect::<Vec<u8>>()));
        let mut tags = vec![
            long(254, &[0]),
            long(256, &[3]),
            long(257, &[2]),
            short(258, &[8, 8]),
            short(259, &[1]),
            short(262, &[2]),
            long(273, &strips),
            short(277, &[2]),
            long(278, &[2]),
            long(279, &[6, 6]),
            short(284, &[2]),
        ];
        if page == 0 {
            tags.push((34412, 1, info.len() as u32, info.clone()));
        }
        tiff.page(&tags);
        let at = tiff.data(&[9; 3]);
        let thumbnail = [
            long(254, &[1]),
            long(256, &[1]),
            long(257, &[1]),
            short(258, &[8, 8, 8]),
            short(259, &[1]),
            short(262, &[2]),
            long(273, &[at]),
            short(277, &[3]),
            long(278, &[1]),
            long(279, &[3]),
        ];
        tiff.page(&thumbnail);
    }
    tiff.bytes
}

fn opened(bytes: Vec<u8>) -> Result<Image, FormatErrorKind> {
    open_bytes(bytes, &OpenOptions::default()).map_err(|e| e.kind())
}

#[test]
fn an_lsm_file_has_channels_times_and_voxel_size_and_no_thumbnails() {
    let image = opened(lsm(6, 2)).unwrap();
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.axes.to_string().as_str(), meta.series_count), ("lsm", "TZCYX", 1));
    assert_eq!(meta.shape, [2, 2, 2, 2, 3]);
    let names: Vec<(&str, Option<[u8; 3]>)> = meta.channels.iter().map(|c| (c.name.as_str(), c.color_rgb)).collect();
    assert_eq!(names, [("nuclei", Some([0, 0, 255])), ("membrane", Some([255, 0, 0]))]);
    let v = meta.voxel_size_um;
    for (got, expected) in [(v.z, 0.5), (v.y, 0.2), (v.x, 0.1), (meta.time_interval_secs, 1.5)] {
        assert!((got.unwrap() - expected).abs() < 1e-9, "{got:?}");
    }
    // Pages are T, Z; within a page, channels; so values count up in the order T, Z, C, Y, X.
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8((0..48).collect()));
    let second_channel = Region { start: vec![1, 0, 1, 1, 1, 0], size: vec![1, 2, 1, 1, 2, 1] };
    let expected = Samples::U8(vec![34, 35, 46, 47]);
    assert_eq!(image.read(0, &second_channel).unwrap().into_samples(), expected);
}

#[test]
fn lsm_files_that_are_no_stacks_are_refused() {
    assert_eq!(opened(lsm(2, 2)).unwrap_err(), FormatErrorKind::Unsupported);
    assert_eq!(opened(lsm(6, 3)).unwrap_err(), FormatErrorKind::Unsupported);
}

/// Three planes of 2 × 2 pixels, of which the file declares `declared`; `distance` is the distance of each plane to the one before, in tenths of µm.
fn stk(distance: u32, declared: u32) -> Vec<u8> {
    let mut tiff = Tiff::new();
    let pixels = tiff.data(&(0..12).flat_map(|v: u16| v.to_le_bytes()).collect::<Vec<u8>>());
    let fraction = tiff.data(&[13u32, 100].map(u32::to_le_bytes).concat());
    let unit = tiff.data(&[&3u32.to_le_bytes()[..], b"um\0"].concat());
    let uic1: Vec<u8> = [4, fraction, 5, fraction, 6, unit].iter().flat_map(|v: &u32| v.to_le_bytes()).collect();
    let uic2: Vec<u8> = (0..3)
        .flat_map(|i| [if i == 0 { 0 } else { distance }, 10, 2_450_000, 1000 + 500 * i, 0, 0])
        .flat_map(u32::to_le_bytes)
        .collect();
    tiff.page(&[
        long(256, &[2]),
        long(257, &[2]),
        short(258, &[16]),
        short(259, &[1]),
        short(262, &[1]),
        long(273, &[pixels, pixels + 4]),
        short(277, &[1]),
        long(278, &[1]),
        long(279, &[4, 4]),
        (33628, 5, 3, uic1),
        (33629, 5, declared, uic2),
    ]);
    tiff.bytes
}

#[test]
fn an_stk_file_has_all_planes_as_slices_or_times() {
    let image = opened(stk(5, 3)).unwrap();
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.shape_full.as_slice()), ("metamorph", [1, 3, 1, 2, 2, 1].as_slice()));
    let v = meta.voxel_size_um;
    for (got, expected) in [(v.z, 0.5), (v.y, 0.13), (v.x, 0.13)] {
        assert!((got.unwrap() - expected).abs() < 1e-9, "{got:?}");
    }
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16((0..12).collect()));
    let times = opened(stk(0, 3)).unwrap();
    assert_eq!(times.meta().shape_full, [3, 1, 1, 2, 2, 1]);
    assert_eq!((times.meta().time_interval_secs, times.meta().voxel_size_um.z), (Some(0.5), None));
    // More planes than the file contains.
    assert_eq!(opened(stk(5, 1_000_000)).unwrap_err(), FormatErrorKind::Malformed);
}
