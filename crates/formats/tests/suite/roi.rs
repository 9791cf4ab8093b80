//! ImageJ regions of interest: areas of every kind as labels, and labels as exact outlines.

use crate::common;
use cytoscope_formats::{
    Container, FormatErrorKind, OpenOptions, WriteSpec, container_for_path, open, open_bytes, write_array,
};
use cytoscope_volume::{Array, Samples};
use proptest::prelude::*;
use std::{io::Write, path::Path};

/// A region in ImageJ's format: type, bounds (top, left, bottom, right), points, floats of a composite region, slice.
fn roi(kind: u8, bounds: [i16; 4], points: &[[u16; 2]], composite: &[f32], slice: i32) -> Vec<u8> {
    let mut bytes = vec![0u8; 64];
    bytes[..4].copy_from_slice(b"Iout");
    bytes[4..6].copy_from_slice(&227u16.to_be_bytes());
    bytes[6] = kind;
    for (i, bound) in bounds.iter().enumerate() {
        bytes[8 + 2 * i..10 + 2 * i].copy_from_slice(&bound.to_be_bytes());
    }
    bytes[16..18].copy_from_slice(&(points.len() as u16).to_be_bytes());
    bytes[36..40].copy_from_slice(&(composite.len() as i32).to_be_bytes());
    bytes[56..60].copy_from_slice(&slice.to_be_bytes());
    for axis in 0..2 {
        bytes.extend(points.iter().flat_map(|p| p[axis].to_be_bytes()));
    }
    bytes.extend(composite.iter().flat_map(|v| v.to_be_bytes()));
    bytes
}

fn read_labels(bytes: Vec<u8>, shape_zyx: [usize; 3]) -> Vec<u16> {
    let options = OpenOptions { shape_zyx: Some(shape_zyx), ..OpenOptions::default() };
    let image = open_bytes(bytes, &options).unwrap();
    let [_, z, _, y, x, _] = *image.meta().shape_full.as_slice() else { panic!("six axes") };
    assert_eq!([z, y, x], shape_zyx);
    match image.read_all().unwrap().into_samples() {
        Samples::U16(values) => values,
        other => panic!("{:?}", other.dtype()),
    }
}

/// A picture of a plane: `#` for pixels of a region.
fn picture(values: &[u16], width: usize) -> Vec<String> {
    let row = |r: &[u16]| r.iter().map(|v| if *v > 0 { '#' } else { '.' }).collect();
    values.chunks(width).map(row).collect()
}

#[test]
fn areas_of_every_kind_are_drawn() {
    let rectangle = roi(1, [1, 2, 3, 5], &[], &[], 0);
    assert_eq!(picture(&read_labels(rectangle, [1, 4, 6]), 6), ["......", "..###.", "..###.", "......"]);
    let polygon = roi(0, [1, 1, 4, 4], &[[0, 0], [3, 0], [3, 1], [1, 1], [1, 3], [0, 3]], &[], 0);
    assert_eq!(picture(&read_labels(polygon, [1, 4, 5]), 5), [".....", ".###.", ".#...", ".#..."]);
    let oval = roi(2, [0, 0, 4, 4], &[], &[], 0);
    assert_eq!(picture(&read_labels(oval, [1, 4, 4]), 4), [".##.", "####", "####", ".##."]);
    #[rustfmt::skip]
    let with_hole = roi(1, [0, 0, 4, 4], &[], &[
        0.0, 0.0, 0.0, 1.0, 4.0, 0.0, 1.0, 4.0, 4.0, 1.0, 0.0, 4.0, 4.0,
        0.0, 1.0, 1.0, 1.0, 1.0, 3.0, 1.0, 3.0, 3.0, 1.0, 3.0, 1.0, 4.0,
    ], 0);
    assert_eq!(picture(&read_labels(with_hole, [1, 4, 4]), 4), ["####", "#..#", "#..#", "####"]);
}

