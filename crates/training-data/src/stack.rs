//! One channel and time point of a file as a stack Z, Y, X.

use crate::dataset::{ImageRef, Pair};
use crate::error::TrainingDataError;
use crate::limits::SLAB_BYTES;
use crate::setting::{
    AXES, DataSetting, IMAGE_CHANNEL, IMAGE_CHANNELS, IN_SETTINGS, LABELS_CHANNEL, TARGET_CHANNEL, TARGETS, TIME,
};
use cytoscope_formats::{Image, ImageMeta, open};
use cytoscope_storage::message;
use cytoscope_storage::message::{Message, TimePoint};
use cytoscope_volume::{Axis, DType, Region, Samples, VoxelSize, element_count};

/// Role of a stack in its pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Image,
    /// A stain.
    Target,
    /// A label image.
    Labels,
}

impl Role {
    /// Returns the setting that selects its channel.
    pub fn channel_setting(self) -> DataSetting {
        match self {
            Role::Image => IMAGE_CHANNEL,
            Role::Target => TARGET_CHANNEL,
            Role::Labels => LABELS_CHANNEL,
        }
    }

    /// Returns the setting that lists its channels.
    pub fn channels_setting(self) -> DataSetting {
        match self {
            Role::Image => IMAGE_CHANNELS,
            Role::Target => TARGETS,
            Role::Labels => LABELS_CHANNEL,
        }
    }
}

/// Returns the extent of an image along an axis; 1 if it does not have the axis.
fn extent(meta: &ImageMeta, axis: Axis) -> usize {
    meta.axes_full.position(axis).and_then(|i| meta.shape_full.get(i)).copied().unwrap_or(1)
}

/// Returns the number of channels of an image; samples of an RGB pixel are channels.
pub(crate) fn channel_count(meta: &ImageMeta) -> usize {
    extent(meta, Axis::C).saturating_mul(extent(meta, Axis::S).max(1))
}

/// Returns the names of the first `count` channels of an image.
fn first_channel_names(meta: &ImageMeta, count: usize) -> Vec<String> {
    let samples = extent(meta, Axis::S).max(1);
    // The channels of a pixel's samples have no names of their own.
    let name = |c: usize| if samples > 1 { format!("channel{c}") } else { meta.channel_name(c) };
    (0..count).map(name).collect()
}

/// Returns the names of all channels of an image; samples of an RGB pixel are channels.
pub(crate) fn channel_names(meta: &ImageMeta) -> Vec<String> {
    first_channel_names(meta, channel_count(meta))
}

/// Maximum number of channels whose names are listed in a message.
const MAX_LISTED: usize = 16;

/// Returns the error of a file with several channels of which none is chosen.
fn ambiguous_channel(reference: &ImageRef, role: Role, meta: &ImageMeta, hint: &Message) -> TrainingDataError {
    let count = channel_count(meta);
    let names = first_channel_names(meta, count.min(MAX_LISTED));
    let listed: Vec<String> = names.iter().enumerate().map(|(i, name)| format!("{i} ({name})")).collect();
    let more = if count > MAX_LISTED { ", …" } else { "" };
    let problem = format!("it has {count} channels: {}{more}", listed.join(", "));
    let setting = role.channel_setting();
    let next_step = match role {
        Role::Labels => message!("set {setting} {IN_SETTINGS} to the name or number of the one to train on{hint}"),
        Role::Image | Role::Target => {
            message!("set {setting} {IN_SETTINGS} to one of 0 to {}{hint}", count.saturating_sub(1))
        }
    };
    TrainingDataError::data(&reference.path, problem, next_step)
}

/// Returns the voxel size of a pair along Z, Y, X in µm, where it is known: the given one, or else that of its image or target.
pub(crate) fn pair_voxel_um(pair: &Pair, image: &Stack, target: &Stack) -> [Option<f64>; 3] {
    let positive = |um: Option<f64>| um.filter(|um| um.is_finite() && *um > 0.0);
    let [image_um, target_um] = [image, target].map(|stack| [stack.voxel_um.z, stack.voxel_um.y, stack.voxel_um.x]);
    std::array::from_fn(|a| {
        positive(pair.voxel_um.map(|v| v[a])).or_else(|| positive(image_um[a])).or_else(|| positive(target_um[a]))
    })
}

