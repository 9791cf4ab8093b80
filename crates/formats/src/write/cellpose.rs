//! Cellpose's `_seg.npy`: a pickled dictionary with masks, their outlines and the name of the image.

use super::spec::WriteSpec;
use crate::error::FormatError;
use crate::names::CELLPOSE_ENDING;
use cytoscope_storage::message;
use cytoscope_storage::setting::{CHANNEL, TIME};
use cytoscope_volume::{Axis, DType};
use std::path::Path;

/// Refuses stacks that are not label images with the axes YX or ZYX.
pub(super) fn check(spec: &WriteSpec, path: &Path) -> Result<(), FormatError> {
    let axes = spec.axes.to_string();
    if !matches!(axes.as_str(), "YX" | "ZYX") {
        return Err(FormatError::unsupported(
            path,
            format!("masks of Cellpose cannot have the axes {axes}"),
            message!("convert one channel and one time point ({CHANNEL}, {TIME})"),
        ));
    }
    if !matches!(spec.dtype, DType::U8 | DType::U16 | DType::U32) {
        return Err(FormatError::unsupported(
            path,
            format!("masks of Cellpose cannot be {}", spec.dtype),
            "write labels of the type uint8, uint16 or uint32",
        ));
    }
    if spec.shape.iter().any(|n| i32::try_from(*n).is_err()) {
        return Err(FormatError::unsupported(path, "an axis of the masks is too long", "write the labels as .ome.tif"));
    }
    Ok(())
}

/// The bytes before the masks: `.npy` header, the object array around the dictionary, and the file name of the image.
pub(super) fn before_masks(spec: &WriteSpec, path: &Path) -> Vec<u8> {
    let mut text = "{'descr': '|O', 'fortran_order': False, 'shape': (), }".to_owned();
    text.extend(std::iter::repeat_n(' ', 117 - text.len()));
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(text.as_bytes());
    // Protocol 4, then an array of objects without axes that contains a list of one dictionary.
    bytes.extend(b"\x80\x04");
    array(&mut bytes, &[], "O8", '|');
    bytes.extend(b"]}(");
    key(&mut bytes, "filename");
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = name.get(..name.len().saturating_sub(CELLPOSE_ENDING.len())).unwrap_or(&name);
    key(&mut bytes, &format!("{stem}.tif"));
    array_entry(&mut bytes, spec, "masks");
    bytes
}

/// The bytes between the samples of the masks and those of the outlines.
pub(super) fn before_outlines(spec: &WriteSpec) -> Vec<u8> {
    let mut bytes = b"tb".to_vec();
    array_entry(&mut bytes, spec, "outlines");
    bytes
}

/// The bytes after the outlines.
pub(super) fn after_outlines() -> Vec<u8> {
    let mut bytes = b"tb".to_vec();
    key(&mut bytes, "chan_choose");
    // The list [0, 0]; then the dictionary, the list around it, and the outer array are complete.
    bytes.extend(b"](K\0K\0euatb.");
    bytes
}

/// The key `name` and an array of the masks' shape and type, up to its samples.
fn array_entry(bytes: &mut Vec<u8>, spec: &WriteSpec, name: &str) {
    key(bytes, name);
    let code = format!("u{}", spec.dtype.size_bytes());
    let order = if spec.dtype.size_bytes() == 1 { '|' } else { '<' };
    array(bytes, &spec.shape, &code, order);
    let size = spec.plane_bytes().saturating_mul(spec.planes() as u64);
    bytes.push(0x8E);
    bytes.extend(size.to_le_bytes());
}

/// An array up to its samples or objects.
fn array(bytes: &mut Vec<u8>, shape: &[usize], code: &str, order: char) {
    // _reconstruct(ndarray, (0,), b"b"), whose state is (1, shape, dtype, False, samples). NumPy 1 and 2 know this name.
    bytes.extend(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85C\x01b\x87R(K\x01(");
    for extent in shape {
        bytes.push(b'J');
        bytes.extend((*extent as u32).to_le_bytes());
    }
    bytes.extend(b"tcnumpy\ndtype\n");
    key(bytes, code);
    bytes.extend(b"\x89\x88\x87R(K\x03");
    key(bytes, &order.to_string());
    let flags: &[u8] = if code == "O8" { b"K\x3f" } else { b"K\0" };
    bytes.extend(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff");
    bytes.extend(flags);
    bytes.extend(b"tb\x89");
}

/// A string: a key of the dictionary, or a value.
fn key(bytes: &mut Vec<u8>, text: &str) {
    bytes.push(b'X');
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// The outline of the masks of one plane: the pixels of an object that touch another value, or the border, along Y or X;
/// other pixels are 0. `plane` has the bytes of the samples of one slice of the masks, row by row.
pub(super) fn outlines(spec: &WriteSpec, plane: &[u8]) -> Vec<u8> {
    let (width, size) = (spec.size(Axis::X), spec.dtype.size_bytes());
    let row = width * size;
    let at = |start: Option<usize>| start.and_then(|s| plane.get(s..s.checked_add(size)?));
    let mut found = vec![0; plane.len()];
    for (i, out) in found.chunks_exact_mut(size).enumerate() {
        let start = i * size;
        let Some(own) = at(Some(start)).filter(|own| own.iter().any(|b| *b != 0)) else { continue };
        let column = i % width;
        let neighbors = [
            at(start.checked_sub(row)),
            at(start.checked_add(row)),
            if column > 0 { at(start.checked_sub(size)) } else { None },
            if column + 1 < width { at(start.checked_add(size)) } else { None },
        ];
        if neighbors.iter().any(|n| *n != Some(own)) {
            out.copy_from_slice(own);
        }
    }
    found
}
