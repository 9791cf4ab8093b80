//! Filters of the Python package numcodecs that map samples to samples. The samples are decoded to the same values as by
//! numcodecs.

use super::numcodecs;
use crate::{error::Fault, meta::ByteOrder};
use cytoscope_volume::DType;
use half::f16;
use serde_json::{Map, Value};

/// The type of samples before or after a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SampleType {
    pub dtype: DType,
    pub order: ByteOrder,
}

impl SampleType {
    /// Bytes of a sample.
    fn size(self) -> usize {
        self.dtype.size_bytes()
    }

    /// Whether the bytes of samples of both types mean the same.
    fn is(self, other: Self) -> bool {
        self.dtype == other.dtype && (self.order == other.order || self.size() == 1)
    }
}

/// How the types of samples are stated in the settings of filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TypeNames {
    /// With their byte order, as in Zarr 2.
    WithOrder,
    /// All samples have the byte order that the codec `bytes` states, as in Zarr 3.
    OfChunk,
}

/// A filter: samples of the type `decoded` are encoded to samples of the type `stored`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Filter {
    name: &'static str,
    kind: Kind,
    decoded: SampleType,
    stored: SampleType,
}

/// How the samples are decoded.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// They are converted to another type.
    Cast,
    /// All but the first one are differences from the one before.
    Delta,
    /// They are divided by `scale`, and `offset` is added.
    ScaleOffset { scale: f64, offset: f64 },
    /// They are bits, the first one in the most significant bit, after a byte with the number of unused bits at the end.
    PackBits,
}

/// Largest number of unused bits at the end of packed bits.
const MAX_UNUSED_BITS: u8 = 7;
const NEXT_STEP: &str = "write it again without filters";

impl Filter {
    /// Returns the filter with this name, which ends in the name that numcodecs gives it, and these settings, for samples of
    /// the type `decoded`; `None` if the name is not that of a filter.
    ///
    /// # Errors
    /// [`Fault::Unsupported`] for types that the filter cannot decode exactly, [`Fault::Malformed`] for missing settings.
    pub fn parse(
        name: &str,
        settings: &Map<String, Value>,
        decoded: SampleType,
        names: TypeNames,
    ) -> Result<Option<Self>, Fault> {
        let number = |key: &str| {
            let number = settings.get(key).and_then(Value::as_f64);
            number.ok_or_else(|| Fault::malformed(format!("its filter {name:?} has no {key}")))
        };
        let id = match name.strip_prefix("numcodecs.") {
            Some(id) => id,
            // Zarr 3 has its own codec "packbits", which stores bits in another way.
            None if names == TypeNames::WithOrder || name == "bitround" => name,
            None => return Ok(None),
        };
        let (id, kind, from, to) = match id {
            "astype" => ("astype", Kind::Cast, "decode_dtype", "encode_dtype"),
            "quantize" => ("quantize", Kind::Cast, "dtype", "astype"),
            // The precision is reduced when samples are encoded. They are stored as they are.
            "bitround" => return Ok(Some(Self { name: "bitround", kind: Kind::Cast, decoded, stored: decoded })),
            "delta" => ("delta", Kind::Delta, "dtype", "astype"),
            "fixedscaleoffset" => {
                let (scale, offset) = (number("scale")?, number("offset")?);
                if scale == 0.0 {
                    return Err(Fault::malformed(format!("the scale of its filter {name:?} is 0")));
                }
                ("fixedscaleoffset", Kind::ScaleOffset { scale, offset }, "dtype", "astype")
            }
            "packbits" => {
                let stored = SampleType { dtype: DType::U8, order: decoded.order };
                if !decoded.is(stored) {
                    let problem = format!("its filter {name:?} of samples that are not boolean is not supported");
                    return Err(Fault::unsupported(problem, NEXT_STEP));
                }
                return Ok(Some(Self { name: "packbits", kind: Kind::PackBits, decoded, stored }));
            }
            _ => return Ok(None),
        };
        if let Some(text) = settings.get(from).and_then(Value::as_str)
            && !sample_type(text, decoded, names)?.is(decoded)
        {
            let problem = format!("its filter {name:?} reads the samples as another type ({text:?})");
            return Err(Fault::unsupported(problem, NEXT_STEP));
        }
        let stored = match settings.get(to).and_then(Value::as_str) {
            Some(text) => sample_type(text, decoded, names)?,
            None => decoded,
        };
        if kind == Kind::Delta && !has_exact_sums(decoded.dtype, stored.dtype) {
            let problem =
                format!("its filter {name:?} stores {} as {}, which is not supported", decoded.dtype, stored.dtype);
            return Err(Fault::unsupported(problem, NEXT_STEP));
        }
        Ok(Some(Self { name: id, kind, decoded, stored }))
    }

