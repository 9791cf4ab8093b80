//! Calibration tiles, cut from stacks in the same way as for a prediction.

use crate::devices::Devices;
use crate::diameter::{self, Certainty, DiameterRequest, Estimator, IntensityChange, ObjectDiameter};
use crate::folder_digest::{records_before, refuse_changed};
use crate::predict::grid::{ModelView, model_shape};
use crate::predict::input_channels::channels;
use crate::predict::resolve::{check_time, grid_voxel_um, voxel_size};
use crate::predict::{PredictJob, PredictOptions, expand_inputs, input_tensors, only_stacks};
use crate::provenance::InputRecord;
use crate::slice_statistics::Chains;
use crate::stack::{Extents, Stack};
use crate::{Context, JobError, Model, ProgressStage, ProgressUnit, preprocess};
use cytoscope_engine::{DeviceId, Precision};
use cytoscope_formats::{ChannelRef, Image};
use cytoscope_graph::Tensor;
use cytoscope_storage::message;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Voxels along each axis of a tile, if the stack and the network allow it.
const EDGE: usize = 64;
/// Pixels along Y and X of a tile for a network that processes single slices.
const FLAT_EDGE: usize = 256;
/// Maximum number of stacks that are opened.
const MAX_STACKS: usize = 64;

/// An input tile of a network, and the stack it was cut from.
#[derive(Debug, Clone)]
pub struct CalibrationTile {
    /// Preprocessed values in the network's axis order: batch, channel, (Z,) Y, X.
    pub values: Tensor,
    /// Name of the source for messages.
    pub from: String,
}

/// An image, or a part of one, that calibration tiles are cut from.
#[derive(Debug, Clone)]
pub struct CalibrationImage {
    /// The image. If it has as many channels as the model has inputs, these are read in their order, or else those that a
    /// prediction reads; of several time points, the first is read.
    pub image: Image,
    /// The part along Z, Y, X that tiles are cut from, in voxels; `None` for all of the image. Processing steps use the
    /// statistics of the whole image in either case, as predictions do.
    pub window: Option<[Range<usize>; 3]>,
    /// Voxel size Z, Y, X in µm, to use instead of the image's own.
    pub voxel_um: Option<[f64; 3]>,
    /// Median diameter of the objects, for models with a nominal one.
    pub diameter: DiameterRequest,
}

/// Cuts at most `max_tiles` tiles out of the stacks of predictions, read as the predictions (which are not run) would
/// read them for the model. One time point of a time series is read: that of the prediction, or else the first. Tiles
/// are distributed evenly over the stacks and inside each; stacks are read slab by slab.
///
/// # Errors
/// [`JobError::Mismatch`] if there are no stacks, or one is empty, does not fit the model, contains values that are not
/// finite or changes while it is read; [`JobError::WrongUse`] for invalid options; the errors of reading a stack;
/// [`JobError::Canceled`].
pub fn calibration_tiles(
    context: &Context,
    model: &Model,
    predictions: &[PredictJob],
    max_tiles: usize,
) -> Result<Vec<CalibrationTile>, JobError> {
    let mut files: Vec<(&PredictJob, PathBuf)> = Vec::new();
    for job in predictions {
        job.check()?;
        diameter::check(job.diameter, model)?;
        let found = only_stacks(&job.inputs, expand_inputs(&job.inputs, job.axes.as_ref())?);
        job.check_input_tensors(model, found.len())?;
        files.extend(found.into_iter().map(|file| (job, file)));
    }
    let Some((_, first)) = files.first() else {
        return Err(JobError::Mismatch {
            path: predictions.iter().flat_map(|job| &job.inputs).next().cloned().unwrap_or_default(),
            problem: "the folder contains no stacks to calibrate with, only results of predictions".into(),
            next_step: "give the folder that contains the stacks".into(),
        });
    };
    let read = RefCell::default();
    let tiles = cut_tiles_from_some(context, &files, max_tiles, |&(job, ref file), each| {
        cut_stack_tiles(context, model, (job, file.as_path()), each, &read)
    })?;
    refuse_changed(&read.into_inner())?;
    if tiles.is_empty() { Err(no_tile(first)) } else { Ok(tiles) }
}

