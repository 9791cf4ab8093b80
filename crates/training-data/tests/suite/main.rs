//! Pairs of images and targets are found, checked, sampled and loaded.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod check;
mod check_labels;
mod common;
mod find;
mod find_channels;
mod find_tables;
mod loader;
mod real;
mod sampler;
mod sampler_channels;
mod sampler_resampling;
mod sampler_weights;
