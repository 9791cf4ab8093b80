//! LZW as TIFF uses it, and the older bit order of its first writers.
//!
//! Most strings are short: the table holds up to seven bytes of each with their number, so that decoding a code is a
//! load and a store that wait for nothing that was just written. Longer strings are copied inside the output: every
//! string of the table occurs in it already, and the string of entry `k` begins where the `k`-th code since the last
//! clearing was written and ends with the first byte of the next one.

use super::{Codec, short};
use crate::error::Fault;
use std::cell::RefCell;

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
pub(super) fn decode(encoded: &[u8], out: &mut [u8]) -> Result<(), Fault> {
    let total = out.len();
    if u32::try_from(total + 2 * STEP).is_err() {
        return Err(Fault::over("the size of an LZW strip", out.len() as u64, "4 GiB", u64::from(u32::MAX)));
    }
    let old_style = matches!(encoded, [0, second, ..] if second & 1 == 1);
    let mut work = WORK.take();
    if work.len() < total + 2 * STEP {
        work = vec![0; total + 2 * STEP];
    }
    let end =
        if old_style { run::<true>(encoded, &mut work, total)? } else { run::<false>(encoded, &mut work, total)? };
    if end < total {
        return Err(short(Codec::Lzw, end, total));
    }
    out.copy_from_slice(work.get(..total).unwrap_or_default());
    if work.len() <= KEPT_BYTES {
        WORK.set(work);
    }
    Ok(())
}

#[cold]
fn broken() -> Fault {
    Fault::malformed("a strip or tile is not valid LZW data")
}

/// Up to seven bytes of a string, the first lowest, and in the top byte their number; [`LONG`] for more, of which only
/// the first byte is known.
type Entry = u64;

const ONE: Entry = 1 << 56;
const LONG: Entry = 8 * ONE;

/// The string of `entry` and one byte more.
#[inline(always)]
fn longer(entry: Entry, byte: u64) -> Entry {
    let more = (entry + ONE) | byte << ((entry >> 53) & 56);
    if entry < 7 * ONE { more } else { LONG | entry & 0xff }
}

/// What is carried from code to code.
struct State {
    /// Bytes taken from the data.
    byte: usize,
    /// Bits not yet used: at the top, or for old-style data at the bottom.
    held: u64,
    have: usize,
    /// The entry that the next code completes.
    next: usize,
    /// The end of the output.
    at: usize,
    /// The string of the last code.
    last: Entry,
    /// The strings. What is completed by the first code after a clearing, or when the table is full, is in no code's reach.
    table: [Entry; CODES * 2],
    /// Where the string of each entry begins; it ends one byte after the beginning of the next one.
    starts: [u32; CODES * 2],
}

/// Why a run of codes of one width ended.
enum Ended {
    Wider,
    Cleared,
    Finished,
}

/// Decodes into `work[..total]`, and returns the end reached.
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
            Ended::Wider => width += 1,
            Ended::Cleared => {
                width = 9;
                state.next = END;
            }
            Ended::Finished => return Ok(state.at.min(total)),
        }
    }
}

