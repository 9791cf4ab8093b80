//! The loop: steps, validations, checkpoints, rescues, and the end.

use crate::budget::{self, Costs};
use crate::checkpoint::{Folder, Standing, restore};
use crate::config::TrainConfig;
use crate::data;
use crate::decode::{self, Care};
use crate::error::data as data_error;
use crate::history::{History, StepPoint, ValidationPoint};
use crate::job::{TrainJob, TrainReport};
use crate::network::Start;
use crate::package::{self, Description};
use crate::pictures::{Section, Views};
use crate::setup::{agree, fingerprint, prepare, spare};
use crate::step::{State, Stepper, StepperOptions};
use crate::validate::{Scores, Validator};
use cytoscope_engine::{Engine, Precision};
use cytoscope_graph::{Graph, Tensor};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, Event, JobError};
use cytoscope_samples::{Loader, LoaderOptions, Pair, Sampler, TargetKind};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps tried before the plan is made.
const TRIAL_STEPS: usize = 3;
/// Steps between checkpoints at most, and seconds.
const CHECKPOINT_SECS: u64 = 30;
/// Rescues after which training gives up.
const MOST_RESCUES: u32 = 5;
/// Scores so near one another are taken as equal.
const SCORE_NOISE: f64 = 0.01;
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
    pub(crate) validation_pairs: usize,
    pub(crate) fingerprint: String,
    pub(crate) began: Instant,
}

pub(crate) fn run(job: &TrainJob, context: &Context, devices: &Devices) -> Result<TrainReport, JobError> {
    let began = Instant::now();
    job.config.check()?;
    let folder = Folder::beside(&job.out);
    spare(&job.out)?;
    let kept = if job.resume && folder.holds_one() {
        Some(folder.load()?)
    } else {
        if job.resume {
            context.note("there is nothing to resume: training begins anew");
        }
        None
    };
    let config = kept.as_ref().map_or_else(|| job.config.clone(), |(s, _)| s.config.clone());
    let data = data::load(context, &job.data, job.task, &config, job.seed)?;
    let fingerprint = fingerprint(&data);
    if let Some((standing, _)) = &kept {
        if standing.config != job.config {
            context.note("Settings are those that the training was begun with: others given now are left aside.");
        }
        agree(standing, job, &fingerprint, &folder)?;
    }
    if kept.is_none() {
        folder.begin()?;
    }
    let mut training = prepare(job, context, devices, folder, config, &data, fingerprint, began)?;
    let outcome = training.teach(kept)?;
    let report = training.finish(outcome)?;
    training.folder.finish();
    Ok(report)
}

/// Where the loop ended.
pub(crate) struct Outcome {
    pub(crate) standing: Standing,
    pub(crate) before: Option<Tried>,
    pub(crate) parameters: usize,
}

/// How a network did.
pub(crate) struct Tried {
    /// Scores with the settings for objects that there are.
    pub(crate) plain: Scores,
    /// Scores with those that suit it.
    pub(crate) tuned: Scores,
    /// What it made of each pair with the former, where that was asked for.
    pub(crate) seen: Vec<Option<Section>>,
    /// What it made of the pair that is shown, with the latter.
    live: Option<Section>,
}

/// Steps since a point of the curve.
#[derive(Default)]
struct Window {
    loss: f64,
    steps: u64,
    began: Option<Instant>,
    stalled: f64,
}

