//! The streaming writer of stacks: TIFF, OME-TIFF, NPY and outlines of labels, slab by slab.

use super::{
    cellpose,
    ifd::{self, Value},
    imagej, ome,
    output::Output,
    range::Ranges,
    rois,
    spec::{Compression, Container, WriteSpec},
};
use crate::{codec, error::FormatError, meta::ByteOrder, npy, tiff::ifd::tag};
use cytoscope_storage::write::FinishedFile;
use cytoscope_volume::{Array, Axis};
use rayon::prelude::*;
use std::{borrow::Cow, io, path::Path};

/// Approximate size of a compressed strip in bytes of samples.
const STRIP_BYTES: usize = 256 << 10;
/// Number of strips compressed in parallel before they are written: the only large buffer of the writer.
const STRIPS_AT_ONCE: usize = 64;
/// Largest classic TIFF in bytes, including directories; larger files are BigTIFF.
const CLASSIC_BYTES: u64 = (4 << 30) - (1 << 20);

/// Writes a stack plane by plane. Its memory does not grow with the number of planes, apart from 16 bytes per strip, and the
/// compressed outlines of Cellpose's masks or the regions of an ROI set, which are written at the end.
/// The file is renamed to its target by [`StackWriter::finish`]; a writer that is dropped before that leaves no file.
///
/// ```
/// use cytoscope_formats::{Container, StackWriter, WriteSpec};
/// use cytoscope_volume::{Array, DType, Samples};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("labels.tif");
/// let spec = WriteSpec::new(Container::ImageJ, "ZYX".parse()?, vec![3, 4, 5], DType::U16);
/// let mut writer = StackWriter::create(&path, &spec)?;
/// for z in 0..3 {
///     writer.write(&Array::new("YX".parse()?, vec![4, 5], Samples::U16(vec![z; 20]))?)?;
/// }
/// writer.finish()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StackWriter {
    spec: WriteSpec,
    out: Output,
    path: std::path::PathBuf,
    at: u64,
    planes_done: usize,
    ranges: Ranges,
    order: ByteOrder,
    layout: Layout,
}

#[derive(Debug)]
enum Layout {
    Npy,
    ImageJ {
        data_at: u64,
        link_at: u64,
        range_at: u64,
        channel_ranges_at: Option<u64>,
        only_first: bool,
    },
    Ome {
        big: bool,
        rows_per_strip: usize,
        offsets: Vec<u64>,
        counts: Vec<u64>,
    },
    /// The outlines of the planes so far, compressed: they follow the masks of all planes.
    Cellpose {
        outlines: Vec<Vec<u8>>,
    },
    /// The regions of the planes so far.
    Rois {
        entries: Vec<rois::Entry>,
    },
}

impl StackWriter {
    /// Creates a temporary file next to `path`, which is replaced only when writing is finished.
    ///
    /// # Errors
    /// [`FormatError::Misused`] or [`FormatError::Unsupported`] if the format cannot hold the stack, and
    /// [`FormatError::Io`] if the folder is not writable.
    pub fn create(path: &Path, spec: &WriteSpec) -> Result<Self, FormatError> {
        spec.check(path)?;
        let mut out = Output::create(path)?;
        let (order, layout, head) = match spec.container {
            Container::Npy => (ByteOrder::Little, Layout::Npy, npy::header(spec.dtype, &spec.shape)),
            Container::RoiSet => (ByteOrder::Little, Layout::Rois { entries: Vec::new() }, Vec::new()),
            Container::Cellpose => {
                let layout = Layout::Cellpose { outlines: Vec::new() };
                (ByteOrder::Little, layout, cellpose::before_masks(spec, path))
            }
            Container::ImageJ => {
                let (layout, head) = imagej_head(spec);
                (ByteOrder::Big, layout, head)
            }
            Container::OmeTiff => {
                let (layout, head) = ome_head(spec);
                (ByteOrder::Little, layout, head)
            }
        };
        out.append(&head)?;
        Ok(Self {
            ranges: Ranges::new(spec),
            spec: spec.clone(),
            out,
            path: path.to_owned(),
            at: head.len() as u64,
            planes_done: 0,
            order,
            layout,
        })
    }

