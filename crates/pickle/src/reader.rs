//! The interpreter of a pickle's opcodes, with a stack, marks and a memo. It knows only the opcodes that build data.

use crate::input::Input;
use crate::{Call, Global, MAX_NAME_BYTES, MAX_TEXTS_BYTES, MAX_VALUES, PickleError, Value, ValueId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The end of a pickle.
const STOP: u8 = b'.';

pub(crate) struct Reader<'a> {
    input: Input<'a>,
    values: Vec<Value>,
    stack: Vec<ValueId>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: BTreeMap<u32, ValueId>,
    /// Number of items copied from one container to another: a short pickle could ask for many copies of a long one.
    copied: usize,
    /// Size of all kept texts in bytes.
    text_bytes: u64,
    is_accepted: &'a dyn Fn(&str, &str) -> bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(input: Input<'a>, is_accepted: &'a dyn Fn(&str, &str) -> bool) -> Self {
        Self {
            input,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: BTreeMap::new(),
            copied: 0,
            text_bytes: 0,
            is_accepted,
        }
    }

    pub(crate) fn into_values(self) -> Vec<Value> {
        self.values
    }

    /// Runs one opcode. At the end of the pickle, the index of the pickled object is returned.
    pub(crate) fn step(&mut self) -> Result<Option<ValueId>, PickleError> {
        let at = self.input.at();
        let opcode = self.input.byte()?;
        if opcode == STOP {
            return self.pop().map(Some);
        }
        if let Some(value) = self.scalar(opcode)? {
            self.push(value)?;
            return Ok(None);
        }
        if self.container(opcode)? || self.memory(opcode)? || self.object(opcode)? {
            return Ok(None);
        }
        match opcode {
            // The number of the protocol says which opcodes may follow; those are checked one by one.
            0x80 => self.input.skip(1)?,
            // The length of a frame is a hint for buffering.
            0x95 => self.input.skip(8)?,
            _ => return Err(PickleError::Opcode { at, opcode }),
        };
        Ok(None)
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        if self.values.len() >= MAX_VALUES {
            return Err(PickleError::OverLimit { what: "values", limit: MAX_VALUES as u64 });
        }
        self.stack.push(ValueId(self.values.len() as u32));
        self.values.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<ValueId, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let id = if self.stack.len() > floor { self.stack.pop() } else { None };
        id.ok_or_else(|| self.input.malformed("the stack is empty"))
    }

    fn top(&self) -> Result<ValueId, PickleError> {
        self.stack.last().copied().ok_or_else(|| self.input.malformed("the stack is empty"))
    }

    /// Removes the last mark and everything above it, which is returned.
    fn pop_mark(&mut self) -> Result<Vec<ValueId>, PickleError> {
        let height = self.marks.pop().ok_or_else(|| self.input.malformed("there is no mark"))?;
        if height > self.stack.len() {
            return Err(self.input.malformed("a mark is above the stack"));
        }
        Ok(self.stack.split_off(height))
    }

    fn value(&self, id: ValueId) -> Result<&Value, PickleError> {
        self.values.get(id.0 as usize).ok_or_else(|| self.input.malformed("there is no such value"))
    }

    fn value_mut(&mut self, id: ValueId) -> Result<&mut Value, PickleError> {
        let missing = self.input.malformed("there is no such value");
        self.values.get_mut(id.0 as usize).ok_or(missing)
    }

    /// Copies the items of a tuple, list or set; `what` is the error for other values.
    fn items(&mut self, id: ValueId, what: &'static str) -> Result<Vec<ValueId>, PickleError> {
        let items = match self.value(id)? {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) => items,
            _ => return Err(self.input.malformed(what)),
        };
        let copied = self.copied.saturating_add(items.len());
        if copied > MAX_VALUES {
            return Err(PickleError::OverLimit { what: "copied values", limit: MAX_VALUES as u64 });
        }
        let items = items.clone();
        self.copied = copied;
        Ok(items)
    }

    /// Reads a number, text, bytes or an empty container; `None` if the opcode is of another kind.
    fn scalar(&mut self, opcode: u8) -> Result<Option<Value>, PickleError> {
        let input = &mut self.input;
        Ok(Some(match opcode {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'J' => Value::Int(i64::from((input.unsigned(4)? as u32).cast_signed())),
            b'K' => Value::Int(i64::from(input.byte()?)),
            b'M' => Value::Int(input.unsigned(2)?.cast_signed()),
            0x8a => match input.byte()? {
                0 => Value::Int(0),
                width @ 1..=8 => {
                    let unused = 64 - 8 * u32::from(width);
                    // The sign is the highest bit of the last byte; shifting back repeats it.
                    Value::Int((input.unsigned(u32::from(width))? << unused).cast_signed() >> unused)
                }
                width => {
                    input.skip(u64::from(width))?;
                    Value::LargeInt
                }
            },
            b'G' => Value::Float(f64::from_bits(input.unsigned(8)?.swap_bytes())),
            b'X' | b'T' => self.text(4)?,
            0x8c | b'U' => self.text(1)?,
            0x8d => self.text(8)?,
            b'C' => Value::Bytes(input.sized(1)?),
            b'B' => Value::Bytes(input.sized(4)?),
            0x8e | 0x96 => Value::Bytes(input.sized(8)?),
            b']' => Value::List(Vec::new()),
            b')' => Value::Tuple(Vec::new()),
            b'}' => Value::Dict(Vec::new()),
            0x8f => Value::Set(Vec::new()),
            _ => return Ok(None),
        }))
    }

    /// Reads a text whose length has `width` bytes.
    fn text(&mut self, width: u32) -> Result<Value, PickleError> {
        let range: Range<u64> = self.input.sized(width)?;
        let Some(text) = self.input.text(&range)? else { return Ok(Value::Bytes(range)) };
        self.keep_text(text.len())?;
        Ok(Value::Text(text))
    }

    /// Counts a text that is kept.
    fn keep_text(&mut self, bytes: usize) -> Result<(), PickleError> {
        self.text_bytes = self.text_bytes.saturating_add(bytes as u64);
        if self.text_bytes > MAX_TEXTS_BYTES {
            return Err(PickleError::OverLimit { what: "bytes of text", limit: MAX_TEXTS_BYTES });
        }
        Ok(())
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
                let (pairs, rest) = items.as_chunks::<2>();
                if !rest.is_empty() {
                    return Err(self.input.malformed("a key has no value"));
                }
                self.set(pairs.iter().map(|[key, value]| (*key, *value)).collect())?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Appends items to the list or set at the top of the stack.
    fn append(&mut self, items: Vec<ValueId>) -> Result<(), PickleError> {
        let top = self.top()?;
        let wrong = self.input.malformed("items are added to a value that is not a list or set");
        match self.value_mut(top)? {
            Value::List(all) | Value::Set(all) => all.extend(items),
            _ => return Err(wrong),
        }
        Ok(())
    }

    /// Sets entries of the dictionary or call at the top of the stack.
    fn set(&mut self, entries: Vec<(ValueId, ValueId)>) -> Result<(), PickleError> {
        let top = self.top()?;
        let wrong = self.input.malformed("entries are set in a value that is not a dictionary");
        match self.value_mut(top)? {
            Value::Dict(all) => all.extend(entries),
            Value::Call(call) => call.entries.extend(entries),
            _ => return Err(wrong),
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
                let key = self.input.unsigned(if opcode == b'h' { 1 } else { 4 })? as u32;
                let found = self.memo.get(&key).copied();
                let found = found.ok_or_else(|| self.input.malformed("there is no such memo entry"))?;
                self.stack.push(found);
            }
            b'q' | b'r' | 0x94 => {
                let key = match opcode {
                    b'q' => self.input.unsigned(1)? as u32,
                    b'r' => self.input.unsigned(4)? as u32,
                    _ => self.memo.len() as u32,
                };
                if self.memo.len() >= MAX_VALUES {
                    return Err(PickleError::OverLimit { what: "memo entries", limit: MAX_VALUES as u64 });
                }
                let top = self.top()?;
                self.memo.insert(key, top);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads names of classes and functions, calls, and states; false if the opcode is of another kind.
    fn object(&mut self, opcode: u8) -> Result<bool, PickleError> {
        match opcode {
            b'c' => {
                let module = self.input.name()?;
                let name = self.input.name()?;
                self.global(module, name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Text(module), Value::Text(name)) = (self.value(module)?, self.value(name)?) else {
                    return Err(self.input.malformed("the name of a class or function is not text"));
                };
                if module.len().max(name.len()) > MAX_NAME_BYTES {
                    return Err(PickleError::OverLimit { what: "bytes in a name", limit: MAX_NAME_BYTES as u64 });
                }
                let (module, name) = (module.clone(), name.clone());
                self.global(module, name)?;
            }
            b'R' | 0x81 => self.call()?,
            b'b' => {
                let state = self.pop()?;
                let top = self.top()?;
                let wrong = self.input.malformed("a plain value has no state");
                match self.value_mut(top)? {
                    Value::Call(call) => call.state = Some(state),
                    // Attributes of a container, such as the versions of the modules of a state dict, are ignored.
                    Value::Dict(_) | Value::List(_) | Value::Set(_) => {}
                    _ => return Err(wrong),
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
        // A text of the memo can name a class many times.
        self.keep_text(module.len().saturating_add(name.len()))?;
        self.push(Value::Global(Global { module, name }))
    }

    /// Stores a call. Calls of container types become the containers.
    fn call(&mut self) -> Result<(), PickleError> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let arguments = self.items(arguments, "arguments are not a tuple")?;
        let Value::Global(global) = self.value(function)? else {
            return Err(self.input.malformed("a value is called that is not a class or function"));
        };
        let container = if is_container(&global.module, &global.name) { global.name.clone() } else { String::new() };
        let first = arguments.first().copied();
        let value = match (container.as_str(), first) {
            ("OrderedDict" | "dict", None) | ("defaultdict", _) => Value::Dict(Vec::new()),
            ("OrderedDict" | "dict", Some(pairs)) => Value::Dict(self.pairs(pairs)?),
            ("set" | "frozenset", None) => Value::Set(Vec::new()),
            ("set" | "frozenset", Some(items)) => Value::Set(self.items(items, "a set is not made from a list")?),
            _ => Value::Call(Box::new(Call { function, arguments, entries: Vec::new(), state: None })),
        };
        self.push(value)
    }

    /// Returns the entries of a dictionary that is made from a list of pairs.
    fn pairs(&mut self, id: ValueId) -> Result<Vec<(ValueId, ValueId)>, PickleError> {
        let wrong = "a dictionary is not made from pairs";
        let mut entries = Vec::new();
        for item in self.items(id, wrong)? {
            match *self.items(item, wrong)?.as_slice() {
                [key, value] => entries.push((key, value)),
                _ => return Err(self.input.malformed(wrong)),
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
