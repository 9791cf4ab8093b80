//! NRRD files that `../data/nrrd/make_nrrd.py` wrote with pynrrd, whose samples count up in the order of the file, and files
//! made by the tests.

use crate::common::opened;
use cytoscope_formats::{FormatErrorKind, Limits, OpenOptions, open_bytes};
use cytoscope_volume::Samples;

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../../fuzz/seeds/read_nrrd/", $name)).to_vec()
    };
}

#[test]
fn files_of_pynrrd_are_read() {
    let image = opened(seed!("raw"), 0).unwrap();
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.compression.as_str()), ("nrrd", "none"));
    assert_eq!((meta.axes.to_string().as_str(), meta.shape.as_slice()), ("ZYX", &[3, 3, 4][..]));
    let size = meta.voxel_size_um;
    assert_eq!((size.z, size.y, size.x), (Some(2.0), Some(0.5), Some(0.25)));
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16((0..36).collect()));
    let image = opened(seed!("big"), 0).unwrap();
    assert_eq!(image.meta().voxel_size_um.x, None);
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16((0..36).collect()));
}

#[test]
fn a_compressed_time_series_is_expanded() {
    let image = opened(seed!("gzip"), 0).unwrap();
    let meta = image.meta();
    assert_eq!((meta.axes.to_string().as_str(), meta.shape.as_slice()), ("TZYX", &[2, 3, 3, 4][..]));
    let size = meta.voxel_size_um;
    assert_eq!((size.z, size.y, size.x, meta.time_interval_secs), (Some(1500.0), Some(500.0), Some(500.0), Some(3.0)));
    assert_eq!(meta.compression.as_str(), "gzip");
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::F32((0..72).map(|i| i as f32).collect()));
    let limits = Limits { max_expanded_bytes: 287, ..Limits::default() };
    let few = open_bytes(seed!("gzip"), &OpenOptions { limits, ..OpenOptions::default() }).unwrap();
    assert_eq!(few.read_all().map_err(|error| error.kind()), Err(FormatErrorKind::OverLimit));
}

#[test]
fn channels_may_be_the_fastest_axis() {
    let image = opened(seed!("channels"), 0).unwrap();
    assert_eq!(image.meta().shape_full, [1, 3, 2, 3, 4, 1]);
    let planes = (0..6u8).map(|plane| (plane / 2, plane % 2));
    let expected = planes.flat_map(|(z, c)| (0..12).map(move |i| c + 2 * (i + 12 * z))).collect();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8(expected));
}

#[test]
fn an_axis_whose_direction_has_no_length_is_no_axis_of_channels() {
    let units = "space: left-posterior-superior\nspace units: \"um\" \"um\"";
    for direction in ["(0,x)", "(0,0)", "(0,nan)", "(0, 2"] {
        let header = format!("{PLAIN}\n{units}\nspace directions: (0.5,0) {direction}");
        let image = opened(made(&header), 0).unwrap();
        let (meta, size) = (image.meta(), image.meta().voxel_size_um);
        assert_eq!(meta.shape_full, [1, 1, 1, 2, 3, 1], "{direction}");
        let y = if direction == "(0, 2" { Some(2.0) } else { None };
        assert_eq!((size.y, size.x), (y, Some(0.5)), "{direction}");
    }
    // An axis without a direction has channels.
    let image = opened(made(&format!("{PLAIN}\n{units}\nspace directions: none (0.5,0)")), 0);
    assert_eq!(image.unwrap_err(), FormatErrorKind::Unsupported);
    // So has one without a length beside as many others as the space has dimensions.
    for direction in ["none", "(nan,nan)", "(0,0)"] {
        let sizes = "type: uchar\ndimension: 3\nsizes: 2 3 1\nencoding: raw";
        let header = format!("{sizes}\n{units}\nspace directions: {direction} (0.5,0) (0,2)");
        let image = opened(made(&header), 0).unwrap();
        assert_eq!(image.meta().shape_full, [1, 1, 2, 1, 3, 1], "{direction}");
    }
}