    /// The type of the samples that are stored.
    pub fn stored(self) -> SampleType {
        self.stored
    }

    /// Returns the name of the filter in messages.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Number of bytes that are stored for decoded bytes.
    pub fn stored_bytes(self, decoded_bytes: usize) -> usize {
        match self.kind {
            Kind::PackBits => decoded_bytes.div_ceil(8).saturating_add(1),
            _ => (decoded_bytes / self.decoded.size()).saturating_mul(self.stored.size()),
        }
    }

    /// Decodes samples to at most `max_bytes`, or states why they cannot be decoded.
    pub fn decode(self, stored: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>, String> {
        if self.kind == Kind::PackBits {
            return unpacked(&stored, max_bytes);
        }
        let size = self.stored.size();
        if !stored.len().is_multiple_of(size) {
            return Err("it ends within a sample".to_owned());
        }
        let bytes = (stored.len() / size).saturating_mul(self.decoded.size());
        if bytes > max_bytes {
            return Err(format!("it has {bytes} bytes; {max_bytes} were expected"));
        }
        match self.kind {
            Kind::Delta if self.decoded.dtype.is_float() => {
                let mut sum = -0.0;
                self.mapped(&stored, |difference| {
                    sum = rounded(sum + difference.float(), self.decoded.dtype);
                    Number::Float(sum)
                })
            }
            Kind::Delta => {
                // Sums are modulo the type, so differences may be converted first.
                let SampleType { dtype, order } = self.decoded;
                let differences = self.converted(stored)?;
                numcodecs::summed(differences, dtype.size_bytes(), order)
                    .ok_or_else(|| "it ends within a sample".to_owned())
            }
            Kind::ScaleOffset { scale, offset } => {
                // As in numcodecs, integers are decoded with 64-bit floats, and floats in their own type.
                let dtype = if self.stored.dtype.is_float() { self.stored.dtype } else { DType::F64 };
                let (scale, offset) = (rounded(scale, dtype), rounded(offset, dtype));
                self.mapped(&stored, |sample| {
                    Number::Float(rounded(rounded(sample.float() / scale, dtype) + offset, dtype))
                })
            }
            Kind::Cast | Kind::PackBits => self.converted(stored),
        }
    }

    /// Converts samples from the stored to the decoded type.
    fn converted(self, stored: Vec<u8>) -> Result<Vec<u8>, String> {
        if self.stored.is(self.decoded) { Ok(stored) } else { self.mapped(&stored, |sample| sample) }
    }

    /// Maps samples of the stored type to those of the decoded type.
    fn mapped(self, stored: &[u8], mut map: impl FnMut(Number) -> Number) -> Result<Vec<u8>, String> {
        let size = self.decoded.size();
        let mut out = Vec::with_capacity(stored.len() / self.stored.size() * size);
        for sample in stored.chunks_exact(self.stored.size()) {
            let Some(bits) = bits(map(number(sample, self.stored)), self.decoded.dtype) else {
                return Err(format!("a sample of it is not a value of the type {}", self.decoded.dtype));
            };
            let digits = bits.to_le_bytes().into_iter().take(size);
            match self.decoded.order {
                ByteOrder::Little => out.extend(digits),
                ByteOrder::Big => out.extend(digits.rev()),
            }
        }
        Ok(out)
    }
}

/// The type with a name such as `<u2` or `float32` in the settings of a filter.
fn sample_type(text: &str, chunk: SampleType, names: TypeNames) -> Result<SampleType, Fault> {
    let unsupported = |problem: String| Fault::unsupported(problem, NEXT_STEP);
    let order = if text.starts_with('>') { ByteOrder::Big } else { ByteOrder::Little };
    let Some(dtype) = dtype(text.trim_start_matches(['<', '>', '|', '='])) else {
        return Err(unsupported(format!("a filter stores samples of the type {text:?}, which is not supported")));
    };
    match names {
        TypeNames::WithOrder => Ok(SampleType { dtype, order }),
        TypeNames::OfChunk if text.starts_with('>') && chunk.order == ByteOrder::Little && dtype.size_bytes() > 1 => {
            Err(unsupported(format!(
                "a filter changes the byte order of the samples ({text:?}), which is not supported"
            )))
        }
        TypeNames::OfChunk => Ok(SampleType { dtype, order: chunk.order }),
    }
}

/// The type with a name of NumPy, such as `u2` or `uint16`.
fn dtype(name: &str) -> Option<DType> {
    match name {
        "bool" => Some(DType::U8),
        name => numpy_dtype(name).or_else(|| name.parse().ok()),
    }
}

/// The type with a code of NumPy without the byte order, such as `u2`.
pub(super) fn numpy_dtype(code: &str) -> Option<DType> {
    Some(match code {
        "b1" | "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        _ => return None,
    })
}

/// Whether sums of stored differences do not depend on how a program computes them.
fn has_exact_sums(decoded: DType, stored: DType) -> bool {
    match decoded.is_float() {
        true => stored.is_float() && stored.size_bytes() <= decoded.size_bytes(),
        false => !stored.is_float(),
    }
}

/// A sample of any type.
#[derive(Debug, Clone, Copy)]
enum Number {
    Whole(i128),
    Float(f64),
}

impl Number {
    fn float(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Float(float) => float,
        }
    }
}

