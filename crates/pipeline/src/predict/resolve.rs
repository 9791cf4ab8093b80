//! A prediction's settings, resolved and checked before it starts: from the options, the model and the image's metadata.

use super::file_notes::unused_voxel_size_note;
use super::grid::model_shape;
use super::input_channels::channels;
use super::plan::Budget;
use super::{Output, PredictOptions, TileRequest};
use crate::background_check::bright_background_note;
use crate::devices::SelectedEngine;
use crate::diameter::{DiameterUnit, ObjectDiameter, SeriesDiameter, SeriesEstimator};
use crate::frame_check::frame_note;
use crate::label_check::label_image_note;
use crate::middle_slice::MiddleSlice;
use crate::model::ModelTask;
use crate::saturation_check::saturation_note;
use crate::slice_statistics::Chains;
use crate::stack::{Extents, Stack};
use crate::stain::stained_channel;
use crate::{Context, JobError, Misuse, Model};
use cytoscope_engine::{CompileOptions, Precision};
use cytoscope_formats::{Image, ImageMeta};
use cytoscope_objects::SegmentOptions;
use cytoscope_storage::message;
use cytoscope_storage::message::{Message, TimePoint};
use cytoscope_storage::rounded;
use cytoscope_storage::setting::{DIAMETER, TIME, VOXEL_SIZE};
use cytoscope_volume::{VoxelSize, number_text};
use std::collections::BTreeSet;
use std::path::Path;

/// The channels and time points of an image that are predicted.
pub(super) struct Selection<'a> {
    image: &'a Image,
    /// Path of the image, for messages.
    pub input: &'a Path,
    /// The image's metadata.
    pub meta: ImageMeta,
    /// Time points, shape and channels of the image.
    pub extents: Extents,
    /// Channels of the image that are the model's input.
    pub channels: Vec<usize>,
    /// Time points to predict, from 0.
    pub times: Vec<usize>,
    /// Preprocessing of the channels at the first of the time points; `None` if it has the statistics of the image.
    pub first_chains: Option<Chains>,
    notes: Vec<Message>,
}

impl<'a> Selection<'a> {
    /// Selects channels and time points from the image's metadata; a part of an RGB image is read if no channel is given.
    ///
    /// # Errors
    /// [`JobError::Mismatch`] if the image lacks them; [`JobError`] if it cannot be read.
    pub(super) fn new(
        context: &Context,
        image: &'a Image,
        input: &'a Path,
        model: &Model,
        options: &PredictOptions,
    ) -> Result<Self, JobError> {
        let meta = image.meta().clone();
        let mut notes = Vec::new();
        let first = Stack::new(image, 0);
        let extents = first.extents;
        let given = (options.channel, options.channels.as_slice());
        let channels = channels(context, given, model, &meta, &first, input, &mut notes)?;
        check_time(options.time, extents.times, input)?;
        let times: Vec<usize> = options.time.map_or_else(|| (0..extents.times).collect(), |time| vec![time]);
        Ok(Self { image, input, meta, extents, channels, times, first_chains: None, notes })
    }

    /// Returns notes if the image has the values of labels, a frame of zeros, many values at the highest one of a camera, or a
    /// bright background although a model with this task finds objects.
    pub(super) fn value_notes(&self, context: &Context, task: ModelTask) -> Vec<Message> {
        let Some((&channel, &time)) = self.channels.first().zip(self.times.first()) else { return Vec::new() };
        let stack = Stack::new(self.image, time);
        let Some(slice) = MiddleSlice::read(context, &stack, channel) else { return Vec::new() };
        let labels = label_image_note(&slice.part, slice.part_width).map(Message::from);
        let background = (task == ModelTask::Segmentation).then(|| bright_background_note(&slice.part)).flatten();
        let saturated = (!self.meta.dtype.is_float()).then(|| saturation_note(&slice.part)).flatten();
        [labels, background, saturated, frame_note(context, &stack, channel, &slice)].into_iter().flatten().collect()
    }