    /// Appends a slab of any number of whole YX(S) planes, in the order of the spec's axes. Axes of length 1 do not
    /// matter.
    ///
    /// # Errors
    /// [`FormatError::Misused`] for a slab whose type or plane size differs from the stack's, or with more planes than remain;
    /// [`FormatError::Io`] if writing fails.
    pub fn write(&mut self, slab: &Array) -> Result<(), FormatError> {
        let planes = self.check_slab(slab)?;
        if !matches!(self.layout, Layout::Npy | Layout::Cellpose { .. } | Layout::Rois { .. }) {
            self.ranges.add(&self.spec, self.planes_done, slab);
        }
        if let Layout::Rois { entries } = &mut self.layout {
            entries.extend(rois::regions(&self.spec, self.planes_done, slab));
            self.planes_done += planes;
            return Ok(());
        }
        let bytes = slab.samples().as_bytes();
        if matches!(self.layout, Layout::Ome { .. }) {
            for plane in bytes.chunks_exact(self.spec.plane_bytes() as usize) {
                self.write_strips(plane)?;
            }
        } else {
            let bytes = in_file_order(bytes, self.order, self.spec.dtype.size_bytes());
            self.out.append(&bytes)?;
            self.at += bytes.len() as u64;
            if let Layout::Cellpose { outlines } = &mut self.layout {
                for plane in bytes.chunks_exact(self.spec.plane_bytes() as usize) {
                    let packed = codec::zstd_compress(&cellpose::outlines(&self.spec, plane));
                    outlines.push(packed.map_err(|e| FormatError::io(&self.path, "compressing", e))?);
                }
            }
        }
        self.planes_done += planes;
        Ok(())
    }

    fn check_slab(&self, slab: &Array) -> Result<usize, FormatError> {
        let plane = |axes: &cytoscope_volume::Axes, shape: &[usize]| -> Vec<(Axis, usize)> {
            let all = axes.iter().zip(shape.iter().copied());
            all.filter(|(a, n)| *n != 1 && matches!(a, Axis::Y | Axis::X | Axis::S)).collect()
        };
        let wanted = plane(&self.spec.axes, &self.spec.shape);
        let got = plane(slab.axes(), slab.shape());
        let long: Vec<Axis> = slab.axes().iter().zip(slab.shape()).filter(|(_, n)| **n != 1).map(|(a, _)| a).collect();
        let trailing = long.iter().skip(long.len().saturating_sub(got.len())).all(|a| got.iter().any(|g| g.0 == *a));
        // An .npy file may have its axes in any order, so only the number of samples is checked.
        let any_order = self.spec.container == Container::Npy;
        if slab.dtype() != self.spec.dtype || (!any_order && (wanted != got || !trailing)) {
            return Err(FormatError::misused(
                &self.path,
                format!("a slab of {} {} {:?} was given", slab.dtype(), slab.axes(), slab.shape()),
                format!("give planes of {} {wanted:?}", self.spec.dtype),
            ));
        }
        let (samples, plane_len) = (slab.samples().len(), self.spec.plane_len());
        let planes = samples / plane_len;
        if planes * plane_len != samples {
            let problem = format!("{samples} samples were given, but a plane has {plane_len}");
            return Err(FormatError::misused(&self.path, problem, "give whole planes"));
        }
        let left = self.spec.planes() - self.planes_done;
        if planes > left {
            let problem = format!("planes given: {planes}; planes left to write: {left}");
            return Err(FormatError::misused(&self.path, problem, "give each plane once"));
        }
        Ok(planes)
    }

