//! Errors of preprocessing steps: what was given and what was expected.

/// Why a preprocessing step was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PreprocessError {
    /// No step has this name.
    #[error("unknown preprocessing step \"{name}\": expected one of {expected}")]
    UnknownStep {
        /// The name that was given.
        name: String,
        /// The names of all steps.
        expected: String,
    },
    /// A parameter is unknown, missing, given twice, or has an invalid value.
    #[error("preprocessing step {step}: {problem}; expected {expected}")]
    Parameter {
        /// Name of the step, as in its text.
        step: &'static str,
        /// What was given, as a clause.
        problem: String,
        /// The step's parameters, or the valid values of one.
        expected: String,
    },
    /// A step cannot be applied to the stack.
    #[error("preprocessing step {step}: {problem}; {next_step}")]
    Unfit {
        /// Name of the step, as in its text.
        step: &'static str,
        /// Property of the stack that does not fit.
        problem: String,
        /// What the user can do, as a clause.
        next_step: String,
    },
    /// A step has lengths in µm, but the voxel size of the stack is unknown.
    #[error("preprocessing step {step}: {problem}; {otherwise}set the voxel size")]
    UnknownVoxelSize {
        /// Name of the step, as in its text.
        step: &'static str,
        /// What needs the voxel size, as a clause.
        problem: String,
        /// What the user can do instead, as a clause that ends in `, or `; empty if there is nothing else.
        otherwise: &'static str,
    },
    /// There are too many steps.
    #[error("{count} preprocessing steps were given; expected at most {max}")]
    TooMany {
        /// Number of steps that were given.
        count: usize,
        /// Maximum number of steps, [`crate::MAX_STEPS`].
        max: usize,
    },
}

impl PreprocessError {
    pub(crate) fn parameter(step: &'static str, problem: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Parameter { step, problem: problem.into(), expected: expected.into() }
    }

    pub(crate) fn unfit(step: &'static str, problem: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self::Unfit { step, problem: problem.into(), next_step: next_step.into() }
    }

    pub(crate) fn unknown_voxel_size(step: &'static str, problem: impl Into<String>, otherwise: &'static str) -> Self {
        Self::UnknownVoxelSize { step, problem: problem.into(), otherwise }
    }
}
