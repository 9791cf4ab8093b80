//! LZW as TIFF uses it, and the older bit order of its first writers.
//!
//! Every string of the code table occurs in the output already, so the table keeps only where and how long; decoding
//! a code is a copy inside the output.

use super::{Codec, short};
use crate::error::Fault;

const CLEAR: usize = 256;
const END: usize = 257;
const CODES: usize = 4096;
/// Bytes copied at once; the work buffer is this much longer than the output.
const STEP: usize = 16;

/// Where a code's string begins in the work buffer, and its length.
#[derive(Clone, Copy, Default)]
struct Span {
    at: u32,
    len: u32,
}

/// Decodes until `out` is full or the data end.
pub(super) fn decode(encoded: &[u8], out: &mut [u8]) -> Result<(), Fault> {
    // The work buffer begins with the 256 one-byte strings, so that those are copied like any other.
    let total = 256 + out.len();
    if u32::try_from(total + 2 * STEP).is_err() {
        return Err(Fault::over("an LZW strip", out.len() as u64, "4 GiB", u64::from(u32::MAX)));
    }
    let mut work = vec![0u8; total + 2 * STEP + CODES];
    for (i, b) in work.iter_mut().take(256).enumerate() {
        *b = i as u8;
    }
    let old_style = matches!(encoded, [0, second, ..] if second & 1 == 1);
    let end =
        if old_style { run::<true>(encoded, &mut work, total)? } else { run::<false>(encoded, &mut work, total)? };
    if end < total {
        return Err(short(Codec::Lzw, end - 256, out.len()));
    }
    out.copy_from_slice(work.get(256..total).unwrap_or_default());
    Ok(())
}

fn broken() -> Fault {
    Fault::malformed("a strip or tile is not valid LZW data")
}

/// Decodes into `work[256..total]`, and returns the end reached.
fn run<const OLD: bool>(encoded: &[u8], work: &mut [u8], total: usize) -> Result<usize, Fault> {
    let mut table = [Span::default(); CODES];
    for (i, s) in table.iter_mut().take(256).enumerate() {
        *s = Span { at: i as u32, len: 1 };
    }
    let mut bits = Bits::<OLD> { bytes: encoded, at: 0, held: 0, have: 0 };
    let mut width = 9;
    let mut next = 258usize;
    let mut before = Span::default();
    let mut at = 256usize;
    // Old-style writers widen their codes one code later.
    let early = usize::from(!OLD);
    while at < total {
        let Some(code) = bits.take(width) else { break };
        if code == CLEAR {
            width = 9;
            next = 258;
            before = Span::default();
            continue;
        }
        if code == END {
            break;
        }
        if before.len != 0 && next < CODES {
            // The new string: the one before and the first byte of this one, which is written next to it.
            table[next & (CODES - 1)] = Span { at: before.at, len: before.len + 1 };
            next += 1;
            if next + early >= (1 << width) && width < 12 {
                width += 1;
            }
        }
        if code >= next {
            return Err(broken());
        }
        let span = table[code & (CODES - 1)];
        let (from, len) = (span.at as usize, (span.len as usize).min(total - at));
        let mut copied = 0;
        loop {
            let step: [u8; STEP] = match work.get(from + copied..from + copied + STEP) {
                Some(s) => s.try_into().map_err(|_| broken())?,
                None => return Err(broken()),
            };
            match work.get_mut(at + copied..at + copied + STEP) {
                Some(to) => to.copy_from_slice(&step),
                None => return Err(broken()),
            }
            copied += STEP;
            if copied >= len {
                break;
            }
        }
        if from + len > at && from >= 256 && len > 0 {
            // The string ends with its own first byte, just written.
            let first = work.get(at).copied().unwrap_or(0);
            if let Some(last) = work.get_mut(at + len - 1) {
                *last = first;
            }
        }
        before = Span { at: at as u32, len: len as u32 };
        at += len;
    }
    Ok(at)
}

struct Bits<'a, const OLD: bool> {
    bytes: &'a [u8],
    at: usize,
    held: u64,
    have: u32,
}

impl<const OLD: bool> Bits<'_, OLD> {
    /// The next code of `width` bits.
    #[inline(always)]
    fn take(&mut self, width: u32) -> Option<usize> {
        if self.have < width {
            self.refill();
            if self.have < width {
                return None;
            }
        }
        let mask = (1u64 << width) - 1;
        if OLD {
            let code = self.held & mask;
            self.held >>= width;
            self.have -= width;
            Some(code as usize)
        } else {
            self.have -= width;
            Some(((self.held >> self.have) & mask) as usize)
        }
    }

    #[inline(always)]
    fn refill(&mut self) {
        if let Some(&[a, b, c, d]) = self.bytes.get(self.at..self.at + 4) {
            if OLD {
                self.held |= u64::from(u32::from_le_bytes([a, b, c, d])) << self.have;
            } else {
                self.held = (self.held << 32) | u64::from(u32::from_be_bytes([a, b, c, d]));
            }
            self.at += 4;
            self.have += 32;
            return;
        }
        while let Some(b) = self.bytes.get(self.at) {
            if self.have > 48 {
                break;
            }
            if OLD {
                self.held |= u64::from(*b) << self.have;
            } else {
                self.held = (self.held << 8) | u64::from(*b);
            }
            self.at += 1;
            self.have += 8;
        }
    }
}
