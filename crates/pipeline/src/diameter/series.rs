//! The object diameter of a time series: the median of those at its first, middle and last time point.

use super::{Certainty, DiameterRequest, Estimator, ObjectDiameter};
use crate::slice_statistics::Chains;
use crate::stack::Stack;
use crate::{Context, JobError, Model};
use cytoscope_engine::{CompileOptions, Engine};
use cytoscope_formats::Image;
use cytoscope_storage::message;
use cytoscope_storage::message::{Message, TimePoint};
use cytoscope_storage::setting::{DIAMETER, TIME};
use std::cell::Cell;
use std::collections::BTreeSet;

/// Ratio of the largest to the smallest diameter of a series above which a note says that objects change.
const STEADY_RATIO: f64 = 1.25;

/// Estimates the object diameter of an image with one or several time points.
pub(crate) struct SeriesEstimator<'a> {
    /// Cancellation, progress and spans of the job.
    pub context: &'a Context,
    /// The model of the short predictions, which declares a nominal object diameter.
    pub model: &'a Model,
    /// Compiles and runs the model's network for the short predictions.
    pub engine: &'a dyn Engine,
    /// Precision and threads of the prediction; see [`Estimator::options`].
    pub options: &'a CompileOptions,
    /// The image with all its time points, after the user's preprocessing steps.
    pub image: &'a Image,
    /// Channels of the image that are the model's input.
    pub channels: &'a [usize],
    /// Preprocessing of the channels at the first time point; `None` if it has the statistics of the image.
    pub first_chains: Option<&'a Chains>,
    /// Voxel size Z, Y, X in µm; `None` if it is unknown.
    pub voxel_um: Option<[f64; 3]>,
    /// Memory that a short prediction of a large part may use, in bytes.
    pub budget_bytes: u64,
}

/// The object diameter of an image.
pub(crate) struct SeriesDiameter {
    /// The requested diameter, or the median of the estimates of the first, middle and last time point.
    pub diameter: ObjectDiameter,
    /// Preprocessing of the channels at the first time point.
    pub first_chains: Chains,
    /// Largest memory of a short prediction, in bytes; 0 if nothing was estimated.
    pub peak_bytes: u64,
    /// Note that the objects of the time points differ much in size.
    pub note: Option<Message>,
}

impl SeriesEstimator<'_> {
    /// Returns the requested diameter, or an estimate for these time points, for a model with a nominal diameter.
    pub(crate) fn resolve(
        &self,
        times: &[usize],
        request: DiameterRequest,
        nominal_um: f64,
    ) -> Result<SeriesDiameter, JobError> {
        let first = times.first().copied().unwrap_or(0);
        let (found, first_chains, mut peak_bytes) = self.at(first, self.first_chains, request, nominal_um)?;
        let mut all = vec![(first, found)];
        if request == DiameterRequest::Auto {
            for time in representatives(times).into_iter().filter(|time| *time != first) {
                let (found, _, bytes) = self.at(time, None, request, nominal_um)?;
                peak_bytes = peak_bytes.max(bytes);
                all.push((time, found));
            }
        }
        let (mut diameter, note) = median_diameter(&all).unwrap_or((found, None));
        if let (Some(estimate), true) = (&mut diameter.estimate, times.len() > 1) {
            // Each time point is preprocessed with its own percentiles.
            (estimate.intensity_factor, estimate.intensity_background) = (1.0, 0.0);
        }
        Ok(SeriesDiameter { diameter, first_chains, peak_bytes, note })
    }

    /// Returns the diameter at a time point, its preprocessing, which may be `known`, and the memory of estimating it in
    /// bytes.
    fn at(
        &self,
        time: usize,
        known: Option<&Chains>,
        request: DiameterRequest,
        nominal_um: f64,
    ) -> Result<(ObjectDiameter, Chains, u64), JobError> {
        let stack = Stack::new(self.image, time);
        let chains = match known {
            Some(known) => known.clone(),
            None => stack.preprocessing(self.context, self.model, self.channels)?,
        };
        let estimator = Estimator {
            context: self.context,
            model: self.model,
            engine: self.engine,
            options: self.options,
            stack: &stack,
            channels: self.channels,
            chains: &chains,
            voxel_um: self.voxel_um,
            budget_bytes: self.budget_bytes,
            peak_bytes: Cell::default(),
        };
        let diameter = estimator.resolve(request, nominal_um)?;
        let peak_bytes = estimator.peak_bytes.get();
        Ok((diameter, chains, peak_bytes))
    }
}

