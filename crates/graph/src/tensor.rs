//! Dense tensors in C order, with the element type known at run time.

use half::{bf16, f16};

use crate::error::{GraphError, Result};

/// Type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it: kind and bits")]
pub enum ElementType {
    F32,
    F64,
    F16,
    BF16,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    Bool,
}

impl ElementType {
    /// Every type, in declaration order.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F64,
        Self::F16,
        Self::BF16,
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::Bool,
    ];

    /// Returns the size of one element in bytes.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::BF16)
    }

    /// Whether it is a 16-bit floating-point type.
    pub fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }

    /// Returns the type's number in `TensorProto.DataType`.
    pub fn onnx_code(self) -> i32 {
        match self {
            Self::F32 => 1,
            Self::U8 => 2,
            Self::I8 => 3,
            Self::U16 => 4,
            Self::I16 => 5,
            Self::I32 => 6,
            Self::I64 => 7,
            Self::Bool => 9,
            Self::F16 => 10,
            Self::F64 => 11,
            Self::U32 => 12,
            Self::U64 => 13,
            Self::BF16 => 16,
        }
    }

    /// Returns the type with this number in `TensorProto.DataType`, if it is supported.
    pub fn from_onnx_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.onnx_code() == code)
    }
}

cytoscope_storage::named! {
    /// Returns the lower-case name used by numpy (`"float32"`, `"uint8"`, …).
    pub fn name(ElementType) {
        F32 => "float32",
        F64 => "float64",
        F16 => "float16",
        BF16 => "bfloat16",
        I8 => "int8",
        U8 => "uint8",
        I16 => "int16",
        U16 => "uint16",
        I32 => "int32",
        U32 => "uint32",
        I64 => "int64",
        U64 => "uint64",
        Bool => "bool",
    }
}

/// The elements of a [`Tensor`], in C order.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "one variant an element type")]
pub enum TensorData {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    I8(Vec<i8>),
    U8(Vec<u8>),
    I16(Vec<i16>),
    U16(Vec<u16>),
    I32(Vec<i32>),
    U32(Vec<u32>),
    I64(Vec<i64>),
    U64(Vec<u64>),
    Bool(Vec<bool>),
}

/// Runs `$body` with `$v` bound to the vector inside, for any type.
#[macro_export]
#[doc(hidden)]
macro_rules! with_tensor_data {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            $crate::TensorData::F32($v) => $body,
            $crate::TensorData::F64($v) => $body,
            $crate::TensorData::F16($v) => $body,
            $crate::TensorData::BF16($v) => $body,
            $crate::TensorData::I8($v) => $body,
            $crate::TensorData::U8($v) => $body,
            $crate::TensorData::I16($v) => $body,
            $crate::TensorData::U16($v) => $body,
            $crate::TensorData::I32($v) => $body,
            $crate::TensorData::U32($v) => $body,
            $crate::TensorData::I64($v) => $body,
            $crate::TensorData::U64($v) => $body,
            $crate::TensorData::Bool($v) => $body,
        }
    };
}

impl TensorData {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        with_tensor_data!(self, v => v.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the element type.
    pub fn dtype(&self) -> ElementType {
        match self {
            Self::F32(_) => ElementType::F32,
            Self::F64(_) => ElementType::F64,
            Self::F16(_) => ElementType::F16,
            Self::BF16(_) => ElementType::BF16,
            Self::I8(_) => ElementType::I8,
            Self::U8(_) => ElementType::U8,
            Self::I16(_) => ElementType::I16,
            Self::U16(_) => ElementType::U16,
            Self::I32(_) => ElementType::I32,
            Self::U32(_) => ElementType::U32,
            Self::I64(_) => ElementType::I64,
            Self::U64(_) => ElementType::U64,
            Self::Bool(_) => ElementType::Bool,
        }
    }
}

/// A type of tensor elements.
pub trait Scalar: Copy + PartialEq + PartialOrd + Default + Send + Sync + std::fmt::Debug + 'static {
    /// The corresponding run-time type.
    const TYPE: ElementType;
    /// Wraps a vector.
    fn wrap(values: Vec<Self>) -> TensorData;
    /// Returns the values as a slice, if `data` holds this type.
    fn slice(data: &TensorData) -> Option<&[Self]>;
    /// Returns the values as a vector, if `data` holds this type.
    fn unwrap(data: TensorData) -> Option<Vec<Self>>;
    /// Converts to the nearest `f64` (integers beyond 2⁵³ are rounded).
    fn to_f64(self) -> f64;
    /// Converts from `f64` like ONNX `Cast`: fractions are truncated, integers wrap through 64 bits, non-zero is true.
    fn from_f64(value: f64) -> Self;
}

