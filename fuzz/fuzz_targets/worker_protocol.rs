//! Lines between the window and its engine process. No panic, bounded memory, and what is read can be written again.
//! No job is run.
#![no_main]
use cytoscope_worker::{Reply, parse_request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for line in data.split(|b| *b == b'\n') {
        match std::str::from_utf8(line).map(parse_request) {
            Ok(Ok(request)) => _ = serde_json::to_string(&request).expect("a request as JSON"),
            Ok(Err(error)) => assert!(!error.to_string().is_empty()),
            Err(_) => {}
        }
        if let Ok(reply) = serde_json::from_slice::<Reply>(line) {
            serde_json::to_string(&reply).expect("a reply as JSON");
        }
    }
});
