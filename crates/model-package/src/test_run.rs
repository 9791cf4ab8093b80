//! A package's own test: its test inputs must reproduce its test outputs.

use cytoscope_graph::Tensor;
use cytoscope_storage::by_count;
use serde_json::{Value, json};

/// Tolerance for reproducing an output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Allowed deviation relative to the expected value.
    pub relative: f64,
    /// Allowed absolute deviation, added to the relative one.
    pub absolute: f64,
    /// Number of values per million that may deviate by more.
    pub outside_ppm: f64,
}

/// Largest share of outliers (ppm) that bioimage.io accepts.
pub(crate) const MAX_OUTSIDE_PPM: f64 = 5000.0;

impl Default for Tolerance {
    /// bioimage.io's default: rtol 1e-3, atol 1e-3, 100 ppm.
    fn default() -> Self {
        Self { relative: 1e-3, absolute: 1e-3, outside_ppm: 100.0 }
    }
}

impl Tolerance {
    /// Largest relative tolerance and largest share of outliers (ppm) that every version of bioimage.io's library accepts.
    const MAX_DECLARED: (f64, f64) = (1e-2, 1000.0);

    /// Returns the tolerance that the description declares for an output of ONNX weights
    /// (`config.bioimageio.reproducibility_tolerance`, the first matching entry), or bioimage.io's default.
    pub(crate) fn declared(rdf: &Value, output_id: &str) -> Self {
        let entries = rdf.pointer("/config/bioimageio/reproducibility_tolerance").and_then(Value::as_array);
        let is_for = |entry: &Value, key: &str, name: &str| {
            let listed = entry.get(key).and_then(Value::as_array);
            listed.is_none_or(|l| l.is_empty() || l.iter().any(|v| v == name))
        };
        let fits = |entry: &&Value| is_for(entry, "weights_formats", "onnx") && is_for(entry, "output_ids", output_id);
        let usual = Self::default();
        entries.into_iter().flatten().find(fits).map_or(usual, |entry| {
            // A tolerance that is not a number of 0 or more counts as none, so that the default applies.
            let number = |key: &str, default: f64, max: f64| {
                entry.get(key).and_then(Value::as_f64).filter(|v| *v >= 0.0).map_or(default, |v| v.min(max))
            };
            Self {
                relative: number("relative_tolerance", usual.relative, Self::MAX_DECLARED.0),
                absolute: number("absolute_tolerance", usual.absolute, f64::INFINITY),
                outside_ppm: number("mismatched_elements_per_million", usual.outside_ppm, MAX_OUTSIDE_PPM),
            }
        })
    }

    /// Returns the tolerance as a description entry for an output of ONNX weights.
    pub(crate) fn declaration(&self, output_id: &str) -> Value {
        json!({
            "relative_tolerance": self.relative.clamp(0.0, Self::MAX_DECLARED.0),
            "absolute_tolerance": self.absolute.max(0.0),
            "mismatched_elements_per_million": self.outside_ppm.clamp(0.0, Self::MAX_DECLARED.1).round() as u64,
            "output_ids": [output_id],
            "weights_formats": ["onnx"],
        })
    }
}

/// Returns the largest absolute tolerance that is honored: a quarter of the range of the expected values. A
/// description may declare a larger one, which would accept any output.
fn max_absolute(expected: &[f64]) -> f64 {
    let finite = || expected.iter().copied().filter(|v| v.is_finite());
    let range = finite().fold(f64::NEG_INFINITY, f64::max) - finite().fold(f64::INFINITY, f64::min);
    (0.25 * range).max(Tolerance::default().absolute)
}

/// Compares a reproduced tensor with the expected one. The absolute tolerance is capped at a quarter of the range of
/// the expected values.
///
/// # Errors
/// A message for the user if the shapes differ or too many values exceed the tolerance.
pub fn compare(name: &str, expected: &Tensor, got: &Tensor, tolerance: Tolerance) -> Result<(), String> {
    if expected.shape() != got.shape() {
        return Err(format!("output \"{name}\" has shape {:?}, expected {:?}", got.shape(), expected.shape()));
    }
    let (a, b) = (expected.to_f64_vec(), got.to_f64_vec());
    let absolute = tolerance.absolute.min(max_absolute(&a));
    let mut outside = 0usize;
    let mut worst = 0.0f64;
    for (e, g) in a.iter().zip(&b) {
        let off = (e - g).abs();
        let allowed = absolute + tolerance.relative * e.abs();
        // Any difference from an infinite value is within a tolerance that is relative to it.
        if !((e.is_finite() && off <= allowed) || (e.is_nan() && g.is_nan()) || e == g) {
            outside += 1;
            worst = worst.max(if off.is_nan() { f64::INFINITY } else { off });
        }
    }
    let ppm = outside as f64 * 1e6 / a.len().max(1) as f64;
    if ppm > tolerance.outside_ppm {
        let exceed = by_count(outside, "exceeds", "exceed");
        return Err(format!(
            "output \"{name}\": {outside} of {} values {exceed} the tolerance, the largest difference is {worst}",
            a.len()
        ));
    }
    Ok(())
}
