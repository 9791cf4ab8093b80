//! Runs that the profiler shows: jobs of this window, and runs from files.

use crate::document::file_name;
use crate::engine_notes::message_in_window;
use crate::work::{JobState, JobView, TrainingTimes};
use cytoscope_profile::{
    DeviceMemory, MAX_RUN_BYTES, MemoryMark, MemorySample, RunFacts, SpanRecord, StageTotal, StoredRun, TrainingFacts,
    bytes_text, computing_share,
};
use cytoscope_storage::io_message;
use cytoscope_storage::message;
use cytoscope_storage::read::open_regular;
use cytoscope_worker::JobId;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Starts and durations in µs that spans can have, up to about four months. Others cannot be drawn.
const SPAN_TIMES_US: RangeInclusive<f64> = 0.0..=1e13;

/// Number of bars of a histogram of step times.
const BARS: usize = 30;

/// Share of the steps whose times are within the histogram; longer ones are in its last bar.
const SHOWN_SHARE: f64 = 0.98;

/// Identifies a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunId {
    /// A job of this window.
    Job(JobId),
    /// A run from a file, by its number in this window.
    File(u64),
}

/// A run that was read from a file.
#[derive(Debug)]
pub(crate) struct FileRun {
    /// Number that no other run of this window has.
    pub(crate) number: u64,
    /// File name and command.
    pub(crate) title: String,
    /// Where it was read from.
    pub(crate) path: PathBuf,
    /// The run that the file contains.
    pub(crate) run: StoredRun,
}

impl FileRun {
    /// A run with this number that was read from `path`.
    pub(crate) fn new(number: u64, path: PathBuf, run: StoredRun) -> Self {
        let title = format!("{} · {}", file_name(&path), run.record.command);
        Self { number, title, path, run }
    }
}

/// Reads a run from a trace or a report.
///
/// # Errors
/// A message that names the file if it cannot be read, is too large or holds no run.
pub(crate) fn read_run(path: &Path) -> Result<StoredRun, String> {
    let mut text = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(MAX_RUN_BYTES + 1).read_to_end(&mut text));
    read.map_err(|error| io_message(path, &error))?;
    if text.len() as u64 > MAX_RUN_BYTES {
        let limit = bytes_text(MAX_RUN_BYTES);
        return Err(format!("{}: the file is larger than {limit}; expected a stored run", path.display()));
    }
    let mut run =
        StoredRun::from_json(&text).map_err(|error| message_in_window(&message!("{}: {error}", path.display())))?;
    let in_file = run.spans.len();
    run.spans.retain(|s| SPAN_TIMES_US.contains(&s.start_us) && SPAN_TIMES_US.contains(&s.duration_us));
    run.spans_not_kept = run.spans_not_kept.saturating_add((in_file - run.spans.len()) as u64);
    Ok(run)
}

