//! Reading the maps of a prediction, and comparing them with the maps of another one.

use super::reports::PredictCommandReport;
use cytoscope_formats::{FormatError, OpenOptions};

/// Reads the maps that the report of a prediction names; `None` if they cannot be read, for example because they are
/// too large.
pub(super) fn read_maps(report: &PredictCommandReport) -> Option<Vec<f32>> {
    let path = &report.inputs.first()?.0.outputs.iter().find(|artifact| artifact.kind.is_maps())?.path;
    let unread = |error: &FormatError| tracing::warn!("the maps of a prediction are not compared: {error}");
    let image = cytoscope_formats::open(path, &OpenOptions::default()).inspect_err(unread).ok()?;
    Some(image.read_all().inspect_err(unread).ok()?.samples().to_f32())
}

/// Returns the L2 norm of the difference, divided by the L2 norm of the reference; `None` if the sizes differ.
pub(super) fn relative_l2(reference: &[f32], other: &[f32]) -> Option<f64> {
    if reference.len() != other.len() {
        return None;
    }
    let square = |v: f64| v * v;
    let difference: f64 = reference.iter().zip(other).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let norm: f64 = reference.iter().map(|v| square(f64::from(*v))).sum();
    Some((difference / norm.max(f64::MIN_POSITIVE)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_relative_to_the_reference() {
        assert_eq!(relative_l2(&[3.0, 4.0], &[3.0, 4.0]), Some(0.0));
        assert_eq!(relative_l2(&[3.0, 4.0], &[0.0, 0.0]), Some(1.0));
        assert_eq!(relative_l2(&[1.0], &[1.0, 2.0]), None);
    }
}
