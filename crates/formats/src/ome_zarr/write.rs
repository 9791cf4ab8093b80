//! Writing of OME-Zarr 0.5 slab by slab, with lower resolution levels and label images.

use super::array::MAX_AXES;
use super::attributes::{self, Written};
use super::folder::{LABELS, is_label_path, join};
use super::pyramid::{Downsampling, halve};
use super::shard::{self, ShardBox};
use crate::error::FormatError;
use crate::meta::Channel;
use cytoscope_storage::partial_folder::PartialFolder;
use cytoscope_volume::{Axis, DType, Element, Samples, VoxelSize, element_count, with_samples};
use rayon::prelude::*;
use serde_json::Value;
use std::borrow::Cow;
use std::path::Path;

/// Maximum size of a slab in bytes; a slice that is larger is a slab by itself.
const SLAB_BYTES: usize = 64 << 20;
/// Largest number of slices of a chunk.
const CHUNK_DEPTH: usize = 8;
/// Largest extent of a chunk along Y and X, of stacks and of single slices.
const CHUNK_EDGE: [usize; 2] = [256, 512];
/// Largest number of chunks of a shard along each axis.
const SHARD_CHUNKS: usize = 4;
/// Levels are added until Y and X are not larger than this.
const SMALLEST_LEVEL: usize = 256;

/// An image to write as OME-Zarr.
#[derive(Debug, Clone, PartialEq)]
pub struct ZarrImageSpec {
    /// Name of the image. The name of a label image is also that of its folder.
    pub name: String,
    /// Whether samples are labels: lower levels then hold labels of the upper level, and labels have colors.
    pub labels: bool,
    /// Number of samples along T, C, Z, Y, X. Axes of length 1 other than Y and X are not written.
    pub shape_tczyx: [usize; MAX_AXES],
    /// Type of the written samples.
    pub dtype: DType,
    /// Distance between voxel centers along Z, Y, X in µm; unknown axes are written without a unit.
    pub voxel_size_um: VoxelSize,
    /// Position of the center of the first voxel along Z, Y, X in µm; not written along axes of unknown voxel size.
    pub origin_um: [f64; 3],
    /// Time between time points in seconds.
    pub time_interval_secs: Option<f64>,
    /// Names and colors of the channels; channels beyond the end of the list have none.
    pub channels: Vec<Channel>,
    /// Values shown as black and white. If `None`, the range of each channel.
    pub display_range: Option<(f64, f64)>,
    /// Whether the image is stored in the folder itself instead of in `labels`.
    pub(crate) is_root: bool,
}

impl ZarrImageSpec {
    /// A spec without voxel size and channels.
    pub fn new(name: &str, shape_tczyx: [usize; MAX_AXES], dtype: DType) -> Self {
        Self {
            name: name.to_owned(),
            labels: false,
            shape_tczyx,
            dtype,
            voxel_size_um: VoxelSize::default(),
            origin_um: [0.0; 3],
            time_interval_secs: None,
            channels: Vec::new(),
            display_range: None,
            is_root: true,
        }
    }

    pub(crate) fn downsampling(&self) -> Downsampling {
        if self.labels { Downsampling::First } else { Downsampling::Mean }
    }

    fn check(&self, path: &Path) -> Result<(), FormatError> {
        let misused = |problem: String, next_step: &str| Err(FormatError::misused(path, problem, next_step));
        let bytes = element_count(&self.shape_tczyx).ok().and_then(|n| n.checked_mul(self.dtype.size_bytes()));
        if bytes.is_none_or(|n| n == 0) {
            return misused(
                format!("an image of shape {:?} cannot be written", self.shape_tczyx),
                "give extents above 0",
            );
        }
        if self.labels && self.dtype.is_float() {
            return misused(format!("labels cannot be {}", self.dtype), "give labels as whole numbers");
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if !self.is_root && (self.name.starts_with('.') || self.name.is_empty() || !self.name.chars().all(is_plain)) {
            let next_step = "use letters, digits, -, _ and . only";
            return misused(format!("{:?} is not a name for a label image", self.name), next_step);
        }
        Ok(())
    }
}

/// Writes an OME-Zarr 0.5 folder: an image, and label images of it in `labels`. Chunks are compressed with Zstandard and
/// stored in shards. Memory use is about twice that of one slab.
///
/// The folder has a hidden name until the handle returned by [`ZarrWriter::finish`] is published.
///
/// ```
/// use cytoscope_formats::{OpenOptions, ZarrImageSpec, ZarrWriter, open};
/// use cytoscope_storage::Overwrite;
/// use cytoscope_volume::{DType, Samples};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("stack.zarr");
/// let mut writer = ZarrWriter::create(&path, ZarrImageSpec::new("stack", [1, 1, 3, 4, 5], DType::U16))?;
/// let depth = writer.slab_depth(0);
/// for z in (0..3).step_by(depth) {
///     writer.write(0, [0, 0, z], &Samples::U16(vec![7; depth.min(3 - z) * 20]))?;
/// }
/// writer.finish()?.publish(Overwrite::Refuse)?;
/// assert_eq!(open(&path, &OpenOptions::default())?.meta().shape, [3, 4, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ZarrWriter {
    folder: PartialFolder,
    images: Vec<ImageState>,
}