#[test]
fn a_region_is_in_its_slice_or_in_all() {
    let one = |slice| read_labels(roi(1, [0, 0, 1, 1], &[], &[], slice), [3, 1, 2]);
    assert_eq!(one(2), [0, 0, 1, 0, 0, 0]);
    assert_eq!(one(0), [1, 0, 1, 0, 1, 0]);
    // Without a stack, the image just contains the region.
    let image = open_bytes(roi(1, [1, 2, 3, 5], &[], &[], 4), &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().shape_full, [1, 4, 1, 3, 5, 1]);
    assert!(image.is_without_extents());
}

#[test]
fn regions_of_a_series_of_planes_are_at_their_time_points() {
    let options = OpenOptions { shape_zyx: Some([1, 1, 2]), times: Some(3), ..OpenOptions::default() };
    // ImageJ states the plane of a time series without slices like a slice.
    for (plane, expected) in [(2, [0, 0, 1, 0, 0, 0]), (0, [1, 0, 1, 0, 1, 0])] {
        let image = open_bytes(roi(1, [0, 0, 1, 1], &[], &[], plane), &options).unwrap();
        assert_eq!(image.meta().shape_full, [3, 1, 1, 1, 2, 1]);
        assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16(expected.to_vec()));
    }
    // A region after the last time point of the stack is not left out.
    let one_time = OpenOptions { shape_zyx: Some([1, 1, 2]), times: Some(1), ..OpenOptions::default() };
    let mut late = roi(1, [0, 0, 1, 1], &[], &[], 0);
    let header = late.len() as i32;
    late[60..64].copy_from_slice(&header.to_be_bytes());
    late.extend([0, 0, 0, 3].iter().flat_map(|value: &i32| value.to_be_bytes()));
    late.extend([0; 48]);
    assert_eq!(open_bytes(late, &one_time).unwrap().meta().shape_full, [3, 1, 1, 1, 2, 1]);
    // A set without regions has no extents.
    let empty = [b"PK\x05\x06".as_slice(), &[0; 18]].concat();
    assert_eq!(
        open_bytes(empty.clone(), &options).unwrap().read_all().unwrap().into_samples(),
        Samples::U16(vec![0; 6])
    );
    let error = open_bytes(empty, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Unsupported);
}

#[test]
fn lines_and_damaged_regions_are_refused() {
    let kind = |bytes: Vec<u8>| {
        open_bytes(bytes, &OpenOptions::default()).and_then(|i| i.read_all()).map(|_| ()).map_err(|e| e.kind())
    };
    assert_eq!(kind(roi(3, [0, 0, 4, 4], &[], &[], 0)), Err(FormatErrorKind::Unsupported));
    let good = roi(0, [0, 0, 2, 2], &[[0, 0], [2, 0], [2, 2]], &[], 1);
    assert_eq!(kind(good.clone()), Ok(()));
    assert_eq!(kind(good[..good.len() - 1].to_vec()), Err(FormatErrorKind::Malformed));
    assert_eq!(kind(roi(1, [0, 0, 4, 4], &[], &[0.0, 1e30, 0.0], 0)), Err(FormatErrorKind::Malformed));
    assert_eq!(kind(roi(1, [0, 0, 4, 4], &[], &[9.0, 0.0, 0.0], 0)), Err(FormatErrorKind::Malformed));
    assert_eq!(kind(b"PK\x03\x04 not a zip".to_vec()), Err(FormatErrorKind::Malformed));
    // A region whose second header, with its slice and time point, is cut off.
    let placed = |at: i32, second: &[u8]| {
        let mut region = roi(1, [0, 0, 4, 4], &[], &[], 0);
        region[60..64].copy_from_slice(&at.to_be_bytes());
        kind([region.as_slice(), second].concat())
    };
    assert_eq!(placed(64, &[0; 24]), Ok(()));
    for (at, bytes) in [(64, 23), (64, 0), (1000, 24), (-1, 24), (8, 24)] {
        assert_eq!(placed(at, &vec![0; bytes]), Err(FormatErrorKind::Malformed), "{at}, {bytes}");
    }
}

