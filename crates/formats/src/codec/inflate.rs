//! Deflate, decoded two literals at a time.
//!
//! Camera images compress into Huffman codes of literals with few matches: noise. A table whose entries hold two
//! literals where both codes fit halves the chain of dependent lookups, which is what limits such data.

/// Bits looked up at once for literals and lengths; longer codes go on in a subtable.
const LITERAL_BITS: usize = 11;
/// Bits looked up at once for distances.
const DISTANCE_BITS: usize = 8;
/// Entries of the literal table with all its subtables, for any complete code of 288 symbols of up to 15 bits: each
/// symbol longer than the root takes at most the 16 entries of one subtable.
const LITERAL_ENTRIES: usize = (1 << LITERAL_BITS) + 288 * 16;
/// The same for 32 distances, whose subtables have up to 128 entries.
const DISTANCE_ENTRIES: usize = (1 << DISTANCE_BITS) + 32 * 128;
/// Bytes behind the data that must exist, so that eight can be read anywhere in them.
pub(super) const PADDING: usize = 16;

// An entry: bits 0..8 code bits to drop; 8..12 kind, of which the lower two count literals; 12..16 extra bits (or
// subtable bits); 16..32 value.
const INVALID: u32 = 0;
const ONE: u32 = 1 << 8;
const TWO: u32 = 2 << 8;
const BASE: u32 = 4 << 8;
const END: u32 = 8 << 8;
const SUBTABLE: u32 = 12 << 8;
const LITERAL_MASK: u32 = 3 << 8;
const KIND_MASK: u32 = 15 << 8;

const LENGTH_BASE: [u16; 29] =
    [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const LENGTH_EXTRA: [u8; 29] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const DISTANCE_BASE: [u16; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145,
    8193, 12289, 16385, 24577,
];
const CODE_ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// Why decoding stopped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The data break the format, or end too early.
    Bad,
    /// The data go on beyond the room there is.
    Full,
}

/// Tables kept from block to block and strip to strip.
pub(super) struct Inflater {
    literals: Box<[u32; LITERAL_ENTRIES]>,
    distances: Box<[u32; DISTANCE_ENTRIES]>,
}

struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    held: u64,
    have: u32,
}

impl Bits<'_> {
    /// Tops up to at least 56 bits; behind the data come zeros, which [`Bits::is_past_end`] finds out.
    #[inline(always)]
    fn refill(&mut self) {
        let word = self.bytes.get(self.at..).and_then(|b| b.first_chunk::<8>()).map_or(0, |b| u64::from_le_bytes(*b));
        self.held |= word << self.have;
        self.at += ((63 - self.have) / 8) as usize;
        self.have |= 56;
    }

    #[inline(always)]
    fn drop(&mut self, count: u32) {
        self.held >>= count & 63;
        self.have = self.have.wrapping_sub(count);
    }

    #[inline(always)]
    fn take(&mut self, count: u32) -> usize {
        let value = self.held & ((1 << count) - 1);
        self.drop(count);
        value as usize
    }

    /// Whether bits were used that are not of the data.
    fn is_past_end(&self) -> bool {
        self.at.saturating_sub(self.have as usize / 8) > self.bytes.len().saturating_sub(PADDING)
    }
}

impl Inflater {
    pub fn new() -> Self {
        Self { literals: Box::new([INVALID; LITERAL_ENTRIES]), distances: Box::new([INVALID; DISTANCE_ENTRIES]) }
    }

    /// Decodes raw Deflate data, which must be followed by [`PADDING`] bytes of no meaning, into `out`. Gives the bytes
    /// written and the bytes read.
    pub fn run(&mut self, padded: &[u8], out: &mut [u8]) -> Result<(usize, usize), Stop> {
        let mut bits = Bits { bytes: padded, at: 0, held: 0, have: 0 };
        let mut done = 0;
        loop {
            bits.refill();
            let last = bits.take(1) == 1;
            match bits.take(2) {
                0 => stored(&mut bits, out, &mut done)?,
                1 => {
                    self.fixed().ok_or(Stop::Bad)?;
                    self.block(&mut bits, out, &mut done)?;
                }
                2 => {
                    self.dynamic(&mut bits).ok_or(Stop::Bad)?;
                    self.block(&mut bits, out, &mut done)?;
                }
                _ => return Err(Stop::Bad),
            }
            if bits.is_past_end() {
                return Err(Stop::Bad);
            }
            if last {
                return Ok((done, bits.at - bits.have as usize / 8));
            }
        }
    }

