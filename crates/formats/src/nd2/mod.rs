//! Nikon ND2 from version 3 on: frames of all channels, uncompressed or compressed with zlib; positions are series.
//!
//! The format is a list of chunks with a map at the end. Old ND2 files are JPEG 2000 and are refused.

mod chunks;
mod metadata;
mod variant;

pub(crate) use chunks::{JPEG_2000, MAGIC};

use crate::{
    codec::{inflate, to_native},
    error::{Fault, FormatError, Remedy, choose_index},
    file_format::{FileFormat, StoredCompression},
    limits::{Limits, SHARED_SLACK_BYTES},
    meta::ByteOrder,
    opening::OpenOptions,
    reader::{Opened, Pixels, check_shape},
    source::Source,
};
use chunks::ChunkMap;
use cytoscope_storage::counted;
use cytoscope_volume::{Region, Samples, VoxelSize};
use metadata::{Frame, Loop, Over, Picture};
use rayon::prelude::*;
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};
use variant::Level;

/// Advice for files that are not supported.
pub(crate) const EXPORT: &str = "export it as OME-TIFF, with NIS-Elements or Fiji";
/// Bytes of the time stamp before the pixels of a frame.
const TIME_STAMP: u64 = 8;
/// Largest number of bytes that one stored byte can decode to.
const MAX_RATIO: u64 = 4096;

/// Opens one position of an ND2 file.
pub(crate) fn open(source: Source, options: &OpenOptions) -> Result<Opened, Fault> {
    let limits = &options.limits;
    chunks::check_version(&source)?;
    let map = ChunkMap::read(&source, limits)?;
    let Some(attributes) = map.metadata(&source, chunks::ATTRIBUTES, limits)? else {
        return Err(Fault::malformed("the ND2 file has no attributes"));
    };
    let frame = Frame::of(&Level::parse(&attributes)?)?;
    let mut loops = match map.metadata(&source, chunks::EXPERIMENT, limits)? {
        Some(bytes) => metadata::loops(&Level::parse(&bytes)?)?,
        None => Vec::new(),
    };
    let picture = match map.metadata(&source, chunks::PICTURE, limits)? {
        Some(bytes) => Picture::of(&Level::parse(&bytes)?, &frame)?,
        None => Picture::of(&Level::default(), &frame)?,
    };
    check_frames(&loops, frame.declared, &map, limits)?;
    let [t, positions, z] = [Over::Time, Over::Position, Over::Slice].map(|over| loop_count(&loops, over));
    if options.series >= positions {
        return Err(Fault::Misused(
            format!("there is no series {}: the file has {}", options.series, counted(positions, "position")).into(),
            choose_index(positions).into(),
        ));
    }
    let shape_full = [t, z, frame.channels, frame.height, frame.width, 1];
    check_shape(&shape_full, frame.dtype, limits)?;
    let step = |over: Over| loops.iter().find(|l| l.over == over).and_then(|l| l.step);
    let (z_um, time_interval_secs) = (step(Over::Slice), step(Over::Time).filter(|_| t > 1));
    let names = loops.iter_mut().find(|l| l.over == Over::Position).map(|l| std::mem::take(&mut l.names));
    let last = Mutex::new(None);
    let nd2 = Nd2 { source, map, loops, position: options.series, frame, limits: limits.clone(), last };
    let stored = (0..t).flat_map(|t| (0..z).map(move |z| (t, z))).filter(|(t, z)| nd2.is_stored(*t, *z)).count();
    if stored == 0 {
        return Err(Fault::malformed("the ND2 file has no frames of this position"));
    }
    let mut opened = Opened::new(FileFormat::Nd2, shape_full, frame.dtype, Box::new(nd2));
    opened.voxel_size_um = VoxelSize { z: z_um, y: picture.pixel_um, x: picture.pixel_um };
    opened.time_interval_secs = time_interval_secs;
    opened.channels = picture.channels;
    opened.compression = if frame.is_compressed { StoredCompression::Zlib } else { StoredCompression::None };
    opened.bits_per_sample = frame.significant_bits;
    opened.series_count = positions;
    opened.series_names = names.unwrap_or_default();
    opened.missing_planes = (t * z - stored) * frame.channels;
    opened.with_options(options)
}

