//! Difference between the outputs of a quantized network and its float network.

use cytoscope_objects::matching::dice;
use cytoscope_pipeline::{JobError, ModelTask};
use serde::{Deserialize, Deserializer, Serialize};

/// Difference of an output, quantized against float, over all held-out tiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OutputError {
    /// ‖quantized − float‖₂ / ‖float‖₂; infinite if the quantized output is not finite.
    #[serde(deserialize_with = "error_value")]
    pub relative_l2: f64,
    /// Largest |quantized − float|; infinite if the quantized output is not finite.
    #[serde(deserialize_with = "error_value")]
    pub max_abs: f64,
    /// Agreement in the metric of the task: Dice of the thresholded maps for segmentation, Pearson correlation for a
    /// stain.
    pub agreement: f64,
}

/// Reads an error. An infinite one is `null` in JSON.
pub(crate) fn error_value<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// Accumulates the sums for [`OutputError`], tile by tile.
#[derive(Debug, Clone, Default)]
pub(crate) struct Comparison {
    squared: f64,
    reference: f64,
    max_abs: f64,
    both: u64,
    either: u64,
    n: f64,
    sums: [f64; 5],
}

impl Comparison {
    /// Adds the float and the quantized output for a tile; values above `threshold` count as foreground.
    ///
    /// # Errors
    /// [`JobError::Internal`] if their numbers of values differ.
    pub(crate) fn add(&mut self, expected: &[f32], got: &[f32], threshold: f32) -> Result<(), JobError> {
        if expected.len() != got.len() {
            let (found, expected) = (got.len(), expected.len());
            return Err(JobError::Internal(format!("quantize: the output has {found} values, expected {expected}")));
        }
        for (&e, &g) in expected.iter().zip(got) {
            let (a, b) = (f64::from(e), f64::from(g));
            let difference = b - a;
            self.squared += difference * difference;
            self.reference += a * a;
            // NaN counts as an infinite error.
            self.max_abs = self.max_abs.max(if difference.is_nan() { f64::INFINITY } else { difference.abs() });
            let (p, q) = (e > threshold, g > threshold);
            self.both += u64::from(p && q);
            self.either += u64::from(p) + u64::from(q);
            self.n += 1.0;
            for (sum, term) in self.sums.iter_mut().zip([a, b, a * a, b * b, a * b]) {
                *sum += term;
            }
        }
        Ok(())
    }

    pub(crate) fn finish(&self, task: ModelTask) -> OutputError {
        let relative_l2 = match (self.squared, self.reference) {
            (0.0, _) => 0.0,
            (s, r) => (s / r.max(f64::MIN_POSITIVE)).sqrt(),
        };
        let relative_l2 = if relative_l2.is_nan() { f64::INFINITY } else { relative_l2 };
        let agreement = match task {
            ModelTask::Segmentation => dice(self.both, self.either),
            ModelTask::LabelFree => {
                let [a, b, aa, bb, ab] = self.sums.map(|s| s / self.n.max(1.0));
                let spread = ((aa - a * a) * (bb - b * b)).sqrt();
                if spread > 0.0 { (ab - a * b) / spread } else { f64::from(u8::from(self.squared == 0.0)) }
            }
        };
        OutputError { relative_l2, max_abs: self.max_abs, agreement }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_different_lengths_are_not_compared() {
        let mut sums = Comparison::default();
        let error = sums.add(&[1.0, 2.0, 3.0], &[1.0, 2.0], 0.5).unwrap_err();
        assert!(error.to_string().contains("2 values, expected 3"), "{error}");
        sums.add(&[3.0, 4.0], &[3.0, 3.0], 3.5).unwrap();
        let error = sums.finish(ModelTask::Segmentation);
        assert_eq!((error.relative_l2, error.max_abs, error.agreement), (0.2, 1.0, 0.0));
    }

    #[test]
    fn infinite_errors_survive_serialization() {
        let error = OutputError { relative_l2: f64::INFINITY, max_abs: f64::INFINITY, agreement: 0.5 };
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<OutputError>(&text).unwrap(), error, "{text}");
        assert!(serde_json::from_str::<OutputError>(r#"{"max_abs": 0.5, "agreement": 0.5}"#).is_err());
    }
}
