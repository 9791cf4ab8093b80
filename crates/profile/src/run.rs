//! Measurements of a run, as traces and reports store them, and reading them back.

use crate::trace::{ARENA_COUNTER, DEVICE_ALLOCATED_COUNTER, DEVICE_RESERVED_COUNTER, RESIDENT_COUNTER, TracedMemory};
use crate::{
    DeviceMemory, MemoryMark, MemorySample, OperatorPrecision, Recorder, RunFacts, SpanRecord, SpanTotal, Stage,
    StageTotal, span_totals,
};
use cytoscope_storage::setting::{JSON, TRACE};
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::{self, Write};
use std::ops::RangeInclusive;

/// Version of [`RunRecord`]; it changes when a record would be misread.
pub const RUN_FORMAT: u32 = 1;

/// Maximum size of a stored run in bytes; a trace with the maximum number of spans has about a quarter of it.
pub const MAX_RUN_BYTES: u64 = 1 << 30;

/// Maximum number of events of a trace; a recorder writes fewer ([`crate::MAX_SPANS`] spans and marks, a million samples of
/// four counters).
const MAX_EVENTS: usize = 8 << 20;
/// Times that a run can have: in µs up to about four months, in seconds of all threads together longer.
const TIMES: RangeInclusive<f64> = 0.0..=1e13;
/// Number of characters of an event's name that an error shows.
const SHOWN_NAME_CHARS: usize = 80;

/// Measurements of a whole run: in a Chrome trace as `otherData.run`, in a report (`--json`) as `run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`RUN_FORMAT`] of the program that wrote the record.
    pub format: u32,
    /// Name and version of the program.
    pub program: String,
    /// The command, such as `predict`.
    pub command: String,
    /// Time, bytes and voxels of each stage.
    pub stages: Vec<StageTotal>,
    /// Further facts about the run.
    pub facts: RunFacts,
}

impl RunRecord {
    /// Returns the record of a run of `command` by `program`, with the totals of its recorder.
    pub fn new(program: impl Into<String>, command: impl Into<String>, recorder: &Recorder, facts: RunFacts) -> Self {
        let (program, command) = (program.into(), command.into());
        Self { format: RUN_FORMAT, program, command, stages: recorder.totals(), facts }
    }
}

/// The spans of one operator, summed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperatorTotal {
    /// Name of the operator and its node.
    pub name: String,
    /// Number of spans.
    pub count: u64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Multiply-accumulates; 0 if they are not known.
    pub macs: u64,
    /// Bytes of inputs, weights and outputs; 0 if they are not known.
    #[serde(default)]
    pub bytes: u64,
    /// Number format that it multiplies in; `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<OperatorPrecision>,
}

impl OperatorTotal {
    /// Returns whether the operator computes on 8-bit integers.
    pub fn is_int8(&self) -> bool {
        self.precision == Some(OperatorPrecision::Int8)
    }

    /// Returns the name for display, with the number format if the operator computes in another than 32-bit floats.
    pub fn shown_name(&self) -> String {
        crate::device::shown_name(&self.name, self.precision)
    }
}

/// Returns the spans during which the memory of the process grew, those with the largest growth first.
pub fn growing_spans(spans: &[SpanRecord]) -> Vec<&SpanRecord> {
    let growth = |span: &SpanRecord| span.resident_change_bytes.unwrap_or(0);
    let mut growing: Vec<&SpanRecord> = spans.iter().filter(|span| growth(span) > 0).collect();
    growing.sort_by_key(|span| std::cmp::Reverse(growth(span)));
    growing
}

/// Returns the totals of all operators among the spans, the longest first.
pub fn operator_totals(spans: &[SpanRecord]) -> Vec<OperatorTotal> {
    let operators = span_totals(spans).into_iter().filter(|total| total.stage == Stage::Op);
    let total = |SpanTotal { name, count, seconds, macs, bytes, precision, .. }: SpanTotal| OperatorTotal {
        name,
        count,
        seconds,
        macs,
        bytes,
        precision,
    };
    operators.map(total).collect()
}

