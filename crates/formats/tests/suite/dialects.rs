//! TIFF dialects of microscopes: Zeiss LSM, MetaMorph STK, Olympus FluoView, Hamamatsu NDPI and Aperio SVS, made byte by byte as
//! tifffile's source documents their tags. What files state in texts is tested in `tiff_descriptions`.

use crate::common::page_samples;
use crate::common::tiff_builder::{Tiff, long, pages, short, text};
use cytoscope_formats::{FormatErrorKind, Image, OpenOptions, open, open_bytes};
use cytoscope_volume::{Region, Samples};

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
    put(0, &0x0400_494Cu32.to_le_bytes());
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
fn lsm_files_that_are_not_stacks_are_refused() {
    assert_eq!(opened(lsm(2, 2)).unwrap_err(), FormatErrorKind::Unsupported);
    assert_eq!(opened(lsm(6, 3)).unwrap_err(), FormatErrorKind::Unsupported);
}

#[test]
fn axes_that_are_given_for_an_lsm_file_keep_the_samples_as_channels() {
    // The time points cannot be the channels, which the samples are.
    let options = |axes: &str| OpenOptions { axes: Some(axes.parse().unwrap()), ..OpenOptions::default() };
    let error = open_bytes(lsm(6, 2), &options("CYX")).unwrap_err();
    assert!(error.kind() == FormatErrorKind::Misused && error.to_string().contains("C=2"), "{error}");
    let renamed = open_bytes(lsm(6, 2), &options("ZTYX")).unwrap();
    assert_eq!(
        (renamed.meta().axes.to_string().as_str(), renamed.meta().channels[0].name.as_str()),
        ("TZCYX", "nuclei")
    );
}

/// Three planes of 2 × 2 pixels, of which the file declares `declared`; `distance` is the distance of each plane to the one
/// before, in tenths of µm.
fn stk(distance: u32, declared: u32) -> Vec<u8> {
    stk_with_strips(distance, declared, 4)
}

/// Like [`stk`]; the second strip begins `second` bytes after the first one, whose length is 4 bytes.
fn stk_with_strips(distance: u32, declared: u32, second: u32) -> Vec<u8> {
    let mut tiff = Tiff::new();
    let pixels = tiff.data(&(0..12).flat_map(|v: u16| v.to_le_bytes()).collect::<Vec<u8>>());
    let fraction = tiff.data(&[13u32, 100].map(u32::to_le_bytes).concat());
    let unit = tiff.data(&[&3u32.to_le_bytes()[..], b"um\0"].concat());
    let uic1: Vec<u8> = [4, fraction, 5, fraction, 6, unit].iter().flat_map(|v: &u32| v.to_le_bytes()).collect();
    let uic2: Vec<u8> = (0..3)
        .flat_map(|i| {
            // Days and milliseconds since midnight, which is between the first two planes.
            let ms = 86_399_500 + 500 * i;
            [if i == 0 { 0 } else { distance }, 10, 2_450_000 + ms / 86_400_000, ms % 86_400_000, 0, 0]
        })
        .flat_map(u32::to_le_bytes)
        .collect();
    tiff.page(&[
        long(256, &[2]),
        long(257, &[2]),
        short(258, &[16]),
        short(259, &[1]),
        short(262, &[1]),
        long(273, &[pixels, pixels + second]),
        short(277, &[1]),
        long(278, &[1]),
        long(279, &[4, 4]),
        (33628, 4, 3, uic1),
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
    // The place of the second plane is unknown if the strips of the first one have gaps.
    assert_eq!(opened(stk_with_strips(5, 3, 8)).unwrap_err(), FormatErrorKind::Unsupported);
}

/// The description of a FluoView file: name, size, distance and unit of its dimensions, fastest first.
fn fluoview(dimensions: &[(&str, i32, f64, &str)], count: u8) -> Vec<u8> {
    let mut header = vec![0u8; 1454];
    for (i, (name, size, resolution, unit)) in dimensions.iter().enumerate() {
        let at = 284 + 100 * i;
        header[at..at + name.len()].copy_from_slice(name.as_bytes());
        header[at + 16..at + 20].copy_from_slice(&size.to_le_bytes());
        header[at + 28..at + 36].copy_from_slice(&resolution.to_le_bytes());
        // Latin-1.
        let unit: Vec<u8> = unit.chars().map(|c| c as u8).collect();
        header[at + 36..at + 36 + unit.len()].copy_from_slice(&unit);
    }
    let stamp = (34362, 12, 8, vec![0; 64]);
    pages(count, &[(34361, 1, header.len() as u32, header)], &[stamp])
}

#[test]
fn a_fluoview_file_has_the_axes_and_distances_of_its_description() {
    let plane = [("X", 3, 0.25, "\u{b5}m"), ("Y", 2, 0.5, "um")];
    let with =
        |more: &[(&'static str, i32, f64, &'static str)], count| opened(fluoview(&[&plane[..], more].concat(), count));
    let image = with(&[("Z", 2, -1.5, "um"), ("Ch", 2, 1.0, "")], 4).unwrap();
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.axes.to_string().as_str()), ("fluoview", "ZCYX"));
    let v = meta.voxel_size_um;
    assert_eq!((v.z, v.y, v.x), (Some(1.5), Some(0.5), Some(0.25)));
    // The slices of a channel follow each other.
    assert_eq!(image.read_all().unwrap().into_samples(), page_samples([0, 2, 1, 3]));
    let image = with(&[("Time", 3, 2.0, "s")], 3).unwrap();
    assert_eq!((image.meta().axes.to_string().as_str(), image.meta().time_interval_secs), ("TYX", Some(2.0)));
    // A description of other pages, and a dimension without a meaning here.
    assert_eq!(with(&[("Z", 5, 1.0, "um")], 3).unwrap().meta().shape, [3, 2, 3]);
    assert_eq!(with(&[("Event", 3, 1.0, "")], 3).unwrap_err(), FormatErrorKind::Unsupported);
}