/// A run, wherever it comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ShownRun<'a> {
    /// A job of this window.
    Job(&'a JobView),
    /// A run from a file.
    File(&'a FileRun),
}

impl<'a> ShownRun<'a> {
    /// Its identity.
    pub(crate) fn id(self) -> RunId {
        match self {
            ShownRun::Job(job) => RunId::Job(job.id),
            ShownRun::File(file) => RunId::File(file.number),
        }
    }

    /// Title for display.
    pub(crate) fn title(self) -> &'a str {
        match self {
            ShownRun::Job(job) => &job.title,
            ShownRun::File(file) => &file.title,
        }
    }

    /// Wall time in seconds, of a running job so far.
    pub(crate) fn wall_secs(self) -> f64 {
        match self {
            ShownRun::Job(job) => job.elapsed_secs(),
            ShownRun::File(file) => file.run.record.facts.wall_secs,
        }
    }

    /// Whether it is a job that is running.
    pub(crate) fn is_running(self) -> bool {
        matches!(self, ShownRun::Job(job) if job.state == JobState::Running)
    }

    /// Totals by stage.
    pub(crate) fn stages(self) -> &'a [StageTotal] {
        match self {
            ShownRun::Job(job) => &job.totals,
            ShownRun::File(file) => &file.run.record.stages,
        }
    }

    /// Spans in the order of their ends.
    pub(crate) fn spans(self) -> &'a [SpanRecord] {
        match self {
            ShownRun::Job(job) => &job.spans,
            ShownRun::File(file) => &file.run.spans,
        }
    }

    /// Memory marks, oldest first.
    pub(crate) fn marks(self) -> &'a [MemoryMark] {
        match self {
            ShownRun::Job(job) => &job.marks,
            ShownRun::File(file) => &file.run.marks,
        }
    }

    /// Resident memory over time: seconds and bytes.
    pub(crate) fn memory_samples(self) -> Vec<(f64, u64)> {
        match self {
            ShownRun::Job(job) if job.timeline.is_empty() => {
                job.marks.iter().map(|m| (m.at_us / 1e6, m.resident_bytes)).collect()
            }
            ShownRun::Job(_) | ShownRun::File(_) => {
                self.timeline().iter().map(|s| (s.at_us / 1e6, s.resident_bytes)).collect()
            }
        }
    }

    /// Memory over time, oldest first.
    fn timeline(self) -> &'a [MemorySample] {
        match self {
            ShownRun::Job(job) => &job.timeline,
            ShownRun::File(file) => &file.run.timeline,
        }
    }

    /// The engine's activations over time: seconds and bytes; none where they were not sampled.
    pub(crate) fn arena_samples(self) -> Vec<(f64, u64)> {
        self.timeline().iter().filter_map(|s| Some((s.at_us / 1e6, s.arena_bytes?))).collect()
    }

    /// The memory of devices over time: seconds and memory; none for a run on the CPU.
    pub(crate) fn device_samples(self) -> Vec<(f64, DeviceMemory)> {
        self.timeline().iter().filter_map(|s| Some((s.at_us / 1e6, s.device?))).collect()
    }

    /// Number of spans that are missing.
    pub(crate) fn spans_not_kept(self) -> u64 {
        match self {
            ShownRun::Job(job) => job.dropped,
            ShownRun::File(file) => file.run.spans_not_kept,
        }
    }

    /// Device, and the reason for its choice if it is known.
    pub(crate) fn device(self) -> Option<(String, String)> {
        match self {
            ShownRun::Job(job) => job.device.as_ref().map(|d| (d.id.to_string(), format!("{}: {}", d.name, d.why))),
            ShownRun::File(file) => {
                let facts = &file.run.record.facts;
                let training_device = facts.training.as_ref().map(|t| &t.device);
                let device = facts.inputs.first().map(|i| &i.device).or(training_device)?;
                Some((device.to_string(), format!("{} of {}", file.run.record.program, file.path.display())))
            }
        }
    }

    /// Returns the facts about the run besides its spans.
    pub(crate) fn facts(self) -> RunFacts {
        match self {
            ShownRun::Job(job) => job.facts(),
            ShownRun::File(file) => file.run.record.facts.clone(),
        }
    }

    /// The run in the form in which it is stored.
    pub(crate) fn to_stored(self) -> StoredRun {
        match self {
            ShownRun::Job(job) => {
                let (spans, marks) = (job.spans.clone(), job.marks.clone());
                let mark_samples = marks.iter().map(|mark| MemorySample {
                    at_us: mark.at_us,
                    resident_bytes: mark.resident_bytes,
                    arena_bytes: None,
                    device: None,
                });
                let mut timeline: Vec<MemorySample> = job.timeline.iter().copied().chain(mark_samples).collect();
                timeline.sort_by(|a, b| a.at_us.total_cmp(&b.at_us));
                StoredRun { record: job.record(), spans, marks, timeline, spans_not_kept: job.dropped }
            }
            ShownRun::File(file) => file.run.clone(),
        }
    }

    /// The document that the run works on.
    pub(crate) fn document(self) -> Option<u64> {
        match self {
            ShownRun::Job(job) => job.purpose.document(),
            ShownRun::File(_) => None,
        }
    }

    /// Value that changes whenever views of the run must be computed again.
    pub(crate) fn revision(self) -> (usize, u64, bool) {
        match self {
            ShownRun::Job(job) => {
                let reports = job.training.as_ref().map_or(0, |t| t.reports);
                (job.spans.len(), reports, job.state.is_over())
            }
            ShownRun::File(file) => (file.run.spans.len(), 0, true),
        }
    }

    /// The figures of its training steps; `None` if it trains nothing or no step has ended.
    pub(crate) fn training(self) -> Option<TrainingFigures> {
        let facts = self.facts();
        let times = match self {
            ShownRun::Job(job) => job.training.as_ref(),
            ShownRun::File(_) => None,
        };
        let patches = times.map(TrainingTimes::patches_per_step);
        let figures = TrainingFigures::new(facts.training.as_ref()?, patches, self.stages(), facts.wall_secs)?;
        let device_memory = times.and_then(|times| times.status.as_ref()?.device_memory);
        Some(TrainingFigures { device_memory, ..figures })
    }
}

/// Figures of the steps of a training run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TrainingFigures {
    /// Patches per second; `None` if the number of patches per step is unknown, as in files of earlier versions.
    pub(crate) samples_per_sec: Option<f64>,
    /// Mean duration of the latest steps in seconds.
    pub(crate) step_secs: f64,
    /// Share of that time spent waiting for patches, 0 to 1.
    pub(crate) data_wait_share: f64,
    /// Share of the whole run in which its device computes, 0 to 1.
    pub(crate) device_share: Option<f64>,
    /// Memory of GPUs that the engine holds; `None` on the CPU, and in files.
    pub(crate) device_memory: Option<DeviceMemory>,
    /// Number of threads that prepare patches.
    pub(crate) workers: usize,
}

