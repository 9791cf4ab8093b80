//! The file of results, and comparisons of its entries.

use super::metrics::{Figures, Metric, Spread, Unit, flat};
use super::tasks::TaskKind;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::measured::cores;
use crate::cli::{note_moved_aside, print, unreadable};
use cytoscope_pipeline::PROGRAM;
use cytoscope_pipeline::provenance::InputRecord;
use cytoscope_storage::Overwrite;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::write_checked;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::Cell;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum size of a file of results in bytes.
const MAX_RESULTS_BYTES: u64 = 64 << 20;
/// Difference of the memory of two machines, as a share, above which they count as different: systems keep varying parts.
const MEMORY_TOLERANCE: f64 = 0.05;
/// Figures that are compared, in the order of their lines; the scores of training runs follow.
const COMPARED: [(&str, Measure); 14] = [
    (Metric::TotalSecs.name(), Measure::Time),
    (Metric::FullPredictionSecs.name(), Measure::Time),
    (Metric::VoxelsPerSec.name(), Measure::Rate),
    (Metric::AvgBatchSecs.name(), Measure::Time),
    (Metric::FullSecs.name(), Measure::Time),
    (Metric::FirstEpochSecs.name(), Measure::Time),
    (Metric::SamplesPerSec.name(), Measure::Rate),
    (STEP_SECS, Measure::Time),
    (Metric::PeakBytes.name(), Measure::Size),
    (Metric::DevicePeakBytes.name(), Measure::Size),
    (Metric::NetworkBytes.name(), Measure::Size),
    (Metric::RunSecs.name(), Measure::Time),
    (Metric::ArenaBytes.name(), Measure::Size),
    (Metric::RelativeL2.name(), Measure::Difference),
];
/// Time of a training step, which depends on the batch size.
const STEP_SECS: &str = Metric::StepSecs.name();
/// Value from which decimals say nothing, such as those of voxels per second.
const NO_DECIMALS: f64 = 1e4;
/// Prefix of the names of the scores of a training run.
const SCORES: &str = "final.";

/// How two values of a figure are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Measure {
    /// A time: less is better.
    Time,
    /// A number of bytes: less is better.
    Size,
    /// Work per second: more is better.
    Rate,
    /// An accuracy or an error: the difference is stated, because a ratio says little.
    Difference,
}

/// State of the source tree in the current folder, or of the branch whose program ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct GitInfo {
    /// Name of the branch; `HEAD` if none is checked out.
    pub branch: String,
    /// Full hash of the commit, 40 hexadecimal digits.
    pub commit_hash: String,
    /// Date of the commit, as ISO 8601.
    pub commit_date: String,
}

/// The machine and the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Machine {
    /// Name and version of the program, such as `cytoscope 0.1.0`.
    pub program: String,
    /// Model of the CPU; `None` if the system does not report it.
    pub cpu: Option<String>,
    /// Number of cores that the program may use.
    pub cores: usize,
    /// Memory of the machine, or of the control group if it allows less, in bytes; `None` if unknown.
    pub memory_bytes: Option<u64>,
    /// Operating system as Rust names it: `linux`, `macos` or `windows`.
    pub os: String,
    /// Instruction set architecture as Rust names it, such as `x86_64` or `aarch64`.
    pub arch: String,
}

/// Result of a task of the bench, over all its runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TaskResult {
    /// Name of the task in the table; results are compared with stored ones of the same name and kind.
    pub name: String,
    /// Training or inference, which have different figures.
    pub kind: TaskKind,
    /// Start of the bench, as ISO 8601 in UTC.
    pub timestamp: String,
    /// Whether all runs ended without an error.
    pub success: bool,
    /// Message of the run that failed; `None` if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The source tree that was measured; `None` outside a git repository, and in results of other programs.
    #[serde(default)]
    pub git_info: Option<GitInfo>,
    /// Machine of the runs, and the program of the bench; `None` in results of other programs.
    #[serde(default)]
    pub machine: Option<Machine>,
    /// Number of successful runs.
    #[serde(default)]
    pub runs: usize,
    /// Minimum, median and maximum of each figure.
    #[serde(default)]
    pub metrics: Value,
    /// Figures of each successful run, in the order of the runs, with which an interrupted bench continues; empty for
    /// --compare-opts and --span-cost, and in results of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run_metrics: Vec<Figures>,
    /// Pairs, patch, batch and steps of a training run; `None` for inference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_info: Option<Value>,
    /// Fingerprint of the command line and of the program that ran it; `None` for --compare-opts and --span-cost, and in
    /// results of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Options of the task, such as `--device=cpu`; `None` for --compare-opts and --span-cost, and in results of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Vec<String>>,
    /// The data, the model and other files that the task was to read, as they were before its runs; empty if the results are
    /// not those of a table, and in results of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputRecord>,
}

