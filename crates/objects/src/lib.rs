//! Segmentation of probability maps into labeled, measured objects, and scoring of label images.
//!
//! The crate owns thresholds ([`threshold`]), smoothing, connected components ([`components`]), the exact Euclidean
//! distance transform ([`distance`]), the h-maxima watershed ([`watershed`]), the segmentation that combines them
//! ([`segment`], or [`StreamedSegmentation`] slice by slice; objects that are too large are split again, see
//! [`OversizedOptions`]), stitching of labels across slabs ([`stitch`]), the measurements ([`measure`]) and their table
//! ([`table`]), surfaces ([`mesh`]), metrics ([`matching`], [`segmentation_errors`], [`regression`]), predicted objects in
//! partly annotated images ([`rims`]), labels that fill most of an image ([`dominant`]), the object diameter ([`diameter`])
//! and the size of blobs in an image ([`blobs`]). Volumes are slices in C order `[Z][Y][X]`; lengths are in µm.
//!
//! Errors are [`ObjectsError`]s: sizes that do not match, or parameters out of range.
//!
//! ```
//! use cytoscope_objects::{SegmentOptions, Threshold, segment};
//! let mut probability = vec![0.0f32; 5 * 9 * 9];
//! for (i, p) in probability.iter_mut().enumerate() {
//!     let (z, y, x) = (i / 81, i / 9 % 9, i % 9);
//!     if (1..4).contains(&z) && (3..6).contains(&y) && (3..6).contains(&x) { *p = 0.9; }
//! }
//! let options = SegmentOptions { threshold: Threshold::Fixed(0.5), min_volume_um3: 0.0, ..SegmentOptions::default() };
//! let (labels, count) = segment(&probability, [5, 9, 9], [1.0; 3], &options)?;
//! assert_eq!((count, labels.iter().filter(|l| **l == 1).count()), (1, 27));
//! # Ok::<(), cytoscope_objects::ObjectsError>(())
//! ```
#![forbid(unsafe_code)]

mod assignment;
pub mod blobs;
mod columns;
pub mod components;
mod crofton;
pub mod diameter;
pub mod distance;
pub mod dominant;
mod error;
pub mod filter;
mod foreground;
pub mod matching;
pub mod measure;
pub mod mesh;
mod necks;
pub mod neighbors;
mod options;
mod oversized;
pub mod regression;
pub mod rims;
mod rolling_components;
mod sections;
mod segment;
pub mod segmentation_errors;
mod selection;
pub mod smooth;
pub mod stitch;
mod streamed;
mod surroundings;
pub mod table;
pub mod threshold;
mod trim;
pub mod watershed;

pub use columns::{ObjectColumn, TableAxis};
pub use error::ObjectsError;
pub use foreground::Foreground;
pub use options::{Height, IsolatedOptions, OversizedOptions, SegmentOptions, Threshold, TissueOptions};
pub use segment::{segment, segment_in_place, segment_with_foreground};
pub use streamed::{MapNeeds, StreamedSegmentation};
pub use table::ObjectTable;
