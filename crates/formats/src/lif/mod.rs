//! Leica LIF: the images of a project, and the tiles of mosaics, are series. Pixels are not compressed.
//!
//! The file is a header with XML, followed by blocks, each with the samples of one image at regular steps.

mod blocks;
mod header;

pub(crate) use blocks::looks_like_lif;

use crate::{
    dense::Dense,
    error::{Fault, FormatError, Remedy, choose_index},
    file_format::FileFormat,
    limits::Limits,
    meta::{ByteOrder, micrometers_per, positive, seconds_per},
    opening::OpenOptions,
    reader::{Opened, Pixels, check_shape},
    source::Source,
};
use blocks::Block;
use cytoscope_storage::counted;
use cytoscope_volume::{DType, Region, Samples, VoxelSize};
use header::{LifChannel, LifImage, Project};
use std::path::Path;

/// Advice for files that are not supported.
const EXPORT: &str = "export it as OME-TIFF, with LAS X or Fiji";

/// Numbers of the axes.
const X: u32 = 1;
const Y: u32 = 2;
const Z: u32 = 3;
const TIME: u32 = 4;
const TILE: u32 = 10;

/// Largest number of bytes that the number of a tile adds to the name of its image, with a slash.
const MAX_NUMBER_BYTES: usize = 8;

/// Opens one image of a LIF file.
pub(crate) fn open(source: Source, options: &OpenOptions) -> Result<Opened, Fault> {
    let limits = &options.limits;
    let (xml, first_block) = blocks::xml(&source, limits)?;
    let project = header::parse(&xml, limits)?;
    let names = series_names(&project, limits)?;
    let Some((image, tile)) = pick(&project.images, options.series) else {
        let problem = format!("there is no series {}: the file has {}", options.series, counted(names.len(), "image"));
        return Err(Fault::Misused(problem.into(), choose_index(names.len()).into()));
    };
    let Some(block) = &image.block else {
        return Err(Fault::unsupported("the LIF file does not contain the pixels of this image", EXPORT));
    };
    let block = blocks::find(&source, first_block, project.version, block, limits)?;
    let layout = layout(image, tile, block, limits)?;
    let (shape_full, dtype) = (layout.shape_full, layout.dtype);
    let distance = |number: u32, per_unit: fn(&str) -> Option<f64>| {
        let dimension = image.dimensions.iter().find(|dimension| dimension.number == number)?;
        let between = dimension.count.checked_sub(1).filter(|between| *between > 0)?;
        positive(dimension.length.abs() / between as f64 * per_unit(&dimension.unit)?)
    };
    let um = |number: u32| distance(number, micrometers_per);
    let mut opened = Opened::new(FileFormat::Lif, shape_full, dtype, Box::new(Lif { source, layout }));
    opened.voxel_size_um = VoxelSize { z: um(Z), y: um(Y), x: um(X) };
    opened.time_interval_secs = distance(TIME, seconds_per);
    opened.bits_per_sample = image.channels.iter().map(|channel| channel.bits).max().unwrap_or_default();
    opened.channels = by_position(image).into_iter().map(|channel| channel.channel.clone()).collect();
    opened.series_count = names.len();
    opened.series_names = names;
    opened.with_options(options)
}

/// Number of tiles of an image; 1 if it is no mosaic.
fn tiles(image: &LifImage) -> usize {
    image.dimensions.iter().find(|dimension| dimension.number == TILE).map_or(1, |dimension| dimension.count)
}

/// Returns the names of all series: of the images, and of the tiles of mosaics, which are numbered from 1.
fn series_names(project: &Project, limits: &Limits) -> Result<Vec<String>, Fault> {
    let count = project.images.iter().fold(0usize, |count, image| count.saturating_add(tiles(image))) as u64;
    if count > limits.max_pages {
        return Err(Fault::over("the number of images", count, "max_pages", limits.max_pages, Remedy::Split));
    }
    // Each tile has a name that contains the one of its image.
    let bytes_of =
        |image: &LifImage| (tiles(image) as u64).saturating_mul((image.name.len() + MAX_NUMBER_BYTES) as u64);
    let bytes = project.images.iter().fold(0u64, |bytes, image| bytes.saturating_add(bytes_of(image)));
    if bytes > limits.max_metadata_bytes {
        let (what, limit) = ("the size of the names of its images", limits.max_metadata_bytes);
        return Err(Fault::over(what, bytes, "max_metadata_bytes", limit, Remedy::Split));
    }
    let of_image = |image: &LifImage| -> Vec<String> {
        match tiles(image) {
            1 => vec![image.name.clone()],
            count => (1..=count).map(|tile| format!("{}/{tile}", image.name)).collect(),
        }
    };
    Ok(project.images.iter().flat_map(of_image).collect())
}

