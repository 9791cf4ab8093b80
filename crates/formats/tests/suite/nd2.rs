//! Nikon ND2 files that `../data/nd2/make_nd2.py` wrote and Python's `nd2` package reads as these tests do: pixel `i` of position
//! `p`, time point `t`, slice `z` and channel `c` is `i + 1000 p + 200 t + 100 z + 50 c`.

use crate::common::opened;
use cytoscope_formats::{FormatErrorKind, Limits, OpenOptions, open, open_bytes};
use cytoscope_volume::{Region, Samples};

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../../fuzz/seeds/read_nd2/", $name)).to_vec()
    };
}

/// The kind of the error of opening and reading a file.
fn refused(bytes: Vec<u8>) -> Option<FormatErrorKind> {
    opened(bytes, 0).and_then(|i| i.read_all().map(|_| ()).map_err(|e| e.kind())).err()
}

#[test]
fn positions_are_series_of_slices_and_channels() {
    for position in 0..2u16 {
        let image = opened(seed!("positions"), usize::from(position)).unwrap();
        let meta = image.meta();
        assert_eq!((meta.format.as_str(), meta.compression.as_str()), ("nd2", "none"));
        assert_eq!((meta.series, meta.series_count), (usize::from(position), 2));
        // The second of three positions was switched off.
        assert_eq!(meta.series_names, ["#0", "#2"]);
        assert_eq!((meta.shape_full.as_slice(), meta.bits_per_sample), ([1, 2, 2, 3, 4, 1].as_slice(), 12));
        let planes = (0..4u16).map(|p| 1000 * position + 100 * (p / 2) + 50 * (p % 2));
        let expected = Samples::U16(planes.flat_map(|first| (0..12).map(move |i| first + i)).collect());
        assert_eq!(image.read_all().unwrap().into_samples(), expected);
    }
    assert_eq!(opened(seed!("positions"), 2).unwrap_err(), FormatErrorKind::Misused);
}

#[test]
fn a_region_is_read_without_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("positions.nd2");
    std::fs::write(&path, seed!("positions")).unwrap();
    let image = open(&path, &OpenOptions { series: 1, ..OpenOptions::default() }).unwrap();
    assert!(image.bytes_read() < 8000, "opening reads no frames");
    let part = Region { start: vec![0, 1, 1, 1, 1, 0], size: vec![1, 1, 1, 2, 2, 1] };
    let expected = Samples::U16(vec![1155, 1156, 1159, 1160]);
    let before = image.bytes_read();
    assert_eq!(image.read(0, &part).unwrap().into_samples(), expected);
    assert!((16..200).contains(&(image.bytes_read() - before)));
}

#[test]
fn voxel_size_names_and_colors_are_read() {
    let image = opened(seed!("positions"), 0).unwrap();
    let voxel = image.meta().voxel_size_um;
    assert_eq!((voxel.z, voxel.y, voxel.x), (Some(0.75), Some(0.25), Some(0.25)));
    let channels: Vec<_> = image.meta().channels.iter().map(|c| (c.name.as_str(), c.color_rgb)).collect();
    assert_eq!(channels, [("DAPI", Some([0, 0, 255])), ("GFP", Some([0, 255, 0]))]);
    assert_eq!(image.meta().time_interval_secs, None);
}

#[test]
fn compressed_frames_of_a_time_series_are_read() {
    let image = opened(seed!("zlib"), 0).unwrap();
    let meta = image.meta();
    assert_eq!((meta.compression.as_str(), meta.time_interval_secs), ("zlib", Some(1.5)));
    assert_eq!(meta.shape_full, [2, 2, 1, 3, 4, 1]);
    let first = |plane: usize| 200 * (plane / 2) + 100 * (plane % 2);
    // The values are stored in 8 bits.
    let expected = (0..48).map(|i| (first(i / 12) + i % 12) as u8).collect();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8(expected));
    let part = Region { start: vec![1, 0, 0, 2, 1, 0], size: vec![1, 1, 1, 1, 3, 1] };
    assert_eq!(image.read(0, &part).unwrap().into_samples(), Samples::U8(vec![209, 210, 211]));
}

#[test]
fn missing_frames_read_as_zeros_and_are_counted() {
    let image = opened(seed!("float"), 0).unwrap();
    assert_eq!((image.meta().missing_planes, image.meta().time_interval_secs), (1, Some(1.5)));
    assert_eq!(image.meta().shape_full, [3, 1, 1, 3, 5, 1]);
    let value = |i: usize| if i / 15 == 1 { 0.0 } else { (200 * (i / 15) + i % 15) as f32 };
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::F32((0..45).map(value).collect()));
}

/// The file with the value of a 32-bit number of its metadata changed.
fn with_number(mut file: Vec<u8>, name: &str, value: u32) -> Vec<u8> {
    let text: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    let at = file.windows(text.len()).position(|window| window == text).unwrap() + text.len();
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
    file
}

