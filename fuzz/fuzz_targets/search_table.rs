//! Tables of the trials of a search for training settings (CSV). No panic, and memory in proportion to the table.
#![no_main]
use cytoscope_pipeline::{is_search_table, read_search_table};
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Returns the path of the table of this process.
fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| std::env::temp_dir().join(format!("cytoscope-fuzz-search-{}.csv", std::process::id())))
}

fuzz_target!(|data: &[u8]| {
    std::fs::write(path(), data).expect("writing the table");
    match read_search_table(path()) {
        Ok(table) => {
            assert!(is_search_table(path()));
            assert!(table.trials.iter().all(|trial| trial.settings.len() == table.keys.len()));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
