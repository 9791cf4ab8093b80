//! The Chrome trace format: complete events (`ph: "X"`) and counters (`ph: "C"`), times in µs.

use crate::{MemoryMark, MemorySample, RunRecord, SpanRecord};
use serde_json::{Value, json};
use std::io::{self, Write};

/// Name of the counter of the process' memory.
pub(crate) const RESIDENT_COUNTER: &str = "resident memory";
/// Name of the counter of the engine's arenas.
pub(crate) const ARENA_COUNTER: &str = "engine arena";

/// The memory of a run: labelled moments, and samples in between.
#[derive(Clone, Copy)]
pub(crate) struct TracedMemory<'a> {
    pub marks: &'a [MemoryMark],
    pub timeline: &'a [MemorySample],
}

/// Returns spans and memory marks as a Chrome trace (`traceEvents`), which Perfetto opens. `dropped` is the number of
/// spans that were not stored.
pub fn chrome_trace(spans: &[SpanRecord], marks: &[MemoryMark], dropped: u64) -> Value {
    whole_trace(spans, TracedMemory { marks, timeline: &[] }, dropped)
}

/// Like [`chrome_trace`], with the samples of the memory.
pub(crate) fn whole_trace(spans: &[SpanRecord], memory: TracedMemory<'_>, dropped: u64) -> Value {
    let events: Vec<Value> = events(spans, memory).collect();
    json!({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"spans_not_kept": dropped}})
}

/// Writes what [`whole_trace`] returns, with the record of the run in `otherData.run`, event by event: a long trace
/// takes many times its size as one value.
///
/// # Errors
/// Errors of the writer.
pub(crate) fn write_trace(
    out: &mut dyn Write,
    spans: &[SpanRecord],
    memory: TracedMemory<'_>,
    dropped: u64,
    run: &RunRecord,
) -> io::Result<()> {
    out.write_all(b"{\"traceEvents\":[")?;
    for (number, event) in events(spans, memory).enumerate() {
        out.write_all(if number == 0 { &b"\n"[..] } else { &b",\n"[..] })?;
        serde_json::to_writer(&mut *out, &event)?;
    }
    out.write_all(b"\n],\"displayTimeUnit\":\"ms\",\"otherData\":")?;
    serde_json::to_writer(&mut *out, &json!({"spans_not_kept": dropped, "run": run}))?;
    out.write_all(b"}\n")
}

fn events<'a>(spans: &'a [SpanRecord], memory: TracedMemory<'a>) -> impl Iterator<Item = Value> + 'a {
    let process = json!({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "cytoscope"}});
    std::iter::once(process)
        .chain(spans.iter().map(span_event))
        .chain(memory.marks.iter().flat_map(mark_events))
        .chain(memory.timeline.iter().flat_map(sample_events))
}

/// Returns a counter at one moment.
fn counter(name: &str, at_us: f64, bytes: u64) -> Value {
    json!({"name": name, "ph": "C", "ts": at_us, "pid": 1, "args": {"bytes": bytes}})
}

/// Returns the counters of a sample.
fn sample_events(sample: &MemorySample) -> impl Iterator<Item = Value> + use<> {
    let resident = counter(RESIDENT_COUNTER, sample.at_us, sample.resident_bytes);
    let arena = sample.arena_bytes.map(|bytes| counter(ARENA_COUNTER, sample.at_us, bytes));
    std::iter::once(resident).chain(arena)
}

fn span_event(span: &SpanRecord) -> Value {
    let mut args = serde_json::Map::new();
    for (key, value) in [("bytes", span.bytes), ("voxels", span.voxels), ("macs", span.macs)] {
        if value > 0 {
            args.insert(key.to_owned(), value.into());
        }
    }
    json!({
        "name": span.name, "cat": span.stage.name(), "ph": "X", "ts": span.start_us, "dur": span.duration_us,
        "pid": 1, "tid": span.thread + 1, "args": args,
    })
}

/// Returns the counter of the resident memory and the labelled instant.
fn mark_events(mark: &MemoryMark) -> [Value; 2] {
    [
        counter(RESIDENT_COUNTER, mark.at_us, mark.resident_bytes),
        json!({
            "name": mark.label, "cat": "memory", "ph": "i", "s": "p", "ts": mark.at_us, "pid": 1, "tid": 1,
            "args": {"resident_bytes": mark.resident_bytes},
        }),
    ]
}
