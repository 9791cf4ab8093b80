//! Zeiss CZI files that Zeiss' own library (pylibCZIrw) wrote: two slices of 3 × 4 pixels in two channels; pixel `i` of
//! slice `z` and channel `c` in scene `s` is `i + 1000 s + 100 z + 50 c`.

use crate::common::opened;
use cytoscope_formats::{FormatErrorKind, Limits, OpenOptions, StoredCompression, open_bytes};
use cytoscope_volume::{DType, Region, Samples};

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../../fuzz/seeds/read_czi/", $name)).to_vec()
    };
}

/// The values of a scene in the order Z, C, Y, X.
fn values(scene: u16) -> Samples {
    let planes = (0..4u16).map(|p| 1000 * scene + 100 * (p / 2) + 50 * (p % 2));
    Samples::U16(planes.flat_map(|first| (0..12).map(move |i| first + i)).collect())
}

#[test]
fn planes_are_read_uncompressed_and_with_both_kinds_of_zstandard() {
    for (file, compression) in [(seed!("plain"), "none"), (seed!("zstd0"), "zstd"), (seed!("zstd1"), "zstd")] {
        let image = opened(file, 0).unwrap();
        let meta = image.meta();
        assert_eq!((meta.format.as_str(), meta.compression.as_str()), ("czi", compression));
        assert_eq!(meta.shape_full, [1, 2, 2, 3, 4, 1]);
        assert_eq!(image.read_all().unwrap().into_samples(), values(0));
        let part = Region { start: vec![0, 1, 0, 1, 1, 0], size: vec![1, 1, 2, 2, 2, 1] };
        let expected = Samples::U16(vec![105, 106, 109, 110, 155, 156, 159, 160]);
        assert_eq!(image.read(0, &part).unwrap().into_samples(), expected);
    }
}

#[test]
fn voxel_size_and_channel_names_are_read() {
    let image = opened(seed!("plain"), 0).unwrap();
    let v = image.meta().voxel_size_um;
    for (got, expected) in [(v.z, 0.5), (v.y, 0.2), (v.x, 0.1)] {
        assert!((got.unwrap() - expected).abs() < 1e-9, "{got:?}");
    }
    let names: Vec<&str> = image.meta().channels.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["DAPI", "GFP"]);
}

#[test]
fn scenes_are_series() {
    for scene in 0..2 {
        let image = opened(seed!("scenes"), scene).unwrap();
        assert_eq!((image.meta().series, image.meta().series_count), (scene, 2));
        assert_eq!(image.read_all().unwrap().into_samples(), values(scene as u16));
    }
    assert_eq!(opened(seed!("scenes"), 2).unwrap_err(), FormatErrorKind::Misused);
}

#[test]
fn tiles_of_a_mosaic_are_put_at_their_positions() {
    // The second tile is to the right of the first one; its pixels are greater by 12.
    let image = opened(seed!("mosaic"), 0).unwrap();
    assert_eq!(image.meta().shape_full, [1, 2, 2, 3, 8, 1]);
    let row = Region { start: vec![0, 1, 1, 1, 2, 0], size: vec![1, 1, 1, 1, 4, 1] };
    let expected = Samples::U16(vec![156, 157, 166, 167]);
    assert_eq!(image.read(0, &row).unwrap().into_samples(), expected);
}

