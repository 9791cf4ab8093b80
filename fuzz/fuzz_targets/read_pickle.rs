//! Pickles in which every class and function is accepted, so that reading gets further than in a checkpoint or a
//! `_seg.npy` file. No panic, and memory in proportion to the bytes.
#![no_main]

use cytoscope_pickle::{Pickle, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(pickle) = Pickle::read(data, &|_, _| true) else { return };
    match pickle.value(pickle.root()) {
        Value::Bytes(range) => assert!(range.start <= range.end && range.end <= data.len() as u64),
        Value::Dict(entries) => {
            for (key, _) in entries {
                if let Some(text) = pickle.text(*key) {
                    assert!(pickle.entry(pickle.root(), text).is_some(), "an entry is found by its key");
                }
            }
        }
        _ => {}
    }
    // If no name is accepted, a name is the only possible reason to refuse a pickle that was read before.
    if let Err(error) = Pickle::read(data, &|_, _| false) {
        assert!(matches!(error, cytoscope_pickle::PickleError::Global { .. }), "{error}");
    }
});
