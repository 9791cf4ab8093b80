//! `cytoscope profile`: where a stored run spent its time, and what would make it faster.

use super::failure::{Failure, Outcome};
use super::trace_path::whole_around;
use super::{bench, leaks, print, print_json, unreadable};
use clap::{Args, ValueEnum};
use cytoscope_profile::{
    Advice, ComparedRun, ComparedTime, MAX_RUN_BYTES, MachinePeak, MemoryMark, OperatorPrecision, OperatorTotal,
    RooflinePoint, RunRecord, RunTable, SpanRecord, StageTotal, StoredRun, advise, bytes_text, compare_operators,
    compare_stages, computing_share, median, roofline, share_of_peak, step_durations_secs, time_text,
};
use cytoscope_storage::read::open_regular;
use cytoscope_storage::target::{check_extension, check_file};
use cytoscope_storage::write::atomic_write;
use cytoscope_storage::{Overwrite, by_count, counted};
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Number of spans during which memory grew most that are listed.
const GROWING_SPANS: usize = 5;
/// Number of operators that are listed by default.
const OPERATORS: usize = 12;
/// Characters of an operator's name that are shown.
const NAME_CHARS: usize = 48;
/// Value from which a rate or a ratio is printed with an exponent.
const EXPONENT_FROM: f64 = 1e7;

/// Options of `profile`.
#[derive(Args)]
pub(crate) struct Profile {
    /// Stored run: a trace (--trace FILE.json), or the report (--json) of a command that runs a job. With --leaks: a job,
    /// as described in docs/worker-protocol.md.
    #[arg(value_name = "RUN.json")]
    run: PathBuf,
    /// Repeat the job N times (at least 4) in one process, and fail if memory grows with the number of repetitions.
    #[arg(long, value_name = "N", conflicts_with = "compare")]
    leaks: Option<usize>,
    /// Second stored run to show beside the first, with ratios.
    #[arg(long, value_name = "OTHER.json")]
    compare: Option<PathBuf>,
    /// Maximum number of operators to list.
    #[arg(long, default_value_t = OPERATORS, conflicts_with_all = ["csv", "leaks"])]
    top: usize,
    /// Print the profile as one JSON object.
    #[arg(long)]
    json: bool,
    /// Write a table of the run to this file instead of printing the profile; with --compare, the times of both runs.
    #[arg(long, value_name = "OUT.csv", conflicts_with_all = ["leaks", "json"])]
    csv: Option<PathBuf>,
    /// Table that --csv writes, by default operators. All but stages and advice need a trace.
    #[arg(long, value_enum, requires = "csv", conflicts_with_all = ["compare", "leaks", "json"])]
    table: Option<TableName>,
    /// Overwrite an existing table; a stored run is never overwritten.
    #[arg(long, requires = "csv", conflicts_with_all = ["leaks", "json"])]
    force: bool,
}

/// Tables that `--csv` writes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TableName {
    /// Totals by stage.
    Stages,
    /// Totals by stage and name, such as those of each operator.
    Operators,
    /// Every span with its start and duration.
    Spans,
    /// Operators beside the machine's peak.
    Roofline,
    /// Memory over time.
    Memory,
    /// Durations of training steps.
    Steps,
    /// Rule, evidence, gain and change of each piece of advice.
    Advice,
}

impl TableName {
    fn table(self) -> RunTable {
        match self {
            Self::Stages => RunTable::Stages,
            Self::Operators => RunTable::Operators,
            Self::Spans => RunTable::Spans,
            Self::Roofline => RunTable::Roofline,
            Self::Memory => RunTable::Memory,
            Self::Steps => RunTable::Steps,
            Self::Advice => RunTable::Advice,
        }
    }
}

