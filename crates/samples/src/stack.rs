//! One channel and time point of a file as a stack of Z, Y, X.

use crate::dataset::ImageRef;
use crate::error::SamplesError;
use crate::limits::SLAB_BYTES;
use cytoscope_formats::{Image, OpenOptions, open};
use cytoscope_volume::{Axis, DType, Region, Samples, VoxelSize, element_count};

/// What a stack is in its pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Image,
    Target,
}

impl Role {
    /// The setting that chooses its channel.
    pub fn channel_setting(self) -> &'static str {
        match self {
            Role::Image => "data.image_channel",
            Role::Target => "data.target_channel",
        }
    }
}

/// What is known of a stack; its file is opened when voxels are read.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    pub image: ImageRef,
    pub role: Role,
    /// Extents along Z, Y, X.
    pub zyx: [usize; 3],
    pub dtype: DType,
    pub voxel_um: VoxelSize,
    /// Whether a part of a plane costs as much to read as the whole.
    pub packed: bool,
    time: usize,
    channel: usize,
    samples: usize,
}

/// Opens a file as [`ImageRef`] says.
pub(crate) fn open_image(image: &ImageRef) -> Result<Image, SamplesError> {
    let options = OpenOptions { series: image.series, axes: image.axes.clone(), ..OpenOptions::default() };
    Ok(open(&image.path, &options)?)
}

/// What a file has along an axis, and what of it is taken: what the setting chose.
fn choose(
    image: &ImageRef,
    (what, setting): (&'static str, &'static str),
    extent: usize,
    chosen: Option<usize>,
    hint: &str,
) -> Result<usize, SamplesError> {
    let last = extent.saturating_sub(1);
    match chosen {
        Some(i) if i < extent => Ok(i),
        None if extent == 1 => Ok(0),
        Some(i) if extent == 1 => Err(SamplesError::data(
            &image.path,
            format!("there is no {what} {i}: it has one"),
            format!("leave {setting} out of the settings, or put files without that {what} elsewhere"),
        )),
        Some(i) => Err(SamplesError::data(
            &image.path,
            format!("there is no {what} {i}: it has {extent}"),
            format!("give one of 0 to {last} as {setting} in the settings"),
        )),
        None => Err(SamplesError::data(
            &image.path,
            format!("it has {extent} {what}s"),
            format!("give {setting} in the settings, one of 0 to {last}{hint}"),
        )),
    }
}

impl Stack {
    /// Looks at a file's headers.
    pub fn of(reference: &ImageRef, role: Role, image: &Image) -> Result<Self, SamplesError> {
        let meta = image.meta();
        let size = |axis| meta.axes_full.position(axis).and_then(|i| meta.shape_full.get(i)).copied().unwrap_or(1);
        let zyx = [size(Axis::Z), size(Axis::Y), size(Axis::X)];
        let samples = size(Axis::S).max(1);
        let slices = if zyx[0] == 1 { ", or data.axes = \"ZYX\" if these are slices" } else { "" };
        let time = choose(reference, ("time point", "data.time"), size(Axis::T), reference.time, slices)?;
        let channels = size(Axis::C).saturating_mul(samples);
        let what = ("channel", role.channel_setting());
        let channel = choose(reference, what, channels, reference.channel, slices)?;
        if element_count(&zyx)? == 0 {
            return Err(SamplesError::data(&reference.path, "it has no voxels", "remove it, or export it again"));
        }
        Ok(Self {
            image: reference.clone(),
            role,
            zyx,
            dtype: meta.dtype,
            voxel_um: meta.voxel_size_um,
            packed: meta.compression != "none",
            time,
            channel,
            samples,
        })
    }

    /// Voxels of the stack.
    pub fn voxels(&self) -> u64 {
        self.zyx.iter().map(|n| *n as u64).fold(1, u64::saturating_mul)
    }

    /// Bytes of the stack as its file's type.
    pub fn bytes(&self) -> u64 {
        self.voxels().saturating_mul(self.dtype.size_bytes() as u64)
    }

    /// The voxels of a box, from its opened file.
    pub fn read(&self, image: &Image, start: [usize; 3], size: [usize; 3]) -> Result<Samples, SamplesError> {
        let meta = image.meta();
        let mut region = Region::whole(&meta.shape_full);
        let ranges = [
            (Axis::T, self.time, 1),
            (Axis::C, self.channel / self.samples, 1),
            (Axis::S, self.channel % self.samples, 1),
            (Axis::Z, start[0], size[0]),
            (Axis::Y, start[1], size[1]),
            (Axis::X, start[2], size[2]),
        ];
        for (axis, start, size) in ranges {
            if let Some(i) = meta.axes_full.position(axis) {
                region = region.with_range(i, start, size);
            }
        }
        Ok(image.read(0, &region)?.into_samples())
    }

    /// Slabs of whole rows, in order, of at most [`SLAB_BYTES`] (or one row): first voxel and extents of each. They follow each other
    /// in C order without gaps.
    pub fn slabs(&self) -> impl Iterator<Item = ([usize; 3], [usize; 3])> + use<> {
        let row = (self.zyx[2] as u64).saturating_mul(self.dtype.size_bytes() as u64).max(1);
        let rows = usize::try_from(SLAB_BYTES / row).unwrap_or(usize::MAX).clamp(1, self.zyx[1].max(1));
        let slices = if rows < self.zyx[1] {
            1
        } else {
            let plane = row.saturating_mul(self.zyx[1] as u64).max(1);
            usize::try_from(SLAB_BYTES / plane).unwrap_or(usize::MAX).clamp(1, self.zyx[0].max(1))
        };
        let [nz, ny, nx] = self.zyx;
        (0..nz).step_by(slices).flat_map(move |z| {
            (0..ny).step_by(rows).map(move |y| ([z, y, 0], [slices.min(nz - z), rows.min(ny - y), nx]))
        })
    }
}
