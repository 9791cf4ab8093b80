//! What can go wrong: settings out of range, or the caller saying stop.

use cytoscope_volume::VolumeError;

/// A simulation that was refused or stopped.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// A text that names no kind of stack.
    #[error("'{text}' is not a kind of stack: expected nuclei, cells or labelfree")]
    UnknownKind {
        /// The text met.
        text: String,
    },
    /// A shape with an extent of zero.
    #[error("shape {shape_zyx:?} (Z, Y, X) has no voxels: every extent must be at least 1")]
    EmptyShape {
        /// The shape met.
        shape_zyx: [usize; 3],
    },
    /// A shape over the limit on voxels.
    #[error("shape {shape_zyx:?} (Z, Y, X) is too large: at most {limit} voxels are simulated")]
    TooManyVoxels {
        /// The shape met.
        shape_zyx: [usize; 3],
        /// [`MAX_VOXELS`](crate::MAX_VOXELS).
        limit: usize,
    },
    /// More objects than the limit: too small a diameter for the field, or too large a count.
    #[error("{wanted} objects are too many: at most {limit} are simulated; take larger objects or a smaller field")]
    TooManyObjects {
        /// Objects the settings ask for.
        wanted: u64,
        /// [`MAX_OBJECTS`](crate::MAX_OBJECTS).
        limit: usize,
    },
    /// A setting outside its range.
    #[error("{what}: {got} is outside {expected}")]
    BadSetting {
        /// The setting, as the field is called.
        what: &'static str,
        /// The range it takes.
        expected: String,
        /// The value met.
        got: String,
    },
    /// The progress callback answered `false`.
    #[error("the simulation was cancelled")]
    Cancelled,
    /// The arrays could not be put together.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}
