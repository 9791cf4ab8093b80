//! Which strips or tiles a region of a plane needs, and whether their declared sizes are possible.

use super::{
    file::TiffFile,
    page::{Layout, Page, Predictor},
};
use crate::{
    codec::Codec,
    error::{Fault, Remedy},
};
use std::{ops::Range, sync::Arc};

/// A box inside a plane: ranges along Y, X, S.
#[derive(Debug, Clone)]
pub(crate) struct PlaneWindow {
    /// Rows.
    pub y: Range<usize>,
    /// Columns.
    pub x: Range<usize>,
    /// Samples of a pixel.
    pub s: Range<usize>,
}

/// Position and size of a strip or tile in the file, in bytes. A count of 0 means that it is not stored and reads as
/// zeros.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk {
    /// Position of the first byte.
    pub offset: u64,
    /// Number of stored bytes.
    pub count: u64,
}

/// A plane of a stack with everything needed to decode a window of it.
#[derive(Debug)]
pub(crate) struct PlaneSource {
    /// The file with the pixels.
    pub file: Arc<TiffFile>,
    /// The page with the plane, and its layout.
    pub page: Page,
    /// The content of the page's tables; empty without JPEG.
    pub jpeg_tables: Vec<u8>,
    /// Chunks of the window, ordered by chunk row, sample plane, column.
    pub chunks: Vec<Chunk>,
}

/// Bytes of all chunks of one read, to check them against limits: chunks that are not stored, and stored ones.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// Bytes, after decoding, of chunks that are not stored.
    pub unstored: u64,
    /// Bytes in the file of chunks that are stored.
    pub referenced: u64,
}

impl PlaneSource {
    /// Chunk rows that the window touches.
    pub fn chunk_rows(layout: &Layout, window: &PlaneWindow) -> Range<usize> {
        window.y.start / layout.chunk_height..window.y.end.div_ceil(layout.chunk_height)
    }

    /// Chunk columns that the window touches.
    pub fn chunk_columns(layout: &Layout, window: &PlaneWindow) -> Range<usize> {
        window.x.start / layout.chunk_width..window.x.end.div_ceil(layout.chunk_width)
    }

    /// Sample planes that the window touches.
    pub fn sample_planes(layout: &Layout, window: &PlaneWindow) -> Range<usize> {
        if layout.planar { window.s.clone() } else { 0..1 }
    }

    /// Number of chunks of the window in one chunk row.
    pub fn band_len(layout: &Layout, window: &PlaneWindow) -> usize {
        Self::chunk_columns(layout, window).len() * Self::sample_planes(layout, window).len()
    }