#[test]
fn the_damaged_region_of_a_set_is_named() {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in [("good.roi", roi(1, [0, 0, 1, 1], &[], &[], 0)), ("bad.roi", b"no region".to_vec())] {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    let bytes = zip.finish().unwrap().into_inner();
    let error = open_bytes(bytes, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Malformed);
    assert!(error.to_string().contains("\"bad.roi\": a region does not begin with"), "{error}");
}

/// A zip whose files, with these names, all have the same data in it.
fn zip_with_shared_data(names: &[String], data: &[u8]) -> Vec<u8> {
    let fields = |name: &str| {
        let mut fields = [20u16, 0, 0, 0, 0x21].map(u16::to_le_bytes).concat();
        fields.extend(libdeflater::crc32(data).to_le_bytes());
        fields.extend([data.len() as u32; 2].map(u32::to_le_bytes).concat());
        fields.extend([name.len() as u16, 0].map(u16::to_le_bytes).concat());
        fields
    };
    let first = names.first().map_or("", String::as_str);
    let local = [&b"PK\x03\x04"[..], fields(first).as_slice(), first.as_bytes(), data].concat();
    let entry = |name: &String| {
        let position = [0u8; 14];
        [&b"PK\x01\x02\x14\0"[..], fields(name).as_slice(), &position, name.as_bytes()].concat()
    };
    let directory: Vec<u8> = names.iter().flat_map(entry).collect();
    let counts = [names.len() as u16; 2].map(u16::to_le_bytes).concat();
    let places = [directory.len() as u32, local.len() as u32].map(u32::to_le_bytes).concat();
    [local, directory, b"PK\x05\x06\0\0\0\0".to_vec(), counts, places, vec![0; 2]].concat()
}

#[test]
fn sets_whose_regions_share_their_data_are_refused() {
    let read = |count: usize| {
        let names: Vec<String> = (0..count).map(|i| format!("{i}.roi")).collect();
        let data = [roi(1, [0, 0, 1, 1], &[], &[], 0), vec![0; 100_000]].concat();
        open_bytes(zip_with_shared_data(&names, &data), &OpenOptions::default())
    };
    assert_eq!(read(1).unwrap().meta().shape_full, [1, 1, 1, 1, 1, 1]);
    let error = read(10).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Malformed, "{error}");
    assert!(error.to_string().contains("overlap"), "{error}");
}

#[test]
fn sets_keep_the_numbers_in_their_file_names() {
    let seed = include_bytes!("../../../../fuzz/seeds/read_roi/set");
    let image = open_bytes(seed.to_vec(), &OpenOptions::default()).unwrap();
    // One of its two regions is a line.
    assert_eq!((image.meta().unread_pages, image.meta().shape_full.as_slice()), (1, [1, 2, 1, 5, 7, 1].as_slice()));
    let Samples::U16(values) = image.read_all().unwrap().into_samples() else { panic!("not 16 bits") };
    assert_eq!(values.iter().filter(|v| **v == 3).count(), 20);
    assert_eq!(values.iter().filter(|v| **v != 0).count(), 20);
}