/// A stored run: a Chrome trace, or the report of a command.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRun {
    /// Stages and facts of the run.
    pub record: RunRecord,
    /// Single spans in order of their ends; none in a report.
    pub spans: Vec<SpanRecord>,
    /// Memory marks; none in a report.
    pub marks: Vec<MemoryMark>,
    /// Memory over time, marks included; none in a report.
    pub timeline: Vec<MemorySample>,
    /// Number of spans that were left out of the trace.
    pub spans_not_kept: u64,
}

/// Why a file holds no run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunFileError {
    /// The file is not JSON, or a field has another type.
    Json(String),
    /// The JSON is neither a Chrome trace with spans of this program nor a report with a run.
    NoRun,
    /// The record has this format, which this version does not know.
    Format(u32),
    /// A field of the record has another type, or names a stage that this version does not know.
    Record {
        /// Name and version of the program that wrote it.
        program: String,
        /// What does not fit.
        reason: String,
    },
    /// A start or duration that no run has: negative, or too long.
    Time {
        /// The beginning of the name of the span, memory mark, counter or stage.
        name: String,
        /// The time as a number.
        time: String,
    },
}

impl std::fmt::Display for RunFileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Json(reason) => {
                write!(f, "the file is not a stored run: {reason}; expected JSON written by {TRACE} or {JSON}")
            }
            Self::NoRun => write!(
                f,
                "the JSON contains no run; expected a trace ({TRACE} FILE.json) or a report ({JSON}) of a command that \
                 runs a job",
            ),
            Self::Format(found) => write!(
                f,
                "the run is stored in format {found}, but this version reads format {RUN_FORMAT}; use the version that \
                 wrote it"
            ),
            Self::Record { program, reason } => {
                write!(
                    f,
                    "the run was written by {program}, which stores it in another way ({reason}); read it with that version"
                )
            }
            Self::Time { name, time } => write!(
                f,
                "the run states the time {time} for {name:?}; expected 0 to {:e}: the file is damaged, so store the run \
                 again ({TRACE} FILE.json)",
                TIMES.end()
            ),
        }
    }
}

impl std::error::Error for RunFileError {}

/// The parts of a trace or a report that hold a run.
#[derive(Deserialize)]
struct RunFile {
    #[serde(default, rename = "traceEvents")]
    events: Option<Events>,
    #[serde(default, rename = "otherData")]
    other: OtherData,
    #[serde(default)]
    run: Option<Value>,
    /// Report of the run that wrote the package, in reports of `train --search`.
    #[serde(default)]
    report: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OtherData {
    spans_not_kept: u64,
    run: Option<Value>,
}

/// The events of a trace that belong to a run. Others are not kept.
#[derive(Default)]
struct Events {
    spans: Vec<SpanRecord>,
    marks: Vec<MemoryMark>,
    timeline: Vec<MemorySample>,
}

impl<'de> Deserialize<'de> for Events {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(EventReader { left: MAX_EVENTS })
    }
}

/// Reads events one by one, so that a trace needs little more memory than what is kept of it.
struct EventReader {
    /// Number of events that may still follow.
    left: usize,
}

impl<'de> Visitor<'de> for EventReader {
    type Value = Events;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut events: A) -> Result<Events, A::Error> {
        let Events { mut spans, mut marks, mut timeline } = Events::default();
        while let Some(event) = events.next_element::<TraceEvent>()? {
            let left = self.left.checked_sub(1);
            self.left = left.ok_or_else(|| {
                A::Error::custom(format!("the trace has more events than the limit MAX_EVENTS = {MAX_EVENTS}"))
            })?;
            event.add_counter_to(&mut timeline);
            event.add_to(&mut spans, &mut marks);
        }
        timeline.sort_by(|a, b| a.at_us.total_cmp(&b.at_us));
        Ok(Events { spans, marks, timeline })
    }
}

