//! Reading a region: only its strips or tiles are read, and they are decoded in parallel directly into the array.

use super::{
    file::{FileSet, TiffFile},
    page::{Layout, Page},
    plan::{Budget, Chunk, PlaneSource, PlaneWindow},
    series::PlaneRef,
};
use crate::{
    codec,
    error::{Fault, FormatError},
    huge_pages,
};
use cytoscope_storage::counted;
use cytoscope_volume::{Region, Samples};
use rayon::prelude::*;
use std::{cell::RefCell, collections::HashSet, ops::Range, path::Path, sync::Arc, time::Instant};

/// The planes of an image, and where their pixels are.
#[derive(Debug)]
pub(crate) struct Stack {
    /// The files that `planes` refer to.
    pub files: FileSet,
    /// Planes in the order T, Z, C.
    pub planes: Vec<Option<PlaneRef>>,
    /// Layout of the planes, one for each level.
    pub levels: Vec<Arc<Layout>>,
    /// Pages of the lower levels of the only plane; empty if levels are SubIFDs.
    pub level_pages: Vec<u32>,
    /// Number of planes along T, Z, C.
    pub tzc: [usize; 3],
}

/// Uncompressed rows are split into tasks of about this many bytes.
const PLAIN_TASK_BYTES: usize = 4 << 20;
/// Decoded tiles of one row that are held at once, in bytes, or else one tile: tiles may be far higher than a window.
const MAX_DECODED_BYTES: usize = 256 << 20;

/// Reading of some rows of one plane, whose output is contiguous.
struct Task<'a> {
    plane: &'a PlaneSource,
    rows: Range<usize>,
    work: Work,
}

enum Work {
    /// Contiguous rows in the file, from an offset on.
    Plain { offset: u64 },
    /// The strips or tiles of one chunk row: its index, and the indices of its chunks.
    Chunks { row: usize, chunks: Range<usize> },
}

impl Stack {
    fn layout(&self, level: usize) -> Option<&Arc<Layout>> {
        self.levels.get(level)
    }

    /// Reads a region, axes T, Z, C, Y, X, S, which has been checked against the shape of the level.
    pub fn read(&self, path: &Path, level: usize, region: &Region) -> Result<Samples, FormatError> {
        let Some(layout) = self.layout(level) else {
            let count = counted(self.levels.len(), "level");
            return Err(FormatError::misused(path, format!("level {level} of {count} is read"), "choose one of them"));
        };
        let (&[t0, z0, c0, y0, x0, s0], &[nt, nz, nc, ny, nx, ns]) = (region.start.as_slice(), region.size.as_slice())
        else {
            let problem = format!("the region has the lengths {:?}", region.size);
            return Err(FormatError::misused(path, problem, "give the six axes T, Z, C, Y, X, S"));
        };
        let window = PlaneWindow { y: y0..y0 + ny, x: x0..x0 + nx, s: s0..s0 + ns };
        let mut budget = Budget::default();
        let mut lengths = 0u64;
        let mut seen = HashSet::new();
        let mut planes: Vec<Option<PlaneSource>> = Vec::new();
        for t in t0..t0 + nt {
            for z in z0..z0 + nz {
                for c in c0..c0 + nc {
                    let at = (t * self.tzc[1] + z) * self.tzc[2] + c;
                    let Some(plane) = self.planes.get(at).copied().flatten() else {
                        planes.push(None);
                        continue;
                    };
                    let file = self.files.get(plane.file)?;
                    if seen.insert(plane.file) {
                        lengths = lengths.saturating_add(file.container.source.len());
                    }
                    let source =
                        self.plane(&file, level, layout, plane, &window, &mut budget).map_err(|f| f.at(&file.path))?;
                    planes.push(Some(source));
                    // In a valid file each byte belongs to one plane. A file that reuses bytes could declare an image
                    // of any size.
                    if budget.referenced > lengths.saturating_mul(2).saturating_add(1 << 16) {
                        return Err(Fault::malformed("its strips or tiles overlap").at(&file.path));
                    }
                }
            }
        }
        let row_bytes = nx * ns * layout.dtype.size_bytes();
        let len = region.len().map_err(|e| FormatError::misused(path, e.to_string(), "read a smaller region"))?;
        let mut samples = huge_pages::zeros(layout.dtype, len);
        if len == 0 {
            return Ok(samples);
        }
        let mut tasks = Vec::new();
        for (plane, out) in planes.iter().zip(samples.as_bytes_mut().chunks_exact_mut(ny * row_bytes)) {
            if let Some(plane) = plane {
                split(plane, &window, row_bytes, out, &mut tasks);
            }
        }
        let run = |(task, out): (Task<'_>, &mut [u8])| {
            task.run(&window, row_bytes, out).map_err(|f| f.at(&task.plane.file.path))
        };
        if tasks.len() < 2 || rayon::current_num_threads() == 1 {
            tasks.into_iter().try_for_each(run)?;
        } else {
            tasks.into_par_iter().try_for_each(run)?;
        }
        Ok(samples)
    }

