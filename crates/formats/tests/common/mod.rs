//! Helpers of the integration tests: where the real files and Python are, and a report of the skip if they are missing.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod zarr;

use cytoscope_testkit::{shared_data, skip};
use std::path::{Path, PathBuf};

/// The folder of real TIFF files, or `None` with a report of the skip if it is missing.
pub fn tiff_folder() -> Option<PathBuf> {
    shared_data("tiff/manifest.json").and_then(|p| p.parent().map(Path::to_owned))
}

/// A Python with tifffile, or `None` with a report of the skip if there is none.
pub fn python() -> Option<PathBuf> {
    python_with("tifffile, imagecodecs, numpy")
}

/// A Python that can import these modules, or `None` with a report of the skip if there is none.
pub fn python_with(modules: &str) -> Option<PathBuf> {
    let python = std::env::var_os("CYTOSCOPE_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let works = std::process::Command::new(&python)
        .args(["-c", &format!("import {modules}")])
        .output()
        .is_ok_and(|o| o.status.success());
    if works {
        return Some(python);
    }
    skip(format!("no python with {modules} found (set CYTOSCOPE_PYTHON)"));
    None
}

/// Runs a Python script with arguments and returns its output.
pub fn run_python(python: &Path, script: &str, args: &[&str]) -> String {
    let out = std::process::Command::new(python).arg("-c").arg(script).args(args).output().expect("python runs");
    assert!(out.status.success(), "python failed:\n{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("python prints text")
}