/// An image that is being written.
#[derive(Debug)]
struct ImageState {
    spec: ZarrImageSpec,
    /// Path of its group in the folder.
    path: String,
    /// Axes that are written, with their index in T, C, Z, Y, X.
    axes: Vec<(usize, Axis)>,
    levels: Vec<LevelPlan>,
    /// Smallest and largest finite value of each channel.
    ranges: Vec<(f64, f64)>,
    slices_done: usize,
}

/// Extents of a level, its chunks and shards.
#[derive(Debug, Clone, Copy)]
struct LevelPlan {
    height: usize,
    width: usize,
    /// Extents of a chunk along Z, Y, X.
    chunk: [usize; 3],
    /// Number of chunks of a shard along Z, Y, X.
    chunks: [usize; 3],
}

/// Axes in the order in which OME-Zarr stores them.
const AXES: [Axis; MAX_AXES] = [Axis::T, Axis::C, Axis::Z, Axis::Y, Axis::X];

impl ImageState {
    fn new(spec: ZarrImageSpec, path: String) -> Self {
        let [_, channels, ..] = spec.shape_tczyx;
        let is_written = |(i, axis): &(usize, Axis)| {
            matches!(axis, Axis::Y | Axis::X) || spec.shape_tczyx.get(*i).is_some_and(|n| *n > 1)
        };
        Self {
            axes: AXES.into_iter().enumerate().filter(is_written).collect(),
            levels: plan_levels(&spec),
            ranges: vec![(f64::INFINITY, f64::NEG_INFINITY); channels],
            slices_done: 0,
            path,
            spec,
        }
    }

    /// Number of slices of a slab.
    fn slab_depth(&self) -> usize {
        self.levels.first().map_or(1, |level| level.chunk[0] * level.chunks[0])
    }

    /// The values of a position along T, C, Z, Y, X for the axes that are written.
    fn written<T: Copy>(&self, tczyx: [T; MAX_AXES]) -> Vec<T> {
        self.axes.iter().filter_map(|(i, _)| tczyx.get(*i).copied()).collect()
    }

    fn add_range(&mut self, channel: usize, samples: &Samples) {
        let (low, high) = with_samples!(samples, v => finite_range(v));
        if let Some(range) = self.ranges.get_mut(channel) {
            *range = (range.0.min(low), range.1.max(high));
        }
    }
}

fn finite_range<E: Element>(values: &[E]) -> (f64, f64) {
    const EMPTY: (f64, f64) = (f64::INFINITY, f64::NEG_INFINITY);
    let part_range = |part: &[E]| {
        let finite = part.iter().map(|v| v.to_f64()).filter(|v| v.is_finite());
        finite.fold(EMPTY, |(low, high), v| (low.min(v), high.max(v)))
    };
    values.par_chunks(1 << 16).map(part_range).reduce(|| EMPTY, |a, b| (a.0.min(b.0), a.1.max(b.1)))
}

fn plan_levels(spec: &ZarrImageSpec) -> Vec<LevelPlan> {
    let [_, _, depth, mut height, mut width] = spec.shape_tczyx;
    let slice_bytes = (height * width * spec.dtype.size_bytes()).max(1);
    let slices = (SLAB_BYTES / slice_bytes).max(1);
    let chunk_depth = CHUNK_DEPTH.min(depth).min(slices);
    let chunks_deep = (slices / chunk_depth).clamp(1, SHARD_CHUNKS).min(depth.div_ceil(chunk_depth));
    let edge = if depth > 1 { CHUNK_EDGE[0] } else { CHUNK_EDGE[1] };
    let mut levels = Vec::new();
    loop {
        let chunk = [chunk_depth, edge.min(height), edge.min(width)];
        let chunks =
            [chunks_deep, height.div_ceil(chunk[1]).min(SHARD_CHUNKS), width.div_ceil(chunk[2]).min(SHARD_CHUNKS)];
        levels.push(LevelPlan { height, width, chunk, chunks });
        if height.max(width) <= SMALLEST_LEVEL {
            return levels;
        }
        (height, width) = (height.div_ceil(2), width.div_ceil(2));
    }
}