    fn fixed(&mut self) -> Option<()> {
        let mut lengths = [8u8; 288];
        lengths.get_mut(144..256)?.fill(9);
        lengths.get_mut(256..280)?.fill(7);
        build(&lengths, LITERAL_BITS, self.literals.as_mut_slice(), literal_entry)?;
        pair_up(&mut self.literals);
        build(&[5; 32], DISTANCE_BITS, self.distances.as_mut_slice(), distance_entry)
    }

    fn dynamic(&mut self, bits: &mut Bits<'_>) -> Option<()> {
        let (literals, distances, codes) = (bits.take(5) + 257, bits.take(5) + 1, bits.take(4) + 4);
        let mut code_lengths = [0u8; 19];
        for symbol in CODE_ORDER.iter().take(codes) {
            bits.refill();
            *code_lengths.get_mut(*symbol)? = bits.take(3) as u8;
        }
        let mut table = [INVALID; 128];
        build(&code_lengths, 7, &mut table, |symbol| BASE | ((symbol as u32) << 16))?;
        let mut lengths = [0u8; 320];
        let total = literals + distances;
        let mut filled = 0;
        while filled < total {
            bits.refill();
            let entry = *table.get(bits.held as usize & 127)?;
            if entry == INVALID {
                return None;
            }
            bits.drop(entry & 0xFF);
            let (value, repeat) = match entry >> 16 {
                16 => (*lengths.get(filled.checked_sub(1)?)?, 3 + bits.take(2)),
                17 => (0, 3 + bits.take(3)),
                18 => (0, 11 + bits.take(7)),
                length => (length as u8, 1),
            };
            let end = filled + repeat;
            if end > total {
                return None;
            }
            lengths.get_mut(filled..end)?.fill(value);
            filled = end;
        }
        if lengths.get(256) == Some(&0) || literals > 286 {
            return None;
        }
        build(lengths.get(..literals)?, LITERAL_BITS, self.literals.as_mut_slice(), literal_entry)?;
        pair_up(&mut self.literals);
        build(lengths.get(literals..total)?, DISTANCE_BITS, self.distances.as_mut_slice(), distance_entry)
    }

    /// The symbols of a block, up to its end.
    fn block(&self, bits: &mut Bits<'_>, out: &mut [u8], done: &mut usize) -> Result<(), Stop> {
        let literals: &[u32; LITERAL_ENTRIES] = &self.literals;
        let mut at = *done;
        loop {
            bits.refill();
            let mut entry = literals[bits.held as usize & ((1 << LITERAL_BITS) - 1)];
            // Five lookups of up to eleven bits each fit into one refill.
            if let Some(room) = out.get_mut(at..).and_then(|o| o.first_chunk_mut::<16>()) {
                let mut written = 0usize;
                for _ in 0..4 {
                    if entry & LITERAL_MASK == 0 {
                        break;
                    }
                    room[written & 15] = (entry >> 16) as u8;
                    room[(written + 1) & 15] = (entry >> 24) as u8;
                    written += ((entry >> 8) & 3) as usize;
                    bits.drop(entry & 0xFF);
                    entry = literals[bits.held as usize & ((1 << LITERAL_BITS) - 1)];
                }
                at += written;
                if entry & LITERAL_MASK != 0 {
                    continue;
                }
            } else if entry & LITERAL_MASK != 0 {
                let count = ((entry >> 8) & 3) as usize;
                let pair = [(entry >> 16) as u8, (entry >> 24) as u8];
                let to = out.get_mut(at..at + count).ok_or(Stop::Full)?;
                to.copy_from_slice(pair.get(..count).ok_or(Stop::Bad)?);
                at += count;
                bits.drop(entry & 0xFF);
                if bits.is_past_end() {
                    return Err(Stop::Bad);
                }
                continue;
            }
            // A length and a distance take up to 48 bits, with those of the entry at hand.
            bits.refill();
            if entry & KIND_MASK == SUBTABLE {
                entry = subtable(&self.literals[..], entry, bits, LITERAL_BITS).ok_or(Stop::Bad)?;
                if entry & LITERAL_MASK != 0 {
                    *out.get_mut(at).ok_or(Stop::Full)? = (entry >> 16) as u8;
                    at += 1;
                    bits.drop(entry & 0xFF);
                    continue;
                }
            }
            if entry & KIND_MASK == END {
                bits.drop(entry & 0xFF);
                *done = at;
                return Ok(());
            }
            if entry & KIND_MASK != BASE || bits.is_past_end() {
                return Err(Stop::Bad);
            }
            bits.drop(entry & 0xFF);
            let length = (entry >> 16) as usize + bits.take((entry >> 12) & 15);
            let mut entry = *self.distances.get(bits.held as usize & ((1 << DISTANCE_BITS) - 1)).ok_or(Stop::Bad)?;
            if entry & KIND_MASK == SUBTABLE {
                entry = subtable(&self.distances[..], entry, bits, DISTANCE_BITS).ok_or(Stop::Bad)?;
            }
            if entry & KIND_MASK != BASE {
                return Err(Stop::Bad);
            }
            bits.drop(entry & 0xFF);
            let distance = (entry >> 16) as usize + bits.take((entry >> 12) & 15);
            copy_match(out, at, distance, length)?;
            at += length;
        }
    }
}