    fn plane(
        &self,
        file: &Arc<TiffFile>,
        level: usize,
        layout: &Arc<Layout>,
        plane: PlaneRef,
        window: &PlaneWindow,
        budget: &mut Budget,
    ) -> Result<PlaneSource, Fault> {
        let page = match file.pages.get(plane.page as usize) {
            Some(Some(page)) => page,
            Some(None) => {
                return Err(Fault::unsupported("a plane has a format that is not supported", crate::error::RESAVE));
            }
            None => {
                return Err(Fault::malformed(format!(
                    "its metadata refer to page {}, but the file has {}",
                    plane.page,
                    counted(file.pages.len(), "page")
                )));
            }
        };
        let page: Page = match level.checked_sub(1) {
            None => page.clone(),
            Some(below) if !self.level_pages.is_empty() => {
                let index = self.level_pages.get(below).map_or(usize::MAX, |index| *index as usize);
                let found = file.pages.get(index).and_then(Option::as_ref);
                found.cloned().ok_or_else(|| Fault::malformed(format!("the page of level {level} cannot be read")))?
            }
            Some(below) => match file.sub_levels(page)?.into_iter().nth(below) {
                Some(sub) => sub,
                None => {
                    return Err(Fault::malformed(format!(
                        "a plane does not have level {level}, but the first plane has"
                    )));
                }
            },
        };
        if !Arc::ptr_eq(&page.layout, layout) && !page.layout.stacks_with(layout) {
            return Err(Fault::malformed("a plane differs from the first one in size or sample type"));
        }
        PlaneSource::plan(Arc::clone(file), page, plane.slice, window, budget)
    }
}

/// Splits a plane's output into tasks, each with its own part of the output.
fn split<'a, 'b>(
    plane: &'a PlaneSource,
    window: &PlaneWindow,
    row_bytes: usize,
    mut out: &'b mut [u8],
    tasks: &mut Vec<(Task<'a>, &'b mut [u8])>,
) {
    let layout = &plane.page.layout;
    let band_len = PlaneSource::band_len(layout, window);
    let stored_row = layout.packed_row_bytes().unwrap_or(usize::MAX);
    let plain = PlaneSource::is_plain(layout) && !layout.tiled && !layout.planar;
    let max_rows = (PLAIN_TASK_BYTES / stored_row.max(1)).max(1);
    for (k, row) in PlaneSource::chunk_rows(layout, window).enumerate() {
        let first = row * layout.chunk_height;
        let rows = first.max(window.y.start)..(first + layout.chunk_height).min(window.y.end).min(layout.height);
        let chunks = k * band_len..(k + 1) * band_len;
        let stored = plane.chunks.get(chunks.start).filter(|c| plain && c.count > 0).map(|c| c.offset);
        let Some(base) = stored else {
            let (now, rest) = std::mem::take(&mut out).split_at_mut(rows.len() * row_bytes);
            out = rest;
            tasks.push((Task { plane, rows, work: Work::Chunks { row, chunks } }, now));
            continue;
        };
        let mut at = rows.start;
        while at < rows.end {
            let count = max_rows.min(rows.end - at);
            let offset = base + ((at - first) * stored_row) as u64;
            let (now, rest) = std::mem::take(&mut out).split_at_mut(count * row_bytes);
            out = rest;
            tasks.push((Task { plane, rows: at..at + count, work: Work::Plain { offset } }, now));
            at += count;
        }
    }
}

thread_local! {
    static ENCODED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Buffers up to this size are reused for the next strip or tile.
const MAX_REUSED_BYTES: usize = 8 << 20;

/// Calls `work` with a buffer of `len` bytes of arbitrary content.
fn with_encoded<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut buffer = ENCODED.take();
    if buffer.len() < len {
        buffer = vec![0; len];
    }
    let result = work(buffer.get_mut(..len).unwrap_or_default());
    if buffer.len() <= MAX_REUSED_BYTES {
        ENCODED.set(buffer);
    }
    result
}