/// Metadata of a stack; its file is opened when voxels are read.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    /// The file, and the series, channel and time point in it.
    pub image: ImageRef,
    /// Determines which setting error messages name for the channel.
    pub role: Role,
    /// Shape along Z, Y, X.
    pub zyx: [usize; 3],
    /// Data type that the file stores; patches are read as floats or labels.
    pub dtype: DType,
    /// Voxel size that the file states, in µm, unknown along axes without one.
    pub voxel_um: VoxelSize,
    /// Whether the file is compressed, so that reading a part of a plane costs as much as the whole plane.
    pub packed: bool,
    time: usize,
    channel: usize,
    samples: usize,
}

/// Opens the file of an image reference.
pub(crate) fn open_image(image: &ImageRef) -> Result<Image, TrainingDataError> {
    Ok(open(&image.path, &image.open_options())?)
}

/// Returns the index to use along an axis of `extent` elements: the `chosen` one, or 0 if there is only one.
///
/// # Errors
/// [`TrainingDataError::Data`] if the index does not exist, or if there are several elements and none is chosen.
fn choose_index(
    image: &ImageRef,
    (what, setting): (&'static str, DataSetting),
    extent: usize,
    chosen: Option<usize>,
    hint: &Message,
) -> Result<usize, TrainingDataError> {
    // Time points count from 0 in the settings, but from 1 in the window; channels from 0 in both.
    let number = |i: usize| match setting {
        TIME => message!("{}", TimePoint(i)),
        _ => message!("{i}"),
    };
    let last = number(extent.saturating_sub(1));
    let first = number(0);
    match chosen {
        Some(i) if i < extent => Ok(i),
        None if extent == 1 => Ok(0),
        Some(i) if extent == 1 => Err(TrainingDataError::data(
            &image.path,
            message!("it has only one {what}, so {what} {} does not exist", number(i)),
            message!("remove {setting} from the settings, or move this file elsewhere"),
        )),
        Some(i) => Err(TrainingDataError::data(
            &image.path,
            message!("{what} {} does not exist: there are {extent}", number(i)),
            message!("set {setting} {IN_SETTINGS} to one of {first} to {last}"),
        )),
        None => Err(TrainingDataError::data(
            &image.path,
            format!("it has {extent} {what}s"),
            message!("set {setting} {IN_SETTINGS} to one of {first} to {last}{hint}"),
        )),
    }
}

impl Stack {
    /// Reads the metadata of a stack from its opened file.
    pub fn of(reference: &ImageRef, role: Role, image: &Image) -> Result<Self, TrainingDataError> {
        let meta = image.meta();
        let size = |axis| extent(meta, axis);
        let zyx = [size(Axis::Z), size(Axis::Y), size(Axis::X)];
        let samples = size(Axis::S).max(1);
        let slices = match zyx[0] {
            1 => message!(", or {AXES} to \"ZYX\" if these are slices"),
            _ => Message::default(),
        };
        let time = choose_index(reference, ("time point", TIME), size(Axis::T), reference.time, &slices)?;
        let channels = channel_count(meta);
        if reference.channel.is_none() && channels > 1 {
            return Err(ambiguous_channel(reference, role, meta, &slices));
        }
        // Channels by name and lists of channels are resolved before, so a channel of labels that does not exist is this one.
        let setting = if role == Role::Labels { TARGET_CHANNEL } else { role.channel_setting() };
        let what = ("channel", setting);
        let channel = choose_index(reference, what, channels, reference.channel, &slices)?;
        if element_count(&zyx)? == 0 {
            return Err(TrainingDataError::data(&reference.path, "it has no voxels", "remove it, or export it again"));
        }
        Ok(Self {
            image: reference.clone(),
            role,
            zyx,
            dtype: meta.dtype,
            voxel_um: meta.voxel_size_um,
            packed: meta.is_compressed(),
            time,
            channel,
            samples,
        })
    }

    /// Returns the number of voxels.
    pub fn voxels(&self) -> u64 {
        self.zyx.iter().map(|n| *n as u64).fold(1, u64::saturating_mul)
    }

    /// Returns the size in bytes, in the file's data type.
    pub fn bytes(&self) -> u64 {
        self.voxels().saturating_mul(self.dtype.size_bytes() as u64)
    }

    /// Reads the voxels of a box from the opened file; `start` and `size` are along Z, Y, X.
    pub fn read(&self, image: &Image, start: [usize; 3], size: [usize; 3]) -> Result<Samples, TrainingDataError> {
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

    /// Returns slabs of whole rows of at most [`SLAB_BYTES`] (or one row): first voxel and size of each. They are
    /// contiguous in C order.
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
