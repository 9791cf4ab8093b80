//! Zeiss CZI: planes and tiles, uncompressed or compressed with Zstandard, JPEG XR, JPEG or LZW, and their lower resolutions;
//! scenes are series.
//!
//! The format is described in Zeiss' "ZISRAW (CZI) file format" and implemented in libCZI.

mod directory;
mod levels;
mod metadata;

pub(crate) use directory::MAGIC;

use crate::{
    codec::{Codec, decode_blue_first, decode_jpeg_blue_first, lzw_decode, to_native},
    error::{Fault, FormatError, Remedy, choose_index},
    file_format::{FileFormat, StoredCompression},
    limits::{Limits, SHARED_SLACK_BYTES},
    meta::ByteOrder,
    opening::OpenOptions,
    reader::{Opened, Pixels, no_level},
    source::Source,
};
use cytoscope_storage::counted;
use cytoscope_volume::{DType, Region, Samples};
use directory::{FileHeader, Subblock};
use rayon::prelude::*;
use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Compression of a subblock.
const UNCOMPRESSED: i32 = 0;
const JPEG: i32 = 1;
const LZW: i32 = 2;
const JPEG_XR: i32 = 4;
const ZSTD_0: i32 = 5;
const ZSTD_1: i32 = 6;
/// Largest area of the subblocks of a plane, as a multiple of the plane's. Tiles of a mosaic overlap at their edges.
const MAX_COVERAGE: f64 = 64.0;

/// Opens one scene of a CZI file.
pub(crate) fn open(source: Source, options: &OpenOptions) -> Result<Opened, Fault> {
    let limits = &options.limits;
    let header = FileHeader::read(&source)?;
    let all = directory::read(&source, header.directory_at, limits)?;
    let (mut pyramid, mut subblocks): (Vec<Subblock>, Vec<Subblock>) = all.into_iter().partition(|s| s.is_pyramid);
    let scenes: BTreeSet<i32> = subblocks.iter().map(|s| s.scene).collect();
    let Some(scene) = scenes.iter().nth(options.series).copied() else {
        return Err(if scenes.is_empty() {
            Fault::malformed("the CZI has no planes")
        } else {
            Fault::Misused(
                format!("there is no series {}: the file has {}", options.series, counted(scenes.len(), "scene"))
                    .into(),
                choose_index(scenes.len()).into(),
            )
        });
    };
    subblocks.retain(|s| s.scene == scene);
    let (dtype, samples) = sample_type(&subblocks)?;
    check_compression(&subblocks)?;
    let grid = Grid::of(&subblocks)?;
    let [t, z, c] = grid.extents;
    let shape_full = [t, z, c, grid.height, grid.width, samples];
    crate::reader::check_shape(&shape_full, dtype, limits)?;
    let compression = first_compression(&subblocks);
    // Lower resolutions of several scenes at once state no scene.
    let (kind, has_scene) = subblocks.first().map_or((-1, false), |s| (s.pixel_type, s.has_scene));
    pyramid.retain(|s| s.scene == scene && s.has_scene == has_scene);
    let is_readable = pyramid.iter().all(|s| s.pixel_type == kind) && check_compression(&pyramid).is_ok();
    let full = Layer::new(subblocks, grid);
    if full.overlaps_too_often() {
        return Err(Fault::malformed("the subblocks of the CZI overlap in the image"));
    }
    let lower = if is_readable { levels::lower_levels(pyramid, &full) } else { Vec::new() };
    let missing = (t * z * c).saturating_sub(full.by_plane.len());
    let lower_levels = lower.iter().map(|level| [t, z, c, level.grid.height, level.grid.width, samples]).collect();
    let layers: Vec<Layer> = std::iter::once(full).chain(lower).collect();
    let xml = directory::xml(&source, header.metadata_at, limits)?;
    let metadata = metadata::parse(&xml);
    let czi = Czi { source, layers, dtype, samples, limits: limits.clone(), last: Mutex::new(None) };
    let mut opened = Opened::new(FileFormat::Czi, shape_full, dtype, Box::new(czi));
    opened.series_names = scenes.iter().map(|s| metadata.scene_name(*s)).collect();
    opened.voxel_size_um = metadata.voxel_size_um;
    opened.time_interval_secs = metadata.time_interval_secs.filter(|_| t > 1);
    opened.channels = metadata.channels;
    opened.compression = compression;
    opened.series_count = scenes.len();
    opened.missing_planes = missing;
    opened.lower_levels = lower_levels;
    opened.with_options(options)
}

