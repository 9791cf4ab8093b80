//! Errors of segmentation and scoring.

use cytoscope_volume::number_text;

/// Sizes that do not match, or parameters out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ObjectsError {
    /// The length of a volume is not the product of its shape.
    #[error("{what} has {got} voxels, but shape {shape_zyx:?} needs {expected}")]
    Length {
        /// Name of the volume.
        what: &'static str,
        /// Shape Z, Y, X.
        shape_zyx: [usize; 3],
        /// Number of voxels of the shape.
        expected: usize,
        /// Actual number of voxels.
        got: usize,
    },
    /// Two images of different shapes that must be equal.
    #[error("the images have different shapes: {a:?} and {b:?}")]
    Shapes {
        /// Shape of the first image.
        a: Vec<usize>,
        /// Shape of the second image.
        b: Vec<usize>,
    },
    /// A parameter is out of range.
    #[error("{what} is {got}, expected {expected}")]
    Parameter {
        /// Name of the parameter.
        what: &'static str,
        /// Accepted range.
        expected: &'static str,
        /// Actual value.
        got: String,
    },
    /// An option is out of range.
    #[error("{name} {}", out_of_range(*.got, *.low, *.high, .unit))]
    Option {
        /// Name of the option, as in JSON.
        name: &'static str,
        /// Actual value.
        got: f64,
        /// Smallest accepted value.
        low: f64,
        /// Largest accepted value.
        high: f64,
        /// Unit with a leading blank, or empty.
        unit: &'static str,
    },
    /// There are more objects than label numbers.
    #[error("more than {limit} objects: raise the threshold or the minimum volume")]
    TooManyObjects {
        /// Maximum number of objects.
        limit: u32,
    },
}

impl ObjectsError {
    /// Returns the message about an option that is out of range, with the option's name replaced by `shown(name)`; `None` for
    /// other errors.
    pub fn message_with_option(&self, shown: impl FnOnce(&str) -> String) -> Option<String> {
        let Self::Option { name, got, low, high, unit } = self else { return None };
        Some(format!("{} {}", shown(name), out_of_range(*got, *low, *high, unit)))
    }
}

/// Returns what is wrong with an option, as a predicate.
fn out_of_range(got: f64, low: f64, high: f64, unit: &str) -> String {
    format!("is {}, expected {} to {}{unit}", number_text(got), number_text(low), number_text(high))
}

/// Checks that a volume has as many voxels as its shape.
pub(crate) fn check_len(what: &'static str, got: usize, shape_zyx: [usize; 3]) -> Result<(), ObjectsError> {
    let expected = shape_zyx.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).unwrap_or(usize::MAX);
    if got == expected { Ok(()) } else { Err(ObjectsError::Length { what, shape_zyx, expected, got }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_can_be_shown_with_another_name() {
        let error = ObjectsError::Option { name: "smooth_um", got: -0.5, low: 0.0, high: 1e9, unit: " µm" };
        assert_eq!(error.to_string(), "smooth_um is -0.5, expected 0 to 1e9 µm");
        let shown = error.message_with_option(|name| format!("--{}", name.replace('_', "-")));
        assert_eq!(shown.as_deref(), Some("--smooth-um is -0.5, expected 0 to 1e9 µm"));
        assert_eq!(ObjectsError::TooManyObjects { limit: 1 }.message_with_option(str::to_owned), None);
    }
}