/// Cuts at most `max_tiles` tiles out of images, as [`calibration_tiles`] does. Voxels that are not finite have the value that
/// they have in predictions.
///
/// # Errors
/// Same as [`calibration_tiles`]; [`JobError::Internal`] if there are no images.
pub fn calibration_tiles_from_images(
    context: &Context,
    model: &Model,
    images: &[CalibrationImage],
    max_tiles: usize,
) -> Result<Vec<CalibrationTile>, JobError> {
    let Some(first) = images.first() else {
        return Err(JobError::Internal("calibration: there are no images".to_owned()));
    };
    let tiles = cut_tiles_from_some(
        context,
        images,
        max_tiles,
        |CalibrationImage { image, window, voxel_um, diameter }, each| {
            let channels = match Extents::of(image.meta()).channels {
                count if count > 1 && count == model.input_channels => (0..count).map(ChannelRef::Index).collect(),
                _ => Vec::new(),
            };
            let (voxel_um, diameter) = (*voxel_um, *diameter);
            let options = PredictOptions { voxel_um, diameter, channels, ..PredictOptions::default() };
            let image = (image.meta().path.as_path(), image);
            Ok(cut_image_tiles(context, model, image, window.as_ref(), &options, each)?.tiles)
        },
    )?;
    if tiles.is_empty() { Err(no_tile(&first.image.meta().path)) } else { Ok(tiles) }
}

/// Cuts at most `max_tiles` tiles out of sources; of many, evenly spaced ones are used. `cut` returns at most the given number
/// of tiles of a source.
fn cut_tiles_from_some<T>(
    context: &Context,
    sources: &[T],
    max_tiles: usize,
    cut: impl Fn(&T, usize) -> Result<Vec<CalibrationTile>, JobError>,
) -> Result<Vec<CalibrationTile>, JobError> {
    let step = sources.len().div_ceil(max_tiles.clamp(1, MAX_STACKS)).max(1);
    let chosen: Vec<&T> = sources.iter().step_by(step).collect();
    let each = max_tiles.div_ceil(chosen.len().max(1));
    let mut meter = context.meter(ProgressStage::Read, chosen.len() as u64, ProgressUnit::Stacks);
    let mut tiles: Vec<CalibrationTile> = Vec::new();
    for source in chosen {
        tiles.extend(cut(source, each)?);
        meter.add(1)?;
    }
    tiles.truncate(max_tiles);
    Ok(tiles)
}

fn no_tile(first: &Path) -> JobError {
    bad(first, "no tile with different values could be cut from it", "give a larger stack, or one with objects")
}

fn bad(path: &Path, problem: &str, next_step: &str) -> JobError {
    JobError::Mismatch { path: path.to_owned(), problem: problem.into(), next_step: next_step.into() }
}

/// Cuts tiles out of a stack that is read as in a prediction. The files that are read are added to `read`, as they were before.
fn cut_stack_tiles(
    context: &Context,
    model: &Model,
    (job, file): (&PredictJob, &Path),
    max_tiles: usize,
    read: &RefCell<Vec<InputRecord>>,
) -> Result<Vec<CalibrationTile>, JobError> {
    let image = job.open(file)?;
    let files = [image.files(), image.chunk_folders()].concat();
    let sources = input_tensors::sources(job, model, file, image)?;
    read.borrow_mut().extend(records_before(files.iter().chain(&sources.files())));
    let (image, ..) = preprocess::for_prediction(context, job, model, sources.image.clone())?;
    let given = sources.options(preprocess::options_after(job));
    let cut = cut_image_tiles(context, model, (file, &image), None, &given, max_tiles)?;
    if cut.not_finite { Err(without_range(file)) } else { Ok(cut.tiles) }
}

/// What was cut from an image for calibration.
struct ImageTiles {
    tiles: Vec<CalibrationTile>,
    /// Whether values of the image are NaN or infinite. In the tiles, they are 0, as in predictions.
    not_finite: bool,
}

fn without_range(file: &Path) -> JobError {
    bad(
        file,
        "it contains values that are NaN, infinite or too large for 32-bit floats, so no range can be computed",
        "leave it out of the calibration",
    )
}