/// Sample type and samples per pixel, which all subblocks must have in common.
fn sample_type(subblocks: &[Subblock]) -> Result<(DType, usize), Fault> {
    let kind = subblocks.first().map_or(-1, |s| s.pixel_type);
    if let Some(other) = subblocks.iter().find(|s| s.pixel_type != kind) {
        return Err(Fault::unsupported(
            format!("its channels have different pixel types ({kind} and {})", other.pixel_type),
            "export each channel as OME-TIFF, for example with Fiji",
        ));
    }
    Ok(match kind {
        0 => (DType::U8, 1),
        1 => (DType::U16, 1),
        2 => (DType::F32, 1),
        3 => (DType::U8, 3),
        4 => (DType::U16, 3),
        9 => (DType::U8, 4),
        12 => (DType::U32, 1),
        other => {
            return Err(Fault::unsupported(
                format!("its pixel type {other} is not supported"),
                "export it as OME-TIFF, for example with Fiji",
            ));
        }
    })
}

/// Returns the first compression of the subblocks.
fn first_compression(subblocks: &[Subblock]) -> StoredCompression {
    match subblocks.iter().map(|s| s.compression).find(|c| *c != UNCOMPRESSED) {
        None => StoredCompression::None,
        Some(JPEG) => StoredCompression::Jpeg,
        Some(LZW) => StoredCompression::Lzw,
        Some(JPEG_XR) => StoredCompression::JpegXr,
        Some(_) => StoredCompression::Zstd,
    }
}

/// The codec of a compression that [`check_compression`] accepts, which limits the bytes that one stored byte decodes to.
fn codec_for(compression: i32) -> Codec {
    match compression {
        UNCOMPRESSED => Codec::Raw,
        JPEG => Codec::Jpeg,
        LZW => Codec::Lzw,
        JPEG_XR => Codec::JpegXr,
        _ => Codec::Zstd,
    }
}

fn check_compression(subblocks: &[Subblock]) -> Result<(), Fault> {
    let unknown = |s: &&Subblock| match s.compression {
        UNCOMPRESSED | LZW | JPEG_XR | ZSTD_0 | ZSTD_1 => false,
        // 8-bit gray and color.
        JPEG => !matches!(s.pixel_type, 0 | 3),
        _ => true,
    };
    let Some(subblock) = subblocks.iter().find(unknown) else { return Ok(()) };
    let name = match subblock.compression {
        JPEG => "JPEG compression of pixels that are neither 8-bit gray nor 8-bit color",
        100.. => "camera-specific encoding",
        _ => "compression",
    };
    Err(Fault::unsupported(
        format!("its {name} ({}) is not supported", subblock.compression),
        "save it uncompressed or with Zstandard in ZEN, or export it as OME-TIFF with Fiji",
    ))
}

/// The subblocks of a resolution level of a scene.
#[derive(Debug)]
struct Layer {
    subblocks: Vec<Subblock>,
    /// Subblocks of each plane T, Z, C. Where tiles of a mosaic overlap, the last one is seen.
    by_plane: HashMap<[usize; 3], Vec<usize>>,
    grid: Grid,
}

impl Layer {
    fn new(subblocks: Vec<Subblock>, grid: Grid) -> Self {
        let mut by_plane: HashMap<[usize; 3], Vec<usize>> = HashMap::new();
        for (i, subblock) in subblocks.iter().enumerate() {
            by_plane.entry(grid.plane_index(subblock)).or_default().push(i);
        }
        Self { subblocks, by_plane, grid }
    }

    /// Whether the subblocks of a plane cover its area too often. All of them are decoded to read the plane.
    fn overlaps_too_often(&self) -> bool {
        let most = MAX_COVERAGE * self.grid.width as f64 * self.grid.height as f64;
        let area = |index: &usize| self.subblocks.get(*index).map_or(0.0, |s| s.width as f64 * s.height as f64);
        self.by_plane.values().any(|subblocks| subblocks.iter().map(area).sum::<f64>() > most)
    }
}

