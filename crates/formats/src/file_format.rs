//! The formats and compressions that metadata name, as closed sets.

use serde::{Serialize, Serializer};

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
    /// NRRD.
    Nrrd,
    /// MetaImage of ITK.
    MetaImage,
    /// MRC of electron microscopy.
    Mrc,
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
    /// Leica LIF.
    Lif,
    /// Imaris.
    Imaris,
    /// HDF5 of BigDataViewer.
    BigDataViewer,
    /// A dataset of another HDF5 file.
    Hdf5,
    /// Zeiss LSM.
    Lsm,
    /// MetaMorph STK.
    MetaMorph,
    /// Olympus FluoView TIFF.
    FluoView,
    /// Olympus OIF: settings, and a folder with the planes.
    Oif,
    /// Olympus OIB: the same in one file.
    Oib,
    /// ScanImage TIFF.
    ScanImage,
    /// Aperio SVS.
    Svs,
    /// Hamamatsu NDPI.
    Ndpi,
    /// No file: an array in memory.
    Memory,
}

cytoscope_storage::named! {
    /// Name in reports and in JSON, such as `ome-tiff`.
    pub fn as_str(FileFormat) {
        Tiff => "tiff",
        BigTiff => "bigtiff",
        TiffSeries => "tiff series",
        ImageJ => "imagej",
        OmeTiff => "ome-tiff",
        OmeZarr => "ome-zarr",
        Npy => "npy",
        Cellpose => "cellpose",
        ImageJRoi => "imagej roi",
        Nifti => "nifti",
        Nrrd => "nrrd",
        MetaImage => "metaimage",
        Mrc => "mrc",
        Png => "png",
        PngSeries => "png series",
        Jpeg => "jpeg",
        JpegSeries => "jpeg series",
        Czi => "czi",
        Nd2 => "nd2",
        Lif => "lif",
        Imaris => "imaris",
        BigDataViewer => "bigdataviewer",
        Hdf5 => "hdf5",
        Lsm => "lsm",
        MetaMorph => "metamorph",
        FluoView => "fluoview",
        Oif => "oif",
        Oib => "oib",
        ScanImage => "scanimage",
        Svs => "svs",
        Ndpi => "ndpi",
        Memory => "memory",
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
    /// The zlib format in files other than TIFF and PNG.
    Zlib,
    /// Blosc.
    Blosc,
    /// LZ4.
    Lz4,
    /// BZ2.
    Bz2,
    /// LZMA.
    Lzma,
    /// PCodec.
    Pcodec,
    /// LZF.
    Lzf,
    /// Szip.
    Szip,
    /// Bitshuffle, with or without LZ4 or Zstandard.
    Bitshuffle,
}

cytoscope_storage::named! {
    /// Name in reports and in JSON, such as `deflate`; `none` for uncompressed pixels.
    pub fn as_str(StoredCompression) {
        None => "none",
        Lzw => "lzw",
        Deflate => "deflate",
        Zstd => "zstd",
        PackBits => "packbits",
        Jpeg => "jpeg",
        JpegXr => "jpeg xr",
        WebP => "webp",
        CcittGroup4 => "ccitt group 4",
        Gzip => "gzip",
        Zlib => "zlib",
        Blosc => "blosc",
        Lz4 => "lz4",
        Bz2 => "bz2",
        Lzma => "lzma",
        Pcodec => "pcodec",
        Lzf => "lzf",
        Szip => "szip",
        Bitshuffle => "bitshuffle",
    }
}

impl Serialize for StoredCompression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
