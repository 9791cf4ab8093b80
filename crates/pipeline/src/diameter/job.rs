//! Estimation of the object diameter without a prediction.

use super::{ObjectDiameter, SeriesDiameter, SeriesEstimator};
use crate::devices::{Devices, SelectedEngine};
use crate::predict::attempts::on_devices;
use crate::predict::file_notes::{OtherSeries, first_series_note};
use crate::predict::input_channels::channels;
use crate::predict::resolve::{check_time, estimate_budget_bytes, voxel_size};
use crate::predict::{PredictJob, input_tensors};
use crate::stack::{Extents, Stack};
use crate::{Context, JobError, Model, preprocess};
use cytoscope_profile::Stage;
use cytoscope_storage::message::Message;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Determines the object diameter that a prediction would use for its first input: the given one, or an estimate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiameterJob {
    /// The prediction; it is not run.
    pub prediction: PredictJob,
}

impl DiameterJob {
    /// Runs the job. If the device fails, the next one estimates the diameter.
    ///
    /// # Errors
    /// [`JobError`] if the model or the stack cannot be read; [`JobError::Mismatch`] if the stack lacks the channels or the
    /// time point; [`JobError::WrongUse`] if options conflict, or if the model declares no object diameter or lacks a given
    /// input tensor.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<ObjectDiameter, JobError> {
        let job = &self.prediction;
        job.check()?;
        let files = job.stacks(context)?;
        let Some(input) = files.first() else {
            return Err(JobError::wrong_use_with("no input was given", "give the name of a file"));
        };
        let loading = context.recorder.span(Stage::Load, "model");
        let model = Model::load(&job.model)?.with_output(job.output_tensor.as_ref())?;
        loading.finish();
        super::check(job.diameter, &model)?;
        job.check_input_tensors(&model, files.len())?;
        let choosing = context.recorder.span(Stage::Verify, "device");
        let options = job.options();
        let engine = devices.for_model(context, &model, job.device, &options)?;
        choosing.finish();
        let estimate = |engine: &SelectedEngine| object_diameter(job, context, &model, engine, input);
        on_devices(context, devices, &model, &options, &engine, estimate)
    }
}

/// Returns the object diameter that a prediction of a stack would use.
///
/// # Errors
/// [`JobError::WrongUse`] if the model declares no object diameter; otherwise as for a prediction.
fn object_diameter(
    job: &PredictJob,
    context: &Context,
    model: &Model,
    engine: &SelectedEngine,
    input: &Path,
) -> Result<ObjectDiameter, JobError> {
    let Some(nominal_um) = model.object_diameter_um else {
        return Err(JobError::wrong_use_with(
            format!("the model {} declares no object diameter, so none can be estimated", model.name),
            "use another model",
        ));
    };
    let image = job.open(input)?;
    let series_note = first_series_note(&job.series, image.meta(), "is measured", OtherSeries::One);
    let sources = input_tensors::sources(job, model, input, image)?;
    let (image, ..) = preprocess::for_prediction(context, job, model, sources.image.clone())?;
    let given = sources.options(preprocess::options_after(job));
    let mut meta = image.meta().clone();
    let count = Extents::of(&meta).times;
    check_time(job.time, count, input)?;
    let times: Vec<usize> = job.time.map_or_else(|| (0..count).collect(), |time| vec![time]);
    let stack = Stack::new(&image, times.first().copied().unwrap_or(0));
    let mut notes: Vec<Message> = series_note.into_iter().collect();
    let chosen = (given.channel, given.channels.as_slice());
    let channels = channels(context, chosen, model, &meta, &stack, input, &mut notes)?;
    stack.check_ends()?;
    let voxel = voxel_size(given.voxel_um, input, &mut meta, model, &mut notes)?;
    let options = context.compile_options(engine.precision(model, job.precision), job.threads);
    let estimator = SeriesEstimator {
        context,
        model,
        engine: engine.engine(),
        options: &options,
        image: &image,
        channels: &channels,
        first_chains: None,
        voxel_um: voxel.known,
        budget_bytes: estimate_budget_bytes(job.memory_budget_bytes, model, &image),
    };
    let SeriesDiameter { diameter, note, .. } = estimator.resolve(&times, job.diameter, nominal_um)?;
    // Another device may have failed before, so they are only given now.
    notes.into_iter().chain(note).for_each(|note| context.note(note));
    Ok(diameter)
}