impl ZarrWriter {
    /// Creates a hidden folder next to `path`, with the image of the folder itself; its index is 0.
    ///
    /// # Errors
    /// [`FormatError::Misused`] if the image cannot be written, [`FormatError::Io`] if the folder is not writable.
    pub fn create(path: &Path, image: ZarrImageSpec) -> Result<Self, FormatError> {
        let image = ZarrImageSpec { is_root: true, ..image };
        image.check(path)?;
        Ok(Self { folder: PartialFolder::create(path)?, images: vec![ImageState::new(image, String::new())] })
    }

    /// Like [`ZarrWriter::create`], for a folder whose marker lists its files: the caller must finish the folder that
    /// [`ZarrWriter::finish`] returns with [`PartialFolder::finish`].
    ///
    /// # Errors
    /// Same as [`ZarrWriter::create`].
    pub fn create_listed(path: &Path, image: ZarrImageSpec) -> Result<Self, FormatError> {
        let image = ZarrImageSpec { is_root: true, ..image };
        image.check(path)?;
        Ok(Self { folder: PartialFolder::create_listed(path)?, images: vec![ImageState::new(image, String::new())] })
    }

    /// Starts a folder that replaces the finished one at `path`, with its image and with `labels` as its only label image;
    /// its index is 0. The files of the image are taken over as they are. As with [`ZarrWriter::create_listed`], the caller
    /// must finish the folder with [`PartialFolder::finish`], and checks before that the finished folder is unchanged.
    ///
    /// # Errors
    /// [`FormatError::Misused`] if the label image cannot be written, [`FormatError::Io`] if the folder is not writable.
    pub fn replace_labels(path: &Path, labels: ZarrImageSpec) -> Result<Self, FormatError> {
        let labels = ZarrImageSpec { is_root: false, labels: true, ..labels };
        labels.check(path)?;
        let folder = PartialFolder::create_listed(path)?;
        folder.adopt(path, &|name| !is_label_path(name))?;
        let at = join(LABELS, &labels.name);
        Ok(Self { folder, images: vec![ImageState::new(labels, at)] })
    }

    /// Adds a label image, stored as `labels/NAME`, and returns its index.
    ///
    /// # Errors
    /// [`FormatError::Misused`] if it cannot be written, or its name is used already.
    pub fn add_labels(&mut self, image: ZarrImageSpec) -> Result<usize, FormatError> {
        let image = ZarrImageSpec { is_root: false, labels: true, ..image };
        image.check(self.folder.target())?;
        let path = join(LABELS, &image.name);
        if self.images.iter().any(|other| other.path.eq_ignore_ascii_case(&path)) {
            let problem = format!("there are two label images with the name {:?}", image.name);
            return Err(FormatError::misused(self.folder.target(), problem, "give them different names"));
        }
        self.images.push(ImageState::new(image, path));
        Ok(self.images.len() - 1)
    }

    /// Number of slices of each slab of an image; the last one may have fewer.
    pub fn slab_depth(&self, image: usize) -> usize {
        self.images.get(image).map_or(1, ImageState::slab_depth)
    }