/// `pyramid` is written by `../data/czi/make_pyramid.py`, which reads it with Zeiss' library: pixel (x, y) of slice z in level k
/// is 20000 k + 2000 z + 50 y + x.
#[test]
fn lower_resolutions_are_levels() {
    let image = opened(seed!("pyramid"), 0).unwrap();
    let shapes: Vec<&[usize]> = image.meta().levels.iter().map(|level| level.shape_full.as_slice()).collect();
    assert_eq!(shapes, [[1, 2, 1, 21, 37, 1], [1, 2, 1, 11, 19, 1], [1, 2, 1, 6, 10, 1]]);
    for (level, shape) in shapes.iter().enumerate() {
        let (height, width) = (shape[3], shape[4]);
        let value = |i: usize| level * 20000 + i / (height * width) * 2000 + i / width % height * 50 + i % width;
        let expected = Samples::U16((0..2 * height * width).map(|i| value(i) as u16).collect());
        assert_eq!(image.read(level, &Region::whole(shape)).unwrap().into_samples(), expected, "level {level}");
    }
    let part = Region { start: vec![0, 1, 0, 4, 7, 0], size: vec![1, 1, 1, 1, 3, 1] };
    assert_eq!(image.read(2, &part).unwrap().into_samples(), Samples::U16(vec![42207, 42208, 42209]));
    assert_eq!(image.read(3, &part).unwrap_err().kind(), FormatErrorKind::Misused);
    // Other names of the axes apply to all levels.
    let timed = OpenOptions { axes: Some("TYX".parse().unwrap()), ..OpenOptions::default() };
    let timed = open_bytes(seed!("pyramid"), &timed).unwrap();
    assert_eq!(timed.meta().levels[2].shape_full, [2, 1, 1, 6, 10, 1]);
    let part = Region { start: vec![1, 0, 0, 4, 7, 0], size: vec![1, 1, 1, 1, 3, 1] };
    assert_eq!(timed.read(2, &part).unwrap().into_samples(), Samples::U16(vec![42207, 42208, 42209]));
}

/// A level that lacks a slice, covers only a part, or differs from the others in its ratio is not shown.
#[test]
fn incomplete_levels_are_left_out() {
    let file = seed!("pyramid");
    let directory = i64::from_le_bytes(file[84..92].try_into().unwrap()) as usize;
    // Entries of five dimensions X, Y, C, Z, S: slice 0 has the entries 0 to 3, slice 1 the entries 4 to 7.
    let levels = |entry: usize, dimension: usize, field: usize, value: i32| {
        let mut file = file.clone();
        let at = directory + 160 + entry * (32 + 5 * 20) + 32 + dimension * 20 + field;
        file[at..at + 4].copy_from_slice(&value.to_le_bytes());
        opened(file, 0).unwrap().meta().levels.len()
    };
    assert_eq!(levels(7, 3, 4, 1), 3, "unchanged");
    assert_eq!(levels(7, 3, 4, 0), 2, "slice 1 of the last level is gone");
    assert_eq!(levels(7, 0, 4, 20), 2, "slice 1 of the last level is elsewhere");
    assert_eq!(levels(6, 0, 16, 15), 1, "a ratio of 37 to 15");
    assert_eq!(levels(6, 4, 4, 1), 2, "slice 1 of level 1 belongs to another scene");
}

#[test]
fn colors_are_red_green_blue() {
    let image = opened(seed!("bgr"), 0).unwrap();
    assert_eq!(image.meta().shape_full, [1, 2, 1, 3, 4, 3]);
    let pixel = Region { start: vec![0, 0, 0, 0, 1, 0], size: vec![1, 1, 1, 1, 1, 3] };
    // Stored as blue 3, green 4, red 5.
    assert_eq!(image.read(0, &pixel).unwrap().into_samples(), Samples::U8(vec![5, 4, 3]));
    let blue = Region { start: vec![0, 0, 0, 0, 0, 2], size: vec![1, 1, 1, 1, 2, 1] };
    assert_eq!(image.read(0, &blue).unwrap().into_samples(), Samples::U8(vec![0, 3]));
}

