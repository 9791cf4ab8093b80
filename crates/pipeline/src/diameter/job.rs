//! Estimating without predicting.

use super::ObjectDiameter;
use crate::devices::Devices;
use crate::predict::PredictJob;
use crate::{Context, JobError, Model};
use cytoscope_engine::DeviceRequest;
use serde::{Deserialize, Serialize};

/// The object diameter that a prediction would use for its first input: the one given, or an estimate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiameterJob {
    /// The prediction; nothing of it is run or written.
    pub prediction: PredictJob,
}

impl DiameterJob {
    /// What it is called among the worker's jobs.
    pub const KIND: &'static str = "object-diameter";

    /// Runs the job.
    ///
    /// # Errors
    /// [`JobError`] if the model or the stack cannot be read; [`JobError::WrongUse`] for a model that states no object
    /// diameter.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<ObjectDiameter, JobError> {
        let job = &self.prediction;
        let files = crate::predict::expand_inputs(&job.inputs)?;
        let Some(input) = files.first() else {
            return Err(JobError::WrongUse("no input was given: name a file".to_owned()));
        };
        let model = Model::load(&job.model)?;
        super::check(job.diameter, &model)?;
        let request: DeviceRequest = job.device.parse()?;
        let engine = devices.for_model(context, &model, request, job)?;
        crate::predict::one::object_diameter(job, context, &model, &engine, input)
    }
}
