//! Interface of every reader apart from TIFF's: a description of the image, and its pixels on demand.

use crate::{
    error::{Fault, FormatError, Remedy, choose_index},
    file_format::{FileFormat, StoredCompression},
    limits::Limits,
    meta::{ByteOrder, Channel},
    opening::OpenOptions,
};
use cytoscope_volume::{Axes, Axis, DType, Region, Samples, VoxelSize};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Reads regions of an open image. Several threads may read at the same time.
pub(crate) trait Pixels: fmt::Debug + Send + Sync {
    /// Reads a region of level 0, axes T, Z, C, Y, X, S, which has been checked against the shape; `path` is the opened
    /// path, for errors.
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError>;

    /// Reads a region of a level, 0 for the full resolution, as [`Pixels::read`].
    fn read_level(&self, path: &Path, level: usize, region: &Region) -> Result<Samples, FormatError> {
        if level == 0 { self.read(path, region) } else { Err(no_level(path, level)) }
    }

    /// All files of the image; `None` if the opened path is the only one.
    fn files(&self) -> Option<Vec<PathBuf>> {
        None
    }

    /// Same as [`crate::Image::is_label_image`].
    fn is_label_image(&self) -> bool {
        false
    }

    /// Same as [`crate::Image::chunk_folders`].
    fn chunk_folders(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Same as [`crate::Image::cache_bytes`].
    fn cache_bytes(&self) -> u64 {
        0
    }

    /// Same as [`crate::Image::limit_cache`].
    fn limit_cache(&self, _bytes: u64) {}
}

/// The error for a level that a reader does not have.
pub(crate) fn no_level(path: &Path, level: usize) -> FormatError {
    FormatError::misused(path, format!("there is no level {level}"), "read level 0")
}

/// An image that a reader has opened: its description and its pixels.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Format of the file.
    pub format: FileFormat,
    /// Number of samples along T, Z, C, Y, X, S.
    pub shape_full: [usize; 6],
    /// The same for the lower resolution levels, largest first.
    pub lower_levels: Vec<[usize; 6]>,
    /// Sample type of the arrays that are read.
    pub dtype: DType,
    /// Distance between voxel centers along Z, Y, X in µm; unknown along axes for which the file states none.
    pub voxel_size_um: VoxelSize,
    /// Time between time points in seconds.
    pub time_interval_secs: Option<f64>,
    /// Channels; those beyond the end of the list have no name.
    pub channels: Vec<Channel>,
    /// Same as [`crate::ImageMeta::compression`].
    pub compression: StoredCompression,
    /// Byte order of the file.
    pub byte_order: ByteOrder,
    /// Stored bits per sample (12 for 12-bit data in `uint16`).
    pub bits_per_sample: u32,
    /// Number of images in the file.
    pub series_count: usize,
    /// Names of all images; empty texts, or no list, where the file states none.
    pub series_names: Vec<String>,
    /// Planes that the metadata declare but no file contains.
    pub missing_planes: usize,
    /// Parts of the file that are not supported and belong to no image.
    pub unread_pages: usize,
    /// Same as [`crate::ImageMeta::not_applied`].
    pub not_applied: Vec<String>,
    /// Same as [`crate::ImageMeta::regions_outside`].
    pub regions_outside: Vec<String>,
    /// Reads regions of the image.
    pub pixels: Box<dyn Pixels>,
}

impl Opened {
    /// An uncompressed image with nothing known but its shape and sample type.
    pub fn new(format: FileFormat, shape_full: [usize; 6], dtype: DType, pixels: Box<dyn Pixels>) -> Self {
        Self {
            format,
            shape_full,
            lower_levels: Vec::new(),
            dtype,
            voxel_size_um: VoxelSize::default(),
            time_interval_secs: None,
            channels: Vec::new(),
            compression: StoredCompression::None,
            byte_order: ByteOrder::Little,
            bits_per_sample: dtype.size_bytes() as u32 * 8,
            series_count: 1,
            series_names: Vec::new(),
            missing_planes: 0,
            unread_pages: 0,
            not_applied: Vec::new(),
            regions_outside: Vec::new(),
            pixels,
        }
    }

    /// Checks the options against the image and applies its axes.
    pub fn with_options(self, options: &OpenOptions) -> Result<Self, Fault> {
        if options.series >= self.series_count {
            let next = choose_index(self.series_count);
            let problem = format!("there is no series {}: the file has {}", options.series, self.series_count);
            return Err(Fault::Misused(problem.into(), next.into()));
        }
        check_shape(&self.shape_full, self.dtype, &options.limits)?;
        match &options.axes {
            Some(axes) => self.relabeled(axes),
            None => Ok(self),
        }
    }