/// Returns why a table of a run may have no rows; `None` if that needs no explanation.
fn why_empty(table: RunTable) -> Option<&'static str> {
    match table {
        RunTable::Operators | RunTable::Spans => Some("it has no spans; expected a trace (--trace), or --table stages"),
        RunTable::Roofline => Some(
            "it does not contain the peak of its machine; expected a trace (--trace) with operators of a prediction or a \
             training run on the CPU",
        ),
        RunTable::Memory => Some("it has no samples of the memory; expected a trace (--trace)"),
        RunTable::Steps => Some("it has no training steps; expected a trace (--trace) of a training run"),
        RunTable::Stages | RunTable::Advice | RunTable::Comparison => None,
    }
}

/// A stored run with the tables that are printed.
#[derive(Serialize)]
struct RunProfile {
    run: RunRecord,
    /// The operators with the longest times.
    operators: Vec<OperatorTotal>,
    /// Seconds of all operators.
    operators_secs: f64,
    /// The operators with the longest times in the roofline model; none if the machine's peak is unknown.
    roofline: Vec<RooflinePoint>,
    /// Share of the machine's peak of all operators together.
    share_of_peak: Option<f64>,
    /// Durations of the steps of a training run; `None` without single spans of them.
    training_steps: Option<StepTimes>,
    memory: Vec<MemoryMark>,
    /// The spans during which the memory of the process grew most.
    growing_spans: Vec<SpanRecord>,
    spans_not_kept: u64,
    advice: Vec<Advice>,
}

/// Durations of the steps of a training run.
#[derive(Serialize)]
struct StepTimes {
    /// Number of steps.
    count: usize,
    /// Middle of the durations in seconds.
    median_secs: f64,
    /// Longest duration in seconds.
    longest_secs: f64,
}

impl StepTimes {
    /// Returns the durations of the steps of a run; `None` without single spans of them.
    fn of(run: &StoredRun) -> Option<Self> {
        let mut secs = step_durations_secs(&run.spans, &run.marks);
        secs.retain(|secs| secs.is_finite());
        secs.sort_by(f64::total_cmp);
        Some(Self { count: secs.len(), median_secs: median(&secs)?, longest_secs: *secs.last()? })
    }
}

/// Reads a stored run.
///
/// # Errors
/// Bad input if the file cannot be read, is too large or holds no run.
pub(crate) fn read_run(path: &Path) -> Result<StoredRun, Failure> {
    let mut text = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(MAX_RUN_BYTES + 1).read_to_end(&mut text));
    read.map_err(|error| unreadable(path, error))?;
    if text.len() as u64 > MAX_RUN_BYTES {
        let limit = bytes_text(MAX_RUN_BYTES);
        return Err(Failure::bad_input(format!(
            "{}: the file is larger than {limit}; expected a stored run",
            path.display()
        )));
    }
    StoredRun::from_json(&text).map_err(|error| {
        let name = path.display();
        if bench::are_results(&text) {
            return Failure::bad_input(format!(
                "{name}: the file holds results of cytoscope bench, and not a stored run; cytoscope bench --compare {name} \
                 compares new results with them"
            ));
        }
        if leaks::is_job(&text) {
            return Failure::bad_input(format!(
                "{name}: the file holds a job, and not a stored run; cytoscope profile {name} --leaks 20 repeats it"
            ));
        }
        Failure::bad_input(format!("{name}: {error}"))
    })
}

impl RunProfile {
    fn new(stored: StoredRun, top: usize) -> Self {
        let mut operators = stored.operators();
        let advice = advise(&stored.record.facts, &operators);
        let operators_secs: f64 = operators.iter().map(|o| o.seconds).sum();
        let peak = stored.record.facts.machine_peak.as_ref();
        let share_of_peak = peak.and_then(|peak| share_of_peak(&roofline(&operators, peak), operators_secs));
        operators.truncate(top);
        let roofline = peak.map(|peak| roofline(&operators, peak)).unwrap_or_default();
        let growing_spans = stored.growing_spans().into_iter().take(GROWING_SPANS).cloned().collect();
        let training_steps = StepTimes::of(&stored);
        let StoredRun { record, marks, spans_not_kept, .. } = stored;
        Self {
            run: record,
            operators,
            operators_secs,
            roofline,
            share_of_peak,
            training_steps,
            memory: marks,
            growing_spans,
            spans_not_kept,
            advice,
        }
    }

