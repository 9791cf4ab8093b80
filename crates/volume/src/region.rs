//! Boxes inside arrays, and the overflow-checked number of elements of a shape.

use crate::VolumeError;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A box inside a stack: ranges of indices along Z, Y, X.
pub type BoxZyx = [Range<usize>; 3];

/// Number of elements of a shape: the product of its lengths.
///
/// # Errors
/// [`VolumeError::TooLarge`] if the product does not fit `usize`.
pub fn element_count(shape: &[usize]) -> Result<usize, VolumeError> {
    shape
        .iter()
        .try_fold(1usize, |n, s| n.checked_mul(*s))
        .ok_or_else(|| VolumeError::TooLarge { shape: shape.to_vec() })
}

/// A box inside an array: first index and length along each axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    /// First index along each axis.
    pub start: Vec<usize>,
    /// Number of samples along each axis.
    pub size: Vec<usize>,
}

impl Region {
    /// The region that covers a whole array of this shape.
    pub fn whole(shape: &[usize]) -> Self {
        Self { start: vec![0; shape.len()], size: shape.to_vec() }
    }

    /// Returns the region with `start..start + size` along one axis; an axis that does not exist is ignored.
    pub fn with_range(mut self, axis: usize, start: usize, size: usize) -> Self {
        if let (Some(s), Some(n)) = (self.start.get_mut(axis), self.size.get_mut(axis)) {
            *s = start;
            *n = size;
        }
        self
    }

    /// Checks that the region is inside an array of this shape.
    ///
    /// # Errors
    /// [`VolumeError::OutOfBounds`] if it is not.
    pub fn check(&self, shape: &[usize]) -> Result<(), VolumeError> {
        let fits = self.start.len() == shape.len()
            && self.size.len() == shape.len()
            && shape
                .iter()
                .zip(self.start.iter().zip(&self.size))
                .all(|(n, (s, k))| s.checked_add(*k).is_some_and(|end| end <= *n));
        if fits {
            Ok(())
        } else {
            Err(VolumeError::OutOfBounds { start: self.start.clone(), size: self.size.clone(), shape: shape.to_vec() })
        }
    }

    /// Number of samples in the region.
    ///
    /// # Errors
    /// [`VolumeError::TooLarge`] if it does not fit `usize`.
    pub fn len(&self) -> Result<usize, VolumeError> {
        element_count(&self.size)
    }

    /// Whether the region contains no samples.
    pub fn is_empty(&self) -> bool {
        self.size.contains(&0)
    }
}