    /// Finds the chunks of the window and checks them.
    pub fn plan(
        file: Arc<TiffFile>,
        page: Page,
        slice: u32,
        window: &PlaneWindow,
        budget: &mut Budget,
    ) -> Result<PlaneSource, Fault> {
        let layout = Arc::clone(&page.layout);
        let (across, down, planes) = layout.grid();
        let rows = Self::chunk_rows(&layout, window);
        let columns = Self::chunk_columns(&layout, window);
        let wanted_planes = Self::sample_planes(&layout, window);
        let grid = across.checked_mul(down).filter(|n| n.checked_mul(planes).is_some());
        let grid = grid.ok_or_else(|| Fault::malformed("a page has too many strips or tiles"))?;
        let jpeg_tables = match (layout.codec, page.jpeg_tables) {
            (Codec::Jpeg, Some(entry)) => file.container.bytes(&entry)?,
            _ => Vec::new(),
        };
        let row_bytes =
            layout.packed_row_bytes().ok_or_else(|| Fault::malformed("a page has rows of an impossible length"))?;
        let only_one = page.offsets.count == 1;
        let mut by_plane = Vec::with_capacity(wanted_planes.len());
        for plane in wanted_planes {
            let start = (plane * grid + rows.start * across) as u64;
            let count = (rows.len() * across) as u64;
            let offsets = file.container.integers(&page.offsets, start, count)?;
            let counts = match page.stated_counts() {
                Some(entry) => file.container.integers(entry, start, count)?,
                None if layout.codec == Codec::Raw => rows
                    .clone()
                    .flat_map(|r| std::iter::repeat_n(row_bytes.saturating_mul(layout.rows_in(r)) as u64, across))
                    .collect(),
                None if only_one => offsets.iter().map(|o| file.container.source.len().saturating_sub(*o)).collect(),
                None => return Err(Fault::malformed("a page does not state the sizes of its strips or tiles")),
            };
            let counts = file.stored_counts(&offsets, counts);
            by_plane.push((offsets, counts));
        }
        let mut chunks = Vec::with_capacity(rows.len() * columns.len() * by_plane.len());
        for (k, row) in rows.clone().enumerate() {
            let packed = row_bytes.checked_mul(layout.rows_in(row)).map(|n| n as u64);
            let packed = packed.ok_or_else(|| Fault::malformed("a strip or tile has an impossible size"))?;
            for (offsets, counts) in &by_plane {
                for column in columns.clone() {
                    let at = k * across + column;
                    let (Some(offset), Some(count)) = (offsets.get(at), counts.get(at)) else {
                        return Err(Fault::malformed("a page does not state the offsets of its strips or tiles"));
                    };
                    let skip = u64::from(slice).saturating_mul(layout.plane_bytes().unwrap_or(usize::MAX) as u64);
                    let chunk = Chunk { offset: offset.saturating_add(skip), count: *count };
                    chunks.push(check(&file, &layout, chunk, packed, budget)?);
                }
            }
        }
        Ok(PlaneSource { file, page, jpeg_tables, chunks })
    }

    /// Whether rows can be read from the file without decoding.
    pub fn is_plain(layout: &Layout) -> bool {
        layout.codec == Codec::Raw
            && layout.whole_bytes()
            && !layout.bits_reversed
            && layout.predictor == Predictor::None
    }
}

/// Refuses a chunk whose declared size is impossible, before memory is allocated for it.
fn check(file: &TiffFile, layout: &Layout, chunk: Chunk, packed: u64, budget: &mut Budget) -> Result<Chunk, Fault> {
    let limits = &file.container.limits;
    if chunk.count == 0 || chunk.offset == 0 {
        budget.unstored = budget.unstored.saturating_add(packed.max(64));
        if budget.unstored > limits.max_unstored_bytes {
            let limit = limits.max_unstored_bytes;
            return Err(Fault::over(
                "the size of strips or tiles that are not stored",
                budget.unstored,
                "max_unstored_bytes",
                limit,
                Remedy::Crop,
            ));
        }
        return Ok(Chunk { offset: 0, count: 0 });
    }
    let plain = PlaneSource::is_plain(layout);
    let stored = if layout.codec == Codec::Raw { packed } else { chunk.count };
    if !file.container.source.holds(chunk.offset, stored) {
        return Err(Fault::malformed(format!(
            "a strip or tile of {stored} bytes at offset {} is past the end of the file ({} bytes)",
            chunk.offset,
            file.container.source.len()
        )));
    }
    // The last strip may be stored with as many rows as the others, and is then decoded with all of them.
    let full = layout.packed_row_bytes().unwrap_or(usize::MAX).saturating_mul(layout.chunk_height) as u64;
    // Packed samples need more memory than file space: 1-bit samples eight times as much.
    let decoded =
        packed.max(full).saturating_mul((layout.dtype.size_bytes() * 8) as u64) / u64::from(layout.bits.max(1));
    if !plain && decoded > limits.max_chunk_bytes {
        return Err(Fault::over(
            "the size of a strip or tile",
            decoded,
            "max_chunk_bytes",
            limits.max_chunk_bytes,
            Remedy::SmallerChunks,
        ));
    }
    if packed > stored.saturating_mul(layout.codec.max_ratio()).saturating_add(4096) {
        return Err(Fault::malformed(format!(
            "a strip or tile of {stored} bytes cannot decode to {packed} bytes ({})",
            layout.codec.compression()
        )));
    }
    budget.referenced = budget.referenced.saturating_add(stored);
    Ok(Chunk { offset: chunk.offset, count: stored })
}
