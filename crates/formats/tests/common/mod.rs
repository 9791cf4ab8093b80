//! Helpers of the integration tests: files in memory, and where the real files and Python are, with a report of the skip if
//! they are missing.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

pub mod tiff_builder;
pub mod zarr;

use cytoscope_formats::{FormatErrorKind, Image, OpenOptions, open_bytes};
use cytoscope_testkit::shared_data;
use cytoscope_volume::Samples;
use std::path::{Path, PathBuf};

pub use cytoscope_testkit::{python_with, run_python};

/// The folder of real TIFF files, or `None` with a report of the skip if it is missing.
pub fn tiff_folder() -> Option<PathBuf> {
    shared_data("tiff/manifest.json").and_then(|p| p.parent().map(Path::to_owned))
}

/// A Python with tifffile, or `None` with a report of the skip if there is none.
pub fn python() -> Option<PathBuf> {
    python_with("tifffile, imagecodecs, numpy")
}

/// Opens a series of a file in memory; the kind of the error if it is refused.
pub fn opened(bytes: Vec<u8>, series: usize) -> Result<Image, FormatErrorKind> {
    open_bytes(bytes, &OpenOptions { series, ..OpenOptions::default() }).map_err(|e| e.kind())
}

/// The samples of these pages of 2 × 3 pixels, one after the other, which hold 6 × page to 6 × page + 5.
pub fn page_samples(pages: impl IntoIterator<Item = u8>) -> Samples {
    Samples::U8(pages.into_iter().flat_map(|page| (0..6).map(move |i| page * 6 + i)).collect())
}
