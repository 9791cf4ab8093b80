//! Data that the jobs keep for the profiler: runs from files, and the measured peak rates of this machine.

use super::Jobs;
use crate::effect::Effects;
use crate::runs::{FileRun, RunId, ShownRun};
use crate::work::JobView;
use cytoscope_engine::DeviceId;
use cytoscope_profile::{MachinePeak, StoredRun};
use std::path::PathBuf;

/// Maximum number of runs from files; the oldest is closed when another one is opened.
const MAX_FILE_RUNS: usize = 20;

impl Jobs {
    /// Runs from files, oldest first.
    pub(crate) fn file_runs(&self) -> &[FileRun] {
        &self.file_runs
    }

    /// All runs that can be shown, newest first: those from files, then the jobs.
    pub(crate) fn runs(&self) -> impl Iterator<Item = ShownRun<'_>> {
        self.file_runs.iter().rev().map(ShownRun::File).chain(self.work.jobs.iter().rev().map(ShownRun::Job))
    }

    /// The run with this id, unless it was closed.
    pub(crate) fn shown_run(&self, id: RunId) -> Option<ShownRun<'_>> {
        match id {
            RunId::Job(id) => self.get(id).map(ShownRun::Job),
            RunId::File(number) => self.file_runs.iter().find(|f| f.number == number).map(ShownRun::File),
        }
    }

    /// Adds a run that was read from a file.
    pub(crate) fn run_read(&mut self, path: PathBuf, run: Result<Box<StoredRun>, String>) -> Effects {
        let mut effects = Effects::default();
        match run {
            Ok(run) => {
                self.runs_read += 1;
                self.file_runs.push(FileRun::new(self.runs_read, path, *run));
                if self.file_runs.len() > MAX_FILE_RUNS {
                    self.file_runs.remove(0);
                }
            }
            Err(reason) => effects.error("The run cannot be opened", reason),
        }
        effects
    }

    /// Stores the peak rates of this machine.
    pub(crate) fn peak_measured(&mut self, peak: MachinePeak) -> Effects {
        self.machine_peak = Some(peak);
        self.measuring_peak = false;
        Effects::default()
    }

    /// The peak rates of the machine of a run; `None` if they are unknown or the run computes on a GPU.
    pub(crate) fn peak_for_run<'a>(&'a self, run: ShownRun<'a>) -> Option<&'a MachinePeak> {
        match run {
            ShownRun::File(file) => file.run.record.facts.machine_peak.as_ref(),
            ShownRun::Job(job) if is_on_cpu(job) => self.machine_peak.as_ref(),
            ShownRun::Job(_) => None,
        }
    }

    /// Whether the peak of a run's machine can be measured now; `None` if it can never be, because the run is not a job
    /// on this machine's CPU.
    pub(crate) fn can_measure_peak(&self, run: ShownRun<'_>) -> Option<bool> {
        match run {
            ShownRun::Job(job) if is_on_cpu(job) => Some(!self.measuring_peak && self.active() == 0),
            _ => None,
        }
    }

    /// A run in the form in which it is stored, with the peak of its machine.
    pub(crate) fn stored(&self, id: RunId) -> Option<StoredRun> {
        let run = self.shown_run(id)?;
        let mut stored = run.to_stored();
        stored.record.facts.machine_peak = self.peak_for_run(run).cloned();
        Some(stored)
    }
}

/// Whether a job computes on the CPU; a job that has not reported its device counts as one that does.
fn is_on_cpu(job: &JobView) -> bool {
    job.device.as_ref().is_none_or(|device| device.id == DeviceId::Cpu)
}
