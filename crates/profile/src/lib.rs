//! Measurement of time and memory: spans, totals by stage, memory marks and Chrome traces.
//!
//! The crate owns the recording of a run, the files that store it, and what is derived from it. A [`Recorder`] is cheap to
//! clone and shared by all threads of a job. A [`Span`] measures the time from its creation to its drop, and carries a
//! [`Stage`], bytes, voxels and multiply-accumulates. Memory marks sample the memory of the process. The table of
//! [`StageTotal`]s and the Chrome trace ([`Recorder::chrome_trace`]), which Perfetto opens, are computed from the same
//! spans. A [`RunRecord`] adds the program, the command and other properties of the run; [`StoredRun`] reads traces and records.
//!
//! [`advise`] suggests what would make a run faster or its result better. [`compare_stages`] compares the times of two
//! runs, [`fn@roofline`] relates operators to the peak rates of the machine, and [`leaks`] finds memory that grows when a
//! job is repeated. The settings that advice names are those of [`cytoscope_storage::setting`] and [`train_setting`].
//!
//! Recording never fails: after [`MAX_SPANS`], single spans are no longer stored (the totals still are), and a poisoned
//! lock is ignored. Reading a stored run fails with a [`RunFileError`] if the file is not JSON, contains no run, or was
//! written by a version with another format.
//!
//! ```
//! use cytoscope_profile::{Recorder, Stage};
//! let recorder = Recorder::new();
//! recorder.span(Stage::Read, "slab 0").bytes(1024).finish();
//! assert_eq!(recorder.totals()[0].bytes, 1024);
//! ```
#![forbid(unsafe_code)]

mod advice;
mod compare;
mod count;
mod device;
mod duration;
mod facts;
pub mod leaks;
mod machine;
mod memory;
mod nested;
mod roofline;
mod run;
mod slowdown;
mod stage;
mod tables;
mod timeline;
mod totals;
mod trace;
pub mod train_setting;

pub use advice::{Advice, AdviceRule, AdvisedSetting, advise, smaller_batch};
pub use compare::{ComparedTime, compare_operators, compare_stages};
pub use count::count_text;
pub use device::{OperatorPrecision, RunDevice, RunPrecision};
pub use duration::{median, rough_time_text, time_text};
pub use facts::{
    DeviceTime, DeviceTraffic, DiameterCertainty, DiameterFacts, InputFacts, Joining, RunFacts, TileFacts, TileReason,
    TrainingFacts,
};
pub use machine::{available_bytes, cpu_name, default_budget_bytes, system_start_secs, total_bytes};
pub use memory::{MemoryMark, bytes_text, peak_resident_bytes, recent_peak_bytes, resident_bytes, restart_peak};
pub use roofline::{Bound, MachinePeak, RooflinePoint, roofline, share_of_peak};
pub use run::{
    MAX_RUN_BYTES, OperatorTotal, RUN_FORMAT, RunFileError, RunRecord, StoredRun, growing_spans, operator_totals,
};
pub use slowdown::Slowdown;
pub use stage::{Stage, StageTotal, computing_share, since};
pub use tables::{ComparedRun, RunTable};
pub use timeline::{DeviceMemory, DeviceMemoryPeak, EngineMemory, MemoryPeak, MemorySample, MemorySampler};
pub use totals::{FIRST_STEP_MARK, SpanTotal, span_totals, step_durations_secs};
pub use trace::chrome_trace;

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of spans stored by one recorder. Operators, of which there are most, take up at most three quarters of
/// them, and leave the others to the stages.
pub const MAX_SPANS: usize = 1_000_000;

/// A finished span: a piece of work with its start and duration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpanRecord {
    /// Kind of work.
    pub stage: Stage,
    /// Name of the work, such as an operator or a file.
    pub name: Cow<'static, str>,
    /// Start in µs since the recorder was created.
    pub start_us: f64,
    /// Duration in µs.
    pub duration_us: f64,
    /// Index of the thread, from 0.
    pub thread: usize,
    /// Bytes read, written or copied; of an operator, the bytes of its inputs, weights and outputs.
    pub bytes: u64,
    /// Number of voxels processed.
    pub voxels: u64,
    /// Number of multiply-accumulates performed.
    pub macs: u64,
    /// Number format of an operator; `None` for other spans, and if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<OperatorPrecision>,
    /// By how much the resident memory of the process changed, in bytes; `None` unless the stage
    /// [measures memory](Stage::measures_memory). What other threads allocate meanwhile is part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_change_bytes: Option<i64>,
}

