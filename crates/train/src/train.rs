//! The loop: steps, validations, checkpoints, rescues, and the end.

use crate::budget::{self, Costs};
use crate::checkpoint::{Folder, Standing, restore};
use crate::config::{self, TrainConfig};
use crate::data::{self, Data};
use crate::decode;
use crate::error::{data as data_error, engine as engine_error, io, wrong};
use crate::history::{History, StepPoint, ValidationPoint};
use crate::job::{TrainJob, TrainReport, Verdict};
use crate::network::{self, Start};
use crate::package::{self, Description};
use crate::step::{State, Stepper, StepperOptions};
use crate::validate::{Scores, Validator};
use cytoscope_engine::{DeviceId, Engine, Precision};
use cytoscope_graph::package::Package;
use cytoscope_graph::{Graph, Tensor};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::quantize::{ACCURACY_BUDGET, QuantizeJob, QuantizeMode};
use cytoscope_pipeline::{Context, Event, JobError};
use cytoscope_samples::{Loader, LoaderOptions, Pair, Sampler, SamplerOptions, SourceOptions, Sources, TargetKind};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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
/// Greatest loss of F1 that quantizing may cost.
const INT8_LOSS: f64 = 0.005;
/// Patches where nothing is said: voxels along Z, Y, X.
const PATCH: [usize; 3] = [24, 64, 64];
/// Patches of a step where nothing is said.
const BATCH: usize = 2;

/// Everything a training works with.
struct Training<'a> {
    job: &'a TrainJob,
    context: &'a Context,
    devices: &'a Devices,
    engine: Box<dyn Engine>,
    folder: Folder,
    start: Start,
    options: StepperOptions,
    config: TrainConfig,
    patch: [usize; 3],
    batch: usize,
    sampler: Arc<Sampler>,
    validator: Validator,
    segment: SegmentOptions,
    voxel_um: Option<[f64; 3]>,
    intensity: Option<(f64, f64)>,
    epoch_steps: u64,
    train_pairs: Vec<Pair>,
    validation_pairs: usize,
    fingerprint: String,
    began: Instant,
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

/// Refuses to write over what is no package.
fn spare(out: &Path) -> Result<(), JobError> {
    let is_zip = out.extension().is_some_and(|e| e.eq_ignore_ascii_case("zip"));
    if out.is_file() && !(is_zip && Package::open(out).is_ok()) {
        return Err(wrong(format!("{} is a file and no package: give another path with --out", out.display())));
    }
    let full = std::fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some());
    if out.is_dir() && full && !out.join("rdf.yaml").is_file() {
        return Err(wrong(format!("{} holds other files: give a new folder with --out", out.display())));
    }
    Ok(())
}

/// What the data are, so that a resumed training notices others.
fn fingerprint(data: &Data) -> String {
    let mut text = String::new();
    for pair in &data.dataset.pairs {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
        text.push_str(&format!("{} {} {};", pair.name, size(&pair.image.path), size(&pair.target.path)));
    }
    cytoscope_engine::select::fingerprint(text.as_bytes())
}

fn agree(standing: &Standing, job: &TrainJob, fingerprint: &str, folder: &Folder) -> Result<(), JobError> {
    let was = &standing.job;
    let differs = if was.task != job.task || was.from != job.from || was.seed != job.seed {
        Some("another task, start or seed")
    } else if standing.data_fingerprint != fingerprint {
        Some("other data")
    } else {
        None
    };
    match differs {
        None => Ok(()),
        Some(what) => Err(JobError::Mismatch {
            path: folder.path.clone(),
            problem: format!("the training in it was begun with {what}"),
            next_step: "begin anew without --resume, or give what it was begun with".to_owned(),
        }),
    }
}

