//! A training that runs: how it is, and the curves it told.

use super::shown::Shown;
use cytoscope_pipeline::Event;
use cytoscope_pipeline::worker::JobId;
use cytoscope_train::{History, Kept, StepPoint, ValidationPoint};

/// How a training is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RunState {
    /// There is none.
    #[default]
    Idle,
    /// It runs, or waits to.
    Running(JobId),
    /// It was asked to keep its state and stop.
    Pausing(JobId),
    /// It was asked to end with the best so far.
    Finishing(JobId),
    /// It was asked to stop for good.
    Stopping(JobId),
    /// Its state is kept.
    Paused,
    /// It failed; what it had kept is there.
    Failed(String),
}

/// A training and what it told.
#[derive(Debug, Default)]
pub struct Run {
    /// How it is.
    pub state: RunState,
    /// Its curves.
    pub history: History,
    /// Steps planned; 0 before they are known.
    pub steps: u64,
    /// What it makes of an image kept back.
    pub shown: Option<Shown>,
    /// What it told.
    pub notes: Vec<String>,
    /// Notes of its job that were taken.
    pub(super) taken: usize,
    /// Whether it is asked if it really should stop.
    pub sure: bool,
}

impl Run {
    /// The job, while there is one.
    pub fn job(&self) -> Option<JobId> {
        match self.state {
            RunState::Running(id) | RunState::Pausing(id) | RunState::Finishing(id) | RunState::Stopping(id) => {
                Some(id)
            }
            _ => None,
        }
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.history.steps.last().map_or(0, |p| p.step)
    }

    /// Takes a picture that was read, unless there is a later one.
    pub(super) fn show(&mut self, shown: Shown) {
        if self.shown.as_ref().is_none_or(|now| shown.step >= now.step) {
            self.shown = Some(shown);
        }
    }

    pub(super) fn hear(&mut self, event: Event) {
        match event {
            Event::Learned { step, steps, loss, rate, step_secs, stalled_secs } => {
                self.steps = steps;
                // Back at an earlier step after a rescue: the curve goes on from there.
                self.history.steps.retain(|p| p.step < step);
                self.history.steps.push(StepPoint { step, loss, rate, step_secs, stalled_secs });
            }
            Event::Validated { step, score, scores, best } => {
                self.history.validations.retain(|p| p.step < step);
                self.history.validations.push(ValidationPoint { step, score, scores, best });
            }
            _ => {}
        }
    }

    /// Puts curves that were kept before those that came since.
    pub(super) fn join(&mut self, kept: Kept) {
        let new = std::mem::replace(&mut self.history, kept.history);
        self.steps = self.steps.max(kept.steps);
        self.history.steps.extend(new.steps.into_iter().filter(|p| p.step > kept.step));
        let last = self.history.validations.last().map(|v| v.step);
        self.history.validations.extend(new.validations.into_iter().filter(|v| last.is_none_or(|l| v.step > l)));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;
    use std::collections::BTreeMap;

    fn learned(step: u64) -> Event {
        Event::Learned { step, steps: 50, loss: 1.0 / step as f64, rate: 0.1, step_secs: 1.0, stalled_secs: 0.0 }
    }

    #[test]
    fn curves_go_on_where_they_were_kept() {
        let mut run = Run::default();
        let point = |step| StepPoint { step, loss: 1.0, rate: 0.1, step_secs: 1.0, stalled_secs: 0.0 };
        let tried = |step| ValidationPoint { step, score: 0.5, scores: BTreeMap::new(), best: true };
        run.hear(learned(21));
        run.hear(Event::Validated { step: 25, score: 0.6, scores: BTreeMap::new(), best: true });
        let history =
            History { steps: vec![point(10), point(20)], validations: vec![tried(0), tried(20)], notes: Vec::new() };
        run.join(Kept { step: 20, steps: 60, history });
        let steps: Vec<u64> = run.history.steps.iter().map(|p| p.step).collect();
        let validations: Vec<u64> = run.history.validations.iter().map(|p| p.step).collect();
        assert_eq!((steps, validations, run.steps), (vec![10, 20, 21], vec![0, 20, 25], 60));
        // After a rescue the curve goes on from an earlier step.
        run.hear(learned(15));
        assert_eq!((run.step(), run.history.steps.len(), run.steps), (15, 2, 50));
    }
}
