//! Tests of the built program, command by command, as users run it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod accuracy;
mod advice;
mod advice_gpu;
mod bench;
#[cfg(unix)]
mod bench_branches;
mod bench_resume;
mod bioimageio;
mod common;
mod diameter;
mod evaluate;
mod failures;
mod help;
mod hostile;
mod images;
mod import_networks;
mod log;
mod memory;
mod mesh;
mod models;
mod nifti;
mod null_cuda;
mod odd_inputs;
mod positions;
mod predict;
mod predict_zarr;
mod preprocess;
mod profile;
mod provenance;
mod quantize;
mod quantized_packages;
mod reporting;
mod resume;
mod search;
mod segment;
mod simulate;
mod tables;
mod train;
mod train_channels;
mod train_onnx;
mod train_pictures;
mod train_start;
mod tune;
mod upload;
mod worker;