impl Task<'_> {
    fn run(&self, window: &PlaneWindow, row_bytes: usize, out: &mut [u8]) -> Result<(), Fault> {
        match &self.work {
            Work::Plain { offset } => self.run_plain(*offset, window, row_bytes, out),
            Work::Chunks { row, chunks } => self.run_chunks(*row, chunks.clone(), window, out),
        }
    }

    fn run_plain(&self, offset: u64, window: &PlaneWindow, row_bytes: usize, out: &mut [u8]) -> Result<(), Fault> {
        let layout = &self.plane.page.layout;
        let source = &self.plane.file.container.source;
        let size = layout.dtype.size_bytes();
        let stored_row = layout.width * layout.samples * size;
        let skip = window.x.start * layout.samples * size;
        let wanted = window.x.len() * layout.samples * size;
        if row_bytes == stored_row {
            source.read_at(offset, out)?;
        } else if window.s.len() == layout.samples && wanted >= 16 << 10 {
            for (k, row) in out.chunks_exact_mut(row_bytes).enumerate() {
                source.read_at(offset + (k * stored_row + skip) as u64, row)?;
            }
        } else {
            let mut stored = vec![0u8; stored_row];
            for (k, row) in out.chunks_exact_mut(row_bytes).enumerate() {
                let part = stored.get_mut(..wanted).unwrap_or_default();
                source.read_at(offset + (k * stored_row + skip) as u64, part)?;
                copy_samples(part, row, layout.samples * size, &(window.s.start * size..window.s.end * size));
            }
        }
        codec::to_native(self.plane.file.container.order, size, out);
        Ok(())
    }

    fn run_chunks(&self, row: usize, chunks: Range<usize>, window: &PlaneWindow, out: &mut [u8]) -> Result<(), Fault> {
        let layout = &self.plane.page.layout;
        let file = &self.plane.file;
        let columns = PlaneSource::chunk_columns(layout, window);
        let chunks: Vec<(usize, Chunk)> =
            chunks.filter_map(|i| Some(*self.plane.chunks.get(i)?)).enumerate().filter(|(_, c)| c.count > 0).collect();
        let rows_stored = layout.rows_in(row);
        let len = layout.chunk_width * layout.chunk_samples() * rows_stored * layout.dtype.size_bytes();
        let decode = |chunk: &Chunk, into: &mut [u8]| -> Result<(), Fault> {
            with_encoded(chunk.count as usize, |encoded| {
                file.container.source.read_at(chunk.offset, encoded)?;
                let start = Instant::now();
                let tables = &self.plane.jpeg_tables;
                codec::decode_chunk(layout, file.container.order, encoded, tables, rows_stored, into)?;
                file.container.source.count_decoded(start.elapsed(), into.len());
                Ok(())
            })
        };
        let whole = window.x.len() == layout.chunk_width
            && columns.len() == 1
            && window.s.len() == layout.chunk_samples()
            && self.rows.len() == rows_stored;
        match chunks.as_slice() {
            [] => Ok(()),
            [(_, only)] if whole => decode(only, out),
            [(k, only)] => {
                let mut decoded = vec![0u8; len];
                decode(only, &mut decoded)?;
                self.copy_chunk(row, *k, &columns, window, &decoded, out);
                Ok(())
            }
            many => {
                let decode_new = |(_, chunk): &(usize, Chunk)| {
                    let mut decoded = vec![0u8; len];
                    decode(chunk, &mut decoded).map(|()| decoded)
                };
                for group in many.chunks((MAX_DECODED_BYTES / len.max(1)).max(1)) {
                    let decoded: Vec<Vec<u8>> = group.par_iter().map(decode_new).collect::<Result<_, Fault>>()?;
                    for ((k, _), decoded) in group.iter().zip(&decoded) {
                        self.copy_chunk(row, *k, &columns, window, decoded, out);
                    }
                }
                Ok(())
            }
        }
    }

    /// Copies the part of the `k`-th chunk of a chunk row that lies in the window.
    fn copy_chunk(
        &self,
        row: usize,
        k: usize,
        columns: &Range<usize>,
        window: &PlaneWindow,
        decoded: &[u8],
        out: &mut [u8],
    ) {
        let layout = &self.plane.page.layout;
        let size = layout.dtype.size_bytes();
        let (plane, column) = (k / columns.len(), columns.start + k % columns.len());
        let left = column * layout.chunk_width;
        let x = left.max(window.x.start)..(left + layout.chunk_width).min(window.x.end).min(layout.width);
        let stored_pixel = layout.chunk_samples() * size;
        let out_pixel = window.s.len() * size;
        let out_row = window.x.len() * out_pixel;
        for y in self.rows.clone() {
            let from = ((y - row * layout.chunk_height) * layout.chunk_width + (x.start - left)) * stored_pixel;
            let to = (y - self.rows.start) * out_row + (x.start - window.x.start) * out_pixel;
            let (Some(from), Some(to)) =
                (decoded.get(from..from + x.len() * stored_pixel), out.get_mut(to..to + x.len() * out_pixel))
            else {
                continue;
            };
            if layout.planar {
                for (s, d) in from.chunks_exact(size).zip(to.chunks_exact_mut(out_pixel)) {
                    if let Some(d) = d.get_mut(plane * size..(plane + 1) * size) {
                        d.copy_from_slice(s);
                    }
                }
            } else {
                copy_samples(from, to, stored_pixel, &(window.s.start * size..window.s.end * size));
            }
        }
    }
}

/// Copies some samples of each pixel: the bytes `range` of the `pixel` bytes of a pixel.
fn copy_samples(from: &[u8], to: &mut [u8], pixel: usize, range: &Range<usize>) {
    if range.len() == pixel {
        to.copy_from_slice(from);
        return;
    }
    for (s, d) in from.chunks_exact(pixel).zip(to.chunks_exact_mut(range.len())) {
        if let Some(s) = s.get(range.clone()) {
            d.copy_from_slice(s);
        }
    }
}
