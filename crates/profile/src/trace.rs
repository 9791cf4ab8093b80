//! The Chrome trace format: complete events (`ph: "X"`) and counters (`ph: "C"`), times in µs.

use crate::{MemoryMark, SpanRecord};
use serde_json::{Value, json};

/// Returns spans and memory marks as a Chrome trace (`traceEvents`), which Perfetto opens. `dropped` is the number of
/// spans that were not stored.
pub fn chrome_trace(spans: &[SpanRecord], marks: &[MemoryMark], dropped: u64) -> Value {
    let mut events = vec![json!({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "cytoscope"}})];
    for span in spans {
        let mut args = serde_json::Map::new();
        for (key, value) in [("bytes", span.bytes), ("voxels", span.voxels), ("macs", span.macs)] {
            if value > 0 {
                args.insert(key.to_owned(), value.into());
            }
        }
        events.push(json!({
            "name": span.name, "cat": span.stage.name(), "ph": "X", "ts": span.start_us, "dur": span.duration_us,
            "pid": 1, "tid": span.thread + 1, "args": args,
        }));
    }
    for mark in marks {
        events.push(json!({
            "name": "resident memory", "ph": "C", "ts": mark.at_us, "pid": 1, "args": {"bytes": mark.resident_bytes},
        }));
        events.push(json!({
            "name": mark.label, "cat": "memory", "ph": "i", "s": "p", "ts": mark.at_us, "pid": 1, "tid": 1,
            "args": {"resident_bytes": mark.resident_bytes},
        }));
    }
    json!({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"spans_not_kept": dropped}})
}