impl TrainingFigures {
    fn new(facts: &TrainingFacts, patches: Option<usize>, stages: &[StageTotal], wall_secs: f64) -> Option<Self> {
        let step_secs = Some(facts.step_secs).filter(|secs| secs.is_finite() && *secs > 0.0)?;
        Some(Self {
            samples_per_sec: patches.map(|n| n as f64 / step_secs).or_else(|| facts.samples_per_sec()),
            step_secs,
            data_wait_share: (facts.stalled_secs / step_secs).clamp(0.0, 1.0),
            device_share: computing_share(stages, wall_secs),
            device_memory: None,
            workers: facts.workers,
        })
    }
}

/// A rate with about three digits.
pub(crate) fn rate_text(rate: f64) -> String {
    let digits = if rate < 10.0 { 2 } else { usize::from(rate < 100.0) };
    format!("{rate:.digits$}")
}

/// Durations of the steps of a training run, counted in bars of equal width.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DurationHistogram {
    /// Shortest duration in seconds, where the first bar starts.
    pub(crate) from_secs: f64,
    /// Width of a bar in seconds.
    pub(crate) width_secs: f64,
    /// Number of durations in each bar; the last bar also holds the longer ones.
    pub(crate) counts: Vec<u64>,
    /// Median duration in seconds.
    pub(crate) median_secs: f64,
    /// Longest duration in seconds.
    pub(crate) longest_secs: f64,
}

impl DurationHistogram {
    /// The histogram of durations in seconds; `None` without any.
    pub(crate) fn new(mut durations_secs: Vec<f64>) -> Option<Self> {
        durations_secs.retain(|secs| secs.is_finite());
        durations_secs.sort_by(f64::total_cmp);
        let last = durations_secs.len().checked_sub(1)?;
        let at = |share: f64| durations_secs.get((last as f64 * share) as usize).copied().unwrap_or(0.0);
        let (from_secs, to_secs) = (at(0.0), at(SHOWN_SHARE));
        let width_secs = ((to_secs - from_secs) / BARS as f64).max(1e-6);
        let mut counts = vec![0; BARS];
        for secs in &durations_secs {
            let bar = ((secs - from_secs) / width_secs) as usize;
            counts[bar.min(BARS - 1)] += 1;
        }
        Some(Self {
            from_secs,
            width_secs,
            counts,
            median_secs: cytoscope_profile::median(&durations_secs)?,
            longest_secs: at(1.0),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use crate::opener::ProfileTable;
    use crate::work::Purpose;
    use cytoscope_profile::{MemoryMark, Stage};

    #[test]
    fn the_memory_table_of_a_job_has_its_marks() {
        let mut job = JobView::new(JobId(1), "a.tif".to_owned(), Purpose::Convert);
        let sample = |at_us, resident_bytes| MemorySample { at_us, resident_bytes, arena_bytes: Some(7), device: None };
        job.timeline = vec![sample(0.0, 100), sample(2e6, 300)];
        job.marks = vec![MemoryMark { label: "reading".into(), at_us: 1e6, resident_bytes: 200 }];
        let csv = ProfileTable::Memory.into_run_table().csv(&ShownRun::Job(&job).to_stored(), None);
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(lines, ["0,\"\",100,7,,", "1,\"reading\",200,,,", "2,\"\",300,7,,"]);
    }

    #[test]
    fn a_histogram_counts_every_step_and_is_not_stretched_by_a_slow_one() {
        let mut durations: Vec<f64> = (0..200).map(|i| 1.0 + f64::from(i % 10) / 10.0).collect();
        durations.push(500.0);
        let histogram = DurationHistogram::new(durations).unwrap();
        assert_eq!(histogram.counts.iter().sum::<u64>(), 201);
        let end = histogram.from_secs + histogram.width_secs * histogram.counts.len() as f64;
        assert!(end < 3.0 && histogram.longest_secs == 500.0, "{histogram:?}");
        assert_eq!(DurationHistogram::new(vec![4.0, 2.0]).map(|h| h.median_secs), Some(3.0), "as cytoscope profile");
        assert_eq!(DurationHistogram::new(vec![2.0; 5]).map(|h| (h.counts[0], h.median_secs)), Some((5, 2.0)));
        assert_eq!(DurationHistogram::new(vec![f64::NAN]), None);
    }

    #[test]
    fn figures_of_a_training_run_are_rates_and_shares() {
        let facts = TrainingFacts {
            step_secs: 0.5,
            stalled_secs: 0.1,
            workers: 2,
            device: "cpu".into(),
            ..TrainingFacts::default()
        };
        let total = |stage, seconds| StageTotal { stage, count: 1, seconds, bytes: 0, voxels: 0, macs: 0 };
        let stages = [total(Stage::Forward, 2.0), total(Stage::Optimizer, 1.0), total(Stage::Validate, 4.0)];
        let figures = TrainingFigures::new(&facts, Some(4), &stages, 12.0).unwrap();
        assert_eq!((figures.samples_per_sec, figures.device_share), (Some(8.0), Some(0.25)));
        assert!((figures.data_wait_share - 0.2).abs() < 1e-12, "{figures:?}");
        assert_eq!(TrainingFigures::new(&TrainingFacts { step_secs: 0.0, ..facts }, None, &[], 1.0), None);
    }
}