    /// Returns the share of the run's wall time; `None` if the stage is part of another or the time is unknown.
    fn share(&self, total: &StageTotal) -> Option<f64> {
        let wall = self.run.facts.wall_secs;
        (!total.stage.is_nested() && wall > 0.0).then(|| total.seconds / wall)
    }

    fn headline(&self) -> String {
        let RunRecord { program, command, facts, .. } = &self.run;
        let cpu = facts.cpu_secs.map_or_else(String::new, |secs| format!(", CPU time {}", time_text(secs)));
        let threads = match facts.threads {
            Some(1) => " on 1 thread".to_owned(),
            Some(n) => format!(" on {n} threads"),
            None => String::new(),
        };
        format!("{command} ({program}): {}{cpu}{threads}", time_text(facts.wall_secs))
    }

    fn stage_lines(&self) -> Vec<String> {
        let line = |total: &StageTotal| {
            let share = self.share(total).map_or_else(|| "part".to_owned(), |s| format!("{} %", fixed(100.0 * s, 1)));
            let bytes = if total.bytes > 0 { format!("  {}", bytes_text(total.bytes)) } else { String::new() };
            let (name, time, count) = (total.stage.name(), time_text(total.seconds), total.count);
            format!("  {name:12} {time:>12} {share:>8} {count:>8} {:5}{bytes}", spans_word(count)).trim_end().to_owned()
        };
        let mut stages: Vec<&StageTotal> = self.run.stages.iter().collect();
        stages.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        stages.into_iter().map(line).collect()
    }

    fn operator_lines(&self) -> Vec<String> {
        let line = |o: &OperatorTotal| {
            let share = 100.0 * o.seconds / self.operators_secs.max(f64::MIN_POSITIVE);
            let rate = if o.macs > 0 && o.seconds > 0.0 {
                format!("  {} GMAC/s", fixed(o.macs as f64 / o.seconds / 1e9, 1))
            } else {
                String::new()
            };
            let (name, time, share) = (short(&o.shown_name()), time_text(o.seconds), fixed(share, 1));
            let (count, spans) = (o.count, spans_word(o.count));
            format!("  {name:48} {time:>12} {share:>6} % {count:>8} {spans:5}{rate}").trim_end().to_owned()
        };
        let note = "  of operators on a GPU, the time includes the launch of the kernels and the wait for their end";
        let notes = (!self.operators.is_empty() && self.used_gpu()).then(|| note.to_owned());
        self.operators.iter().map(line).chain(notes).collect()
    }

    /// Returns whether a device other than the CPU ran networks or training steps.
    fn used_gpu(&self) -> bool {
        self.run.facts.used_gpu()
    }

    /// Lists the operators by their share of the machine's peak.
    fn roofline_lines(&self) -> Vec<String> {
        let Some(peak) = self.run.facts.machine_peak.as_ref().filter(|_| !self.roofline.is_empty()) else {
            return Vec::new();
        };
        let whole =
            self.share_of_peak.map(|share| format!("  {:48} {:>6} % of the peak", "all", fixed(100.0 * share, 1)));
        let line = |point: &RooflinePoint| {
            let rate = point.macs_per_byte().map_or_else(String::new, |intensity| {
                let (rate, intensity) = (fixed(point.macs_per_sec() / 1e9, 1), fixed(intensity, 1));
                format!("  {rate} GMAC/s at {intensity} MAC/byte")
            });
            let (name, share, bound) = (short(&point.shown_name()), fixed(100.0 * point.share, 1), point.bound.name());
            format!("  {name:48} {share:>6} % of the {bound} bound{rate}")
        };
        [peak_line(peak)].into_iter().chain(whole).chain(self.roofline.iter().map(line)).collect()
    }

