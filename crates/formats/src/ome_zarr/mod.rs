//! OME-Zarr: reading of versions 0.1 to 0.5, stored as Zarr 2 or 3, and writing of version 0.5.
//!
//! The metadata come from an untrusted folder. They are parsed here, checked against [`crate::Limits`] and fixed limits,
//! and only then used: to name the files of chunks, to find inner chunks in shards, and to bound what a chunk may
//! decode to. The crate `zarrs` decodes Blosc frames and checksums. Its own reader of arrays is not used, because it
//! allocates what the metadata and the compressed frames declare.
//!
//! The content of a folder may be zipped into one file.

mod absent;
mod array;
mod attributes;
mod checksums;
mod codec_chain;
mod codecs;
mod fill_value;
mod filters;
mod folder;
mod multiscales;
mod numcodecs;
mod pcodec;
mod plain;
mod pyramid;
mod read;
mod shard;
mod wells;
mod write;
mod zip_write;
mod zipped;

use crate::{
    chunk_cache::Cache,
    error::{Fault, FormatError, Remedy, choose_index},
    file_format::{FileFormat, StoredCompression},
    image::squeezed,
    meta::{Channel, ImageMeta, Level},
    opening::OpenOptions,
    source::{Counters, Source},
};
pub use absent::ChunkFiles;
use array::ZarrArray;
pub(crate) use codecs::{BytesCodec, decode_one};
use cytoscope_storage::folder::is_finished;
use cytoscope_storage::write::parent_folder;
use cytoscope_volume::{Axes, Axis};
use folder::Folder;
pub(crate) use folder::is_label_path;
pub(crate) use read::OmeZarr;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
pub use write::{ZarrImageSpec, ZarrWriter};
pub use zip_write::pack_zarr;
use zipped::ZipFolder;

/// Names of the metadata files in a Zarr folder.
const METADATA_NAMES: [&str; 4] = ["zarr.json", ".zattrs", ".zgroup", ".zarray"];

/// Whether a path is a Zarr folder, that is, a folder with Zarr metadata. Such a folder is opened like a file.
pub fn is_zarr_folder(path: &Path) -> bool {
    path.is_dir() && METADATA_NAMES.iter().any(|name| path.join(name).is_file())
}

/// The Zarr folder that a path stands for: the folder itself, or the folder of a metadata file (`zarr.json`, `.zattrs`,
/// `.zgroup`, `.zarray`), which dialogs for files can choose. `None` for other paths.
pub fn containing_zarr_folder(path: &Path) -> Option<PathBuf> {
    if is_zarr_folder(path) {
        return Some(path.to_owned());
    }
    let is_metadata = path.file_name().is_some_and(|name| METADATA_NAMES.iter().any(|known| name == *known));
    (is_metadata && path.is_file()).then(|| parent_folder(path).to_owned())
}

/// Whether the name of a path ends in `.zarr`, so that it is written as an OME-Zarr folder.
pub fn is_zarr_name(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("zarr"))
}

/// Whether the name of a path ends in `.ozx` or `.zarr.zip`, so that it is an OME-Zarr in one zip file.
pub fn is_zarr_zip_name(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    ZIP_EXTENSIONS.iter().any(|extension| name.ends_with(extension))
}

/// Kind in the marker of a folder of results that a prediction or segmentation has written.
pub const PREDICTION_KIND: &str = cytoscope_storage::folder_kind::PREDICTION;
/// Path of the label image in such a folder if its image is the maps.
pub const PREDICTION_LABELS: &str = "labels/objects";

/// Returns the label image in the maps of an earlier prediction; other paths are returned unchanged.
pub fn prediction_labels_path(path: &Path) -> PathBuf {
    let labels = path.join(PREDICTION_LABELS);
    let is_result = is_zarr_folder(path) && is_finished(path, PREDICTION_KIND);
    if is_result && is_zarr_folder(&labels) { labels } else { path.to_owned() }
}

/// Opens an image of an OME-Zarr folder. Only metadata are read.
///
/// # Errors
/// Same as [`crate::open`].
pub(crate) fn open(
    root: &Path,
    options: &OpenOptions,
    counters: Arc<Counters>,
) -> Result<(ImageMeta, OmeZarr), FormatError> {
    open_in(Folder::new(root, counters), root, options)
}

/// Name extensions of zip files with an OME-Zarr, in lower case.
const ZIP_EXTENSIONS: [&str; 2] = [".ozx", ".zarr.zip"];

/// Opens an image of the OME-Zarr in a zip file; `None` if the zip holds something else. Only metadata are read.
///
/// # Errors
/// Same as [`crate::open`].
pub(crate) fn open_zip(
    path: &Path,
    source: &Source,
    options: &OpenOptions,
) -> Result<Option<(ImageMeta, OmeZarr)>, FormatError> {
    let is_named_so = is_zarr_zip_name(path);
    let opened = source.part(0, source.len()).and_then(|source| ZipFolder::open(source, &options.limits));
    match opened {
        Ok(Some(zip)) => open_in(Folder::from_zip(zip), path, options).map(Some),
        Ok(None) if is_named_so => Err(FormatError::unsupported(
            path,
            "the zip file holds no OME-Zarr image: it has no zarr.json, .zattrs, .zgroup or .zarray",
            "zip the content of an OME-Zarr folder, without compression",
        )),
        Err(fault) if is_named_so => Err(fault.at(path)),
        // The zip may be a set of regions of interest, which has its own reader.
        Ok(None) | Err(_) => Ok(None),
    }
}

