//! Packages in zips that are themselves valid, so that reading gets to their contents (`package` damages the zip). No
//! panic, bounded memory and time.
//!
//! The input is the files of the package, each as its length (16 bits) and its bytes, with the names below.
#![no_main]
#[path = "shared/zip.rs"]
mod zip;

use cytoscope_model_package::Package;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;
use zip::zip;

/// Names of the files, in the order of the input.
const NAMES: [&str; 6] = ["rdf.yaml", "model.onnx", "in.npy", "out.npy", "README.md", "cover.png"];

/// Returns the path of the zip of this process.
fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| std::env::temp_dir().join(format!("cytoscope-fuzz-package-{}.zip", std::process::id())))
}

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    let mut files = Vec::new();
    for name in NAMES {
        let Some((length, tail)) = rest.split_first_chunk::<2>() else { break };
        let (content, tail) = tail.split_at(usize::from(u16::from_le_bytes(*length)).min(tail.len()));
        files.push((name, content));
        rest = tail;
    }
    std::fs::write(path(), zip(&files)).expect("writing the package");
    match Package::open(path()) {
        Ok(package) => {
            drop(package.test_tensors());
            drop(package.upload_findings());
        }
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
});
