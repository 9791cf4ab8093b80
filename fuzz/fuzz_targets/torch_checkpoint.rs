//! Weight files of PyTorch: the bytes themselves, and as the pickle of a valid zip with two storages. No panic, and
//! memory in proportion to the file.
#![no_main]
#[path = "shared/zip.rs"]
mod zip;

use cytoscope_checkpoint_import::Checkpoint;
use libfuzzer_sys::fuzz_target;
use zip::zip;

fuzz_target!(|data: &[u8]| {
    let files: [(&str, &[u8]); 3] = [("a/data.pkl", data), ("a/data/0", &[0x3f; 64]), ("a/data/1", &[])];
    for bytes in [data, zip(&files).as_slice()] {
        let Ok(checkpoint) = Checkpoint::from_bytes(bytes) else { continue };
        for tensor in checkpoint.tensors().values() {
            let _ = tensor.to_tensor();
        }
    }
});
