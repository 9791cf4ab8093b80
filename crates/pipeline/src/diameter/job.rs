//! Estimation of the object diameter without a prediction.

use super::{Estimator, ObjectDiameter};
use crate::devices::{Devices, SelectedEngine};
use crate::predict::PredictJob;
use crate::predict::resolve::{channels, voxel_size};
use crate::stack::{Extents, Stack};
use crate::{Context, JobError, Model, preprocess};
use cytoscope_engine::CompileOptions;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::path::Path;

/// Returns the object diameter that a prediction would use for its first input: the given one, or an estimate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiameterJob {
    /// The prediction; it is not run.
    pub prediction: PredictJob,
}

impl DiameterJob {
    /// Runs the job.
    ///
    /// # Errors
    /// [`JobError`] if the model or the stack cannot be read; [`JobError::WrongUse`] if the model declares no object
    /// diameter.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<ObjectDiameter, JobError> {
        let job = &self.prediction;
        let files = crate::predict::expand_inputs(&job.inputs)?;
        let Some(input) = files.first() else {
            return Err(JobError::WrongUse("no input was given: give the name of a file".to_owned()));
        };
        let model = Model::load(&job.model)?;
        super::check(job.diameter, &model)?;
        let engine = devices.for_model(context, &model, job.device, &job.options())?;
        object_diameter(job, context, &model, &engine, input)
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
        return Err(JobError::WrongUse(format!(
            "the model {} declares no object diameter, so none can be estimated; use another model",
            model.name
        )));
    };
    let image = job.open(input)?;
    let (image, ..) = preprocess::for_prediction(context, job, model, image)?;
    let mut meta = image.meta().clone();
    let time = job.time.unwrap_or(0).min(Extents::of(&meta).times.saturating_sub(1));
    let stack = Stack::new(&image, time);
    let mut notes = Vec::new();
    let channels = channels((job.channel, job.channels.as_slice()), model, &meta, &stack, input, &mut notes)?;
    stack.check_ends()?;
    let voxel = voxel_size(preprocess::options_after(job).voxel_um, input, &mut meta, model, &mut notes)?;
    notes.into_iter().for_each(|note| context.note(note));
    let options = CompileOptions {
        precision: engine.precision(model, job.precision),
        threads: job.threads,
        memory_budget_bytes: None,
        recorder: context.recorder.clone(),
        interrupt: context.interrupt(),
        tuning: context.tuning(),
    };
    let estimator = Estimator {
        context,
        model,
        engine: engine.engine(),
        options: &options,
        stack: &stack,
        channels: &channels,
        chains: &stack.preprocessing(context, model, &channels)?,
        voxel_um: voxel.known,
        budget_bytes: job.memory_budget_bytes.unwrap_or(u64::MAX),
        peak_bytes: Cell::default(),
    };
    estimator.resolve(job.diameter, nominal_um)
}
