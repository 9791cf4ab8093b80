//! NumPy's `.npy` format, versions 1.0 to 3.0: its header, a Python dictionary with exactly the keys `descr`,
//! `fortran_order` and `shape`, and the position of its samples.
//!
//! Format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>. The readers of images and of
//! tensors both use this module, so that they interpret a file in the same way.

mod array;

pub use array::{ArrayLayout, SampleType, header_bytes, parse_array, read_layout};

/// First bytes of every `.npy` file.
pub const MAGIC: &[u8] = b"\x93NUMPY";
/// Number of bytes before the header text, in the longest version.
pub const PREFIX_BYTES: usize = 12;
/// Largest header text that is read, in bytes: the limit of version 1.0. Arrays of numbers need about 100, and NumPy
/// itself reads at most 10,000 by default.
pub const MAX_HEADER_BYTES: usize = 65_535;
/// Deepest nesting of lists and tuples in the header. Record types are nested, arrays of numbers have one level.
const MAX_DEPTH: usize = 16;

/// Why a header was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The first bytes are not those of an NPY file.
    #[error("the file does not begin with the signature of an .npy file")]
    Magic,
    /// The version is none of 1.0, 2.0 and 3.0.
    #[error("its .npy version is {0}.{1}; versions 1.0, 2.0 and 3.0 are supported")]
    Version(u8, u8),
    /// The header is longer than [`MAX_HEADER_BYTES`].
    #[error("the .npy header has {0} bytes, more than the limit of {MAX_HEADER_BYTES}")]
    TooLong(u64),
    /// The file ends inside the header.
    #[error("the file ends inside its .npy header")]
    CutShort,
    /// The header is not valid UTF-8, which version 3.0 requires.
    #[error("the .npy header is not UTF-8 text")]
    NotText,
    /// The header is not a Python dictionary.
    #[error("the .npy header is not a Python dictionary: {expected} was expected at byte {at}")]
    Syntax {
        /// What was expected.
        expected: &'static str,
        /// Position in the header text, in bytes.
        at: usize,
    },
    /// A key that the format does not define.
    #[error("the .npy header has the key {0:?}; exactly descr, fortran_order and shape are allowed")]
    UnknownKey(String),
    /// A key that occurs twice.
    #[error("the .npy header has the key {0:?} twice")]
    DuplicateKey(String),
    /// The header lacks this key.
    #[error("the .npy header has no {0:?}")]
    MissingKey(&'static str),
    /// A value of the wrong type: the key, and what was expected.
    #[error("{0:?} in the .npy header is not {1}")]
    WrongValue(&'static str, &'static str),
    /// The samples are records or objects.
    #[error("its samples are records, not numbers")]
    Records,
    /// The samples are of a type that is not supported: NumPy's code.
    #[error("its sample type {0:?} is not supported")]
    SampleType(String),
    /// The file has fewer samples than the shape requires.
    #[error("an array of shape {shape:?} does not fit into the file's {bytes} bytes of data")]
    DoesNotFit {
        /// Number of samples along each axis.
        shape: Vec<usize>,
        /// Number of bytes after the header.
        bytes: u64,
    },
}

/// Type, order and shape of an array, from the header of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// NumPy's type code of the samples without byte order: `u2`, `f4`, `b1`.
    pub code: String,
    /// Whether samples are stored with the most significant byte first.
    pub big_endian: bool,
    /// Whether the first axis instead of the last varies fastest in the file.
    pub fortran_order: bool,
    /// Number of samples along each axis.
    pub shape: Vec<usize>,
}

/// Version of a file, and position of its header text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Major version of the format: 1, 2 or 3.
    pub version: u8,
    /// Position of the header text in the file, in bytes.
    pub header_at: usize,
    /// Length of the header text in bytes; the samples follow it.
    pub header_bytes: usize,
}

