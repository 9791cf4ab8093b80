//! PNG and JPEG images: one slice, or the numbered files of a folder as a stack.

mod decode;

use crate::{
    error::{Fault, FormatError},
    file_format::{FileFormat, StoredCompression},
    limits::Limits,
    meta::{ByteOrder, Channel},
    numbered::{self, Listings},
    opening::OpenOptions,
    reader::{Opened, Pixels},
    source::{Counters, Source},
};
use cytoscope_volume::{DType, Region, Samples};
use decode::{Codec, Header};
use rayon::prelude::*;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Whether the first bytes of a file are those of a PNG or JPEG.
pub(crate) fn looks_like_raster(head: &[u8]) -> bool {
    Codec::of(head).is_some()
}

/// Opens a PNG or JPEG. If it belongs to a numbered series (`name_0001.png`, `name_0002.png` …), the whole series is
/// opened as a stack, unless the options ask for a single file.
pub(crate) fn open(
    path: &Path,
    source: Source,
    options: &OpenOptions,
    counters: &Arc<Counters>,
) -> Result<Opened, FormatError> {
    let header = Header::read(&source).map_err(|f| f.at(path))?;
    let files = if options.opens_alone() || !path.is_file() {
        Vec::new()
    } else {
        series_files(path, &header, options.limits.max_set_files, &Listings::default()).map_err(|f| f.at(path))?
    };
    let members: Vec<Member> = match files.len() {
        0 | 1 => vec![Member::Open(source)],
        _ => files.into_iter().map(Member::File).collect(),
    };
    let shape_full = [1, members.len(), header.samples, header.height, header.width, 1];
    let (is_series, codec, dtype) = (members.len() > 1, header.codec, header.dtype());
    let format = match (codec, is_series) {
        (Codec::Png, false) => FileFormat::Png,
        (Codec::Png, true) => FileFormat::PngSeries,
        (Codec::Jpeg, false) => FileFormat::Jpeg,
        (Codec::Jpeg, true) => FileFormat::JpegSeries,
    };
    let (channels, bits) = (channels(header.samples), header.bits);
    let slices = Slices {
        members,
        header,
        limits: options.limits.clone(),
        counters: Arc::clone(counters),
        last: Mutex::new(None),
    };
    let mut opened = Opened::new(format, shape_full, dtype, Box::new(slices));
    opened.channels = channels;
    opened.bits_per_sample = bits;
    opened.compression = match codec {
        Codec::Png => StoredCompression::Deflate,
        Codec::Jpeg => StoredCompression::Jpeg,
    };
    opened.byte_order = if codec == Codec::Png { ByteOrder::Big } else { ByteOrder::NATIVE };
    opened.with_options(options).map_err(|f| f.at(path))
}

/// The files of the numbered series that a file belongs to: those of the same size and sample type.
fn series_files(path: &Path, header: &Header, max_files: u64, listings: &Listings) -> Result<Vec<PathBuf>, Fault> {
    let fits = |other: &Path| -> Result<bool, Fault> {
        let source = Source::open(other, Arc::default())?;
        Ok(Header::read(&source)? == *header)
    };
    numbered::series_files(path, max_files, listings, fits)
}

/// Returns the files that opening a file opens; empty if its series cannot be read. `None` if the file is not a PNG or JPEG image
/// that can be read.
pub(crate) fn opened_with(path: &Path, source: &Source, listings: &Listings) -> Option<Vec<PathBuf>> {
    let header = Header::read(source).ok()?;
    Some(series_files(path, &header, u64::MAX, listings).unwrap_or_default())
}

/// Names and colors of the samples of a pixel.
fn channels(samples: usize) -> Vec<Channel> {
    let named = |name: &str, color_rgb| Channel { name: name.to_owned(), color_rgb };
    let rgb = [named("red", Some([255, 0, 0])), named("green", Some([0, 255, 0])), named("blue", Some([0, 0, 255]))];
    match samples {
        2 => vec![named("gray", None), named("alpha", None)],
        3 => rgb.to_vec(),
        4 => rgb.into_iter().chain([named("alpha", None)]).collect(),
        _ => vec![Channel::default()],
    }
}

/// One slice: a file that is opened when it is read, or an open one.
#[derive(Debug)]
enum Member {
    File(PathBuf),
    Open(Source),
}