/// Returns the image of a series and the number of its tile, from 0.
fn pick(images: &[LifImage], series: usize) -> Option<(&LifImage, usize)> {
    let mut rest = series;
    for image in images {
        match rest.checked_sub(tiles(image)) {
            Some(later) => rest = later,
            None => return Some((image, rest)),
        }
    }
    None
}

/// The channels in the order of their samples in the file.
fn by_position(image: &LifImage) -> Vec<&LifChannel> {
    let mut channels: Vec<&LifChannel> = image.channels.iter().collect();
    channels.sort_by_key(|channel| channel.start);
    channels
}

/// The type of the samples of a channel; `None` if it is not supported.
fn type_of(channel: &LifChannel) -> Option<DType> {
    match (channel.is_float, channel.bits) {
        (false, 1..=8) => Some(DType::U8),
        (false, 9..=16) => Some(DType::U16),
        (false, 17..=32) => Some(DType::U32),
        (true, 32) => Some(DType::F32),
        (true, 64) => Some(DType::F64),
        _ => None,
    }
}

/// Returns the type of the samples, which all channels must share.
fn sample_type(channels: &[&LifChannel]) -> Result<DType, Fault> {
    let Some(first) = channels.first() else { return Err(Fault::malformed("the image has no channels")) };
    let Some(dtype) = type_of(first) else {
        let kind = if first.is_float { "floats" } else { "integers" };
        return Err(Fault::unsupported(format!("its samples are {kind} of {} bits", first.bits), EXPORT));
    };
    if channels.iter().any(|channel| type_of(channel) != Some(dtype)) {
        return Err(Fault::unsupported("its channels have different sample types", EXPORT));
    }
    Ok(dtype)
}

/// Returns the positions of the samples of an image, or of one tile of a mosaic.
fn layout(image: &LifImage, tile: usize, block: Block, limits: &Limits) -> Result<Dense, Fault> {
    let irregular = || Fault::unsupported("its samples are not at regular steps", EXPORT);
    let too_large = || Fault::malformed("the image is larger than its block in the LIF file");
    let channels = by_position(image);
    let dtype = sample_type(&channels)?;
    let size = dtype.size_bytes();
    // Extents along T, Z, C, Y, X, S; 0 along axes that are not stated. Steps are in bytes.
    let (mut extents, mut steps) = ([0usize, 0, channels.len(), 0, 0, 1], [0usize; 6]);
    let starts: Vec<usize> = channels.iter().map(|channel| channel.start).collect();
    let mut first = starts.first().copied().unwrap_or(0);
    if let [a, b, ..] = starts.as_slice() {
        steps[2] = b - a;
        if starts.windows(2).any(|pair| matches!(pair, [a, b] if b - a != steps[2])) {
            return Err(irregular());
        }
    }
    for dimension in &image.dimensions {
        let axis = match dimension.number {
            X => 4,
            Y => 3,
            Z => 1,
            TIME => 0,
            TILE => {
                first = tile.checked_mul(dimension.step).and_then(|at| at.checked_add(first)).ok_or_else(too_large)?;
                continue;
            }
            _ if dimension.count == 1 => continue,
            other => {
                let problem = format!("it has an axis of an unknown kind ({other}), such as a wavelength or rotation");
                return Err(Fault::unsupported(problem, EXPORT));
            }
        };
        if extents[axis] > 0 {
            return Err(Fault::malformed("an axis of the image is stated twice"));
        }
        (extents[axis], steps[axis]) = (dimension.count, dimension.step);
    }
    if extents[3] == 0 || extents[4] == 0 {
        return Err(Fault::unsupported("it has no axes X and Y, as line scans and X-Z scans", EXPORT));
    }
    let shape_full = extents.map(|extent| extent.max(1));
    check_shape(&shape_full, dtype, limits)?;
    // The last sample must be in the block, and so must as many samples as the image has: steps may not be too short.
    let mut end = first.checked_add(size);
    for (extent, step) in shape_full.iter().zip(&steps).filter(|(extent, _)| **extent > 1) {
        if *step == 0 || step % size != 0 {
            return Err(irregular());
        }
        end = (extent - 1).checked_mul(*step).and_then(|last| last.checked_add(end?));
    }
    let samples = shape_full.iter().try_fold(size, |bytes, extent| bytes.checked_mul(*extent));
    let is_in_block = |bytes: Option<usize>| bytes.is_some_and(|bytes| bytes as u64 <= block.length);
    if !is_in_block(end) || !is_in_block(samples) {
        return Err(too_large());
    }
    let strides = steps.map(|step| step / size);
    Ok(Dense { order: ByteOrder::Little, dtype, data_at: block.at + first as u64, shape_full, strides })
}

/// An open image.
#[derive(Debug)]
struct Lif {
    source: Source,
    layout: Dense,
}

impl Pixels for Lif {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.layout.read(&self.source, region).map_err(|fault| fault.at(path))
    }
}
