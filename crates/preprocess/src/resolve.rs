//! Steps resolved for a stack: lengths in voxels, and the shape and voxel size of the output.

use crate::background::{Ball, Ellipse, rolling_ball, white_tophat};
use crate::block::{Block, dilated};
use crate::contrast::{each_slice, equalized, inverted, normalized, stretched};
use crate::smooth::{gaussian, gaussian_weights, median};
use crate::warp::{Affine, affine};
use crate::{Length, Lengths, PreprocessError, PreprocessStep};
use cytoscope_volume::{BoxZyx, VoxelSize, element_count, number_text};

/// Largest sigma of a Gaussian and largest radii of a median, a top-hat and a ball, in voxels.
const MAX_SIGMA: f64 = 100.0;
const MAX_MEDIAN: f64 = 10.0;
const MAX_TOPHAT: f64 = 500.0;
const MAX_BALL: f64 = 200.0;

/// Smallest sigma of a Gaussian and smallest radius of a median that change values, in voxels.
const MIN_SIGMA: f64 = 0.125;
const MIN_MEDIAN: f64 = 0.5;

/// Rows by which a shift may be too large due to rounding.
const ROUNDING: f64 = 1e-9;

/// Largest number of rows by which a stack grows when it is deskewed.
const MAX_ADDED_ROWS: f64 = 1e6;

/// The voxels around an output voxel that it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Up to this many voxels along Z, Y, X, in both directions.
    Voxels([usize; 3]),
    /// All voxels of the same slice.
    Slice,
    /// Other positions, which the output voxel's position determines.
    Moved,
}

/// The computation of a step, with its lengths in voxels.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operation {
    Gaussian([Vec<f32>; 3]),
    Median([usize; 3]),
    Tophat(Ellipse),
    RollingBall(Ball),
    Clahe { tiles: usize, clip: f64 },
    Stretch([f64; 2]),
    NormalizeSlices([f64; 2]),
    Invert,
    Affine(Affine),
    Crop([usize; 3]),
}

impl Operation {
    /// The two percentiles of the whole stack that the operation needs; `None` if it needs none.
    pub(crate) fn stack_percentiles(&self) -> Option<[f64; 2]> {
        match self {
            Self::Stretch(wanted) => Some(*wanted),
            Self::Invert => Some([0.0, 100.0]),
            _ => None,
        }
    }
}

/// A step for a stack of a certain shape.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stage {
    /// The computation.
    pub operation: Operation,
    /// Shape Z, Y, X of the input.
    pub from: [usize; 3],
    /// Shape Z, Y, X of the output.
    pub to: [usize; 3],
}

/// Shape and voxel size before a step.
pub(crate) struct Grid {
    /// Number of voxels along Z, Y, X.
    pub shape: [usize; 3],
    /// Distance between voxel centers along Z, Y, X in µm, where it is known.
    pub voxel_um: VoxelSize,
}

impl Grid {
    fn voxel_sizes(&self) -> [Option<f64>; 3] {
        let valid = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
        [valid(self.voxel_um.z), valid(self.voxel_um.y), valid(self.voxel_um.x)]
    }

    /// The voxel size along an axis.
    fn voxel_um(&self, step: &'static str, axis: usize) -> Result<f64, PreprocessError> {
        let letter = ["Z", "Y", "X"].get(axis).copied().unwrap_or_default();
        self.voxel_sizes().get(axis).copied().flatten().ok_or_else(|| {
            let problem = format!("a length is in µm, but the voxel size along {letter} is unknown");
            PreprocessError::unknown_voxel_size(step, problem, "give lengths in voxels (without \"um\"), or ")
        })
    }

    /// Lengths in voxels, checked against the largest one.
    fn voxels(&self, step: &'static str, lengths: Lengths, largest: f64) -> Result<[f64; 3], PreprocessError> {
        let mut voxels = [0.0; 3];
        for (axis, out) in voxels.iter_mut().enumerate() {
            *out = match lengths {
                Lengths::Voxels(zyx) => zyx[axis],
                Lengths::Um(zyx) if zyx[axis] == 0.0 || self.shape[axis] == 1 => 0.0,
                Lengths::Um(zyx) => zyx[axis] / self.voxel_um(step, axis)?,
            };
            // Along an axis of one voxel, there is nothing to filter.
            if self.shape[axis] == 1 {
                *out = 0.0;
            }
            check_voxels(step, *out, largest)?;
        }
        Ok(voxels)
    }

    /// A length along Y and X in voxels.
    fn voxels_yx(&self, step: &'static str, length: Length, largest: f64) -> Result<[f64; 2], PreprocessError> {
        let voxels = match length {
            Length::Voxels(v) => [v; 2],
            Length::Um(um) => [um / self.voxel_um(step, 1)?, um / self.voxel_um(step, 2)?],
        };
        voxels.iter().try_for_each(|v| check_voxels(step, *v, largest))?;
        Ok(voxels)
    }
}