/// The entry of a code longer than the root table.
#[inline]
fn subtable(table: &[u32], entry: u32, bits: &Bits<'_>, root: usize) -> Option<u32> {
    let index = (bits.held >> root) as usize & ((1 << ((entry >> 12) & 15)) - 1);
    table.get((entry >> 16) as usize + index).copied()
}

fn copy_match(out: &mut [u8], at: usize, distance: usize, length: usize) -> Result<(), Stop> {
    let from = at.checked_sub(distance).ok_or(Stop::Bad)?;
    if at + length > out.len() {
        return Err(Stop::Full);
    }
    if length <= 16 && distance >= 16 && at + 16 <= out.len() {
        let (before, after) = out.split_at_mut(at);
        if let (Some(source), Some(to)) =
            (before.get(from..).and_then(|b| b.first_chunk::<16>()), after.first_chunk_mut::<16>())
        {
            *to = *source;
        }
    } else if distance >= length {
        out.copy_within(from..from + length, at);
    } else if distance == 1 {
        let byte = out.get(from).copied().unwrap_or(0);
        out.get_mut(at..at + length).ok_or(Stop::Full)?.fill(byte);
    } else {
        // The match overlaps itself: what is there doubles with each copy.
        let mut copied = 0;
        while copied < length {
            let step = (distance + copied).min(length - copied);
            out.copy_within(from..from + step, at + copied);
            copied += step;
        }
    }
    Ok(())
}

fn stored(bits: &mut Bits<'_>, out: &mut [u8], done: &mut usize) -> Result<(), Stop> {
    bits.drop(bits.have % 8);
    let start = bits.at - bits.have as usize / 8;
    let head = bits.bytes.get(start..).and_then(|b| b.first_chunk::<4>()).ok_or(Stop::Bad)?;
    let length = u16::from_le_bytes([head[0], head[1]]);
    if length != !u16::from_le_bytes([head[2], head[3]]) {
        return Err(Stop::Bad);
    }
    let length = usize::from(length);
    let end = bits.bytes.len().saturating_sub(PADDING);
    let from = bits.bytes.get(start + 4..start + 4 + length).filter(|_| start + 4 + length <= end).ok_or(Stop::Bad)?;
    out.get_mut(*done..*done + length).ok_or(Stop::Full)?.copy_from_slice(from);
    *done += length;
    (bits.at, bits.held, bits.have) = (start + 4 + length, 0, 0);
    Ok(())
}

fn literal_entry(symbol: usize) -> u32 {
    match symbol {
        0..256 => ONE | ((symbol as u32) << 16),
        256 => END,
        _ => match (LENGTH_BASE.get(symbol - 257), LENGTH_EXTRA.get(symbol - 257)) {
            (Some(base), Some(extra)) => BASE | (u32::from(*extra) << 12) | (u32::from(*base) << 16),
            _ => INVALID,
        },
    }
}

fn distance_entry(symbol: usize) -> u32 {
    let extra = (symbol as u32 / 2).saturating_sub(1);
    DISTANCE_BASE.get(symbol).map_or(INVALID, |base| BASE | (extra << 12) | (u32::from(*base) << 16))
}

