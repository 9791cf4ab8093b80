//! Descriptions of networks beside their weights: arguments of MONAI's networks and plans of nnU-Net. No panic, and a network
//! that is built is valid.
//!
//! The input is JSON up to a zero byte, then a weight file.
#![no_main]
use cytoscope_checkpoint_import::{Architecture, Checkpoint, Plans};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let (json, rest) = data.split_at(end);
    let arguments: Value = serde_json::from_slice(json).unwrap_or_default();
    for configuration in ["2d", "3d_fullres"] {
        let _ = Plans::read(&arguments, configuration);
    }
    let Ok(checkpoint) = Checkpoint::from_bytes(rest.get(1..).unwrap_or_default()) else { return };
    let requested = Architecture::ALL.map(Some);
    for architecture in std::iter::once(None).chain(requested) {
        match checkpoint.network(architecture, &arguments) {
            Ok(imported) => imported.graph.validate().expect("a network that was built is valid"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});