#[derive(Deserialize)]
struct TraceEvent {
    ph: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    tid: usize,
    #[serde(default)]
    args: TraceArguments,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TraceArguments {
    bytes: u64,
    voxels: u64,
    macs: u64,
    resident_bytes: Option<u64>,
    resident_change_bytes: Option<i64>,
    /// Name of an [`OperatorPrecision`]; traces of other programs may hold anything.
    precision: Option<Value>,
    /// Index of the thread, of spans on a further track of it.
    thread: Option<usize>,
}

impl StoredRun {
    /// Returns the run that a recorder holds.
    pub fn of(record: RunRecord, recorder: &Recorder) -> Self {
        let (spans, marks, timeline) = (recorder.spans(), recorder.memory_marks(), recorder.memory_timeline());
        Self { record, spans, marks, timeline, spans_not_kept: recorder.dropped_spans() }
    }

    /// Reads a run from the text of a trace or a report. The stages of a trace without a record are summed from its
    /// spans.
    ///
    /// # Errors
    /// [`RunFileError`] if the text is not JSON, holds no run, or states times that no run has.
    pub fn from_json(text: &[u8]) -> Result<Self, RunFileError> {
        let json = |e: serde_json::Error| RunFileError::Json(e.to_string());
        let RunFile { events, other, run, report } = serde_json::from_slice(text).map_err(json)?;
        let run = run.or_else(|| report.and_then(|mut report| report.get_mut("run").map(Value::take)));
        let Events { spans, marks, timeline } = events.unwrap_or_default();
        let record: RunRecord = match other.run.or(run) {
            Some(value) => {
                let format = value.get("format").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
                match format {
                    Some(RUN_FORMAT) => {
                        let program = value.get("program").and_then(Value::as_str).map(str::to_owned);
                        serde_json::from_value(value).map_err(|error| match program {
                            Some(program) => RunFileError::Record { program, reason: error.to_string() },
                            None => json(error),
                        })?
                    }
                    Some(found) => return Err(RunFileError::Format(found)),
                    None => return Err(RunFileError::NoRun),
                }
            }
            None if spans.is_empty() => return Err(RunFileError::NoRun),
            None => summed(&spans),
        };
        let read = Self { record, spans, marks, timeline, spans_not_kept: other.spans_not_kept };
        read.check_times()?;
        Ok(read)
    }

    /// Refuses times that no run has: sums of them, and differences to other times, would mean nothing.
    fn check_times(&self) -> Result<(), RunFileError> {
        let Self { record, spans, marks, timeline, .. } = self;
        let span_times = spans.iter().flat_map(|span| {
            let name: &str = &span.name;
            [(name, span.start_us), (name, span.duration_us)]
        });
        let mark_times = marks.iter().map(|mark| (&*mark.label, mark.at_us));
        let sample_times = timeline.iter().map(|sample| (RESIDENT_COUNTER, sample.at_us));
        let run_times = std::iter::once((record.command.as_str(), record.facts.wall_secs));
        let stage_times = record.stages.iter().map(|total| (total.stage.name(), total.seconds));
        let mut all = span_times.chain(mark_times).chain(sample_times).chain(run_times).chain(stage_times);
        match all.find(|(_, time)| !TIMES.contains(time)) {
            None => Ok(()),
            Some((name, time)) => {
                let name = name.chars().take(SHOWN_NAME_CHARS).collect();
                Err(RunFileError::Time { name, time: format!("{time:e}") })
            }
        }
    }

    /// Returns the totals of the operators, the longest first.
    pub fn operators(&self) -> Vec<OperatorTotal> {
        operator_totals(&self.spans)
    }

    /// Returns the spans during which the memory of the process grew, those with the largest growth first.
    pub fn growing_spans(&self) -> Vec<&SpanRecord> {
        growing_spans(&self.spans)
    }

    /// Writes the run as a Chrome trace, which [`StoredRun::from_json`] reads.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_trace(&self, out: &mut dyn Write) -> io::Result<()> {
        // A mark is written with its own sample.
        let mark_times: HashSet<u64> = self.marks.iter().map(|mark| mark.at_us.to_bits()).collect();
        let is_mark = |sample: &MemorySample| mark_times.contains(&sample.at_us.to_bits());
        let timeline: Vec<MemorySample> = self.timeline.iter().filter(|sample| !is_mark(sample)).copied().collect();
        let memory = TracedMemory { marks: &self.marks, timeline: &timeline };
        crate::trace::write_trace(out, &self.spans, memory, self.spans_not_kept, &self.record)
    }
}

