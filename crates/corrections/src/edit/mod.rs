//! The edits, the report of their changes, and their execution.
//!
//! A failed edit changes nothing: the caller of [`run`] reverts what was already written.

pub(crate) mod brush;
mod face_neighbors;
mod fill_holes;
mod flood_fill;
mod grow_shrink;
mod interpolate;
mod split_by_line;
mod split_by_seeds;
#[cfg(test)]
mod tests;

pub use brush::{Brush, BrushShape};

use crate::geometry::{BoundsZyx, Scope};
use crate::volume::LabelWriter;
use crate::{CorrectionError, SliceAxis};

/// Which voxels an edit may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DrawOver {
    /// All voxels.
    #[default]
    Any,
    /// Only background.
    Background,
    /// Only voxels of this label.
    Inside(u32),
}

impl DrawOver {
    /// Whether a voxel with the label `old` may be overwritten.
    pub(crate) fn allows(self, old: u32) -> bool {
        match self {
            DrawOver::Any => true,
            DrawOver::Background => old == 0,
            DrawOver::Inside(label) => old == label,
        }
    }
}

/// An edit of labels. Points are voxel coordinates along Z, Y, X; whole numbers are the centers of voxels.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// Paints with a brush along a line through the points, without gaps. The value 0 erases.
    Paint {
        /// Shape, size and value of the brush.
        brush: Brush,
        /// Points of the line; a single point paints the brush once.
        points: Vec<[f64; 3]>,
    },
    /// Flood fill: gives the region of equal label around a voxel, connected by faces, a new label.
    Fill {
        /// A voxel of the region.
        seed: [usize; 3],
        /// The new label; 0 makes it background.
        value: u32,
        /// In the voxel's slice or in the volume.
        scope: Scope,
    },
    /// Fills the holes of a label: the voxels that it encloses in a slice or in the volume.
    FillHoles {
        /// Label whose holes are filled.
        label: u32,
        /// In one slice or in the volume.
        scope: Scope,
        /// Which voxels may change.
        over: DrawOver,
    },
    /// Deletes a label: its voxels become background.
    Delete {
        /// Label to delete.
        label: u32,
        /// In one slice or in the volume.
        scope: Scope,
    },
    /// Merges several labels into one.
    Merge {
        /// Labels to replace; labels that do not exist are ignored.
        labels: Vec<u32>,
        /// The resulting label.
        into: u32,
        /// In one slice or in the volume.
        scope: Scope,
    },
    /// Splits a label by a watershed on its distance transform into one part per seed. The part of the first seed keeps
    /// the label, and so do pieces that no seed reaches.
    SplitBySeeds {
        /// Label to split.
        label: u32,
        /// Two or more voxels of the label.
        seeds: Vec<[usize; 3]>,
        /// In one slice or in the volume.
        scope: Scope,
    },
    /// Splits a label along a line in a slice. The largest part keeps the label.
    SplitByLine {
        /// Label to split.
        label: u32,
        /// The axis perpendicular to the slice.
        axis: SliceAxis,
        /// Points of the line, all in the slice of the first point.
        points: Vec<[f64; 3]>,
        /// Cut through all slices of the label instead of only this slice.
        through: bool,
    },
    /// Interpolates the shape of a label in empty slices between slices that contain it, using signed distances.
    Interpolate {
        /// Label whose shape is interpolated.
        label: u32,
        /// The axis perpendicular to the slices.
        axis: SliceAxis,
        /// A slice in the gap to fill; `None` for all gaps.
        at: Option<usize>,
        /// Which voxels may change.
        over: DrawOver,
    },
    /// Adds the voxels within a distance of a label.
    Grow {
        /// Label to enlarge.
        label: u32,
        /// The distance in µm.
        by_um: f64,
        /// In one slice or in the volume.
        scope: Scope,
        /// Which voxels may change.
        over: DrawOver,
    },
    /// Removes the voxels of a label within a distance of voxels that do not belong to it. The border of the volume does
    /// not count.
    Shrink {
        /// Label to shrink.
        label: u32,
        /// The distance in µm.
        by_um: f64,
        /// In one slice or in the volume.
        scope: Scope,
    },
}

