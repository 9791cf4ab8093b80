//! Edits as values, what they change, and their dispatch.
//!
//! An edit that fails has changed nothing when its error arrives: the caller of [`run`] takes back what was written.

pub(crate) mod brush;
mod cut;
mod fill;
mod interpolate;
mod size;
mod split;
#[cfg(test)]
mod tests;

pub use brush::{Brush, BrushShape};

use crate::geometry::{Bounds, Scope};
use crate::volume::Pen;
use crate::{AnnotateError, SliceAxis};

/// Which voxels an edit may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Over {
    /// All.
    #[default]
    Any,
    /// Background only.
    Background,
    /// Those of one label only.
    Inside(u32),
}

impl Over {
    pub(crate) fn allows(self, old: u32) -> bool {
        match self {
            Over::Any => true,
            Over::Background => old == 0,
            Over::Inside(label) => old == label,
        }
    }
}

/// A change to ask for. Points are voxel coordinates along Z, Y, X; whole numbers are the centres of voxels.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// Draws with a brush along a line through the points, without gaps. The value 0 erases.
    Paint {
        /// Shape, size and value of the brush.
        brush: Brush,
        /// Points the line goes through; one is a dab.
        points: Vec<[f64; 3]>,
    },
    /// Gives the connected region (faces) of one label or of background around a voxel another label.
    Fill {
        /// A voxel of the region.
        seed: [usize; 3],
        /// The new label; 0 makes it background.
        value: u32,
        /// In its slice or in the volume.
        scope: Scope,
    },
    /// Gives the holes of a label to it: what it encloses, in each slice alone or in the volume, without an opening to the border.
    FillHoles {
        /// The label.
        label: u32,
        /// In one slice or in the volume.
        scope: Scope,
        /// Which voxels may change.
        over: Over,
    },
    /// Makes a label background.
    Delete {
        /// The label.
        label: u32,
        /// In one slice or in the volume.
        scope: Scope,
    },
    /// Gives voxels of several labels one label.
    Merge {
        /// Labels to be given up; those not there are ignored.
        labels: Vec<u32>,
        /// The label they become.
        into: u32,
        /// In one slice or in the volume.
        scope: Scope,
    },
    /// Splits a label by a watershed on its distance transform, one part a seed. The first seed's part keeps the label,
    /// and so do pieces that no seed reaches.
    SplitBySeeds {
        /// The label.
        label: u32,
        /// Two or more voxels of the label.
        seeds: Vec<[usize; 3]>,
        /// In one slice or in the volume.
        scope: Scope,
    },
    /// Splits a label along a line drawn in a slice. The largest part keeps the label.
    SplitByLine {
        /// The label.
        label: u32,
        /// The axis the slice is cut across.
        axis: SliceAxis,
        /// Points of the line, all in the first one's slice.
        points: Vec<[f64; 3]>,
        /// Cut through all slices of the label, not only the one drawn in.
        through: bool,
    },
    /// Fills slices between those that hold a label with shapes in between, by interpolating signed distances.
    Interpolate {
        /// The label.
        label: u32,
        /// The axis the slices are cut across.
        axis: SliceAxis,
        /// Only the gap around this slice; `None` for all gaps.
        at: Option<usize>,
        /// Which voxels may change.
        over: Over,
    },
    /// Adds what is within a distance of a label, in µm.
    Grow {
        /// The label.
        label: u32,
        /// The distance in µm.
        by_um: f64,
        /// In one slice or in the volume.
        scope: Scope,
        /// Which voxels may change.
        over: Over,
    },
    /// Takes away what is within a distance of the label's outside, in µm. The volume's border is no outside.
    Shrink {
        /// The label.
        label: u32,
        /// The distance in µm.
        by_um: f64,
        /// In one slice or in the volume.
        scope: Scope,
    },
}

impl Edit {
    /// Its name in a menu of steps.
    pub fn name(&self) -> String {
        match self {
            Edit::Paint { brush, .. } => brush.name(),
            Edit::Fill { value: 0, .. } => "Empty a region".to_owned(),
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

/// What an edit, an undo or a redo changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Name of the step, such as `Paint 12`.
    pub name: String,
    /// The smallest box around the changed voxels; `None` if nothing changed (there is no step then).
    pub bounds: Option<Bounds>,
    /// Number of voxels changed.
    pub voxels: u64,
    /// Labels that the edit made (the further parts of a split).
    pub new_labels: Vec<u32>,
    /// Oldest steps that can no longer be undone, because the undo memory is full; with [`Change::undoable`] false, this
    /// step is among them.
    pub dropped_steps: usize,
    /// Whether this step can be undone: false where it alone is larger than the undo memory.
    pub undoable: bool,
}

/// Makes an edit; gives the labels it made.
pub(crate) fn run(pen: &mut Pen, edit: &Edit) -> Result<Vec<u32>, AnnotateError> {
    match edit {
        Edit::Paint { brush, points } => brush::paint(pen, brush, points).map(|()| Vec::new()),
        Edit::Fill { seed, value, scope } => fill::fill(pen, *seed, *value, *scope).map(|()| Vec::new()),
        Edit::FillHoles { label, scope, over } => fill::holes(pen, *label, *scope, *over).map(|()| Vec::new()),
        Edit::Delete { label, scope } => {
            pen.volume().bounds_in(*label, *scope)?;
            relabel(pen, &[*label], 0, *scope).map(|()| Vec::new())
        }
        Edit::Merge { labels, into, scope } => merge(pen, labels, *into, *scope).map(|()| Vec::new()),
        Edit::SplitBySeeds { label, seeds, scope } => split::by_seeds(pen, *label, seeds, *scope),
        Edit::SplitByLine { label, axis, points, through } => cut::by_line(pen, *label, *axis, points, *through),
        Edit::Interpolate { label, axis, at, over } => {
            interpolate::interpolate(pen, *label, *axis, *at, *over).map(|()| Vec::new())
        }
        Edit::Grow { label, by_um, scope, over } => size::grow(pen, *label, *by_um, *scope, *over).map(|()| Vec::new()),
        Edit::Shrink { label, by_um, scope } => size::shrink(pen, *label, *by_um, *scope).map(|()| Vec::new()),
    }
}

fn merge(pen: &mut Pen, labels: &[u32], into: u32, scope: Scope) -> Result<(), AnnotateError> {
    if into == 0 || labels.contains(&0) {
        return Err(AnnotateError::BadParameter {
            what: "a label to merge",
            got: "0 (background)".to_owned(),
            expected: "labels above 0; delete a label to make it background",
        });
    }
    let there = |label: &&u32| pen.volume().voxels_of(**label) > 0;
    if !labels.iter().chain([&into]).any(|l| there(&l)) {
        return Err(AnnotateError::NoSuchLabel { label: into, place: "volume" });
    }
    relabel(pen, labels, into, scope)
}

/// Gives every voxel of some labels another label. The chunks those labels are in are searched, once for each of them.
fn relabel(pen: &mut Pen, labels: &[u32], new: u32, scope: Scope) -> Result<(), AnnotateError> {
    let within = scope.bounds(pen.volume().shape_zyx())?;
    let mut labels = labels.to_vec();
    labels.sort_unstable();
    labels.dedup();
    for label in labels.into_iter().filter(|l| *l != new) {
        let mut rows = Vec::new();
        pen.volume().each_row_of(label, &within, |z, y, xs| rows.push((z, y, xs)));
        for (z, y, xs) in rows {
            pen.row(z, y, xs, new, |old| old == label);
        }
    }
    Ok(())
}
