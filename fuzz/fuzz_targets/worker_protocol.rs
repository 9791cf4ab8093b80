//! Lines between the window and its engine process. No panic, bounded memory, and what is read can be written again.
//! No job is run.
#![no_main]
use cytoscope_pipeline::worker::{Reply, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for line in data.split(|b| *b == b'\n') {
        if let Ok(request) = serde_json::from_slice::<Request>(line) {
            serde_json::to_string(&request).expect("a request as JSON");
        }
        if let Ok(reply) = serde_json::from_slice::<Reply>(line) {
            serde_json::to_string(&reply).expect("a reply as JSON");
        }
    }
});