    /// Returns the channel that the model reads because of its name, although no channel was requested; `None` if it reads
    /// others.
    pub(super) fn channel_by_name(&self, model: &Model, options: &PredictOptions) -> Option<usize> {
        let is_chosen = options.channel.is_some() || !options.channels.is_empty();
        match self.channels.as_slice() {
            &[channel] if !is_chosen => stained_channel(model, &self.meta).filter(|found| *found == channel),
            _ => None,
        }
    }

    /// Returns the time point of a selection of a single one.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] if there are several.
    pub(super) fn only_time(&self) -> Result<usize, JobError> {
        match self.times.as_slice() {
            &[time] => Ok(time),
            several => {
                let count = several.len();
                Err(JobError::wrong_use_with(format!("the image has {count} time points"), "give the one to predict"))
            }
        }
    }
}

/// A prediction that is ready to be planned. All later steps trust it.
pub(super) struct Resolved<'a> {
    /// The job's model, loaded.
    pub model: &'a Model,
    /// The device that was chosen, with its engine and precision.
    pub engine: &'a SelectedEngine,
    /// The input, after the user's preprocessing steps.
    pub image: &'a Image,
    /// Path of the image, for messages.
    pub input: &'a Path,
    /// The image's metadata, with the voxel size that is used.
    pub meta: ImageMeta,
    /// Time points, shape and channels of the image.
    pub extents: Extents,
    /// Channels of the image that are the model's input.
    pub channels: Vec<usize>,
    /// Time points, from 0; at least one.
    pub times: Vec<usize>,
    /// The wanted results.
    pub outputs: BTreeSet<Output>,
    /// Precision, threads and limits of the engine.
    pub compile: CompileOptions,
    /// Size and blending of tiles that the user or an earlier run states; the rest is planned.
    pub tiles: TileRequest,
    /// Memory that the job may use.
    pub budget: Budget,
    /// Voxel size Z, Y, X in µm, or in voxels along X if it is unknown and the model has a nominal object diameter.
    pub voxel_um: [f64; 3],
    /// Object diameter; `None` for models that declare none.
    pub diameter: Option<ObjectDiameter>,
    /// Segmentation settings, with lengths in µm of the image.
    pub segment: SegmentOptions,
    /// Shape Z, Y, X on the model's grid.
    pub grid: [usize; 3],
    /// Memory that reading the image holds in addition to what is read, in bytes.
    pub reader_bytes: u64,
    /// Memory that estimating the object diameter needed, in bytes; 0 if it was not estimated.
    pub estimate_bytes: u64,
    /// Preprocessing of the channels at the first time point, if it is given or estimating the diameter required it.
    pub first_chains: Option<Chains>,
    /// Notes for the user.
    pub notes: Vec<Message>,
}

