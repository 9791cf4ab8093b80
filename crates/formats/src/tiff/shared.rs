//! Whether the pages of a file can all have the pixels they claim, looked at when the file is opened.
//!
//! Every stored byte is one page's alone. A file whose pages use the same strips over and over claims an image of any
//! size; read plane by plane, no single read shows it.

use super::{ifd::Container, page::Page};
use crate::{
    codec::Codec,
    error::{DAMAGED, Fault},
};

/// Bytes of image a file may claim before its strips are looked at one by one: small files do no harm.
const UNCHECKED_BYTES: u64 = 64 << 20;
/// Times its own length an uncompressed file may claim before its strips are looked at.
const UNCHECKED_RAW: u64 = 2;
/// Times its own length a compressed file may claim before its strips are looked at: images rarely shrink so far.
const UNCHECKED_COMPRESSED: u64 = 64;
/// Times its own length the strips and tiles of all pages may take. Sound files take their length at most.
const MAX_SHARED: u64 = 2;
/// Bytes that small files may use twice besides.
const SHARED_SLACK_BYTES: u64 = 1 << 16;

/// Refuses a file whose pages share their strips or tiles.
pub(crate) fn check<'a>(file: &Container, pages: impl Iterator<Item = &'a Page> + Clone) -> Result<(), Fault> {
    let length = file.source.len();
    let ratio = |page: &Page| if page.layout.codec == Codec::Raw { UNCHECKED_RAW } else { UNCHECKED_COMPRESSED };
    let most = pages.clone().map(ratio).max().unwrap_or(UNCHECKED_RAW);
    let claimed =
        pages.clone().fold(0u64, |sum, p| sum.saturating_add(p.layout.plane_bytes().unwrap_or(usize::MAX) as u64));
    if claimed <= length.saturating_mul(most).saturating_add(UNCHECKED_BYTES) {
        return Ok(());
    }
    let allowed = length.saturating_mul(MAX_SHARED).saturating_add(SHARED_SLACK_BYTES);
    let mut looked_at = 0u64;
    let mut stored = 0u64;
    for page in pages {
        looked_at = looked_at.saturating_add(page.offsets.count.saturating_mul(2));
        stored = stored.saturating_add(stored_bytes(file, page)?);
        if stored > allowed || looked_at > allowed {
            return Err(Fault::OverLimit(
                format!(
                    "its pages claim {claimed} bytes of image from strips or tiles that they share: \
                     {stored} bytes of them or more, where the file has {length}"
                )
                .into(),
                DAMAGED.into(),
            ));
        }
    }
    Ok(())
}

/// Bytes of a page's strips and tiles in the file; those not stored count nothing.
fn stored_bytes(file: &Container, page: &Page) -> Result<u64, Fault> {
    let layout = &page.layout;
    let (across, down, planes) = layout.grid();
    let grid = across.checked_mul(down).and_then(|n| n.checked_mul(planes)).unwrap_or(usize::MAX) as u64;
    let count = page.offsets.count.min(grid);
    let offsets = file.integers(&page.offsets, 0, count)?;
    let counts = match &page.counts {
        Some(entry) => file.integers(entry, 0, entry.count.min(count))?,
        None => Vec::new(),
    };
    let row_bytes = layout.packed_row_bytes().unwrap_or(usize::MAX);
    let stored = offsets.iter().enumerate().filter(|(_, offset)| **offset != 0).map(|(i, offset)| {
        let left = file.source.len().saturating_sub(*offset);
        match counts.get(i) {
            Some(0) => 0,
            // As the reader does: of raw strips it takes what the layout says.
            Some(count) if layout.codec != Codec::Raw => (*count).min(left),
            _ if layout.codec == Codec::Raw => {
                (row_bytes.saturating_mul(layout.rows_in(i / across.max(1) % down.max(1))) as u64).min(left)
            }
            _ => left,
        }
    });
    Ok(stored.fold(0, u64::saturating_add))
}
