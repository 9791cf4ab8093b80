//! The Chrome trace format: complete events (`ph: "X"`) and counters (`ph: "C"`), times in µs.

use crate::{MemoryMark, RunRecord, SpanRecord};
use serde_json::{Value, json};
use std::io::{self, Write};

/// Returns spans and memory marks as a Chrome trace (`traceEvents`), which Perfetto opens. `dropped` is the number of
/// spans that were not stored.
pub fn chrome_trace(spans: &[SpanRecord], marks: &[MemoryMark], dropped: u64) -> Value {
    let events: Vec<Value> = events(spans, marks).collect();
    json!({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"spans_not_kept": dropped}})
}

/// Writes what [`chrome_trace`] returns, with the record of the run in `otherData.run`, event by event: a long trace
/// takes many times its size as one value.
///
/// # Errors
/// Errors of the writer.
pub(crate) fn write_trace(
    out: &mut dyn Write,
    spans: &[SpanRecord],
    marks: &[MemoryMark],
    dropped: u64,
    run: &RunRecord,
) -> io::Result<()> {
    out.write_all(b"{\"traceEvents\":[")?;
    for (number, event) in events(spans, marks).enumerate() {
        out.write_all(if number == 0 { &b"\n"[..] } else { &b",\n"[..] })?;
        serde_json::to_writer(&mut *out, &event)?;
    }
    out.write_all(b"\n],\"displayTimeUnit\":\"ms\",\"otherData\":")?;
    serde_json::to_writer(&mut *out, &json!({"spans_not_kept": dropped, "run": run}))?;
    out.write_all(b"}\n")
}

fn events<'a>(spans: &'a [SpanRecord], marks: &'a [MemoryMark]) -> impl Iterator<Item = Value> + 'a {
    let process = json!({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "cytoscope"}});
    std::iter::once(process).chain(spans.iter().map(span_event)).chain(marks.iter().flat_map(mark_events))
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
        json!({
            "name": "resident memory", "ph": "C", "ts": mark.at_us, "pid": 1, "args": {"bytes": mark.resident_bytes},
        }),
        json!({
            "name": mark.label, "cat": "memory", "ph": "i", "s": "p", "ts": mark.at_us, "pid": 1, "tid": 1,
            "args": {"resident_bytes": mark.resident_bytes},
        }),
    ]
}
