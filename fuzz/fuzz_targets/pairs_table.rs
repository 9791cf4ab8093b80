//! Tables of training pairs (CSV), for both tasks, beside two files that exist. No panic, bounded memory, and every pair
//! that is found exists.
#![no_main]
use cytoscope_training_data::{TrainingTask, find_pairs};
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Returns a folder for this process, with the files that a table may name.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("cytoscope-fuzz-pairs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for name in ["a.tif", "b.tif"] {
            std::fs::write(folder.join(name), b"").expect("a file");
        }
        folder
    })
}

fuzz_target!(|data: &[u8]| {
    let table = folder().join("pairs.csv");
    std::fs::write(&table, data).expect("writing the table");
    for task in [TrainingTask::Segmentation, TrainingTask::LabelFree] {
        match find_pairs(&table, task) {
            Ok(dataset) => {
                for pair in &dataset.pairs {
                    // A path may also be that of a folder with one stack.
                    assert!(pair.image.path.exists() && pair.target.path.exists(), "{pair:?}");
                    assert!(pair.weight.is_finite() && pair.weight >= 0.0, "{pair:?}");
                }
            }
            Err(error) => drop(error.to_string()),
        }
    }
});
