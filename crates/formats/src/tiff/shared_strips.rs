//! Checks when a file is opened that its pages do not share strips or tiles.
//!
//! In a valid file each stored byte belongs to one page. A file whose pages share the same strips could declare an
//! image of any size, which no read of a single plane would detect.

use super::{ifd::Container, page::Page};
use crate::{
    codec::Codec,
    error::{DAMAGED, Fault},
    limits::SHARED_SLACK_BYTES,
};

/// Images up to this size in bytes are not checked.
const UNCHECKED_BYTES: u64 = 64 << 20;
/// Uncompressed images up to this multiple of the file's length are not checked.
const UNCHECKED_RAW: u64 = 2;
/// Compressed images up to this multiple of the file's length are not checked: few images compress better.
const UNCHECKED_COMPRESSED: u64 = 64;
/// Largest total size of the strips and tiles of all pages, as a multiple of the file's length; at most 1 in a valid
/// file.
const MAX_SHARED: u64 = 2;

/// Refuses a file whose pages share strips or tiles.
pub(crate) fn check<'a>(file: &Container, pages: impl Iterator<Item = &'a Page> + Clone) -> Result<(), Fault> {
    let length = file.source.len();
    let ratio = |page: &Page| if page.layout.codec == Codec::Raw { UNCHECKED_RAW } else { UNCHECKED_COMPRESSED };
    let max_ratio = pages.clone().map(ratio).max().unwrap_or(UNCHECKED_RAW);
    let declared =
        pages.clone().fold(0u64, |sum, p| sum.saturating_add(p.layout.plane_bytes().unwrap_or(usize::MAX) as u64));
    if declared <= length.saturating_mul(max_ratio).saturating_add(UNCHECKED_BYTES) {
        return Ok(());
    }
    let allowed = length.saturating_mul(MAX_SHARED).saturating_add(SHARED_SLACK_BYTES);
    let mut examined = 0u64;
    let mut stored = 0u64;
    for page in pages {
        examined = examined.saturating_add(page.offsets.count.saturating_mul(2));
        stored = stored.saturating_add(stored_bytes(file, page)?);
        if stored > allowed || examined > allowed {
            return Err(Fault::OverLimit(
                format!(
                    "its pages, which declare {declared} bytes of pixels, share strips or tiles: without that, these would \
                    take at least {stored} bytes, but the file has {length}"
                )
                .into(),
                DAMAGED.into(),
            ));
        }
    }
    Ok(())
}

/// Bytes of a page's strips and tiles in the file; those not stored count as 0.
fn stored_bytes(file: &Container, page: &Page) -> Result<u64, Fault> {
    let layout = &page.layout;
    let (across, down, planes) = layout.grid();
    let grid = across.checked_mul(down).and_then(|n| n.checked_mul(planes)).unwrap_or(usize::MAX) as u64;
    let count = page.offsets.count.min(grid);
    let offsets = file.integers(&page.offsets, 0, count)?;
    let counts = match page.stated_counts() {
        Some(entry) => file.integers(entry, 0, entry.count.min(count))?,
        None => Vec::new(),
    };
    let row_bytes = layout.packed_row_bytes().unwrap_or(usize::MAX);
    let stored = offsets.iter().enumerate().filter(|(_, offset)| **offset != 0).map(|(i, offset)| {
        let left = file.source.len().saturating_sub(*offset);
        match counts.get(i) {
            Some(0) => 0,
            // For uncompressed strips the reader uses the size from the layout, not the byte count.
            Some(count) if layout.codec != Codec::Raw => (*count).min(left),
            _ if layout.codec == Codec::Raw => {
                (row_bytes.saturating_mul(layout.rows_in(i / across.max(1) % down.max(1))) as u64).min(left)
            }
            _ => left,
        }
    });
    Ok(stored.fold(0, u64::saturating_add))
}
