//! n-dimensional arrays: samples, axes and shape.

use crate::{Axes, Axis, DType, Element, Region, VolumeError, element_count};
use half::f16;

/// Samples of one type, in C order (the last axis varies fastest).
#[derive(Debug, Clone, PartialEq)]
pub enum Samples {
    /// 8-bit unsigned integers.
    U8(Vec<u8>),
    /// 16-bit unsigned integers.
    U16(Vec<u16>),
    /// 32-bit unsigned integers.
    U32(Vec<u32>),
    /// 64-bit unsigned integers.
    U64(Vec<u64>),
    /// 8-bit signed integers.
    I8(Vec<i8>),
    /// 16-bit signed integers.
    I16(Vec<i16>),
    /// 32-bit signed integers.
    I32(Vec<i32>),
    /// 64-bit signed integers.
    I64(Vec<i64>),
    /// 16-bit floats.
    F16(Vec<f16>),
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit floats.
    F64(Vec<f64>),
}

/// Evaluates an expression with `$v` bound to the typed vector inside a [`Samples`].
#[macro_export]
macro_rules! with_samples {
    ($samples:expr, $v:ident => $body:expr) => {
        match $samples {
            $crate::Samples::U8($v) => $body,
            $crate::Samples::U16($v) => $body,
            $crate::Samples::U32($v) => $body,
            $crate::Samples::U64($v) => $body,
            $crate::Samples::I8($v) => $body,
            $crate::Samples::I16($v) => $body,
            $crate::Samples::I32($v) => $body,
            $crate::Samples::I64($v) => $body,
            $crate::Samples::F16($v) => $body,
            $crate::Samples::F32($v) => $body,
            $crate::Samples::F64($v) => $body,
        }
    };
}

impl Samples {
    /// Creates `len` zeros of a type.
    pub fn zeros(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::U8 => Samples::U8(vec![0; len]),
            DType::U16 => Samples::U16(vec![0; len]),
            DType::U32 => Samples::U32(vec![0; len]),
            DType::U64 => Samples::U64(vec![0; len]),
            DType::I8 => Samples::I8(vec![0; len]),
            DType::I16 => Samples::I16(vec![0; len]),
            DType::I32 => Samples::I32(vec![0; len]),
            DType::I64 => Samples::I64(vec![0; len]),
            DType::F16 => Samples::F16(vec![f16::ZERO; len]),
            DType::F32 => Samples::F32(vec![0.0; len]),
            DType::F64 => Samples::F64(vec![0.0; len]),
        }
    }

    /// Returns the type of the samples.
    pub fn dtype(&self) -> DType {
        match self {
            Samples::U8(_) => DType::U8,
            Samples::U16(_) => DType::U16,
            Samples::U32(_) => DType::U32,
            Samples::U64(_) => DType::U64,
            Samples::I8(_) => DType::I8,
            Samples::I16(_) => DType::I16,
            Samples::I32(_) => DType::I32,
            Samples::I64(_) => DType::I64,
            Samples::F16(_) => DType::F16,
            Samples::F32(_) => DType::F32,
            Samples::F64(_) => DType::F64,
        }
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        with_samples!(self, v => v.len())
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples as bytes in native byte order.
    pub fn as_bytes(&self) -> &[u8] {
        with_samples!(self, v => bytemuck::cast_slice(v))
    }

    /// The samples as mutable bytes in native byte order.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        with_samples!(self, v => bytemuck::cast_slice_mut(v))
    }

    /// The samples converted to `f32`.
    pub fn to_f32(&self) -> Vec<f32> {
        fn convert<E: Element>(v: &[E]) -> Vec<f32> {
            v.iter().map(|s| s.to_f32()).collect()
        }
        with_samples!(self, v => convert(v))
    }

    /// The samples converted to `f64`.
    pub fn to_f64(&self) -> Vec<f64> {
        fn convert<E: Element>(v: &[E]) -> Vec<f64> {
            v.iter().map(|s| s.to_f64()).collect()
        }
        with_samples!(self, v => convert(v))
    }
}

