//! Arrays of numbers in `.npy` files: the type, position and size of their samples, and the header for writing them.

use super::{Header, HeaderError, MAGIC, PREFIX_BYTES, parse, prefix};

/// Type of the samples of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it: kind and bits")]
pub enum SampleType {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F16,
    F32,
    F64,
}

impl SampleType {
    /// Every type with NumPy's code, which ends in the number of bytes.
    const CODES: [(Self, &'static str); 12] = [
        (Self::Bool, "b1"),
        (Self::U8, "u1"),
        (Self::U16, "u2"),
        (Self::U32, "u4"),
        (Self::U64, "u8"),
        (Self::I8, "i1"),
        (Self::I16, "i2"),
        (Self::I32, "i4"),
        (Self::I64, "i8"),
        (Self::F16, "f2"),
        (Self::F32, "f4"),
        (Self::F64, "f8"),
    ];

    /// Returns the type with NumPy's code, such as `u2`.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::CODES.into_iter().find(|(_, known)| *known == code).map(|(sample, _)| sample)
    }

    /// Returns NumPy's code of the type.
    fn code(self) -> &'static str {
        Self::CODES.into_iter().find(|(sample, _)| *sample == self).map_or("u1", |(_, code)| code)
    }

    /// Returns the size of one sample in bytes.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// An array in a file, which contains all its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayLayout {
    /// Type, order and shape, as the file states them.
    pub header: Header,
    /// Type of the samples, without byte order.
    pub sample: SampleType,
    /// Position of the first sample in the file, in bytes.
    pub data_at: u64,
    /// Size of all samples in bytes.
    pub data_bytes: u64,
}

/// Reads the header of a file of `len` bytes. `read_at` fills a slice with the bytes from a position on; it is called
/// for positions inside the file only, with slices of at most [`super::MAX_HEADER_BYTES`].
///
/// # Errors
/// [`HeaderError`] if the header is malformed, the samples are not numbers, or the file is too short for them; the
/// errors of `read_at`.
pub fn read_layout<E: From<HeaderError>>(
    len: u64,
    mut read_at: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<ArrayLayout, E> {
    let mut head = [0u8; PREFIX_BYTES];
    let have = len.min(PREFIX_BYTES as u64) as usize;
    let head = head.get_mut(..have).unwrap_or_default();
    read_at(0, head)?;
    let prefix = prefix(head)?;
    let data_at = (prefix.header_at + prefix.header_bytes) as u64;
    if data_at > len {
        return Err(HeaderError::CutShort.into());
    }
    let mut text = vec![0; prefix.header_bytes];
    read_at(prefix.header_at as u64, &mut text)?;
    let header = parse(prefix.version, &text)?;
    let Some(sample) = SampleType::from_code(&header.code) else {
        return Err(HeaderError::SampleType(header.code).into());
    };
    let count = header.shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent));
    let size = count.and_then(|n| n.checked_mul(sample.size_bytes())).map(|n| n as u64);
    match size {
        Some(data_bytes) if data_bytes <= len - data_at => Ok(ArrayLayout { header, sample, data_at, data_bytes }),
        _ => Err(HeaderError::DoesNotFit { shape: header.shape, bytes: len - data_at }.into()),
    }
}

/// Parses a whole file and returns its array with the bytes of the samples, as they are stored.
///
/// # Errors
/// Same as [`read_layout`].
pub fn parse_array(file: &[u8]) -> Result<(ArrayLayout, &[u8]), HeaderError> {
    let part = |at: u64, len: usize| file.get(usize::try_from(at).ok()?..)?.get(..len);
    let layout = read_layout::<HeaderError>(file.len() as u64, |at, into| {
        into.copy_from_slice(part(at, into.len()).ok_or(HeaderError::CutShort)?);
        Ok(())
    })?;
    let len = usize::try_from(layout.data_bytes).map_err(|_| HeaderError::CutShort)?;
    let samples = part(layout.data_at, len).ok_or(HeaderError::CutShort)?;
    Ok((layout, samples))
}

/// Returns the bytes before the samples of a little-endian array in C order: version 1.0, padded in the same way as by
/// NumPy.
pub fn header_bytes(sample: SampleType, shape: &[usize]) -> Vec<u8> {
    let order = if sample.size_bytes() == 1 { '|' } else { '<' };
    let extents: Vec<String> = shape.iter().map(usize::to_string).collect();
    let comma = if extents.len() == 1 { "," } else { "" };
    let mut text = format!(
        "{{'descr': '{order}{}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        sample.code(),
        extents.join(", ")
    );
    let before = MAGIC.len() + 4;
    let padded = (before + text.len() + 1).next_multiple_of(64) - before;
    text.extend(std::iter::repeat_n(' ', padded - text.len() - 1));
    text.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn written_headers_are_read_back_with_every_type_and_rank() {
        for (sample, code) in SampleType::CODES {
            assert!(code.ends_with(&sample.size_bytes().to_string()));
            for shape in [vec![], vec![3], vec![2, 3], vec![2, 0, 4], vec![1, 2, 3, 4, 5]] {
                let mut file = header_bytes(sample, &shape);
                assert_eq!(file.len() % 64, 0);
                let size = shape.iter().product::<usize>() * sample.size_bytes();
                file.extend(vec![7; size]);
                let (layout, samples) = parse_array(&file).unwrap();
                assert_eq!((layout.sample, &layout.header.shape), (sample, &shape));
                assert!(!layout.header.fortran_order && !layout.header.big_endian);
                assert_eq!(samples, vec![7; size]);
            }
        }
    }

    #[test]
    fn arrays_that_the_file_cannot_contain_are_refused() {
        let mut file = header_bytes(SampleType::F32, &[2, 3]);
        file.extend([0; 23]);
        let shape = vec![2, 3];
        assert_eq!(parse_array(&file).unwrap_err(), HeaderError::DoesNotFit { shape, bytes: 23 });
        for shape in [[1 << 62, 4], [usize::MAX, usize::MAX]] {
            let file = header_bytes(SampleType::F64, &shape);
            assert!(matches!(parse_array(&file), Err(HeaderError::DoesNotFit { .. })));
        }
        for len in 0..64 {
            assert!(parse_array(&file[..len]).is_err(), "{len}");
        }
        let text = b"\x93NUMPY\x01\x00\x36\x00{'descr':'<c8','fortran_order':False,'shape':(1,)}    ";
        assert_eq!(parse_array(text).unwrap_err(), HeaderError::SampleType("c8".to_owned()));
    }
}
