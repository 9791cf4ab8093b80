//! Estimation of the median object diameter: a first guess from blobs in scale space, refined by short predictions.
//!
//! The first guess is within a factor of two for most stacks. A model trained on varied sizes still finds objects of half
//! or twice its nominal diameter, so the objects of one short prediction on a coarse grid give a better value. If the two
//! values differ much, the prediction is repeated at the better one; if there are only a few objects, on a finer grid. If
//! few objects were found in a tile that is smaller than the stack, a larger part is predicted: such a tile leaves out most
//! of the large objects, which its border cuts. If there are few objects in the middle of a large stack, they are looked for
//! where the contrast is highest.
//!
//! Stacks that are blurred along Z are measured on a finer grid (see `blurred`).
//!
//! Objects that are darker than their outlines, as in images of membranes, are not blobs, so the first guess says little about
//! them: their diameter is estimated from short predictions at many scales (see `scales`).

mod blurred;
mod objects;
mod scales;
mod short_prediction;

use super::{Certainty, DiameterEstimate, DiameterRequest, DiameterUnit, IntensityChange, ObjectDiameter};
use crate::slice_statistics::Chains;
use crate::stack::Stack;
use crate::{Context, JobError, Model};
use cytoscope_engine::{CompileOptions, Engine, EngineError};
use cytoscope_objects::blobs::{BlobSize, MAX_OUTLIERS};
use cytoscope_objects::diameter::{FLAT_SLICES, LIKELY_ELONGATION, PLAUSIBLE_ELONGATION};
use objects::{Appearance, Measured};
use scales::OverScales;
use short_prediction::{ShortPrediction, TileSession};
use std::cell::Cell;
use std::ops::Range;

/// Maximum extents Z, Y, X of the part of a stack that is used, which is the central one at first.
const MAX_WINDOW_ZYX: [usize; 3] = [96, 1024, 1024];

/// How much coarser the grid of a short prediction is than that of a full one, to save time.
#[derive(Clone, Copy, PartialEq)]
struct Coarsening {
    /// Factor of the voxel size.
    factor: f64,
    /// Factor by which objects appear larger on that grid.
    growth: f64,
    /// Factor of the model's seed height.
    seed_height_factor: f64,
    /// Ratio of two measurements below which the second one is not repeated.
    close_ratio: f64,
    /// Ratio of two measurements below which they agree, for [`Certainty::High`].
    certain_ratio: f64,
}

