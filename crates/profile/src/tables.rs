//! The tables of a run as CSV.

use crate::{
    ComparedTime, MemoryMark, MemorySample, OperatorPrecision, SpanRecord, StoredRun, advise, compare_operators,
    compare_stages, roofline, span_totals, step_durations_secs,
};

/// A table of a run, which [`RunTable::csv`] writes. Names of columns carry the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunTable {
    /// Totals by stage.
    Stages,
    /// Rule, evidence, gain and change of each piece of advice.
    Advice,
    /// Stage, name, thread, start and duration of each span.
    Spans,
    /// Totals by stage and name, such as those of each operator.
    Operators,
    /// Operators beside the machine's peak; empty if the run holds no peak.
    Roofline,
    /// Memory over time.
    Memory,
    /// Times of the training steps.
    Steps,
    /// Times of the run beside the times of another one; empty without one.
    Comparison,
}

/// The run that a table compares with.
#[derive(Debug, Clone, Copy)]
pub struct ComparedRun<'a> {
    /// The second run.
    pub run: &'a StoredRun,
    /// What the first and the second run are called, such as their files.
    pub titles: [&'a str; 2],
}

impl RunTable {
    /// Returns the table of a run as CSV, with a header; `other` is the run that a comparison is with.
    pub fn csv(self, run: &StoredRun, other: Option<ComparedRun<'_>>) -> String {
        match self {
            Self::Stages => stages(run),
            Self::Advice => advice(run),
            Self::Spans => spans(run),
            Self::Operators => operators(run),
            Self::Roofline => roofline_points(run),
            Self::Memory => memory(run),
            Self::Steps => steps(run),
            Self::Comparison => comparison(run, other),
        }
    }
}

/// A header and lines of cells.
fn table(header: &str, lines: impl Iterator<Item = String>) -> String {
    let mut text = format!("{header}\n");
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Returns a name from a run as a cell. Nodes and traces of other programs can have any name. Spreadsheets would evaluate a
/// name that begins like a formula, so it gets a leading apostrophe.
fn name_cell(name: &str) -> String {
    let is_formula = name.starts_with(['=', '+', '-', '@', '\t', '\r']);
    if is_formula { quoted(&format!("'{name}")) } else { quoted(name) }
}

/// A nested stage is a part of another one, or runs in other threads, so its time must not be added to the others.
fn stages(run: &StoredRun) -> String {
    let lines = run.record.stages.iter().map(|total| {
        let (stage, nested) = (total.stage.name(), total.stage.is_nested());
        format!("{stage},{nested},{},{},{},{},{}", total.count, total.seconds, total.bytes, total.voxels, total.macs)
    });
    table("stage,nested,count,seconds,bytes,voxels,macs", lines)
}

fn advice(run: &StoredRun) -> String {
    let lines = advise(&run.record.facts, &run.operators()).into_iter().map(|advice| {
        let cells = [advice.evidence.as_str(), advice.expected_gain.as_str(), advice.change.as_str()];
        format!("{},{}", advice.rule.name(), cells.map(quoted).join(","))
    });
    table("rule,evidence,expected_gain,change", lines)
}

fn spans(run: &StoredRun) -> String {
    let lines = run.spans.iter().map(|s| {
        let (stage, name) = (s.stage.name(), name_cell(&s.name));
        let change = s.resident_change_bytes.map_or_else(String::new, |bytes| bytes.to_string());
        let (SpanRecord { thread, start_us, duration_us, bytes, macs, .. }, precision) = (s, precision(s.precision));
        format!("{stage},{name},{thread},{start_us},{duration_us},{bytes},{macs},{change},{precision}")
    });
    table("stage,name,thread,start_us,duration_us,bytes,macs,resident_change_bytes,precision", lines)
}

fn operators(run: &StoredRun) -> String {
    let totals = span_totals(&run.spans);
    let lines = totals.iter().map(|total| {
        let (stage, name, precision) = (total.stage.name(), name_cell(&total.name), precision(total.precision));
        format!("{stage},{name},{},{},{},{},{precision}", total.count, total.seconds, total.bytes, total.macs)
    });
    table("stage,name,count,seconds,bytes,macs,precision", lines)
}

/// Returns the number format of an operator as a cell; empty for other spans.
fn precision(precision: Option<OperatorPrecision>) -> &'static str {
    precision.map_or("", OperatorPrecision::name)
}

/// Operators beside the machine's peak; empty if it is unknown.
fn roofline_points(run: &StoredRun) -> String {
    let peak = run.record.facts.machine_peak.as_ref();
    let points = peak.map(|peak| roofline(&run.operators(), peak)).unwrap_or_default();
    let lines = points.iter().map(|point| {
        let intensity = point.macs_per_byte().map_or_else(String::new, |intensity| intensity.to_string());
        let (name, bound) = (name_cell(&point.name), point.bound.name());
        let (secs, macs, bytes, rate) = (point.seconds, point.macs, point.bytes, point.macs_per_sec());
        let (share, precision) = (point.share, point.precision.name());
        format!("{name},{secs},{macs},{bytes},{intensity},{rate},{bound},{share},{precision}")
    });
    table("name,seconds,macs,bytes,macs_per_byte,macs_per_sec,bound,share_of_peak,precision", lines)
}

