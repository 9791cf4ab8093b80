//! Labels as an ImageJ ROI set: one region for each label of each slice; or as one ROI.

use super::spec::WriteSpec;
use crate::{
    error::FormatError,
    roi::{Position, encode, trace},
};
use cytoscope_storage::message;
use cytoscope_storage::setting::CHANNEL;
use cytoscope_volume::{Array, Axis, DType, Samples};
use std::{
    io::{self, Write},
    path::Path,
};

/// A `.roi` file of a set: its name and its bytes.
pub(super) type Entry = (String, Vec<u8>);

/// Refuses stacks that are not label images along T, Z, Y, X.
pub(super) fn check(spec: &WriteSpec, path: &Path) -> Result<(), FormatError> {
    if spec.size(Axis::C) != 1 || spec.size(Axis::S) != 1 {
        return Err(FormatError::unsupported(
            path,
            "a ROI set has no channels",
            message!("convert one channel of the labels ({CHANNEL})"),
        ));
    }
    if !matches!(spec.dtype, DType::U8 | DType::U16 | DType::U32) {
        return Err(FormatError::unsupported(
            path,
            format!("{} values are not labels", spec.dtype),
            "write labels of the type uint8, uint16 or uint32",
        ));
    }
    Ok(())
}

/// Returns the regions of all labels in a slab, plane by plane; `first` is the number of its first plane in the stack.
pub(super) fn regions(spec: &WriteSpec, first: usize, slab: &Array) -> Vec<Entry> {
    let labels: Vec<u32> = match slab.samples() {
        Samples::U8(v) => v.iter().map(|l| u32::from(*l)).collect(),
        Samples::U16(v) => v.iter().map(|l| u32::from(*l)).collect(),
        Samples::U32(v) => v.clone(),
        // Refused by `check`.
        _ => Vec::new(),
    };
    let mut entries = Vec::new();
    for (k, plane) in labels.chunks_exact(spec.plane_len().max(1)).enumerate() {
        let position = position(spec, first + k);
        for (label, outlines) in trace(plane, spec.size(Axis::X)) {
            let mut name = format!("label-{label}");
            for (axis, at) in [("z", position.z), ("t", position.t)] {
                if at > 0 {
                    name += &format!("_{axis}-{at}");
                }
            }
            let bytes = encode(&outlines, &name, position);
            entries.push((format!("{name}.roi"), bytes));
        }
    }
    entries
}

/// Returns the position of a plane: slice and time point from 1, or 0 along an axis of length 1.
fn position(spec: &WriteSpec, plane: usize) -> Position {
    let at = |axis: Axis| {
        let leading = spec.leading();
        let Some(i) = leading.iter().position(|d| d.0 == axis).filter(|_| spec.size(axis) > 1) else { return 0 };
        let step: usize = leading.iter().skip(i + 1).map(|d| d.1).product();
        (plane / step.max(1) % spec.size(axis)) as u32 + 1
    };
    let extents = [spec.stack_channels, spec.size(Axis::Z), spec.size(Axis::T)];
    let is_hyperstack = extents.iter().filter(|extent| **extent > 1).count() > 1;
    Position { z: at(Axis::Z), t: at(Axis::T), is_hyperstack }
}

/// Returns whether a file holds one region instead of a set.
fn is_single(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("roi"))
}

/// Returns the content of the file at `path`: the zip file of all regions or, for a name that ends in `.roi`, the only region.
pub(super) fn file(path: &Path, entries: &[Entry]) -> Result<Vec<u8>, FormatError> {
    if !is_single(path) {
        return zip(entries).map_err(|e| FormatError::io(path, "compressing", e));
    }
    match entries {
        [(_, bytes)] => Ok(bytes.clone()),
        _ => Err(FormatError::unsupported(
            path,
            format!(
                "a .roi file holds one object of one slice, but these labels have {} outlines, one for each object of each slice",
                entries.len()
            ),
            "write a ROI set, with a name that ends in .zip",
        )),
    }
}

/// Returns the bytes of a zip file of all regions.
fn zip(entries: &[Entry]) -> io::Result<Vec<u8>> {
    let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated)
        .last_modified_time(zip::DateTime::default());
    for (name, bytes) in entries {
        zip.start_file(name.as_str(), options)?;
        zip.write_all(bytes)?;
    }
    Ok(zip.finish()?.into_inner())
}