/// An eighth of the voxels is enough for stacks with several objects and a known voxel size: on 33 stacks (embryos of
/// BBBC050, and nuclei of an independent generator), one short prediction at the first guess is as close to the true
/// diameter as several ones on the finer grid.
///
/// How far out labels reach differs between data sets, so the growth is between the values of embryos 1 to 9 of BBBC050
/// (1.09), of nuclei of an independent generator (1.12) and of `simulate` (1.2).
const COARSE: Coarsening = Coarsening {
    factor: 2.0,
    growth: 1.135,
    seed_height_factor: SEED_HEIGHT_FACTOR,
    close_ratio: 1.25,
    certain_ratio: 1.25,
};
/// Number of objects below which the coarse grid is not used: there, single objects can merge with their surroundings, and
/// the estimate runs away.
const FEW_OBJECTS: usize = 4;
/// For stacks of few objects, and if the slice spacing is estimated, too: objects need enough slices then. They
/// grow about 3 % less than on the coarse grid.
const FINE: Coarsening = Coarsening {
    factor: 1.3,
    growth: 1.1,
    seed_height_factor: SEED_HEIGHT_FACTOR,
    close_ratio: 1.15,
    certain_ratio: 1.125,
};
/// For flat stacks ([`FLAT_SLICES`]): predicting a plane takes little time, and a section has too few voxels on a coarse grid.
const FLAT: Coarsening = Coarsening {
    factor: 1.0,
    growth: 1.05,
    seed_height_factor: SEED_HEIGHT_FACTOR,
    close_ratio: 1.1,
    certain_ratio: 1.125,
};
/// Factor of the first guess on flat stacks, where noise is averaged less and sections are small. A start that is too large is
/// corrected at once, because objects of half the size are still found; from one that is too small, the texture inside of
/// objects may be measured.
const FLAT_START: f64 = 2.0;
/// Factor of the guess on a coarser image, for stacks whose blobs are no larger than texture, as in images of membranes: cells
/// are larger than the structures between them. On 14 simulated stacks of membranes whose pixels were averaged, so that the
/// smallest size is larger, a start at twice the smallest size ended in the texture twice, one at three times that size never.
const TEXTURE_START: f64 = 1.5;
/// Ratio of the diameters of two estimates above which the objects of the smaller one may be texture.
const TEXTURE_RATIO: f64 = 1.5;
/// Minimum number of blobs that a few brighter ones may hide.
const MIN_HIDDEN: usize = 8;
/// Minimum ratio of the number of objects to that of the outliers that hid them.
const OUTLIER_RATIO: usize = 3;
/// Factor of the model's seed height in short predictions that follow one another: objects that merge on the coarse grid make
/// the estimate run away, split ones change the median little.
const SEED_HEIGHT_FACTOR: f64 = 0.6;
/// Tile size Z, Y, X of a short prediction.
const TILE: [usize; 3] = [40, 96, 96];
/// Tile size Z, Y, X of a short prediction of a flat stack.
const FLAT_TILE: [usize; 3] = [FLAT_SLICES, 320, 320];
/// Tile size Z, Y, X of a short prediction if [`TILE`] has fewer than [`ENOUGH_OBJECTS`].
const LARGE_TILE: [usize; 3] = [48, 128, 128];
/// Number of objects whose median is taken without looking at more of the stack. With a spread of 25 % the standard error
/// of the median is then 6 %.
const ENOUGH_OBJECTS: usize = 24;
/// Maximum number of short predictions on one grid.
const MAX_PREDICTIONS: usize = 4;
/// Maximum number of short predictions with [`LARGE_TILE`].
const MAX_LARGE_PREDICTIONS: usize = 2;
/// Maximum factor by which one short prediction may correct the diameter.
const MAX_CORRECTION: f64 = 2.5;
/// Smallest diameter in voxels along X that is believed: smaller "objects" are texture, as in images of membranes.
const MIN_VOXELS: f64 = 3.5;
/// Diameter in voxels along X below which objects may be the grains of noise.
const NOISE_VOXELS: f64 = 8.0;
/// Mean of the largest heights of objects below which they are grains of noise: 0.52 to 0.63 in a stack of noise with hot pixels, at
/// least 0.68 in five simulated stacks of noisy nuclei, and 0.75 in the last one of 25 widefield stacks.
const NOISE_PEAK: f64 = 0.64;
/// Ratio of the objects' intensity to the usual one of the model's training data from which on intensities are scaled to it. In
/// the real stacks that `nuclei` was trained on, it is at most 3.3.
const MAX_INTENSITY_RATIO: f64 = 3.3;
/// Ratio below which they are scaled to [`DIM_TARGET`]. Training data contain dim objects, too, so the ratio is small.
const MIN_INTENSITY_RATIO: f64 = 1.0 / 9.0;
/// The intensity to which those of dim objects are scaled, relative to the usual one: beside the bright ones, which get even
/// brighter, more would make outlines too wide.
const DIM_TARGET: f64 = 1.0 / 3.0;
/// Preprocessed intensity of the background above which it is subtracted. In 22 stacks of BBBC050, it is at most 0.04; where noise is
/// about as strong as the objects, the lower percentile is that of the noise, far below the background. Two simulated stacks with
/// noise of six strengths each were predicted with and without subtraction: from 0.24 on, more objects were found with it, at 0.16
/// fewer (at an IoU of 0.7), and between them about as many.
const HIGH_BACKGROUND: f64 = 0.2;
/// Background that is not believed: what remains of the range would be multiplied by more than ten.
const MAX_BACKGROUND: f64 = 0.9;
/// Minimum contrast of objects, relative to the background, where that is high ([`HIGH_BACKGROUND`]). Below, they are grains of
/// noise. The intensity 0 is the 1st percentile of the stack, so noise with the background b has a standard deviation of b / 2.33 at
/// most. On the grids of short predictions, objects of the usual size have about 300 voxels, whose mean stands out by five standard
/// errors at a contrast of 5 / √300 / 2.33 = 0.12.
const MIN_CONTRAST: f64 = 0.12;
/// Diameter in voxels to start with if no blobs are found.
const DEFAULT_VOXELS: f64 = 20.0;