    fn write_strips(&mut self, plane: &[u8]) -> Result<(), FormatError> {
        let Layout::Ome { rows_per_strip, offsets, counts, .. } = &mut self.layout else { return Ok(()) };
        let row_bytes = self.spec.size(Axis::X) * self.spec.size(Axis::S) * self.spec.dtype.size_bytes();
        let strips: Vec<&[u8]> = plane.chunks(row_bytes * *rows_per_strip).collect();
        for group in strips.chunks(STRIPS_AT_ONCE) {
            let (spec, order) = (&self.spec, self.order);
            let encoded: io::Result<Vec<Cow<'_, [u8]>>> = match *group {
                [one] => encode_strip(spec, order, row_bytes, one).map(|e| vec![e]),
                _ => group.par_iter().map(|strip| encode_strip(spec, order, row_bytes, strip)).collect(),
            };
            for strip in encoded.map_err(|e| FormatError::io(&self.path, "compressing", e))? {
                self.out.append(&strip)?;
                offsets.push(self.at);
                counts.push(strip.len() as u64);
                self.at += strip.len() as u64;
                // Directories and their values must begin at even positions; the strips do so too.
                if self.at % 2 == 1 {
                    self.out.append(&[0])?;
                    self.at += 1;
                }
            }
        }
        Ok(())
    }

    /// Completes and syncs the file and renames it to its target.
    ///
    /// # Errors
    /// [`FormatError::Misused`] if planes are missing, [`FormatError::Io`] if writing fails; the file is then removed.
    pub fn finish(self) -> Result<(), FormatError> {
        let path = self.path.clone();
        self.finish_unpublished()?.publish().map_err(|e| FormatError::io(&path, "finishing the file", e))
    }

    /// Completes and syncs the file, without renaming it. The caller publishes it later, so that several files of one
    /// result can appear together.
    ///
    /// # Errors
    /// Same as [`StackWriter::finish`].
    pub fn finish_unpublished(mut self) -> Result<FinishedFile, FormatError> {
        if self.planes_done != self.spec.planes() {
            return Err(FormatError::misused(
                &self.path,
                format!("{} of {} planes were written", self.planes_done, self.spec.planes()),
                "write all planes before finishing",
            ));
        }
        match std::mem::replace(&mut self.layout, Layout::Npy) {
            Layout::Npy => {}
            Layout::Cellpose { outlines } => self.finish_cellpose(&outlines)?,
            Layout::Rois { entries } => {
                self.out.append(&rois::file(&self.path, &entries)?)?;
            }
            Layout::ImageJ { data_at, link_at, range_at, channel_ranges_at, only_first } => {
                if !only_first {
                    self.finish_imagej_pages(data_at, link_at)?;
                }
                self.out.patch(range_at, imagej::range_text(&self.spec, &self.ranges).as_bytes())?;
                if let Some(at) = channel_ranges_at {
                    self.out.patch(at, &imagej::channel_ranges(&self.spec, &self.ranges))?;
                }
            }
            Layout::Ome { big, rows_per_strip, offsets, counts } => {
                self.finish_ome(big, rows_per_strip, &offsets, &counts)?;
            }
        }
        self.out.finish()
    }

    fn finish_cellpose(&mut self, outlines: &[Vec<u8>]) -> Result<(), FormatError> {
        self.out.append(&cellpose::before_outlines(&self.spec))?;
        for packed in outlines {
            let plane = zstd::bulk::decompress(packed, self.spec.plane_bytes() as usize);
            self.out.append(&plane.map_err(|e| FormatError::io(&self.path, "decompressing", e))?)?;
        }
        self.out.append(&cellpose::after_outlines())
    }

    fn finish_imagej_pages(&mut self, data_at: u64, link_at: u64) -> Result<(), FormatError> {
        let plane_bytes = self.spec.plane_bytes();
        let tags = imagej::page_tags(&self.spec);
        let pages = self.spec.planes();
        if pages < 2 {
            return Ok(());
        }
        if self.at % 2 == 1 {
            self.out.append(&[0])?;
            self.at += 1;
        }
        self.out.patch(link_at, &(self.at as u32).to_be_bytes())?;
        for plane in 1..pages as u64 {
            let tags = imagej_tags(&self.spec, &tags, data_at + plane * plane_bytes);
            let length = ifd::encode(&tags, self.at, 0, self.order, false).bytes.len() as u64;
            let next = if plane + 1 == pages as u64 { 0 } else { self.at + length + (self.at + length) % 2 };
            let mut page = ifd::encode(&tags, self.at, next, self.order, false).bytes;
            if page.len() % 2 == 1 {
                page.push(0);
            }
            self.out.append(&page)?;
            self.at += page.len() as u64;
        }
        Ok(())
    }

    fn finish_ome(&mut self, big: bool, rows: usize, offsets: &[u64], counts: &[u64]) -> Result<(), FormatError> {
        let strips = self.spec.size(Axis::Y).div_ceil(rows);
        let compression: u16 = match self.spec.compression {
            Compression::None => 1,
            Compression::Deflate => 8,
            Compression::Zstd => 50000,
        };
        let mut common = ome::plane_tags(&self.spec);
        common.push((tag::COMPRESSION, Value::Short(vec![compression])));
        common.push((tag::ROWS_PER_STRIP, Value::Long(vec![rows as u32])));
        if compression != 1 && ome::uses_predictor(&self.spec) {
            common.push((tag::PREDICTOR, Value::Short(vec![2])));
        }
        let first_ifd = self.at;
        let pages = self.spec.planes();
        for (page, (o, c)) in offsets.chunks(strips).zip(counts.chunks(strips)).enumerate() {
            let mut tags = common.clone();
            if page == 0 {
                tags.extend(ome::first_tags(&self.spec, &self.ranges));
            }
            tags.push((tag::STRIP_OFFSETS, Value::offsets(o.to_vec(), big)));
            tags.push((tag::STRIP_COUNTS, Value::offsets(c.to_vec(), big)));
            let mut encoded = ifd::encode(&tags, self.at, 0, self.order, big);
            if encoded.bytes.len() % 2 == 1 {
                encoded.bytes.push(0);
            }
            let next = if page + 1 == pages { 0 } else { self.at + encoded.bytes.len() as u64 };
            let link = (encoded.link_at - self.at) as usize;
            let next = next.to_le_bytes();
            let next = next.get(..if big { 8 } else { 4 }).unwrap_or_default();
            if let Some(place) = encoded.bytes.get_mut(link..link + next.len()) {
                place.copy_from_slice(next);
            }
            self.out.append(&encoded.bytes)?;
            self.at += encoded.bytes.len() as u64;
        }
        if !big && self.at > u64::from(u32::MAX) {
            return Err(FormatError::misused(&self.path, "the file exceeds 4 GB", "write it uncompressed"));
        }
        if big {
            self.out.patch(8, &first_ifd.to_le_bytes())
        } else {
            self.out.patch(4, &(first_ifd as u32).to_le_bytes())
        }
    }
}

