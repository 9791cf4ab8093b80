//! Arrays with named axes and voxel sizes, and the pure functions that prepare them for a network.
//!
//! This crate owns [`Array`] (samples with axes), [`Region`] (a box inside an array), [`VoxelSize`] (µm, with a
//! plausibility check), [`printable`] (text from files, safe to show), [`number_text`] (numbers of any size as short text),
//! tiling, blending, resampling and statistics. It does no I/O and knows no file format, graph or engine.
//!
//! Functions return [`VolumeError`] when shapes, axes or sample types do not fit. No size from outside the program
//! causes a panic: sizes are multiplied with overflow checks ([`element_count`]).
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
mod number;
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
pub use number::number_text;
pub use printable::printable;
pub use region::{BoxZyx, Region, element_count};
pub use voxel::{ImplausibleVoxelSize, MAX_PLAUSIBLE_RATIO, MAX_PLAUSIBLE_UM, MIN_PLAUSIBLE_UM, VoxelSize};