impl TraceEvent {
    /// Adds a counter of the memory to the timeline; those of the engines follow that of the process.
    fn add_counter_to(&self, timeline: &mut Vec<MemorySample>) {
        let Self { ph, name, ts, args, .. } = self;
        if ph != "C" {
            return;
        }
        if name == RESIDENT_COUNTER {
            let (at_us, resident_bytes) = (*ts, args.bytes);
            timeline.push(MemorySample { at_us, resident_bytes, arena_bytes: None, device: None });
            return;
        }
        let Some(last) = timeline.last_mut().filter(|last| last.at_us == *ts) else { return };
        match name.as_str() {
            ARENA_COUNTER => last.arena_bytes = Some(args.bytes),
            DEVICE_ALLOCATED_COUNTER => {
                last.device.get_or_insert_with(DeviceMemory::default).allocated_bytes = args.bytes;
            }
            DEVICE_RESERVED_COUNTER => {
                last.device.get_or_insert_with(DeviceMemory::default).reserved_bytes = args.bytes;
            }
            _ => {}
        }
    }

    /// Adds the event to the spans or the marks; events of other programs are neither.
    fn add_to(self, spans: &mut Vec<SpanRecord>, marks: &mut Vec<MemoryMark>) {
        let Self { ph, name, cat, ts, dur, tid, args } = self;
        match (ph.as_str(), Stage::from_name(&cat), args.resident_bytes) {
            ("X", Some(stage), _) => {
                let stated = args.precision.as_ref().and_then(Value::as_str).and_then(OperatorPrecision::from_name);
                let (name, precision) = match stated {
                    None if stage == Stage::Op => without_precision(name),
                    stated => (name, stated),
                };
                spans.push(SpanRecord {
                    stage,
                    name: Cow::Owned(name),
                    start_us: ts,
                    duration_us: dur,
                    thread: args.thread.unwrap_or(tid.saturating_sub(1)),
                    bytes: args.bytes,
                    voxels: args.voxels,
                    macs: args.macs,
                    precision,
                    resident_change_bytes: args.resident_change_bytes,
                });
            }
            ("i", _, Some(resident_bytes)) => {
                marks.push(MemoryMark { label: Cow::Owned(name), at_us: ts, resident_bytes });
            }
            _ => {}
        }
    }
}

/// Returns the name of an operator without its number format, and this format: earlier versions named operators on 8-bit
/// integers `OP int8 NODE`, and stated no format otherwise.
fn without_precision(name: String) -> (String, Option<OperatorPrecision>) {
    let rest = name.split_once(' ').and_then(|(op, rest)| Some(format!("{op} {}", rest.strip_prefix("int8 ")?)));
    match rest {
        Some(name) => (name, Some(OperatorPrecision::Int8)),
        None => (name, None),
    }
}