/// Parses the first [`PREFIX_BYTES`] bytes of a file (or all bytes of a shorter one).
///
/// # Errors
/// [`HeaderError`] for another format, another version, or a header longer than [`MAX_HEADER_BYTES`].
pub fn prefix(bytes: &[u8]) -> Result<Prefix, HeaderError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(HeaderError::Magic)?;
    let (version, header_at, stated) = match rest {
        [1, 0, a, b, ..] => (1, 10, u64::from(u16::from_le_bytes([*a, *b]))),
        [v @ (2 | 3), 0, a, b, c, d, ..] => (*v, 12, u64::from(u32::from_le_bytes([*a, *b, *c, *d]))),
        [1..=3, 0, ..] | [_] | [] => return Err(HeaderError::CutShort),
        [major, minor, ..] => return Err(HeaderError::Version(*major, *minor)),
    };
    let header_bytes =
        usize::try_from(stated).ok().filter(|n| *n <= MAX_HEADER_BYTES).ok_or(HeaderError::TooLong(stated))?;
    Ok(Prefix { version, header_at, header_bytes })
}

/// Returns whether the first bytes of a file are those of an `.npy` file with Python objects instead of an array, such as
/// Cellpose's `_seg.npy`. `false` if the header is longer than `head`; NumPy's for objects have 128 bytes.
pub fn holds_objects(head: &[u8]) -> bool {
    let Ok(prefix) = prefix(head) else { return false };
    let text = head.get(prefix.header_at..).and_then(|rest| rest.get(..prefix.header_bytes)).unwrap_or_default();
    parse(prefix.version, text).is_ok_and(|header| header.code == "O")
}

/// Parses the header text of a file with the version from [`Prefix`].
///
/// Kind of quotes, spacing, order of the keys and trailing commas do not matter, as in Python.
///
/// # Errors
/// [`HeaderError`] if the text is not a dictionary, or a key is unknown, missing, duplicate or has a value of the wrong
/// type.
pub fn parse(version: u8, header: &[u8]) -> Result<Header, HeaderError> {
    // Versions 1.0 and 2.0 are Latin-1, but only field names of records contain non-ASCII characters.
    if version >= 3 && std::str::from_utf8(header).is_err() {
        return Err(HeaderError::NotText);
    }
    let mut parser = Parser { bytes: header, at: 0 };
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    parser.expect(b'{', "{")?;
    while !parser.take(b'}') {
        let key = parser.string()?;
        parser.expect(b':', "a colon")?;
        let value = parser.value(0)?;
        let slot = match key.as_str() {
            "descr" => &mut descr,
            "fortran_order" => &mut fortran_order,
            "shape" => &mut shape,
            _ => return Err(HeaderError::UnknownKey(key)),
        };
        if slot.replace(value).is_some() {
            return Err(HeaderError::DuplicateKey(key));
        }
        if !parser.take(b',') {
            parser.expect(b'}', "a comma or }")?;
            break;
        }
    }
    parser.end()?;
    let (code, big_endian) = match descr.ok_or(HeaderError::MissingKey("descr"))? {
        Value::Text(text) => split_order(&text),
        Value::List | Value::Tuple(_) => return Err(HeaderError::Records),
        _ => return Err(HeaderError::WrongValue("descr", "the name of a sample type")),
    };
    let Value::Bool(fortran_order) = fortran_order.ok_or(HeaderError::MissingKey("fortran_order"))? else {
        return Err(HeaderError::WrongValue("fortran_order", "True or False"));
    };
    let shape = match shape.ok_or(HeaderError::MissingKey("shape"))? {
        Value::Tuple(Some(extents)) => extents,
        _ => return Err(HeaderError::WrongValue("shape", "a tuple of whole numbers such as (3, 4)")),
    };
    Ok(Header { code, big_endian, fortran_order, shape })
}

/// Splits `>u2` into `u2` and whether it is big-endian. No mark, `=` and `|` mean the native order, as in NumPy.
fn split_order(descr: &str) -> (String, bool) {
    match descr.split_at_checked(1) {
        Some(("<", code)) => (code.to_owned(), false),
        Some((">", code)) => (code.to_owned(), true),
        Some(("=" | "|", code)) => (code.to_owned(), cfg!(target_endian = "big")),
        _ => (descr.to_owned(), cfg!(target_endian = "big")),
    }
}

