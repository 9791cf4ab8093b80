//! Steps that are applied to a stack before segmentation, slab by slab: smoothing, background subtraction, contrast,
//! warps and crops.
//!
//! This crate owns [`PreprocessStep`] (a step with its parameters, as text and as JSON) and [`Chain`] (steps resolved for
//! a stack's shape and voxel size). Values are pulled: a chain computes any box of its output from the boxes of its
//! input that the steps need ([`Reach`]), so the results are bitwise the same for any height of slabs. It does no I/O:
//! the voxels come from a [`Source`].
//!
//! Functions return [`PreprocessError`], which names the step and what it expects.
//!
//! ```
//! use cytoscope_preprocess::{Chain, PreprocessStep};
//! use cytoscope_volume::VoxelSize;
//! let steps = ["gaussian:sigma=1um", "crop:z=2-6"].map(|text| text.parse::<PreprocessStep>());
//! let steps: Vec<PreprocessStep> = steps.into_iter().collect::<Result<_, _>>()?;
//! let chain = Chain::new(&steps, [10, 64, 64], VoxelSize::new_um(1.0, 0.5, 0.5))?;
//! assert_eq!(chain.shape_zyx(), [4, 64, 64]);
//! # Ok::<(), cytoscope_preprocess::PreprocessError>(())
//! ```
#![forbid(unsafe_code)]

mod background;
mod block;
mod chain;
mod contrast;
mod error;
mod memory;
mod resolve;
mod smooth;
mod step;
mod text;
mod warp;

pub use chain::{Chain, Source, StackStatistics, Tails};
pub use error::PreprocessError;
pub use resolve::Reach;
pub use step::{Length, Lengths, MAX_STEPS, PreprocessStep};
pub use text::parse_steps;