    /// Lists speed and waiting of a training run.
    fn training_lines(&self) -> Vec<String> {
        let facts = &self.run.facts;
        let Some(training) = &facts.training else { return Vec::new() };
        let line = |name: &str, text: String| format!("  {name:24} {text}");
        let rate = training.samples_per_sec().map(|rate| format!(", {} samples/s", fixed(rate, 1))).unwrap_or_default();
        let step =
            (training.step_secs > 0.0).then(|| line("mean step", format!("{}{rate}", time_text(training.step_secs))));
        let wait = training.data_wait_share().map(|share| {
            let workers =
                if training.workers == 1 { "1 worker".to_owned() } else { format!("{} workers", training.workers) };
            line("waiting for data", format!("{:.1} % of a step, with {workers}", 100.0 * share))
        });
        let device = computing_share(&self.run.stages, facts.wall_secs).map(|share| {
            line("computing", format!("{} % of the run, on {}", fixed(100.0 * share, 1), training.device))
        });
        let steps = self.training_steps.as_ref().map(|StepTimes { count, median_secs, longest_secs }| {
            line(
                "single steps",
                format!("{count}, median {}, longest {}", time_text(*median_secs), time_text(*longest_secs)),
            )
        });
        let transfers = training.traffic.map(|traffic| line("transfers", traffic.text()));
        step.into_iter().chain(wait).chain(device).chain(steps).chain(transfers).collect()
    }

    fn memory_lines(&self) -> Vec<String> {
        let facts = &self.run.facts;
        let peak = facts.peak_bytes.map(|bytes| format!("  {:24} {}", "peak", bytes_text(bytes)));
        let sampled = facts.memory_peak.as_ref().map(|peak| {
            let arena = peak.arena_bytes.map_or_else(String::new, |b| format!(", engine arena {}", bytes_text(b)));
            let span = peak.span.as_ref();
            let span = span.map_or_else(String::new, |(stage, name)| format!(" in {} ({})", stage.name(), short(name)));
            let (bytes, at) = (bytes_text(peak.resident_bytes), time_text(peak.at_us / 1e6));
            format!("  {:24} {bytes} at {at}{span}{arena}", "sampled peak")
        });
        let device = facts.device_memory_peak.as_ref().map(|peak| {
            let span = peak.span.as_ref();
            let span = span.map_or_else(String::new, |(stage, name)| format!(" in {} ({})", stage.name(), short(name)));
            let (allocated, reserved) = (bytes_text(peak.allocated_bytes), bytes_text(peak.reserved_bytes));
            let at = time_text(peak.at_us / 1e6);
            format!("  {:24} {allocated} allocated at {at}{span}, {reserved} reserved", "device peak")
        });
        let mark = |m: &MemoryMark| {
            format!("  {:24} {} at {}", m.label, bytes_text(m.resident_bytes), time_text(m.at_us / 1e6))
        };
        peak.into_iter().chain(sampled).chain(device).chain(self.memory.iter().map(mark)).collect()
    }

    fn growth_lines(&self) -> Vec<String> {
        let line = |span: &SpanRecord| {
            let bytes = u64::try_from(span.resident_change_bytes.unwrap_or(0)).unwrap_or(0);
            let name = format!("{} ({})", span.stage.name(), short(&span.name));
            format!("  {name:48} +{} at {}", bytes_text(bytes), time_text(span.start_us / 1e6))
        };
        self.growing_spans.iter().map(line).collect()
    }

    fn advice_lines(&self) -> Vec<String> {
        let line = |(number, advice): (usize, &Advice)| {
            let further = match advice.further_inputs {
                0 => String::new(),
                1 => " (and 1 further input)".to_owned(),
                n => format!(" (and {n} further inputs)"),
            };
            vec![
                format!("  {}. {}{further}", number + 1, advice.evidence),
                format!("     change: {}", advice.change),
                format!("     gain: {}", advice.expected_gain),
            ]
        };
        if self.advice.is_empty() {
            vec!["  none".to_owned()]
        } else {
            self.advice.iter().enumerate().flat_map(line).collect()
        }
    }

