//! Estimation of the object diameter without a prediction.

use super::ObjectDiameter;
use crate::devices::Devices;
use crate::predict::PredictJob;
use crate::{Context, JobError, Model};
use serde::{Deserialize, Serialize};

/// Returns the object diameter that a prediction would use for its first input: the given one, or an estimate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiameterJob {
    /// The prediction; it is not run.
    pub prediction: PredictJob,
}

impl DiameterJob {
    /// Name of the kind of job in the worker's protocol.
    pub const KIND: &'static str = "object-diameter";

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
        let engine = devices.for_model(context, &model, job.device, job)?;
        crate::predict::one::object_diameter(job, context, &model, &engine, input)
    }
}
