//! TIFF's LZW, including the older bit order of the first TIFF writers.
//!
//! Most strings are short: each table entry holds up to seven bytes and their count, so that decoding a code is one
//! load and one store without a dependency on bytes just written. Longer strings are copied within the output: every
//! string in the table already occurs there. The string of entry `k` begins where the `k`-th code since the last clear
//! code was written and ends with the first byte of the next one.

use super::{Codec, too_short};
use crate::error::{Fault, Remedy};
use std::cell::RefCell;

const CLEAR: usize = 256;
const END: usize = 257;
const CODES: usize = 4096;
/// Bytes copied at once; the work buffer is longer than the output by twice this.
const STEP: usize = 16;

thread_local! {
    static WORK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Work buffers up to this size are reused for the next strip.
const MAX_REUSED_BYTES: usize = 8 << 20;

/// Decodes until `out` is full; an error if the data end before that.
pub(crate) fn decode(encoded: &[u8], out: &mut [u8]) -> Result<(), Fault> {
    let total = out.len();
    if u32::try_from(total + 2 * STEP).is_err() {
        return Err(Fault::over(
            "the size of an LZW strip",
            out.len() as u64,
            "4 GiB",
            u64::from(u32::MAX),
            Remedy::SmallerChunks,
        ));
    }
    let old_style = matches!(encoded, [0, second, ..] if second & 1 == 1);
    let mut work = WORK.take();
    if work.len() < total + 2 * STEP {
        work = vec![0; total + 2 * STEP];
    }
    let end =
        if old_style { run::<true>(encoded, &mut work, total)? } else { run::<false>(encoded, &mut work, total)? };
    if end < total {
        return Err(too_short(Codec::Lzw, end, total));
    }
    out.copy_from_slice(work.get(..total).unwrap_or_default());
    if work.len() <= MAX_REUSED_BYTES {
        WORK.set(work);
    }
    Ok(())
}

#[cold]
fn invalid_data() -> Fault {
    Fault::malformed("a strip or tile is not valid LZW data")
}

/// Up to seven bytes of a string, the first in the lowest byte, and their count in the highest byte. Longer strings
/// have the count [`LONG`] and only their first byte.
type Entry = u64;

const ONE: Entry = 1 << 56;
const LONG: Entry = 8 * ONE;

/// Appends one byte to the string of `entry`.
#[inline(always)]
fn append_byte(entry: Entry, byte: u64) -> Entry {
    let more = (entry + ONE) | byte << ((entry >> 53) & 56);
    if entry < 7 * ONE { more } else { LONG | entry & 0xff }
}

/// Decoder state between codes.
struct State {
    /// Bytes of the data consumed so far.
    byte: usize,
    /// Bits not yet decoded: the highest bits, or for old-style data the lowest.
    held: u64,
    have: usize,
    /// The table entry that the next code completes.
    next: usize,
    /// Number of bytes decoded so far.
    at: usize,
    /// The string of the last code.
    last: Entry,
    /// The strings. Entries completed by the first code after a clear code, or when the table is full, lie outside the
    /// range of codes.
    table: [Entry; CODES * 2],
    /// Position in the output at which the string of each entry begins; it ends one byte after the start of the next
    /// one.
    starts: [u32; CODES * 2],
}

/// Why decoding of codes of one width stopped.
enum StopReason {
    Wider,
    Cleared,
    Finished,
}

/// Decodes into `work[..total]` and returns the number of bytes decoded.
fn run<const OLD: bool>(encoded: &[u8], work: &mut [u8], total: usize) -> Result<usize, Fault> {
    let mut state =
        State { byte: 0, held: 0, have: 0, next: END, at: 0, last: 0, table: [0; CODES * 2], starts: [0; CODES * 2] };
    for (entry, byte) in state.table.iter_mut().zip(0..256) {
        *entry = ONE | byte;
    }
    let mut width = 9;
    loop {
        let ended = match width {
            9 => codes::<OLD, 9>(encoded, work, total, &mut state)?,
            10 => codes::<OLD, 10>(encoded, work, total, &mut state)?,
            11 => codes::<OLD, 11>(encoded, work, total, &mut state)?,
            _ => codes::<OLD, 12>(encoded, work, total, &mut state)?,
        };
        match ended {
            StopReason::Wider => width += 1,
            StopReason::Cleared => {
                width = 9;
                state.next = END;
            }
            StopReason::Finished => return Ok(state.at.min(total)),
        }
    }
}

/// Decodes codes of `W` bits until the code width grows, the table is cleared, or decoding is finished.
fn codes<const OLD: bool, const W: usize>(
    encoded: &[u8],
    work: &mut [u8],
    total: usize,
    state: &mut State,
) -> Result<StopReason, Fault> {
    // Old-style writers increase the code width one code later.
    let widen_at = if W < 12 { (1 << W) - usize::from(!OLD) } else { usize::MAX };
    let State { byte, held, have, next, at, last, table, starts } = state;
    let (mut b, mut h, mut n, mut next_code, mut end, mut before) = (*byte, *held, *have, *next, *at, *last);
    let ended = 'all: loop {
        if let Some(word) = encoded.get(b..).and_then(|e| e.first_chunk::<8>()) {
            // Bits above the count are read again later with the same values.
            h |= if OLD { u64::from_le_bytes(*word) << n } else { u64::from_be_bytes(*word) >> n };
            let taken = (63 - n) / 8;
            b += taken;
            n += taken * 8;
        } else {
            while n <= 56
                && let Some(one) = encoded.get(b)
            {
                h |= u64::from(*one) << if OLD { n } else { 56 - n };
                b += 1;
                n += 8;
            }
            if n < W {
                break StopReason::Finished;
            }
        }
        while n >= W {
            if end >= total {
                break 'all StopReason::Finished;
            }
            let code = if OLD { h & ((1 << W) - 1) } else { h >> (64 - W) } as usize;
            h = if OLD { h >> W } else { h << W };
            n -= W;
            if code & !1 == CLEAR {
                break 'all if code == END { StopReason::Finished } else { StopReason::Cleared };
            }
            let slot = next_code;
            if next_code < CODES {
                next_code += 1;
                starts[next_code & (CODES * 2 - 1)] = end as u32;
            }
            if code >= next_code {
                return Err(invalid_data());
            }
            // The newest string ends with its own first byte.
            let newest = append_byte(before, before & 0xff);
            let known = table[code & (CODES - 1)];
            let string = if code == slot { newest } else { known };
            table[slot & (CODES * 2 - 1)] = append_byte(before, string & 0xff);
            before = string;
            *work.get_mut(end..).and_then(|w| w.first_chunk_mut::<8>()).ok_or_else(invalid_data)? =
                string.to_le_bytes();
            if string < LONG {
                end += (string >> 56) as usize;
            } else {
                end += copy_string(work, starts, (code, code == slot), end, total).ok_or_else(invalid_data)?;
            }
            if W < 12 && next_code >= widen_at {
                break 'all StopReason::Wider;
            }
        }
    };
    (*byte, *held, *have, *next, *at, *last) = (b, h, n, next_code, end, before);
    Ok(ended)
}

