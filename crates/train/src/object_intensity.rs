//! The usual intensity of objects, which the package of a training run states.

use crate::job::ChosenNetwork;
use crate::train::Training;
use cytoscope_pipeline::is_usual_intensity;
use cytoscope_training_data::{Patch, Sampler, TrainingDataError};

/// Number of training patches whose objects are measured. Their augmentation changes intensities far less than the ratios that
/// are distinguished.
const PATCHES: u64 = 32;

impl Training<'_> {
    /// Returns the usual intensity of objects after preprocessing, if the package states one: that of the start model.
    /// Predictions scale the intensities of stacks whose objects are much brighter or dimmer; training does not. A trained
    /// network therefore has the value of its start model only if the objects of the training pairs are not scaled, either.
    pub(crate) fn object_intensity(&self, verdict: ChosenNetwork) -> Option<f64> {
        let usual = self.start.object_intensity?;
        if verdict == ChosenNetwork::Start {
            return Some(usual);
        }
        match median_intensity(&self.sampler) {
            Ok(found) => found.filter(|found| is_usual_intensity(found / usual)).map(|_| usual),
            Err(error) => {
                tracing::warn!("the intensities of the objects cannot be measured: {error}");
                None
            }
        }
    }
}

/// Returns the median over patches of the mean intensity of their objects; `None` if there are no objects.
fn median_intensity(sampler: &Sampler) -> Result<Option<f64>, TrainingDataError> {
    let mut means = Vec::new();
    for index in 0..PATCHES {
        means.extend(mean_of_objects(&sampler.sample(index)?));
    }
    means.sort_by(f64::total_cmp);
    Ok(means.get(means.len() / 2).copied())
}

/// Returns the mean intensity of the objects in the first channel of a patch; `None` if there are none.
fn mean_of_objects(patch: &Patch) -> Option<f64> {
    // The first channel of the target is the foreground.
    let voxels = patch.image.iter().zip(&patch.target).zip(&patch.weight);
    let objects = voxels.filter(|((_, target), weight)| **target > 0.5 && **weight > 0.0);
    let (sum, count) = objects.fold((0.0, 0u64), |(sum, count), ((value, _), _)| (sum + f64::from(*value), count + 1));
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_training_data::Origin;

    #[test]
    fn only_known_voxels_of_objects_are_measured() {
        let patch = |target: [f32; 5]| Patch {
            index: 0,
            shape_zyx: [1, 1, 5],
            image_channels: 1,
            channels: 2,
            image: vec![0.1, 0.5, 0.7, 9.0, 0.2],
            // The second channel is the height.
            target: [target, [1.0; 5]].concat(),
            weight: vec![1.0, 1.0, 2.0, 0.0, 1.0],
            further_weight: Vec::new(),
            from: Origin { pair: 0, name: "a".to_owned(), center_zyx: [0.0; 3] },
        };
        let found = mean_of_objects(&patch([0.0, 1.0, 1.0, 1.0, 0.0]));
        assert!(found.is_some_and(|mean| (mean - 0.6).abs() < 1e-6), "{found:?}");
        assert_eq!(mean_of_objects(&patch([0.0, 0.0, 0.0, 1.0, 0.0])), None);
    }
}