impl Training<'_> {
    fn stepper(&self, graph: Graph, batch_statistics: bool) -> Result<Stepper, JobError> {
        let options = StepperOptions { batch_statistics, ..self.options.clone() };
        Stepper::new(graph, self.engine.as_ref(), &options)
    }

    fn loader(&self, start: u64) -> Result<Loader, JobError> {
        let prefetch = (self.batch * 4).max(8);
        let options = LoaderOptions { workers: self.config.workers, prefetch, start };
        Loader::new(Arc::clone(&self.sampler), options).map_err(data_error)
    }

    /// The next batch as the network and the loss take it.
    fn batch(&self, loader: &mut Loader) -> Result<[Tensor; 3], JobError> {
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

    /// Writes a package that is only to be tried.
    pub(crate) fn plain(&self, graph: &Graph, to: &Path) -> Result<(), JobError> {
        let description = self.describe(json!({}), String::from("# Being taught\n"), "being taught".to_owned());
        package::write(&description, graph, to)
    }

    /// Whether how objects are made of the maps is found by their score.
    pub(crate) fn tunes(&self) -> bool {
        let target = self.start.target;
        target.of_labels() && target != TargetKind::Semantic && !self.validator.is_empty()
    }

    /// Scores of a network; with what it made of each pair, if that is to be shown.
    fn score(&self, graph: &Graph, show: bool) -> Result<Tried, JobError> {
        let path = self.folder.path.join("candidate");
        self.plain(graph, &path)?;
        let cancel = &self.context.cancel;
        let scores = if self.tunes() {
            let channel = package::seed_channel(self.start.target);
            decode::maps(cancel, self.devices, &self.validator, &path, channel).and_then(|maps| {
                let (options, [plain, tuned]) =
                    decode::tune(cancel, &self.validator, &maps, &self.segment, Care::Quick)?;
                let mut seen = vec![None; if show { self.validator.cases.len() } else { 0 }];
                for (map, to) in maps.iter().zip(&mut seen) {
                    *to = self.views.section(map.case(), &map.labels(&self.segment)?);
                }
                let live = match maps.iter().find(|map| Some(map.case()) == self.views.live()) {
                    Some(map) => self.views.section(map.case(), &map.labels(&options)?),
                    None => None,
                };
                Ok(Tried { plain, tuned, seen, live })
            })
        } else {
            let mut seen = Vec::new();
            let mut see = |case: usize, made: &[f32]| seen.push(self.views.section(case, made));
            let found = self.validator.score_seen(cancel, self.devices, &path, Some(Precision::F32), &mut see);
            let live = self.views.live().and_then(|case| seen.get(case)?.clone());
            found.map(|scores| Tried { plain: scores.clone(), tuned: scores, seen, live })
        };
        let _ = std::fs::remove_dir_all(&path);
        scores
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
                (standing, stepper, None)
            }
            None => {
                let (standing, stepper, before) = self.begin(graph)?;
                (standing, stepper, before)
            }
        };
        let before = match (before, resumed, self.start.comparable && !self.validator.is_empty()) {
            (None, true, true) => Some(self.score(&self.start.graph, true)?),
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
        meter.add(standing.step)?;
        let mut window = Window::default();
        let mut good: (State, u64, u64) = (stepper.state.clone(), standing.step, standing.next_patch);
        let mut saved = Instant::now();
        let validations = self.config.validation.times.max(1) as u64;
        while standing.step < standing.steps || standing.due {
            if context.cancel.is_cancelled() {
                stepper.forget();
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
                if !self.validate(&mut standing, &stepper)? {
                    continue;
                }
                standing.due = false;
                window = Window::default();
                self.replan(&mut standing);
                good = (stepper.state.clone(), standing.step, standing.next_patch);
                self.keep(&mut standing, &stepper)?;
                saved = Instant::now();
                let patience = self.config.budget.patience;
                if patience > 0 && standing.since_best >= patience {
                    context.note(format!("No better score for {patience} validations: training ends."));
                    standing.history.notes.push(format!("Ended early at step {}.", standing.step));
                    break;
                }
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
            let mut loss = 0.0;
            for _ in 0..self.config.accumulate {
                let before = loader.stalled_secs();
                let [image, target, weight] = self.batch(&mut loader)?;
                window.stalled += loader.stalled_secs() - before;
                loss += stepper.learn(image, target, weight)? / self.config.accumulate as f64;
            }
            standing.next_patch += (self.batch * self.config.accumulate) as u64;
            if !loss.is_finite() {
                self.rescue(&mut standing, &mut stepper, &good)?;
                window = Window::default();
                continue;
            }
            let rate = schedule.rate(progress) * standing.rate_factor;
            stepper.advance(rate, self.config.clip_norm, self.config.accumulate)?;
            standing.step += 1;
            window.loss += loss;
            window.steps += 1;
            let every = (standing.steps / 400).max(1);
            if window.steps >= every {
                let secs = window.began.map_or(0.0, |b| b.elapsed().as_secs_f64());
                let n = window.steps as f64;
                let point = StepPoint {
                    step: standing.step,
                    loss: window.loss / n,
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
            let _ = meter.add(1);
            let validation = |step: u64| step * validations / standing.steps.max(1);
            standing.due = !self.validator.is_empty() && validation(standing.step) > validation(standing.step - 1);
            if !standing.due && saved.elapsed() > Duration::from_secs(CHECKPOINT_SECS) {
                good = (stepper.state.clone(), standing.step, standing.next_patch);
                self.keep(&mut standing, &stepper)?;
                saved = Instant::now();
            }
        }
        if self.validator.is_empty() {
            self.plain(&stepper.folded()?, &self.folder.best())?;
        }
        Ok(Outcome { standing, before, parameters })
    }

    /// Tries a few steps, scores what training starts from, and makes the plan.
    fn begin(&self, graph: Graph) -> Result<(Standing, Stepper, Option<Tried>), JobError> {
        let context = self.context;
        let mut stepper = self.stepper(graph, true)?;
        let beginning = stepper.state.clone();
        let mut loader = self.loader(0)?;
        let mut times = Vec::new();
        for _ in 0..TRIAL_STEPS {
            context.check()?;
            let [image, target, weight] = self.batch(&mut loader)?;
            let begun = Instant::now();
            for _ in 0..self.config.accumulate {
                stepper.learn(image.clone(), target.clone(), weight.clone())?;
            }
            stepper.advance(1e-9, self.config.clip_norm, self.config.accumulate)?;
            times.push(begun.elapsed());
        }
        stepper.state = beginning;
        times.sort_unstable();
        let step = times.get(times.len() / 2).copied().unwrap_or(Duration::from_secs(1));
        let begun = Instant::now();
        let (mut validation, mut before, mut best) = (Duration::ZERO, None, None);
        if !self.validator.is_empty() {
            context.note("Scoring what training starts from.");
            let tried = self.score(&self.start.graph, self.start.comparable)?;
            validation = begun.elapsed();
            if self.start.comparable {
                best = Some(tried.tuned.clone());
                before = Some(tried);
            }
        }
        let costs = Costs { step, validation };
        let times = self.config.validation.times;
        let budget = &self.config.budget;
        let steps = budget::steps(budget, self.epoch_steps, times, costs, self.began.elapsed(), 0);
        context.note(format!(
            "{} values to teach; a step takes {:.2} s, a validation {:.1} s; {steps} steps are planned ({:.1} epochs), about {:.0} minutes; {:.0} MiB for activations.",
            stepper.parameter_count(),
            step.as_secs_f64(),
            validation.as_secs_f64(),
            steps as f64 / self.epoch_steps.max(1) as f64,
            (steps as f64 * step.as_secs_f64() + times as f64 * validation.as_secs_f64()) / 60.0,
            stepper.arena_bytes() as f64 / f64::from(1 << 20),
        ));
        if let Some(r) = stepper.recomputed() {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            context.note(format!(
                "Memory: {:.0} MiB of activations are held instead of {:.0}; for that {} operators are run twice.",
                mib(r.bytes_after),
                mib(r.bytes_before),
                r.nodes
            ));
        }
        let mut standing = Standing {
            version: 0,
            job: self.job.clone(),
            config: self.config.clone(),
            data_fingerprint: self.fingerprint.clone(),
            step: 0,
            steps,
            next_patch: 0,
            folded: false,
            rate_factor: 1.0,
            rescues: 0,
            seconds: 0.0,
            best: None,
            peak: best.as_ref().map(|s: &Scores| s.score),
            start_score: best.as_ref().map(|s| s.score),
            since_best: 0,
            due: false,
            history: History::default(),
            optimizer_steps: 0,
            tensors: String::new(),
        };
        if let Some(scores) = &best {
            self.plain(&self.start.graph, &self.folder.start())?;
            standing.best = Some((scores.score, 0));
            self.tell(&mut standing, scores, true);
            self.show(standing.step, before.as_ref().and_then(|b| b.live.as_ref()));
        }
        Ok((standing, stepper, before))
    }

    fn tell(&self, standing: &mut Standing, scores: &Scores, best: bool) {
        let point = ValidationPoint { step: standing.step, score: scores.score, scores: scores.scores.clone(), best };
        standing.history.validations.push(point);
        self.context.tell(&Event::Validated {
            step: standing.step,
            score: scores.score,
            scores: scores.scores.clone(),
            best,
        });
    }

    /// Shows what was made of a pair. Without a place for the picture training goes on without it.
    fn show(&self, step: u64, live: Option<&Section>) {
        let Some((case, live)) = self.views.live().zip(live) else { return };
        let Some((png, caption)) = self.views.shown(case, live).zip(self.views.caption(case)) else { return };
        let path = self.folder.shown();
        if cytoscope_formats::atomic_write(&path, &png).is_ok() {
            self.context.tell(&Event::Pictured { step, path, caption });
        }
    }

    /// Scores the network as it is, and keeps it if it is the best. False if it was cancelled: then it is still due.
    fn validate(&self, standing: &mut Standing, stepper: &Stepper) -> Result<bool, JobError> {
        let graph = stepper.folded()?;
        let Tried { tuned: scores, live, .. } = match self.score(&graph, false) {
            Err(JobError::Cancelled) => return Ok(false),
            other => other?,
        };
        let better = standing.peak.is_none_or(|peak| scores.score > peak);
        // Few files make a noisy score: of networks that are as good, the one taught longer is kept.
        let near = standing.peak.is_none_or(|peak| scores.score > peak - SCORE_NOISE);
        let best = better || (near && standing.start_score.is_none_or(|start| scores.score > start));
        self.tell(standing, &scores, best);
        self.show(standing.step, live.as_ref());
        if best {
            self.plain(&graph, &self.folder.best())?;
            standing.best = Some((scores.score, standing.step));
        }
        standing.peak = Some(standing.peak.map_or(scores.score, |peak| peak.max(scores.score)));
        standing.since_best = if better { 0 } else { standing.since_best + 1 };
        Ok(true)
    }

    /// Keeps within the minutes: steps turned out to take longer, or shorter.
    fn replan(&self, standing: &mut Standing) {
        if self.config.budget.minutes.is_none() || standing.step == 0 {
            return;
        }
        let recent: Vec<f64> = standing.history.steps.iter().rev().take(40).map(|p| p.step_secs).collect();
        let step = recent.iter().sum::<f64>() / recent.len().max(1) as f64;
        let left = self.config.validation.times as f64 * (1.0 - standing.step as f64 / standing.steps.max(1) as f64);
        let spent = Duration::from_secs_f64(self.seconds(standing));
        let costs = Costs { step: Duration::from_secs_f64(step.max(1e-4)), validation: Duration::ZERO };
        let mut budget = self.config.budget;
        // Validations still to come count with what one of them took on average.
        let of_validations = (spent.as_secs_f64()
            - standing.history.steps.iter().map(|p| p.step_secs).sum::<f64>().min(spent.as_secs_f64()))
        .max(0.0)
            / (standing.history.validations.len().max(1) as f64);
        budget.minutes = budget.minutes.map(|m| m - left * of_validations.min(60.0) / 60.0);
        let steps = budget::steps(&budget, self.epoch_steps, 0, costs, spent, standing.step);
        let change = steps as f64 / standing.steps.max(1) as f64;
        if (change - 1.0).abs() > 0.03 && steps > standing.step {
            standing.history.notes.push(format!(
                "At step {} the plan was changed from {} to {steps} steps to keep to the minutes.",
                standing.step, standing.steps
            ));
            standing.steps = steps;
        }
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