fn encode_strip<'a>(
    spec: &WriteSpec,
    order: ByteOrder,
    row_bytes: usize,
    strip: &'a [u8],
) -> io::Result<Cow<'a, [u8]>> {
    if spec.compression == Compression::None {
        return Ok(in_file_order(strip, order, spec.dtype.size_bytes()));
    }
    let mut samples = strip.to_vec();
    if ome::uses_predictor(spec) {
        codec::horizontal_differences(&mut samples, row_bytes, spec.size(Axis::S), spec.dtype.size_bytes());
    }
    let samples = in_file_order(&samples, order, spec.dtype.size_bytes()).into_owned();
    let encoded = match spec.compression {
        Compression::Zstd => codec::zstd_compress(&samples),
        _ => codec::deflate_compress(&samples),
    };
    encoded.map(Cow::Owned)
}

/// Converts samples in native byte order to bytes in the file's order.
fn in_file_order(bytes: &[u8], order: ByteOrder, size: usize) -> Cow<'_, [u8]> {
    if order == ByteOrder::NATIVE || size == 1 {
        return Cow::Borrowed(bytes);
    }
    let mut swapped = bytes.to_vec();
    codec::to_native(order, size, &mut swapped);
    Cow::Owned(swapped)
}

fn imagej_tags(spec: &WriteSpec, common: &[(u16, Value)], offset: u64) -> Vec<(u16, Value)> {
    let mut tags = common.to_vec();
    tags.push((tag::COMPRESSION, Value::Short(vec![1])));
    tags.push((tag::STRIP_OFFSETS, Value::Long(vec![offset as u32])));
    tags.push((tag::STRIP_COUNTS, Value::Long(vec![spec.plane_bytes() as u32])));
    tags.push((tag::ROWS_PER_STRIP, Value::Long(vec![spec.size(Axis::Y) as u32])));
    tags
}