    /// Writes the slab that begins at a time point, channel and slice: [`ZarrWriter::slab_depth`] slices, or those that
    /// remain, in the order Z, Y, X. Slabs may be written in any order, each once.
    ///
    /// # Errors
    /// [`FormatError::Misused`] for a slab of another type, size or position, [`FormatError::Io`] if writing fails.
    pub fn write(&mut self, image: usize, [t, c, z]: [usize; 3], samples: &Samples) -> Result<(), FormatError> {
        let target = self.folder.target().to_owned();
        let Some(state) = self.images.get_mut(image) else {
            return Err(FormatError::misused(&target, format!("there is no image {image}"), "add it first"));
        };
        let [times, channels, depth, height, width] = state.spec.shape_tczyx;
        let slab_depth = state.slab_depth();
        let slices = slab_depth.min(depth.saturating_sub(z));
        let fits = t < times && c < channels && slices > 0 && z % slab_depth == 0;
        if !fits || samples.dtype() != state.spec.dtype || samples.len() != slices * height * width {
            let found = format!("{} {} samples were given at T {t}, C {c}, Z {z}", samples.len(), samples.dtype());
            let next_step = format!("give slabs of {slab_depth} slices of {height} × {width} {}", state.spec.dtype);
            return Err(FormatError::misused(&target, found, next_step));
        }
        state.add_range(c, samples);
        state.slices_done += slices;
        let mut slab = Cow::Borrowed(samples);
        for (k, level) in state.levels.iter().enumerate() {
            let shape = [slices, level.height, level.width];
            let [_, shard_height, shard_width] = level.shard();
            let columns = level.width.div_ceil(shard_width);
            let (folder, samples) = (&self.folder, slab.as_bytes());
            let image: &ImageState = state;
            // While one shard is flushed to disk, others are compressed.
            (0..level.height.div_ceil(shard_height) * columns).into_par_iter().try_for_each(|i| {
                let (row, column) = (i / columns, i % columns);
                let start = [0, row * shard_height, column * shard_width];
                let shard = ShardBox { start, chunk: level.chunk, chunks: level.chunks };
                let encoded = shard::encode(samples, shape, image.spec.dtype.size_bytes(), &shard);
                let Some(bytes) = encoded.map_err(|f| f.at(&target))? else { return Ok(()) };
                let at = image.written([t, c, z / slab_depth, row, column]);
                let at: Vec<String> = at.iter().map(usize::to_string).collect();
                let key = join(&image.path, &format!("{k}/c/{}", at.join("/")));
                Ok::<(), FormatError>(folder.write(Path::new(&key), &bytes)?)
            })?;
            if k + 1 < state.levels.len() {
                slab = Cow::Owned(halve(&slab, level.height, level.width, state.spec.downsampling()));
            }
        }
        Ok(())
    }

    /// Writes the metadata. The folder gets its name when the returned handle is published.
    ///
    /// # Errors
    /// [`FormatError::Misused`] if slabs are missing, [`FormatError::Io`] if writing fails; the folder is then removed.
    pub fn finish(self) -> Result<PartialFolder, FormatError> {
        for state in &self.images {
            self.finish_image(state)?;
        }
        let label_images = self.images.iter().filter(|image| !image.spec.is_root);
        let names: Vec<&str> = label_images.map(|image| image.spec.name.as_str()).collect();
        if !names.is_empty() {
            self.write_json(LABELS, &attributes::labels_group(&names))?;
        }
        Ok(self.folder)
    }

    fn finish_image(&self, state: &ImageState) -> Result<(), FormatError> {
        let [times, channels, depth, ..] = state.spec.shape_tczyx;
        let slices = times * channels * depth;
        if state.slices_done != slices {
            let found = format!("{} of {slices} slices of {:?} were written", state.slices_done, state.spec.name);
            return Err(FormatError::misused(self.folder.target(), found, "write each slab once before finishing"));
        }
        let axes: Vec<Axis> = state.axes.iter().map(|(_, axis)| *axis).collect();
        for (k, level) in state.levels.iter().enumerate() {
            let [shard_depth, shard_height, shard_width] = level.shard();
            let [chunk_depth, chunk_height, chunk_width] = level.chunk;
            let array = attributes::array(
                &axes,
                &state.written([times, channels, depth, level.height, level.width]),
                &state.written([1, 1, shard_depth, shard_height, shard_width]),
                &state.written([1, 1, chunk_depth, chunk_height, chunk_width]),
                state.spec.dtype,
            );
            self.write_json(&join(&state.path, &k.to_string()), &array)?;
        }
        // Channels without a finite value have no range.
        let known = |range: &(f64, f64)| if range.0 <= range.1 { *range } else { (0.0, 1.0) };
        let ranges: Vec<(f64, f64)> = state.ranges.iter().map(known).collect();
        let written = Written { spec: &state.spec, axes: &axes, levels: state.levels.len(), ranges: &ranges };
        self.write_json(&state.path, &attributes::image_group(&written))
    }

    fn write_json(&self, group: &str, value: &Value) -> Result<(), FormatError> {
        // Values made of strings and numbers can always be serialized.
        let bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
        Ok(self.folder.write(Path::new(&join(group, "zarr.json")), &bytes)?)
    }
}

impl LevelPlan {
    /// Extents of a shard along Z, Y, X.
    fn shard(&self) -> [usize; 3] {
        let ([cz, cy, cx], [nz, ny, nx]) = (self.chunk, self.chunks);
        [cz * nz, cy * ny, cx * nx]
    }
}
