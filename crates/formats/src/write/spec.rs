//! Description of a stack to write, checked before writing begins.

use crate::error::FormatError;
use crate::meta::Channel;
use crate::names::{CELLPOSE_ENDING, is_only_extension};
use cytoscope_volume::{Array, Axes, Axis, DType, VoxelSize, element_count};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A file format that stacks can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Container {
    /// TIFF as written by ImageJ and Fiji; above 4 GB one directory and contiguous planes.
    ImageJ,
    /// OME-TIFF; BigTIFF if it could exceed 4 GB.
    OmeTiff,
    /// NumPy's `.npy`: one array without metadata.
    Npy,
    /// Cellpose's `_seg.npy`: labels and their outlines.
    Cellpose,
    /// ImageJ's ROI set (`.zip`): the outlines of labels. A file whose name ends in `.roi` holds one of them.
    RoiSet,
}

/// Compression of the strips of an OME-TIFF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Samples are stored uncompressed.
    #[default]
    None,
    /// Deflate (zlib), supported by every reader.
    Deflate,
    /// Zstandard: faster, and supported by Bio-Formats, libtiff and tifffile.
    Zstd,
}

/// Checks that the name of an output has a part before its extension: `.tif` would be a hidden file without an extension.
///
/// # Errors
/// [`FormatError::Misused`] for such a name.
pub fn check_output_name(path: &Path) -> Result<(), FormatError> {
    if !is_only_extension(path) {
        return Ok(());
    }
    let example = path.with_file_name(format!("image{}", path.file_name().unwrap_or_default().display()));
    let next_step = format!("put a name before it, such as {}", example.display());
    Err(FormatError::misused(path, "its name is only a file extension", next_step))
}

/// The file format for the extension of a path.
///
/// # Errors
/// [`FormatError::Unsupported`] for `.zarr`, `.ozx` and `.zarr.zip`, [`FormatError::Misused`] for any other unknown extension
/// and for a name that is only an extension.
pub fn container_for_path(path: &Path) -> Result<Container, FormatError> {
    check_output_name(path)?;
    let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
    let ends = |suffixes: &[&str]| suffixes.iter().any(|s| name.ends_with(s));
    if ends(&[".ome.tif", ".ome.tiff", ".ome.tf2", ".ome.tf8", ".ome.btf"]) {
        Ok(Container::OmeTiff)
    } else if ends(&[".tif", ".tiff"]) {
        Ok(Container::ImageJ)
    } else if ends(&[CELLPOSE_ENDING]) {
        Ok(Container::Cellpose)
    } else if ends(&[".npy"]) {
        Ok(Container::Npy)
    } else if ends(&[".roi"]) || ends(&[".zip"]) && !ends(&[".zarr.zip"]) {
        Ok(Container::RoiSet)
    } else if ends(&[".zarr", ".ozx", ".zarr.zip"]) {
        Err(FormatError::unsupported(
            path,
            "this result is not written as OME-Zarr",
            "use a name that ends in .ome.tif, and convert that file to OME-Zarr",
        ))
    } else {
        Err(FormatError::misused(
            path,
            "its extension is not that of a format that can be written",
            "use a name that ends in .tif (ImageJ), .ome.tif (OME-TIFF), .zarr (OME-Zarr), .ozx or .zarr.zip (OME-Zarr in one \
             file), .npy, _seg.npy (Cellpose), .zip (ROI set) or .roi (one ROI)",
        ))
    }
}

/// Description of a stack to write.
#[derive(Debug, Clone, PartialEq)]
pub struct WriteSpec {
    /// File format to write.
    pub container: Container,
    /// Compression; ImageJ TIFF and NPY are always uncompressed.
    pub compression: Compression,
    /// Axes of the stack, outermost first; T, Z, C come before Y, X, S.
    pub axes: Axes,
    /// Name of the image, which only OME-TIFF stores; empty if it has none.
    pub name: String,
    /// Number of samples along `axes`.
    pub shape: Vec<usize>,
    /// Type of the written samples.
    pub dtype: DType,
    /// Bits of a sample that are used, such as 12 of 16, which only OME-TIFF stores; by default all.
    pub significant_bits: Option<u32>,
    /// Distance between voxel centers along Z, Y, X in µm; unknown axes are not written.
    pub voxel_size_um: VoxelSize,
    /// Position of the center of the first voxel along Z, Y, X in µm, which only OME-TIFF stores.
    pub origin_um: [f64; 3],
    /// Time between time points in seconds.
    pub time_interval_secs: Option<f64>,
    /// Names and colors of the channels; channels beyond the end of the list have none.
    pub channels: Vec<Channel>,
    /// Number of channels of the stack that the regions of an ImageJ ROI set belong to; 1 if it is unknown.
    pub stack_channels: usize,
    /// Values shown as black and white. If `None`, the range of the written values, so that labels are not displayed
    /// black.
    pub display_range: Option<(f64, f64)>,
    /// Free text stored with the image (OME `Description`, ImageJ `Info`), such as its provenance.
    pub description: Option<String>,
}

