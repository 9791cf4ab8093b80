//! The file of results, and comparisons of its entries.

use super::metrics::{Spread, flat};
use super::tasks::TaskKind;
use crate::cli::failure::Failure;
use crate::cli::measured::{PROGRAM, cores};
use crate::cli::print;
use cytoscope_storage::read::open_regular;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum size of a file of results in bytes.
const MAX_RESULTS_BYTES: u64 = 64 << 20;
/// Figures that are compared, by kind: smaller is better.
const COMPARED: [&str; 11] = [
    "total_secs",
    "full_prediction_secs",
    "avg_batch_secs",
    "full_secs",
    "first_epoch_secs",
    "step_secs",
    "peak_bytes",
    "device_peak_bytes",
    "network_bytes",
    "run_secs",
    "arena_bytes",
];

/// State of the source tree in the current folder, or of the branch whose program ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct GitInfo {
    pub branch: String,
    pub commit_hash: String,
    /// Date of the commit, as ISO 8601.
    pub commit_date: String,
}

/// The machine and the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub program: String,
    pub cpu: Option<String>,
    pub cores: usize,
    pub memory_bytes: Option<u64>,
    pub os: String,
    pub arch: String,
}

/// Result of a task of the bench, over all its runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TaskResult {
    pub name: String,
    pub kind: TaskKind,
    /// Start of the bench, as ISO 8601 in UTC.
    pub timestamp: String,
    pub success: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default)]
    pub git_info: Option<GitInfo>,
    #[serde(default)]
    pub machine: Option<Machine>,
    /// Number of successful runs.
    #[serde(default)]
    pub runs: usize,
    /// Minimum, median and maximum of each figure.
    #[serde(default)]
    pub metrics: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_info: Option<Value>,
}

/// What the results of one bench have in common: its start, the source tree and the machine.
pub(super) struct Origin {
    timestamp: String,
    git_info: Option<GitInfo>,
    machine: Machine,
}

impl Origin {
    /// Returns the origin of results measured here, by a bench that started at `timestamp` (ISO 8601 in UTC).
    pub(super) fn here(timestamp: &str) -> Self {
        Self { timestamp: timestamp.to_owned(), git_info: GitInfo::here(), machine: Machine::this() }
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
            dataset_info: None,
        }
    }
}

impl GitInfo {
    /// Returns the state of the source tree in the current folder; `None` outside a repository.
    fn here() -> Option<Self> {
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
    fn this() -> Self {
        Self {
            program: PROGRAM.to_owned(),
            cpu: cytoscope_profile::cpu_name().map(str::to_owned),
            cores: cores(),
            memory_bytes: cytoscope_profile::total_bytes(),
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
        }
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
    read.map_err(|error| failed(format!("{error}; check the path")))?;
    if text.len() as u64 > MAX_RESULTS_BYTES {
        return Err(failed(format!("the file is larger than {MAX_RESULTS_BYTES} bytes; expected results of a bench")));
    }
    serde_json::from_slice(&text)
        .map_err(|error| failed(format!("{error}; expected results written by cytoscope bench --output")))
}

/// Prints how much faster each result is than the stored one of the same name.
pub(super) fn compare_with_stored(results: &[TaskResult], stored: &[TaskResult]) {
    for result in results.iter().filter(|result| result.success) {
        match stored.iter().find(|s| s.name == result.name && s.kind == result.kind && s.success) {
            Some(old) => print_comparison(&format!("{}, compared with {}", result.name, old.timestamp), result, old),
            None => print(&format!("{}: the stored results have no successful task of this name", result.name)),
        }
    }
}

/// Prints how much faster the other tasks are than the first successful one of the same kind.
pub(super) fn compare_with_first(results: &[TaskResult]) {
    for kind in [TaskKind::Inference, TaskKind::Training] {
        let mut of_kind = results.iter().filter(|result| result.success && result.kind == kind);
        let Some(first) = of_kind.next() else { continue };
        for result in of_kind {
            print_comparison(&format!("{}, compared with {}", result.name, first.name), result, first);
        }
    }
}

fn print_comparison(title: &str, result: &TaskResult, reference: &TaskResult) {
    print(&format!("{title}:"));
    let (own, other) = (flat(&result.metrics), flat(&reference.metrics));
    comparison_lines(&own, &other).iter().for_each(|line| print(line));
}

fn comparison_lines(own: &BTreeMap<String, Spread>, other: &BTreeMap<String, Spread>) -> Vec<String> {
    let line = |name: &&str| {
        let (own, other) = own.get(*name).zip(other.get(*name))?;
        let ratio = own.speed_up(other)?;
        let word = if name.ends_with("_bytes") { "smaller" } else { "faster" };
        Some(format!(
            "  {name:22} {:.2}× {word} ({:.2} to {:.2}): {}, before {}",
            ratio.median,
            ratio.min,
            ratio.max,
            amount(name, own.median),
            amount(name, other.median)
        ))
    };
    COMPARED.iter().filter_map(line).collect()
}

/// Formats a figure in its unit.
pub(super) fn amount(name: &str, value: f64) -> String {
    if name.ends_with("_bytes") {
        cytoscope_profile::bytes_text(value as u64)
    } else if name.ends_with("_secs") {
        format!("{value:.3} s")
    } else {
        format!("{value:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(utc(4_102_444_799), "2099-12-31T23:59:59Z");
    }

    #[test]
    fn comparisons_state_ratio_and_spread() {
        let spread = |min, median, max| Spread { min, median, max };
        let own = BTreeMap::from([("total_secs".to_owned(), spread(1.0, 2.0, 4.0))]);
        let other = BTreeMap::from([
            ("total_secs".to_owned(), spread(4.0, 5.0, 6.0)),
            ("full_secs".to_owned(), spread(1.0, 1.0, 1.0)),
        ]);
        let lines = comparison_lines(&own, &other);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("2.50× faster (1.00 to 6.00): 2.000 s, before 5.000 s"), "{}", lines[0]);
    }

    #[test]
    fn results_of_other_versions_need_only_name_kind_and_success() {
        let text = r#"[{"name": "a", "kind": "inference", "timestamp": "t", "success": true}]"#;
        let read: Vec<TaskResult> = serde_json::from_str(text).unwrap();
        assert!(flat(&read[0].metrics).is_empty());
    }
}
