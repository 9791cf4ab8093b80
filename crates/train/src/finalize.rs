//! The end of a training run: tuning of segmentation settings, the package, quantization, and scores of both networks.

use crate::candidate::Candidate;
use crate::checkpoint::{FLOAT, INT8, KEPT, TrainState};
use crate::curves;
use crate::error::io_error;
use crate::history::StepPoint;
use crate::job::{ChosenNetwork, FloatOnly, Quantized, TrainReport, kept_reason};
use crate::network::Int8Network;
use crate::package::{self, Description, Example};
use crate::previews::{self, Thumbnail};
use crate::qat::QatTrainer;
use crate::record::{TrainingRecordFacts, training_record};
use crate::relay::progress_only;
use crate::score_name::SelectionMetric;
use crate::stacks::calibration_image;
use crate::train::{LoopOutcome, Training};
use crate::tuning::{self, TuneEffort};
use crate::validator::Scores;
use crate::workers::DataWorkers;
use cytoscope_engine::Precision;
use cytoscope_graph::Graph;
use cytoscope_model_package::{PACKAGE_KIND, Package, check_destination};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::{
    CalibrationTile, Context, JobError, JobErrorKind, Model, ProgressStage, calibration_tiles_from_images, packages,
};
use cytoscope_profile::{Stage, count_text};
use cytoscope_quantize::{ACCURACY_BUDGET, MAX_QAT_TILES, QuantizeJob, QuantizeMode};
use cytoscope_storage::Overwrite;
use cytoscope_storage::folder::{Replaced, is_finished, move_aside, move_back};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::LICENSE;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Attempts to quantize, in order: calibration alone, then quantization-aware training, then tighter accuracy budgets,
/// which keep more layers in float.
const ATTEMPTS: [(QuantizeMode, f64); 4] = [
    (QuantizeMode::Static, ACCURACY_BUDGET),
    (QuantizeMode::Qat, ACCURACY_BUDGET * 0.6),
    (QuantizeMode::Static, ACCURACY_BUDGET / 2.0),
    (QuantizeMode::Static, ACCURACY_BUDGET / 4.0),
];
/// Maximum number of training images that the int8 network is calibrated with.
const CALIBRATION_IMAGES: usize = 8;
/// Maximum decrease of the score that quantization may cause.
const INT8_LOSS: f64 = 0.005;
/// Fraction of the time left after training that tuning of segmentation settings may take.
const TUNING_SHARE: f64 = 0.3;

/// Returns the note about a package without a license.
fn no_license_note() -> Message {
    message!(
        "the package states no license, so others may not use the model; its authors can state one ({LICENSE}, or license in \
         the settings, such as CC-BY-4.0)"
    )
}

/// Returns the time at which `share` of the time from now until `end` has passed.
fn deadline_for_share(end: Instant, share: f64) -> Instant {
    let now = Instant::now();
    now + end.saturating_duration_since(now).mul_f64(share)
}

/// Returns the mean over the last 100 points of the loss curve; `None` if there is no point, as a run that ends early may
/// have none.
fn recent_mean(points: &[StepPoint], value: fn(&StepPoint) -> f64) -> Option<f64> {
    let last = points.get(points.len().saturating_sub(100)..).filter(|last| !last.is_empty())?;
    Some(last.iter().map(value).sum::<f64>() / last.len() as f64)
}

/// The float network of the final package, with its scores.
struct FinalNetwork {
    graph: Graph,
    /// Scores with the final segmentation settings; `None` without a validation set.
    scores: Option<Scores>,
    /// The prediction of each validation pair.
    thumbnails: Vec<Option<Thumbnail>>,
}

/// The package to save at the output path, still in the checkpoint folder.
struct FinalPackage {
    path: PathBuf,
    /// Scores of the int8 network, if there is one and a validation set.
    int8: Option<Scores>,
    quantized: Option<Quantized>,
    /// Why there is no int8 network.
    float_only: Option<FloatOnly>,
}

impl FinalPackage {
    fn float_only(path: &Path, reason: FloatOnly) -> Self {
        Self { path: path.to_owned(), int8: None, quantized: None, float_only: Some(reason) }
    }

    fn with_int8(path: PathBuf, int8: Option<Scores>, quantized: Option<Quantized>) -> Self {
        Self { path, int8, quantized, float_only: None }
    }
}

