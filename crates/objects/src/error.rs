//! What can go wrong with objects.

/// Sizes or parameters that do not fit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ObjectsError {
    /// A volume whose length is not the product of its shape.
    #[error("{what} has {got} voxels, but shape {shape_zyx:?} takes {expected}")]
    Length {
        /// The volume.
        what: &'static str,
        /// Shape Z, Y, X.
        shape_zyx: [usize; 3],
        /// Voxels the shape takes.
        expected: usize,
        /// Voxels met.
        got: usize,
    },
    /// Two images that should be of one shape.
    #[error("the images differ in shape: {a:?} and {b:?}")]
    Shapes {
        /// Shape of one.
        a: Vec<usize>,
        /// Shape of the other.
        b: Vec<usize>,
    },
    /// A parameter outside its range.
    #[error("{what} is {got}, expected {expected}")]
    Parameter {
        /// The parameter.
        what: &'static str,
        /// Its range.
        expected: &'static str,
        /// The value met.
        got: String,
    },
    /// An option outside its range.
    #[error("{name} is {got}, expected {low} to {high}{unit}")]
    Option {
        /// Name of the option, as in JSON.
        name: &'static str,
        /// The value met.
        got: f64,
        /// Least value.
        low: f64,
        /// Greatest value.
        high: f64,
        /// Unit with a leading blank, or empty.
        unit: &'static str,
    },
    /// More objects than labels can number.
    #[error("more than {limit} objects: raise the threshold or the least volume")]
    TooManyObjects {
        /// Most objects that can be told apart.
        limit: u32,
    },
}

/// Checks that a volume fills its shape.
pub(crate) fn check_len(what: &'static str, got: usize, shape_zyx: [usize; 3]) -> Result<(), ObjectsError> {
    let expected = shape_zyx.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).unwrap_or(usize::MAX);
    if got == expected { Ok(()) } else { Err(ObjectsError::Length { what, shape_zyx, expected, got }) }
}
