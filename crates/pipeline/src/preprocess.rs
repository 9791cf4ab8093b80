//! The preprocessing steps that the user chose, applied to images as they are read.

use crate::evaluate::looks_like_labels;
use crate::float_loss::FloatLoss;
use crate::job::Meter;
use crate::predict::grid::READ_SLICES;
use crate::predict::resolve::check_voxel_size;
use crate::predict::{PredictJob, PredictOptions};
use crate::stack::axis_index::{C, S, T, X, Y, Z};
use crate::stack::{Extents, Stack};
use crate::{Context, JobError, Model, ModelTask, ProgressStage, ProgressUnit};
use cytoscope_formats::{DerivedPixels, DerivedSpec, FormatError, Image};
use cytoscope_preprocess::{Chain, PreprocessError, PreprocessStep, Source, StackStatistics, Tails};
use cytoscope_storage::message;
use cytoscope_storage::setting::VOXEL_SIZE;
use cytoscope_volume::{BoxZyx, DType, Region, Samples, VoxelSize};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Effect of preprocessing on a stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreprocessRecord {
    /// The steps as text, in order.
    pub steps: Vec<String>,
    /// Shape Z, Y, X of the file.
    pub input_shape_zyx: [usize; 3],
    /// Shape Z, Y, X after the steps: that of labels and maps.
    pub shape_zyx: [usize; 3],
    /// Voxel size after the steps.
    pub voxel_size_um: VoxelSize,
}

impl PreprocessRecord {
    /// Returns a note for the user.
    pub(crate) fn note(&self) -> String {
        let steps = self.steps.join(", ");
        if self.input_shape_zyx == self.shape_zyx {
            return format!("preprocessed: {steps}");
        }
        format!(
            "preprocessed: {steps}; the results have the shape of the preprocessed stack, {:?} instead of {:?} voxels",
            self.shape_zyx, self.input_shape_zyx
        )
    }
}

/// Checks what is known about steps before a stack is opened.
///
/// # Errors
/// [`JobError::WrongUse`] that names the invalid step.
pub(crate) fn check(steps: &[PreprocessStep]) -> Result<(), JobError> {
    steps.iter().try_for_each(PreprocessStep::check).map_err(|error| JobError::wrong_use(error.to_string()))
}

/// Applies a job's steps to an opened input; returns the image to predict, the record of the steps if there are any,
/// and the maximum bytes that they hold during the prediction.
///
/// # Errors
/// Same as [`preprocessed`]; [`JobError::WrongUse`] or [`JobError::Mismatch`] for an implausible voxel size.
pub(crate) fn for_prediction(
    context: &Context,
    job: &PredictJob,
    model: &Model,
    image: Image,
) -> Result<(Image, Option<PreprocessRecord>, u64), JobError> {
    if job.preprocess.is_empty() {
        return Ok((image, None, 0));
    }
    let given = job.voxel_um.map(|[z, y, x]| VoxelSize::new_um(z, y, x));
    let voxel_um = given.unwrap_or(image.meta().voxel_size_um);
    check_voxel_size(&image.meta().path, voxel_um, job.voxel_um)?;
    let result = with_voxel_size(context, &image, &job.preprocess, voxel_um)?;
    // Objects are measured in all channels.
    let all = Extents::of(result.meta()).channels;
    let read_channels = if model.task == ModelTask::Segmentation { all } else { model.input_channels.min(all) };
    let held_bytes = held_bytes(&image, &result, &chain_for(&image, &job.preprocess, voxel_um)?, read_channels);
    let record = PreprocessRecord {
        steps: job.preprocess.iter().map(PreprocessStep::to_string).collect(),
        input_shape_zyx: Extents::of(image.meta()).zyx,
        shape_zyx: Extents::of(result.meta()).zyx,
        voxel_size_um: result.meta().voxel_size_um,
    };
    Ok((result, Some(record), held_bytes))
}

/// Returns the maximum bytes that are held while a preprocessed image is read. It is read in slabs, which are largest
/// for measurements and statistics.
fn held_bytes(source: &Image, result: &Image, chain: &Chain, read_channels: usize) -> u64 {
    if chain.crop_start().is_some() {
        // What is read is passed on.
        return 0;
    }
    let slices = Stack::new(result, 0).slab_slices().max(READ_SLICES);
    chain.peak_bytes(slices, source.meta().dtype.size_bytes(), read_channels)
}

/// Returns a job's options for its preprocessed image, whose voxel size is already the given one or derived from it.
pub(crate) fn options_after(job: &PredictJob) -> PredictOptions {
    let options = job.options();
    if job.preprocess.is_empty() { options } else { PredictOptions { voxel_um: None, ..options } }
}

/// Returns an image with the pixels of `image` after the steps; without steps, the image itself. Nothing is computed
/// before pixels are read. Its samples are 32-bit floats, unless all steps are crops.
///
/// # Errors
/// [`JobError::WrongUse`] for an invalid step, [`JobError::Mismatch`] for one that does not fit the image.
pub fn preprocessed(context: &Context, image: &Image, steps: &[PreprocessStep]) -> Result<Image, JobError> {
    with_voxel_size(context, image, steps, image.meta().voxel_size_um)
}

