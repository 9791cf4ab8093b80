//! Measurements of a command about its run, for its trace and its report.

use super::failure::{Failure, Outcome};
use super::output::has_printed_json;
use super::trace_path::check_trace;
use super::{note_moved_aside, print, print_json};
use cpu_time::ProcessTime;
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_pipeline::job_record::{AnyRecord, Recordable, read_any, record_path};
use cytoscope_pipeline::{PROGRAM, engine_memory};
use cytoscope_profile::{
    Advice, MachinePeak, MemorySampler, OperatorTotal, Recorder, RunFacts, RunRecord, Slowdown, Stage, TrainingFacts,
    advise, operator_totals,
};
use cytoscope_storage::Overwrite;
use cytoscope_storage::write::write_checked_with;
use cytoscope_train::{TrainJob, TrainReport, TrainStatus};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns the recorder of a command. For a trace, it records spans, including operators unless `stages_only`; without
/// a trace, it records only totals.
pub(crate) fn recorder(trace: Option<&Path>, stages_only: bool) -> Recorder {
    match trace {
        None => Recorder::totals_only(),
        Some(_) if stages_only => Recorder::without_operators(),
        Some(_) => Recorder::new(),
    }
}

/// Time between two samples of the memory.
const MEMORY_INTERVAL: Duration = Duration::from_millis(100);

/// Samples the memory of a command for its trace, if one is requested, until the result is dropped.
pub(crate) fn memory_sampler(recorder: &Recorder, trace: Option<&Path>) -> Option<MemorySampler> {
    trace.map(|_| sampled_memory(recorder))
}

/// Samples the memory as for a trace, until the result is dropped.
pub(crate) fn sampled_memory(recorder: &Recorder) -> MemorySampler {
    recorder.sample_memory(MEMORY_INTERVAL, engine_memory)
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Measures wall and CPU time from its creation on.
pub(crate) struct RunClock {
    start: Instant,
    cpu: ProcessTime,
}

impl RunClock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), cpu: ProcessTime::now() }
    }

    /// Returns the facts that every run knows; `threads` is 0 for all cores.
    pub(crate) fn facts(&self, threads: usize) -> RunFacts {
        let cores = cores();
        RunFacts {
            wall_secs: self.start.elapsed().as_secs_f64(),
            cpu_secs: Some(self.cpu.elapsed().as_secs_f64()),
            threads: Some(if threads == 0 { cores } else { threads }),
            cores: Some(cores),
            peak_bytes: cytoscope_profile::peak_resident_bytes(),
            memory_bytes: cytoscope_profile::total_bytes(),
            ..RunFacts::default()
        }
    }
}

/// Returns the peak rates of the machine for a run whose operators were timed and that names no device other than the CPU; they
/// are measured the first time.
fn run_machine_peak(facts: &RunFacts, operators: &[OperatorTotal]) -> Option<MachinePeak> {
    let has_work = operators.iter().any(|operator| operator.macs > 0);
    (facts.is_on_cpu() && has_work).then(|| cytoscope_pipeline::machine_peak(facts.threads.unwrap_or(0)))
}

/// First failure to write a trace, if any. It is reported when the command has ended, so that it hides neither the
/// report of the command nor its failure.
static TRACE: Mutex<Option<Failure>> = Mutex::new(None);

/// Path of the trace that was written, if any.
static WRITTEN_TRACE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Names the trace that was written, unless the report was printed as JSON.
///
/// # Errors
/// The failure to write it.
pub(crate) fn check_trace_written() -> Outcome {
    if let Some(failure) = TRACE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(failure);
    }
    let written = WRITTEN_TRACE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(path) = written.filter(|_| !has_printed_json()) {
        print(&format!("wrote {}", path.display()));
    }
    Ok(())
}

/// The measurements of a command that has ended.
pub(crate) struct MeasuredRun {
    /// The entry `run` of the trace and the report.
    pub record: RunRecord,
    /// The entry `advice` of the report.
    pub advice: Vec<Advice>,
    /// The provenance records of the results, the entry `provenance` of the report.
    pub provenance: Vec<PathBuf>,
    /// Start of the command in seconds since 1970.
    start_unix_secs: f64,
}

