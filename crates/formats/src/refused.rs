//! Formats that are recognized only to be refused with a way out.

use crate::{
    error::{Fault, FormatError},
    meta::ByteOrder,
    nifti, roi,
};
use std::path::Path;

/// Length in bytes of the header of Analyze 7.5, which is its first value.
const ANALYZE_HEADER: u32 = 348;
/// Position of the length of a file's name in its header in a zip, and of the name.
const ZIP_NAME: (usize, usize) = (26, 30);

/// Returns the error for a file whose first bytes are those of a format that is not read; `None` for other files.
pub(crate) fn by_content(head: &[u8]) -> Option<Fault> {
    if begins_with_array(head) {
        let problem = "NumPy's .npz files, which hold any number of arrays, are not supported";
        let next_step = "save one of its arrays as .npy: numpy.save(\"NAME.npy\", numpy.load(\"NAME.npz\")[\"ARRAY\"])";
        return Some(Fault::unsupported(problem, next_step));
    }
    if is_analyze(head) {
        return Some(Fault::unsupported("Analyze 7.5 headers (.hdr) are not supported", nifti::SINGLE_FILE));
    }
    None
}

/// Returns the error for a file of no known format; the name of a file without a signature may say what it is.
pub(crate) fn unknown(path: &Path) -> FormatError {
    let is_img = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("img"));
    if is_img {
        let problem = "it has no header: that is in a separate .hdr file, as in Analyze and some NIfTI images";
        return FormatError::unsupported(path, problem, nifti::SINGLE_FILE);
    }
    FormatError::unsupported(
        path,
        "the file is not an image of a known format",
        "save it as TIFF, for example with Fiji (File > Save As > Tiff)",
    )
}

/// Whether the first file of a zip is a NumPy array.
fn begins_with_array(head: &[u8]) -> bool {
    let name = || {
        let length = head.get(ZIP_NAME.0..)?.first_chunk::<2>()?;
        head.get(ZIP_NAME.1..)?.get(..usize::from(u16::from_le_bytes(*length)))
    };
    head.starts_with(roi::ZIP) && name().is_some_and(|name| name.ends_with(b".npy"))
}

/// Whether the first bytes of a file are a header of Analyze 7.5: its length, and 1 to 7 axes. NIfTI, which also begins so, has a
/// signature in addition.
fn is_analyze(head: &[u8]) -> bool {
    let (Some(length), Some(axes)) = (head.first_chunk::<4>(), head.get(40..).and_then(|rest| rest.first_chunk::<2>()))
    else {
        return false;
    };
    let is_in = |order: ByteOrder| order.u32(*length) == ANALYZE_HEADER && (1..=7).contains(&order.u16(*axes));
    head.len() >= ANALYZE_HEADER as usize && [ByteOrder::Little, ByteOrder::Big].into_iter().any(is_in)
}