/// The files are written by `../data/czi/make_jpeg_xr.py`, which reads them with Zeiss' library.
#[test]
fn jpeg_xr_is_read() {
    let image = opened(seed!("jpeg_xr"), 0).unwrap();
    assert_eq!(image.meta().compression, StoredCompression::JpegXr);
    assert_eq!(image.meta().shape_full, [1, 2, 1, 21, 37, 1]);
    let value = |i: usize| (2000 * (i / (21 * 37)) + 50 * (i / 37 % 21) + i % 37) as u16;
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16((0..2 * 21 * 37).map(value).collect()));
    let part = Region { start: vec![0, 1, 0, 4, 18, 0], size: vec![1, 1, 1, 1, 4, 1] };
    assert_eq!(image.read(0, &part).unwrap().into_samples(), Samples::U16(vec![2218, 2219, 2220, 2221]));
    // Pixel (3, 4) in red, green, blue; in 16 bits, JPEG XR has no format that stores blue first.
    let pixel = Region { start: vec![0, 0, 0, 4, 3, 0], size: vec![1, 1, 1, 1, 1, 3] };
    let colors = opened(seed!("jpeg_xr_bgr"), 0).unwrap();
    assert_eq!(colors.meta().shape_full, [1, 1, 1, 18, 20, 3]);
    assert_eq!(colors.read(0, &pixel).unwrap().into_samples(), Samples::U8(vec![15, 24, 185]));
    let colors = opened(seed!("jpeg_xr_bgr48"), 0).unwrap();
    assert_eq!(colors.read(0, &pixel).unwrap().into_samples(), Samples::U16(vec![1500, 2400, 18500]));
}

/// A subblock whose image does not have the size that the directory states, and damaged images.
#[test]
fn damaged_jpeg_xr_is_refused() {
    let file = seed!("jpeg_xr");
    let read = |file: Vec<u8>| opened(file, 0).and_then(|i| i.read_all().map(|_| ()).map_err(|e| e.kind()));
    let directory = i64::from_le_bytes(file[84..92].try_into().unwrap()) as usize;
    // Entries of five dimensions; the first one is the extent along X of the first tile, 20 pixels.
    let at = directory + 160 + 32 + 8;
    let mut narrow = file.clone();
    assert_eq!(narrow[at..at + 4], 20i32.to_le_bytes());
    narrow[at..at + 4].copy_from_slice(&19i32.to_le_bytes());
    narrow[at + 8..at + 12].copy_from_slice(&19i32.to_le_bytes());
    assert_eq!(read(narrow), Err(FormatErrorKind::Malformed));
    let image = file.windows(4).position(|w| w == [b'I', b'I', 0xBC, 1]).unwrap();
    let mut other = file.clone();
    other[image] = b'M';
    assert_eq!(read(other), Err(FormatErrorKind::Malformed));
    for byte in image..image + 300 {
        let mut changed = file.clone();
        changed[byte] ^= 0x55;
        // Either other pixels, or an error: never a panic.
        assert!(
            matches!(read(changed), Ok(()) | Err(FormatErrorKind::Malformed | FormatErrorKind::Unsupported)),
            "{byte}"
        );
    }
}

/// The files are written by `../data/czi/make_lzw_jpeg.py`.
#[test]
fn lzw_and_jpeg_are_read() {
    let image = opened(seed!("lzw"), 0).unwrap();
    assert_eq!(
        (image.meta().compression.as_str(), image.meta().shape_full.as_slice()),
        ("lzw", &[1, 2, 2, 3, 4, 1][..])
    );
    assert_eq!(image.read_all().unwrap().into_samples(), values(0));
    let close = |got: &[f32], expected: &[f32]| {
        let worst = cytoscope_testkit::largest_difference(got, expected);
        assert!(worst <= 3.0, "{got:?} is not {expected:?}");
    };
    let image = opened(seed!("jpeg"), 0).unwrap();
    assert_eq!((image.meta().compression.as_str(), image.meta().dtype), ("jpeg", DType::U8));
    close(&image.read_all().unwrap().samples().to_f32(), &values(0).to_f32());
    // Red, green, blue.
    let image = opened(seed!("jpeg_bgr"), 0).unwrap();
    assert_eq!(image.meta().shape_full, [1, 2, 1, 3, 4, 3]);
    for (z, blue) in [(0, 20.0), (1, 40.0)] {
        let pixel = Region { start: vec![0, z, 0, 2, 3, 0], size: vec![1, 1, 1, 1, 1, 3] };
        close(&image.read(0, &pixel).unwrap().samples().to_f32(), &[200.0, 100.0, blue]);
    }
}