/// Decodes codes of `W` bits until they get wider, the table is cleared, or all is done.
fn codes<const OLD: bool, const W: usize>(
    encoded: &[u8],
    work: &mut [u8],
    total: usize,
    state: &mut State,
) -> Result<Ended, Fault> {
    // Old-style writers widen their codes one code later.
    let widen_at = if W < 12 { (1 << W) - usize::from(!OLD) } else { usize::MAX };
    let State { byte, held, have, next, at, last, table, starts } = state;
    let (mut b, mut h, mut n, mut next_code, mut end, mut before) = (*byte, *held, *have, *next, *at, *last);
    let ended = 'all: loop {
        if let Some(word) = encoded.get(b..).and_then(|e| e.first_chunk::<8>()) {
            // Bits beyond those counted are the same when they come again.
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
                break Ended::Finished;
            }
        }
        while n >= W {
            if end >= total {
                break 'all Ended::Finished;
            }
            let code = if OLD { h & ((1 << W) - 1) } else { h >> (64 - W) } as usize;
            h = if OLD { h >> W } else { h << W };
            n -= W;
            if code & !1 == CLEAR {
                break 'all if code == END { Ended::Finished } else { Ended::Cleared };
            }
            let slot = next_code;
            if next_code < CODES {
                next_code += 1;
                starts[next_code & (CODES * 2 - 1)] = end as u32;
            }
            if code >= next_code {
                return Err(broken());
            }
            // The newest string ends with its own first byte.
            let newest = longer(before, before & 0xff);
            let known = table[code & (CODES - 1)];
            let string = if code == slot { newest } else { known };
            table[slot & (CODES * 2 - 1)] = longer(before, string & 0xff);
            before = string;
            *work.get_mut(end..).and_then(|w| w.first_chunk_mut::<8>()).ok_or_else(broken)? = string.to_le_bytes();
            if string < LONG {
                end += (string >> 56) as usize;
            } else {
                let from = starts[code & (CODES - 1)] as usize;
                let len = starts[(code & (CODES - 1)) + 1].wrapping_add(1) as usize - from;
                copy_step(work, from, end).ok_or_else(broken)?;
                if len > STEP {
                    copy_long(work, from, end, len, total).ok_or_else(broken)?;
                }
                if code == slot {
                    // Its last byte was only just written.
                    let first = work.get(end).copied().ok_or_else(broken)?;
                    if let Some(last) = work.get_mut(end + len - 1) {
                        *last = first;
                    }
                }
                end += len;
            }
            if W < 12 && next_code >= widen_at {
                break 'all Ended::Wider;
            }
        }
    };
    (*byte, *held, *have, *next, *at, *last) = (b, h, n, next_code, end, before);
    Ok(ended)
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// A plain LZW encoder, for new and old bit order; `full` is the entry at which the table is cleared.
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
            let mut longer = string.clone();
            longer.push(*byte);
            if longer.len() == 1 || table.contains_key(&longer) {
                string = longer;
                continue;
            }
            put(code_of(&string, &table), width, &mut out);
            table.insert(longer, next);
            next += 1;
            if next + usize::from(!old) > (1 << width) {
                width += 1;
            }
            if next == full {
                // The code that clears has the width any other code would have here.
                put(CLEAR, width, &mut out);
                table.clear();
                (next, width) = (258, 9);
            }
            string = vec![*byte];
        }
        if !string.is_empty() {
            put(code_of(&string, &table), width, &mut out);
            // The decoder completes one more entry with this code, and may widen with it.
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

    /// Where a writer clears its table; every boundary of a width is among them.
    fn full_tables() -> impl Strategy<Value = usize> {
        prop_oneof![
            300usize..=4094,
            prop::sample::select(vec![511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4094])
        ]
    }

    proptest! {
        #[test]
        fn gives_back_what_was_encoded(data in bytes(), full in full_tables()) {
            let mut out = vec![0; data.len()];
            prop_assert!(decode(&encode(&data, false, full), &mut out).is_ok());
            prop_assert_eq!(&out, &data);
        }

        #[test]
        fn gives_back_what_was_encoded_the_old_way(data in bytes(), full in full_tables()) {
            let mut encoded = encode(&data, true, full);
            prop_assert!(encoded.starts_with(&[0]) && encoded[1] & 1 == 1);
            let mut out = vec![0; data.len()];
            prop_assert!(decode(&encoded, &mut out).is_ok());
            prop_assert_eq!(&out, &data);
            encoded.truncate(encoded.len() / 2);
            let _ = decode(&encoded, &mut out);
        }

        #[test]
        fn anything_else_is_an_answer(noise in prop::collection::vec(any::<u8>(), 0..2000), len in 0usize..9000) {
            let mut out = vec![0; len];
            let _ = decode(&noise, &mut out);
        }
    }
}