fn with_voxel_size(
    context: &Context,
    image: &Image,
    steps: &[PreprocessStep],
    voxel_um: VoxelSize,
) -> Result<Image, JobError> {
    if steps.is_empty() {
        return Ok(image.clone());
    }
    let meta = image.meta();
    let extents = Extents::of(meta);
    let chain = chain_for(image, steps, voxel_um)?;
    let [z, y, x] = chain.shape_zyx();
    let keeps_values = chain.crop_start().is_some();
    let spec = DerivedSpec {
        shape_full: [extents.times, z, extents.channels / extents.samples.max(1), y, x, extents.samples],
        dtype: if keeps_values { meta.dtype } else { DType::F32 },
        voxel_size_um: chain.voxel_size(),
        origin_um: origin_after(&chain, meta.origin_um),
        channels: meta.channels.clone(),
        keeps_values,
    };
    let (stacks, noted) = (Mutex::default(), Mutex::default());
    let pixels = Preprocessed { chain, context: context.clone(), stacks, noted };
    Ok(image.derived(&spec, Box::new(pixels))?)
}

/// Returns the position of the first voxel after the steps, Z, Y, X in µm: crops move it, and warps reset it to 0.
/// Along an axis of unknown voxel size, it does not move.
fn origin_after(chain: &Chain, origin_um: [f64; 3]) -> [f64; 3] {
    let Some(first) = chain.first_voxel() else { return [0.0; 3] };
    let size = chain.voxel_size();
    let known = [size.z, size.y, size.x].map(|um| um.filter(|um| um.is_finite() && *um > 0.0).unwrap_or(0.0));
    std::array::from_fn(|axis| origin_um[axis] + first[axis] as f64 * known[axis])
}

/// Resolves steps for the stacks of an image.
fn chain_for(image: &Image, steps: &[PreprocessStep], voxel_um: VoxelSize) -> Result<Chain, JobError> {
    let meta = image.meta();
    Chain::new(steps, Extents::of(meta).zyx, voxel_um).map_err(|error| job_error(&meta.path, error))
}

fn job_error(path: &Path, error: PreprocessError) -> JobError {
    match error {
        PreprocessError::Unfit { step, problem, next_step } => JobError::Mismatch {
            path: path.to_owned(),
            problem: format!("preprocessing step {step}: {problem}").into(),
            next_step: next_step.into(),
        },
        PreprocessError::UnknownVoxelSize { step, problem, otherwise } => JobError::Mismatch {
            path: path.to_owned(),
            problem: format!("preprocessing step {step}: {problem}").into(),
            next_step: message!("{otherwise}set the voxel size with {VOXEL_SIZE}"),
        },
        other => JobError::wrong_use(other.to_string()),
    }
}

/// Indices of a stack in an image: time point, channel, sample of a pixel.
type StackIndex = [usize; 3];

/// State of a stack that is kept between reads.
#[derive(Default)]
struct StackState {
    statistics: Option<Arc<StackStatistics>>,
    tails: Tails,
}

/// The pixels of a preprocessed image.
struct Preprocessed {
    chain: Chain,
    context: Context,
    stacks: Mutex<HashMap<StackIndex, StackState>>,
    /// What conversion to 32-bit floats changes, as far as notes have said so.
    noted: Mutex<FloatLoss>,
}

impl fmt::Debug for Preprocessed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Preprocessed").field("chain", &self.chain).finish_non_exhaustive()
    }
}

