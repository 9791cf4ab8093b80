//! A reader for the pickles that NumPy writes for a dictionary of arrays. It executes nothing: it knows the opcodes for
//! plain values and containers, and the four NumPy functions that rebuild arrays, types and scalars. Everything else is
//! refused.
//!
//! Opcodes: <https://github.com/python/cpython/blob/main/Lib/pickletools.py>.

use crate::{error::Fault, source::Source};
use std::collections::HashMap;

/// Largest number of opcodes of a pickle; each creates at most one value.
const MAX_OPCODES: usize = 1 << 20;
/// Longest text that is kept, in bytes; longer texts are skipped.
const MAX_TEXT_BYTES: u64 = 1 << 16;
/// Longest module or function name in bytes.
const MAX_NAME_BYTES: usize = 256;
/// Longest code of a sample type in bytes.
const MAX_CODE_BYTES: usize = 32;
/// Largest number of axes of an array.
const MAX_AXES: usize = 64;
/// Bytes that are read at once.
const WINDOW_BYTES: usize = 1 << 16;

/// Index of a value among all values of a pickle.
pub(super) type Id = usize;

/// A value. Containers refer to other values by index, so that values can be shared as in Python.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Text(String),
    /// Position and number of bytes in the file.
    Bytes(u64, u64),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Function(Function),
    /// NumPy's type code without byte order (`u2`), and whether it is big-endian.
    Type {
        code: String,
        big_endian: bool,
    },
    /// An array; `None` until its content is known.
    Array(Option<ArrayValue>),
    /// A value that is not needed: a float, a long text, a NumPy scalar.
    Other,
}

/// Content of an array.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ArrayValue {
    pub shape: Vec<usize>,
    pub code: String,
    pub big_endian: bool,
    pub fortran_order: bool,
    /// The samples ([`Value::Bytes`]), or the objects of an object array ([`Value::List`]).
    pub data: Id,
}

/// The allowed functions and classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Reconstruct,
    NdArray,
    DType,
    Scalar,
    FromBuffer,
}

impl Function {
    fn of(module: &str, name: &str) -> Result<Self, Fault> {
        Ok(match (module, name) {
            ("numpy._core.multiarray" | "numpy.core.multiarray", "_reconstruct") => Function::Reconstruct,
            ("numpy._core.multiarray" | "numpy.core.multiarray", "scalar") => Function::Scalar,
            ("numpy._core.numeric" | "numpy.core.numeric", "_frombuffer") => Function::FromBuffer,
            ("numpy", "ndarray") => Function::NdArray,
            ("numpy", "dtype") => Function::DType,
            _ => {
                return Err(Fault::unsupported(
                    format!("it contains a Python object of the type {module}.{name}, and only NumPy arrays are read"),
                    "save the masks as TIFF (in Cellpose: File > Save masks as PNG/tif, or --save_tif)",
                ));
            }
        })
    }
}

/// All values of a pickle, and which of them is the result.
#[derive(Debug)]
pub(super) struct Pickle {
    values: Vec<Value>,
    result: Id,
}

impl Pickle {
    /// Reads the pickle that begins at a position of a file. Bytes are skipped, so that arrays take no memory.
    pub fn read(source: &Source, at: u64) -> Result<Self, Fault> {
        let input = Input { source, at, window: Vec::new(), window_at: 0 };
        let mut machine =
            Machine { input, values: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
        for _ in 0..MAX_OPCODES {
            let opcode = machine.input.byte()?;
            if opcode == b'.' {
                let result = machine.pop()?;
                return Ok(Self { values: machine.values, result });
            }
            machine.step(opcode)?;
        }
        Err(Fault::over("the number of opcodes", MAX_OPCODES as u64, "MAX_OPCODES", MAX_OPCODES as u64))
    }

    /// The result of the pickle.
    pub fn result(&self) -> &Value {
        self.value(self.result)
    }

    /// The value with an index.
    pub fn value(&self, id: Id) -> &Value {
        self.values.get(id).unwrap_or(&Value::None)
    }
}

/// The bytes of a file from a position on.
struct Input<'a> {
    source: &'a Source,
    at: u64,
    window: Vec<u8>,
    /// Position of the window in the file.
    window_at: u64,
}