/// A slide with two levels and an overview of other proportions.
fn ndpi() -> Vec<u8> {
    let mut tiff = Tiff::new();
    for (width, height, first) in [(8u32, 4u32, 0u8), (4, 2, 100), (5, 5, 200)] {
        let bytes = width * height;
        let at = tiff.data(&(0..bytes as u8).map(|i| first + i).collect::<Vec<u8>>());
        tiff.page(&[
            long(256, &[width]),
            long(257, &[height]),
            short(258, &[8]),
            short(259, &[1]),
            short(262, &[1]),
            text(271, "Hamamatsu"),
            long(273, &[at]),
            short(277, &[1]),
            long(278, &[height]),
            long(279, &[bytes]),
            long(65420, &[1]),
        ]);
    }
    tiff.bytes
}

#[test]
fn ndpi_pages_are_levels_and_too_large_files_are_refused() {
    let image = opened(ndpi()).unwrap();
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.series_count), ("ndpi", 2));
    let shapes: Vec<&[usize]> = meta.levels.iter().map(|level| level.shape_full.as_slice()).collect();
    assert_eq!(shapes, [[1, 1, 1, 4, 8, 1], [1, 1, 1, 2, 4, 1]]);
    let half = image.read(1, &Region::whole(shapes[1])).unwrap();
    assert_eq!(half.into_samples(), Samples::U8((100..108).collect()));
    // Above 4 GB, positions have 64 bits. The file is sparse.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.ndpi");
    std::fs::write(&path, ndpi()).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5 << 30).unwrap();
    let error = open(&path, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Unsupported);
    assert!(error.to_string().contains("above 4 GB") && error.to_string().contains("OME TIFF"), "{error}");
}

#[test]
fn a_slide_in_jpeg_2000_is_refused_with_the_compression_and_a_way_out() {
    let slide = [text(270, "Aperio Image Library v11\r\n8x4 J2K/KDU Q=70|MPP = 0.5"), short(259, &[33005])];
    let mut tiff = Tiff::new();
    let at = tiff.data(&[0; 6]);
    let mut tags = vec![long(256, &[3]), long(257, &[2]), short(258, &[8]), short(262, &[1]), long(273, &[at])];
    tags.extend(slide);
    tags.extend([short(277, &[1]), long(278, &[2]), long(279, &[6])]);
    tags.sort_by_key(|tag| tag.0);
    tiff.page(&tags);
    let error = open_bytes(tiff.bytes, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Unsupported);
    for words in ["JPEG 2000 compression (33005)", "QuPath", "bfconvert"] {
        assert!(error.to_string().contains(words), "{error}");
    }
}
