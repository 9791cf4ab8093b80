//! Opening and replacing files safely.
//!
//! [`read`] opens regular files only, so that a pipe or a device in a folder neither hangs nor feeds the program
//! without end, and opens files of a folder without following links out of it. [`npy`] parses the header of NumPy
//! files, which images and tensors have in common. This crate stands on no other crate of the project. Functions that
//! touch files return [`std::io::Error`], whose inner error is typed where the cause is ours.
#![forbid(unsafe_code)]

pub mod npy;
pub mod read;
