//! What happened in a training: the curves.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Some steps together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepPoint {
    /// Steps done at its end.
    pub step: u64,
    /// Mean loss.
    pub loss: f64,
    /// Learning rate at its end.
    pub rate: f64,
    /// Seconds a step took.
    pub step_secs: f64,
    /// Seconds of that spent waiting for patches.
    pub stalled_secs: f64,
}

/// One validation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValidationPoint {
    /// Steps done before it.
    pub step: u64,
    /// The score that decides, larger is better.
    pub score: f64,
    /// Scores by name.
    pub scores: BTreeMap<String, f64>,
    /// Whether its network was kept: the best so far, or as good.
    pub best: bool,
}

/// The curves of a training.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct History {
    /// Losses.
    pub steps: Vec<StepPoint>,
    /// Validations; the first one is of the model that training started from, where it has a score.
    pub validations: Vec<ValidationPoint>,
    /// Rescues and changes of plan, as sentences.
    pub notes: Vec<String>,
}

/// Most points kept of the loss: beyond, neighbours are joined.
const MOST_POINTS: usize = 2000;

impl History {
    /// Forgets what came after a step that training goes back to.
    pub(crate) fn forget_after(&mut self, step: u64) {
        self.steps.retain(|p| p.step <= step);
        self.validations.retain(|p| p.step <= step);
    }

    /// Adds a point; long curves are thinned by joining neighbours.
    pub(crate) fn push(&mut self, point: StepPoint) {
        self.steps.push(point);
        if self.steps.len() > MOST_POINTS {
            self.steps = self
                .steps
                .chunks(2)
                .filter_map(|pair| {
                    let last = pair.last()?;
                    let mean = |f: fn(&StepPoint) -> f64| pair.iter().map(f).sum::<f64>() / pair.len() as f64;
                    Some(StepPoint {
                        loss: mean(|p| p.loss),
                        step_secs: mean(|p| p.step_secs),
                        stalled_secs: mean(|p| p.stalled_secs),
                        ..*last
                    })
                })
                .collect();
        }
    }
}
