//! The loop: steps, validations, checkpoints, rescues, and the end. When it does what is `planning`'s.

use crate::checkpoint::{Folder, Kept, Standing, restore};
use crate::config::TrainConfig;
use crate::data::{self, Data};
use crate::error::data as data_error;
use crate::history::StepPoint;
use crate::job::{TrainJob, TrainReport};
use crate::network::Start;
use crate::package::Description;
use crate::pictures::Views;
use crate::setup::{agree, fingerprint, prepare};
use crate::step::{Learnt, State, Stepper, StepperOptions};
use crate::trial::{Tried, Validated};
use crate::validate::Validator;
use cytoscope_engine::Engine;
use cytoscope_graph::package::check_destination;
use cytoscope_graph::{Graph, Tensor};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, Event, JobError, JobErrorKind, check_threads, find_model};
use cytoscope_samples::{Loader, LoaderOptions, Pair, Sampler};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps between checkpoints at most, and seconds.
const CHECKPOINT_SECS: u64 = 30;
/// Rescues after which training gives up.
const MOST_RESCUES: u32 = 5;

/// Everything a training works with.
pub(crate) struct Training<'a> {
    pub(crate) job: &'a TrainJob,
    pub(crate) context: &'a Context,
    pub(crate) devices: &'a Devices,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) folder: Folder,
    pub(crate) start: Start,
    pub(crate) options: StepperOptions,
    pub(crate) config: TrainConfig,
    pub(crate) patch: [usize; 3],
    pub(crate) batch: usize,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) validator: Validator,
    pub(crate) views: Views,
    pub(crate) segment: SegmentOptions,
    pub(crate) voxel_um: Option<[f64; 3]>,
    pub(crate) intensity: Option<(f64, f64)>,
    pub(crate) epoch_steps: u64,
    pub(crate) train_pairs: Vec<Pair>,
    /// Names of the pairs that are validated on.
    pub(crate) validation: Vec<String>,
    pub(crate) fingerprint: String,
    pub(crate) began: Instant,
}

pub(crate) fn run(job: &TrainJob, context: &Context, devices: &Devices) -> Result<TrainReport, JobError> {
    let began = Instant::now();
    job.config.check()?;
    check_threads(job.threads)?;
    let folder = Folder::beside(&job.out);
    // A start that cannot be found is reported when it is opened.
    let from = (job.from != "scratch").then(|| find_model(&job.from).ok()).flatten();
    let inputs: Vec<&Path> = from.iter().chain([&job.data]).map(PathBuf::as_path).collect();
    check_destination(&job.out, &inputs, job.overwrite)?;
    folder.check(&inputs)?;
    let kept = match (job.resume, folder.holds_one()) {
        (true, true) => Some(folder.load()?),
        (true, false) => {
            context.note("there is nothing to resume: training begins anew");
            None
        }
        (false, true) if !job.anew => return Err(unfinished(&folder)),
        (false, _) => None,
    };
    // How long it lasts may be said anew; everything else stays as it was begun.
    let config = match &kept {
        None => job.config.clone(),
        Some((standing, _)) if job.config.budget.is_given() => {
            TrainConfig { budget: job.config.budget, ..standing.config.clone() }
        }
        Some((standing, _)) => standing.config.clone(),
    };
    if let Some((standing, _)) = &kept {
        agree(standing, job, &folder)?;
        if standing.config != (TrainConfig { budget: standing.config.budget, ..job.config.clone() }) {
            context.note("Settings are those that the training was begun with: others given now are left aside.");
        }
    }
    let held_back = kept.as_ref().map(|(standing, _)| standing.validation.as_slice()).filter(|names| !names.is_empty());
    let new = kept.is_none().then_some(began);
    let data = data::load(context, &job.data, job.task, &config, job.seed, held_back, new)?;
    let pairs = &data.dataset.pairs;
    let files: Vec<&Path> = pairs.iter().flat_map(|p| [p.image.path.as_path(), p.target.path.as_path()]).collect();
    check_destination(&job.out, &files, job.overwrite)?;
    folder.check(&files)?;
    let claimed = folder.claim()?;
    if kept.is_none() {
        folder.begin()?;
    }
    let outcome = taught(job, context, devices, &folder, config, &data, kept, began);
    drop(claimed);
    if outcome.is_ok() || !folder.holds_one() {
        folder.finish();
    }
    outcome
}

