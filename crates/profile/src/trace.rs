//! The Chrome trace format: complete events (`ph: "X"`), counters (`ph: "C"`), instants (`ph: "i"`) and metadata
//! (`ph: "M"`), times in µs.
//!
//! Complete events of one track must nest. Spans of one thread may overlap, because some are timed elsewhere and only
//! their ends are known; such a span is written on a further track of its thread ([`tracks`]).

use crate::{MemoryMark, MemorySample, RunRecord, SpanRecord};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, Write};

/// Name of the counter of the process' memory.
pub(crate) const RESIDENT_COUNTER: &str = "resident memory";
/// Name of the counter of the engine's arenas.
pub(crate) const ARENA_COUNTER: &str = "engine arena";
/// Name of the counter of the tensors in device memory.
pub(crate) const DEVICE_ALLOCATED_COUNTER: &str = "device memory allocated";
/// Name of the counter of the memory taken from devices.
pub(crate) const DEVICE_RESERVED_COUNTER: &str = "device memory reserved";

/// The memory of a run: labeled moments, and samples in between.
#[derive(Clone, Copy)]
pub(crate) struct TracedMemory<'a> {
    /// Memory at labeled moments.
    pub marks: &'a [MemoryMark],
    /// Memory at regular intervals.
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
    let tracks = tracks(spans);
    let named: BTreeSet<Track> = tracks.iter().copied().collect();
    std::iter::once(process)
        .chain(named.into_iter().enumerate().flat_map(|(order, track)| track.names(order)))
        .chain(spans.iter().zip(tracks).map(|(span, track)| span_event(span, track)))
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
    let at_us = sample.at_us;
    let device = sample.device.map(|device| {
        [
            counter(DEVICE_ALLOCATED_COUNTER, at_us, device.allocated_bytes),
            counter(DEVICE_RESERVED_COUNTER, at_us, device.reserved_bytes),
        ]
    });
    std::iter::once(resident).chain(arena).chain(device.into_iter().flatten())
}

/// Tolerance in µs when spans are compared: times have a resolution of 1 ns, and sums of floats are rounded.
const ROUNDING_US: f64 = 1e-3;
/// Number of tracks of a thread on which a place for a span is looked for. More are only needed by damaged traces, where each
/// further span gets its own track.
const MAX_SEARCHED_TRACKS: usize = 256;

/// A row of the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Track {
    /// Index of the thread.
    thread: usize,
    /// Number of the track among those of the thread; 0 for the first, which the others overlap.
    number: usize,
    /// Id of the track in the trace.
    tid: usize,
}

impl Track {
    /// Returns the metadata events with the name of the track and its place among all tracks.
    fn names(self, order: usize) -> [Value; 2] {
        let thread = self.thread.saturating_add(1);
        let name = match self.number {
            0 => format!("thread {thread}"),
            number => format!("thread {thread}, overlapping {number}"),
        };
        let tid = self.tid;
        [
            json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": name}}),
            json!({"name": "thread_sort_index", "ph": "M", "pid": 1, "tid": tid, "args": {"sort_index": order}}),
        ]
    }
}

/// Returns the track of each span: the first of its thread on which the span lies inside, after or around all others.
fn tracks(spans: &[SpanRecord]) -> Vec<Track> {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    // Outer spans come before the spans in them.
    order.sort_by(|a, b| {
        let (a, b) = (&spans[*a], &spans[*b]);
        let by_start = a.thread.cmp(&b.thread).then(a.start_us.total_cmp(&b.start_us));
        by_start.then(b.duration_us.total_cmp(&a.duration_us))
    });
    let threads = spans.iter().map(|span| span.thread).max().unwrap_or(0).saturating_add(1);
    let mut all = vec![Track { thread: 0, number: 0, tid: 1 }; spans.len()];
    // For each track of the thread, the ends of the spans that are open, outer ones first.
    let (mut thread, mut open): (usize, Vec<Vec<f64>>) = (0, Vec::new());
    for index in order {
        let span = &spans[index];
        if span.thread != thread {
            thread = span.thread;
            open.clear();
        }
        let end = span.start_us + span.duration_us;
        let fits = |ends: &mut Vec<f64>| {
            while ends.last().is_some_and(|last| *last <= span.start_us + ROUNDING_US) {
                ends.pop();
            }
            ends.last().is_none_or(|last| end <= *last + ROUNDING_US)
        };
        let number = open.iter_mut().take(MAX_SEARCHED_TRACKS).position(fits).unwrap_or_else(|| {
            open.push(Vec::new());
            open.len() - 1
        });
        open[number].push(end);
        let tid = number.saturating_mul(threads).saturating_add(thread).saturating_add(1);
        all[index] = Track { thread, number, tid };
    }
    all
}

fn span_event(span: &SpanRecord, track: Track) -> Value {
    let mut args = serde_json::Map::new();
    if track.number > 0 {
        args.insert("thread".to_owned(), span.thread.into());
    }
    for (key, value) in [("bytes", span.bytes), ("voxels", span.voxels), ("macs", span.macs)] {
        if value > 0 {
            args.insert(key.to_owned(), value.into());
        }
    }
    if let Some(precision) = span.precision {
        args.insert("precision".to_owned(), precision.name().into());
    }
    if let Some(change) = span.resident_change_bytes {
        args.insert("resident_change_bytes".to_owned(), change.into());
    }
    json!({
        "name": span.name, "cat": span.stage.name(), "ph": "X", "ts": span.start_us, "dur": span.duration_us,
        "pid": 1, "tid": track.tid, "args": args,
    })
}

/// Returns the counter of the resident memory and the labeled instant.
fn mark_events(mark: &MemoryMark) -> [Value; 2] {
    [
        counter(RESIDENT_COUNTER, mark.at_us, mark.resident_bytes),
        json!({
            "name": mark.label, "cat": "memory", "ph": "i", "s": "p", "ts": mark.at_us, "pid": 1, "tid": 1,
            "args": {"resident_bytes": mark.resident_bytes},
        }),
    ]
}
