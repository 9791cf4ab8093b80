//! Recorded jobs that are run again, and the notifications about them.

use super::Jobs;
use crate::effect::Effects;
use crate::number_text::counted;
use crate::panels::{capitalized, with_stop};
use crate::rerun::{ComparedRerun, PreparedRerun, RerunEnd, RerunEvent};
use crate::work::{JobState, Purpose};
use cytoscope_worker::{JobId, JobResult};
use std::path::PathBuf;

/// Title of the notification about a job that cannot be run again.
const NOT_RUN: &str = "The recorded job cannot be run again";

/// Maximum number of results that a notification lists.
const LISTED: usize = 8;

impl Jobs {
    /// Whether a recorded job is being prepared, or its results are being compared.
    pub(crate) fn is_preparing_rerun(&self) -> bool {
        self.reruns.is_busy()
    }

    /// Prepares a recorded job to be run again.
    pub(super) fn run_again(&mut self, record: PathBuf, folder: PathBuf, effects: &mut Effects) {
        let devices = self.devices().to_vec();
        if let Err(reason) = self.reruns.prepare(record, folder, devices) {
            effects.error(NOT_RUN, reason);
        }
    }

    /// Compares the result of a job with the recorded one, if it is a job that was run again. Returns whether it is.
    pub(super) fn compare_rerun(&mut self, id: JobId, result: &JobResult, effects: &mut Effects) -> bool {
        self.reruns.finished(id, result).unwrap_or_else(|reason| {
            effects.error("The results cannot be compared with the recorded ones", reason);
            true
        })
    }

    /// Queues the jobs that were prepared, and reports the comparisons that are done.
    pub(super) fn poll_reruns(&mut self, effects: &mut Effects) {
        for event in self.reruns.poll() {
            match event {
                RerunEvent::Prepared(Ok(prepared)) => self.start_rerun(*prepared, effects),
                RerunEvent::Prepared(Err(reason)) => effects.error(NOT_RUN, reason),
                RerunEvent::Compared(Ok(compared)) => report(&compared, effects),
                RerunEvent::Compared(Err(reason)) => {
                    effects.error("The results cannot be compared with the recorded ones", reason);
                }
                RerunEvent::Discarded(Ok(None)) => {}
                RerunEvent::Discarded(Ok(Some(folder))) => effects.info(
                    "The checkpoint is kept",
                    format!("cytoscope train --resume on the command line continues {}.", folder.display()),
                ),
                RerunEvent::Discarded(Err(reason)) => effects.error("The training run could not be removed", reason),
            }
        }
        let work = &self.work;
        self.reruns.forget_ended(|id| end_of(work.jobs.iter().find(|job| job.id == id).map(|job| &job.state)));
    }

    /// Queues a prepared job, and says what differs from the recorded run.
    fn start_rerun(&mut self, prepared: PreparedRerun, effects: &mut Effects) {
        let PreparedRerun { title, job, differences, rerun } = prepared;
        if !differences.is_empty() {
            let sentences: Vec<String> = differences.iter().map(|text| with_stop(&capitalized(text))).collect();
            effects.info("Differences from the recorded run", sentences.join("\n"));
        }
        let id = self.work.run(title, Purpose::Rerun, job);
        self.reruns.started(id, rerun);
    }
}

/// Returns how a job in this state has ended without a result; `None` if it is queued or running.
fn end_of(state: Option<&JobState>) -> Option<RerunEnd> {
    match state {
        Some(JobState::Queued | JobState::Running) => None,
        Some(JobState::Canceled) => Some(RerunEnd::Canceled),
        Some(JobState::Done | JobState::Failed(_)) | None => Some(RerunEnd::Failed),
    }
}

/// Reports how new results compare with the recorded ones.
fn report(compared: &ComparedRerun, effects: &mut Effects) {
    let ComparedRerun { name, is_package, outputs } = compared;
    let mut lines: Vec<String> = Vec::new();
    for output in outputs.outputs.iter().take(LISTED) {
        let how = if output.identical { "identical to" } else { "different from" };
        lines.push(format!("{}: {how} the recorded result", output.path.display()));
    }
    if outputs.outputs.len() > LISTED {
        lines.push(format!("and {}", counted((outputs.outputs.len() - LISTED) as u64, "further result")));
    }
    lines.extend(outputs.missing.iter().take(LISTED).map(|path| format!("{} was not written again", path.display())));
    let is_same = outputs.missing.is_empty() && outputs.outputs.iter().all(|output| output.identical);
    if is_same {
        return effects.success(format!("{name} was made again: identical"), lines.join("\n"));
    }
    if *is_package {
        lines.push("A package states when it was made, so it usually differs.".to_owned());
    }
    effects.info(format!("{name} was made again: different"), lines.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Effect;
    use crate::notifications::Level;
    use cytoscope_worker::{ComparedOutput, ComparedOutputs};

    #[test]
    fn results_count_as_identical_only_if_all_are_and_none_is_missing() {
        let reported = |identical: &[bool], missing: &[&str]| {
            let output = |identical: &bool| {
                let path = "again/c.npy".into();
                ComparedOutput { path, identical: *identical, other_format: false }
            };
            let outputs = ComparedOutputs {
                outputs: identical.iter().map(output).collect(),
                missing: missing.iter().map(PathBuf::from).collect(),
            };
            let mut effects = Effects::default();
            report(&ComparedRerun { name: "c.npy".to_owned(), is_package: false, outputs }, &mut effects);
            let is_success = |effect: Effect| matches!(effect, Effect::Notify { level: Level::Success, .. });
            effects.into_iter().map(is_success).collect::<Vec<bool>>()
        };
        assert_eq!(reported(&[true, true], &[]), [true]);
        assert_eq!(reported(&[true, false], &[]), [false]);
        assert_eq!(reported(&[true], &["d.npy"]), [false]);
    }
}