#[test]
fn a_note_names_a_spacing_without_a_unit_of_length() {
    let notes = |lines: &str| opened(made(&format!("{PLAIN}\n{lines}")), 0).unwrap().meta().not_applied.clone();
    let note = "the spacing 0.5 along Y, 0.25 along X is not used as the voxel size, because the file states no unit of length \
                for it";
    // The first one is how SimpleITK writes a spacing.
    for lines in [
        "space dimension: 2\nspace directions: (0.25,0) (0,0.5)",
        "spacings: 0.25 0.5",
        "spacings: 0.25 0.5\nunits: \"pixel\" \"pixel\"",
    ] {
        assert_eq!(notes(lines), [note], "{lines}");
    }
    for lines in ["spacings: 1 1", "spacings: nan nan", "spacings: 0.25 0.5\nunits: \"um\" \"um\""] {
        assert_eq!(notes(lines), [""; 0], "{lines}");
    }
}

#[test]
fn a_note_says_that_directions_are_not_applied() {
    let notes = |directions: &str| {
        let header = format!("{PLAIN}\nspace dimension: 2\nspace units: \"um\" \"um\"\nspace directions: {directions}");
        opened(made(&header), 0).unwrap().meta().not_applied.clone()
    };
    let note =
        "the directions of the axes (space directions) are not applied: voxels are read in the order of the file";
    for other in ["(-0.5,0) (0,0.25)", "(0,0.5) (0.25,0)", "(0.4,0.3) (-0.3,0.4)"] {
        assert_eq!(notes(other), [note], "{other}");
    }
    for along in ["(0.5,0) (0,0.25)", "(0.5, -0) (1e-17, 0.25)"] {
        assert_eq!(notes(along), [""; 0], "{along}");
    }
}

/// A file of six bytes, 0 to 5, after a header.
fn made(header: &str) -> Vec<u8> {
    [format!("NRRD0004\n{header}\n\n").as_bytes(), &[0, 1, 2, 3, 4, 5]].concat()
}

/// The kind of the error of opening and reading a file.
fn refused(bytes: Vec<u8>) -> Option<FormatErrorKind> {
    opened(bytes, 0).and_then(|image| image.read_all().map(|_| ()).map_err(|error| error.kind())).err()
}

const PLAIN: &str = "type: uchar\ndimension: 2\nsizes: 3 2\nencoding: raw";

#[test]
fn headers_may_have_comments_pairs_and_other_line_ends() {
    for header in
        [PLAIN.to_owned(), format!("# type: float\nkey:=type: float\n{PLAIN}"), PLAIN.replace('\n', "\r\n") + "\r"]
    {
        let image = opened(made(&header), 0).unwrap();
        assert_eq!(image.meta().shape, [2, 3]);
        assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8((0..6).collect()), "{header:?}");
    }
}

#[test]
fn what_cannot_be_read_is_refused() {
    use FormatErrorKind::{Malformed, Unsupported};
    let changed = |text: &str, other: &str| refused(made(&PLAIN.replace(text, other)));
    assert_eq!(changed("", ""), None, "unchanged");
    assert_eq!(changed("raw", "ascii"), Some(Unsupported));
    assert_eq!(changed("raw", "gzip"), Some(Malformed), "not gzip data");
    assert_eq!(changed("uchar", "block"), Some(Unsupported));
    assert_eq!(changed("uchar", "ushort"), Some(Malformed), "no byte order");
    // Text has none.
    let text = made(&PLAIN.replace("uchar", "ushort").replace("raw", "ascii"));
    let error = open_bytes(text, &OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("encoding \"ascii\""), "{error}");
    assert_eq!(changed("3 2", "3 0"), Some(Malformed));
    assert_eq!(changed("3 2", "4 2"), Some(Malformed), "too few samples");
    assert_eq!(changed("dimension: 2", "dimension: 3"), Some(Malformed));
    assert_eq!(changed("dimension: 2\nsizes: 3 2", "dimension: 6\nsizes: 1 1 1 1 3 2"), Some(Unsupported));
    for line in ["data file: other.raw", "byte skip: 4", "line skip: 1", "kinds: domain list"] {
        assert_eq!(refused(made(&format!("{PLAIN}\n{line}"))), Some(Unsupported), "{line}");
    }
    assert_eq!(refused(made(&format!("{PLAIN}\nline skip: 0\nbyte skip: 0"))), None);
    assert_eq!(refused(format!("NRRD0004\n{PLAIN}\n").into_bytes()), Some(Malformed), "no end");
}
