//! Teaching a quantized network to do what the float one does, with the rounding in it.

use crate::error::{engine, model};
use crate::step::{Learnt, Stepper, StepperOptions};
use cytoscope_engine::{CompileOptions, DeviceId, Engine};
use cytoscope_graph::training::{Decay, FakeQuantized, Loss, LossKind, LossTerm, Optimizer, Schedule, fake_quantized};
use cytoscope_graph::{Graph, Tensor};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::quantize::{Lesson, Taught, Teacher};
use cytoscope_pipeline::{Context, JobError};
use cytoscope_profile::Recorder;
use std::time::{Duration, Instant};

/// How a quantized network is taught: by the float network's own outputs on tiles (no labels are needed). Weights that are stored as
/// bytes move, counted in steps, and are rounded on the way (straight-through estimator); scales and biases stay as calibration found
/// them.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedTeacher {
    /// Steps at most, a tile each.
    pub steps: u64,
    /// Minutes at most.
    pub minutes: Option<f64>,
    /// Greatest learning rate, in steps of a byte.
    pub rate: f64,
    /// Threads; 0: all.
    pub threads: usize,
}

impl Default for QuantizedTeacher {
    fn default() -> Self {
        Self { steps: 240, minutes: None, rate: 0.004, threads: 0 }
    }
}

/// Times that the network is tried on the tiles held out.
const TRIES: u64 = 4;
/// Memory of the average of the weights.
const EMA: f64 = 0.95;
/// Largest norm of a gradient.
const CLIP: f32 = 1.0;

/// The squared difference, divided by the mean square of what should come out: the square of the relative L2 error.
fn loss(channels: usize, mean_square: f64) -> Loss {
    let factor = (1.0 / mean_square.max(1e-12)) as f32;
    Loss {
        terms: vec![LossTerm {
            kind: LossKind::MeanSquared,
            channels: 0..channels,
            factor,
            sigmoid: false,
            within: None,
        }],
    }
}

impl QuantizedTeacher {
    fn stepper(
        &self,
        graph: Graph,
        on: &dyn Engine,
        loss: Loss,
        shape: Vec<usize>,
        only: Vec<String>,
    ) -> Result<Stepper, JobError> {
        let options = StepperOptions {
            loss,
            optimizer: Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 },
            shape,
            batch_statistics: false,
            only,
            ema: EMA,
            threads: self.threads,
            memory_budget_bytes: None,
            half: None,
            recorder: Recorder::totals_only(),
        };
        Stepper::new(graph, on, &options)
    }

    /// The quantized network with what was learnt.
    fn bytes(&self, fake: &FakeQuantized, stepper: &Stepper, quantized: &Graph) -> Result<Graph, JobError> {
        let mut made = quantized.clone();
        fake.put(&stepper.network()?, &mut made).map_err(model("the quantized network"))?;
        Ok(made)
    }
}

impl Teacher for QuantizedTeacher {
    fn teach(&self, context: &Context, lesson: &Lesson<'_>) -> Result<Taught, JobError> {
        let begun = Instant::now();
        let bad = model("the quantized network");
        let fake = fake_quantized(lesson.quantized, lesson.float).map_err(&bad)?;
        let held = Devices::cpu_only().engine(DeviceId::Cpu).map_err(engine)?;
        let on = held.as_ref();
        let first = lesson.tiles.first().ok_or_else(|| crate::error::wrong("there are no tiles to learn from"))?;
        let shape = first.shape().to_vec();
        // Tiles of one shape make one plan; stacks of other sizes are cut alike, so that few fall out here.
        let tiles: Vec<&Tensor> = lesson.tiles.iter().filter(|t| t.shape() == shape).collect();
        let options =
            CompileOptions { threads: self.threads, recorder: Recorder::totals_only(), ..CompileOptions::default() };
        let mut master = on.compile(lesson.float, std::slice::from_ref(&shape), &options).map_err(engine)?;
        let mut output = |tile: &Tensor| -> Result<Tensor, JobError> {
            let made = master.run(std::slice::from_ref(tile)).map_err(engine)?.into_iter().next();
            made.ok_or_else(|| crate::error::wrong("the float network has no outputs"))
        };
        let expected: Vec<Tensor> = tiles.iter().map(|t| output(t)).collect::<Result<_, _>>()?;
        drop(master);
        let squares: f64 =
            expected.iter().filter_map(Tensor::as_f32).flatten().map(|v| f64::from(*v) * f64::from(*v)).sum();
        let count: usize = expected.iter().map(Tensor::len).sum();
        let channels = expected.first().and_then(|t| t.shape().get(1)).copied().unwrap_or(1);
        let loss = loss(channels, squares / count.max(1) as f64);
        let mut stepper = self.stepper(fake.graph.clone(), on, loss, shape.clone(), fake.steps())?;
        let mut one = expected.first().map(|t| t.shape().to_vec()).unwrap_or_default();
        if let Some(c) = one.get_mut(1) {
            *c = 1;
        }
        let weight = Tensor::new(one.clone(), vec![1.0f32; one.iter().product()]).map_err(&bad)?;
        let schedule = Schedule { peak: self.rate, warm_up: 0.05, decay: Decay::Cosine { end: 0.02 } };
        let limit = self.minutes.map(|m| Duration::from_secs_f64((m * 60.0).max(1.0)));
        let mut best = Taught { graph: lesson.quantized.clone(), error: lesson.before, steps: 0 };
        let mut meter = context.meter("teach", self.steps, "steps");
        let mut taken = 0;
        while taken < self.steps {
            context.check()?;
            // Through all tiles, again and again, in an order that differs each time round.
            let count = tiles.len().max(1) as u64;
            let (round, place) = (taken / count, taken % count);
            let at = ((place + round) * stride(count) % count) as usize;
            let (Some(tile), Some(target)) = (tiles.get(at), expected.get(at)) else { break };
            let found = stepper.learn((*tile).clone(), target.clone(), weight.clone())?;
            if !matches!(found, Learnt::Loss(_)) {
                context.note("Teaching was given up: the loss was no number.");
                break;
            }
            let gone = limit.map_or(0.0, |l| begun.elapsed().as_secs_f64() / l.as_secs_f64());
            let progress = (taken as f64 / self.steps as f64).max(gone).min(1.0);
            stepper.advance(schedule.rate(progress), CLIP, 1)?;
            taken += 1;
            meter.add(1)?;
            let over = gone >= 1.0 || taken == self.steps;
            if over || taken * TRIES / self.steps > (taken - 1) * TRIES / self.steps {
                let graph = self.bytes(&fake, &stepper, lesson.quantized)?;
                let error = (lesson.error)(&graph)?;
                if error < best.error {
                    best = Taught { graph, error, steps: taken };
                }
            }
            if over {
                break;
            }
        }
        best.steps = taken;
        Ok(best)
    }
}

/// A step through `count` places that visits all of them.
fn stride(count: u64) -> u64 {
    let shared = |a: u64, b: u64| {
        let (mut a, mut b) = (a, b);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (count * 5 / 8..count).find(|s| *s > 0 && shared(*s, count) == 1).unwrap_or(1)
}
