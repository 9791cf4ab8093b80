//! MetaImage files that `../data/metaimage/make_metaimage.py` wrote with SimpleITK, whose samples count up in the order of the
//! file, and files made by the tests, which SimpleITK, where it is present, reads in the same way.

use crate::common::{self, opened};
use cytoscope_formats::{FormatErrorKind, Image, Limits, OpenOptions, open, open_bytes};
use cytoscope_volume::{Region, Samples};
use std::{
    fs,
    path::{Path, PathBuf},
};

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../../fuzz/seeds/read_metaimage/", $name)).to_vec()
    };
}

/// The header of an image of two slices of 2 × 3 pixels of 8 bits, up to the name of its data file.
const HEADER: &str = "ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\n\
    CompressedData = False\nElementSpacing = 0.5 0.25 2\nDimSize = 3 2 2\nElementType = MET_UCHAR\nElementDataFile = ";

/// A file of twelve bytes, 0 to 11, after a header.
fn made(header: &str) -> Vec<u8> {
    [header.as_bytes(), b"LOCAL\n", &(0..12).collect::<Vec<u8>>()].concat()
}

/// The kind of the error of opening and reading a file.
fn refused(bytes: Vec<u8>) -> Option<FormatErrorKind> {
    opened(bytes, 0).and_then(|image| image.read_all().map_err(|error| error.kind())).err()
}

/// Opens a header with this data file in a folder.
fn beside(folder: &Path, header: &str, data_file: &str) -> Result<Image, FormatErrorKind> {
    let path = folder.join("stack.mhd");
    fs::write(&path, format!("{header}{data_file}\n")).unwrap();
    open(&path, &OpenOptions::default()).map_err(|error| error.kind())
}

/// A folder with the samples 0 to 5 and 6 to 11 in two files, and all in one, each after a header of four bytes.
fn slices() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, samples) in [("slice01.raw", 0..6), ("slice02.raw", 6..12), ("all.raw", 0..12)] {
        let samples: Vec<u8> = samples.collect();
        fs::write(folder.path().join(name), [b"head", samples.as_slice()].concat()).unwrap();
    }
    folder
}

#[test]
fn files_of_simpleitk_are_read() {
    for (seed, compression) in [(seed!("plain"), "none"), (seed!("zlib"), "zlib")] {
        let image = opened(seed, 0).unwrap();
        let meta = image.meta();
        assert_eq!((meta.format.as_str(), meta.compression.as_str()), ("metaimage", compression));
        assert_eq!((meta.axes.to_string().as_str(), meta.shape.as_slice()), ("ZYX", &[3, 3, 4][..]));
        let size = meta.voxel_size_um;
        for (found, expected) in [(size.z, 2.0), (size.y, 0.25), (size.x, 0.5)] {
            assert!((found.unwrap() - expected).abs() < 1e-9, "{size:?}");
        }
        assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16((0..36).collect()));
    }
    let image = opened(seed!("times"), 0).unwrap();
    assert_eq!(image.meta().shape_full, [2, 3, 1, 3, 4, 1]);
    // The spacing of a fourth axis has no unit.
    assert_eq!((image.meta().voxel_size_um.z, image.meta().time_interval_secs), (Some(3.0), None));
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::F32((0..72u8).map(f32::from).collect()));
}

#[test]
fn a_note_says_that_directions_are_not_applied() {
    let notes = |key: &str, matrix: &str| {
        let header = HEADER.replace("ElementSpacing", &format!("{key} = {matrix}\nElementSpacing"));
        opened(made(&header), 0).unwrap().meta().not_applied.clone()
    };
    for key in ["TransformMatrix", "Rotation", "Orientation"] {
        for matrix in ["-1 0 0 0 -1 0 0 0 1", "0 1 0 1 0 0 0 0 1", "0.6 0.8 0 -0.8 0.6 0 0 0 1"] {
            let found = notes(key, matrix);
            let [note] = found.as_slice() else { panic!("{key} {matrix}: {found:?}") };
            assert!(note.starts_with(&format!("the directions of the axes ({key}) are not applied")), "{note}");
        }
        for identity in ["1 0 0 0 1 0 0 0 1", "1 -0 0 1e-17 1 0 0 0 1"] {
            assert_eq!(notes(key, identity), [""; 0], "{key} {identity}");
        }
    }
}

#[test]
fn channels_are_the_fastest_axis() {
    let image = opened(seed!("channels"), 0).unwrap();
    assert_eq!(image.meta().shape_full, [1, 3, 2, 3, 4, 1]);
    // SimpleITK writes a spacing of 1 for an image without one.
    assert_eq!(image.meta().voxel_size_um.x, None);
    let planes = (0..6u8).map(|plane| (plane / 2, plane % 2));
    let expected = planes.flat_map(|(z, c)| (0..12).map(move |i| c + 2 * (i + 12 * z))).collect();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8(expected));
}

