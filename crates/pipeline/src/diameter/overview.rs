//! Where the objects of a large stack are, if there are few in its middle: an overview of slices spread over the stack.

use super::estimate::Estimator;
use crate::JobError;
use cytoscope_profile::Stage;
use std::ops::Range;

/// Minimum distance between the slices that are read.
const SLICE_STEP: usize = 8;
/// Maximum number of slices that are read.
const MAX_SLICES: usize = 64;
/// Edge of the squares whose contrast is compared, in voxels.
const CELL: usize = 128;
/// Edge of the blocks that are averaged, so that single bright voxels do not count.
const BLOCK: usize = 4;
/// Maximum number of places of high contrast that are tried.
const MAX_PLACES: usize = 2;
/// Extents Z, Y, X of the part of a stack around a place that is used first. A larger part may be mostly empty, so that its
/// objects count as outliers of its brightness.
const NEAR_ZYX: [usize; 3] = [96, 256, 256];

impl Estimator<'_> {
    /// Returns parts of the stack around the places of highest contrast, a small and a larger one for each place.
    ///
    /// # Errors
    /// [`JobError`] if the stack cannot be read, or the job is canceled.
    pub(super) fn contrast_windows(&self, large_zyx: [usize; 3]) -> Result<Vec<[Range<usize>; 3]>, JobError> {
        let stack_zyx = self.stack.extents.zyx;
        let around = |place: [usize; 3], size: [usize; 3]| -> [Range<usize>; 3] {
            std::array::from_fn(|a| {
                let size = size[a].min(stack_zyx[a]);
                let first = place[a].saturating_sub(size / 2).min(stack_zyx[a] - size);
                first..first + size
            })
        };
        let places = self.contrast_places()?;
        Ok(places.into_iter().flat_map(|place| [around(place, NEAR_ZYX), around(place, large_zyx)]).collect())
    }

    /// Returns the places Z, Y, X of highest contrast, which lie apart.
    fn contrast_places(&self) -> Result<Vec<[usize; 3]>, JobError> {
        let [depth, rows, columns] = self.stack.extents.zyx;
        let Some(&channel) = self.channels.first() else { return Ok(Vec::new()) };
        let _span = self.context.recorder.span(Stage::Normalize, "estimate overview");
        let step = SLICE_STEP.max(depth.div_ceil(MAX_SLICES));
        let mut cells: Vec<([usize; 3], f64)> = Vec::new();
        for z in ((step / 2).min(depth.saturating_sub(1))..depth).step_by(step) {
            for y in (0..rows).step_by(CELL) {
                self.context.check()?;
                let band = self.stack.windowed(&[z..z + 1, y..(y + CELL).min(rows), 0..columns]);
                let values = band.read(self.context, channel, 0..1)?.to_f32();
                for x in (0..columns).step_by(CELL) {
                    let contrast = contrast(&values, columns, x..(x + CELL).min(columns));
                    cells.push(([z, y + CELL / 2, x + CELL / 2], contrast));
                }
            }
        }
        cells.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut places: Vec<[usize; 3]> = Vec::new();
        for (place, _) in cells.into_iter().filter(|(_, contrast)| *contrast > 0.0) {
            let is_near = |other: &[usize; 3]| (0..3).all(|a| other[a].abs_diff(place[a]) < NEAR_ZYX[a]);
            if !places.iter().any(is_near) {
                places.push(place);
            }
            if places.len() == MAX_PLACES {
                break;
            }
        }
        Ok(places)
    }
}

/// Returns by how much the brightest block of some columns exceeds their mean.
fn contrast(values: &[f32], columns: usize, x: Range<usize>) -> f64 {
    let rows: Vec<&[f32]> =
        values.chunks_exact(columns.max(1)).map(|row| row.get(x.clone()).unwrap_or_default()).collect();
    let (mut highest, mut sum, mut blocks) = (f64::NEG_INFINITY, 0.0, 0u32);
    for rows in rows.chunks(BLOCK) {
        for at in (0..x.len()).step_by(BLOCK) {
            let block_values = rows.iter().flat_map(|row| row.iter().skip(at).take(BLOCK)).filter(|v| v.is_finite());
            let (total, count) = block_values.fold((0.0, 0u32), |(total, count), v| (total + f64::from(*v), count + 1));
            if count > 0 {
                let mean = total / f64::from(count);
                highest = highest.max(mean);
                sum += mean;
                blocks += 1;
            }
        }
    }
    if blocks == 0 { 0.0 } else { highest - sum / f64::from(blocks) }
}