/// Slices of one shape and sample type, one file each.
#[derive(Debug)]
struct Slices {
    members: Vec<Member>,
    header: Header,
    limits: Limits,
    counters: Arc<Counters>,
    /// The slice that was decoded last, axes C, Y, X: a viewer reads the same one in many parts.
    last: Mutex<Option<(usize, Arc<Vec<u8>>)>>,
}

impl Slices {
    /// Decodes a slice to samples in native byte order, axes C, Y, X.
    fn slice(&self, index: usize, path: &Path) -> Result<Arc<Vec<u8>>, FormatError> {
        let kept = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, samples)) = kept().as_ref()
            && *at == index
        {
            return Ok(Arc::clone(samples));
        }
        let decode_checked = |source: &Source| {
            let header = Header::read(source)?;
            if header != self.header {
                return Err(numbered::not_in_series());
            }
            let started = Instant::now();
            let samples = decode::decode(source, &header, &self.limits)?;
            source.count_decoded(started.elapsed(), samples.len());
            Ok(samples)
        };
        let samples = match self.members.get(index) {
            Some(Member::Open(source)) => decode_checked(source).map_err(|f| f.at(path)),
            Some(Member::File(file)) => {
                Source::open(file, Arc::clone(&self.counters)).and_then(|s| decode_checked(&s)).map_err(|f| f.at(file))
            }
            None => Err(Fault::malformed("a slice is not part of the series").at(path)),
        };
        let samples = Arc::new(samples?);
        *kept() = Some((index, Arc::clone(&samples)));
        Ok(samples)
    }

    /// Refuses slices of a size above the limit, or that the file of this one cannot have: its header can state any size.
    fn check_size(&self, index: usize, path: &Path) -> Result<(), FormatError> {
        let (stored, path) = match self.members.get(index) {
            Some(Member::Open(source)) => (source.len(), path),
            Some(Member::File(file)) => match std::fs::metadata(file) {
                Ok(about) => (about.len(), file.as_path()),
                // Reading the slice reports why.
                Err(_) => return Ok(()),
            },
            None => return Ok(()),
        };
        decode::checked_bytes(stored, &self.header, &self.limits).map(|_| ()).map_err(|fault| fault.at(path))
    }

    /// Copies the channels, rows and columns of a region from a decoded slice.
    fn copy(&self, slice: &[u8], region: &Region, out: &mut [u8]) {
        let size = self.header.dtype().size_bytes();
        let (Some([_, _, c0, y0, x0, _]), Some([_, _, _, ny, nx, _])) =
            (region.start.first_chunk::<6>(), region.size.first_chunk::<6>())
        else {
            return;
        };
        for (k, row) in out.chunks_exact_mut((nx * size).max(1)).enumerate() {
            let (c, y) = (c0 + k / ny, y0 + k % ny);
            let at = ((c * self.header.height + y) * self.header.width + x0) * size;
            if let Some(from) = slice.get(at..at + row.len()) {
                row.copy_from_slice(from);
            }
        }
    }
}

impl Pixels for Slices {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        let len = region.len().map_err(|e| FormatError::misused(path, e.to_string(), "read a smaller region"))?;
        let first = region.start.get(1).copied().unwrap_or(0);
        if len > 0 {
            self.check_size(first, path)?;
        }
        let mut samples = crate::huge_pages::zeros(self.header.dtype(), len);
        if len == 0 {
            return Ok(samples);
        }
        let slices = region.size.get(1).copied().unwrap_or(1).max(1);
        let bytes = samples.as_bytes_mut();
        let slice_bytes = bytes.len() / slices;
        bytes.par_chunks_exact_mut(slice_bytes.max(1)).enumerate().try_for_each(|(k, out)| {
            let slice = self.slice(first + k, path)?;
            self.copy(&slice, region, out);
            Ok::<(), FormatError>(())
        })?;
        Ok(samples)
    }

    fn files(&self) -> Option<Vec<PathBuf>> {
        let files: Vec<PathBuf> = self
            .members
            .iter()
            .filter_map(|m| match m {
                Member::File(path) => Some(path.clone()),
                Member::Open(_) => None,
            })
            .collect();
        (!files.is_empty()).then_some(files)
    }
}

impl Header {
    /// Sample type after decoding.
    fn dtype(&self) -> DType {
        if self.bits == 16 { DType::U16 } else { DType::U8 }
    }
}