#[test]
fn samples_may_be_in_other_files() {
    let folder = slices();
    let skipping = HEADER.replace("ElementDataFile", "HeaderSize = 4\nElementDataFile");
    let at_end = HEADER.replace("ElementDataFile", "HeaderSize = -1\nElementDataFile");
    for header in [skipping, at_end] {
        for (data_file, files) in [
            ("all.raw", 2),
            ("LIST\nslice01.raw\nslice02.raw", 3),
            ("LIST 2\r\nslice01.raw\r\nslice02.raw\r", 3),
            ("slice%02d.raw 1 2 1", 3),
        ] {
            let image = beside(folder.path(), &header, data_file).unwrap();
            assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8((0..12).collect()), "{data_file}");
            let part = Region { start: vec![0, 1, 0, 1, 1, 0], size: vec![1, 1, 1, 1, 2, 1] };
            assert_eq!(image.read(0, &part).unwrap().into_samples(), Samples::U8(vec![10, 11]));
            let found = image.files();
            assert_eq!((found.len(), found.first()), (files, Some(&folder.path().join("stack.mhd"))));
            assert!(found.iter().all(|file| file.is_file()), "{found:?}");
        }
    }
}

#[test]
fn simpleitk_reads_the_same() {
    const READ: &str = "import sys, SimpleITK as sitk
for path in sys.argv[1:]:
    image = sitk.ReadImage(path)
    print(sitk.GetArrayFromImage(image).ravel().tolist(), image.GetSpacing())
";
    let Some(python) = cytoscope_testkit::python_with("SimpleITK") else { return };
    let folder = slices();
    let skipping = HEADER.replace("ElementDataFile", "HeaderSize = 4\nElementDataFile");
    let files: Vec<PathBuf> = ["all.raw", "LIST\nslice01.raw\nslice02.raw", "slice%02d.raw 1 2 1"]
        .iter()
        .enumerate()
        .map(|(i, data_file)| {
            let path = folder.path().join(format!("{i}.mhd"));
            fs::write(&path, format!("{skipping}{data_file}\n")).unwrap();
            path
        })
        .collect();
    let read = common::run_python(&python, READ, &files);
    let expected = format!("{:?} (0.5, 0.25, 2.0)", (0..12).collect::<Vec<u8>>());
    assert_eq!(read.lines().collect::<Vec<_>>(), [expected.as_str(); 3]);
}

#[test]
fn units_and_defaults_of_headers_are_known() {
    let size = |header: &str| {
        let size = opened(made(header), 0).unwrap().meta().voxel_size_um;
        [size.z, size.y, size.x]
    };
    assert_eq!(size(HEADER), [Some(2000.0), Some(250.0), Some(500.0)]);
    let with = |line: &str| HEADER.replace("ElementDataFile", &format!("{line}\nElementDataFile"));
    assert_eq!(size(&with("DistanceUnits = um")), [Some(2.0), Some(0.25), Some(0.5)]);
    assert_eq!(size(&with("DistanceUnits = ?")), [Some(2000.0), Some(250.0), Some(500.0)]);
    assert_eq!(size(&HEADER.replace("ElementSpacing", "ElementSize")), [Some(2000.0), Some(250.0), Some(500.0)]);
    assert_eq!(size(&HEADER.replace("0.5 0.25 2", "1 1 1")), [None; 3]);
    assert_eq!(size(&HEADER.replace("ElementSpacing", "Other")), [None; 3]);
    assert_eq!(size(&HEADER.replace("0.5 0.25 2", "0.5 -1 x")), [None, None, Some(500.0)]);
}

#[test]
fn byte_orders_and_types_are_read() {
    let header = HEADER.replace("MET_UCHAR", "MET_SHORT").replace("DimSize = 3 2 2", "DimSize = 3 2 1");
    let image = opened(made(&header.replace("MSB = False", "MSB = True")), 0).unwrap();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::I16(vec![1, 515, 1029, 1543, 2057, 2571]));
    let image = opened(made(&header.replace("MET_SHORT", "MET_USHORT_ARRAY")), 0).unwrap();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16(vec![256, 770, 1284, 1798, 2312, 2826]));
    // A long has four bytes on all systems.
    let header = header.replace("MET_SHORT", "MET_LONG").replace("DimSize = 3 2 1", "DimSize = 3 1 1");
    let image = opened(made(&header), 0).unwrap();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::I32(vec![0x0302_0100, 0x0706_0504, 0x0B0A_0908]));
}

