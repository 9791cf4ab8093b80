//! Tensors as views of stored bytes.

use crate::error::ImportError;
use cytoscope_graph::{ElementType, Tensor, TensorData};
use half::{bf16, f16};
use std::sync::Arc;

/// Maximum number of axes of a tensor.
pub(crate) const MAX_AXES: usize = 8;

/// A tensor of a checkpoint: a view of a storage, in any order of axes.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    dtype: ElementType,
    shape: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
    storage: Arc<Vec<u8>>,
}

impl StoredTensor {
    /// Creates a view; `strides` and `offset` count elements.
    ///
    /// # Errors
    /// [`ImportError`], which names the tensor, if it has too many axes, extends beyond the storage, or is larger than it.
    pub(crate) fn new(
        name: &str,
        dtype: ElementType,
        (shape, strides): (Vec<usize>, Vec<usize>),
        offset: usize,
        storage: Arc<Vec<u8>>,
    ) -> Result<Self, ImportError> {
        // Errors list the lengths of all axes.
        if shape.len() > MAX_AXES {
            let what = format!("a tensor of {} axes, \"{name}\"", shape.len());
            return Err(ImportError::OverLimit { what, limit: MAX_AXES as u64 });
        }
        let stored = storage.len() / dtype.size_bytes();
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let last = shape.iter().zip(&strides).try_fold(offset, |at, (n, stride)| {
            n.saturating_sub(1).checked_mul(*stride).and_then(|reach| at.checked_add(reach))
        });
        let fits = shape.len() == strides.len()
            && elements.is_some_and(|n| n <= stored && (n == 0 || last.is_some_and(|last| last < stored)));
        if !fits {
            return Err(ImportError::malformed(format!(
                "tensor \"{name}\" of shape {shape:?}, strides {strides:?} and offset {offset} extends beyond its \
                 storage of {stored} elements"
            )));
        }
        Ok(Self { dtype, shape, strides, offset, storage })
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> ElementType {
        self.dtype
    }

    /// Returns the size of the elements in bytes, without regard to other tensors with the same storage.
    pub(crate) fn bytes(&self) -> u64 {
        let elements = self.shape.iter().fold(1u64, |n, length| n.saturating_mul(*length as u64));
        elements.saturating_mul(self.dtype.size_bytes() as u64)
    }

    /// Copies the elements in C order.
    ///
    /// # Errors
    /// [`ImportError::Graph`] if there are too many elements to address.
    pub fn to_tensor(&self) -> Result<Tensor, ImportError> {
        let data = match self.dtype {
            ElementType::F32 => TensorData::F32(self.read(f32::from_le_bytes)),
            ElementType::F64 => TensorData::F64(self.read(f64::from_le_bytes)),
            ElementType::F16 => TensorData::F16(self.read(f16::from_le_bytes)),
            ElementType::BF16 => TensorData::BF16(self.read(bf16::from_le_bytes)),
            ElementType::I8 => TensorData::I8(self.read(i8::from_le_bytes)),
            ElementType::U8 => TensorData::U8(self.read(u8::from_le_bytes)),
            ElementType::I16 => TensorData::I16(self.read(i16::from_le_bytes)),
            ElementType::U16 => TensorData::U16(self.read(u16::from_le_bytes)),
            ElementType::I32 => TensorData::I32(self.read(i32::from_le_bytes)),
            ElementType::U32 => TensorData::U32(self.read(u32::from_le_bytes)),
            ElementType::I64 => TensorData::I64(self.read(i64::from_le_bytes)),
            ElementType::U64 => TensorData::U64(self.read(u64::from_le_bytes)),
            ElementType::Bool => TensorData::Bool(self.read(|[byte]: [u8; 1]| byte != 0)),
        };
        Ok(Tensor::from_data(self.shape.clone(), data)?)
    }

    /// Reads the elements in C order. Creation has checked that all of them are in the storage.
    fn read<T, const N: usize>(&self, from: impl Fn([u8; N]) -> T) -> Vec<T> {
        let elements: usize = self.shape.iter().product();
        let mut values = Vec::with_capacity(elements);
        let mut index = vec![0usize; self.shape.len()];
        let mut at = self.offset;
        for _ in 0..elements {
            let bytes = self.storage.get(at * N..).and_then(|rest| rest.first_chunk::<N>());
            values.extend(bytes.map(|bytes| from(*bytes)));
            // The next index, last axis first.
            for ((i, n), stride) in index.iter_mut().zip(&self.shape).zip(&self.strides).rev() {
                *i += 1;
                // An axis of length 1 may have any stride: the sum may wrap around, which the subtraction below undoes.
                at = at.wrapping_add(*stride);
                if *i < *n {
                    break;
                }
                at = at.wrapping_sub(stride.wrapping_mul(*n));
                *i = 0;
            }
        }
        values
    }
}

/// Returns the strides of a tensor in C order.
pub(crate) fn contiguous(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    let mut step = 1usize;
    for (stride, n) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step = step.saturating_mul((*n).max(1));
    }
    strides
}