/// Cuts tiles out of a preprocessed image, or a part of it along Z, Y, X; `file` is named in messages.
fn cut_image_tiles(
    context: &Context,
    model: &Model,
    (file, image): (&Path, &Image),
    window: Option<&[Range<usize>; 3]>,
    given: &PredictOptions,
    max_tiles: usize,
) -> Result<ImageTiles, JobError> {
    let mut meta = image.meta().clone();
    check_time(given.time, Extents::of(&meta).times, file)?;
    let stack = Stack::new(image, given.time.unwrap_or(0));
    check_shape(file, stack.extents.zyx)?;
    stack.check_ends()?;
    let mut notes = Vec::new();
    let chosen = (given.channel, given.channels.as_slice());
    let channels = channels(context, chosen, model, &meta, &stack, file, &mut notes)?;
    let voxel = voxel_size(given.voxel_um, file, &mut meta, model, &mut Vec::new())?;
    notes.iter().for_each(|note| context.note(message!("{}: {note}", file.display())));
    let chains = stack.preprocessing(context, model, &channels)?;
    let diameter = match model.object_diameter_um {
        None => None,
        Some(nominal_um) => {
            let read = (channels.as_slice(), &chains, voxel.known);
            Some(object_diameter(context, model, &stack, read, given.diameter, nominal_um)?)
        }
    };
    if let Some(found) = diameter.filter(|found| found.estimate.is_some_and(|e| e.certainty <= Certainty::Low)) {
        context.note(message!("{}: {}", file.display(), found.text()));
    }
    let chains = chains.changed(diameter.map_or(IntensityChange::NONE, |found| found.intensity_change()));
    let voxel_um = diameter.map_or(voxel.assumed, |found| found.voxel);
    let known = voxel.known.or(diameter.map(|found| found.voxel));
    let grid = model_shape(stack.extents.zyx, known, grid_voxel_um(model, diameter, voxel_um));
    let [slices, rows, columns] = match window {
        None => grid.map(|length| 0..length),
        Some(window) => std::array::from_fn(|a| range_on_grid(&window[a], stack.extents.zyx[a], grid[a])),
    };
    let inside = [slices.len(), rows.len(), columns.len()];
    let size = tile_size(model, inside);
    // The statistics of the chains are those of the whole stack.
    let whole = ModelView::new(&stack, &channels, chains, grid);
    let stack_part = whole.stack_part([rows.clone(), columns.clone()]);
    let mut view = whole.part_view(&stack_part, [rows, columns]);
    let (mut tiles, mut is_constant) = (Vec::new(), true);
    for start in places(inside, size, max_tiles) {
        context.check()?;
        let first = slices.start + start[0];
        let slab = view.read(context, first..first + size[0])?;
        let values = part(&slab, channels.len(), inside, start, size);
        if view.loss.too_large || values.iter().any(|v| !v.is_finite()) {
            return Err(without_range(file));
        }
        is_constant &= values.iter().all(|value| Some(value) == values.first());
        let values = Tensor::new(model.tensor_shape(channels.len(), size), values)?;
        tiles.push(CalibrationTile { values, from: file.display().to_string() });
    }
    if is_constant && !tiles.is_empty() {
        let left_out = "all voxels that are read have the same value: it is left out of the calibration";
        context.note(format!("{}: {left_out}", file.display()));
        tiles.clear();
    }
    Ok(ImageTiles { tiles, not_finite: view.not_finite })
}

/// Returns the voxels of a grid of `to` voxels along an axis that a window of a stack of `from` voxels covers.
fn range_on_grid(window: &Range<usize>, from: usize, to: usize) -> Range<usize> {
    let scaled = |at: usize| at.min(from) as f64 * to as f64 / from.max(1) as f64;
    let end = (scaled(window.end).ceil() as usize).clamp(1, to.max(1));
    (scaled(window.start) as usize).min(end - 1)..end
}

/// Refuses stacks without voxels, and rows of voxels.
fn check_shape(file: &Path, zyx: [usize; 3]) -> Result<(), JobError> {
    let problem = match zyx {
        [0, ..] | [_, 0, _] | [.., 0] => "it contains no voxels",
        [_, 1, _] | [.., 1] => "it is a row of voxels, not an image",
        _ => return Ok(()),
    };
    Err(bad(file, problem, "leave it out of the calibration"))
}

/// Returns the requested object diameter of a stack, or an estimate. The stack is described by the channels that are read,
/// their preprocessing, and its voxel size in µm.
fn object_diameter(
    context: &Context,
    model: &Model,
    stack: &Stack,
    (channels, chains, voxel_um): (&[usize], &Chains, Option<[f64; 3]>),
    request: DiameterRequest,
    nominal_um: f64,
) -> Result<ObjectDiameter, JobError> {
    let engine = Devices::cpu_only().engine(DeviceId::Cpu)?;
    let options = context.compile_options(Precision::F32, 0);
    let estimator = Estimator {
        context,
        model,
        engine: engine.as_ref(),
        options: &options,
        stack,
        channels,
        chains,
        voxel_um,
        budget_bytes: u64::MAX,
        peak_bytes: Cell::default(),
    };
    estimator.resolve(request, nominal_um)
}

