//! Open images: their metadata, and the regions that are read from them.

use crate::{
    derived::{Derived, DerivedPixels, DerivedSpec},
    error::{Fault, FormatError, Remedy},
    file_format::FileFormat,
    limits::Limits,
    meta::{Channel, ImageMeta, Level},
    npy::Npy,
    ome_zarr::{self, ChunkFiles, OmeZarr},
    reader::{Pixels, check_shape},
    source::Counters,
    tiff::read::Stack,
};
use cytoscope_volume::{Array, Axes, Region, VoxelSize};
use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// An open image: its metadata, and its pixels on demand. Clones share the open files.
#[derive(Debug, Clone)]
pub struct Image {
    meta: Arc<ImageMeta>,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    data: Data,
    limits: Limits,
    counters: Arc<Counters>,
}

/// What the pixels of an image are read from.
#[derive(Debug)]
pub(crate) enum Data {
    Tiff(Stack),
    Npy(Npy),
    OmeZarr(Box<OmeZarr>),
    /// An image of another format.
    Other(Box<dyn Pixels>),
    /// Samples along T, Z, C, Y, X, S.
    Memory(Array),
}

/// The axes whose extent is not 1, in canonical order, with their extents.
pub(crate) fn squeezed(shape_full: &[usize]) -> (Axes, Vec<usize>) {
    let kept: Vec<_> = Axes::canonical().iter().zip(shape_full.iter().copied()).filter(|(_, n)| *n != 1).collect();
    // Axes of the canonical list are distinct, so this does not fail.
    (Axes::new(kept.iter().map(|k| k.0).collect()).unwrap_or_default(), kept.iter().map(|k| k.1).collect())
}

impl Image {
    /// Creates an image from its metadata and what its pixels are read from. `counters` are those of its files.
    pub(crate) fn new(meta: ImageMeta, data: Data, limits: Limits, counters: Arc<Counters>) -> Self {
        Self { meta: Arc::new(meta), inner: Arc::new(Inner { data, limits, counters }) }
    }

    /// The metadata of the image.
    pub fn meta(&self) -> &ImageMeta {
        &self.meta
    }

    /// Returns the same image with a voxel size in µm that replaces the one of its file.
    pub fn with_voxel_size(&self, voxel_size_um: VoxelSize) -> Image {
        let meta = ImageMeta { voxel_size_um, ..self.meta().clone() };
        Image { meta: Arc::new(meta), inner: Arc::clone(&self.inner) }
    }

    /// Returns the same image with other names and colors of its channels; those beyond the end of the list have none.
    pub fn with_channels(&self, mut channels: Vec<Channel>) -> Image {
        channels.resize(self.meta().channels.len(), Channel::default());
        let meta = ImageMeta { channels, ..self.meta().clone() };
        Image { meta: Arc::new(meta), inner: Arc::clone(&self.inner) }
    }

    /// Whether the file states no extents: regions of interest are as large as they need to be, or as
    /// [`crate::OpenOptions::shape_zyx`].
    pub fn is_without_extents(&self) -> bool {
        self.meta.format == FileFormat::ImageJRoi
    }

    /// Whether the file states that the image holds labels of objects: a label image of OME-Zarr, masks of Cellpose, or
    /// regions of interest. Other formats do not distinguish labels from intensities.
    pub fn is_label_image(&self) -> bool {
        match &self.inner.data {
            Data::OmeZarr(zarr) => zarr.is_labels,
            Data::Other(pixels) => pixels.is_label_image(),
            Data::Tiff(_) | Data::Npy(_) | Data::Memory(_) => false,
        }
    }

    /// All files of the image: more than one for a multi-file set.
    pub fn files(&self) -> Vec<PathBuf> {
        match &self.inner.data {
            Data::Tiff(stack) => stack.files.paths(),
            Data::Npy(_) => vec![self.meta.path.clone()],
            Data::OmeZarr(_) => ome_zarr::identity_files(&self.meta.path),
            Data::Other(pixels) => pixels.files().unwrap_or_else(|| vec![self.meta.path.clone()]),
            Data::Memory(_) => Vec::new(),
        }
    }

    /// Folders whose files hold the pixels of level 0, in any number: those of an OME-Zarr image. [`Image::files`] does not
    /// list them.
    pub fn chunk_folders(&self) -> Vec<PathBuf> {
        match &self.inner.data {
            Data::OmeZarr(zarr) => zarr.chunk_folder().into_iter().collect(),
            Data::Other(pixels) => pixels.chunk_folders(),
            Data::Tiff(_) | Data::Npy(_) | Data::Memory(_) => Vec::new(),
        }
    }

    /// Looks for the files of chunks of level 0 of an OME-Zarr image, at most 256 of them, without reading them; `None` for
    /// other formats. Files that are not stored are read as the fill value.
    pub fn look_for_chunk_files(&self) -> Option<ChunkFiles> {
        match &self.inner.data {
            Data::OmeZarr(zarr) => zarr.look_for_chunk_files(),
            Data::Tiff(_) | Data::Npy(_) | Data::Other(_) | Data::Memory(_) => None,
        }
    }

