//! NIfTI files, made byte by byte after the format's header files `nifti1.h` and `nifti2.h`.

use cytoscope_formats::{FormatErrorKind, Limits, OpenOptions, open_bytes};
use cytoscope_volume::{Region, Samples, VoxelSize};
use flate2::{Compression, write::GzEncoder};
use std::io::Write;

/// A header to write: extents along x, y, z, t, then channels.
struct Made {
    version: u8,
    big_endian: bool,
    datatype: i16,
    dim: Vec<i64>,
    pixdim: [f64; 4],
    units: u8,
    scaling: (f64, f64),
}

impl Default for Made {
    fn default() -> Self {
        Self {
            version: 1,
            big_endian: false,
            datatype: 4,
            dim: vec![4, 3, 2],
            pixdim: [0.0002, 0.0003, 0.001, 2.0],
            units: 2 | 8,
            scaling: (0.0, 0.0),
        }
    }
}

impl Made {
    /// Header and samples; `samples` are bytes in the file's order.
    fn file(&self, samples: &[u8]) -> Vec<u8> {
        let mut head = vec![0u8; if self.version == 1 { 352 } else { 544 }];
        let mut put = |at: usize, little: &[u8]| {
            let mut bytes = little.to_vec();
            if self.big_endian {
                bytes.reverse();
            }
            head[at..at + bytes.len()].copy_from_slice(&bytes);
        };
        let rank = self.dim.len() as i64;
        let extents = [vec![rank], self.dim.clone()].concat();
        if self.version == 1 {
            put(0, &348i32.to_le_bytes());
            extents.iter().enumerate().for_each(|(i, n)| put(40 + 2 * i, &(*n as i16).to_le_bytes()));
            put(70, &self.datatype.to_le_bytes());
            self.pixdim.iter().enumerate().for_each(|(i, p)| put(80 + 4 * i, &(*p as f32).to_le_bytes()));
            put(108, &352f32.to_le_bytes());
            put(112, &(self.scaling.0 as f32).to_le_bytes());
            put(116, &(self.scaling.1 as f32).to_le_bytes());
            put(123, &[self.units]);
            head[344..348].copy_from_slice(b"n+1\0");
        } else {
            put(0, &540i32.to_le_bytes());
            put(12, &self.datatype.to_le_bytes());
            extents.iter().enumerate().for_each(|(i, n)| put(16 + 8 * i, &n.to_le_bytes()));
            self.pixdim.iter().enumerate().for_each(|(i, p)| put(112 + 8 * i, &p.to_le_bytes()));
            put(168, &544i64.to_le_bytes());
            put(176, &self.scaling.0.to_le_bytes());
            put(184, &self.scaling.1.to_le_bytes());
            put(500, &i32::from(self.units).to_le_bytes());
            head[4..12].copy_from_slice(b"n+2\0\r\n\x1a\n");
        }
        [head, samples.to_vec()].concat()
    }
}

fn numbers(count: i16, big_endian: bool) -> Vec<u8> {
    (0..count).flat_map(|v| if big_endian { v.to_be_bytes() } else { v.to_le_bytes() }).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn both_versions_and_byte_orders_are_read_with_voxel_size_and_axes() {
    for version in [1, 2] {
        for big_endian in [false, true] {
            let file = Made { version, big_endian, ..Made::default() }.file(&numbers(24, big_endian));
            for bytes in [file.clone(), gzip(&file)] {
                let image = open_bytes(bytes, &OpenOptions::default()).unwrap();
                let meta = image.meta();
                assert_eq!((meta.axes.to_string().as_str(), meta.shape.as_slice()), ("ZYX", [2, 3, 4].as_slice()));
                let VoxelSize { z, y, x } = meta.voxel_size_um;
                for (got, expected) in [(z, 1.0), (y, 0.3), (x, 0.2)] {
                    assert!((got.unwrap() - expected).abs() < 1e-6, "{version} {got:?}");
                }
                // x varies fastest in the file, as the last axis does here.
                assert_eq!(image.read_all().unwrap().into_samples(), Samples::I16((0..24).collect()));
                let part = Region { start: vec![0, 1, 0, 1, 2, 0], size: vec![1, 1, 1, 2, 2, 1] };
                assert_eq!(image.read(0, &part).unwrap().into_samples(), Samples::I16(vec![18, 19, 22, 23]));
            }
        }
    }
}

#[test]
fn time_is_slower_than_z_and_channels_are_slowest() {
    let made = Made { dim: vec![1, 1, 2, 3, 2], units: 3 | 16, ..Made::default() };
    let image = open_bytes(made.file(&numbers(12, false)), &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().shape_full, [3, 2, 2, 1, 1, 1]);
    assert!((image.meta().time_interval_secs.unwrap() - 0.002).abs() < 1e-9);
    // Index in the file: z + 2 (t + 3 c); in the array: T, Z, C.
    let expected = (0..12i16).map(|i| (i / 2 % 2) + 2 * (i / 4) + 6 * (i % 2)).collect();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::I16(expected));
}

#[test]
fn a_scaling_is_applied_and_one_without_effect_is_not() {
    for (scaling, expected) in [
        ((0.5, -1.0), Samples::F32(vec![-1.0, -0.5, 0.0, 0.5])),
        ((1.0, 0.0), Samples::I16(vec![0, 1, 2, 3])),
        ((0.0, 7.0), Samples::I16(vec![0, 1, 2, 3])),
        ((f64::NAN, 0.0), Samples::I16(vec![0, 1, 2, 3])),
    ] {
        let made = Made { dim: vec![2, 2], scaling, ..Made::default() };
        let image = open_bytes(made.file(&numbers(4, false)), &OpenOptions::default()).unwrap();
        assert_eq!(image.meta().dtype, expected.dtype());
        assert_eq!(image.read_all().unwrap().into_samples(), expected);
    }
}