impl Input<'_> {
    fn byte(&mut self) -> Result<u8, Fault> {
        let inside = |at: u64, window_at: u64| at.checked_sub(window_at).and_then(|i| usize::try_from(i).ok());
        if inside(self.at, self.window_at).is_none_or(|i| i >= self.window.len()) {
            let count = self.source.len().saturating_sub(self.at).min(WINDOW_BYTES as u64) as usize;
            if count == 0 {
                return Err(Fault::malformed("the file ends inside its pickled objects"));
            }
            self.window = self.source.read_vec(self.at, count)?;
            self.window_at = self.at;
        }
        let byte = inside(self.at, self.window_at).and_then(|i| self.window.get(i)).copied();
        self.at += 1;
        byte.ok_or_else(|| Fault::malformed("the file ends inside its pickled objects"))
    }

    /// A little-endian unsigned integer of `count` bytes, at most 8.
    fn unsigned(&mut self, count: u32) -> Result<u64, Fault> {
        let mut value = 0;
        for i in 0..count.min(8) {
            value |= u64::from(self.byte()?) << (8 * i);
        }
        Ok(value)
    }

    /// Position and length of `count` bytes, which are skipped.
    fn skip(&mut self, count: u64) -> Result<(u64, u64), Fault> {
        let at = self.at;
        if !self.source.holds(at, count) {
            return Err(Fault::malformed(format!("a pickled object of {count} bytes is past the end of the file")));
        }
        self.at += count;
        Ok((at, count))
    }

    fn text(&mut self, count: u64) -> Result<Value, Fault> {
        let (at, count) = self.skip(count)?;
        if count > MAX_TEXT_BYTES {
            return Ok(Value::Other);
        }
        let bytes = self.source.read_vec(at, count as usize)?;
        Ok(String::from_utf8(bytes).map_or(Value::Other, Value::Text))
    }

    fn line(&mut self) -> Result<String, Fault> {
        let mut line = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => return Ok(String::from_utf8_lossy(&line).into_owned()),
                _ if line.len() >= MAX_NAME_BYTES => return Err(Fault::malformed("a name in the pickle is too long")),
                byte => line.push(byte),
            }
        }
    }
}

