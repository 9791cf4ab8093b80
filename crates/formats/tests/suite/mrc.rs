//! MRC files that `../data/mrc/make_mrc.py` wrote with the Python package mrcfile, whose samples count up in the order of the
//! file, and changes of them.

use crate::common::opened;
use cytoscope_formats::{FormatErrorKind, Limits, OpenOptions, open, open_bytes};
use cytoscope_volume::{Region, Samples};

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../../fuzz/seeds/read_mrc/", $name)).to_vec()
    };
}

/// The file with other bytes at a position.
fn with(mut file: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

/// The file with a number of its little-endian header replaced.
fn with_number(file: Vec<u8>, at: usize, number: i32) -> Vec<u8> {
    with(file, at, &number.to_le_bytes())
}

/// The kind of the error of opening and reading a file.
fn refused(bytes: Vec<u8>) -> Option<FormatErrorKind> {
    opened(bytes, 0).and_then(|image| image.read_all().map_err(|error| error.kind())).err()
}

fn size(bytes: Vec<u8>) -> [Option<f64>; 3] {
    let size = opened(bytes, 0).unwrap().meta().voxel_size_um;
    [size.z, size.y, size.x].map(|um| um.map(|um| (um * 1e6).round() / 1e6))
}

#[test]
fn volumes_have_the_size_of_their_cell() {
    let image = opened(seed!("volume"), 0).unwrap();
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.compression.as_str()), ("mrc", "none"));
    assert_eq!((meta.axes.to_string().as_str(), meta.shape.as_slice()), ("ZYX", &[3, 3, 4][..]));
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::I16((0..36).collect()));
    assert_eq!(size(seed!("volume")), [Some(1.0), Some(0.5), Some(0.25)]);
    // Columns along Y, rows along X.
    let turned = with_number(with_number(seed!("volume"), 64, 2), 68, 1);
    assert_eq!(size(turned), [Some(1.0), Some(0.25), Some(0.5)]);
    assert_eq!(size(with_number(seed!("volume"), 64, 7)), [Some(1.0), Some(0.5), Some(0.25)]);
    assert_eq!(size(with_number(seed!("volume"), 28, 0)), [Some(1.0), Some(0.5), None]);
    assert_eq!(size(seed!("float")), [None; 3]);
    // A cell of 4 × 3 × 3 Å has as many samples along each axis.
    let cell = |z: f32| [4.0, 3.0, z].map(f32::to_le_bytes).concat();
    assert_eq!(size(with(seed!("volume"), 40, &cell(3.0))), [None; 3]);
    assert_eq!(size(with(seed!("volume"), 40, &cell(6.0))), [Some(2e-4), Some(1e-4), Some(1e-4)]);
}

#[test]
fn sample_types_and_byte_orders_are_read() {
    let read = |bytes: Vec<u8>| opened(bytes, 0).unwrap().read_all().unwrap().into_samples();
    assert_eq!(read(seed!("float")), Samples::F32((0..36u8).map(f32::from).collect()));
    assert_eq!(read(seed!("half")), Samples::F16((0..36u8).map(half::f16::from).collect()));
    assert_eq!(read(seed!("bytes")), Samples::I8((-18..18).collect()));
    assert_eq!(read(seed!("big")), Samples::U16((0..36).collect()));
    // Bytes of IMOD are unsigned, unless a flag says otherwise.
    let imod = with_number(seed!("bytes"), 152, 1_146_047_817);
    assert_eq!(read(imod.clone()), Samples::U8((238..=255).chain(0..18).collect()));
    assert_eq!(read(with_number(imod, 156, 1)), Samples::I8((-18..18).collect()));
    // Without a machine stamp, the byte order is the one in which the mode is small.
    for file in [seed!("big"), seed!("volume")] {
        let stamped = read(file.clone());
        assert_eq!(read(with(file, 212, &[0; 4])), stamped);
    }
}

