//! Package descriptions, and whole packages as zips. No panic, bounded memory and time.
#![no_main]
use cytoscope_model_package::Package;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Returns a folder for this process, for a description and a file that is not a model.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("cytoscope-fuzz-package-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("package")).expect("a folder for the package");
        std::fs::write(folder.join("package/model.onnx"), b"").expect("a model");
        folder
    })
}

fuzz_target!(|data: &[u8]| {
    let path = if data.starts_with(b"PK") { folder().join("a.zip") } else { folder().join("package/rdf.yaml") };
    std::fs::write(&path, data).expect("writing the package");
    match Package::open(&path) {
        Ok(package) => {
            drop(package.test_tensors());
            drop(package.upload_findings());
        }
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
});