/// Header and first directory of an ImageJ file; the pixels follow directly.
fn imagej_head(spec: &WriteSpec) -> (Layout, Vec<u8>) {
    let text = imagej::description(spec);
    let mut common = imagej::page_tags(spec);
    let reserved = imagej::range_text(spec, &Ranges::new(spec));
    common.push((tag::DESCRIPTION, Value::Ascii(format!("{text}{reserved}"))));
    let private = imagej::private(spec);
    if let Some(p) = &private {
        common.push((tag::IJ_METADATA_COUNTS, Value::Long(p.counts.clone())));
        common.push((tag::IJ_METADATA, Value::Bytes(p.data.clone())));
    }
    let length = ifd::encode(&imagej_tags(spec, &common, 0), 8, 0, ByteOrder::Big, false).bytes.len();
    let data_at = (8 + length as u64).next_multiple_of(16);
    let encoded = ifd::encode(&imagej_tags(spec, &common, data_at), 8, 0, ByteOrder::Big, false);
    let place = |tag: u16| encoded.values_at.iter().find(|v| v.0 == tag).map(|v| v.1);
    let range_at = place(tag::DESCRIPTION).unwrap_or(8) + text.len() as u64;
    let channel_ranges_at = private.and_then(|p| Some(place(tag::IJ_METADATA)? + p.ranges_at? as u64));
    // Above 4 GB ImageJ writes only the first directory and computes the positions of the planes.
    let pages = spec.planes() as u64;
    let only_first = data_at + pages * (spec.plane_bytes() + 512) > CLASSIC_BYTES;
    let mut head = b"MM\0*\0\0\0\x08".to_vec();
    head.extend(&encoded.bytes);
    head.resize(data_at as usize, 0);
    (Layout::ImageJ { data_at, link_at: encoded.link_at, range_at, channel_ranges_at, only_first }, head)
}

fn ome_head(spec: &WriteSpec) -> (Layout, Vec<u8>) {
    let planes = spec.planes() as u64;
    let height = spec.size(Axis::Y);
    let row_bytes = (spec.plane_bytes() as usize / height).max(1);
    let rows_per_strip = match spec.compression {
        Compression::None => height,
        _ => (STRIP_BYTES / row_bytes).clamp(1, height),
    };
    let strips = height.div_ceil(rows_per_strip) as u64;
    // Incompressible data grow slightly; each strip needs an offset and a byte count, and each page a directory.
    let max_bytes = planes * (spec.plane_bytes() + spec.plane_bytes() / 64 + strips * 64 + 512) + (1 << 20);
    let big = max_bytes > CLASSIC_BYTES;
    let head = if big { b"II+\0\x08\0\0\0\0\0\0\0\0\0\0\0".to_vec() } else { b"II*\0\0\0\0\0".to_vec() };
    (Layout::Ome { big, rows_per_strip, offsets: Vec::new(), counts: Vec::new() }, head)
}

/// Writes a whole array; its axes, shape and sample type replace those of the spec.
///
/// # Errors
/// Same as [`StackWriter::create`] and [`StackWriter::write`].
pub fn write_array(path: &Path, array: &Array, spec: &WriteSpec) -> Result<(), FormatError> {
    let spec =
        WriteSpec { axes: array.axes().clone(), shape: array.shape().to_vec(), dtype: array.dtype(), ..spec.clone() };
    let mut writer = StackWriter::create(path, &spec)?;
    writer.write(array)?;
    writer.finish()
}