#[allow(clippy::too_many_arguments)]
fn prepare<'a>(
    job: &'a TrainJob,
    context: &'a Context,
    devices: &'a Devices,
    folder: Folder,
    config: TrainConfig,
    data: &Data,
    fingerprint: String,
    began: Instant,
) -> Result<Training<'a>, JobError> {
    let start = network::start(&job.from, job.task, &config, data.voxel_um(), job.seed)?;
    let engine = devices.engine(DeviceId::Cpu).map_err(engine_error)?;
    let voxel_um = start.voxel_um;
    let mut patch = config.patch_zyx.unwrap_or(PATCH);
    if start.spatial_axes == 2 {
        patch[0] = 1;
    }
    patch = std::array::from_fn(|a| patch[a].max(start.step[a]).next_multiple_of(start.step[a]));
    let batch = config.batch.unwrap_or(BATCH);
    let sources = SourceOptions { cache_bytes: config.cache_bytes };
    let sources = Arc::new(Sources::open(&data.split.train, &sources).map_err(data_error)?);
    let options = SamplerOptions {
        patch_zyx: patch,
        voxel_um,
        object_bias: config.object_bias,
        seed: job.seed,
        augment: config.augment,
        target: start.target,
        normalise: start.normalise,
        ..SamplerOptions::default()
    };
    context.note("Looking through the stacks for their statistics and objects.");
    let sampler = Arc::new(Sampler::new(sources, options).map_err(data_error)?);
    let labels = start.target.of_labels();
    let moments = sampler.target_moments();
    let intensity = (!labels).then(|| (moments.mean, moments.variance().sqrt().max(1e-12)));
    let mut shape = vec![batch, 1];
    shape.extend(patch.iter().skip(3 - start.spatial_axes));
    let options = StepperOptions {
        loss: config::loss(start.target, config.loss),
        optimizer: config.optimizer.rule(),
        shape,
        batch_statistics: true,
        only: config.only.clone(),
        ema: config.ema,
        threads: job.threads,
        memory_budget_bytes: None,
        recorder: context.recorder.clone(),
    };
    let validation: &[Pair] = &data.split.validation;
    let cases = folder.path.join("validation");
    let validator = Validator::new(validation, config.validation.max_files, start.target, cases)?;
    if validator.is_empty() {
        context.note("There is nothing to validate on: the last state is kept, whatever it is worth.");
    }
    let segment = start.segment.clone().unwrap_or_else(|| decode::defaults(start.target, data.small_object_um3()));
    let epoch_steps = budget::epoch_steps(sampler.tile_count(), batch * config.accumulate);
    Ok(Training {
        job,
        context,
        devices,
        engine,
        folder,
        options,
        patch,
        batch,
        sampler,
        validator,
        segment,
        voxel_um,
        intensity,
        epoch_steps,
        train_pairs: data.split.train.clone(),
        validation_pairs: validation.len(),
        fingerprint,
        began,
        start,
        config,
    })
}

/// Where the loop ended.
struct Outcome {
    standing: Standing,
    before: Option<Scores>,
    parameters: usize,
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