/// Returns the first, the middle and the last of these time points.
fn representatives(times: &[usize]) -> BTreeSet<usize> {
    [times.first(), times.get(times.len() / 2), times.last()].into_iter().flatten().copied().collect()
}

/// Returns the median of the diameters at some time points, and a note if they differ much. Time points without objects do
/// not count, unless none has any. `None` without time points.
fn median_diameter(all: &[(usize, ObjectDiameter)]) -> Option<(ObjectDiameter, Option<Message>)> {
    let has_objects = |found: &ObjectDiameter| found.estimate.is_none_or(|e| e.certainty != Certainty::None);
    let mut known: Vec<&(usize, ObjectDiameter)> = all.iter().filter(|(_, found)| has_objects(found)).collect();
    if known.is_empty() {
        known = all.iter().collect();
    }
    let at = |(time, found): &&(usize, ObjectDiameter)| {
        message!("{:.1} {} at time point {}", found.diameter, found.unit.symbol(), TimePoint(*time))
    };
    let listed = known.iter().map(at).reduce(|all, next| message!("{all}, {next}")).unwrap_or_default();
    known.sort_by(|a, b| a.1.diameter.total_cmp(&b.1.diameter));
    let (_, median) = known.get(known.len() / 2)?;
    let ratio = known.last()?.1.diameter / known.first()?.1.diameter;
    let note = (ratio > STEADY_RATIO).then(|| {
        message!(
            "the object diameter changes with time: {listed}; {:.1} {} is used for all time points (predict single ones with \
             {TIME}, or set {DIAMETER})",
            median.diameter,
            median.unit.symbol()
        )
    });
    Some((*median, note))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::super::{DiameterEstimate, DiameterUnit};
    use super::*;

    fn found(diameter: f64, certainty: Certainty) -> ObjectDiameter {
        let estimate = DiameterEstimate {
            diameter,
            range: [diameter; 2],
            objects: 9,
            certainty,
            intensity_factor: 1.0,
            intensity_background: 0.0,
        };
        ObjectDiameter { diameter, unit: DiameterUnit::Um, voxel: [1.0; 3], nominal_um: 12.0, estimate: Some(estimate) }
    }

    #[test]
    fn the_first_the_middle_and_the_last_time_point_are_measured() {
        let measured = |times: &[usize]| representatives(times).into_iter().collect::<Vec<_>>();
        assert_eq!(measured(&(0..30).collect::<Vec<_>>()), [0, 15, 29]);
        assert_eq!((measured(&[4]), measured(&[0, 1]), measured(&[2, 3, 4])), (vec![4], vec![0, 1], vec![2, 3, 4]));
        assert!(measured(&[]).is_empty());
    }

    #[test]
    fn a_series_has_the_median_diameter_and_a_note_if_it_changes() {
        let high = |diameter| found(diameter, Certainty::High);
        let (median, note) = median_diameter(&[(0, high(12.0)), (5, high(8.0)), (9, high(9.0))]).unwrap();
        let note = note.unwrap();
        assert_eq!(median.diameter, 9.0);
        assert!(note.contains("12.0 µm at time point 0, 8.0 µm at time point 5, 9.0 µm at"), "{note}");
        assert_eq!(note.time_points().map(|(_, time)| time).collect::<Vec<_>>(), [0, 5, 9], "{note}");
        assert!(note.contains("; 9.0 µm is used for all"), "{note}");
        // A ratio of 1.25 does not count as a large change.
        let (median, note) = median_diameter(&[(0, high(10.0)), (5, high(11.0)), (9, high(12.5))]).unwrap();
        assert_eq!((median.diameter, note), (11.0, None));
        // Time points without objects do not count.
        let none = found(30.0, Certainty::None);
        let (median, note) = median_diameter(&[(0, none), (5, high(11.0)), (9, none)]).unwrap();
        assert_eq!((median.diameter, note), (11.0, None));
        assert_eq!(median_diameter(&[(0, none)]).unwrap().0, none);
        assert!(median_diameter(&[]).is_none());
    }
}
