//! Arrays with named axes and a voxel size, and the arithmetic a stack needs on its way to a network and back.
//!
//! This room owns [`Array`] (samples with axes), [`Region`] (a box inside an array), [`VoxelSize`] (µm, with the range it is
//! plausible in), [`printable`] (text from files, safe to show), and the
//! pure operations on them. It does no I/O and knows no file format, graph or engine.
//!
//! It fails with [`VolumeError`] when shapes, axes or sample types do not fit; it never panics on sizes that came
//! from outside, and every size is multiplied with overflow checks ([`element_count`]).
//!
//! ```
//! use cytoscope_volume::{Array, Axes, Samples};
//! let stack = Array::new("ZYX".parse()?, vec![2, 3, 4], Samples::U16(vec![7; 24]))?;
//! assert_eq!(stack.size_of('Z'), Some(2));
//! # Ok::<(), cytoscope_volume::VolumeError>(())
//! ```
#![forbid(unsafe_code)]

mod array;
mod axes;
pub mod blend;
mod dtype;
mod error;
mod printable;
mod region;
pub mod resample;
pub mod statistics;
pub mod tile;
mod voxel;

pub use array::{Array, Samples};
pub use axes::{Axes, Axis};
pub use dtype::{DType, Element};
pub use error::VolumeError;
pub use printable::printable;
pub use region::{Region, element_count};
pub use voxel::{ImplausibleVoxelSize, MAX_PLAUSIBLE_RATIO, MAX_PLAUSIBLE_UM, MIN_PLAUSIBLE_UM, VoxelSize};