impl Training<'_> {
    /// Tunes the segmentation settings, writes the package, quantizes it and scores both networks.
    pub(crate) fn finalize(&mut self, outcome: LoopOutcome) -> Result<TrainReport, JobError> {
        let LoopOutcome { mut state, before, parameters, traffic } = outcome;
        let before_is_int8 = before.as_ref().is_some_and(|b| b.is_int8);
        let start_scores = before.as_ref().map(|b| b.tuned.clone());
        let (before, thumbnails_before) = before.map_or((None, Vec::new()), |b| (Some(b.untuned), b.thumbnails));
        let context = self.context;
        let float = self.folder.path.join(FLOAT);
        let (verdict, final_network) =
            self.choose_network(&mut state, start_scores.as_ref(), before.as_ref(), &float)?;
        let FinalNetwork { graph, scores: after, thumbnails } = final_network;
        let writing = context.recorder.span(Stage::Write, "package");
        let name = package::package_name(&self.job.out);
        let metric = SelectionMetric::of(self.start.target);
        let record = self.record(&state, verdict, before.as_ref(), parameters);
        let examples = self.examples(before.as_ref(), &thumbnails_before, after.as_ref(), &thumbnails);
        let card = self.card(&name, &state, before.as_ref(), parameters, metric, &examples);
        let curves =
            curves::svg(&state.history, metric.name()).map(|svg| (package::CURVES.to_owned(), svg.into_bytes()));
        let covers = examples.into_iter().map(|e| (e.file, e.png)).chain(curves).collect();
        let object_intensity = self.object_intensity(verdict);
        let description = Description { covers, object_intensity, ..self.describe(record, card, name) };
        package::write(&description, &graph, &float)?;
        if description.license.is_none() {
            context.note(no_license_note());
        }
        writing.finish();
        let floor = start_scores.as_ref().map(|start| start.score).filter(|_| verdict == ChosenNetwork::Trained);
        let packed = self.quantize(verdict, &float, after.as_ref(), floor, &state)?;
        let writing = context.recorder.span(Stage::Write, "publish");
        self.save_package(&packed.path)?;
        writing.finish();
        let steps = &state.history.steps;
        let DataWorkers { workers, prefetch } = self.data_workers();
        Ok(TrainReport {
            out: self.job.out.clone(),
            verdict,
            comparison: state.best_comparison.filter(|_| verdict == ChosenNetwork::Start),
            metric,
            before: before.as_ref().map(|s| s.scores.clone()).unwrap_or_default(),
            before_is_int8,
            after: after.as_ref().map(|s| s.scores.clone()).unwrap_or_default(),
            after_int8: packed.int8.map(|s| s.scores).unwrap_or_default(),
            quantized: packed.quantized,
            float_only: packed.float_only,
            pairs_before: before.map(|s| s.pairs).unwrap_or_default(),
            pairs_after: after.map(|s| s.pairs).unwrap_or_default(),
            steps: state.step,
            epoch_steps: self.epoch_steps,
            batch: self.batch * self.config.accumulate,
            patch_zyx: self.patch,
            parameters,
            train_pairs: self.train_pairs.len(),
            validation_pairs: self.validator.pairs.len(),
            workers,
            prefetch,
            seconds: self.seconds(&state),
            step_secs: recent_mean(steps, |p| p.step_secs).unwrap_or(state.first_step_secs),
            stalled_secs: recent_mean(steps, |p| p.stalled_secs).unwrap_or(0.0),
            peak_rss_bytes: cytoscope_profile::peak_resident_bytes(),
            device: self.device_names(),
            device_id: Some(self.engine.device().id),
            traffic,
            history: state.history,
        })
    }

    /// Returns the network to save, which is written to `float`, with the final segmentation settings: the best one of the run,
    /// unless it scores lower with these settings than the start model. `tuned` and `untuned` are the scores of the start model
    /// with the settings that suit it best and with those of its package.
    fn choose_network(
        &mut self,
        state: &mut TrainState,
        tuned: Option<&Scores>,
        untuned: Option<&Scores>,
        float: &Path,
    ) -> Result<(ChosenNetwork, FinalNetwork), JobError> {
        let context = self.context;
        let (start_segment, end) = (self.segment.clone(), self.deadline(state));
        // Without a validation set, the final network is used.
        let best = if self.validator.is_empty() { state.step } else { state.best.map_or(0, |(_, step)| step) };
        if best > 0 {
            let trained = self.final_network(&self.folder.best(best), float, end)?;
            let lower = tuned.and_then(|start| Some((start, trained.scores.as_ref()?.if_lower_than(start)?)));
            let Some((start, lower)) = lower else { return Ok((ChosenNetwork::Trained, trained)) };
            // The scores during training are those of other segmentation settings, and perhaps of other crops.
            let reason = lower.reason();
            context.note(format!(
                "with the final segmentation settings, the trained network scores lower than the start model, which is \
                 kept: {reason}"
            ));
            (state.best, state.best_comparison) = (Some((start.score, 0)), Some(lower));
            self.segment = start_segment.clone();
        } else {
            let reason = kept_reason(state.best_comparison.as_ref());
            context.note(format!(
                "no trained network scored clearly better than the start model, which is kept: {reason}"
            ));
        }
        let start = self.kept_start()?;
        let adapted = self.final_network(&start, float, end)?;
        let is_better = match (untuned, &adapted.scores) {
            (Some(before), Some(after)) => after.compared_with(before).is_clear_gain(),
            _ => true,
        };
        if is_better || self.segment == start_segment {
            return Ok((ChosenNetwork::Start, adapted));
        }
        // The tuned settings suit the float network, but an int8 network of the start model may score lower with them.
        context
            .note("no other segmentation settings scored clearly better than those of the start model, which are kept");
        self.segment = start_segment;
        Ok((ChosenNetwork::Start, self.scored_network(&start, float)?))
    }

    /// Tunes the segmentation settings for the network of the package `chosen`, writes the network to `float` and scores it
    /// with these settings.
    fn final_network(&mut self, chosen: &Path, float: &Path, end: Option<Instant>) -> Result<FinalNetwork, JobError> {
        if self.tunes_segmentation() {
            self.segment = self.tune_segmentation(chosen, end)?;
        }
        self.scored_network(chosen, float)
    }

    /// Writes the network of the package `chosen` to `float` and scores it with the current segmentation settings.
    fn scored_network(&self, chosen: &Path, float: &Path) -> Result<FinalNetwork, JobError> {
        let context = self.context;
        let graph = Package::open(chosen).map_err(|e| JobError::model(chosen.display().to_string(), e))?.graph;
        self.folder.remove_package(float);
        self.write_candidate(&graph, float)?;
        let (mut scores, mut thumbnails) = (None, Vec::new());
        if !self.validator.is_empty() {
            let mut on_case = |case: usize, made: &[f32]| thumbnails.push(self.previews.thumbnail(case, made));
            let precision = Some(Precision::F32);
            let _span = context.recorder.span(Stage::Validate, "final network");
            let candidate = Candidate::load(&context.cancel, self.devices, float, precision, self.job.threads)?;
            let score = || self.validator.score_with(&context.cancel, &candidate, None, &mut on_case);
            scores = Some(context.report_alive(ProgressStage::Evaluate, score)?);
        }
        Ok(FinalNetwork { graph, scores, thumbnails })
    }

    /// Returns the package of the start model in the checkpoint folder, which is written if it is not there.
    fn kept_start(&self) -> Result<PathBuf, JobError> {
        let path = self.folder.start();
        if !path.is_dir() {
            self.write_candidate(&self.start.graph, &path)?;
        }
        Ok(path)
    }

    /// Returns the segmentation settings with the best validation score of the network `chosen`.
    fn tune_segmentation(&self, chosen: &Path, end: Option<Instant>) -> Result<SegmentOptions, JobError> {
        let context = self.context;
        context.note("tuning the segmentation settings");
        let _span = context.recorder.span(Stage::Validate, "tuning");
        let channel = package::seed_channel(self.start.target);
        let candidate = Candidate::load(&context.cancel, self.devices, chosen, None, self.job.threads)?;
        let found = context.report_alive(ProgressStage::Evaluate, || {
            let maps = tuning::predict_maps(&context.cancel, &self.validator, &candidate, channel, None)?;
            let until = end.map(|end| deadline_for_share(end, TUNING_SHARE));
            tuning::tune(&context.cancel, &self.validator, &maps, &self.segment, TuneEffort::Thorough, until)
        })?;
        if found.share < 1.0 {
            context.note("not all segmentation settings were tried, to stay within the time budget");
        }
        Ok(found.options)
    }

    /// Returns the training record of the package, as JSON.
    fn record(
        &self,
        state: &TrainState,
        verdict: ChosenNetwork,
        before: Option<&Scores>,
        parameters: usize,
    ) -> serde_json::Value {
        let images = match verdict {
            ChosenNetwork::Trained => &self.images_after,
            ChosenNetwork::Start => &self.images_before,
        };
        training_record(&TrainingRecordFacts {
            start: &self.start.name,
            seed: self.job.seed,
            steps: state.step,
            epoch_steps: self.epoch_steps,
            batch: self.batch * self.config.accumulate,
            patch_zyx: self.patch,
            parameters,
            data: &self.job.data,
            train: &self.train_pairs,
            images,
            validation: &self.validator.pairs,
            scored: self.validator.cases.len(),
            before: before.map(|s| &s.scores),
            best: state.best,
            rollbacks: state.rollbacks,
            seconds: self.seconds(state),
            validation_secs: state.validating_secs,
            config: &self.config,
            history: &state.history,
        })
    }

    /// Returns the model card of the package, as Markdown.
    fn card(
        &self,
        name: &str,
        state: &TrainState,
        before: Option<&Scores>,
        parameters: usize,
        metric: SelectionMetric,
        examples: &[Example],
    ) -> String {
        let mut summary = vec![
            ("start model".to_owned(), self.start.name.clone()),
            ("trainable parameters".to_owned(), count_text(parameters as u64)),
            ("training pairs".to_owned(), self.train_pairs.len().to_string()),
            ("validation pairs".to_owned(), self.validator.pairs.len().to_string()),
            ("steps".to_owned(), state.step.to_string()),
            ("patch".to_owned(), format!("{} x {:?} voxels", self.batch, self.patch)),
        ];
        if let Some(v) = self.voxel_um {
            summary.push(("voxel size".to_owned(), format!("{} x {} x {} µm", v[0], v[1], v[2])));
        }
        if let Some(before) = before {
            summary.push(("score of the start model".to_owned(), format!("{:.4}", before.score)));
        }
        if let Some((score, step)) = state.best {
            let of = if step == 0 { "of the start model, which is kept".to_owned() } else { format!("at step {step}") };
            summary.push(("best score".to_owned(), format!("{score:.4} {of}")));
        }
        let legend = self.previews.legend(before.is_some());
        let mut card = package::card(name, &summary, &state.history, metric.name(), &legend, examples);
        if let Some(origin) = &self.start.origin {
            card.push_str(&origin.section(&self.start.name, package::escape_markdown));
        }
        card
    }

    /// Returns the example images of the card: the pairs with the best, the median and the worst score.
    fn examples(
        &self,
        before: Option<&Scores>,
        thumbnails_before: &[Option<Thumbnail>],
        after: Option<&Scores>,
        thumbnails: &[Option<Thumbnail>],
    ) -> Vec<Example> {
        let Some(after) = after else { return Vec::new() };
        let mut made = Vec::new();
        for (case, which) in previews::examples(&after.pairs) {
            let thumbnail = |all: &[Option<Thumbnail>]| all.get(case).cloned().flatten();
            let start = thumbnail(thumbnails_before);
            let trained = thumbnail(thumbnails);
            let png = trained.and_then(|trained| self.previews.example_png(case, start.as_ref(), &trained));
            let (Some(png), Some(place), Some(pair)) = (png, self.previews.caption(case), after.pairs.get(case)) else {
                continue;
            };
            let score = match before.and_then(|b| b.pairs.get(case)) {
                Some(start) => format!("{:.3} before, {:.3} after", start.score, pair.score),
                None => format!("{:.3}", pair.score),
            };
            let caption = format!("{which}: {place}; score {score}");
            made.push(Example { file: format!("example_{}.png", made.len()), png, caption });
        }
        made
    }

    /// Adds an int8 network to the package if that costs no accuracy: its score must not fall below `floor`, the score
    /// of the start model. Stops when the time budget is exceeded.
    fn quantize(
        &self,
        verdict: ChosenNetwork,
        float: &Path,
        after: Option<&Scores>,
        floor: Option<f64>,
        state: &TrainState,
    ) -> Result<FinalPackage, JobError> {
        if self.job.without_int8 {
            return Ok(FinalPackage::float_only(float, FloatOnly::NotRequested));
        }
        if verdict == ChosenNetwork::Start
            && let Some(int8) = &self.start.int8
            && let Some(kept) = self.keep_int8(int8, float, after)?
        {
            return Ok(kept);
        }
        let end = self.deadline(state);
        let left = || end.map(|end| end.saturating_duration_since(Instant::now()).as_secs_f64() / 60.0);
        self.context.note("quantizing the network");
        let out = self.folder.path.join(INT8);
        let quiet = progress_only(self.context, self.overtime_cancel(state));
        // The calibration tiles, which are cut in the first attempt.
        let mut tiles = Vec::new();
        // Minutes that an attempt takes apart from training, as measured in the first attempt.
        let mut overhead_mins = 0.0;
        let mut reason = FloatOnly::NoTime;
        for (attempt, (mode, budget)) in ATTEMPTS.into_iter().enumerate() {
            if left().is_some_and(|m| m <= 0.0) {
                self.context.note("no time is left for quantization");
                break;
            }
            let started = Instant::now();
            let trainer = QatTrainer {
                minutes: left().map(|m| m - overhead_mins),
                threads: self.job.threads,
                ..QatTrainer::default()
            };
            let job = QuantizeJob {
                model: float.display().to_string(),
                out: out.clone(),
                mode,
                calibrate: Vec::new(),
                predictions: Vec::new(),
                accuracy_budget: budget,
                keep_float: Default::default(),
                without_float: false,
                overwrite: Overwrite::Refuse,
            };
            self.folder.remove_package(&out);
            let scored = self.quantize_once(&job, &trainer, &quiet, &mut tiles, after, floor);
            if attempt == 0 {
                overhead_mins = started.elapsed().as_secs_f64() / 60.0;
            }
            match scored {
                Ok((true, int8, quantized)) => return Ok(FinalPackage::with_int8(out, int8, Some(quantized))),
                Ok((false, ..)) => reason = FloatOnly::LessAccurate,
                Err(error) if error.kind() == JobErrorKind::Canceled => {
                    if self.context.cancel.is_canceled() {
                        return Err(JobError::Canceled);
                    }
                    self.context.note("quantization was stopped, to stay within the time budget");
                    break;
                }
                Err(error) => {
                    let message =
                        format!("the package has only the float network, because quantization failed: {error}");
                    self.context.note(message);
                    return Ok(FinalPackage::float_only(float, FloatOnly::Failed));
                }
            }
        }
        self.context.note("the package has only the float network");
        Ok(FinalPackage::float_only(float, reason))
    }

    /// Adds the int8 network of the start model, which is kept, to the package at `float`. Returns `None` if its score is
    /// too low for these data.
    fn keep_int8(
        &self,
        int8: &Int8Network,
        float: &Path,
        after: Option<&Scores>,
    ) -> Result<Option<FinalPackage>, JobError> {
        let shown = float.display().to_string();
        let package = Package::open(float).map_err(|e| JobError::model(&*shown, e))?;
        let tensors = package.test_tensors().map_err(|e| JobError::model(&*shown, e))?;
        let Some((inputs, test_outputs)) = tensors else { return Ok(None) };
        let quantized = packages::Quantized {
            graph: int8.graph.clone(),
            float_graph: Some(package.graph.clone()),
            tolerance: None,
            test_outputs,
            record: int8.record.clone(),
        };
        let path = self.folder.path.join(KEPT);
        self.folder.remove_package(&path);
        // In the run's own folder, where nothing is moved.
        let _ = packages::save_quantized(&package, inputs, quantized, &path, Overwrite::Refuse)?;
        let Some(after) = after else {
            return Ok(Some(FinalPackage::with_int8(path, None, None)));
        };
        let (context, threads) = (self.context, self.job.threads);
        let _span = context.recorder.span(Stage::Validate, "int8 network");
        let candidate = Candidate::load(&context.cancel, self.devices, &path, Some(Precision::Int8), threads)?;
        let score = || self.validator.score(&context.cancel, &candidate);
        let scores = context.report_alive(ProgressStage::Evaluate, score)?;
        if scores.score + INT8_LOSS < after.score {
            return Ok(None);
        }
        context.note("the int8 network of the start model is kept, too");
        Ok(Some(FinalPackage::with_int8(path, Some(scores), None)))
    }

    /// Cuts the tiles that the network at `model` is calibrated with out of up to eight training images, evenly spaced.
    fn calibration_tiles(&self, context: &Context, model: &str) -> Result<Vec<CalibrationTile>, JobError> {
        let step = self.train_pairs.len().div_ceil(CALIBRATION_IMAGES).max(1);
        let pairs = self.train_pairs.iter().step_by(step);
        let diameter = self.config.diameter;
        let images = pairs.map(|pair| calibration_image(pair, diameter)).collect::<Result<Vec<_>, _>>()?;
        calibration_tiles_from_images(context, &Model::load(model)?, &images, MAX_QAT_TILES)
    }

    /// Quantizes the network and scores the result. Returns whether that costs no accuracy, and the scores if there is
    /// a validation set. The calibration `tiles` are cut if there are none yet.
    fn quantize_once(
        &self,
        job: &QuantizeJob,
        trainer: &QatTrainer,
        quiet: &Context,
        tiles: &mut Vec<CalibrationTile>,
        after: Option<&Scores>,
        floor: Option<f64>,
    ) -> Result<(bool, Option<Scores>, Quantized), JobError> {
        let report = quiet.report_alive(ProgressStage::Calibrate, || {
            if tiles.is_empty() {
                *tiles = self.calibration_tiles(quiet, &job.model)?;
            }
            job.run_on_tiles(quiet, Some(trainer), tiles)
        })?;
        let quantized = Quantized {
            float_bytes: report.float_bytes,
            int8_bytes: report.int8_bytes,
            tile_shape: report.tile_shape,
            tile_times: report.tile_times,
        };
        let Some(after) = after else { return Ok((true, None, quantized)) };
        let precision = Some(Precision::Int8);
        let _span = quiet.recorder.span(Stage::Validate, "int8 network");
        let int8 = self.context.report_alive(ProgressStage::Evaluate, || {
            let candidate = Candidate::load(&quiet.cancel, self.devices, &job.out, precision, self.job.threads)?;
            self.validator.score(&quiet.cancel, &candidate)
        })?;
        let accurate = int8.score + INT8_LOSS >= after.score && floor.is_none_or(|floor| int8.score >= floor);
        if !accurate {
            self.context.note(format!(
                "the int8 network {}with an accuracy budget of {} lowers the score from {:.4} to {:.4}",
                if job.mode == QuantizeMode::Qat { "after quantization-aware training " } else { "" },
                job.accuracy_budget,
                after.score,
                int8.score
            ));
        }
        Ok((accurate, Some(int8), quantized))
    }

    /// Saves the package at the output path.
    fn save_package(&self, package: &Path) -> Result<(), JobError> {
        let out = &self.job.out;
        if let Some(parent) = out.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(io_error(parent))?;
        }
        let shown = package.display().to_string();
        let package = Package::open(package).map_err(|e| JobError::model(shown, e))?;
        check_destination(out, &[], self.job.overwrite)?;
        // The package of an earlier run, a folder or a zip, is not deleted: training it again would take long.
        let is_file = std::fs::symlink_metadata(out).is_ok_and(|meta| meta.is_file());
        let is_earlier = is_finished(out, PACKAGE_KIND) || is_file;
        let earlier = if is_earlier { Some(move_aside(out)?) } else { None };
        let saved = packages::save(&package, out, self.job.overwrite);
        if let (Err(_), Some(earlier)) = (&saved, &earlier) {
            move_back(earlier, out);
        }
        let packages::Saved { replaced, left_out } = saved?;
        for part in left_out {
            self.context.note(format!("left out of the package: {part}"));
        }
        let moved = match replaced {
            Replaced::MovedTo(aside) => Some(aside),
            Replaced::Nothing | Replaced::Ours => earlier,
        };
        if let Some(aside) = moved {
            let (out, aside) = (out.display(), aside.display());
            self.context.note(format!("the previous contents of {out} were moved to {aside}"));
        }
        Ok(())
    }
}
