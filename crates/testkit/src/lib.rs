//! Helpers shared by the tests of several crates, and the list of tests that were skipped on this machine, with the
//! reasons.
//!
//! Rust's test runner counts a test that returns early as passed. A test that needs data, a program or a device that is
//! absent therefore calls [`skip`] before it returns, or before it continues without that part. `cargo xtask test`
//! lists all reports in its summary. A test that never runs by default is marked `#[ignore = "reason"]` instead.
//! [`chrome_trace`] checks traces against the format that Chrome and Perfetto read.
#![forbid(unsafe_code)]

pub mod chrome_trace;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// The environment variable that names the file that [`skip`] appends to.
pub const SKIPPED_VARIABLE: &str = "CYTOSCOPE_SKIPPED";

/// The environment variable that names the folder of the shared test data.
const SHARED_DATA: &str = "CYTOSCOPE_SHARED_DATA";

/// The lines that this process has reported.
static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Reports that the calling test is skipped, entirely or in part.
///
/// The report is the line `program::test: reason`. It is printed to the standard error, past the capture of the test
/// runner, and appended to the file that [`SKIPPED_VARIABLE`] names, if it is set. Repeated reports are ignored.
///
/// # Panics
///
/// If the file cannot be written, so that no skip is lost.
#[allow(clippy::panic, reason = "a test fails by panicking")]
pub fn skip(reason: impl Display) {
    let line = line(&program(), std::thread::current().name(), &reason.to_string());
    if !REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
        return;
    }
    // Printing may fail; the file counts.
    let _ = writeln!(std::io::stderr(), "SKIPPED {line}");
    if let Some(file) = std::env::var_os(SKIPPED_VARIABLE).filter(|v| !v.is_empty()) {
        let file = Path::new(&file);
        append(file, &line).unwrap_or_else(|e| panic!("{} ({SKIPPED_VARIABLE}): {e}", file.display()));
    }
}

/// The name of this test program without the hash that Cargo appends.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    stem.rsplit_once('-').map_or_else(|| stem.clone(), |(name, _)| name.to_owned())
}

/// One report. The test runner names the thread of a test after it, except with `--test-threads=1`.
fn line(program: &str, thread: Option<&str>, reason: &str) -> String {
    let test = thread.filter(|name| *name != "main").unwrap_or("(unnamed test)");
    let reason: String = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{program}::{test}: {reason}")
}

/// Appends a line in one write, so that lines of tests that run at the same time do not mix.
fn append(file: &Path, line: &str) -> std::io::Result<()> {
    OpenOptions::new().append(true).create(true).open(file)?.write_all(format!("{line}\n").as_bytes())
}

/// Returns the names of the files and folders in a folder, sorted.
///
/// # Panics
///
/// If the folder cannot be read.
#[allow(clippy::panic, reason = "a test fails by panicking")]
pub fn file_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let entries = entries.map(|entry| entry.unwrap_or_else(|e| panic!("{}: {e}", folder.display())));
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Returns the path of a file or folder of the shared test data, which is not part of the repository; `None` with a
/// report of the skip if it does not exist. The environment variable `CYTOSCOPE_SHARED_DATA` names another place.
pub fn shared_data(name: &str) -> Option<PathBuf> {
    if_present(outside_folder(SHARED_DATA, "data").join(name), SHARED_DATA)
}

/// Returns the folder of the shared test data, which is not part of the repository; `None` with a report of the skip if it
/// does not exist. The environment variable `CYTOSCOPE_SHARED_DATA` names another place.
pub fn shared_folder() -> Option<PathBuf> {
    if_present(outside_folder(SHARED_DATA, "data"), SHARED_DATA)
}

/// Returns the folder of the networks for benchmarks, like [`shared_folder`]; `CYTOSCOPE_BENCH_MODELS` names another place.
pub fn bench_models() -> Option<PathBuf> {
    const VARIABLE: &str = "CYTOSCOPE_BENCH_MODELS";
    if_present(outside_folder(VARIABLE, "bench/models"), VARIABLE)
}

/// Returns the path of a folder of this name beside the repository, or of the one that an environment variable names.
fn outside_folder(variable: &str, name: &str) -> PathBuf {
    let shared = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    std::env::var_os(variable).map_or_else(shared, PathBuf::from)
}

/// Returns a path if something exists there; otherwise `None`, with a report of the skip that names the environment variable.
fn if_present(path: PathBuf, variable: &str) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    skip(format!("{} does not exist (set {variable})", path.display()));
    None
}