    fn print(&self) {
        print(&self.headline());
        section("stages, with their share of the time", &self.stage_lines());
        section("operators, with their share of the time of all operators", &self.operator_lines());
        if self.spans_not_kept > 0 {
            let (spans, were) = (counted(self.spans_not_kept, "span"), by_count(self.spans_not_kept, "was", "were"));
            print(&format!("  {spans} {were} not kept; totals by stage include all"));
        }
        section("share of the machine's measured peak", &self.roofline_lines());
        if self.roofline.is_empty() && !self.operators.is_empty() {
            print(
                "  the peak of the machine is unknown: only traces of predictions and training runs on the CPU contain it",
            );
        }
        section("training", &self.training_lines());
        section("memory", &self.memory_lines());
        section("growth of the memory of the process during", &self.growth_lines());
        section("advice", &self.advice_lines());
    }
}

/// Returns the peak rates of a machine in one line.
fn peak_line(peak: &MachinePeak) -> String {
    let MachinePeak {
        kernels,
        threads,
        float_macs_per_sec,
        bf16_macs_per_sec,
        int8_macs_per_sec,
        memory_bytes_per_sec,
    } = peak;
    let rate_of = |rate: &Option<f64>, name: &str| {
        rate.map_or_else(String::new, |rate| format!(", {:.1} GMAC/s {name}", rate / 1e9))
    };
    let (bf16, int8) = (rate_of(bf16_macs_per_sec, "bf16"), rate_of(int8_macs_per_sec, "int8"));
    let threads = if *threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    let (float, memory) = (float_macs_per_sec / 1e9, memory_bytes_per_sec / 1e9);
    format!("  peak ({kernels}, {threads}): {float:.1} GMAC/s f32{bf16}{int8}, {memory:.1} GB/s memory")
}

/// Returns the word after a number of spans.
fn spans_word(count: u64) -> &'static str {
    if count == 1 { "span" } else { "spans" }
}

/// Prints a section unless it is empty.
fn section(title: &str, lines: &[String]) {
    if !lines.is_empty() {
        print(&format!("{title}:"));
        lines.iter().for_each(|line| print(line));
    }
}

/// Returns the times of two runs with their ratio in one line.
fn compared_line(compared: &ComparedTime) -> String {
    let ratio = compared.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{}×", fixed(ratio, 2)));
    let (name, first, second) =
        (short(&compared.name), time_text(compared.first_secs), time_text(compared.second_secs));
    format!("  {name:48} {first:>12} {second:>12} {ratio:>8}")
}

/// Formats a number with this many decimals, or with an exponent if it is so large that it comes from a damaged record.
fn fixed(value: f64, decimals: usize) -> String {
    if value.abs() < EXPONENT_FROM { format!("{value:.decimals$}") } else { format!("{value:.1e}") }
}

/// Returns the beginning of a long name, and the number format of an operator at its end.
fn short(name: &str) -> String {
    if name.chars().count() <= NAME_CHARS {
        return name.to_owned();
    }
    let formats = OperatorPrecision::ALL.map(|precision| format!(" ({})", precision.name()));
    let format = formats.iter().find(|format| name.ends_with(format.as_str())).map_or("", String::as_str);
    let kept = (NAME_CHARS - 1).saturating_sub(format.len());
    name.chars().take(kept).chain(['…']).chain(format.chars()).collect()
}

/// Two runs side by side.
#[derive(Serialize)]
struct Comparison {
    first: RunProfile,
    second: RunProfile,
    total: ComparedTime,
    stages: Vec<ComparedTime>,
    operators: Vec<ComparedTime>,
}