#[test]
fn regions_in_a_folder_of_a_zip_keep_the_numbers_in_their_names() {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let region = |column: i16, slice| roi(1, [0, column, 1, column + 1], &[], &[], slice);
    for (name, bytes) in [
        ("set/label-7_z-1.roi", region(0, 1)),
        ("set/label-7_z-2.roi", region(0, 2)),
        ("set/label-4_z-2.roi", region(1, 2)),
        ("__MACOSX/set/._label-7_z-1.roi", b"attributes".to_vec()),
    ] {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    assert_eq!(read_labels(zip.finish().unwrap().into_inner(), [2, 1, 2]), [7, 0, 7, 4]);
}

#[test]
fn regions_outside_of_their_stack_are_named_and_a_stack_without_any_of_them_is_refused() {
    let set = |regions: &[(&str, [i16; 4], i32)]| {
        let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, bounds, slice) in regions {
            zip.start_file(format!("{name}.roi"), zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(&roi(1, *bounds, &[], &[], *slice)).unwrap();
        }
        zip.finish().unwrap().into_inner()
    };
    // Top, left, bottom, right in slices of 4 × 5 pixels.
    let all = [
        ("inside", [1, 1, 2, 2], 2),
        ("across the border", [3, 4, 9, 9], 1),
        ("below", [4, 0, 6, 2], 1),
        ("right", [0, 5, 2, 7], 1),
        ("above", [-3, 0, 0, 2], 1),
        ("after", [1, 1, 2, 2], 3),
    ];
    let options = OpenOptions { shape_zyx: Some([2, 4, 5]), ..OpenOptions::default() };
    let image = open_bytes(set(&all), &options).unwrap();
    assert_eq!(image.meta().regions_outside, ["below", "right", "above", "after"]);
    let labels = image.read_all().unwrap().samples().to_f32();
    assert_eq!((labels.iter().filter(|label| **label == 1.0).count(), labels[19]), (1, 2.0));
    // Without a stack, the image contains all of them.
    assert!(open_bytes(set(&all), &OpenOptions::default()).unwrap().meta().regions_outside.is_empty());
    let error = open_bytes(set(&all[2..]), &options).unwrap_err();
    assert!(
        error.kind() == FormatErrorKind::Unsupported && error.to_string().contains("all 4 of its regions"),
        "{error}"
    );
    let error = open_bytes(set(&all[5..]), &options).unwrap_err();
    assert!(error.to_string().contains("its only region lies outside"), "{error}");
}

fn round_trip(array: &Array, zyx: [usize; 3]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rois.zip");
    assert_eq!(container_for_path(&path).unwrap(), Container::RoiSet);
    write_array(&path, array, &WriteSpec::of(array, Container::RoiSet)).unwrap();
    let image = open(&path, &OpenOptions { shape_zyx: Some(zyx), ..OpenOptions::default() }).unwrap();
    let read = image.read_all().unwrap();
    let (got, expected) = (read.samples().to_f32(), array.samples().to_f32());
    assert_eq!(got, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn labels_of_any_shape_round_trip(values in prop::collection::vec(0u16..4, 2 * 6 * 7)) {
        round_trip(&Array::new("ZYX".parse().unwrap(), vec![2, 6, 7], values).unwrap(), [2, 6, 7]);
    }
}

#[test]
fn labels_with_holes_parts_and_times_round_trip() {
    let mut values = vec![70_000u32; 2 * 3 * 5 * 5];
    for t in 0..2 {
        for z in 0..3 {
            values[(t * 3 + z) * 25 + 12] = 5 + (t * 3 + z) as u32;
            values[(t * 3 + z) * 25 + z] = 0;
        }
    }
    round_trip(&Array::new("TZYX".parse().unwrap(), vec![2, 3, 5, 5], values).unwrap(), [3, 5, 5]);
    let floats = Array::new("YX".parse().unwrap(), vec![1, 2], vec![0f32, 1.0]).unwrap();
    let error = write_array(Path::new("a.zip"), &floats, &WriteSpec::of(&floats, Container::RoiSet)).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Unsupported);
}

#[test]
fn a_single_region_is_written_to_a_roi_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cell.ROI");
    assert_eq!(container_for_path(&path).unwrap(), Container::RoiSet);
    let write = |values: Vec<u16>| {
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], values).unwrap();
        write_array(&path, &array, &WriteSpec::of(&array, Container::RoiSet))
    };
    let mut values = vec![0; 24];
    (values[17], values[18]) = (5, 5);
    write(values.clone()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[..4], *b"Iout");
    let read = open(&path, &OpenOptions { shape_zyx: Some([2, 3, 4]), ..OpenOptions::default() }).unwrap();
    assert_eq!(read.read_all().unwrap().samples().to_f32(), Samples::U16(values.clone()).to_f32());
    // The object is in both slices; and there are no objects.
    let before = std::fs::read(&path).unwrap();
    values[5] = 5;
    for (values, outlines) in [(values, "have 2 outlines"), (vec![0; 24], "have 0 outlines")] {
        let error = write(values).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Unsupported);
        assert!(error.to_string().contains(outlines) && error.to_string().contains(".zip"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "the file is kept");
    }
}

