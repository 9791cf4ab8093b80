//! Predictions in memory and from files, in tiles or continued; calibration; engines that agree; and the bundled models.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod bundled_models;
mod calibration;
mod common;
mod conformance;
mod continued;
#[path = "../../../onnx/tests/corpus/mod.rs"]
mod corpus;
mod fixture;
mod in_memory;
mod input_tensors;
mod tiling;