/// Estimates the object diameter of one stack.
pub(crate) struct Estimator<'a> {
    /// Cancellation, progress and spans of the job.
    pub context: &'a Context,
    /// The model of the short predictions, which declares a nominal object diameter.
    pub model: &'a Model,
    /// Compiles and runs the model's network for the short predictions.
    pub engine: &'a dyn Engine,
    /// Precision and threads of the prediction; the memory budget is replaced for each short prediction.
    pub options: &'a CompileOptions,
    /// The time point on which the diameter is estimated.
    pub stack: &'a Stack,
    /// Channels of the stack that are the model's input.
    pub channels: &'a [usize],
    /// Preprocessing of the channels.
    pub chains: &'a Chains,
    /// Voxel size Z, Y, X in µm; `None` if it is unknown.
    pub voxel_um: Option<[f64; 3]>,
    /// Memory that a short prediction of a large part may use, in bytes; without enough, only a small part is predicted.
    pub budget_bytes: u64,
    /// Largest memory of a short prediction so far, in bytes: 0 at the start.
    pub peak_bytes: Cell<u64>,
}

/// Returns whether objects whose intensity has this ratio to the usual one of a model's training data are predicted as they
/// are. The intensities of stacks with brighter or dimmer objects are multiplied by a factor.
pub fn is_usual_intensity(ratio: f64) -> bool {
    (MIN_INTENSITY_RATIO..=MAX_INTENSITY_RATIO).contains(&ratio)
}

/// An estimate, and the voxel size that belongs to it.
pub(crate) struct SizeEstimate {
    /// The diameter in µm, or in voxels along X if the voxel size is unknown.
    pub estimate: DiameterEstimate,
    /// Voxel size Z, Y, X in the same unit.
    pub voxel: [f64; 3],
    /// Mean of the objects' largest heights: the higher, the clearer the network sees them. `None` without objects, if the model
    /// finds no heights, or if it does not matter.
    peak: Option<f64>,
    /// How bright the objects are in the middle compared to their outlines: a correlation from -1 to 1 with the heights that
    /// the network finds. `None` without objects, or if they are uniform.
    brightness: Option<f64>,
    /// Median of the objects' mean intensities in the model's input. `None` without objects, or if it does not matter.
    intensity: Option<f64>,
    /// Median intensity between the objects in the model's input. `None` without objects, or if it does not matter.
    background: Option<f64>,
}

