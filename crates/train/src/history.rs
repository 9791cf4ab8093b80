//! Loss and validation curves of a training run.

use crate::score_name::ScoreName;
use cytoscope_pipeline::Note;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A point of the loss curve: the mean over consecutive steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepPoint {
    /// Number of the last of these steps.
    pub step: u64,
    /// Mean training loss of these steps.
    pub loss: f64,
    /// Learning rate of the last step.
    pub rate: f64,
    /// Mean duration of a step in seconds.
    pub step_secs: f64,
    /// Part of `step_secs` that was spent waiting for patches.
    pub stalled_secs: f64,
}

/// Scores of one validation and the step it was made at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValidationPoint {
    /// Number of steps completed before this validation.
    pub step: u64,
    /// The score that networks are compared by; higher is better.
    pub score: f64,
    /// All scores by name.
    pub scores: BTreeMap<ScoreName, f64>,
    /// Whether this network became the best checkpoint: its score is above the highest one so far, or less than 0.01 below
    /// it, and clearly above that of the start model; the first one that is clearly above it may have any score.
    pub best: bool,
}

/// Loss curve, validations and notes of a training run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct History {
    /// Points of the loss curve.
    pub steps: Vec<StepPoint>,
    /// Validations in order of steps; the first is that of the start model, if it has a score.
    pub validations: Vec<ValidationPoint>,
    /// Rollbacks and changes of the plan, in JSON a list of texts.
    #[serde(flatten, with = "cytoscope_pipeline::note::texts")]
    pub notes: Vec<Note>,
}

/// Maximum number of points in the loss curve; longer curves are thinned.
const MAX_POINTS: usize = 2000;

impl History {
    /// Removes everything after `step`, which training is rolled back to.
    pub(crate) fn truncate_after(&mut self, step: u64) {
        self.steps.retain(|p| p.step <= step);
        self.validations.retain(|p| p.step <= step);
    }

    /// Adds a point. A curve of more than [`MAX_POINTS`] points is thinned by averaging neighboring points.
    pub(crate) fn push(&mut self, point: StepPoint) {
        self.steps.push(point);
        if self.steps.len() > MAX_POINTS {
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