macro_rules! scalar {
    ($t:ty, $v:ident, |$x:ident| $to:expr, |$y:ident| $from:expr) => {
        impl Scalar for $t {
            const TYPE: ElementType = ElementType::$v;
            fn wrap(values: Vec<Self>) -> TensorData {
                TensorData::$v(values)
            }
            fn slice(data: &TensorData) -> Option<&[Self]> {
                if let TensorData::$v(v) = data { Some(v) } else { None }
            }
            fn unwrap(data: TensorData) -> Option<Vec<Self>> {
                if let TensorData::$v(v) = data { Some(v) } else { None }
            }
            fn to_f64(self) -> f64 {
                let $x = self;
                $to
            }
            fn from_f64($y: f64) -> Self {
                $from
            }
        }
    };
}
scalar!(f32, F32, |x| f64::from(x), |y| y as f32);
scalar!(f64, F64, |x| x, |y| y);
scalar!(f16, F16, |x| x.to_f64(), |y| f16::from_f64(y));
scalar!(bf16, BF16, |x| x.to_f64(), |y| bf16::from_f64(y));
scalar!(i8, I8, |x| f64::from(x), |y| y as i64 as i8);
scalar!(u8, U8, |x| f64::from(x), |y| y as i64 as u8);
scalar!(i16, I16, |x| f64::from(x), |y| y as i64 as i16);
scalar!(u16, U16, |x| f64::from(x), |y| y as i64 as u16);
scalar!(i32, I32, |x| f64::from(x), |y| y as i64 as i32);
scalar!(u32, U32, |x| f64::from(x), |y| y as i64 as u32);
scalar!(i64, I64, |x| x as f64, |y| y as i64);
scalar!(u64, U64, |x| x as f64, |y| if y < 0.0 { y as i64 as u64 } else { y as u64 });
scalar!(bool, Bool, |x| f64::from(u8::from(x)), |y| y != 0.0);

/// A dense array in C order.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    data: TensorData,
}

impl Tensor {
    /// Creates a tensor of `shape` with `values`.
    ///
    /// # Errors
    /// If the product of `shape` is not the number of values.
    pub fn new<T: Scalar>(shape: impl Into<Vec<usize>>, values: Vec<T>) -> Result<Self> {
        Self::from_data(shape, T::wrap(values))
    }

    /// Creates a tensor of `shape` with `data`.
    ///
    /// # Errors
    /// If the product of `shape` is not the number of values.
    pub fn from_data(shape: impl Into<Vec<usize>>, data: TensorData) -> Result<Self> {
        let shape = shape.into();
        let expected = shape.iter().try_fold(1usize, |total, &n| total.checked_mul(n));
        if expected == Some(data.len()) {
            Ok(Self { shape, data })
        } else {
            Err(GraphError::misused("tensor data", format!("{} elements", data.len()), format!("shape {shape:?}")))
        }
    }

    /// Creates a tensor with no axes and one element.
    pub fn scalar<T: Scalar>(value: T) -> Self {
        Self { shape: Vec::new(), data: T::wrap(vec![value]) }
    }

    /// Creates a tensor with one axis.
    pub fn vector<T: Scalar>(values: Vec<T>) -> Self {
        Self { shape: vec![values.len()], data: T::wrap(values) }
    }

    /// Creates a tensor of zeros (false for bool).
    ///
    /// # Errors
    /// If the number of elements exceeds the address space.
    pub fn zeros(dtype: ElementType, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        let n = shape.iter().try_fold(1usize, |total, &n| total.checked_mul(n));
        let n = n.filter(|n| n.checked_mul(8).is_some_and(|b| b <= isize::MAX as usize)).ok_or_else(|| {
            GraphError::misused("tensor shape", format!("{shape:?}"), "a number of elements that can be addressed")
        })?;
        let data = match dtype {
            ElementType::F32 => TensorData::F32(vec![0.0; n]),
            ElementType::F64 => TensorData::F64(vec![0.0; n]),
            ElementType::F16 => TensorData::F16(vec![f16::ZERO; n]),
            ElementType::BF16 => TensorData::BF16(vec![bf16::ZERO; n]),
            ElementType::I8 => TensorData::I8(vec![0; n]),
            ElementType::U8 => TensorData::U8(vec![0; n]),
            ElementType::I16 => TensorData::I16(vec![0; n]),
            ElementType::U16 => TensorData::U16(vec![0; n]),
            ElementType::I32 => TensorData::I32(vec![0; n]),
            ElementType::U32 => TensorData::U32(vec![0; n]),
            ElementType::I64 => TensorData::I64(vec![0; n]),
            ElementType::U64 => TensorData::U64(vec![0; n]),
            ElementType::Bool => TensorData::Bool(vec![false; n]),
        };
        Ok(Self { shape, data })
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the element type.
    pub fn dtype(&self) -> ElementType {
        self.data.dtype()
    }

    /// Returns the size of the elements in bytes.
    pub fn size_bytes(&self) -> u64 {
        (self.len() as u64).saturating_mul(self.dtype().size_bytes() as u64)
    }

    /// Returns the elements in C order.
    pub fn data(&self) -> &TensorData {
        &self.data
    }

    /// Returns the elements as a slice of `T`, if that is their type.
    pub fn as_slice<T: Scalar>(&self) -> Option<&[T]> {
        T::slice(&self.data)
    }

    /// Consumes the tensor and returns the elements as a vector of `T`, if that is their type.
    pub(crate) fn into_vec<T: Scalar>(self) -> Option<Vec<T>> {
        T::unwrap(self.data)
    }

    /// Returns the elements, if they are f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        self.as_slice()
    }