impl Comparison {
    fn new(first: StoredRun, second: StoredRun, top: usize) -> Self {
        let wall = |run: &StoredRun| run.record.facts.wall_secs;
        let total = ComparedTime::new("total", wall(&first), wall(&second));
        let stages = compare_stages(&first.record.stages, &second.record.stages);
        let mut operators = compare_operators(&first.operators(), &second.operators());
        // The longest in either run: networks may have no operators in common.
        let longer_secs = |time: &ComparedTime| time.first_secs.max(time.second_secs);
        operators.sort_by(|a, b| longer_secs(b).total_cmp(&longer_secs(a)));
        operators.truncate(top);
        Self { first: RunProfile::new(first, top), second: RunProfile::new(second, top), total, stages, operators }
    }

    fn print(&self) {
        print(&format!("first:  {}", self.first.headline()));
        print(&format!("second: {}", self.second.headline()));
        let lines = |all: &[ComparedTime]| all.iter().map(compared_line).collect::<Vec<_>>();
        section("stages: first, second, second / first", &lines(&self.stages));
        print(&compared_line(&self.total));
        section("operators: first, second, second / first", &lines(&self.operators));
        let has_operators = |run: &RunProfile| !run.operators.is_empty();
        if has_operators(&self.first) != has_operators(&self.second) {
            print("operators: not compared, because only one of the runs has recorded them; expected two traces");
        }
        let peak = |run: &RunProfile| run.run.facts.peak_bytes;
        if let Some((a, b)) = peak(&self.first).zip(peak(&self.second)) {
            print(&format!("peak memory: {}, {}", bytes_text(a), bytes_text(b)));
        }
        section("advice for the first", &self.first.advice_lines());
        section("advice for the second", &self.second.advice_lines());
    }
}

impl Profile {
    pub(crate) fn run(self) -> Outcome {
        if let Some(repetitions) = self.leaks {
            return leaks::run(&self.run, repetitions, self.json);
        }
        if let Some(path) = &self.csv {
            return self.write_csv(path);
        }
        let first = read_run(&self.run)?;
        let Some(other) = &self.compare else {
            let profile = RunProfile::new(first, self.top);
            if self.json {
                return print_json(&profile);
            }
            profile.print();
            return Ok(());
        };
        let comparison = Comparison::new(first, read_run(other)?, self.top);
        if self.json {
            return print_json(&comparison);
        }
        comparison.print();
        Ok(())
    }

