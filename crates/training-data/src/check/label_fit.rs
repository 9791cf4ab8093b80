//! Labels that fit another image, or a mirrored one, but not their own: files that were named or saved wrongly.

use super::CheckOptions;
use super::inspect_pair::PairInspection;
use crate::dataset::{Dataset, ImageRef, Pair, Problem};
use crate::stack::{Role, Stack, open_image};
use rayon::prelude::*;

/// Maximum number of pairs that are compared.
const MAX_PAIRS: usize = 300;
/// Minimum number of objects of a pair that is compared. A few objects may fit an image by chance.
const MIN_OBJECTS: usize = 5;
/// Maximum number of slices that are read of a stack.
const MAX_SLICES: usize = 4;
/// Maximum number of cells of a slice along Y and along X.
const MAX_CELLS: usize = 32;
/// Minimum number of cells of a stack. A few cells may be alike by chance.
const MIN_CELLS: usize = 512;
/// Correlation of labels and image below which they do not fit.
const NO_FIT: f64 = 0.25;
/// Correlation from which labels fit their own image.
const FIT: f64 = 0.5;
/// Correlation from which labels fit another image, of many.
const GOOD_FIT: f64 = 0.6;
/// Minimum share of pairs whose labels fit an image. In data with fewer, objects are not brighter or darker than what is around
/// them.
const MIN_FITTING: f64 = 0.5;

/// Finds labels that fit another image of the data, or their own in another orientation, much better than as they are.
pub(super) fn find_misfits(dataset: &Dataset, options: &CheckOptions, inspections: &mut [PairInspection]) {
    if options.ignore_label.is_some() {
        // Where nothing is labeled, there may be objects.
        return;
    }
    let has_objects = |inspection: &PairInspection| {
        inspection.finished && inspection.summary.objects.is_some_and(|objects| objects >= MIN_OBJECTS)
    };
    let pairs: Vec<(usize, &Pair)> = dataset
        .pairs
        .iter()
        .enumerate()
        .filter(|(i, _)| inspections.get(*i).is_some_and(has_objects))
        .take(MAX_PAIRS)
        .collect();
    let overviews: Vec<(usize, Overview)> =
        pairs.into_par_iter().filter_map(|(i, pair)| Some((i, Overview::of(pair)?))).collect();
    let (mut fitting, mut found) = (0, Vec::new());
    for (i, overview) in &overviews {
        let own = correlation(&overview.image, &overview.labels);
        if own >= NO_FIT {
            fitting += usize::from(own >= FIT);
            continue;
        }
        let turned =
            Turn::ALL.into_iter().filter_map(|turn| Some((overview.correlation_after(turn)?, Fit::Turned(turn))));
        let others = overviews.iter().filter(|(j, other)| j != i && other.zyx == overview.zyx);
        let of_others = others.map(|(j, other)| (correlation(&other.image, &overview.labels), Fit::ImageOf(*j)));
        let best = turned.chain(of_others).max_by(|a, b| a.0.total_cmp(&b.0));
        found.extend(best.filter(|(fit, _)| *fit >= GOOD_FIT).map(|(fit, what)| (*i, own, fit, what)));
    }
    if ((fitting + found.len()) as f64) < MIN_FITTING * overviews.len() as f64 {
        return;
    }
    for (i, own, fit, what) in found {
        let no_fit = format!("its objects do not fit its image (correlation {own:.2}), but");
        let (problem, next_step) = match what {
            Fit::Turned(turn) => (
                format!("{no_fit} do if they are {} ({fit:.2})", turn.words()),
                "compare the orientation of both files, and save one of them again",
            ),
            Fit::ImageOf(other) => {
                let Some(other) = inspections.get(other) else { continue };
                let next_step = "check which labels belong to which image: their names may be wrong";
                (format!("{no_fit} that of {} ({fit:.2})", other.summary.name), next_step)
            }
        };
        let Some(inspection) = inspections.get_mut(i) else { continue };
        let file = inspection.summary.target.clone();
        inspection.add(Problem::warning(&file, problem, next_step));
    }
}

/// What labels fit that do not fit their image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// Their image, in another orientation.
    Turned(Turn),
    /// The image of the pair of this index.
    ImageOf(usize),
}

/// Another orientation of labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    MirroredZ,
    MirroredY,
    MirroredX,
    UpsideDown,
    Exchanged,
}