impl SpanRecord {
    /// Creates the record of a span of thread 0 without bytes, voxels and multiply-accumulates; start and duration in µs.
    pub fn new(stage: Stage, name: impl Into<Cow<'static, str>>, start_us: f64, duration_us: f64) -> Self {
        Self {
            stage,
            name: name.into(),
            start_us,
            duration_us,
            thread: 0,
            bytes: 0,
            voxels: 0,
            macs: 0,
            precision: None,
            resident_change_bytes: None,
        }
    }

    /// Returns the name for display, with the number format of an operator on 8-bit integers.
    pub fn shown_name(&self) -> String {
        device::shown_name(&self.name, self.precision)
    }
}

#[derive(Default)]
struct State {
    spans: Vec<SpanRecord>,
    dropped: u64,
    totals: std::collections::BTreeMap<Stage, StageTotal>,
    marks: Vec<MemoryMark>,
    timeline: Vec<MemorySample>,
    /// Whether further samples of the memory are ignored.
    timeline_ended: bool,
    threads: Vec<std::thread::ThreadId>,
}

/// Collects the spans of one job; clones share the collection.
#[derive(Clone)]
pub struct Recorder {
    start: Instant,
    records: bool,
    keep_spans: bool,
    operators: bool,
    /// [`MAX_SPANS`], except in tests.
    max_spans: usize,
    state: Arc<Mutex<State>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// Creates a recorder that stores all spans, including those of operators, for a trace.
    pub fn new() -> Self {
        let (records, keep_spans, operators) = (true, true, true);
        Self { start: Instant::now(), records, keep_spans, operators, max_spans: MAX_SPANS, state: Arc::default() }
    }

    /// Creates a recorder that stores spans but requests none of operators, because a GPU would have to be synchronized
    /// after each operator.
    pub fn without_operators() -> Self {
        Self { operators: false, ..Self::new() }
    }

    /// Creates a recorder that stores only the totals.
    pub fn totals_only() -> Self {
        Self { keep_spans: false, operators: false, ..Self::new() }
    }