impl Estimator<'_> {
    /// Returns the requested diameter, or an estimate, for a model with a nominal diameter.
    pub(crate) fn resolve(&self, request: DiameterRequest, nominal_um: f64) -> Result<ObjectDiameter, JobError> {
        let unit = if self.voxel_um.is_some() { DiameterUnit::Um } else { DiameterUnit::Voxels };
        match (request, self.voxel_um) {
            (DiameterRequest::Given(diameter), Some(voxel)) => {
                Ok(ObjectDiameter { diameter, unit, voxel, nominal_um, estimate: None })
            }
            (DiameterRequest::Given(diameter), None) => {
                let SizeEstimate { voxel, .. } = self.estimate(nominal_um, Some(diameter))?;
                Ok(ObjectDiameter { diameter, unit, voxel, nominal_um, estimate: None })
            }
            (DiameterRequest::Auto, _) => {
                let SizeEstimate { estimate, voxel, .. } = self.estimate_with_intensities(nominal_um)?;
                // Only now: most comparisons of estimates use the certainty of their medians.
                let estimate = estimate.limited_by_range();
                Ok(ObjectDiameter { diameter: estimate.diameter, unit, voxel, nominal_um, estimate: Some(estimate) })
            }
        }
    }

    /// Estimates the diameter. If the background, or the objects, are much brighter than those that the model was trained on, or the
    /// objects much dimmer, it is estimated again with changed intensities.
    fn estimate_with_intensities(&self, nominal_um: f64) -> Result<SizeEstimate, JobError> {
        let mut found = self.estimate(nominal_um, None)?;
        let Some(usual) = self.model.object_intensity else { return Ok(found) };
        tracing::debug!(background = ?found.background, objects = ?found.intensity, "intensities in the model's input");
        let mut change = IntensityChange::NONE;
        // Where objects are too bright for the range, the factor that dims them dims the background, too.
        let is_bright = found.intensity.is_some_and(|intensity| intensity > MAX_INTENSITY_RATIO * usual);
        let is_high = |background: &f64| !is_bright && (HIGH_BACKGROUND..MAX_BACKGROUND).contains(background);
        if let Some(background) = found.background.filter(is_high) {
            let without = IntensityChange::without(background);
            let other = self.estimate_changed(nominal_um, without)?;
            if other.estimate.objects > 0 {
                (found, change) = (other, without);
            }
        }
        let factor = match found.intensity.map(|intensity| intensity / usual) {
            Some(ratio) if is_usual_intensity(ratio) => return Ok(found),
            Some(bright) if bright > 1.0 => 1.0 / bright,
            Some(dim) if dim > 0.0 => DIM_TARGET / dim,
            _ => return Ok(found),
        };
        self.estimate_changed(nominal_um, change.times(factor))
    }

    /// Estimates the diameter with changed intensities.
    fn estimate_changed(&self, nominal_um: f64, change: IntensityChange) -> Result<SizeEstimate, JobError> {
        let chains = self.chains.clone().changed(change);
        let changed = Estimator { chains: &chains, peak_bytes: self.peak_bytes.clone(), ..*self };
        let mut found = changed.estimate(nominal_um, None)?;
        self.peak_bytes.set(changed.peak_bytes.get());
        found.estimate.intensity_factor = change.factor;
        found.estimate.intensity_background = change.background;
        Ok(found)
    }

    /// Estimates the diameter for a model with a nominal diameter. The certainty is [`Certainty::None`] if no objects
    /// are found. A `given` diameter is kept, but the slice spacing is still estimated if the voxel size is unknown.
    pub(crate) fn estimate(&self, nominal_um: f64, given: Option<f64>) -> Result<SizeEstimate, JobError> {
        let stack_zyx = self.stack.extents.zyx;
        let middle: [Range<usize>; 3] = std::array::from_fn(|a| {
            let size = stack_zyx[a].min(MAX_WINDOW_ZYX[a]);
            let first = (stack_zyx[a] - size) / 2;
            first..first + size
        });
        let mut best = self.estimate_in(&middle, nominal_um, given)?;
        let is_whole = middle.iter().zip(stack_zyx).all(|(range, extent)| range.len() == extent);
        if is_whole || best.estimate.objects >= FEW_OBJECTS {
            return Ok(best);
        }
        for window in self.contrast_windows(MAX_WINDOW_ZYX)? {
            let found = self.estimate_in(&window, nominal_um, given)?;
            if found.estimate.objects > best.estimate.objects {
                best = found;
            }
            if best.estimate.objects >= FEW_OBJECTS {
                break;
            }
        }
        Ok(best)
    }

    /// Estimates the diameter in a part of the stack.
    fn estimate_in(
        &self,
        window: &[Range<usize>; 3],
        nominal_um: f64,
        given: Option<f64>,
    ) -> Result<SizeEstimate, JobError> {
        let voxel = self.voxel_um.unwrap_or_else(|| self.default_voxel());
        let stack = self.stack.windowed(window);
        let is_flat = stack.extents.zyx[0] <= FLAT_SLICES;
        let guess = self.guess(&stack, voxel)?;
        let factor = if is_flat { FLAT_START } else { 1.0 };
        let mut found = self.estimate_from(&stack, (guess, factor), nominal_um, given, true)?;
        if is_flat || given.is_some() {
            return Ok(found);
        }
        let is_smallest = guess.is_some_and(|guess| guess.is_smallest);
        let mut is_empty = false;
        if is_smallest || found.brightness.is_some_and(scales::is_dark) {
            let center = guess.map(|g| std::array::from_fn(|a| g.center_um[a] / voxel[a]));
            match self.estimate_over_scales(&stack, found.voxel, center, nominal_um)? {
                OverScales::Dark(over_scales) => return Ok(over_scales),
                OverScales::Empty => is_empty = found.estimate.objects == 0,
                OverScales::Unclear => {}
            }
            if found.brightness.is_some_and(scales::is_clearly_dark) {
                found = self.estimate_from(&stack, (guess, factor), nominal_um, given, false)?;
            }
        }
        if guess.is_some_and(|guess| guess.count <= MAX_OUTLIERS)
            && let Some(hidden) = self.guess_without_outliers(&stack, voxel)?.filter(|g| g.count >= MIN_HIDDEN)
        {
            let other = self.estimate_from(&stack, (Some(hidden), factor), nominal_um, given, false)?;
            if are_outliers(&found.estimate, &other.estimate) {
                return Ok(other);
            }
        }
        if !is_smallest {
            return Ok(found);
        }
        let coarser = (self.coarser_guess(&stack, voxel)?, TEXTURE_START);
        if is_empty {
            // No prediction of any size has found an object, so a single one decides whether there may be others.
            let at = self.first_prediction(&stack, coarser, nominal_um, given, false);
            if self.predict_part(&stack, &at, &mut None)?.diameters.is_empty() {
                return Ok(found);
            }
        }
        let other = self.estimate_from(&stack, coarser, nominal_um, given, false)?;
        Ok(if is_texture(&found, &other) { other } else { found })
    }

    /// Estimates the diameter in a part of the stack from a first guess, which is multiplied by a factor. If `stops_if_dark`, the
    /// first objects that are clearly darker than their outlines end it: their diameter is estimated in another way.
    fn estimate_from(
        &self,
        stack: &Stack,
        (guess, factor): (Option<BlobSize>, f64),
        nominal_um: f64,
        given: Option<f64>,
        stops_if_dark: bool,
    ) -> Result<SizeEstimate, JobError> {
        let first = self.first_prediction(stack, (guess, factor), nominal_um, given, stops_if_dark);
        let is_flat = first.is_flat;
        let (mut at, mut last) = (first, None);
        if is_flat || self.voxel_um.is_some() {
            last = self.measure_around(stack, &mut at, given)?;
        }
        if last.is_none() && !is_flat {
            at = ShortPrediction { coarsening: FINE, ..first };
            last = self.measure_around(stack, &mut at, given)?;
        }
        // A few objects may be texture.
        let can_be_blurred = at.coarsening == COARSE && given.is_none();
        let blurred = match &last {
            Some((measured, _)) if can_be_blurred && measured.is_blurred() && !at.stops_at(measured) => {
                self.measure_blurred(stack, at)?
            }
            _ => None,
        };
        if let Some((measured, change, finer)) = blurred {
            at = finer;
            last = Some((measured, change));
        } else if let Some((few, _)) = last.as_ref().filter(|_| given.is_none())
            && few.diameters.len() < ENOUGH_OBJECTS
            && !(few.is_complete || is_flat || at.stops_at(few))
        {
            let large = ShortPrediction { tile: LARGE_TILE, budget_bytes: Some(self.budget_bytes), ..at };
            if let Some((measured, change, found)) = self.measure_more(stack, large, few.diameters.len())? {
                at.diameter = found;
                last = Some((measured, change));
            }
        }
        let has_heights = self.model.seed_channel != self.model.segment_channel;
        let is_noise = has_heights && last.as_ref().is_some_and(|(measured, _)| is_noise(measured, &at));
        let last = last.filter(|_| given.is_some() || !is_noise);
        let appearance = last.as_ref().map(|(measured, _)| measured.appearance).unwrap_or_default();
        let estimate = last.map_or_else(
            || {
                // Assume that the objects have the guessed or nominal size.
                let diameter = given.unwrap_or_else(|| guess.map_or(nominal_um, |g| g.diameter_um));
                let certainty = Certainty::None;
                DiameterEstimate {
                    diameter,
                    range: [diameter; 2],
                    objects: 0,
                    certainty,
                    intensity_factor: 1.0,
                    intensity_background: 0.0,
                }
            },
            |(measured, change)| measured.estimate(at.diameter, change, at.coarsening),
        );
        let peak = (has_heights && estimate.objects > 0).then_some(appearance.peak);
        let Appearance { brightness, intensity, background, .. } = appearance;
        Ok(SizeEstimate { estimate, voxel: at.voxel, peak, brightness, intensity, background })
    }

    /// Returns the short prediction with which [`Self::estimate_from`] begins: around the blobs, on the coarse grid, or on that of
    /// flat stacks.
    fn first_prediction(
        &self,
        stack: &Stack,
        (guess, factor): (Option<BlobSize>, f64),
        nominal_um: f64,
        given: Option<f64>,
        stops_if_dark: bool,
    ) -> ShortPrediction {
        let voxel = self.voxel_um.unwrap_or_else(|| self.default_voxel());
        let is_flat = stack.extents.zyx[0] <= FLAT_SLICES;
        let guessed = guess.map_or(DEFAULT_VOXELS * voxel[2], |g| g.diameter_um);
        let [_, height, width]: [f64; 3] = std::array::from_fn(|a| stack.extents.zyx[a] as f64 * voxel[a]);
        // At least the guess, and no more than half the image.
        let start = (factor * guessed).min(height.min(width) / 2.0).max(guessed);
        let (tile, coarsening) = if is_flat { (FLAT_TILE, FLAT) } else { (TILE, COARSE) };
        ShortPrediction {
            voxel,
            diameter: given.unwrap_or(start),
            nominal_um,
            center: guess.map(|g| std::array::from_fn(|a| g.center_um[a] / voxel[a])),
            tile,
            budget_bytes: None,
            coarsening,
            is_flat,
            stops_if_dark: stops_if_dark && !is_flat && given.is_none(),
        }
    }

    /// Measures the objects of a small part of a stack, at the diameter of `at` and again while they have another one. Sets
    /// the diameter found and, if it is unknown, the slice spacing. Returns the objects with the logarithm of the last change
    /// of the diameter; `None` if there are none, or too few for the coarse grid. A `given` diameter is kept.
    fn measure_around(
        &self,
        stack: &Stack,
        at: &mut ShortPrediction,
        given: Option<f64>,
    ) -> Result<Option<(Measured, f64)>, JobError> {
        let mut session: TileSession = None;
        let mut last = None;
        for round in 0..MAX_PREDICTIONS {
            self.context.check()?;
            let measured = self.predict_part(stack, at, &mut session)?;
            if at.coarsening == COARSE && measured.diameters.len() < FEW_OBJECTS {
                return Ok(None);
            }
            if let Some(elongation) = measured.elongation.filter(|_| self.voxel_um.is_none())
                && !PLAUSIBLE_ELONGATION.contains(&elongation)
            {
                // The assumed slice spacing is implausible: measure again with one that gives objects a likely
                // elongation.
                at.voxel[0] *= LIKELY_ELONGATION / elongation;
                if given.is_none() {
                    at.diameter = measured.at(0.5).unwrap_or(at.diameter) * (LIKELY_ELONGATION / elongation).cbrt();
                }
                continue;
            }
            let Some(found) = measured.at(0.5) else {
                if last.is_some() || given.is_some() {
                    break;
                }
                // No objects at this size: try smaller, then larger objects.
                at.diameter *= if round == 0 { 0.5 } else { 4.0 };
                continue;
            };
            if given.is_some() {
                return Ok(Some((measured, 0.0)));
            }
            let found = found.clamp(at.diameter / MAX_CORRECTION, at.diameter * MAX_CORRECTION);
            if found < MIN_VOXELS * at.voxel[2] {
                at.voxel = self.voxel_um.unwrap_or_else(|| self.default_voxel());
                return Ok(None);
            }
            let change = (found / at.diameter).ln().abs();
            let is_last = change < at.coarsening.close_ratio.ln() || at.stops_at(&measured);
            last = Some((measured, change));
            at.diameter = found;
            if is_last {
                break;
            }
        }
        Ok(last)
    }

    /// Measures the objects of a larger part of a stack, at the diameter of `at` and once more if they have another one.
    /// Returns them with the logarithm of the last change of the diameter, and the diameter; `None` if no more than `few`
    /// objects were found, or if there is too little memory.
    fn measure_more(
        &self,
        stack: &Stack,
        mut at: ShortPrediction,
        few: usize,
    ) -> Result<Option<(Measured, f64, f64)>, JobError> {
        let mut session: TileSession = None;
        let mut last = None;
        for _ in 0..MAX_LARGE_PREDICTIONS {
            self.context.check()?;
            let measured = match self.predict_part(stack, &at, &mut session) {
                Err(JobError::Engine(EngineError::OutOfMemory { .. }) | JobError::Budget { .. }) => break,
                measured => measured?,
            };
            let Some(found) = measured.at(0.5).filter(|_| measured.diameters.len() > few) else { break };
            let found = found.clamp(at.diameter / MAX_CORRECTION, at.diameter * MAX_CORRECTION);
            if found < MIN_VOXELS * at.voxel[2] {
                break;
            }
            let change = (found / at.diameter).ln().abs();
            at.diameter = found;
            last = Some((measured, change, found));
            if change < at.coarsening.close_ratio.ln() {
                break;
            }
        }
        Ok(last)
    }

    /// Returns the voxel size Z, Y, X, in voxels along X, assumed for a stack without one: that of the model's grid.
    fn default_voxel(&self) -> [f64; 3] {
        let ratio = self.model.voxel_um.map_or(1.0, |[z, _, x]| z / x);
        if self.stack.extents.zyx[0] > 1 { [ratio, 1.0, 1.0] } else { [1.0; 3] }
    }
}

