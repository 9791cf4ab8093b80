//! Provenance records, as `predict --rerun` and the check of a file's origin read them. No panic, and no job starts
//! with invalid numbers.
#![no_main]
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::job_record::{AnyRecord, read_any};
use cytoscope_pipeline::{Context, ConvertJob, provenance};
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;

fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("cytoscope-fuzz-provenance-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    })
}

fuzz_target!(|data: &[u8]| {
    let path = folder().join("x_provenance.json");
    std::fs::write(&path, data).expect("writing");
    if let Ok(AnyRecord::Job(record)) = read_any(&path) {
        let _ = record.job_again::<ConvertJob>(&path, None, Default::default());
    }
    let Ok(record) = provenance::read(&path) else { return };
    for output in &record.outputs {
        let _ = output.matches(&folder().join("nothing"));
    }
    // Nothing is predicted, because the inputs do not exist.
    let mut job = record.job;
    job.inputs = vec![folder().join("no such stack.tif")];
    job.out = folder().join("out");
    job.model = "no such model".to_owned();
    assert!(job.run(&Context::default(), &Devices::cpu_only()).is_err());
});
