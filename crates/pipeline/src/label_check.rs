//! Checks whether an image that is used as labels contains labels.

use crate::JobError;
use cytoscope_volume::Element;
use std::path::{Path, PathBuf};

/// Fewest pairs of neighboring voxels whose share is stated.
const MIN_PAIRS: u64 = 1000;
/// Smallest share of equal pairs in an image of labels. Objects that are N voxels wide have at least (N - 1) / N, and noise
/// makes that of intensities small.
const MIN_EQUAL: f64 = 0.5;

/// Counts pairs of neighboring voxels along X. Labels of objects repeat from voxel to voxel, intensities do not.
#[derive(Debug)]
pub(crate) struct LabelCheck {
    /// The image, for messages.
    path: PathBuf,
    /// Pairs without background.
    pairs: u64,
    /// Pairs of the same value among them.
    equal: u64,
    /// The lowest value below 0.
    negative: Option<f64>,
}

impl LabelCheck {
    /// Starts the check of an image.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), pairs: 0, equal: 0, negative: None }
    }

    /// The image.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds rows of `width` voxels.
    pub(crate) fn add<T: Element>(&mut self, values: &[T], width: usize) {
        let background = T::zeroed();
        for row in values.chunks(width.max(1)) {
            for (a, b) in row.iter().zip(row.iter().skip(1)) {
                if *a != background && *b != background {
                    self.pairs += 1;
                    self.equal += u64::from(a == b);
                }
            }
        }
        for value in values.iter().filter(|value| **value < background) {
            let value = value.to_f64();
            self.negative = Some(self.negative.map_or(value, |lowest| lowest.min(value)));
        }
    }

    /// Returns a note if the values are more likely intensities than labels.
    pub(crate) fn note(&self) -> Option<String> {
        let share = self.equal as f64 / self.pairs.max(1) as f64;
        (self.pairs >= MIN_PAIRS && share < MIN_EQUAL).then(|| {
            format!(
                "{} may be an image of intensities instead of labels: of the neighboring voxels that are not 0, only {:.0} % \
                 have the same value",
                self.path.display(),
                share * 100.0
            )
        })
    }

    /// Refuses values below 0.
    ///
    /// # Errors
    /// [`JobError::Mismatch`] with the lowest value.
    pub(crate) fn refuse_negative(&self) -> Result<(), JobError> {
        let Some(value) = self.negative else { return Ok(()) };
        Err(JobError::Mismatch {
            path: self.path.clone(),
            problem: format!("the value {value} is not a label"),
            next_step: "give a label image: 0 for the background and numbers from 1 for the objects".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(values: &[u16]) -> Option<String> {
        let mut check = LabelCheck::new(Path::new("a.tif"));
        check.add(values, 60);
        check.note()
    }

    #[test]
    fn intensities_are_distinguished_from_labels() {
        let noise: Vec<u16> = (0..6000u32).map(|i| 100 + (i.wrapping_mul(2_654_435_761) >> 27) as u16).collect();
        let warned = note(&noise).unwrap_or_default();
        assert!(warned.contains("a.tif") && warned.contains("intensities"), "{warned}");
        // Objects of 4 × 4 voxels that touch, with numbers in no order; a mask; and an image without objects.
        let labels: Vec<u16> =
            (0..6000usize).map(|i| 1 + ((i / 240 * 15 + i % 60 / 4) * 7919 % 65_000) as u16).collect();
        let mask: Vec<u16> = noise.iter().map(|value| if *value > 110 { 255 } else { 0 }).collect();
        for image in [labels, mask, vec![0; 6000]] {
            assert_eq!(note(&image), None);
        }
    }

    #[test]
    fn negative_values_are_not_labels() {
        let refused = |values: &[i16]| {
            let mut check = LabelCheck::new(Path::new("a.tif"));
            check.add(values, 4);
            check.refuse_negative().err().map(|error| error.to_string())
        };
        assert_eq!(refused(&[0, 3, 3]), None);
        let message = refused(&[0, 3, -2, 3]).unwrap_or_default();
        assert!(message.contains("a.tif") && message.contains("the value -2 is not a label"), "{message}");
    }
}