fn open_in(folder: Folder, root: &Path, options: &OpenOptions) -> Result<(ImageMeta, OmeZarr), FormatError> {
    let at = |fault: Fault| fault.at(root);
    let group = folder.group("").map_err(at)?.unwrap_or_default();
    let images = multiscales::images(&folder, &group).map_err(at)?;
    let Some(image) = images.get(options.series) else {
        let next = choose_index(images.len());
        let found = format!("there is no series {}: the folder has {}", options.series, images.len());
        return Err(FormatError::misused(root, found, next));
    };
    let description = multiscales::read(&folder, image, options.axes.as_ref()).map_err(at)?;
    let levels: Vec<ZarrArray> = description
        .levels
        .iter()
        .map(|path| ZarrArray::open(&folder, path, &options.limits))
        .collect::<Result<_, Fault>>()
        .map_err(at)?;
    let canonical = check_levels(&description.axes, &levels).map_err(at)?;
    let shapes: Vec<Vec<usize>> = levels.iter().map(|level| full_shape(&canonical, &level.shape)).collect();
    let (Some(first), Some(shape_full)) = (levels.first(), shapes.first().cloned()) else {
        return Err(at(Fault::malformed("the image has no levels")));
    };
    let planes = shape_full.iter().take(3).product::<usize>() as u64;
    if planes > options.limits.max_pages {
        return Err(at(Fault::over(
            "the number of planes",
            planes,
            "max_pages",
            options.limits.max_pages,
            Remedy::Split,
        )));
    }
    let (axes, shape) = squeezed(&shape_full);
    let mut channels = description.channels;
    channels.resize(shape_full.get(2).copied().unwrap_or(1), Channel::default());
    let compression = first.codecs.iter().find_map(|codec| codec.compression());
    let meta = ImageMeta {
        path: root.to_owned(),
        format: FileFormat::OmeZarr,
        axes,
        shape,
        axes_full: Axes::canonical(),
        dtype: first.dtype,
        voxel_size_um: description.voxel_size_um,
        origin_um: description.origin_um,
        time_interval_secs: description.time_interval_secs,
        channels,
        compression: compression.unwrap_or(StoredCompression::None),
        byte_order: first.order,
        levels: shapes
            .into_iter()
            .enumerate()
            .map(|(i, shape_full)| Level { name: i.to_string(), shape_full })
            .collect(),
        series: options.series,
        series_count: images.len(),
        series_names: images.iter().map(|image| image.name.clone()).collect(),
        bits_per_sample: first.dtype.size_bytes() as u32 * 8,
        display_range: description.display_range,
        missing_planes: 0,
        unread_pages: 0,
        read_as_slices: None,
        not_applied: description.not_applied,
        regions_outside: Vec::new(),
        shape_full,
    };
    // Slices are often read one after another: the chunks that hold a slice of all channels are kept.
    let chunks_of_slice: usize = description
        .axes
        .iter()
        .zip(first.shape.iter().zip(&first.chunk_shape))
        .map(|(axis, (n, chunk))| if matches!(axis, Axis::T | Axis::Z) { 1 } else { n.div_ceil(*chunk) })
        .product();
    let slice_bytes = chunks_of_slice.saturating_mul(first.chunk_bytes());
    let cache = Cache::new(slice_bytes.saturating_add(slice_bytes / 4));
    Ok((meta, OmeZarr { folder, levels, canonical, is_labels: description.is_labels, cache }))
}

/// Checks that the levels are levels of one image, and returns the index in T, Z, C, Y, X, S of each of its axes.
fn check_levels(axes: &[Axis], levels: &[ZarrArray]) -> Result<Vec<usize>, Fault> {
    let canonical: Vec<usize> =
        axes.iter().filter_map(|axis| Axis::CANONICAL.iter().position(|known| known == axis)).collect();
    let Some(first) = levels.first() else { return Ok(canonical) };
    for level in levels {
        if level.shape.len() != axes.len() {
            return Err(Fault::malformed(format!(
                "an array has the shape {:?}, but the image has {} axes",
                level.shape,
                axes.len()
            )));
        }
        let is_level = level.dtype == first.dtype
            && axes.iter().zip(level.shape.iter().zip(&first.shape)).all(|(axis, (n, full))| match axis {
                Axis::T | Axis::C => n == full,
                _ => n <= full,
            });
        if !is_level {
            return Err(Fault::malformed(format!(
                "an array of {} {:?} cannot be a level of an image of {} {:?}",
                level.dtype, level.shape, first.dtype, first.shape
            )));
        }
    }
    Ok(canonical)
}

/// The extents along T, Z, C, Y, X, S.
fn full_shape(canonical: &[usize], shape: &[usize]) -> Vec<usize> {
    let mut full = vec![1; Axis::CANONICAL.len()];
    for (i, n) in canonical.iter().zip(shape) {
        if let Some(extent) = full.get_mut(*i) {
            *extent = *n;
        }
    }
    full
}

/// The files and folders that identify an image of this folder: the folder and its metadata.
pub(crate) fn identity_files(root: &Path) -> Vec<PathBuf> {
    let metadata = METADATA_NAMES.iter().map(|name| root.join(name)).filter(|path| path.is_file());
    std::iter::once(root.to_owned()).chain(metadata).collect()
}
