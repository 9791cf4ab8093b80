//! Correcting label volumes: edits, undo and redo, a journal that survives a crash, and export of training pairs. The
//! crate has no user interface.
//!
//! This crate owns [`LabelVolume`] (labels in chunks, axes Z, Y, X, 0 = background), the edits ([`Edit`], and
//! interactive strokes), the [`Session`] that makes them undoable and writes each of them to a journal immediately, and
//! [`export_pair`], which exports corrected labels as training data. Lengths are in µm (an unknown voxel size counts as
//! 1 µm); points are voxel coordinates Z, Y, X with whole numbers at voxel centers.
//!
//! The cost of an edit depends on the voxels it affects, not on the volume: an edit of a slice reads only its chunks,
//! and an edit of a label only the chunks that contain it. Loading, [`Session::open`], [`Session::compact`], saving and
//! exporting take time proportional to the volume and are meant for background threads; [`LabelVolume::snapshot`] is
//! cheap.
//!
//! Functions return [`CorrectionError`]; a failed call changes nothing. Journals and files are not trusted: sizes are
//! checked against the file and named limits ([`limits`]) before memory is allocated.
//!
//! ```
//! use cytoscope_corrections::{Brush, BrushShape, DrawOver, Edit, LabelVolume, Session, SessionOptions, SliceAxis};
//! use cytoscope_volume::VoxelSize;
//!
//! let folder = tempfile::tempdir()?;
//! let journal = folder.path().join("cells.journal");
//! let base = LabelVolume::new([20, 100, 100], VoxelSize::new_um(1.0, 0.25, 0.25))?;
//! let (mut session, _) = Session::open(base.clone(), None, &journal, SessionOptions::default())?;
//! let label = session.new_label()?;
//! let shape = BrushShape::Disk(SliceAxis::Z);
//! let brush = Brush { shape, radius_um: 2.0, value: label, over: DrawOver::Background };
//! session.begin_stroke(brush, [10.0, 50.0, 20.0])?;
//! session.extend_stroke([10.0, 50.0, 60.0])?;
//! let change = session.end_stroke()?;
//! assert_eq!(change.map(|c| c.name), Some("Paint 1".to_owned()));
//! drop(session);
//!
//! let (session, replay) = Session::open(base, None, &journal, SessionOptions::default())?;
//! assert_eq!((replay.entries, session.volume().get([10, 50, 40])), (1, Some(label)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod chunks;
mod diff;
mod edit;
mod error;
mod export;
mod files;
mod geometry;
mod history;
mod index;
mod journal;
mod known_voxels;
pub mod limits;
mod replay;
mod session;
mod volume;

pub use chunks::{CHUNK_ZYX, Fingerprint, LabelSnapshot};
pub use edit::{Brush, BrushShape, Change, DrawOver, Edit};
pub use error::CorrectionError;
pub use export::{ExportedPair, RawSource, export_pair, export_part};
pub use files::{LoadOptions, Progress};
pub use geometry::{BoundsZyx, Plane, Scope, SliceAxis};
pub use known_voxels::{KnownVoxels, UNKNOWN_LABEL};
pub use limits::Limits;
pub use replay::{DroppedTail, Replay};
pub use session::{SaveTicket, Saved, Session, SessionOptions};
pub use volume::LabelVolume;
