//! Sample types.

use crate::VolumeError;
use half::f16;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The type of one sample, with NumPy's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DType {
    /// 8-bit unsigned integer (1-, 2- and 4-bit samples are widened to it).
    U8,
    /// 16-bit unsigned integer (12-bit samples are widened to it).
    U16,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit unsigned integer.
    U64,
    /// 8-bit signed integer.
    I8,
    /// 16-bit signed integer.
    I16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// 16-bit float (IEEE 754 half).
    F16,
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
}

impl DType {
    /// All sample types, integers first.
    pub const ALL: [DType; 11] = [
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::F32,
        DType::F64,
    ];

    /// Returns the size of one sample in bytes.
    pub fn size_bytes(self) -> usize {
        match self {
            DType::U8 | DType::I8 => 1,
            DType::U16 | DType::I16 | DType::F16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 => 8,
        }
    }

    /// NumPy's name of the type, such as `uint16`.
    pub fn name(self) -> &'static str {
        match self {
            DType::U8 => "uint8",
            DType::U16 => "uint16",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::F16 => "float16",
            DType::F32 => "float32",
            DType::F64 => "float64",
        }
    }

    /// Whether samples are floating point.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::F32 | DType::F64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = VolumeError;

    fn from_str(text: &str) -> Result<Self, VolumeError> {
        DType::ALL.into_iter().find(|d| d.name() == text).ok_or_else(|| VolumeError::BadDType { text: text.to_owned() })
    }
}

impl TryFrom<String> for DType {
    type Error = VolumeError;

    fn try_from(text: String) -> Result<Self, VolumeError> {
        text.parse()
    }
}

impl From<DType> for String {
    fn from(dtype: DType) -> String {
        dtype.name().to_owned()
    }
}

/// A Rust type that corresponds to a [`DType`].
pub trait Element: bytemuck::Pod + Copy + Send + Sync + PartialOrd + 'static {
    /// The corresponding sample type.
    const DTYPE: DType;

    /// The value as `f32`, rounded if it has no exact representation.
    fn to_f32(self) -> f32;

    /// The value as `f64`, rounded if it has no exact representation.
    fn to_f64(self) -> f64;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            #[inline]
            fn to_f32(self) -> f32 { self as f32 }
            #[inline]
            fn to_f64(self) -> f64 { self as f64 }
        }
    )*};
}
element!(u8 => U8, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64, f32 => F32, f64 => F64);

impl Element for f16 {
    const DTYPE: DType = DType::F16;
    #[inline]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline]
    fn to_f64(self) -> f64 {
        f16::to_f64(self)
    }
}
