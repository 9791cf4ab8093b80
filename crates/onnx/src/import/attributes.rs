//! Typed access to a node's attributes. Attributes that the conversion does not read are refused, so that none is
//! ignored silently.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::Pending;
use super::inline::Arguments;
use crate::proto::{Attribute, AttributeValue};
use cytoscope_graph::{GraphError, Result};

/// Attributes of any operator that do not affect the result.
const IGNORED: [&str; 5] = ["consumed_inputs", "stash_type", "saturate", "momentum", "doc_string"];

pub(crate) struct Attributes<'a> {
    values: Arguments<'a>,
    read: RefCell<BTreeSet<String>>,
}

/// Returns attributes by name. An attribute that refers to one of the call of the function that contains the node gets its
/// value, or is left out if the call does not have it.
pub(super) fn resolved<'a>(attributes: &'a [Attribute<'a>], call: Option<&Arguments<'a>>) -> Result<Arguments<'a>> {
    let mut values = Arguments::new();
    for a in attributes {
        let value = match (&a.value, call) {
            (AttributeValue::Reference(name), Some(call)) => call.get(name).copied(),
            (AttributeValue::Reference(_), None) => {
                let how = "refers to an attribute of a function, but its node is not in a function";
                return Err(GraphError::malformed(format!("attribute \"{}\" {how}", a.name)));
            }
            (value, _) => Some(value),
        };
        if let Some(value) = value
            && values.insert(a.name, value).is_some()
        {
            return Err(GraphError::malformed(format!("attribute \"{}\" is given twice", a.name)));
        }
    }
    Ok(values)
}

impl<'a> Attributes<'a> {
    /// `call` are the arguments of the function that contains the node.
    pub(crate) fn new(attributes: &'a [Attribute<'a>], call: Option<&Arguments<'a>>) -> Result<Self> {
        Ok(Self { values: resolved(attributes, call)?, read: RefCell::default() })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a AttributeValue<'a>> {
        self.read.borrow_mut().insert(name.to_owned());
        self.values.get(name).copied()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    fn wrong<T>(name: &str, expected: &str) -> Result<T> {
        Err(GraphError::malformed(format!("attribute \"{name}\" is not {expected}")))
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> Result<i64> {
        match self.get(name) {
            None => Ok(default),
            Some(AttributeValue::Int(v)) => Ok(*v),
            Some(_) => Self::wrong(name, "an integer"),
        }
    }

    /// Returns an integer that is 0 or 1; other programs differ in what they make of any other value.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.int(name, i64::from(default))? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Self::wrong(name, "0 or 1"),
        }
    }

    pub(crate) fn float(&self, name: &str, default: f32) -> Result<f32> {
        match self.get(name) {
            None => Ok(default),
            Some(AttributeValue::Float(v)) => Ok(*v),
            Some(_) => Self::wrong(name, "a number"),
        }
    }

    pub(crate) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        match self.get(name) {
            None => Ok(None),
            Some(AttributeValue::Ints(v)) => Ok(Some(v.clone())),
            Some(AttributeValue::Int(v)) => Ok(Some(vec![*v])),
            Some(_) => Self::wrong(name, "a list of integers"),
        }
    }

    /// Returns a list of non-negative integers.
    pub(crate) fn sizes(&self, name: &str) -> Result<Option<Vec<usize>>> {
        let Some(values) = self.ints(name)? else { return Ok(None) };
        let sizes: Option<Vec<usize>> =
            values.iter().map(|&v| usize::try_from(v).ok().filter(|v| *v <= 1 << 31)).collect();
        match sizes {
            Some(s) => Ok(Some(s)),
            None => Self::wrong(name, "a list of sizes"),
        }
    }

    pub(crate) fn size(&self, name: &str, default: usize) -> Result<usize> {
        let v = self.int(name, default as i64)?;
        usize::try_from(v).ok().filter(|v| *v <= 1 << 31).map_or_else(|| Self::wrong(name, "a size"), Ok)
    }

    pub(crate) fn text(&self, name: &str, default: &str) -> Result<String> {
        match self.get(name) {
            None => Ok(default.to_owned()),
            Some(AttributeValue::Text(v)) => Ok(String::from_utf8_lossy(v).into_owned()),
            Some(_) => Self::wrong(name, "a text"),
        }
    }

    /// Refuses attributes that the conversion did not read.
    pub(crate) fn refuse_unread(&self, node: &Pending<'_>) -> Result<()> {
        let read = self.read.borrow();
        match self.values.keys().find(|k| !read.contains(**k) && !IGNORED.contains(*k)) {
            Some(name) => Err(node.unsupported(format!("attribute \"{name}\" is not supported"))),
            None => Ok(()),
        }
    }
}
