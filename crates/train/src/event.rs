//! Events of a training run, in addition to those of every job.

use crate::history::ValidationPoint;
use crate::monitor::TrainStatus;
use crate::train::Training;
use cytoscope_profile::{bytes_text, count_text, time_text};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Receives the events of a training run; called from the run's thread.
pub type TrainSink<'a> = dyn Fn(&TrainEvent) + Send + Sync + 'a;

/// An event of a training run. Stages, notes and devices are reported as [`cytoscope_pipeline::Event`], as by every job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TrainEvent {
    /// A training run was planned, at its start or after a change of its budget.
    Planned(TrainingPlan),
    /// One or more training steps were completed.
    #[serde(rename = "learned")]
    TrainingSteps {
        /// Number of completed steps.
        step: u64,
        /// Planned number of steps.
        steps: u64,
        /// Mean loss since the previous event.
        loss: f64,
        /// Learning rate.
        rate: f64,
        /// Mean seconds per step.
        step_secs: f64,
        /// Seconds of that spent waiting for training data.
        stalled_secs: f64,
    },
    /// Speed, waiting, memory and advice on the batch size: after the first steps, then at most every ten seconds.
    Status(Box<TrainStatus>),
    /// The network in training was scored on the validation set.
    Validated(ValidationPoint),
    /// A preview of the network in training on a validation image, with ground truth and prediction.
    #[serde(rename = "pictured")]
    ValidationPreview {
        /// Number of completed steps.
        step: u64,
        /// Path of the PNG. Later previews overwrite it, and it is deleted when training ends.
        path: PathBuf,
        /// Caption of the preview.
        caption: String,
    },
}

impl TrainEvent {
    /// Writes the event to the log; training steps and statuses are too many for it.
    fn log(&self) {
        match self {
            Self::Validated(ValidationPoint { step, score, best, .. }) => {
                tracing::info!(step, score, best, "validated")
            }
            Self::Planned(plan) => tracing::info!(?plan, "training planned"),
            Self::TrainingSteps { .. } | Self::Status(_) | Self::ValidationPreview { .. } => {}
        }
    }
}

impl Training<'_> {
    /// Logs an event and sends it to the sink.
    pub(crate) fn emit(&self, event: &TrainEvent) {
        event.log();
        (self.on_event)(event);
    }
}

/// The plan of a training run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TrainingPlan {
    /// Number of trainable parameters.
    pub parameters: usize,
    /// Measured duration of a step in seconds.
    pub step_secs: f64,
    /// Measured duration of a validation in seconds; 0 without a validation set.
    pub validation_secs: f64,
    /// Number of optimizer steps of the whole run.
    pub steps: u64,
    /// Number of epochs of the whole run.
    pub epochs: f64,
    /// Estimated duration of the steps and validations in minutes.
    pub minutes: f64,
    /// Memory of a step's activations in bytes.
    pub activation_bytes: u64,
}

impl TrainingPlan {
    /// Returns the plan as text for the user.
    pub fn text(&self) -> String {
        let Self { parameters, step_secs, validation_secs, steps, epochs, minutes, activation_bytes } = self;
        let duration = match minutes.round() {
            below if below < 1.0 => "less than a minute".to_owned(),
            1.0 => "about a minute".to_owned(),
            many => format!("about {many} minutes"),
        };
        let planned = if *steps == 1 {
            "1 step is planned".to_owned()
        } else {
            format!("{} steps are planned", count_text(*steps))
        };
        format!(
            "{} trainable parameters; a step takes {}, a validation {}; {planned} \
             ({epochs:.1} epochs, {duration}); {} for activations",
            count_text(*parameters as u64),
            time_text(*step_secs),
            time_text(*validation_secs),
            bytes_text(*activation_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn a_plan_keeps_its_figures_in_json_and_states_them() {
        let plan = TrainingPlan {
            parameters: 336_850,
            step_secs: 0.5,
            validation_secs: 12.5,
            steps: 800,
            epochs: 4.0,
            minutes: 7.5,
            activation_bytes: 256 << 20,
        };
        let json = serde_json::to_value(TrainEvent::Planned(plan)).unwrap();
        assert_eq!((&json["event"], &json["steps"]), (&"planned".into(), &800.into()));
        assert_eq!(serde_json::from_value::<TrainEvent>(json).unwrap(), TrainEvent::Planned(plan));
        assert_eq!(
            plan.text(),
            "336,850 trainable parameters; a step takes 500.00 ms, a validation 12.500 s; 800 steps are planned \
             (4.0 epochs, about 8 minutes); 256 MiB for activations"
        );
    }
}
