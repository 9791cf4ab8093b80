//! Stored runs: Chrome traces and reports of any program, as `File > Open run` and `cytoscope profile` read them. No
//! panic, and what is read can be advised on, compared and written again.
#![no_main]
use cytoscope_profile::{Slowdown, StoredRun, advise, compare_operators, compare_stages};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let run = match StoredRun::from_json(data) {
        Ok(run) => run,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let operators = run.operators();
    let _ = (advise(&run.record.facts, &operators), Slowdown::of(&run.spans), run.growing_spans());
    let _ = (compare_stages(&run.record.stages, &run.record.stages), compare_operators(&operators, &operators));
    let mut text = Vec::new();
    run.write_trace(&mut text).expect("the trace is written to memory");
    serde_json::from_slice::<serde_json::Value>(&text).expect("the trace is JSON");
});