/// Returns whether objects are the grains of noise: ones that a network that finds heights does not see clearly, and that are small
/// or no brighter than a high background.
fn is_noise(measured: &Measured, at: &ShortPrediction) -> bool {
    let appearance = measured.appearance;
    let is_small = at.diameter < NOISE_VOXELS * at.voxel[2];
    appearance.peak < NOISE_PEAK && (is_small || is_background(appearance))
}

/// Returns whether objects are no brighter than a high background, and not darker than their outlines either, as cells are in images
/// of membranes.
fn is_background(appearance: Appearance) -> bool {
    let Some((intensity, background)) = appearance.intensity.zip(appearance.background) else { return false };
    background >= HIGH_BACKGROUND
        && intensity < (1.0 + MIN_CONTRAST) * background
        && !appearance.brightness.is_some_and(scales::is_dark)
}

/// Returns whether the objects of an estimate are bright outliers beside those of another one, which are many and of a certain
/// size. Outliers have another size, unless theirs is hardly known.
fn are_outliers(estimate: &DiameterEstimate, hidden: &DiameterEstimate) -> bool {
    let is_unlike = (hidden.diameter / estimate.diameter).ln().abs() > TEXTURE_RATIO.ln();
    hidden.certainty == Certainty::High
        && hidden.objects >= OUTLIER_RATIO * estimate.objects
        && (is_unlike || estimate.certainty <= Certainty::Low)
}

/// Returns whether the objects of an estimate are the texture of those of another one, from a larger start. Texture is much
/// smaller than objects, and a network that finds heights sees it less clearly, but may find it with high certainty. Few or
/// varying larger objects do not justify rejecting it, unless the estimate is of low certainty, and the largest ones of its objects
/// have about their size: the others are then fragments.
fn is_texture(found: &SizeEstimate, larger: &SizeEstimate) -> bool {
    let (estimate, other) = (found.estimate.limited_by_range(), larger.estimate.limited_by_range());
    let are_fragments = estimate.certainty == Certainty::Low
        && other.certainty >= Certainty::Medium
        && other.diameter < TEXTURE_RATIO * estimate.range[1];
    // Unknown without heights.
    let is_clearer = found.peak.zip(larger.peak).map(|(found_peak, larger_peak)| larger_peak > found_peak);
    let is_reliable = match is_clearer {
        Some(true) => larger.estimate.certainty == Certainty::High || are_fragments,
        Some(false) => false,
        None => larger.estimate.certainty == Certainty::High,
    };
    is_reliable && other.diameter > TEXTURE_RATIO * estimate.diameter
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