/// A Python literal that can occur in a header.
enum Value {
    Text(String),
    Bool(bool),
    Number(usize),
    None,
    /// A tuple, with its elements if all are whole numbers.
    Tuple(Option<Vec<usize>>),
    List,
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    /// Skips white space and returns the next byte without consuming it.
    fn peek(&mut self) -> Option<u8> {
        while self.bytes.get(self.at).is_some_and(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n' | b'\x0c')) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn syntax(&self, expected: &'static str) -> HeaderError {
        HeaderError::Syntax { expected, at: self.at }
    }

    fn expect(&mut self, byte: u8, name: &'static str) -> Result<(), HeaderError> {
        if self.take(byte) { Ok(()) } else { Err(self.syntax(name)) }
    }

    fn end(&mut self) -> Result<(), HeaderError> {
        if self.peek().is_none() { Ok(()) } else { Err(self.syntax("the end of the header")) }
    }

    /// A string in single or double quotes, with an optional `u` prefix as Python 2 wrote it.
    fn string(&mut self) -> Result<String, HeaderError> {
        self.take(b'u');
        let Some(quote @ (b'\'' | b'"')) = self.bytes.get(self.at).copied() else {
            return Err(self.syntax("a quoted name"));
        };
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(byte) = self.bytes.get(self.at).copied() else { return Err(self.syntax("a closing quote")) };
            match byte {
                b if b == quote => break,
                b'\n' | b'\r' => return Err(self.syntax("a closing quote")),
                // Escapes occur only in field names, which are not used: they are kept unchanged.
                b'\\' => {
                    text.push('\\');
                    self.at += 1;
                    text.extend(self.bytes.get(self.at).map(|b| char::from(*b)));
                }
                b => text.push(char::from(b)),
            }
            self.at += 1;
        }
        self.at += 1;
        Ok(text)
    }

    fn value(&mut self, depth: usize) -> Result<Value, HeaderError> {
        if depth > MAX_DEPTH {
            return Err(self.syntax("less nesting"));
        }
        match self.peek() {
            Some(b'\'' | b'"' | b'u') => Ok(Value::Text(self.string()?)),
            Some(b'0'..=b'9') => Ok(Value::Number(self.number()?)),
            Some(b'(') => self.tuple(depth),
            Some(b'[') => {
                self.at += 1;
                while !self.take(b']') {
                    self.value(depth + 1)?;
                    if !self.take(b',') {
                        self.expect(b']', "a comma or ]")?;
                        break;
                    }
                }
                Ok(Value::List)
            }
            _ if self.word("True") => Ok(Value::Bool(true)),
            _ if self.word("False") => Ok(Value::Bool(false)),
            _ if self.word("None") => Ok(Value::None),
            _ => Err(self.syntax("a value")),
        }
    }

    /// A tuple such as `(1, 2)`. One element without a comma is a value in parentheses, not a tuple.
    fn tuple(&mut self, depth: usize) -> Result<Value, HeaderError> {
        self.at += 1;
        let mut numbers = Some(Vec::new());
        let mut count = 0;
        while !self.take(b')') {
            let value = self.value(depth + 1)?;
            count += 1;
            match (&mut numbers, &value) {
                (Some(list), Value::Number(n)) => list.push(*n),
                _ => numbers = None,
            }
            if !self.take(b',') {
                self.expect(b')', "a comma or )")?;
                return Ok(if count == 1 { value } else { Value::Tuple(numbers) });
            }
        }
        Ok(Value::Tuple(numbers))
    }

    /// A whole number, with an optional `L` suffix as Python 2 wrote it.
    fn number(&mut self) -> Result<usize, HeaderError> {
        let digits = self.bytes.get(self.at..).unwrap_or_default();
        let digits = digits.split(|b| !b.is_ascii_digit()).next().unwrap_or_default();
        let number = match digits {
            [b'0', _, ..] => None,
            _ => std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok()),
        };
        let number = number.ok_or_else(|| self.syntax("a number that fits in memory"))?;
        self.at += digits.len();
        if self.bytes.get(self.at) == Some(&b'L') {
            self.at += 1;
        }
        Ok(number)
    }

    fn word(&mut self, word: &str) -> bool {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(after) = rest.strip_prefix(word.as_bytes()) else { return false };
        let whole = !after.first().is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        self.at += if whole { word.len() } else { 0 };
        whole
    }
}

#[cfg(test)]
#[path = "npy_tests.rs"]
mod tests;