/// First indices and extents of a scene.
#[derive(Debug)]
struct Grid {
    /// First index along T, Z, C.
    first: [i32; 3],
    /// Number of planes along T, Z, C.
    extents: [usize; 3],
    left: i64,
    top: i64,
    width: usize,
    height: usize,
}

impl Grid {
    fn of(subblocks: &[Subblock]) -> Result<Self, Fault> {
        let too_large = || Fault::malformed("the planes of the CZI are too far apart");
        let index = |of: fn(&Subblock) -> i32| {
            let first = subblocks.iter().map(of).min().unwrap_or(0);
            let last = subblocks.iter().map(of).max().unwrap_or(0);
            (first, last.abs_diff(first) as usize + 1)
        };
        let range = |of: fn(&Subblock) -> (i64, usize)| {
            let first = subblocks.iter().map(|s| of(s).0).min().unwrap_or(0);
            let end = subblocks.iter().map(|s| of(s).0.saturating_add_unsigned(of(s).1 as u64)).max().unwrap_or(0);
            usize::try_from(end.saturating_sub(first)).map(|extent| (first, extent)).map_err(|_| too_large())
        };
        let [t, z, c] = [index(|s| s.t), index(|s| s.z), index(|s| s.c)];
        let ((left, width), (top, height)) = (range(|s| (s.x, s.width))?, range(|s| (s.y, s.height))?);
        Ok(Self { first: [t.0, z.0, c.0], extents: [t.1, z.1, c.1], left, top, width, height })
    }

    /// Index of a subblock's plane along T, Z, C.
    fn plane_index(&self, subblock: &Subblock) -> [usize; 3] {
        let [t, z, c] = self.first;
        [subblock.t.abs_diff(t), subblock.z.abs_diff(z), subblock.c.abs_diff(c)].map(|i| i as usize)
    }

    /// Left and top edge of a subblock in the image.
    fn subblock_corner(&self, subblock: &Subblock) -> (usize, usize) {
        ((subblock.x - self.left) as usize, (subblock.y - self.top) as usize)
    }
}

/// An open scene.
#[derive(Debug)]
struct Czi {
    source: Source,
    /// Full resolution first.
    layers: Vec<Layer>,
    dtype: DType,
    samples: usize,
    limits: Limits,
    /// The compressed subblock that was decoded last.
    last: Mutex<Option<(PixelsKey, Arc<Vec<u8>>)>>,
}

/// What the pixels of a compressed subblock depend on: their position in the file, width, height and compression.
type PixelsKey = (u64, usize, usize, i32);

/// A subblock that a region needs: its index, and position and size of its stored pixels.
type Piece = (usize, u64, u64);

impl Czi {
    fn pixel_bytes(&self) -> usize {
        self.samples * self.dtype.size_bytes()
    }

    /// The subblocks of a plane that touch a window of rows and columns.
    fn plan(
        &self,
        layer: &Layer,
        plane: [usize; 3],
        window: &PixelWindow,
        budget: &mut Budget,
    ) -> Result<Vec<Piece>, Fault> {
        let mut pieces = Vec::new();
        for index in layer.by_plane.get(&plane).into_iter().flatten() {
            let Some(subblock) = layer.subblocks.get(*index) else { continue };
            let (left, top) = layer.grid.subblock_corner(subblock);
            let apart = left >= window.x + window.width
                || top >= window.y + window.height
                || left + subblock.width <= window.x
                || top + subblock.height <= window.y;
            if apart {
                continue;
            }
            let (at, count) = subblock.data(&self.source)?;
            let ratio = codec_for(subblock.compression).max_ratio();
            let area = (subblock.width as u64).saturating_mul(subblock.height as u64);
            let expected = area.saturating_mul(self.pixel_bytes() as u64);
            if expected > count.saturating_mul(ratio) {
                return Err(Fault::malformed(format!("a subblock has {count} bytes, too few for its {expected}")));
            }
            let (largest, limit) = (count.max(expected), self.limits.max_chunk_bytes);
            if subblock.compression != UNCOMPRESSED && largest > limit {
                return Err(Fault::over(
                    "the size of a subblock",
                    largest,
                    "max_chunk_bytes",
                    limit,
                    Remedy::SmallerChunks,
                ));
            }
            budget.covered = budget.covered.saturating_add(expected);
            budget.referenced = budget.referenced.saturating_add(count);
            // In a valid file each byte belongs to one subblock.
            if budget.referenced > self.source.len().saturating_mul(2).saturating_add(SHARED_SLACK_BYTES) {
                return Err(Fault::malformed("the subblocks of the CZI overlap in the file"));
            }
            pieces.push((*index, at, count));
        }
        Ok(pieces)
    }