/// An image that does not have the size that the directory states, 16-bit pixels in JPEG, and damaged data.
#[test]
fn damaged_lzw_and_jpeg_are_refused() {
    let read = |file: Vec<u8>| opened(file, 0).and_then(|i| i.read_all().map(|_| ()).map_err(|e| e.kind()));
    // The extent along X of every entry, and the stored one.
    let narrow = with_entries(with_entries(seed!("jpeg"), 32 + 8, 3), 32 + 16, 3);
    assert_eq!(read(narrow), Err(FormatErrorKind::Malformed));
    assert_eq!(read(with_entries(seed!("jpeg"), 2, 1)), Err(FormatErrorKind::Unsupported));
    assert_eq!(read(with_entries(seed!("jpeg"), 18, 2)), Err(FormatErrorKind::Malformed));
    assert_eq!(read(with_entries(with_entries(seed!("lzw"), 2, 0), 18, 1)), Err(FormatErrorKind::Malformed));
    for seed in [seed!("lzw"), seed!("jpeg")] {
        for byte in (seed.len() - 600..seed.len()).step_by(3) {
            let mut changed = seed.clone();
            changed[byte] ^= 0x55;
            // Either other pixels, or an error: never a panic.
            assert!(matches!(read(changed), Ok(()) | Err(FormatErrorKind::Malformed)), "{byte}");
        }
    }
}

/// Three subblocks are stated to have the pixels of the first one, but to be narrower.
#[test]
fn subblocks_that_share_pixels_are_decoded_with_their_own_extents() {
    let mut file = seed!("zstd0");
    let directory = i64::from_le_bytes(file[84..92].try_into().unwrap()) as usize;
    let entry = |i: usize| directory + 160 + i * (32 + 7 * 20);
    let first = file[entry(0) + 6..entry(0) + 14].to_vec();
    for at in [1, 2, 3].map(entry) {
        file[at + 6..at + 14].copy_from_slice(&first);
        for width in [at + 32 + 8, at + 32 + 16] {
            file[width..width + 4].copy_from_slice(&3i32.to_le_bytes());
        }
    }
    let image = opened(file, 0).unwrap();
    let readable = || {
        let planes = (0..4).map(|p| Region { start: vec![0, p / 2, p % 2, 0, 0, 0], size: vec![1, 1, 1, 3, 4, 1] });
        planes.filter(|plane| image.read(0, plane).is_ok()).count()
    };
    // What was decoded before for another subblock is not used.
    assert_eq!([readable(), readable()], [1, 1]);
}

#[test]
fn subblocks_that_cover_a_plane_many_times_are_refused() {
    let file = seed!("zstd0");
    let directory = i64::from_le_bytes(file[84..92].try_into().unwrap()) as usize;
    let entries = |count: usize| &file[directory + 160..directory + 160 + count * (32 + 7 * 20)];
    // A directory at the end of the file, with further entries of the first subblock.
    let with = |further: usize| {
        let mut file = file.clone();
        let at = file.len() as i64;
        file[84..92].copy_from_slice(&at.to_le_bytes());
        let listed = [entries(4), &entries(1).repeat(further)].concat();
        let mut head = vec![0; 160];
        head[..15].copy_from_slice(b"ZISRAWDIRECTORY");
        head[24..32].copy_from_slice(&(128 + listed.len() as i64).to_le_bytes());
        head[32..36].copy_from_slice(&(4 + further as i32).to_le_bytes());
        file.extend(head);
        file.extend(listed);
        opened(file, 0).and_then(|image| image.read_all().map_err(|error| error.kind()))
    };
    assert_eq!(with(3).unwrap(), opened(file.clone(), 0).unwrap().read_all().unwrap());
    assert_eq!(with(64).unwrap_err(), FormatErrorKind::Malformed);
}

