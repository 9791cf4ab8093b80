//! Errors of reading pickles.

use std::io;

/// Why a pickle is not read.
#[derive(Debug, thiserror::Error)]
pub enum PickleError {
    /// The bytes violate the format.
    #[error("malformed pickle at byte {at}: {what}")]
    Malformed {
        /// Position in the input in bytes.
        at: u64,
        /// The violation, as a clause.
        what: &'static str,
    },
    /// An opcode that writers of data do not use.
    #[error("the pickle has the opcode 0x{opcode:02x} at byte {at}, which is not accepted")]
    Opcode {
        /// Position in the input in bytes.
        at: u64,
        /// The opcode's code, as in Python's `pickletools`.
        opcode: u8,
    },
    /// A class or function that the caller does not accept.
    #[error("the pickle refers to the Python object {module}.{name}, which is not accepted")]
    Global {
        /// Full name of the Python module.
        module: String,
        /// Name of the class or function inside the module.
        name: String,
    },
    /// The pickle exceeds one of the limits of this crate.
    #[error("the pickle has more than the limit of {limit} {what}")]
    OverLimit {
        /// What is counted, as a plural noun.
        what: &'static str,
        /// The maximum number that is accepted.
        limit: u64,
    },
    /// The input cannot be read.
    #[error("reading the pickle failed: {0}")]
    Io(#[from] io::Error),
}
