//! LZW as TIFF uses it, and the older bit order of its first writers.
//!
//! Every string of the code table occurs in the output already, and the string of entry `k` begins where the `k`-th code
//! since the last clearing was written and ends with the first byte of the next one. So the table only keeps where each
//! code was written, and decoding a code is a copy inside the output.

use super::{Codec, short};
use crate::error::Fault;
use std::{cell::RefCell, hint::select_unpredictable};

const CLEAR: usize = 256;
const END: usize = 257;
const CODES: usize = 4096;
/// Bytes copied at once; the work buffer is this much longer than the output.
const STEP: usize = 16;

thread_local! {
    static WORK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Work buffers up to this size are kept for the next strip.
const KEPT_BYTES: usize = 8 << 20;

/// Decodes until `out` is full or the data end.
pub(super) fn decode(mut encoded: Vec<u8>, out: &mut [u8]) -> Result<(), Fault> {
    // The work buffer begins with the 256 one-byte strings, so that those are copied like any other.
    let total = 256 + out.len();
    if u32::try_from(total + 2 * STEP).is_err() {
        return Err(Fault::over("the size of an LZW strip", out.len() as u64, "4 GiB", u64::from(u32::MAX)));
    }
    let old_style = matches!(encoded.as_slice(), [0, second, ..] if second & 1 == 1);
    let bits = encoded.len() * 8;
    encoded.extend([0; 8]);
    let mut work = WORK.take();
    if work.len() < total + 2 * STEP {
        work = vec![0; total + 2 * STEP];
    }
    for (b, i) in work.iter_mut().zip(0..=255u8) {
        *b = i;
    }
    let end = if old_style {
        run::<true>(&encoded, bits, &mut work, total)?
    } else {
        run::<false>(&encoded, bits, &mut work, total)?
    };
    if end < total {
        return Err(short(Codec::Lzw, end - 256, out.len()));
    }
    out.copy_from_slice(work.get(256..total).unwrap_or_default());
    if work.len() <= KEPT_BYTES {
        WORK.set(work);
    }
    Ok(())
}

#[cold]
fn broken() -> Fault {
    Fault::malformed("a strip or tile is not valid LZW data")
}

/// The code of `width` bits at bit `at`; the data are padded so that eight bytes can be read at every bit of theirs.
#[inline(always)]
fn code_at<const OLD: bool>(encoded: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes: [u8; 8] = *encoded.get(at / 8..)?.first_chunk::<8>()?;
    let mask = (1u64 << width) - 1;
    let code =
        if OLD { u64::from_le_bytes(bytes) >> (at % 8) } else { u64::from_be_bytes(bytes) >> (64 - width - at % 8) };
    Some((code & mask) as usize)
}

/// Decodes into `work[256..total]`, and returns the end reached.
fn run<const OLD: bool>(encoded: &[u8], bits: usize, work: &mut [u8], total: usize) -> Result<usize, Fault> {
    // starts[k] is where the string of entry k begins; it ends one byte after starts[k + 1].
    let mut starts = [0u32; CODES * 2];
    let mut width = 9;
    let mut next = END;
    let mut bit = 0;
    let mut at = 256usize;
    // Old-style writers widen their codes one code later.
    let early = usize::from(!OLD);
    'codes: while at < total {
        // Up to the next change of width all codes are alike.
        let widen_at = if width < 12 { (1 << width) - early } else { usize::MAX };
        while at < total {
            if bit + width > bits {
                break 'codes;
            }
            let Some(code) = code_at::<OLD>(encoded, bit, width) else { break 'codes };
            bit += width;
            if code & !1 == CLEAR {
                if code == END {
                    break 'codes;
                }
                width = 9;
                next = END;
                continue 'codes;
            }
            if next < CODES {
                next += 1;
                starts[next & (CODES * 2 - 1)] = at as u32;
            }
            if code >= next {
                return Err(broken());
            }
            // Which codes are single bytes cannot be foreseen, so both answers are worked out.
            let from = starts[code & (CODES - 1)];
            let len = starts[(code & (CODES - 1)) + 1].wrapping_add(1).wrapping_sub(from) as usize;
            let byte = code < CLEAR;
            let (from, len) = (select_unpredictable(byte, code, from as usize), select_unpredictable(byte, 1, len));
            copy_step(work, from, at).ok_or_else(broken)?;
            if len > STEP {
                copy_long(work, from, at, len, total).ok_or_else(broken)?;
            }
            if code + 1 == next && code > END {
                // The newest string ends with its own first byte, which was only just written.
                let first = work.get(at).copied().ok_or_else(broken)?;
                if let Some(last) = work.get_mut(at + len - 1) {
                    *last = first;
                }
            }
            at += len;
            if next >= widen_at {
                width += 1;
                continue 'codes;
            }
        }
    }
    Ok(at.min(total))
}

#[inline(always)]
fn copy_step(work: &mut [u8], from: usize, to: usize) -> Option<()> {
    let step: [u8; STEP] = *work.get(from..)?.first_chunk::<STEP>()?;
    *work.get_mut(to..)?.first_chunk_mut::<STEP>()? = step;
    Some(())
}

/// The rest of a string longer than one step, as far as there is room.
#[cold]
fn copy_long(work: &mut [u8], from: usize, to: usize, len: usize, total: usize) -> Option<()> {
    let mut copied = STEP;
    while copied < len && to + copied < total {
        copy_step(work, from + copied, to + copied)?;
        copied += STEP;
    }
    Some(())
}