impl Edit {
    /// Name of the edit in the undo history.
    pub fn name(&self) -> String {
        match self {
            Edit::Paint { brush, .. } => brush.name(),
            Edit::Fill { value: 0, .. } => "Clear region".to_owned(),
            Edit::Fill { value, .. } => format!("Fill {value}"),
            Edit::FillHoles { label, .. } => format!("Fill holes of {label}"),
            Edit::Delete { label, .. } => format!("Delete {label}"),
            Edit::Merge { into, .. } => format!("Merge into {into}"),
            Edit::SplitBySeeds { label, .. } | Edit::SplitByLine { label, .. } => format!("Split {label}"),
            Edit::Interpolate { label, .. } => format!("Interpolate {label}"),
            Edit::Grow { label, .. } => format!("Grow {label}"),
            Edit::Shrink { label, .. } => format!("Shrink {label}"),
        }
    }
}

/// The change made by an edit, an undo or a redo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Name of the step, such as `Paint 12`.
    pub name: String,
    /// The smallest box around the changed voxels; `None` if nothing changed, in which case no step is recorded.
    pub bounds: Option<BoundsZyx>,
    /// Number of changed voxels.
    pub voxels: u64,
    /// Labels that a split created.
    pub new_labels: Vec<u32>,
    /// Number of oldest steps that can no longer be undone because the undo memory is full. If [`Change::undoable`] is
    /// false, this step is one of them.
    pub dropped_steps: usize,
    /// Whether this step can be undone: false if it alone exceeds the undo memory.
    pub undoable: bool,
}

/// Executes an edit and returns the new labels it created.
pub(crate) fn run(writer: &mut LabelWriter, edit: &Edit) -> Result<Vec<u32>, CorrectionError> {
    match edit {
        Edit::Paint { brush, points } => brush::paint(writer, brush, points).map(|()| Vec::new()),
        Edit::Fill { seed, value, scope } => flood_fill::flood_fill(writer, *seed, *value, *scope).map(|()| Vec::new()),
        Edit::FillHoles { label, scope, over } => {
            fill_holes::fill_holes(writer, *label, *scope, *over).map(|()| Vec::new())
        }
        Edit::Delete { label, scope } => {
            writer.volume().bounds_in(*label, *scope)?;
            relabel(writer, &[*label], 0, *scope).map(|()| Vec::new())
        }
        Edit::Merge { labels, into, scope } => merge(writer, labels, *into, *scope).map(|()| Vec::new()),
        Edit::SplitBySeeds { label, seeds, scope } => split_by_seeds::split_by_seeds(writer, *label, seeds, *scope),
        Edit::SplitByLine { label, axis, points, through } => {
            split_by_line::split_by_line(writer, *label, *axis, points, *through)
        }
        Edit::Interpolate { label, axis, at, over } => {
            interpolate::interpolate(writer, *label, *axis, *at, *over).map(|()| Vec::new())
        }
        Edit::Grow { label, by_um, scope, over } => {
            grow_shrink::grow(writer, *label, *by_um, *scope, *over).map(|()| Vec::new())
        }
        Edit::Shrink { label, by_um, scope } => {
            grow_shrink::shrink(writer, *label, *by_um, *scope).map(|()| Vec::new())
        }
    }
}

fn merge(writer: &mut LabelWriter, labels: &[u32], into: u32, scope: Scope) -> Result<(), CorrectionError> {
    if into == 0 || labels.contains(&0) {
        return Err(CorrectionError::BadParameter {
            what: "a label to merge",
            got: "0 (background)".to_owned(),
            expected: "labels above 0; delete a label to make it background",
        });
    }
    let (within, place) = (scope.bounds(writer.volume().shape_zyx())?, scope.name());
    let is_absent = |label: &&u32| writer.volume().bounds_within(**label, &within).is_none();
    if labels.iter().chain([&into]).all(|label| is_absent(&label)) {
        let label = labels.first().copied().unwrap_or(into);
        return Err(CorrectionError::NoSuchLabel { label, place });
    }
    relabel(writer, labels, into, scope)
}

/// Replaces several labels by another one. The chunks that contain a label are searched once per label.
fn relabel(writer: &mut LabelWriter, labels: &[u32], new: u32, scope: Scope) -> Result<(), CorrectionError> {
    let within = scope.bounds(writer.volume().shape_zyx())?;
    let mut labels = labels.to_vec();
    labels.sort_unstable();
    labels.dedup();
    for label in labels.into_iter().filter(|l| *l != new) {
        let mut rows = Vec::new();
        writer.volume().for_each_run(label, &within, |z, y, xs| rows.push((z, y, xs)));
        for (z, y, xs) in rows {
            writer.row(z, y, xs, new, |old| old == label);
        }
    }
    Ok(())
}