impl Preprocessed {
    fn states(&self) -> MutexGuard<'_, HashMap<StackIndex, StackState>> {
        self.stacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the statistics of a stack, which are computed when they are first needed.
    fn statistics(&self, source: &Image, stack: StackIndex) -> Result<Arc<StackStatistics>, FormatError> {
        let known = self.states().get(&stack).and_then(|state| state.statistics.clone());
        if let Some(known) = known {
            return Ok(known);
        }
        let mut reader = Reader { source, stack, context: &self.context, noted: &self.noted, meter: None };
        let passes = self.chain.statistics_passes() as u64;
        if passes > 0 {
            let voxels: usize = Extents::of(source.meta()).zyx.iter().product();
            reader.meter =
                Some(self.context.meter(ProgressStage::Preprocess, passes * voxels as u64, ProgressUnit::Voxels));
        }
        let found = Arc::new(self.chain.statistics(&mut reader)?);
        self.states().entry(stack).or_default().statistics = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Computes a box of a stack, axes Z, Y, X.
    fn values(&self, source: &Image, stack: StackIndex, bounds: &BoxZyx) -> Result<Vec<f32>, FormatError> {
        let statistics = self.statistics(source, stack)?;
        let mut tails = self.states().get_mut(&stack).map(|state| std::mem::take(&mut state.tails)).unwrap_or_default();
        let mut reader = Reader { source, stack, context: &self.context, noted: &self.noted, meter: None };
        let values = self.chain.read(bounds, &mut reader, &statistics, &mut tails)?;
        let mut states = self.states();
        // Stacks are read one time point after the other.
        states
            .iter_mut()
            .filter(|(other, _)| other[0] != stack[0])
            .for_each(|(_, state)| state.tails = Tails::default());
        states.entry(stack).or_default().tails = tails;
        Ok(values)
    }
}

impl DerivedPixels for Preprocessed {
    fn read(&self, source: &Image, region: &Region) -> Result<Samples, FormatError> {
        let range = |axis: usize| {
            let start = region.start.get(axis).copied().unwrap_or(0);
            start..start + region.size.get(axis).copied().unwrap_or(1)
        };
        if let Some(first) = self.chain.crop_start() {
            let moved = [Z, Y, X].into_iter().zip(first).fold(region.clone(), |region, (axis, first)| {
                region.with_range(axis, range(axis).start + first, range(axis).len())
            });
            return Ok(source.read(0, &moved)?.into_samples());
        }
        let bounds: BoxZyx = [range(Z), range(Y), range(X)];
        let [times, channels, samples] = [range(T), range(C), range(S)];
        if [&times, &channels, &samples].iter().all(|r| r.len() == 1) {
            let values = self.values(source, [times.start, channels.start, samples.start], &bounds)?;
            return Ok(Samples::F32(values));
        }
        let [nz, ny, nx] = [&bounds[0], &bounds[1], &bounds[2]].map(|range| range.len());
        let mut out = vec![0.0f32; times.len() * nz * channels.len() * ny * nx * samples.len()];
        for (t, time) in times.clone().enumerate() {
            for (c, channel) in channels.clone().enumerate() {
                for (s, sample) in samples.clone().enumerate() {
                    let values = self.values(source, [time, channel, sample], &bounds)?;
                    for (z, slice) in values.chunks((ny * nx).max(1)).enumerate() {
                        let at = ((t * nz + z) * channels.len() + c) * ny * nx * samples.len() + s;
                        let to = out.iter_mut().skip(at).step_by(samples.len());
                        to.zip(slice).for_each(|(to, from)| *to = *from);
                    }
                }
            }
        }
        Ok(Samples::F32(out))
    }
}

/// Reads one stack of the image that is preprocessed.
struct Reader<'a> {
    source: &'a Image,
    stack: StackIndex,
    context: &'a Context,
    /// What conversion to 32-bit floats changes, as far as notes have said so.
    noted: &'a Mutex<FloatLoss>,
    /// Counts the voxels that are read for statistics.
    meter: Option<Meter<'a>>,
}

impl Reader<'_> {
    /// Notes what conversion of these samples to 32-bit floats changes, once.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] if labels would be rounded, so that objects might become one.
    fn check_floats(&self, samples: &Samples) -> Result<(), FormatError> {
        let loss = FloatLoss::of(samples);
        let meta = self.source.meta();
        if loss.rounded && (self.source.is_label_image() || looks_like_labels(&meta.path)) {
            return Err(FormatError::Unsupported {
                file: meta.path.clone(),
                problem: "preprocessing computes in 32-bit floats, which would make label numbers above 16777216 equal"
                    .to_owned(),
                next_step: "number the objects from 1 on first, or only crop the labels".into(),
            });
        }
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let new = FloatLoss { rounded: loss.rounded && !noted.rounded, too_large: loss.too_large && !noted.too_large };
        noted.merge(loss);
        drop(noted);
        new.notes().for_each(|note| self.context.note(note));
        Ok(())
    }
}

impl Source for Reader<'_> {
    type Error = FormatError;

    fn read(&mut self, bounds: &BoxZyx) -> Result<Vec<f32>, FormatError> {
        let source = self.source;
        let meta = source.meta();
        let canceled = || FormatError::Io {
            file: meta.path.clone(),
            doing: "preprocessing",
            source: std::io::Error::new(std::io::ErrorKind::Interrupted, "canceled"),
        };
        if self.context.cancel.is_canceled() {
            return Err(canceled());
        }
        let [t, c, s] = self.stack;
        let [z, y, x] = bounds.clone();
        let ranges = [(T, t..t + 1), (Z, z), (C, c..c + 1), (Y, y), (X, x), (S, s..s + 1)];
        let region = ranges
            .into_iter()
            .fold(Region::whole(&meta.shape_full), |region, (axis, r)| region.with_range(axis, r.start, r.len()));
        let samples = source.read(0, &region)?.into_samples();
        if let Some(meter) = &mut self.meter {
            meter.add(samples.len() as u64).map_err(|_| canceled())?;
        }
        self.check_floats(&samples)?;
        Ok(match samples {
            Samples::F32(values) => values,
            other => other.to_f32(),
        })
    }
}
