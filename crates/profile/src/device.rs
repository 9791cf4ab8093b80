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