macro_rules! from_vec {
    ($($t:ty => $d:ident),*) => {$(
        impl From<Vec<$t>> for Samples {
            fn from(v: Vec<$t>) -> Self { Samples::$d(v) }
        }
    )*};
}
from_vec!(u8 => U8, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64, f16 => F16, f32 => F32, f64 => F64);

/// An n-dimensional image in C order: axes (outermost first), shape and samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    axes: Axes,
    shape: Vec<usize>,
    samples: Samples,
}

impl Array {
    /// Creates an array from axes, shape and samples.
    ///
    /// # Errors
    /// [`VolumeError::ShapeMismatch`] if axes and shape differ in length, [`VolumeError::LengthMismatch`] if the
    /// number of samples does not match the shape, [`VolumeError::TooLarge`] if the shape overflows.
    pub fn new(axes: Axes, shape: Vec<usize>, samples: impl Into<Samples>) -> Result<Self, VolumeError> {
        let samples = samples.into();
        if axes.len() != shape.len() {
            return Err(VolumeError::ShapeMismatch {
                what: "one extent per axis",
                expected: vec![0; axes.len()],
                got: shape,
            });
        }
        let expected = element_count(&shape)?;
        if expected != samples.len() {
            return Err(VolumeError::LengthMismatch { axes, shape, expected, got: samples.len() });
        }
        Ok(Self { axes, shape, samples })
    }

    /// Returns the axes, outermost first.
    pub fn axes(&self) -> &Axes {
        &self.axes
    }

    /// Number of samples along each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The samples in C order.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// Returns the samples and drops axes and shape.
    pub fn into_samples(self) -> Samples {
        self.samples
    }

    /// Returns the type of the samples.
    pub fn dtype(&self) -> DType {
        self.samples.dtype()
    }

    /// Number of samples along the axis of a letter; `None` if the array has no such axis.
    pub fn size_of(&self, letter: char) -> Option<usize> {
        let i = self.axes.position(Axis::from_letter(letter)?)?;
        self.shape.get(i).copied()
    }

    /// Returns a copy of the samples inside a region.
    ///
    /// # Errors
    /// [`VolumeError::OutOfBounds`] if the region is not inside the array.
    pub fn crop(&self, region: &Region) -> Result<Array, VolumeError> {
        region.check(&self.shape)?;
        let len = region.len()?;
        fn copy<E: Copy>(src: &[E], shape: &[usize], region: &Region, len: usize) -> Vec<E> {
            let mut out = Vec::with_capacity(len);
            if len == 0 {
                return out;
            }
            let rank = shape.len();
            if rank == 0 {
                return src.to_vec();
            }
            let mut strides = vec![1usize; rank];
            for i in (0..rank - 1).rev() {
                strides[i] = strides[i + 1] * shape[i + 1];
            }
            let mut index = vec![0usize; rank - 1];
            let row = region.size[rank - 1];
            loop {
                let base: usize = region.start[rank - 1]
                    + index.iter().enumerate().map(|(i, k)| (region.start[i] + k) * strides[i]).sum::<usize>();
                out.extend_from_slice(&src[base..base + row]);
                let mut axis = rank - 1;
                loop {
                    if axis == 0 {
                        return out;
                    }
                    axis -= 1;
                    index[axis] += 1;
                    if index[axis] < region.size[axis] {
                        break;
                    }
                    index[axis] = 0;
                }
            }
        }
        let samples = with_samples!(&self.samples, v => Samples::from(copy(v, &self.shape, region, len)));
        Ok(Array { axes: self.axes.clone(), shape: region.size.clone(), samples })
    }