    /// Returns an image whose pixels are computed from those of this one. It has the same path, and one level.
    ///
    /// # Errors
    /// [`FormatError`] if the shape is impossible or exceeds a limit.
    pub fn derived(&self, spec: &DerivedSpec, pixels: Box<dyn DerivedPixels>) -> Result<Image, FormatError> {
        let source = self.meta();
        let limits = self.inner.limits.clone();
        check_shape(&spec.shape_full, spec.dtype, &limits).map_err(|f| f.at(&source.path))?;
        let shape_full = spec.shape_full.to_vec();
        let (axes, shape) = squeezed(&shape_full);
        let keeps_type = spec.dtype == source.dtype;
        let mut channels = spec.channels.clone();
        channels.resize(spec.shape_full[2], Channel::default());
        let meta = ImageMeta {
            axes,
            shape,
            levels: vec![Level { name: "0".into(), shape_full: shape_full.clone() }],
            shape_full,
            dtype: spec.dtype,
            voxel_size_um: spec.voxel_size_um,
            origin_um: spec.origin_um,
            channels,
            bits_per_sample: if keeps_type { source.bits_per_sample } else { spec.dtype.size_bytes() as u32 * 8 },
            display_range: source.display_range.filter(|_| keeps_type && spec.keeps_values),
            ..source.clone()
        };
        let data = Data::Other(Box::new(Derived { source: self.clone(), pixels }));
        Ok(Image::new(meta, data, limits, Arc::clone(&self.inner.counters)))
    }

    /// Maximum number of bytes of decoded samples that reading level 0 holds in addition to what it returns: those that are
    /// kept for the next read, and those that are being decoded. 0 for formats that keep none.
    pub fn cache_bytes(&self) -> u64 {
        match &self.inner.data {
            Data::OmeZarr(zarr) => zarr.cache_bytes(),
            Data::Npy(npy) => npy.cache_bytes(),
            Data::Other(pixels) => pixels.cache_bytes(),
            Data::Tiff(_) | Data::Memory(_) => 0,
        }
    }

    /// Limits the bytes of decoded samples that the image and its clones keep for the next read; a limit can only be lowered.
    /// Samples that are not kept are decoded again when they are needed. With any limit, the index of a shard of OME-Zarr is
    /// kept.
    pub fn limit_cache(&self, bytes: u64) {
        match &self.inner.data {
            Data::OmeZarr(zarr) => zarr.limit_cache(usize::try_from(bytes).unwrap_or(usize::MAX)),
            Data::Npy(npy) => npy.limit_cache(bytes),
            Data::Other(pixels) => pixels.limit_cache(bytes),
            Data::Tiff(_) | Data::Memory(_) => {}
        }
    }

    /// Whether both share the same open files.
    pub(crate) fn is_clone_of(&self, other: &Image) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Number of bytes read from the image's files so far, including headers.
    pub fn bytes_read(&self) -> u64 {
        self.inner.counters.bytes_read.load(Ordering::Relaxed)
    }

    /// Decoding of strips and tiles since the image was opened: time summed over threads, and number of decoded bytes.
    pub fn decoded(&self) -> (Duration, u64) {
        let counters = &self.inner.counters;
        let nanos = counters.decode_nanos.load(Ordering::Relaxed);
        (Duration::from_nanos(nanos), counters.decoded_bytes.load(Ordering::Relaxed))
    }

    /// Reads a region of a level, axes T, Z, C, Y, X, S. Only the strips or tiles that overlap the region are read;
    /// they are decoded in parallel.
    ///
    /// # Errors
    /// [`FormatError`] if the level does not exist, the region is not inside it, or the data are damaged or exceed a
    /// limit.
    pub fn read(&self, level: usize, region: &Region) -> Result<Array, FormatError> {
        let meta = self.meta();
        let Some(shape) = meta.levels.get(level).map(|l| &l.shape_full) else {
            let next = format!("choose one of 0 to {}", meta.levels.len().saturating_sub(1));
            return Err(FormatError::misused(&meta.path, format!("there is no level {level}"), next));
        };
        region
            .check(shape)
            .map_err(|e| FormatError::misused(&meta.path, e.to_string(), "choose a region inside the image"))?;
        let bytes = region.len().ok().and_then(|n| n.checked_mul(meta.dtype.size_bytes())).unwrap_or(usize::MAX) as u64;
        let limit = self.inner.limits.max_read_bytes;
        if bytes > limit {
            return Err(Fault::over("the size of the region in bytes", bytes, "max_read_bytes", limit, Remedy::Crop)
                .at(&meta.path));
        }
        let samples = match &self.inner.data {
            Data::Tiff(stack) => stack.read(&meta.path, level, region)?,
            Data::Npy(npy) => npy.read(region).map_err(|f| f.at(&meta.path))?,
            Data::OmeZarr(zarr) => zarr.read(level, region, &self.inner.limits).map_err(|f| f.at(&meta.path))?,
            Data::Other(pixels) => pixels.read_level(&meta.path, level, region)?,
            Data::Memory(array) => array
                .crop(region)
                .map_err(|e| FormatError::misused(&meta.path, e.to_string(), "choose a region inside the image"))?
                .into_samples(),
        };
        Array::new(Axes::canonical(), region.size.clone(), samples)
            .map_err(|e| FormatError::misused(&meta.path, e.to_string(), "read a smaller region"))
    }

    /// Reads the whole of level 0, without axes of length 1.
    ///
    /// # Errors
    /// Same as [`Image::read`].
    pub fn read_all(&self) -> Result<Array, FormatError> {
        Ok(self.read(0, &Region::whole(&self.meta().shape_full))?.squeeze())
    }
}
