//! Quantization with quantization-aware training within limits, as the command line and the worker run it.

use crate::QatTrainer;
use cytoscope_engine::Precision;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::job_record::{JobKind, Recordable, recorded};
use cytoscope_pipeline::{Context, JobError};
use cytoscope_quantize::{QuantizeJob, QuantizeReport};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A quantization and the limits of its quantization-aware training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitedQuantization {
    /// Model, calibration data and options of the quantization.
    pub quantization: QuantizeJob,
    /// Maximum minutes of quantization-aware training.
    #[serde(default)]
    pub minutes: Option<f64>,
    /// Maximum steps of quantization-aware training, one tile per step.
    #[serde(default)]
    pub steps: Option<u64>,
}

impl LimitedQuantization {
    /// Runs the quantization and writes its provenance record beside the package.
    ///
    /// # Errors
    /// Same as [`QuantizeJob::run_with`]; [`JobError::WrongUse`] if a limit is invalid, or is given for a mode that does not
    /// train.
    pub fn run(&self, context: &Context) -> Result<QuantizeReport, JobError> {
        let Self { quantization, minutes, steps } = self;
        let trainer = QatTrainer::limited(quantization.mode, *minutes, *steps)?;
        recorded(self, context, |record| {
            let report = quantization.run_with(context, Some(&trainer))?;
            if let Some(cpu) = Devices::cpu_only().list().first() {
                record.ran_on(cpu, Precision::Int8);
            }
            record.set_tile_shape(&report.tile_shape);
            Ok(report)
        })
    }
}

impl Recordable for LimitedQuantization {
    const KIND: JobKind = JobKind::Quantize;

    fn inputs(&self) -> Vec<&Path> {
        self.quantization.stacks().collect()
    }

    fn outputs(&self) -> Vec<&Path> {
        vec![self.quantization.out.as_path()]
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let QuantizeJob { calibrate, predictions, out, .. } = &mut self.quantization;
        let prediction_paths = predictions.iter_mut().flat_map(|job| {
            let images = job.input_tensors.iter_mut().filter_map(|tensor| tensor.file.as_mut());
            job.inputs.iter_mut().chain(images)
        });
        calibrate.iter_mut().chain(prediction_paths).chain(std::iter::once(out)).collect()
    }

    fn model_mut(&mut self) -> Option<&mut String> {
        Some(&mut self.quantization.model)
    }

    cytoscope_pipeline::recordable_setters!(overwrite: quantization.overwrite, output: quantization.out);
}