impl<'a> Resolved<'a> {
    /// Resolves the prediction of a selection; reads the first and last rows of each stack, and up to three stacks
    /// themselves if the object diameter is estimated. `known_diameter` was found by an earlier attempt.
    ///
    /// # Errors
    /// [`JobError`] if the image cannot be read or does not match the model, or the network does not run.
    pub(super) fn new(
        context: &Context,
        model: &'a Model,
        engine: &'a SelectedEngine,
        selection: Selection<'a>,
        options: &PredictOptions,
        outputs: BTreeSet<Output>,
        known_diameter: Option<ObjectDiameter>,
    ) -> Result<Self, JobError> {
        let Selection { image, input, mut meta, extents, channels, times, mut first_chains, mut notes } = selection;
        notes.extend(model.outputs_note());
        let budget = Budget::new(options.memory_budget_bytes);
        let reader_bytes = budget.limit_reader(image);
        for &time in &times {
            Stack::new(image, time).check_ends()?;
        }
        let voxel = voxel_size(options.voxel_um, input, &mut meta, model, &mut notes)?;
        let compile = context.compile_options(engine.precision(model, options.precision), options.threads);
        let mut estimate_bytes = 0;
        let diameter = match (model.object_diameter_um, known_diameter) {
            (None, _) => None,
            (Some(_), Some(known)) => Some(known),
            (Some(nominal_um), None) => {
                let estimator = SeriesEstimator {
                    context,
                    model,
                    engine: engine.engine(),
                    options: &compile,
                    image,
                    channels: &channels,
                    first_chains: first_chains.as_ref(),
                    voxel_um: voxel.known,
                    budget_bytes: for_estimate_bytes(budget, model),
                };
                let found = estimator.resolve(&times, options.diameter, nominal_um)?;
                let SeriesDiameter { diameter, first_chains: chains, peak_bytes, note } = found;
                (first_chains, estimate_bytes) = (Some(chains), peak_bytes);
                notes.extend(note);
                Some(diameter)
            }
        };
        let noted = diameter.filter(|d| d.estimate.is_some() || d.unit == DiameterUnit::Voxels);
        notes.extend(noted.map(|d| if extents.zyx[0] > 1 { d.text() } else { d.diameter_text() }));
        notes.extend(diameter.and_then(|d| d.intensity_note()));
        let voxel_um = diameter.map_or(voxel.assumed, |d| d.voxel);
        let grid_um = grid_voxel_um(model, diameter, voxel_um);
        let grid = model_shape(extents.zyx, voxel.known.or(diameter.map(|_| voxel_um)), grid_um);
        if grid != extents.zyx {
            notes.push(message!("resampled to the model's voxel size: from {:?} to {grid:?} voxels", extents.zyx));
        }
        notes.extend(diameter.and_then(|d| d.doubt_note(extents.zyx, grid)));
        let mut resolved = Self {
            segment: model.segment.scaled(diameter.map_or(1.0, |d| d.scale())),
            tiles: options.tiles.clone(),
            budget,
            reader_bytes,
            estimate_bytes,
            model,
            engine,
            image,
            input,
            meta,
            extents,
            channels,
            times,
            outputs,
            compile,
            voxel_um,
            diameter,
            grid,
            first_chains,
            notes,
        };
        resolved.check_segment()?;
        let output_note = resolved.output_note();
        resolved.notes.extend(output_note.map(Message::from));
        Ok(resolved)
    }

    /// Returns a note about the output that is segmented; `None` if it is the first one, or nothing is segmented.
    fn output_note(&self) -> Option<String> {
        let Model { outputs, output_index, .. } = self.model;
        let output = outputs.get(*output_index).filter(|_| *output_index > 0 && self.has_objects())?;
        Some(format!("objects are found in the first channel of the output {}", output.id))
    }