#[test]
fn what_cannot_be_read_is_refused() {
    use FormatErrorKind::{Malformed, Unsupported};
    let changed = |text: &str, other: &str| {
        assert!(HEADER.contains(text), "{text}");
        refused(made(&HEADER.replace(text, other)))
    };
    assert_eq!(changed("MET_UCHAR", "MET_UCHAR"), None, "unchanged");
    assert_eq!(changed("BinaryData = True", "BinaryData = False"), Some(Unsupported));
    assert_eq!(changed("MET_UCHAR", "MET_OTHER"), Some(Unsupported));
    assert_eq!(changed("DimSize = 3 2 2", "DimSize = 3 2 0"), Some(Malformed));
    assert_eq!(changed("DimSize = 3 2 2", "DimSize = 3 4"), Some(Malformed), "two sizes of three axes");
    assert_eq!(changed("DimSize = 3 2 2", "DimSize = 3 2 3"), Some(Malformed), "too few samples");
    assert_eq!(changed("NDims = 3", "NDims = x"), Some(Malformed));
    assert_eq!(changed("NDims = 3", "ElementNumberOfChannels = 0\nNDims = 3"), Some(Malformed));
    assert_eq!(changed("NDims = 3", "HeaderSize = -2\nNDims = 3"), Some(Malformed));
    assert_eq!(changed("CompressedData = False", "CompressedData = True"), Some(Malformed), "not zlib data");
    assert_eq!(refused(HEADER.replace("\nElementDataFile = ", "").into_bytes()), Some(Malformed), "no data file");
    let five = HEADER.replace("NDims = 3", "NDims = 5").replace("DimSize = 3 2 2", "DimSize = 1 1 3 2 2");
    assert_eq!(refused(made(&five)), Some(Unsupported));
}

#[test]
fn files_that_are_missing_outside_or_named_twice_are_refused() {
    use FormatErrorKind::{Malformed, OverLimit, Unsupported};
    let folder = slices();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let kind = |header: &str, data_file: &str| beside(&inner, header, data_file).err();
    for (data_file, expected) in [
        ("none.raw", Malformed),
        ("no\0ne.raw", Malformed),
        ("../all.raw", Unsupported),
        ("LIST\na.raw", Unsupported),
        ("LIST\na.raw\n./a.raw", Malformed),
        ("LIST\na.raw\nb.raw", Malformed),
        ("a%2d.raw 1 2 1", Unsupported),
        ("a%s.raw 1 2 1", Unsupported),
        ("a%03d.raw 1", Unsupported),
        ("a%03d.raw 1 99999999999 1", OverLimit),
        ("", Malformed),
    ] {
        assert_eq!(kind(HEADER, data_file), Some(expected), "{data_file}");
    }
    // Bytes in memory have no folder.
    assert_eq!(refused(format!("{HEADER}Cargo.toml\n").into_bytes()), Some(Unsupported));
    let compressed = HEADER.replace("CompressedData = False", "CompressedData = True");
    assert_eq!(kind(&compressed, "LIST\na.raw\nb.raw"), Some(Unsupported));
    // A slice that is too short is an error when it is read.
    fs::write(inner.join("a.raw"), [0; 6]).unwrap();
    fs::write(inner.join("b.raw"), [0; 5]).unwrap();
    let image = beside(&inner, HEADER, "LIST\na.raw\nb.raw").unwrap();
    assert_eq!(image.read_all().unwrap_err().kind(), Malformed);
}

#[test]
fn names_of_files_are_limited() {
    let folder = slices();
    let kind = |data_file: &str| beside(folder.path(), HEADER, data_file).err();
    let long = format!("{}%05d.raw 0 65535 1", "a".repeat(1000));
    let many = format!("LIST\n{}", "a.raw\n".repeat(65_537));
    for (data_file, name) in [(&long, "a pattern"), (&many, "a list")] {
        assert_eq!(kind(data_file), Some(FormatErrorKind::OverLimit), "{name}");
    }
    assert_eq!(kind(&many.replacen("a.raw\n", "", 1)), Some(FormatErrorKind::Unsupported), "as many as are allowed");
}

#[test]
fn limits_hold() {
    let read = |bytes: Vec<u8>, limits: Limits| {
        let options = OpenOptions { limits, ..OpenOptions::default() };
        open_bytes(bytes, &options).and_then(|image| image.read_all()).map(|_| ()).map_err(|error| error.kind())
    };
    let over = Err(FormatErrorKind::OverLimit);
    let d = Limits::default;
    assert_eq!(read(seed!("zlib"), Limits { max_expanded_bytes: 72, ..d() }), Ok(()));
    assert_eq!(read(seed!("zlib"), Limits { max_expanded_bytes: 71, ..d() }), over);
    assert_eq!(read(seed!("plain"), Limits { max_pages: 2, ..d() }), over);
    assert_eq!(read(seed!("plain"), Limits { max_read_bytes: 71, ..d() }), over);
    // A compressed image cannot be a thousand times larger than its file.
    let large = String::from_utf8_lossy(&seed!("zlib")).replace("DimSize = 4 3 3", "DimSize = 4000 3000 3");
    assert_eq!(read(large.into_bytes(), d()), Err(FormatErrorKind::Malformed));
}