/// The sample with these bytes.
fn number(bytes: &[u8], of: SampleType) -> Number {
    let from_low = |value: u64, byte: &u8| (value << 8) | u64::from(*byte);
    let bits = match of.order {
        ByteOrder::Little => bytes.iter().rev().fold(0, from_low),
        ByteOrder::Big => bytes.iter().fold(0, from_low),
    };
    match of.dtype {
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => Number::Whole(i128::from(bits)),
        DType::I8 => Number::Whole(i128::from(bits as i8)),
        DType::I16 => Number::Whole(i128::from(bits as i16)),
        DType::I32 => Number::Whole(i128::from(bits as i32)),
        DType::I64 => Number::Whole(i128::from(bits as i64)),
        DType::F16 => Number::Float(f16::from_bits(bits as u16).to_f64()),
        DType::F32 => Number::Float(f64::from(f32::from_bits(bits as u32))),
        DType::F64 => Number::Float(f64::from_bits(bits)),
    }
}

/// The bits of a number as a sample of a type; `None` for a float that is not in the range of an integer type. Whole numbers
/// are taken modulo the type, as by NumPy.
fn bits(number: Number, dtype: DType) -> Option<u64> {
    Some(match (dtype, number) {
        (DType::F64, number) => number.float().to_bits(),
        (DType::F32, Number::Whole(whole)) => u64::from((whole as f32).to_bits()),
        (DType::F32, Number::Float(float)) => u64::from((float as f32).to_bits()),
        (DType::F16, number) => u64::from(f16::from_f64(number.float()).to_bits()),
        (_, Number::Whole(whole)) => whole as u64,
        (_, Number::Float(float)) => {
            let bits = 8 * dtype.size_bytes() as u32;
            let is_signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
            let low: i128 = if is_signed { -(1 << (bits - 1)) } else { 0 };
            // The first value above the range, which is exact as a float.
            let end: i128 = low + (1 << bits);
            let whole = float.trunc();
            if !(low as f64..end as f64).contains(&whole) {
                return None;
            }
            whole as i128 as u64
        }
    })
}

/// The nearest value of a float type.
fn rounded(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::F32 => f64::from(value as f32),
        _ => value,
    }
}

/// One byte, 0 or 1, for each packed bit.
fn unpacked(stored: &[u8], max_bytes: usize) -> Result<Vec<u8>, String> {
    let Some((unused, packed)) = stored.split_first() else { return Err("it is empty".to_owned()) };
    let count = packed.len().saturating_mul(8).checked_sub(usize::from(*unused));
    let Some(count) = count.filter(|_| *unused <= MAX_UNUSED_BITS) else {
        return Err(format!("it states {unused} unused bits"));
    };
    if count > max_bytes {
        return Err(format!("it has {count} bits; {max_bytes} were expected"));
    }
    Ok(packed.iter().flat_map(|byte| (0..8).rev().map(move |bit| (byte >> bit) & 1)).take(count).collect())
}