impl MeasuredRun {
    pub(crate) fn new(command: &str, recorder: &Recorder, facts: RunFacts) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start_unix_secs = now.as_secs_f64() - facts.wall_secs;
        // Measuring the machine's peak takes memory, too.
        recorder.end_memory_timeline();
        let (memory_peak, device_memory_peak) = (recorder.memory_peak(), recorder.device_memory_peak());
        // Where the system does not report the peak, the highest sample is close to it. Where it does, its count may be a
        // little below a sample, because it is updated less often.
        let peak_bytes = facts.peak_bytes.max(memory_peak.as_ref().map(|peak| peak.resident_bytes));
        let spans = recorder.spans();
        let (operators, slowdown) = (operator_totals(&spans), Slowdown::of(&spans));
        let machine_peak = facts.machine_peak.clone().or_else(|| run_machine_peak(&facts, &operators));
        let totals = recorder.totals();
        let verify_secs = totals.iter().find(|total| total.stage == Stage::Verify).map(|total| total.seconds);
        let copies = totals.iter().filter(|total| matches!(total.stage, Stage::Upload | Stage::Download));
        let copying_secs: f64 = copies.map(|total| total.seconds).sum();
        let training = facts.training.clone().map(|training| {
            let transfer_secs = training.traffic.map(|_| copying_secs);
            TrainingFacts { transfer_secs, ..training }
        });
        let facts = RunFacts {
            memory_peak,
            device_memory_peak,
            peak_bytes,
            machine_peak,
            slowdown,
            verify_secs,
            training,
            ..facts
        };
        let advice = advise(&facts, &operators);
        let record = RunRecord::new(PROGRAM, command, recorder, facts);
        Self { record, advice, provenance: Vec::new(), start_unix_secs }
    }

    /// Returns the measurements of a command that wrote these results, with the provenance records that it wrote beside them. A
    /// record that could not be written is left out, also if an earlier one is there; a note has said so.
    pub(crate) fn with_results<'a>(self, results: impl IntoIterator<Item = &'a Path>) -> Self {
        let records = results.into_iter().map(record_path).filter(|record| self.has_written(record));
        Self { provenance: records.collect(), ..self }
    }

    /// Returns whether a record was finished since the start of the command.
    fn has_written(&self, record: &Path) -> bool {
        // Records state whole seconds.
        let is_recent = |finished_secs: u64| finished_secs as f64 + 1.0 >= self.start_unix_secs;
        matches!(read_any(record), Ok(AnyRecord::Job(record)) if is_recent(record.finished_unix_secs))
    }

    /// Names the provenance records of the results.
    pub(crate) fn print_records(&self) {
        self.provenance.iter().for_each(|record| print(&format!("  wrote {}", record.display())));
    }

    /// Writes the trace, if one was requested, to a path that [`check_trace`] has allowed with the same `overwrite`;
    /// [`check_trace_written`] reports a failure. The trace of a run without results does not replace an earlier one.
    pub(crate) fn write_trace(
        &self,
        recorder: &Recorder,
        path: Option<&Path>,
        overwrite: Overwrite,
        has_results: bool,
    ) {
        let Some(path) = path.filter(|path| has_results || !path.exists()) else { return };
        match write_checked_with(path, overwrite, |out| recorder.write_trace(&self.record, out)) {
            Ok(aside) => {
                note_moved_aside(path, aside.as_deref());
                *WRITTEN_TRACE.lock().unwrap_or_else(PoisonError::into_inner) = Some(path.to_owned());
            }
            Err(error) => {
                TRACE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error.into());
            }
        }
    }

    /// Prints the report of the command as one JSON object, together with the provenance records and the measurements.
    pub(crate) fn print_json<R: Serialize>(self, report: &R) -> Outcome {
        let Self { record, advice, provenance, .. } = self;
        print_json(&MeasuredReport { report, provenance, run: record, advice })
    }
}

/// A report with the provenance records and the measurements of the command, as `--json` prints them.
#[derive(Serialize)]
struct MeasuredReport<'a, R: Serialize> {
    #[serde(flatten)]
    report: &'a R,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    provenance: Vec<PathBuf>,
    run: RunRecord,
    advice: Vec<Advice>,
}

/// The measurement of a command while it runs: its clock, its recorder and, for a trace, samples of its memory.
pub(crate) struct Measurement<'a> {
    command: &'static str,
    trace: Option<&'a Path>,
    /// What the trace may replace.
    overwrite: Overwrite,
    clock: RunClock,
    recorder: Recorder,
    /// The result that names the provenance record, if the command writes one.
    recorded: Option<PathBuf>,
    /// Samples the memory until it is dropped.
    _sampler: Option<MemorySampler>,
}