/// Copies a string that is too long for the table from its earlier place in the output to `to`, and returns its length.
/// `code` is the string's code, and whether it is the newest one.
#[inline(always)]
fn copy_string(
    work: &mut [u8],
    starts: &[u32; CODES * 2],
    code: (usize, bool),
    to: usize,
    total: usize,
) -> Option<usize> {
    let (code, is_newest) = code;
    let from = starts[code & (CODES - 1)] as usize;
    let len = starts[(code & (CODES - 1)) + 1].wrapping_add(1) as usize - from;
    copy_step(work, from, to)?;
    if len > STEP {
        copy_long(work, from, to, len, total)?;
    }
    if is_newest {
        // The last byte of this string is its own first byte, which has just been written.
        let first = work.get(to).copied()?;
        if let Some(last) = work.get_mut(to + len - 1) {
            *last = first;
        }
    }
    Some(len)
}

#[inline(always)]
fn copy_step(work: &mut [u8], from: usize, to: usize) -> Option<()> {
    let step: [u8; STEP] = *work.get(from..)?.first_chunk::<STEP>()?;
    *work.get_mut(to..)?.first_chunk_mut::<STEP>()? = step;
    Some(())
}

/// Copies the rest of a string longer than one step, up to the end of the output.
#[cold]
fn copy_long(work: &mut [u8], from: usize, to: usize, len: usize, total: usize) -> Option<()> {
    let mut copied = STEP;
    while copied < len && to + copied < total {
        copy_step(work, from + copied, to + copied)?;
        copied += STEP;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// A reference LZW encoder for the new and the old bit order; `full` is the entry at which the table is cleared.
    fn encode(data: &[u8], old: bool, full: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let (mut held, mut have) = (0u64, 0u32);
        let mut put = |code: usize, width: u32, out: &mut Vec<u8>| {
            held = if old { held | (code as u64) << have } else { (held << width) | code as u64 };
            have += width;
            while have >= 8 {
                have -= 8;
                out.push(if old { held as u8 } else { (held >> have) as u8 });
                held = if old { held >> 8 } else { held & ((1 << have) - 1) };
            }
        };
        let mut table: HashMap<Vec<u8>, usize> = HashMap::new();
        let (mut next, mut width) = (258, 9);
        put(CLEAR, 9, &mut out);
        let mut string: Vec<u8> = Vec::new();
        let code_of = |s: &[u8], table: &HashMap<Vec<u8>, usize>| if let [b] = s { usize::from(*b) } else { table[s] };
        for byte in data {
            let mut append_byte = string.clone();
            append_byte.push(*byte);
            if append_byte.len() == 1 || table.contains_key(&append_byte) {
                string = append_byte;
                continue;
            }
            put(code_of(&string, &table), width, &mut out);
            table.insert(append_byte, next);
            next += 1;
            if next + usize::from(!old) > (1 << width) {
                width += 1;
            }
            if next == full {
                // The clear code has the current code width.
                put(CLEAR, width, &mut out);
                table.clear();
                (next, width) = (258, 9);
            }
            string = vec![*byte];
        }
        if !string.is_empty() {
            put(code_of(&string, &table), width, &mut out);
            // The decoder completes one more entry with this code, which may increase the code width.
            if next + 1 + usize::from(!old) > (1 << width) && width < 12 {
                width += 1;
            }
        }
        put(END, width, &mut out);
        put(0, 16, &mut out);
        out
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        (any::<u64>(), 0usize..40_000, 1u64..256, 1u64..60).prop_map(|(seed, len, values, run)| {
            let mut state = seed | 1;
            let mut next = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state >> 33
            };
            let mut out = Vec::new();
            while out.len() < len {
                let value = (next() % values) as u8;
                out.extend(std::iter::repeat_n(value, 1 + (next() % run) as usize));
            }
            out
        })
    }

    /// Table sizes at which a writer clears its table, including all boundaries of the code width.
    fn full_tables() -> impl Strategy<Value = usize> {
        prop_oneof![
            300usize..=4094,
            prop::sample::select(vec![511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4094])
        ]
    }

    proptest! {
        #[test]
        fn decodes_what_was_encoded(data in bytes(), full in full_tables()) {
            let mut out = vec![0; data.len()];
            prop_assert!(decode(&encode(&data, false, full), &mut out).is_ok());
            prop_assert_eq!(&out, &data);
        }

        #[test]
        fn decodes_what_was_encoded_in_the_old_bit_order(data in bytes(), full in full_tables()) {
            let mut encoded = encode(&data, true, full);
            prop_assert!(encoded.starts_with(&[0]) && encoded[1] & 1 == 1);
            let mut out = vec![0; data.len()];
            prop_assert!(decode(&encoded, &mut out).is_ok());
            prop_assert_eq!(&out, &data);
            encoded.truncate(encoded.len() / 2);
            let _ = decode(&encoded, &mut out);
        }

        #[test]
        fn invalid_data_do_not_panic(noise in prop::collection::vec(any::<u8>(), 0..2000), len in 0usize..9000) {
            let mut out = vec![0; len];
            let _ = decode(&noise, &mut out);
        }
    }
}