/// Fills a table from the lengths of the symbols' codes; `None` for lengths that are no prefix code.
fn build(lengths: &[u8], root: usize, table: &mut [u32], entry_of: impl Fn(usize) -> u32) -> Option<()> {
    let mut counts = [0usize; 16];
    for length in lengths {
        *counts.get_mut(usize::from(*length))? += 1;
    }
    counts[0] = 0;
    let used: usize = counts.iter().sum();
    let mut space = 0i32;
    for (length, count) in counts.iter().enumerate().skip(1) {
        space += (*count as i32) << (15 - length);
    }
    // Only a code of one symbol, or of none, may leave codes unused.
    if space > 1 << 15 || (space < 1 << 15 && used > 1) {
        return None;
    }
    table.get_mut(..1 << root)?.fill(INVALID);
    let mut next_code = [0u32; 16];
    let mut code = 0;
    for length in 1..16 {
        code = (code + counts[length - 1] as u32) << 1;
        next_code[length] = code;
    }
    let longest = (1..16).rev().find(|l| counts[*l] > 0).unwrap_or(1);
    let sub_bits = longest.saturating_sub(root);
    let mut free = 1 << root;
    for (symbol, length) in lengths.iter().enumerate().filter(|(_, l)| **l > 0) {
        let length = usize::from(*length);
        let code = next_code.get_mut(length)?;
        let reversed = (code.reverse_bits() >> (32 - length)) as usize;
        *code += 1;
        let raw = entry_of(symbol);
        let entry = if raw == INVALID { INVALID } else { raw | length as u32 };
        if length <= root {
            for slot in table.get_mut(reversed..1 << root)?.iter_mut().step_by(1 << length) {
                *slot = entry;
            }
            continue;
        }
        let root_slot = table.get_mut(reversed & ((1 << root) - 1))?;
        if *root_slot & KIND_MASK != SUBTABLE {
            *root_slot = SUBTABLE | ((sub_bits as u32) << 12) | ((free as u32) << 16);
            table.get_mut(free..free + (1 << sub_bits))?.fill(INVALID);
            free += 1 << sub_bits;
        }
        let base = (*table.get(reversed & ((1 << root) - 1))? >> 16) as usize;
        let sub = table.get_mut(base..base + (1 << sub_bits))?;
        for slot in sub.get_mut(reversed >> root..)?.iter_mut().step_by(1 << (length - root)) {
            *slot = entry;
        }
    }
    Some(())
}

/// Joins two literals into one entry where both codes fit into the root's bits.
fn pair_up(table: &mut [u32; LITERAL_ENTRIES]) {
    // From the top down, so that the second literal's entry is still a single one.
    for i in (0..1usize << LITERAL_BITS).rev() {
        let first = table[i];
        if first & KIND_MASK != ONE {
            continue;
        }
        let second = table[i >> (first & 15)];
        let length = (first & 0xFF) + (second & 0xFF);
        if second & KIND_MASK == ONE && length <= LITERAL_BITS as u32 {
            table[i] = TWO | length | (first & 0xFF_0000) | ((second & 0xFF_0000) << 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inflate(data: &[u8], room: usize) -> Result<Vec<u8>, Stop> {
        let mut padded = data.to_vec();
        padded.extend([0xA5; PADDING]);
        let mut out = vec![0; room];
        let (done, read) = Inflater::new().run(&padded, &mut out)?;
        assert!(read <= data.len());
        out.truncate(done);
        Ok(out)
    }

    fn deflate(data: &[u8], level: i32) -> Vec<u8> {
        let mut encoder = libdeflater::Compressor::new(libdeflater::CompressionLvl::new(level).unwrap());
        let mut out = vec![0; encoder.deflate_compress_bound(data.len())];
        let n = encoder.deflate_compress(data, &mut out).unwrap();
        out.truncate(n);
        out
    }

    /// Bytes of many kinds: noise of few or many values, runs, and repeats of what came before.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        (any::<u64>(), 0usize..70_000, 1u64..300, 1u64..40).prop_map(|(seed, len, values, repeats)| {
            let mut state = seed | 1;
            let mut next = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state >> 33
            };
            let mut out: Vec<u8> = Vec::new();
            while out.len() < len {
                if next() % repeats == 0 && !out.is_empty() {
                    let from = next() as usize % out.len();
                    for k in 0..next() as usize % 600 {
                        out.push(out[from + k]);
                    }
                } else {
                    let skewed = (next() % values) * (next() % values) / values;
                    out.push(skewed as u8);
                }
            }
            out
        })
    }

    proptest! {
        #[test]
        fn gives_back_what_was_compressed(data in bytes(), level in 0i32..=12) {
            let packed = deflate(&data, level);
            let whole = inflate(&packed, data.len());
            prop_assert_eq!(whole.as_deref(), Ok(data.as_slice()));
            if !data.is_empty() {
                prop_assert_eq!(inflate(&packed, data.len() - 1), Err(Stop::Full));
            }
        }

        #[test]
        fn agrees_with_libdeflate_on_damaged_data(data in bytes(), level in 1i32..=9, at in any::<usize>(), bit in 0u32..8) {
            let mut packed = deflate(&data, level);
            let at = at % packed.len();
            packed[at] ^= 1u8 << bit;
            let mut other = vec![0; data.len() + 300];
            let expected = libdeflater::Decompressor::new().deflate_decompress(&packed, &mut other);
            match (inflate(&packed, data.len() + 300), expected) {
                (Ok(ours), Ok(n)) => prop_assert_eq!(&ours[..], &other[..n]),
                (Err(_), Err(_)) => {}
                (ours, theirs) => prop_assert!(false, "{:?} {:?}", ours.map(|o| o.len()), theirs),
            }
        }
    }
}