    /// Copies the part of a subblock that is in the window to its place.
    fn draw(&self, layer: &Layer, piece: Piece, window: &PixelWindow, out: &mut [u8]) -> Result<(), Fault> {
        let (index, at, _) = piece;
        let Some(subblock) = layer.subblocks.get(index) else { return Ok(()) };
        let pixel = self.pixel_bytes();
        let row_bytes = subblock.width.checked_mul(pixel);
        let expected = row_bytes.and_then(|n| n.checked_mul(subblock.height));
        let (Some(row_bytes), Some(expected)) = (row_bytes, expected) else {
            return Err(Fault::malformed("a subblock of the CZI has an impossible size"));
        };
        let decoded = match subblock.compression {
            UNCOMPRESSED => None,
            _ => Some(self.decoded(piece, subblock, expected)?),
        };
        let (left, top) = layer.grid.subblock_corner(subblock);
        let (x0, x1) = (left.max(window.x), (left + subblock.width).min(window.x + window.width));
        let (y0, y1) = (top.max(window.y), (top + subblock.height).min(window.y + window.height));
        for y in y0..y1 {
            let from = (y - top) * row_bytes + (x0 - left) * pixel;
            let to = ((y - window.y) * window.width + (x0 - window.x)) * pixel;
            let Some(row) = out.get_mut(to..to + (x1 - x0) * pixel) else { continue };
            match &decoded {
                Some(all) => {
                    if let Some(stored) = all.get(from..from + row.len()) {
                        row.copy_from_slice(stored);
                    }
                }
                None => self.source.read_at(at + from as u64, row)?,
            }
        }
        Ok(())
    }

    /// The pixels of a compressed subblock, whose size [`Self::plan`] has checked.
    fn decoded(&self, piece: Piece, subblock: &Subblock, expected: usize) -> Result<Arc<Vec<u8>>, Fault> {
        let (_, at, count) = piece;
        let key = (at, subblock.width, subblock.height, subblock.compression);
        let kept = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, pixels)) = kept().as_ref()
            && *of == key
        {
            return Ok(Arc::clone(pixels));
        }
        let stored = self.source.read_vec(at, count as usize)?;
        let started = Instant::now();
        let pixels = Arc::new(match subblock.compression {
            JPEG => decode_jpeg_blue_first(&stored, [subblock.width, subblock.height, self.samples])?,
            JPEG_XR => decode_blue_first(&stored, [subblock.width, subblock.height, self.samples], self.dtype)?,
            LZW => {
                let mut pixels = vec![0; expected];
                lzw_decode(&stored, &mut pixels)?;
                pixels
            }
            zstd_variant => self.unzstd(&stored, zstd_variant, expected)?,
        });
        self.source.count_decoded(started.elapsed(), expected);
        *kept() = Some((key, Arc::clone(&pixels)));
        Ok(pixels)
    }

    /// The pixels of a subblock in Zstandard.
    fn unzstd(&self, stored: &[u8], compression: i32, expected: usize) -> Result<Vec<u8>, Fault> {
        let (frame, split) = if compression == ZSTD_1 { zstd_1(stored)? } else { (stored, false) };
        let pixels = zstd::bulk::decompress(frame, expected)
            .map_err(|e| Fault::malformed(format!("a subblock is not valid Zstd data ({e})")))?;
        if pixels.len() != expected {
            let got = pixels.len();
            return Err(Fault::malformed(format!("a subblock decodes to {got} bytes; {expected} were expected")));
        }
        if split && self.dtype.size_bytes() != 2 {
            return Err(Fault::malformed(
                "a subblock stores low and high bytes apart, but its samples do not have 16 bits",
            ));
        }
        Ok(if split { joined(&pixels) } else { pixels })
    }
}