    /// Checks the segmentation settings, if the maps are segmented. The model's own are valid, but they are scaled to
    /// the object diameter.
    fn check_segment(&self) -> Result<(), JobError> {
        match (self.segment.validate(), self.diameter) {
            (Err(error), Some(found)) if self.has_objects() => Err(JobError::wrong_use_with(
                message!(
                    "the model's segmentation settings cannot be scaled to objects of {:.1} {}: {error}",
                    found.diameter,
                    found.unit.symbol()
                ),
                message!("give another {DIAMETER}"),
            )),
            (Err(error), None) if self.has_objects() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Returns the precision of the network.
    pub(super) fn precision(&self) -> Precision {
        self.compile.precision
    }

    /// Returns the ratio of the object diameter to the model's nominal one; 1 for models that declare none.
    pub(super) fn scale(&self) -> f64 {
        self.diameter.map_or(1.0, |d| d.scale())
    }

    /// Returns whether a result is wanted.
    pub(super) fn wants(&self, output: Output) -> bool {
        self.outputs.contains(&output)
    }

    /// Returns whether the maps are segmented.
    pub(super) fn has_objects(&self) -> bool {
        let in_preview = self.wants(Output::Preview) && self.model.task == ModelTask::Segmentation;
        self.wants(Output::Labels) || self.wants(Output::Table) || in_preview
    }
}

/// Returns the voxel size Z, Y, X in µm of the model's grid for objects of this diameter in a stack with this voxel size;
/// `None` if the package states none.
pub(crate) fn grid_voxel_um(model: &Model, diameter: Option<ObjectDiameter>, voxel_um: [f64; 3]) -> Option<[f64; 3]> {
    let mut grid_um = model.voxel_um.map(|v| v.map(|um| um * diameter.map_or(1.0, |d| d.grid_scale(v))));
    // A network on slices has no distance between them: it is applied to the slices of the stack.
    if let (Some(um), 2) = (&mut grid_um, model.spatial_axes) {
        um[0] = voxel_um[0];
    }
    grid_um
}

/// Returns the results to make: the requested ones, or else the default ones of the model's task.
pub(super) fn outputs_or_default(requested: &BTreeSet<Output>, task: ModelTask) -> BTreeSet<Output> {
    match (requested.is_empty(), task) {
        (false, _) => requested.clone(),
        (true, ModelTask::Segmentation) => [Output::Maps, Output::Labels, Output::Table].into(),
        (true, ModelTask::LabelFree) => [Output::Maps].into(),
    }
}

/// Voxel size of a stack.
pub(crate) struct Voxel {
    /// Voxel size Z, Y, X in µm; `None` if a relevant one is unknown.
    pub known: Option<[f64; 3]>,
    /// The known sizes, with the model's own (or 1 µm) in place of unknown ones. If any is unknown and the model has a
    /// nominal object diameter, 1 for all axes.
    pub assumed: [f64; 3],
}

/// Refuses a time point that a file of `times` time points does not have.
///
/// # Errors
/// [`JobError::Mismatch`].
pub(crate) fn check_time(time: Option<usize>, times: usize, input: &Path) -> Result<(), JobError> {
    match time.filter(|time| *time >= times) {
        None => Ok(()),
        Some(time) => Err(JobError::Mismatch {
            path: input.to_owned(),
            problem: message!("time point {} does not exist: the file has {times}", TimePoint(time)),
            next_step: match times {
                0 | 1 => message!("leave out {TIME}"),
                n => message!("give a {TIME} from {} to {}", TimePoint(0), TimePoint(n - 1)),
            },
        }),
    }
}

/// Refuses an implausible voxel size, with which grids and volumes would be meaningless. `given_um` is the voxel size
/// that the user gave, if `size` is not the file's own.
///
/// # Errors
/// [`JobError::WrongUse`] for a given size, [`JobError::Mismatch`] for the file's own, with the unit that was probably
/// meant.
pub(crate) fn check_voxel_size(path: &Path, size: VoxelSize, given_um: Option<[f64; 3]>) -> Result<(), JobError> {
    let valid = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
    let known = VoxelSize { z: valid(size.z), y: valid(size.y), x: valid(size.x) };
    known.check().map_err(|error| match given_um {
        Some(given_um) => {
            let message = message!("invalid {VOXEL_SIZE} {given_um:?}: {error}");
            JobError::WrongUse(Misuse::explained(message, error.next_step()))
        }
        None => JobError::Mismatch {
            path: path.to_owned(),
            problem: error.to_string().into(),
            next_step: message!("use {VOXEL_SIZE} Z,Y,X, or correct the file"),
        },
    })
}

/// Refuses an implausible voxel size that the user gave along some of the axes.
///
/// # Errors
/// [`JobError::WrongUse`] with the first implausible axis.
pub(crate) fn check_given_axes(size: VoxelSize) -> Result<(), JobError> {
    size.check().map_err(|error| {
        JobError::WrongUse(Misuse::explained(format!("invalid voxel size: {error}"), error.next_step()))
    })
}

/// Returns the note that lengths and volumes are not in µm, if the voxel size is unknown along an axis with several voxels.
fn unknown_voxel_size_note(size: VoxelSize, slices: usize) -> Option<Message> {
    let is_known = |um: Option<f64>| um.is_some_and(|um| um.is_finite() && um > 0.0);
    let axes = [("Z", size.z, slices > 1), ("Y", size.y, true), ("X", size.x, true)];
    let unknown: Vec<&str> =
        axes.into_iter().filter(|(_, um, counts)| *counts && !is_known(*um)).map(|(name, ..)| name).collect();
    (!unknown.is_empty()).then(|| {
        message!(
            "the voxel size along {} is unknown: 1 µm is assumed, so lengths and volumes are not in µm (set it with \
             {VOXEL_SIZE})",
            unknown.join(", ")
        )
    })
}

/// Like [`unknown_voxel_size_note`], for a job that uses the voxel size Z, Y, X that a prediction assumed, if it is known.
fn assumed_voxel_size_note(size: VoxelSize, slices: usize, assumed_um: Option<[f64; 3]>) -> Option<Message> {
    let unknown = unknown_voxel_size_note(size, slices)?;
    Some(match assumed_um {
        None => unknown,
        Some([z, y, x]) => message!(
            "the voxel size is unknown: {z} × {y} × {x} is assumed, as in the prediction, so lengths and volumes are not in µm"
        ),
    })
}

/// Ratio of the distance between slices and the width of a pixel from which on one of them is doubted; serial sections
/// reach 50.
const DOUBTED_ANISOTROPY: f64 = 50.0;

/// Returns the note that slices are so far apart, or so close, that the distance or the width of a pixel is probably in
/// another unit than µm.
fn slice_distance_note(size: VoxelSize, slices: usize) -> Option<Message> {
    let valid = |um: Option<f64>| um.filter(|um| um.is_finite() && *um > 0.0);
    let (z, x) = (valid(size.z)?, valid(size.x)?);
    (slices > 1 && (z / x).max(x / z) > DOUBTED_ANISOTROPY).then(|| {
        message!(
            "the slices are {} µm apart, but a pixel is {} µm wide; check that both lengths are in µm (set them with \
             {VOXEL_SIZE})",
            number_text(z),
            number_text(x)
        )
    })
}

/// Returns the notes on a voxel size that is unknown ([`assumed_voxel_size_note`]) or doubted.
pub(crate) fn voxel_size_notes(size: VoxelSize, slices: usize, assumed_um: Option<[f64; 3]>) -> Vec<Message> {
    let unknown = assumed_voxel_size_note(size, slices, assumed_um);
    unknown.into_iter().chain(slice_distance_note(size, slices)).collect()
}

/// Returns the voxel size Z, Y, X to compute with: the stated one, or the assumed one if it is incomplete, or else 1 where
/// it is unknown.
pub(crate) fn used_voxel_um(stated: VoxelSize, slices: usize, assumed_um: Option<[f64; 3]>) -> [f64; 3] {
    let is_incomplete = unknown_voxel_size_note(stated, slices).is_some();
    assumed_um.filter(|_| is_incomplete).unwrap_or_else(|| stated.zyx_um_or_one())
}

/// Returns the voxel size Z, Y, X in µm that predictions assume for a stack of this many slices: the stated sizes, and those of
/// the model, or 1 µm, in place of unknown ones.
pub fn completed_voxel_um(stated: VoxelSize, slices: usize, model_um: Option<[f64; 3]>) -> [f64; 3] {
    let stated = [stated.z, stated.y, stated.x].map(|um| um.filter(|um| um.is_finite() && *um > 0.0));
    // A single slice has no slice spacing. That of the model is not used, so that its volumes are the same in jobs with and
    // without a model.
    let of_model = |a: usize| model_um.filter(|_| a > 0 || slices > 1).map(|m| m[a]);
    std::array::from_fn(|a| stated[a].or_else(|| of_model(a)).unwrap_or(1.0))
}

/// Returns the voxel size to use: the given one, the file's, the model's, or 1 µm, in that order.
///
/// # Errors
/// Same as [`check_voxel_size`], for an implausible size.
pub(crate) fn voxel_size(
    given_um: Option<[f64; 3]>,
    input: &Path,
    meta: &mut ImageMeta,
    model: &Model,
    notes: &mut Vec<Message>,
) -> Result<Voxel, JobError> {
    if let Some([z, y, x]) = given_um {
        meta.voxel_size_um = VoxelSize::new_um(z, y, x);
    }
    check_voxel_size(input, meta.voxel_size_um, given_um)?;
    notes.extend(order_note(meta.voxel_size_um, given_um.is_some()));
    notes.extend(slice_distance_note(meta.voxel_size_um, Extents::of(meta).zyx[0]));
    let valid = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
    let size = meta.voxel_size_um;
    let stated = [valid(size.z), valid(size.y), valid(size.x)];
    let flat = Extents::of(meta).zyx[0] == 1;
    let known = stated[1].is_some() && stated[2].is_some() && (flat || stated[0].is_some());
    if !known && model.object_diameter_um.is_some() {
        notes.push(unused_voxel_size_note(stated, flat));
        return Ok(Voxel { known: None, assumed: [1.0; 3] });
    }
    let assumed = completed_voxel_um(size, Extents::of(meta).zyx[0], model.voxel_um);
    if !known {
        let from = if model.voxel_um.is_some() { "the model's" } else { "1 µm" };
        let [z, y, x] = assumed;
        notes.push(message!(
            "the voxel size in the file is missing or incomplete: {from} is used in its place, giving {z} × {y} × {x} µm \
             (set it with {VOXEL_SIZE})"
        ));
    }
    Ok(Voxel { known: known.then_some(assumed), assumed })
}

/// Ratio of the sizes of pixels along Y and X from which on the order of a voxel size is doubted.
const DOUBTED_RATIO: f64 = 1.2;

/// Returns a note if the pixels of a voxel size, which is given or stated by the file, are so far from square that its order is
/// probably another one.
fn order_note(size: VoxelSize, is_given: bool) -> Option<Message> {
    let valid = |um: Option<f64>| um.filter(|um| um.is_finite() && *um > 0.0);
    let (y, x) = (rounded(valid(size.y)?), rounded(valid(size.x)?));
    (y.max(x) >= DOUBTED_RATIO * y.min(x)).then(|| match is_given {
        true => message!(
            "the given voxel size is {y} µm along Y and {x} µm along X, but pixels are usually square; check that \
             {VOXEL_SIZE} is in the order Z,Y,X"
        ),
        false => message!(
            "the voxel size in the file is {y} µm along Y and {x} µm along X, but pixels are usually square; check it (set \
             another with {VOXEL_SIZE})"
        ),
    })
}

/// Returns the memory in bytes that an estimate of the object diameter may use for a larger part of the stack.
fn for_estimate_bytes(budget: Budget, model: &Model) -> u64 {
    budget.for_session_bytes().saturating_sub(model.weight_bytes())
}

/// Limits what the reader of an image keeps, and returns the memory in bytes that an estimate of the object diameter may use for a
/// larger part of the stack, both as a prediction with this memory budget does, so that its estimate is the same.
pub(crate) fn estimate_budget_bytes(given_bytes: Option<u64>, model: &Model, image: &Image) -> u64 {
    let budget = Budget::new(given_bytes);
    budget.limit_reader(image);
    for_estimate_bytes(budget, model)
}

/// Returns the name of a channel, or one made of its number if the image states none.
pub(crate) fn channel_name(meta: &ImageMeta, channel: usize) -> String {
    meta.channel_name(channel)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::image_in_memory;
    use cytoscope_volume::Array;

    #[test]
    fn an_estimate_alone_has_the_memory_of_one_before_a_prediction() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
        let model = Model::load(model.to_str().unwrap()).unwrap();
        let array = Array::new("ZYX".parse().unwrap(), vec![1, 1, 1], vec![0u8]).unwrap();
        let image = image_in_memory(Path::new("stack"), array, VoxelSize::default()).unwrap();
        let alone = |given_bytes| estimate_budget_bytes(given_bytes, &model, &image);
        let in_prediction = for_estimate_bytes(Budget::new(Some(1 << 30)), &model);
        assert_eq!(alone(Some(1 << 30)), in_prediction);
        assert!(in_prediction < 1 << 30 && alone(Some(1)) == 0);
        // Without a budget, the free memory limits both.
        assert!(alone(None) < 1 << 50, "{}", alone(None));
    }
}