/// Number of iterations of a loop; 1 if there is none.
fn loop_count(loops: &[Loop], over: Over) -> usize {
    loops.iter().find(|l| l.over == over).map_or(1, |l| l.count)
}

/// Checks the number of frames of all loops against the limit and against the number that the file declares, or else stores.
fn check_frames(loops: &[Loop], declared: Option<usize>, map: &ChunkMap, limits: &Limits) -> Result<(), Fault> {
    let count = loops.iter().try_fold(1u64, |n, l| n.checked_mul(l.count as u64)).unwrap_or(u64::MAX);
    if count > limits.max_pages {
        return Err(Fault::over("the number of frames", count, "max_pages", limits.max_pages, Remedy::Split));
    }
    let stored = || map.frames.keys().max().map_or(0, |last| last.saturating_add(1));
    let frames = declared.map_or_else(stored, |declared| declared as u64);
    if frames > count {
        let problem = format!("it has {frames} frames, but its experiment has only {count}");
        return Err(Fault::unsupported(problem, EXPORT));
    }
    Ok(())
}

/// An open position.
#[derive(Debug)]
struct Nd2 {
    source: Source,
    map: ChunkMap,
    /// Loops of the experiment, outermost first.
    loops: Vec<Loop>,
    position: usize,
    frame: Frame,
    limits: Limits,
    /// The compressed frame that was decoded last, by the position of its pixels in the file.
    last: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

/// Position and size of the stored pixels of a frame; `None` if the file has no such frame.
type Piece = Option<(u64, u64)>;

/// A window of channels, rows and columns.
#[derive(Debug, Clone, Copy)]
struct ChannelWindow {
    c: usize,
    y: usize,
    x: usize,
    channels: usize,
    height: usize,
    width: usize,
}

impl Nd2 {
    /// Index of a frame in the file.
    fn frame_index(&self, t: usize, z: usize) -> u64 {
        self.loops.iter().fold(0, |index, l| {
            let turn = match l.over {
                Over::Time => t,
                Over::Position => self.position,
                Over::Slice => z,
            };
            index * l.count as u64 + turn as u64
        })
    }

    fn is_stored(&self, t: usize, z: usize) -> bool {
        self.map.frames.contains_key(&self.frame_index(t, z))
    }

    /// Finds the pixels of a frame and checks that they are complete.
    fn locate(&self, t: usize, z: usize) -> Result<Piece, Fault> {
        let Some((at, count)) = self.map.frame(&self.source, self.frame_index(t, z))? else { return Ok(None) };
        let Some(count) = count.checked_sub(TIME_STAMP) else {
            return Err(Fault::malformed("a frame of the ND2 file is empty"));
        };
        let frame = &self.frame;
        let (needed, ratio) = match frame.is_compressed {
            true => (frame.row_bytes * frame.height, MAX_RATIO),
            // The last row may end with its last pixel.
            false => (frame.row_bytes * (frame.height - 1) + frame.width * frame.pixel_bytes(), 1),
        };
        if needed as u64 > count.saturating_mul(ratio) {
            return Err(Fault::malformed(format!("a frame has {count} bytes, too few for its {needed}")));
        }
        let (largest, limit) = (count.max(needed as u64), self.limits.max_chunk_bytes);
        if frame.is_compressed && largest > limit {
            return Err(Fault::over("the size of a frame", largest, "max_chunk_bytes", limit, Remedy::SmallerChunks));
        }
        Ok(Some((at + TIME_STAMP, count)))
    }

    /// Finds all frames of a region, axes T, Z, and checks their sizes.
    fn plan(&self, region: &Region, plane_bytes: u64) -> Result<Vec<Piece>, Fault> {
        let range = |axis: usize| {
            let start = region.start.get(axis).copied().unwrap_or(0);
            start..start + region.size.get(axis).copied().unwrap_or(0)
        };
        let (mut referenced, mut unstored) = (0u64, 0u64);
        let mut plan = Vec::new();
        for t in range(0) {
            for z in range(1) {
                let piece = self.locate(t, z)?;
                match piece {
                    Some((_, count)) => referenced = referenced.saturating_add(count),
                    None => unstored = unstored.saturating_add(plane_bytes),
                }
                plan.push(piece);
            }
        }
        // In a valid file each byte belongs to one frame.
        if referenced > self.source.len().saturating_mul(2).saturating_add(SHARED_SLACK_BYTES) {
            return Err(Fault::malformed("the frames of the ND2 file overlap"));
        }
        let limit = self.limits.max_unstored_bytes;
        if unstored > limit {
            return Err(Fault::over(
                "the size of the frames that are missing",
                unstored,
                "max_unstored_bytes",
                limit,
                Remedy::Crop,
            ));
        }
        Ok(plan)
    }

