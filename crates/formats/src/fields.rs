//! Numbers at positions of a header, in the byte order of its file.

use crate::{error::Fault, meta::ByteOrder};

/// Bytes of a header or record with their byte order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    /// The bytes; positions of fields count from their start.
    pub bytes: &'a [u8],
    /// Byte order of numbers of several bytes.
    pub order: ByteOrder,
}

impl<'a> Fields<'a> {
    /// Reads fields of these bytes as little-endian numbers.
    pub fn little(bytes: &'a [u8]) -> Self {
        Self { bytes, order: ByteOrder::Little }
    }

    /// Reads fields of these bytes as big-endian numbers.
    pub fn big(bytes: &'a [u8]) -> Self {
        Self { bytes, order: ByteOrder::Big }
    }

    /// `count` bytes from position `at` on.
    pub fn slice(&self, at: usize, count: usize) -> Result<&'a [u8], Fault> {
        at.checked_add(count)
            .and_then(|end| self.bytes.get(at..end))
            .ok_or_else(|| Fault::malformed(format!("a header ends before byte {}", at.saturating_add(count))))
    }

    fn take<const N: usize>(&self, at: usize) -> Result<[u8; N], Fault> {
        let mut taken = [0; N];
        taken.copy_from_slice(self.slice(at, N)?);
        Ok(taken)
    }

    /// Returns the byte at offset `at`.
    pub fn u8(&self, at: usize) -> Result<u8, Fault> {
        Ok(self.take::<1>(at)?[0])
    }

    /// The 16-bit unsigned integer at `at`.
    pub fn u16(&self, at: usize) -> Result<u16, Fault> {
        Ok(self.order.u16(self.take(at)?))
    }

    /// The 16-bit signed integer at `at`.
    pub fn i16(&self, at: usize) -> Result<i16, Fault> {
        Ok(self.u16(at)?.cast_signed())
    }

    /// The 32-bit unsigned integer at `at`.
    pub fn u32(&self, at: usize) -> Result<u32, Fault> {
        Ok(self.order.u32(self.take(at)?))
    }

    /// The 32-bit signed integer at `at`.
    pub fn i32(&self, at: usize) -> Result<i32, Fault> {
        Ok(self.u32(at)?.cast_signed())
    }

    /// The 64-bit unsigned integer at `at`.
    pub fn u64(&self, at: usize) -> Result<u64, Fault> {
        Ok(self.order.u64(self.take(at)?))
    }

    /// The 64-bit signed integer at `at`.
    pub fn i64(&self, at: usize) -> Result<i64, Fault> {
        Ok(self.u64(at)?.cast_signed())
    }

    /// The 32-bit float at `at`.
    pub fn f32(&self, at: usize) -> Result<f32, Fault> {
        Ok(f32::from_bits(self.u32(at)?))
    }

    /// The 64-bit float at `at`.
    pub fn f64(&self, at: usize) -> Result<f64, Fault> {
        Ok(f64::from_bits(self.u64(at)?))
    }
}