impl WriteSpec {
    /// The spec of an array, without voxel size, names and compression.
    pub fn of(array: &Array, container: Container) -> Self {
        Self::new(container, array.axes().clone(), array.shape().to_vec(), array.dtype())
    }

    /// A spec without voxel size, names and compression.
    pub fn new(container: Container, axes: Axes, shape: Vec<usize>, dtype: DType) -> Self {
        Self {
            container,
            compression: Compression::None,
            axes,
            name: String::new(),
            shape,
            dtype,
            significant_bits: None,
            voxel_size_um: VoxelSize::default(),
            origin_um: [0.0; 3],
            time_interval_secs: None,
            channels: Vec::new(),
            stack_channels: 1,
            display_range: None,
            description: None,
        }
    }

    /// Number of samples along an axis; 1 if the stack does not have the axis.
    pub(crate) fn size(&self, axis: Axis) -> usize {
        self.axes.position(axis).and_then(|i| self.shape.get(i).copied()).unwrap_or(1)
    }

    /// Leading axes (T, Z, C) and their extents, outermost first.
    pub(crate) fn leading(&self) -> Vec<(Axis, usize)> {
        let all = self.axes.iter().zip(self.shape.iter().copied());
        all.filter(|(a, _)| !matches!(a, Axis::Y | Axis::X | Axis::S)).collect()
    }

    /// Number of planes: the product of the lengths of all axes but Y, X and S.
    pub(crate) fn planes(&self) -> usize {
        self.leading().iter().map(|d| d.1).product()
    }

    /// Number of samples of one plane.
    pub(crate) fn plane_len(&self) -> usize {
        self.size(Axis::Y) * self.size(Axis::X) * self.size(Axis::S)
    }

    /// Size of one plane in bytes, uncompressed.
    pub(crate) fn plane_bytes(&self) -> u64 {
        (self.plane_len() * self.dtype.size_bytes()) as u64
    }

    /// Channel index of a plane.
    pub(crate) fn channel_index(&self, plane: usize) -> usize {
        let leading = self.leading();
        let Some(at) = leading.iter().position(|d| d.0 == Axis::C) else { return 0 };
        let step: usize = leading.iter().skip(at + 1).map(|d| d.1).product();
        plane / step.max(1) % self.size(Axis::C).max(1)
    }

    /// Name of a channel; empty if it has none.
    pub(crate) fn channel_name(&self, channel: usize) -> &str {
        self.channels.get(channel).map_or("", |c| &c.name)
    }

    /// Refuses stacks that cannot be written as specified.
    pub(crate) fn check(&self, path: &Path) -> Result<(), FormatError> {
        let misused = |problem: String, next_step: &str| Err(FormatError::misused(path, problem, next_step));
        if self.axes.len() != self.shape.len() {
            return misused(
                format!("the axes {} and the shape {:?} differ in length", self.axes, self.shape),
                "give one extent per axis",
            );
        }
        let bytes = element_count(&self.shape).ok().and_then(|n| n.checked_mul(self.dtype.size_bytes()));
        if bytes.is_none_or(|n| n == 0) {
            return misused(format!("a stack of shape {:?} cannot be written", self.shape), "give extents above 0");
        }
        let trailing: Vec<Axis> = self.axes.iter().skip(self.leading().len()).collect();
        let sorted = trailing.is_sorted() && trailing.iter().all(|a| matches!(a, Axis::Y | Axis::X | Axis::S));
        if self.container == Container::Npy {
            if self.compression != Compression::None {
                return misused("an .npy file cannot be compressed".into(), "write it uncompressed, or as .ome.tif");
            }
            return Ok(());
        }
        if !sorted {
            return misused(
                format!("the axes {} do not end in Y, X, S", self.axes),
                "transpose the stack before writing it",
            );
        }
        for (axis, n) in self.axes.iter().zip(&self.shape) {
            if *n > i32::MAX as usize {
                return misused(format!("axis {} is {n} long", axis.letter()), "write it as .npy");
            }
        }
        match self.container {
            Container::Cellpose if self.compression != Compression::None => {
                misused("a _seg.npy file cannot be compressed".into(), "write it uncompressed, or as .ome.tif")
            }
            Container::Cellpose => super::cellpose::check(self, path),
            Container::RoiSet if self.compression != Compression::None => {
                misused("the compression of a ROI set cannot be chosen".into(), "leave the compression out")
            }
            Container::RoiSet => super::rois::check(self, path),
            Container::ImageJ => super::imagej::check(self, path),
            _ => super::ome::check(self, path),
        }
    }
}
