//! Sample values that 32-bit floats do not hold: images are preprocessed and predicted in these.

use crate::Note;
use cytoscope_volume::Samples;

/// Number up to which 32-bit floats hold every whole number.
const MAX_EXACT: u64 = 1 << 24;

/// What is lost if samples are converted to 32-bit floats. Fractions, which every type of floats rounds, do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FloatLoss {
    /// Whether whole numbers are rounded to others.
    pub rounded: bool,
    /// Whether finite values become infinite.
    pub too_large: bool,
}

impl FloatLoss {
    /// Returns what is lost of these samples.
    pub(crate) fn of(samples: &Samples) -> Self {
        let rounded = match samples {
            Samples::U32(values) => values.iter().any(|value| is_rounded(u64::from(*value))),
            Samples::I32(values) => values.iter().any(|value| is_rounded(u64::from(value.unsigned_abs()))),
            Samples::U64(values) => values.iter().any(|value| is_rounded(*value)),
            Samples::I64(values) => values.iter().any(|value| is_rounded(value.unsigned_abs())),
            _ => false,
        };
        let is_too_large = |value: &f64| value.is_finite() && (*value as f32).is_infinite();
        let too_large = matches!(samples, Samples::F64(values) if values.iter().any(is_too_large));
        Self { rounded, too_large }
    }

    /// Adds what is lost of other samples of the same image.
    pub(crate) fn merge(&mut self, other: Self) {
        self.rounded |= other.rounded;
        self.too_large |= other.too_large;
    }

    /// Returns the warnings on an image that loses this.
    pub(crate) fn notes(self) -> impl Iterator<Item = Note> {
        let rounded = self.rounded.then(|| {
            Note::warning(format!(
                "values of the image above {MAX_EXACT} are rounded, because it is read as 32-bit floats: small differences of \
                 large values are lost, and label numbers may become equal; subtract a constant from the values first"
            ))
        });
        let too_large = self.too_large.then(|| {
            Note::warning(format!(
                "values of the image above {:.1e} are treated as infinite, because it is read as 32-bit floats; divide the \
                 values by a constant first",
                f32::MAX
            ))
        });
        rounded.into_iter().chain(too_large)
    }
}

/// Whether a whole number of this magnitude is rounded to another one.
fn is_rounded(magnitude: u64) -> bool {
    magnitude > MAX_EXACT && magnitude >> magnitude.trailing_zeros() > MAX_EXACT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_that_are_rounded_and_values_that_become_infinite_are_found() {
        let rounded = FloatLoss { rounded: true, too_large: false };
        for samples in [
            Samples::U32(vec![0, 4_000_000_001]),
            Samples::I32(vec![-16_777_217]),
            Samples::U64(vec![(1 << 60) + 1]),
            Samples::I64(vec![i64::MIN + 1]),
        ] {
            assert_eq!(FloatLoss::of(&samples), rounded, "{samples:?}");
        }
        for samples in [
            Samples::U32(vec![0, 16_777_216, 4_000_000_000]),
            Samples::I64(vec![i64::MIN, -3]),
            Samples::U16(vec![u16::MAX]),
            Samples::F32(vec![0.1, f32::INFINITY]),
            Samples::F64(vec![0.1, 1e38, f64::NAN, f64::INFINITY]),
        ] {
            assert_eq!(FloatLoss::of(&samples), FloatLoss::default(), "{samples:?}");
        }
        let mut both = FloatLoss::of(&Samples::F64(vec![-1e39]));
        assert_eq!(both, FloatLoss { rounded: false, too_large: true });
        both.merge(rounded);
        let notes: Vec<String> = both.notes().map(|note| note.to_string()).collect();
        assert!(notes.len() == 2 && notes[0].contains("16777216") && notes[1].contains("3.4e38"), "{notes:?}");
        assert_eq!(FloatLoss::default().notes().count(), 0);
    }
}
