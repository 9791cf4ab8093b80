//! Checkpoints of training runs: a JSON file and tensors, as `train --resume` reads them. No panic, bounded memory.
//!
//! The first half of the input (up to a zero byte) is `training.json`, the rest the tensors file that it names.
#![no_main]
use cytoscope_train::check_checkpoint;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;

fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("cytoscope-fuzz-checkpoint-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    })
}

fuzz_target!(|data: &[u8]| {
    let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let (json, rest) = data.split_at(end);
    std::fs::write(folder().join("training.json"), json).expect("writing");
    std::fs::write(folder().join("tensors-1.safetensors"), rest.get(1..).unwrap_or_default()).expect("writing");
    let _ = check_checkpoint(folder());
});
