//! A package's own test: its test inputs must give its test outputs.

use crate::Tensor;

/// How far a reproduced output may be off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Share of the expected value.
    pub relative: f64,
    /// Added to it.
    pub absolute: f64,
    /// Values in a million that may lie outside.
    pub outside_ppm: f64,
}

impl Default for Tolerance {
    /// bioimage.io's: rtol 1e-3, atol 1e-3, 100 ppm.
    fn default() -> Self {
        Self { relative: 1e-3, absolute: 1e-3, outside_ppm: 100.0 }
    }
}

/// Compares a reproduced tensor with the expected one; the message says how far it is off.
///
/// # Errors
/// The sentence to show if shapes differ or too many values lie outside the tolerance.
pub fn compare(name: &str, expected: &Tensor, got: &Tensor, tolerance: Tolerance) -> Result<(), String> {
    if expected.shape() != got.shape() {
        return Err(format!("output \"{name}\" has shape {:?}, expected {:?}", got.shape(), expected.shape()));
    }
    let (a, b) = (expected.to_f64_vec(), got.to_f64_vec());
    let mut outside = 0usize;
    let mut worst = 0.0f64;
    for (e, g) in a.iter().zip(&b) {
        let off = (e - g).abs();
        let allowed = tolerance.absolute + tolerance.relative * e.abs();
        if !(off <= allowed || (e.is_nan() && g.is_nan()) || e == g) {
            outside += 1;
            worst = worst.max(if off.is_nan() { f64::INFINITY } else { off });
        }
    }
    let ppm = outside as f64 * 1e6 / a.len().max(1) as f64;
    if ppm > tolerance.outside_ppm {
        return Err(format!(
            "output \"{name}\": {outside} of {} values lie outside the tolerance, the worst by {worst}",
            a.len()
        ));
    }
    Ok(())
}
