//! Plane source for labels that are being corrected.

use crate::data::plane::{Orientation, Plane, PlaneAt, Values};
use crate::data::source::{Cancel, PlaneSource, SourceError};
use cytoscope_corrections::{LabelSnapshot, SliceAxis};

/// The axis perpendicular to the slices of a view.
pub(crate) fn axis(orientation: Orientation) -> SliceAxis {
    match orientation {
        Orientation::Xy => SliceAxis::Z,
        Orientation::Xz => SliceAxis::Y,
        Orientation::Zy => SliceAxis::X,
    }
}

/// A snapshot of the labels of one time point.
pub struct SnapshotSource {
    labels: LabelSnapshot,
}

impl SnapshotSource {
    /// A source that shows `labels`.
    pub fn new(labels: LabelSnapshot) -> Self {
        Self { labels }
    }
}

impl PlaneSource for SnapshotSource {
    fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
        cancel.check()?;
        let size = at.size();
        let mut values = vec![0; size[0] * size[1]];
        let shape = self.labels.shape_zyx();
        let whole = self
            .labels
            .slice(axis(at.orientation), at.index)
            .map_err(|e| SourceError::Io(std::io::Error::other(e.to_string())))?;
        let [row_step, column_step] = at.pixel_size();
        let wanted = at.rows.clone().step_by(row_step).flat_map(|r| {
            let columns = at.columns.clone().step_by(column_step);
            columns.map(move |c| at.orientation.index_in_slice(shape, r, c))
        });
        for (value, i) in values.iter_mut().zip(wanted) {
            *value = whole.get(i).copied().unwrap_or(0);
        }
        Ok(Plane { at: at.clone(), size, values: Values::Labels(values) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_corrections::LabelVolume;
    use cytoscope_volume::VoxelSize;

    #[test]
    fn every_view_shows_voxels_at_their_position() {
        let shape = [3, 4, 5];
        let labels: Vec<u32> = (1..=60).collect();
        let volume = LabelVolume::from_dense(shape, VoxelSize::default(), &labels).unwrap();
        let source = SnapshotSource::new(volume.snapshot());
        for orientation in Orientation::ALL {
            let [normal_axis, row_axis, column_axis] = orientation.axes();
            let at = PlaneAt {
                orientation,
                index: 1,
                channel: 0,
                time: 2,
                rows: 1..shape[row_axis],
                columns: 0..shape[column_axis],
                steps: [1, 2, 2],
            };
            let plane = source.plane(&at, &Cancel::default()).unwrap();
            for r in (1..shape[row_axis]).step_by(2) {
                for c in (0..shape[column_axis]).step_by(2) {
                    let mut zyx = [0; 3];
                    (zyx[normal_axis], zyx[row_axis], zyx[column_axis]) = (1, r, c);
                    let expected = labels[(zyx[0] * 4 + zyx[1]) * 5 + zyx[2]];
                    assert_eq!(plane.value(r, c), Some(f64::from(expected)), "{orientation:?} {zyx:?}");
                }
            }
        }
    }
}
