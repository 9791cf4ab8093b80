//! The tag `Orientation`: how rows and columns are to be shown.

use super::{file::TiffFile, ifd::tag};

/// Returns a sentence on the orientation of a file's first page; `None` if its rows run downwards and its columns to the right,
/// as most programs assume.
pub(crate) fn note(file: &TiffFile) -> Option<String> {
    let shown = match file.container.integer_or(&file.first, tag::ORIENTATION, 1).unwrap_or(1) {
        2 => "mirrored from left to right",
        3 => "rotated by 180°",
        4 => "upside down, with its first row at the bottom",
        5 => "with rows and columns exchanged",
        6 => "rotated by 90° clockwise",
        7 => "mirrored from left to right, and rotated by 90° clockwise",
        8 => "rotated by 90° counterclockwise",
        // 1, or a value without a meaning: the pixels can be read in any case.
        _ => return None,
    };
    Some(format!("the file asks to be shown {shown} (tag Orientation): rows and columns are read as they are stored"))
}