    fn describe(&self, record: serde_json::Value, card: String, name: String) -> Description<'_> {
        Description {
            start: &self.start,
            name,
            voxel_um: self.voxel_um,
            segment: self.segment.clone(),
            intensity: self.intensity,
            record,
            card,
            test: None,
        }
    }

    /// Writes a package that is only to be tried.
    fn plain(&self, graph: &Graph, to: &Path) -> Result<(), JobError> {
        let description = self.describe(json!({}), String::from("# Being taught\n"), "being taught".to_owned());
        package::write(&description, graph, to)
    }

    fn score(&self, graph: &Graph) -> Result<Scores, JobError> {
        let path = self.folder.path.join("candidate");
        self.plain(graph, &path)?;
        let scores = self.validator.score(&self.context.cancel, self.devices, &path, Some(Precision::F32));
        let _ = std::fs::remove_dir_all(&path);
        scores
    }

    fn seconds(&self, standing: &Standing) -> f64 {
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
            (None, true, true) => Some(self.score(&self.start.graph)?),
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
        let mut behind = standing.seconds;
        let validations = self.config.validation.times.max(1) as u64;
        while standing.step < standing.steps {
            if context.cancel.is_cancelled() {
                stepper.forget();
                self.keep(&mut standing, &stepper, behind)?;
                context.note(format!(
                    "Stopped after step {} of {}; resume goes on from here ({}).",
                    standing.step,
                    standing.steps,
                    self.folder.path.display()
                ));
                return Err(JobError::Cancelled);
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
            let due = standing.step * validations / standing.steps.max(1)
                > (standing.step - 1) * validations / standing.steps.max(1);
            if due && !self.validator.is_empty() {
                self.validate(&mut standing, &stepper)?;
                window = Window::default();
                self.replan(&mut standing);
                good = (stepper.state.clone(), standing.step, standing.next_patch);
                self.keep(&mut standing, &stepper, behind)?;
                saved = Instant::now();
                let patience = self.config.budget.patience;
                if patience > 0 && standing.since_best >= patience {
                    context.note(format!("No better score for {patience} validations: training ends."));
                    standing.history.notes.push(format!("Ended early at step {}.", standing.step));
                    break;
                }
            } else if saved.elapsed() > Duration::from_secs(CHECKPOINT_SECS) {
                good = (stepper.state.clone(), standing.step, standing.next_patch);
                self.keep(&mut standing, &stepper, behind)?;
                saved = Instant::now();
            }
        }
        behind = self.seconds(&standing);
        standing.seconds = behind;
        if self.validator.is_empty() {
            self.plain(&stepper.folded()?, &self.folder.best())?;
        }
        Ok(Outcome { standing, before, parameters })
    }

    /// Tries a few steps, scores what training starts from, and makes the plan.
    fn begin(&self, graph: Graph) -> Result<(Standing, Stepper, Option<Scores>), JobError> {
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
        let (mut validation, mut before) = (Duration::ZERO, None);
        if !self.validator.is_empty() {
            context.note("Scoring what training starts from.");
            let scores = self.score(&self.start.graph)?;
            validation = begun.elapsed();
            if self.start.comparable {
                before = Some(scores);
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
            peak: before.as_ref().map(|s| s.score),
            start_score: before.as_ref().map(|s| s.score),
            since_best: 0,
            history: History::default(),
            optimizer_steps: 0,
            tensors: String::new(),
        };
        if let Some(scores) = &before {
            self.plain(&self.start.graph, &self.folder.start())?;
            standing.best = Some((scores.score, 0));
            self.tell(&mut standing, scores, true);
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

    /// Scores the network as it is, and keeps it if it is the best.
    fn validate(&self, standing: &mut Standing, stepper: &Stepper) -> Result<(), JobError> {
        let graph = stepper.folded()?;
        let scores = match self.score(&graph) {
            // What was learnt is kept at the loop's head.
            Err(JobError::Cancelled) => return Ok(()),
            other => other?,
        };
        let better = standing.peak.is_none_or(|peak| scores.score > peak);
        // Few files make a noisy score: of networks that are as good, the one taught longer is kept.
        let near = standing.peak.is_none_or(|peak| scores.score > peak - SCORE_NOISE);
        let best = better || (near && standing.start_score.is_none_or(|start| scores.score > start));
        self.tell(standing, &scores, best);
        if best {
            self.plain(&graph, &self.folder.best())?;
            standing.best = Some((scores.score, standing.step));
        }
        standing.peak = Some(standing.peak.map_or(scores.score, |peak| peak.max(scores.score)));
        standing.since_best = if better { 0 } else { standing.since_best + 1 };
        Ok(())
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

    fn keep(&self, standing: &mut Standing, stepper: &Stepper, behind: f64) -> Result<(), JobError> {
        let now = behind + self.began.elapsed().as_secs_f64();
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

    /// Settings for objects, the package, its quantized network, and the scores of both.
    fn finish(&mut self, outcome: Outcome) -> Result<TrainReport, JobError> {
        let Outcome { standing, before, parameters } = outcome;
        let context = self.context;
        let labels = self.start.target.of_labels();
        let taught = self.folder.best().join("rdf.yaml").is_file() || self.folder.best().is_dir();
        let verdict = if taught { Verdict::Taught } else { Verdict::Start };
        let chosen: PathBuf = if taught { self.folder.best() } else { self.folder.start() };
        if verdict == Verdict::Start {
            context.note("Nothing that was learnt scored better than what training started from: that is kept.");
        }
        let graph = Package::open(&chosen).map_err(|e| JobError::model(chosen.display().to_string(), e))?.graph;
        if labels && !self.validator.is_empty() && self.start.target != TargetKind::Semantic {
            context.note("Choosing how objects are made of the maps.");
            let channel = package::seed_channel(self.start.target);
            let found = decode::tune(&context.cancel, self.devices, &self.validator, &chosen, &self.segment, channel)?;
            self.segment = found.0;
        }
        let name = package::package_name(&self.job.out);
        let metric = match self.start.target {
            TargetKind::Regression => "Pearson",
            TargetKind::Semantic => "Dice",
            _ => "mean of F1 at IoU 0.5 and 0.7",
        };
        let float = self.folder.path.join("float");
        let record = self.record(&standing, before.as_ref(), parameters);
        let card = self.card(&name, &standing, before.as_ref(), parameters, metric);
        package::write(&self.describe(record, card, name), &graph, &float)?;
        let mut after = None;
        if !self.validator.is_empty() {
            let found = self.validator.score(&context.cancel, self.devices, &float, Some(Precision::F32))?;
            after = Some(found);
        }
        let (package, int8) = self.quantize(&float, after.as_ref())?;
        self.hand_over(&package)?;
        let last: Vec<&StepPoint> = standing.history.steps.iter().rev().take(100).collect();
        let mean = |f: fn(&StepPoint) -> f64| last.iter().map(|p| f(p)).sum::<f64>() / last.len().max(1) as f64;
        Ok(TrainReport {
            out: self.job.out.clone(),
            verdict,
            metric: metric.to_owned(),
            before: before.as_ref().map(|s| s.scores.clone()).unwrap_or_default(),
            after: after.as_ref().map(|s| s.scores.clone()).unwrap_or_default(),
            after_int8: int8.map(|s| s.scores).unwrap_or_default(),
            pairs_before: before.map(|s| s.pairs).unwrap_or_default(),
            pairs_after: after.map(|s| s.pairs).unwrap_or_default(),
            steps: standing.step,
            epoch_steps: self.epoch_steps,
            batch: self.batch * self.config.accumulate,
            patch_zyx: self.patch,
            parameters,
            train_pairs: self.train_pairs.len(),
            validation_pairs: self.validation_pairs,
            seconds: self.began.elapsed().as_secs_f64(),
            step_secs: mean(|p| p.step_secs),
            stalled_secs: mean(|p| p.stalled_secs),
            peak_rss_bytes: cytoscope_profile::peak_resident_bytes(),
            device: self.engine.device().name.clone(),
            history: standing.history,
        })
    }

    fn record(&self, standing: &Standing, before: Option<&Scores>, parameters: usize) -> serde_json::Value {
        json!({
            "program": format!("cytoscope {}", env!("CARGO_PKG_VERSION")),
            "from": self.start.name,
            "seed": self.job.seed,
            "steps": standing.step,
            "epoch_steps": self.epoch_steps,
            "batch": self.batch * self.config.accumulate,
            "patch_zyx": self.patch,
            "parameters": parameters,
            "train": self.train_pairs.iter().map(|p| &p.name).collect::<Vec<_>>(),
            "validation": self.validator.cases.iter().map(|c| &c.name).collect::<Vec<_>>(),
            "before": before.map(|s| &s.scores),
            "best": standing.best.map(|(score, step)| json!({"score": score, "step": step})),
            "rescues": standing.rescues,
            "seconds": self.began.elapsed().as_secs_f64(),
            "settings": self.config,
            "history": standing.history,
        })
    }

    fn card(
        &self,
        name: &str,
        standing: &Standing,
        before: Option<&Scores>,
        parameters: usize,
        metric: &str,
    ) -> String {
        let mut summary = vec![
            ("started from".to_owned(), self.start.name.clone()),
            ("values taught".to_owned(), parameters.to_string()),
            ("pairs learnt from".to_owned(), self.train_pairs.len().to_string()),
            ("pairs validated on".to_owned(), self.validation_pairs.to_string()),
            ("steps".to_owned(), standing.step.to_string()),
            ("patch".to_owned(), format!("{} x {:?} voxels", self.batch, self.patch)),
        ];
        if let Some(v) = self.voxel_um {
            summary.push(("voxel size".to_owned(), format!("{} x {} x {} µm", v[0], v[1], v[2])));
        }
        if let Some(before) = before {
            summary.push(("score before".to_owned(), format!("{:.4}", before.score)));
        }
        if let Some((score, step)) = standing.best {
            summary.push(("best score".to_owned(), format!("{score:.4} at step {step}")));
        }
        package::card(name, &summary, &standing.history, metric)
    }

    /// The package with its quantized network, where that costs no accuracy; with the scores of that.
    fn quantize(&self, float: &Path, after: Option<&Scores>) -> Result<(PathBuf, Option<Scores>), JobError> {
        if self.job.without_int8 {
            return Ok((float.to_owned(), None));
        }
        self.context.note("Quantizing.");
        let out = self.folder.path.join("int8");
        let quiet = Context { cancel: self.context.cancel.clone(), ..Context::default() };
        let mut calibrate: Vec<PathBuf> = Vec::new();
        let step = self.train_pairs.len().div_ceil(8).max(1);
        calibrate.extend(self.train_pairs.iter().step_by(step).map(|p| p.image.path.clone()));
        let job = QuantizeJob {
            model: float.display().to_string(),
            out: out.clone(),
            mode: QuantizeMode::Static,
            calibrate,
            accuracy_budget: ACCURACY_BUDGET,
            keep_float: Default::default(),
            without_float: false,
        };
        match job.run(&quiet) {
            Ok(_) => {}
            Err(JobError::Cancelled) => return Err(JobError::Cancelled),
            Err(error) => {
                self.context.note(format!("The network stays in floats: {error}"));
                return Ok((float.to_owned(), None));
            }
        }
        let Some(after) = after else { return Ok((out, None)) };
        let scores = self.validator.score(&self.context.cancel, self.devices, &out, Some(Precision::Int8));
        match scores {
            Ok(int8) if int8.score + INT8_LOSS >= after.score => Ok((out, Some(int8))),
            Ok(int8) => {
                self.context.note(format!(
                    "In int8 the score falls from {:.4} to {:.4}: the network stays in floats.",
                    after.score, int8.score
                ));
                Ok((float.to_owned(), None))
            }
            Err(JobError::Cancelled) => Err(JobError::Cancelled),
            Err(error) => {
                self.context.note(format!("The network stays in floats: {error}"));
                Ok((float.to_owned(), None))
            }
        }
    }

    /// Puts the package where it was asked for.
    fn hand_over(&self, package: &Path) -> Result<(), JobError> {
        let out = &self.job.out;
        if let Some(parent) = out.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(io(parent))?;
        }
        let shown = package.display().to_string();
        let package = Package::open(package).map_err(|e| JobError::model(shown, e))?;
        cytoscope_pipeline::packages::save(&package, out)
    }
}