fn memory(run: &StoredRun) -> String {
    let label = |at_us: f64| run.marks.iter().find(|m| m.at_us == at_us).map_or("", |m| m.label.as_ref());
    let mark_sample = |mark: &MemoryMark| MemorySample {
        at_us: mark.at_us,
        resident_bytes: mark.resident_bytes,
        arena_bytes: None,
        device: None,
    };
    let marks = run.marks.iter().filter(|_| run.timeline.is_empty()).map(mark_sample);
    let number = |bytes: Option<u64>| bytes.map_or_else(String::new, |bytes| bytes.to_string());
    let lines = run.timeline.iter().copied().chain(marks).map(|sample| {
        let MemorySample { at_us, resident_bytes, arena_bytes, device } = sample;
        let (allocated, reserved) =
            (number(device.map(|d| d.allocated_bytes)), number(device.map(|d| d.reserved_bytes)));
        let (secs, label, arena) = (at_us / 1e6, name_cell(label(at_us)), number(arena_bytes));
        format!("{secs},{label},{resident_bytes},{arena},{allocated},{reserved}")
    });
    let header = "seconds,label,resident_bytes,arena_bytes,device_allocated_bytes,device_reserved_bytes";
    table(header, lines)
}

fn steps(run: &StoredRun) -> String {
    let durations = step_durations_secs(&run.spans, &run.marks).into_iter().enumerate();
    table("step,seconds", durations.map(|(i, secs)| format!("{},{secs}", i + 1)))
}

fn comparison(run: &StoredRun, other: Option<ComparedRun<'_>>) -> String {
    let titles = other.map_or_else(String::new, |other| other.titles.map(name_cell).join(","));
    let compared = other.map(|ComparedRun { run: other, .. }| {
        let total = ComparedTime::new("total", run.record.facts.wall_secs, other.record.facts.wall_secs);
        let stages = compare_stages(&run.record.stages, &other.record.stages);
        let operators = compare_operators(&run.operators(), &other.operators());
        let named = |kind: &'static str, times: Vec<ComparedTime>| times.into_iter().map(move |time| (kind, time));
        named("total", vec![total]).chain(named("stage", stages)).chain(named("operator", operators))
    });
    let lines = compared.into_iter().flatten().map(|(kind, time)| {
        let ratio = time.ratio.map_or_else(String::new, |ratio| ratio.to_string());
        format!("{kind},{},{},{},{ratio},{titles}", name_cell(&time.name), time.first_secs, time.second_secs)
    });
    table("kind,name,first_secs,second_secs,ratio,first_run,second_run", lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Recorder, RunFacts, RunRecord, SpanRecord, Stage};

    #[test]
    fn names_cannot_break_a_row_or_become_a_formula() {
        let record = RunRecord::new("cytoscope 1.0", "predict", &Recorder::off(), RunFacts::default());
        let span = |name: &'static str| SpanRecord::new(Stage::Op, name, 1.5, 2.0);
        let int8 = SpanRecord { precision: Some(OperatorPrecision::Int8), ..span("Conv a,b") };
        let spans = vec![int8, span("Conv \"c\"\nd"), span("=1+1"), span("@x"), span("-x"), span("Conv =e")];
        let run = StoredRun { record, spans, marks: Vec::new(), timeline: Vec::new(), spans_not_kept: 0 };
        let csv = RunTable::Spans.csv(&run, None);
        let expected = [
            "op,\"Conv a,b\",0,1.5,2,0,0,,int8\n",
            "op,\"Conv \"\"c\"\"\nd\",0,1.5,2,0,0,,\n",
            "op,\"'=1+1\",0,1.5,2,0,0,,\n",
            "op,\"'@x\",0,1.5,2,0,0,,\n",
            "op,\"'-x\",0,1.5,2,0,0,,\n",
            "op,\"Conv =e\",0,1.5,2,0,0,,\n",
        ];
        let header = "stage,name,thread,start_us,duration_us,bytes,macs,resident_change_bytes,precision\n";
        assert_eq!(csv, format!("{header}{}", expected.concat()));
        // Without a peak or another run, there are no rows.
        assert_eq!(RunTable::Roofline.csv(&run, None).lines().count(), 1);
        let header = "kind,name,first_secs,second_secs,ratio,first_run,second_run\n";
        assert_eq!(RunTable::Comparison.csv(&run, None), header);
        let other = ComparedRun { run: &run, titles: ["a.json", "=b.json"] };
        let compared = RunTable::Comparison.csv(&run, Some(other));
        let row = "\noperator,\"'=1+1\",0.000002,0.000002,1,\"a.json\",\"'=b.json\"\n";
        assert!(compared.contains(row), "{compared}");
    }
}