    /// Creates a recorder that stores nothing: spans read no clock and take no lock. It is the reference for what
    /// recording costs.
    pub fn off() -> Self {
        Self { records: false, keep_spans: false, operators: false, ..Self::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether spans of single operators are requested; an engine then waits for each operator to time it.
    pub fn times_operators(&self) -> bool {
        self.operators
    }

    /// Starts a span; it ends when it is dropped or [`Span::finish`]ed.
    pub fn span(&self, stage: Stage, name: impl Into<Cow<'static, str>>) -> Span<'_> {
        let measures_memory = self.keep_spans && stage.measures_memory();
        Span {
            recorder: self,
            stage,
            name: name.into(),
            resident_before_bytes: if measures_memory { memory::span_resident_bytes() } else { None },
            start: if self.records { Instant::now() } else { self.start },
            timed: None,
            nested: (self.records && stage.may_hold_copies()).then(|| nested::open(self.id())),
            bytes: 0,
            voxels: 0,
            macs: 0,
            precision: None,
        }
    }

    /// Records work that was timed elsewhere and ended now.
    pub fn add(&self, stage: Stage, name: impl Into<Cow<'static, str>>, duration: Duration, bytes: u64) {
        let start = Instant::now().checked_sub(duration).unwrap_or(self.start).max(self.start);
        let timed = Some(duration);
        let (recorder, name, resident_before_bytes, precision) = (self, name.into(), None, None);
        let (nested, voxels, macs) = (None, 0, 0);
        drop(Span {
            recorder,
            stage,
            name,
            resident_before_bytes,
            start,
            timed,
            nested,
            bytes,
            voxels,
            macs,
            precision,
        });
    }

    /// Records the current memory of this process.
    pub fn mark_memory(&self, label: impl Into<Cow<'static, str>>) {
        if !self.records {
            return;
        }
        let mark = MemoryMark {
            label: label.into(),
            at_us: self.start.elapsed().as_secs_f64() * 1e6,
            resident_bytes: resident_bytes().unwrap_or(0),
        };
        let mut state = self.state();
        if state.marks.len() < MAX_SPANS {
            state.marks.push(mark);
        }
    }

    /// Returns a number that the clones of this recorder share.
    fn id(&self) -> usize {
        Arc::as_ptr(&self.state) as usize
    }

    /// Returns the totals by stage, in the order of [`Stage`]. Copies between host and device inside the run of a network
    /// count as copies only.
    pub fn totals(&self) -> Vec<StageTotal> {
        self.state().totals.values().cloned().collect()
    }

    /// Returns all spans stored so far.
    pub fn spans(&self) -> Vec<SpanRecord> {
        self.state().spans.clone()
    }

    /// Returns at most `max` stored spans, starting with number `cursor`.
    pub fn spans_since(&self, cursor: usize, max: usize) -> Vec<SpanRecord> {
        self.state().spans.iter().skip(cursor).take(max).cloned().collect()
    }

    /// Returns at most `max` memory marks, starting with number `cursor`.
    pub fn memory_marks_since(&self, cursor: usize, max: usize) -> Vec<MemoryMark> {
        self.state().marks.iter().skip(cursor).take(max).cloned().collect()
    }

    /// Returns the number of spans that were not stored because of [`MAX_SPANS`].
    pub fn dropped_spans(&self) -> u64 {
        self.state().dropped
    }

    /// Returns all memory marks recorded so far.
    pub(crate) fn memory_marks(&self) -> Vec<MemoryMark> {
        self.state().marks.clone()
    }

    /// Returns the spans and memory marks as a Chrome trace (`traceEvents`), which Perfetto opens.
    pub fn chrome_trace(&self) -> serde_json::Value {
        let state = self.state();
        let memory = trace::TracedMemory { marks: &state.marks, timeline: &state.timeline };
        trace::whole_trace(&state.spans, memory, state.dropped)
    }

    /// Writes [`Recorder::chrome_trace`] with the record of the run in `otherData.run`, which [`StoredRun`] reads.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_trace(&self, run: &RunRecord, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        let state = self.state();
        let memory = trace::TracedMemory { marks: &state.marks, timeline: &state.timeline };
        trace::write_trace(out, &state.spans, memory, state.dropped, run)
    }

    fn record(&self, span: &Span<'_>) {
        if !self.records {
            return;
        }
        let duration = span.timed.unwrap_or_else(|| span.start.elapsed()).as_secs_f64();
        let resident_change_bytes = span.resident_before_bytes.and_then(|before| {
            let after = memory::span_resident_bytes()?;
            i64::try_from(after).ok()?.checked_sub_unsigned(before)
        });
        let copying = span.nested.map_or(0.0, |number| nested::close(number, span.stage.is_copy(), duration));
        let mut state = self.state();
        let total = state.totals.entry(span.stage).or_insert(StageTotal::none(span.stage));
        total.count += 1;
        total.seconds += (duration - copying).max(0.0);
        total.bytes += span.bytes;
        total.voxels += span.voxels;
        total.macs += span.macs;
        if !self.keep_spans {
            return;
        }
        let limit = if span.stage == Stage::Op { self.max_spans / 4 * 3 } else { self.max_spans };
        if state.spans.len() >= limit {
            state.dropped += 1;
            return;
        }
        let id = std::thread::current().id();
        let thread = state.threads.iter().position(|t| *t == id).unwrap_or_else(|| {
            state.threads.push(id);
            state.threads.len() - 1
        });
        state.spans.push(SpanRecord {
            stage: span.stage,
            name: span.name.clone(),
            start_us: span.start.duration_since(self.start).as_secs_f64() * 1e6,
            duration_us: duration * 1e6,
            thread,
            bytes: span.bytes,
            voxels: span.voxels,
            macs: span.macs,
            precision: span.precision,
            resident_change_bytes,
        });
    }
}

/// A running measurement, which is recorded when it is dropped.
#[must_use = "a span measures until it is dropped"]
pub struct Span<'a> {
    recorder: &'a Recorder,
    stage: Stage,
    name: Cow<'static, str>,
    /// Resident bytes of the process at the start, if the stage measures memory.
    resident_before_bytes: Option<u64>,
    start: Instant,
    /// Duration, if it was measured elsewhere.
    timed: Option<Duration>,
    /// Number of the span among those that may hold copies, if it is one.
    nested: Option<u64>,
    bytes: u64,
    voxels: u64,
    macs: u64,
    precision: Option<OperatorPrecision>,
}

impl Span<'_> {
    /// Adds bytes read, written or copied.
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self
    }

    /// Adds to the number of processed voxels.
    pub fn voxels(mut self, voxels: usize) -> Self {
        self.voxels += voxels as u64;
        self
    }

    /// Adds to the number of multiply-accumulates.
    pub fn macs(mut self, macs: u64) -> Self {
        self.macs += macs;
        self
    }

    /// Sets the number format of an operator.
    pub fn precision(mut self, precision: OperatorPrecision) -> Self {
        self.precision = Some(precision);
        self
    }

    /// Adds bytes while the span runs.
    pub fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Ends the span now instead of at the end of its scope.
    pub fn finish(self) {}
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        self.recorder.record(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_over_threads_and_the_trace_contains_every_span() {
        let recorder = Recorder::new();
        std::thread::scope(|scope| {
            for i in 0..4usize {
                let recorder = &recorder;
                scope.spawn(move || recorder.span(Stage::Compute, format!("tile {i}")).voxels(10 * i).finish());
            }
        });
        recorder.add(Stage::Decode, "strips", Duration::from_millis(3), 50);
        assert_eq!(recorder.spans_since(4, 9).len(), 1);
        recorder.mark_memory("end");
        let totals = recorder.totals();
        assert_eq!((totals.len(), totals[1].count, totals[1].voxels), (2, 4, 60));
        assert_eq!((totals[0].stage, totals[0].seconds, totals[0].bytes), (Stage::Decode, 0.003, 50));
        let trace = recorder.chrome_trace();
        let events = trace["traceEvents"].as_array().unwrap();
        let names: Vec<_> = events.iter().filter(|e| e["ph"] == "X").map(|e| e["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), 5);
        assert!(names.contains(&"tile 3"));
        assert!(events.iter().any(|e| e["ph"] == "C"));
    }

    #[test]
    fn copies_inside_the_run_of_a_network_count_once() {
        let recorder = Recorder::new();
        let run = recorder.span(Stage::Compute, "tile");
        let outer = recorder.span(Stage::Upload, "slab");
        recorder.span(Stage::Op, "Conv a").finish();
        recorder.span(Stage::Upload, "inputs").finish();
        outer.finish();
        recorder.span(Stage::Download, "outputs").finish();
        // Of another thread, and of another recorder.
        std::thread::scope(|scope| {
            scope.spawn(|| recorder.span(Stage::Download, "beside").finish());
        });
        Recorder::new().span(Stage::Upload, "other").finish();
        run.finish();
        let secs_of = |stage, name: &str| {
            let spans = recorder.spans();
            spans.iter().find(|span| (span.stage, span.name.as_ref()) == (stage, name)).unwrap().duration_us / 1e6
        };
        let totals = recorder.totals();
        let total = |stage| totals.iter().find(|total| total.stage == stage).unwrap().seconds;
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let (uploads, downloads) = (secs_of(Stage::Upload, "slab"), secs_of(Stage::Download, "outputs"));
        assert!(close(total(Stage::Upload), uploads), "the inner upload is part of the outer one");
        assert!(close(total(Stage::Download), downloads + secs_of(Stage::Download, "beside")));
        assert!(close(total(Stage::Compute), secs_of(Stage::Compute, "tile") - uploads - downloads));
    }

    #[test]
    fn operators_leave_room_for_the_stages() {
        let recorder = Recorder { max_spans: 8, ..Recorder::new() };
        (0..9).for_each(|_| recorder.span(Stage::Op, "Conv a").finish());
        (0..3).for_each(|_| recorder.span(Stage::Optimizer, "optimizer step").finish());
        let count = |stage| recorder.spans().iter().filter(|span| span.stage == stage).count();
        assert_eq!((count(Stage::Op), count(Stage::Optimizer), recorder.dropped_spans()), (6, 2, 4));
        assert_eq!(recorder.totals().iter().map(|total| total.count).sum::<u64>(), 12);
    }

    #[test]
    fn spans_can_be_stored_without_operators() {
        let off = Recorder::off();
        off.span(Stage::Compute, "tile").finish();
        off.add(Stage::Read, "stack", Duration::from_secs(1), 5);
        off.mark_memory("end");
        assert!(off.totals().is_empty() && off.spans().is_empty() && off.memory_marks().is_empty());
        let kinds = [Recorder::new(), Recorder::without_operators(), Recorder::totals_only()];
        for recorder in &kinds {
            recorder.span(Stage::Compute, "tile").finish();
            assert_eq!(recorder.totals()[0].count, 1);
        }
        assert_eq!(
            kinds.each_ref().map(|r| (r.spans().len(), r.times_operators())),
            [(1, true), (1, false), (0, false)]
        );
    }
}
