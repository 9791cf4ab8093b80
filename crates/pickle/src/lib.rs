//! A reader of Python's pickle format for untrusted files, limited to data: it builds values and never calls anything.
//!
//! Protocols 2 to 5 are read, with the opcodes that writers of data use
//! (<https://github.com/python/cpython/blob/main/Lib/pickletools.py>). A class or function is only a name here: the caller
//! supplies the names that it accepts, and a call of one is stored as a [`Call`] with its arguments. Memory is limited by
//! constants: numbers, lists and short texts are kept, bytes and long texts are stored as their positions in the input.
//!
//! The crate owns the format, independently of the programs that write it. It fails with a [`PickleError`]: a pickle that is malformed,
//! exceeds a limit, or names a class or function that the caller does not accept is refused.
#![forbid(unsafe_code)]

mod error;
mod input;
mod reader;

pub use error::PickleError;
pub use input::ByteSource;

use input::Input;
use reader::Reader;
use std::ops::Range;

/// Maximum number of opcodes in a pickle.
pub const MAX_OPCODES: usize = 8 << 20;
/// Maximum number of values in a pickle, of memo entries, and of items copied between containers.
pub const MAX_VALUES: usize = 2 << 20;
/// Maximum size in bytes of a text that is kept; of a longer one, the position is kept.
pub const MAX_TEXT_BYTES: u64 = 1 << 16;
/// Maximum size in bytes of all kept texts and names together.
pub const MAX_TEXTS_BYTES: u64 = 16 << 20;
/// Maximum size in bytes of the name of a module, class or function.
pub const MAX_NAME_BYTES: usize = 256;

/// Index of a value in its [`Pickle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(u32);

/// A value of a pickle. Containers hold indices, because values may be shared and may contain themselves.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Python's `None`.
    None,
    /// Python's `True` or `False`.
    Bool(bool),
    /// An integer that fits 64 bits.
    Int(i64),
    /// An integer of more than 64 bits; its value is not kept.
    LargeInt,
    /// A 64-bit float, possibly not finite.
    Float(f64),
    /// A text of at most [`MAX_TEXT_BYTES`].
    Text(String),
    /// Bytes, a text that is not UTF-8, or a text longer than [`MAX_TEXT_BYTES`]: its range in the input, in bytes.
    Bytes(Range<u64>),
    /// The items of a tuple, in order.
    Tuple(Vec<ValueId>),
    /// The items of a list, in order.
    List(Vec<ValueId>),
    /// The items of a set, in the order of the pickle; equal items are not merged.
    Set(Vec<ValueId>),
    /// Keys and values of a dictionary, in the order of the pickle; of equal keys the last one counts.
    Dict(Vec<(ValueId, ValueId)>),
    /// A class or function that the caller accepts.
    Global(Global),
    /// A call of a class or function, recorded but never executed.
    Call(Box<Call>),
    /// An object outside the pickle: the value that identifies it (`persistent_id` in Python).
    External(ValueId),
}

/// Name of a class or function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    /// Full name of the Python module, such as `numpy.core.multiarray`.
    pub module: String,
    /// Name of the class or function inside the module.
    pub name: String,
}

impl Global {
    /// Returns whether this is the class or function `name` of one of the modules.
    pub fn is(&self, modules: &[&str], name: &str) -> bool {
        self.name == name && modules.contains(&self.module.as_str())
    }
}

/// A call of a class or function, as the pickle describes it. It is not made.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The called class or function: a [`Value::Global`].
    pub function: ValueId,
    /// Positional arguments of the call, in order.
    pub arguments: Vec<ValueId>,
    /// Keys and values that the pickle sets on the result.
    pub entries: Vec<(ValueId, ValueId)>,
    /// State that the pickle passes to the result (`__setstate__` in Python).
    pub state: Option<ValueId>,
}

/// The values of a pickle, and which of them is the pickled object.
#[derive(Debug, Clone, PartialEq)]
pub struct Pickle {
    values: Vec<Value>,
    root: ValueId,
}

impl Pickle {
    /// Reads a pickle from bytes in memory; see [`Pickle::read_at`].
    ///
    /// # Errors
    /// The errors of [`Pickle::read_at`].
    pub fn read(bytes: &[u8], is_accepted: &dyn Fn(&str, &str) -> bool) -> Result<Self, PickleError> {
        Self::read_at(&bytes, 0, is_accepted)
    }

    /// Reads the pickle that begins at byte `at` of a source. Bytes after the end of the pickle are ignored.
    ///
    /// `is_accepted` decides by module and name which classes and functions the pickle may name. Containers of
    /// `collections` and `builtins` are always accepted and become [`Value::Dict`] and [`Value::Set`].
    ///
    /// # Errors
    /// [`PickleError`] if the pickle is malformed, exceeds a limit, uses an opcode or names a class or function that is
    /// not accepted, or the source cannot be read.
    pub fn read_at(
        source: &dyn ByteSource,
        at: u64,
        is_accepted: &dyn Fn(&str, &str) -> bool,
    ) -> Result<Self, PickleError> {
        let mut reader = Reader::new(Input::new(source, at), is_accepted);
        for _ in 0..MAX_OPCODES {
            if let Some(root) = reader.step()? {
                return Ok(Self { values: reader.into_values(), root });
            }
        }
        Err(PickleError::OverLimit { what: "opcodes", limit: MAX_OPCODES as u64 })
    }

    /// Returns the index of the pickled object.
    pub fn root(&self) -> ValueId {
        self.root
    }

    /// Returns a value by its index; [`Value::None`] if the index is of another pickle.
    pub fn value(&self, id: ValueId) -> &Value {
        static NONE: Value = Value::None;
        self.values.get(id.0 as usize).unwrap_or(&NONE)
    }

    /// Returns the value that a dictionary has for a text as key; `None` if `dict` is not a dictionary or lacks the key.
    pub fn entry(&self, dict: ValueId, key: &str) -> Option<ValueId> {
        let Value::Dict(entries) = self.value(dict) else { return None };
        let is_key = |id: ValueId| matches!(self.value(id), Value::Text(text) if text == key);
        entries.iter().rev().find(|(k, _)| is_key(*k)).map(|(_, value)| *value)
    }

    /// Returns the text of a [`Value::Text`]; `None` for other values.
    pub fn text(&self, id: ValueId) -> Option<&str> {
        if let Value::Text(text) = self.value(id) { Some(text) } else { None }
    }

    /// Returns the items of a [`Value::Tuple`]; `None` for other values.
    pub fn tuple(&self, id: ValueId) -> Option<&[ValueId]> {
        if let Value::Tuple(items) = self.value(id) { Some(items) } else { None }
    }

    /// Returns a [`Value::Int`] that is not negative; `None` for other values.
    pub fn count(&self, id: ValueId) -> Option<usize> {
        if let Value::Int(n) = self.value(id) { usize::try_from(*n).ok() } else { None }
    }

    /// Returns the name in a [`Value::Global`]; `None` for other values.
    pub fn global(&self, id: ValueId) -> Option<&Global> {
        if let Value::Global(global) = self.value(id) { Some(global) } else { None }
    }

    /// Returns the class or function that a [`Value::Call`] calls, and the call; `None` for other values.
    pub fn call(&self, id: ValueId) -> Option<(&Global, &Call)> {
        let Value::Call(call) = self.value(id) else { return None };
        Some((self.global(call.function)?, call))
    }
}