struct Machine<'a> {
    input: Input<'a>,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl Machine<'_> {
    fn push(&mut self, value: Value) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    fn pop(&mut self) -> Result<Id, Fault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop() {
            Some(id) if self.stack.len() >= floor => Ok(id),
            _ => Err(damaged()),
        }
    }

    fn top(&self) -> Result<Id, Fault> {
        self.stack.last().copied().ok_or_else(damaged)
    }

    /// Removes the values above the last mark.
    fn pop_to_mark(&mut self) -> Result<Vec<Id>, Fault> {
        let mark = self.marks.pop().filter(|m| *m <= self.stack.len()).ok_or_else(damaged)?;
        Ok(self.stack.split_off(mark))
    }

    fn step(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            0x80 => {
                let protocol = self.input.byte()?;
                if !(2..=5).contains(&protocol) {
                    return Err(Fault::unsupported(format!("its pickle protocol is {protocol}"), "save it again"));
                }
            }
            // The length of a frame is only a hint for buffering.
            0x95 => {
                self.input.unsigned(8)?;
            }
            b'(' => self.marks.push(self.stack.len()),
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.pop_to_mark()?;
            }
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memo(opcode)?,
            b'N' | 0x88 | 0x89 | b'K' | b'M' | b'J' | 0x8A | b'G' | b'X' | 0x8C | 0x8D | b'C' | b'B' | 0x8E | 0x96 => {
                let value = self.plain(opcode)?;
                self.push(value);
            }
            b')' => self.push(Value::Tuple(Vec::new())),
            b']' => self.push(Value::List(Vec::new())),
            b'}' => self.push(Value::Dict(Vec::new())),
            b't' => {
                let items = self.pop_to_mark()?;
                self.push(Value::Tuple(items));
            }
            0x85..=0x87 => {
                let mut items = Vec::new();
                for _ in 0x85..=opcode {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.push(Value::Tuple(items));
            }
            b'a' | b'e' | b's' | b'u' => self.fill(opcode)?,
            b'c' => {
                let (module, name) = (self.input.line()?, self.input.line()?);
                self.push(Value::Function(Function::of(&module, &name)?));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Some(Value::Text(module)), Some(Value::Text(name))) =
                    (self.values.get(module), self.values.get(name))
                else {
                    return Err(damaged());
                };
                let function = Function::of(module, name)?;
                self.push(Value::Function(function));
            }
            b'R' => self.reduce()?,
            b'b' => self.build()?,
            other => {
                return Err(Fault::unsupported(
                    format!("its pickle has the opcode {other:#04x}, which arrays do not need"),
                    "save the masks as TIFF (in Cellpose: File > Save masks as PNG/tif, or --save_tif)",
                ));
            }
        }
        Ok(())
    }

    /// A number, text or bytes.
    fn plain(&mut self, opcode: u8) -> Result<Value, Fault> {
        let input = &mut self.input;
        Ok(match opcode {
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'K' => Value::Int(i64::from(input.byte()?)),
            b'M' => Value::Int(input.unsigned(2)?.cast_signed()),
            b'J' => Value::Int(i64::from((input.unsigned(4)? as u32).cast_signed())),
            0x8A => match input.byte()? {
                0 => Value::Int(0),
                count @ 1..=8 => {
                    let unused = 64 - 8 * u32::from(count);
                    // The sign is in the highest bit of the last byte.
                    Value::Int((input.unsigned(u32::from(count))? << unused).cast_signed() >> unused)
                }
                count => {
                    input.skip(u64::from(count))?;
                    Value::Other
                }
            },
            b'G' => {
                input.skip(8)?;
                Value::Other
            }
            b'X' | 0x8C | 0x8D => {
                let count = input.unsigned(length_bytes(opcode))?;
                input.text(count)?
            }
            b'C' | b'B' | 0x8E | 0x96 => {
                let count = input.unsigned(length_bytes(opcode))?;
                let (at, count) = input.skip(count)?;
                Value::Bytes(at, count)
            }
            _ => Value::None,
        })
    }

    fn memo(&mut self, opcode: u8) -> Result<(), Fault> {
        let key = match opcode {
            b'q' | b'h' => self.input.unsigned(1)?,
            b'r' | b'j' => self.input.unsigned(4)?,
            _ => self.memo.len() as u64,
        };
        if matches!(opcode, b'h' | b'j') {
            let id = self.memo.get(&key).copied().ok_or_else(damaged)?;
            self.stack.push(id);
        } else {
            let id = self.top()?;
            self.memo.insert(key, id);
        }
        Ok(())
    }

    /// Adds values to the list or dictionary below them.
    fn fill(&mut self, opcode: u8) -> Result<(), Fault> {
        let items = match opcode {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_to_mark()?,
        };
        let top = self.top()?;
        match (self.values.get_mut(top), opcode) {
            (Some(Value::List(list)), b'a' | b'e') => list.extend(items),
            (Some(Value::Dict(dict)), b's' | b'u') if items.len().is_multiple_of(2) => {
                dict.extend(items.as_chunks::<2>().0.iter().map(|[key, value]| (*key, *value)));
            }
            _ => return Err(damaged()),
        }
        Ok(())
    }

    /// What one of the known functions returns; no function is called.
    fn reduce(&mut self) -> Result<(), Fault> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (Some(Value::Tuple(arguments)), Some(Value::Function(function))) =
            (self.values.get(arguments), self.values.get(function))
        else {
            return Err(damaged());
        };
        let argument = |i: usize| arguments.get(i).and_then(|id| self.values.get(*id));
        let made = match function {
            Function::Reconstruct => Value::Array(None),
            Function::Scalar => Value::Other,
            Function::DType => match argument(0) {
                Some(Value::Text(code)) if code.len() <= MAX_CODE_BYTES => {
                    Value::Type { code: code.clone(), big_endian: false }
                }
                _ => return Err(damaged()),
            },
            Function::FromBuffer => {
                let order = argument(3);
                let fortran = matches!(order, Some(Value::Text(order)) if order == "F");
                let data = arguments.first().copied().ok_or_else(damaged)?;
                Value::Array(Some(self.array(argument(2), argument(1), fortran, data)?))
            }
            Function::NdArray => return Err(damaged()),
        };
        self.push(made);
        Ok(())
    }

    /// Gives an array its content, or a type its byte order.
    fn build(&mut self) -> Result<(), Fault> {
        let (state, target) = (self.pop()?, self.top()?);
        let Some(Value::Tuple(state)) = self.values.get(state) else { return Err(damaged()) };
        let item = |i: usize| state.get(i).and_then(|id| self.values.get(*id));
        let made = match self.values.get(target) {
            Some(Value::Array(None)) => {
                let Some(Value::Bool(fortran)) = item(3) else { return Err(damaged()) };
                let data = state.get(4).copied().ok_or_else(damaged)?;
                Value::Array(Some(self.array(item(1), item(2), *fortran, data)?))
            }
            Some(Value::Type { code, .. }) => {
                let big_endian = matches!(item(1), Some(Value::Text(order)) if order == ">");
                Value::Type { code: code.clone(), big_endian }
            }
            _ => return Err(damaged()),
        };
        if let Some(slot) = self.values.get_mut(target) {
            *slot = made;
        }
        Ok(())
    }

    fn array(
        &self,
        shape: Option<&Value>,
        sample: Option<&Value>,
        fortran_order: bool,
        data: Id,
    ) -> Result<ArrayValue, Fault> {
        let (Some(Value::Tuple(shape)), Some(Value::Type { code, big_endian })) = (shape, sample) else {
            return Err(damaged());
        };
        if shape.len() > MAX_AXES {
            return Err(damaged());
        }
        let extent = |id: &Id| match self.values.get(*id) {
            Some(Value::Int(n)) => usize::try_from(*n).ok(),
            _ => None,
        };
        let shape: Option<Vec<usize>> = shape.iter().map(extent).collect();
        Ok(ArrayValue {
            shape: shape.ok_or_else(damaged)?,
            code: code.clone(),
            big_endian: *big_endian,
            fortran_order,
            data,
        })
    }
}

/// Number of bytes of the length that follows the opcode of a text or of bytes.
fn length_bytes(opcode: u8) -> u32 {
    match opcode {
        0x8C | b'C' => 1,
        b'X' | b'B' => 4,
        _ => 8,
    }
}

fn damaged() -> Fault {
    Fault::malformed("its pickled objects are inconsistent")
}
