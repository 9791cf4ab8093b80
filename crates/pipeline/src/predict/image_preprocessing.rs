//! Preprocessing with the statistics of a whole image, so that a part of it is predicted as if the whole were.

use super::PredictOptions;
use super::resolve::Selection;
use crate::slice_statistics::Chains;
use crate::stack::Stack;
use crate::{Context, JobError, Model};
use cytoscope_formats::Image;
use cytoscope_model_package::Processing;

/// The preprocessing of an image by a model, with the statistics of the whole image, for [`super::predict_part`].
#[derive(Debug, Clone, PartialEq)]
pub struct ImagePreprocessing {
    chains: Chains,
    /// Steps of each input tensor of the model.
    steps: Vec<Vec<Processing>>,
    /// Whether the network processes single slices.
    is_of_slices: bool,
}

/// Returns the preprocessing steps of each input tensor of a model, and whether its network processes single slices.
fn preprocessing_steps(model: &Model) -> (Vec<Vec<Processing>>, bool) {
    (model.inputs.iter().map(|input| input.preprocessing.clone()).collect(), model.spatial_axes == 2)
}

impl ImagePreprocessing {
    /// Computes the preprocessing of one time point of an image, which is read in slabs. Channels and time point are those
    /// of the options.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] without [`PredictOptions::time`] for an image with several time points; [`JobError::Mismatch`]
    /// if the image lacks the channels or the time point; [`JobError`] if it cannot be read, a step is not supported, or the
    /// job is canceled.
    pub fn of(context: &Context, model: &Model, image: &Image, options: &PredictOptions) -> Result<Self, JobError> {
        let selection = Selection::new(context, image, &image.meta().path, model, options)?;
        let stack = Stack::new(image, selection.only_time()?);
        let chains = stack.preprocessing(context, model, &selection.channels)?;
        let (steps, is_of_slices) = preprocessing_steps(model);
        Ok(Self { chains, steps, is_of_slices })
    }

    /// Returns the preprocessing of a part of the image whose first slice is this one.
    #[must_use]
    pub fn starting_at(&self, first_slice: usize) -> Self {
        Self { chains: self.chains.starting_at(first_slice), ..self.clone() }
    }

    /// Returns whether a model has the steps that this is the preprocessing of.
    pub fn is_by(&self, model: &Model) -> bool {
        let (steps, is_of_slices) = preprocessing_steps(model);
        steps == self.steps && is_of_slices == self.is_of_slices
    }

    /// Returns the chains of the channels.
    ///
    /// # Errors
    /// [`JobError::Internal`] if a model has other steps.
    pub(super) fn chains_for(&self, model: &Model) -> Result<&Chains, JobError> {
        if self.is_by(model) {
            return Ok(&self.chains);
        }
        Err(JobError::Internal(format!("prediction: the preprocessing is not that of the model {}", model.name)))
    }
}