    fn read_region(&self, region: &Region) -> Result<Samples, Fault> {
        let (Some([_, _, c, y, x, _]), Some([_, _, channels, height, width, _])) =
            (region.start.first_chunk::<6>().copied(), region.size.first_chunk::<6>().copied())
        else {
            return Err(Fault::Misused("the region does not have six axes".into(), "give T, Z, C, Y, X, S".into()));
        };
        let size = self.frame.dtype.size_bytes();
        let count = region.len().map_err(|e| Fault::Misused(e.to_string().into(), "read less at once".into()))?;
        let window = ChannelWindow { c, y, x, channels, height, width };
        let frame_bytes = channels * height * width * size;
        let plan = self.plan(region, frame_bytes as u64)?;
        let mut samples = crate::huge_pages::zeros(self.frame.dtype, count);
        samples
            .as_bytes_mut()
            .par_chunks_exact_mut(frame_bytes.max(1))
            .zip(plan)
            .try_for_each(|(out, piece)| self.draw(piece, &window, out))?;
        to_native(ByteOrder::Little, size, samples.as_bytes_mut());
        Ok(samples)
    }

    /// Copies the window of a frame to `out`, axes C, Y, X.
    fn draw(&self, piece: Piece, window: &ChannelWindow, out: &mut [u8]) -> Result<(), Fault> {
        let Some((at, count)) = piece else { return Ok(()) };
        let decoded = if self.frame.is_compressed { Some(self.decoded(at, count)?) } else { None };
        let (size, pixel) = (self.frame.dtype.size_bytes(), self.frame.pixel_bytes());
        let mut row = vec![0u8; window.width * pixel];
        for y in 0..window.height {
            let from = (window.y + y) * self.frame.row_bytes + window.x * pixel;
            match &decoded {
                Some(all) => {
                    let stored = all.get(from..from + row.len());
                    row.copy_from_slice(
                        stored.ok_or_else(|| Fault::malformed("a frame of the ND2 file is too short"))?,
                    );
                }
                None => self.source.read_at(at + from as u64, &mut row)?,
            }
            for c in 0..window.channels {
                let start = (c * window.height + y) * window.width * size;
                let Some(line) = out.get_mut(start..start + window.width * size) else { continue };
                if pixel == size {
                    line.copy_from_slice(&row);
                    continue;
                }
                let channel_start = (window.c + c) * size;
                for (sample, stored) in line.chunks_exact_mut(size).zip(row.chunks_exact(pixel)) {
                    if let Some(stored) = stored.get(channel_start..channel_start + size) {
                        sample.copy_from_slice(stored);
                    }
                }
            }
        }
        Ok(())
    }

    /// The pixels of a compressed frame, whose size [`Self::locate`] has checked.
    fn decoded(&self, at: u64, count: u64) -> Result<Arc<Vec<u8>>, Fault> {
        let kept = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, pixels)) = kept().as_ref()
            && *of == at
        {
            return Ok(Arc::clone(pixels));
        }
        let expected = self.frame.row_bytes * self.frame.height;
        let stored = self.source.read_vec(at, count as usize)?;
        let started = Instant::now();
        let mut pixels = vec![0u8; expected];
        inflate(&stored, &mut pixels, expected)
            .map_err(|_| Fault::malformed(format!("a frame is not zlib data of {expected} bytes")))?;
        self.source.count_decoded(started.elapsed(), expected);
        let pixels = Arc::new(pixels);
        *kept() = Some((at, Arc::clone(&pixels)));
        Ok(pixels)
    }
}

impl Pixels for Nd2 {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.read_region(region).map_err(|f| f.at(path))
    }
}