/// There is a training that is not at its end, and nothing was said of it.
fn unfinished(folder: &Folder) -> JobError {
    let stands = Kept::read(folder).map_or_else(String::new, |k| format!(", at step {} of {}", k.step, k.steps));
    JobError::Mismatch {
        path: folder.path.clone(),
        problem: format!("a training lies there that is not at its end{stands}"),
        next_step: "go on with --resume, or throw it away with --anew".to_owned(),
    }
}

#[allow(clippy::too_many_arguments)]
fn taught(
    job: &TrainJob,
    context: &Context,
    devices: &Devices,
    folder: &Folder,
    config: TrainConfig,
    data: &Data,
    kept: Option<(Standing, BTreeMap<String, Tensor>)>,
    began: Instant,
) -> Result<TrainReport, JobError> {
    let fingerprint = fingerprint(data);
    let intensity = kept.as_ref().and_then(|(standing, _)| standing.intensity);
    let mut training = prepare(job, context, devices, folder.clone(), config, data, fingerprint, intensity, began)?;
    let outcome = training.teach(kept)?;
    training.finish(outcome)
}

/// Where the loop ended.
pub(crate) struct Outcome {
    pub(crate) standing: Standing,
    pub(crate) before: Option<Tried>,
    pub(crate) parameters: usize,
}

/// Steps since a point of the curve.
#[derive(Default)]
struct Window {
    loss: f64,
    steps: u64,
    /// Those of this run.
    timed: u64,
    began: Option<Instant>,
    stalled: f64,
}