/// Returns the size of a tile along Z, Y, X.
fn tile_size(model: &Model, grid: [usize; 3]) -> [usize; 3] {
    let edge = if model.spatial_axes == 2 { FLAT_EDGE } else { EDGE };
    std::array::from_fn(|a| {
        if a == 0 && model.spatial_axes == 2 {
            return 1;
        }
        let step = model.step[a].max(1);
        // The largest multiple of the step that fits into the stack; if the stack is too short, the tile extends past
        // its end.
        let inside = edge.min(grid[a]) / step * step;
        model.tile_length(inside, a)
    })
}

/// Returns the first voxels of at most `max_tiles` tiles, distributed over the stack, sorted by Z, without duplicates.
fn places(grid: [usize; 3], size: [usize; 3], max_tiles: usize) -> Vec<[usize; 3]> {
    // The R3 sequence: multiples of the inverse powers of the real root of x⁴ = x + 1 fill the unit cube evenly.
    const SHARES: [f64; 3] = [0.819_172_513_396_164_4, 0.671_043_606_703_789_3, 0.549_700_477_901_970_3];
    let mut found: Vec<[usize; 3]> = Vec::new();
    for i in 0..max_tiles {
        let start = std::array::from_fn(|a| {
            let last = grid[a].saturating_sub(size[a]);
            let share = (0.5 + SHARES[a] * i as f64).fract();
            ((last + 1) as f64 * share) as usize
        });
        if !found.contains(&start) {
            found.push(start);
        }
    }
    found.sort_unstable();
    found
}

/// Cuts a box out of a slab `[C][size z][Y][X]`; past the slab's end, its last values are repeated.
fn part(slab: &[f32], channels: usize, grid: [usize; 3], start: [usize; 3], size: [usize; 3]) -> Vec<f32> {
    let mut values = Vec::with_capacity(channels * size.iter().product::<usize>());
    for c in 0..channels {
        for z in 0..size[0] {
            for y in 0..size[1] {
                let row = ((c * size[0] + z) * grid[1] + (start[1] + y).min(grid[1] - 1)) * grid[2];
                values.extend(
                    (0..size[2]).map(|x| slab.get(row + (start[2] + x).min(grid[2] - 1)).copied().unwrap_or_default()),
                );
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_inside_and_differ() {
        for grid in [[64, 512, 512], [64, 64, 64], [10, 100, 70]] {
            let size = grid.map(|n: usize| n.min(64));
            let found = places(grid, size, 16);
            assert!(!found.is_empty() && found.len() <= 16);
            assert!(found.windows(2).all(|w| w[0] < w[1]), "{found:?}");
            assert!(found.iter().all(|s| (0..3).all(|a| s[a] + size[a] <= grid[a])), "{found:?}");
        }
        assert_eq!(places([64; 3], [64; 3], 16), [[0; 3]]);
        assert_eq!(places([4; 3], [8; 3], 3), [[0; 3]]);
    }

    #[test]
    fn a_window_lies_inside_the_grid() {
        assert_eq!(range_on_grid(&(10..20), 40, 40), 10..20);
        assert_eq!(range_on_grid(&(10..21), 40, 20), 5..11);
        assert_eq!(range_on_grid(&(10..20), 40, 80), 20..40);
        assert_eq!(range_on_grid(&(39..40), 40, 3), 2..3);
        assert_eq!(range_on_grid(&(50..60), 40, 40), 39..40, "outside the stack");
        assert_eq!(range_on_grid(&(0..0), 40, 40), 0..1);
    }

    #[test]
    fn a_part_repeats_the_last_voxel_past_the_end() {
        // One channel, two slices of two rows and three columns.
        let slab: Vec<f32> = (0..12).map(|v| v as f32).collect();
        assert_eq!(
            part(&slab, 1, [2, 2, 3], [0, 1, 1], [2, 2, 3]),
            [4.0, 5.0, 5.0, 4.0, 5.0, 5.0, 10.0, 11.0, 11.0, 10.0, 11.0, 11.0]
        );
    }
}
