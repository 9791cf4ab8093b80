//! Errors: settings out of range, and cancellation.

use cytoscope_volume::VolumeError;

/// Why a simulation was refused or cancelled.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// A text is not the name of a kind of stack.
    #[error("'{text}' is not a kind of stack: expected nuclei, cells or labelfree")]
    UnknownKind {
        /// Text that was given as the kind.
        text: String,
    },
    /// A shape has a length of zero.
    #[error("shape {shape_zyx:?} (Z, Y, X) has no voxels: every length must be at least 1")]
    EmptyShape {
        /// Requested lengths along Z, Y, X in voxels.
        shape_zyx: [usize; 3],
    },
    /// A shape exceeds the limit of voxels.
    #[error("shape {shape_zyx:?} (Z, Y, X) is too large: at most {limit} voxels are supported; choose a smaller shape")]
    TooManyVoxels {
        /// Requested lengths along Z, Y, X in voxels.
        shape_zyx: [usize; 3],
        /// [`MAX_VOXELS`](crate::MAX_VOXELS).
        limit: usize,
    },
    /// Too many objects: the diameter is too small for the field, or the count is too large.
    #[error("{wanted} objects are too many: at most {limit} are supported; choose larger objects or a smaller field")]
    TooManyObjects {
        /// Number of objects that result from the settings.
        wanted: u64,
        /// [`MAX_OBJECTS`](crate::MAX_OBJECTS).
        limit: usize,
    },
    /// A setting is outside its range.
    #[error("{what} is {got}; expected {expected}")]
    BadSetting {
        /// Name of the setting's field.
        what: &'static str,
        /// The valid range.
        expected: String,
        /// The value given.
        got: String,
    },
    /// The progress callback returned `false`.
    #[error("the simulation was cancelled")]
    Cancelled,
    /// An array could not be created.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}
