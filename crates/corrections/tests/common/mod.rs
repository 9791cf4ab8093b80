//! Helpers of the integration tests.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use cytoscope_corrections::{
    Brush, BrushShape, Change, DrawOver, Edit, LabelVolume, Plane, Scope, Session, SessionOptions, SliceAxis,
};
use cytoscope_volume::VoxelSize;
use std::path::{Path, PathBuf};

pub const SHAPE: [usize; 3] = [34, 70, 66];

/// Two labels in background.
pub fn base() -> LabelVolume {
    let mut labels = vec![0u32; SHAPE.iter().product()];
    for (i, l) in labels.iter_mut().enumerate() {
        let (z, y, x) = (i / (SHAPE[1] * SHAPE[2]), i / SHAPE[2] % SHAPE[1], i % SHAPE[2]);
        if (3..30).contains(&z) && (10..60).contains(&y) {
            *l = if x < 30 { 1 } else { u32::from(x > 40) * 2 };
        }
    }
    LabelVolume::from_dense(SHAPE, VoxelSize::new_um(2.0, 0.5, 0.5), &labels).unwrap()
}

pub fn open(journal: &Path) -> (Session, cytoscope_corrections::Replay) {
    Session::open(base(), Some(Path::new("cells.tif")), journal, SessionOptions::default()).unwrap()
}

/// The `n`-th of an endless sequence of different edits.
pub fn edit(n: u64) -> Edit {
    let mut state = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    let mut pick = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below) as usize
    };
    let mut at = || [pick(34) as f64, pick(70) as f64, pick(66) as f64];
    let points = vec![at(), at()];
    let label = 1 + pick(5) as u32;
    let axis = SliceAxis::ALL[pick(3)];
    let shape = if pick(4) == 0 { BrushShape::Ball } else { BrushShape::Disk(axis) };
    let over = [DrawOver::Any, DrawOver::Background, DrawOver::Inside(label)][pick(3)];
    let scope = Scope::Slice(Plane::new(axis, points[0][axis.index()] as usize));
    match pick(8) {
        0 => Edit::Fill { seed: points[0].map(|c| c as usize), value: label, scope },
        1 => Edit::Merge { labels: vec![1, 2, 3], into: label, scope },
        2 => Edit::Grow { label, by_um: 1.5, scope, over },
        3 => Edit::Shrink { label, by_um: 1.1, scope },
        _ => Edit::Paint { brush: Brush { shape, radius_um: 3.0, value: pick(6) as u32, over }, points },
    }
}

/// Applies an edit if it is possible.
pub fn try_edit(session: &mut Session, n: u64) -> Option<Change> {
    session.apply(&edit(n)).ok().filter(|c| c.bounds.is_some())
}

/// The names of the steps that can be undone and redone.
pub fn names(session: &Session) -> (Vec<String>, Vec<String>) {
    (session.undo_names().map(str::to_owned).collect(), session.redo_names().map(str::to_owned).collect())
}

/// A Python with tifffile, or `None` with a report of the skip if there is none.
pub fn python() -> Option<PathBuf> {
    cytoscope_testkit::python_with("tifffile, imagecodecs, numpy")
}
