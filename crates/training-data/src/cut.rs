//! The place at which the stack of a single pair is cut in two, so that the training and the validation set both hold labeled
//! objects.

use serde::{Deserialize, Serialize};

/// Minimum number of voxels of an axis that is cut.
pub(crate) const MIN_EXTENT: usize = 8;

/// Axis that a stack is cut along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CutAxis {
    /// Rows are divided.
    Y,
    /// Columns are divided.
    X,
}

impl CutAxis {
    /// Returns the index of the axis in Z, Y, X.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Y => 1,
            Self::X => 2,
        }
    }

    /// Returns the name of the axis.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Y => "Y",
            Self::X => "X",
        }
    }
}

/// Cut of a stack into a training and a validation set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackCut {
    /// Axis that is divided.
    pub axis: CutAxis,
    /// First voxel of the validation set along the axis; those before it are in the training set.
    pub first: usize,
    /// Number of objects of the stack.
    pub objects: usize,
    /// Number of objects of which all voxels are in the validation set.
    pub validation_objects: usize,
}

/// First and last voxel along Z, Y, X of the bounding box of an object.
pub(crate) type ObjectBox = [[u32; 3]; 2];

/// Returns the axis and the first voxel of the last quarter of a stack, along the longer one of Y and X.
pub(crate) fn last_quarter(zyx: [usize; 3]) -> (CutAxis, usize) {
    let axis = if zyx[1] >= zyx[2] { CutAxis::Y } else { CutAxis::X };
    let extent = zyx[axis.index()];
    (axis, extent - extent / 4)
}

/// Ends of the objects along one axis, sorted.
struct Ends {
    low: Vec<usize>,
    high: Vec<usize>,
}

impl Ends {
    fn of(boxes: &[ObjectBox], axis: CutAxis) -> Self {
        let sorted = |side: usize| {
            let mut ends: Vec<usize> = boxes.iter().map(|b| b[side][axis.index()] as usize).collect();
            ends.sort_unstable();
            ends
        };
        Self { low: sorted(0), high: sorted(1) }
    }

    /// Returns the numbers of objects that lie completely before a cut, and completely after it.
    fn apart(&self, first: usize) -> [usize; 2] {
        let before = self.high.partition_point(|high| *high < first);
        [before, self.low.len() - self.low.partition_point(|low| *low < first)]
    }

    /// Returns cuts in the middle between objects, and cuts directly before objects.
    fn candidates(&self) -> impl Iterator<Item = usize> + '_ {
        self.low.iter().flat_map(move |low| {
            let before = self.high.partition_point(|high| high < low).checked_sub(1).and_then(|i| self.high.get(i));
            [before.map_or(*low, |high| (high + 1).midpoint(*low)), *low]
        })
    }
}