#[test]
fn colors_are_the_samples_of_a_voxel() {
    // The header of 3 × 3 × 4 voxels without an extended one, and three bytes for each of them.
    let header = with_number(with_number(seed!("volume"), 12, 16), 92, 0)[..1024].to_vec();
    let image = opened([header, (0..108).collect()].concat(), 0).unwrap();
    assert_eq!((image.meta().axes.to_string().as_str(), image.meta().shape.as_slice()), ("ZYXS", &[3, 3, 4, 3][..]));
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8((0..108).collect()));
    // Green of two rows.
    let green = Region { start: vec![0, 2, 0, 1, 0, 1], size: vec![1, 1, 1, 2, 4, 1] };
    let expected = (28..36).map(|voxel| voxel * 3 + 1).collect();
    assert_eq!(image.read(0, &green).unwrap().into_samples(), Samples::U8(expected));
    assert_eq!(refused(with_number(seed!("volume"), 12, 16)), Some(FormatErrorKind::Malformed), "too few bytes");
}

#[test]
fn volumes_of_a_stack_are_time_points() {
    let image = opened(seed!("stack"), 0).unwrap();
    assert_eq!(image.meta().shape_full, [2, 3, 1, 3, 4, 1]);
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::I16((0..72).collect()));
    assert_eq!(size(seed!("stack")), [Some(0.25); 3]);
    // The images of a stack are slices without a distance.
    let images = opened(seed!("images"), 0).unwrap();
    assert_eq!(images.meta().shape_full, [1, 3, 1, 3, 4, 1]);
    assert_eq!(size(seed!("images")), [None, Some(0.25), Some(0.25)]);
}

#[test]
fn a_region_is_read_without_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume.mrc");
    std::fs::write(&path, seed!("volume")).unwrap();
    let image = open(&path, &OpenOptions::default()).unwrap();
    let part = Region { start: vec![0, 2, 0, 1, 1, 0], size: vec![1, 1, 1, 2, 2, 1] };
    let before = image.bytes_read();
    assert_eq!(image.read(0, &part).unwrap().into_samples(), Samples::I16(vec![29, 30, 33, 34]));
    assert!(image.bytes_read() - before < 30);
}

#[test]
fn what_cannot_be_read_is_refused() {
    use FormatErrorKind::{Malformed, OverLimit, Unsupported};
    let changed = |at: usize, number: i32| refused(with_number(seed!("volume"), at, number));
    assert_eq!(changed(12, 1), None, "unchanged");
    for mode in [3, 4, 5, 101] {
        assert_eq!(changed(12, mode), Some(Unsupported), "mode {mode}");
    }
    assert_eq!(changed(0, 0), Some(Malformed), "no columns");
    assert_eq!(changed(0, -4), Some(Malformed));
    assert_eq!(changed(8, 4), Some(Malformed), "more slices than samples");
    assert_eq!(changed(8, i32::MAX), Some(OverLimit));
    assert_eq!(changed(92, 1000), Some(Malformed), "a longer extended header");
    assert_eq!(changed(92, -1), Some(Malformed));
    let file = seed!("volume");
    assert_eq!(refused(file[..600].to_vec()), Some(Malformed));
    assert_eq!(refused(file[..file.len() - 1].to_vec()), Some(Malformed));
    assert_eq!(refused(with(file, 208, b"TIFF")), Some(Unsupported), "no signature");
}

#[test]
fn limits_hold() {
    let d = Limits::default;
    for limits in [Limits { max_pages: 2, ..d() }, Limits { max_read_bytes: 71, ..d() }] {
        let options = OpenOptions { limits: limits.clone(), ..OpenOptions::default() };
        let read = open_bytes(seed!("volume"), &options).and_then(|image| image.read_all());
        assert_eq!(read.map_err(|error| error.kind()).err(), Some(FormatErrorKind::OverLimit), "{limits:?}");
    }
}
