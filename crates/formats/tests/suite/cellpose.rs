//! Cellpose's `_seg.npy`: masks of files that NumPy wrote, and files that NumPy reads.

use crate::common;
use cytoscope_formats::{
    Container, FileFormat, FormatErrorKind, OpenOptions, WriteSpec, container_for_path, open, open_bytes, write_array,
};
use cytoscope_volume::{Array, Samples};
use std::path::Path;

fn read(bytes: &[u8]) -> Result<Array, FormatErrorKind> {
    open_bytes(bytes.to_vec(), &OpenOptions::default()).and_then(|i| i.read_all()).map_err(|e| e.kind())
}

/// An `.npy` file of one Python object.
fn with_pickle(pickle: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY\x01\x00\x76\x00{'descr': '|O', 'fortran_order': False, 'shape': (), }".to_vec();
    file.resize(127, b' ');
    file.push(b'\n');
    file.extend(pickle);
    file
}

#[test]
fn masks_are_read_from_files_that_numpy_wrote() {
    let expected = Array::new("YX".parse().unwrap(), vec![2, 3], vec![0u16, 1, 2, 3, 4, 5]).unwrap();
    // Written by NumPy 2: with numpy.save (protocol 4), with pickle.dump and protocol 5, and with paths of pathlib.
    for file in [
        &include_bytes!("../../../../fuzz/seeds/read_cellpose/numpy")[..],
        include_bytes!("../../../../fuzz/seeds/read_cellpose/protocol5"),
        include_bytes!("../../../../fuzz/seeds/read_cellpose/paths"),
    ] {
        assert_eq!(read(file), Ok(expected.clone()));
    }
}

#[test]
fn masks_in_other_orders_are_read_from_files_that_numpy_wrote() {
    // Written by NumPy 2.4: masks in Fortran order with numpy.save (protocol 4) and with protocol 5; and, with protocol 5,
    // masks whose axes in memory are Y, X, Z.
    for (name, file) in [
        ("fortran", &include_bytes!("../../../../fuzz/seeds/read_cellpose/fortran")[..]),
        ("fortran_protocol5", &include_bytes!("../../../../fuzz/seeds/read_cellpose/fortran_protocol5")[..]),
        ("axes_protocol5", &include_bytes!("../../../../fuzz/seeds/read_cellpose/axes_protocol5")[..]),
    ] {
        let expected = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], (1..=24u16).collect::<Vec<u16>>()).unwrap();
        assert_eq!(read(file), Ok(expected), "{name}");
    }
    // Neither an order that NumPy does not write nor axes that are not a permutation are guessed.
    let good = include_bytes!("../../../../fuzz/seeds/read_cellpose/axes_protocol5");
    let order = good.windows(4).position(|part| part == b"\x8c\x01K\x94").unwrap();
    for (at, byte) in [(order + 2, b'A'), (order + 5, 3), (order + 7, 1)] {
        let mut changed = good.to_vec();
        changed[at] = byte;
        assert_eq!(read(&changed), Err(FormatErrorKind::Malformed), "byte {at} is {byte}");
    }
}

#[test]
fn other_python_objects_are_refused_and_never_executed() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made");
    let command = format!("touch {}", made.display());
    let length = (command.len() as u32).to_le_bytes();
    let command = [b"cos\nsystem\nX", length.as_slice(), command.as_bytes(), b"\x85R."].concat();
    for pickle in [
        command.as_slice(),
        b"cbuiltins\neval\nX\x01\0\0\0a\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        // A dictionary without masks, and other opcodes.
        b"}.",
        b"(lp0\n.",
        b"(I1\nI2\nt.",
    ] {
        assert_eq!(read(&with_pickle(pickle)), Err(FormatErrorKind::Unsupported), "{}", pickle.escape_ascii());
    }
    assert!(!made.exists());
}

#[test]
fn damaged_pickles_are_refused() {
    let good = include_bytes!("../../../../fuzz/seeds/read_cellpose/numpy");
    for cut in (128..good.len()).step_by(7) {
        assert_eq!(read(&good[..cut]), Err(FormatErrorKind::Malformed), "{cut}");
    }
    for pickle in [&b"R."[..], b"b.", b"h\x05.", b"t.", b"K\x01u.", b"(0.", b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."] {
        assert_eq!(read(&with_pickle(pickle)), Err(FormatErrorKind::Malformed), "{}", pickle.escape_ascii());
    }
}

/// Labels of two slices: a square of 3 × 3 pixels with the label 7, and a pixel with the label 70 000.
fn labels() -> Array {
    let mut values = vec![0u32; 2 * 5 * 6];
    for y in 1..4 {
        for x in 2..5 {
            values[y * 6 + x] = 7;
        }
    }
    values[30] = 70_000;
    Array::new("ZYX".parse().unwrap(), vec![2, 5, 6], values).unwrap()
}

#[test]
fn written_labels_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cells_seg.npy");
    assert_eq!(container_for_path(&path).unwrap(), Container::Cellpose);
    for array in [labels(), Array::new("YX".parse().unwrap(), vec![2, 2], vec![0u8, 1, 2, 255]).unwrap()] {
        write_array(&path, &array, &WriteSpec::of(&array, Container::Cellpose)).unwrap();
        let image = open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(image.meta().format, FileFormat::Cellpose);
        assert_eq!(image.read_all().unwrap(), array);
    }
    let floats = Array::new("YX".parse().unwrap(), vec![1, 2], vec![0f32, 1.0]).unwrap();
    let error = write_array(&path, &floats, &WriteSpec::of(&floats, Container::Cellpose)).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Unsupported);
}

const CHECK: &str = "
import json, sys
import numpy as np
found = np.load(sys.argv[1], allow_pickle=True).item()
print(json.dumps({
    'keys': sorted(found), 'filename': found['filename'], 'type': str(found['masks'].dtype),
    'shape': found['masks'].shape, 'masks': found['masks'].ravel().tolist(),
    'outlines': found['outlines'].ravel().tolist(), 'chan_choose': found['chan_choose'],
}))
";

#[test]
fn numpy_reads_what_is_written() {
    let Some(python) = common::python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cells_seg.npy");
    let array = labels();
    write_array(&path, &array, &WriteSpec::of(&array, Container::Cellpose)).unwrap();
    let text = common::run_python(&python, CHECK, &[Path::to_str(&path).expect("a path in UTF-8")]);
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["keys"], serde_json::json!(["chan_choose", "filename", "masks", "outlines"]));
    assert_eq!((found["filename"].as_str(), found["type"].as_str()), (Some("cells.tif"), Some("uint32")));
    assert_eq!(found["shape"], serde_json::json!([2, 5, 6]));
    assert_eq!(found["chan_choose"], serde_json::json!([0, 0]));
    let Samples::U32(mut values) = array.into_samples() else { panic!("not 32 bits") };
    assert_eq!(found["masks"], serde_json::json!(values));
    // The only pixel that is not on the outline is the middle of the square.
    values[2 * 6 + 3] = 0;
    assert_eq!(found["outlines"], serde_json::json!(values));
}
