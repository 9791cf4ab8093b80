//! The window as its users meet it: found by accessible names, driven by clicks and keys, on files and a real engine process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod correct;
mod desk;
mod files;
mod hand;
mod kill;
mod look;
mod measured;
mod names;
mod predict;
mod profile;
mod queue;
mod quit;
mod shell;
#[cfg(target_os = "linux")]
mod snapshots;
mod tools;
mod training;