fn check_voxels(step: &'static str, voxels: f64, largest: f64) -> Result<(), PreprocessError> {
    if voxels <= largest {
        return Ok(());
    }
    // Lengths of other sizes are rounded.
    let length = if voxels < 1e9 { format!("{voxels:.1}") } else { number_text(voxels) };
    let problem = format!("a length is {length} voxels");
    Err(PreprocessError::unfit(step, problem, format!("give at most {largest} voxels")))
}

/// Refuses lengths along Z, Y, X that are given but too small to change any value.
fn check_effect(step: &'static str, voxels: [f64; 3], smallest: f64) -> Result<(), PreprocessError> {
    let is_given = voxels.iter().any(|v| *v > 0.0);
    if !is_given || voxels.iter().any(|v| *v >= smallest) {
        return Ok(());
    }
    let [z, y, x] = voxels;
    let problem = format!("with {z:.3}, {y:.3} and {x:.3} voxels along Z, Y and X, it would change nothing");
    Err(PreprocessError::unfit(step, problem, format!("give at least {smallest} voxels along one axis")))
}

/// Refuses a background that reaches no other voxel: it would be the image itself. `radii` are those along Y and X in voxels.
fn check_background(step: &'static str, radii: [f64; 2], reach: [usize; 2]) -> Result<(), PreprocessError> {
    if reach != [0, 0] {
        return Ok(());
    }
    let [y, x] = radii;
    let problem = format!("with a radius of {y:.3} and {x:.3} voxels along Y and X, the whole image is background");
    Err(PreprocessError::unfit(step, problem, "give at least 1 voxel"))
}

impl Stage {
    /// Resolves a step, and changes the grid to that of its output.
    ///
    /// # Errors
    /// [`PreprocessError`] if the step is invalid or does not fit the grid.
    pub(crate) fn new(step: &PreprocessStep, grid: &mut Grid) -> Result<Self, PreprocessError> {
        step.check()?;
        let name = step.name();
        let from = grid.shape;
        let operation = match step {
            PreprocessStep::Gaussian { sigma } => {
                let sigma = grid.voxels(name, *sigma, MAX_SIGMA)?;
                check_effect(name, sigma, MIN_SIGMA)?;
                Operation::Gaussian(sigma.map(gaussian_weights))
            }
            PreprocessStep::Median { radius } => {
                let radius = grid.voxels(name, *radius, MAX_MEDIAN)?;
                check_effect(name, radius, MIN_MEDIAN)?;
                Operation::Median(radius.map(|v| v.round() as usize))
            }
            PreprocessStep::Tophat { radius } => {
                let radii = grid.voxels_yx(name, *radius, MAX_TOPHAT)?;
                let ellipse = Ellipse::new(radii);
                check_background(name, radii, ellipse.reach())?;
                Operation::Tophat(ellipse)
            }
            PreprocessStep::RollingBall { radius, height } => {
                let radii = grid.voxels_yx(name, *radius, MAX_BALL)?;
                let ball = Ball::new(radii, height.unwrap_or(radii[1]));
                check_background(name, radii, ball.reach())?;
                Operation::RollingBall(ball)
            }
            PreprocessStep::Clahe { tiles, clip } => Operation::Clahe { tiles: *tiles as usize, clip: *clip },
            PreprocessStep::Stretch { low, high } => Operation::Stretch([*low, *high]),
            PreprocessStep::NormalizeSlices { low, high } => Operation::NormalizeSlices([*low, *high]),
            PreprocessStep::Invert => Operation::Invert,
            PreprocessStep::Deskew { angle_degrees, step_um } => deskew(grid, *angle_degrees, *step_um)?,
            PreprocessStep::Affine { matrix } => Operation::Affine(Affine(*matrix)),
            PreprocessStep::Crop { z, y, x } => crop(grid, [*z, *y, *x])?,
        };
        Ok(Self { operation, from, to: grid.shape })
    }

    /// The voxels that an output voxel depends on.
    pub(crate) fn reach(&self) -> Reach {
        match &self.operation {
            Operation::Gaussian(weights) => Reach::Voxels(std::array::from_fn(|a| weights[a].len().saturating_sub(1))),
            Operation::Median(radius) => Reach::Voxels(*radius),
            Operation::Tophat(ellipse) => {
                let [y, x] = ellipse.reach();
                Reach::Voxels([0, 2 * y, 2 * x])
            }
            Operation::RollingBall(ball) => {
                let [y, x] = ball.reach();
                Reach::Voxels([0, y, x])
            }
            Operation::Stretch(_) | Operation::Invert => Reach::Voxels([0; 3]),
            Operation::Clahe { .. } | Operation::NormalizeSlices(_) => Reach::Slice,
            Operation::Affine(_) | Operation::Crop(_) => Reach::Moved,
        }
    }