/// Returns a Python interpreter that has these modules, named as in an `import` statement; `None` with a report of the skip
/// if it has not. The environment variable `CYTOSCOPE_PYTHON` names the interpreter.
pub fn python_with(modules: &str) -> Option<PathBuf> {
    let python = std::env::var_os("CYTOSCOPE_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let probe = Command::new(&python).arg("-c").arg(format!("import {modules}")).output();
    if probe.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    skip(format!("{} does not have all of {modules} (set CYTOSCOPE_PYTHON)", python.display()));
    None
}

/// Runs a Python script with these arguments and returns what it prints.
///
/// # Panics
///
/// If the script fails or prints something other than UTF-8.
#[allow(clippy::panic, reason = "a test fails by panicking")]
pub fn run_python<A: AsRef<OsStr>>(python: &Path, script: &str, arguments: &[A]) -> String {
    let output = Command::new(python).arg("-c").arg(script).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{}: {e}", python.display()));
    assert!(output.status.success(), "{} failed:\n{}", python.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap_or_else(|e| panic!("{}: {e}", python.display()))
}

/// Runs a Python script that needs these modules and returns what it prints; `None` with a report of the skip if there is no
/// Python that has them.
///
/// # Panics
///
/// Same as [`run_python`].
pub fn python(modules: &str, script: &str, arguments: &[&Path]) -> Option<String> {
    Some(run_python(&python_with(modules)?, script, arguments))
}

/// Returns `count` reproducible numbers from 0 to 1 (xorshift64).
pub fn uniform(seed: u64, count: usize) -> Vec<f32> {
    let mut next = generator(seed);
    (0..count).map(|_| next()).collect()
}

/// Returns `count` reproducible numbers between −1.5 and 1.5, roughly normal: sums of three uniform ones (xorshift64).
pub fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut next = generator(seed);
    let mut centered = || next() - 0.5;
    (0..count).map(|_| centered() + centered() + centered()).collect()
}

/// Returns the largest absolute difference of numbers at the same position; infinite if a difference is NaN, which `f64::max`
/// would ignore, or if there are more numbers on one side.
pub fn largest_difference<T: Copy + Into<f64>>(found: &[T], expected: &[T]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let difference = |(found, expected): (&T, &T)| {
        let (found, expected): (f64, f64) = ((*found).into(), (*expected).into());
        (found - expected).abs()
    };
    let differences = found.iter().zip(expected).map(difference);
    differences.fold(0.0, |largest, one| if one.is_nan() { f64::INFINITY } else { largest.max(one) })
}

/// Returns a generator of numbers from 0 to 1.
fn generator(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32
    }
}

/// A writer into memory that can be read while another thread writes; clones share their content.
#[derive(Clone, Default)]
pub struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl SharedBuffer {
    /// Returns a copy of all bytes written so far.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_names_program_test_and_reason_on_one_line() {
        assert_eq!(line("cli", Some("train::resume"), "no GPU:\n none"), "cli::train::resume: no GPU: none");
        assert_eq!(line("cli", Some("main"), "no GPU"), "cli::(unnamed test): no GPU");
        assert_eq!(program(), "cytoscope_testkit");
    }

    #[test]
    fn numbers_are_reproducible_and_in_their_range() {
        let numbers = uniform(3, 1000);
        assert!(numbers == uniform(3, 1000) && numbers != uniform(4, 1000));
        assert!(numbers.iter().all(|v| (0.0..1.0).contains(v)) && numbers.iter().any(|v| *v > 0.9));
        let sum = |three: &[f32]| (three[0] - 0.5) + (three[1] - 0.5) + (three[2] - 0.5);
        assert_eq!(noise(3, 300), numbers.chunks_exact(3).take(300).map(sum).collect::<Vec<f32>>());
    }

    #[test]
    fn a_difference_that_is_nan_or_of_another_length_is_infinite() {
        assert_eq!(largest_difference(&[1.0f32, 2.0, 3.0], &[1.0, 2.5, 2.75]), 0.5);
        assert_eq!(largest_difference::<f64>(&[], &[]), 0.0);
        for (found, expected) in [([f64::NAN, 1.0], [0.0, 1.0]), ([0.0, 1.0], [0.0, f64::NAN])] {
            assert_eq!(largest_difference(&found, &expected), f64::INFINITY);
        }
        assert_eq!(largest_difference(&[1.0f32, 2.0], &[1.0]), f64::INFINITY);
    }

    #[test]
    fn reports_are_appended() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skipped.txt");
        append(&file, "a::b: c").unwrap();
        append(&file, "d::e: f").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a::b: c\nd::e: f\n");
    }
}
