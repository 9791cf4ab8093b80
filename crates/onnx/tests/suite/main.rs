//! Files that are read, written and refused, and the table of operators.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../../../graph-passes/tests/suite/common.rs"]
mod common;
mod composed;
mod documents;
mod export;
mod files;
mod networks;
mod onnxruntime;