/// Replaces the stored results with the results so far.
pub(super) type Store<'a> = &'a mut dyn FnMut(&[TaskResult]) -> Outcome;

/// Data that all results of one bench share: its start, the source tree and the machine.
pub(super) struct Origin {
    timestamp: String,
    git_info: Option<GitInfo>,
    machine: Machine,
}

impl Origin {
    /// Returns the origin of results measured here, by a bench that started at `timestamp` (ISO 8601 in UTC).
    pub(super) fn of_this_bench(timestamp: &str) -> Self {
        Self { timestamp: timestamp.to_owned(), git_info: GitInfo::of_current_folder(), machine: Machine::current() }
    }

    /// Returns the result of a task without errors, measured with the program of this source tree.
    pub(super) fn result(&self, name: &str, kind: TaskKind, runs: usize, metrics: Value) -> TaskResult {
        TaskResult {
            name: name.to_owned(),
            kind,
            timestamp: self.timestamp.clone(),
            success: true,
            error: None,
            git_info: self.git_info.clone(),
            machine: Some(self.machine.clone()),
            runs,
            metrics,
            run_metrics: Vec::new(),
            dataset_info: None,
            fingerprint: None,
            options: None,
            inputs: Vec::new(),
        }
    }

    /// Returns the differences of this machine from that of a stored result; empty if the result does not state one.
    pub(super) fn differences(&self, stored: &TaskResult) -> Vec<String> {
        stored.machine.as_ref().map_or_else(Vec::new, |machine| self.machine.differences(machine))
    }
}

impl GitInfo {
    /// Returns the state of the source tree in the current folder; `None` outside a repository.
    fn of_current_folder() -> Option<Self> {
        let git = |arguments: &[&str]| git_in(Path::new("."), arguments);
        Some(Self {
            branch: git(&["rev-parse", "--abbrev-ref", "HEAD"])?,
            commit_hash: git(&["rev-parse", "HEAD"])?,
            commit_date: git(&["log", "-1", "--format=%cI"])?,
        })
    }
}

