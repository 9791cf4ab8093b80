//! Tests of the window: widgets are found by accessible names and driven by clicks and keys, with real files and a real
//! engine process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod accessibility;
mod converting;
mod copies;
mod correct;
mod evaluating;
mod files;
mod fixture;
mod gestures;
mod inputs;
mod kill;
mod measurements;
mod models;
mod predict;
mod profile;
mod profiler;
mod profiler_files;
mod provenance;
mod queue;
mod quit;
mod shell;
#[cfg(target_os = "linux")]
mod snapshots;
mod time_points;
mod tools;
mod training;
mod training_files;
mod training_pictures;
mod training_runs;
mod training_settings;
mod tuning;
mod viewing;