/// The file with a number of every entry of the directory changed.
fn with_entries(mut file: Vec<u8>, field: usize, value: i32) -> Vec<u8> {
    let directory = i64::from_le_bytes(file[84..92].try_into().unwrap()) as usize;
    // Entries of seven dimensions.
    for entry in 0..4 {
        let at = directory + 160 + entry * (32 + 7 * 20) + field;
        file[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    file
}

#[test]
fn what_cannot_be_read_is_refused() {
    let kind = |file: Vec<u8>| opened(file, 0).and_then(|i| i.read_all().map(|_| ()).map_err(|e| e.kind()));
    for compression in [1, 3, 99, 1000] {
        let file = with_entries(seed!("plain"), 18, compression);
        assert_eq!(kind(file), Err(FormatErrorKind::Unsupported), "{compression}");
    }
    // Complex numbers, and a subblock in another file.
    assert_eq!(kind(with_entries(seed!("plain"), 2, 10)), Err(FormatErrorKind::Unsupported));
    assert_eq!(kind(with_entries(seed!("plain"), 14, 1)), Err(FormatErrorKind::Unsupported));
    // Uncompressed data as Zstandard, as JPEG XR and as LZW, and twice as wide tiles as there are data for.
    assert_eq!(kind(with_entries(seed!("plain"), 18, 5)), Err(FormatErrorKind::Malformed));
    assert_eq!(kind(with_entries(seed!("plain"), 18, 4)), Err(FormatErrorKind::Malformed));
    assert_eq!(kind(with_entries(seed!("plain"), 18, 2)), Err(FormatErrorKind::Malformed));
    let mut wide = with_entries(seed!("plain"), 32 + 8, 8);
    wide = with_entries(wide, 32 + 16, 8);
    assert_eq!(kind(wide), Err(FormatErrorKind::Malformed));
    for cut in (0..4128).step_by(97) {
        assert!(kind(seed!("plain")[..cut].to_vec()).is_err(), "{cut}");
    }
}

#[test]
fn negative_counts_and_positions_are_refused() {
    let negative = |at: usize, bytes: usize| {
        let mut file = seed!("plain");
        file[at..at + bytes].fill(0xFF);
        opened(file, 0).map(|_| ()).unwrap_err()
    };
    let directory = i64::from_le_bytes(seed!("plain")[84..92].try_into().unwrap()) as usize;
    // The positions of directory and metadata, the bytes of the directory, and the number of its entries.
    for (at, bytes) in [(84, 8), (92, 8), (directory + 24, 8), (directory + 32, 4)] {
        assert_eq!(negative(at, bytes), FormatErrorKind::Malformed, "{at}");
    }
    // The stored width and height of each subblock.
    for dimension in [0, 1] {
        let file = with_entries(seed!("plain"), 32 + dimension * 20 + 16, -4);
        assert_eq!(opened(file, 0).map(|_| ()), Err(FormatErrorKind::Malformed));
    }
}

#[test]
fn limits_hold() {
    let read = |file: Vec<u8>, limits: Limits| {
        let options = OpenOptions { limits, ..OpenOptions::default() };
        open_bytes(file, &options).and_then(|i| i.read_all()).map(|_| ()).map_err(|e| e.kind())
    };
    let d = Limits::default;
    assert_eq!(read(seed!("zstd0"), d()), Ok(()));
    for limits in [
        Limits { max_pages: 3, ..d() },
        Limits { max_metadata_bytes: 700, ..d() },
        Limits { max_chunk_bytes: 23, ..d() },
        Limits { max_read_bytes: 95, ..d() },
    ] {
        assert_eq!(read(seed!("zstd0"), limits.clone()), Err(FormatErrorKind::OverLimit), "{limits:?}");
    }
}
