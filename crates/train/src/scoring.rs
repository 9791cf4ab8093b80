//! Validation of the network during training: scores, previews and the best checkpoint.

use crate::budget::ValidationSize;
use crate::candidate::Candidate;
use crate::checkpoint::TrainState;
use crate::event::TrainEvent;
use crate::history::ValidationPoint;
use crate::package::{self, Description};
use crate::previews::{Previews, Thumbnail};
use crate::step::Stepper;
use crate::train::Training;
use crate::tuning::{self, TuneEffort};
use crate::validator::{Scores, Validator};
use cytoscope_graph::Graph;
use cytoscope_model_package::Package;
use cytoscope_pipeline::{JobError, ProgressStage};
use cytoscope_profile::Stage;
use cytoscope_training_data::TargetKind;
use serde_json::json;
use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

/// Scores that differ by less than this are considered equal.
const SCORE_NOISE: f64 = 0.01;

/// Scores of a network on the validation pairs.
pub(crate) struct ScoredNetwork {
    /// Scores with the current segmentation settings.
    pub(crate) untuned: Scores,
    /// Scores with the segmentation settings tuned for this network.
    pub(crate) tuned: Scores,
    /// Prediction of each pair with the current settings, if requested.
    pub(crate) thumbnails: Vec<Option<Thumbnail>>,
    /// Prediction of the pair that is shown during training, with the tuned settings.
    pub(crate) live: Option<Thumbnail>,
    /// Whether it is the int8 network of the start model, which scored higher than the float one.
    pub(crate) is_int8: bool,
    /// Fraction of pairs and settings that were evaluated: 1, unless the validation ran out of time.
    pub(crate) share: f64,
    /// Expected duration in seconds of a further validation: the time that scoring the float network took.
    pub(crate) secs: f64,
    /// Duration in seconds of scoring all compared networks, of which this one is the best.
    pub(crate) total_secs: f64,
}

/// How a validation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValidationOutcome {
    /// The scores are reported and recorded.
    Done,
    /// The job was canceled; the validation is still due.
    Canceled,
    /// The validation ran out of time and will be repeated on fewer voxels; it is still due.
    TimedOut,
}

/// Returns a network without the outputs for deep supervision, which are only needed in training.
fn deployed(graph: &Graph) -> Cow<'_, Graph> {
    if graph.outputs.len() == 1 {
        return Cow::Borrowed(graph);
    }
    let mut first = graph.clone();
    first.outputs.truncate(1);
    cytoscope_graph_passes::eliminate_dead(&mut first);
    Cow::Owned(first)
}

/// Returns the better one of the scored float and int8 networks of a start model. Further validations score float networks
/// only, so the time of the int8 network is not expected to recur.
fn better_start(float: ScoredNetwork, int8: ScoredNetwork) -> ScoredNetwork {
    let (secs, share, total_secs) = (float.secs, float.share, float.total_secs + int8.total_secs);
    // A score on fewer voxels cannot be compared.
    let is_comparable = int8.share >= float.share;
    let is_int8 = is_comparable && int8.tuned.score > float.tuned.score;
    let better = if is_int8 { int8 } else { float };
    ScoredNetwork { is_int8, secs, total_secs, share, ..better }
}

