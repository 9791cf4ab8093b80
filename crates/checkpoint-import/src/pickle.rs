//! A reader of Python's pickle format, limited to data: it builds values and never calls anything.
//!
//! Protocols 2 to 5 are read, with the opcodes that writers of data use. A class or function is only a name here: it
//! must be on the caller's list of accepted names, and calling it gives a [`Call`] with its arguments.

use std::collections::BTreeMap;

/// Maximum size of a pickle in bytes. That of a checkpoint with a thousand tensors has 0.2 MB.
pub const MAX_PICKLE_BYTES: usize = 16 << 20;
/// Maximum number of values in a pickle, and of values that it remembers.
pub const MAX_VALUES: usize = 2 << 20;

/// Position of a value in a [`Pickle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(u32);

/// A value. Containers hold positions, because values may be shared and may contain themselves.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// A float.
    Float(f64),
    /// A text.
    Text(String),
    /// Bytes, or a text of Python 2 that is not UTF-8.
    Bytes(Vec<u8>),
    /// A tuple.
    Tuple(Vec<ValueId>),
    /// A list.
    List(Vec<ValueId>),
    /// A set.
    Set(Vec<ValueId>),
    /// A dictionary, in order; of equal keys the last one counts.
    Dict(Vec<(ValueId, ValueId)>),
    /// An accepted class or function.
    Global(Global),
    /// The result of calling a class or function, which is not computed.
    Call(Box<Call>),
    /// An object outside the pickle, by its id.
    External(ValueId),
}

/// Name of a class or function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    /// Its module.
    pub module: String,
    /// Its name in the module.
    pub name: String,
}

/// A call that is not made.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// What is called.
    pub function: ValueId,
    /// Its arguments.
    pub arguments: Vec<ValueId>,
    /// Entries set afterwards.
    pub entries: Vec<(ValueId, ValueId)>,
    /// State set afterwards.
    pub state: Option<ValueId>,
}