/// The frame after the header of a Zstd-1 subblock, and whether low and high bytes are stored apart.
fn zstd_1(stored: &[u8]) -> Result<(&[u8], bool), Fault> {
    let split = match stored {
        [1, ..] => false,
        [3, 1, flags, ..] => flags & 1 == 1,
        _ => return Err(Fault::malformed("the header of a Zstd subblock is not valid")),
    };
    let header = stored.first().map_or(0, |n| usize::from(*n));
    Ok((stored.get(header..).unwrap_or_default(), split))
}

/// Joins the low bytes of all samples, which come first, with their high bytes.
fn joined(apart: &[u8]) -> Vec<u8> {
    let (low, high) = apart.split_at(apart.len() / 2);
    low.iter().zip(high).flat_map(|(l, h)| [*l, *h]).collect()
}

/// Bytes of the subblocks of one read, as stored and as decoded.
#[derive(Debug, Default)]
struct Budget {
    referenced: u64,
    covered: u64,
}

/// A window of rows and columns in the image.
#[derive(Debug, Clone, Copy)]
struct PixelWindow {
    y: usize,
    x: usize,
    height: usize,
    width: usize,
}

impl Pixels for Czi {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.read_level(path, 0, region)
    }

    fn read_level(&self, path: &Path, level: usize, region: &Region) -> Result<Samples, FormatError> {
        let Some(layer) = self.layers.get(level) else { return Err(no_level(path, level)) };
        let (Some([t0, z0, c0, y, x, s0]), Some([nt, nz, nc, height, width, ns])) =
            (region.start.first_chunk::<6>().copied(), region.size.first_chunk::<6>().copied())
        else {
            return Err(FormatError::misused(path, "the region does not have six axes", "give T, Z, C, Y, X, S"));
        };
        // All samples of a pixel are read, and those of the region picked afterwards.
        let whole = region.clone().with_range(5, 0, self.samples);
        let too_large =
            |e: cytoscope_volume::VolumeError| FormatError::misused(path, e.to_string(), "read less at once");
        let size = self.dtype.size_bytes();
        let count = whole.len().map_err(too_large)?;
        let window = PixelWindow { y, x, height, width };
        let mut budget = Budget::default();
        let mut plans = Vec::with_capacity(nt * nz * nc);
        for t in t0..t0 + nt {
            for z in z0..z0 + nz {
                for c in c0..c0 + nc {
                    plans.push(self.plan(layer, [t, z, c], &window, &mut budget).map_err(|f| f.at(path))?);
                }
            }
        }
        let unstored = (count as u64).saturating_mul(size as u64).saturating_sub(budget.covered);
        let limit = self.limits.max_unstored_bytes;
        if unstored > limit {
            let what = "the size of the region that no subblock covers";
            return Err(Fault::over(what, unstored, "max_unstored_bytes", limit, Remedy::Crop).at(path));
        }
        let mut samples = crate::huge_pages::zeros(self.dtype, count);
        let plane_bytes = (height * width * self.pixel_bytes()).max(1);
        samples
            .as_bytes_mut()
            .par_chunks_exact_mut(plane_bytes)
            .zip(plans)
            .try_for_each(|(out, pieces)| {
                pieces.into_iter().try_for_each(|piece| self.draw(layer, piece, &window, out))
            })
            .map_err(|f| f.at(path))?;
        let bytes = samples.as_bytes_mut();
        to_native(ByteOrder::Little, size, bytes);
        if self.samples == 1 {
            return Ok(samples);
        }
        // Colors are stored as blue, green, red.
        for pixel in bytes.chunks_exact_mut(self.samples * size) {
            for i in 0..size {
                pixel.swap(i, 2 * size + i);
            }
        }
        let array = cytoscope_volume::Array::new(cytoscope_volume::Axes::canonical(), whole.size, samples);
        let picked = Region::whole(&[nt, nz, nc, height, width, ns]).with_range(5, s0, ns);
        Ok(array.and_then(|a| a.crop(&picked)).map_err(too_large)?.into_samples())
    }
}
