//! Prediction of a volume in memory, without result files.

use super::attempts::Attempts;
use super::image_preprocessing::ImagePreprocessing;
use super::maps::Inference;
use super::plan::{JobMemory, plan};
use super::prediction::Prediction;
use super::resolve::{Resolved, Selection};
use super::{Output, PredictOptions, TilePlan, files, label};
use crate::devices::{Devices, SelectedEngine};
use crate::diameter::{self, ObjectDiameter};
use crate::slice_statistics::Chains;
use crate::spool::Scratch;
use crate::{Context, JobError, Model, Note};
use cytoscope_engine::{OpFallback, Precision};
use cytoscope_formats::{Image, image_in_memory};
use cytoscope_objects::SegmentOptions;
use cytoscope_profile::DeviceTraffic;
use cytoscope_storage::message::Message;
use cytoscope_storage::panic_text;
use cytoscope_volume::{Array, Axes, Samples, VoxelSize};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// The wanted results of [`predict_volume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeOutputs {
    /// The network's outputs only.
    Maps,
    /// The labels of the segmented maps.
    Labels,
    /// The network's outputs, and the labels of the segmented maps.
    MapsAndLabels,
}

impl VolumeOutputs {
    fn has_maps(self) -> bool {
        self != Self::Labels
    }

    fn has_labels(self) -> bool {
        self != Self::Maps
    }

    fn result_set(self) -> BTreeSet<Output> {
        let all = [(Output::Maps, self.has_maps()), (Output::Labels, self.has_labels())];
        all.into_iter().filter(|(_, wanted)| *wanted).map(|(output, _)| output).collect()
    }
}

/// Maps and labels of one time point, the result of [`predict_volume`].
#[derive(Debug, Clone, PartialEq)]
pub struct PredictedVolume {
    /// Shape Z, Y, X in voxels: that of the image.
    pub shape_zyx: [usize; 3],
    /// The maps after postprocessing, axes C, Z, Y, X; `None` if they are not wanted. There are
    /// [`Model::output_channels`] channels.
    pub maps: Option<Vec<f32>>,
    /// The labels, axes Z, Y, X: 0 is background, objects have the numbers from 1; `None` if they are not wanted.
    pub labels: Option<Vec<u32>>,
    /// Number of objects; 0 if labels are not wanted.
    pub objects: u32,
    /// Voxel size Z, Y, X that was used: in µm, or in voxels along X if it is unknown and the model declares a nominal
    /// object diameter.
    pub voxel_size: [f64; 3],
    /// Precision in which the network ran.
    pub precision: Precision,
    /// The object diameter used; `None` for models that declare none.
    pub diameter: Option<ObjectDiameter>,
    /// Segmentation settings, with lengths in the unit of [`PredictedVolume::voxel_size`].
    pub segment: SegmentOptions,
    /// Tile size, halo, blending, planned peak memory.
    pub plan: TilePlan,
    /// Operators that the reference executor ran.
    pub fallbacks: Vec<OpFallback>,
    /// Visibility of tile seams along X: how much more neighboring voxels differ across borders of tiles than beside them, as a
    /// share; at least 0. `None` if there is a single tile.
    pub seam_energy: Option<f64>,
    /// Traffic between the host and the device; `None` on the CPU.
    pub traffic: Option<DeviceTraffic>,
    /// Notes for the user.
    pub notes: Vec<Note>,
}

impl PredictedVolume {
    /// Returns the labels, or else the maps of `model`, as an image like that of a result file; `name` stands for its path in
    /// messages.
    ///
    /// # Errors
    /// [`JobError::Internal`] if there are neither.
    pub fn into_image(self, model: &Model, name: &Path, voxel_size_um: VoxelSize) -> Result<Image, JobError> {
        let [nz, ny, nx] = self.shape_zyx;
        match (self.labels, self.maps) {
            (Some(labels), _) => {
                let array = Array::new(Axes::zyx(), vec![nz, ny, nx], Samples::U32(labels))?;
                Ok(image_in_memory(name, array, voxel_size_um)?)
            }
            (None, Some(maps)) => {
                let shape = vec![model.output_channels, nz, ny, nx];
                let array = Array::new("CZYX".parse()?, shape, Samples::F32(maps))?;
                Ok(image_in_memory(name, array, voxel_size_um)?.with_channels(files::map_channels(model)))
            }
            (None, None) => Err(JobError::Internal("prediction: there are neither labels nor maps".to_owned())),
        }
    }
}

/// Predicts one time point of an image, such as one from [`cytoscope_formats::image_in_memory`], and returns the results
/// in memory. They equal those that a [`super::PredictJob`] with the same model, device and options writes to files.
///
/// `engine` is the device for this model, as [`crate::devices::Devices::for_model`] returns it. A device that fails is
/// not replaced by another one; [`predict_volume_on_devices`] does that.
///
/// # Errors
/// [`JobError::WrongUse`] for invalid options, or without [`PredictOptions::time`] for an image with several time
/// points; [`JobError::Mismatch`] if the image lacks the channels or the time point, or has an implausible voxel size;
/// [`JobError::Budget`] if the results and the prediction do not fit the memory budget; [`JobError::Format`] if the image
/// cannot be read; [`JobError::Engine`] or [`JobError::Model`] if the network does not run; [`JobError::Canceled`].
pub fn predict_volume(
    context: &Context,
    engine: &SelectedEngine,
    model: &Model,
    image: &Image,
    options: &PredictOptions,
    outputs: VolumeOutputs,
) -> Result<PredictedVolume, JobError> {
    let predicted = catch_unwind(AssertUnwindSafe(|| predict(context, engine, model, image, options, outputs, None)));
    predicted.unwrap_or_else(|panic| Err(JobError::Panicked(panic_text(&*panic))))
}

