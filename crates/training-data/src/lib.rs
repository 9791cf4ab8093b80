//! Training data: from a folder of images and labels to the patches that a network is trained on.
//!
//! This crate owns the layouts of training folders ([`find_pairs`]), their checks ([`check`]), the split into training
//! and validation set ([`split`]), cached reading of stacks larger than memory ([`Sources`]), augmented patches with
//! their targets and weights ([`Sampler`]), and the threads that prefetch them ([`Loader`]). It is independent of
//! networks and engines.
//!
//! Volumes are in C order `[Z][Y][X]`, lengths in µm. A patch is a pure function of the pairs, the options and its
//! index, so a resumed training run gets the same patches as an uninterrupted one. Errors are [`TrainingDataError`].
//! Malformed files cause no panics, and sizes are checked against [`limits`] before memory is allocated.
//!
//! ```
//! use cytoscope_formats::{Container, WriteSpec, write_array};
//! use cytoscope_training_data::{Sampler, SamplerOptions, SourceOptions, Sources, TrainingTask, find_pairs};
//! use cytoscope_volume::{Array, Samples};
//! use std::sync::Arc;
//!
//! let folder = tempfile::tempdir()?;
//! let labels: Vec<u16> = (0..8 * 16 * 16).map(|i| u16::from(i % 16 > 4 && i % 16 < 12)).collect();
//! let image: Vec<u16> = labels.iter().map(|l| 100 + 900 * l).collect();
//! for (name, samples) in [("a.tif", image), ("a_masks.tif", labels)] {
//!     let stack = Array::new("ZYX".parse()?, vec![8, 16, 16], Samples::U16(samples))?;
//!     write_array(&folder.path().join(name), &stack, &WriteSpec::of(&stack, Container::ImageJ))?;
//! }
//! let dataset = find_pairs(folder.path(), TrainingTask::Segmentation)?;
//! let sources = Arc::new(Sources::open(&dataset.pairs, &SourceOptions::default())?);
//! let options = SamplerOptions { patch_zyx: [4, 8, 8], ..SamplerOptions::default() };
//! let patch = Sampler::new(sources, options)?.sample(0)?;
//! assert_eq!((patch.image.len(), patch.target.len()), (256, 2 * 256));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod augment;
mod check;
mod cut;
mod dataset;
mod error;
mod find;
mod interpolate;
pub mod limits;
mod loader;
mod normalize;
mod objects;
mod reader;
mod sampler;
pub mod setting;
mod sources;
mod split;
mod stack;
pub mod summary;
mod targets;

pub use augment::AugmentOptions;
pub use check::{CheckOptions, Intensities, PairSummary, Report, check, check_with};
pub use cut::{CutAxis, StackCut};
pub use dataset::{Convention, Dataset, ImageRef, Pair, Part, Problem, Severity, StackWindow, TrainingTask};
pub use error::TrainingDataError;
pub use find::{FindOptions, SpacingOrder, find_pairs, find_pairs_with};
pub use loader::{Batch, Loader, LoaderOptions};
pub use normalize::{Normalize, Scaling};
pub use objects::{IgnoreLabel, assumed_voxel, median_diameter_um};
pub use reader::{CacheUse, Outside, patch_cache_bytes};
pub use sampler::{ObjectScale, Origin, Patch, Sampler, SamplerOptions, StageTimes};
pub use sources::{SourceOptions, Sources};
pub use split::{Group, Split, SplitOptions, split};
pub use targets::{GapWeight, TargetKind};
