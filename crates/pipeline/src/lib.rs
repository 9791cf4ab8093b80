//! Jobs: what a person asks for, from files to files.
//!
//! This room owns [`PredictJob`] (stacks to labels, maps and tables), [`Model`] (a package made ready), [`devices`] (what this
//! machine can compute on, and the choice among it), and what every long job shares: [`Context`] with progress, cancelling
//! and spans. A job is a value that can be written down, sent, and run again; provenance records hold one.
//!
//! Stacks are read, predicted and written in slabs with temporary files between, so that memory does not grow with the number of
//! slices. It fails with [`JobError`], whose [`JobError::kind`] is the exit code of the command line; a failed or cancelled job
//! leaves no half-written result.
#![forbid(unsafe_code)]

pub mod cards;
mod carried;
mod convert;
pub mod devices;
mod diameter;
mod error;
mod evaluate;
mod job;
mod measure;
mod model;
mod ops;
mod package_test;
pub mod packages;
pub mod predict;
pub mod provenance;
pub mod quantize;
pub mod results;
mod segment;
mod spool;
mod stack;
mod tensors;
mod verify;
mod wire;
pub mod worker;

pub use convert::ConvertJob;
pub use diameter::{Certainty, DiameterEstimate, DiameterJob, DiameterRequest, DiameterUnit, ObjectDiameter};
pub use error::{JobError, JobErrorKind, model_sentence, naming};
pub use evaluate::{EvaluateJob, EvaluateReport, Ignored, PairReport};
pub use job::{CancelToken, Context, Event, MAX_THREADS, Meter, check_threads};
pub use measure::{MeasureJob, MeasureReport};
pub use model::{Model, Task, find_model, model_folders, user_folder};
pub use predict::{InputFailure, InputReport, Output, PredictJob, PredictOutcome};
pub use segment::{LabelFormat, SegmentJob, SegmentReport};
pub use stack::Extents;
pub use verify::Verdict;