/// Runs git in a folder, and returns what it printed; `None` if it failed or is not installed.
pub(super) fn git_in(folder: &Path, arguments: &[&str]) -> Option<String> {
    let out = Command::new("git").current_dir(folder).args(arguments).stdin(Stdio::null()).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

impl Machine {
    /// Returns the machine that this program runs on.
    fn current() -> Self {
        Self {
            program: PROGRAM.to_owned(),
            cpu: cytoscope_profile::cpu_name().map(str::to_owned),
            cores: cores(),
            memory_bytes: cytoscope_profile::total_bytes(),
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
        }
    }

    /// Returns what differs from this machine in a stored one, in which another program may have run.
    fn differences(&self, stored: &Self) -> Vec<String> {
        let unknown = || "unknown".to_owned();
        let text = |value: &Option<String>| value.clone().unwrap_or_else(unknown);
        let cores = |count: usize| if count == 1 { "1 core".to_owned() } else { format!("{count} cores") };
        let memory = |bytes: Option<u64>| bytes.map_or_else(unknown, cytoscope_profile::bytes_text);
        let is_other_memory = match (self.memory_bytes, stored.memory_bytes) {
            (Some(own), Some(stored)) => (own as f64 - stored as f64).abs() > MEMORY_TOLERANCE * own as f64,
            (own, stored) => own != stored,
        };
        let compared = [
            (self.cpu != stored.cpu, text(&stored.cpu), text(&self.cpu)),
            (self.cores != stored.cores, cores(stored.cores), cores(self.cores)),
            (is_other_memory, format!("memory {}", memory(stored.memory_bytes)), memory(self.memory_bytes)),
            (self.os != stored.os, stored.os.clone(), self.os.clone()),
            (self.arch != stored.arch, stored.arch.clone(), self.arch.clone()),
        ];
        let differ = compared.into_iter().filter(|(differs, ..)| *differs);
        differ.map(|(_, stored, own)| format!("{stored}, here {own}")).collect()
    }
}

/// Returns the current time as ISO 8601 in UTC.
pub(super) fn now() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Returns a time, in seconds since 1970, as ISO 8601 in UTC.
fn utc(secs: u64) -> String {
    let (days, time) = (secs / 86_400, secs % 86_400);
    // The calendar repeats every 400 years of 146,097 days; years start in March here, so that leap days come last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", time / 3600, time / 60 % 60, time % 60)
}

/// Reads a file of results.
///
/// # Errors
/// Bad input if the file cannot be read or holds something else.
pub(super) fn read(path: &Path) -> Result<Vec<TaskResult>, Failure> {
    let failed = |problem: String| Failure::bad_input(format!("{}: {problem}", path.display()));
    let mut text = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(MAX_RESULTS_BYTES + 1).read_to_end(&mut text));
    read.map_err(|error| unreadable(path, error))?;
    if text.len() as u64 > MAX_RESULTS_BYTES {
        return Err(failed(format!("the file is larger than {MAX_RESULTS_BYTES} bytes; expected results of a bench")));
    }
    serde_json::from_slice(&text)
        .map_err(|error| failed(format!("{error}; expected results written by cytoscope bench --output")))
}

/// The file that a bench writes its results to, at first and after each run.
pub(super) struct ResultsFile<'a> {
    path: &'a Path,
    /// What the next write may replace: after the first one, the file is that of this bench.
    may_replace: Cell<Overwrite>,
}

impl<'a> ResultsFile<'a> {
    /// Returns the file at a path that [`cytoscope_storage::target::check_file`] has allowed with `overwrite`.
    pub(super) fn new(path: &'a Path, overwrite: Overwrite) -> Self {
        Self { path, may_replace: Cell::new(overwrite) }
    }