    /// The input voxels that the output voxels of `bounds` depend on.
    pub(crate) fn sources(&self, bounds: &BoxZyx) -> BoxZyx {
        match (&self.operation, self.reach()) {
            (Operation::Affine(map), _) => map.sources(bounds, self.from),
            (Operation::Crop(start), _) => {
                std::array::from_fn(|a| bounds[a].start + start[a]..bounds[a].end + start[a])
            }
            (_, Reach::Voxels(reach)) => dilated(bounds, reach, self.from),
            _ => [bounds[0].clone(), 0..self.from[1], 0..self.from[2]],
        }
    }

    /// Computes the voxels of `bounds` from the block of [`Stage::sources`]. `range` are the values of
    /// [`Operation::stack_percentiles`].
    pub(crate) fn apply(&self, input: Block, bounds: &BoxZyx, range: Option<[f64; 2]>) -> Vec<f32> {
        match &self.operation {
            Operation::Gaussian(weights) => gaussian(&input, bounds, self.from, weights),
            Operation::Median(radius) => median(&input, bounds, self.from, *radius),
            Operation::Tophat(ellipse) => white_tophat(&input, bounds, self.from, ellipse),
            Operation::RollingBall(ball) => rolling_ball(&input, bounds, self.from, ball),
            Operation::Clahe { tiles, clip } => {
                each_slice(&input, bounds, |slice, shape_yx| equalized(slice, shape_yx, *tiles, *clip))
            }
            Operation::NormalizeSlices(wanted) => each_slice(&input, bounds, |slice, _| normalized(slice, *wanted)),
            Operation::Stretch(_) => {
                let mut values = input.values;
                values.iter_mut().for_each(|v| *v = stretched(*v, range));
                values
            }
            Operation::Invert => {
                let mut values = input.values;
                values.iter_mut().for_each(|v| *v = inverted(*v, range));
                values
            }
            Operation::Affine(map) => affine(&input, bounds, self.from, map),
            Operation::Crop(_) => input.values,
        }
    }
}

/// Checks the ranges of a crop along Z, Y, X against the grid, and makes the grid that of the crop.
fn crop(grid: &mut Grid, ranges: [Option<[usize; 2]>; 3]) -> Result<Operation, PreprocessError> {
    let mut start = [0; 3];
    for (axis, range) in ranges.into_iter().enumerate() {
        let Some([from, to]) = range else { continue };
        let extent = grid.shape[axis];
        if to > extent {
            let letter = ["z", "y", "x"].get(axis).copied().unwrap_or_default();
            let problem = format!("{letter}={from}-{to} is not inside the stack");
            return Err(PreprocessError::unfit("crop", problem, format!("give a range inside 0-{extent}")));
        }
        start[axis] = from;
        grid.shape[axis] = to - from;
    }
    Ok(Operation::Crop(start))
}

/// Resolves the deskewing of slices that a sheet at an angle to the stage's direction took.
fn deskew(grid: &mut Grid, angle_degrees: f64, step_um: Option<f64>) -> Result<Operation, PreprocessError> {
    const STEP: &str = "deskew";
    let y_um = grid.voxel_um(STEP, 1).map_err(|_| {
        let problem = "the shift of slices is in µm, but the voxel size along Y is unknown";
        PreprocessError::unknown_voxel_size(STEP, problem, "")
    })?;
    let step_um = match step_um {
        Some(um) => um,
        None => grid.voxel_um(STEP, 0).map_err(|_| {
            let problem = "the distance between slices is unknown";
            PreprocessError::unknown_voxel_size(STEP, problem, "add it, such as step=0.5um, or ")
        })?,
    };
    let angle = angle_degrees.abs().to_radians();
    // Rows of voxels that each slice is shifted by, and the offset that keeps all positions above 0.
    let shift = step_um * angle.cos() / y_um * angle_degrees.signum();
    let steps = grid.shape[0].saturating_sub(1) as f64;
    let offset = if shift < 0.0 { shift * steps } else { 0.0 };
    // A shift of whole rows may be slightly more due to rounding.
    let added = (shift.abs() * steps - ROUNDING).ceil().max(0.0);
    let too_large = || {
        PreprocessError::unfit(
            STEP,
            format!("the stack would grow by {added} rows"),
            "check the angle, the step and the voxel size",
        )
    };
    if added.is_nan() || added > MAX_ADDED_ROWS {
        return Err(too_large());
    }
    grid.shape[1] = grid.shape[1].checked_add(added as usize).ok_or_else(too_large)?;
    element_count(&grid.shape).map_err(|_| too_large())?;
    grid.voxel_um.z = Some(step_um * angle.sin());
    // Output row y of slice z is input row y - shift z + offset.
    let map = [1.0, 0.0, 0.0, 0.0, -shift, 1.0, 0.0, offset, 0.0, 0.0, 1.0, 0.0];
    Ok(Operation::Affine(Affine(map)))
}
