//! What a training will take on this machine: some steps of it are made, with made-up patches.

use crate::config::TrainConfig;
use crate::error::model;
use crate::job::auto;
use crate::network;
use crate::setup::{engine, stepper_options};
use crate::step::Stepper;
use cytoscope_graph::Tensor;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, JobError};
use cytoscope_profile::Recorder;
use cytoscope_samples::Task;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Steps made, the first of which is not counted.
const STEPS: usize = 4;
/// Share of a time budget that steps get: the rest goes to validations and to what follows training.
const STEPS_SHARE: f64 = 0.75;

/// A training whose cost is wanted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EstimateJob {
    /// What is to be learnt.
    pub task: Task,
    /// What to start from: a package by path or name, or `scratch`.
    pub from: String,
    /// Settings.
    #[serde(default)]
    pub config: TrainConfig,
    /// Voxel size of the data in µm, along Z, Y, X.
    #[serde(default)]
    pub voxel_um: Option<[f64; 3]>,
    /// Threads; 0: all.
    #[serde(default)]
    pub threads: usize,
    /// Where steps are computed.
    #[serde(default = "auto")]
    pub device: String,
}

/// What a training takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Seconds of a step, measured.
    pub step_secs: f64,
    /// Values that are taught.
    pub parameters: usize,
    /// Bytes of activations that a step holds at once.
    pub activation_bytes: u64,
    /// Bytes of the parameters, their gradients and the optimizer's state.
    pub state_bytes: u64,
}

impl Estimate {
    /// Steps that about fit into some minutes.
    pub fn steps_in(&self, minutes: f64) -> u64 {
        (minutes * 60.0 * STEPS_SHARE / self.step_secs.max(1e-4)) as u64
    }

    /// Bytes that a step needs beside the program and the data.
    pub fn bytes(&self) -> u64 {
        self.activation_bytes.saturating_add(self.state_bytes)
    }
}

impl EstimateJob {
    /// What it is called among the worker's jobs.
    pub const KIND: &'static str = "train-estimate";

    /// Runs the job.
    ///
    /// # Errors
    /// [`JobError`]: what [`crate::TrainJob::run`] would say of the start, the settings or the device; cancelled.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<Estimate, JobError> {
        self.config.check()?;
        let start = network::start(&self.from, self.task, &self.config, self.voxel_um, 0)?;
        let engine = engine(&self.device, devices)?;
        let recorder = Recorder::totals_only();
        let options = stepper_options(&self.config, &start, engine.device().id, self.threads, &recorder)?;
        let shape = options.shape.clone();
        let ema = options.ema > 0.0;
        let mut stepper = Stepper::new(start.graph.clone(), engine.as_ref(), &options)?;
        let made = |channels: usize, value: fn(usize) -> f32| {
            let mut shape = shape.clone();
            if let Some(c) = shape.get_mut(1) {
                *c = channels;
            }
            let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
            Tensor::new(shape, values).map_err(model("a batch"))
        };
        let mut secs = Vec::with_capacity(STEPS);
        for _ in 0..STEPS {
            context.check()?;
            let image = made(1, |i| ((i * 7919) % 101) as f32 / 101.0)?;
            let target = made(start.target.channels(), |i| ((i / 37) % 2) as f32)?;
            let weight = made(1, |_| 1.0)?;
            let begun = Instant::now();
            for _ in 0..self.config.accumulate {
                stepper.learn(image.clone(), target.clone(), weight.clone())?;
            }
            stepper.advance(1e-9, self.config.clip_norm, self.config.accumulate)?;
            secs.push(begun.elapsed().as_secs_f64());
        }
        let mut counted = secs.split_off(1);
        counted.sort_by(f64::total_cmp);
        let parameters = stepper.parameter_count();
        // Values, gradients, two states of the optimizer, and the average.
        let copies = 4 + u64::from(ema) + u64::from(self.config.accumulate > 1);
        Ok(Estimate {
            step_secs: counted.get(counted.len() / 2).copied().unwrap_or(0.0),
            parameters,
            activation_bytes: stepper.arena_bytes(),
            state_bytes: copies.saturating_mul(4 * parameters as u64),
        })
    }
}
