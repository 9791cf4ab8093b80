//! Passes, analyses, builders, files and limits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod analysis;
mod budget;
mod builders;
mod common;
mod documents;
mod export;
mod files;
mod gradients;
mod layout;
mod networks;
mod packages;
mod passes;
mod quantize;
mod training;
