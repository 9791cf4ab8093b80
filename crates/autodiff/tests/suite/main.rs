//! Gradients, training steps and quantization-aware training.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../../../graph-passes/tests/suite/common.rs"]
mod common;
mod fake_quantize;
mod gradients;
#[path = "../../../graph-passes/tests/suite/quantized_nets.rs"]
mod quantized_nets;
mod training;
