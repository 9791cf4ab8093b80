//! Encoding of TIFF directories.

use crate::meta::ByteOrder;

/// The value of a tag.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Ascii(String),
    Short(Vec<u16>),
    Long(Vec<u32>),
    Long8(Vec<u64>),
    Rational(u32, u32),
    Bytes(Vec<u8>),
    Double(f64),
}

impl Value {
    /// Offsets or sizes: 64-bit in BigTIFF, 32-bit otherwise.
    pub fn offsets(values: Vec<u64>, big: bool) -> Value {
        if big { Value::Long8(values) } else { Value::Long(values.into_iter().map(|v| v as u32).collect()) }
    }

    fn encoded(&self, order: ByteOrder) -> (u16, u64, Vec<u8>) {
        let big = order == ByteOrder::Big;
        let u16s = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        let u32s = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        let u64s = |v: u64| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        match self {
            Value::Ascii(text) => {
                let mut bytes = text.clone().into_bytes();
                bytes.push(0);
                (2, bytes.len() as u64, bytes)
            }
            Value::Short(v) => (3, v.len() as u64, v.iter().flat_map(|x| u16s(*x)).collect()),
            Value::Long(v) => (4, v.len() as u64, v.iter().flat_map(|x| u32s(*x)).collect()),
            Value::Long8(v) => (16, v.len() as u64, v.iter().flat_map(|x| u64s(*x)).collect()),
            Value::Rational(n, d) => (5, 1, [u32s(*n), u32s(*d)].concat()),
            Value::Bytes(b) => (7, b.len() as u64, b.clone()),
            Value::Double(v) => (12, 1, u64s(v.to_bits()).to_vec()),
        }
    }
}

/// A directory encoded for one position in the file, with the positions of its values and its link.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The directory, followed by the values that do not fit their entries.
    pub bytes: Vec<u8>,
    /// Position in the file of the link to the next directory.
    pub link_at: u64,
    /// Tag and position in the file of each value stored outside its entry.
    pub values_at: Vec<(u16, u64)>,
}

/// Encodes a directory for position `at`, followed by its values.
pub(crate) fn encode(tags: &[(u16, Value)], at: u64, next: u64, order: ByteOrder, big: bool) -> Encoded {
    let mut tags: Vec<&(u16, Value)> = tags.iter().collect();
    tags.sort_by_key(|t| t.0);
    let be = order == ByteOrder::Big;
    let word = |v: u64, n: usize| -> Vec<u8> {
        if be { v.to_be_bytes()[8 - n..].to_vec() } else { v.to_le_bytes()[..n].to_vec() }
    };
    let (count_len, entry_len, offset_len) = if big { (8, 20, 8) } else { (2, 12, 4) };
    let body_len = count_len + entry_len * tags.len() + offset_len;
    let mut values_from = at + body_len as u64;
    values_from += values_from % 2;
    let mut bytes = word(tags.len() as u64, count_len);
    let mut outside: Vec<u8> = Vec::new();
    let mut values_at = Vec::new();
    for (tag, value) in tags {
        let (kind, count, raw) = value.encoded(order);
        bytes.extend(word(u64::from(*tag), 2));
        bytes.extend(word(u64::from(kind), 2));
        bytes.extend(word(count, offset_len));
        if raw.len() <= offset_len {
            bytes.extend(&raw);
            bytes.extend(std::iter::repeat_n(0, offset_len - raw.len()));
        } else {
            let place = values_from + outside.len() as u64;
            values_at.push((*tag, place));
            bytes.extend(word(place, offset_len));
            outside.extend(&raw);
            if outside.len() % 2 == 1 {
                outside.push(0);
            }
        }
    }
    let link_at = at + bytes.len() as u64;
    bytes.extend(word(next, offset_len));
    bytes.resize((values_from - at) as usize, 0);
    bytes.extend(outside);
    Encoded { bytes, link_at, values_at }
}

/// A positive number as a fraction of two 32-bit integers, exact if possible; 0/1 for other numbers.
pub(crate) fn fraction(value: f64) -> (u32, u32) {
    const MAX_PART: f64 = u32::MAX as f64;
    if !(value.is_finite() && value > 0.0) {
        return (0, 1);
    }
    if value >= MAX_PART {
        return (u32::MAX, 1);
    }
    let (mut n, mut d) = ((1.0, value.floor()), (0.0, 1.0));
    let mut rest = value - value.floor();
    while rest > 1e-12 && (n.1 / d.1 - value).abs() > value * 1e-13 {
        let inverse = 1.0 / rest;
        let whole = inverse.floor();
        let (next_n, next_d) = (whole * n.1 + n.0, whole * d.1 + d.0);
        if next_n > MAX_PART || next_d > MAX_PART {
            break;
        }
        n = (n.1, next_n);
        d = (d.1, next_d);
        rest = inverse - whole;
    }
    (n.1 as u32, d.1 as u32)
}