    /// Returns the elements, if they are i64.
    pub fn as_i64(&self) -> Option<&[i64]> {
        self.as_slice()
    }

    /// Returns the elements, if they are u8.
    pub fn as_u8(&self) -> Option<&[u8]> {
        self.as_slice()
    }

    /// Returns the elements, if they are i8.
    pub fn as_i8(&self) -> Option<&[i8]> {
        self.as_slice()
    }

    /// Consumes the tensor and returns the elements, if they are f32.
    pub fn into_f32(self) -> Option<Vec<f32>> {
        self.into_vec()
    }

    /// Converts every element to `f64`.
    pub fn to_f64_vec(&self) -> Vec<f64> {
        with_tensor_data!(&self.data, v => v.iter().map(|&x| Scalar::to_f64(x)).collect())
    }

    /// Converts every element to `i64`, if the type is an integer or bool.
    pub fn to_i64_vec(&self) -> Option<Vec<i64>> {
        Some(match &self.data {
            TensorData::I64(v) => v.clone(),
            TensorData::I32(v) => v.iter().map(|&x| i64::from(x)).collect(),
            TensorData::I16(v) => v.iter().map(|&x| i64::from(x)).collect(),
            TensorData::I8(v) => v.iter().map(|&x| i64::from(x)).collect(),
            TensorData::U8(v) => v.iter().map(|&x| i64::from(x)).collect(),
            TensorData::U16(v) => v.iter().map(|&x| i64::from(x)).collect(),
            TensorData::U32(v) => v.iter().map(|&x| i64::from(x)).collect(),
            TensorData::U64(v) => v.iter().map(|&x| x as i64).collect(),
            TensorData::Bool(v) => v.iter().map(|&x| i64::from(x)).collect(),
            _ => return None,
        })
    }

    /// Returns the same elements with a different shape.
    ///
    /// # Errors
    /// If the number of elements differs.
    pub fn reshaped(self, shape: impl Into<Vec<usize>>) -> Result<Self> {
        Self::from_data(shape, self.data)
    }

    /// Converts the elements to another type like ONNX `Cast` (floats are truncated to integers).
    pub fn cast(&self, to: ElementType) -> Self {
        fn to_vec<T: Scalar>(data: &TensorData) -> TensorData {
            // Integers are converted through i64 to preserve 64-bit values; floats through f64.
            if let Some(same) = T::slice(data) {
                return T::wrap(same.to_vec());
            }
            with_tensor_data!(data, v => T::wrap(v.iter().map(|&x| T::from_f64(x.to_f64())).collect()))
        }
        fn to_int<T: Scalar>(data: &TensorData, f: impl Fn(i64) -> T) -> TensorData {
            match data {
                TensorData::I64(v) => T::wrap(v.iter().map(|&x| f(x)).collect()),
                TensorData::U64(v) => T::wrap(v.iter().map(|&x| f(x as i64)).collect()),
                other => to_vec::<T>(other),
            }
        }
        let d = &self.data;
        let data = match to {
            ElementType::F32 => to_vec::<f32>(d),
            ElementType::F64 => to_vec::<f64>(d),
            ElementType::F16 => to_vec::<f16>(d),
            ElementType::BF16 => to_vec::<bf16>(d),
            ElementType::I8 => to_int(d, |x| x as i8),
            ElementType::U8 => to_int(d, |x| x as u8),
            ElementType::I16 => to_int(d, |x| x as i16),
            ElementType::U16 => to_int(d, |x| x as u16),
            ElementType::I32 => to_int(d, |x| x as i32),
            ElementType::U32 => to_int(d, |x| x as u32),
            ElementType::I64 => to_int(d, |x| x),
            ElementType::U64 => to_int(d, |x| x as u64),
            ElementType::Bool => to_int(d, |x| x != 0),
        };
        Self { shape: self.shape.clone(), data }
    }
}