/// Returns the place at which a stack with these objects is cut; `None` if no cut leaves labels on both sides.
///
/// It is the last quarter of the longer one of Y and X, if an eighth to a half of the objects are completely in it and others
/// completely outside. Otherwise, it is the place after which the number of objects is closest to a quarter of all; each
/// object that is cut counts like a deviation by one object. If no place separates objects, an object is cut.
pub(crate) fn choose(boxes: &[ObjectBox], zyx: [usize; 3]) -> Option<StackCut> {
    let count = boxes.len();
    let axes = [CutAxis::Y, CutAxis::X].map(|axis| (axis, Ends::of(boxes, axis)));
    let (longer, quarter) = last_quarter(zyx);
    if count == 0 || zyx[longer.index()] < MIN_EXTENT {
        return None;
    }
    let cut = |axis: CutAxis, first: usize, validation_objects: usize| StackCut {
        axis,
        first,
        objects: count,
        validation_objects,
    };
    let longer_ends = axes.iter().find(|(axis, _)| *axis == longer).map(|(_, ends)| ends)?;
    let [before, after] = longer_ends.apart(quarter);
    if before > 0 && after > 0 && 8 * after >= count && 2 * after <= count {
        return Some(cut(longer, quarter, after));
    }
    let places = axes.iter().filter(|(axis, _)| zyx[axis.index()] >= MIN_EXTENT);
    let separating =
        places.flat_map(|(axis, ends)| ends.candidates().map(move |first| (*axis, first, ends.apart(first))));
    let cost = |after: usize, before: usize| (4 * after).abs_diff(count) + 4 * (count - before - after);
    let best = separating
        .filter(|(_, _, [before, after])| *before > 0 && *after > 0)
        .min_by_key(|(axis, _, [before, after])| (cost(*after, *before), *axis != longer));
    if let Some((axis, first, [_, after])) = best {
        return Some(cut(axis, first, after));
    }
    // Objects are on both sides of the last quarter, or along one axis from the lowest to the highest voxel of all.
    let reach = |ends: &Ends| Some([*ends.low.first()?, *ends.high.last()?]);
    let [low, high] = reach(longer_ends)?;
    if low < quarter && quarter <= high {
        return Some(cut(longer, quarter, after));
    }
    let spans = axes.iter().filter_map(|(axis, ends)| Some((*axis, reach(ends)?)));
    let (axis, [low, high]) = spans.max_by_key(|(axis, [low, high])| (high - low, *axis == longer))?;
    let first = high + 1 - (high + 1 - low).div_ceil(4);
    (first > low).then(|| cut(axis, first, 0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    /// Returns boxes of 10 × 10 voxels in one slice from these places Y, X on.
    fn boxes(places: &[[u32; 2]]) -> Vec<ObjectBox> {
        places.iter().map(|[y, x]| [[3, *y, *x], [3, y + 9, x + 9]]).collect()
    }

    /// Returns axis, first voxel, and number of objects in the validation set.
    fn chosen(places: &[[u32; 2]], zyx: [usize; 3]) -> Option<(CutAxis, usize, usize)> {
        let cut = choose(&boxes(places), zyx)?;
        assert_eq!(cut.objects, places.len());
        Some((cut.axis, cut.first, cut.validation_objects))
    }

    #[test]
    fn both_parts_hold_objects_wherever_the_labels_are() {
        let zyx = [20, 100, 200];
        // Objects all over the stack: the last quarter of X.
        let all: Vec<[u32; 2]> = (0..16).map(|i| [i % 2 * 50, i / 2 * 25]).collect();
        assert_eq!(chosen(&all, zyx), Some((CutAxis::X, 150, 4)));
        // Four objects on the left: one of them, in the middle between its neighbors.
        assert_eq!(chosen(&[[10, 5], [40, 20], [70, 35], [30, 60]], zyx), Some((CutAxis::X, 52, 1)));
        // Objects above each other can be divided along Y only.
        assert_eq!(chosen(&[[5, 15], [30, 18], [60, 12]], zyx), Some((CutAxis::Y, 50, 1)));
        // All in the last quarter.
        assert_eq!(chosen(&[[5, 160], [30, 180]], zyx), Some((CutAxis::X, 175, 1)));
    }

    #[test]
    fn objects_are_cut_only_if_none_can_be_separated() {
        let zyx = [20, 100, 200];
        // Each object overlaps the next: one of eight is cut, and two are in the validation set.
        let row: Vec<[u32; 2]> = (0..8).map(|i| [40, i * 8]).collect();
        assert_eq!(chosen(&row, zyx), Some((CutAxis::X, 45, 2)));
        // A single object: a quarter of it, or the last quarter of the stack if that cuts it.
        assert_eq!(chosen(&[[20, 30]], zyx), Some((CutAxis::X, 37, 0)));
        assert_eq!(chosen(&[[20, 145]], zyx), Some((CutAxis::X, 150, 0)));
        let mask = [[[0, 0, 0], [19, 99, 199]]];
        let cut = choose(&mask, zyx).unwrap();
        assert_eq!((cut.axis, cut.first), (CutAxis::X, 150));
        // No labels, a single voxel, a tiny stack.
        assert_eq!(chosen(&[], zyx), None);
        assert_eq!(choose(&[[[3, 4, 5]; 2]], zyx), None);
        assert_eq!(chosen(&[[0, 0], [0, 1]], [20, 7, 7]), None);
    }
}