    /// Replaces the names of the axes T, Z, C that are longer than 1; their order stays that of the file.
    fn relabeled(mut self, axes: &Axes) -> Result<Self, Fault> {
        let wanted: Vec<Axis> = axes.iter().filter(|a| leading_index(*a).is_some()).collect();
        let found: Vec<usize> = (0..3).filter(|i| self.shape_full.get(*i).is_some_and(|n| *n > 1)).collect();
        let places: Vec<usize> = wanted.iter().filter_map(|a| leading_index(*a)).collect();
        let trailing: String = axes.iter().skip(wanted.len()).map(|a| a.letter()).collect();
        let fits = matches!(trailing.as_str(), "" | "YX" | "YXS");
        if !fits || places.len() != found.len() || !places.is_sorted() {
            let letters: String =
                found.iter().filter_map(|i| Axis::CANONICAL.get(*i).copied()).map(|a| a.letter()).collect();
            return Err(Fault::Misused(
                format!("the axes {axes} do not match its axes {letters}YX").into(),
                "give one of T, Z, C for each leading axis that is longer than 1, in this order".into(),
            ));
        }
        let mut from = [0, 1, 2, 3, 4, 5];
        // Extents of 1 fill the places that are left.
        let mut free = (0..3).filter(|i| !found.contains(i));
        for (to, slot) in from.iter_mut().enumerate().take(3) {
            *slot = match places.iter().position(|p| *p == to).and_then(|k| found.get(k)) {
                Some(old) => *old,
                None => free.next().unwrap_or(to),
            };
        }
        let renamed = |of: &[usize; 6]| from.map(|old| of.get(old).copied().unwrap_or(1));
        let shape = renamed(&self.shape_full);
        self.lower_levels = self.lower_levels.iter().map(renamed).collect();
        if shape[2] != self.shape_full[2] {
            self.channels.clear();
        }
        self.shape_full = shape;
        self.pixels = Box::new(Relabeled { inner: self.pixels, from });
        Ok(self)
    }
}

fn leading_index(axis: Axis) -> Option<usize> {
    [Axis::T, Axis::Z, Axis::C].iter().position(|a| *a == axis)
}

/// Refuses shapes with too many planes, without samples, or of a size that does not fit in memory addresses.
pub(crate) fn check_shape(shape_full: &[usize; 6], dtype: DType, limits: &Limits) -> Result<(), Fault> {
    let [t, z, c, ..] = *shape_full;
    let planes = t.checked_mul(z).and_then(|n| n.checked_mul(c)).unwrap_or(usize::MAX);
    if planes as u64 > limits.max_pages {
        return Err(Fault::over("the number of planes", planes as u64, "max_pages", limits.max_pages, Remedy::Split));
    }
    let samples = shape_full.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent));
    match samples.and_then(|n| n.checked_mul(dtype.size_bytes())) {
        None | Some(0) => {
            Err(Fault::malformed(format!("an image of shape {shape_full:?} (T, Z, C, Y, X, S) is empty or too large")))
        }
        Some(_) => Ok(()),
    }
}

/// Pixels whose axes have other names: axis `i` of this image is axis `from[i]` of the inner one. Axes of more than one
/// sample keep their order, so samples need not be moved.
#[derive(Debug)]
struct Relabeled {
    inner: Box<dyn Pixels>,
    from: [usize; 6],
}

impl Pixels for Relabeled {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.read_level(path, 0, region)
    }

    fn read_level(&self, path: &Path, level: usize, region: &Region) -> Result<Samples, FormatError> {
        let mut inner = Region::whole(&[1; 6]);
        for (to, old) in self.from.iter().enumerate() {
            if let (Some(start), Some(size)) = (region.start.get(to), region.size.get(to)) {
                inner = inner.with_range(*old, *start, *size);
            }
        }
        self.inner.read_level(path, level, &inner)
    }

    fn files(&self) -> Option<Vec<PathBuf>> {
        self.inner.files()
    }

    fn cache_bytes(&self) -> u64 {
        self.inner.cache_bytes()
    }

    fn limit_cache(&self, bytes: u64) {
        self.inner.limit_cache(bytes);
    }
}