/// Why a pickle is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    /// The bytes are not a pickle.
    #[error("malformed pickle at byte {at}: {what}")]
    Malformed {
        /// Position in the pickle.
        at: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// An opcode that writers of data do not use.
    #[error("the pickle has the opcode 0x{opcode:02x} at byte {at}, which is not accepted")]
    Opcode {
        /// Position in the pickle.
        at: usize,
        /// The opcode.
        opcode: u8,
    },
    /// A class or function that is not accepted.
    #[error("the pickle refers to the Python object {module}.{name}, which is not accepted")]
    Global {
        /// Its module.
        module: String,
        /// Its name.
        name: String,
    },
    /// The pickle is too large.
    #[error("the pickle has more than the limit of {limit} {what}")]
    OverLimit {
        /// What is counted.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// A pickle as read.
#[derive(Debug, Clone, PartialEq)]
pub struct Pickle {
    values: Vec<Value>,
    root: ValueId,
}

impl Pickle {
    /// Reads a pickle. `is_accepted` decides by module and name which classes and functions it may name; containers of
    /// `collections` and `builtins` are always accepted and become [`Value::Dict`] and [`Value::Set`].
    ///
    /// # Errors
    /// [`PickleError`] if it is malformed, too large, or uses or names something that is not accepted.
    pub fn read(bytes: &[u8], is_accepted: &dyn Fn(&str, &str) -> bool) -> Result<Self, PickleError> {
        if bytes.len() > MAX_PICKLE_BYTES {
            return Err(PickleError::OverLimit { what: "bytes", limit: MAX_PICKLE_BYTES });
        }
        let mut reader = Reader {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: BTreeMap::new(),
            copied: 0,
            is_accepted,
        };
        loop {
            let opcode = reader.byte()?;
            if opcode == b'.' {
                let root = reader.pop()?;
                return Ok(Self { values: reader.values, root });
            }
            reader.step(opcode)?;
        }
    }

    /// Returns the position of the pickled object.
    pub fn root(&self) -> ValueId {
        self.root
    }

    /// Returns the value at a position; [`Value::None`] if it is of another pickle.
    pub fn value(&self, id: ValueId) -> &Value {
        static NONE: Value = Value::None;
        self.values.get(id.0 as usize).unwrap_or(&NONE)
    }

    /// Returns the entry of a dictionary with a text as key.
    pub fn entry(&self, dict: ValueId, key: &str) -> Option<ValueId> {
        let Value::Dict(entries) = self.value(dict) else { return None };
        let is_key = |id: ValueId| matches!(self.value(id), Value::Text(text) if text == key);
        entries.iter().rev().find(|(k, _)| is_key(*k)).map(|(_, value)| *value)
    }

    /// Returns a text.
    pub fn text(&self, id: ValueId) -> Option<&str> {
        if let Value::Text(text) = self.value(id) { Some(text) } else { None }
    }

    /// Returns an integer that is not negative.
    pub fn count(&self, id: ValueId) -> Option<usize> {
        if let Value::Int(n) = self.value(id) { usize::try_from(*n).ok() } else { None }
    }

    /// Returns the class or function that a value names.
    pub fn global(&self, id: ValueId) -> Option<&Global> {
        if let Value::Global(global) = self.value(id) { Some(global) } else { None }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<ValueId>,
    /// Heights of the stack at which marks were set.
    marks: Vec<usize>,
    memo: BTreeMap<u32, ValueId>,
    /// Number of items copied from one container to another: a short pickle could ask for many copies of a long one.
    copied: usize,
    is_accepted: &'a dyn Fn(&str, &str) -> bool,
}

impl<'a> Reader<'a> {
    fn malformed(&self, what: &'static str) -> PickleError {
        PickleError::Malformed { at: self.at, what }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], PickleError> {
        let bytes: &'a [u8] = self.bytes;
        let range = self.at..self.at.saturating_add(count);
        let taken = bytes.get(range).ok_or_else(|| self.malformed("it ends too early"))?;
        self.at += count;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        self.take(1).map(|taken| taken.first().copied().unwrap_or_default())
    }

    /// Reads a little-endian number of `width` bytes, at most 8.
    fn number(&mut self, width: usize) -> Result<u64, PickleError> {
        Ok(self.take(width)?.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
    }

    /// Reads a length of `width` bytes and that many bytes.
    fn sized(&mut self, width: usize) -> Result<&'a [u8], PickleError> {
        let length = self.number(width)?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn text(&self, bytes: &[u8]) -> Result<String, PickleError> {
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| self.malformed("a text is not UTF-8"))
    }

    fn line(&mut self) -> Result<String, PickleError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|b| *b == b'\n').ok_or_else(|| self.malformed("a line has no end"))?;
        let line = self.take(length)?;
        self.take(1)?;
        self.text(line)
    }

    fn add(&mut self, value: Value) -> Result<ValueId, PickleError> {
        if self.values.len() >= MAX_VALUES {
            return Err(PickleError::OverLimit { what: "values", limit: MAX_VALUES });
        }
        let id = ValueId(self.values.len() as u32);
        self.values.push(value);
        Ok(id)
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        let id = self.add(value)?;
        self.stack.push(id);
        Ok(())
    }

    fn pop(&mut self) -> Result<ValueId, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.malformed("the stack is empty"));
        }
        self.stack.pop().ok_or_else(|| self.malformed("the stack is empty"))
    }

    fn top(&self) -> Result<ValueId, PickleError> {
        self.stack.last().copied().ok_or_else(|| self.malformed("the stack is empty"))
    }

    /// Takes everything above the last mark, and the mark.
    fn pop_mark(&mut self) -> Result<Vec<ValueId>, PickleError> {
        let height = self.marks.pop().ok_or_else(|| self.malformed("there is no mark"))?;
        if height > self.stack.len() {
            return Err(self.malformed("a mark is above the stack"));
        }
        Ok(self.stack.split_off(height))
    }

    fn value(&mut self, id: ValueId) -> Result<&mut Value, PickleError> {
        let at = self.at;
        let missing = PickleError::Malformed { at, what: "there is no such value" };
        self.values.get_mut(id.0 as usize).ok_or(missing)
    }

    /// Returns the items of a tuple, list or set.
    fn items(&mut self, id: ValueId, what: &'static str) -> Result<Vec<ValueId>, PickleError> {
        let at = self.at;
        let items = match self.value(id)? {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) => items.clone(),
            _ => return Err(PickleError::Malformed { at, what }),
        };
        self.copied = self.copied.saturating_add(items.len());
        if self.copied > MAX_VALUES {
            return Err(PickleError::OverLimit { what: "copied values", limit: MAX_VALUES });
        }
        Ok(items)
    }

    fn step(&mut self, opcode: u8) -> Result<(), PickleError> {
        let at = self.at.saturating_sub(1);
        if let Some(value) = self.scalar(opcode)? {
            return self.push(value);
        }
        if self.container(opcode)? || self.memory(opcode)? || self.object(opcode)? {
            return Ok(());
        }
        match opcode {
            // Protocol and frames only announce what follows.
            0x80 => self.take(1).map(|_| ()),
            0x95 => self.take(8).map(|_| ()),
            _ => Err(PickleError::Opcode { at, opcode }),
        }
    }

    /// Reads an atom; `None` if the opcode is of another kind.
    fn scalar(&mut self, opcode: u8) -> Result<Option<Value>, PickleError> {
        Ok(Some(match opcode {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'J' => Value::Int(i64::from(self.number(4)? as u32 as i32)),
            b'K' => Value::Int(self.number(1)? as i64),
            b'M' => Value::Int(self.number(2)? as i64),
            0x8a => {
                let width = self.byte()?;
                if width > 8 {
                    return Err(PickleError::OverLimit { what: "bytes in an integer", limit: 8 });
                }
                let unused = 64 - 8 * u32::from(width);
                let bits = self.number(usize::from(width))?;
                // Shifting back repeats the sign; an integer of no bytes is zero.
                Value::Int(if width == 0 { 0 } else { ((bits << unused) as i64) >> unused })
            }
            b'G' => Value::Float(f64::from_bits(self.number(8)?.swap_bytes())),
            b'X' => self.sized(4).and_then(|b| self.text(b)).map(Value::Text)?,
            0x8c => self.sized(1).and_then(|b| self.text(b)).map(Value::Text)?,
            0x8d => self.sized(8).and_then(|b| self.text(b)).map(Value::Text)?,
            b'T' => old_text(self.sized(4)?),
            b'U' => old_text(self.sized(1)?),
            b'B' => Value::Bytes(self.sized(4)?.to_vec()),
            b'C' => Value::Bytes(self.sized(1)?.to_vec()),
            0x8e => Value::Bytes(self.sized(8)?.to_vec()),
            b']' => Value::List(Vec::new()),
            b')' => Value::Tuple(Vec::new()),
            b'}' => Value::Dict(Vec::new()),
            0x8f => Value::Set(Vec::new()),
            _ => return Ok(None),
        }))
    }

    /// Builds or fills a container; false if the opcode is of another kind.
    fn container(&mut self, opcode: u8) -> Result<bool, PickleError> {
        match opcode {
            b'(' => self.marks.push(self.stack.len()),
            0x85..=0x87 => {
                let mut items = (0x84..opcode).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
                items.reverse();
                self.push(Value::Tuple(items))?;
            }
            b't' => {
                let items = self.pop_mark()?;
                self.push(Value::Tuple(items))?;
            }
            0x91 => {
                let items = self.pop_mark()?;
                self.push(Value::Set(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.append(items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(vec![(key, value)])?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                if items.len() % 2 != 0 {
                    return Err(self.malformed("a key has no value"));
                }
                self.set(items.chunks_exact(2).filter_map(|p| Some((*p.first()?, *p.get(1)?))).collect())?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn append(&mut self, items: Vec<ValueId>) -> Result<(), PickleError> {
        let at = self.at;
        let top = self.top()?;
        match self.value(top)? {
            Value::List(all) | Value::Set(all) => all.extend(items),
            _ => return Err(PickleError::Malformed { at, what: "items are added to what is no list" }),
        }
        Ok(())
    }

    fn set(&mut self, entries: Vec<(ValueId, ValueId)>) -> Result<(), PickleError> {
        let at = self.at;
        let top = self.top()?;
        match self.value(top)? {
            Value::Dict(all) => all.extend(entries),
            Value::Call(call) => call.entries.extend(entries),
            _ => return Err(PickleError::Malformed { at, what: "entries are set in what is no dictionary" }),
        }
        Ok(())
    }

    /// Moves values between stack and memo; false if the opcode is of another kind.
    fn memory(&mut self, opcode: u8) -> Result<bool, PickleError> {
        match opcode {
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.pop_mark()?;
            }
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'h' | b'j' => {
                let key = self.number(if opcode == b'h' { 1 } else { 4 })? as u32;
                let found = self.memo.get(&key).copied();
                let found = found.ok_or_else(|| self.malformed("a value is recalled that was not remembered"))?;
                self.stack.push(found);
            }
            b'q' | b'r' | 0x94 => {
                let key = match opcode {
                    b'q' => self.number(1)? as u32,
                    b'r' => self.number(4)? as u32,
                    _ => self.memo.len() as u32,
                };
                if self.memo.len() >= MAX_VALUES {
                    return Err(PickleError::OverLimit { what: "remembered values", limit: MAX_VALUES });
                }
                let top = self.top()?;
                self.memo.insert(key, top);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads names of classes and functions, and calls of them; false if the opcode is of another kind.
    fn object(&mut self, opcode: u8) -> Result<bool, PickleError> {
        match opcode {
            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                self.global(module, name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let texts = (self.value(module)?.clone(), self.value(name)?.clone());
                let (Value::Text(module), Value::Text(name)) = texts else {
                    return Err(self.malformed("a class has no name"));
                };
                self.global(module, name)?;
            }
            b'R' | 0x81 => self.call()?,
            b'b' => {
                let state = self.pop()?;
                let at = self.at;
                let top = self.top()?;
                match self.value(top)? {
                    Value::Call(call) => call.state = Some(state),
                    // Attributes of a container, such as the versions of the modules of a state dict.
                    Value::Dict(_) | Value::List(_) | Value::Set(_) => {}
                    _ => return Err(PickleError::Malformed { at, what: "a plain value has no state" }),
                }
            }
            b'Q' => {
                let id = self.pop()?;
                self.push(Value::External(id))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn global(&mut self, module: String, name: String) -> Result<(), PickleError> {
        if !is_container(&module, &name) && !(self.is_accepted)(&module, &name) {
            return Err(PickleError::Global { module, name });
        }
        self.push(Value::Global(Global { module, name }))
    }

    fn call(&mut self) -> Result<(), PickleError> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let arguments = self.items(arguments, "arguments are not a tuple")?;
        let Value::Global(global) = self.value(function)? else {
            return Err(self.malformed("what is called is no class or function"));
        };
        let name = if is_container(&global.module, &global.name) { global.name.clone() } else { String::new() };
        let given = arguments.first().copied();
        let value = match (name.as_str(), given) {
            ("OrderedDict" | "dict", None) | ("defaultdict", _) => Value::Dict(Vec::new()),
            ("OrderedDict" | "dict", Some(pairs)) => Value::Dict(self.pairs(pairs)?),
            ("set" | "frozenset", None) => Value::Set(Vec::new()),
            ("set" | "frozenset", Some(items)) => Value::Set(self.items(items, "a set is not made of a list")?),
            _ => Value::Call(Box::new(Call { function, arguments, entries: Vec::new(), state: None })),
        };
        self.push(value)
    }

    /// Returns the entries of a dictionary that is made of a list of pairs.
    fn pairs(&mut self, id: ValueId) -> Result<Vec<(ValueId, ValueId)>, PickleError> {
        let mut entries = Vec::new();
        for item in self.items(id, "a dictionary is not made of pairs")? {
            let pair = self.items(item, "a dictionary is not made of pairs")?;
            match (pair.first(), pair.get(1), pair.len()) {
                (Some(key), Some(value), 2) => entries.push((*key, *value)),
                _ => return Err(self.malformed("a dictionary is not made of pairs")),
            }
        }
        Ok(entries)
    }
}

fn is_container(module: &str, name: &str) -> bool {
    match module {
        "collections" => matches!(name, "OrderedDict" | "defaultdict"),
        "builtins" | "__builtin__" => matches!(name, "dict" | "set" | "frozenset"),
        _ => false,
    }
}

/// A text of Python 2, which has no encoding.
fn old_text(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| Value::Bytes(bytes.to_vec()), |text| Value::Text(text.to_owned()))
}
