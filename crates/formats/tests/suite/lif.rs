//! Leica LIF files that `../data/lif/make_lif.py` wrote and Python's `liffile` package reads as these tests do: pixel `i` of time
//! point `t`, slice `z` and channel `c` is `i + 200 t + 50 z + 20 c`; of tile `m` and part `s` of a color, `3 i + s + 100 m`.

use crate::common::opened;
use cytoscope_formats::{FormatErrorKind, Limits, OpenOptions, open, open_bytes};
use cytoscope_volume::{Region, Samples};

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../../fuzz/seeds/read_lif/", $name)).to_vec()
    };
}

/// The kind of the error of opening and reading a file.
fn refused(bytes: Vec<u8>) -> Option<FormatErrorKind> {
    opened(bytes, 0).and_then(|i| i.read_all().map(|_| ()).map_err(|e| e.kind())).err()
}

/// The file with a text of its XML replaced by another of the same length, where it first occurs.
fn with_text(mut file: Vec<u8>, text: &str, other: &str) -> Vec<u8> {
    let [text, other] = [text, other].map(|t| t.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
    assert_eq!(text.len(), other.len());
    let at = file.windows(text.len()).position(|window| window == text).unwrap();
    file[at..at + other.len()].copy_from_slice(&other);
    file
}

#[test]
fn images_of_a_project_are_series_with_the_names_of_their_folders() {
    let image = opened(seed!("series"), 0).unwrap();
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.compression.as_str(), meta.bits_per_sample), ("lif", "none", 12));
    assert_eq!((meta.axes.to_string().as_str(), meta.shape.as_slice()), ("TZCYX", &[2, 3, 2, 3, 4][..]));
    assert_eq!((meta.series_count, meta.series_names.join(", ").as_str()), (2, "Series001, Folder & more/Series002"));
    let first = |plane: u16| 200 * (plane / 6) + 50 * (plane / 2 % 3) + 20 * (plane % 2);
    let expected = (0..12).flat_map(|plane| (0..12).map(move |i| first(plane) + i)).collect();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16(expected));
    let image = opened(seed!("series"), 1).unwrap();
    assert_eq!(image.meta().shape_full, [1, 2, 1, 3, 4, 1]);
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8((0..12).chain(50..62).collect()));
    assert_eq!(opened(seed!("series"), 2).unwrap_err(), FormatErrorKind::Misused);
}

#[test]
fn voxel_size_time_names_and_colors_are_read() {
    let image = opened(seed!("series"), 0).unwrap();
    let voxel = image.meta().voxel_size_um;
    for (found, expected) in [(voxel.z, 0.5), (voxel.y, 0.25), (voxel.x, 0.25)] {
        assert!((found.unwrap() - expected).abs() < 1e-9, "{voxel:?}");
    }
    assert_eq!(image.meta().time_interval_secs, Some(3.0));
    let channels: Vec<_> = image.meta().channels.iter().map(|c| (c.name.as_str(), c.color_rgb)).collect();
    assert_eq!(channels, [("ALEXA 488", Some([0, 255, 0])), ("DAPI", Some([255, 0, 0]))]);
    let image = opened(seed!("float"), 0).unwrap();
    let channels: Vec<_> = image.meta().channels.iter().map(|c| (c.name.as_str(), c.color_rgb)).collect();
    assert_eq!(channels, [("", Some([0, 255, 255])), ("", None)]);
}

#[test]
fn the_name_of_a_dye_may_have_characters_that_xml_escapes() {
    let image = opened(with_text(seed!("series"), "Leica/ALEXA 488", "a &amp; b&#177;"), 0).unwrap();
    let names: Vec<&str> = image.meta().channels.iter().map(|channel| channel.name.as_str()).collect();
    assert_eq!(names, ["a & b±", "DAPI"]);
}

#[test]
fn tiles_are_series_whose_colors_are_channels() {
    for tile in 0..2u8 {
        let image = opened(seed!("tiles"), usize::from(tile)).unwrap();
        let meta = image.meta();
        assert_eq!(meta.series_names, ["Tiles/1", "Tiles/2"]);
        assert_eq!((meta.axes.to_string().as_str(), meta.shape.as_slice()), ("CYX", &[3, 2, 4][..]));
        // Blue comes first in the file.
        let names: Vec<&str> = meta.channels.iter().map(|channel| channel.name.as_str()).collect();
        assert_eq!(names, ["blue", "green", "red"]);
        let expected = (0..3).flat_map(|s| (0..8).map(move |i| 3 * i + s + 100 * tile)).collect();
        assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8(expected));
    }
}

#[test]
fn channels_after_all_slices_are_read() {
    let image = opened(seed!("float"), 0).unwrap();
    assert_eq!(image.meta().shape_full, [1, 3, 2, 3, 4, 1]);
    let first = |plane: u8| 50 * (plane / 2) + 20 * (plane % 2);
    let expected = (0..6).flat_map(|plane| (0..12).map(move |i| f32::from(first(plane) + i))).collect();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::F32(expected));
}

#[test]
fn a_region_is_read_without_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("series.lif");
    std::fs::write(&path, seed!("series")).unwrap();
    let image = open(&path, &OpenOptions::default()).unwrap();
    let part = Region { start: vec![1, 2, 1, 1, 1, 0], size: vec![1, 1, 1, 2, 2, 1] };
    let before = image.bytes_read();
    assert_eq!(image.read(0, &part).unwrap().into_samples(), Samples::U16(vec![325, 326, 329, 330]));
    assert!(image.bytes_read() - before < 40);
}