    /// Returns a copy with the axes in a different order.
    ///
    /// # Errors
    /// [`VolumeError::BadAxes`] if `order` is not a permutation of this array's axes.
    pub fn transpose(&self, order: &Axes) -> Result<Array, VolumeError> {
        if order == &self.axes {
            return Ok(self.clone());
        }
        let bad = || VolumeError::BadAxes { text: order.to_string() };
        if order.len() != self.axes.len() {
            return Err(bad());
        }
        let perm: Vec<usize> = order.iter().map(|a| self.axes.position(a)).collect::<Option<_>>().ok_or_else(bad)?;
        let rank = perm.len();
        let mut strides = vec![1usize; rank];
        for i in (0..rank.saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * self.shape[i + 1];
        }
        let shape: Vec<usize> = perm.iter().map(|p| self.shape[*p]).collect();
        let steps: Vec<usize> = perm.iter().map(|p| strides[*p]).collect();
        fn gather<E: Copy>(src: &[E], shape: &[usize], steps: &[usize]) -> Vec<E> {
            let mut out = Vec::with_capacity(src.len());
            fn walk<E: Copy>(src: &[E], shape: &[usize], steps: &[usize], base: usize, out: &mut Vec<E>) {
                match (shape, steps) {
                    ([n], [s]) => out.extend((0..*n).map(|i| src[base + i * s])),
                    ([n, shape @ ..], [s, steps @ ..]) => {
                        (0..*n).for_each(|i| walk(src, shape, steps, base + i * s, out));
                    }
                    _ => out.extend(src.get(base)),
                }
            }
            if !src.is_empty() {
                walk(src, shape, steps, 0, &mut out);
            }
            out
        }
        let samples = with_samples!(&self.samples, v => Samples::from(gather(v, &shape, &steps)));
        Ok(Array { axes: order.clone(), shape, samples })
    }

    /// Removes all axes of extent 1. If no axis remains, the array holds one sample.
    pub fn squeeze(self) -> Array {
        let keep: Vec<usize> = (0..self.shape.len()).filter(|i| self.shape[*i] != 1).collect();
        let axes = Axes::new(keep.iter().map(|i| self.axes.as_slice()[*i]).collect()).unwrap_or_default();
        let shape = keep.iter().map(|i| self.shape[*i]).collect();
        Array { axes, shape, samples: self.samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(axes: &str, shape: &[usize]) -> Array {
        let len = element_count(shape).unwrap();
        Array::new(axes.parse().unwrap(), shape.to_vec(), (0..len as u32).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn crop_returns_the_samples_of_the_region() {
        let a = counting("ZYX", &[3, 4, 5]);
        let c = a.crop(&Region { start: vec![1, 2, 3], size: vec![2, 1, 2] }).unwrap();
        assert_eq!(c.samples(), &Samples::U32(vec![33, 34, 53, 54]));
        assert!(a.crop(&Region { start: vec![1, 2, 3], size: vec![3, 1, 2] }).is_err());
    }

    #[test]
    fn transpose_permutes_axes_and_is_reversible() {
        let a = counting("ZYX", &[2, 3, 4]);
        let t = a.transpose(&"XZY".parse().unwrap()).unwrap();
        assert_eq!(t.shape(), &[4, 2, 3]);
        assert_eq!(t.samples().to_f32()[0..4], [0.0, 4.0, 8.0, 12.0]);
        assert_eq!(t.transpose(a.axes()).unwrap(), a);
        assert!(a.transpose(&"ZYC".parse().unwrap()).is_err());
    }

    #[test]
    fn wrong_lengths_and_overflow_are_refused() {
        let bad = Array::new("YX".parse().unwrap(), vec![2, 3], vec![0u8; 5]);
        assert!(matches!(bad, Err(VolumeError::LengthMismatch { expected: 6, got: 5, .. })));
        let huge = Array::new("YX".parse().unwrap(), vec![usize::MAX, 3], vec![0u8; 5]);
        assert!(matches!(huge, Err(VolumeError::TooLarge { .. })));
    }
}
