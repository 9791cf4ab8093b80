//! Errors: settings out of range, and cancellation.

use cytoscope_volume::VolumeError;

/// Why a simulation was refused or canceled.
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
    #[error("the simulation was canceled")]
    Canceled,
    /// An array could not be created.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl SimulateError {
    /// Returns what to do next, which is the end of the message; `None` if the message states only what was expected.
    pub fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::TooManyVoxels { .. } => Some("choose a smaller shape"),
            Self::TooManyObjects { .. } => Some("choose larger objects or a smaller field"),
            Self::UnknownKind { .. }
            | Self::EmptyShape { .. }
            | Self::BadSetting { .. }
            | Self::Canceled
            | Self::Volume(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_with_the_next_step_that_they_state() {
        let large = SimulateError::TooManyVoxels { shape_zyx: [9; 3], limit: 8 };
        let many = SimulateError::TooManyObjects { wanted: 9, limit: 8 };
        for error in [large, many] {
            let step = error.next_step().unwrap_or_default();
            assert!(!step.is_empty() && error.to_string().ends_with(&format!("; {step}")), "{error}");
        }
        assert_eq!(SimulateError::Canceled.next_step(), None);
    }
}