/// Returns the record of a trace that holds spans alone.
fn summed(spans: &[SpanRecord]) -> RunRecord {
    let mut totals: BTreeMap<Stage, StageTotal> = BTreeMap::new();
    let mut end_us = 0.0f64;
    for span in spans {
        end_us = end_us.max(span.start_us + span.duration_us);
        totals.entry(span.stage).or_insert_with(|| StageTotal::none(span.stage)).add(span);
    }
    RunRecord {
        format: RUN_FORMAT,
        program: "cytoscope".to_owned(),
        command: "unknown command".to_owned(),
        stages: totals.into_values().collect(),
        facts: RunFacts { wall_secs: end_us / 1e6, ..RunFacts::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> Recorder {
        let recorder = Recorder::new();
        recorder.span(Stage::Compute, "tile").voxels(1000).finish();
        recorder.span(Stage::Load, "model").finish();
        recorder.span(Stage::Op, "Conv a").precision(OperatorPrecision::Int8).macs(7).finish();
        recorder.span(Stage::Op, "Conv a").precision(OperatorPrecision::Int8).macs(7).finish();
        recorder.span(Stage::Op, "Conv b").precision(OperatorPrecision::Float).macs(5).finish();
        recorder.mark_memory("end");
        recorder
    }

    #[test]
    fn a_trace_with_its_record_is_read_back() {
        let recorder = recorded();
        let facts = RunFacts { wall_secs: 2.5, threads: Some(3), ..RunFacts::default() };
        let record = RunRecord::new("cytoscope 1.0", "predict", &recorder, facts);
        let mut text = Vec::new();
        recorder.write_trace(&record, &mut text).unwrap();
        let read = StoredRun::from_json(&text).unwrap();
        assert_eq!(read.record, record);
        assert_eq!((read.spans.len(), read.marks.len(), read.spans_not_kept), (5, 1, 0));
        assert_eq!(read.spans, recorder.spans(), "the change of memory during the load, too");
        assert_eq!(read.timeline.len(), 1, "the mark is a sample, too");
        let operators = read.operators();
        let by_name = |name: &str| operators.iter().find(|o| o.name == name).unwrap();
        assert_eq!((by_name("Conv a").count, by_name("Conv a").macs), (2, 14));
        assert!(by_name("Conv a").is_int8() && !by_name("Conv b").is_int8());
        assert_eq!(
            (by_name("Conv a").shown_name(), by_name("Conv b").shown_name()),
            ("Conv a (int8)".to_owned(), "Conv b".to_owned())
        );
        let mut again = Vec::new();
        read.write_trace(&mut again).unwrap();
        assert_eq!(StoredRun::from_json(&again).unwrap(), read, "a run that was read is written without a loss");
    }

    #[test]
    fn operators_of_earlier_versions_have_their_number_format_in_the_name() {
        let event = |name: &str, args: &str| {
            format!(r#"{{"ph": "X", "cat": "op", "name": "{name}", "ts": 1, "dur": 2, "args": {args}}}"#)
        };
        let events = [
            event("Conv int8 + QuantizeLinear a", "{}"),
            event("Conv b", "{}"),
            event("Conv int8 c", r#"{"precision": "float"}"#),
            event("Conv d", r#"{"precision": 16}"#),
        ];
        let read = StoredRun::from_json(format!(r#"{{"traceEvents": [{}]}}"#, events.join(",")).as_bytes()).unwrap();
        let found: Vec<_> = read.spans.iter().map(|span| (span.name.as_ref(), span.precision)).collect();
        let (int8, float) = (Some(OperatorPrecision::Int8), Some(OperatorPrecision::Float));
        let expected = [("Conv + QuantizeLinear a", int8), ("Conv b", None), ("Conv int8 c", float), ("Conv d", None)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_trace_without_a_record_is_summed() {
        let text = serde_json::to_vec(&recorded().chrome_trace()).unwrap();
        let read = StoredRun::from_json(&text).unwrap();
        let count = |stage| read.record.stages.iter().find(|t| t.stage == stage).map(|t| (t.count, t.voxels));
        assert_eq!((count(Stage::Compute), count(Stage::Op)), (Some((1, 1000)), Some((3, 0))));
    }

    #[test]
    fn a_report_holds_a_run_without_spans() {
        let record = RunRecord::new("cytoscope 1.0", "train", &recorded(), RunFacts::default());
        let text = serde_json::to_vec(&serde_json::json!({"out": "m", "run": record})).unwrap();
        let read = StoredRun::from_json(&text).unwrap();
        assert_eq!((&read.record, read.spans.len()), (&record, 0));
        // The report of a search contains that of its last run.
        let text = serde_json::to_vec(&serde_json::json!({"best": {}, "report": {"out": "m", "run": record}})).unwrap();
        assert_eq!(StoredRun::from_json(&text).unwrap(), read);
    }

    #[test]
    fn growing_spans_are_ordered_by_their_growth() {
        let span = |name: &'static str, resident_change_bytes| SpanRecord {
            resident_change_bytes,
            ..SpanRecord::new(Stage::Load, name, 0.0, 1.0)
        };
        let record = RunRecord::new("cytoscope 1.0", "predict", &Recorder::off(), RunFacts::default());
        let spans = vec![span("a", Some(5)), span("b", Some(-7)), span("c", None), span("d", Some(9))];
        let run = StoredRun { record, spans, marks: Vec::new(), timeline: Vec::new(), spans_not_kept: 0 };
        let names: Vec<&str> = run.growing_spans().iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["d", "a"]);
    }

    #[test]
    fn times_that_no_run_has_are_refused() {
        let trace = |event: &str| {
            format!(r#"{{"traceEvents": [{event}, {{"ph": "X", "cat": "op", "name": "b", "ts": 1, "dur": 2}}]}}"#)
        };
        let refused = |text: String| StoredRun::from_json(text.as_bytes()).unwrap_err();
        for (event, name, time) in [
            (r#"{"ph": "X", "cat": "op", "name": "a", "ts": -1, "dur": 2}"#, "a", "-1e0"),
            (r#"{"ph": "X", "cat": "op", "name": "a", "ts": 1, "dur": -2.5}"#, "a", "-2.5e0"),
            (r#"{"ph": "X", "cat": "op", "name": "a", "ts": 1e308, "dur": 1e308}"#, "a", "1e308"),
            (r#"{"ph": "i", "name": "end", "ts": 1e14, "args": {"resident_bytes": 5}}"#, "end", "1e14"),
            (r#"{"ph": "C", "name": "resident memory", "ts": -3, "args": {"bytes": 5}}"#, "resident memory", "-3e0"),
        ] {
            let error = refused(trace(event));
            assert_eq!(error, RunFileError::Time { name: name.to_owned(), time: time.to_owned() });
            assert!(error.to_string().contains("expected 0 to 1e13"), "{error}");
        }
        // Events of other programs may have any times.
        assert!(StoredRun::from_json(trace(r#"{"ph": "X", "cat": "gc", "ts": -1}"#).as_bytes()).is_ok());
        let mut record = RunRecord::new("cytoscope 1.0", "predict", &recorded(), RunFacts::default());
        record.stages[0].seconds = -1.0;
        let name = record.stages[0].stage.name().to_owned();
        let error = refused(serde_json::json!({ "run": record }).to_string());
        assert_eq!(error, RunFileError::Time { name, time: "-1e0".to_owned() });
    }

    #[test]
    fn the_number_of_events_is_limited() {
        let read = |left: usize| {
            let mut json = serde_json::Deserializer::from_str(r#"[{"ph": "M"}, {"ph": "M"}]"#);
            Deserializer::deserialize_seq(&mut json, EventReader { left })
                .map(|events| events.spans.len())
                .map_err(|e| e.to_string())
        };
        assert_eq!(read(2), Ok(0));
        assert!(read(1).unwrap_err().contains("MAX_EVENTS"));
    }

    #[test]
    fn other_files_are_refused() {
        assert!(matches!(StoredRun::from_json(b"no JSON"), Err(RunFileError::Json(_))));
        assert!(matches!(StoredRun::from_json(b"{\"traceEvents\": 5}"), Err(RunFileError::Json(_))));
        assert_eq!(StoredRun::from_json(b"{}"), Err(RunFileError::NoRun));
        assert_eq!(StoredRun::from_json(b"{\"run\": {}}"), Err(RunFileError::NoRun));
        assert_eq!(StoredRun::from_json(b"{\"run\": {\"format\": 9}}"), Err(RunFileError::Format(9)));
        let record = RunRecord::new("cytoscope 9.0", "predict", &recorded(), RunFacts::default());
        let mut newer = serde_json::json!({ "run": record });
        newer["run"]["stages"][0]["stage"] = "lunch".into();
        let error = StoredRun::from_json(newer.to_string().as_bytes()).unwrap_err();
        assert!(matches!(&error, RunFileError::Record { program, .. } if program == "cytoscope 9.0"), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("cytoscope 9.0") && text.contains("lunch") && text.contains("with that version"),
            "{text}"
        );
        let foreign = br#"{"traceEvents": [{"ph": "X", "cat": "gc", "name": "sweep", "ts": 1, "dur": 2}]}"#;
        assert_eq!(StoredRun::from_json(foreign), Err(RunFileError::NoRun));
    }
}
