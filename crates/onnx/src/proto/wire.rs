//! Protobuf's wire format: tags, varints and length-delimited fields, with bounds checks.

use cytoscope_graph::{GraphError, Result};

/// The raw value of one field.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Raw<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Iterates over the fields of one message.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { bytes, what }
    }

    fn error(&self, how: &str) -> GraphError {
        GraphError::malformed(format!("protobuf message {}: {how}", self.what))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for (index, &byte) in self.bytes.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.bytes = self.bytes.get(index + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(self.error("an unterminated number"))
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        match self.bytes.split_at_checked(n) {
            Some((head, rest)) => {
                self.bytes = rest;
                Ok(head)
            }
            None => Err(self.error("a field exceeds its message")),
        }
    }

    /// Returns the next field's number and value, or `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Raw<'a>)>> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = u32::try_from(tag >> 3).map_err(|_| self.error("a field number that is too large"))?;
        if field == 0 {
            return Err(self.error("field number 0"));
        }
        let raw = match tag & 7 {
            0 => Raw::Varint(self.varint()?),
            1 => Raw::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().unwrap_or_default())),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| self.error("a length that is too large"))?;
                Raw::Bytes(self.take(length)?)
            }
            5 => Raw::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().unwrap_or_default())),
            other => return Err(self.error(&format!("wire type {other}"))),
        };
        Ok(Some((field, raw)))
    }

    fn wrong<T>(&self, field: u32) -> Result<T> {
        Err(self.error(&format!("field {field} has the wrong wire type")))
    }

    pub(crate) fn int(&self, field: u32, raw: Raw<'a>) -> Result<i64> {
        if let Raw::Varint(v) = raw { Ok(v as i64) } else { self.wrong(field) }
    }

    pub(crate) fn float(&self, field: u32, raw: Raw<'a>) -> Result<f32> {
        if let Raw::Fixed32(v) = raw { Ok(f32::from_bits(v)) } else { self.wrong(field) }
    }

    pub(crate) fn bytes(&self, field: u32, raw: Raw<'a>) -> Result<&'a [u8]> {
        if let Raw::Bytes(v) = raw { Ok(v) } else { self.wrong(field) }
    }

    pub(crate) fn text(&self, field: u32, raw: Raw<'a>) -> Result<&'a str> {
        std::str::from_utf8(self.bytes(field, raw)?).map_err(|_| self.error(&format!("field {field} is not UTF-8")))
    }

    /// Appends a repeated integer, packed or not.
    pub(crate) fn ints(&self, field: u32, raw: Raw<'a>, into: &mut Vec<i64>) -> Result<()> {
        match raw {
            Raw::Varint(v) => into.push(v as i64),
            Raw::Bytes(bytes) => {
                let mut inner = Reader::new(bytes, self.what);
                while !inner.bytes.is_empty() {
                    into.push(inner.varint()? as i64);
                }
            }
            _ => return self.wrong(field),
        }
        Ok(())
    }

    /// Appends a repeated float, packed or not.
    pub(crate) fn floats(&self, field: u32, raw: Raw<'a>, into: &mut Vec<f32>) -> Result<()> {
        match raw {
            Raw::Fixed32(v) => into.push(f32::from_bits(v)),
            Raw::Bytes(bytes) if bytes.len() % 4 == 0 => {
                into.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap_or_default())));
            }
            _ => return self.wrong(field),
        }
        Ok(())
    }

    /// Appends a repeated double, packed or not.
    pub(crate) fn doubles(&self, field: u32, raw: Raw<'a>, into: &mut Vec<f64>) -> Result<()> {
        match raw {
            Raw::Fixed64(v) => into.push(f64::from_bits(v)),
            Raw::Bytes(bytes) if bytes.len() % 8 == 0 => {
                into.extend(bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap_or_default())));
            }
            _ => return self.wrong(field),
        }
        Ok(())
    }
}

/// Builds one message.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    pub(crate) fn int(&mut self, field: u32, value: i64) {
        self.varint(u64::from(field) << 3);
        self.varint(value as u64);
    }

    pub(crate) fn float(&mut self, field: u32, value: f32) {
        self.varint(u64::from(field) << 3 | 5);
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.bytes.extend(value);
    }

    pub(crate) fn text(&mut self, field: u32, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    pub(crate) fn message(&mut self, field: u32, build: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        build(&mut inner);
        self.bytes(field, &inner.bytes);
    }
}