/// Predicts an image that is a part of a larger one as [`predict_volume`] does, but with the preprocessing of the whole, so
/// that its voxels have the values that the network gets in a prediction of the whole. Statistics of postprocessing steps
/// are those of the part.
///
/// # Errors
/// Same as [`predict_volume`]; [`JobError::Internal`] if the preprocessing is that of a model with other steps.
pub fn predict_part(
    context: &Context,
    engine: &SelectedEngine,
    model: &Model,
    part: &Image,
    options: &PredictOptions,
    outputs: VolumeOutputs,
    preprocessing: &ImagePreprocessing,
) -> Result<PredictedVolume, JobError> {
    let chains = preprocessing.chains_for(model)?.clone();
    let predicted =
        catch_unwind(AssertUnwindSafe(|| predict(context, engine, model, part, options, outputs, Some(chains))));
    predicted.unwrap_or_else(|panic| Err(JobError::Panicked(panic_text(&*panic))))
}

/// Predicts like [`predict_volume`], but continues if the device fails, as a [`super::PredictJob`] does: with fewer or
/// smaller tiles if memory runs out, in 32 bits if 16-bit floats overflow, and finally on the next device. `engine`
/// becomes what the volume was predicted with; the notes of the volume say what happened.
///
/// # Errors
/// Same as [`predict_volume`], on the last device.
pub fn predict_volume_on_devices(
    context: &Context,
    devices: &Devices,
    engine: &mut SelectedEngine,
    model: &Model,
    image: &Image,
    options: &PredictOptions,
    outputs: VolumeOutputs,
) -> Result<PredictedVolume, JobError> {
    let mut attempts = Attempts::new(context, devices, model, options, engine, false);
    let result = loop {
        let error = match predict_volume(context, attempts.engine(), model, image, options, outputs) {
            Ok(predicted) => break Ok(predicted),
            Err(error) => error,
        };
        if let Err(error) = attempts.after(error) {
            break Err(error);
        }
    };
    let (last, notes) = attempts.end_volume();
    *engine = last;
    let mut predicted: PredictedVolume = result?;
    predicted.notes.splice(..0, notes.into_iter().map(Note::from)).for_each(drop);
    Ok(predicted)
}

fn predict(
    context: &Context,
    engine: &SelectedEngine,
    model: &Model,
    image: &Image,
    options: &PredictOptions,
    outputs: VolumeOutputs,
    first_chains: Option<Chains>,
) -> Result<PredictedVolume, JobError> {
    options.check()?;
    diameter::check(options.diameter, model)?;
    let mut selection = Selection::new(context, image, &image.meta().path, model, options)?;
    selection.first_chains = first_chains;
    let time = selection.only_time()?;
    let resolved = Resolved::new(context, model, engine, selection, options, outputs.result_set(), None)?;
    let memory = JobMemory { held_bytes: held_bytes(&resolved, outputs), writing_bytes: 0 };
    let tiles = plan(context, &resolved, memory, 0)?;
    let tile_notes = tiles.fallback_note().into_iter().map(Message::from).chain(tiles.plan.tiles_note(resolved.grid));
    let mut notes: Vec<Note> = resolved.notes.iter().cloned().chain(tile_notes).map(Note::from).collect();
    let (plan, fallbacks) = (tiles.plan.clone(), tiles.fallbacks());
    let mut inference = Inference::new(context, &resolved, tiles, Scratch::Memory, None, None);
    let (_, mut prediction) = inference.predict(time, None)?;
    notes.extend(inference.notes());
    let seam_energy = inference.seams().energy();
    let traffic = inference.release();
    drop(inference);
    let maps = if outputs.has_maps() { Some(all_maps(context, &mut prediction)?) } else { None };
    let mut labels = None;
    let mut objects = 0;
    if outputs.has_labels() {
        let mut found = label::label_prediction(context, &resolved, &mut prediction, Scratch::Memory)?;
        drop(prediction);
        objects = found.count;
        notes.extend(found.note.take().map(Note::from));
        labels = Some(found.all_slices(context)?);
    }
    Ok(PredictedVolume {
        shape_zyx: resolved.extents.zyx,
        maps,
        labels,
        objects,
        voxel_size: resolved.voxel_um,
        precision: resolved.precision(),
        diameter: resolved.diameter,
        segment: resolved.segment,
        plan,
        fallbacks,
        seam_energy,
        traffic,
        notes,
    })
}

/// Returns the bytes of the maps and labels that are held in memory.
fn held_bytes(resolved: &Resolved<'_>, outputs: VolumeOutputs) -> u64 {
    let voxels = |shape: [usize; 3]| shape.iter().fold(4u64, |n, v| n.saturating_mul(*v as u64));
    let channels = resolved.model.output_channels as u64;
    let returned = voxels(resolved.extents.zyx);
    let maps = if outputs.has_maps() { returned.saturating_mul(channels) } else { 0 };
    // The labels as stored, and the returned ones.
    let labels = if outputs.has_labels() { returned.saturating_mul(2) } else { 0 };
    voxels(resolved.grid).saturating_mul(channels).saturating_add(maps).saturating_add(labels)
}

/// Reads all maps of a prediction, axes C, Z, Y, X.
fn all_maps(context: &Context, prediction: &mut Prediction) -> Result<Vec<f32>, JobError> {
    let [depth, ny, nx] = prediction.shape;
    let mut values = Vec::with_capacity(prediction.channels * depth * ny * nx);
    for channel in 0..prediction.channels {
        for z in 0..depth {
            context.check()?;
            values.extend(prediction.read(context, channel, z..z + 1)?);
        }
    }
    Ok(values)
}