#[test]
fn a_voxel_size_without_a_unit_is_unknown() {
    let made = Made { units: 0, ..Made::default() };
    let image = open_bytes(made.file(&numbers(24, false)), &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().voxel_size_um, VoxelSize::default());
    // The header has 32-bit floats, whose exact values have more digits.
    let note = "the spacing 0.001 along Z, 0.0003 along Y, 0.0002 along X is not used as the voxel size, because the file states \
                no unit of length for it";
    assert_eq!(image.meta().not_applied, [note]);
    let notes = |made: Made| {
        open_bytes(made.file(&numbers(24, false)), &OpenOptions::default()).unwrap().meta().not_applied.len()
    };
    // Programs write 1 if they do not know the size.
    assert_eq!(notes(Made { units: 0, pixdim: [1.0; 4], ..Made::default() }), 0);
    assert_eq!(notes(Made::default()), 0);
}

#[test]
fn sizes_of_32_bits_are_the_decimal_numbers_that_were_written() {
    let made = Made { pixdim: [0.01, 0.3, 0.1, 2.0], ..Made::default() };
    let image = open_bytes(made.file(&numbers(24, false)), &OpenOptions::default()).unwrap();
    let size = image.meta().voxel_size_um;
    assert_eq!((size.x, size.y, size.z), (Some(10.0), Some(300.0), Some(100.0)));
}

/// Samples never begin within the header, which is longer in the second version.
#[test]
fn samples_without_a_position_follow_the_header() {
    for (version, position, end, within) in
        [(1, 108..112, 348, 347f32.to_le_bytes().to_vec()), (2, 168..176, 540, 539i64.to_le_bytes().to_vec())]
    {
        let mut file = Made { version, dim: vec![2, 2], ..Made::default() }.file(&[]);
        file[position.clone()].fill(0);
        file.truncate(end);
        file.extend(numbers(4, false));
        let image = open_bytes(file.clone(), &OpenOptions::default()).unwrap();
        assert_eq!(image.read_all().unwrap().into_samples(), Samples::I16(vec![0, 1, 2, 3]), "{version}");
        file[position].copy_from_slice(&within);
        let error = open_bytes(file, &OpenOptions::default()).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Malformed, "{version}");
    }
}

#[test]
fn what_cannot_be_read_is_refused() {
    let kind = |bytes: Vec<u8>| {
        open_bytes(bytes, &OpenOptions::default()).and_then(|i| i.read_all()).map(|_| ()).map_err(|e| e.kind())
    };
    let good = Made::default().file(&numbers(24, false));
    assert_eq!(kind(good.clone()), Ok(()));
    let complex = Made { datatype: 32, ..Made::default() }.file(&numbers(96, false));
    assert_eq!(kind(complex), Err(FormatErrorKind::Unsupported));
    let endless = Made { scaling: (2.0, f64::INFINITY), ..Made::default() }.file(&numbers(24, false));
    assert_eq!(kind(endless), Err(FormatErrorKind::Malformed));
    let mut pair = good.clone();
    pair[345] = b'i';
    assert_eq!(kind(pair), Err(FormatErrorKind::Unsupported));
    let cut = good[..good.len() - 1].to_vec();
    assert_eq!(kind(cut.clone()), Err(FormatErrorKind::Malformed));
    assert_eq!(kind(gzip(&cut)), Err(FormatErrorKind::Malformed));
    let packed = gzip(&good);
    assert_eq!(kind(packed[..packed.len() - 12].to_vec()), Err(FormatErrorKind::Malformed));
    assert_eq!(kind(gzip(b"no image")), Err(FormatErrorKind::Unsupported));
    // Far more than a file of this size can contain.
    for dim in [vec![30_000, 30_000, 3_000], vec![0, 3], vec![-1, 3]] {
        let huge = Made { dim, ..Made::default() }.file(&[]);
        assert_eq!(kind(huge.clone()), Err(FormatErrorKind::Malformed));
        assert_eq!(kind(gzip(&huge)), Err(FormatErrorKind::Malformed));
    }
}

#[test]
fn the_expanded_size_is_limited() {
    let file = gzip(&Made::default().file(&numbers(24, false)));
    let limits = Limits { max_expanded_bytes: 399, ..Limits::default() };
    let image = open_bytes(file, &OpenOptions { limits, ..OpenOptions::default() }).unwrap();
    let error = image.read_all().unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::OverLimit);
    let text = error.to_string();
    assert!(text.contains("max_expanded_bytes") && text.contains("gunzip"), "{text}");
}

#[test]
fn axes_can_be_renamed() {
    let made = Made::default().file(&numbers(24, false));
    let options = |axes: &str| OpenOptions { axes: Some(axes.parse().unwrap()), ..OpenOptions::default() };
    let image = open_bytes(made.clone(), &options("TYX")).unwrap();
    assert_eq!(image.meta().shape_full, [2, 1, 1, 3, 4, 1]);
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::I16((0..24).collect()));
    for wrong in ["TZYX", "ZXY", "YXZ"] {
        let error = open_bytes(made.clone(), &options(wrong)).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Misused, "{wrong}");
    }
}