impl Training<'_> {
    /// Writes the package of a network in training.
    pub(crate) fn write_candidate(&self, graph: &Graph, to: &Path) -> Result<(), JobError> {
        let _span = self.context.recorder.span(Stage::Checkpoint, "network");
        package::write(&self.description(), &deployed(graph), to)
    }

    /// Prepares a network to be scored, as its package would be: a quantized one in int8, others in f32.
    fn candidate(&self, graph: &Graph) -> Result<Candidate, JobError> {
        let model = package::in_memory(&self.description(), &deployed(graph))?;
        Candidate::new(&self.context.cancel, self.devices, model, None, self.job.threads)
    }

    /// A package of the run's name: the package of another model would be moved aside by the final one.
    fn description(&self) -> Description<'_> {
        let name = package::package_name(&self.job.out);
        self.describe(json!({}), String::from("# In training\n"), name)
    }

    /// Returns whether segmentation settings are tuned on the validation pairs.
    pub(crate) fn tunes_segmentation(&self) -> bool {
        let target = self.start.target;
        let instances = target.is_from_labels() && target != TargetKind::Semantic;
        instances && self.config.segment.is_none() && !self.validator.is_empty()
    }

    /// Scores a network on the validation pairs; with a thumbnail of each prediction if `show`. Stops early if it takes
    /// more than its part of the time budget.
    pub(crate) fn score(&self, graph: &Graph, show: bool) -> Result<ScoredNetwork, JobError> {
        let started = Instant::now();
        let _span = self.context.recorder.span(Stage::Validate, "validation");
        let scored = self.context.report_alive(ProgressStage::Evaluate, || {
            let candidate = self.candidate(graph)?;
            if self.tunes_segmentation() {
                self.score_tuned(&candidate, started, show)
            } else {
                self.score_untuned(&candidate, started)
            }
        });
        let secs = started.elapsed().as_secs_f64();
        scored.map(|scored| ScoredNetwork { secs, total_secs: secs, ..scored })
    }

    /// Scores the start model: with its float or its int8 network, whichever is better, because predictions on this
    /// machine may use either. A trained network must be better than both.
    pub(crate) fn score_start(&self, show: bool) -> Result<ScoredNetwork, JobError> {
        let float = self.score(&self.start.graph, show)?;
        let Some(int8) = &self.start.int8 else { return Ok(float) };
        let quantized = self.score(&int8.graph, show)?;
        Ok(better_start(float, quantized))
    }

    /// Scores with segmentation settings tuned for this network.
    fn score_tuned(&self, candidate: &Candidate, started: Instant, show: bool) -> Result<ScoredNetwork, JobError> {
        let cancel = &self.context.cancel;
        let limit = self.budget().validation_timeout();
        let channel = package::seed_channel(self.start.target);
        let until = limit.map(|limit| started + limit / 2);
        let maps = tuning::predict_maps(cancel, &self.validator, candidate, channel, until)?;
        let until = limit.map(|limit| started + limit);
        let found = tuning::tune(cancel, &self.validator, &maps, &self.segment, TuneEffort::Quick, until)?;
        let mut thumbnails = vec![None; if show { self.validator.cases.len() } else { 0 }];
        for (map, to) in maps.iter().zip(&mut thumbnails) {
            *to = self.previews.thumbnail(map.case(), &map.labels(&self.segment)?);
        }
        let live = match maps.iter().find(|map| Some(map.case()) == self.previews.live_case()) {
            Some(map) => self.previews.thumbnail(map.case(), &map.labels(&found.options)?),
            None => None,
        };
        // Prediction takes about as long as the tuning of settings.
        let share = maps.len() as f64 / self.validator.cases.len().max(1) as f64 * (0.5 + 0.5 * found.share);
        Ok(ScoredNetwork {
            untuned: found.given,
            tuned: found.best,
            thumbnails,
            live,
            is_int8: false,
            share,
            secs: 0.0,
            total_secs: 0.0,
        })
    }

    /// Scores with the current segmentation settings, or without segmentation.
    fn score_untuned(&self, candidate: &Candidate, started: Instant) -> Result<ScoredNetwork, JobError> {
        let mut thumbnails = Vec::new();
        let mut on_case = |case: usize, made: &[f32]| thumbnails.push(self.previews.thumbnail(case, made));
        let until = self.budget().validation_timeout().map(|limit| started + limit);
        let scores = self.validator.score_with(&self.context.cancel, candidate, until, &mut on_case)?;
        let live = self.previews.live_case().and_then(|case| thumbnails.get(case)?.clone());
        let share = scores.pairs.len() as f64 / self.validator.cases.len().max(1) as f64;
        Ok(ScoredNetwork {
            untuned: scores.clone(),
            tuned: scores,
            thumbnails,
            live,
            is_int8: false,
            share,
            secs: 0.0,
            total_secs: 0.0,
        })
    }

    /// Adds a validation to the history and reports it as an event.
    pub(crate) fn record_validation(&self, state: &mut TrainState, scores: &Scores, best: bool) {
        let point = ValidationPoint { step: state.step, score: scores.score, scores: scores.scores.clone(), best };
        self.emit(&TrainEvent::Validated(point.clone()));
        state.history.validations.push(point);
    }

    /// Writes the preview of a prediction and reports it. Training continues if the file cannot be written.
    pub(crate) fn write_preview(&self, step: u64, live: Option<&Thumbnail>) {
        let Some((case, live)) = self.previews.live_case().zip(live) else { return };
        let _span = self.context.recorder.span(Stage::Validate, "preview");
        let Some((png, caption)) = self.previews.live_png(case, live).zip(self.previews.caption(case)) else { return };
        let path = self.folder.preview();
        match cytoscope_storage::write::atomic_write(&path, &png) {
            Ok(()) => self.emit(&TrainEvent::ValidationPreview { step, path, caption }),
            Err(error) => tracing::warn!("the preview of a validation cannot be written: {error}"),
        }
    }

    /// Scores the current network and saves it if it is the best. If that took too long for the time budget, later
    /// validations use fewer voxels, and `before` and the best network are scored again.
    pub(crate) fn validate(
        &mut self,
        state: &mut TrainState,
        stepper: &Stepper,
        before: &mut Option<ScoredNetwork>,
    ) -> Result<ValidationOutcome, JobError> {
        let graph = stepper.folded()?;
        let scored = match self.score(&graph, false) {
            Err(JobError::Canceled) => return Ok(ValidationOutcome::Canceled),
            other => other?,
        };
        state.add_validation_time(&scored);
        let smaller = self.budget().shrink(self.validator.size(), scored.secs, scored.share);
        if let Some(size) = smaller.filter(|_| scored.share < 1.0) {
            return match self.shrink_validation(state, size, before) {
                Ok(()) => Ok(ValidationOutcome::TimedOut),
                Err(JobError::Canceled) => Ok(ValidationOutcome::Canceled),
                Err(error) => Err(error),
            };
        }
        let scores = scored.tuned;
        let is_better = state.peak.is_none_or(|peak| scores.score > peak);
        // Scores on few files are noisy: of equally good networks, the one that was trained longer is kept.
        let is_near_peak = state.peak.is_none_or(|peak| scores.score > peak - SCORE_NOISE);
        let is_as_good = is_near_peak && state.start_score.is_none_or(|start| scores.score > start);
        // A start model is replaced only by a network that is better by more than chance.
        let comparison = before.as_ref().map(|start| scores.compared_with(&start.tuned));
        // While the start model is kept, the first clear gain counts, even if it scores lower than an earlier network without one.
        let is_start_kept = state.best.is_some_and(|(_, step)| step == 0);
        let best = match comparison {
            Some(comparison) => (is_better || is_as_good || is_start_kept) && comparison.is_clear_gain(),
            None => is_better || is_as_good,
        };
        let comparisons = [state.best_comparison, comparison].into_iter().flatten();
        state.best_comparison = comparisons.max_by(|a, b| a.after.total_cmp(&b.after));
        if best {
            self.write_candidate(&stepper.network()?, &self.folder.best(state.step))?;
            state.best = Some((scores.score, state.step));
        }
        self.record_validation(state, &scores, best);
        self.write_preview(state.step, scored.live.as_ref());
        state.peak = Some(state.peak.map_or(scores.score, |peak| peak.max(scores.score)));
        state.validations_since_best = if is_better { 0 } else { state.validations_since_best + 1 };
        match smaller.map_or(Ok(()), |size| self.shrink_validation(state, size, before)) {
            Ok(()) => Ok(ValidationOutcome::Done),
            Err(JobError::Canceled) => Ok(ValidationOutcome::Canceled),
            Err(error) => Err(error),
        }
    }

    /// Validates on fewer pairs, or crops of them, from now on, and scores the start model and the best network again.
    /// If that fails, a resumed run validates as before.
    pub(crate) fn shrink_validation(
        &mut self,
        state: &mut TrainState,
        size: ValidationSize,
        before: &mut Option<ScoredNetwork>,
    ) -> Result<(), JobError> {
        let volume = |validator: &Validator| validator.voxels().iter().map(|v| *v as f64).sum::<f64>();
        let had = volume(&self.validator);
        let change = self.limit_validation(size)?;
        state.validation_secs *= volume(&self.validator) / had.max(1.0);
        self.rescore(state, before)?;
        state.validation_size = Some(size);
        let message = format!("{change} from step {} on, to stay within the time budget", state.step);
        self.context.note(message.clone());
        state.history.notes.push(message.into());
        Ok(())
    }

    /// Changes the pairs, or crops of them, to validate on; returns a clause that describes it.
    pub(crate) fn limit_validation(&mut self, size: ValidationSize) -> Result<String, JobError> {
        let had = self.validator.size();
        self.validator = self.validator.resized(size)?;
        self.previews = Previews::of(&self.validator, self.start.target);
        let now = self.validator.size();
        let part = if now.voxels < had.voxels { " and a crop of each" } else { "" };
        Ok(format!("validation uses {} of {} pairs{part}", now.cases, self.validator.pairs.len()))
    }

    /// Scores the start model and the best network again, if they have a score: the validation images have changed.
    pub(crate) fn rescore(&self, state: &mut TrainState, before: &mut Option<ScoredNetwork>) -> Result<(), JobError> {
        let start = if before.is_some() || state.start_score.is_some() { Some(self.score_start(true)?) } else { None };
        let score = start.as_ref().map(|scored| scored.tuned.score);
        let best = match state.best.filter(|_| !self.validator.is_empty()) {
            None => None,
            Some((_, 0)) if score.is_some() => score.map(|score| (score, 0)),
            Some((_, step)) => {
                let path = if step == 0 { self.folder.start() } else { self.folder.best(step) };
                let kept = Package::open(&path).map_err(|e| JobError::model(path.display().to_string(), e))?;
                let scored = self.score(&kept.graph, false)?;
                state.add_validation_time(&scored);
                Some((scored.tuned.score, step))
            }
        };
        if let Some(scored) = start {
            state.add_validation_time(&scored);
            state.start_score = score;
            // Scores on other images cannot be compared.
            state.best_comparison = None;
            *before = Some(scored);
        }
        if let Some((score, step)) = best {
            state.best = Some((score, step));
            state.peak = Some(score);
            state.validations_since_best = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn scored(score: f64, secs: f64, share: f64) -> ScoredNetwork {
        let scores = Scores { score, scores: BTreeMap::new(), pairs: Vec::new(), shares: Vec::new() };
        let (untuned, tuned) = (scores.clone(), scores);
        ScoredNetwork {
            untuned,
            tuned,
            thumbnails: Vec::new(),
            live: None,
            is_int8: false,
            share,
            secs,
            total_secs: secs,
        }
    }

    #[test]
    fn the_int8_network_of_a_start_model_does_not_make_later_validations_seem_longer() {
        for (float, int8) in [(0.8, 0.9), (0.9, 0.8)] {
            let start = better_start(scored(float, 60.0, 1.0), scored(int8, 40.0, 1.0));
            assert_eq!((start.tuned.score, start.is_int8), (0.9, int8 > float));
            assert_eq!((start.secs, start.total_secs, start.share), (60.0, 100.0, 1.0));
        }
        // Scores on fewer voxels are not compared.
        let start = better_start(scored(0.8, 60.0, 1.0), scored(0.9, 40.0, 0.5));
        assert_eq!((start.tuned.score, start.is_int8, start.share), (0.8, false, 1.0));
    }
}