#[test]
fn what_cannot_be_read_is_refused() {
    use FormatErrorKind::{Malformed, Unsupported};
    let changed = |text: &str, other: &str| refused(with_text(seed!("series"), text, other));
    assert_eq!(changed("Version=\"2\"", "Version=\"2\""), None, "unchanged");
    assert_eq!(changed("Version=\"2\"", "Version=\"3\""), Some(Unsupported));
    assert_eq!(changed("Resolution=\"12\"", "Resolution=\"40\""), Some(Unsupported));
    assert_eq!(changed("Resolution=\"12\"", "Resolution=\"8 \""), Some(Unsupported), "channels of different types");
    assert_eq!(changed("DimID=\"4\"", "DimID=\"5\""), Some(Unsupported), "wavelengths");
    assert_eq!(changed("DimID=\"2\"", "DimID=\"4\""), Some(Malformed), "two axes of time");
    assert_eq!(changed("NumberOfElements=\"3\"", "NumberOfElements=\"9\""), Some(Malformed), "larger than its block");
    assert_eq!(changed("NumberOfElements=\"3\"", "NumberOfElements=\"0\""), Some(Malformed));
    assert_eq!(changed("BytesInc=\"144\"", "BytesInc=\"000\""), Some(Unsupported), "no distance between time points");
    assert_eq!(changed("BytesInc=\"144\"", "BytesInc=\"143\""), Some(Unsupported), "between two samples");
    assert_eq!(changed("BytesInc=\"24\"", "BytesInc=\"26\""), Some(Malformed), "one sample past the end");
    assert_eq!(changed("MemBlock_1", "MemBlock_7"), Some(Unsupported), "no such block");
    assert_eq!(changed("LMSDataContainerHeader", "LMSDataContainerOther_"), Some(Unsupported));
    assert_eq!(changed("<Channels>", "<Channels "), Some(Malformed));
    // X and Z only.
    assert_eq!(refused(with_text(seed!("float"), "DimID=\"2\"", "DimID=\"4\"")), Some(Unsupported));
    // Cut off in the header, and in the pixels of the first image.
    let file = seed!("series");
    for cut in [5, 100, 3000, file.len() - 100] {
        assert!(refused(file[..cut].to_vec()).is_some(), "{cut}");
    }
}

/// A file without blocks.
fn with_xml(xml: &str) -> Vec<u8> {
    let text: Vec<u8> = xml.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut file = vec![0x70, 0, 0, 0];
    file.extend((text.len() as u32 + 5).to_le_bytes());
    file.push(0x2A);
    file.extend((text.len() as u32 / 2).to_le_bytes());
    file.extend(text);
    file
}

#[test]
fn metadata_with_too_many_parts_are_refused() {
    use FormatErrorKind::{Malformed, OverLimit, Unsupported};
    let kind = |inner: &str| {
        let project = format!("<Element Name=\"p\">{inner}</Element>");
        refused(with_xml(&format!("<LMSDataContainerHeader Version=\"2\">{project}</LMSDataContainerHeader>")))
    };
    let image =
        |parts: &str| kind(&format!("<Data><Image><ImageDescription>{parts}</ImageDescription></Image></Data>"));
    let axes = |number: u32, count: &str, times: usize| {
        let axis = format!("<DimensionDescription DimID=\"{number}\" NumberOfElements=\"{count}\" BytesInc=\"1\"/>");
        image(&format!("<Dimensions>{}</Dimensions>", axis.repeat(times)))
    };
    let channels = |times: usize| {
        let channel = "<ChannelDescription DataType=\"0\" Resolution=\"8\" BytesInc=\"0\"/>";
        image(&format!("<Channels>{}</Channels>", channel.repeat(times)))
    };
    let nested = |depth: usize| kind(&format!("{}{}", "<Children>".repeat(depth), "</Children>".repeat(depth)));
    // An image without a block, and a file without images, are not supported.
    assert_eq!([axes(1, "1", 16), channels(4096), nested(100)], [Some(Unsupported); 3]);
    assert_eq!([axes(1, "1", 17), channels(4097), nested(300)], [Some(Malformed); 3]);
    assert_eq!(axes(10, "4000000000", 1), Some(OverLimit), "tiles");
    assert_eq!(axes(10, "99999999999999999999", 1), Some(Malformed));
    // The names of the tiles, of which each repeats that of the image, are longer than metadata may be.
    let tiles =
        "<Dimensions><DimensionDescription DimID=\"10\" NumberOfElements=\"1500000\" BytesInc=\"1\"/></Dimensions>";
    let mosaic = format!("<Data><Image><ImageDescription>{tiles}</ImageDescription></Image></Data>");
    let named = |name: &str| kind(&format!("<Children><Element Name=\"{name}\">{mosaic}</Element></Children>"));
    assert_eq!([named("m"), named(&"m".repeat(200))], [Some(Unsupported), Some(OverLimit)]);
}

/// The samples of an image may not be at the same place: a small file could state an image of any size.
#[test]
fn steps_that_are_too_short_are_refused() {
    let file = with_text(seed!("series"), "BytesInc=\"144\"", "BytesInc=\"002\"");
    let file = with_text(file, "NumberOfElements=\"2\"", "NumberOfElements=\"9\"");
    assert_eq!(refused(file), Some(FormatErrorKind::Malformed));
}

#[test]
fn limits_hold() {
    let read = |limits: Limits| {
        let options = OpenOptions { limits, ..OpenOptions::default() };
        open_bytes(seed!("series"), &options).and_then(|i| i.read_all()).map(|_| ()).map_err(|e| e.kind())
    };
    let d = Limits::default;
    assert_eq!(read(d()), Ok(()));
    for limits in [
        Limits { max_pages: 11, ..d() },
        Limits { max_metadata_bytes: 200, ..d() },
        Limits { max_read_bytes: 47, ..d() },
    ] {
        assert_eq!(read(limits.clone()), Err(FormatErrorKind::OverLimit), "{limits:?}");
    }
}