    /// Writes a table of the run, or of its comparison, as CSV.
    fn write_csv(&self, path: &Path) -> Outcome {
        let inputs: Vec<&Path> =
            [Some(&self.run), self.compare.as_ref()].into_iter().flatten().map(PathBuf::as_path).collect();
        check_file(path, &inputs, Overwrite::from_force(self.force))?;
        check_extension(path, &["csv"])?;
        if let Some(folder) = whole_around(path) {
            return Err(Failure::wrong_use(format!(
                "--csv {}: the path is inside {}, which the table would change",
                path.display(),
                folder.display()
            ))
            .and_next("write it to another path"));
        }
        let run = read_run(&self.run)?;
        let other = self.compare.as_deref().map(read_run).transpose()?;
        let titles = [Some(&self.run), self.compare.as_ref()].map(|path| path.map(|path| path.display().to_string()));
        let compared = match (&other, &titles) {
            (Some(run), [Some(first), Some(second)]) => Some(ComparedRun { run, titles: [first, second] }),
            _ => None,
        };
        let table = match &other {
            Some(_) => RunTable::Comparison,
            None => self.table.unwrap_or(TableName::Operators).table(),
        };
        let text = table.csv(&run, compared);
        let is_empty = text.lines().nth(1).is_none();
        if let Some(why) = why_empty(table).filter(|_| is_empty) {
            return Err(Failure::bad_input(format!(
                "{}: the table of this run would be empty: {why}",
                self.run.display()
            )));
        }
        atomic_write(path, text.as_bytes())?;
        print(&format!("wrote {}", path.display()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_profile::{InputFacts, Recorder, RunFacts, Stage};

    #[test]
    fn the_longest_operators_of_either_run_are_compared() {
        let run = |operators: &[(&'static str, f64)]| {
            let record = RunRecord::new("cytoscope 0", "predict", &Recorder::off(), RunFacts::default());
            let span = |(name, secs): &(&'static str, f64)| SpanRecord::new(Stage::Op, *name, 0.0, 1e6 * secs);
            let spans = operators.iter().map(span).collect();
            StoredRun { record, spans, marks: Vec::new(), timeline: Vec::new(), spans_not_kept: 0 }
        };
        let (first, second) = (run(&[("Conv a", 3.0), ("Conv b", 1.0)]), run(&[("Conv c", 2.0)]));
        let compared = Comparison::new(first, second, 2);
        let names: Vec<&str> = compared.operators.iter().map(|time| time.name.as_str()).collect();
        assert_eq!(names, ["Conv a", "Conv c"]);
    }

    #[test]
    fn operators_of_microseconds_have_a_time_and_damaged_records_do_not_fill_the_line() {
        let record = RunRecord::new("cytoscope 0", "predict", &Recorder::off(), RunFacts::default());
        let span = |name: &'static str, duration_us| SpanRecord {
            macs: 5,
            ..SpanRecord::new(Stage::Op, name, 0.0, duration_us)
        };
        let spans = vec![span("Relu a", 7.36), span("Conv b", 1e300), span("Conv c", 1e-300)];
        let run = StoredRun { record, spans, marks: Vec::new(), timeline: Vec::new(), spans_not_kept: 0 };
        let lines = RunProfile::new(run.clone(), 9).operator_lines();
        assert!(lines.iter().any(|line| line.contains("Relu a") && line.contains(" 7.36 µs ")), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() < 120), "{lines:?}");
        assert!(lines.iter().all(|line| line.contains(" 1 span ")), "{lines:?}");
        let compared = Comparison::new(run.clone(), run, 9).operators;
        let lines: Vec<String> = compared.iter().map(compared_line).collect();
        assert!(lines.iter().any(|line| line.contains(" 7.36 µs ") && line.ends_with(" 1.00×")), "{lines:?}");
        let ratio = compared_line(&ComparedTime::new("Conv b", 1e-300, 1.0));
        assert!(ratio.ends_with(" 1.0e300×"), "{ratio}");
    }

    #[test]
    fn times_of_operators_on_a_gpu_are_said_to_include_the_launch() {
        let lines = |device: &str| {
            let inputs = vec![InputFacts { device: device.into(), ..InputFacts::default() }];
            let facts = RunFacts { inputs, ..RunFacts::default() };
            let record = RunRecord::new("cytoscope 0", "predict", &Recorder::off(), facts);
            let spans = vec![SpanRecord::new(Stage::Op, "Conv a", 0.0, 5.0)];
            let run = StoredRun { record, spans, marks: Vec::new(), timeline: Vec::new(), spans_not_kept: 0 };
            RunProfile::new(run, 9).operator_lines()
        };
        let on_gpu = lines("cuda:0");
        assert!(on_gpu.len() == 2 && on_gpu[1].contains("includes the launch"), "{on_gpu:?}");
        assert_eq!((lines("cpu").len(), lines("").len()), (1, 1));
    }

    #[test]
    fn long_names_are_cut_to_the_width_of_the_table() {
        assert_eq!(short("Conv a"), "Conv a");
        assert_eq!(short(&"ä".repeat(60)).chars().count(), NAME_CHARS);
        let with_format = short(&format!("{} (int8)", "ä".repeat(60)));
        assert!(with_format.ends_with("ä… (int8)") && with_format.chars().count() == NAME_CHARS, "{with_format}");
    }
}