/// Writes an object in the last plane of a stack with these axes to a `.roi` file. Returns the file and the position in it:
/// number of the plane, channel, slice and time point.
fn written_position(path: &Path, axes: &str, leading: &[usize], stack_channels: usize) -> (Vec<u8>, [u32; 4]) {
    let shape = [leading, &[2, 3]].concat();
    let mut values = vec![0u8; shape.iter().product()];
    *values.last_mut().unwrap() = 1;
    let array = Array::new(axes.parse().unwrap(), shape, values).unwrap();
    let spec = WriteSpec { stack_channels, ..WriteSpec::of(&array, Container::RoiSet) };
    write_array(path, &array, &spec).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let second = number(60) as usize;
    let position = [number(56), number(second + 4), number(second + 8), number(second + 12)];
    (bytes, position)
}

#[test]
fn regions_have_the_position_by_which_imagej_finds_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("object.roi");
    for (axes, leading, stack_channels, expected) in [
        ("YX", vec![], 1, [0, 0, 0, 0]),
        ("YX", vec![], 3, [0, 0, 0, 0]),
        // The number of the plane in stacks with slices or time points only.
        ("ZYX", vec![4], 1, [4, 0, 0, 0]),
        ("TYX", vec![5], 1, [5, 0, 0, 0]),
        // Slice and time point in hyperstacks, and all channels.
        ("ZYX", vec![4], 2, [0, 0, 4, 0]),
        ("TYX", vec![5], 3, [0, 0, 0, 5]),
        ("TZYX", vec![5, 4], 1, [0, 0, 4, 5]),
        ("TZYX", vec![5, 4], 2, [0, 0, 4, 5]),
    ] {
        let (bytes, position) = written_position(&path, axes, &leading, stack_channels);
        assert_eq!(position, expected, "{axes} of {stack_channels} channels");
        // The region is read back at its place, also without the stack.
        let image = open_bytes(bytes, &OpenOptions::default()).unwrap();
        let extent = |axis: char| axes.find(axis).and_then(|i| leading.get(i)).copied().unwrap_or(1);
        assert_eq!(
            image.meta().shape_full,
            [extent('T'), extent('Z'), 1, 2, 3, 1],
            "{axes} of {stack_channels} channels"
        );
        let labels = image.read_all().unwrap().samples().to_f32();
        assert_eq!(labels.last(), Some(&1.0), "{axes} of {stack_channels} channels");
    }
}

const CHECK: &str = "
import json, sys
import roifile
rois = roifile.roiread(sys.argv[1])
print(json.dumps([
    [r.name, int(r.position), r.roitype.name, [r.top, r.left, r.bottom, r.right], r.coordinates().astype(float).tolist()]
    for r in rois
]))
";

const CHECK_POSITION: &str = "
import json, sys
import roifile
roi = roifile.roiread(sys.argv[1])
print(json.dumps([int(n) for n in (roi.position, roi.c_position, roi.z_position, roi.t_position)]))
";

#[test]
fn roifile_reads_what_is_written() {
    let Some(python) = common::python() else { return };
    let has = std::process::Command::new(&python).args(["-c", "import roifile"]).output();
    if !has.is_ok_and(|o| o.status.success()) {
        return cytoscope_testkit::skip("Python has no roifile (pip install roifile)");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rois.zip");
    let mut values = vec![0u16; 2 * 4 * 5];
    for at in [26, 27, 31, 32] {
        values[at] = 9;
    }
    let array = Array::new("ZYX".parse().unwrap(), vec![2, 4, 5], values).unwrap();
    write_array(&path, &array, &WriteSpec::of(&array, Container::RoiSet)).unwrap();
    let text = common::run_python(&python, CHECK, &[path.to_str().unwrap()]);
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let corners = [[1.0, 1.0], [3.0, 1.0], [3.0, 3.0], [1.0, 3.0]];
    assert_eq!(found, serde_json::json!([["label-9_z-2", 2, "TRACED", [1, 1, 3, 3], corners]]));
    let path = folder.path().join("object.roi");
    for (axes, leading, stack_channels) in [("ZYX", vec![4], 1), ("ZYX", vec![4], 2), ("TZYX", vec![5, 4], 2)] {
        let (_, position) = written_position(&path, axes, &leading, stack_channels);
        let text = common::run_python(&python, CHECK_POSITION, &[path.to_str().unwrap()]);
        let found: Vec<u32> = serde_json::from_str(&text).unwrap();
        assert_eq!(found, position, "{axes} of {stack_channels} channels");
    }
}