impl Turn {
    const ALL: [Self; 5] = [Self::MirroredZ, Self::MirroredY, Self::MirroredX, Self::UpsideDown, Self::Exchanged];

    /// Returns the orientation in words.
    fn words(self) -> &'static str {
        match self {
            Self::MirroredZ => "in reverse order along Z",
            Self::MirroredY => "mirrored along Y",
            Self::MirroredX => "mirrored along X",
            Self::UpsideDown => "turned by 180° in each slice",
            Self::Exchanged => "read with Y and X exchanged",
        }
    }
}

/// A pair on a coarse grid of a few slices. Image and labels have the mean 0 and the norm 1.
struct Overview {
    /// Shape of the stack.
    zyx: [usize; 3],
    /// Number of cells along Z, Y, X.
    grid: [usize; 3],
    /// Mean intensities.
    image: Vec<f32>,
    /// Shares of voxels that belong to objects.
    labels: Vec<f32>,
}

impl Overview {
    /// Reads a few slices of a pair; `None` if this fails, if the stacks have few voxels, or if a stack is the same everywhere.
    fn of(pair: &Pair) -> Option<Self> {
        let (zyx, grid, image) = cells(&pair.image, Role::Image, |value| value)?;
        let (target_zyx, _, labels) = cells(&pair.target, Role::Labels, |label| if label > 0.5 { 1.0 } else { 0.0 })?;
        (zyx == target_zyx).then_some(Self { zyx, grid, image, labels })
    }

    /// Returns the correlation of the image with the labels in another orientation; `None` if that has another shape.
    fn correlation_after(&self, turn: Turn) -> Option<f64> {
        let [slices, rows, columns] = self.grid;
        if turn == Turn::Exchanged && self.zyx[1] != self.zyx[2] {
            return None;
        }
        let labels = (0..self.labels.len()).map(|cell| {
            let [z, y, x] = [cell / (rows * columns), cell / columns % rows, cell % columns];
            let [z, y, x] = match turn {
                Turn::MirroredZ => [slices - 1 - z, y, x],
                Turn::MirroredY => [z, rows - 1 - y, x],
                Turn::MirroredX => [z, y, columns - 1 - x],
                Turn::UpsideDown => [z, rows - 1 - y, columns - 1 - x],
                Turn::Exchanged => [z, x, y],
            };
            self.labels[(z * rows + y) * columns + x]
        });
        Some(correlation(&self.image, &labels.collect::<Vec<f32>>()))
    }
}

/// Returns the shape of a stack, the number of cells, and their means of `value`, with the mean 0 and the norm 1.
fn cells(reference: &ImageRef, role: Role, value: fn(f32) -> f32) -> Option<([usize; 3], [usize; 3], Vec<f32>)> {
    // A file that cannot be read any more is reported when it is trained on.
    let file = open_image(reference).ok()?;
    let stack = Stack::of(reference, role, &file).ok()?;
    let [depth, rows, columns] = stack.zyx;
    let grid = [depth.min(MAX_SLICES), rows.min(MAX_CELLS), columns.min(MAX_CELLS)];
    let count: usize = grid.iter().product();
    if count < MIN_CELLS {
        return None;
    }
    let (mut sums, mut seen) = (vec![0.0f64; count], vec![0u32; count]);
    for slice in 0..grid[0] {
        let z = (2 * slice + 1) * depth / (2 * grid[0]);
        let values = stack.read(&file, [z, 0, 0], [1, rows, columns]).ok()?.to_f32();
        for (i, read) in values.into_iter().enumerate().filter(|(_, read)| read.is_finite()) {
            let [y, x] = [i / columns * grid[1] / rows, i % columns * grid[2] / columns];
            let cell = (slice * grid[1] + y) * grid[2] + x;
            sums[cell] += f64::from(value(read));
            seen[cell] += 1;
        }
    }
    let means: Vec<f64> = sums.iter().zip(&seen).map(|(sum, seen)| sum / f64::from((*seen).max(1))).collect();
    let mean = means.iter().sum::<f64>() / count as f64;
    let norm = means.iter().map(|value| (value - mean).powi(2)).sum::<f64>().sqrt();
    let scaled = means.iter().map(|value| ((value - mean) / norm) as f32).collect();
    (norm > 0.0 && norm.is_finite()).then_some((stack.zyx, grid, scaled))
}

/// Returns the absolute value of the correlation of values with the mean 0 and the norm 1.
fn correlation(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>().abs()
}