/// Positions of a number of the metadata, one for each time that its name occurs.
fn places(file: &[u8], name: &str) -> Vec<usize> {
    let text: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    let ends = file.windows(text.len()).enumerate().filter(|(_, window)| *window == text);
    ends.map(|(at, _)| at + text.len()).collect()
}

/// The file without a number of its metadata: its name, of which this is the place, is another one.
fn without(mut file: Vec<u8>, name: &str, place: usize) -> Vec<u8> {
    let at = places(&file, name)[place] - 2 * (name.len() + 1);
    file[at] = b'x';
    file
}

/// The file with another number of time points or slices.
fn with_count(mut file: Vec<u8>, place: usize, value: u32) -> Vec<u8> {
    let at = places(&file, "uiCount")[place];
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
    file
}

#[test]
fn loops_that_state_no_count_are_refused_and_not_left_out() {
    use FormatErrorKind::{Malformed, Unsupported};
    // The first count is that of the channels, which are counted by themselves; that of the positions is not needed.
    for (place, kind) in [(0, None), (1, Some(Malformed)), (2, Some(Malformed))] {
        assert_eq!(refused(without(seed!("zlib"), "uiCount", place)), kind, "time points and slices, {place}");
    }
    for (place, kind) in [(0, None), (1, None), (2, Some(Malformed))] {
        assert_eq!(refused(without(seed!("positions"), "uiCount", place)), kind, "positions and slices, {place}");
    }
    assert_eq!(refused(without(seed!("float"), "uiCount", 1)), Some(Malformed), "time points");
    // A loop that was not run is left out with what is inside it, unless the file has frames of it.
    assert_eq!(refused(with_count(seed!("zlib"), 1, 0)), Some(Unsupported));
    assert_eq!(refused(with_count(seed!("zlib"), 1, 1)), Some(Unsupported), "half of the frames");
    assert_eq!(refused(with_count(seed!("zlib"), 1, 3)), None, "frames that are missing");
    // Stored frames count if the file does not state their number.
    let unstated = without(seed!("positions"), "uiSequenceCount", 0);
    assert_eq!(refused(unstated.clone()), None);
    assert_eq!(refused(with_count(unstated, 2, 1)), Some(Unsupported));
}

#[test]
fn what_cannot_be_read_is_refused() {
    use FormatErrorKind::{Malformed, Unsupported};
    let kind = |name: &str, value: u32| refused(with_number(seed!("positions"), name, value));
    assert_eq!(kind("uiWidth", 4), None, "unchanged");
    assert_eq!(kind("eCompression", 1), Some(Unsupported), "lossy");
    assert_eq!(kind("eCompression", 0), Some(Malformed), "not zlib data");
    assert_eq!(kind("uiBpcInMemory", 64), Some(Unsupported));
    assert_eq!(kind("uiTileWidth", 2), Some(Unsupported));
    assert_eq!(kind("uiCompCount", 3), Some(Unsupported), "color");
    assert_eq!(kind("uiComp", 1), Some(Unsupported), "two names for one channel");
    assert_eq!(kind("uiSequenceCount", 5), Some(Unsupported), "more frames than the loops have");
    assert_eq!(kind("eType", 7), Some(Unsupported), "an unknown loop");
    assert_eq!(kind("eType", 4), Some(Unsupported), "slices of slices");
    assert_eq!(kind("uiWidthBytes", 15), Some(Malformed), "rows shorter than their pixels");
    let high = with_number(with_number(seed!("positions"), "uiHeight", 400), "uiTileHeight", 0);
    assert_eq!(refused(high), Some(Malformed), "higher than its frames");
    // Version 2, and the JPEG 2000 of old files.
    let mut old = seed!("positions");
    old[51] = b'2';
    assert_eq!(refused(old), Some(Unsupported));
    assert_eq!(refused(b"\0\0\0\x0cjP  \r\n\x87\n".to_vec()), Some(Unsupported));
    assert_eq!(refused(vec![0xDA, 0xCE, 0xBE, 0x0A, 0, 0, 0, 0]), Some(Malformed));
    let file = seed!("positions");
    for cut in (0..file.len()).step_by(97) {
        assert!(refused(file[..cut].to_vec()).is_some(), "{cut}");
    }
}

#[test]
fn limits_hold() {
    let read = |file: Vec<u8>, limits: Limits| {
        let options = OpenOptions { limits, ..OpenOptions::default() };
        open_bytes(file, &options).and_then(|i| i.read_all()).map(|_| ()).map_err(|e| e.kind())
    };
    let d = Limits::default;
    assert_eq!(read(seed!("zlib"), d()), Ok(()));
    for limits in [
        Limits { max_pages: 3, ..d() },
        Limits { max_metadata_bytes: 200, ..d() },
        Limits { max_chunk_bytes: 11, ..d() },
        Limits { max_read_bytes: 47, ..d() },
    ] {
        assert_eq!(read(seed!("zlib"), limits.clone()), Err(FormatErrorKind::OverLimit), "{limits:?}");
    }
    assert_eq!(read(seed!("float"), Limits { max_unstored_bytes: 59, ..d() }), Err(FormatErrorKind::OverLimit));
}
