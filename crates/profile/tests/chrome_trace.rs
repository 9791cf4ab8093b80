//! Traces are valid in the format that Chrome and Perfetto read, whatever was recorded.
#![allow(clippy::unwrap_used, reason = "a test")]

use cytoscope_profile::{
    EngineMemory, MemoryMark, MemorySample, Recorder, RunFacts, RunRecord, SpanRecord, Stage, StoredRun,
};
use cytoscope_testkit::chrome_trace::problems;
use serde_json::Value;
use std::time::Duration;

fn span(name: &'static str, thread: usize, start_us: f64, duration_us: f64) -> SpanRecord {
    SpanRecord { thread, bytes: 1, macs: 2, ..SpanRecord::new(Stage::Compute, name, start_us, duration_us) }
}

/// Returns the track of a span of a trace.
fn track(trace: &Value, name: &str) -> u64 {
    let events = trace["traceEvents"].as_array().unwrap();
    events.iter().find(|event| event["name"] == name).unwrap()["tid"].as_u64().unwrap()
}

#[test]
fn a_recorded_trace_is_valid_and_holds_every_phase() {
    let recorder = Recorder::new();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let _outer = recorder.span(Stage::Compute, "tile");
                recorder.span(Stage::Op, "Conv a").macs(5).bytes(7).finish();
                // Timed elsewhere: longer than the span around it.
                recorder.add(Stage::Decode, "strips", Duration::from_secs(3), 9);
                recorder.span(Stage::Op, "Conv \"b\"\n").finish();
            });
        }
    });
    recorder.mark_memory("end");
    let engines = EngineMemory { arena_bytes: Some(5), device: None };
    drop(recorder.sample_memory(Duration::from_millis(1), move || engines));
    let record = RunRecord::new("cytoscope 0", "predict", &recorder, RunFacts::default());
    let mut text = Vec::new();
    recorder.write_trace(&record, &mut text).unwrap();
    let trace: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(problems(&trace), Vec::<String>::new());
    for phase in ["X", "C", "i", "M"] {
        assert!(trace["traceEvents"].as_array().unwrap().iter().any(|event| event["ph"] == phase), "no {phase}");
    }
}

#[test]
fn spans_that_overlap_are_on_tracks_of_their_own_and_keep_their_thread() {
    let spans = vec![
        span("inner", 0, 2.0, 3.0),
        span("outer", 0, 1.0, 9.0),
        span("late", 0, 8.0, 6.0),
        span("later", 0, 9.0, 7.0),
        span("after", 0, 20.0, 1.0),
        span("other thread", 1, 1.0, 9.0),
    ];
    let trace = cytoscope_profile::chrome_trace(&spans, &[], 0);
    assert_eq!(problems(&trace), Vec::<String>::new());
    let tracks: Vec<u64> =
        ["outer", "inner", "after", "late", "later", "other thread"].map(|name| track(&trace, name)).to_vec();
    assert_eq!(tracks, [1, 1, 1, 3, 5, 2]);
    let read = StoredRun::from_json(trace.to_string().as_bytes()).unwrap();
    assert_eq!(read.spans, spans);
}

/// The sizes are such that work growing with the square of a count would take minutes.
#[test]
fn long_traces_are_written_in_linear_time() {
    let count = 100_000u32;
    // Spans of one thread of which none lies inside another one, and samples beside marks.
    let spans: Vec<SpanRecord> =
        (0..count).map(|i| SpanRecord::new(Stage::Op, "a", f64::from(i), f64::from(count) + f64::from(i))).collect();
    let at = |i: u32| f64::from(2 * i);
    let marks = (0..count).map(|i| MemoryMark { label: "m".into(), at_us: at(i), resident_bytes: 1 }).collect();
    let sample = |i: u32| MemorySample { at_us: at(i) + 1.0, resident_bytes: 1, arena_bytes: None, device: None };
    let timeline: Vec<MemorySample> = (0..count).map(sample).collect();
    let record = RunRecord::new("cytoscope 1.0", "predict", &Recorder::off(), RunFacts::default());
    let mut text = Vec::new();
    StoredRun { record, spans, marks, timeline, spans_not_kept: 0 }.write_trace(&mut text).unwrap();
    let read = StoredRun::from_json(&text).unwrap();
    assert_eq!((read.spans.len(), read.timeline.len()), (count as usize, 2 * count as usize));
    assert!(read.spans.iter().all(|span| span.thread == 0));
}
