//! Images whose pixels are computed from those of another image.

use crate::{Channel, Image, error::FormatError, reader::Pixels};
use cytoscope_volume::{DType, Region, Samples, VoxelSize};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Computes the pixels of an image from those of another one. Several threads may read at the same time.
pub trait DerivedPixels: fmt::Debug + Send + Sync {
    /// Computes a region of the derived image, axes T, Z, C, Y, X, S, which has been checked against its shape. The
    /// samples have the type of [`DerivedSpec::dtype`].
    ///
    /// # Errors
    /// [`FormatError`] if the source cannot be read.
    fn read(&self, source: &Image, region: &Region) -> Result<Samples, FormatError>;

    /// Files that the pixels are read from, apart from those of the source.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Images that the pixels are read from, apart from the source.
    fn images(&self) -> Vec<&Image> {
        Vec::new()
    }
}

/// Differences between a derived image and its source.
#[derive(Debug, Clone, PartialEq)]
pub struct DerivedSpec {
    /// Number of samples along T, Z, C, Y, X, S.
    pub shape_full: [usize; 6],
    /// Sample type.
    pub dtype: DType,
    /// Voxel size in µm.
    pub voxel_size_um: VoxelSize,
    /// Position of the center of the first voxel along Z, Y, X in µm.
    pub origin_um: [f64; 3],
    /// Channels, one for each index of the C axis; those beyond the end of the list have no name.
    pub channels: Vec<Channel>,
    /// Whether the values of the source stay the same, so that its display range still fits.
    pub keeps_values: bool,
}

/// The pixels of a derived image, with their source.
#[derive(Debug)]
pub(crate) struct Derived {
    /// The image from which pixels are computed.
    pub source: Image,
    /// How they are computed.
    pub pixels: Box<dyn DerivedPixels>,
}

impl Derived {
    /// The images that are read, each once.
    fn images(&self) -> Vec<&Image> {
        let mut images = vec![&self.source];
        for image in self.pixels.images() {
            if !images.iter().any(|known| known.is_clone_of(image)) {
                images.push(image);
            }
        }
        images
    }
}

impl Pixels for Derived {
    fn read(&self, _path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.pixels.read(&self.source, region)
    }

    fn files(&self) -> Option<Vec<PathBuf>> {
        let mut files = self.source.files();
        files.extend(self.pixels.files());
        Some(files)
    }

    fn is_label_image(&self) -> bool {
        self.source.is_label_image()
    }

    fn chunk_folders(&self) -> Vec<PathBuf> {
        self.images().into_iter().flat_map(Image::chunk_folders).collect()
    }

    fn cache_bytes(&self) -> u64 {
        self.images().into_iter().map(Image::cache_bytes).fold(0, u64::saturating_add)
    }

    fn limit_cache(&self, bytes: u64) {
        let images = self.images();
        let each = bytes / images.len().max(1) as u64;
        images.into_iter().for_each(|image| image.limit_cache(each));
    }
}
