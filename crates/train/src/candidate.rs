//! A network that is scored on the validation pairs.

use cytoscope_engine::{DeviceId, DeviceRequest, Precision};
use cytoscope_formats::Image;
use cytoscope_pipeline::devices::{Devices, SelectedEngine};
use cytoscope_pipeline::{
    CancelToken, Context, ImagePreprocessing, JobError, Model, PredictOptions, PredictedVolume, VolumeOutputs,
    predict_part, predict_volume,
};
use std::path::Path;

/// A model with the engine that predicts the validation pairs: the CPU.
pub(crate) struct Candidate {
    model: Model,
    engine: SelectedEngine,
    /// Options for all pairs.
    options: PredictOptions,
}

impl Candidate {
    /// Prepares a model; without a precision, the best one for the CPU is used. `threads` is 0 for all cores.
    ///
    /// # Errors
    /// [`JobError`] if the CPU does not compute the network correctly, or the job is canceled.
    pub(crate) fn new(
        cancel: &CancelToken,
        devices: &Devices,
        model: Model,
        precision: Option<Precision>,
        threads: usize,
    ) -> Result<Self, JobError> {
        let options = PredictOptions { precision, threads, ..PredictOptions::default() };
        let engine = devices.for_model(&quiet(cancel), &model, DeviceRequest::Device(DeviceId::Cpu), &options)?;
        Ok(Self { model, engine, options })
    }

    /// Like [`Candidate::new`], for the package at `path`.
    ///
    /// # Errors
    /// Same as [`Candidate::new`], or if the package cannot be read.
    pub(crate) fn load(
        cancel: &CancelToken,
        devices: &Devices,
        path: &Path,
        precision: Option<Precision>,
        threads: usize,
    ) -> Result<Self, JobError> {
        Self::new(cancel, devices, Model::load(&path.display().to_string())?, precision, threads)
    }

    /// Predicts an image in the same way as a prediction job does; `options` apply to the image; their precision and
    /// threads are not used. A part of an image gets the preprocessing of the whole image, `whole`.
    ///
    /// # Errors
    /// Same as [`predict_part`].
    pub(crate) fn predict(
        &self,
        cancel: &CancelToken,
        image: &Image,
        options: PredictOptions,
        outputs: VolumeOutputs,
        whole: Option<&ImagePreprocessing>,
    ) -> Result<PredictedVolume, JobError> {
        let PredictOptions { precision, threads, .. } = self.options;
        let (context, options) = (quiet(cancel), PredictOptions { precision, threads, ..options });
        match whole {
            None => predict_volume(&context, &self.engine, &self.model, image, &options, outputs),
            Some(whole) => predict_part(&context, &self.engine, &self.model, image, &options, outputs, whole),
        }
    }

    /// Computes the preprocessing of an image, whose statistics are those of the whole image.
    ///
    /// # Errors
    /// Same as [`ImagePreprocessing::of`].
    pub(crate) fn preprocessing(
        &self,
        cancel: &CancelToken,
        image: &Image,
        options: &PredictOptions,
    ) -> Result<ImagePreprocessing, JobError> {
        ImagePreprocessing::of(&quiet(cancel), &self.model, image, options)
    }

    /// Returns whether this is the preprocessing of an image by this model.
    pub(crate) fn preprocesses(&self, known: &ImagePreprocessing) -> bool {
        known.is_by(&self.model)
    }
}

/// Returns a context without events.
fn quiet(cancel: &CancelToken) -> Context {
    Context { cancel: cancel.clone(), ..Context::default() }
}
