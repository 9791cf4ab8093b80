//! The formats and compressions that metadata name, as closed sets.

use serde::{Serialize, Serializer};
use std::fmt;

/// Format of an open image. `Display` and JSON give its name in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FileFormat {
    /// TIFF without a description that another variant stands for.
    #[default]
    Tiff,
    /// TIFF with 64-bit offsets.
    BigTiff,
    /// Numbered TIFF files, one slice each.
    TiffSeries,
    /// TIFF with a description of ImageJ.
    ImageJ,
    /// TIFF with OME-XML.
    OmeTiff,
    /// OME-Zarr folder or zip.
    OmeZarr,
    /// NumPy array.
    Npy,
    /// Masks in a `_seg.npy` of Cellpose.
    Cellpose,
    /// ImageJ region of interest, or a zip of them.
    ImageJRoi,
    /// NIfTI-1 or NIfTI-2.
    Nifti,
    /// PNG file.
    Png,
    /// Numbered PNG files, one slice each.
    PngSeries,
    /// JPEG file.
    Jpeg,
    /// Numbered JPEG files, one slice each.
    JpegSeries,
    /// Zeiss CZI.
    Czi,
    /// Nikon ND2.
    Nd2,
    /// Zeiss LSM.
    Lsm,
    /// MetaMorph STK.
    MetaMorph,
    /// Olympus FluoView TIFF.
    FluoView,
    /// ScanImage TIFF.
    ScanImage,
    /// Aperio SVS.
    Svs,
    /// Hamamatsu NDPI.
    Ndpi,
    /// No file: an array in memory.
    Memory,
}

impl FileFormat {
    /// Name in reports and in JSON, such as `ome-tiff`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tiff => "tiff",
            Self::BigTiff => "bigtiff",
            Self::TiffSeries => "tiff series",
            Self::ImageJ => "imagej",
            Self::OmeTiff => "ome-tiff",
            Self::OmeZarr => "ome-zarr",
            Self::Npy => "npy",
            Self::Cellpose => "cellpose",
            Self::ImageJRoi => "imagej roi",
            Self::Nifti => "nifti",
            Self::Png => "png",
            Self::PngSeries => "png series",
            Self::Jpeg => "jpeg",
            Self::JpegSeries => "jpeg series",
            Self::Czi => "czi",
            Self::Nd2 => "nd2",
            Self::Lsm => "lsm",
            Self::MetaMorph => "metamorph",
            Self::FluoView => "fluoview",
            Self::ScanImage => "scanimage",
            Self::Svs => "svs",
            Self::Ndpi => "ndpi",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for FileFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Compression of the pixels of an open image. `Display` and JSON give its name in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredCompression {
    /// The pixels are not compressed.
    None,
    /// LZW.
    Lzw,
    /// Deflate: the zlib format in TIFF and PNG.
    Deflate,
    /// Zstandard.
    Zstd,
    /// PackBits.
    PackBits,
    /// JPEG.
    Jpeg,
    /// JPEG XR.
    JpegXr,
    /// WebP.
    WebP,
    /// CCITT group 4 (fax).
    CcittGroup4,
    /// Gzip: files of NIfTI, chunks of OME-Zarr.
    Gzip,
    /// The zlib format in other files than TIFF and PNG.
    Zlib,
    /// Blosc.
    Blosc,
}

impl StoredCompression {
    /// Name in reports and in JSON, such as `deflate`; `none` for uncompressed pixels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lzw => "lzw",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
            Self::PackBits => "packbits",
            Self::Jpeg => "jpeg",
            Self::JpegXr => "jpeg xr",
            Self::WebP => "webp",
            Self::CcittGroup4 => "ccitt group 4",
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Blosc => "blosc",
        }
    }
}

impl fmt::Display for StoredCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for StoredCompression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