    /// Writes the results, if there are any. A file that another program has created before the first write is moved aside.
    pub(super) fn write(&self, done: &[TaskResult]) -> Outcome {
        if done.is_empty() {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(done).map_err(|e| Failure::other(e.to_string()))?;
        let aside = write_checked(self.path, &text, self.may_replace.get())?;
        self.may_replace.set(Overwrite::Replace);
        note_moved_aside(self.path, aside.as_deref());
        Ok(())
    }
}

/// Prints how many times as fast each result is as the stored one of the same name.
pub(super) fn compare_with_stored(results: &[TaskResult], stored: &[TaskResult]) {
    for result in results.iter().filter(|result| result.success) {
        match stored.iter().find(|s| s.name == result.name && s.kind == result.kind && s.success) {
            Some(old) => {
                print(&format!("{}, compared with {}:", result.name, old.timestamp));
                machine_note(result, old).iter().for_each(|note| print(note));
                options_note(result, old).iter().for_each(|note| print(note));
                print_lines(&comparison_lines(result, old));
            }
            None => print(&format!("{}: the stored results have no successful task of this name", result.name)),
        }
    }
}

/// Prints how many times as fast the other tasks are as the first successful one of the same kind.
pub(super) fn compare_with_first(results: &[TaskResult]) {
    let mut has_compared = false;
    for kind in [TaskKind::Inference, TaskKind::Training] {
        let mut comparable = results.iter().filter(|result| result.success && result.kind == kind);
        let Some(first) = comparable.next() else { continue };
        for result in comparable {
            has_compared = true;
            print(&format!("{}, compared with {}:", result.name, first.name));
            print_lines(&comparison_lines(result, first));
        }
    }
    if !has_compared {
        print(
            "nothing was compared: expected two successful tasks of the same kind, or stored results (--compare \
             STORED.json)",
        );
    }
}

/// Prints the lines of a comparison.
fn print_lines(lines: &[String]) {
    if lines.is_empty() {
        print("  the results have no figures in common");
    }
    lines.iter().for_each(|line| print(line));
}

/// Returns a warning if a stored result was measured on another machine; `None` if the machine is the same or not stored.
fn machine_note(result: &TaskResult, stored: &TaskResult) -> Option<String> {
    let (own, stored) = result.machine.as_ref().zip(stored.machine.as_ref())?;
    let differences = own.differences(stored);
    if differences.is_empty() {
        return None;
    }
    Some(format!(
        "  note: the stored result is that of another machine ({}), so the ratios compare the machines, too",
        differences.join("; ")
    ))
}

/// Returns a warning if the stored task had other options, such as another device; `None` if they are the same or not stored.
fn options_note(result: &TaskResult, stored: &TaskResult) -> Option<String> {
    let (own, stored) = result.options.as_ref().zip(stored.options.as_ref())?;
    let only_in = |options: &[String], others: &[String]| {
        let only: Vec<&str> = options.iter().filter(|option| !others.contains(option)).map(String::as_str).collect();
        if only.is_empty() { "the defaults".to_owned() } else { only.join(" ") }
    };
    let (only_stored, only_own) = (only_in(stored, own), only_in(own, stored));
    (only_stored != only_own).then(|| {
        format!(
            "  note: the stored task had other options ({only_stored}, here {only_own}), so the ratios compare the options, \
             too"
        )
    })
}

/// Returns the number of patches of a training step; `None` for inference.
fn batch(result: &TaskResult) -> Option<u64> {
    result.dataset_info.as_ref()?.get("batch")?.as_u64()
}

/// Returns a line for each compared figure that both results have.
fn comparison_lines(result: &TaskResult, reference: &TaskResult) -> Vec<String> {
    let (own, other) = (flat(&result.metrics), flat(&reference.metrics));
    let is_single = result.runs <= 1 || reference.runs <= 1;
    // A step with a larger batch takes longer, but computes more.
    let has_other_batch = batch(result) != batch(reference);
    let scores = own.keys().filter(|name| name.starts_with(SCORES)).map(|name| (name.as_str(), Measure::Difference));
    let all = COMPARED.iter().copied().chain(scores).filter(|(name, _)| !(has_other_batch && *name == STEP_SECS));
    let line = |(name, measure): (&str, Measure)| {
        let (own, other) = own.get(name).zip(other.get(name))?;
        comparison_line(name, measure, [own, other], is_single)
    };
    all.filter_map(line).collect()
}

/// Returns the line of one figure and its reference; `None` if their ratio is undefined. `is_single` says whether one
/// of them comes from a single run, so that there is no spread.
fn comparison_line(name: &str, measure: Measure, [own, other]: [&Spread; 2], is_single: bool) -> Option<String> {
    let (change, range) = match measure {
        Measure::Time | Measure::Size | Measure::Rate => {
            let ratio = if measure == Measure::Time { own.speed_up(other)? } else { other.speed_up(own)? };
            let word = if measure == Measure::Size { "as large" } else { "as fast" };
            (format!("{:.2}× {word}", ratio.median), format!("{:.2} to {:.2}", ratio.min, ratio.max))
        }
        Measure::Difference => {
            let difference = own.minus(other);
            let [min, median, max] = [difference.min, difference.median, difference.max].map(|v| signed(name, v));
            (median, format!("{min} to {max}"))
        }
    };
    let range = if is_single { "one run".to_owned() } else { range };
    let (own, other) = (amount(name, own.median), amount(name, other.median));
    Some(format!("  {name:22} {change} ({range}): {own} against {other}"))
}

/// Formats a difference of a figure that has no unit.
fn signed(name: &str, value: f64) -> String {
    if Unit::of(name) == Unit::RelativeError { format!("{value:+.1e}") } else { format!("{value:+.4}") }
}

/// Formats a figure in its unit.
pub(super) fn amount(name: &str, value: f64) -> String {
    match Unit::of(name) {
        Unit::Bytes => cytoscope_profile::bytes_text(value as u64),
        Unit::Seconds => cytoscope_profile::time_text(value),
        Unit::RelativeError => format!("{value:.1e}"),
        Unit::Number if value.abs() < NO_DECIMALS => format!("{value:.4}"),
        Unit::Count | Unit::Number => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::metrics::nested;
    use std::collections::BTreeMap;

    #[test]
    fn times_are_written_in_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(utc(4_102_444_799), "2099-12-31T23:59:59Z");
    }

    fn machine() -> Machine {
        Machine {
            program: "cytoscope 1".to_owned(),
            cpu: Some("a CPU".to_owned()),
            cores: 8,
            memory_bytes: Some(16 << 30),
            os: "linux".to_owned(),
            arch: "x86_64".to_owned(),
        }
    }

    /// The result of a task with these spreads: minimum, median, maximum.
    fn result(runs: usize, figures: &[(&str, [f64; 3])]) -> TaskResult {
        let spread = |&(name, [min, median, max]): &(&str, [f64; 3])| (name.to_owned(), Spread { min, median, max });
        let spreads: BTreeMap<String, Spread> = figures.iter().map(spread).collect();
        let metrics = nested(&spreads);
        let origin = Origin { timestamp: "t".to_owned(), git_info: None, machine: machine() };
        origin.result("a", TaskKind::Training, runs, metrics)
    }

    #[test]
    fn a_file_that_appears_before_the_first_write_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.json");
        let file = ResultsFile::new(&path, Overwrite::Refuse);
        std::fs::write(&path, "created meanwhile").unwrap();
        file.write(&[]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"created meanwhile");
        for runs in 1..=2 {
            file.write(&[result(runs, &[])]).unwrap();
            assert_eq!(read(&path).unwrap()[0].runs, runs);
        }
        assert_eq!(std::fs::read(folder.path().join("r.json.before-1")).unwrap(), b"created meanwhile");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "its own results are replaced");
    }

    #[test]
    fn comparisons_state_ratio_and_spread() {
        let own = result(3, &[("total_secs", [1.0, 2.0, 4.0]), ("peak_bytes", [3e6, 4e6, 5e6])]);
        let other = result(3, &[("total_secs", [4.0, 5.0, 6.0]), ("full_secs", [1.0; 3]), ("peak_bytes", [2e6; 3])]);
        let lines = comparison_lines(&own, &other);
        assert_eq!(lines.len(), 2);
        assert!(lines[1].contains("2.00× as large (1.50 to 2.50): "), "{}", lines[1]);
        assert!(lines[0].contains("2.50× as fast (1.00 to 6.00): 2.000 s against 5.000 s"), "{}", lines[0]);
    }

    #[test]
    fn a_single_run_has_no_spread() {
        let (own, other) = (result(1, &[("total_secs", [2.0; 3])]), result(3, &[("total_secs", [1.0, 3.0, 9.0])]));
        for lines in [comparison_lines(&own, &other), comparison_lines(&other, &own)] {
            assert!(lines.len() == 1 && lines[0].contains("as fast (one run): "), "{lines:?}");
        }
    }

    #[test]
    fn figures_are_printed_in_their_unit() {
        let shown = [
            ("voxels_per_sec", 3_476_932.77),
            ("samples_per_sec", 1.5),
            ("total_secs", 2.0),
            ("relative_l2", 1e-3),
            ("qat_steps", 240.0),
        ];
        assert_eq!(shown.map(|(name, value)| amount(name, value)), ["3476933", "1.5000", "2.000 s", "1.0e-3", "240"]);
        let times = [0.0, 7.36e-6, 0.0199, 0.25, 1.0];
        let texts = times.map(|secs| amount("first_batch.post_secs", secs));
        assert_eq!(texts, ["0.000 s", "7.36 µs", "19.90 ms", "250.00 ms", "1.000 s"]);
    }

    #[test]
    fn rates_are_compared_by_ratio_and_scores_by_difference() {
        let own = [("voxels_per_sec", [3.0, 4.0, 5.0]), ("relative_l2", [2e-3; 3]), ("final.f1@0_5", [0.8, 0.9, 0.95])];
        let other =
            [("voxels_per_sec", [1.0, 2.0, 2.5]), ("relative_l2", [5e-4; 3]), ("final.f1@0_5", [0.5, 0.7, 0.8])];
        let lines = comparison_lines(&result(3, &own), &result(3, &other));
        let expected = [
            "2.00× as fast (1.20 to 5.00): 4.0000 against 2.0000",
            "+1.5e-3 (+1.5e-3 to +1.5e-3): 2.0e-3 against 5.0e-4",
            "+0.2000 (+0.0000 to +0.4500): 0.9000 against 0.7000",
        ];
        assert_eq!(lines.len(), expected.len(), "{lines:?}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.ends_with(expected), "{line}, expected {expected}");
        }
    }

    #[test]
    fn steps_of_another_batch_size_are_compared_by_their_patches() {
        let with_batch = |batch: u64, step_secs: f64| {
            let figures = [("step_secs", [step_secs; 3]), ("samples_per_sec", [batch as f64 / step_secs; 3])];
            TaskResult { dataset_info: Some(serde_json::json!({ "batch": batch })), ..result(2, &figures) }
        };
        let lines = comparison_lines(&with_batch(4, 2.0), &with_batch(1, 1.0));
        assert!(
            lines.len() == 1 && lines[0].contains("samples_per_sec") && lines[0].contains("2.00× as fast"),
            "{lines:?}"
        );
        let same = comparison_lines(&with_batch(4, 2.0), &with_batch(4, 1.0));
        assert!(same.len() == 2 && same[1].contains("step_secs") && same[1].contains("0.50× as fast"), "{same:?}");
    }

    #[test]
    fn a_stored_result_of_another_machine_is_named() {
        let own = result(2, &[]);
        let stored = |machine: Option<Machine>| TaskResult { machine, ..result(2, &[]) };
        // Another version of the program, and memory that the system keeps.
        let updated = Machine { program: "cytoscope 2".to_owned(), memory_bytes: Some(16_500 << 20), ..machine() };
        assert_eq!(machine_note(&own, &stored(Some(updated))), None);
        assert_eq!(machine_note(&own, &stored(None)), None, "a result of another version");
        let other = Machine { cpu: Some("another CPU".to_owned()), cores: 1, ..machine() };
        let note = machine_note(&own, &stored(Some(other))).unwrap();
        assert!(note.contains("(another CPU, here a CPU; 1 core, here 8 cores)"), "{note}");
        let smaller = Machine { memory_bytes: Some(8 << 30), ..machine() };
        let note = machine_note(&own, &stored(Some(smaller))).unwrap();
        assert!(note.contains("(memory 8.00 GiB, here 16.00 GiB)"), "{note}");
    }

    #[test]
    fn a_stored_result_of_other_options_is_named() {
        let of = |options: Option<&[&str]>| {
            let options = options.map(|options| options.iter().map(|option| (*option).to_owned()).collect());
            TaskResult { options, ..result(2, &[]) }
        };
        let own = of(Some(&["--device=cpu", "--precision=int8"]));
        assert_eq!(options_note(&own, &of(Some(&["--precision=int8", "--device=cpu"]))), None);
        assert_eq!(options_note(&own, &of(None)), None, "a result of another version");
        let note = options_note(&own, &of(Some(&["--device=cpu", "--precision=f32"]))).unwrap();
        assert!(note.contains("(--precision=f32, here --precision=int8)"), "{note}");
        let note = options_note(&own, &of(Some(&["--precision=int8"]))).unwrap();
        assert!(note.contains("(the defaults, here --device=cpu)"), "{note}");
    }

    #[test]
    fn results_of_other_versions_need_only_name_kind_and_success() {
        let text = r#"[{"name": "a", "kind": "inference", "timestamp": "t", "success": true}]"#;
        let read: Vec<TaskResult> = serde_json::from_str(text).unwrap();
        assert!(flat(&read[0].metrics).is_empty());
    }
}
