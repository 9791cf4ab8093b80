//! Types of the elements of tensors, as descriptions name them.

use cytoscope_graph::ElementType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Type of the elements of a described tensor: those that bioimage.io allows, with NumPy's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it: kind and bits")]
pub enum TensorType {
    Float32,
    Float64,
    Uint8,
    Int8,
    Uint16,
    Int16,
    Uint32,
    Int32,
    Uint64,
    Int64,
    Bool,
}

impl TensorType {
    /// All types, in declaration order.
    pub const ALL: [Self; 11] = [
        Self::Float32,
        Self::Float64,
        Self::Uint8,
        Self::Int8,
        Self::Uint16,
        Self::Int16,
        Self::Uint32,
        Self::Int32,
        Self::Uint64,
        Self::Int64,
        Self::Bool,
    ];

    /// Returns the type of a tensor in a network.
    pub fn element_type(self) -> ElementType {
        match self {
            Self::Float32 => ElementType::F32,
            Self::Float64 => ElementType::F64,
            Self::Uint8 => ElementType::U8,
            Self::Int8 => ElementType::I8,
            Self::Uint16 => ElementType::U16,
            Self::Int16 => ElementType::I16,
            Self::Uint32 => ElementType::U32,
            Self::Int32 => ElementType::I32,
            Self::Uint64 => ElementType::U64,
            Self::Int64 => ElementType::I64,
            Self::Bool => ElementType::Bool,
        }
    }

    /// Returns the name of the type in descriptions.
    pub fn name(self) -> &'static str {
        self.element_type().name()
    }

    /// Returns the type of a name; `None` if descriptions have no such type.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Returns the names of all types as one text.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_names_of_the_specification() {
        let names = "float32, float64, uint8, int8, uint16, int16, uint32, int32, uint64, int64, bool";
        assert_eq!(TensorType::names(), names);
        for one in TensorType::ALL {
            assert_eq!(serde_json::to_value(one).unwrap(), one.to_string());
            assert_eq!(TensorType::from_name(one.name()), Some(one));
        }
        assert_eq!(TensorType::from_name("complex64"), None);
    }
}
