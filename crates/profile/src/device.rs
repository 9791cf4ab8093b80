//! Device and precision of a run. Both are names here, because `engine`, which has types for them, depends on this crate, and
//! because records may come from other machines and other versions of the program.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Id of the device of a run, such as `cpu` or `cuda:0`; empty if it is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunDevice(String);

impl RunDevice {
    /// Returns whether it is the CPU.
    pub fn is_cpu(&self) -> bool {
        self.0 == "cpu"
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for RunDevice {
    fn from(id: &str) -> Self {
        Self(id.to_owned())
    }
}

impl fmt::Display for RunDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name of the number format that the network of a run computed in, such as `int8`; empty if it is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunPrecision(String);

impl RunPrecision {
    /// Returns whether the network computed in 8-bit integers.
    pub fn is_int8(&self) -> bool {
        self.0 == "int8"
    }
}

/// Number format that an operator multiplies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorPrecision {
    /// 32-bit floats on a CPU, floats of any size on a GPU; also of operators that multiply nothing.
    Float,
    /// 32-bit floats on a CPU that are rounded to bf16 before they are multiplied.
    Bf16,
    /// Integers of 8 bits.
    Int8,
}

impl OperatorPrecision {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Float, Self::Bf16, Self::Int8];

    /// Returns its name in traces and tables: `float`, `bf16` or `int8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// Returns the format with this name; `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|precision| precision.name() == name)
    }
}

/// Returns the name of an operator for display, with its number format unless that is [`OperatorPrecision::Float`].
pub(crate) fn shown_name(name: &str, precision: Option<OperatorPrecision>) -> String {
    match precision {
        Some(OperatorPrecision::Float) | None => name.to_owned(),
        Some(precision) => format!("{name} ({})", precision.name()),
    }
}

impl From<&str> for RunPrecision {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl fmt::Display for RunPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
