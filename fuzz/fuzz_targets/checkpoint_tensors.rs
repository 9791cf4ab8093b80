//! The tensor file of a checkpoint (safetensors). No panic, and no more memory than the file needs. (`checkpoint` gets
//! here only with a valid `training.json`.)
#![no_main]
use cytoscope_train::check_checkpoint_tensors;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    let _ = check_checkpoint_tensors(Path::new("tensors-1.safetensors"), data);
});
