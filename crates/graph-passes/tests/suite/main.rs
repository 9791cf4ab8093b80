//! Shape inference, passes, analyses, quantization and limits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod analysis;
mod budget;
mod common;
mod infer;
#[path = "../../../onnx/tests/suite/onnxruntime.rs"]
mod onnxruntime;
mod over_slices;
mod passes;
mod quantize;
mod quantized_nets;
mod upsampling;