impl<'a> Measurement<'a> {
    /// Starts to measure a command. `overwrite` states what its trace may replace; `stages_only` leaves operators out of it.
    pub(crate) fn start(
        command: &'static str,
        trace: Option<&'a Path>,
        overwrite: Overwrite,
        stages_only: bool,
    ) -> Self {
        // Before the recorder: no span starts before the clock.
        let clock = RunClock::start();
        let recorder = recorder(trace, stages_only);
        let _sampler = memory_sampler(&recorder, trace);
        Self { command, trace, overwrite, clock, recorder, recorded: None, _sampler }
    }

    /// Starts to measure the command of a job, after checking that its trace may be written. `model` is the path of the
    /// job's model, if it has one.
    ///
    /// # Errors
    /// Same as [`check_trace`].
    pub(crate) fn for_job<J: Recordable>(
        trace: Option<&'a Path>,
        job: &J,
        model: Option<&Path>,
    ) -> Result<Self, Failure> {
        if let Some(trace) = trace {
            let inputs: Vec<&Path> = job.inputs().into_iter().chain(model).collect();
            check_trace(trace, &inputs, &job.outputs(), job.overwrite())?;
        }
        let recorded = job.outputs().first().map(|output| (*output).to_owned());
        Ok(Self { recorded, ..Self::start(J::KIND.name(), trace, job.overwrite(), false) })
    }

    /// Returns the recorder, for the context of the job.
    pub(crate) fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// Ends the measurement and writes the trace, even if the job failed after it had started to work, unless it would then
    /// replace an earlier trace. `threads` is 0 for all cores.
    ///
    /// # Errors
    /// The failure of the job.
    pub(crate) fn finish<T, E: Into<Failure>>(
        self,
        result: Result<T, E>,
        threads: usize,
    ) -> Result<(T, MeasuredRun), Failure> {
        let run = MeasuredRun::new(self.command, &self.recorder, self.clock.facts(threads));
        let is_worth_a_trace = result.is_ok() || !run.record.stages.is_empty();
        let trace = self.trace.filter(|_| is_worth_a_trace);
        run.write_trace(&self.recorder, trace, self.overwrite, result.is_ok());
        Ok((result.map_err(Into::into)?, run.with_results(self.recorded.as_deref())))
    }
}

/// Returns the facts about a training run; `status` is the last one that it reported.
pub(crate) fn training_facts(job: &TrainJob, report: &TrainReport, status: Option<&TrainStatus>) -> TrainingFacts {
    let device = match job.device {
        DeviceRequest::Device(id) => id,
        DeviceRequest::Auto => DeviceId::Cpu,
    };
    let facts = TrainingFacts {
        step_secs: report.step_secs,
        stalled_secs: report.stalled_secs,
        workers: report.workers,
        prefetch: report.prefetch,
        device: device.into(),
        // The report counts the patches of a whole step.
        batch: report.batch / job.config.accumulate.max(1),
        accumulate: job.config.accumulate,
        traffic: report.traffic,
        ..TrainingFacts::default()
    };
    match status {
        Some(status) => status.complete(facts),
        None => facts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_pipeline::job_record::{PendingRecord, recorded};
    use cytoscope_pipeline::{Context, ConvertJob, JobError};
    use serde_json::{Value, json};

    #[test]
    fn the_record_of_an_earlier_run_is_not_named_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("b.npy");
        let job = json!({"input": folder.path().join("a.tif"), "output": output});
        let job: ConvertJob = serde_json::from_value(job).unwrap();
        let write = |_: &mut PendingRecord<ConvertJob>| {
            std::fs::write(&output, "b").unwrap();
            Ok::<(), JobError>(())
        };
        recorded(&job, &Context::default(), write).unwrap();
        let named = || {
            // The command started before it wrote the record.
            let facts = RunFacts { wall_secs: 2.0, ..RunFacts::default() };
            let run = MeasuredRun::new("convert", &Recorder::totals_only(), facts);
            run.with_results([output.as_path()]).provenance
        };
        let path = record_path(&output);
        assert_eq!(named(), std::slice::from_ref(&path));
        let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let finished = record["finished_unix_secs"].as_u64().unwrap();
        record["finished_unix_secs"] = json!(finished - 60);
        std::fs::write(&path, record.to_string()).unwrap();
        assert!(named().is_empty());
    }
}
