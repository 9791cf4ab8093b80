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

/// How to convert what Bio-Formats reads.
const BIO_FORMATS: &str = "export it as OME-TIFF, for example with Fiji, which reads it with Bio-Formats";
/// How to convert a picture of one plane.
const PICTURE: &str = "save it as PNG or TIFF, for example with Fiji";
/// How to convert a JPEG 2000 file, which Fiji reads with Bio-Formats.
const JPEG_2000: &str = "save it as TIFF, for example with Fiji";
/// How to convert an array of MATLAB.
const MATLAB: &str = "save its array as TIFF, with MATLAB";
/// How to convert a video.
const VIDEO: &str = "save its frames as numbered PNG files, for example with FFmpeg";
/// How to convert a dataset of N5.
const N5: &str = "save it as OME-Zarr or TIFF, for example with Fiji (File > Import > HDF5/N5/Zarr/OME-NGFF)";
/// The file that every group and dataset of N5 has.
const N5_ATTRIBUTES: &str = "attributes.json";

/// Formats with a signature: its position in bytes, the signature, the problem and the next step.
const SIGNATURES: &[(usize, &[u8], &str, &str)] = &[
    (0, b"OLYMPUSRAWFORMAT", "Olympus OIR files are not supported", BIO_FORMATS),
    (0, b"SIS\0", "the .ets files of Olympus VSI are not supported", BIO_FORMATS),
    (128, b"DICM", "DICOM files are not supported", BIO_FORMATS),
    (0, b"\xFF\x4F\xFF\x51", "JPEG 2000 files are not supported", JPEG_2000),
    (0, b"MATLAB 5.0 MAT-file", "MATLAB's .mat files are not supported", MATLAB),
    (0, b"MATLAB 7.3 MAT-file", "MATLAB's .mat files are not supported", MATLAB),
    (0, b"GIF8", "GIF files are not supported", PICTURE),
];

/// Formats that are recognized by the extension of a file: the extensions in lower case, the problem and the next step.
const EXTENSIONS: &[(&[&str], &str, &str)] = &[
    (&["dv", "r3d"], "DeltaVision files are not supported", BIO_FORMATS),
    (
        &["xlef", "xlif", "lof", "lifext"],
        "Leica's XLEF, LOF and LIFEXT files are not supported",
        "save it as LIF or OME-TIFF, with LAS X",
    ),
    (&["oir"], "Olympus OIR files are not supported", BIO_FORMATS),
    (&["ics", "ids"], "ICS files are not supported", BIO_FORMATS),
    (&["pic"], "Bio-Rad PIC files are not supported", BIO_FORMATS),
    (&["sld", "sldy"], "SlideBook files are not supported", "export it as OME-TIFF, with SlideBook or Fiji"),
    (&["mvd2"], "Volocity files are not supported", "export it as OME-TIFF, with Volocity or Fiji"),
    (&["dcm", "dicom"], "DICOM files are not supported", BIO_FORMATS),
    (&["bmp"], "BMP files are not supported", PICTURE),
    (&["avi", "mov", "mp4"], "videos are not supported", VIDEO),
];

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
    let has = |position: usize, signature: &[u8]| head.get(position..).is_some_and(|rest| rest.starts_with(signature));
    let (_, _, problem, next_step) = SIGNATURES.iter().find(|(position, signature, ..)| has(*position, signature))?;
    Some(Fault::unsupported(*problem, *next_step))
}

/// Returns the error for a folder that is a dataset or group of N5; `None` for other folders and for files.
pub(crate) fn folder(path: &Path) -> Option<FormatError> {
    let is_n5 = path.join(N5_ATTRIBUTES).is_file();
    is_n5.then(|| FormatError::unsupported(path, "N5 folders are not supported", N5))
}

/// Returns the error for a file of no known format; the name of a file without a signature may say what it is.
pub(crate) fn unknown(path: &Path) -> FormatError {
    let is_img = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("img"));
    if is_img {
        let problem = "it has no header: that is in a separate .hdr file, as in Analyze and some NIfTI images";
        return FormatError::unsupported(path, problem, nifti::SINGLE_FILE);
    }
    let extension = path.extension().unwrap_or_default();
    let is_named = |known: &&str| extension.eq_ignore_ascii_case(known);
    if let Some((_, problem, next_step)) = EXTENSIONS.iter().find(|(known, ..)| known.iter().any(is_named)) {
        return FormatError::unsupported(path, *problem, *next_step);
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