impl Training<'_> {
    pub(crate) fn stepper(&self, graph: Graph, batch_statistics: bool) -> Result<Stepper, JobError> {
        let options = StepperOptions { batch_statistics, ..self.options.clone() };
        Stepper::new(graph, self.engine.as_ref(), &options)
    }

    pub(crate) fn loader(&self, start: u64) -> Result<Loader, JobError> {
        let prefetch = (self.batch * 4).max(8);
        let options = LoaderOptions { workers: self.config.workers, prefetch, start };
        Loader::new(Arc::clone(&self.sampler), options).map_err(data_error)
    }

    /// The next batch as the network and the loss take it.
    pub(crate) fn batch(&self, loader: &mut Loader) -> Result<[Tensor; 3], JobError> {
        let batch = loader.next_batch(self.batch).map_err(data_error)?;
        let spatial = &self.options.shape[2..];
        let shape = |channels: usize| {
            let mut shape = vec![batch.count, channels];
            shape.extend(spatial);
            shape
        };
        let mut target = batch.target;
        if let Some((mean, std)) = self.intensity {
            target.iter_mut().for_each(|v| *v = ((f64::from(*v) - mean) / std) as f32);
        }
        let bad = |e: cytoscope_graph::GraphError| JobError::model("a batch", e);
        Ok([
            Tensor::new(shape(1), batch.image).map_err(bad)?,
            Tensor::new(shape(batch.channels), target).map_err(bad)?,
            Tensor::new(shape(1), batch.weight).map_err(bad)?,
        ])
    }

    pub(crate) fn describe(&self, record: serde_json::Value, card: String, name: String) -> Description<'_> {
        Description {
            start: &self.start,
            name,
            voxel_um: self.voxel_um,
            segment: self.segment.clone(),
            intensity: self.intensity,
            record,
            card,
            covers: Vec::new(),
            test: None,
        }
    }

    /// Whether it was asked to end with the best so far. That is kept in its folder, so that a run that goes on ends, too.
    fn is_finishing(&self) -> bool {
        let asked = self.folder.is_asked_to_finish();
        if !asked && self.context.cancel.is_finishing() {
            // Where it cannot be kept, this run ends all the same.
            let _ = self.folder.ask_to_finish();
            return true;
        }
        asked
    }

    /// Seconds of all its runs; the standing holds those of earlier ones.
    pub(crate) fn seconds(&self, standing: &Standing) -> f64 {
        standing.seconds + self.began.elapsed().as_secs_f64()
    }

    /// The loop.
    fn teach(&mut self, kept: Option<(Standing, BTreeMap<String, Tensor>)>) -> Result<Outcome, JobError> {
        let context = self.context;
        let schedule = self.config.schedule.schedule(self.start.from_scratch);
        let graph = self.start.graph.clone();
        let resumed = kept.is_some();
        let (mut standing, mut stepper, before) = match kept {
            Some((standing, tensors)) => {
                let mut stepper = self.stepper(graph, true)?;
                if standing.folded && stepper.has_norms() {
                    stepper = self.stepper(stepper.folded()?, false)?;
                }
                let names = stepper.names();
                restore(&mut stepper.state, &names, &standing, &tensors, &self.folder.path)?;
                context.note(format!("Going on after step {} of {}.", standing.step, standing.steps));
                let mut standing = standing;
                standing.job.out.clone_from(&self.job.out);
                if let Some(extent) = standing.extent {
                    self.look_at(extent)?;
                }
                self.go_on(&mut standing)?;
                (standing, stepper, None)
            }
            None => {
                let (standing, stepper, before) = self.begin(graph)?;
                (standing, stepper, before)
            }
        };
        let mut before = match (before, resumed, self.start.comparable && !self.validator.is_empty()) {
            (None, true, true) => {
                let tried = self.score(&self.start.graph, true)?;
                standing.validating_secs += tried.secs;
                Some(tried)
            }
            (before, ..) => before,
        };
        // What works on the input alone costs next to nothing.
        let slow: Vec<String> =
            stepper.fallbacks().into_iter().filter(|op| !matches!(op.as_str(), "Mul" | "Softsign")).collect();
        if !slow.is_empty() {
            context.note(format!("Without kernels of their own here, and slow: {}.", slow.join(", ")));
        }
        let mut loader = self.loader(standing.next_patch)?;
        let parameters = stepper.parameter_count();
        let mut meter = context.meter("train", standing.steps, "steps");
        meter.done_before(standing.step);
        let (loss, steps) = standing.since_point;
        let mut window = Window { loss, steps, ..Window::default() };
        let mut good: (State, u64, u64) = (stepper.state.clone(), standing.step, standing.next_patch);
        let (mut saved, mut planned) = (Instant::now(), Instant::now());
        self.replan(&mut standing);
        while !standing.ended && (standing.step < standing.steps || standing.due) {
            if context.cancel.is_cancelled() {
                stepper.forget();
                standing.since_point = (window.loss, window.steps);
                self.keep(&mut standing, &stepper)?;
                context.note(format!(
                    "Stopped after step {} of {}; resume goes on from here ({}).",
                    standing.step,
                    standing.steps,
                    self.folder.path.display()
                ));
                return Err(JobError::Cancelled);
            }
            if standing.due {
                match self.validate(&mut standing, &stepper, &mut before) {
                    Ok(Validated::Done) => {}
                    Ok(Validated::Cancelled | Validated::BrokenOff) => continue,
                    Err(error) if error.kind() == JobErrorKind::OutOfResources && standing.step < standing.steps => {
                        // A full disk ends no training; the next validation may find room again.
                        context.note(format!("The network could not be tried ({error}); training goes on."));
                    }
                    Err(error) => return Err(error),
                }
                standing.due = false;
                window = Window::default();
                standing.since_point = (0.0, 0);
                self.replan(&mut standing);
                planned = Instant::now();
                good = (stepper.state.clone(), standing.step, standing.next_patch);
                let patience = self.config.budget.patience;
                if patience > 0 && standing.since_best >= patience {
                    context.note(format!("No better score for {patience} validations: training ends."));
                    standing.history.notes.push(format!("Ended early at step {}.", standing.step));
                    standing.ended = true;
                }
                self.keep(&mut standing, &stepper)?;
                saved = Instant::now();
                continue;
            }
            if self.is_finishing() {
                // What was learnt since the last validation is tried, too.
                let tried = standing.history.validations.last().is_some_and(|v| v.step == standing.step);
                if !tried && !self.validator.is_empty() {
                    standing.due = true;
                    continue;
                }
                let sentence = format!("Finished early, as asked: at step {} of {}.", standing.step, standing.steps);
                context.note(sentence.clone());
                standing.history.notes.push(sentence);
                break;
            }
            if planned.elapsed().as_secs_f64() > self.seconds_between_plans() {
                self.replan(&mut standing);
                planned = Instant::now();
            }
            if self.is_over(&standing) {
                self.end_here(&mut standing);
                continue;
            }
            let progress = standing.step as f64 / standing.steps.max(1) as f64;
            if !standing.folded && stepper.has_norms() && progress >= self.config.norm_share {
                stepper = self.stepper(stepper.folded()?, false)?;
                standing.folded = true;
                good = (stepper.state.clone(), standing.step, standing.next_patch);
                standing
                    .history
                    .notes
                    .push(format!("Batch norms were folded into the convolutions at step {}.", standing.step));
            }
            window.began.get_or_insert_with(Instant::now);
            let mut learnt = Learnt::Loss(0.0);
            for _ in 0..self.config.accumulate {
                let before = loader.stalled_secs();
                let [image, target, weight] = self.batch(&mut loader)?;
                window.stalled += loader.stalled_secs() - before;
                standing.next_patch += self.batch as u64;
                learnt = match (learnt, stepper.learn(image, target, weight)?) {
                    (Learnt::Loss(sum), Learnt::Loss(loss)) => Learnt::Loss(sum + loss / self.config.accumulate as f64),
                    (_, other) => other,
                };
                if !matches!(learnt, Learnt::Loss(_)) {
                    break;
                }
            }
            let loss = match learnt {
                Learnt::Loss(loss) => loss,
                // The next batch is tried with a smaller factor.
                Learnt::Overflow => continue,
                Learnt::NotFinite => {
                    self.rescue(&mut standing, &mut stepper, &good)?;
                    window = Window::default();
                    continue;
                }
            };
            let rate = schedule.rate(progress) * standing.rate_factor;
            stepper.advance(rate, self.config.clip_norm, self.config.accumulate)?;
            standing.step += 1;
            window.loss += loss;
            window.steps += 1;
            window.timed += 1;
            let every = (standing.steps / 400).max(1);
            if window.steps >= every {
                let secs = window.began.map_or(0.0, |b| b.elapsed().as_secs_f64());
                let n = window.timed as f64;
                let point = StepPoint {
                    step: standing.step,
                    loss: window.loss / window.steps as f64,
                    rate,
                    step_secs: secs / n,
                    stalled_secs: window.stalled / n,
                };
                standing.history.push(point);
                context.tell(&Event::Learned {
                    step: point.step,
                    steps: standing.steps,
                    loss: point.loss,
                    rate,
                    step_secs: point.step_secs,
                    stalled_secs: point.stalled_secs,
                });
                window = Window::default();
            }
            // Cancelling is answered at the loop's head, where what was learnt is kept.
            let _ = meter.reach(standing.step, standing.steps);
            standing.due = !self.validator.is_empty() && self.is_validation_due(&standing);
            if !standing.due && saved.elapsed() > Duration::from_secs(CHECKPOINT_SECS) {
                good = (stepper.state.clone(), standing.step, standing.next_patch);
                standing.since_point = (window.loss, window.steps);
                self.keep(&mut standing, &stepper)?;
                saved = Instant::now();
            }
        }
        if self.validator.is_empty() {
            self.plain(&stepper.folded()?, &self.folder.best(standing.step))?;
        }
        Ok(Outcome { standing, before, parameters })
    }

    /// Back to the last good state, with half the rate.
    fn rescue(&self, standing: &mut Standing, stepper: &mut Stepper, good: &(State, u64, u64)) -> Result<(), JobError> {
        standing.rescues += 1;
        if standing.rescues > MOST_RESCUES {
            return Err(JobError::Mismatch {
                path: self.job.data.clone(),
                problem: format!("the loss was no number {MOST_RESCUES} times, at ever lower rates"),
                next_step: "look for values that are not finite in the data, or lower schedule.rate".to_owned(),
            });
        }
        stepper.forget();
        stepper.state = good.0.clone();
        standing.rate_factor /= 2.0;
        let sentence = format!(
            "The loss was no number at step {}: back to step {}, with {} of the rate.",
            standing.step, good.1, standing.rate_factor
        );
        standing.step = good.1;
        // The curve goes on from there.
        standing.history.forget_after(good.1);
        self.context.note(sentence.clone());
        standing.history.notes.push(sentence);
        Ok(())
    }

    fn keep(&self, standing: &mut Standing, stepper: &Stepper) -> Result<(), JobError> {
        let now = self.seconds(standing);
        let seconds = std::mem::replace(&mut standing.seconds, now);
        let done = self.folder.save(standing, &stepper.names(), &stepper.state);
        standing.seconds = seconds;
        match done {
            Err(error) if standing.step < standing.steps && !self.context.cancel.is_cancelled() => {
                // A full disk ends no training; the last checkpoint stays as it was.
                self.context.note(format!("The state could not be kept ({error}); training goes on."));
                Ok(())
            }
            other => other,
        }
    }
}
