//! Reading and writing images: TIFF, ImageJ TIFF, OME-TIFF, OME-Zarr, NPY, Cellpose's `_seg.npy`, ImageJ ROI sets;
//! reading NIfTI, NRRD, MetaImage, MRC, PNG, JPEG, Zeiss CZI and LSM, Nikon ND2, Leica LIF, Imaris, BigDataViewer and other
//! HDF5, MetaMorph STK, Olympus FluoView, OIF and OIB, ScanImage, Aperio SVS, and Hamamatsu NDPI.
//!
//! This crate owns the formats: metadata (axes, voxel size, channels), the positions of planes in a file, the decoding
//! of strips and tiles, and writing of stacks so that Fiji, Bio-Formats and Python read the same values back. Values
//! are returned as stored: nothing is inverted, scaled or mapped through a palette.
//!
//! Opening reads headers only, reading a region accesses only its strips or tiles, and writing streams plane by plane.
//! Functions return [`FormatError`]; its [`FormatError::kind`] distinguishes damaged files, unsupported features,
//! exceeded limits, wrong calls, a full disk, and other I/O errors. No file content causes a panic, and memory is
//! allocated only for data that the file can contain ([`Limits`]).
//!
//! ```
//! use cytoscope_formats::{OpenOptions, WriteSpec, open, write_array, container_for_path};
//! use cytoscope_volume::{Array, Samples, VoxelSize};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("stack.ome.tif");
//! let stack = Array::new("ZYX".parse()?, vec![2, 3, 4], Samples::U16((0..24).collect()))?;
//! let mut spec = WriteSpec::of(&stack, container_for_path(&path)?);
//! spec.voxel_size_um = VoxelSize::new_um(0.5, 0.1, 0.1);
//! write_array(&path, &stack, &spec)?;
//!
//! let image = open(&path, &OpenOptions::default())?;
//! assert_eq!(image.meta().axes.to_string(), "ZYX");
//! assert_eq!(image.meta().voxel_size_um, VoxelSize::new_um(0.5, 0.1, 0.1));
//! assert_eq!(image.read_all()?, stack);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod cellpose;
mod channels;
mod chunk_cache;
mod chunk_grid;
mod codec;
mod czi;
mod dense;
mod derived;
mod error;
mod fields;
mod file_format;
mod hdf5;
mod huge_pages;
mod image;
mod lif;
mod limits;
mod meta;
mod metaimage;
mod mrc;
mod names;
mod nd2;
mod nifti;
mod npy;
mod nrrd;
mod numbered;
mod olympus;
mod ome_zarr;
mod opening;
mod packed;
mod parts;
mod preview;
mod raster;
mod read_ahead;
mod reader;
mod refused;
mod roi;
mod series_choice;
mod source;
mod tiff;
mod write;

pub use channels::{ChannelRef, find_channels};
pub use chunk_cache::chunk_cache_bytes;
pub use derived::{DerivedPixels, DerivedSpec};
pub use error::{FormatError, FormatErrorKind, OPENING};
pub use file_format::{FileFormat, StoredCompression};
pub use image::Image;
pub use limits::Limits;
pub use meta::{ByteOrder, Channel, ImageMeta, Level};
pub use names::{FolderNames, STACK_EXTENSIONS, composed, file_stem, stack_stem};
pub use nifti::nifti_directions;
pub use numbered::{count_files_outside_series, first_file_per_series};
pub use ome_zarr::{
    ChunkFiles, PREDICTION_KIND, PREDICTION_LABELS, ZarrImageSpec, ZarrWriter, containing_zarr_folder, is_zarr_folder,
    is_zarr_name, is_zarr_zip_name, pack_zarr, prediction_labels_path,
};
pub use opening::{OpenOptions, image_in_memory, open, open_bytes};
pub use parts::is_part_of_split_export;
pub use preview::{label_color, preview_png};
pub use roi::is_roi_name;
pub use series_choice::{SeriesChoice, any_series, label_series, series_suffix};
pub use tiff::ome::ome_tiff_files;
pub use write::{Compression, Container, StackWriter, WriteSpec, check_output_name, container_for_path, write_array};
